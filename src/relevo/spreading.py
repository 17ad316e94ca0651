"""Spreader: gives each published event to its subscribers, one job each.

The list of subscribers is read after an event has been claimed, and so after it was committed: a
subscriber that had registered before that commit is in it, whatever the publisher knew. A job has
an id made of the event and the subscriber, so that giving an event again is harmless: when the
worker dies in between, when two workers do it, and when a new subscriber asks for what was
published before it existed.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from relevo.app import Binding
from relevo.backoff import exponential
from relevo.clock import milliseconds
from relevo.errors import StoreError, StoreUnavailable
from relevo.events import Subscriber, caught_up, job_id, with_lost, with_subscriber
from relevo.follow_ups import digest, with_origin
from relevo.job import Lease, NewJob, Verdict
from relevo.job_meta import Meta, decode_meta, traced
from relevo.message import EVENT_KEEP, EVENTS
from relevo.outcome import Postponed, describe, reason
from relevo.runner import DONE, ending, released
from relevo.store import BATCH, KNOWN, Filter, Want
from relevo.telemetry import log

if TYPE_CHECKING:
    from relevo.engine import Relevo
    from relevo.worker import Flight, Worker

WANT = Want(queue=EVENTS)

FULL_FOR = 1.0
"""After so many seconds without a free slot a worker claims events all the same."""

AGAIN = timedelta(seconds=1)
"""After so long an event is spread again that could not be given to all."""

SHUT = timedelta(seconds=30)
"""After so long it is tried again where the queue of a subscriber is draining."""

Entries: TypeAlias = list[tuple[str, Subscriber]]
"""Subscribers, each with the event that it is a subscriber of."""

Waits: TypeAlias = dict[str, Postponed]
"""The events, by their ids, that did not reach all of their subscribers."""

PAGE = 200

_PATIENCE = exponential("1s", cap="30s", jitter=0.5)


class Fact(NamedTuple):
    """A published event, as it is to be given to a subscriber."""

    id: str
    kind: str
    payload: bytes
    thread: str
    meta: Meta
    keep: int


class Spreader:
    """The part of a worker that registers its listeners and gives events to all subscribers."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._engine = worker.engine
        self._taken: deque[Flight] = deque()
        self._in_hand: list[Flight] = []
        self._has_some = asyncio.Event()
        self._registered = asyncio.Event()
        self._doubt = asyncio.Event()  # whether the store still has the list
        self._entries: Entries = []
        self._behind: Entries = []
        self._has_past = asyncio.Event()

    @property
    def is_registered(self) -> bool:
        """Whether the listeners that this worker serves are subscribers; it claims nothing before,
        or it would spread events without them."""
        return self._registered.is_set()

    async def register(self) -> None:
        """Register the listeners that this worker serves."""
        self._entries = await register(self._engine, self._worker.queues)
        self._registered.set()
        self._catch_up_with(self._entries)

    def doubt(self) -> None:
        """Look soon whether the listeners are still registered: the store was away, and what is
        back may be a copy that lacks the last moments."""
        self._doubt.set()

    def take(self, flight: Flight) -> None:
        """Have an event spread that this worker has claimed."""
        flight.since = self._worker.now  # its lease is kept until its ending is settled
        self._taken.append(flight)
        self._has_some.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._spread_taken(), name="relevo-spreader")
            group.create_task(self._claim_while_full(), name="relevo-spreader-claims")
            group.create_task(self._catch_up(), name="relevo-spreader-past")
            group.create_task(self._stay_registered(), name="relevo-spreader-list")

    def give_back(self) -> None:
        """Return the events that have not been spread."""
        left = [*self._in_hand, *self._taken]
        self._taken.clear()
        self._in_hand = []
        self._worker.end(released(flight.lease) for flight in left)

    async def _spread_taken(self) -> None:
        while True:
            if not self._taken:
                self._has_some.clear()
                await self._has_some.wait()
            many = min(BATCH, len(self._taken))
            self._in_hand = [self._taken.popleft() for _ in range(many)]
            leases = [flight.lease for flight in self._in_hand]
            try:
                waits = await self._spread([_fact(lease) for lease in leases])
            except Exception as error:  # noqa: BLE001 - one event must not end the worker
                self._worker.telemetry.trouble("cannot spread events together", error)
                waits = await self._spread_alone(leases)
            endings = [
                ending(flight.lease, waits.get(flight.lease.id, DONE)) for flight in self._in_hand
            ]
            self._worker.finished += len(endings)
            self._in_hand = []
            self._worker.end(endings)

    async def _spread_alone(self, leases: Sequence[Lease]) -> Waits:
        """Give events one by one: those that cannot be given hold up no others."""
        waits: Waits = {}
        for lease in leases:
            try:
                waits |= await self._spread([_fact(lease)])
            except Exception as error:  # noqa: BLE001 - as above
                self._worker.telemetry.trouble(f"cannot spread event {lease.id}", error)
                waits[lease.id] = Postponed(SHUT, describe(error))
        return waits

    async def _spread(self, facts: Sequence[Fact]) -> Waits:
        """Give events to their subscribers."""
        try:
            lists = await self._engine.subscribers.read(sorted({fact.kind for fact in facts}))
        except (StoreUnavailable, OSError) as error:
            self._worker.telemetry.trouble("cannot read the subscribers; trying again", error)
            return {fact.id: Postponed(AGAIN, describe(error)) for fact in facts}
        jobs = [
            job_for(each, fact, self._engine)
            for fact in facts
            for each in lists[fact.kind]
            if each.takes(fact.payload)
        ]
        return await self._give(jobs)

    async def _give(self, jobs: Sequence[NewJob]) -> Waits:
        """Store jobs of subscribers."""
        try:
            return await self._insert(jobs)
        except (StoreError, OSError) as error:
            self._worker.telemetry.trouble("cannot give events to all subscribers", error)
        # A part of the store may be away: the subscribers whose queues are elsewhere get theirs.
        queues: dict[str, list[NewJob]] = {}
        for job in jobs:
            queues.setdefault(job.queue, []).append(job)
        waits: Waits = {}
        for some in queues.values():
            try:
                waits |= await self._insert(some)
            except (StoreError, OSError) as error:
                waits |= {job.cause or "": Postponed(AGAIN, describe(error)) for job in some}
        return waits

    async def _insert(self, jobs: Sequence[NewJob]) -> Waits:
        waits: Waits = {}
        for start in range(0, len(jobs), BATCH):
            some = jobs[start : start + BATCH]
            for job, receipt in zip(some, await self._engine.store.insert(some), strict=True):
                if receipt.verdict is Verdict.CLOSED:
                    shut = reason("QueueClosed", f"{job.queue}, of a subscriber, is draining")
                    waits[job.cause or ""] = Postponed(SHUT, shut)
                if receipt.differs:
                    self._engine.joining.noticed(job, receipt)
        return waits

    async def _claim_while_full(self) -> None:
        """Claim events also while no slot is free: they are given on, and need none."""
        worker = self._worker
        while True:
            await asyncio.sleep(FULL_FOR)
            while self.is_registered and worker.is_full_for(FULL_FOR):
                try:
                    await worker.claim([WANT], BATCH)
                    await worker.store.wait([EVENTS], worker.pace.claim)
                except (StoreError, OSError) as error:
                    worker.telemetry.trouble("cannot claim events; trying again", error)
                    await asyncio.sleep(FULL_FOR)

    async def _stay_registered(self) -> None:
        """Put the listeners that this worker serves back on the list where the store has lost them,
        and give them what was published meanwhile."""
        await self._registered.wait()
        while self._entries:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._worker.pace.parked * random.uniform(0.8, 1.2)):
                    await self._doubt.wait()
            self._doubt.clear()
            try:
                lost = await restore_lost(self._engine, self._entries)
            except (StoreError, OSError) as error:
                trouble = "cannot see whether listeners are still registered; trying again"
                self._worker.telemetry.trouble(trouble, error)
                await asyncio.sleep(AGAIN.total_seconds())
                self.doubt()
                continue
            for event, each in lost:
                log.warning(
                    "the store had lost a subscriber, which is registered again",
                    extra={"event": event, "subscriber": each.name},
                )
            self._catch_up_with(lost)

    # what was published before

    def _catch_up_with(self, entries: Entries) -> None:
        self._behind += [entry for entry in entries if entry[1].behind is not None]
        if self._behind:
            self._has_past.set()

    async def _catch_up(self) -> None:
        """Give subscribers what was published before they registered, or while they were lost."""
        failures = 0
        while True:
            if not self._behind:
                self._has_past.clear()
                await self._has_past.wait()
            event, subscriber = self._behind[0]
            try:
                await self._give_past(event, subscriber)
                await self._engine.subscribers.change(event, caught_up(subscriber.name))
            except Exception as error:  # noqa: BLE001 - as above
                failures += 1
                self._worker.telemetry.trouble(f"{subscriber.name} lacks events", error)
                await asyncio.sleep(_PATIENCE.after(failures).total_seconds())
                continue
            failures = 0
            self._behind.pop(0)

    async def _give_past(self, event: str, subscriber: Subscriber) -> None:
        """Give what is kept of an event, in the order in which it was accepted."""
        store, where = self._engine.store, Filter(queue=EVENTS, kind=event)
        since = subscriber.behind or 0
        # Pages come newest first, and their places are noted on the way back in time: to the end,
        # since the event of a job that had waited for days lies among those of its id's moment.
        places: list[str | None] = [None]
        while True:
            page = await store.page(where, cursor=places[-1], limit=PAGE)
            if page.cursor is None:
                break
            places.append(page.cursor)
        for place in reversed(places):
            page = await store.page(where, cursor=place, limit=PAGE)
            jobs = [
                job_for(subscriber, fact, self._engine)
                for fact in (
                    Fact(
                        job.id,
                        job.kind,
                        job.payload,
                        job.thread or job.id,
                        _meta(job.meta),
                        EVENT_KEEP,
                    )
                    for job in reversed(page.jobs)
                    if job.inserted_at >= since
                )
                if subscriber.takes(fact.payload)
            ]
            while await self._insert(jobs):  # noqa: ASYNC110 - a person opens the queue
                await asyncio.sleep(SHUT.total_seconds())


async def register(engine: Relevo, queues: Iterable[str]) -> Entries:
    """Register the listeners of these queues, and answer with them as the store has them now."""
    served = frozenset(queues)
    mine = [each for each in engine.listeners if each.spec.queue in served]
    if not mine:
        return []
    now = await engine.store.now()
    known = await engine.subscribers.read(sorted({each.spec.kind for each in mine}))
    entries: Entries = []
    for binding in mine:
        event, new = binding.spec.kind, subscriber_of(binding, now)
        change = with_subscriber(new)
        if change(known[event]) != known[event]:
            known[event] = await engine.subscribers.change(event, change)
        entries += [(event, each) for each in known[event] if each.name == new.name]
    return entries


async def restore_lost(engine: Relevo, entries: Entries) -> Entries:
    """Put those of these subscribers back that are not on their lists, and answer with them.

    Those that are there are left as they are: newer code may have changed them.
    """
    known = await engine.subscribers.read(sorted({event for event, _ in entries}))
    lost: Entries = []
    for event, each in entries:
        if any(other.name == each.name for other in known[event]):
            continue
        # Since then it was to get everything. What it has got already is not given twice.
        since = each.registered_at if each.behind is None else each.behind
        again = msgspec.structs.replace(each, behind=since)
        known[event] = await engine.subscribers.change(event, with_lost(again))
        lost.append((event, again))
    return lost


def _fact(lease: Lease) -> Fact:
    """A published event that was claimed."""
    thread = lease.thread or lease.id
    payload = bytes(lease.payload)
    return Fact(lease.id, lease.kind, payload, thread, _meta(lease.meta), lease.keep)


def _meta(data: bytes | None) -> Meta:
    return Meta() if data is None else decode_meta(data)


def subscriber_of(binding: Binding, now: int) -> Subscriber:
    """A listener as the store is to know it."""
    spec, mine = binding.spec, binding.subscription
    assert mine is not None  # noqa: S101 - every listener has one
    return Subscriber(
        name=mine.name,
        queue=spec.queue,
        attempts=spec.attempts,
        keep=spec.keep,
        where=mine.where,
        registered_at=now,
        behind=None if mine.since is None else now - milliseconds(mine.since),
    )


def job_for(subscriber: Subscriber, fact: Fact, engine: Relevo) -> NewJob:
    """The job by which a subscriber gets an event."""
    id, meta = job_id(fact.id, subscriber.name), fact.meta
    origin = job_id(meta.origin or fact.id, subscriber.name)
    return NewJob(
        id=id,
        queue=subscriber.queue,
        kind=fact.kind,
        payload=fact.payload,
        attempts=subscriber.attempts,
        key=meta.key,
        unique=meta.unique or "unfinished",
        digest=None if meta.key is None else digest(fact.payload, engine.seal),
        remember=max(fact.keep, KNOWN),
        thread=fact.thread,
        cause=fact.id,
        keep=max(subscriber.keep, KNOWN),
        meta=with_origin(traced(meta.traceparent), id, origin),
    )
