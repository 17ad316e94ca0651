"""relevo workers: who is alive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from relevo.cli.tables import ago, short, table
from relevo.cli.terminal import NoteOption, Terminal, Verbs
from relevo.desk import slowest_of
from relevo.store import WorkerInfo

if TYPE_CHECKING:
    from rich.console import RenderableType

group = Verbs("Workers: who is alive, blocked, silent or gone.", name="workers")


@group.verb("ls")
async def ls(terminal: Terminal) -> None:
    """List the workers of the last day."""
    async with terminal.desk() as desk:
        workers = await desk.workers()
    terminal.show(workers, lambda: workers_table(workers))


@group.verb("forget")
async def forget(
    terminal: Terminal,
    id: Annotated[str, typer.Argument(metavar="ID", help="As `workers ls` names it.")],
    note: NoteOption = "",
) -> None:
    """Take a worker that is silent or gone off the list; refused for one that is alive."""
    async with terminal.desk() as desk:
        await desk.forget_worker(id, terminal.person, note)
    terminal.show({"id": id, "forgotten": True}, lambda: f"{id} is forgotten")


def workers_table(workers: list[WorkerInfo]) -> RenderableType:
    return table(
        (
            "worker",
            "state",
            "running",
            "of",
            "overdue",
            "threads",
            "children",
            "memory",
            "version",
            "CPU",
            "lag",
            "slowest",
            "started",
            "last beat",
            "queues",
            "note",
        ),
        (
            (
                worker.id,
                str(worker.state),
                worker.running,
                worker.concurrency,
                len(worker.overdue) or "",
                worker.threads or "",
                worker.children or "",
                f"{worker.memory >> 20} MB" if worker.memory else "",
                worker.version,
                f"{worker.cpu:.0%}" if worker.is_alive else "",
                f"{worker.lag} ms" if worker.is_alive else "",
                slowest_of(worker),
                ago(worker.started_at),
                ago(worker.beat_at),
                short(" ".join(worker.queues), 60),
                worker.note,
            )
            for worker in workers
        ),
    )
