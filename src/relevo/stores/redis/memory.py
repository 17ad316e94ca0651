"""Memory: notes, each kind in a hash of its own, and the workers that show they are alive."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from msgspec.json import Decoder
from msgspec.structs import replace

from relevo.errors import MisuseError
from relevo.store import Holding, Note, WorkerInfo, seen
from relevo.stores.redis.frame import side_by_side, timely
from relevo.stores.redis.life import STEPS, Life, read_info
from relevo.stores.redis.line import Arg
from relevo.stores.redis.record import digest, dump, from_text, load, to_text

DAY = 86_400_000
CLAIMS = 1_000
"""So many claims of a queue are looked at in one run of a script."""
_PLAIN = re.compile(r"[a-z0-9_]{1,32}", re.ASCII)
_worker = Decoder(WorkerInfo)


class Memory(Life):
    """The verbs of small things remembered."""

    @timely
    async def recall(self, kind: str, names: Sequence[str]) -> list[Note | None]:
        if not names:
            return []
        rows = await self._run("recall", [self._shelf(kind)], [to_text(name) for name in names])
        return [
            _read_note(kind, name, row) if row is not None else None
            for name, row in zip(names, rows, strict=True)
        ]

    async def recall_within(
        self, connection: Any, kind: str, names: Sequence[str]
    ) -> list[Note | None]:
        raise MisuseError("Redis is no SQL database: the outbox carries it")

    async def remember_within(self, connection: Any, notes: Sequence[Note]) -> list[bool]:
        raise MisuseError("Redis is no SQL database: the outbox carries it")

    @timely
    async def remember(self, notes: Sequence[Note]) -> list[bool]:
        kinds: dict[str, list[int]] = {}
        for place, note in enumerate(notes):
            kinds.setdefault(note.kind, []).append(place)
        await self._register_kinds(list(kinds))
        answers = [False] * len(notes)
        found = await side_by_side(
            *(
                self._run("remember", [self._shelf(kind)], _values([notes[n] for n in mine]))
                for kind, mine in kinds.items()
            )
        )
        for mine, written in zip(kinds.values(), found, strict=True):
            for place, done in zip(mine, written, strict=True):
                answers[place] = done == 1
        return answers

    @timely
    async def forget(self, kind: str, names: Sequence[str]) -> int:
        if not names:
            return 0
        return await self._run("forget", [self._shelf(kind)], [to_text(name) for name in names])

    @timely
    async def notes(self, kind: str, *, after: str = "", limit: int = 200) -> list[Note]:
        rows = await self._run("notes", [self._shelf(kind)], (to_text(after), limit))
        return [_read_note(kind, from_text(name), row) for name, row in rows]

    @timely
    async def beat(self, worker: WorkerInfo, ttl: int) -> None:
        told = b"1" if self._is_time_to_look() else b""
        known = replace(worker, schema=STEPS[-1].number)
        values = (to_text(worker.id), ttl, dump(known), told)
        if info := await self._run("beat", [self._people()], values):
            self._shout(self.url, read_info(self.url, info))

    @timely
    async def leave(self, worker: str) -> None:
        key = self._people()
        await self._wire.command(key, b"HDEL", key, to_text(worker))

    @timely
    async def silence(self, workers: Sequence[str], *, is_gone: bool = False) -> None:
        args = (b"1" if is_gone else b"", *map(to_text, workers))
        await self._run("silence", [self._people()], args)

    @timely
    async def workers(self) -> list[WorkerInfo]:
        now, rows = await self._run("workers", [self._people()])
        holders = await self._holders() if rows else {}
        found: list[WorkerInfo] = []
        for row in rows:
            beat, until, packed = row.split(b"|", 2)
            if int(until) > now - DAY:
                info = load(_worker, packed)
                held = holders.get(info.id.encode("utf-8", "replace"), Holding())
                found.append(seen(info, now, int(beat), int(until), held))
        return sorted(found, key=lambda info: info.id)

    async def _holders(self) -> dict[bytes, Holding]:
        """What each worker holds; a server with very many claims is asked for a part at a time."""
        holders: dict[bytes, Holding] = {}
        from_, more = 0, True
        while more:
            more = False
            for _, claims, is_more in await self._all("holders", (from_, CLAIMS)):
                more = more or bool(is_more)
                for worker, count, until in claims:
                    held = holders.get(worker, Holding())
                    holders[worker] = Holding(held.jobs + count, max(held.until, until))
            from_ += CLAIMS
        return holders

    async def _tidy_memory(self, limit: int) -> int:
        """On a cluster: remove notes past their time and workers silent for a day."""
        key = self._key("kinds")
        removed = 0
        for shelf in await self._wire.command(key, b"SMEMBERS", key):
            if removed < limit:
                removed += await self._run("tidy_notes", [shelf], (limit - removed,))
        if removed < limit:
            removed += await self._run("tidy_workers", [self._people()], (DAY, limit - removed))
        return removed

    def _shelf(self, kind: str) -> bytes:
        return self._key(f"notes_{kind if _PLAIN.fullmatch(kind) else digest(kind)}", tag=True)

    async def _register_kinds(self, kinds: Sequence[str]) -> None:
        fresh = [kind for kind in kinds if f"note {kind}" not in self._registered]
        if fresh:
            key = self._key("kinds")
            await self._wire.command(key, b"SADD", key, *map(self._shelf, fresh))
            self._registered.update(f"note {kind}" for kind in fresh)


def _values(notes: Sequence[Note]) -> list[Arg]:
    return [
        value
        for note in notes
        for value in (
            to_text(note.name),
            note.version,
            "" if note.ttl is None else max(note.ttl, 0),
            note.value,
        )
    ]


def _read_note(kind: str, name: str, row: bytes) -> Note:
    version, expires, updated, value = row.split(b"|", 3)
    return Note(
        kind=kind,
        name=name,
        value=value,
        version=int(version),
        ttl=int(expires) - int(updated) if expires else None,
        updated_at=int(updated),
    )
