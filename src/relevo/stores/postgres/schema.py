"""The tables: their version, and the numbered steps that bring them up to it."""

from __future__ import annotations

import asyncio
import hashlib
from functools import cache
from importlib import resources

from asyncpg import exceptions as pg

from relevo.errors import SchemaMismatch, StoreError
from relevo.stores.postgres.address import Address
from relevo.stores.postgres.lines import Connection, Door

RAISED = (OSError, TimeoutError, pg.PostgresError, pg.InterfaceError, pg.InternalClientError)


@cache
def steps() -> tuple[tuple[int, str, str], ...]:
    """Number, name and SQL of every migration, in order."""
    folder = resources.files("relevo.stores.postgres") / "migrations"
    files = sorted(
        (entry for entry in folder.iterdir() if entry.name.endswith(".sql")),
        key=lambda entry: entry.name,
    )
    return tuple(
        (int(file.name[:4]), file.name.removesuffix(".sql"), file.read_text("utf-8"))
        for file in files
    )


def judge(version: int | None) -> None:
    """SchemaMismatch unless tables of this version are what this code was written for."""
    wanted = steps()[-1][0]
    if version is None:
        raise SchemaMismatch("the store has no tables yet: run 'relevo migrate'")
    if version < wanted:
        raise SchemaMismatch(
            f"the store's tables are of version {version}, this relevo needs {wanted}: "
            "run 'relevo migrate'"
        )
    if version > wanted:
        raise SchemaMismatch(
            f"the store's tables are of version {version}, this relevo knows {wanted}: "
            "upgrade relevo"
        )


async def version(connection: Connection, address: Address) -> int | None:
    """The number of the last step taken; None if there are no tables."""
    there = await connection.fetchval(
        "select to_regclass($1)::text", address.sql("relevo.migrations")
    )
    if there is None:
        return None
    return await connection.fetchval(address.sql("select max(number) from relevo.migrations"))


async def migrate(door: Door) -> list[str]:
    """Take the steps not yet taken, each in one transaction, one process at a time."""
    taken: list[str] = []
    connection = await door.open(statement_timeout="0", lock_timeout="0")
    try:
        for number, name, sql in steps():
            if await _step(connection, door.address, number, name, sql):
                taken.append(name)
        judge(await version(connection, door.address))
    except pg.InsufficientPrivilegeError as error:
        raise StoreError(
            f"the role may not make relevo's tables ({error}): grant it CREATE on the database, "
            f"or make the schema for it: create schema {door.address.schema} authorization …"
        ) from error
    finally:
        connection.terminate()
    return taken


async def _step(connection: Connection, address: Address, number: int, name: str, sql: str) -> bool:
    # Everything a step does, it does in one transaction under one lock: killed at any moment, it
    # has either happened or not; four processes at once wait for each other.
    lock = int.from_bytes(hashlib.blake2b(address.schema.encode()).digest()[:8], signed=True)
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock($1)", lock)
        if not await connection.fetchval(
            "select exists (select from pg_catalog.pg_namespace where nspname = $1)",
            address.schema,
        ):
            await connection.execute(address.sql("create schema relevo.").replace(".", "", 1))
        await connection.execute(
            address.sql(
                "create table if not exists relevo.migrations ("
                "number integer primary key, name text not null, taken_at timestamptz not null)"
            )
        )
        if await connection.fetchval(
            address.sql("select exists (select from relevo.migrations where number = $1)"), number
        ):
            return False
        await connection.execute(address.sql(sql))
        await connection.execute(
            address.sql("insert into relevo.migrations values ($1, $2, statement_timestamp())"),
            number,
            name,
        )
    # Four at once: let the others see it before the next step.
    await asyncio.sleep(0)
    return True
