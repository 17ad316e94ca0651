"""Facts about people: what has happened, in the past tense."""

from __future__ import annotations

from relevo import Event


class UserRegistered(Event, name="user.registered"):
    user_id: str
