"""Forms: what a person filled in, and the proof that it was on a page of ours."""

from __future__ import annotations

import hmac
from collections import UserDict
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.types import Message, Receive

from relevo.web.visit import SECRET, SESSION, Visit

BODY_MAX = 1_048_576
STRANGERS_MAX = 65_536  # whoever is not in yet has only a name and a password to say
FIELDS_MAX = 1_000
FORM = "application/x-www-form-urlencoded"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class Form(UserDict[str, str]):
    """The fields of a form; one that was not sent is empty."""

    def __init__(self, fields: dict[str, list[str]]) -> None:
        super().__init__({name: values[0] for name, values in fields.items()})
        self._all = fields

    def __missing__(self, name: str) -> str:
        return ""

    def all(self, name: str) -> list[str]:
        """Every value of a field that may be sent more than once, such as a row of boxes."""
        return self._all.get(name, [])


async def form(request: Request) -> Form:
    """The form in a request; 415 when there is none."""
    if kind_of(request) != FORM:
        raise HTTPException(415, f"send a form: {FORM}")
    return _parsed(await read_body(request.receive, _most(Visit.known(request.scope))))


def kind_of(asked: HTTPConnection) -> str:
    """The content type without its options."""
    return asked.headers.get("content-type", "").partition(";")[0].strip().lower()


def _parsed(body: bytes) -> Form:
    try:
        return Form(
            parse_qs(
                body.decode("ascii", errors="replace"),
                keep_blank_values=True,
                max_num_fields=FIELDS_MAX,
            )
        )
    except ValueError as error:
        raise HTTPException(400, f"the form has more than {FIELDS_MAX:,} fields") from error


async def check_form(visit: Visit, asked: Request, receive: Receive) -> Receive:
    """Refuse what a page of someone else made this browser send."""
    if asked.method in _SAFE or visit.by_token:
        return receive
    if not _is_browser(asked):
        return receive
    if not _is_from_here(asked):
        raise HTTPException(403, "this was sent by a page of someone else")
    shown = asked.headers.get("x-csrf-token", "")
    if not shown and kind_of(asked) == FORM:
        body = await read_body(receive, _most(visit))
        shown = _parsed(body)["csrf"]
        receive = _again(body, receive)
    if not hmac.compare_digest(shown.encode(errors="replace"), visit.csrf.encode()):
        raise HTTPException(
            403, "This form is too old, or came from elsewhere: load the page again."
        )
    return receive


def _is_browser(asked: HTTPConnection) -> bool:
    # What no browser sent cannot be forged by a page: the name of who asks is not in a cookie.
    marks = ("origin", "sec-fetch-site", "sec-fetch-mode")
    return any(mark in asked.headers for mark in marks) or bool(
        {SESSION, SECRET} & {*asked.cookies}
    )


def _is_from_here(asked: HTTPConnection) -> bool:
    site = asked.headers.get("sec-fetch-site")
    if site is not None and site != "same-origin":
        return False
    # "null" is what our own forms send, since we tell browsers to name no referrer.
    origin = asked.headers.get("origin", "null")
    return origin == "null" or origin.partition("://")[2] == asked.headers.get("host", "")


def _most(visit: Visit | None) -> int:
    return STRANGERS_MAX if visit is not None and visit.person is None else BODY_MAX


async def read_body(receive: Receive, most: int = BODY_MAX) -> bytes:
    """A body, whole; 413 when it is too large."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise HTTPException(400, "the body was cut off")
        body += message.get("body", b"")
        if len(body) > most:
            raise HTTPException(413, f"the body has more than {most:,} bytes")
        if not message.get("more_body", False):
            return bytes(body)


def _again(body: bytes, receive: Receive) -> Receive:
    is_read = False

    async def replay() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
