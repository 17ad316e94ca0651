"""Bad networks between workers and their server: F09, F10, F11, F12, F13."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from relevo import Relevo
from relevo.testing import ManualClock, until
from tests.conformance.fresh import STORES, fresh
from tests.faults import apps
from tests.faults.apps import Nap, Print
from tests.faults.ledger import Ledger
from tests.faults.load import LEASE, SLACK, Place, load
from tests.faults.proxy import Proxy
from tests.faults.verdict import drained, judged
from tests.matrix import Recorder

pytestmark = pytest.mark.soak


@dataclass(kw_only=True)
class Through(Place):
    """A store seen directly, and through a proxy that a test can hurt."""

    proxy: Proxy


@pytest.fixture(params=[store for store in STORES if store.id in ("postgres", "redis")])
async def place(
    request: pytest.FixtureRequest,
    clock: ManualClock,
    ledger: Ledger,
    tmp_path: Path,
    matrix: Recorder,
) -> AsyncIterator[Through]:
    async with fresh(request.param, clock, tmp_path) as store:
        proxy, url = Proxy.before(store.dsn)
        try:
            yield Through(
                store=store, proxy=proxy, url=url, ledger=ledger, folder=tmp_path, matrix=matrix
            )
        finally:
            proxy.stop()


async def resets(place: Through, seconds: int) -> None:
    async with load(place) as (producer, fleet):
        began = time.monotonic()
        before = [len(member.lines()) for member in fleet.members]
        for _ in range(seconds):
            await asyncio.sleep(1)
            assert place.proxy.cut() > 0
        await place.goes_on(5)
        lasted = time.monotonic() - began
        for member, lines in zip(fleet.members, before, strict=True):
            assert len(member.lines()) - lines <= 10 + 2 * lasted
        assert producer.slowest < 5.5


async def test_f09_resets_every_second_lose_nothing(place: Through) -> None:
    await resets(place, 4)


async def test_f09_resets_for_a_minute(place: Through) -> None:
    await resets(place, 60)


async def hole(place: Through, seconds: float) -> None:
    async with load(place) as (producer, _):
        place.proxy.open_hole()
        await asyncio.sleep(seconds)
        place.proxy.close_hole()
        await place.goes_on(10)
        assert producer.slowest < 5.5
        assert place.database is None or not producer.unsure  # the outbox took them


async def test_f10_a_black_hole_is_given_up_in_time_and_left_behind(place: Through) -> None:
    await hole(place, 7)


async def test_f10_a_black_hole_of_half_a_minute(place: Through) -> None:
    await hole(place, 30)


async def slow(place: Through, seconds: float) -> None:
    async with load(place) as (producer, fleet):
        relevo = Relevo(place.store)
        nap = await relevo.enqueue(Nap(9_999, round(2.5 * LEASE * 1_000)))
        place.proxy.delay = 0.2
        await asyncio.sleep(seconds)
        await until(lambda: place.ledger.counts("end")[9_999], timeout="20s")
        place.proxy.delay = 0.0
        [job] = await place.store.find([nap.id])
        await relevo.rest()
        assert job is not None
        assert job.attempt == 1
        assert "job rescued" not in fleet.said()
        assert "lease lost" not in fleet.said()
        assert not producer.unsure


async def test_f11_a_slow_store_lapses_no_lease(place: Through) -> None:
    await slow(place, 4)


async def test_f11_a_slow_minute(place: Through) -> None:
    await slow(place, 60)


async def test_f12_a_server_that_left_without_a_word_is_missed(
    place: Through, unmade: Callable[[str], None]
) -> None:
    """Workers listen on connections whose other end is gone; nobody told them."""
    relevo = Relevo(place.store, apps=[apps.app(place.ledger)])
    with place.fleet() as fleet:
        fleet.hire(1)
        fleet.wait_for(1)
        await relevo.enqueue(Print(0))
        await until(lambda: place.ledger.counts("end")[0], timeout="20s")
        await drained(place.store, 10)
        try:
            assert place.proxy.vanish() > 0
        except PermissionError:
            unmade("only root may drop a connection without a word")
            return
        gone = time.monotonic()
        await relevo.enqueue(Print(1))
        await until(lambda: place.ledger.counts("effect")[1], timeout="20s", what="it is missed")
        missed = time.monotonic() - gone
        place.matrix.record(recovery=missed)
        assert missed < 15 + SLACK
        await drained(place.store, 10, fleet.check)
    await relevo.rest()
    await judged(place.store, place.ledger, range(2), lease=LEASE)


async def lossy(place: Through, seconds: float) -> None:
    async with load(place) as (producer, _):
        place.proxy.loss = 0.2
        await asyncio.sleep(seconds)
        place.proxy.loss = 0.0
        await place.goes_on(5)
        assert producer.slowest < 5.5


async def test_f13_a_fifth_of_the_packets_lost(place: Through) -> None:
    await lossy(place, 4)


async def test_f13_a_lossy_minute(place: Through) -> None:
    await lossy(place, 60)
