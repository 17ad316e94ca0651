"""Reply: what goes back over the wire, ready made where it is always the same."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple, TypeAlias

from relevo.webhook import Answer

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

DIRECT = "relevo.direct"
"""Where our own server puts, in the scope, who can send a whole reply at once."""

FORWARDED = b"x-forwarded-for"

LINGER_SECONDS = 1.0
LINGER_BYTES = 1_048_576


class Reply(NamedTuple):
    """Status, headers and body as ASGI sends them, and all after the status line as it is sent."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    wire: bytes
    code: str = ""  # of a refusal


def reply(status: int, headers: list[tuple[bytes, bytes]], body: bytes, code: str = "") -> Reply:
    """A reply with its length."""
    headers = [*headers, (b"content-length", b"%d" % len(body))]
    lines = b"".join([b"%b: %b\r\n" % pair for pair in headers])
    return Reply(status, headers, body, lines + b"\r\n" + body, code)


class Heard:
    """What was read of a body that is refused: how much, and its hash once it is whole."""

    __slots__ = ("_hash", "_is_cut", "_is_whole", "size")

    def __init__(self, *, is_cut: bool = False) -> None:
        self.size = 0
        self._hash = hashlib.blake2b(digest_size=16)
        self._is_cut = is_cut  # the beginning was read before, and is gone
        self._is_whole = False

    def add(self, part: bytes, *, is_last: bool = True) -> Heard:
        """The next part of it."""
        self.size += len(part)
        self._hash.update(part)
        self._is_whole = is_last and not self._is_cut
        return self

    @property
    def hash(self) -> str:
        """In hexadecimal; empty if some of the body was not read, or there is none."""
        return self._hash.hexdigest() if self._is_whole and self.size else ""


class Refused(Exception):
    """Ends a request with a reply; the cause is not the caller's business."""

    def __init__(self, reply: Reply, heard: Heard | None = None) -> None:
        super().__init__(reply.status)
        self.reply = reply
        self.heard = heard or Heard()


def reply_of(answer: Answer) -> Reply:
    """An answer of a webhook's function."""
    headers = [
        (name.lower().encode(), value.encode("latin-1")) for name, value in answer.headers.items()
    ]
    return reply(answer.status, headers, answer.body)


def error(status: int, code: str, *, close: bool = False, **headers: str) -> Reply:
    """A refusal: `{"ok":false,"error":code}`, and no word more."""
    lines = [(b"content-type", b"application/json")]
    lines += [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    if close:
        # Whoever was not heard to the end would have the rest taken for a request of its own.
        lines.append((b"connection", b"close"))
    return reply(status, lines, b'{"ok":false,"error":"%b"}' % code.encode(), code)


async def send_reply(send: Send, reply: Reply) -> None:
    await send({"type": "http.response.start", "status": reply.status, "headers": reply.headers})
    await send({"type": "http.response.body", "body": reply.body})


async def send_refusal(receive: Receive, send: Send, reply: Reply, heard: Heard) -> None:
    """Send a refusal to a caller that may still be sending; `heard` gets the rest of the body.

    Were we to hang up at once, what is on its way would make their side throw our answer away.
    """
    await send({"type": "http.response.start", "status": reply.status, "headers": reply.headers})
    await send({"type": "http.response.body", "body": reply.body, "more_body": True})
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            more = True
            while more and heard.size < LINGER_BYTES:
                message = await receive()
                is_body = message["type"] == "http.request"
                more = is_body and message.get("more_body", False)
                heard.add(message.get("body", b""), is_last=is_body and not more)
    except TimeoutError:
        pass
    await send({"type": "http.response.body", "body": b""})
