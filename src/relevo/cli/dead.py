"""relevo dead: dead letters by mistake, and what to do about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from relevo.cli import jobs
from relevo.cli.bulk import (
    CanaryOption,
    DryRun,
    ErrorOption,
    GroupOption,
    LaneOption,
    MostOption,
    PatienceOption,
    RateOption,
    SinceOption,
    UntilOption,
    between,
    change_many,
)
from relevo.cli.jobs import QueueOption, job_text, jobs_table, report, retry_some
from relevo.cli.tables import ago, counted, short, table
from relevo.cli.terminal import (
    OK,
    PROBLEM,
    Cursor,
    Limit,
    NoteOption,
    Reveal,
    Terminal,
    Verbs,
    Yes,
    ids_from,
)
from relevo.desk import Pace
from relevo.errors import DefinitionError
from relevo.ids import parse_id
from relevo.job import State
from relevo.store import Filter, Group

if TYPE_CHECKING:
    from rich.console import RenderableType

group = Verbs("Dead letters: groups, retry with canary and rate, edit, discard.", name="dead")
group.verb("edit")(jobs.edit)
group.verb("undo")(jobs.undo)

SomeIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ID…]", help="Jobs' ids; - reads them from standard input."),
]
AllOption = Annotated[bool, typer.Option("--all", help="Every dead letter.")]


@group.verb("ls")
async def ls(terminal: Terminal, queue: QueueOption = None, limit: Limit = 50) -> None:
    """List dead letters by mistake, most first."""
    async with terminal.desk() as desk:
        groups = await desk.groups(queue=queue, limit=limit)
        groups = [desk.masked_group(each) for each in groups]
    terminal.show(groups, lambda: groups_table(groups))


@group.verb("show")
async def show(
    terminal: Terminal,
    which: Annotated[
        str, typer.Argument(metavar="FINGERPRINT|ID", help="As `dead ls` names it, or a job's id.")
    ],
    limit: Limit = 20,
    cursor: Cursor = None,
    reveal: Reveal = False,
) -> int:
    """Show the newest jobs of one mistake, or one job."""
    if parse_id(which):
        await jobs.show(terminal, which, reveal)
        return OK
    async with terminal.desk() as desk:
        where = Filter(states=frozenset({State.DEAD}), fingerprint=which)
        page = await desk.jobs(where, cursor, limit)
        found = page.jobs if reveal else [desk.masked(job) for job in page.jobs]
    if not found:
        terminal.warn(f"no dead letter has the fingerprint {which}")

    def text() -> RenderableType:
        from rich.console import Group as Stack

        return Stack(jobs_table(found), "", job_text(found[0], [])) if found else Stack()

    terminal.show({"jobs": found, "cursor": page.cursor}, text)
    return OK if found else PROBLEM


@group.verb("retry")
async def retry(
    terminal: Terminal,
    ids: SomeIds = None,
    fingerprint: GroupOption = None,
    queue: QueueOption = None,
    lane: LaneOption = None,
    error: ErrorOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    every: AllOption = False,
    limit: MostOption = None,
    canary: CanaryOption = None,
    rate: RateOption = None,
    patience: PatienceOption = "60s",
    dry_run: DryRun = False,
    yes: Yes = False,
    note: NoteOption = "",
) -> int:
    """Retry dead letters: some, a group, a queue's, those of a time or an error, or all."""
    where = Filter(states=_DEAD, fingerprint=fingerprint, queue=queue, lane=lane, error=error)
    _check(ids, where, since, until, every)
    pace = Pace(limit=limit, canary=canary, rate=rate, patience=patience)
    async with terminal.desk() as desk:
        if ids:
            wanted = ids_from(ids)
            if dry_run:
                return _told(terminal, len(wanted), "would be retried")
            return await retry_some(terminal, desk, wanted, note)
        where = await between(desk, where, since, until)
        return await change_many(
            *(terminal, desk, "retry", where, pace),
            note=note,
            what="dead letter",
            dry_run=dry_run,
            yes=yes,
        )


@group.verb("discard")
async def discard(
    terminal: Terminal,
    note: Annotated[str, typer.Option("--note", help="Why; required.")],
    ids: SomeIds = None,
    fingerprint: GroupOption = None,
    queue: QueueOption = None,
    lane: LaneOption = None,
    error: ErrorOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    every: AllOption = False,
    limit: MostOption = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Put dead letters aside for good, with the reason."""
    where = Filter(states=_DEAD, fingerprint=fingerprint, queue=queue, lane=lane, error=error)
    _check(ids, where, since, until, every)
    async with terminal.desk() as desk:
        if ids:
            wanted = ids_from(ids)
            if dry_run or not wanted:
                return _told(terminal, len(wanted), "would be discarded")
            if len(wanted) > 1:
                terminal.ask(f"Discard {counted(len(wanted), 'job')}?", yes)
            done = await desk.discard(wanted, terminal.person, note)
            return await report(terminal, desk, wanted, done)
        where = await between(desk, where, since, until)
        return await change_many(
            *(terminal, desk, "discard", where, Pace(limit=limit)),
            note=note,
            what="dead letter",
            dry_run=dry_run,
            yes=yes,
        )


_DEAD = frozenset({State.DEAD})


def _check(
    ids: list[str] | None, where: Filter, since: str | None, until: str | None, every: bool
) -> None:
    """DefinitionError unless it is said which, in one way."""
    by_filter = where != Filter(states=_DEAD) or (since, until) != (None, None)
    if bool(ids) + by_filter + every != 1:
        raise DefinitionError(
            "say which: ids, --all, or --group, --queue, --lane, --error, --since, --until"
        )


def _told(terminal: Terminal, count: int, what: str) -> int:
    terminal.show({"matched": count}, lambda: f"{count:,} {what}" if count else "nothing matched")
    return OK if count else PROBLEM


def groups_table(groups: list[Group]) -> RenderableType:
    return table(
        ("group", "queue", "count", "last", "first", "error"),
        (
            (
                group.fingerprint,
                group.queue,
                group.count,
                ago(group.last_at),
                ago(group.first_at),
                short(f"{group.type}: {group.message}", 80),
            )
            for group in groups
        ),
    )
