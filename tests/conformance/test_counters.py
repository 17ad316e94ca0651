"""Counters: each process adds its own, and the sums never fall."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from relevo.counters import Counters
from relevo.errors import StoreUnavailable
from relevo.store import DeliveryState, Note, Store
from relevo.telemetry import Telemetry


class Process:
    """One process that counts."""

    def __init__(self, store: Any) -> None:
        self.telemetry = Telemetry()
        self.counters = Counters(store, self.telemetry)

    async def runs(self, many: int) -> None:
        self.telemetry.counts["settled"] += many
        await self.counters.publish()

    async def settled(self) -> int:
        await self.counters.refresh()
        sums = self.counters.told()
        assert sums is not None
        return sums.events["settled"]


async def test_what_several_processes_count_is_added_up_once(store: Store) -> None:
    web, worker = Process(store), Process(store)
    assert web.counters.told() is None
    assert await web.settled() == 0
    await worker.runs(3)
    await worker.counters.publish()
    worker.telemetry.deliveries["shop:/hooks/shop", DeliveryState.ACCEPTED] += 2
    worker.telemetry.unrouted["shop:/hooks/shop", "size"] += 4
    worker.telemetry.secrets["shop:/hooks/shop", "1 of 2, 3f9a"] += 5
    assert await worker.settled() == await web.settled() == 3
    sums = web.counters.told()
    assert sums is not None
    assert sums.deliveries == {("shop:/hooks/shop", "accepted"): 2}
    assert sums.unrouted == {("shop:/hooks/shop", "size"): 4}
    assert sums.secrets == {("shop:/hooks/shop", "1 of 2, 3f9a"): 5}


async def test_a_restart_takes_nothing_away(store: Store) -> None:
    web = Process(store)
    seen = [await web.settled()]
    for _ in range(3):
        worker = Process(store)
        worker.telemetry.counts["settled"] += 5
        await worker.counters.close()
        seen.append(await web.settled())
    assert seen == [0, 5, 10, 15]


async def test_many_that_write_at_once_lose_nothing(store: Store) -> None:
    workers = [Process(store) for _ in range(20)]
    await asyncio.gather(*(worker.runs(7) for worker in workers))
    for worker in workers:  # those that were too late write the next time
        await worker.counters.publish()
    assert await Process(store).settled() == 140


class Losing:
    """The store, but the answers of some writes are lost, or the writes themselves."""

    def __init__(self, store: Store, *, is_written: bool) -> None:
        self._store = store
        self._is_written = is_written
        self.is_lossy = True

    async def recall(self, kind: str, names: Sequence[str]) -> list[Note | None]:
        return await self._store.recall(kind, names)

    async def remember(self, notes: Sequence[Note]) -> list[bool]:
        if not self.is_lossy:
            return await self._store.remember(notes)
        if self._is_written:
            await self._store.remember(notes)
        raise StoreUnavailable("the answer was lost")


@pytest.mark.parametrize("is_written", [True, False])
async def test_a_write_whose_answer_was_lost_counts_once(store: Store, is_written: bool) -> None:
    losing = Losing(store, is_written=is_written)
    worker = Process(losing)
    with pytest.raises(StoreUnavailable):
        await worker.runs(3)
    losing.is_lossy = False
    await worker.runs(4)
    assert await Process(store).settled() == 7
