"""Which calls leave the process or take their time: by library, and failing that by name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from relevo.check.names import Project
from relevo.check.outline import Function, Outside, Scope, dotted, words


class Kind(Enum):
    """What a call waits for."""

    HTTP = "an HTTP call"
    MAIL = "an e-mail or message"
    MODEL = "a language model"
    SERVICE = "a service's SDK"
    GATEWAY = "a gateway"
    PDF = "a PDF"
    SLEEP = "a sleep"
    PROCESS = "another program"
    ONCE = "an effect outside"


@dataclass(frozen=True, slots=True)
class Touch:
    """One call that leaves the process or takes its time."""

    label: str
    kind: Kind
    is_effect: bool = False  # it changes something outside, so that twice is once too often
    is_blocking: bool = False  # it holds the thread until it is done
    is_sure: bool = True  # known by its library, not only by its name

    @property
    def is_outside(self) -> bool:
        return self.kind not in (Kind.PDF, Kind.ONCE)


# Known by their library. The first of these words in a dotted name is the call that leaves; words
# after it belong to the answer (`httpx.get(…).headers.get(…)`), and names such as
# stripe.Webhook.construct_event never leave.

_READS = words(
    "get head options stream urlopen urlretrieve getresponse fetch retrieve list search query find "
    "find_one get_object list_objects list_objects_v2 head_object download download_file "
    "download_fileobj receive_message get_item scan open_by_key open_by_url open_by_title "
    "get_all_records get_all_values ws_connect"
)
_WRITES = words(
    "post put patch delete request send create modify update cancel capture confirm refund pay "
    "finalize submit attach detach void send_email send_raw_email send_templated_email "
    "send_bulk_email send_bulk_templated_email send_message send_messages sendmail sendMessage "
    "send_text_message send_template send_photo send_document publish publish_json batch_json "
    "put_object delete_object copy_object upload upload_file upload_fileobj put_item update_item "
    "delete_item put_events start_execution append_row append_rows append_table update_cell "
    "update_cells insert_one insert_many insert_row update_one delete_one chat_postMessage"
)
_ASKS = words(
    "generate generate_content generate_content_stream generate_images generate_text complete "
    "completion acompletion text_completion atext_completion completions embed embed_content "
    "embedding aembedding invoke ainvoke stream astream batch abatch run arun predict apredict "
    "transcribe translate parse chat count_tokens acreate create call acall send_message "
    "send_message_async converse invoke_model request create_and_poll"
)
_PRINTS = words("write_pdf from_string from_url from_file CreatePDF build output save render")
_LOGS_IN = words("login connect starttls quit noop")

_ANSWERS = words(
    "Response ClientResponse HTTPResponse Headers headers Cookies cookies QueryParams URL "
    "exceptions errors error MockTransport TestClient Webhook"
)

_HTTP = "httpx httpx2 aiohttp requests urllib.request urllib3 http.client pycurl treq niquests"
_MAIL = (
    "smtplib aiosmtplib sendgrid resend postmarker mailjet_rest mailchimp_transactional "
    "fastapi_mail yagmail emails redmail django.core.mail twilio telegram aiogram slack_sdk vonage "
    "firebase_admin.messaging ftplib imaplib poplib"
)
_MODEL = (
    "openai anthropic google.genai google.generativeai vertexai cohere mistralai groq litellm "
    "ollama together replicate huggingface_hub transformers langchain langchain_core "
    "langchain_openai langchain_anthropic llama_index whisper dashscope instructor pydantic_ai"
)
_SERVICE = (
    "stripe boto3 aioboto3 botocore gspread googleapiclient astrapy qstash upstash_qstash "
    "mercadopago paypalrestsdk paypalcheckoutsdk braintree square shopify hubspot notion_client "
    "algoliasearch cloudinary supabase firebase_admin github gitlab jira zeep suds paramiko "
    "playwright selenium pyppeteer elasticsearch"
)
_PDF = "weasyprint pdfkit reportlab fpdf xhtml2pdf borb pypandoc docx2pdf"

_VERBS = {
    Kind.HTTP: _READS | _WRITES,
    Kind.MAIL: _READS | _WRITES | _LOGS_IN,
    Kind.MODEL: _ASKS | _READS | _WRITES,
    Kind.SERVICE: _READS | _WRITES | _ASKS,
    Kind.PDF: _PRINTS,
}
_LIBRARIES: dict[str, Kind] = {
    name: kind
    for kind, names in (
        (Kind.HTTP, _HTTP),
        (Kind.MAIL, _MAIL),
        (Kind.MODEL, _MODEL),
        (Kind.SERVICE, _SERVICE),
        (Kind.PDF, _PDF),
    )
    for name in names.split()
}
_NEVER_BLOCKS = words("aiohttp aiosmtplib aioboto3 treq aiogram fastapi_mail")

_SLEEPS = words("asyncio.sleep anyio.sleep trio.sleep time.sleep")
_PROCESSES = words(
    "subprocess.run subprocess.call subprocess.check_call subprocess.check_output "
    "subprocess.getoutput subprocess.getstatusoutput subprocess.Popen.wait "
    "subprocess.Popen.communicate os.system os.popen os.waitpid "
    "asyncio.create_subprocess_exec asyncio.create_subprocess_shell anyio.run_process"
)

# Known by their name alone.

_SENDS = re.compile(
    r"_*(?:send|deliver|dispatch)_?(?:\w+_)?(?:e?mails?|sms|whatsapp|telegram|slack|push)"
    r"(?:_(?:messages?|notifications?|now|async))?"
)
_MAILERS = words("mailer mail smtp emailer mailgun sendgrid ses twilio")
_MAILS = words("send deliver send_message sendmail send_mail")
_MAKES_PDF = re.compile(
    r"_*(?:generate|render|make|create|build|write|print|export|html_to|to)_?(?:\w+_)?pdfs?"
)
_ASKS_MODEL = re.compile(
    r"_*(?:ask|call|query|prompt|run)_(?:the_)?(?:llm|gpt|claude|gemini|ai)(?:_\w+)?"
)
_MODELS = words("llm openai anthropic gemini claude gpt")
_MODEL_TAILS = {
    ("completions", "create"),
    ("completions", "parse"),
    ("responses", "create"),
    ("messages", "create"),
    ("embeddings", "create"),
    ("models", "generate_content"),
    ("transcriptions", "create"),
    ("images", "generate"),
}
_GATEWAY = re.compile(r"_*(?:\w+_)?gateways?")
_READS_FIRST = re.compile(
    r"_*(?:get|find|fetch|list|search|read|load|look|lookup|check|status|download|query|retrieve|"
    r"count|has|is|ping|poll|quote|availability|list_all|show|describe)(?:_\w+)?"
)
_CLIENTS = re.compile(r"_*(?:\w+_)?(?:http|http_client|httpx_client|api_client|aiohttp_session)")
_HTTP_VERBS = words("get post put patch delete head options request")
_HTTP_READS = words("GET HEAD OPTIONS")
_ENQUEUES = words("enqueue enqueue_many publish delay apply_async send_task add_task defer start")


def touch(project: Project, call: ast.Call, scope: Scope, is_awaited: bool) -> Touch | None:
    """What a call touches outside or waits for, if anything."""
    value = project.value(call.func, scope)
    if isinstance(value, Outside):
        steps = value.dotted.strip(".").split(".")
        known = named(value.dotted, call.args, is_awaited)
        return known or _guessed(project, call, scope, is_awaited, steps)
    steps = dotted(call.func)
    if isinstance(value, Function) and _GATEWAY.search(value.module.name):
        # shop.gateways.hertz.book, under whatever name it is held here
        steps = [*value.module.name.split("."), *steps[-1:]]
    return _guessed(project, call, scope, is_awaited, steps)


def named(name: str, args: Iterable[ast.expr], is_awaited: bool) -> Touch | None:
    """What a call of a library's function touches."""
    args = list(args)
    name = name.replace(".__enter__", "").replace(".__aenter__", "")
    if name in _SLEEPS:
        is_zero = bool(args) and isinstance(args[0], ast.Constant) and args[0].value == 0
        return None if is_zero else Touch(name, Kind.SLEEP, is_blocking=name == "time.sleep")
    if name in _PROCESSES:
        return Touch(name, Kind.PROCESS, is_blocking=not name.startswith(("asyncio", "anyio")))
    steps = name.split(".")
    for length in (2, 1):
        library = ".".join(steps[:length])
        if kind := _LIBRARIES.get(library):
            break
    else:
        return None
    rest = [word.removesuffix("_async") for word in steps[length:]]
    first = next((place for place, word in enumerate(rest) if word in _VERBS[kind]), None)
    if first is None or first != len(rest) - 1 or _ANSWERS.intersection(rest):
        return None
    is_async = is_awaited or library in _NEVER_BLOCKS or "async" in name.lower() or "aio" in rest
    return Touch(name, kind, _changes(kind, rest[-1], args), not is_async)


def _changes(kind: Kind, verb: str, args: list[ast.expr]) -> bool:
    if kind in (Kind.MODEL, Kind.PDF) or verb in _READS | _LOGS_IN:
        return False
    method = args[0].value if args and isinstance(args[0], ast.Constant) else None
    is_read = isinstance(method, str) and method.upper() in _HTTP_READS
    return not (verb == "request" and is_read)


def _guessed(
    project: Project, call: ast.Call, scope: Scope, is_awaited: bool, steps: list[str]
) -> Touch | None:
    """What the names themselves tell, where no library is known."""
    if not steps or steps[-1][:1].isupper():
        return None  # a class: SendEmail(…) is an order, not the sending
    *before, last = steps
    label = ".".join(filter(None, steps[-3:]))
    plain = last if last.islower() else re.sub(r"(?<=[a-z])(?=[A-Z])", "_", last).lower()
    if last == "once" and is_context(project, call.func, scope):
        return Touch(label, Kind.ONCE)
    if {"queues", "queue", "producers"}.intersection(before):
        return None
    is_plain_def = isinstance(scope, Function) and not scope.is_async
    if any(_GATEWAY.fullmatch(word) for word in before) and (is_awaited or is_plain_def):
        reads = _READS_FIRST.fullmatch(plain) is not None
        is_call = is_awaited or not _picks(plain, before)
        return Touch(label, Kind.GATEWAY, not reads, is_sure=False) if is_call else None
    if _SENDS.fullmatch(plain) or (plain in _MAILS and _MAILERS.intersection(before[-1:])):
        return Touch(label, Kind.MAIL, is_effect=True, is_sure=False)
    if _MAKES_PDF.fullmatch(plain):
        return Touch(label, Kind.PDF, is_sure=False)
    is_model = is_awaited and _MODELS.intersection(before)
    if (
        is_model
        or _ASKS_MODEL.fullmatch(plain)
        or (len(steps) > 2 and (steps[-2], last) in _MODEL_TAILS)
    ):
        return Touch(label, Kind.MODEL, is_sure=False)
    if last in _HTTP_VERBS and (_is_address(call) or (is_awaited and _is_client(before, last))):
        return Touch(label, Kind.HTTP, last not in ("get", "head", "options"), is_sure=False)
    return None


def _picks(plain: str, before: list[str]) -> bool:
    """gateways.pick(…) chooses one; it does not call it."""
    return before[-1:] == ["gateways"] or plain in ("pick", "choose", "of", "open", "close", "make")


def _is_client(before: list[str], verb: str) -> bool:
    receiver = before[-1] if before else ""
    # `client.get` may be anyone's: Redis has one.
    is_client = receiver == "client" and verb in ("post", "put", "patch")
    return is_client or _CLIENTS.fullmatch(receiver) is not None


def _is_address(call: ast.Call) -> bool:
    """Whether the first argument is the text of a web address."""
    node = call.args[0] if call.args else None
    if isinstance(node, ast.JoinedStr) and node.values:
        node = node.values[0]
    text = node.value if isinstance(node, ast.Constant) else None
    return isinstance(text, str) and text.startswith(("http://", "https://"))


CONTEXTS = ("Context", "PlainContext")
"""What a worker is handed: the first to await its methods, the second in a plain `def`."""


def is_context(project: Project, func: ast.expr, scope: Scope) -> bool:
    """Whether the object whose method `func` is, is a relevo Context."""
    if not isinstance(func, ast.Attribute):
        return False
    value = project.value(func.value, scope)
    if value is not None:
        return any(project.is_relevo(value, name) for name in CONTEXTS)
    return dotted(func.value)[-1:] in (["ctx"], ["context"])


def is_enqueue(project: Project, call: ast.Call, scope: Scope) -> bool:
    """Whether a call hands work to relevo."""
    func = call.func
    if not isinstance(func, ast.Attribute) or func.attr not in (
        "enqueue",
        "enqueue_many",
        "publish",
    ):
        return False
    value = project.value(func.value, scope)
    if value is not None:
        return any(project.is_relevo(value, name) for name in (*CONTEXTS, "Intake", "Relevo"))
    return dotted(func.value)[-1:] in (["ctx"], ["context"], ["relevo"], ["engine"])


def hands_over(function: Function) -> bool:
    """Whether a function gives its work to a queue instead of doing it."""
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _ENQUEUES
        for node in ast.walk(function.node)
    )
