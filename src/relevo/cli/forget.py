"""relevo forget: everything of one person goes, before its time is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from relevo.cli.tables import cell, counted, table
from relevo.cli.terminal import OK, PROBLEM, Terminal, Verbs, Yes
from relevo.desk import Forgotten

if TYPE_CHECKING:
    from rich.console import RenderableType


def add_to(root: Verbs) -> None:
    """Hang the verb under the program."""
    root.verb("forget")(forget)


async def forget(
    terminal: Terminal,
    note: Annotated[
        str, typer.Option("--note", help="Why, without naming them; it stays in the audit.")
    ] = "",
    key: Annotated[str | None, typer.Option("--key", help="The key of a delivery or job.")] = None,
    thread: Annotated[
        str | None, typer.Option("--thread", help="A thread, or the id of something in it.")
    ] = None,
    text: Annotated[
        str | None, typer.Option("--text", help="Found literally in what came or was ordered.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what would be erased.")
    ] = False,
    yes: Yes = False,
) -> int:
    """Erase what has ended of one person: deliveries, jobs, results and effects."""
    if text is not None and terminal.settings.seal_keys:
        terminal.warn(
            "what is sealed cannot be searched: --text finds keys, names and what came before "
            "the seal; ask once more with --key or --thread"
        )
    async with terminal.desk() as desk:
        said = note if note or not dry_run else None
        found = await desk.forget_preview(
            terminal.person, key=key, thread=thread, text=text, note=said
        )
        if dry_run or not found.threads:
            terminal.show(found, lambda: _told(found, "would be erased"))
            return OK if found.threads else PROBLEM
        if not terminal.json:
            terminal.show(found, lambda: _told(found, "would be erased"))
        terminal.ask("Erase all of this for good?", yes)
        with terminal.progress("erasing", found.threads + found.left) as progress:
            done = await desk.forget(
                terminal.person, key=key, thread=thread, text=text, note=note, progress=progress
            )
    terminal.show(done, lambda: _summary(done, "erased"))
    return PROBLEM if done.left else OK


def _told(found: Forgotten, what: str) -> RenderableType:
    from rich.console import Group

    if found.is_empty:
        return cell("nothing matched")
    parts: list[RenderableType] = [cell(_summary(found, what))]
    if found.jobs:
        parts.append(table(("queue", "jobs"), found.jobs.items()))
    if found.left_alone:
        rows = ((one.thread, one.why, one.advice) for one in found.left_alone)
        parts.append(table(("left alone", "why", "what to do"), rows))
    return Group(*parts)


def _summary(found: Forgotten, what: str) -> str:
    jobs = sum(found.jobs.values())
    text = f"{counted(found.deliveries, 'delivery', 'deliveries')} and {counted(jobs, 'job')}"
    text += f" in {counted(found.threads, 'thread')} {what}"
    text += f"; {counted(found.left, 'thread')} left alone" if found.left else ""
    return text + (f"; in the audit as {found.act}" if found.act else "")
