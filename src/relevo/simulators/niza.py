"""Niza Cars, pretended: Rentway's Create_Reservation, answered as a .NET DiffGram."""

from __future__ import annotations

import secrets
import xml.etree.ElementTree as ET

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from relevo.simulators import xml
from relevo.simulators.world import World, fault

SERVICE = "http://www.jimpisoft.pt/Rentway_Reservations_WS"
CREATE = "Create_Reservation"
DIFF = "{urn:schemas-microsoft-com:xml-diffgram-v1}"
ACCOUNT = {"CompanyCode": "9999", "ClienteCode": "18", "Username": "niza", "Password": "simulated"}
SHAPE = [
    *("Envelope", "Header", "Body", "Create_Reservation", "CompanyCode", "ClienteCode"),
    *("Username", "Password", "MessageType", "Group", "RateCode", "PickUp", "Date"),
    *("Rental_Station", "DropOff", "Date", "Rental_Station", "Driver", "Name", "Email"),
    *("Date_of_Birth", "Voucher"),
]
FOUND = [
    *("Envelope", "Header", "Body", "getReservations", "objRequest", "companyCode"),
    *("customerCode", "username", "password", "Voucher"),
]


def environment(base: str) -> dict[str, str]:
    return {
        "NIZA_URL": f"{base}/niza",
        "NIZA_COMPANY_CODE": ACCOUNT["CompanyCode"],
        "NIZA_CUSTOMER_CODE": ACCOUNT["ClienteCode"],
        "NIZA_USER": ACCOUNT["Username"],
        "NIZA_PASSWORD": ACCOUNT["Password"],
        "NIZA_FIND": "getReservations",
    }


def bookings(world: World) -> dict[str, list[str]]:
    """The numbers that it holds, by the customer's code."""
    return world.room("niza bookings", dict[str, list[str]])


def routes(world: World) -> list[BaseRoute]:
    @world.call("niza", "book")
    async def book(request: Request) -> Response:
        try:
            root = xml.read(await request.body())
            order = xml.one(root, "Create_Reservation")
            given = {name: xml.words(order, name) for name in (*ACCOUNT, "Name", "Voucher")}
        except ValueError as error:
            return xml.fault("Client", str(error))
        if (
            request.headers.get("soapaction")
            != f'"{SERVICE}/Create_Reservation/Create_Reservation"'
        ):
            return xml.fault("Client", "SOAPAction")
        if xml.shape(root) != SHAPE:
            return xml.fault("Client", "an element too many, or one too few")
        if any(given[name] != value for name, value in ACCOUNT.items()):
            return _answer(CREATE, [{"Error": "INVALID LOGIN"}])
        if fault(request) == "refuse":
            return _answer(CREATE, [{"Error": "NO RATE IS AVAILABLE"}])
        surname, _, first = given["Name"].partition(",")
        number = f"NZ{secrets.randbelow(900_000) + 100_000}"
        key = given["Voucher"]
        bookings(world).setdefault(key, []).append(number)
        world.effect("niza", "book", key, confirmation=number, first_name=first, last_name=surname)
        return _answer(CREATE, [{"ReservationNumber": number}])

    @world.call("niza", "find")
    async def find(request: Request) -> Response:
        root = xml.read(await request.body())
        names = ("companyCode", "customerCode", "username", "password")
        if xml.shape(root) != FOUND:
            return xml.fault("Client", "an element too many, or one too few")
        if [xml.words(root, name) for name in names] != list(ACCOUNT.values()):
            return _answer("getReservations", [{"Error": "INVALID LOGIN"}])
        code = xml.words(root, "Voucher")
        numbers = bookings(world).get(code, [])
        rows = [{"Voucher": code, "ReservationNumber": number} for number in numbers]
        return _answer("getReservations", rows)

    return [
        Route("/niza/Create_Reservation.asmx", book, methods=["POST"]),
        Route("/niza/getReservations.asmx", find, methods=["POST"]),
    ]


def _answer(operation: str, rows: list[dict[str, str]]) -> Response:
    space = f"{{{SERVICE}/{operation}}}"
    answer = ET.Element(f"{space}{operation}Response")
    result = ET.SubElement(answer, f"{space}{operation}Result")
    ET.SubElement(result, "{http://www.w3.org/2001/XMLSchema}schema", id="NewDataSet")
    listed = ET.SubElement(ET.SubElement(result, f"{DIFF}diffgram"), "NewDataSet")
    for row in rows:
        table = ET.SubElement(listed, "Table")
        for name, text in row.items():
            ET.SubElement(table, name).text = text
    return xml.answer(xml.envelope(answer))
