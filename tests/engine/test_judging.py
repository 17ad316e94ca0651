"""What a provider's answer means for the job that asked, and for the jobs beside it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from relevo import (
    App,
    Breaker,
    Command,
    Context,
    DefinitionError,
    ErrorRow,
    ProviderCredentials,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUncertain,
    Relevo,
    State,
    constant,
    per_key,
)
from relevo.breaker import Circuit
from relevo.desk import Desk, Person, Role
from relevo.ids import lasting
from relevo.job import Job
from relevo.store import EffectState, Filter
from relevo.testing import ManualClock, drain, until, working

Start = Callable[..., Relevo]
ANA = Person("ana", Role.OPERATOR)

RULE = Breaker("acme:{account}", failures=3, cooldown="30s", cap="2m", release=100)


class Ship(Command, queue="shop:parcels:ship", attempts=3, backoff=constant("1s")):
    number: int


class Charge(Command, queue="shop:acme:charge", attempts=3, backoff=constant("1s"), breaker=RULE):
    account: int
    number: int


class Sync(
    Command,
    queue="shop:acme:sync",
    attempts=3,
    backoff=constant("1s"),
    breaker=Breaker("acme", failures=3),
):
    number: int


class Send(Command, queue="shop:mail:send", attempts=3, backoff=constant("1s"), rate="100/s"):
    number: int


class Post(
    Command,
    queue="shop:mail:post",
    attempts=3,
    backoff=constant("1s"),
    rate=per_key("hotel:{hotel}", "100/s"),
):
    hotel: int
    number: int


class Provider:
    """Answers each job with what stands in `answers`, or well; counts the calls of each."""

    def __init__(self) -> None:
        self.answers: dict[int, Exception] = {}
        self.calls: Counter[int] = Counter()

    def asked(self, number: int) -> str:
        self.calls[number] += 1
        if number in self.answers:
            raise self.answers[number]
        return "ok"

    def app(self) -> App:
        async def ship(order: Ship, ctx: Context) -> None:
            self.asked(order.number)

        async def charge(order: Charge, ctx: Context) -> None:
            self.asked(order.number)

        async def sync(order: Sync, ctx: Context) -> None:
            self.asked(order.number)

        async def send(order: Send, ctx: Context) -> None:
            self.asked(order.number)

        async def post(order: Post, ctx: Context) -> None:
            self.asked(order.number)

        return App("shop", workers=[ship, charge, sync, send, post])


async def job_of(relevo: Relevo, id: str) -> Job:
    [job] = await relevo.store.find([id])
    assert job is not None
    return job


async def circuit(relevo: Relevo, name: str) -> Circuit:
    return {name: circuit for name, circuit, _ in await relevo.breakers.all()}[name]


async def parked(relevo: Relevo, park: str) -> int:
    return await relevo.store.count(Filter(park=park, states=frozenset({State.PARKED})))


async def _nothing_to_do(relevo: Relevo) -> bool:
    busy = frozenset({State.READY, State.RUNNING})
    return await relevo.store.count(Filter(states=busy)) == 0


# -- the rows of an app


async def _nothing(order: Ship) -> None: ...


async def test_an_app_s_rows_are_those_of_its_queues(start: Start) -> None:
    busy = ErrorRow("carrier.Busy", "wait", retry_after="30s")
    relevo = start(App("shop", workers=[_nothing], errors=[busy]), App("other", errors={}))

    assert relevo.error_rows("shop:parcels:ship") == (busy,)
    assert relevo.error_rows("shop:a-queue-that-is-not-ours") == (busy,)
    assert relevo.error_rows("other:any:queue") == ()
    assert relevo.error_rows("nobody:any:queue") == ()


def test_a_row_that_is_none_is_refused_where_it_is_written() -> None:
    with pytest.raises(DefinitionError, match="no row of the table of errors"):
        App("shop", errors=[ValueError])  # pyright: ignore[reportArgumentType] - on purpose


# -- a key that is not accepted


async def test_a_wrong_key_parks_this_job_unspent_and_no_other(start: Start) -> None:
    provider = Provider()
    relevo = start(provider.app())
    provider.answers[1] = ProviderCredentials("the key has expired")
    bad, good = await relevo.enqueue_many([Ship(1), Ship(2)])
    await drain(relevo)

    job = await job_of(relevo, bad.id)
    assert (job.state, job.park, job.attempt) == (
        State.PARKED,
        "unaccepted:shop:parcels:ship",
        0,
    )
    assert job.failure is not None and job.failure.message == "the key has expired"
    assert (await job_of(relevo, good.id)).state is State.DONE
    [wait] = await Desk(relevo.store).waiting()
    assert (wait.name, wait.parked, wait.why) == (
        "unaccepted:shop:parcels:ship",
        1,
        "the key has expired",
    )


async def test_when_the_key_is_mended_one_act_lets_all_of_them_go(start: Start) -> None:
    provider = Provider()
    relevo = start(provider.app())
    provider.answers = {n: ProviderCredentials("expired") for n in range(8)}
    await relevo.enqueue_many(Charge(28, n) for n in range(8))
    await drain(relevo, concurrency=1)
    assert await parked(relevo, "unaccepted:acme:28") == 3
    assert await parked(relevo, "breaker:acme:28") == 5

    provider.answers = {}
    desk = Desk(relevo.store)
    sweep = await desk.let_go("unaccepted:acme:28", ANA, "a new key")
    await drain(relevo, skip_waits=True, until=lambda: sum(provider.calls.values()) == 3 + 8)
    await drain(relevo, skip_waits=True)

    assert sweep.changed == 3
    assert (await circuit(relevo, "acme:28")).state == "closed"
    assert await relevo.store.count(Filter(states=frozenset({State.DONE}))) == 8
    assert await desk.waiting() == []


async def test_three_jobs_of_an_account_open_its_breaker_and_no_other_account_s(
    start: Start,
) -> None:
    provider = Provider()
    relevo = start(provider.app())
    provider.answers = {n: ProviderCredentials("expired") for n in range(3)}
    await relevo.enqueue_many([*(Charge(28, n) for n in range(5)), Charge(7, 10), Charge(7, 11)])
    await drain(relevo, concurrency=1)

    assert (await circuit(relevo, "acme:28")).state == "open"
    assert provider.calls[3] == provider.calls[4] == 0
    assert provider.calls[10] == provider.calls[11] == 1


async def test_a_success_between_them_says_that_it_is_not_the_key(start: Start) -> None:
    provider = Provider()
    relevo = start(provider.app())
    provider.answers = {n: ProviderCredentials("expired") for n in (0, 1, 3, 4)}
    for n in range(5):
        await relevo.enqueue(Charge(28, n))
        await drain(relevo, concurrency=1)

    assert (await circuit(relevo, "acme:28")).state == "closed"
    assert await parked(relevo, "unaccepted:acme:28") == 4


async def test_one_job_that_asks_three_times_is_one_job(start: Start) -> None:
    provider = Provider()
    relevo = start(provider.app())
    provider.answers = {1: ProviderCredentials("expired")}
    receipt = await relevo.enqueue(Charge(28, 1))
    for _ in range(4):
        await drain(relevo)
        await relevo.desk.retry([receipt.id], ANA)

    assert (await circuit(relevo, "acme:28")).state == "closed"


async def test_a_breaker_that_names_no_account_stays_closed(start: Start) -> None:
    """Its jobs may be those of several keys."""
    provider = Provider()
    relevo = start(provider.app())
    provider.answers = {n: ProviderCredentials("expired") for n in range(6)}
    await relevo.enqueue_many(Sync(n) for n in range(7))
    await drain(relevo, concurrency=1)

    assert await relevo.breakers.all() == []
    assert await parked(relevo, "unaccepted:acme") == 6
    assert provider.calls[6] == 1


# -- a request to wait


@pytest.mark.parametrize("wait", [timedelta(minutes=2), None])
async def test_a_request_to_wait_spends_nothing(start: Start, wait: timedelta | None) -> None:
    provider = Provider()
    relevo = start(provider.app())
    provider.answers[1] = ProviderUnavailable("429", retry_after=wait, spends=False)
    receipt = await relevo.enqueue(Ship(1), attempts=1)
    await drain(relevo)

    job = await job_of(relevo, receipt.id)
    delay = job.run_at - await relevo.store.now()
    assert (job.state, job.attempt) == (State.SCHEDULED, 0)
    assert 0 < delay <= (120_000 if wait else 1_500)


@pytest.mark.parametrize(
    ("orders", "name", "apart"),
    [
        ([Charge(28, n) for n in range(6)], "acme:28", Charge(7, 9)),
        ([Send(n) for n in range(6)], "shop:mail:send", Ship(9)),
        ([Post(28, n) for n in range(6)], "shop:mail:post/hotel:28", Post(7, 9)),
    ],
    ids=["a breaker", "a rate", "a rate of each key"],
)
async def test_the_other_jobs_of_a_breaker_or_a_rate_wait_too(
    start: Start, clock: ManualClock, orders: list[Command], name: str, apart: Command
) -> None:
    provider = Provider()
    relevo = start(provider.app())
    provider.answers[0] = ProviderUnavailable("429", retry_after=timedelta(minutes=5), spends=False)
    await relevo.enqueue_many([*orders, apart])
    await drain(relevo, concurrency=1)

    assert provider.calls == {0: 1, 9: 1}
    resting = await circuit(relevo, name)
    assert (resting.state, resting.failures) == ("open", 0)
    assert "429" in resting.history[-1].why
    assert await parked(relevo, f"breaker:{name}") == 5

    provider.answers = {}
    clock.advance("4m")
    await drain(relevo, concurrency=1)
    assert provider.calls == {0: 1, 9: 1}
    clock.advance("90s")
    await drain(relevo, skip_waits=True, until=lambda: len(provider.calls) == 7)
    await drain(relevo, skip_waits=True)

    assert (await circuit(relevo, name)).state == "closed"
    done = (await relevo.store.page(Filter(states=frozenset({State.DONE})))).jobs
    assert len(done) == 7
    assert {job.attempt for job in done} == {1}  # the one that ended it
    assert provider.calls == {0: 2, **dict.fromkeys(range(1, 6), 1), 9: 1}


async def test_a_rate_s_breaker_counts_no_failures(start: Start) -> None:
    provider = Provider()
    relevo = start(provider.app())
    provider.answers = {n: ProviderUnavailable("503") for n in range(20)}
    await relevo.enqueue_many(Send(n) for n in range(20))
    await drain(relevo, concurrency=1)

    assert await relevo.breakers.all() == []
    assert len(provider.calls) == 20


async def test_a_rest_doubles_no_cool_down(start: Start, clock: ManualClock) -> None:
    """After it the rule's own is what a failing probe begins with."""
    provider = Provider()
    relevo = start(provider.app())
    hour = timedelta(hours=1)
    provider.answers[1] = ProviderUnavailable("429", retry_after=hour, spends=False)
    await relevo.enqueue(Charge(28, 1))
    await drain(relevo)
    provider.answers[1] = ProviderUnavailable("503")
    clock.advance("61m")
    await drain(relevo)

    failed = await circuit(relevo, "acme:28")
    assert failed.state == "open"
    assert failed.cooldown == 30_000


async def test_a_job_that_waits_long_is_told_of_until_it_has_ended(
    start: Start, clock: ManualClock
) -> None:
    provider = Provider()
    relevo = start(provider.app())
    desk = Desk(relevo.store)
    provider.answers[1] = ProviderUnavailable(
        "429: too many requests", retry_after=timedelta(minutes=10), spends=False
    )
    began = await relevo.store.now()
    receipt = await relevo.enqueue(Ship(1))
    for _ in range(4):
        await drain(relevo)
        early = await desk.waiting()
        clock.advance("10m")
    assert provider.calls[1] == 4
    [wait] = early
    assert (wait.name, wait.job, wait.parked) == ("shop:parcels:ship", receipt.id, 0)
    assert began <= wait.since < began + 60_000
    assert "429" in wait.why

    provider.answers = {}
    await drain(relevo)
    assert await desk.waiting() == []


async def test_a_job_that_snoozes_by_plan_does_not_wait(start: Start, clock: ManualClock) -> None:
    from relevo import Snooze

    async def ship(order: Ship) -> Snooze:
        return Snooze("20m", "not yet")

    relevo = start(App("shop", workers=[ship]))
    await relevo.enqueue(Ship(1))
    for _ in range(3):
        await drain(relevo)
        clock.advance("20m")

    assert await Desk(relevo.store).waiting() == []


# -- probes


async def test_after_an_uncertain_probe_no_other_is_sent_until_a_person_decides(
    start: Start, clock: ManualClock
) -> None:
    calls: Counter[int] = Counter()
    broken = True

    async def charge(order: Charge, ctx: Context) -> None:
        async def call(key: str) -> str:
            calls[order.number] += 1
            if broken:
                raise ProviderUncertain("sent, and no answer")
            return "ok"

        await ctx.once("charge", call)

    relevo = start(App("shop", workers=[charge]))
    await relevo.enqueue_many(Charge(28, n) for n in range(8))
    await drain(relevo, concurrency=1)
    assert sum(calls.values()) == RULE.failures  # those that opened it

    async with working(relevo, concurrency=1) as worker:
        for _ in range(4):
            clock.advance("15m")
            await relevo.breakers.tend()
            worker.nudge()
            await until(lambda: _nothing_to_do(relevo))
    assert sum(calls.values()) == RULE.failures + 1
    stuck = await circuit(relevo, "acme:28")
    assert (stuck.state, stuck.held) == ("open", True)
    assert await parked(relevo, "breaker:acme:28") == 8 - RULE.failures - 1

    broken = False
    desk = Desk(relevo.store)
    await desk.deny_effect(stuck.probe, "charge", ANA)  # it did not happen: this job goes on
    await drain(relevo, concurrency=1, skip_waits=True, until=lambda: len(calls) == 8)
    assert (await circuit(relevo, "acme:28")).state == "closed"


async def test_a_person_lets_another_job_probe(start: Start, clock: ManualClock) -> None:
    provider = Provider()
    relevo = start(provider.app())
    provider.answers = {n: ProviderUncertain("?") for n in range(4)}
    await relevo.enqueue_many(Charge(28, n) for n in range(6))
    await drain(relevo, concurrency=1)
    clock.advance("1m")
    await relevo.breakers.tend()
    await drain(relevo, concurrency=1)
    assert (await circuit(relevo, "acme:28")).held

    await Desk(relevo.store).turn_breaker("acme:28", "probe", ANA)
    await relevo.breakers.tend()
    await drain(relevo, skip_waits=True, until=lambda: provider.calls[5] == 1)
    assert (await circuit(relevo, "acme:28")).state == "closed"


async def test_another_job_probes_once_a_person_has_discarded_the_held_one(
    start: Start, clock: ManualClock
) -> None:
    provider = Provider()
    relevo = start(provider.app())
    provider.answers = {n: ProviderUncertain("?") for n in range(4)}
    await relevo.enqueue_many(Charge(28, n) for n in range(6))
    await drain(relevo, concurrency=1)
    clock.advance("1m")
    await relevo.breakers.tend()
    await drain(relevo, concurrency=1)
    stuck = await circuit(relevo, "acme:28")
    await relevo.breakers.tend()
    assert (await circuit(relevo, "acme:28")) == stuck
    assert stuck.held

    await Desk(relevo.store).discard([stuck.probe], ANA, "given up")
    await relevo.breakers.tend()
    await relevo.breakers.tend()
    await drain(relevo, skip_waits=True, until=lambda: provider.calls[5] == 1)
    assert (await circuit(relevo, "acme:28")).state == "closed"


async def test_a_probe_that_ran_out_of_time_within_an_effect_is_uncertain(
    start: Start, clock: ManualClock
) -> None:
    """Its next run finds the effect unknown; until then no other job probes."""
    calls: Counter[int] = Counter()
    answer: dict[int, Callable[[], Awaitable[str]]] = {}

    async def stays_away() -> str:
        await asyncio.sleep(60)
        return "never"

    async def charge(order: Charge, ctx: Context) -> None:
        async def call(key: str) -> str:
            calls[order.number] += 1
            return await answer.get(order.number, stays_away)()

        await ctx.once("charge", call)

    relevo = start(App("shop", workers=[charge]))
    await relevo.desk.turn_breaker("acme:28", "open", ANA)
    first = await relevo.enqueue(Charge(28, 1), timeout="200ms")
    await relevo.enqueue(Charge(28, 2), timeout="200ms")
    await drain(relevo, concurrency=1)
    assert not calls
    clock.advance("11m")
    await relevo.breakers.tend()
    await drain(relevo, skip_waits=True)

    stuck = await circuit(relevo, "acme:28")
    assert calls == {1: 1}
    assert (stuck.state, stuck.held, stuck.probe) == ("open", True, first.id)
    assert (await job_of(relevo, first.id)).state is State.HELD


# -- a refusal


async def test_what_a_person_retries_after_a_refusal_has_a_fresh_key(start: Start) -> None:
    keys: list[str] = []

    async def ship(order: Ship, ctx: Context) -> None:
        async def call(key: str) -> str:
            keys.append(key)
            if len(keys) == 1:
                raise ProviderRefused("the card was declined")
            return "ok"

        await ctx.once("charge", call)

    relevo = start(App("shop", workers=[ship]))
    receipt = await relevo.enqueue(Ship(1))
    await drain(relevo)
    job = await job_of(relevo, receipt.id)
    assert (job.state, job.attempt) == (State.DEAD, 1)
    assert job.failure is not None and job.failure.message == "the card was declined"

    await relevo.desk.retry([receipt.id], ANA)
    await drain(relevo)
    assert keys == [f"{lasting(receipt.id)}:charge", f"{lasting(receipt.id)}:charge#2"]
    effect = await relevo.desk.effect(receipt.id, "charge")
    assert effect.state is EffectState.CONFIRMED


# -- errors raised outside once()


class Busy(Exception):
    def __init__(self, wait: str) -> None:
        super().__init__("503")
        self.headers = {"Retry-After": wait}


@pytest.mark.parametrize(("wait", "least"), [("120", 120_000), ("86400", 3_600_000), ("x", 1_000)])
async def test_a_client_s_error_outside_once_decides_the_wait_alone(
    start: Start, wait: str, least: int
) -> None:
    provider = Provider()
    relevo = start(provider.app())
    provider.answers[1] = Busy(wait)
    before = await relevo.store.now()
    receipt = await relevo.enqueue(Ship(1))
    await drain(relevo)

    job = await job_of(relevo, receipt.id)
    assert (job.state, job.attempt) == (State.SCHEDULED, 1)
    assert before + least * 0.7 <= job.run_at <= await relevo.store.now() + least + 500
