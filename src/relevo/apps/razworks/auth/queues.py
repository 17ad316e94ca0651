"""Orders of auth."""

from __future__ import annotations

from relevo import Command, exponential


class SendWelcomeEmail(
    Command,
    queue="razworks:auth:welcome-email",
    attempts=3,
    backoff=exponential("2s", cap="1m"),
    timeout="30s",
    key="welcome:{user_id}",
    unique="forever",
    breaker="doppler-relay",
):
    user_id: str
