"""C23: what jobs carry is sealed in the database, and plain to everybody else."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import text

from relevo import (
    App,
    Command,
    Context,
    Event,
    Flow,
    Relevo,
    SealKeys,
    State,
    constant,
    listener,
)
from relevo.desk import Person, Role
from relevo.job import Job
from relevo.sealing import is_sealed, new_key
from relevo.store import Filter, Store
from relevo.stores.sealed import Sealed
from relevo.testing import ManualClock, drain, enqueued
from tests.conformance.fresh import SQL_STORES
from tests.engine.test_canary import mentions
from tests.servers.redis import RedisServer

ANN = Person("ann", Role.ADMIN)
OLD, NEW = new_key(), new_key()
CANARY = "canary-ana"

Start = Callable[..., Relevo]


class Greet(Command, queue="test:people:greet", attempts=1):
    name: str
    is_rude: bool = False


class Mail(Command, queue="test:people:mail", attempts=3, backoff=constant("1s")):
    name: str


class Gather(Command, queue="test:people:gather"):
    name: str


class People:
    """Greets, mails and gathers; remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def app(self) -> App:
        async def greet(order: Greet) -> dict[str, str]:
            self.told.append(order.name)
            if order.is_rude:
                raise ValueError("nobody answers")
            return {"greeted": order.name}

        async def mail(order: Mail, ctx: Context) -> dict[str, str]:
            async def send(key: str) -> dict[str, str]:
                self.told.append(order.name)
                return {"to": order.name}

            sent = await ctx.once("mail", send)
            if ctx.attempt == 1:
                raise ValueError("and now again")
            return sent

        async def gather(order: Gather, ctx: Context) -> Any:
            return await ctx.results()

        return App("test", workers=[greet, mail, gather])


@pytest.fixture
async def start(store: Store, clock: ManualClock) -> AsyncGenerator[Start]:
    """Engines on that store, each with the keys that it is given."""
    async with AsyncExitStack() as stack:

        def make(app: App, *keys: str) -> Relevo:
            seal = SealKeys(*keys) if keys else None
            engine = Relevo(store, apps=[app], clock=clock, seal=seal)
            stack.push_async_callback(engine.rest)
            return engine

        yield make


async def only(relevo: Relevo, id: str) -> Job:
    [job] = await relevo.store.find([id])
    assert job is not None
    return job


async def test_without_a_seal_there_is_no_wrapper(store: Store, start: Start) -> None:
    assert start(People().app()).store is store
    sealed = start(People().app(), NEW)
    assert isinstance(sealed.store, Sealed)
    assert Relevo(sealed.store, seal=SealKeys(NEW)).store is sealed.store
    assert isinstance(sealed.store.spawn(), Sealed)
    assert (sealed.store.name, sealed.store.dsn) == (store.name, store.dsn)


async def test_c23_a_job_its_effect_and_its_result_are_sealed(
    start: Start, store: Store, clock: ManualClock
) -> None:
    """C23: run, tried again, and looked at; nothing a person wrote is in the database."""
    people = People()
    relevo = start(people.app(), NEW)
    sent = await relevo.enqueue(Mail(CANARY))
    assert await mentions(store, CANARY) == 0
    assert await enqueued(relevo, Mail) == [Mail(CANARY)]
    await drain(relevo, skip_waits=True)

    job = await only(relevo, sent.id)
    assert (job.state, job.attempt) == (State.DONE, 2)
    assert people.told == [CANARY], "the effect was made once, and its result read the second time"
    assert msgspec.json.decode(job.result or b"") == {"to": CANARY}
    effect = await relevo.desk.effect(sent.id, "mail")
    assert msgspec.json.decode(effect.result or b"") == {"to": CANARY}
    assert await mentions(store, CANARY) == 0
    [raw] = await store.find([sent.id])
    assert raw is not None and raw.result is not None
    assert is_sealed(raw.payload) and is_sealed(raw.result)
    page = await relevo.store.page(Filter(queue="test:people:mail"))
    assert [one.payload for one in page.jobs] == [job.payload]
    assert (await relevo.store.page(Filter(text=CANARY))).jobs == []


async def test_c23_a_flow_hands_on_what_is_sealed(start: Start, store: Store) -> None:
    relevo = start(People().app(), NEW)
    flow = Flow("greetings")
    first = flow.add(Greet(CANARY), name="first")
    flow.add(Gather(CANARY), after=[first], name="last")
    started = await relevo.start(flow)
    await drain(relevo)

    last = await only(relevo, started.jobs["last"])
    assert msgspec.json.decode(last.result or b"") == {"first": {"greeted": CANARY}}
    assert await mentions(store, CANARY) == 0


async def test_c23_a_person_edits_and_retries_what_is_sealed(start: Start, store: Store) -> None:
    people = People()
    relevo = start(people.app(), NEW)
    rude = await relevo.enqueue(Greet(CANARY, is_rude=True))
    await drain(relevo)
    await relevo.desk.edit(rude.id, ANN, payload=b'{"name":"canary-eva"}', whole=True)
    await relevo.desk.retry([rude.id], ANN)
    await drain(relevo)

    assert (await only(relevo, rude.id)).state is State.DONE
    assert people.told == [CANARY, "canary-eva"]
    assert await mentions(store, "canary-") == 0


async def test_c23_keys_are_rotated_under_way(start: Start, store: Store, matrix: Any) -> None:
    """C23: what the old key sealed is run with both, and what comes of it needs the new one."""
    matrix.record("C23", note="sealed, keys rotated")
    before = start(People().app(), OLD)
    waiting = await before.enqueue(Greet(CANARY))
    people = People()
    both = start(people.app(), NEW, OLD)
    await both.enqueue(Greet("canary-eva"))
    await drain(both)

    assert sorted(people.told) == [CANARY, "canary-eva"]
    done = await only(start(People().app(), NEW), waiting.id)
    assert msgspec.json.decode(done.result or b"") == {"greeted": CANARY}
    assert is_sealed(done.payload), "it was written with the old key, and stays so"
    assert await mentions(store, "canary-") == 0


async def test_c23_an_edit_seals_with_the_new_key(start: Start) -> None:
    old = start(People().app(), OLD)
    job = await old.enqueue(Greet(CANARY, is_rude=True))
    await drain(old)
    both = start(People().app(), NEW, OLD)
    text = (await only(both, job.id)).payload

    await both.desk.edit(job.id, ANN, payload=text)

    assert (await only(start(People().app(), NEW), job.id)).payload == text
    assert is_sealed((await only(old, job.id)).payload)


async def test_c23_a_job_that_no_key_opens_is_dead_and_not_lost(start: Start) -> None:
    """It says which key is missing; with that key it is retried."""
    people = People()
    relevo = start(people.app(), OLD)
    job = await relevo.enqueue(Greet(CANARY))
    stranger = start(people.app(), NEW)
    await drain(stranger)

    dead = await only(stranger, job.id)
    assert dead.state is State.DEAD
    assert dead.failure is not None
    assert dead.failure.type == "SealError"
    assert SealKeys(OLD).names[0] in dead.failure.message
    assert "RELEVO_SEAL_KEYS" in dead.failure.message
    # Whoever saves what they see, without being able to read it, changes nothing.
    await stranger.desk.edit(job.id, ANN, payload=dead.payload)
    await relevo.desk.retry([job.id], ANN)
    await drain(relevo)
    assert people.told == [CANARY]


async def test_c23_a_seal_is_switched_on_off_and_on(start: Start, store: Store) -> None:
    """What was there before is read as it is; what is sealed waits for its key."""
    people = People()
    off = start(people.app())
    await off.enqueue(Greet("before"))
    on = start(people.app(), NEW)
    await on.enqueue(Greet("while-on"))
    await drain(on)
    assert sorted(people.told) == ["before", "while-on"]
    sealed = await on.enqueue(Greet("sealed"))
    await off.enqueue(Greet("after"))
    await drain(off)

    assert people.told[2:] == ["after"]
    dead = await only(off, sealed.id)
    assert (dead.state, dead.failure and dead.failure.type) == (State.DEAD, "SealError")
    await off.desk.retry([sealed.id], ANN)
    await drain(on)
    assert people.told[3:] == ["sealed"]


async def test_a_fact_that_cannot_be_read_is_not_taken_for_another(start: Start) -> None:
    """A result of a key that is gone is no result: who needs it fails, and says why."""
    old = start(People().app(), OLD)
    flow = Flow("greetings")
    first = flow.add(Greet(CANARY), name="first")
    flow.add(Gather(CANARY), after=[first], name="last")
    started = await old.start(flow)
    await drain(
        old, queues=["test:people:greet"], until=lambda: _is_done(old, started.jobs["first"])
    )
    new = start(People().app(), NEW)
    await new.desk.edit(started.jobs["last"], ANN, payload=b'{"name":"x"}', whole=True)
    await drain(new, skip_waits=True)

    last = await only(new, started.jobs["last"])
    assert (last.state, last.failure and last.failure.type) == (State.DEAD, "SealError")


async def test_c23_a_search_does_not_find_what_the_seal_made(start: Start, store: Store) -> None:
    """Somebody may erase what was found: letters that meet by chance mean nobody."""
    relevo = start(People().app(), NEW)
    job = await relevo.enqueue(Greet("sealed-ana", is_rude=True))
    mailed = await relevo.enqueue(Mail("sealed-ana"))
    await drain(relevo, skip_waits=True)
    [raw] = await store.find([job.id])
    assert raw is not None
    chance = raw.payload[-12:-6].decode()

    async def found(text: str, who: Relevo = relevo) -> list[str]:
        page = await who.store.page(Filter(text=text))
        return sorted(one.id for one in page.jobs)

    assert (await store.page(Filter(text=chance))).jobs
    assert await found(chance) == []
    assert await found(chance, start(People().app(), OLD)) == []
    assert await found("relevo-sealed") == []
    assert await found("sealed") == sorted([job.id, mailed.id]), "as it is there indeed"
    assert await found("nobody answers") == [job.id]
    assert (await relevo.store.effects(text="relevo-sealed"))[0] == []
    assert (await relevo.store.effects(text="mail"))[0] != []


async def _is_done(relevo: Relevo, id: str) -> bool:
    [job] = await relevo.store.find([id])
    return job is not None and job.state is State.DONE


@pytest.mark.parametrize("store_name", SQL_STORES)
async def test_c23_what_commits_with_rows_is_sealed(
    start: Start, store: Store, clock: ManualClock
) -> None:
    async def greet(order: Greet, ctx: Context) -> dict[str, str]:
        async with ctx.transaction():
            await ctx.enqueue(Mail(order.name))
        return {"greeted": order.name}

    relevo = start(App("test", workers=[greet]), NEW)
    async with relevo.transaction() as tx:
        await tx.execute(text("select 1"))
        job = await relevo.enqueue(Greet(CANARY), tx=tx)
    await drain(relevo)

    done = await only(relevo, job.id)
    assert msgspec.json.decode(done.result or b"") == {"greeted": CANARY}
    assert await enqueued(relevo, Mail) == [Mail(CANARY)]
    assert await mentions(store, CANARY) == 0


@pytest.mark.xdist_group("redis")
async def test_c23_letters_are_sealed_on_both_sides(tmp_path: Path, clock: ManualClock) -> None:
    """The outbox in SQLite and the jobs in Redis, read with nothing but their files."""

    async def greet(order: Greet, ctx: Context) -> dict[str, str]:
        async with ctx.transaction():
            pass
        return {"greeted": order.name}

    with RedisServer() as server:
        url, side = server.url, f"sqlite:///{tmp_path / 'side.db'}"
        app = App("test", workers=[greet])
        keys = SealKeys(NEW)
        async with Relevo(url, apps=[app], database=side, clock=clock, seal=keys) as relevo:
            store: Any = relevo.store
            async with relevo.transaction() as tx:
                job = await relevo.enqueue(Greet(CANARY), tx=tx)
                await relevo.enqueue(Mail(CANARY), tx=tx)
            await drain(relevo, until=lambda: _is_done(relevo, job.id))

            done = await only(relevo, job.id)
            assert msgspec.json.decode(done.result or b"") == {"greeted": CANARY}
            [letter] = await store.ledger.letters(carried=True)
            assert letter.job.payload == msgspec.json.encode(Mail(CANARY))
            assert await mentions(store.fast, CANARY) == 0
            assert await mentions(store.ledger, CANARY) == 0


class Moved(Event, name="people.moved"):
    name: str
    country: str


async def test_a_worker_without_the_key_gives_sealed_events_to_those_who_ask_for_them(
    start: Start,
) -> None:
    """It cannot read what the subscriber asks for: the subscriber's own worker looks."""
    told: list[str] = []

    async def greet(fact: Moved) -> None:
        told.append(fact.name)

    books = App("books", listeners=[listener(greet, where={"country": "ES"})])
    relevo = start(books, NEW)
    await drain(relevo)
    ana = await relevo.publish(Moved("ana", "ES"))
    eva = await relevo.publish(Moved("eva", "IT"))
    assert (ana.reached, eva.reached) == (1, 0)
    await drain(start(App("other")))
    await drain(relevo)

    assert told == ["ana"]
    [job] = ana.jobs.values()
    assert (await only(relevo, job)).state is State.DONE
