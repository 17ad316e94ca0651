"""PostgreSQL: suspicion and crashes, and processes of the version before that know neither."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from relevo.job import Failure, Lease, State, Suspicion
from relevo.store import Loss
from relevo.stores.postgres import schema
from relevo.stores.postgres.store import PostgresStore
from relevo.testing import ManualClock
from tests.conformance.steps import WORK, add, end, job, look, outcomes, put, take, take_id
from tests.servers.postgres import fresh_store, postgres_url

pytestmark = pytest.mark.xdist_group("postgres")
KILLED = Failure(type="WorkerCrashed", message="signal 9", fingerprint="crashed")
CLAIM = """
select *
from relevo.claim_jobs(
    $1, array[$2], '{}', '{}', '{}', '{}', '{}', '{}', '{}', 9, 77, 'old', 60000, '{}'
)
"""


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[PostgresStore]:
    async with fresh_store(clock) as opened:
        yield opened


@pytest.fixture
async def raw() -> AsyncIterator[Any]:
    connection = await asyncpg.connect(postgres_url())
    yield connection
    await connection.close()


async def marks(store: PostgresStore, id: str) -> tuple[int, int]:
    found = await look(store, id)
    return found.suspicion, found.crashes


async def mark(store: PostgresStore, id: str) -> None:
    lease = await take_id(store, id)
    assert await end(store, lease, State.SCHEDULED, spend=False, suspicion=2, crashes=5)


async def test_jobs_of_before_are_not_suspected(raw: Any) -> None:
    name = f"relevo_new_{time.monotonic_ns()}"
    handle = PostgresStore(f"{postgres_url()}{'&' if '?' in postgres_url() else '?'}schema={name}")
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(raw.execute, f'drop schema if exists "{name}" cascade')
        stack.push_async_callback(handle.close)
        with pytest.MonkeyPatch.context() as patch:
            before = tuple(step for step in schema.steps() if step[0] < 20)
            patch.setattr(schema, "steps", lambda: before)
            await handle.migrate()
            await handle.open()
        running, given_back = await put(handle, job(attempts=1), job(attempts=1))
        rows = await raw.fetch(handle._sql(CLAIM), handle._skew, WORK)
        assert {row["id"].hex for row in rows} == {running, given_back}
        waiting, dead = await put(handle, job(), job("app:module:dead"))

        await handle.migrate()

        assert await end(handle, await take_id(handle, dead, "app:module:dead"), State.DEAD)
        for id in (running, given_back, waiting, dead):
            assert await marks(handle, id) == (0, 0)
        lease = Lease(id=running, queue=WORK, kind="", payload=b"", attempt=1, attempts=1, token=77)
        assert await handle.isolate([lease]) == [True]
        assert (
            len(await handle.rescue(worker="old", losses=[Loss(id=running, failure=KILLED)])) == 2
        )
        assert await marks(handle, running) == (0, 1)
        assert await outcomes(handle, given_back) == []
        leases = await take(handle, 9)
        assert {lease.id: (lease.attempt, lease.suspicion, lease.crashes) for lease in leases} == {
            running: (1, 0, 1),
            given_back: (1, 0, 0),
            waiting: (1, 0, 0),
        }


async def test_a_process_of_before_claims_and_ends_what_it_can(
    store: PostgresStore, raw: Any
) -> None:
    id = await add(store)
    await mark(store, id)

    rows = await raw.fetch(store._sql(CLAIM), store._skew, WORK)

    assert [row["id"].hex for row in rows] == [id]
    assert list(rows[0].keys())[-1] == "turn"
    assert await marks(store, id) == (2, 5)
    settle = """
    select unnest(relevo.settle_jobs(
        $1, array[$2::uuid], array[77::bigint], '{}', array[0::smallint], '{}', array[false], '{}',
        '{}', '{}', '{}', '{}', '{}'
    ))
    """
    assert await raw.fetch(store._sql(settle), store._skew, id) == []
    assert await marks(store, id) == (0, 0)
    assert await outcomes(store, id) == ["snooze", "snooze"]


async def test_a_process_of_before_ends_no_job_by_a_rescue(
    store: PostgresStore, raw: Any, clock: ManualClock
) -> None:
    id = await add(store, attempts=1)
    await take(store, worker="gone")
    clock.advance("61s")

    rows = await raw.fetch(
        store._sql("select id, queue, worker, state, lapse from relevo.rescue_jobs($1, 9, null)"),
        store._skew,
    )

    assert [tuple(row) for row in rows[:-1]] == [(rows[0]["id"], WORK, "gone", 0, None)]
    found = await look(store, id)
    assert (found.state, found.attempt, found.suspicion) == (State.READY, 0, 1)


async def test_a_plain_claim_tells_both(store: PostgresStore) -> None:
    """The statement of a claim that follows one which got all it had asked for."""
    ids = await put(store, *(job() for _ in range(3)))
    leases = await take(store, 3)
    assert await store.isolate(leases[:1]) == [True]
    await store.rescue(
        worker="w1",
        losses=[Loss(id=id, failure=KILLED, suspicion=Suspicion.WATCHED) for id in ids[:2]],
    )
    assert store._is_hurried
    swiftly = store._claim_swiftly
    taken: list[int] = []

    async def noted(*given: Any) -> Any:
        rows = await swiftly(*given)
        taken.append(len(rows))
        return rows

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "_claim_swiftly", noted)
        leases = await take(store, 3)

    assert taken == [3]
    assert [(lease.id, lease.suspicion, lease.crashes) for lease in leases] == [
        (ids[0], 2, 1),
        (ids[1], 2, 0),
        (ids[2], 0, 0),
    ]


async def test_what_is_given_back_lets_those_behind_it_be_claimed(store: PostgresStore) -> None:
    """Jobs of several keys, some in lanes, each with a newer one that a claim has put behind it."""
    keys = [f"k{n}" for n in range(4)]
    lanes = [None, None, "a", "b"]

    def latest() -> list[Any]:
        return [
            job(key=key, unique="latest", lane=lane) for key, lane in zip(keys, lanes, strict=True)
        ]

    olds, news = await put(store, *latest()), await put(store, job())
    leases = await take(store, 9)
    news = await put(store, *latest())
    assert len(leases) == 5
    assert await take(store, 9) == []
    behind = "select count(*) from relevo.jobs where state = -2"
    assert (await store._people.fetch(store._sql(behind)))[0]["count"] == 4

    assert len(await store.rescue(worker="w1")) == 5

    assert (await store._people.fetch(store._sql(behind)))[0]["count"] == 0
    again = await take(store, 9)
    assert {lease.id for lease in again} - set(news) == {
        lease.id for lease in leases if lease.id not in olds
    }
    assert len(again) == 5
