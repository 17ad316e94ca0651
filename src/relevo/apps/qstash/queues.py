"""Orders: one attempt at a delivery, one tick of a schedule."""

from __future__ import annotations

from relevo import Command, constant


class Deliver(
    Command,
    queue="qstash:messages:deliver",
    attempts=5,  # of ours, should a worker die; a message's own retries are jobs of their own
    backoff=constant("5s"),
    timeout="2h",
    key="{message_id}:{retried}",
    unique="unfinished",
    limit=200,
):
    """Make one attempt to bring a message to its destination."""

    message_id: str
    retried: int


class Tick(
    Command,
    queue="qstash:schedules:tick",
    attempts=100,
    backoff=constant("5s"),
    timeout="60s",
    key="{schedule_id}:{generation}:{at}",
    unique="unfinished",
    allow=("schedule_id",),  # the publisher makes it, and it may look like a key
):
    """Publish what a schedule says, and order its next tick."""

    schedule_id: str
    generation: int
    at: int  # Unix milliseconds


class Tidy(
    Command,
    queue="qstash:messages:tidy",
    attempts=3,
    backoff=constant("1m"),
    timeout="5m",
):
    """Forget messages that ended long ago."""
