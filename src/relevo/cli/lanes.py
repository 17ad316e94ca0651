"""relevo lanes: pause, resume, limit and cancel one lane of a queue."""

from __future__ import annotations

from typing import Annotated

import typer

from relevo.cli.changing import ForOption, UntilOption, changes_table, moment_of
from relevo.cli.tables import counted
from relevo.cli.terminal import NoteOption, Terminal, Verbs

group = Verbs("Lanes of a queue: list those changed, pause, resume, limit, cancel.", name="lanes")

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="A queue's name.")]
Lane = Annotated[str, typer.Argument(metavar="LANE", help="As its jobs show it: customer:28.")]


@group.verb("ls")
async def ls(terminal: Terminal) -> None:
    """List the lanes that are paused, or have a limit of their own."""
    async with terminal.desk() as desk:
        found = [each for each in await desk.changes() if each.what == "lane"]
    terminal.show(found, lambda: changes_table(found))


@group.verb("pause")
async def pause(
    terminal: Terminal,
    queue: Queue,
    lane: Lane,
    until: UntilOption = None,
    lasting: ForOption = None,
    note: NoteOption = "",
) -> None:
    """Begin no job of a lane; new ones are still accepted, and the other lanes go on."""
    await _set(terminal, queue, lane, 0, until, lasting, note)


@group.verb("set")
async def set_(
    terminal: Terminal,
    queue: Queue,
    lane: Lane,
    limit: Annotated[int, typer.Option(min=0, help="Jobs of the lane at once, in all workers.")],
    until: UntilOption = None,
    lasting: ForOption = None,
    note: NoteOption = "",
) -> None:
    """Let no more jobs of a lane run at once."""
    await _set(terminal, queue, lane, limit, until, lasting, note)


async def _set(
    terminal: Terminal,
    queue: str,
    lane: str,
    limit: int,
    until: str | None,
    lasting: str | None,
    note: str,
) -> None:
    async with terminal.desk() as desk:
        end = moment_of(until)
        made = await desk.set_lane(
            queue, lane, limit, terminal.person, note, until=end, lasting=lasting
        )
    terminal.show(made, lambda: f"{queue} {lane}: {made}")


@group.verb("resume")
async def resume(terminal: Terminal, queue: Queue, lane: Lane, note: NoteOption = "") -> None:
    """Take a pause or a limit of a lane back."""
    async with terminal.desk() as desk:
        changed = await desk.unset("lane", queue, terminal.person, note, lane=lane)
    said = "as the code says" if changed else "nothing was changed"
    shown = {"queue": queue, "lane": lane, "changed": changed}
    terminal.show(shown, lambda: f"{queue} {lane}: {said}")


@group.verb("cancel")
async def cancel(terminal: Terminal, queue: Queue, lane: Lane, note: NoteOption = "") -> None:
    """End every job of a lane that has not ended; running ones lose their lease."""
    async with terminal.desk() as desk:
        count = await desk.cancel_lane(queue, lane, terminal.person, note)
    shown = {"queue": queue, "lane": lane, "cancelled": count}
    terminal.show(shown, lambda: f"{counted(count, 'job')} cancelled")
