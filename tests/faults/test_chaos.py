"""Half an hour of everything at once, by a seed that is told when it fails: F50.

SOAK_MINUTES makes it shorter; the table then says so.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from relevo.stores import open_store
from relevo.testing import until
from tests.faults.fleet import Fleet
from tests.faults.ledger import Ledger
from tests.faults.load import load
from tests.faults.proxy import Proxy
from tests.faults.test_network import Through
from tests.matrix import Recorder
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

MINUTES = float(os.environ.get("SOAK_MINUTES", "30"))


@pytest.mark.soak
@pytest.mark.parametrize("name", ["postgres", "redis"])
async def test_f50_chaos(name: str, ledger: Ledger, tmp_path: Path, matrix: Recorder) -> None:
    """Workers and servers killed, wires cut and swallowed, clocks hours off, in any order."""
    seed = int(os.environ.get("RELEVO_TEST_SEED", random.randrange(1 << 30)))
    with PostgresServer() if name == "postgres" else RedisServer() as server:
        store = open_store(server.url)
        await store.migrate()
        await store.open()
        proxy, url = Proxy.before(server.url)
        place = Through(
            store=store, proxy=proxy, url=url, ledger=ledger, folder=tmp_path, matrix=matrix
        )
        try:
            await chaos(place, server, random.Random(seed))
        except BaseException as problem:
            problem.add_note(f"RELEVO_TEST_SEED={seed}")
            raise
        finally:
            proxy.stop()
            await store.close()


async def chaos(
    place: Through, server: PostgresServer | RedisServer, chance: random.Random
) -> None:
    async with load(place, workers=3) as (_, fleet):

        async def worker_killed() -> None:
            victim = chance.choice(fleet.members)
            fleet.hire(clock=chance.choice([0, 0, -7_200, -5, 5, 7_200]))
            fleet.kill(victim)
            await until(lambda: any(one.is_working for one in fleet.members), timeout="30s")

        async def wires_cut() -> None:
            for _ in range(chance.randint(1, 5)):
                place.proxy.cut()
                await asyncio.sleep(chance.uniform(0.2, 1))

        async def hole() -> None:
            place.proxy.open_hole()
            await asyncio.sleep(chance.uniform(0.5, 8))
            place.proxy.close_hole()

        async def server_killed() -> None:
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(chance.uniform(0, 2))
            await asyncio.to_thread(server.restart)

        faults: list[Callable[[], Awaitable[None]]]
        faults = [worker_killed, worker_killed, wires_cut, hole, server_killed]
        began, count = time.monotonic(), 0
        while time.monotonic() - began < MINUTES * 60:
            await asyncio.sleep(chance.uniform(0.5, 3))
            await chance.choice(faults)()
            await steady(fleet)
            await place.goes_on(15)
            count += 1
        place.matrix.record(note=f"{count} faults in {MINUTES:g} min")


async def steady(fleet: Fleet) -> None:
    """One that came up while its store was away may give up; it is replaced as a host would."""
    for member in [one for one in fleet.members if not one.is_alive]:
        assert not member.is_working, member.said()[-4_000:]
        fleet.members.remove(member)
        fleet.hire()
    await until(lambda: any(one.is_working for one in fleet.members), timeout="30s")
