"""Every event once for each subscriber, in whichever program and state it is: F64 and F65."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from relevo import App, Event, Relevo
from relevo.store import Store
from relevo.testing import FaultyStore, until, working
from tests.conformance.fresh import SQL_STORES
from tests.faults.conftest import STORES_HERE
from tests.faults.fleet import NURSERY
from tests.faults.ledger import Ledger
from tests.faults.subscribers import app, serve
from tests.faults.verdict import whole

SERVERS = [one for one in STORES_HERE if one not in SQL_STORES]


class OrderPaid(Event, name="order.paid"):
    """As the publisher declares it."""

    order: int
    country: str = "IT"


class Programs:
    """The processes of the subscribing program."""

    def __init__(self, store: str, database: str | None, ledger: Ledger, out: Path) -> None:
        self._where = store, database, str(ledger.path)
        self._out = str(out)
        self.running: list[Any] = []

    def start(self, name: str, since: str | None = None) -> None:
        process = NURSERY.Process(target=serve, args=(*self._where, name, since, self._out))
        process.start()
        self.running.append(process)

    async def kill(self) -> None:
        """Kill all of them with SIGKILL."""
        for process in self.running:
            process.kill()
            await asyncio.to_thread(process.join)
        self.running.clear()


@asynccontextmanager
async def programs(
    store: str, database: str | None, ledger: Ledger, folder: Path
) -> AsyncGenerator[Programs]:
    made = Programs(store, database, ledger, folder / "said")
    try:
        yield made
    finally:
        await made.kill()


async def told_to_all(
    store: Store, ledger: Ledger, folder: Path, *, database: str | None = None
) -> None:
    """Publish while the subscribers are absent, killed, down and renamed."""
    is_sql = database is not None or store.name in ("sqlite", "postgres")
    published: list[int] = []

    async with (
        Relevo(store.dsn, database=database) as shop,
        programs(store.dsn, database, ledger, folder) as mail,
    ):

        async def publish(count: int) -> None:
            for _ in range(count):
                number = len(published)
                if is_sql and number % 2:
                    async with shop.transaction() as session:
                        await shop.publish(OrderPaid(number), tx=session)
                else:
                    await shop.publish(OrderPaid(number))
                published.append(number)

        def have_all(*names: str) -> bool:
            return all(len(ledger.counts(name)) == len(published) for name in names)

        async def are_registered(*names: str) -> bool:
            found = (await shop.subscribers.read(["order.paid"]))["order.paid"]
            return {each.name for each in found} == {f"mail.{name}" for name in names}

        await publish(20)  # nothing subscribes yet
        mail.start("early", since="1h")
        await until(lambda: have_all("early"), timeout="60s", what="early has the past")
        for _ in range(3):
            publishing = asyncio.create_task(publish(30))
            await asyncio.sleep(random.uniform(0.02, 0.2))  # the moment of the kill
            await mail.kill()
            await publishing
            mail.start("early")
        await mail.kill()
        await publish(10)  # nothing runs
        mail.start("renamed", since="1h")
        await until(lambda: are_registered("early", "renamed"), timeout="60s")
        await publish(10)
        await until(lambda: have_all("renamed"), timeout="60s", what="renamed has all")
        mail.start("early")
        await until(lambda: have_all("early"), timeout="60s", what="early has what it missed")

    lost = doubled = 0
    for name in ("early", "renamed"):
        keys, counts = ledger.keys(name), ledger.counts(name)
        wanted = Counter(dict.fromkeys(published, 1))
        lost += (wanted - counts).total()
        doubled += (keys - wanted).total() + (counts - wanted).total()
    ledger.verdict = lost, doubled
    assert (lost, doubled) == (0, 0)
    whole(store)


async def test_f64_programs_that_share_no_code_get_every_event_once(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    await told_to_all(store, ledger, tmp_path)


@pytest.mark.parametrize("store_name", SERVERS)
async def test_f64_programs_that_share_no_code_get_every_event_once_by_the_outbox(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    await told_to_all(store, ledger, tmp_path, database=f"sqlite:///{tmp_path / 'outbox.db'}")


@pytest.mark.parametrize("when", ["before", "after"])
async def test_f65_a_fault_at_any_call_of_the_worker_that_spreads_loses_and_doubles_nothing(
    store: Store, ledger: Ledger, when: str
) -> None:
    """Registering, reading the list, storing the jobs, ending the event."""
    mail, past = app(ledger, "mail", None), app(ledger, "past", "1h")
    number = 0
    for at in range(1, 25, 3):
        faulty = FaultyStore(store, at=at, when=when)
        await Relevo(store).publish(OrderPaid(number))
        engine = Relevo(faulty.as_store(), apps=[mail if at == 1 else _both(mail, past)])
        async with working(engine, concurrency=5, lease="1s"):
            await Relevo(store).publish(OrderPaid(number + 1))  # the fault is for the worker
            number += 2
            names = ("mail",) if at == 1 else ("mail", "past")
            await until(partial(_have_all, ledger, names, number))
            assert faulty.calls > 0
        await engine.rest()
    for name in ("mail", "past"):
        assert ledger.counts(name) == Counter(dict.fromkeys(range(number), 1))
    ledger.verdict = 0, 0


def _have_all(ledger: Ledger, names: Iterable[str], many: int) -> bool:
    return all(len(ledger.counts(name)) == many for name in names)


def _both(mail: App, past: App) -> App:
    mail.listeners[1:] = past.listeners
    return mail
