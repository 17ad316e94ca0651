"""Orders: keep a booking, keep a message, answer a guest, ask Beds24 for what it left out."""

from __future__ import annotations

from typing import Any

from relevo import Breaker, Command, exponential

PATIENT = exponential("2s", cap="5m")
# To save again harms nobody, and a process that dies spends an attempt of all that it had in hand.
SAFE = 30
REPLIES = "hotel:messages:reply"
# Others make these ids, and a long number may look like a card's; guests write what they like.
THEIRS = ("booking_id", "content", "conversation_id", "guest_id", "guest_name", "message_id")


class SaveBooking(
    Command,
    queue="hotel:bookings:save",
    attempts=SAFE,
    backoff=PATIENT,
    timeout="45s",
    key="{hotel_id}:{event_id}:{change_id}",
    unique="unfinished",
    allow=("booking_id", "change_id", "details", "event_id"),
):
    """A change of a reservation; `modified_at` is the provider's time, 0 if it did not say.

    An event may be told more than once: the same change_id is a repetition, another one under the
    same event_id is another change.
    """

    hotel_id: str
    event_id: str
    event_type: str
    booking_id: str
    status: str  # see booking.py
    modified_at: int = 0
    via: str = ""
    details: dict[str, Any] | None = None
    change_id: str = "0"  # of what is told, see reading.identified()


class SaveMessage(
    Command,
    queue="hotel:messages:save",
    attempts=SAFE,
    backoff=PATIENT,
    timeout="45s",
    key="{hotel_id}:{channel}:{message_id}",
    unique="unfinished",
    allow=THEIRS,
):
    """What a guest wrote, or what the house wrote elsewhere."""

    hotel_id: str
    channel: str
    message_id: str
    conversation_id: str
    guest_id: str
    content: str
    sent_at: int
    direction: str = "guest"
    via: str = ""
    booking_id: str = ""
    guest_name: str = ""


class ReplyToGuest(
    Command,
    queue=REPLIES,
    attempts=15,
    backoff=exponential("1s", cap="10m"),
    timeout="90s",
    key="{reference}",
    unique="forever",
    breaker=Breaker("cm:{hotel_id}:{via}", window="10m"),
    allow=("booking_id", "content", "conversation_id", "guest_id", "in_reply_to", "reference"),
):
    """An answer to a guest; the same reference is the same answer, for good."""

    hotel_id: str
    channel: str
    conversation_id: str
    guest_id: str
    reference: str
    content: str
    via: str
    in_reply_to: str = ""
    booking_id: str = ""
    author: str = "bot"
    asked_at: int = 0  # when the guest wrote


class FetchBooking(
    Command,
    queue="hotel:beds24:fetch",
    attempts=10,
    backoff=exponential("5s", cap="10m"),
    timeout="90s",
    breaker=Breaker("beds24:{hotel_id}", window="10m"),
    ordered="{hotel_id}",  # one call at a time per account
    allow=("booking_id",),
):
    """Ask Beds24 how a booking stands and what was written about it."""

    hotel_id: str
    booking_id: str
