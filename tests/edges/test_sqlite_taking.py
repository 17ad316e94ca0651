"""SQLite ends runs and claims the next jobs in one statement: no worker can tell."""

from __future__ import annotations

import asyncio
import sqlite3
import tracemalloc
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from relevo.job import After, Ending, Failure, Lease, NewJob, State, Suspicion
from relevo.store import By, Claim, Filter, Loss, QueueMode, Want
from relevo.stores.sqlite import claims, jobs, taking
from relevo.stores.sqlite import store as stores
from relevo.stores.sqlite.command import Command
from relevo.stores.sqlite.store import SqliteStore
from relevo.stores.sqlite.transaction import Tx
from relevo.testing import until
from tests.conformance.steps import OTHER, WORK, about, count, job, states
from tests.edges.test_sqlite_store import connected, opened
from tests.edges.test_sqlite_store import path as path

ANN = By("ann")
LEASE = 30_000
PLAIN = (Want(queue=WORK),)


@pytest.fixture
async def handles(path: Path) -> AsyncIterator[list[SqliteStore]]:
    """Two writers, of which each knows the queue and the worker."""
    async with AsyncExitStack() as stack:
        found = [
            await stack.enter_async_context(opened(path, way))
            for way in ("", "?synchronous=normal")
        ]
        await found[0].insert([job() for _ in found])
        for store in found:
            await settle(store, (await take(store, 1)).leases)
        yield found


@pytest.fixture
def longer(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What went the long way."""
    walked: list[str] = []

    def counted(name: str, walk: Callable[..., Any]) -> Callable[..., Any]:
        def verb(tx: Tx, *args: Any) -> Any:
            walked.append(name)
            return walk(tx, *args)

        return verb

    monkeypatch.setattr(claims, "claim", counted("claim", claims.claim))
    spied = counted("settle", jobs.settle_runs)
    monkeypatch.setattr(jobs, "settle_runs", spied)
    monkeypatch.setattr(stores, "settle_runs", spied)
    return walked


async def take(store: SqliteStore, number: int = 10, wants: Sequence[Want] = PLAIN) -> Claim:
    return await store.claim(wants, number, "w1", LEASE)


async def settle(store: SqliteStore, leases: Sequence[Lease], **fields: Any) -> list[bool]:
    return await store.settle([Ending(lease, State.DONE, **fields) for lease in leases])


async def turn(
    store: SqliteStore, endings: Sequence[Ending], number: int = 10
) -> tuple[list[bool], Claim]:
    """Endings and a claim that share a transaction."""
    ended = asyncio.ensure_future(store.settle(endings))
    claimed = asyncio.ensure_future(take(store, number))
    return await ended, await claimed


def never(tx: Tx, batch: Sequence[Command]) -> None:
    """Lays nothing out."""


def done(leases: Sequence[Lease]) -> list[Ending]:
    return [Ending(lease, State.DONE) for lease in leases]


async def test_a_plain_turn_takes_one_statement(
    handles: list[SqliteStore], longer: list[str]
) -> None:
    store = handles[-1]
    orders = [job() for _ in range(25)]
    await store.insert(orders)
    endings: list[Ending] = []
    seen: list[str] = []
    for number in (10, 10, 5, 0):
        answers, claim = await turn(store, endings)
        assert answers == [True] * len(endings)
        assert len(claim.leases) == number
        seen += [lease.id for lease in claim.leases]
        endings = done(claim.leases)
    assert seen == [order.id for order in orders]
    assert longer == []
    assert await states(store, *seen) == [State.DONE] * 25


async def test_leases_are_those_of_the_long_way(
    path: Path, longer: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = [
        job(payload=b'{"n":%d}' % n, priority=n % 3, keep=1 + n, attempts=1 + n) for n in range(9)
    ]
    orders += [
        job(meta=b"{}", key="k", thread="t", cause="c", flow="f", node="n"),
        job(kind="\0\x10\ud800", thread="\ud800"),
        job(payload=b'"%s"' % (b"x" * claims.LARGE)),
        job(delay=60_000),
    ]
    told: list[list[Lease]] = []
    for is_long in (True, False):
        with monkeypatch.context() as patch:
            if is_long:
                patch.setattr(taking, "lay", never)
            async with opened(path.with_name(f"{is_long}.db")) as store:
                await store.insert([job()])
                await take(store)
                await store.insert(orders)
                longer.clear()
                claim = await take(store, 1_000)
                assert longer == (["claim"] if is_long else [])
                assert claim.next_due is not None
                assert 0 < claim.next_due <= 60_000
                told.append(claim.leases)
    for one, other in zip(*told, strict=True):
        for name in set(Lease.__struct_fields__) - {"token", "ref", "claimed_at", "inserted_at"}:
            with about(name):
                assert getattr(one, name) == getattr(other, name)
        assert type(one.meta) is type(other.meta)
        assert bytes(one.payload) == bytes(other.payload)
    assert len(told[0]) == 12


FAILED = Failure(type="E", message="m", trace="", fingerprint="f")
WAYS: dict[str, Callable[[Lease], Ending]] = {
    "with a result": lambda lease: Ending(lease, State.DONE, result=b"1"),
    "to be tried again": lambda lease: Ending(lease, State.SCHEDULED, failure=FAILED, delay=60_000),
    "dead": lambda lease: Ending(lease, State.DEAD, failure=FAILED),
    "released": lambda lease: Ending(lease, State.SCHEDULED, spend=False, released=True),
}


@pytest.mark.parametrize("what", WAYS)
async def test_an_ending_that_is_not_plain_goes_the_long_way(
    handles: list[SqliteStore], longer: list[str], what: str
) -> None:
    store = handles[-1]
    await store.insert([job(), job(), job()])
    one, two = (await take(store, 2)).leases
    endings = [*done([one]), WAYS[what](two)]
    answers, claim = await turn(store, endings, 1)
    assert answers == [True, True]
    assert len(claim.leases) == 1
    assert longer == ["settle", "claim"]
    ended = State.RUNNING if endings[1].released else endings[1].state  # it is claimed again
    assert await states(store, one.id, two.id) == [State.DONE, ended]


async def test_suspects_go_the_short_way_too(handles: list[SqliteStore], longer: list[str]) -> None:
    store = handles[-1]
    await store.insert([job(), job(keep=0), job()])
    leases = (await take(store, 3)).leases
    assert await store.isolate(leases[:2]) == [True, True]
    await store.rescue(
        worker="w1",
        losses=[Loss(id=one.id, failure=FAILED, suspicion=Suspicion.WATCHED) for one in leases[:2]],
    )
    longer.clear()
    claim = await take(store, 3)
    assert [(one.attempt, one.suspicion, one.crashes) for one in claim.leases] == [
        (1, 2, 1),
        (1, 2, 1),
        (1, 0, 0),
    ]
    answers, _ = await turn(store, done(claim.leases))
    assert answers == [True] * 3
    assert longer == ["settle", "claim"]  # one of them is not kept, and has a history
    found = await store.find([one.id for one in claim.leases])
    assert [one and (one.suspicion, one.crashes) for one in found] == [(0, 0), None, (0, 0)]


async def test_what_is_not_kept_is_gone(handles: list[SqliteStore], longer: list[str]) -> None:
    store = handles[-1]
    await store.insert([job(keep=0), job(), job(keep=0), job()])
    leases = (await take(store, 3)).leases
    answers, claim = await turn(store, done(leases))
    assert (answers, len(claim.leases)) == ([True] * 3, 1)
    assert longer == []
    one, two, three = await store.find([lease.id for lease in leases])
    assert (one, three) == (None, None)
    assert two is not None


async def test_what_is_gone_was_whole(handles: list[SqliteStore], longer: list[str]) -> None:
    """Nothing is left of a job that had lines of history, or waited for others."""
    store = handles[-1]
    child, tried = job(), job(keep=0, attempts=3)
    await store.insert([child, tried, job(keep=0, after=(After(child.id),))])
    one, two = (await take(store, 2)).leases
    again = Ending(two, State.SCHEDULED, failure=FAILED)
    assert (await turn(store, [*done([one]), again], 0))[0] == [True, True]
    leases = (await take(store)).leases
    assert len(leases) == 2
    longer.clear()
    assert (await turn(store, done(leases)))[0] == [True, True]
    assert longer == ["settle", "claim"]
    assert await store.find([lease.id for lease in leases]) == [None, None]


async def test_who_ends_twice_is_told(handles: list[SqliteStore], longer: list[str]) -> None:
    store = handles[-1]
    await store.insert([job(), job(keep=0)])
    for lease in (await take(store, 2)).leases:
        assert (await turn(store, done([lease, lease])))[0] == [True, False]
        assert (await turn(store, done([lease])))[0] == [False]
    assert longer == ["settle", "claim"] * 4


QUEUES: dict[str, Sequence[Want]] = {
    "a limit": [Want(queue=WORK, limit=5)],
    "a rate": [Want(queue=WORK, rate=(5, 1_000))],
    "in order": [Want(queue=WORK, ordered=True)],
    "two queues": [Want(queue=WORK), Want(queue=OTHER)],
}


@pytest.mark.parametrize("what", QUEUES)
async def test_a_claim_that_is_not_plain_goes_the_long_way(
    handles: list[SqliteStore], longer: list[str], what: str
) -> None:
    store = handles[-1]
    await store.insert([job(), job(OTHER)])
    claim = await take(store, 10, QUEUES[what])
    assert len(claim.leases) == (2 if what == "two queues" else 1)
    assert longer == ["claim"]


async def test_queues_with_lanes_and_new_workers_go_the_long_way(
    handles: list[SqliteStore], longer: list[str]
) -> None:
    store = handles[-1]
    await store.insert([job()])
    assert len((await store.claim(PLAIN, 1, "somebody else", LEASE)).leases) == 1
    assert longer == ["claim"]
    await store.insert([job(lane="l")])
    assert len((await take(store)).leases) == 1
    assert longer == ["claim", "claim"]


async def test_whoever_lost_its_lease_is_told_and_the_others_are_not(
    path: Path, handles: list[SqliteStore], longer: list[str]
) -> None:
    store = handles[-1]
    await store.insert([job() for _ in range(4)])
    leases = (await take(store, 3)).leases
    with connected(path) as connection:
        connection.execute("update relevo_jobs set token = 7 where seq = ?", (leases[1].ref,))
    answers, claim = await turn(store, done(leases))
    assert answers == [True, False, True]
    assert len(claim.leases) == 1
    assert longer == ["settle", "claim"]


async def test_endings_of_many_claims_come_together(
    handles: list[SqliteStore], longer: list[str]
) -> None:
    store = handles[-1]
    many = taking.GROUPS + 1
    await store.insert([job() for _ in range(2 * many)])
    first = [lease for _ in range(taking.GROUPS) for lease in (await take(store, 1)).leases]
    assert (await turn(store, done(first), 0))[0] == [True] * taking.GROUPS
    assert longer == []
    more = [lease for _ in range(many) for lease in (await take(store, 1)).leases]
    assert (await turn(store, done(more), 0))[0] == [True] * many
    assert longer == ["settle", "claim"]


async def test_a_job_that_others_wait_for_lets_them_go(
    handles: list[SqliteStore], longer: list[str]
) -> None:
    store = handles[-1]
    first = job()
    await store.insert([first, job(after=(After(first.id),))])
    answers, claim = await turn(store, done((await take(store, 1)).leases))
    assert answers == [True]
    assert len(claim.leases) == 1
    assert longer == ["settle", "claim"]


async def test_a_queue_that_another_process_pauses_is_paused(handles: list[SqliteStore]) -> None:
    one, other = handles
    await one.insert([job(), job()])
    assert len((await take(other, 1)).leases) == 1
    await one.set_mode([WORK], QueueMode.PAUSED, ANN)
    assert (await take(other)).leases == []
    await one.set_mode([WORK], QueueMode.OPEN, ANN)
    assert len((await take(other)).leases) == 1


CHANGED = {
    "no JSON": "payload = x'7b'",
    "JSON that ends the list": """payload = '1],["x"'""",
    "two rows": """payload = 'null,0,0,0,0,null,null,null,null,null,null,null,0,0],["","","",1'""",
    "odd numbers": "attempts = -3",
    "a blob for a name": "kind = x'ff'",
}


@pytest.mark.parametrize("what", CHANGED)
async def test_a_row_that_was_changed_by_hand_is_found(
    path: Path, handles: list[SqliteStore], longer: list[str], what: str
) -> None:
    store = handles[-1]
    orders = [job() for _ in range(5)]
    await store.insert(orders)
    held = (await take(store, 1)).leases
    with connected(path) as connection:
        connection.execute(
            f"update relevo_jobs set {CHANGED[what]} where id = ?",  # noqa: S608 - ours
            (orders[2].id,),
        )
    answers, claim = await turn(store, done(held))
    assert answers == [True]
    assert [lease.id for lease in claim.leases] == [orders[n].id for n in (1, 3, 4)]
    assert {lease.attempt for lease in claim.leases} == {1}
    assert "claim" in longer
    assert await settle(store, claim.leases) == [True] * 3
    [buried] = (await store.page(Filter(states=frozenset({State.DEAD})))).jobs
    assert buried.id == orders[2].id
    assert buried.attempt <= 1


async def test_it_waits_for_whoever_writes(
    path: Path, handles: list[SqliteStore], longer: list[str]
) -> None:
    store = handles[-1]
    await store.insert([job(), job()])
    held = (await take(store, 1)).leases
    with connected(path) as connection:
        connection.execute("begin immediate")
        waiting = asyncio.create_task(turn(store, done(held)))
        finished, _ = await asyncio.wait({waiting}, timeout=0.3)
        assert not finished
        connection.execute("commit")
    answers, claim = await waiting
    assert (answers, len(claim.leases)) == ([True], 1)
    assert longer != []
    assert await count(store) == 4


async def test_a_claim_that_is_given_up_takes_nothing(handles: list[SqliteStore]) -> None:
    store = handles[-1]
    order = job()
    await store.insert([order])
    claiming = asyncio.create_task(take(store))
    await asyncio.sleep(0)
    claiming.cancel()
    await asyncio.wait({claiming})
    assert [lease.id for lease in (await take(store)).leases] == [order.id]


async def test_what_is_written_is_told_whatever_comes_after(
    handles: list[SqliteStore], longer: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look at what falls due next comes after the commit: too late to fail."""

    def fail(*args: Any) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    store = handles[-1]
    await store.insert([job(), job()])
    held = (await take(store, 1)).leases
    monkeypatch.setattr(claims, "next_due", fail)
    answers, claim = await turn(store, done(held))
    assert (answers, len(claim.leases), claim.next_due) == ([True], 1, 0)
    assert longer == []


async def test_what_is_known_outlives_a_claim_that_is_not_plain(
    handles: list[SqliteStore], longer: list[str]
) -> None:
    store = handles[-1]
    await store.insert([job(), job(), job(OTHER)])
    await take(store, 1, QUEUES["two queues"])
    await store.rescue()
    longer.clear()
    assert len((await take(store, 1)).leases) == 1
    assert longer == []


async def test_what_was_claimed_is_let_go(handles: list[SqliteStore]) -> None:
    store = handles[-1]
    size = 8 << 20
    await store.insert([job(payload=b'"%s"' % bytes(size).replace(b"\0", b"x"))])
    tracemalloc.start()
    try:
        (lease,) = (await take(store)).leases
        assert tracemalloc.get_traced_memory()[0] > size
        del lease
        await until(lambda: tracemalloc.get_traced_memory()[0] < size)
    finally:
        tracemalloc.stop()


async def test_workers_with_writers_of_their_own_share_a_queue(
    handles: list[SqliteStore],
) -> None:
    orders: list[NewJob] = [job() for _ in range(400)]
    await handles[0].insert(orders)
    ran: list[str] = []

    async def work(store: SqliteStore) -> None:
        endings: list[Ending] = []
        while True:
            answers, claim = await turn(store, endings, 7)
            assert all(answers)
            if not claim.leases:
                return
            ran.extend([lease.id for lease in claim.leases])
            endings = done(claim.leases)

    await asyncio.gather(*[work(store) for store in handles])
    assert sorted(ran) == sorted([order.id for order in orders])
    assert await count(handles[0], states=frozenset({State.DONE})) == 402
