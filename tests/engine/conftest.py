"""An engine on a fresh store of every kind."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from relevo import App, Relevo
from relevo.store import Store
from relevo.testing import ManualClock
from tests.conformance.fresh import STORES, fresh

Start = Callable[..., Relevo]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=STORES)
async def store(
    request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path
) -> AsyncGenerator[Store]:
    async with fresh(request.param, clock, tmp_path) as opened:
        yield opened


@pytest.fixture
async def start(store: Store, clock: ManualClock) -> AsyncGenerator[Callable[..., Relevo]]:
    """Engines on that store, as one process or several would have them."""
    async with AsyncExitStack() as stack:

        def make(*apps: App) -> Relevo:
            engine = Relevo(store, apps=apps, clock=clock)
            stack.push_async_callback(engine.rest)
            return engine

        yield make
