"""Remembers which jobs wait long without spending an attempt, so that a person hears of them.

A job whose provider does not accept our key is noted at once, under what it is parked behind; one
that is postponed again and again is noted under its queue when it has waited for long.
"""

from __future__ import annotations

import msgspec

from relevo.job import Job, Lease, State
from relevo.outcome import CREDENTIALS, Parked, Postponed
from relevo.store import Note, Store
from relevo.storetime import StoreTime

KIND = "waiting"
LONG = 15 * 60_000
"""From so many milliseconds of waiting a postponed job is noted."""

LAPSES = 2 * 3_600_000  # a postponed job is back within an hour, and is noted anew
_NOTE_EVERY = 10_000

_UNSPENT = frozenset({"snooze", "parked"})
_WAITS = frozenset({State.SCHEDULED, State.READY, State.RUNNING})


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """The job that has waited for longest, as far as is known, for one reason."""

    queue: str
    job: str
    since: int
    why: str
    park: str = ""  # what it is parked behind; "": it is postponed


decode = msgspec.json.Decoder(Wait).decode


class Waiting:
    """Writes these notes, for the runs of one process."""

    def __init__(self, store: Store, time: StoreTime) -> None:
        self._store = store
        self._time = time
        self._noted: dict[str, int] = {}  # when a postponed job of this queue was last looked at

    async def ended(self, lease: Lease, outcome: Parked | Postponed) -> None:
        """A run ended without spending an attempt."""
        if isinstance(outcome, Parked):
            if outcome.behind.startswith(CREDENTIALS):
                await self._parked(lease, outcome)
        elif await self._time.now() - lease.inserted_at > LONG:
            await self._postponed(lease, outcome)

    async def _parked(self, lease: Lease, outcome: Parked) -> None:
        [note] = await self._store.recall(KIND, [outcome.behind])
        if note is not None:
            [job] = await self._store.find([decode(note.value).job])
            if is_waiting(job, outcome.behind):
                return
        why = "" if outcome.failure is None else outcome.failure.message
        now = await self._time.now()
        wait = Wait(queue=lease.queue, job=lease.id, since=now, why=why, park=outcome.behind)
        await self._write(outcome.behind, wait, note, None)

    async def _postponed(self, lease: Lease, outcome: Postponed) -> None:
        local = self._time.local()
        if local - self._noted.get(lease.queue, -_NOTE_EVERY) < _NOTE_EVERY:
            return
        self._noted[lease.queue] = local
        [note] = await self._store.recall(KIND, [lease.queue])
        known = None if note is None else decode(note.value)
        ids = [lease.id] if known is None else [lease.id, known.job]
        job, *others = await self._store.find(ids)
        since = since_when(job)
        if known is not None and known.job == lease.id:
            since = min(since or known.since, known.since)
        elif known is not None and is_waiting(others[0]) and (since or known.since) >= known.since:
            return
        if since is None or await self._time.now() - since < LONG:
            return
        wait = Wait(queue=lease.queue, job=lease.id, since=since, why=outcome.failure.message)
        await self._write(lease.queue, wait, note, LAPSES)

    async def _write(self, name: str, wait: Wait, known: Note | None, ttl: int | None) -> None:
        version = 0 if known is None else known.version
        value = msgspec.json.encode(wait)
        # Another process may have written meanwhile: its job waits as well.
        await self._store.remember(
            [Note(kind=KIND, name=name, value=value, version=version, ttl=ttl)]
        )


def is_waiting(job: Job | None, park: str = "") -> bool:
    """Whether a job that was noted waits still, for that reason."""
    if job is None:
        return False
    if park:
        return job.state is State.PARKED and job.park == park
    return job.state in _WAITS


def since_when(job: Job | None) -> int | None:
    """When the first of the runs began that have ended without spending an attempt since."""
    since: int | None = None
    for run in reversed(() if job is None else job.history):
        if run.outcome not in _UNSPENT or run.failure is None or run.failure.type == "Snooze":
            break
        since = run.began_at
    return since
