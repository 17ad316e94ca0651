"""People subscribe: Stripe announces each of them, some twice, and somebody forges a few."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass
from typing import Any

import httpx2
import stripe

from relevo.simulators.stripe import API_VERSION, SUBSCRIPTIONS_SECRET
from relevo.simulators.world import World

PATH = "/hooks/stripe/subscriptions"
PLANS = (("Basic", 900), ("Plus", 1900), ("Pro", 4900))
NAMES = ("Ana Paz", "Luis Gil", "Marta Ríos", "Iker Sanz", "Noa Vidal", "Raúl Mena")


@dataclass(slots=True)
class Sent:
    """What was sent, and what must come of it."""

    delivered: int = 0
    duplicates: int = 0
    forged: int = 0
    expected: int = 0  # subscriptions; each has three effects, but for those who left the list
    unsubscribed: int = 0


def event(number: int, seed: int, *, unsubscribed: bool = False) -> dict[str, Any]:
    """checkout.session.completed of the so-manieth subscriber; the same whenever asked."""
    chance = random.Random(f"{seed}/{number}")
    plan, amount = chance.choice(PLANS)
    who = "unsubscribed" if unsubscribed else "subscriber"
    session = {
        "id": f"cs_test_{seed}_{number}",
        "object": "checkout.session",
        "mode": "subscription",
        "payment_status": "paid",
        "status": "complete",
        "customer": f"cus_{seed}_{number}",
        "customer_details": {
            "email": f"{who}.{seed}.{number}@example.com",
            "name": chance.choice(NAMES),
            "phone": None,
        },
        "subscription": f"sub_{seed}_{number}",
        "amount_total": amount,
        "currency": "eur",
        "metadata": {"plan": plan},
    }
    return {
        "id": f"evt_{seed}_{number}",
        "object": "event",
        "api_version": API_VERSION,
        "created": 1_767_225_600 + number,
        "livemode": False,
        "pending_webhooks": 1,
        "request": {"id": None, "idempotency_key": None},
        "type": "checkout.session.completed",
        "data": {"object": session},
    }


def sign(body: bytes, secret: str = SUBSCRIPTIONS_SECRET) -> dict[str, str]:
    """The headers Stripe sends."""
    signer: Any = stripe.WebhookSignature
    seal: str = signer.generate_signature_header(body.decode(), secret)
    return {"content-type": "application/json; charset=utf-8", "stripe-signature": seal}


def plan(count: int, seed: int) -> list[tuple[int, int, bool]]:
    """Who subscribes: a number, how often Stripe tells of it, and whether they left the list."""
    chance = random.Random(seed)
    return [
        (number, 2 if chance.random() < 0.2 else 1, chance.random() < 0.05)
        for number in range(count)
    ]


async def run(world: World, base_url: str, count: int, seed: int) -> Sent:
    """Send so many subscriptions to a running door, a fifth of them twice."""
    sent = Sent(expected=count)
    async with httpx2.AsyncClient(base_url=base_url, timeout=30, trust_env=False) as client:

        async def post(body: bytes, headers: dict[str, str]) -> int:
            return (await client.post(PATH, content=body, headers=headers)).status_code

        async def one(number: int, copies: int, is_out: bool) -> None:
            body = json.dumps(event(number, seed, unsubscribed=is_out)).encode()
            for _ in range(copies):
                for wait in (0.2, 0.5, 1, 2, 4, 8):  # as Stripe would, until it is taken
                    if await post(body, sign(body)) < 300:
                        sent.delivered += 1
                        break
                    await asyncio.sleep(wait)

        wishes = plan(count, seed)
        sent.duplicates = sum(copies - 1 for _, copies, _ in wishes)
        sent.unsubscribed = sum(is_out for _, _, is_out in wishes)
        for start in range(0, count, 20):
            await asyncio.gather(*(one(*wish) for wish in wishes[start : start + 20]))
        for number in range(max(1, count // 20)):
            body = json.dumps(event(count + number, seed)).encode()
            if await post(body, sign(body, "whsec_forged")) == 401:
                sent.forged += 1
    return sent
