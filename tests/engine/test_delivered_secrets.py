"""Secrets in a verified delivery: its provider is never told off, and no database keeps them."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from relevo import (
    App,
    Command,
    Delivery,
    Event,
    Flow,
    Intake,
    PayloadError,
    Reject,
    Relevo,
    sources,
    webhook,
)
from relevo.desk import Desk, Person, Role
from relevo.intake.receiver import MASKED
from relevo.sealing import SealKeys, new_key, unsealed
from relevo.store import DeliveryState, Filter, Kept, Letterbox, Store
from relevo.testing import ManualClock, deliver, drain, until

KEY = "test-signing-key-of-the-endpoint"
CARD = "4111 1111 1111 1111"
BODY: dict[str, Any] = {
    "id": "e1",
    "card": {"number": CARD, "cvc_check": "pass"},
    "hook": {"config": {"secret": "b7f3-canary-99", "url": "https://shop.example"}},
}
MASKED_BODY: dict[str, Any] = {
    "id": "e1",
    "card": {"number": "***1111", "cvc_check": "pass"},
    "hook": {"config": {"secret": "***", "url": "https://shop.example"}},
}

Start = Callable[..., Awaitable[Relevo]]


class Sync(Command, queue="shop:events:sync"):
    event: dict[str, Any]


class Count(Command, queue="shop:events:count"):
    id: str


class Step(Command, queue="shop:events:step"):
    note: str


class Happened(Event, name="shop.happened"):
    body: dict[str, Any]


class Shop:
    """Remembers what its workers were given."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def app(self) -> App:
        async def sync(order: Sync) -> None:
            self.seen.append(order.event)

        async def count(order: Count) -> None:
            self.seen.append(order.id)

        async def step(order: Step) -> None:
            self.seen.append(order.note)

        async def hear(fact: Happened) -> None:
            self.seen.append(fact.body)

        async def take(delivery: Delivery, ctx: Intake) -> None:
            body = delivery.json
            match body.get("do"):
                case "publish":
                    await ctx.publish(Happened(body))
                case "start":
                    flow = Flow("notes")
                    flow.add(Step(CARD))
                    await ctx.start(flow)
                case _:
                    await ctx.enqueue(Sync(body))
                    await ctx.enqueue(Count(body["id"]))

        return App(
            "shop",
            webhooks=[
                webhook(
                    "/hooks/shop",
                    take,
                    verify=sources.hmac_header("X-Signature", KEY),
                    key=lambda delivery: delivery.json["id"],
                )
            ],
            workers=[sync, count, step],
            listeners=[hear],
        )


@pytest.fixture
async def start(store: Store, clock: ManualClock) -> AsyncGenerator[Start]:
    """Engines on that store, with or without a seal."""
    async with AsyncExitStack() as stack:

        async def make(app: App, seal: SealKeys | None = None) -> Relevo:
            engine = Relevo(store, apps=[app], clock=clock, seal=seal)
            await engine.open()
            stack.push_async_callback(engine.rest)
            return engine

        yield make


async def only(relevo: Relevo, **where: Any) -> Kept:
    [came], _ = await relevo.store.deliveries(Letterbox(**where))
    [kept] = await relevo.store.delivery([came.id])
    assert kept is not None
    return kept


async def test_a_secret_is_masked_and_the_other_commands_run(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop()
    relevo = await start(shop.app())

    assert (await deliver(relevo, "/hooks/shop", json=BODY)).status == 200
    await drain(relevo)

    assert sorted(shop.seen, key=str) == sorted([MASKED_BODY, "e1"], key=str)
    came = await only(relevo)
    assert came.state is DeliveryState.ACCEPTED
    assert came.reason == (
        "masked in its jobs: Sync.event.card.number (a card number), "
        "Sync.event.hook.config.secret (a secret by its name); "
        "masked in its body, too; a replay gets it masked"
    )
    assert json.loads(came.body) == MASKED_BODY
    jobs = (await relevo.store.page(Filter(kind="Sync"))).jobs
    assert [json.loads(bytes(job.payload)) for job in jobs] == [{"event": MASKED_BODY}]

    # Again, and another one: still taken, and told once for the endpoint.
    assert (await deliver(relevo, "/hooks/shop", json=BODY)).status == 200
    assert (await deliver(relevo, "/hooks/shop", json={**BODY, "id": "e2"})).status == 200
    await drain(relevo)
    assert len(shop.seen) == 4
    told = [line for line in caplog.records if line.levelno == logging.WARNING]
    assert len(told) == 1
    assert "Sync.event.card.number" in told[0].__dict__["fields"]
    assert CARD not in caplog.text
    [note] = await relevo.store.notes(MASKED)
    assert note.name == "shop:/hooks/shop"


async def test_under_a_seal_a_secret_reaches_the_worker_and_no_database(
    start: Start, store: Store
) -> None:
    shop = Shop()
    relevo = await start(shop.app(), SealKeys(new_key()))

    assert (await deliver(relevo, "/hooks/shop", json=BODY)).status == 200
    [raw] = (await store.page(Filter(kind="Sync"))).jobs
    assert b"4111" not in bytes(raw.payload)
    await drain(relevo)

    assert sorted(shop.seen, key=str) == sorted([BODY, "e1"], key=str)
    came = await only(relevo)
    assert (came.reason, json.loads(unsealed(came.body))) == ("", BODY)
    assert await store.notes(MASKED) == []


@pytest.mark.parametrize("do", ["publish", "start"])
async def test_events_and_flows_of_a_delivery_are_masked_too(start: Start, do: str) -> None:
    shop = Shop()
    relevo = await start(shop.app())

    assert (await deliver(relevo, "/hooks/shop", json={**BODY, "do": do})).status == 200
    await drain(relevo)

    assert shop.seen == [{**MASKED_BODY, "do": do} if do == "publish" else "***1111"]
    assert "(a card number)" in (await only(relevo)).reason


async def test_a_replay_masks_as_the_delivery_did(start: Start) -> None:
    shop = Shop()
    relevo = await start(shop.app())
    await deliver(relevo, "/hooks/shop", json=BODY)
    await drain(relevo)
    first = await only(relevo)
    desk, ana = Desk(relevo.store), Person("ana", Role.ADMIN)
    rehearsed = await desk.replay(first.id, ana, relevo.handling, dry_run=True)
    assert json.loads(rehearsed.orders[0].payload) == {"event": MASKED_BODY}

    replay = await desk.replay(first.id, ana, relevo.handling)
    second = await only(relevo, thread=replay.id)
    assert (second.generation, second.reason) == (1, first.reason)


@pytest.mark.parametrize(
    ("media_type", "body", "kept", "where"),
    [
        (
            "application/json",
            b'{"id": "e1", "note": "paid with 4111 1111 1111 1111", "n": 1.10}',
            b'{"id":"e1","note":"paid with ***1111","n":1.1}',
            "note (a card number)",
        ),
        (
            "application/x-www-form-urlencoded",
            b"id=e1&note=4111+1111+1111+1111&empty=",
            b"id=e1&note=%2A%2A%2A1111&empty=",
            "note (a card number)",
        ),
        (
            "application/x-www-form-urlencoded",
            b"id=e1&payload=%7B%22card%22%3A%224111-1111-1111-1111%22%7D",
            b"id=e1&payload=%7B%22card%22%3A%22%2A%2A%2A1111%22%7D",
            "payload.card (a card number)",
        ),
        (
            "application/xml",
            b"<pay><card>4111 1111 1111 1111</card></pay>",
            b"<pay><card>***1111</card></pay>",
            "its text (a card number)",
        ),
    ],
)
async def test_a_body_that_no_job_carries_is_kept_without_its_secrets(
    start: Start, media_type: str, body: bytes, kept: bytes, where: str
) -> None:
    app = App("shop")

    @app.webhook(
        "/hooks/pay",
        verify=sources.hmac_header("X-Signature", KEY),
        key=lambda _: "e1",
        content_types=(media_type,),
    )
    async def take(delivery: Delivery, ctx: Intake) -> None:
        assert delivery.body == body  # the function sees it as it came

    relevo = await start(app)
    headers = {"Content-Type": media_type}
    assert (await deliver(relevo, "/hooks/pay", body=body, headers=headers)).status == 200

    came = await only(relevo)
    assert came.body == kept
    assert came.reason == f"masked in its body: {where}; a replay gets it masked"


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"id": "4111111111111111", "card": "•••• 4242", "client_secret": ""}).encode(),
        json.dumps({"id": "e1", "picture": "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo" * 300}).encode(),
        b"\xff\xfe4111 1111 1111 1111",
    ],
)
async def test_any_other_body_is_kept_to_the_byte(start: Start, body: bytes) -> None:
    app = App("shop")

    @app.webhook("/hooks/pay", verify=sources.hmac_header("X-Signature", KEY), key=lambda _: "e1")
    async def take(delivery: Delivery, ctx: Intake) -> None:
        pass

    relevo = await start(app)
    assert (await deliver(relevo, "/hooks/pay", body=body)).status == 200
    came = await only(relevo)
    assert (came.body, came.reason) == (body, "")


async def test_a_refused_delivery_is_kept_without_its_secrets(start: Start) -> None:
    app = App("shop")

    @app.webhook("/hooks/pay", verify=sources.hmac_header("X-Signature", KEY), key=lambda _: "e1")
    async def take(delivery: Delivery, ctx: Intake) -> None:
        raise Reject(422, "unknown_shop")

    relevo = await start(app)
    body = b'{"card": "4111 1111 1111 1111"}'
    assert (await deliver(relevo, "/hooks/pay", body=body)).status == 422

    async def is_kept() -> bool:  # it is written behind the answer
        return bool((await relevo.store.deliveries(Letterbox()))[0])

    await until(is_kept)
    came = await only(relevo)
    assert came.body == b'{"card":"***1111"}'
    assert came.reason.endswith("masked in its body: card (a card number); a replay gets it masked")


async def test_what_a_program_of_ours_enqueues_is_refused(start: Start) -> None:
    relevo = await start(Shop().app())
    with pytest.raises(PayloadError, match=r"Sync\.event\.card\.number: a card number; .*allow="):
        await relevo.enqueue(Sync(BODY))
    sealed = await start(Shop().app(), SealKeys(new_key()))
    with pytest.raises(PayloadError, match=r"Sync\.event\.card\.number: a card number"):
        await sealed.enqueue(Sync(BODY))
