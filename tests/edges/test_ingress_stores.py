"""The same door on every store: kept once, answered alike, jobs and all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from sqlalchemy import text

from relevo import Relevo
from relevo.desk import Person, Role
from relevo.errors import MisuseError
from relevo.store import DeliveryState, Letterbox, Store
from relevo.testing import ManualClock, deliver, drain
from tests.edges import doors
from tests.edges.doors import ODD, QSTASH, SIGNED, TX, jobs, kept, mended
from tests.edges.test_ingress import OK

ANN = Person("ann", Role.ADMIN)


@pytest.fixture
async def engine(store: Store, clock: ManualClock, tmp_path: Path) -> AsyncGenerator[Relevo]:
    """With a database beside the stores that are none."""
    beside = None if store.name in ("sqlite", "postgres") else f"sqlite:///{tmp_path / 'side.db'}"
    spool = str(tmp_path / "spool.db")
    made = Relevo(store, apps=[doors.app()], clock=clock, database=beside, spool=spool)
    await made.open()
    try:
        async with made.transaction() as tx:
            await tx.execute(text("drop table if exists seen"))
            await tx.execute(text("create table seen (id text)"))
        yield made
    finally:
        await made.rest()


async def test_every_store_keeps_a_delivery_once_with_its_jobs(engine: Relevo) -> None:
    every = [
        deliver(engine, path, json={"id": f"{path}-{number % 5}"})
        for path in (SIGNED, TX, QSTASH)
        for number in range(10)
    ]
    assert await asyncio.gather(*every) == [OK] * 30
    assert await deliver(engine, ODD, json={"id": "e1", "do": "publish"}) == OK
    await drain(engine)

    assert await kept(engine) == 16
    assert len(set(await jobs(engine))) == 15 == len(await jobs(engine))
    async with engine.transaction() as tx:
        assert (await tx.execute(text("select count(*) from seen"))).scalar() == 5


async def test_every_store_lets_a_delivery_in_again_as_the_next_generation(engine: Relevo) -> None:
    """C06: the id stays, a replay is marked, and what the provider repeats does not double."""
    await deliver(engine, SIGNED, json={"id": "evt1"})
    [came], _ = await engine.desk.deliveries(Letterbox(key="evt1"))

    first = await engine.desk.replay(came.id, ANN, engine.handling)
    second = await engine.desk.replay(came.id, ANN, engine.handling)
    assert await deliver(engine, SIGNED, json={"id": "evt1"}) == OK
    await drain(engine)

    assert (first.generation, second.generation) == (1, 2)
    assert await jobs(engine) == ["evt1", "evt1", "evt1"]
    found, _ = await engine.desk.deliveries(Letterbox(key="evt1"))
    assert sorted(one.generation for one in found) == [0, 1, 2]
    story = await engine.desk.trace("evt1")
    assert [one.generation for one in story.deliveries] == [0, 1, 2]
    assert len(story.jobs) == 3


async def test_every_store_lets_in_what_its_function_once_failed_on(engine: Relevo) -> None:
    """It is there for whoever mends the function, who need not wait for the provider."""
    event = {"id": f"flaw-{engine.store.name}", "do": "mend"}
    assert await deliver(engine, ODD, json=event) == OK
    [came], _ = await engine.desk.deliveries(Letterbox(state=DeliveryState.FAILED))
    assert came.reason == "its function failed: RuntimeError: a mistake not yet mended"
    with pytest.raises(MisuseError, match=r"its function fails on delivery .* not yet mended"):
        await engine.desk.replay(came.id, ANN, engine.handling, dry_run=True)

    mended.add(event["id"])
    assert len((await engine.desk.replay(came.id, ANN, engine.handling, dry_run=True)).orders) == 1
    assert (await engine.desk.replay(came.id, ANN, engine.handling)).generation == 0
    assert await deliver(engine, ODD, json=event) == OK
    await drain(engine, skip_waits=True)

    assert await jobs(engine) == [event["id"]]
    assert (await engine.desk.delivery(came.id)).state is DeliveryState.ACCEPTED
