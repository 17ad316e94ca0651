"""What support may do about a reservation; the same for command line and panel."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import ColumnElement, Select, and_, func, or_, select

from relevo import DefinitionError, MisuseError, NotFoundError, State, StoreUnavailable
from relevo.apps.cars import records
from relevo.apps.cars.mirror import mirror
from relevo.apps.cars.queues import CancelBooking, Refund
from relevo.apps.cars.records import (
    History,
    OutboxDeadLetter,
    OutboxEvent,
    Records,
    Reservation,
    Status,
    SupplierRequest,
    is_code,
)
from relevo.desk import Desk, Person
from relevo.job import Job

PAGE = 50
STUCK, TO_REFUND, REFUNDED = "STUCK", "TO_REFUND", "REFUNDED"
STATUSES = (*(status.value for status in Status), STUCK, TO_REFUND)
EFFECT = "book"
SILENCE = timedelta(seconds=90)  # longer than any run: after it an order's row may lag behind

_CONFIRMATION = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._:/#-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Case:
    """Everything about one reservation."""

    reservation: Reservation
    history: Sequence[History]
    requests: Sequence[SupplierRequest]
    event: OutboxEvent | None
    dead: OutboxDeadLetter | None
    job: Job | None
    can_ask: bool = False  # whether the supplier can say if it has the booking
    can_cancel: bool = False  # whether the supplier takes a message that cancels

    @property
    def is_stuck(self) -> bool:
        """It is paid, and nothing more happens by itself."""
        stuck = (State.DEAD, State.HELD, State.CANCELLED)
        is_over = self.job is None or self.job.state in stuck
        return self.reservation.status == Status.PAID and is_over

    @property
    def is_owed(self) -> bool:
        """Money of its customer is to be given back."""
        told = [line.what for line in self.history if line.what in (TO_REFUND, REFUNDED)]
        return told[-1:] == [TO_REFUND]

    @property
    def owed(self) -> tuple[int, list[str]]:
        """The line that says last that money is owed, and the payments to give back."""
        lines = [line for line in self.history if line.what in (TO_REFUND, REFUNDED)]
        done = max((at for at, line in enumerate(lines) if line.what == REFUNDED), default=-1)
        intents = [line.detail.partition(":")[0].strip() for line in lines[done + 1 :]]
        return (lines[-1].id if lines else 0), [each for each in intents if each]

    @property
    def advice(self) -> str:
        """What support may do next, in the verbs of the command line; empty if nothing is to do."""
        code = self.reservation.code
        if self.is_owed:
            return f"give the money back: relevo cars refund {code}"
        if not self.is_stuck:
            return ""
        confirm = f"relevo cars confirm {code} --confirmation NUMBER"
        if not self.is_held:
            return f"relevo cars retry {code}, {confirm}, or relevo cars cancel {code}"
        retry = f"relevo cars retry {code}" + ("" if self.can_ask else " --not-booked")
        return f"the supplier may have this booking: look there, then {confirm} or {retry}"

    @property
    def is_held(self) -> bool:
        return self.job is not None and self.job.state is State.HELD


class Support:
    """The verbs, at a desk that knows how far each person may go.

    `askable` are the suppliers that can be asked whether they have a booking, `cancellable` those
    that take a message that cancels one.
    """

    def __init__(
        self,
        rows: Records,
        desk: Desk,
        askable: Collection[int] = (),
        cancellable: Collection[int] = (),
    ) -> None:
        self._rows = rows
        self._desk = desk
        self._askable = askable
        self._cancellable = cancellable

    async def counts(self) -> dict[str, int]:
        """How many reservations there are of each status, STUCK and TO_REFUND among them."""
        await self._catch_up()
        async with self._rows.transaction() as tx:
            found = await records.counts(tx)
            for status in (STUCK, TO_REFUND):
                number = select(func.count()).select_from(Reservation).where(_is(status))
                found[status] = await tx.scalar(number) or 0
            return found

    async def ls(
        self, *, status: str | None = None, text: str = "", before: str | None = None
    ) -> list[Reservation]:
        """Reservations, newest first; `text` is a code, an e-mail or a supplier's number.

        STUCK are paid and wait for a person; TO_REFUND have money to be given back.
        """
        if status is not None and status not in STATUSES:
            raise DefinitionError(f"a status is one of {', '.join(STATUSES)}")
        query = select(Reservation).order_by(Reservation.created_at.desc(), Reservation.code)
        if status == STUCK:
            await self._catch_up()
        if status is not None:
            query = query.where(_is(status))
        if text := text.strip()[:254]:
            query = query.where(
                or_(
                    Reservation.code == text.upper(),
                    Reservation.email == text,
                    Reservation.supplier_reservation_code == text,
                )
            )
        async with self._rows.transaction() as tx:
            last = await tx.get(Reservation, before) if before else None
            if last is not None:
                at = Reservation.created_at
                is_twin = and_(at == last.created_at, Reservation.code > last.code)
                query = query.where(or_(at < last.created_at, is_twin))
            return list((await tx.scalars(query.limit(PAGE))).all())

    async def orders(self, codes: Sequence[str]) -> dict[str, tuple[str, str]]:
        """How the orders of these reservations stand, and why: HELD, PARKED, DEAD, …"""
        async with self._rows.transaction() as tx:
            events = await tx.scalars(
                select(OutboxEvent).where(OutboxEvent.reservation_code.in_(codes))
            )
            dead = await tx.scalars(
                select(OutboxDeadLetter).where(OutboxDeadLetter.reservation_code.in_(codes))
            )
            found = {each.reservation_code: (each.status, _why(each)) for each in events}
            return found | {each.reservation_code: ("DEAD", each.reason) for each in dead}

    async def _catch_up(self) -> None:
        """Mirror the orders of which no run has told for a while.

        The run may have been killed, or the order cancelled on a page that knows no reservations.
        """
        query = (
            select(OutboxEvent.reservation_code)
            .where(
                OutboxEvent.status.in_(("PENDING", "PROCESSING", "PARKED")),
                OutboxEvent.updated_at < self._rows.now() - SILENCE,
            )
            .order_by(OutboxEvent.updated_at)
            .limit(PAGE)
        )
        async with self._rows.transaction() as tx:
            codes = (await tx.scalars(query)).all()
        with suppress(StoreUnavailable):  # then the rows as they stand are better than none
            for code in codes:
                await mirror(self._rows, code)

    async def show(self, code: str) -> Case:
        """One reservation in full, as it stands this moment."""
        if not is_code(code):
            raise NotFoundError("there is no such reservation")
        await mirror(self._rows, code)
        async with self._rows.transaction() as tx:
            reservation = await tx.get(Reservation, code)
            if reservation is None:
                raise NotFoundError(f"there is no reservation {code!r:.40}")
            history = await tx.scalars(
                select(History).where(History.reservation_code == code).order_by(History.id)
            )
            requests = await tx.scalars(
                select(SupplierRequest)
                .where(SupplierRequest.reservation_code == code)
                .order_by(SupplierRequest.id)
            )
            event = await tx.scalar(select(OutboxEvent).where(OutboxEvent.reservation_code == code))
            dead = await tx.scalar(
                select(OutboxDeadLetter).where(OutboxDeadLetter.reservation_code == code)
            )
            case = (reservation, history.all(), requests.all(), event, dead)
        id = event.id if event is not None else dead.id if dead is not None else None
        [job] = [None] if id is None else await self._rows.relevo.store.find([id])
        id = reservation.supplier_id
        return Case(*case, job, id in self._askable, id in self._cancellable)

    async def retry(self, code: str, by: Person, note: str, *, not_booked: bool = False) -> Case:
        """Have the supplier asked again.

        An order that is held may have been booked: if the supplier cannot be asked, whoever
        retries it says that it was not.
        """
        case = await self._stuck(code)
        if case.job is None:
            raise MisuseError("the order of this reservation is gone; confirm or cancel it")
        if case.is_held and not (not_booked or case.can_ask):
            raise MisuseError(
                f"the supplier may have this booking: look there first, then `relevo cars retry "
                f"{code} --not-booked` or `relevo cars confirm {code} --confirmation NUMBER`"
            )
        if case.is_held and not_booked:
            await self._desk.deny_effect(case.job.id, EFFECT, by, note)
        else:
            await self._desk.retry([case.job.id], by, note)
        return await self._wrote(code, by, "SUPPORT_RETRY", note)

    async def confirm(self, code: str, confirmation: str, by: Person, note: str) -> Case:
        """The supplier has it, under this number: the reservation is confirmed."""
        number = confirmation.strip()
        if not _CONFIRMATION.fullmatch(number):
            raise DefinitionError("a supplier's number has 1 to 64 letters, digits and . _ : / # -")
        case = await self._stuck(code)
        signed = by.acts("confirm_effect", note)
        at = self._rows.now()
        async with self._rows.transaction() as tx:
            if await records.move(
                tx,
                code,
                [Status.PAID],
                Status.CONFIRMED,
                at,
                supplier_reservation_code=number,
                confirmed_at=at,
            ):
                records.note(tx, code, at, "CONFIRMED", f"{number}, by {signed.who}: {note}")
            event = None if case.job is None else await records.revive(tx, case.job.id)
            if event is not None:
                records.close(event, at)
        if case.job is not None:
            await self._settle(case.job, number, by, note)
        return await self.show(code)

    async def _settle(self, job: Job, number: str, by: Person, note: str) -> None:
        """Let the engine know: the effect happened, and its job has nothing left to do."""
        try:
            await self._desk.confirm_effect(job.id, EFFECT, number, by, note)
        except NotFoundError:  # it was never even tried
            await self._desk.discard([job.id], by, note or f"confirmed as {number}")

    async def cancel(
        self,
        code: str,
        by: Person,
        note: str,
        *,
        at_supplier: bool = False,
        not_booked: bool = False,
        number: str = "",
    ) -> Case:
        """Give a reservation up; one that was paid is marked for its money to be given back.

        The supplier may hold the car of an order that is held: it is cancelled there too, or the
        caller says that it is not there.
        """
        case = await self.show(code)
        signed = by.acts("cancel", note)
        if case.reservation.status != Status.PENDING and not case.is_stuck:
            raise MisuseError(f"{code} is {case.reservation.status}, and not stuck")
        if case.is_held and not (at_supplier or not_booked):
            raise MisuseError(
                f"the supplier may hold the car of {code}: cancel it there too with "
                "--at-supplier, or look there and cancel with --not-booked"
            )
        if at_supplier and not case.can_cancel:
            raise MisuseError(
                "this supplier takes no message that cancels: cancel the car there by hand, then "
                "cancel with --not-booked"
            )
        number = number.strip()
        if at_supplier and not (case.can_ask or number):
            raise MisuseError(
                "this supplier cannot be asked by our code: give its number with --confirmation"
            )
        if number and not _CONFIRMATION.fullmatch(number):
            raise DefinitionError("a supplier's number has 1 to 64 letters, digits and . _ : / # -")
        at = self._rows.now()
        if case.job is not None and case.job.state in (State.DEAD, State.HELD):
            await self._desk.discard([case.job.id], by, note or "the reservation was cancelled")
        was = [Status(case.reservation.status)]
        async with self._rows.transaction() as tx:
            if await records.move(tx, code, was, Status.CANCELLED, at):
                records.note(tx, code, at, "CANCELLED", f"by {signed.who}: {note}")
                if was == [Status.PAID]:
                    intent = case.reservation.payment_intent or ""
                    records.note(tx, code, at, "TO_REFUND", intent)
                if at_supplier:
                    order = CancelBooking(code, case.reservation.supplier_id, number)
                    await self._rows.relevo.enqueue(order, tx=tx)
        return await self.show(code)

    async def refund(self, code: str, by: Person, note: str) -> Case:
        """Have the customer's money given back at Stripe, once."""
        signed = by.acts("cancel", note)
        case = await self.show(code)
        line, intents = case.owed
        if not case.is_owed or not intents:
            raise MisuseError(f"no money of {code} is to be given back")
        async with self._rows.transaction() as tx:
            receipt = await self._rows.relevo.enqueue(Refund(code, line, intents), tx=tx)
            if receipt.is_new:
                said = f"by {signed.who}: {note}"
                records.note(tx, code, self._rows.now(), "REFUND_ORDERED", said)
        return await self.show(code)

    async def refunded(self, code: str, by: Person, note: str) -> Case:
        """The money was given back, by hand and at Stripe: nobody has to think of it any more."""
        by.acts("cancel", note)
        if not (await self.show(code)).is_owed:
            raise MisuseError(f"no money of {code} is to be given back")
        return await self._wrote(code, by, REFUNDED, note)

    async def _stuck(self, code: str) -> Case:
        case = await self.show(code)
        if not case.is_stuck:
            state = "" if case.job is None else f" and its order is {case.job.state}"
            raise MisuseError(f"{code} is {case.reservation.status}{state}: nothing to decide")
        return case

    async def _wrote(self, code: str, by: Person, what: str, note: str) -> Case:
        async with self._rows.transaction() as tx:
            records.note(tx, code, self._rows.now(), what, f"by {by.name}: {note}")
        return await self.show(code)


def _why(event: OutboxEvent) -> str:
    """Why an order waits; nothing of one that is done."""
    return "" if event.status == "DONE" else event.last_error or ""


def _is(status: str) -> ColumnElement[bool]:
    """Whether a reservation is one of those that a list calls so."""
    if status == TO_REFUND:
        return Reservation.code.in_(_owed())
    if status != STUCK:
        return Reservation.status == status
    at_rest = OutboxEvent.status.in_(("HELD", "CANCELLED"))
    held = select(OutboxEvent.reservation_code).where(at_rest)
    dead = select(OutboxDeadLetter.reservation_code)
    is_over = or_(Reservation.code.in_(held), Reservation.code.in_(dead))
    return and_(Reservation.status == Status.PAID, is_over)


def _owed() -> Select[str]:
    """The codes whose last word about money is that it is to be given back."""
    last = func.max(History.id)
    told = (
        select(last)
        .where(History.what.in_((TO_REFUND, REFUNDED)))
        .group_by(History.reservation_code)
    )
    return select(History.reservation_code).where(History.id.in_(told), History.what == TO_REFUND)
