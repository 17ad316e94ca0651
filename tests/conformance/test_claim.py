"""Out: who gets which job, in which order, and for how long."""

from __future__ import annotations

import asyncio
from collections import Counter

from relevo.job import State
from relevo.store import Claim, QueueMode, Store, Want
from relevo.testing import ManualClock
from tests.conformance.conftest import Handles
from tests.conformance.steps import (
    ANN,
    HOUR,
    LEASE,
    MINUTE,
    OTHER,
    SECOND,
    WORK,
    about,
    add,
    drain,
    end,
    job,
    look,
    make,
    pause,
    put,
    state,
    take,
    take_id,
    take_one,
)


async def test_an_empty_queue_gives_nothing(store: Store) -> None:
    assert await store.claim([Want(queue=WORK)], 10, "w1", LEASE) == Claim([], None)


async def test_a_lease_says_what_to_run(store: Store) -> None:
    new = job(
        attempts=5,
        key="k",
        lane="lane-1",
        thread="thread-1",
        cause="cause-1",
        meta=b'{"a":1}',
        flow="flow-1",
        node="node-1",
        keep=HOUR,
    )
    await put(store, new)
    before = await store.now()

    lease = await take_one(store)

    assert (lease.id, lease.queue, lease.kind) == (new.id, WORK, "DoWork")
    assert bytes(lease.payload) == new.payload
    assert (lease.attempt, lease.attempts) == (1, 5)
    assert (lease.key, lease.lane, lease.thread) == ("k", "lane-1", "thread-1")
    assert (lease.cause, lease.meta) == ("cause-1", b'{"a":1}')
    assert (lease.flow, lease.node, lease.keep) == ("flow-1", "node-1", HOUR)
    assert lease.inserted_at == (await look(store, new.id)).inserted_at
    assert before <= lease.claimed_at <= await store.now()


async def test_a_running_job_shows_who_has_it_and_until_when(store: Store) -> None:
    id = await add(store)
    before = await store.now()
    await take_one(store, worker="host-1:77")
    found = await look(store, id)

    assert found.state is State.RUNNING
    assert found.worker == "host-1:77"
    assert found.attempt == 1
    assert found.lease_until is not None
    assert before + LEASE <= found.lease_until <= await store.now() + LEASE


async def test_a_job_is_given_once(store: Store) -> None:
    await add(store)

    assert len(await take(store, 10)) == 1
    assert await take(store, 10) == []


async def test_no_more_than_asked_for_is_given(store: Store) -> None:
    await put(store, *[job() for _ in range(10)])

    assert len(await take(store, 3)) == 3
    assert await take(store, 0) == []
    assert len(await take(store, 100)) == 7


async def test_only_the_wanted_queues_give(store: Store) -> None:
    await add(store)
    await add(store, OTHER)

    assert [lease.queue for lease in await take(store, 10, OTHER)] == [OTHER]
    assert await take(store, 10, OTHER, "app:module:unheard-of") == []


async def test_jobs_come_in_the_order_they_went_in(store: Store) -> None:
    ids = [id for _ in range(6) for id in await put(store, *[job() for _ in range(25)])]

    taken = [lease.id for _ in range(6) for lease in await take(store, 25)]

    assert taken == ids


async def test_priority_comes_first(store: Store) -> None:
    low, normal, high = (
        await add(store, priority=2),
        await add(store, priority=1),
        await add(store, priority=0),
    )
    second_high = await add(store, priority=0)

    assert [lease.id for lease in await take(store, 4)] == [high, second_high, normal, low]


async def test_due_time_comes_before_insertion(store: Store) -> None:
    now = await store.now()
    late = await add(store, run_at=now - MINUTE)
    early = await add(store, run_at=now - HOUR)
    same_a, same_b = await put(store, job(run_at=now - 2 * MINUTE), job(run_at=now - 2 * MINUTE))

    assert [lease.id for lease in await take(store, 4)] == [early, same_a, same_b, late]


async def test_a_scheduled_job_takes_its_place_by_due_time(
    store: Store, clock: ManualClock
) -> None:
    scheduled = await add(store, delay=MINUTE)
    clock.advance("2m")
    fresh = await add(store)

    assert [lease.id for lease in await take(store, 2)] == [scheduled, fresh]


async def test_priority_comes_before_due_time(store: Store, clock: ManualClock) -> None:
    old = await add(store, priority=1)
    clock.advance("1h")
    urgent = await add(store, priority=0)

    assert [lease.id for lease in await take(store, 2)] == [urgent, old]


async def test_a_scheduled_job_of_high_priority_overtakes_when_due(
    store: Store, clock: ManualClock
) -> None:
    normal = await add(store)
    urgent = await add(store, priority=0, delay=MINUTE)
    second = await add(store)
    assert [lease.id for lease in await take(store, 1)] == [normal]
    clock.advance("2m")

    assert [lease.id for lease in await take(store, 2)] == [urgent, second]


async def test_no_job_is_given_early(store: Store, clock: ManualClock) -> None:
    id = await add(store, delay=MINUTE)
    clock.advance("55s")
    assert await take(store) == []

    clock.advance("6s")

    assert (await take_one(store)).id == id


async def test_a_claim_says_when_to_look_again(store: Store, clock: ManualClock) -> None:
    await add(store, delay=HOUR)
    await add(store, OTHER, delay=MINUTE)

    empty = await store.claim([Want(queue=WORK)], 10, "w1", LEASE)
    both = await store.claim([Want(queue=WORK), Want(queue=OTHER)], 10, "w1", LEASE)

    assert empty.leases == both.leases == []
    assert empty.next_due is not None
    assert HOUR - 30 * SECOND < empty.next_due <= HOUR
    assert both.next_due is not None
    assert MINUTE - 30 * SECOND < both.next_due <= MINUTE
    clock.advance("2m")
    assert len(await take(store, 10, WORK, OTHER)) == 1


async def test_queues_share_a_claim_evenly(store: Store) -> None:
    queues = ["app:module:a", "app:module:b", "app:module:c"]
    for queue in queues:
        await put(store, *[job(queue) for _ in range(20)])

    taken = Counter(lease.queue for lease in await take(store, 12, *queues))

    assert taken == dict.fromkeys(queues, 4)


async def test_what_one_queue_leaves_goes_to_the_others(store: Store) -> None:
    await put(store, *[job() for _ in range(20)])
    await put(store, job(OTHER), job(OTHER))

    taken = Counter(lease.queue for lease in await take(store, 10, OTHER, WORK, "app:module:none"))

    assert taken == {WORK: 8, OTHER: 2}


async def test_one_slot_serves_all_queues_in_the_long_run(store: Store) -> None:
    await put(store, *[job() for _ in range(40)])
    await put(store, *[job(OTHER) for _ in range(40)])

    taken = Counter([(await take_one_of(store)) for _ in range(40)])

    assert min(taken[WORK], taken[OTHER]) >= 5


async def take_one_of(store: Store) -> str:
    (lease,) = await take(store, 1, WORK, OTHER)
    return lease.queue


async def test_a_paused_queue_gives_nothing(store: Store) -> None:
    await put(store, job(), job(OTHER))
    await pause(store, WORK)

    assert [lease.queue for lease in await take(store, 10, WORK, OTHER)] == [OTHER]

    assert await store.set_mode([WORK], QueueMode.OPEN, ANN) == [True]
    assert len(await take(store, 10)) == 1


async def test_a_draining_queue_gives_what_it_has(store: Store) -> None:
    id = await add(store)
    await drain(store, WORK)

    assert (await take_one(store)).id == id


async def test_a_second_run_spends_a_second_attempt(store: Store) -> None:
    id = await add(store)
    first = await take_id(store, id)
    await end(store, first, State.SCHEDULED)

    second = await take_id(store, id)

    assert (first.attempt, second.attempt) == (1, 2)
    assert first.token != second.token
    assert (await look(store, id)).attempt == 2


async def test_only_due_jobs_are_given(store: Store) -> None:
    for idle in set(State) - {State.READY, State.RUNNING}:
        with about(idle):
            id = await make(store, idle)

            assert await take(store, 10) == []
            assert await state(store, id) is idle


async def test_twenty_claimers_get_each_job_once(store: Store, handles: Handles) -> None:
    claimers = [store, *await handles(3)]
    ids = await put(store, *[job() for _ in range(500)])

    async def work(n: int) -> list[str]:
        mine: list[str] = []
        while leases := await take(claimers[n % 4], 7, worker=f"w{n}"):
            mine += [lease.id for lease in leases]
        return mine

    taken = [id for mine in await asyncio.gather(*(work(n) for n in range(20))) for id in mine]

    assert len(taken) == 500
    assert set(taken) == set(ids)


async def test_claimers_inserters_and_settlers_at_once_lose_nothing(
    store: Store, handles: Handles
) -> None:
    all_handles = [store, *await handles(2)]
    wanted = 300
    runs: Counter[str] = Counter()
    inserted: list[str] = []

    async def produce(n: int) -> None:
        for _ in range(10):
            inserted.extend(await put(all_handles[n], *[job() for _ in range(10)]))

    async def consume(n: int) -> None:
        while runs.total() < wanted:
            leases = await take(all_handles[n % 3], 10, worker=f"w{n}")
            runs.update(lease.id for lease in leases)
            for lease in leases:
                assert await end(all_handles[n % 3], lease)
            if not leases:
                await asyncio.sleep(0.01)

    async with asyncio.timeout(60):
        await asyncio.gather(*(produce(n) for n in range(3)), *(consume(n) for n in range(6)))

    assert set(runs) == set(inserted)
    assert set(runs.values()) == {1}
    assert await take(store, 10) == []


async def test_a_worker_may_serve_many_queues(store: Store) -> None:
    queues = [f"app:module:q{n}" for n in range(40)]
    await put(store, *[job(queue) for queue in queues])

    assert {lease.queue for lease in await take(store, 100, *queues)} == set(queues)


async def test_an_extended_lease_stays(store: Store, clock: ManualClock) -> None:
    lease = await take_id(store, await add(store))
    for _ in range(3):
        clock.advance("40s")
        assert await store.extend([lease], LEASE) == [True]

    assert await store.rescue() == []
    until = (await look(store, lease.id)).lease_until
    assert until is not None
    assert await store.now() + LEASE - 10 * SECOND < until <= await store.now() + LEASE

    clock.advance("61s")
    assert [rescued.id for rescued in await store.rescue()] == [lease.id]


async def test_a_lapsed_lease_that_nobody_took_can_be_extended(
    store: Store, clock: ManualClock
) -> None:
    lease = await take_id(store, await add(store))
    clock.advance("2m")

    assert await store.extend([lease], LEASE) == [True]
    assert await store.rescue() == []
    assert await end(store, lease)


async def test_a_lost_lease_cannot_be_extended(store: Store, clock: ManualClock) -> None:
    ids = await put(store, job(), job(), job(), job())
    lapsed, cancelled, settled, held = await take(store, 4)
    await end(store, settled)
    await end(store, held, State.HELD)
    await store.cancel([cancelled.id], ANN)
    clock.advance("2m")
    await store.rescue()
    await put(store, job())
    running = await take(store, 2, worker="w2")

    answers = await store.extend([lapsed, cancelled, settled, held, *running], LEASE)

    assert answers == [False, False, False, False, True, True]
    assert ids[0] in {lease.id for lease in running}


async def test_extending_nothing_is_nothing(store: Store) -> None:
    assert await store.extend([], LEASE) == []


async def test_a_lease_of_an_earlier_run_cannot_be_extended(store: Store) -> None:
    id = await add(store)
    first = await take_id(store, id)
    await end(store, first, State.SCHEDULED)
    second = await take_id(store, id)
    before = (await look(store, id)).lease_until

    assert await store.extend([first], HOUR) == [False]
    assert (await look(store, id)).lease_until == before
    assert await store.extend([second], HOUR) == [True]
