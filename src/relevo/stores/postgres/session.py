"""What every verb of the store has at hand: lines to the server, and the skew of its clock."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from weakref import WeakSet

from relevo.clock import Clock, SystemClock
from relevo.errors import MisuseError
from relevo.stores.places import Places
from relevo.stores.postgres.address import parse
from relevo.stores.postgres.ear import Ear
from relevo.stores.postgres.lines import Connection, Door, Line, Lines, lent

_HOME = (
    "select concat_ws('/', extract(epoch from pg_postmaster_start_time())::text, (select oid::text "
    "from pg_catalog.pg_database where datname = current_database())) as home"
)

_MILLISECOND = timedelta(milliseconds=1)


class Session:
    """Connections by purpose, each made when first used.

    Whoever enqueues, claims or settles has a line to itself; leases and memory share some, and
    people others, so that no one's slow question delays the work. With `is_single` all share one.
    """

    def __init__(self, url: str, clock: Clock | None, *, is_single: bool = False) -> None:
        self._given = url
        self._clock = clock or SystemClock()
        self._address = parse(url)
        self._statements: dict[str, str] = {}
        self._door = Door(self._address)
        self._upkeep = Lines(self._door, 1 if is_single else 2)
        self._is_single = is_single
        if is_single:
            self._in = self._out = self._ends = self._upkeep.first
            self._people = self._upkeep
        else:
            self._open_lines()
        self._home = ""  # which database it is, once that was asked
        self._at_home: WeakSet[Connection] = WeakSet()  # callers' connections to the same one
        self._ear = Ear(self._door, self._sql("relevo.jobs"), self._in)

    def _open_lines(self) -> None:
        # Arrivals are a plain statement, planned once for tables of any size.
        self._in = Line(self._door, plan_cache_mode="force_generic_plan", enable_seqscan="off")
        # Claims in a hurry are plain statements: their plan is this one whatever the tables hold.
        self._out = Line(
            self._door,
            plan_cache_mode="force_generic_plan",
            enable_seqscan="off",
            enable_bitmapscan="off",
            enable_hashjoin="off",
            enable_mergejoin="off",
            enable_sort="off",
        )
        self._ends = Line(self._door)
        # People's filters are optional: a plan made for the values at hand finds the right index.
        self._people = Lines(self._door, 1, plan_cache_mode="force_custom_plan")

    @property
    def places(self) -> Places:
        """How many connections there may be, beside those of the application's transactions."""
        return self._door.places

    def _sql(self, text: str) -> str:
        statement = self._statements.get(text)
        if statement is None:
            statement = self._statements[text] = self._address.sql(text)
        return statement

    @asynccontextmanager
    async def _lent(self, connection: Any) -> AsyncGenerator[Connection]:
        """A caller's own connection, if it leads to the database of this store."""
        async with lent(connection) as driver:
            if driver not in self._at_home:
                await self._check_home(driver)
                self._at_home.add(driver)
            yield driver

    async def _check_home(self, connection: Connection) -> None:
        """MisuseError for a connection to another database: no worker here would see its jobs.

        Asked once per connection. Two names may mean one server, so the servers themselves are
        asked; the store's own once more where they differ, as it may have been restarted.
        """
        there: str = await connection.fetchval(_HOME)
        if there != self._home:
            self._home = (await self._upkeep.fetch(_HOME, repeat=True))[0]["home"]
        if there != self._home:
            name: str = await connection.fetchval("select current_database()")
            raise MisuseError(
                f"tx is a connection to another database ({name}) than the store's, "
                f"{self._address.public}: a job commits with rows of the same database, and no "
                "worker here would see one that is stored there. Open the session on the store's "
                "database, or give the store that database"
            )

    @property
    def _skew(self) -> int:
        return self._clock.offset // _MILLISECOND
