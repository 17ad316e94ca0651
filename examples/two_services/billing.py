"""The second of two services: it writes one invoice for each order it is told of."""

import os

from sqlalchemy import text

from relevo import App, Command, Delivery, Intake, PlainContext, exponential, sources

app = App("billing")


class WriteInvoice(
    Command,
    queue="billing:invoices:write",
    key="invoice:{order}",
    unique="forever",
    attempts=10,
    backoff=exponential("1s", cap="10m"),
    timeout="30s",
):
    order: str
    cents: int


@app.webhook("/hooks/orders", source=sources.standard(os.environ.get("BILLING_SECRET")))
async def told(delivery: Delivery, ctx: Intake) -> None:
    order = delivery.json
    await ctx.enqueue(WriteInvoice(order=order["order"], cents=order["cents"]))


@app.worker
def write(invoice: WriteInvoice, ctx: PlainContext) -> None:
    with ctx.transaction() as tx:
        row = {"order": invoice.order, "cents": invoice.cents}
        tx.execute(text('create table if not exists invoices ("order" text, cents integer)'))
        tx.execute(text("insert into invoices values (:order, :cents)"), row)
