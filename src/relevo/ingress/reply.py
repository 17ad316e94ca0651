"""Reply: what goes back over the wire, ready made where it is always the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple, TypeAlias

from relevo.webhook import Answer

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]


class Reply(NamedTuple):
    """Status, headers and body as ASGI sends them."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class Refused(Exception):
    """Ends a request with a reply; the cause is not the caller's business."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


def reply_of(answer: Answer) -> Reply:
    """An answer with its length."""
    headers = [
        (name.lower().encode(), wire.encode("latin-1")) for name, wire in answer.headers.items()
    ]
    headers.append((b"content-length", b"%d" % len(answer.body)))
    return Reply(answer.status, headers, answer.body)


def error(status: int, code: str, *, close: bool = False, **headers: str) -> Reply:
    """A refusal: `{"ok":false,"error":code}`, and no word more."""
    body = b'{"ok":false,"error":"%s"}' % code.encode()
    lines = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        *((name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()),
    ]
    # Whoever was not heard to the end would have the rest taken for a request of its own.
    return Reply(status, [*lines, (b"connection", b"close")] if close else lines, body)


async def send_reply(send: Send, reply: Reply) -> None:
    await send({"type": "http.response.start", "status": reply.status, "headers": reply.headers})
    await send({"type": "http.response.body", "body": reply.body})
