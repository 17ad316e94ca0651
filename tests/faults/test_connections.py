"""F60: connections: how many, through a pooler, and forgotten by the other side."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest
from sqlalchemy import text

from relevo import App, Command, Context, Relevo, State, StoreUnavailable
from relevo.apps import tables
from relevo.simulators import World, environment, running
from relevo.store import Filter
from relevo.stores import open_store
from relevo.stores.places import CONNECTIONS, IDLE
from relevo.testing import until, working
from tests.faults.proxy import Proxy
from tests.servers.pgbouncer import PgBouncer
from tests.servers.ports import free_port
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer
from tests.servers.redis import until as eventually

HOME = Path(__file__).parents[2]
APPS = ("subscriptions", "hotel", "qstash")
_CONNECTIONS = """
    select pid, extract(milliseconds from clock_timestamp() - backend_start)::int as age, query
    from pg_stat_activity
    where usename = 'relevo' and backend_type = 'client backend'
    order by backend_start
"""
WAITING = "select 1 from pg_stat_activity where wait_event ="


class Busy(Command, queue="app:rows:busy", timeout="60s"):
    number: int


async def busy(order: Busy, ctx: Context) -> None:
    """Everything that needs a connection, many at a time."""
    await ctx.once("call", lambda key: asyncio.sleep(0.01))
    async with ctx.transaction() as tx:
        await tx.execute(text("select pg_sleep(0.02)"))


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as running_server:
        yield running_server


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncGenerator[Relevo]:
    relevo = Relevo(url, apps=[App("app", workers=[busy])], **options)
    await relevo.store.migrate()
    async with relevo:
        yield relevo


async def done(relevo: Relevo) -> int:
    return await relevo.store.count(Filter(queue="app:rows:busy", states=frozenset({State.DONE})))


class Count:
    """How many connections of the role there are at the server, looked at all the time."""

    def __init__(self, server: PostgresServer) -> None:
        self._url = server.admin_url
        self.most = self.now = 0
        self.told: list[str] = []  # of each look that found more than ever: what they were doing

    async def __aenter__(self) -> Count:
        self._watch = await asyncpg.connect(self._url)
        self._task = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        await self._watch.close()

    async def _look(self) -> None:
        while True:
            rows = await self._watch.fetch(_CONNECTIONS)
            self.now = len(rows)
            if self.now > self.most:
                self.most = self.now
                self.told = [
                    f"{time.monotonic():.3f} {row['pid']} {row['age']} {row['query']}"
                    for row in rows
                ]
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("most", [pytest.param(6, marks=pytest.mark.soak), CONNECTIONS])
async def test_f60_an_engine_opens_no_more_than_it_may_and_keeps_few(
    server: PostgresServer, most: int
) -> None:
    """Jobs, transactions, people and new orders at once; then nothing."""
    async with Count(server) as count:
        async with opened(server.url, connections=most) as relevo:
            before = await done(relevo)
            async with working(relevo, concurrency=100):
                for start in range(0, 200, 20):
                    await asyncio.gather(
                        relevo.enqueue_many([Busy(n) for n in range(start, start + 20)]),
                        relevo.store.tally(),
                        relevo.store.page(Filter()),
                        relevo.store.now(),
                    )

                async def all_done() -> bool:
                    return await done(relevo) - before == 200

                await until(all_done, timeout="60s")
                assert 4 < count.most <= most, count.told
                await until(lambda: count.now <= IDLE, timeout="30s")
        assert relevo.places.store == 1
        await until(lambda: count.now == 0)


async def test_f60_a_transaction_opens_no_connection_in_the_place_that_one_gave_up(
    server: PostgresServer,
) -> None:
    """The store wants its place; another that is idle is used again."""
    async with opened(server.url, connections=6) as relevo:
        places = relevo.places
        async with relevo.transaction() as one, relevo.transaction() as two:
            for session in (one, two):
                await session.execute(text("select 1"))
        assert (places.store, places.pooled) == (2, 2)
        for _ in range(3):  # the third has an idle connection of the database closed
            await places.take()
        assert (places.store, places.pooled) == (5, 1)
        async with relevo.transaction() as session:
            await session.execute(text("select 1"))
            assert places.pooled == 1
        for _ in range(3):
            places.give()


KINDS = {
    "work": ["work", "--app", "subscriptions"],
    "serve": ["serve", "--app", "subscriptions"],
    "up": ["up", "subscriptions"],
    "streams": ["subscriptions", "work", "email", "list", "spreadsheet"],
    "hotel": ["up", "hotel"],
    "qstash": ["qstash", "--dev"],
}
SHORT = {"up", "streams"}
"""A server with a worker, and what reads streams; the others are long forms."""


@pytest.mark.parametrize(
    "kind",
    [kind if kind in SHORT else pytest.param(kind, marks=pytest.mark.soak) for kind in KINDS],
)
async def test_f60_a_process_of_any_kind_opens_no_more_than_it_may_and_keeps_few(
    server: PostgresServer, kind: str, tmp_path: Path
) -> None:
    await _migrate(server)
    async with running(World(seed=7, target="http://127.0.0.1:9")) as world:
        with RedisServer() as redis:
            port = free_port()
            env = (
                os.environ
                | environment(world.base)
                | {
                    "RELEVO_STORE_URL": server.url,
                    "RELEVO_PORT": str(port),
                    "RELEVO_SPOOL": "off",
                    "REDIS_HOST": "127.0.0.1",
                    "REDIS_PORT": str(redis.port),
                    "REDIS_URL": redis.url,
                    "CM_POLLING_INTERVAL": "10m",
                }
            )
            words = [*KINDS[kind], *(["--port", str(port)] if kind == "qstash" else [])]
            async with Count(server) as count:
                with (tmp_path / "log").open("wb") as log:
                    process = await asyncio.create_subprocess_exec(
                        sys.executable, "-m", "relevo.cli", *words,
                        cwd=HOME, env=env, stdout=log, stderr=log, stdin=asyncio.subprocess.DEVNULL,
                    )  # fmt: skip
                try:
                    await _load(server, count, port, kind)
                    assert process.returncode is None, (tmp_path / "log").read_text()[-4_000:]
                    assert 0 < count.most <= CONNECTIONS, count.told
                    await until(lambda: count.now <= IDLE, timeout="40s")
                finally:
                    if process.returncode is None:
                        process.terminate()
                    await process.wait()


async def _migrate(server: PostgresServer) -> None:
    async with opened(server.url):
        for name in APPS:
            await tables.migrate(server.url, f"relevo.apps.{name}.migrations")


async def _load(server: PostgresServer, count: Count, port: int, kind: str) -> None:
    await until(lambda: count.now > 0, timeout="40s")
    if kind not in ("serve", "up", "hotel", "qstash"):
        await asyncio.sleep(2)  # it has nothing to wait for: its own beginnings are its load
        return
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:

        async def is_up() -> bool:
            try:
                return (await client.get("/health")).status_code < 500
            except httpx2.HTTPError:
                return False

        await until(is_up, timeout="40s")
        for _ in range(5):
            await asyncio.gather(*(client.get("/ready") for _ in range(20)))


@pytest.mark.parametrize("mode", ["transaction", pytest.param("session", marks=pytest.mark.soak)])
async def test_f60_a_pooler_in_between_loses_and_doubles_nothing(
    server: PostgresServer, mode: str
) -> None:
    """PgBouncer with five sessions for three engines; each statement may get another session."""
    size = 5 if mode == "transaction" else 3 * CONNECTIONS
    with PgBouncer(server, mode=mode, size=size) as pooler:
        async with opened(server.url) as direct:
            before = await done(direct)
            async with (
                opened(pooler.url) as one,
                opened(pooler.url) as two,
                working(one),
                working(two),
            ):
                await one.enqueue_many([Busy(n) for n in range(150)])
                async with two.transaction() as tx:
                    await two.enqueue_many([Busy(n) for n in range(150)], tx=tx)

                async def all_done() -> bool:
                    return await done(direct) - before == 300

                await until(all_done, timeout="60s")


async def test_f60_a_connection_that_the_server_has_forgotten_is_noticed_at_once(
    server: PostgresServer, unmade: Callable[[str], None]
) -> None:
    """A statement waits for its answer, and the other side knows nothing of the connection."""
    if os.getuid() != 0:
        unmade("a connection can be made to vanish only by root")
        return
    proxy, url = Proxy.before(server.url)
    try:
        async with opened(url) as relevo:
            asking = asyncio.create_task(_transaction(relevo))
            await until(lambda: server.sql(f"{WAITING} 'PgSleep'") != "")
            began = time.monotonic()
            assert proxy.vanish()
            with pytest.raises(StoreUnavailable):
                await asking
            assert time.monotonic() - began < 3

            beside = await asyncpg.connect(server.url)
            async with beside.transaction():
                await beside.execute("lock table relevo.jobs in access exclusive mode")
                asking = asyncio.create_task(relevo.store.page(Filter()))
                await until(lambda: server.sql(f"{WAITING} 'relation'") != "")
                began = time.monotonic()
                assert proxy.vanish()
            await asking  # on another connection
            assert time.monotonic() - began < 3
            await beside.close()
    finally:
        proxy.stop()


@pytest.mark.parametrize("kind", ["redis", "sentinel", "cluster"])
async def test_f60_a_connection_that_redis_has_forgotten_is_noticed_at_once(
    kind: str, unmade: Callable[[str], None]
) -> None:
    """A command waits for its answer, and the other side knows nothing of the connection."""
    if os.getuid() != 0:
        unmade("a connection can be made to vanish only by root")
        return
    proxy = Proxy(free_port()).start()
    try:
        with _redis_behind(proxy, kind) as url:
            store = open_store(url)
            await store.open()
            try:
                await store.tally()
                proxy.open_hole()
                waiting = asyncio.create_task(store.tally())
                await until(lambda: proxy.held > 0)
                began = time.monotonic()
                assert proxy.vanish()
                with pytest.raises(StoreUnavailable):
                    await waiting
                assert time.monotonic() - began < 3
                proxy.close_hole()

                async def is_back() -> bool:
                    with suppress(StoreUnavailable):
                        return await store.tally() == []
                    return False

                await until(is_back)
            finally:
                await store.close()
    finally:
        proxy.stop()


@contextmanager
def _redis_behind(proxy: Proxy, kind: str) -> Generator[str]:
    """The address of a server that tells everybody to come through the proxy."""
    conf = ["cluster-enabled yes", f"cluster-announce-port {proxy.port}"]
    with ExitStack() as stack:
        server = RedisServer(*conf if kind == "cluster" else (), port=proxy.target)
        stack.enter_context(server)
        match kind:
            case "cluster":
                server.command("CLUSTER", "ADDSLOTS", *range(16_384))
                eventually("the cluster", lambda: b"ok" in server.command("CLUSTER", "INFO")[:20])
                yield f"redis+cluster://127.0.0.1:{proxy.port}"
            case "sentinel":
                monitor = f"sentinel monitor ours 127.0.0.1 {proxy.port} 1"
                calm = "sentinel down-after-milliseconds ours 60000"
                sentinel = stack.enter_context(RedisServer(monitor, calm, sentinel=True))
                yield f"redis+sentinel://127.0.0.1:{sentinel.port}/ours"
            case _:
                yield f"redis://127.0.0.1:{proxy.port}"


async def _transaction(relevo: Relevo) -> None:
    async with relevo.transaction() as tx:
        await tx.execute(text("select pg_sleep(20)"))


@pytest.mark.parametrize(("each", "level"), [(10, "ok"), (60, "warning")])
async def test_f60_doctor_counts_what_the_live_workers_may_open(
    server: PostgresServer, each: int, level: str
) -> None:
    env = os.environ | {"RELEVO_STORE_URL": server.url, "RELEVO_CONNECTIONS": str(each)}
    async with opened(server.url) as relevo, working(relevo), working(relevo):

        async def are_known() -> bool:
            return sum(worker.state == "ok" for worker in await relevo.store.workers()) >= 2

        await until(are_known)
        live = sum(worker.state == "ok" for worker in await relevo.store.workers())
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "relevo.cli", "doctor", "--json",
            cwd=HOME, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        said, _ = await process.communicate()
    [found] = [one for one in json.loads(said) if one["subject"] == "processes"]
    assert found["level"] == level
    assert f"{live} live workers may open {live * each} of 97 connections" in found["message"]
