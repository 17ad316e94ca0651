"""The jobs that are measured, and the children that enqueue and drain them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from types import new_class
from typing import Any, NamedTuple

from bench.measure import Child, Pipe, Speed, Stopwatch, TooSlow, memory
from relevo import App, Command, Context, Relevo
from relevo.ids import new_id
from relevo.job import NewJob
from relevo.message import codec
from relevo.store import BATCH
from relevo.version import version
from relevo.worker import Worker

TEXT = "A guest asks whether breakfast is served before seven on Sundays; answer in Spanish. " * 2
PATIENCE = 300.0


class Kept(Command, queue="bench:work:kept"):
    """A job as most are: about 200 bytes, remembered for a week once done."""

    number: int
    text: str = TEXT


class Gone(Command, queue="bench:work:gone", keep=timedelta()):
    """The same without history."""

    number: int
    text: str = TEXT


class Keyed(Command, queue="bench:work:keyed", key="{number}", unique="unfinished"):
    """A small job with a key."""

    number: int
    text: str = TEXT


class Paid(Command, queue="bench:work:paid"):
    """The same with an effect outside: what was meant and what came of it are kept as well."""

    number: int
    text: str = TEXT


class Ping(Command, queue="bench:work:ping"):
    """Tells when it was sent, on the clock that all processes of a machine share."""

    sent_at: int


def app() -> App:
    """A worker that does nothing for each."""
    made = App("bench")

    @made.worker
    async def kept(order: Kept) -> None: ...

    @made.worker
    async def gone(order: Gone) -> None: ...

    @made.worker
    async def keyed(order: Keyed) -> None: ...

    async def pay(key: str) -> str:
        return "paid"

    @made.worker
    async def paid(order: Paid, ctx: Context) -> None:
        await ctx.once("pay", pay, repeatable=True)

    return made


def quiet_app(queues: int) -> App:
    """Many queues on which nothing happens."""
    made = App("idle")
    for number in range(queues):
        kind = new_class(
            f"Never{number}",
            (Command,),
            {"queue": f"idle:queues:never-{number}"},
            lambda names: names.update(__module__=__name__, __annotations__={"number": int}),
        )

        async def never(order: Any) -> None: ...

        never.__annotations__["order"] = kind
        made.worker(never)
    return made


def payload() -> bytes:
    """What a Kept of the middle weighs, for the loops written by hand."""
    return codec(Kept).encode(Kept(500_000))


def new_jobs(kind: type[Command], count: int, *, delay: int = 0) -> list[NewJob]:
    """Jobs for the store itself, made quickly."""
    spec, body = kind.__relevo__, payload()
    return [
        NewJob(
            id=new_id(),
            queue=spec.queue,
            kind=spec.kind,
            payload=body,
            keep=spec.keep,
            attempts=spec.attempts,
            delay=delay,
        )
        for _ in range(count)
    ]


async def fill(
    pipe: Pipe | None, url: str, kind: type[Command], count: int, delay: int = 0
) -> None:
    """Store so many jobs in bulk."""
    async with Relevo(url, apps=[app()]) as relevo:
        for start in range(0, count, BATCH):
            size = min(BATCH, count - start)
            await relevo.store.insert(new_jobs(kind, size, delay=delay))


async def prepare(pipe: Pipe, url: str) -> None:
    """Make the tables of a fresh place."""
    relevo = Relevo(url)
    await relevo.store.migrate()


@asynccontextmanager
async def working(relevo: Relevo) -> AsyncGenerator[Worker]:
    """A worker with its usual settings, stopped politely when the block ends."""
    worker = Worker(relevo)
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        yield worker
        worker.stop()


# draining


async def serve(pipe: Pipe, url: str) -> Drained:
    """Work until told to stop, saying now and then how many jobs are settled."""
    version()  # a checkout asks git for it; an installed package has it
    async with Relevo(url, apps=[app()]) as relevo:
        pipe.say("ready")
        await pipe.hear()
        watch = Stopwatch()
        async with working(relevo) as worker:
            told = asyncio.create_task(pipe.hear())
            said = -1
            while not told.done():
                settled = worker.finished - len(worker.flights)
                if settled > said:
                    pipe.say((time.monotonic(), settled))
                    said = settled
                await asyncio.sleep(0.01)
        return Drained(
            [], worker.finished, watch.speed(max(1, worker.finished)).cpu, memory("VmHWM")
        )


class Drained(NamedTuple):
    """How a drain went: (seconds since the start, settled so far) as it went on, and at its end."""

    line: list[tuple[float, int]]
    settled: int
    cpu: float  # microseconds a job
    memory: float  # MB, at its highest

    def rate(self, warm: float = 0.0) -> float:
        """Jobs a second, once so large a share of them was settled."""
        first = next(point for point in self.line if point[1] >= warm * self.line[-1][1])
        last = self.line[-1]
        return (last[1] - first[1]) / (last[0] - first[0])

    @property
    def speed(self) -> Speed:
        return Speed(self.rate(), self.cpu)


def drain(url: str, count: int, *, processes: int = 1) -> Drained:
    """Drain so many jobs, or a few more if there are.

    What counts is settled: written down as ended, not merely run. Opening the store is not
    counted, starting the worker is.
    """
    children = [Child(serve, url) for _ in range(processes)]
    try:
        for child in children:
            assert child.receive(60) == "ready"
        began = time.monotonic()
        for child in children:
            child.send("go")
        line = _watch(children, count, began)
        for child in children:
            child.send("stop")
        ended = [_last(child) for child in children]
        settled = sum(one.settled for one in ended)
        cpu = sum(one.cpu * one.settled for one in ended) / settled
        return Drained(line, settled, cpu, max(one.memory for one in ended))
    finally:
        for child in children:
            child.kill()


def _watch(children: Sequence[Child], count: int, began: float) -> list[tuple[float, int]]:
    settled = [0] * len(children)
    line: list[tuple[float, int]] = [(0.0, 0)]
    moved = began
    while sum(settled) < count:
        for place, child in enumerate(children):
            while sum(settled) < count and child.has_news(0.02 / len(children)):
                at, settled[place] = child.receive(0)
                line.append((at - began, sum(settled)))
                moved = at
        if time.monotonic() - moved > 30:
            raise TooSlow(f"the drain stands at {sum(settled)} of {count}")
    return line


def _last(child: Child) -> Drained:
    while not isinstance(said := child.receive(30), Drained):
        pass
    return said
