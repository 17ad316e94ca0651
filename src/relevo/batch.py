"""Coalescing: while one write is in flight, new calls pile up and become the next write.

No timer: a lone caller goes at once, a crowd shares, and a lasting crowd takes turns by halves.
Where the store is another process, a second batch may go beside the first.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from threading import get_ident
from typing import Generic, Protocol, TypeVar

from relevo.errors import MisuseError, StoreUnavailable
from relevo.store import BATCH

T = TypeVar("T")
R = TypeVar("R")
H = TypeVar("H", contravariant=True)

log = logging.getLogger("relevo.batch")

CROWD = 64
"""Callers from whom on it pays to split them: fewer have called again before a trip is over."""

ENOUGH = 32
"""Callers from whom on another batch goes beside the one on its way, so that the store has it at
hand when it is done with the first."""


class Waiting(Protocol[H]):
    """Who hears the results of what they added: a future, or whoever behaves like one."""

    def done(self) -> bool: ...

    def set_result(self, result: Sequence[H], /) -> None: ...

    def set_exception(self, exception: Exception, /) -> None: ...

    def cancel(self) -> object: ...


class Coalescer(Generic[T, R]):
    """`await add(items)` gives each item's result; one flush is in flight at a time, or two.

    A caller that goes away does not take the batch with it: what it added may still happen.
    `elsewhere` says that another process does the work, so that a crowd which calls again and again
    is better split: the one half prepares its calls while the other's are written, and what has
    come together meanwhile is at hand over there when these are.
    """

    def __init__(
        self,
        flush: Callable[[list[T]], Awaitable[Sequence[R]]],
        *,
        most: int = 20_000,
        elsewhere: bool = False,
    ) -> None:
        self._flush = flush
        self._most = most
        self._crowd = CROWD if elsewhere else most
        self._waiting: deque[tuple[Sequence[T], Waiting[R]]] = deque()
        self._size = 0
        self._enough = ENOUGH if elsewhere else most
        self._task: asyncio.Task[None] | None = None
        self._beside: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # whose callers' futures wait here
        self._thread = 0  # which runs it

    async def add(self, items: Sequence[T]) -> Sequence[R]:
        """Hand items over and wait for their results, in order."""
        future: asyncio.Future[Sequence[R]] = self.here().create_future()
        self.put(items, future)
        return await future

    def here(self) -> asyncio.AbstractEventLoop:
        """The event loop that runs here, moved into."""
        # Asked for at every call, asyncio would ask the system on Python 3.11.
        if self._loop is None or self._thread != get_ident() or not self._loop.is_running():
            return self.move_in()
        return self._loop

    def put(self, items: Sequence[T], waiting: Waiting[R]) -> None:
        """The same for who does not wait here, but has moved in."""
        if self._size >= self._most:
            raise StoreUnavailable(
                f"{self._size} writes are waiting for the store already; try again in a moment"
            )
        self._waiting.append((items, waiting))
        self._size += len(items)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="relevo-coalescer")
        elif self._beside is None and len(self._waiting) >= self._enough:
            self._beside = asyncio.create_task(self._run_beside(), name="relevo-coalescer")

    def move_in(self) -> asyncio.AbstractEventLoop:
        """Belong to the event loop that runs here, unless another one is at work."""
        here = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not here and self._loop.is_running():
            # The one loop's end would cancel the other's callers, and wake-ups would be lost.
            raise MisuseError(
                "this engine is at work in another event loop: from a thread call "
                "asyncio.run_coroutine_threadsafe(relevo.enqueue(…), loop).result(), with the loop "
                "that opened it, or open an engine of its own"
            )
        if self._loop is not here:
            self._loop, self._task, self._beside = here, None, None
        self._thread = get_ident()
        return here

    async def close(self) -> None:
        """Wait for what is on its way."""
        if on_their_way := {task for task in (self._task, self._beside) if task is not None}:
            await asyncio.wait(on_their_way)
        self._loop = None

    async def _run(self) -> None:
        try:
            room = BATCH
            while self._waiting:
                told = await self._flush_once(room)
                # Half of all that is under way, those who are being told included: while the store
                # has the one half, the other calls again. A large batch would leave a small one
                # behind it, and the store and its callers would wait for each other by turns.
                room = min(BATCH, (self._size + told + 1) // 2)
                if told >= self._crowd and not self._waiting:
                    await asyncio.sleep(0)  # who heard first may call again
        finally:
            self._task = None

    async def _run_beside(self) -> None:
        try:
            while len(self._waiting) >= self._enough:
                await self._flush_once(BATCH)
        finally:
            self._beside = None

    def _next(self, room: int) -> list[tuple[Sequence[T], Waiting[R]]]:
        """The first who wait, as many as there is room for, and one at least."""
        if self._size <= room:
            taken = list(self._waiting)
            self._waiting.clear()
            self._size = 0
            return taken
        taken = [self._waiting.popleft()]
        size = len(taken[0][0])
        while self._waiting and size + len(self._waiting[0][0]) <= room:
            taken.append(self._waiting.popleft())
            size += len(taken[-1][0])
        self._size -= size
        return taken

    async def _flush_once(self, room: int) -> int:
        # Who has gone before it left wants it no longer.
        taken = [one for one in self._next(room) if not one[1].done()]
        batch = [item for items, _ in taken for item in items]
        if not batch:
            _tell(taken, ())  # of who had nothing to add
            return 0
        try:
            results = await self._flush(batch)
        except asyncio.CancelledError:
            for _, waiting in taken:
                waiting.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - every caller of the batch must hear of it
            for _, waiting in taken:
                if not waiting.done():
                    with suppress(RuntimeError):  # as in _tell()
                        waiting.set_exception(error)
            return len(batch)
        # The next batch goes out before anybody is told: the store works while they hear of it. If
        # a crowd leaves nobody for a next batch, half of it hears at once, to make one.
        first = len(taken) // 2 if len(taken) >= self._crowd and not self._waiting else 0
        others = _tell(taken[:first], results)
        asyncio.get_running_loop().call_soon(_tell, taken[first:], others)
        return len(batch)


def _tell(taken: list[tuple[Sequence[T], Waiting[R]]], results: Sequence[R]) -> Sequence[R]:
    """Tell each its results; answers those that are left."""
    start = 0
    for items, waiting in taken:
        if not waiting.done():
            try:
                waiting.set_result(results[start : start + len(items)])
            except RuntimeError:
                # Its event loop was closed while it waited: nobody is there, others are to hear.
                log.debug("a caller left with its event loop")
        start += len(items)
    return results[start:]
