"""Infinity Group, pretended: OTA without a namespace, in the query of a GET."""

from __future__ import annotations

import secrets
import xml.etree.ElementTree as ET

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from relevo.simulators import xml
from relevo.simulators.world import World, fault

REQUESTOR = "99"
SHAPE = [
    *("OTA_VehResRQ", "POS", "Source", "RequestorID", "BookingReferenceID", "UniqueID_Type"),
    *("VehResRQCore", "VehRentalCore", "PickUpLocation", "ReturnLocation", "VehPref"),
    *("VehClass", "VehType", "RateQualifier", "Customer", "Primary", "PersonName"),
    *("GivenName", "Surname", "Email", "Value"),
]


def environment(base: str) -> dict[str, str]:
    return {
        "INFINITY_URL": f"{base}/infinity/ota",
        "INFINITY_REQUESTOR_ID": REQUESTOR,
        "INFINITY_FIND": "OTA_VehRetResRQ",
    }


def bookings(world: World) -> dict[str, str]:
    """The numbers that it holds, by the requestor's code."""
    return world.room("infinity bookings", dict[str, str])


def routes(world: World) -> list[BaseRoute]:
    @world.call("infinity", "book")
    async def book(request: Request) -> Response:
        answer = ET.Element("OTA_VehResRS", Version="1.00")
        try:
            root = xml.read(request.query_params.get("XML", ""))
            if xml.shape(root) != SHAPE:
                raise ValueError("an element too many, or one too few")
            key = xml.one(root, "UniqueID_Type").attrib["ID"]
            requestor = xml.one(root, "RequestorID").attrib["ID"]
            rate = xml.one(root, "RateQualifier").attrib["VendorRateID"]
            names = {
                "first_name": xml.words(root, "GivenName"),
                "last_name": xml.words(root, "Surname"),
            }
        except (ValueError, KeyError) as error:
            return _answer(xml.ota_error(answer, "", "10", str(error)))
        if requestor != REQUESTOR:
            return _answer(xml.ota_error(answer, "", "4", "Unknown requestor"))
        if fault(request) == "refuse":
            return _answer(xml.ota_reservation(answer, "", "INF-NONE", "Failed"))
        number = f"INF-{secrets.token_hex(4).upper()}"
        bookings(world)[key] = number
        world.effect("infinity", "book", key, confirmation=number, rate=rate, **names)
        return _answer(xml.ota_reservation(answer, "", number, "Confirmed"))

    @world.call("infinity", "find")
    async def find(request: Request) -> Response:
        root = xml.read(request.query_params.get("XML", ""))
        answer = ET.Element("OTA_VehRetResRS", Version="1.00")
        if xml.one(root, "RequestorID").attrib["ID"] != REQUESTOR:
            return _answer(xml.ota_error(answer, "", "4", "Unknown requestor"))
        number = bookings(world).get(xml.one(root, "UniqueID").attrib["ID"])
        if number is None:
            return _answer(xml.ota_error(answer, "", "3", "Reservation not found"))
        return _answer(xml.ota_reservation(answer, "", number, "Confirmed"))

    async def door(request: Request) -> Response:
        is_question = "<OTA_VehRetResRQ" in request.query_params.get("XML", "")
        return await (find(request) if is_question else book(request))

    return [Route("/infinity/ota", door, methods=["GET"])]


def _answer(root: ET.Element) -> Response:
    # With a byte order mark and blanks in front, as they were seen to come.
    body = b"\xef\xbb\xbf \r\n" + ET.tostring(root, encoding="utf-8")
    return Response(body, media_type="application/xml")
