"""F50: a store and a simple model of jobs, told the same story, agree after every step.

Steps of time are whole hours and lengths end at half past, so that the moments that pass while a
test runs never decide anything. Exact milliseconds are read from the store once they were found
to lie where they must.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
)

from relevo.ids import new_id
from relevo.job import (
    ENDED,
    LIVE,
    MOVES,
    After,
    Ending,
    Failure,
    Lease,
    NewJob,
    Policy,
    Receipt,
    State,
    Suspicion,
    Verdict,
    suspected,
)
from relevo.store import By, Edit, Filter, Loss, QueueMode, Rescued, Want
from tests.conformance.stories import Steps, StoreStory, steps_of, tell

HOUR = 3_600_000
HALF = HOUR // 2
QUEUES = ["app:module:one", "app:module:two"]
WORKERS = ["w1", "w2"]
PARKS = ["p1", "p2"]
ANN = By("ann")
BOOM = Failure(type="Boom", message="it went boom", fingerprint="boom")
OUTCOMES = {
    State.DONE: "done",
    State.DEAD: "dead",
    State.CANCELLED: "cancelled",
    State.PARKED: "parked",
    State.HELD: "held",
}
RETRYABLE = {State.DEAD, State.HELD, State.PARKED, State.CANCELLED}

delays = st.sampled_from([0, 0, 0, 0, HOUR - HALF, 2 * HOUR - HALF])
lengths = st.integers(1, 6).map(lambda n: n * HOUR - HALF)
queues = st.sampled_from(QUEUES)
numbers = st.integers(0, 1_000)


@dataclass
class Row:
    """What the model knows of a job. READY stands for scheduled too: the clock tells them apart."""

    id: str
    queue: str
    payload: bytes
    priority: int
    attempts: int
    keep: int
    key: str | None
    seq: int
    after: dict[str, Policy] = field(default_factory=dict[str, Policy])
    counted: set[str] = field(default_factory=set[str])
    state: State = State.READY
    run_at: int = 0
    attempt: int = 0
    suspicion: int = 0
    crashes: int = 0
    lease: Lease | None = None
    lease_until: int = 0
    was_extended: bool = False
    worker: str = ""
    park: str | None = None
    ended_at: int = 0
    failure: str | None = None
    outcomes: list[str] = field(default_factory=list[str])
    was_reopened: bool = False
    moved: bool = False  # no longer where its insertion put it among equals


@dataclass(frozen=True)
class Spec:
    """A job to insert, before it has an id."""

    queue: str
    priority: int
    attempts: int
    delay: int
    keep: int
    key: str | None


specs = st.builds(
    Spec,
    queue=queues,
    priority=st.integers(0, 2),
    attempts=st.integers(1, 3),
    delay=delays,
    keep=st.sampled_from([0, HALF, 30 * HOUR]),
    key=st.sampled_from([None, None, "once-a", "once-b", "ever-a", "ever-b"]),
)
marks = {"suspicion": st.integers(0, 3), "crashes": st.integers(0, 2)}
endings = st.builds(
    lambda state, delay, spend, park, **marks: {
        "state": state,
        "delay": delay,
        "spend": spend or state in ENDED,
        "park": park if state is State.PARKED else None,
        "failure": BOOM if state is State.DEAD else None,
        **marks,
    },
    st.sampled_from([*OUTCOMES, State.SCHEDULED, State.SCHEDULED]),
    delays,
    st.booleans(),
    st.sampled_from(PARKS),
    **marks,
)
releases = st.fixed_dictionaries(
    {
        "state": st.just(State.SCHEDULED),
        "spend": st.just(False),
        "released": st.just(True),
        **marks,
    }
)
losses = st.lists(st.tuples(numbers, st.sampled_from(Suspicion), st.booleans()), max_size=3)
STEPS: Steps = {
    "insert": (5, {"batch": st.lists(specs, min_size=1, max_size=3)}),
    "insert_parent": (
        4,
        {
            "queue": queues,
            "live": st.lists(numbers, max_size=2),
            "ended": st.lists(numbers, max_size=1),
            "policy": st.sampled_from(["fail", "continue"]),
        },
    ),
    "insert_again": (1, {"number": numbers}),
    "claim": (
        8,
        {
            "wanted": st.sampled_from([QUEUES, QUEUES[:1], QUEUES[1:]]),
            "count": st.sampled_from([9, 3, 2, 1, 0, 9]),
            "worker": st.sampled_from(WORKERS),
            "length": lengths,
        },
    ),
    "extend": (2, {"number": numbers, "length": lengths}),
    "settle": (
        7,
        {
            "told": st.lists(
                st.tuples(numbers, st.one_of(endings, endings, releases)), min_size=1, max_size=3
            )
        },
    ),
    "isolate": (2, {"several": st.lists(numbers, min_size=1, max_size=2, unique=True)}),
    "advance": (3, {"hours": st.integers(1, 4)}),
    "rescue": (1, {}),
    "rescue_worker": (2, {"worker": st.sampled_from(WORKERS), "told": losses}),
    "unpark": (2, {"park": st.sampled_from(PARKS)}),
    "prune": (1, {"dead_keep": lengths}),
    "cancel": (2, {"number": numbers}),
    "discard": (1, {"number": numbers}),
    "retry": (3, {"number": numbers}),
    "edit": (1, {"number": numbers, "priority": st.integers(0, 2), "attempts": st.integers(1, 4)}),
    "set_mode": (
        1,
        {"queue": queues, "mode": st.sampled_from([*QueueMode, QueueMode.OPEN, QueueMode.OPEN])},
    ),
}
steps = steps_of(STEPS)


class Story(StoreStory):
    """Random steps, told to the store and to the model."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, Row] = {}
        self.names: list[str] = []
        self.leases: list[Lease] = []
        self.removed: set[str] = set()
        self.forever: dict[tuple[str, str], tuple[str, str]] = {}
        self.modes = dict.fromkeys(QUEUES, QueueMode.OPEN)
        self.low = self.call(self.store.now)
        self.due: list[tuple[Row, int]] = []
        self.ends: list[Row] = []
        self.old: list[Row] = []
        self.seen: dict[str, State] = {}
        self.count = 0

    # the rules of the house, in the plainest words

    def is_due(self, row: Row) -> bool:
        return row.state is State.READY and row.run_at <= self.low

    def schedule(self, row: Row, delay: int = 0) -> None:
        row.state, row.run_at, row.moved = State.READY, self.low + delay, True
        self.due.append((row, delay))

    def holder(self, queue: str, key: str) -> Row | None:
        """The live job that has a key."""
        for row in self.rows.values():
            if (row.queue, row.key) == (queue, key) and row.state in LIVE:
                return row
        return None

    def end(self, row: Row, state: State) -> None:
        row.state, row.lease, row.park = state, None, None
        row.suspicion = row.crashes = 0
        self.ends.append(row)
        if row.key and row.key.startswith("ever"):
            self.forever[row.queue, row.key] = (row.id, "done" if state is State.DONE else "bad")
        if state is State.DONE and row.keep == 0:
            self.remove(row)
        for parent in list(self.rows.values()):
            if parent.state is State.WAITING and row.id in parent.after:
                self.count_child(parent, row.id, state)

    def count_child(self, parent: Row, child: str, state: State) -> None:
        if state is State.DONE or parent.after[child] == "continue":
            parent.counted.add(child)
            if parent.counted == set(parent.after):
                self.schedule(parent)
        else:
            parent.failure = "ChildFailed"
            self.end(parent, State.DEAD)

    def remove(self, row: Row) -> None:
        del self.rows[row.id]
        self.removed.add(row.id)

    def decide(self, new: NewJob, is_forever: bool) -> Receipt:
        """What an insert must answer; the model does the same."""
        if self.modes[new.queue] is QueueMode.DRAINING:
            return Receipt(new.id, Verdict.CLOSED)
        verdict = Verdict.NEW
        if new.key:
            if holder := self.holder(new.queue, new.key):
                return Receipt(holder.id, Verdict.IN_PROGRESS)
            if is_forever and (known := self.forever.get((new.queue, new.key))):
                id, how = known
                if how == "done":
                    return Receipt(id, Verdict.DONE)
                if id in self.rows:
                    self.reopen(self.rows[id], new)
                    return Receipt(id, Verdict.REOPENED)
                verdict = Verdict.REOPENED
        self.count += 1
        row = Row(
            id=new.id,
            queue=new.queue,
            payload=new.payload,
            priority=new.priority,
            attempts=new.attempts,
            keep=new.keep,
            key=new.key,
            seq=self.count,
            after={edge.child: edge.policy for edge in new.after},
        )
        self.rows[new.id] = row
        self.schedule(row, new.delay)
        row.moved = False
        if row.after:
            self.wait_for_children(row)
        return Receipt(new.id, verdict)

    def wait_for_children(self, parent: Row) -> None:
        parent.state, parent.counted = State.WAITING, set()
        for child in parent.after:
            state = self.rows[child].state
            if parent.state is State.WAITING and state in ENDED:
                self.count_child(parent, child, state)

    def reopen(self, row: Row, new: NewJob) -> None:
        row.payload, row.priority, row.attempts = new.payload, new.priority, new.attempts
        row.keep, row.attempt, row.was_reopened = new.keep, 0, True
        row.suspicion = row.crashes = 0
        self.schedule(row, new.delay)

    def has_waiting_parent(self, id: str) -> bool:
        return any(row.state is State.WAITING and id in row.after for row in self.rows.values())

    def has_live_parent(self, id: str) -> bool:
        return any(row.state not in ENDED and id in row.after for row in self.rows.values())

    def pick(self, number: int, fits: Callable[[Row], bool]) -> Row | None:
        """One of the jobs that fit; most jobs don't."""
        fitting = [row for row in self.rows.values() if fits(row)]
        return fitting[number % len(fitting)] if fitting else None

    def name(self, number: int, fits: Callable[[Row], bool]) -> str:
        """Mostly the id of a job that fits, sometimes of any job there ever was."""
        row = self.pick(number // 4, fits) if number % 4 != 3 else None
        return row.id if row else self.names[number % len(self.names)]

    # in

    @initialize(batch=st.lists(specs, min_size=3, max_size=6))
    def begin(self, batch: list[Spec]) -> None:
        self.insert(batch)

    @rule(step=steps)
    def happens(self, step: tuple[str, dict[str, Any]]) -> None:
        verb, how = step
        getattr(self, verb)(**how)

    def insert(self, batch: list[Spec]) -> None:
        news: list[NewJob] = []
        expected: list[Receipt] = []
        for spec in batch:
            key, delay = spec.key, spec.delay
            known = self.forever.get((spec.queue, key)) if key else None
            reopens = known is not None and known[1] == "bad" and known[0] in self.rows
            # Nobody promised what a draining queue says of a known key, nor what becomes of a
            # parent that waits while one of its children is begun anew.
            if self.modes[spec.queue] is QueueMode.DRAINING or (
                known and reopens and self.has_waiting_parent(known[0])
            ):
                key = None
            elif reopens:
                delay = 0
            id = new_id()
            new = NewJob(
                id=id,
                queue=spec.queue,
                kind="Told",
                payload=b'"%s"' % id.encode(),
                priority=spec.priority,
                attempts=spec.attempts,
                delay=delay,
                keep=spec.keep,
                key=key,
                unique="forever" if key and key.startswith("ever") else "unfinished",
            )
            news.append(new)
            expected.append(self.decide(new, new.unique == "forever"))
        assert self.call(self.store.insert, news) == expected
        self.names += [new.id for new in news]

    def insert_parent(self, queue: str, live: list[int], ended: list[int], policy: Policy) -> None:
        # The engine has every child kept: some stores remove others at once, some do not.
        alive = [self.pick(n, lambda row: row.state in LIVE and row.keep > 0) for n in live]
        over = [self.pick(n, lambda row: row.state in ENDED and row.keep > 0) for n in ended]
        children = [*alive, *over]
        after = {child.id: After(child.id, policy) for child in children if child}
        new = NewJob(
            id=new_id(),
            queue=queue,
            kind="Parent",
            payload=b"{}",
            keep=30 * HOUR,
            after=tuple(after.values()),
        )
        expected = self.decide(new, False)
        assert self.call(self.store.insert, [new]) == [expected]
        self.names.append(new.id)

    def insert_again(self, number: int) -> None:
        row = self.pick(number, lambda row: self.modes[row.queue] is not QueueMode.DRAINING)
        if row is None:
            return
        verdict = Verdict.IN_PROGRESS if row.state in LIVE else Verdict.DONE
        new = NewJob(id=row.id, queue=row.queue, kind="Again", payload=b'"again"')
        assert self.call(self.store.insert, [new]) == [Receipt(row.id, verdict)]

    # out

    def claim(self, wanted: list[str], count: int, worker: str, length: int) -> None:
        wants = [Want(queue=queue) for queue in wanted]
        leases: list[Lease] = self.call(self.store.claim, wants, count, worker, length).leases
        due = {
            queue: sorted(
                (
                    row
                    for row in self.rows.values()
                    if row.queue == queue
                    and self.is_due(row)
                    and self.modes[queue] is not QueueMode.PAUSED
                ),
                key=lambda row: (row.priority, row.run_at, row.seq),
            )
            for queue in wanted
        }
        taken = {
            queue: [self.rows[lease.id] for lease in leases if lease.queue == queue]
            for queue in wanted
        }
        assert len(leases) == min(count, sum(map(len, due.values())))
        for queue in wanted:
            self.check_order(taken[queue], due[queue])
        if len(wanted) == 2:
            few, many = sorted(wanted, key=lambda queue: len(taken[queue]))
            shared = len(taken[many]) - len(taken[few]) <= 1
            assert shared or len(taken[few]) == len(due[few])
        for lease in leases:
            row = self.rows[lease.id]
            row.state, row.lease, row.worker = State.RUNNING, lease, worker
            row.lease_until, row.was_extended = self.low + length, False
            row.attempt += 1
            assert (lease.attempt, lease.attempts) == (row.attempt, row.attempts)
            assert (lease.suspicion, lease.crashes) == (row.suspicion, row.crashes)
            assert bytes(lease.payload) == row.payload
            assert lease.key == row.key
        self.leases += leases

    def check_order(self, taken: list[Row], due: list[Row]) -> None:
        assert len({row.id for row in taken}) == len(taken)
        first = due[: len(taken)]
        assert [(row.priority, row.run_at) for row in taken] == [
            (row.priority, row.run_at) for row in first
        ]
        keys = [(row.priority, row.run_at, row.seq) for row in taken if not row.moved]
        assert keys == sorted(keys)

    def a_lease(self, number: int) -> Lease | None:
        """Mostly one that is ours, sometimes any that ever was."""
        row = self.pick(number // 4, lambda row: row.lease is not None) if number % 4 != 3 else None
        return row.lease if row else self.leases[number % len(self.leases)] if self.leases else None

    def extend(self, number: int, length: int) -> None:
        lease = self.a_lease(number)
        if lease is None:
            return
        row = self.rows.get(lease.id)
        mine = row is not None and row.lease is lease
        assert self.call(self.store.extend, [lease], length) == [mine]
        if row is not None and mine:
            # A lease that would end later than asked for may keep its end.
            row.lease_until, row.was_extended = self.low + length, True

    def settle(self, told: list[tuple[int, dict[str, Any]]]) -> None:
        picked = {id(lease): (lease, how) for n, how in told if (lease := self.a_lease(n))}
        endings = [Ending(lease=lease, **how) for lease, how in picked.values()]
        expected = [self.settle_one(ending) for ending in endings]
        assert self.call(self.store.settle, endings) == expected

    def settle_one(self, ending: Ending) -> bool:
        row = self.rows.get(ending.lease.id)
        if row is None or row.lease is not ending.lease:
            return False
        row.lease = None
        row.attempt -= not ending.spend
        row.suspicion, row.crashes = ending.suspicion, ending.crashes
        if ending.released:
            self.schedule(row)
        elif ending.state is State.SCHEDULED:
            row.outcomes.append("retry" if ending.spend else "snooze")
            self.schedule(row, ending.delay)
        else:
            row.outcomes.append(OUTCOMES[ending.state])
            if ending.state in ENDED:
                row.failure = ending.failure and ending.failure.type
                self.end(row, ending.state)
            else:
                row.state, row.park = ending.state, ending.park
        return True

    def isolate(self, several: list[int]) -> None:
        picked = {lease.id: lease for n in several if (lease := self.a_lease(n))}
        expected: list[bool] = []
        for lease in picked.values():
            row = self.rows.get(lease.id)
            mine = row is not None and row.lease is lease
            expected.append(mine)
            if row is not None and mine:
                row.crashes = lease.crashes + 1
        assert self.call(self.store.isolate, list(picked.values())) == expected

    # upkeep

    def advance(self, hours: int) -> None:
        self.clock.advance(f"{hours}h")
        self.low += hours * HOUR

    def rescue(self) -> None:
        lost = [
            row
            for row in self.rows.values()
            if row.state is State.RUNNING and row.lease_until <= self.low
        ]
        for row in lost:
            row.outcomes.append("rescued")
            row.suspicion = suspected(row.suspicion, Suspicion.LOST)
        self.take_back(lost, self.call(self.store.rescue))

    def rescue_worker(self, worker: str, told: list[tuple[int, Suspicion, bool]]) -> None:
        gone = [
            row for row in self.rows.values() if row.state is State.RUNNING and row.worker == worker
        ]
        losses = {
            (id := self.name(n, lambda row: row in gone)): Loss(
                id=id, failure=BOOM, suspicion=suspicion, is_excused=is_excused
            )
            for n, suspicion, is_excused in told
        }
        for row in gone:
            if loss := losses.get(row.id):
                row.outcomes.append("rescued")
                row.suspicion = suspected(row.suspicion, loss.suspicion)
                row.crashes = max(row.crashes - loss.is_excused, 0)
        given = list(losses.values())
        self.take_back(gone, self.call(self.store.rescue, worker=worker, losses=given))

    def take_back(self, lost: list[Row], rescued: list[Rescued]) -> None:
        expected = [Rescued(row.id, row.queue, row.worker) for row in lost]
        assert sorted(rescued, key=lambda one: one.id) == sorted(expected, key=lambda one: one.id)
        for row in lost:
            row.lease, row.attempt = None, row.attempt - 1
            self.schedule(row)

    def unpark(self, park: str) -> None:
        parked = [row for row in self.rows.values() if row.park == park]
        assert self.call(self.store.unpark, park) == len(parked)
        for row in parked:
            row.park = None
            self.schedule(row)

    def prune(self, dead_keep: int) -> None:
        self.call(self.store.prune, dead_keep=dead_keep)
        for row in self.rows.values():
            if row.state in ENDED:
                kept = row.keep if row.state is State.DONE else dead_keep
                if row.ended_at + kept <= self.low:
                    self.old.append(row)

    # people

    def cancel(self, number: int) -> None:
        id = self.name(number, lambda row: row.state in LIVE)
        row = self.rows.get(id)
        can = row is not None and row.state in LIVE
        assert self.call(self.store.cancel, [id], ANN) == [can]
        if row is not None and can:
            if row.state is State.RUNNING:
                row.outcomes.append("cancelled")
            self.end(row, State.CANCELLED)

    def discard(self, number: int) -> None:
        id = self.name(number, lambda row: row.state in {State.DEAD, State.HELD})
        row = self.rows.get(id)
        can = row is not None and row.state in {State.DEAD, State.HELD}
        assert self.call(self.store.discard, [id], ANN) == [can]
        if row is not None and can:
            if row.state is State.DEAD:
                row.state = State.CANCELLED
            else:
                self.end(row, State.CANCELLED)

    def retry(self, number: int) -> None:
        id = self.name(number, lambda row: row.state in RETRYABLE)
        row = self.rows.get(id)
        # Nobody promised what a parent does whose children were removed or begun anew.
        if row is not None and (
            self.has_waiting_parent(id)
            or not set(row.after) <= set(self.rows)
            or (row.after and row.state not in {State.DEAD, State.CANCELLED})
        ):
            return
        can = row is not None and self.may_retry(row)
        assert self.call(self.store.retry, [id], ANN) == [can]
        if row is not None and can:
            row.attempt, row.park, row.lease = 0, None, None
            row.suspicion = row.crashes = 0
            self.schedule(row)
            if row.after:
                self.wait_for_children(row)

    def may_retry(self, row: Row) -> bool:
        is_scheduled = row.state is State.READY and not self.is_due(row)
        if row.state not in RETRYABLE and not is_scheduled:
            return False
        if row.state in ENDED and row.key and self.holder(row.queue, row.key):
            return False
        bad = {State.DEAD, State.CANCELLED}
        return not any(
            policy == "fail" and self.rows[child].state in bad
            for child, policy in row.after.items()
        )

    def edit(self, number: int, priority: int, attempts: int) -> None:
        id = self.name(number, lambda row: row.state in LIVE)
        row = self.rows.get(id)
        can = row is not None and row.state not in {State.RUNNING, State.DONE}
        edit = Edit(id=id, priority=priority, attempts=attempts)
        assert self.call(self.store.edit, [edit], ANN) == [can]
        if row is not None and can:
            row.moved = row.moved or row.priority != priority
            row.priority, row.attempts = priority, attempts

    def set_mode(self, queue: str, mode: QueueMode) -> None:
        changed = self.modes[queue] is not mode
        assert self.call(self.store.set_mode, [queue], mode, ANN) == [changed]
        self.modes[queue] = mode

    # after every step

    @invariant()
    @precondition(lambda self: self.rows or self.removed)
    def store_and_model_agree(self) -> None:
        found, high, tallies, groups, done, removed = self.call(self.see)
        for row in self.old:
            # A child is gone for good, or kept for a parent that will read its result.
            if row.id not in found:
                self.remove(row)
            else:
                assert self.has_live_parent(row.id)
        self.old.clear()
        assert set(found) == set(self.rows)
        for id, job in found.items():
            was = self.seen.get(id, job.state)
            assert job.state is was or job.state in MOVES[was]
        self.seen = {id: job.state for id, job in found.items()}
        for row, delay in self.due:
            if row.id in self.rows and row.state is State.READY:
                at = found[row.id].run_at
                # What is due at once may keep the earlier moment it was due at.
                assert at <= high + delay
                assert not delay or self.low + delay <= at
                row.run_at = at
        for row in self.ends:
            if row.id in self.rows and row.state in ENDED:
                at = found[row.id].ended_at
                assert at is not None
                assert self.low <= at <= high
        for row in self.rows.values():
            row.ended_at = found[row.id].ended_at or 0
        self.due.clear()
        self.ends.clear()
        self.low = high
        assert removed == [None] * len(removed)
        for row in self.rows.values():
            self.compare(row, found[row.id])
        self.compare_counts(tallies, groups, done)

    async def see(self) -> tuple[Any, ...]:
        jobs = await self.store.find(list(self.rows))
        found = {id: job for id, job in zip(self.rows, jobs, strict=True) if job is not None}
        done = {
            queue: await self.store.count(Filter(queue=queue, states=frozenset({State.DONE})))
            for queue in QUEUES
        }
        return (
            found,
            await self.store.now(),
            await self.store.tally(),
            await self.store.groups(limit=200),
            done,
            await self.store.find(sorted(self.removed)[-20:]),
        )

    def visible(self, row: Row) -> State:
        if row.state is State.READY and row.run_at > self.low:
            return State.SCHEDULED
        return row.state

    def compare(self, row: Row, job: Any) -> None:
        assert job.state is self.visible(row), (job, row)
        assert (job.queue, job.payload, job.key) == (row.queue, row.payload, row.key)
        assert (job.priority, job.attempts) == (row.priority, row.attempts)
        assert job.attempt == row.attempt, (job, row)
        assert (job.suspicion, job.crashes) == (row.suspicion, row.crashes), (job, row)
        assert job.park == row.park
        outcomes = [run.outcome for run in job.history]
        assert outcomes == row.outcomes[-50:] or row.was_reopened, (job, row)
        assert {edge.child: edge.policy for edge in job.after} == row.after
        assert (job.ended_at is not None) == (row.state in ENDED)
        if row.state is State.RUNNING:
            assert job.worker == row.worker
            assert row.lease_until <= job.lease_until
            assert row.was_extended or job.lease_until <= row.lease_until + HALF
            row.lease_until, row.was_extended = job.lease_until, False
        else:
            assert job.lease_until is None
        if row.state is State.DEAD:
            assert job.failure is not None
            assert job.failure.type == row.failure
        else:
            row.failure = None

    def compare_counts(self, tallies: Any, groups: Any, done: dict[str, int]) -> None:
        for queue in QUEUES:
            rows = [row for row in self.rows.values() if row.queue == queue]
            expected = Counter(self.visible(row) for row in rows)
            assert done[queue] == expected.pop(State.DONE, 0)
            for tally in tallies:
                if tally.queue == queue:
                    counts = {s: n for s, n in tally.counts.items() if n and s is not State.DONE}
                    assert counts == expected
                    assert tally.mode is self.modes[queue]
            assert not rows or any(tally.queue == queue for tally in tallies)
        dead = Counter(
            (row.queue, row.failure) for row in self.rows.values() if row.state is State.DEAD
        )
        shown: Counter[tuple[str, str]] = Counter()
        for group in groups:
            shown[group.queue, group.type] += group.count
        assert shown == dead


@pytest.mark.timeout(600)
def test_a_store_and_its_model_agree(store_name: str, tmp_path: Path) -> None:
    """F50"""
    tell(Story, store_name, tmp_path, examples=15, steps=40)


@pytest.mark.soak
@pytest.mark.timeout(7_200)
def test_a_store_and_its_model_agree_for_long(store_name: str, tmp_path: Path) -> None:
    """F50"""
    tell(Story, store_name, tmp_path, examples=200, steps=500)
