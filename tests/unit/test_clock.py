"""Durations as people write them, and moments as stores keep them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from relevo.clock import LONGEST, Clock, SystemClock, duration, milliseconds, moment, stamp
from relevo.errors import DefinitionError
from relevo.testing import ManualClock


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0s", 0),
        ("500ms", 500),
        ("15s", 15_000),
        ("1.5s", 1_500),
        ("2m", 120_000),
        ("1h30m", 5_400_000),
        ("1h30m15s500ms", 5_415_500),
        ("90m", 5_400_000),
        ("7d", 604_800_000),
        ("36500d", 3_153_600_000_000),
        ("0.4ms", 0),
        ("0.6ms", 1),
        ("1m1ms", 60_001),
        ("1d1d", 172_800_000),
    ],
)
def test_a_duration_is_read_as_people_write_it(text: str, ms: int) -> None:
    assert milliseconds(text) == ms
    assert abs(duration(text) - timedelta(milliseconds=ms)) < timedelta(milliseconds=1)


def test_a_timedelta_is_a_duration_already() -> None:
    assert duration(timedelta(seconds=15)) == timedelta(seconds=15)
    assert milliseconds(timedelta(microseconds=1_500)) == 2
    assert duration(LONGEST) == LONGEST


def test_a_number_is_a_duration_in_seconds() -> None:
    assert duration(15) == timedelta(seconds=15)
    assert duration(1.5) == timedelta(milliseconds=1_500)
    assert milliseconds(0) == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "15",
        "s",
        "15 s",
        "15s ",
        "15s\n",
        "\n15s",
        "-15s",
        "+15s",
        "15S",
        "15sec",
        "15x",
        "1e3s",
        ".5s",
        "5.s",
        "1,5s",
        "0x1s",
        "١٥s",
        "NaNs",
        "infs",
        "1.5",
        "1s;2m",
        "1000000000000s",
        "1.0000001s",
        "ms",
        "15us",
        "1w",
        "1y",
        "15s" * 1000 + "x",
        "1" * 100000,
    ],
    ids=lambda text: text[:12],
)
def test_b34_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(
        DefinitionError, match=r"is not a duration: write one like '500ms'"
    ) as caught:
        duration(text)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("value", [None, float("nan"), True, b"15s", ["15s"], object()])
def test_b34_what_is_not_even_text_is_refused_the_same_way(value: Any) -> None:
    with pytest.raises(DefinitionError, match="is not a duration"):
        duration(value)


@pytest.mark.parametrize(
    "value",
    [
        "36501d",
        "36500d1ms",
        "999999999999d",
        "999999999999h" * 50,
        -1,
        10**400,
        float("inf"),
        float("-inf"),
        timedelta(seconds=-1),
        timedelta.min,
        timedelta.max,
        LONGEST + timedelta(microseconds=1),
    ],
    ids=str,
)
def test_b34_a_duration_lies_between_nothing_and_a_hundred_years(
    value: str | float | timedelta,
) -> None:
    with pytest.raises(DefinitionError, match="between 0 and 100 years"):
        duration(value)


@pytest.mark.parametrize("ms", [0, 1, 999, 1_767_312_000_123, 253_402_300_799_999, -1])
def test_a_stamp_and_its_moment_are_the_same_thing(ms: int) -> None:
    assert stamp(moment(ms)) == ms
    assert moment(ms).tzinfo is UTC


def test_a_stamp_is_the_same_from_every_time_zone() -> None:
    utc = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert stamp(utc.astimezone(timezone(timedelta(hours=-6)))) == stamp(utc) == 1_767_323_045_000


def test_a_moment_without_time_zone_is_refused() -> None:
    with pytest.raises(DefinitionError, match="needs a time zone"):
        stamp(datetime(2026, 1, 2))


def test_the_systems_clock_tells_utc_and_is_never_moved() -> None:
    clock: Clock = SystemClock()
    assert clock.offset == timedelta()
    assert clock.now().tzinfo is UTC
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=5)


@pytest.mark.parametrize("hour", [0, 11, 23])
def test_a_manual_clock_goes_on_to_an_hour_and_never_back(hour: int) -> None:
    clock = ManualClock()
    for _ in range(2):
        before = clock.now()
        clock.advance_to(hour, 30)
        assert timedelta(0) < clock.now() - before <= timedelta(days=1, seconds=5)
        assert (clock.now().hour, clock.now().minute) == (hour, 30)
