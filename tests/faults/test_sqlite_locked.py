"""A process that is stopped, or slow, while it has the SQLite file locked."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from relevo import App, Command, Relevo
from relevo.errors import StoreUnavailable
from relevo.stores import open_store
from relevo.testing import until
from tests.faults.fleet import HOME

HOLDING = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("begin immediate")
print("locked", flush=True)
time.sleep(600)
"""
APP = """
import asyncio
from pathlib import Path
from sqlalchemy import text
from relevo import App, Command, Context

class Hold(Command, queue="test:locks:hold"):
    marks: str

async def hold(order: Hold, ctx: Context) -> None:
    async with ctx.transaction() as session:
        await session.execute(text("insert into held values (1)"))
        Path(order.marks, "begun").touch()
        await asyncio.sleep(1)
    Path(order.marks, "told").touch()

app = App("test", workers=[hold])
"""


class Hold(Command, queue="test:locks:hold"):
    marks: str


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@contextmanager
def holding(path: Path) -> Iterator[int]:
    """Another process in the middle of a transaction."""
    command = [sys.executable, "-c", HOLDING, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"locked\n"
            yield process.pid
        finally:
            process.kill()


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_the_error_names_the_process_that_has_the_file_locked(
    tmp_path: Path, is_stopped: bool
) -> None:
    """F63"""
    path = tmp_path / "relevo.db"
    store = open_store(f"sqlite:///{path}")
    await store.migrate()
    await store.open()
    try:
        with holding(path) as pid:
            if is_stopped:
                os.kill(pid, signal.SIGSTOP)
                await until(lambda: state_of(pid) == "T")
            with pytest.raises(StoreUnavailable) as caught:
                await store.audit([])
                await store.leave("nobody")
            findings = [found for found in await store.check() if found.subject == "lock"]

        assert f"process {pid} (" in str(caught.value)
        assert ("which is stopped" in str(caught.value)) is is_stopped
        assert [found.level for found in findings] == ["warning"] * is_stopped
        assert all(f"kill -CONT {pid}" in found.message for found in findings)
        await store.leave("nobody")
    finally:
        await store.close()


async def test_ctrl_z_ends_the_open_transaction_first(tmp_path: Path) -> None:
    """F63: relevo work is stopped in the middle of a job's transaction, and the file is free."""
    path, log = tmp_path / "relevo.db", tmp_path / "log"
    (tmp_path / "holding.py").write_text(APP)
    async with Relevo(f"sqlite:///{path}", apps=[App("other")]) as relevo:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("create table held (n integer)")
            connection.commit()
        await relevo.enqueue(Hold(str(tmp_path)))
        words = [sys.executable, "-m", "relevo.cli", "work", "--app", "holding:app"]
        settings = {"RELEVO_STORE_URL": f"sqlite:///{path}", "PYTHONPATH": f"{HOME}:{tmp_path}"}
        with (
            log.open("wb") as lines,
            subprocess.Popen(
                words, cwd=tmp_path, env=os.environ | settings, stdout=lines, stderr=lines
            ) as process,
        ):
            try:
                await until((tmp_path / "begun").exists, timeout="60s")
                process.send_signal(signal.SIGTSTP)
                await until(lambda: state_of(process.pid) == "T", timeout="20s")

                with closing(sqlite3.connect(path, timeout=0)) as connection:
                    connection.execute("begin immediate")
                    assert connection.execute("select count(*) from held").fetchone() == (1,)
                    connection.rollback()

                process.send_signal(signal.SIGCONT)
                await until((tmp_path / "told").exists, timeout="20s")
                process.send_signal(signal.SIGTERM)
                assert process.wait(30) == 0
            except BaseException as error:
                error.add_note(log.read_text())
                raise
            finally:
                process.kill()
