"""Receiver: takes what has passed a door, and keeps it with its jobs, all or nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec.structs import replace

from relevo.batch import Coalescer, Waiting
from relevo.context import current
from relevo.errors import BodyError, DefinitionError, QueueClosed, StoreError, StoreUnavailable
from relevo.intake.door import Door, NoKey, Reject, answer_of, delivery_of, is_ours, variant_of
from relevo.intake.intake import Intake
from relevo.job import NewJob, Verdict
from relevo.outbox import driver
from relevo.outcome import describe, ordinary
from relevo.payload import Found, without_secrets
from relevo.scrubbing import scrub
from relevo.sensitive import looks_clean
from relevo.store import (
    DELIVERY_KEEP,
    FAILED_OF,
    Arrival,
    DeliveryState,
    Kept,
    Letterbox,
    Note,
    Reception,
)
from relevo.telemetry import log
from relevo.webhook import FORM, Answer, Delivery, answer_from

if TYPE_CHECKING:
    from relevo.engine import Relevo

Check = Callable[[Sequence[NewJob]], Awaitable[None]]

MASKED = "masked"
"""The kind of notes that say which endpoints deliver secrets that nothing seals."""

VARIANTS = 100
"""Other bodies that are kept under one key; further ones are counted."""

REASON_MAX = 1_000
FAILED = Answer.json({"ok": False, "error": "internal"}, 500)
"""The answer where the caller would act on it, and there is none."""

MASKED_IN = "masked in its "
REPLAYED_SO = "; a replay gets it masked"
"""The end of the line of a delivery whose body is kept without its secrets."""

_FIELDS = 10  # named in one sentence
_SQLITE_TROUBLE = (5, 6, 8, 10, 13, 14)  # busy, locked, read-only, I/O, full, cannot open
_POSTGRES_TROUBLE = ("08", "40", "53", "57", "58")  # connection, conflict, resources, shutdown, I/O


class Taken(NamedTuple):
    """What became of a delivery."""

    answer: Answer
    kept: Kept
    jobs: Sequence[NewJob]
    is_new: bool
    differs: bool = False  # its key was known with another body


class _Made(NamedTuple):
    """What is to be stored of a delivery, and the answer to its caller."""

    arrival: Arrival
    answer: Answer


class _Known(Exception):
    """Rolls a transaction back because the delivery was here before."""

    def __init__(self, reception: Reception) -> None:
        super().__init__()
        self.reception = reception


class _Rehearsed(Exception):
    """Rolls a transaction back because nothing of it was meant."""


class Waiter(Waiting[Reception], Protocol):
    """Who hears of a reception; `answer` is what the function said, for then."""

    answer: Answer


class Receiver:
    """Takes deliveries that have passed their door."""

    def __init__(self, engine: Relevo) -> None:
        self._engine = engine
        self._doors: dict[str, Door] | None = None
        self._noted: set[str] = set()  # what this process has warned of
        self._arrivals: Coalescer[Arrival, Reception] = Coalescer(self._receive)

    @property
    def doors(self) -> dict[str, Door]:
        """Every door by its path; SettingsError when one has no secret, so none stands open."""
        if self._doors is None:
            engine = self._engine
            self._doors = {
                route.path: Door(app.name, route, engine.use, engine.public_url)
                for app in engine.apps
                for route in app.webhooks
            }
        return self._doors

    def door(self, endpoint: str) -> Door | None:
        """The door that a kept delivery came in by, if there still is such a one."""
        found = self.doors.get(endpoint.partition(":")[2])
        return found if found is not None and found.endpoint == endpoint else None

    async def close(self) -> None:
        """Wait for what is on its way; the doors are made anew when the engine opens again."""
        await self._arrivals.close()
        self._doors = None

    async def take(
        self, door: Door, delivery: Delivery, *, received_at: int = 0, generation: int = 0
    ) -> Taken:
        """Run the function, and keep the delivery with what it ordered, all or nothing.

        A delivery whose function fails is kept as failed, with a job that runs it again. One that
        was here before answers as then. Reject: it is not acceptable. StoreUnavailable: nothing is
        promised.
        """
        made = await self._made(door, delivery, generation, received_at)
        if isinstance(made, _Made):
            [reception] = await self._arrivals.add([made.arrival])
            made = taken_of(reception, made.answer, made.arrival.jobs)
        narrator = self._engine.telemetry.narrator
        if narrator is not None and made.is_new and made.kept.state is DeliveryState.FAILED:
            narrator.delivery(made.kept, is_new=True)
        if self.is_variant(door, generation, differs=made.differs):
            generation = door.variant(delivery)
            return await self.take(door, delivery, received_at=received_at, generation=generation)
        return made

    async def give(
        self, door: Door, delivery: Delivery, waiter: Waiter, generation: int = 0
    ) -> Taken | None:
        """take() for a caller that does not wait: None, and the waiter hears of its reception."""
        made = await self._made(door, delivery, generation, 0)
        if isinstance(made, Taken):
            return made
        waiter.answer = made.answer
        self._arrivals.put([made.arrival], waiter)
        return None

    def fail(
        self,
        door: Door,
        delivery: Delivery,
        mistake: BaseException,
        waiter: Waiter,
        generation: int = 0,
    ) -> None:
        """Keep a delivery whose function was broken off; the waiter hears of its reception."""
        made = self._failed(door, delivery, mistake, generation)
        waiter.answer = made.answer
        self._arrivals.put([made.arrival], waiter)

    async def replay(
        self,
        door: Door,
        delivery: Delivery,
        generation: int,
        reason: str = "",
        *,
        repeats_effects: bool = False,
        first: int = 0,
        check: Check | None = None,
    ) -> Taken:
        """Run the function on a delivery for a person, as another generation of its key.

        `first` is the generation that came in. `check` sees the jobs before they are stored.
        Whatever the function or `check` raises is raised, and nothing is kept.
        """
        intake = Intake(
            self._engine,
            door,
            delivery,
            generation,
            repeats_effects=repeats_effects,
            first=first,
        )
        intake.reason = reason
        with self._engine.telemetry.again("replay", door.endpoint, delivery):
            made = await self._handled(door, intake, check)
        if isinstance(made, Taken):
            return made
        [reception] = await self._arrivals.add([made.arrival])
        return taken_of(reception, made.answer, made.arrival.jobs)

    def is_variant(self, door: Door, generation: int, *, differs: bool) -> bool:
        """Whether another body under a known key is to be a delivery of its own."""
        return differs and generation == 0 and door.route.on_differing == "handle"

    async def _made(
        self, door: Door, delivery: Delivery, generation: int, received_at: int
    ) -> _Made | Taken:
        """What is to be stored of a delivery, also where its function fails."""
        mistake: Exception
        try:
            if door.route.later and door.wants(delivery):
                return self._later(door, delivery, generation, received_at)
            intake = Intake(self._engine, door, delivery, generation, received_at)
            return await self._handled(door, intake)
        except (Reject, QueueClosed, StoreError):
            raise
        except BodyError as error:
            if not is_ours(error, delivery):
                raise Reject(400, error.code, str(error)) from error
            mistake = error
        except Exception as error:
            if away := self._engine.outage(error):
                raise away from error
            mistake = error
        return self._failed(door, delivery, mistake, generation, received_at)

    def _later(self, door: Door, delivery: Delivery, generation: int, received_at: int) -> _Made:
        job = self._engine.handling.job(door.app, delivery, is_later=True)
        kept = door.keep(
            delivery,
            door.key(delivery),
            generation=generation,
            received_at=received_at,
            answer=door.encoded(door.answer),
            status=door.answer.status,
            jobs=(job.id,),
        )
        return _Made(self._arrival(door, delivery, kept, (job,)), door.answer)

    def _failed(
        self,
        door: Door,
        delivery: Delivery,
        mistake: BaseException,
        generation: int = 0,
        received_at: int = 0,
    ) -> _Made:
        """A delivery whose function failed, with the job that runs it again."""
        self._engine.telemetry.counts["delivery_failed"] += 1
        if self._engine.telemetry.narrator is None:  # it tells so once the delivery is stored
            failure = describe(mistake)  # not the error itself: it may raise when it is printed
            log.error(
                "a webhook's function failed; a job will run it again",
                extra={
                    "endpoint": door.endpoint,
                    "delivery": delivery.id,
                    "error": f"{failure.type}: {failure.message}",
                    "text": failure.trace,
                },
            )
        answer = FAILED if door.answers_content(delivery) else door.answer
        job = self._engine.handling.job(door.app, delivery)
        kept = door.keep(
            delivery,
            door.any_key(delivery),
            generation=generation,
            received_at=received_at,
            state=DeliveryState.FAILED,
            reason=why_failed(mistake),
            answer=door.encoded(answer),
            status=answer.status,
            jobs=(job.id,),
        )
        return _Made(self._arrival(door, delivery, kept, (job,)), answer)

    async def _handled(
        self, door: Door, intake: Intake, check: Check | None = None
    ) -> _Made | Taken:
        """Run the function; Taken if that has stored the delivery, or it was here before."""
        if door.is_transactional:
            return await self._take_within(door, intake, check)
        try:
            answer = await self.run(door, intake)
        except Reject:
            # Today's code, or today's rows, may refuse what was taken the first time.
            if (known := await self._known(door, intake)) is not None:
                return known
            raise
        if check is not None:
            await check(intake.jobs)
        await self._tell_masked(door, intake)
        return _Made(self.arrival_of(door, intake, answer), answer)

    async def rehearse(
        self, door: Door, delivery: Delivery, generation: int, reason: str = "", *, first: int = 0
    ) -> Taken:
        """What take(), or replay() of what came in as `first`, would do, with nothing kept."""
        intake = Intake(self._engine, door, delivery, generation, first=first)
        intake.reason = reason
        answer = door.answer
        if door.is_transactional:
            try:
                async with self._engine.transaction() as intake.tx:
                    answer = await self.run(door, intake)
                    raise _Rehearsed
            except _Rehearsed:
                pass
        else:
            answer = await self.run(door, intake)
        kept = self.arrival_of(door, intake, answer).kept
        return Taken(answer, kept, intake.jobs, is_new=True)

    async def keep_refused(self, refused: Sequence[Kept]) -> None:
        """Keep what was refused, so that people can see it and why."""
        if self._engine.seal is None:
            refused = [
                _masked(kept, (), is_form=delivery_of(kept, None).media_type == FORM)
                for kept in refused
            ]
        await self._engine.store.receive([Arrival(kept) for kept in refused])

    def arrival_of(self, door: Door, intake: Intake, answer: Answer) -> Arrival:
        """A delivery whose function has run, with its jobs."""
        kept = door.keep(
            intake.delivery,
            intake.key,
            generation=intake.generation,
            received_at=intake.received_at,
            state=DeliveryState.IGNORED if intake.is_ignored else DeliveryState.ACCEPTED,
            reason=intake.reason,
            answer=door.encoded(answer),
            status=answer.status,
            jobs=tuple([job.id for job in intake.jobs]),
        )
        return self._arrival(door, intake.delivery, kept, intake.jobs, intake.delivered.masked)

    def _arrival(
        self,
        door: Door,
        delivery: Delivery,
        kept: Kept,
        jobs: Sequence[NewJob] = (),
        masked: Sequence[Found] = (),
    ) -> Arrival:
        """A delivery to keep, without its secrets where nothing seals them."""
        if self._engine.seal is None:
            kept = _masked(kept, masked, is_form=delivery.media_type == FORM)
        compared = door.rules.compared(delivery) if door.rules.varies else None
        return Arrival(kept, tuple(jobs), compared)

    async def run(self, door: Door, intake: Intake) -> Answer:
        """Run the function; Reject if its answer refuses the delivery."""
        route = door.route
        if not door.wants(intake.delivery):
            intake.close()
            kind = intake.delivery.event_type[:200] or "an event without a type"
            intake.is_ignored, intake.reason = True, f"{kind} is not in types="
            self._engine.telemetry.counts["delivery_ignored"] += 1
            return door.answer
        given = (intake.delivery, intake, intake.tx)[: len(route.takes) + 1]
        if route.takes == ("tx",):
            given = (intake.delivery, intake.tx)
        token = current.set(intake)
        try:
            given_back: Any = await route.function(*given)
            intake.close()
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as error:
            raise ordinary(error) from error
        finally:
            intake.is_over = True
            current.reset(token)
        answer = answer_from(given_back, door.answer)
        if answer.status >= 400:
            raise Reject.giving(answer)
        if answer.status not in door.rules.success:
            raise DefinitionError(
                f"the webhook's function answered {answer.status}, which {door.rules.name} takes "
                f"for a failure and sends again: answer {door.answer.status}"
            )
        return answer

    async def _take_within(self, door: Door, intake: Intake, check: Check | None = None) -> Taken:
        if (known := await self._known(door, intake)) is not None:
            return known
        try:
            async with self._engine.transaction() as intake.tx:
                answer = await self.run(door, intake)
                if check is not None:
                    await check(intake.jobs)
                await intake.tx.flush()
                reception = await self._receive_within(door, intake, answer)
                if reception.verdict is not Verdict.NEW:
                    raise _Known(reception)
        except _Known as known:
            if known.reception.verdict is not Verdict.DONE or intake.generation > 0:
                return taken_of(known.reception, door.answer)
            return await self._repeated(door, intake)  # what counted it is rolled back
        except Exception as error:
            if (unavailable := _unavailable(error)) is not None:
                raise unavailable from error
            raise
        self._engine.telemetry.deliveries[door.endpoint, reception.kept.state] += 1
        self._engine.joining.received(intake.jobs, reception.kept)
        await self._tell_masked(door, intake)
        return taken_of(reception, answer, intake.jobs)

    async def _receive(self, arrivals: Sequence[Arrival]) -> list[Reception]:
        receptions = await self._engine.store.receive(arrivals)
        for arrival, reception in zip(arrivals, receptions, strict=True):
            if reception.verdict is Verdict.NEW:
                self._engine.telemetry.deliveries[arrival.kept.endpoint, arrival.kept.state] += 1
                if reception.kept.jobs != arrival.kept.jobs:
                    self._engine.joining.received(arrival.jobs, reception.kept)
            if reception.differs:
                await self._keep_variant(arrival, reception.kept)
        return receptions

    async def _keep_variant(self, arrival: Arrival, first: Kept) -> None:
        """Keep another body that came under a known key, unless it is handled as its own."""
        kept, store = arrival.kept, self._engine.store
        door = self.door(kept.endpoint)
        if kept.key is None or kept.generation or (door and door.route.on_differing == "handle"):
            return
        self._engine.telemetry.counts["delivery_differs"] += 1
        if (place := f"differs {kept.endpoint}") not in self._noted:
            self._noted.add(place)
            log.warning(
                "a key came again with another body, which is kept and not handled: choose a key "
                'that tells them apart, or on_differing="handle"',
                extra={"endpoint": kept.endpoint, "delivery": kept.id, "first": first.id},
            )
        alike = Letterbox(endpoint=kept.endpoint, key=kept.key, state=DeliveryState.DIFFERS)
        known, _ = await store.deliveries(alike, limit=VARIANTS)
        if len(known) >= VARIANTS:
            return  # the first one counts it
        variant = replace(
            kept,
            generation=variant_of(arrival.compared),
            state=DeliveryState.DIFFERS,
            reason=f"its key came before with another body, in delivery {first.id}",
            jobs=(),
            thread=first.thread or first.id,
        )
        [reception] = await store.receive([Arrival(variant, (), arrival.body)])
        if reception.verdict is Verdict.NEW:
            self._engine.telemetry.deliveries[variant.endpoint, variant.state] += 1

    async def _tell_masked(self, door: Door, intake: Intake) -> None:
        """Say once for each endpoint that secrets are masked in the jobs of its deliveries."""
        if not intake.delivered.masked or door.endpoint in self._noted:
            return
        self._noted.add(door.endpoint)
        fields = list(dict.fromkeys(map(str, intake.delivered.masked)))
        log.warning(
            "secrets in a delivery were masked before its jobs were stored: with "
            "RELEVO_SEAL_KEYS they are sealed instead, and allow= lets a field pass",
            extra={"endpoint": door.endpoint, "delivery": intake.id, "fields": ", ".join(fields)},
        )
        store = self._engine.store
        with contextlib.suppress(StoreError):
            [known] = await store.recall(MASKED, [door.endpoint])
            note = Note(
                kind=MASKED,
                name=door.endpoint,
                value=msgspec.json.encode(fields[:_FIELDS]),
                version=0 if known is None else known.version,
                ttl=DELIVERY_KEEP,
            )
            await store.remember([note])

    async def _receive_within(self, door: Door, intake: Intake, answer: Answer) -> Reception:
        connection = await self.driver(intake)
        return await self._engine.store.receive_within(
            connection, self.arrival_of(door, intake, answer)
        )

    async def driver(self, intake: Intake) -> Any:
        """The connection of its transaction; workers hear of its jobs when that commits."""
        store = self._engine.store
        queues = sorted({job.queue for job in intake.jobs})
        return await driver(intake.tx, lambda: store.committed(queues))

    async def _known(self, door: Door, intake: Intake) -> Taken | None:
        """The delivery as it was taken before, its repetition counted; None: it is new."""
        if intake.generation:
            return None
        [kept] = await self._engine.store.delivered(door.endpoint, [intake.key])
        return None if kept is None else await self._repeated(door, intake)

    async def _repeated(self, door: Door, intake: Intake) -> Taken:
        """Count the repetition of a delivery that the store has; another body is kept beside it."""
        bare = door.keep(intake.delivery, intake.key, generation=intake.generation)
        [reception] = await self._arrivals.add([self._arrival(door, intake.delivery, bare)])
        return taken_of(reception, door.answer)


def why_failed(mistake: BaseException) -> str:
    """What a delivery's line says of the mistake that its function made."""
    if issubclass(type(mistake), NoKey):
        return scrub(str(mistake))[:REASON_MAX]
    failure = describe(mistake)
    return f"{FAILED_OF}{failure.type}: {failure.message}"[:REASON_MAX]


def _masked(kept: Kept, in_jobs: Sequence[Found], *, is_form: bool) -> Kept:
    """What is kept of a delivery where nothing seals it; its line says what it is kept without."""
    text = unquote_to_bytes(kept.body.replace(b"+", b" ")) if is_form else kept.body
    if not in_jobs and looks_clean(text, len(text) + 1):
        return kept
    body, in_body = without_secrets(kept.body, is_form=is_form)
    said = [kept.reason] if kept.reason else []
    if in_jobs:
        said.append(f"{MASKED_IN}jobs: {_named(in_jobs)}")
    if in_body:
        where = "body, too" if in_jobs else f"body: {_named(in_body)}"
        said.append(f"{MASKED_IN}{where}{REPLAYED_SO}")
    return replace(kept, body=body, reason="; ".join(said))


def _named(found: Sequence[Found]) -> str:
    fields = list(dict.fromkeys(map(str, found)))
    more = f" and {len(fields) - _FIELDS} more" if len(fields) > _FIELDS else ""
    return f"{', '.join(fields[:_FIELDS])}{more}"


def taken_of(reception: Reception, answer: Answer, jobs: Sequence[NewJob] = ()) -> Taken:
    """What a reception means for who answers; QueueClosed if it could not be taken."""
    match reception.verdict:
        case Verdict.NEW:
            return Taken(answer, reception.kept, jobs, is_new=True)
        case Verdict.CLOSED:
            raise QueueClosed("a queue that the delivery orders from is draining")
        case _:
            said = answer_of(reception.kept, answer)
            return Taken(said, reception.kept, (), is_new=False, differs=reception.differs)


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
