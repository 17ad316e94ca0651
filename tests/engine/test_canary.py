"""What was stored is data: it is neither run nor imported, and people are forgotten in time."""

from __future__ import annotations

import pickle
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster

from relevo import App, Command, Dead, Relevo, State
from relevo.ids import new_id
from relevo.job import NewJob
from relevo.store import Store
from relevo.testing import ManualClock, drain

Start = Callable[..., Relevo]


class Greet(Command, queue="test:people:greet", attempts=1, unique="forever", key="{name}"):
    name: str
    is_rude: bool = False


async def greet(order: Greet) -> Dead | None:
    return Dead(f"{order.name} was rude") if order.is_rude else None


class Touch:
    """Whoever unpickles it leaves a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._path,)


def job(kind: str, payload: bytes) -> NewJob:
    return NewJob(id=new_id(), queue="test:people:greet", kind=kind, payload=payload)


async def test_c01_a_stored_pickle_or_module_is_never_run(start: Start, tmp_path: Path) -> None:
    """C01, B36: they end where people see them, and the next job runs."""
    canary = tmp_path / "canary"
    relevo = start(App("test", workers=[greet]))
    bad = [
        job("Greet", pickle.dumps(Touch(canary))),
        job("Greet", b'{"py/reduce":[{"py/type":"os.system"},["touch %s"]]}' % bytes(canary)),
        job("os.system", b'{"command":"touch %s"}' % bytes(canary)),
        job("antigravity:fly", b"{}"),
    ]
    await relevo.store.insert(bad)
    good = await relevo.enqueue(Greet("Eva"))

    await drain(relevo)

    found = await relevo.store.find([*(one.id for one in bad), good.id])
    states = [one and one.state for one in found]
    assert states == [State.DEAD, State.PARKED, State.PARKED, State.PARKED, State.DONE]
    assert not canary.exists()
    assert "antigravity" not in sys.modules


async def everything(store: Store) -> AsyncIterator[bytes]:
    """Every row and key of a store, as bytes."""
    kind = urlsplit(store.dsn).scheme
    if kind == "sqlite":
        with sqlite3.connect(store.dsn.removeprefix("sqlite:///").partition("?")[0]) as file:
            for line in file.iterdump():
                yield line.encode()
    elif kind == "postgresql":
        address = store.dsn.partition("?")[0]
        connection = await asyncpg.connect(address)
        tables = "select schemaname, tablename from pg_tables where schemaname !~ '^(pg_|info)'"
        for schema, table in await connection.fetch(tables):
            for (row,) in await connection.fetch(f'select t::text from "{schema}"."{table}" t'):  # noqa: S608 - names of its own
                yield row.encode()
        await connection.close()
    else:
        async for one in _everything_in_redis(store.dsn):
            yield one


async def _everything_in_redis(url: str) -> AsyncIterator[bytes]:
    is_cluster = "cluster" in url
    host = urlsplit(url).netloc.split(",")[0]
    client: Any = (RedisCluster if is_cluster else Redis).from_url(
        f"redis://{host}{'' if is_cluster else urlsplit(url).path}"
    )
    async for key in client.scan_iter(count=1_000):
        match (await client.type(key)).decode():  # DUMP would pack it
            case "string":
                found = await client.get(key)
            case "list":
                found = await client.lrange(key, 0, -1)
            case "set":
                found = await client.smembers(key)
            case "zset":
                found = await client.zrange(key, 0, -1)
            case "hash":
                found = await client.hgetall(key)
            case _:
                found = await client.xrange(key)
        yield repr((key, found)).encode()
    await client.aclose()


async def mentions(store: Store, person: str) -> int:
    spelled = (
        person.encode(),
        person.encode().hex().encode(),
        person.encode().hex().upper().encode(),
    )
    return sum([any(one in text for one in spelled) async for text in everything(store)])


async def test_c23_nothing_is_left_of_a_person_when_their_time_is_over(
    start: Start, store: Store, clock: ManualClock, matrix: Any
) -> None:
    """C23: done jobs after 7 days, dead ones after 90; that they were here is still known."""
    matrix.record("C23", note="`relevo forget` erases one person before that")
    relevo = start(App("test", workers=[greet]))
    done = await relevo.enqueue(Greet("canary-ana"))
    dead = await relevo.enqueue(Greet("canary-eva", is_rude=True))
    await drain(relevo)
    assert [await mentions(store, name) > 0 for name in ("canary-ana", "canary-eva")] == [True] * 2

    clock.advance("8d")
    while await store.prune(dead_keep=90 * 86_400_000):
        pass
    assert await mentions(store, "canary-ana") == 0
    assert await mentions(store, "canary-eva") > 0
    again = await relevo.enqueue(Greet("canary-ana"))
    assert again.id == done.id

    clock.advance("90d")
    while await store.prune(dead_keep=90 * 86_400_000):
        pass
    assert await mentions(store, "canary-eva") == 0
    assert await store.find([done.id, dead.id]) == [None, None]
