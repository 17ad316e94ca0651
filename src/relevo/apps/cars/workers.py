"""Carrying out the orders: book at the supplier, finish a payment, mirror the outbox."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Awaitable
from datetime import timedelta
from typing import TypeVar

from sqlalchemy.ext.asyncio import AsyncSession

from relevo import (
    Cancelled,
    Context,
    Dead,
    ProviderError,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUncertain,
    Snooze,
)
from relevo.apps.cars import payments, records
from relevo.apps.cars.events import ReservationConfirmed
from relevo.apps.cars.gateways import (
    BookingStatus,
    SupplierBookingResult,
    SupplierGatewaySelector,
)
from relevo.apps.cars.gateways.breaker import async_supplier_breaker
from relevo.apps.cars.gateways.payments import Payments
from relevo.apps.cars.mirror import mirror
from relevo.apps.cars.queues import (
    BookSupplier,
    CancelBooking,
    FinishPayment,
    MirrorOutbox,
    Refund,
)
from relevo.apps.cars.records import (
    OutboxEvent,
    Records,
    Reservation,
    Status,
    SupplierRequest,
)
from relevo.apps.cars.settings import CarsSettings
from relevo.outcome import scrub

R = TypeVar("R", bound=SupplierBookingResult | None)

PATIENCE = timedelta(days=1)  # with a payment that waits for the customer's bank
LATE = "15s"  # after which a booking that broke off, and is not on the supplier's list, is no more


async def book_supplier(order: BookSupplier, ctx: Context) -> Dead | Cancelled | None:
    """Book a paid reservation at its supplier, once, and confirm it."""
    rows = ctx.use(Records)
    reservation = await _begin(rows, order, ctx)
    if reservation is None:
        return Dead("there is no such reservation")
    if reservation.status == Status.CONFIRMED:  # by support, while the order waited
        async with ctx.transaction() as tx:
            await _done(tx, rows, ctx)
        return None
    if reservation.status != Status.PAID:
        return Cancelled(f"the reservation is {reservation.status}")
    calls = _Calls(rows, order, ctx)
    booking = reservation.booking()
    supplier = ctx.use(CarsSettings).suppliers.get(order.supplier_id)
    can_find = supplier is not None and supplier.can_find
    try:
        gateway = ctx.use(SupplierGatewaySelector).for_supplier(order.supplier_id)

        async def book(key: str) -> str:
            call = async_supplier_breaker(gateway.book, booking)
            return (await calls.made("book", call)).code()

        async def find(key: str) -> str | None:
            try:
                found = await calls.made("find", gateway.find(booking))
            except ProviderRefused as error:
                # A look-up that is refused says nothing of the booking.
                raise ProviderUnavailable(f"{error}; to be looked up again") from error
            return None if found is None else found.code()

        code = await ctx.once("book", book, find=find if can_find else None, late=LATE)
    except ProviderError as error:
        await calls.save(error)
        if isinstance(error, ProviderUncertain) and can_find and not ctx.is_last_attempt:
            # It will be asked for before it is booked again, so there is nothing to hold it for.
            # After the last attempt nobody asks any more: better held than dead.
            raise ProviderUnavailable(f"{error}; to be looked up") from error
        if isinstance(error, ProviderUncertain):
            name = str(order.supplier_id) if supplier is None else supplier.name
            raise ProviderUncertain(
                held(order.reservation_code, name), is_left_over=error.is_left_over
            ) from error
        raise
    async with ctx.transaction() as tx:
        at = rows.now()
        tx.add_all(calls.rows)
        if await records.move(
            tx,
            order.reservation_code,
            [Status.PAID],
            Status.CONFIRMED,
            at,
            supplier_reservation_code=code,
            confirmed_at=at,
        ):
            records.note(tx, order.reservation_code, at, "CONFIRMED", code)
            fact = ReservationConfirmed(order.reservation_code, order.supplier_id, code)
            await ctx.publish(fact)
        await _done(tx, rows, ctx)
    return None


def held(code: str, supplier: str) -> str:
    """What a person is told of an order whose booking may exist."""
    return (
        f"{supplier} may have this booking and cannot be asked by our code: look there, then "
        f"`relevo cars confirm {code} --confirmation NUMBER` or `relevo cars retry {code} "
        "--not-booked`"
    )


async def _done(tx: AsyncSession, rows: Records, ctx: Context) -> None:
    """The order's row is DONE, in the transaction that ends the job."""
    event = await tx.get(OutboxEvent, ctx.id)
    if event is not None:
        records.close(event, rows.now())


async def _begin(rows: Records, order: BookSupplier, ctx: Context) -> Reservation | None:
    """Lock the order's row as the seed describes it; the engine's lease is what really locks."""
    at = rows.now()
    async with rows.transaction() as tx:
        event = await records.revive(tx, ctx.id)
        if event is not None:
            event.status, event.attempts = "PROCESSING", ctx.attempt
            event.locked_by, event.locked_at = f"{socket.gethostname()}:{os.getpid()}", at
            event.next_attempt_at, event.updated_at = None, at
        return await tx.get(Reservation, order.reservation_code)


class _Calls:
    """The calls of one run, to be written down when it ends."""

    def __init__(self, rows: Records, order: BookSupplier, ctx: Context) -> None:
        self._records = rows
        self._order = order
        self._ctx = ctx
        self.rows: list[SupplierRequest] = []

    async def made(self, verb: str, call: Awaitable[R]) -> R:
        began, at = time.monotonic(), self._records.now()
        outcome, detail = "broken", ""
        try:
            answer = await call
            outcome, detail = _told(answer)
            return answer
        except ProviderError as error:
            outcome, detail = _told(SupplierBookingResult.failed(error))
            raise
        finally:
            self.rows.append(
                SupplierRequest(
                    reservation_code=self._order.reservation_code,
                    supplier_id=self._order.supplier_id,
                    attempt=self._ctx.attempt,
                    verb=verb,
                    outcome=outcome,
                    detail=detail,
                    milliseconds=round((time.monotonic() - began) * 1000),
                    at=at,
                )
            )

    async def save(self, error: ProviderError) -> None:
        code = self._order.reservation_code
        async with self._records.transaction() as tx:
            tx.add_all(self.rows)
            what = scrub(f"attempt {self._ctx.attempt}: {error}")
            records.note(tx, code, self._records.now(), "BOOKING_FAILED", what)
            await self._records.relevo.enqueue(MirrorOutbox(code), delay="500ms", tx=tx)


def _told(answer: SupplierBookingResult | None) -> tuple[str, str]:
    """The outcome and detail of an answer, as supplier_requests has them."""
    if answer is None:
        return "none", ""
    if answer.status is BookingStatus.SUCCESS:
        return "confirmed", answer.supplier_reservation_code
    return answer.status.lower(), scrub(answer.why[:2_000])


async def finish_payment(order: FinishPayment, ctx: Context) -> Snooze | None:
    """See how a payment ended whose request may have died, and do what it would have done."""
    rows = ctx.use(Records)
    reservation = await rows.get(order.reservation_code)
    if (
        reservation is None
        or reservation.payment_intent is None
        or reservation.status in (Status.PAID, Status.CONFIRMED)
    ):
        return None
    payment = await ctx.use(Payments).look(reservation.payment_intent)
    if payment.is_under_way and rows.now() - ctx.enqueued_at < PATIENCE:
        return Snooze("5m", "the customer's bank has not decided")
    if not payment.is_paid:
        return None
    async with ctx.transaction() as tx:
        await payments.paid(rows.relevo, tx, reservation.code, payment, joins=True)
    return None


async def mirror_outbox(order: MirrorOutbox, ctx: Context) -> Snooze | None:
    """Write down what became of an order."""
    is_at_rest = await mirror(ctx.use(Records), order.reservation_code)
    return None if is_at_rest else Snooze("500ms")


async def cancel_booking(order: CancelBooking, ctx: Context) -> Dead | None:
    """Have the supplier give up what it may have booked for a cancelled reservation, once."""
    rows = ctx.use(Records)
    reservation = await rows.get(order.reservation_code)
    if reservation is None:
        return Dead("there is no such reservation")
    supplier = ctx.use(CarsSettings).suppliers.get(order.supplier_id)
    gateway = ctx.use(SupplierGatewaySelector).for_supplier(order.supplier_id)
    booking, can_find = reservation.booking(), supplier is not None and supplier.can_find

    async def number() -> str:
        found = await gateway.find(booking) if can_find else None
        return "" if found is None else found.code()

    async def cancel(key: str) -> str:
        told = order.number or await number()
        if told:
            await gateway.cancel(booking, told)
        return told

    async def find(key: str) -> str | None:
        """Gone, if the supplier no longer has it."""
        return None if await number() else order.number or "cancelled"

    told = await ctx.once("cancel", cancel, find=find if can_find else None)
    what = "SUPPLIER_CANCELLED" if told else "NOT_AT_SUPPLIER"
    async with ctx.transaction() as tx:
        records.note(tx, reservation.code, rows.now(), what, told)
    return None


async def refund(order: Refund, ctx: Context) -> None:
    """Give the customer's money back at Stripe; its key makes it once, however often we ask."""
    rows, stripe = ctx.use(Records), ctx.use(Payments)
    given: list[str] = []
    for intent in order.intents:
        given.append(
            await ctx.once(
                f"refund:{intent}",
                lambda key, intent=intent: stripe.refund(intent, f"refund:{intent}"),
                repeatable=True,
            )
        )
    async with ctx.transaction() as tx:
        records.note(tx, order.reservation_code, rows.now(), "REFUNDED", ", ".join(given))
