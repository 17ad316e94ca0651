"""Niza Cars: Rentway's SOAP 1.1, where `Create_Reservation` is spelled like nothing else."""

from __future__ import annotations

from collections.abc import Mapping

from relevo.apps.cars.gateways import soap
from relevo.apps.cars.gateways.supplier import (
    Booking,
    Kind,
    SupplierBookingResult,
    confirmed,
    denied,
    reference,
)
from relevo.apps.outside import Outside, Reply
from relevo.apps.xml import Element, Maker, local, text_of
from relevo.errors import MisuseError

NAMESPACE = "http://www.jimpisoft.pt/Rentway_Reservations_WS/Create_Reservation"

_NUMBERS = frozenset({"reservationid", "reservationnumber", "reservation_number", "reservationno"})
_NOTHING = frozenset({"", "0", "ok", "false", "none", "no error"})
_LOCAL = "%Y-%m-%d %H:%M"

_x = Maker(NAMESPACE)


class NizaCarsGateway:
    """One customer's account at Rentway."""

    can_find = False

    def __init__(self, outside: Outside, account: Mapping[str, str]) -> None:
        self._outside = outside
        self._account = account

    async def book(self, booking: Booking) -> SupplierBookingResult:
        reply = await self._outside.call(
            "POST",
            "/Create_Reservation.asmx",
            content=soap.envelope(self._order(booking)),
            headers={
                "content-type": soap.CONTENT_TYPE,
                "soapaction": f'"{NAMESPACE}/Create_Reservation"',
                **reference(booking),
            },
            acts=True,
        )
        return _read(reply)

    async def find(self, booking: Booking) -> SupplierBookingResult | None:
        raise MisuseError("Niza Cars cannot be asked for a booking by our code")

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


KIND = Kind(
    name="niza",
    prefix="NIZA",
    build=NizaCarsGateway,
    needs=("URL", "COMPANY_CODE", "CUSTOMER_CODE", "USER", "PASSWORD"),
    fields=("Group",),
    optional={"RateCode": "FF"},
)
