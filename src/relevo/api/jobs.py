"""Jobs, dead letters and queues."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from relevo.api.call import Asked, Call, Caller, Cursor, Limit, Note, Page, Text, Why
from relevo.desk import DurationView, Edited, Saturation, Sweep, durations, saturations
from relevo.errors import DefinitionError, MisuseError, PayloadError
from relevo.job import Job, State
from relevo.message import Priority
from relevo.store import BATCH, Effect, Filter, Group, Tally

Ids = Annotated[list[str], Meta(min_length=1, max_length=BATCH, description="Jobs' ids.")]


class Some(Asked):
    """Which jobs; all that is said must be so."""

    queue: Text | None = None
    state: tuple[State, ...] = ()
    kind: Text | None = None
    key: Text | None = None
    lane: Text | None = None
    thread: Text | None = None
    flow: Text | None = None
    fingerprint: Text | None = None
    text: Annotated[Text, Meta(description="Found literally in payload, key or error.")] | None = (
        None
    )

    def where(self) -> Filter:
        return Filter(
            queue=self.queue,
            states=frozenset(self.state),
            kind=self.kind,
            key=self.key,
            lane=self.lane,
            thread=self.thread,
            flow=self.flow,
            fingerprint=self.fingerprint,
            text=self.text,
        )


class SomeJobs(Some):
    cursor: Cursor | None = None
    limit: Limit = 50


class OneJob(Asked):
    id: str


class OneJobNoted(OneJob):
    note: Note = ""


class JobDiscard(OneJob):
    note: Why


class Jobs(Asked):
    ids: Ids
    note: Note = ""


class JobsDiscard(Asked):
    ids: Ids
    note: Why


class JobEdit(OneJob):
    payload: (
        Annotated[Any, Meta(description="Fields to change; they are merged into the payload.")]
        | UnsetType
    ) = UNSET
    whole: Annotated[bool, Meta(description="The payload is given as a whole.")] = False
    unchecked: Annotated[bool, Meta(description="Do not hold the payload against its command.")] = (
        False
    )
    priority: Priority | None = None
    run_at: Annotated[datetime, Meta(tz=True)] | None = None
    attempts: int | None = None
    note: Note = ""


class Counted(Struct, frozen=True):
    """How many; counting stops at 10,000."""

    count: int


class Changed(Struct, frozen=True):
    """Whether a job was changed: not if it was in no state for it, or is not there."""

    id: str
    changed: bool


async def find_jobs(caller: Caller, ask: SomeJobs) -> Page[Job]:
    """Jobs, newest first, without their history."""
    found = await caller.desk.jobs(ask.where(), ask.cursor, ask.limit)
    return Page(items=[caller.job(job) for job in found.jobs], cursor=found.cursor)


async def count_jobs(caller: Caller, ask: Some) -> Counted:
    """How many jobs there are of a kind."""
    return Counted(await caller.desk.count(ask.where()))


async def show_job(caller: Caller, ask: OneJob) -> Job:
    """One job with its history; payload and result masked for viewers."""
    return caller.job(await caller.desk.job(ask.id))


async def retry_job(caller: Caller, ask: OneJobNoted) -> Job:
    """Ready again with fresh attempts: a dead, held, parked, cancelled or scheduled job."""
    await caller.desk.job(ask.id)
    [changed] = await caller.desk.retry([ask.id], caller.person, ask.note)
    return await _after(caller, ask.id, changed, "retried: or a younger job has its key")


async def cancel_job(caller: Caller, ask: OneJobNoted) -> Job:
    """End a job that has not ended; a running one loses its lease."""
    await caller.desk.job(ask.id)
    [changed] = await caller.desk.cancel([ask.id], caller.person, ask.note)
    return await _after(caller, ask.id, changed, "cancelled: it has ended")


async def discard_job(caller: Caller, ask: JobDiscard) -> Job:
    """Put a dead or held job aside for good; the note says why."""
    await caller.desk.job(ask.id)
    [changed] = await caller.desk.discard([ask.id], caller.person, ask.note)
    return await _after(caller, ask.id, changed, "discarded: only dead and held ones are")


async def _after(caller: Caller, id: str, changed: bool, why: str) -> Job:
    job = await caller.desk.job(id)
    if not changed:
        raise MisuseError(f"job {job.id} is {job.state} and was not {why}")
    return caller.job(job)


async def edit_job(caller: Caller, ask: JobEdit) -> Edited:
    """Change payload, priority, run_at or attempts of a job that is neither running nor done."""
    try:
        payload = None if ask.payload is UNSET else msgspec.json.encode(ask.payload)
    except UnicodeEncodeError as error:
        raise PayloadError("the payload holds half a character", path="payload") from error
    edited = await caller.desk.edit(
        ask.id,
        caller.person,
        payload=payload,
        whole=ask.whole,
        priority=ask.priority,
        run_at=ask.run_at,
        attempts=ask.attempts,
        note=ask.note,
        bindings=None if ask.unchecked else caller.relevo.bindings,
    )
    return caller.edited(edited)


async def undo_edit(caller: Caller, ask: OneJobNoted) -> Edited:
    """Take the last edit of a job back, for a day."""
    return caller.edited(await caller.desk.undo_edit(ask.id, caller.person, ask.note))


async def retry_jobs(caller: Caller, ask: Jobs) -> Page[Changed]:
    """Retry up to 1,000 jobs by their ids."""
    return _changes(ask.ids, await caller.desk.retry(ask.ids, caller.person, ask.note))


async def cancel_jobs(caller: Caller, ask: Jobs) -> Page[Changed]:
    """Cancel up to 1,000 jobs by their ids."""
    return _changes(ask.ids, await caller.desk.cancel(ask.ids, caller.person, ask.note))


async def discard_jobs(caller: Caller, ask: JobsDiscard) -> Page[Changed]:
    """Put up to 1,000 dead or held jobs aside by their ids; the note says why."""
    return _changes(ask.ids, await caller.desk.discard(ask.ids, caller.person, ask.note))


def _changes(ids: list[str], changed: list[bool]) -> Page[Changed]:
    return Page(items=[Changed(id, is_so) for id, is_so in zip(ids, changed, strict=True)])


# dead letters


class SomeGroups(Asked):
    queue: Text | None = None
    limit: Limit = 50


class Dead(Asked):
    """Which dead letters: some said by queue, kind, fingerprint or text, or everything."""

    queue: Text | None = None
    kind: Text | None = None
    fingerprint: Text | None = None
    text: Text | None = None
    everything: bool = False

    def where(self) -> Filter:
        said = (self.queue, self.kind, self.fingerprint, self.text)
        if all(each is None for each in said) and not self.everything:
            raise DefinitionError("say which: queue, kind, fingerprint or text, or everything")
        return Filter(
            queue=self.queue,
            states=frozenset({State.DEAD}),
            kind=self.kind,
            fingerprint=self.fingerprint,
            text=self.text,
        )


class DeadDiscard(Dead, kw_only=True):
    note: Why


class DeadRetry(Dead):
    note: Note = ""
    canary: Annotated[int, Meta(ge=1, le=200, description="So many first.")] | None = None
    rate: Annotated[str, Meta(description="No faster than that, such as 50/s.")] | None = None
    patience: Annotated[str, Meta(description="How long canaries may take.")] = "60s"


async def dead_groups(caller: Caller, ask: SomeGroups) -> Page[Group]:
    """Dead letters by mistake, most first."""
    return Page(items=await caller.desk.groups(queue=ask.queue, limit=ask.limit))


class RunAgain(OneJob):
    repeat_effects: bool = False
    dry_run: bool = False
    note: Note = ""


class RanAgain(Struct, frozen=True):
    """The job that runs another's command again, and the effects that are made a second time."""

    job: str | None  # none in a dry run
    effects: list[Effect]


async def run_job_again(caller: Caller, ask: RunAgain) -> RanAgain:
    """A new job of one that has ended; if that has made effects, only with `repeat_effects`."""
    caller.person.acts("run_again", ask.note)
    made = await caller.desk.repeated_effects((await caller.desk.job(ask.id)).id)
    new = None
    if not ask.dry_run:
        new = await caller.desk.run_again(
            ask.id, caller.person, ask.note, repeats_effects=ask.repeat_effects
        )
    return RanAgain(new, [caller.effect(each) for each in made])


async def retry_dead(caller: Caller, ask: DeadRetry) -> Sweep:
    """Retry many dead letters, canaries first if wanted; answers when all have been let go."""
    return await caller.desk.retry_where(
        ask.where(),
        caller.person,
        ask.note,
        canary=ask.canary,
        rate=ask.rate,
        patience=ask.patience,
    )


async def discard_dead(caller: Caller, ask: DeadDiscard) -> Sweep:
    """Put many dead letters aside; the note says why."""
    return await caller.desk.discard_where(ask.where(), caller.person, ask.note)


# queues


class Nothing(Asked):
    """Nothing is asked but this."""


class OneQueue(Asked):
    queue: str


class OneQueueNoted(OneQueue):
    note: Note = ""


class Turned(Struct, frozen=True):
    """Whether it was changed: not if it was so already."""

    changed: bool


async def list_queues(caller: Caller, ask: Nothing) -> Page[Tally]:
    """Every queue that has, or had, jobs: its mode, its counts, the age of its oldest."""
    return Page(items=await caller.desk.queues())


async def show_queue(caller: Caller, ask: OneQueue) -> Tally:
    """One queue."""
    return await caller.desk.queue(ask.queue)


async def pause_queue(caller: Caller, ask: OneQueueNoted) -> Turned:
    """Give nothing out until it is resumed."""
    return Turned(*await caller.desk.pause([ask.queue], caller.person, ask.note))


async def resume_queue(caller: Caller, ask: OneQueueNoted) -> Turned:
    """Open again."""
    return Turned(*await caller.desk.resume([ask.queue], caller.person, ask.note))


async def drain_queue(caller: Caller, ask: OneQueueNoted) -> Turned:
    """Take nothing in until it is resumed."""
    return Turned(*await caller.desk.drain([ask.queue], caller.person, ask.note))


class Pressure(Struct, frozen=True):
    """How busy the workers are."""

    saturations: list[Saturation]  # where jobs wait because every slot is taken
    durations: list[DurationView]  # of commands and effects, those first that take most slots


async def show_pressure(caller: Caller, ask: Nothing) -> Pressure:
    """Where all slots are taken while jobs wait, and how long commands and effects take."""
    workers = await caller.desk.workers()
    return Pressure(saturations(await caller.desk.queues(), workers), durations(workers))


CALLS = (
    Call("GET", "/pressure", "look", show_pressure),
    Call("GET", "/queues", "look", list_queues),
    Call("GET", "/queues/{queue}", "look", show_queue),
    Call("POST", "/queues/{queue}/pause", "pause", pause_queue),
    Call("POST", "/queues/{queue}/resume", "resume", resume_queue),
    Call("POST", "/queues/{queue}/drain", "drain", drain_queue),
    Call("GET", "/jobs", "look", find_jobs),
    Call("GET", "/jobs/count", "look", count_jobs),
    Call("POST", "/jobs/retry", "retry", retry_jobs),
    Call("POST", "/jobs/cancel", "cancel", cancel_jobs),
    Call("POST", "/jobs/discard", "discard", discard_jobs),
    Call("GET", "/jobs/{id}", "look", show_job),
    Call("PATCH", "/jobs/{id}", "edit", edit_job),
    Call("POST", "/jobs/{id}/undo", "edit", undo_edit),
    Call("POST", "/jobs/{id}/retry", "retry", retry_job),
    Call("POST", "/jobs/{id}/run-again", "run_again", run_job_again),
    Call("POST", "/jobs/{id}/cancel", "cancel", cancel_job),
    Call("POST", "/jobs/{id}/discard", "discard", discard_job),
    Call("GET", "/dead", "look", dead_groups),
    Call("POST", "/dead/retry", "retry", retry_dead),
    Call("POST", "/dead/discard", "discard", discard_dead),
)
