"""The friends of a test: a clock to move by hand, and the like."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from relevo.clock import Duration, duration


class ManualClock:
    """The machine's clock plus what a test has added; stores add the same to their own time."""

    def __init__(self) -> None:
        self.offset = timedelta()

    def now(self) -> datetime:
        return datetime.fromtimestamp(time.time(), UTC) + self.offset

    def advance(self, by: Duration) -> None:
        self.offset += duration(by)
