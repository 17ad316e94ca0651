"""What a person may do to jobs; the same for CLI, HTTP and dashboard.

Whatever changes something asks who is asking, looks their role up in ACTIONS, and is written down
by the store in the same step. DefinitionError: the question is written wrongly. NotFoundError:
there is no such thing, or not for this desk. MisuseError: not in the state the job is in.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, cast

import msgspec
from msgspec.structs import replace

from relevo.clock import Duration, duration, moment, stamp
from relevo.errors import DefinitionError, MisuseError, NotFoundError
from relevo.ids import parse_id
from relevo.job import LIVE, Job, State, queue_name
from relevo.message import PRIORITIES, Priority, attempts_of
from relevo.message import rate as rate_of
from relevo.payload import guard, mask, plain
from relevo.store import (
    BATCH,
    Audit,
    By,
    Edit,
    Effect,
    EffectState,
    Filter,
    Group,
    Page,
    QueueMode,
    Store,
    Tally,
    WorkerInfo,
)

PAGE_MAX = 200
COUNT_MAX = 1_000_000
STORY_MAX = 500
THREADS_MAX = 20
TEXT_MAX = 500
NOTE_MAX = 1_000

EDITABLE: Final = ("payload", "priority", "run_at", "attempts")
"""The only fields of a job that a person may write."""

_SWEEPABLE = frozenset({State.DEAD, State.HELD, State.PARKED, State.CANCELLED})
_UNDECIDED = frozenset({EffectState.INTENDED, EffectState.UNKNOWN})


class Role(StrEnum):
    """How far a person may go; each may do what those before it may."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


ACTIONS: Final[dict[str, Role]] = {
    "look": Role.VIEWER,  # everything that only reads; payloads are masked
    "reveal": Role.OPERATOR,  # payloads as they are
    "retry": Role.OPERATOR,
    "cancel": Role.OPERATOR,
    "discard": Role.OPERATOR,
    "pause": Role.OPERATOR,
    "resume": Role.OPERATOR,
    "confirm_effect": Role.OPERATOR,
    "deny_effect": Role.OPERATOR,
    "edit": Role.ADMIN,  # decides what will be done in someone's name
    "drain": Role.ADMIN,  # refuses newcomers
}
"""What a person may do, and the role it needs; the doors ask here and nowhere else."""

_RANK = list(Role)


class NotAllowed(MisuseError):
    """The person's role does not reach that far."""


@dataclass(frozen=True, slots=True)
class Person:
    """Who is at the desk."""

    name: str
    role: Role = Role.VIEWER

    def may(self, action: str) -> bool:
        return _RANK.index(self.role) >= _RANK.index(ACTIONS[action])

    def acts(self, action: str, note: str = "") -> By:
        """The signature under an action; NotAllowed when the role does not reach that far."""
        if not self.may(action):
            raise NotAllowed(
                f"{self.name} is {self.role}; '{action}' needs the role {ACTIONS[action]}"
            )
        return By(self.name[:200], note.strip()[:NOTE_MAX])


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that came of one thing: its jobs, oldest first, with attempts and effects."""

    found: tuple[str, ...]  # where the text was: "job id", "thread", "key", "effect", "payload"
    threads: tuple[str, ...]
    jobs: list[Job]
    effects: list[Effect]
    is_cut: bool = False  # there is more than a story holds

    def tree(self) -> Iterator[tuple[int, Job]]:
        """The jobs with their depth, each after the one that caused it."""
        known = {job.id for job in self.jobs}
        children: dict[str, list[Job]] = {}
        for job in self.jobs:
            cause = job.cause if job.cause in known and job.cause != job.id else ""
            children.setdefault(cause or "", []).append(job)
        stack = [(0, job) for job in reversed(children.get("", []))]
        while stack:
            depth, job = stack.pop()
            yield depth, job
            stack += [(depth + 1, child) for child in reversed(children.get(job.id, []))]


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """How far a change of many jobs has come."""

    total: int  # as counted at the start
    changed: int = 0
    refused: int = 0  # not in such a state any more, or a younger job has the key
    stopped: str = ""  # why it went no further


Progress = Callable[[Sweep], None]
Act = Callable[[Sequence[str], int], Awaitable[list[bool]]]


class Desk:
    """One store, seen by a person; with `apps`, only the queues of those apps."""

    def __init__(self, store: Store, *, apps: Collection[str] | None = None) -> None:
        self.store = store
        self.apps = None if apps is None else frozenset(apps)

    def _sees(self, queue: str) -> bool:
        return self.apps is None or queue.partition(":")[0] in self.apps

    # looking

    async def job(self, id: str) -> Job:
        """The job with its history."""
        [job] = await self.store.find([_id(id)])
        if job is None or not self._sees(job.queue):
            raise NotFoundError(
                f"no job has the id {_id(id)}: it may be done and past its keeping time, or live "
                "in another store"
            )
        return job

    async def jobs(self, where: Filter, cursor: str | None = None, limit: int = 50) -> Page:
        """Some jobs, newest first; a limit beyond 1 to 200 is brought there."""
        where = _checked(where)
        limit = min(max(limit, 1), PAGE_MAX)
        if self.apps is None:
            return await self.store.page(where, cursor=cursor, limit=limit)
        jobs: list[Job] = []
        for _ in range(20):  # a page may come back short, but never endlessly late
            page = await self.store.page(where, cursor=cursor, limit=limit - len(jobs))
            jobs += [job for job in page.jobs if self._sees(job.queue)]
            cursor = page.cursor
            if cursor is None or len(jobs) >= limit:
                break
        return Page(jobs, cursor)

    async def count(self, where: Filter, *, most: int = 10_000) -> int:
        """How many jobs a filter means; counting stops at `most`."""
        where = _checked(where)
        if where.queue is not None and not self._sees(where.queue):
            return 0
        if self.apps is None or where.queue is not None:
            return await self.store.count(where, most=most)
        counts = [
            await self.store.count(replace(where, queue=tally.queue), most=most)
            for tally in await self.queues()
        ]
        return min(sum(counts), most)

    async def queues(self) -> list[Tally]:
        """Every queue that has, or had, jobs."""
        tallies = [tally for tally in await self.store.tally() if self._sees(tally.queue)]
        return sorted(tallies, key=lambda tally: tally.queue)

    async def queue(self, name: str) -> Tally:
        """One queue; empty and open if it never had a job."""
        if not self._sees(queue_name(name)):
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
            if name is None or self._sees(name):
                found += await self.store.groups(queue=name, limit=limit)
        return sorted(found, key=lambda group: (-group.count, group.fingerprint))[:limit]

    async def workers(self) -> list[WorkerInfo]:
        """Who is alive, and who fell silent within the last day."""
        return [
            worker
            for worker in await self.store.workers()
            if self.apps is None or any(map(self._sees, worker.queues))
        ]

    async def effects(
        self,
        *,
        job: str | None = None,
        states: frozenset[EffectState] = frozenset(),
        text: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> tuple[list[Effect], str | None]:
        """The effect ledger, newest first."""
        _bounded(text, "the text to search for")
        effects, cursor = await self.store.effects(
            job=None if job is None else _id(job),
            states=states,
            text=text,
            cursor=cursor,
            limit=min(max(limit, 1), PAGE_MAX),
        )
        return [effect for effect in effects if self._sees(effect.queue)], cursor

    async def effect(self, job: str, name: str) -> Effect:
        """One effect of a job."""
        owner = await self.job(job)
        effects, _ = await self.effects(job=owner.id, limit=PAGE_MAX)
        for effect in effects:
            if effect.name == name:
                return effect
        names = ", ".join(sorted(effect.name for effect in effects)) or "none at all"
        raise NotFoundError(f"job {owner.id} has no effect called {name!r:.80}; it has {names}")

    async def audits(
        self, *, target: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> tuple[list[Audit], str | None]:
        """What people did, newest first. A desk of some apps must say to which job or queue."""
        _bounded(target, "the target")
        if target is not None:
            target = parse_id(target) or target
        if self.apps is not None and not await self._sees_target(target):
            raise NotFoundError("name a job or a queue of yours to see what people did to it")
        limit = min(max(limit, 1), PAGE_MAX)
        return await self.store.audits(target=target, cursor=cursor, limit=limit)

    async def _sees_target(self, target: str | None) -> bool:
        if target is None:
            return False
        [job] = await self.store.find([target]) if parse_id(target) else [None]
        return self._sees(target if job is None else job.queue)

    def masked(self, job: Job) -> Job:
        """The job as a viewer sees it: what looks personal or secret is masked."""
        return replace(
            job,
            payload=mask(job.payload),
            result=None if job.result is None else mask(job.result),
        )

    def masked_effect(self, effect: Effect) -> Effect:
        """The effect as a viewer sees it."""
        return effect if effect.result is None else replace(effect, result=mask(effect.result))

    # tracing

    async def trace(self, anything: str) -> Story:
        """The story of a job id, a thread, a key, an effect's key, or of text that occurs in it."""
        text = anything.strip()
        if not 3 <= len(text) <= TEXT_MAX:
            raise DefinitionError(f"give 3 to {TEXT_MAX} characters to look for")
        id = parse_id(text)
        if id is not None:
            [job] = await self.store.find([id])
            if job is not None and self._sees(job.queue):
                return await self._story({job.thread or job.id: None}, ["job id"])
        threads: dict[str, None] = {}
        found: list[str] = []
        for where, how in (
            (Filter(thread=id or text), "thread"),
            (Filter(key=text), "key"),
            (Filter(text=text), "payload"),
        ):
            page = await self.jobs(where)
            threads |= {job.thread or job.id: None for job in page.jobs}
            found += [how] if page.jobs else []
            if how == "thread" and page.jobs:
                return await self._story(threads, found)
        effects, _ = await self.effects(text=text)
        threads |= {effect.thread or effect.job: None for effect in effects}
        found += ["effect"] if effects else []
        if not threads:
            raise NotFoundError(
                f"nothing is known of {text!r:.80}: no job, thread, key or effect is called so, "
                "and no payload or result contains it"
            )
        return await self._story(threads, found)

    async def _story(self, threads: dict[str, None], found: list[str]) -> Story:
        chosen = list(threads)[:THREADS_MAX]
        ids: list[str] = []
        is_cut = len(threads) > THREADS_MAX
        for thread in chosen:
            cursor = None
            while len(ids) < STORY_MAX:
                page = await self.jobs(Filter(thread=thread), cursor, PAGE_MAX)
                ids += [job.id for job in page.jobs]
                cursor = page.cursor
                if cursor is None:
                    break
            is_cut = is_cut or cursor is not None
        is_cut = is_cut or len(ids) > STORY_MAX
        jobs = [job for job in await self.store.find(ids[:STORY_MAX]) if job is not None]
        jobs.sort(key=lambda job: (job.inserted_at, job.id))
        effects: list[Effect] = []
        for job in jobs:
            effects += (await self.effects(job=job.id, limit=PAGE_MAX))[0]
        effects.sort(key=lambda effect: effect.created_at)
        return Story(
            found=tuple(found), threads=tuple(chosen), jobs=jobs, effects=effects, is_cut=is_cut
        )

    # changing jobs

    async def retry(self, ids: Sequence[str], by: Person, note: str = "") -> list[bool]:
        """Ready again with fresh attempts; False where the job is in no state for it."""
        signed = by.acts("retry", note)
        return await self._each(ids, lambda batch: self.store.retry(batch, signed))

    async def cancel(self, ids: Sequence[str], by: Person, note: str = "") -> list[bool]:
        """End jobs that have not ended; a running one loses its lease."""
        signed = by.acts("cancel", note)
        return await self._each(ids, lambda batch: self.store.cancel(batch, signed))

    async def discard(self, ids: Sequence[str], by: Person, note: str) -> list[bool]:
        """Put dead or held jobs aside for good; the note says why."""
        signed = by.acts("discard", _reason(note))
        return await self._each(ids, lambda batch: self.store.discard(batch, signed))

    async def _each(
        self, ids: Sequence[str], act: Callable[[list[str]], Awaitable[list[bool]]]
    ) -> list[bool]:
        plain_ids = [_id(id) for id in ids]
        unique = list(dict.fromkeys(plain_ids))
        answers: dict[str, bool] = {}
        for start in range(0, len(unique), BATCH):
            batch = unique[start : start + BATCH]
            if self.apps is not None:
                jobs = await self.store.find(batch)
                batch = [job.id for job in jobs if job is not None and self._sees(job.queue)]
            answers |= zip(batch, await act(batch), strict=True) if batch else ()
        return [answers.get(id, False) for id in plain_ids]

    async def edit(
        self,
        id: str,
        by: Person,
        *,
        payload: str | bytes | None = None,
        priority: Priority | None = None,
        run_at: datetime | None = None,
        attempts: int | None = None,
        note: str = "",
    ) -> Job:
        """Change a job that is neither running nor done; the payload is JSON text.

        A payload passes the same guard as when it was enqueued. Where it still holds what a mask
        showed, the value behind the mask stays.
        """
        signed = by.acts("edit", note)
        job = await self.job(id)
        if payload is None and priority is None and run_at is None and attempts is None:
            raise DefinitionError(f"nothing to change: give {', '.join(EDITABLE)}")
        if priority is not None and priority not in PRIORITIES:
            raise DefinitionError("priority is 'high', 'normal' or 'low'")
        edit = Edit(
            id=job.id,
            payload=None if payload is None else _payload(payload, job.payload),
            priority=None if priority is None else PRIORITIES[priority],
            run_at=None if run_at is None else stamp(run_at),
            attempts=None if attempts is None else attempts_of(attempts, "the job"),
        )
        [edited] = await self.store.edit([edit], signed)
        if not edited:
            job = await self.job(id)
            raise MisuseError(f"job {job.id} is {job.state}; only a job that waits can be edited")
        return await self.job(id)

    # changing many

    async def retry_where(
        self,
        where: Filter,
        by: Person,
        note: str = "",
        *,
        canary: int | None = None,
        rate: str | None = None,
        patience: Duration = "60s",
        progress: Progress | None = None,
    ) -> Sweep:
        """Retry all that a filter means, dead ones unless it says otherwise.

        With `canary`, so many go first, and the rest follows only when all of them have ended well
        within `patience`. With `rate` ("50/s") the jobs become due no faster than that.
        """
        signed = by.acts("retry", note)
        if canary is not None and not 1 <= canary <= PAGE_MAX:
            raise DefinitionError(f"a canary is 1 to {PAGE_MAX} jobs, not {canary}")
        duration(patience)
        return await self._sweep(
            where,
            lambda ids, spread: self.store.retry(ids, signed, spread=spread),
            progress,
            pace=None if rate is None else rate_of(rate),
            canary=canary,
            patience=patience,
        )

    async def discard_where(
        self, where: Filter, by: Person, note: str, *, progress: Progress | None = None
    ) -> Sweep:
        """Put aside all that a filter means, dead ones unless it says otherwise."""
        signed = by.acts("discard", _reason(note))
        return await self._sweep(where, lambda ids, _: self.store.discard(ids, signed), progress)

    async def _sweep(
        self,
        where: Filter,
        act: Act,
        progress: Progress | None,
        *,
        pace: tuple[int, int] | None = None,
        canary: int | None = None,
        patience: Duration = "60s",
    ) -> Sweep:
        if not where.states:
            where = replace(where, states=frozenset({State.DEAD}))
        if where.states - _SWEEPABLE:
            raise DefinitionError("only dead, held, parked and cancelled jobs are taken in bulk")
        sweep = Sweep(total=await self.count(where, most=COUNT_MAX))
        started = await self.store.now()
        many = PAGE_MAX if pace is None else min(max(2_000 * pace[0] // pace[1], 1), PAGE_MAX)
        cursor = None
        while True:
            page = await self.jobs(where, cursor, many if canary is None else canary)
            # What died again since is not taken a second time, whatever order the pages have.
            ids = [job.id for job in page.jobs if not job.ended_at or job.ended_at <= started]
            spread = 0 if pace is None or canary else len(ids) * pace[1] // pace[0]
            changed = await act(ids, spread) if ids else []
            taken = [id for id, is_changed in zip(ids, changed, strict=True) if is_changed]
            sweep = replace(
                sweep,
                changed=sweep.changed + len(taken),
                refused=sweep.refused + len(ids) - len(taken),
            )
            if canary is not None and taken:
                sweep = replace(sweep, stopped=await self._trouble(taken, patience))
                canary = None
            if progress is not None:
                progress(sweep)
            cursor = page.cursor
            if cursor is None or sweep.stopped:
                return sweep
            await asyncio.sleep(spread / 1000)

    async def _trouble(self, canaries: list[str], patience: Duration) -> str:
        """Why the others should not follow these; empty when all of them ended well."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + duration(patience).total_seconds()
        wait = 0.05
        while True:
            # A done job may be gone already.
            jobs = [job for job in await self.store.find(canaries) if job is not None]
            for job in jobs:
                if job.state in _SWEEPABLE:
                    why = "" if job.failure is None else f": {job.failure.type}"
                    return f"canary {job.id} is {job.state} again{why}"
            waiting = [job for job in jobs if job.state is not State.DONE]
            if not waiting:
                return ""
            if loop.time() >= deadline:
                return (
                    f"{len(waiting)} of {len(canaries)} canaries have not ended in time; "
                    f"the first is {waiting[0].id}, {waiting[0].state}"
                )
            await asyncio.sleep(wait)
            wait = min(wait * 1.5, 1.0)

    # queues

    async def pause(self, queues: Sequence[str], by: Person, note: str = "") -> list[bool]:
        """Give nothing out; False where it was so already."""
        return await self._mode(queues, QueueMode.PAUSED, by.acts("pause", note))

    async def resume(self, queues: Sequence[str], by: Person, note: str = "") -> list[bool]:
        """Open again; False where it was so already."""
        return await self._mode(queues, QueueMode.OPEN, by.acts("resume", note))

    async def drain(self, queues: Sequence[str], by: Person, note: str = "") -> list[bool]:
        """Take nothing in; False where it was so already. `drained()` tells when all is done."""
        return await self._mode(queues, QueueMode.DRAINING, by.acts("drain", note))

    async def _mode(self, queues: Sequence[str], mode: QueueMode, by: By) -> list[bool]:
        for queue in queues:
            if not self._sees(queue_name(queue)):
                raise NotFoundError(f"no queue is called {queue}")
        return await self.store.set_mode(queues, mode, by)

    async def drained(self, queue: str, *, every: Duration = "500ms") -> AsyncIterator[int]:
        """How many live jobs a queue has, again and again until there are none."""
        pause = duration(every).total_seconds()
        while True:
            counts = (await self.queue(queue)).counts
            left = sum(counts.get(state, 0) for state in LIVE)
            yield left
            if not left:
                return
            await asyncio.sleep(pause)

    # effects

    async def confirm_effect(
        self, job: str, name: str, result: Any, by: Person, note: str = ""
    ) -> bool:
        """It did happen, and this came of it: the job goes on, and `once` answers with the result.

        False when the fact is written but the job cannot be retried.
        """
        signed = by.acts("confirm_effect", note)
        effect = await self._decidable(job, name)
        data = plain(result)
        if effect.state is EffectState.CONFIRMED and effect.result != data:
            raise MisuseError(f"'{name}' is confirmed already, with another result")
        decided = replace(effect, state=EffectState.CONFIRMED, result=data, decided_by=signed.who)
        return await self._decide(decided, signed)

    async def deny_effect(self, job: str, name: str, by: Person, note: str = "") -> bool:
        """It did not happen: the job goes on and asks for it again with the same key.

        False when the fact is written but the job cannot be retried.
        """
        signed = by.acts("deny_effect", note)
        effect = await self._decidable(job, name)
        if effect.state not in _UNDECIDED | {EffectState.FAILED}:
            raise MisuseError(f"'{name}' is {effect.state}; only an uncertain effect can be denied")
        decided = replace(effect, state=EffectState.FAILED, decided_by=signed.who)
        return await self._decide(decided, signed)

    async def _decidable(self, job: str, name: str) -> Effect:
        effect = await self.effect(job, name)
        owner = await self.job(job)
        if owner.state in (State.RUNNING, State.DONE):
            raise MisuseError(
                f"job {owner.id} is {owner.state}; an effect is decided while its job is held"
            )
        return effect

    async def _decide(self, effect: Effect, by: By) -> bool:
        # Decided before, but the retry was lost: only the retry is left to do.
        known = await self.effect(effect.job, effect.name)
        if known.state is not effect.state:
            [written] = await self.store.conclude([effect], by)
            if not written:
                raise MisuseError(f"'{effect.name}' was decided by someone else just now")
        [retried] = await self.store.retry([effect.job], by)
        return retried


def view(thing: Any) -> Any:
    """Anything the desk shows as plain JSON: moments as ISO text, payloads as what they hold."""
    match thing:
        case msgspec.Struct():
            fields = {name: getattr(thing, name) for name in thing.__struct_fields__}
            return {
                name: _moment(value) if _is_moment(name) else view(value)
                for name, value in fields.items()
            }
        case bytes():
            try:
                return msgspec.json.decode(thing)
            except msgspec.DecodeError:
                return thing.decode(errors="replace")
        case dict():
            return {str(name): view(value) for name, value in thing.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - whatever a struct holds
        case list() | tuple() | frozenset():
            return [view(item) for item in thing]  # pyright: ignore[reportUnknownVariableType] - whatever a struct holds
        case StrEnum():
            return str(thing)
        case _:
            return thing


def _is_moment(name: str) -> bool:
    return name.endswith("_at") or name in ("at", "lease_until")


def _moment(ms: int | None) -> str | None:
    return moment(ms).isoformat(timespec="milliseconds") if ms else None


def _id(text: str) -> str:
    id = parse_id(text)
    if id is None:
        raise NotFoundError(
            f"{text!r:.60} is not a job id, which has 32 hexadecimal digits; "
            "`relevo trace` finds jobs by anything else"
        )
    return id


def _checked(where: Filter) -> Filter:
    if where.queue is not None:
        queue_name(where.queue)
    for name in ("kind", "key", "lane", "park", "thread", "flow", "fingerprint", "text"):
        _bounded(getattr(where, name), name)
    return where


def _bounded(text: str | None, what: str) -> None:
    if text is not None and not 0 < len(text) <= TEXT_MAX:
        raise DefinitionError(f"{what} has 1 to {TEXT_MAX} characters, not {len(text)}")


def _reason(note: str) -> str:
    if not note.strip():
        raise DefinitionError("say why in a note: whoever finds these jobs later will ask")
    return note


def _payload(text: str | bytes, before: bytes) -> bytes:
    """The JSON a person wrote, checked; what still is as the mask showed it stays as it was."""
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    guard(data)
    written = msgspec.json.decode(data)
    kept = _unmasked(written, _decoded(mask(before)), _decoded(before))
    if kept == written:
        return data
    data = msgspec.json.encode(kept)
    guard(data)
    return data


def _unmasked(written: Any, shown: Any, before: Any) -> Any:
    if isinstance(written, str) and written == shown:
        return before
    if isinstance(written, dict) and isinstance(before, dict):
        fields = cast("dict[str, Any]", written)
        return {
            name: _unmasked(value, shown[name], before[name])
            if name in shown and name in before
            else value
            for name, value in fields.items()
        }
    if isinstance(written, list) and isinstance(before, list):
        items, olds = cast("list[Any]", written), cast("list[Any]", before)
        if len(items) == len(olds):
            return [_unmasked(*three) for three in zip(items, shown, olds, strict=True)]
    return cast("Any", written)


def _decoded(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return None
