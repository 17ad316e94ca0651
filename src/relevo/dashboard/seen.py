"""Seen: pages as they were last seen, for while the store is away."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from relevo.errors import StoreError, StoreUnavailable
from relevo.web import visit_of

if TYPE_CHECKING:
    from relevo.dashboard.board import Board, Page

MARK = b"<!-- store -->"
"""Where a page says that the store is away."""

MOST, BYTES = 500, 16 << 20


class _Seen(NamedTuple):
    page: bytes
    at: float


class Seen:
    """The last pages of each person, and what is shown of them while the store is away."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._pages: OrderedDict[tuple[str, ...], _Seen] = OrderedDict()
        self._size = 0

    async def look(self, page: Page, request: Request) -> Response:
        """A page, or how it was last seen; StoreUnavailable if it was not."""
        watch, key = self._board.relevo.watch, _key(request)
        if watch.is_away:
            return self._last(request, key)
        try:
            response = await page(self._board, request)
        except StoreError as error:
            watch.failed(error)
            return self._last(request, key)
        body = bytes(response.body) if isinstance(response, HTMLResponse) else b""
        if response.status_code == 200 and MARK in body:
            self._keep(key, body)
        return response

    def _keep(self, key: tuple[str, ...], body: bytes) -> None:
        self._drop(key)
        self._pages[key] = _Seen(body, time.time())
        self._size += len(body)
        while len(self._pages) > MOST or self._size > BYTES:
            self._drop(next(iter(self._pages)))

    def _drop(self, key: tuple[str, ...]) -> None:
        if (old := self._pages.pop(key, None)) is not None:
            self._size -= len(old.page)

    def _last(self, request: Request, key: tuple[str, ...]) -> Response:
        watch, seen = self._board.relevo.watch, self._pages.get(key)
        if seen is None:
            error = watch.error or "no answer"
            raise StoreUnavailable(f"the store does not answer: {error}")
        told = self._board.away(request, round(seen.at * 1_000))
        return HTMLResponse(seen.page.replace(MARK, told, 1), headers={"cache-control": "no-store"})


def _key(request: Request) -> tuple[str, ...]:
    """Whose page it is, and which: its forms hold what belongs to the one session."""
    visit, cookies = visit_of(request), request.cookies
    name = "" if visit.person is None else visit.person.name
    words = (cookies.get("relevo_lang", ""), cookies.get("relevo_theme", ""))
    return (name, visit.csrf, str(request.url.path), request.url.query, *words,
            request.headers.get("accept-language", ""))  # fmt: skip
