"""The table: what the errors of the usual clients prove, by their names and attributes.

No client is imported. A class is known by the first piece of its module and its name, so that
`stripe.CardError` is found wherever stripe keeps it. The most special class of an error that is in
the table decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from relevo.client_errors.proof import (
    Means,
    answer_of,
    answer_status,
    headers_of,
    message_of,
    retry_after_of,
)
from relevo.client_errors.reading import (
    WAIT_MAX,
    WAIT_MIN,
    Sight,
    call,
    header,
    names,
    number,
    read,
    text,
    values_of,
    wait_of,
)


@dataclass(frozen=True, slots=True)
class Finding:
    """What one row says of an error, before it is asked whether there was more than one try."""

    means: Means
    status: int | None = None
    note: str = ""
    retry_after: timedelta | None = None


Reader: TypeAlias = Callable[[Sight], Finding]

_NOT_SENT, _UNCERTAIN = Finding(Means.NOT_SENT), Finding(Means.UNCERTAIN)
_CREDENTIALS = Finding(Means.OUR_CREDENTIALS)
_UNDECIDED = frozenset({408, 409, 423, 425})


# -- answers with a status


def by_status(status: int | None) -> Means:
    """What an HTTP status proves when it was the answer to the only try."""
    if status is None or status >= 500 or status < 400 or status in _UNDECIDED:
        return Means.UNCERTAIN
    if status in (401, 407):
        return Means.OUR_CREDENTIALS
    return Means.WAIT if status == 429 else Means.REFUSED


_KEY_TROUBLE = frozenset({
    "apikeyexpired", "expiredapikey", "apikeyinvalid", "invalidapikey", "keyexpired", "expiredkey",
    "tokenexpired", "expiredtoken", "accesstokenexpired", "invalidtoken", "invalidaccesstoken",
    "tokenrevoked", "tokeninvalid", "invalidauth", "notauthed", "accountinactive",
    "invalidcredentials", "badcredentials",
    # What AWS calls it, in an answer of 400 or 403.
    "expiredtokenexception", "invalidclienttokenid", "unrecognizedclientexception",
    "invalidaccesskeyid", "signaturedoesnotmatch", "invalidsignatureexception", "authfailure",
    "missingauthenticationtoken", "missingauthenticationtokenexception", "incompletesignature",
    "requestexpired", "tokenrefreshrequired",
})  # fmt: skip
_SLOW_DOWN = frozenset({
    "throttling", "throttlingexception", "throttledexception", "requestthrottled",
    "requestthrottledexception", "toomanyrequestsexception", "requestlimitexceeded",
    "provisionedthroughputexceededexception", "bandwidthlimitexceeded", "ec2throttledexception",
    "slowdown", "ratelimited", "ratelimit",
})  # fmt: skip
_BROKE_DOWN = frozenset({"internalerror", "fatalerror", "serviceunavailable", "requesttimeout"})
"""Slack's words for "some of it may have succeeded"."""


def _codes(error: object) -> list[str]:
    """What the provider calls the mistake: its codes, lower case, letters and digits only."""
    answer = answer_of(error)
    body = read(error, "body") or read(error, "data") or read(error, "json_body")
    found = [
        read(error, "code"),
        read(error, "reason"),
        read(answer, "Error", "Code"),
        read(answer, "data", "error"),
        *(
            read(source, *path)
            for source in (body, _json_of(answer))
            for path in (("code",), ("error",), ("error", "code"), ("error", "type"))
        ),
    ]
    return [re.sub(r"[^a-z0-9]", "", each.lower()) for each in found if isinstance(each, str)]


def _json_of(answer: object) -> Any:
    content = read(answer, "_content")
    if not isinstance(content, bytes) or content.lstrip()[:1] != b"{" or len(content) > 100_000:
        return None
    import json

    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def answered(sight: Sight) -> Finding:
    """The row of an error that stands for an answer: its status, and the provider's own code."""
    error = sight.error
    status = answer_status(error)
    means = by_status(status)
    codes = set(_codes(error)) if means is Means.REFUSED else set[str]()
    if codes & _KEY_TROUBLE:
        means = Means.OUR_CREDENTIALS
    elif codes & _SLOW_DOWN:
        means = Means.WAIT
    waits = means in (Means.WAIT, Means.UNCERTAIN)  # the latter where it may be repeated
    wait = retry_after_of(error) if waits else None
    return Finding(means, status, retry_after=wait)


# -- what failed on the way


_CONNECTING = (
    ("socket", "create_connection"),
    ("ssl", "do_handshake"),
    ("http.client", "connect"),
    ("http.client", "_tunnel"),
    ("urllib3.connection", "_new_conn"),
    ("urllib3.connection", "connect"),
    ("asyncio.streams", "open_connection"),
)
_SENDERS = ("http.client", "urllib.request", "smtplib", "urllib3", "requests")


def _was_connecting(sight: Sight) -> bool:
    """Whether the error came up while a connection was being made, certificates included."""
    if any("ssl.SSLCertVerificationError" in names(each) for each in sight.chain):
        return True
    return any(sight.through(module, function) for module, function in _CONNECTING)


def on_the_way(sight: Sight) -> Finding:
    """The row of an error below HTTP, which may come from before or after the request left."""
    if not _was_connecting(sight):
        return _UNCERTAIN
    refused = any("Tunnel connection failed: 407" in text(each) for each in sight.chain)
    return Finding(Means.OUR_CREDENTIALS, 407) if refused else _NOT_SENT


def raw(sight: Sight) -> Finding:
    """The row of an error of the operating system that no client has made its own."""
    known = any(sight.through(sender) for sender in _SENDERS)
    direct = sight.through("asyncio.streams", "open_connection")
    if sight.through("smtplib"):
        return _by_mail_step(sight)
    return on_the_way(sight) if known or direct else _UNCERTAIN


def wrapped(sight: Sight) -> Finding:
    """The row of an error that speaks for the one it was raised from."""
    for cause in sight.chain[1:]:
        if look_up(cause)[1] is not None:
            return finding(Sight(cause, sight.took))[1] or _UNCERTAIN
    return on_the_way(sight)


def _proxy(sight: Sight) -> Finding:
    is_ours = any(re.search(r"\b407\b", text(each)) for each in sight.chain)
    return Finding(Means.OUR_CREDENTIALS, 407) if is_ours else _NOT_SENT


def _local_protocol(sight: Sight) -> Finding:
    """h11 refuses a wrong header before it writes a byte, and a wrong body after many."""
    return _NOT_SENT if sight.through("httpcore", "_send_request_headers") or sight.through(
        "httpcore2", "_send_request_headers"
    ) else _UNCERTAIN  # fmt: skip


def _url_error(sight: Sight) -> Finding:
    reason = read(sight.error, "reason")
    if isinstance(reason, str):
        is_ours = "unknown url type" in reason or "no host given" in reason
        return _NOT_SENT if is_ours else _UNCERTAIN
    if {"socket.gaierror", "builtins.ConnectionRefusedError"} & set(names(reason)):
        return _NOT_SENT
    return on_the_way(sight)


# -- mail


_BEFORE_MAIL = ("__init__", "connect", "ehlo", "helo", "login", "starttls", "mail", "rcpt")
_IN_MAIL = ("data", "quit", "__exit__")


def _by_mail_step(sight: Sight) -> Finding:
    """A message is taken over by the answer to DATA: whatever failed before sent nothing."""
    if sight.through("smtplib", *_IN_MAIL):
        return _UNCERTAIN
    return _NOT_SENT if sight.through("smtplib", *_BEFORE_MAIL) else _UNCERTAIN


def _mail_reply(sight: Sight) -> Finding:
    if sight.through("smtplib", "quit", "__exit__"):
        return _UNCERTAIN
    return _by_reply(number(read(sight.error, "smtp_code")))


def _by_reply(code: int | None, *, login: bool = False) -> Finding:
    """4yz: not now; 5yz: never. Either way the message was not accepted."""
    if code is None or not 400 <= code <= 599:
        return _UNCERTAIN
    if code < 500:
        return Finding(Means.WAIT, code)
    is_ours = login or code in (530, 534, 535, 538)
    return Finding(Means.OUR_CREDENTIALS if is_ours else Means.REFUSED, code)


def _recipients(sight: Sight) -> Finding:
    replies = values_of(read(sight.error, "recipients"))
    codes = [number((values_of(each) or [None])[0]) for each in replies]
    if not codes or None in codes:
        return _UNCERTAIN
    return _by_reply(min(code for code in codes if code is not None))


# -- gRPC and Google


_GRPC = {
    "UNAUTHENTICATED": Means.OUR_CREDENTIALS,
    "INVALID_ARGUMENT": Means.REFUSED,
    "NOT_FOUND": Means.REFUSED,
    "PERMISSION_DENIED": Means.REFUSED,
    "FAILED_PRECONDITION": Means.REFUSED,
    "OUT_OF_RANGE": Means.REFUSED,
    "UNIMPLEMENTED": Means.REFUSED,
    "RESOURCE_EXHAUSTED": Means.WAIT,
}
_NEVER_CONNECTED = re.compile(
    r"failed to connect to|name resolution|DNS (?:resolution|query) (?:failed|error)|"
    r"(?:handshake|SSL|certificate).*fail|CERTIFICATE_VERIFY_FAILED|connection refused",
    re.I,
)


def _grpc(sight: Sight) -> Finding:
    error = sight.error
    code = text(read(call(error, "code"), "name"))
    said = text(call(error, "details"))
    if code == "UNAVAILABLE":
        # A server may hand on what it heard itself: those words are not about our connection.
        trace = text(call(error, "debug_error_string"))
        is_own = "received from peer" not in trace and not call(error, "initial_metadata")
        has_failed = is_own and _NEVER_CONNECTED.search(f"{said} {trace}") is not None
        return Finding(Means.NOT_SENT if has_failed else Means.UNCERTAIN, note=code)
    means = _GRPC.get(code, Means.UNCERTAIN)
    if code == "RESOURCE_EXHAUSTED" and "larger than max" in said:
        # Not a limit on calls: the answer was too large to be read, or the request to be sent.
        sent = "sent message larger" in said.lower()
        means = Means.NOT_SENT if sent else Means.UNCERTAIN
    wait = wait_of(header(call(error, "trailing_metadata"), "retry-after"))
    return Finding(means, note=code, retry_after=wait if means is Means.WAIT else None)


def _google(sight: Sight) -> Finding:
    error = sight.error
    response = read(error, "response")
    if "grpc.RpcError" in names(response):
        found = _grpc(Sight(response))
        wait = _retry_info(error) or found.retry_after
        return Finding(found.means, answer_status(error), found.note, wait)
    found = answered(sight)
    if found.means is Means.WAIT:
        wait = found.retry_after or _retry_info(error)
        return Finding(found.means, found.status, retry_after=wait)
    return found


def _retry_info(error: object) -> timedelta | None:
    for each in values_of(read(error, "details")):
        seconds = number(read(each, "retry_delay", "seconds"))
        wait = seconds or text(read(each, "retryDelay")).removesuffix("s")
        if isinstance(wait, int) or re.fullmatch(r"\d{1,6}(\.\d+)?", wait):
            return wait_of(wait)
    return None


def _google_gave_up(sight: Sight) -> Finding:
    """All tries of a RetryError, which its own frame still holds."""
    frames = sight.through("google.api_core.retry", "retry_target")
    tries = read(frames[-1].values, "error_list") if frames else None
    meanings = [finding(Sight(each))[1] for each in values_of(tries)]
    left = any(each is None or each.means is not Means.NOT_SENT for each in meanings)
    return _UNCERTAIN if left or not meanings else _NOT_SENT


# -- SDKs


def _slack(sight: Sight) -> Finding:
    error = sight.error
    status, data = answer_status(error), read(error, "response", "data")
    word = read(data, "error")
    if (status is not None and status >= 400 and not isinstance(word, str)) or status == 429:
        return answered(sight)
    return slack_says(word, status, retry_after_of(error))


def slack_says(word: object, status: int | None, wait: timedelta | None = None) -> Finding:
    """What the `error` of an answer with `ok: false` means."""
    if not isinstance(word, str):
        return Finding(Means.UNCERTAIN, status)
    code = re.sub(r"[^a-z0-9]", "", word.lower())
    if code in _BROKE_DOWN or (status is not None and status >= 500):
        return Finding(Means.UNCERTAIN, status, word)
    if code in _KEY_TROUBLE:
        return Finding(Means.OUR_CREDENTIALS, status, word)
    if code in _SLOW_DOWN:
        return Finding(Means.WAIT, status, word, wait)
    return Finding(Means.REFUSED, status, word)


def _github_limit(sight: Sight) -> Finding:
    error = sight.error
    wait = retry_after_of(error)
    if wait is None:
        reset = next(
            (found for each in headers_of(error) if (found := header(each, "X-RateLimit-Reset"))),
            None,
        )
        at = number(reset[:10]) if reset else None
        if at is not None:
            left = timedelta(seconds=at - datetime.now(UTC).timestamp() + 1)
            wait = min(max(left, WAIT_MIN), WAIT_MAX)
    return Finding(Means.WAIT, answer_status(error), retry_after=wait)


def _rate_limit(sight: Sight) -> Finding:
    error = sight.error
    return Finding(Means.WAIT, answer_status(error), retry_after=retry_after_of(error))


def _fixed(found: Finding) -> Reader:
    return lambda _: found


def _rows(found: Finding | Reader, *each: str) -> dict[str, Reader]:
    reader = found if callable(found) else _fixed(found)
    return {name: reader for line in each for name in _spelled(line)}


def _spelled(line: str) -> list[str]:
    root, _, rest = line.partition(".")
    return [f"{library}.{name}" for library in root.split("|") for name in rest.split()]


TABLE: Mapping[str, Reader] = {
    # httpx, and httpcore below it
    **_rows(_NOT_SENT, "httpx|httpx2.ConnectError ConnectTimeout PoolTimeout UnsupportedProtocol"),
    **_rows(_NOT_SENT, "httpx|httpx2.InvalidURL"),
    **_rows(_proxy, "httpx|httpx2|httpcore|httpcore2.ProxyError"),
    **_rows(_local_protocol, "httpx|httpx2|httpcore|httpcore2.LocalProtocolError"),
    **_rows(answered, "httpx|httpx2.HTTPStatusError"),
    **_rows(_UNCERTAIN, "httpx|httpx2.HTTPError StreamError"),
    **_rows(
        _NOT_SENT,
        "httpcore|httpcore2.ConnectError ConnectTimeout PoolTimeout UnsupportedProtocol",
    ),
    **_rows(_UNCERTAIN, "httpcore|httpcore2.NetworkError TimeoutException ProtocolError"),
    # requests, and urllib3 below it
    **_rows(
        _NOT_SENT, "requests.ConnectTimeout InvalidURL MissingSchema InvalidSchema InvalidHeader"
    ),
    **_rows(wrapped, "requests.ConnectionError SSLError RetryError"),
    **_rows(_proxy, "requests.ProxyError"),
    **_rows(answered, "requests.HTTPError"),
    **_rows(_UNCERTAIN, "requests.RequestException ReadTimeout"),
    **_rows(
        _NOT_SENT,
        "urllib3.NewConnectionError NameResolutionError ConnectTimeoutError EmptyPoolError",
        "urllib3.LocationValueError ClosedPoolError",
    ),
    **_rows(_proxy, "urllib3.ProxyError"),
    **_rows(wrapped, "urllib3.MaxRetryError"),
    **_rows(on_the_way, "urllib3.SSLError ProtocolError"),
    **_rows(_UNCERTAIN, "urllib3.HTTPError"),
    # aiohttp
    **_rows(
        _NOT_SENT,
        "aiohttp.ClientConnectorError ConnectionTimeoutError ServerFingerprintMismatch",
        "aiohttp.InvalidURL NonHttpUrlClientError",
    ),
    **_rows(_proxy, "aiohttp.ClientHttpProxyError"),
    **_rows(answered, "aiohttp.ClientResponseError"),
    **_rows(_UNCERTAIN, "aiohttp.ClientError RedirectClientError InvalidUrlRedirectClientError"),
    **_rows(_UNCERTAIN, "aiohttp.NonHttpUrlRedirectClientError"),
    # The standard library
    **_rows(_NOT_SENT, "http.CannotSendRequest CannotSendHeader NotConnected InvalidURL"),
    **_rows(on_the_way, "http.HTTPException"),
    **_rows(answered, "urllib.HTTPError"),
    **_rows(_url_error, "urllib.URLError"),
    **_rows(_mail_reply, "smtplib.SMTPSenderRefused SMTPDataError SMTPHeloError SMTPConnectError"),
    **_rows(
        lambda sight: _by_reply(number(read(sight.error, "smtp_code")), login=True),
        "smtplib.SMTPAuthenticationError",
    ),
    **_rows(_recipients, "smtplib.SMTPRecipientsRefused"),
    **_rows(_by_mail_step, "smtplib.SMTPException"),
    **_rows(raw, "builtins.ConnectionError TimeoutError"),
    **_rows(raw, "socket.gaierror herror", "ssl.SSLError"),
    # gRPC and Google
    **_rows(_grpc, "grpc.RpcError"),
    **_rows(_google, "google.GoogleAPICallError"),
    **_rows(_google_gave_up, "google.RetryError"),
    **_rows(_CREDENTIALS, "google.RefreshError DefaultCredentialsError"),
    **_rows(_UNCERTAIN, "google.GoogleAPIError"),
    # AWS
    **_rows(answered, "botocore.ClientError"),
    **_rows(_NOT_SENT, "botocore.EndpointConnectionError ConnectTimeoutError ParamValidationError"),
    **_rows(_proxy, "botocore.ProxyConnectionError"),
    **_rows(wrapped, "botocore.SSLError"),
    **_rows(
        _CREDENTIALS,
        "botocore.NoCredentialsError PartialCredentialsError CredentialRetrievalError",
        "botocore.TokenRetrievalError NoAuthTokenError UnauthorizedSSOTokenError",
    ),
    **_rows(_UNCERTAIN, "botocore.BotoCoreError"),
    # SDKs of providers
    **_rows(answered, "openai|anthropic.APIStatusError"),
    **_rows(wrapped, "openai|anthropic.APIConnectionError"),
    **_rows(_UNCERTAIN, "openai.OpenAIError", "anthropic.AnthropicError"),
    **_rows(_UNCERTAIN, "stripe.IdempotencyError"),  # an earlier call with this key did something
    **_rows(_rate_limit, "stripe.RateLimitError"),  # 400, too
    **_rows(wrapped, "stripe.APIConnectionError"),
    **_rows(answered, "stripe.StripeError"),
    **_rows(_slack, "slack_sdk.SlackApiError"),
    **_rows(_UNCERTAIN, "slack_sdk.SlackClientError"),
    **_rows(answered, "twilio.TwilioRestException TwilioServiceException"),
    **_rows(_UNCERTAIN, "twilio.TwilioException"),
    **_rows(_github_limit, "github.RateLimitExceededException"),
    **_rows(_CREDENTIALS, "github.BadCredentialsException TwoFactorException"),
    **_rows(answered, "github.GithubException"),
}


def look_up(thing: object) -> tuple[str, Reader | None]:
    """The row of the table for an error, and the name of the class that decided."""
    for name in names(thing):
        reader = TABLE.get(name)
        if reader is not None:
            return name, reader
    return "", None


def finding(sight: Sight) -> tuple[str, Finding | None]:
    """What the table says of an error as if there had been one try; None if it is not in it.

    The name is that of the class in the table.
    """
    name, reader = look_up(sight.error)
    if reader is None or not isinstance(sight.error, BaseException):
        return "", None
    return name, reader(sight)


__all__ = ["TABLE", "Finding", "by_status", "finding", "look_up", "message_of", "slack_says"]
