"""Upkeep, safe to run many times over: rescue, prune, and the watch over neighbours."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from relevo.changes import OFTEN
from relevo.clock import milliseconds
from relevo.job import Failure, Job, Suspicion
from relevo.outcome import CRASHED, HOST_LOST, LOST
from relevo.presence import Departed
from relevo.store import BATCH, Loss

if TYPE_CHECKING:
    from relevo.worker import Worker

NEIGHBOURS_EVERY = 1.0
UNDECIDED_EVERY = 0.25
ALL_QUEUES = 20

EXCUSES = 3
"""So many deaths in a row of a job that ran alone are not counted because other processes of its
host died too, or were told to stop. A job that always takes them with it, as where one cgroup holds
them all and memory runs out, is found by the deaths that follow."""


def excuses(job: Job) -> int:
    """How many deaths since a run of the job last ended were not counted."""
    taken_back = takewhile(lambda run: run.outcome == "rescued", reversed(job.history))
    return sum(run.failure is not None and run.failure.type == HOST_LOST for run in taken_back)


def lost(gone: Departed, job: str, has_other_cause: bool) -> Loss:
    """What the death of a process means for a job that it was running."""
    if not gone.was_alone:
        # Of several that died together, one may have had a guilty job, or the host was at fault:
        # their jobs run beside others once more.
        several = "" if len(gone.running) == 1 else f", one of {len(gone.running)}"
        why = f"its worker process {gone.worker} died while it ran{several}"
        suspicion = Suspicion.LOST if has_other_cause else Suspicion.WATCHED
        # One that had been alone, and was not any more, has a crash counted.
        return Loss(id=job, failure=_failure(LOST, why), suspicion=suspicion, is_excused=True)
    if has_other_cause:
        why = f"its worker process {gone.worker} died, as others of its host did, or was stopped"
        failure = _failure(LOST if gone.was_stopping else HOST_LOST, why)
    else:
        why = f"its worker process {gone.worker} died while nothing ran beside it"
        failure = _failure(CRASHED, why)
    return Loss(
        id=job,
        failure=failure,
        suspicion=Suspicion.ALONE,
        is_excused=has_other_cause,
    )


def _uncounted(gone: Departed) -> Loss:
    """The crash that was counted for a job that was not running when its process died."""
    why = f"its worker process {gone.worker} died just before this run began, or after it had ended"
    return Loss(id=gone.counted, failure=_failure(LOST, why), is_excused=True)


def _failure(kind: str, message: str) -> Failure:
    return Failure(type=kind, message=message, fingerprint=kind)


class Keeper:
    """One a process; any number of them agree."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._store = worker.store
        self._presence = worker.presence
        self._told: set[str] = set()  # of whom the store knows that they are dead

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._rescue(), name="relevo-rescue")
            group.create_task(self._prune(), name="relevo-prune")
            group.create_task(self._neighbours(), name="relevo-neighbours")
            group.create_task(self._breakers(), name="relevo-breakers")
            group.create_task(self._recurring(), name="relevo-recurring")
            group.create_task(self._parked(), name="relevo-parked")
            group.create_task(self._changes(), name="relevo-changes")
            group.create_task(self._restored(), name="relevo-restored")
            group.create_task(self._counters(), name="relevo-counters")

    async def _rescue(self) -> None:
        """Sweep when the next lease lapses, and once a lease if none is known to.

        A job claimed after a sweep lapses no sooner than a lease later, so an orphan runs again
        soon after its lease has lapsed, and an idle fleet is asked little.
        """
        length = self._worker.lease.total_seconds()
        round = 0
        while True:
            # Its own queues each time; those of workers that may all be gone, now and then.
            try:
                # First: of a process that died on this host, more is known than of a lapsed lease.
                if not await self._bury_those_there_are():
                    await asyncio.sleep(UNDECIDED_EVERY)
                    continue
                lapse = await self._sweep(
                    queues=self._worker.queues if round % ALL_QUEUES else None
                )
            except Exception as error:  # noqa: BLE001 - upkeep outlives whatever it meets
                self._worker.telemetry.trouble("cannot rescue jobs; trying again", error)
                lapse = 1_000
            round += 1
            idle = self._worker.pace.sweep
            wait = idle if lapse is None else min(length, max(lapse / 1000, length / 10))
            await asyncio.sleep(wait * random.uniform(1, 1.1))

    async def _sweep(
        self,
        gone: str | None = None,
        losses: Sequence[Loss] = (),
        queues: Sequence[str] | None = None,
    ) -> int | None:
        """Take back what can be; answers when to look again, as the store does."""
        while True:
            taken = await self._store.rescue(BATCH, worker=gone, losses=losses, queues=queues)
            for job in taken:
                self._worker.telemetry.rescued(job)
            if taken and gone is None:
                # Not known to be dead: if it is only slow, its next beat shows it alive.
                await self._store.silence(sorted({job.worker for job in taken}))
            if len(taken) < BATCH:
                return taken.next_lapse

    async def _neighbours(self) -> None:
        """Take back at once the jobs of a process of this host that is gone."""
        while True:
            await asyncio.sleep(NEIGHBOURS_EVERY)
            self._worker.give_back_hoard()
            await self._bury_those_there_are()

    async def _bury_those_there_are(self) -> bool:
        """Call _bury_neighbours() and log its errors; jobs that it misses come back by lapse."""
        try:
            return await self._bury_neighbours()
        except Exception as error:  # noqa: BLE001 - such as no file handle left
            self._worker.telemetry.trouble("cannot take over from neighbours", error)
            return True

    async def _bury_neighbours(self) -> bool:
        """Take back the jobs of dead neighbours; False while it is not known what a death means."""
        is_decided = True
        for gone in self._presence.departed():
            if gone.worker not in self._told:
                await self._store.silence([gone.worker], is_gone=True)
                self._told.add(gone.worker)
            if gone.was_alone and not self._presence.is_decided(gone):
                is_decided = False
                continue
            has_other_cause = await self._has_other_cause(gone)
            losses = [lost(gone, job, has_other_cause) for job in gone.running]
            if gone.counted and gone.counted not in gone.running:
                losses.append(_uncounted(gone))
            await self._sweep(gone.worker, losses)
            self._presence.bury(gone.worker)
            self._told.discard(gone.worker)
        return is_decided

    async def _has_other_cause(self, gone: Departed) -> bool:
        """Whether a death says nothing about what its process was running."""
        if not self._presence.has_other_cause(gone):
            return False
        if gone.was_stopping or not gone.was_alone or not gone.running:
            return True
        [job] = await self._store.find(gone.running[:1])
        return job is None or excuses(job) < EXCUSES

    async def _breakers(self) -> None:
        """Tend the troubled breakers every second, and learn of others' now and then."""
        breakers = self._worker.engine.breakers
        learn_every = max(1, int(self._worker.pace.learn))
        round = 0
        while True:
            try:
                if round % learn_every == 0:
                    await breakers.learn()
                await breakers.tend()
            except Exception as error:  # noqa: BLE001 - as above
                self._worker.telemetry.trouble("cannot tend breakers; trying again", error)
            round += 1
            await asyncio.sleep(1)

    async def _recurring(self) -> None:
        """See once a minute that every poller and schedule has its job."""
        while True:
            try:
                await self._worker.engine.recurring.ensure()
            except Exception as error:  # noqa: BLE001 - a poller's own list of keys may raise anything
                self._worker.telemetry.trouble("cannot set up pollers; trying again", error)
            await asyncio.sleep(self._worker.pace.ensure * random.uniform(0.8, 1.2))

    async def _restored(self) -> None:
        """See whether the store was restored, and once a minute whether that is over."""
        restored = self._worker.engine.restored
        while True:
            try:
                await restored.learn_again()
            except Exception as error:  # noqa: BLE001 - as above
                self._worker.telemetry.trouble("cannot see if the store was restored", error)
            await asyncio.sleep(self._worker.pace.ensure * random.uniform(0.8, 1.2))

    async def _counters(self) -> None:
        """Tell what has happened in this process, which serves no `/metrics`, once a heartbeat."""
        while True:
            await asyncio.sleep(self._worker.pace.beat * random.uniform(0.8, 1.2))
            try:
                await self._worker.engine.counters.publish()
            except Exception as error:  # noqa: BLE001 - as above
                self._worker.telemetry.trouble("cannot write the counters; trying again", error)

    async def _changes(self) -> None:
        """Look for what people have changed: often while there are jobs or changes, else seldom."""
        worker, changes = self._worker, self._worker.engine.changes
        finished = looked_at = 0.0
        while True:
            await asyncio.sleep(min(1.0, worker.pace.learn / OFTEN))
            now = worker.now
            is_busy = bool(worker.flights) or worker.finished != finished or bool(changes.known)
            every = worker.pace.learn / OFTEN if is_busy else worker.pace.learn
            try:
                if now - looked_at >= every:
                    finished, looked_at = worker.finished, now
                    await worker.learn()
                elif changes.drop_ended():
                    worker.apply_changes()
            except Exception as error:  # noqa: BLE001 - as above
                worker.telemetry.trouble("cannot see what people have changed", error)

    async def _parked(self) -> None:
        """Let go of what other code has parked since this worker started.

        Older code parks while a deploy replaces it: the longer nothing is found, the longer the
        next look can wait.
        """
        pace = self._worker.pace
        wait = pace.ensure
        while True:
            await asyncio.sleep(wait * random.uniform(0.8, 1.2))
            wait = min(2 * wait, max(pace.parked, pace.ensure))
            try:
                if await self._worker.engine.release_known():
                    wait = pace.ensure
            except Exception as error:  # noqa: BLE001 - as above
                self._worker.telemetry.trouble("parked jobs stay parked; trying again", error)

    async def _prune(self) -> None:
        dead_keep = milliseconds(self._worker.engine.keep_dead)
        removed = 0
        while True:
            # In small bites, so that the work beside it does not notice.
            rest = 0.05 if removed >= BATCH else self._worker.pace.prune * random.uniform(0.8, 1.2)
            await asyncio.sleep(rest)
            try:
                removed = await self._store.prune(dead_keep=dead_keep, limit=BATCH)
            except Exception as error:  # noqa: BLE001 - as above
                removed = 0
                self._worker.telemetry.trouble("cannot prune; trying again", error)
