"""F50, for unique="latest": after any story the newest of each key runs, and nothing old after it.

As in the other models, steps of time are whole hours and lengths end at half past.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from relevo.ids import new_id
from relevo.job import ENDED, Ending, Failure, Lease, NewJob, State, Suspicion
from relevo.relay import Relayed
from relevo.store import By, Loss, Want
from tests.conformance.stories import Steps, StoreStory, steps_of, tell

HOUR = 3_600_000
HALF = HOUR // 2
QUEUE = "app:module:latest"
WANTS = [
    Want(queue=QUEUE),
    Want(queue=QUEUE, limit=100),
    Want(queue=QUEUE, lane_limit=100),
    Want(queue=QUEUE, rate=(1_000, 1_000)),
]
ANN = By("ann", "because")
BOOM = Failure(type="Boom", message="it went boom", fingerprint="boom")
numbers = st.integers(0, 1_000)
batches = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from([0, 0, 0, 1, 2]), st.integers(0, 2)),
    min_size=1,
    max_size=4,
)


@dataclass(eq=False)
class Row:
    """What the model knows of a job. READY stands for scheduled too."""

    id: str
    key: str
    due: int  # in whole hours of the story
    state: State = State.READY
    has_started: bool = False
    has_begun: bool = False  # a run of it may have done something: no release undoes its start
    is_old: bool = False  # a newer one of its key has started
    lease: Lease | None = None
    lapses: int = 0

    @property
    def is_live(self) -> bool:
        return self.state not in ENDED


STEPS: Steps = {
    "insert": (6, {"batch": batches}),
    "insert_again": (1, {"number": numbers}),
    "claim": (7, {"count": st.sampled_from([99, 99, 1])}),
    "settle": (
        7,
        {
            "number": numbers,
            "state": st.sampled_from(
                [
                    State.DONE,
                    State.SCHEDULED,
                    State.DEAD,
                    State.PARKED,
                    State.HELD,
                    State.CANCELLED,
                ]
            ),
            "delay": st.integers(0, 2),
        },
    ),
    "advance": (2, {"hours": st.integers(1, 3)}),
    "release": (3, {"number": numbers}),
    "rescue": (1, {}),
    "rescue_worker": (1, {"numbers": st.lists(numbers, max_size=2)}),
    "unpark": (2, {}),
    "retry": (3, {"number": numbers}),
    "cancel": (2, {"number": numbers}),
    "discard": (1, {"number": numbers}),
}


class LatestStory(StoreStory):
    """One queue, two keys."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Row] = []  # in the order in which the store accepted them
        self.hour = 0

    @initialize(want=st.sampled_from(WANTS), has_lanes=st.booleans(), batch=batches)
    def begin(self, want: Want, has_lanes: bool, batch: list[tuple[str, int, int]]) -> None:
        self.want, self.has_lanes = want, has_lanes
        self.insert(batch)

    @rule(step=steps_of(STEPS))
    def happens(self, step: tuple[str, dict[str, Any]]) -> None:
        verb, how = step
        getattr(self, verb)(**how)

    def pick(self, number: int, *states: State) -> Row | None:
        fitting = [row for row in self.rows if row.state in states]
        return fitting[number % len(fitting)] if fitting else None

    def of_key(self, row: Row) -> list[Row]:
        return [other for other in self.rows if other.key == row.key]

    def older(self, row: Row) -> list[Row]:
        siblings = self.of_key(row)
        return siblings[: siblings.index(row)]

    def newer(self, row: Row) -> list[Row]:
        siblings = self.of_key(row)
        return siblings[siblings.index(row) + 1 :]

    # what happens

    def insert(self, batch: list[tuple[str, int, int]]) -> None:
        rows = [Row(new_id(), key, self.hour + delay) for key, delay, _ in batch]
        self.rows += rows
        jobs = [
            self.job(row, delay * HOUR - (HALF if delay else 0), priority)
            for row, (_, delay, priority) in zip(rows, batch, strict=True)
        ]
        answers = self.call(self.store.insert, jobs)
        assert [answer.verdict.value for answer in answers] == ["new"] * len(rows)
        assert [answer.id for answer in answers] == [row.id for row in rows]

    def job(self, row: Row, delay: int = 0, priority: int = 1) -> NewJob:
        return NewJob(
            id=row.id,
            queue=QUEUE,
            kind="Sync",
            payload=b"{}",
            key=row.key,
            unique="latest",
            lane=row.key if self.has_lanes else None,
            delay=delay,
            priority=priority,
            attempts=1_000,
        )

    def insert_again(self, number: int) -> None:
        row = self.pick(number, *State)
        if row is not None:
            (answer,) = self.call(self.store.insert, [self.job(row)])
            self.adopt()
            assert answer.id == row.id
            # Of a letter the receipt tells whether it is closed, which one called off is not yet.
            if not isinstance(self.store, Relayed):
                assert answer.verdict.value == ("in_progress" if row.is_live else "done")

    def startable(self) -> list[Row]:
        """What may be given out: one of each key at most."""
        found: list[Row] = []
        for key in "ab":
            live = [row for row in self.rows if row.key == key and row.is_live]
            going = [row for row in live if row.has_started]
            assert len(going) <= 1, "two of one key have started and not ended"
            candidate = (going or live)[-1:]
            found += [one for one in candidate if one.state is State.READY]
        return [row for row in found if row.due <= self.hour]

    def claim(self, count: int) -> None:
        self.clock.advance("1s")
        expected = {row.id: row for row in self.startable()}
        claim = self.call(self.store.claim, [self.want], count, "w", HOUR + HALF)
        taken = [lease.id for lease in claim.leases]
        if count < len(expected):
            assert len(taken) == count
            assert set(taken) <= expected.keys()
        else:
            assert sorted(taken) == sorted(expected)
        for lease in claim.leases:
            row = expected[lease.id]
            if not row.has_started:
                for old in self.older(row):
                    old.is_old = True
                    if old.is_live:
                        assert not old.has_started
                        old.state = State.CANCELLED
            row.state, row.has_started, row.lease = State.RUNNING, True, lease
            row.lapses = self.hour + 2
        self.adopt()

    def adopt(self) -> None:
        """A claim that meets older ones may end them before the newest is taken."""
        for row, found in zip(self.rows, self.found(), strict=True):
            if row.state is State.READY and found.state is State.CANCELLED:
                assert not row.has_started
                others = [new.id for new in self.newer(row)]
                assert found.note.removeprefix("replaced by ") in others
                row.state = State.CANCELLED
            expected = {row.state, State.SCHEDULED if row.state is State.READY else row.state}
            assert found.state in expected, (row, found.state)

    def found(self) -> list[Any]:
        return self.call(self.store.find, [row.id for row in self.rows])

    def settle(self, number: int, state: State, delay: int) -> None:
        row = self.pick(number, State.RUNNING)
        if row is None or row.lease is None:
            return
        ending = Ending(
            lease=row.lease,
            state=state,
            delay=delay * HOUR - (HALF if delay else 0),
            park="breaker" if state is State.PARKED else None,
        )
        assert self.call(self.store.settle, [ending]) == [True]
        row.has_begun = True
        row.state = State.READY if state is State.SCHEDULED else state
        if state is State.SCHEDULED:
            row.due = self.hour + delay

    def release(self, number: int) -> None:
        row = self.pick(number, State.RUNNING)
        if row is None or row.lease is None:
            return
        ending = Ending(lease=row.lease, state=State.SCHEDULED, spend=False, released=True)
        assert self.call(self.store.settle, [ending]) == [True]
        row.state, row.has_started = State.READY, row.has_begun

    def advance(self, hours: int) -> None:
        self.clock.advance(f"{hours}h")
        self.hour += hours

    def rescue(self) -> None:
        taken = {one.id for one in self.call(self.store.rescue)}
        lapsed = [r for r in self.rows if r.state is State.RUNNING and r.lapses <= self.hour]
        assert taken == {row.id for row in lapsed}
        for row in lapsed:
            row.state, row.has_begun = State.READY, True

    def rescue_worker(self, numbers: list[int]) -> None:
        gone = [row for row in self.rows if row.state is State.RUNNING]
        told = {row.id for n in numbers if (row := self.pick(n, State.RUNNING))}
        losses = [Loss(id=id, failure=BOOM, suspicion=Suspicion.ALONE) for id in sorted(told)]
        rescued = self.call(self.store.rescue, worker="w", losses=losses)
        assert {one.id for one in rescued} == {row.id for row in gone}
        for row in gone:
            row.has_begun = row.has_begun or row.id in told
            row.state, row.has_started = State.READY, row.has_begun

    def unpark(self) -> None:
        parked = [row for row in self.rows if row.state is State.PARKED]
        assert self.call(self.store.unpark, "breaker") == len(parked)
        for row in parked:
            row.state, row.due = State.READY, self.hour

    def retry(self, number: int) -> None:
        row = self.pick(number, State.DEAD, State.HELD, State.PARKED, State.CANCELLED)
        if row is None:
            return
        expected = row.is_live or not (row.is_old or any(new.is_live for new in self.newer(row)))
        assert self.call(self.store.retry, [row.id], ANN) == [expected]
        if expected:
            row.state, row.due = State.READY, self.hour

    def cancel(self, number: int) -> None:
        row = self.pick(number, *(set(State) - ENDED - {State.SCHEDULED, State.WAITING}))
        if row is not None:
            self.adopt()
            expected = row.is_live
            assert self.call(self.store.cancel, [row.id], ANN) == [expected]
            row.has_begun = row.has_begun or row.state is State.RUNNING
            row.state = State.CANCELLED

    def discard(self, number: int) -> None:
        row = self.pick(number, State.HELD, State.DEAD)
        if row is not None:
            assert self.call(self.store.discard, [row.id], ANN) == [True]
            row.state = State.CANCELLED


@pytest.mark.timeout(600)
def test_a_store_and_its_model_of_the_latest_agree(store_name: str, tmp_path: Path) -> None:
    """F50"""
    tell(LatestStory, store_name, tmp_path, examples=15, steps=40)


@pytest.mark.soak
@pytest.mark.timeout(7_200)
def test_a_store_and_its_model_of_the_latest_agree_for_long(
    store_name: str, tmp_path: Path
) -> None:
    """F50"""
    tell(LatestStory, store_name, tmp_path, examples=300, steps=60)
