"""What it costs to publish an event, and to give it to 1, 10 and 100 subscribers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from bench.measure import Pipe, Row, Speed, Stopwatch, apart, in_turns
from bench.work import TEXT
from relevo import Event, Relevo
from relevo.events import Subscriber, with_subscriber
from relevo.ids import new_id
from relevo.job import NewJob
from relevo.message import codec
from relevo.store import BATCH
from relevo.testing import until
from relevo.worker import Worker

if TYPE_CHECKING:
    from bench.places import Place

SECTION = "events"
CALLERS = 100
MANY = (1, 10, 100)


class Told(Event, name="bench.told"):
    """About 200 bytes, as most jobs are."""

    number: int
    text: str = TEXT


def _queue(number: int) -> str:
    return f"bench:listeners:n{number}"


async def _publish(relevo: Relevo, events: int) -> None:
    async def call() -> None:
        for number in range(events // CALLERS):
            await relevo.publish(Told(number))

    await asyncio.gather(*(call() for _ in range(CALLERS)))


async def _subscribe(relevo: Relevo, many: int) -> None:
    for number in range(many):
        new = Subscriber(name=f"bench.n{number}", queue=_queue(number), attempts=3, keep=60_000)
        await relevo.subscribers.change("bench.told", with_subscriber(new))


async def published(pipe: Pipe, url: str, events: int, many: int) -> Speed:
    """What the publisher waits for: 100 callers, each with one event at a time."""
    async with Relevo(url) as relevo:
        await _subscribe(relevo, many)
        await relevo.publish(Told(0))
        watch = Stopwatch()
        await _publish(relevo, events)
        return watch.speed(events)


async def given(pipe: Pipe, url: str, events: int, many: int) -> Speed:
    """What a worker does then: one job stored for each subscriber."""
    async with Relevo(url) as relevo:
        await _subscribe(relevo, many)
        await _publish(relevo, events)
        worker = Worker(relevo)
        watch = Stopwatch()
        running = asyncio.create_task(worker.run())
        await until(lambda: worker.finished >= events, timeout="5m")
        speed = watch.speed(events)
        worker.stop()
        await running
        return speed


async def stored(pipe: Pipe, url: str, events: int, many: int) -> Speed:
    """The jobs alone, as many as the subscribers get, without any event."""
    async with Relevo(url) as relevo:
        body = codec(Told).encode(Told(500_000))
        await relevo.store.insert([])
        watch = Stopwatch()
        jobs: list[NewJob] = []
        for _ in range(events):
            jobs += [
                NewJob(id=new_id(), queue=_queue(number), kind="bench.told", payload=body)
                for number in range(many)
            ]
            if len(jobs) >= BATCH:
                await relevo.store.insert(jobs)
                jobs.clear()
        return watch.speed(events)


def measure(place: Place, jobs: int, rounds: int, say: Callable[[str], None]) -> Iterator[Row]:
    """Rows of the table, in events a second and CPU of each."""
    for many in MANY:
        events = max(CALLERS, jobs // (5 * many) // CALLERS * CALLERS)

        def sample(
            function: Callable[..., object], events: int = events, many: int = many
        ) -> Callable[[], Speed]:
            def run() -> Speed:
                say(f"{function.__name__}, {many} subscribers")
                with place.fresh() as url:
                    return apart(function, url, events, many)

            return run

        told, handed, alone = in_turns(rounds, sample(published), sample(given), sample(stored))
        subscribers = "1 subscriber" if many == 1 else f"{many} subscribers"
        for name, ours in (("publish", told), ("give to", handed)):
            yield Row(
                section=SECTION,
                name=f"{name}, {subscribers}",
                unit="events/s",
                ours=[speed.rate for speed in ours],
                other=[speed.rate for speed in alone],
                cpu=[speed.cpu for speed in ours],
                other_cpu=[speed.cpu for speed in alone],
                against=f"{many} jobs stored, no event",
            )
