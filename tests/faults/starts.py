"""A run that starts things, and is repeated: it raises, asks for another, takes too long, dies."""

from __future__ import annotations

import asyncio
import json
import os
import random
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from relevo import App, Command, Context, Event, Flow, Poll, Relevo, Retry, constant
from relevo.app import listener
from relevo.store import Filter
from relevo.telemetry import start_logging
from relevo.testing import until
from tests.faults.every_call import Tale, engine, victim
from tests.faults.ledger import Ledger
from tests.faults.verdict import OPEN

ROWS = 30
MANY = {"attempts": 100, "backoff": constant("50ms")}
FAST = {**MANY, "timeout": "10s"}


class Begin(Command, queue="starts:runs:begin", key="begin:{number}", unique="forever", **MANY,
            timeout="2s"):  # fmt: skip
    number: int


class Child(Command, queue="starts:children:one", **FAST):
    number: int
    part: str


class Row(Command, queue="starts:children:row", **FAST):
    number: int
    row: int


class Begun(Event, name="starts.begun"):
    number: int


PARTS = {
    "same": 2, "left": 1, "right": 1, "row": ROWS, "first": 1, "second": 1, "whole": 1,
    "keyed": 1, "done": 1,
}  # fmt: skip


async def effect(ledger: Ledger, ctx: Context, number: int, part: str) -> None:
    async def call(key: str) -> str:
        ledger.write(part, number, key)
        return "done"

    async def find(key: str) -> str | None:
        return "done" if ledger.has(key) else None

    await ctx.once(part, call, find=find)


def starts(ledger: Ledger, relevo: Relevo, *, posts: bool = False) -> App:
    """Three runs that end badly and one that ends well, and all of them start everything."""

    async def begin(order: Begin, ctx: Context) -> Any:
        number = order.number
        await ctx.enqueue(Child(number, "same"))
        await ctx.enqueue(Child(number, "same"))
        await ctx.publish(Begun(number))
        await ctx.enqueue_many(Row(number, row) for row in range(ROWS))
        flow = Flow("starts")
        pieces = [flow.add(Child(number, part), name=part) for part in ("first", "second")]
        flow.add(Child(number, "whole"), name="whole", after=pieces)
        await ctx.start(flow)
        keyed = Flow("keyed")
        keyed.add(Child(number, "keyed"), name="keyed")
        await ctx.start(keyed, key=number)
        if posts:
            async with relevo.transaction() as session:
                await relevo.enqueue(Child(number, "posted"), tx=session)
        match ctx.attempt % 4:
            case 1:
                raise ValueError("at the end")
            case 2:
                return Retry("once more", timedelta(milliseconds=50))
            case 3:
                await asyncio.sleep(60)
        await effect(ledger, ctx, number, "done")
        if posts:
            async with ctx.transaction():
                await ctx.enqueue(Child(number, "last"))
        return None

    async def child(order: Child, ctx: Context) -> None:
        await effect(ledger, ctx, order.number, order.part)

    async def row(order: Row, ctx: Context) -> None:
        await effect(ledger, ctx, order.number, "row")

    async def left(fact: Begun, ctx: Context) -> None:
        await effect(ledger, ctx, fact.number, "left")

    async def right(fact: Begun, ctx: Context) -> None:
        await effect(ledger, ctx, fact.number, "right")

    return App(
        "starts",
        workers=[begin, child, row],
        listeners=[listener(left, **FAST), listener(right, **FAST)],
    )


STARTS = Tale(starts, Begin, PARTS)
POSTS = Tale(partial(starts, posts=True), Begin, {**PARTS, "posted": 1, "last": 1})


class Tock(Command, queue="starts:pollers:tock", **FAST):
    pass


def turning(ledger: Ledger, relevo: Relevo, *, turns: int) -> App:
    """A poller each of whose turns looks once and orders the very same thing."""

    async def tock(order: Tock, ctx: Context) -> None:
        await effect(ledger, ctx, 0, "tock")

    app = App("starts", workers=[tock])

    @app.poller("turns", every="100ms", jitter="0s", backoff=constant("100ms"))
    async def turn(poll: Poll, ctx: Context) -> None:
        done = poll.cursor or 0
        if done == turns:
            poll.rest = timedelta(hours=1)
            ledger.write("over", 0)
            return
        await effect(ledger, ctx, done, "look")
        await ctx.enqueue(Tock())
        if random.random() < 0.1:
            raise ValueError("some turns fail at their end")
        poll.cursor = done + 1

    return app


async def serve(relevo: Relevo, ledger: Ledger) -> None:
    """Work until all turns were taken and what they ordered has ended."""
    stop = asyncio.Event()

    async def is_over() -> bool:
        if working.done():
            return True
        tocks = Filter(queue=Tock.__relevo__.queue, states=OPEN)
        return bool(ledger.counts("over")) and await relevo.store.count(tocks, most=1) == 0

    async with relevo:
        work = relevo.work(stop=stop, concurrency=10, lease="1s", grace="1s")
        working = asyncio.create_task(work)
        try:
            await until(is_over, timeout="200s")
        finally:
            stop.set()
            await working


def turn_and_die(store: str, database: str | None, path: str, turns: int, out: str) -> None:
    """Take turns in processes that die at random calls to the store, until all were taken."""
    with Path(out).open("ab") as lines:
        for stream in (1, 2):
            os.dup2(lines.fileno(), stream)
    start_logging("error", "text")
    ledger = Ledger(path)
    tale = Tale(partial(turning, turns=turns), Begin, {})
    died = 0
    while not ledger.counts("over"):
        fate = random.randint(10, 150), random.choice(("before", "after"))
        pid = victim(lambda fate=fate: serve(engine(store, database, ledger, *fate, tale), ledger))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code in (0, -9), f"a victim ended with {code}"
        died += code == -9
    last = victim(lambda: serve(engine(store, database, ledger, 0, "", tale), ledger))
    assert os.waitstatus_to_exitcode(os.waitpid(last, 0)[1]) == 0
    with Path(out).open("a") as lines:
        lines.write(json.dumps({"died": died}) + "\n")
