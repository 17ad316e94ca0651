"""Which other process has the file locked, as far as Linux tells."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

# As in SQLite's own files: the byte of the write lock in the index of the log, and the bytes of the
# file itself that are locked while it is closed to all others.
_WRITE_BYTE = 120
_PENDING_BYTE = 0x40000000
_LOCK = re.compile(
    r"POSIX +\S+ +WRITE +(?P<pid>\d+) +\S+:(?P<inode>\d+) +(?P<first>\d+) +(?P<last>\d+|EOF)"
)
_NAME_MAX = 80


class Holder(NamedTuple):
    """A process that has the file locked for writing."""

    pid: int
    command: str
    is_stopped: bool

    def __str__(self) -> str:
        named = f"process {self.pid} ({self.command})"
        if not self.is_stopped:
            return named
        return f"{named}, which is stopped: continue it with `kill -CONT {self.pid}`, or end it"


def holder(path: Path | str) -> Holder | None:
    """The other process that may write to the file now; None if there is none, or nobody knows."""
    try:
        lines = Path("/proc/locks").read_text()
    except OSError:
        return None
    for file, byte in ((f"{path}-shm", _WRITE_BYTE), (f"{path}", _PENDING_BYTE)):
        try:
            wanted = os.stat(file)  # noqa: PTH116 - a name without a Path
        except OSError:
            continue
        for found in _LOCK.finditer(lines):
            last = float("inf") if found["last"] == "EOF" else int(found["last"])
            pid = int(found["pid"])
            if (
                int(found["inode"]) == wanted.st_ino
                and int(found["first"]) <= byte <= last
                and pid != os.getpid()
                and _has_open(pid, wanted)
            ):
                return Holder(pid, _command(pid), _is_stopped(pid))
    return None


class User(NamedTuple):
    """A process that has the file open."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command})"


def user(path: Path | str) -> User | None:
    """Another process that has the file open; None if there is none, or nobody may look."""
    try:
        wanted = os.stat(path)  # noqa: PTH116 - a name without a Path
        pids = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]
    except OSError:
        return None
    for pid in pids:
        if pid != os.getpid() and _has_open(pid, wanted, unknown=False):
            return User(pid, _command(pid))
    return None


def _has_open(pid: int, wanted: os.stat_result, *, unknown: bool = True) -> bool:
    """Whether it has that very file open: inodes repeat across disks; `unknown` if we may not
    look."""
    try:
        handles = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return unknown
    for handle in handles:
        try:
            if os.path.samestat(handle.stat(), wanted):
                return True
        except OSError:
            continue
    return False


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "its name is not told"
    shown = " ".join(word.decode("utf-8", "replace") for word in words if word)
    return shown[:_NAME_MAX] or "it has no name"


def _is_stopped(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in ("T", "t")
