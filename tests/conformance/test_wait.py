"""Waiting: whoever sleeps is woken when there may be work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable

import pytest

from relevo.job import State
from relevo.store import Edit, QueueMode, Store, Want
from relevo.testing import ManualClock
from tests.conformance.conftest import Handles
from tests.conformance.steps import (
    ANN,
    HOUR,
    LEASE,
    OTHER,
    WORK,
    add,
    add_parent,
    end,
    job,
    make,
    pause,
    put,
    take,
    take_id,
)

LONG = 20.0
SOON = 6.0


async def seconds(waiting: Awaitable[object]) -> float:
    began = time.monotonic()
    await waiting
    return time.monotonic() - began


async def sleeper(store: Store, *queues: str) -> asyncio.Task[float]:
    """Someone who found nothing, and now waits for work."""
    queues = queues or (WORK,)
    assert await take(store, 10, *queues) == []
    task = asyncio.create_task(seconds(store.wait(queues, LONG)))
    await asyncio.wait({task}, timeout=0.3)
    return task


async def test_a_wait_without_work_ends_in_time(store: Store) -> None:
    await take(store)

    assert await seconds(store.wait([WORK], 0.3)) < SOON
    assert await seconds(store.wait([WORK, OTHER], 0)) < SOON


async def test_a_wait_lasts_while_there_is_no_work(store: Store) -> None:
    """A loop of claim and wait may be woken for nothing, but not all the time."""
    deadline = time.monotonic() + 1.0
    rounds = 0
    while (left := deadline - time.monotonic()) > 0:
        assert await take(store) == []
        await store.wait([WORK], left)
        rounds += 1

    assert rounds <= 10


async def test_an_insert_wakes_the_same_handle(store: Store) -> None:
    waiting = await sleeper(store)

    await add(store)

    assert await waiting < SOON
    assert len(await take(store)) == 1


async def test_an_insert_wakes_another_handle(store: Store, handles: Handles) -> None:
    (worker,) = await handles(1)
    waiting = await sleeper(worker)

    await add(store)

    assert await waiting < SOON
    assert len(await take(worker)) == 1


async def test_one_of_many_queues_is_enough(store: Store, handles: Handles) -> None:
    (worker,) = await handles(1)
    queues = [f"app:module:q{n}" for n in range(20)]
    waiting = await sleeper(worker, *queues)

    await add(store, queues[13])

    assert await waiting < SOON


async def test_a_wake_up_between_claim_and_wait_is_not_lost(store: Store, handles: Handles) -> None:
    (worker,) = await handles(1)
    for handle in (store, worker):
        for _ in range(5):
            assert await take(handle, 10) == []
            await add(store)

            assert await seconds(handle.wait([WORK], LONG)) < SOON
            assert len(await take(handle, 10)) == 1


async def test_what_is_scheduled_between_claim_and_wait_is_taken_when_it_is_due(
    store: Store, handles: Handles
) -> None:
    """The claim told of no next due time, as it was running; nothing else will wake the worker."""
    (other,) = await handles(1)
    for handle in (store, other):
        await add(store)
        await store.wait([WORK], 0.1)
        (running,) = await take(store, 10)
        assert await take(store, 10) == []
        await end(handle, running, State.SCHEDULED, delay=500, spend=False)

        began, got = time.monotonic(), []
        idle = LONG
        while not got and time.monotonic() - began < LONG:
            await store.wait([WORK], idle)
            claim = await store.claim([Want(queue=WORK)], 10, "w1", LEASE)
            got = claim.leases
            idle = LONG if claim.next_due is None else claim.next_due / 1_000
        assert [lease.id for lease in got] == [running.id]
        assert time.monotonic() - began < SOON
        await end(store, got[0])


async def test_every_sleeper_gets_work_in_the_end(store: Store, handles: Handles) -> None:
    workers = [store, *await handles(3)]
    done: list[str] = []

    async def work(handle: Store) -> None:
        while len(done) < 40:
            leases = await take(handle, 1)
            for lease in leases:
                await end(handle, lease)
                done.append(lease.id)
            if not leases and len(done) < 40:
                await handle.wait([WORK], 2.0)

    async with asyncio.timeout(30):
        tasks = [asyncio.create_task(work(handle)) for handle in workers]
        ids = [await add(workers[n % 4]) for n in range(40)]
        await asyncio.gather(*tasks)

    assert sorted(done) == sorted(ids)


async def test_a_cancelled_wait_leaves_nothing_behind(store: Store) -> None:
    for _ in range(5):
        waiting = asyncio.create_task(store.wait([WORK], LONG))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    sleeping = await sleeper(store)

    await add(store)

    assert await sleeping < SOON


async def test_two_waits_on_one_handle_both_wake(store: Store) -> None:
    first, second = await sleeper(store, WORK), await sleeper(store, OTHER)

    await put(store, job(WORK), job(OTHER))

    assert await first < SOON
    assert await second < SOON


@pytest.mark.parametrize(
    "how",
    [
        "retry",
        "unpark",
        "resume",
        "release",
        "requeue",
        "give up",
        "rescue",
        "gone",
        "reopen",
        "edit",
    ],
)
async def test_whatever_makes_a_job_ready_wakes(
    store: Store, handles: Handles, clock: ManualClock, how: str
) -> None:
    (worker,) = await handles(1)
    match how:
        case "retry":
            id = await make(store, State.DEAD)
        case "unpark":
            id = await make(store, State.PARKED)
        case "resume":
            id = await add(store)
            await pause(store, WORK)
        case "release":
            child = await add(store, OTHER)
            id = await add_parent(store, child, queue=WORK)
            child_lease = await take_id(store, child, OTHER)
        case "requeue" | "give up" | "rescue" | "gone":
            id = await add(store)
            lease = await take_id(store, id, lease=LEASE)
        case "reopen":
            id = await make(store, State.DEAD, key="k", unique="forever")
        case _:
            id = await add(store, delay=HOUR)
    if how == "rescue":
        clock.advance("2m")
    waiting = await sleeper(worker)

    match how:
        case "retry":
            await store.retry([id], ANN)
        case "unpark":
            await store.unpark("breaker")
        case "resume":
            await store.set_mode([WORK], QueueMode.OPEN, ANN)
        case "release":
            await end(store, child_lease)
        case "requeue":
            await end(store, lease, State.SCHEDULED)
        case "give up":
            await end(store, lease, State.SCHEDULED, spend=False, released=True)
        case "rescue":
            await store.rescue()
        case "gone":
            await store.rescue(worker="w1")
        case "reopen":
            await store.insert([job(key="k", unique="forever")])
        case _:
            await store.edit([Edit(id=id, run_at=0)], ANN)

    assert await waiting < SOON
    assert [found.id for found in await take(worker)] == [id]


@pytest.mark.parametrize(
    "want",
    [Want(queue=WORK, limit=1), Want(queue=WORK, lane_limit=1), Want(queue=WORK, ordered=True)],
)
async def test_a_freed_slot_is_not_slept_over(store: Store, handles: Handles, want: Want) -> None:
    """Whoever met a full limit is woken when a slot is free, or told to look again soon."""
    (worker,) = await handles(1)
    await put(store, job(lane="a"), job(lane="a"))
    (running,) = await take(store, 1, want)
    claim = await worker.claim([want], 1, "w2", LEASE)
    assert claim.leases == []
    length = LONG if claim.next_due is None else claim.next_due / 1000
    waiting = asyncio.create_task(seconds(worker.wait([WORK], length)))
    await asyncio.wait({waiting}, timeout=0.3)

    await end(store, running)

    assert await waiting < SOON
    assert len(await take(worker, 1, want)) == 1
