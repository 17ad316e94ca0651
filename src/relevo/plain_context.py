"""PlainContext, what a plain `def` worker is handed: the methods of Context, without await.

The function runs in a thread. Each method does its work in the engine's event loop and returns
when that is done, while other jobs go on.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from datetime import datetime
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, cast, overload

import msgspec

from relevo.clock import Duration
from relevo.context import Context, K, Value, current
from relevo.errors import LeaseLost, MisuseError, SettingsError
from relevo.events import Published
from relevo.flow import Flow, Results
from relevo.job import Job, Policy, State, Unique
from relevo.message import Command, Event, KeyPart, Priority
from relevo.once import Call, OnceOptions
from relevo.store import JobGroup, Tally

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session

    from relevo.desk import FlowView, Person
    from relevo.group import Group
    from relevo.handles import FlowHandle, JobHandle
    from relevo.orders import Receipt, Started, Wishes

T = TypeVar("T")


class PlainContext:
    """One run of one job, as its plain `def` worker sees it."""

    __slots__ = (
        "_ctx",
        "_holding",
        "_is_over",
        "_limit",
        "_loop",
        "_statements",
        "_timer",
        "_too_long",
    )

    def __init__(
        self,
        ctx: Context,
        loop: asyncio.AbstractEventLoop,
        limit: float,
        too_long: Callable[[], None],
    ) -> None:
        self._ctx = ctx
        self._loop = loop
        self._limit = limit  # seconds that a transaction may stay open
        self._too_long = too_long
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False
        self._holding: asyncio.Task[Any] | None = None  # what keeps the transaction open
        self._statements: set[asyncio.Task[Any]] = set()  # those of its session, under way

    # what it is about

    @property
    def id(self) -> str:
        """The job's id."""
        return self._ctx.id

    @property
    def origin(self) -> str:
        """The id that generation 0 of this job has, under which its effects are written.

        The job's own id, unless it came of a replayed delivery.
        """
        return self._ctx.origin

    @property
    def turn(self) -> int:
        """How often an earlier run of this job has ended by plan: `Snooze`."""
        return self._ctx.turn

    @property
    def queue(self) -> str:
        return self._ctx.queue

    @property
    def key(self) -> str | None:
        return self._ctx.key

    @property
    def attempt(self) -> int:
        """This attempt; the first is 1.

        It names no run: one that spent nothing (lost with its process, put off by Snooze, parked)
        is followed by a run with the same number.
        """
        return self._ctx.attempt

    @property
    def is_last_attempt(self) -> bool:
        return self._ctx.is_last_attempt

    @property
    def thread(self) -> str:
        """The id that this job shares with everything that led to it and comes of it."""
        return self._ctx.thread

    @property
    def enqueued_at(self) -> datetime:
        return self._ctx.enqueued_at

    # what it may do

    def use(self, kind: type[T]) -> T:
        """An opened resource of the app, by its type."""
        return self._ctx.use(kind)

    def enqueue(
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
        return self._do(
            lambda: self._ctx.enqueue(
                command, delay=delay, at=at, key=key, unique=unique, priority=priority
            ),
            "enqueue",
        )

    def enqueue_many(self, commands: Iterable[Command]) -> list[Receipt]:
        """Order many things in few round trips, as with enqueue()."""
        given = list(commands)  # here: reading them may take its time, or call something
        return self._do(lambda: self._ctx.enqueue_many(given), "enqueue_many")

    def publish(self, event: Event) -> Published:
        """Tell a fact to its subscribers, once however often this run is repeated."""
        return self._do(lambda: self._ctx.publish(event), "publish")

    def start(self, flow: Flow, *, key: KeyPart | None = None) -> Started:
        """Start a flow, as with enqueue(); one with the same name and key that is unfinished is
        joined, and a repeated run gets that one again."""
        return self._do(lambda: self._ctx.start(flow, key=key), "start")

    def add_node(
        self, command: Command, *, name: str | None = None, on_failure: Policy = "fail"
    ) -> Receipt:
        """Add a node to the flow of this job; see `Context.add_node()`."""
        return self._do(
            lambda: self._ctx.add_node(command, name=name, on_failure=on_failure), "add_node"
        )

    def group(self, name: str, *, then: Command | None = None) -> PlainGroup:
        """Open a group, or get one that is open; see `Context.group()`."""
        return PlainGroup(self._do(lambda: self._ctx.group(name, then=then), "group"), self)

    def job(self, id: str) -> PlainJob:
        """Another job by its id, to ask what became of it, or to cancel or retry it."""
        return PlainJob(self._ctx.job(id), self)

    def flow(self, id: str) -> PlainFlow:
        """A flow by its id, by the id of one of its jobs, or by its key."""
        return PlainFlow(self._ctx.flow(id), self)

    def members(self) -> JobGroup:
        """How the members of the group ended whose `then` this job is."""
        return self._do(self._ctx.members, "members")

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
    ) -> K: ...
    @overload
    def once(
        self,
        name: str,
        call: Call,
        *,
        keep: Callable[[Any], Value],
        of: str | None = None,
        **options: Unpack[OnceOptions],
    ) -> Value: ...
    @overload
    def once(
        self,
        name: str,
        call: Callable[[str], Awaitable[Value]],
        *,
        of: str | None = None,
        **options: Unpack[OnceOptions],
    ) -> Value: ...
    @overload
    def once(
        self,
        name: str,
        call: Callable[[str], Value],
        *,
        of: str | None = None,
        **options: Unpack[OnceOptions],
    ) -> Value: ...
    @overload
    def once(
        self,
        name: str,
        call: Call,
        *,
        keep: Callable[[Any], Any] | None = None,
        of: str | None = None,
        **options: Unpack[OnceOptions],
    ) -> Any: ...
    def once(
        self,
        name: str,
        call: Call,
        *,
        type: Any = None,
        keep: Callable[[Any], Any] | None = None,
        of: str | None = None,
        **options: Unpack[OnceOptions],
    ) -> Any:
        """Make an effect outside happen once, as `Context.once()` does.

        Plain functions among `call` and `find` run in the thread of this worker.
        """
        inbox: SimpleQueue[_Call | None] = SimpleQueue()

        async def invoke(function: Callable[[str], Any], key: str) -> Any:
            if self._is_over:
                raise asyncio.CancelledError  # nothing is called any more, and once() writes so
            result: Future[_Answer[Any]] = Future()
            inbox.put(_Call(function, key, result))
            return (await asyncio.wrap_future(result)).value()

        return self._do(
            lambda: self._ctx.once_by(invoke, name, call, type=type, keep=keep, of=of, **options),
            "once",
            inbox,
        )

    @contextmanager
    def transaction(self) -> Generator[Session]:
        """A SQLAlchemy session that is committed with the end of this job, when the worker returns.

        Rows, events, new commands, what the worker returns and the end of the job are one
        transaction. If the worker raises after the block, or the lease has gone to another worker,
        none of it is saved. The transaction stays open until then, so its block is the last thing
        that a worker does.
        """
        self._check("transaction")
        if _greenlets() is None:
            raise SettingsError("transactions need SQLAlchemy: pip install 'relevo[sqlalchemy]'")
        if not _has_gate():
            raise MisuseError(
                "ctx.transaction() works in the thread that the worker was called in: open it "
                "there, and let the threads of your own give back what is to be written"
            )
        opened: Future[tuple[AsyncSession, asyncio.Future[None]]] = Future()
        block: list[BaseException] = []

        async def hold() -> None:
            # One task from begin to commit, so that what belongs to a task stays where it is.
            self._holding = asyncio.current_task()
            self._timer = self._loop.call_later(self._limit, self._too_long)
            async with self._ctx.transaction() as session:
                await session.connection()  # taken from its pool here, where the pool lives
                closed = self._loop.create_future()
                opened.set_result((session, closed))
                await closed
                if block:
                    raise block[0]

        held = self._begin(hold)
        held.add_done_callback(lambda _: _give_up_waiting(opened))
        try:
            session, closed = opened.result()
        except _NotOpened:
            held.result().value()
            raise AssertionError("a transaction that did not open says why") from None
        try:
            yield session.sync_session
        except BaseException as error:  # noqa: BLE001 - whatever it is, nothing is saved
            block.append(_carried(error))
        self._check_over()
        self._loop.call_soon_threadsafe(_close, closed)
        held.result().value()

    def tallies(self) -> list[Tally]:
        """How many jobs every queue has, for work that must know what others still have to do."""
        return self._do(self._ctx.tallies, "tallies")

    def results(self) -> Results:
        """What the children of this flow's node gave, by node name; see `Context.results()`."""
        return self._do(self._ctx.results, "results")

    # for the runner

    def run(self, function: Callable[..., Any], message: Any) -> Any:
        """Call the worker; in its thread."""
        work = partial(function, message, self)
        gate = _gate()
        return work() if gate is None else gate(work, self._statement)

    async def leave(self) -> None:
        """The run is over, whether its function has returned or not; in the event loop."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        for statement in self._statements:
            statement.cancel()
        if self._statements:
            # No connection does two things at once, and what comes next may be its rollback.
            await asyncio.wait(self._statements)
        if self._holding is not None:
            self._holding.cancel()  # rolled back, so that no thread keeps rows locked for others

    # in the event loop, on behalf of the thread

    def do(self, work: Callable[[], Awaitable[T]], name: str) -> T:
        """Do something for PlainGroup, PlainJob or PlainFlow."""
        return self._do(work, name)

    def _do(
        self,
        work: Callable[[], Awaitable[T]],
        name: str,
        inbox: SimpleQueue[_Call | None] | None = None,
    ) -> T:
        self._check(name)
        doing = self._begin(work)
        if inbox is not None:
            doing.add_done_callback(lambda _: inbox.put(None))
            while (asked := inbox.get()) is not None:
                asked.answer()
        return doing.result().value()

    def _check(self, name: str) -> None:
        try:
            is_here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_here = False
        if is_here:
            raise MisuseError(
                f"ctx.{name}() of a plain `def` worker would block the event loop here: the worker "
                "is a plain function that gave something to await. Write it as `async def`"
            )
        self._check_over()

    def _check_over(self) -> None:
        if self._is_over:
            raise LeaseLost(f"this run of {self.id} is over; nothing more is done for it")

    def _begin(self, work: Callable[[], Awaitable[T]]) -> Future[_Answer[T]]:
        context = copy_context()
        context.run(current.set, self._ctx)  # also in a thread that the worker has made itself
        answered = _answered(work)
        try:
            return context.run(asyncio.run_coroutine_threadsafe, answered, self._loop)
        except RuntimeError as error:  # the event loop is closed
            answered.close()
            raise LeaseLost(f"the worker of {self.id} has stopped") from error

    def _statement(self, awaitable: Awaitable[Any]) -> Any:
        """Wait for what SQLAlchemy would await."""
        if self._is_over:
            _drop(awaitable)
        self._check_over()

        async def statement() -> Any:
            if self._is_over:  # since the thread asked
                _drop(awaitable)
            self._check_over()
            task = cast("asyncio.Task[Any]", asyncio.current_task())
            self._statements.add(task)
            try:
                return await awaitable
            except asyncio.CancelledError:
                self._check_over()
                raise
            finally:
                self._statements.discard(task)

        return self._begin(statement).result().value()


class PlainGroup:
    """A group of jobs, as a plain `def` worker has it: the methods of Group, without await."""

    def __init__(self, group: Group, ctx: PlainContext) -> None:
        self._group = group
        self._ctx = ctx

    @property
    def id(self) -> str:
        """The id of the job that waits for all members."""
        return self._group.id

    @property
    def name(self) -> str:
        return self._group.name

    def add(self, command: Command, **wishes: Unpack[Wishes]) -> Receipt:
        """Order something that the group waits for."""
        return self._ctx.do(lambda: self._group.add(command, **wishes), "group().add")

    def add_many(self, commands: Iterable[Command]) -> Sequence[Receipt]:
        """Order many things that the group waits for, in batches."""
        given = list(commands)
        return self._ctx.do(lambda: self._group.add_many(given), "group().add_many")

    def close(self) -> None:
        """Say that no more comes but from members."""
        self._ctx.do(self._group.close, "group().close")

    def progress(self) -> JobGroup:
        """How many members there are, and how many have ended how."""
        return self._ctx.do(self._group.progress, "group().progress")


class PlainJob:
    """One job, as a plain `def` worker has it: the methods of JobHandle, without await."""

    def __init__(self, job: JobHandle, ctx: PlainContext) -> None:
        self._job = job
        self._ctx = ctx

    @property
    def id(self) -> str:
        return self._job.id

    def look(self) -> Job:
        """The job with its history, its failure and its payload."""
        return self._ctx.do(self._job.look, "job().look")

    def state(self) -> State:
        """Where the job is now."""
        return self._ctx.do(self._job.state, "job().state")

    def result(self, type: Any = None) -> Any:
        """What the run returned that ended well."""
        return self._ctx.do(lambda: self._job.result(type), "job().result")

    def wait(self, timeout: Duration = "30s") -> Job:
        """Wait until the job has ended; TimeoutError when it has not by then."""
        return self._ctx.do(lambda: self._job.wait(timeout), "job().wait")

    def cancel(self, *, who: str | Person, note: str = "") -> bool:
        """End the job, if it has not ended."""
        return self._ctx.do(lambda: self._job.cancel(who=who, note=note), "job().cancel")

    def retry(self, *, who: str | Person, note: str = "") -> bool:
        """Make the job ready again, with fresh attempts."""
        return self._ctx.do(lambda: self._job.retry(who=who, note=note), "job().retry")


class PlainFlow:
    """One flow, as a plain `def` worker has it: the methods of FlowHandle, without await."""

    def __init__(self, flow: FlowHandle, ctx: PlainContext) -> None:
        self._flow = flow
        self._ctx = ctx

    @property
    def id(self) -> str:
        return self._flow.id

    def look(self) -> FlowView:
        """The flow with the jobs of its nodes."""
        return self._ctx.do(self._flow.look, "flow().look")

    def state(self) -> State:
        """What the flow does now, or how it ended."""
        return self._ctx.do(self._flow.state, "flow().state")

    def results(self) -> Results:
        """What the nodes gave that have ended well, by name."""
        return self._ctx.do(self._flow.results, "flow().results")

    def wait(self, timeout: Duration = "30s") -> FlowView:
        """Wait until every node has ended; TimeoutError when one has not by then."""
        return self._ctx.do(lambda: self._flow.wait(timeout), "flow().wait")

    def cancel(self, *, who: str | Person, note: str = "") -> int:
        """End every node that has not ended."""
        return self._ctx.do(lambda: self._flow.cancel(who=who, note=note), "flow().cancel")

    def retry(self, *, who: str | Person, note: str = "", node: str | None = None) -> int:
        """Retry what ended badly and is still needed."""
        return self._ctx.do(lambda: self._flow.retry(who=who, note=note, node=node), "flow().retry")


class _Answer(msgspec.Struct, Generic[T], frozen=True):
    """What came of a piece of work; an error is told, and not left to break the event loop."""

    given: T | None = None
    error: BaseException | None = None

    def value(self) -> T:
        if self.error is not None:
            raise self.error
        return cast("T", self.given)


async def _answered(work: Callable[[], Awaitable[T]]) -> _Answer[T]:
    try:
        return _Answer(await work())
    except BaseException as error:  # noqa: BLE001 - raised again in the worker's thread
        return _Answer(error=_carried(error))


def _carried(error: BaseException) -> BaseException:
    """The error, or what stands for one that no coroutine may raise."""
    if not issubclass(type(error), StopIteration):
        return error
    stands_for = RuntimeError("the worker raised StopIteration")
    stands_for.__cause__ = error
    return stands_for


class _Call(msgspec.Struct, frozen=True):
    """A call that the event loop asks the worker's thread to make."""

    function: Callable[[str], Any]
    key: str
    result: Future[_Answer[Any]]

    def answer(self) -> None:
        try:
            answer = _Answer(self.function(self.key))
        except BaseException as error:  # noqa: BLE001 - once() judges it
            answer = _Answer[Any](error=_carried(error))
        self.result.set_result(answer)


# transaction()


class _NotOpened(Exception):
    """The transaction ended before its block began."""


def _give_up_waiting(opened: Future[Any]) -> None:
    if not opened.done():
        opened.set_exception(_NotOpened())


def _close(closed: asyncio.Future[None]) -> None:
    if not closed.done():
        closed.set_result(None)


_PROVIDER = "__sqlalchemy_greenlet_provider__"


def _has_gate() -> bool:
    greenlets = _greenlets()
    return greenlets is not None and getattr(greenlets.getcurrent(), _PROVIDER, False)


def _greenlets() -> Any:
    """What SQLAlchemy switches with where it is used with asyncio; None where it is not there."""
    global _found
    if _found is False:
        try:
            import greenlet

            _found = greenlet
        except ImportError:
            _found = None
    return _found


_found: Any = False


def _gate() -> Callable[[Callable[[], Any], Callable[[Any], Any]], Any] | None:
    return None if _greenlets() is None else _gated


def _gated(work: Callable[[], Any], wait: Callable[[Any], Any]) -> Any:
    """Run a function whose SQLAlchemy session is an async one, as its greenlet_spawn() does.

    What the session would await is handed out of the function's greenlet, and waited for here.
    """
    greenlets = _greenlets()
    inner = greenlets.greenlet(work)
    setattr(inner, _PROVIDER, True)
    inner.gr_context = greenlets.getcurrent().gr_context
    given = inner.switch()
    while not inner.dead:
        try:
            value = wait(given)
        except BaseException as error:  # noqa: BLE001 - raised where the session waits
            given = inner.throw(error)
        else:
            given = inner.switch(value)
    return given


def _drop(awaitable: Awaitable[Any]) -> None:
    """Close what nothing will await, and the coroutine inside that would enter its result.

    A cursor of aiosqlite is such a pair: Python warns of the inner one whenever it is collected.
    """
    entered = None
    if inspect.iscoroutine(awaitable):
        entered = inspect.getcoroutinelocals(awaitable).get("self")
    for each in (awaitable, entered):
        if isinstance(each, Coroutine):  # also what stands for one, as in aiosqlite
            each.close()
