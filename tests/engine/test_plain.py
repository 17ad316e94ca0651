"""Plain `def` workers: a thread, a context of plain methods, and all that async workers promise."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import ForeignKey, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from relevo import (
    App,
    Command,
    Context,
    DefinitionError,
    Event,
    Flow,
    MisuseError,
    PlainContext,
    ProviderUnavailable,
    Relevo,
    State,
    constant,
)
from relevo.ids import lasting
from relevo.job import Job
from relevo.store import By, EffectState, Filter
from relevo.testing import ManualClock, drain, enqueued, until, working
from tests.conformance.fresh import SQL_STORES

Start = Callable[..., Relevo]


class Greet(Command, queue="test:people:greet", attempts=3, backoff=constant("1s"), timeout="30s"):
    name: str


class Tell(Command, queue="test:people:tell"):
    name: str


class Told(Event, name="person.told"):
    name: str


async def tell(order: Tell) -> None: ...


async def hear(event: Told) -> None: ...


async def run_one(start: Start, worker: Callable[..., Any], **options: Any) -> tuple[Relevo, Job]:
    """Enqueue one Greet, work until idle, and see what became of it."""
    relevo = start(App("test", workers=[worker], listeners=[hear]))
    receipt = await relevo.enqueue(Greet("Ana"))
    await drain(relevo, **options)
    return relevo, await job_of(relevo, receipt.id)


async def job_of(relevo: Relevo, id: str) -> Job:
    [job] = await relevo.store.find([id])
    assert job is not None
    return job


async def jobs_in(relevo: Relevo, queue: str) -> list[Job]:
    return list((await relevo.store.page(Filter(queue=queue))).jobs)


def refused(job: Job, *words: str) -> bool:
    assert job.failure is not None
    assert job.failure.type == "MisuseError", job.failure
    return all(word in job.failure.message for word in words)


# its methods


async def test_what_a_plain_worker_starts_it_starts_once(start: Start, clock: ManualClock) -> None:
    flow = Flow("pair")
    flow.add(Tell("in the flow"))
    verdicts: list[str] = []

    def greet(order: Greet, ctx: PlainContext) -> str:
        receipt = ctx.enqueue(Tell("one"))
        verdicts.append(receipt.verdict)
        ctx.enqueue_many(Tell(name) for name in ("two", "three"))
        ctx.publish(Told("Ana"))
        ctx.start(flow, key="pair")
        if ctx.attempt < 3:
            raise ValueError("once more")
        assert ctx.is_last_attempt
        return f"{ctx.queue} {ctx.turn} {ctx.key} {ctx.thread == ctx.id == ctx.origin}"

    relevo = start(App("test", workers=[greet], listeners=[hear]))
    receipt = await relevo.enqueue(Greet("Ana"))
    await drain(relevo, skip_waits=True)

    job = await job_of(relevo, receipt.id)
    assert (job.state, job.result) == (State.DONE, b'"test:people:greet 0 None True"')
    told = await jobs_in(relevo, "test:people:tell")
    names = sorted(Tell.__relevo__.kind + job.payload.decode() for job in told)
    assert len(names) == len(set(names)) == 4
    assert {job.thread for job in told} == {job.thread}
    assert verdicts[0] == "new" and len(verdicts) == 3


async def test_a_context_by_the_async_name_is_plain_all_the_same(start: Start) -> None:
    """The colour of the function decides, whatever a person has copied from the first page."""

    def greet(order: Greet, ctx: Context) -> str:
        ctx.enqueue(Tell("one"))  # pyright: ignore[reportUnusedCoroutine]
        return type(ctx).__name__

    relevo, job = await run_one(start, greet)

    assert job.result == b'"PlainContext"'
    assert len(await enqueued(relevo, Tell)) == 1


async def test_a_plain_listener_gets_it_too(start: Start) -> None:
    def hear(event: Told, ctx: PlainContext) -> None:
        ctx.enqueue(Tell(event.name))

    relevo = start(App("test", workers=[tell], listeners=[hear]))
    await relevo.publish(Told("Eva"))
    await drain(relevo)

    [job] = await jobs_in(relevo, "test:people:tell")
    assert job.state is State.DONE


async def test_it_reads_results_and_tallies_and_gives(start: Start) -> None:
    seen: list[Any] = []

    class Sum(Command, queue="test:people:sum"):
        pass

    def greet(order: Greet) -> str:
        return order.name.upper()

    def add(order: Sum, ctx: PlainContext) -> None:
        seen.append(ctx.results())
        seen.append({tally.queue: tally.counts.get(State.RUNNING) for tally in ctx.tallies()})

    relevo = start(App("test", workers=[greet, add]))
    flow = Flow("sum")
    flow.add(Sum(), after=[flow.add(Greet("Ana"), name="a")])
    await relevo.start(flow)
    await drain(relevo)

    assert seen[0] == {"a": "ANA"}
    assert seen[1]["test:people:sum"] == 1


def test_the_plain_face_has_what_the_async_one_has() -> None:
    """Word for word: a parameter that one gains, the other gains."""

    def face(cls: type) -> dict[str, object]:
        return {
            name: list(inspect.signature(found).parameters) if callable(found) else "property"
            for name, found in vars(cls).items()
            if not name.startswith("_") and not inspect.ismemberdescriptor(found)
        }

    inner = {
        "follow_ups",
        "pending",
        "tx",
        "once_by",
        "commit",
        "roll_back",
        "refuse_late",
        "check_lease",
    }  # for the engine
    own = {"run", "leave", "do"}  # for the runner, PlainGroup, PlainJob and PlainFlow
    asynchronous = {name: each for name, each in face(Context).items() if name not in inner}
    plain = {name: each for name, each in face(PlainContext).items() if name not in own}
    assert plain == asynchronous


def test_an_async_worker_with_the_plain_context_is_refused() -> None:
    async def greet(order: Greet, ctx: PlainContext) -> None: ...

    with pytest.raises(DefinitionError, match="annotate it with Context"):
        App("test", workers=[greet])


# once()


async def test_a_plain_effect_is_called_once_in_the_workers_own_thread(start: Start) -> None:
    threads: list[int] = []
    keys: list[str] = []

    def greet(order: Greet, ctx: PlainContext) -> str:
        threads.append(threading.get_ident())

        def call(key: str) -> str:
            threads.append(threading.get_ident())
            keys.append(key)
            return "R-1"

        code = ctx.once("book", call)
        if ctx.attempt == 1:
            raise ValueError("after the call")
        return code

    _, job = await run_one(start, greet, skip_waits=True)

    assert (job.state, job.result) == (State.DONE, b'"R-1"')
    assert keys == [f"{lasting(job.id)}:book"]
    assert threads[0] == threads[1] != threading.get_ident()


async def test_an_async_effect_of_a_plain_worker_is_awaited(start: Start) -> None:
    def greet(order: Greet, ctx: PlainContext) -> str:
        async def call(key: str) -> str:
            await asyncio.sleep(0)
            return "R-2"

        return ctx.once("book", call)

    _, job = await run_one(start, greet)

    assert (job.state, job.result) == (State.DONE, b'"R-2"')


async def test_what_a_plain_call_raises_is_judged_as_ever(start: Start) -> None:
    tries: list[str] = []

    def greet(order: Greet, ctx: PlainContext) -> str:
        def call(key: str) -> str:
            tries.append(key)
            if len(tries) == 1:
                raise ProviderUnavailable("not now")
            if len(tries) == 2:
                raise StopIteration  # the clumsiest of all: no coroutine may raise it
            return "R-3"

        return ctx.once("book", call, find=lambda key: None)

    _, job = await run_one(start, greet, skip_waits=True)

    assert (job.state, job.result) == (State.DONE, b'"R-3"')
    assert len(tries) == 3


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
async def test_whatever_leaves_a_plain_call_leaves_the_event_loop_alone(
    start: Start, error: BaseException
) -> None:
    def greet(order: Greet, ctx: PlainContext) -> str:
        def call(key: str) -> str:
            raise error

        return ctx.once("book", call, repeatable=True)

    relevo, job = await run_one(start, greet, skip_waits=True)

    assert job.state in (State.DEAD, State.HELD)
    [[effect], _] = await relevo.store.effects(job=job.id)
    assert effect.state is EffectState.UNKNOWN


async def test_find_is_asked_in_the_same_thread(start: Start) -> None:
    asked: list[int] = []

    def greet(order: Greet, ctx: PlainContext) -> str:
        def call(key: str) -> str:
            raise ConnectionResetError("half-way")

        def find(key: str) -> str | None:
            asked.append(threading.get_ident())
            return "R-4" if threading.get_ident() != main else None

        return ctx.once("book", call, find=find)

    main = threading.get_ident()
    _, job = await run_one(start, greet, skip_waits=True)

    assert (job.state, job.result) == (State.DONE, b'"R-4"')
    assert len(asked) == 1


async def test_ten_plain_calls_overlap_and_never_block_the_loop(start: Start) -> None:
    """Each call waits for the other nine, and then all of them for the event loop."""
    went_on = threading.Event()
    loop = asyncio.get_running_loop()
    together = threading.Barrier(
        10, action=lambda: loop.call_soon_threadsafe(went_on.set), timeout=20
    )

    def greet(order: Greet, ctx: PlainContext) -> bool:
        def call(key: str) -> bool:
            together.wait()
            return went_on.wait(20)

        return ctx.once("slow", call)

    relevo = start(App("test", workers=[greet]))
    await relevo.enqueue_many(Greet(str(number)) for number in range(10))
    await drain(relevo, timeout="30s")

    jobs = await jobs_in(relevo, "test:people:greet")
    assert {(job.state, job.result) for job in jobs} == {(State.DONE, b"true")}


# what cannot be


async def test_an_engines_async_method_in_a_plain_worker_says_what_to_write(start: Start) -> None:
    def greet(order: Greet) -> None:
        engine.enqueue(Tell("lost"))  # pyright: ignore[reportUnusedCoroutine]

    engine = start(App("test", workers=[greet, tell]))
    receipt = await engine.enqueue(Greet("Ana"))
    await drain(engine)

    job = await job_of(engine, receipt.id)
    assert refused(job, "relevo.enqueue(Tell(…))", "plain `def` worker", "ctx.enqueue(…)")
    assert await jobs_in(engine, "test:people:tell") == []


async def test_a_plain_function_that_gives_a_coroutine_is_told_to_be_async(start: Start) -> None:
    async def greet(order: Greet, ctx: Any) -> None:
        await ctx.enqueue(Tell("lost"))

    def plain(order: Greet, ctx: PlainContext) -> Any:
        return greet(order, ctx)

    _, job = await run_one(start, plain)

    assert refused(job, "async def")


async def test_an_async_function_behind_a_plain_decorator_keeps_its_context(start: Start) -> None:
    async def greet(order: Greet, ctx: Context) -> str:
        await ctx.enqueue(Tell("one"))
        return type(ctx).__name__

    @functools.wraps(greet)
    def decorated(*given: Any) -> Any:
        return greet(*given)

    relevo, job = await run_one(start, decorated)

    assert job.result == b'"Context"'
    assert len(await enqueued(relevo, Tell)) == 1


async def test_what_a_thread_does_and_returns_past_its_limit_counts(start: Start) -> None:
    """F07, F67: it keeps its job, is not started beside itself, and is shown as overdue."""

    class Slow(Command, queue="test:people:slow", attempts=1, timeout="200ms"):
        pass

    release = threading.Event()
    calls: list[str] = []

    def slow(order: Slow, ctx: PlainContext) -> str:
        release.wait(20)
        code = ctx.once("book", lambda key: calls.append(key) or "R-5")
        ctx.enqueue(Tell("late"))
        return code

    relevo = start(App("test", workers=[slow, tell]))
    receipt = await relevo.enqueue(Slow())

    async def overdue() -> bool:
        return [receipt.id] in [each.overdue for each in await relevo.store.workers()]

    async with working(relevo, lease="1s"):
        await until(overdue)
        job = await job_of(relevo, receipt.id)
        assert (job.state, job.attempt) == (State.RUNNING, 1)
        release.set()
        await until(lambda: _is(relevo, receipt.id, State.DONE))

        async def is_clear() -> bool:
            return not any(each.overdue for each in await relevo.store.workers())

        await until(is_clear)

    job = await job_of(relevo, receipt.id)
    assert (job.result, [run.outcome for run in job.history]) == (b'"R-5"', ["done"])
    assert len(calls) == 1
    assert len(await jobs_in(relevo, "test:people:tell")) == 1


async def test_a_thread_whose_job_is_cancelled_starts_nothing_more(start: Start) -> None:
    release, began, ended = threading.Event(), threading.Event(), threading.Event()
    seen: list[str] = []

    def greet(order: Greet, ctx: PlainContext) -> None:
        began.set()
        release.wait(20)
        try:
            ctx.enqueue(Tell("late"))
        except Exception as error:
            seen.append(type(error).__name__)
            raise
        finally:
            ended.set()

    relevo = start(App("test", workers=[greet]))
    receipt = await relevo.enqueue(Greet("Ana"))
    async with working(relevo, lease="300ms") as worker:
        assert await asyncio.to_thread(began.wait, 10)
        assert await relevo.store.cancel([receipt.id], By("ana")) == [True]
        await until(lambda: not worker.flights)
        assert worker.running == 1, "its thread has not ended"
        release.set()
        assert await asyncio.to_thread(ended.wait, 10)

    assert seen == ["LeaseLost"]
    assert await jobs_in(relevo, "test:people:tell") == []
    assert (await job_of(relevo, receipt.id)).state is State.CANCELLED


async def test_a_worker_that_stops_waits_for_its_threads(start: Start) -> None:
    """F66: a plain function is not handed back while it runs; an async one is."""
    release, began = threading.Event(), threading.Event()
    calls: list[str] = []

    class Wait(Command, queue="test:people:wait"):
        pass

    def greet(order: Greet, ctx: PlainContext) -> str:
        began.set()
        release.wait(20)
        return ctx.once("book", lambda key: calls.append(key) or "R-5")

    async def wait(order: Wait) -> None:
        await asyncio.Event().wait()

    relevo = start(App("test", workers=[greet, wait]))
    plain, other = await relevo.enqueue(Greet("Ana")), await relevo.enqueue(Wait())

    async def told() -> bool:
        notes = [each.note for each in await relevo.store.workers()]
        return any(note.startswith(f"stopping: waits for Greet {plain.id}") for note in notes)

    async with working(relevo, grace="100ms", lease="500ms") as worker:
        assert await asyncio.to_thread(began.wait, 10)
        await until(lambda: _is(relevo, other.id, State.RUNNING))
        worker.stop()
        await until(lambda: _is(relevo, other.id, State.READY))
        await until(told)
        assert await _is(relevo, plain.id, State.RUNNING)
        release.set()

    job = await job_of(relevo, plain.id)
    assert (job.state, job.result, len(calls)) == (State.DONE, b'"R-5"', 1)


async def _is(relevo: Relevo, id: str, state: State) -> bool:
    return (await job_of(relevo, id)).state is state


async def test_a_thread_of_the_workers_own_may_order_as_well(start: Start) -> None:
    def greet(order: Greet, ctx: PlainContext) -> None:
        own = threading.Thread(target=lambda: ctx.enqueue(Tell("from a thread")))
        own.start()
        own.join()

    relevo, job = await run_one(start, greet)

    assert job.state is State.DONE
    [told] = await jobs_in(relevo, "test:people:tell")
    assert (told.thread, told.cause) == (job.thread, job.id)


# transaction()


class Base(DeclarativeBase):
    pass


class Author(Base):
    __tablename__ = "authors"
    name: Mapped[str] = mapped_column(primary_key=True)
    books: Mapped[list[Book]] = relationship(back_populates="author")


class Book(Base):
    __tablename__ = "books"
    title: Mapped[str] = mapped_column(primary_key=True)
    by: Mapped[str] = mapped_column(ForeignKey("authors.name"))
    author: Mapped[Author] = relationship(back_populates="books")


async def tables(relevo: Relevo) -> None:
    async with relevo.transaction() as session:
        connection = await session.connection()
        await connection.run_sync(Base.metadata.drop_all)
        await connection.run_sync(Base.metadata.create_all)
        session.add(Author(name="Ana", books=[Book(title="One"), Book(title="Two")]))


async def titles(relevo: Relevo) -> list[str]:
    async with relevo.transaction() as session:
        found = await session.execute(text("select title from books order by title"))
        return list(found.scalars())


sql = pytest.mark.parametrize("store_name", SQL_STORES)


@sql
async def test_its_transaction_ends_the_job_with_its_rows_and_orders(start: Start) -> None:
    seen: list[Any] = []

    def greet(order: Greet, ctx: PlainContext) -> dict[str, int]:
        with ctx.transaction() as tx:
            seen.append(isinstance(tx, Session))
            author = tx.get(Author, order.name)
            assert author is not None
            seen.append(sorted(book.title for book in author.books))  # loaded on demand
            author.books.append(Book(title="Three"))
            with tx.begin_nested():
                tx.add(Book(title="Four", by="Ana"))
            ctx.enqueue(Tell("one"))
            ctx.publish(Told("Ana"))
        return {"books": 4}

    relevo = start(App("test", workers=[greet], listeners=[hear]))
    await tables(relevo)
    receipt = await relevo.enqueue(Greet("Ana"))
    await drain(relevo)

    job = await job_of(relevo, receipt.id)
    assert (job.state, job.result, job.failure) == (State.DONE, b'{"books":4}', None)
    assert seen == [True, ["One", "Two"]]
    assert await titles(relevo) == ["Four", "One", "Three", "Two"]
    assert len(await enqueued(relevo, Tell)) == 1


@sql
async def test_an_error_in_it_leaves_nothing(start: Start) -> None:
    def greet(order: Greet, ctx: PlainContext) -> None:
        with ctx.transaction() as tx:
            tx.add(Book(title=f"Draft {ctx.attempt}", by="Ana"))
            tx.flush()
            ctx.enqueue(Tell(f"draft {ctx.attempt}"))
            if ctx.attempt == 1:
                raise ValueError("torn up")
            if ctx.attempt == 2:
                tx.execute(text("insert into books values ('One', 'Ana')"))  # there already

    relevo = start(App("test", workers=[greet]))
    await tables(relevo)
    receipt = await relevo.enqueue(Greet("Ana"))
    await drain(relevo, skip_waits=True)

    job = await job_of(relevo, receipt.id)
    raised = [each.failure.type for each in job.history if each.failure]
    assert raised == ["ValueError", "IntegrityError"]
    assert job.state is State.DONE
    assert await titles(relevo) == ["Draft 3", "One", "Two"]
    assert len(await enqueued(relevo, Tell)) == 1


@sql
async def test_its_transaction_is_open_until_it_returns(start: Start) -> None:
    def greet(order: Greet, ctx: PlainContext) -> int:
        with ctx.transaction() as tx:
            tx.add(Book(title=f"Draft {ctx.attempt}", by="Ana"))
        tx.execute(text("delete from books where title = 'One'"))
        if ctx.attempt == 1:
            raise ValueError("torn up")
        return ctx.attempt

    relevo = start(App("test", workers=[greet]))
    await tables(relevo)
    receipt = await relevo.enqueue(Greet("Ana"))
    await drain(relevo)
    assert await titles(relevo) == ["One", "Two"]

    await drain(relevo, skip_waits=True)
    job = await job_of(relevo, receipt.id)
    assert (job.state, job.result) == (State.DONE, b"2")
    assert await titles(relevo) == ["Draft 2", "Two"]


@sql
async def test_statements_behind_it_past_the_time_limit_lock_nothing(start: Start) -> None:
    class Slow(Command, queue="test:people:slow", attempts=1, timeout="300ms"):
        pass

    ended, seen = threading.Event(), list[str]()

    def slow(order: Slow, ctx: PlainContext) -> None:
        with ctx.transaction() as tx:
            tx.add(Book(title="Late", by="Ana"))
        try:
            while True:
                tx.execute(text("update books set title = 'Later' where title = 'Two'"))
        except BaseException as error:
            seen.append(type(error).__name__)
            raise
        finally:
            ended.set()

    relevo = start(App("test", workers=[slow]))
    await tables(relevo)
    receipt = await relevo.enqueue(Slow())
    async with working(relevo):
        await until(lambda: _is(relevo, receipt.id, State.DEAD))
        assert await titles(relevo) == ["One", "Two"]
        assert await asyncio.to_thread(ended.wait, 10)

    assert await titles(relevo) == ["One", "Two"]
    assert len(seen) == 1
    gc.collect()  # a coroutine that was left would warn now, as an error of this test


@sql
async def test_a_plain_once_inside_its_transaction_is_refused(start: Start) -> None:
    calls: list[str] = []

    def greet(order: Greet, ctx: PlainContext) -> None:
        with ctx.transaction():
            ctx.once("book", lambda key: calls.append(key))

    _, job = await run_one(start, greet)

    assert refused(job, "ctx.once() inside ctx.transaction()")
    assert calls == []


@sql
async def test_a_transaction_in_a_thread_of_its_own_is_refused(start: Start) -> None:
    told: list[str] = []

    def greet(order: Greet, ctx: PlainContext) -> None:
        def work() -> None:
            try:
                with ctx.transaction():
                    pass
            except MisuseError as error:
                told.append(str(error))

        own = threading.Thread(target=work)
        own.start()
        own.join()

    await run_one(start, greet)

    assert "the thread that the worker was called in" in told[0]


@sql
async def test_a_transaction_past_the_time_limit_locks_nothing(start: Start) -> None:
    class Slow(Command, queue="test:people:slow", attempts=1, timeout="300ms"):
        pass

    began, release, ended = threading.Event(), threading.Event(), threading.Event()
    seen: list[str] = []

    def slow(order: Slow, ctx: PlainContext) -> None:
        try:
            with ctx.transaction() as tx:
                tx.execute(text("insert into books values ('Late', 'Ana')"))
                began.set()
                release.wait(20)
                tx.execute(text("insert into books values ('Later', 'Ana')"))
        except BaseException as error:
            seen.append(type(error).__name__)
            raise
        finally:
            ended.set()

    relevo = start(App("test", workers=[slow]))
    await tables(relevo)
    receipt = await relevo.enqueue(Slow())
    async with working(relevo) as worker:
        await until(began.is_set)
        async with relevo.transaction() as session:  # it is not kept waiting for a lock
            await session.execute(text("insert into books values ('Three', 'Ana')"))
        await until(lambda: any(run.over for run in worker.runner.plain.values()))
        release.set()
        assert await asyncio.to_thread(ended.wait, 10)
        await until(lambda: _is(relevo, receipt.id, State.DEAD))

    assert await titles(relevo) == ["One", "Three", "Two"]
    assert seen == ["LeaseLost"]
    gc.collect()  # as above
    job = await job_of(relevo, receipt.id)
    assert job.failure is not None
    assert job.failure.type == "TimeoutError"
    assert "its transaction was open for longer than the time limit" in job.failure.message


@sql
async def test_fifty_plain_transactions_at_once_all_commit(start: Start) -> None:
    def greet(order: Greet, ctx: PlainContext) -> None:
        with ctx.transaction() as tx:
            tx.add(Book(title=order.name, by="Ana"))

    relevo = start(App("test", workers=[greet]))
    await tables(relevo)
    await relevo.enqueue_many(Greet(f"book {number:02}") for number in range(50))
    await drain(relevo, timeout="60s")

    assert len(await titles(relevo)) == 52
    assert {job.state for job in await jobs_in(relevo, "test:people:greet")} == {State.DONE}
