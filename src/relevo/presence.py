"""Who of this host is alive: a locked file a process, which the kernel unlocks when it dies."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from pathlib import Path
from types import TracebackType

from relevo.errors import SettingsError


class Presence:
    """Holds this worker's file, and tells which neighbours on the same store have gone."""

    def __init__(self, worker: str, store: str) -> None:
        place = hashlib.blake2s(store.encode(), digest_size=8).hexdigest()
        self._directory = Path(tempfile.gettempdir()) / f"relevo-{os.getuid()}" / place
        self._file = self._directory / worker
        self._handle = -1

    def __enter__(self) -> Presence:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._directory.parent.lstat().st_uid != os.getuid():
            raise SettingsError(f"{self._directory.parent} belongs to somebody else: remove it")
        # Locked before it has its name, so that nobody takes a newcomer for a departed one.
        unnamed = self._directory / f".{self._file.name}"
        self._handle = os.open(unnamed, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._handle, fcntl.LOCK_EX)
        unnamed.rename(self._file)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.unlink(missing_ok=True)
        os.close(self._handle)

    def departed(self) -> list[str]:
        """Workers whose file is there but whose process is not."""
        gone: list[str] = []
        try:
            files = list(self._directory.iterdir())
        except FileNotFoundError:
            return gone  # somebody tidied the temporary folder; leases still lapse by themselves
        for file in files:
            if file == self._file or file.name.startswith("."):
                continue
            try:
                handle = os.open(file, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
                gone.append(file.name)
            except BlockingIOError:
                pass
            finally:
                os.close(handle)
        return gone

    def bury(self, worker: str) -> None:
        """Its jobs have been taken back; nobody needs to look again."""
        (self._directory / worker).unlink(missing_ok=True)
