"""The car rental for support: every reservation, what happened to it, and what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from relevo import Relevo
from relevo.apps.cars.records import Records
from relevo.apps.cars.settings import CarsSettings
from relevo.apps.cars.support import PAGE, STATUSES, Support
from relevo.apps.cars.words import REFUSALS, SPANISH
from relevo.clock import stamp
from relevo.web import Form, Room, form, go, needs, site

room = Room(Path(__file__).parent / "templates", SPANISH, REFUSALS)


def build(relevo: Relevo) -> ASGIApp:
    """The pages under /cars, and the list as JSON under /cars/reservations."""

    def support(request: Request) -> Support:
        known = relevo.use(CarsSettings)
        rows, desk = relevo.use(Records), request.state.desk
        return Support(rows, desk, known.askable, known.cancellable)

    def names() -> dict[int, str]:
        return {id: each.name for id, each in relevo.use(CarsSettings).suppliers.items()}

    async def overview(request: Request) -> Response:
        desk = support(request)
        status = _status(request)
        found = await desk.ls(
            status=status,
            text=request.query_params.get("q", ""),
            before=request.query_params.get("cursor"),
        )
        return room.page(
            request,
            "cars.html",
            counts=await desk.counts(),
            statuses=STATUSES,
            wanted=status,
            reservations=found,
            orders=await desk.orders([each.code for each in found]),
            suppliers=names(),
            cursor=found[-1].code if len(found) == PAGE else None,
            at=stamp,
        )

    async def listed(request: Request) -> Response:
        found = await support(request).ls(
            status=_status(request), before=request.query_params.get("cursor")
        )
        return JSONResponse(
            {
                "reservations": [
                    {
                        "reservation_code": each.code,
                        "status": each.status,
                        "supplier_id": each.supplier_id,
                        "supplier_reservation_code": each.supplier_reservation_code,
                        "created_at": each.created_at.isoformat(),
                    }
                    for each in found
                ],
                "cursor": found[-1].code if len(found) == PAGE else None,
            }
        )

    async def one(request: Request) -> Response:
        case = await support(request).show(request.path_params["code"])
        return room.page(request, "reservation.html", case=case, suppliers=names(), at=stamp)

    def action(verb: str) -> Any:
        @needs("operator")
        async def act(request: Request) -> Response:
            code = request.path_params["code"]
            said = await _act(support(request), verb, code, await form(request), request)
            return go(request, f"/cars/{code}", said=said)

        return Route(f"/cars/{{code}}/{verb}", act, methods=["POST"])

    return site(
        [
            Route("/cars", overview),
            Route("/cars/reservations", listed),
            *(action(verb) for verb in ("retry", "confirm", "cancel", "refund", "refunded")),
            Route("/cars/{code}", one),
        ],
        room,
    )


def _status(request: Request) -> str | None:
    return request.query_params.get("status") or None


async def _act(support: Support, verb: str, code: str, filled: Form, request: Request) -> str:
    person, note = request.state.person, filled["note"]
    _ = room.words(request)
    match verb:
        case "retry":
            is_absent = filled["not_booked"] == "yes"
            await support.retry(code, person, note, not_booked=is_absent)
            return _("The supplier is asked again.")
        case "confirm":
            await support.confirm(code, filled["confirmation"], person, note)
            return _("The reservation is confirmed.")
        case "refund":
            await support.refund(code, person, note)
            return _("The money is given back at Stripe.")
        case "refunded":
            await support.refunded(code, person, note)
            return _("It is written down.")
        case _:
            await support.cancel(
                code,
                person,
                note,
                at_supplier=filled["at_supplier"] == "yes",
                not_booked=filled["at_supplier"] == "not_booked",
                number=filled["confirmation"],
            )
            return _("The reservation is cancelled.")
