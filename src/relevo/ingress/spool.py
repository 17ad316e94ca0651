"""Spool: a file beside us where deliveries wait while the store is away.

What was verified is written here durably and answered; when the store is back it goes the same way
as any other, oldest first. Its key is the same, so that nothing is taken twice whoever repeats it.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from relevo.batch import Coalescer
from relevo.clock import moment
from relevo.errors import QueueClosed, SealError, StoreDamaged, StoreError, StoreUnavailable
from relevo.intake import Door, Reject, delivery_of
from relevo.sealing import opened, sealed_text, unsealed
from relevo.settings import spool_file
from relevo.store import DeliveryState, Kept
from relevo.storewatch import has_room
from relevo.telemetry import log
from relevo.webhook import Delivery

if TYPE_CHECKING:
    from relevo.engine import Relevo

T = TypeVar("T")

BYTES_MAX = 1 << 30
PAGE = 4_096
BATCH = 50
PROBE = 65_536  # bytes of a delivery that may come
AGAIN = 1.0  # seconds until what was left is tried again; a store back sooner was not away
BACK = 0.5  # seconds for a store that is away to take a probe, before the process ends
TRIES = 2  # of a delivery that fails though the store is there
LOOK = 30.0  # until the file is looked at again: another process may have written to it


class Spool:
    """The deliveries that wait; the file is made with the first of them."""

    def __init__(self, engine: Relevo, path: Path) -> None:
        self.path = path
        self._engine = engine
        self._connection: sqlite3.Connection | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        self._keeping: Coalescer[Kept, None] = Coalescer(self._write)
        self._draining: asyncio.Task[None] | None = None
        self.stuck: set[str] = set()  # endpoints whose deliveries fail, though the store is there
        self._fed = asyncio.Event()
        self._ended = asyncio.Event()  # all that the store takes is out, or the store is away
        engine.watch.on_away.append(self._ended.set)

    async def keep(self, kept: Kept) -> None:
        """Write it down durably; StoreUnavailable if this disk does not take it either."""
        await self._keeping.add([kept])
        self._fed.set()

    async def takes(self) -> bool:
        """Whether a delivery can be written here now."""

        def write(db: sqlite3.Connection) -> None:
            # In one row, which is written anew each time: what is not committed needs no room.
            db.execute("create table if not exists probe (id integer primary key, data blob)")
            db.execute("replace into probe values (1, zeroblob(?))", (PROBE,))

        try:
            await self._do(write)
        except StoreError:
            return False
        return has_room(self.path.absolute().parent)

    async def waiting(self) -> int:
        """How many deliveries wait here."""
        if not self._is_there:
            return 0
        return await self._do(
            lambda db: int(db.execute("select count(*) from spool").fetchone()[0])
        )

    @property
    def _is_there(self) -> bool:
        return self._connection is not None or self.path.exists()

    def start(self) -> None:
        """Empty it now, after each delivery that comes in, and whenever another process fed it."""
        self._is_closed = False
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain(), name="relevo-spool")

    async def empty(self, within: float) -> None:
        """Give what waits to the store, within so many seconds; not while the store is away.

        Callers may wait for the process that comes next, which finds this file.
        """
        watch = self._engine.watch
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                if watch.is_away:
                    async with asyncio.timeout(BACK):
                        await watch.back()
                self._ended.clear()
                self._fed.set()
                await self._ended.wait()

    async def close(self) -> None:
        await self._keeping.close()
        if self._draining is not None:
            self._draining.cancel()
            await asyncio.wait({self._draining})
            self._draining = None
        await self._tell_left()
        await asyncio.to_thread(self._shut)

    async def _tell_left(self) -> None:
        with suppress(StoreError):
            if left := await self.waiting():
                log.error(
                    "%s deliveries that were answered wait in %s: keep this file, and start a "
                    "process that serves with it (RELEVO_SPOOL), which gives them to the store",
                    left,
                    self.path,
                    extra={"waiting": left},
                )

    def _shut(self) -> None:
        # A thread may still be at work for whoever was cancelled: SQLite dies of a connection that
        # is closed under its hands.
        with self._lock:
            self._is_closed = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    # out

    async def _drain(self) -> None:
        while True:
            self._fed.clear()
            if await self._is_stuck():
                await asyncio.sleep(AGAIN)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK):
                    await self._fed.wait()

    async def _is_stuck(self) -> bool:
        """Go through it once; whether something was left."""
        try:
            left = await self._pass()
            if left or not await self.waiting():
                self._ended.set()
        except StoreError as trouble:
            # What is in it was promised: a disk or a store that fails once is asked again.
            self._engine.telemetry.trouble("the spool cannot be emptied", trouble)
            return True
        return left

    async def _pass(self) -> bool:
        """Go through it once, oldest first; True if some had to be left where they were."""
        after, left = 0, False
        while self._is_there and (rows := await self._read(after)):
            after = rows[-1][0]
            # Together, as calls come together: each alone would wait for a commit of its own.
            taken = await asyncio.gather(*(self._carry(data) for _, data in rows))
            gone = [(row[0],) for row, is_taken in zip(rows, taken, strict=True) if is_taken]
            await self._do(partial(_delete, gone))
            left = left or len(gone) < len(rows)
        return left

    async def _read(self, after: int) -> list[tuple[int, bytes]]:
        question = "select id, data from spool where id > ? order by id limit ?"
        return await self._do(lambda db: db.execute(question, (after, BATCH)).fetchall())

    async def _carry(self, data: bytes) -> bool:
        receiver = self._engine.receiver
        try:
            kept = msgspec.msgpack.decode(self._opened(data), type=Kept)
            door = receiver.door(kept.endpoint)
            if door is None:
                return False
            delivery = delivery_of(kept, moment(kept.received_at), door)
        except (msgspec.DecodeError, SealError, StoreDamaged) as damage:
            log.error("a delivery in the spool cannot be read: %s", damage)
            return False  # the others shall not wait for it
        with self._engine.telemetry.again("spool", door.endpoint, delivery):
            return await self._take(door, delivery, kept)

    async def _take(self, door: Door, delivery: Delivery, kept: Kept) -> bool:
        receiver, watch = self._engine.receiver, self._engine.watch
        tries = 0
        while True:
            if watch.is_away:
                await watch.back()
            try:
                await receiver.take(door, delivery, received_at=kept.received_at)
            except StoreError as trouble:
                began = time.monotonic()
                await watch.back()
                tries = tries + 1 if time.monotonic() - began < AGAIN else 0
                if tries == TRIES:
                    # Not the store, but this one, or a database that its function asks: the others
                    # shall not wait for it.
                    self._engine.telemetry.trouble("a delivery stays in the spool", trouble)
                    self.stuck.add(kept.endpoint)
                    return False
                continue
            except Reject as rejected:
                # Answered long ago, so the refusal is kept where a person sees it.
                reason = f"refused after it was answered from the spool: {rejected}"
                bad = msgspec.structs.replace(
                    kept, state=DeliveryState.REFUSED, reason=reason, status=400
                )
                await receiver.keep_refused([bad])
                self._engine.telemetry.deliveries[bad.endpoint, bad.state] += 1
            except QueueClosed:
                return False
            except Exception as mistake:  # noqa: BLE001 - it stays, and the next one has its turn
                log.error(
                    "a webhook's function failed on a delivery of the spool",
                    exc_info=mistake,
                    extra={"endpoint": kept.endpoint, "delivery": kept.id},
                )
                return False
            self.stuck.discard(kept.endpoint)
            return True

    # the file

    async def _write(self, batch: Sequence[Kept]) -> list[None]:
        seal = self._engine.seal
        packed = [msgspec.msgpack.encode(kept) for kept in batch]
        rows = [(data if seal is None else sealed_text(seal, data),) for data in packed]

        def write(db: sqlite3.Connection) -> None:
            with _transaction(db):
                db.executemany("insert into spool (data) values (?)", rows)

        await self._do(write)
        return [None] * len(batch)

    def _opened(self, data: bytes) -> bytes:
        seal = self._engine.seal
        return unsealed(data if seal is None else opened(seal, data))

    async def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def locked() -> T:
            with self._lock:
                if self._is_closed:
                    raise OSError("it is closed")
                return work(self._open())

        try:
            return await asyncio.to_thread(locked)
        except (sqlite3.Error, OSError) as trouble:
            raise StoreUnavailable(f"the spool {self.path} cannot be used: {trouble}") from trouble

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            # Before SQLite makes it: bodies are nobody else's business.
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            db = sqlite3.connect(
                self.path, timeout=2.0, isolation_level=None, check_same_thread=False
            )
            db.execute("pragma journal_mode = wal")
            db.execute("pragma synchronous = full")
            db.execute(f"pragma max_page_count = {BYTES_MAX // PAGE}")
            db.execute(
                "create table if not exists spool (id integer primary key autoincrement, data blob)"
            )
            self._connection = db
        return self._connection


def _delete(gone: list[tuple[int]], db: sqlite3.Connection) -> None:
    with _transaction(db):
        db.executemany("delete from spool where id = ?", gone)


@contextmanager
def _transaction(db: sqlite3.Connection) -> Generator[None]:
    """Commit what the block writes, or roll it back: one left open would refuse all that follow."""
    db.execute("begin immediate")
    try:
        yield
        db.execute("commit")
    except BaseException:
        if db.in_transaction:  # a full disk may have ended it already
            db.execute("rollback")
        raise


def spool_path(engine: Relevo, setting: str | None) -> Path | None:
    """Where an engine's spool is: as set, else beside the store's file, else right here."""
    return spool_file(engine.store.dsn, setting)
