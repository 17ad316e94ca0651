"""What became of a job or a flow is asked, and changed, from code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relevo import (
    App,
    Command,
    Context,
    DefinitionError,
    Flow,
    JobHandle,
    MisuseError,
    NotAllowed,
    NotFoundError,
    PlainContext,
    Relevo,
    State,
)
from relevo.desk import Person, Role
from relevo.ids import new_id
from relevo.testing import ManualClock, drain, working
from tests.conformance.fresh import SQL_STORES
from tests.servers.redis import RedisServer

Start = Callable[..., Relevo]


class Add(Command, queue="test:sums:add", attempts=1):
    a: int
    b: int


class Brief(Command, queue="test:sums:brief", keep="0s"):
    pass


class Ask(Command, queue="test:sums:ask", attempts=1):
    job: str


async def add(order: Add) -> dict[str, int]:
    if order.a < 0:
        raise ValueError("no negative numbers")
    return {"sum": order.a + order.b}


async def brief(order: Brief) -> None:
    pass


APP = App("test", workers=[add, brief])


async def test_a_job_is_waited_for_and_its_result_read(start: Start) -> None:
    async with start(APP) as relevo:
        job = relevo.job((await relevo.enqueue(Add(1, 2))).id)
        assert await job.state() is State.READY
        with pytest.raises(MisuseError, match="has no result: it is ready"):
            await job.result()
        with pytest.raises(TimeoutError, match="has not ended within 50ms: it is ready"):
            await job.wait("50ms")

        async with working(relevo):
            ended = await job.wait()

        assert ended.state is State.DONE
        assert await job.result() == {"sum": 3}
        assert await job.result(dict[str, int]) == {"sum": 3}
        with pytest.raises(MisuseError, match="does not fit its type"):
            await job.result(list[str])


async def test_a_job_that_is_not_there_or_not_kept_is_told(start: Start) -> None:
    async with start(APP) as relevo:
        with pytest.raises(NotFoundError, match="no job has the id"):
            await relevo.job(new_id()).state()
        receipt = await relevo.enqueue(Brief())
        with pytest.raises(MisuseError, match=r"takes an id, .* not Receipt: give its `\.id`"):
            relevo.job(receipt)  # pyright: ignore[reportArgumentType] - the mistake to be told
        waiting = asyncio.create_task(relevo.job(receipt.id).wait())
        await asyncio.sleep(0)  # its first question is on its way
        await relevo.job(receipt.id).state()
        await drain(relevo)
        with pytest.raises(NotFoundError, match=r"is gone: give its command a `keep=`|no job has"):
            await waiting


async def test_an_act_from_code_is_audited_under_a_name(start: Start) -> None:
    async with start(APP) as relevo:
        job = relevo.job((await relevo.enqueue(Add(-1, 2))).id)
        with pytest.raises(DefinitionError, match="who= is the name"):
            await job.cancel(who=" ")
        with pytest.raises(NotAllowed):
            await job.cancel(who=Person("eve", Role.VIEWER))
        assert await job.cancel(who="ana@shop.example", note="wrong sum")
        assert not await job.cancel(who="ana@shop.example")
        assert await job.retry(who="bots")

        await drain(relevo)
        assert await job.state() is State.DEAD
        with pytest.raises(MisuseError, match=r"it is dead \(ValueError: no negative numbers\)"):
            await job.result()

        again = await job.run_again(who="ana@shop.example")
        assert isinstance(again, JobHandle)
        assert await again.state() is State.READY
        lines, _ = await relevo.desk.audits(target=job.id)
        assert [(line.verb, line.who) for line in reversed(lines)] == [
            ("cancel", "ana@shop.example"),
            ("retry", "bots"),
            ("run again", "ana@shop.example"),
        ]


async def test_a_flow_is_waited_for_cancelled_and_retried(start: Start) -> None:
    async with start(APP) as relevo:
        flow = Flow("sums")
        one, two = flow.add(Add(1, 1), name="one"), flow.add(Add(-2, 2), name="two")
        flow.add(Add(3, 3), name="end", after=[one, two])
        started = await relevo.start(flow, key="monday")
        handle = relevo.flow("monday")
        assert (await handle.look()).id == started.id
        assert await relevo.flow(started.id).state() is State.READY
        with pytest.raises(TimeoutError, match=r"the flow \w+ has not ended within 50ms"):
            await handle.wait("50ms")

        async with working(relevo):
            ended = await handle.wait()
        assert ended.state is State.DEAD
        results = await handle.results()
        assert results["one"] == {"sum": 2}
        assert set(results.failed) == {"two", "end"}
        assert "ValueError: no negative numbers" in results.failed["two"]

        assert await handle.retry(who="ana") == 2
        assert await handle.cancel(who="ana") == 2
        assert await handle.state() is State.CANCELLED


async def test_a_run_asks_about_another_job(start: Start) -> None:
    told: list[Any] = []

    async def ask(order: Ask, ctx: Context) -> None:
        told.append(await ctx.job(order.job).result())
        told.append(ctx.job(order.job).retry(who="ask"))  # is never awaited

    async with start(App("test", workers=[add, ask])) as relevo:
        first = (await relevo.enqueue(Add(1, 2))).id
        await drain(relevo)
        asking = relevo.job((await relevo.enqueue(Ask(first))).id)
        await drain(relevo)

        assert told[0] == {"sum": 3}
        failure = (await asking.look()).failure
        assert failure is not None
        assert "job.retry(…) was not awaited" in failure.message


async def test_a_plain_worker_asks_about_another_job(start: Start) -> None:
    told: list[Any] = []

    def ask(order: Ask, ctx: PlainContext) -> None:
        job = ctx.job(order.job)
        told.append((job.wait("10s").state, job.result(), job.cancel(who="ask")))
        told.append(engine[0].job(order.job).state())  # is refused

    async with start(App("test", workers=[add, ask])) as relevo:
        engine = [relevo]
        first = (await relevo.enqueue(Add(1, 2))).id
        asking = relevo.job((await relevo.enqueue(Ask(first))).id)
        await drain(relevo)

        assert told == [(State.DONE, {"sum": 3}, False)]
        failure = (await asking.look()).failure
        assert failure is not None
        assert "write ctx.job(…).state(…), which needs no await there" in failure.message


@pytest.mark.parametrize("store_name", SQL_STORES)
async def test_an_act_inside_a_transaction_is_refused(start: Start) -> None:
    async def ask(order: Ask, ctx: Context) -> None:
        async with ctx.transaction():
            await ctx.job(order.job).cancel(who="ask")

    async with start(App("test", workers=[add, ask])) as relevo:
        asking = relevo.job((await relevo.enqueue(Ask((await relevo.enqueue(Add(1, 2))).id))).id)
        await drain(relevo)
        failure = (await asking.look()).failure
        assert failure is not None
        assert "cancel() inside a transaction is no part of it" in failure.message


@pytest.mark.xdist_group("redis")
async def test_a_job_is_found_that_comes_through_the_outbox(
    tmp_path: Path, clock: ManualClock
) -> None:
    with RedisServer() as server:
        database = f"sqlite:///{tmp_path / 'app.db'}"
        async with Relevo(server.url, database=database, apps=[APP], clock=clock) as relevo:
            async with relevo.transaction() as tx:
                receipt = await relevo.enqueue(Add(1, 2), tx=tx)
                started = await relevo.start(_one(), tx=tx)
            assert await relevo.job(receipt.id).state() is State.READY
            assert await relevo.flow(started.id).state() is State.READY
            async with working(relevo):
                await relevo.job(receipt.id).wait()
                await relevo.flow(started.id).wait()
            assert await relevo.job(receipt.id).result() == {"sum": 3}
            assert await relevo.flow(started.id).results() == {"one": {"sum": 4}}


def _one() -> Flow:
    flow = Flow("one")
    flow.add(Add(2, 2), name="one")
    return flow
