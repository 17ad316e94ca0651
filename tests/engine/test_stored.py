"""F53: code and what is stored disagree: jobs wait for code that reads them, and none dies."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import new_class
from typing import Any

import pytest

from relevo import App, Command, Context, Event, Flow, Relevo, SealKeys, State, constant
from relevo.budget import Pace
from relevo.desk import Person, Role
from relevo.errors import DefinitionError, PayloadError, PayloadMismatch
from relevo.ids import new_id
from relevo.job import Job, NewJob
from relevo.message import codec
from relevo.sealing import new_key
from relevo.store import Filter, Store
from relevo.stored import SAMPLE, read_stored
from relevo.testing import ManualClock, drain, enqueued, until, working
from tests.engine.conftest import Start

ANN = Person("ann", Role.ADMIN)
QUEUE = "test:people:greet"
PARK = "payload:Greet"


class Old(Command, queue=QUEUE, name="Greet", attempts=1):
    name: str


class New(Command, queue=QUEUE, name="Greet", attempts=1):
    name: str
    email: str


class Upgraded(Command, queue=QUEUE, name="Greet", attempts=1):
    name: str
    email: str

    @staticmethod
    def upgrade(old: dict[str, Any]) -> dict[str, Any]:
        return {"email": "unknown@example.com", **old}


def app_of(kind: type[Any], seen: list[Any], before: Any = None) -> App:
    async def greet(order: Any) -> dict[str, str]:
        if before is not None:
            await before()
        seen.append(order)
        return {"greeted": order.name}

    greet.__annotations__["order"] = kind
    return App("test", workers=[greet])


async def job_of(relevo: Relevo, id: str) -> Job:
    [job] = await relevo.store.find([id])
    assert job is not None
    return job


async def test_f53_a_payload_that_does_not_fit_is_parked_until_code_reads_it(start: Start) -> None:
    """With attempts=1: no attempt is spent, however often code that cannot read it starts."""
    seen: list[Any] = []
    old, new = start(app_of(Old, [])), start(app_of(New, seen))
    receipt = await old.enqueue(Old("García"))
    other = await new.enqueue(New("Eva", "eva@example.com"))
    await drain(new)
    for _ in range(3):
        async with working(new) as worker:
            await until(lambda at=worker: at.heard_at is not None)

    job = await job_of(new, receipt.id)
    assert (job.state, job.attempt, job.park) == (State.PARKED, 0, PARK)
    assert job.failure is not None
    assert job.failure.type == "PayloadMismatch"
    assert job.failure.message == "the code here cannot read its payload: New.email: is missing"
    assert [line.outcome for line in job.history] == ["parked"], "it was read, not run, again"
    assert (await job_of(new, other.id)).state is State.DONE
    assert seen == [New("Eva", "eva@example.com")]

    told: list[Any] = []
    await drain(start(app_of(Upgraded, told)))
    assert told == [Upgraded("García", "unknown@example.com")]
    job = await job_of(new, receipt.id)
    assert (job.state, job.attempt) == (State.DONE, 1)


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        (b'{"name":"a"}', "email"),
        (b'{"name":5,"email":"x"}', "name"),
        (b'{"name":null,"email":"x"}', "name"),
        (b"{}", "name"),
    ],
)
async def test_the_reason_names_the_first_field(start: Start, payload: bytes, field: str) -> None:
    relevo = start(app_of(New, []))
    id = new_id()
    await relevo.store.insert([NewJob(id=id, queue=QUEUE, kind="Greet", payload=payload)])
    await drain(relevo)

    job = await job_of(relevo, id)
    assert job.state is State.PARKED
    assert job.failure is not None
    assert f"New.{field}: " in job.failure.message


@pytest.mark.parametrize("payload", [b"not JSON", b'{"name":"a"', b"[1]", b'{"name":5,', b"5"])
async def test_what_no_version_reads_is_dead(start: Start, payload: bytes) -> None:
    """Cut off, or no object: such a payload was stored by no command."""
    relevo = start(app_of(Upgraded, []))
    id = new_id()
    await relevo.store.insert([NewJob(id=id, queue=QUEUE, kind="Greet", payload=payload)])
    await drain(relevo)
    assert (await job_of(relevo, id)).state is State.DEAD


class Wave(Command, queue=QUEUE, attempts=1):
    name: str


class Needs(Command, queue=QUEUE, name="Greet", attempts=1):
    """Of an older version still, which reads none of the others."""

    surname: str


async def test_f53_old_and_new_code_side_by_side_lose_and_starve_nothing(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What old workers park after the last new one has started runs there, without a start."""

    def pace(*_: Any, **__: Any) -> Pace:
        return Pace(ensure=0.4)

    monkeypatch.setattr("relevo.worker.pace_within", pace)
    ran: Counter[str] = Counter()

    async def greet(order: Upgraded) -> None:
        await asyncio.sleep(0.002)
        ran[order.name] += 1

    async def wave(order: Wave) -> None:
        await asyncio.sleep(0.002)
        ran[order.name] += 1

    new, old = start(App("test", workers=[greet, wave])), start(app_of(Needs, []))
    async with working(new, concurrency=4) as worker:
        await until(lambda: worker.heard_at is not None)
        async with working(old, concurrency=4):
            ids: list[str] = []
            for part in range(4):
                orders = [Old(f"old {part} {n}") for n in range(25)]
                waves = [Wave(f"wave {part} {n}") for n in range(25)]
                ids += [receipt.id for receipt in await new.enqueue_many([*orders, *waves])]
                await asyncio.sleep(0.2)

        async def is_done() -> bool:
            return all(job and job.state is State.DONE for job in await new.store.find(ids))

        await until(is_done, timeout="20s")
    jobs = [job for job in await new.store.find(ids) if job is not None]
    assert {job.attempt for job in jobs} == {1}
    assert set(ran.values()) == {1}
    assert len(ran) == 200
    for kind in ("Greet", "Wave"):
        parks = [
            sum(line.outcome == "parked" for line in job.history)
            for job in jobs
            if job.kind == kind
        ]
        assert max(parks) > 0, "the old worker took none: nothing was tried"
        assert max(parks) < 10, "jobs went to and fro"


async def test_a_person_who_retries_a_parked_job_learns_the_same_again(start: Start) -> None:
    relevo = start(app_of(New, []))
    receipt = await start(app_of(Old, [])).enqueue(Old("Ana"))
    await drain(relevo)
    assert await relevo.desk.retry([receipt.id], ANN) == [True]
    await drain(relevo)
    job = await job_of(relevo, receipt.id)
    assert (job.state, job.park, job.attempt) == (State.PARKED, PARK, 0)

    seen: list[Any] = []
    mended = start(app_of(New, seen))
    await mended.desk.edit(receipt.id, ANN, payload='{"name":"Ana","email":"a@example.com"}')
    await drain(mended)
    assert seen == [New("Ana", "a@example.com")]


# upgrade


async def test_f53_upgrade_reads_what_older_code_stored_and_what_today_s_stores(
    start: Start,
) -> None:
    seen: list[Any] = []
    old, new = start(app_of(Old, [])), start(app_of(Upgraded, seen))
    await old.enqueue(Old("Ana"))
    await new.enqueue(Upgraded("Eva", "eva@example.com"))
    await drain(new)
    assert sorted(order.email for order in seen) == ["eva@example.com", "unknown@example.com"]
    assert {order.name for order in await enqueued(new, Upgraded)} == {"Ana", "Eva"}


async def test_f53_upgrade_of_an_event_and_of_flows_nodes(start: Start) -> None:
    class Paid(Event, name="order.paid"):
        order: str

    class PaidNow(Event, name="order.paid"):
        order_id: int

        @classmethod
        def upgrade(cls, old: dict[str, Any]) -> dict[str, Any]:
            if "order" in old:
                old["order_id"] = int(old.pop("order"))
            return old

    class Sum(Command, queue="test:people:sum"):
        start: int

        @staticmethod
        def upgrade(old: dict[str, Any]) -> dict[str, Any]:
            return {"start": old.get("start", 0)}

    class SumBefore(Command, queue="test:people:sum", name="Sum"):
        pass

    seen: list[Any] = []

    async def ship(event: PaidNow) -> None:
        seen.append(event.order_id)

    async def ship_before(event: Paid) -> None:
        raise AssertionError("only its queue is needed")

    async def total(order: Sum, ctx: Context) -> int:
        results = await ctx.results()
        seen.append(len(results))
        return order.start

    async def greet(order: Upgraded) -> str:
        return order.email

    before = start(App("test", listeners=[ship_before]))
    await before.publish(Paid("17"))
    flow = Flow("sum")
    child = flow.add(Old("Ana"), name="child")
    flow.add(SumBefore(), name="parent", after=[child])
    await before.start(flow)

    ship.__name__ = "ship_before"
    relevo = start(App("test", workers=[total, greet], listeners=[ship]))
    await drain(relevo)
    assert sorted(seen) == [1, 17]


def _misses(old: dict[str, Any]) -> Any:
    return old["nothing"]


def _gives_none(old: dict[str, Any]) -> Any:
    return None


def _gives_an_object(old: dict[str, Any]) -> Any:
    return {"name": object()}


def _gives_too_little(old: dict[str, Any]) -> Any:
    return {"name": old["name"]}


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        (_misses, "upgrade() raised KeyError at test_stored.py:"),
        (_gives_none, "upgrade() gave NoneType instead of the payload"),
        (_gives_an_object, "upgrade() gave a dict that is not JSON"),
        (_gives_too_little, "Broken.email: is missing"),
    ],
)
async def test_an_upgrade_that_fails_parks_the_job(start: Start, gives: Any, said: str) -> None:
    class Broken(Command, queue=QUEUE, name="Greet"):
        name: str
        email: str
        upgrade = staticmethod(gives)

    receipt = await start(app_of(Old, [])).enqueue(Old("García"))
    relevo = start(app_of(Broken, []))
    await drain(relevo)
    job = await job_of(relevo, receipt.id)
    assert (job.state, job.park) == (State.PARKED, PARK)
    assert job.failure is not None
    assert said in job.failure.message
    assert "García" not in job.failure.message


async def test_a_class_that_raises_anything_of_a_payload_parks_the_job(start: Start) -> None:
    class Strict(Command, queue=QUEUE, name="Greet"):
        name: str

        def __post_init__(self) -> None:
            if self.name == "García":
                raise RuntimeError("not him")

    receipt = await start(app_of(Old, [])).enqueue(Old("García"))
    relevo = start(app_of(Strict, []))
    await drain(relevo)
    job = await job_of(relevo, receipt.id)
    assert job.state is State.PARKED
    assert job.failure is not None
    assert "refused by its own class (RuntimeError" in job.failure.message


async def test_f53_sealed_payloads_are_opened_before_they_are_upgraded(
    store: Store, clock: ManualClock
) -> None:
    first, second = new_key(), new_key()

    def engine(app: App, *keys: str) -> Relevo:
        return Relevo(store, apps=[app], clock=clock, seal=SealKeys(*keys))

    seen: list[Any] = []
    old, new = engine(app_of(Old, []), first), engine(app_of(New, []), first)
    upgraded, other = engine(app_of(Upgraded, seen), first), engine(app_of(Upgraded, []), second)
    receipt = await old.enqueue(Old("Ana"))
    await drain(new)
    assert (await job_of(new, receipt.id)).park == PARK
    [told] = await read_stored(other.store, other.bindings)
    assert (told.unreadable, told.field) == (1, "")
    assert "it is sealed with the key called" in told.error
    await other.release_known()
    assert (await job_of(new, receipt.id)).state is State.PARKED

    await drain(upgraded)
    assert seen == [Upgraded("Ana", "unknown@example.com")]
    for one in (old, new, upgraded, other):
        await one.rest()


def refused(upgrade: Any) -> str:
    with pytest.raises(DefinitionError) as caught:
        body = {"__annotations__": {"name": str}, "upgrade": upgrade}
        new_class("Wrong", (Command,), {"queue": QUEUE}, lambda space: space.update(body))
    return str(caught.value)


def test_a_wrong_upgrade_is_refused_where_it_stands() -> None:
    def method(self: Any) -> None: ...
    async def later(old: Any) -> None: ...
    def two(old: Any, version: int) -> None: ...

    assert "before there is a message: write `@staticmethod`" in refused(method)
    assert "Wrong.upgrade is an `async def`" in refused(staticmethod(later))
    assert "the stored payload alone (missing" in refused(staticmethod(two))
    assert "write `@staticmethod`" in refused({"name": "x"})


def test_a_field_may_be_called_upgrade() -> None:
    class SetPlan(Command, queue=QUEUE):
        upgrade: bool = False

    assert codec(SetPlan).decode(b'{"upgrade":true}') == SetPlan(upgrade=True)


def test_upgrade_is_not_asked_about_what_is_enqueued() -> None:
    class Bounded(Command, queue=QUEUE):
        name: str

        def __post_init__(self) -> None:
            if not self.name:
                raise ValueError("empty")

        @staticmethod
        def upgrade(old: dict[str, Any]) -> dict[str, Any]:
            raise AssertionError("nothing was stored")

    assert codec(Bounded).encode(Bounded("a")) == b'{"name":"a"}'
    with pytest.raises(PayloadMismatch):
        codec(Bounded).decode(b'{"name":"a"}')
    with pytest.raises(PayloadError) as caught:
        codec(Bounded).decode(b'"a"')
    assert not isinstance(caught.value, PayloadMismatch)


# what waits


async def test_f53_what_waits_is_read_by_the_code_here(start: Start) -> None:
    """Counts by state, the first bad field of the oldest one, and the ids, by command."""

    class Keep(Command, queue="test:people:keep"):
        name: str

    class Elsewhere(Command, queue="other:people:keep"):
        name: str

    old = start(app_of(Old, []))
    ids = [(await old.enqueue(Old(f"{n}"))).id for n in range(SAMPLE + 5)]
    later = (await old.enqueue(Old("later"), delay="1h")).id
    flow = Flow("f")
    flow.add(Old("b"), name="b", after=[flow.add(Keep("a"), name="a")])
    waiting = (await old.start(flow)).jobs["b"]
    gone = (await old.enqueue(Wave("Eva"))).id
    await old.enqueue(Elsewhere("not ours"))
    await old.store.cancel([ids[0]], ANN.acts("cancel", ""))

    async def keep(order: Keep) -> None: ...

    app = app_of(New, [])
    relevo = start(App("test", workers=[*[b.function for b in app.workers], keep]))
    seen: list[int] = []
    kept, greet, wave = sorted(
        await read_stored(relevo.store, relevo.bindings, progress=seen.append),
        key=lambda each: "KGW".index(each.kind[0]),
    )
    assert (kept.waiting, kept.unreadable, kept.jobs) == (1, 0, [])
    assert (greet.waiting, greet.unreadable) == (SAMPLE + 6, SAMPLE + 6)
    assert greet.states == {"ready": SAMPLE + 4, "scheduled": 1, "waiting": 1}
    assert (greet.field, greet.error) == ("email", "New.email: is missing")
    assert greet.jobs == ids[1 : SAMPLE + 1]
    assert (wave.unreadable, wave.jobs) == (1, [gone])
    assert wave.error == f"no worker here carries out Wave of {QUEUE}"
    assert seen[-1] == SAMPLE + 8

    # As it was, after they were parked, and nothing when code reads them.
    await drain(relevo)
    again = {one.kind: one for one in await read_stored(relevo.store, relevo.bindings)}
    assert again["Greet"].states == {"parked": SAMPLE + 5, "scheduled": 1}
    assert again["Greet"].jobs == greet.jobs
    reading = start(app_of(Upgraded, []))
    [told] = [one for one in await read_stored(old.store, reading.bindings) if one.kind == "Greet"]
    assert (told.waiting, told.unreadable) == (SAMPLE + 6, 0)
    assert {later, waiting} <= {job.id for job in (await old.store.page(Filter(kind="Greet"))).jobs}


async def test_a_job_that_keeps_its_attempts_when_parked(start: Start) -> None:
    """One that failed before the deploy has spent what it had spent, and no more."""

    class Fails(
        Command, queue=QUEUE, name="Greet", attempts=900, backoff=constant("1ms", jitter=0)
    ):
        name: str

    async def boom() -> None:
        raise RuntimeError("boom")

    old, new = start(app_of(Fails, [], boom)), start(app_of(New, []))
    receipt = await old.enqueue(Fails("Ana"))
    await drain(old, until=lambda: _has_failed(old, receipt.id))
    await drain(new, skip_waits=True)
    job = await job_of(new, receipt.id)
    spent = sum(line.outcome == "retry" for line in job.history)
    assert (job.state, job.attempt) == (State.PARKED, spent)
    assert spent > 0


async def _has_failed(relevo: Relevo, id: str) -> bool:
    return bool((await job_of(relevo, id)).history)
