"""The hotel on the other stores: PostgreSQL with everything in it, and Redis beside a database."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest
from redis.asyncio import Redis

from relevo import Relevo, SchemaMismatch
from relevo.apps import tables
from relevo.apps.hotel import MIGRATIONS, app
from relevo.ids import new_id
from relevo.simulators import World
from relevo.stores import open_store
from tests.apps.test_hotel_traffic import drive
from tests.servers import postgres
from tests.servers.redis import redis_url

TABLES = (
    *("hotel_reservations", "cm_events", "messages", "conversations", "guests"),
    *("cm_lists", "cm_keys", "hotel_version"),
)


@asynccontextmanager
async def fresh_postgres() -> AsyncGenerator[str]:
    """A store in a schema of its own; the app's tables are where the role's tables are."""
    server, schema = postgres.postgres_url(), f"hotel_{new_id()[-12:]}"
    url = f"{server}{'&' if '?' in server else '?'}schema={schema}"
    store = open_store(url)
    await store.migrate()
    await store.close()
    try:
        yield url
    finally:
        connection = await asyncpg.connect(server)
        await connection.execute(f"drop table if exists {', '.join(TABLES)}")
        await connection.execute(f'drop schema "{schema}" cascade')
        await connection.close()


@pytest.mark.xdist_group("postgres")
async def test_everything_in_postgres(world: World) -> None:
    async with fresh_postgres() as url:
        with pytest.raises(SchemaMismatch, match="relevo migrate"):
            async with Relevo(url, apps=[app]):
                pass
        assert len(await tables.migrate(url, MIGRATIONS)) == 1
        async with Relevo(url, apps=[app]) as relevo:
            await drive(relevo, world, 30, 9, "60s")


@pytest.mark.xdist_group("redis")
async def test_jobs_and_board_in_redis_beside_a_database(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", redis_url())
    async with Redis.from_url(redis_url()) as client:
        await client.flushdb()
    database = f"sqlite:///{tmp_path / 'hotel.db'}"
    async with Relevo(redis_url(), apps=[app], database=database) as relevo:
        await drive(relevo, world, 30, 10, "60s")
