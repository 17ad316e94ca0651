"""Car rental: reserve, pay, book; every effect is counted at Stripe's and the suppliers'."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import text

from relevo import Relevo
from relevo.apps.cars import app
from relevo.simulators import World
from relevo.simulators.traffic import cars as traffic
from relevo.testing import ManualClock, drain

CARD = {"payment_method": "pm_card_visa"}
PROVIDERS = {28: "mexgroup", 126: "niza", 106: "infinity", 140: "noleggiare", 128: "hertz"}


@pytest.fixture
async def relevo(world: World, tmp_path: Path, clock: ManualClock) -> AsyncGenerator[Relevo]:
    async with Relevo(f"sqlite:///{tmp_path / 'cars.db'}", apps=[app], clock=clock) as engine:
        yield engine


@pytest.fixture
async def client(relevo: Relevo) -> AsyncGenerator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=relevo.asgi())
    async with httpx2.AsyncClient(transport=transport, base_url="http://relevo") as opened:
        yield opened


def wish(supplier: int = 28, **changes: Any) -> dict[str, Any]:
    return {**next(traffic.wishes(3, (supplier,))), **changes}


async def reserved(client: httpx2.AsyncClient, supplier: int = 28, **changes: Any) -> str:
    answer = await client.post("/reservations", json=wish(supplier, **changes))
    assert answer.status_code == 201, answer.text
    return answer.json()["reservation_code"]


async def paid(client: httpx2.AsyncClient, supplier: int = 28) -> str:
    code = await reserved(client, supplier)
    answer = await client.post(f"/reservations/{code}/pay", json=CARD)
    assert answer.status_code == 200, answer.text
    return code


async def rows(relevo: Relevo, sql: str, **values: Any) -> list[Any]:
    async with relevo.transaction() as tx:
        return list((await tx.execute(text(sql), values)).all())


@pytest.mark.parametrize("supplier", sorted(PROVIDERS), ids=lambda id: PROVIDERS[id])
async def test_a_reservation_is_paid_booked_and_confirmed(
    supplier: int, relevo: Relevo, world: World, client: httpx2.AsyncClient
) -> None:
    code = await paid(client, supplier)
    assert (await client.get(f"/reservations/{code}")).json()["status"] == "PAID"
    assert await rows(relevo, "select event_type, status, attempts from outbox_events") == [
        ("BOOK_SUPPLIER", "PENDING", 0)
    ]
    await drain(relevo)
    shown = (await client.get(f"/reservations/{code}")).json()
    [booked] = world.ledger.find(PROVIDERS[supplier], "book")
    assert shown["status"] == "CONFIRMED"
    assert shown["supplier_reservation_code"] == booked.detail["confirmation"]
    assert [line["what"] for line in shown["history"]] == ["PENDING", "PAID", "CONFIRMED"]
    assert shown["booking"]["status"] == "DONE"
    assert (booked.key, world.ledger.count("stripe", "charge", code)) == (code, 1)
    assert await rows(relevo, "select verb, outcome from supplier_requests") == [
        ("book", "confirmed")
    ]
