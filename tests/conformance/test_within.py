"""Your rows and your jobs, saved together or not at all."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

import pytest

from relevo.errors import MisuseError
from relevo.ids import new_id
from relevo.job import After, Ending, Receipt, State, Verdict
from relevo.store import Note, Store
from relevo.testing import ManualClock
from tests.conformance.conftest import Handles
from tests.conformance.fresh import AT_ONCE
from tests.conformance.relaying import Prompt
from tests.conformance.steps import (
    ANN,
    OTHER,
    WORK,
    add,
    add_parent,
    count,
    drain,
    insert,
    job,
    look,
    outcomes,
    put,
    state,
    states,
    take,
    take_id,
)


class Session(Protocol):
    """An application's own connection, and the one table it has."""

    connection: Any

    async def begin(self) -> None: ...
    async def write(self, text: str) -> None: ...
    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...
    async def texts(self) -> list[str]: ...
    async def close(self) -> None: ...


class SqliteSession:
    def __init__(self, store: Store) -> None:
        path = urlsplit(store.dsn).path.removeprefix("/")
        path = path if path.startswith("/") else f"/{path}"
        self.connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.connection.execute("create table if not exists app_rows (text text)")

    async def begin(self) -> None:
        self.connection.execute("begin immediate")

    async def write(self, text: str) -> None:
        self.connection.execute("insert into app_rows values (?)", (text,))

    async def commit(self) -> None:
        self.connection.execute("commit")

    async def rollback(self) -> None:
        self.connection.execute("rollback")

    async def texts(self) -> list[str]:
        return [text for (text,) in self.connection.execute("select text from app_rows")]

    async def close(self) -> None:
        self.connection.close()


class RelayedSession(SqliteSession):
    """Tells the store of its end, as a Context does."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.store = cast("Prompt", store)

    async def commit(self) -> None:
        await super().commit()
        self.store.transaction_ended(is_committed=True)

    async def rollback(self) -> None:
        await super().rollback()
        self.store.transaction_ended(is_committed=False)


class PostgresSession:
    connection: Any
    transaction: Any

    def __init__(self) -> None:
        self.table = f"app_rows_{new_id()}"

    async def open(self) -> PostgresSession:
        import asyncpg

        from tests.servers.postgres import postgres_url

        self.connection = await asyncpg.connect(postgres_url())
        await self.connection.execute(f"create table {self.table} (text text)")
        return self

    async def begin(self) -> None:
        self.transaction = self.connection.transaction()
        await self.transaction.start()

    async def write(self, text: str) -> None:
        await self.connection.execute(f"insert into {self.table} values ($1)", text)  # noqa: S608 - a name of ours

    async def commit(self) -> None:
        await self.transaction.commit()

    async def rollback(self) -> None:
        await self.transaction.rollback()

    async def texts(self) -> list[str]:
        rows = await self.connection.fetch(f"select text from {self.table}")  # noqa: S608 - a name of ours
        return [row["text"] for row in rows]

    async def close(self) -> None:
        await self.connection.execute(f"drop table {self.table}")
        await self.connection.close()


@pytest.fixture
async def session(store: Store, store_name: str) -> AsyncIterator[Session | None]:
    """None where the store is no SQL database."""
    match store_name:
        case "relayed":
            session = RelayedSession(store)
        case "sqlite" | "sealed":
            session = SqliteSession(store)
        case "postgres":
            session = await PostgresSession().open()
        case _:
            yield None
            return
    yield session
    await session.close()


async def refuses(store: Store) -> None:
    """A store that is no SQL database says so, and does nothing."""
    lease = await take_id(store, await add(store))
    with pytest.raises(MisuseError):
        await store.insert_within(object(), [job()])
    with pytest.raises(MisuseError):
        await store.settle_within(object(), [Ending(lease=lease, state=State.DONE)])
    with pytest.raises(MisuseError):
        await store.recall_within(object(), "cursor", ["n"])
    with pytest.raises(MisuseError):
        await store.remember_within(object(), [Note(kind="cursor", name="n", value=b"1")])
    assert await state(store, lease.id) is State.RUNNING
    assert await count(store) == 1


async def test_rows_and_jobs_commit_together(store: Store, session: Session | None) -> None:
    if session is None:
        await refuses(store)
        return
    new = job(key="k")
    await session.begin()
    await session.write("mine")
    answers = await store.insert_within(session.connection, [new])
    assert answers == [Receipt(new.id, Verdict.NEW)]
    await session.commit()
    store.committed([WORK])

    assert await session.texts() == ["mine"]
    assert await state(store, new.id) is State.READY
    assert [lease.id for lease in await take(store)] == [new.id]


async def test_a_rollback_leaves_nothing(store: Store, session: Session | None) -> None:
    """F40"""
    if session is None:
        await refuses(store)
        return
    batch = [job(key="k", unique="forever"), job(OTHER), job(OTHER, after=())]
    child = await add(store)
    await session.begin()
    await session.write("mine")
    await store.insert_within(session.connection, [*batch, job(after=(After(child),))])
    await session.rollback()

    assert await session.texts() == []
    assert await count(store) == 1
    assert (await look(store, child)).before == ()
    assert await store.find([new.id for new in batch]) == [None] * 3
    assert (await insert(store, key="k", unique="forever")).verdict is Verdict.NEW


async def test_an_open_transactions_jobs_are_unseen(store: Store, session: Session | None) -> None:
    if session is None:
        await refuses(store)
        return
    new = job()
    await session.begin()
    await store.insert_within(session.connection, [new])

    assert await store.find([new.id]) == [None]

    await session.commit()
    assert await state(store, new.id) is State.READY


@pytest.mark.parametrize("store_name", AT_ONCE)
async def test_the_rules_of_insert_hold_within(store: Store, session: Session | None) -> None:
    if session is None:
        await refuses(store)
        return
    known = await add(store, key="taken")
    await drain(store, "app:module:closed")
    child = job()
    parent = job(OTHER, after=(After(child.id),))
    fresh = job(key="fresh")
    batch = [
        child,
        parent,
        job(key="taken"),
        job("app:module:closed"),
        job(id=known),
        fresh,
        job(key="fresh"),
    ]
    await session.begin()
    answers = await store.insert_within(session.connection, batch)
    await session.commit()

    assert [answer.verdict for answer in answers] == [
        Verdict.NEW,
        Verdict.NEW,
        Verdict.IN_PROGRESS,
        Verdict.CLOSED,
        Verdict.IN_PROGRESS,
        Verdict.NEW,
        Verdict.IN_PROGRESS,
    ]
    assert answers[2].id == known
    assert answers[6].id == fresh.id
    assert await states(store, child.id, parent.id) == [State.READY, State.WAITING]


async def test_a_commit_wakes_who_waits(
    store: Store, session: Session | None, handles: Handles
) -> None:
    if session is None:
        await refuses(store)
        return
    (worker,) = await handles(1)
    assert await take(worker) == []
    waiting = asyncio.create_task(worker.wait([WORK], 20.0))
    await asyncio.wait({waiting}, timeout=0.3)
    await session.begin()
    await store.insert_within(session.connection, [job()])
    await session.commit()
    store.committed([WORK])

    async with asyncio.timeout(6):
        await waiting
    assert len(await take(worker)) == 1


async def test_notes_commit_with_their_rows(store: Store, session: Session | None) -> None:
    if session is None:
        await refuses(store)
        return
    note = Note(kind="cursor", name="n", value=b"1")
    for end in (session.rollback, session.commit):
        await session.begin()
        assert await store.recall_within(session.connection, "cursor", ["n"]) == [None]
        assert await store.remember_within(session.connection, [note]) == [True]
        assert await store.remember_within(session.connection, [note]) == [False]
        (own,) = await store.recall_within(session.connection, "cursor", ["n"])
        assert own is not None
        assert (own.value, own.version) == (b"1", 1)
        assert await store.recall("cursor", ["n"]) == [None]
        await end()

    (kept,) = await store.recall("cursor", ["n"])
    assert kept is not None
    assert (kept.value, kept.version) == (b"1", 1)


async def test_a_settle_commits_with_its_rows(store: Store, session: Session | None) -> None:
    if session is None:
        await refuses(store)
        return
    child = await add(store)
    parent = await add_parent(store, child)
    lease = await take_id(store, child, worker="w3")
    await session.begin()
    await session.write("booked")
    ending = Ending(lease=lease, state=State.DONE, result=b'"A1"')
    assert await store.settle_within(session.connection, [ending]) == [True]
    await session.commit()

    found = await look(store, child)
    assert (found.state, found.result) == (State.DONE, b'"A1"')
    assert await outcomes(store, child) == ["done"]
    assert await state(store, parent) is State.READY
    assert await session.texts() == ["booked"]
    assert await store.settle([ending]) == [False]


async def test_a_settle_rolled_back_never_was(store: Store, session: Session | None) -> None:
    """F40"""
    if session is None:
        await refuses(store)
        return
    child = await add(store)
    parent = await add_parent(store, child)
    lease = await take_id(store, child)
    await session.begin()
    await session.write("booked")
    ending = Ending(lease=lease, state=State.DONE)
    assert await store.settle_within(session.connection, [ending]) == [True]
    await session.rollback()

    assert await states(store, child, parent) == [State.RUNNING, State.WAITING]
    assert await session.texts() == []
    assert await store.settle([ending]) == [True]
    assert await state(store, parent) is State.READY


@pytest.mark.parametrize("store_name", AT_ONCE)
async def test_a_lost_lease_is_seen_within(
    store: Store, session: Session | None, clock: ManualClock
) -> None:
    if session is None:
        await refuses(store)
        return
    lapsed, cancelled, mine = await put(store, job(), job(), job())
    leases = await take(store, 3)
    await store.cancel([cancelled], ANN)
    clock.advance("30s")
    await store.extend([leases[2]], 60_000)
    clock.advance("31s")
    assert [one.id for one in await store.rescue()] == [lapsed]
    again = await take_id(store, lapsed, worker="w2")

    await session.begin()
    answers = await store.settle_within(
        session.connection, [Ending(lease=lease, state=State.DONE) for lease in leases]
    )
    await session.commit()

    assert answers == [False, False, True]
    assert await states(store, lapsed, cancelled, mine) == [
        State.RUNNING,
        State.CANCELLED,
        State.DONE,
    ]
    assert await store.settle([Ending(lease=again, state=State.DONE)]) == [True]


@pytest.mark.parametrize("store_name", AT_ONCE)
async def test_a_run_settles_and_enqueues_in_one_transaction(
    store: Store, session: Session | None
) -> None:
    if session is None:
        await refuses(store)
        return
    lease = await take_id(store, await add(store, keep=0))
    follow = job(OTHER, cause=lease.id)
    await session.begin()
    await store.insert_within(session.connection, [follow])
    assert await store.settle_within(
        session.connection, [Ending(lease=lease, state=State.DONE)]
    ) == [True]
    await session.commit()

    assert await states(store, lease.id, follow.id) == [None, State.READY]


@pytest.mark.parametrize("store_name", AT_ONCE)
async def test_many_transactions_share_a_key(store: Store, session: Session | None) -> None:
    if session is None:
        await refuses(store)
        return
    first = job(key="k")
    await session.begin()
    await store.insert_within(session.connection, [first])
    rival = asyncio.create_task(insert(store, key="k"))
    await asyncio.wait({rival}, timeout=0.3)
    await session.commit()

    answer = await rival

    assert answer == Receipt(first.id, Verdict.IN_PROGRESS)
    assert await count(store) == 1
