"""unique="latest": of the states of one thing the worker sees the newest, and never an older one
after it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from relevo import (
    App,
    Command,
    Context,
    Dead,
    Delivery,
    Intake,
    ProviderUncertain,
    Relevo,
    Retry,
    State,
    sources,
)
from relevo.desk import Person, Role
from relevo.store import Filter
from relevo.testing import drain, until, working

Start = Callable[..., Relevo]
ANN = Person("ann", Role.ADMIN)
QUEUE = "test:newest:sync"


class Sync(Command, queue=QUEUE, key="sub:{sub}", unique="latest", attempts=3):
    sub: str
    state: str


class Seen:
    """What the worker has seen, and what it is to do about a state."""

    def __init__(self) -> None:
        self.states: list[str] = []
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.app = App("test")

        @self.app.worker
        async def sync(order: Sync, ctx: Context) -> object:
            self.states.append(order.state)
            match order.state:
                case "slow":
                    self.begun.set()
                    await self.go.wait()
                case "again" if ctx.attempt == 1:
                    return Retry("not yet", "1h")
                case "dead":
                    return Dead("no use")
                case "doubtful":
                    raise ProviderUncertain("nobody knows")
                case _:
                    pass
            return None

        @self.app.webhook(
            "/in", source=sources.github("a secret of tests"), key=lambda d: d.json["id"]
        )
        async def came(delivery: Delivery, ctx: Intake) -> None:
            await ctx.enqueue(Sync(delivery.json["sub"], delivery.json["state"]))


async def deliver(relevo: Relevo, id: str, state: str) -> str:
    body = json.dumps({"id": id, "sub": "s1", "state": state}).encode()
    call = Delivery(path="/in", body=body, received_at=datetime.now(UTC))
    kept = (await relevo.receiver.take(relevo.receiver.doors["/in"], call)).kept
    return kept.jobs[0]


async def states(relevo: Relevo) -> dict[State, int]:
    jobs = (await relevo.store.page(Filter(queue=QUEUE))).jobs
    return {state: n for state in State if (n := sum(job.state is state for job in jobs))}


async def test_of_three_states_that_arrive_the_worker_sees_the_last(start: Start) -> None:
    seen = Seen()
    relevo = start(seen.app)
    first, second, last = [
        await deliver(relevo, f"evt_{state}", state) for state in ("active", "past_due", "canceled")
    ]

    await drain(relevo)

    assert seen.states == ["canceled"]
    assert await states(relevo) == {State.DONE: 1, State.CANCELLED: 2}
    for id in (first, second):
        job = await relevo.desk.job(id)
        assert (job.state, job.note) == (State.CANCELLED, f"replaced by {last}")
    assert relevo.telemetry.counts["joined"] == 0


async def test_a_provider_that_repeats_itself_makes_nothing_newer(start: Start) -> None:
    seen = Seen()
    relevo = start(seen.app)
    for state in ("active", "canceled", "active"):
        await deliver(relevo, f"evt_{state}", state)

    await drain(relevo)

    assert seen.states == ["canceled"]


async def test_what_comes_while_one_runs_runs_after_it_and_only_the_newest(start: Start) -> None:
    seen = Seen()
    relevo = start(seen.app)
    await relevo.enqueue(Sync("s1", "slow"))
    async with working(relevo):
        await asyncio.wait_for(seen.begun.wait(), 20)
        for state in ("past_due", "canceled"):
            await relevo.enqueue(Sync("s1", state))
        await relevo.enqueue(Sync("s2", "other"))
        await until(lambda: "other" in seen.states, timeout="20s")
        assert seen.states == ["slow", "other"]
        seen.go.set()
        await until(lambda: seen.states[-1] == "canceled", timeout="20s")

    assert seen.states == ["slow", "other", "canceled"]


async def test_a_held_job_swallows_nothing(start: Start) -> None:
    seen = Seen()
    relevo = start(seen.app)
    held = (await relevo.enqueue(Sync("s1", "doubtful"))).id
    await drain(relevo)
    assert (await relevo.desk.job(held)).state is State.HELD
    newer = [await deliver(relevo, f"evt_{n}", f"state {n}") for n in range(6)]
    await drain(relevo)
    assert seen.states == ["doubtful"]
    assert (await relevo.desk.job(held)).joined == 0

    await relevo.desk.discard([held], ANN, "it did happen")
    await drain(relevo, until=lambda: len(seen.states) > 1)

    assert seen.states == ["doubtful", "state 5"]
    assert (await relevo.desk.job(newer[0])).note == f"replaced by {newer[-1]}"


async def test_one_that_awaits_a_retry_goes_before_the_newer(start: Start) -> None:
    seen = Seen()
    relevo = start(seen.app)
    await relevo.enqueue(Sync("s1", "again"))
    await drain(relevo)
    await relevo.enqueue(Sync("s1", "canceled"))
    await drain(relevo)
    assert seen.states == ["again"]

    await drain(relevo, skip_waits=True)

    assert seen.states == ["again", "again", "canceled"]


async def test_an_older_dead_one_is_not_retried_after_a_newer(start: Start) -> None:
    seen = Seen()
    relevo = start(seen.app)
    old = (await relevo.enqueue(Sync("s1", "dead"))).id
    await drain(relevo)
    await relevo.enqueue(Sync("s1", "canceled"))
    await drain(relevo)

    assert await relevo.desk.retry([old], ANN) == [False]
    await drain(relevo)

    assert seen.states == ["dead", "canceled"]


@pytest.mark.parametrize("given", [None, "latest"], ids=["inherited", "said"])
async def test_an_order_with_a_key_of_its_own_is_replaced_too(
    start: Start, given: str | None
) -> None:
    seen = Seen()
    relevo = start(seen.app)
    for state in ("active", "canceled"):
        await relevo.enqueue(Sync("s1", state), key="mine", unique=given)  # pyright: ignore[reportArgumentType]

    await drain(relevo)

    assert seen.states == ["canceled"]
