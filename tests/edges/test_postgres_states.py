"""PostgreSQL: the states of deliveries are walked apart, and a resolution happens once."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from relevo.ids import new_id
from relevo.job import Verdict
from relevo.store import Arrival, By, DeliveryState, Kept, Letterbox, QueueMode
from relevo.stores.postgres import deliveries, schema
from relevo.stores.postgres.store import PostgresStore
from relevo.testing import ManualClock
from tests.conformance.steps import WORK, count, job
from tests.conformance.test_delivery_states import fail, resolved
from tests.conformance.test_receive import accept, full, kept, listed, receive
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


async def blocked(raw: Any, *waiting: asyncio.Task[Any]) -> None:
    """Return when each of these calls waits for a lock."""
    while await raw.fetchval("select count(*) from pg_locks where not granted") < len(waiting):
        assert not any(task.done() for task in waiting)
        await asyncio.sleep(0.01)


async def test_deliveries_of_before_keep_their_state(raw: Any) -> None:
    name = f"relevo_new_{time.monotonic_ns()}"
    handle = PostgresStore(f"{postgres_url()}{'&' if '?' in postgres_url() else '?'}schema={name}")
    ids = {True: new_id(), False: new_id()}
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(raw.execute, f'drop schema if exists "{name}" cascade')
        stack.push_async_callback(handle.close)
        with pytest.MonkeyPatch.context() as patch:
            before = tuple(step for step in schema.steps() if step[0] < 18)
            patch.setattr(schema, "steps", lambda: before)
            await handle.migrate()
        for rejected, id in ids.items():
            await raw.execute(
                handle._sql("""
                insert into relevo.deliveries (
                    id, received_at, generation, status, rejected, source, method, path, query,
                    reason, jobs, print, headers, answer, body
                )
                values ($1, 1, 0, 200, $2, 'app:/one', 'POST', '', '', '', '', $1, '[]', 'a', 'b')
                """),
                id,
                rejected,
            )

        await handle.migrate()

        await handle.open()
        found = await handle.delivery([ids[True], ids[False]])
        assert [one and one.state for one in found] == [
            DeliveryState.REFUSED,
            DeliveryState.ACCEPTED,
        ]
        assert [one and (one.answer, one.body) for one in found] == [(b"a", b"b")] * 2


async def test_a_flood_of_refused_ones_is_no_part_of_other_pages(
    store: PostgresStore, raw: Any
) -> None:
    few = [kept(state.value, state=state) for state in DeliveryState]
    await accept(store, *few)
    for _ in range(4):
        flood = [kept(None, state=DeliveryState.REFUSED) for _ in range(1_000)]
        await store.receive([Arrival(one) for one in flood])
    await raw.execute(store._sql("analyze relevo.deliveries"))
    await raw.execute("set plan_cache_mode = force_custom_plan")

    for one in few:
        if one.state is DeliveryState.REFUSED:
            continue
        where = Letterbox(state=one.state)
        sql = store._sql(deliveries._PAGE.format(deliveries._walks(deliveries._FOUND, one.state)))
        meant = deliveries._meant(where, None)
        lines = await raw.fetch(f"explain analyze {sql}", *meant, 51, None, None, None)
        plan = "\n".join(line[0] for line in lines)
        assert "deliveries_id on deliveries" in plan
        # The flood is not read; a row or two that a vacuum has not seen may be.
        removed = [int(many) for many in re.findall(r"Rows Removed by \w+: (\d+)", plan)]
        assert sum(removed) < 10, plan
        assert [each.id for each in (await store.deliveries(where))[0]] == [one.id]


async def test_a_delivery_without_a_key_keeps_its_answer(store: PostgresStore) -> None:
    [id] = await accept(store, kept(None, answer=b"an answer"))

    assert (await full(store, id)).answer == b"an answer"


# resolve


async def test_two_resolve_a_delivery_at_once(store: PostgresStore, raw: Any) -> None:
    came, handler = await fail(store, "body:1234")
    other = store.spawn()
    await other.open()
    try:
        transaction = raw.transaction()
        await transaction.start()
        await raw.execute(store._sql("select from relevo.deliveries for update"))
        waiting = [
            asyncio.create_task(one.resolve(handler, resolved(came, job(), key="evt_1")))
            for one in (store, other)
        ]
        await blocked(raw, *waiting)
        await transaction.rollback()
        answers = await asyncio.gather(*waiting)
    finally:
        await other.close()

    assert sorted(answer.verdict for answer in answers) == [Verdict.DONE, Verdict.NEW]
    assert answers[0].kept.jobs == answers[1].kept.jobs == (await full(store, came.id)).jobs
    assert await count(store, queue=WORK) == 1


async def test_a_resolution_and_its_delivery_again_do_not_cross(store: PostgresStore) -> None:
    """The resolution comes upon a line that the provider's next call has just written."""
    for turn in range(20):
        came, handler = await fail(store, f"body:{turn}")
        new = [kept(f"evt_{turn}"), kept(f"body:{turn}")]
        answer, received = await asyncio.gather(
            store.resolve(handler, resolved(came, job(key=f"{turn}"), key=f"evt_{turn}")),
            store.receive([Arrival(one, (job(key=f"{turn}"),)) for one in new]),
        )
        assert answer.verdict is Verdict.NEW
        assert received[1].verdict is Verdict.DONE
        assert await count(store, queue=WORK) == turn + 1


async def test_a_queue_that_begins_to_drain_meanwhile_leaves_a_delivery_as_it_is(
    store: PostgresStore, raw: Any
) -> None:
    """Looked at before, shut when the jobs' turn came: neither line nor row is changed."""
    came, handler = await fail(store, "body:1234")
    transaction = raw.transaction()
    await transaction.start()
    await store.receive_within(raw, Arrival(kept("evt_1")))
    new = job()
    waiting = asyncio.create_task(store.resolve(handler, resolved(came, new, key="evt_1")))
    await blocked(raw, waiting)
    await store.set_mode([WORK], QueueMode.DRAINING, By("ann"))
    await transaction.rollback()

    answer = await waiting

    assert answer.verdict is Verdict.CLOSED
    stored = await full(store, came.id)
    assert (stored.state, stored.key) == (DeliveryState.FAILED, "body:1234")
    assert stored.jobs == (handler,)
    assert await store.delivered(came.endpoint, ["evt_1"]) == [None]
    assert await store.find([new.id]) == [None]
    assert await count(store) == 1


async def test_repeats_stay_under_a_new_key(store: PostgresStore) -> None:
    came, handler = await fail(store, "body:1234")
    await receive(store, kept("body:1234", body=b"another"))

    await store.resolve(handler, resolved(came, key="evt_1"))

    stored = await full(store, came.id)
    assert (stored.key, stored.repeats, stored.differs) == ("evt_1", 1, True)
    assert stored.repeated_at > 0


async def test_a_key_of_another_brings_nothing_of_that_along(store: PostgresStore) -> None:
    first = kept("evt_1")
    await accept(store, first)
    await receive(store, kept("evt_1"))
    came, handler = await fail(store, "body:1234")

    await store.resolve(handler, resolved(came, key="evt_1", answer=b"mine"))

    stored = await full(store, came.id)
    assert (stored.key, stored.answer, stored.repeats) == ("evt_1", b"mine", 0)
    assert await listed(store, key="evt_1") == [first.id]
    again = await receive(store, Kept(id=new_id(), endpoint=came.endpoint, key="body:1234"))
    assert (again.kept.id, again.kept.answer) == (came.id, b"mine")
