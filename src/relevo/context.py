"""Context, what every worker and listener is handed: enqueue, publish, once, transaction."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from contextvars import ContextVar
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, Unpack, overload

import msgspec

from relevo.calling import Invoke, Outlasted, outlast
from relevo.child_names import child_names
from relevo.clock import Duration, milliseconds, moment
from relevo.errors import LeaseLost, MisuseError, ProviderUncertain, StoreError
from relevo.events import Published
from relevo.flow import Flow, Results
from relevo.follow_ups import FollowUps, of_run
from relevo.ids import new_id
from relevo.job import Ending, Lease, Policy, State, Unique
from relevo.message import Command, Event, KeyPart, Priority
from relevo.once import Call, Once, OnceOptions, note_type
from relevo.pending import Calls, check_awaited, noted
from relevo.sealing import unsealed
from relevo.store import Effect, JobGroup, Tally

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from relevo.engine import Relevo
    from relevo.group import Group
    from relevo.handles import FlowHandle, JobHandle
    from relevo.intake import Intake
    from relevo.orders import Receipt, Started
    from relevo.plain_runs import PlainRuns

T = TypeVar("T")
K = TypeVar("K")
Value = TypeVar("Value", bound=str | int | float | bool | None)

current: ContextVar[Context | Intake | None] = ContextVar("relevo_context", default=None)
"""The job or delivery that this task is about, so that what it causes joins its thread."""


_NOTHING: frozenset[tuple[str, str]] = frozenset()
_NO_EFFECTS: dict[tuple[str, str], Once] = {}
_ENDED_BADLY = frozenset({State.DEAD.value, State.CANCELLED.value})


class _RolledBack(Exception):
    """Rolls a transaction back."""


def _calls(ctx: Context) -> Calls:
    return ctx.pending


def calls_here(_: object) -> Calls | None:
    """What this run or delivery has called and not yet awaited, if there is one."""
    cause = current.get()
    if cause is None or (not isinstance(cause, Context) and cause.is_over):
        return None
    return cause.pending


def _described(thing: object) -> str:
    if inspect.isawaitable(thing):
        return "a call that was made already"
    return type(thing).__name__


class Context:
    """One run of one job, as its worker sees it."""

    __slots__ = (
        "_called",
        "_calling",
        "_engine",
        "_follow_ups",
        "_lease",
        "_loop",
        "_origin",
        "_plain",
        "_tx",
        "calls",
        "has_reached",
        "is_cut_off",
        "is_over",
        "is_recurring",
        "slowest",
        "took",
        "unanswered",
        "uncommitted",
    )

    def __init__(
        self,
        engine: Relevo,
        lease: Lease,
        loop: asyncio.AbstractEventLoop,
        origin: str | None = None,
        plain: PlainRuns | None = None,
    ) -> None:
        self._engine = engine
        self._plain = plain
        self._lease = lease
        self._loop = loop
        self._origin = origin
        self._follow_ups: FollowUps | None = None
        self.calls: Calls | None = None  # see pending; most runs call nothing
        self._calling = _NOTHING  # the effects whose call is under way
        self._called = _NOTHING  # and all that this run has asked for
        # Effects whose intent may be written, though nothing was called: the store did not answer.
        self.unanswered: dict[tuple[str, str], Once] = _NO_EFFECTS
        self._tx: AsyncSession | None = None
        self.uncommitted: tuple[AsyncSession, AsyncExitStack] | None = None  # its block has ended
        self.is_recurring = False  # a poller's or schedule's turn
        # Whether a once() of this run has asked its provider for anything; None: it used none.
        self.has_reached: bool | None = None
        self.took = 0.0  # seconds of its function, where a breaker guards it
        self.slowest = 0.0  # seconds of the longest call that once() has made in this run
        self.is_cut_off = False  # a once() of this run was broken off while it waited for that
        self.is_over = False  # its function has ended: nothing more is started or done for it

    @property
    def pending(self) -> Calls:
        """What was called and has not been awaited to its end."""
        if self.calls is None:
            self.calls = Calls()
        return self.calls

    # what it is about

    @property
    def id(self) -> str:
        """The job's id."""
        return self._lease.id

    @property
    def origin(self) -> str:
        """The id that generation 0 of this job has, under which its effects are written.

        The job's own id, unless it came of a replayed delivery.
        """
        return self._origin or self._lease.id

    @property
    def turn(self) -> int:
        """How often an earlier run of this job has ended by plan: `Snooze`, or a poller's turn."""
        return self._lease.turn

    @property
    def queue(self) -> str:
        return self._lease.queue

    @property
    def key(self) -> str | None:
        return self._lease.key

    @property
    def attempt(self) -> int:
        """This attempt; the first is 1.

        It names no run: one that spent nothing (lost with its process, put off by Snooze, parked)
        is followed by a run with the same number.
        """
        return self._lease.attempt

    @property
    def is_last_attempt(self) -> bool:
        return self._lease.attempt >= self._lease.attempts

    @property
    def thread(self) -> str:
        """The id that this job shares with everything that led to it and comes of it."""
        return self._lease.thread or self._lease.id

    @property
    def enqueued_at(self) -> datetime:
        return moment(self._lease.inserted_at)

    # what it may do

    def use(self, kind: type[T]) -> T:
        """An opened resource of the app, by its type."""
        return self._engine.use(kind)

    @noted("ctx", _calls)
    async def enqueue(
        self,
        command: Command,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        key: KeyPart | None = None,
        unique: Unique | None = None,
        priority: Priority | None = None,
    ) -> Receipt:
        """Order something, once however often this run is repeated.

        Inside `transaction()` the order joins it. Another payload is another order. A `key` says
        what it is for with `unique`, here or in the command's class; `differs` in the receipt says
        that the order joined a job whose payload is another, and its own is not used.
        """
        self._check_open("enqueue()")
        return await self._engine.enqueue(
            command, delay=delay, at=at, key=key, unique=unique, priority=priority
        )

    @noted("ctx", _calls)
    async def enqueue_many(self, commands: Iterable[Command]) -> list[Receipt]:
        """Order many things in few round trips, as with enqueue()."""
        self._check_open("enqueue_many()")
        return await self._engine.enqueue_many(commands)

    @noted("ctx", _calls)
    async def publish(self, event: Event) -> Published:
        """Tell a fact to its subscribers, once however often this run is repeated."""
        self._check_open("publish()")
        return await self._engine.publish(event)

    @noted("ctx", _calls)
    async def start(self, flow: Flow, *, key: KeyPart | None = None) -> Started:
        """Start a flow, as with enqueue(); one with the same name and key that is unfinished is
        joined, and a repeated run gets that one again."""
        self._check_open("start()")
        return await self._engine.start(flow, key=key)

    @noted("ctx", _calls)
    async def add_node(
        self, command: Command, *, name: str | None = None, on_failure: Policy = "fail"
    ) -> Receipt:
        """Add a node to the flow of this job, which is running: what waits for this node waits for
        that one too, and finds what it gives in `results()` by its `name`, or else its command's.
        """
        self._check_open("add_node()")
        if on_failure not in ("fail", "continue"):
            raise MisuseError(f"on_failure is 'fail' or 'continue', not {on_failure!r:.40}")
        flow = self._lease.flow
        if flow is None:
            raise MisuseError(
                f"job {self.id} is no node of a flow: relevo.start() a flow, or add to a group"
            )
        return await self._engine.add_node(self, flow, command, name, on_failure)

    @noted("ctx", _calls)
    async def group(self, name: str, *, then: Command | None = None) -> Group:
        """Open a group, or get one that is open, to add to it or to close it; see
        `Relevo.group()`. What a run adds, it adds once however often it is repeated."""
        self._check_open("group()")
        return await self._engine.group(name, then=then)

    def job(self, id: str) -> JobHandle:
        """Another job by its id, to ask what became of it, or to cancel or retry it."""
        return self._engine.job(id)

    def flow(self, id: str) -> FlowHandle:
        """A flow by its id, by the id of one of its jobs, or by its key."""
        return self._engine.flow(id)

    async def members(self) -> JobGroup:
        """How many members the group had whose `then` this job is, and how many ended how."""
        [found] = await self._engine.store.job_groups([self.id])
        if found is None:
            raise MisuseError(f"job {self.id} is no group's: nothing was added to it")
        return found

    @overload
    def once(
        self,
        name: str,
        call: Call,
        *,
        type: type[K],
        keep: Callable[[Any], Any] | None = None,
        of: str | None = None,
        **options: Unpack[OnceOptions],
    ) -> Coroutine[Any, Any, K]: ...
    @overload
    def once(
        self,
        name: str,
        call: Call,
        *,
        keep: Callable[[Any], Value],
        of: str | None = None,
        **options: Unpack[OnceOptions],
    ) -> Coroutine[Any, Any, Value]: ...
    @overload
    def once(
        self,
        name: str,
        call: Callable[[str], Awaitable[Value]],
        *,
        of: str | None = None,
        **options: Unpack[OnceOptions],
    ) -> Coroutine[Any, Any, Value]: ...
    @overload
    def once(
        self,
        name: str,
        call: Callable[[str], Value],
        *,
        of: str | None = None,
        **options: Unpack[OnceOptions],
    ) -> Coroutine[Any, Any, Value]: ...
    @overload
    def once(
        self,
        name: str,
        call: Call,
        *,
        keep: Callable[[Any], Any] | None = None,
        of: str | None = None,
        **options: Unpack[OnceOptions],
    ) -> Coroutine[Any, Any, Any]: ...
    @noted("ctx", _calls)
    async def once(
        self,
        name: str,
        call: Call,
        *,
        type: Any = None,
        keep: Callable[[Any], Any] | None = None,
        of: str | None = None,
        **options: Unpack[OnceOptions],
    ) -> Any:
        """Make an effect outside happen once, whatever dies in between.

        `call` gets an idempotency key that stays the same for this job and name. An async function
        is awaited; any other runs in a thread. What it returns is kept as JSON, and every run gets
        a read-only record of that (a text, a number, True or None as it is); `keep` says what is
        kept of it, `type` what it is read back as.

        What a client's error proves decides what becomes of the job: see judge_client_error(),
        which `judge` is asked before; an answer of 400 or more counts as an error unless its
        status stands in `accept`. After a call that may have happened, `find` is asked first;
        without it a `repeatable` call (the provider honours the key) is made again, and any other
        is held for a person. `late` is how long a call that broke off may still arrive: what
        `find` does not find until then is looked for again, and not called.

        `call` makes one call of a provider: of several, or of a retry loop, the last error alone
        would speak, so each gets a once() with a name of its own (`relevo check`: RV023).

        `of` is the id of what the effect belongs to, when not this job: several jobs with the same
        one make it once. In a poller an effect belongs to its turn. One name is one effect: a
        second call of it in one run is refused.
        """
        return await self.once_by(
            self._in_thread, name, call, type=type, keep=keep, of=of, **options
        )

    async def _in_thread(self, function: Callable[[str], Any], key: str) -> Any:
        """Run a plain call of once() in a thread; when this run is broken off, the thread is waited
        for, since the call would otherwise be made again beside itself."""
        asked = self._engine.threads.submit(function, key)
        work = asyncio.wrap_future(asked)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if self._plain is None or work.done() or asked.cancel():
                raise
        with self._plain.outlasting(self, self._lease):
            await outlast(work)
        raise Outlasted(work)

    async def once_by(
        self,
        invoke: Invoke,
        name: str,
        call: Call,
        *,
        type: Any = None,
        keep: Callable[[Any], Any] | None = None,
        of: str | None = None,
        **options: Unpack[OnceOptions],
    ) -> Any:
        """Context.once(), with plain callables run by `invoke`."""
        if self._tx is not None:
            raise MisuseError(
                "ctx.once() inside ctx.transaction(): its intent must be committed before the call "
                "leaves, and no transaction may stay open across a call. Call once() first."
            )
        self._check_open("once()")
        self.check_lease()
        if not callable(call):
            if inspect.iscoroutine(call):
                call.close()
            raise MisuseError(
                f"ctx.once({name!r:.60}, …) was given {_described(call)} instead of a function: "
                f"write ctx.once({name!r:.60}, lambda key: …), which is called with the key"
            )
        lease, restored = self._lease, self._engine.restored
        if not restored.is_known:
            await restored.learn()
        doubts = restored.doubts(lease)
        if of is not None or self._origin is not None:
            owner = of or self.origin
            lease = msgspec.structs.replace(lease, id=owner, thread=lease.thread or lease.id)
        if of is None and self.is_recurring:
            name = f"{name}@{lease.turn}"
        once = Once(
            ledger=self._engine.ledger(lease.queue),
            lease=lease,
            run=new_id(),
            name=name,
            call=call,
            invoke=invoke,
            type=type,
            keep=keep,
            errors=self._engine.error_rows(lease.queue),
            check=self.check_lease,
            is_shared=of is not None,
            is_asked=partial(self._is_asked, is_own=of is None),
            doubts=doubts,
            durations=self._engine.durations,
            **options,
        )
        place = (lease.id, name)
        if place in self._calling:
            raise MisuseError(
                f"ctx.once('{name}') is under way in this run already, and what it gives is not "
                "known yet: await it first, or give each effect a name of its own"
            )
        if place in self._called:
            raise MisuseError(
                f"ctx.once('{name}') was called before in this run: one name is one effect, and "
                "this call would not be made but answered with what the first one gave. Put what "
                f'differs into the name, as in ctx.once(f"{name}:{{who}}", …)'
            )
        if place in self.unanswered:
            await self.unanswered[place].take_back()
            self.unanswered = {k: v for k, v in self.unanswered.items() if k != place}
        self._calling = self._calling | {place}
        self._called = self._called | {place}
        try:
            return await once.result()
        except asyncio.CancelledError:
            self.is_cut_off |= once.has_reached
            raise
        except StoreError:
            self._called = self._called - {place}  # our own trouble, after which a run may go on
            raise
        except ProviderUncertain:
            if type is not None:  # a person who tells the result is told what fits
                await note_type(self._engine.store, lease.queue, name, type)
            raise
        finally:
            self._calling = self._calling - {place}
            self.slowest = max(self.slowest, once.took)
            if once.is_pending:
                self.unanswered = {**self.unanswered, place: once}
            self.has_reached = self.has_reached or once.has_reached

    async def _is_asked(self, refused: Effect, *, is_own: bool) -> bool:
        """Whether a person has retried this job, or replayed its delivery, since a refusal.

        What had ended badly runs again only if a person says so.
        """
        [job] = await self._engine.store.find([self.id])
        if job is None:
            return False
        if is_own and self._origin is not None and job.inserted_at > refused.updated_at:
            return True
        return any(
            run.outcome in _ENDED_BADLY and run.ended_at >= refused.updated_at
            for run in job.history
        )

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[AsyncSession]:
        """A SQLAlchemy session that is committed with the end of this job, when the worker returns.

        Rows, events, new commands, what the worker returns and the end of the job are one
        transaction. If the worker raises after the block, or the lease has gone to another worker,
        none of it is saved. The transaction stays open until then, so its block is the last thing
        that a worker does.
        """
        self._check_open("transaction()")
        if self._tx is not None:
            raise MisuseError("ctx.transaction() inside ctx.transaction(): use the one you have")
        if self._calling:
            raise MisuseError(
                "ctx.transaction() while ctx.once() is under way: the job would end before it is "
                "known what came of the call. Await once() first."
            )
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(self._engine.transaction())
            self._tx = session
            try:
                yield session
            finally:
                self._tx = None
            check_awaited(self.pending)
            await session.flush()  # what the database refuses is raised here, where it was written
            self.uncommitted = (session, stack.pop_all())

    async def tallies(self) -> list[Tally]:
        """How many jobs every queue has, for work that must know what others still have to do."""
        return await self._engine.store.tally()

    async def results(self) -> Results:
        """What the children of this flow's node gave, by node name.

        A child that gave nothing is there with None. One that ended badly, which is possible where
        it was added with `on_failure="continue"`, is not there but in `.failed`, with the reason.
        """
        [job] = await self._engine.store.find([self.id])
        edges = () if job is None else job.after
        given: dict[str, Any] = {}
        failed: dict[str, str] = {}
        if job is None or not edges:
            return Results(given, failed)
        children = await self._engine.store.find([edge.child for edge in edges])
        each = await child_names(self._engine.store, job, children)
        for child, names in zip(children, each, strict=True):
            for name in names:
                if child is None:
                    failed[name] = "its job is no longer kept"
                elif child.state is not State.DONE:
                    said = child.failure
                    why = "" if said is None else f" ({said.type}: {said.message})"
                    failed[name] = f"it is {child.state}{why}"
                elif child.result is None:
                    given[name] = None
                else:
                    given[name] = msgspec.json.decode(unsealed(child.result))
        return Results(given, failed)

    # for the engine

    @property
    def follow_ups(self) -> FollowUps:
        """What this run has asked for so far."""
        if self._follow_ups is None:
            engine = self._engine
            remember = milliseconds(engine.keep_dead)
            self._follow_ups = of_run(self._lease, self.origin, engine.seal, remember)
        return self._follow_ups

    @property
    def tx(self) -> AsyncSession | None:
        """The open transaction, which enqueue and publish join."""
        return self._tx

    async def commit(self, ending: Ending) -> None:
        """Commit `transaction()` together with the end of the run; LeaseLost saves nothing."""
        assert self.uncommitted is not None  # noqa: S101 - the runner has asked
        (session, stack), self.uncommitted = self.uncommitted, None
        async with stack:
            if not await self._engine.settle_within(session, ending):
                raise LeaseLost(
                    f"job {self.id} went to another worker; nothing of this run is saved"
                )
        self._engine.ended_within(ending)

    async def roll_back(self) -> None:
        """Save nothing of `transaction()`, since its run does not end well."""
        if self.uncommitted is None:
            return
        (_, stack), self.uncommitted = self.uncommitted, None
        with suppress(_RolledBack):
            async with stack:
                raise _RolledBack

    def check_lease(self) -> None:
        if self._loop.time() > self._lease.expires:
            raise LeaseLost(f"the lease on {self.id} has lapsed; another worker may have the job")

    def _check_running(self, what: str) -> None:
        if self.is_over:
            raise MisuseError(
                f"ctx.{what} after the run of job {self.id} has ended: await what the worker "
                "starts before it returns, or order it with relevo.enqueue(…), which is then an "
                "order of its own"
            )

    def _check_open(self, what: str) -> None:
        self._check_running(what)
        if self.uncommitted is not None:
            self.refuse_late(f"ctx.{what}")

    def refuse_late(self, what: str) -> NoReturn:
        """MisuseError for what follows the block of `transaction()`."""
        raise MisuseError(
            f"{what} after ctx.transaction(): its commit ends the job. "
            "Make it the last thing the worker does, or enqueue what remains inside it."
        )
