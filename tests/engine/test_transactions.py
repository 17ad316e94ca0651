"""Rows, events, new commands and the end of the job are one transaction."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from relevo import (
    App,
    Breaker,
    Cancelled,
    Command,
    Context,
    Dead,
    Event,
    Flow,
    Job,
    MisuseError,
    Poll,
    ProviderUnavailable,
    Relevo,
    Retry,
    Snooze,
    State,
    Verdict,
    constant,
)
from relevo.store import Store
from relevo.testing import ManualClock, drain, enqueued, until, working
from tests.conformance.fresh import SQL_STORES

Start = Callable[..., Relevo]


class Save(Command, queue="test:rows:save", backoff=constant("1s")):
    name: str


class Tell(Command, queue="test:rows:tell"):
    name: str


class Saved(Event, name="row.saved"):
    name: str


async def _tell(order: Tell) -> None:
    pass


# The outbox, for stores that are no database, has tests of its own.
pytestmark = pytest.mark.parametrize("store_name", SQL_STORES)


async def table(relevo: Relevo) -> None:
    async with relevo.transaction() as session:
        await session.execute(text("create table if not exists rows (name text primary key)"))
        await session.execute(text("delete from rows"))


async def rows(relevo: Relevo) -> list[str]:
    async with relevo.transaction() as session:
        return list((await session.execute(text("select name from rows order by name"))).scalars())


async def put(session: AsyncSession, name: str) -> None:
    await session.execute(text("insert into rows values (:name)"), {"name": name})


async def test_who_only_looks_waits_for_no_writer(start: Start) -> None:
    relevo = start(App("test", workers=[_tell]))
    await table(relevo)
    async with relevo.transaction() as session:
        await put(session, "a")
        async with asyncio.timeout(2), relevo.database.reading() as looking:
            seen = (await looking.execute(text("select count(*) from rows"))).scalar_one()
    assert seen == 0
    assert await rows(relevo) == ["a"]


async def test_a_rollback_leaves_neither_row_nor_job(start: Start) -> None:
    """F40: ghost 0."""
    relevo = start(App("test", workers=[_tell]))
    await table(relevo)

    with pytest.raises(ZeroDivisionError):
        async with relevo.transaction() as session:
            await put(session, "Ana")
            await relevo.enqueue(Tell("Ana"), tx=session)
            raise ZeroDivisionError

    assert await rows(relevo) == []
    assert await enqueued(relevo, Tell) == []


async def test_a_commit_brings_both_and_wakes_a_sleeping_worker(start: Start) -> None:
    relevo = start(App("test", workers=[_tell]))
    await table(relevo)
    async with working(relevo) as worker:
        async with relevo.transaction() as session:
            await put(session, "Ana")
            receipt = await relevo.enqueue(Tell("Ana"), tx=session)
        await until(lambda: worker.finished == 1, timeout="5s")

    [job] = await relevo.store.find([receipt.id])
    assert job is not None
    assert job.state is State.DONE
    assert await rows(relevo) == ["Ana"]


async def test_the_end_of_a_job_commits_with_its_rows(start: Start) -> None:
    heard: list[str] = []

    async def save(order: Save, ctx: Context) -> None:
        async with ctx.transaction() as session:
            await put(session, order.name)
            await ctx.enqueue(Tell(order.name))
            await ctx.publish(Saved(order.name))

    async def hear(fact: Saved, ctx: Context) -> None:
        heard.append(f"{fact.name} {ctx.thread}")

    relevo = start(App("test", workers=[save, _tell], listeners=[hear]))
    await table(relevo)
    receipt = await relevo.enqueue(Save("Ana"))
    await drain(relevo)

    [job] = await relevo.store.find([receipt.id])
    assert job is not None
    assert job.state is State.DONE
    assert await rows(relevo) == ["Ana"]
    assert heard == [f"Ana {receipt.id}"]
    assert await enqueued(relevo, Tell) == [Tell("Ana")]


async def test_an_error_inside_leaves_nothing_and_is_tried_again(start: Start) -> None:
    async def save(order: Save, ctx: Context) -> None:
        async with ctx.transaction() as session:
            await put(session, order.name)
            await ctx.enqueue(Tell(order.name))
            if ctx.attempt == 1:
                raise RuntimeError("not yet")

    relevo = start(App("test", workers=[save, _tell]))
    await table(relevo)
    await relevo.enqueue(Save("Ana"))
    await drain(relevo)
    assert (await rows(relevo), await enqueued(relevo, Tell)) == ([], [])

    await drain(relevo, skip_waits=True)
    assert (await rows(relevo), await enqueued(relevo, Tell)) == (["Ana"], [Tell("Ana")])


async def test_a_worker_that_lost_its_lease_cannot_commit(
    start: Start, store: Store, clock: ManualClock
) -> None:
    runs: list[int] = []

    async def save(order: Save, ctx: Context) -> None:
        runs.append(len(runs) + 1)
        if runs == [1]:
            clock.advance("1h")  # it lapses, and another worker takes it back
            await store.rescue()
        async with ctx.transaction() as session:
            await put(session, f"{order.name} {runs[-1]}")

    relevo = start(App("test", workers=[save]))
    await table(relevo)
    receipt = await relevo.enqueue(Save("Ana"))
    await drain(relevo)

    assert (await only(relevo, receipt.id)).state is State.DONE
    assert await rows(relevo) == ["Ana 2"]


async def test_nothing_more_is_ordered_or_called_after_the_transaction(start: Start) -> None:
    refused: list[str] = []

    async def save(order: Save, ctx: Context) -> None:
        async with ctx.transaction() as session:
            await put(session, order.name)
        with pytest.raises(MisuseError) as first:
            await ctx.once("call", lambda key: asyncio.sleep(0))
        with pytest.raises(MisuseError) as second:
            async with ctx.transaction():
                pass
        refused.extend([str(first.value), str(second.value)])

    relevo = start(App("test", workers=[save]))
    await table(relevo)
    receipt = await relevo.enqueue(Save("Ana"))
    await drain(relevo)

    assert (await only(relevo, receipt.id)).state is State.DONE
    assert all("after ctx.transaction()" in told for told in refused)
    assert len(refused) == 2


async def only(relevo: Relevo, id: str) -> Job:
    [job] = await relevo.store.find([id])
    assert job is not None
    return job


WAYS = ["inside", "behind"]


def saver(way: str, end: Callable[[Context], Any]) -> Callable[..., Any]:
    """A worker that ends with its transaction, or behind it, as `end` says."""

    async def save(order: Save, ctx: Context) -> Any:
        async with ctx.transaction() as session:
            await put(session, f"{order.name} {ctx.attempt}")
            await ctx.enqueue(Tell(order.name))
            if way == "inside":
                return end(ctx)
        return end(ctx)

    return save


@pytest.mark.parametrize("way", WAYS)
async def test_what_its_worker_returns_commits_with_it(start: Start, way: str) -> None:
    relevo = start(App("test", workers=[saver(way, lambda _: {"pages": 4}), _tell]))
    await table(relevo)
    receipt = await relevo.enqueue(Save("Ana"))
    await drain(relevo)

    job = await only(relevo, receipt.id)
    assert (job.state, job.result, job.failure) == (State.DONE, b'{"pages":4}', None)
    assert (await rows(relevo), await enqueued(relevo, Tell)) == (["Ana 1"], [Tell("Ana")])


@pytest.mark.parametrize("way", WAYS)
async def test_a_flows_parent_reads_what_a_child_returned(start: Start, way: str) -> None:
    class Sum(Command, queue="test:rows:sum"):
        pass

    found: list[Any] = []

    async def sum_up(order: Sum, ctx: Context) -> None:
        found.append(dict(await ctx.results()))

    relevo = start(App("test", workers=[saver(way, lambda _: {"pages": 4}), _tell, sum_up]))
    await table(relevo)
    flow = Flow("pages")
    flow.add(Sum(), after=[flow.add(Save("Ana"), name="ana"), flow.add(Save("Leo"), name="leo")])
    await relevo.start(flow)
    await drain(relevo)

    assert found == [{"ana": {"pages": 4}, "leo": {"pages": 4}}]


ENDS: dict[str, tuple[Callable[[], Any], State, str | None]] = {
    "retry": (lambda: Retry("not yet"), State.DONE, "Retry"),
    "snooze": (lambda: Snooze("1h", "not yet"), State.DONE, "Snooze"),
    "dead": (lambda: Dead("no such order"), State.DEAD, "Dead"),
    "cancelled": (lambda: Cancelled("not needed"), State.CANCELLED, "Cancelled"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ENDS)
async def test_every_ending_that_is_returned_commits_with_the_rows(
    start: Start, name: str, way: str
) -> None:
    make, state, failure = ENDS[name]
    runs: list[int] = []

    def end(ctx: Context) -> Any:
        runs.append(1)
        return make() if len(runs) == 1 else None

    relevo = start(App("test", workers=[saver(way, end), _tell]))
    await table(relevo)
    receipt = await relevo.enqueue(Save("Ana"))
    await drain(relevo)
    assert await rows(relevo) == ["Ana 1"]
    job = await only(relevo, receipt.id)
    assert job.failure is not None
    assert job.failure.type == failure
    if state is State.DONE:
        assert job.state is State.SCHEDULED
        async with relevo.transaction() as session:
            await session.execute(text("delete from rows"))
        await drain(relevo, skip_waits=True)

    assert (await only(relevo, receipt.id)).state is state
    # What the first run ordered is ordered once, though the run was repeated; a turn is another.
    assert len(await enqueued(relevo, Tell)) == (2 if name == "snooze" else 1)


async def test_a_retry_after_the_last_attempt_is_dead_with_its_rows(start: Start) -> None:
    class Once(Command, queue="test:rows:once", attempts=1):
        pass

    async def save(order: Once, ctx: Context) -> Retry:
        async with ctx.transaction() as session:
            await put(session, "Ana")
        return Retry("never")

    relevo = start(App("test", workers=[save]))
    await table(relevo)
    receipt = await relevo.enqueue(Once())
    await drain(relevo)

    assert ((await only(relevo, receipt.id)).state, await rows(relevo)) == (State.DEAD, ["Ana"])


async def test_an_error_behind_it_leaves_nothing_and_is_tried_again(start: Start) -> None:
    def end(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise RuntimeError("after the block")

    relevo = start(App("test", workers=[saver("behind", end), _tell]))
    await table(relevo)
    receipt = await relevo.enqueue(Save("Ana"))
    await drain(relevo)
    assert (await rows(relevo), await enqueued(relevo, Tell)) == ([], [])
    assert (await only(relevo, receipt.id)).state is State.SCHEDULED

    await drain(relevo, skip_waits=True)
    job = await only(relevo, receipt.id)
    assert [run.failure.message for run in job.history if run.failure] == ["after the block"]
    assert (job.state, await rows(relevo)) == (State.DONE, ["Ana 2"])
    assert await enqueued(relevo, Tell) == [Tell("Ana")]


async def test_a_breaker_is_told_when_the_transaction_is_over(start: Start) -> None:
    """Where there is one writer, it would wait for the transaction, and that for it."""

    class Guarded(
        Command, queue="test:rows:guarded", backoff=constant("1ms"), breaker=Breaker("rows")
    ):
        pass

    async def save(order: Guarded, ctx: Context) -> int:
        if ctx.attempt == 1:
            raise ProviderUnavailable("down")
        async with ctx.transaction() as session:
            await put(session, f"Ana {ctx.attempt}")
        if ctx.attempt == 2:
            raise ProviderUnavailable("down behind it")
        return ctx.attempt

    relevo = start(App("test", workers=[save]))
    await table(relevo)
    receipt = await relevo.enqueue(Guarded())
    await drain(relevo, skip_waits=True, timeout="10s")

    job = await only(relevo, receipt.id)
    assert (job.state, job.result, await rows(relevo)) == (State.DONE, b"3", ["Ana 3"])


async def test_a_result_that_cannot_be_kept_saves_nothing(start: Start) -> None:
    relevo = start(App("test", workers=[saver("inside", lambda _: b"bytes"), _tell]))
    await table(relevo)
    receipt = await relevo.enqueue(Save("Ana"))
    await drain(relevo)

    job = await only(relevo, receipt.id)
    assert (job.state, job.result, await rows(relevo)) == (State.DEAD, None, [])
    assert job.failure is not None
    assert "a result cannot be kept" in job.failure.message


async def test_a_time_limit_behind_it_leaves_nothing_and_locks_nothing(start: Start) -> None:
    class Slow(Command, queue="test:rows:slow", attempts=1, timeout="300ms"):
        pass

    async def slow(order: Slow, ctx: Context) -> None:
        async with ctx.transaction() as session:
            await put(session, "Ana")
        await asyncio.sleep(60)

    relevo = start(App("test", workers=[slow]))
    await table(relevo)
    receipt = await relevo.enqueue(Slow())
    await drain(relevo)

    assert ((await only(relevo, receipt.id)).state, await rows(relevo)) == (State.DEAD, [])


async def test_what_the_database_refuses_is_raised_at_the_end_of_the_block(start: Start) -> None:
    class Row(DeclarativeBase):
        pass

    class Name(Row):
        __tablename__ = "rows"
        name: Mapped[str] = mapped_column(primary_key=True)

    async def save(order: Save, ctx: Context) -> str:
        try:
            async with ctx.transaction() as session:
                session.add(Name(name=order.name))
        except IntegrityError:
            return "it is there"
        return "new"

    relevo = start(App("test", workers=[save]))
    await table(relevo)
    first = await relevo.enqueue(Save("Ana"))
    await drain(relevo)
    second = await relevo.enqueue(Save("Ana"))
    await drain(relevo)

    results = [(await only(relevo, each.id)).result for each in (first, second)]
    assert results == [b'"new"', b'"it is there"']


async def test_a_turn_ends_with_its_transaction_or_not_at_all(start: Start) -> None:
    app, turns = App("test"), list[Any]()

    @app.poller("hotel", every="10s", jitter="0ms", backoff=constant("1s"))
    async def pull(poll: Poll, ctx: Context) -> None:
        turns.append(poll.cursor)
        async with ctx.transaction() as session:
            await put(session, f"turn {len(turns)}")
        poll.cursor = len(turns)
        if len(turns) == 2:
            raise ConnectionError("behind it")

    relevo = start(app)
    await table(relevo)
    await drain(relevo, skip_waits=True, until=lambda: len(turns) >= 4)

    assert turns[:4] == [None, 1, 1, 3]
    assert (await rows(relevo))[:2] == ["turn 1", "turn 3"]


def _flow(name: str) -> Flow:
    flow = Flow("tellings")
    flow.add(Tell(name))
    return flow


async def test_a_flow_with_a_key_starts_in_a_transaction(start: Start) -> None:
    """Where there is one writer, its key was written beside the transaction, and waited for it."""
    relevo = start(App("test", workers=[_tell]))
    await table(relevo)

    with pytest.raises(ZeroDivisionError):
        async with relevo.transaction() as session:
            await put(session, "Ana")
            await relevo.start(_flow("Ana"), key="Ana", tx=session)
            raise ZeroDivisionError
    assert await enqueued(relevo, Tell) == []

    async with relevo.transaction() as session:
        await put(session, "Ana")
        first = await relevo.start(_flow("Ana"), key="Ana", tx=session)
        again = await relevo.start(_flow("Ana"), key="Ana", tx=session)
    later = await relevo.start(_flow("Ana"), key="Ana")

    assert [one.verdict for one in (first, again, later)] == [
        Verdict.NEW,
        Verdict.IN_PROGRESS,
        Verdict.IN_PROGRESS,
    ]
    assert first.id == again.id == later.id
    await drain(relevo)
    assert await enqueued(relevo, Tell) == [Tell("Ana")]
    assert await rows(relevo) == ["Ana"]


async def test_a_worker_starts_a_flow_in_its_transaction(start: Start) -> None:
    async def save(order: Save, ctx: Context) -> None:
        async with ctx.transaction() as session:
            await put(session, order.name)
            await relevo.start(_flow(order.name), key=order.name)

    relevo = start(App("test", workers=[save, _tell]))
    await table(relevo)
    await relevo.enqueue(Save("Ana"))
    await drain(relevo)

    assert await enqueued(relevo, Tell) == [Tell("Ana")]
    assert await rows(relevo) == ["Ana"]


async def test_fifty_transactions_at_once_all_commit(start: Start) -> None:
    async def save(order: Save, ctx: Context) -> None:
        async with ctx.transaction() as session:
            await put(session, order.name)
            await ctx.enqueue(Tell(order.name))

    relevo = start(App("test", workers=[save, _tell]))
    await table(relevo)
    await relevo.enqueue_many(Save(f"{n:03}") for n in range(50))
    await drain(relevo, concurrency=20)

    assert await rows(relevo) == [f"{n:03}" for n in range(50)]
    assert len(await enqueued(relevo, Tell)) == 50


async def test_a_foreign_object_is_no_transaction(start: Start) -> None:
    relevo = start(App("test", workers=[_tell]))

    with pytest.raises(MisuseError, match="pass a SQLAlchemy AsyncSession"):
        await relevo.enqueue(Tell("Ana"), tx=object())
    connection = sqlite3.connect(":memory:", isolation_level=None)
    with pytest.raises(MisuseError, match="no open transaction"):
        await relevo.enqueue(Tell("Ana"), tx=connection)
    connection.close()


async def test_once_inside_a_transaction_is_refused(start: Start) -> None:
    refused: list[str] = []

    async def save(order: Save, ctx: Context) -> None:
        async with ctx.transaction():
            with pytest.raises(MisuseError) as raised:
                await ctx.once("call", lambda key: asyncio.sleep(0))
        refused.append(str(raised.value))

    relevo = start(App("test", workers=[save]))
    await relevo.enqueue(Save("Ana"))
    await drain(relevo)

    assert "Call once() first" in refused[0]


@pytest.mark.parametrize("verb", ["enqueue", "enqueue_many", "publish", "start"])
async def test_nothing_is_ordered_after_the_transaction_that_ended_the_job(
    start: Start, verb: str
) -> None:
    """Killed right after its commit, the order would be lost."""
    app, refused = App("test"), list[str]()

    @app.worker
    async def work(order: Save, ctx: Context) -> None:
        async with ctx.transaction():
            pass
        given: dict[str, Any] = {
            "enqueue_many": [order],
            "start": _flow("late"),
            "publish": Saved("late"),
        }
        for face in (ctx, relevo):
            with pytest.raises(MisuseError, match=r"after ctx\.transaction") as caught:
                await getattr(face, verb)(given.get(verb, order))
            refused.append(str(caught.value))
        with pytest.raises(MisuseError, match=r"after ctx\.transaction"):
            async with relevo.transaction():
                pass

    relevo = start(app)
    await relevo.enqueue(Save("one"))
    await drain(relevo)
    assert len(refused) == 2
