"""The mark of a store that was restored from a copy.

What ran after the copy was taken is not in it: jobs that have ended are ready again, and effects
that were made are not in the ledger. While the mark stands, an effect that the ledger does not know
may have happened, as after a run that broke off: `find` is asked first, a `repeatable` call is made
again with the same key, and any other is held for a person.

Once a person says that it is over (everything that was lost has come again), that holds for what
began before the mark alone.
"""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import msgspec

from relevo.clock import moment
from relevo.errors import StoreUnavailable
from relevo.ids import moment_of, parse_id
from relevo.job import Lease, State
from relevo.once import Doubts
from relevo.store import Audit, By, Filter, Letterbox, Note, Store
from relevo.telemetry import log

KIND, NAME, WENT_BACK = "restored", "store", "went back"
WARNED = 7 * 86_400_000
"""Milliseconds for which a store that went back is told of, unless it is marked as restored."""

RUNNING_MAX = 1_000
"""The most jobs that a mark names as running when the copy was taken."""

_TRIES = 10


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """That a store was restored: moments are the store's milliseconds."""

    at: int  # when the store was marked, before any process worked on it
    written_at: int  # the last write that the copy has
    by: str = ""
    running: tuple[str, ...] = ()  # jobs that were running when the copy was taken
    over_at: int = 0  # when a person said that what was lost has come again; 0: not yet

    @property
    def lost(self) -> int:
        """The milliseconds between the copy's last write and the mark."""
        return max(0, self.at - self.written_at)


_decode = msgspec.json.Decoder(Mark).decode


async def read_mark(store: Store) -> Mark | None:
    """The mark of a store; None where it was never restored."""
    [note] = await store.recall(KIND, [NAME])
    return None if note is None else _decode(note.value)


async def mark_restored(store: Store, by: By) -> Mark:
    """Mark a store as restored, before any process works on it."""
    page = await store.page(Filter(states=frozenset({State.RUNNING})), limit=RUNNING_MAX)
    written_at = await last_write(store)
    mark = Mark(
        at=await store.now(),
        written_at=written_at,
        by=by.who,
        running=tuple(job.id for job in page.jobs),
    )
    await _write(store, mark)
    await store.forget(KIND, [WENT_BACK])
    await store.audit([Audit(who=by.who, verb="mark restored", target="store", note=by.note)])
    return mark


async def end_mark(store: Store, by: By) -> Mark | None:
    """Say that what was lost has come again; None where the store has no mark."""
    mark = await read_mark(store)
    if mark is None or mark.over_at:
        return mark
    over = msgspec.structs.replace(mark, over_at=await store.now())
    await _write(store, over)
    await store.audit([Audit(who=by.who, verb="end restore", target="store", note=by.note)])
    return over


async def _write(store: Store, mark: Mark) -> None:
    value = msgspec.json.encode(mark)
    for _ in range(_TRIES):
        [note] = await store.recall(KIND, [NAME])
        version = 0 if note is None else note.version
        if (await store.remember([Note(kind=KIND, name=NAME, value=value, version=version)]))[0]:
            return
    raise StoreUnavailable("the mark of the restore was written by another process; try again")


async def last_write(store: Store) -> int:
    """The newest moment that a store tells of: of a job, a delivery, an effect, a worker's beat."""
    page = await store.page(Filter(), limit=1)
    deliveries, _ = await store.deliveries(Letterbox(), limit=1)
    effects, _ = await store.effects(limit=1)
    moments = [job.ended_at or job.inserted_at for job in page.jobs]
    moments += [kept.received_at for kept in deliveries]
    moments += [effect.updated_at for effect in effects]
    moments += [worker.beat_at for worker in await store.workers()]
    return max(moments, default=0)


class WentBack(msgspec.Struct, frozen=True, kw_only=True):
    """That the store has less than a process has seen in it, and no mark that explains it."""

    at: int  # when it was noticed, in the store's milliseconds
    seen_at: int  # when the process had seen more
    host: str


_decode_back = msgspec.json.Decoder(WentBack).decode


async def read_went_back(store: Store) -> WentBack | None:
    """What the store was found to lack; None where nothing is known to be missing."""
    [note] = await store.recall(KIND, [WENT_BACK])
    return None if note is None else _decode_back(note.value)


class Restored:
    """The mark of the store as this process knows it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_known = False
        self.mark: Mark | None = None
        self._seen = (0, 0)  # the newest version that this process has seen, and when
        self._memory: Path | None = None

    def remember_in(self, memory: Path) -> None:
        """Know from a file what earlier processes of this host have seen in the store."""
        self._memory = memory
        with contextlib.suppress(OSError, ValueError):
            version, at = memory.read_text().split()
            self._seen = int(version), int(at)

    async def saw(self, version: int) -> None:
        """Compare the version of a note that only rises with the newest that was seen before.

        An older one means that the store was put back to an earlier moment: restored from a copy,
        or taken over by a server that lacked the last writes.
        """
        before, seen_at = self._seen
        if version == before:
            return
        now = await self._store.now()
        self._seen = version, now
        if self._memory is not None:
            with contextlib.suppress(OSError):
                self._memory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._memory.write_text(f"{version} {now}")
        if version > before:
            return
        mark = await read_mark(self._store)
        if mark is not None and mark.at >= seen_at:
            return  # it is known to be a copy
        log.warning(
            "the store has less than a process has seen in it: it was restored from a copy, or a "
            "server without the last writes took over; stop every process, and `relevo database "
            "mark-restored`, or effects may be made again",
            extra={"seen_at": moment(seen_at).isoformat(timespec="seconds")},
        )
        found = WentBack(at=now, seen_at=seen_at, host=socket.gethostname())
        [note] = await self._store.recall(KIND, [WENT_BACK])
        await self._store.remember(
            [
                Note(
                    kind=KIND,
                    name=WENT_BACK,
                    value=msgspec.json.encode(found),
                    version=0 if note is None else note.version,
                    ttl=WARNED,
                )
            ]
        )

    async def learn(self) -> None:
        """Read the mark, once; a store without one gets none while processes work on it."""
        if self.is_known:
            return
        mark = await read_mark(self._store)
        if not self.is_known and mark is not None and not mark.over_at:
            log.warning(
                "the store was restored from a copy: effects that its ledger does not know are "
                "looked up before they are made, or held; see `relevo database after-restore`",
                extra={"lost_ms": mark.lost},
            )
        self.mark, self.is_known = mark, True

    async def learn_again(self) -> None:
        """Read the mark where it is not known, or where it stands and may be over by now."""
        if self.mark is not None and not self.mark.over_at:
            self.mark = await read_mark(self._store)
        await self.learn()

    def doubts(self, lease: Lease) -> Doubts | None:
        """What a restore means for the effects of a job, once the mark is known; None: nothing."""
        return None if self.mark is None else Doubts(self.mark.at, self.covers(lease))

    def covers(self, lease: Lease) -> bool:
        """Whether effects of this job may have been made in the time that was lost."""
        mark = self.mark
        if mark is None:
            return False
        if not mark.over_at:
            return True
        # What began before the mark, and all that comes of it, may have run before.
        began = [lease.inserted_at] if lease.inserted_at else []
        if lease.thread is not None and (thread := parse_id(lease.thread)) is not None:
            began.append(moment_of(thread))
        return min(began, default=mark.over_at) <= mark.at
