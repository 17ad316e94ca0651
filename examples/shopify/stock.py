"""Orders of Shopify are tagged once they are known to the warehouse."""

import os

import httpx

from relevo import App, Command, Delivery, Intake, PlainContext, exponential, sources

app = App("stock")


class Reserve(
    Command,
    queue="stock:orders:reserve",
    key="reserve:{order}",
    unique="forever",
    attempts=8,
    backoff=exponential("2s", cap="5m"),
    timeout="1m",
):
    order: int


@app.webhook(
    "/hooks/shopify",
    source=sources.shopify(os.environ.get("SHOPIFY_CLIENT_SECRET")),
    types=["orders/create"],
)
async def told(delivery: Delivery, ctx: Intake) -> None:
    await ctx.enqueue(Reserve(order=delivery.json["id"]))


def shop() -> httpx.Client:
    return httpx.Client(
        base_url=os.environ["SHOPIFY_URL"],
        headers={"X-Shopify-Access-Token": os.environ["SHOPIFY_TOKEN"]},
        timeout=30,
    )


@app.worker
def reserve(order: Reserve, ctx: PlainContext) -> None:
    def tag(key: str) -> httpx.Response:
        body = {"order": {"id": order.order, "tags": "reserved"}}
        with shop() as client:
            return client.put(f"/admin/api/2026-07/orders/{order.order}.json", json=body)

    # To tag it twice with the same word changes nothing.
    ctx.once("tag", tag, keep=lambda answer: answer.status_code, repeatable=True)
