"""Retention: what has been kept long enough goes, and nothing else."""

from __future__ import annotations

import msgspec
import pytest

from relevo.ids import new_id
from relevo.job import LIVE, Ending, State
from relevo.store import Effect, EffectState, Store, WorkerInfo
from relevo.testing import ManualClock
from tests.conformance.steps import (
    ANN,
    DAY,
    HOUR,
    MINUTE,
    WORK,
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


async def conclude(
    store: Store, *jobs: str, queue: str = WORK, state: EffectState = EffectState.CONFIRMED
) -> None:
    """One effect of each job."""
    meant = [Effect(job=id, queue=queue, name="charge", key=f"key-{id}") for id in jobs]
    await store.intend(meant)
    told = [msgspec.structs.replace(one, state=state, result=b"1") for one in meant]
    assert await store.conclude(told) == [True] * len(jobs)


async def effects_of(store: Store, *jobs: str) -> int:
    return sum([len((await store.effects(job=id))[0]) for id in jobs])


@pytest.mark.parametrize(
    "concluded", [EffectState.CONFIRMED, EffectState.REFUSED, EffectState.FAILED]
)
async def test_effects_of_a_job_that_has_not_ended_stay(
    store: Store, clock: ManualClock, concluded: EffectState
) -> None:
    """However old they are: the job may be let go on, and must find them."""
    live = []
    for state in LIVE:
        queue = f"app:module:{state}"
        live.append(await make(store, state, queue, keep=0))
        await conclude(store, live[-1], queue=queue, state=concluded)
    ended = [await make(store, state, keep=0) for state in (State.DEAD, State.CANCELLED)]
    gone = [new_id(), "a job of another make"]
    await conclude(store, *ended, *gone, state=concluded)
    clock.advance("91d")

    while await store.prune(dead_keep=90 * DAY):
        pass

    assert await effects_of(store, *live) == len(live)
    assert await effects_of(store, *ended, *gone) == 0


async def test_effects_that_stay_do_not_keep_the_others(store: Store, clock: ManualClock) -> None:
    held = [await make(store, State.HELD) for _ in range(12)]
    await conclude(store, *held)
    clock.advance("1m")
    gone = [new_id() for _ in range(12)]
    await conclude(store, *gone)
    clock.advance("91d")

    for _ in range(6):
        assert await store.prune(dead_keep=90 * DAY, limit=3) <= 3

    assert (await effects_of(store, *held), await effects_of(store, *gone)) == (12, 0)


async def test_effects_go_when_their_job_has_ended(store: Store, clock: ManualClock) -> None:
    held = await make(store, State.HELD)
    await conclude(store, held)
    clock.advance("91d")
    assert await store.prune(dead_keep=90 * DAY) == 0
    assert await store.discard([held], ANN) == [True]
    clock.advance("91d")

    await store.prune(dead_keep=90 * DAY)

    assert await effects_of(store, held) == 0


async def test_effects_are_kept_for_as_long_as_deliveries(store: Store, clock: ManualClock) -> None:
    """A delivery that is replayed finds them, also where ended jobs are kept for a short time."""
    gone = [new_id() for _ in range(3)]
    await conclude(store, *gone)
    clock.advance("29d")
    assert await store.prune(dead_keep=DAY) == 0
    assert await effects_of(store, *gone) == 3
    clock.advance("2d")

    assert await store.prune(dead_keep=DAY) == 3

    assert await effects_of(store, *gone) == 0
