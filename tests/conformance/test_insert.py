"""In: what was inserted is stored, durably, as it came, and once."""

from __future__ import annotations

import asyncio

from relevo.ids import new_id
from relevo.job import ENDED, LIVE, Receipt, State, Verdict
from relevo.store import BATCH, QueueMode, Store
from relevo.testing import ManualClock
from tests.conformance.conftest import Handles
from tests.conformance.steps import (
    ANN,
    DAY,
    HOUR,
    MINUTE,
    OTHER,
    WORK,
    about,
    add,
    count,
    drain,
    end,
    insert,
    job,
    look,
    make,
    pause,
    put,
    state,
    states,
    take,
    take_one,
)

PAYLOADS = [
    b"{}",
    b'{ "b" : 1.0,\n\t"a":[ ] , "c": 1e2 }',
    '{"t":"ñ 日本 🏨 \u202e \u0301"}'.encode(),
    b'{"t":"\\u0000 \\ud83d\\ude00 \\" \\\\ \'"}',
    b'{"t":"' + b"x" * 65_000 + b'"}',
    b'[1,"two",null,true,12345678901234567890123]',
    b"1",
    b"null",
]


async def test_a_job_is_found_as_it_was_inserted(store: Store) -> None:
    before = await store.now()
    new = job(
        priority=0,
        attempts=7,
        key="order-1",
        unique="forever",
        lane="hotel-9",
        thread=new_id(),
        cause=new_id(),
        meta=b'{"traceparent":"00-1"}',
        flow=new_id(),
        node="first",
    )
    await put(store, new)

    found = await look(store, new.id)
    for field in ("id", "queue", "kind", "payload", "priority", "attempts", "key", "unique"):
        assert getattr(found, field) == getattr(new, field), field
    for field in ("lane", "thread", "cause", "meta", "flow", "node"):
        assert getattr(found, field) == getattr(new, field), field
    assert found.state is State.READY
    assert found.attempt == 0
    assert before <= found.inserted_at <= await store.now()
    assert found.run_at == found.inserted_at
    assert found.history == ()
    assert found.ended_at is None
    assert found.lease_until is None
    assert found.worker is None
    assert found.result is None
    assert found.failure is None


async def test_the_defaults_of_a_job_are_kept(store: Store) -> None:
    found = await look(store, await add(store))

    assert found.priority == 1
    assert found.attempts == 3
    assert found.unique == "unfinished"
    assert (found.key, found.lane, found.park, found.cause) == (None, None, None, None)
    assert (found.meta, found.flow, found.node) == (None, None, None)
    assert (found.after, found.before) == ((), ())


async def test_a_job_without_a_thread_starts_its_own(store: Store) -> None:
    first, second = await put(store, job(), job())

    assert (await look(store, first)).thread == first
    assert (await look(store, second)).thread == second


async def test_a_payload_comes_back_byte_for_byte(store: Store) -> None:
    """B25"""
    for payload in PAYLOADS:
        with about(payload):
            id = await add(store, payload=payload)

            assert (await look(store, id)).payload == payload
            lease = await take_one(store)
            assert bytes(lease.payload) == payload
            assert await end(store, lease, State.SCHEDULED)
            again = await take_one(store)
            assert bytes(again.payload) == payload
            assert await end(store, again)
            assert (await look(store, id)).payload == payload


async def test_nothing_to_insert_is_nothing(store: Store) -> None:
    assert await store.insert([]) == []
    assert await store.tally() == []


async def test_answers_come_in_the_order_of_the_jobs(store: Store) -> None:
    known = await add(store, key="taken")
    await drain(store, "app:module:closed")
    batch = [job(), job(key="taken"), job("app:module:closed"), job(OTHER), job(id=known)]

    answers = await store.insert(batch)

    assert answers == [
        Receipt(batch[0].id, Verdict.NEW),
        Receipt(known, Verdict.IN_PROGRESS),
        Receipt(batch[2].id, Verdict.CLOSED),
        Receipt(batch[3].id, Verdict.NEW),
        Receipt(known, Verdict.IN_PROGRESS),
    ]


async def test_a_full_batch_is_stored_in_order(store: Store) -> None:
    ids = await put(store, *[job() for _ in range(BATCH)])

    assert await count(store) == BATCH
    assert [lease.id for lease in await take(store, BATCH)] == ids


async def test_a_delayed_job_is_scheduled_from_the_stores_now(store: Store) -> None:
    before = await store.now()
    id = await add(store, delay=HOUR)
    found = await look(store, id)

    assert found.state is State.SCHEDULED
    assert before + HOUR <= found.run_at <= await store.now() + HOUR


async def test_a_scheduled_job_becomes_ready_when_due(store: Store, clock: ManualClock) -> None:
    id = await add(store, delay=HOUR)
    clock.advance("59m")
    assert await state(store, id) is State.SCHEDULED

    clock.advance("2m")

    assert await state(store, id) is State.READY


async def test_an_absolute_moment_wins_over_a_delay(store: Store) -> None:
    at = await store.now() + DAY
    found = await look(store, await add(store, delay=HOUR, run_at=at))

    assert found.run_at == at
    assert found.state is State.SCHEDULED


async def test_a_moment_in_the_past_is_due_now(store: Store) -> None:
    at = await store.now() - DAY
    id = await add(store, run_at=at)

    assert await state(store, id) is State.READY
    assert (await take_one(store)).id == id


async def test_the_same_id_is_not_stored_twice(store: Store) -> None:
    id = await add(store, payload=b'{"n":1}')

    assert await insert(store, id=id, payload=b'{"n":2}') == Receipt(id, Verdict.IN_PROGRESS)
    assert (await look(store, id)).payload == b'{"n":1}'
    assert await count(store) == 1
    assert len(await take(store, 10)) == 1


async def test_the_same_id_twice_in_one_call_is_one_job(store: Store) -> None:
    new = job()

    answers = await store.insert([new, new])

    assert answers == [Receipt(new.id, Verdict.NEW), Receipt(new.id, Verdict.IN_PROGRESS)]
    assert len(await take(store, 10)) == 1


async def test_a_known_id_that_is_live_is_in_progress(store: Store) -> None:
    for live in LIVE:
        with about(live):
            queue = f"app:module:{live}"
            id = await make(store, live, queue)

            assert await insert(store, queue, id=id) == Receipt(id, Verdict.IN_PROGRESS)
            assert await state(store, id) is live


async def test_a_known_id_that_has_ended_is_done(store: Store) -> None:
    for ended in ENDED:
        with about(ended):
            id = await make(store, ended)

            assert await insert(store, id=id) == Receipt(id, Verdict.DONE)
            assert await state(store, id) is ended
            assert await take(store) == []


async def test_a_known_id_with_a_known_key_is_still_itself(store: Store) -> None:
    id = await add(store, key="k")

    assert await insert(store, id=id, key="k") == Receipt(id, Verdict.IN_PROGRESS)
    lease = await take_one(store)
    await end(store, lease)
    assert await insert(store, id=id, key="k") == Receipt(id, Verdict.DONE)
    assert await count(store) == 1


async def test_a_job_carried_by_many_at_once_is_stored_once(store: Store, handles: Handles) -> None:
    """F27"""
    carriers = [store, *await handles(2)]
    batch = [job() for _ in range(20)]

    answers = await asyncio.gather(*(carriers[n % 3].insert(batch) for n in range(12)))

    for position, new in enumerate(batch):
        verdicts = [answer[position].verdict for answer in answers]
        assert verdicts.count(Verdict.NEW) == 1
        assert verdicts.count(Verdict.IN_PROGRESS) == 11
        assert {answer[position].id for answer in answers} == {new.id}
    assert len(await take(store, 100)) == 20


async def test_a_draining_queue_takes_nothing_in(store: Store) -> None:
    await drain(store, WORK)
    new = job()

    assert await store.insert([new]) == [Receipt(new.id, Verdict.CLOSED)]
    assert await store.find([new.id]) == [None]
    assert await count(store) == 0


async def test_a_key_refused_by_a_draining_queue_stays_free(store: Store) -> None:
    await drain(store, WORK)
    assert (await insert(store, key="k", unique="forever")).verdict is Verdict.CLOSED
    await store.set_mode([WORK], QueueMode.OPEN, ANN)

    assert (await insert(store, key="k", unique="forever")).verdict is Verdict.NEW


async def test_a_paused_queue_takes_jobs_in(store: Store) -> None:
    await pause(store, WORK)

    assert await state(store, await add(store)) is State.READY


async def test_a_bundle_is_stored_all_or_none(store: Store) -> None:
    """F40"""
    await drain(store, OTHER)
    bundle = new_id()
    first, closed, last = (
        job(bundle=bundle),
        job(OTHER, bundle=bundle),
        job("app:module:third", bundle=bundle),
    )
    alone = job()

    answers = await store.insert([first, alone, closed, last])

    assert [answer.verdict for answer in answers] == [
        Verdict.CLOSED,
        Verdict.NEW,
        Verdict.CLOSED,
        Verdict.CLOSED,
    ]
    assert await states(store, first.id, alone.id, closed.id, last.id) == [
        None,
        State.READY,
        None,
        None,
    ]


async def test_a_taken_key_holds_up_nobody_else_of_its_bundle(store: Store) -> None:
    [first] = await store.insert([job(key="taken")])
    bundle = new_id()
    batch = [
        job(key="taken", bundle=bundle),
        job(key="free", bundle=bundle),
        job(OTHER, bundle=bundle),
    ]
    answers = await store.insert(batch)
    assert [answer.verdict for answer in answers] == [
        Verdict.IN_PROGRESS,
        Verdict.NEW,
        Verdict.NEW,
    ]
    assert [answer.id for answer in answers] == [first.id, batch[1].id, batch[2].id]
    assert all(await store.find([batch[1].id, batch[2].id]))


async def test_a_bundle_over_many_queues_is_stored(store: Store) -> None:
    bundle = new_id()
    batch = [job(f"app:module:listener-{n}", bundle=bundle) for n in range(5)]

    ids = await put(store, *batch)

    assert await states(store, *ids) == [State.READY] * 5
    again = await store.insert(batch)
    assert [answer.verdict for answer in again] == [Verdict.IN_PROGRESS] * 5


async def test_an_inserted_job_is_seen_by_another_handle(store: Store, handles: Handles) -> None:
    (other,) = await handles(1)
    id = await add(store)

    assert (await look(other, id)).state is State.READY
    assert (await take_one(other)).id == id


async def test_many_callers_at_once_all_get_their_answer(store: Store, handles: Handles) -> None:
    callers = [store, *await handles(1)]
    batches = [[job(), job(OTHER)] for _ in range(100)]

    answers = await asyncio.gather(
        *(callers[n % 2].insert(batch) for n, batch in enumerate(batches))
    )

    for batch, answer in zip(batches, answers, strict=True):
        assert answer == [Receipt(new.id, Verdict.NEW) for new in batch]
    assert await count(store, queue=WORK) == 100
    assert await count(store, queue=OTHER) == 100


async def test_a_cancelled_caller_does_not_harm_the_others(store: Store) -> None:
    batches = [[job()] for _ in range(30)]
    tasks = [asyncio.create_task(store.insert(batch)) for batch in batches]
    await asyncio.sleep(0)
    for task in tasks[::3]:
        task.cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)

    for n, (batch, answer) in enumerate(zip(batches, answers, strict=True)):
        if n % 3:
            assert answer == [Receipt(batch[0].id, Verdict.NEW)]
    assert (await insert(store)).verdict is Verdict.NEW


async def test_a_longer_delay_than_a_lease_is_no_problem(store: Store, clock: ManualClock) -> None:
    id = await add(store, delay=400 * DAY)
    clock.advance("399d")
    assert await take(store) == []

    clock.advance("2d")

    assert (await take_one(store, lease=MINUTE)).id == id
