"""Customers call us: reserve, pay, and see how it stands."""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from sqlalchemy import select
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from relevo import (
    BodyError,
    ProviderCredentials,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUncertain,
    Relevo,
    StoreError,
)
from relevo.apps.cars import payments
from relevo.apps.cars.gateways.payments import Busy, Declined
from relevo.apps.cars.records import (
    History,
    OutboxDeadLetter,
    OutboxEvent,
    Records,
    Reservation,
    Status,
    is_code,
)
from relevo.apps.cars.requests import (
    CreateReservationRequest,
    Invalid,
    PayRequest,
    is_past,
)
from relevo.apps.cars.settings import CarsSettings
from relevo.apps.guard import Guard
from relevo.strictjson import parse_json

PREFIX = "/reservations"
BODY_MAX = 65_536
MISSES, WINDOW = 20, 60.0
CLIENTS_MAX = 10_000

_JSON = re.compile(r"application/json\s*(;\s*charset=\"?utf-8\"?\s*)?", re.I | re.ASCII)


class Answer(Exception):
    """An answer that is not the one hoped for."""

    def __init__(self, status: int, code: str, /, wait: int | None = None, **more: Any) -> None:
        super().__init__(code)
        headers = None if wait is None else {"retry-after": str(wait)}
        self.response = JSONResponse({"error": code, **more}, status, headers)


class Misses:
    """Who asked for codes that are none in the last minute; bounded."""

    def __init__(self) -> None:
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    def check(self, client: str, now: float) -> None:
        """Refuse a client that has guessed too much."""
        times = self._times.get(client)
        while times and times[0] <= now - WINDOW:
            times.popleft()
        if times is not None and len(times) >= MISSES:
            wait = max(1, round(times[0] + WINDOW - now))
            raise Answer(429, "too_many_misses", wait=wait)

    def add(self, client: str, now: float) -> None:
        times = self._times.setdefault(client, deque(maxlen=MISSES))
        times.append(now)
        self._times.move_to_end(client)
        while len(self._times) > CLIENTS_MAX:
            self._times.popitem(last=False)


def build(relevo: Relevo) -> ASGIApp:
    """The API under /reservations, described in /reservations/openapi.json."""
    api = FastAPI(
        title="Car rental",
        docs_url=None,
        redoc_url=None,
        openapi_url=f"{PREFIX}/openapi.json",
        exception_handlers=_HANDLERS,
    )
    misses = Misses()

    async def found(code: str, request: Request) -> Reservation:
        client = request.client.host if request.client else ""
        now = relevo.clock.now().timestamp()
        misses.check(client, now)
        reservation = await relevo.use(Records).get(code) if is_code(code) else None
        if reservation is None:
            misses.add(client, now)
            raise Answer(404, "not_found")
        return reservation

    @api.post(PREFIX, status_code=201, openapi_extra=_takes(CreateReservationRequest))
    async def reserve(request: Request) -> dict[str, Any]:
        """Keep a reservation as PENDING and give its code at once."""
        wish = CreateReservationRequest.model_validate(await _json(request))
        suppliers = relevo.use(CarsSettings).suppliers
        rows = relevo.use(Records)
        reservation = wish.reservation(suppliers, rows.now())
        code = await rows.create(reservation)
        return {"reservation_code": code, "status": Status.PENDING}

    @api.post(f"{PREFIX}/{{code}}/pay", openapi_extra=_takes(PayRequest))
    async def pay(code: str, request: Request) -> Any:
        """Charge a reservation, once; asking again answers the same."""
        reservation = await found(code, request)
        if reservation.status in (Status.PAID, Status.CONFIRMED):
            return _receipt(reservation)
        if reservation.status != Status.PENDING:
            raise Answer(409, "not_payable", status=reservation.status)
        if is_past(reservation.pickup_datetime, relevo.clock.now()):
            raise Answer(409, "not_payable", status="EXPIRED")
        wish = PayRequest.model_validate(await _json(request))
        payment = await payments.pay(relevo, reservation, wish.payment_method)
        if payment.is_paid:
            after = await relevo.use(Records).get(code)
            if after is not None and after.status in (Status.PAID, Status.CONFIRMED):
                return _receipt(after)
            raise Answer(409, "not_payable", status=after.status if after else "")
        if payment.status == "requires_action":
            secret = {"client_secret": payment.client_secret}
            return JSONResponse(
                {"reservation_code": code, "payment": payment.status, **secret}, 202
            )
        if payment.is_under_way:
            return JSONResponse({"reservation_code": code, "payment": payment.status}, 202)
        raise Answer(402, "payment_declined", reason=payment.status)

    @api.get(f"{PREFIX}/{{code}}")
    async def show(code: str, request: Request) -> dict[str, Any]:
        """A reservation's state and history, as its rows have it: nothing is written."""
        reservation = await found(code, request)
        return await view(relevo.use(Records), reservation)

    return Guard(api, BODY_MAX, {"error": "too_large"})


async def view(rows: Records, reservation: Reservation) -> dict[str, Any]:
    """A reservation as its customer sees it: how far it is, and what happened to it."""
    code = reservation.code
    async with rows.transaction() as tx:
        lines = (
            await tx.scalars(
                select(History).where(History.reservation_code == code).order_by(History.id)
            )
        ).all()
        event = await tx.scalar(select(OutboxEvent).where(OutboxEvent.reservation_code == code))
        dead = await tx.scalar(
            select(OutboxDeadLetter).where(OutboxDeadLetter.reservation_code == code)
        )
    booking = None
    if dead is not None:
        booking = {"status": "DEAD", "attempts": dead.attempts, "next_attempt_at": None}
    elif event is not None:
        booking = {
            "status": event.status,
            "attempts": event.attempts,
            "next_attempt_at": event.next_attempt_at,
        }
    return {
        "reservation_code": code,
        "status": reservation.status,
        "supplier_id": reservation.supplier_id,
        "supplier_reservation_code": reservation.supplier_reservation_code,
        "pickup_datetime": reservation.pickup_datetime.isoformat(),
        "dropoff_datetime": reservation.dropoff_datetime.isoformat(),
        "pickup_location": reservation.pickup_location,
        "dropoff_location": reservation.dropoff_location,
        "total_amount": str(reservation.price),
        "currency": reservation.currency.upper(),
        "booking": booking,
        # The words of suppliers and of the engine are for support, not for customers.
        "history": [{"at": line.at, "what": line.what} for line in lines],
    }


def _receipt(reservation: Reservation) -> dict[str, Any]:
    """What paying answers, the first time and every other."""
    return {
        "reservation_code": reservation.code,
        "payment": "succeeded",
        "total_amount": str(reservation.price),
        "currency": reservation.currency.upper(),
        "paid_at": reservation.paid_at,
    }


# The door


async def _json(request: Request) -> Any:
    """The body, strictly: one JSON document, no key twice, nothing a store would choke on."""
    if not _JSON.fullmatch(request.headers.get("content-type", "")):
        raise Answer(415, "json_wanted")
    return parse_json(await request.body())


def _takes(model: type[BaseModel]) -> dict[str, Any]:
    """The body's shape, for the description: it is read by hand, strictly."""
    schema = model.model_json_schema()
    inner = schema.pop("$defs", {})
    for name, field in schema["properties"].items():
        if "$ref" in field:
            schema["properties"][name] = inner[field["$ref"].rpartition("/")[2]]
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


# Errors


async def _answer(request: Request, error: Any) -> JSONResponse:
    match error:
        case Answer():
            return error.response
        case ValidationError():
            return _answer_invalid(Invalid.of(error))
        case Invalid():
            return _answer_invalid(error)
        case BodyError():
            return JSONResponse({"error": error.code}, 400)
        case HTTPException():
            return JSONResponse(
                {"error": _CODES.get(error.status_code, "refused")},
                error.status_code,
                dict(error.headers or {}),
            )
        case Declined():
            return JSONResponse({"error": "payment_declined", "reason": error.code}, 402)
        case Busy():
            return Answer(409, "payment_in_progress", wait=2).response
        case ProviderRefused():
            return JSONResponse({"error": "payment_refused"}, 402)
        case ProviderUncertain():
            # It may have worked: asking again, with the same card, charges no second time.
            return Answer(503, "payment_unknown", wait=5).response
        case ProviderUnavailable() | ProviderCredentials():
            return Answer(503, "payment_unavailable", wait=5).response
        case StoreError():
            return Answer(503, "unavailable", wait=1).response
        case _:  # the server writes it to the log
            return JSONResponse({"error": "internal"}, 500)


def _answer_invalid(invalid: Invalid) -> JSONResponse:
    return JSONResponse({"error": "invalid", "fields": invalid.fields}, 422)


_CODES = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}
_HANDLERS: Any = dict.fromkeys(
    (
        *(Answer, ValidationError, RequestValidationError, Invalid, BodyError, HTTPException),
        *(ProviderRefused, ProviderUncertain, ProviderUnavailable, ProviderCredentials),
        *(StoreError, Exception),
    ),
    _answer,
)
