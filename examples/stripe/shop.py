"""A shop: an order is charged with Stripe once, and what is paid is shipped once."""

import asyncio
import os

import stripe
from sqlalchemy import text

from relevo import App, Command, Delivery, Intake, PlainContext, Relevo, exponential, sources

app = App("shop")


class Charge(
    Command,
    queue="shop:stripe:charge",
    key="charge:{order}",
    unique="forever",
    attempts=10,
    backoff=exponential("1s", cap="10m"),
    timeout="1m",
):
    order: str
    cents: int
    payment_method: str


class Ship(
    Command,
    queue="shop:parcels:ship",
    key="ship:{order}",
    unique="forever",
    attempts=10,
    backoff=exponential("1s", cap="10m"),
    timeout="30s",
):
    order: str
    payment: str


def client() -> stripe.StripeClient:
    return stripe.StripeClient(
        os.environ["STRIPE_API_KEY"],
        base_addresses={"api": os.environ.get("STRIPE_API", "https://api.stripe.com")},
        max_network_retries=0,  # relevo tries again, and knows what each error proves
        http_client=stripe.RequestsClient(),
    )


@app.worker
def charge(order: Charge, ctx: PlainContext) -> str:
    paid = ctx.once(
        "charge",
        lambda key: client().v1.payment_intents.create(
            {
                "amount": order.cents,
                "currency": "eur",
                "confirm": True,
                "payment_method": order.payment_method,
                "metadata": {"order": order.order},
            },
            {"idempotency_key": key},
        ),
        repeatable=True,  # Stripe makes one charge of all calls with one key
    )
    return paid.id


@app.webhook(
    "/hooks/stripe",
    source=sources.stripe(os.environ.get("STRIPE_WEBHOOK_SECRET")),
    types=["payment_intent.succeeded"],
)
async def told(delivery: Delivery, ctx: Intake) -> None:
    payment = delivery.json["data"]["object"]
    await ctx.enqueue(Ship(order=payment["metadata"]["order"], payment=payment["id"]))


@app.worker
def ship(order: Ship, ctx: PlainContext) -> None:
    with ctx.transaction() as tx:
        row = {"order": order.order, "payment": order.payment}
        tx.execute(text('create table if not exists parcels ("order" text, payment text)'))
        tx.execute(text("insert into parcels values (:order, :payment)"), row)


async def main() -> None:
    async with Relevo(os.environ.get("RELEVO_STORE_URL"), apps=[app]) as relevo:
        await relevo.enqueue(Charge(order="A-1", cents=1_999, payment_method="pm_card_visa"))


if __name__ == "__main__":
    asyncio.run(main())
