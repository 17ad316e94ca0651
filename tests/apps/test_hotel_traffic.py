"""Three hotels, three ways in, all at once: each message kept once, each guest answered once."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import select

from relevo import Relevo
from relevo.apps.hotel import app
from relevo.apps.hotel.hotel import Hotel
from relevo.apps.hotel.records.sql import messages
from relevo.ingress.server import serving
from relevo.simulators import World
from relevo.simulators.astra import astra
from relevo.simulators.channel import channel
from relevo.simulators.traffic.hotel import Sent, run
from relevo.testing import until, working
from tests.servers.redis import RedisServer


@asynccontextmanager
async def door(relevo: Relevo) -> AsyncGenerator[str]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        async with serving(relevo.asgi(), listener) as address:
            yield address


def answers(world: World) -> int:
    return world.ledger.count("channel", "reply") + world.ledger.count("beds24", "send")


async def kept_in(relevo: Relevo, world: World) -> list[tuple[str, str]]:
    """Every message that is kept, and who wrote it; asked of the tables themselves."""
    if relevo.use(Hotel).settings.astra is not None:
        return [(each["_id"], each["direction"]) for each in astra(world).documents("messages")]
    async with relevo.transaction() as tx:
        rows = await tx.execute(select(messages.c.id, messages.c.direction))
        return [(id, direction) for id, direction in rows]


async def check(relevo: Relevo, world: World, sent: Sent) -> None:
    """Nothing lost, nothing doubled, nothing left."""
    hotel = relevo.use(Hotel)
    kept = await kept_in(relevo, world)
    assert {id for id, direction in kept if direction == "guest"} == sent.messages
    assert sum(direction == "host" for _, direction in kept) == sent.expected
    assert answers(world) == sent.expected
    assert world.ledger.doubled("channel", "reply") == {}
    assert world.ledger.doubled("beds24", "send") == {}
    for place, status in sent.bookings.items():
        row = await hotel.records.reservation(*place.split(":"))
        assert row is not None
        assert row.status == status
    assert await hotel.records.count("reservations") == len(sent.bookings)
    assert channel(world).left() == 0
    for id in hotel.settings.hotels:
        assert await hotel.board.queue(id).lengths() == (0, 0, 0)


async def drive(relevo: Relevo, world: World, count: int, seed: int, timeout: str) -> None:
    hotel = relevo.use(Hotel)

    async def push(id: str, entries: list[bytes]) -> None:
        await hotel.board.queue(id).push(entries)

    async with door(relevo) as address, working(relevo, concurrency=20):
        sent = await run(world, address, count, seed, push)

        async def is_done() -> bool:
            if answers(world) < sent.expected or channel(world).left():
                return False
            if await hotel.records.count("messages") < 2 * sent.expected:
                return False
            queues = [hotel.board.queue(id) for id in hotel.settings.hotels]
            return all([await each.lengths() == (0, 0, 0) for each in queues])

        await until(is_done, timeout=timeout)
    assert sent.forged == max(1, count // 20)
    assert sent.duplicates > count // 10
    await check(relevo, world, sent)


async def test_messages_by_three_ways_are_kept_once_and_answered_once(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the embedded store, without Redis, while answers and acknowledgements get lost."""
    world.faults.add("channel", "reply", "lost", times=4)
    world.faults.add("channel", "ack", "lost", times=1)
    world.faults.add("beds24", "send", "lost", times=2)
    async with Relevo(f"sqlite:///{tmp_path / 'hotel.db'}", apps=[app]) as relevo:
        await drive(relevo, world, 45, 7, "60s")


async def test_the_same_in_astra(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTEL_RECORDS", "astra")
    for command in ("insertOne", "updateOne", "findOne"):
        world.faults.add("astra", command, "error", times=1)
        world.faults.add("astra", command, "lost", times=1)
    async with Relevo(f"sqlite:///{tmp_path / 'hotel.db'}", apps=[app]) as relevo:
        await drive(relevo, world, 24, 11, "60s")


async def pushed(world: World, folder: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    with RedisServer() as server:
        monkeypatch.setenv("REDIS_URL", server.url)
        async with Relevo(f"sqlite:///{folder / 'hotel.db'}", apps=[app]) as relevo:
            await drive(relevo, world, count, 8, "900s" if count > 1_000 else "60s")


async def test_the_same_with_a_redis_that_others_push_to(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pushed(world, tmp_path, monkeypatch, 90)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("count", [600, 3 * 5_000])
async def test_the_same_for_long(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    await pushed(world, tmp_path, monkeypatch, count)
