"""Every night the catalogue of a supplier is imported, page by page, each product once."""

import os
from datetime import datetime

import httpx
from sqlalchemy import text

from relevo import App, Command, PlainContext, exponential

app = App("catalogue")
BACKOFF = exponential("1s", cap="5m")


class ImportPage(
    Command,
    queue="catalogue:pages:import",
    key="page:{day}:{page}",
    unique="forever",
    attempts=10,
    backoff=BACKOFF,
    timeout="1m",
):
    day: str
    page: int


class SaveProduct(
    Command, queue="catalogue:products:save", attempts=10, backoff=BACKOFF, timeout="1m"
):
    day: str
    sku: str
    cents: int


@app.schedule("0 3 * * *", tz="Europe/Madrid")
def nightly(at: datetime) -> ImportPage:
    return ImportPage(day=at.date().isoformat(), page=1)


@app.worker
def import_page(order: ImportPage, ctx: PlainContext) -> int:
    answer = httpx.get(
        f"{os.environ['SUPPLIER_URL']}/products", params={"page": order.page}, timeout=30
    )
    answer.raise_for_status()
    page = answer.json()
    # Whatever is killed in between: a run that is repeated finds what it has ordered before.
    ctx.enqueue_many(
        SaveProduct(day=order.day, sku=each["sku"], cents=each["cents"])
        for each in page["products"]
    )
    if page["next"]:
        ctx.enqueue(ImportPage(day=order.day, page=page["next"]))
    return len(page["products"])


@app.worker
def save(product: SaveProduct, ctx: PlainContext) -> None:
    row = {"day": product.day, "sku": product.sku, "cents": product.cents}
    with ctx.transaction() as tx:
        tx.execute(text("create table if not exists products (day text, sku text, cents integer)"))
        tx.execute(text("insert into products values (:day, :sku, :cents)"), row)
