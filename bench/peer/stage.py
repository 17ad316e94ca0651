"""What the peers' programs share; standard library only."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

URL, JOBS = sys.argv[1], int(sys.argv[2])
CALLERS = 100
TEXT = "A guest asks whether breakfast is served before seven on Sundays; answer in Spanish. " * 2


class Count:
    """Counts jobs as they run; the last one prints the figures and ends the program.

    From the first job to the last: starting up is not held against anyone.
    """

    def __init__(self, **figures: float) -> None:
        self.figures = figures
        self._done = 0
        self._began = 0.0
        self._lock = threading.Lock()

    def one(self) -> None:
        with self._lock:
            self._done += 1
            if self._done == 1:
                self._began = time.perf_counter()
            elif self._done == JOBS:
                taken = time.perf_counter() - self._began
                print(json.dumps({**self.figures, "drain": (JOBS - 1) / taken}), flush=True)
                os._exit(0)


async def by_callers(call: Callable[[int], Awaitable[Any]], jobs: int = JOBS) -> float:
    """Jobs a second when each of a hundred callers waits for one before it brings the next."""

    async def caller() -> None:
        for number in range(jobs // CALLERS):
            await call(number)

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return jobs / (time.perf_counter() - began)


def by_threads(call: Callable[[int], Any]) -> float:
    """The same for one that knows no async: the better of one thread and of eight."""
    return max(_threads(call, 1), _threads(call, 8))


def _threads(call: Callable[[int], Any], threads: int) -> float:
    share = JOBS // 2 // threads

    def caller() -> None:
        for number in range(share):
            call(number)

    callers = [threading.Thread(target=caller) for _ in range(threads)]
    began = time.perf_counter()
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    return share * threads / (time.perf_counter() - began)
