"""The hotel on the other stores: PostgreSQL with everything in it, and Redis beside a database."""

from __future__ import annotations

from pathlib import Path

import pytest

from relevo import Relevo, SchemaMismatch
from relevo.apps import tables
from relevo.apps.hotel import MIGRATIONS, app
from relevo.simulators import World
from tests.apps.test_hotel_traffic import drive
from tests.servers import postgres
from tests.servers.redis import fresh_url


@pytest.mark.xdist_group("postgres")
async def test_everything_in_postgres(world: World) -> None:
    async with postgres.fresh_address() as url:
        with pytest.raises(SchemaMismatch, match="relevo migrate"):
            async with Relevo(url, apps=[app]):
                pass
        assert len(await tables.migrate(url, MIGRATIONS)) == 2
        async with Relevo(url, apps=[app]) as relevo:
            await drive(relevo, world, 30, 9, "60s")


@pytest.mark.xdist_group("redis")
async def test_jobs_and_board_in_redis_beside_a_database(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = fresh_url()
    monkeypatch.setenv("REDIS_URL", url)
    database = f"sqlite:///{tmp_path / 'hotel.db'}"
    async with Relevo(url, apps=[app], database=database) as relevo:
        await drive(relevo, world, 30, 10, "60s")
