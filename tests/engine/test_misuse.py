"""What people write by mistake: told at once where it can be, and never taken for work done."""

from __future__ import annotations

import asyncio
import functools
import os
import sqlite3
from collections.abc import AsyncGenerator, Callable, Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from sqlalchemy import text

from relevo import (
    App,
    Command,
    Context,
    Dead,
    DefinitionError,
    Delivery,
    Event,
    Flow,
    MisuseError,
    Poll,
    Relevo,
    Retry,
    Snooze,
    State,
    StoreUnavailable,
    constant,
    sources,
)
from relevo.app import listener
from relevo.ingress.spool import spool_path
from relevo.job import Job
from relevo.store import EffectState, Filter
from relevo.testing import ManualClock, deliver, drain


class Greet(Command, queue="test:people:greet", attempts=3, backoff=constant("1m", jitter=0)):
    name: str = "Ana"


class Greeted(Event, name="person.greeted"):
    name: str = "Ana"


@pytest.fixture
async def run(
    tmp_path: Path, clock: ManualClock
) -> AsyncGenerator[Callable[[Callable[..., Any]], Any]]:
    """Enqueue one Greet for a worker, and see what became of it."""
    engines: list[Relevo] = []

    async def run(worker: Callable[..., Any]) -> Job:
        engine = Relevo(
            f"sqlite:///{tmp_path}/relevo.db", apps=[App("test", workers=[worker])], clock=clock
        )
        engines.append(engine)
        await engine.open()
        receipt = await engine.enqueue(Greet())
        await drain(engine, timeout="10s")
        [job] = await engine.store.find([receipt.id])
        assert job is not None
        return job

    yield run
    for engine in engines:
        await engine.close()


# workers


def test_a_worker_that_yields_is_refused() -> None:
    async def later(order: Greet) -> AsyncGenerator[int]:
        yield 1

    def now(order: Greet) -> Generator[int]:
        yield 1

    for worker in (later, now, functools.partial(later)):
        with pytest.raises(DefinitionError, match="yields"):
            App("test", workers=[worker])


async def test_an_async_function_behind_a_plain_one_runs(run: Any) -> None:
    seen: list[str] = []

    async def greet(order: Greet, ctx: Context) -> str:
        await asyncio.sleep(0)
        seen.append(order.name)
        return "hello"

    @functools.wraps(greet)
    def plain(*args: Any) -> Any:
        return greet(*args)

    job = await run(plain)

    assert (seen, job.state, job.result) == (["Ana"], State.DONE, b'"hello"')


async def test_an_object_with_an_async_call_runs(run: Any) -> None:
    seen: list[str] = []

    class Greeter:
        async def __call__(self, order: Greet) -> None:
            seen.append(order.name)

    assert (await run(Greeter())).state is State.DONE
    assert seen == ["Ana"]


def test_a_context_by_name_only_is_refused() -> None:
    async def greet(order: Greet, *, ctx: Context) -> None: ...

    with pytest.raises(DefinitionError, match="2 parameters"):
        App("test", workers=[greet])


@pytest.mark.parametrize("base", [Command, Event])
def test_a_function_for_any_message_at_all_is_refused(base: type[Any]) -> None:
    async def anything(order: Any) -> None: ...

    anything.__annotations__["order"] = base
    with pytest.raises(DefinitionError, match="of yours"):
        App("test", workers=[anything])


def test_a_backoff_that_is_none_is_refused_where_it_is_written() -> None:
    """It was met by the worker, which fell over it, when the listener failed."""

    async def greeted(fact: Greeted) -> None: ...

    async def pull(poll: Poll, ctx: Context) -> None: ...

    wrong: Any = "15s"
    with pytest.raises(DefinitionError, match="exponential"):
        App("test", listeners=[listener(greeted, backoff=wrong)])
    with pytest.raises(DefinitionError, match="exponential"):
        App("test").poller("channel", backoff=wrong)(pull)


def test_a_listener_without_a_name_needs_one() -> None:
    async def hear(n: int, fact: Greeted) -> None: ...

    nameless = functools.partial(hear, 1)
    with pytest.raises(DefinitionError, match="name="):
        App("test", listeners=[nameless])
    [made] = App("test", listeners=[listener(nameless, name="hear")]).listeners
    assert made.spec.queue == "test:listeners:hear"


# endings


@pytest.mark.parametrize(
    "ending",
    [
        lambda: Snooze("soon"),
        lambda: Retry("30s"),
        lambda: Retry(30),
        lambda: Retry(timedelta(seconds=30)),
    ],
)
async def test_a_delay_that_is_none_fails_the_job_and_not_the_worker(
    run: Any, ending: Callable[[], object]
) -> None:
    async def greet(order: Greet) -> Any:
        return ending()

    job = await run(greet)

    assert (job.state, job.failure.type) == (State.SCHEDULED, "DefinitionError")


async def test_an_ending_with_a_word_too_many_fails_its_job_alone(run: Any) -> None:
    async def greet(order: Greet) -> Any:
        return Dead("it is shut", "30s")  # pyright: ignore[reportCallIssue] - the mistake itself

    job = await run(greet)

    assert (job.state, job.failure.type) == (State.SCHEDULED, "TypeError")


async def test_a_retry_for_a_length_of_time_says_how_to_write_it(run: Any) -> None:
    async def greet(order: Greet) -> Any:
        return Retry("30s")

    job = await run(greet)

    assert 'Retry("why", "30s")' in job.failure.message


async def test_a_reason_may_be_an_exception(run: Any) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    async def greet(order: Greet) -> Dead:
        return Dead(Odd())

    job = await run(greet)

    assert (job.state, job.failure.message) == (State.DEAD, "(its message cannot be printed)")


async def test_the_class_of_an_ending_is_no_ending(run: Any) -> None:
    async def greet(order: Greet) -> Any:
        return Retry

    job = await run(greet)

    assert job.state is State.SCHEDULED
    assert "write Retry(…)" in job.failure.message


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (ValueError("gone"), "the worker returned ValueError: raise it"),
        (
            Greet("Eva"),
            r"the worker returned Greet, which starts nothing: write ctx.enqueue(Greet(",
        ),
        (Greeted("Eva"), "which starts nothing: write ctx.publish(Greeted("),
    ],
    ids=["error", "command", "event"],
)
async def test_what_a_worker_must_not_return_is_told(run: Any, value: Any, told: str) -> None:
    """As a result it would be kept, and the job be done although nothing comes of it."""

    async def greet(order: Greet) -> Any:
        return value

    job = await run(greet)

    assert job.state is State.SCHEDULED
    assert told in job.failure.message


async def test_a_retry_without_a_delay_waits_as_the_command_says(
    run: Any, clock: ManualClock
) -> None:
    async def greet(order: Greet) -> Retry:
        return Retry("not yet")

    job = await run(greet)

    assert 55_000 < job.run_at - clock.now().timestamp() * 1000 <= 60_000


# imports


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("ManualClock", "`from relevo.testing import ManualClock`"),
        ("drain", "`from relevo.testing import drain`"),
        ("Tally", "`from relevo.store import Tally`"),
        ("stripe", "`from relevo import sources`"),
        ("Clock", "`from relevo.clock import Clock`"),
    ],
)
def test_a_name_that_lives_elsewhere_says_where(name: str, told: str) -> None:
    with pytest.raises(ImportError) as raised:
        exec(f"from relevo import {name}")  # noqa: S102 - as a person writes it
    assert told in str(raised.value)


# context


async def test_the_same_effect_twice_at_once_is_called_once(run: Any) -> None:
    calls: list[str] = []

    async def greet(order: Greet, ctx: Context) -> None:
        async def call(key: str) -> None:
            calls.append(key)
            await asyncio.sleep(0)

        first = asyncio.create_task(ctx.once("call", call))
        with pytest.raises(MisuseError, match="under way"):
            await asyncio.gather(first, ctx.once("call", call))
        await first

    assert (await run(greet)).state is State.DONE
    assert len(calls) == 1


async def test_one_name_is_one_effect(run: Any) -> None:
    """In a loop the first letter was sent, and all others were answered with it."""
    sent: list[str] = []
    refused: list[str] = []

    async def greet(order: Greet, ctx: Context) -> None:
        for who in ("ana", "eva"):
            try:
                await ctx.once("mail", lambda key, who=who: sent.append(who))
            except MisuseError as error:
                refused.append(str(error))
            await ctx.once(f"sms:{who}", lambda key, who=who: sent.append(f"sms:{who}"))

    assert (await run(greet)).state is State.DONE
    assert sent == ["ana", "sms:ana", "sms:eva"]
    [said] = refused
    assert 'ctx.once(f"mail:{who}", …)' in said


async def test_what_is_no_function_is_not_called_once(run: Any) -> None:
    async def mail(key: str) -> None: ...

    async def greet(order: Greet, ctx: Context) -> None:
        await ctx.once("mail", mail("key"))  # pyright: ignore[reportCallIssue, reportArgumentType] - on purpose

    job = await run(greet)

    assert job.failure.type == "MisuseError"
    assert "lambda key: …" in job.failure.message


async def test_an_effect_whose_result_cannot_be_kept_is_not_taken_for_nothing(
    tmp_path: Path, clock: ManualClock
) -> None:
    """It happened; a later run that reads its result waits for a person instead of making it up."""
    seen: list[object] = []

    async def greet(order: Greet, ctx: Context) -> None:
        result: Any = await ctx.once("call", lambda key: {"password": "correct horse"})
        if ctx.attempt == 1:
            raise RuntimeError("died after the call")
        seen.append(result["code"])

    apps = [App("test", workers=[greet])]
    async with Relevo(f"sqlite:///{tmp_path}/relevo.db", apps=apps, clock=clock) as relevo:
        receipt = await relevo.enqueue(Greet())
        await drain(relevo, skip_waits=True)
        [job] = await relevo.store.find([receipt.id])
        assert job is not None and job.state is State.HELD and job.failure is not None
        [[effect], _] = await relevo.store.effects(job=job.id)

    assert (effect.state, effect.result, seen) == (EffectState.CONFIRMED, None, [])
    assert "keep=" in job.failure.message


# engine


async def test_what_is_no_order_is_not_enqueued(relevo: Relevo) -> None:
    for wrong, hint in ((Greeted(), "publish"), (Greet, "a class"), (5, "int"), (None, "NoneType")):
        with pytest.raises(MisuseError, match=hint):
            await relevo.enqueue(wrong)
        with pytest.raises(MisuseError, match=hint):
            await relevo.enqueue_many([Greet(), wrong])
    for wrong, hint in ((Greet(), "enqueue"), (Greeted, "a class"), ("x", "str")):
        with pytest.raises(MisuseError, match=hint):
            await relevo.publish(wrong)
        with pytest.raises(MisuseError, match=hint):
            await relevo.start(wrong)
    with pytest.raises(DefinitionError):
        Flow("flow").add(Greeted())

    assert await relevo.store.count(Filter()) == 0


@pytest.mark.parametrize(
    "options",
    [
        {"key": 5.0},
        {"at": "2030-01-01T00:00:00Z"},
        {"at": datetime(2030, 1, 1, tzinfo=UTC), "delay": "5s"},
        {"backoff": "5s"},
        {"timeout": "0s"},
    ],
)
async def test_an_option_that_means_nothing_is_refused(relevo: Relevo, options: Any) -> None:
    with pytest.raises(DefinitionError):
        await relevo.enqueue(Greet(), **options)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # to fork with threads is the mistake
async def test_after_a_fork_the_child_is_told_to_open_its_own(relevo: Relevo) -> None:
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            loop = asyncio.new_event_loop()
            asyncio.events._set_running_loop(None)
            loop.run_until_complete(asyncio.wait_for(relevo.enqueue(Greet()), 5))
        except MisuseError as error:
            os.write(write, repr(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)

    assert b"in each process" in os.read(read, 1_000)
    assert (await relevo.enqueue(Greet())).is_new


def test_nodes_of_one_command_get_names_of_their_own() -> None:
    flow = Flow("flow")
    names = [flow.add(Greet(), name=name).name for name in ("Greet-3", None, None, None)]

    assert len(set(names)) == 4


async def test_a_hook_may_take_the_transaction_alone(tmp_path: Path) -> None:
    app = App("test")
    seen: list[object] = []

    @app.webhook(
        "/hooks/shop", source=sources.github("a secret of tests"), key=lambda d: d.json["id"]
    )
    async def hook(delivery: Delivery, tx: Any) -> None:
        seen.append((await tx.execute(text("select 1"))).scalar())

    async with Relevo(f"sqlite:///{tmp_path}/relevo.db", apps=[app]) as relevo:
        answer = await deliver(relevo, "/hooks/shop", json={"id": "e1"})

    assert (answer.status, seen) == (200, [1])


async def test_another_event_loop_is_told_off_and_disturbs_nobody(relevo: Relevo) -> None:
    """Such as asyncio.run() in a thread: its end would have cancelled others' callers."""
    told: list[str] = []

    def thread() -> None:
        for _ in range(20):
            try:
                asyncio.run(relevo.enqueue(Greet()))
            except MisuseError as error:
                told.append(str(error))

    elsewhere = asyncio.create_task(asyncio.to_thread(thread))
    while not elsewhere.done():
        assert (await relevo.enqueue(Greet())).is_new
    await elsewhere

    assert len(told) == 20 and "run_coroutine_threadsafe" in told[0]


def test_an_engine_may_be_opened_in_one_loop_after_another(tmp_path: Path) -> None:
    relevo = Relevo(f"sqlite:///{tmp_path}/relevo.db")

    async def once() -> bool:
        async with relevo:
            return (await relevo.enqueue(Greet())).is_new

    assert [asyncio.run(once()) for _ in range(2)] == [True, True]


async def test_a_transaction_on_another_file_takes_no_job(relevo: Relevo, tmp_path: Path) -> None:
    """Also where that file has tables of relevo's: no worker of this engine would see the job."""
    async with Relevo(f"sqlite:///{tmp_path}/other.db") as other:
        async with other.transaction() as session:
            with pytest.raises(MisuseError, match=r"other\.db"):
                await relevo.enqueue(Greet(), tx=session)
        assert await other.store.count(Filter()) == 0
    (tmp_path / "link.db").symlink_to(tmp_path / "relevo.db")
    with sqlite3.connect(tmp_path / "link.db") as same:
        same.execute("begin immediate")
        assert (await relevo.enqueue(Greet(), tx=same)).is_new
    same.close()


@pytest.mark.parametrize("name", ["relevo.db", "con%20%C3%B1.db", "a%2541%3F.db", "a#b.db"])
async def test_a_file_stays_the_same_when_the_process_changes_its_directory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases were extended in another file, or none: a job ran again while its worker lived."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    relevo = Relevo(f"sqlite:///{name}", apps=[App("test")])
    monkeypatch.chdir(elsewhere)
    async with relevo:
        async with relevo.transaction() as session:
            receipt = await relevo.enqueue(Greet(), tx=session)
        beside = relevo.store.spawn()
        await beside.open()
        [job] = await beside.find([receipt.id])
        await beside.close()

    assert job is not None
    assert (tmp_path / unquote(name)).exists()
    assert spool_path(relevo, None) == tmp_path / "relevo-spool.db"
    assert list(elsewhere.iterdir()) == []


async def test_an_engine_that_is_not_open_does_not_work(tmp_path: Path) -> None:
    """It tried for ever, as if the store were away."""
    relevo = Relevo(f"sqlite:///{tmp_path}/relevo.db", apps=[App("test")])
    with pytest.raises(MisuseError, match="not open"):
        await relevo.work()
    async with relevo:
        pass
    with pytest.raises(MisuseError, match="not open"):
        await relevo.work()


async def test_a_job_does_not_end_while_its_effect_is_under_way(run: Any) -> None:
    refused: list[str] = []

    async def greet(order: Greet, ctx: Context) -> None:
        async def call(key: str) -> str:
            with pytest.raises(MisuseError) as raised:
                async with ctx.transaction():
                    pass
            refused.append(str(raised.value))
            return "hello"

        await ctx.once("greet", call)
        async with ctx.transaction():
            pass

    assert (await run(greet)).state is State.DONE
    assert "Await once() first" in refused[0]


async def test_an_engine_that_is_closed_while_it_works_stops_first(tmp_path: Path) -> None:
    """What the job had done was never written, and its worker went on without a store."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def greet(order: Greet) -> None:
        begun.set()
        await go_on.wait()

    url, app = f"sqlite:///{tmp_path}/relevo.db", App("test", workers=[greet])
    async with Relevo(url, apps=[app]) as relevo:
        receipt = await relevo.enqueue(Greet())
        working = asyncio.create_task(relevo.work())
        await asyncio.wait_for(begun.wait(), 10)
        asyncio.get_running_loop().call_soon(go_on.set)
    await asyncio.wait_for(working, 10)

    async with Relevo(url, apps=[app]) as relevo:
        [job] = await relevo.store.find([receipt.id])
    assert job is not None
    assert job.state is State.DONE


async def test_who_waits_for_his_own_transaction_is_told_what_to_pass(relevo: Relevo) -> None:
    async with relevo.transaction() as session:
        await session.execute(text("create table rows (name text)"))
        with pytest.raises(StoreUnavailable, match="tx="):
            await relevo.enqueue(Greet())
        await relevo.enqueue(Greet(), tx=session)

    assert await relevo.store.count(Filter()) == 1


async def test_what_is_no_address_and_no_order_of_ones_own_is_told_so(tmp_path: Path) -> None:
    path: Any = tmp_path / "relevo.db"
    with pytest.raises(DefinitionError, match="is text: 'sqlite:///"):
        Relevo(path)
    async with Relevo(f"sqlite:///{path}") as relevo:
        with pytest.raises(MisuseError, match="a class of yours"):
            await relevo.enqueue(Command())
