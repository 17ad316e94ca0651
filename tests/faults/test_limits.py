"""Full disks, no file handles, little memory: F20, F30, F31."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from relevo import Relevo
from relevo.ids import new_id
from relevo.job import NewJob
from relevo.store import Filter, Store
from relevo.stores import open_store
from relevo.testing import ManualClock, until
from tests.conformance.fresh import STORES, fresh
from tests.faults import apps
from tests.faults.apps import Hog, Print
from tests.faults.disk import Disk, small_disk
from tests.faults.fleet import Fleet
from tests.faults.ledger import Ledger
from tests.faults.load import SLACK
from tests.faults.producer import Producer
from tests.faults.test_ingress import RESET, Provider
from tests.faults.verdict import drained, judged
from tests.matrix import Recorder
from tests.servers.ports import free_port

HEAVY = "".join(random.Random(7).choices("abcdefghijklmnop", k=24_000))  # no store can pack it


@contextlib.asynccontextmanager
async def on_small_disk(name: str, disk: Disk, folder: Path) -> AsyncIterator[tuple[str, str]]:
    """The addresses of a store whose data lie on the disk, and of the database beside it."""
    match name:
        case "sqlite":
            url = f"sqlite:///{disk.path / 'relevo.db'}"
            await open_store(url).migrate()
            yield url, ""
        case "postgres":
            from tests.servers.postgres import PostgresServer

            with PostgresServer(durable=False) as server:
                place, owner = disk.path / "small", server.data.stat()
                place.mkdir()
                os.chown(place, owner.st_uid, owner.st_gid)
                server.sql(f"create tablespace small location '{place}'", database="postgres")
                server.sql("alter database relevo set tablespace small", database="postgres")
                await open_store(server.url).migrate()
                yield server.url, ""
        case _:
            from tests.servers.redis import RedisServer

            kept, tempfile.tempdir = tempfile.tempdir, str(disk.path)
            try:
                server = RedisServer()
            finally:
                tempfile.tempdir = kept
            with server:
                yield server.url, f"sqlite:///{folder / 'outbox.db'}"


# Their short forms are in tests/edges, where nothing but the store is on the disk.
LONG = {"sqlite", "postgres"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            *one.values, id=one.id, marks=[*one.marks, *[pytest.mark.soak][: one.id in LONG]]
        )
        for one in STORES
        if one.id != "cluster"
    ],
)
async def test_f20_a_full_disk_refuses_and_heals_by_itself(
    name: str, ledger: Ledger, tmp_path: Path, unmade: Callable[[str], None], matrix: Recorder
) -> None:
    """No false acknowledgement, reads go on, and once there is space so does everything."""
    # SQLite reads its log out every 32 MiB, and needs that much to breathe.
    size, ballast = {"sqlite": (64, 44), "postgres": (40, 24), "redis": (24, 20)}[name]
    with small_disk(size << 20) as disk:
        if disk is None:
            unmade("only root may mount a disk small enough to be filled")
            return
        async with on_small_disk(name, disk, tmp_path) as (url, database):
            disk.weigh_down(ballast << 20)
            relevo = Relevo(url, apps=[apps.app(ledger)], database=database or None)
            orders = {"lease": "2s", "database": database or None}
            async with relevo:
                with Fleet(url, ledger, tmp_path, **orders) as fleet:
                    fleet.hire(1)
                    fleet.wait_for(1)
                    seconds = await fill_and_free(relevo, disk, ledger, fleet, bool(database))
                    matrix.record(recovery=seconds)


async def is_carried(store: Any) -> bool:
    return not await store.ledger.letters(carried=False, limit=1)


async def fill_and_free(
    relevo: Relevo, disk: Disk, ledger: Ledger, fleet: Fleet, is_relayed: bool
) -> float:
    """Seconds from the moment there was space again."""
    store = relevo.store
    async with Producer(relevo, rate=1_000, crowd=50, make=lambda n: Print(n, 0, HEAVY)) as many:
        if is_relayed:  # accepted all the same, into the outbox
            await until(
                lambda: relevo.telemetry.counts["trouble"] > 0, timeout="40s", what="a full disk"
            )
            assert not many.unsure, "the outbox takes what the store cannot"
        else:
            await until(lambda: many.unsure, timeout="40s", what="a refusal")
    async with Producer(relevo, rate=50, first=1_000_000) as few:
        await asyncio.sleep(1)
        began = time.monotonic()
        await store.tally()
        await store.page(Filter(), limit=20)
        assert time.monotonic() - began < 5
        fleet.check()
        disk.free()
        freed, before = time.monotonic(), len(few.acked)
        await few.until_acked(before + 20, timeout=10)
        done = len(ledger.counts("effect"))
        await until(lambda: len(ledger.counts("effect")) > done, timeout="10s", what="work goes on")
        took = time.monotonic() - freed
        assert took < 10
    assert max(many.slowest, few.slowest) < 5.5
    if is_relayed:
        await until(lambda: is_carried(store), timeout="30s", what="every letter carried")
    await drained(store, 60, fleet.check)
    acked, unsure = many.acked | few.acked, many.unsure | few.unsure
    await judged(store, ledger, acked, unsure=unsure, lease=2)
    return took


async def test_f20_a_log_that_cannot_be_written_stops_nothing(
    clock: ManualClock, ledger: Ledger, tmp_path: Path
) -> None:
    """Standard error on a full device, standard output closed: jobs go on."""
    async with fresh("sqlite", clock, tmp_path) as store:
        relevo = Relevo(store, apps=[apps.app(ledger)])
        await relevo.enqueue_many(Print(number) for number in range(50))
        with Fleet(store.dsn, ledger, tmp_path) as fleet:
            work = "exec $relevo work --app tests.faults.program:app"
            member = fleet.hire_shell(f"{work} 2> /dev/full >&-", RELEVO_LOG_LEVEL="debug")
            await drained(store, 20, fleet.check)
            member.terminate()
            assert member.wait(15) == 0
            fleet.members.remove(member)
        await relevo.rest()
        await judged(store, ledger, range(50), lease=2)


async def test_f30_without_file_handles_a_worker_lives_and_recovers(
    store: Store, ledger: Ledger, tmp_path: Path, matrix: Recorder
) -> None:
    relevo = Relevo(store, apps=[apps.app(ledger)])
    with Fleet(store.dsn, ledger, tmp_path, lease="1s", limits={"NOFILE": 128}) as fleet:
        [member] = fleet.hire(1)
        fleet.wait_for(1)
        await relevo.enqueue_many(Print(number) for number in range(50))
        await drained(store, 20, fleet.check)
        lines = len(member.lines())
        await relevo.enqueue(Hog(5_000, 2_000))
        await until(lambda: ledger.counts("start")[5_000], timeout="10s")
        began = time.monotonic()
        await relevo.enqueue_many(Print(number) for number in range(50, 100))
        await until(lambda: ledger.counts("end")[5_000], timeout="15s")
        released = time.monotonic()
        await drained(store, 20, fleet.check)
        matrix.record(recovery=time.monotonic() - released)
        assert time.monotonic() - released < 5 + SLACK
        said = member.lines()[lines:]
        assert len(said) <= 3 + 2 * (time.monotonic() - began), said
    await relevo.rest()

    await judged(store, ledger, range(100), lease=1)


async def test_f30_idle_callers_leave_a_server_alive_and_are_forgotten_with_their_handles(
    clock: ManualClock, ledger: Ledger, tmp_path: Path, matrix: Recorder
) -> None:
    """Five hundred who call and say nothing; of 128 handles an address has a quarter."""
    async with fresh("sqlite", clock, tmp_path) as store:
        provider = Provider(free_port(), rate=1)
        with Fleet(store.dsn, ledger, tmp_path) as fleet:
            serve = f"exec $relevo serve --app tests.faults.door:app --port {provider.port}"
            server = fleet.hire_shell(f"ulimit -n 128; {serve}")
            await until(lambda: "http://" in server.said(), timeout="30s", what="it serves")
            assert await provider.call(0) == 200
            before, began = len(server.said().splitlines()), time.monotonic()
            with contextlib.ExitStack() as idle:
                for _ in range(500):
                    caller = idle.enter_context(socket.socket())
                    caller.setblocking(False)
                    caller.connect_ex(("127.0.0.1", provider.port))
                for number in range(1, 6):
                    assert await provider.call(number) in (RESET, 200, 503)
                    await asyncio.sleep(0.5)
                handles = len(list(Path(f"/proc/{server.pid}/fd").iterdir()))
                assert handles > 50, "the callers took nothing"
            released = time.monotonic()
            fleet.check()
            await until(lambda: is_served(provider), timeout="20s", what="a good answer")
            recovery = time.monotonic() - released
            matrix.record(recovery=recovery)
            assert recovery < 5 + SLACK
            said = server.said().splitlines()[before:]
            assert len(said) <= 3 + (time.monotonic() - began), said


async def is_served(provider: Provider) -> bool:
    return await provider.call(6) == 200


async def test_f31_heavy_payloads_side_by_side_stay_small(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    """Payloads at the limit, 64 at once: what a process keeps in memory is bounded."""
    text = (HEAVY * 3)[:60_000]
    relevo = Relevo(store, apps=[apps.app(ledger)])
    with Fleet(store.dsn, ledger, tmp_path, concurrency=64) as fleet:
        for number in range(300):
            payload = b'{"number":%d,"ms":5,"text":"%s"}' % (number, text.encode())
            job = NewJob(id=new_id(), queue=Print.__relevo__.queue, kind="Print",
                payload=payload, attempts=25)  # fmt: skip
            await store.insert([job])
        [member] = fleet.hire(1)
        await drained(store, 60, fleet.check)
        assert most_memory(member.pid) < 200 << 20
    await relevo.rest()

    await judged(store, ledger, range(300), lease=2)


def most_memory(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1_024
