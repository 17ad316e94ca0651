"""How long an idle worker takes to start a job, from before the call of enqueue()."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from bench.measure import Aim, Child, Pipe, Row, apart, percentile
from bench.work import Ping, payload, working
from relevo import App, Relevo

if TYPE_CHECKING:
    from bench.places import Place

SECTION = "latency"
LIMITS = {"postgres": 8.0}


class Ear:
    """Hears pings; both ends read the one monotonic clock of the machine."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.app = App("bench")
        self._heard = asyncio.Event()

        @self.app.worker
        async def ping(order: Ping) -> None:
            self.times.append((time.monotonic_ns() - order.sent_at) / 1e9)
            self._heard.set()

    async def heard(self) -> None:
        await self._heard.wait()
        self._heard.clear()


async def _pause() -> None:
    # Long enough for the worker to have settled and to sleep again; never in step with anything.
    await asyncio.sleep(random.uniform(0.015, 0.035))


async def _together(pipe: Pipe, url: str, pings: int) -> list[float]:
    ear = Ear()
    async with Relevo(url, apps=[ear.app]) as relevo, working(relevo):
        for _ in range(pings + 10):
            await _pause()
            await relevo.enqueue(Ping(time.monotonic_ns()))
            await ear.heard()
        return ear.times[10:]


async def _hear(pipe: Pipe, url: str, pings: int) -> list[float]:
    ear = Ear()
    async with Relevo(url, apps=[ear.app]) as relevo, working(relevo):
        for _ in range(pings + 10):
            pipe.say("idle")
            await ear.heard()
        return ear.times[10:]


async def _call(pipe: Pipe, url: str, pings: int) -> None:
    async with Relevo(url) as relevo:
        pipe.say("open")
        for _ in range(pings + 10):
            await pipe.hear()
            await _pause()
            await relevo.enqueue(Ping(time.monotonic_ns()))


def _across(url: str, pings: int) -> list[float]:
    ear, caller = Child(_hear, url, pings), Child(_call, url, pings)
    try:
        assert caller.receive(60) == "open"
        while (said := ear.receive(60)) == "idle":
            caller.send("next")
        return said
    finally:
        ear.kill()
        caller.kill()


def measure(place: Place, pings: int, rounds: int, say: Callable[[str], None]) -> Iterator[Row]:
    """Rows of the table."""
    floor: list[float] = []
    together: list[float] = []
    across: list[float] = []
    for _ in range(rounds):
        say("raw insert and claim")
        with place.empty() as url:
            floor += apart(place.raw.pick_up, url, payload(), pings)
        say("pick-up in one process")
        with place.fresh() as url:
            together += apart(_together, url, pings)
        say("pick-up across processes")
        with place.fresh() as url:
            across += _across(url, pings)
    for name, times in (("in one process", together), ("across two processes", across)):
        for label, share in (("p50", 0.5), ("p99", 0.99)):
            yield Row(
                section=SECTION,
                name=f"idle pick-up {name}, {label}",
                unit="ms",
                ours=[percentile(times, share) * 1e3],
                other=[percentile(floor, share) * 1e3],
                against=f"raw insert, then claim, {label}",
                aim=Aim("figure", "<=", LIMITS.get(place.name, 5.0)) if label == "p99" else None,
            )
