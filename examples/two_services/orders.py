"""The first of two services: it takes orders, and tells billing of each one once."""

import asyncio
import base64
import json
import os
import time

import httpx
from standardwebhooks import Webhook

from relevo import App, Command, PlainContext, Relevo, exponential

app = App("orders")


class TellBilling(
    Command,
    queue="orders:billing:tell",
    key="tell:{order}",
    unique="forever",
    attempts=20,
    backoff=exponential("1s", cap="10m"),
    timeout="1m",
):
    order: str
    cents: int


@app.worker
def tell(order: TellBilling, ctx: PlainContext) -> None:
    ctx.once(
        "tell",
        lambda key: send(key, {"order": order.order, "cents": order.cents}),
        repeatable=True,  # billing knows the id of what it was told before
    )


def send(key: str, body: dict[str, object]) -> int:
    data = json.dumps({"id": key, **body})
    now = int(time.time())
    secret = os.environ["BILLING_SECRET"]
    headers = {
        "content-type": "application/json",
        "webhook-id": key,
        "webhook-timestamp": str(now),
        "webhook-signature": signed(secret, key, now, data),
    }
    answer = httpx.post(os.environ["BILLING_URL"], content=data, headers=headers, timeout=10)
    answer.raise_for_status()
    return answer.status_code


def signed(secret: str, key: str, now: int, data: str) -> str:
    from datetime import UTC, datetime

    return Webhook(secret).sign(key, datetime.fromtimestamp(now, UTC), data)


def new_secret() -> str:
    return "whsec_" + base64.b64encode(os.urandom(24)).decode()


async def main() -> None:
    async with Relevo(os.environ.get("RELEVO_STORE_URL"), apps=[app]) as relevo:
        await relevo.enqueue(TellBilling(order="A-1", cents=1_999))


if __name__ == "__main__":
    asyncio.run(main())
