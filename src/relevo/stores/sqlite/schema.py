"""Migrations: numbered files, each run once, whole or not at all."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from relevo.errors import SchemaMismatch, StoreDamaged, StoreUnavailable
from relevo.stores.sqlite import file
from relevo.stores.sqlite.wake import folder_of

PATIENCE = 4.5  # seconds to wait for another process that migrates


def migrations() -> list[tuple[int, str, str]]:
    """The steps this code knows: number, name and SQL, in order."""
    found = sorted(
        entry.name
        for entry in files("relevo.stores.sqlite").joinpath("migrations").iterdir()
        if entry.name.endswith(".sql")
    )
    folder = files("relevo.stores.sqlite").joinpath("migrations")
    return [
        (int(name[:4]), name.removesuffix(".sql"), folder.joinpath(name).read_text("utf-8"))
        for name in found
    ]


def version_of(connection: sqlite3.Connection) -> int:
    """The last migration that a file has seen; 0 for a file without our tables."""
    found = connection.execute(
        "select 1 from sqlite_master where type = 'table' and name = 'relevo_schema'"
    ).fetchone()
    if found is None:
        return 0
    (version,) = connection.execute("select max(version) from relevo_schema").fetchone()
    return version or 0


def check(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse tables that are older or newer than this code."""
    has, needs = version_of(connection), migrations()[-1][0]
    if has < needs:
        raise SchemaMismatch(
            f"the tables in {path} are of version {has} and this relevo needs {needs}: run "
            "`relevo migrate`"
        )
    if has > needs:
        raise SchemaMismatch(
            f"the tables in {path} are of version {has} and this relevo knows only {needs}: "
            "upgrade relevo"
        )


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
            return [name for step in migrations() if (name := _step(connection, *step))]
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


def _step(connection: sqlite3.Connection, number: int, name: str, sql: str) -> str:
    """Run one migration in one transaction; answers its name, or nothing if it was done before."""
    connection.execute("begin exclusive")
    try:
        has = version_of(connection)
        if (
            has
            and connection.execute(
                "select 1 from relevo_schema where version = ?", (number,)
            ).fetchone()
        ):
            connection.execute("rollback")
            return ""
        if has == 0:
            connection.execute(
                "create table if not exists relevo_schema (version integer primary key, name text)"
            )
        for statement in statements(sql):
            connection.execute(statement)
        connection.execute(
            "insert into relevo_schema (version, name) values (?, ?)", (number, name)
        )
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise
    return name


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
