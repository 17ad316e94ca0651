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
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Set
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from relevo.app import App
from relevo.clock import Duration, duration
from relevo.engine import Relevo
from relevo.errors import NotFoundError, StoreUnavailable
from relevo.job import State
from relevo.message import Command, Event, Message, codec
from relevo.pairs import Headers, wire
from relevo.store import Filter, Store
from relevo.webhook import Answer, Delivery
from relevo.worker import Worker

M = TypeVar("M", bound=Message)


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

    With `skip_waits` the test's clock is moved to the next due time whenever only scheduled jobs
    are left, so that retries and delays take no time. Pollers and schedules take a turn that is
    due; the turns after it, of which there is no end, are leapt to only with `until`.
    """
    deadline = time.monotonic() + duration(timeout).total_seconds()
    endless = relevo.recurring.queues if until is None else frozenset[str]()
    with suppress(Exception):  # the worker does the same, and tells what is wrong
        await relevo.recurring.ensure()
        await relevo.release_known()
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
                else:
                    await _skip_to_next(relevo, endless)
                    worker.nudge()
            if time.monotonic() > deadline:
                raise AssertionError(f"still {busy} jobs to do after {timeout}")
            await asyncio.sleep(0.01)


async def _left(relevo: Relevo, endless: Set[str]) -> tuple[int, int]:
    try:
        tallies = await relevo.store.tally()
    except StoreUnavailable:  # while it is away nobody knows, and there may be something
        return 1, 0
    served = {want.queue for want in relevo.wants()}
    counts = {tally.queue: tally.counts for tally in tallies if tally.queue in served}
    busy = sum(count.get(State.READY, 0) + count.get(State.RUNNING, 0) for count in counts.values())
    ends = [count for queue, count in counts.items() if queue not in endless]
    return busy, sum(count.get(State.SCHEDULED, 0) for count in ends)


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
    """The stored messages of a class whose fields have these values, oldest first."""
    found: list[M] = []
    cursor = None
    while True:
        page = await relevo.store.page(Filter(kind=kind.__relevo__.kind), cursor=cursor, limit=200)
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


class FaultyStore:
    """A store whose k-th call fails or kills the process, before or after it took effect.

    `FaultyStore(store, at=7, when="after", die=True)` is kill -9 between the seventh call's effect
    and its answer. Calls named in `ignore` are not counted.
    """

    def __init__(
        self,
        store: Store,
        *,
        at: int,
        when: str = "before",
        die: bool = False,
        error: Exception | None = None,
        ignore: Iterable[str] = ("wait", "now", "tally", "page", "find", "count"),
    ) -> None:
        self._store = store
        self._at = at
        self._when = when
        self._die = die
        self._error = error or StoreUnavailable("a fault was injected here")
        self._ignore = frozenset(ignore)
        self.calls = 0

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
