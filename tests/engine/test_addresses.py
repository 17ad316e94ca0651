"""An address of PostgreSQL means the same to the store and to transactions beside it."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from relevo import App, Command, Relevo, State, StoreUnavailable
from relevo.outbox import Database, address
from relevo.stores import open_store
from tests.servers.ports import free_port
from tests.servers.postgres import fresh_address

pytestmark = pytest.mark.xdist_group("postgres")


class Save(Command, queue="test:rows:save"):
    name: str = "Ana"


@pytest.mark.parametrize(
    "options",
    ["sslmode=prefer", "application_name=shop", "connect_timeout=5", "pooler=1"],
)
async def test_a_transaction_knows_the_options_that_the_store_knows(options: str) -> None:
    async with fresh_address() as url:
        mark = "&" if "?" in url else "?"
        async with Relevo(f"{url}{mark}{options}", apps=[App("test")]) as relevo:
            for _ in range(3):
                async with relevo.transaction() as session:
                    await session.execute(text("select 1 where :n = 1"), {"n": 1})
                    receipt = await relevo.enqueue(Save(), tx=session)
            [job] = await relevo.store.find([receipt.id])

    assert job is not None and job.state is State.READY


@pytest.mark.parametrize(
    "wish", ["", "target_session_attrs=read-write", "target_session_attrs=any"]
)
async def test_a_transaction_finds_the_host_that_is_there(wish: str) -> None:
    async with fresh_address() as url:
        parts = urlsplit(url)
        who, _, host = parts.netloc.rpartition("@")
        many = parts._replace(
            netloc=f"{who}@127.0.0.1:{free_port()},{host}",
            query="&".join(filter(None, (parts.query, wish))),
        ).geturl()
        database = Database(open_store(url), many)
        async with database.transaction() as session:
            assert (await session.execute(text("select 1"))).scalar() == 1
        await database.close()


async def test_a_database_that_is_away_is_called_so() -> None:
    """Spends no attempt of the job that needs it."""
    url = f"postgresql://relevo@127.0.0.1:{free_port()}/relevo"
    database = Database(open_store(url), url)
    with pytest.raises(StoreUnavailable):
        async with database.transaction() as session:
            await session.execute(text("select 1"))
    await database.close()


async def test_a_plain_connection_commits_what_was_enqueued_first(relevo: Relevo) -> None:
    """SQLAlchemy begins with its own first statement, and on SQLite nobody else did."""
    own = create_async_engine(address(relevo.store.dsn))
    async with own.connect() as connection:
        receipt = await relevo.enqueue(Save(), tx=connection)
        await connection.commit()
    await own.dispose()

    assert await relevo.store.find([receipt.id]) != [None]
