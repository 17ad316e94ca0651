"""What a worker with nothing to do asks of a store that bills by the command.

No queue is polled: whoever brings a job rings a bell, which costs an idle worker nothing. What is
left is upkeep, each kind with its own rest between two questions. A budget stretches those rests.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import NamedTuple

from relevo.errors import SettingsError

DAY = 86_400.0
FOR_JOBS = 2
"""Upkeep may take one part in so many of a budget; the rest is for the jobs themselves."""
JOB = 3
"""Commands of a job that comes alone: in, out, settled. In batches it is less."""
TURN = 5
"""Commands of a poller's turn that finds nothing."""
BILLED = ("redis", "cluster")

_BUDGET = re.compile(r"([1-9]\d{0,11})([kM]?)/(minute|hour|day|month)", re.ASCII)
_THOUSANDS = {"": 1, "k": 1_000, "M": 1_000_000}
_PERIODS = {
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "month": timedelta(days=30),
}


class Budget(NamedTuple):
    """So many store commands in so long a time."""

    commands: int
    per: timedelta

    @property
    def a_day(self) -> float:
        return self.commands * (timedelta(days=1) / self.per)


def budget_of(text: str) -> Budget:
    """The budget that a text such as "10k/day" means; ValueError if it means none."""
    found = _BUDGET.fullmatch(text.strip())
    if not found:
        raise ValueError("is a number of commands per minute, hour, day or month: '10k/day'")
    return Budget(int(found[1]) * _THOUSANDS[found[2]], _PERIODS[found[3]])


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds between two questions of an idle worker."""

    claim: float = 30.0  # a safety net: the bell wakes it sooner
    sweep: float = 15.0  # for leases that have lapsed; a lease long unless a budget says more
    beat: float = 30.0
    prune: float = 300.0
    learn: float = 120.0  # of breakers that others have opened, and of what people have changed
    ensure: float = 60.0  # that every poller has its job
    parked: float = 480.0  # that no job is parked without need; soon after a start, as `ensure`;
    # and that no listener was lost from its event's list

    def __mul__(self, factor: float) -> Pace:
        """The same, so many times slower, but never slower than LONGEST."""
        slower = {
            each.name: min(getattr(self, each.name) * factor, getattr(LONGEST, each.name))
            for each in fields(self)
        }
        return replace(self, **slower)


LONGEST = Pace(
    claim=300, sweep=600, beat=600, prune=21_600, learn=1_800, ensure=3_600, parked=3_600
)


def idle_cost(pace: Pace, *, slots: int = 1, has_recurring: bool = True) -> float:
    """Commands a day of one worker without jobs; `slots`: a cluster asks each queue by itself."""
    everywhere = DAY / pace.claim + DAY / pace.sweep + DAY / pace.prune
    everywhere += DAY / pace.parked
    once = DAY / pace.beat + 2 * DAY / pace.learn + DAY / pace.parked
    once += DAY / pace.ensure if has_recurring else 0
    return everywhere * slots + once


def pace_within(
    budget: Budget | None,
    *,
    store: str,
    lease: timedelta,
    queues: int = 1,
    has_recurring: bool = True,
) -> Pace:
    """The quickest pace whose cost leaves half of the budget to the jobs.

    SettingsError, saying what to change, when even the slowest costs more. Stores that do not bill
    by the command keep their own pace.
    """
    usual = Pace(sweep=lease.total_seconds())
    if budget is None or store not in BILLED:
        return usual
    slots = queues if store == "cluster" else 1
    share = budget.a_day / FOR_JOBS
    least = idle_cost(LONGEST, slots=slots, has_recurring=has_recurring)
    if least > share:
        raise SettingsError(
            f"RELEVO_BUDGET allows {budget.a_day:,.0f} commands a day, of which upkeep may take "
            f"half; a worker that sleeps as long as it may still needs {least:,.0f}. Raise it to "
            f"{2 * least:,.0f}/day or more"
            + (", serve fewer queues here," if slots > 1 else "")
            + " or keep jobs in SQLite or PostgreSQL, which do not count commands."
        )
    factor = 1.0
    while idle_cost(pace := usual * factor, slots=slots, has_recurring=has_recurring) > share:
        factor *= 1.05
    return pace
