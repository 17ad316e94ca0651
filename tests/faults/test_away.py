"""F74: the store goes away under load, and callers are answered as fast as before."""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx2
import pytest

from relevo.store import Filter
from relevo.testing import ManualClock, until
from tests.conformance.fresh import fresh
from tests.faults.apps import Print
from tests.faults.fleet import Fleet
from tests.faults.ledger import Ledger
from tests.faults.proxy import Proxy
from tests.faults.test_deploy import SERVE, Callers, by_number, gone, passed, up
from tests.matrix import Recorder
from tests.servers.ports import free_port

RATE = 30
KNOWN = 1.0
"""Seconds from the beginning on; whoever calls later does not find out anew."""

FAST = 0.05
GRACE = 10.0
"""Seconds for which a process gives the store what waits in its spool, where the store is there."""

STRANGER = {"x-forwarded-for": "192.0.2.7"}
SECONDS = {"short": 2, "long": 20}


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgres", marks=[pytest.mark.soak, pytest.mark.xdist_group("postgres")]),
        pytest.param("redis", marks=[pytest.mark.soak, pytest.mark.xdist_group("redis")]),
    ]
)
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@contextmanager
def silent(proxy: Proxy) -> Iterator[None]:
    """Nothing comes through, and nobody is told."""
    proxy.open_hole()
    try:
        yield
    finally:
        proxy.close_hole()
        proxy.cut()


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Another program writes to the file, and takes its time."""
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("begin immediate")
        try:
            yield
        finally:
            other.execute("rollback")


@asynccontextmanager
async def through(url: str) -> AsyncIterator[tuple[str, Proxy | None]]:
    if url.startswith("sqlite"):
        yield url, None
        return
    proxy, seen = Proxy.before(url)
    try:
        yield seen, proxy
    finally:
        proxy.stop()


@pytest.mark.parametrize("lasts", ["short", pytest.param("long", marks=pytest.mark.soak)])
async def test_f74_a_store_known_to_be_away_keeps_nobody_waiting(
    store_name: str,
    lasts: str,
    clock: ManualClock,
    ledger: Ledger,
    tmp_path: Path,
    matrix: Recorder,
) -> None:
    port = free_port()
    async with fresh(store_name, clock, tmp_path) as store, through(store.dsn) as (url, proxy):
        file = url.removeprefix("sqlite:///")
        with Fleet(url, ledger, tmp_path) as fleet:
            spool = str(tmp_path / "spool.db")
            server = await up(fleet.hire_program(*SERVE, "--port", str(port), RELEVO_SPOOL=spool))
            callers = Callers(port, RATE, kept=0)
            calling = asyncio.create_task(callers.run())
            await until(lambda: callers.answered > RATE, timeout="30s")
            with locked(file) if proxy is None else silent(proxy):
                gone = time.monotonic()
                await until(lambda: "the store is away" in server.said())
                known = time.monotonic() - gone
                before = callers.answered
                more = SECONDS[lasts] * RATE
                await until(lambda: callers.answered > before + more, timeout="60s")
                await seen_from_outside(port)
            back = time.monotonic()
            await until(lambda: "the store is back" in server.said(), timeout="30s")
            callers.is_over = True
            await calling

            async def all_stored() -> bool:
                queue = Print.__relevo__.queue
                return await store.count(Filter(queue=queue), most=10_000) == callers.sent

            await until(all_stored, timeout="60s")
            await until(lambda: is_well(port))
    assert set(callers.answers) == {"200"}, callers.answers
    late = [took for at, took in callers.waited if gone + KNOWN <= at < back]
    usual = [took for at, took in callers.waited if at < gone - 0.1]
    early = [took for at, took in callers.waited if gone - 1 <= at < gone + KNOWN]
    assert len(late) >= RATE
    matrix.record(
        lost=0,
        doubled=0,
        note=f"known after {known:.1f} s; then median {1_000 * statistics.median(late):.0f} ms, "
        f"longest {1_000 * max(late):.0f} ms of {len(late)}; in the first second "
        f"{max(early):.1f} s",
    )
    # Where the machine is busy, it is so for a store that is there, too.
    slow = max(1.0, 2 * statistics.median(usual) / FAST)
    assert known < (KNOWN + 0.5) * slow
    assert statistics.median(late) <= FAST * slow
    assert statistics.quantiles(late, n=100)[94] <= 4 * FAST * slow
    assert max(early) < 3 * slow  # as soon as it was known
    [begin] = [each for each in server.lines() if each.get("message") == "the store is away"]
    assert begin["error"]
    [end] = [each for each in server.lines() if each.get("message") == "the store is back"]
    assert end["seconds"] > SECONDS[lasts] / 2


async def test_f74_processes_are_replaced_while_the_store_is_away(
    store_name: str, clock: ManualClock, ledger: Ledger, tmp_path: Path, matrix: Recorder
) -> None:
    """The next process serves without the store, and the one before it does not wait for it."""
    async with fresh(store_name, clock, tmp_path) as store, through(store.dsn) as (url, proxy):
        file = url.removeprefix("sqlite:///")
        spool, ends = str(tmp_path / "spool.db"), list[float]()
        with Fleet(url, ledger, tmp_path) as fleet:
            async with passed() as given:
                port = given.getsockname()[1]
                server = await up(by_number(fleet, given, RELEVO_SPOOL=spool))
                callers = Callers(port, RATE)
                calling = asyncio.create_task(callers.run())
                with locked(file) if proxy is None else silent(proxy):
                    await until(lambda: "the store is away" in server.said())
                    for _ in range(2):
                        before = callers.answered
                        await until(lambda n=before: callers.answered > n + RATE, timeout="30s")
                        ending = time.monotonic()
                        await gone(fleet, server)
                        ends.append(time.monotonic() - ending)
                        server = await up(by_number(fleet, given, RELEVO_SPOOL=spool))
                    before = callers.answered
                    await until(lambda: callers.answered > before + RATE, timeout="30s")
                    await seen_by_strangers(port)
                await until(lambda: is_well(port), timeout="60s")
                before = callers.answered
                await until(lambda: callers.answered > before + RATE, timeout="30s")
                callers.is_over = True
                await calling
                await gone(fleet, server)

        stored = await store.count(Filter(queue=Print.__relevo__.queue), most=10_000)
    longest = max(took for _, took in callers.waited)
    note = f"{callers.sent} calls over 2 deploys meanwhile, longest {longest:.1f} s"
    matrix.record(lost=callers.answered - stored, doubled=0, recovery=longest, note=note)
    assert set(callers.answers) == {"200"}, callers.answers
    assert stored == callers.sent
    assert max(ends) < GRACE


async def seen_by_strangers(port: int) -> None:
    """What a load balancer and a stranger hear meanwhile."""
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        assert (await client.get("/ready")).status_code == 200
        told = await client.get("/health", headers=STRANGER)
        assert (told.status_code, told.json()) == (200, {"status": "degraded"})


async def seen_from_outside(port: int) -> None:
    """What a load balancer, a stranger and a person hear meanwhile."""
    await seen_by_strangers(port)
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        told = (await client.get("/health")).json()
        assert told["status"] == "degraded"
        assert told["store"]["state"] == "away" and told["spool"]["waiting"] > 0


async def is_well(port: int) -> bool:
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        return (await client.get("/health", headers=STRANGER)).json() == {"status": "ok"}
