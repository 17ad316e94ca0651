"""What a person may do to jobs; the same for CLI, HTTP and dashboard."""

from __future__ import annotations

from relevo.store import Store


class Desk:
    """One store, seen by a person."""

    def __init__(self, store: Store) -> None:
        self.store = store
