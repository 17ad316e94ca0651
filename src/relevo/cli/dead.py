"""relevo dead: dead letters by mistake, and what to do about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from relevo.cli import jobs
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
from relevo.desk import COUNT_MAX, Sweep
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
GroupOption = Annotated[
    str | None, typer.Option("--group", metavar="FINGERPRINT", help="One mistake's jobs.")
]
AllOption = Annotated[bool, typer.Option("--all", help="Every dead letter.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say how many there are.")]


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
    every: AllOption = False,
    canary: Annotated[
        int | None, typer.Option("--canary", metavar="N", help="So many first; stop if one dies.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="50/s", help="No faster than that.")
    ] = None,
    patience: Annotated[
        str, typer.Option("--patience", metavar="60s", help="How long canaries may take.")
    ] = "60s",
    dry_run: DryRun = False,
    yes: Yes = False,
    note: NoteOption = "",
) -> int:
    """Retry dead letters: some, a group, a queue's, or all."""
    where = _where(ids, fingerprint, queue, every)
    async with terminal.desk() as desk:
        if where is None:
            wanted = ids_from(ids or ())
            if dry_run:
                return _told(terminal, len(wanted), "would be retried")
            return await retry_some(terminal, desk, wanted, note)
        count = await desk.count(where, most=COUNT_MAX)
        if dry_run or not count:
            return _told(terminal, count, "would be retried")
        terminal.ask(f"Retry {count:,} dead letters?", yes)
        with terminal.progress("retrying", count) as progress:
            sweep = await desk.retry_where(
                where,
                terminal.person,
                note,
                canary=canary,
                rate=rate,
                patience=patience,
                progress=progress,
            )
    return _swept(terminal, sweep, "retried")


@group.verb("discard")
async def discard(
    terminal: Terminal,
    note: Annotated[str, typer.Option("--note", help="Why; required.")],
    ids: SomeIds = None,
    fingerprint: GroupOption = None,
    queue: QueueOption = None,
    every: AllOption = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Put dead letters aside for good, with the reason."""
    where = _where(ids, fingerprint, queue, every)
    async with terminal.desk() as desk:
        wanted = ids_from(ids or ())
        count = len(wanted) if where is None else await desk.count(where, most=COUNT_MAX)
        if dry_run or not count:
            return _told(terminal, count, "would be discarded")
        if where is None:
            if count > 1:
                terminal.ask(f"Discard {counted(count, 'job')}?", yes)
            done = await desk.discard(wanted, terminal.person, note)
            return await report(terminal, desk, wanted, done)
        terminal.ask(f"Discard {count:,} dead letters?", yes)
        with terminal.progress("discarding", count) as progress:
            sweep = await desk.discard_where(where, terminal.person, note, progress=progress)
    return _swept(terminal, sweep, "discarded")


def _where(
    ids: list[str] | None, fingerprint: str | None, queue: str | None, every: bool
) -> Filter | None:
    """The filter that was meant; None for a list of ids."""
    by_filter = fingerprint is not None or queue is not None
    if bool(ids) + by_filter + every != 1:
        raise DefinitionError("say which: ids, --group and/or --queue, or --all")
    if ids:
        return None
    return Filter(states=frozenset({State.DEAD}), fingerprint=fingerprint, queue=queue)


def _told(terminal: Terminal, count: int, what: str) -> int:
    terminal.show({"matched": count}, lambda: f"{count:,} {what}" if count else "nothing matched")
    return OK if count else PROBLEM


def _swept(terminal: Terminal, sweep: Sweep, what: str) -> int:
    if not terminal.json and sweep.refused:
        terminal.warn(f"{sweep.refused:,} were not in a state for it, or a younger job has the key")
    if not terminal.json and sweep.outlived:
        terminal.warn(
            f"{sweep.outlived:,} of them ran so long ago that what they enqueued then may not be "
            "known any more, and may be enqueued once again"
        )
    if not terminal.json and sweep.stopped:
        terminal.warn(f"stopped: {sweep.stopped}")
    terminal.show(sweep, lambda: f"{sweep.changed:,} of {sweep.total:,} {what}")
    return PROBLEM if sweep.stopped or not sweep.changed else OK


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
