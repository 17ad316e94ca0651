"""Fresh stores: one private server per process and kind, one empty store per test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from relevo.ids import new_id
from relevo.sealing import SealKeys, new_key
from relevo.store import Store
from relevo.stores import open_store
from relevo.stores.sealed import sealed
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
        case "sealed":
            return _fresh_sealed(clock, folder)
        case "relayed":
            from tests.conformance.relaying import fresh_relayed

            return fresh_relayed(clock, folder)
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


@asynccontextmanager
async def _fresh_sealed(clock: ManualClock, folder: Path) -> AsyncIterator[Store]:
    async with _fresh_sqlite(clock, folder) as store:
        yield sealed(store, SealKeys(new_key()))


STORES = [
    # One process per server: every test of a store that has one goes to the same worker of xdist.
    pytest.param(name, id=name, marks=[] if name == "sqlite" else pytest.mark.xdist_group(name))
    for name in NAMES
]

# Long forms: the stores inside are tried in short ones, and the workers of xdist have enough to do.
WRAPPED_STORES = [
    pytest.param("sealed", id="sealed", marks=pytest.mark.soak),
    pytest.param(
        "relayed", id="relayed", marks=[pytest.mark.xdist_group("redis"), pytest.mark.soak]
    ),
]

# Those that answer for good at once. A relayed store takes some jobs as letters, whose receipts are
# as of the outbox; see test_relayed.py.
AT_ONCE = [*STORES, WRAPPED_STORES[0]]
RELAYED = [pytest.param("relayed", id="relayed", marks=pytest.mark.xdist_group("redis"))]

SQL_STORES = [store for store in STORES if store.id in ("sqlite", "postgres")]
