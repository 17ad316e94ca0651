"""Stripe tells how a payment ended; the second way to the same end."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from relevo import Delivery, Intake, Reject, Relevo, sources
from relevo.apps.cars import payments
from relevo.apps.cars.records import Records
from relevo.apps.cars.settings import CarsSettings
from relevo.apps.outside import as_object
from relevo.route import Use
from relevo.sources import Source

SUCCEEDED = "payment_intent.succeeded"


def source(use: Use) -> Source:
    return sources.stripe(use(CarsSettings).stripe_webhook_secrets)


async def stripe_hook(delivery: Delivery, ctx: Intake, tx: AsyncSession) -> None:
    """Pay the reservation of a PaymentIntent that succeeded; every other type is only recorded."""
    event = delivery.json
    if event.get("livemode") is not ctx.use(CarsSettings).is_live:
        raise Reject(400, "livemode_mismatch")
    if event.get("type") != SUCCEEDED or "account" in event:
        return  # another type, or an account that is connected to ours
    found = as_object(event.get("data")).get("object")
    if not isinstance(found, dict):
        raise Reject(422, "no_payment_intent")
    intent = as_object(found)
    code = as_object(intent.get("metadata")).get("reservation_code")
    if not isinstance(code, str) or not 0 < len(code) <= 20:
        return  # a payment of something that is no reservation
    try:
        payment = payments.payment_of(intent)
    except ValueError as error:
        raise Reject(422, "no_payment_intent") from error
    relevo: Relevo = ctx.use(Records).relevo
    await payments.paid(relevo, tx, code, payment, joins=True)
