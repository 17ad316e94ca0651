"""The file itself: its address, connections to it, what its errors mean, whether it is whole."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import parse_qsl, quote, unquote

from relevo.errors import SchemaMismatch, SettingsError, StoreDamaged, StoreError, StoreUnavailable
from relevo.stores.sqlite import holders

PAGE_SIZE = 8_192
WAL_PAGES = 4_000  # checkpoint when the log has grown by so many
WAL_LIMIT = 64 << 20  # a log larger than this is cut back once it is read out
SMALL = 8 << 20  # a file up to this size is checked whenever it is opened
MEDIUM = 64 << 20  # and up to this one after a process died with it open

Synchronous = Literal["full", "normal"]


class Address(NamedTuple):
    """Where the file is, and how its commits reach the disk."""

    path: Path
    synchronous: Synchronous

    @property
    def url(self) -> str:
        """The same file from wherever it is read: a process may change its directory."""
        name = str(self.path).replace("%", "%25").replace("?", "%3F")
        how = "" if self.synchronous == "full" else f"?synchronous={self.synchronous}"
        return f"sqlite:///{name}{how}"


def parse(url: str) -> Address:
    """Read `sqlite:///relative.db` or `sqlite:////absolute.db`, with `?synchronous=normal`."""
    head, _, query = url.partition("?")
    scheme, _, rest = head.partition("://")
    name = unquote(rest[1:]) if rest.startswith("/") else ""
    if scheme != "sqlite" or not name or name == ":memory:" or "\0" in name:
        raise SettingsError(
            f"{url!r:.80} names no SQLite file: write sqlite:///relevo.db (here) or "
            "sqlite:////var/lib/relevo/relevo.db (anywhere); there is no store in memory"
        )
    synchronous: Synchronous = "full"
    for option, value in parse_qsl(query, keep_blank_values=True):
        if option != "synchronous" or value.lower() not in ("full", "normal"):
            raise SettingsError(
                f"a SQLite store has one option, ?synchronous=full (default) or "
                f"?synchronous=normal, not {option}={value!r:.40}"
            )
        synchronous = "normal" if value.lower() == "normal" else "full"
    return Address(Path(os.path.abspath(name)), synchronous)  # noqa: PTH100 - resolve() follows links


def connect(
    path: Path, synchronous: Synchronous = "full", *, timeout: float, reading: bool = False
) -> sqlite3.Connection:
    """A connection to an existing file; it never makes a new one."""
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?mode=rw",
        uri=True,
        timeout=timeout,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=512,
    )
    try:
        connection.execute(f"pragma synchronous = {synchronous}")
        connection.execute("pragma temp_store = memory")
        if reading:
            connection.execute("pragma cache_size = -4096")
            connection.execute("pragma query_only = on")
        else:
            connection.execute("pragma cache_size = -8192")
            connection.execute(f"pragma wal_autocheckpoint = {WAL_PAGES}")
            connection.execute(f"pragma journal_size_limit = {WAL_LIMIT}")
    except BaseException:
        connection.close()
        raise
    return connection


# errors

_FULL = "the disk of the database is full: free some space; jobs are taken again by themselves"
_UNAVAILABLE = {
    sqlite3.SQLITE_BUSY: "another process has the SQLite file locked: try again",
    sqlite3.SQLITE_LOCKED: "another connection has the SQLite tables locked: try again",
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_READONLY: "the SQLite file or its directory is read-only: make both writable",
    sqlite3.SQLITE_PERM: "the SQLite file may not be accessed: check its owner and mode",
    sqlite3.SQLITE_CANTOPEN: "the SQLite file cannot be opened: check that it, its directory and "
    "free file handles are there",
    sqlite3.SQLITE_IOERR: "reading or writing the SQLite file failed: check the disk",
    sqlite3.SQLITE_NOMEM: "SQLite ran out of memory",
    sqlite3.SQLITE_INTERRUPT: "the question took too long and was given up: ask for less",
    sqlite3.SQLITE_PROTOCOL: "the SQLite file is too contended: try again",
}
DAMAGED = (
    "stop every process, keep the file and its -wal for a look, and restore the last backup "
    "(relevo database backup), or save what is left with: sqlite3 FILE .recover"
)


def is_fatal(error: BaseException) -> bool:
    """Whether an error concerns the whole transaction rather than one verb in it."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return False
    return code & 0xFF in _UNAVAILABLE or code & 0xFF in (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
    )


def translate(error: BaseException, path: Path | str) -> BaseException:
    """The error a caller is given for what the driver raised."""
    if not isinstance(error, sqlite3.Error):
        return error
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code == sqlite3.SQLITE_BUSY and (by := _holder(error, path)):
        return StoreUnavailable(f"the SQLite file is locked by {by} ({path}: {error})")
    if code in _UNAVAILABLE:
        return StoreUnavailable(f"{_UNAVAILABLE[code]} ({path}: {error})")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreDamaged(f"{path} is damaged ({error}): {DAMAGED}")
    if "no such table" in str(error) or "no such column" in str(error):
        return SchemaMismatch(f"{path}: {error}; run `relevo migrate`")
    if isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error):
        return StoreUnavailable(f"the connection to {path} is closed")
    return StoreError(f"{path}: {error}")


def _holder(error: BaseException, path: Path | str) -> str:
    """Which process has the file locked; looked up once for an error that many callers get."""
    if not hasattr(error, "holder"):
        found = holders.holder(path)
        error.holder = "" if found is None else str(found)  # pyright: ignore[reportAttributeAccessIssue] - ours
    return error.holder  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]


# the same file, and a whole one


class Identity:
    """The file that was opened, told from one put in its place."""

    def __init__(self, path: Path) -> None:
        self._path = os.fspath(path)
        self._wal = self._path + "-wal"
        self._seen = self._look(self._path)
        self._seen_wal: tuple[int, int] | None = None
        self.wal_size = 0

    @staticmethod
    def _look(path: str) -> tuple[int, int]:
        found = os.stat(path)  # noqa: PTH116 - once per transaction
        return found.st_dev, found.st_ino

    def begin_anew(self) -> None:
        """Before a fresh connection: while there was none, the log may have been made anew."""
        self._seen_wal = None

    def check(self, *, writing: bool = True) -> None:
        """Raise if what lies at the path is not the file that is open, or may not be written."""
        try:
            found = os.stat(self._path)  # noqa: PTH116 - once per transaction
        except OSError as error:
            raise StoreDamaged(
                f"{self._path} was deleted or moved away while it was in use: put the very file "
                "back, or stop every process and restore it from a backup; nothing is written "
                "until then"
            ) from error
        if (found.st_dev, found.st_ino) != self._seen:
            raise StoreDamaged(
                f"{self._path} was replaced while it was in use: stop every process before a "
                "restore, then start them again; nothing is written until then"
            )
        if writing and not found.st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH):
            raise StoreUnavailable(
                f"{self._path} was made read-only: chmod u+w lets the jobs go on"
            )
        try:
            wal = os.stat(self._wal)  # noqa: PTH116 - once per transaction
        except OSError:
            if self._seen_wal is not None:
                raise StoreDamaged(
                    f"{self._wal} was deleted while it was in use; it held the newest jobs: stop "
                    "every process, then start them again"
                ) from None
            return
        self.wal_size = wal.st_size
        if self._seen_wal is None:
            self._seen_wal = (wal.st_dev, wal.st_ino)
        elif self._seen_wal != (wal.st_dev, wal.st_ino):
            raise StoreDamaged(
                f"{self._wal} was replaced while it was in use: stop every process, then start "
                "them again"
            )


def examine(path: Path, *, clean: bool) -> None:
    """Refuse a file that is torn or not ours, as far as can be told quickly.

    SQLite alone touches the file: were we to open and close it, the locks that other connections
    of this process have on it would be gone, and the next process to leave would throw away the
    log that they still write to.
    """
    try:
        size = path.stat().st_size
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be read: {error}") from error
    if not size:
        raise StoreDamaged(f"{path} is empty: {DAMAGED}")
    is_quick = size <= SMALL or (not clean and size <= MEDIUM)
    try:
        connection = connect(path, timeout=2.0)
        try:
            connection.execute("pragma query_only = on")
            (pages,) = connection.execute("pragma page_count").fetchone()
            (page,) = connection.execute("pragma page_size").fetchone()
            question = "pragma quick_check(1)" if is_quick else "select 'ok'"
            (answer,) = connection.execute(question).fetchone()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise translate(error, path) from error
    # Looked at last, as others may be writing: a file whose log is read out has all its pages.
    log = Path(f"{path}-wal")
    if not (log.exists() and log.stat().st_size) and (size := path.stat().st_size) < pages * page:
        answer = f"{size} of {pages * page} bytes are there"
    if answer != "ok":
        raise StoreDamaged(f"{path} is damaged ({answer}): {DAMAGED}")


def create(path: Path) -> None:
    """Make an empty database, private to its owner, whole from the first moment it is seen."""
    draft = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        connection = sqlite3.connect(draft, isolation_level=None)
        try:
            connection.execute(f"pragma page_size = {PAGE_SIZE}")
            connection.execute("pragma journal_mode = wal")
            connection.execute(
                "create table relevo_schema "
                "(version integer primary key, name text, readable_from integer)"
            )
        finally:
            connection.close()
        try:
            os.link(draft, path)
        except FileExistsError:
            return  # another process was quicker; its file is as good
    except sqlite3.Error as error:
        raise translate(error, path) from error
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be made: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()
