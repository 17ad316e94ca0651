"""F57: our own database is killed, and neither a job nor a poller nor a delivery pays for it.

Functions reach the database as applications do: through relevo, and through clients of their own.
"""

from __future__ import annotations

import asyncio
import importlib
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from relevo import (
    App,
    Command,
    Context,
    Delivery,
    Intake,
    Poll,
    Relevo,
    State,
    StoreUnavailable,
    sources,
)
from relevo.ids import new_id
from relevo.job import Job
from relevo.outage import outage, places
from relevo.store import DeliveryState, Filter, Letterbox
from relevo.stores import open_store
from relevo.testing import deliver, until, working
from tests.matrix import Recorder
from tests.servers.ports import free_port
from tests.servers.postgres import PostgresServer
from tests.servers.redis import cluster_url, fresh_url

HOOK = "/hooks/orders"


class Write(Command, queue="app:rows:write", attempts=1, timeout="60s"):
    way: str


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as running:
        yield running


@pytest.fixture
def store_url(store_name: str, server: PostgresServer, tmp_path: Path) -> str:
    addresses: dict[str, Callable[[], str]] = {
        "sqlite": lambda: f"sqlite:///{tmp_path / 'r.db'}",
        "postgres": lambda: server.url,
        "redis": fresh_url,
        "cluster": cluster_url,
    }
    return addresses[store_name]()


class Rows:
    """Everything that writes to the database, each in its own way."""

    def __init__(self, url: str, elsewhere: str) -> None:
        self.url = url
        self.tried: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.gate = asyncio.Event()
        self.gate.set()
        self.old: asyncpg.Connection | None = None
        self.engine: AsyncEngine = create_async_engine(url.replace("://", "+asyncpg://"))
        self.app = App("app", workers=[self.write])
        self.app.webhook(HOOK, source=sources.github("a secret"), later=True)(self.hook())
        self.app.poller("poll", every="200ms")(self.poll)
        self._elsewhere = elsewhere

    async def write(self, order: Write, ctx: Context) -> None:
        ways: dict[str, Callable[[Context], Awaitable[None]]] = {
            "relevo": self._by_relevo,
            "old": self._by_an_old_connection,
            "new": self._by_a_new_connection,
            "sqlalchemy": self._by_sqlalchemy,
            "elsewhere": self._elsewhere_,
        }
        await self._try(order.way, lambda: ways[order.way](ctx))

    async def poll(self, turn: Poll, ctx: Context) -> None:
        assert turn.failures == 0
        await self._try("poller", lambda: self._by_a_new_connection(ctx))

    def hook(self) -> Callable[[Delivery, Intake], Awaitable[None]]:
        async def hook(delivery: Delivery, ctx: Intake) -> None:
            await self._try("delivery", lambda: self._by_a_new_connection(None))

        return hook

    async def _try(self, way: str, write: Callable[[], Awaitable[None]]) -> None:
        self.tried[way] += 1
        await self.gate.wait()
        try:
            await write()
        except Exception:
            self.failed[way] += 1
            raise
        self.done[way] += 1

    async def _by_relevo(self, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(text("select 1"))

    async def _by_an_old_connection(self, _: object) -> None:
        if self.old is None or self.old.is_closed():
            self.old = await asyncpg.connect(self.url)
        await self.old.execute("select pg_sleep(0.01)")

    async def _by_a_new_connection(self, _: object) -> None:
        connection = await asyncpg.connect(self.url)
        try:
            await connection.execute("select 1")
        finally:
            await connection.close()

    async def _by_sqlalchemy(self, _: object) -> None:
        async with self.engine.begin() as connection:
            await connection.execute(text("select pg_sleep(0.01)"))

    async def _elsewhere_(self, _: object) -> None:
        await asyncpg.connect(self._elsewhere)


@asynccontextmanager
async def opened(store_url: str, server: PostgresServer) -> AsyncGenerator[tuple[Relevo, Rows]]:
    nobody = f"postgresql://relevo@127.0.0.1:{free_port()}/relevo"
    rows = Rows(server.url, nobody)
    store = open_store(server.url)
    await store.migrate()
    relevo = Relevo(store_url, database=server.url, apps=[rows.app])
    await relevo.store.migrate()
    async with relevo:
        try:
            yield relevo, rows
        finally:
            if rows.old is not None:
                rows.old.terminate()
            await rows.engine.dispose()


async def jobs(relevo: Relevo, queue: str) -> list[Job]:
    return (await relevo.store.page(Filter(queue=queue))).jobs


async def test_f57_our_database_killed_spends_no_attempt(
    store_url: str, store_name: str, server: PostgresServer, matrix: Recorder
) -> None:
    """Jobs of one attempt, a poller and a delivery outlive it; what asks another server dies."""
    ways = ["old", "new", "sqlalchemy"]
    if store_name != "sqlite":  # its transactions are in its own file
        ways.append("relevo")
    async with opened(store_url, server) as (relevo, rows), working(relevo):
        await relevo.enqueue_many([Write(way) for way in ways])
        await until(lambda: all(rows.done[way] for way in [*ways, "poller"]))

        rows.gate.clear()
        rows.tried.clear()
        every = [*ways, "elsewhere", "delivery", "poller"]
        await relevo.enqueue_many([Write(way) for way in [*ways, "elsewhere"]])
        answer = await deliver(relevo, HOOK, json={"id": 1}, id=new_id())
        assert answer.status == 200
        await until(lambda: all(rows.tried[way] for way in every))
        await asyncio.to_thread(server.kill)
        rows.gate.set()
        await until(lambda: all(rows.failed[way] for way in every))
        await asyncio.to_thread(server.restart)

        async def all_ended() -> bool:
            found = await jobs(relevo, "app:rows:write")
            found += await jobs(relevo, "app:webhooks:later")
            return all(job.state in (State.DONE, State.DEAD) for job in found)

        await until(all_ended, timeout="40s")
        rows.done.clear()
        await until(lambda: rows.done["poller"] > 0, timeout="20s")

        found = await jobs(relevo, "app:rows:write")
        dead = [job.failure.message for job in found if job.state is State.DEAD and job.failure]
        lost = 2 * len(ways) - sum(job.state is State.DONE for job in found)
        matrix.record("F57", lost=lost, doubled=0)
        assert (lost, len(dead)) == (0, 1), dead
        assert all(job.attempt == 1 for job in found)
        for job in await jobs(relevo, "app:webhooks:later"):
            assert (job.state, job.attempt) == (State.DONE, 1)
        failed, _ = await relevo.store.deliveries(Letterbox(state=DeliveryState.FAILED))
        assert failed == []


@pytest.mark.parametrize("way", ["psycopg", "psycopg in thread", "SQLAlchemy", "asyncpg"])
async def test_f57_errors_of_each_driver_tell_that_our_server_is_away(way: str) -> None:
    """With the drivers as they are: a connection breaks in a statement, and the next is refused."""
    with PostgresServer() as mine:
        run = await _connected(way, mine.url)
        try:
            assert await _failing(lambda: run("select no_such_column"), mine.url) is None
            await asyncio.to_thread(mine.kill)
            broken = await _failing(lambda: run("select 1"), mine.url)
            refused = await _failing(lambda: _connected(way, mine.url), mine.url)
        finally:
            await run(None)
    assert isinstance(broken, StoreUnavailable)
    assert isinstance(refused, StoreUnavailable)


async def _failing(call: Callable[[], Awaitable[Any]], url: str) -> StoreUnavailable | None:
    """What the error of a call says of our server; nothing of another one."""
    try:
        await call()
    except Exception as error:  # noqa: BLE001 - whatever a driver raises
        assert outage(error, places(["postgresql://elsewhere:5432/x"])) is None
        return outage(error, places([url]))
    raise AssertionError("it did not fail")


async def _connected(way: str, url: str) -> Callable[[str | None], Awaitable[None]]:
    """A client of the server, which runs a statement, or ends."""
    psycopg: Any = importlib.import_module("psycopg") if "psycopg" in way else None
    match way:
        case "psycopg":
            line: Any = await psycopg.AsyncConnection.connect(url, autocommit=True)

            async def by_psycopg(statement: str | None) -> None:
                await (line.close() if statement is None else line.execute(statement))

            return by_psycopg
        case "psycopg in thread":
            plain: Any = await asyncio.to_thread(psycopg.connect, url, autocommit=True)

            async def in_thread(statement: str | None) -> None:
                work = plain.close if statement is None else partial(plain.execute, statement)
                await asyncio.to_thread(work)

            return in_thread
        case "asyncpg":
            other: Any = await asyncpg.connect(url)

            async def by_asyncpg(statement: str | None) -> None:
                if statement is None:
                    other.terminate()
                else:
                    await other.execute(statement)

            return by_asyncpg
        case _:
            engine = create_async_engine(url.replace("://", "+psycopg://"))
            held = await engine.connect()

            async def by_sqlalchemy(statement: str | None) -> None:
                if statement is None:
                    with suppress(Exception):
                        await held.close()
                    await engine.dispose()
                else:
                    await held.execute(text(statement))

            return by_sqlalchemy
