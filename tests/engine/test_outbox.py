"""Redis beside a database: the letter is the truth, Redis the fast lane."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import event, text

from relevo import (
    App,
    Cancelled,
    Command,
    Context,
    Dead,
    Delivery,
    Event,
    Flow,
    Intake,
    QueueClosed,
    Relevo,
    Retry,
    Snooze,
    State,
    StoreUnavailable,
    Verdict,
    constant,
    sources,
)
from relevo.clock import milliseconds
from relevo.desk import Person, Role
from relevo.ids import new_id
from relevo.job import Ending, NewJob, Receipt
from relevo.relay import Relayed
from relevo.store import Arrival, By, Filter, Kept, Letterbox, QueueMode, Want
from relevo.stored import read_stored
from relevo.testing import ManualClock, drain, enqueued, until, working
from tests.engine.test_canary import mentions
from tests.servers.redis import RedisServer

ANN = Person("ann", Role.ADMIN)

pytestmark = pytest.mark.xdist_group("redis")

Start = Callable[..., Relevo]


class Save(
    Command,
    queue="test:rows:save",
    attempts=5,
    backoff=constant("50ms"),
    key="{name}",
    unique="unfinished",
):
    name: str


class Ping(Command, queue="test:rows:ping", keep="0s"):
    pass


@pytest.fixture
def server() -> AsyncGenerator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture
async def start(
    server: RedisServer, tmp_path: Path, clock: ManualClock
) -> AsyncGenerator[Callable[..., Relevo]]:
    async with AsyncExitStack() as stack:

        async def make(*apps: App) -> Relevo:
            database = f"sqlite:///{tmp_path / 'app.db'}"
            return await stack.enter_async_context(
                Relevo(server.url, database=database, apps=apps, clock=clock)
            )

        yield make


class Saver:
    """Saves rows in its own transaction, and counts what it was asked."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()

    def app(self) -> App:
        async def save(order: Save, ctx: Context) -> None:
            self.runs[order.name] += 1
            async with ctx.transaction() as session:
                await session.execute(text("insert into rows values (:n)"), {"n": order.name})

        return App("test", workers=[save])


async def table(relevo: Relevo) -> None:
    async with relevo.transaction() as session:
        await session.execute(text("create table if not exists rows (name text)"))


async def rows(relevo: Relevo) -> list[str]:
    async with relevo.transaction() as session:
        return list((await session.execute(text("select name from rows order by name"))).scalars())


async def test_a_rollback_leaves_no_letter(start: Start) -> None:
    """F40 with Redis: ghost 0."""
    relevo = await start(Saver().app())
    with pytest.raises(ZeroDivisionError):
        async with relevo.transaction() as session:
            await relevo.enqueue(Save("Ana"), tx=session)
            raise ZeroDivisionError

    await drain(relevo)
    assert await enqueued(relevo, Save) == []


async def test_a_commit_is_carried_and_the_job_ends_with_its_rows(start: Start) -> None:
    saver = Saver()
    relevo = await start(saver.app())
    await table(relevo)
    async with working(relevo):
        async with relevo.transaction() as session:
            receipt = await relevo.enqueue(Save("Ana"), tx=session)
        await until(lambda: saver.runs["Ana"] == 1)
        await until(lambda: _is_done(relevo, receipt.id))

    assert await rows(relevo) == ["Ana"]
    assert await relevo.store.ledger.closed([receipt.id]) == [True]


async def test_a_job_whose_insert_was_not_heard_of_runs_once(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has run, and would leave no trace, before the outbox carries what nobody is sure of."""
    runs: list[str] = []

    async def ping(order: Ping, ctx: Context) -> None:
        runs.append(ctx.id)

    relevo = await start(App("test", workers=[ping]))
    insert = relevo.store.fast.insert

    async def insert_unheard(jobs: Sequence[NewJob]) -> list[Receipt]:
        await insert(jobs)
        await until(lambda: len(runs) == 1)
        raise StoreUnavailable("the answer was lost")

    async with working(relevo):
        with monkeypatch.context() as patch:
            patch.setattr(relevo.store.fast, "insert", insert_unheard)
            receipt = await relevo.enqueue(Ping())
        await until(lambda: _is_carried(relevo, receipt.id))
        await until(lambda: _is_done(relevo, receipt.id))
    await drain(relevo)

    assert runs == [receipt.id]


async def _is_carried(relevo: Relevo, id: str) -> bool:
    return id not in {letter.job.id for letter in await relevo.store.ledger.letters(carried=False)}


async def test_a_flow_with_a_key_starts_in_a_transaction(start: Start) -> None:
    relevo = await start(Saver().app())
    await table(relevo)
    flow = Flow("savings")
    flow.add(Save("Ana"))
    with pytest.raises(ZeroDivisionError):
        async with relevo.transaction() as session:
            await relevo.start(flow, key="Ana", tx=session)
            raise ZeroDivisionError
    async with relevo.transaction() as session:
        started = await relevo.start(flow, key="Ana", tx=session)

    async with working(relevo):
        await until(lambda: _is_done(relevo, started.jobs["Save"]))
    assert await rows(relevo) == ["Ana"]


async def _is_done(relevo: Relevo, id: str) -> bool:
    [job] = await relevo.store.find([id])
    return job is not None and job.state is State.DONE


async def test_a_redis_that_comes_back_empty_is_filled_again(
    start: Start, server: RedisServer
) -> None:
    """FLUSHALL in the middle of a run: every letter ends once, none is lost, none runs twice."""
    saver = Saver()
    relevo = await start(saver.app())
    await table(relevo)
    names = [f"{n:03}" for n in range(300)]
    async with working(relevo, concurrency=5, lease="1s"):
        async with relevo.transaction() as session:
            for name in names:
                await relevo.enqueue(Save(name), tx=session)
        await until(lambda: len(saver.runs) >= 100)
        server.command("FLUSHALL")
        relay = relevo.store
        await until(lambda: _refilled(relay), timeout="20s")
        await until(lambda: _all(relevo, names), timeout="40s")

    assert await rows(relevo) == names


async def _refilled(relay: object) -> bool:
    return await relay.refill() == 0  # pyright: ignore[reportAttributeAccessIssue] - it is Relayed


async def _all(relevo: Relevo, names: list[str]) -> bool:
    return await rows(relevo) == names


async def test_a_delivery_names_the_job_that_it_joined(start: Start) -> None:
    app = App("test")

    class Sync(Command, queue="test:rows:sync", key="{sub}", unique="unfinished"):
        sub: str
        state: str

    @app.worker
    async def sync(order: Sync) -> None: ...

    @app.webhook("/in", source=sources.github("a secret of tests"), key=lambda d: d.json["id"])
    async def came(delivery: Delivery, ctx: Intake) -> None:
        await ctx.enqueue(Sync("s1", delivery.json["id"]), delay="1h")

    relevo = await start(app)

    async def is_carried() -> bool:
        return not await relevo.store.ledger.letters(carried=False, limit=1)

    kept: list[str] = []
    for id in ("evt_1", "evt_2"):
        call = Delivery(
            path="/in", body=msgspec.json.encode({"id": id}), received_at=relevo.clock.now()
        )
        kept.append((await relevo.receiver.take(relevo.receiver.doors["/in"], call)).kept.id)
        await until(is_carried)  # else the second may be carried before the first
    await drain(relevo, until=lambda: relevo.telemetry.counts["joined"] == 1)
    first, second = [await relevo.desk.delivery(id) for id in kept]

    [job] = first.jobs
    assert first.joined == ()
    assert second.jobs == second.joined == (job,)
    assert [line.cause for line in (await relevo.desk.job(job)).joins] == [second.id]
    story = await relevo.desk.trace("evt_2")
    assert [each.joined for each in story.deliveries] == [(job,)]
    assert [each.id for each in story.jobs] == [job]


async def test_while_redis_is_away_producers_go_on(start: Start, server: RedisServer) -> None:
    """N17: what is enqueued meanwhile waits in the outbox."""
    saver = Saver()
    relevo = await start(saver.app())
    await table(relevo)
    server.kill()
    receipt = await relevo.enqueue(Save("Ana"))
    async with relevo.transaction() as session:
        await relevo.enqueue(Save("Eva"), tx=session)
    assert receipt.verdict is Verdict.NEW

    server.start()
    async with working(relevo):
        await until(lambda: _all(relevo, ["Ana", "Eva"]), timeout="30s")

    assert saver.runs == {"Ana": 1, "Eva": 1}


async def test_a_job_whose_end_only_redis_missed_does_not_run_again(start: Start) -> None:
    """Killed between the commit and Redis: the claim looks at the letter first."""
    saver = Saver()
    relevo = await start(saver.app())
    await table(relevo)
    async with relevo.transaction() as session:
        receipt = await relevo.enqueue(Save("Ana"), tx=session)
    await relevo.store.carry()
    await relevo.store.ledger.close_letters([receipt.id])

    await drain(relevo)

    assert saver.runs == {}
    assert await _is_done(relevo, receipt.id)


async def test_a_letter_whose_key_is_taken_is_closed(start: Start) -> None:
    relevo = await start(Saver().app())
    await table(relevo)
    first = await relevo.enqueue(Save("Ana"))
    async with relevo.transaction() as session:
        twin = await relevo.enqueue(Save("Ana"), tx=session)
    await relevo.store.carry()

    assert await relevo.store.ledger.closed([first.id, twin.id]) == [False, True]
    assert await relevo.store.count(Filter(queue="test:rows:save")) == 1


async def test_a_delivery_and_its_letter_are_one(start: Start, server: RedisServer) -> None:
    """Accepted while Redis is down, carried when it is back, answered alike ever after."""
    saver = Saver()
    relevo = await start(saver.app())
    await table(relevo)
    server.kill()
    payload = b'{"name":"Ana"}'
    new = NewJob(id=new_id(), queue="test:rows:save", kind="Save", payload=payload)
    came = Kept(id=new_id(), endpoint="test:/hook", key="k", answer=b"first")
    answers = await relevo.store.receive([Arrival(came, (new,))])
    assert [answer.verdict for answer in answers] == [Verdict.NEW]

    server.start()
    async with working(relevo):
        await until(lambda: _is_done(relevo, new.id), timeout="30s")
        again = Kept(id=new_id(), endpoint="test:/hook", key="k", answer=b"second")
        [answer] = await relevo.store.receive(
            [Arrival(again, (msgspec.structs.replace(new, id=new_id()),))]
        )
        await relevo.store.carry()

    assert (answer.verdict, answer.kept.answer) == (Verdict.DONE, b"first")
    assert saver.runs == {"Ana": 1}
    [kept] = await relevo.store.delivered("test:/hook", ["k"])
    assert (kept.id, kept.jobs, kept.repeats) == (came.id, (new.id,), 1)
    assert (await relevo.store.delivery([came.id]))[0].id == came.id
    assert [one.id for one in (await relevo.store.deliveries(Letterbox()))[0]] == [came.id]


async def test_effects_outlive_redis(start: Start, server: RedisServer) -> None:
    calls: list[str] = []

    async def save(order: Save, ctx: Context) -> None:
        async def call(key: str) -> str:
            calls.append(key)
            return "done"

        await ctx.once("call", call)
        if len(calls) == 1 and ctx.attempt == 1 and not lost:
            lost.append(True)
            server.command("FLUSHALL")
            raise RuntimeError("the process dies here")

    lost: list[bool] = []
    relevo = await start(App("test", workers=[save]))
    async with relevo.transaction() as session:
        job = await relevo.enqueue(Save("Ana"), tx=session)
    async with working(relevo, lease="1s"):
        await until(lambda: bool(lost))
        await until(lambda: _refilled(relevo.store), timeout="20s")
        await until(lambda: _is_done(relevo, job.id), timeout="20s")

    assert len(calls) == 1


ME = By(who="ana")


async def test_a_transaction_that_fails_to_commit_ends_nothing(start: Start) -> None:
    """The settle was written, the commit refused: the job runs again, and its row is there once."""
    runs: list[int] = []

    async def save(order: Save, ctx: Context) -> None:
        runs.append(ctx.attempt)
        async with ctx.transaction() as session:
            await session.execute(text("insert into rows values (:n)"), {"n": order.name})
            if ctx.attempt == 1:
                await session.execute(text("insert into children values ('nobody')"))

    relevo = await start(App("test", workers=[save]))
    await table(relevo)
    async with relevo.transaction() as session:
        await session.execute(text("create table people (name text primary key)"))
        await session.execute(
            text(
                "create table children (parent text references people (name) "
                "deferrable initially deferred)"
            )
        )
        receipt = await relevo.enqueue(Save("Ana"), tx=session)
    async with working(relevo):
        await until(lambda: len(runs) == 2)
        await until(lambda: _is_done(relevo, receipt.id))

    assert await rows(relevo) == ["Ana"]


ENDS: dict[str, tuple[Any, State, list[bool]]] = {
    "value": ({"pages": 4}, State.DONE, [True]),
    "dead": (Dead("no such order"), State.DEAD, [False]),
    "cancelled": (Cancelled("not needed"), State.CANCELLED, [False]),
    "snooze": (Snooze("1h"), State.SCHEDULED, [False]),
}


@pytest.mark.parametrize("name", ENDS)
async def test_what_its_worker_returns_ends_the_job_with_its_rows(start: Start, name: str) -> None:
    value, state, closed = ENDS[name]

    async def save(order: Save, ctx: Context) -> Any:
        async with ctx.transaction() as session:
            await session.execute(text("insert into rows values (:n)"), {"n": order.name})
        return value

    relevo = await start(App("test", workers=[save]))
    await table(relevo)
    async with relevo.transaction() as session:
        receipt = await relevo.enqueue(Save("Ana"), tx=session)

    async def has_ended() -> bool:
        [job] = await relevo.store.find([receipt.id])
        return job is not None and job.state is state

    async with working(relevo):
        await until(has_ended)

    [job] = await relevo.store.find([receipt.id])
    assert job is not None
    assert job.result == (b'{"pages":4}' if name == "value" else None)
    assert await rows(relevo) == ["Ana"]
    assert await relevo.store.ledger.closed([receipt.id]) == closed
    left = [letter.job.id for letter in await relevo.store.ledger.letters(carried=True)]
    assert left == ([receipt.id] if name in ("dead", "snooze") else [])


async def test_only_what_has_committed_is_told_to_redis(start: Start) -> None:
    """The relay may be at work between the settle and the commit."""
    told: list[object] = []

    async def save(order: Save, ctx: Context) -> None:
        async with ctx.transaction() as session:
            event.listen(session.sync_session, "before_commit", lambda _: told.append(pending()))

    relevo = await start(App("test", workers=[save]))

    def pending() -> list[object]:
        return list(relevo.store._ended_within)

    async with relevo.transaction() as session:
        receipt = await relevo.enqueue(Save("Ana"), tx=session)
    async with working(relevo):
        await until(lambda: _is_done(relevo, receipt.id))

    assert told == [[]]


async def test_a_cancelled_letter_runs_when_it_is_retried(start: Start) -> None:
    saver = Saver()
    relevo = await start(saver.app())
    await table(relevo)
    async with relevo.transaction() as session:
        receipt = await relevo.enqueue(Save("Ana"), tx=session)
    await relevo.store.carry()
    assert await relevo.store.cancel([receipt.id], ME) == [True]
    assert await relevo.store.refill() == 0
    assert await relevo.store.ledger.letters(carried=True) == []  # or, once pruned, it came back
    assert await relevo.store.retry([receipt.id], ME) == [True]

    await drain(relevo)

    assert await rows(relevo) == ["Ana"]


async def test_a_dead_letter_that_was_pruned_does_not_come_back(
    start: Start, clock: ManualClock
) -> None:
    runs: list[str] = []

    async def save(order: Save) -> Dead:
        runs.append(order.name)
        return Dead("it will not heal")

    relevo = await start(App("test", workers=[save]))
    async with relevo.transaction() as session:
        await relevo.enqueue(Save("Ana"), tx=session)
    await relevo.store.carry()
    await drain(relevo)
    assert await relevo.store.refill() == 0

    clock.advance("91d")
    assert await relevo.store.prune(dead_keep=milliseconds("90d")) > 0
    assert await relevo.store.refill() == 0
    await drain(relevo)

    assert runs == ["Ana"]


async def test_a_draining_queue_takes_no_letter(start: Start) -> None:
    """And what was promised before it began to drain waits for it, without a cry of loss."""
    saver = Saver()
    relevo = await start(saver.app())
    await table(relevo)
    async with relevo.transaction() as session:
        early = await relevo.enqueue(Save("Ana"), tx=session)
        await relevo.store.set_mode(["test:rows:save"], QueueMode.DRAINING, ME)
    with pytest.raises(QueueClosed):
        async with relevo.transaction() as session:
            await relevo.enqueue(Save("Eva"), tx=session)
    assert await relevo.store.carry() == 0
    assert await relevo.store.find([early.id]) == [None]

    await relevo.store.set_mode(["test:rows:save"], QueueMode.OPEN, ME)
    async with relevo.transaction() as session:
        await relevo.enqueue(Save("Ida"), tx=session)
    await relevo.store.carry()
    await drain(relevo)

    assert await rows(relevo) == ["Ana", "Ida"]


async def test_an_event_travels_through_the_outbox_and_is_given_to_all_once(start: Start) -> None:
    """A rolled back one to none; one subscriber whose queue is draining gets it when it opens."""

    class Saved(Event, name="row.saved"):
        name: str

    heard: list[str] = []

    async def count(fact: Saved) -> None:
        heard.append(f"count {fact.name}")

    async def tell(fact: Saved) -> None:
        heard.append(f"tell {fact.name}")

    relevo = await start(App("test", listeners=[count, tell]))
    await drain(relevo)
    await relevo.store.set_mode(["test:listeners:tell"], QueueMode.DRAINING, ME)
    with pytest.raises(RuntimeError):
        async with relevo.transaction() as session:
            await relevo.publish(Saved("Eva"), tx=session)
            raise RuntimeError
    async with relevo.transaction() as session:
        published = await relevo.publish(Saved("Ana"), tx=session)
    [letter] = await relevo.store.ledger.letters(carried=False)
    assert letter.job.id == published.id
    await relevo.store.carry()
    await drain(relevo)
    assert heard == ["count Ana"]

    await relevo.store.set_mode(["test:listeners:tell"], QueueMode.OPEN, ME)
    await relevo.store.retry([published.id], ME)
    await drain(relevo)
    assert heard == ["count Ana", "tell Ana"]


async def test_what_redis_has_not_heard_of_it_is_told_again(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    relevo = await start(Saver().app())
    settle = relevo.store.fast.settle
    told: list[int] = []

    async def away_first(endings: Sequence[Ending]) -> list[bool]:
        told.append(len(endings))
        if len(told) == 1:
            raise StoreUnavailable("away for a moment")
        return await settle(endings)

    await table(relevo)
    monkeypatch.setattr(relevo.store.fast, "settle", away_first)
    async with relevo.transaction() as session:
        receipt = await relevo.enqueue(Save("Ana"), tx=session)
    async with working(relevo):
        await until(lambda: _is_done(relevo, receipt.id))

    assert told == [1, 1]


async def test_without_the_database_nothing_is_claimed_and_nothing_spent(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    relevo = await start(Saver().app())
    receipt = await relevo.enqueue(Save("Ana"))

    async def away(ids: Sequence[str]) -> list[bool]:
        raise StoreUnavailable("the database is away")

    monkeypatch.setattr(relevo.store.ledger, "closed", away)
    with pytest.raises(StoreUnavailable):
        await relevo.store.claim(relevo.wants(), 1, "me", 60_000)

    [job] = await relevo.store.find([receipt.id])
    assert (job.state, job.attempt) == (State.READY, 0)


async def test_a_person_is_erased_from_both(start: Start) -> None:
    """C23: letters, effects and deliveries in the database, jobs in Redis, and none comes back."""

    async def refuse(order: Save, ctx: Context) -> Dead:
        await ctx.once("greet", lambda key: _told(order.name))
        return Dead(f"{order.name} said no")

    relevo = await start(App("test", workers=[refuse]))
    async with relevo.transaction() as session:
        receipt = await relevo.enqueue(Save("canary-eva"), tx=session)
    await relevo.store.carry()
    await drain(relevo)
    assert (await relevo.store.find([receipt.id]))[0].state is State.DEAD
    assert [one.job.id for one in await relevo.store.ledger.letters(carried=True)] == [receipt.id]

    done = await relevo.desk.forget(ANN, key="canary-eva", note="she asked for it")

    assert (done.jobs, done.left) == ({"test:rows:save": 1}, 0)
    assert await relevo.store.refill() == await relevo.store.carry() == 0
    assert await relevo.store.find([receipt.id]) == [None]
    for store in (relevo.store.fast, relevo.store.ledger):
        assert await mentions(store, "canary-eva") == 0
    [row] = (await relevo.store.audits(target=done.act))[0]
    assert (row.verb, row.note) == ("forget", "she asked for it")


async def _told(name: str) -> dict[str, str]:
    return {"told": name}


async def test_what_waits_to_be_carried_is_not_erased(start: Start) -> None:
    """C23: only the database knows of it, and it has yet to run."""
    saver = Saver()
    relevo = await start(saver.app())
    await table(relevo)
    kept = Kept(id=new_id(), endpoint="test:/hooks", key="evt", body=b"{}")
    kept = msgspec.structs.replace(kept, thread=kept.id)
    order = NewJob(
        id=new_id(), queue="test:rows:save", kind="Save", payload=b'{"name":"Eva"}', thread=kept.id
    )
    relevo._relaying.cancel()  # pyright: ignore[reportPrivateUsage] - nothing is carried yet
    await relevo.store.receive([Arrival(kept, (order,))])
    await relevo.store.set_mode([order.queue], QueueMode.DRAINING, By("ann"))

    done = await relevo.desk.forget(ANN, key="evt", note="she asked for it")

    assert (done.deliveries, done.jobs, done.left) == (0, {}, 1)
    assert done.left_alone[0].jobs == (order.id,)
    assert "letter" in done.left_alone[0].why
    assert await relevo.store.erase([order.id], [], By("ann"), act="a") == (0, 0)
    await relevo.store.set_mode([order.queue], QueueMode.OPEN, By("ann"))
    await relevo.store.carry()
    await drain(relevo, lease="1s")  # nothing tells Redis of the end: the rescue finds it
    assert saver.runs["Eva"] == 1
    done = await relevo.desk.forget(ANN, key="evt", note="she asked for it")
    assert (done.deliveries, done.jobs, done.left) == (1, {"test:rows:save": 1}, 0)
    assert await relevo.store.ledger.closed([order.id]) == [True]


class Sync(Command, queue="test:rows:sync", key="{name}", unique="latest"):
    name: str
    state: str


async def test_of_those_posted_with_a_key_the_last_is_the_newest(start: Start) -> None:
    """Whatever their ids say, in a transaction or not; the order is that of the database."""
    seen: list[str] = []

    async def sync(order: Sync) -> None:
        seen.append(order.state)

    relevo = await start(App("test", workers=[sync]))
    relevo._relaying.cancel()  # pyright: ignore[reportPrivateUsage] - all are carried at once
    first, second, third = sorted((new_id() for _ in range(3)), reverse=True)
    await relevo.enqueue_as(first, Sync("sub", "active"))
    await relevo.enqueue_as(second, Sync("sub", "past_due"))
    async with relevo.transaction() as session:
        await relevo.enqueue(Sync("sub", "unpaid"), tx=session)
    await relevo.enqueue_as(third, Sync("sub", "canceled"))
    assert await relevo.store.carry() == 4
    await drain(relevo)

    assert seen == ["canceled"]


class Post(Command, queue="test:rows:post", attempts=9):
    how: str


async def test_what_a_repeated_run_posts_again_is_known(start: Start, clock: ManualClock) -> None:
    """Posted in a transaction or given straight to Redis before; run, pruned, forgotten there."""
    runs: Counter[str] = Counter()
    told: list[Verdict] = []

    async def ping(order: Ping) -> None:
        runs["ping"] += 1

    async def post(order: Post, ctx: Context) -> object:
        runs["post"] += 1
        if order.how == "direct" and runs["post"] == 1:
            told.append((await ctx.enqueue(Ping())).verdict)
        else:
            async with relevo.transaction() as session:
                told.append((await relevo.enqueue(Ping(), tx=session)).verdict)
        return Retry("again", timedelta(hours=1)) if runs["post"] < 4 else None

    relevo = await start(App("test", workers=[ping, post]))
    for how in ("posted", "direct"):
        runs.clear()
        told.clear()
        await relevo.enqueue(Post(how))
        for _ in range(4):
            await relevo.store.carry()
            await drain(relevo)
            await relevo.store.carry()
            await drain(relevo)
            await relevo.store.refill()
            await relevo.store.prune(dead_keep=90 * 86_400_000)
            clock.advance("2h")
        assert runs == {"post": 4, "ping": 1}
        assert told[0] is Verdict.NEW
        assert told[2:] == [Verdict.DONE, Verdict.DONE]
        assert await relevo.store.refill() == 0
        assert await relevo.store.ledger.letters(carried=True) == []
        assert await relevo.store.ledger.letters(carried=False) == []


class Greet(Command, queue="test:people:greet"):
    name: str


class Greet2(Command, queue="test:people:greet", name="Greet"):
    name: str
    email: str


async def test_f53_what_is_not_carried_yet_is_read_before_a_deploy(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def old(order: Greet) -> None: ...

    async def new(order: Greet2) -> None: ...

    relevo = await start(App("test", workers=[old]))
    carried = await relevo.enqueue(Greet("Eva"))
    monkeypatch.setattr(Relayed, "carry", _carry_nothing)
    async with relevo.transaction() as tx:
        posted = await relevo.enqueue_many([Greet("García"), Greet("Ann")], tx=tx)

    after = await start(App("test", workers=[new]))
    [told] = await read_stored(after.store, after.bindings)
    assert told.states == {"outbox": 2, "ready": 1}
    assert (told.waiting, told.unreadable, told.field) == (3, 3, "email")
    assert told.jobs == [carried.id, *(receipt.id for receipt in posted)]
    assert (await read_stored(relevo.store, relevo.bindings))[0].unreadable == 0


async def _carry_nothing(_: Relayed) -> int:
    return 0


class Pages(Command, queue="test:rows:pages"):
    pass


class Sum(Command, queue="test:rows:sum"):
    pass


async def test_a_flow_s_parent_gets_what_a_dead_process_committed(
    start: Start, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It died between its commit and the word to Redis."""
    got: list[Any] = []

    async def count(order: Pages, ctx: Context) -> dict[str, int]:
        async with ctx.transaction() as tx:
            await tx.execute(text("select 1"))
        return {"pages": 4}

    async def add(order: Sum, ctx: Context) -> None:
        got.extend((await ctx.results()).values())

    relevo = await start(App("test", workers=[count, add]))
    flow = Flow("book")
    flow.add(Sum(), after=[flow.add(Pages())])
    await relevo.start(flow)
    [lease] = (await relevo.store.claim([Want(queue="test:rows:pages")], 1, "w1", 2_000)).leases
    async with relevo.transaction() as tx:
        ending = Ending(lease=lease, state=State.DONE, result=b'{"pages":4}')
        assert await relevo.settle_within(tx, ending)

    clock.advance("3s")
    await drain(relevo)
    assert got == [{"pages": 4}]


class Total(Command, queue="test:rows:total"):
    pass


async def test_a_group_of_a_transaction_goes_by_the_outbox(start: Start) -> None:
    """It opens, is filled and closed with the commit, and none of it with a rollback."""
    runs: list[str] = []
    told: list[tuple[int, int]] = []

    async def ping(order: Ping, ctx: Context) -> None:
        runs.append(ctx.id)

    async def total(order: Total, ctx: Context) -> None:
        found = await ctx.members()
        told.append((found.members, found.done))

    relevo = await start(App("test", workers=[ping, total]))
    with pytest.raises(ZeroDivisionError):
        async with relevo.transaction() as session:
            group = await relevo.group("import:1", then=Total(), tx=session)
            await group.add(Ping(), tx=session)
            raise ZeroDivisionError
    async with relevo.transaction() as session:
        group = await relevo.group("import:1", then=Total(), tx=session)
        await group.add_many([Ping() for _ in range(5)], tx=session)
        await group.close(tx=session)
    await drain(relevo, until=lambda: bool(told))
    await drain(relevo)
    assert len(runs) == 5
    assert told == [(5, 5)]


async def test_a_group_closes_behind_the_members_that_were_committed_before(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[str] = []
    told: list[tuple[int, int]] = []

    async def ping(order: Ping, ctx: Context) -> None:
        runs.append(ctx.id)

    async def total(order: Total, ctx: Context) -> None:
        found = await ctx.members()
        told.append((found.members, found.done))

    relevo = await start(App("test", workers=[ping, total]))
    group = await relevo.group("import:1", then=Total())
    monkeypatch.setattr(relevo.store, "committed", lambda queues: None)  # the relay is busy
    async with relevo.transaction() as session:
        await group.add_many([Ping() for _ in range(5)], tx=session)
    await group.close()
    await drain(relevo, until=lambda: bool(told))
    assert len(runs) == 5
    assert told == [(5, 5)]


async def test_a_group_closes_behind_the_members_that_came_while_redis_was_away(
    start: Start, server: RedisServer
) -> None:
    told: list[tuple[int, int]] = []

    async def ping(order: Ping) -> None:
        pass

    async def total(order: Total, ctx: Context) -> None:
        found = await ctx.members()
        told.append((found.members, found.done))

    relevo = await start(App("test", workers=[ping, total]))
    group = await relevo.group("import:1", then=Total())

    async def is_closed() -> bool:
        try:
            await group.close()
        except StoreUnavailable:
            return False
        return True

    server.kill()
    await group.add_many([Ping() for _ in range(5)])
    server.start()
    await until(is_closed)
    await drain(relevo, until=lambda: bool(told))
    assert told == [(5, 5)]


async def test_a_member_that_the_outbox_brings_too_late_runs_on_its_own(start: Start) -> None:
    runs: list[str] = []
    told: list[int] = []

    async def ping(order: Ping, ctx: Context) -> None:
        runs.append(ctx.id)

    async def total(order: Total, ctx: Context) -> None:
        told.append((await ctx.members()).members)

    relevo = await start(App("test", workers=[ping, total]))
    group = await relevo.group("import:1", then=Total())
    await group.close()
    async with relevo.transaction() as session:
        await group.add(Ping(), tx=session)
    await drain(relevo, until=lambda: bool(runs and told))
    assert (len(runs), told) == (1, [0])
