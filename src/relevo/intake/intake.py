"""Intake: what a webhook's function is handed."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from relevo.clock import Duration, stamp
from relevo.ids import derived_id
from relevo.intake.door import Door, Reject
from relevo.job import NewJob
from relevo.message import Command, Event, Priority
from relevo.webhook import Delivery

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from relevo.engine import Relevo

T = TypeVar("T")

ORDERS = 1_000
"""Jobs that one delivery may ask for."""


class Intake:
    """One delivery, as the function behind its door sees it. What it orders is kept with it."""

    __slots__ = (
        "_began",
        "_engine",
        "_made",
        "_origin",
        "delivery",
        "generation",
        "id",
        "jobs",
        "key",
        "received_at",
        "tx",
    )

    def __init__(
        self,
        engine: Relevo,
        door: Door,
        delivery: Delivery,
        generation: int = 0,
        received_at: int = 0,
    ) -> None:
        key = door.key(delivery)
        self._engine = engine
        self.delivery = delivery
        self.id = delivery.id
        self.key = key
        self.generation = generation
        self.received_at = received_at
        self.jobs: list[NewJob] = []
        self.tx: AsyncSession | None = None
        self._made = 0
        self._origin = f"{door.source}\n{key if key.isascii() else ascii(key)}\n{generation}\n"
        # Without transactions a half-done receive is finished by the next one, which comes later
        # and must give its jobs the same ids; elsewhere ids that rise with time are kinder.
        is_atomic = engine.store.name in ("sqlite", "postgres")
        self._began = stamp(delivery.received_at) if is_atomic else 0

    @property
    def thread(self) -> str:
        """The id that everything which comes of this delivery shares: the delivery's own."""
        return self.delivery.id

    def use(self, kind: type[T]) -> T:
        """An opened resource of the app, by its type."""
        return self._engine.use(kind)

    async def enqueue(
        self,
        command: Command,
        *,
        delay: Duration | None = None,
        key: str | None = None,
        priority: Priority | None = None,
    ) -> str:
        """Order something; it is stored with the delivery, or not at all. Gives the job's id."""
        job = self._engine.order(command, delay=delay, key=key, priority=priority, cause=self)
        self.jobs.append(job)
        return job.id

    async def publish(self, event: Event) -> list[str]:
        """Tell a fact to its listeners; their jobs are stored with the delivery."""
        return [receipt.id for receipt in await self._engine.publish(event)]

    def next_id(self) -> str:
        """The id of the next job: the same whenever the same delivery is taken again."""
        if self._made >= ORDERS:
            raise Reject(413, "too_many_orders", f"more than {ORDERS:,} jobs of one delivery")
        self._made += 1
        return derived_id(self._began, f"{self._origin}{self._made}")
