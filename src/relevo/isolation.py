"""Runs the jobs apart that are suspected of having killed the worker process that ran them.

A suspect is *watched* at first: it begins at once, and for a second nothing else begins in its
process. One that was running when its process died again runs *alone*: the process gives back what
it has not begun, lets end what runs, and begins nothing until the suspect has ended. If the process
dies then, no other job can have been the cause.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from relevo.clock import milliseconds
from relevo.errors import StoreError
from relevo.job import Suspicion

if TYPE_CHECKING:
    from relevo.worker import Flight, Worker

WATCH = 1.0
"""Seconds for which nothing else begins beside a suspect that is watched."""

LONGER = timedelta(seconds=5)
"""The lease of a job that runs alone lasts so much longer, so that a neighbouring worker, which can
read what the dead process was running, takes the job back before its lease lapses."""

PATIENCE = 10.0
"""Seconds for which a process lets end what runs, with a suspect in hand that must run alone. Then
it works on for as long and waits twice as long the next time, so that neither the other jobs nor
the suspect wait for ever."""


def later() -> int:
    """Milliseconds until a suspect that cannot run now is tried again."""
    return random.randrange(500, 1_500)


class Isolation:
    """The one suspect of a worker process, waiting or running."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._arrived = asyncio.Event()
        self._patience = PATIENCE
        self._busy_until = 0.0  # on the event loop's clock: until then other jobs begin here
        self.flight: Flight | None = None
        self.is_running = False
        self.emptied = asyncio.Event()  # set by the worker: no job runs in this process
        self.ended = asyncio.Event()  # set by the worker: the suspect's run is over

    def take(self, flight: Flight) -> None:
        """Have a suspect run apart before anything else, or give it back if it cannot now."""
        if self.flight is not None:
            self._worker.release(flight)
        elif self._can_run(flight):
            self.flight = flight
            self._arrived.set()
        else:
            self._worker.release(flight, later())

    def _can_run(self, suspect: Flight) -> bool:
        """Whether it could begin soon: nothing is let end here for one that could not."""
        worker = self._worker
        if not is_alone(suspect):
            return worker.running < worker.concurrency
        if worker.has_stuck:
            return False
        if worker.running and _now() < self._busy_until:
            return False
        try:
            if not worker.presence.is_quiet(suspect.lease.id):
                return False
            lock = worker.presence.lone_on_host()
        except OSError as error:  # such as no file handle left
            worker.telemetry.trouble("cannot run a suspected job; trying again", error)
            return False
        if lock is None:
            return False
        worker.presence.let_go(lock)  # taken again once this process is empty
        return True

    async def run(self) -> None:
        """Run one suspect after the other until cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            try:
                if self.flight is not None:
                    await (self._run_alone if is_alone(self.flight) else self._watch)(self.flight)
            except (StoreError, OSError) as error:
                self._worker.telemetry.trouble("cannot run a suspected job; trying again", error)
            finally:
                self.give_back()
                self._worker.resume()

    def give_back(self) -> None:
        """Return the suspect if it has not begun."""
        flight, self.flight = self.flight, None
        if flight is not None and not flight.since:
            self._worker.withdraw(flight)
            self._worker.release(flight, later())

    async def _watch(self, suspect: Flight) -> None:
        """Begin nothing beside it for a while.

        Most suspects are innocent, and some run for hours: other jobs begin beside it then.
        """
        is_counted = not self._worker.running
        if is_counted and not await self._count(suspect):
            return
        self._begin(suspect)
        with suppress(TimeoutError):
            async with asyncio.timeout(WATCH):
                await self.ended.wait()
        while is_counted and not self.ended.is_set():
            try:
                await self._worker.store.isolate([suspect.lease], is_alone=False)
                is_counted = False
            except (StoreError, OSError) as error:
                self._worker.telemetry.trouble("a suspected job stays alone for now", error)
                await asyncio.sleep(WATCH)
        self._end()

    async def _run_alone(self, suspect: Flight) -> None:
        """Begin it when nothing runs in this process, and begin nothing until it has ended."""
        worker, began = self._worker, _now()
        while worker.running and self.flight is suspect:
            if _now() - began >= self._patience:
                self._busy_until = _now() + self._patience
                self._patience *= 2
                return
            self.emptied.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(WATCH, self._patience)):
                    await self.emptied.wait()
            if worker.has_stuck:
                return
        if self.flight is not suspect:  # lost meanwhile
            return
        lock = worker.presence.lone_on_host()
        if lock is None:
            return
        try:
            # Again: while this process became empty another may have died.
            if worker.presence.is_quiet(suspect.lease.id) and await self._count(suspect):
                self._patience = PATIENCE
                self._begin(suspect)
                await self.ended.wait()
        finally:
            self._end()
            worker.presence.let_go(lock)

    async def _count(self, suspect: Flight) -> bool:
        """Count a crash before the run, which its ending takes back; False if the lease is lost."""
        worker = self._worker
        worker.presence.set_counted(suspect.lease.id)
        length = milliseconds(worker.lease + LONGER)
        is_ours = all(await worker.store.extend([suspect.lease], length)) and all(
            await worker.store.isolate([suspect.lease])
        )
        if not is_ours:
            worker.lost(suspect)
        if self.flight is not suspect:  # lost, or given back because the worker stops
            return False
        worker.presence.set_alone(True)
        return True

    def _begin(self, suspect: Flight) -> None:
        self.is_running = True
        self.ended.clear()
        self._worker.start(suspect)

    def _end(self) -> None:
        self.is_running = False
        self._worker.presence.set_alone(False)


def _now() -> float:
    return asyncio.get_running_loop().time()


def is_alone(suspect: Flight) -> bool:
    """Whether a suspect is to run with nothing beside it to its end, one on the host at a time."""
    return suspect.lease.suspicion >= Suspicion.ALONE
