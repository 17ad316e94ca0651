"""Beds24: API version 2, and its two kinds of webhook.

`beds24(world)` is its memory. book() makes or changes a booking and calls the webhook as Beds24
would: version 1 says only that something changed, version 2 says what.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from relevo.simulators.world import World, fault

PREFIX = "/beds24/api/v2"
WEBHOOK = "/api/integrations/beds24/webhooks"
REFRESH = "refresh-token-of-the-simulator"
HOTELS = ("hotel999", "hotel1", "hotel2")


def secret_of(hotel: str) -> str:
    """The secret that is typed into the webhook's address of a hotel."""
    return f"secret-of-{hotel}"


def environment(base: str) -> dict[str, str]:
    return {
        "HOTEL_IDS": ",".join(HOTELS),
        "BEDS24_WEBHOOK_SECRETS": " ".join(f"{each}:{secret_of(each)}" for each in HOTELS),
        "BEDS24_API_URL": base + PREFIX,
        "BEDS24_REFRESH_TOKEN": REFRESH,
    }


class Account:
    """The bookings and messages of all hotels."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._numbers = itertools.count(9_001)
        self.bookings: dict[str, dict[str, Any]] = {}
        self.messages: list[dict[str, Any]] = []
        self.tokens: set[str] = set()

    def put(self, id: int, status: str = "confirmed", **fields: Any) -> dict[str, Any]:
        """Make or change a booking, and call nobody."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        made = {
            "id": id,
            "propertyId": 3103,
            "roomId": 9012,
            "arrival": "2027-02-01",
            "departure": "2027-02-05",
            "numAdult": 2,
            "numChild": 0,
            "firstName": "Ana",
            "lastName": "Paz",
            "email": "ana@example.com",
            "phone": "",
            "lang": "es",
            "channel": "booking",
            "apiSource": "Booking.com",
            "apiReference": "4012345678",
            "bookingTime": now,
            "price": 320,
        }
        known = self.bookings.get(str(id), made)
        self.bookings[str(id)] = known | {"status": status, "modifiedTime": now} | fields
        return self.bookings[str(id)]

    def say(self, booking: int, text: str, source: str = "guest", **fields: Any) -> dict[str, Any]:
        """Write a message about a booking, and call nobody."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        number = next(self._numbers)
        message = {"id": number, "bookingId": booking, "time": now, "read": False, **fields}
        message |= {"source": source, "message": text}
        self.messages.append(message)
        return message

    def call(self, hotel: str, booking: int, word: str, *, copies: int = 1, **more: str) -> None:
        """Webhook version 1: a GET that says which booking, and little else."""
        path = f"{WEBHOOK}?{query_of(hotel, booking, word, **more)}"
        self._world.courier.send(path, b"", lambda body: {}, method="GET", copies=copies)

    def post(self, hotel: str, booking: int, *messages: Mapping[str, Any], copies: int = 1) -> None:
        """Webhook version 2: a POST with the booking in it."""
        body = json.dumps(version2(self.bookings[str(booking)], messages)).encode()
        headers = {"content-type": "application/json", "x-relevo-secret": secret_of(hotel)}
        path = f"{WEBHOOK}?hotelId={quote(hotel)}"
        self._world.courier.send(path, body, lambda body: headers, copies=copies)


def query_of(hotel: str, booking: int | str, word: str, **more: str) -> str:
    """The query of a webhook of version 1."""
    fields = {"hotelId": hotel, "secret": secret_of(hotel), **more}
    return urlencode({**fields, "bookid": str(booking), "status": word})


def version2(booking: Mapping[str, Any], messages: Any = ()) -> dict[str, Any]:
    """The body of a webhook of version 2."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {
        "timeStamp": now,
        "booking": dict(booking),
        "infoItems": [],
        "invoiceItems": [],
        "messages": [dict(each) for each in messages],
        "retries": 0,
    }


def beds24(world: World) -> Account:
    """The account of a world."""
    return world.room("beds24", lambda: Account(world))


def routes(world: World) -> list[BaseRoute]:
    def listed(data: list[dict[str, Any]], kind: str) -> Response:
        pages = {"nextPageExists": False, "nextPageLink": None}
        return JSONResponse(
            {"success": True, "type": kind, "count": len(data), "pages": pages, "data": data}
        )

    def denied(code: int, text: str) -> Response:
        told = {"success": False, "type": "error", "code": code, "error": text}
        return JSONResponse(told, code)

    def is_known(request: Request) -> bool:
        return request.headers.get("token") in beds24(world).tokens

    @world.call("beds24", "token")
    async def token(request: Request) -> Response:
        if request.headers.get("refreshToken") != REFRESH:
            return denied(401, "Token not valid")
        made = f"token-{len(beds24(world).tokens) + 1}"
        beds24(world).tokens.add(made)
        return JSONResponse({"token": made, "expiresIn": 86_400})

    @world.call("beds24", "bookings")
    async def bookings(request: Request) -> Response:
        if not is_known(request):
            return denied(401, "Token not valid")
        asked = request.query_params
        ids, states = asked.getlist("id"), asked.getlist("status")
        since, places = asked.get("modifiedFrom", ""), asked.getlist("propertyId")
        found = [
            each
            for id, each in beds24(world).bookings.items()
            if (not ids or id in ids)
            and each["status"] in (states or ["confirmed", "request", "new"])
            and each["modifiedTime"] >= since
            and (not places or str(each["propertyId"]) in places)
        ]
        return listed(found, "booking")

    @world.call("beds24", "messages")
    async def messages(request: Request) -> Response:
        if not is_known(request):
            return denied(401, "Token not valid")
        asked = request.query_params
        ids, sources = asked.getlist("bookingId"), asked.getlist("source")
        found = [
            each
            for each in beds24(world).messages
            if (not ids or str(each["bookingId"]) in ids)
            and (not sources or each["source"] in sources)
        ]
        return listed(found, "message")

    @world.call("beds24", "send")
    async def send(request: Request) -> Response:
        if not is_known(request):
            return denied(401, "Token not valid")
        answers: list[dict[str, Any]] = []
        for each in await request.json():
            if fault(request) == "refuse" or not each.get("message"):
                told = {"action": "send", "field": "message", "message": "not allowed"}
                answers.append({"success": False, "errors": [told]})
                continue
            made = beds24(world).say(each["bookingId"], each["message"], each["source"])
            world.effect("beds24", "send", str(each["bookingId"]), text=each["message"])
            answers.append({"success": True, "new": made})
        return JSONResponse(answers, 201)

    return [
        Route(f"{PREFIX}/authentication/token", token, methods=["GET"]),
        Route(f"{PREFIX}/bookings", bookings, methods=["GET"]),
        Route(f"{PREFIX}/bookings/messages", messages, methods=["GET"]),
        Route(f"{PREFIX}/bookings/messages", send, methods=["POST"]),
    ]
