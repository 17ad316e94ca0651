"""Editing a job: named fields are merged and checked, and a change is taken back for a day."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from relevo import App, Command, Relevo, SealKeys, State
from relevo.desk import Desk, Person, Role
from relevo.desk.editing import EDITING, HELD
from relevo.errors import DefinitionError, MisuseError, NotFoundError, PayloadError
from relevo.job import Job
from relevo.sealing import is_sealed, new_key
from relevo.store import EDITS, Filter, Note, Store
from relevo.testing import ManualClock, drain
from tests.conformance.fresh import STORES
from tests.engine.test_canary import mentions

ANN = Person("ann", Role.ADMIN)
QUEUE = "test:shop:ship"
CANARY = "canary-ana"

Start = Callable[..., Relevo]


class Ship(Command, queue=QUEUE, attempts=1, key="ship:{order}", unique="unfinished"):
    order: str
    email: str
    address: dict[str, str]


class Shop:
    """Ships to an address with an @ in it."""

    def __init__(self) -> None:
        self.shipped: list[Ship] = []

    def app(self) -> App:
        async def ship(order: Ship) -> None:
            if "@" not in order.email:
                raise ValueError(f"no address: {order.email}")
            self.shipped.append(order)

        return App("test", workers=[ship])


@pytest.fixture(params=STORES)
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def start(store: Store, clock: ManualClock) -> AsyncGenerator[Start]:
    async with AsyncExitStack() as stack:

        def make(app: App, *keys: str) -> Relevo:
            seal = SealKeys(*keys) if keys else None
            engine = Relevo(store, apps=[app], clock=clock, seal=seal)
            stack.push_async_callback(engine.rest)
            return engine

        yield make


async def dead(relevo: Relevo, email: str = "ana", order: str = "A-77") -> Job:
    sent = await relevo.enqueue(Ship(order, email, {"street": "Main 1", "zip": "1000"}))
    await drain(relevo)
    job = await relevo.desk.job(sent.id)
    assert job.state is State.DEAD
    return job


def payload_of(job: Any) -> Any:
    return json.loads(job.payload)


async def edit(relevo: Relevo, id: str, **fields: Any) -> Any:
    text = json.dumps(fields)
    return await relevo.desk.edit(id, ANN, payload=text, bindings=relevo.bindings)


async def test_named_fields_are_merged_and_the_rest_stays(start: Start) -> None:
    shop = Shop()
    relevo = start(shop.app())
    job = await dead(relevo)

    edited = await edit(relevo, job.id, email="ana@shop.example", address={"zip": "1001"})

    assert edited.changed == ["email", "address.zip"]
    assert edited.warning == ""
    assert payload_of(edited) == {
        "order": "A-77",
        "email": "ana@shop.example",
        "address": {"street": "Main 1", "zip": "1001"},
    }
    await relevo.desk.retry([job.id], ANN)
    await drain(relevo)
    address = {"street": "Main 1", "zip": "1001"}
    assert shop.shipped == [Ship("A-77", "ana@shop.example", address)]


async def test_what_its_command_cannot_read_is_refused_and_nothing_changes(start: Start) -> None:
    relevo = start(Shop().app())
    job = await dead(relevo)
    desk, known = relevo.desk, relevo.bindings

    with pytest.raises(PayloadError):
        await edit(relevo, job.id, email=7)
    with pytest.raises(PayloadError):
        await desk.edit(job.id, ANN, payload='{"email":"a@b"}', whole=True, bindings=known)
    with pytest.raises(MisuseError, match="cannot be checked"):
        await desk.edit(job.id, ANN, payload='{"email":"a@b"}', bindings={})
    with pytest.raises(DefinitionError, match="name the fields"):
        await desk.edit(job.id, ANN, payload='["a@b"]', bindings=known)

    assert (await desk.job(job.id)).payload == job.payload
    assert await desk.edits(job.id) == []
    assert await relevo.store.notes(EDITS) == []


async def test_a_field_that_the_command_does_not_read_is_refused(start: Start) -> None:
    relevo = start(Shop().app())
    job = await dead(relevo)
    desk = relevo.desk

    with pytest.raises(PayloadError, match="Ship has no field 'emial': email may be meant"):
        await edit(relevo, job.id, emial="ana@shop.example")
    with pytest.raises(PayloadError, match="only order, email, address"):
        await edit(relevo, job.id, zzz=1)
    assert (await desk.job(job.id)).payload == job.payload

    # What was there before stays, and a person may insist.
    await desk.edit(job.id, ANN, payload='{"zzz":1}')
    edited = await edit(relevo, job.id, email="ana@shop.example")
    assert payload_of(edited)["zzz"] == 1


async def test_edits_at_one_moment_do_not_take_each_other_back(start: Start) -> None:
    relevo = start(Shop().app())
    job = await dead(relevo)

    changes = [{"email": "ana@shop.example"}, {"order": "A-78"}, {"address": {"zip": "1001"}}]
    await asyncio.gather(*(edit(relevo, job.id, **fields) for fields in changes))

    assert payload_of(await relevo.desk.job(job.id)) == {
        "order": "A-78",
        "email": "ana@shop.example",
        "address": {"street": "Main 1", "zip": "1001"},
    }
    for _ in changes:
        await relevo.desk.undo_edit(job.id, ANN)
    assert (await relevo.desk.job(job.id)).payload == job.payload
    assert await relevo.store.notes(EDITING) == []


async def test_what_was_changed_since_a_person_has_seen_it_stays(start: Start) -> None:
    relevo = start(Shop().app())
    job = await dead(relevo)
    await edit(relevo, job.id, email="eva@shop.example")

    with pytest.raises(MisuseError, match="was changed meanwhile"):
        await relevo.desk.edit(
            job.id, ANN, payload=job.payload, whole=True, seen=job.payload, note="older"
        )
    await relevo.desk.edit(job.id, ANN, priority="high", seen=job.payload)

    assert payload_of(await relevo.desk.job(job.id))["email"] == "eva@shop.example"


async def test_a_job_whose_editor_has_died_can_be_edited_soon(
    start: Start, store: Store, clock: ManualClock
) -> None:
    relevo = start(Shop().app())
    job = await dead(relevo)
    await store.remember([Note(kind=EDITING, name=f"job/{job.id}", value=b"{}", ttl=HELD)])

    clock.advance("11s")
    await edit(relevo, job.id, email="eva@shop.example")


async def test_a_payload_that_no_longer_fits_the_key_is_told(start: Start) -> None:
    relevo = start(Shop().app())
    job = await dead(relevo)

    edited = await edit(relevo, job.id, order="A-78")

    assert (edited.key, edited.key_now) == ("ship:A-77", "ship:A-78")
    assert "ship:A-78" in edited.warning
    assert (await relevo.desk.job(job.id)).key == "ship:A-77"


async def test_edits_are_taken_back_one_after_another(start: Start) -> None:
    relevo = start(Shop().app())
    job, other = await dead(relevo), await dead(relevo, order="B-1")
    desk = relevo.desk
    await edit(relevo, other.id, email="other@shop.example")
    await edit(relevo, job.id, email="one@shop.example")
    await desk.edit(job.id, ANN, payload='{"email":"two@shop.example"}', attempts=9)

    assert [change.fields for change in await desk.edits(job.id)] == [["email", "attempts"]]
    back = await desk.undo_edit(job.id, ANN, "wrong")
    assert (payload_of(back)["email"], back.attempts) == ("one@shop.example", 1)
    back = await desk.undo_edit(job.id, ANN)
    assert (back.payload, back.undo_until) == (job.payload, None)
    with pytest.raises(NotFoundError, match="no edit to take back"):
        await desk.undo_edit(job.id, ANN)

    assert payload_of(await desk.job(other.id))["email"] == "other@shop.example"
    rows, _ = await desk.audits(target=job.id)
    assert [row.verb for row in rows] == ["edit"] * 4
    assert "undo of the edit of" in rows[1].note and rows[1].note.endswith("wrong")


async def test_an_edit_is_not_taken_back_once_the_job_runs_or_is_over(start: Start) -> None:
    shop = Shop()
    relevo = start(shop.app())
    job = await dead(relevo)
    await edit(relevo, job.id, email="ana@shop.example")
    await relevo.desk.retry([job.id], ANN)
    await drain(relevo)

    with pytest.raises(MisuseError, match="is done"):
        await relevo.desk.undo_edit(job.id, ANN)
    with pytest.raises(MisuseError, match="is done"):
        await edit(relevo, job.id, email="eva@shop.example")
    assert [change.who for change in await relevo.desk.edits(job.id)] == ["ann"]


async def test_what_was_before_is_kept_for_a_day(start: Start, clock: ManualClock) -> None:
    relevo = start(Shop().app())
    job = await dead(relevo, email=CANARY)
    await edit(relevo, job.id, email="eva@shop.example")

    clock.advance("25h")

    with pytest.raises(NotFoundError, match="no edit to take back"):
        await relevo.desk.undo_edit(job.id, ANN)


async def test_what_was_before_is_sealed_where_payloads_are(start: Start, store: Store) -> None:
    relevo = start(Shop().app(), new_key())
    job = await dead(relevo, email=CANARY)
    await edit(relevo, job.id, email="canary-eva@shop.example")

    [change] = await relevo.desk.edits(job.id)
    assert change.holds(CANARY)
    assert all(is_sealed(note.value) for note in await store.notes(EDITS))
    back = await relevo.desk.undo_edit(job.id, ANN)
    assert payload_of(back)["email"] == CANARY


async def test_who_asks_to_be_forgotten_is_forgotten_in_what_was_before(
    start: Start, store: Store
) -> None:
    relevo = start(Shop().app())
    job, other = await dead(relevo, email=CANARY), await dead(relevo, order="B-1")
    await edit(relevo, job.id, email="eva")
    await edit(relevo, other.id, email="olaf")
    desk: Desk = relevo.desk

    found = await desk.forget(ANN, text=CANARY, note="asked for it")

    assert found.jobs == {QUEUE: 1}
    assert [note.name.partition("/")[0] for note in await store.notes(EDITS)] == [other.id]
    assert await mentions(store, CANARY) == 0
    assert (await desk.jobs(Filter(key="ship:A-77"))).jobs == []
