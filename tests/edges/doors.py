"""An app with a door of every kind, for the tests of what comes in by HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from relevo import (
    Answer,
    App,
    Command,
    Context,
    Delivery,
    Event,
    Intake,
    Reject,
    Relevo,
    sources,
    webhook,
)
from relevo.route import Use
from relevo.store import DeliveryState, Letterbox
from relevo.testing import enqueued

SECRET = "canary-3f9c-of-the-door"
OLD = "canary-8d21-of-the-door-before"
ROTATED = "/hooks/rotated"
SIGNED, STRIPE, TX, SHARED = "/hooks/signed", "/hooks/stripe", "/hooks/tx", "/hooks/shared"
GZIP, META, QSTASH, ODD, FORM = (
    "/hooks/gzip",
    "/hooks/meta",
    "/hooks/qstash",
    "/hooks/odd",
    "/hooks/form",
)
URL = f"https://shop.example{QSTASH}"


class Save(Command, queue="shop:events:save"):
    id: str
    note: str = ""


class Seen(Event, name="shop.seen"):
    id: str


async def save(order: Save) -> None: ...


async def greet(fact: Seen, ctx: Context) -> None: ...


async def file(fact: Seen, ctx: Context) -> None: ...


async def saving(delivery: Delivery, ctx: Intake) -> None:
    await ctx.enqueue(Save(delivery.json["id"], str(delivery.json.get("note", ""))))


async def saving_a_row(delivery: Delivery, ctx: Intake, tx: AsyncSession) -> None:
    await tx.execute(text("create table if not exists seen (id text)"))
    await tx.execute(text("insert into seen values (:id)"), {"id": delivery.json["id"]})
    await ctx.enqueue(Save(delivery.json["id"]))
    if delivery.json.get("do") == "raise":
        raise RuntimeError("after the row")
    if delivery.json.get("do") == "query":
        await tx.execute(text("select * from nowhere"))


async def saving_a_field(delivery: Delivery, ctx: Intake) -> None:
    await ctx.enqueue(Save((delivery.params if delivery.query else delivery.form)["id"]))


mended: set[str] = set()  # the deliveries on which the function works by now


async def odd(delivery: Delivery, ctx: Intake) -> Answer | None:
    """Does what the delivery tells it to."""
    wish: dict[str, Any] = delivery.json
    match wish["do"]:
        case "raise":
            raise RuntimeError("a mistake of the app")
        case "mend" if wish["id"] not in mended:
            raise RuntimeError("a mistake not yet mended")
        case "mend":
            await ctx.enqueue(Save(wish["id"]))
        case "reject":
            raise Reject(422, "no_such_room", "room 99 is not there")
        case "answer":
            return Answer.json({"said": wish["say"]}, 202)
        case "refuse":
            return Answer.text("no", 409)
        case "publish":
            await ctx.publish(Seen(wish["id"]))
        case "nul":
            await ctx.enqueue(Save(wish["id"], "a\0b"))
        case "many":
            for number in range(wish["many"]):
                await ctx.enqueue(Save(f"{wish['id']}-{number}"))
        case "engine":
            await ctx.use(Relevo).enqueue(Save(wish["id"]))
        case "wait":
            await asyncio.sleep(wish["seconds"])
        case "cancel":
            raise asyncio.CancelledError
        case _:
            pass
    return None


def challenge(delivery: Delivery, use: Use) -> Answer:
    if delivery.params.get("hub.verify_token") != "tell-me":
        raise Reject(403, "invalid_token")
    return Answer.text(delivery.params["hub.challenge"])


def _id(delivery: Delivery) -> str:
    return delivery.json["id"]


def app() -> App:
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def engine(relevo: Relevo) -> Any:
        yield relevo

    signed = sources.hmac_header("X-Signature", SECRET)
    shared = sources.shared_secret(SECRET, query="secret", form="secret", header="X-Secret")
    forms = ("application/x-www-form-urlencoded",)
    return App(
        "shop",
        workers=[save],
        listeners=[greet, file],
        resources=[engine],
        webhooks=[
            webhook(SIGNED, saving, verify=signed, key=_id),
            webhook(
                ROTATED,
                saving,
                verify=sources.hmac_header("X-Signature", [SECRET, OLD]),
                key=_id,
            ),
            webhook(STRIPE, saving, source=sources.stripe(f"whsec_{SECRET}"), key=_id),
            webhook(TX, saving_a_row, verify=signed, key=_id),
            webhook(
                SHARED,
                saving_a_field,
                verify=shared,
                key=lambda d: (d.params if d.method == "GET" else d.form)["id"],
                methods=("GET", "POST"),
                content_types=forms,
            ),
            webhook(
                FORM, saving_a_field, verify=signed, key=lambda d: d.form["id"], content_types=forms
            ),
            webhook(GZIP, saving, verify=signed, key=_id, accept_gzip=True),
            webhook(META, saving, verify=signed, key=_id, challenge=challenge),
            webhook(QSTASH, saving, source=sources.qstash(SECRET, f"next-{SECRET}", URL), key=_id),
            webhook(ODD, odd, verify=signed, key=_id),
        ],
    )


async def kept(relevo: Relevo, state: DeliveryState = DeliveryState.ACCEPTED) -> int:
    """How many deliveries were taken, or turned away."""
    found, _ = await relevo.store.deliveries(Letterbox(state=state), limit=200)
    return len(found)


async def jobs(relevo: Relevo) -> list[str]:
    """The ids that were ordered to be saved."""
    return sorted(order.id for order in await enqueued(relevo, Save))
