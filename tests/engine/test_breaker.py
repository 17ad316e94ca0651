"""A breaker parks the jobs of a provider that keeps failing, unspent, and lets them go later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from relevo import (
    App,
    Breaker,
    Command,
    Context,
    ProviderRefused,
    ProviderUnavailable,
    Relevo,
    State,
    constant,
)
from relevo.breaker import Circuit
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
    await relevo.enqueue_many(Book(28, n) for n in range(200))
    async with working(relevo, concurrency=10) as worker:
        for _ in range(8):
            await until(lambda: _is_state(relevo, "open"))
            await until(lambda: _all_parked_or_scheduled(relevo))
            clock.advance("15m")
            worker.nudge()
        while_down = suppliers.calls[28]
        suppliers.down.clear()
        clock.advance("15m")
        worker.nudge()
        await until(lambda: _is_state(relevo, "closed"), timeout="20s")

        now = await relevo.store.now()
        waiting = await relevo.store.page(Filter(states=frozenset({State.SCHEDULED})), limit=200)
        seconds = Counter((job.run_at - now) // 1000 for job in waiting.jobs)
        assert max(seconds.values(), default=0) <= 20
        for _ in range(40):
            clock.advance("1s")
            worker.nudge()
            if len(suppliers.booked) == 200:
                break
            await until(lambda: _nothing_ready(relevo))
        await until(lambda: len(suppliers.booked) == 200, timeout="20s")

    assert set(suppliers.booked.values()) == {1}
    assert while_down < 5 + 10 + 3 * 8 + 10
    assert await relevo.store.count(Filter(states=frozenset({State.DEAD}))) == 0


async def _is_state(relevo: Relevo, state: str) -> bool:
    return (await circuit(relevo)).state == state if await relevo.breakers.all() else False


async def _all_parked_or_scheduled(relevo: Relevo) -> bool:
    busy = frozenset({State.READY, State.RUNNING})
    return await relevo.store.count(Filter(states=busy)) == 0


_nothing_ready = _all_parked_or_scheduled


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
        await relevo.enqueue_many(Book(28, n) for n in range(4))
        await drain(relevo, concurrency=1)
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
