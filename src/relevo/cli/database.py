"""relevo migrate, relevo database: the store's own tables and files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from relevo.cli.effects import effects_table
from relevo.cli.tables import at, counted, span, table
from relevo.cli.terminal import (
    OK,
    PROBLEM,
    AppOption,
    NoteOption,
    Terminal,
    Verbs,
    Yes,
    hide_password,
)
from relevo.desk import AfterRestore
from relevo.errors import DefinitionError
from relevo.restored import Mark, mark_restored
from relevo.sources import Source
from relevo.store import Schema, Store
from relevo.stores import restore_store

group = Verbs("The store's files: backup, restore, mark-restored, after-restore.", name="database")

_UNKNOWN = "as its documentation says"

ForceOption = Annotated[
    bool,
    typer.Option("--force", help="SQLite: also where a log lies there; what is there is kept."),
]


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider is asked to send again."""

    endpoint: str
    from_at: int
    to_at: int
    how: str  # "": as its documentation says


def add_to(root: Verbs) -> None:
    """Hang the verb under the program."""
    root.verb("migrate")(migrate)


async def migrate(terminal: Terminal, app: AppOption = None) -> None:
    """Bring the store's tables, and those of the apps, up to date; many may do it at once."""
    apps = terminal.apps(app)
    store = terminal.whole()
    try:
        steps = await store.migrate()
        schema = await store.schema()
    finally:
        await store.close()
    for package in [each.migrations for each in apps if each.migrations]:
        from relevo.apps import tables  # brings Alembic along

        steps += await tables.migrate(terminal.database or terminal.url, package)
    words = "\n".join(f"done: {step}" for step in steps) or _up_to_date(schema)
    terminal.show({"store": store.url, "steps": steps, "schema": schema._asdict()}, lambda: words)


def _up_to_date(schema: Schema) -> str:
    if schema.number == schema.known:
        return "everything is up to date"
    return (
        f"nothing to do: the store is of version {schema.number}, newer than the {schema.known} of "
        "this relevo, which may work on it"
    )


@group.verb("backup")
async def backup(
    terminal: Terminal,
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A file that does not exist yet.")],
) -> None:
    """Copy a living SQLite store into one file."""
    if path.exists():
        raise DefinitionError(f"{path} is there already; a backup never writes over anything")
    async with terminal.desk() as desk:
        copy: Any = getattr(desk.store, "backup", None)
        if copy is None:
            tool = "pg_dump" if desk.store.name == "postgres" else "the server's own snapshots"
            raise DefinitionError(f"a {desk.store.name} store is backed up with {tool}")
        await copy(path)
    size = path.stat().st_size
    terminal.show({"path": str(path), "bytes": size}, lambda: f"{path}: {size:,} bytes")


@group.verb("restore")
async def restore(
    terminal: Terminal,
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A backup of SQLite, or an archive of pg_dump.")
    ],
    to: Annotated[
        str | None, typer.Option("--to", metavar="URL", help="Where; otherwise the store.")
    ] = None,
    force: ForceOption = False,
    note: NoteOption = "",
) -> None:
    """Put a copy in the place of the store: verified, brought up to date and marked as restored.

    SQLite: refused while a process has the store open, or its log lies there; what was there is
    kept beside it. PostgreSQL: an archive of pg_dump goes into an empty database, all or nothing;
    base backups, and files of Redis, their servers restore themselves, and this says how.
    """
    url = to or terminal.url
    hide_password(url)
    marks: list[Mark] = []

    async def finish(store: Store) -> None:
        marks.append(await mark_restored(store, terminal.person.acts("restore", note)))

    kept = [str(each) for each in await restore_store(url, path, force=force, finish=finish)]
    [mark] = marks
    lines = [f"restored: {copied(mark)}", *[f"kept: {each}" for each in kept], *_what_follows(mark)]
    terminal.show({"mark": mark, "kept": kept}, lambda: "\n".join(lines))


@group.verb("mark-restored")
async def mark_as_restored(
    terminal: Terminal,
    force: Annotated[
        bool, typer.Option("--force", help="Also while a worker seems to be alive.")
    ] = False,
    note: NoteOption = "",
) -> None:
    """Mark a store that its own tools have restored, before any process works on it."""
    async with terminal.desk() as desk:
        mark = await desk.mark_restored(terminal.person, note, force=force)
    lines = [f"marked: {copied(mark)}", *_what_follows(mark)]
    terminal.show({"mark": mark}, lambda: "\n".join(lines))


@group.verb("after-restore")
async def after_restore(
    terminal: Terminal,
    app: AppOption = None,
    over: Annotated[
        bool, typer.Option("--over", help="Say that all that was lost has come again.")
    ] = False,
    yes: Yes = False,
    note: NoteOption = "",
) -> int:
    """List what was under way in the copy, and what providers are to be asked to send again.

    With --over, effects of jobs that begin from now on are made without a look-up.
    """
    sources = dict(_sources(terminal, app))
    async with terminal.desk() as desk:
        if over:
            terminal.ask(
                "Everything that providers were asked for has come again, and new jobs may make "
                "their effects without a look-up?",
                yes,
            )
            mark = await desk.end_restore(terminal.person, note)
            terminal.show({"mark": mark}, lambda: f"over since {at(mark.over_at)}: {copied(mark)}")
            return OK
        seen = await desk.after_restore()
    asked = {each: sources.get(each, "") for each in sorted({*sources, *seen.endpoints})}
    deliveries = [
        Lost(endpoint=each, from_at=seen.mark.written_at, to_at=seen.mark.at, how=asked[each])
        for each in asked
    ]
    if terminal.json:
        told = {name: getattr(seen, name) for name in seen.__struct_fields__}
        terminal.show(told | {"deliveries": deliveries})
    else:
        _report(terminal, seen, deliveries)
    return PROBLEM if seen.held else OK


def copied(mark: Mark) -> str:
    """What a person is told of a mark."""
    written = f"its last write was at {at(mark.written_at)}" if mark.written_at else "it is empty"
    return f"a copy put in place at {at(mark.at)}; {written}, {span(mark.lost / 1000)} before"


def _what_follows(mark: Mark) -> list[str]:
    return [
        f"running when it was taken: {counted(len(mark.running), 'job')}",
        "what follows:",
        "  relevo doctor",
        "  start every process: effects that the copy does not know are looked up, or held",
        "  relevo database after-restore: what was under way, and what providers are asked for",
        "  relevo database after-restore --over: when all of that has come again",
    ]


def _sources(terminal: Terminal, app: list[str] | None) -> Iterator[tuple[str, str]]:
    """The endpoints of the apps, and how their providers are asked, where that is known."""
    for each in terminal.apps(app):
        for route in each.webhooks:
            again = route.source.again if isinstance(route.source, Source) else ""
            yield f"{each.name}:{route.path}", again


def _report(terminal: Terminal, seen: AfterRestore, deliveries: list[Lost]) -> None:
    """Print the lists, each under a line of its own."""
    mark, console = seen.mark, terminal.console
    over = f"; over since {at(mark.over_at)}" if mark.over_at else ""
    console.print(f"{copied(mark)}{over}")
    if mark.running:
        rows = [(job.id, job.queue, job.kind, str(job.state)) for job in seen.running]
        console.print("\nrunning when it was taken:")
        console.print(table(("job", "queue", "command", "now"), rows))
    if seen.effects:
        console.print("\neffects that may have happened (confirm or deny those of held jobs):")
        console.print(effects_table(seen.effects))
    held = f"{counted(seen.held, 'job')} held: `relevo effects ls --state unknown`"
    console.print(f"\n{held if seen.held else 'no job is held'}")
    if deliveries:
        times = f"from {at(mark.written_at)} to {at(mark.at)}"
        console.print(f"\nask the providers for what they sent {times}:")
        rows = [(each.endpoint, each.how or _UNKNOWN) for each in deliveries]
        console.print(table(("endpoint", "how"), rows))
