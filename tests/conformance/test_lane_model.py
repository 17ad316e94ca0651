"""F50, for lanes: limits, order and turns hold after any story.

As in the other model, steps of time are whole hours and lengths end at half past.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from relevo.ids import new_id
from relevo.job import ENDED, Ending, Failure, Lease, NewJob, State, Suspicion
from relevo.store import By, Loss, Want
from tests.conformance.stories import Steps, StoreStory, steps_of, tell

HOUR = 3_600_000
HALF = HOUR // 2
QUEUE = "app:module:lanes"
LANES = ["a", "b", "c"]
ANN = By("ann")
BOOM = Failure(type="Boom", message="it went boom", fingerprint="boom")
WANTS = [
    Want(queue=QUEUE),
    Want(queue=QUEUE, ordered=True),
    Want(queue=QUEUE, ordered=True, limit=2),
    Want(queue=QUEUE, lane_limit=1),
    Want(queue=QUEUE, lane_limit=2, limit=3),
    Want(queue=QUEUE, limit=3),
]
numbers = st.integers(0, 1_000)
batches = st.lists(
    st.tuples(st.sampled_from(LANES), st.sampled_from([1, 1, 1, 0, 2])), min_size=1, max_size=5
)


@dataclass
class Row:
    """What the model knows of a job. READY stands for scheduled too."""

    id: str
    lane: str
    priority: int
    state: State = State.READY
    due: int = 0  # in whole hours of the story
    lease: Lease | None = None
    lapses: int = 0


STEPS: Steps = {
    "insert": (4, {"batch": batches}),
    "claim": (6, {"count": st.sampled_from([9, 1, 2, 3, 4])}),
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
    "release": (3, {"number": numbers}),
    "advance": (2, {"hours": st.integers(1, 3)}),
    "rescue": (2, {}),
    "rescue_worker": (1, {"numbers": st.lists(numbers, max_size=3)}),
    "unpark": (2, {}),
    "retry": (2, {"number": numbers}),
    "cancel": (1, {"number": numbers}),
}


class LaneStory(StoreStory):
    """One queue, three lanes, one of the ways to limit them."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Row] = []
        self.hour = 0

    @initialize(want=st.sampled_from(WANTS), batch=batches)
    def begin(self, want: Want, batch: list[tuple[str, int]]) -> None:
        self.want = want
        self.insert(batch)

    @rule(step=steps_of(STEPS))
    def happens(self, step: tuple[str, dict[str, Any]]) -> None:
        verb, how = step
        getattr(self, verb)(**how)

    def pick(self, number: int, *states: State) -> Row | None:
        fitting = [row for row in self.rows if row.state in states]
        return fitting[number % len(fitting)] if fitting else None

    def is_due(self, row: Row) -> bool:
        return row.state is State.READY and row.due <= self.hour

    def insert(self, batch: list[tuple[str, int]]) -> None:
        rows = [Row(new_id(), lane, priority, due=self.hour) for lane, priority in batch]
        self.rows += rows
        self.call(
            self.store.insert,
            [
                NewJob(
                    id=row.id,
                    queue=QUEUE,
                    kind="InLane",
                    payload=b"{}",
                    lane=row.lane,
                    priority=row.priority,
                    attempts=1_000,
                )
                for row in rows
            ],
        )

    def claim(self, count: int) -> None:
        due = {lane: self.due_in(lane) for lane in LANES}
        room = {lane: min(len(due[lane]), self.room_in(lane)) for lane in LANES}
        running = sum(row.state is State.RUNNING for row in self.rows)
        free = count if self.want.limit is None else min(count, self.want.limit - running)
        leases: list[Lease] = self.call(
            self.store.claim, [self.want], count, "w1", HOUR + HALF
        ).leases

        assert len(leases) == min(free, sum(room.values())), room
        taken = Counter(lease.lane for lease in leases)
        for lane in LANES:
            priorities = {row.id: row.priority for row in due[lane]}
            mine = [priorities[lease.id] for lease in leases if lease.lane == lane]
            assert mine == sorted(priorities.values())[: len(mine)]
        # Lanes take turns: none gets two more than another that had one more to give. Whether
        # priority or the turn comes first among lanes, nobody promised.
        if len({row.priority for rows in due.values() for row in rows}) == 1:
            assert all(
                taken[lane] <= taken[other] + 1 or taken[other] == room[other]
                for lane in LANES
                for other in LANES
            ), (room, taken)
        rows = {row.id: row for row in self.rows}
        for lease in leases:
            row = rows[lease.id]
            row.state, row.lease, row.lapses = State.RUNNING, lease, self.hour + 2

    def due_in(self, lane: str) -> list[Row]:
        """The jobs a lane may give now: in an ordered one, nobody but its head."""
        live = [row for row in self.rows if row.lane == lane and row.state not in ENDED]
        return [row for row in (live[:1] if self.want.ordered else live) if self.is_due(row)]

    def room_in(self, lane: str) -> int:
        running = sum(row.state is State.RUNNING and row.lane == lane for row in self.rows)
        return len(self.rows) if self.want.lane_limit is None else self.want.lane_limit - running

    def settle(self, number: int, state: State, delay: int) -> None:
        row = self.pick(number, State.RUNNING)
        if row is None or row.lease is None:
            return
        ending = Ending(
            lease=row.lease,
            state=state,
            delay=delay and delay * HOUR - HALF,
            park="p" if state is State.PARKED else None,
        )
        assert self.call(self.store.settle, [ending]) == [True]
        row.state, row.lease = state, None
        if state is State.SCHEDULED:
            row.state, row.due = State.READY, self.hour + delay

    def release(self, number: int) -> None:
        row = self.pick(number, State.RUNNING)
        if row is None or row.lease is None:
            return
        ending = Ending(lease=row.lease, state=State.SCHEDULED, spend=False, released=True)
        assert self.call(self.store.settle, [ending]) == [True]
        row.state, row.lease = State.READY, None

    def advance(self, hours: int) -> None:
        self.clock.advance(f"{hours}h")
        self.hour += hours

    def rescue(self) -> None:
        lost = [row for row in self.rows if row.state is State.RUNNING and row.lapses <= self.hour]
        assert {one.id for one in self.call(self.store.rescue)} == {row.id for row in lost}
        for row in lost:
            row.state, row.due, row.lease = State.READY, self.hour, None

    def rescue_worker(self, numbers: list[int]) -> None:
        lost = [row for row in self.rows if row.state is State.RUNNING]
        told = {row.id for n in numbers if (row := self.pick(n, State.RUNNING))}
        losses = [Loss(id=id, failure=BOOM, suspicion=Suspicion.ALONE) for id in sorted(told)]
        rescued = self.call(self.store.rescue, worker="w1", losses=losses)
        assert {one.id for one in rescued} == {row.id for row in lost}
        for row in lost:
            row.state, row.lease = State.READY, None

    def unpark(self) -> None:
        parked = [row for row in self.rows if row.state is State.PARKED]
        assert self.call(self.store.unpark, "p") == len(parked)
        for row in parked:
            row.state, row.due = State.READY, self.hour

    def retry(self, number: int) -> None:
        # Nobody promised where in an ordered lane a job stands that had ended and is begun anew.
        states = [State.HELD] if self.want.ordered else [State.HELD, State.DEAD]
        row = self.pick(number, *states)
        if row is None:
            return
        assert self.call(self.store.retry, [row.id], ANN) == [True]
        row.state, row.due = State.READY, self.hour

    def cancel(self, number: int) -> None:
        row = self.pick(number, *set(State) - ENDED)
        if row is None:
            return
        assert self.call(self.store.cancel, [row.id], ANN) == [True]
        row.state, row.lease = State.CANCELLED, None

    @invariant()
    def store_and_model_agree(self) -> None:
        if not self.rows:
            return
        found = self.call(self.store.find, [row.id for row in self.rows])
        for row, job in zip(self.rows, found, strict=True):
            is_later = row.state is State.READY and row.due > self.hour
            assert job.state is (State.SCHEDULED if is_later else row.state), (row, job)


@pytest.mark.timeout(600)
def test_a_store_and_its_model_of_lanes_agree(store_name: str, tmp_path: Path) -> None:
    """F50"""
    tell(LaneStory, store_name, tmp_path, examples=15, steps=30)


@pytest.mark.soak
@pytest.mark.timeout(7_200)
def test_a_store_and_its_model_of_lanes_agree_for_long(store_name: str, tmp_path: Path) -> None:
    """F50"""
    tell(LaneStory, store_name, tmp_path, examples=200, steps=300)
