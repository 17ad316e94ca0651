"""relevo pollers, relevo schedules: list, show, pause, resume, run."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relevo.cli.tables import ago, at, data, fields, short, table
from relevo.cli.terminal import OK, PROBLEM, AppOption, NoteOption, Reveal, Terminal, Verbs
from relevo.clock import moment
from relevo.desk import Desk, RecurringView, What, view
from relevo.job import ENDED, Job, State
from relevo.schedule import Schedule

if TYPE_CHECKING:
    from rich.console import RenderableType

pollers = Verbs("Pollers: list, show, pause, resume, run.", name="pollers")
schedules = Verbs("Schedules: list, show, pause, resume, run.", name="schedules")
TICKS = 3
PATIENCE = 5.0  # seconds to wait for a worker to take a tick

Key = Annotated[str, typer.Argument(metavar="KEY", help="The poller's key, such as hotel:999.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]


# pollers


@pollers.verb("ls")
async def pollers_ls(terminal: Terminal, reveal: Reveal = False) -> None:
    """List every key that is polled: whether it is alive, its turns, what is wrong."""
    async with terminal.desk() as desk:
        seen = await desk.recurring("poller")
        seen = seen if reveal else [desk.masked_recurring(each) for each in seen]
    terminal.show(seen, lambda: pollers_table(seen))


@pollers.verb("show")
async def pollers_show(terminal: Terminal, key: Key, reveal: Reveal = False) -> None:
    """Show one key of a poller with its cursor, and the bad items it has put aside."""
    async with terminal.desk() as desk:
        seen = await desk.recurring_one("poller", key)
        seen = seen if reveal else desk.masked_recurring(seen)
        bad = await desk.bad_items(seen) if seen.bad else []
        items = [_bad(job if reveal else desk.masked(job)) for job in bad]
    extra = (
        ("heartbeat", _beat(seen)),
        ("bad items", f"{seen.bad}, in the dead letters" if seen.bad else None),
        ("", "\n".join(f"{item['job']}  {short(item['reason'], 80)}" for item in items)),
    )
    terminal.show({**view(seen), "bad_items": items}, lambda: recurring_text(seen, *extra))


@pollers.verb("pause")
async def pollers_pause(terminal: Terminal, key: Key, note: NoteOption = "") -> None:
    """Switch one key off, until it is resumed."""
    await _pause(terminal, "poller", key, note)


@pollers.verb("resume")
async def pollers_resume(terminal: Terminal, key: Key, note: NoteOption = "") -> None:
    """Switch one key on again."""
    await _resume(terminal, "poller", key, note)


@pollers.verb("run")
async def pollers_run(terminal: Terminal, key: Key, note: NoteOption = "") -> int:
    """Take the next turn now instead of when it is due."""
    return await _run(terminal, "poller", key, note)


# schedules


@schedules.verb("ls")
async def schedules_ls(terminal: Terminal, app: AppOption = None) -> None:
    """List every schedule; with its timetable and next ticks where the app is named."""
    known = _known(terminal, app)
    async with terminal.desk() as desk:
        seen = await desk.recurring("schedule")
        now = await desk.store.now()
    rows = [_timed(each, known.get(each.name), now) for each in seen]
    terminal.show(rows, lambda: schedules_table(rows, seen))


@schedules.verb("show")
async def schedules_show(terminal: Terminal, name: Name, app: AppOption = None) -> None:
    """Show one schedule."""
    known = _known(terminal, app)
    async with terminal.desk() as desk:
        seen = await desk.recurring_one("schedule", name)
        row = _timed(seen, known.get(seen.name), await desk.store.now())
    extra = (
        ("timetable", row["cron"] and f"{row['cron']} {row['tz']}"),
        ("missed ticks", row["missed"]),
        ("next ticks", "\n".join(row["ticks"])),
        ("joined", "\n".join(seen.joined) or None),
    )
    terminal.show(row, lambda: recurring_text(seen, *extra))


@schedules.verb("pause")
async def schedules_pause(terminal: Terminal, name: Name, note: NoteOption = "") -> None:
    """Let ticks pass without a command, until it is resumed."""
    await _pause(terminal, "schedule", name, note)


@schedules.verb("resume")
async def schedules_resume(terminal: Terminal, name: Name, note: NoteOption = "") -> None:
    """Switch a schedule on again; what it missed is not made up for."""
    await _resume(terminal, "schedule", name, note)


@schedules.verb("run")
async def schedules_run(terminal: Terminal, name: Name, note: NoteOption = "") -> int:
    """Give a tick now, beside those of its timetable.

    Says so if its command joined a job by its key instead of becoming one, where a worker takes
    the tick within five seconds.
    """
    async with terminal.desk() as desk:
        before = await desk.recurring_one("schedule", name)
        changed = await desk.run_recurring("schedule", name, terminal.person, note)
        seen = await _taken(desk, before) if changed else before
        jobs = [await desk.job(id) for id in seen.joined] if seen.last_at > before.last_at else []
    joined = [{"job": job.id, "state": job.state, "key": job.key} for job in jobs]
    shown = {"name": name, "mode": "due now", "changed": changed, "joined": joined}
    told = f"{name} is due now" if changed else f"{name} is running at this moment"
    terminal.show(shown, lambda: "\n".join([told, *map(_joined, jobs)]))
    return OK if changed else PROBLEM


async def _taken(desk: Desk, before: RecurringView) -> RecurringView:
    """The schedule after its tick, or as it is when no worker has taken that in time."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    workers = await desk.workers()
    is_served = any(each.is_alive and before.queue in each.queues for each in workers)
    while True:
        seen = await desk.recurring_one("schedule", before.job)
        is_late = asyncio.get_running_loop().time() >= deadline
        if seen.last_at > before.last_at or is_late or not is_served:
            return seen
        await asyncio.sleep(0.1)


def _joined(job: Job) -> str:
    which = f"job {job.id} has its key '{job.key}' and is {job.state}"
    told = f"its command made no new job: {which}"
    if job.state is State.DONE:
        return f"{told}. To do it once more on purpose: `relevo jobs run-again {job.id}`"
    return f"{told}. See `relevo jobs show {job.id}`"


# what both do


async def _pause(terminal: Terminal, what: What, name: str, note: str) -> None:
    async with terminal.desk() as desk:
        changed = await desk.pause_recurring(what, name, terminal.person, note)
    _told(terminal, name, "paused", changed, f"{name} was paused already")


async def _resume(terminal: Terminal, what: What, name: str, note: str) -> None:
    async with terminal.desk() as desk:
        changed = await desk.resume_recurring(what, name, terminal.person, note)
    _told(terminal, name, "on", changed, f"{name} was not paused")


async def _run(terminal: Terminal, what: What, name: str, note: str) -> int:
    async with terminal.desk() as desk:
        changed = await desk.run_recurring(what, name, terminal.person, note)
    _told(terminal, name, "due now", changed, f"{name} is running at this moment")
    return OK if changed else PROBLEM


def _told(terminal: Terminal, name: str, mode: str, changed: bool, otherwise: str) -> None:
    shown = {"name": name, "mode": mode, "changed": changed}
    terminal.show(shown, lambda: f"{name} is {mode}" if changed else otherwise)


def _known(terminal: Terminal, names: list[str] | None) -> dict[str, Schedule]:
    return {each.name: each for app in terminal.apps(names) for each in app.schedules}


def _timed(seen: RecurringView, schedule: Schedule | None, now: int) -> dict[str, Any]:
    row: dict[str, Any] = view(seen)
    del row["cursor"]
    if schedule is None:
        return {**row, "cron": None, "tz": None, "missed": None, "ticks": []}
    ticks: list[str] = []
    tick: int | None = now
    while len(ticks) < TICKS and (tick := schedule.next_after(tick)) is not None:
        ticks.append(moment(tick).astimezone(schedule.tz).isoformat())
    timetable = {"cron": schedule.cron, "tz": str(schedule.tz), "missed": schedule.missed}
    return {**row, **timetable, "ticks": ticks}


def _bad(job: Job) -> dict[str, Any]:
    reason = job.failure.message if job.failure else ""
    return {"job": job.id, "reason": reason, "ended_at": view(job)["ended_at"]}


def _state(seen: RecurringView) -> str:
    return "paused" if seen.is_paused else str(seen.state)


def _beat(seen: RecurringView) -> str:
    if seen.state in ENDED:
        return "ended"
    return "silent" if seen.is_silent else "alive"


def pollers_table(seen: list[RecurringView]) -> RenderableType:
    return table(
        (
            *("key", "poller", "state", "beat", "next", "last good turn", "failures", "bad"),
            "last error",
        ),
        (
            (
                each.name,
                each.function,
                _state(each),
                _beat(each),
                ago(each.next_at),
                ago(each.last_at),
                each.failures,
                each.bad or None,
                short(each.error, 80) or None,
            )
            for each in seen
        ),
    )


def schedules_table(rows: list[dict[str, Any]], seen: list[RecurringView]) -> RenderableType:
    return table(
        ("schedule", "state", "beat", "timetable", "next tick", "in", "last looked", "last error"),
        (
            (
                each.name,
                _state(each),
                _beat(each),
                row["cron"] and f"{row['cron']} {row['tz']}",
                _wall(row["ticks"][0]) if row["ticks"] else at(each.next_at),
                ago(each.next_at),
                ago(each.last_at),
                short(each.error, 80) or None,
            )
            for row, each in zip(rows, seen, strict=True)
        ),
    )


def _wall(tick: str) -> str:
    return datetime.fromisoformat(tick).strftime("%a %Y-%m-%d %H:%M %z")


def recurring_text(seen: RecurringView, *more: tuple[str, Any]) -> RenderableType:
    return fields(
        (
            ("name", seen.name),
            ("function", seen.function),
            ("state", _state(seen)),
            *more,
            ("next", at(seen.next_at)),
            ("last good turn", at(seen.last_at)),
            ("failures in a row", seen.failures),
            ("last error", seen.error),
            ("cursor", data(seen.cursor)),
            ("job", seen.job),
            ("queue", seen.queue),
        )
    )
