"""SqliteStore: every verb of the contract, handed to the writer or to a reader."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from relevo.clock import BLOCKED, Clock, Patience, SystemClock
from relevo.errors import MisuseError, SchemaMismatch, StoreUnavailable
from relevo.job import Ending, Job, Lease, NewJob, Receipt, Verdict
from relevo.store import (
    BATCH,
    NO_RESULTS,
    Arrival,
    Audit,
    By,
    Claim,
    Edit,
    Effect,
    EffectState,
    Filter,
    Finding,
    Gate,
    Group,
    JobGroup,
    Kept,
    Letter,
    Letterbox,
    Loss,
    Note,
    Page,
    QueueMode,
    Reception,
    Schema,
    SealedValue,
    Sweep,
    Tally,
    Want,
    WorkerInfo,
)
from relevo.stores.sqlite import (
    claims,
    deliveries,
    doctor,
    file,
    flows,
    groups,
    letters,
    memory,
    pages,
    people,
    renewal,
    schema,
    upkeep,
    wake,
    writer,
)
from relevo.stores.sqlite.command import Command, Verb
from relevo.stores.sqlite.jobs import extend_leases, insert_jobs, isolate, settle_runs
from relevo.stores.sqlite.readers import Reading
from relevo.stores.sqlite.transaction import Known, Tx
from relevo.stores.sqlite.writer import Writer

LATE, WATCH = 4.4, 0.4  # seconds after which a caller is told so, and between looks at them
FIRST_LOOK, LONG_LOOK, LONGEST_LOOK = 0.02, 0.25, 1.0  # seconds between looks of one who waits
IDLE_LOOKS = 120  # looks in vain after which they come at the longest distance
SETTLE, EXTEND, INSERT, RECEIVE, INTEND, CONCLUDE, REMEMBER, OTHERS, CLAIM = range(
    9
)  # the order in a transaction

T = TypeVar("T")


SEALED = 200
"""Sealed values that are read at once."""


class SqliteStore:
    """The store in one SQLite file. Any number of handles, threads and processes may share it."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self._address = file.parse(url)
        self._url = self._address.url
        self._clock: Clock = clock or SystemClock()
        self._writer: Writer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leaving: list[Command] = []
        self._is_leaving = False
        self._claims = 0  # on their way
        self._pending: set[Command] = set()
        self._watch: asyncio.TimerHandle | None = None
        self._rung: set[str] = set()
        self._waiters: set[tuple[frozenset[str], asyncio.Future[bool]]] = set()
        self._bell: socket.socket | None = None
        self._is_listening = False
        self._looks = 0
        self._version: tuple[sqlite3.Connection, int] | None = None
        self._released: set[str] = set()
        self._live, self._done = pages.live_counts(), pages.done_counts()

    @property
    def name(self) -> str:
        return "sqlite"

    @property
    def url(self) -> str:
        return self._url

    @property
    def dsn(self) -> str:
        return self._url

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self._address.path

    # life

    async def open(self) -> None:
        """Connect. SchemaMismatch if the tables are not there, older, or for newer code only."""
        if self._writer is not None:
            return
        if not self.path.exists():
            raise SchemaMismatch(f"there is no database at {self.path}: run `relevo migrate`")
        self._loop = asyncio.get_running_loop()
        self._writer = await asyncio.to_thread(writer.acquire, self._address)
        self._writer.listeners.add(self)

    async def close(self) -> None:
        """Write what is waiting, read the log out, let go; safe to call twice."""
        self._send()
        shared, self._writer = self._writer, None
        if shared is None:
            return
        shared.listeners.discard(self)
        if self._bell is not None:
            asyncio.get_running_loop().remove_reader(self._bell)
            wake.hush(self._bell)
            self._bell = None
        self._is_listening = False
        for _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(True)
        await asyncio.to_thread(self._let_go, shared)
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _let_go(self, shared: Writer) -> None:
        if self._version is not None:
            self._version[0].close()
            self._version = None
        writer.release(shared)

    async def migrate(self) -> list[str]:
        """Bring the tables up to date, making the file, private to its owner, if there is none."""
        return await asyncio.to_thread(schema.migrate, self.path)

    async def schema(self) -> Schema:
        return await asyncio.to_thread(schema.look, self.path)

    def spawn(self) -> SqliteStore:
        """Another handle; in one process all handles on a file share its writer."""
        return SqliteStore(self._url, clock=self._clock)

    async def backup(self, path: Path | str) -> None:
        """Copy the database to a new file, private to its owner, while everyone goes on working."""
        await asyncio.to_thread(doctor.backup, self._shared.path, Path(path))

    async def now(self) -> int:
        return self._shared.now(self._clock)

    async def check(self) -> list[Finding]:
        shared = self._shared
        return await asyncio.to_thread(doctor.check, shared, self._address)

    # the way to the file

    @property
    def _shared(self) -> Writer:
        if self._writer is None:
            raise StoreUnavailable(f"the store {self._url} is not open")
        return self._writer

    def _write(self, verb: Verb, *args: Any, rank: int = OTHERS) -> asyncio.Future[Any]:
        """Have a verb run in the next transaction."""
        return self._submit(verb, args, False, rank)

    def _write_all(self, verb: Verb, items: Sequence[Any], rank: int) -> asyncio.Future[Any]:
        """The same for a verb that shares one call with others of its kind."""
        return self._submit(verb, items, True, rank)

    def _submit(
        self, verb: Verb, args: Sequence[Any], merged: bool, rank: int
    ) -> asyncio.Future[Any]:
        self._shared  # noqa: B018 - raises if it is not open
        loop = asyncio.get_running_loop()
        command = Command(
            verb,
            args,
            merged=merged,
            rank=rank,
            clock=self._clock,
            future=loop.create_future(),
            owner=self._pending,
        )
        self._pending.add(command)
        if self._watch is None:
            self._watch = loop.call_later(WATCH, self._look_at_pending, loop.time() + WATCH)
        self._leaving.append(command)
        # An ending that meets a claim on its way would be a transaction of its own behind it: it
        # waits for the answer, and goes with the next claim.
        if not (self._claims and rank == SETTLE):
            self._send_soon()
        return command.future

    def _send_soon(self, answered: object = None) -> None:
        # Not at once: whoever else is about to run in this turn of the loop shares the commit.
        if not self._is_leaving:
            self._is_leaving = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        self._is_leaving = False
        leaving, self._leaving = self._leaving, []
        if leaving and self._writer is not None:
            self._writer.submit(leaving)

    def _look_at_pending(self, due: float) -> None:
        """Tell those who have waited too long, even if the disk itself never answers."""
        now = time.monotonic()
        loop = asyncio.get_running_loop()
        # Answers may be there, unread, after the event loop was blocked: not judged this time.
        is_late = loop.time() - due > BLOCKED
        for command in [] if is_late else [one for one in self._pending if one.began + LATE <= now]:
            self._pending.discard(command)
            if not command.future.done():
                command.future.set_exception(
                    StoreUnavailable(f"{self.path} did not answer in time: check its disk")
                )
        self._watch = None
        if self._pending:
            self._watch = loop.call_later(WATCH, self._look_at_pending, loop.time() + WATCH)

    async def _read(self, question: Callable[..., T], *args: Any) -> T:
        """Ask beside the writer."""
        shared = self._shared
        reading = Reading()

        def ask() -> T:
            return shared.readers.ask(reading, lambda connection: question(connection, *args))

        try:
            async with Patience(LATE):
                return await asyncio.get_running_loop().run_in_executor(shared.readers.threads, ask)
        except TimeoutError as error:
            raise StoreUnavailable(f"{self.path} took too long to answer: ask for less") from error
        finally:
            reading.give_up()

    @property
    def _now(self) -> int:
        return self._shared.now(self._clock)

    async def _within(self, connection: Any, verb: Callable[[Tx], T]) -> T:
        """Run a verb inside a caller's own transaction, on the thread that has the connection."""
        shared = self._shared

        def run(raw: sqlite3.Connection) -> T:
            if not raw.in_transaction and raw.isolation_level is None:
                raise MisuseError("begin a transaction on the connection first")
            if (there := _file_of(raw)) != str(self.path) and not _is_same(there, self.path):
                # With tables of relevo's in it, it would take jobs that no worker here sees.
                raise MisuseError(
                    f"tx is a connection to {there or 'a database in memory'}, and the store is "
                    f"{self.path}: jobs commit with rows of the same database"
                )
            tx = Tx(raw, Known(), shared.now(self._clock))
            tx.known.limited = shared.known.limited
            try:
                # A write comes first: a snapshot that began by reading might be too old to write.
                tx.run("delete from relevo_meta where name = ''")
                tx.prepare()
                answer = verb(tx)
                tx.complete()
            except sqlite3.Error as error:
                raise file.translate(error, self.path) from error
            self._released |= tx.woken
            return answer

        if isinstance(connection, sqlite3.Connection):
            return run(connection)
        # aiosqlite runs a function on its own thread by this one means.
        execute = getattr(connection, "_execute", None)
        raw = getattr(connection, "_conn", None)
        if execute is None or not isinstance(raw, sqlite3.Connection):
            raise MisuseError(
                f"a {type(connection).__name__} is not a connection to SQLite: hand over a "
                "sqlite3.Connection or an aiosqlite.Connection"
            )
        return await execute(run, raw)

    # in

    async def insert(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        return await self._write_all(insert_jobs, jobs, INSERT) if jobs else []

    async def insert_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[Receipt]:
        return await self._within(connection, lambda tx: insert_jobs(tx, jobs)) if jobs else []

    def committed(self, queues: Sequence[str]) -> None:
        released, self._released = self._released, set()
        woken = released.union(queues)
        if woken and self._writer is not None:
            self._writer.wake(woken)

    # deliveries

    async def receive(self, arrivals: Sequence[Arrival]) -> list[Reception]:
        return await self._write_all(deliveries.receive, arrivals, RECEIVE) if arrivals else []

    async def receive_within(self, connection: Any, arrival: Arrival) -> Reception:
        return (await self._within(connection, lambda tx: deliveries.receive(tx, [arrival])))[0]

    async def receive_posted(self, arrivals: Sequence[Arrival]) -> list[Reception]:
        if not arrivals:
            return []
        return await self._write_all(deliveries.receive_posted, arrivals, RECEIVE)

    async def receive_posted_within(self, connection: Any, arrival: Arrival) -> Reception:
        answers = await self._within(
            connection, lambda tx: deliveries.receive_posted(tx, [arrival])
        )
        return answers[0]

    async def resolve(self, job: str, arrival: Arrival) -> Reception:
        return await self._write(deliveries.resolve, job, arrival)

    async def resolve_within(self, connection: Any, job: str, arrival: Arrival) -> Reception:
        return await self._within(connection, lambda tx: deliveries.resolve(tx, job, arrival))

    async def resolve_posted(self, job: str, arrival: Arrival) -> Reception:
        return await self._write(deliveries.resolve_posted, job, arrival)

    async def resolve_posted_within(self, connection: Any, job: str, arrival: Arrival) -> Reception:
        return await self._within(
            connection, lambda tx: deliveries.resolve_posted(tx, job, arrival)
        )

    async def delivered(self, endpoint: str, keys: Sequence[str]) -> list[Kept | None]:
        return await self._read(deliveries.delivered, endpoint, keys)

    async def deliveries(
        self, where: Letterbox, *, cursor: str | None = None, limit: int = 50
    ) -> tuple[list[Kept], str | None]:
        return await self._read(deliveries.deliveries, where, cursor, limit)

    async def delivery(self, ids: Sequence[str]) -> list[Kept | None]:
        return await self._read(deliveries.delivery, ids)

    # out

    async def claim(self, wants: Sequence[Want], count: int, worker: str, lease: int) -> Claim:
        # Before the claim, not after: what is inserted meanwhile must still wake us.
        self._rung.difference_update([want.queue for want in wants])
        self._rung.discard(wake.ANY)
        answer = self._write(claims.claim, wants, count, worker, lease, rank=CLAIM)
        answer.add_done_callback(self._send_soon)
        if self._leaving[0].rank == SETTLE:
            self._send()  # endings have waited for it: nobody else is worth waiting for
        self._claims += 1
        try:
            claim = await answer
        finally:
            self._claims -= 1
        if claim.leases:
            self._looks = 0
        return claim

    async def extend(self, leases: Sequence[Lease], lease: int) -> list[bool]:
        pairs = [(one, lease) for one in leases]
        return await self._write_all(extend_leases, pairs, EXTEND) if pairs else []

    async def settle(self, endings: Sequence[Ending]) -> list[bool]:
        return await self._write_all(settle_runs, endings, SETTLE) if endings else []

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """The right to write on a connection of one's own, after whoever asked before."""
        turns = self._shared.turns
        await turns.take_soon(LATE)
        try:
            yield
        finally:
            turns.give()

    async def settle_within(self, connection: Any, endings: Sequence[Ending]) -> list[bool]:
        return await self._within(connection, lambda tx: settle_runs(tx, endings))

    async def wait(self, queues: Sequence[str], timeout: float) -> None:
        """Return when one of the queues may have work: rung for, or seen by a look now and then."""
        wanted = frozenset(queues)
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        if self._listen() and await self._look(wanted):
            return
        while not self._is_rung(wanted):
            left = end - loop.time()
            if left <= 0 or self._writer is None:
                return
            if not await self._doze(wanted, min(left, self._gap)):
                self._looks += 1
                if await self._look(wanted):
                    return
        self._looks = 0

    def wake(self, queues: set[str]) -> None:
        """Remember that queues have work, and end the waiting; called from any thread."""
        self._rung |= queues
        if self._waiters and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # its loop is closed: nobody waits
                self._loop.call_soon_threadsafe(self._wake_waiters)

    def _wake_waiters(self) -> None:
        for wanted, waiter in self._waiters:
            if not waiter.done() and self._is_rung(wanted):
                waiter.set_result(True)

    def _is_rung(self, wanted: frozenset[str]) -> bool:
        return wake.ANY in self._rung or not self._rung.isdisjoint(wanted)

    @property
    def _gap(self) -> float:
        """Seconds until the next look: short after work, long when there was none for long."""
        if self._looks > IDLE_LOOKS:
            return LONGEST_LOOK
        return min(FIRST_LOOK * 2 ** min(self._looks, 10), LONG_LOOK)

    async def _doze(self, wanted: frozenset[str], seconds: float) -> bool:
        """Wait for a ring; False if none came."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        entry = (wanted, waiter)
        self._waiters.add(entry)
        timer = loop.call_later(seconds, _give_up, waiter)
        try:
            return self._is_rung(wanted) or await waiter
        finally:
            timer.cancel()
            self._waiters.discard(entry)

    def _listen(self) -> bool:
        """Hang up a bell for other processes to ring; True if it was not there before."""
        if self._is_listening:
            return False
        self._is_listening = True
        self._bell = self._shared.bells.listen()
        if self._bell is not None:
            asyncio.get_running_loop().add_reader(self._bell, self._hear)
        return True

    def _hear(self) -> None:
        if self._bell is not None:
            self._rung |= wake.hear(self._bell)
            self._wake_waiters()

    async def _look(self, wanted: frozenset[str]) -> bool:
        """Whether anything was written since the last look, and left a job that is due."""
        try:
            return await self._read(self._look_at, sorted(wanted), self._now)
        except StoreUnavailable:
            return False

    def _look_at(self, connection: sqlite3.Connection, wanted: list[str], now: int) -> bool:
        if self._version is None:
            watching = file.connect(self.path, timeout=0.1, reading=True)
            self._version = (watching, -1)
        watching, seen = self._version
        (version,) = watching.execute("pragma data_version").fetchone()
        if version == seen:
            return False
        self._version = (watching, version)
        return pages.has_due(connection, wanted, now)

    # outbox

    async def post(self, jobs: Sequence[NewJob]) -> list[Verdict]:
        return await self._write(letters.post, jobs)

    async def post_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[Verdict]:
        return await self._within(connection, lambda tx: letters.post(tx, jobs))

    async def letters(self, *, carried: bool, after: int = 0, limit: int = BATCH) -> list[Letter]:
        return await self._read(letters.letters, carried, after, limit)

    async def mark_carried(self, ids: Sequence[str]) -> None:
        await self._write(letters.mark_carried, ids)

    async def close_letters(
        self, ids: Sequence[str], results: Mapping[str, bytes] = NO_RESULTS
    ) -> list[bool]:
        return await self._write(letters.close, ids, results)

    async def results(self, ids: Sequence[str]) -> dict[str, bytes]:
        return await self._read(letters.results, ids)

    async def drop_results(self, ids: Sequence[str]) -> None:
        await self._write(letters.drop_results, ids)

    async def drop_letters(self, ids: Sequence[str]) -> None:
        await self._write(letters.drop, ids)

    async def close_letters_within(
        self, connection: Any, ids: Sequence[str], results: Mapping[str, bytes] = NO_RESULTS
    ) -> list[bool]:
        return await self._within(connection, lambda tx: letters.close(tx, ids, results))

    async def closed(self, ids: Sequence[str]) -> list[bool]:
        return await self._read(letters.closed, ids)

    async def prune_posted(self, *, dead_keep: int, limit: int = BATCH) -> int:
        return await self._write(upkeep.prune, dead_keep, limit, False)

    async def old_effects(
        self, *, dead_keep: int, after: int = 0, limit: int = BATCH
    ) -> list[tuple[int, str]]:
        return await self._read(upkeep.old_effects, self._now, dead_keep, after, limit)

    async def drop_effects(self, numbers: Sequence[int], *, dead_keep: int) -> int:
        return await self._write(upkeep.drop_effects, numbers, dead_keep)

    async def prune_letters(self, *, keep: int, limit: int = BATCH) -> int:
        return await self._write(letters.prune, keep, limit)

    # effects

    async def intend(self, effects: Sequence[Effect]) -> list[Effect]:
        return await self._write_all(memory.intend, effects, INTEND) if effects else []

    async def conclude(self, effects: Sequence[Effect], by: By | None = None) -> list[bool]:
        if by is not None:
            return await self._write(memory.decide, effects, by)
        return await self._write_all(memory.conclude, effects, CONCLUDE) if effects else []

    async def effects(
        self,
        *,
        job: str | None = None,
        states: frozenset[EffectState] = frozenset(),
        text: str | None = None,
        threads: frozenset[str] = frozenset(),
        cursor: str | None = None,
        limit: int = 50,
    ) -> tuple[list[Effect], str | None]:
        return await self._read(pages.effects, job, states, text, threads, cursor, limit)

    # memory

    async def recall(self, kind: str, names: Sequence[str]) -> list[Note | None]:
        return await self._read(pages.recall, kind, names, self._now)

    async def recall_within(
        self, connection: Any, kind: str, names: Sequence[str]
    ) -> list[Note | None]:
        return await self._within(connection, lambda tx: memory.recall(tx, kind, names))

    async def remember(self, notes: Sequence[Note]) -> list[bool]:
        return await self._write_all(memory.remember, notes, REMEMBER) if notes else []

    async def remember_within(self, connection: Any, notes: Sequence[Note]) -> list[bool]:
        return await self._within(connection, lambda tx: memory.remember(tx, notes))

    async def forget(self, kind: str, names: Sequence[str]) -> int:
        return await self._write(memory.forget, kind, names)

    async def notes(self, kind: str, *, after: str = "", limit: int = 200) -> list[Note]:
        return await self._read(pages.notes, kind, after, limit, self._now)

    # groups of jobs

    async def set_gate(self, ids: Sequence[str], gate: Gate) -> list[bool]:
        return await self._write(flows.set_gate, ids, gate)

    async def job_groups(self, ids: Sequence[str]) -> list[JobGroup | None]:
        return await self._read(groups.find, ids)

    async def newest_groups(self, limit: int = 50) -> list[JobGroup]:
        return await self._read(groups.newest, limit)

    async def live_members(self, id: str, limit: int = BATCH) -> list[str]:
        return await self._read(groups.live_members, id, limit)

    # upkeep

    async def rescue(
        self,
        limit: int = BATCH,
        *,
        worker: str | None = None,
        losses: Sequence[Loss] = (),
        queues: Sequence[str] | None = None,
    ) -> Sweep:
        return await self._write(upkeep.rescue, limit, worker, losses)

    async def isolate(self, leases: Sequence[Lease], *, is_alone: bool = True) -> list[bool]:
        return await self._write(isolate, leases, int(is_alone)) if leases else []

    async def unpark(
        self,
        park: str,
        *,
        limit: int | None = None,
        spread: int = 0,
        ids: Sequence[str] | None = None,
    ) -> int:
        return await self._write(upkeep.unpark, park, limit, spread, ids)

    async def prune(self, *, dead_keep: int, limit: int = BATCH) -> int:
        return await self._write(upkeep.prune, dead_keep, limit)

    async def beat(self, worker: WorkerInfo, ttl: int) -> None:
        await self._write(memory.beat, worker, ttl)

    async def leave(self, worker: str) -> None:
        await self._write(memory.leave, worker)

    async def silence(self, workers: Sequence[str], *, is_gone: bool = False) -> None:
        await self._write(memory.silence, workers, is_gone)

    # people

    async def find(self, ids: Sequence[str]) -> list[Job | None]:
        return await self._read(pages.find, ids, self._now)

    async def page(self, where: Filter, *, cursor: str | None = None, limit: int = 50) -> Page:
        return await self._read(pages.page, where, cursor, limit, self._now)

    async def count(self, where: Filter, *, most: int = 10_000) -> int:
        return await self._read(pages.count, where, most, self._now)

    async def tally(self) -> list[Tally]:
        return await self._read(pages.tally, self._live, self._done, self._now)

    async def groups(self, *, queue: str | None = None, limit: int = 50) -> list[Group]:
        return await self._read(pages.groups, queue, limit)

    async def workers(self) -> list[WorkerInfo]:
        return await self._read(pages.workers, self._now)

    async def retry(self, ids: Sequence[str], by: By, *, spread: int = 0) -> list[bool]:
        return await self._write(people.retry, ids, by, spread)

    async def edit(self, edits: Sequence[Edit], by: By) -> list[bool]:
        return await self._write(people.edit, edits, by)

    async def cancel(self, ids: Sequence[str], by: By) -> list[bool]:
        return await self._write(people.cancel, ids, by)

    async def discard(self, ids: Sequence[str], by: By) -> list[bool]:
        return await self._write(people.discard, ids, by)

    async def erase(
        self, jobs: Sequence[str], deliveries: Sequence[str], by: By, *, act: str
    ) -> tuple[int, int]:
        return await self._write(upkeep.erase, jobs, deliveries, by, act)

    async def sealed_values(self) -> AsyncGenerator[list[SealedValue]]:
        for number in range(len(renewal.COLUMNS)):
            after = None
            while found := await self._read(renewal.sealed_values, number, after, SEALED):
                yield found
                after = found[-1].place[1:]

    async def swap_values(self, values: Sequence[tuple[SealedValue, bytes]]) -> int:
        return await self._write(renewal.swap_values, values)

    async def set_mode(self, queues: Sequence[str], mode: QueueMode, by: By) -> list[bool]:
        return await self._write(people.set_mode, queues, mode, by)

    async def audit(self, rows: Sequence[Audit]) -> None:
        await self._write(memory.audit, rows)

    async def audits(
        self, *, target: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> tuple[list[Audit], str | None]:
        return await self._read(pages.audits, target, cursor, limit)


def _give_up(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)


def _file_of(connection: sqlite3.Connection) -> str:
    cursor = connection.cursor()
    cursor.row_factory = None  # the connection's own may shape rows and text in any way
    return os.fsdecode(cursor.execute("pragma database_list").fetchone()[2] or "")


def _is_same(there: str, path: Path) -> bool:
    try:
        return bool(there) and path.samefile(there)
    except OSError:  # it is gone, which what follows will say
        return True
