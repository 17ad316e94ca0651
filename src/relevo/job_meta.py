"""The meta of a job: what travels beside its payload."""

from __future__ import annotations

import msgspec

from relevo.job import Job, NewJob, Unique


class Meta(msgspec.Struct, omit_defaults=True):
    """Settings of this one job, the trace it belongs to, and its origin."""

    backoff: tuple[int, float, int, float] | None = None  # first and cap in milliseconds
    timeout: int | None = None
    traceparent: str | None = None
    origin: str | None = None  # the id that generation 0 of this job has; None: its own
    key: str | None = None  # of an event: the key of the jobs of its subscribers
    unique: Unique | None = None  # what that key is for
    children: list[list[str]] | None = None  # of a flow's node: see relevo.child_names


decode_meta = msgspec.json.Decoder(Meta).decode


def traced(traceparent: str | None) -> bytes | None:
    """The meta of a job that belongs to a trace; None where there is no trace."""
    return msgspec.json.encode(Meta(traceparent=traceparent)) if traceparent else None


def origin_of(job: Job | NewJob) -> str:
    """The id that a job's effects are written under: its own, or that of its generation 0."""
    if job.meta is None or b'"origin"' not in job.meta:
        return job.id
    return decode_meta(job.meta).origin or job.id
