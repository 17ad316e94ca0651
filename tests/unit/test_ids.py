"""Ids: UUIDv7 in hex, rising, unique across threads and forks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import uuid

import pytest

from relevo import ids
from relevo.ids import derived_id, moment_of, new_id, parse_id


def test_an_id_is_a_uuid_of_version_7_that_carries_the_time() -> None:
    before = time.time_ns() // 1_000_000
    fresh = uuid.UUID(new_id())
    after = time.time_ns() // 1_000_000
    assert fresh.version == 7
    assert fresh.variant == uuid.RFC_4122
    assert before <= fresh.int >> 80 <= after


def test_an_id_tells_its_moment() -> None:
    fresh = new_id()
    assert moment_of(fresh) == uuid.UUID(fresh).int >> 80
    assert moment_of(derived_id(1_800_000_000_000, "a")) == 1_800_000_000_000


def test_an_id_is_32_lower_case_hex_digits() -> None:
    assert len(new_id()) == 32
    assert set(new_id()) <= set("0123456789abcdef")


def test_ids_rise_and_never_repeat() -> None:
    many = [new_id() for _ in range(20_000)]
    assert many == sorted(set(many))
    assert all(uuid.UUID(each).version == 7 for each in many[::1_000])


def test_ids_rise_when_the_clock_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    first = new_id()
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_000)
    second, third = new_id(), new_id()
    assert first < second < third


def test_ids_rise_from_one_millisecond_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = (time.time_ns() // 1_000_000 + 5_000) * 1_000_000
    stamps = iter([ahead, ahead, ahead + 1_000_000, ahead, ahead + 2_000_000])
    monkeypatch.setattr(time, "time_ns", lambda: next(stamps))
    made = [new_id() for _ in range(5)]
    assert made == sorted(set(made))
    monkeypatch.undo()
    ids._reseed()  # back to the machine's time for whoever comes next


def test_the_highest_tail_still_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    ids._reseed()
    monkeypatch.setattr(os, "urandom", lambda size: b"\xff" * size)
    made = [new_id() for _ in range(1_000)]
    assert made == sorted(set(made))
    assert {uuid.UUID(each).version for each in made} == {7}
    assert {uuid.UUID(each).variant for each in made} == {uuid.RFC_4122}


def test_threads_never_share_an_id() -> None:
    made: list[list[str]] = [[] for _ in range(8)]

    def make(into: list[str]) -> None:
        into.extend(new_id() for _ in range(2_000))

    threads = [threading.Thread(target=make, args=(into,)) for into in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({each for into in made for each in into}) == 16_000
    assert all(into == sorted(into) for into in made)


FORK = """
import os
from relevo.ids import new_id

new_id()
read, write = os.pipe()
child = os.fork()
mine = new_id()
if child == 0:
    os.write(write, mine.encode())
    os._exit(0)
os.waitpid(child, 0)
print(mine, os.read(read, 64).decode())
"""


def test_a_child_process_does_not_continue_its_parents_ids() -> None:
    # In a process of its own: a fork of one with threads is a warning.
    run = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True)
    mine, childs = (int(each, 16) & ids._LOW for each in run.stdout.split())
    assert abs(mine - childs) > 1_000


def test_an_id_is_read_as_people_type_it() -> None:
    fresh = new_id()
    assert parse_id(fresh) == fresh
    assert parse_id(str(uuid.UUID(fresh))) == fresh
    assert parse_id(str(uuid.UUID(fresh)).upper()) == fresh


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "x",
        "0" * 31,
        "0" * 33,
        "g" * 32,
        "0" * 32 + "\n",
        " " + "0" * 32,
        "٠" * 32,
        "..",
        "*",
        "%",
        "' or 1=1--",
        "0" * 32 + "-" * 33,
        "0" * 1000000,
    ],
    ids=lambda text: text[:12],
)
def test_b27_what_is_no_id_is_none(text: str) -> None:
    assert parse_id(text) is None
