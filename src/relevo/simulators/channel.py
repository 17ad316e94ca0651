"""The channel manager's SOAP: OTA reservations, guest messages, replies.

`channel(world)` is its memory: put reservations and messages there, and they are delivered to
whoever asks for that hotel until they are acknowledged. Credentials in a WSSE header or in POS.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Any, TypeAlias
from xml.sax.saxutils import escape, quoteattr

from lxml import etree
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from relevo.simulators.world import Handler, World, fault

PATH = "/channel/soap"
USERNAME, PASSWORD = "pms", "pms-of-the-simulator"
Rows: TypeAlias = OrderedDict[str, dict[str, str]]
OTA, OURS = "http://www.opentravel.org/OTA/2003/05", "urn:relevo:cm:1"
ENVELOPES = {
    "http://schemas.xmlsoap.org/soap/envelope/": "1.1",
    "http://www.w3.org/2003/05/soap-envelope": "1.2",
}


def environment(base: str) -> dict[str, str]:
    return {
        "CM_SOAP_URL": base + PATH,
        "CM_SOAP_USERNAME": USERNAME,
        "CM_SOAP_PASSWORD": PASSWORD,
        "CM_DEFAULT_MODE": "automatic",
        "CM_POLLING_INTERVAL": "1s",
    }


class ChannelManager:
    """What it knows: the undelivered of each hotel, and the replies it has sent on."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._numbers = itertools.count(1)
        self.reservations: dict[str, Rows] = {}
        self.messages: dict[str, Rows] = {}
        self.replies: dict[str, str] = {}  # by ClientReference
        self.refused: list[str] = []

    def book(self, hotel: str, id: str, status: str = "Book", **fields: str) -> None:
        """A reservation that the hotel has not seen; the same id again is a change of it."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        row = {"id": id, "status": status, "created": now, "modified": now, **fields}
        _rows(self.reservations, hotel)[id] = row

    def write(self, hotel: str, id: str, text: str, **fields: str) -> None:
        """A guest's message that the hotel has not seen."""
        guest = fields.get("guest", "guest-X")
        row = {
            "id": id,
            "text": text,
            "guest": guest,
            "channel": "channelManager",
            "sent": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "reservation": "",
            "direction": "guest",
            **fields,
        }
        row.setdefault("conversation", f"{hotel}-{row['channel']}-{guest}")
        _rows(self.messages, hotel)[id] = row

    def left(self, hotel: str | None = None) -> int:
        """How much is not acknowledged."""
        kept = [*self.reservations.items(), *self.messages.items()]
        return sum(len(rows) for name, rows in kept if hotel in (None, name))

    # the operations

    def read(self, question: Any) -> str:
        hotel = _attribute(question, "HotelReadRequest", "HotelCode")
        listed = "".join(map(_reservation, _rows(self.reservations, hotel).values()))
        return _ota("OTA_ResRetrieveRS", f"<ReservationsList>{listed}</ReservationsList>")

    def report(self, question: Any) -> str:
        is_refused = question.find(f"{{{OTA}}}Errors") is not None
        for each in question.iter(f"{{{OTA}}}HotelReservation"):
            id = each.find(f"{{{OTA}}}UniqueID").get("ID")
            if is_refused:
                self.refused.append(id)
            for rows in self.reservations.values():
                known = rows.get(id)
                if known is not None and each.get("LastModifyDateTime") == known["modified"]:
                    del rows[id]
                    self._world.effect("channel", "acknowledge", id)
        return _ota("OTA_NotifReportRS", "")

    def pull(self, question: Any) -> str:
        rows = list(_rows(self.messages, question.get("HotelCode", "")).values())
        most = int(question.get("MaxCount", "50"))
        listed = "".join(map(_message, rows[:most]))
        more = str(len(rows) > most).lower()
        return (
            f'<PullGuestMessagesRS xmlns="{OURS}" MoreData="{more}">{listed}</PullGuestMessagesRS>'
        )

    def ack(self, question: Any) -> str:
        rows = _rows(self.messages, question.get("HotelCode", ""))
        for each in question.iter(f"{{{OURS}}}MessageID"):
            if rows.pop(each.text, None) is not None:
                self._world.effect("channel", "ack", each.text)
        return f'<AckGuestMessagesRS xmlns="{OURS}"><Success/></AckGuestMessagesRS>'

    def reply(self, question: Any) -> str:
        reference = question.get("ClientReference", "")
        if reference not in self.replies:
            self.replies[reference] = f"cm-out-{next(self._numbers)}"
            self._world.effect(
                "channel",
                "reply",
                f"{question.get('HotelCode')}:{question.get('InReplyTo') or reference}",
                conversation=question.get("ConversationID"),
                text=question.findtext(f"{{{OURS}}}Text"),
            )
        id = self.replies[reference]
        return (
            f'<ReplyGuestMessageRS xmlns="{OURS}"><Success/><MessageID>{id}</MessageID>'
            "</ReplyGuestMessageRS>"
        )


def _rows(kept: dict[str, Rows], hotel: str) -> Rows:
    return kept.setdefault(hotel, OrderedDict())


def channel(world: World) -> ChannelManager:
    """The channel manager of a world."""
    return world.room("channel", lambda: ChannelManager(world))


OPERATIONS = {
    "OTA_ReadRQ": "read",
    "OTA_NotifReportRQ": "report",
    "PullGuestMessagesRQ": "pull",
    "AckGuestMessagesRQ": "ack",
    "ReplyGuestMessageRQ": "reply",
}


def routes(world: World) -> list[BaseRoute]:
    def answering(operation: str) -> Handler:
        @world.call("channel", operation)
        async def answer(request: Request) -> Response:
            namespace, question = _opened(await request.body())
            if fault(request) == "refuse":
                return _said(namespace, _refusal(question))
            return _said(namespace, getattr(channel(world), operation)(question))

        return answer

    handlers = {name: answering(operation) for name, operation in OPERATIONS.items()}

    async def soap(request: Request) -> Response:
        try:
            namespace, question = _opened(await request.body())
        except (etree.XMLSyntaxError, LookupError, ValueError):
            return _fault("http://schemas.xmlsoap.org/soap/envelope/", "Client", "not SOAP")
        if not _is_known(question):
            return _said(namespace, _unauthorized(question))
        handler = handlers.get(etree.QName(question).localname)
        if handler is None:
            return _fault(namespace, "Client", "no such operation")
        return await handler(request)

    return [Route(PATH, soap, methods=["POST"])]


def _opened(body: bytes) -> tuple[str, Any]:
    parser = etree.XMLParser(resolve_entities=False, no_network=True)
    root = etree.fromstring(body, parser)
    namespace = etree.QName(root).namespace or ""
    if namespace not in ENVELOPES:
        raise LookupError(namespace)
    inside: Any = root.find(f"{{{namespace}}}Body")
    if inside is None or len(inside) != 1:
        raise LookupError("Body")
    return namespace, inside[0]


def _is_known(question: Any) -> bool:
    root = question.getroottree().getroot()
    names = [each.text for each in root.iter("{*}Username")]
    words = [each.text for each in root.iter("{*}Password")]
    for each in root.iter("{*}RequestorID"):
        if each.get("MessagePassword"):
            names.append(each.get("ID"))
            words.append(each.get("MessagePassword"))
    return names == [USERNAME] and words == [PASSWORD]


def _said(namespace: str, content: str) -> Response:
    body = (
        f'<?xml version="1.0" encoding="utf-8"?><soap:Envelope xmlns:soap="{namespace}">'
        f"<soap:Header/><soap:Body>{content}</soap:Body></soap:Envelope>"
    )
    kinds = {"1.1": "text/xml", "1.2": "application/soap+xml"}
    return Response(body, media_type=kinds[ENVELOPES[namespace]])


def _fault(namespace: str, code: str, text: str) -> Response:
    if ENVELOPES[namespace] == "1.1":
        content = (
            f"<soap:Fault><faultcode>soap:{code}</faultcode><faultstring>{text}</faultstring>"
            "<detail/></soap:Fault>"
        )
    else:
        code = {"Client": "Sender", "Server": "Receiver"}[code]
        content = (
            f"<soap:Fault><soap:Code><soap:Value>soap:{code}</soap:Value></soap:Code><soap:Reason>"
            f'<soap:Text xml:lang="en">{text}</soap:Text></soap:Reason></soap:Fault>'
        )
    answer = _said(namespace, content)
    answer.status_code = 400 if code == "Sender" else 500
    return answer


def _ota(name: str, content: str) -> str:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return f'<{name} xmlns="{OTA}" Version="1.0" TimeStamp="{now}"><Success/>{content}</{name}>'


def _unauthorized(question: Any) -> str:
    return _errors(question, "4", "497", "Authorization error")


def _refusal(question: Any) -> str:
    return _errors(question, "3", "450", "Unable to process")


def _errors(question: Any, kind: str, code: str, text: str) -> str:
    name = etree.QName(question)
    answer = {"OTA_ReadRQ": "OTA_ResRetrieveRS"}.get(name.localname, f"{name.localname[:-2]}RS")
    error = f'<Error Type="{kind}" Code="{code}" ShortText="{text}">{text}</Error>'
    return f'<{answer} xmlns="{name.namespace}"><Errors>{error}</Errors></{answer}>'


def _reservation(row: dict[str, str]) -> str:
    given, _, family = row.get("guest", "Ana Paz").partition(" ")
    return f"""
<HotelReservation CreateDateTime={quoteattr(row["created"])}
  LastModifyDateTime={quoteattr(row["modified"])} ResStatus={quoteattr(row["status"])}>
 <UniqueID Type="14" ID={quoteattr(row["id"])} ID_Context="CM"/>
 <RoomStays><RoomStay>
  <RoomTypes><RoomType RoomTypeCode="DBL" NumberOfUnits="1"/></RoomTypes>
  <RatePlans><RatePlan RatePlanCode="BAR"/></RatePlans>
  <GuestCounts><GuestCount AgeQualifyingCode="10" Count="2"/></GuestCounts>
  <TimeSpan Start={quoteattr(row.get("arrival", "2027-02-01"))} End="2027-02-05"/>
  <Total AmountAfterTax="320.00" CurrencyCode="EUR"/></RoomStay></RoomStays>
 <ResGuests><ResGuest ResGuestRPH="1"><Profiles><ProfileInfo><Profile ProfileType="1"><Customer>
  <PersonName><GivenName>{escape(given)}</GivenName><Surname>{escape(family)}</Surname></PersonName>
  <Telephone PhoneNumber="+5491100000001"/><Email>ana@example.com</Email>
 </Customer></Profile></ProfileInfo></Profiles></ResGuest></ResGuests>
 <ResGlobalInfo><HotelReservationIDs>
  <HotelReservationID ResID_Type="14" ResID_Value="4012345678" ResID_Source="Booking.com"/>
 </HotelReservationIDs></ResGlobalInfo>
</HotelReservation>"""


def _message(row: dict[str, str]) -> str:
    attributes = {
        "ID": row["id"],
        "ConversationID": row["conversation"],
        "GuestID": row["guest"],
        "ReservationID": row["reservation"],
        "Channel": row["channel"],
        "Direction": row["direction"],
        "SentAt": row["sent"],
    }
    told = " ".join(f"{name}={quoteattr(value)}" for name, value in attributes.items())
    return f"<GuestMessage {told}><Text>{escape(row['text'])}</Text></GuestMessage>"


def _attribute(question: Any, name: str, attribute: str) -> str:
    return next((each.get(attribute, "") for each in question.iter(f"{{*}}{name}")), "")
