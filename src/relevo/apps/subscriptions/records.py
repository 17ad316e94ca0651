"""The jobs of subscriptions and their three flags, and what failed for good."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    DateTime,
    Integer,
    String,
    Text,
    and_,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from relevo import Relevo
from relevo.apps.tables import add_row


class Base(DeclarativeBase):
    """The tables of subscriptions."""


class StripeJob(Base):
    """One subscription on its way to three integrations; its flags are true once, and stay so."""

    __tablename__ = "stripe_jobs"
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    event_id: Mapped[str] = mapped_column(String(255), unique=True)
    subscription_id: Mapped[str] = mapped_column(String(255))
    email: Mapped[str] = mapped_column(String(254))
    name: Mapped[str] = mapped_column(String(200))
    plan: Mapped[str] = mapped_column(String(200))
    amount: Mapped[int] = mapped_column(BigInteger)  # in the minor unit
    currency: Mapped[str] = mapped_column(String(3))
    email_sent: Mapped[bool] = mapped_column(Boolean, default=False)
    list_added: Mapped[bool] = mapped_column(Boolean, default=False)
    list_skipped: Mapped[bool] = mapped_column(Boolean, default=False)  # unsubscribed long ago
    spreadsheet_saved: Mapped[bool] = mapped_column(Boolean, default=False)
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))


class StripeFailure(Base):
    """An entry of a stream that failed for good; it was acknowledged, and stays here."""

    __tablename__ = "stripe_job_failures"
    stream: Mapped[str] = mapped_column(String(100), primary_key=True)
    entry_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    job_id: Mapped[str] = mapped_column(String(255), index=True)
    error: Mapped[str] = mapped_column(Text)
    deliveries: Mapped[int] = mapped_column(Integer)
    failed_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    retried_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    closed_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))  # it succeeded


class Records:
    """The questions that workers and the panel ask."""

    def __init__(self, relevo: Relevo) -> None:
        self._relevo = relevo

    async def answer(self) -> None:
        """Return if the database answers; StoreUnavailable if it does not."""
        async with self._relevo.transaction() as tx:
            await tx.execute(select(1))

    async def job(self, id: str) -> StripeJob | None:
        async with self._relevo.transaction() as tx:
            return await tx.get(StripeJob, id)

    async def jobs(self, limit: int = 100) -> list[StripeJob]:
        async with self._relevo.transaction() as tx:
            found = await tx.scalars(select(StripeJob).order_by(StripeJob.id.desc()).limit(limit))
            return list(found)

    async def jobs_of(self, ids: Sequence[str]) -> dict[str, StripeJob]:
        found: dict[str, StripeJob] = {}
        async with self._relevo.transaction() as tx:
            for start in range(0, len(ids), 500):
                part = select(StripeJob).where(StripeJob.id.in_(ids[start : start + 500]))
                found |= {job.id: job for job in await tx.scalars(part)}
        return found

    async def failures(self, limit: int = 100) -> list[StripeFailure]:
        """The entries whose integration has not succeeded since, newest first."""
        still = select(StripeFailure).where(StripeFailure.closed_at.is_(None))
        newest = still.order_by(StripeFailure.failed_at.desc()).limit(limit)
        async with self._relevo.transaction() as tx:
            return list(await tx.scalars(newest))

    async def retried(self, stream: str, job_id: str) -> None:
        """Write down that a person has ordered again what failed."""
        async with self._relevo.transaction() as tx:
            await tx.execute(
                update(StripeFailure)
                .where(_still_failed(stream, job_id))
                .values(retried_at=datetime.now(UTC))
            )

    async def fail(
        self, stream: str, entry_id: str, job_id: str, error: str, deliveries: int
    ) -> None:
        row = {
            "stream": stream,
            "entry_id": entry_id,
            "job_id": job_id.replace("\0", "\ufffd")[:255],
            "error": error[:2_000],
            "deliveries": deliveries,
            "failed_at": datetime.now(UTC),
        }
        async with self._relevo.transaction() as tx:
            await add_row(tx, StripeFailure, row)

    async def mark(self, job_id: str, flag: str, stream: str) -> None:
        async with self._relevo.transaction() as tx:
            await mark(tx, job_id, flag, stream)


@asynccontextmanager
async def open_records(relevo: Relevo) -> AsyncGenerator[Records]:
    yield Records(relevo)


async def add_job(tx: AsyncSession, job: dict[str, Any]) -> bool:
    """Keep a job; False when its event has one already."""
    return await add_row(tx, StripeJob, {**job, "created_at": datetime.now(UTC)})


async def mark(tx: AsyncSession, job_id: str, flag: str, stream: str) -> None:
    """Set one of the flags, and close the failures of its integration."""
    await tx.execute(update(StripeJob).where(StripeJob.id == job_id).values({flag: True}))
    await tx.execute(
        update(StripeFailure)
        .where(_still_failed(stream, job_id))
        .values(closed_at=datetime.now(UTC))
    )


def _still_failed(stream: str, job_id: str) -> ColumnElement[bool]:
    return and_(
        StripeFailure.stream == stream,
        StripeFailure.job_id == job_id,
        StripeFailure.closed_at.is_(None),
    )
