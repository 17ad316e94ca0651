"""One decision about many: by a filter, so many, at a pace, written down once."""

from __future__ import annotations

import asyncio

import pytest

from relevo.desk import Desk, Pace, Person, Role, Sweep
from relevo.desk.sweeps import Sweeps
from relevo.errors import DefinitionError, NotAllowed
from relevo.job import Failure, State
from relevo.store import Audit, Filter, Store
from relevo.testing import ManualClock
from tests.conformance.fresh import STORES
from tests.conformance.steps import (
    OTHER,
    WORK,
    add,
    audit_of,
    end,
    make,
    put,
    state,
    states,
    take,
    take_id,
)
from tests.conformance.steps import job as new_job

ANN = Person("ann", Role.ADMIN)
VERA = Person("vera", Role.VIEWER)
LATE = Failure(type="Late", message="no answer in 5 s", trace="", fingerprint="late")
WRONG = Failure(type="Wrong", message="no such car", trace="at 5 s", fingerprint="wrong")
DEAD = frozenset({State.DEAD})


@pytest.fixture(params=STORES)
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def desk(store: Store) -> Desk:
    return Desk(store)


async def dead(store: Store, failure: Failure = LATE, queue: str = WORK, **fields: str) -> str:
    id = await add(store, queue, **fields)
    await end(store, await take_id(store, id, queue), State.DEAD, failure=failure)
    return id


async def meant(desk: Desk, where: Filter) -> set[str]:
    found = {job.id for job in (await desk.jobs(where)).jobs}
    assert await desk.count(where) == len(found)
    return found


async def test_a_filter_knows_the_error_and_the_time(
    desk: Desk, store: Store, clock: ManualClock
) -> None:
    early = await dead(store)
    waits = await add(store, OTHER)
    clock.advance("1h")
    noon = await store.now()
    late, wrong = await dead(store), await dead(store, WRONG)
    new = await add(store, OTHER)

    assert await meant(desk, Filter(error="Late: no answer")) == {early, late}
    assert await meant(desk, Filter(error="5 s")) == {early, late}, "the trace is no part of it"
    assert await meant(desk, Filter(error="such car", states=DEAD)) == {wrong}
    assert await meant(desk, Filter(error="nowhere")) == set()
    assert await meant(desk, Filter(since=noon)) == {late, wrong, new}
    assert await meant(desk, Filter(until=noon)) == {early, waits}
    assert await meant(desk, Filter(since=noon, error="Late", queue=WORK)) == {late}
    assert await meant(desk, Filter(since=noon, until=noon)) == set()


async def test_what_has_ended_counts_by_its_end(
    desk: Desk, store: Store, clock: ManualClock
) -> None:
    id = await add(store)
    clock.advance("1h")
    noon = await store.now()
    await end(store, await take_id(store, id), State.DEAD, failure=LATE)

    assert await meant(desk, Filter(since=noon)) == {id}
    assert await meant(desk, Filter(until=noon)) == set()


async def test_a_decision_is_written_down_once_with_its_filter_and_count(
    desk: Desk, store: Store
) -> None:
    ids = [await dead(store) for _ in range(5)]
    other = await dead(store, WRONG)

    sweep = await desk.retry_where(Filter(error="Late", queue=WORK), ANN, "host is back")

    assert sweep == Sweep(total=5, changed=5)
    assert await states(store, *ids) == [State.READY] * 5
    assert await state(store, other) is State.DEAD
    assert [await audit_of(store, id) for id in ids] == [[]] * 5
    [row], _ = await desk.audits()
    assert (row.who, row.verb, row.target) == ("ann", "retry many", WORK)
    assert row.note == f"host is back; state dead, queue {WORK}, error Late; 5 jobs"


async def test_so_many_at_most_are_changed(desk: Desk, store: Store) -> None:
    ids = [await dead(store) for _ in range(4)]

    sweep = await desk.discard_where(Filter(), ANN, "too old", pace=Pace(limit=3))

    assert sweep == Sweep(total=3, changed=3)
    found = await states(store, *ids)
    assert sorted(map(str, found)) == ["cancelled"] * 3 + ["dead"]
    assert await desk.count(Filter(states=frozenset({State.CANCELLED}))) == 3


async def test_waiting_jobs_are_cancelled_and_running_ones_only_if_named(
    desk: Desk, store: Store
) -> None:
    runs = await make(store, State.RUNNING)
    waits = await put(store, *(new_job() for _ in range(3)))
    stays = await add(store, OTHER)

    sweep = await desk.cancel_where(Filter(queue=WORK), ANN, "not needed")
    assert sweep.changed == len(waits)
    assert await states(store, *waits, stays, runs) == [
        *[State.CANCELLED] * 3,
        State.READY,
        State.RUNNING,
    ]
    sweep = await desk.cancel_where(Filter(states=frozenset({State.RUNNING})), ANN)
    assert (sweep.changed, await state(store, runs)) == (1, State.CANCELLED)


async def test_parked_jobs_go_on_by_a_filter(desk: Desk, store: Store) -> None:
    mine = [await add(store, lane=lane) for lane in ("ana", "eva")]
    for lease in await take(store, 2):
        await end(store, lease, State.PARKED, park="breaker:acme")

    sweep = await desk.let_go("breaker:acme", ANN, where=Filter(lane="eva"), pace=Pace(limit=5))

    assert sweep.changed == 1
    assert await states(store, *mine) == [State.PARKED, State.READY]


async def test_nothing_is_written_where_nothing_matched(desk: Desk) -> None:
    assert await desk.retry_where(Filter(queue=WORK), ANN) == Sweep(total=0)
    assert (await desk.audits())[0] == []
    with pytest.raises(DefinitionError, match="takes jobs that are"):
        await desk.discard_where(Filter(states=frozenset({State.RUNNING})), ANN, "no")
    with pytest.raises(DefinitionError, match="a limit is"):
        await desk.retry_where(Filter(), ANN, pace=Pace(limit=0))
    with pytest.raises(NotAllowed):
        await desk.cancel_where(Filter(), VERA)


async def test_the_audit_is_asked_by_person_verb_and_time(
    desk: Desk, store: Store, clock: ManualClock
) -> None:
    await store.audit([Audit(who="ann", verb="retry", target=f"t{n}") for n in range(70)])
    await store.audit([Audit(who="bob", verb="pause", target="q")])
    clock.advance("1h")
    noon = await store.now()
    await store.audit([Audit(who="ann", verb="pause", target="q")])

    async def told(**fields: object) -> list[tuple[str, str]]:
        rows, _ = await desk.audits(**fields)  # pyright: ignore[reportArgumentType]
        return [(row.who, row.verb) for row in rows]

    assert await told(who="bob") == [("bob", "pause")]
    assert await told(verb="pause") == [("ann", "pause"), ("bob", "pause")]
    assert await told(since=noon) == [("ann", "pause")]
    assert await told(who="bob", since=noon) == []
    rows, cursor = await desk.audits(who="ann", limit=50)
    more, end = await desk.audits(who="ann", limit=50, cursor=cursor)
    assert (len(rows), len(more), end) == (50, 21, None)


async def test_a_change_of_many_is_told_and_stopped(desk: Desk, store: Store) -> None:
    ids = [await dead(store) for _ in range(3)]
    sweeps, told = Sweeps(), asyncio.Event()

    async def act(progress: object) -> Sweep:
        def note(sweep: Sweep) -> None:
            progress(sweep)  # pyright: ignore[reportCallIssue, reportUnknownVariableType]
            if sweep.changed:
                told.set()

        return await desk.retry_where(Filter(), ANN, pace=Pace(rate="1/h"), progress=note)

    begun = sweeps.begin(act, verb="retry", who="ann", apps=None, back="/jobs")
    await asyncio.wait_for(told.wait(), 30)
    assert [each.changed for each in (one.view() for one in sweeps.under_way(None))] == [1]
    await sweeps.stop(begun, store, ANN.acts("cancel", "enough"))

    seen = begun.view()
    assert (seen.total, seen.changed, seen.is_over) == (3, 1, True)
    assert seen.stopped == "stopped by hand"
    assert sorted(map(str, await states(store, *ids))) == ["dead", "dead", "ready"]
    [stop, row], _ = await desk.audits()
    assert row.verb == "retry many" and row.note.endswith("3 jobs")
    assert (stop.verb, stop.note) == ("stop", "enough; retry: 1 of 3 changed")
