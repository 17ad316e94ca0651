"""relevo workers: who is alive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relevo.cli.tables import ago, short, table
from relevo.cli.terminal import Terminal, Verbs
from relevo.store import WorkerInfo

if TYPE_CHECKING:
    from rich.console import RenderableType

group = Verbs("Workers: who is alive, and who fell silent.", name="workers")


@group.verb("ls")
async def ls(terminal: Terminal) -> None:
    """List the workers of the last day."""
    async with terminal.desk() as desk:
        workers = await desk.workers()
    terminal.show(workers, lambda: workers_table(workers))


def workers_table(workers: list[WorkerInfo]) -> RenderableType:
    return table(
        ("worker", "state", "running", "of", "started", "last beat", "queues", "note"),
        (
            (
                worker.id,
                "silent" if worker.silent else "ok",
                worker.running,
                worker.concurrency,
                ago(worker.started_at),
                ago(worker.beat_at),
                short(" ".join(worker.queues), 60),
                worker.note,
            )
            for worker in workers
        ),
    )
