"""Somebody who orders things without pause, and writes down only what was acknowledged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from relevo import Command, Relevo
from relevo.errors import StoreUnavailable
from tests.faults.apps import Print


class Producer:
    """Enqueues numbers at an even pace while its block lasts.

    A call that raises StoreUnavailable promised nothing: its number is `unsure`, done once or not
    at all. Any other exception is a failure of the test.
    """

    def __init__(
        self,
        relevo: Relevo,
        *,
        rate: float = 200,
        make: Callable[[int], Command] = Print,
        first: int = 0,
        crowd: int = 10,
    ) -> None:
        self.acked: set[int] = set()
        self.unsure: set[int] = set()
        self.slowest = 0.0
        self.last_ack = 0.0
        self._relevo = relevo
        self._pause = crowd / rate
        self._crowd = crowd
        self._make = make
        self._next = first
        self._task: asyncio.Task[None] | None = None

    async def _enqueue(self, number: int) -> None:
        began = time.monotonic()
        try:
            await self._relevo.enqueue(self._make(number))
        except StoreUnavailable:
            self.unsure.add(number)
        except asyncio.CancelledError:
            self.unsure.add(number)
            raise
        else:
            self.acked.add(number)
            self.last_ack = time.monotonic()
        self.slowest = max(self.slowest, time.monotonic() - began)

    async def _run(self) -> None:
        at = time.monotonic()
        while True:
            numbers = range(self._next, self._next + self._crowd)
            self._next += self._crowd
            await asyncio.gather(*(self._enqueue(number) for number in numbers))
            at = max(at + self._pause, time.monotonic() - 1)
            await asyncio.sleep(max(0.0, at - time.monotonic()))

    def check(self) -> None:
        """Raise what went wrong, if anything has."""
        if self._task is not None and self._task.done():
            self._task.result()

    async def until_acked(self, count: int, timeout: float = 60) -> None:
        """Wait for so many acknowledgements."""
        deadline = time.monotonic() + timeout
        while len(self.acked) < count:
            self.check()
            assert time.monotonic() < deadline, f"{len(self.acked)} acknowledged in {timeout} s"
            await asyncio.sleep(0.02)

    async def __aenter__(self) -> Producer:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._task is not None
        self.check()
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
