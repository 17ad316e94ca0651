"""What the hotel keeps: reservations, cm_events, messages, conversations, guests.

`sql.py` keeps them in the application's database, `astra.py` in Astra's collections; both keep the
same promises. A message and an event are stored once, by their ids; a conversation never moves back
in time; a reservation follows booking.follow().
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from msgspec import Struct, field

from relevo.apps.hotel import booking, names
from relevo.apps.hotel.queues import SaveBooking, SaveMessage
from relevo.apps.hotel.settings import Mode
from relevo.context import Context

PREVIEW = 160
PAGE = 50
# What an event keeps of its changes: nothing that names the guest.
TOLD = ("arrival", "departure", "room", "adults", "children", "price", "currency")


class Reservation(Struct, frozen=True, kw_only=True, rename="camel"):
    """A booking as the channel manager last told it."""

    id: str
    hotel_id: str
    booking_id: str
    status: str
    modified_at: int = 0  # the provider's time
    via: str = ""
    arrival: str = ""
    departure: str = ""
    channel: str = ""
    guest_name: str = ""
    details: dict[str, Any] = field(default_factory=dict[str, Any])
    created_at: int = 0
    updated_at: int = 0


class CmEvent(Struct, frozen=True, kw_only=True, rename="camel"):
    """An event of a channel manager: one row an event id, with every change told under it."""

    id: str
    hotel_id: str
    event_id: str
    event_type: str
    booking_id: str
    status: str = "processed"
    via: str = ""
    received_at: int = 0  # of its latest change
    changes: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    def history(self) -> list[dict[str, Any]]:
        """The changes in the order of their arrival."""
        return sorted(self.changes.values(), key=lambda each: each["receivedAt"])


class Message(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a guest or the house wrote."""

    id: str
    hotel_id: str
    channel: str
    message_id: str
    conversation_id: str
    guest_id: str
    direction: str = "guest"
    content: str
    sent_at: int
    received_at: int = 0
    via: str = ""
    booking_id: str = ""
    author: str = ""
    job: str = ""  # the one that stored it


class Conversation(Struct, frozen=True, kw_only=True, rename="camel"):
    """The messages with one guest, and who answers them."""

    id: str
    hotel_id: str
    conversation_id: str
    channel: str
    guest_id: str
    guest_name: str = ""
    booking_id: str = ""
    via: str = ""
    mode: Mode = "manual"
    last_text: str = ""
    last_direction: str = ""
    last_at: int = 0
    created_at: int = 0


class Guest(Struct, frozen=True, kw_only=True, rename="camel"):
    """Somebody who wrote."""

    id: str
    hotel_id: str
    guest_id: str
    name: str = ""
    last_seen_at: int = 0


class Writer(Protocol):
    """Writes rows; in SQL all of one block, or none."""

    async def booking(self, change: SaveBooking, now: int) -> bool:
        """Keep a change and let its reservation follow; False when it was here before."""
        ...

    async def message(self, message: Message, guest_name: str = "") -> bool:
        """Keep a message with its guest and conversation; False when another job has kept it."""
        ...


class Records(Protocol):
    """The few questions asked of the tables."""

    def saving(self, ctx: Context) -> AbstractAsyncContextManager[Writer]:
        """Write at the end of a job; where there are transactions, the job ends with this one."""
        ...

    def within(self, tx: Any) -> Writer | None:
        """Write in a transaction of the application's database; None: the rows are elsewhere."""
        ...

    async def has_message(self, id: str) -> bool: ...

    async def message_of(self, id: str) -> Message | None: ...

    async def conversation(self, hotel: str, id: str) -> Conversation | None: ...

    async def set_mode(self, hotel: str, id: str, mode: Mode) -> bool: ...

    async def reservations(self, hotel: str | None, limit: int = PAGE) -> list[Reservation]: ...

    async def reservation(self, hotel: str, id: str) -> Reservation | None: ...

    async def events(self, hotel: str | None, limit: int = PAGE) -> list[CmEvent]: ...

    async def conversations(self, hotel: str | None, limit: int = PAGE) -> list[Conversation]: ...

    async def messages(self, hotel: str, conversation: str, limit: int = 200) -> list[Message]:
        """The newest messages of a conversation, oldest first."""
        ...

    async def count(self, table: str) -> int:
        """How many there are: reservations, cm_events, messages, conversations or guests."""
        ...


def message_of(order: SaveMessage, job: str, now: int) -> Message:
    return Message(
        id=names.strong_id(order.hotel_id, order.channel, order.message_id),
        hotel_id=order.hotel_id,
        channel=order.channel,
        message_id=order.message_id,
        conversation_id=order.conversation_id,
        guest_id=order.guest_id,
        direction=order.direction,
        content=order.content,
        sent_at=order.sent_at,
        received_at=now,
        via=order.via,
        booking_id=order.booking_id,
        author="guest" if order.direction == "guest" else "elsewhere",
        job=job,
    )


def conversation_of(message: Message, guest_name: str, mode: Mode) -> Conversation:
    return Conversation(
        id=names.scoped(message.hotel_id, message.conversation_id),
        hotel_id=message.hotel_id,
        conversation_id=message.conversation_id,
        channel=message.channel,
        guest_id=message.guest_id,
        guest_name=guest_name,
        booking_id=message.booking_id,
        via=message.via,
        mode=mode,
        last_text=message.content[:PREVIEW],
        last_direction=message.direction,
        last_at=message.sent_at,
        created_at=message.received_at,
    )


def guest_of(message: Message, name: str) -> Guest:
    return Guest(
        id=names.scoped(message.hotel_id, message.guest_id),
        hotel_id=message.hotel_id,
        guest_id=message.guest_id,
        name=name,
        last_seen_at=message.sent_at,
    )


def event_of(change: SaveBooking, status: str, now: int) -> CmEvent:
    """The event of a change, which left its reservation with that status."""
    details = change.details or {}
    told = {
        "status": status,
        "modifiedAt": change.modified_at,
        "receivedAt": now,
        **{name: details[name] for name in TOLD if name in details},
    }
    return CmEvent(
        id=names.scoped(change.hotel_id, change.event_id),
        hotel_id=change.hotel_id,
        event_id=change.event_id,
        event_type=change.event_type,
        booking_id=change.booking_id,
        via=change.via,
        received_at=now,
        changes={change.change_id: told},
    )


def status_of(change: SaveBooking, known: str) -> str:
    """What a change says that is older than what is known: it is kept, and changes nothing."""
    return known if change.status in (booking.BOOKED, booking.UNCHANGED) else change.status


def details_of(known: dict[str, Any], change: SaveBooking) -> dict[str, Any]:
    """The columns of a reservation that a change brings; what it leaves out stays."""
    details = {**known, **(change.details or {})}
    return {
        "details": details,
        "arrival": str(details.get("arrival", "")),
        "departure": str(details.get("departure", "")),
        "channel": str(details.get("channel", "")),
        "guest_name": str(details.get("guestName", "")),
    }
