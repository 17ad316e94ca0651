"""unique="latest": of the jobs of one key that have not started, the one accepted last runs."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest

from relevo.ids import new_id
from relevo.job import Ending, Lease, NewJob, Receipt, State, Verdict
from relevo.store import Arrival, Store, Want
from relevo.testing import ManualClock
from tests.conformance.conftest import Handles
from tests.conformance.fresh import AT_ONCE
from tests.conformance.steps import (
    ANN,
    BOOM,
    DAY,
    HOUR,
    LEASE,
    OTHER,
    WORK,
    about,
    add,
    add_parent,
    count,
    end,
    job,
    look,
    put,
    state,
    states,
    take,
    take_id,
)
from tests.conformance.test_receive import kept
from tests.conformance.test_within import Session
from tests.conformance.test_within import session as session

GOES = [State.RUNNING, State.HELD, State.PARKED, State.SCHEDULED]


def latest(queue: str = WORK, **fields: Any) -> NewJob:
    return job(queue, **{"key": "k", "unique": "latest", **fields})


async def add_latest(store: Store, queue: str = WORK, **fields: Any) -> str:
    return (await put(store, latest(queue, **fields)))[0]


async def go(store: Store, wanted: State, queue: str = WORK, **fields: Any) -> Lease:
    """A job that has started and not ended; SCHEDULED stands for one that awaits a retry."""
    lease = await take_id(store, await add_latest(store, queue, **fields), queue)
    match wanted:
        case State.PARKED:
            assert await end(store, lease, wanted, park="breaker")
        case State.SCHEDULED:
            assert await end(store, lease, wanted, delay=HOUR, failure=BOOM)
        case State.HELD:
            assert await end(store, lease, wanted)
        case _:
            assert wanted is State.RUNNING
    assert await state(store, lease.id) is wanted
    return lease


async def is_replaced(store: Store, id: str, by: str) -> None:
    found = await look(store, id)
    assert (found.state, found.note) == (State.CANCELLED, f"replaced by {by}")
    assert found.ended_at is not None


# which one runs


async def test_each_is_a_job_of_its_own(store: Store) -> None:
    jobs = [latest(payload=b"%d" % n) for n in range(3)]
    for new in jobs:
        assert await store.insert([new]) == [Receipt(new.id, Verdict.NEW)]

    found = [await look(store, new.id) for new in jobs]

    assert [one.payload for one in found] == [b"0", b"1", b"2"]
    assert {(one.key, one.unique) for one in found} == {("k", "latest")}


@pytest.mark.parametrize("together", [True, False])
async def test_the_last_one_runs_and_replaces_the_others(store: Store, together: bool) -> None:
    jobs = [latest() for _ in range(4)]
    if together:
        await put(store, *jobs)
    else:
        for new in jobs:
            await put(store, new)
    newest = jobs[-1].id

    leases = await take(store, 9)

    assert [lease.id for lease in leases] == [newest]
    assert await take(store, 9) == []
    for old in jobs[:-1]:
        await is_replaced(store, old.id, newest)
    assert await end(store, leases[0])
    assert await take(store, 9) == []
    assert await state(store, newest) is State.DONE


async def test_one_after_the_other_all_run(store: Store) -> None:
    for _ in range(3):
        id = await add_latest(store)
        assert await end(store, await take_id(store, id))
        assert await state(store, id) is State.DONE


async def test_keys_and_queues_are_apart(store: Store) -> None:
    jobs = [
        latest(queue, key=f"k{n}") for _ in range(5) for queue in (WORK, OTHER) for n in range(10)
    ]
    await put(store, *jobs)

    leases = await take(store, 99, WORK, OTHER)

    assert {lease.id for lease in leases} == {new.id for new in jobs[-20:]}
    assert await count(store, states=frozenset({State.CANCELLED})) == 80


async def test_many_old_ones_do_not_stand_in_the_way(store: Store) -> None:
    """The newest is found behind more old ones than a claim wants."""
    jobs = [latest() for _ in range(300)]
    await put(store, *jobs)
    other = await add(store)

    leases = await take(store, 2)

    assert {lease.id for lease in leases} == {jobs[-1].id, other}


async def test_an_older_one_of_high_priority_does_not_run(store: Store) -> None:
    old = await add_latest(store, priority=0)
    newest = await add_latest(store, priority=2)

    await take_id(store, newest)

    await is_replaced(store, old, newest)


@pytest.mark.parametrize("store_name", AT_ONCE)
async def test_a_repeated_insert_never_becomes_newer(store: Store) -> None:
    old, newest = latest(), latest()
    await put(store, old)
    await put(store, newest)

    assert await store.insert([old]) == [Receipt(old.id, Verdict.IN_PROGRESS)]

    lease = await take_id(store, newest.id)
    assert await store.insert([old]) == [Receipt(old.id, Verdict.DONE)]
    assert await end(store, lease)
    assert await store.insert([old]) == [Receipt(old.id, Verdict.DONE)]
    assert await take(store) == []


@pytest.mark.parametrize("store_name", AT_ONCE)
async def test_a_repeated_insert_of_what_is_gone_starts_nothing(
    store: Store, clock: ManualClock
) -> None:
    old, newest = latest(remember=DAY), latest(remember=DAY)
    await put(store, old)
    await put(store, newest)
    await end(store, await take_id(store, newest.id))
    assert await store.erase([old.id, newest.id], [], ANN, act="forget-1") == (2, 0)

    for new in (old, newest):
        assert await store.insert([new]) == [Receipt(new.id, Verdict.DONE)]

    assert await take(store) == []


async def test_jobs_without_such_a_key_are_as_ever(store: Store) -> None:
    await add_latest(store)
    first = await add(store, key="plain")
    free = await add(store)

    assert await store.insert([job(key="plain")]) == [Receipt(first, Verdict.IN_PROGRESS)]
    assert {first, free} < {lease.id for lease in await take(store, 9)}


# delays


async def test_an_older_one_that_is_due_later_is_replaced(store: Store, clock: ManualClock) -> None:
    old = await add_latest(store, delay=HOUR)
    newest = await add_latest(store)

    assert await end(store, await take_id(store, newest))

    await is_replaced(store, old, newest)
    clock.advance("2h")
    assert await take(store) == []


async def test_the_newest_runs_when_it_is_due(store: Store, clock: ManualClock) -> None:
    old = await add_latest(store)
    newest = await add_latest(store, delay=HOUR)

    assert await take(store) == []

    clock.advance("61m")
    await take_id(store, newest)
    await is_replaced(store, old, newest)


async def test_a_newest_that_was_cancelled_replaces_nothing(store: Store) -> None:
    old = await add_latest(store)
    newest = await add_latest(store)
    assert await store.cancel([newest], ANN) == [True]

    await take_id(store, old)


# behind one that has started


@pytest.mark.parametrize("going", GOES)
async def test_others_wait_behind_one_that_has_started(store: Store, going: State) -> None:
    first = await go(store, going)
    old = await add_latest(store)
    newest = await add_latest(store)
    plain = await add(store)

    assert [lease.id for lease in await take(store, 9)] == [plain]

    assert await state(store, newest) is State.SCHEDULED
    assert await state(store, old) in (State.SCHEDULED, State.CANCELLED)
    assert await state(store, first.id) is going
    claim = await store.claim([Want(queue=WORK)], 9, "w1", LEASE)
    assert claim.leases == []


async def finish(store: Store, how: str, lease: Lease) -> None:
    match how:
        case "done" | "dead" | "cancelled":
            assert await end(store, lease, State(how))
        case "cancelled by a person":
            assert await store.cancel([lease.id], ANN) == [True]
        case "discarded":
            assert await end(store, lease, State.HELD)
            assert await store.discard([lease.id], ANN) == [True]
        case _:
            raise AssertionError(how)


@pytest.mark.parametrize("keep", [0, DAY])
@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("how", ["done", "dead", "cancelled", "cancelled by a person", "discarded"])
async def test_the_newest_goes_on_when_it_has_ended(
    store: Store, clock: ManualClock, how: str, seen: bool, keep: int
) -> None:
    """Whether or not a claim has met those that wait."""
    first = await go(store, State.RUNNING, attempts=1, keep=keep)
    old = await add_latest(store)
    newest = await add_latest(store)
    if seen:
        assert await take(store, 9) == []

    await finish(store, how, first)

    clock.advance("1s")
    await take_id(store, newest)
    await is_replaced(store, old, newest)


@pytest.mark.parametrize("going", [State.HELD, State.PARKED, State.SCHEDULED])
async def test_what_has_started_goes_first(store: Store, clock: ManualClock, going: State) -> None:
    """A job that is let go on, or whose retry is due, runs before what waits behind it."""
    first = await go(store, going)
    newest = await add_latest(store)
    assert await take(store, 9) == []
    match going:
        case State.HELD:
            assert await store.retry([first.id], ANN) == [True]
        case State.PARKED:
            assert await store.unpark("breaker") == 1
        case _:
            clock.advance("61m")

    lease = await take_id(store, first.id)
    assert await take(store, 9) == []
    assert await end(store, lease)

    clock.advance("1s")
    await take_id(store, newest)


async def test_a_worker_wakes_for_what_waited(store: Store, handles: Handles) -> None:
    (worker,) = await handles(1)
    first = await go(store, State.RUNNING)
    newest = await add_latest(store)
    claim = await worker.claim([Want(queue=WORK)], 9, "w2", LEASE)
    assert claim.leases == []

    assert await end(store, first)

    loop = asyncio.get_running_loop()
    began = loop.time()
    while not (leases := await take(worker, 9)):
        claim = await worker.claim([Want(queue=WORK)], 9, "w2", LEASE)
        due = 60.0 if claim.next_due is None else claim.next_due / 1_000
        leases = claim.leases
        if leases:
            break
        await worker.wait([WORK], min(due, 10.0))
        assert loop.time() - began < 5
    assert [lease.id for lease in leases] == [newest]
    assert loop.time() - began < 2


async def test_a_delay_of_its_own_is_kept_behind_another(store: Store, clock: ManualClock) -> None:
    first = await go(store, State.RUNNING)
    newest = await add_latest(store, delay=HOUR)
    assert await take(store, 9) == []
    assert await end(store, first)
    clock.advance("1s")
    assert await take(store, 9) == []

    clock.advance("1h")

    await take_id(store, newest)


async def test_a_poller_of_plan_blocks_between_its_turns(store: Store, clock: ManualClock) -> None:
    first = await go(store, State.RUNNING)
    assert await end(store, first, State.SCHEDULED, planned=True, delay=HOUR)
    newest = await add_latest(store)

    assert await take(store, 9) == []

    clock.advance("61m")
    lease = await take_id(store, first.id)
    assert await end(store, lease)
    clock.advance("1s")
    await take_id(store, newest)


# people


async def test_an_old_state_does_not_run_after_a_newer_one(store: Store) -> None:
    for keep in (0, DAY):
        with about(keep):
            queue = f"app:module:keep-{keep}"
            old = await go(store, State.RUNNING, queue)
            assert await end(store, old, State.DEAD)
            newest = await add_latest(store, queue, keep=keep)

            assert await store.retry([old.id], ANN) == [False]
            lease = await take_id(store, newest, queue)
            assert await store.retry([old.id], ANN) == [False]
            assert await end(store, lease)
            assert await store.retry([old.id], ANN) == [False]

            assert await state(store, old.id) is State.DEAD
            assert await take(store, 9, queue) == []


async def test_what_was_replaced_stays_replaced(store: Store) -> None:
    old = await add_latest(store)
    newest = await add_latest(store, keep=0)
    lease = await take_id(store, newest)
    assert await store.retry([old], ANN) == [False]
    assert await end(store, lease)

    assert await store.retry([old], ANN) == [False]

    await is_replaced(store, old, newest)


async def test_the_newest_may_be_retried(store: Store, clock: ManualClock) -> None:
    first = await go(store, State.RUNNING)
    assert await end(store, first, State.DEAD)
    assert await store.retry([first.id], ANN) == [True]
    second = await add_latest(store)

    lease = await take_id(store, first.id)  # it has started: what is newer waits
    assert await take(store, 9) == []
    assert await end(store, lease, State.DEAD)
    clock.advance("1s")
    lease = await take_id(store, second)
    assert await end(store, lease, State.DEAD)

    assert await store.retry([first.id, second], ANN) == [False, True]


async def test_replaced_ones_are_pruned(store: Store, clock: ManualClock) -> None:
    old = await add_latest(store)
    newest = await add_latest(store, keep=HOUR)
    assert await end(store, await take_id(store, newest))
    clock.advance("2d")

    await store.prune(dead_keep=DAY)

    assert await states(store, old, newest) == [None, None]
    assert await end(store, await take_id(store, await add_latest(store)))


# with others


async def test_a_parent_hears_of_a_child_that_was_replaced(store: Store) -> None:
    old = await add_latest(store)
    patient = await add_parent(store, old, policy="continue")
    strict = await add_parent(store, old)
    newest = await add_latest(store)
    assert await states(store, patient, strict) == [State.WAITING, State.WAITING]

    await take_id(store, newest)

    assert await states(store, patient, strict) == [State.READY, State.DEAD]


async def test_a_parent_that_is_the_newest_replaces_when_its_children_have_ended(
    store: Store,
) -> None:
    child = await add(store, OTHER)
    old = await add_latest(store, delay=HOUR)
    newest = await add_parent(store, child, queue=WORK, key="k", unique="latest")
    assert await take(store, 9) == []

    assert await end(store, await take_id(store, child, OTHER))

    await take_id(store, newest)
    await is_replaced(store, old, newest)


async def test_a_released_parent_replaces_what_is_due(store: Store) -> None:
    child = await add(store, OTHER)
    old = await add_latest(store)
    newest = await add_parent(store, child, queue=WORK, key="k", unique="latest")

    assert await end(store, await take_id(store, child, OTHER))

    await take_id(store, newest)
    await is_replaced(store, old, newest)
    assert await take(store, 9) == []


async def test_a_parent_that_waits_replaces_none(store: Store) -> None:
    """It may die with its child, and then no job of its key would have run."""
    child = await add(store, OTHER)
    old = await add_latest(store)
    newest = await add_parent(store, child, queue=WORK, key="k", unique="latest")
    lease = await take_id(store, old)
    assert await state(store, newest) is State.WAITING

    assert await end(store, await take_id(store, child, OTHER), State.DEAD)

    assert await state(store, newest) is State.DEAD
    assert await end(store, lease)
    assert await state(store, old) is State.DONE


async def test_a_parent_waits_behind_one_that_started_meanwhile(
    store: Store, clock: ManualClock
) -> None:
    child = await add(store, OTHER)
    older = await add_latest(store)
    old = await add_latest(store)
    newest = await add_parent(store, child, queue=WORK, key="k", unique="latest")
    lease = await take_id(store, old)
    await is_replaced(store, older, old)
    assert await end(store, await take_id(store, child, OTHER))
    assert await take(store, 9) == []

    assert await end(store, lease)

    clock.advance("1s")
    await take_id(store, newest)
    assert await state(store, old) is State.DONE


async def test_a_parent_that_waits_is_replaced(store: Store) -> None:
    child = await add(store, OTHER)
    old = await add_parent(store, child, queue=WORK, key="k", unique="latest")
    newest = await add_latest(store)

    await take_id(store, newest)

    await is_replaced(store, old, newest)
    assert await end(store, await take_id(store, child, OTHER))
    assert await state(store, old) is State.CANCELLED


async def test_a_bundle_may_have_several(store: Store) -> None:
    jobs = [latest(bundle="b"), latest(bundle="b"), job(bundle="b")]
    await put(store, *jobs)

    assert {lease.id for lease in await take(store, 9)} == {jobs[1].id, jobs[2].id}


async def test_lanes_limits_and_rates_hold(store: Store, clock: ManualClock) -> None:
    """What is replaced takes nothing of a limit or a rate."""
    for name, want in {
        "lane": Want(queue="app:module:lane", lane_limit=1),
        "lane-rate": Want(queue="app:module:lane-rate", lane_rate=(1, HOUR)),
        "limit": Want(queue="app:module:limit", limit=2),
        "rate": Want(queue="app:module:rate", rate=(2, HOUR)),
    }.items():
        with about(name):
            jobs = [
                latest(want.queue, key=f"k{n}", lane=f"lane{n}") for _ in range(20) for n in (1, 2)
            ]
            await put(store, *jobs)

            leases = await take(store, 9, want)

            assert {lease.id for lease in leases} == {new.id for new in jobs[-2:]}
            assert await take(store, 9, want) == []


async def test_a_delivery_brings_the_newest(store: Store) -> None:
    jobs = [latest() for _ in range(3)]
    answers = await store.receive([Arrival(kept(new_id()), (new,)) for new in jobs])
    assert [answer.kept.jobs for answer in answers] == [(new.id,) for new in jobs]

    await take_id(store, jobs[-1].id)

    assert await states(store, jobs[0].id, jobs[1].id) == [State.CANCELLED] * 2


async def test_the_newest_may_come_in_a_transaction(
    store: Store, session: Session | None, clock: ManualClock
) -> None:
    if session is None:
        return
    old = await add_latest(store)
    undone, newest = latest(), latest()
    await session.begin()
    assert (await store.insert_within(session.connection, [undone]))[0].verdict is Verdict.NEW
    await session.rollback()
    await session.begin()
    assert (await store.insert_within(session.connection, [newest]))[0].verdict is Verdict.NEW
    assert await state(store, old) is State.READY
    await session.commit()
    store.committed([WORK])

    lease = await take_id(store, newest.id)

    await is_replaced(store, old, newest.id)
    waits = await add_latest(store)
    assert await take(store, 9) == []
    await session.begin()
    ending = Ending(lease=lease, state=State.DONE)
    assert await store.settle_within(session.connection, [ending]) == [True]
    await session.commit()
    store.committed([WORK])
    clock.advance("1s")
    await take_id(store, waits)


async def test_what_a_rolled_back_newest_would_have_replaced_runs(
    store: Store, session: Session | None
) -> None:
    if session is None:
        return
    old = await add_latest(store)
    await session.begin()
    await store.insert_within(session.connection, [latest()])
    await session.rollback()

    await take_id(store, old)


async def test_many_workers_never_run_two_of_one_key(store: Store, handles: Handles) -> None:
    workers = [store, *await handles(2)]
    newest: dict[str, str] = {}
    runs: defaultdict[str, list[str]] = defaultdict(list)
    running: set[str] = set()
    is_over = asyncio.Event()

    async def provide(number: int) -> None:
        for n in range(12):
            keys = [f"k{number}-{k}" for k in range(3)]
            jobs = [latest(key=key) for key in keys for _ in range(1 + n % 2)]
            await put(workers[number], *jobs)
            newest.update({str(new.key): new.id for new in jobs})

    async def work(number: int) -> None:
        idle = 0
        while idle < 40:
            leases = await take(workers[number], 2, worker=f"w{number}")
            idle = 0 if leases or not is_over.is_set() else idle + 1
            for lease in leases:
                key = str(lease.key)
                assert key not in running
                running.add(key)
                runs[key].append(lease.id)
            await asyncio.sleep(0)
            for lease in leases:
                running.discard(str(lease.key))
            if leases:
                ends = [Ending(lease=lease, state=State.DONE) for lease in leases]
                assert all(await workers[number].settle(ends))
            elif is_over.is_set():
                await asyncio.sleep(0.03)

    async def all_provided() -> None:
        await asyncio.gather(*(provide(number) for number in range(3)))
        is_over.set()

    await asyncio.gather(all_provided(), *(work(number) for number in range(3)))

    assert {key: ran[-1] for key, ran in runs.items()} == newest
    for ran in runs.values():
        assert len(set(ran)) == len(ran)
    live = frozenset({State.READY, State.SCHEDULED, State.RUNNING})
    assert await count(store, states=live) == 0
