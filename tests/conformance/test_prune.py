"""Retention: what has been kept long enough goes, and nothing else."""

from __future__ import annotations

import pytest

from relevo.job import LIVE, Ending, State
from relevo.store import Store, WorkerInfo
from relevo.testing import ManualClock
from tests.conformance.steps import (
    ANN,
    DAY,
    HOUR,
    MINUTE,
    add,
    audit_of,
    count,
    job,
    make,
    put,
    states,
    take,
    tally_of,
)


async def test_a_done_job_is_kept_as_long_as_it_said(store: Store, clock: ManualClock) -> None:
    """C23"""
    short = await make(store, State.DONE, keep=HOUR)
    long = await make(store, State.DONE, keep=DAY)
    clock.advance("59m")
    assert await store.prune(dead_keep=90 * DAY) == 0
    clock.advance("2m")

    assert await store.prune(dead_keep=90 * DAY) >= 1

    assert await states(store, short, long) == [None, State.DONE]
    clock.advance("1d")
    await store.prune(dead_keep=90 * DAY)
    assert await store.find([long]) == [None]


@pytest.mark.parametrize("ended", [State.DEAD, State.CANCELLED])
async def test_a_bad_end_is_kept_as_long_as_asked(
    store: Store, clock: ManualClock, ended: State
) -> None:
    """C23"""
    old = await make(store, ended, keep=0)
    clock.advance("2d")
    young = await make(store, ended, keep=0)

    assert await store.prune(dead_keep=3 * DAY) == 0
    assert await store.prune(dead_keep=DAY) >= 1

    assert await states(store, old, young) == [None, ended]
    assert sum(group.count for group in await store.groups()) == (ended is State.DEAD)


async def test_a_live_job_is_never_pruned(store: Store, clock: ManualClock) -> None:
    ids = [await make(store, live, f"app:module:{live}", keep=0) for live in LIVE]
    clock.advance("30d")

    assert await store.prune(dead_keep=MINUTE) == 0

    assert None not in await store.find(ids)


async def test_a_prune_takes_no_more_than_its_limit(store: Store, clock: ManualClock) -> None:
    """F48"""
    await put(store, *[job(keep=HOUR) for _ in range(30)])
    leases = await take(store, 30)
    kinds = [State.DONE, State.DEAD, State.CANCELLED]
    await store.settle([Ending(lease=lease, state=kinds[n % 3]) for n, lease in enumerate(leases)])
    clock.advance("2d")

    left = 30
    for _ in range(4):
        pruned = await store.prune(dead_keep=DAY, limit=9)
        assert 0 <= pruned <= 9
        assert left - 9 <= await count(store) <= left
        left = await count(store)

    assert left == 0
    assert await store.prune(dead_keep=DAY, limit=9) == 0


async def test_who_ended_together_is_pruned_in_bites(store: Store, clock: ManualClock) -> None:
    ids = await put(store, *[job(keep=HOUR) for _ in range(10)])
    leases = await take(store, 10)
    await store.settle([Ending(lease=lease, state=State.DONE) for lease in leases])
    clock.advance("61m")

    for pruned, left in ((3, 7), (3, 4), (3, 1), (1, 0)):
        assert await store.prune(dead_keep=DAY, limit=3) == pruned
        assert (await tally_of(store)).counts.get(State.DONE, 0) == left
        assert await count(store, states=frozenset({State.DONE})) == left
    assert await states(store, *ids) == [None] * 10


async def test_each_is_kept_its_own_time_whoever_ended_before(
    store: Store, clock: ManualClock
) -> None:
    """Long and short ones by turns: the long ones do not keep the others."""
    keeps = [DAY, HOUR, 2 * DAY, 2 * HOUR, DAY, HOUR]
    ids = [await make(store, State.DONE, keep=keep) for keep in keeps]
    together = await put(store, *(job(keep=keep) for keep in keeps))
    leases = await take(store, 10)
    await store.settle([Ending(lease=lease, state=State.DONE) for lease in leases])
    ids, keeps = ids + together, keeps * 2
    assert (await tally_of(store)).counts[State.DONE] == len(ids)

    for passed, step in ((HOUR, "61m"), (2 * HOUR, "1h"), (DAY, "22h"), (2 * DAY, "1d")):
        clock.advance(step)
        await store.prune(dead_keep=90 * DAY)
        left = [id for id, keep in zip(ids, keeps, strict=True) if keep > passed]
        assert [found is not None for found in await store.find(ids)] == [id in left for id in ids]
        assert (await tally_of(store)).counts.get(State.DONE, 0) == len(left)


async def test_a_pruned_job_leaves_no_trace_in_any_view(store: Store, clock: ManualClock) -> None:
    id = await make(store, State.DEAD, key="k", lane="l", thread="t")
    clock.advance("2d")

    await store.prune(dead_keep=DAY)

    assert await store.find([id]) == [None]
    assert await count(store) == 0
    assert await count(store, key="k") == 0
    assert await count(store, thread="t") == 0
    assert await store.groups() == []
    assert await store.retry([id], ANN) == [False]
    assert await store.cancel([id], ANN) == [False]
    assert all(n == 0 for tally in await store.tally() for n in tally.counts.values())


async def test_a_retried_job_is_no_longer_old(store: Store, clock: ManualClock) -> None:
    id = await make(store, State.DEAD)
    clock.advance("2d")
    await store.retry([id], ANN)

    await store.prune(dead_keep=DAY)

    assert await states(store, id) == [State.READY]


async def test_a_reopened_job_is_no_longer_old(store: Store, clock: ManualClock) -> None:
    id = await make(store, State.DEAD, key="k", unique="forever")
    clock.advance("2d")
    await store.insert([job(key="k", unique="forever")])

    await store.prune(dead_keep=DAY)

    assert await states(store, id) == [State.READY]


async def test_what_people_did_is_not_pruned_with_the_job(store: Store, clock: ManualClock) -> None:
    """C37"""
    id = await add(store)
    await store.cancel([id], ANN)
    clock.advance("2d")

    await store.prune(dead_keep=DAY)

    assert await audit_of(store, id) == ["cancel"]


async def test_workers_silent_for_a_day_are_pruned(store: Store, clock: ManualClock) -> None:
    gone = WorkerInfo(id="gone", host="h", pid=1, queues=[], concurrency=1)
    await store.beat(gone, MINUTE)
    clock.advance("12h")
    await store.prune(dead_keep=90 * DAY)
    assert [worker.id for worker in await store.workers()] == ["gone"]
    clock.advance("13h")

    await store.prune(dead_keep=90 * DAY)

    assert await store.workers() == []
