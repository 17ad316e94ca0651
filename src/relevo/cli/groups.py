"""relevo groups: list, show, cancel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from relevo.cli.tables import ago, at, counted, fields, table
from relevo.cli.terminal import Limit, NoteOption, Terminal, Verbs
from relevo.desk import GroupView

if TYPE_CHECKING:
    from rich.console import RenderableType

group = Verbs("Groups of jobs, and the job that runs when all have ended.", name="groups")

Named = Annotated[
    str,
    typer.Argument(metavar="GROUP", help="Its name, or the id of the job that waits for it."),
]


@group.verb("ls")
async def ls(terminal: Terminal, limit: Limit = 20) -> None:
    """List groups, newest first."""
    async with terminal.desk() as desk:
        rows = await desk.job_groups(limit=limit)
    terminal.show({"groups": rows}, lambda: groups_table(rows))


@group.verb("show")
async def show(terminal: Terminal, group: Named) -> None:
    """Show how far a group has come."""
    async with terminal.desk() as desk:
        found = await desk.job_group(group)
    terminal.show(found, lambda: group_text(found))


@group.verb("cancel")
async def cancel(terminal: Terminal, group: Named, note: NoteOption = "") -> None:
    """End every member that has not ended, and the job that waits for them."""
    async with terminal.desk() as desk:
        found = await desk.job_group(group)
        ended = await desk.cancel_group(found, terminal.person, note)
    shown = {"id": found.id, "name": found.name, "cancelled": ended}
    terminal.show(shown, lambda: f"{counted(ended, 'job')} cancelled")


def groups_table(rows: list[GroupView]) -> RenderableType:
    return table(
        ("name", "state", "gate", "members", "live", "done", "dead", "cancelled", "age"),
        (
            (
                row.name,
                row.state,
                row.gate,
                f"{row.members:,}",
                f"{row.live:,}",
                f"{row.done:,}",
                f"{row.dead:,}",
                f"{row.cancelled:,}",
                ago(row.opened_at),
            )
            for row in rows
        ),
    )


def group_text(row: GroupView) -> RenderableType:
    return fields(
        [
            ("group", row.name),
            ("job", f"{row.id} in {row.queue}, {row.state}"),
            ("gate", row.gate),
            ("members", f"{row.members:,}"),
            ("not ended", f"{row.live:,}"),
            ("ended", f"{row.done:,} done, {row.dead:,} dead, {row.cancelled:,} cancelled"),
            ("opened", at(row.opened_at)),
            ("closed", row.closed_at and at(row.closed_at)),
        ]
    )
