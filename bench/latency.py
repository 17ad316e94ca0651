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
        for _ in range(pings):
            pipe.say("idle")
            await ear.heard()
        return ear.times


async def _call(pipe: Pipe, url: str, pings: int) -> None:
    async with Relevo(url) as relevo:
        pipe.say("open")
        for _ in range(pings):
            await pipe.hear()
            await _pause()
            await relevo.enqueue(Ping(time.monotonic_ns()))


def _across(ear: Child, caller: Child) -> list[float]:
    try:
        assert caller.receive(60) == "open"
        while (said := ear.receive(60)) == "idle":
            caller.send("next")
        return said[10:]
    finally:
        ear.kill()
        caller.kill()


def measure(place: Place, pings: int, rounds: int, say: Callable[[str], None]) -> Iterator[Row]:
    """Rows of the table."""
    floor: list[float] = []
    floor_across: list[float] = []
    together: list[float] = []
    across: list[float] = []
    has_bell = hasattr(place.raw, "hear")
    for _ in range(rounds):
        say("raw insert and claim")
        with place.empty() as url:
            floor += apart(place.raw.pick_up, url, payload(), pings)
        say("pick-up in one process")
        with place.fresh() as url:
            together += apart(_together, url, pings)
        if has_bell:
            say("raw insert, publish and claim across processes")
            args = payload(), pings + 10
            with place.empty() as url:
                raw = place.raw
                floor_across += _across(Child(raw.hear, url, *args), Child(raw.call, url, *args))
        say("pick-up across processes")
        with place.fresh() as url:
            across += _across(Child(_hear, url, pings + 10), Child(_call, url, pings + 10))
    called = "raw insert, then claim"
    pairs = (
        ("in one process", together, floor, called),
        ("across two processes", across, floor_across, "raw insert, publish, claim")
        if has_bell
        else ("across two processes", across, floor, called),
    )
    for name, times, least, against in pairs:
        for label, share in (("p50", 0.5), ("p99", 0.99)):
            yield Row(
                section=SECTION,
                name=f"idle pick-up {name}, {label}",
                unit="ms",
                ours=[percentile(times, share) * 1e3],
                other=[percentile(least, share) * 1e3],
                against=f"{against}, {label}",
                aim=Aim("figure", "<=", LIMITS.get(place.name, 5.0)) if label == "p99" else None,
            )
