"""An effect outside happens once, whatever dies in between."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from relevo import (
    App,
    Command,
    Context,
    DefinitionError,
    Delivery,
    Intake,
    LeaseLost,
    MisuseError,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUncertain,
    Relevo,
    Retry,
    State,
    StoreUnavailable,
    constant,
    sources,
)
from relevo.desk import Desk, Person, Role
from relevo.errors import TooEarly
from relevo.ids import lasting
from relevo.store import By, Effect, EffectState, Store
from relevo.testing import ManualClock, drain, until, working

Start = Callable[..., Relevo]


class Book(Command, queue="test:cars:book", attempts=4, backoff=constant("1s")):
    code: str


@dataclass
class Supplier:
    """The world outside: it counts what really happened, by key."""

    answers: list[Any] = field(default_factory=list[Any])
    calls: list[str] = field(default_factory=list[str])
    bookings: dict[str, str] = field(default_factory=dict[str, str])

    async def book(self, key: str) -> str:
        self.calls.append(key)
        answer = self.answers.pop(0) if self.answers else "ok"
        if answer != "refuse" and not isinstance(answer, ProviderUnavailable):
            self.bookings.setdefault(key, f"CONF-{len(self.bookings) + 1}")
        if isinstance(answer, BaseException):
            raise answer
        if answer == "refuse":
            raise ProviderRefused("no cars left")
        return self.bookings[key]

    async def find(self, key: str) -> str | None:
        return self.bookings.get(key)


async def run(start: Start, supplier: Supplier, **once: Any) -> tuple[Relevo, str, list[str]]:
    codes: list[str] = []

    async def book(order: Book, ctx: Context) -> None:
        codes.append(await ctx.once("book", supplier.book, **once))

    relevo = start(App("test", workers=[book]))
    receipt = await relevo.enqueue(Book("RES-1"))
    await drain(relevo, skip_waits=True)
    return relevo, receipt.id, codes


async def state_of(relevo: Relevo, id: str) -> State:
    [job] = await relevo.store.find([id])
    assert job is not None
    return job.state


async def test_a_confirmed_effect_answers_from_the_ledger(start: Start) -> None:
    supplier = Supplier()
    tries: list[str] = []

    async def book(order: Book, ctx: Context) -> None:
        tries.append(await ctx.once("book", supplier.book))
        if ctx.attempt == 1:
            raise RuntimeError("died after the booking")

    relevo = start(App("test", workers=[book]))
    await relevo.enqueue(Book("RES-1"))
    await drain(relevo, skip_waits=True)

    assert tries == ["CONF-1", "CONF-1"]
    assert len(supplier.calls) == 1


async def test_effects_of_one_moment_share_their_trips(
    start: Start, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips: dict[str, list[int]] = {"intend": [], "conclude": []}
    for verb, sizes in trips.items():
        write = getattr(store, verb)

        async def counted(
            effects: Sequence[Effect], write: Any = write, sizes: list[int] = sizes
        ) -> Any:
            sizes.append(len(effects))
            return await write(effects)

        monkeypatch.setattr(store, verb, counted)
    supplier = Supplier()

    async def book(order: Book, ctx: Context) -> None:
        await ctx.once("book", supplier.book)

    relevo = start(App("test", workers=[book]))
    await relevo.enqueue_many(Book(f"RES-{number}") for number in range(200))
    await drain(relevo, concurrency=100)

    assert len(supplier.calls) == len(set(supplier.calls)) == 200
    for sizes in trips.values():
        assert sum(sizes) == 200
        assert len(sizes) < 50


async def test_a_provider_that_is_away_is_asked_again_with_the_same_key(start: Start) -> None:
    supplier = Supplier([ProviderUnavailable("503"), ProviderUnavailable("503")])

    relevo, id, codes = await run(start, supplier)

    assert codes == ["CONF-1"]
    assert len(set(supplier.calls)) == 1
    assert len(supplier.calls) == 3
    assert await state_of(relevo, id) is State.DONE


async def test_an_uncertain_answer_is_looked_up_before_it_is_repeated(start: Start) -> None:
    supplier = Supplier([TimeoutError("reply lost")])

    relevo, id, codes = await run(start, supplier, find=supplier.find)

    assert codes == ["CONF-1"]
    assert len(supplier.calls) == 1
    assert await state_of(relevo, id) is State.DONE


async def test_what_the_look_up_does_not_find_is_asked_for_again(start: Start) -> None:
    supplier = Supplier([TimeoutError("never arrived")])

    async def find(key: str) -> str | None:
        return None

    _, _, codes = await run(start, supplier, find=find)

    assert codes != []
    assert len(supplier.calls) == 2


@pytest.mark.parametrize("arrives", [True, False])
async def test_what_may_still_arrive_is_waited_for(start: Start, arrives: bool) -> None:
    """A call that broke off lands after the first look for it, or never."""
    supplier = Supplier([TimeoutError("no answer")])
    looks: list[datetime] = []

    async def find(key: str) -> str | None:
        looks.append(datetime.now(UTC) + relevo.clock.offset)
        return supplier.bookings[key] if arrives and len(looks) > 1 else None

    async def book(order: Book, ctx: Context) -> str:
        return await ctx.once("book", supplier.book, find=find, late="30s")

    relevo = start(App("test", workers=[book]))
    receipt = await relevo.enqueue(Book("RES-1"))
    await drain(relevo, skip_waits=True)

    [job] = await relevo.store.find([receipt.id])
    assert job is not None
    assert job.state is State.DONE
    assert len(supplier.calls) == (1 if arrives else 2)
    assert timedelta(seconds=28) < looks[1] - looks[0] < timedelta(seconds=32)
    assert job.attempt == 2  # to wait costs none


async def test_what_is_stopped_before_its_call_is_held_for_nobody(
    start: Start, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The intent is written all the same; nothing was called, and the next run knows."""
    intend, is_written, is_stopped = store.intend, asyncio.Event(), asyncio.Event()

    async def held_up(effects: Sequence[Effect]) -> list[Effect]:
        written = await intend(effects)
        is_written.set()
        await is_stopped.wait()
        return written

    monkeypatch.setattr(store, "intend", held_up)
    supplier = Supplier()

    async def book(order: Book, ctx: Context) -> None:
        booking = asyncio.create_task(ctx.once("book", supplier.book))
        if ctx.attempt == 1:
            await is_written.wait()
            booking.cancel()
            is_stopped.set()
        try:
            await booking
        except asyncio.CancelledError:
            raise ConnectionError("stopped") from None

    relevo = start(App("test", workers=[book]))
    receipt = await relevo.enqueue(Book("RES-1"))
    await drain(relevo, skip_waits=True)

    assert await state_of(relevo, receipt.id) is State.DONE
    assert len(supplier.calls) == 1


async def test_another_event_loop_is_told_to_come_to_this_one(start: Start) -> None:
    relevo = start(App("test"))
    await relevo.once("here", "call", Supplier().book, queue="test:cars:book")

    def there() -> None:
        asyncio.run(relevo.once("there", "call", Supplier().book, queue="test:cars:book"))

    with pytest.raises(MisuseError, match="another event loop"):
        await asyncio.to_thread(there)
    await relevo.once("again", "call", Supplier().book, queue="test:cars:book")


async def test_a_repeatable_call_is_made_again_with_the_same_key(start: Start) -> None:
    supplier = Supplier([TimeoutError("reply lost")])

    _, _, codes = await run(start, supplier, repeatable=True)

    assert codes == ["CONF-1"]
    assert len(supplier.calls) == 2
    assert len(set(supplier.calls)) == 1


async def test_without_a_way_to_know_the_job_is_held_for_a_person(start: Start) -> None:
    supplier = Supplier([TimeoutError("reply lost")])

    relevo, id, _ = await run(start, supplier)

    assert await state_of(relevo, id) is State.HELD
    [effect], _ = await relevo.store.effects(job=id)
    assert effect.state is EffectState.UNKNOWN
    assert len(supplier.calls) == 1


async def test_a_person_confirms_a_held_effect_and_the_job_goes_on(start: Start) -> None:
    supplier = Supplier([TimeoutError("reply lost")])
    relevo, id, codes = await run(start, supplier)

    support = Person("support", Role.ADMIN)
    await Desk(relevo.store).confirm_effect(id, "book", "CONF-7", support)
    await drain(relevo, skip_waits=True)

    assert codes == ["CONF-7"]
    assert len(supplier.calls) == 1
    assert await state_of(relevo, id) is State.DONE


async def test_a_refusal_is_dead_and_a_later_try_uses_another_key(start: Start) -> None:
    lost = RuntimeError("booked, and the answer was lost")
    supplier = Supplier(["refuse", ProviderUnavailable("503"), "refuse", lost])

    relevo, id, _ = await run(start, supplier, find=supplier.find)
    for _ in range(2):
        assert await state_of(relevo, id) is State.DEAD
        await relevo.store.retry([id], By("ana"))
        await drain(relevo, skip_waits=True)

    assert await state_of(relevo, id) is State.DONE
    keys = ["book", "book#2", "book#2", "book#3"]
    assert supplier.calls == [f"{lasting(id)}:{key}" for key in keys]
    assert list(supplier.bookings) == supplier.calls[-1:]


async def test_a_refusal_that_a_worker_caught_is_not_asked_again_by_its_next_run(
    start: Start,
) -> None:
    """The customer was told of the refusal, and the worker died then."""
    supplier = Supplier(["refuse"])
    heard: list[str] = []

    async def book(order: Book, ctx: Context) -> None:
        try:
            await ctx.once("book", supplier.book)
        except ProviderRefused as error:
            heard.append(str(error))
        if len(heard) < 3:
            raise RuntimeError("died after it was told")

    relevo = start(App("test", workers=[book]))
    receipt = await relevo.enqueue(Book("RES-1"))
    await drain(relevo, skip_waits=True)

    assert supplier.calls == [f"{lasting(receipt.id)}:book"]
    assert supplier.bookings == {}
    assert heard[0] == "no cars left"
    assert heard[1:] == ["'book' was refused: ProviderRefused: no cars left"] * 2
    assert await state_of(relevo, receipt.id) is State.DONE


async def test_a_persons_retry_asks_once_more_and_its_refusal_stands_again(start: Start) -> None:
    supplier = Supplier(["refuse", "refuse"])
    runs: list[int] = []

    async def book(order: Book, ctx: Context) -> None:
        runs.append(ctx.attempt)
        if len(runs) == 2:
            raise ConnectionError("the database was away, before the supplier was asked")
        try:
            await ctx.once("book", supplier.book)
        except ProviderRefused:
            if len(runs) == 3:
                raise RuntimeError("died after it was told") from None
            raise

    relevo = start(App("test", workers=[book]))
    receipt = await relevo.enqueue(Book("RES-1"))
    await drain(relevo, skip_waits=True)
    assert await state_of(relevo, receipt.id) is State.DEAD
    await Desk(relevo.store).retry([receipt.id], Person("ana", Role.ADMIN))
    await drain(relevo, skip_waits=True)

    assert len(runs) == 4
    assert supplier.calls == [f"{lasting(receipt.id)}:book", f"{lasting(receipt.id)}:book#2"]
    assert await state_of(relevo, receipt.id) is State.DEAD


async def test_a_person_may_want_another_key_of_a_refusal_that_a_worker_caught(
    start: Start,
) -> None:
    supplier = Supplier(["refuse", "refuse"])
    mail = Supplier([TimeoutError("reply lost")])
    heard: list[str] = []

    async def book(order: Book, ctx: Context) -> None:
        try:
            await ctx.once("book", supplier.book)
        except ProviderRefused as error:
            heard.append(str(error))
        await ctx.once("mail", mail.book)

    relevo = start(App("test", workers=[book]))
    receipt = await relevo.enqueue(Book("RES-1"))
    desk, ana = Desk(relevo.store), Person("ana", Role.ADMIN)
    await drain(relevo, skip_waits=True)
    assert await state_of(relevo, receipt.id) is State.HELD
    assert await desk.deny_effect(receipt.id, "book", ana, fresh_key=True)
    await drain(relevo, skip_waits=True)
    assert supplier.calls == [f"{lasting(receipt.id)}:book", f"{lasting(receipt.id)}:book#2"]

    assert await state_of(relevo, receipt.id) is State.HELD
    assert await desk.confirm_effect(receipt.id, "mail", "sent", ana)
    await drain(relevo, skip_waits=True)
    assert await state_of(relevo, receipt.id) is State.DONE
    assert len(supplier.calls) == 2  # what is decided of the mail asks for no car
    assert len(heard) == 3


async def test_a_call_cut_by_the_time_limit_is_unknown(start: Start) -> None:
    class Slow(Command, queue="test:cars:slow", timeout="1s"):  # its intent is written within it
        pass

    async def slow(order: Slow, ctx: Context) -> None:
        await ctx.once("book", lambda key: asyncio.sleep(30))

    relevo = start(App("test", workers=[slow]))
    receipt = await relevo.enqueue(Slow())
    await drain(relevo)

    [effect], _ = await relevo.store.effects(job=receipt.id)
    assert effect.state is EffectState.UNKNOWN


async def test_a_run_that_died_between_intent_and_answer_is_looked_up(
    start: Start, store: Store
) -> None:
    """m5: the process is killed after the effect and before its row."""
    supplier = Supplier()

    async def die(order: Book, ctx: Context) -> None:
        async def booked_then_dead(key: str) -> str:
            await supplier.book(key)
            raise KeyboardInterrupt

        if ctx.attempt == 1:
            await ctx.once("book", booked_then_dead, find=supplier.find)
        assert await ctx.once("book", supplier.book, find=supplier.find) == "CONF-1"

    relevo = start(App("test", workers=[die]))
    receipt = await relevo.enqueue(Book("RES-1"))
    await drain(relevo, skip_waits=True)

    assert await state_of(relevo, receipt.id) is State.DONE
    assert len(supplier.calls) == 1


async def test_f57_a_result_is_written_when_the_store_is_back(
    start: Start, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next run would know only that the call may have been made, and hold the job."""
    supplier = Supplier()
    conclude = store.conclude
    codes: list[str] = []
    tries = count(1)

    async def away_first(effects: Sequence[Effect]) -> list[bool]:
        if next(tries) <= 3:
            raise StoreUnavailable("away for a moment")
        return await conclude(effects)

    async def book(order: Book, ctx: Context) -> None:
        codes.append(await ctx.once("book", supplier.book))

    monkeypatch.setattr(store, "conclude", away_first)
    relevo = start(App("test", workers=[book]))
    receipt = await relevo.enqueue(Book("RES-1"))
    await drain(relevo)

    assert await state_of(relevo, receipt.id) is State.DONE
    assert codes == ["CONF-1"]
    assert len(supplier.calls) == 1


def away_after(
    monkeypatch: pytest.MonkeyPatch, store: Store, verb: str, *, calls: range
) -> Callable[[], int]:
    """Lose the store's answers to these calls of a verb: one written, the others not even sent."""
    made, called = getattr(store, verb), 0

    async def lost(effects: Sequence[Effect]) -> Any:
        nonlocal called
        called += 1
        if called == calls.start:
            await made(effects)
        if called in calls:
            raise StoreUnavailable("the answer was lost")
        return await made(effects)

    monkeypatch.setattr(store, verb, lost)
    return lambda: called


async def test_f57_an_intent_whose_answer_was_lost_holds_no_job(
    start: Start, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was written, the run did not hear of it and called nothing: the next run must know."""
    supplier = Supplier()

    async def book(order: Book, ctx: Context) -> None:
        await ctx.once("book", supplier.book)

    asked = away_after(monkeypatch, store, "intend", calls=range(1, 5))
    relevo = start(App("test", workers=[book]))
    receipt = await relevo.enqueue(Book("RES-1"))
    await drain(relevo, skip_waits=True)

    [job] = await relevo.store.find([receipt.id])
    assert job is not None
    assert (job.state, job.attempt) == (State.DONE, 1)
    assert len(supplier.calls) == 1
    assert asked() > 4


async def test_f57_a_run_may_ask_again_for_an_effect_whose_intent_was_not_answered(
    start: Start, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    supplier = Supplier()
    lost: list[StoreUnavailable] = []

    async def book(order: Book, ctx: Context) -> None:
        try:
            await ctx.once("book", supplier.book)
        except StoreUnavailable as error:
            lost.append(error)
            await ctx.once("book", supplier.book)

    away_after(monkeypatch, store, "intend", calls=range(1, 3))
    relevo = start(App("test", workers=[book]))
    receipt = await relevo.enqueue(Book("RES-1"))
    await drain(relevo, skip_waits=True)

    assert await state_of(relevo, receipt.id) is State.DONE
    assert (len(lost), len(supplier.calls)) == (1, 1)


async def test_f57_a_second_intent_whose_answer_was_lost_holds_no_job(
    start: Start, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call is known to have failed, and that stays known."""
    supplier = Supplier([ProviderUnavailable("away")])

    async def book(order: Book, ctx: Context) -> None:
        await ctx.once("book", supplier.book)

    # The first conclusion says that the call failed, the second that it is made once more.
    away_after(monkeypatch, store, "conclude", calls=range(2, 4))
    relevo = start(App("test", workers=[book]))
    receipt = await relevo.enqueue(Book("RES-1"))
    await drain(relevo, skip_waits=True)

    [job] = await relevo.store.find([receipt.id])
    assert job is not None
    assert (job.state, job.attempt, len(supplier.calls)) == (State.DONE, 2, 2)


async def test_f57_a_shared_effect_whose_intent_was_not_answered_is_made(
    start: Start, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work that came by a queue of others has no lease, and nobody holds it for a person."""
    supplier = Supplier()
    away_after(monkeypatch, store, "intend", calls=range(1, 4))
    relevo = start(App("test"))

    with pytest.raises(StoreUnavailable):
        await relevo.once("order", "book", supplier.book, queue="test:cars:book")
    [effect], _ = await relevo.store.effects(job="order")
    assert (effect.state, supplier.calls) == (EffectState.FAILED, [])

    await relevo.once("order", "book", supplier.book, queue="test:cars:book")
    assert len(supplier.calls) == 1


@pytest.mark.parametrize("when", ["before", "after"])
async def test_who_wakes_up_when_its_lease_is_over_makes_no_call(
    start: Start, store: Store, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """A process may be frozen for minutes, also between its intent and its call."""
    supplier = Supplier()
    intend = store.intend
    lost: list[LeaseLost] = []

    def freeze() -> None:
        for lease in worker.flights:
            lease.expires = 0.0

    async def frozen(effects: Sequence[Effect]) -> list[Effect]:
        written = await intend(effects)
        freeze()
        return written

    async def book(order: Book, ctx: Context) -> None:
        if when == "before":
            freeze()
        try:
            await ctx.once("book", supplier.book)
        except LeaseLost as error:
            lost.append(error)
            raise

    monkeypatch.setattr(store, "intend", frozen)
    relevo = start(App("test", workers=[book]))
    receipt = await relevo.enqueue(Book("RES-1"))
    async with working(relevo) as worker:
        await until(lambda: lost)

    assert supplier.calls == []
    effects, _ = await relevo.store.effects(job=receipt.id)
    assert [effect.state for effect in effects] == [EffectState.FAILED][: when == "after"]


async def test_a_second_call_has_an_intent_of_its_own(start: Start) -> None:
    """Or for what it may still do, `late` would be counted from the first."""
    seen: list[tuple[EffectState, int]] = []

    async def call(key: str) -> str:
        [effect], _ = await relevo.store.effects()
        seen.append((effect.state, effect.attempt))
        if len(seen) == 1:
            raise RuntimeError("it broke off")
        return "CONF-1"

    async def find(key: str) -> str | None:
        return None

    async def book(order: Book, ctx: Context) -> None:
        await ctx.once("book", call, find=find)

    relevo = start(App("test", workers=[book]))
    await relevo.enqueue(Book("RES-1"))
    await drain(relevo, skip_waits=True)

    assert seen == [(EffectState.INTENDED, 1), (EffectState.INTENDED, 2)]


async def test_a_result_comes_back_as_its_type(start: Start) -> None:
    @dataclass
    class Booking:
        code: str

    seen: list[object] = []

    async def book(order: Book, ctx: Context) -> None:
        async def call(key: str) -> Booking:
            return Booking("CONF-1")

        seen.append(await ctx.once("book", call, type=Booking))
        if ctx.attempt == 1:
            raise RuntimeError("again")

    relevo = start(App("test", workers=[book]))
    await relevo.enqueue(Book("RES-1"))
    await drain(relevo, skip_waits=True)

    assert seen == [Booking("CONF-1"), Booking("CONF-1")]


async def test_an_effect_without_a_proper_name_is_refused(start: Start) -> None:
    errors: list[Exception] = []

    async def book(order: Book, ctx: Context) -> None:
        for name in ("", "a\tb", "x" * 301, "a\n"):
            with pytest.raises(DefinitionError) as raised:
                await ctx.once(name, lambda key: asyncio.sleep(0))
            errors.append(raised.value)

    relevo = start(App("test", workers=[book]))
    await relevo.enqueue(Book("RES-1"))
    await drain(relevo)

    assert len(errors) == 4


async def test_uncertainty_raised_by_a_gateway_holds_the_job(start: Start) -> None:
    supplier = Supplier([ProviderUncertain("no answer after sending")])

    relevo, id, _ = await run(start, supplier)

    assert await state_of(relevo, id) is State.HELD


async def test_an_effect_that_several_jobs_share_is_made_once(start: Start) -> None:
    """Also when they meet at the same moment, and a look at the provider would find nothing yet."""
    calls: list[str] = []
    looks: list[str] = []

    async def book(order: Book, ctx: Context) -> str:
        async def call(key: str) -> str:
            calls.append(key)
            await until(lambda: len(met) == 2)
            return "CONF-1"

        async def find(key: str) -> str | None:
            looks.append(key)
            return None

        met.add(ctx.id)
        return await ctx.once("book", call, find=find, of="shared")

    met: set[str] = set()
    relevo = start(App("test", workers=[book]))
    ids = [(await relevo.enqueue(Book(f"RES-{n}"))).id for n in range(2)]
    await drain(relevo, skip_waits=True)

    assert (len(calls), looks) == (1, [])
    jobs = await relevo.store.find(ids)
    assert [job and job.result for job in jobs] == [b'"CONF-1"'] * 2


# what people call, and what it gives


async def test_a_plain_function_holds_up_neither_the_loop_nor_its_like(start: Start) -> None:
    """Ten calls that block went one after the other, and the loop stood still meanwhile."""
    together = threading.Barrier(10, timeout=30)
    where: set[str] = set()

    def call(key: str) -> str:
        together.wait()
        where.add(threading.current_thread().name)
        return "ok"

    async def book(order: Book, ctx: Context) -> None:
        await ctx.once("book", call)

    relevo = start(App("test", workers=[book]))
    receipts = await relevo.enqueue_many(Book(f"RES-{n}") for n in range(10))
    await drain(relevo, concurrency=10)

    states = {await state_of(relevo, receipt.id) for receipt in receipts}
    assert states == {State.DONE}
    assert threading.current_thread().name not in where


async def test_every_run_reads_the_same_record(start: Start) -> None:
    class Charge:
        def to_dict(self) -> dict[str, Any]:
            return {
                "id": "ch_1",
                "client_secret": "pi_1_secret_x1y2z3",
                "lines": [{"cents": Decimal("9.50")}],
            }

    seen: list[object] = []
    raws: list[object] = []

    async def book(order: Book, ctx: Context) -> object:
        charge = await ctx.once("charge", lambda key: Charge())
        seen.append((dict(charge), charge.id, charge.lines[0].cents))
        if ctx.attempt == 1:
            raws.append(charge.raw)
            raise RuntimeError("died after the call")
        with pytest.raises(MisuseError, match="run that made the call"):
            _ = charge.raw
        return charge

    relevo = start(App("test", workers=[book]))
    receipt = await relevo.enqueue(Book("RES-1"))
    await drain(relevo, skip_waits=True)

    [job] = await relevo.store.find([receipt.id])
    assert job is not None and job.state is State.DONE
    assert seen[0] == seen[1] == ({"id": "ch_1", "lines": [{"cents": "9.50"}]}, "ch_1", "9.50")
    assert isinstance(raws[0], Charge)
    assert job.result == b'{"id":"ch_1","lines":[{"cents":"9.50"}]}'


async def test_a_call_says_what_is_kept_of_its_result(start: Start) -> None:
    class Charge:
        id = "ch_1"

    seen: list[str] = []

    async def book(order: Book, ctx: Context) -> None:
        seen.append(await ctx.once("charge", lambda key: Charge(), keep=lambda charge: charge.id))
        if ctx.attempt == 1:
            raise RuntimeError("died after the call")

    relevo = start(App("test", workers=[book]))
    await relevo.enqueue(Book("RES-1"))
    await drain(relevo, skip_waits=True)

    assert seen == ["ch_1", "ch_1"]


@pytest.mark.parametrize("reads", [True, False])
async def test_a_result_that_cannot_be_kept_is_confirmed_and_holds_who_reads_it_later(
    start: Start, caplog: pytest.LogCaptureFixture, reads: bool
) -> None:
    calls: list[str] = []

    async def book(order: Book, ctx: Context) -> None:
        found: Any = await ctx.once(f"book-{reads}", lambda key: calls.append(key) or object())
        if ctx.attempt == 1:
            raise RuntimeError("died after the call")
        if reads:
            _ = found.code

    relevo = start(App("test", workers=[book]))
    receipt = await relevo.enqueue(Book("RES-1"))
    await drain(relevo, skip_waits=True)

    [effect], _ = await relevo.store.effects(job=receipt.id)
    [job] = await relevo.store.find([receipt.id])
    assert job is not None
    assert (effect.state, len(calls)) == (EffectState.CONFIRMED, 1)
    assert job.state is (State.HELD if reads else State.DONE)
    if reads:
        assert job.failure is not None and "keep=" in job.failure.message
        person = Person("ana", Role.ADMIN)
        await Desk(relevo.store).confirm_effect(receipt.id, f"book-{reads}", {"code": 1}, person)
        await drain(relevo, skip_waits=True)
        assert await state_of(relevo, receipt.id) is State.DONE


class Slow(Command, queue="test:cars:slow", timeout="500ms", backoff=constant("10ms")):
    name: str


async def test_a_plain_call_that_never_began_is_not_uncertain(start: Start) -> None:
    goes_on = threading.Event()

    def call(key: str) -> None:
        goes_on.wait(30)

    async def slow(order: Slow, ctx: Context) -> None:
        await ctx.once("book", call)

    relevo = start(App("test", workers=[slow]))
    busy = [asyncio.ensure_future(relevo.threads.invoke(call, "key")) for _ in range(32)]
    await asyncio.sleep(0)
    late = await relevo.enqueue(Slow("late"), attempts=2)
    await drain(relevo)
    goes_on.set()
    await asyncio.gather(*busy)

    [effect], _ = await relevo.store.effects(job=late.id)
    assert effect.state is EffectState.FAILED


@pytest.mark.parametrize("stops", [False, True], ids=["time", "deploy"])
async def test_a_plain_call_that_is_broken_off_is_waited_for_and_made_once(
    start: Start, stops: bool
) -> None:
    """F66, F67: past the time limit of an async worker, and when its process is told to stop."""
    goes_on, calls = threading.Event(), list[str]()

    def call(key: str) -> str:
        calls.append(key)
        goes_on.wait(30)
        return "CONF-1"

    async def slow(order: Slow, ctx: Context) -> str:
        return await ctx.once("book", call)

    relevo = start(App("test", workers=[slow]))
    receipt = await relevo.enqueue(Slow("cut"), timeout="20s" if stops else "300ms")
    async with working(relevo, lease="300ms", grace="100ms") as worker:
        await until(lambda: bool(calls))
        if stops:
            worker.stop()
        await until(lambda: bool(worker.runner.plain))
        [run] = worker.runner.plain.values()
        expires = run.lease.expires
        await until(lambda: run.lease.expires > expires + 0.3)
        assert await state_of(relevo, receipt.id) is State.RUNNING
        goes_on.set()
        if not stops:
            await until(lambda: _is(relevo, receipt.id, State.DONE))
    [effect], _ = await relevo.store.effects(job=receipt.id)
    assert effect.state is EffectState.CONFIRMED
    await drain(relevo)
    assert (await state_of(relevo, receipt.id), len(calls)) == (State.DONE, 1)


async def _is(relevo: Relevo, id: str, state: State) -> bool:
    return await state_of(relevo, id) is state


async def test_a_later_no_speaks_for_its_own_try_alone(start: Start) -> None:
    """Both stories are told, the job waits for a person, and no other key is used by itself."""
    supplier = Supplier([TimeoutError("reply lost"), "refuse", "ok"])
    relevo, id, _ = await run(start, supplier, repeatable=True)

    assert await state_of(relevo, id) is State.HELD
    [effect], _ = await relevo.store.effects(job=id)
    assert effect.state is EffectState.UNKNOWN
    assert "reply lost" in effect.error and "; later ProviderRefused: no cars" in effect.error
    person = Person("ana", Role.ADMIN)
    await Desk(relevo.store).deny_effect(id, "book", person, fresh_key=True)
    await drain(relevo, skip_waits=True)
    assert await state_of(relevo, id) is State.DONE
    assert supplier.calls == [f"{lasting(id)}:book", f"{lasting(id)}:book", f"{lasting(id)}:book#2"]


async def test_what_the_look_up_did_not_find_is_uncertain_no_more(start: Start) -> None:
    async def find(key: str) -> str | None:
        return None

    supplier = Supplier([TimeoutError("never arrived"), "refuse"])
    relevo, id, _ = await run(start, supplier, find=find)

    assert await state_of(relevo, id) is State.DEAD
    [effect], _ = await relevo.store.effects(job=id)
    assert (effect.state, effect.error) == (EffectState.REFUSED, "ProviderRefused: no cars left")


async def test_a_plain_look_up_runs_in_a_thread(start: Start) -> None:
    where: list[str] = []

    def find(key: str) -> str | None:
        where.append(threading.current_thread().name)
        return "CONF-1"

    _, _, codes = await run(start, Supplier([TimeoutError("lost")]), find=find)

    assert codes == ["CONF-1"]
    assert where[0].startswith("relevo-call")


async def test_a_generator_is_no_effect(start: Start) -> None:
    async def book(order: Book, ctx: Context) -> None:
        def call(key: str) -> Any:
            yield key

        await ctx.once("book", call)

    relevo = start(App("test", workers=[book]))
    receipt = await relevo.enqueue(Book("RES-1"))
    await drain(relevo, skip_waits=True)

    [effect], _ = await relevo.store.effects(job=receipt.id)
    assert effect.state is EffectState.FAILED
    [job] = await relevo.store.find([receipt.id])
    assert job is not None and job.failure is not None
    assert "return instead of yield" in job.failure.message


async def test_a_type_that_the_result_does_not_fit_holds_the_job(start: Start) -> None:
    @dataclass
    class Booking:
        code: str

    supplier = Supplier([TimeoutError("lost")])
    relevo, id, _ = await run(start, supplier, type=Booking)
    person = Person("ana", Role.ADMIN)
    desk = Desk(relevo.store)
    await desk.confirm_effect(id, "book", "CONF-7", person, anyway=True)
    await drain(relevo, skip_waits=True)
    assert await state_of(relevo, id) is State.HELD

    await desk.confirm_effect(id, "book", {"code": "CONF-7"}, person)
    await drain(relevo, skip_waits=True)
    assert await state_of(relevo, id) is State.DONE
    assert len(supplier.calls) == 1


async def test_a_webhook_s_function_makes_no_effects(start: Start) -> None:
    app = App("test")
    called: list[str] = []

    @app.webhook("/in", source=sources.github("a secret of tests"), key=lambda d: d.json["id"])
    async def came(delivery: Delivery, ctx: Intake) -> None:
        with pytest.raises(MisuseError, match=r"call ctx\.once\(\) in its worker"):
            ctx.once("mail", called.append)

    relevo = start(app)
    call = Delivery(path="/in", body=b'{"id":"e1"}', received_at=datetime.now(UTC))
    await relevo.receiver.take(relevo.receiver.doors["/in"], call)

    assert called == []


@pytest.mark.parametrize(
    "who",
    ["ana+news@example.com", "o'neil@example.com", "Zoë", "李", "a#b", "x%y", "(x)", "x" * 250],
)
async def test_an_effect_is_named_as_people_are(start: Start, who: str) -> None:
    app, keys = App("test"), list[str]()

    @app.worker
    async def work(order: Book, ctx: Context) -> Any:
        await ctx.once(f"mail:{who}", keys.append)
        return Retry("again", "1s") if ctx.attempt == 1 else None

    relevo = start(app)
    await relevo.enqueue(Book("RES-1"))
    await drain(relevo, skip_waits=True)
    assert len(keys) == 1
    assert keys[0].isascii()
    assert len(keys[0]) <= 255


async def test_a_call_that_takes_no_key_is_refused_before_it_leaves(start: Start) -> None:
    app, called = App("test"), list[str]()

    @app.worker
    async def work(order: Book, ctx: Context) -> None:
        await ctx.once("mail", lambda: called.append(""))  # pyright: ignore[reportCallIssue, reportArgumentType]

    relevo = start(app)
    receipt = await relevo.enqueue(Book("RES-1"))
    await drain(relevo, skip_waits=True)
    [job] = await relevo.store.find([receipt.id])
    assert job is not None
    assert job.state is State.DEAD
    assert job.failure is not None
    assert "lambda key" in job.failure.message
    assert called == []


# a run that comes late


@dataclass
class Frozen:
    """A call that answers when it is told to."""

    keys: list[str] = field(default_factory=list[str])
    answer: asyncio.Future[str] = field(
        default_factory=lambda: asyncio.get_event_loop().create_future()
    )

    async def __call__(self, key: str) -> str:
        self.keys.append(key)
        return await self.answer


async def begun(relevo: Relevo, **once: Any) -> tuple[Frozen, asyncio.Task[Any]]:
    """A run that waits for the provider's answer; a later one takes the effect over."""
    call = Frozen()
    task = asyncio.create_task(
        relevo.once("order", "charge", call, queue="test:cars:book", attempt=2, **once)
    )
    await until(lambda: call.keys)
    return call, task


async def ledger_of(relevo: Relevo) -> dict[str, Effect]:
    effects, _ = await relevo.store.effects(job="order")
    return {effect.name: effect for effect in effects}


@pytest.mark.parametrize(
    "error", [TimeoutError("no answer"), ProviderRefused("no"), ProviderUnavailable("away")]
)
async def test_what_a_late_run_was_told_does_not_overwrite_a_newer_run(
    start: Start, error: Exception
) -> None:
    relevo = start(App("test"))
    old, late = await begun(relevo, repeatable=True)
    new, newer = await begun(relevo, repeatable=True)
    before = await ledger_of(relevo)

    old.answer.set_exception(error)
    with pytest.raises(LeaseLost):
        await late
    assert await ledger_of(relevo) == before

    new.answer.set_result("CONF-2")
    assert await newer == "CONF-2"
    assert (await ledger_of(relevo))["charge"].result == b'"CONF-2"'


async def test_a_late_answer_is_that_of_the_newer_run_too(start: Start) -> None:
    """Both asked under one key, so the newer run's error cannot be the truth."""
    relevo = start(App("test"))
    old, late = await begun(relevo, repeatable=True)
    new, newer = await begun(relevo, repeatable=True)
    assert old.keys == new.keys

    old.answer.set_result("CONF-1")
    assert await late == "CONF-1"
    new.answer.set_exception(ProviderRefused("this order is booked"))

    assert await newer == "CONF-1"
    assert list(await ledger_of(relevo)) == ["charge"]


async def test_two_answers_under_one_key_are_both_kept_and_told(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    relevo = start(App("test"))
    old, late = await begun(relevo, repeatable=True)
    new, newer = await begun(relevo, repeatable=True)

    old.answer.set_result("CONF-1")
    assert await late == "CONF-1"
    new.answer.set_result("CONF-2")

    assert await newer == "CONF-1"
    ledger = await ledger_of(relevo)
    assert ledger.pop("charge").result == b'"CONF-1"'
    [(name, second)] = ledger.items()
    assert name.startswith("charge@late:")
    assert (second.state, second.result) == (EffectState.CONFIRMED, b'"CONF-2"')
    assert "happened twice" in caplog.text


async def test_a_late_answer_under_an_older_key_is_kept_beside_the_newer(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    relevo = start(App("test"))
    old, late = await begun(relevo)
    wish = (await ledger_of(relevo))["charge"]
    wish = msgspec.structs.replace(wish, state=EffectState.REFUSED, run="")
    assert await relevo.store.conclude([wish], By("ann", "they know of none")) == [True]
    new, newer = await begun(relevo)
    assert new.keys != old.keys

    old.answer.set_result("CONF-1")
    with pytest.raises(LeaseLost):
        await late
    assert "happened twice" in caplog.text
    new.answer.set_result("CONF-2")

    assert await newer == "CONF-2"
    ledger = await ledger_of(relevo)
    assert (ledger["charge"].key, ledger.pop("charge").result) == (new.keys[0], b'"CONF-2"')
    [second] = ledger.values()
    assert (second.key, second.result) == (old.keys[0], b'"CONF-1"')


async def test_a_late_run_that_is_stopped_writes_nothing(start: Start) -> None:
    relevo = start(App("test"))
    _, late = await begun(relevo, repeatable=True)
    new, newer = await begun(relevo, repeatable=True)
    before = await ledger_of(relevo)

    late.cancel()
    with pytest.raises(asyncio.CancelledError):
        await late

    assert await ledger_of(relevo) == before
    new.answer.set_result("CONF-2")
    assert await newer == "CONF-2"


async def test_what_an_older_run_writes_while_this_one_looks_is_read_again(start: Start) -> None:
    """Its answer came after the look-up and before the newer run's call, which is not made."""
    relevo = start(App("test"))
    old, late = await begun(relevo)

    async def find(key: str) -> None:
        old.answer.set_result("CONF-1")
        assert await late == "CONF-1"

    new = Frozen()
    answer = await relevo.once("order", "charge", new, queue="test:cars:book", attempt=2, find=find)

    assert (answer, new.keys) == ("CONF-1", [])


async def test_of_two_that_take_an_effect_over_one_calls(start: Start, clock: ManualClock) -> None:
    """Both read the intent of a run that died, before either has written its own."""
    relevo = start(App("test"))
    _, died = await begun(relevo)
    clock.advance("11s")
    looking: list[str] = []
    calls: list[str] = []

    async def find(key: str) -> None:
        looking.append(key)
        await until(lambda: len(looking) == 2)

    async def call(key: str) -> str:
        calls.append(key)
        return await asyncio.shield(answer)

    async def take_over() -> Any:
        try:
            return await relevo.once("order", "charge", call, queue="test:cars:book", find=find)
        except TooEarly as error:
            answer.set_result("CONF-1")
            return error

    answer = asyncio.get_running_loop().create_future()
    given = await asyncio.gather(take_over(), take_over())
    died.cancel()
    await asyncio.gather(died, return_exceptions=True)

    assert len(calls) == 1
    assert {type(each) for each in given} == {str, TooEarly}


# what a person tells


class Fee(Struct):
    cents: int
    tax: float | None = None


class Charged(Struct):
    id: str
    fees: list[Fee]
    paid: bool


async def test_a_person_is_told_what_the_type_of_the_call_wants(start: Start) -> None:
    """Before the first call of that name has given anything."""

    seen: list[Charged] = []

    async def book(order: Book, ctx: Context) -> None:
        seen.append(await ctx.once("book:1", lost, type=Charged))

    async def lost(key: str) -> None:
        raise TimeoutError("no answer")

    relevo = start(App("test", workers=[book]))
    receipt = await relevo.enqueue(Book("RES-1"))
    await drain(relevo, skip_waits=True)
    desk, ana = Desk(relevo.store), Person("ana", Role.OPERATOR)

    for wrong, said in (
        ("CONF-1", r"it is an object, not a text"),
        ({"id": "1", "fees": []}, r"it has paid, too"),
        ({"id": 1, "fees": [], "paid": True}, r"'id' is a text, not a number"),
        ({"id": "1", "fees": [{"cents": 1.5}], "paid": True}, r"'fees\[0\].cents' is a whole"),
    ):
        with pytest.raises(MisuseError, match=said) as told:
            await desk.confirm_effect(receipt.id, "book:1", wrong, ana)
        assert """--result '{"id":"…","fees":[],"paid":true}'; --anyway""" in str(told.value)
    right = {"id": "1", "fees": [{"cents": 2, "tax": None}], "paid": True}
    assert await desk.confirm_effect(receipt.id, "book:1", right, ana) is True
    await drain(relevo)
    assert seen == [Charged("1", [Fee(2)], True)]


async def test_a_hint_shows_values_of_their_kind_and_how_to_insist(start: Start) -> None:
    answers: list[Any] = [{"id": "1", "cents": 5, "paid": True, "to": {"name": "Ann"}}]

    async def call(key: str) -> Any:
        if not answers:
            raise TimeoutError("no answer")
        return answers.pop()

    async def book(order: Book, ctx: Context) -> None:
        await ctx.once("book", call)

    relevo = start(App("test", workers=[book]))
    receipts = [await relevo.enqueue(Book(f"RES-{n}")) for n in range(2)]
    await drain(relevo, skip_waits=True, concurrency=1)
    jobs = await relevo.store.find([each.id for each in receipts])
    [held] = [job.id for job in jobs if job and job.state is State.HELD]

    with pytest.raises(MisuseError) as told:
        await Desk(relevo.store).confirm_effect(held, "book", {}, Person("ana", Role.OPERATOR))
    hint = """--result '{"id":"…","cents":0,"paid":true,"to":{"name":"…"}}'; --anyway writes"""
    assert hint in str(told.value)
