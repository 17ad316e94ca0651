"""Stripe as we pretend it, looked at with Stripe's own SDK: what our payments rely on."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import pytest
import stripe

from relevo import ProviderCredentials, ProviderRefused, ProviderUnavailable, ProviderUncertain
from relevo.apps.cars.gateways.payments import Busy, Declined, Payments
from relevo.simulators import World, environment
from relevo.simulators.stripe import (
    KEY,
    WEBHOOK_SECRET,
    Endpoint,
    account,
    announce,
    make_event,
    signature,
)

CHARGE: Any = {
    "amount": 1500,
    "currency": "eur",
    "payment_method": "pm_card_visa",
    "confirm": True,
    "metadata": {"reservation_code": "RES-1"},
}


@pytest.fixture
def sdk(world: World) -> stripe.StripeClient:
    base = environment(world.base)["STRIPE_API_BASE"]
    return stripe.StripeClient(KEY, base_addresses={"api": base}, max_network_retries=0)


@pytest.fixture
async def payments(world: World) -> AsyncGenerator[Payments]:
    opened = Payments(KEY, environment(world.base)["STRIPE_API_BASE"])
    yield opened
    await opened.close()


async def charge(sdk: stripe.StripeClient, key: str, **changes: Any) -> stripe.PaymentIntent:
    create = sdk.v1.payment_intents.create
    options: Any = {"idempotency_key": key}
    return await asyncio.to_thread(create, {**CHARGE, **changes}, options)


async def test_a_key_is_executed_once_and_its_answer_repeated(
    world: World, sdk: stripe.StripeClient
) -> None:
    first, again = await charge(sdk, "k"), await charge(sdk, "k")
    assert (first.id, first.status) == (again.id, "succeeded")
    assert again.last_response is not None
    assert again.last_response.headers["idempotent-replayed"] == "true"
    with pytest.raises(stripe.IdempotencyError):
        await charge(sdk, "k", amount=1)
    assert world.ledger.count("stripe", "charge") == 1


async def test_a_key_in_use_is_a_conflict_and_charges_once(
    world: World, sdk: stripe.StripeClient
) -> None:
    answers = await asyncio.gather(*(charge(sdk, "k") for _ in range(4)), return_exceptions=True)
    errors = [each for each in answers if isinstance(each, stripe.StripeError)]
    assert all(error.http_status == 409 for error in errors)
    assert world.ledger.count("stripe", "charge") == 1


async def test_a_decline_is_repeated_and_bad_parameters_are_not_kept(
    world: World, sdk: stripe.StripeClient
) -> None:
    for _ in range(2):
        with pytest.raises(stripe.CardError) as caught:
            await charge(sdk, "d", payment_method="pm_card_chargeDeclined")
        assert caught.value.code == "card_declined"
    with pytest.raises(stripe.InvalidRequestError):
        await charge(sdk, "e", amount=-1)
    assert (await charge(sdk, "e")).status == "succeeded"
    assert world.ledger.count("stripe", "charge") == 1


async def test_an_event_s_signature_is_stripe_s_own(world: World) -> None:
    body = json.dumps(make_event("payment_intent.succeeded", {"id": "pi_1"})).encode()
    event: Any = stripe.Webhook.construct_event(body, signature(body), WEBHOOK_SECRET)
    assert event["data"]["object"]["id"] == "pi_1"


async def test_events_go_to_whoever_listens(world: World) -> None:
    got: list[str] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append((await reader.readline()).decode())
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    world.target = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    account(world).endpoints = [
        Endpoint("/a", "whsec_a", ("invoice.*",)),
        Endpoint("/b", "whsec_b", ("invoice.paid", "customer.*")),
    ]
    announce(world, "invoice.paid", {"id": "in_1"})
    announce(world, "customer.created", {"id": "cus_1"}, copies=2)
    await world.courier.rest()
    server.close()
    assert sorted(line.split()[1] for line in got) == ["/a", "/b", "/b", "/b"]


async def test_our_payments_tell_every_answer_apart(world: World, payments: Payments) -> None:
    intent = (await payments.intend("RES-1", 1500, "eur")).intent
    assert (await payments.intend("RES-1", 1500, "eur")).intent == intent
    with pytest.raises(Declined) as caught:
        await payments.confirm(intent, "pm_card_visa_chargeDeclinedInsufficientFunds", "RES-1", 1)
    assert caught.value.code == "insufficient_funds"
    with pytest.raises(Busy):
        await payments.confirm(intent, "pm_card_visa", "RES-1", 1)
    with pytest.raises(ProviderRefused):
        await payments.confirm("pi_none", "pm_card_visa", "RES-1", 2)
    world.faults.add("stripe", "retrieve", "limit", times=1, seconds=7)
    with pytest.raises(ProviderUnavailable) as waits:
        await payments.look(intent)
    assert waits.value.retry_after is not None
    assert (waits.value.retry_after.total_seconds(), waits.value.spends) == (7, False)
    world.faults.add("stripe", "confirm", "down", times=3)
    with pytest.raises(ProviderUncertain):
        await payments.confirm(intent, "pm_card_visa", "RES-1", 3)
    assert (await payments.confirm(intent, "pm_card_visa", "RES-1", 3)).is_paid
    assert (await payments.confirm(intent, "pm_card_visa", "RES-1", 4)).is_paid
    assert world.ledger.count("stripe", "charge", "RES-1") == 1


@pytest.mark.parametrize("body", ["{}", '{"id": "pi_1"}', '{"id": "pi_1", "amount": null}', "[]"])
async def test_an_answer_of_another_shape_is_no_payment(
    body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something in front of Stripe answered in its place: it may have worked."""
    answer = httpx2.MockTransport(
        lambda _: httpx2.Response(200, stream=httpx2.ByteStream(body.encode()))
    )
    original = httpx2.AsyncClient
    monkeypatch.setattr(httpx2, "AsyncClient", lambda **_: original(transport=answer))
    payments = Payments(KEY, "http://stripe.example")
    with pytest.raises(ProviderUncertain):
        await payments.confirm("pi_1", "pm_card_visa", "RES-1", 1)
    await payments.close()


async def test_a_wrong_key_is_a_closed_door(world: World) -> None:
    wrong = Payments("sk_test_wrong", environment(world.base)["STRIPE_API_BASE"])
    with pytest.raises(ProviderCredentials, match="AuthenticationError 401"):
        await wrong.look("pi_1")
    await wrong.close()
    async with httpx2.AsyncClient() as client:
        answer = await client.get(f"{world.base}/stripe/v1/payment_intents/pi_1")
    assert answer.status_code == 401
