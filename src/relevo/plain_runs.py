"""The runs of plain functions, whose threads cannot be stopped.

A run keeps its job's lease for as long as its thread runs and its process lives, also past the time
limit, since the job would otherwise be started again beside it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relevo.errors import LeaseLost
from relevo.job import Lease

if TYPE_CHECKING:
    from relevo.context import Context
    from relevo.plain_context import PlainContext


class PastLimit(TimeoutError):
    """A run took longer than its command's timeout; people see it as the TimeoutError it is."""


PastLimit.__qualname__ = TimeoutError.__qualname__


class PlainRun:
    """One run of a plain function, from before its thread begins until it has ended."""

    __slots__ = (
        "_dropping",
        "abandon_at",
        "began",
        "ctx",
        "face",
        "is_told",
        "lease",
        "limit",
        "over",
        "thread",
    )

    def __init__(
        self, ctx: Context, lease: Lease, began: float, limit: float, abandon_after: float
    ) -> None:
        self.ctx = ctx
        self.lease = lease
        self.began = began
        self.limit = limit
        self.abandon_at = began + limit + abandon_after
        self.face: PlainContext | None = None
        self.thread = 0
        self.is_told = False  # whether people were told that it is overdue
        self.over: Exception | None = None  # why what the function returns does not count
        self._dropping: asyncio.Task[None] | None = None

    def call(self, function: Callable[[Any], Any], message: Any) -> Any:
        """What the function gives, or an error that can leave its thread; in its thread."""
        self.thread = threading.get_ident()
        try:
            return function(message)
        except StopIteration as error:
            # No future takes it: the job would seem to run for ever.
            raise RuntimeError("the worker raised StopIteration") from error

    def is_overdue(self, now: float) -> bool:
        """Whether it runs past its time limit."""
        return now > self.began + self.limit

    def is_abandoned(self, now: float) -> bool:
        """Whether it runs so long past its time limit that it is taken to be stuck."""
        return now > self.abandon_at

    def stack(self) -> str:
        """Where its thread is."""
        frame = sys._current_frames().get(self.thread)  # pyright: ignore[reportPrivateUsage] - the documented way to another thread's stack
        return "".join(traceback.format_stack(frame, limit=12)) if frame else ""

    def lose(self) -> None:
        """The lease has gone to another worker: nothing more is done for this run."""
        self._drop(LeaseLost(f"job {self.lease.id} is another worker's; nothing more is done here"))

    def stay_too_long(self) -> None:
        """Its transaction has been open past the time limit: others wait for its locks."""
        self._drop(
            PastLimit(
                f"its transaction was open for longer than the time limit of {self.limit:g} s, "
                "and was rolled back"
            )
        )

    def _drop(self, why: Exception) -> None:
        if self.over is None:
            self.over = why
            self._dropping = asyncio.get_running_loop().create_task(self._let_go())

    async def _let_go(self) -> None:
        if self.face is not None:
            await self.face.leave()
        await self.ctx.roll_back()

    async def end(self) -> None:
        """The thread has ended."""
        if self.face is not None:
            await self.face.leave()
        if self._dropping is not None:
            await asyncio.wait({self._dropping})
            if not self._dropping.cancelled():
                self._dropping.exception()  # such as a connection that is gone with its transaction


class PlainRuns(dict[Lease, PlainRun]):
    """The runs that have a thread under way, by their leases; the lifeline's thread reads it."""

    def __init__(self, limits: Callable[[Lease], tuple[float, float]]) -> None:
        super().__init__()
        self._limits = limits  # of a job: its time limit, and what it may take beyond that
        self._outlasting: Counter[Lease] = Counter()

    @contextmanager
    def outlasting(self, ctx: Context, lease: Lease) -> Generator[None]:
        """Have an async run keep its job, which was broken off amid a call in a thread.

        The time limit begins anew.
        """
        if not self._outlasting[lease]:
            now = asyncio.get_running_loop().time()
            self[lease] = PlainRun(ctx, lease, now, *self._limits(lease))
        self._outlasting[lease] += 1
        try:
            yield
        finally:
            self._outlasting[lease] -= 1
            if not self._outlasting[lease]:
                del self._outlasting[lease], self[lease]


PAGE = os.sysconf("SC_PAGE_SIZE")


def resident(pid: int | str) -> int:
    """The memory that a process has, in bytes; 0 where the system does not say it."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_bytes().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * PAGE
