"""Makes outbox_events say what the engine says: it is the engine that decides, support that reads.

A run that failed orders a mirror of itself, since only after it has ended is it known whether the
order waits, is parked behind a breaker, is held, or is dead.
"""

from __future__ import annotations

from sqlalchemy import Select, select

from relevo import State
from relevo.apps.cars import records
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
    """Bring one reservation's rows up to date; False while its order is being carried out."""
    async with rows.transaction() as tx:
        ids = [
            *(await tx.scalars(_open(code))),
            *(await tx.scalars(_dead(code))),
        ]
    jobs = [job for job in await rows.relevo.store.find(ids) if job is not None]
    async with rows.transaction() as tx:
        for job in jobs:
            event = await tx.get(OutboxEvent, job.id)
            if event is None and job.state is not State.DEAD:
                event = await records.revive(tx, job.id)
            if event is None:
                continue
            _copy(event, job, rows)
            if job.state is State.DEAD:
                why = job.failure.message if job.failure else "given up"
                await records.bury(tx, event, why, rows.now())
    return all(job.state is not State.RUNNING for job in jobs)


def _open(code: str) -> Select[str]:
    return select(OutboxEvent.id).where(
        OutboxEvent.reservation_code == code, OutboxEvent.status != "DONE"
    )


def _dead(code: str) -> Select[str]:
    return select(OutboxDeadLetter.id).where(OutboxDeadLetter.reservation_code == code)


def _copy(event: OutboxEvent, job: Job, rows: Records) -> None:
    event.status = _WORDS.get(job.state, event.status)
    event.attempts = job.attempt
    event.next_attempt_at = moment(job.run_at) if event.status == "PENDING" else None
    event.last_error = job.failure.message[:2_000] if job.failure else event.last_error
    if job.state is State.RUNNING:
        event.locked_by = job.worker
    else:
        event.locked_by = event.locked_at = None
    event.updated_at = rows.now()
