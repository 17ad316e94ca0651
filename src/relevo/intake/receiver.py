"""Receiver: takes what has passed a door, and keeps it with its jobs, all or nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import unquote_to_bytes

import msgspec

from relevo.batch import Coalescer, Waiting
from relevo.context import current
from relevo.errors import BodyError, PayloadError, QueueClosed, StoreError, StoreUnavailable
from relevo.intake.door import Door, Reject, answer_of, delivery_of
from relevo.intake.intake import Intake
from relevo.job import NewJob, Verdict
from relevo.outbox import driver
from relevo.payload import Found, without_secrets
from relevo.sensitive import looks_clean
from relevo.store import DELIVERY_KEEP, Arrival, Kept, Note, Reception
from relevo.telemetry import log
from relevo.webhook import FORM, Answer, Delivery, answer_from

if TYPE_CHECKING:
    from relevo.engine import Relevo

MASKED = "masked"
"""The kind of notes that say which endpoints deliver secrets that nothing seals."""

_FIELDS = 10  # named in one sentence
REPLAYED_SO = "; a replay gets it masked"
"""The end of the line of a delivery whose body is kept without its secrets."""

_SQLITE_TROUBLE = (5, 6, 8, 10, 13, 14)  # busy, locked, read-only, I/O, full, cannot open
_POSTGRES_TROUBLE = ("08", "40", "53", "57", "58")  # connection, conflict, resources, shutdown, I/O


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


class Waiter(Waiting[Reception], Protocol):
    """Who hears of a reception; `answer` is what the function said, for then."""

    answer: Answer


class Receiver:
    """Takes deliveries that have passed their door."""

    def __init__(self, engine: Relevo) -> None:
        self._engine = engine
        self._doors: dict[str, Door] | None = None
        self._told: set[str] = set()  # endpoints of which it is told that secrets are masked
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
        self,
        door: Door,
        delivery: Delivery,
        *,
        generation: int = 0,
        received_at: int = 0,
        repeats_effects: bool = False,
        reason: str = "",
    ) -> Taken:
        """Run the function, and keep the delivery with what it ordered, all or nothing.

        Reject: it is not acceptable. StoreUnavailable: nothing is promised. Anything else that is
        raised is a mistake in the function. A delivery that was here before answers as then.
        """
        intake = Intake(
            self._engine,
            door,
            delivery,
            generation,
            received_at,
            repeats_effects=repeats_effects,
        )
        intake.reason = reason
        if door.is_transactional:
            return await self._take_within(door, intake)
        answer = await self._order(door, intake)
        if isinstance(answer, Taken):
            return answer
        await self._tell_masked(door, intake)
        [reception] = await self._arrivals.add([_arrival(door, intake, answer)])
        return taken_of(reception, answer, intake.jobs)

    async def give(self, door: Door, delivery: Delivery, waiter: Waiter) -> Taken | None:
        """The same for who does not wait here: None, and the waiter hears of its reception."""
        intake = Intake(self._engine, door, delivery)
        if door.is_transactional:
            return await self._take_within(door, intake)
        answer = await self._order(door, intake)
        if isinstance(answer, Taken):
            return answer
        await self._tell_masked(door, intake)
        waiter.answer = answer
        self._arrivals.put([_arrival(door, intake, answer)], waiter)
        return None

    async def _order(self, door: Door, intake: Intake) -> Answer | Taken:
        """Run the function; Taken if it refuses what was taken before."""
        try:
            return await self._run(door, intake)
        except Exception:
            # Today's code, or today's rows, may refuse what was taken the first time.
            if (known := await self._known(door, intake)) is not None:
                return known
            raise

    async def rehearse(
        self, door: Door, delivery: Delivery, generation: int, reason: str = ""
    ) -> Taken:
        """What take() would do, with nothing kept."""
        intake = Intake(self._engine, door, delivery, generation)
        intake.reason = reason
        answer = door.answer
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
        if self._engine.seal is None:
            rejected = [
                _masked(kept, (), is_form=delivery_of(kept, None).media_type == FORM)
                for kept in rejected
            ]
        await self._engine.store.receive([Arrival(kept) for kept in rejected])

    async def _run(self, door: Door, intake: Intake) -> Answer:
        route = door.route
        if route.types and not route.takes_type(kind := intake.delivery.event_type):
            intake.close()
            intake.reason = f"ignored: {kind[:200] or 'an event without a type'} is not in types="
            self._engine.telemetry.counts["delivery_ignored"] += 1
            return door.answer
        given = (intake.delivery, intake, intake.tx)[: len(route.takes) + 1]
        if route.takes == ("tx",):
            given = (intake.delivery, intake.tx)
        token = current.set(intake)
        try:
            given_back: Any = await route.function(*given)
            intake.close()
        except BodyError as error:
            raise Reject(400, error.code, str(error)) from error
        except PayloadError as error:
            raise Reject(422, "payload_refused", str(error)) from error
        except msgspec.ValidationError as error:
            raise Reject(422, "invalid_body", str(error)) from error
        finally:
            intake.is_over = True
            current.reset(token)
        answer = answer_from(given_back, door.answer)
        if answer.status >= 400:
            raise Reject.giving(answer)
        return answer

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
            return taken_of(known.reception, door.answer, ())
        except Exception as error:
            if (unavailable := _unavailable(error)) is not None:
                raise unavailable from error
            raise
        self._engine.joining.received(intake.jobs, reception.kept)
        await self._tell_masked(door, intake)
        return taken_of(reception, answer, intake.jobs)

    async def _receive(self, arrivals: Sequence[Arrival]) -> list[Reception]:
        receptions = await self._engine.store.receive(arrivals)
        for arrival, reception in zip(arrivals, receptions, strict=True):
            if reception.kept.jobs != arrival.kept.jobs and reception.verdict is Verdict.NEW:
                self._engine.joining.received(arrival.jobs, reception.kept)
        return receptions

    async def _tell_masked(self, door: Door, intake: Intake) -> None:
        """Say once for each endpoint that secrets are masked in the jobs of its deliveries."""
        if not intake.delivered.masked or door.endpoint in self._told:
            return
        self._told.add(door.endpoint)
        fields = list(dict.fromkeys(map(str, intake.delivered.masked)))
        log.warning(
            "secrets in a delivery were masked before its jobs were stored: with "
            "RELEVO_SEAL_KEYS they are sealed instead, and allow= lets a field pass",
            extra={"door": door.endpoint, "delivery": intake.id, "fields": ", ".join(fields)},
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
        store = self._engine.store
        queues = sorted({job.queue for job in intake.jobs})
        connection = await driver(intake.tx, lambda: store.committed(queues))
        return await store.receive_within(connection, _arrival(door, intake, answer))

    async def _known(self, door: Door, intake: Intake) -> Taken | None:
        """The delivery as it was taken before, its repetition counted; None: it is new."""
        if intake.generation:
            return None
        [kept] = await self._engine.store.delivered(door.endpoint, [intake.key])
        if kept is None:
            return None
        bare = Arrival(door.keep(intake.delivery, intake.key))
        [reception] = await self._arrivals.add([bare])
        return taken_of(reception, door.answer, ())


def _arrival(door: Door, intake: Intake, answer: Answer) -> Arrival:
    kept = door.keep(
        intake.delivery,
        intake.key,
        generation=intake.generation,
        received_at=intake.received_at,
        reason=intake.reason,
        answer=door.encoded(answer),
        status=answer.status,
        jobs=tuple([job.id for job in intake.jobs]),
    )
    if not intake.delivered.is_sealed:
        is_form = intake.delivery.media_type == FORM
        kept = _masked(kept, intake.delivered.masked, is_form=is_form)
    return Arrival(kept, tuple(intake.jobs))


def _masked(kept: Kept, in_jobs: Sequence[Found], *, is_form: bool) -> Kept:
    """What is kept of a delivery where nothing seals it; its line says what it is kept without."""
    text = unquote_to_bytes(kept.body.replace(b"+", b" ")) if is_form else kept.body
    if not in_jobs and looks_clean(text, len(text) + 1):
        return kept
    body, in_body = without_secrets(kept.body, is_form=is_form)
    said = [kept.reason] if kept.reason else []
    if in_jobs:
        said.append(f"masked in its jobs: {_named(in_jobs)}")
    if in_body:
        where = "in its body, too" if in_jobs else f"in its body: {_named(in_body)}"
        said.append(f"masked {where}{REPLAYED_SO}")
    return msgspec.structs.replace(kept, body=body, reason="; ".join(said))


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
            return Taken(answer_of(reception.kept, answer), reception.kept, (), is_new=False)


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
