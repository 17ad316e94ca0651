"""A call is awaited on the event loop, or run in a thread where it may block."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import Any

import pytest

from relevo.calling import Caller, Threads, is_async

WHO: ContextVar[str] = ContextVar("who", default="nobody")


@pytest.fixture
def threads() -> Generator[Threads]:
    made = Threads()
    yield made
    made.close()


def _nothing() -> None: ...


async def _call(call: Callable[[str], Any], threads: Threads) -> Any:
    return await Caller(call, _nothing, threads.invoke).run("key")


async def _where(key: str) -> str:
    return threading.current_thread().name


def _plain(key: str) -> str:
    return threading.current_thread().name


class _Async:
    async def __call__(self, key: str) -> str:
        return threading.current_thread().name

    async def method(self, key: str) -> str:
        return threading.current_thread().name


@pytest.mark.parametrize(
    "call",
    [_where, functools.partial(_where), _Async(), _Async().method],
    ids=["function", "partial", "object", "method"],
)
async def test_an_async_callable_is_awaited_on_the_loop(call: Any, threads: Threads) -> None:
    assert is_async(call)
    assert await _call(call, threads) == threading.current_thread().name


async def test_a_plain_callable_runs_in_a_thread_with_the_same_context(threads: Threads) -> None:
    WHO.set("ana")
    assert (await _call(_plain, threads)).startswith("relevo-call")
    assert await _call(lambda key: WHO.get(), threads) == "ana"


async def test_plain_calls_overlap_and_the_loop_goes_on(threads: Threads) -> None:
    together = threading.Barrier(10, timeout=20)
    calls = [_call(lambda key: together.wait() is not None, threads) for _ in range(10)]
    assert all(await asyncio.gather(*calls))


async def test_a_function_that_gave_an_awaitable_at_once_is_called_on_the_loop(
    threads: Threads,
) -> None:
    called: list[str] = []

    def mail(key: str) -> Any:
        called.append(threading.current_thread().name)
        return _where(key)

    here = threading.current_thread().name
    for _ in range(2):
        assert await _call(mail, threads) == here
    assert called[0].startswith("relevo-call")
    assert called[1] == here


async def test_a_function_that_once_gave_something_else_is_called_in_threads_again(
    threads: Threads,
) -> None:
    gives: list[Any] = [_where, _where, _plain, _where, _where]
    called: list[str] = []

    def mixed(key: str) -> Any:
        called.append(threading.current_thread().name)
        return gives.pop(0)(key)

    for _ in range(5):
        await _call(mixed, threads)
    here = threading.current_thread().name
    assert [name == here for name in called] == [False, True, True, False, False]


async def test_a_function_that_blocks_before_it_gives_an_awaitable_stays_in_threads(
    threads: Threads,
) -> None:
    def slow(key: str) -> Any:
        time.sleep(0.02)
        return _where(key)

    await _call(slow, threads)
    assert not is_async(slow)


async def test_what_waits_for_a_thread_and_is_given_up_does_not_run() -> None:
    threads = Threads()
    go_on, begun = threading.Event(), threading.Semaphore(0)

    def busy(key: str) -> None:
        begun.release()
        go_on.wait(20)

    others = [asyncio.create_task(_call(busy, threads)) for _ in range(32)]
    for _ in range(32):
        await asyncio.to_thread(begun.acquire)
    caller = Caller(_plain, _nothing, threads.invoke)
    late = asyncio.create_task(caller.run("key"))
    await asyncio.sleep(0)
    late.cancel()
    await asyncio.wait({late})
    go_on.set()
    await asyncio.gather(*others)
    threads.close()
    assert late.cancelled() and not caller.is_begun


async def test_a_call_that_raises_stop_iteration_ends(threads: Threads) -> None:
    def stops(key: str) -> None:
        raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration"):
        await _call(stops, threads)
