"""Car rental: reserve, pay, book; every effect is counted at Stripe's and the suppliers'."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import ValidationError
from sqlalchemy import text

from relevo import MisuseError, NotAllowed, Relevo, State
from relevo.apps.cars import app, payments, records
from relevo.apps.cars.api import Misses
from relevo.apps.cars.gateways import KINDS, Supplier
from relevo.apps.cars.queues import BookSupplier
from relevo.apps.cars.records import Records
from relevo.apps.cars.requests import CreateReservationRequest, Invalid
from relevo.apps.cars.settings import CarsSettings
from relevo.apps.cars.support import Support
from relevo.desk import Person, Role
from relevo.job import LIVE
from relevo.message import codec
from relevo.simulators import World
from relevo.simulators.stripe import KEY, account, make_event
from relevo.simulators.traffic import cars as traffic
from relevo.store import Filter, Want
from relevo.testing import ManualClock, deliver, drain

ADMIN = Person("ada", Role.ADMIN)
CARD = {"payment_method": "pm_card_visa"}
PROVIDERS = {28: "mexgroup", 126: "niza", 106: "infinity", 140: "noleggiare", 128: "hertz"}


@pytest.fixture
async def relevo(
    world: World, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Relevo]:
    monkeypatch.setenv("CARS_SUPPLIER_SECONDS", "2")
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


# reserving


async def test_a_code_is_long_and_random(client: httpx2.AsyncClient) -> None:
    """B52"""
    codes = {await reserved(client) for _ in range(5)}
    assert len(codes) == 5
    assert all(re.fullmatch(r"RES-[0-9A-HJKMNP-TV-Z]{10}", code) for code in codes)


async def test_a_code_that_is_taken_is_not_given_twice(
    client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B52"""
    code = await reserved(client)
    codes = iter([code, code, "RES-0000000001"])
    monkeypatch.setattr(records, "new_code", lambda: next(codes))
    assert await reserved(client) == "RES-0000000001"


LICENCE = "supplier_specific_data.licence_number"
LATER = {"pickup_datetime": "2027-03-01T10:00:00", "dropoff_datetime": "2027-03-05T10:00:00"}


@pytest.mark.parametrize(
    ("price", "currency", "amount"),
    [("10.50", "EUR", 1050), ("500", "JPY", 500), ("10.50", "KWD", 10_500)],
)
def test_a_price_is_charged_in_the_smallest_unit_of_its_currency(
    price: str, currency: str, amount: int
) -> None:
    asked = {**wish(**LATER), "total_amount": price, "currency": currency}
    suppliers = {28: Supplier(28, "Mex Group", KINDS["mexgroup"], {})}
    made = CreateReservationRequest.model_validate(asked).reservation(
        suppliers, datetime(2026, 11, 16, tzinfo=UTC)
    )
    assert (made.amount, made.price) == (amount, Decimal(price))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        *(({"supplier_id": id}, "supplier_id") for id in (0, -1, "28", 28.0, 999, None, True)),
        *(
            ({"pickup_datetime": at}, "pickup_datetime")
            for at in (
                *("0000-00-00T10:00:00", "2027-02-30T10:00:00", "10000-01-01T10:00:00"),
                *("2027-01-01T10:00:00+99:99", "2027-01-01T10:00:00Z", "2020-01-01T10:00:00"),
                *(1_800_000_000, None, "tomorrow", "２０２７-01-01T10:00:00"),
            )
        ),
        ({"dropoff_datetime": "2026-12-01T10:00:00"}, "dropoff_datetime"),
        ({"supplier_specific_data": None}, "supplier_specific_data"),
        ({"supplier_specific_data": {}}, "supplier_specific_data.rate_code"),
        (
            {"supplier_specific_data": {"rate_code": {"$ne": None}}},
            "supplier_specific_data.rate_code",
        ),
        ({"supplier_id": 128, "supplier_specific_data": {"acriss_code": "E"}}, LICENCE),
        (
            {
                "supplier_id": 128,
                "supplier_specific_data": {
                    "acriss_code": "E",
                    "licence_number": "NA",
                    "licence_expiration": "2030-01-01",
                    "licence_country": "AR",
                },
            },
            LICENCE,
        ),
        ({"customer": {"first_name": "A\nB"}}, "customer.first_name"),
        ({"customer": {"email": "a@b.example, c@d.example"}}, "customer.email"),
        ({"customer": {"email": "a@b.example\r\nbcc: c"}}, "customer.email"),
        ({"customer": {"birth_date": "2024-01-01"}}, "customer.birth_date"),
        ({"total_amount": "-5"}, "total_amount"),
        ({"total_amount": "1e9"}, "total_amount"),
        ({"total_amount": "1000000.00"}, "total_amount"),
        ({"total_amount": "10.50", "currency": "JPY"}, "total_amount"),
        ({"currency": "euro"}, "currency"),
    ],
    ids=str,
)
def test_b29_b54_what_is_wrong_is_named(changes: dict[str, Any], field: str) -> None:
    asked = {**wish(**LATER), **changes}
    if "customer" in changes:
        asked["customer"] = {**wish()["customer"], **changes["customer"]}
    now = datetime(2026, 11, 16, tzinfo=UTC)
    suppliers = {
        28: Supplier(28, "Mex Group", KINDS["mexgroup"], {}),
        128: Supplier(128, "Hertz Argentina", KINDS["hertz"], {}),
    }
    with pytest.raises((ValidationError, Invalid)) as caught:
        CreateReservationRequest.model_validate(asked).reservation(suppliers, now)
    error = caught.value
    invalid = error if isinstance(error, Invalid) else Invalid.of(error)
    assert field in [each["field"] for each in invalid.fields]
    assert all(each["why"] for each in invalid.fields)


async def test_b20_b54_bad_bodies_are_refused_and_leave_nothing(
    relevo: Relevo, client: httpx2.AsyncClient
) -> None:
    typed = {"content-type": "application/json"}
    for body, status in (
        (b"", 400),
        (b"[]", 422),
        (b'{"supplier_id":28,"supplier_id":28}', 400),
        (b'{"supplier_id":NaN}', 400),
        (b'{"a":"\\ud800"}', 400),
        (b"[" * 100_000, 413),
        (json.dumps(wish(supplier_specific_data={"rate_code": "x" * 1_000_000})).encode(), 413),
    ):
        answer = await client.post("/reservations", content=body, headers=typed)
        assert answer.status_code == status, body[:40]
        assert "error" in answer.json()
    for kind in ("", "text/plain", "application/json; charset=utf-7", "multipart/form-data"):
        answer = await client.post("/reservations", content=b"{}", headers={"content-type": kind})
        assert answer.status_code == 415
    assert (await client.put("/reservations", json={})).status_code == 405
    assert await rows(relevo, "select count(*) from reservations") == [(0,)]


async def test_b54_only_what_a_gateway_knows_is_kept_of_a_snapshot(
    relevo: Relevo, client: httpx2.AsyncClient
) -> None:
    snapshot = {**wish()["supplier_specific_data"], "__proto__": "x", "password": "y"}
    await reserved(client, supplier_specific_data=snapshot)
    [(kept,)] = await rows(relevo, "select supplier_specific_data from reservations")
    assert set(json.loads(kept)) == {"rate_code", "class_code", "rate_id"}


async def test_b52_guessing_ends_after_twenty_misses_a_minute(
    client: httpx2.AsyncClient, clock: ManualClock
) -> None:
    code = await reserved(client)
    for number in range(20):
        answer = await client.get(f"/reservations/RES-{number:04}")
        assert (answer.status_code, answer.json()) == (404, {"error": "not_found"})
    answer = await client.get("/reservations/RES-0001")
    assert answer.status_code == 429
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert (await client.post(f"/reservations/{code}/pay", json=CARD)).status_code == 429
    clock.advance("61s")
    assert (await client.get(f"/reservations/{code}")).status_code == 200


def test_c38_who_guesses_is_remembered_within_bounds() -> None:
    misses = Misses()
    for number in range(30_000):
        misses.add(f"client {number}", 0.0)
    assert len(misses._times) == 10_000


# paying


async def test_b53_paying_again_answers_the_same_and_charges_once(
    relevo: Relevo, world: World, client: httpx2.AsyncClient
) -> None:
    code = await reserved(client)
    greedy = {**CARD, "amount": 1, "total_amount": "0.01"}
    first = await client.post(f"/reservations/{code}/pay", json=greedy)
    again = await client.post(f"/reservations/{code}/pay", json=CARD)
    await drain(relevo)
    later = await client.post(f"/reservations/{code}/pay", json=CARD)
    assert first.content == again.content == later.content
    [charge] = world.ledger.find("stripe", "charge")
    assert charge.detail["amount"] == round(float(first.json()["total_amount"]) * 100)
    assert world.ledger.count("mexgroup", "book") == 1


async def test_b53_what_cannot_be_paid_says_so(
    relevo: Relevo, world: World, client: httpx2.AsyncClient
) -> None:
    assert (await client.post("/reservations/RES-NO/pay", json=CARD)).status_code == 404
    code = await reserved(client)
    for body in ({}, {"payment_method": "4242424242424242"}, {"payment_method": 7}):
        answer = await client.post(f"/reservations/{code}/pay", json=body)
        assert answer.json()["fields"][0]["field"] == "payment_method"
    await Support(relevo.use(Records), relevo.desk).cancel(code, ADMIN, "changed my mind")
    answer = await client.post(f"/reservations/{code}/pay", json=CARD)
    assert (answer.status_code, answer.json()["error"]) == (409, "not_payable")
    assert world.ledger.count("stripe") == 0


async def test_b53_nobody_pays_for_a_day_that_is_over(
    world: World, client: httpx2.AsyncClient, clock: ManualClock
) -> None:
    code = await reserved(client)
    clock.advance("400d")
    answer = await client.post(f"/reservations/{code}/pay", json=CARD)
    assert (answer.status_code, answer.json()["status"]) == (409, "EXPIRED")
    assert world.ledger.count("stripe") == 0


async def test_the_api_describes_itself(client: httpx2.AsyncClient) -> None:
    told = (await client.get("/reservations/openapi.json")).json()
    body = told["paths"]["/reservations"]["post"]["requestBody"]["content"]["application/json"]
    assert "email" in body["schema"]["properties"]["customer"]["properties"]
    assert "$ref" not in json.dumps(body)


async def test_after_a_decline_another_card_pays(
    relevo: Relevo, world: World, client: httpx2.AsyncClient
) -> None:
    code = await reserved(client)
    poor = {"payment_method": "pm_card_visa_chargeDeclinedInsufficientFunds"}
    for _ in range(2):
        answer = await client.post(f"/reservations/{code}/pay", json=poor)
        assert answer.status_code == 402
        assert answer.json() == {"error": "payment_declined", "reason": "insufficient_funds"}
    assert (await client.post(f"/reservations/{code}/pay", json=CARD)).status_code == 200
    assert world.ledger.count("stripe", "charge", code) == 1
    shown = (await client.get(f"/reservations/{code}")).json()
    whats = [line["what"] for line in shown["history"]]
    assert whats == ["PENDING", "PAYMENT_DECLINED", "PAYMENT_DECLINED", "PAID"]


async def test_a_customer_who_leaves_the_bank_s_page_pays_with_another_card(
    relevo: Relevo, world: World, client: httpx2.AsyncClient
) -> None:
    code = await reserved(client)
    asks = {"payment_method": "pm_card_authenticationRequired"}
    assert (await client.post(f"/reservations/{code}/pay", json=asks)).status_code == 202
    assert (await client.post(f"/reservations/{code}/pay", json=CARD)).status_code == 200
    assert world.ledger.count("stripe", "charge", code) == 1


async def test_f43_a_double_click_and_two_tabs_charge_once(
    relevo: Relevo, world: World, client: httpx2.AsyncClient
) -> None:
    code = await reserved(client)
    pay = [client.post(f"/reservations/{code}/pay", json=CARD) for _ in range(4)]
    other = client.post(f"/reservations/{code}/pay", json={"payment_method": "pm_card_mastercard"})
    answers = await asyncio.gather(*pay, other)
    assert {answer.status_code for answer in answers} <= {200, 409, 503}
    assert any(answer.status_code == 200 for answer in answers)
    assert world.ledger.count("stripe", "charge", code) == 1
    assert len(await rows(relevo, "select id from outbox_events")) == 1


@pytest.mark.parametrize("operation", ["create", "confirm"])
async def test_f43_a_lost_answer_of_stripe_heals_in_the_same_request(
    operation: str, world: World, client: httpx2.AsyncClient
) -> None:
    world.faults.add("stripe", operation, "lost", times=1)
    code = await paid(client)
    assert world.ledger.count("stripe", "charge", code) == 1


async def test_f43_stripe_away_is_a_503_and_nothing_is_charged(
    world: World, client: httpx2.AsyncClient
) -> None:
    code = await reserved(client)
    world.faults.add("stripe", "*", "error")
    answer = await client.post(f"/reservations/{code}/pay", json=CARD)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    world.faults.clear()
    assert (await client.post(f"/reservations/{code}/pay", json=CARD)).status_code == 200
    assert world.ledger.count("stripe", "charge", code) == 1


async def test_f43_a_request_that_dies_between_charge_and_commit_is_finished(
    relevo: Relevo, world: World, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The charge is made and the process never gets to write it down: no webhook, no customer."""
    code = await reserved(client)

    async def die(*_: object, **__: object) -> None:
        raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr(payments, "paid", die)
        with pytest.raises(asyncio.CancelledError):
            await client.post(f"/reservations/{code}/pay", json=CARD)
    assert world.ledger.count("stripe", "charge", code) == 1
    assert (await client.get(f"/reservations/{code}")).json()["status"] == "PENDING"
    await drain(relevo, skip_waits=True)
    assert (await client.get(f"/reservations/{code}")).json()["status"] == "CONFIRMED"
    assert world.ledger.count("stripe", "charge", code) == 1
    assert world.ledger.count("mexgroup", "book", code) == 1


# the webhook


def succeeded(world: World, code: str, **changes: Any) -> dict[str, Any]:
    [intent] = [
        each
        for each in account(world).intents.values()
        if each["metadata"]["reservation_code"] == code
    ]
    return {**make_event("payment_intent.succeeded", {**intent, **changes}), "id": f"evt_{code}"}


async def test_a_payment_that_waits_for_the_bank_is_finished_by_the_webhook(
    relevo: Relevo, world: World, client: httpx2.AsyncClient
) -> None:
    code = await reserved(client)
    answer = await client.post(
        f"/reservations/{code}/pay", json={"payment_method": "pm_card_authenticationRequired"}
    )
    assert (answer.status_code, answer.json()["payment"]) == (202, "requires_action")
    assert answer.json()["client_secret"]
    [intent] = account(world).intents
    async with httpx2.AsyncClient(headers={"authorization": f"Bearer {KEY}"}) as bank:
        await bank.post(f"{world.base}/stripe/v1/payment_intents/{intent}/_authenticate")
    event = succeeded(world, code)
    for _ in range(3):
        assert (await deliver(relevo, "/hooks/stripe", json=event)).status == 200
    await drain(relevo)
    assert (await client.get(f"/reservations/{code}")).json()["status"] == "CONFIRMED"
    assert world.ledger.count("stripe", "charge", code) == 1
    assert world.ledger.count("mexgroup", "book", code) == 1


async def test_the_webhook_and_the_request_together_order_one_booking(
    relevo: Relevo, world: World, client: httpx2.AsyncClient
) -> None:
    code = await paid(client)
    assert (await deliver(relevo, "/hooks/stripe", json=succeeded(world, code))).status == 200
    assert len(await rows(relevo, "select id from outbox_events")) == 1
    await drain(relevo)
    assert world.ledger.count("mexgroup", "book") == 1


async def test_a_second_payment_of_the_same_reservation_is_marked_to_be_given_back(
    relevo: Relevo, world: World, client: httpx2.AsyncClient
) -> None:
    code = await paid(client)
    event = succeeded(world, code, id="pi_by_hand")
    assert (await deliver(relevo, "/hooks/stripe", json=event)).status == 200
    await drain(relevo)
    lines = await rows(relevo, "select what, detail from reservation_history order by id")
    whats = [what for what, _ in lines]
    assert whats == ["PENDING", "PAID", "TO_REFUND", "CONFIRMED"]
    assert lines[2][1].startswith("pi_by_hand")
    assert world.ledger.count("mexgroup", "book", code) == 1


async def test_b58_events_of_other_worlds_do_nothing(
    relevo: Relevo, world: World, client: httpx2.AsyncClient
) -> None:
    code = await reserved(client)
    world.faults.add("stripe", "confirm", "error")
    await client.post(f"/reservations/{code}/pay", json=CARD)
    event = succeeded(world, code, status="succeeded", amount_received=1)
    for changes, status in (
        ({"id": "evt_a", "livemode": True}, 400),
        ({"id": "evt_b", "livemode": "false"}, 400),
        ({"id": "evt_c", "type": "customer.discount.created"}, 200),
        ({"id": "evt_d", "account": "acct_other"}, 200),
        ({"id": "evt_e", "api_version": "2017-08-15", "data": {"object": {}}}, 200),
        ({"id": "evt_f", "data": []}, 422),
        ({"id": None}, 200),  # kept as failed
        ({"id": "evt_g"}, 200),  # less money than the car costs
    ):
        answer = await deliver(relevo, "/hooks/stripe", json={**event, **changes})
        assert answer.status == status, changes
    assert (await deliver(relevo, "/hooks/stripe", json=event, sign=False)).status == 401
    shown = (await client.get(f"/reservations/{code}")).json()
    assert shown["status"] == "PENDING"
    assert "TO_REFUND" in [line["what"] for line in shown["history"]]
    assert await rows(relevo, "select count(*) from outbox_events") == [(0,)]


# booking


async def test_failures_follow_the_schedule_and_end_behind_the_breaker(
    relevo: Relevo, world: World, client: httpx2.AsyncClient, clock: ManualClock
) -> None:
    code = await paid(client, 126)
    world.faults.add("niza", "book", "error")

    async def has_failed() -> bool:
        return await _events(relevo) == [(1, "PENDING")]

    await drain(relevo, until=has_failed)
    [(due, error)] = await rows(relevo, "select next_attempt_at, last_error from outbox_events")
    wait = datetime.fromisoformat(due).replace(tzinfo=UTC) - clock.now()
    assert 10 < wait.total_seconds() <= 15
    assert error == "Niza Cars answered 503"

    await drain(relevo, skip_waits=True)
    case = await Support(relevo.use(Records), relevo.desk).show(code)
    assert case.job is not None
    starts = [attempt.began_at / 1000 for attempt in case.job.history]
    waits = [later - before for before, later in pairwise(starts)]
    assert waits == pytest.approx([15, 30, 60, 120], abs=5)  # the fifth in a row opens it
    assert (case.job.state, case.job.attempt, world.calls["niza:book"]) == (State.PARKED, 0, 5)
    assert await rows(relevo, "select * from outbox_dead_letters") == []

    world.faults.clear()
    await drain(relevo, skip_waits=True, until=lambda: _unparked(relevo, clock))
    assert (await client.get(f"/reservations/{code}")).json()["status"] == "CONFIRMED"


async def test_a_refusal_is_dead_at_once_and_support_may_retry(
    relevo: Relevo, world: World, client: httpx2.AsyncClient
) -> None:
    code = await paid(client, 106)
    world.faults.add("infinity", "book", "refuse", times=1)
    await drain(relevo, skip_waits=True)
    support = Support(relevo.use(Records), relevo.desk)
    case = await support.show(code)
    assert case.is_stuck
    assert case.dead is not None
    assert "failed" in case.dead.reason
    assert [each.code for each in await support.ls(status="STUCK")] == [code]
    case = await support.retry(code, ADMIN, "they have cars again")
    assert case.dead is None
    await drain(relevo)
    case = await support.show(code)
    assert case.reservation.status == "CONFIRMED"
    assert world.ledger.count("infinity", "book", code) == 1
    whats = [line.what for line in case.history]
    assert whats[-4:] == ["BOOKING_FAILED", "DEAD_LETTER", "SUPPORT_RETRY", "CONFIRMED"]


async def test_an_order_whose_last_worker_was_killed_is_seen_by_support(
    relevo: Relevo, client: httpx2.AsyncClient, clock: ManualClock
) -> None:
    """R6: its own code says nothing of it."""
    code = await paid(client, 28)
    [(id,)] = await rows(relevo, "select id from outbox_events")
    await relevo.desk.edit(id, ADMIN, attempts=1)
    claim = await relevo.store.claim([Want(queue="cars:suppliers:book")], 1, "gone", 2_000)
    assert await relevo.store.isolate(claim.leases) == [True]
    clock.advance(timedelta(minutes=2))
    await relevo.store.rescue()
    await drain(relevo)
    support = Support(relevo.use(Records), relevo.desk)
    assert [each.code for each in await support.ls(status="STUCK")] == [code]
    [(attempts, reason)] = await rows(relevo, "select attempts, reason from outbox_dead_letters")
    assert (attempts, "crashed its worker" in reason) == (1, True)


async def test_an_order_that_was_cancelled_elsewhere_is_seen_by_support(
    relevo: Relevo, client: httpx2.AsyncClient, clock: ManualClock
) -> None:
    code = await paid(client, 28)
    [(id,)] = await rows(relevo, "select id from outbox_events")
    await relevo.desk.cancel([id], ADMIN, "from the page of all jobs")
    clock.advance(timedelta(minutes=2))
    support = Support(relevo.use(Records), relevo.desk)
    assert [each.code for each in await support.ls(status="STUCK")] == [code]


async def test_an_order_that_was_discarded_elsewhere_stays_stuck_until_support_decides(
    relevo: Relevo, world: World, client: httpx2.AsyncClient
) -> None:
    code = await paid(client, 28)
    world.faults.add("mexgroup", "book", "refuse")
    await drain(relevo)
    support = Support(relevo.use(Records), relevo.desk)
    case = await support.show(code)
    assert case.job is not None
    await relevo.desk.discard([case.job.id], ADMIN, "from the page of all dead letters")
    case = await support.show(code)
    assert case.is_stuck
    assert [each.code for each in await support.ls(status="STUCK")] == [code]
    await support.cancel(code, ADMIN, "no car left")
    assert await support.ls(status="STUCK") == []


@pytest.mark.parametrize("supplier", sorted(PROVIDERS), ids=lambda id: PROVIDERS[id])
@pytest.mark.parametrize("kind", ["lost", "malformed"])
async def test_r8_every_supplier_is_asked_before_a_lost_booking_is_made_again(
    kind: Any, supplier: int, relevo: Relevo, world: World, client: httpx2.AsyncClient
) -> None:
    provider, code = PROVIDERS[supplier], await paid(client, supplier)
    world.faults.add(provider, "book", kind, times=1)
    await drain(relevo, skip_waits=True)
    assert (await client.get(f"/reservations/{code}")).json()["status"] == "CONFIRMED"
    assert world.ledger.count(provider, "book", code) == 1
    assert world.calls[f"{provider}:find"] >= 1


async def test_r8_a_supplier_that_answers_too_late_is_asked_too(
    relevo: Relevo, world: World, client: httpx2.AsyncClient
) -> None:
    code = await paid(client, 28)
    world.faults.add("mexgroup", "book", "hang", times=1, seconds=3)
    await drain(relevo, skip_waits=True)
    assert (await client.get(f"/reservations/{code}")).json()["status"] == "CONFIRMED"
    assert world.ledger.count("mexgroup", "book", code) == 1


async def test_r8_one_that_never_got_there_is_booked_after_the_look(
    relevo: Relevo, world: World, client: httpx2.AsyncClient
) -> None:
    code = await paid(client, 140)
    world.faults.add("noleggiare", "book", "down", times=2)
    await drain(relevo, skip_waits=True)
    assert world.ledger.count("noleggiare", "book", code) == 1
    assert world.calls["noleggiare:find"] >= 2


async def test_r8_one_that_was_never_answered_waits_and_is_asked_once_they_are_back(
    relevo: Relevo, world: World, client: httpx2.AsyncClient, clock: ManualClock
) -> None:
    code = await paid(client, 140)
    world.faults.add("noleggiare", "book", "lost")
    world.faults.add("noleggiare", "find", "error")
    await drain(relevo, skip_waits=True)
    support = Support(relevo.use(Records), relevo.desk, relevo.use(CarsSettings).askable)
    case = await support.show(code)
    assert case.job is not None
    assert case.job.state is State.PARKED
    world.faults.clear()
    await drain(relevo, skip_waits=True, until=lambda: _unparked(relevo, clock))
    assert (await support.show(code)).reservation.status == "CONFIRMED"
    assert world.ledger.count("noleggiare", "book", code) == 1


@pytest.fixture
def unasked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No supplier but Noleggiare has told how it is asked for a booking."""
    for name in ("MEXGROUP", "NIZA", "INFINITY", "HERTZ"):
        monkeypatch.delenv(f"{name}_FIND")


@pytest.mark.usefixtures("unasked")
@pytest.mark.parametrize("supplier", [28, 126, 106, 128], ids=lambda id: PROVIDERS[id])
async def test_r8_one_that_cannot_be_asked_is_held_for_support(
    supplier: int, relevo: Relevo, world: World, client: httpx2.AsyncClient
) -> None:
    provider = PROVIDERS[supplier]
    lost, down = await paid(client, supplier), await paid(client, supplier)
    world.faults.add(provider, "book", "lost", times=1)
    world.faults.add(provider, "book", "down", times=1)
    await drain(relevo, skip_waits=True, concurrency=1)
    support = Support(relevo.use(Records), relevo.desk)
    booked = [entry.key for entry in world.ledger.find(provider, "book")]
    assert len(booked) == 1
    [there], [absent] = booked, {lost, down} - set(booked)
    number = world.ledger.find(provider, "book")[0].detail["confirmation"]
    for code in (there, absent):
        case = await support.show(code)
        assert case.is_held
        assert case.event is not None
        assert case.event.status == "HELD"
        with pytest.raises(MisuseError, match="look there first"):
            await support.retry(code, ADMIN, "")
    await support.confirm(there, number, ADMIN, "seen in their panel")
    await support.retry(absent, ADMIN, "not in their panel", not_booked=True)
    await drain(relevo)
    for code in (there, absent):
        assert (await support.show(code)).reservation.status == "CONFIRMED"
        assert world.ledger.count(provider, "book", code) == 1
        case = await support.show(code)
        assert case.event is not None
        assert case.event.status == "DONE"
        assert case.job is not None
        assert case.job.state is State.DONE


async def test_those_that_are_stuck_are_counted_beyond_the_first_page(
    relevo: Relevo, world: World, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relevo.apps.cars.support.PAGE", 1)
    world.faults.add("mexgroup", "book", "refuse")
    for _ in range(2):
        await paid(client, 28)
    await drain(relevo, skip_waits=True)
    support = Support(relevo.use(Records), relevo.desk)
    assert await support.counts() == {"PAID": 2, "STUCK": 2, "TO_REFUND": 0}
    assert len(await support.ls(status="STUCK")) == 1


async def test_support_cancels_what_cannot_be_booked_and_marks_the_refund(
    relevo: Relevo, world: World, client: httpx2.AsyncClient
) -> None:
    code = await paid(client, 28)
    world.faults.add("mexgroup", "book", "refuse")
    await drain(relevo)
    support = Support(relevo.use(Records), relevo.desk)
    with pytest.raises(NotAllowed):
        await support.confirm(code, "MX1", Person("eve"), "")
    with pytest.raises(NotAllowed):
        await support.cancel(code, Person("eve"), "")
    case = await support.cancel(code, ADMIN, "no car left")
    assert case.reservation.status == "CANCELLED"
    assert case.history[-1].what == "TO_REFUND"
    assert case.history[-1].detail.startswith("pi_")
    assert [each.code for each in await support.ls(status="TO_REFUND")] == [code]
    with pytest.raises(NotAllowed):
        await support.refunded(code, Person("eve"), "")
    case = await support.refunded(code, ADMIN, "re_1")
    assert (case.is_owed, case.history[-1].what) == (False, "REFUNDED")
    assert await support.ls(status="TO_REFUND") == []
    with pytest.raises(MisuseError, match="no money"):
        await support.refunded(code, ADMIN, "again")


async def test_r7_a_supplier_that_is_down_parks_its_bookings_and_no_others(
    relevo: Relevo, world: World, client: httpx2.AsyncClient, clock: ManualClock
) -> None:
    world.faults.add("niza", "book", "error")
    down = [await paid(client, 126) for _ in range(12)]
    fine = [await paid(client, 28) for _ in range(3)]
    await drain(relevo, concurrency=1)
    assert world.calls["niza:book"] == 5
    clock.advance("1s")  # a failed run has its row brought up to date half a second later
    await drain(relevo, concurrency=1)
    for code in fine:
        assert (await client.get(f"/reservations/{code}")).json()["status"] == "CONFIRMED"
    shown = [(await client.get(f"/reservations/{code}")).json() for code in down]
    assert {each["booking"]["status"] for each in shown} <= {"PARKED", "PENDING"}
    world.faults.clear()
    clock.advance("31s")

    await drain(relevo, skip_waits=True, until=lambda: _unparked(relevo, clock))
    assert world.ledger.doubled("niza") == {}
    assert world.ledger.count("niza", "book") == 12
    assert max(each.attempts for each in await _events(relevo)) <= 2


async def _unparked(relevo: Relevo, clock: ManualClock) -> bool:
    """Whether all has come to rest; breakers are given the time they wait for."""
    page = await relevo.store.page(Filter(states=LIVE - {State.HELD}), limit=200)
    if page.jobs and all(job.state is State.PARKED for job in page.jobs):
        clock.advance("5s")
    return not page.jobs


async def _events(relevo: Relevo) -> list[Any]:
    return await rows(relevo, "select attempts, status from outbox_events")


async def test_b44_being_asked_to_wait_spends_no_attempt(
    relevo: Relevo, world: World, client: httpx2.AsyncClient
) -> None:
    await paid(client, 128)
    world.faults.add("hertz", "book", "limit", times=3, seconds=2)
    await drain(relevo, skip_waits=True)
    assert await _events(relevo) == [(1, "DONE")]


async def test_c20_no_password_is_in_the_store_or_the_log(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name in ("MEXGROUP", "NIZA", "NOLEGGIARE", "HERTZ"):
        monkeypatch.setenv(f"{name}_PASSWORD", f"{name}-CANARY")
    monkeypatch.setenv("STRIPE_WEBHOOK_SECRET", "whsec_CANARY")
    async with Relevo(f"sqlite:///{tmp_path / 'cars.db'}", apps=[app]) as relevo:
        transport = httpx2.ASGITransport(app=relevo.asgi())
        async with httpx2.AsyncClient(transport=transport, base_url="http://relevo") as client:
            codes = [await paid(client, supplier) for supplier in (28, 126, 140, 128)]
            await drain(relevo)
            for code in codes:
                assert (await client.get(f"/reservations/{code}")).json()["status"] == "PAID"
    kept = b"".join(path.read_bytes() for path in tmp_path.glob("cars.db*") if path.is_file())
    assert b"INVALID LOGIN" in kept  # what the supplier said is there
    for secret in ("CANARY", KEY):
        assert secret.encode() not in kept
        assert secret not in caplog.text


# all together


@pytest.mark.parametrize("count", [25, pytest.param(60, marks=pytest.mark.soak)])
async def test_many_customers_and_thirty_in_a_hundred_faults(
    relevo: Relevo, world: World, client: httpx2.AsyncClient, clock: ManualClock, count: int
) -> None:
    codes = await storm(relevo, world, client, clock, count)
    await check(relevo, world, client, codes)


async def storm(
    relevo: Relevo, world: World, client: httpx2.AsyncClient, clock: ManualClock, count: int
) -> list[str]:
    kinds = ("error", "lost", "down", "malformed", "refuse", "limit")
    for provider in PROVIDERS.values():
        for kind in kinds:
            world.faults.add(provider, "book", kind, rate=0.06, seconds=1)
    world.faults.add("stripe", "*", "lost", rate=0.05)
    codes: list[str] = []
    for asked in islice(traffic.wishes(5), count):
        answer = await client.post("/reservations", json=asked)
        codes.append(answer.json()["reservation_code"])

    async def pay(code: str) -> None:
        while (await client.post(f"/reservations/{code}/pay", json=CARD)).status_code != 200:
            pass

    for start in range(0, count, 10):
        await asyncio.gather(*(pay(code) for code in codes[start : start + 10]))

    async def at_rest() -> bool:
        await _decide(relevo, world)
        return await _unparked(relevo, clock)

    await drain(relevo, skip_waits=True, until=at_rest, timeout="60s")
    return codes


async def _decide(relevo: Relevo, world: World) -> None:
    """Support looks at the supplier for what a breaker's probe may have booked, and says so."""
    probes = [circuit.probe for _, circuit, _ in await relevo.breakers.all() if circuit.held]
    support = Support(relevo.use(Records), relevo.desk)
    for job in await relevo.store.find(probes):
        if job is None or job.state is not State.HELD:
            continue
        order = codec(BookSupplier).decode(job.payload)
        code, provider = order.reservation_code, PROVIDERS[order.supplier_id]
        booked = [each for each in world.ledger.find(provider, "book") if each.key == code]
        if booked:
            await support.confirm(code, booked[0].detail["confirmation"], ADMIN, "it is there")
        else:
            await support.retry(code, ADMIN, "it is not there", not_booked=True)


async def check(relevo: Relevo, world: World, client: httpx2.AsyncClient, codes: list[str]) -> None:
    """One charge each, one booking at most, and whoever has none knows why."""
    support = Support(relevo.use(Records), relevo.desk)
    booked = {
        entry.key: entry for name in PROVIDERS.values() for entry in world.ledger.find(name, "book")
    }
    for name in ("stripe", *PROVIDERS.values()):
        assert world.ledger.doubled(name) == {}
    outcomes: Counter[str] = Counter()
    for code in codes:
        assert world.ledger.count("stripe", "charge", code) == 1
        case = await support.show(code)
        if case.reservation.status == "CONFIRMED":
            number = booked[code].detail["confirmation"]
            assert case.reservation.supplier_reservation_code == number
            outcomes["confirmed"] += 1
        else:
            assert case.is_stuck
            assert case.job is not None
            assert case.job.failure is not None
            if case.job.state is State.DEAD:
                assert code not in booked
            outcomes[str(case.job.state)] += 1
    assert outcomes["confirmed"] > len(codes) * 0.6, outcomes
