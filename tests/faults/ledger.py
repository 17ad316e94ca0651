"""What really happened, written where relevo does not see it: one line of a file per fact.

A line is appended in one write, so it is there whole or not at all however its writer dies. Times
are the machine's monotonic clock, which every process shares.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that happened: what, to which number, when and in which process."""

    what: str
    number: int
    at: float
    pid: int
    word: str


class Ledger:
    """A file that any number of processes append to."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.verdict: tuple[int, int] | None = None  # lost and doubled, once they were counted
        self._handle = -1

    def write(self, what: str, number: int, word: str = "-") -> None:
        if self._handle < 0:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._handle = os.open(self.path, flags, 0o600)
        line = f"{what} {number} {time.monotonic():.4f} {os.getpid()} {word}\n"
        os.write(self._handle, line.encode())

    def facts(self, *whats: str) -> list[Fact]:
        """Everything of these kinds, in the order it happened."""
        if not self.path.exists():
            return []
        rows = (line.split(" ") for line in self.path.read_text().splitlines())
        return [
            Fact(what, int(number), float(at), int(pid), word)
            for what, number, at, pid, word in rows
            if not whats or what in whats
        ]

    def counts(self, what: str) -> Counter[int]:
        """How often each number had it happen."""
        return Counter(fact.number for fact in self.facts(what))

    def keys(self, what: str) -> Counter[int]:
        """The same, but what came again with the same word counts once."""
        return Counter(number for number, _ in {(f.number, f.word) for f in self.facts(what)})

    def has(self, word: str) -> bool:
        """Whether a line ends in this word: a provider's look-up by idempotency key."""
        return self.path.exists() and f" {word}\n".encode() in self.path.read_bytes()

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
