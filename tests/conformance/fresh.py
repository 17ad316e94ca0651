"""Fresh stores: one private server per process and kind, one empty store per test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from relevo.ids import new_id
from relevo.store import Store
from relevo.stores import open_store
from relevo.testing import ManualClock

NAMES = ["sqlite", "postgres", "redis", "cluster"]


def fresh(name: str, clock: ManualClock, folder: Path) -> AbstractAsyncContextManager[Store]:
    """An open, migrated and empty store called `name`, gone when left."""
    match name:
        case "postgres":
            from tests.servers import postgres

            return postgres.fresh_store(clock)
        case "redis" | "cluster":
            from tests.servers import redis

            return redis.fresh_store(clock, cluster=name == "cluster")
        case _:
            return _fresh_sqlite(clock, folder)


@asynccontextmanager
async def _fresh_sqlite(clock: ManualClock, folder: Path) -> AsyncIterator[Store]:
    store = open_store(f"sqlite:///{folder / new_id()}.db", clock=clock)
    await store.migrate()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


STORES = [
    # One process per server: every test of a store that has one goes to the same worker of xdist.
    pytest.param(name, id=name, marks=[] if name == "sqlite" else pytest.mark.xdist_group(name))
    for name in NAMES
]

SQL_STORES = [store for store in STORES if store.id in ("sqlite", "postgres")]
