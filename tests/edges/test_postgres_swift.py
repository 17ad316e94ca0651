"""The PostgreSQL store in a hurry: plain claims in a long queue, news heard once, brief columns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from relevo.errors import MisuseError, StoreUnavailable
from relevo.ids import new_id
from relevo.job import NewJob, Verdict
from relevo.store import By, QueueMode, Want
from relevo.stores.postgres import lines
from relevo.stores.postgres.rows import columns_of, ids_as_text
from relevo.stores.postgres.store import PostgresStore
from relevo.testing import ManualClock
from tests.conformance.steps import LEASE, OTHER, WORK, end, job, put
from tests.servers.postgres import fresh_store, postgres_url

pytestmark = pytest.mark.xdist_group("postgres")
BOTH = [Want(queue=WORK), Want(queue=OTHER)]


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[PostgresStore]:
    async with fresh_store(clock) as opened:
        yield opened


@pytest.fixture
async def hurried(store: PostgresStore) -> PostgresStore:
    """A store whose last claim got all it had asked for, so that the next is a plain statement."""
    await put(store, job(), job())
    assert len((await store.claim(BOTH, 2, "worker", LEASE)).leases) == 2
    assert store._is_hurried
    return store


async def claimed(store: PostgresStore, count: int, wants: list[Want] = BOTH) -> list[str]:
    claim = await store.claim(wants, count, "worker", LEASE)
    return [lease.queue if lease.lane is None else lease.lane for lease in claim.leases]


async def test_a_plain_claim_gives_what_is_urgent_first(hurried: PostgresStore) -> None:
    ids = [new_id() for _ in range(4)]
    await put(hurried, job(id=ids[0], priority=2), job(id=ids[1]), job(id=ids[2], priority=0))
    await put(hurried, job(id=ids[3]))

    claim = await hurried.claim(BOTH, 4, "worker", LEASE)

    assert [lease.id for lease in claim.leases] == [ids[2], ids[1], ids[3], ids[0]]
    assert len({lease.token for lease in claim.leases}) == 1
    assert [lease.attempt for lease in claim.leases] == [1] * 4
    for lease in claim.leases:
        await end(hurried, lease)


async def test_a_plain_claim_leaves_paused_queues_alone(hurried: PostgresStore) -> None:
    await put(hurried, job(), *(job(queue=OTHER) for _ in range(2)))
    await hurried.set_mode([WORK], QueueMode.PAUSED, By("ann"))

    assert await claimed(hurried, 3) == [OTHER, OTHER]


async def test_a_plain_claim_shares_evenly_and_then_with_who_has_more(
    hurried: PostgresStore,
) -> None:
    await put(hurried, *(job() for _ in range(40)), *(job(queue=OTHER) for _ in range(7)))

    first, second = await claimed(hurried, 10), await claimed(hurried, 10)

    assert (first.count(WORK), first.count(OTHER)) == (5, 5)
    assert (second.count(WORK), second.count(OTHER)) == (8, 2)
    assert hurried._is_hurried


async def test_lanes_that_appear_in_a_hurry_get_their_turn(hurried: PostgresStore) -> None:
    await put(hurried, *(job() for _ in range(20)), job(lane="a"), job(lane="b"))

    assert {"a", "b"} <= set(await claimed(hurried, 10))


async def test_a_queue_that_gives_its_first_job_in_a_hurry_is_known(
    hurried: PostgresStore,
) -> None:
    await put(hurried, *(job(queue=OTHER, keep=0) for _ in range(4)))

    claim = await hurried.claim(BOTH, 2, "worker", LEASE)
    for lease in [*claim.leases, *(await hurried.claim(BOTH, 9, "worker", LEASE)).leases]:
        await end(hurried, lease)

    assert OTHER in {tally.queue for tally in await hurried.tally()}


async def test_a_plain_claim_that_finds_less_says_when_to_look_again(
    hurried: PostgresStore,
) -> None:
    await put(hurried, job(), job(delay=5_000))

    claim = await hurried.claim(BOTH, 10, "worker", LEASE)

    assert len(claim.leases) == 1
    assert claim.next_due is not None and 0 < claim.next_due <= 5_000


async def test_two_in_a_hurry_never_take_the_same(hurried: PostgresStore) -> None:
    other = hurried.spawn()
    other._is_hurried = True
    await put(hurried, *(job() for _ in range(400)))

    claims = await asyncio.gather(
        *(store.claim(BOTH, 20, "worker", LEASE) for store in (hurried, other) for _ in range(10))
    )

    ids = [lease.id for claim in claims for lease in claim.leases]
    assert len(ids) == len(set(ids)) == 400
    await other.close()


# news


async def test_what_we_store_ourselves_wakes_once(store: PostgresStore) -> None:
    await store.wait([WORK], 0.05)
    await asyncio.wait_for(store._ear._listening.wait(), 10)
    for _ in range(5):
        await put(store, job())
        await store.wait([WORK], 10)
        assert await claimed(store, 1) == [WORK]
        await claimed(store, 1)  # found nothing, and the ear has been told so
        for _ in range(500):  # until the server has told it too
            if store._ear._balance.get(WORK, 0) == 0:
                break
            await asyncio.sleep(0.01)

        assert store._ear._balance[WORK] == 0
        assert WORK not in store._ear._woken


async def test_a_store_that_may_have_happened_wakes_too(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def breaks(*_: object, **__: object) -> Any:
        raise StoreUnavailable("no answer")

    store._ear.looking([WORK])
    monkeypatch.setattr(lines.Line, "fetch_once", breaks)
    with pytest.raises(StoreUnavailable):
        await store.insert([job()])

    await asyncio.wait_for(store.wait([WORK], 60), 5)


async def test_the_connection_that_opens_a_store_goes_on_to_serve(store: PostgresStore) -> None:
    raw = await asyncpg.connect(postgres_url())
    handle = store.spawn()
    await handle.open()
    pid = handle._upkeep._lines[0].pid

    assert await handle.now() > 0
    assert handle._upkeep._lines[0].pid == pid != 0
    assert await raw.fetchval("select state from pg_stat_activity where pid = $1", pid) == "idle"
    await handle.close()
    await raw.close()


# columns


async def test_equal_columns_travel_as_one_value_and_arrive_as_many(store: PostgresStore) -> None:
    alike = [job() for _ in range(3)]
    mixed = [job(), job(queue=OTHER, priority=2, attempts=9, keep=5)]

    assert [len(column) for column in columns_of(alike)[2:5]] == [1, 1, 3]
    for jobs in (alike, mixed):
        stored = await store.find([one.id for one in jobs if await put(store, one)])
        assert [(one.queue, one.priority, one.attempts) for one in stored if one] == [
            (one.queue, one.priority, one.attempts) for one in jobs
        ]


async def test_ids_in_another_spelling_are_the_same_and_no_others_pass(
    store: PostgresStore,
) -> None:
    id = new_id()

    assert ids_as_text([]) == "{}"
    assert ids_as_text([id, str(UUID(id))]) == f"{{{id},{id}}}"
    for wrong in ("x", f"{id},{id}", "", "{}"):
        with pytest.raises(MisuseError):
            await store.insert([NewJob(id=wrong, queue=WORK, kind="Kind", payload=b"{}")])
    [inserted] = await store.insert([NewJob(id=str(UUID(id)), queue=WORK, kind="K", payload=b"1")])
    assert inserted.verdict is Verdict.NEW


async def test_a_lane_is_lulled_by_its_own_jobs_alone(store: PostgresStore) -> None:
    """F34: on a plan made while there were few jobs, all of a hot lane were read at every claim."""
    await put(store, job(lane="cold"))
    lull = store._sql("select relevo.lull_lanes(0, $1, $2, null, null, false)")
    read = "select idx_tup_fetch from pg_stat_xact_user_tables where relid = $1::regclass"
    connection = await asyncpg.connect(postgres_url())
    try:
        await connection.execute("set plan_cache_mode = force_generic_plan")
        cold = await connection.fetch(store._sql("select lane from relevo.lanes"))
        lanes = [row["lane"] for row in cold]
        await connection.fetch(lull, WORK, lanes)
        (lease,) = (await store.claim(BOTH, 1, "worker", LEASE)).leases
        await end(store, lease)
        await put(store, *[job(lane="hot") for _ in range(1_000)])
        async with connection.transaction():
            await connection.fetch(lull, WORK, lanes)
            fetched = await connection.fetchval(read, store._sql("relevo.jobs"))
    finally:
        await connection.close()

    assert fetched < 10
