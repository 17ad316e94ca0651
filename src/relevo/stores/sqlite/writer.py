"""The writer: one thread per file and process, and one commit for everyone who waits.

It takes all commands that have piled up, runs them in one transaction and resolves their futures
with one call into each event loop. A lone command goes at once; while a commit is on its way to the
disk the next ones gather by themselves.

Two threads that both run Python wait for each other more than they work. So commands that nobody is
in the way of do not wait for that thread: short ones run where they are, in the event loop, and a
second thread has only the commit to make; the most frequent are a single statement, which that
second thread runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple, Protocol

from relevo.clock import Clock
from relevo.errors import StoreDamaged, StoreUnavailable
from relevo.store import BATCH
from relevo.stores.sqlite import arriving, file, schema, taking
from relevo.stores.sqlite.anchor import Anchor, boot_id, wall_offset
from relevo.stores.sqlite.command import Command, Outcome, Stroke
from relevo.stores.sqlite.log import Log
from relevo.stores.sqlite.readers import Readers
from relevo.stores.sqlite.transaction import Known, Tx
from relevo.stores.sqlite.turns import Turns
from relevo.stores.sqlite.wake import Bells

PATIENCE = 4.0  # seconds a command waits for another process to let go of the file
SLICE = 0.25  # seconds after which those who have waited long enough are told so
WEIGHT = 4_000  # jobs in one transaction, about
HANDOVER = 0.001  # seconds a caller lets the thread begin, at most
IDLE = 0.5  # seconds between looks at a log that has to be cut back, when nobody writes
MILLISECOND = timedelta(milliseconds=1)


class Listener(Protocol):
    """Someone in this process who wants to know which queues have work."""

    def wake(self, queues: set[str]) -> None: ...


class Begun(NamedTuple):
    """A transaction that has come to its commit, or is one statement."""

    tx: Tx
    batch: list[Command]
    outcomes: list[Outcome]
    stroke: Stroke | None = None


class Writer:
    """Everything a process has open on one file, shared by all its handles."""

    def __init__(self, address: file.Address) -> None:
        self.path = address.path
        self._address = address
        self.identity = file.Identity(self.path)
        self.bells = Bells(self.path)
        self.known = Known()
        self.turns = Turns()
        self.listeners: set[Listener] = set()
        self.users = 0
        self._log = Log(self.path)
        self._commands: SimpleQueue[list[Command] | None] = SimpleQueue()
        self._begun: SimpleQueue[Begun | None] = SimpleQueue()
        self._is_inherited = False
        self._is_watching = False
        self._is_at_work = threading.Event()  # in the file, and so without the interpreter's lock
        self._connection: sqlite3.Connection | None = None
        alone = self.bells.enter()
        try:
            file.examine(self.path, clean=not alone or not _left_open(self.path))
            self._connection = self._enter()
            self.anchor = self._anchor(alone)
            self.bells.stay()
            self.readers = Readers(self.path, self.identity)
        except BaseException as error:
            self._disconnect()
            self.bells.leave()
            if isinstance(error, sqlite3.Error):
                raise file.translate(error, self.path) from error
            raise
        self._working = threading.Thread(target=self._work, name="relevo-sqlite", daemon=True)
        self._committing = threading.Thread(
            target=self._finish_all, name="relevo-sqlite-commit", daemon=True
        )
        self._working.start()
        self._committing.start()

    # what its handles ask of it

    def submit(self, commands: list[Command]) -> None:
        """Have commands run in the next transaction."""
        if not self._begin_here(commands):
            self._commands.put(commands)
        elif all(command.merged for command in commands):
            return
        # Let the thread begin: it needs the interpreter's lock before its first long statement,
        # and a loop that is busy with jobs would keep it for 5 ms each time.
        self._is_at_work.wait(HANDOVER)

    def now(self, clock: Clock) -> int:
        """The common time, moved by what a test has added to its clock."""
        return self.anchor.now() + clock.offset // MILLISECOND

    def wake(self, queues: set[str]) -> None:
        """Tell everyone, here and elsewhere, that these queues have work."""
        for listener in tuple(self.listeners):
            listener.wake(queues)
        self.bells.ring(queues)

    def stop(self) -> None:
        """Run what is waiting, then let go of the file."""
        self._begun.put(None)
        self._committing.join()  # it may have something left for the other
        self._commands.put(None)
        self._working.join()
        self._log.stop()
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("pragma wal_checkpoint(truncate)")
        self._disconnect()
        self.readers.close()
        self.bells.leave()

    # life

    def _enter(self) -> sqlite3.Connection:
        """Connect for the first time; who comes or goes at the same moment is waited for."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                connection = self._connect()
                try:
                    schema.check(connection, self.path)
                except BaseException:
                    connection.close()
                    raise
            except (sqlite3.Error, StoreUnavailable) as error:
                if time.monotonic() > deadline or not _is_busy(error.__cause__ or error):
                    raise
                time.sleep(0.01)
            else:
                return connection

    def _connect(self) -> sqlite3.Connection:
        self.identity.begin_anew()
        try:
            connection = file.connect(self.path, self._address.synchronous, timeout=0)
            (mode,) = connection.execute("pragma journal_mode").fetchone()
            if mode != "wal":
                connection.execute("pragma journal_mode = wal")
            connection.create_function("relevo_heard", 5, partial(taking.hear, self.known))
            for statement in (*arriving.SCHEMA, *taking.SCHEMA):
                connection.execute(statement)
        except sqlite3.Error as error:
            raise file.translate(error, self.path) from error
        return connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None
            self.identity.begin_anew()  # the last one to go takes the log along

    def _anchor(self, alone: bool) -> Anchor:
        """Find the common clock, or set it if nobody lives by it."""
        boot = boot_id()
        if not boot or self._connection is None:
            return Anchor(None)
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return Anchor(_agree(self._connection, boot, alone))
            except sqlite3.Error as error:
                if time.monotonic() > deadline or not _is_busy(error):
                    raise file.translate(error, self.path) from error

    def leave_to_parent(self) -> None:
        """In a forked child: nobody would commit what begins here."""
        self._is_inherited = True

    # whoever calls

    def _begin_here(self, batch: list[Command]) -> bool:
        """Begin at once; False if the thread has to do it, whatever the reason."""
        is_free = self._commands.empty() and not self._is_inherited
        if not (is_free and self.turns.take_now()):
            return False
        begun: Begun | None = None
        try:
            self.identity.check()
            if self._connection is not None:
                batch.sort(key=_rank)
                tx = Tx(self._connection, self.known, self.now(batch[0].clock))
                begun = self._lay(tx, batch) or self._begin(tx, batch)
        except BaseException as error:
            self._rollback()  # only here: what was not begun has not spoilt what is known by heart
            if not isinstance(error, Exception):
                raise
            # The thread meets it too, and tells whom it concerns.
        finally:
            if begun is None:
                self.turns.give()
        if begun is None:
            return False
        self._begun.put(begun)
        return True

    def _lay(self, tx: Tx, batch: list[Command]) -> Begun | None:
        """All in one statement, which the thread that commits runs."""
        stroke = arriving.lay(tx, batch) or taking.lay(tx, batch)
        return None if stroke is None else Begun(tx, batch, [], stroke)

    def _begin(self, tx: Tx, batch: list[Command]) -> Begun | None:
        """Short commands, run here up to the commit."""
        if not all(command.merged for command in batch) or _weight(batch) > BATCH:
            return None
        tx.connection.execute("begin immediate")
        return Begun(tx, batch, self._run(tx, batch))

    def _finish_all(self) -> None:
        while (begun := self._begun.get()) is not None:
            try:
                self._finish(begun)
            except Exception as error:  # noqa: BLE001 - the thread must outlive any mistake
                self._fail(begun.batch, error)
            del begun  # with all that was received or claimed: the next one may be long in coming

    # the thread

    def _work(self) -> None:
        going = True
        while going:
            batch: list[Command] = []
            going = self._gather(batch)
            while batch:
                try:
                    batch = self._transact(batch)
                except Exception as error:  # noqa: BLE001 - the thread must outlive any mistake
                    self._fail(batch, error)
                    batch = []
                if batch:
                    going = self._gather(batch, wait=False) and going

    def _gather(self, batch: list[Command], *, wait: bool = True) -> bool:
        """Add what is waiting; False when it is time to stop."""
        weight = _weight(batch)
        try:
            while weight < WEIGHT:
                commands = self._next(block=wait and not batch)
                if commands is None:
                    return False
                batch += commands
                weight += _weight(commands)
        except Empty:
            pass
        return True

    def _next(self, *, block: bool) -> list[Command] | None:
        if not block:
            return self._commands.get_nowait()
        while True:
            self._is_watching = False  # before the look: who makes it large after that calls us
            if self.identity.wal_size <= file.WAL_LIMIT:
                return self._commands.get()
            self._is_watching = True
            try:
                return self._commands.get(timeout=IDLE)
            except Empty:
                self._tend_log()

    def _tend_log(self) -> None:
        if self._connection is None or not self.turns.take_now():
            return
        try:
            with contextlib.suppress(sqlite3.Error, StoreDamaged, StoreUnavailable):
                self.identity.check()
                self._log.tend(self._connection, self.identity.wal_size)
        finally:
            self.turns.give()

    def _transact(self, batch: list[Command]) -> list[Command]:
        """Run a batch in one transaction; answers those who may still wait for their turn."""
        batch = [command for command in batch if not command.future.done()]
        if not batch:
            return []
        patience = min(command.began for command in batch) + PATIENCE - time.monotonic()
        if not self.turns.take(max(patience, 0.01)):
            said = "a transaction of this process is open: pass it as tx=, or end it sooner"
            return self._put_off(batch, StoreUnavailable(said))
        try:
            self.identity.check()
            connection = self._connection = self._connection or self._connect()
            _begin(connection)
            tx, outcomes = self._commit(connection, batch)
        except Exception as error:  # noqa: BLE001 - told to every caller
            self._rollback()
            if _is_busy(error):
                return self._put_off(batch, error)
            if file.is_fatal(error):
                self._disconnect()  # the next transaction begins with a fresh connection
            self._fail(batch, error)
            return []
        finally:
            self.turns.give()
        self._tell(tx, batch, outcomes)
        return []

    def _finish(self, begun: Begun) -> None:
        """Commit what was begun elsewhere."""
        tx, batch, outcomes, stroke = begun
        try:
            if stroke is None:
                self._end(tx)
            elif not self._strike(tx, stroke):
                self._commands.put(batch)  # the long way; if anything is wrong it is met there too
                return
            else:
                outcomes = [(answer, None) for answer in stroke.finish(tx)]
        except Exception as error:  # noqa: BLE001 - told to every caller
            self._rollback()
            if file.is_fatal(error):
                self._disconnect()
            self._fail(batch, error)
            return
        finally:
            self.turns.give()
        self._tell(tx, batch, outcomes)

    def _strike(self, tx: Tx, stroke: Stroke) -> bool:
        self._is_at_work.set()
        try:
            tx.connection.execute(stroke.sql, stroke.values)
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing was written
            # Not as it was thought to be, or somebody writes: what was known before is still so.
            if not (isinstance(error, sqlite3.IntegrityError) or _is_busy(error)):
                self._rollback()
            return False
        finally:
            self._is_at_work.clear()
        return True

    def _tell(self, tx: Tx, batch: list[Command], outcomes: Sequence[Outcome]) -> None:
        """It is on the disk: tell who asked for it, and who waits for work."""
        self._resolve(list(zip(batch, outcomes, strict=True)))
        if tx.woken:
            self.wake(tx.woken)
        if self.identity.wal_size > file.WAL_LIMIT:
            self._tend_log()
            if not self._is_watching:
                self._commands.put([])  # wakes the thread, which looks on when nobody writes

    def _commit(
        self, connection: sqlite3.Connection, batch: list[Command]
    ) -> tuple[Tx, list[Outcome]]:
        """Run everything and commit; if one command fails, once more with each on its own."""
        tx = Tx(connection, self.known, 0)
        try:
            outcomes = self._run(tx, batch)
        except Exception as error:
            if file.is_fatal(error):
                raise
            self._rollback()
            _begin(connection)
            tx = Tx(connection, self.known, 0)
            outcomes = self._run_apart(tx, batch)
        self._end(tx)
        return tx, outcomes

    def _end(self, tx: Tx) -> None:
        tx.complete()
        tx.connection.execute("commit")
        self._is_at_work.clear()

    def _put_off(self, batch: list[Command], error: Exception) -> list[Command]:
        """Tell those who have waited long enough; answers the others."""
        now = time.monotonic()
        late = [command for command in batch if command.began + PATIENCE <= now]
        self._fail(late, error)
        return [command for command in batch if command.began + PATIENCE > now]

    def _run(self, tx: Tx, batch: list[Command]) -> list[Outcome]:
        """Run everything, verbs that can share a call as one."""
        tx.prepare()
        self._is_at_work.set()
        batch.sort(key=_rank)
        outcomes: list[Outcome] = []
        start = 0
        while start < len(batch):
            first = batch[start]
            end = start + 1
            while end < len(batch) and _is_like(first, batch[end]):
                end += 1
            outcomes += self._call(tx, batch[start:end])
            start = end
        return outcomes

    def _run_apart(self, tx: Tx, batch: list[Command]) -> list[Outcome]:
        """Run each on its own, so that only those fail that must."""
        tx.prepare()
        outcomes: list[Outcome] = []
        for command in batch:
            tx.run("savepoint command")
            try:
                outcomes += self._call(tx, [command])
            except Exception as error:
                if file.is_fatal(error):
                    raise
                tx.run("rollback to command")
                self.known.forget()
                tx.prepare()
                outcomes.append((None, self._told(error)))
            tx.run("release command")
        return outcomes

    def _call(self, tx: Tx, commands: list[Command]) -> list[Outcome]:
        first = commands[0]
        tx.now = self.now(first.clock)
        if not first.merged:
            return [(first.verb(tx, *first.args), None)]
        if len(commands) == 1:
            return [(first.verb(tx, first.args), None)]
        answers = first.verb(tx, [item for command in commands for item in command.args])
        outcomes: list[Outcome] = []
        start = 0
        for command in commands:
            end = start + len(command.args)
            outcomes.append((answers[start:end], None))
            start = end
        return outcomes

    def _rollback(self) -> None:
        self._is_at_work.clear()
        self.known.forget()
        if self._connection is not None and self._connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("rollback")

    def _told(self, error: BaseException) -> BaseException:
        told = file.translate(error, self.path)
        if told is not error:
            told.__cause__ = error
        return told

    def _fail(self, batch: list[Command], error: BaseException) -> None:
        self._resolve([(command, (None, self._told(error))) for command in batch])

    def _resolve(self, outcomes: list[tuple[Command, Outcome]]) -> None:
        """Tell the callers, with one call into each event loop."""
        loops: dict[asyncio.AbstractEventLoop, list[tuple[Command, Outcome]]] = {}
        for pair in outcomes:
            loops.setdefault(pair[0].loop, []).append(pair)
        for loop, pairs in loops.items():
            with contextlib.suppress(RuntimeError):  # it is closed: nobody waits there any more
                loop.call_soon_threadsafe(_answer, pairs)


def _answer(pairs: list[tuple[Command, Outcome]]) -> None:
    for command, (value, error) in pairs:
        command.owner.discard(command)
        if command.future.done():
            continue
        if error is None:
            command.future.set_result(value)
        else:
            command.future.set_exception(error)


def _begin(connection: sqlite3.Connection) -> None:
    """Begin to write, trying often: SQLite itself sleeps up to 100 ms between two tries."""
    deadline = time.monotonic() + SLICE
    pause = 0.0002
    while True:
        try:
            connection.execute("begin immediate")
        except sqlite3.OperationalError as error:
            if not _is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(pause)
            pause = min(pause * 1.2, 0.0015)
        else:
            return


def _weight(batch: list[Command]) -> int:
    return sum(command.weight for command in batch)


def _rank(command: Command) -> int:
    return command.rank


def _is_like(one: Command, other: Command) -> bool:
    return one.merged and other.verb is one.verb and other.clock is one.clock


def _is_busy(error: BaseException) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def _left_open(path: Path) -> bool:
    """Whether the last process to use the file died: a polite one leaves no log behind."""
    left = Path(f"{path}-wal")
    return left.exists() and left.stat().st_size > 0


def _agree(connection: sqlite3.Connection, boot: str, alone: bool) -> int:
    """The clock all processes share on this file; set anew after a boot, or if nobody is there."""
    _begin(connection)
    try:
        kept = dict(
            connection.execute(
                "select name, value from relevo_meta where name in ('boot', 'anchor')"
            ).fetchall()
        )
        if alone or kept.get("boot") != boot or "anchor" not in kept:
            kept = {"boot": boot, "anchor": str(wall_offset())}
            connection.executemany(
                """
                insert into relevo_meta (name, value)
                values (?, ?)
                on conflict (name) do update set value = excluded.value
                """,
                kept.items(),
            )
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise
    return int(kept["anchor"])


# one writer per file and process

_writers: dict[tuple[str, str], Writer] = {}
_lock = threading.Lock()


def acquire(address: file.Address) -> Writer:
    """The writer of this file, started if this process has none yet."""
    key = (str(address.path.resolve()), address.synchronous)
    with _lock:
        writer = _writers.get(key)
        if writer is not None:
            try:
                writer.identity.check()
            except StoreDamaged:
                writer = None  # the file there is another one; whoever has the old one keeps it
        if writer is None:
            writer = _writers[key] = Writer(address)
        writer.users += 1
        return writer


def release(writer: Writer) -> None:
    """Give it back; the last one to do so closes the file."""
    with _lock:
        writer.users -= 1
        if writer.users:
            return
        for key in [key for key, known in _writers.items() if known is writer]:
            del _writers[key]
    writer.stop()


def running() -> list[Writer]:
    """The writers of this process."""
    return list(_writers.values())


def stop_process() -> bool:
    """Stop this process as SIGSTOP does, between two transactions; return when it goes on.

    A process that is stopped inside one keeps the file locked for all others. False: a transaction
    did not end in time, and the process was stopped inside it.
    """
    taken: list[Writer] = []
    writers = running()
    deadline = time.monotonic() + PATIENCE
    try:
        taken += [one for one in writers if one.turns.take(max(0.0, deadline - time.monotonic()))]
        os.kill(os.getpid(), signal.SIGSTOP)
    finally:
        for one in taken:
            one.turns.give()
    return len(taken) == len(writers)


def _forget_all() -> None:
    # A forked child has its parent's writers without their threads: it opens its own.
    global _lock
    _lock = threading.Lock()
    for writer in _writers.values():
        writer.leave_to_parent()
    _writers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
