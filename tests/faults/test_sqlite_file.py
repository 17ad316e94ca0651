"""What happens to the SQLite file itself: F18, F19, F21, and locks that must outlive a look."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path

import pytest

from relevo import Relevo
from relevo.errors import StoreError
from relevo.ids import new_id
from relevo.job import NewJob, State
from relevo.store import Filter
from relevo.stores import open_store
from relevo.testing import until
from tests.faults import apps
from tests.faults.apps import Nap, Print
from tests.faults.fleet import HOME, Fleet
from tests.faults.ledger import Ledger
from tests.faults.producer import Producer
from tests.faults.verdict import drained, judged
from tests.matrix import Recorder

ENQUEUE = """
import asyncio, sys
from relevo import Relevo
from tests.faults.apps import Nap

async def main(url, number):
    async with Relevo(url) as relevo:
        await relevo.enqueue(Nap(int(number), 0))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "relevo.db"


@pytest.fixture
async def relevo(path: Path, ledger: Ledger) -> AsyncIterator[Relevo]:
    async with Relevo(f"sqlite:///{path}", apps=[apps.app(ledger)]) as opened:
        yield opened


def enqueue_elsewhere(url: str, number: int) -> None:
    """Another process opens the store, enqueues, and leaves."""
    subprocess.run([sys.executable, "-c", ENQUEUE, url, str(number)], cwd=HOME, check=True)


async def test_a_second_handle_does_not_drop_the_locks_of_the_first(
    relevo: Relevo, path: Path
) -> None:
    """Or the next process to leave removes the log that the first still writes to."""
    url = relevo.store.dsn
    await relevo.enqueue(Nap(1, 0))
    second = Relevo(url)
    async with second:
        await second.enqueue(Nap(2, 0))
    enqueue_elsewhere(url, 3)
    await relevo.enqueue(Nap(4, 0))
    enqueue_elsewhere(url, 5)
    assert await relevo.store.count(Filter(states=frozenset({State.READY}))) == 5
    await relevo.close()

    fresh = open_store(url)
    await fresh.open()
    assert await fresh.count(Filter()) == 5
    await fresh.close()


async def test_f18_who_has_the_file_to_himself_for_an_instant_is_waited_for(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the last process to leave has, while another comes up."""
    url = f"sqlite:///{path}"
    await open_store(url).migrate()
    leaving = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    leaving.execute("pragma locking_mode = exclusive")
    leaving.execute("begin immediate")
    monkeypatch.setattr("relevo.stores.sqlite.file.examine", lambda path, clean: None)
    coming = open_store(url)
    opening = asyncio.create_task(coming.open())
    await asyncio.sleep(0.3)
    assert not opening.done()
    leaving.close()
    await opening
    assert await coming.count(Filter()) == 0
    await coming.close()


async def test_f18_a_locked_database_is_waited_for_then_refused(
    relevo: Relevo, path: Path, ledger: Ledger, tmp_path: Path, matrix: Recorder
) -> None:
    """Another process holds the write lock: every call answers within 5 s, nothing acked is lost.

    Readers are not held up, so that people still see their queues.
    """
    with Fleet(relevo.store.dsn, ledger, tmp_path) as fleet:
        fleet.hire(1)
        fleet.wait_for(1)
        async with Producer(relevo, rate=100) as producer:
            await producer.until_acked(50)
            with closing(sqlite3.connect(path, isolation_level=None)) as rude:
                rude.execute("begin exclusive")
                locked = time.monotonic()
                await until(lambda: producer.unsure, timeout="8s", what="a refusal")
                began = time.monotonic()
                await relevo.store.tally()
                assert time.monotonic() - began < 2
                await asyncio.sleep(max(0.0, locked + 5 - time.monotonic()))
                rude.execute("rollback")
            released = time.monotonic()
            before = len(producer.acked)
            await producer.until_acked(before + 50, timeout=5)
            matrix.record(recovery=time.monotonic() - released)
            assert time.monotonic() - released < 5
        assert producer.slowest < 5.5
        await drained(relevo.store, 30, fleet.check)

    await judged(relevo.store, ledger, producer.acked, unsure=producer.unsure, lease=2)


async def grow(relevo: Relevo, path: Path, rows: int) -> None:
    """A reader keeps its snapshot while rows pass; afterwards the log is read out and cut back."""
    log, payload = Path(f"{path}-wal"), b'{"number": 1, "text": "%s"}' % (b"word " * 400)
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("begin")
        reader.execute("select count(*) from relevo_jobs").fetchone()
        for start in range(0, rows, 1_000):
            await relevo.store.insert(
                [
                    NewJob(id=new_id(), queue=Print.__relevo__.queue, kind="Print", payload=payload)
                    for _ in range(start, start + 1_000)
                ]
            )
        assert log.stat().st_size > rows * 2_000, "the reader held nothing back"
        reader.execute("rollback")

    def size() -> int:
        return path.stat().st_size + log.stat().st_size

    live = rows * 2_000
    await until(
        lambda: live < path.stat().st_size and size() < 2 * live,
        timeout="30s",
        what=f"{live >> 20} MiB of jobs in a small file",
    )
    assert await relevo.store.count(Filter(), most=rows) == rows


async def test_f19_the_log_shrinks_when_a_reader_lets_go(relevo: Relevo, path: Path) -> None:
    await grow(relevo, path, 40_000)


@pytest.mark.soak
async def test_f19_a_million_rows_past_one_reader(relevo: Relevo, path: Path) -> None:
    await grow(relevo, path, 1_000_000)


def _read_only(path: Path) -> Callable[[], None]:
    path.chmod(0o400)
    return lambda: path.chmod(0o600)


def _moved(path: Path) -> Callable[[], None]:
    aside = path.with_suffix(".aside")
    path.rename(aside)
    return lambda: aside.rename(path) and None


def _replaced(path: Path) -> Callable[[], None]:
    aside = path.with_suffix(".aside")
    path.rename(aside)
    # By another process: to open and close the file in this one would drop its locks.
    subprocess.run(["cp", aside, path], check=True)
    return lambda: aside.rename(path) and None


@pytest.mark.parametrize("hurt", [_read_only, _moved, _replaced], ids=lambda one: one.__name__[1:])
async def test_f21_a_file_taken_away_is_an_error_and_never_a_new_empty_one(
    hurt: Callable[[Path], Callable[[], None]],
    relevo: Relevo,
    path: Path,
    ledger: Ledger,
    tmp_path: Path,
    matrix: Recorder,
) -> None:
    """While it is away nothing is accepted and workers live; put back, everything goes on."""
    with Fleet(relevo.store.dsn, ledger, tmp_path, lease="1s") as fleet:
        [member] = fleet.hire(1)
        fleet.wait_for(1)
        await relevo.enqueue_many(Print(number) for number in range(20))
        await drained(relevo.store, 20)
        heal = hurt(path)
        try:
            with pytest.raises(StoreError, match=r"read-only|moved|replaced"):
                await relevo.enqueue(Print(1_000))
            kept = path.stat().st_size if path.exists() else None
            await until(
                lambda: "read-only" in member.said() or "while it was in use" in member.said(),
                timeout="10s",
                what="the worker says so",
            )
            fleet.check()
            assert (path.stat().st_size if path.exists() else None) == kept
        finally:
            heal()
        healed = time.monotonic()
        await _accepted(relevo, Print(20))
        await until(lambda: ledger.counts("effect")[20] == 1, timeout="15s")
        matrix.record(recovery=time.monotonic() - healed)
        assert time.monotonic() - healed < 10
        await drained(relevo.store, 20, fleet.check)

    await judged(relevo.store, ledger, range(21), lease=1)


async def _accepted(relevo: Relevo, command: Print) -> None:
    for _ in range(100):
        try:
            await relevo.enqueue(command)
        except StoreError:
            await asyncio.sleep(0.05)
        else:
            return
    raise AssertionError("not accepted again within 5 s")
