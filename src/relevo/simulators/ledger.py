"""Ledger: every effect a provider received, so that a test can count them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec import Struct


class Entry(Struct, frozen=True):
    """One effect that happened at a provider."""

    provider: str
    operation: str
    key: str  # what our side calls it by: a reservation, an order, an idempotency key
    at: float
    detail: dict[str, Any]


class Ledger:
    """The effects of all providers, in the order they happened."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def add(self, provider: str, operation: str, key: str, at: float, **detail: Any) -> Entry:
        entry = Entry(provider, operation, key, at, detail)
        self.entries.append(entry)
        return entry

    def find(self, provider: str, operation: str | None = None) -> list[Entry]:
        return [
            entry
            for entry in self.entries
            if entry.provider == provider and operation in (None, entry.operation)
        ]

    def count(self, provider: str, operation: str | None = None, key: str | None = None) -> int:
        return sum(key in (None, entry.key) for entry in self.find(provider, operation))

    def doubled(self, provider: str, operation: str | None = None) -> dict[str, int]:
        """The keys whose effect happened more than once, and how often."""
        counts = Counter((entry.operation, entry.key) for entry in self.find(provider, operation))
        return {f"{name}:{key}": count for (name, key), count in counts.items() if count > 1}

    def clear(self) -> None:
        self.entries.clear()

    def shown(self) -> dict[str, dict[str, list[dict[str, Any]]]]:
        """By provider and operation, as `GET /ledger` answers it."""
        shown: dict[str, dict[str, list[dict[str, Any]]]] = {}
        for entry in self.entries:
            listed = shown.setdefault(entry.provider, {}).setdefault(entry.operation, [])
            listed.append({"key": entry.key, "at": entry.at, **entry.detail})
        return shown
