"""Facts: a guest wrote, a reservation changed."""

from __future__ import annotations

from relevo import Event


class MessageSaved(
    Event,
    name="hotel.message-saved",
    key="{id}",
    unique="unfinished",
    allow=("booking_id", "conversation_id", "id", "message_id"),
):
    """A guest's message is in the table for good."""

    id: str
    hotel_id: str
    conversation_id: str
    message_id: str
    via: str
    booking_id: str = ""
    sent_at: int = 0


class ReservationChanged(
    Event,
    name="hotel.reservation-changed",
    key="{hotel_id}:{event_id}:{change_id}",
    unique="unfinished",
    allow=("booking_id", "change_id", "event_id"),
):
    """A reservation has another state, or other details."""

    hotel_id: str
    booking_id: str
    event_id: str
    status: str
    change_id: str = "0"
