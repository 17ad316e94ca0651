"""Runs a job alone that is suspected of having killed the worker process that ran it.

While the process has such a job it starts nothing else: it gives back what it has not begun, lets
end what runs, and then runs the suspect with nothing beside it. If the process dies then, no other
job can have been the cause.
"""

from __future__ import annotations

import asyncio
import os
import random
from datetime import timedelta
from typing import TYPE_CHECKING

from relevo.clock import milliseconds
from relevo.errors import StoreError
from relevo.job import Suspicion

if TYPE_CHECKING:
    from relevo.worker import Flight, Worker

ENOUGH = 1.0
"""Seconds for which the first run alone of a job has its process to itself."""

LONGER = timedelta(seconds=5)
"""A suspect's lease lasts so much longer, so that the neighbours, who know more about its process's
death, take the job back before its lease lapses."""


def later() -> int:
    """Milliseconds until a suspect that cannot run alone now is tried again."""
    return random.randrange(500, 1_500)


class Isolation:
    """The one suspect of a worker process, waiting or running."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._arrived = asyncio.Event()
        self.flight: Flight | None = None
        self.is_running = False
        self.emptied = asyncio.Event()  # set by the worker: no job runs in this process
        self.ended = asyncio.Event()  # set by the worker: the suspect's run is over

    def take(self, flight: Flight) -> None:
        """Have a suspect run alone before anything else, or give it back if it cannot now."""
        if self.flight is not None:
            self._worker.release(flight)
        elif self._is_second(flight) and not self._worker.presence.is_quiet(flight.lease.id):
            self._worker.release(flight, later())
        else:
            self.flight = flight
            self._arrived.set()

    @staticmethod
    def _is_second(flight: Flight) -> bool:
        """Whether the job has been alone before: it runs so to its end, one on the host at a time."""
        return flight.lease.suspicion >= Suspicion.ALONE_ON_HOST

    async def run(self) -> None:
        """Run one suspect after the other until cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            try:
                await self._run_suspect()
            finally:
                self.give_back()
                self._worker.resume()

    def give_back(self) -> None:
        """Return the suspect if it has not begun."""
        flight, self.flight = self.flight, None
        if flight is not None and not flight.since:
            self._worker.release(flight, later())

    async def _run_suspect(self) -> None:
        worker = self._worker
        while worker.running:
            self.emptied.clear()
            await self.emptied.wait()
        flight, lock = self.flight, None
        if flight is None:  # lost meanwhile
            return
        try:
            if self._is_second(flight):
                lock = worker.presence.lone_on_host()
                if lock is None or not worker.presence.is_quiet(flight.lease.id):
                    return
            length = milliseconds(worker.lease + LONGER)
            if not all(await worker.store.extend([flight.lease], length)) or not all(
                await worker.store.isolate([flight.lease])
            ):
                worker.lost(flight)
                return
            worker.presence.set_alone(True)
            self.is_running = True
            self.ended.clear()
            worker.start(flight)
            await self._watch(flight)
        except (StoreError, OSError) as error:
            worker.telemetry.trouble("cannot run a suspected job alone; trying again", error)
        finally:
            self.is_running = False
            worker.presence.set_alone(False)
            if lock is not None:
                os.close(lock)

    async def _watch(self, suspect: Flight) -> None:
        """Wait for the run to end; the first one of a job also until it has run for a while.

        Most suspects are innocent, and some run for hours. A process that dies later was not
        killed by a job that was alone: its suspects run alone again, and this one to its end.
        """
        worker = self._worker
        while not self._is_second(suspect):
            try:
                async with asyncio.timeout(ENOUGH):
                    await self.ended.wait()
            except TimeoutError:
                pass
            else:
                return
            try:
                await worker.store.isolate([suspect.lease], is_alone=False)
            except (StoreError, OSError) as error:
                worker.telemetry.trouble("a suspected job stays alone for now", error)
            else:
                return
        await self.ended.wait()
