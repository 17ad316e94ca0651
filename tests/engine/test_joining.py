"""A command whose payload is not used, since it joined a job by its key, is told to people."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from relevo import App, Command, Context, Delivery, Intake, Relevo, State, sources
from relevo.desk import JoinsView
from relevo.testing import drain
from tests.conformance.fresh import SQL_STORES, STORES

Start = Callable[..., Relevo]
QUEUE = "test:joining:sync"


class Sync(Command, queue=QUEUE, key="sub:{sub}", unique="unfinished", attempts=1):
    sub: str
    state: str


class Charge(Command, queue="test:joining:charge", key="charge:{order}", unique="forever"):
    order: str
    cents: int


class Begin(Command, queue="test:joining:begin"):
    sub: str


async def sync(order: Sync) -> None: ...
async def charge(order: Charge) -> None: ...


async def begin(order: Begin, ctx: Context) -> None:
    for state in ("past_due", "canceled"):
        await ctx.enqueue(Sync(order.sub, state))


def app() -> App:
    made = App("test", workers=[sync, charge, begin])

    @made.webhook("/in", source=sources.github("a secret of tests"), key=lambda d: d.json["id"])
    async def came(delivery: Delivery, ctx: Intake) -> None:
        await ctx.enqueue(Sync(delivery.json["sub"], delivery.json["state"]))

    @made.webhook("/tx", source=sources.github("a secret of tests"), key=lambda d: d.json["id"])
    async def within(delivery: Delivery, ctx: Intake, tx: AsyncSession) -> None:
        await ctx.enqueue(Sync(delivery.json["sub"], delivery.json["state"]))

    return made


async def deliver(relevo: Relevo, path: str, id: str, state: str) -> str:
    body = json.dumps({"id": id, "sub": "s1", "state": state}).encode()
    call = Delivery(path=path, body=body, received_at=datetime.now(UTC))
    return (await relevo.receiver.take(relevo.receiver.doors[path], call)).kept.id


async def told(relevo: Relevo) -> list[JoinsView]:
    """What `relevo doctor` would tell, once all is written."""
    await relevo.joining.close()
    return await relevo.desk.joins()


async def test_an_order_hears_that_its_payload_is_not_used(start: Start) -> None:
    relevo = start(app())
    first = await relevo.enqueue(Sync("s1", "active"))

    same = await relevo.enqueue(Sync("s1", "active"))
    other = await relevo.enqueue(Sync("s1", "canceled"))

    assert (same.id, same.differs) == (first.id, False)
    assert (other.id, other.differs) == (first.id, True)
    assert relevo.telemetry.counts["joined"] == 1
    [seen] = await told(relevo)
    assert (seen.queue, seen.kind, seen.unique) == (QUEUE, "Sync", "unfinished")
    assert (seen.count, seen.job) == (1, first.id)


async def test_once_done_for_ever_another_amount_is_told_too(start: Start) -> None:
    relevo = start(app())
    first = await relevo.enqueue(Charge("o1", 100))
    await drain(relevo)

    again = await relevo.enqueue(Charge("o1", 999))

    assert (again.id, again.differs) == (first.id, True)
    assert [seen.job for seen in await told(relevo)] == [first.id]


async def test_many_are_counted_and_the_log_warns_once_a_queue(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    relevo, other = start(app()), start(app())
    first = await relevo.enqueue(Sync("s1", "active"))
    with caplog.at_level(logging.WARNING, "relevo"):
        for number in range(5):
            await relevo.enqueue(Sync("s1", f"state {number}"))
        await relevo.enqueue_many([Sync("s1", "past_due"), Sync("s1", "active")])
    await relevo.joining.close()
    warned = list(caplog.records)
    await other.enqueue(Sync("s1", "canceled"))

    assert [record.__dict__["queue"] for record in warned] == [QUEUE]
    assert QUEUE in warned[0].getMessage()  # all that a script without a log of its own prints
    assert relevo.telemetry.counts["joined"] == 6
    assert [seen.count for seen in await told(other)] == [7]
    assert (await relevo.desk.job(first.id)).joined == 7


async def test_a_job_tells_what_joined_it(start: Start) -> None:
    relevo = start(app())
    first = await relevo.enqueue(Sync("s1", "active"), delay="1h")
    asked = await relevo.enqueue(Begin("s1"))

    await drain(relevo)

    job = await relevo.desk.job(first.id)
    assert (job.state, job.joined) == (State.SCHEDULED, 2)
    assert [line.cause for line in job.joins] == [asked.id, asked.id]
    assert relevo.telemetry.counts["joined"] == 2


@pytest.mark.parametrize("store_name", SQL_STORES)
async def test_what_a_transaction_orders_is_told_too(start: Start) -> None:
    relevo = start(app())
    first = await relevo.enqueue(Sync("s1", "active"))

    async with relevo.transaction() as tx:
        other = await relevo.enqueue(Sync("s1", "canceled"), tx=tx)

    assert (other.id, other.differs) == (first.id, True)
    assert [seen.count for seen in await told(relevo)] == [1]


@pytest.mark.parametrize(
    ("store_name", "path"),
    [*((name, "/in") for name in STORES), *((name, "/tx") for name in SQL_STORES)],
)
async def test_a_delivery_says_that_it_joined_a_job(start: Start, path: str) -> None:
    relevo = start(app())
    first = await deliver(relevo, path, "evt_1", "active")
    again = await deliver(relevo, path, "evt_2", "active")
    other = await deliver(relevo, path, "evt_3", "canceled")

    found = {id: await relevo.desk.delivery(id) for id in (first, again, other)}
    [job] = found[first].jobs
    assert found[first].joined == found[again].joined == ()
    assert found[other].jobs == found[other].joined == (job,)
    assert [line.cause for line in (await relevo.desk.job(job)).joins] == [other]
    [seen] = await told(relevo)
    assert (seen.count, seen.job) == (1, job)
    assert relevo.telemetry.counts["joined"] == 1
    story = await relevo.desk.trace("evt_3")
    assert [kept.joined for kept in story.deliveries] == [(job,)]
    assert [each.id for each in story.jobs] == [job]
