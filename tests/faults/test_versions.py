"""Timetables, versions, start-up and backups in bad moments: F39, F45, F46, F47."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from relevo import Relevo
from relevo.ids import new_id
from relevo.job import NewJob, State
from relevo.store import Filter, Store
from relevo.stores import open_store
from relevo.testing import drain, until
from tests.conformance.fresh import SQL_STORES
from tests.faults import apps
from tests.faults.apps import Print
from tests.faults.fleet import HOME, Fleet
from tests.faults.ledger import Ledger
from tests.faults.producer import Producer
from tests.faults.verdict import drained, judged
from tests.matrix import Recorder


@pytest.mark.soak
async def test_f39_a_tick_orders_once_whoever_dies_at_it(
    store: Store, ledger: Ledger, tmp_path: Path, matrix: Recorder
) -> None:
    """Five processes on one timetable; some die as they settle a tick, some at any moment."""
    with Fleet(store.dsn, ledger, tmp_path, lease="1s", ticks=True) as fleet:
        fleet.hire(3)
        doomed = fleet.hire(fault={"only": "settle", "at": 3, "when": "before"})
        doomed += fleet.hire(fault={"only": "settle", "at": 3, "when": "after"})
        fleet.wait_for(3)
        for _ in range(4):
            await asyncio.sleep(random.uniform(1, 2))
            died = fleet.kill(random.choice([one for one in fleet.members if one not in doomed]))
            fleet.hire()
            await until(
                lambda at=died: any(fact.at > at for fact in ledger.facts("effect")), timeout="20s"
            )
            again = min(fact.at for fact in ledger.facts("effect") if fact.at > died)
            matrix.record(recovery=again - died)
        for member in doomed:
            await until(lambda one=member: not one.is_alive, timeout="60s", what="its third tick")
            fleet.bury(member)
    effects = ledger.counts("effect")
    matrix.record(lost=0, doubled=sum(1 for times in effects.values() if times > 1))
    assert set(effects.values()) == {1}
    ticks = sorted(effects)
    assert len(ticks) > 5
    assert ticks == list(range(ticks[0], ticks[-1] + 1)), "a second was left out"


async def test_f45_a_message_of_another_version_runs_or_waits_where_it_is_seen(
    store: Store, ledger: Ledger
) -> None:
    """A field that we do not know is left aside; without one that we need nothing runs."""
    relevo = Relevo(store, apps=[apps.app(ledger)])
    newer, older = new_id(), new_id()
    queue = Print.__relevo__.queue
    more, less = b'{"number":1,"ms":0,"colour":"red"}', b'{"ms":0}'
    await store.insert(
        [
            NewJob(id=newer, queue=queue, kind="Print", payload=more),
            NewJob(id=older, queue=queue, kind="Print", payload=less),
        ]
    )
    await drain(relevo)
    found = await store.find([newer, older])
    await relevo.rest()

    assert [job.state for job in found if job] == [State.DONE, State.PARKED]
    assert ledger.counts("effect") == {1: 1}
    assert found[1] is not None and found[1].failure is not None
    assert "number" in found[1].failure.message


@pytest.mark.soak
@pytest.mark.parametrize("name", SQL_STORES)
async def test_f46_signals_while_starting_leave_old_tables_or_new(
    name: str, ledger: Ledger, tmp_path: Path
) -> None:
    """SIGTERM twice, or SIGINT, at steps of 10 ms from the start of `relevo migrate` on."""
    if name == "postgres":
        from tests.servers.postgres import PostgresServer

        with PostgresServer(durable=False) as server:
            await _interrupted(tmp_path, [f"{server.url}?schema=s{n}" for n in range(12)])
    else:
        await _interrupted(tmp_path, [f"sqlite:///{tmp_path / f'{n}.db'}" for n in range(12)])


async def _interrupted(folder: Path, urls: list[str]) -> None:
    ledger = Ledger(folder / "interrupted")
    began = time.monotonic()
    await _signalled(urls[0], ledger, folder, 60, ())
    usual = time.monotonic() - began
    for n, url in enumerate(urls[1:]):
        # Most of a start is imports: the last part of it is where the tables are made.
        after = usual * 0.6 + 0.01 * n * max(1.0, usual * 4)
        signals = (signal.SIGTERM, signal.SIGTERM) if n % 2 else (signal.SIGINT,)
        await _signalled(url, ledger, folder, after, signals)
        store = open_store(url)
        await store.migrate()
        await store.open()
        await store.insert([NewJob(id=new_id(), queue="a:b:c", kind="K", payload=b"{}")])
        assert await store.count(Filter()) == 1
        await store.close()


async def _signalled(
    url: str, ledger: Ledger, folder: Path, after: float, signals: tuple[signal.Signals, ...]
) -> None:
    """A `relevo migrate` that gets these signals after so many seconds, if it lasts so long."""
    with Fleet(url, ledger, folder) as fleet:
        member = fleet.hire_program("migrate")
        try:
            await asyncio.to_thread(member.wait, after)
        except subprocess.TimeoutExpired:
            for number in signals:
                member.process.send_signal(number)
            assert await asyncio.to_thread(member.wait, 20) in (-15, -2, 1, 130, 143, 0)
        fleet.members.remove(member)


@pytest.mark.soak
@pytest.mark.parametrize("name", SQL_STORES)
async def test_f47_a_backup_under_load_restores_what_was_acknowledged(
    name: str, ledger: Ledger, tmp_path: Path
) -> None:
    """What had been done before the restored jobs run again is not done twice."""
    if name == "postgres":
        from tests.servers.postgres import PostgresServer, binaries

        with PostgresServer() as server, PostgresServer(durable=False) as other:
            dump = tmp_path / "dump"

            def copy() -> str:
                tool = binaries() / "pg_dump"
                subprocess.run([tool, "-Fc", "-f", dump, server.admin_url], check=True)
                tool = binaries() / "pg_restore"
                subprocess.run([tool, "-d", other.admin_url, dump], check=True)
                return other.url

            await _restored(server.url, copy, ledger, tmp_path)
    else:
        target = tmp_path / "copy.db"

        def copy() -> str:
            url = f"sqlite:///{tmp_path / 'relevo.db'}"
            environment = os.environ | {"RELEVO_STORE_URL": url}
            words = ["-m", "relevo.cli", "database", "backup", str(target)]
            subprocess.run([sys.executable, *words], env=environment, check=True, cwd=HOME)
            with sqlite3.connect(target) as file:
                assert file.execute("pragma integrity_check").fetchone() == ("ok",)
            return f"sqlite:///{target}"

        await _restored(f"sqlite:///{tmp_path / 'relevo.db'}", copy, ledger, tmp_path)


async def _restored(url: str, copy: Callable[[], str], ledger: Ledger, folder: Path) -> None:
    await open_store(url).migrate()
    async with Relevo(url, apps=[apps.app(ledger)]) as relevo:
        with Fleet(url, ledger, folder) as fleet:
            fleet.hire(1)
            fleet.wait_for(1)
            async with Producer(relevo, rate=200) as producer:
                await producer.until_acked(200)
                before = set(producer.acked)
                restored = await asyncio.to_thread(copy)
            for member in list(fleet.members):
                fleet.kill(member)  # the disaster
    store = open_store(restored)
    await store.open()
    (folder / "again").mkdir()
    with Fleet(restored, ledger, folder / "again") as fleet:
        fleet.hire(1)
        fleet.wait_for(1)
        await drained(store, 60, fleet.check)
    late = set(ledger.counts("effect")) - before
    await judged(store, ledger, before, unsure=late, lease=2, keyed=True)
    await store.close()
