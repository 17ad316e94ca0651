"""Hertz Argentina, pretended: an OAuth password grant, then bookings in JSON."""

from __future__ import annotations

import secrets
from typing import Any
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from relevo.simulators.world import World, fault

USER, PASSWORD, CLIENT = "agency", "simulated", "relevo"


def environment(base: str) -> dict[str, str]:
    return {
        "HERTZ_URL": f"{base}/hertz/api",
        "HERTZ_AUTH_URL": f"{base}/hertz/token",
        "HERTZ_USER": USER,
        "HERTZ_PASSWORD": PASSWORD,
        "HERTZ_CLIENT_ID": CLIENT,
        "HERTZ_FIND": "/Booking",
    }


def bookings(world: World) -> dict[str, list[int]]:
    """The numbers that it holds, by the agency's code."""
    return world.room("hertz bookings", dict[str, list[int]])


def tokens(world: World) -> set[str]:
    """The logins that are good; a test may end them."""
    return world.room("hertz", set[str])


def routes(world: World) -> list[BaseRoute]:
    @world.call("hertz", "login")
    async def token(request: Request) -> Response:
        form = parse_qs((await request.body()).decode())
        wanted = {
            "username": [USER],
            "password": [PASSWORD],
            "grant_type": ["password"],
            "client_id": [CLIENT],
        }
        if form != wanted:
            return JSONResponse({"error": "invalid_grant"}, 400)
        made = secrets.token_urlsafe(24)
        tokens(world).add(made)
        return JSONResponse({"access_token": made, "token_type": "bearer"})

    def is_in(request: Request) -> bool:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        return token in tokens(world)

    @world.call("hertz", "book")
    async def book(request: Request) -> Response:
        if not is_in(request):
            return JSONResponse({"message": "Unauthorized"}, 401)
        given: dict[str, Any] = await request.json()
        customer = given["customer"]
        if not all(given.get(name) for name in ("model", "fromDate", "toDate", "deliveryPlace")):
            return JSONResponse({"message": "Invalid request"}, 400)
        if fault(request) == "refuse":
            return JSONResponse({"message": "Model not available"}, 409)
        number = secrets.randbelow(9_000_000) + 1_000_000
        key = given.get("externalReference") or customer["emailAddress"]
        bookings(world).setdefault(key, []).append(number)
        names = {"first_name": customer["firstName"], "last_name": customer["lastName"]}
        world.effect("hertz", "book", key, confirmation=str(number), age=customer["age"], **names)
        return JSONResponse({"id": number, "model": given["model"]}, 201)

    @world.call("hertz", "find")
    async def find(request: Request) -> Response:
        if not is_in(request):
            return JSONResponse({"message": "Unauthorized"}, 401)
        code = request.query_params["externalReference"]
        numbers = bookings(world).get(code, [])
        return JSONResponse([{"id": number, "externalReference": code} for number in numbers])

    return [
        Route("/hertz/token", token, methods=["POST"]),
        Route("/hertz/api/Booking", book, methods=["POST"]),
        Route("/hertz/api/Booking", find, methods=["GET"]),
    ]
