"""Groups: one job more when all are done, however they come in and whatever dies on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text

from relevo import (
    App,
    Command,
    Context,
    Delivery,
    Flow,
    Group,
    GroupClosed,
    Intake,
    MisuseError,
    NotFoundError,
    PlainContext,
    Relevo,
    Retry,
    State,
    StoreUnavailable,
    constant,
    sources,
)
from relevo.store import Gate, Store
from relevo.stores.postgres.lines import SETTINGS
from relevo.testing import ManualClock, deliver, drain, enqueued
from tests.conformance.fresh import SQL_STORES

Start = Callable[..., Relevo]
POSTGRES = [one for one in SQL_STORES if one.id == "postgres"]


class Page(Command, queue="test:import:page", attempts=5, backoff=constant("1s")):
    number: int


class Row(Command, queue="test:import:row", attempts=1, key="{number}", unique="unfinished"):
    number: int


class Report(Command, queue="test:import:report", key="{day}", unique="unfinished"):
    day: str


class Seen:
    """Rows that are counted, pages that find pages, and what the report is told."""

    def __init__(self) -> None:
        self.rows: Counter[int] = Counter()
        self.reports: list[tuple[int, int, int, int]] = []
        self.page: Callable[[Page, Context], Any] | None = None

    def app(self, **more: Any) -> App:
        async def row(order: Row) -> None:
            self.rows[order.number] += 1
            if order.number < 0:
                raise ValueError("no such row")

        async def page(order: Page, ctx: Context) -> Any:
            assert self.page is not None
            return await self.page(order, ctx)

        async def report(order: Report, ctx: Context) -> None:
            told = await ctx.members()
            self.reports.append((told.members, told.done, told.dead, told.cancelled))

        return App("test", workers=[row, page, report], **more)


async def test_the_report_runs_once_when_all_rows_have_ended(start: Start) -> None:
    seen = Seen()
    relevo = start(seen.app())
    await relevo.open()
    group = await relevo.group("import:1", then=Report("1"))
    await group.add(Row(-1))
    await group.add_many(Row(number) for number in range(20))
    await drain(relevo)
    assert seen.reports == []
    assert (await group.progress()).live == 0

    await group.close()
    await group.close()
    await drain(relevo)

    assert seen.reports == [(21, 20, 1, 0)]
    assert seen.rows.total() == 21
    assert (await group.progress()).gate is Gate.CLOSED


async def test_the_same_name_is_the_same_group(start: Start) -> None:
    seen = Seen()
    relevo = start(seen.app())
    await relevo.open()
    first = await relevo.group("import:1", then=Report("1"))
    again = await relevo.group("import:1", then=Report("1"))
    named = await relevo.group("import:1")
    assert first.id == again.id == named.id
    assert len(await enqueued(relevo, Report)) == 1
    with pytest.raises(MisuseError, match="opened with another `then`"):
        await relevo.group("import:1", then=Report("2"))
    with pytest.raises(NotFoundError, match="no group is called 'import:2'"):
        await relevo.group("import:2")
    with pytest.raises(MisuseError, match="1 to 200 characters"):
        await relevo.group("", then=Report("1"))


async def test_what_is_added_too_late_is_refused(start: Start) -> None:
    seen = Seen()
    relevo = start(seen.app())
    await relevo.open()
    group = await relevo.group("import:1", then=Report("1"))
    await group.close()
    with pytest.raises(GroupClosed, match="takes no more"):
        await group.add(Row(1))
    with pytest.raises(GroupClosed):
        await group.add_many([Row(1), Row(2)])
    assert await enqueued(relevo, Row) == []
    await drain(relevo)
    assert seen.reports == [(0, 0, 0, 0)]


async def test_pages_find_pages_after_the_group_is_closed(start: Start) -> None:
    seen = Seen()
    relevo = start(seen.app())

    async def page(order: Page, ctx: Context) -> None:
        group = await ctx.group("import:1")
        if order.number < 5:
            await group.add(Page(order.number + 1))
        await group.add_many([Row(10 * order.number + n) for n in range(3)])

    seen.page = page
    await relevo.open()
    group = await relevo.group("import:1", then=Report("1"))
    await group.add(Page(1))
    await group.close()
    await drain(relevo)
    assert seen.rows.total() == 15
    assert seen.reports == [(20, 20, 0, 0)]


async def test_a_run_that_is_repeated_adds_each_once(start: Start) -> None:
    seen = Seen()
    relevo = start(seen.app())
    runs: list[int] = []

    async def page(order: Page, ctx: Context) -> Retry | None:
        group = await ctx.group("import:1", then=Report("1"))
        await group.add_many([Row(n) for n in range(3)])
        await group.close()
        runs.append(ctx.attempt)
        return Retry("again") if len(runs) < 3 else None

    seen.page = page
    await relevo.open()
    await relevo.enqueue(Page(1))
    await drain(relevo, skip_waits=True)
    assert len(runs) == 3
    assert seen.rows == {0: 1, 1: 1, 2: 1}
    assert seen.reports == [(3, 3, 0, 0)]


async def test_a_plain_worker_adds_and_closes(start: Start) -> None:
    seen = Seen()

    def scan(order: Scan, ctx: PlainContext) -> None:
        group = ctx.group("import:1", then=Report("1"))
        group.add(Row(1))
        group.add_many([Row(2), Row(3)])
        group.close()
        assert group.progress().members == 3

    app = seen.app()
    app.worker(scan)
    relevo = start(app)
    await relevo.open()
    await relevo.enqueue(Scan())
    await drain(relevo)
    assert seen.reports == [(3, 3, 0, 0)]


class Scan(Command, queue="test:import:scan"):
    pass


async def test_a_call_that_is_not_awaited_is_an_error(start: Start) -> None:
    seen = Seen()
    relevo = start(seen.app())

    async def page(order: Page, ctx: Context) -> None:
        group = await ctx.group("import:1", then=Report("1"))
        group.close()  # pyright: ignore[reportUnusedCoroutine] - the mistake in question

    seen.page = page
    await relevo.open()
    receipt = await relevo.enqueue(Page(1))
    await drain(relevo, skip_waits=True)
    job = await relevo.desk.job(receipt.id)
    assert job.state is State.DEAD
    assert job.failure is not None
    assert "group.close(…) was not awaited" in job.failure.message


async def test_a_webhook_opens_fills_and_closes_a_group(start: Start) -> None:
    seen = Seen()
    app = seen.app()

    @app.webhook(
        "/in",
        verify=sources.hmac_header("X-Signature", secrets=["a" * 32]),
        key=lambda delivery: str(delivery.json["id"]),
    )
    async def hook(delivery: Delivery, ctx: Intake) -> None:
        group = await ctx.group("import:1", then=Report("1"))
        await group.add_many([Row(1), Row(2)])
        await group.close()

    relevo = start(app)
    await relevo.open()
    assert (await deliver(relevo, "/in", json={"id": "a"})).status == 200
    assert (await deliver(relevo, "/in", json={"id": "a"})).status == 200
    await drain(relevo)
    assert seen.rows == {1: 1, 2: 1}
    assert seen.reports == [(2, 2, 0, 0)]


@pytest.mark.parametrize("store_name", SQL_STORES)
async def test_a_group_of_a_transaction_comes_with_its_commit(start: Start) -> None:
    seen = Seen()
    relevo = start(seen.app())
    await relevo.open()
    with pytest.raises(ZeroDivisionError):
        async with relevo.transaction() as session:
            group = await relevo.group("import:1", then=Report("1"), tx=session)
            await group.add(Row(1), tx=session)
            raise ZeroDivisionError
    with pytest.raises(NotFoundError):
        await relevo.group("import:1")

    async with relevo.transaction() as session:
        group = await relevo.group("import:1", then=Report("1"), tx=session)
        await group.add_many([Row(1), Row(2)], tx=session)
        await group.close(tx=session)
    await drain(relevo)
    assert seen.reports == [(2, 2, 0, 0)]


@pytest.mark.parametrize("store_name", POSTGRES)
async def test_to_close_a_group_beside_an_open_transaction_says_what_to_write(
    start: Start, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    relevo = start(Seen().app())
    await relevo.open()
    group = await relevo.group("import:1", then=Report("1"))
    monkeypatch.setitem(SETTINGS, "lock_timeout", "200")  # 4 s otherwise
    async with Relevo(store.dsn) as other, relevo.transaction() as session:
        await group.add(Row(1), tx=session)
        with pytest.raises(StoreUnavailable, match=r"close the group in it, with close\(tx=\)"):
            await (await other.group("import:1")).close()
        await group.close(tx=session)
    await drain(relevo)
    assert (await group.progress()).done == 1


@pytest.mark.parametrize("store_name", POSTGRES)
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_a_transaction_that_began_before_the_close_adds_no_member_after_it(
    start: Start, level: str
) -> None:
    """Its snapshot still shows the group open."""
    seen = Seen()
    relevo = start(seen.app())
    await relevo.open()
    group = await relevo.group("import:1", then=Report("1"))
    with pytest.raises(ZeroDivisionError):
        async with relevo.transaction() as session:
            await session.execute(text(f"set transaction isolation level {level}"))
            await session.execute(text("select count(*) from pg_class"))  # its snapshot is taken
            await group.close()
            with pytest.raises(StoreUnavailable, match="could not serialize access"):
                await group.add(Row(1), tx=session)
            raise ZeroDivisionError
    await drain(relevo)
    assert seen.rows == {}
    assert seen.reports == [(0, 0, 0, 0)]


@pytest.mark.parametrize("store_name", SQL_STORES)
async def test_a_run_adds_and_closes_in_the_transaction_of_its_end(start: Start) -> None:
    seen = Seen()
    relevo = start(seen.app())

    async def page(order: Page, ctx: Context) -> None:
        async with ctx.transaction():
            group = await ctx.group("import:1", then=Report("1"))
            await group.add(Row(1))
            await group.close()
        if ctx.attempt == 1:
            raise ZeroDivisionError

    seen.page = page
    await relevo.open()
    await relevo.enqueue(Page(1))
    await drain(relevo, skip_waits=True)
    assert seen.rows == {1: 1}
    assert seen.reports == [(1, 1, 0, 0)]


# flows that grow


class Read(Command, queue="test:cortex:read", attempts=1):
    what: str


class Sum(Command, queue="test:cortex:sum"):
    pass


async def test_a_node_adds_nodes_that_its_parent_waits_for(start: Start) -> None:
    found: list[dict[str, Any]] = []

    async def read(order: Read, ctx: Context) -> str:
        if order.what == "index":
            for n in range(3):
                await ctx.add_node(Read(f"part {n}"), name=f"part-{n}")
            await ctx.add_node(Read("bad"), name="bad", on_failure="continue")
        if order.what == "bad":
            raise ValueError("cannot read it")
        return order.what.upper()

    async def total(order: Sum, ctx: Context) -> None:
        results = await ctx.results()
        found.append({**results, **results.failed})

    relevo = start(App("test", workers=[read, total]))
    await relevo.open()
    flow = Flow("cortex")
    index = flow.add(Read("index"), name="index")
    flow.add(Sum(), after=[index])
    started = await relevo.start(flow)
    await drain(relevo)
    [results] = found
    assert "cannot read it" in results.pop("bad")
    assert results == {f"part-{n}": f"PART {n}" for n in range(3)} | {"index": "INDEX"}
    assert len((await relevo.desk.flow(started.id)).nodes) == 6


async def test_a_node_is_added_by_a_node_alone(start: Start, clock: ManualClock) -> None:
    seen = Seen()
    relevo = start(seen.app())

    async def page(order: Page, ctx: Context) -> None:
        await ctx.add_node(Row(1))

    seen.page = page
    await relevo.open()
    receipt = await relevo.enqueue(Page(1), attempts=1)
    await drain(relevo)
    job = await relevo.desk.job(receipt.id)
    assert job.failure is not None
    assert "is no node of a flow" in job.failure.message
    assert isinstance(await relevo.group("x", then=Report("1")), Group)
