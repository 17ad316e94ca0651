"""Niza Cars: Rentway's SOAP 1.1, where `Create_Reservation` is spelled like nothing else.

Rentway's public descriptions have no look-up by our code and no field for it. REFERENCE names the
element of the booking that carries our code, and FIND the operation that is asked for it, once
Niza Cars has told both: the operation is asked like their listings, and answers rows with that
element and the reservation's number.
"""

from __future__ import annotations

from relevo.apps.cars.gateways import soap
from relevo.apps.cars.gateways.supplier import (
    Booking,
    Kind,
    SupplierBookingResult,
    SupplierGateway,
    confirmed,
    denied,
    reference,
)
from relevo.apps.outside import Reply
from relevo.apps.xml import Element, Maker, find_one, local, text_of

SERVICE = "http://www.jimpisoft.pt/Rentway_Reservations_WS"

_NUMBERS = frozenset({"reservationid", "reservationnumber", "reservation_number", "reservationno"})
_NOTHING = frozenset({"", "0", "ok", "false", "none", "no error"})
_LOCAL = "%Y-%m-%d %H:%M"

_x = Maker(f"{SERVICE}/Create_Reservation")


class NizaCarsGateway(SupplierGateway):
    """One customer's account at Rentway."""

    async def book(self, booking: Booking) -> SupplierBookingResult:
        order = self._order(booking)
        return _read(await self._call("Create_Reservation", order, booking, acts=True))

    async def find(self, booking: Booking) -> SupplierBookingResult | None:
        account, operation = self._account, self._account["FIND"]
        ask = Maker(f"{SERVICE}/{operation}")
        question = getattr(ask, operation)(
            ask.objRequest(
                ask.companyCode(account["COMPANY_CODE"]),
                ask.customerCode(account["CUSTOMER_CODE"]),
                ask.username(account["USER"]),
                ask.password(account["PASSWORD"]),
                getattr(ask, account["REFERENCE"])(booking.code),
            )
        )
        reply = await self._call(operation, question, booking, acts=False)
        return _found(reply, operation, account["REFERENCE"], booking.code)

    async def _call(
        self, operation: str, content: Element, booking: Booking, *, acts: bool
    ) -> Reply:
        return await self._outside.call(
            "POST",
            f"/{operation}.asmx",
            content=soap.envelope(content),
            headers={
                "content-type": soap.CONTENT_TYPE,
                "soapaction": f'"{SERVICE}/{operation}/{operation}"',
                **reference(booking),
            },
            acts=acts,
        )

    def _order(self, booking: Booking) -> Element:
        account, driver = self._account, booking.driver
        return _x.Create_Reservation(
            _x.CompanyCode(account["COMPANY_CODE"]),
            _x.ClienteCode(account["CUSTOMER_CODE"]),
            _x.Username(account["USER"]),
            _x.Password(account["PASSWORD"]),
            _x.MessageType("N"),
            _x.Group(booking.snapshot["Group"]),
            _x.RateCode(booking.snapshot["RateCode"]),
            _x.PickUp(
                _x.Date(booking.pickup_at.strftime(_LOCAL)),
                _x.Rental_Station(booking.pickup_location),
            ),
            _x.DropOff(
                _x.Date(booking.dropoff_at.strftime(_LOCAL)),
                _x.Rental_Station(booking.dropoff_location),
            ),
            _x.Driver(
                _x.Name(f"{driver.last_name.replace(',', ' ')},{driver.first_name}"),
                _x.Email(driver.email),
                _x.Date_of_Birth(driver.birth_date.isoformat()),
            ),
            getattr(_x, account["REFERENCE"])(booking.code),
        )


def _read(reply: Reply) -> SupplierBookingResult:
    """The number, wherever it stands: plain elements, or a .NET DiffGram as in its listings."""
    answer = soap.opened(reply)
    numbers = {text_of(each) for each in answer.iter() if local(each).lower() in _NUMBERS} - {""}
    errors = [
        text_of(each)
        for each in answer.iter()
        if "error" in local(each).lower() and text_of(each).lower() not in _NOTHING
    ]
    if errors and not numbers:
        raise denied(reply, errors[0])
    if errors or len(numbers) != 1:
        raise reply.unreadable(f"{len(numbers)} reservation numbers and {len(errors)} errors")
    return confirmed(numbers.pop(), reply)


def _found(reply: Reply, operation: str, field: str, code: str) -> SupplierBookingResult | None:
    """The number of the one row that carries our code; None when the list has no row."""
    answer = soap.opened(reply)
    errors = [text_of(each) for each in answer.iter() if "error" in local(each).lower()]
    if any(each.lower() not in _NOTHING for each in errors):
        raise denied(reply, errors[0])
    if find_one(answer, f"{operation}Result") is None:
        raise reply.unreadable("no list of reservations")
    rows = [each for each in answer.iter() if local(each) == "Table"]
    numbers: set[str] = set()
    for row in rows:
        told = {local(each).lower(): text_of(each) for each in row}
        if field.lower() not in told:
            raise reply.unreadable(f"a reservation without its {field}")
        if told[field.lower()] == code:
            numbers |= {text for name, text in told.items() if name in _NUMBERS and text}
    if not rows:
        return None
    if len(numbers) != 1:
        raise reply.unreadable(f"{len(numbers)} reservations of our code")
    return confirmed(numbers.pop(), reply)


KIND = Kind(
    name="niza",
    prefix="NIZA",
    build=NizaCarsGateway,
    needs=("URL", "COMPANY_CODE", "CUSTOMER_CODE", "USER", "PASSWORD"),
    may={"REFERENCE": "Voucher", "FIND": ""},
    fields=("Group",),
    optional={"RateCode": "FF"},
)
