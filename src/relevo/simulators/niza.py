"""Niza Cars, pretended: Rentway's Create_Reservation, answered as a .NET DiffGram."""

from __future__ import annotations

import secrets
import xml.etree.ElementTree as ET

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from relevo.simulators import xml
from relevo.simulators.world import World, fault

SPACE = "http://www.jimpisoft.pt/Rentway_Reservations_WS/Create_Reservation"
DIFF = "{urn:schemas-microsoft-com:xml-diffgram-v1}"
ACCOUNT = {"CompanyCode": "9999", "ClienteCode": "18", "Username": "niza", "Password": "simulated"}
SHAPE = [
    *("Envelope", "Header", "Body", "Create_Reservation", "CompanyCode", "ClienteCode"),
    *("Username", "Password", "MessageType", "Group", "RateCode", "PickUp", "Date"),
    *("Rental_Station", "DropOff", "Date", "Rental_Station", "Driver", "Name", "Email"),
    "Date_of_Birth",
]


def environment(base: str) -> dict[str, str]:
    return {
        "NIZA_URL": f"{base}/niza",
        "NIZA_COMPANY_CODE": ACCOUNT["CompanyCode"],
        "NIZA_CUSTOMER_CODE": ACCOUNT["ClienteCode"],
        "NIZA_USER": ACCOUNT["Username"],
        "NIZA_PASSWORD": ACCOUNT["Password"],
    }


def routes(world: World) -> list[BaseRoute]:
    @world.call("niza", "book")
    async def book(request: Request) -> Response:
        try:
            root = xml.read(await request.body())
            order = xml.one(root, "Create_Reservation")
            given = {name: xml.words(order, name) for name in (*ACCOUNT, "Name", "Email", "Group")}
        except ValueError as error:
            return xml.fault("Client", str(error))
        if request.headers.get("soapaction") != f'"{SPACE}/Create_Reservation"':
            return xml.fault("Client", "SOAPAction")
        if xml.shape(root) != SHAPE:
            return xml.fault("Client", "an element too many, or one too few")
        if any(given[name] != value for name, value in ACCOUNT.items()):
            return _answer("Error", "INVALID LOGIN")
        if fault(request) == "refuse":
            return _answer("Error", "NO RATE IS AVAILABLE")
        surname, _, first = given["Name"].partition(",")
        number = f"NZ{secrets.randbelow(900_000) + 100_000}"
        key = request.headers.get("x-request-id", given["Email"])
        world.effect("niza", "book", key, confirmation=number, first_name=first, last_name=surname)
        return _answer("ReservationNumber", number)

    return [Route("/niza/Create_Reservation.asmx", book, methods=["POST"])]


def _answer(name: str, text: str) -> Response:
    answer = ET.Element(f"{{{SPACE}}}Create_ReservationResponse")
    result = ET.SubElement(answer, f"{{{SPACE}}}Create_ReservationResult")
    ET.SubElement(result, "{http://www.w3.org/2001/XMLSchema}schema", id="NewDataSet")
    table = ET.SubElement(
        ET.SubElement(ET.SubElement(result, f"{DIFF}diffgram"), "NewDataSet"), "Table"
    )
    ET.SubElement(table, name).text = text
    return xml.answer(xml.envelope(answer))
