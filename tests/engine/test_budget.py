"""A budget of store commands: the arithmetic, and whether it is true."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
import redis

from relevo import App, Command, Context, Relevo, SettingsError
from relevo.budget import DAY, LONGEST, TURN, Budget, Pace, budget_of, idle_cost, pace_within
from relevo.poller import Poll
from relevo.testing import until, working
from relevo.worker import Worker
from tests.servers.redis import RedisServer

LEASE = timedelta(seconds=15)


@contextmanager
def counted(server: RedisServer) -> Iterator[Counter[str]]:
    """What clients ask of a server meanwhile; what scripts do inside is not counted."""
    seen: Counter[str] = Counter()
    is_over = threading.Event()
    with redis.Redis.from_url(server.url, protocol=2) as client, client.monitor() as monitor:

        def listen() -> None:
            for told in monitor.listen():
                if is_over.is_set():
                    return
                if told["client_type"] != "lua":
                    seen.update([told["command"].split()[0].upper()])

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        try:
            yield seen
        finally:
            is_over.set()
            server.command("PING")
            thread.join(5)


class Save(Command, queue="test:rows:save"):
    pass


async def save(order: Save) -> None:
    pass


# the arithmetic


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_store_that_does_not_bill_keeps_its_pace(store: str) -> None:
    assert pace_within(budget_of("1/day"), store=store, lease=LEASE) == Pace(sweep=15)
    assert pace_within(None, store="redis", lease=LEASE) == Pace(sweep=15)


@pytest.mark.parametrize("text", ["2k/day", "10k/day", "14k/day", "500k/month", "7/minute"])
def test_a_budget_is_kept_with_half_left_for_jobs(text: str) -> None:
    budget = budget_of(text)
    pace = pace_within(budget, store="redis", lease=LEASE)

    assert budget.a_day / 2 * 0.9 <= idle_cost(pace) <= budget.a_day / 2


def test_a_wide_budget_changes_nothing() -> None:
    assert pace_within(budget_of("1M/day"), store="redis", lease=LEASE) == Pace(sweep=15)


def test_a_cluster_asks_each_queue_by_itself() -> None:
    alone = pace_within(budget_of("20k/day"), store="redis", lease=LEASE, queues=20)
    spread = pace_within(budget_of("20k/day"), store="cluster", lease=LEASE, queues=20)

    assert spread.claim > alone.claim
    assert idle_cost(spread, slots=20) <= 10_000


def test_what_cannot_fit_is_refused_with_what_to_do() -> None:
    with pytest.raises(SettingsError, match=r"Raise it to 1,4\d\d/day or more") as refused:
        pace_within(budget_of("1k/day"), store="redis", lease=LEASE)
    assert "SQLite or PostgreSQL" in str(refused.value)
    with pytest.raises(SettingsError, match="serve fewer queues here"):
        pace_within(budget_of("10k/day"), store="cluster", lease=LEASE, queues=50)


def test_the_slowest_pace_is_still_alive() -> None:
    slowest = Pace() * 1_000
    assert slowest == LONGEST
    assert slowest.claim <= 300


def test_a_budget_s_share_of_a_day() -> None:
    assert Budget(7, timedelta(minutes=1)).a_day == 7 * 1_440


# whether it is true


@pytest.mark.parametrize(
    "pace",
    [
        Pace(claim=0.5, sweep=0.5, beat=2, prune=0.5, learn=1),
        Pace(claim=4, sweep=4, beat=4, prune=4, learn=1),  # mostly for breakers and changes
    ],
)
@pytest.mark.xdist_group("redis")
async def test_an_idle_worker_asks_as_often_as_reckoned(pace: Pace) -> None:
    with RedisServer() as server:
        async with Relevo(server.url, apps=[App("test", workers=[save])]) as relevo:
            worker = Worker(relevo, concurrency=20)
            worker.pace = pace
            running = asyncio.create_task(worker.run())
            await asyncio.sleep(1)
            with counted(server) as seen:
                await asyncio.sleep(4)
            worker.stop()
            await running

    reckoned = idle_cost(worker.pace, has_recurring=False) * 4 / DAY
    assert 0.7 * reckoned <= seen.total() <= 1.2 * reckoned, seen


@pytest.mark.xdist_group("redis")
async def test_a_poller_s_turn_costs_as_much_as_reckoned() -> None:
    turns: list[str] = []
    app = App("test", workers=[save])

    @app.poller("hotel:1", every="100ms", jitter="0ms")
    async def pull(poll: Poll, ctx: Context) -> None:
        turns.append(poll.key)

    with RedisServer() as server:
        async with Relevo(server.url, apps=[app]) as relevo, working(relevo) as worker:
            await until(lambda: len(turns) > 2)
            with counted(server) as seen:
                before = len(turns)
                await until(lambda: len(turns) >= before + 20)
                count = len(turns) - before
            assert worker.pace == Pace(sweep=15)

    assert (TURN - 1) * count <= seen.total() <= (TURN + 1) * count, seen


@pytest.mark.xdist_group("redis")
async def test_a_worker_is_refused_what_its_budget_cannot_pay() -> None:
    with RedisServer() as server:
        async with Relevo(server.url, apps=[App("test", workers=[save])]) as relevo:
            with pytest.raises(SettingsError, match="RELEVO_BUDGET allows 100 commands a day"):
                await relevo.work(budget=budget_of("100/day"))
            worker = Worker(relevo, budget=budget_of("10k/day"))
            assert worker.pace.claim > 30
