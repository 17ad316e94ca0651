"""The store's server dies, is replaced by its standby, or loses its tail: F14, F15, F21–F24."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from relevo.errors import StoreUnavailable
from relevo.store import Filter, Store
from relevo.stores import open_store
from relevo.testing import until
from tests.conformance.steps import job
from tests.faults.apps import Print
from tests.faults.ledger import Ledger
from tests.faults.load import Place, load
from tests.matrix import Recorder
from tests.servers.postgres import PostgresServer
from tests.servers.redis import HOST, RedisCluster, RedisServer, SentinelTrio

pytestmark = pytest.mark.soak

Opened = Callable[[str], Any]


@pytest.fixture
def opened(ledger: Ledger, tmp_path: Path, matrix: Recorder) -> Opened:
    """A place at an address of ours, its tables made."""

    @asynccontextmanager
    async def at(url: str) -> AsyncIterator[Place]:
        store = open_store(url)
        await store.migrate()
        await store.open()
        try:
            yield Place(store=store, url=url, ledger=ledger, folder=tmp_path, matrix=matrix)
        finally:
            await store.close()

    return at


async def killed(place: Place, server: PostgresServer | RedisServer, times: int = 5) -> None:
    async with load(place):
        for _ in range(times):
            await asyncio.sleep(1)
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(0.5)
            await asyncio.to_thread(server.restart)
            await place.goes_on(10)


async def test_f14_a_server_killed_five_times_under_load_postgres(opened: Opened) -> None:
    with PostgresServer() as server:
        async with opened(server.url) as place:
            await killed(place, server)


async def test_f14_every_backend_terminated_each_two_seconds_postgres(opened: Opened) -> None:
    ours = "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'relevo'"
    with PostgresServer() as server:
        async with opened(server.url) as place, load(place):
            for _ in range(10):
                await asyncio.sleep(2)
                await asyncio.to_thread(server.sql, ours)
                await place.goes_on(10)


async def test_f22_a_server_killed_five_times_under_load_redis(opened: Opened) -> None:
    with RedisServer() as server:
        async with opened(server.url) as place:
            await killed(place, server)


def _both(primary: PostgresServer, standby: PostgresServer) -> str:
    one = f"127.0.0.1:{primary.port}"
    return primary.url.replace(one, f"{one},127.0.0.1:{standby.port}")


async def _promoted(place: Place, primary: PostgresServer, standby: PostgresServer) -> None:
    died = time.monotonic()
    await asyncio.to_thread(primary.kill)
    await asyncio.to_thread(standby.promote)
    await place.goes_on(15, since=died)


@pytest.mark.parametrize("seconds", [0.8, 7.0])
async def test_f15_a_synchronous_standby_has_it_all_postgres(
    opened: Opened, seconds: float
) -> None:
    """The link is cut first: what the standby has not heard of is acknowledged by nobody.

    Longer than a call may take, too: who is given up on commits on the primary alone.
    """
    with PostgresServer() as primary:
        standby = primary.standby()
        async with opened(_both(primary, standby)) as place, load(place) as (producer, _):
            await asyncio.sleep(2)
            await asyncio.to_thread(_cut_off, standby)
            await _until_waiting(primary)
            acked = len(producer.acked)
            await asyncio.sleep(seconds)
            assert len(producer.acked) == acked
            await _promoted(place, primary, standby)


async def _until_waiting(primary: PostgresServer) -> None:
    """Somebody's commit waits for the standby."""
    waiting = "select count(*) from pg_stat_activity where wait_event = 'SyncRep'"

    async def is_waiting() -> bool:
        return int(await asyncio.to_thread(primary.sql, waiting)) > 0

    await until(is_waiting, timeout="10s")


async def test_f15_an_asynchronous_standby_loses_the_gap_alone_postgres(opened: Opened) -> None:
    """The link is cut, then the primary dies: what came between may be gone, nothing else.

    A job that ran in the gap runs again, with the same idempotency key.
    """
    with PostgresServer() as primary:
        standby = primary.standby(synchronous=False)
        url = _both(primary, standby)
        async with opened(url) as place, load(place, keyed=True) as (producer, _):
            await asyncio.sleep(2)
            before = set(producer.acked)
            await asyncio.to_thread(_cut_off, standby)
            await asyncio.sleep(0.8)
            await _promoted(place, primary, standby)
            # What was acknowledged up to now may have been on either side of the gap.
            gap = producer.acked - before
            producer.acked -= gap
            producer.unsure |= gap
            assert gap


def _cut_off(standby: PostgresServer) -> None:
    standby.sql("alter system set primary_conninfo = ''")
    standby.sql("select pg_reload_conf()")


async def test_f23_a_fail_over_by_sentinels_under_load_redis(opened: Opened) -> None:
    """The replica is cut off first, so that what it does not know must come from the outbox."""
    with SentinelTrio() as trio:
        async with opened(trio.url) as place, load(place):
            await asyncio.sleep(1)
            trio.replica.command("REPLICAOF", HOST, 1)
            await asyncio.sleep(0.8)
            died = time.monotonic()
            await asyncio.to_thread(trio.fail_over)
            await place.goes_on(15, since=died)


async def test_f24_a_master_of_the_cluster_killed_under_load(opened: Opened) -> None:
    with RedisCluster() as cluster:
        async with opened(cluster.url) as place, load(place):
            await asyncio.sleep(1)
            victim = cluster.master_of(f"relevo:{{{Print.__relevo__.queue}}}")
            died = time.monotonic()
            await asyncio.to_thread(cluster.fail_over, victim)
            await place.goes_on(15, since=died)


async def test_f21_what_is_cut_from_the_log_of_redis_comes_from_the_outbox(opened: Opened) -> None:
    with RedisServer() as server:
        async with opened(server.url) as place, load(place):
            await asyncio.sleep(1)
            await asyncio.to_thread(server.kill)
            log = _log_of(server)
            with log.open("r+b") as file:
                file.truncate(log.stat().st_size * 3 // 4)
            await asyncio.to_thread(server.start)
            await place.goes_on(10)
            assert "truncat" in (server.folder / "log").read_text().lower()


async def test_f21_a_log_of_redis_with_flipped_bits_is_not_started_empty(opened: Opened) -> None:
    with RedisServer() as server:
        async with opened(server.url) as place:
            await place.store.insert([job() for _ in range(50)])
            server.kill()
            log, whole = _log_of(server), _log_of(server).read_bytes()
            half = len(whole) // 2
            log.write_bytes(whole[:half] + bytes(255 - byte for byte in whole[half:]))
            with pytest.raises(RuntimeError, match="Bad file format"):
                server.start()
            log.write_bytes(whole)
            server.start()
            await until(lambda: _has(place.store, 50), timeout="10s")


async def _has(store: Store, count: int) -> bool:
    try:
        return await store.count(Filter()) == count
    except StoreUnavailable:
        return False


def _log_of(server: RedisServer) -> Path:
    """The part of the append-only file that is written to."""
    return max(server.folder.glob("appendonlydir/*.incr.aof"), default=None) or (
        server.folder / "appendonly.aof"
    )
