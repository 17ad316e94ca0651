"""Rates: how many jobs of a queue or a lane may begin now, and when the next one may."""

from __future__ import annotations

from typing import Protocol

import msgspec

from relevo.store import RATE_MARGIN

ENTRIES = 32  # the most a log has
SLOTS = 30  # entries of one slot of a window are merged when the log is full

_encode = msgspec.json.encode
_decode = msgspec.json.Decoder(list[tuple[int, int]]).decode


class Pace(Protocol):
    """One rate at one moment."""

    free: int

    @property
    def next_at(self) -> int:
        """The millisecond at which another job may begin, if none may now."""
        ...

    def after(self, taken: int) -> tuple[int, str]:
        """What to store once so many have begun: when the rate is unused again, and its log."""
        ...


def pace(rate: tuple[int, int], burst: int | None, tat: int, log: str, now: int) -> Pace:
    """A rate as it stands: `tat` is in microseconds, `log` as stored."""
    if burst is None:
        return _Window(rate, log, now)
    return _Bucket(rate, burst, tat, log, now)


class _Window:
    """No window of the period, nor of RATE_MARGIN more, has more jobs than the rate allows."""

    def __init__(self, rate: tuple[int, int], log: str, now: int) -> None:
        count, per = rate
        self._now = now
        self._length = per + RATE_MARGIN
        self._log = [
            (min(moment, now), number)
            for moment, number in (_decode(log) if log else ())
            if moment > now - self._length
        ]
        self.free = max(1, count) - sum([number for _, number in self._log])

    @property
    def next_at(self) -> int:
        return (self._log[0][0] if self._log else self._now) + self._length

    def after(self, taken: int) -> tuple[int, str]:
        log = [*self._log, (self._now, taken)]
        if len(log) > ENTRIES:
            # The later moment stands for both: none is forgotten too soon.
            merged: dict[int, tuple[int, int]] = {}
            for moment, number in log:
                slot = moment * SLOTS // self._length
                merged[slot] = (moment, number + merged.get(slot, (0, 0))[1])
            log = list(merged.values())
        return (self._now + self._length) * 1_000, _encode(log).decode()


class _Bucket:
    """A bucket for `burst` jobs that fills evenly; `tat` is when it would be full again, in µs."""

    def __init__(self, rate: tuple[int, int], burst: int, tat: int, log: str, now: int) -> None:
        count, per = rate
        self._gap = max(1, per * 1_000 // max(1, count))
        self._room = self._gap * max(1, burst)
        self._now = now * 1_000
        self._tat = max(tat, self._now)
        self._log = log
        self.free = (self._now + self._room - self._tat) // self._gap

    @property
    def next_at(self) -> int:
        return -((self._room - self._gap - self._tat) // 1_000)

    def after(self, taken: int) -> tuple[int, str]:
        return self._tat + taken * self._gap, self._log
