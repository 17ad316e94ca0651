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
        elif not self._worker.presence.is_quiet():
            self._worker.release(flight, later())
        else:
            self.flight = flight
            self._arrived.set()

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
            if flight.lease.suspicion >= Suspicion.ALONE_ON_HOST:
                lock = worker.presence.lone_on_host()
                if lock is None:
                    return
            if not worker.presence.is_quiet():
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
            await self.ended.wait()
        except (StoreError, OSError) as error:
            worker.telemetry.trouble("cannot run a suspected job alone; trying again", error)
        finally:
            self.is_running = False
            worker.presence.set_alone(False)
            if lock is not None:
                os.close(lock)
