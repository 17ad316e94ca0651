"""Keys: one live job per key, and with unique="forever" one for good."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from relevo.job import ENDED, LIVE, After, Receipt, State, Unique, Verdict
from relevo.store import Store
from relevo.testing import ManualClock
from tests.conformance.conftest import Handles
from tests.conformance.steps import (
    ANN,
    DAY,
    HOUR,
    OTHER,
    about,
    add,
    count,
    end,
    insert,
    job,
    look,
    make,
    state,
    states,
    take,
    take_id,
)

UNIQUE: list[Unique] = ["unfinished", "forever"]


@pytest.mark.parametrize("unique", UNIQUE)
async def test_a_live_job_has_its_key(store: Store, unique: Unique) -> None:
    for live in LIVE:
        with about(live):
            queue = f"app:module:{live}"
            first = await make(store, live, queue, key="k", unique=unique)
            stored = await count(store)

            second = await insert(store, queue, key="k", unique=unique, payload=b"2")

            assert second == Receipt(first, Verdict.IN_PROGRESS)
            assert await state(store, first) is live
            assert (await look(store, first)).payload != b"2"
            assert await count(store) == stored


async def test_an_ended_job_frees_its_key(store: Store) -> None:
    for ended in ENDED:
        with about(ended):
            queue = f"app:module:{ended}"
            first = await make(store, ended, queue, key="k")

            second = await insert(store, queue, key="k")

            assert second.verdict is Verdict.NEW
            assert second.id != first
            assert await states(store, first, second.id) == [ended, State.READY]


async def test_keys_are_scoped_to_their_queue(store: Store) -> None:
    first = await add(store, key="k", unique="forever")
    second = await add(store, OTHER, key="k", unique="forever")

    assert (await insert(store, key="k", unique="forever")).id == first
    assert (await insert(store, OTHER, key="k", unique="forever")).id == second


async def test_the_text_of_queue_and_key_cannot_be_confused(store: Store) -> None:
    await add(store, "app:module:a", key="b:c")
    await add(store, "app:module:a", key="b")
    await add(store, "app:module:ab", key=":c")
    await add(store, "app:module:ab", key="c")
    await add(store, "app:module:a", key="bc")

    assert await count(store) == 5


async def test_the_second_of_a_batch_sees_the_first(store: Store) -> None:
    first, second = job(key="k"), job(key="k")

    answers = await store.insert([first, second])

    assert answers == [
        Receipt(first.id, Verdict.NEW),
        Receipt(first.id, Verdict.IN_PROGRESS),
    ]
    assert await store.find([second.id]) == [None]
    assert len(await take(store, 10)) == 1


@pytest.mark.parametrize("unique", UNIQUE)
async def test_fifty_callers_with_one_key_make_one_job(
    store: Store, handles: Handles, unique: Unique
) -> None:
    callers = [store, *await handles(2)]

    answers = await asyncio.gather(
        *(insert(callers[n % 3], key="k", unique=unique) for n in range(50))
    )

    verdicts = Counter(answer.verdict for answer in answers)
    assert verdicts == {Verdict.NEW: 1, Verdict.IN_PROGRESS: 49}
    assert len({answer.id for answer in answers}) == 1
    assert len(await take(store, 10)) == 1


async def test_done_for_good_answers_done(store: Store, clock: ManualClock) -> None:
    first = await make(store, State.DONE, key="k", unique="forever")

    assert await insert(store, key="k", unique="forever") == Receipt(first, Verdict.DONE)
    clock.advance("300d")
    assert await insert(store, key="k", unique="forever") == Receipt(first, Verdict.DONE)
    assert await take(store) == []
    assert await count(store) == 1


async def test_done_for_good_outlives_its_job(store: Store, clock: ManualClock) -> None:
    """F48"""
    pruned = await make(store, State.DONE, key="pruned", unique="forever", keep=HOUR)
    unkept = await add(store, key="unkept", unique="forever", keep=0)
    await end(store, await take_id(store, unkept))
    clock.advance("2h")
    await store.prune(dead_keep=DAY)
    assert await store.find([pruned, unkept]) == [None, None]
    clock.advance("365d")
    await store.prune(dead_keep=DAY)

    assert await insert(store, key="pruned", unique="forever") == Receipt(pruned, Verdict.DONE)
    assert await insert(store, key="unkept", unique="forever") == Receipt(unkept, Verdict.DONE)
    assert await count(store) == 0


async def test_done_once_does_not_outlive_its_job(store: Store) -> None:
    first = await add(store, key="k", keep=0)
    await end(store, await take_id(store, first))

    assert (await insert(store, key="k")).verdict is Verdict.NEW


@pytest.mark.parametrize("ended", [State.DEAD, State.CANCELLED])
async def test_a_key_for_good_reopens_what_ended_badly(store: Store, ended: State) -> None:
    first = await make(store, ended, key="k", unique="forever", attempts=2, payload=b"1")

    second = await insert(store, key="k", unique="forever", attempts=5, payload=b"2")

    assert second == Receipt(first, Verdict.REOPENED)
    found = await look(store, first)
    assert found.state is State.READY
    assert found.payload == b"2"
    assert (found.attempt, found.attempts) == (0, 5)
    assert (found.ended_at, found.lease_until) == (None, None)
    assert await count(store) == 1
    lease = await take_id(store, first)
    assert (bytes(lease.payload), lease.attempt) == (b"2", 1)


async def test_a_reopened_job_is_live_and_then_done_for_good(store: Store) -> None:
    first = await make(store, State.DEAD, key="k", unique="forever")
    assert (await insert(store, key="k", unique="forever")).verdict is Verdict.REOPENED

    assert await insert(store, key="k", unique="forever") == Receipt(first, Verdict.IN_PROGRESS)
    await end(store, await take_id(store, first))
    assert await insert(store, key="k", unique="forever") == Receipt(first, Verdict.DONE)


async def test_a_job_may_be_reopened_again_and_again(store: Store) -> None:
    first = await make(store, State.DEAD, key="k", unique="forever")
    for _ in range(3):
        again = await insert(store, key="k", unique="forever")
        assert again == Receipt(first, Verdict.REOPENED)
        await end(store, await take_id(store, first), State.DEAD)

    assert await count(store) == 1


@pytest.mark.parametrize("ended", [State.DEAD, State.CANCELLED])
async def test_a_pruned_bad_end_is_reopened_as_the_newcomer(
    store: Store, clock: ManualClock, ended: State
) -> None:
    first = await make(store, ended, key="k", unique="forever")
    clock.advance("91d")
    await store.prune(dead_keep=90 * DAY)
    assert await store.find([first]) == [None]
    newcomer = job(key="k", unique="forever")

    assert await store.insert([newcomer]) == [Receipt(newcomer.id, Verdict.REOPENED)]

    assert await state(store, newcomer.id) is State.READY
    again = await insert(store, key="k", unique="forever")
    assert again == Receipt(newcomer.id, Verdict.IN_PROGRESS)
    await end(store, await take_id(store, newcomer.id))
    again = await insert(store, key="k", unique="forever")
    assert again == Receipt(newcomer.id, Verdict.DONE)


async def test_a_newcomer_for_a_pruned_one_keeps_its_place_in_the_batch(
    store: Store, clock: ManualClock
) -> None:
    await make(store, State.DEAD, key="k", unique="forever")
    clock.advance("91d")
    await store.prune(dead_keep=90 * DAY)
    batch = [job(), job(key="k", unique="forever"), job(), job(key="other")]

    await store.insert(batch)

    assert [lease.id for lease in await take(store, 9)] == [new.id for new in batch]


async def test_many_callers_reopen_a_job_once(store: Store, handles: Handles) -> None:
    callers = [store, *await handles(2)]
    first = await make(store, State.DEAD, key="k", unique="forever")

    answers = await asyncio.gather(
        *(insert(callers[n % 3], key="k", unique="forever") for n in range(30))
    )

    verdicts = Counter(answer.verdict for answer in answers)
    assert verdicts == {Verdict.REOPENED: 1, Verdict.IN_PROGRESS: 29}
    assert {answer.id for answer in answers} == {first}
    assert len(await take(store, 10)) == 1


async def test_two_in_one_batch_reopen_once(store: Store) -> None:
    first = await make(store, State.DEAD, key="k", unique="forever")

    answers = await store.insert([job(key="k", unique="forever"), job(key="k", unique="forever")])

    assert answers == [Receipt(first, Verdict.REOPENED), Receipt(first, Verdict.IN_PROGRESS)]


async def test_a_retry_takes_the_key_again(store: Store) -> None:
    first = await make(store, State.DEAD, key="k")

    assert await store.retry([first], ANN) == [True]

    assert await insert(store, key="k") == Receipt(first, Verdict.IN_PROGRESS)


async def test_a_retry_is_refused_while_a_younger_job_has_the_key(store: Store) -> None:
    first = await make(store, State.DEAD, key="k")
    second = await add(store, key="k")

    assert await store.retry([first], ANN) == [False]
    assert await state(store, first) is State.DEAD
    await end(store, await take_id(store, second))
    assert await store.retry([first], ANN) == [True]


async def test_of_two_dead_with_one_key_one_is_retried(store: Store) -> None:
    first = await make(store, State.DEAD, key="k")
    second = await make(store, State.DEAD, key="k")

    assert sorted(await store.retry([first, second], ANN)) == [False, True]

    assert sorted(str(s) for s in await states(store, first, second)) == ["dead", "ready"]


async def test_a_retry_races_an_insert_and_one_has_the_key(store: Store, handles: Handles) -> None:
    (other,) = await handles(1)
    for n in range(10):
        key = f"k{n}"
        first = await make(store, State.DEAD, f"app:module:race-{n}", key=key)

        (retried,), inserted = await asyncio.gather(
            store.retry([first], ANN), insert(other, f"app:module:race-{n}", key=key)
        )

        assert retried == (inserted == Receipt(first, Verdict.IN_PROGRESS))
        assert retried or inserted.verdict is Verdict.NEW
        assert len(await take(store, 10, f"app:module:race-{n}")) == 1


async def test_every_bad_end_frees_the_key(store: Store) -> None:
    cancelled = await make(store, State.RUNNING, key="cancelled")
    await store.cancel([cancelled], ANN)
    discarded = await make(store, State.HELD, key="discarded")
    await store.discard([discarded], ANN)
    await make(store, State.DEAD, key="dead")
    child = await make(store, State.RUNNING, "app:module:child")
    parent = await add(store, key="parent", after=(After(child),))
    await store.cancel([child], ANN)
    assert await state(store, parent) is State.DEAD

    for key in ("cancelled", "discarded", "dead", "parent"):
        assert (await insert(store, key=key)).verdict is Verdict.NEW, key


async def test_a_rescued_job_keeps_its_key(store: Store, clock: ManualClock) -> None:
    first = await make(store, State.RUNNING, key="k")
    clock.advance("2m")
    await store.rescue()

    assert await insert(store, key="k") == Receipt(first, Verdict.IN_PROGRESS)


async def test_a_late_settle_does_not_free_a_key_that_went_on(
    store: Store, clock: ManualClock
) -> None:
    first = await add(store, key="k")
    lease = await take_id(store, first)
    await store.cancel([first], ANN)
    second = await add(store, key="k")

    assert await end(store, lease) is False

    assert await insert(store, key="k") == Receipt(second, Verdict.IN_PROGRESS)


async def test_pruning_an_old_job_does_not_free_its_successors_key(
    store: Store, clock: ManualClock
) -> None:
    first = await make(store, State.DONE, key="k", keep=HOUR)
    second = await add(store, key="k")
    clock.advance("2h")
    await store.prune(dead_keep=HOUR)
    assert await states(store, first, second) == [None, State.READY]

    assert await insert(store, key="k") == Receipt(second, Verdict.IN_PROGRESS)
