"""relevo migrate, relevo database: the store's own tables and files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from relevo.cli.terminal import AppOption, Terminal, Verbs
from relevo.errors import DefinitionError

group = Verbs("The store's files: backup.", name="database")


def add_to(root: Verbs) -> None:
    """Hang the verb under the program."""
    root.verb("migrate")(migrate)


async def migrate(terminal: Terminal, app: AppOption = None) -> None:
    """Bring the store's tables, and those of the apps, up to date; many may do it at once."""
    apps = terminal.apps(app)
    store = terminal.whole()
    try:
        steps = await store.migrate()
    finally:
        await store.close()
    for package in [each.migrations for each in apps if each.migrations]:
        from relevo.apps import tables  # brings Alembic along

        steps += await tables.migrate(terminal.database or terminal.url, package)
    words = "\n".join(f"done: {step}" for step in steps) or "everything is up to date"
    terminal.show({"store": store.url, "steps": steps}, lambda: words)


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
