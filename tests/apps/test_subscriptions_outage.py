"""F57: the database or Redis away while streams are served: no retry is spent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from itertools import count

import pytest
from redis.asyncio import Redis

from relevo import Relevo
from relevo.apps import tables
from relevo.apps.subscriptions import MIGRATIONS, app, records, streams, webhooks
from relevo.apps.subscriptions.streams import STREAMS, StreamWorker
from relevo.simulators import World
from relevo.simulators.traffic.subscriptions import event, sign
from relevo.testing import deliver, drain, until
from tests.matrix import Recorder
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

NAMES = ("email", "list", "spreadsheet")
MANY = 12
RETRIES = 2


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
async def relevo(
    world: World,
    postgres: PostgresServer,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncGenerator[Relevo]:
    monkeypatch.setattr(streams, "REST", 0.1)
    monkeypatch.setenv("REDIS_HOST", "127.0.0.1")
    monkeypatch.setenv("REDIS_PORT", str(redis_server.port))
    monkeypatch.setenv("WORKERS_MAX_RETRIES", str(RETRIES))
    for name in NAMES:
        monkeypatch.setenv(f"WORKERS_{name.upper()}_READ_TIMEOUT", "50")
        monkeypatch.setenv(f"WORKERS_{name.upper()}_BACKOFF_BASE", "50")
        monkeypatch.setenv(f"WORKERS_{name.upper()}_BACKOFF_MAX", "100")
    engine = Relevo(postgres.url, apps=[app])
    await engine.store.migrate()
    await tables.migrate(postgres.url, MIGRATIONS)
    async with engine:
        yield engine


_numbers = count(1)


async def subscribe(relevo: Relevo, many: int) -> None:
    for _ in range(many):
        body = json.dumps(event(next(_numbers), 1)).encode()
        headers = sign(body)
        answer = await deliver(relevo, webhooks.PATH, body=body, headers=headers, sign=False)
        assert answer.status == 200
    await drain(relevo)


class Serving:
    """All three stream workers, until the block ends."""

    def __init__(self, relevo: Relevo) -> None:
        self._workers = [StreamWorker(relevo, name) for name in NAMES]
        self._stop = asyncio.Event()

    async def __aenter__(self) -> None:
        self._tasks = [asyncio.create_task(worker.run(self._stop)) for worker in self._workers]

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)


async def is_settled(redis: Redis) -> bool:
    for name in STREAMS:
        [group] = await redis.xinfo_groups(name)
        newest = (await redis.xinfo_stream(name))["last-generated-id"]
        if group["last-delivered-id"] != newest or group["pending"]:
            return False
    return True


async def check(relevo: Relevo, world: World, many: int, matrix: Recorder) -> None:
    """Every call was made once, every flag is set, and nothing has failed for good."""
    jobs = await relevo.use(records.Records).jobs(1_000)
    failures = await relevo.use(records.Records).failures()
    doubled = sum(len(world.ledger.doubled(name)) for name in ("relay", "doppler", "sheets"))
    done = [job for job in jobs if job.email_sent and job.list_added and job.spreadsheet_saved]
    matrix.record("F57", store="postgres", lost=many - len(done), doubled=doubled)
    assert [(failure.error, failure.deliveries) for failure in failures] == []
    assert (len(jobs), len(done), doubled) == (many, many, 0)
    assert world.ledger.count("relay") == many


async def test_f57_a_database_that_refuses_connections_spends_no_retry_of_an_entry(
    relevo: Relevo,
    world: World,
    postgres: PostgresServer,
    redis_server: RedisServer,
    matrix: Recorder,
) -> None:
    async with Redis(host="127.0.0.1", port=redis_server.port, decode_responses=True) as redis:
        many = 0
        async with Serving(relevo):
            for _ in range(3):
                many += MANY
                await subscribe(relevo, MANY)
                # In the midst of the letters, so that some have left and are not marked yet.
                await until(lambda: world.ledger.count("relay") > many - MANY + 2)  # noqa: B023
                postgres.kill()
                # Longer than RETRIES waits of an entry.
                await asyncio.sleep(0.1 * (RETRIES + 5))
                postgres.restart()
            await until(lambda: is_settled(redis), timeout="60s")
        await check(relevo, world, many, matrix)


async def test_f57_lost_answers_of_redis_spend_no_retry_of_an_entry(
    relevo: Relevo, world: World, redis_server: RedisServer, matrix: Recorder
) -> None:
    """An entry is delivered to a worker that does not hear of it, more often than RETRIES."""
    stream = StreamWorker(relevo, "email")._stream
    await stream.ensure()
    await subscribe(relevo, 1)
    place = ("stripe_jobs_email", "stripe_jobs_email_group")
    async with Redis(host="127.0.0.1", port=redis_server.port, decode_responses=True) as redis:
        await redis.xreadgroup(place[1], stream.consumer, {place[0]: ">"})
        for _ in range(RETRIES + 4):
            await stream.ensure()
            [entry] = await redis.xpending_range(*place, "-", "+", 1)
            assert entry["times_delivered"] == 0
            await redis.xclaim(*place, stream.consumer, 0, [entry["message_id"]])
        async with Serving(relevo):
            await until(lambda: is_settled(redis), timeout="30s")
    await check(relevo, world, 1, matrix)


async def test_f57_an_entry_that_another_worker_has_taken_is_not_put_back(
    relevo: Relevo, redis_server: RedisServer
) -> None:
    await subscribe(relevo, 1)
    stream = StreamWorker(relevo, "email")._stream
    await stream.ensure()
    [entry] = await stream.take(1, 1)
    place = ("stripe_jobs_email", "stripe_jobs_email_group")
    async with Redis(host="127.0.0.1", port=redis_server.port, decode_responses=True) as redis:
        await redis.xclaim(*place, "another", 0, [entry.id])
        await stream.put_back(entry, 0)
        [found] = await redis.xpending_range(*place, "-", "+", 1)
    assert (found["consumer"], found["times_delivered"]) == ("another", 2)
