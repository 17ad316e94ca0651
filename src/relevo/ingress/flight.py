"""Flight: one call under way, from its first line until somebody has heard the reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, cast

from msgspec import Struct

from relevo.errors import StoreUnavailable
from relevo.ingress.reply import Reply
from relevo.intake import Door
from relevo.store import Reception
from relevo.webhook import Answer, Delivery

Client: TypeAlias = tuple[str, int] | None


class Tower(Protocol):
    """Who knows of every flight."""

    def land(self, flight: Flight) -> None: ...

    def traced(self, span: Any, reply: Reply) -> None: ...

    def kept(self, flight: Flight, reception: Reception) -> None: ...

    def troubled(self, flight: Flight, trouble: Exception) -> None: ...


class Flight(Struct, eq=False):
    """One call under way: what it brought, until when, and who hears the reply.

    It waits for the store as a future would, so that no task has to.
    """

    tower: Tower
    door: Door
    client: Client
    hear: Callable[[Reply], None]
    deadline: float
    delivery: Delivery = cast("Delivery", None)  # until it is read
    answer: Answer = cast("Answer", None)  # until its function has given one
    task: asyncio.Task[Any] | None = None  # that runs it now
    trouble: Exception | None = None  # that the store had with it
    span: Any = None  # where tracing is on
    asks_since: float = 0.0  # when it was first seen to wait for the store
    asks_nonce: bool = False  # at this moment
    generation: int = 0  # of a delivery whose key is known with another body
    held: int = 0
    is_read: bool = False
    is_verified: bool = False  # its signature is right, or its setup call was none
    is_late: bool = False
    is_over: bool = False

    def reply(self, reply: Reply) -> None:
        """Tell who called, the first time."""
        if not self.is_over:
            if self.span is not None:
                self.tower.traced(self.span, reply)
            self.end()
            self.hear(reply)

    def end(self) -> None:
        """Nobody waits any longer."""
        if not self.is_over:
            self.is_over = True
            if self.span is not None:
                self.span.end()
            self.tower.land(self)

    @property
    def is_handled(self) -> bool:
        """Whether its function has run, and the store is waited for."""
        return cast("Answer | None", self.answer) is not None

    def unhandle(self) -> None:
        """Its function is to run once more."""
        self.answer = cast("Answer", None)

    # as whoever waits for a batch

    def done(self) -> bool:
        return self.is_over

    def set_result(self, receptions: Sequence[Reception]) -> None:
        self.tower.kept(self, receptions[0])

    def set_exception(self, error: Exception) -> None:
        self.tower.troubled(self, error)

    def cancel(self) -> None:
        self.tower.troubled(self, StoreUnavailable("the engine is closing"))
