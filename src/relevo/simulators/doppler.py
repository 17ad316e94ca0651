"""Doppler's lists, pretended: an upsert by address, and no way back for who unsubscribed."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from relevo.simulators.world import World, fault

KEY = "doppler-key-of-the-simulator"
ACCOUNT = "ana@example.com"
LIST = "27001"
UNSUBSCRIBED = "unsubscribed"
"""Addresses that begin so have left the list, and stay out of it."""


def environment(base: str) -> dict[str, str]:
    return {
        "DOPPLER_URL": f"{base}/doppler",
        "DOPPLER_API_KEY": KEY,
        "DOPPLER_ACCOUNT": ACCOUNT,
        "DOPPLER_LIST_ID": LIST,
    }


def routes(world: World) -> list[BaseRoute]:
    @world.call("doppler", "subscribe")
    async def subscribe(request: Request) -> Response:
        if request.headers.get("authorization") != f"token {KEY}":
            return _problem(401, "Invalid token", "401.1-invalid-token")
        place = (request.path_params["account"], request.path_params["list"])
        if place != (ACCOUNT, LIST):
            return _problem(404, "Entity Not Found", "404.1-entity-not-found")
        body: dict[str, Any] = await request.json()
        email = str(body.get("email", ""))
        if fault(request) == "refuse" or "@" not in email:
            return _problem(400, "Validation error", "400.1-validation-error")
        if email.startswith(UNSUBSCRIBED):
            return _problem(
                400, "Validation error", "400.1-validation-error", "Unsubscribed by user"
            )
        members: dict[str, Any] = world.room("doppler", dict[str, Any])
        if email not in members:
            world.effect("doppler", "subscribe", email)
        members[email] = body.get("fields", [])
        answer: dict[str, Any] = {
            "message": "Subscriber successfully added",
            "createdResourceId": email,
            "_links": [],
        }
        return JSONResponse(answer, 201)

    return [
        Route("/doppler/accounts/{account}/lists/{list}/subscribers", subscribe, methods=["POST"]),
    ]


def _problem(status: int, title: str, type: str, detail: str = "") -> Response:
    problem: dict[str, Any] = {
        "title": title,
        "status": status,
        "errorCode": 1,
        "detail": detail or title,
        "type": f"/docs/errors/{type}",
        "_links": [],
    }
    if status == 400:
        problem["errors"] = [{"key": "email", "detail": detail or title}]
    return JSONResponse(problem, status)
