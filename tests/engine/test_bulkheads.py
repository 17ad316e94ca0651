"""Bulkheads: the jobs of one queue never take all slots of a worker that serves several."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from relevo import App, Command, Context, Relevo
from relevo.bulkheads import Bulkheads
from relevo.durations import Durations, bucket_of, quantile
from relevo.errors import SettingsError
from relevo.job import Lease, State
from relevo.store import Want
from relevo.testing import until, working
from relevo.worker import Flight, Worker

Start = Callable[..., Relevo]


class Pay(Command, queue="test:bulkheads:pay"):
    n: int


class Mail(Command, queue="test:bulkheads:mail"):
    n: int


class Provider:
    """A provider that answers at once, or when it is let go."""

    def __init__(self, *, slow_from: int = 0) -> None:
        self.slow_from = slow_from
        self.answers = asyncio.Event()
        self.running = self.most = self.ended = self.mailed = 0

    async def pay(self, order: Pay) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        if self.ended >= self.slow_from:
            await self.answers.wait()
        self.running -= 1
        self.ended += 1

    async def mail(self, order: Mail) -> None:
        self.mailed += 1

    def app(self) -> App:
        async def pay(order: Pay) -> None:
            await self.pay(order)

        async def mail(order: Mail) -> None:
            await self.mail(order)

        return App("test", workers=[pay, mail])


async def test_a_slow_provider_leaves_slots_to_other_queues(start: Start) -> None:
    provider = Provider()
    relevo = start(provider.app())
    await relevo.enqueue_many(Pay(n) for n in range(60))

    async with working(relevo, concurrency=20) as worker:
        await until(lambda: provider.running == 16)
        await relevo.enqueue_many(Mail(n) for n in range(40))
        await until(lambda: provider.mailed == 40)
        assert (provider.running, worker.running) == (16, 16)
        provider.answers.set()
        await until(lambda: provider.ended == 60)

    assert provider.most == 16


async def test_a_provider_that_becomes_slow_takes_no_more_slots(start: Start) -> None:
    """Jobs that were claimed ahead while it was quick wait for a slot of their own queue."""
    provider = Provider(slow_from=500)
    relevo = start(provider.app())
    await relevo.enqueue_many(Pay(n) for n in range(3_000))

    async with working(relevo, concurrency=20, lease="2s"):
        await until(lambda: provider.running == 16)
        await relevo.enqueue_many(Mail(n) for n in range(40))
        await until(lambda: provider.mailed == 40)
        # What was claimed ahead does not wait here for ever: other workers may have room.
        await until(lambda: _is_given_back(relevo))
        provider.answers.set()
        await until(lambda: provider.ended == 3_000, timeout="30s")

    assert provider.most == 16


async def _is_given_back(relevo: Relevo) -> bool:
    [tally] = [each for each in await relevo.store.tally() if each.queue == Pay.__relevo__.queue]
    return tally.counts.get(State.RUNNING) == 16


@pytest.mark.parametrize(("slots", "most"), [(3, 3), (20, 20), (500, 20)])
async def test_a_queue_has_the_slots_it_is_given(start: Start, slots: int, most: int) -> None:
    provider = Provider()
    relevo = start(provider.app())
    await relevo.enqueue_many(Pay(n) for n in range(40))

    async with working(relevo, concurrency=20, slots={"test:bulkheads:pay": slots}):
        await until(lambda: provider.running == most)
        provider.answers.set()
        await until(lambda: provider.ended == 40)

    assert provider.most == most


async def test_a_worker_with_one_queue_gives_it_every_slot(start: Start) -> None:
    provider = Provider()
    relevo = start(provider.app())
    await relevo.enqueue_many(Pay(n) for n in range(30))

    async with working(relevo, concurrency=20, queues=["test:bulkheads:pay"]) as worker:
        await until(lambda: provider.running == 20)
        assert not worker.bulkheads.shares
        provider.answers.set()
        await until(lambda: provider.ended == 30)


async def test_a_full_queue_does_not_slow_the_claims_of_others(start: Start) -> None:
    """The other queue is drained in large claims although one slot of the slow one is free."""
    provider = Provider()
    relevo = start(provider.app())
    await relevo.enqueue_many(Pay(n) for n in range(15))

    async with working(relevo, concurrency=20) as worker:
        await until(lambda: provider.running == 15)
        claims = 0
        claim = worker.claim

        async def counted(wants: list[Want], count: int) -> object:
            nonlocal claims
            claims += 1
            return await claim(wants, count)

        worker.claim = counted  # pyright: ignore[reportAttributeAccessIssue] - counted here
        await relevo.enqueue_many(Mail(n) for n in range(2_000))
        await until(lambda: provider.mailed == 2_000)
        assert claims < 500
        provider.answers.set()


def test_a_queue_with_few_slots_left_is_claimed_by_itself() -> None:
    queues = ["a", "b"]
    bulkheads = Bulkheads(queues, 100, {})
    wants = [Want(queue=queue) for queue in queues]
    assert bulkheads.slots == {"a": 80, "b": 80}

    assert bulkheads.portions(wants, 100, []) == [(wants, 80)]
    bulkheads.shares["a"].running = 78
    assert bulkheads.portions(wants, 22, []) == [([wants[1]], 22), ([wants[0]], 2)]
    bulkheads.shares["a"].running = 80
    assert bulkheads.portions(wants, 20, []) == [([wants[1]], 20)]
    lease = Lease(id="x", queue="b", kind="K", payload=b"{}", attempt=1, attempts=1, token=1)
    bulkheads.shares["b"].running = 70
    local = [Flight(lease)] * 6
    assert bulkheads.portions(wants, 14, local) == [([wants[1]], 4)]


async def test_slots_that_make_no_sense_are_refused(start: Start) -> None:
    async def pay(order: Pay) -> None: ...

    relevo = start(App("test", workers=[pay]))
    for slots, said in (
        ({"test:bulkheads:mail": 3}, "which no worker here serves"),
        ({"test:bulkheads:pay": 0}, "are 1 to 10,000, not 0"),
    ):
        with pytest.raises(SettingsError, match=said):
            Worker(relevo, slots=slots)


async def test_a_heartbeat_tells_what_takes_long(start: Start) -> None:
    answers = asyncio.Event()

    async def pay(order: Pay, ctx: Context) -> None:
        async def charge(key: str) -> str:
            await asyncio.sleep(0.05)
            if order.n == 9:
                time.sleep(0.3)
                await answers.wait()
            return key

        await ctx.once("charge", charge)

    async def mail(order: Mail) -> None: ...

    relevo = start(App("test", workers=[pay, mail]))
    await relevo.enqueue_many(Pay(n) for n in range(9))
    async with working(relevo, concurrency=10, slots={"test:bulkheads:mail": 4}) as worker:
        worker.pace = replace(worker.pace, beat=0.3)
        await until(lambda: worker.finished == 9)
        await relevo.enqueue(Pay(9))

        lags: list[int] = []

        async def is_told() -> bool:
            found = [each for each in await relevo.store.workers() if each.id == worker.id]
            lags.extend(info.lag for info in found)
            return max(lags, default=0) >= 150 and any(
                each.is_effect and each.running for info in found for each in info.timings
            )

        await until(is_told, timeout="20s")
        [info] = [each for each in await relevo.store.workers() if each.id == worker.id]
        answers.set()

    run, effect = (
        next(each for each in info.timings if each.is_effect is is_effect)
        for is_effect in (False, True)
    )
    assert info.busy == {"test:bulkheads:pay": 1}
    assert (run.queue, run.name, run.running) == ("test:bulkheads:pay", "Pay", 1)
    assert (effect.name, effect.running, sum(effect.buckets.values())) == ("charge", 1, 9)
    assert 45 <= quantile(effect.buckets, 0.5) <= 5_000
    assert effect.longest > 0
    assert 0 < info.cpu < 2
    assert info.slots == {"test:bulkheads:mail": 4, "test:bulkheads:pay": 8}


@pytest.mark.parametrize("seconds", [0.0011, 0.0047, 0.05, 0.99, 31.0, 900.0])
def test_a_quantile_is_within_a_tenth(seconds: float) -> None:
    told = quantile({bucket_of(seconds): 3}, 0.5) / 1_000
    assert told == pytest.approx(seconds, rel=0.1)


def test_names_without_end_are_counted_together() -> None:
    durations = Durations()
    for n in range(300):
        durations.add(("q:a:b", f"effect-{n}", True), 0.01)
    told = durations.tell([])
    assert len(told) <= 101
    assert sum(sum(each.buckets.values()) for each in told) == pytest.approx(300, abs=1)
