"""The commands that fault tests send, and workers that write down what they do."""

from __future__ import annotations

import asyncio
import os
import random

from relevo import App, Command, Context, constant
from tests.faults.ledger import Ledger


class Print(
    Command, queue="fault:carrier:print", attempts=25, backoff=constant("100ms"), timeout="20s"
):
    """A label to print at a carrier, exactly once; it takes up to `ms` before and after."""

    number: int
    ms: int = 10
    text: str = ""


class Nap(Command, queue="fault:people:nap", attempts=25, backoff=constant("100ms"), timeout="90s"):
    """Something that takes a while and has no effect but to be noticed."""

    number: int
    ms: int


class Hog(Command, queue="fault:people:hog", attempts=1, timeout="30s"):
    """Takes every file handle of its process for a while."""

    number: int
    ms: int


def app(ledger: Ledger) -> App:
    """The app of most rows."""

    async def print_label(order: Print, ctx: Context) -> None:
        ledger.write("start", order.number, ctx.id)

        async def at_carrier(key: str) -> str:
            ledger.write("effect", order.number, key)
            await asyncio.sleep(random.uniform(0, order.ms) / 1_000)
            return f"LABEL-{order.number}"

        async def look_up(key: str) -> str | None:
            return f"LABEL-{order.number}" if ledger.has(key) else None

        await asyncio.sleep(random.uniform(0, order.ms) / 1_000)
        await ctx.once("label", at_carrier, find=look_up)
        ledger.write("end", order.number, ctx.id)

    async def nap(order: Nap, ctx: Context) -> None:
        ledger.write("start", order.number, ctx.id)
        await asyncio.sleep(order.ms / 1_000)
        ledger.write("end", order.number, ctx.id)

    async def hog(order: Hog, ctx: Context) -> None:
        handles: list[int] = []
        try:
            while True:
                handles.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            ledger.write("start", order.number, ctx.id)
            await asyncio.sleep(order.ms / 1_000)
        finally:
            for handle in handles:
                os.close(handle)
            ledger.write("end", order.number, ctx.id)

    return App("fault", workers=[print_label, nap, hog])


def hired() -> App:
    """The same for a process that finds its ledger in the environment."""
    return app(Ledger(os.environ["FAULT_LEDGER"]))
