"""The hotel's rows in the application's own database."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, TypeVar, cast

import msgspec
from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    MetaData,
    String,
    Table,
    Text,
    case,
    func,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from relevo import Context, Relevo
from relevo.apps.hotel import booking, names
from relevo.apps.hotel.queues import SaveBooking
from relevo.apps.hotel.records import (
    PAGE,
    CmEvent,
    Conversation,
    Guest,
    Message,
    Reservation,
    conversation_of,
    details_of,
    event_of,
    guest_of,
    status_of,
)
from relevo.apps.hotel.settings import Mode

T = TypeVar("T", bound=msgspec.Struct)

_MOMENTS = frozenset(
    {
        "created_at",
        "last_at",
        "last_seen_at",
        "modified_at",
        "received_at",
        "sent_at",
        "updated_at",
    }
)


def _table(name: str, kind: type[msgspec.Struct], meta: MetaData) -> Table:
    """The columns of a Struct; the revisions say how they are made."""
    columns: list[Column[Any]] = []
    for field in msgspec.structs.fields(kind):
        if field.name in _MOMENTS:
            columns.append(Column(field.name, BigInteger))
        elif field.name in ("changes", "details"):
            columns.append(Column(field.name, JSON))
        elif field.name == "content":
            columns.append(Column(field.name, Text))
        else:
            columns.append(Column(field.name, String, primary_key=field.name == "id"))
    return Table(name, meta, *columns)


meta = MetaData()
# "reservations" is the cars' in a database that both share; the other names are the seed's own.
reservations = _table("hotel_reservations", Reservation, meta)
cm_events = _table("cm_events", CmEvent, meta)
messages = _table("messages", Message, meta)
conversations = _table("conversations", Conversation, meta)
guests = _table("guests", Guest, meta)
TABLES = {
    "reservations": reservations,
    "cm_events": cm_events,
    "messages": messages,
    "conversations": conversations,
    "guests": guests,
}


class SqlWriter:
    """Writes in an open transaction."""

    def __init__(self, tx: AsyncSession, mode: Mode) -> None:
        self._tx = tx
        self._mode: Mode = mode

    async def booking(self, change: SaveBooking, now: int) -> bool:
        event = names.scoped(change.hotel_id, change.event_id)
        if change.change_id in (await self._changes(event) or ()):
            return False
        status = await self._follow(change, now)
        return await self._tell(event_of(change, status, now))

    async def _changes(self, event: str) -> dict[str, Any] | None:
        """The changes told under an event id, locked; None when there is no such event."""
        query = select(cm_events.c.changes).where(cm_events.c.id == event).with_for_update()
        return (await self._tx.execute(query)).scalar_one_or_none()

    async def _tell(self, event: CmEvent) -> bool:
        """Keep an event, or add its change to the event that is there."""
        if await self._insert(cm_events, event):
            return True
        known = await self._changes(event.id) or {}
        if event.changes.keys() <= known.keys():
            return False
        both = {"changes": {**known, **event.changes}, "received_at": event.received_at}
        await self._tx.execute(update(cm_events).where(cm_events.c.id == event.id).values(both))
        return True

    async def _follow(self, change: SaveBooking, now: int) -> str:
        """Let the reservation follow a change; gives the status that the change led to."""
        id = names.scoped(change.hotel_id, change.booking_id)
        row = select(reservations).where(reservations.c.id == id).with_for_update()
        found = (await self._tx.execute(row)).mappings().first()
        if found is None:
            standing = booking.follow(None, change.status, change.modified_at)
            made = Reservation(
                id=id,
                hotel_id=change.hotel_id,
                booking_id=change.booking_id,
                status=cast("booking.Standing", standing).status,
                modified_at=change.modified_at,
                via=change.via,
                created_at=now,
                updated_at=now,
                **details_of({}, change),
            )
            if await self._insert(reservations, made):
                return made.status
            found = (await self._tx.execute(row)).mappings().one()
        known = booking.Standing(found["status"], found["modified_at"])
        standing = booking.follow(known, change.status, change.modified_at)
        if standing is None:
            return status_of(change, known.status)
        changes = {"status": standing.status, "modified_at": standing.at, "updated_at": now}
        changes |= details_of(found["details"], change)
        await self._tx.execute(
            update(reservations).where(reservations.c.id == id).values(**changes)
        )
        return standing.status

    async def message(self, message: Message, guest_name: str = "") -> bool:
        if not await self._insert(messages, message):
            return False
        await self._meet(guest_of(message, guest_name))
        await self._talk(conversation_of(message, guest_name, self._mode))
        return True

    async def _meet(self, guest: Guest) -> None:
        await self._tx.execute(_meeting(self._dialect), msgspec.structs.asdict(guest))

    async def _talk(self, talk: Conversation) -> None:
        await self._tx.execute(_talking(self._dialect), msgspec.structs.asdict(talk))

    async def _insert(self, table: Table, row: msgspec.Struct) -> bool:
        statement = _inserting(table, self._dialect)
        done = await self._tx.execute(statement, msgspec.structs.asdict(row))
        return cast("Any", done).rowcount == 1

    @property
    def _dialect(self) -> str:
        return self._tx.get_bind().dialect.name


# Statements, each made once: to build one costs more than to run it.


def _made(table: Table, dialect: str) -> Any:
    return sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)


@cache
def _inserting(table: Table, dialect: str) -> Any:
    return _made(table, dialect).on_conflict_do_nothing(index_elements=["id"])


@cache
def _meeting(dialect: str) -> Any:
    made = _made(guests, dialect)
    new, old = made.excluded, guests.c
    changes = {
        "name": case((new.name != "", new.name), else_=old.name),
        "last_seen_at": case(
            (new.last_seen_at > old.last_seen_at, new.last_seen_at), else_=old.last_seen_at
        ),
    }
    return made.on_conflict_do_update(index_elements=["id"], set_=changes)


@cache
def _talking(dialect: str) -> Any:
    """A conversation never moves back in time, and whoever answers it stays."""
    made = _made(conversations, dialect)
    new, old = made.excluded, conversations.c
    is_newer = new.last_at >= old.last_at
    changes = {
        name: case((is_newer, new[name]), else_=old[name])
        for name in ("last_text", "last_direction", "last_at")
    }
    for name in ("guest_name", "booking_id"):
        changes[name] = case((new[name] != "", new[name]), else_=old[name])
    return made.on_conflict_do_update(index_elements=["id"], set_=changes)


class SqlRecords:
    """The rows of the application's own database."""

    def __init__(self, relevo: Relevo, mode: Mode) -> None:
        self._relevo = relevo
        self._mode: Mode = mode

    @asynccontextmanager
    async def saving(self, ctx: Context) -> AsyncGenerator[SqlWriter]:
        async with ctx.transaction() as tx:
            yield SqlWriter(tx, self._mode)

    def within(self, tx: AsyncSession) -> SqlWriter:
        return SqlWriter(tx, self._mode)

    async def has_message(self, id: str) -> bool:
        return await self.message_of(id) is not None

    async def message_of(self, id: str) -> Message | None:
        return await self._one(messages, Message, id)

    async def conversation(self, hotel: str, id: str) -> Conversation | None:
        return await self._one(conversations, Conversation, names.scoped(hotel, id))

    async def reservation(self, hotel: str, id: str) -> Reservation | None:
        return await self._one(reservations, Reservation, names.scoped(hotel, id))

    async def set_mode(self, hotel: str, id: str, mode: Mode) -> bool:
        change = update(conversations).where(conversations.c.id == names.scoped(hotel, id))
        async with self._relevo.transaction() as tx:
            return cast("Any", await tx.execute(change.values(mode=mode))).rowcount == 1

    async def reservations(self, hotel: str | None, limit: int = PAGE) -> list[Reservation]:
        return await self._newest(reservations, Reservation, "updated_at", hotel, limit)

    async def events(self, hotel: str | None, limit: int = PAGE) -> list[CmEvent]:
        return await self._newest(cm_events, CmEvent, "received_at", hotel, limit)

    async def conversations(self, hotel: str | None, limit: int = PAGE) -> list[Conversation]:
        return await self._newest(conversations, Conversation, "last_at", hotel, limit)

    async def messages(self, hotel: str, conversation: str, limit: int = 200) -> list[Message]:
        columns = messages.c
        query = (
            select(messages)
            .where(columns.hotel_id == hotel, columns.conversation_id == conversation)
            .order_by(columns.sent_at.desc(), columns.received_at.desc(), columns.id)
            .limit(limit)
        )
        return (await self._rows(query, Message))[::-1]

    async def count(self, table: str) -> int:
        async with self._relevo.database.reading() as tx:
            found = await tx.execute(select(func.count()).select_from(TABLES[table]))
            return found.scalar_one()

    async def _one(self, table: Table, kind: type[T], id: str) -> T | None:
        found = await self._rows(select(table).where(table.c.id == id), kind)
        return found[0] if found else None

    async def _newest(
        self, table: Table, kind: type[T], by: str, hotel: str | None, limit: int
    ) -> list[T]:
        query = select(table).order_by(table.c[by].desc(), table.c.id).limit(limit)
        if hotel is not None:
            query = query.where(table.c.hotel_id == hotel)
        return await self._rows(query, kind)

    async def _rows(self, query: Any, kind: type[T]) -> list[T]:
        async with self._relevo.database.reading() as tx:
            found = (await tx.execute(query)).mappings().all()
        return [kind(**row) for row in found]
