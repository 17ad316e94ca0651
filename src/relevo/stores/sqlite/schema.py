"""Migrations: numbered files, each run once, whole or not at all."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from relevo.errors import StoreDamaged, StoreUnavailable
from relevo.store import Schema
from relevo.stores.sqlite import file
from relevo.stores.sqlite.wake import folder_of
from relevo.stores.versions import Step, judge, judge_age, spare, steps_in

PATIENCE = 4.5  # seconds to wait for another process that migrates


FOLDERS = (files("relevo.stores.sqlite") / "migrations",)


def steps() -> tuple[Step, ...]:
    """The steps this code knows, in order."""
    return steps_in(FOLDERS)


def read(connection: sqlite3.Connection) -> Schema:
    """How far the tables of a file are."""
    known = steps()[-1].number
    columns = _columns(connection)
    if not columns:
        return Schema(0, 0, known)
    # Tables of before have no such column, and were for code of their own age.
    oldest = "coalesce(readable_from, version)" if "readable_from" in columns else "version"
    number, readable_from = connection.execute(
        f"select max(version), max({oldest}) from relevo_schema"  # noqa: S608 - as above
    ).fetchone()
    return Schema(number or 0, readable_from or 0, known)


def check(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse tables that are older than this code, or for newer code only."""
    judge(read(connection), str(path))


def look(path: Path) -> Schema:
    """How far the tables of the file at a path are."""
    if not path.exists():
        return Schema(0, 0, steps()[-1].number)
    try:
        with contextlib.closing(file.connect(path, timeout=PATIENCE, reading=True)) as connection:
            return read(connection)
    except sqlite3.Error as error:
        raise file.translate(error, path) from error


def migrate(path: Path) -> list[str]:
    """Bring a file up to date, making it if there is none; names the steps taken."""
    if not path.exists():
        file.create(path)
    elif path.stat().st_size == 0:
        _refuse_emptied(path)
    else:
        file.examine(path, clean=True)
    try:
        connection = file.connect(path, timeout=PATIENCE)
        try:
            connection.execute(f"pragma page_size = {file.PAGE_SIZE}")
            (mode,) = connection.execute("pragma journal_mode = wal").fetchone()
            if mode != "wal":
                raise StoreUnavailable(
                    f"{path} cannot keep a write-ahead log (it stays in mode {mode}): put it on a "
                    "local disk"
                )
            judge_age(read(connection), str(path))
            return [step.name for step in steps() if _take(connection, step)]
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise file.translate(error, path) from error


def _refuse_emptied(path: Path) -> None:
    """An empty file is a new one, unless something beside it says that it held jobs once."""
    log = Path(f"{path}-wal")
    if folder_of(path).exists() or (log.exists() and log.stat().st_size):
        raise StoreDamaged(
            f"{path} is empty and was not always: restore it from a backup, or delete it and "
            f"{folder_of(path)} to begin anew"
        )


def _take(connection: sqlite3.Connection, step: Step) -> bool:
    """Run one step in one transaction; whether it was not done before."""
    connection.execute("begin exclusive")
    try:
        before = read(connection)
        if before.number and _is_taken(connection, step):
            connection.execute("rollback")
            return False
        if not (columns := _columns(connection)):
            connection.execute(
                "create table relevo_schema "
                "(version integer primary key, name text, readable_from integer)"
            )
        elif "readable_from" not in columns:
            connection.execute("alter table relevo_schema add column readable_from integer")
        if before.number and step.readable_from > before.readable_from:
            spare(_alive(connection), step)
        for statement in statements(step.sql):
            connection.execute(statement)
        connection.execute(
            "insert into relevo_schema (version, name, readable_from) values (?, ?, ?)",
            (step.number, step.name, step.readable_from),
        )
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise
    return True


def _is_taken(connection: sqlite3.Connection, step: Step) -> bool:
    found = connection.execute("select 1 from relevo_schema where version = ?", (step.number,))
    return found.fetchone() is not None


def _columns(connection: sqlite3.Connection) -> set[str]:
    return {row[1] for row in connection.execute("pragma table_info(relevo_schema)")}


def _alive(connection: sqlite3.Connection) -> list[str]:
    """The workers that may be alive, as they are stored."""
    now = time.time() * 1000
    rows = connection.execute("select info from relevo_workers where silent_at > ?", (now,))
    return [info for (info,) in rows]


def statements(sql: str) -> Iterator[str]:
    """The single statements of a script; `executescript` would commit before it begins."""
    statement = ""
    for line in sql.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if statement.strip():
        yield statement
