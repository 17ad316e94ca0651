"""A parent waits for its children; the engine's side of flows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from relevo import (
    App,
    Command,
    Context,
    DefinitionError,
    Delivery,
    Flow,
    Intake,
    NotFoundError,
    Relevo,
    Results,
    State,
    StoreUnavailable,
    Verdict,
    sources,
)
from relevo.clock import milliseconds
from relevo.job import NewJob, Policy, Receipt
from relevo.orders import Started
from relevo.store import Filter
from relevo.testing import ManualClock, deliver, drain, until
from tests.conformance.fresh import SQL_STORES

Start = Callable[..., Relevo]


class Read(Command, queue="test:cortex:read", attempts=1):
    what: str


class Glance(Command, queue="test:cortex:glance", keep="0s"):
    what: str


class Scan(Command, queue="test:cortex:scan", attempts=3):
    what: str


class Sum(Command, queue="test:cortex:sum"):
    pass


def app(seen: list[object]) -> App:
    async def read(order: Read) -> str:
        if order.what == "noise":
            raise ValueError("cannot read it")
        seen.append(order.what)
        return order.what.upper()

    async def add(order: Sum, ctx: Context) -> None:
        seen.append(await ctx.results())

    return App("test", workers=[read, add])


async def test_a_parent_runs_once_with_its_childrens_results(start: Start) -> None:
    seen: list[object] = []
    relevo = start(app(seen))
    flow = Flow("cortex")
    children = [flow.add(Read(what), name=what) for what in ("a", "b", "c")]
    flow.add(Sum(), after=children)

    started = await relevo.start(flow)
    await drain(relevo)

    assert seen[-1] == {"a": "A", "b": "B", "c": "C"}
    assert len(seen) == 4
    jobs = await relevo.store.find(list(started.jobs.values()))
    assert {job.state for job in jobs if job} == {State.DONE}


async def test_a_result_is_there_for_the_parent_however_short_it_is_kept(start: Start) -> None:
    seen: list[object] = []

    async def glance(order: Glance) -> str:
        return order.what.upper()

    async def add(order: Sum, ctx: Context) -> None:
        seen.append(await ctx.results())

    relevo = start(App("test", workers=[glance, add]))
    flow = Flow("cortex")
    flow.add(Sum(), after=[flow.add(Glance("a"), name="a")])

    started = await relevo.start(flow)
    alone = await relevo.enqueue(Glance("b"))
    await drain(relevo)

    assert seen == [{"a": "A"}]
    child, other = await relevo.store.find([started.jobs["a"], alone.id])
    assert child is not None
    assert other is None  # nobody waited for it


async def test_a_child_that_may_fail_does_not_lose_the_others(start: Start) -> None:
    seen: list[object] = []
    relevo = start(app(seen))
    flow = Flow("cortex")
    a = flow.add(Read("a"), name="a")
    b = flow.add(Read("noise"), name="b", on_failure="continue")
    flow.add(Sum(), after=[a, b])

    await relevo.start(flow)
    await drain(relevo)

    [results] = [each for each in seen if isinstance(each, Results)]
    assert results == {"a": "A"}
    assert results.failed == {"b": "it is dead (ValueError: cannot read it)"}
    assert results.get("b") is None
    with pytest.raises(NotFoundError, match="'b' has no result: it is dead"):
        results["b"]
    with pytest.raises(NotFoundError, match="no child is called 'c'; this node waited for: a, b"):
        results["c"]


async def test_a_child_that_gave_nothing_is_no_child_that_failed(start: Start) -> None:
    seen: list[Results] = []

    async def read(order: Read) -> None: ...

    async def add(order: Sum, ctx: Context) -> None:
        seen.append(await ctx.results())

    relevo = start(App("test", workers=[read, add]))
    flow = Flow("cortex")
    flow.add(Sum(), after=[flow.add(Read("a"), name="a")])
    await relevo.start(flow)
    await drain(relevo)

    assert [(dict(each), each.failed) for each in seen] == [({"a": None}, {})]


@pytest.mark.parametrize("policy", ["fail", "continue"])
async def test_a_child_whose_result_cannot_be_kept_has_failed(start: Start, policy: Policy) -> None:
    """It was done with None, and the parent told a customer the page was empty."""
    seen: list[Results] = []

    async def scan(order: Scan) -> str:
        return "x" * 70_000

    async def add(order: Sum, ctx: Context) -> None:
        seen.append(await ctx.results())

    relevo = start(App("test", workers=[scan, add]))
    flow = Flow("cortex")
    parent = flow.add(Sum(), after=[flow.add(Scan("a"), name="a", on_failure=policy)])
    started = await relevo.start(flow)
    await drain(relevo, skip_waits=True)

    child, sum = await relevo.store.find([started.jobs["a"], started.jobs[parent.name]])
    assert child is not None and child.failure is not None and sum is not None
    assert (child.state, child.attempt) == (State.DEAD, 1)
    assert "a result cannot be kept" in child.failure.message
    if policy == "fail":
        assert (sum.state, seen) == (State.DEAD, [])
    else:
        assert sum.state is State.DONE
        assert "more than 65,536 bytes" in seen[0].failed["a"]


async def test_a_child_that_must_not_fail_takes_its_parent_along(start: Start) -> None:
    seen: list[object] = []
    relevo = start(app(seen))
    flow = Flow("cortex")
    parent = flow.add(Sum(), after=[flow.add(Read("noise"))])

    started = await relevo.start(flow)
    await drain(relevo)

    [job] = await relevo.store.find([started.jobs[parent.name]])
    assert job is not None
    assert job.state is State.DEAD
    assert job.failure is not None
    assert job.failure.type == "ChildFailed"
    assert seen == []


async def test_a_flow_inside_a_flow_runs_in_its_place(start: Start) -> None:
    seen: list[object] = []
    relevo = start(app(seen))
    inner = Flow("inner")
    inner.add(Sum(), after=[inner.add(Read("b"), name="b")], name="sum")
    outer = Flow("outer")
    end = outer.add(inner, after=[outer.add(Read("a"), name="a")])
    outer.add(Sum(), after=[end], name="last")

    await relevo.start(outer)
    await drain(relevo)

    assert seen == ["a", "b", {"inner/b": "B"}, {"inner/sum": None}]


async def test_the_same_key_starts_one_flow_while_it_is_unfinished(start: Start) -> None:
    seen: list[object] = []
    relevo = start(app(seen))

    def flow() -> Flow:
        made = Flow("cortex")
        made.add(Sum(), after=[made.add(Read("a"), name="a")])
        return made

    first = await relevo.start(flow(), key="42")
    second = await relevo.start(flow(), key="42")
    assert (second.id, second.verdict) == (first.id, Verdict.IN_PROGRESS)

    await drain(relevo)
    third = await relevo.start(flow(), key="42")
    await drain(relevo)

    assert third.id != first.id
    assert seen == ["a", {"a": "A"}] * 2


class Brief(Command, queue="test:flows:brief", keep="0s"):
    pass


async def test_a_flow_that_ended_and_was_forgotten_makes_its_effects_anew(
    start: Start, clock: ManualClock
) -> None:
    """Its jobs are pruned, or were never kept; its key is still known, and so are its effects."""
    calls: list[str] = []

    async def effect(key: str) -> None:
        calls.append(key)

    async def read(order: Read, ctx: Context) -> None:
        await ctx.once("call", effect)

    async def brief(order: Brief, ctx: Context) -> None:
        await ctx.once("call", effect)

    relevo = start(App("test", workers=[read, brief]))
    for command in (Read("a"), Brief()):
        flow = Flow("weekly")
        flow.add(command)
        first = await relevo.start(flow, key=type(command).__name__)
        await drain(relevo)
        if isinstance(command, Read):
            clock.advance("8d")
            while await relevo.store.prune(dead_keep=milliseconds("90d")):
                pass
        second = await relevo.start(flow, key=type(command).__name__)
        assert (await relevo.desk.flow(f"weekly/{type(command).__name__}")).id == second.id
        await drain(relevo)
        assert second.id != first.id

    assert len(set(calls)) == 4


async def test_a_flow_whose_start_was_not_heard_of_ends_once(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stored and has run; whoever starts it again must not run its last job once more."""
    runs: list[str] = []

    async def brief(order: Brief, ctx: Context) -> None:
        runs.append(ctx.id)

    relevo = start(App("test", workers=[brief]))

    async def insert_unheard(jobs: Sequence[NewJob]) -> list[Receipt]:
        await relevo.store.insert(jobs)
        raise StoreUnavailable("the answer was lost")

    flow = Flow("weekly")
    flow.add(Brief())
    with monkeypatch.context() as patch, pytest.raises(StoreUnavailable):
        patch.setattr(relevo._inserts, "_flush", insert_unheard)
        await relevo.start(flow, key="42")
    await drain(relevo)
    await relevo.start(flow, key="42")
    await drain(relevo)

    assert len(runs) == len(set(runs))


def test_flows_that_cannot_be_are_refused_when_built() -> None:
    """B35: a cycle, a self-edge, a stranger, a double edge, a double name, too many nodes."""
    flow, other = Flow("one"), Flow("two")
    a, b = flow.add(Read("a"), name="a"), flow.add(Read("b"), name="b")
    stranger = other.add(Read("c"))
    flow.link(a, b)
    for wrong in (
        lambda: flow.link(a, a),
        lambda: flow.link(a, b),
        lambda: flow.link(a, stranger),
        lambda: flow.add(Read("x"), name="a"),
        lambda: flow.add(Sum(), after=[stranger]),
        lambda: flow.add(Read("x"), on_failure="ignore"),  # pyright: ignore[reportArgumentType]
        lambda: Flow("empty").ordered(),
    ):
        with pytest.raises(DefinitionError):
            wrong()
    flow.link(b, a)
    with pytest.raises(DefinitionError, match="in a circle"):
        flow.ordered()

    big = Flow("big")
    for n in range(10_000):
        big.add(Read("a"), name=str(n))
    with pytest.raises(DefinitionError, match="at most"):
        big.add(Read("a"))


async def test_a_start_hears_that_the_flow_it_joined_is_another(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """Ten was paid, ninety-nine was not, and nothing was said."""
    seen: list[object] = []
    relevo = start(app(seen))

    def flow(what: str) -> Flow:
        made = Flow("pay")
        made.add(Read(what), name="pay")
        return made

    first = await relevo.start(flow("10"), key="o1")
    same = await relevo.start(flow("10"), key="o1")
    with caplog.at_level("WARNING", "relevo"):
        others = [await relevo.start(flow("99"), key="o1") for _ in range(2)]
    assert (await relevo.desk.flow("pay/o1")).id == first.id
    await drain(relevo)

    assert (first.differs, same.differs) == (False, False)
    assert [(other.id, other.differs) for other in others] == [(first.id, True)] * 2
    assert relevo.telemetry.counts["joined"] == 2
    assert [record.__dict__["flow"] for record in caplog.records] == [first.id]
    assert seen == ["10"]


async def test_a_start_with_other_nodes_changes_nothing_of_the_flow_it_joined(
    start: Start,
) -> None:
    """A second step of another name was added to it, and ran."""
    seen: list[object] = []
    relevo = start(app(seen))

    def flow(name: str) -> Flow:
        made = Flow("pay")
        made.add(Read(name), name=name)
        return made

    first = await relevo.start(flow("one"), key="o1")
    second = await relevo.start(flow("two"), key="o1")
    assert (second.id, second.differs) == (first.id, True)
    await drain(relevo)
    assert seen == ["one"]

    async def is_told() -> bool:
        return [(each.queue, each.job) for each in await relevo.desk.joins()] == [
            ("flow pay", first.id)
        ]

    await until(is_told)
    third = await relevo.start(flow("two"), key="o1")  # the first one has ended
    await drain(relevo)
    assert (third.differs, seen) == (False, ["one", "two"])


def _of(what: str) -> Flow:
    made = Flow("pay")
    made.add(Read(what), name=what)
    return made


@pytest.mark.parametrize("store_name", SQL_STORES)
async def test_two_starts_of_a_key_in_one_transaction_do_not_mix(start: Start) -> None:
    """The second one's nodes became part of the first, since nothing of that could be seen yet."""
    seen: list[object] = []
    relevo = start(app(seen))
    async with relevo.transaction() as tx:
        first = await relevo.start(_of("one"), key="o1", tx=tx)
        same = await relevo.start(_of("one"), key="o1", tx=tx)
        other = await relevo.start(_of("two"), key="o1", tx=tx)
        apart = await relevo.start(_of("two"), key="o2", tx=tx)
    assert (same.id, same.differs) == (first.id, False)
    assert (other.id, other.differs) == (first.id, True)
    assert apart.id != first.id
    await drain(relevo)
    assert sorted(map(str, seen)) == ["one", "two"]
    nodes = (await relevo.store.page(Filter(flow=first.id))).jobs
    assert [job.node for job in nodes] == ["one"]


async def test_two_starts_of_a_key_by_one_delivery_do_not_mix(start: Start) -> None:
    seen: list[object] = []
    made = app(seen)
    answers: list[Started] = []

    @made.webhook("/in", verify=sources.hmac_header("X-Signature", secrets=["a" * 32]), key=_id)
    async def take(delivery: Delivery, ctx: Intake) -> None:
        answers[:] = [await ctx.start(_of(what), key="o1") for what in ("one", "two")]

    relevo = start(made)
    await relevo.open()
    assert (await deliver(relevo, "/in", json={"id": "evt_1"})).status == 200
    first, other = answers
    assert (other.id, other.differs) == (first.id, True)
    await drain(relevo)
    assert seen == ["one"]


def _id(delivery: Delivery) -> str:
    return str(delivery.json["id"])


async def test_starts_of_one_key_at_one_moment_do_not_mix(start: Start) -> None:
    seen: list[object] = []
    relevo, other = start(app(seen)), start(app(seen))
    for number in range(20):
        both = await asyncio.gather(
            relevo.start(_of("one"), key=number), other.start(_of("two"), key=number)
        )
        assert both[0].id == both[1].id
        assert sorted(one.differs for one in both) == [False, True]
        assert len((await relevo.store.page(Filter(flow=both[0].id))).jobs) == 1
