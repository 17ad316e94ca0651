"""Lines to the server: connections that break, are replaced, and never keep a caller waiting."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

import asyncpg
from asyncpg import connect_utils
from asyncpg import exceptions as pg

from relevo.clock import Patience
from relevo.errors import (
    MisuseError,
    RelevoError,
    SchemaMismatch,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
)
from relevo.store import DEADLINE
from relevo.stores.alive import keep_alive
from relevo.stores.places import IDLE, IDLE_AFTER, Places
from relevo.stores.postgres.address import Address

Record: TypeAlias = asyncpg.Record
if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]
else:
    Connection = asyncpg.Connection  # generic only to the type checker

PATIENCE = DEADLINE - 0.3
"""How long a call may take in all, so that its error too is in time."""

LEAST = 0.1
"""Seconds without which a call is not begun."""

HOST_PATIENCE = 2.0
LONGEST_BACKOFF = 2.0
REPEATS = 2
MOST_CROSSINGS = 8

# The server gives up before we do, so that a blocked statement ends with an answer.
SETTINGS = {
    "application_name": "relevo",
    "search_path": "pg_catalog",
    "default_transaction_isolation": "read committed",
    "statement_timeout": "4400",
    "lock_timeout": "4000",
    "idle_in_transaction_session_timeout": "10000",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "3",
    "tcp_keepalives_count": "3",
    "client_min_messages": "error",
    "jit": "off",
}


class ConnectionLost(StoreUnavailable):
    """The connection broke while an answer was awaited: it may have happened, or not."""


class Spoiled(StoreError):
    """What a statement took for granted is not so: nothing of it has happened."""


FIRST_OWN = 16_384
"""Types with smaller numbers are PostgreSQL's own, and the same on every server."""

_SENT = ("uuid", "text", "bytea", "bigint", "integer", "smallint", "boolean")  # as arrays
_arrays: dict[int, Any] = {}  # by number, what the server said once of an array type
_answered = SimpleNamespace(name="from memory")


class _Connection(Connection):
    """A connection that notices within seconds that the other side has forgotten it."""

    async def _introspect_types(self, typeoids: Any, timeout: float | None) -> Any:
        # The driver asks on every connection anew what an array is: four round trips, in which a
        # short lease over a slow line lapses before its first extension is heard.
        if all(oid in _arrays for oid in typeoids):
            return [_arrays[oid] for oid in typeoids], _answered
        rows, statement = await super()._introspect_types(typeoids, timeout)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType] - the stubs leave it out
        for row in rows:  # pyright: ignore[reportUnknownVariableType] - as above
            if row["elemtype"] and row["oid"] < FIRST_OWN:
                _arrays[row["oid"]] = row
        return rows, statement  # pyright: ignore[reportUnknownVariableType] - as above

    def __init__(self, protocol: Any, transport: Any, *rest: Any) -> None:
        super().__init__(protocol, transport, *rest)
        keep_alive(transport)


class _TLSQuestion(connect_utils.TLSUpgradeProto):
    """Asks a server for TLS; that the connection ends unasked for is no error.

    The driver puts ConnectionError into a future. When opening is cancelled before the future is
    awaited, as by a store that is closed, asyncio reports an exception that was never retrieved.
    """

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if not self.on_data.cancelled():
            self.on_data.exception()


connect_utils.TLSUpgradeProto = _TLSQuestion


async def learn_types(connection: Connection) -> None:
    """Have the types that we send known before the first call that is in a hurry."""
    if len(_arrays) >= len(_SENT):
        return
    empty: list[object] = []
    asked = ", ".join(f"${n}::{name}[]" for n, name in enumerate(_SENT, start=1))
    await connection.fetch(f"select {asked}", *[empty for _ in _SENT])


def translated(error: BaseException) -> RelevoError:
    """What a driver's error means to a caller."""
    text = str(error) or type(error).__name__
    match error:
        case RelevoError():
            return error
        case pg.UndefinedTableError() | pg.UndefinedFunctionError() | pg.UndefinedColumnError():
            return SchemaMismatch(f"the store's tables are not of this version: {text}")
        case pg.InvalidSchemaNameError():
            return SchemaMismatch(f"the store has no tables yet: run 'relevo migrate' ({text})")
        case pg.DataCorruptedError() | pg.IndexCorruptedError():
            return StoreDamaged(f"PostgreSQL reports damage: {text}")
        case pg.DataError() | pg.ProgramLimitExceededError() | UnicodeError():
            return MisuseError(f"PostgreSQL cannot store this: {text}")
        case pg.UniqueViolationError() | pg.PostgresError(sqlstate="RV001"):
            return Spoiled(f"PostgreSQL said no: {text}")
        case pg.InsufficientPrivilegeError():
            return StoreError(f"the role lacks a right: {text}")
        case (
            OSError()
            | TimeoutError()
            | pg.PostgresConnectionError()
            | pg.OperatorInterventionError()
            | pg.InsufficientResourcesError()
            | pg.PostgresSystemError()
            | pg.InvalidAuthorizationSpecificationError()
            | pg.InvalidCatalogNameError()
            | pg.LockNotAvailableError()
            | pg.TransactionRollbackError()
            | pg.ReadOnlySQLTransactionError()
            | pg.IdleInTransactionSessionTimeoutError()
            | pg.TargetServerAttributeNotMatched()
            | pg.InterfaceError()
            | pg.InternalClientError()
        ):
            return StoreUnavailable(f"PostgreSQL does not answer: {text}")
        case _:
            return StoreError(f"PostgreSQL said no: {text}")


class Door:
    """Opens connections; after failures, not at once."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.shut = False
        self.places = Places()
        self.lines: list[Line] = []
        self._look: asyncio.TimerHandle | None = None
        self._hosts = list(address.hosts)
        self._failures = 0
        self._not_before = 0.0

    async def open(self, **settings: str) -> Connection:
        """A fresh connection to a host that takes writes; StoreUnavailable if none does."""
        if self.shut:
            raise StoreUnavailable("the store is closed")
        loop = asyncio.get_running_loop()
        if (wait := self._not_before - loop.time()) > 0:
            await asyncio.sleep(wait)
        error: Exception = StoreUnavailable("no host was asked")
        for host in tuple(self._hosts):
            try:
                connection = await self._open(host, settings)
            except asyncio.CancelledError:
                self._prefer_others(host)
                raise
            except Exception as problem:  # noqa: BLE001 - the next host may do; else it is raised
                error = problem
                self._prefer_others(host)
            else:
                self._failures = 0
                if self.shut:  # meanwhile; nobody would close it
                    connection.terminate()
                    raise StoreUnavailable("the store is closed")
                return connection
        pause = min(LONGEST_BACKOFF, 0.05 * 2 ** min(self._failures, 10))
        self._failures += 1
        self._not_before = loop.time() + pause * random.uniform(0.5, 1)
        raise translated(error) from error

    def look_later(self) -> None:
        """Close idle connections in a while."""
        if self._look is None or self._look.cancelled():
            self._look = asyncio.get_running_loop().call_later(IDLE_AFTER, self._close_idle)

    def _close_idle(self) -> None:
        self._look = None
        now = asyncio.get_running_loop().time()
        up = sorted((line for line in self.lines if line.up), key=lambda line: line.used_at)
        for line in up[: max(0, len(up) - (IDLE - 2))]:  # two others: for leases, and to listen
            if now - line.used_at >= IDLE_AFTER:
                line.rest()
            else:
                self.look_later()

    async def _open(self, host: tuple[str, int] | None, settings: dict[str, str]) -> Connection:
        return await asyncpg.connect(
            self.address.dsn,
            host=host[0] if host else None,
            port=host[1] if host else None,
            timeout=HOST_PATIENCE if len(self._hosts) > 1 else PATIENCE,
            connection_class=_Connection,
            # A pooler lends us another session for each statement, and knows few settings.
            server_settings=None if self.address.pooler else SETTINGS | settings,
            statement_cache_size=0 if self.address.pooler else 100,
            max_cached_statement_lifetime=0,
            target_session_attrs=self.address.session,  # pyright: ignore[reportArgumentType] - the stubs want the enum, the driver takes its values
        )

    def _prefer_others(self, host: tuple[str, int] | None) -> None:
        # Who failed is asked last the next time: a dead primary must not eat every deadline.
        if len(self._hosts) > 1 and host in self._hosts:
            self._hosts.remove(host)
            self._hosts.append(host)


class Line:
    """One connection for one caller at a time, made when first needed."""

    def __init__(self, door: Door, **settings: str) -> None:
        self._door = door
        self._settings = settings
        self._has_place = False
        self.used_at = 0.0  # loop time
        door.lines.append(self)
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        return self._turn.locked()

    @property
    def up(self) -> bool:
        return self._connection is not None and not self._connection.is_closed()

    @property
    def pid(self) -> int:
        """The server's process at the other end; 0 if there is none."""
        connection = self._connection
        return 0 if connection is None or connection.is_closed() else connection.get_server_pid()

    def adopt(self, connection: Connection) -> None:
        """Go on with a connection that somebody else has opened, unless there is one."""
        if self.up or self.busy:
            connection.terminate()
            self._door.places.give()
            return
        self._leave_place()
        self._connection, self._has_place = connection, True
        self.used_at = asyncio.get_running_loop().time()

    async def fetch(self, sql: str, *values: object, repeat: bool = False) -> list[Record]:
        """The statement's rows, or StoreUnavailable in time.

        Deadlocks and serialisation failures are tried again: nothing has happened then. With
        `repeat`, so is a statement whose connection broke, because it does no harm twice.
        """
        rows, _ = await self._ask(sql, values, REPEATS if repeat else 0)
        return rows

    async def fetch_once(
        self, sql: str, *values: object, repeat: bool = True
    ) -> tuple[list[Record], bool]:
        """The same, and whether an earlier try may have happened unheard."""
        return await self._ask(sql, values, REPEATS if repeat else 0)

    async def _ask(
        self, sql: str, values: Sequence[object], repeats: int
    ) -> tuple[list[Record], bool]:
        lost = crossed = 0
        try:
            async with Patience(PATIENCE) as limit, self._turn:
                if limit.left < LEAST:
                    raise TimeoutError  # it had to wait; begun now, it would be broken off at once
                while True:
                    connection = await self._connected()
                    try:
                        return await self._fetch(connection, sql, values), lost > 0
                    except (pg.DeadlockDetectedError, pg.SerializationError):
                        crossed += 1
                        if crossed > MOST_CROSSINGS:
                            raise
                        await asyncio.sleep(random.uniform(0, 0.01 * 2**crossed))
                    except ConnectionLost:
                        lost += 1
                        if lost > repeats:
                            raise
        except TimeoutError as error:
            raise StoreUnavailable(f"PostgreSQL did not answer within {PATIENCE:g} s") from error
        except (OSError, pg.PostgresError, pg.InterfaceError, pg.InternalClientError) as error:
            raise translated(error) from error
        finally:
            self.used_at = asyncio.get_running_loop().time()
            self._door.look_later()

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = None
            if not self._has_place:
                await self._door.places.take()
                self._has_place = True
            try:
                self._connection = await self._door.open(**self._settings)
            except BaseException:
                self._leave_place()
                raise
        return self._connection

    def _leave_place(self) -> None:
        if self._has_place:
            self._has_place = False
            self._door.places.give()

    def rest(self) -> None:
        """Close the connection, unless it is in use."""
        if self._connection is not None and not self.busy:
            self._dismiss(self._connection)

    def _dismiss(self, connection: Connection) -> None:
        # The driver asks the server to stop what it does, so that what was reported as failed
        # does not happen a little later; meanwhile others get a new connection.
        self._connection, has_place, self._has_place = None, self._has_place, False
        leaving = asyncio.create_task(
            _dismiss(connection, self._door.places if has_place else None)
        )
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    async def _fetch(
        self, connection: Connection, sql: str, values: Sequence[object]
    ) -> list[Record]:
        try:
            if not self._door.address.pooler:
                return await connection.fetch(sql, *values)
            # The driver prepares and executes in two steps, between which a transaction pooler may
            # change the session: the statement would not be there, or be another caller's.
            async with connection.transaction():
                return await connection.fetch(sql, *values)
        except pg.ReadOnlySQLTransactionError:
            # The primary has become a replica under us: the next call looks for the new one.
            self._drop()
            raise
        except (
            OSError,
            pg.PostgresConnectionError,
            pg.AdminShutdownError,
            pg.CrashShutdownError,
            pg.CannotConnectNowError,
            pg.IdleSessionTimeoutError,
            pg.InterfaceError,
            pg.InternalClientError,
        ) as error:
            if isinstance(error, pg.DataError):
                raise
            self._drop()
            raise ConnectionLost(
                f"the connection to PostgreSQL broke; it may have happened, or not: {error}"
            ) from error
        except BaseException as error:
            if not isinstance(error, pg.PostgresError):
                self._dismiss(connection)  # given up half way
            raise

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def close(self) -> None:
        if self._connection is not None:
            self._dismiss(self._connection)
        if self._leaving:
            await asyncio.wait(self._leaving)
        self._leave_place()


async def _dismiss(connection: Connection, places: Places | None) -> None:
    try:
        await close_slowly(connection)
    finally:
        if places is not None:
            places.give()


async def close_slowly(connection: Connection) -> None:
    """Close a connection, and wait until the server no longer counts it."""
    with contextlib.suppress(Exception):
        await connection.close(timeout=1)
    connection.terminate()


class Lines:
    """A few lines for those who need no line of their own."""

    def __init__(self, door: Door, size: int, **settings: str) -> None:
        self._lines = [Line(door, **settings) for _ in range(size)]
        self._next = 0

    @property
    def first(self) -> Line:
        return self._lines[0]

    async def fetch(self, sql: str, *values: object, repeat: bool = False) -> list[Record]:
        """The statement's rows, over whichever line is free."""
        return await self._pick().fetch(sql, *values, repeat=repeat)

    def adopt(self, connection: Connection) -> None:
        """Go on with a connection that somebody else has opened."""
        self._lines[0].adopt(connection)

    def _pick(self) -> Line:
        free = [line for line in self._lines if not line.busy]
        if free:
            return next((line for line in free if line.up), free[0])
        self._next = (self._next + 1) % len(self._lines)
        return self._lines[self._next]

    async def close(self) -> None:
        for line in self._lines:
            await line.close()


@contextlib.asynccontextmanager
async def lent(connection: Any) -> AsyncGenerator[Connection]:
    """A caller's own connection, whose errors are translated and which is never closed here."""
    if not isinstance(connection, asyncpg.Connection):
        raise MisuseError(
            f"this store writes through an asyncpg connection, not {type(connection).__name__}"
        )
    if not connection.is_in_transaction():
        # It would be committed at once, whatever becomes of the caller's rows.
        raise MisuseError(
            "the connection has no open transaction yet: with asyncpg use `async with "
            "connection.transaction()`; SQLAlchemy begins with the first statement it executes"
        )
    try:
        yield connection
    except (OSError, pg.PostgresError, pg.InterfaceError, pg.InternalClientError) as error:
        raise translated(error) from error
