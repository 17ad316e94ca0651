"""Counters: what happened in all processes of a store, added up there.

Worker processes serve no HTTP, and a restart begins a process's own counts at zero. So each process
adds what it has counted to one note, and every `/metrics` tells the sums: they cover all processes,
and no restart makes them fall.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress

import msgspec

from relevo.errors import StoreError, StoreUnavailable
from relevo.restored import Restored
from relevo.store import Note, Store
from relevo.telemetry import Telemetry

KIND = "counters"
_NAME = "all"
_TRIES = 5
_CLOSING = 2.0  # seconds that a process which ends waits for its last counts to be written

_decode = msgspec.json.Decoder(dict[str, int]).decode


class Counters:
    """The counts of one engine, and the sums of all of them."""

    def __init__(self, store: Store, telemetry: Telemetry, restored: Restored) -> None:
        self._store = store
        self._restored = restored
        self._telemetry = telemetry
        self._written: Counter[str] = Counter()  # of this process's own, what the note has
        self._sums: Counter[str] | None = None  # as last read
        self._unsure: tuple[bytes, Counter[str]] | None = None  # a write whose answer was lost
        self._writing = asyncio.Lock()

    async def publish(self) -> None:
        """Add to the sums what has happened here since the last time, if anything has."""
        if self._mine() != self._written:
            await self.refresh()

    async def refresh(self) -> None:
        """Add to the sums what has happened here, and read them."""
        async with self._writing:
            for _ in range(_TRIES):
                if await self._is_written():
                    return
            # Many processes write at once; the next time adds it all.

    async def close(self) -> None:
        """Write what is left, unless the store is away."""
        with suppress(StoreError, OSError, TimeoutError):
            async with asyncio.timeout(_CLOSING):
                await self.publish()

    async def _is_written(self) -> bool:
        [note] = await self._store.recall(KIND, [_NAME])
        version = 0 if note is None else note.version
        await self._restored.saw(version)
        sums = Counter({} if note is None else _decode(note.value))
        if self._unsure is not None:
            value, mine = self._unsure
            if note is not None and note.value == value:
                self._written = mine
            self._unsure = None
        mine = self._mine()
        self._sums = sums
        if mine == self._written:
            return True
        sums = sums + (mine - self._written)
        value = msgspec.json.encode(sums, order="sorted")
        try:
            [is_ours] = await self._store.remember(
                [Note(kind=KIND, name=_NAME, value=value, version=version)]
            )
        except StoreUnavailable:
            self._unsure = value, mine
            raise
        if is_ours:
            self._written, self._sums = mine, sums
            await self._restored.saw(version + 1)
        return is_ours

    def _mine(self) -> Counter[str]:
        """What has happened in this process, each count under one text."""
        told = self._telemetry
        mine = Counter({f"event\n{name}": count for name, count in told.counts.items()})
        for what, pairs in (
            ("delivery", told.deliveries),
            ("unrouted", told.unrouted),
            ("secret", told.secrets),
        ):
            mine.update({f"{what}\n{a}\n{b}": count for (a, b), count in pairs.items()})
        return mine

    def told(self) -> Sums | None:
        """The sums with what this process has not written yet; None before they were ever read."""
        if self._sums is None:
            return None
        made = Sums()
        for text, count in (self._sums + (self._mine() - self._written)).items():
            match text.split("\n"):
                case ["event", name]:
                    made.events[name] = count
                case ["delivery", endpoint, state]:
                    made.deliveries[endpoint, state] = count
                case ["unrouted", endpoint, cause]:
                    made.unrouted[endpoint, cause] = count
                case ["secret", endpoint, name]:
                    made.secrets[endpoint, name] = count
                case _:
                    pass  # of a later version
        return made


class Sums:
    """What happened in all processes, by what it was."""

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()
        self.deliveries: Counter[tuple[str, str]] = Counter()
        self.unrouted: Counter[tuple[str, str]] = Counter()
        self.secrets: Counter[tuple[str, str]] = Counter()
