"""People: how far each may go."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from relevo.errors import NotAllowed
from relevo.scrubbing import scrub
from relevo.store import By

NOTE_MAX = 1_000


class Role(StrEnum):
    """How far a person may go; each may do what those before it may."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


ACTIONS: Final[dict[str, Role]] = {
    "look": Role.VIEWER,  # everything that only reads; payloads are masked
    "reveal": Role.OPERATOR,  # payloads as they are
    "retry": Role.OPERATOR,
    "run_again": Role.OPERATOR,  # a job that has ended, as a new one
    "cancel": Role.OPERATOR,
    "discard": Role.OPERATOR,
    "pause": Role.OPERATOR,
    "resume": Role.OPERATOR,
    "confirm_effect": Role.OPERATOR,
    "deny_effect": Role.OPERATOR,
    "turn_breaker": Role.OPERATOR,
    "change": Role.OPERATOR,  # limits, rates, priorities and slots, and when breakers open
    "forget_worker": Role.OPERATOR,  # a row of the list of workers
    "replay": Role.OPERATOR,  # a delivery, by today's code
    "unsubscribe": Role.ADMIN,  # a subscriber gets no later events
    "edit": Role.ADMIN,  # decides what will be done in someone's name
    "restore": Role.ADMIN,  # which effects may be made again
    "drain": Role.ADMIN,  # refuses newcomers
    "forget": Role.ADMIN,  # nobody brings it back
}
"""What a person may do, and the role it needs; the doors ask here and nowhere else."""

_RANK = list(Role)


@dataclass(frozen=True, slots=True)
class Person:
    """Who is at the desk."""

    name: str
    role: Role = Role.VIEWER

    def may(self, action: str) -> bool:
        return _RANK.index(self.role) >= _RANK.index(ACTIONS[action])

    def acts(self, action: str, note: str = "") -> By:
        """The signature under an action; NotAllowed when the role does not reach that far."""
        if not self.may(action):
            raise NotAllowed(
                f"{self.name} is {self.role}; '{action}' needs the role {ACTIONS[action]}"
            )
        return By(self.name[:200], scrub(note.strip())[:NOTE_MAX])
