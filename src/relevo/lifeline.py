"""A thread that keeps leases alive and shows that the process is, even when its loop is blocked."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING

from relevo.clock import milliseconds
from relevo.errors import StoreError
from relevo.store import BATCH, Store, WorkerInfo
from relevo.telemetry import log

if TYPE_CHECKING:
    from relevo.worker import Flight, Worker

BLOCKED = 1.0
LOOK = 0.5
SHORTEST = 0.02
OVERSTAY = 30.0


class Lifeline(threading.Thread):
    """Extends every lease of the process in one call, from its own event loop and connection."""

    def __init__(self, worker: Worker, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(name="relevo-lifeline", daemon=True)
        self._worker = worker
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._stopped = threading.Event()
        self._answered = time.monotonic()
        self._is_asked = False
        self._is_blocked = False
        self._note = ""
        self._started_at = 0

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        asyncio.run(self._live())

    async def _live(self) -> None:
        store = self._worker.store.spawn()
        every = self._worker.lease.total_seconds() / 3
        beat_at = extend_at = 0.0
        is_open = False
        while not self._stopped.is_set():
            now = time.monotonic()
            self._watch_loop(now)
            try:
                if not is_open:
                    await store.open()
                    # A first call may need more trips than a lease has time for over a slow line.
                    await store.extend([], 0)
                    is_open = True
                if self._worker.flights and now >= extend_at:
                    extend_at = now + every
                    await self._extend(store)
                if now >= beat_at:
                    beat_at = now + self._worker.pace.beat
                    await self._beat(store)
            except Exception as error:  # noqa: BLE001 - were this thread to end, every lease would lapse
                self._worker.telemetry.trouble("cannot keep leases alive; trying again", error)
                extend_at = beat_at = now + min(1, every)
            await asyncio.to_thread(self._stopped.wait, self._pause(extend_at, every))
        if is_open:
            try:
                await store.leave(self._worker.id)
            except StoreError as error:
                self._worker.telemetry.trouble("could not say goodbye", error)
            await store.close()

    def _pause(self, extend_at: float, every: float) -> float:
        """Seconds until the next look."""
        if not self._worker.flights:
            return min(every, LOOK * 4)
        # Over a slow line the calls themselves may have taken the time there was to sleep.
        return max(min(LOOK, every, extend_at - time.monotonic()), SHORTEST)

    async def _extend(self, store: Store) -> None:
        length = milliseconds(self._worker.lease)
        # What was claimed or extended a moment ago is left for the next round: it has time, and a
        # busy worker's jobs end long before.
        old = self._loop.time() + length / 1000 * 5 / 6
        flights = [
            flight
            for flight in list(self._worker.flights.values())
            if flight.lease.expires < old and self._is_due(flight)
        ]
        for start in range(0, len(flights), BATCH):
            some = flights[start : start + BATCH]
            asked = self._loop.time()
            kept = await store.extend([flight.lease for flight in some], length)
            for flight, is_ours in zip(some, kept, strict=True):
                if is_ours:
                    flight.lease.expires = asked + length / 1000
                elif flight.lease in self._worker.flights:
                    self._loop.call_soon_threadsafe(self._worker.lost, flight)

    def _is_due(self, flight: Flight) -> bool:
        """False once a run has overstayed its time limit so long that it must be stuck."""
        if flight.task is None:
            return True
        longest = self._worker.runner.limit(flight.lease) + OVERSTAY
        return self._loop.time() < flight.since + longest

    async def _beat(self, store: Store) -> None:
        worker = self._worker
        if not self._started_at:
            self._started_at = await store.now()
        info = WorkerInfo(
            id=worker.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=worker.queues,
            concurrency=worker.concurrency,
            running=worker.running,
            started_at=self._started_at,
            note=self._note,
        )
        await store.beat(info, round(worker.pace.beat * 3_000) + 5_000)

    def _watch_loop(self, now: float) -> None:
        """Say, with the stack, when a worker blocks the event loop."""
        if not self._worker.flights:
            self._answered, self._is_asked = now, False
            return
        if not self._is_asked:
            self._is_asked, self._answered = True, now
            self._loop.call_soon_threadsafe(self._answer)
            return
        blocked = now - self._answered
        if blocked > BLOCKED and not self._is_blocked:
            self._is_blocked = True
            self._note = "event loop blocked"
            frame = sys._current_frames().get(self._loop_thread)  # pyright: ignore[reportPrivateUsage] - the documented way to another thread's stack
            stack = "".join(traceback.format_stack(frame, limit=12)) if frame else ""
            log.warning(
                "a worker blocks the event loop: await, or make it a plain def to run in a thread",
                extra={"seconds": round(blocked, 1), "stack": stack},
            )

    def _answer(self) -> None:
        if self._is_blocked:
            log.warning("the event loop answers again")
            self._is_blocked, self._note = False, ""
        self._is_asked = False
