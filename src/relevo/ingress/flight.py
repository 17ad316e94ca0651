"""Flight: one call under way, from its first line until somebody has heard the reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from relevo.errors import StoreUnavailable
from relevo.ingress.reply import Reply
from relevo.intake import Door
from relevo.store import Reception
from relevo.webhook import Delivery

Client: TypeAlias = tuple[str, int] | None


class Tower(Protocol):
    """Who knows of every flight."""

    def land(self, flight: Flight) -> None: ...

    def kept(self, flight: Flight, reception: Reception) -> None: ...

    def troubled(self, flight: Flight, trouble: Exception) -> None: ...


class Flight:
    """One call under way: what it brought, until when, and who hears the reply.

    It waits for the store as a future would, so that no task has to.
    """

    __slots__ = (
        "_hear",
        "_tower",
        "answer",
        "client",
        "deadline",
        "delivery",
        "door",
        "held",
        "is_late",
        "is_over",
        "is_read",
        "task",
        "trouble",
    )

    delivery: Delivery  # once it is read

    def __init__(
        self,
        tower: Tower,
        door: Door,
        client: Client,
        hear: Callable[[Reply], None],
        deadline: float,
    ) -> None:
        self._tower = tower
        self._hear = hear
        self.door = door
        self.client = client
        self.deadline = deadline
        self.answer = door.route.answer
        self.task: asyncio.Task[Any] | None = None  # that runs it now
        self.trouble: Exception | None = None  # that the store had with it
        self.held = 0
        self.is_read = False
        self.is_late = False
        self.is_over = False

    def reply(self, reply: Reply) -> None:
        """Tell who called, the first time."""
        if not self.is_over:
            self.end()
            self._hear(reply)

    def end(self) -> None:
        """Nobody waits any longer."""
        if not self.is_over:
            self.is_over = True
            self._tower.land(self)

    # as whoever waits for a batch

    def done(self) -> bool:
        return self.is_over

    def set_result(self, receptions: Sequence[Reception]) -> None:
        self._tower.kept(self, receptions[0])

    def set_exception(self, error: Exception) -> None:
        self._tower.troubled(self, error)

    def cancel(self) -> None:
        self._tower.troubled(self, StoreUnavailable("the engine is closing"))
