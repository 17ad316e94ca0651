"""The app for `relevo serve --app tests.faults.door:app`: a webhook that orders a label."""

from __future__ import annotations

from relevo import App, Delivery, Intake, sources, webhook
from tests.faults.apps import Print

PATH, SECRET = "/hooks/label", "canary-of-the-label-door"
PACKED, FORM = "/hooks/packed", "/hooks/form"


async def label(delivery: Delivery, ctx: Intake) -> None:
    await ctx.enqueue(Print(delivery.json["number"], 0))


async def form(delivery: Delivery, ctx: Intake) -> None:
    await ctx.enqueue(Print(int(delivery.form["number"]), 0))


app = App(
    "fault",
    webhooks=[
        webhook(
            PATH,
            label,
            verify=sources.shared_secret(SECRET, header="X-Secret"),
            key=lambda delivery: str(delivery.json["number"]),
        ),
        webhook(
            PACKED,
            label,
            verify=sources.shared_secret(SECRET, header="X-Secret"),
            key=lambda delivery: str(delivery.json["number"]),
            accept_gzip=True,
        ),
        webhook(
            FORM,
            form,
            verify=sources.shared_secret(SECRET, header="X-Secret"),
            key=lambda delivery: delivery.form["number"],
            content_types=("application/x-www-form-urlencoded",),
        ),
    ],
)
