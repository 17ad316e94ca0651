"""A fresh, empty, migrated and open store of every kind, and a clock to move by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from relevo.store import Store
from relevo.testing import ManualClock
from tests.conformance.fresh import STORES, fresh

Handles = Callable[[int], Awaitable[list[Store]]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=STORES)
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def store(store_name: str, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Store]:
    async with fresh(store_name, clock, tmp_path) as opened:
        yield opened


@pytest.fixture
async def handles(store: Store) -> AsyncIterator[Handles]:
    """More handles on the store, as other processes would have them."""
    async with AsyncExitStack() as stack:

        async def more(count: int) -> list[Store]:
            spawned = [store.spawn() for _ in range(count)]
            for handle in spawned:
                stack.push_async_callback(handle.close)
                await handle.open()
            return spawned

        yield more
