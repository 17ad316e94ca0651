"""A transaction of another database than the store's is refused, whichever driver opened it."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from relevo import Command, MisuseError, Relevo
from relevo.store import Filter
from tests.servers.postgres import postgres_url
from tests.servers.redis import RedisServer


class Save(Command, queue="test:rows:save"):
    name: str


@asynccontextmanager
async def session_on(url: str) -> AsyncGenerator[AsyncSession]:
    engine = create_async_engine(url)
    try:
        async with AsyncSession(engine) as session:
            yield session
    finally:
        await engine.dispose()


async def refused(relevo: Relevo, tx: Any, why: str) -> None:
    with pytest.raises(MisuseError, match=why) as told:
        await relevo.enqueue(Save("lost"), tx=tx)
    assert "migrate" not in str(told.value)
    assert not (await relevo.store.page(Filter())).jobs


async def test_of_another_file_than_the_stores(tmp_path: Path) -> None:
    async with Relevo(f"sqlite:///{tmp_path / 'store.db'}") as relevo:
        await _other_files(relevo, tmp_path)


@pytest.mark.xdist_group("redis")
async def test_of_another_file_than_the_outboxs(tmp_path: Path) -> None:
    with RedisServer() as server:
        async with Relevo(server.url, database=f"sqlite:///{tmp_path / 'store.db'}") as relevo:
            await _other_files(relevo, tmp_path)


async def _other_files(relevo: Relevo, folder: Path) -> None:
    async with Relevo(f"sqlite:///{folder / 'other.db'}"):
        pass  # it has tables of relevo's own
    other = sqlite3.connect(folder / "other.db")
    try:
        other.execute("begin immediate")
        await refused(
            relevo, other, "tx is a connection to .*other.db, and the store is .*store.db"
        )
    finally:
        other.close()
    async with session_on(f"sqlite+aiosqlite:///{folder / 'other.db'}") as session:
        await refused(relevo, session, "tx is a connection to .*other.db")


async def test_what_is_no_connection_that_is_taken_says_which_are(tmp_path: Path) -> None:
    async with Relevo(f"sqlite:///{tmp_path / 'store.db'}") as relevo:
        engine = create_engine(f"sqlite:///{tmp_path / 'store.db'}")
        with Session(engine) as session:
            await refused(relevo, session, "a synchronous Session; pass an AsyncSession")
        engine.dispose()

        class Connection:  # as that of psycopg and Django is called
            pass

        await refused(relevo, Connection(), "tx is a Connection; pass a SQLAlchemy AsyncSession")


@pytest.mark.parametrize("store_name", ["postgres"])
async def test_of_another_postgresql_database(store: Any) -> None:
    relevo = Relevo(store)
    relevo.is_open = True
    address = postgres_url()
    base = address.rpartition("/")[0].replace("postgres://", "postgresql://")
    async with session_on(
        base.replace("postgresql://", "postgresql+asyncpg://") + "/template1"
    ) as s:
        await refused(relevo, s, r"another database \(template1\) than the store's")
    other = await asyncpg.connect(address, database="template1")
    try:
        async with other.transaction():
            await refused(relevo, other, r"another database \(template1\) than the store's")
    finally:
        await other.close()
