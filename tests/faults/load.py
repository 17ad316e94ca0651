"""Orders and workers on one store while a test hurts it, and the counting afterwards."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from relevo import Relevo
from relevo.store import Store
from relevo.testing import until
from tests.faults import apps
from tests.faults.fleet import Fleet
from tests.faults.ledger import Ledger
from tests.faults.producer import Producer
from tests.faults.verdict import drained, judged
from tests.matrix import Recorder

LEASE = 2.0
SLACK = 2.0
"""Seconds that a busy machine may add to a promise about time."""


@dataclass(kw_only=True)
class Place:
    """A store as the test sees it, and the address that workers and producers use."""

    store: Store
    url: str
    ledger: Ledger
    folder: Path
    matrix: Recorder

    @property
    def database(self) -> str | None:
        """Where the outbox is, for a store that is no SQL database."""
        is_sql = self.store.name in ("sqlite", "postgres")
        return None if is_sql else f"sqlite:///{self.folder / 'outbox.db'}"

    def fleet(self) -> Fleet:
        return Fleet(self.url, self.ledger, self.folder, lease=f"{LEASE}s", database=self.database)

    def engine(self) -> Relevo:
        return Relevo(self.url, apps=[apps.app(self.ledger)], database=self.database)

    async def goes_on(self, within: float, since: float | None = None) -> float:
        """A job is begun within so many seconds; answers how many it took."""
        began = time.monotonic() if since is None else since
        now = time.monotonic()
        left = began + within + SLACK - now
        await until(
            lambda: any(fact.at > now for fact in self.ledger.facts("start")),
            timeout=f"{round(1_000 * left)}ms",
            what="work goes on",
        )
        again = min(fact.at for fact in self.ledger.facts("start") if fact.at > now)
        self.matrix.record(recovery=again - began)
        return again - began


@asynccontextmanager
async def load(
    place: Place, rate: float = 100, workers: int = 2, *, keyed: bool = False
) -> AsyncIterator[tuple[Producer, Fleet]]:
    """Orders and workers at the place's address; when the block ends, everything is counted."""
    with place.fleet() as fleet:
        fleet.hire(workers)
        fleet.wait_for(workers)
        async with place.engine() as relevo:
            async with Producer(relevo, rate=rate) as producer:
                await producer.until_acked(50)
                yield producer, fleet
                await producer.until_acked(len(producer.acked) + 50, timeout=20)
            await drained(place.store, 60, fleet.check)
            if place.database is not None:  # what is in the outbox too
                await until(
                    lambda: producer.acked <= set(place.ledger.counts("effect")),
                    timeout="60s",
                    what="every letter is carried",
                )
                await drained(place.store, 30, fleet.check)
        fleet.check()
    acked, unsure = producer.acked, producer.unsure
    await judged(place.store, place.ledger, acked, unsure=unsure, lease=LEASE, keyed=keyed)
