"""Ids: UUIDv7 as 32 hex digits, rising within a process."""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from collections.abc import Iterator
from itertools import count
from typing import TypeAlias
from uuid import UUID

KeyPart: TypeAlias = str | int | UUID
"""What a key may be made of: text, a whole number or a UUID, each of which reads as one text."""

_HEX = re.compile(r"[0-9a-f]{32}", re.ASCII)
_VERSION_AND_VARIANT = 0x7 << 76 | 0b10 << 62
_LOW = (1 << 62) - 1

_lock = threading.Lock()
# When the last millisecond with an id is over, in ns, how its ids begin, and how they may end.
_latest: tuple[int, str, Iterator[int]] = (0, "", count())


def _reseed() -> None:
    # A forked child must not continue its parent's sequence.
    global _latest, _lock
    _lock = threading.Lock()
    _latest = (0, "", count())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reseed)


def new_id() -> str:
    """A fresh id; later ids of this process sort after it, also when the clock steps back."""
    over, head, tails = _latest
    if (now := time.time_ns()) >= over:
        over, head, tails = _begin(now)
    return head + "%012x" % next(tails)  # noqa: UP031 - faster than the f-string


def _begin(now: int) -> tuple[int, str, Iterator[int]]:
    global _latest
    with _lock:
        if now >= _latest[0]:
            ms, chance = now // 1_000_000, int.from_bytes(os.urandom(10))
            head = f"{ms:012x}7{chance & 0xFFF:03x}{0b10 << 14 | chance >> 66:04x}"
            tails = count(chance >> 19 & (1 << 47) - 1)  # 47 bits: counting up never fills the 48
            _latest = ((ms + 1) * 1_000_000, head, tails)
        return _latest


def derived_id(ms: int, text: str) -> str:
    """An id of the given moment that is the same whenever the same text asks for it."""
    tail = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=10).digest()) >> 6
    return f"{ms << 80 | (tail >> 62) << 64 | _VERSION_AND_VARIANT | tail & _LOW:032x}"


def replay_id(first: int) -> str:
    """A fresh id for a delivery that is let in again; it also holds the moment of the first one."""
    now = time.time_ns() // 1_000_000
    chance = int.from_bytes(os.urandom(4))
    low = (first & (1 << 48) - 1) << 14 | chance & 0x3FFF
    return f"{now << 80 | (chance >> 14 & 0xFFF) << 64 | _VERSION_AND_VARIANT | low:032x}"


def first_moment_of(replay: str) -> int:
    """The moment that a replay_id() holds."""
    return (int(replay[16:], 16) & _LOW) >> 14


def moment_of(id: str) -> int:
    """The millisecond in which an id was made."""
    return int(id[:12], 16)


def lasting(id: str) -> str:
    """An id without its moment; any other text as it is.

    A delivery that was lost with a restore and is sent again comes at another moment: what is made
    of this part is what it was.
    """
    return id[12:] if _HEX.fullmatch(id) else id


def parse_id(text: str) -> str | None:
    """The id that a person typed, with or without dashes and capitals; None if it is none."""
    plain = text.replace("-", "").lower() if len(text) <= 64 else ""
    return plain if _HEX.fullmatch(plain) else None
