"""Reply: what goes back over the wire, ready made where it is always the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple, TypeAlias

from relevo.webhook import Answer

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

DIRECT = "relevo.direct"
"""Where our own server puts, in the scope, who can send a whole reply at once."""

LINGER_SECONDS = 1.0
LINGER_BYTES = 1_048_576


class Reply(NamedTuple):
    """Status, headers and body as ASGI sends them, and all after the status line as it is sent."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    wire: bytes


def reply(status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> Reply:
    """A reply with its length."""
    headers = [*headers, (b"content-length", b"%d" % len(body))]
    lines = b"".join([b"%b: %b\r\n" % pair for pair in headers])
    return Reply(status, headers, body, lines + b"\r\n" + body)


class Refused(Exception):
    """Ends a request with a reply; the cause is not the caller's business."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


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
    return reply(status, lines, b'{"ok":false,"error":"%b"}' % code.encode())


async def send_reply(send: Send, reply: Reply) -> None:
    await send({"type": "http.response.start", "status": reply.status, "headers": reply.headers})
    await send({"type": "http.response.body", "body": reply.body})


async def send_refusal(receive: Receive, send: Send, reply: Reply) -> None:
    """The same to a caller who may still be talking.

    Were we to hang up at once, what is on its way would make their side throw our answer away.
    """
    await send({"type": "http.response.start", "status": reply.status, "headers": reply.headers})
    await send({"type": "http.response.body", "body": reply.body, "more_body": True})
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            heard, more = 0, True
            while more and heard < LINGER_BYTES:
                message = await receive()
                heard += len(message.get("body", b""))
                more = message["type"] == "http.request" and message.get("more_body", False)
    except TimeoutError:
        pass
    await send({"type": "http.response.body", "body": b""})
