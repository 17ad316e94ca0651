"""How many jobs a second go in and come out, beside the raw loop of the same driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from bench.measure import Aim, Pipe, Row, Speed, Stopwatch, apart, in_turns
from bench.work import Gone, Kept, Paid, app, drain, fill, payload
from relevo import Relevo
from relevo.store import BATCH

if TYPE_CHECKING:
    from bench.places import Place

SECTION = "throughput"
CALLERS = 100
HALF = Aim("ratio", ">=", 0.5)


async def _one_by_one(pipe: Pipe, url: str, jobs: int) -> Speed:
    async with Relevo(url, apps=[app()]) as relevo:
        await relevo.enqueue(Kept(0))
        watch = Stopwatch()
        for number in range(jobs):
            await relevo.enqueue(Kept(number))
        return watch.speed(jobs)


async def by_callers(pipe: Pipe, url: str, jobs: int) -> Speed:
    """Each caller waits for its job to be safe before it brings the next."""
    async with Relevo(url, apps=[app()]) as relevo:
        await relevo.enqueue(Kept(0))

        async def call() -> None:
            for number in range(jobs // CALLERS):
                await relevo.enqueue(Kept(number))

        watch = Stopwatch()
        await asyncio.gather(*(call() for _ in range(CALLERS)))
        return watch.speed(jobs // CALLERS * CALLERS)


async def _in_bulk(pipe: Pipe, url: str, jobs: int) -> Speed:
    async with Relevo(url, apps=[app()]) as relevo:
        await relevo.enqueue(Kept(0))
        watch = Stopwatch()
        for start in range(0, jobs, BATCH):
            await relevo.enqueue_many(Kept(start + number) for number in range(BATCH))
        return watch.speed(jobs)


def measure(place: Place, jobs: int, rounds: int, say: Callable[[str], None]) -> Iterator[Row]:
    """Rows of the table."""
    body, few = payload(), max(200, min(2_000, jobs // 25))
    peaks: list[float] = []

    def raw_in(batch: int, count: int) -> Callable[[], Speed]:
        def sample() -> Speed:
            say(f"raw loop, {batch} rows a commit")
            with place.empty() as url:
                return apart(place.raw.enqueue, url, body, count, batch)

        return sample

    def ours_in(function: Callable[..., object], count: int) -> Callable[[], Speed]:
        def sample() -> Speed:
            say(function.__name__.strip("_").replace("_", " "))
            with place.fresh() as url:
                return apart(function, url, count)

        return sample

    def raw_out() -> Speed:
        say("raw loop, claim and delete")
        with place.empty() as url:
            return apart(place.raw.drain, url, body, jobs)

    def ours_out(
        kind: type[Kept] | type[Gone] | type[Paid], processes: int, count: int = jobs
    ) -> Callable[[], Speed]:
        def sample() -> Speed:
            say(f"drain {kind.__name__.lower()}, {processes} process(es)")
            with place.fresh() as url:
                apart(fill, url, kind, count)
                drained = drain(url, count, processes=processes)
                peaks.append(drained.memory)
                return drained.speed

        return sample

    def row(name: str, ours: list[Speed], other: list[Speed], aim: Aim | None, raw: str) -> Row:
        return Row(
            section=SECTION,
            name=name,
            unit="jobs/s",
            ours=[speed.rate for speed in ours],
            other=[speed.rate for speed in other],
            cpu=[speed.cpu for speed in ours],
            other_cpu=[speed.cpu for speed in other],
            against=raw,
            aim=aim,
        )

    raw, ours = in_turns(rounds, raw_in(1, few), ours_in(_one_by_one, few))
    yield row("enqueue, one caller", ours, raw, None, "raw, 1 row a commit")

    alike, raw, ours, bulk = in_turns(
        rounds,
        raw_in(CALLERS, jobs),
        raw_in(BATCH, jobs),
        ours_in(by_callers, jobs),
        ours_in(_in_bulk, jobs),
    )
    yield row(f"enqueue, {CALLERS} callers", ours, alike, None, f"raw, {CALLERS} rows a commit")
    yield row(f"enqueue_many of {BATCH}", bulk, raw, None, f"raw, {BATCH} rows a commit")

    raw, kept, gone, two, paid = in_turns(
        rounds,
        raw_out,
        ours_out(Kept, 1),
        ours_out(Gone, 1),
        ours_out(Kept, 2),
        ours_out(Paid, 1, jobs // 2),
    )
    yield row("drain, history on", kept, raw, HALF, "raw, claim 500 + delete")
    yield row("drain, history off", gone, raw, None, "raw, claim 500 + delete")
    yield row("drain, history on, 2 processes", two, kept, None, "with 1 process")
    yield row("drain, history on, an effect each", paid, kept, None, "without effects")
    yield Row(
        section=SECTION,
        name="worker's memory at its highest",
        unit="MB",
        ours=peaks,
        aim=Aim("figure", "<=", 60),
    )
