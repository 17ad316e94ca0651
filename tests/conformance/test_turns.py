"""Turns: a run that ends by plan raises its job's turn by one, and nothing else does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from relevo.job import Ending, Lease, State
from relevo.store import Store
from relevo.testing import ManualClock
from tests.conformance.steps import (
    ANN,
    BOOM,
    DAY,
    HOUR,
    add,
    end,
    insert,
    job,
    look,
    put,
    take,
    take_id,
)
from tests.conformance.test_within import Session
from tests.conformance.test_within import session as session


async def planned(store: Store, lease: Lease, **how: Any) -> None:
    assert await end(store, lease, State.SCHEDULED, planned=True, **how)


async def in_turn_one(store: Store, **fields: Any) -> str:
    """A ready job one of whose runs has ended by plan."""
    id = await add(store, **fields)
    await planned(store, await take_id(store, id), spend=False)
    return id


async def test_a_job_begins_in_turn_nought(store: Store) -> None:
    id = await add(store)

    assert (await look(store, id)).turn == 0
    assert (await take_id(store, id)).turn == 0


async def test_a_planned_end_raises_the_turn(store: Store) -> None:
    id = await add(store)
    for turn in range(300):
        lease = await take_id(store, id)
        assert lease.turn == turn
        await planned(store, lease, spend=False)

    assert (await look(store, id)).turn == 300


@pytest.mark.parametrize("spend", [True, False])
async def test_an_unplanned_repetition_leaves_the_turn(store: Store, spend: bool) -> None:
    id = await in_turn_one(store, attempts=9)
    lease = await take_id(store, id)

    assert await end(store, lease, State.SCHEDULED, spend=spend, failure=BOOM)

    assert (await take_id(store, id)).turn == 1
    assert (await look(store, id)).turn == 1


@pytest.mark.parametrize("aside", [State.PARKED, State.HELD, State.DEAD])
async def test_what_goes_on_after_a_pause_keeps_its_turn(store: Store, aside: State) -> None:
    id = await in_turn_one(store)
    lease = await take_id(store, id)
    park = "breaker" if aside is State.PARKED else None
    assert await end(store, lease, aside, park=park, spend=aside is not State.PARKED)

    if aside is State.PARKED:
        assert await store.unpark("breaker") == 1
    else:
        assert await store.retry([id], ANN) == [True]

    assert (await take_id(store, id)).turn == 1


async def test_a_rescued_job_keeps_its_turn(store: Store, clock: ManualClock) -> None:
    id = await in_turn_one(store)
    await take_id(store, id)
    clock.advance("2m")
    await store.rescue()

    assert (await take_id(store, id)).turn == 1


async def test_a_cancelled_and_retried_job_keeps_its_turn(store: Store) -> None:
    id = await in_turn_one(store)
    assert await store.cancel([id], ANN) == [True]
    assert await store.retry([id], ANN) == [True]

    assert (await take_id(store, id)).turn == 1


async def test_a_reopened_job_keeps_its_turn(store: Store) -> None:
    id = await in_turn_one(store, key="k", unique="forever")
    assert await end(store, await take_id(store, id), State.DEAD)
    assert (await insert(store, key="k", unique="forever")).id == id

    assert (await take_id(store, id)).turn == 1


async def test_a_lost_lease_raises_no_turn(store: Store, clock: ManualClock) -> None:
    id = await add(store)
    lease = await take_id(store, id)
    clock.advance("2m")
    await store.rescue()

    assert await end(store, lease, State.SCHEDULED, planned=True) is False

    assert (await take_id(store, id)).turn == 0


async def test_a_done_job_shows_its_turn(store: Store) -> None:
    id = await in_turn_one(store)

    assert await end(store, await take_id(store, id))

    found = await look(store, id)
    assert (found.state, found.turn) == (State.DONE, 1)


async def test_each_of_a_batch_has_its_own_turn(store: Store) -> None:
    ids = await put(store, *[job(attempts=99) for _ in range(30)])
    expected = dict.fromkeys(ids, 0)
    for _ in range(4):
        leases = await take(store, 30)
        assert {lease.id: lease.turn for lease in leases} == expected
        endings = [
            Ending(lease=lease, state=State.SCHEDULED, planned=n % 3 == 0, spend=n % 2 == 0)
            for n, lease in enumerate(leases)
        ]
        assert await store.settle(endings) == [True] * 30
        for ending in endings:
            expected[ending.lease.id] += ending.planned

    assert {id: (await look(store, id)).turn for id in ids} == expected


async def test_turns_are_right_while_ends_and_claims_go_together(store: Store) -> None:
    """What a worker does: it ends some and claims the next at the same time."""
    pollers = await put(store, *[job(attempts=99) for _ in range(5)])
    turns = dict.fromkeys(pollers, 0)
    leases = await take(store, 10)
    for _ in range(12):
        await put(store, *[job(keep=0) for _ in range(3)])
        endings = [
            Ending(lease=lease, state=State.SCHEDULED, planned=True, spend=False)
            if lease.id in turns
            else Ending(lease=lease, state=State.DONE)
            for lease in leases
        ]
        settled, leases = await asyncio.gather(store.settle(endings), take(store, 10))
        assert all(settled)
        for ending in endings:
            if ending.planned:
                turns[ending.lease.id] += 1
        leases += await take(store, 20)
        assert {lease.id: lease.turn for lease in leases if lease.id in turns} == turns


async def test_a_planned_end_within_a_transaction(store: Store, session: Session | None) -> None:
    if session is None:
        return
    id = await add(store)
    for turn, ending in enumerate([session.rollback, session.commit, session.commit]):
        lease = await take_id(store, id)
        await session.begin()
        how = Ending(lease=lease, state=State.SCHEDULED, planned=True, spend=False)
        assert await store.settle_within(session.connection, [how]) == [True]
        await ending()
        if turn == 0:
            assert (await look(store, id)).turn == 0
            assert await end(store, lease, State.SCHEDULED, spend=False)
        else:
            assert (await look(store, id)).turn == turn


async def test_turns_outlive_upkeep(store: Store, clock: ManualClock) -> None:
    id = await in_turn_one(store, keep=DAY)
    clock.advance("1h")
    await store.prune(dead_keep=HOUR)

    assert (await take_id(store, id)).turn == 1
