"""Reading what others wrote: moments, ids, and the entries that producers LPUSH.

{"eventId": "evt-1", "eventType": "guest_message", "channel": "channelManager",
 "payload": {"messageId": "cm-msg-1", "conversationId": "hotel999-channelManager-guest-X",
             "guestId": "guest-X", "channel": "channelManager",
             "timestamp": "2026-01-01T10:00:00Z", "content": "Hola!"},
 "receivedAt": "2026-01-01T10:00:01Z"}
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from relevo.apps.hotel.names import fingerprint, is_id, is_part
from relevo.apps.hotel.queues import SaveBooking, SaveMessage
from relevo.clock import stamp
from relevo.errors import BodyError, RelevoError
from relevo.strictjson import parse_json

CONTENT_MAX = 16_000  # characters of one message
ENTRY_MAX = 262_144  # bytes of one entry
GUEST_MESSAGE = "guest_message"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,63}", re.ASCII)


class Unfit(RelevoError):
    """What came is not what it should be; the text says why and quotes nothing of it."""


class _Payload(msgspec.Struct, rename="camel"):
    """A guest's message; many producers have numbers for ids, and 7 is the id "7"."""

    message_id: str | int
    conversation_id: str | int
    guest_id: str | int
    content: str
    channel: str = ""
    timestamp: str = ""
    reservation_id: str | int = ""
    guest_name: str = ""


class _Entry(msgspec.Struct, rename="camel"):
    event_id: str | int
    event_type: str
    payload: _Payload
    channel: str = ""
    received_at: str = ""


def read_entry(hotel: str, entry: bytes, now: int) -> SaveMessage:
    """The message of an entry of the hotel's list; Unfit if it is none."""
    if len(entry) > ENTRY_MAX:
        raise Unfit(f"more than {ENTRY_MAX:,} bytes")
    try:
        tree: Any = parse_json(entry)
    except BodyError as error:
        raise Unfit(str(error)) from error
    if not isinstance(tree, dict) or "eventType" not in tree:
        raise Unfit("no object with an eventType")
    _check_type(cast("dict[str, Any]", tree)["eventType"])
    try:
        read = msgspec.convert(tree, _Entry)
    except msgspec.ValidationError as error:
        raise Unfit(f"not the shape of a {GUEST_MESSAGE}: {error}") from error
    said = read.payload
    return checked(
        SaveMessage(
            hotel_id=hotel,
            channel=said.channel or read.channel,
            message_id=str(said.message_id),
            conversation_id=str(said.conversation_id),
            guest_id=str(said.guest_id),
            content=said.content,
            sent_at=moment_of(said.timestamp or read.received_at) or now,
            via="channel",
            booking_id=str(said.reservation_id),
            guest_name=said.guest_name[:200],
        )
    )


def edited(hotel: str, entry: bytes, change: bytes, now: int, *, whole: bool = False) -> bytes:
    """A dead entry with the fields of `change` merged into it, or `change` in its place.

    Unfit if the bot could not read that either.
    """
    made = change if whole else msgspec.json.encode(_merged(_object(entry), _object(change)))
    read_entry(hotel, made, now)
    return made


def _object(text: bytes) -> dict[str, Any]:
    try:
        tree: Any = parse_json(text)
    except BodyError as error:
        raise Unfit(f"{error}: replace the whole entry") from error
    if not isinstance(tree, dict):
        raise Unfit("no object, so that no fields are merged into it: replace the whole entry")
    return cast("dict[str, Any]", tree)


def _merged(known: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    made = dict(known)
    for name, value in change.items():
        old = made.get(name)
        is_deeper = isinstance(old, dict) and isinstance(value, dict)
        made[name] = _merged(cast("Any", old), cast("Any", value)) if is_deeper else value
    return made


def _check_type(told: object) -> None:
    """Refuse another type by its name, before its payload is measured by a message's fields."""
    if told == GUEST_MESSAGE:
        return
    # Only what looks like a name is repeated: in place of one, anything might stand.
    is_name = isinstance(told, str) and _NAME.fullmatch(told) is not None
    named = f"the eventType {told}" if is_name else "an eventType that is no name"
    raise Unfit(f"{named}, which this bot does not know: it reads {GUEST_MESSAGE}")


def checked(order: SaveMessage) -> SaveMessage:
    """The order itself if its ids and texts may be kept; Unfit if not."""
    if not is_part(order.channel):
        raise Unfit("a channel has 1 to 64 letters, digits, '-' or '_'")
    for name in ("message_id", "conversation_id", "guest_id"):
        if not is_id(getattr(order, name)):
            raise Unfit(f"{name} is empty, too long, or has control characters in it")
    if order.booking_id and not is_id(order.booking_id):
        raise Unfit("the reservation's id is too long, or has control characters in it")
    if not 0 < len(order.content) <= CONTENT_MAX:
        raise Unfit(f"content has 1 to {CONTENT_MAX:,} characters")
    return order


def identified(change: SaveBooking, told_at: int = 0) -> SaveBooking:
    """The change with an id made of what it says, so that a repetition has the same one.

    A call that says neither when nor under which id may be a repetition or a second change: there
    is no telling, so `told_at` makes every such call a change.
    """
    said = msgspec.json.encode((change.status, change.modified_at, change.details, told_at))
    return replace(change, change_id=fingerprint(said)[:16])


def moment_of(text: str) -> int:
    """A moment of ISO 8601 in milliseconds, in UTC unless it says; 0 for none; Unfit if wrong."""
    if not text:
        return 0
    try:
        at = datetime.fromisoformat(text.strip()[:40])
        ms = stamp(at if at.tzinfo else at.replace(tzinfo=UTC))
    except (ValueError, OverflowError, OSError) as error:
        raise Unfit("a time that is not ISO 8601") from error
    if not 0 < ms < 4_102_444_800_000:  # 2100: what lies after it is a mistake, not a date
        raise Unfit("a time before 1970 or after 2100")
    return ms


def day_of(text: str) -> str:
    """A calendar day as it came; Unfit if there is no such day."""
    if not text:
        return ""
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).date().isoformat()
    except ValueError as error:
        raise Unfit("a day that is not in the calendar") from error
