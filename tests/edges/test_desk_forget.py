"""C23: who asks to be forgotten is found, followed through their threads, and erased."""

from __future__ import annotations

from typing import Any

import pytest

from relevo.desk import Desk, Person, Role, Sweep
from relevo.errors import DefinitionError, NotAllowed
from relevo.ids import new_id
from relevo.job import LIVE, State
from relevo.store import (
    Arrival,
    Effect,
    EffectState,
    Filter,
    Kept,
    Letterbox,
    Note,
    Store,
)
from relevo.testing import ManualClock
from tests.conformance.fresh import STORES
from tests.conformance.steps import (
    DAY,
    HOUR,
    OTHER,
    WORK,
    add,
    add_parent,
    count,
    end,
    insert,
    make,
    put,
    states,
    take,
    take_id,
)
from tests.conformance.steps import job as new_job
from tests.engine.test_canary import mentions

ANN = Person("ann", Role.ADMIN)
EVA = "canary-eva"
WHY = "a person asked for it"
SOURCE = "app:/hooks/pay"
POLL = "app:pollers:rates"

every_store = pytest.mark.parametrize("store_name", STORES)


@pytest.fixture
def store_name() -> str:
    return "sqlite"


@pytest.fixture
def desk(store: Store) -> Desk:
    return Desk(store)


async def deliver(store: Store, key: str, queue: str = WORK, **fields: Any) -> Kept:
    """A delivery of one person that ordered one job."""
    id = new_id()
    one = {"id": id, "endpoint": SOURCE, "key": key, "body": f'"{key}"'.encode(), "thread": id}
    order = new_job(queue, payload=f'{{"name":"{key}"}}'.encode(), thread=id, cause=id)
    kept = Kept(**{**one, "answer": b"yes", **fields})
    [answer] = await store.receive([Arrival(kept, (order,))])
    return answer.kept


async def finish(store: Store, *queues: str, **how: Any) -> None:
    """Run whatever is due to its end."""
    for lease in await take(store, 1_000, *(queues or (WORK,))):
        assert await end(store, lease, **how)


async def confirmed(store: Store, job: str, thread: str, queue: str = WORK) -> None:
    effect = Effect(
        job=job,
        queue=queue,
        name="greet",
        key=f"{job}:greet",
        thread=thread,
        state=EffectState.CONFIRMED,
        result=f'"{EVA}"'.encode(),
    )
    await store.intend([effect])
    assert await store.conclude([effect]) == [True]


@every_store
@pytest.mark.parametrize("how", ["key", "thread", "text", "job"])
async def test_a_person_goes_with_the_whole_thread(desk: Desk, store: Store, how: str) -> None:
    """The delivery, its job, what that caused, and what was done outside; others stay."""
    came = await deliver(store, EVA)
    caused = await add(store, OTHER, thread=came.id, cause=came.jobs[0])
    other = await deliver(store, "ana")
    await finish(store, WORK, OTHER)
    await confirmed(store, caused, came.id, OTHER)
    named = {
        "key": {"key": EVA},
        "thread": {"thread": came.id},
        "text": {"text": EVA},
        "job": {"thread": caused},
    }[how]

    seen = await desk.forget_preview(ANN, **named)

    assert (seen.threads, seen.deliveries, seen.jobs) == (1, 1, {WORK: 1, OTHER: 1})
    assert (seen.is_dry, seen.act, seen.left) == (True, "", 0)
    assert await mentions(store, EVA) > 0
    done = await desk.forget(ANN, **named, note=WHY)
    assert (done.threads, done.deliveries, done.jobs) == (1, 1, {WORK: 1, OTHER: 1})
    assert await mentions(store, EVA) == 0
    assert await states(store, *came.jobs, caused, *other.jobs) == [None, None, State.DONE]
    assert [one.id for one in (await store.deliveries(Letterbox()))[0]] == [other.id]
    [row] = (await desk.audits(target=done.act))[0]
    assert (row.who, row.verb, row.note) == ("ann", "forget", WHY)
    assert (await desk.forget(ANN, **named, note=WHY)).is_empty


@every_store
async def test_a_thread_that_goes_on_is_left_alone_and_named(desk: Desk, store: Store) -> None:
    came = await deliver(store, EVA)
    await finish(store)
    live = await make(store, State.HELD, OTHER, thread=came.id, cause=came.jobs[0])
    over = await deliver(store, f"{EVA}-2")
    await finish(store)

    done = await desk.forget(ANN, text=EVA, note=WHY)

    assert (done.threads, done.deliveries, done.jobs, done.left) == (1, 1, {WORK: 1}, 1)
    [left] = done.left_alone
    assert (left.thread, left.jobs) == (came.id, (live,))
    assert "is held" in left.why
    assert f"relevo jobs cancel {live}" in left.advice
    assert await states(store, *came.jobs, live, *over.jobs) == [State.DONE, State.HELD, None]
    assert await desk.cancel([live], ANN) == [True]
    assert (await desk.forget(ANN, text=EVA, note=WHY)).jobs == {WORK: 1, OTHER: 1}
    assert await mentions(store, EVA) == 0


@pytest.mark.parametrize("state", sorted(LIVE))
async def test_no_state_that_goes_on_is_taken_for_an_end(
    desk: Desk, store: Store, state: State
) -> None:
    id = await make(store, state, key="k")

    done = await desk.forget(ANN, key="k", note=WHY)

    assert (done.threads, done.left, done.act) == (0, 1, "")
    assert await states(store, id) == [state]


@every_store
async def test_a_flow_goes_as_a_whole_with_its_key(desk: Desk, store: Store) -> None:
    """Nothing caused it, so that each of its nodes has a thread of its own."""
    flow, other = new_id(), new_id()
    child = await add(store, payload=f'"{EVA}"'.encode(), flow=flow, node="a")
    parent = await add_parent(store, child, flow=flow, node="b")
    notes = [
        Note(kind="flow", name=f"welcome/{EVA}", value=flow.encode()),
        Note(kind="flow", name="welcome/ana", value=other.encode()),
    ]
    assert await store.remember(notes) == [True, True]
    await end(store, await take_id(store, child))
    left = await desk.forget(ANN, key=EVA, note=WHY)
    assert (left.threads, left.left) == (0, 1)
    await end(store, await take_id(store, parent, OTHER))

    done = await desk.forget(ANN, key=EVA, note=WHY)

    assert (done.jobs, done.left) == ({WORK: 1, OTHER: 1}, 0)
    assert await states(store, child, parent) == [None, None]
    assert await mentions(store, EVA) == 0
    assert [note.name for note in await store.notes("flow")] == ["welcome/ana"]


@every_store
async def test_of_a_poller_s_turns_only_what_came_of_one_item_goes(
    desk: Desk, store: Store
) -> None:
    """A poller never ends, and its thread is everybody's."""
    poller = await add(store, POLL, kind="poll:rates", delay=HOUR)
    going = await make(store, State.HELD, key=f"{EVA}-2", thread=poller, cause=poller)
    mine = await add(store, key=EVA, thread=poller, cause=poller)
    below = await add(store, OTHER, payload=EVA.encode(), thread=poller, cause=mine)
    others = [await add(store, key=f"ana{n}", thread=poller, cause=poller) for n in range(3)]
    await finish(store, WORK, OTHER)

    done = await desk.forget(ANN, key=EVA, note=WHY)
    whole = await desk.forget(ANN, thread=poller, note=WHY)

    assert (done.jobs, done.left) == ({WORK: 1, OTHER: 1}, 0)
    assert await states(store, mine, below) == [None, None]
    assert await states(store, poller, going, *others) == [
        State.SCHEDULED,
        State.HELD,
        *[State.DONE] * 3,
    ]
    assert (whole.threads, whole.left) == (0, 1)
    assert "never ends" in whole.left_alone[0].why


async def test_a_poller_that_names_them_itself_is_said_so(desk: Desk, store: Store) -> None:
    poller = await add(store, POLL, kind="poll:rates", delay=HOUR, payload=f'"{EVA}"'.encode())
    mine = await add(store, payload=EVA.encode(), thread=poller, cause=poller)
    await finish(store)

    done = await desk.forget(ANN, text=EVA, note=WHY)

    assert (done.jobs, done.left) == ({WORK: 1}, 1)
    assert await states(store, poller, mine) == [State.SCHEDULED, None]
    assert "never ends" in done.left_alone[0].why


@every_store
async def test_what_pruning_left_of_a_person_goes_too(
    desk: Desk, store: Store, clock: ManualClock
) -> None:
    """Effects are kept longer than done jobs, and deliveries too."""
    came = await deliver(store, EVA)
    caused = await add(store, OTHER, thread=came.id, cause=came.jobs[0])
    await finish(store, WORK, OTHER)
    for job, queue in ((came.jobs[0], WORK), (caused, OTHER)):
        await confirmed(store, job, came.id, queue)
    clock.advance("8d")
    await store.prune(dead_keep=90 * DAY)
    assert await store.find([*came.jobs, caused]) == [None, None]
    assert len((await store.effects())[0]) == 2

    done = await desk.forget(ANN, key=EVA, note=WHY)

    assert (done.deliveries, done.jobs) == (1, {})
    assert await store.effects() == ([], None)
    assert await mentions(store, EVA) == 0


@every_store
async def test_effects_alone_are_found_by_their_text(
    desk: Desk, store: Store, clock: ManualClock
) -> None:
    await confirmed(store, new_id(), "t")
    await confirmed(store, live := await add(store, thread="t-2"), "t-2")

    done = await desk.forget(ANN, text=EVA, note=WHY)

    assert (done.threads, done.left) == (1, 1)
    assert [effect.job for effect in (await store.effects())[0]] == [live]


@every_store
async def test_a_key_for_good_and_a_delivery_still_answer(desk: Desk, store: Store) -> None:
    came = await deliver(store, EVA)
    first = await add(store, OTHER, key=EVA, unique="forever", thread=came.id)
    await finish(store, WORK, OTHER)

    await desk.forget(ANN, key=EVA, note=WHY)

    assert (await insert(store, OTHER, key=EVA, unique="forever")).id == first
    again = await deliver(store, EVA)
    assert (again.id, again.answer) == (came.id, b"yes")
    assert await count(store) == 0


async def test_a_desk_of_some_apps_reaches_no_further(store: Store) -> None:
    desk = Desk(store, apps=["cars"])
    came = await deliver(store, EVA, "cars:mail:send", endpoint="cars:/hooks")
    [mine] = came.jobs
    other = await add(store, "hotel:mail:send", key=EVA, thread=came.id)
    await deliver(store, EVA, "hotel:mail:send", endpoint="hotel:/hooks")
    await finish(store, "cars:mail:send")

    left = await desk.forget(ANN, key=EVA, note=WHY)
    assert (left.threads, left.left) == (0, 1)
    assert "another app" in left.left_alone[0].why
    assert other not in str(left)
    await finish(store, "hotel:mail:send")
    done = await desk.forget(ANN, key=EVA, note=WHY)

    assert (done.deliveries, done.jobs) == (1, {"cars:mail:send": 1})
    assert await states(store, mine, other) == [None, State.DONE]
    assert len((await store.deliveries(Letterbox()))[0]) == 1


async def test_many_threads_go_in_batches_and_are_counted(
    desk: Desk, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relevo.desk.forgetting.BATCH", 30)
    await put(store, *[new_job(payload=EVA.encode(), thread=f"t{n}") for n in range(50)])
    await put(store, *[new_job(thread=f"t{n % 50}") for n in range(70)])
    await finish(store)
    told: list[Sweep] = []

    done = await desk.forget(ANN, text=EVA, note=WHY, progress=told.append)

    assert (done.threads, done.jobs) == (50, {WORK: 120})
    assert [sweep.changed for sweep in told] == list(range(1, 51))
    assert {sweep.total for sweep in told} == {50}
    assert await count(store) == 0
    assert 2 <= len((await desk.audits(target=done.act))[0]) <= 10


async def test_what_was_retried_meanwhile_is_named(
    desk: Desk, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = await make(store, State.DEAD, key=EVA)
    erase = store.erase

    async def late(*args: Any, **how: Any) -> tuple[int, int]:
        await store.retry([id], ANN.acts("retry"))
        return await erase(*args, **how)

    monkeypatch.setattr(store, "erase", late)

    done = await desk.forget(ANN, key=EVA, note=WHY)

    assert (done.jobs, done.left) == ({}, 1)
    assert "is ready" in done.left_alone[0].why


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
async def test_only_an_admin_may(desk: Desk, store: Store, role: Role) -> None:
    """C15"""
    id = await make(store, State.DONE, key=EVA)
    person = Person("olli", role)

    with pytest.raises(NotAllowed, match="needs the role admin"):
        await desk.forget(person, key=EVA, note=WHY)
    with pytest.raises(NotAllowed):
        await desk.forget_preview(person, key=EVA)

    assert await states(store, id) == [State.DONE]


@pytest.mark.parametrize(
    ("named", "note", "complaint"),
    [
        ({}, WHY, "one of key, thread and text"),
        ({"key": "a", "thread": "b"}, WHY, "one of key, thread and text"),
        ({"text": "eva"}, WHY, "text has 4 to 500"),
        ({"text": "  e   "}, WHY, "text has 4 to 500"),
        ({"key": ""}, WHY, "key has 1 to 500"),
        ({"key": "x" * 501}, WHY, "key has 1 to 500"),
        ({"key": EVA}, " ", "say why"),
        ({"key": EVA}, f"{EVA} asked", "without naming them"),
        ({"text": EVA}, f"{EVA} asked", "without naming them"),
    ],
)
async def test_a_wrong_question_is_refused_with_the_rule(
    desk: Desk, store: Store, named: dict[str, str], note: str, complaint: str
) -> None:
    """B61"""
    id = await make(store, State.DONE, key=EVA)

    with pytest.raises(DefinitionError, match=complaint):
        await desk.forget(ANN, **named, note=note)

    assert await states(store, id) == [State.DONE]
    assert (await store.audits())[0] == []


async def test_a_rejected_delivery_is_forgotten_by_its_text(desk: Desk, store: Store) -> None:
    from tests.conformance.test_receive import accept, rejected

    [id] = await accept(store, rejected(body=EVA.encode()))

    done = await desk.forget(ANN, text=EVA, note=WHY)

    assert (done.deliveries, done.jobs) == (1, {})
    assert await store.delivery([id]) == [None]
    assert await store.count(Filter()) == 0
    assert await mentions(store, EVA) == 0
