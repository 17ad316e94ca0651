"""Intake: what a webhook's function is handed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from relevo.clock import Duration, milliseconds
from relevo.errors import MisuseError
from relevo.events import Published
from relevo.flow import Flow
from relevo.follow_ups import of_delivery
from relevo.ids import first_moment_of, moment_of, parse_id
from relevo.intake.door import Door, Reject
from relevo.job import NewJob, Receipt, Unique, Verdict
from relevo.message import Command, Event, KeyPart, Priority
from relevo.payload import Delivered
from relevo.pending import Calls, check_awaited, noted
from relevo.webhook import Delivery

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from relevo.engine import Relevo
    from relevo.group import Group
    from relevo.orders import Started

T = TypeVar("T")

ORDERS = 1_000
"""Jobs that one delivery may ask for."""


def _calls(intake: Intake) -> Calls:
    return intake.pending


class Intake:
    """One delivery, as the function of its webhook sees it. What it orders is kept with it."""

    __slots__ = (
        "_engine",
        "delivered",
        "delivery",
        "follow_ups",
        "generation",
        "id",
        "is_ignored",
        "is_over",
        "jobs",
        "key",
        "pending",
        "reason",
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
        *,
        key: str | None = None,
        repeats_effects: bool = False,
        first: int = 0,
    ) -> None:
        key = door.key(delivery) if key is None else key
        self._engine = engine
        self.delivery = delivery
        self.delivered = Delivered(is_sealed=engine.seal is not None)
        self.id = delivery.id
        self.key = key
        self.generation = generation
        self.received_at = received_at
        self.jobs: list[NewJob] = []
        self.reason = ""  # what its line says: of a masked body, or why the function is not asked
        self.is_ignored = False  # the function is not asked: it is not for this type
        self.tx: AsyncSession | None = None
        self.is_over = False  # its function has returned: nothing more is stored with it
        self.pending = Calls()
        # Without transactions a half-done receive is finished by the next one, which comes later
        # and must give its jobs the same ids; elsewhere ids that rise with time are kinder.
        self.follow_ups = of_delivery(
            door.endpoint,
            key,
            generation,
            _moments(delivery.id, generation) if engine.is_atomic else (0, 0),
            engine.seal,
            0 if engine.is_atomic else milliseconds(engine.keep_dead),
            repeats_effects=repeats_effects,
            first=first,
        )

    @property
    def thread(self) -> str:
        """The id that everything which comes of this delivery shares: the delivery's own."""
        return self.delivery.id

    def use(self, kind: type[T]) -> T:
        """An opened resource of the app, by its type."""
        return self._engine.use(kind)

    @noted("ctx", _calls)
    async def enqueue(
        self,
        command: Command,
        *,
        delay: Duration | None = None,
        key: KeyPart | None = None,
        unique: Unique | None = None,
        priority: Priority | None = None,
    ) -> Receipt:
        """Order something; it is stored with the delivery, or not at all.

        Whether the job is new or joined another one is known when the delivery is stored:
        `relevo deliveries show` and the trace tell. Until then the verdict is `ordered`.
        """
        job = self._engine.order(
            command, delay=delay, key=key, unique=unique, priority=priority, cause=self
        )
        self.take([job])
        return Receipt(job.id, Verdict.ORDERED)

    @noted("ctx", _calls)
    async def enqueue_many(self, commands: Iterable[Command]) -> list[Receipt]:
        """Order many things, as with enqueue()."""
        jobs = [self._engine.order(command, cause=self) for command in commands]
        self.take(jobs)
        return [Receipt(job.id, Verdict.ORDERED) for job in jobs]

    @noted("ctx", _calls)
    async def publish(self, event: Event) -> Published:
        """Tell a fact to its subscribers; the event is stored with the delivery."""
        return await self._engine.publish(event)

    @noted("ctx", _calls)
    async def start(self, flow: Flow, *, key: KeyPart | None = None) -> Started:
        """Start a flow; its nodes are stored with the delivery."""
        return await self._engine.start(flow, key=key)

    @noted("ctx", _calls)
    async def group(self, name: str, *, then: Command | None = None) -> Group:
        """Open a group, or get one that is open; what is added to it is stored with the delivery.

        What comes when the group is closed meanwhile runs all the same, and is no member.
        """
        return await self._engine.group(name, then=then)

    def once(self, name: str, *_: Any, **__: Any) -> NoReturn:
        """MisuseError: a webhook's function has no job that an effect could belong to."""
        raise MisuseError(
            f"ctx.once({name!r:.60}, …): a webhook's function stores what came and makes no "
            "effects outside, since the provider waits for its answer. Enqueue a command here, and "
            "call ctx.once() in its worker"
        )

    def take(self, jobs: Sequence[NewJob]) -> None:
        """Have jobs stored with the delivery."""
        if self.is_over:
            raise MisuseError(
                "the webhook's function has returned, and its delivery is stored without this: "
                "await what the function starts before it returns"
            )
        if len(self.jobs) + len(jobs) > ORDERS:
            raise Reject(413, "too_many_orders", f"more than {ORDERS:,} jobs of one delivery")
        self.jobs += jobs

    def close(self) -> None:
        """Its function has returned; MisuseError if it has called what it did not await."""
        self.is_over = True
        check_awaited(self.pending)


def _moments(id: str, generation: int) -> tuple[int, int]:
    """The moment of a delivery, and that of its generation 0."""
    if parse_id(id) is None:  # made by somebody else
        return 0, 0
    return moment_of(id), first_moment_of(id) if generation > 0 else moment_of(id)
