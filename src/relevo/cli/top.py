"""relevo top: the queues and workers, live."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relevo.cli.tables import About, cell, span, table
from relevo.cli.terminal import Terminal, Verbs
from relevo.cli.workers import workers_table
from relevo.clock import duration
from relevo.desk import Desk, saturations
from relevo.job import LIVE, State
from relevo.store import Tally, WorkerInfo

if TYPE_CHECKING:
    from rich.console import RenderableType


def add_to(root: Verbs) -> None:
    """Hang the verb under the program."""
    root.verb("top")(top)


class Sample:
    """The queues and workers at one moment."""

    def __init__(self, tallies: list[Tally], workers: list[WorkerInfo]) -> None:
        self.at = time.monotonic()
        self.tallies = tallies
        self.workers = [worker for worker in workers if worker.is_alive]
        self.full = saturations(tallies, workers)

    def rows(self, before: Sample | None) -> list[dict[str, Any]]:
        """A row for each queue; rates are ended jobs a second since `before`."""
        past = {} if before is None else {tally.queue: tally for tally in before.tallies}
        length = 0 if before is None else self.at - before.at
        return [
            {
                "queue": tally.queue,
                "mode": str(tally.mode),
                **{str(state): tally.counts.get(state, 0) for state in State},
                "is_estimate": tally.is_estimate,
                "rate": _rate(past.get(tally.queue), tally, length),
                "oldest": tally.oldest,
                "late": tally.late,
            }
            for tally in self.tallies
        ]


def _rate(before: Tally | None, now: Tally, seconds: float) -> float | None:
    if before is None or not seconds or before.is_estimate or now.is_estimate:
        return None
    ended = [state for state in State if state not in LIVE]
    count = sum(now.counts.get(state, 0) - before.counts.get(state, 0) for state in ended)
    return round(max(count, 0) / seconds, 1)


async def top(
    terminal: Terminal,
    every: Annotated[str, typer.Option("--every", metavar="2s", help="How often to look.")] = "2s",
    once: Annotated[bool, typer.Option("--once", help="Look once and end.")] = False,
) -> None:
    """Show queues and workers, live on a terminal and once elsewhere."""
    pause = max(duration(every).total_seconds(), 0.2)
    async with terminal.desk() as desk:
        sample = await _sample(desk)
        if once or terminal.json or not terminal.console.is_terminal:
            rows = sample.rows(None)
            shown = {"queues": rows, "workers": sample.workers, "saturations": sample.full}
            terminal.show(shown, lambda: screen(rows, sample))
            return
        from rich.live import Live

        with (
            Live(screen(sample.rows(None), sample), console=terminal.console) as live,
            suppress(asyncio.CancelledError),  # Ctrl-C is how a person leaves
        ):
            while True:
                await asyncio.sleep(pause)
                before, sample = sample, await _sample(desk)
                live.update(screen(sample.rows(before), sample), refresh=True)


async def _sample(desk: Desk) -> Sample:
    return Sample(await desk.queues(), await desk.workers())


def screen(rows: list[dict[str, Any]], sample: Sample) -> RenderableType:
    from rich.console import Group

    columns = ("ready", "running", "scheduled", "parked", "held", "dead")
    queues = table(
        ("queue", "mode", "per s", *columns, "done", "oldest", "late"),
        (
            (
                row["queue"],
                row["mode"],
                row["rate"],
                *(row[name] for name in columns),
                About(row["done"]) if row["is_estimate"] else row["done"],
                *(
                    None if row[age] is None else span(row[age] / 1000)
                    for age in ("oldest", "late")
                ),
            )
            for row in rows
        ),
        is_screen=True,
    )
    return Group(*map(cell, sample.full), queues, "", workers_table(sample.workers))
