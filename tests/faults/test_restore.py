"""A copy taken under load is restored after work that it does not know: F70, F71, F72."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from relevo import Relevo
from relevo.desk import Desk, Person, Role
from relevo.job import State
from relevo.store import By, Edit, Effect, EffectState, Filter, Store
from relevo.stores import open_store
from relevo.testing import until
from tests.faults import apps
from tests.faults.apps import Print, Reserve
from tests.faults.fleet import HOME, Fleet
from tests.faults.ledger import Ledger
from tests.faults.producer import Producer
from tests.faults.verdict import drained, stuck, whole

ANN = Person("ann", Role.ADMIN)
RESERVED = 1_000_000
"""Numbers from here on are reservations, which nobody can look up."""

LATER = 500_000

SHORT, LONG = 60, 600


def relevo(url: str, *words: str) -> None:
    """Run the program as a person does."""
    command = [sys.executable, "-m", "relevo.cli", *words, "--store", url]
    done = subprocess.run(
        command, cwd=HOME, env=os.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


async def rehearse(
    url: str,
    take: Callable[[], None],
    put: Callable[[], str],
    ledger: Ledger,
    folder: Path,
    many: int,
) -> None:
    """Take a copy under load, go on, lose the store, put the copy in place, and count.

    `put` restores and marks; it answers the address of the restored store.
    """
    ledger.write("provider", 0, "up")
    await open_store(url).migrate()
    async with Relevo(url, apps=[apps.app(ledger)]) as engine:
        with Fleet(url, ledger, folder) as fleet:
            fleet.hire(2)
            fleet.wait_for(2)
            prints = Producer(engine, rate=100)
            reserves = Producer(engine, rate=20, make=Reserve, first=RESERVED, crowd=2)
            async with prints, reserves:
                await prints.until_acked(many)
                waiting, ids = await order_for_later(engine)
                before = prints.acked | reserves.acked | waiting
                await asyncio.to_thread(take)
                # What nobody knows of afterwards: jobs that are in the copy end, and others come.
                await run_now(engine.store, ids)
                await until(
                    lambda: waiting <= set(ledger.counts("effect")),
                    timeout="30s",
                    what="what the copy has as waiting has run",
                )
                await prints.until_acked(len(prints.acked) + many)
                await reserves.until_acked(len(reserves.acked) + many // 6)
            for member in list(fleet.members):
                fleet.kill(member)  # the disaster
    restored = await asyncio.to_thread(put)
    store = open_store(restored)
    await store.open()
    await run_now(store, ids)
    (folder / "again").mkdir()
    try:
        with Fleet(restored, ledger, folder / "again") as fleet:
            fleet.hire(2)
            fleet.wait_for(2)
            await drained(store, 90, fleet.check)
            held = await decide(store, ledger)
            await drained(store, 30, fleet.check)
        assert await store.count(Filter(states=frozenset({State.HELD, State.DEAD}))) == 0
        effects = ledger.counts("effect")
        lost = before - set(effects)
        doubled = {number: times for number, times in effects.items() if times > 1}
        ledger.verdict = (len(lost), len(doubled))
        assert not lost, f"lost {len(lost)}: {sorted(lost)[:20]}"
        assert not doubled, f"doubled: {doubled}"
        assert len(held) >= 10, "what could not be looked up was made again, or had ended by then"
        assert all(effect.name == "reserve" for effect in held), "what has find= was held"
        assert await stuck(store, 2) == []
        whole(store)
    finally:
        await store.close()


async def order_for_later(engine: Relevo) -> tuple[set[int], list[str]]:
    """Order what waits when the copy is taken, however long that takes; the numbers, the ids."""
    orders = [Print(number) for number in range(LATER, LATER + 40)]
    orders += [Reserve(number) for number in range(RESERVED + LATER, RESERVED + LATER + 10)]
    ids = [(await engine.enqueue(order, delay="1h")).id for order in orders]
    return {order.number for order in orders}, ids


async def run_now(store: Store, ids: list[str]) -> None:
    now = await store.now()
    assert all(await store.edit([Edit(id=id, run_at=now) for id in ids], By("ann")))


async def decide(store: Store, ledger: Ledger) -> list[Effect]:
    """Confirm or deny what is held, as a person does who looks at the provider's side."""
    desk = Desk(store)
    held, cursor = await desk.effects(states=frozenset({EffectState.UNKNOWN}), limit=200)
    while cursor is not None:
        more, cursor = await desk.effects(
            states=frozenset({EffectState.UNKNOWN}), cursor=cursor, limit=200
        )
        held += more
    for effect in held:
        if ledger.has(effect.key):
            await desk.confirm_effect(effect.job, effect.name, "RES", ANN)
        else:
            await desk.deny_effect(effect.job, effect.name, ANN)
    return held


@pytest.mark.parametrize("many", [SHORT, pytest.param(LONG, marks=pytest.mark.soak)])
async def test_f70_a_backup_of_sqlite_is_restored(
    many: int, ledger: Ledger, tmp_path: Path
) -> None:
    path, copy = tmp_path / "relevo.db", tmp_path / "monday.db"
    url = f"sqlite:///{path}"

    def put() -> str:
        relevo(url, "database", "restore", str(copy), "--force")
        return url

    await rehearse(
        url, lambda: relevo(url, "database", "backup", str(copy)), put, ledger, tmp_path, many
    )


@pytest.mark.xdist_group("postgres")
@pytest.mark.parametrize(
    ("how", "many"),
    [
        ("dump", SHORT),
        pytest.param("dump", LONG, marks=pytest.mark.soak),
        pytest.param("base backup", SHORT, marks=pytest.mark.soak),
        pytest.param("base backup", LONG, marks=pytest.mark.soak),
    ],
)
async def test_f71_a_copy_of_postgres_is_restored(
    how: str, many: int, ledger: Ledger, tmp_path: Path
) -> None:
    from tests.servers.postgres import PostgresServer, binaries

    dump = tmp_path / "dump"
    with PostgresServer(durable=False) as server:
        if how == "dump":
            server.sql("create database other owner relevo", database="postgres")
            other = server.url.rpartition("/")[0] + "/other"

            def take() -> None:
                tool = binaries() / "pg_dump"
                subprocess.run([tool, "-Fc", "-f", dump, server.url], check=True)

            def put() -> str:
                relevo(other, "database", "restore", str(dump))
                return other

            await rehearse(server.url, take, put, ledger, tmp_path, many)
            return
        copies: list[PostgresServer] = []

        def back_up() -> None:
            copies.append(server.base_backup())

        def start() -> str:
            server.kill()
            copies[0].start()
            relevo(copies[0].url, "migrate")
            relevo(copies[0].url, "database", "mark-restored", "--force")
            return copies[0].url

        try:
            await rehearse(server.url, back_up, start, ledger, tmp_path, many)
        finally:
            for each in copies:
                each.remove()


@pytest.mark.xdist_group("redis")
@pytest.mark.parametrize("many", [SHORT, pytest.param(LONG, marks=pytest.mark.soak)])
async def test_f72_a_copy_of_the_append_only_file_of_redis_is_restored(
    many: int, ledger: Ledger, tmp_path: Path
) -> None:
    from tests.servers.redis import RedisServer

    # Else the newest second of what was acknowledged may be missing in the file.
    conf = ("appendfsync always", "auto-aof-rewrite-percentage 0")
    with RedisServer(*conf) as server:
        other = RedisServer(*conf)

        def take() -> None:
            for each in server.folder.glob("appendonly*"):
                copied = shutil.copytree if each.is_dir() else shutil.copy
                copied(each, other.folder / each.name)

        def put() -> str:
            server.kill()
            other.start()
            relevo(other.url, "database", "mark-restored", "--force")
            return other.url

        try:
            await rehearse(server.url, take, put, ledger, tmp_path, many)
        finally:
            other.stop()
