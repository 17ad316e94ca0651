"""An app's own tables, brought up to date by its Alembic revisions.

    app = App("cars", migrations="relevo.apps.cars.migrations",
              resources=[tables("relevo.apps.cars.migrations"), …])

The package holds `versions/`, one file per revision; its version stands in a table of its own, so
that apps share a database without knowing each other. On SQLite the tables follow by themselves
when the engine opens; elsewhere `relevo migrate` does it, and code that meets older tables refuses
to start. A revision that leaves older code at work says so, `readable_from = "0001"`: code that
knows that revision works on the tables, though it does not know theirs.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, String, column, inspect, select, text, update
from sqlalchemy import table as sql_table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from relevo.app import Resource
from relevo.engine import Relevo
from relevo.errors import DefinitionError, SchemaMismatch
from relevo.outbox import Database
from relevo.stores import open_store

READABLE = "readable_from"
"""The name in a revision, and of the column beside its version."""


class Tables:
    """That an app's tables are there, and that its code may work on them."""

    def __init__(self, package: str) -> None:
        self.package = package


def tables(package: str) -> Resource:
    """The resource that comes first in an app: nothing else opens before its tables are there."""

    @asynccontextmanager
    async def opened(relevo: Relevo) -> AsyncGenerator[Tables]:
        async with relevo.transaction() as session:
            connection = await session.connection()
            if connection.dialect.name == "sqlite":
                await connection.run_sync(_upgrade, package)
            else:
                await connection.run_sync(_check, package)
        yield Tables(package)

    def resource(relevo: Any) -> AbstractAsyncContextManager[Tables]:
        return opened(relevo)

    return resource


async def migrate(database: str, package: str) -> list[str]:
    """Bring the tables at a database's address up to date; names the steps that were taken."""
    opened = Database(open_store(database), database)
    try:
        async with opened.engine.begin() as connection:
            return await connection.run_sync(_upgrade, package)
    finally:
        await opened.close()


def is_data_error(error: Exception) -> bool:
    """Whether a value does not fit its column; the database is there, and would say so again."""
    return str(getattr(getattr(error, "orig", None), "sqlstate", "")).startswith("22")


async def add_row(tx: AsyncSession, table: Any, row: Mapping[str, Any]) -> bool:
    """Insert a row unless it, or what it may be only once, is there; whether it was new."""
    is_sqlite = tx.get_bind().dialect.name == "sqlite"
    insert = sqlite.insert if is_sqlite else postgresql.insert
    made: Any = await tx.execute(insert(table).values(dict(row)).on_conflict_do_nothing())
    return made.rowcount == 1


def _upgrade(connection: Connection, package: str) -> list[str]:
    taken: list[Script] = []
    script = _script(package)
    if connection.dialect.name == "postgresql":
        # Any number of processes may start at once; one migrates, the others find it done.
        lock = zlib.crc32(package.encode())
        connection.execute(text("select pg_advisory_xact_lock(:lock)"), {"lock": lock})

    if _is_newer(connection, script, package):
        return []

    def upgrade(revision: Any, context: Any) -> Any:
        todo = script._upgrade_revs("head", revision)  # pyright: ignore[reportPrivateUsage] - what Alembic's own command calls
        taken.extend(step.revision for step in todo)
        return todo

    try:
        with EnvironmentContext(Config(), script, fn=upgrade) as environment:
            environment.configure(
                connection=connection, version_table=_table(package), transactional_ddl=True
            )
            environment.run_migrations()
    except CommandError as error:
        raise SchemaMismatch(f"{package}: {error}") from error
    if taken:
        _say_who_may_read(connection, script, taken, _table(package))
    return [f"{package}: {each.revision}" for each in taken]


def _check(connection: Connection, package: str) -> None:
    script = _script(package)
    here, wanted = _here(connection, package), set(script.get_heads())
    if here != wanted and not _is_newer(connection, script, package):
        raise SchemaMismatch(
            f"the tables of {package} are at {', '.join(sorted(here)) or 'nothing'}, the code at "
            f"{', '.join(sorted(wanted))}: run `relevo migrate`, or a newer relevo"
        )


def _here(connection: Connection, package: str) -> set[str]:
    """The revisions that the tables are at."""
    context = MigrationContext.configure(connection, opts={"version_table": _table(package)})
    return set(context.get_current_heads())


def _is_newer(connection: Connection, script: ScriptDirectory, package: str) -> bool:
    """Whether the tables are newer than this code, and it may work on them all the same."""
    known = {each.revision for each in script.walk_revisions()}
    if not (unknown := _here(connection, package) - known):
        return False
    oldest = _readable_from(connection, _table(package))
    if oldest not in known:
        raise SchemaMismatch(
            f"the tables of {package} are at {', '.join(sorted(unknown))}, for code that knows "
            f"{oldest or 'this'} or later: upgrade relevo"
        )
    return True


def _readable_from(connection: Connection, table: str) -> str | None:
    """The revision that the oldest code knows that may work on the tables."""
    if READABLE not in {each["name"] for each in inspect(connection).get_columns(table)}:
        return None
    return connection.execute(
        select(column(READABLE, String)).select_from(sql_table(table))
    ).scalar()


def _say_who_may_read(
    connection: Connection, script: ScriptDirectory, taken: list[Script], table: str
) -> None:
    """Write down, beside the version, which code may work on what these revisions leave."""
    order = [each.revision for each in script.walk_revisions()][::-1]
    said: list[str] = [getattr(each.module, READABLE, each.revision) for each in taken]
    if (before := _readable_from(connection, table)) is not None:
        said.append(before)
    oldest = order[max(order.index(each) for each in said)]
    if READABLE not in {each["name"] for each in inspect(connection).get_columns(table)}:
        connection.execute(text(f"alter table {table} add column {READABLE} varchar(32)"))
    version = sql_table(table, column(READABLE))
    connection.execute(update(version).values({READABLE: oldest}))


def _script(package: str) -> ScriptDirectory:
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise DefinitionError(f"no package '{package}' with the app's revisions")
    return ScriptDirectory(str(Path(found.submodule_search_locations[0])))


def _table(package: str) -> str:
    """relevo.apps.cars.migrations → cars_version."""
    return f"{package.split('.')[-2]}_version"
