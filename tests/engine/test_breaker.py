"""A breaker parks the jobs of a provider that keeps failing, unspent, and lets them go later."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

import msgspec
import pytest

from relevo import (
    App,
    Breaker,
    CircuitOpen,
    Command,
    Context,
    PayloadError,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUncertain,
    Relevo,
    State,
    constant,
)
from relevo.breaker import Circuit
from relevo.ids import new_id
from relevo.job import Job, NewJob
from relevo.message import codec
from relevo.store import By, Filter
from relevo.testing import ManualClock, drain, until, working

Start = Callable[..., Relevo]

RULE = Breaker("supplier:{supplier}", failures=5, cooldown="30s", cap="2m", release=100)


class Book(
    Command, queue="test:cars:book", attempts=3, backoff=constant("1s"), breaker=RULE, timeout="5s"
):
    supplier: int
    number: int


class Suppliers:
    """Some are down; it counts the calls."""

    def __init__(self, *down: int) -> None:
        self.down = set(down)
        self.calls: Counter[int] = Counter()
        self.booked: Counter[int] = Counter()

    def app(self) -> App:
        async def book(order: Book, ctx: Context) -> None:
            self.calls[order.supplier] += 1
            if order.supplier in self.down:
                raise ProviderUnavailable("503")
            self.booked[order.number] += 1

        return App("test", workers=[book])


async def circuit(relevo: Relevo, name: str = "supplier:28") -> Circuit:
    return {name: circuit for name, circuit, _ in await relevo.breakers.all()}[name]


async def state_of(relevo: Relevo, id: str) -> State:
    [job] = await relevo.store.find([id])
    assert job is not None
    return job.state


async def test_it_opens_parks_unspent_and_leaves_others_alone(start: Start) -> None:
    suppliers = Suppliers(28)
    relevo = start(suppliers.app())
    await relevo.enqueue_many(Book(28, n) for n in range(40))
    await relevo.enqueue_many(Book(126, n) for n in range(100, 140))
    await drain(relevo, concurrency=1, skip_waits=False)

    assert suppliers.calls[28] == 5
    assert sum(suppliers.booked.values()) == 40
    parked = await relevo.store.page(Filter(park="breaker:supplier:28"), limit=100)
    spent = Counter(job.attempt for job in parked.jobs)
    assert len(parked.jobs) >= 35
    assert spent[0] == len(parked.jobs)
    assert (await circuit(relevo)).state == "open"


async def test_down_for_two_hours_no_booking_dies_and_all_are_made_once(
    start: Start, clock: ManualClock
) -> None:
    """F35 in virtual time: 0 dead, nothing spent while open, each booked once, spread release."""
    suppliers = Suppliers(28)
    relevo = start(suppliers.app())
    count = 1_000 if relevo.store.name == "sqlite" else 300
    others = range(count, count + 80)
    await relevo.enqueue_many(Book(28, n) for n in range(count))
    async with working(relevo, concurrency=10) as worker:
        for round in range(8):
            await until(lambda: _is_state(relevo, "open"))
            await until(lambda: _nothing_ready(relevo))
            if round == 0:
                at_opening = suppliers.calls[28]
            await relevo.enqueue_many(Book(126, n) for n in others[round * 10 : round * 10 + 10])
            clock.advance("15m")
            worker.nudge()
        await until(lambda: _nothing_ready(relevo))
        kept = await _all(relevo, 28)
        # The first four failed while it was opening; they got their attempts back.
        assert sum(job.attempt for job in kept) == 0
        assert len(kept) == count
        assert set(suppliers.booked) == set(others)
        while_down = suppliers.calls[28]

        suppliers.down.clear()
        clock.advance("15m")
        worker.nudge()
        await until(lambda: _is_state(relevo, "closed"), timeout="20s")
        await until(lambda: _none_parked(relevo))
        await until(lambda: _nothing_ready(relevo))
        waiting = await _all(relevo, 28, State.SCHEDULED)
        now = await relevo.store.now()
        seconds = Counter((job.run_at - now) // 1000 for job in waiting)
        # At 100 a second the first of them are on their way before we have looked.
        assert len(waiting) > count // 3
        assert max(seconds.values()) <= count // 10 + 1
        for _ in range(60):
            clock.advance("500ms")
            worker.nudge()
            if len(suppliers.booked) == count + len(others):
                break
            await until(lambda: _nothing_ready(relevo))

    assert set(suppliers.booked) == set(range(count + len(others)))
    assert set(suppliers.booked.values()) == {1}
    assert at_opening < RULE.failures + 10  # what was on its way when it opened
    assert while_down - at_opening <= 8  # one probe a round
    assert await relevo.store.count(Filter(states=frozenset({State.DEAD}))) == 0


@pytest.mark.soak
async def test_other_suppliers_do_not_notice(start: Start) -> None:
    """F35: from pick-up to done, the 95th percentile with a supplier down is that of a good day."""
    suppliers = Suppliers()
    relevo = start(suppliers.app())

    async def p95(first: int) -> float:
        numbers = range(first, first + 500)
        done = frozenset({State.DONE})
        for n in numbers:
            await relevo.enqueue(Book(126 + n % 3, n))
        await until(lambda: all(suppliers.booked[n] for n in numbers), timeout="30s")
        await until(lambda: _nothing_ready(relevo), timeout="30s")
        page = await _all(relevo, 0, *done)
        ids = [job.id for job in page if json.loads(job.payload)["number"] in numbers]
        runs = [job.history[-1] for job in await relevo.store.find(ids) if job is not None]
        assert len(runs) == 500
        return sorted(run.ended_at - run.began_at for run in runs)[475]

    async with working(relevo, concurrency=20):
        good = await p95(10_000)
        suppliers.down.add(28)
        await relevo.enqueue_many(Book(28, n) for n in range(1_000))
        bad = await p95(20_000)

    assert bad <= 3 * good + 50  # milliseconds


async def _all(relevo: Relevo, supplier: int, *states: State) -> list[Job]:
    """Every booking with a supplier, or with any if it is 0."""
    found: list[Job] = []
    cursor = None
    while True:
        page = await relevo.store.page(Filter(states=frozenset(states)), cursor=cursor, limit=200)
        found += page.jobs
        if (cursor := page.cursor) is None:
            return [job for job in found if supplier in (0, json.loads(job.payload)["supplier"])]


async def _none_parked(relevo: Relevo) -> bool:
    return await relevo.store.count(Filter(states=frozenset({State.PARKED}))) == 0


async def _is_state(relevo: Relevo, state: str) -> bool:
    return (await circuit(relevo)).state == state if await relevo.breakers.all() else False


async def _nothing_ready(relevo: Relevo) -> bool:
    busy = frozenset({State.READY, State.RUNNING})
    return await relevo.store.count(Filter(states=busy)) == 0


async def test_refusals_never_open_it(start: Start) -> None:
    async def book(order: Book) -> None:
        raise ProviderRefused("no cars left")

    relevo = start(App("test", workers=[book]))
    await relevo.enqueue_many(Book(28, n) for n in range(20))
    await drain(relevo)

    assert await relevo.breakers.all() == []
    assert await relevo.store.count(Filter(states=frozenset({State.DEAD}))) == 20


async def test_a_success_in_between_forgets_the_failures(start: Start) -> None:
    suppliers = Suppliers(28)
    relevo = start(suppliers.app())
    for _ in range(3):
        suppliers.down = {28}
        failing = await relevo.enqueue_many(Book(28, n) for n in range(4))
        await drain(relevo, concurrency=1)
        await relevo.store.cancel([one.id for one in failing], By("ana"))  # or they come again
        suppliers.down = set()
        await relevo.enqueue(Book(28, 99))
        await drain(relevo, concurrency=1)

    assert (await circuit(relevo)).state == "closed"


async def test_people_open_and_close_it_by_hand(start: Start) -> None:
    suppliers = Suppliers()
    relevo = start(suppliers.app())
    await relevo.breakers.turn("supplier:28", "open", By("ana", "they asked us to wait"))
    await relevo.enqueue(Book(28, 1))
    await drain(relevo)
    assert suppliers.calls[28] == 0

    await relevo.breakers.turn("supplier:28", "close", By("ana"))
    await drain(relevo, skip_waits=True, until=lambda: suppliers.booked[1] == 1)

    audits, _ = await relevo.store.audits()
    assert [row.verb for row in audits] == ["breaker close", "breaker open"]
    history = (await circuit(relevo)).history
    assert [turn.state for turn in history] == ["open", "closed"]
    assert "they asked us to wait" in history[0].why


async def test_another_probes_when_the_prober_is_gone(start: Start, clock: ManualClock) -> None:
    """F36: the process with the half-open probe dies; its probe is given up, another is let in."""
    suppliers = Suppliers()
    relevo = start(suppliers.app())
    await relevo.breakers.turn("supplier:28", "open", By("ana"))
    clock.advance("11m")
    await relevo.breakers.admit("supplier:28", "a-job-that-never-ends")
    assert (await circuit(relevo)).state == "half_open"

    await relevo.enqueue(Book(28, 1))
    await drain(relevo)
    assert suppliers.calls[28] == 0

    clock.advance("70s")
    await drain(relevo, until=lambda: suppliers.booked[1] == 1)
    assert (await circuit(relevo)).state == "closed"


async def test_what_may_still_arrive_is_no_failure_of_who_answered(start: Start) -> None:
    calls: Counter[int] = Counter()

    async def book(order: Book, ctx: Context) -> None:
        async def call(key: str) -> str:
            calls[order.number] += 1
            if calls[order.number] == 1:
                raise RuntimeError("it broke off")
            return "CONF-1"

        async def find(key: str) -> str | None:
            return None

        await ctx.once("book", call, find=find, late="10s")

    relevo = start(App("test", workers=[book]))
    await relevo.enqueue_many(Book(28, n) for n in range(8))
    await drain(relevo, skip_waits=True)

    assert set(calls.values()) == {2}
    assert await relevo.breakers.all() == []


async def test_who_answers_with_a_refusal_is_there(start: Start) -> None:
    """Failures before it are forgotten, as after any answer."""

    class Patient(
        Command, queue="test:cars:book", attempts=2, backoff=constant("1h"), breaker=RULE
    ):
        supplier: int
        number: int

    answers: list[Exception] = []

    async def book(order: Patient) -> None:
        raise answers[order.number]

    relevo = start(App("test", workers=[book]))
    answers += [ProviderUnavailable("503")] * 4 + [ProviderRefused("no cars left")]
    answers += [ProviderUnavailable("503")] * 4
    orders = [Patient(28, n) for n in range(len(answers))]
    for order in orders:
        await relevo.enqueue(order)
        await drain(relevo)

    assert (await circuit(relevo)).failures == 4


async def test_failures_far_apart_are_not_in_a_row(start: Start, clock: ManualClock) -> None:
    suppliers = Suppliers(28)
    relevo = start(suppliers.app())
    for n in range(8):
        receipt = await relevo.enqueue(Book(28, n))
        await drain(relevo)
        await relevo.store.cancel([receipt.id], By("ana"))  # or it fails again
        clock.advance("20m")

    assert (await circuit(relevo)).state == "closed"


async def test_an_uncertain_call_is_a_persons_also_when_it_opens_the_breaker(start: Start) -> None:
    async def book(order: Book) -> None:
        raise ProviderUncertain("sent, and no answer")

    relevo = start(App("test", workers=[book]))
    receipts = await relevo.enqueue_many(Book(28, n) for n in range(5))
    await drain(relevo, concurrency=1)

    assert (await circuit(relevo)).state == "open"
    assert {await state_of(relevo, each.id) for each in receipts} == {State.HELD}


async def test_a_probe_that_runs_again_is_still_the_probe(start: Start, clock: ManualClock) -> None:
    """Its first worker has died; parked, it would wait for itself."""
    breakers = start().breakers
    await breakers.turn("supplier:28", "open", By("ana"))
    clock.advance("11m")
    await breakers.admit("supplier:28", "the-probe")

    await breakers.admit("supplier:28", "the-probe")
    with pytest.raises(CircuitOpen):
        await breakers.admit("supplier:28", "another")


async def test_who_has_not_heard_that_it_is_closed_asks_before_it_parks(start: Start) -> None:
    here, elsewhere = start().breakers, start().breakers
    await here.turn("supplier:28", "open", By("ana"))
    with pytest.raises(CircuitOpen):
        await here.admit("supplier:28", "a-job")
    await elsewhere.turn("supplier:28", "close", By("ana"))

    await here.admit("supplier:28", "a-job")


async def test_a_process_learns_of_breakers_that_others_opened(
    start: Start, clock: ManualClock
) -> None:
    """And lets one job try when the cool-down is over; who opened it may be gone."""
    first = start(Suppliers(28).app())
    await first.breakers.turn("supplier:28", "open", By("ana"))
    receipt = await first.enqueue(Book(28, 1))
    await drain(first)
    assert await state_of(first, receipt.id) is State.PARKED
    clock.advance("11m")

    later = start(Suppliers().app()).breakers
    await later.tend()
    assert await state_of(first, receipt.id) is State.PARKED
    await later.learn()
    await later.tend()
    assert await state_of(first, receipt.id) is not State.PARKED


async def test_what_was_parked_behind_a_breaker_that_has_closed_is_let_go(start: Start) -> None:
    """By a process that had not heard of it in time."""
    relevo = start(Suppliers().app())
    await relevo.breakers.turn("supplier:28", "open", By("ana"))
    receipt = await relevo.enqueue(Book(28, 1))
    await drain(relevo)
    closed = msgspec.json.encode(Circuit())
    [note] = await relevo.store.recall("breaker", ["supplier:28"])
    assert note is not None
    await relevo.store.remember([msgspec.structs.replace(note, value=closed)])

    async def is_free() -> bool:
        await relevo.breakers.tend()
        return await state_of(relevo, receipt.id) is not State.PARKED

    await until(is_free)


class OfNobody(Command, queue="test:calls:nobody", breaker="supplier:{supplier}"):
    supplier: str | None


async def test_a_breaker_without_a_name_costs_its_job_alone(start: Start) -> None:
    app, done = App("test"), list[int]()

    @app.worker
    async def call(order: OfNobody) -> None: ...

    @app.worker
    async def book(order: Book) -> None:
        done.append(order.number)

    relevo = start(app)
    with pytest.raises(PayloadError, match="supplier"):
        await relevo.enqueue(OfNobody(None))
    id = new_id()
    payload = codec(OfNobody).encode(OfNobody(None))  # as an older sender stored it
    nameless = NewJob(id=id, queue="test:calls:nobody", kind="OfNobody", payload=payload)
    await relevo.store.insert([nameless])
    await relevo.enqueue(Book(28, 1))
    await drain(relevo)

    [job] = await relevo.store.find([id])
    assert job is not None
    assert job.state is State.DEAD
    assert done == [1]
