"""The child processes of a worker, in which commands with `isolate="process"` run.

A child runs one job at a time and is used again. It is killed at the time limit, past its memory
limit, and when the lease is lost; if it dies by itself, its job alone has crashed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec import msgpack

from relevo.app import App, Binding
from relevo.child import (
    FACTS,
    MAIN,
    Answer,
    Ask,
    Ended,
    Order,
    Place,
    Ready,
    Run,
    Start,
    encode,
    found,
    frame,
    outcome_of,
    place_of,
    raised,
    received,
    tell,
)
from relevo.clock import moment
from relevo.context import Context, current
from relevo.errors import DefinitionError
from relevo.job import Lease
from relevo.message import codec
from relevo.once import Ledger
from relevo.outcome import CRASHED, Outcome
from relevo.plain_runs import PastLimit, PlainRun, resident
from relevo.store import Conclusion, Note
from relevo.telemetry import TextLines, log

if TYPE_CHECKING:
    from relevo.engine import Relevo

LOOK = 0.1  # seconds between two looks at a child's memory and its life
STARTING = 60.0
"""Seconds that a child may take to start, its imports included."""

_alive: set[int] = set()  # process ids


class ChildCrashed(Exception):
    """The child process of a run has died by itself: that run, with which it was alone, failed."""


ChildCrashed.__qualname__ = CRASHED


class PastMemory(MemoryError):
    """The child process of a run was killed past its memory limit."""


PastMemory.__qualname__ = MemoryError.__qualname__


class ChildRun(PlainRun):
    """A run in a child process."""

    __slots__ = ("child", "under_way")

    def __init__(self, ctx: Context, lease: Lease, began: float, limit: float) -> None:
        super().__init__(ctx, lease, began, limit, 0.0)
        self.child: Child | None = None
        self.under_way: set[str] = set()  # the effects that are intended, and not concluded

    def is_overdue(self, now: float) -> bool:
        """Never: it is killed at its time limit."""
        return False

    def is_abandoned(self, now: float) -> bool:
        return False

    def lose(self) -> None:
        """The lease has gone to another worker: the run is ended."""
        super().lose()
        if self.child is not None:
            self.child.kill()


class Child:
    """One child process, and the connection to it."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.process = process
        self._reader = reader
        self._writer = writer
        self._decoder = msgpack.Decoder(Ready | Ask | Ended)

    @classmethod
    async def start(cls, main: str | None) -> Child:
        """Start a process that imports relevo, and is ready to import what it is told to run."""
        ours, theirs = socket.socketpair()
        with theirs:
            handle = theirs.fileno()
            code = f"from relevo.child import main; main({handle}, {os.getpid()})"
            # In this thread: a child dies with the thread that has started it.
            process = subprocess.Popen(  # noqa: ASYNC220, S603 - some milliseconds; ourselves
                [sys.executable, "-c", code],
                pass_fds=[handle],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        _alive.add(process.pid)
        reader, writer = await asyncio.open_connection(sock=ours)
        child = cls(process, reader, writer)
        form = "text" if any(isinstance(h.formatter, TextLines) for h in log.handlers) else "json"
        level = logging.getLevelName(log.getEffectiveLevel()) if log.handlers else None
        writer.write(frame(Start(list(sys.path), main, level, form)))
        return child

    def say(self, words: Run | Answer) -> None:
        self._writer.write(frame(words))

    async def hear(self) -> Ready | Ask | Ended:
        """The next words of the child; EOFError if it is gone."""
        try:
            return self._decoder.decode(await received(self._reader))
        except OSError as error:
            raise EOFError from error

    def kill(self) -> None:
        """End the process, and what it has started."""
        if self.process.pid in _alive:
            _alive.discard(self.process.pid)
            _kill(self.process.pid)
            self._writer.close()

    async def gone(self) -> int:
        """Wait until a process that was killed, or has died, is no more; its exit code."""
        return await asyncio.to_thread(self.process.wait)


class Children:
    """The child processes of one worker: as many as it has jobs in them, and some that rest."""

    def __init__(self, engine: Relevo) -> None:
        self._engine = engine
        self._resting: list[Child] = []
        self._asking: set[asyncio.Task[None]] = set()
        self._rest_most = os.cpu_count() or 1
        self._places: dict[int, tuple[Place, Place, Place | None]] = {}

    def close(self) -> None:
        """End those that rest."""
        while self._resting:
            child = self._resting.pop()
            child.kill()
            child.process.wait()

    def check(self, binding: Binding) -> None:
        """DefinitionError where a child process could not import what it is to run."""
        for thing, what in ((binding.function, "worker"), (binding.message, "command")):
            place = place_of(thing)
            try:
                is_there = found(place) is thing
            except (ImportError, AttributeError):
                is_there = False
            if not is_there:
                raise DefinitionError(
                    f"the {what} {place[0]}.{place[1]} has isolate='process', and its child "
                    "process would not find it by that name: define it at the top level of a "
                    "module, with @app.worker as its outermost decorator"
                )
        self._places[id(binding)] = (
            _in_child(place_of(binding.function)),
            _in_child(place_of(binding.message)),
            self._app_of(binding),
        )

    def _app_of(self, binding: Binding) -> Place | None:
        """Where the app is that says what its clients' errors mean; None if it says nothing."""
        for app in self._engine.apps:
            if app.name == binding.app and app.errors:
                for name, module in list(sys.modules.items()):
                    for attribute, value in list(getattr(module, "__dict__", {}).items()):
                        if isinstance(value, App) and value is app:
                            return _in_child((name, attribute))
                raise DefinitionError(
                    f"the app {app.name!r} has errors=, which the child processes of "
                    "isolate='process' need: keep it in a variable at the top level of a module"
                )
        return None

    async def run(self, binding: Binding, run: ChildRun, origin: str | None) -> Outcome | None:
        """Run a function in a child process, to its end or its limit."""
        child = run.child = await self._ready(run)
        is_whole = False
        try:
            function, message, app = self._places[id(binding)]
            lease = run.lease
            payload = bytes(lease.payload)
            facts = {name: getattr(lease, name) for name in FACTS}
            takes_context, memory = binding.takes_context, binding.spec.memory
            run.began = asyncio.get_running_loop().time()
            child.say(Run(function, message, app, payload, takes_context, facts, origin, memory))
            ended = await self._until_ended(child, run, memory)
            is_whole = not ended.is_spent
        finally:
            run.child = None
            if is_whole and len(self._resting) < self._rest_most:
                self._resting.append(child)
            else:
                child.kill()
                await child.gone()
                if run.under_way:
                    run.ctx.has_reached = run.ctx.is_cut_off = True
        run.ctx.has_reached = ended.has_reached
        if ended.error is not None:
            raise raised(ended.error)
        return outcome_of(ended)

    async def _ready(self, run: ChildRun) -> Child:
        while self._resting:
            child = self._resting.pop()
            if child.process.poll() is None:
                return child
            child.kill()
        main: str | None = getattr(sys.modules["__main__"], "__file__", None)
        needs_main = any(
            place[0] == MAIN for places in self._places.values() for place in places if place
        )
        child = run.child = await Child.start(main if needs_main else None)
        try:
            async with asyncio.timeout(STARTING):
                await child.hear()
        except EOFError:
            child.kill()
            raise ChildCrashed(
                f"its child process did not start: {_died(await child.gone())}"
            ) from None
        except BaseException:
            child.kill()
            child.process.wait()
            raise
        return child

    async def _until_ended(self, child: Child, run: ChildRun, memory: int | None) -> Ended:
        loop = asyncio.get_running_loop()
        hearing = asyncio.ensure_future(child.hear())
        try:
            while True:
                left = run.began + run.limit - loop.time()
                if left <= 0:
                    raise PastLimit(
                        f"the worker ran past its time limit of {run.limit:g} s, and its child "
                        "process was killed"
                    )
                await asyncio.wait({hearing}, timeout=min(left, LOOK))
                if hearing.done():
                    words = hearing.result()
                    if isinstance(words, Ended):
                        return words
                    if isinstance(words, Ask):
                        asking = asyncio.create_task(self._answer(child, run, words))
                        self._asking.add(asking)
                        asking.add_done_callback(self._asking.discard)
                    hearing = asyncio.ensure_future(child.hear())
                elif child.process.poll() is not None:
                    raise EOFError
                elif memory is not None and resident(child.process.pid) > memory:
                    raise PastMemory(
                        f"its child process took more than its memory limit of {memory >> 20} MB, "
                        "and was killed"
                    )
        except EOFError:
            if run.over is not None:
                raise run.over from None
            child.kill()
            died = _died(await child.gone())
            raise ChildCrashed(f"its child process died: {died}") from None
        finally:
            hearing.cancel()

    async def _answer(self, child: Child, run: ChildRun, ask: Ask) -> None:
        """Do what a child's context asks for, on behalf of the run."""
        try:
            current.set(run.ctx)
            given = await self._done(run, ask)
            answer = Answer(ask.id, encode(given))
        except Exception as error:  # noqa: BLE001 - raised again in the child
            answer = Answer(ask.id, error=tell(error))
        child.say(answer)

    async def _done(self, run: ChildRun, ask: Ask) -> Any:
        ctx, engine, data = run.ctx, self._engine, ask.data
        if run.over is not None:
            raise run.over
        store = engine.store
        match ask.verb:
            case "intend" | "conclude":
                ctx.check_lease()
                ledger: Ledger = engine.ledger(run.lease.queue)
                effects = msgpack.decode(data, type=list[Conclusion])
                if ask.verb == "intend":
                    run.under_way.update(each.name for each in effects)
                    return await ledger.intend(effects)
                done = await ledger.conclude(effects)
                run.under_way.difference_update(
                    each.name for each in effects if each.state != "intended"
                )
                return done
            case "enqueue":
                order = msgpack.decode(data, type=Order)
                return await ctx.enqueue(
                    _message(order),
                    delay=None if order.delay is None else moment(order.delay) - moment(0),
                    at=order.at,
                    key=order.key,
                    unique=order.unique,
                    priority=order.priority,
                )
            case "enqueue_many":
                orders = msgpack.decode(data, type=list[Order])
                return await ctx.enqueue_many([_message(order) for order in orders])
            case "publish":
                return await ctx.publish(_message(msgpack.decode(data, type=Order)))
            case "now":
                return await store.now()
            case "find":
                return await store.find(msgpack.decode(data, type=list[str]))
            case "job_groups":
                return await store.job_groups(msgpack.decode(data, type=list[str]))
            case "tally":
                return await store.tally()
            case "recall":
                return await store.recall(*msgpack.decode(data, type=tuple[str, list[str]]))
            case "remember":
                return await store.remember(msgpack.decode(data, type=list[Note]))
            case verb:
                raise AssertionError(verb)


def _message(order: Order) -> Any:
    module, name = order.message
    kind = found(("__main__" if module == MAIN else module, name))
    return codec(kind).decode(order.payload)


def _in_child(place: Place) -> Place:
    module, name = place
    return (MAIN if module == "__main__" else module), name


def _died(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"{name}, perhaps for want of memory" if -code == signal.SIGKILL else name


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_children() -> None:
    """End every child process of this one, which is about to end or to begin anew."""
    for pid in list(_alive):
        _kill(pid)


def child_ids() -> list[int]:
    """The child processes that are alive."""
    return list(_alive)
