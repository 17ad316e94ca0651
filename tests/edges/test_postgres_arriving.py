"""PostgreSQL keeps new deliveries in one statement: the same rows, and no hope is in vain."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from msgspec.structs import replace

from relevo.errors import StoreUnavailable
from relevo.ids import new_id
from relevo.job import After, Verdict
from relevo.store import Arrival, By, DeliveryState, Kept, QueueMode, Reception, Want
from relevo.stores.postgres import arriving, deliveries
from relevo.stores.postgres.address import parse
from relevo.stores.postgres.rows import hashed
from relevo.stores.postgres.store import PostgresStore
from relevo.testing import ManualClock
from tests.conformance.steps import OTHER, WORK, count, end, job, take, take_id
from tests.servers.postgres import fresh_store, postgres_url

pytestmark = pytest.mark.xdist_group("postgres")
SOURCE = "app:/one"
ANN = By("ann")
MOMENTS = (77, 4_000_000_000_000)


def arrival(key: str | None, *jobs: Any, **fields: Any) -> Arrival:
    made = Kept(**{"id": new_id(), "endpoint": SOURCE, "key": key, "answer": b"a", **fields})
    return Arrival(replace(made, thread=made.id), jobs or (job(thread=made.id, cause=made.id),))


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[PostgresStore]:
    async with fresh_store(clock) as opened:
        yield opened


@pytest.fixture
async def raw() -> AsyncIterator[Any]:
    connection = await asyncpg.connect(postgres_url())
    yield connection
    await connection.close()


@pytest.fixture
def longer(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many deliveries went the long way, call by call."""
    walked: list[int] = []
    walk = PostgresStore._receive

    async def counted(self: Any, arrivals: Sequence[Arrival], **how: Any) -> list[Reception]:
        walked.append(len(arrivals))
        return await walk(self, arrivals, **how)

    monkeypatch.setattr(PostgresStore, "_receive", counted)
    return walked


async def verdicts(store: PostgresStore, *arrivals: Arrival) -> list[Verdict]:
    answers = await store.receive(arrivals)
    assert [answer.kept.endpoint for answer in answers] == [each.kept.endpoint for each in arrivals]
    return [answer.verdict for answer in answers]


async def test_new_ones_take_one_statement(store: PostgresStore, longer: list[int]) -> None:
    for size in (1, 2, 5, 40, 1_000):
        batch = [arrival(f"{size} {n}", body=b"%d" % n) for n in range(size)]
        answers = await store.receive(batch)
        assert [answer.verdict for answer in answers] == [Verdict.NEW] * size
        assert [answer.kept.id for answer in answers] == [each.kept.id for each in batch]
        found = await store.delivery([each.kept.id for each in batch])
        assert found == [answer.kept for answer in answers]
        assert [kept and kept.body for kept in found] == [each.kept.body for each in batch]
        for each in await store.find([order.id for one in batch for order in one.jobs]):
            assert each is not None
    assert longer == []


@pytest.mark.parametrize("seed", range(6))
async def test_the_rows_are_those_of_the_long_way(
    clock: ManualClock,
    raw: Any,
    longer: list[int],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    dice = random.Random(seed)

    def order(**more: Any) -> Any:
        return job(
            dice.choice([WORK, OTHER]),
            kind=dice.choice(["A", 'B\0\ud800 "{},\\']),
            payload=dice.randbytes(dice.choice([0, 20, 9_000])),
            priority=dice.choice([0, 1, 2, 9]),
            attempts=dice.choice([1, 3]),
            delay=dice.choice([0, 0, 5_000]),
            run_at=dice.choice([None, None, *MOMENTS]),
            meta=dice.choice([None, b"m"]),
            keep=dice.choice([0, 5]),
            **more,
        )

    def one(number: int) -> Arrival:
        made = arrival(
            f'{number} \ud800"\\',
            *[order(thread=dice.choice([None, "t"])) for _ in range(dice.choice([1, 1, 3]))],
            endpoint=dice.choice([SOURCE, "app:/two"]),
            generation=dice.choice([0, 0, 1]),
            method=dice.choice(["POST", "PUT"]),
            path=dice.choice(["/a", "/\0"]),
            query=dice.choice(["", "a=\0"]),
            headers=dice.choice([b"[]", b'[["a","b"]]']),
            body=dice.randbytes(dice.choice([0, 30, 20_000])),
            status=dice.choice([200, 202]),
            state=dice.choice([state for state in DeliveryState if state != "refused"]),
            reason=dice.choice(["", "", "\ud800 said so"]),
        )
        thread = dice.choice([made.kept.id, "another's", None])
        made = Arrival(replace(made.kept, thread=thread), made.jobs)
        if dice.random() < 0.3:
            made = Arrival(made.kept, ())
        return Arrival(made.kept, made.jobs, b"opened") if dice.random() < 0.3 else made

    # Alike in all that may be shared, and in nothing; one at a time, and many.
    batches = [[one(n * 100 + m) for m in range(dice.choice([1, 2, 7]))] for n in range(12)]
    batches += [[arrival(f"{n} {m}") for m in range(dice.choice([1, 5, 13]))] for n in range(12)]
    batches += [[Arrival(arrival(f"none {n}").kept, ()) for n in range(3)]]
    told: list[Any] = []
    for is_long in (True, False):
        with monkeypatch.context() as patch:
            if is_long:
                patch.setattr(arriving, "is_plain", lambda _: False)
            async with fresh_store(clock) as store:
                longer.clear()
                answers = [await store.receive(batch) for batch in batches]
                assert len(longer) == (len(batches) if is_long else 0)
                told.append(
                    (
                        [
                            [(each.verdict, each.kept.id, each.kept.jobs) for each in some]
                            for some in answers
                        ],
                        await rows(raw, store, "jobs", "inserted_at"),
                        await rows(raw, store, "deliveries", "received_at"),
                        await rows(raw, store, "delivered", "received_at"),
                        [
                            (lease.id, lease.payload)
                            for _ in range(3)
                            for lease in await take(store, 100)
                        ],
                    )
                )
    assert told[0] == told[1]


async def rows(raw: Any, store: PostgresStore, table: str, *moving: str) -> list[dict[str, Any]]:
    """All rows, without what differs from run to run; places for numbers, delays for moments."""
    order = "seq" if table == "jobs" else "id"
    found = await raw.fetch(
        f'select * from "{parse(store.dsn).schema}".{table} order by {order}'  # noqa: S608 - ours
    )
    told: list[dict[str, Any]] = []
    for place, row in enumerate(found):
        line = {name: row[name] for name in set(row.keys()) - {*moving}}
        if table == "jobs":
            line["seq"] = place
            if row["run_at"] not in MOMENTS:
                line["run_at"] -= row["inserted_at"]
        told.append(line)
    return told


LONG: dict[str, tuple[Callable[[], list[Arrival]], int]] = {
    "twice in one call": (lambda: [arrival("a"), arrival("a")], 1),
    "known": (lambda: [arrival("first"), arrival("a")], 1),
    "known, all": (lambda: [arrival("first"), arrival("first")], 2),
    "rejected": (lambda: [arrival("a", state=DeliveryState.REFUSED), arrival("a")], 2),
    "without a key": (lambda: [arrival("a"), arrival(None)], 2),
    "out of a spool": (lambda: [arrival("a", received_at=77)], 1),
    "a job with a key": (lambda: [arrival("a", job(key="k")), arrival("b")], 2),
    "a job in a lane": (lambda: [arrival("a", job(lane="l"))], 1),
    "a job with a node": (lambda: [arrival("a", job(node="n"))], 1),
    "a job that waits": (lambda: [arrival("a", one := job(), job(after=(After(one.id),)))], 1),
}
KNOWN = {"twice in one call": [False, True], "known": [True, False], "known, all": [True, True]}


@pytest.mark.parametrize("what", LONG)
async def test_what_is_not_plain_goes_the_long_way(
    store: PostgresStore, longer: list[int], what: str
) -> None:
    await store.receive([arrival("first")])
    make, left = LONG[what]
    batch = make()
    answers = await store.receive(batch)
    assert longer == [left]
    is_done = [answer.verdict is Verdict.DONE for answer in answers]
    assert is_done == KNOWN.get(what, [False] * len(batch))
    for each, answer in zip(batch, answers, strict=True):
        assert (answer.kept.key, answer.kept.reason) == (each.kept.key, each.kept.reason)
        if answer.verdict is Verdict.NEW:
            assert answer.kept.id == each.kept.id
            assert None not in await store.find([order.id for order in each.jobs])
        else:
            assert await store.find([order.id for order in each.jobs]) == [None]


async def test_many_jobs_of_many_kinds_get_in(store: PostgresStore, longer: list[int]) -> None:
    """In time that grows with their number: the server gives up after 4.4 seconds."""
    orders = [job([WORK, OTHER][n % 2], kind=f"K{n % 7}") for n in range(50_000)]
    assert await verdicts(store, arrival("a", *orders)) == [Verdict.NEW]
    assert longer == []
    for place in (0, 25_001, 49_999):
        (found,) = await store.find([orders[place].id])
        assert found is not None
        assert (found.queue, found.kind) == (orders[place].queue, orders[place].kind)


@pytest.mark.parametrize("how", ["live", "done", "twice", "delivery"])
async def test_an_id_that_was_used_before_is_met(
    store: PostgresStore, longer: list[int], how: str
) -> None:
    first, fresh = arrival("first"), arrival("fresh")
    await store.receive([first])
    again = arrival("again", *first.jobs)
    match how:
        case "done":
            await end(store, await take_id(store, first.jobs[0].id))
        case "twice":
            again = fresh
        case "delivery":
            again = arrival("again", id=first.kept.id)
        case _:
            pass

    answers = await store.receive([again, fresh])

    assert longer == [2]
    if how == "twice":
        assert [answer.verdict for answer in answers] == [Verdict.NEW, Verdict.DONE]
        return
    assert [answer.verdict for answer in answers] == [Verdict.NEW] * 2
    assert [answer.kept.jobs for answer in answers] == [
        (again.jobs[0].id,),
        (fresh.jobs[0].id,),
    ]
    left = {lease.id for lease in await take(store, 9)}
    expected = {*first.jobs, *again.jobs, *fresh.jobs}
    assert left == {order.id for order in expected} - (
        {first.jobs[0].id} if how == "done" else set()
    )


async def test_ids_may_be_spelled_in_another_way(store: PostgresStore, longer: list[int]) -> None:
    ids = [new_id() for _ in range(4)]
    ways: list[Callable[[UUID], str]] = [str, "{{{}}}".format, lambda id: id.urn]
    batch = [
        arrival(id, job(id=way(UUID(new_id()))), id=way(UUID(id)))
        for id, way in zip(ids, [str, *ways], strict=True)
    ]
    assert await verdicts(store, batch[0], Arrival(batch[1].kept, ())) == [Verdict.NEW] * 2
    assert await verdicts(store, arrival(ids[0]), *batch[2:]) == [Verdict.DONE, *[Verdict.NEW] * 2]
    assert longer == [1]


@pytest.mark.parametrize("what", ["draining", "ordered"])
async def test_a_queue_that_takes_not_everything_goes_the_long_way(
    store: PostgresStore, longer: list[int], what: str
) -> None:
    await store.receive([arrival("first")])
    if what == "draining":
        await store.set_mode([WORK], QueueMode.DRAINING, ANN)
    else:
        await take(store, 1, Want(queue=WORK, ordered=True))

    batch = [arrival("a"), arrival("b", job(OTHER))]
    answers = await store.receive(batch)

    assert longer == [2]
    is_first = Verdict.CLOSED if what == "draining" else Verdict.NEW
    assert [answer.verdict for answer in answers] == [is_first, Verdict.NEW]
    assert await count(store, queue=WORK) == (1 if what == "draining" else 2)


async def test_a_job_that_ends_meanwhile_is_not_stored_again(
    store: PostgresStore, raw: Any
) -> None:
    """Its id was used before, and it ended while the statement waited for who has its key."""
    first = arrival("first")
    await store.receive([first])
    lease = await take_id(store, first.jobs[0].id)
    blocked = arrival("blocked", *first.jobs)
    transaction = raw.transaction()
    await transaction.start()
    schema = parse(store.dsn).schema
    await raw.execute(f'set local search_path to "{schema}"')
    await raw.execute(
        "insert into delivered (hash, id, received_at, generation, status, source, answer) "
        "values ($1, $2, 0, 0, 200, $3, '')",
        hashed("blocked"),
        new_id(),
        SOURCE,
    )
    waiting = asyncio.create_task(store.receive([blocked]))
    while not await raw.fetchval("select count(*) from pg_locks where not granted"):
        assert not waiting.done()
        await asyncio.sleep(0.01)
    await end(store, lease)
    await transaction.rollback()

    (answer,) = await waiting

    assert (answer.verdict, answer.kept.jobs) == (Verdict.NEW, (first.jobs[0].id,))
    assert await take(store, 9) == []
    assert await count(store, queue=WORK) == 1


async def test_both_trips_together_are_in_time(
    store: PostgresStore, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "PATIENCE", 0.5)
    await store.receive([arrival("known")])
    transaction = raw.transaction()
    await transaction.start()
    schema = parse(store.dsn).schema
    await raw.execute(f'select from "{schema}".delivered for update')

    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match="did not answer"):
        await store.receive([arrival("known"), arrival("new")])
    assert time.monotonic() - began < 3

    await transaction.rollback()
    again = [arrival("known"), arrival("new"), arrival("newer")]
    assert await verdicts(store, *again) == [Verdict.DONE, Verdict.DONE, Verdict.NEW]


async def test_who_waits_is_woken(store: PostgresStore) -> None:
    """By another process too: it hears of the queue when the delivery is there."""
    other = store.spawn()
    await other.open()
    try:
        hearing = asyncio.create_task(other.wait([OTHER], 20))
        await asyncio.wait_for(other._ear._listening.wait(), 5)
        await store.receive([arrival("a", job(WORK)), arrival("b", job(OTHER))])
        async with asyncio.timeout(5):
            await hearing
        assert len(await take(other, 1, OTHER)) == 1
    finally:
        await other.close()


async def test_behind_a_pooler_it_goes_the_long_way(
    store: PostgresStore, longer: list[int]
) -> None:
    handle = PostgresStore(f"{store.dsn}&pooler=1")
    await handle.open()
    try:
        assert await verdicts(handle, arrival("a")) == [Verdict.NEW]
    finally:
        await handle.close()
    assert longer == [1]


async def test_the_same_keys_from_many_sides_are_kept_once(store: PostgresStore) -> None:
    """Four processes, the same deliveries in another order each: one new each, no crossing."""
    sides = [store, *[store.spawn() for _ in range(3)]]
    for side in sides[1:]:
        await side.open()
    try:
        for turn in range(5):
            keys = [f"{turn} {n}" for n in range(50)]
            batches = [[arrival(key) for key in random.sample(keys, 50)] for _ in sides]
            answers = await asyncio.gather(
                *[side.receive(batch) for side, batch in zip(sides, batches, strict=True)]
            )
            new = [
                answer.kept.key
                for some in answers
                for answer in some
                if answer.verdict is Verdict.NEW
            ]
            assert sorted(new) == sorted(keys)
            assert len({answer.kept.id for some in answers for answer in some}) == 50
            assert len(await take(store, 1_000)) == 50
    finally:
        for side in sides[1:]:
            await side.close()
