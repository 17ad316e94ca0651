"""Counting at the end: what was lost, doubled, a ghost or stuck."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from typing import Any

from relevo.errors import StoreUnavailable
from relevo.job import State
from relevo.store import Filter, Store
from relevo.testing import until
from tests.faults.ledger import Ledger

OPEN = frozenset({State.READY, State.SCHEDULED, State.RUNNING, State.WAITING})
SEEN = frozenset({State.DEAD, State.HELD, State.PARKED})
"""Where a job waits for a person."""


async def drained(store: Store, within: float = 30, watch: Any = None) -> None:
    """Wait until nothing is open; `watch` is called meanwhile and may raise."""

    async def is_over() -> bool:
        if watch is not None:
            watch()
        try:
            return await store.count(Filter(states=OPEN), most=1) == 0
        except StoreUnavailable:
            return False

    await until(is_over, timeout=f"{within}s", what="every job has ended")


async def stuck(store: Store, lease: float) -> list[str]:
    """Jobs whose lease lapsed more than two leases ago."""
    now = await store.now()
    page = await store.page(Filter(states=frozenset({State.RUNNING})), limit=200)
    return [job.id for job in page.jobs if (job.lease_until or now) < now - 2 * lease * 1_000]


async def judged(
    store: Store,
    ledger: Ledger,
    acked: Iterable[int],
    *,
    lease: float,
    unsure: Iterable[int] = (),
    ghosts: Iterable[int] = (),
    keyed: bool = False,
) -> None:
    """Every number that was acknowledged has its one effect, and nothing else has any.

    With `keyed` the other side knows idempotency keys: the same one again is no effect.
    """
    effects = ledger.keys("effect") if keyed else ledger.counts("effect")
    wanted = set(acked)
    seen = await store.page(Filter(states=SEEN), limit=20)
    lost = wanted - set(effects)
    doubled = {number: count for number, count in effects.items() if count > 1}
    unasked = set(effects) - wanted - set(unsure)
    ledger.verdict = (len(lost), len(doubled))
    assert not lost, f"lost {len(lost)} of {len(wanted)}: {sorted(lost)[:20]}, seen: {seen.jobs}"
    assert not seen.jobs, f"some wait for a person: {seen.jobs}"
    assert not doubled, f"doubled: {doubled}"
    assert not unasked, f"nobody asked for {sorted(unasked)[:20]}"
    assert not set(effects) & set(ghosts), "effects of what was rolled back"
    assert await stuck(store, lease) == []
    whole(store)


def whole(store: Store) -> None:
    """The file, where there is one, passes its integrity check."""
    if store.name == "sqlite":
        path = store.dsn.partition("://")[2].partition("?")[0].removeprefix("/")
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as file:
            assert file.execute("pragma integrity_check").fetchone() == ("ok",)
