"""Ids: UUIDv7 as 32 hex digits, rising within a process."""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from collections.abc import Iterator
from itertools import count

_HEX = re.compile(r"[0-9a-f]{32}", re.ASCII)
_VERSION_AND_VARIANT = 0x7 << 76 | 0b10 << 62
_LOW = (1 << 62) - 1

_lock = threading.Lock()
# The last millisecond with an id, the first half of its ids, and the other halves still to come.
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
    last, head, tails = _latest
    if (ms := time.time_ns() // 1_000_000) > last:
        last, head, tails = _begin(ms)
    return f"{head}{next(tails):016x}"


def _begin(ms: int) -> tuple[int, str, Iterator[int]]:
    global _latest
    with _lock:
        if ms > _latest[0]:
            chance = int.from_bytes(os.urandom(10))
            tails = count(0b10 << 62 | chance >> 19)  # 61 bits: counting up never fills the 62
            _latest = (ms, f"{ms:012x}7{chance & 0xFFF:03x}", tails)
        return _latest


def derived_id(ms: int, text: str) -> str:
    """An id of the given moment that is the same whenever the same text asks for it."""
    tail = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=10).digest()) >> 6
    return f"{ms << 80 | (tail >> 62) << 64 | _VERSION_AND_VARIANT | tail & _LOW:032x}"


def moment_of(id: str) -> int:
    """The millisecond in which an id was made."""
    return int(id[:12], 16)


def parse_id(text: str) -> str | None:
    """The id that a person typed, with or without dashes and capitals; None if it is none."""
    plain = text.replace("-", "").lower() if len(text) <= 64 else ""
    return plain if _HEX.fullmatch(plain) else None
