"""Was it the only try? Clients that repeat calls by themselves, and what shows that they did not.

The last error of a client speaks for the whole call only if it was the only try, or if no earlier
one can have had an effect. Each function here returns a sentence when that is not known, which ends
with the setting that would prove it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from relevo.client_errors.callers import RETRIERS, called_before
from relevo.client_errors.proof import Means, answer_of
from relevo.client_errors.reading import Sight, header, names, number, read, text, values_of
from relevo.client_errors.table import Finding, finding


class OwnRetries(NamedTuple):
    """How one client repeats calls by itself, and how that is turned off."""

    client: str
    tries: str
    """What it does unless it is told otherwise."""
    off: str
    """What to write so that each call is one try."""


_LISTED = (
    OwnRetries("stripe", "3 tries of stripe.PaymentIntent.create(), 1 of a StripeClient",
               "stripe.max_network_retries = 0, or StripeClient(key, max_network_retries=0)"),
    OwnRetries("openai", "3 tries", "openai.OpenAI(max_retries=0)"),
    OwnRetries("anthropic", "3 tries", "anthropic.Anthropic(max_retries=0)"),
    OwnRetries("botocore", "5 tries (boto3, too)",
               'botocore.config.Config(retries={"total_max_attempts": 1})'),
    OwnRetries("slack_sdk", "2 tries after a lost connection",
               "slack_sdk.WebClient(token, retry_handlers=[])"),
    OwnRetries("github", "11 tries", "github.Github(auth=auth, retry=None)"),
    OwnRetries("google.api_core", "as the service's client says, until a deadline",
               "client.method(request, retry=None)"),
    OwnRetries("urllib3", "4 tries of what may be repeated",
               "urllib3.PoolManager(retries=False)"),
    OwnRetries("requests", "1 try, unless an adapter was mounted",
               "requests.adapters.HTTPAdapter(max_retries=0)"),
    OwnRetries("twilio", "1 try, unless told otherwise",
               "twilio.http.http_client.TwilioHttpClient(max_retries=None)"),
    OwnRetries("aiohttp", "2 tries of a PUT or DELETE on a connection that was kept",
               "aiohttp.TCPConnector(force_close=True)"),
    OwnRetries("grpc", "1 try, unless the channel has a retryPolicy",
               'grpc.insecure_channel(target, options=[("grpc.enable_retries", 0)])'),
    OwnRetries("httpx", "1 try (retries= of a transport repeats connecting only)", ""),
)  # fmt: skip

OWN_RETRIES: Mapping[str, OwnRetries] = MappingProxyType({each.client: each for each in _LISTED})
"""By client: how often it calls by itself, and the setting that makes each call one try."""


_NOT_A_CALL = frozenset({"builtins", "ssl", "socket", "asyncio", "concurrent"})


def doubt(sight: Sight, name: str, found: Finding) -> str:
    """Why more than one try may have been made; "" where this one is known to speak for all."""
    for reason in _REASONS:
        said = reason(sight)
        if said:
            return said
    package = name.partition(".")[0]
    client = _COUNTS.get(package)
    # AsyncWebClient of slack_sdk repeats calls of aiohttp, and raises what that raised.
    said = client(sight, found) if client is not None else ""
    return said or _through_an_sdk(sight, found, package)


def _unless(client: str) -> str:
    return f"{client} repeats calls by itself ({OWN_RETRIES[client].off} proves one try)"


def _after(count: int) -> str:
    return f"after {count} other {'try' if count == 1 else 'tries'} of the client"


# -- true of all clients


_CHANGED_METHOD = frozenset({301, 302, 303})


def _redirected(sight: Sight) -> str:
    """A redirect that changes POST to GET may say "it is done, look there"."""
    histories = [read(answer_of(sight.error), "history"), read(sight.error, "history")]
    for frame in sight.frames:
        if frame.function in ("_send_handling_redirects", "_request"):
            histories.append(read(frame.values, "history"))
        elif frame.function == "resolve_redirects":
            histories.append(read(frame.values, "hist"))
        elif frame.function == "http_error_302" and frame.module == "urllib.request":
            return "after a redirect"
    for history in histories:
        for each in values_of(history):
            status = number(read(each, "status_code")) or number(read(each, "status"))
            if status in _CHANGED_METHOD:
                return f"after a redirect ({status})"
    return ""


def _retried_by_a_library(sight: Sight) -> str:
    for frame in sight.frames:
        library = frame.module.partition(".")[0]
        if library in RETRIERS:
            state = read(frame.values, "retry_state", "attempt_number")
            if number(state) != 1:
                return f"repeated by {library}"
    return ""


def _after_another_error(sight: Sight) -> str:
    """An earlier call, whose error was being handled when this one failed, may have worked."""
    for other in [*sight.earlier, *sight.chain[1:]]:
        name, found = finding(Sight(other))
        if found is None or found.means is not Means.UNCERTAIN:
            continue
        if other in sight.earlier or name.partition(".")[0] not in _NOT_A_CALL:
            return f"after {names(other)[0].removeprefix('builtins.')}"
    return ""


def _urllib3_repeated(sight: Sight) -> str:
    """urllib3 keeps a history: in its answers, and in the frames that its errors passed."""
    history = read(answer_of(sight.error), "raw", "retries", "history")
    if history is None:
        history = read(sight.error, "retries", "history")
    if history is None:
        frames = sight.through("urllib3", "urlopen")
        # The innermost one was given the history of all tries before its own.
        retries = read(frames[-1].values, "retries") if frames else None
        history = read(retries, "history")
        if history is None and any("urllib3.MaxRetryError" in names(e) for e in sight.chain):
            return "" if retries is not None else _unless("urllib3")
    tries = values_of(history)
    for each in tries:
        error = read(each, "error")
        found = finding(Sight(error))[1] if isinstance(error, BaseException) else None
        if found is None or found.means is not Means.NOT_SENT:
            return _after(len(tries))
    return ""


_REASONS = (
    *(_redirected, _retried_by_a_library, called_before, _after_another_error, _urllib3_repeated),
)


# -- one function a client


Count: TypeAlias = Callable[[Sight, Finding], str]


def _stripe(sight: Sight, found: Finding) -> str:
    counts = [
        count
        for frame in sight.through("stripe")
        if (count := number(read(frame.values, "num_retries"))) is not None
    ]
    if counts:
        return _after(counts[-1]) if counts[-1] else ""
    method = "post" if "stripe.CardError" in names(sight.error) else ""
    for frame in sight.through("stripe._api_requestor"):
        if "method" in frame.values and "options" in frame.values:
            limit = read(frame.values, "options", "max_network_retries")
            if limit is None:
                limit = read(frame.values, "self", "_options", "max_network_retries")
            if not limit and read(frame.values, "self", "_options") is not None:
                return ""
            method = text(frame.values["method"]).lower()
    if _is_shorter_than_a_pause(sight, _stripe_pause()):
        return ""
    # All tries of a POST carry one key. Had an earlier one worked, its answer would have been
    # repeated; 401, 403 and 429 are said before the key is looked at.
    if method == "post" and found.means is Means.REFUSED and found.status in (400, 402, 404):
        return ""
    return _unless("stripe")


def _stripe_pause() -> object:
    return read(sys.modules.get("stripe._http_client"), "HTTPClient", "INITIAL_DELAY")


def _is_shorter_than_a_pause(sight: Sight, pause: object) -> bool:
    """A call that took less time than the client rests before a repetition was one try."""
    if sight.took is None or not isinstance(pause, int | float):
        return False
    return 0 <= sight.took < pause


def _openai(sight: Sight, found: Finding) -> str:
    client = names(sight.error)[0].partition(".")[0]
    for path in (("request", "headers"), ("response", "request", "headers")):
        count = number(header(read(sight.error, *path), "x-stainless-retry-count"))
        if count is not None:
            return _after(count) if count else ""
    return _unless(client)


def _botocore(sight: Sight, found: Finding) -> str:
    if found.means is Means.OUR_CREDENTIALS and found.status is None:
        return ""  # it had no key to sign with
    count = number(read(sight.error, "response", "ResponseMetadata", "RetryAttempts"))
    for frame in sight.frames:
        attempts = number(read(frame.values, "attempts"))
        if frame.function == "_send_request" and "botocore" in frame.module and attempts:
            count = attempts - 1
    if count is None:
        is_local = "botocore.ParamValidationError" in names(sight.error)
        return "" if is_local else _unless("botocore")
    return _after(count) if count else ""


def _slack(sight: Sight, found: Finding) -> str:
    for frame in sight.through("slack_sdk"):
        count = number(read(frame.values, "retry_state", "current_attempt"))
        if count is not None:
            return _after(count) if count else ""
    handlers = read(sight.error, "response", "_client", "retry_handlers")
    if handlers is None:
        return _unless("slack_sdk")
    pauses: list[float] = []
    for each in values_of(handlers):
        if number(read(each, "max_retry_count")) != 0:
            pause = read(each, "interval_calculator", "backoff_factor")
            is_known = names(each)[0].startswith("slack_sdk.")
            pauses.append(pause if is_known and isinstance(pause, float) else 0.0)
    if not pauses or _is_shorter_than_a_pause(sight, min(pauses)):
        return ""
    return _unless("slack_sdk")


def _github(sight: Sight, found: Finding) -> str:
    for frame in sight.through("github.Requester"):
        requester = read(frame.values, "self")
        if "github.Requester" in names(requester):
            retry = read(requester, "_Requester__retry")
            return "" if not retry else _unless("github")
    return _unless("github")


def _twilio(sight: Sight, found: Finding) -> str:
    """Its requests session repeats only what an adapter was told to."""
    method = text(read(sight.error, "method")).upper()
    for frame in sight.through("twilio"):
        twilio = read(frame.values, "self", "domain", "twilio")
        session = read(twilio, "http_client", "session")
        if names(session)[0].startswith("aiohttp_retry."):
            return _unless("twilio")
        for adapter in values_of(read(session, "adapters")):
            if _may_repeat(read(adapter, "max_retries"), method):
                return _unless("twilio")
    return ""


def _may_repeat(retries: object, method: str) -> bool:
    """Whether a urllib3 Retry may send a request of this method again once it has left."""
    if not read(retries, "total"):
        return False
    methods = read(retries, "allowed_methods")
    return method in methods if isinstance(methods, frozenset | set) else True


def _aiohttp(sight: Sight, found: Finding) -> str:
    for frame in sight.through("aiohttp.client", "_request"):
        left = read(frame.values, "retry_persistent_connection")
        method = text(read(frame.values, "method")).upper()
        if method in _IDEMPOTENT and left is False:
            return _unless("aiohttp")
        return ""
    if found.means is Means.NOT_SENT:
        return ""
    method = read(sight.error, "request_info", "method") or read(sight.error, "method")
    connector = read(sight.error, "_session", "_connector") or read(
        sight.error, "_session", "connector"
    )
    if text(method).upper() not in _IDEMPOTENT or read(connector, "force_close") is True:
        return ""
    return _unless("aiohttp")


_IDEMPOTENT = frozenset({"PUT", "DELETE"})


def _google(sight: Sight, found: Finding) -> str:
    if "google.RetryError" in names(sight.error):
        return ""  # its row has looked at all tries
    for frame in sight.through("google.api_core.retry"):
        tries = values_of(read(frame.values, "error_list"))
        if len(tries) > 1:
            return _after(len(tries) - 1)
    return ""


def _through_an_sdk(sight: Sight, found: Finding, own: str) -> str:
    """An error of a lower client that came up through an SDK which repeats calls."""
    for package, count in _COUNTS.items():
        if package not in (own, "google") and sight.through(package):
            return count(sight, found)
    return "" if own == "google" else _google(sight, found)


_COUNTS: dict[str, Count] = {
    "stripe": _stripe,
    "openai": _openai,
    "anthropic": _openai,
    "botocore": _botocore,
    "slack_sdk": _slack,
    "github": _github,
    "twilio": _twilio,
    "aiohttp": _aiohttp,
    "google": _google,
}
