"""A job does not die of a provider that is not there, and no breaker blames one that is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx
import msgspec
import pytest

from relevo import (
    App,
    Breaker,
    Command,
    Context,
    ProviderUnavailable,
    ProviderUncertain,
    Relevo,
    State,
    constant,
    exponential,
)
from relevo.breaker import Circuit
from relevo.job import Job
from relevo.store import By, Effect, EffectState, Filter, Want
from relevo.testing import ManualClock, drain, until, working
from tests.servers.provider import Says, provider

Start = Callable[..., Relevo]

ANA = By("ana")


class Book(
    Command,
    queue="test:cars:book",
    attempts=6,
    backoff=exponential("1m", cap="10m"),
    breaker="supplier:{supplier}",
):
    """As in the guide."""

    supplier: int
    number: int


class Plain(Command, queue="test:cars:plain", attempts=6, backoff=exponential("1m", cap="10m")):
    number: int


class Lane(Command, queue="test:cars:lane", attempts=1, fair="hotel:{hotel}"):
    hotel: str
    number: int


class Quick(Command, queue="test:cars:quick", attempts=3, backoff=constant("1s")):
    number: int


class Once(Command, queue="test:cars:once", attempts=1):
    number: int


class Supplier:
    """It is down, or answers; `bad` are the orders that it answers with 500, always."""

    def __init__(self, *, is_down: bool = False, bad: set[int] | None = None) -> None:
        self.is_down = is_down
        self.bad = bad or set[int]()
        self.calls: Counter[int] = Counter()
        self.done: Counter[int] = Counter()

    def call(self, number: int) -> None:
        self.calls[number] += 1
        if self.is_down or number in self.bad:
            raise ProviderUnavailable("503")
        self.done[number] += 1

    def app(self) -> App:
        app = App("test")

        @app.worker
        async def book(order: Book) -> None:
            self.call(order.number)

        @app.worker
        async def plain(order: Plain) -> None:
            self.call(order.number)

        @app.worker
        async def lane(order: Lane) -> None:
            if order.hotel == "down":
                raise ProviderUnavailable("503")
            self.call(order.number)

        @app.worker
        async def quick(order: Quick) -> None:
            self.call(order.number)

        @app.worker
        async def once(order: Once, ctx: Context) -> None:
            async def call(key: str) -> str:
                self.call(order.number)
                return key

            await ctx.once("once", call)

        return app


async def circuit(relevo: Relevo, name: str) -> Circuit:
    found = {name: circuit for name, circuit, _ in await relevo.breakers.all()}
    return found.get(name, Circuit())


async def job_of(relevo: Relevo, id: str) -> Job:
    [job] = await relevo.store.find([id])
    assert job is not None
    return job


async def nothing_ready(relevo: Relevo) -> bool:
    busy = frozenset({State.READY, State.RUNNING})
    return await relevo.store.count(Filter(states=busy)) == 0


async def passes(relevo: Relevo, clock: ManualClock, minutes: int, *, step: int = 1) -> None:
    """So much time goes by while a worker works."""
    async with working(relevo) as worker:
        for _ in range(0, minutes, step):
            await relevo.breakers.tend()
            worker.nudge()
            await until(lambda: nothing_ready(relevo))
            clock.advance(timedelta(minutes=step))
        await relevo.breakers.tend()
        worker.nudge()
        await until(lambda: nothing_ready(relevo))


# a provider that is down


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("kind", [Book, Plain], ids=["a breaker", "none"])
async def test_f59_down_for_two_hours_no_job_dies_and_all_are_done_once_it_is_back(
    start: Start, clock: ManualClock, count: int, kind: type[Any]
) -> None:
    """The guide's own example, and the same without `breaker=`."""
    supplier = Supplier(is_down=True)
    relevo = start(supplier.app())
    orders = [Book(28, n) if kind is Book else Plain(n) for n in range(count)]
    receipts = await relevo.enqueue_many(orders)
    await passes(relevo, clock, 120)

    name = "supplier:28" if kind is Book else "test:cars:plain"
    jobs = [await job_of(relevo, each.id) for each in receipts]
    assert {job.state for job in jobs} == {State.PARKED}
    assert [job.attempt for job in jobs] == [0] * count
    assert {job.park for job in jobs} == {f"breaker:{name}"}
    assert (await circuit(relevo, name)).state == "open"

    supplier.is_down = False
    await passes(relevo, clock, 15)
    assert {(await job_of(relevo, each.id)).state for each in receipts} == {State.DONE}
    assert set(supplier.done.values()) == {1}
    assert (await circuit(relevo, name)).state == "closed"


async def test_an_only_attempt_opens_the_breaker_of_its_queue_and_lane(
    start: Start, clock: ManualClock
) -> None:
    """F59: the other lanes go on; behind the breaker nobody is called."""
    supplier = Supplier()
    relevo = start(supplier.app())
    first = await relevo.enqueue(Lane("down", 1))
    await drain(relevo)
    second = await relevo.enqueue(Lane("down", 2))
    others = await relevo.enqueue_many(Lane("up", n) for n in range(10, 15))
    await drain(relevo)

    name = "test:cars:lane/hotel:down"
    assert [turn.why for turn in (await circuit(relevo, name)).history] == [
        f"the last attempt of {first.id} failed: 503"
    ]
    for one in (first, second):
        job = await job_of(relevo, one.id)
        assert (job.state, job.attempt, job.park) == (State.PARKED, 0, f"breaker:{name}")
        assert job.failure is not None
    assert {(await job_of(relevo, each.id)).state for each in others} == {State.DONE}


async def test_jobs_that_failed_while_it_was_opening_get_their_attempts_back(
    start: Start, clock: ManualClock
) -> None:
    """F59: they wait behind the breaker with the others, and not for their next attempt."""
    supplier = Supplier(is_down=True)
    relevo = start(supplier.app())
    receipts = await relevo.enqueue_many(Book(28, n) for n in range(8))
    await drain(relevo, concurrency=1)
    assert (await circuit(relevo, "supplier:28")).state == "open"
    early = [await job_of(relevo, each.id) for each in receipts]
    assert Counter(job.state for job in early)[State.SCHEDULED] in (0, 4)  # 0: already given back
    await relevo.breakers.tend()
    await drain(relevo, concurrency=1)

    jobs = [await job_of(relevo, each.id) for each in receipts]
    assert {(job.state, job.attempt) for job in jobs} == {(State.PARKED, 0)}


async def test_a_plain_bug_still_ends_among_the_dead_letters(start: Start) -> None:
    app = App("test")

    @app.worker
    async def quick(order: Quick) -> None:
        raise [ValueError("a bug"), ConnectionError("of our own database")][order.number]

    relevo = start(app)
    receipts = await relevo.enqueue_many(Quick(n) for n in range(2))
    await drain(relevo, skip_waits=True)

    assert {(await job_of(relevo, each.id)).state for each in receipts} == {State.DEAD}
    assert await relevo.breakers.all() == []


async def test_one_order_that_is_always_answered_500_dies_and_holds_up_no_other(
    start: Start, clock: ManualClock
) -> None:
    """F59: between all of its attempts the provider answers others: it is there."""
    supplier = Supplier(bad={1})
    relevo = start(supplier.app())
    bad = await relevo.enqueue(Quick(1))
    for n in range(100, 104):
        await drain(relevo)
        await relevo.enqueue(Quick(n))
        await drain(relevo)
        clock.advance("3s")

    assert supplier.calls[1] == 3
    assert (await job_of(relevo, bad.id)).state is State.DEAD
    assert await relevo.breakers.all() == []


async def test_an_only_attempt_that_is_always_answered_500_dies_in_the_end(
    start: Start, clock: ManualClock
) -> None:
    supplier = Supplier(bad={1})
    relevo = start(supplier.app())
    bad = await relevo.enqueue(Once(1))
    for n in range(100, 110):
        await relevo.enqueue(Once(n))
        await passes(relevo, clock, 10, step=5)
        if (await job_of(relevo, bad.id)).state is State.DEAD:
            break

    assert (await job_of(relevo, bad.id)).state is State.DEAD
    assert set(supplier.done) == set(range(100, n + 1))

    # It may have died as the probe; the next order probes, and nothing waits for the dead one.
    [after] = await relevo.enqueue_many([Once(200)])
    await passes(relevo, clock, 1)
    assert (await job_of(relevo, after.id)).state is State.DONE
    assert (await circuit(relevo, "test:cars:once")).state == "closed"


@pytest.mark.parametrize(
    ("says", "state"),
    [(503, State.PARKED), (None, State.PARKED), (429, State.PARKED), (404, State.DEAD)],
)
async def test_a_client_s_error_outside_of_once_is_judged_too(
    start: Start, says: int | None, state: State
) -> None:
    """F59: a 5xx, a reset connection and a request to wait are no dead letters."""
    app = App("test")
    with provider(Says(says)) as supplier:

        @app.worker
        async def quick(order: Quick) -> None:
            async with httpx.AsyncClient(timeout=2) as client:
                answer = await client.post(supplier.url)
                answer.raise_for_status()

        relevo = start(app)
        receipt = await relevo.enqueue(Quick(1), attempts=1)
        await drain(relevo)

        assert (await job_of(relevo, receipt.id)).state is state
        assert len(supplier.asked) == 1


# a provider that is there


class Charge(
    Command,
    queue="test:shop:charge",
    attempts=3,
    backoff=constant("1s"),
    breaker=Breaker("bank", cooldown="30s", cap="10m"),
):
    number: int


class Bank:
    """It never fails."""

    def __init__(self) -> None:
        self.calls: Counter[int] = Counter()

    def app(self) -> App:
        async def charge(order: Charge, ctx: Context) -> None:
            async def call(key: str) -> str:
                self.calls[order.number] += 1
                return key

            await ctx.once("charge", call)

        return App("test", workers=[charge])


async def orphans(relevo: Relevo, count: int) -> list[str]:
    """Charges whose worker died between the intent and the answer."""
    receipts = await relevo.enqueue_many(Charge(n) for n in range(count))
    store = relevo.store
    claim = await store.claim([Want(queue="test:shop:charge")], count, "gone", 60_000)
    assert len(claim.leases) == count
    await store.intend(
        [
            Effect(
                job=lease.id, queue=lease.queue, name="charge", key=f"{lease.id}:charge", run="r"
            )
            for lease in claim.leases
        ]
    )
    await store.rescue(worker="gone")
    return [each.id for each in receipts]


async def test_what_earlier_runs_left_undecided_opens_no_breaker(start: Start) -> None:
    """F58: eight orphans are held, and new charges are made at once."""
    bank = Bank()
    relevo = start(bank.app())
    held = await orphans(relevo, 8)
    await drain(relevo, concurrency=1)
    new = await relevo.enqueue_many(Charge(n) for n in range(100, 105))
    await drain(relevo, concurrency=1)

    assert {(await job_of(relevo, id)).state for id in held} == {State.HELD}
    assert {(await job_of(relevo, each.id)).state for each in new} == {State.DONE}
    assert await relevo.breakers.all() == []
    assert bank.calls == dict.fromkeys(range(100, 105), 1)


async def test_orphans_neither_fail_nor_use_up_a_probe(start: Start, clock: ManualClock) -> None:
    """F58: one cool-down after it opened, the first job that calls closes the breaker."""
    bank = Bank()
    relevo = start(bank.app())
    held = await orphans(relevo, 8)
    await relevo.breakers.failed("bank", Charge.__relevo__.breaker, "x", "503", is_last=True)
    await drain(relevo)
    new = await relevo.enqueue_many(Charge(n) for n in range(100, 125))
    await drain(relevo)
    assert not bank.calls

    clock.advance("31s")
    await relevo.breakers.tend()
    closed = lambda: _is_closed(relevo)  # noqa: E731
    await drain(relevo, until=closed, timeout="10s")
    await drain(relevo, skip_waits=True)

    assert {(await job_of(relevo, id)).state for id in held} == {State.HELD}
    assert {(await job_of(relevo, each.id)).state for each in new} == {State.DONE}
    turns = (await circuit(relevo, "bank")).history
    assert [turn.state for turn in turns] == ["open", "half_open", "closed"]


async def _is_closed(relevo: Relevo) -> bool:
    return (await circuit(relevo, "bank")).state == "closed"


async def test_a_probe_whose_effect_was_made_before_closes_nothing(
    start: Start, clock: ManualClock
) -> None:
    """F58: it finds what an earlier run has confirmed; the next job is the probe."""
    bank = Bank()
    relevo = start(bank.app())
    [done] = await orphans(relevo, 1)
    [effect], _ = await relevo.store.effects(job=done)
    paid = msgspec.structs.replace(effect, state=EffectState.CONFIRMED, result=b'"paid"')
    assert await relevo.store.conclude([paid], ANA) == [True]
    await relevo.breakers.turn("bank", "open", ANA)
    await drain(relevo)
    clock.advance("11m")
    await relevo.breakers.tend()
    await drain(relevo)

    assert (await job_of(relevo, done)).state is State.DONE
    assert not bank.calls
    assert (await circuit(relevo, "bank")).state == "half_open"
    await relevo.enqueue(Charge(100))
    await drain(relevo)
    assert (await circuit(relevo, "bank")).state == "closed"


async def test_uncertainty_of_this_run_s_own_call_still_counts(start: Start) -> None:
    async def charge(order: Charge, ctx: Context) -> None:
        async def call(key: str) -> str:
            raise ProviderUncertain("sent, and no answer")

        await ctx.once("charge", call)

    relevo = start(App("test", workers=[charge]))
    await relevo.enqueue_many(Charge(n) for n in range(5))
    await drain(relevo, concurrency=1)

    assert (await circuit(relevo, "bank")).state == "open"
