"""The write-ahead log: when it has outgrown itself it is read out beside the writer, then cut back.

Usually the writer reads a short log out after a commit. A reader with an old snapshot keeps it from
doing so, and once that reader lets go, reading out all that has piled up takes longer than a caller
may wait.
"""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

from relevo.stores.sqlite import file

PAUSE = 0.5  # seconds between two tries


class Log:
    """Looks after the log of one file; the writer calls it, a thread of its own does the work."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._behind = 0  # pages still to be read out
        self._reader: sqlite3.Connection | None = None

    def tend(self, writer: sqlite3.Connection, size: int) -> None:
        """After a commit, or when called for: hand a large log over, or cut it off once read."""
        if self._thread is None:
            if size > file.WAL_LIMIT:
                writer.execute("pragma wal_autocheckpoint = 0")
                self._behind = size // file.PAGE_SIZE
                self._thread = threading.Thread(
                    target=self._read_out, name="relevo-sqlite-log", daemon=True
                )
                self._thread.start()
        elif self._behind <= file.WAL_PAGES or not self._thread.is_alive():
            (is_busy, _, _) = writer.execute("pragma wal_checkpoint(truncate)").fetchone()
            if not is_busy:
                writer.execute(f"pragma wal_autocheckpoint = {file.WAL_PAGES}")
                self._thread = None  # it ends by itself

    def stop(self) -> None:
        """End the thread, in the middle of its work if need be."""
        self._stopped.set()
        if self._thread is not None:
            if self._reader is not None:
                self._reader.interrupt()
            self._thread.join()

    def _read_out(self) -> None:
        try:
            self._reader = file.connect(self._path, timeout=0)
            try:
                while self._is_large() and not self._stopped.wait(PAUSE):
                    row = self._reader.execute("pragma wal_checkpoint(passive)").fetchone()
                    _, pages, read = row
                    self._behind = max(0, pages - read)
            finally:
                self._reader.close()
        except (sqlite3.Error, OSError):
            return  # the writer meets the same trouble, and begins anew

    def _is_large(self) -> bool:
        return Path(f"{self._path}-wal").stat().st_size > file.WAL_LIMIT
