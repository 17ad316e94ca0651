"""Suspicion and crashes: what a store remembers of a job whose worker process died with it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from relevo.ids import new_id
from relevo.job import Ending, Failure, Lease, State, Suspicion, Verdict, suspected
from relevo.store import BATCH, Edit, Filter, Loss, Rescued, Store, Want
from relevo.testing import ManualClock
from tests.conformance.conftest import Handles
from tests.conformance.steps import (
    ANN,
    BOOM,
    DAY,
    HOUR,
    MINUTE,
    OTHER,
    WORK,
    add,
    add_parent,
    end,
    insert,
    job,
    look,
    outcomes,
    pause,
    put,
    state,
    states,
    take,
    take_id,
    take_one,
)
from tests.conformance.test_within import Session
from tests.conformance.test_within import session as session

NONE, LOST, WATCHED, ALONE = Suspicion
KILLED = Failure(type="WorkerCrashed", message="signal 9", trace="none", fingerprint="crashed")
ORDERED = Want(queue=WORK, ordered=True, lane_limit=1)


async def marks(store: Store, id: str) -> tuple[int, int]:
    """The suspicion and the crashes of a job, which find() and page() must agree on."""
    found = await look(store, id)
    [listed] = [one for one in (await store.page(Filter(), limit=200)).jobs if one.id == id]
    assert (listed.suspicion, listed.crashes) == (found.suspicion, found.crashes)
    return found.suspicion, found.crashes


def marks_of(lease: Lease) -> tuple[int, int]:
    return lease.suspicion, lease.crashes


def loss(id: str, suspicion: Suspicion = WATCHED, **how: Any) -> Loss:
    return Loss(id=id, failure=KILLED, suspicion=suspicion, **how)


async def release(store: Store, lease: Lease, **how: Any) -> bool:
    kept = {"suspicion": lease.suspicion, "crashes": lease.crashes, **how}
    return await end(store, lease, State.SCHEDULED, spend=False, released=True, **kept)


async def marked(
    store: Store, suspicion: int = 2, crashes: int = 5, queue: str = WORK, **fields: Any
) -> str:
    """A ready job of which a run has left these."""
    id = await add(store, queue, **fields)
    lease = await take_id(store, id, queue)
    how = {"suspicion": suspicion, "crashes": crashes}
    assert await end(store, lease, State.SCHEDULED, spend=False, **how)
    return id


async def test_a_new_job_is_not_suspected(store: Store) -> None:
    id = await add(store)

    assert await marks(store, id) == (0, 0)
    assert marks_of(await take_id(store, id)) == (0, 0)
    assert await marks(store, id) == (0, 0)


# rescue of a lapsed lease


async def test_a_lapse_spends_no_attempt_and_ends_no_job(store: Store, clock: ManualClock) -> None:
    id = await add(store, attempts=1)
    for n in range(10):
        lease = await take_id(store, id, worker=f"gone-{n}")
        assert lease.attempt == 1
        clock.advance("61s")

        assert await store.rescue() == [Rescued(id, WORK, f"gone-{n}")]

        found = await look(store, id)
        assert (found.state, found.attempt, found.ended_at) == (State.READY, 0, None)
        assert (found.lease_until, found.worker) == (None, None)
    assert await outcomes(store, id) == ["rescued"] * 10
    assert {run.number for run in found.history} == {1}
    assert await end(store, await take_id(store, id))


async def test_a_lapse_raises_the_suspicion_by_one_to_alone_at_most(
    store: Store, clock: ManualClock
) -> None:
    id = await add(store)
    for before, after in [(NONE, LOST), (LOST, WATCHED), (WATCHED, ALONE), (ALONE, ALONE)]:
        assert marks_of(await take_id(store, id)) == (before, 0)
        clock.advance("61s")
        await store.rescue()

        assert await marks(store, id) == (after, 0)


async def test_a_lapse_leaves_the_crashes(store: Store, clock: ManualClock) -> None:
    id = await marked(store, WATCHED, 0)
    assert await store.isolate([await take_id(store, id)]) == [True]
    clock.advance("61s")
    await store.rescue()

    assert await marks(store, id) == (ALONE, 1)
    assert marks_of(await take_id(store, id)) == (ALONE, 1)


async def test_a_lapse_says_what_is_known_of_it(store: Store, clock: ManualClock) -> None:
    id = await add(store)
    lease = await take_id(store, id, worker="host:1:a")
    clock.advance("61s")
    await store.rescue()

    found = await look(store, id)

    (run,) = found.history
    assert found.failure == run.failure
    assert (run.number, run.outcome, run.worker) == (1, "rescued", "host:1:a")
    assert (run.began_at, run.ended_at >= run.began_at) == (lease.claimed_at, True)
    assert run.failure == Failure(
        type="WorkerLost",
        message="the worker host:1:a went silent; whether it had begun this run is not known",
        fingerprint="WorkerLost",
    )


async def test_a_lapse_gives_back_its_own_attempt_alone(store: Store, clock: ManualClock) -> None:
    id = await add(store, attempts=3)
    assert await end(store, await take_id(store, id), State.SCHEDULED, failure=BOOM)
    for _ in range(4):
        assert (await take_id(store, id)).attempt == 2
        clock.advance("61s")
        await store.rescue()

        assert (await look(store, id)).attempt == 1


async def test_a_lapse_tells_no_parent(store: Store, clock: ManualClock) -> None:
    child = await add(store, attempts=1)
    failing = await add_parent(store, child)
    going = await add_parent(store, child, policy="continue")
    await take_id(store, child)
    clock.advance("61s")
    await store.rescue()

    assert await states(store, child, failing, going) == [
        State.READY,
        State.WAITING,
        State.WAITING,
    ]
    assert await end(store, await take_id(store, child))
    assert await states(store, failing, going) == [State.READY, State.READY]


# rescue of a worker that is known to be gone


async def test_what_ran_in_a_dead_process_is_told_from_what_had_not_begun(store: Store) -> None:
    ran, waited, kept = await put(store, job(), job(), job())
    leases = await take(store, 2, worker="gone")
    other = await take_one(store, worker="alive")
    waiting = await look(store, waited)

    rescued = await store.rescue(worker="gone", losses=[loss(ran), loss(kept), loss(new_id())])

    assert sorted(rescued, key=lambda one: one.id) == sorted(
        [Rescued(ran, WORK, "gone"), Rescued(waited, WORK, "gone")], key=lambda one: one.id
    )
    assert [await end(store, lease) for lease in leases] == [False, False]
    found = await look(store, ran)
    assert (found.state, found.attempt, found.failure) == (State.READY, 0, KILLED)
    (run,) = found.history
    assert (run.number, run.outcome, run.worker) == (1, "rescued", "gone")
    assert run.failure == KILLED
    assert await marks(store, ran) == (WATCHED, 0)
    found = await look(store, waited)
    assert (found.state, found.attempt, found.failure) == (State.READY, 0, None)
    assert (found.history, found.run_at) == ((), waiting.run_at)
    assert (found.lease_until, found.worker) == (None, None)
    assert await marks(store, waited) == (NONE, 0)
    assert await marks(store, kept) == (NONE, 0)
    assert await end(store, other)
    assert {lease.id: lease.attempt for lease in await take(store, 9)} == {ran: 1, waited: 1}


async def test_a_loss_without_suspicion_is_told_all_the_same(store: Store) -> None:
    id = await add(store)
    await take_id(store, id)

    await store.rescue(worker="w1", losses=[loss(id, NONE)])

    assert await outcomes(store, id) == ["rescued"]
    assert (await look(store, id)).failure == KILLED
    assert await marks(store, id) == (NONE, 0)


@pytest.mark.parametrize("told", list(Suspicion))
@pytest.mark.parametrize("before", list(Suspicion))
async def test_a_loss_never_lowers_the_suspicion(
    store: Store, before: Suspicion, told: Suspicion
) -> None:
    id = await marked(store, before, 1)
    await take_id(store, id)

    await store.rescue(worker="w1", losses=[loss(id, told)])

    assert await marks(store, id) == (suspected(before, told), 1)


async def test_each_loss_raises_the_suspicion_by_one(store: Store) -> None:
    id = await add(store)
    seen: list[int] = []
    for _ in range(4):
        await take_id(store, id, worker="gone")
        await store.rescue(worker="gone", losses=[loss(id, LOST)])
        seen.append((await look(store, id)).suspicion)

    assert seen == [LOST, WATCHED, ALONE, ALONE]


async def test_an_excused_crash_does_not_count(store: Store) -> None:
    id = await add(store)
    for crashes in (0, 1):
        lease = await take_id(store, id)
        assert marks_of(lease)[1] == crashes
        assert await store.isolate([lease]) == [True]
        await store.rescue(worker="w1", losses=[loss(id)])
    assert await marks(store, id) == (ALONE, 2)

    for left in (1, 0, 0):
        await take_id(store, id)
        await store.rescue(worker="w1", losses=[loss(id, is_excused=True)])

        assert await marks(store, id) == (ALONE, left)


async def test_what_is_given_back_unbegun_keeps_what_is_known_of_it(
    store: Store, clock: ManualClock
) -> None:
    id = await add(store, attempts=5)
    assert await end(store, await take_id(store, id), State.SCHEDULED, failure=BOOM)
    assert await store.isolate([await take_id(store, id)]) == [True]
    clock.advance("61s")
    await store.rescue()
    before = await look(store, id)
    assert (await take_id(store, id)).attempt == 2

    assert await store.rescue(worker="w1") == [Rescued(id, WORK, "w1")]

    after = await look(store, id)
    assert after == before
    assert (after.suspicion, after.crashes, after.attempt) == (LOST, 1, 1)


@pytest.mark.parametrize("has_begun", [True, False])
async def test_a_whole_batch_comes_back_within_limits(store: Store, has_begun: bool) -> None:
    """A limit may part the jobs of a worker; the losses are told anew with each call."""
    ids = await put(store, *[job(key=f"key-{n}", lane=f"lane-{n % 3}") for n in range(40)])
    await take(store, 40)
    losses = [loss(id, is_excused=True) for id in ids[:20]] if has_begun else []

    rescued = [
        one.id for _ in range(5) for one in await store.rescue(10, worker="w1", losses=losses)
    ]

    assert sorted(rescued) == sorted(ids)
    lost = {one.id for one in losses}
    for found in await store.find(ids):
        assert found is not None
        assert [run.outcome for run in found.history] == ["rescued"] * (found.id in lost)
        assert found.suspicion == (WATCHED if found.id in lost else NONE)
        assert found.attempt == 0


async def test_a_thousand_come_back_at_once(store: Store) -> None:
    ids = await put(store, *[job() for _ in range(BATCH)])
    assert len(await take(store, BATCH)) == BATCH

    rescued = await store.rescue(worker="w1", losses=[loss(id) for id in ids[::2]])

    assert sorted(one.id for one in rescued) == sorted(ids)
    leases = await take(store, BATCH)
    assert {lease.id: lease.suspicion for lease in leases} == {
        id: NONE if n % 2 else WATCHED for n, id in enumerate(ids)
    }
    assert {lease.attempt for lease in leases} == {1}


async def test_jobs_of_a_paused_queue_come_back_too(store: Store) -> None:
    ids = await put(store, job(), job())
    await take(store, 2)
    await pause(store, WORK)

    await store.rescue(worker="w1", losses=[loss(ids[0])])

    assert await states(store, *ids) == [State.READY, State.READY]
    assert await take(store) == []


@pytest.mark.parametrize("lane", [None, "a"])
async def test_what_comes_back_frees_its_slots(store: Store, lane: str | None) -> None:
    ids = await put(store, *[job(lane=lane) for _ in range(4)])
    want = Want(queue=WORK, limit=2, lane_limit=2)
    lost, given_back = await take(store, 9, want)
    assert await take(store, 9, want) == []

    await store.rescue(worker="w1", losses=[loss(lost.id)])

    assert len(await take(store, 9, want)) == 2
    assert {lost.id, given_back.id} <= set(ids)


async def test_a_loss_may_say_anything(store: Store) -> None:
    id = await add(store)
    await take_id(store, id)
    failure = Failure(type="T", message="ñ" * 1_500, trace="💥" * 1_000, fingerprint="'\"\\")

    await store.rescue(worker="w1", losses=[Loss(id=id, failure=failure)])

    found = await look(store, id)
    assert found.failure == failure
    assert found.history[-1].failure == failure


# isolate


async def test_a_crash_is_counted_before_the_run(store: Store) -> None:
    id = await marked(store, ALONE, 1)
    lease = await take_id(store, id)
    until = (await look(store, id)).lease_until

    assert await store.isolate([lease]) == [True]

    assert await marks(store, id) == (ALONE, 2)
    found = await look(store, id)
    assert (found.state, found.lease_until, found.attempt) == (State.RUNNING, until, 1)
    assert found.failure is None
    assert await end(store, lease)


async def test_a_crash_is_not_counted_once_others_run_beside_it(store: Store) -> None:
    id = await marked(store, WATCHED, 1)
    lease = await take_id(store, id)
    for _ in range(2):  # asked again, as where the answer was lost
        assert await store.isolate([lease]) == [True]
        assert await marks(store, id) == (WATCHED, 2)

    for _ in range(2):
        assert await store.isolate([lease], is_alone=False) == [True]
        assert await marks(store, id) == (WATCHED, 1)
    assert await end(store, lease)
    assert await store.isolate([lease], is_alone=False) == [False]


async def test_no_crash_is_counted_for_a_lease_that_is_lost(
    store: Store, clock: ManualClock
) -> None:
    lapsed, cancelled, done = await put(store, job(), job(), job())
    leases = await take(store, 3)
    await store.cancel([cancelled], ANN)
    assert await end(store, leases[2])
    clock.advance("61s")
    await store.rescue()
    before = await store.find([lapsed, cancelled, done])

    assert await store.isolate(leases) == [False] * 3

    assert await store.find([lapsed, cancelled, done]) == before
    again = await take_id(store, lapsed)
    assert await store.isolate([*leases, again]) == [False, False, False, True]
    assert await marks(store, lapsed) == (LOST, 1)


async def test_a_lapsed_lease_that_nobody_took_can_be_isolated(
    store: Store, clock: ManualClock
) -> None:
    id = await add(store)
    lease = await take_id(store, id)
    clock.advance("2m")

    assert await store.isolate([lease]) == [True]

    assert [one.id for one in await store.rescue()] == [id]
    assert await marks(store, id) == (LOST, 1)


async def test_a_forged_token_isolates_nothing(store: Store) -> None:
    id, other = await put(store, job(), job(OTHER))
    lease = await take_id(store, id)
    another = await take_id(store, other, OTHER)
    forged = msgspec.structs.replace(lease, token=another.token)

    assert await store.isolate([forged]) == [False]

    assert await marks(store, id) == (NONE, 0)
    assert await marks(store, other) == (NONE, 0)
    assert await store.isolate([]) == []


async def test_an_isolation_races_a_rescue_and_is_told_the_truth(
    store: Store, handles: Handles
) -> None:
    (keeper,) = await handles(1)
    await put(store, *[job() for _ in range(30)])
    leases = await take(store, 30)

    isolated, *_ = await asyncio.gather(
        asyncio.gather(*(store.isolate([lease]) for lease in leases)),
        *(keeper.rescue(5, worker="w1") for _ in range(8)),
    )

    for lease, [mine] in zip(leases, isolated, strict=True):
        assert await marks(store, lease.id) == (NONE, 1 if mine else 0)


# what a run leaves


@pytest.mark.parametrize("aside", [State.SCHEDULED, State.PARKED, State.HELD])
@pytest.mark.parametrize("spend", [True, False])
async def test_an_ending_writes_both_anew(store: Store, aside: State, spend: bool) -> None:
    id = await marked(store, WATCHED, 3, attempts=9)
    lease = await take_id(store, id)
    assert await store.isolate([lease]) == [True]

    how: dict[str, Any] = {"suspicion": LOST, "crashes": 2, "spend": spend, "failure": BOOM}
    assert await end(store, lease, aside, park="b", delay=MINUTE, **how)

    assert await marks(store, id) == (LOST, 2)


@pytest.mark.parametrize("aside", [State.SCHEDULED, State.PARKED, State.HELD])
async def test_an_ending_that_says_nothing_clears_both(store: Store, aside: State) -> None:
    id = await marked(store, WATCHED, 3)

    assert await end(store, await take_id(store, id), aside, park="b")

    assert await marks(store, id) == (NONE, 0)


async def test_a_turn_that_is_over_clears_both(store: Store) -> None:
    """A poller lives for years, and every deploy kills it once."""
    id = await marked(store, WATCHED, 2)

    how: dict[str, Any] = {"spend": False, "planned": True, "result": b"{}"}
    assert await end(store, await take_id(store, id), State.SCHEDULED, **how)

    assert await marks(store, id) == (NONE, 0)
    assert marks_of(await take_id(store, id)) == (NONE, 0)


@pytest.mark.parametrize("ending", [State.DONE, State.DEAD, State.CANCELLED])
@pytest.mark.parametrize("result", [None, b"1"])
async def test_what_has_ended_is_not_suspected(
    store: Store, ending: State, result: bytes | None
) -> None:
    id = await marked(store, WATCHED, 2)
    lease = await take_id(store, id)
    assert await store.isolate([lease]) == [True]

    assert await end(store, lease, ending, result=result)

    assert await marks(store, id) == (NONE, 0)


async def test_what_a_person_ended_is_not_suspected(store: Store) -> None:
    cancelled = await marked(store, queue=OTHER)
    held = await marked(store)
    lease = await take_id(store, held)
    assert await end(store, lease, State.HELD, suspicion=WATCHED, crashes=2)
    assert await store.cancel([cancelled], ANN) == [True]
    assert await store.discard([held], ANN) == [True]

    assert await marks(store, cancelled) == (NONE, 0)
    assert await marks(store, held) == (NONE, 0)


@pytest.mark.parametrize(
    "aside", [State.SCHEDULED, State.PARKED, State.HELD, State.DEAD, State.CANCELLED]
)
async def test_a_person_who_retries_acquits(store: Store, aside: State) -> None:
    id = await marked(store)
    lease = await take_id(store, id)
    assert await store.isolate([lease]) == [True]
    how = {"suspicion": WATCHED, "crashes": 2}
    assert await end(store, lease, aside, park="b", delay=HOUR, **how)

    assert await store.retry([id], ANN) == [True]

    assert await marks(store, id) == (NONE, 0)
    assert marks_of(await take_id(store, id)) == (NONE, 0)


async def test_a_cancelled_run_that_is_retried_is_not_suspected(store: Store) -> None:
    id = await marked(store)
    await take_id(store, id)
    assert await store.cancel([id], ANN) == [True]
    assert await store.retry([id], ANN) == [True]

    assert await marks(store, id) == (NONE, 0)


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_a_job_reopened_by_its_key_is_not_suspected(store: Store, is_cancelled: bool) -> None:
    fields: dict[str, Any] = {"key": "k", "unique": "forever"}
    id = await marked(store, **fields)
    lease = await take_id(store, id)
    assert await store.isolate([lease]) == [True]
    if is_cancelled:
        assert await store.cancel([id], ANN) == [True]
    else:
        assert await end(store, lease, State.DEAD)

    receipt = await insert(store, **fields)

    assert (receipt.id, receipt.verdict) == (id, Verdict.REOPENED)
    assert await marks(store, id) == (NONE, 0)
    assert marks_of(await take_id(store, id)) == (NONE, 0)


async def test_waiting_changes_neither(store: Store, clock: ManualClock) -> None:
    id = await marked(store, WATCHED, 2, keep=DAY)
    lease = await take_id(store, id)
    how = {"suspicion": WATCHED, "crashes": 2}
    assert await end(store, lease, State.PARKED, park="b", spend=False, **how)
    assert await store.edit([Edit(id=id, priority=0, payload=b'"new"')], ANN) == [True]
    assert await store.unpark("b") == 1
    clock.advance("1h")
    await store.prune(dead_keep=HOUR)
    await store.insert([job(id=id)])

    assert await marks(store, id) == (WATCHED, 2)
    lease = await take_id(store, id)
    assert marks_of(lease) == (WATCHED, 2)
    assert await store.extend([lease], HOUR) == [True]
    assert await marks(store, id) == (WATCHED, 2)


async def test_endings_of_a_batch_keep_apart(store: Store) -> None:
    ids = await put(store, *[job(attempts=9) for _ in range(60)])
    leases = {lease.id: lease for lease in await take(store, 60)}
    kinds = [State.SCHEDULED, State.PARKED, State.HELD, State.DONE, State.DEAD]
    endings = [
        Ending(
            lease=leases[id],
            state=kinds[n % 5],
            park="b" if n % 5 == 1 else None,
            suspicion=n % 4,
            crashes=n,
            spend=n % 2 == 0,
        )
        for n, id in enumerate(ids)
    ]

    assert all(await store.settle(endings))

    for n, found in enumerate(await store.find(ids)):
        assert found is not None
        expected = (n % 4, n) if n % 5 < 3 else (0, 0)
        assert (found.suspicion, found.crashes) == expected


async def test_an_ending_within_a_transaction(store: Store, session: Session | None) -> None:
    if session is None:
        return
    id = await marked(store, WATCHED, 2)
    for turn, finish in enumerate([session.rollback, session.commit]):
        lease = await take_id(store, id)
        assert marks_of(lease) == (WATCHED, 2)
        await session.begin()
        how = Ending(lease=lease, state=State.SCHEDULED, suspicion=LOST, crashes=1)
        assert await store.settle_within(session.connection, [how]) == [True]
        await finish()
        if turn == 0:
            assert await marks(store, id) == (WATCHED, 2)
            assert await release(store, lease)
    assert await marks(store, id) == (LOST, 1)


# every way to claim


@pytest.mark.parametrize(
    ("want", "fields"),
    [
        pytest.param(Want(queue=WORK), {}, id="plain"),
        pytest.param(Want(queue=WORK), {"keep": 0}, id="not kept"),
        pytest.param(Want(queue=WORK), {"key": "k"}, id="key"),
        pytest.param(Want(queue=WORK), {"key": "k", "unique": "forever"}, id="forever"),
        pytest.param(Want(queue=WORK), {"key": "k", "unique": "latest"}, id="latest"),
        pytest.param(Want(queue=WORK), {"key": "k", "unique": "latest", "lane": "a"}, id="both"),
        pytest.param(Want(queue=WORK), {"lane": "a"}, id="lane"),
        pytest.param(Want(queue=WORK, lane_limit=1), {"lane": "a"}, id="lane limit"),
        pytest.param(ORDERED, {"lane": "a"}, id="ordered"),
        pytest.param(ORDERED, {}, id="ordered without a lane"),
        pytest.param(Want(queue=WORK, limit=1), {}, id="limit"),
        pytest.param(Want(queue=WORK, rate=(1_000, 1_000)), {}, id="rate"),
        pytest.param(Want(queue=WORK, lane_rate=(1_000, 1_000)), {"lane": "a"}, id="lane rate"),
        pytest.param(Want(queue=WORK), {"priority": 0}, id="urgent"),
        pytest.param(Want(queue=WORK), {"meta": b'{"timeout":1000}'}, id="meta"),
        pytest.param(Want(queue=WORK), {"payload": b'"\\u0000 \xc3\xb1"'}, id="strange"),
        pytest.param(
            Want(queue=WORK), {"thread": "t", "cause": "c", "flow": "f", "node": "n"}, id="flow"
        ),
    ],
)
@pytest.mark.parametrize("together", [True, False])
async def test_every_claim_tells_both(
    store: Store, want: Want, fields: dict[str, Any], together: bool
) -> None:
    """The claim that follows a rescue, and the one that follows an ending."""
    wants = [want, Want(queue=OTHER)] if together else [want]
    id = await add(store, **fields)
    lease = await take_one(store, want)
    assert await store.isolate([lease]) == [True]
    await store.rescue(worker="w1", losses=[loss(id)])

    (lease,) = await take(store, 1, *wants)

    assert (lease.id, lease.attempt, marks_of(lease)) == (id, 1, (WATCHED, 1))
    how = {"suspicion": WATCHED, "crashes": 7}
    assert await end(store, lease, State.SCHEDULED, failure=BOOM, **how)
    (lease,) = await take(store, 1, *wants)
    assert (lease.id, lease.attempt, marks_of(lease)) == (id, 2, (WATCHED, 7))
    assert await end(store, lease)


async def test_a_claim_tells_suspects_from_others(store: Store) -> None:
    ids = await put(store, *[job() for _ in range(100)])
    await take(store, 100)
    await store.rescue(worker="w1", losses=[loss(id, Suspicion(n % 4)) for n, id in enumerate(ids)])
    ids += await put(store, *[job() for _ in range(20)])

    leases = await take(store, 120)

    assert {lease.id: lease.suspicion for lease in leases} == {
        id: n % 4 if n < 100 else 0 for n, id in enumerate(ids)
    }
    assert all(await store.settle([Ending(lease=lease, state=State.DONE) for lease in leases]))


# a run that never began


async def test_a_released_job_leaves_no_trace(store: Store) -> None:
    id = await add(store)
    before = await look(store, id)

    assert await release(store, await take_id(store, id))

    assert await look(store, id) == before
    assert (await take_id(store, id)).attempt == 1


async def test_a_released_job_is_as_it_was(store: Store, clock: ManualClock) -> None:
    """Whatever it has been through before."""
    id = await add(store, attempts=9)
    assert await end(store, await take_id(store, id), State.SCHEDULED, failure=BOOM)
    how: dict[str, Any] = {"spend": True, "planned": True, "failure": BOOM}
    assert await end(store, await take_id(store, id), State.SCHEDULED, **how)
    assert await store.isolate([await take_id(store, id)]) == [True]
    clock.advance("61s")
    await store.rescue()
    before = await look(store, id)
    assert (before.turn, before.attempt, before.suspicion, before.crashes) == (1, 2, 1, 1)

    assert await release(store, await take_id(store, id))

    assert await look(store, id) == before
    lease = await take_id(store, id)
    assert (lease.turn, lease.attempt, marks_of(lease)) == (1, 3, (1, 1))


async def test_a_release_writes_what_it_says(store: Store) -> None:
    """A worker that will not run a suspect alone gives back the crash that it has counted."""
    id = await marked(store, WATCHED, 2)
    lease = await take_id(store, id)
    assert await store.isolate([lease]) == [True]

    assert await release(store, lease)

    assert await marks(store, id) == (WATCHED, 2)
    assert await outcomes(store, id) == ["snooze"]


async def test_a_lost_lease_releases_nothing(store: Store, clock: ManualClock) -> None:
    id = await add(store)
    lease = await take_id(store, id)
    clock.advance("61s")
    await store.rescue()
    before = await look(store, id)

    assert await release(store, lease) is False

    assert await look(store, id) == before
    again = await take_id(store, id)
    assert await release(store, lease) is False
    assert await end(store, again)


async def test_releases_and_other_endings_mix(store: Store) -> None:
    ids = await put(store, *[job() for _ in range(30)])
    leases = await take(store, 30)
    released = leases[::3]
    endings = [
        Ending(lease=lease, state=State.SCHEDULED, spend=False, released=True)
        if lease in released
        else Ending(lease=lease, state=State.DONE if n % 3 == 1 else State.DEAD, failure=None)
        for n, lease in enumerate(leases)
    ]

    assert await store.settle(endings) == [True] * 30

    for n, (id, lease) in enumerate(zip(ids, leases, strict=True)):
        expected = [[], ["done"], ["dead"]][n % 3]
        assert await outcomes(store, lease.id) == expected, id
    assert {lease.id for lease in await take(store, 30)} == {lease.id for lease in released}


@pytest.mark.parametrize("how", ["released", "given back"])
@pytest.mark.parametrize("want", [ORDERED, Want(queue=WORK), Want(queue=WORK, lane_limit=1)])
async def test_what_never_began_keeps_its_place_in_its_lane(
    store: Store, clock: ManualClock, want: Want, how: str
) -> None:
    ids: list[str] = []
    for _ in range(3):
        ids.append(await add(store, lane="a"))
        clock.advance("1s")
    first = await take_one(store, want)
    assert first.id == ids[0]

    if how == "released":
        assert await release(store, first)
    else:
        await store.rescue(worker="w1")

    for id in ids:
        lease = await take_one(store, want)
        assert lease.id == id
        assert await end(store, lease)


async def test_what_was_lost_is_still_the_head_of_its_lane(store: Store) -> None:
    ids = await put(store, *[job(lane="a") for _ in range(3)])
    await take_one(store, ORDERED)
    await store.rescue(worker="w1", losses=[loss(ids[0])])

    for id in ids:
        lease = await take_one(store, ORDERED)
        assert lease.id == id
        assert await end(store, lease)


# unique="latest"


async def add_latest(store: Store) -> str:
    return await add(store, key="k", unique="latest")


@pytest.mark.parametrize("is_met", [True, False])
@pytest.mark.parametrize("how", ["released", "given back"])
async def test_a_newer_job_replaces_what_never_began(store: Store, how: str, is_met: bool) -> None:
    """Whether or not a claim has met the newer one meanwhile."""
    old = await add_latest(store)
    lease = await take_id(store, old)
    newest = await add_latest(store)
    if is_met:
        assert await take(store, 9) == []

    if how == "released":
        assert await release(store, lease)
    else:
        await store.rescue(worker="w1")

    assert (await take_id(store, newest)).attempt == 1
    found = await look(store, old)
    assert (found.state, found.note) == (State.CANCELLED, f"replaced by {newest}")
    assert found.history == ()


@pytest.mark.parametrize("how", ["released", "given back"])
async def test_what_never_began_may_still_be_replaced(store: Store, how: str) -> None:
    id = await add_latest(store)
    lease = await take_id(store, id)

    if how == "released":
        assert await release(store, lease)
    else:
        await store.rescue(worker="w1")

    newest = await add_latest(store)
    await take_id(store, newest)
    assert await state(store, id) is State.CANCELLED


@pytest.mark.parametrize("how", ["released", "given back"])
@pytest.mark.parametrize("earlier", ["retry", "lapse", "loss"])
async def test_what_has_begun_goes_before_a_newer_job(
    store: Store, clock: ManualClock, earlier: str, how: str
) -> None:
    """Its effects may have happened: a later release does not undo them."""
    old = await add_latest(store)
    lease = await take_id(store, old)
    if earlier == "retry":
        assert await end(store, lease, State.SCHEDULED, failure=BOOM)
    elif earlier == "lapse":
        clock.advance("61s")
        await store.rescue()
    else:
        await store.rescue(worker="w1", losses=[loss(old)])
    lease = await take_id(store, old)
    newest = await add_latest(store)
    if how == "released":
        assert await release(store, lease)
    else:
        await store.rescue(worker="w1")

    lease = await take_id(store, old)
    assert await take(store, 9) == []
    assert await end(store, lease)

    clock.advance("1s")
    await take_id(store, newest)
