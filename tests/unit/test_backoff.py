"""Waits that grow, meet their cap, and never overflow."""

from __future__ import annotations

import math
import random
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relevo.backoff import Backoff, constant, exponential
from relevo.clock import LONGEST
from relevo.errors import DefinitionError


def seconds(backoff: Backoff, attempts: int) -> list[float]:
    return [backoff.after(attempt).total_seconds() for attempt in range(1, attempts + 1)]


def test_waits_double_until_the_cap() -> None:
    backoff = exponential("15s", cap="10m", jitter=0)
    assert seconds(backoff, 8) == [15, 30, 60, 120, 240, 480, 600, 600]


def test_waits_grow_by_the_factor() -> None:
    backoff = exponential("15s", factor=1.5, cap="120s", jitter=0)
    assert seconds(backoff, 7) == [15, 22.5, 33.75, 50.625, 75.9375, 113.90625, 120]


def test_a_constant_wait_stays() -> None:
    assert set(seconds(constant("30s", jitter=0), 50)) == {30}


@pytest.mark.parametrize("attempt", [1_000, 10**9, 10**100])
@pytest.mark.parametrize(
    "backoff",
    [
        exponential("1s", cap="10m", jitter=0),
        exponential("1s", factor=100, cap=LONGEST, jitter=0),
        exponential("1ms", factor=1, cap="10m", jitter=0),
        exponential("0s", cap="10m", jitter=0),
        exponential(timedelta(microseconds=1), factor=1.1, cap="10m", jitter=0),
        constant(LONGEST, jitter=0),
    ],
    ids=["usual", "steep", "flat", "nothing", "stuck", "longest"],
)
@pytest.mark.timeout(5)
def test_b34_a_late_attempt_meets_the_cap_and_no_overflow(backoff: Backoff, attempt: int) -> None:
    assert timedelta() <= backoff.after(attempt) <= backoff.cap


@pytest.mark.parametrize("attempt", [0, -1, -(10**9)])
def test_an_attempt_before_the_first_waits_like_the_first(attempt: int) -> None:
    assert exponential("15s", jitter=0).after(attempt) == timedelta(seconds=15)


def test_jitter_adds_up_to_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    backoff = exponential("10s", jitter=0.5)
    monkeypatch.setattr(random, "random", lambda: 0.0)
    assert backoff.after(1) == timedelta(seconds=10)
    monkeypatch.setattr(random, "random", lambda: math.nextafter(1.0, 0.0))
    assert backoff.after(1) == timedelta(seconds=15)


def test_jitter_spreads_jobs_that_failed_together() -> None:
    backoff = exponential("10s", jitter=0.5)
    waits = [backoff.after(1) for _ in range(200)]
    assert timedelta(seconds=10) <= min(waits) < max(waits) <= timedelta(seconds=15)
    assert len(set(waits)) > 100


@settings(deadline=None, database=None)
@given(
    first=st.timedeltas(timedelta(), timedelta(days=1)),
    more=st.timedeltas(timedelta(), timedelta(days=30_000)),
    factor=st.floats(1, 100),
    jitter=st.floats(0, 1),
    attempt=st.integers(1, 1_000),
)
def test_a_wait_never_shrinks_and_never_passes_its_bounds(
    first: timedelta, more: timedelta, factor: float, jitter: float, attempt: int
) -> None:
    calm = exponential(first, factor=factor, cap=first + more, jitter=0)
    assert first <= calm.after(attempt) <= calm.after(attempt + 1) <= first + more
    wild = exponential(first, factor=factor, cap=first + more, jitter=jitter).after(attempt)
    assert calm.after(attempt) <= wild <= calm.after(attempt) * 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"factor": 0.5}, "factor lies between 1 and 100"),
        ({"factor": 101}, "factor lies between 1 and 100"),
        ({"factor": math.nan}, "factor lies between 1 and 100"),
        ({"factor": math.inf}, "factor lies between 1 and 100"),
        ({"factor": -2}, "factor lies between 1 and 100"),
        ({"jitter": -0.1}, "jitter lies between 0 and 1"),
        ({"jitter": 1.1}, "jitter lies between 0 and 1"),
        ({"jitter": math.nan}, "jitter lies between 0 and 1"),
        ({"cap": "5s"}, "cannot start at 0:00:15 with a cap of 0:00:05"),
        ({"cap": "200000d"}, "100 years"),
        ({"cap": "soon"}, "is not a duration"),
        ({"first": "-1s"}, "is not a duration"),
        ({"first": timedelta(seconds=-1)}, "between 0 and 100 years"),
        ({"first": math.nan}, "is not a duration"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_b34_a_backoff_that_makes_no_sense_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        exponential(**{"first": "15s", **options})
