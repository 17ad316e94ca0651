"""StoreWatch: whether the store takes what comes in, as failed calls and probes tell.

A process that has seen the store fail must not have each of its callers find out anew: until a
probe was stored they are told at once, or their deliveries wait elsewhere.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from relevo.clock import Clock
from relevo.errors import StoreError
from relevo.ids import new_id
from relevo.settings import store_file
from relevo.store import Note, Store
from relevo.telemetry import log

PATIENCE = 0.4
"""Seconds within which a store that is there stores a probe; more where the last one took long."""

MOST_PATIENT = 2.0

AGAIN = 0.5
"""Seconds between a probe that failed and the next one."""

BRIEFLY = 1.0
"""Seconds for which the store is not doubted once it has taken a probe."""

RARELY = 5.0
"""Seconds for which an asked probe is believed."""

LEAST_FREE = 1 << 20
"""Bytes that a disk has to have left for its store to take anything."""

KEEP = 86_400_000


def has_room(folder: Path) -> bool:
    """Whether the disk of a folder takes anything more."""
    try:
        return shutil.disk_usage(folder).free >= LEAST_FREE
    except OSError:
        return True  # what is wrong with it shows when it is used


class StoreWatch:
    """The store, as this process last found it."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._file = store_file(store.dsn)
        self._note = Note(kind="probe", name=new_id(), value=b"{}", ttl=KEEP)
        self._probing: asyncio.Task[None] | None = None
        self._began = 0.0
        self._is_told = False  # the log says that it is away
        self._asked_at = -RARELY
        self._patience = PATIENCE
        self.heard = 0  # answers of the store to calls, which make no probe: they only count
        self.is_away = False
        self.since: int = 0  # the moment it went away, in milliseconds
        self.error = ""  # of the call that found it so
        self.unopened: StoreError | None = None  # why this process has not opened it yet
        self.on_away: list[Callable[[], None]] = []

    @property
    def is_sure(self) -> bool:
        """Whether a call has failed, or a probe: it is not only slow."""
        return self.is_away and bool(self.error)

    def failed(self, error: Exception) -> None:
        """A call has failed: the store is away until a probe says otherwise."""
        self.error = f"{type(error).__name__}: {error}"
        self._leave()
        self._probe()

    def not_opened(self, error: StoreError) -> None:
        """The store could not be opened: it is away until `opened` is called."""
        self.unopened = error
        self.failed(error)

    def opened(self) -> None:
        """The store is open, and is asked from now on."""
        self.unopened = None

    def doubt(self) -> None:
        """A call waits for long: the store is away if it does not take a probe either."""
        if time.monotonic() - self._asked_at >= BRIEFLY:
            self._probe()

    async def check(self) -> bool:
        """Whether the store takes a probe now, or did so a moment ago."""
        if not self.is_away and time.monotonic() - self._asked_at >= RARELY:
            await asyncio.wait({self._probe()}, timeout=2 * self._patience)
        return not self.is_away

    async def back(self) -> None:
        """Wait until the store takes a probe."""
        await asyncio.wait({self._probe()})

    async def close(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.wait({self._probing})

    def _probe(self) -> asyncio.Task[None]:
        if self._probing is None:
            self._probing = asyncio.create_task(self._ask(), name="relevo-store-watch")
        return self._probing

    async def _ask(self) -> None:
        slow = asyncio.create_task(self._grow_impatient(), name="relevo-store-watch-slow")
        try:
            while True:
                began = time.monotonic()
                try:
                    await self._write()
                except StoreError as error:
                    self.error = f"{type(error).__name__}: {error}"
                    self._leave()
                    self._tell()
                    await asyncio.sleep(AGAIN)
                else:
                    took = time.monotonic() - began
                    if took < MOST_PATIENT:  # else it waited for the store to come back
                        self._patience = min(max(PATIENCE, 3 * took), MOST_PATIENT)
                    self._come_back()
                    return
        finally:
            slow.cancel()
            self._probing = None

    async def _write(self) -> None:
        if self.unopened is not None:
            raise self.unopened
        if self._file is not None:
            folder = self._file.absolute().parent
            if not has_room(folder):
                raise StoreError(f"the disk of {folder} is full")
        note = self._note
        [is_written] = await self._store.remember([note])
        # Its answer may have been lost once, and its version with it.
        name, version = (note.name, note.version + 1) if is_written else (new_id(), 0)
        self._note = Note(kind="probe", name=name, value=b"{}", version=version, ttl=KEEP)

    async def _grow_impatient(self) -> None:
        """A store that answers nothing while it is probed is away; one that is busy is not."""
        heard = -1
        while heard != self.heard:
            heard = self.heard
            await asyncio.sleep(self._patience)
        self._leave()
        self._tell()

    def _leave(self) -> None:
        if not self.is_away:
            self.is_away = True
            self.since = round(self._clock.now().timestamp() * 1_000)
            self._began = time.monotonic()
            for heard in self.on_away:
                heard()

    def _tell(self) -> None:
        if not self._is_told:
            self._is_told = True
            error = self.error or f"no answer for {self._patience:.1f} s"
            log.warning("the store is away", extra={"error": error})

    def _come_back(self) -> None:
        self._asked_at = time.monotonic()
        if self._is_told:
            away = round(time.monotonic() - self._began, 1)
            log.warning("the store is back", extra={"seconds": away, "error": self.error})
        self.is_away = self._is_told = False
        self.error = ""
