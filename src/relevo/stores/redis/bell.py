"""Bell, how a sleeping worker hears that a queue has work, at no command's cost.

Whoever finds a queue empty leaves a mark on it; the next script that brings a job takes the mark
away and publishes the queue's name. While we trust our mark we only listen. When the connection
was away, or the bell rang, the mark is no longer trusted and the store is asked before sleeping.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence

from relevo.errors import RelevoError
from relevo.stores.redis.line import CONNECT, Told, pack
from relevo.stores.redis.wire import Wire

LONGEST_PAUSE = 2.0

Marks = dict[str, int]


class Bell:
    """One subscription per handle, made when somebody first wants to sleep."""

    def __init__(self, wire: Wire, channel: bytes, caller: str) -> None:
        self._wire = wire
        self._channel = channel
        self._caller = caller
        self._trusted: set[str] = set()
        self._rings: Counter[str] = Counter()
        self._sleepers: dict[asyncio.Event, frozenset[str]] = {}
        self._listening: asyncio.Task[None] | None = None
        self._is_up = asyncio.Event()
        self._is_closed = False
        self._leaving: set[asyncio.Task[None]] = set()

    def marks(self, queues: Iterable[str]) -> Marks:
        """How often each queue has rung so far; taken before a claim is sent."""
        return {queue: self._rings[queue] for queue in queues}

    def trust(self, marks: Marks) -> None:
        """The claim came back short and left its marks; not where it rang meanwhile."""
        if self._is_up.is_set():
            self._trusted.update(q for q, rings in marks.items() if self._rings[q] == rings)

    def ring(self, queue: str) -> None:
        self._rings[queue] += 1
        self._trusted.discard(queue)
        for sleeper, queues in self._sleepers.items():
            if queue in queues:
                sleeper.set()

    def doubt(self) -> None:
        """The store was away: our marks may be gone, and what was published meanwhile is lost."""
        self._trusted.clear()
        if self._is_up.is_set() and not self._is_closed:
            # One that is not up is being made anew already, and must not be disturbed.
            self._is_up.clear()
            self._hang_up()
            self._pick_up()
        self._wake_all()

    async def wait(
        self,
        queues: Sequence[str],
        timeout: float,
        has_work: Callable[[Sequence[str]], Awaitable[bool]],
    ) -> None:
        """Sleep until one of the queues rings, or `has_work`, which leaves the marks, says so."""
        wanted = frozenset(queues)
        sleeper = asyncio.Event()
        self._sleepers[sleeper] = wanted
        try:
            async with asyncio.timeout(timeout):
                while True:
                    await self._listen()
                    if self._is_closed:
                        return
                    before = self.marks(wanted)
                    sleeper.clear()
                    if unsure := [queue for queue in queues if queue not in self._trusted]:
                        if await has_work(unsure):
                            return
                        self.trust({queue: before[queue] for queue in unsure})
                    if wanted <= self._trusted:
                        await sleeper.wait()
                    if self.marks(wanted) != before:
                        return
        except TimeoutError:
            return
        finally:
            del self._sleepers[sleeper]

    def open(self) -> None:
        self._is_closed = False

    async def close(self) -> None:
        self._is_closed = True
        self._hang_up()
        await asyncio.gather(*self._leaving, return_exceptions=True)
        self._is_up.set()
        self._wake_all()

    def _hang_up(self) -> None:
        if (task := self._listening) is not None:
            self._listening = None
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
            task.cancel()

    async def _listen(self) -> None:
        if self._is_closed:
            return
        if self._listening is None:
            self._is_up.clear()
            self._pick_up()
        await self._is_up.wait()

    def _pick_up(self) -> None:
        self._listening = asyncio.create_task(self._hear(), name="relevo-redis-bell")

    async def _hear(self) -> None:
        failures = 0
        while True:
            try:
                line = await self._wire.line()
                try:
                    async with asyncio.timeout(CONNECT):
                        [answer] = await line.ask(pack(b"SUBSCRIBE", self._channel))
                    if isinstance(answer, Told):
                        raise answer
                    failures = 0
                    self._trusted.clear()
                    self._is_up.set()
                    self._wake_all()
                    await line.listen(self._heard)
                finally:
                    self._is_up.clear()
                    self._trusted.clear()
                    line.close()
            except (RelevoError, Told, OSError):
                self._wire.distrust()
                longest = min(LONGEST_PAUSE, 0.1 * 2 ** min(failures, 10))
                failures += 1
                await asyncio.sleep(longest * random.uniform(0.5, 1))

    def _heard(self, published: tuple[bytes, bytes, bytes]) -> None:
        queue, _, caller = published[2].decode("utf-8", "replace").partition("|")
        # Our own inserts ring as soon as they are answered; no need to be told again.
        if caller != self._caller:
            self.ring(queue)

    def _wake_all(self) -> None:
        for sleeper in self._sleepers:
            sleeper.set()
