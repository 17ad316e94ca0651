"""What the error of a client library proves about the call that raised it.

    try:
        answer = httpx.post(url, json=order)
    except httpx.HTTPError as error:
        proof = judge_client_error(error)  # Proof(Means.NOT_SENT, "httpx.ConnectError", …)

The table knows the usual clients by the names of their classes and imports none of them. It says
more than *uncertain* only where the error speaks for the whole call: see tries.py.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from inspect import getattr_static
from typing import Any, cast

from relevo.client_errors.proof import (
    ErrorRow,
    Judge,
    Means,
    Proof,
    Row,
    Rows,
    error_rows,
    message_of,
    retry_after_of,
)
from relevo.client_errors.reading import Sight, names, number, read, text
from relevo.client_errors.table import Finding, finding, look_up, slack_says
from relevo.client_errors.table import answered as _answered
from relevo.client_errors.tries import OWN_RETRIES, OwnRetries, doubt
from relevo.errors import RelevoError
from relevo.scrubbing import scrub

__all__ = [
    "OWN_RETRIES",
    "ErrorRow",
    "Judge",
    "Means",
    "OwnRetries",
    "Proof",
    "Row",
    "Rows",
    "error_rows",
    "is_away",
    "judge_client_error",
    "judge_response",
    "retry_after_of",
]


def judge_client_error(
    error: BaseException,
    rows: Rows | Judge | None = (),
    *,
    took: float | None = None,
    reads: bool = False,
) -> Proof | None:
    """What an exception proves about the call that raised it; None if no client raised it.

    `rows` are asked first, in their order. `took` is how many seconds the call took, if that is
    known: less than a client rests before it repeats a call shows that it made one try. A call
    that only `reads` had no effect, however often it was made: its last error speaks for it.
    Never raises, whatever the exception does when it is read.
    """
    if isinstance(error, RelevoError) or not isinstance(cast("object", error), BaseException):
        return None
    return _judge(Sight(error, took, reads), rows, is_answer=False)


def is_away(error: BaseException, rows: Rows | Judge | None = ()) -> bool:
    """Whether a client's error that was raised outside once() shows a provider that is not there.

    So does what did not leave, a request to wait, an answer of 500 or more, and a connection or an
    answer that broke off. Not so an error of the operating system that no known client raised, nor
    an unknown class behind which there is one: that may have been our own database.
    """
    proof = judge_client_error(error, rows)
    if proof is None or proof.kind in (Means.OUR_CREDENTIALS, Means.REFUSED):
        return False
    if proof.kind is not Means.UNCERTAIN:
        return True
    name, _ = look_up(error)
    is_client = bool(name) and not name.startswith("builtins.")
    return is_client and (proof.status is None or proof.status >= 500)


def judge_response(
    response: Any,
    rows: Rows | Judge | None = (),
    *,
    accept: Collection[int | str] = frozenset(),
    took: float | None = None,
    reads: bool = False,
) -> Proof | None:
    """What a returned answer proves; None if it is no answer, below 400, or in `accept`.

    An answer is what an HTTP client gives: it has a `status_code` or `status`, headers, and a body
    or an address. One of Slack's with `ok: false` is judged by its `error`, which may stand in
    `accept`, too. Anything else is a result, whatever its fields are called.
    """
    if response.__class__ is dict and response.get("ok") is not False:
        return None  # as most results are
    if isinstance(response, BaseException):
        return None
    status = _status(response)
    word = _refusal(response)
    if word is None and (status is None or status < 400):
        return None
    if status in accept or word in accept:
        return None
    return _judge(Sight(response, took, reads), rows, is_answer=True)


def _status(response: Any) -> int | None:
    if not _is_answer(response):
        return None
    for name in ("status_code", "status"):
        value = read(response, name)
        if isinstance(value, int) and 100 <= (number(value) or 0) <= 599:
            return number(value)
    return None


_OF_ANSWERS = ("url", "request", "reason", "body", "content", "data", "text", "read")


def _is_answer(response: Any) -> bool:
    """Whether it is a client's answer, and not a result that has a `status` of its own."""
    if isinstance(response, Mapping):  # a result, whatever its fields are called
        return False
    headers: object = read(response, "headers")
    if not all(callable(getattr(type(headers), verb, None)) for verb in ("get", "items")):
        return False
    return any(getattr_static(response, name, None) is not None for name in _OF_ANSWERS)


def _refusal(response: Any) -> str | None:
    """The word that Slack's API gives with `ok: false`."""
    body = _slack_body(response)
    word = read(body, "error")
    return word if isinstance(word, str) and read(body, "ok") is False else None


def _slack_body(response: Any) -> Any:
    """The body of an answer of Slack's, of its own client or of another."""
    if names(response)[0].startswith("slack_sdk."):
        return read(response, "data")
    content = read(response, "_content") if _is_answer(response) else None
    address = text(read(response, "url"))
    if not isinstance(content, bytes) or not address.startswith("https://slack.com/"):
        return None
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _judge(sight: Sight, rows: Rows | Judge | None, *, is_answer: bool) -> Proof | None:
    thing = sight.error
    try:
        proof = _asked(sight, rows)
        if proof is None:
            proof = _of_answer(sight) if is_answer else _of_error(sight)
    except BaseException as broken:
        if isinstance(broken, KeyboardInterrupt | SystemExit):
            raise
        row = f"{_name(thing)}, which cannot be read ({_name(broken)})"
        return Proof(Means.UNCERTAIN, row, text(thing))
    return None if proof is None else replace(proof, message=scrub(proof.message))


def _asked(sight: Sight, rows: Rows | Judge | None) -> Proof | None:
    """What the app's own rows say."""
    given: tuple[Row, ...] = (rows,) if callable(rows) else error_rows(rows)
    for row in given:
        try:
            proof = row.judge(sight) if isinstance(row, ErrorRow) else row(sight.error)
        except Exception as broken:  # noqa: BLE001 - an app's judge may fail on a foreign error
            name = row.name if isinstance(row, ErrorRow) else _called(row)
            return Proof(
                Means.UNCERTAIN,
                f"{name or 'a row of errors='} raised {_name(broken)} when it was asked",
                text(sight.error),
            )
        if proof is None:
            continue
        if isinstance(row, ErrorRow) and not row.every_try:
            found = Finding(proof.kind, proof.status)
            return _settled(sight, finding(sight)[0], found, proof)
        return proof
    return None


def _of_error(sight: Sight) -> Proof | None:
    name, found = finding(sight)
    if found is None:
        for other in [*sight.chain[1:], *sight.earlier]:
            _, found = finding(Sight(other))
            if found is not None:
                # Somebody else's class: how often it called, and what it did then, is not known.
                row = f"{_name(sight.error)}, raised after {_name(other)} (add it to errors=)"
                return Proof(
                    Means.UNCERTAIN, row, text(sight.error), retry_after_of(other), found.status
                )
        return None
    return _settled(sight, name, found)


def _of_answer(sight: Sight) -> Proof | None:
    word = _refusal(sight.error)
    if word is None:
        return _settled(sight, names(sight.error)[0], _answered(sight))
    status = _status(sight.error)
    found = slack_says(word, status, retry_after_of(sight.error))
    return _settled(sight, _OK_FALSE, found)


_OK_FALSE = "ok: false"


def _settled(sight: Sight, name: str, found: Finding, proof: Proof | None = None) -> Proof:
    """The proof of a finding, which is better than uncertain only if it speaks for all tries."""
    # The error's own name tells people more than that of the base class which decided.
    own = name if name == _OK_FALSE else _name(sight.error)
    said = [own, str(found.status or ""), found.note]
    row = proof.row if proof else " ".join(filter(None, said))
    message = proof.message if proof else message_of(sight.error)
    wait = proof.retry_after if proof else found.retry_after
    if found.means is not Means.UNCERTAIN and not sight.reads:
        why = doubt(sight, name, found)
        if why:
            return Proof(Means.UNCERTAIN, f"{row}, {why}", message, wait, found.status)
    return Proof(found.means, row, message, wait, found.status)


def _name(thing: object) -> str:
    return names(thing)[0].removeprefix("builtins.")


def _called(judge: object) -> str:
    return text(read(judge, "__qualname__") or type(judge).__name__)
