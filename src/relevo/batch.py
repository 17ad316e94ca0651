"""Coalescing: while one write is in flight, new calls pile up and become the next write.

No timer: a lone caller goes at once, a crowd shares.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from relevo.errors import StoreUnavailable
from relevo.store import BATCH

T = TypeVar("T")
R = TypeVar("R")
H = TypeVar("H", contravariant=True)


class Waiting(Protocol[H]):
    """Who hears the results of what they added: a future, or whoever behaves like one."""

    def done(self) -> bool: ...

    def set_result(self, result: Sequence[H], /) -> None: ...

    def set_exception(self, exception: Exception, /) -> None: ...

    def cancel(self) -> object: ...


class Coalescer(Generic[T, R]):
    """`await add(items)` gives each item's result; one flush is in flight at a time.

    A caller that goes away does not take the batch with it: what it added may still happen.
    """

    def __init__(
        self, flush: Callable[[list[T]], Awaitable[Sequence[R]]], *, most: int = 20_000
    ) -> None:
        self._flush = flush
        self._most = most
        self._waiting: deque[tuple[Sequence[T], Waiting[R]]] = deque()
        self._size = 0
        self._task: asyncio.Task[None] | None = None

    async def add(self, items: Sequence[T]) -> Sequence[R]:
        """Hand items over and wait for their results, in order."""
        future: asyncio.Future[Sequence[R]] = asyncio.get_running_loop().create_future()
        self.put(items, future)
        return await future

    def put(self, items: Sequence[T], waiting: Waiting[R]) -> None:
        """The same for who does not wait here."""
        if self._size >= self._most:
            raise StoreUnavailable(
                f"{self._size} writes are waiting for the store already; try again in a moment"
            )
        self._waiting.append((items, waiting))
        self._size += len(items)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="relevo-coalescer")

    async def close(self) -> None:
        """Wait for what is on its way."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._flush_once()
        finally:
            self._task = None

    async def _flush_once(self) -> None:
        taken: list[tuple[Sequence[T], Waiting[R]]] = []
        batch: list[T] = []
        while self._waiting and (not batch or len(batch) + len(self._waiting[0][0]) <= BATCH):
            items, waiting = self._waiting.popleft()
            taken.append((items, waiting))
            batch.extend(items)
        self._size -= len(batch)
        try:
            results = await self._flush(batch)
        except asyncio.CancelledError:
            for _, waiting in taken:
                waiting.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - every caller of the batch must hear of it
            for _, waiting in taken:
                if not waiting.done():
                    waiting.set_exception(error)
            return
        # The next batch goes out before anybody is told: the store works while they hear of it.
        asyncio.get_running_loop().call_soon(_tell, taken, results)


def _tell(taken: list[tuple[Sequence[T], Waiting[R]]], results: Sequence[R]) -> None:
    start = 0
    for items, waiting in taken:
        if not waiting.done():
            waiting.set_result(results[start : start + len(items)])
        start += len(items)
