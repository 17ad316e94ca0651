"""What people change while workers run holds in every worker, until it is over or taken back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from relevo import App, Breaker, Command, Context, Relevo
from relevo.breaker import KIND as BREAKER
from relevo.desk import Person, Role
from relevo.errors import DefinitionError, NotAllowed, NotFoundError, ProviderUnavailable
from relevo.job import State
from relevo.store import Filter
from relevo.testing import ManualClock, until, working
from relevo.worker import Worker

Start = Callable[..., Relevo]
PAY, MAIL = "test:changes:pay", "test:changes:mail"
ANA = Person("ana", Role.OPERATOR)


class Pay(Command, queue=PAY, fair="shop:{shop}"):
    n: int
    shop: str = "a"


class Mail(Command, queue=MAIL):
    n: int


class Desk:
    """Workers whose jobs end when they are told to, and how many run."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.running = 0
        self.order: list[str] = []
        self.lanes: list[str] = []

    def app(self) -> App:
        async def pay(order: Pay) -> None:
            self.order.append("pay")
            self.lanes.append(order.shop)
            self.running += 1
            await self.answers.wait()
            self.running -= 1

        async def mail(order: Mail) -> None:
            self.order.append("mail")

        return App("test", workers=[pay, mail])


def quick(worker: Worker) -> None:
    """Have a worker look for changes many times a second."""
    worker.pace = replace(worker.pace, learn=0.5)


async def test_a_limit_is_set_raised_and_taken_back_while_jobs_run(start: Start) -> None:
    desk = Desk()
    relevo = start(desk.app())
    await relevo.desk.set_queue(PAY, ANA, "a slow bank", limit=3)
    await relevo.enqueue_many(Pay(n) for n in range(30))

    async with working(relevo, concurrency=20) as worker:
        quick(worker)
        await until(lambda: desk.running == 3)
        await relevo.desk.set_queue(PAY, ANA, limit=7)
        await until(lambda: desk.running == 7)
        await relevo.desk.unset("queue", PAY, ANA)
        await until(lambda: desk.running == 16)  # what a bulkhead leaves
        await relevo.desk.set_queue(PAY, ANA, slots=18)
        await until(lambda: desk.running == 18)
        desk.answers.set()
        await until(lambda: worker.finished == 30)

    rows, _ = await relevo.desk.audits(target=PAY)
    assert [row.note for row in reversed(rows)] == [
        "a slow bank; limit 3",
        "limit 7",
        "",
        "slots 18",
    ]
    said = [(row.who, row.verb, row.before, row.after) for row in reversed(rows)]
    assert said == [
        ("ana", "set queue", "", "limit 3 by ana"),
        ("ana", "set queue", "limit 3 by ana", "limit 7 by ana"),
        ("ana", "unset queue", "limit 7 by ana", ""),
        ("ana", "set queue", "", "slots 18 by ana"),
    ]


async def test_a_change_ends_by_itself(start: Start, clock: ManualClock) -> None:
    desk = Desk()
    relevo = start(desk.app())
    made = await relevo.desk.set_queue(PAY, ANA, limit=2, lasting="1h")
    assert made.until - made.set_at == pytest.approx(3_600_000, abs=5_000)
    await relevo.enqueue_many(Pay(n) for n in range(10))

    async with working(relevo, concurrency=20) as worker:
        quick(worker)
        await until(lambda: desk.running == 2)
        clock.advance("61m")
        await until(lambda: desk.running == 10)
        desk.answers.set()
        await until(lambda: worker.finished == 10)
    assert await relevo.desk.changes() == []


async def test_a_rate_is_set(start: Start, clock: ManualClock) -> None:
    desk = Desk()
    desk.answers.set()
    relevo = start(desk.app())
    await relevo.desk.set_queue(PAY, ANA, rate="5/m")
    await relevo.enqueue_many(Pay(n) for n in range(12))

    async with working(relevo) as worker:
        quick(worker)
        await until(lambda: worker.finished == 5)
        clock.advance("61s")
        worker.nudge()
        await until(lambda: worker.finished == 10)
        assert len(desk.order) == 10


async def test_a_queue_comes_first_or_last(start: Start) -> None:
    desk = Desk()
    desk.answers.set()
    relevo = start(desk.app())
    await relevo.desk.set_queue(MAIL, ANA, priority="high")
    await relevo.desk.set_queue(PAY, ANA, priority="low")
    await relevo.enqueue_many(Pay(n) for n in range(20))
    await relevo.enqueue_many(Mail(n) for n in range(20))

    async with working(relevo, concurrency=4) as worker:
        await until(lambda: worker.finished == 40)

    # A few of the other queue may have been taken with the last claim.
    assert desk.order[:16] == ["mail"] * 16


async def test_a_lane_is_paused_limited_and_cancelled(start: Start) -> None:
    desk = Desk()
    relevo = start(desk.app())
    await relevo.desk.set_lane(PAY, "shop:hot", 0, ANA, "a flood")
    await relevo.enqueue_many(Pay(n, shop) for n in range(6) for shop in ("hot", "b"))

    async with working(relevo, concurrency=20) as worker:
        quick(worker)
        await until(lambda: desk.running == 6)
        assert set(desk.lanes) == {"b"}
        [paused] = await relevo.desk.changes()
        assert (paused.name, paused.lane, str(paused)) == (PAY, "shop:hot", "paused by ana")

        await relevo.desk.set_lane(PAY, "shop:hot", 2, ANA)
        await until(lambda: desk.running == 8, timeout="20s")
        assert desk.lanes.count("hot") == 2

        assert await relevo.desk.cancel_lane(PAY, "shop:hot", ANA, "test") >= 4
        await relevo.desk.unset("lane", PAY, ANA, lane="shop:hot")
        desk.answers.set()
        await until(lambda: worker.running == 0)
    decisions = [row for row in (await relevo.desk.audits())[0] if row.verb.startswith("cancel")]
    assert [(row.verb, row.target) for row in decisions] == [("cancel many", PAY)]
    assert "lane shop:hot" in decisions[0].note
    cancelled = Filter(queue=PAY, states=frozenset({State.CANCELLED}))
    assert await relevo.desk.count(cancelled) >= 4
    assert await relevo.desk.changes() == []


async def test_a_breaker_opens_as_a_person_says(start: Start) -> None:
    class Call(Command, queue="test:changes:call", breaker="bank", attempts=9):
        n: int

    async def call(order: Call) -> None:
        raise ProviderUnavailable("no bank")

    relevo = start(App("test", workers=[call]))
    await relevo.desk.set_breaker("bank", ANA, failures=1, cooldown="7m")
    await relevo.enqueue(Call(1))
    async with working(relevo):
        await until(lambda: _is_open(relevo))
    view = await relevo.desk.breaker("bank")
    assert view.circuit.cooldown == 420_000


async def _is_open(relevo: Relevo) -> bool:
    return any(each.circuit.state == "open" for each in await relevo.desk.breakers())


async def test_slow_calls_open_a_breaker(start: Start) -> None:
    done: list[int] = []

    class Call(
        Command,
        queue="test:changes:slow",
        breaker=Breaker("bank", failures=3, slow="20ms"),
    ):
        n: int

    async def call(order: Call, ctx: Context) -> None:
        async def charge(key: str) -> str:
            await asyncio.sleep(0.05)
            return key

        await ctx.once("charge", charge)
        done.append(order.n)

    relevo = start(App("test", workers=[call]))
    async with working(relevo, concurrency=1):
        await relevo.enqueue_many(Call(n) for n in range(2))
        await until(lambda: len(done) == 2)

        async def are_two() -> bool:
            views = await relevo.desk.breakers()
            return [(each.circuit.failures, each.circuit.slow) for each in views] == [(2, 2)]

        await until(are_two)
        await relevo.enqueue_many(Call(n) for n in range(2, 6))
        await until(lambda: _is_open(relevo))
        await until(lambda: _are_parked(relevo))
    view = await relevo.desk.breaker("bank")
    assert "3 failures in a row, 3 of them slow: 0.0" in view.circuit.history[-1].why
    assert len(done) == 3  # a slow call is done; the jobs behind it are parked
    assert await relevo.store.recall(BREAKER, ["bank"]) != [None]


async def test_a_change_is_written_down_before_it_holds(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that dies in between leaves a line too many, and no change that nobody knows."""
    relevo = start(Desk().app())
    await relevo.desk.set_queue(PAY, ANA, limit=3)

    async def dies(*_: Any) -> Any:
        raise ConnectionResetError

    monkeypatch.setattr(relevo.desk.store, "remember", dies)
    with pytest.raises(ConnectionResetError):
        await relevo.desk.set_queue(PAY, ANA, limit=4)
    monkeypatch.setattr(relevo.desk.store, "forget", dies)
    with pytest.raises(ConnectionResetError):
        await relevo.desk.unset("queue", PAY, ANA)
    rows, _ = await relevo.desk.audits(target=PAY)
    assert [row.verb for row in rows] == ["unset queue", "set queue", "set queue"]
    assert [each.limit for each in await relevo.desk.changes()] == [3]


async def test_changes_add_up(start: Start) -> None:
    relevo = start(Desk().app())
    await relevo.desk.set_queue(PAY, ANA, limit=3, lasting="2h")
    whole = await relevo.desk.set_queue(PAY, ANA, rate="10/s")
    assert (whole.limit, whole.rate) == (3, "10/s")
    assert whole.until
    assert await relevo.desk.changes() == [whole]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "nothing to change"),
        ({"limit": 0}, "a limit is 1 to 1,000,000"),
        ({"rate": "ten"}, "is not a rate"),
        ({"slots": 0}, "the slots of a queue are 1"),
        ({"priority": "urgent"}, "priority is"),
        ({"limit": 1, "lasting": "-1s"}, "duration"),
        ({"limit": 1, "until": datetime(2020, 1, 1, tzinfo=UTC)}, "would end before it begins"),
        ({"failures": 3}, "nothing to change"),
    ],
)
async def test_what_cannot_be_is_refused(start: Start, values: dict[str, Any], said: str) -> None:
    relevo = start(Desk().app())
    with pytest.raises(DefinitionError, match=said):
        await relevo.desk.set_queue(PAY, ANA, **values)
    assert await relevo.desk.changes() == []


async def test_a_viewer_and_an_unknown_name_change_nothing(start: Start) -> None:
    relevo = start(Desk().app())
    with pytest.raises(NotAllowed):
        await relevo.desk.set_queue(PAY, Person("eve", Role.VIEWER), limit=1)
    with pytest.raises(DefinitionError):
        await relevo.desk.set_queue("no queue", ANA, limit=1)
    with pytest.raises(DefinitionError):
        await relevo.desk.set_breaker("bank", ANA, failures=0)
    assert not await relevo.desk.unset("queue", PAY, ANA)
    relevo.desk.apps = frozenset({"other"})
    with pytest.raises(NotFoundError):
        await relevo.desk.set_queue(PAY, ANA, limit=1)


async def _are_parked(relevo: Relevo) -> bool:
    return (await relevo.desk.breaker("bank")).parked == 3
