"""The car rental's tables, and the few questions asked of them.

`outbox_events` is the engine's job as support reads it: its id is the job's id, it is written in
the transaction that pays, by every run of the job, and in the transaction that confirms. What the
engine does alone (parking behind a breaker, rescuing, a person's retry) reaches it by `mirror`.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Date,
    DateTime,
    Integer,
    String,
    Text,
    delete,
    func,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from relevo import Relevo, SchemaMismatch, StoreUnavailable
from relevo.apps.cars.gateways import Booking, Driver
from relevo.apps.tables import is_data_error

BOOK_SUPPLIER = "BOOK_SUPPLIER"
LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # none that is taken for another
LENGTH = 10  # 50 bits: nobody guesses one
NO_MINOR = frozenset(
    {
        *("bif", "clp", "djf", "gnf", "jpy", "kmf", "krw", "mga"),
        *("pyg", "rwf", "ugx", "vnd", "vuv", "xaf", "xof", "xpf"),
    }
)
"""The currencies whose smallest unit is the unit itself."""
THOUSANDTHS = frozenset({"bhd", "jod", "kwd", "omr", "tnd"})
"""The currencies whose smallest unit is a thousandth."""

_NO_TABLE = ("no such table", "UndefinedTable")


class Status(StrEnum):
    """How far a reservation has come."""

    PENDING = "PENDING"
    PAID = "PAID"
    CONFIRMED = "CONFIRMED"
    CANCELLED = "CANCELLED"


class Moment(TypeDecorator[datetime]):
    """An aware UTC moment, also where the database knows no zones."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_result_value(self, value: datetime | None, dialect: Any) -> datetime | None:
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


class Base(DeclarativeBase):
    """The tables of the car rental."""


class Reservation(Base):
    """A reservation; pick-up and drop-off are local times at the office."""

    __tablename__ = "reservations"
    code: Mapped[str] = mapped_column(String(20), primary_key=True)
    supplier_id: Mapped[int] = mapped_column(Integer)
    status: Mapped[str] = mapped_column(String(12), index=True)
    pickup_datetime: Mapped[datetime] = mapped_column(DateTime)
    dropoff_datetime: Mapped[datetime] = mapped_column(DateTime)
    pickup_location: Mapped[str] = mapped_column(String(40))
    dropoff_location: Mapped[str] = mapped_column(String(40))
    first_name: Mapped[str] = mapped_column(String(100))
    last_name: Mapped[str] = mapped_column(String(100))
    email: Mapped[str] = mapped_column(String(254))
    phone: Mapped[str] = mapped_column(String(32))
    birth_date: Mapped[date] = mapped_column(Date)
    flight: Mapped[str] = mapped_column(String(12))
    amount: Mapped[int] = mapped_column(BigInteger)  # in the currency's smallest unit
    currency: Mapped[str] = mapped_column(String(3))
    supplier_specific_data: Mapped[dict[str, str]] = mapped_column(JSON)
    payment_intent: Mapped[str | None] = mapped_column(String(100), unique=True)
    payment_attempt: Mapped[int] = mapped_column(Integer)
    supplier_reservation_code: Mapped[str | None] = mapped_column(String(64), index=True)
    created_at: Mapped[datetime] = mapped_column(Moment, index=True)
    updated_at: Mapped[datetime] = mapped_column(Moment)
    paid_at: Mapped[datetime | None] = mapped_column(Moment)
    confirmed_at: Mapped[datetime | None] = mapped_column(Moment)

    @property
    def price(self) -> Decimal:
        """The amount in units, with the digits its currency has."""
        return Decimal(self.amount).scaleb(-digits(self.currency))

    def booking(self) -> Booking:
        """What a gateway needs of it."""
        return Booking(
            code=self.code,
            pickup_at=self.pickup_datetime,
            dropoff_at=self.dropoff_datetime,
            pickup_location=self.pickup_location,
            dropoff_location=self.dropoff_location,
            driver=Driver(self.first_name, self.last_name, self.email, self.phone, self.birth_date),
            flight=self.flight,
            amount=self.price,
            currency=self.currency.upper(),
            snapshot=self.supplier_specific_data,
        )


class History(Base):
    """What happened to a reservation, in order."""

    __tablename__ = "reservation_history"
    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    reservation_code: Mapped[str] = mapped_column(String(20), index=True)
    at: Mapped[datetime] = mapped_column(Moment)
    what: Mapped[str] = mapped_column(String(40))
    detail: Mapped[str] = mapped_column(Text)


class OutboxEvent(Base):
    """An order that waits to be carried out, or is."""

    __tablename__ = "outbox_events"
    id: Mapped[str] = mapped_column(String(32), primary_key=True)  # the job's
    event_type: Mapped[str] = mapped_column(String(40))
    reservation_code: Mapped[str] = mapped_column(String(20), index=True)
    payload: Mapped[dict[str, Any]] = mapped_column(JSON)
    status: Mapped[str] = mapped_column(String(12), index=True)
    attempts: Mapped[int] = mapped_column(Integer)
    next_attempt_at: Mapped[datetime | None] = mapped_column(Moment)
    locked_by: Mapped[str | None] = mapped_column(String(200))
    locked_at: Mapped[datetime | None] = mapped_column(Moment)
    last_error: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(Moment)
    updated_at: Mapped[datetime] = mapped_column(Moment)


class OutboxDeadLetter(Base):
    """An order that was given up, for support to act on."""

    __tablename__ = "outbox_dead_letters"
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    event_type: Mapped[str] = mapped_column(String(40))
    reservation_code: Mapped[str] = mapped_column(String(20), index=True)
    payload: Mapped[dict[str, Any]] = mapped_column(JSON)
    attempts: Mapped[int] = mapped_column(Integer)
    reason: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(Moment)
    dead_at: Mapped[datetime] = mapped_column(Moment)


class SupplierRequest(Base):
    """One call of a supplier, and how it ended."""

    __tablename__ = "supplier_requests"
    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    reservation_code: Mapped[str] = mapped_column(String(20), index=True)
    supplier_id: Mapped[int] = mapped_column(Integer)
    attempt: Mapped[int] = mapped_column(Integer)
    verb: Mapped[str] = mapped_column(String(8))  # book, find
    outcome: Mapped[str] = mapped_column(String(16))  # confirmed, refused, unavailable, uncertain …
    detail: Mapped[str] = mapped_column(Text)
    milliseconds: Mapped[int] = mapped_column(Integer)
    at: Mapped[datetime] = mapped_column(Moment)


class Records:
    """The tables, for whoever opens a transaction of their own."""

    def __init__(self, relevo: Relevo) -> None:
        self.relevo = relevo

    def now(self) -> datetime:
        return self.relevo.clock.now()

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[AsyncSession]:
        """A session; a database that does not answer is StoreUnavailable."""
        try:
            async with self.relevo.transaction() as tx:
                yield tx
        except IntegrityError:
            raise
        except (DBAPIError, OSError) as error:
            if is_data_error(error):
                raise
            if any(words in str(error) for words in _NO_TABLE):
                raise SchemaMismatch("cars has no tables here: run `relevo migrate`") from error
            raise StoreUnavailable("the database does not answer") from error

    async def create(self, reservation: Reservation) -> str:
        """Store a new reservation under a fresh code."""
        while True:
            reservation.code = new_code()
            try:
                async with self.transaction() as tx:
                    tx.add(reservation)
                    note(tx, reservation.code, self.now(), "PENDING")
                break
            except IntegrityError:
                continue  # the code is taken: once in a blue moon
        return reservation.code

    async def get(self, code: str) -> Reservation | None:
        async with self.transaction() as tx:
            return await tx.get(Reservation, code)

    async def log(self, request: SupplierRequest) -> None:
        """Write a call of a supplier down."""
        async with self.transaction() as tx:
            tx.add(request)


@asynccontextmanager
async def open_records(relevo: Relevo) -> AsyncGenerator[Records]:
    yield Records(relevo)


def digits(currency: str) -> int:
    """How many decimals a currency has at Stripe; its amounts are counted in the last of them."""
    return 0 if currency in NO_MINOR else 3 if currency in THOUSANDTHS else 2


def is_code(text: str) -> bool:
    """Whether it may be the code of a reservation: other text is not looked up."""
    return len(text) <= 20 and text.isascii() and text.isprintable()


def new_code() -> str:
    """RES- and ten characters that nobody guesses."""
    return "RES-" + "".join(secrets.choice(LETTERS) for _ in range(LENGTH))


def note(tx: AsyncSession, code: str, at: datetime, what: str, detail: str = "") -> None:
    """Add a line to a reservation's history."""
    tx.add(History(reservation_code=code, at=at, what=what, detail=detail[:2_000]))


# What happens to a reservation, always in somebody's transaction


async def move(
    tx: AsyncSession, code: str, was: Sequence[Status], to: Status, at: datetime, **values: Any
) -> bool:
    """Change a reservation's status if it is still one of `was`; False changes nothing."""
    changed = await tx.execute(
        update(Reservation)
        .where(Reservation.code == code, Reservation.status.in_(was))
        .values(status=to, updated_at=at, **values)
        .returning(Reservation.code)
    )
    return changed.scalar_one_or_none() is not None


async def ordered(tx: AsyncSession, id: str, code: str, supplier_id: int, at: datetime) -> None:
    """The outbox row of an order, in the transaction that gives it."""
    tx.add(
        OutboxEvent(
            id=id,
            event_type=BOOK_SUPPLIER,
            reservation_code=code,
            payload={"reservation_code": code, "supplier_id": supplier_id},
            status="PENDING",
            attempts=0,
            next_attempt_at=at,
            locked_by=None,
            locked_at=None,
            last_error=None,
            created_at=at,
            updated_at=at,
        )
    )


async def revive(tx: AsyncSession, id: str) -> OutboxEvent | None:
    """An order's row, brought back from the dead letters if it lies there."""
    event = await tx.get(OutboxEvent, id)
    dead = await tx.get(OutboxDeadLetter, id) if event is None else None
    if dead is not None:
        await ordered(tx, id, dead.reservation_code, dead.payload["supplier_id"], dead.created_at)
        await tx.execute(delete(OutboxDeadLetter).where(OutboxDeadLetter.id == id))
        await tx.flush()
        event = await tx.get(OutboxEvent, id)
    return event


def close(event: OutboxEvent, at: datetime) -> None:
    """Mark an order as carried out."""
    event.status, event.updated_at = "DONE", at
    event.locked_by = event.locked_at = event.next_attempt_at = None


async def bury(tx: AsyncSession, event: OutboxEvent, reason: str, at: datetime) -> None:
    """Move an order to the dead letters."""
    tx.add(
        OutboxDeadLetter(
            id=event.id,
            event_type=event.event_type,
            reservation_code=event.reservation_code,
            payload=event.payload,
            attempts=event.attempts,
            reason=reason[:2_000],
            created_at=event.created_at,
            dead_at=at,
        )
    )
    await tx.delete(event)
    note(tx, event.reservation_code, at, "DEAD_LETTER", reason)


async def counts(tx: AsyncSession) -> dict[str, int]:
    """How many reservations there are of each status."""
    rows = await tx.execute(select(Reservation.status, func.count()).group_by(Reservation.status))
    return {row[0]: row[1] for row in rows.all()}
