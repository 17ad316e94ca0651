"""A worker: what becomes of a job, whatever its function does."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from relevo import (
    App,
    Cancelled,
    Command,
    Context,
    Dead,
    ProviderRefused,
    ProviderUnavailable,
    Relevo,
    Retry,
    Snooze,
    State,
    StoreUnavailable,
    constant,
)
from relevo.job import Ending, Job, Lease
from relevo.store import By, Claim, Store, Want, WorkerState
from relevo.testing import ManualClock, drain, until, working

Start = Callable[..., Relevo]


class Greet(Command, queue="test:people:greet", attempts=3, backoff=constant("10s"), timeout="2s"):
    name: str


async def job_of(relevo: Relevo, id: str) -> Job:
    [job] = await relevo.store.find([id])
    assert job is not None
    return job


async def run_one(start: Start, worker: Callable[..., Any], **options: Any) -> tuple[Relevo, Job]:
    """Enqueue one Greet, work until idle, and see what became of it."""
    app = App("test", workers=[worker])
    relevo = start(app)
    receipt = await relevo.enqueue(Greet("Ana"))
    await drain(relevo, **options)
    return relevo, await job_of(relevo, receipt.id)


async def test_a_job_runs_once_and_is_done(start: Start) -> None:
    seen: list[str] = []

    async def greet(order: Greet, ctx: Context) -> str:
        seen.append(f"{order.name} {ctx.attempt}")
        return "hello"

    _, job = await run_one(start, greet)

    assert seen == ["Ana 1"]
    assert (job.state, job.result, job.attempt) == (State.DONE, b'"hello"', 1)
    assert [attempt.outcome for attempt in job.history] == ["done"]


async def test_a_plain_function_runs_in_a_thread(start: Start) -> None:
    threads: list[int] = []

    def greet(order: Greet) -> str:
        threads.append(threading.get_ident())
        return f"hello {order.name}"

    _, job = await run_one(start, greet)

    assert threads != [threading.get_ident()]
    assert (job.state, job.result) == (State.DONE, b'"hello Ana"')


async def test_an_error_is_tried_again_after_its_backoff(start: Start, clock: ManualClock) -> None:
    tries: list[int] = []

    async def greet(order: Greet, ctx: Context) -> None:
        tries.append(ctx.attempt)
        if ctx.attempt < 3:
            raise ValueError("not yet")

    relevo, job = await run_one(start, greet)
    assert (job.state, tries) == (State.SCHEDULED, [1])
    assert 10_000 <= job.run_at - job.history[0].ended_at <= 11_000

    await drain(relevo, skip_waits=True)

    job = await job_of(relevo, job.id)
    assert (job.state, tries) == (State.DONE, [1, 2, 3])
    assert [attempt.outcome for attempt in job.history] == ["retry", "retry", "done"]


async def test_after_the_last_attempt_it_is_dead_with_its_reason(start: Start) -> None:
    async def greet(order: Greet) -> None:
        raise ValueError("no bell, no door, password=hunter2secret")

    _, job = await run_one(start, greet, skip_waits=True)

    assert (job.state, job.attempt) == (State.DEAD, 3)
    assert job.failure is not None
    assert job.failure.type == "ValueError"
    assert "no bell" in job.failure.message
    assert "hunter2secret" not in job.failure.message + job.failure.trace


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (ProviderRefused("no such guest"), State.DEAD),
        (ProviderUnavailable("busy"), State.SCHEDULED),
    ],
)
async def test_errors_of_providers_are_judged(start: Start, error: Exception, state: State) -> None:
    async def greet(order: Greet) -> None:
        raise error

    _, job = await run_one(start, greet)

    assert job.state is state


@pytest.mark.parametrize(
    ("outcome", "state", "attempt"),
    [
        (Retry("later", delay="1h"), State.SCHEDULED, 1),
        (Snooze("1h"), State.SCHEDULED, 0),
        (Dead("never"), State.DEAD, 1),
        (Cancelled("no need"), State.CANCELLED, 1),
    ],
)
async def test_a_worker_may_say_how_it_ended(
    start: Start, outcome: object, state: State, attempt: int
) -> None:
    async def greet(order: Greet) -> object:
        return outcome

    _, job = await run_one(start, greet)

    assert (job.state, job.attempt) == (state, attempt)


async def test_who_asks_for_another_attempt_has_to_have_one(start: Start) -> None:
    async def greet(order: Greet) -> Retry:
        return Retry("not yet")

    _, job = await run_one(start, greet, skip_waits=True)

    assert (job.state, job.attempt) == (State.DEAD, 3)
    assert job.failure is not None
    assert job.failure.message == "not yet"


async def test_a_run_past_its_time_limit_is_tried_again(start: Start) -> None:
    class Hang(Command, queue="test:people:hang", timeout="50ms"):
        pass

    async def hang(order: Hang) -> None:
        await asyncio.Event().wait()

    relevo = start(App("test", workers=[hang]))
    receipt = await relevo.enqueue(Hang())
    await drain(relevo)

    job = await job_of(relevo, receipt.id)
    assert job.state is State.SCHEDULED
    assert job.failure is not None
    assert job.failure.type == "TimeoutError"
    assert job.failure.message == "the worker ran past its time limit of 0.05 s"
    assert "asyncio.Event().wait()" in job.failure.trace, "where it was stuck"


async def _is(relevo: Relevo, id: str, state: State) -> bool:
    return (await job_of(relevo, id)).state is state


async def _is_at_last(relevo: Relevo, id: str, state: State) -> bool:
    try:
        return await _is(relevo, id, state)
    except StoreUnavailable:
        return False


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        SystemExit(3),
        GeneratorExit(),
        RecursionError(),
        asyncio.CancelledError(),
        Unprintable(),
        ValueError("x" * 5_000_000),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_a_worker_raises_is_judged(start: Start, error: BaseException) -> None:
    """F08: the worker lives, the job is judged, what is kept is small."""

    async def greet(order: Greet) -> None:
        raise error

    _, job = await run_one(start, greet)

    assert job.state is State.SCHEDULED
    assert job.failure is not None
    assert len(job.failure.message) + len(job.failure.trace) <= 8_192


@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), SystemExit(3), StopIteration(), asyncio.CancelledError()],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_leaves_a_thread_is_judged(start: Start, error: BaseException) -> None:
    """F08: at once, and not as a time-out: `next()` of something empty is a common mistake."""

    def greet(order: Greet) -> None:
        raise error

    _, job = await run_one(start, greet)

    assert job.state is State.SCHEDULED
    assert job.failure is not None
    told = "RuntimeError" if isinstance(error, StopIteration) else type(error).__name__
    assert job.failure.type == told


async def test_an_unknown_command_is_parked_until_somebody_knows_it(start: Start) -> None:
    """F45: old code beside new; the job waits, visible, and is neither dead nor lost."""

    class Wave(Command, queue="test:people:greet"):
        name: str

    seen: list[str] = []

    async def greet(order: Greet) -> None:
        pass

    async def wave(order: Wave) -> None:
        seen.append(order.name)

    old, new = start(App("test", workers=[greet])), start(App("test", workers=[wave]))
    receipt = await new.enqueue(Wave("Eva"))
    await drain(old)

    job = await job_of(old, receipt.id)
    assert (job.state, job.attempt) == (State.PARKED, 0)

    await drain(new, until=lambda: _is(new, receipt.id, State.DONE))
    assert seen == ["Eva"]


async def test_a_payload_that_cannot_be_read_is_parked(start: Start) -> None:
    class Old(Command, queue="test:people:greet", name="Greet"):
        surname: str

    async def greet(order: Greet) -> None:
        pass

    relevo = start(App("test", workers=[greet]))
    receipt = await relevo.enqueue(Old("García"))
    await drain(relevo)

    job = await job_of(relevo, receipt.id)
    assert job.state is State.PARKED
    assert job.failure is not None
    assert "name" in job.failure.message
    assert "García" not in job.failure.message


async def test_many_jobs_run_side_by_side_up_to_the_limit(start: Start) -> None:
    running = most = 0

    async def greet(order: Greet) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    relevo = start(App("test", workers=[greet]))
    await relevo.enqueue_many(Greet(str(n)) for n in range(60))
    await drain(relevo, concurrency=7)

    assert most == 7


async def test_a_polite_stop_gives_back_what_has_not_ended(start: Start) -> None:
    """F05: short jobs settle, long ones are handed back unspent and start elsewhere at once."""
    begun: list[str] = []
    started = asyncio.Event()

    async def greet(order: Greet) -> None:
        begun.append(order.name)
        if len(begun) == 3:
            started.set()
        await asyncio.sleep(0.05 if order.name == "short" else 60)

    relevo = start(App("test", workers=[greet]))
    names = ["short", "long", "long", "long", "long"]
    receipts = await relevo.enqueue_many(Greet(name) for name in names)
    async with working(relevo, concurrency=3, grace="300ms") as worker:
        await started.wait()
        worker.stop()

    jobs = [await job_of(relevo, receipt.id) for receipt in receipts]
    assert jobs[0].state is State.DONE
    assert [(job.state, job.attempt) for job in jobs[1:]] == [(State.READY, 0)] * 4


async def test_who_blocks_the_event_loop_is_told_off(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """F06: the log shows the stack; tests/faults sees from outside that the lease is kept."""

    async def greet(order: Greet) -> None:
        _sleep_until(lambda: "blocks the event loop" in caplog.text)

    relevo = start(App("test", workers=[greet]))
    receipt = await relevo.enqueue(Greet("Ana"))
    with caplog.at_level("WARNING", logger="relevo"):
        async with working(relevo, lease="600ms"):
            # This process stood still too: its own connections may have been given up meanwhile.
            await until(partial(_is_at_last, relevo, receipt.id, State.DONE))

    told = [record for record in caplog.records if "blocks the event loop" in record.message]
    [warning] = {record.thread: record for record in told}.values()
    assert "in greet" in warning.__dict__["stack"]


async def test_a_cancelled_job_stops_running(start: Start) -> None:
    from relevo.store import By

    begun = asyncio.Event()
    stopped = asyncio.Event()

    async def greet(order: Greet) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    relevo = start(App("test", workers=[greet]))
    receipt = await relevo.enqueue(Greet("Ana"))
    async with working(relevo, lease="300ms"):
        await begun.wait()
        assert await relevo.store.cancel([receipt.id], By("ana")) == [True]
        await asyncio.wait_for(stopped.wait(), 5)

    assert await _is(relevo, receipt.id, State.CANCELLED)


async def test_a_worker_that_has_lost_a_lease_shows_at_once_that_it_is_there(start: Start) -> None:
    """F61: it was shown as silent meanwhile, and its next beat is half a minute off."""
    from relevo.store import By

    begun = asyncio.Event()

    async def greet(order: Greet) -> None:
        begun.set()
        await asyncio.Event().wait()

    relevo = start(App("test", workers=[greet]))
    receipt = await relevo.enqueue(Greet("Ana"))

    async def is_shown(state: WorkerState) -> bool:
        return [each.state for each in await relevo.store.workers()] == [state]

    async with working(relevo, lease="600ms"):
        await begun.wait()
        await until(partial(is_shown, WorkerState.OK))
        [seen] = await relevo.store.workers()
        await relevo.store.silence([seen.id])
        assert await is_shown(WorkerState.SILENT)

        assert await relevo.store.cancel([receipt.id], By("ana")) == [True]

        await until(partial(is_shown, WorkerState.OK), timeout="5s")


async def test_an_ending_sent_twice_leaves_the_next_run_alone(
    start: Start, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """m7: the answer to a settle is lost, and the same worker has the job again already."""
    runs: list[int] = []
    is_again = asyncio.Event()
    is_refused = asyncio.Event()
    settle = store.settle

    async def cut_off(endings: Sequence[Ending]) -> list[bool]:
        if len(runs) == 1 and not is_again.is_set():
            assert await settle(endings) == [True]
            monkeypatch.setattr(store, "settle", once_more)
            raise StoreUnavailable("the answer was lost")
        return await settle(endings)

    async def once_more(endings: Sequence[Ending]) -> list[bool]:
        await is_again.wait()
        monkeypatch.setattr(store, "settle", settle)
        settled = await settle(endings)
        assert settled == [False]
        is_refused.set()
        return settled

    async def greet(order: Greet) -> Snooze | None:
        runs.append(len(runs) + 1)
        if len(runs) == 1:
            return Snooze("0s")
        is_again.set()
        await is_refused.wait()
        held_until = await lease_until()
        await until(lambda: is_extended(held_until))
        return None

    async def lease_until() -> int:
        return (await job_of(relevo, receipt.id)).lease_until or 0

    async def is_extended(until: int) -> bool:
        return await lease_until() > until

    monkeypatch.setattr(store, "settle", cut_off)
    relevo = start(App("test", workers=[greet]))
    receipt = await relevo.enqueue(Greet("Ana"))
    await drain(relevo, lease="300ms", until=lambda: _is(relevo, receipt.id, State.DONE))

    assert runs == [1, 2]


async def test_a_run_whose_lease_has_lapsed_stops_although_its_worker_has_the_job_again(
    start: Start, store: Store, clock: ManualClock
) -> None:
    """After an outage longer than a lease: the job runs once more, and not beside itself."""
    begun: list[int] = []
    stopped: list[int] = []
    may_end = asyncio.Event()

    async def greet(order: Greet, ctx: Context) -> None:
        begun.append(ctx.attempt)
        try:
            await may_end.wait()
        except asyncio.CancelledError:
            stopped.append(ctx.attempt)
            raise

    relevo = start(App("test", workers=[greet]))
    receipt = await relevo.enqueue(Greet("Ana"), attempts=50, timeout="60s")
    async with working(relevo, lease="3s") as worker:
        await until(lambda: begun)
        while len(begun) == 1:
            clock.advance("5s")
            await store.rescue()
            worker.nudge()
            await asyncio.sleep(0.01)
        await until(lambda: sorted(stopped) == begun[:-1])
        may_end.set()
        await until(lambda: _is(relevo, receipt.id, State.DONE))

    assert (await job_of(relevo, receipt.id)).attempt == begun[-1]


async def test_a_lease_is_counted_from_when_it_was_asked_for(
    start: Start, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time runs at the store while the answer is on its way."""
    claim = store.claim
    asked: list[float] = []
    expires: list[float] = []

    async def slow(wants: Sequence[Want], count: int, worker: str, lease: int) -> Claim:
        asked_at = asyncio.get_running_loop().time()
        claimed = await claim(wants, count, worker, lease)
        if claimed.leases:
            asked.append(asked_at)
            await asyncio.sleep(0.3)
        return claimed

    async def greet(order: Greet) -> None:
        expires.extend(lease.expires for lease in worker.flights)

    monkeypatch.setattr(store, "claim", slow)
    relevo = start(App("test", workers=[greet]))
    await relevo.enqueue(Greet("Ana"))
    async with working(relevo, lease="15s") as worker:
        await until(lambda: expires)

    assert expires[0] <= asked[0] + 15


async def test_what_was_claimed_ahead_does_not_wait_behind_a_slow_job(start: Start) -> None:
    """After many quick jobs a worker claims some more than it can run; others may be idle."""
    begun: list[str] = []
    may_end = asyncio.Event()

    async def greet(order: Greet) -> None:
        if order.name.startswith("slow"):
            begun.append(order.name)
            await may_end.wait()

    relevo = start(App("test", workers=[greet]))
    await relevo.enqueue_many(Greet(f"quick {n}") for n in range(500))
    slow = await relevo.enqueue_many(Greet(f"slow {n}") for n in range(6))

    async def running() -> int:
        jobs = await relevo.store.find([each.id for each in slow])
        return sum(job is not None and job.state is State.RUNNING for job in jobs)

    async with working(relevo, concurrency=1):
        await until(lambda: begun)
        assert await running() > 1, "nothing was claimed ahead"
        async with working(relevo, concurrency=10):
            await until(lambda: len(begun) == 6)
            may_end.set()


async def test_orphans_of_queues_that_nobody_here_serves_are_taken_back_too(
    start: Start, store: Store, clock: ManualClock
) -> None:
    class Wave(Command, queue="test:people:wave"):
        pass

    async def greet(order: Greet) -> None: ...

    async def wave(order: Wave) -> None: ...

    whole = start(App("test", workers=[greet, wave]))
    receipt = await whole.enqueue(Wave())
    assert (await store.claim(whole.wants(), 1, "silent", 1_000)).leases
    clock.advance("2s")

    async with working(whole, queues=["test:people:greet"]):
        await until(lambda: _is(whole, receipt.id, State.READY))


async def test_the_jobs_of_a_silent_worker_run_again(
    start: Start, store: Store, clock: ManualClock
) -> None:
    """N13: a lease that nobody extends lapses, and somebody else takes the job."""
    seen: list[int] = []

    async def greet(order: Greet, ctx: Context) -> None:
        seen.append(ctx.attempt)

    relevo = start(App("test", workers=[greet]))
    receipt = await relevo.enqueue(Greet("Ana"))
    claim = await store.claim(relevo.wants(), 1, "silent", 1_000)
    assert [lease.id for lease in claim.leases] == [receipt.id]
    clock.advance("2s")

    await drain(relevo, lease="500ms", until=lambda: _is(relevo, receipt.id, State.DONE))

    assert seen == [1]
    job = await job_of(relevo, receipt.id)
    assert [attempt.outcome for attempt in job.history] == ["rescued", "done"]


async def test_a_job_that_crashes_its_workers_alone_ends_among_the_dead(
    start: Start, store: Store, clock: ManualClock
) -> None:
    relevo = start(App("test", workers=[_never]))
    receipt = await relevo.enqueue(Greet("Ana"))
    for _ in range(3):
        claim = await store.claim(relevo.wants(), 1, "victim", 1_000)
        assert await store.isolate(claim.leases) == [True]
        clock.advance("2s")
        await store.rescue()
        assert (await job_of(relevo, receipt.id)).state is State.READY

    await drain(relevo)

    job = await job_of(relevo, receipt.id)
    assert job.state is State.DEAD
    assert job.failure is not None
    assert (job.failure.type, job.failure.message) == (
        "WorkerCrashed",
        "it crashed its worker 3 times, with nothing running beside it",
    )


async def test_a_suspect_runs_alone_and_then_beside_others(
    start: Start, store: Store, clock: ManualClock
) -> None:
    """One that was lost twice begins with nothing beside it, and others follow after a second."""
    beside: dict[str, set[str]] = {}
    running: set[str] = set()
    may_end = asyncio.Event()

    async def greet(order: Greet, ctx: Context) -> None:
        running.add(order.name)
        beside[order.name] = running - {order.name}
        await may_end.wait()
        running.discard(order.name)

    relevo = start(App("test", workers=[greet]))
    receipt = await relevo.enqueue(Greet("suspect"), timeout="60s")
    for _ in range(2):
        await store.claim(relevo.wants(), 1, "gone", 1_000)
        clock.advance("2s")
        await store.rescue()
    await relevo.enqueue_many([Greet(f"guest {n}") for n in range(5)])
    async with working(relevo):
        await until(lambda: "suspect" in beside)
        assert beside == {"suspect": set()}
        assert (await job_of(relevo, receipt.id)).crashes == 1

        await until(lambda: len(running) == 6)
        assert (await job_of(relevo, receipt.id)).crashes == 0
        may_end.set()
        await until(lambda: _is(relevo, receipt.id, State.DONE))


async def test_a_second_suspect_waits_for_the_first(
    start: Start, store: Store, clock: ManualClock
) -> None:
    """Those that have been alone before are alone to the end, one after the other."""
    beside: list[tuple[str, set[str]]] = []
    running: set[str] = set()

    async def greet(order: Greet, ctx: Context) -> None:
        running.add(order.name)
        beside.append((order.name, running - {order.name}))
        await asyncio.sleep(0.05)
        running.discard(order.name)
        beside.append((order.name, set(running)))

    relevo = start(App("test", workers=[greet]))
    await relevo.enqueue_many([Greet(f"suspect {n}") for n in range(3)])
    for _ in range(3):
        claim = await store.claim(relevo.wants(), 3, "gone", 1_000)
        assert len(claim.leases) == 3
        clock.advance("2s")
        await store.rescue()
    await relevo.enqueue_many([Greet(f"guest {n}") for n in range(3)])
    await drain(relevo, skip_waits=True)

    assert len(beside) == 12
    assert all(not others for name, others in beside if name.startswith("suspect"))
    jobs = [await job_of(relevo, lease.id) for lease in claim.leases]
    assert [(job.state, job.crashes, job.suspicion) for job in jobs] == [(State.DONE, 0, 0)] * 3


async def test_an_outage_while_a_crasher_is_condemned_ends_no_worker(
    start: Start, store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    find, refused = store.find, asyncio.Event()

    async def cut_off(ids: Sequence[str]) -> list[Job | None]:
        if not refused.is_set():
            refused.set()
            raise StoreUnavailable("it is away")
        return await find(ids)

    relevo = start(App("test", workers=[_never]))
    receipt = await relevo.enqueue(Greet("Ana"))
    for _ in range(3):
        claim = await store.claim(relevo.wants(), 1, "victim", 1_000)
        assert await store.isolate(claim.leases) == [True]
        clock.advance("2s")
        await store.rescue()

    monkeypatch.setattr(store, "find", cut_off)
    async with working(relevo):
        await asyncio.wait_for(refused.wait(), 10)
        monkeypatch.setattr(store, "find", find)
        clock.advance("60s")
        await until(lambda: _is(relevo, receipt.id, State.DEAD))
    job = await job_of(relevo, receipt.id)
    assert job.failure is not None
    assert job.failure.message.startswith("it crashed its worker 3 times")


async def suspected(relevo: Relevo, store: Store, clock: ManualClock, losses: int) -> str:
    """A job that was lost so often: twice, and it is watched; three times, and it runs alone."""
    receipt = await relevo.enqueue(Greet("suspect"))
    for _ in range(losses):
        claim = await store.claim(relevo.wants(), 1, "gone", 1_000)
        assert [lease.id for lease in claim.leases] == [receipt.id]
        clock.advance("2s")
        await store.rescue()
    return receipt.id


async def test_a_suspect_for_which_no_runner_is_free_runs_once(
    start: Start, store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was claimed ahead, and what runs takes longer than a suspect is watched for."""
    monkeypatch.setattr("relevo.isolation.WATCH", 0.1)
    runs: list[str] = []
    may_end, given_back = asyncio.Event(), asyncio.Event()
    settle, suspect = store.settle, ""

    async def greet(order: Greet) -> None:
        runs.append(order.name)
        if order.name == "slow":
            await may_end.wait()

    async def watched(endings: Sequence[Ending]) -> list[bool]:
        settled = await settle(endings)
        if any(end.lease.id == suspect and end.released for end in endings):
            given_back.set()
        return settled

    monkeypatch.setattr(store, "settle", watched)
    relevo = start(App("test", workers=[greet]))
    await relevo.enqueue(Greet("slow"), timeout="60s")
    async with working(relevo, concurrency=1, lease="60s") as worker:
        await until(lambda: runs == ["slow"])
        monkeypatch.setattr(worker, "_free", lambda: 0)
        suspect = await suspected(relevo, store, clock, 2)
        monkeypatch.setattr(worker, "_free", lambda: int(worker.isolation.flight is None))
        worker.nudge()
        await asyncio.wait_for(given_back.wait(), 10)
        may_end.set()
        clock.advance("2s")
        worker.nudge()
        await until(lambda: _is(relevo, suspect, State.DONE))
    assert runs == ["slow", "suspect"]


async def test_a_suspect_that_is_cancelled_before_it_begins_does_not_run(
    start: Start, store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[str] = []
    isolate = store.isolate

    async def greet(order: Greet) -> None:
        runs.append(order.name)

    async def slowly(leases: Sequence[Lease], *, is_alone: bool = True) -> list[bool]:
        kept = await isolate(leases, is_alone=is_alone)
        await store.cancel([suspect], By("ana"))
        await until(lambda: worker.isolation.flight is None)
        return kept

    relevo = start(App("test", workers=[greet]))
    suspect = await suspected(relevo, store, clock, 2)
    monkeypatch.setattr(store, "isolate", slowly)
    async with working(relevo, lease="300ms") as worker:
        await relevo.enqueue(Greet("guest"))
        await until(lambda: "guest" in runs)
    assert runs == ["guest"]


async def test_what_never_ends_keeps_no_suspect_and_no_worker_waiting(
    start: Start, store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that ignores its cancellation: the process never becomes empty for the suspect."""
    monkeypatch.setattr("relevo.worker.OVERSTAY", 0.2)
    runs: list[str] = []
    may_end = asyncio.Event()

    async def greet(order: Greet) -> None:
        runs.append(order.name)
        while order.name == "stuck" and not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await may_end.wait()

    relevo = start(App("test", workers=[greet]))
    async with working(relevo, lease="60s") as worker:
        await relevo.enqueue(Greet("stuck"), timeout="200ms")
        await until(lambda: runs == ["stuck"])
        monkeypatch.setattr(worker, "_free", lambda: 0)
        await suspected(relevo, store, clock, 3)
        monkeypatch.undo()
        monkeypatch.setattr("relevo.worker.OVERSTAY", 0.2)
        worker.nudge()
        await relevo.enqueue(Greet("guest"))
        await until(lambda: "guest" in runs)
        may_end.set()


async def test_a_worker_goes_on_while_another_of_its_host_runs_a_suspect_alone(
    start: Start, store: Store, clock: ManualClock
) -> None:
    """It does not let end what it runs for a suspect that cannot run yet."""
    runs: list[str] = []
    may_end = asyncio.Event()

    async def greet(order: Greet) -> None:
        runs.append(order.name)
        if order.name == "long":
            await may_end.wait()

    relevo = start(App("test", workers=[greet]))
    async with working(relevo, lease="60s") as worker:
        await until(lambda: worker.heard_at is not None)
        lock = worker.presence.lone_on_host()
        assert lock is not None
        try:
            await relevo.enqueue(Greet("long"), timeout="60s")
            await until(lambda: runs == ["long"])
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(worker, "_free", lambda: 0)
                await suspected(relevo, store, clock, 3)
            worker.nudge()
            await relevo.enqueue(Greet("guest"))
            await until(lambda: "guest" in runs)
        finally:
            worker.presence.let_go(lock)
            may_end.set()


async def test_a_folder_that_cannot_be_read_ends_no_worker_and_stops_no_rescue(
    start: Start,
    store: Store,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """No file handle is left, or somebody has put there what is not a worker's file."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    relevo = start(App("test", workers=[_greeted]))
    suspect = await suspected(relevo, store, clock, 3)
    async with working(relevo, lease="300ms") as worker:
        await until(lambda: any(tmp_path.glob("relevo-*/*/*")))
        [folder] = tmp_path.glob("relevo-*/*")
        (folder / "odd").mkdir()
        worker.nudge()
        guest = await relevo.enqueue(Greet("guest"))
        await until(lambda: _is(relevo, guest.id, State.DONE))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(worker, "_free", lambda: 0)
            orphan = await relevo.enqueue(Greet("orphan"))
            claim = await store.claim(relevo.wants(), 9, "silent", 1_000)
            assert orphan.id in {lease.id for lease in claim.leases}
            clock.advance("2s")
            await until(lambda: _is(relevo, orphan.id, State.READY))
        worker.nudge()
        await until(lambda: _is(relevo, orphan.id, State.DONE))

        (folder / "odd").rmdir()
        clock.advance("5s")
        worker.nudge()
        await until(lambda: _is(relevo, suspect, State.DONE))


async def blocked(relevo: Relevo, runs: list[str], codes: list[int]) -> int:
    """Have a worker run two jobs, of which the second blocks its event loop; its exit code."""

    def end(code: int) -> None:
        codes.append(code)
        raise InterruptedError("the process would be gone")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os._exit", end)
        patch.setattr("relevo.lifeline.GRACE", 0.5)
        await relevo.enqueue_many([Greet("first")])
        await relevo.enqueue_many([Greet("pill")])
        async with working(relevo, on_blocked="exit"):
            await until(lambda: "pill" in runs)
            await asyncio.sleep(0)
    return codes[0]


def blocking(runs: list[str], name: str, codes: list[int]) -> None:
    """Run a job, which blocks the event loop until its process would be gone."""
    runs.append(name)
    if name == "pill" and runs.count("pill") == 1:
        _sleep_until(lambda: codes)


def _sleep_until(truth: Callable[[], Any]) -> None:
    """Block the event loop until then."""
    deadline = time.monotonic() + 30
    while not truth() and time.monotonic() < deadline:
        time.sleep(0.05)


async def test_what_had_ended_in_a_blocked_process_does_not_run_again(start: Start) -> None:
    runs: list[str] = []
    codes: list[int] = []

    async def greet(order: Greet) -> None:
        blocking(runs, order.name, codes)

    relevo = start(App("test", workers=[greet]))
    assert await blocked(relevo, runs, codes) == 75
    await drain(relevo, until=lambda: runs.count("pill") > 1)
    assert runs == ["first", "pill", "pill"]


async def test_a_blocked_process_ends_although_the_store_refuses_it(
    start: Start, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a SQLite file that is locked by the transaction of the job that blocks."""
    runs: list[str] = []
    codes: list[int] = []

    async def greet(order: Greet) -> None:
        blocking(runs, order.name, codes)

    async def refused(*_args: Any, **_options: Any) -> None:
        raise StoreUnavailable("it is locked")

    monkeypatch.setattr(type(store), "rescue", refused)
    relevo = start(App("test", workers=[greet]))
    assert await blocked(relevo, runs, codes) == 75


async def _greeted(order: Greet) -> None:
    pass


async def _never(order: Greet) -> None:
    raise AssertionError("nobody calls this")
