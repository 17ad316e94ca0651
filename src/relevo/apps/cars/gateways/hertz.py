"""Hertz Argentina: JSON over REST behind an OAuth password grant. Not the classic Hertz OTA."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import date
from typing import Any

from relevo.apps.cars.gateways.supplier import (
    Booking,
    Kind,
    SupplierBookingResult,
    bad_login,
    confirmed,
    reference,
    refused,
)
from relevo.apps.outside import Deadline, Outside, Reply, as_object
from relevo.errors import MisuseError, ProviderError

_NUMBERS = ("id", "bookingId", "reservationNumber")
_UNTOLD = "NA"


class HertzGateway:
    """One agency's account."""

    can_find = False

    def __init__(self, outside: Outside, account: Mapping[str, str]) -> None:
        self._outside = outside
        self._account = account
        self._token = ""
        self._lock = asyncio.Lock()  # many bookings at once log in once

    async def book(self, booking: Booking) -> SupplierBookingResult:
        deadline = Deadline(self._outside.seconds)
        reply = await self._post(booking, deadline)
        if reply.status == 401:  # nobody says how long a token lives
            self._token = ""  # perhaps another's fresh one, which costs a login
            reply = await self._post(booking, deadline)
        if reply.status in (401, 403):
            raise bad_login(reply)
        return _read(reply)

    async def find(self, booking: Booking) -> SupplierBookingResult | None:
        raise MisuseError("Hertz Argentina cannot be asked for a booking by our code")

    async def _post(self, booking: Booking, deadline: Deadline) -> Reply:
        async with self._lock:
            self._token = self._token or await self._login(deadline)
            token = self._token
        return await self._outside.call(
            "POST",
            "/Booking",
            json=_body(booking),
            headers={"authorization": f"Bearer {token}", **reference(booking)},
            acts=True,
            seconds=deadline.left(),
        )

    async def _login(self, deadline: Deadline) -> str:
        form = {
            "username": self._account["USER"],
            "password": self._account["PASSWORD"],
            "grant_type": "password",
            "client_id": self._account["CLIENT_ID"],
        }
        reply = await self._outside.call(
            "POST", self._account["AUTH_URL"], form=form, acts=False, seconds=deadline.left()
        )
        if 400 <= reply.status < 500 and reply.status != 429:
            raise bad_login(reply)
        token = as_object(reply.check().json()).get("access_token")
        if (
            not isinstance(token, str)
            or not token
            or not token.isascii()
            or not token.isprintable()
        ):
            raise bad_login(reply)
        return token


def _body(booking: Booking) -> dict[str, Any]:
    driver, snapshot = booking.driver, booking.snapshot
    return {
        "customer": {
            "firstName": driver.first_name,
            "lastName": driver.last_name,
            "name": f"{driver.first_name} {driver.last_name}",
            "emailAddress": driver.email,
            "age": age(driver.birth_date, booking.pickup_at.date()),
            "driverLicenceNumber": snapshot["licence_number"],
            "driverLicenseExpiration": licence_until(booking),
            "driverLicenceCountry": snapshot["licence_country"],
        },
        "model": snapshot["acriss_code"],
        "fromDate": booking.pickup_at.date().isoformat(),
        "toDate": booking.dropoff_at.date().isoformat(),
        "deliveryPlace": booking.pickup_location,
    }


def _read(reply: Reply) -> SupplierBookingResult:
    try:
        body = as_object(reply.json())
    except ProviderError:
        reply.check()
        raise
    error = next((body[name] for name in ("error", "errors", "message") if body.get(name)), None)
    is_no = error is not None or body.get("success") is False
    number = next((body[name] for name in _NUMBERS if body.get(name) not in (None, "")), None)
    if is_no and number is not None:
        raise reply.unreadable("a number and an error")
    if is_no:
        raise refused(reply, error)
    reply.check()
    return confirmed(number, reply)


def licence_until(booking: Booking) -> str:
    """Until when the licence is good; a customer who does not say has one for the whole trip."""
    told = booking.snapshot["licence_expiration"]
    if told != _UNTOLD:
        return told
    return max(date(2030, 1, 1), date(booking.dropoff_at.year + 1, 1, 1)).isoformat()


def age(born: date, at: date) -> int:
    """Full years of life at a day."""
    return at.year - born.year - ((at.month, at.day) < (born.month, born.day))


KIND = Kind(
    name="hertz",
    prefix="HERTZ",
    build=HertzGateway,
    needs=("URL", "AUTH_URL", "USER", "PASSWORD", "CLIENT_ID"),
    fields=("acriss_code",),
    optional={
        "licence_number": _UNTOLD,
        "licence_expiration": _UNTOLD,
        "licence_country": "AR",
    },
)
