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
PATH = URL.partition("///")[2]  # of an SQLite file
CALLERS = 100
TEXT = "A guest asks whether breakfast is served before seven on Sundays; answer in Spanish. " * 2


class Count:
    """Counts jobs as they run; the last one prints the figures and ends the program.

    From the first job to the last, or to end() if it `waits` for that: starting up is not held
    against anyone.
    """

    def __init__(self, *, waits: bool = False) -> None:
        self.figures: dict[str, float] = {}
        self._waits = waits
        self._done = 0
        self._began = 0.0
        self._lock = threading.Lock()

    def one(self) -> None:
        with self._lock:
            self._done += 1
            if self._done == 1:
                self._began = time.perf_counter()
            elif self._done == JOBS and not self._waits:
                self.end()

    def end(self) -> None:
        self.figures["drain"] = (self._done - 1) / (time.perf_counter() - self._began)
        os.write(1, b"\n%s\n" % json.dumps(self.figures).encode())  # some take print() for theirs
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
    return max(_threads(call, 1, JOBS // 2), _threads(call, 8, JOBS - JOBS // 2))


def _threads(call: Callable[[int], Any], threads: int, jobs: int) -> float:
    numbers = iter(range(jobs))  # shared: each thread takes the next

    def caller() -> None:
        for number in numbers:
            call(number)

    callers = [threading.Thread(target=caller) for _ in range(threads)]
    began = time.perf_counter()
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    return jobs / (time.perf_counter() - began)
