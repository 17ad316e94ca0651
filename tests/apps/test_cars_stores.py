"""Car rental on every kind of store, over real sockets, with webhooks, faults and kills."""

import asyncio
import os
import signal
import sqlite3
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import httpx2
import pytest
from alembic import op
from sqlalchemy import text

from relevo import Relevo
from relevo.apps import tables
from relevo.apps.cars import MIGRATIONS, app
from relevo.apps.cars.records import Records
from relevo.apps.cars.support import Support
from relevo.errors import SchemaMismatch
from relevo.ingress.server import serving
from relevo.ingress.sockets import listen
from relevo.job import State
from relevo.simulators import World
from relevo.simulators.traffic import cars as traffic
from relevo.store import Filter
from relevo.testing import until, working
from tests.servers import postgres
from tests.servers.ports import free_port
from tests.servers.redis import fresh_url

PROVIDERS = ("mexgroup", "niza", "infinity", "noleggiare", "hertz")
CARD = {"payment_method": "pm_card_visa"}


STORES = [
    pytest.param(name, id=name, marks=[] if name == "sqlite" else pytest.mark.xdist_group(name))
    for name in ("sqlite", "postgres", "redis")
]


@pytest.fixture(params=STORES)
async def addresses(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncGenerator[tuple[str, str | None]]:
    """A store, and the database beside it where it is none itself."""
    match request.param:
        case "postgres":
            async with postgres.fresh_address() as url:
                with pytest.raises(SchemaMismatch, match="relevo migrate"):
                    async with Relevo(url, apps=[app]):
                        pass
                await migrate_at_once(url)
                yield url, None
        case "redis":
            yield fresh_url(), f"sqlite:///{tmp_path / 'cars.db'}"
        case _:
            yield f"sqlite:///{tmp_path / 'cars.db'}", None


async def migrate_at_once(url: str) -> None:
    """Four processes' worth of migrations: one does it, the others find it done."""
    steps = await asyncio.gather(*(tables.migrate(url, MIGRATIONS) for _ in range(4)))
    assert sorted(map(len, steps)) == [0, 0, 0, 1]


async def test_f46_a_migration_that_dies_leaves_nothing_and_is_done_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'cars.db'}"
    create = op.create_table
    for last in range(5):
        left = iter(range(last))

        def die(*args: Any, left: Iterator[int] = left, **options: Any) -> Any:
            if next(left, None) is None:
                raise KeyboardInterrupt
            return create(*args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(op, "create_table", die)
            with pytest.raises(KeyboardInterrupt):
                await tables.migrate(url, MIGRATIONS)
        with closing(sqlite3.connect(tmp_path / "cars.db")) as file:
            assert file.execute("select name from sqlite_master").fetchall() == []
    await migrate_at_once(url)


async def left(relevo: Relevo, status: str = "PAID") -> int:
    async with relevo.transaction() as tx:
        query = text("select count(*) from reservations where status = :status")
        return int((await tx.execute(query, {"status": status})).scalar_one())


async def test_customers_rent_cars_on_every_store(
    world: World, addresses: tuple[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, database = addresses
    world.faults.add("noleggiare", "book", "lost", times=1)
    world.faults.add("stripe", "confirm", "lost", times=1)
    world.faults.add("stripe", "webhook", "duplicate")
    async with AsyncExitStack() as stack:
        relevo = Relevo(store, apps=[app], database=database)
        front = relevo.asgi()
        await stack.enter_async_context(relevo)
        listener = stack.enter_context(listen("127.0.0.1", 0))
        world.target = await stack.enter_async_context(serving(front, listener, grace=1))
        for _ in range(2):
            await stack.enter_async_context(working(relevo))
        codes = await traffic.run(world, world.target, 10, seed=4)

        async def is_over() -> bool:
            # The lost one waits 15 s before it is looked up.
            running = await relevo.store.count(Filter(states=frozenset({State.RUNNING})), most=1)
            return await left(relevo) <= 1 and not running

        await until(is_over, timeout="30s")
        await asyncio.wait_for(world.courier.rest(), 10)
        support = Support(relevo.use(Records), relevo.desk)
        for code in codes:
            case = await support.show(code)
            assert world.ledger.count("stripe", "charge", code) == 1
            assert case.event is not None
            if case.reservation.status == "PAID":
                assert case.reservation.supplier_id == 140
                assert (case.event.status, case.event.attempts) == ("PENDING", 1)
            else:
                assert (case.reservation.status, case.event.status) == ("CONFIRMED", "DONE")
        assert world.courier.delivered["/hooks/stripe"] >= 2 * len(codes)
        assert sum(world.ledger.count(name, "book") for name in PROVIDERS) == len(codes)
        for name in ("stripe", *PROVIDERS):
            assert world.ledger.doubled(name) == {}


async def test_a_code_that_is_none_is_not_found_on_every_store(
    world: World, addresses: tuple[str, str | None]
) -> None:
    store, database = addresses
    async with Relevo(store, apps=[app], database=database) as relevo:
        transport = httpx2.ASGITransport(app=relevo.asgi())
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8700") as web:
            for code in ("RES-%00", "RES-%7f", "RES-" + "0" * 17, "RES-0000000000"):
                assert (await web.get(f"/reservations/{code}")).status_code == 404, code
                assert (await web.get(f"/cars/{code}")).status_code == 404, code


# Processes that die


class Fleet:
    """relevo's own processes, on one store."""

    def __init__(self, store: str, folder: Path, **environ: str) -> None:
        self._environ = {**os.environ, "RELEVO_STORE_URL": store, "RELEVO_APPS": "cars", **environ}
        self._folder = folder
        self._running: list[Process] = []

    async def start(self, *words: str) -> Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "relevo.cli",
            *words,
            cwd=self._folder,
            env=self._environ,
            stdout=DEVNULL,
            stderr=DEVNULL,
        )
        self._running.append(process)
        return process

    async def serve(self, port: int) -> Process:
        """A server that answers."""
        process = await self.start("serve", "--port", str(port))
        deadline = asyncio.get_running_loop().time() + 90
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return process
            except OSError:
                assert process.returncode is None
                assert asyncio.get_running_loop().time() < deadline
                await asyncio.sleep(0.1)

    async def stop(self) -> None:
        for process in self._running:
            if process.returncode is None:
                process.kill()
            await process.wait()


@pytest.fixture
async def fleet(world: World, tmp_path: Path) -> AsyncGenerator[Fleet]:
    made = Fleet(f"sqlite:///{tmp_path / 'cars.db'}", tmp_path)
    yield made
    await made.stop()


async def test_f43_a_server_killed_between_charge_and_commit_charges_once(
    world: World, fleet: Fleet, tmp_path: Path
) -> None:
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    first = await fleet.serve(port)
    async with httpx2.AsyncClient(base_url=base, timeout=30, trust_env=False) as client:
        made = await client.post("/reservations", json=next(traffic.wishes(2)))
        code = made.json()["reservation_code"]
        world.faults.add("stripe", "confirm", "hang", times=1, seconds=20)
        paying = asyncio.create_task(client.post(f"/reservations/{code}/pay", json=CARD))
        await until(lambda: world.ledger.count("stripe", "charge", code) == 1, timeout="20s")
        first.send_signal(signal.SIGKILL)
        await first.wait()
        with pytest.raises(httpx2.HTTPError):
            await paying
    relevo = Relevo(f"sqlite:///{tmp_path / 'cars.db'}", apps=[app])
    front = relevo.asgi()
    async with (
        relevo,
        serving(front, listen("127.0.0.1", 0), grace=1) as base,
        httpx2.AsyncClient(base_url=base, timeout=30, trust_env=False) as client,
    ):
        world.target = base  # from here on Stripe's webhook, which it repeats, finds a server
        again = await client.post(f"/reservations/{code}/pay", json=CARD)
        assert again.status_code == 200
        assert (await client.get(f"/reservations/{code}")).json()["status"] == "PAID"
    assert world.ledger.count("stripe", "charge", code) == 1


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_five_hundred_customers_faults_and_kills(world: World, fleet: Fleet) -> None:
    """Every paid reservation ends confirmed with one booking, or stuck with a reason."""
    port = free_port()
    base = world.target = f"http://127.0.0.1:{port}"
    for name in PROVIDERS:
        for kind in ("error", "lost", "down", "malformed", "refuse"):
            world.faults.add(name, "book", kind, rate=0.06)
    world.faults.add("stripe", "*", "lost", rate=0.03)
    world.faults.add("stripe", "webhook", "duplicate", rate=0.2)
    await fleet.serve(port)
    workers = [await fleet.start("work") for _ in range(2)]
    renting = asyncio.create_task(traffic.run(world, base, 500, seed=9))
    for number in range(2):
        booked = (number + 1) * 120
        await until(
            lambda booked=booked: sum(world.ledger.count(name) for name in PROVIDERS) > booked,
            timeout="300s",
        )
        workers[number].send_signal(signal.SIGKILL)
        await fleet.start("work")
    codes = await renting
    for name in PROVIDERS:
        world.faults.clear(name)
    async with httpx2.AsyncClient(base_url=base, timeout=30, trust_env=False) as client:

        async def open_ones() -> list[dict[str, Any]]:
            shown = [(await client.get(f"/reservations/{code}")).json() for code in codes]
            return [
                each
                for each in shown
                if each["status"] != "CONFIRMED"
                and each["booking"]["status"] not in ("DEAD", "HELD")
            ]

        deadline = asyncio.get_running_loop().time() + 420
        while await open_ones():
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(2)
        shown = [(await client.get(f"/reservations/{code}")).json() for code in codes]
    confirmed = {each["reservation_code"] for each in shown if each["status"] == "CONFIRMED"}
    booked_for = {entry.key for name in PROVIDERS for entry in world.ledger.find(name, "book")}
    assert confirmed <= booked_for
    assert len(confirmed) > 300
    for name in ("stripe", *PROVIDERS):
        assert world.ledger.doubled(name) == {}
    assert {entry.key for entry in world.ledger.find("stripe", "charge")} == set(codes)
    dead = {
        each["reservation_code"] for each in shown if (each["booking"] or {})["status"] == "DEAD"
    }
    assert not dead & booked_for
