"""The commands that fault tests send, and workers that write down what they do."""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import re
import signal
import sys
import time
from datetime import datetime
from pathlib import Path

from relevo import (
    App,
    Breaker,
    Command,
    Context,
    Dead,
    PlainContext,
    ProviderUnavailable,
    constant,
)
from relevo.testing import until
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


class Block(
    Command, queue="fault:people:block", attempts=9, backoff=constant("100ms"), timeout="30s"
):
    """Holds the event loop of its process up, asleep or busy, or until there is a file `until`."""

    number: int
    ms: int
    is_busy: bool
    until: str = ""


class Hog(Command, queue="fault:people:hog", attempts=9, backoff=constant("100ms"), timeout="30s"):
    """Takes every file handle of its process for a while."""

    number: int
    ms: int


class Pill(Command, queue="fault:people:pill", backoff=constant("100ms"), timeout="3s"):
    """Ends its process, or blocks its event loop for ever; `kind` says how."""

    number: int
    kind: str


class Good(Command, queue="fault:people:pill", backoff=constant("100ms")):
    """An ordinary job of 20 ms in the same queue, with the settings that come by default."""

    number: int
    ms: int = 20


class Guest(
    Command, queue="fault:people:guest", backoff=constant("100ms"), ordered="guest:{guest}"
):
    """One of a guest's orders, which are carried out in turn; `kind` makes it a pill."""

    guest: str
    number: int
    kind: str = ""


class Parcel(
    Command,
    queue="fault:carrier:parcel",
    attempts=3,
    backoff=constant("100ms"),
    timeout="60s",
    abandon_after="2s",
):
    """A call of a client that blocks, by a plain function; `is_once` says whether it is guarded."""

    number: int
    ms: int
    is_once: bool = False


class Resize(
    Command,
    queue="fault:carrier:resize",
    attempts=2,
    backoff=constant("100ms"),
    timeout="3s",
    isolate="process",
    memory="256MB",
):
    """Work for a library in C, in a child process; `kind` says what becomes of it."""

    number: int
    ledger: str
    kind: str = ""
    ms: int = 0


def resize(order: Resize, ctx: PlainContext) -> str:
    ledger = Ledger(order.ledger)
    ledger.write("start", order.number, ctx.id)
    match order.kind:
        case "loop":  # in C, with the interpreter's lock, for longer than anybody lives
            re.match(r"(a+)+$", "a" * 60 + "b")
        case "memory":
            ledger.write("memory", len(bytearray(1 << 30)))
        case "":
            pass
        case kind:
            swallow(kind)

    def call(key: str) -> str:
        ledger.write("effect", order.number, key)
        time.sleep(order.ms / 1_000)
        return f"IMAGE-{order.number}"

    def find(key: str) -> str | None:
        return f"IMAGE-{order.number}" if ledger.has(key) else None

    return ctx.once("resize", call, find=find)


COOLDOWN = 2.0


class Call(
    Command,
    queue="fault:provider:call",
    attempts=5,
    backoff=constant("200ms"),
    timeout="20s",
    breaker=Breaker("provider", failures=3, cooldown=f"{COOLDOWN}s", release=100),
):
    """A call to a provider whose state is the last `provider` line of the ledger."""

    number: int


class Reserve(
    Command,
    queue="fault:provider:reserve",
    attempts=5,
    backoff=constant("200ms"),
    timeout="60s",
    breaker="reservations",
):
    """A call that cannot be looked up, at a provider that hangs while the ledger says so."""

    number: int


class Piece(
    Command, queue="fault:flow:piece", attempts=25, backoff=constant("100ms"), timeout="20s"
):
    """A child of a flow; a bad one ends among the dead letters."""

    number: int
    ms: int
    bad: bool = False


class Whole(Command, queue="fault:flow:whole", attempts=25, backoff=constant("100ms")):
    """The parent."""

    number: int


class Leaf(
    Command, queue="fault:group:leaf", attempts=25, backoff=constant("100ms"), timeout="20s"
):
    """A member of a group; it adds two more while its number is below `grows`."""

    number: int
    grows: int


class Tick(Command, queue="fault:time:tick", attempts=25, backoff=constant("100ms")):
    """What is ordered every second."""

    number: int


PILLS = ("exit", "segv", "kill", "overflow")


def swallow(kind: str) -> None:
    """End this process as broken code does, or block its event loop."""
    match kind:
        case "exit":
            os._exit(1)
        case "segv":
            os.kill(os.getpid(), signal.SIGSEGV)
            time.sleep(60)
        case "kill":  # as the kernel does when memory runs out
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        case "host":  # as the kernel does where all of them are in one cgroup
            siblings = Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read_text()
            for pid in sorted(map(int, siblings.split()), key=lambda pid: pid == os.getpid()):
                os.kill(pid, signal.SIGKILL)
            time.sleep(60)
        case "overflow":
            sys.setrecursionlimit(1 << 30)
            endless(0)
        case "block":
            time.sleep(3_600)
        case _:
            raise ValueError(kind)


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)
def endless(depth: int) -> int:
    """Call itself through C until the stack is full."""
    return endless(depth + 1)


def app(ledger: Ledger, *, ticks: bool = False) -> App:
    """The app of most rows; with `ticks` it has a timetable too."""

    async def effect(ctx: Context, number: int, ms: int) -> None:
        async def call(key: str) -> str:
            ledger.write("effect", number, key)
            await asyncio.sleep(random.uniform(0, ms) / 1_000)
            return f"LABEL-{number}"

        async def find(key: str) -> str | None:
            return f"LABEL-{number}" if ledger.has(key) else None

        await ctx.once("label", call, find=find)

    async def print_label(order: Print, ctx: Context) -> None:
        ledger.write("start", order.number, ctx.id)
        await asyncio.sleep(random.uniform(0, order.ms) / 1_000)
        await effect(ctx, order.number, order.ms)
        ledger.write("end", order.number, ctx.id)

    async def nap(order: Nap, ctx: Context) -> None:
        ledger.write("start", order.number, ctx.id)
        await asyncio.sleep(order.ms / 1_000)
        ledger.write("end", order.number, ctx.id)

    async def block(order: Block, ctx: Context) -> None:
        ledger.write("start", order.number, ctx.id)
        end = time.monotonic() + order.ms / 1_000
        while (left := end - time.monotonic()) > 0:
            if order.until and Path(order.until).exists():
                break
            if not order.is_busy:  # the mistake that is tested
                time.sleep(min(left, 0.05) if order.until else left)
        ledger.write("end", order.number, ctx.id)

    async def pill(order: Pill, ctx: Context) -> None:
        ledger.write("start", order.number, ctx.id)
        swallow(order.kind)

    async def good(order: Good, ctx: Context) -> None:
        ledger.write("start", order.number, ctx.id)
        await asyncio.sleep(order.ms / 1_000)
        await effect(ctx, order.number, 0)
        ledger.write("end", order.number, ctx.id)

    def parcel(order: Parcel, ctx: PlainContext) -> None:
        ledger.write("start", order.number, ctx.id)

        def call(key: str) -> str:
            ledger.write("effect", order.number, key)
            time.sleep(order.ms / 1_000)
            return f"LABEL-{order.number}"

        def find(key: str) -> str | None:
            return f"LABEL-{order.number}" if ledger.has(key) else None

        if order.is_once:
            ctx.once("label", call, find=find)
        else:
            call(ctx.id)
        ledger.write("end", order.number, ctx.id)

    async def guest(order: Guest, ctx: Context) -> None:
        ledger.write("start", order.number, ctx.id)
        if order.kind:
            swallow(order.kind)
        await effect(ctx, order.number, 1)
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

    async def call(order: Call, ctx: Context) -> None:
        match ledger.facts("provider")[-1].word:
            case "down":
                ledger.write("failed", order.number)
                raise ProviderUnavailable("503")
            case "hangs":
                ledger.write("probe", order.number, ctx.id)
                await until(lambda: ledger.facts("provider")[-1].word != "hangs", timeout="15s")
        await effect(ctx, order.number, 1)

    async def reserve(order: Reserve, ctx: Context) -> None:
        async def call(key: str) -> str:
            ledger.write("effect", order.number, key)
            await until(lambda: ledger.facts("provider")[-1].word != "hangs", timeout="50s")
            return f"RES-{order.number}"

        await ctx.once("reserve", call)

    async def piece(order: Piece, ctx: Context) -> Dead | None:
        await asyncio.sleep(random.uniform(0, order.ms) / 1_000)
        await effect(ctx, order.number, order.ms)
        return Dead("it was a bad one") if order.bad else None

    async def leaf(order: Leaf, ctx: Context) -> None:
        if order.number < order.grows:
            group = await ctx.group("grove")
            more = [Leaf(2 * order.number + n, order.grows) for n in range(2)]
            await group.add_many(more)
        await effect(ctx, order.number, 20)

    async def whole(order: Whole, ctx: Context) -> None:
        await effect(ctx, order.number, 5)

    async def tick(order: Tick, ctx: Context) -> None:
        await effect(ctx, order.number, 1)

    people = [print_label, nap, block, pill, good, parcel, resize, guest, hog]
    made = App("fault", workers=[*people, call, reserve, piece, leaf, whole, tick])
    if ticks:

        @made.schedule("* * * * * *", missed="all")
        def every_second(at: datetime) -> Command:
            return Tick(int(at.timestamp()))

    return made


def hired() -> App:
    """The same for a process that finds its ledger in the environment."""
    return app(Ledger(os.environ["FAULT_LEDGER"]))
