"""A forgotten await: the call does nothing, so what made it fails and saves nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text

from relevo import (
    App,
    Command,
    Context,
    Delivery,
    Event,
    Flow,
    Intake,
    Poll,
    Relevo,
    State,
    sources,
)
from relevo.events import job_id
from relevo.job import Job
from relevo.store import DeliveryState, Filter
from relevo.testing import ManualClock, deliver, drain, until, working
from tests.conformance.fresh import SQL_STORES

# pyright: reportUnusedCoroutine=false

Start = Callable[..., Relevo]


class Pack(Command, queue="test:shop:pack", attempts=1):
    order: str = "A-1"


class Ship(Command, queue="test:shop:ship"):
    order: str = "A-1"


class Packed(Event, name="order.packed"):
    order: str = "A-1"


async def ship(order: Ship) -> None: ...


async def the_job(relevo: Relevo, id: str) -> Job:
    [job] = await relevo.store.find([id])
    assert job is not None
    return job


async def orders(relevo: Relevo, queue: str = "test:shop:ship") -> int:
    return await relevo.store.count(Filter(queue=queue))


def is_told(job: Job, call: str) -> bool:
    assert job.failure is not None
    return job.failure.type == "MisuseError" and f"{call} was not awaited" in job.failure.message


def a_flow() -> Flow:
    flow = Flow("ship")
    flow.add(Ship())
    return flow


CALLS: list[tuple[str, Callable[[Context, Relevo], Any]]] = [
    ("ctx.enqueue(Ship(…))", lambda ctx, relevo: ctx.enqueue(Ship())),
    ("ctx.enqueue_many([…])", lambda ctx, relevo: ctx.enqueue_many([Ship()])),
    ("ctx.publish(Packed(…))", lambda ctx, relevo: ctx.publish(Packed())),
    ("ctx.start(Flow(…))", lambda ctx, relevo: ctx.start(a_flow())),
    ("ctx.once('mail')", lambda ctx, relevo: ctx.once("mail", print)),
    ("relevo.enqueue(Ship(…))", lambda ctx, relevo: relevo.enqueue(Ship())),
    ("relevo.publish(Packed(…))", lambda ctx, relevo: relevo.publish(Packed())),
    ("relevo.start(Flow(…))", lambda ctx, relevo: relevo.start(a_flow())),
]


@pytest.mark.parametrize(("told", "call"), CALLS, ids=[told for told, _ in CALLS])
async def test_a_worker_that_forgets_to_await_fails(
    start: Start, told: str, call: Callable[[Context, Relevo], Any]
) -> None:
    async def pack(order: Pack, ctx: Context) -> str:
        call(ctx, relevo)
        await asyncio.sleep(0)
        return "packed"

    relevo = start(App("test", workers=[pack, ship], listeners=[hear]))
    sent = await relevo.enqueue(Pack())
    await drain(relevo)

    job = await the_job(relevo, sent.id)
    assert (job.state, job.result) == (State.DEAD, None)
    assert is_told(job, told)
    assert await orders(relevo) == 0
    assert (await relevo.store.effects(job=job.id))[0] == []


async def hear(event: Packed) -> None: ...


async def test_a_listener_and_a_helper_of_its_own_fail_too(start: Start) -> None:
    def later(ctx: Context) -> None:
        ctx.enqueue(Ship())

    async def hear(event: Packed, ctx: Context) -> None:
        await asyncio.to_thread(later, ctx)

    relevo = start(App("test", workers=[ship], listeners=[hear]))
    sent = await relevo.publish(Packed())
    await drain(relevo, skip_waits=True)

    heard = job_id(sent.id, "test.hear")
    assert is_told(await the_job(relevo, heard), "ctx.enqueue(Ship(…))")
    assert await orders(relevo) == 0


async def test_an_error_of_the_workers_own_is_the_one_that_is_told(start: Start) -> None:
    async def pack(order: Pack, ctx: Context) -> None:
        ctx.enqueue(Ship())
        raise ValueError("no box")

    relevo = start(App("test", workers=[pack, ship]))
    sent = await relevo.enqueue(Pack())
    await drain(relevo)

    job = await the_job(relevo, sent.id)
    assert job.failure is not None
    assert job.failure.type == "ValueError"
    assert await orders(relevo) == 0


async def test_what_is_awaited_in_the_end_is_no_mistake(start: Start) -> None:
    async def pack(order: Pack, ctx: Context) -> None:
        later = ctx.enqueue(Ship("A-1"))
        await asyncio.gather(*(ctx.enqueue(Ship(name)) for name in ("A-2", "A-3")))
        task = asyncio.create_task(ctx.enqueue(Ship("A-4")))
        await later
        await task
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.enqueue(Ship("A-5")))

    relevo = start(App("test", workers=[pack, ship]))
    sent = await relevo.enqueue(Pack())
    await drain(relevo)

    assert (await the_job(relevo, sent.id)).state is State.DONE
    assert await orders(relevo) == 5


@pytest.mark.parametrize("store_name", SQL_STORES)
async def test_a_transaction_in_which_an_order_was_forgotten_does_not_commit(start: Start) -> None:
    async def pack(order: Pack, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(text("insert into packed values ('A-1')"))
            ctx.enqueue(Ship())

    relevo = start(App("test", workers=[pack, ship]))
    async with relevo.transaction() as tx:
        await tx.execute(text("drop table if exists packed"))
        await tx.execute(text("create table packed (name text)"))
    sent = await relevo.enqueue(Pack())
    await drain(relevo)

    async with relevo.transaction() as tx:
        assert list(await tx.execute(text("select name from packed"))) == []
    assert is_told(await the_job(relevo, sent.id), "ctx.enqueue(Ship(…))")
    assert await orders(relevo) == 0


@pytest.mark.parametrize("call", ["enqueue", "bad"])
async def test_a_pollers_turn_fails_and_keeps_its_cursor(start: Start, call: str) -> None:
    cursors: list[Any] = []
    app = App("test", workers=[ship])

    @app.poller("rates", every="1s")
    async def pull(poll: Poll, ctx: Context) -> None:
        cursors.append((poll.cursor, poll.failures))
        poll.cursor = len(cursors)
        if call == "bad":
            poll.bad({"number": 1}, "has no date")
        else:
            ctx.enqueue(Ship())

    relevo = start(app)
    await drain(relevo, skip_waits=True, until=lambda: len(cursors) >= 3)

    assert cursors[:3] == [(None, 0), (None, 1), (None, 2)]
    assert await orders(relevo) == 0


async def test_a_bad_item_that_is_awaited_is_put_aside(start: Start) -> None:
    turns: list[int] = []
    app = App("test")

    @app.poller("rates", every="1s")
    async def pull(poll: Poll, ctx: Context) -> None:
        turns.append(poll.failures)
        await poll.bad({"number": 1}, "has no date")

    relevo = start(app)
    await drain(relevo, skip_waits=True, until=lambda: len(turns) >= 2)

    assert turns[:2] == [0, 0]
    where = Filter(queue="test:pollers:pull", states=frozenset({State.DEAD}))
    assert await relevo.store.count(where) == 1


async def test_a_schedules_function_is_told_to_return_its_commands(
    start: Start, clock: ManualClock
) -> None:
    app = App("test", workers=[ship])
    ticks: list[int] = []

    @app.schedule("* * * * *")
    def nightly() -> None:
        ticks.append(1)
        relevo.enqueue(Ship())

    relevo = start(app)
    await drain(relevo, skip_waits=True, until=lambda: bool(ticks))
    async with working(relevo):
        await until(lambda: _said(relevo, "return the command"))

    assert await orders(relevo) == 0


async def _said(relevo: Relevo, words: str) -> bool:
    jobs = (await relevo.store.page(Filter(queue="test:schedules:nightly"))).jobs
    return any(words in (job.result or b"").decode() for job in jobs)


# webhooks

DOORS: list[tuple[str, Callable[[Intake, Relevo], Any]]] = [
    ("ctx.enqueue(Ship(…))", lambda ctx, relevo: ctx.enqueue(Ship())),
    ("ctx.enqueue_many([…])", lambda ctx, relevo: ctx.enqueue_many([Ship()])),
    ("ctx.publish(Packed(…))", lambda ctx, relevo: ctx.publish(Packed())),
    ("ctx.start(Flow(…))", lambda ctx, relevo: ctx.start(a_flow())),
    ("relevo.enqueue(Ship(…))", lambda ctx, relevo: relevo.enqueue(Ship())),
    ("a task", lambda ctx, relevo: asyncio.ensure_future(ctx.enqueue(Ship()))),
]


@pytest.mark.parametrize(("told", "call"), DOORS, ids=[told for told, _ in DOORS])
async def test_a_webhook_that_forgets_to_await_is_a_failure_of_ours(
    start: Start, told: str, call: Callable[[Intake, Relevo], Any]
) -> None:
    app = App("test", workers=[ship], listeners=[hear])
    tasks: list[Any] = []

    @app.webhook("/hooks/shop", source=sources.github("a secret"), key=lambda d: d.json["id"])
    async def paid(delivery: Delivery, ctx: Intake) -> None:
        await ctx.enqueue(Ship("beside"))
        tasks.append(call(ctx, relevo))

    relevo = start(app)
    async with relevo:
        answer = await deliver(relevo, "/hooks/shop", json={"id": "e1"})
        await asyncio.gather(
            *(each for each in tasks if isinstance(each, asyncio.Future)), return_exceptions=True
        )

        assert answer.status == 200  # the provider is not told of our mistakes
        assert await orders(relevo) == 0
        [came] = await relevo.store.delivered("test:/hooks/shop", ["e1"])
        assert came is not None
        assert came.state is DeliveryState.FAILED
        assert "was not awaited" in came.reason


@pytest.mark.parametrize("store_name", SQL_STORES)
async def test_a_webhooks_transaction_is_rolled_back_too(start: Start) -> None:
    app = App("test", workers=[ship])

    @app.webhook("/hooks/shop", source=sources.github("a secret"), key=lambda d: d.json["id"])
    async def paid(delivery: Delivery, ctx: Intake, tx: Any) -> None:
        await tx.execute(text("insert into paid values ('e1')"))
        ctx.enqueue(Ship())

    relevo = start(app)
    async with relevo:
        async with relevo.transaction() as tx:
            await tx.execute(text("drop table if exists paid"))
            await tx.execute(text("create table paid (name text)"))
        answer = await deliver(relevo, "/hooks/shop", json={"id": "e1"})

        assert answer.status == 200
        async with relevo.transaction() as tx:
            assert list(await tx.execute(text("select name from paid"))) == []
        assert await orders(relevo) == 0
