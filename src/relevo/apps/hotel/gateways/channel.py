"""The channel manager: reservations by OTA, guest messages by our own contract, pulled and acked.

What was not acknowledged is delivered again, so acknowledge() comes after it is safe with us, and
a lost acknowledgement costs nothing but a repetition.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from relevo.apps.hotel import booking, names
from relevo.apps.hotel.gateways.soap import SoapClient, cm, ota
from relevo.apps.hotel.queues import ReplyToGuest, SaveBooking, SaveMessage
from relevo.apps.hotel.reading import Unfit, checked, day_of, identified, moment_of
from relevo.apps.hotel.settings import Soap
from relevo.apps.xml import Element, find_all, find_one, text_of
from relevo.errors import ProviderUnavailable
from relevo.ids import new_id

PAGE = 50


class Pulled(NamedTuple):
    """A reservation as it came: the order to keep it, or why it cannot be kept."""

    element: Element
    order: SaveBooking | None
    problem: str = ""

    @property
    def id(self) -> str:
        unique = find_one(self.element, "UniqueID")
        return "" if unique is None else unique.get("ID", "")


class Letter(NamedTuple):
    """A message as it came: its id, and the order to keep it or why it cannot be kept."""

    id: str
    order: SaveMessage | None
    problem: str = ""
    text: str = ""


class Channel:
    """What we ask the channel manager for."""

    def __init__(self, settings: Soap) -> None:
        self.settings = settings
        self._client = SoapClient(settings)

    async def close(self) -> None:
        await self._client.close()

    async def reservations(self, hotel: str) -> list[Pulled]:
        """The reservations that the hotel has not acknowledged."""
        question = ota.OTA_ReadRQ(
            self._client.pos(ota),
            ota.ReadRequests(
                ota.HotelReadRequest(
                    ota.SelectionCriteria(SelectionType="Undelivered"), HotelCode=hotel
                )
            ),
            _stamped(),
        )
        answer = await self._client.ask(question, "OTA_ResRetrieveRS")
        return [_pulled(hotel, each) for each in find_all(answer, "HotelReservation")]

    async def acknowledge(self, hotel: str, pulled: list[Pulled]) -> None:
        """Say which reservations are kept, and which cannot be."""
        for is_good in (True, False):
            chosen = [each for each in pulled if (each.order is not None) is is_good and each.id]
            if chosen:
                await self._client.ask(self._report(hotel, chosen, is_good), "OTA_NotifReportRS")

    def _report(self, hotel: str, pulled: list[Pulled], is_good: bool) -> Element:
        verdict = (
            ota.Success()
            if is_good
            else ota.Errors(
                *(ota.Error(each.problem[:200], Type="3", Code="320") for each in pulled)
            )
        )
        listed = [
            ota.HotelReservation(
                ota.UniqueID(Type="14", ID=each.id),
                ota.ResGlobalInfo(
                    ota.HotelReservationIDs(
                        ota.HotelReservationID(
                            ResID_Type="14", ResID_Value=names.scoped(hotel, each.id)
                        )
                    )
                ),
                {
                    name: value
                    for name in ("CreateDateTime", "LastModifyDateTime", "ResStatus")
                    if (value := each.element.get(name))
                },
            )
            for each in pulled
        ]
        details = ota.NotifDetails(ota.HotelNotifReport(ota.HotelReservations(*listed)))
        return ota.OTA_NotifReportRQ(self._client.pos(ota), verdict, details, _stamped())

    async def messages(self, hotel: str) -> tuple[list[Letter], bool]:
        """The messages that the hotel has not acknowledged, and whether there are more."""
        question = cm.PullGuestMessagesRQ(self._client.pos(cm), HotelCode=hotel, MaxCount=str(PAGE))
        answer = await self._client.ask(question, "PullGuestMessagesRS")
        letters = [_letter(hotel, each) for each in find_all(answer, "GuestMessage")]
        return letters, answer.get("MoreData") == "true" and bool(letters)

    async def acknowledge_messages(self, hotel: str, ids: list[str]) -> None:
        """Say that messages are kept."""
        listed = [cm.MessageID(id) for id in ids if id]
        if listed:
            question = cm.AckGuestMessagesRQ(self._client.pos(cm), *listed, HotelCode=hotel)
            await self._client.ask(question, "AckGuestMessagesRS")

    async def reply(self, order: ReplyToGuest, reference: str) -> str:
        """Answer a guest; the same reference is the same answer, and gives the same id."""
        question = cm.ReplyGuestMessageRQ(
            self._client.pos(cm),
            cm.Text(_plain(order.content)),
            HotelCode=order.hotel_id,
            ConversationID=order.conversation_id,
            InReplyTo=order.in_reply_to,
            ClientReference=reference,
        )
        answer = await self._client.ask(question, "ReplyGuestMessageRS")
        sent = text_of(find_one(answer, "MessageID"))
        if not names.is_id(sent):
            raise ProviderUnavailable("the channel manager answered a reply without its id")
        return sent


def _stamped() -> dict[str, str]:
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return {"Version": "1.0", "EchoToken": new_id(), "TimeStamp": now}


def _pulled(hotel: str, element: Element) -> Pulled:
    try:
        return Pulled(element, _change(hotel, element))
    except Unfit as error:
        return Pulled(element, None, str(error))


def _change(hotel: str, element: Element) -> SaveBooking:
    number = Pulled(element, None).id
    status = booking.RES_STATUS.get(element.get("ResStatus", "").lower())
    if not names.is_id(number):
        raise Unfit("a reservation without its UniqueID")
    if status is None:
        raise Unfit("a ResStatus that is none of Book, Modify, Cancel")
    at = element.get("LastModifyDateTime") or element.get("CreateDateTime") or ""
    change = SaveBooking(
        hotel_id=hotel,
        event_id=":".join(filter(None, ("ota", number, status, at[:40]))),
        event_type=f"reservation.{status}",
        booking_id=number,
        status=status,
        modified_at=moment_of(at),
        via="channel",
        details=_details(element),
    )
    return identified(change)


def _details(element: Element) -> dict[str, str]:
    span, total = find_one(element, "TimeSpan"), find_one(element, "Total")
    room, source = find_one(element, "RoomType"), find_one(element, "HotelReservationID")
    phone = find_one(element, "Telephone")
    given, family = find_one(element, "GivenName"), find_one(element, "Surname")
    adults = [
        each.get("Count", "")
        for each in find_all(element, "GuestCount")
        if each.get("AgeQualifyingCode") == "10"
    ]
    found = {
        "arrival": day_of(_get(span, "Start")[:10]),
        "departure": day_of(_get(span, "End")[:10]),
        "channel": _get(source, "ResID_Source"),
        "reference": _get(source, "ResID_Value"),
        "room": _get(room, "RoomTypeCode"),
        "adults": "".join(adults[:1]),
        "price": _get(total, "AmountAfterTax"),
        "currency": _get(total, "CurrencyCode"),
        "guestName": " ".join(filter(None, (text_of(given), text_of(family)))),
        "email": text_of(find_one(element, "Email")),
        "phone": _get(phone, "PhoneNumber"),
    }
    return {name: value[:200] for name, value in found.items() if value}


def _letter(hotel: str, element: Element) -> Letter:
    id, text = element.get("ID", ""), text_of(find_one(element, "Text"))
    try:
        order = checked(
            SaveMessage(
                hotel_id=hotel,
                channel=element.get("Channel", ""),
                message_id=id,
                conversation_id=element.get("ConversationID", ""),
                guest_id=element.get("GuestID", ""),
                content=text,
                sent_at=moment_of(element.get("SentAt", "")) or 1,
                direction="guest" if element.get("Direction", "guest") == "guest" else "host",
                via="channel",
                booking_id=element.get("ReservationID", ""),
            )
        )
    except Unfit as error:
        return Letter(id, None, str(error), text)
    return Letter(id, order, text=text)


def _get(element: Element | None, name: str) -> str:
    return "" if element is None else element.get(name, "")


def _plain(text: str) -> str:
    """Text that XML can carry."""
    return "".join(c for c in text if c in "\n\t" or c.isprintable() or c == "\u200d")
