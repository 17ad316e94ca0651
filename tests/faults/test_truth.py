"""What people are told of worker processes, by every face, while they die, block and come back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest

from relevo import Relevo
from relevo.store import Store, WorkerInfo, WorkerState
from relevo.testing import until
from tests.faults import apps
from tests.faults.apps import Block, Nap
from tests.faults.conftest import short_on
from tests.faults.fleet import HOME, Fleet
from tests.faults.ledger import Ledger

QUEUES = [Block.__relevo__.queue, Nap.__relevo__.queue]


async def worker(store: Store, pid: int) -> WorkerInfo | None:
    return next((each for each in await store.workers() if each.pid == pid), None)


async def is_in(store: Store, pid: int, state: WorkerState, running: int | None = None) -> bool:
    seen = await worker(store, pid)
    return seen is not None and seen.state is state and running in (None, seen.running)


async def cli(store: Store, *words: str) -> str:
    """What `relevo` prints."""
    command = [sys.executable, "-m", "relevo.cli", *words, "--store", store.dsn]
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=HOME, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


@pytest.fixture
async def page(store: Store, monkeypatch: pytest.MonkeyPatch) -> httpx2.AsyncClient:
    """A browser at this machine."""
    monkeypatch.delenv("RELEVO_ADMIN_PASSWORD", raising=False)
    relevo = Relevo(store)
    relevo.is_open = True
    transport = httpx2.ASGITransport(relevo.asgi(), client=("127.0.0.1", 4711))
    headers = {"accept": "text/html", "origin": "http://127.0.0.1:8700"}
    return httpx2.AsyncClient(
        transport=transport, base_url="http://127.0.0.1:8700", headers=headers
    )


@pytest.mark.parametrize("store_name", short_on("postgres"))
async def test_f61_a_worker_that_was_killed_is_gone_at_once(
    store: Store, ledger: Ledger, tmp_path: Path, page: httpx2.AsyncClient
) -> None:
    """Its neighbour takes its jobs back and says so, long before its heartbeat is missed."""
    relevo = Relevo(store, apps=[apps.app(ledger)])
    await relevo.enqueue_many(Nap(number, 60_000) for number in range(6))
    with Fleet(store.dsn, ledger, tmp_path, lease="2s", concurrency=3, queues=QUEUES) as fleet:
        first, second = fleet.hire(2)
        for one in (first, second):
            await until(lambda one=one: is_in(store, one.pid, WorkerState.OK, 3), timeout="20s")

        killed_at = fleet.kill(first)

        await until(lambda: is_in(store, first.pid, WorkerState.GONE, 0), timeout="20s")
        assert time.monotonic() - killed_at < 8
        assert await is_in(store, second.pid, WorkerState.OK)
        gone, alive = await worker(store, first.pid), await worker(store, second.pid)
        assert gone is not None and alive is not None
        assert "gone" in await cli(store, "workers", "ls")
        assert (await page.get("/workers")).text.count('badge bad">gone') == 1
        told = (await page.get("/api/workers")).json()["items"]
        assert {each["id"]: each["state"] for each in told} == {gone.id: "gone", alive.id: "ok"}
        metrics = (await page.get("/metrics")).text
        assert 'relevo_workers{state="gone"} 1.0' in metrics
        assert 'relevo_workers{state="alive"} 1.0' in metrics

        assert "is alive" in await cli(store, "workers", "forget", alive.id)
        assert "is forgotten" in await cli(store, "workers", "forget", gone.id)
        assert [each.id for each in await store.workers()] == [alive.id]
        [line] = (await store.audits())[0]
        assert (line.verb, line.target) == ("forget worker", gone.id)


@pytest.mark.parametrize("store_name", short_on("redis"))
async def test_f61_a_worker_that_is_only_slow_is_silent_until_it_beats_again(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    """It stands still for longer than its lease, and its jobs run elsewhere meanwhile."""
    relevo = Relevo(store, apps=[apps.app(ledger)])
    await relevo.enqueue_many(Nap(number, 60_000) for number in range(2))
    with Fleet(store.dsn, ledger, tmp_path, lease="2s", concurrency=2, queues=QUEUES) as fleet:
        [slow] = fleet.hire(1)
        await until(lambda: is_in(store, slow.pid, WorkerState.OK, 2), timeout="20s")
        [other] = fleet.hire(1)
        await until(lambda: is_in(store, other.pid, WorkerState.OK, 0), timeout="20s")

        slow.freeze()

        await until(lambda: is_in(store, slow.pid, WorkerState.SILENT, 0), timeout="20s")
        assert await is_in(store, other.pid, WorkerState.OK, 2)
        slow.thaw()
        await until(lambda: is_in(store, slow.pid, WorkerState.OK, 0), timeout="5s")


@pytest.mark.parametrize("store_name", short_on("sqlite"))
async def test_f62_a_blocked_event_loop_is_told_of_within_two_seconds(
    store: Store, ledger: Ledger, tmp_path: Path, page: httpx2.AsyncClient
) -> None:
    """Told by the workers, doctor, dashboard and metrics; it is no fault of the store."""
    relevo = Relevo(store, apps=[apps.app(ledger)])
    with Fleet(store.dsn, ledger, tmp_path, lease="6s", queues=QUEUES) as fleet:
        [member] = fleet.hire(1)
        fleet.wait_for(1)
        await until(lambda: is_in(store, member.pid, WorkerState.OK), timeout="20s")
        seen_by_all = tmp_path / "seen"
        await relevo.enqueue(Block(1, 25_000, is_busy=False, until=str(seen_by_all)))
        await until(lambda: bool(ledger.facts("start")), timeout="20s")
        began = time.monotonic()

        await until(lambda: is_in(store, member.pid, WorkerState.BLOCKED), timeout="20s")

        assert time.monotonic() - began < 2.5
        metrics, seen = await asyncio.gather(page.get("/metrics"), page.get("/workers"))
        assert 'relevo_workers{state="blocked"} 1.0' in metrics.text
        assert 'badge warn">blocked' in seen.text
        assert "event loop blocked" in (await page.get("/")).text
        listed, doctor = await asyncio.gather(cli(store, "workers", "ls"), cli(store, "doctor"))
        assert "blocked" in listed
        assert "its event loop is blocked" in doctor
        seen_by_all.touch()
        await until(lambda: is_in(store, member.pid, WorkerState.OK), timeout="30s")
        said = member.said()
        assert "did not answer" not in said and "cannot" not in said, said
        assert "the event loop answers again" in said


async def test_f62_a_blocked_event_loop_is_not_taken_for_a_store_that_is_away(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer was there, and nobody read it."""
    monkeypatch.setattr("relevo.stores.redis.frame.LIMIT", 0.5)
    monkeypatch.setattr("relevo.stores.postgres.lines.PATIENCE", 0.5)
    monkeypatch.setattr("relevo.stores.postgres.deliveries.PATIENCE", 0.5)
    monkeypatch.setattr("relevo.stores.sqlite.store.LATE", 0.5)
    await store.tally()
    for turns in range(4):
        asked = [asyncio.create_task(store.tally()), asyncio.create_task(store.rescue())]
        for _ in range(turns):
            await asyncio.sleep(0)
        time.sleep(0.7)  # the mistake that is tested
        await asyncio.gather(*asked)
