"""Coalescing: one write in flight, everyone who comes meanwhile shares the next."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from relevo.batch import Coalescer
from relevo.errors import StoreUnavailable


class Sink:
    """Writes when it is let, and remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None

    async def write(self, batch: list[int]) -> Sequence[int]:
        self.batches.append(batch)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return [item * 10 for item in batch]


async def test_a_lone_caller_goes_at_once() -> None:
    sink = Sink()

    assert await Coalescer(sink.write).add([1, 2]) == [10, 20]
    assert sink.batches == [[1, 2]]


async def test_a_crowd_shares_the_next_write_and_each_gets_its_own_answer() -> None:
    sink = Sink()
    coalescer = Coalescer(sink.write)
    sink.gate.clear()
    callers = [asyncio.create_task(coalescer.add([n])) for n in range(100)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    sink.gate.set()

    assert await asyncio.gather(*callers) == [[n * 10] for n in range(100)]
    assert len(sink.batches) <= 3


async def test_a_batch_never_splits_a_caller_and_stays_within_its_size() -> None:
    sink = Sink()
    coalescer = Coalescer(sink.write)
    sink.gate.clear()
    callers = [asyncio.create_task(coalescer.add([n] * 400)) for n in range(6)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    sink.gate.set()
    await asyncio.gather(*callers)

    assert all(len(batch) <= 1_000 and len(batch) % 400 == 0 for batch in sink.batches)


async def test_an_error_reaches_every_caller_and_the_next_batch_goes_on() -> None:
    sink = Sink()
    coalescer = Coalescer(sink.write)
    sink.error = StoreUnavailable("away")
    answers = await asyncio.gather(*(coalescer.add([n]) for n in range(5)), return_exceptions=True)
    assert all(isinstance(answer, StoreUnavailable) for answer in answers)

    sink.error = None
    assert await coalescer.add([7]) == [70]


async def test_a_caller_that_goes_away_does_not_take_the_batch_along() -> None:
    sink = Sink()
    coalescer = Coalescer(sink.write)
    sink.gate.clear()
    one = asyncio.create_task(coalescer.add([1]))
    two = asyncio.create_task(coalescer.add([2]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    one.cancel()
    sink.gate.set()

    assert await two == [20]


async def test_too_many_waiting_writes_are_refused() -> None:
    sink = Sink()
    coalescer = Coalescer(sink.write, most=10)
    sink.gate.clear()
    in_flight = asyncio.create_task(coalescer.add([1] * 10))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting = asyncio.create_task(coalescer.add([2] * 10))
    await asyncio.sleep(0)

    with pytest.raises(StoreUnavailable, match="waiting"):
        await coalescer.add([3])
    sink.gate.set()
    assert await in_flight == [10] * 10
    assert await waiting == [20] * 10
