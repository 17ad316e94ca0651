"""Puts a copy in the place of a SQLite store: verified first, and what was there is kept.

draft = prepare(copy, target, force=False)  # which is then brought up to date and marked
put(draft, target)
drop(draft)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from relevo.errors import DefinitionError, MisuseError, StoreUnavailable
from relevo.stores.sqlite import schema
from relevo.stores.sqlite.holders import user
from relevo.stores.sqlite.wake import folder_of
from relevo.stores.versions import judge_age

_MAGIC = b"SQLite format 3\0"
_DEAD_MAN_BYTE = (
    128  # of the index of the log: locked by every connection for as long as it is open
)


def verify(copy: Path) -> None:
    """Refuse what is no whole copy of a store that this relevo can read."""
    if not copy.is_file():
        raise DefinitionError(f"{copy} is no file")
    log = Path(f"{copy}-wal")
    if log.exists() and log.stat().st_size:
        raise DefinitionError(
            f"{log} lies beside the copy: it was copied while it was in use, or is in use now. "
            f"Make one file of both with `relevo database backup --store sqlite:///{copy} "
            "NEW.db`, and restore that"
        )
    with copy.open("rb") as opened:
        head = opened.read(len(_MAGIC))
    if head != _MAGIC:
        raise DefinitionError(f"{copy} is no SQLite database")
    try:
        # Immutable: the copy may lie where nothing can be written beside it.
        name = f"file:{quote(str(copy.absolute()))}?mode=ro&immutable=1"
        with contextlib.closing(sqlite3.connect(name, uri=True)) as connection:
            (answer,) = connection.execute("pragma integrity_check(1)").fetchone()
            found = schema.read(connection)
    except sqlite3.Error as error:
        raise DefinitionError(f"{copy} is damaged ({error}): take another copy") from error
    if answer != "ok":
        raise DefinitionError(f"{copy} is damaged ({answer}): take another copy")
    if not found.number:
        raise DefinitionError(f"{copy} is a SQLite database, but no store of relevo")
    judge_age(found, str(copy))


def prepare(copy: Path, target: Path, *, force: bool) -> Path:
    """Verify a copy and what lies in its place; answers a draft of the store beside that."""
    verify(copy)
    _refuse_in_use(target)
    log = Path(f"{target}-wal")
    if log.exists() and not force:
        raise MisuseError(
            f"{log} lies there with the newest commits of the store that is to be replaced, and "
            "would be played into the copy: add --force to take both away; they are kept beside it"
        )
    draft = target.with_name(f".{target.name}.{os.getpid()}-{os.urandom(4).hex()}")
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _copy(copy, draft)
    except OSError as error:
        drop(draft)
        raise StoreUnavailable(f"{copy} cannot be put at {target}: {error}") from error
    return draft


def put(draft: Path, target: Path) -> list[Path]:
    """Put a draft in its place; names the files that were there, under their new names."""
    log = Path(f"{draft}-wal")
    if log.exists() and log.stat().st_size:
        raise StoreUnavailable(f"{log} was not read out: try again")
    _refuse_in_use(target)
    try:
        kept = _take_away(target)
        os.link(draft, target)
        _sync(target.parent)
    except OSError as error:
        raise StoreUnavailable(f"the copy cannot be put at {target}: {error}") from error
    return kept


def drop(draft: Path) -> None:
    """Remove a draft and what lies beside it."""
    for suffix in ("", "-wal", "-shm"):
        Path(f"{draft}{suffix}").unlink(missing_ok=True)
    shutil.rmtree(folder_of(draft), ignore_errors=True)


def _refuse_in_use(path: Path) -> None:
    """Refuse a file that any process has open."""
    found = user(path)
    if found is None and not _is_locked(path):
        return
    by = "a process" if found is None else str(found)
    raise MisuseError(
        f"{by} has {path} open: stop it first, and every other one that uses the store"
    )


def _is_locked(path: Path) -> bool:
    """Whether some connection is open, also one of a process that may not be looked at."""
    try:
        with Path(f"{path}-shm").open("r+b") as index:
            fcntl.lockf(index, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _DEAD_MAN_BYTE)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _copy(source: Path, draft: Path) -> None:
    handle = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with source.open("rb") as given, os.fdopen(handle, "wb") as made:
        shutil.copyfileobj(given, made, 1 << 20)
        made.flush()
        os.fsync(made.fileno())


def _take_away(target: Path) -> list[Path]:
    """Rename a store's files, so that SQLite can still open them together."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    name = target.with_name(f"{target.name}.before-{stamp}")
    while name.exists():
        name = name.with_name(f"{name.name}-again")
    kept: list[Path] = []
    for suffix in ("", "-wal", "-shm"):
        there = Path(f"{target}{suffix}")
        if there.exists():
            kept.append(there.rename(Path(f"{name}{suffix}")))
    return kept


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
