"""Jobs that leave the middle of the line before their turn: passed over, counted, found again."""

from __future__ import annotations

import pytest

from relevo.job import State
from relevo.store import Edit, Filter, Store, Want
from relevo.testing import ManualClock
from tests.conformance.steps import ANN, HOUR, MINUTE, WORK, add, end, job, put, take, tally_of


async def _listed(store: Store, *states: State) -> set[str]:
    page = await store.page(Filter(states=frozenset(states)), limit=200)
    return {found.id for found in page.jobs}


async def test_cancelled_jobs_are_passed_over_wherever_they_stood(store: Store) -> None:
    ids = await put(store, *(job() for _ in range(30)))
    gone = [ids[0], ids[1], *ids[7:20], ids[-1]]
    assert all(await store.cancel(gone, ANN))

    counts = (await tally_of(store)).counts
    assert (counts.get(State.READY), counts.get(State.CANCELLED)) == (14, 16)
    assert await _listed(store, State.READY) == set(ids) - set(gone)
    assert await _listed(store, State.CANCELLED) == set(gone)

    left = [id for id in ids if id not in gone]
    assert [lease.id for lease in await take(store, 3)] == left[:3]
    assert [lease.id for lease in await take(store, 100)] == left[3:]
    assert (await tally_of(store)).counts.get(State.READY) is None


async def test_a_line_of_cancelled_jobs_is_empty(store: Store) -> None:
    ids = await put(store, *(job() for _ in range(40)))
    assert all(await store.cancel(ids[1:], ANN))
    assert all(await store.cancel(ids[:1], ANN))

    assert State.READY not in (await tally_of(store)).counts
    tally = await tally_of(store)
    assert (tally.oldest, tally.late) == (None, None)
    assert await take(store, 100) == []
    late = await add(store)
    assert [lease.id for lease in await take(store, 100)] == [late]


@pytest.mark.parametrize("priority", [0, 1, 2])
async def test_a_cancelled_job_that_is_tried_again_runs_once(store: Store, priority: int) -> None:
    first, second, third = await put(store, *(job(priority=priority) for _ in range(3)))
    assert await store.cancel([second], ANN) == [True]
    assert await store.retry([second], ANN) == [True]

    leases = await take(store, 10)
    assert [lease.id for lease in leases] == [first, third, second]
    assert await take(store, 10) == []
    assert [await end(store, lease) for lease in leases] == [True] * 3
    assert await take(store, 10) == []


async def test_a_job_moved_by_hand_stands_in_its_new_place_alone(
    store: Store, clock: ManualClock
) -> None:
    ids = await put(store, *(job() for _ in range(5)))
    later = await store.now() + HOUR
    edits = [Edit(id=ids[1], run_at=later), Edit(id=ids[2], priority=0), Edit(id=ids[3])]
    assert await store.edit(edits, ANN) == [True] * 3

    assert await _listed(store, State.SCHEDULED) == {ids[1]}
    assert (await tally_of(store)).counts == {State.READY: 4, State.SCHEDULED: 1}
    assert [lease.id for lease in await take(store, 10)] == [ids[2], ids[0], ids[3], ids[4]]
    clock.advance("2h")
    assert [lease.id for lease in await take(store, 10)] == [ids[1]]


async def test_those_that_came_due_stand_between_those_that_were_ready(
    store: Store, clock: ManualClock
) -> None:
    early = await add(store, delay=MINUTE)
    first = await add(store)
    clock.advance("2m")
    second, third = await put(store, job(), job(run_at=await store.now() - 90_000))

    assert [lease.id for lease in await take(store, 2)] == [first, third]
    assert [lease.id for lease in await take(store, 10)] == [early, second]


async def test_ordered_jobs_pass_over_a_cancelled_one(store: Store) -> None:
    first, second, third = await put(store, *(job() for _ in range(3)))
    assert await store.cancel([second], ANN) == [True]
    want = Want(queue=WORK, ordered=True)

    seen: list[str] = []
    while leases := await take(store, 10, want):
        seen += [lease.id for lease in leases]
        assert [await end(store, lease) for lease in leases] == [True] * len(leases)
    assert seen == [first, third]
    assert State.READY not in (await tally_of(store)).counts
