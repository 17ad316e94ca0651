"""Upkeep, safe to run many times over: rescue, prune, and the watch over neighbours."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from relevo.clock import milliseconds
from relevo.errors import StoreError
from relevo.presence import Presence
from relevo.store import BATCH

if TYPE_CHECKING:
    from relevo.worker import Worker

PRUNE_EVERY = 60.0
NEIGHBOURS_EVERY = 1.0


class Keeper:
    """One a process; any number of them agree."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._store = worker.store
        self._presence = Presence(worker.id, worker.store.url)

    async def run(self) -> None:
        with self._presence:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._rescue(), name="relevo-rescue")
                group.create_task(self._prune(), name="relevo-prune")
                group.create_task(self._neighbours(), name="relevo-neighbours")

    async def _rescue(self) -> None:
        """Sweep twice a lease, so that an orphan runs again within one and a half."""
        half = self._worker.lease.total_seconds() / 2
        while True:
            await asyncio.sleep(half * random.uniform(0.7, 0.95))
            await self._sweep()

    async def _sweep(self, gone: str | None = None) -> None:
        try:
            while True:
                taken = await self._store.rescue(BATCH, worker=gone)
                for job in taken:
                    self._worker.telemetry.rescued(job)
                if len(taken) < BATCH:
                    return
        except StoreError as error:
            self._worker.telemetry.trouble("cannot rescue jobs; trying again", error)

    async def _neighbours(self) -> None:
        """Take back at once the jobs of a process of this host that is gone."""
        while True:
            await asyncio.sleep(NEIGHBOURS_EVERY)
            self._worker.give_back_hoard()
            for gone in self._presence.departed():
                await self._sweep(gone)
                self._presence.bury(gone)

    async def _prune(self) -> None:
        dead_keep = milliseconds(self._worker.engine.keep_dead)
        removed = 0
        while True:
            # In small bites, so that the work beside it does not notice.
            rest = 0.05 if removed >= BATCH else PRUNE_EVERY * random.uniform(0.8, 1.2)
            await asyncio.sleep(rest)
            try:
                removed = await self._store.prune(dead_keep=dead_keep, limit=BATCH)
            except StoreError as error:
                removed = 0
                self._worker.telemetry.trouble("cannot prune; trying again", error)
