"""How long until the next attempt, or the next look at an empty queue."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import timedelta

from relevo.clock import LONGEST, Duration, duration
from relevo.errors import DefinitionError


@dataclass(frozen=True, slots=True)
class Backoff:
    """first, first × factor, first × factor² … never past cap, plus up to `jitter` of itself."""

    first: timedelta
    factor: float
    cap: timedelta
    jitter: float

    def after(self, attempt: int) -> timedelta:
        """The wait after the given attempt (1 is the first) has failed."""
        grown = self.first
        if self.factor > 1:
            # Step by step, so that attempt 1,000 meets the cap instead of an overflow.
            for _ in range(max(0, attempt - 1)):
                before, grown = grown, min(grown * self.factor, self.cap)
                if grown == before:
                    break
        return min(grown, self.cap) * (1 + random.random() * self.jitter)

    def longest(self, attempts: int) -> timedelta:
        """The longest wait between two of so many attempts, without jitter; none after the last."""
        if attempts < 2:
            return timedelta()
        return Backoff(self.first, self.factor, self.cap, 0).after(attempts - 1)


def exponential(
    first: Duration, *, factor: float = 2.0, cap: Duration = "10m", jitter: float = 0.1
) -> Backoff:
    """Waits that grow: `exponential("15s", cap="10m")` gives 15 s, 30 s, 60 s … 10 min."""
    start, most = duration(first), duration(cap)
    if not 1 <= factor <= 100:
        raise DefinitionError(f"a backoff's factor lies between 1 and 100, not {factor}")
    if not 0 <= jitter <= 1:
        raise DefinitionError(f"a backoff's jitter lies between 0 and 1, not {jitter}")
    if start > most:
        raise DefinitionError(f"a backoff cannot start at {start} with a cap of {most}")
    return Backoff(start, factor, min(most, LONGEST), jitter)


def constant(wait: Duration, *, jitter: float = 0.1) -> Backoff:
    """The same wait every time."""
    return exponential(wait, factor=1, cap=wait, jitter=jitter)
