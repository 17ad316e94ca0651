"""Clock, the only source of "now" outside the store, and durations as people write them."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Protocol

from relevo.errors import DefinitionError
from relevo.lengths import LONGEST as LONGEST
from relevo.lengths import Duration as Duration
from relevo.lengths import length_of


def duration(value: Duration) -> timedelta:
    """The timedelta that `value` means; DefinitionError when it means none."""
    length = length_of(value)
    if length is None:
        raise DefinitionError(
            f"{value!r:.40} is not a duration: write one like '500ms', '15s', '2m', '1h30m' or '7d'"
        )
    if not timedelta() <= length <= LONGEST:
        raise DefinitionError(f"a duration lies between 0 and 100 years, not {value!s:.40}")
    return length


def milliseconds(value: Duration) -> int:
    """The same in whole milliseconds, the unit in which stores keep time."""
    return round(duration(value) / timedelta(milliseconds=1))


def moment(ms: int) -> datetime:
    """The aware UTC moment of a store's millisecond stamp."""
    return datetime.fromtimestamp(ms / 1000, UTC)


def moment_if(ms: Any) -> datetime | None:
    """The moment of a stamp as it is stored; None where a damaged row holds something else."""
    try:
        return moment(ms)
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def stamp(at: datetime) -> int:
    """A store's millisecond stamp of an aware moment."""
    if not isinstance(at, datetime):  # pyright: ignore[reportUnnecessaryIsInstance] - people without a type checker
        raise DefinitionError(f"a moment is a datetime with a time zone, not {at!r:.40}")
    if at.tzinfo is None:
        raise DefinitionError("a moment needs a time zone: use datetime.now(UTC), or .astimezone()")
    return round(at.timestamp() * 1000)


class Clock(Protocol):
    """A wall clock. Stores keep their own time and add `offset`, which only tests move."""

    @property
    def offset(self) -> timedelta: ...

    def now(self) -> datetime: ...


class SystemClock:
    """The machine's clock."""

    offset = timedelta()

    def now(self) -> datetime:
        return datetime.fromtimestamp(time.time(), UTC)


BLOCKED = 0.2
"""A timer that comes so many seconds late was held up by a blocked event loop."""

AFTER = 1.0
"""Seconds in which an answer is read that arrived meanwhile."""


class Patience:
    """Like asyncio.timeout(), but a blocked event loop is not taken for a server that does not
    answer: the answer may be there, unread, and is given its time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._limit = asyncio.timeout(None)

    async def __aenter__(self) -> Patience:
        self._loop = asyncio.get_running_loop()
        await self._limit.__aenter__()
        self._begin(self._seconds)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        self._timer.cancel()
        return await self._limit.__aexit__(kind, error, trace)

    @property
    def left(self) -> float:
        """Seconds until it is over."""
        return self._until - self._loop.time()

    def _begin(self, seconds: float) -> None:
        self._until = self._loop.time() + seconds
        self._timer = self._loop.call_at(self._until, self._end)

    def _end(self) -> None:
        if self.left < -BLOCKED:
            self._begin(min(self._seconds, AFTER))
        else:
            self._limit.reschedule(self._loop.time())
