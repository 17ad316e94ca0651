"""Bulk: one decision about many jobs, by a filter: limited, paced, told, stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from relevo.breaker import KIND as BREAKER
from relevo.clock import Duration, duration, moment
from relevo.desk.looking import PAGE_MAX
from relevo.desk.people import Person
from relevo.desk.standing import Standing
from relevo.desk.views import Progress, Sweep
from relevo.errors import DefinitionError
from relevo.job import State
from relevo.message import rate as rate_of
from relevo.outcome import CREDENTIALS
from relevo.scrubbing import mask as mask_text
from relevo.store import Audit, By, Filter

COUNT_MAX = 1_000_000

BulkVerb = Literal["retry", "cancel", "discard"]
Act = Callable[[Sequence[str], int], Awaitable[list[bool]]]

SWEEPABLE: Final[dict[BulkVerb, frozenset[State]]] = {
    "retry": frozenset({State.DEAD, State.HELD, State.PARKED, State.CANCELLED, State.SCHEDULED}),
    "cancel": frozenset(
        {State.READY, State.SCHEDULED, State.RUNNING, State.WAITING, State.PARKED, State.HELD}
    ),
    "discard": frozenset({State.DEAD, State.HELD}),
}
"""The states in which many jobs are taken at once."""

_TROUBLE = frozenset({State.DEAD, State.HELD, State.PARKED, State.CANCELLED})


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How far and how fast a change of many goes."""

    limit: int | None = None  # so many at most
    rate: str | None = None  # "50/s": no faster than that
    canary: int | None = None  # so many first; the others follow if all of them end well
    patience: Duration = "60s"  # how long canaries may take

    def checked(self) -> Pace:
        """This pace if its values make sense, or DefinitionError."""
        if self.limit is not None and self.limit < 1:
            raise DefinitionError(f"a limit is one or more, not {self.limit}")
        if self.canary is not None and not 1 <= self.canary <= PAGE_MAX:
            raise DefinitionError(f"a canary is 1 to {PAGE_MAX} jobs, not {self.canary}")
        if self.rate is not None:
            rate_of(self.rate)
        duration(self.patience)
        return self


FREE: Final = Pace()

BY_HAND: Final = "by hand"
"""What the task of a change is cancelled with where its stop is written down by the canceller."""


def meant(verb: BulkVerb, where: Filter) -> Filter:
    """What a filter means for a verb: of jobs in no state that it names, those that are dead, or
    that wait to be run."""
    if not where.states:
        waits = SWEEPABLE["cancel"] - {State.RUNNING}
        states = waits if verb == "cancel" else frozenset({State.DEAD})
        where = replace(where, states=states)
    if where.states - SWEEPABLE[verb]:
        allowed = ", ".join(sorted(SWEEPABLE[verb]))
        raise DefinitionError(f"to {verb} many at once takes jobs that are {allowed}")
    return where


def told(where: Filter) -> str:
    """A filter as the audit keeps it; what looks personal is masked."""
    said = [f"state {', '.join(sorted(where.states))}"] if where.states else []
    for name in where.__struct_fields__:
        value = getattr(where, name)
        if name == "states" or value is None:
            continue
        if isinstance(value, int):
            value = moment(value).isoformat(timespec="seconds")
        said.append(f"{name} {mask_text(value)}")
    return ", ".join(said) or "all"


class Bulk(Standing):
    """Changes of many jobs, dead letters and parked jobs."""

    async def change_where(
        self,
        verb: BulkVerb,
        where: Filter,
        by: Person,
        note: str = "",
        *,
        pace: Pace = FREE,
        progress: Progress | None = None,
    ) -> Sweep:
        """Do to all that a filter means what the verb says."""
        match verb:
            case "retry":
                return await self.retry_where(where, by, note, pace=pace, progress=progress)
            case "cancel":
                return await self.cancel_where(where, by, note, pace=pace, progress=progress)
            case "discard":
                return await self.discard_where(where, by, note, pace=pace, progress=progress)

    async def retry_where(
        self,
        where: Filter,
        by: Person,
        note: str = "",
        *,
        pace: Pace = FREE,
        progress: Progress | None = None,
    ) -> Sweep:
        """Retry all that a filter means, dead ones unless it says otherwise.

        With `canary`, so many go first, and the rest follows only when all of them have ended well
        within `patience`. With `rate` ("50/s") the jobs become due no faster than that.
        """
        signed = by.acts("retry", note)
        part = part_of(signed)
        return await self._sweep(
            "retry",
            where,
            signed,
            lambda ids, spread: self.store.retry(ids, part, spread=spread),
            progress,
            pace,
        )

    async def discard_where(
        self,
        where: Filter,
        by: Person,
        note: str,
        *,
        pace: Pace = FREE,
        progress: Progress | None = None,
    ) -> Sweep:
        """Put aside all that a filter means, dead ones unless it says otherwise."""
        signed = by.acts("discard", reason(note))
        part = part_of(signed)
        return await self._sweep(
            "discard", where, signed, lambda ids, _: self.store.discard(ids, part), progress, pace
        )

    async def cancel_where(
        self,
        where: Filter,
        by: Person,
        note: str = "",
        *,
        pace: Pace = FREE,
        progress: Progress | None = None,
    ) -> Sweep:
        """End all that a filter means; those that run only where it names that state."""
        signed = by.acts("cancel", note)
        part = part_of(signed)
        return await self._sweep(
            "cancel", where, signed, lambda ids, _: self.store.cancel(ids, part), progress, pace
        )

    async def let_go(
        self,
        park: str,
        by: Person,
        note: str = "",
        *,
        pace: Pace = FREE,
        where: Filter | None = None,
    ) -> Sweep:
        """Retry what is parked behind something, such as `unaccepted:stripe` when its key works.

        Where a breaker has opened for it, one of them tries first, and the rest follows.
        """
        parked = replace(where or Filter(), park=park, states=frozenset({State.PARKED}))
        sweep = await self.retry_where(parked, by, note, pace=pace)
        name = park.removeprefix(CREDENTIALS)
        if name != park:
            [known] = await self.store.recall(BREAKER, [name])
            if known is not None and sweep.changed:
                await self.turn_breaker(name, "probe", by, note)
        return sweep

    async def _sweep(
        self,
        verb: BulkVerb,
        where: Filter,
        by: By,
        act: Act,
        progress: Progress | None,
        pace: Pace,
    ) -> Sweep:
        where = meant(verb, where)
        pace.checked()
        tell: Progress = progress or (lambda _: None)
        total = await self.count(where, most=COUNT_MAX)
        sweep = Sweep(total=total if pace.limit is None else min(total, pace.limit))
        if not total:
            tell(sweep)
            return sweep
        started = await self.store.now()
        # First the line: a crash in between leaves one too many, and no act that is not written.
        said = "; ".join(filter(None, (by.note, told(where), f"{sweep.total:,} jobs")))
        line = Audit(
            who=by.who, verb=f"{verb} many", target=where.queue or "jobs", note=said[:1_000]
        )
        await self.store.audit([line])
        tell(sweep)
        try:
            is_retry = verb == "retry"
            async for now in self._pages(where, act, pace, sweep, started, is_retry=is_retry):
                sweep = now
                tell(sweep)
        except asyncio.CancelledError as error:
            if BY_HAND not in error.args:  # that is written down with the name of the person
                await self._cut(verb, line, sweep, "it was interrupted")
            raise
        if sweep.stopped:
            await self._cut(verb, line, sweep, sweep.stopped)
        return sweep

    async def _cut(self, verb: str, line: Audit, sweep: Sweep, why: str) -> None:
        """Write down that a change of many has not come to its end."""
        said = f"{verb}: {sweep.changed:,} of {sweep.total:,} changed; {why}"
        await self.store.audit([replace(line, verb="stop", note=said)])

    async def _pages(
        self, where: Filter, act: Act, pace: Pace, sweep: Sweep, started: int, *, is_retry: bool
    ) -> AsyncGenerator[Sweep]:
        """Act on page after page, and say after each how far it has come."""
        canary, rate = pace.canary, None if pace.rate is None else rate_of(pace.rate)
        many = PAGE_MAX if rate is None else min(max(2_000 * rate[0] // rate[1], 1), PAGE_MAX)
        cursor = None
        while True:
            left = PAGE_MAX if pace.limit is None else pace.limit - sweep.changed
            size = min(many if canary is None else canary, left)
            page = await self.jobs(where, cursor, size)
            # What died again since is not taken a second time, whatever order the pages have.
            ids = [job.id for job in page.jobs if not job.ended_at or job.ended_at <= started]
            spread = 0 if rate is None or canary else len(ids) * rate[1] // rate[0]
            changed = await act(ids, spread) if ids else []
            taken = [id for id, is_changed in zip(ids, changed, strict=True) if is_changed]
            again = set(taken) if is_retry else set[str]()
            old = [job for job in page.jobs if job.id in again and self.has_outlived(job, started)]
            sweep = replace(
                sweep,
                outlived=sweep.outlived + len(old),
                changed=sweep.changed + len(taken),
                refused=sweep.refused + len(ids) - len(taken),
            )
            yield sweep
            if canary is not None and taken and is_retry:
                sweep = replace(sweep, stopped=await self._trouble(taken, pace.patience))
                yield sweep
            canary = None if taken else canary
            cursor = page.cursor
            is_enough = pace.limit is not None and sweep.changed >= pace.limit
            if cursor is None or is_enough or sweep.stopped:
                return
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
                if job.state in _TROUBLE:
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


def part_of(by: By) -> By:
    """An act of a decision that is written down already: the jobs keep the reason."""
    return By("", by.note)


def reason(note: str) -> str:
    """The note of what must not be done without one."""
    if not note.strip():
        raise DefinitionError("say why in a note: whoever finds these jobs later will ask")
    return note
