"""relevo bench: how fast jobs go in and out of a store, seen from here."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Annotated
from urllib.parse import quote

import typer

from relevo.app import App
from relevo.backoff import exponential
from relevo.cli.terminal import Terminal, Verbs
from relevo.engine import Relevo
from relevo.errors import StoreUnavailable
from relevo.ids import new_id
from relevo.message import Command
from relevo.stores import open_store
from relevo.stores.sqlite import file

CALLERS = 100
PINGS = 100
TEXT = "A guest asks whether breakfast is served before seven on Sundays. " * 3


class Nothing(
    Command,
    queue="relevo:bench:nothing",
    attempts=3,
    backoff=exponential("1s", cap="10s"),
    timeout="10s",
    keep=timedelta(),
):
    """A job as most are, about 200 bytes, that does nothing and leaves nothing."""

    run: str
    text: str = TEXT


class Runs:
    """Counts the runs of one measurement; what an earlier one has left passes by."""

    def __init__(self) -> None:
        self.name = new_id()
        self._left = 0
        self._all: asyncio.Future[None] = asyncio.Future()

    def app(self) -> App:
        """The app whose one worker does nothing but count."""
        made = App("relevo")

        @made.worker
        async def nothing(order: Nothing) -> None:
            self._left -= order.run == self.name
            if self._left == 0 and not self._all.done():
                self._all.set_result(None)

        return made

    def expect(self, count: int) -> None:
        self._left = count
        self._all = asyncio.Future()

    async def wait(self) -> None:
        """Until as many have run as were expected; raises what ended the worker before that."""
        await self._all

    def end(self, working: asyncio.Task[None]) -> None:
        """No more will come."""
        if not working.cancelled() and not self._all.done():
            self._all.set_exception(working.exception() or StoreUnavailable("the worker stopped"))


def add_to(root: Verbs) -> None:
    """Hang the verb under the program."""
    root.verb("bench")(bench)


async def bench(
    terminal: Terminal,
    jobs: Annotated[
        int, typer.Option("--jobs", min=1_000, max=1_000_000, help="How many go in and out.")
    ] = 20_000,
) -> None:
    """Measure how fast jobs go in and out, with jobs that do nothing and leave nothing.

    SQLite is measured in a file of its own beside the database; a server as it is, in the queue
    relevo:bench:nothing, beside whatever else it has to do.
    """
    runs = Runs()
    async with _opened(terminal, runs.app()) as relevo:
        terminal.warn(f"{jobs:,} jobs from {CALLERS} callers who each wait until theirs is safe")
        runs.expect(jobs)
        enqueued = await _enqueue(relevo, runs.name, jobs)
        terminal.warn("one worker with nothing else to do runs them")
        began = time.perf_counter()
        working = asyncio.create_task(relevo.work())
        working.add_done_callback(runs.end)
        await runs.wait()
        ran = time.perf_counter() - began
        terminal.warn(f"{PINGS} jobs, each for a worker that sleeps")
        pauses = sorted([await _ping(relevo, runs) for _ in range(PINGS)])
        working.cancel()
        await asyncio.wait({working})
    found = {
        "store": relevo.store.name,
        "jobs": jobs,
        "enqueued_a_second": round(jobs / enqueued),
        "run_a_second": round(jobs / ran),
        "started_after_ms_p50": round(pauses[PINGS // 2] * 1_000, 2),
        "started_after_ms_p99": round(pauses[PINGS * 99 // 100 - 1] * 1_000, 2),
    }
    terminal.show(
        found,
        lambda: (
            f"enqueued {found['enqueued_a_second']:9,} a second\n"
            f"run      {found['run_a_second']:9,} a second\n"
            f"started within {found['started_after_ms_p50']} ms, "
            f"99 of 100 within {found['started_after_ms_p99']} ms"
        ),
    )


@asynccontextmanager
async def _opened(terminal: Terminal, app: App) -> AsyncGenerator[Relevo]:
    if terminal.store().name != "sqlite":
        async with terminal.engine([app]) as relevo:
            yield relevo
        return
    # On the same disk, but not in a file that may be large and would stay larger.
    beside = file.parse(terminal.url).path.parent
    folder = beside if beside.is_dir() else None
    with tempfile.TemporaryDirectory(prefix=".relevo-bench-", dir=folder) as place:
        _, mark, options = terminal.url.partition("?")
        url = f"sqlite:///{quote(place)}/relevo.db{mark}{options}"
        await open_store(url).migrate()
        async with Relevo(url, apps=[app], seal=terminal.settings.seal_keys) as relevo:
            yield relevo


async def _enqueue(relevo: Relevo, run: str, jobs: int) -> float:
    numbers = iter(range(jobs))

    async def call() -> None:
        for _ in numbers:
            await relevo.enqueue(Nothing(run))

    began = time.perf_counter()
    await asyncio.gather(*(call() for _ in range(CALLERS)))
    return time.perf_counter() - began


async def _ping(relevo: Relevo, runs: Runs) -> float:
    await asyncio.sleep(0.01)  # the worker has gone to sleep again by now
    runs.expect(1)
    began = time.perf_counter()
    await relevo.enqueue(Nothing(runs.name))
    await runs.wait()
    return time.perf_counter() - began
