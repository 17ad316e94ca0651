"""Why a signature is not right, for whoever has to find out; too slow and too frank for callers."""

from __future__ import annotations

import codecs
import hmac
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from itertools import product
from typing import Any

import msgspec

from relevo.clock import milliseconds
from relevo.errors import SettingsError
from relevo.signatures.hmacs import HmacHeader, Standard, TimedHeader
from relevo.signatures.keys import Key, Keys, from_base64
from relevo.signatures.scheme import InvalidSignature, Scheme
from relevo.signatures.shared import SharedSecret
from relevo.signatures.token import QStash
from relevo.webhook import Delivery

RIGHT = "the signature is right"

_TOLERANCE = milliseconds("5m")
_BODY = "the body was changed on the way; hand over the bytes as they came, before any parser"
_ANOTHER = (
    "wrong secret, one of another endpoint, of another mode (test and live differ) or an older "
    "one; or the body was changed in a way that cannot be guessed"
)
_STYLES: dict[str, dict[str, Any]] = {
    "compact": {"separators": (",", ":")},
    "with spaces": {"separators": (", ", ": ")},
    "indented by 2": {"indent": 2},
    "indented by 4": {"indent": 4},
    "indented by tabs": {"indent": "\t"},
}


def explain(delivery: Delivery, scheme: Scheme, now: datetime) -> str:
    """What is wrong with a delivery's signature, in a sentence without secrets or signatures."""
    failure = _failure(delivery, scheme, now)
    if failure is None:
        return RIGHT
    if failure.kind == "absent":
        return f"{failure.why}; {_elsewhere(delivery, scheme, now)}"
    if failure.kind in ("mismatch", "body", "ended"):
        return f"{failure.why}; {_guess(delivery, scheme, now)}"
    return failure.why


def _failure(delivery: Delivery, scheme: Scheme, now: datetime) -> InvalidSignature | None:
    try:
        scheme.check(delivery, now)
    except InvalidSignature as failure:
        return failure
    return None


def _fits(delivery: Delivery, scheme: Scheme, now: datetime) -> bool:
    """Whether key and body are right; time is looked at last, and may be wrong."""
    failure = _failure(delivery, scheme, now)
    return failure is None or failure.kind == "time"


def _guess(delivery: Delivery, scheme: Scheme, now: datetime) -> str:
    if _fits(delivery, _endless(scheme), now):
        return "it was signed with a secret that has ended"
    if isinstance(scheme, SharedSecret):
        return _nearly(delivery, scheme, now) or _ANOTHER
    for what, body in _rewritten(delivery.body):
        if _fits(msgspec.structs.replace(delivery, body=body), _endless(scheme), now):
            return f"it is right for {what}: {_BODY}"
    return _ANOTHER


def _endless(scheme: Scheme) -> Scheme:
    """The same as if no secret ended."""
    if isinstance(scheme, HmacHeader | TimedHeader | Standard | QStash | SharedSecret):
        return replace(scheme, keys=scheme.keys.endless())
    return scheme


def _nearly(delivery: Delivery, scheme: SharedSecret, now: datetime) -> str:
    given = scheme.given(delivery)
    for key in scheme.keys.at(now):
        if hmac.compare_digest(given.strip(), key):
            return "the right secret with white space around it"
        if hmac.compare_digest(given.strip().lower(), key.lower()):
            return "the right secret in another case"
    return ""


# Bodies that were something else before somebody touched them


def _rewritten(body: bytes) -> Iterator[tuple[str, bytes]]:
    bom = codecs.BOM_UTF8
    yield "a body with a newline at its end", body + b"\n"
    yield "a body without newline at its end", body.rstrip(b"\r\n")
    yield "a body without byte order mark", body.removeprefix(bom)
    yield "a body with a byte order mark", bom + body
    yield "a body with LF as line end", body.replace(b"\r\n", b"\n")
    yield "a body with CRLF as line end", body.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    try:
        tree = json.loads(body.removeprefix(bom).decode())
    except (ValueError, RecursionError):
        return
    for style, ascii_only, ordered, slashes in product(
        _STYLES, (True, False), (False, True), (False, True)
    ):
        text = json.dumps(tree, ensure_ascii=ascii_only, sort_keys=ordered, **_STYLES[style])
        text = text.replace("/", "\\/") if slashes else text
        notes = [style, "non-ASCII escaped" if ascii_only else "non-ASCII as it is"]
        notes += ["keys sorted"] * ordered + ["slashes escaped"] * slashes
        written = text.encode("utf-8", "surrogatepass")
        for end, note in ((b"", ""), (b"\n", ", newline at its end")):
            yield f"re-serialised JSON ({', '.join(notes)}{note})", written + end


# Signatures of somebody else

_OTHERS: dict[str, tuple[str, Callable[[list[Key]], Scheme] | None]] = {
    "Stripe-Signature": ("stripe()", lambda keys: TimedHeader(Keys.read("", keys), _TOLERANCE)),
    "webhook-signature": ("standard()", lambda keys: _standard(keys)),
    "svix-signature": ("standard()", lambda keys: _standard(keys)),
    "X-Hub-Signature-256": ("meta() or github()", lambda keys: _hub(keys)),
    "Upstash-Signature": ("qstash()", None),
    "X-Hub-Signature": ("bitbucket(), jira() or intercom()", None),
}


def _standard(keys: list[Key]) -> Scheme:
    return Standard(Keys.read("", keys, from_base64), _TOLERANCE)


def _hub(keys: list[Key]) -> Scheme:
    return HmacHeader(Keys.read("", keys), "X-Hub-Signature-256", "sha256", "sha256=", "hex")


def _elsewhere(delivery: Delivery, scheme: Scheme, now: datetime) -> str:
    keys: Keys | None = getattr(scheme, "keys", None)
    for name, (known_as, make) in _OTHERS.items():
        if name not in delivery.headers:
            continue
        if make and keys and _is_right(delivery, make, keys, now):
            return f"the delivery is right as {known_as} with the same secret: use that scheme"
        return f"there is a {name} header, which is for {known_as}: another scheme, or another door"
    return "whoever sent it does not sign, or something on the way took the header off"


def _is_right(
    delivery: Delivery, make: Callable[[list[Key]], Scheme], keys: Keys, now: datetime
) -> bool:
    try:
        return _fits(delivery, make(list(keys.given)), now)
    except SettingsError:  # a secret that this scheme could not have
        return False
