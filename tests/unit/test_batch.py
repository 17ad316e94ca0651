"""Coalescing: one write in flight, everyone who comes meanwhile shares the next."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from relevo.batch import ENOUGH, Coalescer
from relevo.errors import StoreUnavailable


class Sink:
    """Writes when it is let, and remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.turns = 0  # of the loop, that a write takes
        self.most_at_once = self._at_once = 0

    async def write(self, batch: list[int]) -> Sequence[int]:
        self.batches.append(batch)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        await self.gate.wait()
        for _ in range(self.turns):
            await asyncio.sleep(0)
        self._at_once -= 1
        if self.error is not None:
            raise self.error
        return [item * 10 for item in batch]


async def test_a_lone_caller_goes_at_once() -> None:
    sink = Sink()

    coalescer = Coalescer(sink.write)
    assert await coalescer.add([1, 2]) == [10, 20]
    assert list(await coalescer.add([])) == []
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


async def test_a_lasting_crowd_takes_turns_by_halves() -> None:
    """However uneven it begins: nobody's batch is large because another's was small."""
    sink = Sink()
    coalescer = Coalescer(sink.write)
    sink.turns = 5
    calls = iter(range(2_000))

    async def call() -> None:
        for number in calls:
            assert await coalescer.add([number]) == [number * 10]

    sink.gate.clear()
    callers = [asyncio.create_task(call()) for _ in range(20)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    callers += [asyncio.create_task(call()) for _ in range(80)]
    await asyncio.sleep(0)
    sink.gate.set()
    await asyncio.gather(*callers)

    sizes = [len(batch) for batch in sink.batches]
    assert sizes[0] == 20
    assert set(sizes[2:-2]) == {50}


@pytest.mark.parametrize(("elsewhere", "usual"), [(True, 50), (False, 100)])
async def test_a_crowd_that_calls_in_step_is_split_if_the_work_is_done_elsewhere(
    elsewhere: bool, usual: int
) -> None:
    """All of them waited for the store, and then the store for all of them."""
    sink = Sink()
    coalescer = Coalescer(sink.write, elsewhere=elsewhere)
    sink.turns = 5

    async def call(caller: int) -> None:
        for number in range(20):
            assert await coalescer.add([caller, number]) == [caller * 10, number * 10]

    await asyncio.gather(*(call(caller) for caller in range(100)))

    sizes = [len(batch) // 2 for batch in sink.batches]
    assert sizes[0] == 100  # a burst is one trip
    assert set(sizes[1:-2]) == {usual}
    assert sum(sizes) == 2_000


async def test_a_second_batch_goes_beside_the_first_when_enough_have_come_for_it() -> None:
    """Else the store waits, with nothing to do, until the answer to the first has been read."""
    sink = Sink()
    coalescer = Coalescer(sink.write, elsewhere=True)
    sink.gate.clear()
    callers = [asyncio.create_task(coalescer.add([1]))]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    callers += [asyncio.create_task(coalescer.add([n])) for n in range(ENOUGH - 1)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [len(batch) for batch in sink.batches] == [1]

    callers += [asyncio.create_task(coalescer.add([n])) for n in range(ENOUGH + 1)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [len(batch) for batch in sink.batches] == [1, 2 * ENOUGH]
    callers += [asyncio.create_task(coalescer.add([n])) for n in range(ENOUGH)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(sink.batches) == 2  # and no third

    closing = asyncio.create_task(coalescer.close())
    await asyncio.sleep(0)
    sink.gate.set()
    await closing
    assert all(caller.done() for caller in callers)
    assert sum(map(len, sink.batches)) == len(callers)


async def test_two_batches_on_their_way_leave_nobody_behind() -> None:
    sink = Sink()
    coalescer = Coalescer(sink.write, elsewhere=True)

    async def call(caller: int) -> None:
        for number in range(50):
            sink.turns = (caller * number) % 7
            assert await coalescer.add([number]) == [number * 10]

    async with asyncio.timeout(20):
        await asyncio.gather(*(call(caller) for caller in range(100)))
    assert sum(map(len, sink.batches)) == 5_000
    assert sink.most_at_once == 2


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


@pytest.mark.parametrize("error", [None, StoreUnavailable("away")])
async def test_a_caller_whose_loop_was_closed_keeps_no_other_waiting(
    error: Exception | None,
) -> None:
    sink = Sink()
    sink.error = error
    coalescer = Coalescer(sink.write)
    closed = asyncio.new_event_loop()
    left: asyncio.Future[Sequence[int]] = closed.create_future()
    left.add_done_callback(lambda _: None)
    closed.close()
    here: asyncio.Future[Sequence[int]] = coalescer.here().create_future()
    coalescer.put([1], left)
    coalescer.put([2], here)
    async with asyncio.timeout(5):
        [found] = await asyncio.gather(here, return_exceptions=True)
    assert sink.batches == [[1, 2]]
    assert found == (error or [20])
    if error is not None:
        assert left.exception() is error
