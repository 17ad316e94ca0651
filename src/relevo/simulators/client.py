"""The programs that car rental tells of reservations, pretended: the client's, and support's."""

from __future__ import annotations

from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from relevo import Delivery, sources
from relevo.pairs import Headers
from relevo.signatures import InvalidSignature
from relevo.simulators.world import World

SECRET = "whsec_cmVsZXZvLXNpbXVsYXRvci1jbGllbnQ="  # noqa: S105 - opens nothing but the simulators


def environment(base: str) -> dict[str, str]:
    return {
        "CARS_CLIENT_URL": f"{base}/client/events",
        "CARS_SUPPORT_URL": f"{base}/client/support",
        "CARS_WEBHOOK_SECRET": SECRET,
    }


def routes(world: World) -> list[BaseRoute]:
    def receiver(operation: str) -> Route:
        @world.call("client", operation)
        async def receive(request: Request) -> Response:
            now = datetime.now(UTC)
            delivery = Delivery(
                path=request.url.path,
                headers=Headers(request.headers.items()),
                body=await request.body(),
                received_at=now,
            )
            try:
                sources.standard(SECRET).scheme.check(delivery, now)
            except InvalidSignature as error:
                return JSONResponse({"error": str(error)}, 401)
            seen = world.room("client seen", set[str])
            id = request.headers["webhook-id"]
            if id not in seen:
                seen.add(id)
                event = delivery.json
                code = event["data"]["reservation_code"]
                world.effect("client", operation, code, type=event["type"], data=event["data"])
            return JSONResponse({"received": id})

        return Route(f"/client/{operation}", receive, methods=["POST"])

    return [receiver("events"), receiver("support")]
