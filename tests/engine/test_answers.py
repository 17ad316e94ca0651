"""Whatever a worker returns or raises: its own job fails with a reason that can be read, the jobs
beside it are done, and the worker process lives."""

from __future__ import annotations

import asyncio
import importlib
import json
import math
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest

from relevo import (
    App,
    Cancelled,
    CircuitOpen,
    Command,
    Context,
    Dead,
    Delivery,
    Done,
    Event,
    Intake,
    Poll,
    ProviderRefused,
    ProviderUnavailable,
    Relevo,
    Retry,
    Snooze,
    State,
    constant,
    sources,
)
from relevo.job import Failure, Job
from relevo.message import EVENTS
from relevo.outcome import Held, Parked
from relevo.store import Filter
from relevo.testing import ManualClock, deliver, drain, until, working

Start = Callable[..., Relevo]
HERE = Path(__file__).name
LONE = "\ud800"
HUGE = 10_000_000
OPTIONS: dict[str, Any] = {"attempts": 1, "backoff": constant("1s")}


class Odd(Command, queue="odd:answers:async", **OPTIONS):
    case: str


class OddPlain(Command, queue="odd:answers:plain", **OPTIONS):
    case: str


class OddFact(Event, name="odd.happened"):
    case: str


class Good(Command, queue="odd:answers:good", **OPTIONS):
    number: int


class _Hostile(Exception):
    """Raises whatever is read of it."""

    def __init__(self) -> None:
        pass

    def _raise(self, *_: object) -> NoReturn:
        raise SystemExit("hostile")

    __str__ = __repr__ = __eq__ = __hash__ = __reduce__ = _raise  # pyright: ignore[reportAssignmentType]
    args = __notes__ = __cause__ = exceptions = orig = response = property(_raise)  # pyright: ignore[reportAssignmentType]
    retry_after = spends = breaker = sqlstate = is_left_over = property(_raise)


class _NoClass(Exception):
    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise KeyboardInterrupt("hostile")


class _Unreadable(ProviderUnavailable):
    retry_after = property(lambda self: 1 / 0)  # pyright: ignore[reportAssignmentType]

    def __init__(self) -> None:
        Exception.__init__(self, "busy")


class _TextOfItsOwn(str):
    __slots__ = ()

    def __getitem__(self, _: object) -> Any:
        raise ValueError("hostile")


class _Talks(Exception):
    def __str__(self) -> str:
        return _TextOfItsOwn("says it in a text of its own")


class _Late(Retry):
    def __init__(self) -> None:
        pass

    @property
    def delay(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        raise MemoryError("hostile")


class _Meta(type):
    def __eq__(cls, other: object) -> bool:
        raise ValueError("hostile")

    __hash__ = type.__hash__


class _Class(metaclass=_Meta):
    pass


class _Tree:
    def __eq__(self, other: object) -> bool:
        raise GeneratorExit

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __bool__(self) -> bool:
        raise KeyboardInterrupt


def _named(qualname: str) -> BaseException:
    return type("Odd", (Exception,), {"__qualname__": qualname})("by another name")


def _changed(outcome: Any, **changes: object) -> Any:
    for name, value in changes.items():
        object.__setattr__(outcome, name, value)
    return outcome


def _busy(**said: Any) -> BaseException:
    return ProviderUnavailable("429", **said)


def _set(error: BaseException, **changes: object) -> BaseException:
    vars(error).update(changes)
    return error


def _numbers() -> Iterator[int]:
    yield 1


async def _numbers_later() -> AsyncIterator[int]:
    yield 1


async def _nothing() -> None: ...


RAISED: dict[str, Callable[[], BaseException | type[BaseException]]] = {
    "exit": lambda: SystemExit(3),
    "exit without a word": lambda: SystemExit,
    "keyboard": lambda: KeyboardInterrupt("from within"),
    "generator exit": lambda: GeneratorExit("from within"),
    "stop iteration": lambda: StopIteration("from within"),
    "stop async iteration": lambda: StopAsyncIteration("from within"),
    "cancelled": lambda: asyncio.CancelledError("from within"),
    "base exception": lambda: BaseException("from within"),
    "group": lambda: ExceptionGroup("several", [ValueError("the first"), KeyError("b")]),
    "base group": lambda: BaseExceptionGroup("several", [SystemExit("the first")]),
    "group of groups": lambda: BaseExceptionGroup(
        "outer", [BaseExceptionGroup("inner", [KeyboardInterrupt("the first")])]
    ),
    "hostile": _Hostile,
    "no class": _NoClass,
    "text of its own": _Talks,
    "huge": lambda: ValueError("x" * HUGE),
    "lone surrogate": lambda: ValueError(f"a{LONE}b\0c\x1b[2J"),
    "surrogate in its name": lambda: _named(f"a{LONE}\0b"),
    "huge name": lambda: _named("n" * HUGE),
    "huge key": lambda: KeyError("k" * HUGE),
    "un-picklable": lambda: ValueError(lambda: None),
    "recursion": lambda: RecursionError("too deep"),
    "memory": lambda: MemoryError(),
    "retry_after nan": lambda: _busy(retry_after=math.nan),
    "retry_after object": lambda: _busy(retry_after=object()),
    "retry_after words": lambda: _busy(retry_after="soon", spends=False),
    "retry_after words, huge": lambda: _busy(retry_after="s" * HUGE),
    "retry_after true": lambda: _busy(retry_after=True),
    "retry_after list": lambda: _busy(retry_after=[1]),
    "retry_after set later": lambda: _set(_busy(), retry_after="later"),
    "retry_after unreadable": _Unreadable,
    "breaker of no text": lambda: CircuitOpen(LONE),
    "refused with a surrogate": lambda: ProviderRefused(LONE),
    "class of hostile": lambda: _Hostile,
}
RETURNED: dict[str, Callable[[], object]] = {
    "generator": _numbers,
    "async generator": _numbers_later,
    "coroutine in a list": lambda: [_nothing],
    "exception": lambda: ValueError("returned"),
    "exception class": lambda: ValueError,
    "ending's class": lambda: Retry,
    "own class": lambda: _Class,
    "command": lambda: Good(1),
    "object": object,
    "hostile object": _Tree,
    "hostile exception": _Hostile,
    "bytes": lambda: b"\xff",
    "nan": lambda: math.nan,
    "lone surrogate": lambda: LONE,
    "done with a surrogate": lambda: Done({"a": LONE}),
    "done with a lambda": lambda: Done(lambda: None),
    "huge": lambda: "x" * HUGE,
    "endless": lambda: _endless(),
    "huge number": lambda: 10**5_000,
    "retry's delay nan": lambda: _changed(Retry("busy"), delay=math.nan),
    "retry's delay negative": lambda: Retry("busy", -5),
    "retry's delay infinite": lambda: Retry("busy", math.inf),
    "retry's own delay": lambda: _Late(),
    "snooze nan": lambda: Snooze(math.nan),
    "snooze negative": lambda: Snooze(timedelta(seconds=-1)),
    "snooze of nothing": lambda: _changed(Snooze(1), delay=None),
    "dead without a text": lambda: Dead(_Hostile()),  # pyright: ignore[reportArgumentType]
    "dead with a surrogate": lambda: Dead(f"{LONE}\0"),
    "dead, huge": lambda: Dead("x" * HUGE),
    "dead by no failure": lambda: Dead("odd", failure=object()),  # pyright: ignore[reportArgumentType]
    "dead by an odd failure": lambda: Dead(
        "odd", failure=Failure(type=LONE, message=f"\0{LONE}", trace=LONE, fingerprint=LONE)
    ),
    "cancelled with a surrogate": lambda: Cancelled(LONE),
    "parked behind a surrogate": lambda: Parked(LONE),
    "held by nothing": lambda: Held(None),  # pyright: ignore[reportArgumentType]
}
BUSY = {f"raise {name}" for name in RAISED if name.startswith("retry_after")}
CASES = [
    *(each for each in [f"raise {name}" for name in RAISED] if each not in BUSY),
    *(f"return {name}" for name in RETURNED),
]
SAID: dict[str, str] = {
    "raise exit": "3",
    "raise group": "ValueError: the first",
    "raise base group": "SystemExit: the first",
    "raise group of groups": "KeyboardInterrupt: the first",
    "raise text of its own": "says it in a text of its own",
    "raise retry_after nan": f"seconds, or text like '15s', at {HERE}:",
    "raise retry_after words": f"seconds, or text like '15s', at {HERE}:",
    "raise breaker of no text": "is no name that a store keeps",
    "return generator": f"() in {HERE}:",
    "return object": f"() in {HERE}:",
    "return hostile object": f"() in {HERE}:",
    "return retry's delay nan": f"() in {HERE}:",
    "return retry's own delay": f"() in {HERE}:",
    "return dead by no failure": "give a relevo.Failure",
}
"""What the reason says, where it is not the error's own text alone."""


def _endless() -> list[Any]:
    tree: list[Any] = []
    tree.append(tree)
    return tree


def _act(case: str) -> object:
    verb, _, name = case.partition(" ")
    if verb == "raise":
        raise RAISED[name]()
    return RETURNED[name]()


async def _odd(order: Odd) -> object:
    if order.case == "cancel own task":
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
    if order.case == "cancel own task and return":
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return None
    return _act(order.case)


async def _odd_later(order: Odd) -> object:
    await asyncio.sleep(0)
    return await _odd(order)


def _odd_plain(order: OddPlain) -> object:
    return _act(order.case)


async def _good(order: Good) -> int:
    await asyncio.sleep(0)
    return order.number


async def _jobs(relevo: Relevo, message: type[Command | Event]) -> list[Job]:
    found: list[Job] = []
    cursor = None
    where = Filter(kind=message.__relevo__.kind)
    while True:
        page = await relevo.store.page(where, cursor=cursor, limit=200)
        found += page.jobs
        if (cursor := page.cursor) is None:
            return found


def _judge(case: str, job: Job) -> None:
    """Every culprit has ended, with a reason that can be read and that every store keeps."""
    if case in ("return parked behind a surrogate", "return held by nothing"):
        assert job.state in (State.DEAD, State.HELD), case
        return
    if case == "return cancelled with a surrogate":
        assert job.state is State.CANCELLED, case
        return
    # A provider that is not there kills no job: it waits behind a breaker.
    ends = {State.PARKED} if case in BUSY else {State.DEAD}
    assert job.state in ends, (case, job.state, job.failure)
    failure = job.failure
    assert failure is not None, case
    assert failure.type, case
    whole = failure.type + failure.message + failure.trace + failure.fingerprint
    assert len(whole.encode()) <= 4 * 8_192, case
    assert all(c.isprintable() or c == "\n" for c in whole), case
    assert case in BUSY or SAID.get(case, "") in failure.message, (case, failure.message)


@pytest.mark.parametrize("later", [False, True], ids=["at once", "after a wait"])
async def test_f08_whatever_is_returned_or_raised_ends_its_own_job_alone(
    start: Start, later: bool
) -> None:
    """F08."""
    own = ["cancel own task", "cancel own task and return"]
    relevo = start(App("odd", workers=[_odd_later if later else _odd, _odd_plain, _good]))
    async with relevo:
        await relevo.enqueue_many([Good(number) for number in range(50)])
        jobs: list[tuple[str, str]] = []
        for cases in ([*own, *CASES], sorted(BUSY)):  # the latter open a breaker for what follows
            for kind in (Odd, OddPlain):
                given = [case for case in cases if case not in own or kind is Odd]
                receipts = await relevo.enqueue_many([kind(case) for case in given])
                jobs += zip(given, [receipt.id for receipt in receipts], strict=True)
            await drain(relevo, timeout="60s", concurrency=5)

        assert [job.state for job in await _jobs(relevo, Good)] == [State.DONE] * 50
        found = await relevo.store.find([id for _, id in jobs])
        for (case, _), job in zip(jobs, found, strict=True):
            assert job is not None
            if case == "cancel own task and return":
                assert job.state is State.DONE
            else:
                _judge(case, job)


async def test_f08_a_listener_may_answer_anything_too(start: Start) -> None:
    app = App("odd", workers=[_good])

    @app.listener(attempts=1)
    async def hear(fact: OddFact) -> object:
        return _act(fact.case)

    @app.listener(attempts=1)
    def hear_too(fact: OddFact) -> object:
        return _act(fact.case)

    relevo = start(app)
    async with relevo:
        await relevo.enqueue(Good(1))
        for cases in (CASES, sorted(BUSY)):
            for case in cases:
                await relevo.publish(OddFact(case))
            await drain(relevo, timeout="60s")
        heard = [job for job in await _jobs(relevo, OddFact) if job.queue != EVENTS]
        assert len(heard) == 2 * len([*CASES, *BUSY])
        for job in heard:
            _judge(json.loads(job.payload)["case"], job)
        assert [job.state for job in await _jobs(relevo, Good)] == [State.DONE]


async def test_f08_retry_after_is_read_in_every_spelling(start: Start) -> None:
    waits = {"30": 30, "30s": 30, "1m": 60, "-5": 1, "99999999999": 3_600}
    given: dict[str, Any] = {"30": 30, "30s": "30s", "1m": timedelta(minutes=1), "-5": -5}

    class Ask(Command, queue="odd:answers:ask", attempts=5, backoff=constant("1s", jitter=0)):
        said: str

    async def ask(order: Ask) -> None:
        raise ProviderUnavailable("429", retry_after=given.get(order.said, order.said))

    relevo = start(App("odd", workers=[ask]))
    async with relevo:
        await relevo.enqueue_many([Ask(said) for said in waits])
        await drain(relevo)
        assert len(await _jobs(relevo, Ask)) == len(waits)
        for job in await _jobs(relevo, Ask):
            said = relevo_said(job)
            assert job.state is State.SCHEDULED
            left = (job.run_at - await relevo.store.now()) / 1_000
            assert waits[said] - 10 <= left <= waits[said] + 1, said


async def test_f08_retry_after_that_cannot_be_read_names_its_line(start: Start) -> None:
    class Ask(Command, queue="odd:answers:ask", attempts=5, backoff=constant("1m")):
        case: str

    async def ask(order: Ask) -> None:
        _act(order.case)

    relevo = start(App("odd", workers=[ask]))
    async with relevo:
        await relevo.enqueue_many([Ask(case) for case in BUSY])
        await drain(relevo)
        jobs = await _jobs(relevo, Ask)
        assert len(jobs) == len(BUSY)
        for job in jobs:
            assert job.state is State.SCHEDULED
            assert job.attempt == 1
            assert job.failure is not None
            assert f"at {HERE}:" in job.failure.message


TASKS = """
import asyncio, sys
from relevo import App, Command

app = App("odd")

class Odd(Command, queue="odd:tasks:odd", attempts=1):
    case: str

class Good(Command, queue="odd:tasks:good", attempts=1):
    number: int

async def end():
    raise SystemExit("from a task")

async def interrupt():
    raise KeyboardInterrupt("from a task")

@app.worker
async def odd(order: Odd) -> None:
    match order.case:
        case "left":
            app.left = asyncio.create_task(end())
            await asyncio.sleep(0.05)
        case "interrupt":
            app.left_too = asyncio.create_task(interrupt())
            await asyncio.sleep(0.05)
        case "gathered":
            await asyncio.gather(end(), asyncio.sleep(5))
        case "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(end())
        case "soon":
            asyncio.get_running_loop().call_soon(sys.exit, 7)
            await asyncio.sleep(0.05)

@app.worker
async def good(order: Good) -> None:
    await asyncio.sleep(0.1)
"""


@pytest.mark.parametrize("store_name", ["sqlite"])  # no store takes part in it
async def test_f08_a_task_that_a_job_has_made_does_not_end_relevo_work(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd_tasks.py").write_text(TASKS)
    monkeypatch.syspath_prepend(tmp_path)
    tasks: Any = importlib.import_module("odd_tasks")
    relevo = start(tasks.app)
    cases = ["left", "interrupt", "gathered", "group", "soon"]
    async with relevo:
        odd = await relevo.enqueue_many([tasks.Odd(case) for case in cases])
        good = await relevo.enqueue_many([tasks.Good(number) for number in range(20)])
        program = "from relevo.cli import main; main()"
        words = ["-c", program, "work", "--until-empty", "--app", "odd_tasks:app"]
        work = await asyncio.create_subprocess_exec(
            sys.executable,
            *words,
            *("--store", relevo.store.url),
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await asyncio.wait_for(work.communicate(), 30)

        assert work.returncode == 0, said.decode()
        assert b"a task raised SystemExit; the process goes on" in said
        jobs = await relevo.store.find([receipt.id for receipt in good])
        assert {job.state for job in jobs if job is not None} == {State.DONE}, said.decode()
        ends = [job.state for job in await relevo.store.find([each.id for each in odd]) if job]
        assert ends == [State.DONE, State.DONE, State.DEAD, State.DEAD, State.DONE]


def relevo_said(job: Job) -> str:
    return json.loads(job.payload)["said"]


async def test_f08_what_once_is_given_may_raise_anything(start: Start) -> None:
    class Call(Command, queue="odd:answers:once", attempts=1):
        place: str
        case: str

    class Calls(Command, queue="odd:answers:once-plain", attempts=1):
        place: str
        case: str

    def arguments(place: str, case: str) -> dict[str, Any]:
        def act(*_: object) -> Any:
            _act(f"raise {case}")

        def fail(key: str) -> None:
            raise ConnectionError("no answer")

        match place:
            case "call":
                return {"call": act}
            case "judge":
                return {"call": fail, "judge": act}
            case "keep":
                return {"call": lambda key: "paid", "keep": act}
            case _:
                return {"call": fail, "find": act, "repeatable": True}

    async def call(order: Call, ctx: Context) -> None:
        await ctx.once("pay", **arguments(order.place, order.case))

    def calls(order: Calls, ctx: Context) -> None:
        ctx.once("pay", **arguments(order.place, order.case))

    relevo = start(App("odd", workers=[call, calls, _good]))
    async with relevo:
        for place in ("call", "judge", "keep", "find"):
            for case in RAISED:
                await relevo.enqueue(Call(place, case))
                await relevo.enqueue(Calls(place, case))
        await relevo.enqueue(Good(1))
        await drain(relevo, timeout="60s")
        for kind in (Call, Calls):
            jobs = await _jobs(relevo, kind)
            assert len(jobs) == 4 * len(RAISED)
            assert not [job for job in jobs if job.state in (State.READY, State.RUNNING)]
        assert [job.state for job in await _jobs(relevo, Good)] == [State.DONE]


@pytest.mark.parametrize("store_name", ["sqlite"])  # what a function raises, no store hears of
async def test_f08_pollers_schedules_and_webhooks_may_raise_anything(
    start: Start, clock: ManualClock
) -> None:
    called: Counter[str] = Counter()
    app = App("odd", workers=[_good])
    secret = "a" * 32

    def named(place: str, number: int, function: Any) -> Any:
        function.__name__ = function.__qualname__ = f"{place}_{number}"
        return function

    def add(number: int, case: str) -> None:
        def act(place: str) -> Any:
            called[f"{place} {case}"] += 1
            _act(f"raise {case}")

        async def pull(poll: Poll, ctx: Context) -> None:
            poll.rest = math.nan
            act("poller")

        async def look(poll: Poll, ctx: Context) -> None: ...

        async def hook(delivery: Delivery, ctx: Intake) -> None:
            act("webhook")

        async def keyless(delivery: Delivery, ctx: Intake) -> None: ...

        options: dict[str, Any] = {"every": "1s", "backoff": constant("1s")}
        app.poller(f"pull-{number}", **options)(named("pull", number, pull))
        look = named("look", number, look)
        app.poller(f"look-{number}:{{id}}", over=lambda: act("over"), **options)(look)
        app.schedule("* * * * *")(named("tick", number, lambda: act("schedule")))
        verify = sources.hmac_header("X-Signature", secret)
        app.webhook(f"/hook/{number}", verify=verify, key=lambda _: "1")(hook)
        app.webhook(f"/key/{number}", verify=verify, key=lambda _: act("key"))(keyless)

    for number, case in enumerate(RAISED):
        add(number, case)

    @app.poller("well", every="1s")
    async def well(poll: Poll, ctx: Context) -> None:
        called["well"] += 1

    relevo = start(app)
    async with relevo:
        for number in range(len(RAISED)):
            for path in (f"/hook/{number}", f"/key/{number}"):
                answer = await deliver(relevo, path, json={"id": 1})
                assert answer.status == 200, path
        await relevo.enqueue(Good(1))
        places = ("poller", "over", "schedule", "webhook", "key")
        left = [f"{place} {case}" for place in places for case in RAISED] + ["well"]
        async with working(relevo) as worker:

            def have_been_called(times: int) -> bool:
                left[:] = [each for each in left if called[each] < times]
                clock.advance("1m")
                worker.nudge()
                return not left

            await until(lambda: have_been_called(1), timeout="30s", what=str(left))
            turns = called["well"]
            left[:] = ["well"]
            await until(lambda: have_been_called(turns + 1), timeout="30s")
        assert [job.state for job in await _jobs(relevo, Good)] == [State.DONE]
