"""Noleggiare, pretended: OTA in SOAP 1.1, with a look-up by the broker's own code."""

from __future__ import annotations

import secrets
import xml.etree.ElementTree as ET
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from relevo.simulators import xml
from relevo.simulators.world import World, fault

USER, PASSWORD, COMPANY = "noleggiare", "simulated", "RELEVO"
SPACE = f"{{{xml.OTA}}}"
SHAPE = [
    *("Envelope", "Header", "Body", "OTA_VehResRQ", "POS", "Source", "RequestorID"),
    *("CompanyName", "VehResRQCore", "VehRentalCore", "PickUpLocation", "ReturnLocation"),
    *("Customer", "Primary", "PersonName", "GivenName", "Surname", "Telephone", "Email"),
    *("VehPref", "VehResRQInfo", "RentalPaymentPref", "Voucher", "PaymentAmount"),
]


@dataclass(slots=True)
class Held:
    """A booking over there."""

    number: str
    surname: str
    status: str = "Confirmed"


def environment(base: str) -> dict[str, str]:
    return {
        "NOLEGGIARE_URL": f"{base}/noleggiare/ws",
        "NOLEGGIARE_USER": USER,
        "NOLEGGIARE_PASSWORD": PASSWORD,
        "NOLEGGIARE_COMPANY": COMPANY,
        "NOLEGGIARE_TARGET": "Test",
    }


def bookings(world: World) -> dict[str, Held]:
    """What it holds, by the broker's code."""
    return world.room("noleggiare", dict[str, Held])


def routes(world: World) -> list[BaseRoute]:
    @world.call("noleggiare", "book")
    async def book(request: Request) -> Response:
        try:
            root = xml.read(await request.body())
            shape = [name for name in xml.shape(root) if name != "ArrivalDetails"]
            if shape != SHAPE:
                raise ValueError("an element too many, or one too few")
            if xml.one(root, "VehRentalCore").attrib["PickUpDateTime"].endswith("Z"):
                raise ValueError("PickUpDateTime is a local time")
            key = xml.one(root, "Voucher").attrib["SeriesCode"]
            first, surname = xml.words(root, "GivenName"), xml.words(root, "Surname")
        except (ValueError, KeyError) as error:
            return xml.fault("Client", str(error))
        answer = _empty("OTA_VehResRS")
        if not _knows(root):
            return _answer(xml.ota_error(answer, SPACE, "4", "Authentication failed"))
        if fault(request) == "refuse":
            return _answer(xml.ota_reservation(answer, SPACE, "NL-NONE", "Failed"))
        held = Held(f"NL{secrets.randbelow(9_000_000) + 1_000_000}", surname)
        bookings(world)[key] = held
        names = {"first_name": first, "last_name": surname}
        world.effect("noleggiare", "book", key, confirmation=held.number, **names)
        return _answer(xml.ota_reservation(answer, SPACE, held.number, held.status))

    @world.call("noleggiare", "find")
    async def find(request: Request) -> Response:
        root = xml.read(await request.body())
        held = bookings(world).get(xml.one(root, "UniqueID").attrib["Instance"])
        answer = _empty("OTA_VehRetResRS")
        if held is None or held.surname != xml.words(root, "Surname"):
            return _answer(xml.ota_error(answer, SPACE, "3", "Reservation not found"))
        return _answer(xml.ota_reservation(answer, SPACE, held.number, held.status))

    @world.call("noleggiare", "cancel")
    async def cancel(request: Request) -> Response:
        root = xml.read(await request.body())
        number = xml.one(root, "UniqueID").attrib["ID"]
        answer = _empty("OTA_VehCancelRS")
        for code, held in bookings(world).items():
            if held.number == number and held.status != "Cancelled":
                held.status = "Cancelled"
                world.effect("noleggiare", "cancel", code, confirmation=number)
                core = ET.SubElement(answer, f"{SPACE}VehCancelRSCore", CancelStatus="Cancelled")
                ET.SubElement(core, f"{SPACE}UniqueID", Type="15", ID=number)
                return _answer(answer)
        return _answer(xml.ota_error(answer, SPACE, "3", "Reservation not found"))

    async def door(request: Request) -> Response:
        match request.headers.get("soapaction"):
            case "OTA_VehResRQ":
                return await book(request)
            case "OTA_VehRetResRQ":
                return await find(request)
            case "OTA_VehCancelRQ":
                return await cancel(request)
            case _:
                return xml.fault("Client", "SOAPAction")

    return [Route("/noleggiare/ws", door, methods=["POST"])]


def _knows(root: ET.Element) -> bool:
    requestor = xml.one(root, "RequestorID").attrib
    given = (requestor.get("ID"), requestor.get("MessagePassword"), xml.words(root, "CompanyName"))
    return given == (USER, PASSWORD, COMPANY)


def _empty(name: str) -> ET.Element:
    return ET.Element(f"{SPACE}{name}", Version="1.0", Target="Test")


def _answer(root: ET.Element) -> Response:
    return xml.answer(xml.envelope(root))
