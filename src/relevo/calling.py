"""How a call is made: awaited on the event loop, or run in a thread where it may block.

Whether a function gives something to await is not always written on it: a lambda around an async
function is a plain function. What was once seen to give an awaitable at once is from then on called
on the loop, which saves the thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import CodeType, CoroutineType
from typing import Any, TypeAlias

Invoke: TypeAlias = Callable[[Callable[[str], Any], str], Awaitable[Any]]
"""Runs a plain function, which may block, away from the event loop; gives what it returned."""

AT_ONCE = 0.01
"""A function that took longer than so many seconds to give an awaitable may have blocked."""

THREADS = 32
_MOST = 4_096

_given_at_once: dict[int, CodeType] = {}  # by id; held, so that no other code gets this id
_mixed: dict[int, CodeType] = {}


def is_async(call: Callable[..., Any]) -> bool:
    """Whether calling it gives something to await and blocks nothing, as far as is known."""
    code = getattr(call, "__code__", None)
    if code is None:
        return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(
            getattr(call, "__call__", None)  # noqa: B004 - an object with an async __call__
        )
    return bool(code.co_flags & inspect.CO_COROUTINE) or id(code) in _given_at_once


def learn(call: Callable[..., Any], took: float) -> None:
    """A plain function gave something to await after so many seconds."""
    code = getattr(call, "__code__", None)
    # The code of a decorator's wrapper is that of all functions it decorates.
    if code is None or took > AT_ONCE or id(code) in _mixed or hasattr(call, "__wrapped__"):
        return
    if len(_given_at_once) < _MOST:
        _given_at_once[id(code)] = code


def unlearn(call: Callable[..., Any]) -> None:
    """A function that gave awaitables gave something else: it is called in threads from now on."""
    code = getattr(call, "__code__", None)
    if code is not None and _given_at_once.pop(id(code), None) is not None and len(_mixed) < _MOST:
        _mixed[id(code)] = code


_PLAIN = frozenset({str, int, float, bool, type(None), dict, list, tuple})


def _is_awaitable(value: object) -> bool:
    # Most are one of these; to ask inspect costs as much as the rest of a call.
    kind = type(value)
    return kind is CoroutineType or (kind not in _PLAIN and inspect.isawaitable(value))


class Outlasted(asyncio.CancelledError):
    """A call was broken off, but its thread could not be; since then it has ended."""

    def __init__(self, work: asyncio.Future[Any]) -> None:
        super().__init__("broken off, and ended since")
        self.work = work


async def outlast(work: asyncio.Future[Any]) -> None:
    """Wait for what cannot be stopped, however often this task is cancelled."""
    while not work.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({work})


class Threads:
    """Threads for plain calls, made when they are needed; at most `most` at a time."""

    def __init__(self, most: Callable[[], int] = lambda: THREADS) -> None:
        self._most = most
        self._pool: ThreadPoolExecutor | None = None

    async def invoke(self, function: Callable[[str], Any], key: str) -> Any:
        """Run a plain function in a thread, with the context variables of here.

        One that is given up before a thread was free does not run.
        """
        return await asyncio.wrap_future(self.submit(function, key))

    def submit(self, function: Callable[[str], Any], key: str) -> Future[Any]:
        """Have a plain function run in a thread."""
        if self._pool is None:
            most = max(THREADS, self._most())
            self._pool = ThreadPoolExecutor(most, thread_name_prefix="relevo-call")
        context = contextvars.copy_context()
        return self._pool.submit(context.run, function, key)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


class Caller:
    """One call of a function with a key: when it began, and whether it did at all.

    `check` is asked right before: a thread may have been waited for, and the job be another's.
    """

    __slots__ = ("_began", "_call", "_check", "_invoke", "late")

    def __init__(
        self, call: Callable[[str], Any], check: Callable[[], None], invoke: Invoke
    ) -> None:
        self._call = call
        self._check = check
        self._invoke = invoke
        self._began: float | None = None
        self.late: asyncio.Future[Any] | None = None  # what came of it after it was broken off

    @property
    def is_begun(self) -> bool:
        """Whether the function has been called."""
        return self._began is not None

    @property
    def took(self) -> float:
        """The seconds since the function was called."""
        return 0.0 if self._began is None else time.monotonic() - self._began

    async def run(self, key: str) -> Any:
        """What the function gave, awaited if it is to be awaited."""
        if is_async(self._call):
            value = self._enter(key)
            if not _is_awaitable(value):
                unlearn(self._call)
                return value
        else:
            try:
                value, took = await self._invoke(self._timed, key)
            except Outlasted as outlasted:
                self.late = outlasted.work
                raise asyncio.CancelledError from None
            if _is_awaitable(value):
                learn(self._call, took)
        while _is_awaitable(value):
            value = await value
        return value

    def _enter(self, key: str) -> Any:
        self._check()
        self._began = time.monotonic()
        return self._call(key)

    def _timed(self, key: str) -> tuple[Any, float]:
        began = time.perf_counter()
        try:
            value = self._enter(key)
        except StopIteration as error:
            # No future takes it: the call would seem to go on for ever.
            raise RuntimeError("the call raised StopIteration") from error
        return value, time.perf_counter() - began
