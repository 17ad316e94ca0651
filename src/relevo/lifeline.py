"""A thread that keeps leases alive and shows that the process is, even when its loop is blocked."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import time
import traceback
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

from relevo.children import child_ids, kill_children
from relevo.clock import milliseconds
from relevo.errors import StoreError
from relevo.isolation import LONGER
from relevo.job import Failure, Suspicion
from relevo.outcome import BLOCKED as BLOCKED_LOOP
from relevo.outcome import LOST
from relevo.plain_runs import resident
from relevo.runner import released
from relevo.store import BATCH, Loss, Store, WorkerInfo, WorkerState
from relevo.supervisor import Watchdog
from relevo.telemetry import log
from relevo.version import version

if TYPE_CHECKING:
    from relevo.worker import Flight, Worker

BLOCKED = 1.0
BUSY_BEAT = 10.0
"""Seconds between two signs of life while jobs run: they tell how long these take."""

LOOK = 0.25  # seconds; a blocked loop is told of within two
SHORTEST = 0.02
GRACE = 5.0
"""Seconds past its time limit for which a job may block the event loop before its process ends."""

EXIT_BLOCKED = 75
"""The exit code of a process that ended because a job blocked its event loop."""

EXIT_ABANDONED = 76
"""The exit code of a process that ended because a plain function in it did not."""

OVERDUE_SHOWN = 100


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
        self._is_blocked = self._was_blocked = False
        self._overdue: list[str] = []
        self._lag = 0.0  # the longest that the event loop has answered nobody, since the last beat
        self._used = (time.monotonic(), time.process_time())  # at the last beat
        self._is_stopping = False
        self._started_at = 0
        self._version = version()
        self._watchdog = Watchdog()
        self._stale: list[Flight] = []  # taken back from the worker, not yet released

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        asyncio.run(self._live())

    async def _live(self) -> None:
        store = self._worker.store.spawn()
        every = self._worker.lease.total_seconds() / 3
        beat_at = extend_at = beaten_at = 0.0
        is_open = False
        while not self._stopped.is_set():
            now = time.monotonic()
            self._watchdog.beat()
            if self._watch_loop(now):
                beat_at = 0.0  # whoever looks at the workers sees it at once
            if self._watch_threads():
                beat_at = 0.0
            try:
                if not is_open:
                    await store.open()
                    # A first call may need more trips than a lease has time for over a slow line.
                    await store.extend([], 0)
                    is_open = True
                if self._is_blocked and self._worker.on_blocked != "report":
                    await self._end_process(store, now)
                if self._worker.flights and now >= extend_at:
                    extend_at = now + every
                    if await self._extend(store):
                        beat_at = 0.0  # its jobs may have been taken back, but it is there
                await self._release_stale(store)
                every_beat = self._worker.pace.beat
                if self._worker.flights:  # a budget stretches this, too
                    every_beat = min(every_beat, max(BUSY_BEAT, every_beat / 3))
                if now >= beat_at or now >= beaten_at + every_beat:
                    beat_at, beaten_at = now + self._worker.pace.beat, now
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
            return min(every, LOOK)
        # Over a slow line the calls themselves may have taken the time there was to sleep.
        return max(min(LOOK, every, extend_at - time.monotonic()), SHORTEST)

    async def _extend(self, store: Store) -> bool:
        """Extend what is due; True if leases were lost, or have lapsed because a run overstays."""
        # What was claimed or extended a moment ago is left for the next round: it has time, and a
        # busy worker's jobs end long before.
        length = self._worker.lease.total_seconds()
        now = self._loop.time()
        old = now + length * 5 / 6
        suspect = self._worker.isolation.flight
        older = [each for each in list(self._worker.flights.values()) if each.lease.expires < old]
        is_lost = any(flight.since and flight.lease.expires < now for flight in older)
        flights = [each for each in older if each is not suspect and self._is_due(each)]
        for start in range(0, len(flights), BATCH):
            some = flights[start : start + BATCH]
            is_lost = await self._extend_by(store, some, self._worker.lease) or is_lost
        # Also one that waits for what runs: it is given back only when it cannot run.
        if suspect is not None and (not suspect.since or self._is_due(suspect)):
            longer = self._worker.lease + LONGER
            is_lost = await self._extend_by(store, [suspect], longer) or is_lost
        return is_lost

    async def _extend_by(self, store: Store, flights: list[Flight], length: timedelta) -> bool:
        asked = self._loop.time()
        kept = await store.extend([flight.lease for flight in flights], milliseconds(length))
        for flight, is_ours in zip(flights, kept, strict=True):
            if is_ours:
                flight.lease.expires = asked + length.total_seconds()
            elif flight.lease in self._worker.flights:
                self._loop.call_soon_threadsafe(self._worker.lost, flight)
        return not all(kept)

    def _is_due(self, flight: Flight) -> bool:
        """Whether the lease of a job is to be extended.

        Not that of one that has not begun: it is given back. Nor that of a run that has overstayed
        its time limit so long that it must be stuck.
        """
        if flight.task is None:
            return bool(flight.since)  # it has ended, and its ending is not settled yet
        # A thread cannot be stopped: its job would run beside it.
        return flight.lease in self._worker.runner.plain or not self._worker.is_stuck(flight)

    async def _release_stale(self, store: Store) -> None:
        """Give back what has not begun for half a lease, although the event loop may be blocked."""
        self._stale += self._worker.take_back_stale()
        if self._stale:
            await store.settle([released(flight.lease) for flight in self._stale])
            for flight in self._stale:
                self._worker.flights.pop(flight.lease, None)
            self._stale.clear()

    async def _beat(self, store: Store) -> None:
        worker = self._worker
        if not self._started_at:
            self._started_at = await store.now()
        children = child_ids()
        flights = [each for each in list(worker.flights.values()) if each.task is not None]
        now = self._loop.time()
        running = [(each.lease.queue, each.lease.kind, now - each.since) for each in flights]
        info = WorkerInfo(
            id=worker.id,
            state=WorkerState.BLOCKED if self._is_blocked else WorkerState.OK,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=worker.queues,
            concurrency=worker.concurrency,
            started_at=self._started_at,
            version=self._version,
            note=self._note(),
            overdue=self._overdue[:OVERDUE_SHOWN],
            threads=threading.active_count(),
            children=len(children),
            memory=sum(map(resident, ["self", *children])),
            cpu=self._cpu(),
            lag=round(self._lag * 1_000),
            slots=worker.bulkheads.slots,
            busy=dict(Counter(queue for queue, _, _ in running)),
            timings=worker.engine.durations.tell(running),
        )
        self._lag = 0.0
        await store.beat(info, round(worker.pace.beat * 3_000) + 5_000)

    def _cpu(self) -> float:
        """How many cores this process has used since the last beat."""
        (then, used), now = self._used, (time.monotonic(), time.process_time())
        self._used = now
        return round((now[1] - used) / max(now[0] - then, 0.001), 3)

    def _watch_loop(self, now: float) -> bool:
        """Say, with the stack, when a worker blocks the event loop; True when that has changed."""
        was_blocked, self._was_blocked = self._was_blocked, self._is_blocked
        if not self._worker.flights:
            self._answered, self._is_asked = now, False
            return was_blocked != self._is_blocked
        if not self._is_asked:
            self._is_asked, self._answered = True, now
            self._loop.call_soon_threadsafe(self._answer)
            return was_blocked != self._is_blocked
        blocked = now - self._answered
        self._lag = max(self._lag, blocked)
        if blocked > BLOCKED and not self._is_blocked:
            self._is_blocked = self._was_blocked = True
            log.warning(
                "a worker blocks the event loop: await, or make it a plain def to run in a thread",
                extra={"seconds": round(blocked, 1), "stack": self._stack_of_loop()},
            )
            return True
        return was_blocked != self._is_blocked

    def _note(self) -> str:
        if self._is_blocked:
            return "event loop blocked"
        if self._is_stopping and (waits_for := self._worker.waits_for):
            more = f" and {len(waits_for) - 3} more" if len(waits_for) > 3 else ""
            return f"stopping: waits for {', '.join(waits_for[:3])}{more}"
        return ""

    def _watch_threads(self) -> bool:
        """Say which plain functions run past their time limits; True when that has changed."""
        now, worker = self._loop.time(), self._worker
        runs = list(worker.runner.plain.values())
        overdue = [run for run in runs if run.is_overdue(now)]
        for run in overdue:
            if not run.is_told:
                run.is_told = True
                log.warning(
                    "a plain function runs past its time limit: it keeps its job, and what it "
                    "returns counts",
                    extra={
                        "job": run.lease.id,
                        "kind": run.lease.kind,
                        "seconds": round(now - run.began, 1),
                        "stack": run.stack(),
                    },
                )
            if run.is_abandoned(now) and worker.on_blocked != "report":
                self._loop.call_soon_threadsafe(worker.retire)
        shown = [run.lease.id for run in overdue], worker.is_stopping
        is_changed = shown != (self._overdue, self._is_stopping)
        self._overdue, self._is_stopping = shown
        return is_changed

    def _stack_of_loop(self) -> str:
        frame = sys._current_frames().get(self._loop_thread)  # pyright: ignore[reportPrivateUsage] - the documented way to another thread's stack
        return "".join(traceback.format_stack(frame, limit=12)) if frame else ""

    def _answer(self) -> None:
        if self._is_blocked:
            log.warning("the event loop answers again")
            self._is_blocked = False
        self._lag = max(self._lag, time.monotonic() - self._answered)
        self._is_asked = False

    async def _end_process(self, store: Store, now: float) -> None:
        """End a process whose event loop stays blocked past the time limit of the job that does it.

        Its jobs are taken back first. The one that blocks the loop runs alone next time; if it is
        not known which one that is, each that was running does.
        """
        flights = list(self._worker.flights.values())
        running = [flight for flight in flights if flight.task is not None]
        task = asyncio.current_task(self._loop)
        suspects = [flight for flight in running if flight.task is task] or running
        if not suspects:
            return
        longest = max(self._worker.runner.limit(flight.lease) for flight in suspects)
        blocked = now - self._answered
        if blocked < longest + GRACE:
            return
        culprits = [f"{flight.lease.kind} {flight.lease.id}" for flight in suspects]
        log.critical(
            "the event loop has been blocked past its job's time limit: this process ends",
            extra={
                "jobs": culprits[:10],
                "seconds": round(blocked, 1),
                "stack": self._stack_of_loop(),
            },
        )
        why = f"it blocked its worker's event loop for {blocked:.0f} s"
        blamed = Failure(type=BLOCKED_LOOP, message=why, fingerprint=BLOCKED_LOOP)
        why = "another job blocked its worker's event loop, and the process was ended"
        spared = Failure(type=LOST, message=why, fingerprint=LOST)
        losses = [
            Loss(id=flight.lease.id, failure=blamed, suspicion=Suspicion.WATCHED)
            if flight in suspects
            else Loss(id=flight.lease.id, failure=spared)
            for flight in running
        ]
        try:
            async with asyncio.timeout(GRACE):
                await self._hand_over(store, losses)
        except (StoreError, OSError) as error:
            if blocked < longest + 2 * GRACE:
                raise
            # The job that blocks may hold a lock there. In this process's file the others read what
            # it was running.
            self._worker.telemetry.trouble("cannot give back the jobs of this process", error)
        else:
            self._worker.presence.leave()
        end_process(self._worker.on_blocked, EXIT_BLOCKED)

    async def _hand_over(self, store: Store, losses: list[Loss]) -> None:
        """Settle what has ended, and take back the rest, before the process ends."""
        endings = self._worker.unsettled()
        for start in range(0, len(endings), BATCH):
            await store.settle(endings[start : start + BATCH])
        while len(await store.rescue(BATCH, worker=self._worker.id, losses=losses)) >= BATCH:
            pass
        await store.leave(self._worker.id)


def end_process(how: str, code: int) -> None:
    """Begin anew with the command line that the process was started by, or end at once."""
    kill_children()
    if how == "restart":
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - ourselves
    os._exit(code)
