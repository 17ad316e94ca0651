"""A copy in the place of a store: what is refused, what is kept, and what a person is told then."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from relevo import App, Command, Relevo
from relevo.desk import Desk, Person, Role
from relevo.errors import MisuseError
from relevo.store import Effect, Store
from relevo.testing import until, working
from tests.conformance.steps import WORK, add, take_id
from tests.edges.box import Box, added, is_one_line

ADMIN = Person("ann", Role.ADMIN)


@pytest.fixture
def copy(box: Box) -> Path:
    """A backup with one job, of a store that has had another since."""
    added(box)
    copy = box.folder / "monday.db"
    assert box("database", "backup", str(copy)).code == 0
    added(box)
    return copy


def jobs(box: Box, path: Path) -> int:
    return len(box("jobs", "ls", "--json", "--store", f"sqlite:///{path}").json["jobs"])


@contextlib.contextmanager
def crashed(path: Path) -> Iterator[None]:
    """A process that has written to the store, and was killed before its log was read out."""
    code = (
        "import sqlite3, sys, time\n"
        "file = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "file.execute('pragma wal_autocheckpoint = 0')\n"
        "file.execute('create table later (text)')\n"
        "file.executemany('insert into later values (?)', [('x' * 4000,)] * 200)\n"
        "print('ready', flush=True); time.sleep(60)\n"
    )
    words = [sys.executable, "-c", code, str(path)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_copy_takes_the_place_of_a_store_which_is_kept(box: Box, copy: Path) -> None:
    done = box("database", "restore", str(copy), "--json", "--note", "the disk died").json

    assert jobs(box, box.path) == 1
    [kept] = map(Path, done["kept"])
    assert jobs(box, kept) == 2
    assert box.path.stat().st_mode & 0o777 == 0o600
    assert [each for each in box.folder.iterdir() if each.name.startswith(".relevo")] == []
    [line, *_] = box("audit", "ls", "--json").json["audits"]
    assert (line["verb"], line["note"]) == ("mark restored", "the disk died")


def test_a_log_that_a_crash_has_left_is_never_played_into_a_copy(box: Box, copy: Path) -> None:
    with crashed(box.path):
        said = box("database", "restore", str(copy), "--force")
        assert (said.code, is_one_line(said)) == (1, True)
        assert "process" in said.err and "open" in said.err
    assert Path(f"{box.path}-wal").stat().st_size

    said = box("database", "restore", str(copy))
    assert (said.code, is_one_line(said)) == (1, True)
    assert "--force" in said.err
    assert jobs(box, copy) == 1

    done = box("database", "restore", str(copy), "--force", "--json").json
    assert any(each.endswith("-wal") for each in done["kept"])
    with contextlib.closing(sqlite3.connect(box.path)) as file:
        assert file.execute("pragma integrity_check").fetchone() == ("ok",)
        assert file.execute("select 1 from sqlite_master where name = 'later'").fetchone() is None
    assert jobs(box, box.path) == 1
    before = next(each for each in done["kept"] if not each.endswith(("-wal", "-shm")))
    with contextlib.closing(sqlite3.connect(before)) as file:  # its log is still its own
        assert file.execute("select count(*) from later").fetchone()[0] >= 200


def test_a_restore_to_another_place_leaves_the_store_alone(box: Box, copy: Path) -> None:
    there = box.folder / "new" / "shop.db"
    done = box("database", "restore", str(copy), "--to", f"sqlite:///{there}", "--json").json
    assert done["kept"] == []
    assert (jobs(box, there), jobs(box, box.path)) == (1, 2)


@pytest.mark.parametrize("what", ["nothing", "text", "cut", "spoiled", "foreign", "newer", "log"])
def test_what_is_no_whole_copy_is_refused_and_changes_nothing(
    box: Box, copy: Path, what: str
) -> None:
    match what:
        case "nothing":
            copy.unlink()
        case "text":
            copy.write_text("select 1;")
        case "cut":
            os.truncate(copy, copy.stat().st_size // 2)
        case "spoiled":
            with copy.open("r+b") as file:
                file.seek(8_192 * 3)
                file.write(b"\xff" * 8_192)
        case "foreign":
            copy.unlink()
            with contextlib.closing(sqlite3.connect(copy)) as file:
                file.execute("create table mine (text)")
        case "newer":
            with contextlib.closing(sqlite3.connect(copy)) as file, file:
                file.execute("insert into relevo_schema values (9999, 'later', 9999)")
        case _:
            Path(f"{copy}-wal").write_bytes(b"x")
    said = box("database", "restore", str(copy))
    assert said.code in (2, 3)
    assert is_one_line(said)
    assert jobs(box, box.path) == 2


def test_what_a_server_restores_itself_is_told(box: Box, copy: Path, tmp_path: Path) -> None:
    said = box("database", "restore", str(copy), "--to", "redis://127.0.0.1:1/0")
    assert said.code == 2
    assert "mark-restored" in said.err and "appenddirname" in said.err
    base = tmp_path / "base"
    base.mkdir()
    (base / "backup_label").touch()
    for path, word in ((base, "base backup"), (copy, "psql"), (tmp_path, "neither")):
        said = box("database", "restore", str(path), "--to", "postgresql://127.0.0.1:1/x")
        assert (said.code, is_one_line(said)) == (2, True)
        assert word in said.err


def test_after_a_restore_a_person_is_told_what_to_do(box: Box) -> None:
    async def work(store: Store) -> str:
        id = await add(store)
        await take_id(store, id)
        effect = Effect(job=id, queue=WORK, name="book", key=f"{id}:book", run="r1", thread=id)
        await store.intend([effect])
        return id

    id = box.do(work)
    copy = box.folder / "monday.db"
    assert box("database", "backup", str(copy)).code == 0
    assert box("database", "after-restore").code == 1
    assert "copy" not in box("doctor").out
    assert box("database", "restore", str(copy)).code == 0

    told = box("database", "after-restore", "--json").json
    assert [job["id"] for job in told["running"]] == [id]
    assert [(each["job"], each["state"]) for each in told["effects"]] == [(id, "intended")]
    assert id in box("database", "after-restore").out
    assert "a copy put in place" in box("doctor").out
    assert box("database", "after-restore", "--over").code == 2  # nobody to ask
    assert box("database", "after-restore", "--over", "--yes").code == 0
    assert "a copy put in place" not in box("doctor").out


def test_providers_are_asked_for_the_time_that_was_lost(box: Box, copy: Path) -> None:
    (box.folder / "doors.py").write_text(
        "from relevo import App, Delivery, Intake, sources\n"
        "app = App('doors')\n"
        "@app.webhook('/hooks/stripe', source=sources.stripe('whsec_x'))\n"
        "async def paid(delivery: Delivery, ctx: Intake) -> None: ...\n"
        "@app.webhook('/hooks/other', source=lambda use: sources.stripe('whsec_x'))\n"
        "async def other(delivery: Delivery, ctx: Intake) -> None: ...\n"
    )
    mark = box("database", "restore", str(copy), "--json").json["mark"]
    told = box("database", "after-restore", "--app", "doors:app", "--json").json["deliveries"]
    assert {each["endpoint"] for each in told} == {"doors:/hooks/stripe", "doors:/hooks/other"}
    assert {(each["from_at"], each["to_at"]) for each in told} == {(mark["written_at"], mark["at"])}
    [stripe] = [each["how"] for each in told if each["how"]]
    assert "stripe events resend" in stripe


def test_a_copy_that_nobody_has_marked_is_noticed(box: Box) -> None:
    box.environment["TMPDIR"] = str(box.folder)

    def works() -> str:
        process = box.start(
            "work", "--app", "shop:app", "--queue", "shop:mail:send", "--until-empty"
        )
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        return err.decode()

    def sends(number: int) -> None:
        added(box, queue="shop:mail:send", kind="SendMail", payload=b'{"order":"o%d"}' % number)
        assert "less than" not in works()

    sends(1)
    copy = box.folder / "monday.db"
    assert box("database", "backup", str(copy)).code == 0
    sends(2)
    for name in ("relevo.db", "relevo.db-wal", "relevo.db-shm"):
        (box.folder / name).unlink(missing_ok=True)
    shutil.copy(copy, box.path)
    added(box, queue="shop:mail:send", kind="SendMail", payload=b'{"order":"o3"}')
    assert "the store has less than a process has seen in it" in works()
    [said] = [row for row in box("doctor", "--json").json if row["subject"] == "restored"]
    assert said["level"] == "warning"
    assert "mark-restored" in said["message"]
    assert box("database", "mark-restored").code == 0
    assert "the store has less" not in works()
    told = box("doctor", "--json").json
    assert not [row for row in told if "has less than" in row["message"]]


async def test_a_store_is_not_marked_under_a_worker_that_is_alive(store: Store) -> None:
    desk = Desk(store)
    async with Relevo(store.spawn(), apps=[_app()]) as relevo, working(relevo):
        await until(lambda: _has_workers(store))
        with pytest.raises(MisuseError, match="alive"):
            await desk.mark_restored(ADMIN)
        forced = await desk.mark_restored(ADMIN, force=True)
    assert await desk.mark() == forced
    assert (await desk.end_restore(ADMIN)).over_at
    assert (await desk.after_restore()).mark.over_at
    with pytest.raises(MisuseError, match="all apps"):
        await Desk(store, apps=["shop"]).end_restore(ADMIN)


def _app() -> App:
    class Nap(Command, queue="test:people:nap"):
        number: int

    async def nap(order: Nap) -> None: ...

    return App("test", workers=[nap])


async def _has_workers(store: Store) -> bool:
    return any(worker.is_alive for worker in await store.workers())


@pytest.mark.xdist_group("postgres")
def test_an_archive_of_pg_dump_goes_into_an_empty_database_or_nowhere(
    box: Box, tmp_path: Path
) -> None:
    from tests.servers.postgres import PostgresServer, binaries

    with PostgresServer() as server:
        server.sql("create database other owner relevo", database="postgres")
        other = server.url.rpartition("/")[0] + "/other"
        assert box("migrate", "--store", server.url).code == 0
        mine = ("--store", server.url)
        box("jobs", "ls", *mine)
        archives: list[Path] = []
        for kind in ("c", "d", "t"):
            archives.append(tmp_path / f"dump-{kind}")
            words = [binaries() / "pg_dump", f"-F{kind}", "-f", archives[-1], server.url]
            subprocess.run(words, check=True)

        said = box("database", "restore", str(archives[0]), *mine)
        assert (said.code, is_one_line(said)) == (1, True)
        assert "createdb" in said.err
        os.truncate(shutil.copy(archives[0], tmp_path / "cut"), 2_000)
        said = box("database", "restore", str(tmp_path / "cut"), "--to", other)
        assert said.code == 3
        for archive in archives:
            done = box("database", "restore", str(archive), "--to", other, "--json")
            assert done.code == 0, done.err
            assert done.json["mark"]["at"]
            told = box("database", "after-restore", "--store", other, "--json")
            assert told.json["mark"] == done.json["mark"]
            server.sql("drop database other", database="postgres")
            server.sql("create database other owner relevo", database="postgres")
