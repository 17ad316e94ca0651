"""Your rows and your commands, saved together or not at all.

`tx` may be a SQLAlchemy AsyncSession or AsyncConnection, or a raw asyncpg or sqlite3 connection.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

from relevo.errors import MisuseError, SettingsError, StoreUnavailable
from relevo.ids import new_id
from relevo.store import Store
from relevo.stores.alive import keep_alive
from relevo.stores.places import IDLE_AFTER, NoPlace, Places

if TYPE_CHECKING:
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
    from sqlalchemy.orm import Session

_AWAY = ("database is locked", "disk I/O error", "database or disk is full", "unable to open")
# SQLSTATEs of a server that shuts down, starts up, has no place left, or lost the connection.
_AWAY_STATES = ("08", "53", "57P", "58")
_READS = "relevo_reads"
_OURS = {"schema", "pooler", "synchronous", "connect_timeout"}  # not the driver's options

PATIENCE = 5.0  # seconds for a connection to be made


class Database:
    """The application's own tables, through SQLAlchemy; opened on first use."""

    def __init__(self, store: Store, url: str, places: Places | None = None) -> None:
        self._store = store
        self._url = url
        self._places = places or Places()
        self._used_at = 0.0  # loop time
        self._look: asyncio.TimerHandle | None = None
        self._idle: asyncio.Task[None] | None = None
        self._engine: AsyncEngine | None = None
        self._session: Callable[[], AsyncSession] | None = None

    @property
    def engine(self) -> AsyncEngine:
        """The SQLAlchemy engine; on SQLite who does not say otherwise writes from the start."""
        if self._engine is None:
            try:
                from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
            except ImportError as error:
                raise SettingsError(
                    "transactions need SQLAlchemy: pip install 'relevo[sqlalchemy]'"
                ) from error
            is_file = address(self._url).startswith("sqlite")
            self._engine = create_async_engine(
                address(self._url),
                # Kept while there is something to do: a new one costs more than what it is opened
                # for. The last that was used is the first to be used again, so that more are
                # opened only while that many are in use. For PostgreSQL the limit is in Places:
                # this one is never reached.
                poolclass=_pool(),
                pool_size=15 if is_file else self._places.most,
                max_overflow=0,
                pool_use_lifo=True,
                **_options(self._url),
            )
            if is_file:
                _write_from_the_start(self._engine)
            else:
                self._count(self._engine)
                self._places.shrink = self._shrink
            # Once closed it stays so: what uses it after its block would begin another transaction,
            # which nothing commits.
            self._session = async_sessionmaker(
                self._engine, expire_on_commit=False, close_resets_only=False
            )
        return self._engine

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[AsyncSession]:
        """A session that commits when the block ends well and leaves nothing when it does not.

        A database that is away, or busy for too long, is StoreUnavailable.
        """
        async with _answering(), self._store.turn(), self._open() as session, session.begin():
            yield session

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[AsyncSession]:
        """A session to look something up with; on SQLite it waits for no writer."""
        async with _answering(), self._open() as session, session.begin():
            await session.connection(execution_options={_READS: True})
            yield session

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[AsyncSession]:
        is_file = self.engine.dialect.name == "sqlite"
        assert self._session is not None  # noqa: S101 - made with the engine
        async with nullcontext() if is_file else self._place(), self._session() as session:
            yield session

    @asynccontextmanager
    async def _place(self) -> AsyncGenerator[None]:
        loop = asyncio.get_running_loop()
        try:
            async with self._places.session():
                yield
        finally:
            self._used_at = loop.time()
            if self._look is None:
                self._look = loop.call_later(IDLE_AFTER, self._close_idle)

    def _close_idle(self) -> None:
        """Close the connections that have been idle for a while."""
        loop = asyncio.get_running_loop()
        self._look = None
        if self._engine is None:
            return
        if self._places.sessions or loop.time() - self._used_at < IDLE_AFTER * 0.9:
            self._look = loop.call_later(IDLE_AFTER, self._close_idle)
        else:
            self._idle = asyncio.create_task(self._close_all_idle())

    async def _close_all_idle(self) -> None:
        for _ in range(self._places.pooled):
            await self._places.close_idle()

    def _count(self, engine: AsyncEngine) -> None:
        from sqlalchemy import event

        def closed(_: object) -> None:
            self._places.gone()

        def opened(connection: Any, _: object) -> None:
            self._places.pooled += 1
            # Told by the driver: SQLAlchemy says it before it closes, and while the server still
            # counts the connection another would be opened in its place.
            connection.driver_connection.add_termination_listener(closed)

        event.listen(engine.sync_engine, "connect", opened)

    async def _shrink(self) -> None:
        """Close one connection that is not in use, because the store needs its place."""
        if self._engine is None:
            return
        pool: Any = self._engine.pool
        if pool.checkedin():
            async with self._engine.connect() as connection:
                await connection.invalidate()

    async def close(self) -> None:
        if self._look is not None:
            self._look.cancel()
        if self._idle is not None:
            await self._idle
        if self._engine is not None:
            await self._engine.dispose()


@asynccontextmanager
async def _answering() -> AsyncGenerator[None]:
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.exc import TimeoutError as NoConnection

    try:
        yield
    except (NoConnection, NoPlace) as error:
        raise StoreUnavailable(f"no connection to the database became free: {error}") from error
    except DBAPIError as error:
        if not _is_away(error):
            raise
        raise StoreUnavailable(f"the database does not answer: {error.orig}") from error


def _is_away(error: DBAPIError) -> bool:
    """Whether trying again later may help; a statement that is wrong stays wrong."""
    said, state = str(error.orig), str(getattr(error.orig, "sqlstate", None))
    if error.connection_invalidated or state.startswith(_AWAY_STATES):
        return True
    return any(word in said for word in _AWAY)


def address(url: str) -> str:
    """A store's or database's URL as SQLAlchemy writes it."""
    scheme = url.partition(":")[0].partition("+")[0]
    match scheme:
        case "sqlite":
            scheme = "sqlite+aiosqlite"
        case "postgresql" | "postgres":
            scheme = "postgresql+asyncpg"
        case _:
            raise SettingsError(
                f"no transactions on '{scheme}': set RELEVO_DATABASE_URL to a sqlite:/// or "
                "postgresql:// address"
            )
    if scheme == "postgresql+asyncpg":
        return f"{scheme}://"  # the driver reads the rest by itself
    rest, _, query = url.partition("://")[2].partition("?")
    kept = urlencode([pair for pair in parse_qsl(query) if pair[0] not in _OURS])
    return f"{scheme}://{rest}?{kept}" if kept else f"{scheme}://{rest}"


def _options(url: str) -> dict[str, Any]:
    """How SQLAlchemy is to open connections, where it would not read the address as the store does.

    It takes sslmode or application_name for arguments, which the driver does not have, and knows
    several hosts by other signs.
    """
    if not address(url).startswith("postgresql"):
        return {}
    rest, _, query = url.partition("://")[2].partition("?")
    given = parse_qsl(query, keep_blank_values=True)
    options = {name: value for name, value in given if name not in _OURS}
    hosts = rest.partition("/")[0].rpartition("@")[2] or options.get("host", "")
    if "," in hosts:
        options.setdefault("target_session_attrs", "read-write")
    dsn = f"postgresql://{rest}?{urlencode(options)}"
    arguments: dict[str, Any] = {"async_creator_fn": partial(_connect, dsn)}
    if dict(given).get("pooler") == "1":
        # Behind a pooler a statement's name may be another session's.
        arguments |= {
            "statement_cache_size": 0,
            "prepared_statement_cache_size": 0,
            "prepared_statement_name_func": lambda: f"__relevo_{new_id()}__",
        }
    return {"connect_args": arguments}


async def _connect(dsn: str, **options: Any) -> Any:
    import asyncpg

    try:
        connection = await asyncpg.connect(dsn, timeout=PATIENCE, **options)
        keep_alive(connection._transport)  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue, reportPrivateUsage] - there is no other way to its socket
        return connection
    except (
        OSError,  # a time-out too
        asyncpg.CannotConnectNowError,
        asyncpg.TooManyConnectionsError,
        asyncpg.PostgresConnectionError,
        asyncpg.TargetServerAttributeNotMatched,
    ) as error:
        raise StoreUnavailable(f"the database cannot be reached: {error}") from error


def _write_from_the_start(engine: AsyncEngine) -> None:
    from sqlalchemy import event

    @event.listens_for(engine.sync_engine, "connect")
    def connected(connection: Any, record: object) -> None:  # pyright: ignore[reportUnusedFunction] - SQLAlchemy calls it
        connection.isolation_level = None  # SQLAlchemy's BEGIN below, not sqlite3's late one
        cursor = connection.cursor()
        cursor.execute("pragma busy_timeout = 5000")
        cursor.execute("pragma synchronous = full")
        cursor.execute("pragma foreign_keys = on")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def began(connection: Any) -> None:  # pyright: ignore[reportUnusedFunction] - SQLAlchemy calls it
        # A reader that turns writer half-way fails when another has written since.
        is_reader = connection.get_execution_options().get(_READS, False)
        connection.exec_driver_sql("begin" if is_reader else "begin immediate")


def _pool() -> type[Any]:
    from sqlalchemy import AsyncAdaptedQueuePool

    class Pool(AsyncAdaptedQueuePool):
        """Forgets a connection that was closed on purpose.

        SQLAlchemy's own keeps its entry, and gives that to the next transaction, which opens a new
        connection for it, although others are idle: one more than there may be.
        """

        def _do_return_conn(self, record: Any) -> None:
            if record.dbapi_connection is None:
                self._dec_overflow()
            else:
                super()._do_return_conn(record)

    return Pool


def _nothing() -> None:
    pass


async def driver(
    tx: Any, on_commit: Callable[[], None], on_rollback: Callable[[], None] = _nothing
) -> Any:
    """The driver's connection behind `tx`; `on_commit` is called when its transaction commits.

    `on_rollback` is called when that, or the savepoint it stands in, is rolled back. Of a raw
    connection neither is heard.
    """
    if isinstance(tx, sqlite3.Connection):
        if not tx.in_transaction:
            raise MisuseError("tx has no open transaction: execute BEGIN IMMEDIATE first")
        return tx
    if type(tx).__module__.partition(".")[0] == "asyncpg":
        if not tx.is_in_transaction():
            raise MisuseError(
                "tx has no open transaction: use `async with connection.transaction()`"
            )
        return tx
    if type(tx).__module__.partition(".")[0] == "sqlalchemy":
        return await _behind_sqlalchemy(tx, on_commit, on_rollback)
    raise MisuseError(
        f"tx is a {type(tx).__name__}; pass a SQLAlchemy AsyncSession or AsyncConnection, or an "
        "asyncpg or sqlite3 connection with an open transaction"
    )


async def _behind_sqlalchemy(
    tx: Any, on_commit: Callable[[], None], on_rollback: Callable[[], None]
) -> Any:
    from sqlalchemy import event
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

    def committed(_: object) -> None:
        on_commit()

    def rolled_back(_: object) -> None:
        on_rollback()

    try:
        match tx:
            case AsyncSession():
                connection = await tx.connection()
                _follow(tx.sync_session, on_commit, on_rollback)
            case AsyncConnection():
                connection = tx
                if not tx.in_transaction():
                    # It begins with the first statement of its own, and ours is not that.
                    await tx.exec_driver_sql("select 1")
                event.listen(tx.sync_connection, "commit", committed, once=True)
                event.listen(tx.sync_connection, "rollback", rolled_back, once=True)
            case _:
                raise MisuseError(
                    f"tx is a synchronous {type(tx).__name__}; pass an AsyncSession or "
                    "AsyncConnection"
                )
        raw = await connection.get_raw_connection()
        begun = getattr(raw.driver_connection, "is_in_transaction", None)
        if begun is not None and not begun():
            # SQLAlchemy begins on asyncpg with the first statement, and ours must be inside.
            await connection.exec_driver_sql("select 1")
    except DBAPIError as error:
        raise StoreUnavailable(f"the database does not answer: {error.orig}") from error
    return raw.driver_connection


def _follow(
    session: Session, on_commit: Callable[[], None], on_rollback: Callable[[], None]
) -> None:
    """Tell what becomes of the transaction, or savepoint, that a session stands in."""
    from sqlalchemy import event

    inside: list[object] = []
    within = session.get_nested_transaction() or session.get_transaction()
    while within is not None:
        inside.append(within)
        within = within.parent
    open_ = True

    def committed(session: Session) -> None:
        nonlocal open_
        if open_ and not session.in_nested_transaction():  # a savepoint's release is no commit
            open_ = False
            on_commit()

    def rolled_back(session: Session, over: object) -> None:
        nonlocal open_
        if open_ and over in inside:
            open_ = False
            on_rollback()

    def ended(session: Session, over: object) -> None:
        if over is inside[-1]:  # without a commit: a session that is closed says no more than this
            rolled_back(session, over)

    event.listen(session, "after_commit", committed)
    event.listen(session, "after_soft_rollback", rolled_back)
    event.listen(session, "after_transaction_end", ended)
