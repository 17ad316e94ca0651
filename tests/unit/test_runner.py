"""The first step of a job is taken before its time limit is set; what follows must not notice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from relevo.runner import _rest


async def _go_on(work: Any) -> Any:
    return await _rest(work, work.send(None))


async def test_what_remains_gives_the_coroutines_own_answer() -> None:
    async def work() -> str:
        first = await asyncio.sleep(0, "a")
        second = await asyncio.sleep(0.001, "b")
        return first + second

    assert await _go_on(work()) == "ab"


async def test_what_remains_raises_the_coroutines_own_error() -> None:
    async def work() -> None:
        await asyncio.sleep(0)
        raise LookupError("its own")

    with pytest.raises(LookupError, match="its own"):
        await _go_on(work())


async def test_a_time_limit_reaches_the_first_thing_it_waits_for() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await _go_on(asyncio.Event().wait())


async def test_a_cancelled_coroutine_may_tidy_up_first() -> None:
    tidied: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.001)
            tidied.append("waited")
            raise

    task = asyncio.create_task(_go_on(work()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})

    assert task.cancelled()
    assert tidied == ["waited"]


async def test_a_coroutine_may_answer_a_cancellation_with_a_value() -> None:
    async def work() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "kept"
        return "never"

    task = asyncio.create_task(_go_on(work()))
    await asyncio.sleep(0)
    task.cancel()

    assert await task == "kept"
