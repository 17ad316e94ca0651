"""People: what they see, what they may do, and that it is written down."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from relevo.ids import new_id
from relevo.job import LIVE, Failure, State
from relevo.store import Audit, By, Edit, Filter, QueueMode, Store, WorkerInfo, WorkerState
from relevo.testing import ManualClock
from tests.conformance.conftest import Handles
from tests.conformance.steps import (
    ANN,
    BOOM,
    DAY,
    HOUR,
    MINUTE,
    OTHER,
    SECOND,
    WORK,
    about,
    add,
    audit_of,
    count,
    end,
    job,
    legible,
    look,
    make,
    outcomes,
    put,
    state,
    take,
    take_id,
    take_one,
    tally_of,
)

MAY_RETRY = {State.DEAD, State.HELD, State.PARKED, State.CANCELLED, State.SCHEDULED}
MAY_EDIT = set(State) - {State.RUNNING, State.DONE}
MAY_DISCARD = {State.DEAD, State.HELD}


async def listed(store: Store, **where: Any) -> set[str]:
    return {found.id for found in (await store.page(Filter(**where))).jobs}


# find


async def test_jobs_are_found_in_the_order_asked(store: Store) -> None:
    ids = await put(store, job(), job(OTHER), job())
    unknown = new_id()

    found = await store.find([ids[2], unknown, ids[0], ids[1], ids[0]])

    assert [one and one.id for one in found] == [ids[2], None, ids[0], ids[1], ids[0]]
    assert await store.find([]) == []


async def test_a_job_of_every_state_is_seen_alike(store: Store) -> None:
    for wanted in State:
        with about(wanted):
            queue = f"app:module:{wanted}"
            id = await make(store, wanted, queue, key="k", lane="l", thread="t", flow="f", node="n")

            found = await look(store, id)
            (shown,) = (await store.page(Filter(queue=queue, key="k"))).jobs

            assert found.state is shown.state is wanted
            assert (found.key, found.lane, found.thread) == ("k", "l", "t")
            assert (found.flow, found.node) == ("f", "n")
            for field in ("id", "queue", "kind", "payload", "attempt", "attempts", "run_at", "key"):
                assert getattr(shown, field) == getattr(found, field), field
            assert shown.history == ()
            for other in State:
                where = Filter(queue=queue, states=frozenset({other}), key="k")
                assert await store.count(where) == (other is wanted)


# page and count


async def test_a_page_reads_newest_first(store: Store) -> None:
    ids = [id for _ in range(5) for id in await put(store, job(), job(OTHER))]

    page = await store.page(Filter())

    assert [found.id for found in page.jobs] == ids[::-1]
    assert page.cursor is None


async def test_calls_of_one_millisecond_keep_their_order(store: Store) -> None:
    """Also on a cluster, where the queues of a call are on several servers."""
    ids = [id for _ in range(90) for id in await put(store, job(), job(OTHER))]

    page = await store.page(Filter(), limit=180)

    assert [found.id for found in page.jobs] == ids[::-1]


async def test_all_is_read_page_by_page(store: Store) -> None:
    ids = await put(store, *[job() if n % 3 else job(OTHER) for n in range(25)])
    for lease in await take(store, 5):
        await end(store, lease)
    seen: list[str] = []
    cursor = None
    for _ in range(4):
        page = await store.page(Filter(), cursor=cursor, limit=7)
        seen += [found.id for found in page.jobs]
        cursor = page.cursor
        if cursor is None:
            break

    assert cursor is None
    assert seen == ids[::-1]


async def test_newcomers_do_not_disturb_a_reader(store: Store) -> None:
    ids = await put(store, *[job() for _ in range(10)])
    first = await store.page(Filter(queue=WORK), limit=5)
    await put(store, *[job() for _ in range(10)])

    second = await store.page(Filter(queue=WORK), cursor=first.cursor, limit=5)

    assert [found.id for found in [*first.jobs, *second.jobs]] == ids[::-1]


async def test_a_filter_means_what_it_says(store: Store) -> None:
    a = await add(store, kind="A", key="k1", lane="l1", thread="t1", flow="f1")
    b = await add(store, OTHER, kind="B", key="k2", lane="l2", thread="t2", flow="f2")
    c = await make(store, State.PARKED, "app:module:third", kind="A", thread="t1")

    assert await listed(store) == {a, b, c}
    assert await listed(store, queue=WORK) == {a}
    assert await listed(store, kind="A") == {a, c}
    assert await listed(store, key="k2") == {b}
    assert await listed(store, lane="l1") == {a}
    assert await listed(store, thread="t1") == {a, c}
    assert await listed(store, flow="f2") == {b}
    assert await listed(store, park="breaker") == {c}
    assert await listed(store, states=frozenset({State.READY})) == {a, b}
    assert await listed(store, states=frozenset({State.PARKED, State.DEAD})) == {c}
    assert await listed(store, kind="A", thread="t1", states=frozenset({State.READY})) == {a}
    assert await listed(store, queue="app:module:none") == set()
    assert await listed(store, queue=OTHER, kind="A") == set()


async def test_ready_and_scheduled_are_told_apart_by_the_clock(
    store: Store, clock: ManualClock
) -> None:
    soon, later = await put(store, job(delay=MINUTE), job(delay=HOUR))
    ready, scheduled = frozenset({State.READY}), frozenset({State.SCHEDULED})
    assert await listed(store, states=scheduled) == {soon, later}

    clock.advance("2m")

    assert await listed(store, states=ready) == {soon}
    assert await listed(store, states=scheduled) == {later}
    assert await listed(store, states=ready | scheduled) == {soon, later}
    assert await count(store, states=ready) == await count(store, states=scheduled) == 1


async def test_text_is_found_in_payload_key_and_error(store: Store) -> None:
    in_payload = await add(store, payload='{"code":"RES-7K2M","ñ":"caña"}'.encode())
    in_key = await add(store, OTHER, key="book:RES-7K2M")
    failing = await add(store, "app:module:third")
    lease = await take_id(store, failing, "app:module:third")
    failure = Failure(type="Refused", message="RES-7K2M is taken", fingerprint="x")
    await end(store, lease, State.DEAD, failure=failure)
    await add(store, "app:module:fourth", payload=b'{"code":"RES-9"}')

    assert await listed(store, text="RES-7K2M") == {in_key, failing} | legible(store, in_payload)
    assert await listed(store, text="RES-7K2M is") == {failing}
    assert await listed(store, text="caña") == legible(store, in_payload)
    assert await listed(store, text="RES-7K2M", queue=OTHER) == {in_key}
    assert await listed(store, text="nothing of the kind") == set()
    assert await count(store, text="RES-7K2M") == 2 + len(legible(store, in_payload))


async def test_dead_letters_are_found_by_fingerprint(store: Store) -> None:
    first, second = await put(store, job(), job())
    for lease, mark in zip(await take(store, 2), ("one", "two"), strict=True):
        failure = Failure(type="T", message="m", fingerprint=mark)
        await end(store, lease, State.DEAD, failure=failure)

    assert await listed(store, fingerprint="one") == {first}
    assert await listed(store, fingerprint="two") == {second}
    assert await listed(store, fingerprint="three") == set()


async def test_counting_stops_at_most(store: Store) -> None:
    await put(store, *[job() for _ in range(12)])

    assert await store.count(Filter()) == 12
    assert await store.count(Filter(), most=5) == 5
    assert await store.count(Filter(queue=OTHER)) == 0


# tally


async def test_a_tally_counts_every_state(store: Store, clock: ManualClock) -> None:
    for n, wanted in enumerate(State):
        for _ in range(n % 3 + 1):
            await make(store, wanted, f"app:module:{wanted}")

    clock.advance("61s")
    tallies = {tally.queue: tally for tally in await store.tally()}

    for n, wanted in enumerate(State):
        counts = tallies[f"app:module:{wanted}"].counts
        assert {s: c for s, c in counts.items() if c} == {wanted: n % 3 + 1}


async def test_a_queue_that_had_jobs_is_still_tallied(store: Store, clock: ManualClock) -> None:
    lease = await take_id(store, await add(store, keep=0))
    await end(store, lease)
    clock.advance("2m")  # a relayed store knows each job for a minute
    await store.prune(dead_keep=DAY)

    assert not any((await tally_of(store)).counts.values())


async def test_a_tally_counts_what_is_aside_whenever_it_is_due(store: Store) -> None:
    ids = await put(store, job(), job(), job())
    for lease in await take(store, 3):
        await end(store, lease, State.PARKED, park="p1")
    later = await store.now() + HOUR
    assert await store.edit([Edit(id=ids[0], run_at=later)], ANN) == [True]

    assert (await tally_of(store)).counts[State.PARKED] == 3


async def test_a_tally_shows_the_mode(store: Store) -> None:
    await add(store)
    assert (await tally_of(store)).mode is QueueMode.OPEN

    for mode in (QueueMode.PAUSED, QueueMode.DRAINING, QueueMode.OPEN):
        await store.set_mode([WORK], mode, ANN)
        assert (await tally_of(store)).mode is mode


async def test_a_tally_shows_how_late_the_first_is(store: Store, clock: ManualClock) -> None:
    await add(store, delay=MINUTE)
    await add(store, OTHER)
    lease = await take_id(store, await add(store, "app:module:busy"), "app:module:busy")
    assert (await tally_of(store)).late is None
    clock.advance("3m")

    late = (await tally_of(store)).late

    assert late is not None
    assert 2 * MINUTE <= late <= 2 * MINUTE + 30 * SECOND
    assert ((await tally_of(store, OTHER)).late or 0) >= 3 * MINUTE
    assert (await tally_of(store, "app:module:busy")).late is None
    assert await end(store, lease)


@pytest.mark.parametrize("state", [State.READY, State.PARKED, State.HELD])
@pytest.mark.parametrize("lane", [None, "l"])
async def test_a_tally_shows_when_the_oldest_was_ordered(
    store: Store, clock: ManualClock, state: State, lane: str | None
) -> None:
    """However often a job was tried, it is as old as its order; one that is to come has no age."""
    await add(store, lane=lane)
    clock.advance("1h")
    lease = await take_one(store)
    await add(store, delay=DAY, lane=lane)
    assert (await tally_of(store)).oldest is None

    if state is State.READY:
        assert await end(store, lease, State.SCHEDULED, delay=MINUTE)
        assert (await tally_of(store)).oldest is None
        clock.advance("61s")
    else:
        park = "bank" if state is State.PARKED else None
        assert await end(store, lease, state, park=park, spend=False)
    await add(store, lane=lane)

    tally = await tally_of(store)
    assert tally.oldest is not None
    assert HOUR <= tally.oldest <= HOUR + 2 * MINUTE
    assert (tally.late or 0) < MINUTE
    assert (await tally_of(store)).counts[state] == (2 if state is State.READY else 1)


async def test_a_tally_follows_every_move(store: Store, clock: ManualClock) -> None:
    id = await add(store, attempts=1, delay=MINUTE)

    async def live() -> dict[State, int]:
        counts = (await tally_of(store)).counts
        return {s: n for s, n in counts.items() if n and s is not State.DONE}

    assert await live() == {State.SCHEDULED: 1}
    clock.advance("61s")
    assert await live() == {State.READY: 1}
    await take_id(store, id)
    assert await live() == {State.RUNNING: 1}
    clock.advance("61s")
    await store.rescue()
    assert await live() == {State.READY: 1}
    await end(store, await take_id(store, id), State.DEAD)
    assert await live() == {State.DEAD: 1}
    await store.retry([id], ANN)
    assert await live() == {State.READY: 1}
    await end(store, await take_id(store, id), State.PARKED, park="b")
    assert await live() == {State.PARKED: 1}
    await store.unpark("b", spread=HOUR)
    await store.retry([id], ANN)
    await end(store, await take_id(store, id), State.HELD)
    assert await live() == {State.HELD: 1}
    await store.discard([id], ANN)
    assert await live() == {State.CANCELLED: 1}


# groups


async def test_dead_letters_are_grouped_by_mistake(store: Store, clock: ManualClock) -> None:
    async def die(queue: str, mark: str, message: str) -> str:
        id = await add(store, queue)
        failure = Failure(type=mark.upper(), message=message, fingerprint=mark)
        await end(store, await take_id(store, id, queue), State.DEAD, failure=failure)
        clock.advance("1s")
        return id

    before = await store.now()
    many = [await die(WORK, "a", f"a {n}") for n in range(3)]
    few = [await die(OTHER, "b", f"b {n}") for n in range(2)]

    first, second = await store.groups()

    assert (first.fingerprint, first.queue, first.type, first.count) == ("a", WORK, "A", 3)
    assert first.message == "a 2"
    assert before <= first.first_at <= first.last_at - 2 * SECOND
    assert first.sample in many
    assert (second.fingerprint, second.queue, second.count) == ("b", OTHER, 2)
    assert second.sample in few
    assert [group.fingerprint for group in await store.groups(queue=OTHER)] == ["b"]
    assert [group.fingerprint for group in await store.groups(limit=1)] == ["a"]


async def test_a_group_shrinks_as_its_jobs_leave(store: Store) -> None:
    ids = [await make(store, State.DEAD) for _ in range(3)]

    await store.retry(ids[:1], ANN)
    assert [group.count for group in await store.groups()] == [2]
    await store.discard(ids[1:2], ANN)
    assert [group.count for group in await store.groups()] == [1]
    await store.retry(ids[2:], ANN)
    assert await store.groups() == []


async def test_the_same_mistake_in_two_queues_is_two_groups(store: Store) -> None:
    await make(store, State.DEAD, WORK)
    await make(store, State.DEAD, OTHER)

    assert {group.queue for group in await store.groups()} == {WORK, OTHER}


# workers


def worker(id: str, **fields: Any) -> WorkerInfo:
    return WorkerInfo(
        **{"id": id, "host": "host-1", "pid": 7, "queues": [WORK], "concurrency": 8, **fields}
    )


OK, BLOCKED, SILENT, GONE = WorkerState


async def seen(store: Store, id: str = "w1") -> WorkerInfo:
    (found,) = [each for each in await store.workers() if each.id == id]
    return found


async def test_a_beating_worker_is_seen(store: Store) -> None:
    before = await store.now()
    await store.beat(worker("w1", started_at=5, note="busy", version="0.1.0"), 15 * SECOND)

    found = await seen(store)

    assert (found.id, found.host, found.pid, found.queues) == ("w1", "host-1", 7, [WORK])
    assert (found.concurrency, found.started_at, found.note) == (8, 5, "busy")
    assert found.version == "0.1.0"
    assert (found.state, found.is_alive) == (OK, True)
    assert before <= found.beat_at <= await store.now()

    await store.beat(worker("w1", state=BLOCKED), 15 * SECOND)
    found = await seen(store)
    assert (found.state, found.is_alive) == (BLOCKED, True)


async def test_a_worker_that_stops_beating_falls_silent(store: Store, clock: ManualClock) -> None:
    await store.beat(worker("w1"), 15 * SECOND)
    clock.advance("10s")
    await store.beat(worker("w1"), 15 * SECOND)
    clock.advance("10s")
    assert (await seen(store)).state is OK

    clock.advance("6s")

    assert ((await seen(store)).state, (await seen(store)).is_alive) == (SILENT, False)
    await store.beat(worker("w1"), 15 * SECOND)
    assert (await seen(store)).state is OK


@pytest.mark.parametrize("is_gone", [False, True])
async def test_a_worker_whose_jobs_were_taken_back_is_silent_or_gone(
    store: Store, clock: ManualClock, is_gone: bool
) -> None:
    """F61"""
    for name in ("w1", "w2", "w3"):
        await store.beat(worker(name, state=BLOCKED if name == "w3" else OK), 90 * SECOND)
    beat_at = (await seen(store)).beat_at
    clock.advance("2s")

    await store.silence(["w1", "w3", "never-seen"], is_gone=is_gone)

    for name in ("w1", "w3"):
        found = await seen(store, name)
        assert (found.state, found.is_alive) == (GONE if is_gone else SILENT, False)
        assert found.beat_at < beat_at + SECOND
        assert (found.queues, found.concurrency) == ([WORK], 8)
    assert (await seen(store, "w2")).state is OK
    assert {each.id for each in await store.workers()} == {"w1", "w2", "w3"}
    clock.advance("23h")
    assert (await seen(store)).state is (GONE if is_gone else SILENT)
    await store.beat(worker("w1"), 90 * SECOND)
    assert (await seen(store)).state is OK


async def test_what_a_worker_runs_is_counted_in_the_store(store: Store) -> None:
    """F61"""
    await store.beat(worker("w1", running=7), 90 * SECOND)
    await store.beat(worker("w2"), 90 * SECOND)
    await put(store, *(job() for _ in range(5)), *(job(OTHER) for _ in range(4)))
    assert [each.running for each in await store.workers()] == [0, 0]

    first = await take(store, 3)
    first += await take(store, 2, OTHER)
    await take(store, 2, worker="w2")
    await take(store, 1, OTHER, worker="w2")

    assert [each.running for each in await store.workers()] == [5, 3]
    assert all([await end(store, lease) for lease in (first[0], first[2], first[4])])
    assert [each.running for each in await store.workers()] == [2, 3]
    await store.rescue(worker="w2")
    assert [each.running for each in await store.workers()] == [2, 0]


async def test_a_worker_whose_leases_have_all_lapsed_since_it_beat_is_silent(
    store: Store, clock: ManualClock
) -> None:
    """F61"""
    await store.beat(worker("w1"), HOUR)
    await put(store, job(), job())
    (lease,) = await take(store, 1, lease=10 * SECOND)
    (other,) = await take(store, 1, lease=20 * SECOND)
    clock.advance("11s")
    assert (await seen(store)).state is OK

    clock.advance("10s")

    assert ((await seen(store)).state, (await seen(store)).running) == (SILENT, 2)
    await store.beat(worker("w1"), HOUR)
    assert (await seen(store)).state is OK
    assert lease.id != other.id


async def test_the_long_silent_are_no_longer_shown(store: Store, clock: ManualClock) -> None:
    await store.beat(worker("old"), 15 * SECOND)
    clock.advance("23h")
    await store.beat(worker("new"), 15 * SECOND)
    assert {seen.id for seen in await store.workers()} == {"old", "new"}

    clock.advance("2h")

    assert {seen.id for seen in await store.workers()} == {"new"}


async def test_a_worker_that_leaves_is_gone(store: Store) -> None:
    await store.beat(worker("w1"), 15 * SECOND)
    await store.beat(worker("w2"), 15 * SECOND)

    await store.leave("w1")
    await store.leave("never-seen")

    assert [seen.id for seen in await store.workers()] == ["w2"]


# retry


async def test_only_jobs_at_rest_can_be_retried(store: Store) -> None:
    for was in State:
        with about(was):
            queue = f"app:module:{was}"
            id = await make(store, was, queue)
            before = await look(store, id)
            now = await store.now()

            assert await store.retry([id], ANN) == [was in MAY_RETRY]

            after = await look(store, id)
            if was not in MAY_RETRY:
                assert after == before
                assert await audit_of(store, id) == []
                continue
            assert after.state is State.READY
            assert after.attempt == 0
            assert after.history == before.history
            assert now <= after.run_at <= await store.now()
            assert (after.ended_at, after.park, after.lease_until) == (None, None, None)
            assert await audit_of(store, id) == ["retry"]
            assert (await take_id(store, id, queue)).attempt == 1


async def test_a_retry_answers_one_by_one(store: Store) -> None:
    dead, unknown = await make(store, State.DEAD), new_id()
    ready = await add(store, OTHER)

    assert await store.retry([unknown, dead, ready, dead], ANN) == [False, True, False, False]
    assert await audit_of(store, dead) == ["retry"]
    assert await audit_of(store, unknown) == []
    assert await store.retry([], ANN) == []


async def test_a_retry_spreads_evenly(store: Store) -> None:
    """F35"""
    ids = [await make(store, State.DEAD) for _ in range(10)]
    before = await store.now()

    assert await store.retry(ids, ANN, spread=100 * SECOND) == [True] * 10

    after = await store.now()
    at = [(await look(store, id)).run_at for id in ids]
    assert at == sorted(at)
    assert before <= at[0]
    assert at[-1] <= after + 100 * SECOND
    gaps = [later - earlier for earlier, later in pairwise(at)]
    assert all(8 * SECOND <= gap <= 12 * SECOND for gap in gaps), gaps


async def test_retry_pressed_twice_at_once_acts_once(store: Store, handles: Handles) -> None:
    """F38"""
    (other,) = await handles(1)
    ids = await put(store, *[job() for _ in range(50)])
    for lease in await take(store, 50):
        await end(store, lease, State.DEAD)

    first, second = await asyncio.gather(store.retry(ids, ANN), other.retry(ids, ANN))

    assert all(a != b for a, b in zip(first, second, strict=True))
    assert len(await take(store, 100)) == 50
    assert len(await audit_of(store, ids[0])) == 1


async def test_a_retried_job_keeps_its_story(store: Store) -> None:
    id = await make(store, State.DEAD)
    await store.retry([id], ANN)
    await end(store, await take_id(store, id))

    found = await look(store, id)

    assert [run.outcome for run in found.history] == ["dead", "done"]
    assert found.history[0].failure == BOOM
    assert found.attempt == 1


# edit


async def test_a_job_that_is_not_running_nor_done_can_be_edited(store: Store) -> None:
    for was in State:
        with about(was):
            id = await make(store, was, f"app:module:{was}")
            before = await look(store, id)
            edit = Edit(id=id, payload=b'{"n":2}', priority=0, attempts=9)

            assert await store.edit([edit], ANN) == [was in MAY_EDIT]

            after = await look(store, id)
            if was not in MAY_EDIT:
                assert after == before
                assert await audit_of(store, id) == []
                continue
            assert after.state is was
            assert (after.payload, after.priority, after.attempts) == (b'{"n":2}', 0, 9)
            (row,), _ = await store.audits(target=id)
            assert (row.who, row.verb, row.note) == ("ann", "edit", "because")
            assert row.before
            assert row.after
            assert row.before != row.after
            assert '"n"' not in row.before + row.after


async def test_an_edit_changes_only_what_it_names(store: Store) -> None:
    id = await add(store, payload=b"1", priority=2, attempts=4, key="k", lane="l")
    before = await look(store, id)

    assert await store.edit([Edit(id=id, attempts=5)], ANN) == [True]

    assert await look(store, id) == msgspec.structs.replace(before, attempts=5)


async def test_an_edited_job_runs_as_edited(store: Store) -> None:
    first, second = await put(store, job(), job())

    await store.edit([Edit(id=second, payload=b'"new"', priority=0, attempts=1)], ANN)

    lease = await take_one(store)
    assert (lease.id, bytes(lease.payload), lease.attempts) == (second, b'"new"', 1)
    assert (await take_one(store)).id == first


async def test_an_edit_moves_a_job_in_time(store: Store) -> None:
    id = await add(store)
    now = await store.now()
    assert await store.edit([Edit(id=id, run_at=now + HOUR)], ANN) == [True]
    assert (await look(store, id)).run_at == now + HOUR
    assert await state(store, id) is State.SCHEDULED
    assert await take(store) == []

    assert await store.edit([Edit(id=id, run_at=now - HOUR)], ANN) == [True]

    assert await state(store, id) is State.READY
    assert (await take_one(store)).id == id


async def test_an_edited_job_in_a_lane_runs_as_edited(store: Store) -> None:
    first, second = await put(store, job(lane="a"), job(lane="a"))

    await store.edit([Edit(id=second, priority=0, payload=b"2")], ANN)

    assert [lease.id for lease in await take(store, 2)] == [second, first]


async def test_edits_answer_one_by_one(store: Store) -> None:
    id, unknown = await add(store), new_id()
    done = await make(store, State.DONE, OTHER)

    answers = await store.edit(
        [Edit(id=unknown, priority=0), Edit(id=id, priority=0), Edit(id=done, priority=0)], ANN
    )

    assert answers == [False, True, False]
    assert await store.edit([], ANN) == []


async def test_a_dead_job_is_edited_and_retried(store: Store) -> None:
    id = await make(store, State.DEAD)

    assert await store.edit([Edit(id=id, payload=b'{"fixed":true}')], ANN) == [True]
    assert await store.retry([id], ANN) == [True]

    assert bytes((await take_id(store, id)).payload) == b'{"fixed":true}'
    assert await audit_of(store, id) == ["retry", "edit"]


# cancel and discard


async def test_only_a_job_that_has_not_ended_can_be_cancelled(store: Store) -> None:
    for was in State:
        with about(was):
            queue = f"app:module:{was}"
            id = await make(store, was, queue)
            before = await look(store, id)

            assert await store.cancel([id], ANN) == [was in LIVE]

            after = await look(store, id)
            if was not in LIVE:
                assert after == before
                assert await audit_of(store, id) == []
                continue
            assert after.state is State.CANCELLED
            assert after.ended_at is not None
            assert after.lease_until is None
            assert await audit_of(store, id) == ["cancel"]
            assert await take(store, 1, queue) == []


async def test_a_cancelled_run_loses_its_lease(store: Store, clock: ManualClock) -> None:
    lease = await take_id(store, await add(store), worker="w9")

    assert await store.cancel([lease.id], ANN) == [True]

    assert await store.extend([lease], HOUR) == [False]
    assert await end(store, lease) is False
    clock.advance("2m")
    assert await store.rescue() == []
    assert await state(store, lease.id) is State.CANCELLED
    assert await outcomes(store, lease.id) == ["cancelled"]


async def test_cancels_answer_one_by_one(store: Store) -> None:
    first, second = await put(store, job(), job())
    unknown = new_id()

    assert await store.cancel([first, unknown, first, second], ANN) == [True, False, False, True]
    assert await store.cancel([], ANN) == []
    assert len(await audit_of(store, first)) == 1


async def test_only_dead_or_held_jobs_can_be_discarded(store: Store) -> None:
    for was in State:
        with about(was):
            id = await make(store, was, f"app:module:{was}")
            before = await look(store, id)

            assert await store.discard([id], By("bob", "not ours")) == [was in MAY_DISCARD]

            after = await look(store, id)
            if was not in MAY_DISCARD:
                assert after == before
                assert await audit_of(store, id) == []
                continue
            assert (after.state, after.note) == (State.CANCELLED, "not ours")
            assert after.ended_at is not None
            (row,), _ = await store.audits(target=id)
            assert (row.who, row.verb, row.note) == ("bob", "discard", "not ours")
            assert await store.discard([id], ANN) == [False]


async def test_a_discarded_job_can_be_brought_back(store: Store) -> None:
    id = await make(store, State.HELD)
    await store.discard([id], ANN)

    assert await store.retry([id], ANN) == [True]

    assert await end(store, await take_id(store, id))


async def test_the_verbs_race_and_each_job_ends_in_one_place(
    store: Store, handles: Handles
) -> None:
    """F38"""
    (other,) = await handles(1)
    ids = await put(store, *[job() for _ in range(30)])
    for lease in await take(store, 30):
        await end(store, lease, State.HELD)

    retried, cancelled, discarded = await asyncio.gather(
        store.retry(ids, ANN), other.cancel(ids, ANN), store.discard(ids, ANN)
    )

    for id, r, c, d in zip(ids, retried, cancelled, discarded, strict=True):
        found = await state(store, id)
        assert found in {State.READY, State.CANCELLED}
        # Whoever came later may act again on what the first one made of the job.
        assert r or c != d
        assert len(await audit_of(store, id)) == r + c + d
    ready = [id for id in ids if await state(store, id) is State.READY]
    assert {lease.id for lease in await take(store, 100)} == set(ready)


# modes


async def test_a_mode_is_set_once(store: Store) -> None:
    assert await store.set_mode([WORK, OTHER], QueueMode.PAUSED, ANN) == [True, True]
    assert await store.set_mode([WORK], QueueMode.PAUSED, ANN) == [False]
    assert await store.set_mode([WORK, "app:module:new"], QueueMode.OPEN, ANN) == [True, False]
    assert await store.set_mode([], QueueMode.OPEN, ANN) == []

    assert len(await audit_of(store, WORK)) == 2
    assert len(await audit_of(store, OTHER)) == 1
    assert await audit_of(store, "app:module:new") == []


async def test_a_mode_holds_for_every_handle(store: Store, handles: Handles) -> None:
    (other,) = await handles(1)
    await add(store)
    assert await take(other, 0) == []
    await store.set_mode([WORK], QueueMode.PAUSED, ANN)

    assert await take(other) == []
    await other.set_mode([WORK], QueueMode.OPEN, ANN)
    assert len(await take(store)) == 1


async def test_people_act_on_a_paused_queue(store: Store) -> None:
    dead = await make(store, State.DEAD)
    await store.set_mode([WORK], QueueMode.PAUSED, ANN)

    assert await store.retry([dead], ANN) == [True]
    assert await take(store) == []
    assert await store.cancel([dead], ANN) == [True]


async def test_a_draining_queue_still_retries_its_own(store: Store) -> None:
    lease = await take_id(store, await add(store))
    await store.set_mode([WORK], QueueMode.DRAINING, ANN)

    assert await end(store, lease, State.SCHEDULED)

    assert (await take_one(store)).id == lease.id


# audit


async def test_what_people_did_is_read_newest_first(store: Store, clock: ManualClock) -> None:
    """C37"""
    before = await store.now()
    await store.audit([Audit(who="ann", verb="login", target="desk", note="from 10.0.0.1")])
    clock.advance("1s")
    await store.audit(
        [
            Audit(who="bob", verb="replay", target="delivery-1", before="aa", after="bb"),
            Audit(who="cyd", verb="replay", target="delivery-2"),
        ]
    )

    rows, cursor = await store.audits()

    assert [row.who for row in rows] == ["cyd", "bob", "ann"]
    assert (rows[1].before, rows[1].after) == ("aa", "bb")
    assert (rows[2].verb, rows[2].target, rows[2].note) == ("login", "desk", "from 10.0.0.1")
    assert before <= rows[2].at <= rows[1].at <= await store.now()
    assert cursor is None
    assert [row.who for row in (await store.audits(target="delivery-1"))[0]] == ["bob"]


async def test_what_people_did_is_read_page_by_page(store: Store) -> None:
    await store.audit([Audit(who=f"p{n}", verb="v", target="t") for n in range(25)])
    seen: list[str] = []
    cursor = None
    for _ in range(4):
        rows, cursor = await store.audits(cursor=cursor, limit=7)
        seen += [row.who for row in rows]
        if cursor is None:
            break

    assert cursor is None
    assert seen == [f"p{n}" for n in range(25)][::-1]
    await store.audit([])
    assert len((await store.audits())[0]) == 25


async def test_every_act_leaves_exactly_one_row(store: Store) -> None:
    """C37"""
    id = await add(store)
    await store.edit([Edit(id=id, priority=0)], ANN)
    await store.cancel([id], ANN)
    await store.retry([id], ANN)
    await end(store, await take_id(store, id), State.HELD)
    await store.discard([id], ANN)
    await store.set_mode([WORK], QueueMode.PAUSED, ANN)

    rows, _ = await store.audits()

    assert await audit_of(store, id) == ["discard", "retry", "cancel", "edit"]
    assert len(rows) == 5
    assert {row.who for row in rows} == {"ann"}
    assert all(row.at for row in rows)


async def test_machines_leave_no_audit(store: Store, clock: ManualClock) -> None:
    id = await add(store, attempts=5)
    await end(store, await take_id(store, id), State.PARKED, park="b")
    await store.unpark("b")
    await take_id(store, id)
    clock.advance("2m")
    await store.rescue()
    await end(store, await take_id(store, id))
    clock.advance("30d")
    await store.prune(dead_keep=DAY)

    assert (await store.audits())[0] == []
