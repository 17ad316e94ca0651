"""Which worker processes of this host are alive, and which jobs each of them runs.

Every process holds a locked file in a folder that all workers of a store share; the kernel unlocks
it when the process dies. The file is mapped into memory and names the jobs that are running, so
that the other processes can still read them there after a kill -9.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from msgspec import Struct

from relevo.errors import SettingsError

TOGETHER = 2.0
"""Deaths within so many seconds of each other, or of an order to stop, have a common cause: none of
them is blamed on a job."""

_SLOT = 32  # a job's id
_COUNTED = 32  # where the job stands whose crash was counted before its run
_HEAD = _COUNTED + _SLOT  # bytes before the slots; the first two: is it alone, was it told to stop
_GONE, _DEAD, _STOPPED, _LONE = ".gone-", ".dead-", ".stopped", ".lone"
_FORGET = 60.0  # seconds after which a death explains no other

_locked: set[int] = set()  # the handles by which this process holds its locks


def _let_go(handle: int) -> None:
    if handle in _locked:  # not in a child, where the number may be another file's by now
        _locked.remove(handle)
        os.close(handle)


def _let_all_go() -> None:
    for handle in list(_locked):
        _let_go(handle)


# A child that outlives this process would hold its locks, and it would seem to be alive.
os.register_at_fork(after_in_child=_let_all_go)


class Departed(Struct, frozen=True):
    """A worker process that is dead, and what it was running."""

    worker: str
    running: tuple[str, ...]  # the ids of the jobs that had begun and not ended
    counted: str  # the last job whose crash was counted before its run, whether or not it runs
    was_alone: bool  # it ran one suspected job, and nothing beside
    was_stopping: bool
    found_at: float  # wall clock


def running_of(data: bytes) -> tuple[str, ...]:
    """The jobs that a process's file says are running."""
    return tuple(id for at in range(_HEAD, len(data), _SLOT) if (id := _id_at(data, at)))


def _id_at(data: bytes, at: int) -> str:
    """The id in a slot, or '' where its first byte says that there is none."""
    slot = data[at : at + _SLOT].ljust(1, b"\0")
    return slot.decode("ascii", "replace") if slot[0] else ""


def directory_of(store: str) -> Path:
    """The folder that the processes of this host and user on a store share."""
    place = hashlib.blake2s(store.encode(), digest_size=8).hexdigest()
    return Path(tempfile.gettempdir()) / f"relevo-{os.getuid()}" / place


class Presence:
    """This worker's file, and the files of its neighbours on the same store."""

    def __init__(self, worker: str, store: str, slots: int = 0) -> None:
        self._directory = directory_of(store)
        self._file = self._directory / worker
        self._handle = -1
        self._size = _HEAD + slots * _SLOT
        self._map = memoryview(bytearray(self._size))

    def __enter__(self) -> Presence:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._directory.parent.lstat().st_uid != os.getuid():
            raise SettingsError(f"{self._directory.parent} belongs to somebody else: remove it")
        # Locked before it has its name, so that no neighbour takes a newcomer for a departed one.
        unnamed = self._directory / f".{self._file.name}"
        self._handle = os.open(unnamed, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        _locked.add(self._handle)
        fcntl.flock(self._handle, fcntl.LOCK_EX)
        # Opened once more, since a mapping keeps a handle of its own, and with it the lock.
        with unnamed.open("r+b", buffering=0) as file:
            # Written, not only made so long: where a full disk had no place for a page of it, the
            # first job that is noted there would kill this process.
            if file.write(bytes(self._size)) < self._size:
                raise SettingsError(f"no place is left for {self._file}")
            self._map = memoryview(mmap.mmap(file.fileno(), self._size))
        unnamed.rename(self._file)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()
        _let_go(self._handle)

    def leave(self) -> None:
        """Take the file away: what this process had is settled or given back."""
        self._file.unlink(missing_ok=True)

    # what this process does

    def slot(self, number: int) -> memoryview:
        """Where a runner writes the id of the job it runs; a first byte of 0 says that it rests."""
        at = _HEAD + number * _SLOT
        return self._map[at : at + _SLOT]

    def set_alone(self, is_alone: bool) -> None:
        """Say whether this process runs one suspected job, and nothing beside it."""
        self._map[0] = is_alone

    def set_counted(self, job: str) -> None:
        """Say that a crash is counted for this job from now on, until its ending is settled."""
        self._map[_COUNTED:_HEAD] = job.encode()

    def stopping(self) -> None:
        """Say that this process was told to stop."""
        self._map[1] = True
        with suppress(OSError):  # it stops all the same
            (self._directory / _STOPPED).touch()

    @property
    def is_stopping(self) -> bool:
        return bool(self._map[1])

    def is_quiet(self, job: str) -> bool:
        """Whether no worker of the host was told to stop lately, or has died that did not run this
        job: if the process that runs it died now, there would be no other cause."""
        self._find_departed()
        # A moment that lies ahead is from before the clock was set back, and says nothing.
        now, within = time.time(), TOGETHER + 0.5
        moments = [*self._other_deaths(job), self._stopped_at()]
        return not any(abs(now - at) <= within for at in moments)

    def lone_on_host(self) -> int | None:
        """A lock that one process of the host has at a time; None while another has it. It ends
        with let_go() or with the process."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)  # if it was tidied away
        handle = os.open(self._directory / _LONE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        _locked.add(handle)
        return handle

    def let_go(self, lock: int) -> None:
        """Let another process of the host have the lock."""
        _let_go(lock)

    # what became of the others

    def departed(self) -> list[Departed]:
        """Workers whose file is there but whose process is not, until they are buried."""
        self._find_departed()
        gone: list[Departed] = []
        for file in self._files(_GONE):
            try:
                found_at, data = file.stat().st_mtime, file.read_bytes()
            except FileNotFoundError:
                continue  # buried by a neighbour meanwhile
            head = data[:2].ljust(2, b"\0")
            name = file.name.removeprefix(_GONE)
            gone.append(
                Departed(
                    worker=name,
                    running=running_of(data),
                    counted=_id_at(data, _COUNTED),
                    was_alone=bool(head[0]),
                    was_stopping=bool(head[1]),
                    found_at=found_at,
                )
            )
        return gone

    def is_decided(self, gone: Departed) -> bool:
        """Whether enough time has passed to know what died or stopped together with it."""
        return not 0 <= time.time() - gone.found_at < TOGETHER

    def has_other_cause(self, gone: Departed) -> bool:
        """Whether a process died because the host, or an order to stop, ended several at once."""
        job = gone.running[0] if gone.was_alone and gone.running else ""
        moments = [*self._other_deaths(job, but=gone.worker), self._stopped_at()]
        return gone.was_stopping or any(abs(at - gone.found_at) <= TOGETHER for at in moments)

    def bury(self, worker: str) -> None:
        """Its jobs have been taken back; no neighbour needs to look again."""
        with suppress(FileNotFoundError):  # a neighbour was faster
            (self._directory / f"{_GONE}{worker}").rename(self._directory / f"{_DEAD}{worker}")
        for file in self._files(_DEAD):
            try:
                if time.time() - file.stat().st_mtime > _FORGET:
                    file.unlink(missing_ok=True)
            except FileNotFoundError:
                continue

    def _find_departed(self) -> None:
        """Write down when each neighbour's death was found: its file changes name and time."""
        for file in self._files(""):
            if file == self._file:
                continue
            try:
                handle = os.open(file, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.utime(handle)
                file.rename(self._directory / f"{_GONE}{file.name}")
            except (BlockingIOError, FileNotFoundError):
                pass  # it is alive, or a neighbour is looking at it
            finally:
                os.close(handle)

    def _other_deaths(self, job: str, but: str = "") -> list[float]:
        """When the deaths of the last minute were found of processes that did not run this job."""
        moments: list[float] = []
        for mark in (_GONE, _DEAD):
            for file in self._files(mark):
                try:
                    if file.name != f"{mark}{but}" and job not in running_of(file.read_bytes()):
                        moments.append(file.stat().st_mtime)
                except FileNotFoundError:
                    continue
        return moments

    def _stopped_at(self) -> float:
        try:
            return (self._directory / _STOPPED).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def _files(self, mark: str) -> list[Path]:
        """The files of one kind; none once somebody has tidied the temporary folder."""
        try:
            files = list(self._directory.iterdir())
        except FileNotFoundError:
            return []
        if not mark:
            return [file for file in files if not file.name.startswith(".")]
        return [file for file in files if file.name.startswith(mark)]
