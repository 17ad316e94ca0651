"""Handles on the store under test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from relevo.store import Store
from tests.conformance.fresh import STORES, WRAPPED_STORES

Handles = Callable[[int], Awaitable[list[Store]]]


@pytest.fixture(params=[*STORES, *WRAPPED_STORES])
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


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
