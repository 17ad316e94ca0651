"""Rows as jobs, and jobs as columns."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from relevo.errors import MisuseError
from relevo.ids import parse_id
from relevo.job import After, Attempt, Ending, Failure, Job, Joined, Lease, NewJob, State, Unique
from relevo.store import Kept, Loss
from relevo.stores.postgres.lines import Record
from relevo.stores.postgres.text import clean, restore

CODES = {
    State.SCHEDULED: 0,
    State.READY: 0,
    State.RUNNING: 1,
    State.WAITING: 2,
    State.PARKED: 3,
    State.HELD: 4,
    State.DONE: 5,
    State.DEAD: 6,
    State.CANCELLED: 7,
}
_STATES = {code: state for state, code in CODES.items()}
FRESH = -1
"""Has never started, and gives way to a newer job of its key; found apart from the others."""
BEHIND = -2
"""Such a job that waits until one of its key which has started has ended."""


def hashed(*texts: str) -> UUID:
    """Texts of any length as one short value; what is remembered of a key, never its text."""
    whole = "\0\1".join(texts).encode("utf-8", "surrogatepass")
    return UUID(bytes=hashlib.blake2b(whole, digest_size=16).digest())


def digest(data: str | bytes) -> str:
    """What is remembered of a key or a body, in hex."""
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def state_of(code: int, run_at: int, now: int) -> State:
    """A stored job's state; whether it is ready depends on the time."""
    if code > 0:
        return _STATES.get(code, State.HELD)
    return State.READY if code != BEHIND and run_at <= now else State.SCHEDULED


JOB_ARGUMENTS = 27


def job_arguments(first: int) -> str:
    """The arguments of `insert_jobs` after the skew, from what `columns_of` gives.

    The driver asks of every item in a list whether it is a list itself, which costs more than all
    the rest: what can, travels as one text, or as one value if all are the same.
    """
    size = f"${first}"
    columns = [f"${number}" for number in range(first + 1, first + JOB_ARGUMENTS)]
    columns[0] += "::text::uuid[]"
    for place, kind in ((1, "text"), (2, "text"), (6, "smallint"), (7, "integer"), (8, "bigint")):
        columns[place] = f"relevo.spread({columns[place]}::{kind}[], {size}::integer)"
    return ", ".join(columns)


def columns_of(jobs: Sequence[NewJob]) -> list[Any]:
    """How many there are, then their columns; a column of nulls travels as an empty one."""
    # Those upwards stand behind, a tally without a word whether it is fatal.
    edges = [(job.id, edge.child, edge.policy == "fail") for job in jobs for edge in job.after] + [
        (edge.parent, job.id, None if edge.policy == "tally" else edge.policy == "fail")
        for job in jobs
        for edge in job.before
    ]
    keys = filled([clean(job.key) for job in jobs])
    lanes = filled([clean(job.lane) for job in jobs])
    delays = [job.delay for job in jobs]
    return [
        len(jobs),
        ids_as_text([job.id for job in jobs]),
        brief([job.queue for job in jobs]),
        brief([clean(job.kind) for job in jobs]),
        [job.payload for job in jobs],
        delays if any(delays) else [],
        filled([job.run_at for job in jobs]),
        brief([min(max(job.priority, 0), 2) for job in jobs]),
        brief([job.attempts for job in jobs]),
        brief([job.keep for job in jobs]),
        [None if job.key is None else hashed(job.key) for job in jobs] if keys else [],
        keys,
        [job.key is not None and job.unique == "forever" for job in jobs] if keys else [],
        [None if job.lane is None else hashed(job.lane) for job in jobs] if lanes else [],
        lanes,
        filled([clean(job.thread) for job in jobs]),
        filled([clean(job.cause) for job in jobs]),
        filled([job.meta for job in jobs]),
        filled([clean(job.flow) for job in jobs]),
        filled([clean(job.node) for job in jobs]),
        filled([clean(job.bundle) for job in jobs]),
        [parent for parent, _, _ in edges],
        [child for _, child, _ in edges],
        [is_fatal for _, _, is_fatal in edges],
        filled([True if job.key is not None and job.unique == "latest" else None for job in jobs])
        if keys
        else [],
        filled([job.digest for job in jobs]) if keys else [],
        filled([job.remember or None for job in jobs]),
    ]


def filled(values: list[Any]) -> list[Any]:
    """A column of nulls as an empty one."""
    return [] if values.count(None) == len(values) else values


def brief(values: list[Any]) -> list[Any]:
    """A column of which all values are the same as one; who reads it makes it whole again."""
    return values[:1] if values and values.count(values[0]) == len(values) else values


def ids_as_text(ids: Sequence[str]) -> str:
    """An array of ids, as PostgreSQL reads it."""
    text = ",".join(ids)
    if len(text) != max(33 * len(ids) - 1, 0):  # some are spelled in another way, or are no ids
        try:
            text = ",".join([UUID(id).hex for id in ids])
        except ValueError as error:
            raise MisuseError(f"a job's id is a UUID: {error}") from error
    return f"{{{text}}}"


def packed_ids(jobs: Sequence[NewJob]) -> bytes:
    """The jobs of a delivery, sixteen bytes each."""
    ids = [job.id for job in jobs]
    return b"".join([bytes.fromhex(id) if len(id) == 32 else UUID(id).bytes for id in ids])


def thread_of(kept: Kept) -> str | None:
    """A delivery's thread as it is stored: nothing if it starts its own."""
    return None if kept.thread == kept.id else clean(kept.thread or "")


def settled_columns_of(endings: Sequence[Ending]) -> list[Any]:
    """The arguments of `settle_jobs` after the skew."""
    leases = [ending.lease for ending in endings]
    columns: list[Any] = [
        ids_as_text([lease.id for lease in leases]),
        f"{{{','.join([str(lease.token) for lease in leases])}}}",
        filled([ending.result for ending in endings]),
    ]
    states = [ending.state for ending in endings]
    if states.count(State.DONE) == len(states):
        return [*columns, *([] for _ in range(12))]
    failures = [ending.failure for ending in endings]
    planned = [ending.planned for ending in endings]
    released = [ending.released for ending in endings]
    suspicions = [ending.suspicion for ending in endings]
    crashes = [ending.crashes for ending in endings]
    return [
        *columns,
        [CODES[state] for state in states],
        [ending.delay for ending in endings],
        [ending.spend for ending in endings],
        [failure and clean(failure.type) for failure in failures],
        [failure and clean(failure.message) for failure in failures],
        [failure and clean(failure.trace) for failure in failures],
        [failure and clean(failure.fingerprint) for failure in failures],
        [clean(ending.park) for ending in endings],
        planned if any(planned) else [],
        released if any(released) else [],
        suspicions if any(suspicions) else [],
        crashes if any(crashes) else [],
    ]


def lost_columns_of(losses: Sequence[Loss]) -> list[Any]:
    """The arguments of `rescue_jobs` after the worker."""
    return [
        [loss.id for loss in losses],
        [clean(loss.failure.type) for loss in losses],
        [clean(loss.failure.message) for loss in losses],
        [clean(loss.failure.trace) for loss in losses],
        [clean(loss.failure.fingerprint) for loss in losses],
        [loss.suspicion for loss in losses],
        [loss.is_excused for loss in losses],
    ]


def lease_of(row: Record, token: int) -> Lease:
    """A row that a claim answered; all by place, since names cost more than the rest."""
    (
        uuid, queue, kind, payload, attempt, attempts, key, lane, thread, cause, meta, flow, node,
        keep, inserted_at, claimed_at, _, _, _, turn, suspicion, crashes,
    ) = row  # fmt: skip
    identity = uuid.hex
    return Lease(
        identity,
        queue,
        restore(kind),
        payload,
        attempt,
        attempts,
        token,
        None,
        key and restore(key),
        lane and restore(lane),
        (thread and restore(thread)) or identity,
        cause and restore(cause),
        meta,
        flow and restore(flow),
        node and restore(node),
        keep,
        inserted_at,
        claimed_at,
        turn or 0,
        suspicion or 0,
        crashes or 0,
    )


def job_of(row: Record, now: int, *, history: bool = False) -> Job:
    """A row of `everything`, with its history and edges if the row has them and they are asked."""
    identity = row["id"].hex
    failure, state = None, state_of(row["state"], row["run_at"], now)
    if row["error_type"] is not None and state is not State.DONE:
        failure = Failure(
            type=restore(row["error_type"]),
            message=restore(row["error_message"] or ""),
            trace=restore(row["error_trace"] or ""),
            fingerprint=restore(row["fingerprint"] or ""),
        )
    job = Job(
        id=identity,
        queue=row["queue"],
        kind=restore(row["kind"]),
        state=state,
        payload=row["payload"],
        priority=row["priority"],
        attempt=row["attempt"],
        attempts=row["attempts"],
        inserted_at=row["inserted_at"],
        run_at=row["run_at"],
        ended_at=row["ended_at"],
        lease_until=row["lease_until"],
        worker=restore(row["worker"]),
        key=restore(row["key"]),
        unique=_unique_of(row),
        lane=restore(row["lane"]),
        park=restore(row["park"]),
        thread=restore(row["thread"]) or identity,
        cause=restore(row["cause"]),
        meta=row["meta"],
        flow=restore(row["flow"]),
        node=restore(row["node"]),
        result=row["result"],
        failure=failure,
        note=restore(row["note"] or ""),
        turn=row["turn"],
        suspicion=row["suspicion"],
        crashes=row["crashes"],
        remember=row["remember"],
    )
    if history:
        job.keep = row["keep"]
        job.joined = row["joined"]
        job.joins = tuple(
            Joined(id=id.hex, cause=restore(cause), at=at)
            for id, cause, at in zip(
                row["join_ids"] or (), row["join_causes"] or (), row["join_ats"] or (), strict=True
            )
        )
        job.history = _history_of(row, job)
        job.after = tuple(
            After(child.hex, "fail" if fatal else "continue")
            for child, fatal in zip(row["children"], row["fatals"], strict=True)
        )
        job.before = tuple(parent.hex for parent in row["parents"])
    return job


def _unique_of(row: Record) -> Unique:
    if row["latest"]:
        return "latest"
    return "forever" if row["forever"] else "unfinished"


def _history_of(row: Record, job: Job) -> tuple[Attempt, ...]:
    lines = [told for line in row["history"] or () if (told := _attempt_of(line))]
    if job.state is State.DONE and job.ended_at is not None:
        # The run that ended well cost no line: the row itself tells.
        lines.append(
            Attempt(
                number=job.attempt,
                outcome="done",
                began_at=row["claimed_at"] or job.ended_at,
                ended_at=job.ended_at,
                worker=job.worker or "",
            )
        )
    return tuple(lines[-50:])


def _attempt_of(line: str) -> Attempt | None:
    try:
        number, outcome, began_at, ended_at, worker, failure = _LINES.decode(line)
    except msgspec.MsgspecError:
        return None  # somebody wrote it by hand; the job is worth more than the line
    return Attempt(
        number=number,
        outcome=outcome,
        began_at=began_at,
        ended_at=ended_at,
        worker=restore(worker),
        failure=failure
        and Failure(
            type=restore(failure.type),
            message=restore(failure.message),
            trace=restore(failure.trace),
            fingerprint=restore(failure.fingerprint),
        ),
    )


_LINES = msgspec.json.Decoder(tuple[int, str, int, int, str, Failure | None])


def page_size(limit: int) -> int:
    """What a page may hold of what was asked for."""
    return min(max(limit, 1), 200)


def known_ids(texts: Sequence[str]) -> list[str]:
    """Those texts that are ids, in one spelling."""
    return [identity for text in texts if (identity := parse_id(text))]
