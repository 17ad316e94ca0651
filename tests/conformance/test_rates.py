"""Rates: no window of their length has more than so many, and little is wasted."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import defaultdict
from typing import Any

import pytest

from relevo.job import Lease
from relevo.store import RATE_MARGIN, Store, Want
from relevo.testing import ManualClock
from tests.conformance.conftest import Handles
from tests.conformance.steps import HOUR, LEASE, MINUTE, SECOND, WORK, job, put, take

RATES = [(5, SECOND), (1, SECOND), (40, SECOND), (200, SECOND), (7, MINUTE)]


def most(moments: list[int], length: int) -> int:
    """The most of these moments that any window of this length has."""
    moments = sorted(moments)
    return max(
        (bisect_left(moments, moment + length) - n for n, moment in enumerate(moments)), default=0
    )


async def fill(store: Store, number: int, **fields: Any) -> None:
    for start in range(0, number, 500):
        await put(store, *[job(**fields) for _ in range(min(500, number - start))])


@pytest.mark.parametrize("rate", RATES, ids=str)
async def test_no_window_has_more(
    store: Store, handles: Handles, clock: ManualClock, rate: tuple[int, int]
) -> None:
    number, per = rate
    rng = random.Random(number)
    workers = [store, *await handles(1)]
    await fill(store, 8 * number)
    want = Want(queue=WORK, rate=rate)
    moments: list[int] = []
    for turn in range(150):
        step = rng.choice([0, 1, per // 50, per // 9, per // 3, per - 1, per])
        clock.advance(f"{rng.randint(0, step)}ms")
        count = rng.choice([1, 2, number, 3 * number])
        leases = await take(workers[turn % 2], count, want)
        assert len(leases) <= number
        moments += [lease.claimed_at for lease in leases]

    assert len(moments) > 3 * number
    assert most(moments, per) <= number


@pytest.mark.parametrize("rate", RATES, ids=str)
async def test_what_a_rate_allows_is_given(
    store: Store, clock: ManualClock, rate: tuple[int, int]
) -> None:
    """Over ten periods, by a worker that takes a few at a time and comes back when it is told."""
    number, per = rate
    await fill(store, 12 * number)
    want = Want(queue=WORK, rate=rate)
    moments: list[int] = []
    begin = await store.now()
    while (now := await store.now()) < begin + 10 * per:
        claim = await store.claim([want], max(1, number // 9), "w1", HOUR)
        moments += [lease.claimed_at for lease in claim.leases]
        if not claim.leases:
            assert claim.next_due is not None
            assert 0 < claim.next_due <= per + RATE_MARGIN
            clock.advance(f"{claim.next_due}ms")
        else:
            clock.advance(f"{per // 60}ms")
        assert len(moments) < 12 * number
    assert now - begin < 12 * per

    in_time = [moment for moment in moments if moment < begin + 10 * per]
    assert len(in_time) >= 8.5 * number
    assert most(moments, per) <= number


async def test_single_claims_close_together_waste_little(store: Store, clock: ManualClock) -> None:
    """More claims in a period than a store keeps apart."""
    await fill(store, 900)
    want = Want(queue=WORK, rate=(100, 10 * SECOND))
    moments: list[int] = []
    begin = await store.now()
    while await store.now() < begin + 80 * SECOND:
        moments += [lease.claimed_at for lease in await take(store, 1, want)]
        clock.advance("70ms")

    assert most(moments, 10 * SECOND) <= 100
    assert len(moments) >= 0.85 * 800


async def test_each_lane_has_windows_of_its_own(store: Store, clock: ManualClock) -> None:
    rng = random.Random(3)
    for lane in ("a", "b", "c"):
        await fill(store, 60, lane=lane)
    want = Want(queue=WORK, lane_rate=(4, SECOND))
    moments: defaultdict[str | None, list[int]] = defaultdict(list)
    for _ in range(60):
        clock.advance(f"{rng.randint(0, 400)}ms")
        for lease in await take(store, rng.choice([1, 2, 5, 20]), want):
            moments[lease.lane].append(lease.claimed_at)

    assert moments.keys() == {"a", "b", "c"}
    for times in moments.values():
        assert most(times, SECOND) <= 4
        assert len(times) > 12


async def test_a_rest_earns_nothing(store: Store, clock: ManualClock) -> None:
    """Not at its end either: what used to let nearly twice as many begin at once."""
    await fill(store, 30)
    want = Want(queue=WORK, rate=(5, SECOND))
    assert len(await take(store, 30, want)) == 5
    clock.advance("10h")
    assert len(await take(store, 30, want)) == 5
    for _ in range(8):
        clock.advance("100ms")
        assert await take(store, 30, want) == []


async def test_the_margin_is_kept(store: Store, clock: ManualClock) -> None:
    await fill(store, 30)
    want = Want(queue=WORK, rate=(5, HOUR))
    assert len(await take(store, 30, want)) == 5

    clock.advance(f"{HOUR}ms")

    claim = await store.claim([want], 30, "w1", LEASE)
    if not claim.leases:  # a slow machine has passed it already
        assert claim.next_due is not None
        assert 0 < claim.next_due <= RATE_MARGIN
        clock.advance(f"{claim.next_due}ms")
        assert len(await take(store, 30, want)) == 5


async def test_a_burst_begins_at_once_and_the_rate_is_the_average(
    store: Store, clock: ManualClock
) -> None:
    await fill(store, 60)
    want = Want(queue=WORK, rate=(5, HOUR), burst=2)

    assert len(await take(store, 50, want)) == 2
    assert await take(store, 50, want) == []
    clock.advance("12m")
    assert len(await take(store, 50, want)) == 1
    clock.advance("25m")
    assert len(await take(store, 50, want)) == 2
    clock.advance("1d")
    assert len(await take(store, 50, want)) == 2
    assert await take(store, 50, want) == []


async def test_a_burst_may_be_greater_than_the_rate(store: Store, clock: ManualClock) -> None:
    await fill(store, 60)
    want = Want(queue=WORK, rate=(5, HOUR), burst=20)
    assert len(await take(store, 50, want)) == 20
    assert await take(store, 50, want) == []

    clock.advance("61m")

    assert len(await take(store, 50, want)) == 5


async def test_a_burst_holds_for_each_lane(store: Store, clock: ManualClock) -> None:
    await fill(store, 20, lane="a")
    await fill(store, 20, lane="b")
    want = Want(queue=WORK, lane_rate=(5, HOUR), burst=3)

    def by_lane(leases: list[Lease]) -> list[int]:
        return [sum(lease.lane == lane for lease in leases) for lane in ("a", "b")]

    assert by_lane(await take(store, 50, want)) == [3, 3]
    assert await take(store, 50, want) == []
    clock.advance("12m")
    assert by_lane(await take(store, 50, want)) == [1, 1]


async def test_a_burst_says_when_to_look_again(store: Store, clock: ManualClock) -> None:
    await fill(store, 20)
    want = Want(queue=WORK, rate=(6, HOUR), burst=2)
    assert len(await take(store, 50, want)) == 2

    claim = await store.claim([want], 10, "w1", LEASE)

    assert claim.leases == []
    assert claim.next_due is not None
    assert 0 < claim.next_due <= HOUR // 6
    clock.advance(f"{claim.next_due}ms")
    assert len(await take(store, 50, want)) == 1
