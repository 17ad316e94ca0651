"""What a worker with nothing to do costs: CPU, memory, and questions to the store."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from bench.measure import Aim, Child, Pipe, Row, cpu_seconds, memory
from bench.work import quiet_app, working
from relevo import Relevo

if TYPE_CHECKING:
    from bench.places import Place

SECTION = "idle"
QUEUES = 20
WARM = 3.0


def _trace(counts: Counter[str]) -> None:
    """Count every statement that this process gives to SQLite."""
    connect = sqlite3.connect

    def traced(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*args, **options)
        connection.set_trace_callback(lambda sql: counts.update([sql.split(maxsplit=1)[0].lower()]))
        return connection

    sqlite3.connect = traced


async def _sit(pipe: Pipe, url: str, seconds: float) -> dict[str, Any]:
    asked: Counter[str] = Counter()
    _trace(asked)
    async with Relevo(url, apps=[quiet_app(QUEUES)]) as relevo, working(relevo):
        await asyncio.sleep(WARM)
        pipe.say("idle")
        asked.clear()
        cpu, began = cpu_seconds(), time.monotonic()
        await asyncio.sleep(seconds)
        return {
            "seconds": time.monotonic() - began,
            "cpu": cpu_seconds() - cpu,
            "memory": memory(),
            "statements": asked,
        }


def measure(place: Place, seconds: float, say: Callable[[str], None]) -> Iterator[Row]:
    """Rows of the table."""
    say(f"idle for {seconds:.0f} s")
    with place.fresh() as url, place.counting() as asked:
        child = Child(_sit, url, seconds)
        try:
            assert child.receive(60) == "idle"
            before = asked()
            sat = child.receive(seconds + 60)
            commands = asked() - before
        finally:
            child.kill()
    unit, minute = "commands/min", 60 / sat["seconds"]
    if place.name == "sqlite":
        # A look at the file's version is a read of shared memory; a commit waits for the disk.
        statements = Counter(sat["statements"])
        commands = Counter({"commit": statements["commit"]})
        yield Row(
            section=SECTION,
            name="statements of any kind",
            unit="statements/min",
            ours=[statements.total() * minute],
            note=_top(statements),
        )
        unit = "commits/min"
    yield Row(
        section=SECTION,
        name=f"idle worker with {QUEUES} queues",
        unit=unit,
        ours=[commands.total() * minute],
        aim=Aim("figure", "<=", 10),
        note=_top(commands),
    )
    yield Row(
        section=SECTION,
        name="CPU of an idle worker",
        unit="% of a core",
        ours=[sat["cpu"] / sat["seconds"] * 100],
        aim=Aim("figure", "<=", 1),
    )
    yield Row(
        section=SECTION,
        name="memory of an idle worker",
        unit="MB",
        ours=[sat["memory"]],
        aim=Aim("figure", "<=", 60),
    )


def _top(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common(6))
