"""Flows, breakers, pollers and schedules as a person at the desk sees and changes them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from relevo import App, Command, Flow, Relevo
from relevo.desk import Desk, FlowView, Person, Role
from relevo.errors import MisuseError, NotAllowed, NotFoundError
from relevo.ids import moment_of, new_id
from relevo.job import After, State
from relevo.outcome import behind
from relevo.poller import Poll
from relevo.store import Filter, Store
from relevo.testing import ManualClock, drain, enqueued
from tests.conformance.fresh import STORES
from tests.conformance.steps import add, audit_of, end, put, state, states, take
from tests.conformance.steps import job as new_job

ANN = Person("ann", Role.ADMIN)
VERA = Person("vera", Role.VIEWER)

every_store = pytest.mark.parametrize("store_name", STORES)


@pytest.fixture
def store_name() -> str:
    return "sqlite"


@pytest.fixture
def desk(store: Store) -> Desk:
    return Desk(store)


class Read(Command, queue="test:cortex:read", attempts=1):
    what: str


class Sum(Command, queue="test:cortex:sum", attempts=1):
    pass


class Send(Command, queue="test:cortex:send", attempts=1):
    pass


broken = {"b"}


def app() -> App:
    async def read(order: Read) -> str:
        if order.what in broken:
            raise ValueError("cannot read it")
        return order.what

    async def add_up(order: Sum) -> None:
        pass

    async def send(order: Send) -> None:
        pass

    return App("test", workers=[read, add_up, send])


@pytest.fixture
async def relevo(store: Store, clock: ManualClock) -> AsyncIterator[Relevo]:
    engine = Relevo(store, apps=[app()], clock=clock)
    broken.clear()
    yield engine
    await engine.rest()


def diamond() -> Flow:
    """a and b, a sum of both, and a message after that."""
    flow = Flow("cortex")
    both = [flow.add(Read(what), name=what) for what in ("a", "b")]
    flow.add(Send(), after=[flow.add(Sum(), after=both, name="sum")], name="send")
    return flow


def by_name(flow: FlowView) -> dict[str | None, State]:
    return {node.node: node.state for node in flow.nodes}


# looking


@every_store
async def test_a_flow_is_found_by_anything_it_is_called(desk: Desk, relevo: Relevo) -> None:
    started = await relevo.start(diamond(), key="42")
    for name in (started.id, started.id.upper(), *started.jobs.values(), "cortex/42", "42"):
        flow = await desk.flow(name)
        assert (flow.id, flow.key, flow.state) == (started.id, "cortex/42", State.READY)
        assert [node.node for node in flow.nodes][2:] == ["sum", "send"]
        assert sorted(flow.layers.values()) == [0, 0, 1, 2]
    assert [node.node for node in flow.ends()] == ["send"]


async def test_a_flow_without_a_key_is_called_after_what_it_ends_with(
    desk: Desk, relevo: Relevo
) -> None:
    started = await relevo.start(diamond())
    await relevo.start(diamond(), key="42")
    rows, _ = await desk.flows()
    assert sorted((row.name, row.key) for row in rows) == [
        ("Send", None),
        ("cortex/42", "cortex/42"),
    ]
    assert (await desk.flow(started.id)).name == "Send"


async def test_what_is_in_no_flow_is_not_found(desk: Desk, store: Store, relevo: Relevo) -> None:
    id = await add(store)
    with pytest.raises(NotFoundError, match="is in no flow"):
        await desk.flow(id)
    for text in (new_id(), "nothing", "", "x" * 10_000):
        with pytest.raises(NotFoundError, match="no flow is called"):
            await desk.flow(text)
    for name in ("one", "two"):
        flow = Flow(name)
        flow.add(Sum())
        await relevo.start(flow, key="7")
    with pytest.raises(NotFoundError, match="say which: one/7, two/7"):
        await desk.flow("7")
    assert (await desk.flow("two/7")).key == "two/7"


@every_store
async def test_flows_are_listed_newest_first_a_page_at_a_time(
    desk: Desk, store: Store, relevo: Relevo
) -> None:
    started: list[str] = []
    while len(started) < 5:
        if not started or time.time_ns() // 1_000_000 > moment_of(started[-1]):  # no order within
            started.append((await relevo.start(diamond())).id)
    await put(store, *(new_job() for _ in range(3)))

    seen: list[str] = []
    cursor = None
    while True:
        rows, cursor = await desk.flows(cursor=cursor, limit=2)
        seen += [row.id for row in rows]
        assert len(rows) <= 2
        if cursor is None:
            break

    assert seen == started[::-1]
    assert rows[-1].counts == {State.READY: 2, State.WAITING: 2}


@every_store
async def test_a_list_says_how_flows_ended(desk: Desk, relevo: Relevo) -> None:
    broken.add("b")
    good, bad, spared = Flow("good"), diamond(), Flow("spared")
    good.add(Sum(), after=[good.add(Read("a"))])
    spared.add(Sum(), after=[spared.add(Read("b"), on_failure="continue")])
    ids = [(await relevo.start(flow)).id for flow in (good, bad, spared)]
    await drain(relevo)
    waits = (await relevo.start(diamond())).id

    rows = {row.id: row.state for row in (await desk.flows())[0]}
    live, _ = await desk.flows(unfinished=True)

    assert [rows[id] for id in ids] == [State.DONE, State.DEAD, State.DONE]
    assert [row.id for row in live] == [waits]
    assert live[0].counts == {State.READY: 2, State.WAITING: 2}


@every_store
async def test_every_node_is_explained(desk: Desk, store: Store, relevo: Relevo) -> None:
    started = await relevo.start(diamond())
    [lease] = await take(store, 1, "test:cortex:read")
    running = {id: name for name, id in started.jobs.items()}[lease.id]
    ready = "b" if running == "a" else "a"

    reasons = {each.node: each for each in await desk.explain(await desk.flow(started.id))}

    assert "runs on w1, attempt 1 of 1" in reasons[running].why
    assert "no worker serves" in reasons[ready].why
    assert "relevo work" in reasons[ready].advice
    assert reasons["sum"].why == "waits for 2 of the 2 it needs"
    assert sorted(reasons["sum"].waits_for) == ["a", "b"]
    assert reasons["send"].waits_for == ("sum",)

    await end(store, lease, State.DEAD)
    reasons = {each.node: each for each in await desk.explain(await desk.flow(started.id))}

    assert "it went boom" in reasons[running].why
    assert f"relevo flows retry {started.id}" in reasons[running].advice
    assert reasons["sum"].waits_for == (running,)
    assert reasons["sum"].state is State.DEAD


async def test_the_other_reasons_to_wait_are_told_too(desk: Desk, store: Store) -> None:
    flow = new_id()
    names = ("paused", "later", "parked", "unknown", "held", "cancelled")
    queues = [f"app:module:{name}" for name in names]
    jobs = [
        new_job(queue, flow=flow, node=name, delay=60_000 if name == "later" else 0)
        for name, queue in zip(names, queues, strict=True)
    ]
    ids = dict(zip(names, await put(store, *jobs), strict=True))
    await desk.pause(["app:module:paused"], ANN)
    for name, how in (
        ("parked", {"state": State.PARKED, "park": behind("acme")}),
        ("unknown", {"state": State.PARKED, "park": "unknown:Work"}),
        ("held", {"state": State.HELD}),
    ):
        [lease] = await take(store, 1, f"app:module:{name}")
        await end(store, lease, **how)
    await desk.cancel([ids["cancelled"]], ANN)

    reasons = {each.node: each for each in await desk.explain(await desk.flow(flow))}

    assert "relevo queues resume app:module:paused" in reasons["paused"].advice
    assert reasons["later"].why == "due"
    assert "relevo breakers show acme" in reasons["parked"].advice
    assert "knows the command" in reasons["unknown"].why
    assert f"--job {ids['held']}" in reasons["held"].advice
    assert reasons["cancelled"].state is State.CANCELLED


# changing


@every_store
async def test_cancelling_a_flow_fails_and_frees_nobody(
    desk: Desk, store: Store, relevo: Relevo
) -> None:
    started = await relevo.start(diamond())
    [lease] = await take(store, 1, "test:cortex:read")

    changed = await desk.cancel_flow(await desk.flow(started.id), ANN, "not needed")

    assert set(changed.values()) == {True}
    assert {*await states(store, *started.jobs.values())} == {State.CANCELLED}
    assert not await end(store, lease)
    assert await audit_of(store, started.jobs["send"]) == ["cancel"]
    assert await desk.cancel_flow(await desk.flow(started.id), ANN) == {}


@every_store
async def test_retrying_a_flow_goes_from_the_children_up(
    desk: Desk, store: Store, relevo: Relevo
) -> None:
    broken.add("b")
    started = await relevo.start(diamond())
    await drain(relevo)
    assert by_name(await desk.flow(started.id))["send"] is State.DEAD

    changed = await desk.retry_flow(await desk.flow(started.id), ANN)

    again = {name for name, id in started.jobs.items() if changed.get(id)}
    assert again == {"b", "sum", "send"}
    assert by_name(await desk.flow(started.id)) == {
        "a": State.DONE,
        "b": State.READY,
        "sum": State.WAITING,
        "send": State.WAITING,
    }
    broken.clear()
    await drain(relevo)
    assert (await desk.flow(started.id)).state is State.DONE


@every_store
async def test_a_cancelled_flow_can_be_taken_up_again(desk: Desk, relevo: Relevo) -> None:
    started = await relevo.start(diamond())
    await desk.cancel_flow(await desk.flow(started.id), ANN)

    assert len(await desk.retry_flow(await desk.flow(started.id), ANN)) == 4
    await drain(relevo)

    assert (await desk.flow(started.id)).state is State.DONE


async def test_one_node_is_retried_with_what_it_needs(desk: Desk, relevo: Relevo) -> None:
    broken.add("b")
    started = await relevo.start(diamond())
    await drain(relevo)
    flow = await desk.flow(started.id)

    assert [*await desk.retry_flow(flow, ANN, node="sum")] == [
        started.jobs[n] for n in ("b", "sum")
    ]
    assert by_name(await desk.flow(started.id))["send"] is State.DEAD
    assert await desk.retry_flow(flow, ANN, node="a") == {}
    with pytest.raises(NotFoundError, match="has no node 'nobody'"):
        await desk.retry_flow(flow, ANN, node="nobody")


async def test_a_node_that_nobody_misses_is_left_alone(desk: Desk, relevo: Relevo) -> None:
    broken.add("b")
    flow = Flow("spared")
    flow.add(Sum(), after=[flow.add(Read("b"), name="b", on_failure="continue")])
    started = await relevo.start(flow)
    await drain(relevo)
    view = await desk.flow(started.id)

    assert view.state is State.DONE
    assert "without it" in (await desk.explain(view))[0].advice
    assert await desk.retry_flow(view, ANN) == {}


async def test_a_flow_of_1000_nodes_is_seen_and_cancelled_whole(
    desk: Desk, store: Store, relevo: Relevo
) -> None:
    flow = Flow("wide")
    flow.add(Sum(), after=[flow.add(Read("a"), name=f"r{n}") for n in range(999)])
    started = await relevo.start(flow)

    view = await desk.flow(started.id)
    assert (len(view.nodes), view.is_cut) == (1_000, False)
    assert view.counts == {State.READY: 999, State.WAITING: 1}
    assert len(await desk.cancel_flow(view, ANN)) == 1_000
    assert await store.count(Filter(flow=started.id, states=frozenset({State.CANCELLED}))) == 1_000


async def test_flows_ask_for_the_role_too(desk: Desk, relevo: Relevo) -> None:
    view = await desk.flow((await relevo.start(diamond())).id)
    for change in (desk.cancel_flow, desk.retry_flow):
        with pytest.raises(NotAllowed):
            await change(view, VERA)


async def test_a_desk_of_another_app_sees_no_node(store: Store) -> None:
    flow = new_id()
    mine = new_job("cars:a:b", flow=flow, node="mine")
    theirs = new_job("hotel:a:b", flow=flow, node="theirs", after=(After(mine.id),))
    await put(store, mine, theirs)
    desk = Desk(store, apps={"cars"})

    view = await desk.flow(flow)

    assert [node.node for node in view.nodes] == ["mine"]
    assert [*await desk.cancel_flow(view, ANN)] == [mine.id]
    with pytest.raises(NotFoundError):
        await Desk(store, apps={"expenses"}).flow(flow)


# breakers


@every_store
async def test_a_breaker_is_turned_by_hand(desk: Desk, store: Store) -> None:
    opened = await desk.turn_breaker("acme", "open", ANN, "they asked us to")
    await add(store)
    [lease] = await take(store)
    await end(store, lease, State.PARKED, park=behind("acme"))

    assert opened.circuit.state == "open"
    assert [(view.name, view.parked) for view in await desk.breakers()] == [("acme", 1)]
    assert (await desk.turn_breaker("acme", "probe", ANN)).circuit.state == "open"
    closed = await desk.turn_breaker("acme", "close", ANN)
    assert (closed.circuit.state, closed.parked) == ("closed", 0)
    assert await state(store, lease.id) in (State.READY, State.SCHEDULED)
    assert [turn.state for turn in closed.circuit.history] == ["open", "open", "closed"]
    assert "they asked us to" in closed.circuit.history[0].why
    assert await audit_of(store, "acme") == ["breaker close", "breaker probe", "breaker open"]


async def test_an_unknown_breaker_is_not_found(desk: Desk, store: Store) -> None:
    for attempt in (
        desk.breaker("acme"),
        desk.turn_breaker("acme", "close", ANN),
        desk.turn_breaker("acme", "probe", ANN),
        Desk(store, apps={"cars"}).turn_breaker("acme", "open", ANN),
    ):
        with pytest.raises(NotFoundError):
            await attempt
    with pytest.raises(NotAllowed):
        await desk.turn_breaker("acme", "open", VERA)


# pollers and schedules


def timed(turns: list[str]) -> App:
    made = app()

    @made.poller("hotel:{hotel}", over=lambda: [{"hotel": "h1"}, {"hotel": "h2"}], every="10m")
    async def pull(poll: Poll, ctx: Any) -> None:
        turns.append(poll.key)
        poll.cursor = {"seen": len(turns)}
        if poll.key == "hotel:h2":
            raise ConnectionError("down")

    @made.schedule("0 6 * * *", tz="America/Mexico_City", name="report")
    def report() -> Read:
        return Read("report")

    return made


@every_store
async def test_pollers_are_listed_paused_resumed_and_run(
    desk: Desk, store: Store, clock: ManualClock
) -> None:
    turns: list[str] = []
    relevo = Relevo(store, apps=[timed(turns)], clock=clock)
    await drain(relevo, until=lambda: len(turns) == 2)
    await drain(relevo)

    one, two = await desk.recurring("poller")
    assert (one.name, one.function, one.state) == ("hotel:h1", "test.pull", State.SCHEDULED)
    assert (one.failures, two.failures, two.error) == (0, 1, "ConnectionError: down")
    assert one.cursor is not None
    assert two.cursor is None
    assert one.last_at > 0

    assert await desk.pause_recurring("poller", "hotel:h1", ANN, "their night") is True
    assert await desk.pause_recurring("poller", "hotel:h1", ANN) is False
    assert (await desk.recurring_one("poller", one.job)).is_paused
    with pytest.raises(MisuseError, match="is paused"):
        await desk.run_recurring("poller", "hotel:h1", ANN)
    assert await desk.resume_recurring("poller", "hotel:h1", ANN) is True
    assert await desk.resume_recurring("poller", "hotel:h1", ANN) is False
    assert await desk.run_recurring("poller", "hotel:h2", ANN) is True
    assert await audit_of(store, "hotel:h1") == ["resume", "pause"]
    await drain(relevo, until=lambda: len(turns) == 4)
    assert sorted(turns[2:]) == ["hotel:h1", "hotel:h2"]
    await relevo.rest()


@every_store
async def test_a_schedule_is_run_by_hand_once(desk: Desk, store: Store, clock: ManualClock) -> None:
    relevo = Relevo(store, apps=[timed([])], clock=clock)
    await relevo.recurring.ensure()
    await drain(relevo)
    assert await enqueued(relevo, Read) == []
    [view] = await desk.recurring("schedule")
    assert (view.name, view.state) == ("report", State.SCHEDULED)
    assert view.next_at is not None

    assert await desk.run_recurring("schedule", "report", ANN) is True
    await drain(relevo)
    await drain(relevo)

    assert await enqueued(relevo, Read) == [Read("report")]
    assert await desk.pause_recurring("schedule", "report", ANN) is True
    await relevo.rest()


async def test_pollers_and_schedules_ask_for_the_role(
    desk: Desk, store: Store, clock: ManualClock
) -> None:
    relevo = Relevo(store, apps=[timed([])], clock=clock)
    await relevo.recurring.ensure()
    for change in (desk.pause_recurring, desk.resume_recurring, desk.run_recurring):
        with pytest.raises(NotAllowed):
            await change("poller", "hotel:h1", VERA)
        with pytest.raises(NotFoundError, match="relevo pollers ls"):
            await change("poller", "report", ANN)
    assert await Desk(store, apps={"cars"}).recurring("poller") == []
    await relevo.rest()


async def test_a_queue_of_ones_own_that_looks_alike_is_no_poller(desk: Desk, store: Store) -> None:
    await add(store, "app:pollers:mine")
    assert await desk.recurring("poller") == []
