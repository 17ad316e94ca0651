"""Beds24's words in ours: webhook version 1 (parameters), version 2 (JSON), and API bookings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from relevo.apps.hotel import booking, names
from relevo.apps.hotel.queues import SaveBooking, SaveMessage
from relevo.apps.hotel.reading import CONTENT_MAX, Unfit, checked, day_of, identified, moment_of
from relevo.clock import stamp
from relevo.errors import BodyError
from relevo.webhook import Delivery

FORM = "application/x-www-form-urlencoded"
HOTEL, SECRET, HEADER = "hotelId", "secret", "X-Relevo-Secret"
MESSAGES_MAX = 500
_SOURCES = {"guest": "guest", "host": "host"}
_UNFIT_CHANNEL = re.compile(r"[^A-Za-z0-9_-]+", re.ASCII)
_TIMES = ("modifiedTime", "modified", "timestamp", "time")


class _Booking(msgspec.Struct, rename="camel"):
    """What we read of a booking; Beds24 leaves out what is not enabled, and sends null for none."""

    id: int | str
    status: str | None = None
    modified_time: str | None = None
    booking_time: str | None = None
    arrival: str | None = None
    departure: str | None = None
    property_id: int | None = None
    room_id: int | None = None
    num_adult: int | None = None
    num_child: int | None = None
    first_name: str | None = None
    last_name: str | None = None
    email: str | None = None
    phone: str | None = None
    mobile: str | None = None
    lang: str | None = None
    channel: str | None = None
    api_source: str | None = None
    api_reference: str | None = None
    price: float | None = None


class _Message(msgspec.Struct, rename="camel"):
    id: int | str
    message: str | None = None
    source: str | None = None
    time: str | None = None
    booking_id: int | str | None = None


class _Version2(msgspec.Struct, rename="camel"):
    booking: _Booking
    time_stamp: str | None = None
    messages: list[_Message] | None = None


class News(NamedTuple):
    """What a call of Beds24 says: a change of a booking, and messages with it."""

    change: SaveBooking
    messages: list[SaveMessage]
    is_whole: bool  # False: it says that something changed, and not what
    is_blocked: bool = False  # dates taken off sale; no reservation


def place_of(delivery: Delivery, name: str) -> list[str]:
    """Every value of a parameter, in the query and in a form."""
    found = delivery.params.all(name)
    return found + delivery.form.all(name) if delivery.media_type == FORM else found


def hotel_of(delivery: Delivery) -> str:
    """The hotel a call is about; empty when it does not say, or says it twice."""
    found = place_of(delivery, HOTEL)
    if not found and delivery.media_type == "application/json" and delivery.body:
        named: Any = delivery.json.get(HOTEL, "")
        found = [named] if isinstance(named, str) else []
    return found[0] if len(found) == 1 else ""


def read_delivery(delivery: Delivery) -> News:
    """A webhook of either version; Unfit or BodyError when it cannot be read."""
    hotel = hotel_of(delivery)
    if not names.is_part(hotel):
        raise Unfit("a hotelId has 1 to 64 letters, digits, '-' or '_'")
    if delivery.media_type == "application/json" and delivery.body:
        tree = delivery.json
        if "booking" in tree:
            return _version2(hotel, tree)
        fields = {name.lower(): value for name, value in tree.items()}
        return _version1(hotel, fields, stamp(delivery.received_at))
    fields = {**delivery.params}
    if delivery.media_type == FORM:
        if twice := fields.keys() & delivery.form.keys():
            raise BodyError(
                f"{len(twice)} fields in the query and the form", code="duplicate_field"
            )
        fields |= {**delivery.form}
    return _version1(hotel, fields, stamp(delivery.received_at))


def _version1(hotel: str, fields: Mapping[str, Any], told_at: int) -> News:
    """bookid and status, under any case; eventId and a time if whoever sent it knows them."""
    number, word = _text(fields, "bookid"), _text(fields, "status").lower()
    if not names.is_id(number):
        raise Unfit("there is no bookId")
    if word not in booking.WORDS:
        raise Unfit("a status that is none of confirmed, modified, cancelled")
    at = next((_text(fields, name.lower()) for name in _TIMES if _text(fields, name.lower())), "")
    event = _text(fields, "eventid")
    if event and not names.is_id(event):
        raise Unfit("an eventId that is too long, or has control characters in it")
    change = SaveBooking(
        hotel_id=hotel,
        event_id=event or ":".join(filter(None, ("b24", number, word, at))),
        event_type=f"booking.{word}",
        booking_id=number,
        status=booking.WORDS[word],
        modified_at=moment_of(at),
        via="beds24",
    )
    told_at = 0 if event or at else told_at  # see identified()
    return News(identified(change, told_at), [], is_whole=False)


def _version2(hotel: str, tree: Mapping[str, Any]) -> News:
    try:
        read = msgspec.convert(tree, _Version2)
    except msgspec.ValidationError as error:
        raise Unfit(f"not a booking of Beds24: {error}") from error
    change, is_blocked = read_booking(hotel, read.booking, read.time_stamp)
    messages = read_messages(hotel, read.booking, read.messages or [])
    if messages and (newest := _newest(read.messages or [])):
        # A new message changes no modifiedTime, and is news all the same.
        change = replace(change, event_id=f"{change.event_id}:m{newest}")
    named: Any = tree.get("eventId", "")
    if isinstance(named, str) and names.is_id(named):
        change = replace(change, event_id=named)
    return News(change, messages, is_whole=True, is_blocked=is_blocked)


def read_booking(hotel: str, read: _Booking, seen: str | None = None) -> tuple[SaveBooking, bool]:
    """A booking as webhooks and API give it, and whether it only blocks dates."""
    number, state = str(read.id), (read.status or "").lower()
    if not names.is_id(number):
        raise Unfit("the booking has no id")
    if state not in booking.STATES and state != "black":
        raise Unfit("a booking's status that Beds24 does not have")
    at = read.modified_time or read.booking_time or seen or ""
    details = {
        "arrival": day_of(read.arrival or ""),
        "departure": day_of(read.departure or ""),
        "channel": channel_of(read),
        "reference": read.api_reference,
        "property": read.property_id,
        "room": read.room_id,
        "adults": read.num_adult,
        "children": read.num_child,
        "price": read.price,
        "guestName": _name(read),
        "email": read.email,
        "phone": read.phone or read.mobile,
        "lang": read.lang,
    }
    change = SaveBooking(
        hotel_id=hotel,
        event_id=f"b24:{number}:{at or state}",
        event_type=f"booking.{state}",
        booking_id=number,
        status=booking.STATES.get(state, booking.UNCHANGED),
        modified_at=moment_of(at),
        via="beds24",
        details={name: _short(value) for name, value in details.items() if value not in ("", None)},
    )
    return identified(change), state == "black"


def read_messages(hotel: str, about: _Booking, listed: list[_Message]) -> list[SaveMessage]:
    """The messages about a booking that guests and hosts wrote; notes and system ones are not."""
    if len(listed) > MESSAGES_MAX:
        raise Unfit(f"more than {MESSAGES_MAX} messages in one call")
    channel = channel_of(about)
    number = str(about.id)
    return [
        checked(
            SaveMessage(
                hotel_id=hotel,
                channel=channel,
                message_id=str(each.id),
                conversation_id=f"{hotel}-{channel}-{number}",
                guest_id=f"b24-{number}",
                content=(each.message or "")[:CONTENT_MAX],
                sent_at=moment_of(each.time or "") or 1,
                direction=_SOURCES[each.source or ""],
                via="beds24",
                booking_id=number,
                guest_name=_name(about),
            )
        )
        for each in listed
        if (each.source or "") in _SOURCES and each.message
    ]


def read_answer(hotel: str, item: Any, messages: list[Any]) -> News:
    """A booking and its messages as the API answers them."""
    try:
        read = msgspec.convert(item, _Booking)
        listed = msgspec.convert(messages, list[_Message])
    except msgspec.ValidationError as error:
        raise Unfit(f"not a booking of Beds24: {error}") from error
    change, is_blocked = read_booking(hotel, read)
    return News(change, read_messages(hotel, read, listed), True, is_blocked)


def channel_of(read: _Booking) -> str:
    """The channel as it may stand in a strong id."""
    named = _UNFIT_CHANNEL.sub("-", read.channel or read.api_source or "")[:64].strip("-")
    return named.lower() or "beds24"


def _newest(messages: list[_Message]) -> int:
    numbers = [
        int(text) for each in messages if (text := str(each.id)).isascii() and text.isdigit()
    ]
    return max(numbers, default=0)


def _name(read: _Booking) -> str:
    return " ".join(filter(None, (read.first_name, read.last_name)))[:200]


def _short(value: Any) -> Any:
    return value[:200] if isinstance(value, str) else value


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name, "")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise Unfit(f"{name} is not text")
    return value.strip()
