"""Connections that only read, on a few threads of their own: they never hold the writer up."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from relevo.errors import StoreUnavailable
from relevo.stores.sqlite import file

THREADS = 3

T = TypeVar("T")


class Reading:
    """One question on its way; whoever asked may give it up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._given_up = False

    def begin(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            if self._given_up:
                raise StoreUnavailable("the question waited too long and was given up")
            self._connection = connection

    def end(self) -> None:
        with self._lock:
            self._connection = None

    def give_up(self) -> None:
        """Stop the statement that is running."""
        with self._lock:
            self._given_up = True
            if self._connection is not None:
                self._connection.interrupt()


class Readers:
    """A pool of threads, each with a connection of its own."""

    def __init__(self, path: Path, identity: file.Identity) -> None:
        self._path = path
        self._identity = identity
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="relevo-sqlite-reader")
        self._local = threading.local()
        self._open: set[sqlite3.Connection] = set()

    @property
    def threads(self) -> ThreadPoolExecutor:
        return self._threads

    def ask(self, reading: Reading, question: Callable[[sqlite3.Connection], T]) -> T:
        """Answer a question from one moment of the file."""
        try:
            self._identity.check(writing=False)
            connection = self._connection()
            reading.begin(connection)
            try:
                connection.execute("begin")
                return question(connection)
            finally:
                reading.end()
                if connection.in_transaction:
                    with contextlib.suppress(sqlite3.Error):
                        connection.execute("rollback")
        except sqlite3.Error as error:
            self._drop()
            raise file.translate(error, self._path) from error

    def _connection(self) -> sqlite3.Connection:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = file.connect(self._path, timeout=2.0, reading=True)
            self._local.connection = connection
            self._open.add(connection)
        return connection

    def _drop(self) -> None:
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            self._open.discard(connection)
            connection.close()
            self._local.connection = None

    def close(self) -> None:
        self._threads.shutdown(wait=True)
        for connection in self._open:
            connection.close()
        self._open.clear()
