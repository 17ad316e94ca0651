"""A child process that runs commands with `isolate="process"`, one at a time, and the words that it
and its worker process send each other.

The function runs in a thread, as in a worker process, with the same context. What the context needs
of the engine is asked of the worker process, which has the store and the lease.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import importlib.util
import itertools
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NoReturn, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Struct, msgpack

from relevo import errors
from relevo.calling import Threads
from relevo.client_errors import Row, is_away, retry_after_of
from relevo.clock import Duration, duration, milliseconds
from relevo.context import Context, current
from relevo.durations import Durations
from relevo.errors import CircuitOpen, MisuseError, ProviderUnavailable, ProviderUncertain
from relevo.events import Published
from relevo.job import Failure, Job, Lease, Receipt, Unique
from relevo.message import Command, Event, Message, Priority, codec
from relevo.once import Ledger
from relevo.outcome import Cancelled, Dead, Described, Done, Outcome, Retry, Snooze, describe
from relevo.pending import check_awaited
from relevo.plain_context import PlainContext
from relevo.restored import Restored
from relevo.store import Effect, JobGroup, Note, Tally
from relevo.telemetry import log_uncaught, start_logging

T = TypeVar("T")
Place: TypeAlias = tuple[str, str]
"""Where something is imported from: its module, and its name in there."""

MAIN = "__relevo_main__"
"""What the program that the worker was started with is called in its child processes."""

FACTS = (
    *("id", "queue", "kind", "attempt", "attempts", "key", "lane", "thread", "cause", "flow"),
    *("node", "keep", "inserted_at", "claimed_at", "turn"),
)
"""What a child is told of the lease; the right to the job stays with the worker process."""

_LENGTH = struct.Struct(">I")
_FOREVER = 1e9
_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG


# what they send each other


class Told(Struct, omit_defaults=True):
    """An error, as the other process is to raise it."""

    name: str
    failure: Failure
    retry_after: int | None = None  # milliseconds
    spends: bool = True
    is_left_over: bool = False
    breaker: str = ""
    path: str = ""


class Start(Struct, tag=True):
    """The first words to a child."""

    path: list[str]
    main: str | None  # the file of the program, where a function may be in it
    log_level: str | None
    log_form: str


class Run(Struct, tag=True):
    """Run a function."""

    function: Place
    message: Place
    app: Place | None  # for what it says about its clients' errors
    payload: bytes
    takes_context: bool
    lease: dict[str, Any]  # the FACTS of it
    origin: str | None
    memory: int | None


class Answer(Struct, tag=True, omit_defaults=True):
    """What came of an Ask."""

    id: int
    data: bytes = b""
    error: Told | None = None


class Ready(Struct, tag=True):
    """The child has started."""


class Ask(Struct, tag=True):
    """What the context asks of the worker process."""

    id: int
    verb: str
    data: bytes


class Ended(Struct, tag=True, omit_defaults=True):
    """How the run ended."""

    outcome: str = "Done"
    reason: str = ""
    delay: int | None = None
    failure: Failure | None = None  # that the function gave as its reason
    result: bytes | None = None
    error: Told | None = None
    has_reached: bool | None = None
    is_spent: bool = False  # the child is not used again


class Order(Struct):
    """A command or an event, and the options of `ctx.enqueue`."""

    message: Place
    payload: bytes
    delay: int | None = None
    at: datetime | None = None
    key: str | None = None
    unique: Unique | None = None
    priority: Priority | None = None


ToChild: TypeAlias = Start | Run | Answer
ToWorker: TypeAlias = Ready | Ask | Ended

encode = msgpack.encode


def frame(words: ToChild | ToWorker) -> bytes:
    """The bytes of what is sent."""
    data = encode(words)
    return _LENGTH.pack(len(data)) + data


async def received(reader: asyncio.StreamReader) -> bytes:
    """The next words; IncompleteReadError where the other process is gone."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return await reader.readexactly(length)


def tell(error: BaseException, rows: Sequence[Row] = ()) -> Told:
    """An error for the other process."""
    told = Told(name=type(error).__name__, failure=describe(error))
    match error:
        case ProviderUnavailable():
            wait, told.spends = error.retry_after, error.spends
            told.retry_after = None if wait is None else milliseconds(wait)
            if isinstance(error, CircuitOpen):
                told.breaker = error.breaker
        case ProviderUncertain():
            told.is_left_over = error.is_left_over
        case errors.PayloadError():
            told.path = error.path or ""
        case errors.RelevoError():
            pass
        case _ if isinstance(error, Exception) and is_away(error, rows):
            # A client's error, which the worker process may not have imported.
            told.name = ProviderUnavailable.__name__
            wait = retry_after_of(error)
            told.retry_after = None if wait is None else milliseconds(wait)
        case _:
            pass
    return told


class Raised(Exception):
    """An error of the other process, of a class that is not relevo's."""


def raised(told: Told) -> BaseException:
    """The error that the other process told of, with its words and its traceback."""
    known = getattr(errors, told.name, None)
    if told.name == "TimeoutError":
        known = TimeoutError
    if not (isinstance(known, type) and issubclass(known, Exception)):
        known = Raised
    kind = cast("type[Exception]", known)
    made: Any = type(kind.__name__, (Described, kind), {"__module__": kind.__module__})
    error = made.__new__(made, told.failure.message)
    error.args = (told.failure.message,)
    error.failure = told.failure
    if issubclass(kind, ProviderUnavailable):
        wait = told.retry_after
        error.retry_after = None if wait is None else timedelta(milliseconds=wait)
        error.spends = told.spends
    error.breaker, error.is_left_over, error.path = told.breaker, told.is_left_over, told.path
    return cast("BaseException", error)


def place_of(thing: Any) -> Place:
    """Where a function or a class is imported from."""
    return thing.__module__, thing.__qualname__


def found(place: Place) -> Any:
    """What stands at a place, imported if it is not yet."""
    module, name = place
    thing: Any = sys.modules.get(module) or importlib.import_module(module)
    for part in name.split("."):
        thing = getattr(thing, part)
    return thing


# the engine, as a child sees it


class Link:
    """The connection to the worker process."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Answer]] = {}
        self.runs: asyncio.Queue[Run] = asyncio.Queue()

    def say(self, words: ToWorker) -> None:
        self._writer.write(frame(words))

    async def ask(self, verb: str, question: Any, kind: Any) -> Any:
        """What the worker process answers; its error where it has one."""
        id = next(self._numbers)
        answered = self._asked[id] = asyncio.get_running_loop().create_future()
        self.say(Ask(id, verb, encode(question)))
        answer = await answered
        if answer.error is not None:
            raise raised(answer.error)
        return msgpack.decode(answer.data, type=kind)

    async def listen(self) -> NoReturn:
        """Hand on what comes, until the worker process is gone; then this one has nothing to do."""
        decoder = msgpack.Decoder(Run | Answer)
        while True:
            try:
                words = decoder.decode(await received(self._reader))
            except (OSError, EOFError):
                os._exit(0)
            if isinstance(words, Run):
                self.runs.put_nowait(words)
            else:
                self._asked.pop(words.id).set_result(words)


class RemoteStore:
    """What a context asks of the store."""

    def __init__(self, link: Link) -> None:
        self._ask = link.ask

    async def now(self) -> int:
        return await self._ask("now", None, int)

    async def intend(self, effects: Sequence[Effect]) -> list[Effect]:
        return await self._ask("intend", effects, list[Effect])

    async def conclude(self, effects: Sequence[Effect]) -> list[bool]:
        return await self._ask("conclude", effects, list[bool])

    async def find(self, ids: Sequence[str]) -> list[Job | None]:
        return await self._ask("find", ids, list[Job | None])

    async def job_groups(self, ids: Sequence[str]) -> list[JobGroup | None]:
        return await self._ask("job_groups", ids, list[JobGroup | None])

    async def tally(self) -> list[Tally]:
        return await self._ask("tally", None, list[Tally])

    async def recall(self, kind: str, names: Sequence[str]) -> list[Note | None]:
        return await self._ask("recall", (kind, names), list[Note | None])

    async def remember(self, notes: Sequence[Note]) -> list[bool]:
        return await self._ask("remember", notes, list[bool])


class RemoteEngine:
    """What a context asks of the engine; the rest is refused with what to write instead."""

    def __init__(self, link: Link, rows: tuple[Row, ...]) -> None:
        self._ask = link.ask
        self._rows = rows
        self.store = RemoteStore(link)
        self.threads = Threads()
        self.durations = Durations()  # the parent counts the run
        self.restored = Restored(cast("Any", self.store))

    def ledger(self, queue: str) -> Ledger:
        return Ledger(self.store.now, self.store.intend, self.store.conclude)

    def error_rows(self, queue: str) -> tuple[Row, ...]:
        return self._rows

    async def enqueue(self, command: Command, **options: Any) -> Receipt:
        return await self._ask("enqueue", _order(command, **options), Receipt)

    async def enqueue_many(self, commands: Iterable[Command]) -> list[Receipt]:
        orders = [_order(command) for command in commands]
        return await self._ask("enqueue_many", orders, list[Receipt])

    async def publish(self, event: Event) -> Published:
        return await self._ask("publish", _order(event), Published)

    def job(self, id: str) -> NoReturn:
        raise MisuseError(
            "ctx.job() does not work with isolate='process': enqueue a command without isolate= "
            "whose worker asks what became of the job"
        )

    def flow(self, id: str) -> NoReturn:
        raise MisuseError(
            "ctx.flow() does not work with isolate='process': enqueue a command without isolate= "
            "whose worker asks what became of the flow"
        )

    async def start(self, flow: object, **options: Any) -> NoReturn:
        raise MisuseError(
            "ctx.start() does not work with isolate='process': enqueue a command without isolate= "
            "whose worker starts the flow"
        )

    async def group(self, name: str, **options: Any) -> NoReturn:
        raise MisuseError(
            "ctx.group() does not work with isolate='process': enqueue a command without isolate= "
            "whose worker adds to the group"
        )

    async def add_node(self, *given: object, **options: Any) -> NoReturn:
        raise MisuseError(
            "a node cannot be added to a flow with isolate='process': enqueue a command without "
            "isolate= in the flow, whose worker adds it"
        )

    def transaction(self) -> NoReturn:
        raise MisuseError(
            "ctx.transaction() does not work with isolate='process', since the connection is in "
            "the worker process: write ctx.enqueue(Save(…)) with what came out, and "
            "ctx.transaction() in the worker of Save, a command without isolate="
        )

    def use(self, kind: type[object]) -> NoReturn:
        raise MisuseError(
            f"ctx.use({getattr(kind, '__name__', kind)}) does not work with isolate='process', "
            "since the app's resources are open in the worker process: open what the function "
            "needs in it"
        )


def _order(
    message: Message,
    *,
    delay: Duration | None = None,
    at: datetime | None = None,
    key: object = None,
    unique: Unique | None = None,
    priority: Priority | None = None,
) -> Order:
    return Order(
        message=place_of(type(message)),
        payload=codec(type(message)).encode(message),
        delay=None if delay is None else milliseconds(delay),
        at=at,
        key=None if key is None else str(key),
        unique=unique,
        priority=priority,
    )


# the runs


def _call(function: Callable[[Any], Any], message: Any) -> Any:
    try:
        return function(message)
    except StopIteration as error:
        raise RuntimeError("the worker raised StopIteration") from error


def _ended(value: Any, function: Callable[..., Any]) -> Ended:
    """What a function means by what it gave."""
    from relevo.runner import _outcome  # pyright: ignore[reportPrivateUsage] - the runner's own reading

    outcome: Outcome = Done() if value is None else _outcome(value, function)
    match outcome:
        case Done(result):
            return Ended(result=None if result is None else bytes(result))  # JSON by now
        case Retry(reason, delay, failure=failure):
            wait = None if delay is None else milliseconds(duration(delay))
            return Ended("Retry", reason, wait, failure=failure)
        case Snooze(delay, reason, failure=failure):
            return Ended("Snooze", reason, milliseconds(duration(delay)), failure=failure)
        case Dead(reason, failure=failure):
            return Ended("Dead", reason, failure=failure)
        case Cancelled(reason):
            return Ended("Cancelled", reason)
        case _:
            raise errors.DefinitionError(f"a worker cannot end with {type(outcome).__name__}")


def outcome_of(ended: Ended) -> Outcome | None:
    """The outcome that a child told of."""
    wait = None if ended.delay is None else timedelta(milliseconds=ended.delay)
    match ended.outcome:
        case "Retry":
            return Retry(ended.reason, wait, failure=ended.failure)
        case "Snooze":
            return Snooze(wait or timedelta(), ended.reason, failure=ended.failure)
        case "Dead":
            return Dead(ended.reason, failure=ended.failure)
        case "Cancelled":
            return Cancelled(ended.reason)
        case _:
            return None if ended.result is None else Done(msgspec.json.decode(ended.result))


async def _carried_out(run: Run, link: Link) -> Ended:
    rows: tuple[Row, ...] = ()
    ctx: Context | None = None
    try:
        function: Callable[..., Any] = found(run.function)
        message = codec(found(run.message)).decode(run.payload)
        if run.app is not None:
            rows = found(run.app).errors
        loop = asyncio.get_running_loop()
        # That it lapses is for the worker process to see.
        expires = loop.time() + _FOREVER
        lease = Lease(payload=run.payload, token="", expires=expires, **run.lease)
        ctx = Context(cast("Any", RemoteEngine(link, rows)), lease, loop, run.origin)
        ctx.pending.is_plain = True
        face = PlainContext(ctx, loop, _FOREVER, lambda: None)
        work = partial(face.run, function) if run.takes_context else function
        current.set(ctx)
        value = await asyncio.to_thread(_call, work, message)
        if isinstance(value, Awaitable):
            raise errors.DefinitionError(
                "the worker gave something to await, and isolate='process' runs a plain `def`: "
                "write asyncio.run(…) in it"
            )
        check_awaited(ctx.pending)
        ended = _ended(value, function)
    except BaseException as error:  # noqa: BLE001 - a worker may raise anything; its process judges
        ended = Ended(error=tell(error, rows), is_spent=isinstance(error, MemoryError))
    if ctx is not None:
        ctx.is_over = True
        ended.has_reached = ctx.has_reached
    return ended


async def _serve(handle: int) -> None:
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=handle))
    start = msgpack.decode(await received(reader), type=Start)
    sys.path[:] = start.path
    if start.log_level is not None:
        start_logging(start.log_level, start.log_form)
    link = Link(reader, writer)
    listening = asyncio.create_task(link.listen())
    link.say(Ready())
    if start.main is not None:
        _load_main(start.main)
    unlimited = resource.getrlimit(resource.RLIMIT_DATA)
    while not listening.done():
        run = await link.runs.get()
        if run.memory is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (run.memory, unlimited[1]))
        ended = await asyncio.create_task(_carried_out(run, link))
        resource.setrlimit(resource.RLIMIT_DATA, unlimited)
        link.say(ended)


def _load_main(file: str) -> None:
    """Import the program that the worker process was started with, under another name."""
    spec = importlib.util.spec_from_file_location(MAIN, file)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules[MAIN] = sys.modules["__main__"] = module
    spec.loader.exec_module(module)


def main(handle: int, parent: int) -> None:
    """Serve a worker process until it is gone."""
    # A signal to the whole group is the worker's to answer: it waits for what runs here.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    log_uncaught()
    asyncio.run(_serve(handle))
