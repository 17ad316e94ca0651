"""The ear: hears which queues got work, and wakes whoever waits for them."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Sequence
from typing import Any

from relevo.stores.postgres.lines import PATIENCE, Connection, Door, Line, close_slowly

log = logging.getLogger("relevo.postgres")

FALLBACK = 30.0
"""The longest sleep although nothing was heard: no promise rests on a notification alone."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0


class Ear:
    """Listens as soon as somebody waits; while it cannot, waits are short."""

    def __init__(self, door: Door, channel: str, own: Line) -> None:
        self._door = door
        self._channel = channel
        self._own = own  # whoever writes through it calls said()
        self._balance: dict[str, int] = {}  # by queue: how much more was said than heard of it
        self._woken: set[str] = set()
        self._known: set[str] = set()
        self._waiters: dict[asyncio.Future[None], frozenset[str]] = {}
        self._task: asyncio.Task[None] | None = None
        self._listening = asyncio.Event()
        self._was_cut_off = False
        self._pause = FIRST_PAUSE

    def looking(self, queues: Iterable[str]) -> None:
        """Somebody is about to look at these queues: what was heard before is no news."""
        self._known.update(queues)
        self._woken.difference_update(queues)

    def found(self, queues: Iterable[str], *, more: bool) -> None:
        """There was work, and perhaps more than could be taken."""
        self._pause = FIRST_PAUSE
        if more:
            self._woken.update(queues)

    def hear(self, queue: str) -> None:
        """A queue got work."""
        self._woken.add(queue)
        for future, queues in self._waiters.items():
            if queue in queues and not future.done():
                future.set_result(None)

    def said(self, queues: Iterable[str]) -> None:
        """Our own line has, or may have, put work into these queues."""
        for queue in queues:
            self._hear_own(queue, 1)

    def _hear_own(self, queue: str, change: int) -> None:
        # What we write is told twice, by the answer and by the server, in either order: whichever
        # comes second is no news, and would only ask the server once more for nothing.
        before = self._balance.get(queue, 0)
        self._balance[queue] = before + change
        if before * change >= 0:
            self.hear(queue)

    async def wait(self, queues: Sequence[str], timeout: float) -> None:
        """Return when one of the queues may have work, or after `timeout` seconds."""
        if not self._woken.isdisjoint(queues) or timeout <= 0:
            return
        self._listen()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[future] = frozenset(queues)
        try:
            async with asyncio.timeout(min(timeout, self._patience())):
                await future
        except TimeoutError:
            pass
        finally:
            del self._waiters[future]

    def _patience(self) -> float:
        if self._listening.is_set():
            return FALLBACK
        self._pause = min(self._pause * 1.5, LONGEST_PAUSE)
        return self._pause

    def _listen(self) -> None:
        if self._task is None and not self._door.address.pooler:
            self._task = asyncio.create_task(self._run(), name="relevo-postgres-ear")

    async def _run(self) -> None:
        while True:
            try:
                await self._door.places.take()
                try:
                    await self._hear()
                finally:
                    self._door.places.give()
            except Exception as error:  # noqa: BLE001 - whatever it was, polling goes on meanwhile
                log.warning("cannot listen for new jobs, so polling", extra={"error": str(error)})
                await asyncio.sleep(random.uniform(0.1, 1))

    async def _hear(self) -> None:
        async with asyncio.timeout(PATIENCE):
            connection = await self._door.open()
        try:
            await self._hear_out(connection)
        finally:
            self._listening.clear()
            await close_slowly(connection)

    async def _hear_out(self, connection: Connection) -> None:
        ended = asyncio.Event()

        def hear(_connection: Any, pid: int, _channel: str, queue: object) -> None:
            if pid == self._own.pid:
                self._hear_own(str(queue), -1)
            else:
                self.hear(str(queue))

        def end(_connection: Any) -> None:
            ended.set()

        connection.add_termination_listener(end)
        async with asyncio.timeout(PATIENCE):
            await connection.add_listener(self._channel, hear)
        self._listening.set()
        self._balance.clear()
        # Something may have been said while nobody listened.
        for queue in self._known:
            self.hear(queue)
        if self._was_cut_off:  # also to those who wait for what nobody has looked at yet
            self._wake_all()
        await ended.wait()
        self._was_cut_off = True
        log.warning("the connection that listens for new jobs broke; it is being replaced")

    def _wake_all(self) -> None:
        for future in self._waiters:
            if not future.done():
                future.set_result(None)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None
        self._listening.clear()
