"""Stripe, pretended: PaymentIntents with real idempotency keys, declines, and signed webhooks.

A charge is written into the ledger as ("stripe", "charge", the reservation in its metadata or else
the intent's id). What `announce` sends goes to every endpoint that listens to its type.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from relevo.simulators.world import World, fault

KEY = "sk_test_relevo_simulator"
WEBHOOK_SECRET = "whsec_relevo_simulator"  # noqa: S105 - opens nothing but the simulators
SUBSCRIPTIONS_SECRET = "whsec_relevo_subscriptions"  # noqa: S105 - as above
API_VERSION = "2026-10-28.endive"

DECLINES = {
    "pm_card_chargeDeclined": "generic_decline",
    "pm_card_visa_chargeDeclined": "generic_decline",
    "pm_card_chargeDeclinedInsufficientFunds": "insufficient_funds",
    "pm_card_visa_chargeDeclinedInsufficientFunds": "insufficient_funds",
    "pm_card_chargeCustomerFail": "generic_decline",
}
ASKS = "pm_card_authenticationRequired"

Json: TypeAlias = dict[str, Any]
Verb: TypeAlias = Callable[[Request, Json], Awaitable[Json]]


def environment(base: str) -> dict[str, str]:
    return {
        "STRIPE_SECRET_KEY": KEY,
        "STRIPE_WEBHOOK_SECRET": WEBHOOK_SECRET,
        "SUBSCRIPTIONS_STRIPE_WEBHOOK_SECRET": SUBSCRIPTIONS_SECRET,
        "STRIPE_API_BASE": f"{base}/stripe",
    }


# What it remembers


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A webhook address that a merchant registered, and the types it listens to."""

    path: str
    secret: str
    types: tuple[str, ...] = ("*",)

    def hears(self, type: str) -> bool:
        return any(fnmatchcase(type, each) for each in self.types)


@dataclass(slots=True)
class Execution:
    """What was done under an idempotency key; without a body it is being done."""

    request: str
    status: int = 0
    body: bytes = b""


@dataclass(slots=True)
class Account:
    """One merchant."""

    intents: dict[str, Json] = field(default_factory=dict[str, Json])
    executions: dict[str, Execution] = field(default_factory=dict[str, Execution])
    events: dict[str, Json] = field(default_factory=dict[str, Json])
    endpoints: list[Endpoint] = field(
        default_factory=lambda: [
            Endpoint("/hooks/stripe", WEBHOOK_SECRET, ("payment_intent.*", "charge.*"))
        ]
    )


def account(world: World) -> Account:
    return world.room("stripe", Account)


class _No(Exception):
    """An answer in Stripe's words that is not a success."""

    def __init__(self, status: int, type: str, code: str, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status = status
        self.error = {"type": type, "code": code, "message": message, **more}


# Webhooks


def announce(
    world: World, type: str, data: Mapping[str, Any], *, key: str | None = None, copies: int = 1
) -> Json:
    """Make an event and send it, signed when it leaves, to whoever listens to its type."""
    here = account(world)
    event = make_event(type, data, key=key)
    here.events[event["id"]] = event
    found = world.faults.pick("stripe", "webhook")
    copies += 1 if found is not None and found.kind == "duplicate" else 0
    for endpoint in here.endpoints:
        if endpoint.hears(type):
            send(world, event, endpoint, copies=copies)
    return event


def make_event(type: str, data: Mapping[str, Any], *, key: str | None = None) -> Json:
    """An event as Stripe writes it, with the object frozen as it is now."""
    return {
        "id": _id("evt"),
        "object": "event",
        "api_version": API_VERSION,
        "created": int(time.time()),
        "livemode": False,
        "pending_webhooks": 1,
        "request": {"id": _id("req") if key else None, "idempotency_key": key},
        "type": type,
        "data": {"object": json.loads(json.dumps(data))},
    }


def send(world: World, event: Mapping[str, Any], endpoint: Endpoint, *, copies: int = 1) -> None:
    """Deliver an event to one endpoint."""

    def sign(body: bytes) -> Mapping[str, str]:
        return {
            "content-type": "application/json; charset=utf-8",
            "user-agent": "Stripe/1.0 (+https://stripe.com/docs/webhooks)",
            "stripe-signature": signature(body, endpoint.secret),
        }

    world.courier.send(endpoint.path, json.dumps(event).encode(), sign, copies=copies)


def signature(body: bytes, secret: str = WEBHOOK_SECRET, at: int | None = None) -> str:
    """The Stripe-Signature header of a body."""
    at = int(time.time()) if at is None else at
    made = hmac.new(secret.encode(), b"%d." % at + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={made}"


# The API


def routes(world: World) -> list[BaseRoute]:
    here = Api(world)
    intent = "/stripe/v1/payment_intents/{id}"
    return [
        here.post("/stripe/v1/payment_intents", "create", here.create),
        here.post(f"{intent}/confirm", "confirm", here.confirm),
        here.post(f"{intent}/cancel", "cancel", here.cancel),
        here.post(f"{intent}/_authenticate", "authenticate", here.authenticate),
        here.post("/stripe/v1/refunds", "refund", here.refund),
        here.get(intent, "retrieve", here.retrieve),
        here.get("/stripe/v1/events/{id}", "event", here.event),
    ]


class Api:
    """The endpoints."""

    def __init__(self, world: World) -> None:
        self.world = world

    # doors

    def post(self, path: str, operation: str, verb: Verb) -> Route:
        async def handler(request: Request) -> Response:
            refused = _unauthorized(request)
            if refused is not None:
                return refused
            form = await request.body()
            key = request.headers.get("idempotency-key")
            if key is None:
                status, body = await self._execute(verb, request, form)
                return _answer(status, body)
            return await self._keyed(key, verb, request, form)

        return Route(path, self.world.call("stripe", operation)(handler), methods=["POST"])

    def get(self, path: str, operation: str, verb: Verb) -> Route:
        async def handler(request: Request) -> Response:
            refused = _unauthorized(request)
            if refused is not None:
                return refused
            status, body = await self._execute(verb, request, b"")
            return _answer(status, body)

        return Route(path, self.world.call("stripe", operation)(handler), methods=["GET"])

    async def _keyed(self, key: str, verb: Verb, request: Request, form: bytes) -> Response:
        executions = account(self.world).executions
        what = f"{request.url.path}?{sorted(parse_qsl(form.decode()))}"
        known = executions.get(key)
        if known is not None and known.request != what:
            message = "Keys for idempotent requests can only be used with the same parameters."
            return _error(_No(400, "idempotency_error", "idempotency_key_reused", message))
        if known is not None and not known.body:
            message = "There is currently another in-progress request using this Idempotent Key."
            return _error(_No(409, "idempotency_error", "idempotency_key_in_use", message))
        if known is not None:
            return _answer(known.status, known.body, replayed=True)
        mine = executions[key] = Execution(what)
        try:
            mine.status, mine.body = await self._execute(verb, request, form)
        finally:
            if not mine.body or mine.status in (400, 404):
                del executions[key]  # nothing was begun, so the key is still free
        return _answer(mine.status, mine.body)

    async def _execute(self, verb: Verb, request: Request, form: bytes) -> tuple[int, bytes]:
        await asyncio.sleep(0.002)  # long enough for a second request to find the key in use
        try:
            return 200, json.dumps(await verb(request, _nested(form))).encode()
        except _No as no:
            return no.status, json.dumps({"error": no.error}).encode()

    # verbs

    async def create(self, request: Request, given: Json) -> Json:
        amount, currency = str(given.get("amount", "")), str(given.get("currency", ""))
        if not re.fullmatch(r"[1-9]\d{0,7}", amount):
            raise _invalid("Invalid positive integer", "amount")
        if not re.fullmatch(r"[a-z]{3}", currency):
            raise _invalid("Invalid currency", "currency")
        id = _id("pi")
        intent: Json = {
            "id": id,
            "object": "payment_intent",
            "amount": int(amount),
            "amount_received": 0,
            "currency": currency,
            "status": "requires_payment_method",
            "capture_method": "automatic_async",
            "client_secret": f"{id}_secret_{secrets.token_hex(8)}",
            "customer": given.get("customer"),
            "latest_charge": None,
            "payment_method": given.get("payment_method"),
            "payment_method_types": ["card"],
            "metadata": given.get("metadata", {}),
            "last_payment_error": None,
            "next_action": None,
            "created": int(time.time()),
            "livemode": False,
        }
        account(self.world).intents[id] = intent
        if given.get("payment_method"):
            intent["status"] = "requires_confirmation"
        if given.get("confirm") == "true":
            self._confirm(request, intent, given)
        return intent

    async def confirm(self, request: Request, given: Json) -> Json:
        intent = self._find(request)
        if intent["status"] in ("succeeded", "canceled", "processing", "requires_capture"):
            raise _No(
                400,
                "invalid_request_error",
                "payment_intent_unexpected_state",
                f"This PaymentIntent's status is {intent['status']}: it cannot be confirmed.",
                payment_intent=intent,
            )
        self._confirm(request, intent, given)
        return intent

    async def cancel(self, request: Request, given: Json) -> Json:
        intent = self._find(request)
        if intent["status"] == "succeeded":
            message = "You cannot cancel this PaymentIntent because it has succeeded."
            raise _No(400, "invalid_request_error", "payment_intent_unexpected_state", message)
        intent["status"] = "canceled"
        announce(self.world, "payment_intent.canceled", intent)
        return intent

    async def authenticate(self, request: Request, given: Json) -> Json:
        """The customer has passed 3-D Secure: what the bank's page would tell Stripe."""
        intent = self._find(request)
        if intent["status"] != "requires_action":
            raise _invalid("Nothing to authenticate", "id")
        self._charge(intent, None)
        return intent

    async def retrieve(self, request: Request, given: Json) -> Json:
        return self._find(request)

    async def refund(self, request: Request, given: Json) -> Json:
        intent = account(self.world).intents.get(str(given.get("payment_intent", "")))
        if intent is None or intent["status"] != "succeeded":
            raise _invalid("No such successful payment_intent", "payment_intent")
        amount = int(given.get("amount", intent["amount"]))
        self.world.effect("stripe", "refund", _key(intent), amount=amount)
        refund = {"id": _id("re"), "object": "refund", "amount": amount, "status": "succeeded"}
        return {**refund, "payment_intent": intent["id"], "currency": intent["currency"]}

    async def event(self, request: Request, given: Json) -> Json:
        found = account(self.world).events.get(request.path_params["id"])
        if found is None:
            raise _missing("event", request.path_params["id"])
        return found

    # inside

    def _find(self, request: Request) -> Json:
        found = account(self.world).intents.get(request.path_params["id"])
        if found is None:
            raise _missing("payment_intent", request.path_params["id"])
        return found

    def _confirm(self, request: Request, intent: Json, given: Json) -> None:
        method = str(given.get("payment_method") or intent["payment_method"] or "")
        if not method:
            raise _invalid("You cannot confirm without a payment_method", "payment_method")
        if not re.fullmatch(r"pm_\w{1,80}", method, re.ASCII):
            raise _No(
                400,
                "invalid_request_error",
                "resource_missing",
                f"No such PaymentMethod: '{method[:40]}'",
                param="payment_method",
            )
        intent["payment_method"] = method
        key = request.headers.get("idempotency-key")
        if method in DECLINES or fault(request) == "refuse":
            raise self._declined(intent, DECLINES.get(method, "generic_decline"), key)
        if method == ASKS:
            intent["status"] = "requires_action"
            intent["next_action"] = {"type": "use_stripe_sdk", "use_stripe_sdk": {}}
            return
        self._charge(intent, key)

    def _declined(self, intent: Json, decline: str, key: str | None) -> _No:
        poor = decline == "insufficient_funds"
        message = "Your card has insufficient funds." if poor else "Your card was declined."
        intent["status"] = "requires_payment_method"
        intent["last_payment_error"] = {
            "type": "card_error",
            "code": "card_declined",
            "decline_code": decline,
            "message": message,
        }
        announce(self.world, "payment_intent.payment_failed", intent, key=key)
        return _No(
            402,
            "card_error",
            "card_declined",
            message,
            decline_code=decline,
            charge=_id("ch"),
            payment_intent=intent,
        )

    def _charge(self, intent: Json, key: str | None) -> None:
        intent |= {
            "status": "succeeded",
            "amount_received": intent["amount"],
            "latest_charge": _id("ch"),
            "last_payment_error": None,
            "next_action": None,
        }
        self.world.effect(
            "stripe",
            "charge",
            _key(intent),
            intent=intent["id"],
            amount=intent["amount"],
            currency=intent["currency"],
        )
        announce(self.world, "payment_intent.succeeded", intent, key=key)


def _key(intent: Json) -> str:
    return str(intent["metadata"].get("reservation_code") or intent["id"])


def _id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"


def _invalid(message: str, param: str) -> _No:
    return _No(400, "invalid_request_error", "parameter_invalid", message, param=param)


def _missing(kind: str, id: str) -> _No:
    message = f"No such {kind}: '{id[:60]}'"
    return _No(404, "invalid_request_error", "resource_missing", message, param="id")


def _unauthorized(request: Request) -> Response | None:
    if request.headers.get("authorization") == f"Bearer {KEY}":
        return None
    message = "Invalid API Key provided."
    return _error(_No(401, "invalid_request_error", "api_key_invalid", message))


def _error(no: _No) -> Response:
    return _answer(no.status, json.dumps({"error": no.error}).encode())


def _answer(status: int, body: bytes, *, replayed: bool = False) -> Response:
    headers = {"request-id": _id("req")}
    if replayed:
        headers["idempotent-replayed"] = "true"
    if status == 409:
        headers["stripe-should-retry"] = "true"
    return Response(body, status, headers, media_type=JSONResponse.media_type)


def _nested(form: bytes) -> Json:
    """`metadata[code]=1` as {"metadata": {"code": "1"}}."""
    found: Json = {}
    for name, value in parse_qsl(form.decode(), keep_blank_values=True):
        path = re.findall(r"[^\[\]]+", name)
        place = found
        for part in path[:-1]:
            place = place.setdefault(part, {})
        place[path[-1]] = value
    return found
