"""A process that dies at its k-th call to the store, for every k, before and after it took effect.

`main` runs in a process that has imported everything and forks its victims from there, a wave at a
time. Each victim orders its own story and works until that story is told, or until it dies; then
one that does not die tells what is left. It ends with a JSON line: how many died, and the last k at
which one did.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from sqlalchemy import text

from relevo import App, Command, Context, Event, Flow, Relevo, constant
from relevo.app import listener
from relevo.relay import Relayed
from relevo.store import Filter
from relevo.stores import open_store
from relevo.telemetry import start_logging
from relevo.testing import FaultyStore, until
from tests.faults.ledger import Ledger
from tests.faults.verdict import OPEN, SEEN, drained

WAVE = 8
PARTS = ("label", "follow", "left", "right", "first", "second", "whole")
"""The effects of one story, each of which happens once."""

FAST = {"attempts": 25, "backoff": constant("50ms"), "timeout": "10s"}


class Order(Command, queue="story:orders:take", key="order:{number}", unique="forever", **FAST):
    number: int


class Follow(Command, queue="story:orders:follow", **FAST):
    number: int


class Ordered(Event, name="story.ordered"):
    number: int


class Piece(Command, queue="story:flow:piece", **FAST):
    number: int
    part: str


class Whole(Command, queue="story:flow:whole", **FAST):
    number: int


def stories(ledger: Ledger, begin: Callable[[Flow], Awaitable[Any]]) -> App:
    """What becomes of an order: an effect; a row, a command, an event, a flow, all or none."""

    async def effect(ctx: Context, number: int, part: str) -> None:
        async def call(key: str) -> str:
            ledger.write(part, number, key)
            return "done"

        async def find(key: str) -> str | None:
            return "done" if ledger.has(key) else None

        await ctx.once(part, call, find=find)

    async def take(order: Order, ctx: Context) -> None:
        await effect(ctx, order.number, "label")
        async with ctx.transaction() as session:
            await session.execute(text("insert into orders values (:n)"), {"n": order.number})
            await ctx.enqueue(Follow(order.number))
            await ctx.publish(Ordered(order.number))
            flow = Flow("story")
            pieces = [flow.add(Piece(order.number, part), name=part) for part in PARTS[4:6]]
            flow.add(Whole(order.number), name="whole", after=pieces)
            await begin(flow)

    async def follow(order: Follow, ctx: Context) -> None:
        await effect(ctx, order.number, "follow")

    async def left(fact: Ordered, ctx: Context) -> None:
        await effect(ctx, fact.number, "left")

    async def right(fact: Ordered, ctx: Context) -> None:
        await effect(ctx, fact.number, "right")

    async def piece(order: Piece, ctx: Context) -> None:
        await effect(ctx, order.number, order.part)

    async def whole(order: Whole, ctx: Context) -> None:
        await effect(ctx, order.number, "whole")

    return App(
        "story",
        workers=[take, follow, piece, whole],
        listeners=[listener(left, **FAST), listener(right, **FAST)],
    )


class Tale(NamedTuple):
    """An app, the command that begins a story of it, and how often each effect of one happens."""

    app: Callable[[Ledger, Relevo], App]
    begin: Callable[[int], Command]
    parts: Mapping[str, int]


ORDERS = Tale(
    # The engine is not there yet when its app is made.
    lambda ledger, relevo: stories(ledger, lambda flow: relevo.start(flow)),
    Order,
    dict.fromkeys(PARTS, 1),
)


class Fuse(FaultyStore):
    """Several stores that count their calls together."""

    burnt = 0

    @property
    def calls(self) -> int:
        return Fuse.burnt

    @calls.setter
    def calls(self, value: int) -> None:
        Fuse.burnt = value

    def spawn(self) -> Any:
        """The same for the thread that keeps leases."""
        return Fuse(super().spawn(), at=self._at, when=self._when, die=True, ignore=self._ignore)


def engine(
    store: str, database: str | None, ledger: Ledger, k: int, when: str, tale: Tale
) -> Relevo:
    """An engine whose every store dies at the k-th call of all; k = 0 never."""

    def fused(url: str) -> Any:
        return Fuse(
            open_store(url), at=k, when=when or "before", die=True, ignore=("wait", "tally", "page")
        )

    Fuse.burnt = 0
    late = _Late()
    app = tale.app(ledger, cast("Relevo", late))
    relevo = late.relevo = Relevo(fused(store), apps=[app], database=database)
    if isinstance(relevo.store, Relayed) and database is not None:
        relevo.store.ledger = fused(database)
    return relevo


class _Late:
    """The engine of an app that is made before its engine."""

    relevo: Relevo

    def __getattr__(self, name: str) -> Any:
        return getattr(self.relevo, name)


async def tell(
    relevo: Relevo, ledger: Ledger, numbers: list[int], tale: Tale, *, is_last: bool = False
) -> None:
    """Order these stories, as a provider that had no answer would again, and work until told.

    The last one also ends what others told and did not live to settle: nobody works after it.
    """

    def untold() -> Counter[tuple[int, str]]:
        told = Counter((fact.number, fact.what) for fact in ledger.facts())
        wanted = {(n, part): many for n in numbers for part, many in tale.parts.items()}
        return Counter(wanted) - told

    stop = asyncio.Event()
    async with relevo:
        for number in numbers:
            await relevo.enqueue(tale.begin(number))
        work = relevo.work(stop=stop, concurrency=10, lease="1s", grace="1s")
        working = asyncio.create_task(work)
        try:
            await until(lambda: working.done() or not untold(), timeout="30s")
        except AssertionError as error:
            page = await relevo.store.page(Filter(states=OPEN | SEEN))
            raise AssertionError(f"untold: {sorted(untold())}, open: {page.jobs}") from error
        else:
            if is_last:
                await drained(relevo.store)
        finally:
            stop.set()
            await working


def victim(run: Callable[[], Any]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            asyncio.run(run())
            code = 0
        except BaseException:  # noqa: BLE001 - a forked child must not unwind into its parent's code
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return pid


def main(
    store: str,
    database: str | None,
    path: str,
    stride: int,
    offset: int,
    waves: int,
    out: str,
    tale: Tale = ORDERS,
) -> None:
    """Die everywhere; what is said goes to the file `out`, its last line is the answer."""
    with Path(out).open("ab") as lines:
        for stream in (1, 2):
            os.dup2(lines.fileno(), stream)
    start_logging("error", "text")
    ledger = Ledger(path)
    died = number = 0
    at = 1 + offset
    calls = 0
    for _ in range(waves):
        wave: dict[int, int] = {}
        before = died
        for n in range(WAVE):
            number += 1
            k, when = at + n // 2 * stride, ("before", "after")[n % 2]
            one, fate = [number], (k, when)
            wave[
                victim(
                    lambda one=one, fate=fate: tell(
                        engine(store, database, ledger, *fate, tale), ledger, one, tale
                    )
                )
            ] = k
        for pid, k in wave.items():
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            assert code in (0, -9), f"a victim at call {k} ended with {code}"
            died += code == -9
            calls = max(calls, k if code == -9 else 0)
        some = list(range(number - WAVE + 1, number + 1))
        alive = partial(engine, store, database, ledger, 0, "", tale)
        clean = victim(lambda: tell(alive(), ledger, some, tale, is_last=True))  # noqa: B023 - forked at once
        code = os.waitstatus_to_exitcode(os.waitpid(clean, 0)[1])
        assert code == 0, f"after the wave at {at} the survivor ended with {code}"
        # One may be spared because others told its story; all are when it takes no more calls.
        if died == before:
            break
        at += WAVE // 2 * stride
    told = {"died": died, "stories": number, "calls": calls}
    with Path(out).open("a") as lines:
        lines.write(json.dumps(told) + "\n")
