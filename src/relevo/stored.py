"""Stored: what waits in the store, read as the code here reads it.

A job whose payload does not fit its command here is parked, and goes on when code starts that can
read it. `relevo check --stored` tells of such jobs before that code is deployed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from relevo.app import Binding
from relevo.errors import PayloadError, PayloadMismatch
from relevo.job import LIVE, Job, Lease, NewJob, State
from relevo.message import codec
from relevo.outcome import Parked, reason
from relevo.relay import Relayed
from relevo.sealing import closed, is_sealed
from relevo.store import BATCH, Filter, Store

Bindings = Mapping[tuple[str, str], Binding]

OUTBOX = "outbox"
"""Beside the states of jobs: in an outbox, and not carried to the store yet."""

SAMPLE = 20
"""The most job ids that are told of one command."""

EVERY = 10
"""Each time so many rounds have gone by, also what did not seem to have changed is read again."""


class StoredCommand(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of one command that wait in one queue."""

    queue: str
    kind: str
    waiting: int = 0
    states: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    unreadable: int = 0  # of those that wait
    error: str = ""  # of the oldest unreadable one
    field: str = ""  # the first field of it that does not fit
    jobs: list[str] = msgspec.field(default_factory=list[str])  # unreadable ones, oldest first


def unknown(kind: str) -> str:
    """What jobs are parked behind when no code here knows their command."""
    return f"unknown:{kind}"


def unreadable(kind: str) -> str:
    """What jobs are parked behind when their payload does not fit their command here."""
    return f"payload:{kind}"


def parked_unknown(lease: Lease) -> Parked:
    """How a run ends whose command has no worker here."""
    return Parked(unknown(lease.kind), reason("UnknownCommand", _nobody(lease.queue, lease.kind)))


def parked_unreadable(lease: Lease, error: PayloadMismatch) -> Parked:
    """How a run ends whose payload was stored by other code."""
    said = f"the code here cannot read its payload: {error}"
    return Parked(unreadable(lease.kind), reason("PayloadMismatch", said))


async def read_stored(
    store: Store,
    bindings: Bindings,
    *,
    most: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> list[StoredCommand]:
    """What waits in the queues of the apps here, by queue and command.

    Of each queue the newest `most` jobs, or all, and what an outbox has not carried yet. Queues of
    other apps are left out.
    """
    apps = {binding.app for binding in bindings.values()}
    queues = {queue for queue, _ in bindings}
    found: dict[tuple[str, str], StoredCommand] = {}
    posted = await _posted(store)  # before the jobs: what is carried meanwhile is there then
    for letter in reversed(posted.values()):
        if letter.queue in queues or letter.queue.partition(":")[0] in apps:
            _add(found, letter, OUTBOX, problem(bindings, letter))
    seen = len(posted)
    for tally in await store.tally():
        queue, left = tally.queue, most
        is_ours = queue in queues or queue.partition(":")[0] in apps
        if not is_ours or not any(tally.counts.get(state) for state in LIVE):
            continue
        cursor = None
        while left is None or left > 0:
            where = Filter(queue=queue, states=LIVE)
            page = await store.page(where, cursor=cursor, limit=min(BATCH, left or BATCH))
            for job in page.jobs:
                if job.id not in posted:
                    _add(found, job, job.state.value, problem(bindings, job))
            seen += len(page.jobs)
            progress(seen)
            cursor = page.cursor
            if cursor is None:
                break
            left = None if left is None else left - len(page.jobs)
    return [found[place] for place in sorted(found)]


async def _posted(store: Store) -> dict[str, NewJob]:
    """The jobs of an outbox that are not carried yet, oldest first."""
    if not isinstance(store, Relayed):
        return {}
    return {letter.job.id: letter.job async for letter in store.walk_letters(carried=False)}


def _add(
    found: dict[tuple[str, str], StoredCommand],
    job: Job | NewJob,
    state: str,
    error: PayloadError | str | None,
) -> None:
    """Count one more job; they come newest first."""
    place = (job.queue, job.kind)
    known = found.get(place) or StoredCommand(queue=job.queue, kind=job.kind)
    known.states[state] = known.states.get(state, 0) + 1
    known = msgspec.structs.replace(known, waiting=known.waiting + 1)
    if error is not None:
        known = msgspec.structs.replace(
            known,
            unreadable=known.unreadable + 1,
            error=str(error),
            field=error.path if isinstance(error, PayloadError) else "",
            jobs=[job.id, *known.jobs[: SAMPLE - 1]],
        )
    found[place] = known


def problem(bindings: Bindings, job: Job | NewJob) -> PayloadError | str | None:
    """Why the code here could not run a job; None if it could."""
    binding = bindings.get((job.queue, job.kind))
    if binding is None:
        return _nobody(job.queue, job.kind)
    if is_sealed(job.payload):
        return str(closed(job.payload))
    try:
        codec(binding.message).decode(job.payload)
    except PayloadError as error:
        return error
    return None


def _nobody(queue: str, kind: str) -> str:
    return f"no worker here carries out {kind} of {queue}"


class Releasing:
    """Lets the jobs go on that were parked for want of code which is here.

    Workers of older code may park a job again, so it is let go once a round at most; and what they
    park after this worker has started does not wait until another one starts.
    """

    def __init__(self, store: Store, bindings: Bindings) -> None:
        self._store = store
        self._bindings = bindings
        self._parked: dict[str, int] = {}  # by queue: how many stayed parked after the last round
        self._round = 0

    async def round(self) -> bool:
        """Let go of those that can be read here; answers whether there was anything to look at."""
        is_full = self._round % EVERY == 0
        self._round += 1
        served = {queue for queue, _ in self._bindings}
        freed = 0
        parked = {
            tally.queue: tally.counts.get(State.PARKED, 0)
            for tally in await self._store.tally()
            if tally.queue in served
        }
        queues = {
            queue
            for queue, count in parked.items()
            if count and (is_full or count != self._parked.get(queue))
        }
        for kind in sorted({kind for queue, kind in self._bindings if queue in queues}):
            freed += await self._store.unpark(unknown(kind))
        for queue, kind in sorted(self._bindings):
            if queue in queues:
                freed += await self._readable(queue, kind)
        # What was let go may be parked again by others, and the count be what it was.
        self._parked = {} if freed else parked
        return bool(queues)

    async def _readable(self, queue: str, kind: str) -> int:
        park = unreadable(kind)
        where = Filter(queue=queue, kind=kind, park=park, states=frozenset({State.PARKED}))
        freed, cursor = 0, None
        while True:
            page = await self._store.page(where, cursor=cursor, limit=BATCH)
            ids = [job.id for job in page.jobs if problem(self._bindings, job) is None]
            freed += await self._store.unpark(park, ids=ids) if ids else 0
            cursor = page.cursor
            if cursor is None:
                return freed
