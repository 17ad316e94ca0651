"""Meta and QStash call us: check, translate, enqueue, answer."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec

from relevo import Answer, Delivery, Intake, Reject, sources
from relevo.apps.expenses.queues import (
    Incoming,
    ProcessMessage,
    PublishMessage,
    RecordStatuses,
    SetAside,
    SpreadMessages,
    Status,
)
from relevo.apps.expenses.settings import ExpensesSettings
from relevo.apps.outside import as_object, as_objects
from relevo.errors import BodyError
from relevo.route import Use
from relevo.signatures import InvalidSignature, Scheme
from relevo.sources import Source

PAYLOAD_MAX = 3 * 1_048_576  # Meta's own
DIRECT = 500
"""Messages of one delivery that are ordered one by one; more travel in parcels."""
PARCEL = 32_768  # bytes; half of what a command may carry

_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(?P<bad>u[dD][89a-fA-F][0-9a-fA-F]{2}|u0000)|.)"
)
_CHALLENGE = re.compile(r"[\x21-\x7e]{1,128}", re.ASCII)
_ID = re.compile(r"[A-Za-z0-9._=+/:-]{1,255}", re.ASCII)
_DIGITS = re.compile(r"\d{1,20}", re.ASCII)
_USER = re.compile(r"[A-Z]{2}\.[A-Za-z0-9.]{1,150}", re.ASCII)
_KIND = re.compile(r"[a-z_]{1,40}", re.ASCII)
_MEDIA_ID = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_BASE64 = re.compile(r"[A-Za-z0-9+/=]{1,64}", re.ASCII)
_WORD = re.compile(r"[a-z]{1,20}", re.ASCII)
_MEDIA = ("image", "audio", "document", "video", "sticker")
_TEXT_MAX = 4_096


def meta(use: Use) -> Source:
    return sources.meta(use(ExpensesSettings).app_secret)


def qstash(use: Use) -> Source:
    """Both keys, bound to the address that we published to; without keys the door is closed."""
    settings = use(ExpensesSettings)
    if not settings.qstash_current and not settings.qstash_next:
        return Source(name="qstash", scheme=Closed(), id=key_of_qstash)
    return sources.qstash(settings.qstash_current, settings.qstash_next, settings.process_url)


class Closed(Scheme):
    """A door that nobody has a key to."""

    __slots__ = ()

    def check(self, delivery: Delivery, now: datetime) -> None:
        raise InvalidSignature("QSTASH_CURRENT_SIGNING_KEY is not set: nobody may call here")


def challenge(delivery: Delivery, use: Use) -> Answer:
    """Meta's handshake: whoever knows the verify token gets the challenge back as plain text."""
    try:
        asked = delivery.params
        mode, token = asked.get("hub.mode", ""), asked.get("hub.verify_token", "")
        echo = asked.get("hub.challenge", "")
    except BodyError:
        return Answer.text("", 403)
    wanted = use(ExpensesSettings).verify_token
    is_ours = hmac.compare_digest(token.encode(errors="replace"), wanted.encode())
    # Only what Meta would send: nothing that a browser could take for a page.
    if mode != "subscribe" or not is_ours or not _CHALLENGE.fullmatch(echo) or "<" in echo:
        return Answer.text("", 403)
    return Answer.text(echo)


def key_of_meta(delivery: Delivery) -> str:
    """Meta gives a delivery no id, and repeats it byte for byte; messages have their own ids."""
    return hashlib.blake2b(delivery.body, digest_size=16).hexdigest()


async def whatsapp(delivery: Delivery, ctx: Intake) -> Answer | None:
    """Order what messages there are. Whatever else comes was signed by Meta: 200, and kept."""
    try:
        values = list(_values(_read(delivery)))
    except BodyError as error:
        await ctx.enqueue(SetAside(delivery.id, str(error)))
        return None
    settings = ctx.use(ExpensesSettings)
    messages = list({each.id: each for value in values for each in _messages(value)}.values())
    statuses = [each for value in values for each in _statuses(value)]
    for message in messages[:DIRECT]:
        await ctx.enqueue(order_for(message, settings))
    for parcel in _parcels(messages[DIRECT:]):
        await ctx.enqueue(SpreadMessages(parcel))
    for start in range(0, len(statuses), 50):
        await ctx.enqueue(RecordStatuses(statuses[start : start + 50]))
    return None


def _parcels(messages: list[Incoming]) -> Iterator[list[Incoming]]:
    parcel: list[Incoming] = []
    size = 0
    for message in messages:
        weight = len(msgspec.json.encode(message))
        if parcel and size + weight > PARCEL:
            yield parcel
            parcel, size = [], 0
        parcel.append(message)
        size += weight
    if parcel:
        yield parcel


def order_for(message: Incoming, settings: ExpensesSettings) -> ProcessMessage | PublishMessage:
    """By QStash where it is configured, by our own queue otherwise."""
    if settings.qstash_token:
        return PublishMessage(message.id, message)
    return ProcessMessage(message.id, message.sender, message)


def key_of_qstash(delivery: Delivery) -> str:
    return delivery.headers["upstash-message-id"]


async def process(delivery: Delivery, ctx: Intake) -> Answer | None:
    """QStash brings a message back; however often it does, there is one order for it."""
    try:
        message = msgspec.json.decode(delivery.body, type=Incoming)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Reject(422, "invalid_message") from error
    if not _ID.fullmatch(message.id) or not message.sender:
        raise Reject(422, "invalid_message")
    await ctx.enqueue(ProcessMessage(message.id, message.sender, message))
    return None


# Meta's envelope. Everything in it may be missing, or something else: what cannot be read is left.


def _read(delivery: Delivery) -> dict[str, Any]:
    """The body. What is no text in it, such as half an emoji in a name, becomes U+FFFD: one name
    must not cost the messages of everybody in the same delivery."""
    try:
        return delivery.json
    except BodyError:
        text = delivery.body.decode(errors="replace").encode()
        mended = _ESCAPE.sub(lambda found: rb"\ufffd" if found["bad"] else found[0], text)
        return msgspec.structs.replace(delivery, body=mended).json


def _values(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if body.get("object") != "whatsapp_business_account":
        return
    for entry in as_objects(body.get("entry")):
        for change in as_objects(entry.get("changes")):
            if change.get("field") == "messages":
                yield as_object(change.get("value"))


def _messages(value: dict[str, Any]) -> Iterator[Incoming]:
    ours = _text(as_object(value.get("metadata")).get("phone_number_id"), _DIGITS)
    people = as_objects(value.get("contacts"))
    for message in as_objects(value.get("messages")):
        found = _message(message, people, ours)
        if found is not None:
            yield found


def _message(message: dict[str, Any], people: list[dict[str, Any]], ours: str) -> Incoming | None:
    kind = _text(message.get("type"), _KIND) or "unknown"
    id = _text(message.get("id"), _ID)
    wa_id = _text(message.get("from"), _DIGITS)
    user_id = _text(message.get("from_user_id"), _USER)
    person = _person(people, wa_id, user_id)
    user_id = user_id or _text(person.get("user_id"), _USER)
    wa_id = wa_id or _text(person.get("wa_id"), _DIGITS)
    if not id or not (wa_id or user_id) or not ours:
        return None
    content = as_object(message.get(kind))
    media = content if kind in _MEDIA else {}
    stamp = _text(str(message.get("timestamp", "")), _DIGITS)
    return Incoming(
        id=id,
        kind=kind,
        sent_at=int(stamp) if stamp and len(stamp) <= 11 else 0,
        phone_number_id=ours,
        wa_id=wa_id,
        user_id=user_id,
        name=_plain(as_object(person.get("profile")).get("name"), 100),
        text=_plain(_words(kind, content), _TEXT_MAX),
        media_id=_text(media.get("id"), _MEDIA_ID),
        media_sha256=_text(media.get("sha256"), _BASE64),
    )


def _words(kind: str, content: dict[str, Any]) -> Any:
    match kind:
        case "text":
            return content.get("body")
        case "interactive":
            reply = content.get("button_reply") or content.get("list_reply")
            return as_object(reply).get("title")
        case "button":
            return content.get("text")
        case _:
            return content.get("caption")


def _person(people: list[dict[str, Any]], wa_id: str, user_id: str) -> dict[str, Any]:
    for each in people:
        if (wa_id and each.get("wa_id") == wa_id) or (user_id and each.get("user_id") == user_id):
            return each
    return people[0] if len(people) == 1 else {}


def _statuses(value: dict[str, Any]) -> Iterator[Status]:
    """Those of our replies, known by what we sent along with them."""
    for status in as_objects(value.get("statuses")):
        reply_id = _text(status.get("biz_opaque_callback_data"), _ID)
        wamid = _text(status.get("id"), _ID)
        word = _text(status.get("status"), _WORD)
        if reply_id and wamid and word:
            errors = as_objects(status.get("errors"))
            code = errors[0].get("code") if errors else None
            yield Status(
                reply_id=reply_id,
                wamid=wamid,
                status=word,
                error=str(code) if isinstance(code, int) else "",
            )


def _text(value: Any, pattern: re.Pattern[str]) -> str:
    return value if isinstance(value, str) and pattern.fullmatch(value) else ""


def _plain(value: Any, longest: int) -> str:
    return value[:longest] if isinstance(value, str) else ""
