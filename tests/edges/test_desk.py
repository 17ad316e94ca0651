"""The desk: what each person may do, what they see, and what is written down about it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from relevo import App, Delivery, Relevo, sources
from relevo.desk import ACTIONS, EDITABLE, Desk, Pace, Person, Role, Sweep, view
from relevo.errors import DefinitionError, MisuseError, NotAllowed, NotFoundError, PayloadError
from relevo.events import Subscriber, Subscribers, with_subscriber
from relevo.ids import new_id
from relevo.intake import Receiver
from relevo.job import Ending, Failure, State
from relevo.store import Effect, EffectState, Filter, QueueMode, Store, WorkerInfo
from relevo.testing import ManualClock
from tests.conformance.fresh import STORES
from tests.conformance.steps import (
    BOOM,
    OTHER,
    WORK,
    add,
    audit_of,
    end,
    look,
    make,
    outcomes,
    put,
    state,
    states,
    take,
    take_id,
)
from tests.conformance.steps import job as new_job

ANN = Person("ann", Role.ADMIN)
OLLI = Person("olli", Role.OPERATOR)
VERA = Person("vera", Role.VIEWER)
HIDDEN = "ana.perez@example.com"

CARS = "cars:suppliers:book"
HOTEL = "hotel:messages:save"


every_store = pytest.mark.parametrize("store_name", STORES)
"""For what the desk makes of a store's answers; what it refuses by itself is tested on one."""


@pytest.fixture
def store_name() -> str:
    return "sqlite"


@pytest.fixture
def desk(store: Store) -> Desk:
    return Desk(store)


async def dead(store: Store, queue: str = WORK, **fields: Any) -> str:
    return await make(store, State.DEAD, queue, **fields)


async def held(store: Store, **effect: Any) -> tuple[str, Effect]:
    """A job held over an effect that nobody knows the end of."""
    id = await add(store)
    lease = await take_id(store, id)
    mine = Effect(job=id, queue=WORK, name="book", key=f"{id}:book", run="r1", thread=id, attempt=1)
    await store.intend([mine])
    unknown = msgspec.structs.replace(mine, **{"state": EffectState.UNKNOWN, **effect})
    assert await store.conclude([unknown]) == [True]
    assert await end(store, lease, State.HELD, failure=BOOM)
    return id, mine


async def serve(store: Store, outcome: State, queue: str = WORK) -> None:
    """Run whatever is due to the same end, until cancelled."""
    while True:
        for lease in await take(store, 10, queue):
            await end(store, lease, outcome)
        await asyncio.sleep(0.01)


# what a retry may start once more


async def test_a_person_hears_that_what_an_old_job_started_may_not_be_known_any_more(
    desk: Desk, store: Store, clock: ManualClock
) -> None:
    old, never_ran = await dead(store), await add(store, delay=1)
    assert await desk.outlived([old]) == []
    clock.advance("91d")
    fresh = await dead(store, OTHER)
    ids = [old, never_ran, fresh, new_id()]

    assert [job.id for job in await desk.outlived(ids)] == [old]
    assert await Desk(store, keep_dead="100d").outlived(ids) == []
    sweep = await desk.retry_where(Filter(), ANN)
    assert (sweep.changed, sweep.outlived) == (2, 1)


# looking


async def test_a_job_is_found_by_its_id_however_it_is_typed(desk: Desk, store: Store) -> None:
    id = await add(store)
    dashed = "-".join((id[:8], id[8:12], id[12:16], id[16:20], id[20:])).upper()

    assert (await desk.job(dashed)).id == id


@pytest.mark.parametrize("text", ["", "abc", "x" * 1_000_000, "../../etc/passwd", "%", "0" * 31])
async def test_what_is_no_id_is_not_found_and_says_so(desk: Desk, text: str) -> None:
    """B61"""
    with pytest.raises(NotFoundError, match="is not a job id") as caught:
        await desk.job(text)
    assert len(str(caught.value)) < 300


async def test_an_unknown_id_is_not_found(desk: Desk) -> None:
    with pytest.raises(NotFoundError, match="no job has the id"):
        await desk.job(new_id())


async def test_a_limit_is_brought_into_bounds(desk: Desk, store: Store) -> None:
    """B60"""
    await put(store, *(new_job() for _ in range(250)))

    assert len((await desk.jobs(Filter(), limit=10**9)).jobs) == 200
    assert len((await desk.jobs(Filter(), limit=-1)).jobs) == 1


@every_store
async def test_pages_follow_one_another_without_gaps(desk: Desk, store: Store) -> None:
    ids = await put(store, *(new_job() for _ in range(25)))

    seen: list[str] = []
    cursor = None
    while True:
        page = await desk.jobs(Filter(), cursor, 10)
        seen += [job.id for job in page.jobs]
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == ids[::-1]


@pytest.mark.parametrize(
    "cursor", ["abc", "-1", "10e18", "';drop table relevo_jobs", "\x00", "\ud800"]
)
async def test_a_tampered_cursor_is_refused(desk: Desk, cursor: str) -> None:
    """B60"""
    with pytest.raises(DefinitionError, match="cursor"):
        await desk.jobs(Filter(), cursor)
    with pytest.raises(DefinitionError, match="cursor"):
        await desk.effects(cursor=cursor)
    with pytest.raises(DefinitionError, match="cursor"):
        await desk.audits(cursor=cursor)


async def test_a_cursor_belongs_to_its_question(desk: Desk, store: Store) -> None:
    await put(store, new_job(), new_job())
    cursor = (await desk.jobs(Filter(queue=WORK), limit=1)).cursor
    with pytest.raises(DefinitionError, match="cursor"):
        await desk.jobs(Filter(), cursor)


@pytest.mark.parametrize("where", [{"text": "x" * 10_000}, {"queue": "*"}, {"key": ""}])
async def test_a_filter_that_means_nothing_is_refused(desk: Desk, where: dict[str, str]) -> None:
    """B60"""
    with pytest.raises(DefinitionError):
        await desk.jobs(Filter(**where))
    with pytest.raises(DefinitionError):
        await desk.count(Filter(**where))


@pytest.mark.parametrize("text", ["%", "_", "100%", "(a+)+$", "\\"])
async def test_search_is_literal(desk: Desk, store: Store, text: str) -> None:
    """B60"""
    await add(store)
    assert (await desk.jobs(Filter(text=text))).jobs == []


@every_store
async def test_payloads_and_results_are_masked_for_a_viewer(desk: Desk, store: Store) -> None:
    """C15"""
    id = await add(store, payload=json.dumps({"email": HIDDEN, "n": 1}).encode())
    await end(store, await take_id(store, id), result=json.dumps({"to": HIDDEN}).encode())

    job = await desk.job(id)
    masked = desk.masked(job)

    assert HIDDEN in job.payload.decode()
    assert HIDDEN not in str(view(masked))
    assert view(masked)["payload"]["n"] == 1


async def test_a_view_is_plain_json(desk: Desk, store: Store) -> None:
    id = await dead(store)

    shown = view(await desk.job(id))

    assert json.loads(json.dumps(shown)) == shown
    assert datetime.fromisoformat(shown["inserted_at"]).tzinfo is not None
    assert shown["state"] == "dead"
    assert shown["history"][0]["failure"]["type"] == "Boom"


# roles


async def _try_everything(
    desk: Desk, store: Store
) -> dict[str, Callable[[Person], Awaitable[Any]]]:
    letter, other, third = await dead(store), await dead(store), await dead(store)
    fourth = await dead(store)
    uncertain, _ = await held(store)
    doubtful, _ = await held(store)
    waiting = await add(store, OTHER)
    handling, delivery = await _delivered(store)
    await store.beat(worker("silent"), 0)
    told = Subscriber(name="mail", queue=OTHER, attempts=3, keep=1_000)
    await Subscribers(store).change("order.paid", with_subscriber(told))
    return {
        "retry": lambda by: desk.retry([letter], by),
        "run_again": lambda by: desk.run_again(fourth, by),
        "edit": lambda by: desk.edit(other, by, priority="low"),
        "discard": lambda by: desk.discard([third], by, "no use"),
        "cancel": lambda by: desk.cancel([waiting], by),
        "pause": lambda by: desk.pause([WORK], by),
        "resume": lambda by: desk.resume([WORK], by),
        "drain": lambda by: desk.drain([OTHER], by),
        "confirm_effect": lambda by: desk.confirm_effect(uncertain, "book", "X1", by),
        "deny_effect": lambda by: desk.deny_effect(doubtful, "book", by),
        "turn_breaker": lambda by: desk.turn_breaker("acme", "open", by),
        "forget_worker": lambda by: desk.forget_worker("silent", by),
        "replay": lambda by: desk.replay(delivery, by, handling),
        "forget": lambda by: desk.forget(by, thread=third, note="asked for it"),
        "unsubscribe": lambda by: desk.unsubscribe("order.paid", "mail", by),
        "restore": lambda by: desk.mark_restored(by, force=True),
        "change": lambda by: desk.set_queue(WORK, by, limit=3),
    }


def worker(id: str, *queues: str) -> WorkerInfo:
    return WorkerInfo(id=id, host="h", pid=1, queues=[*queues], concurrency=5)


async def _delivered(store: Store) -> tuple[Receiver, str]:
    """Who lets deliveries in, and the id of one that was."""
    app = App("shop")

    @app.webhook(
        "/hooks/shop", source=sources.github("a secret of tests"), key=lambda d: d.json["id"]
    )
    async def hook(delivery: Delivery) -> None: ...

    handling = Relevo(store, apps=[app]).handling
    receiver = handling.receiver
    came = Delivery(path="/hooks/shop", body=b'{"id":"evt_1"}', received_at=datetime.now(UTC))
    return handling, (await receiver.take(receiver.doors["/hooks/shop"], came)).kept.id


@pytest.mark.parametrize("person", [VERA, OLLI, ANN], ids=lambda person: person.role)
async def test_every_action_asks_for_its_role(desk: Desk, store: Store, person: Person) -> None:
    """C15: the matrix of roles and actions, from the desk's own list."""
    tries = await _try_everything(desk, store)
    assert tries.keys() | {"look", "reveal"} == ACTIONS.keys()

    for action, attempt in tries.items():
        before = (await store.audits(limit=200))[0]
        if person.may(action):
            await attempt(person)
        else:
            with pytest.raises(NotAllowed, match=ACTIONS[action]):
                await attempt(person)
            assert (await store.audits(limit=200))[0] == before


async def test_a_viewer_may_look_and_no_more() -> None:
    assert [action for action in ACTIONS if VERA.may(action)] == ["look"]
    assert all(ANN.may(action) for action in ACTIONS)


async def test_bulk_changes_ask_for_the_same_role(desk: Desk, store: Store) -> None:
    await dead(store)
    with pytest.raises(NotAllowed):
        await desk.retry_where(Filter(), VERA)
    with pytest.raises(NotAllowed):
        await desk.discard_where(Filter(), VERA, "no")
    assert await desk.count(Filter(states=frozenset({State.DEAD}))) == 1


@every_store
async def test_every_action_leaves_one_row_for_each_thing_changed(desk: Desk, store: Store) -> None:
    """C37"""
    tries = await _try_everything(desk, store)
    for action, attempt in tries.items():
        known = len((await store.audits(limit=200))[0])
        await attempt(ANN)
        rows = (await store.audits(limit=200))[0]
        # Deciding an effect also retries its job.
        assert len(rows) - known == (2 if "effect" in action else 1), action
        assert {row.who for row in rows[: len(rows) - known]} == {"ann"}


# one app's desk


@every_store
async def test_a_desk_of_one_app_forgets_no_worker_of_another(store: Store) -> None:
    """F61"""
    for id, queues in (("mine", [CARS]), ("shared", [CARS, HOTEL]), ("theirs", [HOTEL])):
        await store.beat(worker(id, *queues), 0)
    desk = Desk(store, apps={"cars"})

    await desk.forget_worker("mine", ANN)
    with pytest.raises(NotAllowed):
        await desk.forget_worker("shared", ANN)
    for unseen in ("theirs", "mine", "never-seen"):
        with pytest.raises(NotFoundError):
            await desk.forget_worker(unseen, ANN)

    assert {each.id for each in await store.workers()} == {"shared", "theirs"}
    await store.beat(worker("shared", CARS), 60_000)
    with pytest.raises(MisuseError, match="is alive"):
        await desk.forget_worker("shared", ANN)


@every_store
async def test_a_desk_of_one_app_knows_nothing_of_another(store: Store) -> None:
    """C16"""
    theirs, mine = await dead(store, HOTEL), await dead(store, CARS)
    desk = Desk(store, apps={"cars"})

    with pytest.raises(NotFoundError, match="no job has the id"):
        await desk.job(theirs)
    with pytest.raises(NotFoundError):
        await desk.edit(theirs, ANN, priority="low")
    with pytest.raises(NotFoundError):
        await desk.pause([HOTEL], ANN)
    with pytest.raises(NotFoundError):
        await desk.queue(HOTEL)
    with pytest.raises(NotFoundError):
        await desk.trace(theirs)
    with pytest.raises(NotFoundError):
        await desk.audits(target=theirs)
    for change in (desk.retry, desk.cancel):
        assert await change([theirs], ANN) == [False]
    assert await desk.discard([theirs], ANN, "no") == [False]
    assert [job.id for job in (await desk.jobs(Filter())).jobs] == [mine]
    assert (await desk.jobs(Filter(queue=HOTEL))).jobs == []
    assert await desk.count(Filter()) == 1
    assert await desk.count(Filter(queue=HOTEL)) == 0
    assert [tally.queue for tally in await desk.queues()] == [CARS]
    assert [group.queue for group in await desk.groups()] == [CARS]
    assert await state(store, theirs) is State.DEAD

    sweep = await desk.retry_where(Filter(), ANN)

    assert sweep == Sweep(total=1, changed=1)
    assert await states(store, theirs, mine) == [State.DEAD, State.READY]


# tracing


@every_store
async def test_a_story_is_found_by_anything_that_belongs_to_it(desk: Desk, store: Store) -> None:
    first = await add(store, payload=b'{"reservation":"RES-7K2M"}', key="book:RES-7K2M")
    lease = await take_id(store, first)
    second = await add(store, OTHER, thread=first, cause=first)
    third = await add(store, HOTEL, thread=first, cause=second)
    stranger = await add(store, CARS)
    effect = Effect(job=first, queue=WORK, name="book", key=f"{first}:book", thread=first)
    await store.intend([effect])
    await store.conclude(
        [msgspec.structs.replace(effect, state=EffectState.CONFIRMED, result=b'"CONF-991"')]
    )
    await end(store, lease)

    for text, how in (
        (first, "job id"),
        (third, "job id"),
        ("book:RES-7K2M", "key"),
        ("RES-7K2M", "payload"),
        (f"{first}:book", "effect"),
        ("CONF-991", "effect"),
    ):
        story = await desk.trace(text)
        assert [job.id for job in story.jobs] == [first, second, third], text
        assert how in story.found
        assert [(depth, job.id) for depth, job in story.tree()] == [
            (0, first),
            (1, second),
            (2, third),
        ]
        assert [found.name for found in story.effects] == ["book"]
        assert [run.outcome for run in story.jobs[0].history] == ["done"]
        assert stranger not in str(view(story))


@every_store
async def test_a_story_may_span_threads(desk: Desk, store: Store) -> None:
    ids = [await add(store, queue, payload=b'{"code":"RES-9"}') for queue in (WORK, OTHER)]

    story = await desk.trace("RES-9")

    assert story.threads == tuple(reversed(ids))
    assert [job.id for job in story.jobs] == ids


@every_store
async def test_a_thread_that_is_no_job_is_found(desk: Desk, store: Store) -> None:
    delivery = new_id()
    id = await add(store, thread=delivery, cause=delivery)

    story = await desk.trace(delivery)

    assert story.found == ("thread",)
    assert [(depth, job.id) for depth, job in story.tree()] == [(0, id)]


async def test_nothing_to_tell_is_said(desk: Desk) -> None:
    with pytest.raises(NotFoundError, match="nothing is known of"):
        await desk.trace("RES-NONE")
    for text in ("", "ab", "x" * 10_000):
        with pytest.raises(DefinitionError, match="characters"):
            await desk.trace(text)


# changing jobs


@every_store
async def test_retry_makes_dead_letters_ready_and_answers_for_each(
    desk: Desk, store: Store
) -> None:
    letter, done = await dead(store), await make(store, State.DONE, OTHER)

    assert await desk.retry([letter, done, letter.upper(), new_id()], OLLI, "fixed") == [
        True,
        False,
        True,
        False,
    ]
    assert await states(store, letter, done) == [State.READY, State.DONE]
    assert (await store.audits(target=letter))[0][0].note == "fixed"
    assert len((await store.audits(target=letter))[0]) == 1


async def test_a_discard_needs_its_reason(desk: Desk, store: Store) -> None:
    id = await dead(store)
    for note in ("", "  \n"):
        with pytest.raises(DefinitionError, match="say why"):
            await desk.discard([id], ANN, note)

    assert await desk.discard([id], ANN, "guest cancelled by phone") == [True]
    assert (await look(store, id)).note == "guest cancelled by phone"
    assert await state(store, id) is State.CANCELLED


@every_store
async def test_an_edit_changes_the_payload_and_nothing_else(desk: Desk, store: Store) -> None:
    """C17"""
    id = await dead(store)
    before = await desk.job(id)
    due = datetime.now(UTC) + timedelta(hours=1)

    after = await desk.edit(
        id, ANN, payload='{"n":2}', priority="high", run_at=due, attempts=9, note="typo"
    )

    assert after.changed == ["n", "priority", "run_at", "attempts"]
    after = await desk.job(id)
    assert after.payload == b'{"n":2}'
    assert (after.priority, after.attempts) == (0, 9)
    unchanged = set(before.__struct_fields__) - {*EDITABLE}
    assert [name for name in unchanged if getattr(before, name) != getattr(after, name)] == []
    assert await audit_of(store, id) == ["edit"]


def test_only_four_fields_can_be_edited() -> None:
    """C17"""
    about = ("return", "bindings", "whole", "seen")
    annotations = {name for name in Desk.edit.__annotations__ if name not in about}
    assert annotations == {*EDITABLE, "id", "by", "note"}


@pytest.mark.parametrize(
    "payload",
    [
        "{",
        "",
        "NaN",
        '{"a":1,"a":2}',
        b"\xff\xfe",
        '{"password":"hunter22"}',
        json.dumps({"text": "a" * 100_000}),
        "[" * 100 + "]" * 100,
        '{"a":"\\u0000"}',
        '{"a":"\ud800"}',
    ],
)
async def test_a_bad_payload_is_refused_and_the_job_unchanged(
    desk: Desk, store: Store, payload: str | bytes
) -> None:
    """B61"""
    id = await dead(store)
    before = await desk.job(id)
    with pytest.raises(PayloadError) as caught:
        await desk.edit(id, ANN, payload=payload)
    assert "hunter22" not in str(caught.value)
    assert await desk.job(id) == before
    assert await audit_of(store, id) == []


@pytest.mark.parametrize(
    "change", [{}, {"priority": "urgent"}, {"attempts": 0}, {"attempts": 10**9}]
)
async def test_a_bad_edit_is_refused(desk: Desk, store: Store, change: dict[str, Any]) -> None:
    id = await dead(store)
    with pytest.raises(DefinitionError):
        await desk.edit(id, ANN, **change)
    assert await audit_of(store, id) == []


async def test_what_a_mask_hid_survives_an_edit_of_the_masked_view(
    desk: Desk, store: Store
) -> None:
    payload = {"email": HIDDEN, "guests": [{"email": HIDDEN, "age": 3}], "n": 1}
    id = await dead(store, payload=json.dumps(payload).encode())
    shown = view(desk.masked(await desk.job(id)))["payload"]
    shown["n"] = 2
    shown["guests"][0]["age"] = 4

    after = await desk.edit(id, ANN, payload=json.dumps(shown))

    assert json.loads(after.payload) == {
        "email": HIDDEN,
        "guests": [{"email": HIDDEN, "age": 4}],
        "n": 2,
    }


async def test_what_a_class_allowed_may_stay_but_not_change(desk: Desk, store: Store) -> None:
    payload = {"user_pin": "4711", "rooms": [{"user_pin": "0815", "n": 1}], "n": 1}
    id = await dead(store, payload=json.dumps(payload).encode())

    after = await desk.edit(id, ANN, payload=json.dumps({**payload, "n": 2}))
    assert json.loads(after.payload) == {**payload, "n": 2}

    for change in (
        {**payload, "user_pin": "9999"},
        {**payload, "rooms": [{"user_pin": "0815"}, {"user_pin": "9999"}]},
        {**payload, "nested": {"user_pin": "4711"}},
    ):
        with pytest.raises(PayloadError):
            await desk.edit(id, ANN, payload=json.dumps(change))


@pytest.mark.parametrize("wanted", [State.RUNNING, State.DONE])
async def test_a_running_or_done_job_is_not_edited(desk: Desk, store: Store, wanted: State) -> None:
    id = await make(store, wanted)
    with pytest.raises(MisuseError, match=wanted):
        await desk.edit(id, ANN, priority="low")


# changing many


@every_store
async def test_a_group_is_retried_and_the_rest_stays(desk: Desk, store: Store) -> None:
    other = Failure(type="Other", message="no", fingerprint="other-1")
    ours = [await dead(store) for _ in range(3)]
    theirs = await add(store)
    await end(store, await take_id(store, theirs), State.DEAD, failure=other)
    steps: list[Sweep] = []

    sweep = await desk.retry_where(
        Filter(fingerprint=BOOM.fingerprint), OLLI, progress=steps.append
    )

    assert sweep == Sweep(total=3, changed=3)
    assert steps[-1] == sweep
    assert await states(store, *ours, theirs) == [State.READY] * 3 + [State.DEAD]


async def test_many_pages_are_retried_once_each(desk: Desk, store: Store) -> None:
    ids = await put(store, *(new_job() for _ in range(450)))
    for lease in await take(store, 450):
        await end(store, lease, State.DEAD)

    sweep = await desk.retry_where(Filter(), ANN)

    assert sweep == Sweep(total=450, changed=450)
    assert await audit_of(store, ids[0]) == []
    assert [row.verb for row in (await desk.audits())[0]] == ["retry many"]


@every_store
async def test_what_dies_again_meanwhile_is_not_retried_twice(desk: Desk, store: Store) -> None:
    await put(store, *(new_job() for _ in range(450)))
    for lease in await take(store, 450):
        await end(store, lease, State.DEAD)
    server = asyncio.create_task(serve(store, State.DEAD))
    try:
        sweep = await desk.retry_where(Filter(), ANN, pace=Pace(rate="900/s"))
    finally:
        server.cancel()

    assert sweep.changed == 450


@every_store
async def test_a_canary_that_dies_again_stops_the_rest(desk: Desk, store: Store) -> None:
    ids = [await dead(store) for _ in range(5)]
    server = asyncio.create_task(serve(store, State.DEAD))
    try:
        sweep = await desk.retry_where(Filter(), ANN, pace=Pace(canary=2, patience="30s"))
    finally:
        server.cancel()

    assert sweep.changed == 2
    assert "dead again: Boom" in sweep.stopped
    rows = (await desk.audits())[0]
    assert [row.verb for row in rows] == ["stop", "retry many"]
    assert rows[0].note == f"retry: 2 of 5 changed; {sweep.stopped}"
    assert [await audit_of(store, id) for id in ids[:3]] == [[], [], []]


@every_store
async def test_canaries_that_end_well_let_the_rest_follow(desk: Desk, store: Store) -> None:
    ids = [await dead(store, keep=0) for _ in range(3)] + [await dead(store) for _ in range(3)]
    server = asyncio.create_task(serve(store, State.DONE))
    try:
        sweep = await desk.retry_where(Filter(), ANN, pace=Pace(canary=4, patience="30s"))
    finally:
        server.cancel()

    assert sweep == Sweep(total=6, changed=6)
    assert len(ids) == 6


async def test_canaries_without_an_outcome_stop_the_rest(desk: Desk, store: Store) -> None:
    for _ in range(3):
        await dead(store)

    seen: list[Sweep] = []
    sweep = await desk.retry_where(
        Filter(), ANN, pace=Pace(canary=1, patience="50ms"), progress=seen.append
    )

    # How far it has come is known while the canaries are waited for, not only after.
    assert seen[:2] == [Sweep(total=3), Sweep(total=3, changed=1)]
    assert sweep.changed == 1
    assert "have not ended in time" in sweep.stopped


@every_store
async def test_a_rate_spreads_what_is_retried(desk: Desk, store: Store) -> None:
    ids = [await dead(store) for _ in range(4)]
    loop = asyncio.get_running_loop()
    began = loop.time()

    sweep = await desk.retry_where(Filter(), ANN, pace=Pace(rate="10/s"))

    assert sweep.changed == 4
    due = sorted([(await look(store, id)).run_at for id in ids])
    assert due[-1] - due[0] >= 250
    assert loop.time() - began < 5


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": "fast"},
        {"rate": "0/s"},
        {"canary": 0},
        {"canary": 10_000},
        {"canary": 1, "patience": "soon"},
    ],
)
async def test_a_bulk_retry_written_wrongly_changes_nothing(
    desk: Desk, store: Store, wrong: dict[str, Any]
) -> None:
    id = await dead(store)
    with pytest.raises(DefinitionError):
        await desk.retry_where(Filter(), ANN, pace=Pace(**wrong))
    with pytest.raises(DefinitionError):
        await desk.retry_where(Filter(states=frozenset({State.RUNNING})), ANN)
    assert await state(store, id) is State.DEAD


async def test_a_change_of_many_that_is_interrupted_says_how_far_it_came(
    desk: Desk, store: Store
) -> None:
    for _ in range(3):
        await dead(store)
    pace = Pace(rate="1/h")  # the first goes at once, the second in an hour
    begun = asyncio.Event()

    def progress(sweep: Sweep) -> None:
        if sweep.changed:
            begun.set()

    work = desk.retry_where(Filter(), ANN, "the host is back", pace=pace, progress=progress)
    task = asyncio.create_task(work)
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    rows = (await desk.audits())[0]
    assert [(row.who, row.verb) for row in rows] == [("ann", "stop"), ("ann", "retry many")]
    assert rows[0].note == "retry: 1 of 3 changed; it was interrupted"


@every_store
async def test_a_group_is_discarded_with_its_reason(desk: Desk, store: Store) -> None:
    ids = [await dead(store) for _ in range(3)]

    sweep = await desk.discard_where(Filter(fingerprint=BOOM.fingerprint), ANN, "old supplier")

    assert sweep == Sweep(total=3, changed=3)
    assert await states(store, *ids) == [State.CANCELLED] * 3


# queues


@every_store
async def test_a_queue_is_paused_and_resumed(desk: Desk, store: Store) -> None:
    await add(store)

    assert await desk.pause([WORK], OLLI, "deploy") == [True]
    assert await desk.pause([WORK], OLLI) == [False]
    assert await take(store) == []
    assert (await desk.queue(WORK)).mode is QueueMode.PAUSED
    assert await desk.resume([WORK], OLLI) == [True]
    assert len(await take(store)) == 1
    rows = (await desk.audits(target=WORK))[0]
    assert [(row.verb, row.note) for row in rows] == [("resume", ""), ("pause", "deploy")]


@every_store
async def test_a_drain_tells_what_is_left_until_nothing_is(desk: Desk, store: Store) -> None:
    await put(store, new_job(), new_job())
    assert await desk.drain([WORK], ANN) == [True]

    seen: list[int] = []
    async for left in desk.drained(WORK, every="1ms"):
        seen.append(left)
        for lease in await take(store, 1):
            await end(store, lease)

    assert seen == [2, 1, 0]


async def test_a_name_that_is_no_queue_is_refused(desk: Desk) -> None:
    for change in (desk.pause, desk.resume, desk.drain):
        with pytest.raises(DefinitionError, match="not a queue name"):
            await change(["*"], ANN)


# effects


@every_store
async def test_a_confirmed_effect_lets_its_job_go_on(desk: Desk, store: Store) -> None:
    id, effect = await held(store)

    assert await desk.confirm_effect(id, "book", {"code": "X1"}, OLLI, "called them") is True

    known = await desk.effect(id, "book")
    assert known.state is EffectState.CONFIRMED
    assert json.loads(known.result or b"") == {"code": "X1"}
    assert (known.decided_by, known.key) == ("olli", effect.key)
    assert await state(store, id) is State.READY
    [again] = await store.intend([effect])
    assert again.result == known.result


@every_store
async def test_a_denied_effect_is_asked_for_again(desk: Desk, store: Store) -> None:
    id, effect = await held(store)

    assert await desk.deny_effect(id, "book", OLLI) is True

    known = await desk.effect(id, "book")
    assert (known.state, known.key) == (EffectState.FAILED, effect.key)
    assert await state(store, id) is State.READY
    assert await outcomes(store, id) == ["held"]


@every_store
async def test_an_effect_that_several_jobs_share_is_decided_like_any_other(
    desk: Desk, store: Store
) -> None:
    """Its id is no job's: those that are held for it are found by their thread."""
    id, other = (await held(store))[0], (await held(store))[0]
    shared = Effect(job=new_id(), queue=WORK, name="mail", key="k", run="r1", thread=id)
    await store.intend([shared])
    await store.conclude([msgspec.structs.replace(shared, state=EffectState.UNKNOWN)])

    assert [job.id for job in await desk.askers(shared)] == [id]
    assert await desk.confirm_effect(shared.job, "mail", "sent", OLLI) is True

    assert (await desk.effect(shared.job, "mail")).state is EffectState.CONFIRMED
    assert await state(store, id) is State.READY
    assert await state(store, other) is State.HELD
    assert await desk.confirm_effect(shared.job, "mail", "sent", OLLI) is False


@every_store
async def test_a_decision_is_not_taken_twice_nor_taken_back(desk: Desk, store: Store) -> None:
    id, _ = await held(store)
    await desk.confirm_effect(id, "book", "X1", OLLI)

    with pytest.raises(MisuseError, match="confirmed already"):
        await desk.confirm_effect(id, "book", "X2", OLLI)
    with pytest.raises(MisuseError, match="only an uncertain effect"):
        await desk.deny_effect(id, "book", OLLI)


async def test_a_decision_whose_retry_was_lost_can_be_repeated(desk: Desk, store: Store) -> None:
    id, effect = await held(store)
    confirmed = msgspec.structs.replace(effect, state=EffectState.CONFIRMED, result=b'"X1"')
    await store.conclude([confirmed])

    assert await desk.confirm_effect(id, "book", "X1", OLLI) is True
    assert await state(store, id) is State.READY


async def test_an_effect_of_a_running_job_is_not_decided(desk: Desk, store: Store) -> None:
    id, _ = await held(store)
    await desk.retry([id], ANN)
    await take_id(store, id)

    with pytest.raises(MisuseError, match="is running"):
        await desk.deny_effect(id, "book", ANN)


async def test_an_unknown_effect_is_not_found_and_the_known_are_named(
    desk: Desk, store: Store
) -> None:
    id, _ = await held(store)
    with pytest.raises(NotFoundError, match="it has book"):
        await desk.confirm_effect(id, "pay", "X1", ANN)


async def test_a_result_with_a_secret_is_refused(desk: Desk, store: Store) -> None:
    id, _ = await held(store)
    with pytest.raises(PayloadError):
        await desk.confirm_effect(id, "book", {"password": "hunter22"}, ANN)
    assert await state(store, id) is State.HELD


async def _confirmed(store: Store, result: bytes, name: str = "book") -> None:
    """An earlier effect of this name, whose job is gone."""
    id = new_id()
    earlier = Effect(job=id, queue=WORK, name=name, key=f"{id}:{name}", run="r1")
    await store.intend([earlier])
    await store.conclude(
        [msgspec.structs.replace(earlier, state=EffectState.CONFIRMED, result=result)]
    )


@every_store
async def test_a_result_unlike_what_earlier_calls_gave_is_refused(desk: Desk, store: Store) -> None:
    """A text where the worker reads fields killed the job four attempts later."""
    id, _ = await held(store)
    await _confirmed(store, b'{"id":"ch_1","status":"paid"}')
    await _confirmed(store, b'{"id":"ch_2","status":"paid","note":"x"}')
    await _confirmed(store, b'"a text"', "mail")

    with pytest.raises(MisuseError, match=r"an object, not a text\. .*--result '\{\"id\"") as told:
        await desk.confirm_effect(id, "book", "1", OLLI)
    assert "ch_1" not in str(told.value) and "note" not in str(told.value)
    with pytest.raises(MisuseError, match="has status, too"):
        await desk.confirm_effect(id, "book", {"id": "1"}, OLLI)
    assert await state(store, id) is State.HELD
    assert await desk.confirm_effect(id, "book", {"id": "1", "status": "paid"}, OLLI) is True


async def test_a_result_of_another_shape_is_written_if_a_person_insists(
    desk: Desk, store: Store
) -> None:
    id, _ = await held(store)
    await _confirmed(store, b'{"id":"ch_1"}')

    assert await desk.confirm_effect(id, "book", "1", OLLI, anyway=True) is True
    assert (await desk.effect(id, "book")).result == b'"1"'


@every_store
async def test_a_denied_effect_is_asked_for_with_another_key_if_a_person_says_so(
    desk: Desk, store: Store
) -> None:
    id, _ = await held(store)

    assert await desk.deny_effect(id, "book", OLLI, fresh_key=True) is True

    known = await desk.effect(id, "book")
    assert (known.state, known.decided_by) == (EffectState.REFUSED, "olli")
    assert await state(store, id) is State.READY


@every_store
async def test_what_a_person_told_can_be_told_again_while_its_job_is_held(
    desk: Desk, store: Store
) -> None:
    id, _ = await held(store)
    await desk.confirm_effect(id, "book", "X1", OLLI)
    with pytest.raises(MisuseError, match="confirmed already"):
        await desk.confirm_effect(id, "book", {"code": "X1"}, OLLI)

    lease = await take_id(store, id)
    await store.settle([Ending(lease=lease, state=State.HELD)])
    assert await desk.confirm_effect(id, "book", {"code": "X1"}, OLLI) is True
    assert json.loads((await desk.effect(id, "book")).result or b"") == {"code": "X1"}
