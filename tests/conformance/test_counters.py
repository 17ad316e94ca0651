"""Counters: each process adds its own, and the sums never fall."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from relevo.counters import KIND, Counters
from relevo.errors import StoreUnavailable
from relevo.restored import KIND as RESTORED
from relevo.restored import Restored, mark_restored, read_went_back
from relevo.store import By, DeliveryState, Note, Store
from relevo.telemetry import Telemetry


class Process:
    """One process that counts."""

    def __init__(self, store: Any) -> None:
        self.telemetry = Telemetry()
        self.restored = Restored(store)
        self.counters = Counters(store, self.telemetry, self.restored)

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

    async def now(self) -> int:
        return await self._store.now()

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


# a store that is put back to an earlier moment


async def put_back(store: Store, note: Note | None) -> None:
    """Make the counters what they were, as a copy of the whole store would."""
    await store.forget(KIND, ["all"])
    if note is not None:
        for version in range(note.version):
            old = Note(kind=KIND, name="all", value=note.value, version=version)
            assert await store.remember([old]) == [True]


async def test_a_store_that_went_back_is_told_once(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    worker, other = Process(store), Process(store)
    await worker.runs(1)
    await other.runs(1)
    [copy] = await store.recall(KIND, ["all"])
    await worker.runs(1)
    await other.counters.refresh()
    assert await read_went_back(store) is None
    await put_back(store, copy)
    await worker.runs(1)
    found = await read_went_back(store)
    assert found is not None
    assert found.seen_at <= found.at <= await store.now()
    assert caplog.text.count("the store has less than a process has seen in it") == 1
    await worker.runs(1)
    await Process(store).counters.refresh()
    assert caplog.text.count("the store has less than a process has seen in it") == 1
    await mark_restored(store, By("ann"))
    assert await read_went_back(store) is None


async def test_an_emptied_store_went_back(store: Store) -> None:
    worker = Process(store)
    await worker.runs(1)
    await put_back(store, None)
    await worker.counters.refresh()
    assert await read_went_back(store) is not None


async def test_a_store_that_is_marked_as_restored_is_not_told_of(store: Store) -> None:
    worker = Process(store)
    await worker.runs(1)
    [copy] = await store.recall(KIND, ["all"])
    await worker.runs(1)
    await put_back(store, copy)
    await mark_restored(store, By("ann"))
    await worker.runs(1)
    assert await store.recall(RESTORED, ["went back"]) == [None]


async def test_a_process_knows_what_those_before_it_on_its_host_have_seen(
    store: Store, tmp_path: Path
) -> None:
    memory = tmp_path / "newest"
    first, again, last = Process(store), Process(store), Process(store)
    first.restored.remember_in(memory)
    await first.runs(1)
    [copy] = await store.recall(KIND, ["all"])
    await first.runs(1)
    again.restored.remember_in(memory)
    await again.counters.refresh()
    assert await read_went_back(store) is None
    await put_back(store, copy)
    last.restored.remember_in(memory)
    await last.counters.refresh()
    assert await read_went_back(store) is not None


async def test_a_memory_that_cannot_be_read_is_no_alarm(store: Store, tmp_path: Path) -> None:
    memory = tmp_path / "newest"
    memory.write_text("no number")
    worker = Process(store)
    worker.restored.remember_in(memory)
    await worker.runs(1)
    assert memory.read_text().startswith("1 ")
    assert await read_went_back(store) is None
