"""Looking: everything that changes nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any

import msgspec
from msgspec.structs import replace

from relevo.clock import Duration, duration, milliseconds
from relevo.desk.views import joined_by
from relevo.errors import DefinitionError, NotFoundError
from relevo.ids import parse_id
from relevo.job import Failure, Job, State, queue_name
from relevo.job_meta import origin_of
from relevo.payload import mask
from relevo.relay import STANDS
from relevo.scrubbing import mask as mask_text
from relevo.store import (
    Audit,
    Effect,
    EffectState,
    Filter,
    Group,
    Kept,
    Letterbox,
    Page,
    Store,
    Tally,
    WorkerInfo,
)

PAGE_MAX = 200
STORY_MAX = 500
THREADS_MAX = 20
TEXT_MAX = 500
SEARCHED = 1.0
"""Seconds for which one page of a search may look through what no index knows."""


class Looking:
    """One store, seen by a person; with `apps`, only the queues of those apps.

    Without `reveals`, text is found only where a viewer can read it: what answers whether a guess
    stands behind a mask would tell what stands there, letter by letter.
    """

    def __init__(
        self,
        store: Store,
        *,
        apps: Collection[str] | None = None,
        reveals: bool = True,
        keep_dead: Duration = "90d",
    ) -> None:
        self.store = store
        self.apps = None if apps is None else frozenset(apps)
        self.reveals = reveals
        self.keep_dead = duration(keep_dead)  # for so long it is remembered what a job started

    def sees(self, queue: str) -> bool:
        """Whether this desk may know of a queue."""
        return self.apps is None or queue.partition(":")[0] in self.apps

    async def job(self, id: str) -> Job:
        """The job with its history."""
        job = (await self._stands([plain_id(id)])).get(plain_id(id))
        if job is None or not self.sees(job.queue):
            raise NotFoundError(
                f"no job has the id {plain_id(id)}: it may be past its keeping time, or in "
                "another store"
            )
        return job

    async def outlived(self, ids: Iterable[str]) -> list[Job]:
        """Of these jobs those that ran so long ago that what they started may not be known any
        more: retried, they may start it once again."""
        found = await self.store.find([plain_id(id) for id in ids])
        mine = [job for job in found if job is not None and self.sees(job.queue)]
        now = await self.store.now() if mine else 0
        return [job for job in mine if self.has_outlived(job, now)]

    def has_outlived(self, job: Job, now: int) -> bool:
        """Whether one did; without its history, as far as its age tells."""
        if not job.history and not job.attempt:
            return False
        began = min((run.began_at for run in job.history), default=job.inserted_at)
        return now - began > milliseconds(self.keep_dead)

    async def jobs(
        self,
        where: Filter,
        cursor: str | None = None,
        limit: int = 50,
        *,
        seconds: float = SEARCHED,
    ) -> Page:
        """Some jobs, newest first; a limit beyond 1 to 200 is brought there.

        What no index knows is looked for so many seconds; the cursor goes on from there.
        """
        where = _checked(where)
        jobs, place = await self.looked(where, opened(cursor, where), limit, seconds=seconds)
        if not jobs and not self.reveals and where.text is not None:
            place = None  # that there is more would be an answer too
        return Page(jobs, sealed(place, where))

    async def looked(
        self, where: Filter, place: str | None, limit: int, *, seconds: float
    ) -> tuple[list[Job], str | None]:
        """The jobs that this person sees, from a store's place on, and how far that has come."""
        limit = min(max(limit, 1), PAGE_MAX)
        jobs: list[Job] = []
        until = monotonic() + seconds
        while True:  # a page may come back short, but never endlessly late
            page = await self.store.page(where, cursor=place, limit=limit - len(jobs))
            jobs += [job for job in page.jobs if self.sees(job.queue) and self._reads(where, job)]
            place = page.cursor
            if place is None or len(jobs) >= limit or monotonic() >= until:
                return jobs, place

    def _reads(self, where: Filter, job: Job) -> bool:
        """Whether what was looked for stands where this person can read it."""
        if self.reveals or where.text is None:
            return True
        seen = self.masked(job)
        said = "" if seen.failure is None else msgspec.json.encode(seen.failure).decode()
        readable = (seen.payload.decode(), job.key or "", said, seen.note)
        return any(where.text in text for text in readable)

    async def count(self, where: Filter, *, most: int = 10_000) -> int:
        """How many jobs a filter means; counting stops at `most`."""
        where = _checked(where)
        if where.queue is not None and not self.sees(where.queue):
            return 0
        if not self.reveals and where.text is not None:
            return await self._count_readable(where, most)
        if self.apps is None or where.queue is not None:
            return await self.store.count(where, most=most)
        counts = [
            await self.store.count(replace(where, queue=tally.queue), most=most)
            for tally in await self.queues()
        ]
        return min(sum(counts), most)

    async def _count_readable(self, where: Filter, most: int) -> int:
        count, cursor = 0, None
        for _ in range(20):
            page = await self.jobs(where, cursor, PAGE_MAX, seconds=0.1)
            count += len(page.jobs)
            cursor = page.cursor
            if cursor is None or count >= most:
                break
        return min(count, most)

    async def queues(self) -> list[Tally]:
        """Every queue that has, or had, jobs."""
        tallies = [tally for tally in await self.store.tally() if self.sees(tally.queue)]
        return sorted(tallies, key=lambda tally: tally.queue)

    async def queue(self, name: str) -> Tally:
        """One queue; empty and open if it never had a job."""
        if not self.sees(queue_name(name)):
            raise NotFoundError(f"no queue is called {name}")
        for tally in await self.queues():
            if tally.queue == name:
                return tally
        return Tally(queue=name, counts={})

    async def groups(self, *, queue: str | None = None, limit: int = 50) -> list[Group]:
        """Dead letters by mistake, most first."""
        limit = min(max(limit, 1), PAGE_MAX)
        if self.apps is None or queue is not None:
            queues = [queue if queue is None else queue_name(queue)]
        else:
            queues = [tally.queue for tally in await self.queues()]
        found: list[Group] = []
        for name in queues:
            if name is None or self.sees(name):
                found += await self.store.groups(queue=name, limit=limit)
        found = sorted(found, key=lambda group: (-group.count, group.fingerprint))[:limit]
        return [replace(group, message=self.told(group.message)) for group in found]

    async def workers(self) -> list[WorkerInfo]:
        """The workers of the last day, each with those of its queues that are seen here."""
        found: list[WorkerInfo] = []
        for worker in await self.store.workers():
            queues = [queue for queue in worker.queues if self.sees(queue)]
            if queues or self.apps is None:
                seen = replace(
                    worker,
                    queues=queues,
                    busy={queue: n for queue, n in worker.busy.items() if self.sees(queue)},
                    slots={queue: n for queue, n in worker.slots.items() if self.sees(queue)},
                    timings=[each for each in worker.timings if self.sees(each.queue)],
                )
                found.append(seen)
        return found

    async def overdue_on(self, job: Job) -> str | None:
        """The worker where a job's plain function runs past its time limit; None: it does not."""
        if job.state is State.RUNNING:
            for worker in await self.store.workers():
                if worker.is_alive and job.id in worker.overdue:
                    return worker.id
        return None

    async def effects(
        self,
        *,
        job: str | None = None,
        states: frozenset[EffectState] = frozenset(),
        text: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> tuple[list[Effect], str | None]:
        """The effect ledger, newest first; of a `job` that was replayed, those of its origin."""
        _bounded(text, "the text to search for")
        job = None if job is None else await self._origin(plain_id(job))
        question = ("effects", job, states, text)
        effects, place = await self.store.effects(
            job=job,
            states=states,
            text=text,
            cursor=opened(cursor, question),
            limit=min(max(limit, 1), PAGE_MAX),
        )
        mine = [effect for effect in effects if self.sees(effect.queue)]
        if text is not None and not self.reveals:
            mine = [each for each in mine if text in each.key or text in _result(each)]
            place = place if mine else None
        return mine, sealed(place, question)

    async def _origin(self, id: str) -> str:
        """The id that the effects of a job are written under."""
        [job] = await self.store.find([id])
        return id if job is None else origin_of(job)

    async def effect(self, job: str, name: str) -> Effect:
        """One effect of a job, or of what several jobs share it under."""
        effects, _ = await self.effects(job=job, limit=PAGE_MAX)
        for effect in effects:
            if effect.name == name:
                return effect
        owner = await self.job(job)
        names = ", ".join(sorted(effect.name for effect in effects)) or "none at all"
        raise NotFoundError(f"job {owner.id} has no effect called {name!r:.80}; it has {names}")

    async def askers(self, effect: Effect) -> list[Job]:
        """The job of an effect; of one that several share, those that are held for it, or run.

        A replay shares the effects of the job that it repeats.
        """
        [owner] = await self.store.find([effect.job])
        sharing: list[Job] = []
        place = None
        for _ in range(20):  # of thousands that are held only the newest are looked through
            where = Filter(queue=effect.queue, states=_ASKING)
            page = await self.store.page(where, cursor=place, limit=PAGE_MAX)
            sharing += [job for job in page.jobs if _shares(job, effect, owner)]
            place = page.cursor
            if place is None:
                break
        if owner is None or (sharing and owner.state is State.DONE):
            return sharing
        return [owner, *sharing]

    async def audits(
        self,
        *,
        target: str | None = None,
        who: str | None = None,
        verb: str | None = None,
        since: int | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> tuple[list[Audit], str | None]:
        """What people did, newest first. A desk of some apps must say to which job or queue.

        A rare person or verb is looked for as long as one page of a search may take; the cursor
        goes on from there.
        """
        _bounded(target, "the target")
        if target is not None:
            target = parse_id(target) or target
        if self.apps is not None and not await self._sees_target(target):
            raise NotFoundError("name a job or a queue of yours to see what people did to it")
        question = ("audits", target, who, verb, since)
        place = opened(cursor, question)
        limit = min(max(limit, 1), PAGE_MAX)
        found: list[Audit] = []
        is_all = who is None and verb is None
        until = monotonic() + SEARCHED
        while True:
            # A row at a time would be many trips; a row too many would be lost behind the cursor.
            many = limit - len(found)
            rows, place = await self.store.audits(target=target, cursor=place, limit=many)
            if since is not None and rows and rows[-1].at < since:
                place, rows = None, [row for row in rows if row.at >= since]
            found += [row for row in rows if who in (None, row.who) and verb in (None, row.verb)]
            if place is None or len(found) >= limit or is_all or monotonic() >= until:
                return found, sealed(place, question)

    async def _sees_target(self, target: str | None) -> bool:
        if target is None:
            return False
        [job] = await self.store.find([target]) if parse_id(target) else [None]
        return self.sees(target if job is None else job.queue)

    def told(self, text: str) -> str:
        """A text about an error as this person reads it: with a viewer's mask or without."""
        return text if self.reveals else mask_text(text)

    def masked(self, job: Job) -> Job:
        """The job as a viewer sees it: what looks personal or secret is masked."""
        return replace(
            job,
            payload=mask(job.payload),
            result=None if job.result is None else mask(job.result),
            failure=_masked(job.failure),
            note=mask_text(job.note),
            history=tuple(replace(run, failure=_masked(run.failure)) for run in job.history),
        )

    def masked_payload(self, payload: bytes) -> bytes:
        """A payload as a viewer sees it."""
        return mask(payload)

    def masked_group(self, group: Group) -> Group:
        """The dead letters of one mistake as a viewer sees them."""
        return replace(group, message=mask_text(group.message))

    def masked_effect(self, effect: Effect) -> Effect:
        """The effect as a viewer sees it."""
        result = None if effect.result is None else mask(effect.result)
        return replace(effect, result=result, error=mask_text(effect.error))

    async def _stands(self, ids: Sequence[str]) -> dict[str, Job]:
        """The jobs that stand for these ids: their own, or those that they joined by the outbox."""
        found = dict(zip(ids, await self.store.find(ids), strict=True))
        gone = [id for id, job in found.items() if job is None]
        notes = await self.store.recall(STANDS, gone) if gone else []
        others = {
            id: msgspec.json.decode(note.value, type=str)
            for id, note in zip(gone, notes, strict=True)
            if note is not None
        }
        stand = await self.store.find(list(others.values())) if others else []
        found |= zip(others, stand, strict=True)
        return {id: job for id, job in found.items() if job is not None}

    def _with_joined(self, kept: Kept, stands: Mapping[str, Job]) -> Kept:
        """The delivery with the jobs that stand for its own, and which of these it joined."""
        ids = tuple(stands[id].id if id in stands else id for id in kept.jobs)
        return replace(kept, jobs=ids, joined=joined_by(kept, stands.values()))

    async def readable(self, where: Letterbox, found: list[Kept]) -> list[Kept]:
        """Of what a search found, the deliveries in which this person can read what it was for."""
        text = where.text
        if self.reveals or text is None or not found:
            return found
        full = await self.store.delivery([kept.id for kept in found])
        there = {
            kept.id
            for kept in full
            if kept is not None
            and any(
                text in said
                for said in (
                    mask(kept.body).decode() if kept.body else "",
                    kept.key or "",
                    mask_text(kept.reason),
                )
            )
        }
        return [kept for kept in found if kept.id in there]


_ASKING = frozenset({State.HELD, State.RUNNING})


def _shares(job: Job, effect: Effect, owner: Job | None) -> bool:
    """Whether a job that is not the effect's own makes that effect, too."""
    if owner is None and (job.thread or job.id) == effect.thread:
        return True
    return origin_of(job) == effect.job != job.id


def _masked(failure: Failure | None) -> Failure | None:
    if failure is None:
        return None
    return replace(failure, message=mask_text(failure.message), trace=mask_text(failure.trace))


def _result(effect: Effect) -> str:
    return "" if effect.result is None else mask(effect.result).decode()


def plain_id(
    text: str, kind: str = "a job id", way: str = "`relevo trace` finds jobs by anything else"
) -> str:
    id = parse_id(text)
    if id is None:
        raise NotFoundError(f"{text!r:.60} is not {kind}, which has 32 hexadecimal digits; {way}")
    return id


def sealed(place: str | None, question: Any) -> str | None:
    """A store's place as a cursor for one question only."""
    return None if place is None else f"{_seal(place, question)}.{place}"


def opened(cursor: str | None, question: Any) -> str | None:
    """The store's place in a cursor of ours; a changed one would quietly begin anew."""
    if cursor is None:
        return None
    seal, _, place = cursor.partition(".")
    if seal != _seal(place, question):
        raise DefinitionError("that cursor is not one this question was answered with")
    return place


def _seal(place: str, question: Any) -> str:
    text = repr((place, msgspec.to_builtins(question, order="deterministic")))
    return hashlib.blake2s(text.encode(errors="replace"), digest_size=5).hexdigest()


def _checked(where: Filter) -> Filter:
    if where.queue is not None:
        queue_name(where.queue)
    for name in ("kind", "key", "lane", "park", "thread", "flow", "fingerprint", "text", "error"):
        _bounded(getattr(where, name), name)
    return where


def _bounded(text: str | None, what: str) -> None:
    if text is not None and not 0 < len(text) <= TEXT_MAX:
        raise DefinitionError(f"{what} has 1 to {TEXT_MAX} characters, not {len(text)}")
