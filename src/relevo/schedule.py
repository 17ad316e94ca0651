"""Commands on a timetable.

    @app.schedule("0 6 * * *", tz="America/Mexico_City")
    def daily_report(at: datetime) -> Command:
        return SendReport(day=at.date().isoformat())

A schedule is one job that never ends: it snoozes until its next tick. A tick's command has an id
made of the schedule's name and the tick, so it is stored once however often the tick is tried.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Literal, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from relevo.backoff import constant
from relevo.clock import moment, stamp
from relevo.errors import DefinitionError
from relevo.job import slug
from relevo.message import Command
from relevo.outcome import ordinary

Missed: TypeAlias = Literal["last", "all", "skip"]
"""What to do about ticks that passed while nobody ran: only the last, all (100 at most), none."""

ALL_MAX = 100
LATE = 60_000  # a tick older than this, in milliseconds, was missed
ATTEMPTS = 1_000
DAY, SECOND = timedelta(days=1), timedelta(seconds=1)


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """A schedule as it is registered; made by App.schedule or schedule()."""

    name: str
    cron: str
    tz: ZoneInfo
    function: Callable[..., Any]
    missed: Missed
    takes_tick: bool
    command: type[Command] = field(repr=False)

    def next_after(self, ms: int) -> int | None:
        """The first tick after a moment; None when there is none (30 February).

        Where a clock change skips the time of a tick it runs once right after; where the time comes
        twice it runs at the first. With a star for the minute or the hour it runs whenever the
        zone's clock shows such a time.
        """
        return next_tick(self.cron, self.tz, ms)

    def due(self, last: int, now: int) -> list[int]:
        """The ticks to run for, given the last one that was, by the policy for missed ones."""
        ticks: list[int] = []
        tick = self.next_after(last)
        while tick is not None and tick <= now:
            ticks.append(tick)
            if len(ticks) > ALL_MAX:
                del ticks[0]
            tick = self.next_after(tick)
        match self.missed:
            case "all":
                return ticks[-ALL_MAX:]
            case "last":
                return ticks[-1:]
            case "skip":
                return [tick for tick in ticks[-1:] if now - tick <= LATE]

    def orders(self, tick: int) -> list[Command]:
        """The commands of one tick."""
        at = moment(tick).astimezone(self.tz)
        try:
            made = self.function(at) if self.takes_tick else self.function()
            if made is None:
                return []
            orders: list[Any] = [made] if isinstance(made, Command) else list(made)
        except BaseException as error:
            raise ordinary(error) from error
        for order in orders:
            if not isinstance(order, Command):
                raise DefinitionError(
                    f"the schedule {self.name} gave a {type(order).__name__}; give a Command, "
                    "a list of them, or None"
                )
        return orders


def next_tick(cron: str, zone: tzinfo, ms: int) -> int | None:
    """The first tick of a timetable after a moment; None when there is none."""
    fields = cron.split()
    if len(fields) != 5 or fields[0].startswith("*") or fields[1].startswith("*"):
        return _next_shown(cron, zone, moment(ms))
    for tick in CronSim(cron, moment(ms).astimezone(zone)):
        # In an hour that comes twice it names ticks of the first one, long over in the second.
        if (at := stamp(tick)) > ms:
            return at
    return None


def _next_shown(cron: str, zone: tzinfo, after: datetime) -> int | None:
    """The next moment at which the zone's clock shows a time of the timetable.

    CronSim steps by whole hours, and passes over times where a clock changes by half of one. So it
    is asked without a zone, and again from each change that comes before its answer.
    """
    offset = _offset(zone, after)
    wall = (after + offset).replace(tzinfo=None)
    while (tick := next(CronSim(cron, wall), None)) is not None:
        at = tick.replace(tzinfo=UTC) - offset
        change = _change(zone, after, at)
        if change is None:
            return stamp(at)
        after, offset = change, _offset(zone, change)
        wall = (after + offset - SECOND).replace(tzinfo=None)  # a tick may be at the change itself
    return None


def _change(zone: tzinfo, since: datetime, until: datetime) -> datetime | None:
    """The first second after a moment, up to another one, at which the zone's offset is another."""
    offset = _offset(zone, since)
    while since < until:
        end = min(since + DAY, until)
        if _offset(zone, end) != offset:
            while end - since > SECOND:
                middle = since + (end - since) / 2
                since, end = (middle, end) if _offset(zone, middle) == offset else (since, middle)
            return end.replace(microsecond=0)
        since = end
    return None


def _offset(zone: tzinfo, at: datetime) -> timedelta:
    return at.astimezone(zone).utcoffset() or timedelta()


def schedule(
    cron: str,
    function: Callable[..., Command | Iterable[Command] | None],
    *,
    app: str,
    tz: str = "UTC",
    missed: Missed = "last",
    name: str | None = None,
) -> Schedule:
    """Check and make a schedule."""
    try:
        zone = ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise DefinitionError(
            f"{tz!r:.60} is not a time zone: use a name such as 'America/Mexico_City'"
        ) from error
    try:
        CronSim(cron, datetime.now(zone))
    except CronSimError as error:
        raise DefinitionError(
            f"{cron!r:.60} is not a timetable ({error}): write minute, hour, day of month, month, "
            "day of week, such as '0 6 * * *'"
        ) from error
    if missed not in ("last", "all", "skip"):
        raise DefinitionError(f"missed is 'last', 'all' or 'skip', not {missed!r:.40}")
    if inspect.iscoroutinefunction(function):
        raise DefinitionError(
            f"{function.__qualname__}: a schedule's function is a plain def that gives the command "
            "to enqueue; the work itself belongs to its worker"
        )

    queue = f"{app}:schedules:{slug(function.__name__)}"  # where people look for schedules

    class Tick(
        Command,
        queue=queue,
        name=f"tick:{function.__name__}",
        attempts=ATTEMPTS,
        backoff=constant("10s"),
        timeout=timedelta(minutes=1),
        key="{name}",
        unique="forever",
    ):
        name: str

    return Schedule(
        name=name or f"{app}.{function.__name__}",
        cron=cron,
        tz=zone,
        function=function,
        missed=missed,
        takes_tick=bool(inspect.signature(function).parameters),
        command=Tick,
    )
