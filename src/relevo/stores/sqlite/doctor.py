"""What could be wrong with the file and its surroundings, and copies of it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

from relevo.errors import MisuseError, StoreUnavailable
from relevo.store import Finding
from relevo.stores.sqlite import file
from relevo.stores.sqlite.holders import holder
from relevo.stores.sqlite.writer import Writer

LOW_SPACE = 256 << 20
DRIFT = 2_000  # milliseconds that clocks may differ by
_REMOTE = ("nfs", "cifs", "smb", "afs", "9p", "ceph", "gluster", "sshfs", "lustre", "beegfs")


def check(shared: Writer, address: file.Address) -> list[Finding]:
    """Everything there is to say about a file in use."""
    return [
        *_durability(address),
        *_modes(address.path),
        *_space(address.path),
        *_log(address.path),
        *place(address.path),
        *_clock(shared),
        *_lock(address.path),
    ]


def _say(level: str, subject: str, message: str) -> Finding:
    return Finding(level="ok" if level == "ok" else "warning", subject=subject, message=message)


def _lock(path: Path) -> Iterator[Finding]:
    found = holder(path)
    if found is not None and found.is_stopped:
        yield _say("warning", "lock", f"nothing can be written: the file is locked by {found}")


def _durability(address: file.Address) -> Iterator[Finding]:
    if address.synchronous == "full":
        yield _say("ok", "durability", "every commit reaches the disk before it is answered")
    else:
        yield _say(
            "warning",
            "durability",
            "synchronous=normal: a power cut may take the last commits with it; leave the option "
            "out of the store's address to keep them",
        )


def _modes(path: Path) -> Iterator[Finding]:
    open_ = [
        one
        for one in (path, Path(f"{path}-wal"), Path(f"{path}-shm"))
        if one.exists() and one.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    ]
    if open_:
        names = " ".join(map(str, open_))
        yield _say("warning", "file modes", f"others may read the jobs: chmod 600 {names}")
    else:
        yield _say("ok", "file modes", "only its owner may read the database")


def _space(path: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(path.parent).free
    level = "ok" if free >= LOW_SPACE else "warning"
    advice = "" if free >= LOW_SPACE else ": free some before jobs are refused"
    yield _say(level, "disk space", f"{free >> 20} MiB are free{advice}")


def _log(path: Path) -> Iterator[Finding]:
    log = Path(f"{path}-wal")
    size, whole = log.stat().st_size if log.exists() else 0, path.stat().st_size
    if size > 2 * file.WAL_LIMIT and size > whole:
        yield _say(
            "warning",
            "write-ahead log",
            f"it has {size >> 20} MiB, more than the database ({whole >> 20} MiB): some process "
            "keeps a read transaction open; end it, and the log shrinks by itself",
        )
    else:
        yield _say("ok", "write-ahead log", f"{size >> 20} MiB")


def place(path: Path) -> Iterator[Finding]:
    """Whether the file lies where SQLite's locks can be trusted."""
    kind = _file_system(path)
    if any(word in kind for word in _REMOTE):
        yield _say(
            "warning",
            "file system",
            f"the file lies on {kind}: SQLite's locks are not safe over a network; use a local "
            "disk, or PostgreSQL",
        )
    else:
        yield _say("ok", "file system", kind or "unknown")


def _file_system(path: Path) -> str:
    """The kind of file system a path lies on; empty where that is not to be found out."""
    try:
        mounts = Path("/proc/self/mounts").read_text("utf-8", "replace")
    except OSError:
        return ""
    best, kind = "", ""
    whole = str(path.resolve())
    for line in mounts.splitlines():
        _, point, name, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        inside = whole == point or whole.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, name
    return kind


def _clock(shared: Writer) -> Iterator[Finding]:
    drift = shared.anchor.drift()
    if abs(drift) > DRIFT:
        yield _say(
            "warning",
            "clock",
            f"this process's clock is {abs(drift) / 1000:.1f} s "
            f"{'ahead of' if drift > 0 else 'behind'} the one all processes share on this file; "
            "set it right, then restart them together",
        )
    else:
        yield _say("ok", "clock", "this process agrees with the file's clock")


def backup(source: Path, target: Path) -> None:
    """Copy a database in use; the copy is one moment of it, whole."""
    draft = target.with_name(f".{target.name}.{os.getpid()}-{os.urandom(4).hex()}")
    if target.exists():
        raise MisuseError(f"{target} is there already: choose another name for the backup")
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        original = file.connect(source, timeout=2.0, reading=True)
        copy = sqlite3.connect(draft)
        try:
            original.backup(copy, pages=-1)
            copy.execute("pragma journal_mode = delete")  # one file, nothing beside it
        finally:
            copy.close()
            original.close()
        os.link(draft, target)
    except sqlite3.Error as error:
        raise file.translate(error, source) from error
    except OSError as error:
        raise StoreUnavailable(f"the backup {target} cannot be written: {error}") from error
    finally:
        draft.unlink(missing_ok=True)
