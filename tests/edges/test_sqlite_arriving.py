"""SQLite keeps new deliveries in one statement: the rows are the same, and no hope is in vain."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from relevo.ids import new_id
from relevo.job import After, Ending, State, Verdict
from relevo.store import Arrival, By, DeliveryState, Kept, QueueMode, Reception, Want
from relevo.stores.sqlite import arriving, deliveries, lines
from relevo.stores.sqlite.store import SqliteStore
from relevo.stores.sqlite.transaction import SIZES, Tx
from tests.conformance.steps import OTHER, WORK, about, count, job, take
from tests.edges.test_sqlite_store import connected, opened
from tests.edges.test_sqlite_store import path as path
from tests.edges.test_sqlite_taking import never

SOURCE = "app:/one"
ANN = By("ann")
WAYS = ("", "?synchronous=normal")
"""Each address has its own writer, as another process would."""


def arrival(key: str | None, *jobs: Any, **fields: Any) -> Arrival:
    made = Kept(**{"id": new_id(), "endpoint": SOURCE, "key": key, "answer": b"a", **fields})
    return Arrival(replace(made, thread=made.id), jobs or (job(thread=made.id, cause=made.id),))


@pytest.fixture
async def handles(path: Path) -> AsyncIterator[list[SqliteStore]]:
    """Two writers that know the queue, each of its own accord."""
    async with AsyncExitStack() as stack:
        found = [await stack.enter_async_context(opened(path, way)) for way in WAYS]
        for number, store in enumerate(found):
            await store.receive([arrival(f"first {number}")])
        yield found


@pytest.fixture
def longer(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many deliveries went the long way, call by call."""
    walked: list[int] = []
    walk = deliveries.receive

    def counted(tx: Tx, arrivals: Sequence[Arrival]) -> list[Reception]:
        walked.append(len(arrivals))
        return walk(tx, arrivals)

    monkeypatch.setattr(deliveries, "receive", counted)
    return walked


async def verdicts(store: SqliteStore, *arrivals: Arrival) -> list[Verdict]:
    return [answer.verdict for answer in await store.receive(arrivals)]


@pytest.mark.parametrize("remember", [0, 1_000])
async def test_new_ones_take_one_statement(
    handles: list[SqliteStore], longer: list[int], remember: int
) -> None:
    store = handles[-1]
    for size in (1, 2, 5, 40, SIZES[0]):
        batch = [
            arrival(f"{size} {n}", job(remember=remember), body=b"%d" % n) for n in range(size)
        ]
        answers = await store.receive(batch)
        assert [answer.verdict for answer in answers] == [Verdict.NEW] * size
        found = await store.delivery([each.kept.id for each in batch])
        assert found == [answer.kept for answer in answers]
        assert [kept and kept.body for kept in found] == [each.kept.body for each in batch]
        for each in await store.find([order.id for one in batch for order in one.jobs]):
            assert each is not None
    assert longer == []


async def test_a_remembered_id_goes_the_long_way(
    handles: list[SqliteStore], longer: list[int]
) -> None:
    known = job("app:module:once", remember=60_000, keep=0)
    store = handles[-1]
    await store.insert([known])
    (lease,) = (await store.claim([Want(queue=known.queue)], 1, "w", 60_000)).leases
    await store.settle([Ending(lease=lease, state=State.DONE)])
    batch = [arrival(f"k{n}", job(remember=60_000)) for n in range(4)]

    answers = await store.receive([*batch, arrival("k", known)])

    assert [answer.kept.jobs for answer in answers][-1] == (known.id,)
    assert longer == [5]
    assert await store.find([known.id]) == [None]


@pytest.mark.parametrize("seed", range(6))
async def test_the_rows_are_those_of_the_long_way(
    path: Path, longer: list[int], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(lines, "MOST", 40)
    dice = random.Random(seed)

    def order(**more: Any) -> Any:
        return job(
            dice.choice([WORK, OTHER]),
            kind=dice.choice(["A", "B\0\ud800"]),
            payload=dice.randbytes(dice.choice([0, 20, 9_000])),
            priority=dice.choice([0, 1, 2, 9]),
            delay=dice.choice([0, 0, 5_000]),
            meta=dice.choice([None, b"m"]),
            lane=dice.choice([None, None, "l\x10"]),
            **more,
        )

    def one(number: int) -> Arrival:
        made = arrival(
            f"{number} \ud800",
            *[order(thread=dice.choice([None, "t"])) for _ in range(dice.choice([1, 1, 3]))],
            endpoint=dice.choice([SOURCE, "app:/two"]),
            generation=dice.choice([0, 0, 1]),
            received_at=dice.choice([0, 77]),
            query=dice.choice(["", "a=\0"]),
            headers=dice.choice([b"[]", b'[["a","b"]]']),
            body=dice.randbytes(dice.choice([0, 30, 20_000])),
            status=dice.choice([200, 202]),
        )
        if dice.random() < 0.3:
            made = Arrival(made.kept, ())
        return Arrival(made.kept, made.jobs, b"opened") if dice.random() < 0.3 else made

    # Alike in all that may be shared, and in nothing; one at a time, and many.
    batches = [[one(n * 100 + m) for m in range(dice.choice([1, 2, 7]))] for n in range(12)]
    batches += [[arrival(f"{n} {m}") for m in range(dice.choice([1, 5, 13]))] for n in range(12)]
    told: list[Any] = []
    for is_long in (True, False):
        file = path.with_name(f"{is_long}.db")
        with monkeypatch.context() as patch:
            if is_long:
                patch.setattr(arriving, "lay", never)
            async with opened(file) as store:
                await store.receive([arrival("first", job(WORK, lane="x"), job(OTHER, lane="x"))])
                longer.clear()
                answers = [await store.receive(batch) for batch in batches]
        assert len(longer) == (24 if is_long else 0)
        await agree(file)
        told.append(
            (
                [
                    [(each.verdict, each.kept.id, each.kept.jobs) for each in some]
                    for some in answers
                ],
                rows(file, "relevo_jobs", "seq", "run_at", "inserted_at")[2:],
                rows(file, "relevo_deliveries", "received_at")[1:],
            )
        )
    assert told[0] == told[1]


async def agree(file: Path) -> None:
    """Whoever was kept has a line, or a key that waits for its line."""
    hashes = [row["hash"] for row in rows(file, "relevo_deliveries")]
    entered = [row["hash"] for row in rows(file, "relevo_delivered")]
    fresh = b"".join([row["hashes"] for row in rows(file, "relevo_fresh")])
    waiting = [fresh[at : at + lines.WIDTH] for at in range(0, len(fresh), lines.WIDTH)]
    assert sorted(entered + waiting) == sorted(hashes)
    assert entered
    assert waiting


def rows(file: Path, table: str, *moving: str) -> list[dict[str, Any]]:
    """All rows in order, without what differs from run to run."""
    with connected(file) as connection:
        connection.row_factory = sqlite3.Row
        found = connection.execute(f"select * from {table} order by 1").fetchall()  # noqa: S608 - ours
        return [{name: row[name] for name in set(row.keys()) - {*moving}} for row in found]


LONG: dict[str, Callable[[], list[Arrival]]] = {
    "twice in one call": lambda: [arrival("a"), arrival("a")],
    "known by heart": lambda: [arrival("a"), arrival("first 1")],
    "rejected": lambda: [arrival(None, state=DeliveryState.REFUSED)],
    "a job with a key": lambda: [arrival("a", job(key="k"))],
    "a job that waits": lambda: [arrival("a", one := job(), job(after=(After(one.id),)))],
    "a queue that is new": lambda: [arrival("a", job("new"))],
    "a queue that had no lanes": lambda: [arrival("a", job(lane="l"))],
    "too many": lambda: [arrival(str(n)) for n in range(SIZES[0] + 1)],
    "too heavy": lambda: [arrival("a", body=bytes(arriving.HEAVY))],
    "too many jobs": lambda: [arrival("a", *[job() for _ in range(SIZES[0] + 1)])],
}


@pytest.mark.parametrize("what", LONG)
async def test_what_is_not_plain_goes_the_long_way(
    handles: list[SqliteStore], longer: list[int], what: str
) -> None:
    batch = LONG[what]()
    answers = await handles[-1].receive(batch)
    assert longer == [len(batch)]
    repeats = {"twice in one call", "known by heart"}
    is_new = [Verdict.NEW, Verdict.DONE] if what in repeats else [Verdict.NEW] * len(batch)
    assert [answer.verdict for answer in answers] == is_new


async def test_a_key_that_has_its_line_is_met(
    path: Path, handles: list[SqliteStore], longer: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MOST", 3)
    store = handles[-1]
    for number in range(8):
        assert await verdicts(store, arrival(str(number))) == [Verdict.NEW]
    assert longer == []
    with connected(path) as connection:
        (entered,) = connection.execute("select count(*) from relevo_delivered").fetchone()
        (waiting,) = connection.execute("select count(*) from relevo_fresh").fetchone()
    assert (entered, waiting) == (9, 1)
    again = [arrival("0"), arrival("new")]
    assert await verdicts(store, *again) == [Verdict.DONE, Verdict.NEW]
    assert longer == [2]
    assert await verdicts(store, arrival("next")) == [Verdict.NEW]
    assert longer == [2]


async def test_what_another_process_left_is_met(
    handles: list[SqliteStore], longer: list[int]
) -> None:
    one, other = handles
    for number in range(20):
        key = f"k{number}"
        assert await verdicts(one, arrival(key)) == [Verdict.NEW]
        assert await verdicts(other, arrival(key), arrival(f"{key} 2")) == [
            Verdict.DONE,
            Verdict.NEW,
        ]
    assert longer == [1, 2] * 20
    assert await count(one) == 2 + 40


async def test_what_is_known_outlives_other_verbs(
    handles: list[SqliteStore], longer: list[int]
) -> None:
    store = handles[-1]
    await take(store, 1, WORK, OTHER)
    await store.rescue()
    assert await verdicts(store, arrival("a")) == [Verdict.NEW]
    assert longer == []


async def test_a_queue_that_another_process_shuts_is_shut(handles: list[SqliteStore]) -> None:
    one, other = handles
    assert await verdicts(other, arrival("a")) == [Verdict.NEW]
    await one.set_mode([WORK], QueueMode.DRAINING, ANN)
    assert await verdicts(other, arrival("b")) == [Verdict.CLOSED]
    await one.set_mode([WORK], QueueMode.OPEN, ANN)
    assert await verdicts(other, arrival("b")) == [Verdict.NEW]


async def test_numbers_that_another_process_took_are_taken(
    path: Path, handles: list[SqliteStore], longer: list[int]
) -> None:
    store = handles[-1]
    far = 1 << 62
    with connected(path) as connection:
        connection.execute(
            "update relevo_jobs set seq = ? where seq = (select max(seq) from relevo_jobs)", (far,)
        )
    assert await verdicts(store, arrival("a")) == [Verdict.NEW]
    with connected(path) as connection:
        connection.execute("update relevo_deliveries set seq = seq + 1 where key = 'a'")
    assert await verdicts(store, arrival("b")) == [Verdict.NEW]
    assert longer == [1, 1]
    assert [row["seq"] > far for row in rows(path, "relevo_jobs")] == [False, False, True, True]


async def test_a_job_that_stands_already_is_the_deliverys(
    handles: list[SqliteStore], longer: list[int]
) -> None:
    store = handles[-1]
    order = job()
    await store.insert([order])
    [answer] = await store.receive([arrival("a", order)])
    assert (answer.verdict, answer.kept.jobs) == (Verdict.NEW, (order.id,))
    assert longer == [1]
    assert await count(store) == 2 + 1


async def test_it_waits_for_whoever_writes(
    path: Path, handles: list[SqliteStore], longer: list[int]
) -> None:
    with connected(path) as connection:
        connection.execute("begin immediate")
        waiting = asyncio.create_task(verdicts(handles[-1], arrival("a")))
        done, _ = await asyncio.wait({waiting}, timeout=0.3)
        assert not done
        connection.execute("commit")
    assert await waiting == [Verdict.NEW]
    assert longer != []
    longer.clear()
    assert await verdicts(handles[-1], arrival("b")) == [Verdict.NEW]
    assert longer == []


async def test_one_that_fails_while_the_store_closes_is_answered(path: Path) -> None:
    for number in range(20):
        async with opened(path) as store:
            await store.receive([arrival(f"{number} first")])
            with connected(path) as connection:
                connection.execute("update relevo_meta set value = value + 1 where name = 'queues'")
            waiting = asyncio.create_task(verdicts(store, arrival(f"{number} a")))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        with about(number):
            assert await asyncio.wait_for(waiting, 5) == [Verdict.NEW]
