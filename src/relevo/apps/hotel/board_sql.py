"""The board without Redis: the same names, in the tables cm_lists and cm_keys.

The newest entry of a list has the highest id, as if it stood at the left; entries are taken from
the other end. Moving one is renaming its list.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

from sqlalchemy import (
    BigInteger,
    Column,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from relevo import Relevo
from relevo.apps.hotel import names
from relevo.apps.hotel.board import Pulse
from relevo.bridges.redis_list import Buried
from relevo.clock import milliseconds

meta = MetaData()
lists = Table(
    "cm_lists",
    meta,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("list", String),
    Column("entry", LargeBinary),
    Column("reason", String, default=""),
    Column("at", BigInteger, default=0),
)
keys = Table(
    "cm_keys",
    meta,
    Column("name", String, primary_key=True),
    Column("value", String),
    Column("expires_at", BigInteger),
)
ALL = 1_000_000
TIDY = 1_000  # rows of expired keys that a heartbeat takes away


class SqlQueue:
    """One hotel's list in the table."""

    def __init__(self, relevo: Relevo, hotel: str) -> None:
        self._relevo = relevo
        self._name = names.events(hotel)
        self._processing = names.processing(hotel)
        self._dead = names.dead(hotel)

    async def push(self, entries: Sequence[bytes]) -> None:
        if entries:
            rows = [{"list": self._name, "entry": entry} for entry in entries]
            async with self._relevo.transaction() as tx:
                await tx.execute(insert(lists), rows)

    async def left(self, most: int) -> list[bytes]:
        query = select(lists.c.entry).where(lists.c.list == self._processing)
        async with self._relevo.database.reading() as tx:
            found = await tx.execute(query.order_by(lists.c.id).limit(most))
            return [bytes(entry) for entry in found.scalars()]

    async def take(self, most: int) -> list[bytes]:
        async with self._relevo.transaction() as tx:
            oldest = (
                select(lists.c.id, lists.c.entry)
                .where(lists.c.list == self._name)
                .order_by(lists.c.id)
                .limit(most)
                .with_for_update(skip_locked=True)
            )
            found = (await tx.execute(oldest)).all()
            if found:
                ids = [id for id, _ in found]
                moved = update(lists).where(lists.c.id.in_(ids)).values(list=self._processing)
                await tx.execute(moved)
        return [bytes(entry) for _, entry in found]

    async def done(self, entries: Sequence[bytes]) -> None:
        async with self._relevo.transaction() as tx:
            for entry in entries:
                await self._remove(tx, entry)

    async def bury(self, entry: bytes, reason: str) -> None:
        now = await self._relevo.time.now()
        async with self._relevo.transaction() as tx:
            await self._remove(tx, entry)
            row = {"list": self._dead, "entry": entry, "reason": reason[:500], "at": now}
            await tx.execute(insert(lists), [row])

    async def _remove(self, tx: AsyncSession, entry: bytes) -> None:
        oldest = (
            select(func.min(lists.c.id))
            .where(lists.c.list == self._processing, lists.c.entry == entry)
            .scalar_subquery()
        )
        await tx.execute(delete(lists).where(lists.c.id == oldest))

    async def buried(self, most: int = 50) -> list[Buried]:
        query = select(lists.c.entry, lists.c.reason, lists.c.at).where(lists.c.list == self._dead)
        async with self._relevo.database.reading() as tx:
            found = (await tx.execute(query.order_by(lists.c.id.desc()).limit(most))).all()
        return [Buried(bytes(entry), reason, at / 1000) for entry, reason, at in found]

    async def find(self, id: str) -> Buried | None:
        found = await self.buried(ALL)
        return next((each for each in found if each.id == id), None)

    async def revive(self, id: str, instead: bytes | None = None) -> bool:
        async with self._relevo.transaction() as tx:
            for number, entry in await self._dead_rows(tx):
                if names.fingerprint(entry) == id:
                    return await self._settle(tx, number, entry if instead is None else instead)
        return False

    async def revive_all(self) -> int:
        async with self._relevo.transaction() as tx:
            rows = await self._dead_rows(tx)
            return sum([await self._settle(tx, number, entry) for number, entry in rows])

    async def discard(self, id: str) -> bool:
        async with self._relevo.transaction() as tx:
            for number, entry in await self._dead_rows(tx):
                if names.fingerprint(entry) == id:
                    return await self._settle(tx, number, None)
        return False

    async def _dead_rows(self, tx: AsyncSession) -> list[tuple[int, bytes]]:
        query = select(lists.c.id, lists.c.entry).where(lists.c.list == self._dead)
        found = (await tx.execute(query.order_by(lists.c.id))).all()
        return [(number, bytes(entry)) for number, entry in found]

    async def _settle(self, tx: AsyncSession, number: int, back: bytes | None) -> bool:
        """Take a row off the dead list; False when another process has just done so."""
        gone = (
            cast("Any", await tx.execute(delete(lists).where(lists.c.id == number))).rowcount == 1
        )
        if gone and back is not None:
            # A new row: it goes to the end of the line.
            await tx.execute(insert(lists), [{"list": self._name, "entry": back}])
        return gone

    async def lengths(self) -> tuple[int, int, int]:
        wanted = (self._name, self._processing, self._dead)
        query = select(lists.c.list, func.count()).where(lists.c.list.in_(wanted))
        async with self._relevo.database.reading() as tx:
            rows = (await tx.execute(query.group_by(lists.c.list))).all()
        found: dict[str, int] = {name: count for name, count in rows}  # noqa: C416 - rows, no pairs
        return found.get(wanted[0], 0), found.get(wanted[1], 0), found.get(wanted[2], 0)


class SqlBoard:
    """The board in the application's own database."""

    def __init__(self, relevo: Relevo) -> None:
        self._relevo = relevo

    def queue(self, hotel: str) -> SqlQueue:
        return SqlQueue(self._relevo, hotel)

    async def beat(self, hotel: str, value: str, ttl: timedelta) -> None:
        now = await self._relevo.time.now()
        async with self._relevo.transaction() as tx:
            await self._set(tx, names.heartbeat(hotel), value, now + milliseconds(ttl))
            old = select(keys.c.name).where(keys.c.expires_at <= now).limit(TIDY)
            await tx.execute(delete(keys).where(keys.c.name.in_(old.scalar_subquery())))

    async def pulse(self, hotel: str) -> Pulse:
        value, expires_at = await self._get(names.heartbeat(hotel))
        if value is None:
            return Pulse(None, None)
        left = (expires_at or 0) - await self._relevo.time.now()
        return Pulse(value, max(0, round(left / 1000)))

    async def is_enabled(self, hotel: str, default: bool) -> bool:
        value, _ = await self._get(names.enabled(hotel))
        return default if value is None else value != "0"

    async def enable(self, hotel: str, is_on: bool) -> None:
        async with self._relevo.transaction() as tx:
            await self._set(tx, names.enabled(hotel), "1" if is_on else "0", None)

    async def claim(self, hotel: str, message: str, ttl: timedelta) -> bool:
        now = await self._relevo.time.now()
        name = names.dedup(hotel, message)
        made = self._made().values(name=name, value="1", expires_at=now + milliseconds(ttl))
        made = made.on_conflict_do_update(
            index_elements=["name"],
            set_={"expires_at": made.excluded.expires_at},
            where=keys.c.expires_at <= now,
        )
        async with self._relevo.transaction() as tx:
            return cast("Any", await tx.execute(made)).rowcount == 1

    async def close(self) -> None:
        """Nothing of its own is open."""

    async def _get(self, name: str) -> tuple[str | None, int | None]:
        now = await self._relevo.time.now()
        is_live = or_(keys.c.expires_at.is_(None), keys.c.expires_at > now)
        query = select(keys.c.value, keys.c.expires_at).where(keys.c.name == name, is_live)
        async with self._relevo.database.reading() as tx:
            found = (await tx.execute(query)).first()
        return (None, None) if found is None else (found[0], found[1])

    async def _set(self, tx: AsyncSession, name: str, value: str, expires_at: int | None) -> None:
        made = self._made().values(name=name, value=value, expires_at=expires_at)
        changes = {"value": made.excluded.value, "expires_at": made.excluded.expires_at}
        await tx.execute(made.on_conflict_do_update(index_elements=["name"], set_=changes))

    def _made(self) -> Any:
        is_sqlite = self._relevo.database.engine.dialect.name == "sqlite"
        return sqlite.insert(keys) if is_sqlite else postgresql.insert(keys)
