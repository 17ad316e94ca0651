"""relevo queues: list, show, pause, resume, drain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from relevo.cli.changing import ForOption, UntilOption, moment_of, told
from relevo.cli.loading import limits_of, specs_of
from relevo.cli.tables import STATES, done_of, fields, span, table
from relevo.cli.terminal import AppOption, NoteOption, Terminal, Verbs
from relevo.desk import DurationView, Override, durations, view
from relevo.durations import as_text
from relevo.errors import SettingsError
from relevo.job import State
from relevo.store import Tally

if TYPE_CHECKING:
    from rich.console import RenderableType

group = Verbs("Queues: list, show, pause, resume, drain.", name="queues")

Queues = Annotated[list[str], typer.Argument(metavar="QUEUE…", help="Queues' names.")]
Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="A queue's name.")]


@group.verb("ls")
async def ls(terminal: Terminal, app: AppOption = None) -> None:
    """List the queues with their counts, and their limits where the app is named."""
    limits = _limits(terminal, app)
    async with terminal.desk() as desk:
        tallies = await desk.queues()
        took = durations(await desk.workers())
        changes = await desk.changes()
    shown = [
        {
            **view(tally),
            "limits": limits.get(tally.queue),
            "durations": view([each for each in took if each.queue == tally.queue]),
            "changed": told(changes, tally.queue, "queue", "lane"),
        }
        for tally in tallies
    ]
    terminal.show(shown, lambda: tallies_table(tallies, limits, took, changes))


def _limits(terminal: Terminal, names: list[str] | None) -> dict[str, str]:
    try:
        specs = [specs_of(app) for app in terminal.apps(names)]
    except SettingsError as error:
        if names:
            raise
        terminal.warn(f"no limits are shown: {error}")
        return {}
    every = {queue: limits_of(spec) for some in specs for queue, spec in some.items()}
    return {queue: words for queue, words in every.items() if words}


@group.verb("show")
async def show(terminal: Terminal, queue: Queue) -> None:
    """Show one queue, who serves it, and its dead letters by mistake."""
    async with terminal.desk() as desk:
        tally = await desk.queue(queue)
        found = await desk.workers()
        workers = [worker.id for worker in found if queue in worker.queues and worker.is_alive]
        took = _of(queue, durations(found))
        changes = [each for each in await desk.changes() if each.name == queue]
        groups = [desk.masked_group(each) for each in await desk.groups(queue=queue)]
    shown = {"queue": tally, "workers": workers, "groups": groups, "durations": took}
    shown |= {"changes": changes}

    def text() -> RenderableType:
        from rich.console import Group

        counts = [(str(state), tally.counts.get(state, 0)) for state in State]
        counts = [(name, done_of(tally) if name == State.DONE else n) for name, n in counts]
        pairs: list[tuple[str, Any]] = [("queue", tally.queue), ("mode", tally.mode), *counts]
        pairs += [
            *zip(("oldest", "late"), _ages(tally), strict=True),
            ("workers", " ".join(workers) or "nobody"),
        ]
        changed = told(changes, queue, "queue", "lane")
        pairs += [("changed", changed)] if changed else []
        return Group(fields(pairs), "", durations_table(took)) if took else fields(pairs)

    terminal.show(shown, text)


@group.verb("pause")
async def pause(terminal: Terminal, queues: Queues, note: NoteOption = "") -> None:
    """Take jobs in, give none out."""
    async with terminal.desk() as desk:
        changed = await desk.pause(queues, terminal.person, note)
    _report(terminal, queues, changed, "paused")


@group.verb("resume")
async def resume(terminal: Terminal, queues: Queues, note: NoteOption = "") -> None:
    """Open queues again, after a pause or a drain."""
    async with terminal.desk() as desk:
        changed = await desk.resume(queues, terminal.person, note)
    _report(terminal, queues, changed, "open")


@group.verb("set")
async def set_(
    terminal: Terminal,
    queue: Queue,
    limit: Annotated[int | None, typer.Option(help="Jobs at once, in all workers.")] = None,
    rate: Annotated[
        str | None, typer.Option(metavar="10/s", help="Jobs that begin, in all workers.")
    ] = None,
    priority: Annotated[
        str | None,
        typer.Option(metavar="high|normal|low", help="Among the queues of a worker."),
    ] = None,
    slots: Annotated[int | None, typer.Option(help="Jobs at once in each worker.")] = None,
    until: UntilOption = None,
    lasting: ForOption = None,
    note: NoteOption = "",
) -> None:
    """Change a queue's limit, rate, priority or slots while workers run."""
    async with terminal.desk() as desk:
        made = await desk.set_queue(
            queue,
            terminal.person,
            note,
            until=moment_of(until),
            lasting=lasting,
            limit=limit,
            rate=rate,
            priority=priority,
            slots=slots,
        )
        tallies, workers = await desk.queues(), await desk.workers()
    known = {tally.queue for tally in tallies}.union(*(worker.queues for worker in workers))
    if queue not in known and not terminal.json:
        terminal.warn(f"no worker serves {queue}, and it has had no job: see relevo queues ls")
    terminal.show(made, lambda: f"{queue}: {made}")


@group.verb("unset")
async def unset(terminal: Terminal, queue: Queue, note: NoteOption = "") -> None:
    """Take back what was changed of a queue: its limits are those of the code again."""
    async with terminal.desk() as desk:
        changed = await desk.unset("queue", queue, terminal.person, note)
    said = "as the code says" if changed else "nothing was changed"
    terminal.show({"queue": queue, "changed": changed}, lambda: f"{queue}: {said}")


@group.verb("drain")
async def drain(
    terminal: Terminal,
    queue: Queue,
    wait: Annotated[bool, typer.Option(help="Wait until the queue is empty.")] = True,
    note: NoteOption = "",
) -> None:
    """Take no new jobs in, and wait until those that are there have ended."""
    async with terminal.desk() as desk:
        [changed] = await desk.drain([queue], terminal.person, note)
        left = None
        if wait:
            async for left in desk.drained(queue):
                if left and not terminal.json:
                    terminal.warn(f"{queue}: {left} left")
    shown = {"queue": queue, "mode": "draining", "changed": changed, "left": left}
    terminal.show(shown, lambda: f"{queue} is {'drained' if wait else 'draining'}")


def _of(queue: str, took: list[DurationView]) -> list[DurationView]:
    return [each for each in took if each.queue == queue]


def durations_table(took: list[DurationView]) -> RenderableType:
    return table(
        ("command or effect", "median", "95 %", "ended", "running", "longest"),
        (
            (
                f"effect {each.name}" if each.is_effect else each.name,
                as_text(each.median) if each.count else None,
                as_text(each.p95) if each.count else None,
                each.count,
                each.running,
                as_text(each.longest) if each.running else None,
            )
            for each in took
        ),
    )


def _report(terminal: Terminal, queues: list[str], changed: list[bool], mode: str) -> None:
    shown = [
        {"queue": queue, "mode": mode, "changed": is_changed}
        for queue, is_changed in zip(queues, changed, strict=True)
    ]
    lines = [
        f"{queue} is {mode}" if is_changed else f"{queue} was {mode} already"
        for queue, is_changed in zip(queues, changed, strict=True)
    ]
    terminal.show(shown, lambda: "\n".join(lines))


def _ages(tally: Tally) -> list[str | None]:
    ages = (tally.oldest, tally.late)
    return [None if age is None else span(age / 1000) for age in ages]


def tallies_table(
    tallies: list[Tally],
    limits: dict[str, str],
    took: list[DurationView],
    changes: list[Override],
) -> RenderableType:
    last = ("limits",) if limits else ()
    changed = ("changed",) if any(each.what != "breaker" for each in changes) else ()
    return table(
        (
            "queue",
            "mode",
            *map(str, STATES),
            "dead",
            "done",
            "oldest",
            "late",
            "takes",
            *last,
            *changed,
        ),
        (
            (
                tally.queue,
                tally.mode,
                *(tally.counts.get(state, 0) for state in STATES),
                tally.counts.get(State.DEAD, 0),
                done_of(tally),
                *_ages(tally),
                next((str(each) for each in _of(tally.queue, took) if not each.is_effect), None),
                *(limits.get(tally.queue) for _ in last),
                *(told(changes, tally.queue, "queue", "lane") for _ in changed),
            )
            for tally in tallies
        ),
    )
