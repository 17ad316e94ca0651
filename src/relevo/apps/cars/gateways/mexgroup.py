"""Mex Group: JSON over REST, with a login whose token is kept until it is nearly over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import UTC, datetime
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

_LOCAL = "%Y-%m-%dT%H:%M:%S"
_EARLY = 120.0  # seconds before its end at which a token is not used any more


class MexGroupGateway:
    """One broker's account."""

    can_find = False

    def __init__(self, outside: Outside, account: Mapping[str, str]) -> None:
        self._outside = outside
        self._account = account
        self._token = ""
        self._token_until = 0.0
        self._lock = asyncio.Lock()  # many bookings at once log in once

    async def book(self, booking: Booking) -> SupplierBookingResult:
        deadline = Deadline(self._outside.seconds)
        reply = await self._reserve(booking, deadline)
        if reply.status == 401:  # the token ended before its time
            self._token = ""
            reply = await self._reserve(booking, deadline)
        if reply.status in (401, 403):
            raise bad_login(reply)
        body = _said(reply)
        if body.get("type") != "success":
            raise reply.unreadable("neither success nor error")
        return confirmed(as_object(body.get("data")).get("noConfirmation"), reply)

    async def find(self, booking: Booking) -> SupplierBookingResult | None:
        raise MisuseError("Mex Group cannot be asked for a booking by our code")

    async def _reserve(self, booking: Booking, deadline: Deadline) -> Reply:
        token = await self._login(deadline)
        driver, snapshot = booking.driver, booking.snapshot
        body: dict[str, Any] = {
            "pickup_location": booking.pickup_location,
            "dropoff_location": booking.dropoff_location,
            "pickup_date": booking.pickup_at.strftime(_LOCAL),
            "dropoff_date": booking.dropoff_at.strftime(_LOCAL),
            "rate_code": snapshot["rate_code"],
            "class": snapshot["class_code"],
            "id_rate": snapshot["rate_id"],
            "email": driver.email,
            "first_name": driver.first_name,
            "last_name": driver.last_name,
            "airline": booking.flight[:2],
            "flight": booking.flight,
            "chain_code": self._account["CHAIN_CODE"],
            "extras": [],
        }
        if self._account["CORPORATE_SETUP"]:
            body["corporate_setup"] = self._account["CORPORATE_SETUP"]
        return await self._outside.call(
            "POST",
            "/api/brokers/booking-engine/reserve",
            json=body,
            headers={"authorization": f"Bearer {token}", **reference(booking)},
            acts=True,
            seconds=deadline.left(),
        )

    async def _login(self, deadline: Deadline) -> str:
        async with self._lock:
            if not self._token or time.time() >= self._token_until:
                self._token, self._token_until = await self._new_token(deadline)
            return self._token

    async def _new_token(self, deadline: Deadline) -> tuple[str, float]:
        login = {"user": self._account["USER"], "password": self._account["PASSWORD"]}
        path = "/api/brokers/login"
        reply = await self._outside.call(
            "POST", path, json=login, acts=False, seconds=deadline.left()
        )
        if 400 <= reply.status < 500 and reply.status != 429:
            raise bad_login(reply)
        data = as_object(as_object(reply.check().json()).get("data"))
        token = data.get("token")
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise bad_login(reply)
        return token, _until(data.get("expiredAt"))


def _until(text: object) -> float:
    try:
        at = datetime.strptime(str(text), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return time.time() + 300
    # Their clock has a zone that nobody wrote down; a token just given is good for a while.
    return max(at.timestamp() - _EARLY, time.time() + 60)


def _said(reply: Reply) -> dict[str, Any]:
    """The body of an answer that is not an error, whatever the status it came with."""
    try:
        body = as_object(reply.json())
    except ProviderError:
        reply.check()
        raise
    if body.get("type") == "error":
        raise refused(reply, body.get("message"))
    reply.check()
    return body


KIND = Kind(
    name="mexgroup",
    prefix="MEXGROUP",
    build=MexGroupGateway,
    needs=("URL", "USER", "PASSWORD"),
    may={"CHAIN_CODE": "MX", "CORPORATE_SETUP": ""},
    fields=("rate_code", "class_code", "rate_id"),
)
