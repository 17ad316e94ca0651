"""Makes outbox_events say what the engine says: it is the engine that decides, support that reads.

A run that failed orders a mirror of itself, since only after it has ended is it known whether the
order waits, is parked behind a breaker, is held, or is dead.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from relevo import State
from relevo.apps.cars import records
from relevo.apps.cars.events import ReservationStuck
from relevo.apps.cars.records import OutboxDeadLetter, OutboxEvent, Records
from relevo.clock import moment
from relevo.job import Job

_WORDS = {
    State.SCHEDULED: "PENDING",
    State.READY: "PENDING",
    State.WAITING: "PENDING",
    State.RUNNING: "PROCESSING",
    State.PARKED: "PARKED",
    State.HELD: "HELD",
    State.DONE: "DONE",
    State.CANCELLED: "CANCELLED",
}


async def mirror(rows: Records, code: str) -> bool:
    """Bring one reservation's rows up to date; False while its order is being carried out.

    The rows are locked before the job is read: whoever changes both does it in one transaction,
    so what is written here is never older than what stands there.
    """
    async with rows.transaction() as tx:
        events = {
            event.id: event
            for event in await tx.scalars(
                select(OutboxEvent)
                .where(OutboxEvent.reservation_code == code, OutboxEvent.status != "DONE")
                .with_for_update()
            )
        }
        dead = await tx.scalars(
            select(OutboxDeadLetter.id)
            .where(OutboxDeadLetter.reservation_code == code)
            .with_for_update()
        )
        ids = [*events, *dead]
        jobs = [job for job in await rows.relevo.store.find(ids) if job is not None] if ids else []
        for job in jobs:
            event = events.get(job.id)
            if event is None and job.state is not State.DEAD:
                event = await records.revive(tx, job.id)
            if event is not None:
                was = event.status
                await _copy(tx, event, job, rows.now())
                if job.state in (State.DEAD, State.HELD) and was != "HELD":
                    await _tell(rows, tx, event, job)
    return all(job.state is not State.RUNNING for job in jobs)


async def _tell(rows: Records, tx: AsyncSession, event: OutboxEvent, job: Job) -> None:
    """Publish that an order has begun to wait for a person."""
    fact = ReservationStuck(
        event.reservation_code,
        event.payload["supplier_id"],
        job.state.value.upper(),
        job.failure.message[:500] if job.failure else "given up",
    )
    await rows.relevo.publish(fact, tx=tx)


async def _copy(tx: AsyncSession, event: OutboxEvent, job: Job, at: datetime) -> None:
    event.status = _WORDS.get(job.state, event.status)
    event.attempts = job.attempt
    event.next_attempt_at = moment(job.run_at) if event.status == "PENDING" else None
    event.last_error = job.failure.message[:2_000] if job.failure else event.last_error
    if job.state is State.RUNNING:
        event.locked_by = job.worker
    else:
        event.locked_by = event.locked_at = None
    event.updated_at = at
    if job.state is State.DEAD:
        await records.bury(tx, event, job.failure.message if job.failure else "given up", at)
