"""What a worker with nothing to do costs: CPU, memory, and questions to the store."""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bench.measure import Aim, Child, Pipe, Row, cpu_seconds, memory
from bench.work import quiet_app, working
from relevo import Relevo

if TYPE_CHECKING:
    from bench.places import Place

SECTION = "idle"
QUEUES = 20
WARM = 3.0


def _trace(counts: Counter[str], looks: list[float]) -> None:
    """Count every statement that this process gives to SQLite, and note when it looks for news."""
    connect = sqlite3.connect

    def asked(sql: str) -> None:
        word = sql.split(maxsplit=1)[0].lower()
        counts.update([word])
        if word == "pragma":
            looks.append(time.monotonic())

    def traced(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*args, **options)
        connection.set_trace_callback(asked)
        return connection

    sqlite3.connect = traced


def _note_claims(store: Any, looks: list[float]) -> None:
    """Note when a store that has no push is asked for jobs."""
    claim = store.claim

    def noted(*args: Any) -> Any:
        looks.append(time.monotonic())
        return claim(*args)

    store.claim = noted


async def _sit(pipe: Pipe, url: str, seconds: float) -> None:
    asked: Counter[str] = Counter()
    looks: list[float] = []
    _trace(asked, looks)
    async with Relevo(url, apps=[quiet_app(QUEUES)]) as relevo:
        looks.clear()
        if relevo.store.name != "sqlite":
            _note_claims(relevo.store, looks)
        async with working(relevo):
            await asyncio.sleep(WARM)
            pipe.say("idle")
            asked.clear()
            cpu, began = cpu_seconds(), time.monotonic()
            await asyncio.sleep(seconds)
            pipe.say(
                {
                    "seconds": time.monotonic() - began,
                    "cpu": cpu_seconds() - cpu,
                    "memory": memory(),
                    "statements": asked,
                    "looks": looks,
                }
            )
            await pipe.hear()  # what it says when it leaves is not part of being idle


def _sat(place: Place, url: str, seconds: float) -> tuple[dict[str, Any], Counter[str]]:
    """What a worker found of itself, and what its server was asked meanwhile."""
    with place.counting() as asked:
        child = Child(_sit, url, seconds)
        try:
            assert child.receive(60) == "idle"
            before = asked()
            sat = child.receive(seconds + 60)
            return sat, asked() - before
        finally:
            child.kill()


def measure(place: Place, seconds: float, say: Callable[[str], None]) -> Iterator[Row]:
    """Rows of the table."""
    say(f"idle for {seconds:.0f} s")
    with place.fresh() as url:
        sat, commands = _sat(place, url, seconds)
        # A pooler lends no session to listen on: PostgreSQL without push.
        dozed = _sat(place, f"{url}&pooler=1", seconds) if place.name == "postgres" else None
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
        yield _sleep("sleep between two looks at the file", sat["looks"])
    if dozed is not None:
        yield _sleep("sleep between two claims, behind a pooler", dozed[0]["looks"])
        yield Row(
            section=SECTION,
            name="idle worker behind a pooler",
            unit="commands/min",
            ours=[dozed[1].total() * 60 / dozed[0]["seconds"]],
            note=_top(dozed[1]),
        )
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


def _sleep(name: str, looks: list[float]) -> Row:
    """How the sleep grows while nothing comes."""
    sleeps = [round(later - sooner, 2) for sooner, later in pairwise(looks)]
    grown: list[float] = []
    for sleep in sleeps:
        if sleep > 1.2 * max(grown, default=0.0):
            grown.append(sleep)
    return Row(
        section=SECTION,
        name=name,
        unit="s",
        ours=[statistics.median(sleeps[-5:])],
        note=f"{', '.join(f'{sleep:g}' for sleep in grown)} s; {len(looks)} looks",
    )


def _top(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common(6))
