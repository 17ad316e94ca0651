"""Hertz Argentina: JSON over REST behind an OAuth password grant. Not the classic Hertz OTA.

Their public descriptions have no look-up by our code and no field for it. REFERENCE names the field
of the booking that carries our code, and FIND the path that is asked for it, once Hertz has told
both: `GET {FIND}?{REFERENCE}=code` answers the bookings as a list.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from datetime import date
from typing import Any
from urllib.parse import urlencode

from relevo.apps.cars.gateways.supplier import (
    Booking,
    Kind,
    SupplierBookingResult,
    SupplierGateway,
    bad_login,
    confirmed,
    found,
    reference,
    refused,
)
from relevo.apps.outside import Deadline, Outside, Reply, as_object
from relevo.errors import ProviderError, ProviderRefused

_NUMBERS = ("id", "bookingId", "reservationNumber")
_LICENCE = re.compile(r"(?=.*[0-9])[A-Za-z0-9][A-Za-z0-9 ./-]{2,29}", re.ASCII)
_COUNTRY = re.compile(r"[A-Z]{2}", re.ASCII)


class HertzGateway(SupplierGateway):
    """One agency's account."""

    def __init__(self, outside: Outside, account: Mapping[str, str]) -> None:
        super().__init__(outside, account)
        self._token = ""
        self._lock = asyncio.Lock()  # many bookings at once log in once

    async def book(self, booking: Booking) -> SupplierBookingResult:
        for field, why in licence(booking.snapshot, booking.dropoff_at.date()).items():
            raise ProviderRefused(f"{self._outside.who} wants the driver's {field}: {why}")
        body = {**_body(booking), self._account["REFERENCE"]: booking.code}
        reply = await self._call("POST", "/Booking", booking, json=body)
        return _read(reply)

    async def find(self, booking: Booking) -> SupplierBookingResult | None:
        field = self._account["REFERENCE"]
        query = f"{self._account['FIND']}?{urlencode({field: booking.code})}"
        reply = await self._call("GET", query, booking)
        return found(reply, reply.check().json(), field, booking.code, _NUMBERS)

    async def _call(self, method: str, path: str, booking: Booking, json: Any = None) -> Reply:
        deadline = Deadline(self._outside.seconds)
        reply = await self._once(method, path, booking, json, deadline)
        if reply.status == 401:  # nobody says how long a token lives
            self._token = ""  # perhaps another's fresh one, which costs a login
            reply = await self._once(method, path, booking, json, deadline)
        if reply.status in (401, 403):
            raise bad_login(reply)
        return reply

    async def _once(
        self, method: str, path: str, booking: Booking, json: Any, deadline: Deadline
    ) -> Reply:
        async with self._lock:
            self._token = self._token or await self._login(deadline)
            token = self._token
        return await self._outside.call(
            method,
            path,
            json=json,
            headers={"authorization": f"Bearer {token}", **reference(booking)},
            acts=method == "POST",
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
            "driverLicenseExpiration": snapshot["licence_expiration"],
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


def licence(snapshot: Mapping[str, str], until: date) -> dict[str, str]:
    """What is wrong with the driver's licence, by field, for a car that comes back on a day."""
    wrong: dict[str, str] = {}
    if not _LICENCE.fullmatch(snapshot.get("licence_number", "")):
        wrong["licence_number"] = "the number on the driver's licence is wanted"
    try:
        ends = date.fromisoformat(snapshot.get("licence_expiration", ""))
    except ValueError:
        wrong["licence_expiration"] = "the day until which the licence is good is wanted"
    else:
        if ends < until:
            wrong["licence_expiration"] = "the licence ends before the car is back"
    if not _COUNTRY.fullmatch(snapshot.get("licence_country", "")):
        wrong["licence_country"] = "the two letters of the licence's country are wanted"
    return wrong


def age(born: date, at: date) -> int:
    """Full years of life at a day."""
    return at.year - born.year - ((at.month, at.day) < (born.month, born.day))


KIND = Kind(
    name="hertz",
    prefix="HERTZ",
    build=HertzGateway,
    needs=("URL", "AUTH_URL", "USER", "PASSWORD", "CLIENT_ID"),
    may={"REFERENCE": "externalReference", "FIND": ""},
    fields=("acriss_code", "licence_number", "licence_expiration", "licence_country"),
    check=licence,
)
