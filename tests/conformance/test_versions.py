"""Code of several versions on one store: who may open it, and which step waits for whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from relevo.errors import SchemaMismatch
from relevo.job import State
from relevo.store import Store, WorkerInfo
from tests.conformance.steps import WORK, add, end, state, take_id
from tests.faults.later import ADDS, TAKES_AWAY, knowing

Later = Callable[[int], AbstractContextManager[None]]
MINUTE = 60_000


@pytest.fixture
def later() -> Later:
    """A block in which the code here is of a later version."""

    @contextmanager
    def patched(version: int) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for module, name, value in knowing(version):
                patch.setattr(module, name, value)
            yield

    return patched


def worker(id: str) -> WorkerInfo:
    return WorkerInfo(id=id, host="h", pid=1, queues=[WORK], concurrency=5, version="0.1.0")


async def opens(store: Store) -> bool:
    """Whether code of this version may work on the store: a process is started again."""
    await store.close()
    try:
        await store.open()
    except SchemaMismatch as error:
        assert "upgrade relevo" in str(error)
        return False
    return True


async def test_older_code_comes_back_after_a_step_that_adds(store: Store, later: Later) -> None:
    """F45"""
    before = await store.schema()
    assert before.number == before.readable_from == before.known
    id = await add(store)

    with later(1):
        assert await store.schema() == (before.number, before.readable_from, ADDS)
        await store.close()
        with pytest.raises(SchemaMismatch, match="run `relevo migrate`"):
            await store.open()
    await store.open()
    with later(1):
        assert await store.migrate()
        assert await store.migrate() == []
        assert await store.schema() == (ADDS, before.readable_from, ADDS)

    assert await store.schema() == (ADDS, before.readable_from, before.known)
    assert await store.migrate() == []
    assert await end(store, await take_id(store, id), State.DONE)
    assert await opens(store)
    assert await state(store, await add(store)) is State.READY


async def test_a_step_that_takes_away_waits_for_older_workers(store: Store, later: Later) -> None:
    """F45"""
    await store.beat(worker("older"), MINUTE)
    await store.beat(worker("departed"), MINUTE)
    await store.silence(["departed"], is_gone=True)
    with later(1):
        await store.migrate()
        await store.beat(worker("newer"), MINUTE)
    left = r"the worker older \(0\.1\.0\) is alive"
    with later(2), pytest.raises(SchemaMismatch, match=left):
        await store.migrate()
    assert (await store.schema()).number == ADDS
    assert await opens(store)

    await store.leave("older")
    with later(2):
        assert await store.migrate()
        assert await store.schema() == (TAKES_AWAY, ADDS, TAKES_AWAY)
        assert await opens(store)
    with later(1):
        assert await opens(store)
    with pytest.raises(SchemaMismatch, match="upgrade relevo"):
        await store.migrate()
    assert not await opens(store)


async def test_workers_say_how_much_they_know(store: Store, later: Later) -> None:
    await store.beat(worker("older"), MINUTE)
    with later(1):
        await store.beat(worker("newer"), MINUTE)
    known = (await store.schema()).known
    assert {each.id: each.schema for each in await store.workers()} == {
        "older": known,
        "newer": ADDS,
    }
