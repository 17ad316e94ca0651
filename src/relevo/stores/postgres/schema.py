"""The tables: their version, and the numbered steps that bring them up to it."""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from importlib import resources

from asyncpg import exceptions as pg

from relevo.errors import StoreError, StoreUnavailable
from relevo.store import Schema
from relevo.stores.postgres.address import Address
from relevo.stores.postgres.lines import Connection, Door
from relevo.stores.versions import Step, judge, judge_age, spare, steps_in

WHERE = "the store"
LOCK_TIMEOUT = "500"  # milliseconds
LOCK_PATIENCE = 120.0  # seconds
RAISED = (OSError, TimeoutError, pg.PostgresError, pg.InterfaceError, pg.InternalClientError)


FOLDERS = (resources.files("relevo.stores.postgres") / "migrations",)


def steps() -> tuple[Step, ...]:
    """Every migration, in order."""
    return steps_in(FOLDERS)


async def read(connection: Connection, address: Address) -> Schema:
    """How far the tables are."""
    known = steps()[-1].number
    if not await connection.fetchval(
        "select to_regclass($1) is not null", address.sql("relevo.migrations")
    ):
        return Schema(0, 0, known)
    # Tables of before have no such column, and were for code of their own age.
    row = await connection.fetchrow(
        address.sql("""
        select coalesce(max(number), 0) as number,
            coalesce(max(coalesce((to_jsonb(m) ->> 'readable_from')::integer, number)), 0)
                as readable_from
        from relevo.migrations as m
        """)
    )
    return Schema(row["number"], row["readable_from"], known) if row else Schema(0, 0, known)


async def migrate(door: Door) -> list[str]:
    """Take the steps not yet taken, each in one transaction, one process at a time."""
    taken: list[str] = []
    # A step waits for what has a table locked, and all others wait behind it: so not for long.
    connection = await door.open(statement_timeout="0", lock_timeout=LOCK_TIMEOUT)
    try:
        judge_age(await read(connection, door.address), WHERE)
        for step in steps():
            if await _patiently(connection, door.address, step):
                taken.append(step.name)
        judge(await read(connection, door.address), WHERE)
    except pg.InsufficientPrivilegeError as error:
        raise StoreError(
            f"the role may not make relevo's tables ({error}): grant it CREATE on the database, "
            f"or make the schema for it: create schema {door.address.schema} authorization …"
        ) from error
    finally:
        connection.terminate()
    return taken


async def _patiently(connection: Connection, address: Address, step: Step) -> bool:
    """Take a step as soon as nothing else has the tables locked."""
    deadline = time.monotonic() + LOCK_PATIENCE
    while True:
        try:
            return await _step(connection, address, step)
        except (pg.LockNotAvailableError, pg.DeadlockDetectedError) as error:
            if time.monotonic() > deadline:
                raise StoreUnavailable(
                    f"the step {step.name} found the tables locked for {LOCK_PATIENCE:.0f} s: end "
                    "the oldest transaction (pg_stat_activity.xact_start) and try again"
                ) from error
        await asyncio.sleep(random.uniform(0.1, 0.5))


async def _step(connection: Connection, address: Address, step: Step) -> bool:
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
                "create table if not exists relevo.migrations (number integer primary key, "
                "name text not null, taken_at timestamptz not null, readable_from integer)"
            )
        )
        if await connection.fetchval(
            address.sql("select exists (select from relevo.migrations where number = $1)"),
            step.number,
        ):
            return False
        await connection.execute(
            address.sql(
                "alter table relevo.migrations add column if not exists readable_from integer"
            )
        )
        before = await read(connection, address)
        if before.number and step.readable_from > before.readable_from:
            spare(await _alive(connection, address), step)
        await connection.execute(address.sql(step.sql))
        await connection.execute(
            address.sql("""
            insert into relevo.migrations (number, name, taken_at, readable_from)
            values ($1, $2, statement_timestamp(), $3)
            """),
            step.number,
            step.name,
            step.readable_from,
        )
    # Four at once: let the others see it before the next step.
    await asyncio.sleep(0)
    return True


async def _alive(connection: Connection, address: Address) -> list[bytes]:
    """The workers that may be alive, as they are stored."""
    table = address.sql("relevo.workers")
    if not await connection.fetchval("select to_regclass($1) is not null", table):
        return []
    now = "extract(epoch from clock_timestamp()) * 1000"
    rows = await connection.fetch(f"select info from {table} where expires_at > {now}")  # noqa: S608 - words of this file
    return [row["info"] for row in rows]
