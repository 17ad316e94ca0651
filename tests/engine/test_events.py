"""A fact is told to every listener, each with a job of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from relevo import App, Command, Context, DefinitionError, Event, Relevo, State, constant, listener
from relevo.message import codec
from relevo.store import Filter
from relevo.testing import drain

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
    receipts = await relevo.publish(Registered(7))
    await drain(relevo, skip_waits=True)

    assert sorted(heard) == ["profile 7", "wallet 1", "wallet 2"]
    jobs = await relevo.store.find([receipt.id for receipt in receipts])
    states = {job.queue: job.state for job in jobs if job is not None}
    assert states["test:mail:welcome"] is State.DEAD
    assert sorted(states.values()) == [State.DEAD, State.DONE, State.DONE]


async def test_a_fact_nobody_listens_to_is_no_job(start: Start) -> None:
    relevo = start(App("test"))

    assert await relevo.publish(Registered(7)) == []
    assert await relevo.store.count(Filter()) == 0


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
    [receipt] = await relevo.publish(Registered(7))
    await drain(relevo)

    assert threads == [receipt.id]
    story = await relevo.store.page(Filter(thread=receipt.id))
    assert len(story.jobs) == 2


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
