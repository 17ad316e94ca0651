"""Waking workers in other processes: a datagram socket for each one that waits.

The sockets lie in a directory beside the file, `<file>.wake`, private to its owner. A ring is never
waited for and never fails its caller: whoever misses one looks at the file by itself before long.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

ANY = "*"  # stands for all queues
_PATH_MAX = 100  # of a socket's address; 108 on Linux, 104 elsewhere
_DATAGRAM_MAX = 8_192


class Bells:
    """The bells of all processes that use one file, and the sign that this one does."""

    def __init__(self, path: Path) -> None:
        self._folder = folder_of(path)
        self._is_apart = self._folder.parent != path.parent
        self._alive: int | None = None
        self._sender: socket.socket | None = None
        self._seen = 0
        self._others: list[str] = []

    # being there

    def enter(self) -> bool:
        """Show that this process uses the file; True if it is the only one."""
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            if self._folder.stat().st_uid != os.geteuid():
                return False
            self._alive = os.open(self._folder / "alive", os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(self._alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return False  # no place for bells: everyone looks by itself
        return True

    def stay(self) -> None:
        """Let others in; they find out that they are not alone."""
        deadline = time.monotonic() + 1.0
        while self._alive is not None and time.monotonic() < deadline:
            try:
                fcntl.flock(self._alive, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                time.sleep(0.005)
            else:
                return

    def leave(self) -> None:
        """Let go of everything; a folder that lies apart from its file goes with the last one."""
        if self._alive is not None:
            if self._is_apart:
                with contextlib.suppress(OSError):
                    fcntl.flock(self._alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(self._folder)
            os.close(self._alive)
            self._alive = None
        if self._sender is not None:
            self._sender.close()
            self._sender = None

    # ringing

    def listen(self) -> socket.socket | None:
        """A bell of our own, or None where there is no place for one."""
        if self._alive is None:
            return None
        bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            bell.setblocking(False)
            bell.bind(str(self._folder / f"{os.getpid()}-{os.urandom(4).hex()}.sock"))
        except OSError:
            bell.close()
            return None
        return bell

    def ring(self, queues: Iterable[str]) -> None:
        """Tell the other processes that these queues have work."""
        others = self._look()
        if not others:
            return
        message = "\n".join(queues).encode("utf-8", "replace")
        if len(message) > _DATAGRAM_MAX:
            message = ANY.encode()
        if self._sender is None:
            self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._sender.setblocking(False)
        for other in others:
            try:
                self._sender.sendto(message, other)
            except ConnectionRefusedError:
                _unlink(other)  # its process has died
            except OSError:
                continue  # full: it has enough to wake up for; or gone

    def _look(self) -> list[str]:
        if self._alive is None:
            return []
        try:
            changed = os.stat(self._folder).st_mtime_ns  # noqa: PTH116 - once per commit
            if changed != self._seen:
                ours = f"{os.getpid()}-"
                self._others = [
                    str(self._folder / name)
                    for name in os.listdir(self._folder)  # noqa: PTH208 - names are enough
                    if name.endswith(".sock") and not name.startswith(ours)
                ]
                self._seen = changed
        except OSError:
            self._others = []
        return self._others


def hear(bell: socket.socket) -> set[str]:
    """The queues that were rung for since the last look."""
    queues: set[str] = set()
    with contextlib.suppress(OSError):
        for _ in range(256):
            queues.update(bell.recv(_DATAGRAM_MAX + 1).decode("utf-8", "replace").split("\n"))
    return queues


def hush(bell: socket.socket) -> None:
    """Take our own bell down."""
    name = bell.getsockname()
    bell.close()
    if name:
        _unlink(name)


def _unlink(name: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name)  # noqa: PTH108 - a socket's address is a string


def folder_of(path: Path) -> Path:
    """Where the bells of a file hang: beside it, or where its path is too long for a socket."""
    folder = Path(f"{path}.wake")
    if len(os.fsencode(folder)) + len("/4194304-00000000.sock") <= _PATH_MAX:
        return folder
    name = blake2b(os.fsencode(path.resolve()), digest_size=8).hexdigest()
    return Path(tempfile.gettempdir()) / f"relevo-{os.geteuid()}-{name}.wake"
