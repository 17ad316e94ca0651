"""PostgreSQL: jobs that replace one another, joins and remembered ids lock nothing of others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from relevo.ids import new_id
from relevo.job import Joined, NewJob, Receipt, State, Verdict
from relevo.store import Arrival, Kept, Want
from relevo.stores.postgres.address import parse
from relevo.stores.postgres.store import PostgresStore
from relevo.testing import ManualClock
from tests.conformance.steps import (
    ANN,
    DAY,
    HOUR,
    LEASE,
    WORK,
    add,
    count,
    end,
    job,
    look,
    put,
    state,
    states,
    take,
    take_id,
)
from tests.servers.postgres import fresh_store, postgres_url

pytestmark = pytest.mark.xdist_group("postgres")


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[PostgresStore]:
    async with fresh_store(clock) as opened:
        yield opened


@pytest.fixture
async def raw() -> AsyncIterator[Any]:
    connection = await asyncpg.connect(postgres_url())
    yield connection
    await connection.close()


def latest(**fields: Any) -> NewJob:
    return job(**{"key": "k", "unique": "latest", **fields})


async def old_call(store: PostgresStore, raw: Any, sql: str, *values: object) -> list[Any]:
    """A statement as a process of the version before would send it."""
    return await raw.fetch(parse(store.dsn).sql(sql), *values)


# what a caller's open transaction keeps from others: nothing


async def test_a_newer_one_in_an_open_transaction_stops_nobody(
    store: PostgresStore, raw: Any
) -> None:
    lease = await take_id(store, (await put(store, latest()))[0])
    newest, meanwhile = latest(), latest()
    async with raw.transaction():
        await store.insert_within(raw, [newest])
        async with asyncio.timeout(2):
            await put(store, meanwhile)
            assert await take(store) == []
            assert await store.extend([lease], LEASE) == [True]
            assert await end(store, lease)

    ran = [one.id for one in await take(store, 9)]
    assert ran == [meanwhile.id]  # accepted after the other, although committed before it
    assert await state(store, newest.id) is State.CANCELLED


async def test_one_that_commits_late_and_was_never_met_runs(store: PostgresStore, raw: Any) -> None:
    late, early = latest(), latest()
    async with raw.transaction():
        await store.insert_within(raw, [late])
        await put(store, early)
        lease = await take_id(store, early.id)
    assert await take(store) == []
    assert await end(store, lease)

    await take_id(store, late.id)


async def test_a_join_in_an_open_transaction_does_not_hold_the_job(
    store: PostgresStore, raw: Any
) -> None:
    id = await add(store, key="k", digest=b"\0one")
    lease = await take_id(store, id)
    other = job(key="k", digest=b"\0two", remember=DAY, cause="c")
    async with raw.transaction():
        receipts = await store.insert_within(raw, [other])
        assert receipts == [Receipt(id, Verdict.IN_PROGRESS, True)]
        async with asyncio.timeout(2):
            assert await store.extend([lease], LEASE) == [True]
            assert await end(store, lease)
            await add(store, key="k")

    found = await look(store, id)
    assert (found.state, found.joined) == (State.DONE, 1)
    assert [(one.id, one.cause) for one in found.joins] == [(other.id, "c")]
    assert all(isinstance(one, Joined) for one in found.joins)
    assert await store.insert([other]) == [Receipt(id, Verdict.DONE, True)]


# many


async def test_thousands_of_old_ones_are_replaced_part_by_part(store: PostgresStore) -> None:
    jobs = [latest() for _ in range(3_500)]
    for start in range(0, len(jobs), 500):
        await put(store, *jobs[start : start + 500])

    leases: list[Any] = []
    for _ in range(20):
        claim = await store.claim([Want(queue=WORK)], 1, "w1", LEASE)
        leases += claim.leases
        if leases:
            break
        assert claim.next_due is not None and claim.next_due <= 10

    assert [lease.id for lease in leases] == [jobs[-1].id]
    assert await count(store, states=frozenset({State.CANCELLED})) == 3_499


async def test_keys_that_are_taken_do_not_stand_in_the_way(
    store: PostgresStore, clock: ManualClock
) -> None:
    """Those that wait behind others are met once, not by every claim."""
    await put(store, *(latest(key=f"k{n}") for n in range(60)))
    going = await take(store, 60)
    await put(store, *(latest(key=f"k{n}") for n in range(60)))
    free = latest(key="free")
    await put(store, free)

    leases: list[Any] = []
    for _ in range(20):
        leases += await take(store, 5)

    assert [lease.id for lease in leases] == [free.id]
    claim = await store.claim([Want(queue=WORK)], 5, "w1", LEASE)
    assert (claim.leases, claim.next_due) == ([], None)
    for lease in going[:30]:
        assert await end(store, lease)
    assert len(await take(store, 99)) == 30


async def test_a_claim_in_a_hurry_leaves_none_behind(store: PostgresStore) -> None:
    await put(store, job(), job())
    assert len(await take(store, 2)) == 2
    assert store._is_hurried
    old, newest = latest(), latest()
    await put(store, old, newest, *(job() for _ in range(10)))

    ids = {lease.id for lease in await take(store, 4)}

    assert newest.id in ids
    assert len(ids) == 4
    assert await state(store, old.id) is State.CANCELLED


@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize("has_lanes", [False, True])
async def test_a_claim_of_one_finds_what_lies_behind_old_ones(
    store: PostgresStore, has_lanes: bool, is_ordered: bool
) -> None:
    """Their newest is not due: they end, and the claim goes on to the next key."""

    def of(key: str, **fields: Any) -> NewJob:
        return latest(key=key, lane=key if has_lanes else None, **fields)

    wanted = of("b")
    await put(store, *(of("a") for _ in range(50)), wanted, of("a", delay=HOUR))

    leases = await take(store, 1, Want(queue=WORK, ordered=is_ordered))

    assert [lease.id for lease in leases] == [wanted.id]


async def test_one_that_made_way_for_nothing_may_be_retried(store: PostgresStore) -> None:
    old, newest = latest(), latest(delay=HOUR)
    await put(store, old, newest)
    assert await take(store) == []
    assert await state(store, old.id) is State.CANCELLED
    assert await store.retry([old.id], ANN) == [False]
    assert await store.cancel([newest.id], ANN) == [True]

    assert await store.retry([old.id], ANN) == [True]

    await take_id(store, old.id)


# a key that was for something else before


async def test_what_started_under_another_meaning_of_the_key_is_waited_for(
    store: PostgresStore, clock: ManualClock
) -> None:
    lease = await take_id(store, await add(store, key="k"))
    newest = latest()
    await put(store, newest)

    assert await take(store, 9) == []
    assert await state(store, newest.id) is State.SCHEDULED
    assert await end(store, lease)

    clock.advance("1s")
    await take_id(store, newest.id)


async def test_a_key_of_another_meaning_is_not_joined(store: PostgresStore) -> None:
    newest = latest()
    await put(store, newest)
    plain = await add(store, key="k")

    assert await store.insert([job(key="k")]) == [Receipt(plain, Verdict.IN_PROGRESS)]
    assert {lease.id for lease in await take(store, 9)} == {newest.id, plain}


async def test_a_queue_that_becomes_ordered_keeps_its_newest(
    store: PostgresStore, clock: ManualClock
) -> None:
    ordered = Want(queue=WORK, ordered=True)
    old, newest = latest(), latest()
    await put(store, old)
    lease = await take_id(store, old.id)
    await put(store, latest(), newest)
    assert await take(store, 9) == []

    assert await take(store, 9, ordered) == []
    assert await end(store, lease)
    later = latest()
    await put(store, later)
    got: list[Any] = []
    for _ in range(5):
        clock.advance("1s")
        got += await take(store, 1, ordered)

    assert [one.id for one in got] == [later.id]
    assert await state(store, newest.id) is State.CANCELLED


# deliveries


async def test_a_delivery_whose_jobs_are_remembered_knows_them(store: PostgresStore) -> None:
    def came(key: str, new: NewJob) -> Arrival:
        made = Kept(id=new_id(), endpoint="app:/one", key=key, answer=b"a")
        return Arrival(made, (new,))

    new = job(remember=DAY, keep=0)
    await store.receive([came("1", new)])
    assert await end(store, await take_id(store, new.id))
    assert await states(store, new.id) == [None]

    [answer] = await store.receive([came("2", new)])

    assert (answer.verdict, answer.kept.jobs) == (Verdict.NEW, (new.id,))
    assert await take(store) == []


# processes of the version before


async def test_processes_of_before_go_on_beside_new_ones(
    store: PostgresStore, raw: Any, clock: ManualClock
) -> None:
    """Their statements take what they know, and leave the rest to those who know it."""
    old, newest = latest(), latest()
    await put(store, old, newest)
    plain = new_id()
    skew = store._skew
    rows = await old_call(
        store,
        raw,
        """
        select place, id, verdict
        from relevo.insert_jobs(
            $1, array[$2::uuid], array[$3], array['A'], array['{}'::bytea], '{}', '{}',
            array[1::smallint], array[3], array[1000::bigint], '{}', '{}', '{}', '{}', '{}', '{}',
            '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}'
        )
        """,
        skew,
        plain,
        WORK,
    )
    assert rows == []

    rows = await old_call(
        store,
        raw,
        """
        select *
        from relevo.claim_jobs(
            $1, array[$2], '{}', '{}', '{}', '{}', '{}', '{}', '{}', 9, 77, 'old', 60000
        )
        """,
        skew,
        WORK,
    )
    taken = {row["id"].hex for row in rows if row["id"]}
    assert taken == {newest.id, plain}
    assert await state(store, old.id) is State.CANCELLED

    waits = latest()
    await put(store, waits)
    assert await take(store) == []
    lost = await old_call(
        store,
        raw,
        """
        select unnest(relevo.settle_jobs(
            $1, $2::uuid[], array[77::bigint, 77::bigint], '{}', '{}', '{}', '{}', '{}', '{}', '{}',
            '{}', '{}'
        ))
        """,
        skew,
        sorted(taken),
    )
    assert lost == []
    assert await states(store, newest.id, plain) == [State.DONE, State.DONE]
    await take_id(store, waits.id)


async def test_a_rate_of_before_is_strict_as_well(store: PostgresStore, raw: Any) -> None:
    await put(store, *(job() for _ in range(9)))
    for expected in (3, 0):
        rows = await old_call(
            store,
            raw,
            """
            select *
            from relevo.claim_jobs(
                $1, array[$2], array[null::integer], array[null::integer], array[3],
                array[3600000::bigint], array[null::integer], array[null::bigint], array[false],
                9, 77, 'old', 60000
            )
            """,
            store._skew,
            WORK,
        )
        assert len([row for row in rows if row["id"]]) == expected


# what is left over


async def test_joins_and_remembered_ids_go_in_the_end(
    store: PostgresStore, raw: Any, clock: ManualClock
) -> None:
    async def rows() -> list[int]:
        counted = await old_call(
            store,
            raw,
            "select (select count(*) from relevo.joins) as a, "
            "(select count(*) from relevo.remembered) as b",
        )
        return list(counted[0])

    for number, keep in enumerate((0, HOUR, HOUR)):
        id = await add(store, key=f"k{number}", digest=b"\0one", keep=keep, remember=HOUR)
        await store.insert([job(key=f"k{number}", digest=b"\0two", remember=HOUR)])
        assert await end(store, await take_id(store, id))
        if number == 2:
            assert await store.erase([id], [], ANN, act="forget-1") == (1, 0)
    assert await rows() == [1, 5]

    clock.advance("61m")
    await store.prune(dead_keep=DAY)
    assert (await rows())[0] == 0
    clock.advance("61m")
    await store.prune(dead_keep=DAY)
    assert await rows() == [0, 0]
