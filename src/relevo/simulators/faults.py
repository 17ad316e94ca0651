"""Faults: slow, failing, refusing, replies lost, twice, malformed, down."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

Kind: TypeAlias = Literal[
    "slow",  # answers after `seconds`
    "error",  # 5xx, no effect
    "refuse",  # says no in the provider's own words, no effect
    "lost",  # the effect happens, the connection dies before the answer
    "hang",  # the effect happens, the answer comes after `seconds`
    "duplicate",  # a webhook is sent twice
    "malformed",  # half an answer
    "down",  # the connection dies, no effect
    "limit",  # 429 with Retry-After
]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(slots=True)
class Fault:
    """One thing that goes wrong: at whom, how often, and how many times still."""

    provider: str
    operation: str  # "*": any
    kind: Kind
    rate: float = 1.0
    times: int | None = None  # None: until removed
    seconds: float = 1.0
    lasts: float | None = None  # seconds from the first time on; None: until removed
    chance: random.Random = field(default_factory=random.Random, repr=False)
    until: float | None = None  # when it is over, once it has begun

    def is_over(self) -> bool:
        return self.times == 0 or (self.until is not None and time.monotonic() >= self.until)

    def happen(self) -> None:
        if self.times is not None:
            self.times -= 1
        if self.lasts is not None and self.until is None:
            self.until = time.monotonic() + self.lasts


class Faults:
    """What goes wrong at the providers. The same seed gives the same story.

    Each rule throws dice of its own, so that its story is the same whoever calls in between.
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self.rules: list[Fault] = []

    def add(
        self,
        provider: str,
        operation: str,
        kind: Kind,
        *,
        rate: float = 1.0,
        times: int | None = None,
        seconds: float = 1.0,
        lasts: float | None = None,
    ) -> Fault:
        if kind not in KINDS:
            raise ValueError(f"{kind!r:.40} is not a fault: {', '.join(KINDS)}")
        chance = random.Random(f"{self._seed}/{provider}/{operation}/{kind}/{len(self.rules)}")
        fault = Fault(provider, operation, kind, rate, times, seconds, lasts, chance)
        self.rules.append(fault)
        return fault

    def clear(self, provider: str | None = None) -> None:
        self.rules = [rule for rule in self.rules if provider not in (None, rule.provider)]

    def pick(self, provider: str, operation: str) -> Fault | None:
        """The fault of this call, if it has one."""
        for rule in self.rules:
            if rule.provider != provider or rule.operation not in ("*", operation):
                continue
            if rule.is_over() or rule.chance.random() >= rule.rate:
                continue
            rule.happen()
            return rule
        return None
