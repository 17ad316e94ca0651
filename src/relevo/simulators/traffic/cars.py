"""Customers who rent cars: they reserve, pay, click twice, and try another card."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

import httpx2

from relevo.simulators.world import World

PATIENCE = 60.0  # seconds for which a customer asks again

FIRST = ("Ana", "José", "María", "Luca", "Chloé", "Seán", "Zoë", "Mario", "Íñigo", "Bente")
LAST = ("Paz", "O'Neil & Cía", "Núñez", "Rossi", "D'Angelo", "Müller", "García-López", "Smith")
CARS: Mapping[int, Callable[[random.Random], dict[str, str]]] = {
    28: lambda dice: {
        "rate_code": "IPAMOM",
        "class_code": dice.choice(["ECAR", "CCAR", "IFAR"]),
        "rate_id": f"MEX-R-{dice.randrange(10**6)}",
    },
    126: lambda dice: {"Group": dice.choice("ABCD"), "RateCode": dice.choice(["FF", "FFF"])},
    106: lambda dice: {"car_type": "ECAR", "vendor_rate_id": f"RATE{dice.randrange(1000)}"},
    140: lambda dice: {"sipp_code": dice.choice(["MBMR", "EDMR", "CDAR"])},
    128: lambda dice: {
        "acriss_code": dice.choice(["ECAR", "CCAR"]),
        "licence_number": f"{dice.randrange(10**8):08d}",
        "licence_expiration": f"{datetime.now().year + 3}-06-30",
        "licence_country": "AR",
    },
}
PLACES = {28: "CUN", 126: "MEX1", 106: "CUN", 140: "FCO", 128: "EZE"}
CURRENCIES = {28: "MXN", 126: "MXN", 106: "USD", 140: "EUR", 128: "ARS"}


def wishes(seed: int = 0, suppliers: tuple[int, ...] = tuple(CARS)) -> Iterator[dict[str, Any]]:
    """Reservations without end, over the suppliers in turn; the same seed gives the same."""
    dice = random.Random(seed)
    while True:
        for supplier in suppliers:
            pickup = datetime.now().replace(minute=0, second=0, microsecond=0)
            pickup += timedelta(days=dice.randrange(2, 200), hours=dice.randrange(12))
            first, last = dice.choice(FIRST), dice.choice(LAST)
            yield {
                "supplier_id": supplier,
                "pickup_datetime": pickup.isoformat(),
                "dropoff_datetime": (pickup + timedelta(days=dice.randrange(1, 21))).isoformat(),
                "pickup_location": PLACES[supplier],
                "dropoff_location": PLACES[supplier],
                "customer": {
                    "first_name": first,
                    "last_name": last,
                    "email": f"c{dice.randrange(10**9)}@example.com",
                    "phone": f"+34 6{dice.randrange(10**8):08d}",
                    "birth_date": f"{dice.randrange(1950, 2001)}-0{dice.randrange(1, 10)}-15",
                },
                "flight": dice.choice(["", "AZ123", "IB 6401"]),
                "total_amount": f"{dice.randrange(4000, 90000) / 100:.2f}",
                "currency": CURRENCIES[supplier],
                "supplier_specific_data": CARS[supplier](dice),
            }


async def run(world: World, base_url: str, count: int, seed: int = 0) -> list[str]:
    """Have `count` customers reserve and pay; gives the codes that were paid for.

    One in ten has a card that is declined and takes another, one in ten clicks twice, one in ten
    comes back later and pays again.
    """
    dice = random.Random(seed)
    plans = [(wish, dice.random()) for wish, _ in zip(wishes(seed), range(count), strict=False)]
    gate = asyncio.Semaphore(8)
    async with httpx2.AsyncClient(base_url=base_url, timeout=60, trust_env=False) as client:

        async def customer(wish: dict[str, Any], mood: float) -> str:
            async with gate:
                return await _rent(client, wish, mood)

        return list(await asyncio.gather(*(customer(*plan) for plan in plans)))


async def _rent(client: httpx2.AsyncClient, wish: dict[str, Any], mood: float) -> str:
    made = await _ask(client, "/reservations", wish, {201})
    code: str = made.json()["reservation_code"]
    path = f"/reservations/{code}/pay"
    card = {"payment_method": "pm_card_visa"}
    if mood < 0.1:
        await _ask(client, path, {"payment_method": "pm_card_chargeDeclined"}, {402})
    if 0.1 <= mood < 0.2:
        await asyncio.gather(*(_ask(client, path, card, {200}) for _ in range(2)))
    else:
        await _ask(client, path, card, {200})
    if mood > 0.9:
        await _ask(client, path, card, {200})
    return code


async def _ask(
    client: httpx2.AsyncClient, path: str, body: dict[str, Any], good: set[int]
) -> httpx2.Response:
    """Ask until there is an answer, as somebody does who wants a car."""
    loop = asyncio.get_running_loop()
    until = loop.time() + PATIENCE
    while True:
        try:
            answer = await client.post(path, json=body)
            if answer.status_code in good:
                return answer
            said = f"{answer.status_code} {answer.text[:200]}"
            if answer.status_code not in (409, 429, 502, 503, 504):
                raise AssertionError(f"POST {path}: {said}")
        except httpx2.HTTPError as error:
            said = type(error).__name__
        if loop.time() > until:
            raise AssertionError(f"POST {path}: {said}, for {PATIENCE:g} s")
        await asyncio.sleep(0.1)
