"""The tables of expenses, and the few questions asked of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import date, datetime
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Date,
    DateTime,
    ForeignKey,
    Integer,
    String,
    Text,
    UniqueConstraint,
    func,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from relevo import Relevo
from relevo.apps.expenses.queues import Incoming, Status
from relevo.apps.expenses.rules import ALL, Change, Region, Spent
from relevo.apps.expenses.rules.text import fold
from relevo.ids import derived_id

RANK = {"sent": 1, "delivered": 2, "read": 3, "played": 3, "failed": 9}


class Base(DeclarativeBase):
    """The tables of expenses."""


class User(Base):
    """A person who writes to us; known by the id within our business, or by their number."""

    __tablename__ = "expense_users"
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    user_id: Mapped[str | None] = mapped_column(String(160), unique=True)
    wa_id: Mapped[str | None] = mapped_column(String(20), unique=True)
    name: Mapped[str] = mapped_column(String(100))
    country: Mapped[str] = mapped_column(String(2))
    language: Mapped[str] = mapped_column(String(2))
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    asked_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))  # something back


class Category(Base):
    """What money goes to."""

    __tablename__ = "expense_categories"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    slug: Mapped[str] = mapped_column(String(40), unique=True)


class Expense(Base):
    """Money that was spent; one that was taken back stays, with the moment it was."""

    __tablename__ = "expenses"
    __table_args__ = (UniqueConstraint("message_id", "position"),)
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    user: Mapped[str] = mapped_column(ForeignKey("expense_users.id"))
    category: Mapped[int] = mapped_column(ForeignKey("expense_categories.id"))
    message_id: Mapped[str] = mapped_column(String(255))
    position: Mapped[int] = mapped_column(Integer)  # among those of its message, from 0
    cents: Mapped[int] = mapped_column(BigInteger)
    currency: Mapped[str] = mapped_column(String(3))
    description: Mapped[str] = mapped_column(String(200))
    spent_on: Mapped[date] = mapped_column(Date)
    read_by: Mapped[str] = mapped_column(String(10))  # rules, gemini
    sent_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    deleted_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))


class Processed(Base):
    """A message that has had its effect; it never has it again."""

    __tablename__ = "processed_messages"
    message_id: Mapped[str] = mapped_column(String(255), primary_key=True)
    kind: Mapped[str] = mapped_column(String(40))
    outcome: Mapped[str] = mapped_column(String(20))
    processed_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))


class Answer(Base):
    """What we reply to a message, and how that is getting on."""

    __tablename__ = "expense_replies"
    id: Mapped[str] = mapped_column(String(255), primary_key=True)  # the message replied to
    phone_number_id: Mapped[str] = mapped_column(String(20))
    recipient: Mapped[str] = mapped_column(String(160))
    body: Mapped[str] = mapped_column(Text)
    tried_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    wamid: Mapped[str | None] = mapped_column(String(255))
    status: Mapped[str | None] = mapped_column(String(20))
    error: Mapped[str | None] = mapped_column(String(20))


class Row(NamedTuple):
    """An expense as pages and exports show it."""

    id: str
    spent_on: date
    description: str
    category: str
    cents: int
    currency: str


class Edit(NamedTuple):
    """What a person made of an expense on their page."""

    cents: int
    currency: str
    category: str
    description: str
    spent_on: date


class Records:
    """Questions outside a job's own transaction, and what a person changes on their page."""

    def __init__(self, relevo: Relevo) -> None:
        self._relevo = relevo
        self.opened_at = self.now()

    def now(self) -> datetime:
        return self._relevo.clock.now()

    async def is_processed(self, message_id: str) -> bool:
        async with self._relevo.transaction() as tx:
            return await tx.get(Processed, message_id) is not None

    async def reply(self, id: str) -> Answer | None:
        async with self._relevo.transaction() as tx:
            return await tx.get(Answer, id)

    async def trying(self, id: str) -> None:
        """Before a reply leaves: from now on it may have been sent."""
        async with self._relevo.transaction() as tx:
            await tx.execute(update(Answer).where(Answer.id == id).values(tried_at=self.now()))

    async def not_tried(self, id: str) -> None:
        """After a reply that certainly did not leave: the silence begins with the next one."""
        async with self._relevo.transaction() as tx:
            await tx.execute(update(Answer).where(Answer.id == id).values(tried_at=None))

    async def user(self, id: str) -> User | None:
        async with self._relevo.transaction() as tx:
            return await tx.get(User, id)

    async def users(self, limit: int = 200) -> Sequence[Any]:
        """The people, those who wrote most lately first, with how many expenses they have."""
        count = func.count(Expense.id)
        latest = func.max(Expense.created_at)
        async with self._relevo.transaction() as tx:
            found = await tx.execute(
                select(User, count.label("count"), latest.label("latest"))
                .outerjoin(Expense, (Expense.user == User.id) & Expense.deleted_at.is_(None))
                .group_by(User.id)
                .order_by(latest.desc())
                .limit(limit)
            )
            return found.all()

    async def change(self, user: str, id: str, edit: Edit | None) -> bool:
        """Make an expense what its person made of it, or take it back; False if not theirs."""
        async with self._relevo.transaction() as tx:
            found = await tx.get(Expense, id, with_for_update=True)
            if found is None or found.user != user or found.deleted_at is not None:
                return False
            if edit is None:
                found.deleted_at = self.now()
                return True
            found.cents, found.currency = edit.cents, edit.currency
            found.description, found.spent_on = edit.description, edit.spent_on
            found.category = await category_id(tx, edit.category)
            return True

    async def rows(self, user: str, since: date, until: date) -> list[Row]:
        async with self._relevo.transaction() as tx:
            return await rows(tx, user, since, until)


@asynccontextmanager
async def open_records(relevo: Relevo) -> AsyncGenerator[Records]:
    yield Records(relevo)


# Inside the transaction of a message


async def upsert_user(
    tx: AsyncSession, message: Incoming, region: Region, language: str, now: datetime
) -> User:
    """The person who wrote. Whoever was known by number is the same when an id comes along."""
    by_id = by_number = None
    if message.user_id:
        by_id = await tx.scalar(select(User).where(User.user_id == message.user_id))
    if message.wa_id:
        by_number = await tx.scalar(select(User).where(User.wa_id == message.wa_id))
    if by_id is not None and by_number is not None and by_id.id != by_number.id:
        await tx.execute(update(Expense).where(Expense.user == by_number.id).values(user=by_id.id))
        await tx.delete(by_number)
        await tx.flush()
    user = by_id or by_number
    if user is None:
        user = User(
            id=derived_id(0, f"expenses/user/{message.sender}"),
            created_at=now,
            name="",
        )
        tx.add(user)
    user.country = region.country
    user.user_id = message.user_id or user.user_id
    user.wa_id = message.wa_id or user.wa_id
    user.name = message.name or user.name
    user.language = language
    await tx.flush()
    return user


async def category_id(tx: AsyncSession, slug: str) -> int:
    """The id of a category, which is made when it is first met."""
    is_sqlite = tx.get_bind().dialect.name == "sqlite"
    insert = sqlite.insert(Category) if is_sqlite else postgresql.insert(Category)
    await tx.execute(insert.values(slug=slug).on_conflict_do_nothing(index_elements=["slug"]))
    found = await tx.scalar(select(Category.id).where(Category.slug == slug))
    if found is None:
        raise LookupError(f"the category {slug} went away")
    return found


async def add_expense(
    tx: AsyncSession,
    user: User,
    message: Incoming,
    spent: Spent,
    read_by: str,
    times: Times,
    position: int = 0,
) -> None:
    place = f"/{position}" if position else ""
    tx.add(
        Expense(
            id=derived_id(0, f"expenses/{message.id}{place}"),
            user=user.id,
            category=await category_id(tx, spent.category),
            message_id=message.id,
            position=position,
            cents=int(spent.amount * 100),
            currency=spent.currency,
            description=spent.description[:200],
            spent_on=spent.on,
            read_by=read_by,
            sent_at=times.sent_at,
            created_at=times.now,
        )
    )


class Times(NamedTuple):
    """When a message was written, and now."""

    sent_at: datetime
    now: datetime


LATELY = 50


async def lately(tx: AsyncSession, user: User, times: Times) -> Sequence[Expense]:
    """The latest expenses that were written before this was asked, the last one first."""
    found = await tx.scalars(
        select(Expense)
        .where(
            Expense.user == user.id,
            Expense.deleted_at.is_(None),
            Expense.sent_at <= times.sent_at,
        )
        .order_by(
            Expense.sent_at.desc(),
            Expense.created_at.desc(),
            Expense.message_id.desc(),
            Expense.position.desc(),
        )
        .limit(LATELY)
    )
    return found.all()


def meant(latest: Sequence[Expense], target: str) -> list[Expense]:
    """Those that a target means: a number or ALL of the last message, else the latest that is
    called so; several when it is not clear which, and all of the last message when it is empty."""
    last = [each for each in latest if each.message_id == latest[0].message_id][::-1]
    if target in ("", ALL):
        return last
    if target.isdigit():
        return [each for each in last if each.position == int(target) - 1]
    called = [each for each in latest if _is_called(each, target)]
    ours = [each for each in last if each in called]
    return ours or called[:1]


def _is_called(expense: Expense, target: str) -> bool:
    words = fold(expense.description).split()
    return all(word in words for word in target.split())


async def apply(tx: AsyncSession, expense: Expense, change: Change) -> None:
    """Make an expense what a correction says."""
    if change.amount is not None:
        expense.cents = int(change.amount * 100)
    expense.currency = change.currency or expense.currency
    expense.spent_on = change.on or expense.spent_on
    if change.category:
        expense.category = await category_id(tx, change.category)


async def as_row(tx: AsyncSession, expense: Expense) -> Row:
    slug = await tx.scalar(select(Category.slug).where(Category.id == expense.category))
    day, text = expense.spent_on, expense.description
    return Row(expense.id, day, text, slug or "other", expense.cents, expense.currency)


async def rows(tx: AsyncSession, user: str, since: date, until: date) -> list[Row]:
    """A person's expenses of some days, in the order of the days."""
    found = await tx.execute(
        select(
            Expense.id,
            Expense.spent_on,
            Expense.description,
            Category.slug,
            Expense.cents,
            Expense.currency,
        )
        .join(Category, Category.id == Expense.category)
        .where(
            Expense.user == user,
            Expense.deleted_at.is_(None),
            Expense.spent_on >= since,
            Expense.spent_on < until,
        )
        .order_by(Expense.spent_on, Expense.created_at, Expense.message_id, Expense.position)
        .limit(10_000)
    )
    return [Row(*each) for each in found]


async def record_statuses(tx: AsyncSession, statuses: Sequence[Status]) -> None:
    """Statuses come late, twice and out of order: they only ever rise, and `failed` is the end."""
    for status in sorted(statuses, key=lambda each: each.reply_id):
        answer = await tx.get(Answer, status.reply_id, with_for_update=True)
        if answer is None or RANK.get(status.status, 0) <= RANK.get(answer.status or "", 0):
            continue
        answer.status = status.status
        answer.error = status.error[:20] or answer.error
        answer.wamid = answer.wamid or status.wamid
