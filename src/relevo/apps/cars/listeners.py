"""Reactions to what happened to a reservation: the client's program and support are told.

Each is a webhook of the Standard Webhooks form, signed, with the event's id: a receiver that knows
the id has it already. Without its address nothing is sent.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from relevo import Context, Delivery, Event, sources
from relevo.apps.cars.events import ReservationConfirmed, ReservationPaid, ReservationStuck
from relevo.apps.cars.settings import CarsSettings
from relevo.apps.outside import Outside

SECONDS = 10.0


async def tell_client_of_payment(fact: ReservationPaid, ctx: Context) -> None:
    """Tell the client's program that a reservation is paid."""
    await _tell(ctx, ctx.use(CarsSettings).client_url, fact)


async def tell_client_of_booking(fact: ReservationConfirmed, ctx: Context) -> None:
    """Tell the client's program the supplier's number."""
    await _tell(ctx, ctx.use(CarsSettings).client_url, fact)


async def tell_support(fact: ReservationStuck, ctx: Context) -> None:
    """Tell support that a reservation waits for a person."""
    await _tell(ctx, ctx.use(CarsSettings).support_url, fact)


async def _tell(ctx: Context, url: str, fact: Event) -> None:
    """Post an event; repeated under one id until the receiver takes it, or says no."""
    if not url:
        return
    fields = {"type": type(fact).__relevo__.kind, "data": msgspec.to_builtins(fact)}
    body = msgspec.json.encode(fields)

    async def post(key: str) -> int:
        now = datetime.now(UTC)
        plain = Delivery(path="/", body=body, received_at=now, id=ctx.id)
        signed = sources.standard(ctx.use(CarsSettings).webhook_secret).signed(plain, now)
        headers = {"content-type": "application/json", **dict(signed.headers)}
        async with Outside("The receiver of events", url, seconds=SECONDS) as outside:
            reply = await outside.call("POST", content=body, headers=headers, acts=True)
        return reply.check().status

    await ctx.once("tell", post, repeatable=True)
