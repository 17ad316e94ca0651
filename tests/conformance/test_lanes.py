"""Lanes take turns; limits, rates and order hold over the whole fleet."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest
from msgspec.structs import replace

from relevo.job import Lease, State
from relevo.store import RATE_MARGIN, Store, Want
from relevo.testing import ManualClock
from tests.conformance.conftest import Handles
from tests.conformance.steps import (
    ANN,
    HOUR,
    LEASE,
    MINUTE,
    WORK,
    add,
    end,
    job,
    pause,
    put,
    take,
    take_one,
)

ORDERED = Want(queue=WORK, ordered=True, lane_limit=1)


async def fill(store: Store, **sizes: int) -> dict[str, list[str]]:
    """Jobs of several lanes, one lane after the other."""
    return {
        lane: await put(store, *[job(lane=lane) for _ in range(size)])
        for lane, size in sizes.items()
    }


def lanes(leases: list[Lease]) -> Counter[str | None]:
    return Counter(lease.lane for lease in leases)


async def test_lanes_take_turns(store: Store) -> None:
    """F34"""
    await fill(store, hot=200, a=3, b=3)

    assert lanes(await take(store, 9)) == {"hot": 3, "a": 3, "b": 3}
    assert lanes(await take(store, 9)) == {"hot": 9}


async def test_lanes_take_turns_from_claim_to_claim(store: Store) -> None:
    await fill(store, hot=50, a=4, b=4)

    served = [(await take_one(store)).lane for _ in range(9)]

    assert Counter(served) == {"hot": 3, "a": 3, "b": 3}
    assert all(set(served[at : at + 3]) == {"hot", "a", "b"} for at in (0, 3, 6))


async def test_a_lane_goes_first_in_first_out(store: Store) -> None:
    filled = await fill(store, a=10, b=10)

    leases = [lease for _ in range(5) for lease in await take(store, 4)]

    for lane, ids in filled.items():
        assert [lease.id for lease in leases if lease.lane == lane] == ids


async def test_priority_holds_within_a_lane(store: Store) -> None:
    low, high = await put(store, job(lane="a", priority=2), job(lane="a", priority=0))

    assert [lease.id for lease in await take(store, 2)] == [high, low]


async def test_a_hot_lane_does_not_starve_jobs_without_lane(store: Store) -> None:
    await fill(store, hot=200)
    plain = await put(store, job(), job(), job())

    taken = [lease.id for _ in range(5) for lease in await take(store, 10)]

    assert set(plain) <= set(taken)


async def test_many_lanes_are_all_served(store: Store) -> None:
    await put(store, *[job(lane=f"lane-{n % 100}") for n in range(300)])

    assert lanes(await take(store, 100)) == {f"lane-{n}": 1 for n in range(100)}
    assert len(await take(store, 1_000)) == 200


async def test_lanes_wait_their_delay_and_return(store: Store, clock: ManualClock) -> None:
    await add(store, lane="a", delay=MINUTE)
    id = await add(store, lane="b")
    lease = await take_one(store)
    assert lease.id == id
    assert await take(store) == []
    await end(store, lease, State.SCHEDULED, delay=30_000)
    clock.advance("61s")

    assert lanes(await take(store, 10)) == {"a": 1, "b": 1}


async def test_a_queue_keeps_its_limit_over_the_fleet(store: Store, handles: Handles) -> None:
    workers = [store, *await handles(2)]
    await put(store, *[job() for _ in range(50)])
    want = Want(queue=WORK, limit=5)

    claims = await asyncio.gather(
        *(take(workers[n % 3], 3, want, worker=f"w{n}") for n in range(9))
    )
    leases = [lease for claim in claims for lease in claim]

    assert len(leases) == 5
    assert await take(store, 10, want) == []


@pytest.mark.parametrize("how", ["done", "retry", "release", "held", "rescue", "gone", "cancel"])
async def test_whatever_ends_a_run_frees_its_slot(
    store: Store, clock: ManualClock, how: str
) -> None:
    await put(store, *[job() for _ in range(10)])
    want = Want(queue=WORK, limit=2)
    lease, _ = await take(store, 10, want)
    assert await take(store, 10, want) == []

    if how == "rescue":
        clock.advance("61s")
        assert len(await store.rescue(limit=1)) == 1
    elif how == "gone":
        assert len(await store.rescue(limit=1, worker="w1")) == 1
    elif how == "release":
        assert await end(store, lease, State.SCHEDULED, spend=False, released=True)
    elif how == "cancel":
        await store.cancel([lease.id], ANN)
    else:
        kind = {"done": State.DONE, "retry": State.SCHEDULED, "held": State.HELD}[how]
        await end(store, lease, kind, delay=HOUR)

    assert len(await take(store, 10, want)) == 1


async def test_a_lane_keeps_its_limit(store: Store) -> None:
    await fill(store, a=10, b=10, c=1)
    want = Want(queue=WORK, lane_limit=2)

    first = await take(store, 20, want)

    assert lanes(first) == {"a": 2, "b": 2, "c": 1}
    assert await take(store, 20, want) == []
    await end(store, next(lease for lease in first if lease.lane == "b"))
    assert lanes(await take(store, 20, want)) == {"b": 1}


async def test_many_claimers_keep_a_lanes_limit(store: Store, handles: Handles) -> None:
    workers = [store, *await handles(2)]
    await fill(store, a=20, b=20)
    want = Want(queue=WORK, lane_limit=3)

    claims = await asyncio.gather(*(take(workers[n % 3], 4, want) for n in range(9)))

    assert lanes([lease for claim in claims for lease in claim]) == {"a": 3, "b": 3}


async def test_queue_and_lane_limits_hold_together(store: Store) -> None:
    await fill(store, a=10, b=10, c=10)

    leases = await take(store, 20, Want(queue=WORK, limit=5, lane_limit=2))

    assert len(leases) == 5
    assert max(lanes(leases).values()) == 2


async def test_a_limit_of_one_queue_does_not_bind_another(store: Store) -> None:
    other = "app:module:free"
    await put(store, *[job() for _ in range(10)], *[job(other) for _ in range(10)])

    leases = await take(store, 20, Want(queue=WORK, limit=1), Want(queue=other))

    assert Counter(lease.queue for lease in leases) == {WORK: 1, other: 10}


async def test_a_rate_holds_over_the_fleet(
    store: Store, handles: Handles, clock: ManualClock
) -> None:
    workers = [store, *await handles(2)]
    await put(store, *[job() for _ in range(50)])
    want = Want(queue=WORK, rate=(5, HOUR))

    claims = await asyncio.gather(*(take(workers[n % 3], 4, want) for n in range(9)))

    assert sum(len(claim) for claim in claims) == 5
    assert await take(store, 10, want) == []
    clock.advance("61m")
    assert len(await take(store, 50, want)) == 5


async def test_a_rate_says_when_to_look_again(store: Store, clock: ManualClock) -> None:
    await put(store, *[job() for _ in range(50)])
    want = Want(queue=WORK, rate=(6, HOUR))
    assert len(await take(store, 50, want)) == 6

    claim = await store.claim([want], 10, "w1", LEASE)

    assert claim.leases == []
    assert claim.next_due is not None
    assert 0 < claim.next_due <= HOUR + RATE_MARGIN
    clock.advance(f"{claim.next_due}ms")
    assert 1 <= len(await take(store, 50, want)) <= 6


async def test_unused_rate_does_not_pile_up(store: Store, clock: ManualClock) -> None:
    await put(store, *[job() for _ in range(50)])
    want = Want(queue=WORK, rate=(5, HOUR))
    assert len(await take(store, 50, want)) == 5

    clock.advance("1d")

    assert len(await take(store, 50, want)) == 5


async def test_each_lane_keeps_its_rate(store: Store, clock: ManualClock) -> None:
    await fill(store, a=20, b=20, c=1)
    want = Want(queue=WORK, lane_rate=(3, HOUR))

    assert lanes(await take(store, 40, want)) == {"a": 3, "b": 3, "c": 1}
    assert await take(store, 40, want) == []
    clock.advance("61m")
    assert lanes(await take(store, 40, want)) == {"a": 3, "b": 3}


async def test_an_ordered_lane_runs_one_at_a_time(store: Store) -> None:
    filled = await fill(store, a=5, b=5, c=5)
    ran: dict[str, list[str]] = {"a": [], "b": [], "c": []}
    for _ in range(5):
        leases = await take(store, 20, ORDERED)
        assert lanes(leases) == {"a": 1, "b": 1, "c": 1}
        assert await take(store, 20, ORDERED) == []
        for lease in leases:
            ran[str(lease.lane)].append(lease.id)
            await end(store, lease)

    assert ran == filled
    assert await take(store, 20, ORDERED) == []


async def test_an_ordered_lane_knows_no_priority(store: Store) -> None:
    first, second = await put(store, job(lane="a", priority=2), job(lane="a", priority=0))

    lease = await take_one(store, ORDERED)
    assert lease.id == first
    await end(store, lease)
    assert (await take_one(store, ORDERED)).id == second


async def test_ordered_jobs_without_lane_are_one_lane(store: Store) -> None:
    first, second = await put(store, job(), job())
    await add(store, lane="a")

    leases = await take(store, 10, ORDERED)
    assert {lease.lane for lease in leases} == {None, "a"}
    (lease,) = [lease for lease in leases if lease.lane is None]
    assert lease.id == first
    await end(store, lease)
    assert (await take_one(store, ORDERED)).id == second


@pytest.mark.parametrize("aside", [State.SCHEDULED, State.PARKED, State.HELD])
async def test_an_ordered_lane_stands_behind_a_head_that_goes_on(
    store: Store, clock: ManualClock, aside: State
) -> None:
    filled = await fill(store, a=2, b=1)
    head = next(lease for lease in await take(store, 2, ORDERED) if lease.lane == "a")
    await end(store, head, aside, delay=HOUR, park="p")
    assert await take(store, 10, ORDERED) == []

    match aside:
        case State.SCHEDULED:
            clock.advance("61m")
            await store.rescue()
        case State.PARKED:
            assert await store.unpark("p") == 1
        case _:
            assert await store.retry([head.id], ANN) == [True]

    (again,) = [lease for lease in await take(store, 10, ORDERED) if lease.lane == "a"]
    assert again.id == head.id
    await end(store, again)
    (then,) = await take(store, 10, ORDERED)
    assert then.id == filled["a"][1]


@pytest.mark.parametrize("how", [State.DEAD, State.CANCELLED, State.DONE])
async def test_an_ordered_lane_goes_on_when_its_head_ends(store: Store, how: State) -> None:
    filled = await fill(store, a=2)
    await end(store, await take_one(store, ORDERED), how)

    assert (await take_one(store, ORDERED)).id == filled["a"][1]


async def test_an_ordered_lane_goes_on_when_its_head_is_put_aside(store: Store) -> None:
    filled = await fill(store, a=4)
    first, second, third, fourth = filled["a"]
    running = await take_one(store, ORDERED)
    assert running.id == first
    await store.cancel([first], ANN)
    held = await take_one(store, ORDERED)
    assert held.id == second
    await end(store, held, State.HELD)
    await store.discard([second], ANN)
    await store.cancel([third], ANN)

    assert (await take_one(store, ORDERED)).id == fourth


async def test_a_rescued_head_runs_first_again(store: Store, clock: ManualClock) -> None:
    filled = await fill(store, a=3)
    await take_one(store, ORDERED)
    clock.advance("61s")
    assert await take(store, 10, ORDERED) == []
    await store.rescue()

    again = await take_one(store, ORDERED)

    assert (again.id, again.attempt) == (filled["a"][0], 1)


async def test_a_fleet_keeps_the_order_of_every_lane(store: Store, handles: Handles) -> None:
    workers = [store, *await handles(2)]
    filled: dict[str, list[str]] = {f"lane-{n}": [] for n in range(5)}
    for _ in range(10):
        for lane, ids in filled.items():
            ids.append(await add(store, lane=lane))
    started: dict[str, list[str]] = {lane: [] for lane in filled}
    running: Counter[str] = Counter()

    async def work(n: int) -> None:
        while sum(map(len, started.values())) < 50:
            for lease in await take(workers[n % 3], 2, ORDERED, worker=f"w{n}"):
                lane = str(lease.lane)
                running[lane] += 1
                assert running[lane] == 1
                started[lane].append(lease.id)
                await asyncio.sleep(0.001)
                running[lane] -= 1
                assert await end(workers[n % 3], lease)
            await asyncio.sleep(0.002)

    async with asyncio.timeout(60):
        await asyncio.gather(*(work(n) for n in range(6)))

    assert started == filled


async def test_claimers_of_the_same_queues_do_not_block_each_other(
    store: Store, handles: Handles
) -> None:
    """Whoever locks queues one by one must do so in one order for all, or they lock each other."""
    queues = [f"app:module:q{n}" for n in range(4)]
    ids = await put(store, *[job(queues[n % 4], lane=f"lane-{n % 5}") for n in range(200)])
    workers = [store, *await handles(3)]
    taken: list[str] = []

    async def work(n: int) -> None:
        turned = [*queues[n % 4 :], *queues[: n % 4]]
        wants = [Want(queue=queue, lane_limit=50) for queue in turned]
        while leases := await take(workers[n % 4], 4, *wants, worker=f"w{n}"):
            taken.extend(lease.id for lease in leases)

    began = time.monotonic()
    await asyncio.gather(*(work(n) for n in range(8)))

    assert sorted(taken) == sorted(ids)
    assert time.monotonic() - began < 10


async def test_a_paused_queue_with_lanes_gives_nothing(store: Store) -> None:
    await fill(store, a=3)
    await pause(store, WORK)

    assert await take(store, 10) == []
    assert await take(store, 10, ORDERED) == []
    assert await take(store, 10, Want(queue=WORK, limit=5)) == []


async def test_people_reach_jobs_in_lanes(store: Store) -> None:
    filled = await fill(store, a=3, b=1)
    first, second, third = filled["a"]

    assert await store.cancel([first], ANN) == [True]

    assert {lease.id for lease in await take(store, 10)} == {second, third, *filled["b"]}


async def test_a_lane_that_is_paused_by_name_gives_nothing(
    store: Store, clock: ManualClock
) -> None:
    await fill(store, hot=5, a=2, **{"b,|é": 2})
    paused = Want(queue=WORK, lanes={"hot": 0, "b,|é": 0})

    first = await store.claim([paused], 9, "w", LEASE)
    assert lanes(first.leases) == {"a": 2}
    assert lanes((await store.claim([paused], 9, "w", LEASE)).leases) == {}

    clock.advance("6s")  # where it was taken out of the turns, it is looked at again
    left = await store.claim([Want(queue=WORK)], 20, "w", LEASE)
    assert lanes(left.leases) == {"hot": 5, "b,|é": 2}


@pytest.mark.parametrize("want", [Want(queue=WORK), Want(queue=WORK, lane_limit=4), ORDERED])
async def test_a_lane_has_a_limit_of_its_own(store: Store, clock: ManualClock, want: Want) -> None:
    await fill(store, hot=9, a=2)
    limited = replace(want, lanes={"hot": 1})
    first = await store.claim([limited], 20, "w", LEASE)
    assert lanes(first.leases)["hot"] == 1
    assert lanes(first.leases)["a"] >= 1
    again = await store.claim([limited], 20, "w", LEASE)
    assert "hot" not in lanes(again.leases)

    for lease in first.leases:
        assert await end(store, lease, State.DONE)
    clock.advance("6s")
    assert lanes((await store.claim([limited], 20, "w", LEASE)).leases)["hot"] == 1


async def test_a_limit_counts_what_runs_already(store: Store) -> None:
    """A limit that is set while jobs run lets none begin until enough of them have ended."""
    await put(store, *[job() for _ in range(20)])
    leases = (await store.claim([Want(queue=WORK)], 8, "w", LEASE)).leases
    assert len(leases) == 8

    limited = Want(queue=WORK, limit=6)
    assert (await store.claim([limited], 9, "w", LEASE)).leases == []
    for lease in leases[:4]:
        assert await end(store, lease, State.DONE)
    assert len((await store.claim([limited], 9, "w", LEASE)).leases) == 2
