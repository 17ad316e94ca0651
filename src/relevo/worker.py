"""Claims leases, keeps them alive, settles them.

One claimer brings jobs in batches, `concurrency` runner tasks share them, one settler writes the
endings in batches, and a thread of its own keeps the leases alive.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Coroutine, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from msgspec import Struct

from relevo.backoff import exponential
from relevo.budget import Budget, pace_within
from relevo.bulkheads import Bulkheads, Share, check_slots
from relevo.changes import Override
from relevo.clock import Duration, duration, milliseconds
from relevo.durations import QUICK, SAMPLE
from relevo.errors import SchemaMismatch, SettingsError, StoreError
from relevo.ids import new_id
from relevo.isolation import Isolation
from relevo.job import Ending, Lease, State, Suspicion
from relevo.keeper import Keeper
from relevo.lifeline import EXIT_ABANDONED, GRACE, Lifeline, end_process
from relevo.message import EVENTS
from relevo.outcome import Again, Done, Outcome, Settled, ordinary, reason
from relevo.presence import Presence
from relevo.runner import DONE, Runner, ending, released
from relevo.spreading import WANT, Spreader
from relevo.store import BATCH, Claim, Want
from relevo.telemetry import log

if TYPE_CHECKING:
    from relevo.engine import Relevo

PREFETCH = 0.05
"""Claim ahead what the last seconds' pace would finish in so many seconds; slow jobs: nothing."""

AHEAD = 3 * BATCH  # at most: enough to do while one batch is claimed and another is settled
HOARD = timedelta(seconds=1)
LOOK = 0.1  # seconds between two looks at what a worker waits for when it stops
YIELD_AFTER = 0.0005  # quick jobs in a row; longer, and the store waits for us to hear it

TELL_EVERY = 10.0
"""Seconds after which a worker that stops tells again what it waits for."""

OVERSTAY = 30.0
"""Seconds past its time limit after which a run that goes on must be stuck."""

SUSPECT = int(Suspicion.WATCHED)  # such jobs do not begin beside others

_QUIET = (Done, Again)  # the outcomes nobody needs to hear of

_RECONNECT = exponential("100ms", cap="2s", jitter=0.5)


class Flight(Struct, eq=False, gc=False):
    """A lease in this process's hands."""

    lease: Lease
    since: float = 0.0  # when its run began; 0 before that
    task: asyncio.Task[None] | None = None
    why: str = ""  # set before its task is cancelled
    share: Share | None = None  # the slots of its queue, where they are limited


class _Steady:
    """A coroutine for a task that no GeneratorExit can close.

    What a job waits for may have ended with one, and asyncio throws it into the task: Python would
    close every coroutine in it, the runner's own too.
    """

    __slots__ = ("_work", "close", "send")

    def __init__(self, work: Coroutine[Any, Any, None]) -> None:
        self._work = work
        self.send = work.send
        self.close = work.close

    def throw(self, kind: Any, value: Any = None, trace: Any = None, /) -> Any:
        # By their types: an error may do anything where isinstance() asks it for its class.
        error = kind if issubclass(type(kind), BaseException) else value or kind()
        is_exit = issubclass(type(error), GeneratorExit)
        return self._work.throw(ordinary(error) if is_exit else error)

    def __await__(self) -> Generator[Any, Any, None]:
        return self._work.__await__()


cast("Any", Coroutine).register(_Steady)


def _steady(work: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
    return cast("Coroutine[Any, Any, None]", _Steady(work))


OnBlocked: TypeAlias = Literal["report", "exit", "restart"]
"""What a process does whose event loop stays blocked past the time limit of what runs, or that has
a plain function which is taken to be stuck: say so, end with an exit code of its own, or begin anew
with the command line it was started by."""

ON_BLOCKED: tuple[OnBlocked, ...] = ("report", "exit", "restart")


class Worker:
    """Serves some queues until told to stop."""

    def __init__(
        self,
        engine: Relevo,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = 100,
        lease: Duration = "15s",
        grace: Duration = "10s",
        budget: Budget | None = None,
        on_blocked: OnBlocked = "report",
        slots: Mapping[str, int] | None = None,
    ) -> None:
        if on_blocked not in ON_BLOCKED:
            raise SettingsError(
                f"on_blocked is one of {', '.join(ON_BLOCKED)}, not {on_blocked!r:.40}"
            )
        if not 1 <= concurrency <= 10_000:
            raise SettingsError(f"concurrency lies between 1 and 10,000, not {concurrency}")
        self.id = f"{socket.gethostname()[:40]}-{os.getpid()}-{new_id()[-6:]}"
        self.engine = engine
        self.store = engine.store
        self.telemetry = engine.telemetry
        check_slots(slots or {}, (queue for queue, _ in engine.bindings))
        served = engine.wants(queues)
        self.wants = [*served, WANT]
        self.queues = [want.queue for want in self.wants]
        self.concurrency = concurrency
        self._served = list(self.wants)  # with the limits that the code says
        self.tiers = [self.wants]  # those first that are to be claimed first
        self.bulkheads = Bulkheads([want.queue for want in served], concurrency, slots or {})
        self.lease = duration(lease)
        self.grace = duration(grace)
        self.on_blocked = on_blocked
        if not timedelta(milliseconds=100) <= self.lease <= timedelta(hours=1):
            raise SettingsError(f"a lease lasts 100 ms to 1 h, not {self.lease}")
        self.pace = pace_within(
            budget,
            store=self.store.name,
            lease=self.lease,
            queues=len(self.queues),
            has_recurring=engine.recurring.is_any,
        )
        # Every lease not yet settled; read by the lifeline. By lease, not by job: a job whose last
        # lease has lapsed, or whose ending is sent once more, may be here again under another one.
        self.flights: dict[Lease, Flight] = {}
        self.finished = 0
        self._applied: list[Override] = []
        self.heard_at: float | None = None  # when the store last answered what there is to do
        self._local: deque[Flight] = deque()  # claimed, not yet started
        self._idle: list[asyncio.Future[None]] = []  # runners with nothing to do
        self._is_waking = False
        self._running = 0
        self._endings: deque[Ending] = deque()
        self._settling: list[Ending] = []  # on their way to the store
        self._settle_now = asyncio.Event()
        self._slot_free = asyncio.Event()
        self._stop = asyncio.Event()
        self._is_nudged = False
        self._waiting: asyncio.Task[object] | None = None  # what the claimer waits for
        self._is_closing = False
        self._is_retiring = False  # a plain function does not end: the process is about to
        self._is_ending = False  # its own parts are being cancelled
        self._parent: asyncio.Task[Any] | None = None  # the task that has started them
        self._pace = (0.0, 0)  # when, and how many had finished
        self._ahead = 0
        self.presence = Presence(self.id, self.store.url, concurrency)
        self._spreader = Spreader(self)

    def stop(self) -> None:
        """Stop politely: give back what has not begun, let the rest end within the grace."""
        self._stop.set()
        self.presence.stopping()
        self.nudge()

    def retire(self) -> None:
        """Take nothing new, give the other jobs back, and end the process, since a plain function
        in it is taken to be stuck."""
        if not self._is_retiring:
            self._is_retiring = True
            self._stop.set()
            self.nudge()

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    def nudge(self) -> None:
        """Look for jobs now, whatever it was waiting for."""
        self._is_nudged = True
        if self._waiting is not None:
            self._waiting.cancel()

    @property
    def running(self) -> int:
        return self._running

    @property
    def is_consuming(self) -> bool:
        """Whether it is busy, or has heard what there is to do as lately as it should have."""
        if self.heard_at is None or self._running >= self.concurrency:
            return True
        return self._loop.time() - self.heard_at < 2 * self.pace.claim + 30

    async def run(self) -> None:
        """Work until stop(); raises if one of its own parts breaks."""
        self._loop = asyncio.get_running_loop()
        self._length = self.lease.total_seconds()
        self.runner = Runner(self.engine, self.concurrency)
        for binding in self.engine.bindings.values():
            # What is async there is the engine's own, such as the closing of a group.
            is_isolated = binding.spec.isolate and not binding.is_async
            if is_isolated and binding.spec.queue in self.queues:
                self.runner.children.check(binding)
        self.isolation = Isolation(self)
        with self.presence:
            await self._work()

    async def _work(self) -> None:
        lifeline = Lifeline(self, self._loop)
        keeper = Keeper(self)
        try:
            await self._forgive_unknown()
            await self._tell_changed_keys()
            lifeline.start()
            self._parent = asyncio.current_task()
            async with asyncio.TaskGroup() as group:
                try:
                    await self._live(group, keeper)
                except BaseException:
                    self._is_ending = True
                    raise
        finally:
            lifeline.stop()
            self.runner.close()
            if lifeline.is_alive():  # not if it was never started, or what went wrong is hidden
                await asyncio.to_thread(lifeline.join, 5)

    async def _live(self, group: asyncio.TaskGroup, keeper: Keeper) -> None:
        runners = [
            group.create_task(_steady(self._serve(n)), name=f"relevo-runner-{n}")
            for n in range(self.concurrency)
        ]
        self._settler = group.create_task(self._settle(), name="relevo-settler")
        upkeep = group.create_task(keeper.run(), name="relevo-keeper")
        alone = group.create_task(self.isolation.run(), name="relevo-isolation")
        spreading = group.create_task(self._spreader.run(), name="relevo-spreading")
        await group.create_task(self._claim(), name="relevo-claimer")
        self.isolation.give_back()
        spreading.cancel()
        await asyncio.wait([spreading])
        self._spreader.give_back()
        await self._wind_down(runners)
        alone.cancel()
        upkeep.cancel()
        self._is_closing = True
        self._settle_now.set()
        await self._settler

    async def _forgive_unknown(self) -> None:
        """Let go of what was parked because nobody knew it, now that somebody may."""
        try:
            await self.engine.release_known()
        except SchemaMismatch:
            raise
        except (StoreError, OSError) as error:
            self.telemetry.trouble("parked jobs of newly known commands stay parked", error)

    async def _tell_changed_keys(self) -> None:
        """Warn of jobs that wait under another `unique` than their commands say now."""
        queues = set(self.queues)
        specs = [each.spec for each in self.engine.bindings.values() if each.spec.queue in queues]
        try:
            for found in await self.engine.desk.changed_uniques(specs):
                log.warning("%s", found, extra={"queue": found.queue, "job": found.job})
        except SchemaMismatch:
            raise
        except (StoreError, OSError) as error:
            self.telemetry.trouble("cannot see what the waiting jobs' keys are for", error)

    # claiming

    async def _claim(self) -> None:
        failures = 0
        while not self._stop.is_set():
            free = self._free()
            if free <= 0:
                self._slot_free.clear()
                await self._first(self._slot_free.wait())
                continue
            asked = min(free, BATCH)
            idle, queues = self.pace.claim, list[str]()
            try:
                if not self._spreader.is_registered:
                    await self.learn()
                    await self._spreader.register()
                for wants, count in self._portions(asked):
                    claim = await self.claim(wants, min(count, asked))
                    queues += [want.queue for want in wants]
                    if len(claim.leases) >= min(count, asked):
                        idle = 0.0
                    elif claim.next_due is not None:
                        idle = min(idle, claim.next_due / 1000)
                    asked -= len(claim.leases)
                    if asked <= 0:
                        break
            except SchemaMismatch:
                raise
            except (StoreError, OSError) as error:
                # A damaged store too: the file may be put back, and what runs can still end.
                failures += 1
                self.telemetry.trouble("cannot claim jobs; trying again", error)
                await self._first(asyncio.sleep(_RECONNECT.after(failures).total_seconds()))
                continue
            if failures:
                self._spreader.doubt()
            failures = 0
            self.heard_at = self._loop.time()
            if idle > 0:
                await self._first(self._wait(queues, idle))

    def _portions(self, asked: int) -> list[tuple[list[Want], int]]:
        """What to claim, one after the other, so that no queue has more jobs than slots."""
        shares = self.bulkheads.shares.values()
        if not shares:
            return [(tier, asked) for tier in self.tiers]
        least = min(share.slots for share in shares)
        # So few that no queue can have too many, whatever the claim brings.
        is_free = self._running + len(self._local) + asked <= least
        if is_free and not any(share.aside for share in shares):
            return [(tier, asked) for tier in self.tiers]
        local = list(self._local)
        return [
            portion
            for tier in self.tiers
            for portion in self.bulkheads.portions(tier, asked, local)
        ]

    async def learn(self) -> None:
        """See what people have changed, and work by it from now on."""
        changes = self.engine.changes
        await changes.look()
        self.apply_changes()

    def apply_changes(self) -> None:
        """Work by the changes that are in force."""
        changes = self.engine.changes
        if changes.known == self._applied:
            return
        self._applied = changes.known
        self.tiers = changes.tiers(self._served)
        for share in self.bulkheads.set(changes.slots):
            for flight in self.flights.values():
                if flight.lease.queue == share.queue:
                    flight.share = share
                    share.running += flight.task is not None
        for share in self.bulkheads.shares.values():
            for _ in range(min(len(share.aside), max(0, share.slots - share.running))):
                self._local.append(share.aside.popleft())
            share.is_left_out = False
        self._wake_one()
        self.nudge()

    async def claim(self, wants: Sequence[Want], count: int) -> Claim:
        """Claim jobs, and have them run; for the claimer and the spreader."""
        asked_at = self._loop.time()
        claim = await self.store.claim(wants, count, self.id, milliseconds(self.lease))
        self._take(claim.leases, asked_at)
        return claim

    def is_full_for(self, seconds: float) -> bool:
        """Whether there has been no free slot for so long, and nothing was claimed."""
        claimed_at = self.heard_at or 0.0
        return not self._stop.is_set() and self._free() <= 0 and self.now - claimed_at >= seconds

    @property
    def now(self) -> float:
        """The time of the worker's event loop."""
        return self._loop.time()

    async def _wait(self, queues: Sequence[str], timeout: float) -> None:
        try:
            await self.store.wait(queues, timeout)
        except (StoreError, OSError) as error:
            self.telemetry.trouble("cannot listen for new jobs; trying again", error)
            self._spreader.doubt()
            await asyncio.sleep(1)

    async def _first(self, something: Coroutine[Any, Any, object]) -> None:
        """Wait for something, or for stop() or nudge()."""
        self._waiting = waiting = asyncio.create_task(something)
        if self._is_nudged:
            waiting.cancel()
        try:
            await waiting
        except asyncio.CancelledError:
            claimer = asyncio.current_task()
            if not waiting.cancelled() or (claimer is not None and claimer.cancelling()):
                raise
        finally:
            self._is_nudged = False

    def _free(self) -> int:
        """How many jobs to claim: the free slots, and a little ahead when jobs are quick."""
        if self.isolation.flight is not None:
            return 0
        if len(self._endings) > 5 * BATCH:
            return 0  # the store does not keep up with what has ended
        now = self._loop.time()
        since, before = self._pace
        if now - since >= PREFETCH or self.finished - before >= BATCH:
            passed = max(now - since, 0.001)
            self._ahead = min(AHEAD, int((self.finished - before) / passed * PREFETCH))
            self._pace = (now, self.finished)
            self.bulkheads.note(passed, PREFETCH)
        slots = self.concurrency - self._running - len(self._local)
        if slots <= 0 and len(self._local) > self._ahead // 2:
            return 0  # nobody starves, and one large claim costs less than many small ones
        return slots + self._ahead

    def _take(self, leases: list[Lease], asked_at: float) -> None:
        # Their time began at the store before the answer was here, however late that came.
        expires = asked_at + self._length
        flights, local, shares = self.flights, self._local, self.bulkheads.shares
        for lease in leases:
            lease.expires = expires
            flights[lease] = flight = Flight(lease)
            if shares:
                flight.share = shares.get(lease.queue)
            if lease.queue == EVENTS:
                self._spreader.take(flight)
            elif lease.suspicion >= SUSPECT and lease.crashes < lease.attempts:
                self.isolation.take(flight)
            else:
                local.append(flight)
        if self.isolation.flight is not None:
            self._release_local()
        elif leases:
            self._wake_one()

    # running

    def _wake_one(self) -> None:
        # One runner at a time: it wakes the next when it starts a job and more are waiting, so
        # quick jobs are drained by one task and slow ones spread over all.
        while self._idle and not self._is_waking:
            turn = self._idle.pop()
            if not turn.done():  # a job may have left its task with a cancellation
                self._is_waking = True
                turn.set_result(None)

    def start(self, flight: Flight) -> None:
        """Have a job run that is not among those claimed to be started in turn."""
        self._local.append(flight)
        self._wake_one()

    def resume(self) -> None:
        """Claim jobs again, after a suspect has run alone."""
        self._slot_free.set()

    async def _run_jobs(self, number: int) -> None:
        local, endings, time = self._local, self._endings, monotonic  # the clock of the loop
        slot, isolation = self.presence.slot(number), self.isolation
        durations = self.engine.durations
        tracing = self.telemetry.tracing
        run = self.runner.run if tracing is None else partial(tracing.run, self.runner.run)
        if self.telemetry.narrator is not None:
            run = partial(self.telemetry.narrator.run, run)
        task = asyncio.current_task()
        yielded = time()
        while True:
            while not local:
                if self._stop.is_set():
                    return
                turn = self._loop.create_future()
                self._idle.append(turn)
                await turn
                self._is_waking = False
                yielded = time()
            now = time()
            if now - yielded > YIELD_AFTER:
                await asyncio.sleep(0)
                yielded = time()
                continue
            try:
                flight = local.popleft()
            except IndexError:
                continue  # the lifeline has just given it back
            if local and not self._is_waking:
                self._wake_one()
            share = flight.share
            if share is not None:
                if share.running >= share.slots and flight is not isolation.flight:
                    share.aside.append(flight)
                    continue
                share.running += 1
            flight.task, flight.since = task, now
            slot[:] = flight.lease.id.encode()
            self._running += 1
            try:
                outcome = await run(flight.lease, now)
            except asyncio.CancelledError as error:
                if task is None or self._is_broken_off(flight):
                    raise
                while task.cancelling():  # more than once, where a thread was waited for
                    task.uncancel()
                outcome = None
                if not flight.why:  # the function has cancelled the task that it runs in
                    outcome = self.runner.broken(error, flight.lease)
                elif flight.why == "grace":
                    self._give_back(flight)
            except BaseException as error:  # noqa: BLE001 - the others have their turn
                outcome = self.runner.broken(error, flight.lease)
            finally:
                self._running -= 1
                slot[0] = 0
                flight.task = None
                if flight.share is not None:  # it may have got one meanwhile
                    self._free_slot(flight.share)
                if isolation.flight is not None:
                    self._tell_isolation(flight)
            self.finished += 1
            took = time() - now
            if took > QUICK:
                durations.add((flight.lease.queue, flight.lease.kind, False), took)
            elif not self.finished % SAMPLE:
                durations.add((flight.lease.queue, flight.lease.kind, False), took, times=SAMPLE)
            if outcome is DONE:
                endings.append(Ending(flight.lease, State.DONE))
            else:
                self._finish(flight, outcome)
            if len(endings) == 1:
                self._settle_now.set()
            if len(local) <= self._ahead // 2:
                self._slot_free.set()
            if task is not None and task.cancelling():
                await self._uncancel(task)

    def _free_slot(self, share: Share) -> None:
        """A run has ended: the next job of its queue that was put aside may begin."""
        share.running -= 1
        share.finished += 1
        with suppress(IndexError):  # none, or the lifeline has just given it back
            self._local.appendleft(share.aside.popleft())
            self._wake_one()
        if share.is_left_out and not share.aside:
            share.is_left_out = False
            self.nudge()

    async def _uncancel(self, task: asyncio.Task[None]) -> None:
        """Take back a cancellation that a job has left to its runner: the next job is innocent."""
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if self._is_broken_off(None):
                raise
        while task.cancelling():
            task.uncancel()

    async def _serve(self, number: int) -> None:
        """Run jobs until told to stop, also where one has cancelled the task it ran in, and the
        task hears of it only now."""
        while True:
            try:
                return await self._run_jobs(number)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or self._is_broken_off(None):
                    raise
                task.uncancel()
                self._is_waking = False

    def _is_broken_off(self, flight: Flight | None) -> bool:
        """Whether a runner was cancelled since the worker ends, and not for its job's sake."""
        if flight is not None and flight.why:
            return False
        return self._is_ending or self._parent is None or self._parent.cancelling() > 0

    def _tell_isolation(self, flight: Flight) -> None:
        if flight is self.isolation.flight:
            self.isolation.ended.set()
        if not self._running:
            self.isolation.emptied.set()

    def _finish(self, flight: Flight, outcome: Outcome | Settled | None) -> None:
        if isinstance(outcome, Settled):
            if not isinstance(outcome.outcome, _QUIET):
                self.telemetry.ended(flight.lease, outcome.outcome)
            self.flights.pop(flight.lease, None)
        elif outcome is not None:
            try:
                end = ending(flight.lease, outcome)
            except BaseException as error:  # noqa: BLE001 - its answer may raise when it is read
                outcome = self.runner.broken(error, flight.lease)
                end = ending(flight.lease, outcome)
            if not isinstance(outcome, _QUIET):
                self.telemetry.ended(flight.lease, outcome)
            self._endings.append(end)
        elif not flight.why:
            self.flights.pop(flight.lease, None)

    # settling

    async def _settle(self) -> None:
        failures = 0
        while True:
            if not self._endings:
                if self._is_closing:
                    return
                self._settle_now.clear()
                await self._settle_now.wait()
                continue
            batch = [self._endings.popleft() for _ in range(min(BATCH, len(self._endings)))]
            self._settling = batch
            try:
                settled = await self.store.settle(batch)
            except (StoreError, OSError) as error:
                # The leases stay alive meanwhile, or others take the jobs and these are refused.
                self._endings.extendleft(reversed(batch))
                failures += 1
                if self._is_closing and failures > 3:
                    log.error("%d endings could not be written", len(self._endings))
                    return
                self.telemetry.trouble("cannot settle jobs; trying again", error)
                await asyncio.sleep(_RECONNECT.after(failures).total_seconds())
                continue
            if failures:
                # Whoever listens for us may have missed what was put off meanwhile.
                waits = [end.delay for end in batch if end.state is State.SCHEDULED]
                self._loop.call_later(min(waits, default=0) / 1_000, self.nudge)
            failures = 0
            self._settling = []
            self.telemetry.counts["settled"] += len(batch)
            # Not here: what ended meanwhile goes first, and the store has something to do.
            self._loop.call_soon(self._let_go, batch, settled)
            self._slot_free.set()

    def _let_go(self, batch: list[Ending], settled: list[bool]) -> None:
        """Forget the flights that have ended."""
        for end in batch:
            self.flights.pop(end.lease, None)
        if not all(settled):
            for end, is_ours in zip(batch, settled, strict=True):
                if not is_ours:
                    self.telemetry.lease_lost(end.lease)

    def _give_back(self, flight: Flight) -> None:
        """Return a job whose run was broken off."""
        failure = reason("HandedBack", "its worker stopped; handed back")
        self._endings.append(
            Ending(
                lease=flight.lease,
                state=State.SCHEDULED,
                spend=False,
                failure=failure,
                suspicion=flight.lease.suspicion,
                crashes=flight.lease.crashes,
            )
        )
        self._settle_now.set()

    def end(self, endings: Iterable[Ending]) -> None:
        """Have the endings of events settled."""
        self._endings += endings
        self._settle_now.set()

    def unsettled(self) -> list[Ending]:
        """The endings that may not have reached the store yet."""
        return list({ending.lease: ending for ending in [*self._settling, *self._endings]}.values())

    def release(self, flight: Flight, delay: int = 0) -> None:
        """Return a job that has not begun."""
        self._endings.append(released(flight.lease, delay))
        self._settle_now.set()

    def _release_local(self) -> None:
        """Return all that has not begun."""
        for waiting in (self._local, *self.bulkheads.aside):
            self._release_all(waiting)

    def _release_all(self, waiting: deque[Flight]) -> None:
        with suppress(IndexError):  # the lifeline may take some of it at the same time
            while True:
                self.release(waiting.popleft())

    def withdraw(self, flight: Flight) -> None:
        """Have a job not begin that was to be started."""
        for waiting in (self._local, *self.bulkheads.aside):
            with suppress(ValueError):  # it was not, or the lifeline has taken it
                waiting.remove(flight)

    @property
    def has_stuck(self) -> bool:
        """Whether some run goes on that will not end by itself."""
        flights = list(self.flights.values())  # the lifeline may take some away meanwhile
        return any(flight.task is not None and self.is_stuck(flight) for flight in flights)

    def is_stuck(self, flight: Flight) -> bool:
        """Whether a run has overstayed its time limit so long that it must be stuck."""
        longest = self.runner.limit(flight.lease) + OVERSTAY
        return self._loop.time() >= flight.since + longest

    def give_back_hoard(self) -> None:
        """Return what was claimed ahead and has waited too long behind slow jobs."""
        limit = self._loop.time() + self._length - HOARD.total_seconds()
        with suppress(IndexError):
            if self._running >= self.concurrency and self._local[0].lease.expires < limit:
                self._ahead = 0
                self._release_local()
        for share in self.bulkheads.shares.values():
            with suppress(IndexError):
                if share.running >= share.slots and share.aside[0].lease.expires < limit:
                    self._release_all(share.aside)

    def take_back_stale(self) -> list[Flight]:
        """Take what was claimed half a lease ago and has not begun: the event loop is blocked, or
        too busy. For the lifeline's thread: a deque gives each flight to one of the two."""
        limit = self._loop.time() + self._length / 2
        stale: list[Flight] = []
        if self.isolation.is_running:
            return stale  # the only job of the process, about to begin
        for waiting in (self._local, *self.bulkheads.aside):
            with suppress(IndexError):
                while waiting[0].lease.expires < limit:
                    stale.append(waiting.popleft())
        return stale

    def lost(self, flight: Flight) -> None:
        """The lifeline found that a job is no longer ours: stop working on it."""
        is_suspect = flight is self.isolation.flight
        waits = any(flight in waiting for waiting in (self._local, *self.bulkheads.aside))
        if flight.task is None and not waits and not is_suspect:
            return  # it has ended meanwhile: its settle tells whether it still was ours
        if self.flights.pop(flight.lease, None) is None:
            return
        self.telemetry.lease_lost(flight.lease)
        if flight.task is None:
            if is_suspect:
                self.isolation.flight = None
                self.resume()
            self.withdraw(flight)
        elif (run := self.runner.plain.get(flight.lease)) is not None:
            flight.why = "lost"
            run.lose()
        else:
            flight.why = "lost"
            flight.task.cancel()

    # stopping

    async def _wind_down(self, runners: list[asyncio.Task[None]]) -> None:
        self._release_local()
        for turn in self._idle:
            if not turn.done():
                turn.set_result(None)
        self._idle.clear()
        _, pending = await asyncio.wait(runners, timeout=self.grace.total_seconds())
        self._break_off()
        if pending:
            await asyncio.wait(pending, timeout=LOOK)
        await self._wait_for_threads(pending)
        self._break_off()
        if pending:
            _, stuck = await asyncio.wait(pending, timeout=1.5)
            for task in stuck:
                # It ignores its cancellation; the process must end all the same.
                log.error(
                    "a worker does not let itself be stopped", extra={"task": task.get_name()}
                )
                task.cancel()

    def _break_off(self) -> None:
        """Have every run end that can be stopped, and give its job back."""
        for flight in list(self.flights.values()):
            if flight.task is not None and not flight.why and flight.lease not in self.runner.plain:
                flight.why = "grace"
                flight.task.cancel()

    async def _wait_for_threads(self, runners: set[asyncio.Task[None]]) -> None:
        """Wait for the plain functions, which cannot be stopped and keep their jobs until then."""
        plain = self.runner.plain
        tell_at = 0.0
        while plain:
            now = self._loop.time()
            if now >= tell_at:
                tell_at = now + TELL_EVERY
                log.warning(
                    "stopping: waits for plain functions, which cannot be stopped; a second signal "
                    "ends them",
                    extra={"jobs": self.waits_for[:10], "count": len(plain)},
                )
            if self._is_retiring and all(run.is_overdue(now) for run in plain.values()):
                await self._abandon()
            await asyncio.wait(runners, timeout=LOOK, return_when=asyncio.FIRST_COMPLETED)
            runners = {task for task in runners if not task.done()}
            self._break_off()

    @property
    def waits_for(self) -> list[str]:
        """The plain functions that run, for people."""
        now = self._loop.time()
        runs = list(self.runner.plain.values())
        return [f"{run.lease.kind} {run.lease.id} for {now - run.began:.0f} s" for run in runs]

    async def _abandon(self) -> None:
        """End the process with the plain functions that do not end; their runs have failed."""
        for run in list(self.runner.plain.values()):
            if run.lease in self.flights:
                self._endings.append(self.runner.abandoned(run))
        self._is_closing = True
        self._settle_now.set()
        await asyncio.wait({self._settler}, timeout=GRACE)
        if not self.unsettled():  # or else the others read in this process's file what it ran
            self.presence.leave()
            with suppress(StoreError, OSError, TimeoutError):
                async with asyncio.timeout(GRACE):
                    await self.store.leave(self.id)
        log.critical(
            "a plain function does not end: this process does", extra={"jobs": self.waits_for[:10]}
        )
        # One that was told to stop does not begin anew.
        end_process("exit" if self.presence.is_stopping else self.on_blocked, EXIT_ABANDONED)
