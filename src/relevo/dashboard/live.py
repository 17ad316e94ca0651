"""What is going on now: one look at the store, shared by everybody who watches.

However many people watch, the store is asked once every few seconds, and not at all when nobody
does. A watcher gets the newest look or none: nothing is kept for one who does not read.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from relevo.budget import BILLED
from relevo.dashboard.health import Trouble, troubles
from relevo.desk import Desk
from relevo.engine import Relevo
from relevo.errors import RelevoError
from relevo.job import ENDED, LIVE, State
from relevo.store import DeliveryState, Letterbox, Tally, WorkerInfo

EVERY = 2.0
EVERY_BILLED = 15.0
"""Seconds between two looks; the second where RELEVO_BUDGET says that each command costs."""
FRESH = 1.5
"""How old a look may be, in seconds, when a page asks for it."""
LINGER = 600.0
"""How long the looking goes on when the last watcher has left."""
POINTS = 600
PER_PERSON = 100
EVERYBODY = 500
LONGEST = 900.0
"""Seconds after which a watcher has to ask again, and so to show again who it is."""
RARELY = 10
"""Pollers and schedules are read by walking jobs: once in so many looks."""
RECENT = 86_400_000
"""For so many milliseconds a body that differs is told of; failed deliveries always are."""
MANY = 50_000
"""From so many ended jobs on, a store may count them only now and then."""


class Look(NamedTuple):
    """The store at one moment."""

    at: int
    tallies: list[Tally]
    workers: list[WorkerInfo]
    troubles: list[Trouble]

    def total(self, *states: State) -> int:
        return sum(tally.counts.get(state, 0) for tally in self.tallies for state in states)

    def is_estimate(self, state: State) -> bool:
        """Whether some of these are not counted."""
        return state is State.DONE and any(tally.is_estimate for tally in self.tallies)


class Point(msgspec.Struct, frozen=True, array_like=True):
    """One column of the chart."""

    at: int  # seconds, as the chart wants them
    ready: int
    running: int
    came: int  # how many there ever were
    ended: int


class TooMany(RelevoError):
    """So many watch already that one more is refused."""


class Live:
    """One desk, looked at for many."""

    def __init__(self, desk: Desk, relevo: Relevo, *, has_budget: bool = False) -> None:
        self._desk = desk
        self._relevo = relevo
        self._is_billed = has_budget and desk.store.name in BILLED
        self._every = EVERY_BILLED if self._is_billed else EVERY
        self._look: Look | None = None
        self._looked_at = -1e9
        self._lock = asyncio.Lock()
        self._looks = 0
        self._failed: str | None = None  # the newest failed delivery, as of that look
        self._recurring: list[Trouble] = []
        self._turned = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._asked_at = 0.0
        self._open: Counter[str] = Counter()
        self.points: deque[Point] = deque(maxlen=POINTS)

    # for pages

    async def look(self, fresh: float = FRESH) -> Look:
        """The store now, or a moment ago."""
        self._asked_at = time.monotonic()
        self._start()
        return await self._read(fresh)

    def forget(self) -> None:
        """Somebody changed something: the next page wants to see it."""
        self._looked_at = -1e9

    async def _read(self, fresh: float) -> Look:
        async with self._lock:
            if self._look is None or time.monotonic() - self._looked_at > fresh:
                self._look = await self._make()
                self._looked_at = time.monotonic()
            return self._look

    async def _make(self) -> Look:
        desk = self._desk
        now = await desk.store.now()
        tallies, workers = await desk.queues(), await desk.workers()
        breakers = await desk.breakers()
        self._failed = await self._newest_failed()
        failed = await desk.delivery_groups()
        differs = await desk.delivery_groups((DeliveryState.DIFFERS,), since=now - RECENT)
        if self._looks % RARELY == 0:
            recurring = [*await desk.recurring("poller"), *await desk.recurring("schedule")]
            waiting = await desk.waiting()
            mark = await desk.mark()
            back = await desk.went_back()
            self._recurring = troubles(
                recurring=recurring, waiting=waiting, mark=mark, back=back, now=now
            )
        self._looks += 1
        groups = [*failed.groups, *differs.groups]
        found = troubles(tallies, workers, breakers, deliveries=groups, now=now)
        found += self._recurring
        return Look(now, tallies, workers, sorted(found, key=lambda trouble: not trouble.is_bad))

    # for watchers

    def rates(self) -> list[tuple[int, int, int, float, float]]:
        """Columns of the chart: at, ready, running, new a second, ended a second."""
        points = list(self.points)
        came = rates_of([(point.at, point.came) for point in points])
        ended = rates_of([(point.at, point.ended) for point in points])
        return [
            (point.at, point.ready, point.running, new, over)
            for point, new, over in zip(points, came, ended, strict=True)
        ]

    def watch(self, who: str) -> Stream:
        """A stream of looks; TooMany when this person, or everybody, has enough of them."""
        if self._open[who] >= PER_PERSON or self._open.total() >= EVERYBODY:
            raise TooMany("too many pages watch already: close some")
        return Stream(self, who, self._relevo.leaving)

    @contextmanager
    def seat(self, who: str) -> Generator[None]:
        """A watcher's place; the looking goes on as long as one is taken."""
        self._open[who] += 1
        self._start()
        try:
            yield
        finally:
            self._open[who] -= 1
            self._open += Counter()  # forgets who has none left

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="relevo-dashboard-live")

    async def close(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        while self._relevo.is_open and (self._open.total() or not self._is_forgotten()):
            with suppress(RelevoError):  # a store that is away is asked again
                look = await self._read(self._every / 2)
                self._note(look)
            self._turned.set()
            self._turned = asyncio.Event()
            await self._rest()

    async def _rest(self) -> None:
        """Wait for the next look; a delivery that fails meanwhile is looked at within a second."""
        until = time.monotonic() + self._every
        if self._is_billed:
            await asyncio.sleep(self._every)
            return
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(1.0, left))
            with suppress(RelevoError):
                if await self._newest_failed() not in (None, self._failed):
                    self.forget()
                    return

    async def _newest_failed(self) -> str | None:
        where = Letterbox(state=DeliveryState.FAILED)
        found, _ = await self._desk.store.deliveries(where, limit=1)
        return found[0].id if found else None

    def _is_forgotten(self) -> bool:
        return time.monotonic() - self._asked_at > LINGER

    def _note(self, look: Look) -> None:
        at = look.at // 1000
        if self.points and self.points[-1].at >= at:
            return
        ended = look.total(*ENDED)
        came = ended + look.total(*LIVE)
        self.points.append(
            Point(at, look.total(State.READY), look.total(State.RUNNING), came, ended)
        )

    async def events(self) -> AsyncIterator[bytes]:
        """What a watcher reads, until it has to ask again."""
        yield b"retry: 5000\n\n"
        until = time.monotonic() + LONGEST
        while time.monotonic() < until:
            turned = self._turned
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every * 4):
                    await turned.wait()
            look = self._look
            rates = self.rates()[-1:]
            told = {
                "at": look.at if look else 0,
                "point": rates[0] if rates else None,
                "troubles": len(look.troubles) if look else 0,
                "is_fresh": time.monotonic() - self._looked_at < self._every * 3,
            }
            yield b"event: look\ndata: " + msgspec.json.encode(told) + b"\n\n"


def rates_of(points: list[tuple[int, int]]) -> list[float]:
    """The growth a second at each point; what a store counted late is spread over the wait."""
    rates = [0.0] * len(points)
    start = 0
    for place in range(1, len(points)):
        grown = points[place][1] - points[place - 1][1]
        if grown <= 0 and points[place][1] > MANY:
            continue
        if grown <= 0:
            start = place
            continue
        seconds = max(1, points[place][0] - points[start][0])
        rate = round((points[place][1] - points[start][1]) / seconds, 1)
        for each in range(start + 1, place + 1):
            rates[each] = max(rate, 0.0)
        start = place
    return rates


class Stream(Response):
    """An answer that goes on until its reader leaves."""

    media_type = "text/event-stream"

    def __init__(self, live: Live, who: str, leaving: asyncio.Event) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._live = live
        self._who = who
        self._leaving = leaving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Seated only now: an answer that is never sent must not take a place.
        with self._live.seat(self._who):
            # Whichever comes first: it was all said, the reader left, or the program ends.
            sending = asyncio.create_task(self._send(send))
            gone = asyncio.create_task(_gone(receive))
            leaving = asyncio.create_task(self._leaving.wait())
            ends = {sending, gone, leaving}
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                is_gone = gone.done()
            finally:
                for task in ends:
                    task.cancel()
                await asyncio.wait(ends)
            if not is_gone:
                with suppress(OSError, TimeoutError):
                    async with asyncio.timeout(1):  # one who never reads is not waited for
                        await send({"type": "http.response.body", "body": b""})

    async def _send(self, send: Send) -> None:
        with suppress(OSError):
            start = {"status": self.status_code, "headers": self.raw_headers}
            await send({"type": "http.response.start", **start})
            async for event in self._live.events():
                await send({"type": "http.response.body", "body": event, "more_body": True})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
