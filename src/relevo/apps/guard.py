"""Guard: lets in what is small; FastAPI would read anything to its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class Guard:
    """An application that hears 413 for its callers; `told` is the answer to those who say a size.

    One that begins to send without a size meets an HTTPException where it is read.
    """

    def __init__(self, inner: ASGIApp, limit: int, told: Mapping[str, str]) -> None:
        self._inner = inner
        self._limit = limit
        self._told = told

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 12 or int(length) > self._limit:
            await JSONResponse(self._told, 413)(scope, receive, send)
            return
        read = 0

        async def limited() -> Any:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._limit:
                raise HTTPException(413, "too_large")
            return message

        await self._inner(scope, limited, send)
