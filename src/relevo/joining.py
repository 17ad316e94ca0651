"""Tells people of commands that joined a job by their key and whose own, other payload is not used.

Each is counted, the log warns of the first in a queue, and a note about the queue tells
`relevo doctor`, whichever process it was in. The job itself keeps a line of each (`Job.joins`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

import msgspec

from relevo.errors import StoreError
from relevo.job import NewJob, Receipt, Unique
from relevo.store import BATCH, Kept, Note, Store
from relevo.telemetry import Telemetry

KIND = "joined"
FLOW = "flow "
"""Before the name of a flow, where a queue's name would stand; no queue's has a blank."""

KEEP = 7 * 86_400_000
"""Milliseconds after the last one for which a queue's note is kept."""

_GATHER = 0.2  # seconds: those that come together are written as one
_AGAIN = 5.0  # seconds until it is tried again, where the store is away
_MOST = 10_000  # deliveries to look up; what comes beyond is not told


class Joins(msgspec.Struct, frozen=True, kw_only=True):
    """How many commands of a queue have joined a job with another payload, and the last of them."""

    count: int
    kind: str
    unique: Unique
    job: str  # which the last one joined
    since: int = 0


decode = msgspec.json.Decoder(Joins).decode


class Joining:
    """Notices such commands, for one engine."""

    def __init__(self, store: Store, telemetry: Telemetry) -> None:
        self._store = store
        self._telemetry = telemetry
        self._seen: dict[str, Joins] = {}  # by queue: what the notes do not tell yet
        self._asked: deque[tuple[NewJob, str]] = deque(maxlen=_MOST)
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False

    def noticed(self, job: NewJob, receipt: Receipt) -> None:
        """A command has joined the job of its receipt, which has another payload."""
        self._count(job, receipt.id)
        self._go()

    def flow_noticed(self, name: str, started: str) -> None:
        """A start of a flow has joined the one of its key, which has other nodes or payloads."""
        self._add(f"{FLOW}{name}", "", "unfinished", started)
        self._go()

    def received(self, jobs: Sequence[NewJob], kept: Kept) -> None:
        """A delivery is stored and committed; other jobs may stand for those it asked for."""
        before = len(self._asked)
        for job, stands in zip(jobs, kept.jobs, strict=False):
            if job.id != stands and job.digest is not None:
                self._asked.append((job, stands))
        if len(self._asked) > before:
            self._go()

    async def close(self) -> None:
        """Write what is not written yet."""
        self._is_closing = True
        if self._task is not None and not self._task.done():
            await asyncio.wait({self._task})
        self._is_closing = False

    def _count(self, job: NewJob, stands: str) -> None:
        self._telemetry.joined(job, stands)
        self._add(job.queue, job.kind, job.unique, stands)

    def _add(self, queue: str, kind: str, unique: Unique, stands: str) -> None:
        seen = self._seen.get(queue)
        count = 1 if seen is None else seen.count + 1
        self._seen[queue] = Joins(count=count, kind=kind, unique=unique, job=stands)

    def _go(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="relevo-joining")

    async def _run(self) -> None:
        while self._asked or self._seen:
            await asyncio.sleep(_GATHER)
            try:
                await self._look_up()
                await self._write()
            except StoreError as error:
                self._telemetry.trouble("cannot note which commands joined a job", error)
                if self._is_closing:
                    self._asked.clear()
                    self._seen.clear()
                await asyncio.sleep(0 if self._is_closing else _AGAIN)

    async def _look_up(self) -> None:
        """Count those deliveries' commands of which the jobs that stand for them have a line."""
        while self._asked:
            some = [self._asked[n] for n in range(min(BATCH, len(self._asked)))]
            ids = list(dict.fromkeys(stands for _, stands in some))
            found = dict(zip(ids, await self._store.find(ids), strict=True))
            for _ in some:
                self._asked.popleft()
            for job, stands in some:
                known = found[stands]
                if known is not None and any(line.id == job.id for line in known.joins):
                    self._count(job, stands)

    async def _write(self) -> None:
        for queue in list(self._seen):
            [note] = await self._store.recall(KIND, [queue])
            new, before = self._seen[queue], None if note is None else decode(note.value)
            value = msgspec.structs.replace(
                new,
                count=new.count + (0 if before is None else before.count),
                since=await self._store.now() if before is None else before.since,
            )
            made = Note(
                kind=KIND,
                name=queue,
                value=msgspec.json.encode(value),
                version=0 if note is None else note.version,
                ttl=KEEP,
            )
            [is_written] = await self._store.remember([made])
            if not is_written:
                continue  # another process has written meanwhile
            left = self._seen[queue].count - new.count
            if left:  # more have come while this was written
                self._seen[queue] = msgspec.structs.replace(self._seen[queue], count=left)
            else:
                del self._seen[queue]
