"""Mex Group, pretended: a broker's login, then reservations in JSON."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from relevo.simulators.world import World, fault

USER, PASSWORD = "broker", "simulated"
WANTED = (
    *("pickup_location", "dropoff_location", "pickup_date", "dropoff_date", "rate_code", "class"),
    *("id_rate", "email", "first_name", "last_name", "chain_code"),
)


def environment(base: str) -> dict[str, str]:
    return {
        "MEXGROUP_URL": f"{base}/mexgroup",
        "MEXGROUP_USER": USER,
        "MEXGROUP_PASSWORD": PASSWORD,
        "MEXGROUP_FIND": "/api/brokers/booking-engine/reservations",
    }


def bookings(world: World) -> dict[str, list[str]]:
    """The numbers that it holds, by the broker's code."""
    return world.room("mexgroup bookings", dict[str, list[str]])


def tokens(world: World) -> set[str]:
    """The logins that are good; a test may end them."""
    return world.room("mexgroup", set[str])


def routes(world: World) -> list[BaseRoute]:
    @world.call("mexgroup", "login")
    async def login(request: Request) -> Response:
        given = await request.json()
        if (given.get("user"), given.get("password")) != (USER, PASSWORD):
            return _no("Usuario o contraseña incorrectos")
        token = secrets.token_urlsafe(24)
        tokens(world).add(token)
        until = datetime.now(UTC) + timedelta(hours=1)
        data = {"token": token, "expiredAt": until.strftime("%Y-%m-%d %H:%M:%S")}
        return JSONResponse({"type": "success", "data": data})

    def is_in(request: Request) -> bool:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        return token in tokens(world)

    @world.call("mexgroup", "book")
    async def reserve(request: Request) -> Response:
        if not is_in(request):
            return _no("Token inválido", 401)
        given: dict[str, Any] = await request.json()
        missing = [name for name in WANTED if not given.get(name)]
        if missing:
            return _no(f"Faltan campos: {', '.join(missing)}", 422)
        if fault(request) == "refuse":
            return _no("No hay disponibilidad para esta tarifa")
        number = f"MX{secrets.randbelow(900_000) + 100_000}"
        key = given.get("reference") or given["email"]
        bookings(world).setdefault(key, []).append(number)
        names = {name: given[name] for name in ("first_name", "last_name", "class", "id_rate")}
        world.effect("mexgroup", "book", key, confirmation=number, **names)
        return JSONResponse({"type": "success", "data": {"noConfirmation": number}})

    @world.call("mexgroup", "find")
    async def find(request: Request) -> Response:
        if not is_in(request):
            return _no("Token inválido", 401)
        code = (await request.json()).get("reference")
        numbers = bookings(world).get(code, [])
        rows = [{"reference": code, "noConfirmation": number} for number in numbers]
        return JSONResponse({"type": "success", "data": rows})

    @world.call("mexgroup", "cancel")
    async def cancel(request: Request) -> Response:
        if not is_in(request):
            return _no("Token inválido", 401)
        number = (await request.json()).get("no_confirmation")
        for code, numbers in bookings(world).items():
            if number in numbers:
                numbers.remove(number)
                world.effect("mexgroup", "cancel", code, confirmation=number)
                return JSONResponse({"type": "success", "data": {"noConfirmation": number}})
        return _no("La reservación no existe")

    return [
        Route("/mexgroup/api/brokers/login", login, methods=["POST"]),
        Route("/mexgroup/api/brokers/booking-engine/reserve", reserve, methods=["POST"]),
        Route("/mexgroup/api/brokers/booking-engine/reservations", find, methods=["POST"]),
        Route("/mexgroup/api/brokers/booking-engine/cancel", cancel, methods=["POST"]),
    ]


def _no(message: str, status: int = 200) -> Response:
    return JSONResponse({"type": "error", "message": message}, status)
