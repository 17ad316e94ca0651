"""relevo trace, settings, audit: ways to look at the whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from msgspec.structs import replace

from relevo.cli.bulk import moment
from relevo.cli.deliveries import job_text
from relevo.cli.jobs import joined_text
from relevo.cli.tables import ago, at, cell, counted, data, short, span, table
from relevo.cli.terminal import (
    OK,
    PROBLEM,
    AsIs,
    Cursor,
    Limit,
    Reveal,
    Terminal,
    Verbs,
)
from relevo.desk import Row, Story, delivery_job
from relevo.errors import SettingsError
from relevo.job import Job
from relevo.settings import PREFIX, describe
from relevo.store import Effect, Kept

if TYPE_CHECKING:
    from rich.console import RenderableType


group = Verbs("What people did.", name="audit")


def add_to(root: Verbs) -> None:
    """Hang the verbs under the program."""
    root.verb("trace")(trace)
    root.verb("settings")(settings)


async def trace(
    terminal: Terminal,
    anything: Annotated[
        str,
        typer.Argument(help="An id, a key of ours or theirs, or text such as a reservation."),
    ],
    part: Annotated[
        bool, typer.Option("--part", help="List also what only contains it, a row each.")
    ] = False,
    reveal: Reveal = False,
) -> None:
    """Tell the story of anything: what came, its jobs, their attempts, what they did outside.

    What is called so comes first, and alone: as an id, a key, a provider's id or a value. Else the
    story in which it is a word of its own, or a part of one; where there are several, their rows.
    """
    async with terminal.desk() as desk:
        if part:
            found = await desk.search(anything, is_masked=not reveal)
            terminal.show(found, lambda: rows_table([*found.rows, *found.others]))
            if not found.is_whole and not terminal.json:
                terminal.warn(_PARTLY)
            return
        story = await desk.trace(anything, is_masked=not reveal)
        if not reveal:
            story = replace(
                story,
                deliveries=[desk.masked_delivery(kept) for kept in story.deliveries],
                jobs=[desk.masked(job) for job in story.jobs],
                effects=[desk.masked_effect(effect) for effect in story.effects],
            )
    terminal.show(story, lambda: story_text(story))
    if not terminal.json and (story.others or not story.is_whole):
        several = "others contain" if story.others != 1 else "other contains"
        told = f"{story.others:,} {several} it: --part" if story.others else ""
        terminal.warn("; ".join(filter(None, (told, "" if story.is_whole else _PARTLY))))


_PARTLY = "only the newest jobs, deliveries and effects were looked through"


def rows_table(rows: Sequence[Row]) -> RenderableType:
    return table(
        ("what", "at", "key", "about", "state", "age"),
        (
            (row.of, row.place, short(row.key, 40), row.about, row.state, ago(row.at))
            for row in rows
        ),
    )


def story_text(story: Story) -> RenderableType:
    from rich.console import Group
    from rich.padding import Padding

    if not story.threads:
        fits = "have it as a word" if story.fit == "word" else "contain it"
        told = f"nothing is called so; {counted(len(story.rows), 'story', 'stories')} {fits}"
        return Group(cell(told), "", rows_table(story.rows))
    lines: list[Any] = [cell(f"found by {' and '.join(story.found)}"), ""]
    for kept in story.deliveries:
        lines += map(cell, _came(kept, story.jobs))
    for depth, job in story.tree():
        effects = [effect for effect in story.effects if effect.job == job.id]
        lines += [
            Padding(cell(line), (0, 0, 0, 4 * depth), expand=False) for line in _told(job, effects)
        ]
    if story.is_cut:
        lines.append("… and more than a story holds")
    return Group(*lines)


def _came(kept: Kept, jobs: Iterable[Job]) -> Iterator[str]:
    stands = {job.id: job for job in jobs}
    key = f"  key {kept.key}" if kept.key else ""
    yield f"{at(kept.received_at)}  {kept.method} {kept.endpoint}  {kept.state}  {kept.status}"
    yield f"  {kept.id}{key}" + (f"  generation {kept.generation}" if kept.generation else "")
    if kept.repeats:
        differs = ", with another body" if kept.differs else ""
        times = "once" if kept.repeats == 1 else f"{kept.repeats:,} times"
        last = "" if kept.repeats == 1 else "the last "
        yield f"  came again {times}{differs}, {last}{at(kept.repeated_at)}"
    if kept.reason:
        yield f"  {short(kept.reason, 200)}"
    for id in kept.jobs:
        if (job := stands.get(id)) is not None:
            yield f"  {job_text(delivery_job(kept, id, job))}"
    yield ""


def _told(job: Job, effects: list[Effect]) -> Iterator[str]:
    yield f"{at(job.inserted_at)}  {job.queue}  {job.kind}  {job.state}"
    yield f"  {job.id}" + (f"  key {job.key}" if job.key else "")
    if job.note:
        yield f"  {short(job.note, 200)}"
    if job.joined:
        causes = " ".join(line.cause for line in job.joins[:-4:-1] if line.cause)
        yield f"  {joined_text(job)}" + (f": {causes}" if causes else "")
    for run in job.history:
        failure = run.failure
        why = f", {short(f'{failure.type}: {failure.message}', 100)}" if failure else ""
        yield f"  run {run.number}: {run.outcome} in {run.ended_at - run.began_at} ms{why}"
    for effect in effects:
        result = short(data(effect.result))
        yield AsIs(f"  effect {effect.name}: {effect.state}" + (f" → {result}" if result else ""))


async def settings(terminal: Terminal) -> int:
    """Print every setting: its variable, what it is, its default and what it is for."""
    try:
        values = terminal.settings.shown()
    except SettingsError as error:
        terminal.warn(str(error))
        values = {}
    rows = [
        {
            "variable": row.variable,
            "value": _plainly(values.get(row.variable.removeprefix(PREFIX).lower())),
            "default": row.default or None,
            "meaning": row.meaning,
        }
        for row in describe()
    ]
    columns = ("variable", "value", "default", "meaning")
    terminal.show(rows, lambda: table(columns, ([row[name] for name in columns] for row in rows)))
    return OK if values else PROBLEM


def _plainly(value: object) -> str | None:
    match value:
        case None | ():
            return None
        case timedelta():
            return span(value.total_seconds())
        case tuple():
            return ",".join(map(str, cast("tuple[object, ...]", value)))
        case _:
            return str(value)


@group.verb("ls")
async def ls(
    terminal: Terminal,
    target: Annotated[str | None, typer.Option("--target", help="A job's id or a queue.")] = None,
    who: Annotated[str | None, typer.Option("--who", help="One person.")] = None,
    verb: Annotated[
        str | None, typer.Option("--verb", help="As the list has it: edit, 'retry many' …")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="2h", help="So long ago at most, or a moment.")
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> None:
    """List what people did, newest first."""
    async with terminal.desk() as desk:
        audits, more = await desk.audits(
            target=target,
            who=who,
            verb=verb,
            since=await moment(desk, since, "--since"),
            cursor=cursor,
            limit=limit,
        )
    terminal.show(
        {"audits": audits, "cursor": more},
        lambda: table(
            ("at", "who", "verb", "target", "note"),
            ((at(row.at), row.who, row.verb, row.target, short(row.note, 160)) for row in audits),
        ),
    )
    if more and not terminal.json:
        terminal.warn(f"there are more: --cursor {more}")
