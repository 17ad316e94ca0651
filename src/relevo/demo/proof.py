"""Proof: what was sent to each system, what happened outside, and what is left to answer for."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class Row:
    """One system. An effect that is missing is lost unless its job waits where a person sees it."""

    delivered: int = 0
    duplicates: int = 0
    forged: int = 0
    effects: int = 0
    expected: int = 0
    lost: int = 0
    doubled: int = 0
    dead: int = 0
    held: int = 0


@dataclass(slots=True)
class Proof:
    """Everything that was counted."""

    systems: dict[str, Row] = field(default_factory=dict[str, Row])
    kills: int = 0
    breakers: dict[str, str] = field(default_factory=dict[str, str])  # those that opened; now
    reasons: dict[str, int] = field(default_factory=dict[str, int])  # of dead and held jobs
    seconds: float = 0.0
    url: str = ""  # where the systems and their dashboard are served

    @property
    def totals(self) -> Row:
        total = Row()
        for row in self.systems.values():
            for name, value in asdict(row).items():
                setattr(total, name, getattr(total, name) + value)
        return total

    @property
    def is_clean(self) -> bool:
        return self.totals.lost == self.totals.doubled == 0

    def as_json(self) -> dict[str, Any]:
        systems = {name: asdict(row) for name, row in self.systems.items()}
        return {
            **systems,
            "totals": asdict(self.totals),
            "kills": self.kills,
            "breakers": self.breakers,
            "reasons": self.reasons,
            "seconds": self.seconds,
        }
