"""Ids: UUIDv7 as 32 hex digits, rising within a process."""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time

_HEX = re.compile(r"[0-9a-f]{32}", re.ASCII)
_VERSION_AND_VARIANT = 0x7 << 76 | 0b10 << 62
_LOW = (1 << 62) - 1

_lock = threading.Lock()
_last_ms = 0
_tail = 0


def _reseed() -> None:
    # A forked child must not continue its parent's sequence.
    global _last_ms, _tail, _lock
    _lock = threading.Lock()
    _last_ms = _tail = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reseed)


def new_id() -> str:
    """A fresh id; later ids of this process sort after it, also when the clock steps back."""
    global _last_ms, _tail
    with _lock:
        ms = time.time_ns() // 1_000_000
        if ms > _last_ms:
            _last_ms = ms
            _tail = int.from_bytes(os.urandom(9)) >> 1
        else:
            _tail += 1
        last, tail = _last_ms, _tail
    return f"{last << 80 | (tail >> 62) << 64 | _VERSION_AND_VARIANT | tail & _LOW:032x}"


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
