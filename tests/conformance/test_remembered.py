"""Remembered ids: what was asked for under an id is not done again while the id is remembered."""

from __future__ import annotations

import pytest

from relevo.ids import new_id
from relevo.job import After, NewJob, Receipt, State, Verdict
from relevo.relay import Relayed
from relevo.store import KNOWN, Arrival, QueueMode, Store
from relevo.testing import ManualClock
from tests.conformance.fresh import AT_ONCE
from tests.conformance.steps import (
    ANN,
    DAY,
    HOUR,
    OTHER,
    add,
    count,
    drain,
    end,
    insert,
    job,
    look,
    make,
    put,
    state,
    states,
    take,
    take_id,
)
from tests.conformance.test_receive import kept, receive
from tests.conformance.test_within import Session
from tests.conformance.test_within import session as session

Answer = tuple[str, Verdict]


async def ask(store: Store, *jobs: NewJob) -> list[Answer]:
    return [(receipt.id, receipt.verdict) for receipt in await store.insert(jobs)]


async def gone(store: Store, clock: ManualClock, how: str) -> NewJob:
    """A job with a remembered id, whose row is gone."""
    new = job(remember=DAY, keep=0 if how == "unkept" else HOUR)
    await put(store, new)
    lease = await take_id(store, new.id)
    assert await end(store, lease, State.DEAD if how.startswith("dead") else State.DONE)
    match how:
        case "pruned" | "dead and pruned":
            clock.advance("2h")
            await store.prune(dead_keep=HOUR)
        case "erased" | "dead and erased":
            assert await store.erase([new.id], [], ANN, act="forget-1") == (1, 0)
        case _:
            assert how == "unkept"
            if isinstance(store, Relayed):
                clock.advance(f"{KNOWN}ms")
                await store.prune(dead_keep=HOUR)
    assert await store.find([new.id]) == [None]
    return new


HOWS = ["pruned", "dead and pruned", "erased", "dead and erased", "unkept"]


@pytest.mark.parametrize("how", HOWS)
async def test_an_id_answers_after_its_row_is_gone(
    store: Store, clock: ManualClock, how: str
) -> None:
    new = await gone(store, clock, how)

    for _ in range(2):
        assert await ask(store, new) == [(new.id, Verdict.DONE)]

    assert await take(store, 9) == []
    assert await store.find([new.id]) == [None]
    assert await count(store) == 0


async def test_many_that_are_not_kept_are_remembered_each(store: Store, clock: ManualClock) -> None:
    batch = [job(keep=0, remember=DAY if n % 2 else 0) for n in range(20)]
    await put(store, *batch)
    for lease in await take(store, 20):
        assert await end(store, lease)
    clock.advance("2m")  # a relayed store knows each job for a minute
    await store.prune(dead_keep=DAY)

    answers = await ask(store, *batch)

    verdicts = [Verdict.DONE if n % 2 else Verdict.NEW for n in range(20)]
    assert answers == list(zip([new.id for new in batch], verdicts, strict=True))


@pytest.mark.parametrize("how", HOWS)
async def test_an_id_is_forgotten_when_its_time_is_over(
    store: Store, clock: ManualClock, how: str
) -> None:
    new = await gone(store, clock, how)
    clock.advance("23h")
    await store.prune(dead_keep=HOUR)
    assert await ask(store, new) == [(new.id, Verdict.DONE)]

    clock.advance("2h")
    await store.prune(dead_keep=HOUR)

    assert await ask(store, new) == [(new.id, Verdict.NEW)]
    assert [lease.id for lease in await take(store)] == [new.id]


async def test_an_id_that_is_not_to_be_remembered_is_not(store: Store, clock: ManualClock) -> None:
    new = job(keep=HOUR)
    await put(store, new)
    await end(store, await take_id(store, new.id))
    clock.advance("2h")
    await store.prune(dead_keep=HOUR)

    assert await ask(store, new) == [(new.id, Verdict.NEW)]


async def test_an_id_that_joined_is_answered_by_the_job_it_joined(store: Store) -> None:
    first = await add(store, key="k")
    second = job(key="k", remember=DAY)
    assert await ask(store, second) == [(first, Verdict.IN_PROGRESS)]
    assert await ask(store, second) == [(first, Verdict.IN_PROGRESS)]
    lease = await take_id(store, first)
    assert await ask(store, second) == [(first, Verdict.IN_PROGRESS)]

    assert await end(store, lease)

    assert await ask(store, second) == [(first, Verdict.DONE)]
    third = await add(store, key="k")
    assert await ask(store, second) == [(first, Verdict.DONE)]
    assert [one.id for one in await take(store, 9)] == [third]
    assert await store.find([second.id]) == [None]


async def test_an_id_that_joined_outlives_the_row_it_joined(
    store: Store, clock: ManualClock
) -> None:
    first = await add(store, key="k", keep=0)
    second = job(key="k", remember=DAY)
    assert await ask(store, second) == [(first, Verdict.IN_PROGRESS)]
    assert await end(store, await take_id(store, first))

    assert await ask(store, second) == [(first, Verdict.DONE)]
    clock.advance("23h")
    await store.prune(dead_keep=HOUR)
    assert await ask(store, second) == [(first, Verdict.DONE)]
    clock.advance("2h")
    await store.prune(dead_keep=HOUR)
    assert await ask(store, second) == [(second.id, Verdict.NEW)]


async def test_an_id_that_found_its_key_done_for_good(store: Store) -> None:
    first = await make(store, State.DONE, key="k", unique="forever")
    second = job(key="k", unique="forever", remember=DAY)

    for _ in range(2):
        assert await ask(store, second) == [(first, Verdict.DONE)]


async def test_an_id_that_reopened_reopens_once(store: Store) -> None:
    first = await make(store, State.DEAD, key="k", unique="forever")
    second = job(key="k", unique="forever", remember=DAY)
    assert await ask(store, second) == [(first, Verdict.REOPENED)]
    assert await ask(store, second) == [(first, Verdict.IN_PROGRESS)]
    assert await end(store, await take_id(store, first), State.DEAD)

    assert await ask(store, second) == [(first, Verdict.DONE)]

    assert await state(store, first) is State.DEAD
    assert await take(store) == []


async def test_the_second_of_a_batch_is_the_first(store: Store) -> None:
    first = await add(store, key="k")
    second, third = job(key="k", remember=DAY), job(remember=DAY)

    answers = await ask(store, second, third, second, third)

    joined = (first, Verdict.IN_PROGRESS)
    assert answers == [joined, (third.id, Verdict.NEW), joined, (third.id, Verdict.IN_PROGRESS)]
    assert await count(store) == 2


async def test_what_is_known_keeps_its_place_among_what_is_new(
    store: Store, clock: ManualClock
) -> None:
    known = await gone(store, clock, "pruned")
    before, after = job(), job(key="k", remember=DAY)

    answers = await ask(store, before, known, after)

    assert answers == [
        (before.id, Verdict.NEW),
        (known.id, Verdict.DONE),
        (after.id, Verdict.NEW),
    ]
    assert await count(store) == 2


async def test_a_draining_queue_still_knows(store: Store, clock: ManualClock) -> None:
    known = await gone(store, clock, "pruned")
    first = await add(store, key="k")
    joined = job(key="k", remember=DAY)
    await ask(store, joined)
    await drain(store, known.queue)
    fresh = job(OTHER, bundle="b")

    answers = await ask(store, known, joined, fresh)

    assert answers == [
        (known.id, Verdict.DONE),
        (first, Verdict.IN_PROGRESS),
        (fresh.id, Verdict.NEW),
    ]
    assert await store.set_mode([known.queue], QueueMode.OPEN, ANN) == [True]


async def test_a_key_free_again_is_not_taken_by_a_repetition(
    store: Store, clock: ManualClock
) -> None:
    """A keyed job's own id, repeated long after its end, starts nothing."""
    new = job(key="k", keep=HOUR, remember=DAY)
    await put(store, new)
    await end(store, await take_id(store, new.id))
    clock.advance("2h")
    await store.prune(dead_keep=HOUR)

    assert await ask(store, new) == [(new.id, Verdict.DONE)]
    other = await insert(store, key="k")
    assert other.verdict is Verdict.NEW
    assert await ask(store, new) == [(new.id, Verdict.DONE)]


async def test_a_parent_goes_on_after_a_child_that_is_only_remembered(
    store: Store, clock: ManualClock
) -> None:
    child = await gone(store, clock, "pruned")
    parent = job(OTHER, after=(After(child.id),))

    answers = await ask(store, child, parent)

    assert answers == [(child.id, Verdict.DONE), (parent.id, Verdict.NEW)]
    assert await state(store, parent.id) is State.READY


async def test_a_parent_waits_for_the_job_that_its_child_joined(store: Store) -> None:
    first = await add(store, key="k")
    child = job(key="k", remember=DAY)
    await ask(store, child)
    parent = job(OTHER, after=(After(child.id),))

    await ask(store, child, parent)

    assert await state(store, parent.id) is State.WAITING
    await end(store, await take_id(store, first))
    assert await state(store, parent.id) is State.READY


@pytest.mark.parametrize("how", HOWS)
async def test_a_delivery_starts_nothing_twice(store: Store, clock: ManualClock, how: str) -> None:
    known = await gone(store, clock, how)
    fresh = job(remember=DAY)

    answer = await receive(store, kept(new_id()), known, fresh)

    assert answer.verdict is Verdict.NEW
    assert answer.kept.jobs == (known.id, fresh.id)
    assert [lease.id for lease in await take(store, 9)] == [fresh.id]


@pytest.mark.parametrize("store_name", AT_ONCE)
async def test_deliveries_with_new_and_known_ids_come_together(
    store: Store, clock: ManualClock
) -> None:
    known = await gone(store, clock, "unkept")
    first = await add(store, key="k")
    joined = job(key="k", remember=DAY)
    batch = [job(remember=DAY) for _ in range(10)]
    await ask(store, joined)

    answers = await store.receive(
        [
            Arrival(kept(new_id()), (known,)),
            *[Arrival(kept(new_id()), (new,)) for new in batch],
            Arrival(kept(new_id()), (joined, known)),
        ]
    )

    assert [answer.kept.jobs for answer in answers] == [
        (known.id,),
        *[(new.id,) for new in batch],
        (first, known.id),
    ]
    assert await count(store) == 11


@pytest.mark.parametrize("store_name", AT_ONCE)
async def test_what_joins_in_a_delivery_is_remembered(store: Store) -> None:
    first = await add(store, key="k")
    joined = job(key="k", remember=DAY)
    answer = await receive(store, kept(new_id()), joined)
    assert answer.kept.jobs == (first,)
    await end(store, await take_id(store, first))

    assert await ask(store, joined) == [(first, Verdict.DONE)]


@pytest.mark.parametrize("store_name", AT_ONCE)
async def test_ids_are_known_within_a_transaction(
    store: Store, session: Session | None, clock: ManualClock
) -> None:
    if session is None:
        return
    known = await gone(store, clock, "pruned")
    first = await add(store, key="k")
    joined, undone = job(key="k", remember=DAY), job(key="k", remember=DAY)
    await session.begin()
    await store.insert_within(session.connection, [undone])
    await session.rollback()

    await session.begin()
    answers = await store.insert_within(session.connection, [known, joined])
    await session.commit()

    assert [(one.id, one.verdict) for one in answers] == [
        (known.id, Verdict.DONE),
        (first, Verdict.IN_PROGRESS),
    ]
    await end(store, await take_id(store, first))
    assert await ask(store, joined) == [(first, Verdict.DONE)]
    assert await ask(store, undone) == [(undone.id, Verdict.NEW)]


async def test_a_job_shows_how_long_it_is_remembered(store: Store) -> None:
    id = await add(store, remember=DAY)

    assert (await look(store, id)).remember == DAY
    assert (await look(store, await add(store))).remember == 0


async def test_a_row_that_is_there_answers_itself(store: Store) -> None:
    new = job(remember=DAY)
    assert await store.insert([new]) == [Receipt(new.id, Verdict.NEW)]
    assert await ask(store, new) == [(new.id, Verdict.IN_PROGRESS)]
    await end(store, await take_id(store, new.id))

    assert await ask(store, new) == [(new.id, Verdict.DONE)]
    assert await states(store, new.id) == [State.DONE]
