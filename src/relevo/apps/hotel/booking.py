"""How a reservation's state follows the channel manager, and never the order of arrival.

Every provider says how a booking stands in words of its own. WORDS turns them into ours; BOOKED is
for those that do not tell a new booking from a changed one: confirmed when we first see it,
modified when it changes later.
"""

from __future__ import annotations

from typing import NamedTuple

CONFIRMED, MODIFIED, CANCELLED, PENDING = "confirmed", "modified", "cancelled", "pending"
BOOKED = "booked"
UNCHANGED = ""

WORDS = {
    # the project's own, and Beds24's webhook version 1
    "confirmed": CONFIRMED,
    "modified": MODIFIED,
    "cancelled": CANCELLED,
    "canceled": CANCELLED,
    "new": CONFIRMED,
    "modify": MODIFIED,
    "cancel": CANCELLED,
    "message": UNCHANGED,
}
STATES = {
    # Beds24's booking
    "confirmed": BOOKED,
    "new": BOOKED,
    "cancelled": CANCELLED,
    "request": PENDING,
    "inquiry": PENDING,
}
RES_STATUS = {
    # OTA, as various channel managers spell it
    "book": CONFIRMED,
    "booked": CONFIRMED,
    "commit": CONFIRMED,
    "committed": CONFIRMED,
    "reserved": CONFIRMED,
    "new": CONFIRMED,
    "confirmed": CONFIRMED,
    "modify": MODIFIED,
    "modified": MODIFIED,
    "cancel": CANCELLED,
    "cancelled": CANCELLED,
    "canceled": CANCELLED,
}
_RANK = {PENDING: 0, CONFIRMED: 1, MODIFIED: 2, CANCELLED: 3}


class Standing(NamedTuple):
    """A reservation's state, and the provider's time of it; 0 when no provider has told one."""

    status: str
    at: int


def follow(known: Standing | None, status: str, at: int) -> Standing | None:
    """How a reservation stands after a change; None when the change is older than what is known.

    A change that does not say when it happened cannot undo anything: it moves a reservation on
    from pending to confirmed, modified, cancelled, and never back.
    """
    if known is None:
        first = CONFIRMED if status == BOOKED else status or PENDING
        return Standing(first, at)
    if at == 0:
        later = _RANK.get(status, 0) > _RANK[known.status]
        return Standing(status if later else known.status, known.at)
    if at < known.at:
        return None
    if status == BOOKED:
        return Standing(_booked(known, at), at)
    return Standing(status or known.status, at)


def _booked(known: Standing, at: int) -> str:
    if known.status not in (CONFIRMED, MODIFIED):
        return CONFIRMED
    # A state that came without its time is the same booking seen for the first time.
    return MODIFIED if 0 < known.at < at else known.status
