"""relevo work: serve queues until told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import AsyncExitStack
from itertools import repeat
from typing import Annotated

import typer

from relevo import supervisor
from relevo.cli.tables import counted
from relevo.cli.terminal import OK, AppOption, LogFormatOption, Terminal, Verbs, say
from relevo.engine import Relevo
from relevo.errors import MisuseError, SettingsError, StoreUnavailable
from relevo.job import LIVE, State
from relevo.message import EVENTS
from relevo.settings import slots_of
from relevo.store import Filter, QueueMode
from relevo.stores.sqlite.writer import stop_process

LOOK_EVERY = 0.2
SOON = 15_000
"""Milliseconds: what is due by then is worth staying for, such as a retry."""


def add_to(root: Verbs) -> None:
    """Hang the verb under the program."""
    root.verb("work")(work)


async def work(
    terminal: Terminal,
    app: AppOption = None,
    queue: Annotated[
        list[str] | None,
        typer.Option("--queue", metavar="QUEUE", help="Serve only this one. Repeatable."),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", min=1, max=10_000, help="Jobs at once in this process."),
    ] = None,
    slots: Annotated[
        list[str] | None,
        typer.Option(
            "--slots",
            metavar="QUEUE=N",
            help="Jobs of this queue at once, at most; else four fifths where it serves several. "
            "Repeatable.",
        ),
    ] = None,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="Stop when nothing is left to do now.")
    ] = False,
    log_format: LogFormatOption = None,
) -> int:
    """Serve the queues of the apps until told to stop.

    On a terminal each job is told in a line, elsewhere what went wrong, in JSON.
    The first SIGTERM or SIGINT stops politely: what runs may end, the rest goes back. The second
    stops at once.
    """
    is_read = terminal.start_logging(log_format)
    settings = terminal.settings
    apps = terminal.apps(app)
    if not apps:
        raise SettingsError(
            "no app to work for: name one with --app module:attribute or RELEVO_APPS"
        )
    engine = terminal.engine(apps, keep_dead=settings.keep_dead)
    terminal.remember(engine)
    if settings.tracing == "on":
        engine.telemetry.trace()
    if is_read:
        engine.telemetry.narrate()
    try:
        queues = [want.queue for want in engine.wants(queue)]
    except MisuseError as error:
        raise SettingsError(str(error)) from error
    if not queues:
        raise SettingsError("the apps have no worker and no listener, so there is nothing to serve")
    many = concurrency or settings.concurrency
    given = dict(settings.slots) | _slots(slots or [])
    stop = asyncio.Event()
    stop_on_signals(stop)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(engine)
        names = ", ".join(queues[:5]) + (f" and {len(queues) - 5} more" if len(queues) > 5 else "")
        said = f"serving {names} on {engine.store.url}, {counted(many, 'job')} at once"
        say(said)
        supervised(stack, said, beats=False)
        watch = asyncio.create_task(_until_empty(engine, queues, stop)) if until_empty else None
        try:
            await engine.work(
                queues=queues,
                concurrency=many,
                slots=given,
                lease=settings.lease,
                grace=settings.grace,
                budget=settings.budget,
                stop=stop,
                on_blocked="restart",
            )
        finally:
            if watch is not None:
                watch.cancel()
        left = await _left(engine, queues) if until_empty else None
        unserved = await _unserved(engine) if until_empty else None
    shown = {"queues": queues, "left": left, "unserved": unserved}
    terminal.show(shown, None if left is None else lambda: _words(left, unserved or {}))
    return OK


def _slots(given: list[str]) -> dict[str, int]:
    try:
        return dict(slots_of(each) for each in given)
    except ValueError as error:
        raise SettingsError(f"--slots {error}") from error


def stop_on_signals(stop: asyncio.Event) -> None:
    """The first signal stops politely, the second at once; Ctrl-Z pauses."""
    pause_on_signal()
    loop = asyncio.get_running_loop()

    def stopping(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)
        say("stopping politely; once more to stop at once")
        supervisor.notify("STOPPING=1")
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping, int(number))


def supervised(stack: AsyncExitStack, said: str, *, beats: bool) -> None:
    """Tell the supervisor, if there is one, that we serve, and from then on that we live.

    A worker's thread that keeps the leases beats for it; `beats` has the event loop do so.
    """
    supervisor.notify(f"READY=1\nSTATUS={said}")

    async def beat() -> None:
        watchdog = supervisor.Watchdog()
        while beats and watchdog.every is not None:
            watchdog.beat()
            await asyncio.sleep(watchdog.every)

    task = asyncio.create_task(beat(), name="relevo-supervised")
    stack.callback(task.cancel)


def pause_on_signal() -> None:
    """Let Ctrl-Z stop the process when its transactions on a SQLite file have ended.

    In a thread of its own: the event loop may be blocked, or may be what ends the transaction.
    """
    pausing = threading.Lock()

    def pause() -> None:
        with pausing:
            if not stop_process():
                say("a transaction was open for too long: others could not write meanwhile")

    def asked(number: int, frame: object) -> None:
        if not pausing.locked():
            threading.Thread(target=pause, name="relevo-pause", daemon=True).start()

    signal.signal(signal.SIGTSTP, asked)


async def _until_empty(engine: Relevo, queues: list[str], stop: asyncio.Event) -> None:
    # Twice in a row: a store may count its queues one after the other while jobs move on.
    idle = 0
    while idle < 2:
        await asyncio.sleep(LOOK_EVERY)
        try:
            idle = 0 if await _is_busy(engine, queues) else idle + 1
        except StoreUnavailable as error:
            engine.telemetry.trouble("cannot see whether the queues are empty", error)
    stop.set()


async def _is_busy(engine: Relevo, queues: list[str]) -> bool:
    endless = engine.recurring.queues
    for tally in await engine.store.tally():
        if tally.queue not in (*queues, EVENTS) or tally.mode is QueueMode.PAUSED:
            continue
        if tally.counts.get(State.READY) or tally.counts.get(State.RUNNING):
            return True
        if tally.counts.get(State.SCHEDULED) and tally.queue not in endless:
            where = Filter(queue=tally.queue, states=frozenset({State.SCHEDULED}))
            page = await engine.store.page(where, limit=200)
            soon = await engine.store.now() + SOON
            if any(job.run_at <= soon for job in page.jobs):
                return True
    return False


async def _left(engine: Relevo, queues: list[str]) -> dict[State, int]:
    """What the queues we serve have left."""
    left: dict[State, int] = {}
    for tally in await engine.store.tally():
        if tally.queue in queues:
            for state, count in tally.counts.items():
                if count and state not in (State.DONE, State.CANCELLED):
                    left[state] = left.get(state, 0) + count
    return left


async def _unserved(engine: Relevo) -> dict[str, int]:
    """The jobs that wait in queues that neither these apps nor a running worker serve."""
    served = {EVENTS, *(want.queue for want in engine.wants())}
    for worker in await engine.store.workers():
        served |= set(worker.queues if worker.is_alive else ())
    return {
        tally.queue: waiting
        for tally in await engine.store.tally()
        if tally.queue not in served and (waiting := sum(map(tally.counts.get, LIVE, repeat(0))))
    }


def _words(left: dict[State, int], unserved: dict[str, int]) -> str:
    said = [f"{count:,} {state}" for state, count in sorted(left.items())]
    words = "left: " + ", ".join(said) if said else "all done"
    if not unserved:
        return words
    waits = ", ".join(f"{counted(count, 'job')} in {queue}" for queue, count in unserved.items())
    return f"{words if said else 'done here'}; no running worker serves {waits}"
