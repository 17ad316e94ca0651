"""Mex Group: JSON over REST, with a login whose token is kept until it is nearly over.

Their public descriptions have no look-up by our code and no field for it. REFERENCE names the field
of the booking that carries our code, and FIND the path that is asked for it, once Mex Group has
told both: the path is posted {"<REFERENCE>": code} and answers the bookings as a list in `data`.
"""

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
    SupplierGateway,
    bad_login,
    confirmed,
    found,
    reference,
    refused,
)
from relevo.apps.outside import Deadline, Outside, Reply, as_object
from relevo.errors import ProviderError

_LOCAL = "%Y-%m-%dT%H:%M:%S"
_EARLY = 120.0  # seconds before its end at which a token is not used any more


class MexGroupGateway(SupplierGateway):
    """One broker's account."""

    def __init__(self, outside: Outside, account: Mapping[str, str]) -> None:
        super().__init__(outside, account)
        self._token = ""
        self._token_until = 0.0
        self._lock = asyncio.Lock()  # many bookings at once log in once

    async def book(self, booking: Booking) -> SupplierBookingResult:
        path = "/api/brokers/booking-engine/reserve"
        reply, body = await self._post(path, self._order(booking), booking, acts=True)
        return confirmed(as_object(body.get("data")).get("noConfirmation"), reply)

    async def find(self, booking: Booking) -> SupplierBookingResult | None:
        field = self._account["REFERENCE"]
        question = {field: booking.code}
        reply, body = await self._post(self._account["FIND"], question, booking, acts=False)
        return found(reply, body.get("data"), field, booking.code, ("noConfirmation",))

    async def cancel(self, booking: Booking, number: str) -> None:
        question = {"no_confirmation": number}
        await self._post(self._account["CANCEL"], question, booking, acts=True)

    async def _post(
        self, path: str, question: dict[str, Any], booking: Booking, *, acts: bool
    ) -> tuple[Reply, dict[str, Any]]:
        """The answer to a question, and what it says; every error is raised."""
        deadline = Deadline(self._outside.seconds)
        reply = await self._call(path, question, booking, deadline, acts=acts)
        if reply.status == 401:  # the token ended before its time
            self._token = ""
            reply = await self._call(path, question, booking, deadline, acts=acts)
        if reply.status in (401, 403):
            raise bad_login(reply)
        body = _said(reply)
        if body.get("type") != "success":
            raise reply.unreadable("neither success nor error")
        return reply, body

    async def _call(
        self,
        path: str,
        question: dict[str, Any],
        booking: Booking,
        deadline: Deadline,
        *,
        acts: bool,
    ) -> Reply:
        token = await self._login(deadline)
        return await self._outside.call(
            "POST",
            path,
            json=question,
            headers={"authorization": f"Bearer {token}", **reference(booking)},
            acts=acts,
            seconds=deadline.left(),
        )

    def _order(self, booking: Booking) -> dict[str, Any]:
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
            self._account["REFERENCE"]: booking.code,
        }
        if self._account["CORPORATE_SETUP"]:
            body["corporate_setup"] = self._account["CORPORATE_SETUP"]
        return body

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
    may={
        "CHAIN_CODE": "MX",
        "CORPORATE_SETUP": "",
        "REFERENCE": "reference",
        "FIND": "",
        "CANCEL": "/api/brokers/booking-engine/cancel",
    },
    fields=("rate_code", "class_code", "rate_id"),
)
