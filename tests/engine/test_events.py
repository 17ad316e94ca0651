"""A fact is told to every listener, each with a job of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from relevo import (
    App,
    Command,
    Context,
    DefinitionError,
    Event,
    Relevo,
    State,
    constant,
    listener,
    spreading,
)
from relevo.budget import Pace
from relevo.events import SUBSCRIBERS, without_subscriber
from relevo.job import LIVE
from relevo.message import EVENTS, codec
from relevo.spreading import register, restore_lost
from relevo.store import Filter, Note
from relevo.testing import ManualClock, drain, until, working
from tests.conformance.fresh import SQL_STORES

Start = Callable[..., Relevo]


class Registered(Event, name="user.registered"):
    user_id: int


async def test_every_listener_gets_its_own_job_retries_and_dead_letters(start: Start) -> None:
    heard: list[str] = []

    async def profile(fact: Registered, ctx: Context) -> None:
        heard.append(f"profile {fact.user_id}")

    async def wallet(fact: Registered, ctx: Context) -> None:
        heard.append(f"wallet {ctx.attempt}")
        if ctx.attempt < 2:
            raise RuntimeError("not yet")

    async def welcome(fact: Registered) -> None:
        raise RuntimeError("never")

    patient = listener(wallet, backoff=constant("1s"))
    hopeless = listener(welcome, attempts=1, queue="test:mail:welcome")
    relevo = start(App("test", listeners=[profile, patient, hopeless]))
    await drain(relevo)  # registers them
    published = await relevo.publish(Registered(7))
    assert published.reached == 3
    await drain(relevo, skip_waits=True)

    assert sorted(heard) == ["profile 7", "wallet 1", "wallet 2"]
    jobs = await relevo.store.find([*published.jobs.values()])
    states = {job.queue: job.state for job in jobs if job is not None}
    assert states["test:mail:welcome"] is State.DEAD
    assert sorted(states.values()) == [State.DEAD, State.DONE, State.DONE]


async def test_an_event_that_nothing_subscribes_to_is_kept(start: Start) -> None:
    relevo = start(App("test"))

    published = await relevo.publish(Registered(7))
    assert published.jobs == {}
    await drain(relevo)
    [event] = await relevo.store.find([published.id])
    assert event is not None
    assert (event.queue, event.state, event.payload) == (EVENTS, State.DONE, b'{"user_id":7}')


async def test_listeners_of_other_apps_hear_it_too(start: Start) -> None:
    heard: list[str] = []

    async def one(fact: Registered) -> None:
        heard.append("one")

    async def two(fact: Registered) -> None:
        heard.append("two")

    relevo = start(App("auth", listeners=[one]), App("games", listeners=[two]))
    await relevo.publish(Registered(7))
    await drain(relevo)

    assert sorted(heard) == ["one", "two"]


async def test_what_a_listener_orders_stays_on_the_thread(start: Start) -> None:
    class Welcome(Command, queue="test:mail:welcome"):
        user_id: int

    threads: list[str] = []

    async def welcome(fact: Registered, ctx: Context) -> None:
        await ctx.enqueue(Welcome(fact.user_id))

    async def send(order: Welcome, ctx: Context) -> None:
        threads.append(ctx.thread)

    relevo = start(App("test", listeners=[welcome], workers=[send]))
    published = await relevo.publish(Registered(7))
    await drain(relevo)

    assert threads == [published.id]
    story = await relevo.store.page(Filter(thread=published.id))
    assert len(story.jobs) == 3


def test_a_listener_takes_an_event_and_a_worker_a_command() -> None:
    class Order(Command, queue="test:a:b"):
        pass

    async def wrong_worker(fact: Registered) -> None: ...
    async def wrong_listener(order: Order) -> None: ...
    async def no_annotation(order) -> None: ...

    for make in (
        lambda: App("test", workers=[wrong_worker]),
        lambda: App("test", listeners=[wrong_listener]),
        lambda: App("test", workers=[no_annotation]),
    ):
        with pytest.raises(DefinitionError):
            make()


def test_two_workers_for_one_command_are_refused() -> None:
    class Order(Command, queue="test:a:b"):
        pass

    async def one(order: Order) -> None: ...
    async def two(order: Order) -> None: ...

    with pytest.raises(DefinitionError, match="a command has one worker"):
        Relevo("sqlite:///never-opened.db", apps=[App("test", workers=[one, two])])


def test_a_field_that_looks_like_a_secret_travels_only_if_allowed() -> None:
    class Plain(Command, queue="test:a:b"):
        password: str

    class Allowed(Command, queue="test:a:c", allow=["password"]):
        password: str

    with pytest.raises(DefinitionError):
        codec(Plain)
    assert codec(Allowed).encode(Allowed("a reference")) == b'{"password":"a reference"}'


# programs that share no code


class Paid(Event, name="order.paid"):
    """As the shop declares it."""

    order: int
    country: str = "IT"


def subscriber(heard: list[Any], **options: Any) -> App:
    """A program of another repository: the event's name and the fields that it needs."""

    class OrderPaid(Event, name="order.paid"):
        order: int

    async def send_receipt(fact: OrderPaid, ctx: Context) -> None:
        heard.append(fact.order)

    return App("mail", listeners=[listener(send_receipt, **options)])


async def test_an_event_reaches_a_program_that_the_publisher_does_not_know(start: Start) -> None:
    heard: list[int] = []
    shop, mail = start(App("shop")), start(subscriber(heard))
    await drain(mail)

    published = await shop.publish(Paid(1))
    await drain(mail)

    assert heard == [1]
    assert list(published.jobs) == ["mail.send-receipt"]
    [job] = await shop.store.find([*published.jobs.values()])
    assert job is not None
    assert (job.queue, job.state) == ("mail:listeners:send-receipt", State.DONE)
    assert (job.thread, job.cause) == (published.id, published.id)


async def test_a_subscriber_that_was_down_for_a_day_gets_all_of_it_once(
    start: Start, clock: ManualClock
) -> None:
    heard: list[int] = []
    shop = start(App("shop"))
    await drain(start(subscriber(heard)))  # registered, and gone

    for number in range(5):
        await shop.publish(Paid(number))
        clock.advance("3h")
    await drain(shop)  # whatever program runs meanwhile
    clock.advance("12h")
    await shop.publish(Paid(5))
    assert heard == []
    await drain(start(subscriber(heard)))

    assert sorted(heard) == [0, 1, 2, 3, 4, 5]


async def test_a_new_subscriber_gets_the_past_in_order_where_it_asks_for_it(
    start: Start, clock: ManualClock
) -> None:
    past: list[int] = []
    fresh: list[int] = []
    shop = start(App("shop"))
    for number in range(250):
        if number == 10:
            clock.advance("2d")
        await shop.publish(Paid(number))
    await drain(shop)

    late = subscriber(past, since="1d")
    await drain(start(late), until=lambda: len(past) == 240, concurrency=1)
    await drain(start(late))  # it has caught up
    await drain(start(subscriber(fresh, name="other")))
    assert past == list(range(10, 250))
    assert fresh == []

    await shop.publish(Paid(250))
    await drain(start(late))
    assert past[-1] == 250
    assert len(past) == 241


async def test_the_past_has_what_a_job_published_that_had_waited_for_days(
    start: Start, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its id is of the moment of that job, and older events lie in between."""
    monkeypatch.setattr(spreading, "PAGE", 2)
    heard: list[int] = []

    class Remind(Command, queue="test:orders:remind"):
        order: int

    async def remind(order: Remind, ctx: Context) -> None:
        await ctx.publish(Paid(order.order))

    shop = start(App("shop", workers=[remind]))
    await shop.enqueue(Remind(1), delay="3d")
    clock.advance("1h")
    for number in range(10, 14):
        await shop.publish(Paid(number))
    clock.advance("3d")
    await drain(shop)
    async with working(start(subscriber(heard, since="1d"))):
        await until(lambda: bool(heard))

    assert heard == [1]


async def test_a_catching_up_that_was_broken_off_begins_anew_and_doubles_nothing(
    start: Start,
) -> None:
    heard: list[int] = []
    shop = start(App("shop"))
    for number in range(20):
        await shop.publish(Paid(number))
    await drain(shop)
    late = start(subscriber(heard, since="7d"))
    await register(late, ["mail:listeners:send-receipt"])  # and it died
    [(event, behind)] = await register(late, ["mail:listeners:send-receipt"])
    assert (event, behind.name) == ("order.paid", "mail.send-receipt")

    for _ in range(2):
        await late.subscribers.change(event, lambda before: (behind,))
        await drain(late, until=partial(_has_caught_up, late, "mail.send-receipt"))
        await drain(late)

    assert sorted(heard) == list(range(20))


async def _has_caught_up(relevo: Relevo, name: str) -> bool:
    found = (await relevo.subscribers.read(["order.paid"]))["order.paid"]
    return [each.behind for each in found if each.name == name] == [None]


async def test_a_listener_that_the_store_lost_gets_what_was_published_meanwhile(
    start: Start, clock: ManualClock
) -> None:
    """As after a fail-over to a replica that lacked the last moments."""
    heard: list[int] = []
    shop, mail = start(App("shop")), start(subscriber(heard))
    await shop.publish(Paid(0))
    await drain(shop)  # before there was any subscriber
    clock.advance("1h")
    entries = await register(mail, ["mail:listeners:send-receipt"])
    [(_, first)] = entries
    await shop.publish(Paid(1))
    await drain(mail)
    other = msgspec.structs.replace(first, name="other.listener", queue="other:listeners:x")
    await shop.subscribers.change("order.paid", lambda before: (other,))
    for number in (2, 3):
        await shop.publish(Paid(number))
    await drain(shop)
    assert heard == [1]

    [(event, again)] = await restore_lost(mail, entries)
    assert (event, again.behind) == ("order.paid", first.registered_at)
    assert await restore_lost(mail, entries) == []
    await drain(mail, until=partial(_has_caught_up, mail, "mail.send-receipt"))
    await drain(mail)

    assert sorted(heard) == [1, 2, 3]
    listed = (await shop.subscribers.read([event]))[event]
    assert {each.name: each for each in listed} == {first.name: first, other.name: other}
    newer = msgspec.structs.replace(first, attempts=7)  # as newer code has it
    await shop.subscribers.change(event, lambda before: (newer,))
    assert await restore_lost(mail, entries) == []


async def test_a_running_worker_registers_a_listener_again_that_the_store_lost(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relevo.worker.pace_within", lambda *_, **__: Pace(parked=0.2))
    heard: list[int] = []
    shop, mail = start(App("shop")), start(subscriber(heard))
    async with working(mail) as worker:
        await until(lambda: worker.heard_at is not None)
        await shop.publish(Paid(0))
        await until(lambda: heard == [0])
        for number in (1, 2):
            await shop.subscribers.change("order.paid", without_subscriber("mail.send-receipt"))
            await shop.publish(Paid(number))
            await until(lambda n=number: heard == [*range(n + 1)])
            await until(partial(_has_caught_up, mail, "mail.send-receipt"))
    assert heard == [0, 1, 2]


async def test_a_renamed_listener_is_a_new_subscriber_until_the_old_one_is_removed(
    start: Start,
) -> None:
    before: list[int] = []
    after: list[int] = []
    shop = start(App("shop"))
    await drain(start(subscriber(before)))
    renamed = start(subscriber(after, name="receipts"))
    await drain(renamed)

    first = await shop.publish(Paid(1))
    await drain(renamed)
    assert (before, after) == ([], [1])
    assert set(first.jobs) == {"mail.send-receipt", "mail.receipts"}
    waiting = Filter(queue="mail:listeners:send-receipt", states=frozenset({State.READY}))
    assert await shop.store.count(waiting) == 1

    await shop.subscribers.change("order.paid", without_subscriber("mail.send-receipt"))
    second = await shop.publish(Paid(2))
    await drain(renamed)
    assert after == [1, 2]
    assert set(second.jobs) == {"mail.receipts"}
    assert await shop.store.count(waiting) == 1


async def test_a_listener_gets_only_the_events_that_it_asks_for(start: Start) -> None:
    heard: list[int] = []
    shop = start(App("shop"))

    class OrderPaid(Event, name="order.paid"):
        order: int
        country: str

    async def invoice(fact: OrderPaid) -> None:
        heard.append(fact.order)

    books = App("books", listeners=[listener(invoice, where={"country": ["ES", "PT"]})])
    await drain(start(books))
    reached = [
        (await shop.publish(Paid(n, country))).reached for n, country in enumerate(["ES", "IT"])
    ]
    await drain(start(books))

    assert (heard, reached) == ([0], [1, 0])


async def test_an_event_that_cannot_be_given_holds_up_no_others(start: Start) -> None:
    heard: list[int] = []
    shop, mail = start(App("shop")), start(subscriber(heard))
    await drain(mail)

    class Broken(Event, name="broken.told"):
        pass

    damaged = Note(kind=SUBSCRIBERS, name="broken.told", value=b"no list", version=0)
    assert await shop.store.remember([damaged]) == [True]
    broken = await shop.publish(Broken())
    await shop.publish(Paid(1))
    await drain(mail)

    assert heard == [1]
    [event] = await shop.store.find([broken.id])
    assert event is not None
    assert event.state in LIVE


@pytest.mark.parametrize(
    "options",
    [
        {"name": "Send Receipt"},
        {"name": ""},
        {"name": 7},
        {"where": {"town": "Rome"}},
        {"where": {"order": {"a": 1}}},
        {"where": "country=IT"},
        {"since": "yesterday"},
    ],
)
def test_a_wrong_option_of_a_listener_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError):
        subscriber([], **options)


@pytest.mark.parametrize("keep", ["10s", "91d"])
def test_an_event_is_kept_for_a_minute_to_ninety_days(keep: str) -> None:
    with pytest.raises(DefinitionError, match="1 minute to 90 days"):

        class Brief(Event, name="brief.told", keep=keep):  # pyright: ignore[reportUnusedClass]
            pass


async def test_a_listener_whose_fields_do_not_fit_parks_and_says_which(start: Start) -> None:
    class OrderPaid(Event, name="order.paid"):
        order: int
        customer: str

    async def thank(fact: OrderPaid) -> None: ...

    shop, mail = start(App("shop")), start(App("mail", listeners=[thank]))
    await drain(mail)
    published = await shop.publish(Paid(1))
    await drain(mail)

    [job] = await shop.store.find([*published.jobs.values()])
    assert job is not None
    assert job.state is State.PARKED
    assert job.failure is not None
    assert "customer" in job.failure.message


async def test_an_event_is_spread_while_every_slot_is_taken(start: Start) -> None:
    """Within two seconds, also in a program whose jobs take long."""

    class Long(Command, queue="shop:files:import"):
        pass

    begun, over = asyncio.Event(), asyncio.Event()

    async def slow(order: Long) -> None:
        begun.set()
        await over.wait()

    heard: list[int] = []
    shop = start(App("shop", workers=[slow]))
    await drain(start(subscriber(heard)))
    async with working(shop, concurrency=1):
        await shop.enqueue(Long())
        await begun.wait()
        published = await shop.publish(Paid(1))
        began = time.monotonic()

        async def is_given() -> bool:
            return (await shop.store.find([*published.jobs.values()]))[0] is not None

        try:
            await until(is_given)
        finally:
            over.set()
    assert time.monotonic() - began < 3  # of which one second is allowed to the machine


async def test_the_key_of_an_event_is_that_of_each_subscribers_job(start: Start) -> None:
    class Keyed(Event, name="price.changed", key="price:{id}", unique="forever"):
        id: int

    heard: list[int] = []

    async def notice(fact: Keyed) -> None:
        heard.append(fact.id)

    relevo = start(App("shop", listeners=[notice]))
    await drain(relevo)
    for _ in range(3):
        await relevo.publish(Keyed(7))
        await drain(relevo)

    assert heard == [7]


async def test_an_event_is_pruned_when_its_time_is_over(start: Start, clock: ManualClock) -> None:
    shop = start(App("shop"))
    published = await shop.publish(Paid(1))
    await drain(shop)
    clock.advance("6d")
    await shop.store.prune(dead_keep=1)
    assert await shop.store.find([published.id]) != [None]

    clock.advance("2d")
    while await shop.store.prune(dead_keep=1):
        pass
    assert await shop.store.find([published.id]) == [None]


@pytest.mark.parametrize("store_name", SQL_STORES)
async def test_an_event_of_a_transaction_reaches_who_registers_before_its_commit(
    start: Start,
) -> None:
    """The publisher has read the list by then."""
    heard: list[int] = []
    shop, mail = start(App("shop")), start(subscriber(heard))
    await shop.open()
    if shop.store.name == "sqlite":
        await shop.publish(Paid(0))  # the list is read; another writer would wait for the commit
        await drain(mail)
        async with shop.transaction() as session:
            published = await shop.publish(Paid(1), tx=session)
    else:
        async with shop.transaction() as session:
            published = await shop.publish(Paid(1), tx=session)
            await drain(mail)
    assert published.jobs == {}
    with pytest.raises(RuntimeError):
        async with shop.transaction() as session:
            await shop.publish(Paid(2), tx=session)
            raise RuntimeError
    await drain(mail)

    assert 1 in heard
    assert 2 not in heard
    assert len(heard) == len(set(heard))
