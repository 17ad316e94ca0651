"""Life: a store opens, closes, migrates, and is shared by threads and processes."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from relevo.errors import RelevoError
from relevo.job import State
from relevo.store import DEADLINE, Finding, QueueMode, Store
from relevo.testing import ManualClock
from tests.conformance.steps import ANN, WORK, add, end, job, look, put, state, take, take_one


async def test_a_store_knows_its_name(store: Store, store_name: str) -> None:
    assert store.name == {"sealed": "sqlite", "relayed": "redis"}.get(store_name, store_name)
    assert "://" in store.url


async def test_migrating_again_changes_nothing(store: Store) -> None:
    """F46"""
    id = await add(store)

    assert await store.migrate() == []
    assert await store.migrate() == []

    assert await state(store, id) is State.READY


async def test_many_may_migrate_at_once(store: Store) -> None:
    """F46"""
    handles = [store.spawn() for _ in range(4)]
    try:
        steps = await asyncio.gather(*(handle.migrate() for handle in handles))
    finally:
        for handle in handles:
            await handle.close()

    assert steps == [[]] * 4
    assert await store.insert([job()])


async def test_a_store_may_be_closed_twice(store: Store) -> None:
    handle = store.spawn()
    await handle.close()
    await handle.open()
    await handle.close()
    await handle.close()

    assert await add(store)


async def test_a_store_may_be_opened_twice(store: Store) -> None:
    handle = store.spawn()
    await handle.open()
    await handle.open()
    try:
        assert await add(handle)
    finally:
        await handle.close()


async def test_a_closed_store_says_so_at_once(store: Store) -> None:
    handle = store.spawn()
    await handle.open()
    await handle.close()

    began = time.monotonic()
    with pytest.raises(RelevoError):
        await handle.insert([job()])
    with pytest.raises(RelevoError):
        await take(handle)
    assert time.monotonic() - began < 2 * DEADLINE + 2


async def test_what_was_stored_outlives_the_handle(store: Store) -> None:
    first = store.spawn()
    await first.open()
    id = await add(first)
    lease = await take_one(first)
    await first.close()

    second = store.spawn()
    await second.open()
    try:
        assert (await look(second, id)).state is State.RUNNING
        assert await end(second, lease)
    finally:
        await second.close()


async def test_closing_one_handle_leaves_the_others(store: Store) -> None:
    other = store.spawn()
    await other.open()
    await other.close()

    id = await add(store)

    assert (await take_one(store)).id == id


async def test_closing_ends_a_wait(store: Store) -> None:
    handle = store.spawn()
    await handle.open()
    waiting = asyncio.create_task(handle.wait([WORK], 60.0))
    await asyncio.wait({waiting}, timeout=0.2)

    await handle.close()

    async with asyncio.timeout(10):
        await asyncio.gather(waiting, return_exceptions=True)


async def test_a_handle_works_in_another_thread_and_loop(store: Store) -> None:
    ids = await put(store, *[job() for _ in range(20)])
    handle = store.spawn()
    taken: list[str] = []
    problems: list[BaseException] = []

    async def work() -> None:
        await handle.open()
        try:
            for lease in await take(handle, 20):
                assert await handle.extend([lease], 60_000) == [True]
                assert await end(handle, lease)
                taken.append(lease.id)
        finally:
            await handle.close()

    def run() -> None:
        try:
            asyncio.run(work())
        except BaseException as problem:  # noqa: BLE001 - shown by the assert below
            problems.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive():
        await store.tally()
        await asyncio.sleep(0.01)
    thread.join()

    assert problems == []
    assert taken == ids


async def test_the_stores_time_is_now(store: Store, clock: ManualClock) -> None:
    assert abs(await store.now() - time.time() * 1000) < 60_000
    first = await store.now()
    clock.advance("1h")

    second = await store.now()

    assert 3_600_000 <= second - first < 3_660_000
    assert await store.now() >= second


async def test_every_handle_has_the_same_time(store: Store, clock: ManualClock) -> None:
    handle = store.spawn()
    await handle.open()
    try:
        clock.advance("2d")
        assert abs(await handle.now() - await store.now()) < 30_000
    finally:
        await handle.close()


async def test_a_check_answers_with_findings(store: Store) -> None:
    findings = await store.check()

    assert all(isinstance(finding, Finding) for finding in findings)
    assert not [finding for finding in findings if finding.level == "error"]
    assert all(finding.subject and finding.message for finding in findings)


async def test_a_store_out_of_use_and_back_still_knows_its_queues(store: Store) -> None:
    await store.set_mode([WORK], QueueMode.PAUSED, ANN)
    await add(store)
    handle = store.spawn()
    await handle.open()
    try:
        assert await take(handle) == []
    finally:
        await handle.close()
