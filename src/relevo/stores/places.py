"""How many connections to PostgreSQL an engine may have open, store and database together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

CONNECTIONS = 10
"""At most, unless RELEVO_CONNECTIONS says otherwise."""

IDLE = 4
"""Of an engine with nothing to do: for leases, for notifications, and the two used last."""

IDLE_AFTER = 5.0
"""Seconds without use after which a connection is idle."""

RESERVED = 4
"""Never lent to transactions: of the store's calls, which those may wait for, some can go on."""

LEAST = RESERVED + 2
PATIENCE = 30.0


class NoPlace(Exception):
    """No connection to the database became free."""


async def _nothing() -> None:
    pass


class Places:
    """Counts connections. The store has the first right to a place, transactions to what is left.

    A transaction that ends gives its connection up when the store waits for one.
    """

    def __init__(self, most: int = CONNECTIONS) -> None:
        self.most = most
        self.server = 0  # what the server takes from everybody, once it was asked
        self.store = 1  # the thread that keeps leases alive has one of its own
        self.sessions = 0  # transactions under way
        self.pooled = 0  # connections of the database, in use or not
        self.closing = 0  # of these; a transaction that begins meanwhile gets another one
        self.shrink: Callable[[], Awaitable[None]] = _nothing  # closes one that is not in use
        self._wanted = 0  # by the store
        self._changed = asyncio.Event()

    @property
    def _is_full(self) -> bool:
        database = self.closing + max(self.sessions, self.pooled - self.closing)
        return self.store + database >= self.most

    async def take(self) -> None:
        """A place for a connection of the store; the caller limits how long it waits."""
        self._wanted += 1
        try:
            while self._is_full:
                await self.close_idle()
                if self._is_full:
                    await self._change()
            self.store += 1
        finally:
            self._wanted -= 1
            self._tell()

    def give(self) -> None:
        """A connection of the store is closed."""
        self.store -= 1
        self._tell()

    async def close_idle(self) -> None:
        """Close one connection of the database that no transaction uses, if there is one."""
        if self.pooled - self.closing > self.sessions:
            self.closing += 1
            try:
                await self.shrink()
            finally:
                self.closing -= 1
                self._tell()

    def gone(self) -> None:
        """A connection of the database is closed."""
        self.pooled -= 1
        self._tell()

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[None]:
        """The right to one connection of the database; NoPlace if none becomes free."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not self._may_begin():
                    await self._change()
        except TimeoutError:
            raise NoPlace(
                f"all {self.sessions} were in use for {PATIENCE:g} s: raise RELEVO_CONNECTIONS"
            ) from None
        self.sessions += 1
        try:
            yield
        finally:
            self.sessions -= 1
            self._tell()

    def _may_begin(self) -> bool:
        if self._wanted and self.sessions:
            return False
        return self.sessions + self.closing < self.most - max(RESERVED, self.store)

    async def _change(self) -> None:
        self._changed = changed = self._changed if not self._changed.is_set() else asyncio.Event()
        await changed.wait()

    def _tell(self) -> None:
        self._changed.set()
