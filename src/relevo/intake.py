"""Intake: what a webhook's function is handed, and how a delivery and its jobs are kept as one.

A Door is a webhook whose secrets have been read. A Receiver takes what has passed a door: it asks
for the key, runs the function, and keeps the delivery and the jobs in one step, many deliveries to
a commit. The same path serves live calls, those that waited in a spool, and replays by people.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from urllib.parse import quote, quote_plus

import msgspec

from relevo.batch import Coalescer
from relevo.clock import Duration, stamp
from relevo.context import current
from relevo.errors import MisuseError, PayloadError, QueueClosed, RelevoError, StoreUnavailable
from relevo.ids import derived_id
from relevo.job import NewJob, Verdict
from relevo.message import KEY_MAX, Command, Event, Priority
from relevo.outbox import driver
from relevo.route import Use, Webhook
from relevo.sensitive import HIDDEN
from relevo.signatures import Scheme, SharedSecret
from relevo.store import Arrival, Keeping, Kept, Reception
from relevo.webhook import KEPT, Answer, BodyError, Delivery, Headers

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from relevo.engine import Relevo

T = TypeVar("T")

ORDERS = 1_000
"""Jobs that one delivery may ask for."""

_SQLITE_TROUBLE = (5, 6, 8, 10, 13, 14)  # busy, locked, read-only, I/O, full, cannot open
_POSTGRES_TROUBLE = ("08", "40", "53", "57", "58")  # connection, conflict, resources, shutdown, I/O
_BAD_KEY = (LookupError, TypeError, AttributeError, ValueError)


class Reject(RelevoError):
    """What arrived is not acceptable: the caller gets this status and code, nothing is enqueued."""

    def __init__(self, status: int, code: str, why: str = "") -> None:
        super().__init__(why or code)
        if not 400 <= status <= 499:
            raise MisuseError(f"Reject({status}) is no refusal: use 400 to 499, or raise an error")
        self.answer = Answer.json({"ok": False, "error": code}, status)

    @classmethod
    def giving(cls, answer: Answer) -> Reject:
        """A refusal in the function's own words."""
        made = cls(400, "refused", f"its function answered {answer.status}")
        made.answer = answer
        return made


class Door:
    """A webhook of an app, its secrets read."""

    __slots__ = (
        "_encoded",
        "_listed",
        "_told",
        "app",
        "is_transactional",
        "route",
        "scheme",
        "source",
        "types",
    )

    def __init__(self, app: str, route: Webhook, use: Use) -> None:
        self.app = app
        self.route = route
        self.source = f"{app}:{route.path}"
        self.scheme: Scheme = route.scheme(use)
        self.is_transactional = "tx" in route.takes
        names = Headers((name, "") for name in (*KEPT, *route.keep_headers))
        hidden = {name.lower() for name in self.scheme.hides}
        self._listed = frozenset(names.kept(route.keep_headers)) - hidden
        self._encoded = msgspec.msgpack.encode(route.answer)
        self._told = _told(self.scheme)
        self.types: set[bytes | None] = set()  # content types that were found good

    def key(self, delivery: Delivery) -> str:
        """What makes two deliveries the same one; Reject if it has none."""
        try:
            key: Any = self.route.key(delivery)
        except BodyError as error:
            raise Reject(400, error.code, str(error)) from None
        except _BAD_KEY as error:
            raise Reject(422, "invalid_key", f"no key in it: {type(error).__name__}") from None
        if not isinstance(key, str) or not 0 < len(key) <= KEY_MAX:
            raise Reject(422, "invalid_key", f"the key is not a text of 1 to {KEY_MAX} characters")
        return key

    def keep(
        self,
        delivery: Delivery,
        key: str | None,
        *,
        generation: int = 0,
        received_at: int = 0,
        state: Keeping = Keeping.ACCEPTED,
        reason: str = "",
        answer: bytes = b"",
        status: int = 200,
        jobs: tuple[str, ...] = (),
    ) -> Kept:
        """The delivery as it may be stored: listed headers, no secret in the query, the body."""
        pairs = [pair for pair in delivery.headers.pairs if pair[0] in self._listed]
        body = delivery.body
        for secret in self._told:
            body = body.replace(secret, HIDDEN.encode())
        return Kept(
            id=delivery.id,
            source=self.source,
            key=key,
            generation=generation,
            state=state,
            reason=reason,
            method=delivery.method,
            path=delivery.path,
            query=delivery.shown_query(self.scheme.hides) if delivery.query else "",
            headers=msgspec.json.encode(pairs),
            body=body,
            answer=answer,
            status=status,
            jobs=jobs,
            thread=delivery.id,
            received_at=received_at,
        )

    def encoded(self, answer: Answer) -> bytes:
        return self._encoded if answer is self.route.answer else msgspec.msgpack.encode(answer)


def _told(scheme: Scheme) -> list[bytes]:
    """The secrets that come inside the body itself, in every spelling, so as not to keep them."""
    if not isinstance(scheme, SharedSecret) or not (scheme.form or scheme.json):
        return []
    texts = [key.value for key in scheme.keys.given]
    every = {spelled(text) for text in texts for spelled in (str, quote, quote_plus)}
    return [text.encode() for text in sorted(every, key=len, reverse=True)]


def delivery_of(kept: Kept, received_at: Any) -> Delivery:
    """A kept delivery as it came, less what is never kept."""
    pairs = msgspec.json.decode(kept.headers, type=list[tuple[str, str]])
    return Delivery(
        id=kept.id,
        path=kept.path,
        method=kept.method,
        query=kept.query,
        headers=Headers(pairs),
        body=kept.body,
        received_at=received_at,
    )


def answer_of(kept: Kept) -> Answer:
    """What was answered to a kept delivery."""
    return msgspec.msgpack.decode(kept.answer, type=Answer)


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


class Taken(NamedTuple):
    """What became of a delivery."""

    answer: Answer
    kept: Kept
    jobs: Sequence[NewJob]
    is_new: bool


class _Known(Exception):
    """Rolls a transaction back because the delivery was here before."""

    def __init__(self, reception: Reception) -> None:
        super().__init__()
        self.reception = reception


class _Rehearsed(Exception):
    """Rolls a transaction back because nothing of it was meant."""


class Receiver:
    """Takes deliveries that have passed their door."""

    def __init__(self, engine: Relevo) -> None:
        self._engine = engine
        self._doors: dict[str, Door] | None = None
        self._arrivals: Coalescer[Arrival, Reception] = Coalescer(engine.store.receive)

    @property
    def doors(self) -> dict[str, Door]:
        """Every door by its path; SettingsError when one has no secret, so none stands open."""
        if self._doors is None:
            engine = self._engine
            self._doors = {
                route.path: Door(app.name, route, engine.use)
                for app in engine.apps
                for route in app.webhooks
            }
        return self._doors

    def door(self, source: str) -> Door | None:
        """The door that a kept delivery came in by, if there still is such a one."""
        found = self.doors.get(source.partition(":")[2])
        return found if found is not None and found.source == source else None

    async def close(self) -> None:
        """Wait for what is on its way; the doors are made anew when the engine opens again."""
        await self._arrivals.close()
        self._doors = None

    async def take(
        self, door: Door, delivery: Delivery, *, generation: int = 0, received_at: int = 0
    ) -> Taken:
        """Run the function, and keep the delivery with what it ordered, all or nothing.

        Reject: it is not acceptable. StoreUnavailable: nothing is promised. Anything else that is
        raised is a mistake in the function. A delivery that was here before answers as then.
        """
        intake = Intake(self._engine, door, delivery, generation, received_at)
        if door.is_transactional:
            return await self._take_within(door, intake)
        try:
            answer = await self._run(door, intake)
        except Exception:
            # Today's code, or today's rows, may refuse what was taken the first time.
            if (known := await self._known(door, intake)) is not None:
                return known
            raise
        arrival = _arrival(door, intake, answer)
        [reception] = await self._arrivals.add([arrival])
        return _taken(reception, answer, intake.jobs)

    async def rehearse(self, door: Door, delivery: Delivery, generation: int) -> Taken:
        """What take() would do, with nothing kept."""
        intake = Intake(self._engine, door, delivery, generation)
        answer = door.route.answer
        if door.is_transactional:
            try:
                async with self._engine.transaction() as intake.tx:
                    answer = await self._run(door, intake)
                    raise _Rehearsed
            except _Rehearsed:
                pass
        else:
            answer = await self._run(door, intake)
        kept = _arrival(door, intake, answer).kept
        return Taken(answer, kept, intake.jobs, is_new=True)

    async def keep_rejected(self, rejected: Sequence[Kept]) -> None:
        """Keep what was refused, so that people can see it and why."""
        await self._engine.store.receive([Arrival(kept) for kept in rejected])

    async def _run(self, door: Door, intake: Intake) -> Answer:
        route = door.route
        given = (intake.delivery, intake, intake.tx)[: len(route.takes) + 1]
        token = current.set(intake)
        try:
            answer = await route.function(*given)
        except BodyError as error:
            raise Reject(400, error.code, str(error)) from error
        except PayloadError as error:
            raise Reject(422, "payload_refused", str(error)) from error
        except msgspec.ValidationError as error:
            raise Reject(422, "invalid_body", str(error)) from error
        finally:
            current.reset(token)
        if answer is None:
            return route.answer
        if answer.status >= 400:
            raise Reject.giving(answer)
        return cast("Answer", answer)

    async def _take_within(self, door: Door, intake: Intake) -> Taken:
        if (known := await self._known(door, intake)) is not None:
            return known
        try:
            async with self._engine.transaction() as intake.tx:
                answer = await self._run(door, intake)
                await intake.tx.flush()
                reception = await self._receive_within(door, intake, answer)
                if reception.verdict is not Verdict.NEW:
                    raise _Known(reception)
        except _Known as known:
            return _taken(known.reception, door.route.answer, ())
        except Exception as error:
            if (unavailable := _unavailable(error)) is not None:
                raise unavailable from error
            raise
        return _taken(reception, answer, intake.jobs)

    async def _receive_within(self, door: Door, intake: Intake, answer: Answer) -> Reception:
        store = self._engine.store
        queues = sorted({job.queue for job in intake.jobs})
        connection = await driver(intake.tx, lambda: store.committed(queues))
        return await store.receive_within(connection, _arrival(door, intake, answer))

    async def _known(self, door: Door, intake: Intake) -> Taken | None:
        """The delivery as it was taken before, its repetition counted; None: it is new."""
        if intake.generation:
            return None
        [kept] = await self._engine.store.delivered(door.source, [intake.key])
        if kept is None:
            return None
        bare = Arrival(door.keep(intake.delivery, intake.key))
        [reception] = await self._arrivals.add([bare])
        return _taken(reception, door.route.answer, ())


def _arrival(door: Door, intake: Intake, answer: Answer) -> Arrival:
    kept = door.keep(
        intake.delivery,
        intake.key,
        generation=intake.generation,
        received_at=intake.received_at,
        answer=door.encoded(answer),
        status=answer.status,
        jobs=tuple([job.id for job in intake.jobs]),
    )
    return Arrival(kept, tuple(intake.jobs))


def _taken(reception: Reception, answer: Answer, jobs: Sequence[NewJob]) -> Taken:
    match reception.verdict:
        case Verdict.NEW:
            return Taken(answer, reception.kept, jobs, is_new=True)
        case Verdict.CLOSED:
            raise QueueClosed("a queue that the delivery orders from is draining")
        case _:
            return Taken(answer_of(reception.kept), reception.kept, (), is_new=False)


def _unavailable(error: Exception) -> StoreUnavailable | None:
    """The same trouble as the store would tell it; None when it is the function's own mistake."""
    if isinstance(error, StoreUnavailable):
        return error
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.exc import TimeoutError as NoConnection

    if isinstance(error, ConnectionError | NoConnection):
        return StoreUnavailable(f"the database does not answer: {error}")
    if isinstance(error, DBAPIError) and (error.connection_invalidated or _is_transient(error)):
        return StoreUnavailable(f"the database does not answer: {error.orig}")
    return None


def _is_transient(error: Any) -> bool:
    # A table that is missing is an OperationalError too, and would wait in a spool for ever.
    code: int = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
    state: str = getattr(error.orig, "sqlstate", None) or ""
    return code in _SQLITE_TROUBLE or state[:2] in _POSTGRES_TROUBLE
