"""The friends of a test: a clock to move by hand, deliver(), drain(), assert_enqueued(), faults.

As a pytest plugin it brings two fixtures: `clock`, and `relevo`, an engine on a fresh SQLite file
with the apps of the fixture `relevo_apps`, which you override:

    @pytest.fixture
    def relevo_apps():
        return [app]

    async def test_an_order_is_mailed(relevo):
        await relevo.enqueue(SendEmail("A-1"))
        await drain(relevo)
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Set
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, cast

import msgspec

from relevo.app import App
from relevo.clock import Duration, duration
from relevo.engine import Relevo
from relevo.errors import MisuseError, NotFoundError, StoreUnavailable
from relevo.job import ENDED, State
from relevo.message import EVENTS, Command, Event, Message, codec
from relevo.pairs import Headers, wire
from relevo.relay import Relayed
from relevo.spreading import register
from relevo.store import Filter, Store
from relevo.webhook import Answer, Delivery
from relevo.worker import Worker

M = TypeVar("M", bound=Message)

IDLE = 0.5
"""Seconds for which nothing must be left to do before drain(until=…) gives up."""


class ManualClock:
    """The machine's clock plus what a test has added; stores add the same to their own time."""

    def __init__(self) -> None:
        self.offset = timedelta()

    def now(self) -> datetime:
        return datetime.fromtimestamp(time.time(), UTC) + self.offset

    def advance(self, by: Duration) -> None:
        self.offset += duration(by)

    def advance_to(self, hour: int, minute: int = 0) -> None:
        """Go on to the next time that a clock in UTC shows this hour."""
        now = self.now()
        then = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
        self.offset += then - now if then > now else then - now + timedelta(days=1)


if find_spec("pytest") is not None:  # a program that only tries itself has no need of it
    import pytest

    @pytest.fixture
    def clock() -> ManualClock:
        """A clock that a test moves by hand."""
        return ManualClock()

    @pytest.fixture
    def relevo_apps() -> list[App]:
        """The apps of the `relevo` fixture; override it."""
        return []

    @pytest.fixture
    async def relevo(
        tmp_path: Path, clock: ManualClock, relevo_apps: list[App]
    ) -> AsyncGenerator[Relevo]:
        """An open engine on a fresh SQLite file."""
        url = f"sqlite:///{tmp_path / 'relevo.db'}"
        async with Relevo(url, apps=relevo_apps, clock=clock) as engine:
            yield engine


@asynccontextmanager
async def working(relevo: Relevo, **options: Any) -> AsyncGenerator[Worker]:
    """A worker beside the test, stopped politely when the block ends."""
    settings: dict[str, Any] = {"concurrency": 20, "grace": "2s", **options}
    worker = Worker(relevo, **settings)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
        if task.done():
            await task
    finally:
        worker.stop()
        await task


async def until(
    truth: Callable[[], Awaitable[bool] | bool], *, timeout: Duration = "10s", what: str = ""
) -> None:
    """Wait for something to become true; AssertionError when it does not."""
    deadline = time.monotonic() + duration(timeout).total_seconds()
    while True:
        asked = time.monotonic()
        answer = truth()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return
        now = time.monotonic()
        if now > deadline:
            raise AssertionError(f"it did not come true within {timeout}: {what or truth}")
        # A question that takes long is asked seldom: it takes time from the work it waits for.
        await asyncio.sleep(max(0.01, 3 * (now - asked)))


async def drain(
    relevo: Relevo,
    *,
    until: Callable[[], Awaitable[bool] | bool] | None = None,
    skip_waits: bool = False,
    timeout: Duration = "30s",
    **options: Any,
) -> None:
    """Work until nothing is ready or running, or until `until` comes true.

    When nothing is left that could make `until` true, it fails at once.

    With `skip_waits` the test's clock is moved to the next due time whenever only scheduled jobs
    are left, so that retries and delays take no time. Pollers and schedules take a turn that is
    due; the turns after it, of which there is no end, are leapt to only with `until`.
    """
    deadline = time.monotonic() + duration(timeout).total_seconds()
    idle_since = time.monotonic()
    endless = relevo.recurring.queues if until is None else frozenset[str]()
    with suppress(Exception):  # the worker does the same, and tells what is wrong
        await relevo.recurring.ensure()
        await relevo.release_known()
        await register(relevo, [want.queue for want in relevo.wants()])
    async with working(relevo, **options) as worker:
        while True:
            if until is not None:
                answer = until()
                if await answer if inspect.isawaitable(answer) else answer:
                    return
            # What ends while it is being counted may be counted here no more, and there not yet.
            is_still, ended = not worker.flights, worker.finished
            busy, scheduled = await _left(relevo, endless)
            if not busy and is_still and not worker.flights and worker.finished == ended:
                if not (skip_waits and scheduled):
                    if until is None:
                        return
                    if await _is_over(relevo):
                        if time.monotonic() > idle_since + IDLE:
                            raise AssertionError(
                                "nothing is left to do, and it has not come true: "
                                f"{getattr(until, '__qualname__', until)}"
                            )
                        await asyncio.sleep(0.01)
                        continue
                else:
                    await _skip_to_next(relevo, endless)
                    worker.nudge()
            idle_since = time.monotonic()
            if time.monotonic() > deadline:
                raise AssertionError(f"still {busy} jobs to do after {timeout}")
            await asyncio.sleep(0.01)


async def _left(relevo: Relevo, endless: Set[str]) -> tuple[int, int]:
    try:
        tallies = await relevo.store.tally()
    except StoreUnavailable:  # while it is away nobody knows, and there may be something
        return 1, 0
    served = {EVENTS, *(want.queue for want in relevo.wants())}
    counts = {tally.queue: tally.counts for tally in tallies if tally.queue in served}
    busy = sum(count.get(State.READY, 0) + count.get(State.RUNNING, 0) for count in counts.values())
    ends = [count for queue, count in counts.items() if queue not in endless]
    return busy, sum(count.get(State.SCHEDULED, 0) for count in ends)


async def _is_over(relevo: Relevo) -> bool:
    """Whether no job is left that may go on by itself, also after a wait or in the outbox."""
    store = relevo.store
    try:
        if isinstance(store, Relayed) and await store.ledger.letters(carried=False, limit=1):
            return False
        tallies = await store.tally()
    except StoreUnavailable:
        return False
    served = {EVENTS, *(want.queue for want in relevo.wants())}
    return not any(
        count
        for tally in tallies
        if tally.queue in served
        for state, count in tally.counts.items()
        if state not in ENDED and state is not State.HELD  # held: for a person
    )


async def _skip_to_next(relevo: Relevo, endless: Set[str]) -> None:
    clock = relevo.clock
    if not isinstance(clock, ManualClock):
        raise TypeError("skip_waits needs a ManualClock: Relevo(…, clock=ManualClock())")
    page = await relevo.store.page(Filter(states=frozenset({State.SCHEDULED})), limit=200)
    # A newer job of such a key is looked at again and again until the older one has ended.
    behind = {(job.queue, job.key) for job in page.jobs if job.unique == "latest" and job.attempt}
    due = [
        job.run_at
        for job in page.jobs
        if job.queue not in endless and (job.attempt or (job.queue, job.key) not in behind)
    ]
    if due:
        wait = min(due) - await relevo.store.now()
        clock.advance(timedelta(milliseconds=max(1, wait + 1)))


async def enqueued(relevo: Relevo, kind: type[M], **fields: Any) -> list[M]:
    """The stored messages of a class whose fields have these values, oldest first.

    Of an event those that were published, not the jobs of its subscribers.
    """
    found: list[M] = []
    cursor = None
    queue = EVENTS if issubclass(kind, Event) else None
    where = Filter(kind=kind.__relevo__.kind, queue=queue)
    while True:
        page = await relevo.store.page(where, cursor=cursor, limit=200)
        for job in page.jobs:
            message = codec(kind).decode(job.payload)
            if all(getattr(message, name) == value for name, value in fields.items()):
                found.append(message)
        cursor = page.cursor
        if cursor is None:
            return found[::-1]


async def assert_enqueued(
    relevo: Relevo, kind: type[Command] | type[Event], *, times: int | None = None, **fields: Any
) -> None:
    """Fail unless such a message was stored, so many `times` if given."""
    found = await enqueued(relevo, kind, **fields)
    if (times is None and not found) or (times is not None and len(found) != times):
        every = await enqueued(relevo, kind)
        raise AssertionError(
            f"{len(found)} {kind.__name__} with {fields} stored, "
            f"expected {'some' if times is None else times}; "
            f"all of them: {every[:10]}"
        )


async def deliver(
    relevo: Relevo,
    path: str,
    *,
    json: Any = None,
    body: bytes | str | None = None,
    fixture: Path | str | None = None,
    query: str = "",
    headers: dict[str, str] | None = None,
    method: str = "POST",
    sign: bool = True,
    type: str = "",
    id: str = "",
) -> Answer:
    """Call a webhook as its provider would, by the real path but for the socket.

    The body is `json` encoded, or given, or the bytes of the file `fixture`. With `sign` the
    webhook's own secret signs it, and its source adds the headers that tell `type` and `id`.
    """
    door = relevo.receiver.doors.get(path) if relevo.is_open else None
    usual = "" if door is None else next(iter(door.content_types), "")
    kind = usual if "/" in usual else "application/json"
    given: dict[str, str] = {"content-type": kind} if method != "GET" else {}
    given |= {name.lower(): value for name, value in (headers or {}).items()}
    data = body or b""
    if fixture is not None:
        data = await asyncio.to_thread(Path(fixture).read_bytes)
    if json is not None:
        data = msgspec.json.encode(json)
    sent = Delivery(
        path=path,
        method=method,
        query=query,
        headers=Headers(given.items()),
        body=data.encode() if isinstance(data, str) else data,
        received_at=relevo.clock.now(),
    )
    if sign:
        door = relevo.receiver.doors.get(path)
        if door is None:
            raise NotFoundError(
                f"no webhook stands at {path}; there are {[*relevo.receiver.doors]}"
            )
        sent = msgspec.structs.replace(sent, base=door.base, rules=door.rules)
        sent = door.rules.signed(sent, relevo.clock.now(), type, id)
    return await call(relevo.asgi(), sent)


async def call(app: Any, sent: Delivery, *, client: str = "127.0.0.1") -> Answer:
    """What an ASGI application answers to one HTTP call."""
    pairs = [(name, value) for name, value in sent.headers.pairs if name != "content-length"]
    if sent.body or sent.method in ("POST", "PUT"):
        pairs.append(("content-length", str(len(sent.body))))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": sent.method,
        "scheme": "http",
        "path": sent.path,
        "raw_path": sent.path.encode(),
        "root_path": "",
        "query_string": wire(sent.query),
        "headers": [(wire(name), wire(value)) for name, value in pairs],
        "client": (client, 50_000),
        "server": ("127.0.0.1", 8700),
        "state": {},
    }
    messages: list[Any] = [{"type": "http.request", "body": sent.body, "more_body": False}]
    answered: list[Any] = []

    async def receive() -> Any:
        return messages.pop() if messages else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        answered.append(message)

    await app(scope, receive, send)
    start, *parts = answered
    names = ((str(name, "latin-1"), str(value, "latin-1")) for name, value in start["headers"])
    kept = {name: value for name, value in names if name not in ("content-length", "connection")}
    return Answer(start["status"], b"".join(part.get("body", b"") for part in parts), kept)


ProviderFault: TypeAlias = Literal["lost", "error", "error after", "slow", "twice"] | None
"""What goes wrong with one call to a provider: the reply is lost after the provider has done its
work, a 503 comes before the work or after it, the reply is slow, or the call arrives twice."""


class FaultyProvider:
    """A provider on loopback, an ASGI application behind real HTTP, with a fault for each call.

    `faults` are those of the first calls, in order; every later call goes well. `calls` has what
    the application was asked to do.
    """

    def __init__(
        self, app: Any, faults: Iterable[ProviderFault] = (), *, slow: Duration = "2s"
    ) -> None:
        self.app = app
        self.faults = deque(faults)
        self.slow = duration(slow).total_seconds()
        self.calls: list[Delivery] = []
        self.url = ""

    async def __aenter__(self) -> FaultyProvider:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            sent = await _read_call(reader)
            fault = self.faults.popleft() if self.faults else None
            answer = Answer(503, b"")
            if fault != "error":
                for _ in range(2 if fault == "twice" else 1):
                    self.calls.append(sent)
                    answer = await call(self.app, sent)
            if fault == "error after":
                answer = Answer(503, b"")
            if fault == "slow":
                await asyncio.sleep(self.slow)
            if fault != "lost":
                writer.write(_wire_answer(answer))
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the caller has gone
        finally:
            writer.close()


async def _read_call(reader: asyncio.StreamReader) -> Delivery:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = head[0].split(" ", 2)
    pairs = [line.partition(":") for line in head[1:] if line]
    headers = Headers((name.lower(), value.strip()) for name, _, value in pairs)
    if "chunked" in (headers.get("transfer-encoding") or ""):
        body = b""
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readline()
    else:
        body = await reader.readexactly(int(headers.get("content-length") or 0))
    path, _, query = target.partition("?")
    return Delivery(
        path=path,
        method=method,
        query=query,
        headers=headers,
        body=body,
        received_at=datetime.now(UTC),
    )


def _wire_answer(answer: Answer) -> bytes:
    lines = [f"HTTP/1.1 {answer.status} {'OK' if answer.status < 400 else 'Error'}"]
    lines += [f"{name}: {value}" for name, value in answer.headers.items()]
    lines += [f"content-length: {len(answer.body)}", "connection: close", "", ""]
    return "\r\n".join(lines).encode("latin-1") + answer.body


UNFAULTED = frozenset(
    ("open", "close", "migrate", "spawn", "wait", "now", "tally", "page", "find", "count")
)
"""The calls that a FaultyStore leaves alone unless told otherwise: those that open and close a
store, and those that only look."""


class FaultyStore:
    """A store whose k-th call fails or kills the process, before or after it took effect.

    `FaultyStore(store, at=7, when="after", die=True)` is kill -9 between the seventh call's effect
    and its answer. Calls named in `ignore` are not counted. `sweep()` tries them all.
    """

    def __init__(
        self,
        store: Store,
        *,
        at: int,
        when: str = "before",
        die: bool = False,
        error: Exception | None = None,
        ignore: Iterable[str] = UNFAULTED,
    ) -> None:
        if when not in ("before", "after"):
            raise MisuseError(f"a fault comes 'before' or 'after' a call, not {when!r:.40}")
        self._store = store
        self._at = at
        self._when = when
        self._die = die
        self._error = error or StoreUnavailable("a fault was injected here")
        self._ignore = frozenset(ignore)
        self.calls = 0

    @property
    def is_spent(self) -> bool:
        """Whether the call that was to fail has been made."""
        return self.calls >= self._at

    def as_store(self) -> Store:
        return cast("Store", self)

    def spawn(self) -> Store:
        return self._store.spawn()

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)
        if not inspect.iscoroutinefunction(verb) or name in self._ignore:
            return verb

        async def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            is_it = self.calls == self._at
            if is_it and self._when == "before":
                self._fail()
            answer = await verb(*args, **kwargs)
            if is_it:
                self._fail()
            return answer

        return counted

    def _fail(self) -> None:
        if self._die:
            with suppress(OSError):
                os.kill(os.getpid(), 9)
        raise self._error


def _wrap(made: list[FaultyStore], store: Store, **fault: Any) -> FaultyStore:
    made.append(FaultyStore(store, **fault))
    return made[-1]


async def sweep(
    story: Callable[[Callable[[Store], FaultyStore]], Awaitable[None]],
    *,
    ignore: Iterable[str] = UNFAULTED,
    most: int = 1_000,
) -> int:
    """Run a story again and again, with a fault before and after each of its calls to the store.

    The story is given a function that wraps a fresh store of its own, works through it, and asserts
    what must be true whatever failed. The sweep ends with the first run that has fewer calls than
    the one that was to fail; it returns how many faults there were.
    """
    faults = 0
    for at in range(1, most + 1):
        spent = False
        for when in ("before", "after"):
            made: list[FaultyStore] = []
            try:
                await story(partial(_wrap, made, at=at, when=when, ignore=ignore))
            except BaseException as error:
                error.add_note(f"with a fault {when} call {at} to the store")
                raise
            if not made:
                raise MisuseError("the story has not wrapped a store: see sweep()")
            if any(one.is_spent for one in made):
                spent = True
                faults += 1
        if not spent:
            return faults
    raise AssertionError(f"the story makes more than {most} calls to the store")
