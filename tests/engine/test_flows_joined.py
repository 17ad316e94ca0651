"""Nodes of flows that join other jobs by their keys: their names, and how they are shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relevo import App, Command, Context, Flow, Relevo, State
from relevo.desk import Person, Role
from relevo.testing import drain

Start = Callable[..., Relevo]
ANN = Person("ann", Role.OPERATOR)


class Fetch(Command, queue="test:joined:fetch", attempts=1, key="{what}", unique="unfinished"):
    what: str


class Once(Command, queue="test:joined:once", attempts=1, key="{what}", unique="forever"):
    what: str


class Grow(Command, queue="test:joined:grow"):
    pass


class Sum(Command, queue="test:joined:sum"):
    name: str


class Seen:
    """What the last nodes of flows were told, and a node that adds one."""

    def __init__(self) -> None:
        self.told: dict[str, dict[str, Any]] = {}

    def app(self) -> App:
        async def fetch(order: Fetch) -> str:
            if order.what == "bad":
                raise ValueError("cannot fetch it")
            return order.what.upper()

        async def once(order: Once) -> str:
            return order.what.upper()

        async def grow(_: Grow, ctx: Context) -> None:
            await ctx.add_node(Fetch("a"), name="added")
            await ctx.add_node(Fetch("z"), name="own")

        async def total(order: Sum, ctx: Context) -> None:
            results = await ctx.results()
            self.told[order.name] = {**results, **results.failed}

        return App("test", workers=[fetch, once, grow, total])


async def test_a_child_that_two_flows_share_has_its_nodes_name_in_each(start: Start) -> None:
    seen = Seen()
    relevo = start(seen.app())
    await relevo.open()
    await relevo.enqueue(Fetch("b"))
    started: dict[str, Any] = {}
    for name in ("one", "two"):
        flow = Flow(name)
        shared = [flow.add(Fetch("a"), name=f"{name}-a"), flow.add(Fetch("b"), name=f"{name}-b")]
        own = flow.add(Fetch(name), name="mine")
        bad = flow.add(Fetch("bad"), name=f"{name}-bad", on_failure="continue")
        flow.add(Sum(name), after=[*shared, own, bad], name="sum")
        started[name] = await relevo.start(flow)
    assert started["two"].jobs["two-a"] == started["one"].jobs["one-a"]
    await drain(relevo)
    for name in ("one", "two"):
        told = seen.told[name]
        assert "cannot fetch it" in told.pop(f"{name}-bad")
        assert told == {f"{name}-a": "A", f"{name}-b": "B", "mine": name.upper()}


async def test_nodes_of_one_flow_that_share_a_key_have_a_name_each(start: Start) -> None:
    seen = Seen()
    relevo = start(seen.app())
    await relevo.open()
    flow = Flow("twins")
    twins = [flow.add(Fetch("a"), name="left"), flow.add(Fetch("a"), name="right")]
    far = flow.add(Fetch("far"), after=[flow.add(Fetch("a"), name="third")], name="far")
    flow.add(Sum("twins"), after=[far, *twins])
    await relevo.start(flow)
    await drain(relevo)
    assert seen.told["twins"] == {"left": "A", "right": "A", "far": "FAR"}


async def test_a_child_that_was_done_before_is_there_by_its_name(start: Start) -> None:
    seen = Seen()
    relevo = start(seen.app())
    await relevo.open()
    await relevo.enqueue(Once("a"))
    await drain(relevo)
    flow = Flow("later")
    flow.add(Sum("later"), after=[flow.add(Once("a"), name="first")])
    started = await relevo.start(flow)
    await drain(relevo)
    assert seen.told["later"] == {"first": "A"}
    [joined] = (await relevo.desk.flow(started.id)).joined
    assert (joined.node, joined.id, joined.flow) == ("first", started.jobs["first"], None)


async def test_a_node_that_is_added_and_joins_has_the_name_it_was_added_by(start: Start) -> None:
    seen = Seen()
    relevo = start(seen.app())
    await relevo.open()
    await relevo.enqueue(Fetch("a"), delay="1h")
    flow = Flow("growing")
    grow = flow.add(Grow(), name="grow")
    keyed = flow.add(Fetch("k"), name="keyed")
    flow.add(Sum("growing"), after=[grow, keyed])
    started = await relevo.start(flow)
    await drain(relevo)
    [joined] = (await relevo.desk.flow(started.id)).joined
    assert joined.node == "added"
    await relevo.desk.retry([joined.id], ANN)
    await drain(relevo)
    assert seen.told["growing"] == {"grow": None, "keyed": "K", "added": "A", "own": "Z"}


async def test_a_flow_shows_the_jobs_of_others_that_it_waits_for(start: Start) -> None:
    seen = Seen()
    relevo = start(seen.app())
    await relevo.open()
    flows: list[Any] = []
    for name in ("one", "two"):
        flow = Flow(name)
        flow.add(Sum(name), after=[flow.add(Fetch("x"), name=f"{name}-x")], name="sum")
        flows.append(await relevo.start(flow))
    one, two = [await relevo.desk.flow(started.id) for started in flows]
    assert not one.joined
    [joined] = two.joined
    assert (joined.node, joined.needed_by, joined.flow) == ("two-x", "sum", flows[0].id)
    assert joined.state is State.READY
    [reason] = await relevo.desk.explain(two)
    assert reason.why == "waits for 1 of the 1 it needs"
    assert reason.waits_for == ("two-x",)
    await drain(relevo)
    [joined] = (await relevo.desk.flow(two.id)).joined
    assert joined.state is State.DONE
