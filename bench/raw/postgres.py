"""asyncpg: one unnest a batch in, one skip-locked claim and one delete a batch out."""

from __future__ import annotations

import asyncio
import random
import time
from itertools import count
from urllib.parse import parse_qs, urlsplit

import asyncpg

from bench.measure import Pipe, Speed, Stopwatch

CLAIM = 500

_INSERT = """
    insert into raw.jobs (id, queue, run_at, payload)
    select id, 'work', statement_timestamp(), payload
    from unnest($1::bigint[], $2::bytea[]) as new (id, payload)
"""
_INSERT_AND_TELL = f"with new as ({_INSERT} returning id) select pg_notify('raw', $3) from new"  # noqa: S608 - a constant
_CLAIM = """
    update raw.jobs
    set state = 1, lease_until = statement_timestamp() + interval '15 s', token = 7,
        attempt = attempt + 1
    where id = any(array(
        select id
        from raw.jobs
        where queue = 'work' and state = 0 and run_at <= statement_timestamp()
        order by priority, run_at, id
        limit $1
        for update skip locked
    ))
    returning id, payload
"""
_DELETE = "delete from raw.jobs where id = any($1::bigint[]) and token = 7"


async def _connect(url: str) -> asyncpg.Connection:
    parts = urlsplit(url)
    assert "schema" in parse_qs(parts.query), "a bench has a schema of its own"
    return await asyncpg.connect(parts._replace(query="").geturl())


async def _open(url: str) -> asyncpg.Connection:
    connection = await _connect(url)
    await connection.execute(
        """
        drop schema if exists raw cascade;
        create schema raw;
        create table raw.jobs (
            id bigint primary key,
            queue text not null,
            token bigint,
            state smallint not null default 0,
            priority smallint not null default 1,
            run_at timestamptz not null,
            lease_until timestamptz,
            attempt integer not null default 0,
            payload bytea not null
        );
        create index on raw.jobs (queue, priority, run_at, id) where state = 0;
        create index on raw.jobs (lease_until) where state = 1;
        """
    )
    return connection


def _ids() -> count[int]:
    return count((time.time_ns() // 1_000_000) << 21)


async def _insert(connection: asyncpg.Connection, ids: count[int], body: bytes, size: int) -> None:
    await connection.execute(_INSERT, [next(ids) for _ in range(size)], [body] * size)


async def _insert_and_tell(connection: asyncpg.Connection, ids: count[int], body: bytes) -> None:
    began = str(time.monotonic_ns())
    await connection.execute(_INSERT_AND_TELL, [next(ids)], [body], began)


async def enqueue(pipe: Pipe, url: str, body: bytes, jobs: int, batch: int) -> Speed:
    """So many rows a commit."""
    connection, ids = await _open(url), _ids()
    watch = Stopwatch()
    for _ in range(0, jobs, batch):
        await _insert(connection, ids, body, batch)
    return watch.speed(jobs)


async def drain(pipe: Pipe, url: str, body: bytes, jobs: int) -> Speed:
    """Claim, then delete, one after the other."""
    connection, ids = await _open(url), _ids()
    for _ in range(0, jobs, 1_000):
        await _insert(connection, ids, body, 1_000)
    watch = Stopwatch()
    left = jobs
    while left:
        leases = await connection.fetch(_CLAIM, CLAIM)
        await connection.execute(_DELETE, [lease[0] for lease in leases])
        left -= len(leases)
    return watch.speed(jobs)


async def pick_up(pipe: Pipe, url: str, body: bytes, jobs: int) -> list[float]:
    """Seconds from before an insert to after its claim by who hears of it."""
    connection, ids = await _open(url), _ids()
    ear, taker = await _connect(url), await _connect(url)
    heard = asyncio.Event()
    await ear.add_listener("raw", lambda *_: heard.set())
    times: list[float] = []
    for _ in range(jobs):
        await asyncio.sleep(random.uniform(0.015, 0.035))
        heard.clear()
        watch = Stopwatch()
        inserting = asyncio.create_task(_insert_and_tell(connection, ids, body))
        await heard.wait()
        assert len(await taker.fetch(_CLAIM, 1)) == 1
        times.append(watch.seconds)
        await inserting
    return times


async def hear(pipe: Pipe, url: str, body: bytes, jobs: int) -> list[float]:
    """Listen, and claim what was told of; seconds since before its insert."""
    ear, taker = await _connect(url), await _connect(url)
    told: asyncio.Queue[str] = asyncio.Queue()
    await ear.add_listener("raw", lambda *said: told.put_nowait(said[3]))
    times: list[float] = []
    for _ in range(jobs):
        pipe.say("idle")
        began = int(await told.get())
        assert len(await taker.fetch(_CLAIM, 1)) == 1
        times.append((time.monotonic_ns() - began) / 1e9)
    return times


async def call(pipe: Pipe, url: str, body: bytes, jobs: int) -> None:
    """Insert and tell, once whoever hears sleeps again."""
    connection, ids = await _open(url), _ids()
    pipe.say("open")
    for _ in range(jobs):
        await pipe.hear()
        await asyncio.sleep(random.uniform(0.015, 0.035))
        await _insert_and_tell(connection, ids, body)
