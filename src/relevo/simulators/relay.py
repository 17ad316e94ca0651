"""Doppler Relay, pretended: letters one at a time, no idempotency keys."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from relevo.ids import new_id
from relevo.simulators.world import World, fault

KEY = "relay-key-of-the-simulator"
ACCOUNT = "751"


def environment(base: str) -> dict[str, str]:
    return {
        "DOPPLER_RELAY_URL": f"{base}/relay",
        "DOPPLER_RELAY_API_KEY": KEY,
        "DOPPLER_RELAY_ACCOUNT_ID": ACCOUNT,
        "DOPPLER_RELAY_FROM": "no-reply@example.com",
        "RAZWORKS_MAIL_FROM": "hello@razworks.example",
    }


def routes(world: World) -> list[BaseRoute]:
    @world.call("relay", "send")
    async def send(request: Request) -> Response:
        if request.headers.get("authorization") != f"token {KEY}":
            return _problem(401, "Invalid token", "/docs/errors/401.1-invalid-token")
        if request.path_params["account"] != ACCOUNT:
            return _problem(
                403, "Forbidden, wrong account", "/docs/errors/403.1-forbidden-wrong-account"
            )
        letter: dict[str, Any] = await request.json()
        to: list[dict[str, Any]] = letter.get("recipients") or []
        if fault(request) == "refuse" or len(to) != 1 or "@" not in to[0].get("email", ""):
            return _problem(400, "Validation error", "/docs/errors/400.1-validation-error")
        sent = new_id()
        world.effect(
            "relay",
            "send",
            to[0]["email"],
            id=sent,
            subject=letter.get("subject", ""),
            template=request.path_params.get("template"),
        )
        answer: dict[str, Any] = {
            "createdResourceId": sent,
            "message": "Message has been created",
            "_links": [],
        }
        return JSONResponse(answer, 201, {"location": f"/accounts/{ACCOUNT}/messages/{sent}"})

    return [
        Route("/relay/accounts/{account}/messages", send, methods=["POST"]),
        Route("/relay/accounts/{account}/templates/{template}/message", send, methods=["POST"]),
    ]


def _problem(status: int, title: str, type: str) -> Response:
    problem: dict[str, Any] = {
        "title": title,
        "status": status,
        "errorCode": 1,
        "detail": title,
        "type": type,
        "_links": [],
    }
    return JSONResponse(problem, status)
