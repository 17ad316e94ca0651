"""People: what a person may see of jobs, and do to them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from msgspec.json import Encoder

from relevo.ids import parse_id
from relevo.job import ENDED, LIVE, After, Job, NewJob, Receipt, State, Verdict
from relevo.store import By, Edit, Filter, Group, Page, QueueMode, Tally
from relevo.stores.redis.frame import timely
from relevo.stores.redis.inlet import Inlet
from relevo.stores.redis.line import Arg
from relevo.stores.redis.newest import Newest
from relevo.stores.redis.record import (
    Unreadable,
    from_text,
    plain,
    read_job,
    read_line,
    repack,
    to_text,
)

AT_ONCE = 500  # ids to look for in one script run
CROWD = 10_000  # as many are sorted by when they came in
OWN = "own:"  # in front of the cursors of the others
TRIES = 5
LONG_COUNT = 3.0  # seconds; what was found by then is the answer
SLACK = 3_600_000  # how far a process's clock may be ahead of the store's
LETTERS = {
    State.READY: "r",
    State.SCHEDULED: "s",
    State.RUNNING: "R",
    State.WAITING: "W",
    State.PARKED: "P",
    State.HELD: "H",
    State.DONE: "D",
    State.DEAD: "X",
    State.CANCELLED: "C",
}
COUNTED = (
    State.READY,
    State.SCHEDULED,
    State.RUNNING,
    State.WAITING,
    State.PARKED,
    State.HELD,
    State.DONE,
    State.DEAD,
    State.CANCELLED,
)
_encode = Encoder().encode


class People(Inlet, Newest):
    """The verbs of the desk."""

    # looking

    @timely
    async def find(self, ids: Sequence[str]) -> list[Job | None]:
        now, rows = await self._rows(ids)
        return [read_job(rows[id], now, history=True) if id in rows else None for id in ids]

    @timely
    async def page(self, where: Filter, *, cursor: str | None = None, limit: int = 50) -> Page:
        now = await self.now()
        own = cursor.startswith(OWN) if cursor is not None else await self._is_crowded(where)

        def keep(row: Any) -> Job | None:
            job = read_job(row[1], now, history=False)
            return job if _means(where, job) else None

        jobs, further = await self._newest(
            "walk",
            await self._roots_of(where),
            _question(where, own=own),
            keep,
            cursor=cursor.removeprefix(OWN) if cursor is not None else None,
            limit=limit,
        )
        return Page(jobs, OWN + further if own and further is not None else further)

    @timely
    async def count(self, where: Filter, *, most: int = 10_000) -> int:
        if where == Filter(queue=where.queue, states=where.states):
            tallies = [t for t in await self._tallies() if where.queue in (None, t.queue)]
            wanted = where.states or frozenset(State)
            found = sum(t.counts.get(state, 0) for t in tallies for state in wanted)
            return min(found, most)
        if where == Filter(queue=where.queue, park=where.park, fingerprint=where.fingerprint):
            sets = (("park", where.park), ("group", where.fingerprint))
            (name, value), *more = [(name, value) for name, value in sets if value is not None]
            if not more:
                parts = await self._all("count", (name, to_text(value), where.queue or ""))
                return min(sum(parts), most)
        now, began = await self.now(), time.monotonic()
        exact = _needles(where) != [] or _is_exact(where)

        def keep(row: Any) -> bool | None:
            return (
                None if exact and not _means(where, read_job(row[1], now, history=False)) else True
            )

        total, cursor = 0, None
        roots, question = await self._roots_of(where), _question(where, count=not _is_exact(where))
        while total < most:
            some, cursor = await self._newest(
                "walk", roots, question, keep, cursor=cursor, limit=1_000, most=1_000
            )
            total += len(some)
            if cursor is None or time.monotonic() - began > LONG_COUNT:
                break
        return min(total, most)

    @timely
    async def tally(self) -> list[Tally]:
        return await self._tallies()

    @timely
    async def groups(self, *, queue: str | None = None, limit: int = 50) -> list[Group]:
        found: list[Group] = []
        for rows in await self._all("groups", (max(limit, 1),)):
            found += [_read_group(row) for row in rows if queue in (None, row[0].decode())]
        found.sort(key=lambda group: (-group.count, -group.last_at))
        return found[:limit]

    # doing

    @timely
    async def retry(self, ids: Sequence[str], by: By, *, spread: int = 0) -> list[bool]:
        now, rows = await self._rows(ids)
        jobs = {id: read_job(row, now, history=False) for id, row in rows.items()}
        waits, refused = await self._look_at_children([job for job in jobs.values() if job.after])
        items: list[tuple[str, tuple[Arg, ...]] | None] = [
            (jobs[id].queue, (id, round(n * spread / len(ids)), b"1" if id in waits else b"0"))
            if id in jobs and id not in refused
            else None
            for n, id in enumerate(ids)
        ]
        stubs = [waits[id] for id in dict.fromkeys(ids) if id in waits]
        note = await self._write_down(stubs) if stubs else ""
        answers = [answer == 1 for answer in await self._do("retry", items, by)]
        if stubs:
            retried = {id for id, done in zip(ids, answers, strict=True) if done}
            tied = [stub for stub in stubs if stub.id in retried]
            await self._tie(tied, [Receipt(stub.id, Verdict.NEW) for stub in tied])
            await self._take_off(stubs[0].queue, note)
        return answers

    @timely
    async def edit(self, edits: Sequence[Edit], by: By) -> list[bool]:
        answers = [False] * len(edits)
        places = list(range(len(edits)))
        for _ in range(TRIES):
            _, rows = await self._rows([edits[place].id for place in places])
            items = [_edit_item(edits[place], rows.get(edits[place].id)) for place in places]
            found = await self._do("edit", items, by)
            for place, answer in zip(places, found, strict=True):
                answers[place] = answer == 1
            # Somebody else changed it between our look and our hand: look again.
            places = [place for place, answer in zip(places, found, strict=True) if answer == -1]
            if not places:
                break
        return answers

    @timely
    async def cancel(self, ids: Sequence[str], by: By) -> list[bool]:
        return await self._put_aside("cancel", ids, by)

    @timely
    async def discard(self, ids: Sequence[str], by: By) -> list[bool]:
        return await self._put_aside("discard", ids, by)

    @timely
    async def set_mode(self, queues: Sequence[str], mode: QueueMode, by: By) -> list[bool]:
        if self._wire.is_cluster:
            await self._register(queues)
        args = (to_text(by.who), to_text(by.note), mode.value)
        return [n == 1 for part in await self._each("mode", queues, args) for n in part]

    # how

    async def _rows(self, ids: Sequence[str]) -> tuple[int, dict[str, Any]]:
        """The rows of the jobs that are there. There is no index: every queue is asked."""
        known = [id for id in dict.fromkeys(ids) if parse_id(id) == id]
        rows: dict[str, Any] = {}
        now = 0
        for at in range(0, len(known), AT_ONCE):
            for then, found in await self._all("read", known[at : at + AT_ONCE]):
                now = max(now, then)
                rows |= {row[1].decode(): row for row in found}
        return now, rows

    async def _is_crowded(self, where: Filter) -> bool:
        """Whether one state is asked for that has so many jobs that others hide them.

        They are then shown by that state's own time, so that none has to be searched for.
        """
        if len(where.states) != 1 or where.park is not None or where.fingerprint is not None:
            return False
        (state,) = where.states
        tallies = [t for t in await self._tallies() if where.queue in (None, t.queue)]
        return any(tally.counts.get(state, 0) > CROWD for tally in tallies)

    async def _roots_of(self, where: Filter) -> list[tuple[str, bytes]]:
        queues = await self._queues()
        return [(q, self._root(q)) for q in queues if where.queue is None or where.queue == q]

    async def _tallies(self) -> list[Tally]:
        parts = await self._all("tally")
        return [_read_tally(row) for rows in parts for row in rows]

    async def _do(
        self, name: str, items: Sequence[tuple[str, tuple[Arg, ...]] | None], by: By
    ) -> list[int]:
        """What the script says of each item; 0 where there is none."""
        answers = [0] * len(items)
        for places, found in await self._over(name, items, to_text(by.who), to_text(by.note)):
            for place, answer in zip(places, found, strict=True):
                answers[place] = answer
        return answers

    async def _put_aside(self, verb: str, ids: Sequence[str], by: By) -> list[bool]:
        queues = await self._queues_of([id for id in dict.fromkeys(ids) if parse_id(id) == id])
        items = [(queues[id], (id,)) if id in queues else None for id in ids]
        answers = [False] * len(ids)
        who = (to_text(by.who), to_text(by.note))
        for places, (found, out) in await self._over("cancel", items, *who, verb):
            for place, answer in zip(places, found, strict=True):
                answers[place] = answer == 1
            await self._carry(out)
        return answers

    async def _look_at_children(self, parents: Sequence[Job]) -> tuple[dict[str, NewJob], set[str]]:
        """Parents that must wait again, as jobs to be tied; and those that a child forbids."""
        if not parents:
            return {}, set()
        now, rows = await self._rows([edge.child for job in parents for edge in job.after])
        states = {id: read_job(row, now, history=False).state for id, row in rows.items()}
        waits: dict[str, NewJob] = {}
        refused: set[str] = set()
        for job in parents:
            if any(_forbids(edge, states.get(edge.child)) for edge in job.after):
                refused.add(job.id)
            elif any(states.get(edge.child) in LIVE for edge in job.after):
                waits[job.id] = NewJob(
                    id=job.id, queue=job.queue, kind=job.kind, payload=b"", after=job.after
                )
        return waits, refused


def _forbids(edge: After, state: State | None) -> bool:
    return edge.policy == "fail" and state in ENDED and state is not State.DONE


def _edit_item(edit: Edit, row: Any) -> tuple[str, tuple[Arg, ...]] | None:
    if row is None:
        return None
    queue, _, blob = row[0].decode(), row[1], row[2]
    try:
        changed = repack(blob, payload=edit.payload, priority=edit.priority, attempts=edit.attempts)
    except Unreadable:
        return None
    moment = "" if edit.run_at is None else edit.run_at
    return queue, (
        edit.id,
        blob,
        changed,
        moment,
        _hash(blob, edit, old=True),
        _hash(changed, edit),
    )


def _hash(blob: bytes, edit: Edit, *, old: bool = False) -> str:
    moment = b"" if old or edit.run_at is None else str(edit.run_at).encode()
    return blake2b(blob + moment, digest_size=16).hexdigest()


def _needles(where: Filter) -> list[list[bytes]]:
    """What must be found in a job's text, each in the spellings it may have there."""
    needles: list[list[bytes]] = []
    fields = {
        "k": where.kind,
        "y": where.key,
        "l": where.lane,
        "t": where.thread,
        "f": where.flow,
    }
    for name, value in fields.items():
        if value is not None:
            spellings = [f'"{name}":'.encode() + _encode(plain(value))]
            if name == "t":
                spellings.append(b"|")  # a job that started its thread does not write it down
            needles.append(spellings)
    if where.text is not None:
        needles.append([to_text(where.text), _encode(plain(where.text))[1:-1]])
    return needles


def _question(where: Filter, *, own: bool = False, count: bool = False) -> list[Arg]:
    needles = _needles(where)
    letters = "".join(sorted(LETTERS[state] for state in where.states))
    question: list[Arg] = [b"own" if own else b"", letters]
    for value in (where.park, where.fingerprint):
        question += (b"1", to_text(value)) if value is not None else (b"0", b"")
    question += (_begin_of(where.thread), b"1" if count else b"0", len(needles))
    for spellings in needles:
        question += (len(spellings), *spellings)
    return question


def _begin_of(thread: str | None) -> str:
    # A thread's name tells when it began, and none of its jobs is older.
    if thread is None or parse_id(thread) != thread or thread[12] != "7":
        return ""
    return str(max(0, int(thread[:12], 16) - SLACK))


def _is_exact(where: Filter) -> bool:
    """Whether a job has to be read to tell whether a filter means it."""
    return (where.error, where.since, where.until) != (None, None, None)


def _means(where: Filter, job: Job) -> bool:
    exact = (
        (where.kind, job.kind),
        (where.key, job.key),
        (where.lane, job.lane),
        (where.park, job.park),
        (where.thread, job.thread),
        (where.flow, job.flow),
    )
    if any(wanted is not None and wanted != found for wanted, found in exact):
        return False
    if where.states and job.state not in where.states:
        return False
    moment = job.inserted_at if job.ended_at is None else job.ended_at
    if where.since is not None and moment < where.since:
        return False
    if where.until is not None and moment >= where.until:
        return False
    failure = job.failure
    if where.error is not None and (
        failure is None or where.error not in f"{failure.type}: {failure.message}"
    ):
        return False
    if where.text is None:
        return True
    return (
        to_text(where.text) in job.payload
        or where.text in (job.key or "")
        or (
            failure is not None
            and where.text in f"{failure.type}\n{failure.message}\n{failure.trace}"
        )
    )


def _read_tally(row: Sequence[Any]) -> Tally:
    name, mode, *numbers, late, oldest = row
    counts = {state: n for state, n in zip(COUNTED, numbers, strict=True) if n}
    return Tally(
        queue=name.decode(),
        mode=QueueMode(mode.decode()),
        counts=counts,
        oldest=int(oldest) if oldest else None,
        late=int(late) if late else None,
    )


def _read_group(row: Sequence[Any]) -> Group:
    queue, print_, count, first, last, sample, line = row
    failure = read_line(line).f if line else None
    return Group(
        fingerprint=from_text(print_),
        queue=queue.decode(),
        type=failure.type if failure else "",
        message=failure.message if failure else "",
        count=int(count),
        first_at=int(float(first)),
        last_at=int(float(last)),
        sample=sample.decode(),
    )
