"""One clock for all processes: the file holds how far the wall clock was from the machine's own.

The first process to open the file notes `wall clock - time since boot`; everyone adds that to the
time since boot. A process whose wall clock is wrong, or is set while it runs, still agrees with the
others about when a lease lapses.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """A name for this boot of the machine; empty where there is none to be had."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return ""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


def wall_offset() -> int:
    """Wall clock minus time since boot, in milliseconds."""
    return (time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) // 1_000_000


class Anchor:
    """The common time, in milliseconds; it never goes back within this process."""

    def __init__(self, offset: int | None) -> None:
        self._offset = offset  # None: there is no clock to share but the wall clock
        self._last = 0
        self._lock = threading.Lock()

    def now(self) -> int:
        """The moment."""
        if self._offset is None:
            now = time.time_ns() // 1_000_000
        else:
            now = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000 + self._offset
        with self._lock:
            self._last = max(self._last, now)
            return self._last

    def drift(self) -> int:
        """How far this process's wall clock is ahead of the common time, in milliseconds."""
        return 0 if self._offset is None else wall_offset() - self._offset
