"""How long runs and effects take in one worker process: counted here, told with its heartbeat.

Every run that takes long is counted. Of quick ones, where counting would cost as much as the run,
one in `SAMPLE` is, and stands for all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from itertools import count
from typing import TypeAlias

from msgspec import Struct

WINDOW = 60.0
"""Seconds of one window; what is told covers the current one and the one before it."""

QUICK = 0.005
"""Seconds below which a run is counted by a sample."""

SAMPLE = 61  # a prime: commands that take turns are all met

MOST = 100
"""Names told apart of runs, and of effects; the others are counted together."""

OTHERS = "(others)"

_STEPS = 4  # buckets for each doubling, so that a quantile is within 10 % of what was measured
_LAST = 100  # more than nine hours


class Timing(Struct, frozen=True, kw_only=True):
    """How long one command's runs, or the calls of one effect, took in one process lately."""

    queue: str
    name: str  # of the command, or of the effect up to its first colon
    is_effect: bool = False
    buckets: dict[int, int] = {}  # see quantile()
    total: int = 0  # milliseconds of all of them
    running: int = 0  # under way at this moment
    longest: int = 0  # milliseconds since the first of those began


def quantile(buckets: dict[int, int], share: float) -> float:
    """The milliseconds within which such a share of the runs ended; 0 if there are none."""
    wanted = share * sum(buckets.values())
    for bucket in sorted(buckets):
        wanted -= buckets[bucket]
        if wanted <= 1e-9:
            return 2 ** ((bucket - 0.5) / _STEPS) if bucket else 0.5
    return 0.0


def typical(timing: Timing) -> float:
    """The milliseconds that half of the runs stay below; with none ended lately, those since the
    first of those under way began."""
    return quantile(timing.buckets, 0.5) or float(timing.longest)


def as_text(ms: float) -> str:
    """A duration for people: 450 ms, 2.3 s, 14 min."""
    if ms < 1:
        return "< 1 ms"
    if ms < 1_000:
        return f"{ms:.0f} ms"
    return f"{ms / 1_000:.1f} s" if ms < 100_000 else f"{ms / 60_000:.0f} min"


def merged(many: Iterable[dict[int, int]]) -> dict[int, int]:
    """The buckets of several processes as those of one."""
    found: dict[int, int] = {}
    for buckets in many:
        for bucket, times in buckets.items():
            found[bucket] = found.get(bucket, 0) + times
    return found


def bucket_of(seconds: float) -> int:
    """The bucket that counts a run: 0 below a millisecond, then four for each doubling."""
    ms = seconds * 1_000
    return 0 if ms < 1 else min(_LAST, int(math.log2(ms) * _STEPS) + 1)


def _short(effect: str) -> str:
    """The name of an effect up to its first colon: what follows is mostly another each time."""
    return effect.partition(":")[0].partition("@")[0]


class _Counted(Struct, gc=False):
    """What was counted under one name since a moment."""

    buckets: list[int]
    seconds: float = 0.0


Place: TypeAlias = tuple[str, str, bool]
"""A queue, the name of a command or an effect, and whether it is an effect."""


class _Window(dict[Place, _Counted]):
    """What was counted since a moment."""

    def __init__(self) -> None:
        super().__init__()
        self.names = [0, 0]  # of runs, of effects


class Durations:
    """The durations of one process. Runs and effects are added in its event loop; the thread that
    shows that the worker is alive tells them."""

    def __init__(self) -> None:
        self._window = _Window()
        self._before = self._window
        self._since = time.monotonic()
        self._calls: dict[int, tuple[str, str, float]] = {}  # effects that are being made
        self._numbers = count(1)

    def add(self, place: Place, seconds: float, *, times: int = 1) -> None:
        """Count runs of a command, or calls of an effect, that took so long each."""
        counted = self._window.get(place)
        if counted is None:
            counted = self._new(place)
        counted.buckets[bucket_of(seconds)] += times
        counted.seconds += seconds * times

    def _new(self, place: Place) -> _Counted:
        window, (queue, _, is_effect) = self._window, place
        if window.names[is_effect] >= MOST:
            place = (queue, OTHERS, is_effect)
        window.names[is_effect] += place not in window
        return window.setdefault(place, _Counted([0] * (_LAST + 1)))

    def begin(self, queue: str, effect: str) -> int:
        """Note that the call of an effect begins; end() takes the number."""
        number = next(self._numbers)
        self._calls[number] = queue, effect, time.monotonic()
        return number

    def end(self, number: int) -> None:
        """Count a call that has ended."""
        queue, effect, began = self._calls.pop(number)
        self.add((queue, _short(effect), True), time.monotonic() - began)

    def tell(self, running: Iterable[tuple[str, str, float]]) -> list[Timing]:
        """What was counted lately, and what is `running`: queue, command and seconds of each run
        that is under way. Those that took most come first."""
        now = time.monotonic()
        if now - self._since >= WINDOW:
            is_old = now - self._since >= 2 * WINDOW
            self._before = _Window() if is_old else self._window
            self._window, self._since = _Window(), now
        open_: dict[Place, list[float]] = {}
        for queue, name, seconds in running:
            open_.setdefault((queue, name, False), []).append(seconds)
        for queue, name, began in list(self._calls.values()):
            open_.setdefault((queue, _short(name), True), []).append(now - began)
        windows = (self._window,) if self._before is self._window else (self._before, self._window)
        places = dict.fromkeys([place for each in windows for place in list(each)])
        told = [
            Timing(
                queue=place[0],
                name=place[1],
                is_effect=place[2],
                buckets=merged(_filled(each.get(place)) for each in windows),
                total=round(1_000 * sum(_seconds(each.get(place)) for each in windows)),
                running=len(open_.get(place, ())),
                longest=round(1_000 * max(open_.get(place, ()), default=0)),
            )
            for place in {**places, **dict.fromkeys(open_)}
        ]
        told.sort(key=lambda each: (-each.running * each.longest - each.total, each.name))
        return told[:MOST]


def _filled(counted: _Counted | None) -> dict[int, int]:
    if counted is None:
        return {}
    return {bucket: times for bucket, times in enumerate(counted.buckets) if times}


def _seconds(counted: _Counted | None) -> float:
    return 0.0 if counted is None else counted.seconds
