"""What only the SQLite store has to promise: its file, its one writer, its clock, its bells."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiosqlite
import pytest
from msgspec.structs import replace

from relevo.errors import (
    MisuseError,
    SchemaMismatch,
    SettingsError,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
)
from relevo.ids import new_id
from relevo.job import After, Ending, Failure, Receipt, State, Suspicion, Verdict
from relevo.store import RATE_MARGIN, By, Effect, EffectState, Filter, Loss, QueueMode, Want
from relevo.stores import open_store
from relevo.stores.sqlite import claims, doctor, file, log, schema, wake, writer
from relevo.stores.sqlite.pace import ENTRIES, pace
from relevo.stores.sqlite.store import SqliteStore
from relevo.stores.sqlite.transaction import chunks, plain, text
from relevo.testing import ManualClock, until
from tests.conformance.steps import WORK, add, end, job, look, put, state, take, take_id, take_one

HOME = Path(__file__).parents[2]


@pytest.fixture
def path() -> Iterator[Path]:
    # A short one: a socket's address has room for 100 characters.
    with tempfile.TemporaryDirectory(prefix="relevo-") as folder:
        yield Path(folder) / "data" / "relevo.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    async with opened(path) as handle:
        yield handle


@asynccontextmanager
async def opened(path: Path, option: str = "") -> AsyncIterator[SqliteStore]:
    handle = SqliteStore(f"sqlite:///{path}{option}")
    await handle.migrate()
    await handle.open()
    try:
        yield handle
    finally:
        await handle.close()


@contextlib.contextmanager
def connected(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection of somebody else's, as a person at a shell has it."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        yield connection
    finally:
        connection.close()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def elsewhere(body: str, *arguments: object) -> subprocess.Popen[str]:
    """Another process that runs `body`, a coroutine's, with an open `store`."""
    code = f"""
import asyncio, sys, time
from relevo.job import NewJob, State, Ending
from relevo.ids import new_id
from relevo.store import Want, Filter
from relevo.stores.sqlite.store import SqliteStore

def job(queue):
    return NewJob(id=new_id(), queue=queue, kind="DoWork", payload=b"1")

async def main(url, *arguments):
    store = SqliteStore(url)
    {body}

asyncio.run(main(*sys.argv[1:]))
"""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=HOME,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


async def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return (await asyncio.to_thread(process.stdout.readline)).strip()


# the address


def test_an_address_names_a_file_here_or_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert file.parse("sqlite:///relevo.db") == (tmp_path / "relevo.db", "full")
    assert file.parse("sqlite:///a/b%20c.db").path == tmp_path / "a" / "b c.db"
    assert file.parse("sqlite:////srv/jobs.db?synchronous=NORMAL") == (
        Path("/srv/jobs.db"),
        "normal",
    )


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite:///x%00.db",
        "sqlite:///x.db?synchronous=off",
        "sqlite:///x.db?mode=memory",
    ],
)
def test_an_address_that_names_no_file_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="SQLite"):
        open_store(url)


async def test_full_is_the_default_and_normal_has_to_be_asked_for(path: Path) -> None:
    async with opened(path) as full, opened(path, "?synchronous=normal") as normal:
        said = {found.subject: found for found in await full.check()}
        assert said["durability"].level == "ok"
        said = {found.subject: found for found in await normal.check()}
        assert said["durability"].level == "warning"
        assert "synchronous=normal" in said["durability"].message


# making, opening, refusing


async def test_only_its_owner_may_read_the_file_and_what_lies_beside_it(
    store: SqliteStore, path: Path
) -> None:
    """C35"""
    await add(store)
    await store.wait([WORK], 0.01)

    assert {mode(path), mode(Path(f"{path}-wal")), mode(Path(f"{path}-shm"))} == {0o600}
    assert (mode(path.parent), mode(Path(f"{path}.wake"))) == (0o700, 0o700)
    path.chmod(0o644)
    assert "warning" in {f.level for f in await store.check() if f.subject == "file modes"}


async def test_a_folder_that_was_there_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    async with opened(tmp_path / "relevo.db"):
        assert mode(tmp_path) == 0o755


async def test_without_a_file_nothing_opens_and_nothing_is_made(path: Path) -> None:
    with pytest.raises(SchemaMismatch, match="relevo migrate"):
        await SqliteStore(f"sqlite:///{path}").open()

    assert not path.exists()


async def test_older_and_newer_tables_are_refused_with_the_way_out(path: Path) -> None:
    """F45"""
    async with opened(path):
        pass
    with connected(path) as hand:
        hand.execute("update relevo_schema set version = version + 1000")
        hand.execute("update relevo_schema set readable_from = version")
    for verb in ("open", "migrate"):
        with pytest.raises(SchemaMismatch, match="upgrade relevo"):
            await getattr(SqliteStore(f"sqlite:///{path}"), verb)()
    with connected(path) as hand:
        hand.execute("delete from relevo_schema")
    with pytest.raises(SchemaMismatch, match="relevo migrate"):
        await SqliteStore(f"sqlite:///{path}").open()


async def test_an_application_has_its_tables_in_the_same_file(path: Path) -> None:
    path.parent.mkdir()
    with connected(path) as hand:
        hand.execute("create table guests (name text)")
        hand.execute("insert into guests values ('Ada')")

    async with opened(path) as store:
        await add(store)
        with connected(path) as hand:
            tables = {name for (name,) in hand.execute("select name from sqlite_master")}
            assert hand.execute("select name from guests").fetchall() == [("Ada",)]
        ours = tables - {"guests"}
        assert all(name.startswith(("relevo_", "sqlite_")) for name in ours)


async def test_four_processes_migrate_at_once_and_each_step_runs_once(path: Path) -> None:
    """F46"""
    body = "print(sys.stdin.readline().strip(), len(await store.migrate()))"
    racers = [elsewhere(body, f"sqlite:///{path}") for _ in range(4)]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()

    steps = [int((await line_of(racer)).split()[1]) for racer in racers]

    assert [await asyncio.to_thread(racer.wait) for racer in racers] == [0] * 4
    assert sum(steps) == len(schema.steps())
    for racer in racers:
        racer.communicate()


def test_a_migration_killed_at_any_statement_leaves_the_old_tables_or_the_new(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F46: whoever dies before the commit was never there."""
    statements = [one for step in schema.steps() for one in schema.statements(step.sql)]

    class Killed(BaseException):
        pass

    real = schema.statements
    for count in range(0, len(statements), 3):
        target = path.with_name(f"{count}.db")
        left = count

        def dying(sql: str) -> Iterator[str]:
            nonlocal left
            for statement in real(sql):
                if not left:
                    raise Killed
                left -= 1
                yield statement

        with monkeypatch.context() as patch:
            patch.setattr(schema, "statements", dying)
            with pytest.raises(Killed):
                schema.migrate(target)
        with connected(target) as hand:
            version = schema.read(hand).number
            tables = hand.execute("select count(*) from sqlite_master").fetchone()
        assert (version == 0) == (tables == (1,))
        schema.migrate(target)
        with connected(target) as hand:
            assert schema.read(hand).number == schema.steps()[-1].number


async def test_jobs_from_before_the_promises_go_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of version 4, with a job of each kind of key."""
    with monkeypatch.context() as patch:
        steps = schema.steps()
        patch.setattr(schema, "steps", lambda: steps[:4])
        schema.migrate(path)
    with connected(path) as hand:
        hand.execute("insert into relevo_queues (name) values (?)", (WORK,))
        for seq, (key, forever) in enumerate([(None, 0), ("once", 0), ("good", 1)], 1):
            hand.execute(
                """
                insert into relevo_jobs
                    (seq, state, priority, attempts, forever, run_at, inserted_at, keep, id, queue,
                     kind, key, payload)
                values (?, 10, 1, 3, ?, 0, 0, 1000000000, ?, ?, 'DoWork', ?, x'7b7d')
                """,
                (seq, forever, f"{seq:032x}", WORK, key),
            )
    assert await SqliteStore(f"sqlite:///{path}").migrate() == [step.name for step in steps[4:]]

    async with opened(path) as store:
        found = await store.find([f"{seq:032x}" for seq in (1, 2, 3)])
        said = [(one.unique, one.turn, one.remember, one.joined) for one in found if one]
        assert said == [("unfinished", 0, 0, 0)] * 2 + [("forever", 0, 0, 0)]
        (answer,) = await store.insert([job(key="once", digest=b"\0" * 8)])
        assert answer == Receipt(f"{2:032x}", Verdict.IN_PROGRESS, False)
        leases = (await store.claim([Want(queue=WORK, rate=(9, 1_000))], 9, "w", 60_000)).leases
        assert [lease.turn for lease in leases] == [0, 0, 0]
        ends = [Ending(lease=lease, state=State.SCHEDULED, planned=True) for lease in leases]
        assert await store.settle(ends) == [True] * 3
        leases = (await store.claim([Want(queue=WORK)], 9, "w", 60_000)).leases
        assert [lease.turn for lease in leases] == [1, 1, 1]


async def test_jobs_from_before_the_crashes_go_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of version 7: a job that waits, one that runs, one that has ended."""
    with monkeypatch.context() as patch:
        steps = schema.steps()
        patch.setattr(schema, "steps", lambda: steps[:7])
        schema.migrate(path)
    ready, running, done = (f"{seq:032x}" for seq in (1, 2, 3))
    with connected(path) as hand:
        hand.execute("insert into relevo_queues (name) values (?)", (WORK,))
        hand.execute("insert into relevo_names (no, name) values (1000, 'gone')")
        for seq, (id, state, attempt) in enumerate(
            [(ready, 10, 0), (running, 20, 3), (done, 30, 1)], 1
        ):
            hand.execute(
                """
                insert into relevo_jobs
                    (seq, state, attempt, priority, attempts, run_at, until_at, claimed_at, worker,
                     ended_at, inserted_at, keep, id, queue, kind, payload)
                values (?, ?, ?, 1, 3, 0, 1000, 10, 1000, 1000, 0, 1000000000, ?, ?, 'DoWork', '{}')
                """,
                (seq, state, attempt, id, WORK),
            )
    assert await SqliteStore(f"sqlite:///{path}").migrate() == [step.name for step in steps[7:]]

    async with opened(path) as store:
        found = [one for one in await store.find([ready, running, done]) if one]
        assert [(one.suspicion, one.crashes) for one in found] == [(0, 0)] * 3
        assert [one.id for one in await store.rescue()] == [running]
        leases = (await store.claim([Want(queue=WORK)], 9, "w", 60_000)).leases
        said = {lease.id: (lease.attempt, lease.suspicion, lease.crashes) for lease in leases}
        assert said == {ready: (1, 0, 0), running: (3, 1, 0)}
        assert await store.isolate(leases) == [True, True]
        assert await store.settle([Ending(lease=one, state=State.DONE) for one in leases]) == [
            True,
            True,
        ]


async def test_a_suspicion_changed_by_hand_stops_no_upkeep(store: SqliteStore, path: Path) -> None:
    """B36"""
    ids = await put(store, job(), job())
    for _ in range(2):
        leases = await take(store, 2)
        assert {lease.id for lease in leases} == set(ids)
        with connected(path) as hand:
            hand.execute(
                "update relevo_jobs set suspicion = 'x', crashes = 'y', attempt = 0 where id = ?",
                (ids[0],),
            )
        loss = Loss(id=ids[0], failure=Failure(type="T", message="m"), suspicion=Suspicion.ALONE)
        assert len(await store.rescue(worker="w1", losses=[loss])) == 2
        assert (await look(store, ids[0])).suspicion == Suspicion.ALONE


@pytest.mark.parametrize("cut", [0, 50, 8_192, 100_000])
async def test_a_torn_file_is_refused_with_advice(path: Path, cut: int) -> None:
    """F21"""
    async with opened(path) as store:
        await put(store, *[job() for _ in range(500)])
    os.truncate(path, cut)

    for step in (SqliteStore(f"sqlite:///{path}").migrate, SqliteStore(f"sqlite:///{path}").open):
        with pytest.raises(StoreDamaged, match="backup"):
            await step()
    assert path.stat().st_size == cut


async def test_a_file_with_flipped_bits_is_refused_with_advice(path: Path) -> None:
    """F21"""
    async with opened(path) as store:
        await put(store, *[job() for _ in range(500)])
    whole = path.read_bytes()
    for place in (3, 8_192, 5 * 8_192 + 4):
        path.write_bytes(
            whole[:place] + bytes(255 - b for b in whole[place:][:64]) + whole[place + 64 :]
        )
        with pytest.raises(StoreDamaged, match="backup"):
            await SqliteStore(f"sqlite:///{path}").open()
    path.write_bytes(whole)
    async with opened(path) as store:
        assert await store.count(Filter()) == 500


async def test_a_file_of_another_kind_is_refused(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("dear diary, " * 1_000)

    with pytest.raises(StoreDamaged, match="not a database"):
        await SqliteStore(f"sqlite:///{path}").migrate()


# the file while it is in use


async def test_a_deleted_file_is_missed_and_never_made_anew(store: SqliteStore, path: Path) -> None:
    """F21"""
    id = await add(store)
    hidden = path.rename(path.with_suffix(".hidden"))

    with pytest.raises(StoreDamaged, match="deleted or moved"):
        await add(store)
    with pytest.raises(StoreDamaged, match="deleted or moved"):
        await store.find([id])
    assert not path.exists()

    hidden.rename(path)
    await add(store)
    assert await store.count(Filter()) == 2


async def test_a_replaced_file_is_noticed(store: SqliteStore, path: Path) -> None:
    """F21"""
    await store.backup(path.with_suffix(".old"))
    id = await add(store)
    path.with_suffix(".old").replace(path)

    with pytest.raises(StoreDamaged, match="replaced"):
        await store.find([id])
    with pytest.raises(StoreDamaged, match="replaced"):
        await add(store)


async def test_a_deleted_log_is_noticed(store: SqliteStore, path: Path) -> None:
    """F21"""
    await add(store)
    Path(f"{path}-wal").unlink()

    with pytest.raises(StoreDamaged, match="-wal was deleted"):
        await add(store)


async def test_a_file_made_read_only_says_so_and_goes_on_when_it_is_not(
    store: SqliteStore, path: Path
) -> None:
    """F21"""
    id = await add(store)
    path.chmod(0o400)

    with pytest.raises(StoreUnavailable, match="read-only"):
        await add(store)
    assert await state(store, id) is State.READY

    path.chmod(0o600)
    await add(store)


async def test_a_file_locked_by_another_is_waited_for_and_then_said_so(
    store: SqliteStore, path: Path
) -> None:
    """F18"""
    with connected(path) as other:
        other.execute("begin exclusive")
        began = time.monotonic()
        ids = [new_id() for _ in range(20)]
        answers = await asyncio.gather(
            *(store.insert([job(id=id)]) for id in ids),
            store.claim([Want(queue=WORK)], 1, "w", 1_000),
            return_exceptions=True,
        )
        assert time.monotonic() - began < 5
        assert {type(answer) for answer in answers} == {StoreUnavailable}
        assert await store.find(ids) == [None] * 20
        waiting = asyncio.ensure_future(store.insert([job(id=ids[0])]))
        await asyncio.sleep(0)
        other.execute("rollback")

    await waiting
    assert await state(store, ids[0]) is State.READY
    assert await store.find(ids[1:]) == [None] * 19


async def test_a_full_disk_refuses_writes_and_recovers_by_itself(store: SqliteStore) -> None:
    """F20: a limit on pages is what SQLite meets when the disk has no more of them."""
    ids = await put(store, *[job() for _ in range(50)])
    connection = store._writer._connection  # pyright: ignore[reportPrivateUsage, reportOptionalMemberAccess]
    (pages,) = connection.execute("pragma page_count").fetchone()
    connection.execute(f"pragma max_page_count = {pages}")

    big = b'"' + b"x" * 60_000 + b'"'
    with pytest.raises(StoreUnavailable, match="full"):
        await store.insert([job(payload=big) for _ in range(100)])

    assert await store.count(Filter()) == 50
    assert (await look(store, ids[0])).state is State.READY
    await store.insert([job(payload=big) for _ in range(100)])  # on a fresh connection
    assert await store.count(Filter()) == 150


async def test_the_log_shrinks_again_after_a_long_reader(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F19"""
    monkeypatch.setattr(file, "WAL_LIMIT", 1 << 20)
    monkeypatch.setattr(file, "WAL_PAGES", 50)
    monkeypatch.setattr(writer, "IDLE", 0.05)
    monkeypatch.setattr(log, "PAUSE", 0.05)
    wal = Path(f"{path}-wal")
    async with opened(path) as store:
        await add(store)
        with connected(path) as reader:
            reader.execute("begin")
            reader.execute("select count(*) from relevo_jobs").fetchone()
            for _ in range(20):
                await put(store, *[job(payload=b'"%s"' % (b"x" * 2_000)) for _ in range(100)])
            assert wal.stat().st_size > 3 << 20

        await until(lambda: wal.stat().st_size <= 1 << 20)
        assert await store.count(Filter()) == 2_001


async def test_a_polite_end_leaves_one_file(path: Path) -> None:
    async with opened(path) as store, opened(path) as other:
        await add(store)
        await add(other)

    assert {one.name for one in path.parent.iterdir()} == {path.name, f"{path.name}.wake"}
    async with opened(path) as store:
        assert await store.count(Filter()) == 2


async def test_what_goes_well_is_written_in_one_statement(store: SqliteStore) -> None:
    await put(store, *[job() for _ in range(16)])
    leases = await take(store, 16)
    effects = [Effect(job=lease.id, queue=lease.queue, name="mail", key="k") for lease in leases]
    await store.intend(effects)
    said: list[str] = []
    connection = store._writer._connection  # pyright: ignore[reportPrivateUsage, reportOptionalMemberAccess]
    connection.set_trace_callback(said.append)

    await store.extend(leases, 60_000)
    await store.conclude([replace(each, state=EffectState.CONFIRMED) for each in effects])
    await store.settle([Ending(lease, State.DONE) for lease in leases])

    changes = [text for text in said if text.lstrip().startswith("update")]
    looks = [text for text in said if "select" in text and "max(seq)" not in text]
    assert len(changes) == 3
    assert [text for text in looks if text not in changes] == []


# rows changed by hand


@pytest.mark.parametrize(
    "change",
    [
        "payload = 'no json'",
        "payload = ''",
        "payload = '1],[2'",
        "payload = x'80049510004b012e00'",
        "payload = '{\"a\": \"' || char(10) || '\"}'",
        "attempts = -1",
        "attempt = -7",
        "attempts = 'many'",
        "keep = 'long'",
        "kind = x'ff'",
        "meta = x'ff'",
    ],
)
async def test_a_row_changed_by_hand_harms_no_other(
    store: SqliteStore, path: Path, change: str
) -> None:
    """B36"""
    ids = await put(store, *[job() for _ in range(5)])
    with connected(path) as hand:
        hand.execute(
            "update relevo_jobs set CHANGE where id = ?".replace("CHANGE", change), (ids[2],)
        )

    leases = await take(store, 5)

    assert {ids[0], ids[1], ids[3], ids[4]} <= {lease.id for lease in leases}
    if ids[2] not in {lease.id for lease in leases}:
        bad = await look(store, ids[2])
        assert (bad.state, bad.failure is not None) == (State.DEAD, True)
        assert "by hand" in bad.failure.message  # pyright: ignore[reportOptionalMemberAccess]
    await store.settle([Ending(lease=lease, state=State.DONE) for lease in leases])
    assert len((await store.page(Filter())).jobs) == 5


@pytest.mark.parametrize("code", ["99", "-1", "45", "'ready'", "x'00'"])
async def test_a_state_that_nobody_knows_becomes_dead(
    store: SqliteStore, path: Path, code: str
) -> None:
    """B36"""
    good, bad = await put(store, job(), job())
    with connected(path) as hand:
        hand.execute(
            "update relevo_jobs set state = CODE where id = ?".replace("CODE", code), (bad,)
        )
    assert (await look(store, bad)).state is State.DEAD

    await store.rescue()

    assert [lease.id for lease in await take(store, 5)] == [good]
    found = (await store.page(Filter(states=frozenset({State.DEAD})))).jobs
    assert [one.id for one in found] == [bad]
    assert "state" in found[0].failure.message  # pyright: ignore[reportOptionalMemberAccess]


# the writer


async def test_one_bad_command_does_not_fail_its_neighbours(store: SqliteStore) -> None:
    good = [store.insert([job()]) for _ in range(10)]
    bad = store.insert([job(attempts=1 << 70)])

    *answers, failure = await asyncio.gather(*good, bad, return_exceptions=True)

    assert isinstance(failure, OverflowError | StoreError)
    assert len(answers) == 10
    assert await store.count(Filter()) == 10


async def test_the_file_holds_nothing_of_what_was_erased(store: SqliteStore, path: Path) -> None:
    """C23: not in free pages either, once the log has been taken into the file."""
    ids = await put(store, *[job(payload=b"canary" * 2_000) for _ in range(20)])
    await store.cancel(ids, By("ann"))

    assert await store.erase(ids, [], By("ann"), act="a") == (20, 0)

    with sqlite3.connect(path) as file:
        file.execute("pragma wal_checkpoint(truncate)")
    file.close()
    assert b"canary" not in path.read_bytes()


async def test_callers_of_one_moment_share_one_commit(store: SqliteStore, path: Path) -> None:
    await add(store)
    with connected(path) as watcher:
        (before,) = watcher.execute("pragma data_version").fetchone()
        await asyncio.gather(*(store.insert([job()]) for _ in range(200)))
        (after,) = watcher.execute("pragma data_version").fetchone()

    assert after - before == 1
    assert await store.count(Filter()) == 201


async def test_a_refused_bundle_takes_no_key_from_its_neighbours(store: SqliteStore) -> None:
    """They share a transaction; what was never stored must not answer for another's job."""
    await store.set_mode(["app:module:closed"], QueueMode.DRAINING, By("Ana"))
    bundle = [job(key="free", bundle="b"), job("app:module:closed", bundle="b")]
    mine = job(key="free")

    refused, answered = await asyncio.gather(store.insert(bundle), store.insert([mine]))

    assert {answer.verdict for answer in refused} == {Verdict.CLOSED}
    assert answered == [Receipt(mine.id, Verdict.NEW)]
    assert await store.count(Filter()) == 1


async def test_a_commit_that_fails_is_told_and_leaves_nothing(store: SqliteStore) -> None:
    [shared] = [one for one in writer.running() if one.path == store.path]
    connection = shared._connection  # pyright: ignore[reportPrivateUsage]
    assert connection is not None

    def guard(action: int, word: str | None, *_: object) -> int:
        is_commit = action == sqlite3.SQLITE_TRANSACTION and word == "COMMIT"
        return sqlite3.SQLITE_DENY if is_commit else sqlite3.SQLITE_OK

    connection.set_authorizer(guard)
    with pytest.raises(StoreError, match="not authorized"):
        await put(store, job("lost"))
    connection.set_authorizer(None)
    [kept] = await put(store, job("kept"))
    assert [one.id for one in (await store.page(Filter())).jobs] == [kept]


async def test_a_caller_never_blocks_its_loop_for_the_lock(store: SqliteStore, path: Path) -> None:
    with connected(path) as other:
        other.execute("begin immediate")
        writing = asyncio.create_task(put(store, job()))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not writing.done()
        other.execute("commit")
        await writing


async def test_a_caller_that_is_gone_costs_the_others_nothing(store: SqliteStore) -> None:
    calls = [asyncio.ensure_future(store.insert([job()])) for _ in range(10)]
    await asyncio.sleep(0)
    for call in calls[::2]:
        call.cancel()

    answers = await asyncio.gather(*calls, return_exceptions=True)

    assert [isinstance(answer, list) for answer in answers] == [False, True] * 5


async def test_short_commands_and_long_ones_of_two_loops_never_wait_for_each_other(
    store: SqliteStore,
) -> None:
    spawned = store.spawn()

    def claim_there() -> None:
        async def claim() -> None:
            await spawned.open()
            for _ in range(300):
                await take(spawned)
            await spawned.close()

        asyncio.run(claim())

    claiming = asyncio.create_task(asyncio.to_thread(claim_there))
    while not claiming.done():
        await put(store, *[job("app:module:other") for _ in range(20)])
    await claiming


async def test_a_mistake_after_the_commit_leaves_the_writer_alive(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    [shared] = [one for one in writer.running() if one.path == store.path]
    with monkeypatch.context() as patched:
        patched.setattr(shared, "wake", lambda queues: 1 / 0)
        await add(store)
        await until(lambda: not shared.turns._is_taken)  # pyright: ignore[reportPrivateUsage]
    assert await add(store)


async def test_handles_of_one_process_share_a_writer_across_event_loops(
    store: SqliteStore,
) -> None:
    spawned = store.spawn()

    def insert_there() -> None:
        async def main() -> None:
            await spawned.open()
            await spawned.insert([job()])
            await spawned.close()

        asyncio.run(main())

    await asyncio.gather(*(asyncio.to_thread(insert_there) for _ in range(1)), add(store))

    assert await store.count(Filter()) == 2
    with pytest.raises(StoreUnavailable, match="not open"):
        await spawned.count(Filter())


async def test_numbers_are_never_used_again(store: SqliteStore, path: Path) -> None:
    """A late settle of a removed job must not end another one in its place."""
    await add(store, keep=0)
    lease = await take_one(store)
    await end(store, lease)
    id = await add(store)

    assert await store.settle([Ending(lease=lease, state=State.DONE)]) == [False]
    assert await state(store, id) is State.READY
    assert (await take_one(store)).ref > lease.ref


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_an_ending_that_met_a_claim_is_written_whatever_becomes_of_that(
    store: SqliteStore, is_cancelled: bool
) -> None:
    """It waits to share the next claim's commit, and there may be no next claim."""
    await put(store, job(), job())
    lease = await take_one(store)
    async with store.turn():
        claiming = asyncio.create_task(take(store))
        await asyncio.sleep(0)
        ending = asyncio.create_task(end(store, lease))
        await asyncio.sleep(0)
        if is_cancelled:
            claiming.cancel()

    assert await ending
    assert await state(store, lease.id) is State.DONE
    await asyncio.wait({claiming})


async def test_what_is_not_kept_leaves_nothing_behind(store: SqliteStore, path: Path) -> None:
    """A line of history and an edge would wait for a job that never comes back."""
    child = await add(store, keep=0)
    await end(store, await take_id(store, child), State.SCHEDULED)
    parent = job(keep=0, after=(After(child),))
    await put(store, parent)
    await end(store, await take_id(store, child))
    await end(store, await take_id(store, parent.id))

    with contextlib.closing(sqlite3.connect(path)) as connection:
        left = connection.execute(
            """
            select (select count(*) from relevo_jobs),
                   (select count(*) from relevo_attempts),
                   (select count(*) from relevo_edges)
            """
        ).fetchone()
    assert left == (0, 0, 0)


async def test_turns_to_write_come_in_the_order_they_were_asked_for(
    store: SqliteStore, path: Path
) -> None:
    told: list[int] = []

    async def transact(number: int) -> None:
        async with store.turn(), aiosqlite.connect(path, isolation_level=None) as connection:
            await connection.execute("begin immediate")
            await store.insert_within(connection, [job()])
            await connection.commit()
            told.append(number)
            store.committed([WORK])

    await asyncio.gather(*(transact(number) for number in range(20)), *(add(store) for _ in "abc"))

    assert told == sorted(told)
    assert await store.count(Filter()) == 23


async def test_a_turn_that_never_ends_makes_the_others_unavailable(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "PATIENCE", 0.2)
    async with store.turn():
        with pytest.raises(StoreUnavailable, match="transaction"):
            await add(store)
    await add(store)


async def test_a_connection_without_a_transaction_is_refused(
    store: SqliteStore, path: Path
) -> None:
    with connected(path) as own, pytest.raises(MisuseError, match="begin"):
        await store.insert_within(own, [job()])
    with pytest.raises(MisuseError, match="sqlite3"):
        await store.insert_within(object(), [job()])


async def test_a_connection_may_shape_its_rows_as_it_likes(store: SqliteStore, path: Path) -> None:
    def as_dict(cursor: sqlite3.Cursor, row: tuple[object, ...]) -> dict[str, object]:
        return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}

    with connected(path) as own:
        own.row_factory = as_dict
        own.execute("begin")
        first = job(key="k")
        await store.insert_within(own, [first])
        again = await store.insert_within(own, [job(key="k")])
        own.execute("commit")

    assert again[0].id == first.id


async def test_a_copy_is_whole_private_and_of_one_moment(store: SqliteStore, path: Path) -> None:
    """F47"""
    copy = path.with_name("copy.db")
    before = await put(store, *[job() for _ in range(50)])
    stop = threading.Event()

    async def go_on() -> None:
        while not stop.is_set():
            await put(store, job())

    load = asyncio.ensure_future(go_on())
    await store.backup(copy)
    stop.set()
    await load

    assert mode(copy) == 0o600
    with pytest.raises(MisuseError, match="already"):
        await store.backup(copy)
    async with opened(copy) as restored:
        assert None not in await restored.find(before)
        assert await restored.count(Filter()) <= await store.count(Filter())
    with connected(copy) as hand:
        assert hand.execute("pragma integrity_check").fetchone() == ("ok",)


# other processes


async def test_another_process_wakes_us(store: SqliteStore, path: Path) -> None:
    body = "await store.open(); print('ready', flush=True); sys.stdin.readline(); "
    body += "await store.insert([job(arguments[0])]); print(await store.now()); await store.close()"
    other = elsewhere(body, f"sqlite:///{path}", WORK)
    assert await line_of(other) == "ready"
    await store.wait([WORK], 0.05)
    waiting = asyncio.ensure_future(store.wait([WORK], 30))
    await asyncio.sleep(0)

    other.communicate("go\n")
    await waiting

    assert len(await take(store, 5)) == 1


async def test_a_job_that_nobody_rang_for_is_seen_before_long(
    store: SqliteStore, path: Path
) -> None:
    await store.wait([WORK], 0.05)
    waiting = asyncio.ensure_future(store.wait([WORK], 30))
    await asyncio.sleep(0.05)
    with connected(path) as own:
        own.execute("begin")
        await store.insert_within(own, [job()])
        own.execute("commit")
    began = time.monotonic()

    await waiting

    assert time.monotonic() - began < 2


async def test_the_bell_of_a_dead_process_is_taken_down(store: SqliteStore, path: Path) -> None:
    folder = Path(f"{path}.wake")
    dead = folder / "1-00000000.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
        bell.bind(str(dead))

    await add(store)
    await until(lambda: not dead.exists())


async def test_a_bell_that_nobody_listens_to_never_holds_us_up(
    store: SqliteStore, path: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(str(Path(f"{path}.wake") / "1-11111111.sock"))
        for _ in range(600):
            await add(store)


async def test_a_long_path_has_its_bells_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / ("d" * 100) / "relevo.db"
    async with opened(path) as store:
        waiting = asyncio.ensure_future(store.wait([WORK], 10))
        bells = wake.folder_of(path)
        assert bells.parent != path.parent
        await until(lambda: len(list(bells.glob("*.sock"))) == 1)
        await add(store)
        await waiting
    assert not bells.exists()


async def test_a_wrong_wall_clock_changes_nothing(store: SqliteStore, path: Path) -> None:
    """F28"""
    body = "real = time.time_ns; time.time_ns = lambda: real() + 7_200_000_000_000; "
    body += "await store.open(); print(await store.now()); "
    body += "print([f.message for f in await store.check() if f.subject == 'clock'])"
    other = elsewhere(body, f"sqlite:///{path}")

    theirs = int(await line_of(other))

    assert abs(theirs - await store.now()) < 60_000
    assert "7200.0 s ahead" in await line_of(other)
    other.communicate()


async def test_the_first_to_come_sets_the_clock(path: Path) -> None:
    async with opened(path):
        pass
    with connected(path) as hand:
        hand.execute("update relevo_meta set value = '0' where name = 'anchor'")

    async with opened(path) as store:
        assert abs(await store.now() - time.time_ns() // 1_000_000) < 60_000


async def test_time_never_goes_back(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    before = await store.now()
    monkeypatch.setattr(time, "clock_gettime_ns", lambda clock: 0)

    assert await store.now() >= before


async def test_a_clock_moved_by_a_test_moves_the_store(path: Path) -> None:
    clock = ManualClock()
    async with opened(path):
        handle = SqliteStore(f"sqlite:///{path}", clock=clock)
        await handle.open()
        before = await handle.now()
        clock.advance("1h")
        assert 3_600_000 <= await handle.now() - before < 3_601_000
        await handle.close()


async def test_a_forked_child_opens_a_writer_of_its_own(store: SqliteStore, path: Path) -> None:
    await add(store)
    body = """
    await store.open()
    await store.insert([job("app:module:work")])
    import os
    child = os.fork()
    if not child:
        from relevo.stores.sqlite import writer
        async def use():
            async with asyncio.timeout(0.3):
                await store.insert([job("app:module:work")])
        try:
            asyncio.run(use())  # with its parent's handle, which commits nothing here
        except TimeoutError:
            os._exit(0 if not writer.running() else 1)
        os._exit(2)
    print(os.waitpid(child, 0)[1])
    await store.insert([job("app:module:work")])
    await store.close()
"""
    other = elsewhere(body.strip(), f"sqlite:///{path}")

    assert await line_of(other) == "0"
    other.communicate()
    assert await store.count(Filter()) == 3


# small parts


@pytest.mark.parametrize("value", ["", "a", "ñ", "\0", "\x10", "a\x100000", "\ud800\udfff", "🏨\0"])
def test_any_text_comes_back_as_it_went(value: str) -> None:
    held = text(value)
    held.encode()

    assert "\0" not in held
    assert plain(held) == value


@pytest.mark.parametrize("length", [0, 1, 2, 3, 100, 511, 512, 513, 1_700])
def test_chunks_are_everything_in_order(length: int) -> None:
    assert [item for some in chunks(range(length)) for item in some] == list(range(length))


def test_a_deal_is_even_and_never_more_than_offered() -> None:
    assert claims.deal([10, 10, 10], 9) == [3, 3, 3]
    assert claims.deal([1, 10, 10], 9) == [1, 4, 4]
    assert claims.deal([5, 0, 2], 100) == [5, 0, 2]
    assert claims.deal([], 5) == []


def test_a_burst_gives_what_has_come_in() -> None:
    first = pace((2, 1_000), 2, 0, "", 5_000)
    assert first.free == 2
    stored = first.after(2)
    later = pace((2, 1_000), 2, *stored, 5_499)
    assert (later.free, later.next_at) == (0, 5_500)
    assert pace((2, 1_000), 2, *stored, 5_500).free == 1
    assert pace((2, 1_000), 2, *stored, 9_000).free == 2


def test_a_rates_log_stays_short_and_forgets_nothing_too_soon() -> None:
    tat, known, given = 0, "", list[int]()
    for now in range(1_000_000, 1_020_000, 3):
        rate = pace((200, 1_000), None, tat, known, now)
        if rate.free > 0:
            tat, known = rate.after(1)
            given.append(now)
        else:
            assert now < rate.next_at <= given[-1] + 1_000 + RATE_MARGIN
        assert known.count("],[") < ENTRIES
    window = 1_000 + RATE_MARGIN
    assert all(late - early >= window for early, late in zip(given, given[200:], strict=False))
    assert len(given) > 0.85 * 200 * 20


def test_a_network_file_system_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = f"disk / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\n"
    monkeypatch.setattr(Path, "read_text", lambda *_: mounts)

    (found,) = doctor.place(tmp_path / "relevo.db")

    assert (found.level, "nfs4" in found.message) == ("warning", True)


@pytest.mark.parametrize("folder", ["a-file", "a-file/below"])
async def test_a_folder_that_cannot_be_made_is_told_and_no_surprise(
    folder: str, tmp_path: Path
) -> None:
    (tmp_path / "a-file").touch()
    with pytest.raises(StoreUnavailable, match="cannot be made"):
        await SqliteStore(f"sqlite:///{tmp_path}/{folder}/relevo.db").migrate()
