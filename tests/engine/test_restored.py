"""A store that was restored from a copy: what the ledger does not know may have happened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relevo import (
    App,
    Command,
    Context,
    Delivery,
    Flow,
    Intake,
    ProviderUnavailable,
    Relevo,
    State,
    constant,
    sources,
)
from relevo.desk import Desk, Person, Role
from relevo.ids import lasting
from relevo.restored import end_mark, mark_restored, read_mark
from relevo.store import By, Filter, Store
from relevo.testing import ManualClock, deliver, drain
from tests.conformance.fresh import STORES
from tests.engine.test_once import Book, Supplier, state_of

Start = Callable[..., Relevo]

ANN = By("ann")
BESIDE = [store for store in STORES if store.id in ("redis", "cluster")]


def booking(supplier: Supplier, **once: Any) -> tuple[App, list[str]]:
    codes: list[str] = []

    async def book(order: Book, ctx: Context) -> None:
        codes.append(await ctx.once("book", supplier.book, **once))

    return App("test", workers=[book]), codes


async def restored(relevo: Relevo) -> None:
    """The store as its processes find it after a restore."""
    await mark_restored(relevo.store, ANN)
    relevo.restored.is_known = False
    await relevo.restored.learn()


async def test_a_call_that_the_copy_does_not_know_is_looked_up_before_it_is_made(
    start: Start, clock: ManualClock
) -> None:
    supplier = Supplier()
    app, codes = booking(supplier, find=supplier.find)
    relevo = start(app)
    done = await relevo.enqueue(Book("RES-1"))
    undone = await relevo.enqueue(Book("RES-2"))
    supplier.bookings[f"{lasting(done.id)}:book"] = "CONF-LOST"
    await restored(relevo)

    await drain(relevo, skip_waits=True)

    assert sorted(codes) == ["CONF-2", "CONF-LOST"]
    assert supplier.calls == [f"{lasting(undone.id)}:book"]


async def test_a_repeatable_call_has_the_key_that_it_had_before_the_restore(start: Start) -> None:
    supplier = Supplier(answers=[ProviderUnavailable("503")])
    app, codes = booking(supplier, repeatable=True)
    relevo = start(app)
    job = await relevo.enqueue(Book("RES-1"))
    supplier.bookings[f"{lasting(job.id)}:book"] = "CONF-LOST"
    await restored(relevo)

    await drain(relevo, skip_waits=True)

    assert codes == ["CONF-LOST"]
    assert set(supplier.calls) == {f"{lasting(job.id)}:book"}


async def test_what_cannot_be_known_is_held_until_a_person_decides(
    start: Start, store: Store
) -> None:
    supplier = Supplier()
    app, codes = booking(supplier)
    relevo = start(app)
    ids = [(await relevo.enqueue(Book(code))).id for code in ("RES-1", "RES-2")]
    await restored(relevo)
    await drain(relevo, skip_waits=True)
    assert [await state_of(relevo, id) for id in ids] == [State.HELD, State.HELD]
    assert supplier.calls == []
    [job] = await store.find(ids[:1])
    assert job is not None
    assert job.failure is not None
    assert "after the copy that the store was restored from" in job.failure.message

    desk, person = Desk(store), Person("ann", Role.ADMIN)
    await desk.confirm_effect(ids[0], "book", "CONF-LOST", person)
    await desk.deny_effect(ids[1], "book", person)
    await drain(relevo, skip_waits=True)

    assert sorted(codes) == ["CONF-1", "CONF-LOST"]
    assert len(supplier.calls) == 1


@pytest.mark.parametrize("has_find", [True, False])
async def test_a_call_that_had_failed_by_then_may_have_been_made_later(
    start: Start, has_find: bool
) -> None:
    supplier = Supplier(answers=[ProviderUnavailable("503")])
    app, codes = booking(supplier, **({"find": supplier.find} if has_find else {}))
    relevo = start(app)
    job = await relevo.enqueue(Book("RES-1"))
    await drain(relevo)
    assert await state_of(relevo, job.id) is State.SCHEDULED
    supplier.bookings[f"{lasting(job.id)}:book"] = "CONF-LOST"
    await restored(relevo)

    await drain(relevo, skip_waits=True)

    assert codes == (["CONF-LOST"] if has_find else [])
    assert await state_of(relevo, job.id) is (State.DONE if has_find else State.HELD)
    assert len(supplier.calls) == 1


async def test_once_it_is_over_only_what_began_before_it_may_have_happened(
    start: Start, store: Store, clock: ManualClock
) -> None:
    supplier = Supplier()

    class First(Command, queue="test:cars:first", backoff=constant("1s")):
        code: str

    async def book(order: Book, ctx: Context) -> None:
        await ctx.once("book", supplier.book)

    async def first(order: First, ctx: Context) -> None:
        await ctx.enqueue(Book(order.code))

    relevo = start(App("test", workers=[book, first]))
    before = await relevo.enqueue(Book("RES-1"))
    await relevo.enqueue(First("RES-2"))
    await restored(relevo)
    clock.advance("1s")
    standing = await relevo.enqueue(Book("RES-3"))
    await drain(relevo, skip_waits=True)
    assert await state_of(relevo, before.id) is State.HELD
    assert await state_of(relevo, standing.id) is State.HELD
    assert supplier.calls == []

    late = await relevo.enqueue(First("RES-4"))
    await end_mark(store, ANN)
    await relevo.restored.learn_again()
    clock.advance("1s")
    after = await relevo.enqueue(Book("RES-5"))
    await drain(relevo, skip_waits=True)

    assert await state_of(relevo, after.id) is State.DONE
    assert await state_of(relevo, late.id) is State.DONE
    where = Filter(states=frozenset({State.HELD}), queue="test:cars:book")
    held = (await Desk(store).jobs(where)).jobs
    assert len(held) == 3  # of before, and what comes of it, and of the time in which it stood
    assert len(supplier.calls) == 2


async def test_a_mark_tells_of_the_copy(start: Start, store: Store, clock: ManualClock) -> None:
    supplier = Supplier()
    app, _ = booking(supplier)
    relevo = start(app)
    await relevo.enqueue(Book("RES-1"))
    want = relevo.wants()
    claim = await store.claim(want, 1, "w1", 15_000)
    written = await store.now()
    clock.advance("12m")

    mark = await mark_restored(store, ANN)

    assert mark == await read_mark(store)
    assert mark.running == (claim.leases[0].id,)
    assert 0 <= written - mark.written_at < 5_000
    assert mark.lost >= 12 * 60_000
    [line, *_] = (await store.audits())[0]
    assert (line.who, line.verb) == ("ann", "mark restored")


class Ship(Command, queue="test:shop:ship"):
    number: int


async def test_a_delivery_that_is_sent_again_gives_its_jobs_the_keys_they_had(
    tmp_path: Path,
) -> None:
    """What a copy knows nothing of gets other ids, and the same keys all the way down."""
    told: list[str] = []
    ids: list[str] = []

    async def call(key: str) -> None:
        told.append(key)

    app = App("test")

    @app.worker
    async def book(order: Book, ctx: Context) -> None:
        ids.append(ctx.id)
        await ctx.once("book", call)
        flow = Flow("shipping")
        flow.add(Ship(7))
        await ctx.start(flow)

    @app.worker
    async def ship(order: Ship, ctx: Context) -> None:
        await ctx.once("ship", call)

    @app.webhook("/hooks/shop", source=sources.stripe("whsec_test"))
    async def shop(delivery: Delivery, ctx: Intake) -> None:
        await ctx.enqueue(Book("RES-1"))

    for name in ("lost", "restored"):
        async with Relevo(f"sqlite:///{tmp_path / name}.db", apps=[app], spool="off") as relevo:
            await deliver(relevo, "/hooks/shop", json={"id": "evt_1", "type": "x"})
            await drain(relevo, skip_waits=True)

    assert len(told) == 4
    assert told[:2] == told[2:]
    assert ids[0] != ids[1]


@pytest.mark.parametrize("store_name", BESIDE)
async def test_an_engine_with_a_database_beside_its_store_doubts_what_its_ledger_lacks(
    store: Store, clock: ManualClock, tmp_path: Path
) -> None:
    """Jobs are in Redis; effects, and the mark, in the database."""
    supplier = Supplier()
    app, codes = booking(supplier, find=supplier.find)
    beside = f"sqlite:///{tmp_path}/side.db"
    relevo = Relevo(store, apps=[app], clock=clock, database=beside)
    await relevo.open()
    try:
        kept = await relevo.enqueue(Book("RES-0"))
        await drain(relevo, skip_waits=True)
        done = await relevo.enqueue(Book("RES-1"))
        undone = await relevo.enqueue(Book("RES-2"))
        supplier.bookings[f"{lasting(done.id)}:book"] = "CONF-LOST"
        supplier.calls.clear()
        desk = Desk(relevo.store)
        person = Person("ann", Role.ADMIN)
        mark = await desk.mark_restored(person, force=True)
        relevo.restored.is_known = False
        await relevo.restored.learn()
        assert relevo.restored.mark == mark

        await drain(relevo, skip_waits=True)

        assert sorted(codes) == ["CONF-1", "CONF-3", "CONF-LOST"]
        assert supplier.calls == [f"{lasting(undone.id)}:book"]
        told = await desk.after_restore()
        assert told.mark == mark
        assert told.held == 0
        assert (await desk.end_restore(person)).over_at
        assert await state_of(relevo, kept.id) is State.DONE
    finally:
        await relevo.rest()
