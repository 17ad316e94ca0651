"""A program that subscribes to another's events, and shares no code with it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from relevo import App, Context, Event, Relevo, constant, listener
from relevo.telemetry import start_logging
from tests.faults.ledger import Ledger

FAST = {"attempts": 100, "backoff": constant("50ms"), "timeout": "10s"}


class OrderPaid(Event, name="order.paid"):
    """As the subscriber declares it: the publisher's has more fields."""

    order: int


def app(ledger: Ledger, name: str, since: str | None) -> App:
    """One listener of that name, with an effect outside."""

    async def receipt(fact: OrderPaid, ctx: Context) -> None:
        async def call(key: str) -> str:
            ledger.write(name, fact.order, key)
            return "done"

        async def find(key: str) -> str | None:
            return "done" if ledger.has(key) else None

        await ctx.once("receipt", call, find=find)

    return App("mail", listeners=[listener(receipt, name=name, since=since, **FAST)])


def serve(
    store: str, database: str | None, path: str, name: str, since: str | None, out: str
) -> None:
    """Serve the listener until killed."""
    with Path(out).open("ab") as lines:
        for stream in (1, 2):
            os.dup2(lines.fileno(), stream)
    start_logging("warning", "text")
    ledger = Ledger(path)

    async def run() -> None:
        async with Relevo(store, database=database, apps=[app(ledger, name, since)]) as relevo:
            await relevo.work(concurrency=5, lease="1s", grace="1s")

    asyncio.run(run())
