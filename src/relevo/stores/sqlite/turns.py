"""Turns: the writer and the application's own transactions write one after the other, in order.

SQLite has one writer. Two that meet in its lock sleep and try again, and whoever tries at the wrong
moments waits longest; here the next in line is told.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import TypeAlias

from relevo.errors import StoreUnavailable

Ticket: TypeAlias = "threading.Event | asyncio.Future[None]"


class Turns:
    """A lock that is handed on in the order it was asked for, among threads and event loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_taken = False
        self._line: deque[Ticket] = deque()

    def take_now(self) -> bool:
        """Take it if it is free."""
        with self._lock:
            if self._is_taken:
                return False
            self._is_taken = True
            return True

    def take(self, timeout: float) -> bool:
        """Wait in a thread; False if it took too long."""
        ticket = threading.Event()
        if self._enter(ticket) or ticket.wait(timeout):
            return True
        return not self._quit(ticket)

    async def take_soon(self, timeout: float) -> None:
        """Wait in an event loop; StoreUnavailable if it took too long."""
        ticket = asyncio.get_running_loop().create_future()
        if self._enter(ticket):
            return
        try:
            async with asyncio.timeout(timeout):
                await asyncio.shield(ticket)
        except BaseException as error:
            if not self._quit(ticket):
                self.give()  # it came in the very moment we stopped waiting for it
            if isinstance(error, TimeoutError):
                raise StoreUnavailable(
                    "another transaction on the SQLite file did not end in time: keep them short, "
                    "and call nothing outside while one is open"
                ) from error
            raise

    def give(self) -> None:
        """Hand on to the next in line."""
        with self._lock:
            while self._line:
                ticket = self._line.popleft()
                if isinstance(ticket, threading.Event):
                    ticket.set()
                    return
                try:
                    ticket.get_loop().call_soon_threadsafe(_call, ticket)
                except RuntimeError:
                    continue  # its event loop is closed
                return
            self._is_taken = False

    def _enter(self, ticket: Ticket) -> bool:
        with self._lock:
            if self._is_taken:
                self._line.append(ticket)
                return False
            self._is_taken = True
            return True

    def _quit(self, ticket: Ticket) -> bool:
        """Leave the line; False if the turn had come already."""
        with self._lock:
            try:
                self._line.remove(ticket)
            except ValueError:
                return False
            return True


def _call(ticket: asyncio.Future[None]) -> None:
    if not ticket.done():
        ticket.set_result(None)
