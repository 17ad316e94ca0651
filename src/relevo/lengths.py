"""Lengths of time as people, programs and providers write them; read without ever raising."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TypeAlias

Duration: TypeAlias = timedelta | str | float
"""A timedelta, seconds as a number, or text such as "500ms", "15s", "2m", "1h30m", "7d"."""

LONGEST = timedelta(days=36_500)

_MOST = 2 * LONGEST / timedelta(milliseconds=1)
_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(?:\d{1,12}(?:\.\d{1,6})?(?:ms|s|m|h|d))+", re.ASCII)
_PART = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)(ms|s|m|h|d)", re.ASCII)
_SECONDS = re.compile(r"\s*(-?\d{1,18}(?:\.\d{0,9})?)\s*", re.ASCII)


def length_of(value: object) -> timedelta | None:
    """The length that a Duration says, however long or negative; None where it says none."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return None if value != value else _milliseconds(value, 1_000)
    if not isinstance(value, str) or not is_length(value):
        return None
    return _milliseconds(sum(float(n) * _UNITS[unit] for n, unit in _PART.findall(value)), 1)


def is_length(text: str) -> bool:
    """Whether a length of time with its units is written there."""
    return _DURATION.fullmatch(text) is not None


def asked_length(value: object) -> timedelta | None:
    """The length that a Duration or a Retry-After header says; None where it says none.

    The header says seconds, or the moment to wait for.
    """
    length = length_of(value)
    if length is not None or not isinstance(value, str):
        return length
    if seconds := _SECONDS.fullmatch(value):
        return _milliseconds(float(seconds[1]), 1_000)
    try:
        at = parsedate_to_datetime(value[:100])
        return at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)
    except (ValueError, TypeError, OverflowError):
        return None


def _milliseconds(count: float, times: int) -> timedelta:
    # What no timedelta could hold is too long as well, and no OverflowError.
    if count * times > _MOST:
        return timedelta.max
    return timedelta.min if count * times < -_MOST else timedelta(milliseconds=count * times)
