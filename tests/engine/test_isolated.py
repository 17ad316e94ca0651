"""Commands with isolate="process": what their context can do, and what is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from relevo import (
    App,
    Command,
    DefinitionError,
    Event,
    Flow,
    PlainContext,
    ProviderUnavailable,
    Relevo,
    Retry,
    State,
    constant,
)
from relevo.message import EVENTS
from relevo.store import By, EffectState, Filter
from relevo.testing import drain, until, working

Start = Callable[..., Relevo]
SQLITE = pytest.mark.parametrize("store_name", ["sqlite"])


class Resize(
    Command,
    queue="test:images:resize",
    attempts=2,
    backoff=constant("10ms"),
    timeout="20s",
    isolate="process",
    memory="512MB",
):
    name: str


class Tell(Command, queue="test:people:tell"):
    name: str


class Sum(Command, queue="test:images:sum", timeout="20s", isolate="process"):
    pass


class Resized(Event, name="image.resized"):
    name: str


def resize(order: Resize, ctx: PlainContext) -> Any:
    match order.name:
        case "all":
            image = ctx.once("resize", lambda key: {"id": "I-5", "key": key})
            first = ctx.enqueue(Tell("one"), delay="1h", priority="high")
            ctx.enqueue_many([Tell("two"), Tell("three")])
            ctx.publish(Resized("all"))
            queues = {tally.queue for tally in ctx.tallies()}
            return [image.id, image.key, first.verdict, ctx.queue in queues]
        case "again":
            return Retry("not yet", "2h")
        case "bad":
            raise ValueError("no image")
        case "away":
            raise ProviderUnavailable("503", retry_after=None)
        case "pid":
            return os.getpid()
        case "wait":
            ctx.enqueue(Tell("begun"))
            open_ended()
        case "transaction":
            with ctx.transaction():
                pass
        case "start":
            ctx.start(Flow("none"))
        case "group":
            ctx.group("images")
        case "use":
            ctx.use(dict)
        case _:
            pass
    return order.name


def open_ended() -> None:
    while True:
        pass


def add(order: Sum, ctx: PlainContext) -> Any:
    return {**ctx.results()}


async def tell(order: Tell) -> None: ...


async def hear(event: Resized) -> None: ...


app = App("test", workers=[resize, add, tell], listeners=[hear])


async def ended(relevo: Relevo, name: str, attempts: int = 2) -> Any:
    receipt = await relevo.enqueue(Resize(name), attempts=attempts)
    await drain(relevo)
    [job] = await relevo.store.find([receipt.id])
    return job


async def test_f68_the_context_of_a_child_does_what_it_does_in_a_thread(start: Start) -> None:
    relevo = start(app)
    flow = Flow("images")
    one = flow.add(Resize("one"), name="one")
    flow.add(Sum(), name="sum", after=[one])
    started = await relevo.start(flow)
    job = await ended(relevo, "all")

    [effect] = (await relevo.store.effects(job=job.id))[0]
    assert (job.state, json.loads(job.result)) == (State.DONE, ["I-5", effect.key, "new", True])
    assert effect.state is EffectState.CONFIRMED
    told = (await relevo.store.page(Filter(queue="test:people:tell"))).jobs
    assert sorted(each.payload for each in told) == [
        b'{"name":"one"}', b'{"name":"three"}', b'{"name":"two"}'
    ]  # fmt: skip
    assert {each.thread for each in told} == {job.thread}
    assert {each.cause for each in told} == {job.id}
    [heard] = (await relevo.store.page(Filter(queue=EVENTS))).jobs
    assert heard.thread == job.thread
    [added] = await relevo.store.find([started.jobs["sum"]])
    assert added is not None
    assert added.result == b'{"one":"one"}'


@SQLITE
async def test_what_a_child_returns_or_raises_is_judged_as_ever(start: Start) -> None:
    relevo = start(app)

    again = await ended(relevo, "again")
    assert (again.state, again.failure.message) == (State.SCHEDULED, "not yet")
    bad = await ended(relevo, "bad")
    assert (bad.failure.type, bad.failure.message) == ("ValueError", "no image")
    assert 'raise ValueError("no image")' in bad.failure.trace
    away = await ended(relevo, "away", attempts=1)
    assert (away.state, away.failure.type) == (State.PARKED, "CircuitOpen")
    pids = {(await ended(relevo, "pid")).result for _ in range(2)}
    assert str(os.getpid()).encode() not in pids


@SQLITE
@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("transaction", "write ctx.enqueue(Save(…)) with what came out"),
        ("start", "enqueue a command without isolate="),
        ("group", "whose worker adds to the group"),
        ("use", "open what the function needs in it"),
    ],
)
async def test_what_a_child_cannot_do_says_what_to_write(
    start: Start, name: str, write: str
) -> None:
    job = await ended(start(app), name)

    assert job.failure.type == "MisuseError"
    assert write in job.failure.message


@SQLITE
async def test_a_cancelled_job_ends_with_its_child(start: Start) -> None:
    relevo = start(app)
    receipt = await relevo.enqueue(Resize("wait"))

    async def begun() -> bool:
        return bool((await relevo.store.page(Filter(queue="test:people:tell"))).jobs)

    async with working(relevo, lease="300ms") as worker:
        await until(begun, timeout="20s")
        [run] = worker.runner.plain.values()
        assert await relevo.store.cancel([receipt.id], By("ana")) == [True]
        await until(lambda: not worker.runner.plain)
        await until(lambda: worker.running == 0)
        assert run.ctx.is_over


def test_what_a_child_could_not_run_is_refused() -> None:
    async def resize_later(order: Resize) -> None: ...

    def resize_here(order: Resize) -> None: ...

    with pytest.raises(DefinitionError, match=r"write it as `def`, with asyncio.run"):
        App("test", workers=[resize_later])
    with pytest.raises(DefinitionError, match="at the top level of a module"):
        App("test", workers=[resize_here])


@SQLITE
async def test_a_function_that_its_child_would_not_find_is_refused_at_the_start(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    relevo = start(app)
    monkeypatch.setattr(f"{__name__}.resize", tell)
    with pytest.raises(DefinitionError, match="its outermost decorator"):
        async with working(relevo):
            await until(lambda: False, timeout="2s")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"isolate": "thread"}, "isolate is 'process'"),
        ({"memory": "512MB"}, "it needs isolate='process'"),
        ({"isolate": "process", "memory": "lots"}, "such as '512MB' or '2GB'"),
        ({"isolate": "process", "memory": "16MB"}, "128MB or more"),
        ({"isolate": "process", "abandon_after": "1h"}, "leave one of them out"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        type("Odd", (Command,), {"__annotations__": {}}, queue="test:images:odd", **options)
