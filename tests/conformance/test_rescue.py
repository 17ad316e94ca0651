"""Upkeep: what a silent worker held comes back, once, and parked jobs go on."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise

from relevo.ids import new_id
from relevo.job import State
from relevo.store import Filter, Rescued, Store, Want
from relevo.testing import ManualClock
from tests.conformance.conftest import Handles
from tests.conformance.steps import (
    ANN,
    BOOM,
    HOUR,
    MINUTE,
    OTHER,
    SECOND,
    WORK,
    add,
    end,
    job,
    look,
    outcomes,
    pause,
    put,
    state,
    states,
    take,
    take_id,
    take_one,
)


async def test_a_lapsed_lease_is_taken_back(store: Store, clock: ManualClock) -> None:
    id = await add(store)
    lease = await take_id(store, id, worker="gone")
    clock.advance("61s")

    assert await store.rescue() == [Rescued(id, WORK, "gone")]

    found = await look(store, id)
    assert found.state is State.READY
    assert found.attempt == 0
    assert found.lease_until is None
    (run,) = found.history
    assert (run.number, run.outcome, run.worker) == (1, "rescued", "gone")
    assert run.failure is not None
    assert run.failure.type == "WorkerLost"
    assert run.began_at == lease.claimed_at
    again = await take_id(store, id, worker="w2")
    assert again.attempt == 1


async def test_a_live_lease_is_left_alone(store: Store, clock: ManualClock) -> None:
    id = await add(store)
    lease = await take_id(store, id)
    clock.advance("55s")

    assert await store.rescue() == []
    assert await end(store, lease)


async def test_a_lapse_is_rescued_once(store: Store, clock: ManualClock) -> None:
    """F04"""
    await take_id(store, await add(store))
    clock.advance("61s")

    assert len(await store.rescue()) == 1
    assert await store.rescue() == []


async def test_many_rescuers_rescue_each_once(
    store: Store, handles: Handles, clock: ManualClock
) -> None:
    """F04"""
    rescuers = [store, *await handles(3)]
    ids = await put(store, *[job() for _ in range(100)], *[job(OTHER) for _ in range(20)])
    await take(store, 120, WORK, OTHER, worker="gone")
    clock.advance("61s")

    answers = await asyncio.gather(*(rescuers[n % 4].rescue() for n in range(12)))

    rescued = Counter(one.id for answer in answers for one in answer)
    assert rescued == Counter(ids)
    assert [(await look(store, id)).attempt for id in ids[:5]] == [0] * 5
    assert await outcomes(store, ids[0]) == ["rescued"]


async def test_a_rescue_takes_no_more_than_its_limit(store: Store, clock: ManualClock) -> None:
    ids = await put(store, *[job() for _ in range(25)])
    await take(store, 25)
    clock.advance("61s")

    rescued = [one.id for _ in range(4) for one in await store.rescue(limit=10)]

    assert len(rescued) == 25
    assert set(rescued) == set(ids)


async def test_a_worker_known_to_be_gone_loses_all_at_once(store: Store) -> None:
    ids = await put(store, job(), job(OTHER), job())
    gone = await take(store, 2, WORK, worker="gone")
    gone += await take(store, 1, OTHER, worker="gone")
    await put(store, job())
    kept = await take_one(store, worker="alive")

    rescued = await store.rescue(worker="gone")

    assert {one.id for one in rescued} == set(ids)
    assert {one.worker for one in rescued} == {"gone"}
    assert await states(store, *ids) == [State.READY] * 3
    assert [await end(store, lease) for lease in gone] == [False] * 3
    assert await end(store, kept)


async def test_rescuing_one_worker_leaves_others_lapsed(store: Store, clock: ManualClock) -> None:
    lapsed = await add(store)
    await take_id(store, lapsed, worker="slow")
    clock.advance("61s")

    assert await store.rescue(worker="gone") == []
    assert await state(store, lapsed) is State.RUNNING
    assert [one.id for one in await store.rescue()] == [lapsed]


async def test_an_idle_worker_has_nothing_to_rescue(store: Store) -> None:
    lease = await take_id(store, await add(store), worker="w1")
    await end(store, lease)

    assert await store.rescue(worker="w1") == []
    assert await store.rescue(worker="never-seen") == []


async def test_a_paused_queue_is_rescued_too(store: Store, clock: ManualClock) -> None:
    id = await add(store)
    await take_id(store, id)
    await pause(store, WORK)
    clock.advance("61s")

    assert [one.id for one in await store.rescue()] == [id]
    assert await take(store) == []


async def test_a_settle_races_a_rescue_and_one_wins(
    store: Store, handles: Handles, clock: ManualClock
) -> None:
    (keeper,) = await handles(1)
    await put(store, *[job() for _ in range(40)])
    leases = await take(store, 40)
    clock.advance("61s")

    settled, rescued = await asyncio.gather(
        asyncio.gather(*(end(store, lease) for lease in leases)),
        asyncio.gather(*(keeper.rescue(limit=5) for _ in range(8))),
    )
    taken = {one.id for answer in rescued for one in answer}

    for lease, mine in zip(leases, settled, strict=True):
        assert mine != (lease.id in taken)
        assert await outcomes(store, lease.id) == ["done" if mine else "rescued"]


async def test_an_extend_races_a_rescue_and_one_wins(
    store: Store, handles: Handles, clock: ManualClock
) -> None:
    (keeper,) = await handles(1)
    await put(store, *[job() for _ in range(40)])
    leases = await take(store, 40)
    clock.advance("61s")

    kept, rescued = await asyncio.gather(
        asyncio.gather(*(store.extend([lease], HOUR) for lease in leases)),
        asyncio.gather(*(keeper.rescue(limit=5) for _ in range(8))),
    )
    taken = {one.id for answer in rescued for one in answer}

    for lease, (mine,) in zip(leases, kept, strict=True):
        assert mine != (lease.id in taken)
        expected = State.RUNNING if mine else State.READY
        assert await state(store, lease.id) is expected


async def test_unpark_lets_the_parked_go_on(store: Store) -> None:
    ids = await put(store, job(), job(), job(OTHER))
    a, b = await take(store, 2)
    c = await take_one(store, OTHER)
    for lease, park in ((a, "one"), (b, "two"), (c, "one")):
        await end(store, lease, State.PARKED, park=park, spend=False)

    assert await store.unpark("one") == 2

    assert await states(store, *ids) == [State.READY, State.PARKED, State.READY]
    assert (await look(store, ids[0])).park is None
    assert await store.unpark("one") == 0
    assert await store.unpark("never") == 0
    assert (await take_one(store)).attempt == 1


async def test_unpark_lets_those_go_on_that_are_named(store: Store) -> None:
    """F53: spread, oldest first, and none that is parked behind something else."""
    ids = await put(store, *[job(lane="l") for _ in range(6)], job(OTHER))
    leases = [*await take(store, 6), await take_one(store, OTHER)]
    parks = ["one", "one", "one", "one", "two", "one", "one"]
    for lease in leases:
        park = parks[ids.index(lease.id)]
        await end(store, lease, State.PARKED, park=park, spend=False)
    before = await store.now()

    named = [ids[6], ids[4], ids[1], ids[0], ids[0], new_id(), "no id"]
    assert await store.unpark("one", ids=named, spread=30 * SECOND) == 3

    free = [State.READY, State.SCHEDULED]
    found = [await look(store, id) for id in ids]
    assert [one.state in free for one in found] == [True, True, *[False] * 4, True]
    at = [found[n].run_at - before for n in (0, 1)]
    assert 9 * SECOND < at[1] - at[0] < 16 * SECOND, at  # a cluster spreads each queue by itself
    assert await store.unpark("one", ids=named) == 0
    assert await store.unpark("one", ids=[]) == 0
    assert await store.unpark("one", ids=ids, limit=1) == 1
    assert (await look(store, ids[2])).park is None
    assert await store.unpark("one") == 2


async def test_unpark_takes_the_oldest_first(store: Store) -> None:
    ids = await put(store, *[job() for _ in range(5)])
    for lease in await take(store, 5):
        await end(store, lease, State.PARKED, park="b", spend=False)

    assert await store.unpark("b", limit=2) == 2

    assert await states(store, *ids) == [State.READY] * 2 + [State.PARKED] * 3
    assert await store.unpark("b", limit=2) == 2
    assert await store.unpark("b", limit=2) == 1


async def test_unpark_spreads_evenly(store: Store) -> None:
    """F35"""
    ids = await put(store, *[job() for _ in range(10)])
    for lease in await take(store, 10):
        await end(store, lease, State.PARKED, park="b", spend=False)
    before = await store.now()

    assert await store.unpark("b", spread=100 * SECOND) == 10

    after = await store.now()
    at = [(await look(store, id)).run_at for id in ids]
    assert at == sorted(at)
    assert before <= at[0]
    assert at[-1] <= after + 100 * SECOND
    gaps = [later - earlier for earlier, later in pairwise(at)]
    assert all(8 * SECOND <= gap <= 12 * SECOND for gap in gaps), gaps


async def test_many_unpark_at_once_each_goes_on_once(store: Store, handles: Handles) -> None:
    openers = [store, *await handles(2)]
    await put(store, *[job() for _ in range(30)])
    for lease in await take(store, 30):
        await end(store, lease, State.PARKED, park="b", spend=False)

    freed = await asyncio.gather(*(openers[n % 3].unpark("b") for n in range(6)))

    assert sum(freed) == 30
    assert len(await take(store, 100)) == 30


async def test_a_parked_job_may_be_parked_again(store: Store) -> None:
    id = await add(store)
    for _ in range(3):
        lease = await take_id(store, id)
        assert lease.attempt == 1
        await end(store, lease, State.PARKED, park="b", spend=False)
        assert await store.unpark("b") == 1

    assert await outcomes(store, id) == ["parked"] * 3


async def test_what_a_person_took_from_the_park_is_not_unparked(store: Store) -> None:
    cancelled, retried = await put(store, job(), job())
    for lease in await take(store, 2):
        await end(store, lease, State.PARKED, park="b", failure=BOOM)
    await store.cancel([cancelled], ANN)
    await store.retry([retried], ANN)
    lease = await take_id(store, retried, lease=MINUTE)

    assert await store.unpark("b") == 0

    assert await states(store, cancelled, retried) == [State.CANCELLED, State.RUNNING]
    assert await end(store, lease)


async def test_of_jobs_taken_together_each_has_a_lease_of_its_own(
    store: Store, clock: ManualClock
) -> None:
    """One worker may lose a job and go on with the others for hours."""
    ids = await put(store, *[job() for _ in range(5)])
    lost, ended, retried, cancelled, kept = await take(store, 5)
    clock.advance("30s")
    assert await store.extend([ended, retried, cancelled, kept], MINUTE) == [True] * 4
    assert await end(store, ended)
    assert await end(store, retried, State.SCHEDULED)
    await store.cancel([cancelled.id], ANN)
    again = await take_id(store, retried.id, worker="w2")

    clock.advance("11s")
    assert await store.rescue() == []
    lapse = (await store.rescue()).next_lapse
    assert lapse is not None
    assert 15 * SECOND < lapse < 20 * SECOND
    clock.advance("21s")
    assert [rescued.id for rescued in await store.rescue()] == [lost.id]

    clock.advance("20s")
    assert await store.extend([kept], MINUTE) == [True]
    clock.advance("30s")
    assert [rescued.id for rescued in await store.rescue()] == [again.id]
    assert await end(store, kept)
    assert (await store.rescue()).next_lapse is None
    assert await states(store, *ids) == [
        State.READY, State.DONE, State.READY, State.CANCELLED, State.DONE
    ]  # fmt: skip


async def test_who_runs_is_seen_once_and_counted(store: Store) -> None:
    """Also who was taken again, while others that were taken with it the first time go on."""
    want = Want(queue=WORK, limit=5)
    await put(store, *[job() for _ in range(5)])
    first = await take(store, 5, want)
    for lease in first[:2]:
        assert await end(store, lease, State.SCHEDULED)
    second = await take(store, 2, want)

    running = Filter(states=frozenset({State.RUNNING}))
    assert sorted(found.id for found in (await store.page(running)).jobs) == sorted(
        lease.id for lease in [*first[2:], *second]
    )
    assert await store.count(running) == 5
    [tally] = await store.tally()
    assert tally.counts == {State.RUNNING: 5}
    await put(store, job())
    assert await take(store, 1, want) == []
    for lease in [*first[2:], *second]:
        assert await end(store, lease)
    assert await store.count(running) == 0
    assert len(await take(store, 1, want)) == 1


async def test_a_sweep_tells_when_the_next_lease_lapses(store: Store) -> None:
    assert (await store.rescue()).next_lapse is None
    await add(store)
    [lease] = await take(store, lease=10 * SECOND)

    lapse = (await store.rescue()).next_lapse
    assert lapse is not None
    assert 5 * SECOND < lapse <= 10 * SECOND

    await end(store, lease)
    assert (await store.rescue()).next_lapse is None
