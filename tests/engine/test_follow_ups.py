"""What a run starts, it starts once: children, events and flows of runs that are repeated."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from relevo import (
    App,
    Command,
    Context,
    Delivery,
    Event,
    Flow,
    MisuseError,
    Poll,
    Relevo,
    Retry,
    SealKeys,
    Snooze,
    State,
    StoreUnavailable,
    Verdict,
    constant,
    sources,
)
from relevo.desk import DeliveryQuery, EffectsRepeated, Person, Role
from relevo.intake import Intake
from relevo.job import NewJob, Receipt
from relevo.sealing import new_key
from relevo.store import By, DeliveryState, Filter, QueueMode, Store
from relevo.testing import ManualClock, deliver, drain, enqueued
from tests.conformance.fresh import SQL_STORES

ANN = Person("ann", Role.ADMIN)
FAST = {"attempts": 10, "backoff": constant("1s")}

Start = Callable[..., Relevo]


class Parent(Command, queue="test:family:parent", timeout="2s", **FAST):
    number: int = 1


class Child(Command, queue="test:family:child", **FAST):
    name: str


class Brief(Command, queue="test:family:brief", keep="0s", **FAST):
    name: str


class Keyed(Command, queue="test:family:keyed", key="{name}", unique="unfinished", **FAST):
    name: str
    said: str = ""


class Row(Command, queue="test:family:row", **FAST):
    number: int


class Born(Event, name="test.born"):
    number: int


class Nursery:
    """A parent with a body of the test's, and children that are counted, with their keys."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()
        self.keys: dict[str, set[str]] = {}
        self.parents = 0
        self.receipts: list[list[str]] = []

    def app(self, parent: Callable[..., Any]) -> App:
        async def child(order: Child, ctx: Context) -> None:
            await self.note(ctx, order.name)

        async def brief(order: Brief, ctx: Context) -> None:
            await self.note(ctx, order.name)

        async def keyed(order: Keyed, ctx: Context) -> None:
            await self.note(ctx, f"{order.name}{order.said}")

        async def row(order: Row, ctx: Context) -> None:
            await self.note(ctx, "row")

        app = App("test", workers=[parent, child, brief, keyed, row])

        @app.listener
        async def left(fact: Born, ctx: Context) -> None:
            await self.note(ctx, "left")

        @app.listener
        async def right(fact: Born, ctx: Context) -> None:
            await self.note(ctx, "right")

        return app

    async def note(self, ctx: Context, name: str) -> None:
        async def call(key: str) -> str:
            self.keys.setdefault(name, set()).add(key)
            return "done"

        self.runs[name] += 1
        await ctx.once("call", call)

    @property
    def effects(self) -> dict[str, int]:
        return {name: len(keys) for name, keys in self.keys.items()}


async def test_a_run_that_fails_asks_again_and_is_late_starts_nothing_twice(start: Start) -> None:
    nursery = Nursery()

    async def parent(order: Parent, ctx: Context) -> Any:
        got = [await ctx.enqueue(Child("same")), await ctx.enqueue(Child("same"))]
        born = await ctx.publish(Born(1))
        got += await ctx.enqueue_many(Row(number) for number in range(250))
        flow = Flow("two")
        pieces = [flow.add(Child(name), name=name) for name in ("first", "second")]
        flow.add(Child("whole"), name="whole", after=pieces)
        started = await ctx.start(flow)
        other = Flow("keyed")
        other.add(Child("alone"), name="alone")
        joined = await ctx.start(other, key="k")
        ids = [receipt.id for receipt in got] + [born.id]
        nursery.receipts.append([*ids, *started.jobs.values(), *joined.jobs.values()])
        match ctx.attempt:
            case 1:
                raise ValueError("at the end")
            case 2:
                return Retry("not yet", timedelta(seconds=1))
            case 3:
                await asyncio.sleep(60)
        return None

    relevo = start(nursery.app(parent))
    await relevo.open()
    await relevo.enqueue(Parent())
    await drain(relevo, skip_waits=True, timeout="60s")

    assert len(nursery.receipts) == 4
    assert all(ids == nursery.receipts[0] for ids in nursery.receipts)
    once = {"left": 1, "right": 1, "first": 1, "second": 1, "whole": 1, "alone": 1}
    assert nursery.effects == {"same": 2, "row": 250, **once}
    assert nursery.runs == {"same": 2, "row": 250, **once}


async def test_a_follow_up_is_known_whatever_became_of_it(start: Start, clock: ManualClock) -> None:
    """Kept for no time, joined to another's job, pruned, erased: the receipt is the first one's."""
    nursery = Nursery()
    told: list[list[Receipt]] = []

    async def parent(order: Parent, ctx: Context) -> Any:
        asked = (Brief("brief"), Keyed("key", "mine"), Child("kept"))
        told.append([await ctx.enqueue(each) for each in asked])
        return Retry("again", timedelta(days=20)) if ctx.attempt < 4 else None

    relevo = start(nursery.app(parent))
    await relevo.open()
    others = await relevo.enqueue(Keyed("key", "other"), delay="1h")
    await relevo.enqueue(Parent())
    await drain(relevo)
    assert told[0][1].id == others.id
    clock.advance("2h")
    await drain(relevo)
    assert nursery.runs == {"brief": 1, "keyother": 1, "kept": 1}
    for again in (1, 2, 3):
        clock.advance("21d")
        await relevo.store.prune(dead_keep=90 * 86_400_000)
        if again == 2:
            ids = [receipt.id for receipt in told[0]]
            await relevo.store.erase(ids, (), By("ann"), act="forget")
        await drain(relevo)
        assert [receipt.id for receipt in told[again]] == [receipt.id for receipt in told[0]]
        assert {receipt.verdict for receipt in told[again]} == {Verdict.DONE}

    assert nursery.runs == {"brief": 1, "keyother": 1, "kept": 1}


async def test_each_turn_of_a_snoozing_job_starts_its_own(start: Start) -> None:
    nursery = Nursery()

    async def parent(order: Parent, ctx: Context) -> Any:
        nursery.parents += 1
        await ctx.enqueue(Child("turn"))
        if nursery.parents % 2:
            raise ValueError("every turn fails once")
        return Snooze("1s") if ctx.turn < 4 else None

    relevo = start(nursery.app(parent))
    await relevo.open()
    await relevo.enqueue(Parent())
    await drain(relevo, skip_waits=True)

    assert nursery.parents == 10
    assert nursery.effects == {"turn": 5}


async def test_an_effect_of_a_poller_belongs_to_its_turn(start: Start) -> None:
    nursery = Nursery()
    looks: list[str] = []

    async def parent(order: Parent, ctx: Context) -> None: ...

    async def look(key: str) -> int:
        looks.append(key)
        return len(looks)

    app = nursery.app(parent)

    @app.poller("all", every="10s")
    async def pull(poll: Poll, ctx: Context) -> None:
        seen = await ctx.once("look", look)
        await ctx.enqueue(Child("turn"))
        nursery.parents += 1
        if nursery.parents % 2:
            raise ValueError("every turn fails once")
        poll.cursor = seen

    relevo = start(app)
    await relevo.open()
    await drain(relevo, skip_waits=True, until=lambda: nursery.parents == 10)
    await drain(relevo)

    assert len(looks) == len(set(looks)) == 5
    assert nursery.effects == {"turn": 5}


async def test_what_was_asked_again_after_a_lost_answer_is_one(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that catches the store's error and asks once more means the same child."""
    nursery = Nursery()

    async def parent(order: Parent, ctx: Context) -> Any:
        try:
            await ctx.enqueue(Child("one"))
        except StoreUnavailable:
            await ctx.enqueue(Child("one"))
        try:
            await ctx.enqueue_many([Row(1), Row(2)])
        except StoreUnavailable:
            await ctx.enqueue_many([Row(1), Row(2)])
        return Retry("again", timedelta(seconds=1)) if ctx.attempt < 3 else None

    relevo = start(nursery.app(parent))
    await relevo.open()
    await relevo.enqueue(Parent())
    calls = Counter[str]()
    put = relevo._inserts  # pyright: ignore[reportPrivateUsage]
    insert = relevo.store.insert

    async def unheard(jobs: Sequence[NewJob]) -> Sequence[Receipt]:
        answer = await insert(jobs)
        calls["all"] += 1
        if calls["all"] in (1, 3):
            raise StoreUnavailable("the answer was lost")
        return answer

    monkeypatch.setattr(put, "_flush", unheard)
    await drain(relevo, skip_waits=True)

    assert calls["all"] > 4
    assert nursery.effects == {"one": 1, "row": 2}


@pytest.mark.parametrize("store_name", SQL_STORES)
async def test_what_a_rollback_took_back_is_asked_for_again_as_the_same(start: Start) -> None:
    nursery = Nursery()

    async def parent(order: Parent, ctx: Context) -> Any:
        relevo = engine[0]
        for attempt in range(2) if ctx.attempt == 1 else (1,):
            try:
                async with relevo.transaction() as session:
                    await relevo.enqueue(Child("one"), tx=session)
                    try:
                        async with session.begin_nested():
                            await relevo.enqueue(Child("inner"), tx=session)
                            if ctx.attempt == 1:
                                raise LookupError
                    except LookupError:
                        await relevo.enqueue(Child("inner"), tx=session)
                    if attempt == 0:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                pass
        return Retry("again", timedelta(seconds=1)) if ctx.attempt < 3 else None

    relevo = start(nursery.app(parent))
    engine = [relevo]
    await relevo.open()
    await relevo.enqueue(Parent())
    await drain(relevo, skip_waits=True)

    assert nursery.effects == {"one": 1, "inner": 1}


# Webhooks and replays


class Hook:
    """A webhook whose orders the test names, in the order it names them."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)

    def on(self, app: App) -> App:
        @app.webhook("/in", verify=sources.hmac_header("X-Signature", secrets=["a" * 32]), key=_key)
        async def take(delivery: Delivery, ctx: Intake) -> None:
            for name in self.names:
                await ctx.enqueue(Child(name))

        return app


def _key(delivery: Delivery) -> str:
    return str(delivery.json["id"])


class Grand(Command, queue="test:family:grand", **FAST):
    name: str


def family(nursery: Nursery) -> App:
    """A delivery makes a child, that a grandchild and a flow; each has an effect."""

    async def child(order: Child, ctx: Context) -> None:
        await nursery.note(ctx, f"child:{order.name}")
        await ctx.enqueue(Grand(order.name))
        flow = Flow("family")
        leaf = flow.add(Grand(f"leaf:{order.name}"), name="leaf")
        flow.add(Grand(f"top:{order.name}"), name="top", after=[leaf])
        await ctx.start(flow)

    async def grand(order: Grand, ctx: Context) -> None:
        await nursery.note(ctx, order.name)

    return App("test", workers=[child, grand])


NAMES = ["child:a", "a", "leaf:a", "top:a"]


async def only_delivery(relevo: Relevo) -> str:
    from relevo.store import Letterbox

    found, _ = await relevo.store.deliveries(Letterbox())
    return min(found, key=lambda kept: kept.generation).id


async def test_a_replay_runs_all_jobs_anew_and_finds_their_effects(start: Start) -> None:
    """F54"""
    nursery = Nursery()
    relevo = start(Hook("a").on(family(nursery)))
    await relevo.open()
    assert (await deliver(relevo, "/in", json={"id": "evt_1"})).status == 200
    await drain(relevo)
    assert nursery.effects == dict.fromkeys(NAMES, 1)
    came = await only_delivery(relevo)
    ledger, _ = await relevo.store.effects()
    made = sorted((one.name, one.key, one.updated_at) for one in ledger)

    async def listed(id: str) -> list[tuple[str, str, int]]:
        """F54: the dry run tells what a replay would find, or make twice."""
        dry = await relevo.desk.replay(id, ANN, relevo.handling, dry_run=True)
        assert dry.is_dry
        return sorted((one.name, one.key, one.confirmed_at) for one in dry.effects)

    for again in (2, 3):
        assert await listed(came) == made
        replay = await relevo.desk.replay(came, ANN, relevo.handling)
        assert await listed(replay.id) == made
        assert not replay.effects
        await drain(relevo)
        assert nursery.runs == dict.fromkeys(NAMES, again)
        assert nursery.effects == dict.fromkeys(NAMES, 1)

    await relevo.desk.replay(came, ANN, relevo.handling, repeat_effects=True)
    await drain(relevo)
    assert nursery.runs == dict.fromkeys(NAMES, 4)
    assert nursery.effects == dict.fromkeys(NAMES, 2)
    assert await listed(came) == made, "what was made again was made under other ids"

    await relevo.desk.replay(came, ANN, relevo.handling)
    await drain(relevo)
    assert nursery.effects == dict.fromkeys(NAMES, 2)
    story = await relevo.desk.trace("evt_1")
    assert len(story.jobs) == 5 * len(NAMES)
    assert len(story.effects) == 2 * len(NAMES)  # each is told once, whatever jobs share it


async def test_a_replay_that_would_not_find_effects_is_refused_unless_asked_for(
    start: Start,
) -> None:
    """F54: today's code orders another payload, of which no effect is known."""
    nursery = Nursery()
    hook = Hook("a", "b")
    relevo = start(hook.on(family(nursery)))
    await relevo.open()
    assert (await deliver(relevo, "/in", json={"id": "evt_1"})).status == 200
    await drain(relevo)
    once = dict(nursery.effects)
    came = await only_delivery(relevo)

    hook.names = ["a", "other"]
    dry = await relevo.desk.replay(came, ANN, relevo.handling, dry_run=True)
    assert "a job of test:family:child with another payload" in dry.refused
    assert "'call' of test:family:grand" in dry.refused, "what came of it deeper, too"
    with pytest.raises(EffectsRepeated, match="would be made twice: 'call' of test:family:child"):
        await relevo.desk.replay(came, ANN, relevo.handling)
    many = DeliveryQuery(state=DeliveryState.ACCEPTED)
    done = await relevo.desk.replay_where(many, ANN, relevo.handling)
    assert (done.handled, done.skipped, len(done.skips)) == (0, 1, 1)
    await drain(relevo)
    assert nursery.effects == once
    assert len((await relevo.desk.trace("evt_1")).jobs) == 2 * len(NAMES), "nothing was kept"

    await relevo.desk.replay(came, ANN, relevo.handling, repeat_effects=True)
    await drain(relevo)
    assert nursery.effects["child:other"] == 1
    assert nursery.effects["child:a"] == 2

    hook.names = ["b", "a"]
    dry = await relevo.desk.replay(came, ANN, relevo.handling, dry_run=True)
    assert not dry.refused
    hook.names = ["b"]
    await relevo.desk.replay(came, ANN, relevo.handling)  # fewer of them repeat nothing
    await drain(relevo)
    assert nursery.effects["child:b"] == 1


async def test_replays_of_many_tell_and_repeat_their_effects(start: Start) -> None:
    """F54: the dry run counts what is confirmed, at every depth."""
    nursery = Nursery()
    relevo = start(Hook("a").on(family(nursery)))
    await relevo.open()
    query = DeliveryQuery(state=DeliveryState.ACCEPTED)

    async def told() -> dict[str, tuple[int, int]]:
        dry = await relevo.desk.replay_where(query, ANN, relevo.handling, dry_run=True)
        assert (dry.matched, dry.effects_of) == (3, 3)
        assert {one.name for one in dry.effects} == {"call"}
        return {one.queue: (one.count, one.deliveries) for one in dry.effects}

    for id in ("evt_1", "evt_2", "evt_3"):
        assert (await deliver(relevo, "/in", json={"id": id})).status == 200
    await drain(relevo)
    confirmed = {"test:family:child": (3, 3), "test:family:grand": (9, 3)}
    assert await told() == confirmed

    done = await relevo.desk.replay_where(query, ANN, relevo.handling, limit=2)
    await drain(relevo)
    assert done.handled == 2
    assert nursery.effects == dict.fromkeys(NAMES, 3)
    assert await told() == confirmed

    done = await relevo.desk.replay_where(query, ANN, relevo.handling, repeat_effects=True)
    await drain(relevo)
    assert done.handled == 3
    assert nursery.effects == dict.fromkeys(NAMES, 6)
    assert await told() == confirmed
    rows, _ = await relevo.store.audits(limit=1)
    assert rows[0].note.startswith("effects repeated; state accepted")


async def test_a_replay_finds_effects_after_the_keys_were_changed(
    store: Store, clock: ManualClock
) -> None:
    old, new = new_key(), new_key()
    nursery = Nursery()
    first = Relevo(store, apps=[Hook("a").on(family(nursery))], clock=clock, seal=SealKeys(old))
    await first.open()
    assert (await deliver(first, "/in", json={"id": 1})).status == 200
    await drain(first)
    came = await only_delivery(first)
    await first.rest()

    seal = SealKeys(new, old)
    then = Relevo(store, apps=[Hook("a").on(family(nursery))], clock=clock, seal=seal)
    await then.open()
    await then.desk.replay(came, ANN, then.handling)
    await drain(then)
    await then.rest()

    assert nursery.runs == dict.fromkeys(NAMES, 2)
    assert nursery.effects == dict.fromkeys(NAMES, 1)


async def test_a_key_that_is_added_between_two_runs_changes_no_follow_up(
    store: Store, clock: ManualClock
) -> None:
    nursery = Nursery()
    old = new_key()

    async def parent(order: Parent, ctx: Context) -> Any:
        await ctx.enqueue(Child("sealed"))
        return Retry("again", timedelta(seconds=1)) if ctx.attempt == 1 else None

    first = Relevo(store, apps=[nursery.app(parent)], clock=clock, seal=SealKeys(old))
    await first.open()
    await first.enqueue(Parent())
    await drain(first)
    await first.rest()
    then = Relevo(store, apps=[nursery.app(parent)], clock=clock, seal=SealKeys(new_key(), old))
    await then.open()
    await drain(then, skip_waits=True)
    await then.rest()

    assert nursery.effects == {"sealed": 1}


async def test_the_jobs_of_a_delivery_are_known_by_what_they_are(start: Start) -> None:
    """Not by their place: mended code may enqueue in another order."""
    hook = Hook("a", "b", "a")
    relevo = start(hook.on(family(Nursery())))
    await relevo.open()
    assert (await deliver(relevo, "/in", json={"id": 1})).status == 200
    [kept] = await relevo.store.delivery([await only_delivery(relevo)])
    assert kept is not None
    door = relevo.receiver.doors["/in"]
    sent = Delivery(
        id=kept.id, path="/in", method="POST", query="", body=kept.body,
        received_at=relevo.clock.now(),
    )  # fmt: skip

    async def ids() -> Counter[tuple[str, bytes]]:
        taken = await relevo.receiver.rehearse(door, sent, 0)
        return Counter((job.id, job.payload) for job in taken.jobs)

    before = await ids()
    hook.names = ["a", "a", "b"]
    assert await ids() == before
    hook.names = ["b", "c", "a", "a"]
    assert before <= await ids()
    jobs = {job.id for job in (await relevo.store.page(Filter(kind="Child"))).jobs}
    assert {id for id, _ in before} == jobs


async def test_a_tick_that_is_tried_again_in_another_order_orders_once(
    start: Start, clock: ManualClock
) -> None:
    nursery = Nursery()

    async def parent(order: Parent) -> None: ...

    app = nursery.app(parent)
    tries: list[int] = []

    @app.schedule("0 6 * * *")
    def morning() -> list[Command]:
        tries.append(1)
        rows: list[Command] = [Row(1), Row(2), Row(2), Child("tick")]
        return rows if len(tries) == 1 else rows[::-1]

    relevo = start(app)
    await relevo.open()
    await drain(relevo)
    real, asked = relevo.enqueue_for, Counter[str]()

    async def breaks(follow_ups: Any, order: Command) -> Receipt:
        asked["all"] += 1
        if asked["all"] == 4:
            raise StoreUnavailable("away for a moment")
        return await real(follow_ups, order)

    relevo.enqueue_for = breaks  # pyright: ignore[reportAttributeAccessIssue]
    clock.advance_to(6, 1)
    await drain(relevo, skip_waits=True, until=lambda: nursery.runs.total() >= 4)
    await drain(relevo)

    assert len(tries) == 2
    assert nursery.effects == {"row": 3, "tick": 1}
    assert await enqueued(relevo, Child) == [Child("tick")]


async def test_a_flow_with_a_key_that_a_repeated_run_starts_is_the_first_one(
    start: Start,
) -> None:
    """Also when that has ended meanwhile, and when another's has taken the key since."""
    nursery = Nursery()
    begun: list[str] = []

    async def parent(order: Parent, ctx: Context) -> Any:
        flow = Flow("nightly")
        flow.add(Child("flow"), name="one")
        begun.append((await ctx.start(flow, key="k")).id)
        return Retry("again", timedelta(hours=1)) if ctx.attempt < 3 else None

    relevo = start(nursery.app(parent))
    await relevo.open()
    receipt = await relevo.enqueue(Parent())
    await drain(relevo)
    theirs = Flow("nightly")
    theirs.add(Child("theirs"), name="one")
    other = await relevo.start(theirs, key="k")
    await drain(relevo, skip_waits=True)

    assert other.id not in begun
    assert len(begun) == 3
    assert len(set(begun)) == 1
    assert nursery.effects == {"flow": 1, "theirs": 1}
    [job] = await relevo.store.find([receipt.id])
    assert job is not None
    assert job.state is State.DONE


async def test_a_flow_that_two_starters_died_over_is_stored_by_the_repeated_run(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each had noted its id and stored nothing, and the repeated run was told it is on its way."""
    nursery = Nursery()
    begun: list[str] = []

    def flow() -> Flow:
        made = Flow("nightly")
        made.add(Child("flow"), name="one")
        return made

    async def die(*_: object) -> None:
        raise RuntimeError("the process dies here")

    async def parent(order: Parent, ctx: Context) -> None:
        if ctx.attempt == 1:
            with monkeypatch.context() as patch:
                patch.setattr(relevo, "_start", die)
                await ctx.start(flow(), key="k")
        begun.append((await ctx.start(flow(), key="k")).id)

    relevo = start(nursery.app(parent))
    await relevo.open()
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(relevo, "_start", die)
        await relevo.start(flow(), key="k")
    await relevo.enqueue(Parent())
    await drain(relevo, skip_waits=True)

    assert len(begun) == 1
    assert nursery.runs == {"flow": 1}


async def test_a_flow_that_a_run_has_joined_is_not_stored_again_once_it_is_forgotten(
    start: Start, clock: ManualClock
) -> None:
    nursery = Nursery()
    begun: list[str] = []

    def flow() -> Flow:
        made = Flow("nightly")
        made.add(Brief("flow"), name="one")
        return made

    async def parent(order: Parent, ctx: Context) -> Any:
        begun.append((await ctx.start(flow(), key="k")).id)
        return Retry("again", timedelta(hours=3)) if ctx.attempt == 1 else None

    relevo = start(nursery.app(parent))
    await relevo.open()
    await relevo.enqueue(Parent())
    theirs = await relevo.start(flow(), key="k")
    # Two queues have no order: were the flow to end first, there would be nothing to join.
    await relevo.store.set_mode(["test:family:brief"], QueueMode.PAUSED, By("ann"))
    await drain(relevo, until=lambda: bool(begun))
    await relevo.store.set_mode(["test:family:brief"], QueueMode.OPEN, By("ann"))
    await drain(relevo)
    clock.advance("2h")
    while await relevo.store.prune(dead_keep=relevo.keep_dead // timedelta(milliseconds=1)):
        pass
    assert await relevo.store.find([theirs.jobs["one"]]) == [None]
    await drain(relevo, skip_waits=True)

    assert begun == [theirs.id] * 2
    assert nursery.runs == {"flow": 1}


async def test_a_person_decides_what_a_replay_is_held_for(start: Start) -> None:
    """Its effects stand under its origin, whose job has ended well without them."""
    calls: list[str] = []
    is_mended = False

    async def child(order: Child, ctx: Context) -> str | None:
        async def call(key: str) -> str:
            calls.append(key)
            raise TimeoutError

        return await ctx.once("charge", call) if is_mended else None

    relevo = start(Hook("a").on(App("test", workers=[child])))
    await relevo.open()
    await deliver(relevo, "/in", json={"id": 1})
    await drain(relevo)
    is_mended = True
    replayed = await relevo.desk.replay(await only_delivery(relevo), ANN, relevo.handling)
    await drain(relevo)
    [order] = replayed.orders
    assert (await relevo.desk.job(order.id)).state is State.HELD
    [effect], _ = await relevo.desk.effects(job=order.id)
    assert effect.name == "charge"
    assert [job.id for job in await relevo.desk.askers(effect)] == [order.id]

    assert await relevo.desk.confirm_effect(order.id, "charge", "ch_1", ANN)
    await drain(relevo)

    assert (await relevo.desk.job(order.id)).state is State.DONE
    assert len(calls) == 1


async def test_what_outlives_a_run_takes_nothing_from_the_run_that_repeats_it(start: Start) -> None:
    """Its orders had the ids of those that the repeated run asks for, and one of the two was lost.

    An order through the run itself is refused; one through the engine is an order of its own.
    """
    nursery = Nursery()
    late: list[asyncio.Task[None]] = []
    refused: list[str] = []
    ended = asyncio.Event()

    async def parent(order: Parent, ctx: Context) -> None:
        async def outlives() -> None:
            await ended.wait()
            assert (await relevo.enqueue(Child("same"))).is_new
            flow, effect = Flow("late"), _nothing
            flow.add(Child("flow"), name="one")
            for ask in (
                lambda: ctx.enqueue(Child("same")),
                lambda: ctx.enqueue_many([Child("same")]),
                lambda: ctx.publish(Born(1)),
                lambda: ctx.start(flow),
                lambda: ctx.once("call", effect),
            ):
                with pytest.raises(MisuseError, match="has ended: await what the worker") as found:
                    await ask()
                refused.append(str(found.value))

        if ctx.attempt == 1:
            late.append(asyncio.create_task(outlives()))
            raise ValueError("at the end")
        ended.set()
        await late[0]
        assert (await ctx.enqueue(Child("same"))).is_new

    relevo = start(nursery.app(parent))
    await relevo.enqueue(Parent())
    await drain(relevo, skip_waits=True)
    await late[0]

    assert nursery.runs == {"same": 2}
    assert nursery.effects == {"same": 2}
    assert len(refused) == 5


async def _nothing(key: str) -> None: ...
