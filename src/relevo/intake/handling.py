"""Handling: jobs that run a webhook's function for a delivery that is stored already.

A delivery whose function failed is stored with such a job, which runs the function again until it
works: mended code needs nobody's help. A webhook with `later=True` has one for each delivery.
"""

from __future__ import annotations

import asyncio
import dataclasses
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec.structs import replace

from relevo.app import App, Binding
from relevo.backoff import exponential
from relevo.clock import moment, stamp
from relevo.context import Context
from relevo.errors import MisuseError, QueueClosed, SealError, SettingsError, StoreError
from relevo.ids import moment_of, new_id
from relevo.intake.door import Door, NoKey, Reject, delivery_of, is_provisional
from relevo.intake.intake import Intake
from relevo.intake.receiver import MASKED_IN, REASON_MAX, Taken, why_failed
from relevo.job import NewJob, Verdict
from relevo.job_meta import traced
from relevo.message import Command, Spec, codec
from relevo.outcome import Cancelled, Outcome, Parked, Retry, Snooze, describe
from relevo.scrubbing import scrub
from relevo.sealing import unsealed
from relevo.sensitive import HIDDEN
from relevo.store import Arrival, DeliveryState, Kept, Reception
from relevo.webhook import Answer, Delivery

if TYPE_CHECKING:
    from relevo.engine import Relevo

ATTEMPTS = 100  # two days of them
RETRY_AFTER = 5_000  # milliseconds: what the function has just failed of may need a moment
HANDLE_SECONDS = 300.0
ARRIVES_WITHIN = 60_000
"""Milliseconds within which a store without transactions has the delivery behind its job."""


class NoEndpoint(SettingsError):
    """The code or the secret of a delivery's endpoint is not here."""


class _Late(Exception):
    """Rolls a transaction back because the delivery was handled meanwhile."""


class HandleDelivery(
    Command,
    queue="relevo:webhooks:retry",
    name="webhook:handle",
    attempts=ATTEMPTS,
    backoff=exponential("5s", cap="30m"),
    timeout="6m",  # beyond HANDLE_SECONDS, so that a delivery that takes too long is told as failed
    keep="1d",
):
    """Run the function of a delivery's webhook; each app has queues of its own for it."""

    delivery: str


class Handling:
    """The jobs that run the functions of the apps' webhooks."""

    def __init__(self, engine: Relevo) -> None:
        self._engine = engine
        self.receiver = engine.receiver

    def bindings(self) -> list[Binding]:
        """What a worker needs to run them like any other job."""
        made: list[Binding] = []
        for app in self._engine.apps:
            for queue in handling_queues(app):
                spec = _spec(queue)
                made.append(Binding(app.name, self.handle, HandleDelivery, spec, True, True))
        return made

    def job(self, app: str, delivery: Delivery, *, is_later: bool = False) -> NewJob:
        """The job that stands for a delivery until its function has worked."""
        spec = _spec(_queue(app, is_later=is_later))
        return NewJob(
            id=new_id(),
            queue=spec.queue,
            kind=spec.kind,
            payload=codec(HandleDelivery).encode(HandleDelivery(delivery=delivery.id)),
            attempts=spec.attempts,
            delay=0 if is_later else RETRY_AFTER,
            thread=delivery.id,
            cause=delivery.id,
            keep=spec.keep,
            meta=traced(delivery.traceparent),
        )

    async def unpark(self) -> None:
        """Let the jobs go on that waited for the code or the secret of an endpoint of ours."""
        for app in self._engine.apps:
            for route in app.webhooks:
                endpoint = f"{app.name}:{route.path}"
                try:
                    self.door(endpoint)
                except NoEndpoint:
                    continue
                await self._engine.store.unpark(_missing(endpoint))

    def door(self, endpoint: str) -> Door:
        """The door of an endpoint; NoEndpoint says what is missing here."""
        engine = self._engine
        for app in engine.apps:
            for route in app.webhooks:
                if f"{app.name}:{route.path}" != endpoint:
                    continue
                try:
                    return Door(app.name, route, engine.use, engine.public_url)
                except (SettingsError, MisuseError) as error:
                    raise NoEndpoint(f"{endpoint} cannot be handled here: {error}") from error
        raise NoEndpoint(f"no app here has the webhook {endpoint}")

    async def handle(self, order: HandleDelivery, ctx: Context) -> Outcome | None:
        """Run the function of a delivery that is still to be handled."""
        [kept] = await self._engine.store.delivery([order.delivery])
        if kept is None:
            return self._without(order, ctx)
        if ctx.id not in kept.jobs:
            return None  # a person has handled it, or an earlier run has
        try:
            async with asyncio.timeout(HANDLE_SECONDS):
                await self.resolve(kept, ctx.id)
        except (NoEndpoint, SealError) as error:
            return Parked(_missing(kept.endpoint), describe(error))
        except QueueClosed as error:
            return Snooze("30s", str(error))
        except StoreError:
            raise
        except (Exception, asyncio.CancelledError) as mistake:  # a function may raise anything
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise  # the worker's own doing
            if away := self._engine.outage(mistake):
                raise away from mistake
            if kept.state is not DeliveryState.FAILED:
                await self._fails(kept, ctx.id, mistake)
            # Whatever was raised, the job is not dead at once: the code may be mended meanwhile.
            return Retry(why_failed(mistake), failure=describe(mistake))
        return None

    def _without(self, order: HandleDelivery, ctx: Context) -> Outcome:
        """What becomes of a job whose delivery the store does not have."""
        if stamp(self._engine.clock.now()) - moment_of(ctx.id) < ARRIVES_WITHIN:
            return Snooze("5s", f"delivery {order.delivery} is not stored yet")
        return Cancelled(f"delivery {order.delivery} is not stored: it was pruned or erased")

    async def resolve_for_person(self, kept: Kept, job: str) -> Taken | None:
        """resolve() outside of the run of `job`, in the trace of the delivery."""
        delivery = delivery_of(kept, moment(kept.received_at))
        with self._engine.telemetry.again("replay", kept.endpoint, delivery):
            return await self.resolve(kept, job)

    async def resolve(self, kept: Kept, job: str) -> Taken | None:
        """Run a delivery's function in place of `job`, and store what it orders.

        None if another was first. Whatever the function raises is raised, and nothing changes.
        """
        engine = self._engine
        door = self.door(kept.endpoint)
        unsealed(kept.body)
        # Another body came under a key that was found, so that such a key is none in its place.
        is_found = kept.key is not None and (kept.generation != 0 or not is_provisional(kept.key))
        key = kept.key if is_found else None
        delivery = delivery_of(kept, moment(kept.received_at), door)
        intake = Intake(engine, door, delivery, kept.generation, kept.received_at, key=key)
        intake.reason = _missing_in(kept)
        if key is None:
            if HIDDEN in intake.key and _missing_in(kept):
                raise NoKey(
                    f"its key is masked in what is kept of delivery {kept.id}: with "
                    "RELEVO_SEAL_KEYS bodies are sealed instead; ask the provider to send it again"
                )
            [known] = await engine.store.delivered(door.endpoint, [intake.key])
            if known is not None and known.id != kept.id:
                return await self._ignore(door, kept, job, f"the same as delivery {known.id}")
        try:
            if door.is_transactional:
                return await self._resolve_within(door, intake, job)
            answer = await self.receiver.run(door, intake)
        except Reject as rejected:
            return await self._ignore(door, kept, job, f"refused by its function: {rejected}")
        arrival = self.receiver.arrival_of(door, intake, answer)
        return self._taken(await engine.store.resolve(job, arrival), arrival, answer)

    async def _resolve_within(self, door: Door, intake: Intake, job: str) -> Taken | None:
        engine, receiver = self._engine, self.receiver
        try:
            async with engine.transaction() as intake.tx:
                answer = await receiver.run(door, intake)
                await intake.tx.flush()
                arrival = self.receiver.arrival_of(door, intake, answer)
                connection = await receiver.driver(intake)
                reception = await engine.store.resolve_within(connection, job, arrival)
                taken = self._taken(reception, arrival, answer)
                if taken is None:
                    raise _Late
        except _Late:
            return None
        return taken

    async def _ignore(self, door: Door, kept: Kept, job: str, why: str) -> Taken | None:
        """Write down that nothing comes of a delivery."""
        why = _with_missing(scrub(why)[:REASON_MAX], kept)
        arrival = Arrival(replace(kept, state=DeliveryState.IGNORED, reason=why, jobs=()))
        reception = await self._engine.store.resolve(job, arrival)
        return self._taken(reception, arrival, door.answer)

    async def _fails(self, kept: Kept, job: str, mistake: BaseException) -> None:
        """Write down that the function of a delivery that was accepted to be handled has failed."""
        self._engine.telemetry.counts["delivery_failed"] += 1
        why = _with_missing(why_failed(mistake), kept)
        failed = replace(kept, state=DeliveryState.FAILED, reason=why, jobs=(job,))
        await self._engine.store.resolve(job, Arrival(failed))

    def _taken(self, reception: Reception, arrival: Arrival, answer: Answer) -> Taken | None:
        match reception.verdict:
            case Verdict.NEW:
                kept = reception.kept
                self._engine.telemetry.deliveries[kept.endpoint, kept.state] += 1
                self._engine.joining.received(arrival.jobs, reception.kept)
                return Taken(answer, reception.kept, arrival.jobs, is_new=True)
            case Verdict.CLOSED:
                raise QueueClosed("a queue that the delivery orders from is draining")
            case _:
                return None


def _missing_in(kept: Kept) -> str:
    """The part of a delivery's line that says what its body is kept without."""
    return "".join(kept.reason.partition(MASKED_IN)[1:])


def _with_missing(why: str, kept: Kept) -> str:
    return "; ".join([said for said in (why, _missing_in(kept)) if said])


def handling_queues(app: App) -> list[str]:
    """The queues of the jobs that run an app's webhooks' functions."""
    queues = [_queue(app.name)] if app.webhooks else []
    if any(route.later for route in app.webhooks):
        queues.append(_queue(app.name, is_later=True))
    return queues


@lru_cache(maxsize=256)
def _spec(queue: str) -> Spec:
    return dataclasses.replace(HandleDelivery.__relevo__, queue=queue)


def _queue(app: str, *, is_later: bool = False) -> str:
    return f"{app}:webhooks:{'later' if is_later else 'retry'}"


def _missing(endpoint: str) -> str:
    """What jobs are parked behind whose endpoint is not known here, or has no secret."""
    return f"endpoint:{endpoint}"
