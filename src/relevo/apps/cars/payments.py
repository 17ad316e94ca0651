"""Paying a reservation: whatever dies in between, one charge, and PAID with its order."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from relevo import Relevo
from relevo.apps.cars import records
from relevo.apps.cars.events import ReservationPaid
from relevo.apps.cars.gateways.payments import Declined, Payment, Payments
from relevo.apps.cars.queues import BookSupplier, FinishPayment
from relevo.apps.cars.records import Records, Reservation, Status
from relevo.apps.cars.settings import CarsSettings

CHECK_AFTER = "60s"  # when to look after a payment whose request may have died


@asynccontextmanager
async def open_payments(relevo: Relevo) -> AsyncGenerator[Payments]:
    settings = relevo.use(CarsSettings)
    payments = Payments(settings.stripe_key, settings.stripe_api_base)
    try:
        yield payments
    finally:
        await payments.close()


async def pay(relevo: Relevo, reservation: Reservation, payment_method: str) -> Payment:
    """Charge a pending reservation.

    The intent is known here before money moves, and an order to look after it is stored with it:
    if this process dies after the charge, the order finds the charge, and so does the webhook.
    """
    rows, payments = relevo.use(Records), relevo.use(Payments)
    code = reservation.code
    intent = reservation.payment_intent
    if intent is None:
        made = await payments.intend(code, reservation.amount, reservation.currency)
        intent = made.intent
    async with rows.transaction() as tx:
        await tx.execute(
            update(Reservation)
            .where(Reservation.code == code)
            .values(payment_intent=intent, updated_at=rows.now())
        )
        await relevo.enqueue(FinishPayment(code), delay=CHECK_AFTER, tx=tx)
    try:
        payment = await payments.confirm(intent, payment_method, code, reservation.payment_attempt)
    except Declined as declined:
        await _answered(rows, reservation, "PAYMENT_DECLINED", declined.code)
        raise
    if payment.is_paid:
        async with rows.transaction() as tx:
            await paid(relevo, tx, code, payment)
    else:
        await _answered(rows, reservation, "PAYMENT_WAITS", payment.status)
    return payment


async def _answered(rows: Records, reservation: Reservation, what: str, detail: str) -> None:
    """Stripe has answered, and it is not paid: whoever tries again needs a key of their own.

    Two that were answered together share the next one.
    """
    attempt = reservation.payment_attempt
    async with rows.transaction() as tx:
        await tx.execute(
            update(Reservation)
            .where(Reservation.code == reservation.code, Reservation.payment_attempt == attempt)
            .values(payment_attempt=attempt + 1, updated_at=rows.now())
        )
        records.note(tx, reservation.code, rows.now(), what, detail)


async def paid(
    relevo: Relevo, tx: AsyncSession, code: str, payment: Payment, *, joins: bool = False
) -> bool:
    """PAID and the order BOOK_SUPPLIER in one transaction; False if it was paid before.

    Called from a request, a webhook and a worker alike: the first one does it. In the latter two
    `tx` is one that orders join by themselves.
    """
    within = None if joins else tx
    at = relevo.clock.now()
    reservation = await tx.get(Reservation, code, with_for_update=True, populate_existing=True)
    if reservation is None:
        return False
    trouble = _mismatch(reservation, payment)
    if not trouble and reservation.status in (Status.PAID, Status.CONFIRMED):
        return False
    if trouble or reservation.status != Status.PENDING:
        why = trouble or f"the reservation is {reservation.status}"
        records.note(tx, code, at, "TO_REFUND", f"{payment.intent}: {why}")
        return False
    await records.move(
        tx, code, [Status.PENDING], Status.PAID, at, paid_at=at, payment_intent=payment.intent
    )
    receipt = await relevo.enqueue(BookSupplier(code, reservation.supplier_id), tx=within)
    await records.ordered(tx, receipt.id, code, reservation.supplier_id, at)
    records.note(tx, code, at, "PAID", payment.intent)
    await relevo.publish(ReservationPaid(code, reservation.supplier_id), tx=within)
    return True


def _mismatch(reservation: Reservation, payment: Payment) -> str:
    """Why this money is not this reservation's; empty when it is."""
    if reservation.payment_intent not in (None, payment.intent):
        return "it belongs to another payment"
    if (payment.amount, payment.currency) != (reservation.amount, reservation.currency):
        return f"it is {payment.amount} {payment.currency}"
    return ""


def payment_of(found: dict[str, Any]) -> Payment:
    """A payment from a PaymentIntent's JSON; ValueError when it is none."""
    intent, status, amount, currency = (
        found.get(name) for name in ("id", "status", "amount_received", "currency")
    )
    texts = all(isinstance(each, str) and each for each in (intent, status, currency))
    if not texts or type(amount) is not int:
        raise ValueError("no payment intent")
    return Payment(str(intent), str(status), amount, str(currency), "")
