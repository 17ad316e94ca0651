"""Orders: what was asked for, as the job that stands for it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import msgspec

from relevo.backoff import Backoff
from relevo.clock import Duration, milliseconds, stamp
from relevo.errors import DefinitionError, GroupClosed, MisuseError, QueueClosed
from relevo.follow_ups import digest
from relevo.ids import new_id
from relevo.intake import Intake
from relevo.job import NewJob, Receipt, Unique, Verdict
from relevo.job_meta import Meta, decode_meta, traced
from relevo.message import (
    KEY_MAX,
    KEY_PARTS,
    PRIORITIES,
    Command,
    Event,
    KeyPart,
    Message,
    Priority,
    Spec,
    attempts_of,
    backoff_of,
    check_order,
    codec,
    key_text,
    time_limit,
    unique_of,
)
from relevo.sealing import Seal
from relevo.telemetry import Tracing

if TYPE_CHECKING:
    from relevo.context import Context


class Started(NamedTuple):
    """A flow on its way: its id, and of each node the job that stands for it.

    `differs`: this start joined a flow of other payloads or nodes, and its own are not used.
    """

    id: str
    jobs: dict[str, str]
    verdict: Verdict
    differs: bool = False


class Wishes(TypedDict, total=False):
    """What an order may say otherwise than its class does."""

    delay: Duration | None
    at: datetime | None
    key: KeyPart | None
    unique: Unique | None
    priority: Priority | None
    attempts: int | None
    backoff: Backoff | None
    timeout: Duration | None


def job_of(
    message: Message,
    spec: Spec,
    cause: Context | Intake | None,
    tracing: Tracing | None,
    seal: Seal | None,
) -> NewJob:
    """The job of a message, which something caused, or nothing but its caller."""
    meta = None if tracing is None else traced(tracing.traceparent())
    if spec.dependency is not None:
        spec.dependency.fill(message)  # so that the caller hears of it, and not the worker
    if cause is None:
        payload = codec(type(message)).encode(message)
        return NewJob(
            id=new_id(),
            queue=spec.queue,
            kind=spec.kind,
            payload=payload,
            priority=spec.priority,
            attempts=spec.attempts,
            key=None if spec.key is None else spec.key.fill(message),
            unique=spec.unique,
            digest=None if spec.key is None else digest(payload, seal),
            lane=None if spec.lane is None else spec.lane.fill(message),
            keep=spec.keep,
            meta=meta,
        )
    delivered = cause.delivered if isinstance(cause, Intake) else None
    return NewJob(
        id="",  # one of its cause's making, with a digest: see FollowUps.adopt()
        queue=spec.queue,
        kind=spec.kind,
        payload=codec(type(message)).encode(message, delivered),
        priority=spec.priority,
        attempts=spec.attempts,
        key=None if spec.key is None else spec.key.fill(message),
        unique=spec.unique,
        lane=None if spec.lane is None else spec.lane.fill(message),
        thread=cause.thread,
        cause=cause.id,
        keep=spec.keep,
        bundle=cause.id if isinstance(cause, Intake) else None,  # stored with the delivery, or not
        meta=meta,
    )


def with_key(job: NewJob) -> NewJob:
    """The job of an event whose meta has the key that the jobs of its subscribers get."""
    meta = Meta() if job.meta is None else decode_meta(job.meta)
    meta.key, meta.unique = job.key, job.unique
    return msgspec.structs.replace(job, meta=msgspec.json.encode(meta))


def altered(job: NewJob, command: type[Message], spec: Spec, wishes: Wishes) -> NewJob:
    """The job as this one order wishes it."""
    if list(wishes.values()).count(None) == len(wishes):  # most wish nothing
        return job
    delay, at, key = wishes.get("delay"), wishes.get("at"), wishes.get("key")
    unique = wishes.get("unique")
    priority, attempts = wishes.get("priority"), wishes.get("attempts")
    backoff, timeout = wishes.get("backoff"), wishes.get("timeout")
    if delay is not None and at is not None:
        raise DefinitionError("give `delay` or `at`, not both: they may say different things")
    changes: dict[str, Any] = {}
    if delay is not None:
        changes["delay"] = milliseconds(delay)
    if at is not None:
        changes["run_at"] = stamp(at)
    if key is not None:
        changes["key"] = key_of(key)
    if key is not None or unique is not None:
        changes["unique"] = _unique(unique, key is not None, command, spec)
    if priority is not None:
        if priority not in PRIORITIES:
            raise DefinitionError(f"priority is 'high', 'normal' or 'low', not {priority!r:.40}")
        changes["priority"] = PRIORITIES[priority]
    if attempts is not None:
        changes["attempts"] = attempts_of(attempts, command.__name__)
    if backoff is not None or timeout is not None:
        changes["meta"] = msgspec.json.encode(_meta(backoff, timeout, job.meta))
    return msgspec.structs.replace(job, **changes) if changes else job


def _unique(given: Unique | None, has_key: bool, command: type[Message], spec: Spec) -> Unique:
    """What the key of this one order is for: as the order says, or as its class does."""
    if given is None and spec.key is not None:
        return spec.unique
    owner = f"enqueue({command.__name__}(…))"
    unique = unique_of(given, has_key or spec.key is not None, owner)
    check_order(unique, spec.ordered, owner)
    return unique


def key_of(given: KeyPart) -> str:
    """The key that a caller gives, as text; DefinitionError for what is none."""
    if (key := key_text(given)) is None:
        raise DefinitionError(
            f"a key is {KEY_PARTS}, of 1 to {KEY_MAX} characters, not {given!r:.40}"
        )
    return key


def taken(job: NewJob, receipt: Receipt) -> Receipt:
    """The receipt of an order; QueueClosed or GroupClosed if it was not taken."""
    if receipt.verdict is Verdict.LATE:
        raise GroupClosed(
            f"job {job.before[0].parent}, which {job.kind} was to be added to, takes no more: its "
            "group is closed, or over. Only members that have not ended add to it then"
        )
    if receipt.verdict is Verdict.CLOSED:
        raise QueueClosed(f"{job.queue} is draining and takes no new jobs; resume it first")
    return receipt


def spec_of(command: Command) -> Spec:
    """What its class says of a command; MisuseError if it is none."""
    if not isinstance(command, Command):  # pyright: ignore[reportUnnecessaryIsInstance] - people without a type checker
        raise MisuseError(f"enqueue() takes a Command; {mistaken(command)}")
    try:
        return command.__relevo__
    except AttributeError:
        raise MisuseError(
            "Command itself orders nothing: enqueue one of a class of yours"
        ) from None


def mistaken(given: object) -> str:
    """What somebody gave in the place of something else, and what to do with it."""
    match given:
        case Event():
            return f"{type(given).__name__} is an Event: publish() it"
        case Command():
            return f"{type(given).__name__} is a Command: enqueue() it"
        case type():
            return f"{given.__name__} is a class: write {given.__name__}(…)"
        case _:
            return f"it got {type(given).__name__}"


def _meta(backoff: Backoff | None, timeout: Duration | None, known: bytes | None) -> Meta:
    made = Meta() if known is None else msgspec.json.decode(known, type=Meta)
    made.timeout = None if timeout is None else milliseconds(time_limit(timeout))
    if backoff is not None:
        backoff_of(backoff, "enqueue()")
        first, cap = milliseconds(backoff.first), milliseconds(backoff.cap)
        made.backoff = (first, backoff.factor, cap, backoff.jitter)
    return made
