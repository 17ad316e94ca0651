"""Jobs, dead letters and queues."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from relevo.api.call import Asked, Call, Caller, Cursor, Limit, Note, Page, Text, Why
from relevo.clock import stamp
from relevo.desk import (
    BulkVerb,
    DurationView,
    Edited,
    Override,
    Pace,
    Progress,
    Saturation,
    Sweep,
    durations,
    meant,
    saturations,
)
from relevo.desk.bulk import reason
from relevo.desk.sweeps import BulkView
from relevo.errors import DefinitionError, MisuseError, PayloadError
from relevo.job import Job, State
from relevo.message import Priority
from relevo.store import BATCH, Effect, Filter, Group, Tally

Ids = Annotated[list[str], Meta(min_length=1, max_length=BATCH, description="Jobs' ids.")]


ErrorText = Annotated[Text, Meta(description="Found literally in the last error.")]
Since = Annotated[
    datetime, Meta(tz=True, description="Ended then or later; enqueued, if it has not ended.")
]
Until = Annotated[datetime, Meta(tz=True, description="Ended before, or enqueued before.")]
Most = Annotated[int, Meta(ge=1, description="So many at most.")]
Canary = Annotated[int, Meta(ge=1, le=200, description="So many first.")]
Rate = Annotated[str, Meta(description="No faster than that, such as 50/s.")]
Patience = Annotated[str, Meta(description="How long canaries may take.")]


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
    error: ErrorText | None = None
    since: Since | None = None
    until: Until | None = None

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
            error=self.error,
            since=None if self.since is None else stamp(self.since),
            until=None if self.until is None else stamp(self.until),
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
    """Which dead letters: some by a filter, or everything."""

    queue: Text | None = None
    kind: Text | None = None
    lane: Text | None = None
    fingerprint: Text | None = None
    text: Text | None = None
    error: ErrorText | None = None
    since: Since | None = None
    until: Until | None = None
    everything: bool = False
    limit: Most | None = None

    def where(self) -> Filter:
        where = Filter(
            queue=self.queue,
            kind=self.kind,
            lane=self.lane,
            fingerprint=self.fingerprint,
            text=self.text,
            error=self.error,
            since=None if self.since is None else stamp(self.since),
            until=None if self.until is None else stamp(self.until),
        )
        if where == Filter() and not self.everything:
            raise DefinitionError(
                "say which: queue, kind, lane, fingerprint, text, error, since or until, or "
                "everything"
            )
        return replace(where, states=frozenset({State.DEAD}))


class DeadDiscard(Dead, kw_only=True):
    note: Why


class DeadRetry(Dead):
    note: Note = ""
    canary: Canary | None = None
    rate: Rate | None = None
    patience: Patience = "60s"


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
        pace=Pace(limit=ask.limit, canary=ask.canary, rate=ask.rate, patience=ask.patience),
    )


async def discard_dead(caller: Caller, ask: DeadDiscard) -> Sweep:
    """Put many dead letters aside; the note says why."""
    pace = Pace(limit=ask.limit)
    return await caller.desk.discard_where(ask.where(), caller.person, ask.note, pace=pace)


# many at once


class JobsBulk(Some):
    verb: Annotated[BulkVerb, Meta(description="retry, cancel or discard.")] = "retry"
    limit: Most | None = None
    canary: Canary | None = None
    rate: Rate | None = None
    patience: Patience = "60s"
    note: Note = ""


class Nothing(Asked):
    """Nothing is asked but this."""


class OneBulk(Asked):
    id: str


class OneBulkNoted(OneBulk):
    note: Note = ""


async def begin_bulk(caller: Caller, ask: JobsBulk) -> BulkView:
    """Begin to change all jobs that a filter means; ask for it by its id, and stop it so."""
    desk, by = caller.desk, caller.person
    by.acts(ask.verb, ask.note)
    if ask.verb == "discard":
        reason(ask.note)
    if ask.where() == Filter():
        raise DefinitionError("say which jobs: by their state, queue, error, time or any other")
    where = meant(ask.verb, ask.where())
    pace = Pace(limit=ask.limit, canary=ask.canary, rate=ask.rate, patience=ask.patience).checked()

    async def act(progress: Progress) -> Sweep:
        return await desk.change_where(ask.verb, where, by, ask.note, pace=pace, progress=progress)

    begun = caller.sweeps.begin(act, verb=ask.verb, who=by.name, apps=desk.apps, back="/jobs")
    await begun.told.wait()
    return begun.view()


async def list_bulk(caller: Caller, ask: Nothing) -> Page[BulkView]:
    """The changes of many that are under way in this process, newest first."""
    return Page(items=[each.view() for each in caller.sweeps.under_way(caller.desk.apps)])


async def show_bulk(caller: Caller, ask: OneBulk) -> BulkView:
    """How far a change of many has come."""
    return caller.sweeps.find(ask.id, caller.desk.apps).view()


async def stop_bulk(caller: Caller, ask: OneBulkNoted) -> BulkView:
    """Stop a change of many; what was changed stays changed."""
    found = caller.sweeps.find(ask.id, caller.desk.apps)
    await caller.sweeps.stop(found, caller.desk.store, caller.person.acts("cancel", ask.note))
    return found.view()


# queues


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


class Ends(Asked):
    """Until when a change holds; without either, until it is taken back."""

    until: Annotated[datetime, Meta(tz=True)] | None = None
    lasting: Annotated[str, Meta(description="For how long, such as 2h.")] | None = None
    note: Note = ""


class QueueSet(Ends, kw_only=True):
    queue: str
    limit: int | None = None
    rate: str | None = None
    priority: Priority | None = None
    slots: int | None = None


class OneLane(Asked):
    queue: str
    lane: str
    note: Note = ""


class LaneSet(Ends, kw_only=True):
    queue: str
    lane: str
    limit: Annotated[int, Meta(description="0: no job of it begins.")] = 0


class LaneCancelled(Struct, frozen=True):
    """How many jobs of a lane were ended."""

    cancelled: int


async def list_changes(caller: Caller, ask: Nothing) -> Page[Override]:
    """What people have changed of queues, lanes and breakers, and until when."""
    return Page(items=await caller.desk.changes())


async def set_queue(caller: Caller, ask: QueueSet) -> Override:
    """Change the limit, rate, priority or slots of a queue while workers run."""
    return await caller.desk.set_queue(
        ask.queue,
        caller.person,
        ask.note,
        until=ask.until,
        lasting=ask.lasting,
        limit=ask.limit,
        rate=ask.rate,
        priority=ask.priority,
        slots=ask.slots,
    )


async def unset_queue(caller: Caller, ask: OneQueueNoted) -> Turned:
    """Take back what was changed of a queue."""
    return Turned(await caller.desk.unset("queue", ask.queue, caller.person, ask.note))


async def set_lane(caller: Caller, ask: LaneSet) -> Override:
    """Let no more jobs of a lane run at once; with a limit of 0, pause it."""
    return await caller.desk.set_lane(
        ask.queue,
        ask.lane,
        ask.limit,
        caller.person,
        ask.note,
        until=ask.until,
        lasting=ask.lasting,
    )


async def resume_lane(caller: Caller, ask: OneLane) -> Turned:
    """Take a pause or a limit of a lane back."""
    return Turned(
        await caller.desk.unset("lane", ask.queue, caller.person, ask.note, lane=ask.lane)
    )


async def cancel_lane(caller: Caller, ask: OneLane) -> LaneCancelled:
    """End every job of a lane that has not ended."""
    return LaneCancelled(
        await caller.desk.cancel_lane(ask.queue, ask.lane, caller.person, ask.note)
    )


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
    Call("GET", "/changes", "look", list_changes),
    Call("POST", "/queues/{queue}/set", "change", set_queue),
    Call("POST", "/queues/{queue}/unset", "change", unset_queue),
    Call("POST", "/lanes/set", "change", set_lane),
    Call("POST", "/lanes/resume", "change", resume_lane),
    Call("POST", "/lanes/cancel", "cancel", cancel_lane),
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
    Call("POST", "/bulk", "retry", begin_bulk),
    Call("GET", "/bulk", "look", list_bulk),
    Call("GET", "/bulk/{id}", "look", show_bulk),
    Call("POST", "/bulk/{id}/stop", "cancel", stop_bulk),
    Call("POST", "/dead/retry", "retry", retry_dead),
    Call("POST", "/dead/discard", "discard", discard_dead),
)
