"""relevo jobs: list, show, retry, edit, undo, cancel."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import replace

from relevo.cli.bulk import (
    CanaryOption,
    DryRun,
    ErrorOption,
    LaneOption,
    MostOption,
    PatienceOption,
    RateOption,
    SinceOption,
    UntilOption,
    between,
    change_many,
)
from relevo.cli.tables import ago, at, cell, counted, data, fields, short, span, table
from relevo.cli.terminal import (
    OK,
    PROBLEM,
    AppOption,
    Cursor,
    Limit,
    NoteOption,
    Reveal,
    Terminal,
    Verbs,
    Yes,
    ids_from,
    read_stdin,
)
from relevo.clock import duration, moment
from relevo.desk import Desk, Edited, Pace
from relevo.errors import DefinitionError
from relevo.job import ENDED, Job, State
from relevo.message import PRIORITIES, Priority
from relevo.store import Effect, Filter

if TYPE_CHECKING:
    from rich.console import RenderableType

group = Verbs("Jobs: list, show, retry, edit, cancel.", name="jobs")

Id = Annotated[str, typer.Argument(metavar="ID", help="A job's id.")]
SomeIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ID…]", help="Jobs' ids; - reads them from standard input."),
]
StatesOption = Annotated[list[State] | None, typer.Option("--state", help="Repeatable.")]
KindOption = Annotated[str | None, typer.Option("--kind", help="The command's name.")]
QueueOption = Annotated[
    str | None, typer.Option("--queue", metavar="QUEUE", help="One queue only.")
]
PayloadOption = Annotated[
    str | None,
    typer.Option("--payload", metavar="JSON", help="Fields to change, as an object; - reads it."),
]
PriorityOption = Annotated[str | None, typer.Option("--priority", help="high, normal or low.")]
RunAtOption = Annotated[
    str | None,
    typer.Option(
        "--run-at", metavar="WHEN", help="A moment (ISO 8601 with zone), or 15m from now."
    ),
]
AttemptsOption = Annotated[int | None, typer.Option("--attempts", help="How many it may spend.")]


@group.verb("ls")
async def ls(
    terminal: Terminal,
    queue: QueueOption = None,
    state: StatesOption = None,
    kind: KindOption = None,
    key: Annotated[str | None, typer.Option("--key", help="Its unique key.")] = None,
    lane: LaneOption = None,
    error: ErrorOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    thread: Annotated[
        str | None, typer.Option("--thread", help="All that one cause led to.")
    ] = None,
    flow: Annotated[str | None, typer.Option("--flow", help="The id of its flow.")] = None,
    text: Annotated[
        str | None, typer.Option("--text", help="Found in payload, key or error.")
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    reveal: Reveal = False,
) -> None:
    """List jobs, newest first."""
    where = Filter(
        queue=queue,
        states=frozenset(state or ()),
        kind=kind,
        key=key,
        lane=lane,
        thread=thread,
        flow=flow,
        text=text,
        error=error,
    )
    async with terminal.desk() as desk:
        where = await between(desk, where, since, until)
        page = await desk.jobs(where, cursor, limit)
        jobs = page.jobs if reveal else [desk.masked(job) for job in page.jobs]
    terminal.show({"jobs": jobs, "cursor": page.cursor}, lambda: jobs_table(jobs))
    if page.cursor and not terminal.json:
        terminal.warn(f"there are more: --cursor {page.cursor}")


@group.verb("show")
async def show(terminal: Terminal, id: Id, reveal: Reveal = False) -> None:
    """Show one job with its attempts and effects."""
    async with terminal.desk() as desk:
        job = await desk.job(id)
        effects, _ = await desk.effects(job=job.id, limit=200)
        overdue_on = await desk.overdue_on(job)
        if not reveal:
            job = desk.masked(job)
            effects = [desk.masked_effect(effect) for effect in effects]
    shown = {"job": job, "effects": effects, "overdue": overdue_on is not None}
    terminal.show(shown, lambda: job_text(job, effects, overdue_on))


@group.verb("retry")
async def retry(
    terminal: Terminal,
    ids: SomeIds = None,
    state: StatesOption = None,
    queue: QueueOption = None,
    kind: KindOption = None,
    lane: LaneOption = None,
    error: ErrorOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: MostOption = None,
    canary: CanaryOption = None,
    rate: RateOption = None,
    patience: PatienceOption = "60s",
    dry_run: DryRun = False,
    yes: Yes = False,
    note: NoteOption = "",
) -> int:
    """Make jobs ready again, with fresh attempts: some, or all that a filter means.

    A filter means dead jobs, unless --state says otherwise.
    """
    where = _where(ids, since or until, state, queue, kind, lane, error)
    pace = Pace(limit=limit, canary=canary, rate=rate, patience=patience)
    async with terminal.desk() as desk:
        if ids:
            return await retry_some(terminal, desk, ids_from(ids), note)
        where = await between(desk, where, since, until)
        return await change_many(
            *(terminal, desk, "retry", where, pace), note=note, dry_run=dry_run, yes=yes
        )


def _where(
    ids: list[str] | None,
    when: str | None,
    state: list[State] | None,
    queue: str | None,
    kind: str | None,
    lane: str | None,
    error: str | None,
) -> Filter:
    """The filter that was meant; DefinitionError unless it is said which, in one way."""
    where = Filter(states=frozenset(state or ()), queue=queue, kind=kind, lane=lane, error=error)
    if bool(ids) == (where != Filter() or when is not None):
        raise DefinitionError(
            "say which: ids, or --state, --queue, --kind, --lane, --error, --since, --until"
        )
    return where


@group.verb("run-again")
async def run_again(
    terminal: Terminal,
    id: Id,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list the effects that would be made again.")
    ] = False,
    repeat_effects: Annotated[
        bool, typer.Option("--repeat-effects", help="Also make again what the first has made.")
    ] = False,
    note: NoteOption = "",
) -> None:
    """Enqueue the command of a job that has ended once more, as a new job.

    The new job has the same payload, no key, and effects of its own. To go on where a job has
    failed, retry it.
    """
    async with terminal.desk() as desk:
        made = await desk.repeated_effects(id)
        new = None
        if not dry_run:
            new = await desk.run_again(id, terminal.person, note, repeats_effects=repeat_effects)
    shown = {"job": new, "again": id, "effects": [f"{each.name} {each.key}" for each in made]}
    lines = [f"{each.name}  {each.state}  {each.key}" for each in made]
    told = [f"{counted(len(made), 'effect')} of {id} made a second time", *lines] if made else []
    told.append(f"would run {id} again" if new is None else f"{new} runs {id} again")
    terminal.show(shown, lambda: "\n".join(told))


@group.verb("unpark")
async def unpark(
    terminal: Terminal,
    park: Annotated[
        str, typer.Argument(metavar="PARK", help="Such as unaccepted:shop:pay:charge.")
    ],
    queue: QueueOption = None,
    lane: LaneOption = None,
    error: ErrorOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: MostOption = None,
    canary: CanaryOption = None,
    rate: RateOption = None,
    patience: PatienceOption = "60s",
    note: NoteOption = "",
) -> None:
    """Retry what is parked behind something, such as a key that has been mended."""
    where = Filter(queue=queue, lane=lane, error=error)
    pace = Pace(limit=limit, canary=canary, rate=rate, patience=patience)
    async with terminal.desk() as desk:
        where = await between(desk, where, since, until)
        sweep = await desk.let_go(park, terminal.person, note, pace=pace, where=where)
    if sweep.stopped and not terminal.json:
        terminal.warn(f"stopped: {sweep.stopped}")
    terminal.show(sweep, lambda: f"{counted(sweep.changed, 'job')} behind {park} let go")


@group.verb("cancel")
async def cancel(
    terminal: Terminal,
    ids: SomeIds = None,
    state: StatesOption = None,
    queue: QueueOption = None,
    kind: KindOption = None,
    lane: LaneOption = None,
    error: ErrorOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: MostOption = None,
    rate: RateOption = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    note: NoteOption = "",
) -> int:
    """End jobs that have not ended: some, or all that a filter means.

    A filter means running jobs, which lose their leases, only with --state running.
    """
    where = _where(ids, since or until, state, queue, kind, lane, error)
    pace = Pace(limit=limit, rate=rate)
    async with terminal.desk() as desk:
        if ids:
            wanted = ids_from(ids)
            done = await desk.cancel(wanted, terminal.person, note)
            return await report(terminal, desk, wanted, done)
        where = await between(desk, where, since, until)
        return await change_many(
            *(terminal, desk, "cancel", where, pace), note=note, dry_run=dry_run, yes=yes
        )


@group.verb("edit")
async def edit(
    terminal: Terminal,
    id: Id,
    payload: PayloadOption = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="--payload takes the place of the payload.")
    ] = False,
    priority: PriorityOption = None,
    run_at: RunAtOption = None,
    attempts: AttemptsOption = None,
    again: Annotated[bool, typer.Option("--retry", help="Then retry it.")] = False,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Do not hold the payload against its command.")
    ] = False,
    note: NoteOption = "",
    app: AppOption = None,
    reveal: Reveal = False,
) -> None:
    """Change the payload, priority, time or attempts of a job that waits or is dead.

    The fields that --payload names are merged into the payload, which has to fit its command.
    `relevo jobs undo` takes the change back for a day.
    """
    bindings = None
    if payload is not None and not unchecked:
        apps = terminal.apps(app)
        bindings = terminal.engine(apps).bindings if apps else {}
    async with terminal.desk() as desk:
        edited = await desk.edit(
            id,
            terminal.person,
            payload=read_stdin() if payload == "-" else payload,
            whole=whole,
            priority=None if priority is None else _priority(priority),
            run_at=None if run_at is None else await _moment(desk, run_at),
            attempts=attempts,
            note=note,
            bindings=bindings,
        )
        if again:
            await warn_of_outlived(terminal, desk, [edited.id])
            [is_ready] = await desk.retry([edited.id], terminal.person, note)
            if not is_ready and not terminal.json:
                terminal.warn("it was changed, and cannot be retried as it is")
            edited = replace(edited, state=(await desk.job(edited.id)).state)
        shown = edited if reveal else desk.masked_edited(edited)
    _show_edited(terminal, shown, "changed")


@group.verb("undo")
async def undo(terminal: Terminal, id: Id, note: NoteOption = "", reveal: Reveal = False) -> None:
    """Take the last edit of a job back, for a day."""
    async with terminal.desk() as desk:
        edited = await desk.undo_edit(id, terminal.person, note)
        shown = edited if reveal else desk.masked_edited(edited)
    _show_edited(terminal, shown, "taken back")


def _show_edited(terminal: Terminal, edited: Edited, what: str) -> None:
    if edited.warning and not terminal.json:
        terminal.warn(edited.warning)
    until = edited.undo_until
    rows = (
        ("id", edited.id),
        ("queue", edited.queue),
        ("kind", edited.kind),
        ("state", edited.state),
        ("key", edited.key),
        ("priority", {0: "high", 2: "low"}.get(edited.priority)),
        ("due", at(edited.run_at)),
        ("attempts", edited.attempts),
        ("payload", data(edited.payload)),
        (what, ", ".join(edited.changed) or "nothing"),
        ("undo", until and f"relevo jobs undo {edited.id}, until {at(until)}"),
    )
    terminal.show(edited, lambda: fields(rows))


def _priority(text: str) -> Priority:
    for name in PRIORITIES:
        if name == text.lower():
            return name
    raise DefinitionError(f"{text!r:.40} is not a priority: write high, normal or low")


async def _moment(desk: Desk, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return moment(await desk.store.now()) + duration(text)


async def retry_some(terminal: Terminal, desk: Desk, ids: list[str], note: str) -> int:
    """Retry jobs, with a word about those whose follow-ups may not be known any more."""
    await warn_of_outlived(terminal, desk, ids)
    return await report(terminal, desk, ids, await desk.retry(ids, terminal.person, note))


async def warn_of_outlived(terminal: Terminal, desk: Desk, ids: list[str]) -> None:
    """Say which jobs may start once more what they have started before."""
    for job in [] if terminal.json else await desk.outlived(ids):
        terminal.warn(
            f"{job.id} first ran more than {span(desk.keep_dead.total_seconds())} ago: what it "
            "enqueued then may not be known any more, and may be enqueued once again"
        )


async def report(terminal: Terminal, desk: Desk, ids: list[str], changed: list[bool]) -> int:
    """Say which jobs were changed, and in what state those are that were not."""
    done = [id for id, is_changed in zip(ids, changed, strict=True) if is_changed]
    left = [id for id, is_changed in zip(ids, changed, strict=True) if not is_changed]
    jobs = await desk.store.find([id.replace("-", "").lower() for id in left])
    why = {
        id: "not found" if job is None else str(job.state)
        for id, job in zip(left, jobs, strict=True)
    }
    replaced = {
        id
        for id, job in zip(left, jobs, strict=True)
        if job is not None and job.unique == "latest" and job.state in ENDED
    }
    for id, state in () if terminal.json else why.items():
        newer = ", a newer job of its key has taken its place" if id in replaced else ""
        terminal.warn(
            f"{id} is {state}: not changed{newer}" if state != "not found" else f"no job {id}"
        )
    terminal.show({"changed": done, "refused": why}, lambda: f"{len(done)} changed")
    return PROBLEM if left or not ids else OK


def jobs_table(jobs: list[Job]) -> RenderableType:
    return table(
        ("id", "queue", "state", "attempt", "age", "key", "last error"),
        (
            (
                job.id,
                job.queue,
                job.state,
                f"{job.attempt}/{job.attempts}",
                ago(job.inserted_at),
                short(job.key, 30),
                None
                if job.failure is None
                else short(f"{job.failure.type}: {job.failure.message}"),
            )
            for job in jobs
        ),
    )


def job_text(job: Job, effects: list[Effect], overdue_on: str | None = None) -> RenderableType:
    from rich.console import Group

    failure = job.failure
    parts: list[Any] = [
        fields(
            (
                ("id", job.id),
                ("queue", job.queue),
                ("kind", job.kind),
                ("state", job.state),
                ("attempts", f"{job.attempt} of {job.attempts}"),
                ("crashes", crashes_text(job)),
                ("priority", {0: "high", 2: "low"}.get(job.priority)),
                ("enqueued", at(job.inserted_at)),
                ("due", at(job.run_at)),
                ("ended", at(job.ended_at)),
                ("worker", job.worker),
                (
                    "overdue",
                    overdue_on
                    and "its plain function runs past its time limit; it keeps its job, "
                    "and what it returns counts",
                ),
                ("key", job.key and f"{job.key} ({job.unique})"),
                ("joined", joined_text(job)),
                ("lane", job.lane),
                ("parked behind", job.park),
                ("thread", None if job.thread in ("", job.id) else job.thread),
                ("cause", job.cause),
                ("flow", job.flow and f"{job.flow} / {job.node}"),
                ("waits for", " ".join(edge.child for edge in job.after)),
                ("waited for by", " ".join(job.before)),
                ("note", job.note),
                ("payload", data(job.payload)),
                ("result", data(job.result)),
                ("error", failure and f"{failure.type}: {failure.message}"),
                ("group", failure and failure.fingerprint),
            )
        )
    ]
    if job.joins:
        parts += ["", joins_table(job)]
    if job.history:
        parts += ["", history_table(job)]
    if effects:
        parts += ["", effects_table(effects)]
    if failure is not None and failure.trace:
        parts += ["", cell(failure.trace.rstrip())]
    return Group(*parts)


def crashes_text(job: Job) -> str | None:
    """How often its process died while it ran alone, and after how many such deaths it is dead."""
    if not job.crashes:
        return None
    return f"{job.crashes} of {job.attempts}: its process died while nothing ran beside it"


def joined_text(job: Job) -> str | None:
    """How many commands joined a job, and what came of their payloads."""
    if not job.joined:
        return None
    if job.joined == 1:
        return "1 newer one joined; its payload was not used"
    return f"{job.joined:,} newer ones joined; their payloads were not used"


def joins_table(job: Job) -> RenderableType:
    return table(
        ("joined at", "asked for by"), ((at(line.at), line.cause) for line in reversed(job.joins))
    )


def history_table(job: Job) -> RenderableType:
    return table(
        ("run", "outcome", "began", "took", "worker", "error"),
        (
            (
                run.number,
                run.outcome,
                at(run.began_at),
                f"{run.ended_at - run.began_at} ms",
                run.worker,
                run.failure and short(f"{run.failure.type}: {run.failure.message}", 80),
            )
            for run in job.history
        ),
    )


def effects_table(effects: list[Effect]) -> RenderableType:
    return table(
        ("job", "effect", "state", "age", "key", "result", "error", "decided by"),
        (
            (
                effect.job,
                effect.name,
                effect.state,
                ago(effect.updated_at or effect.created_at),
                effect.key,
                short(data(effect.result)),
                short(effect.error),
                effect.decided_by,
            )
            for effect in effects
        ),
    )
