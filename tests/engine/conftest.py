"""Engines on the store under test."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack

import pytest

from relevo import App, Relevo
from relevo.store import Store
from relevo.testing import ManualClock

Start = Callable[..., Relevo]


@pytest.fixture
async def start(store: Store, clock: ManualClock) -> AsyncGenerator[Callable[..., Relevo]]:
    """Engines on that store, as one process or several would have them."""
    async with AsyncExitStack() as stack:

        def make(*apps: App) -> Relevo:
            engine = Relevo(store, apps=apps, clock=clock)
            stack.push_async_callback(engine.rest)
            return engine

        yield make
