"""After a restore: what the copy says was under way, and what providers are asked to send again."""

from __future__ import annotations

import msgspec

from relevo.desk.looking import PAGE_MAX, Looking
from relevo.desk.people import Person
from relevo.errors import MisuseError, NotAllowed, NotFoundError
from relevo.job import State
from relevo.restored import Mark, WentBack, end_mark, mark_restored, read_mark, read_went_back
from relevo.store import UNDECIDED, Effect, Filter, Letterbox

DELIVERIES = 1_000
"""The newest deliveries whose endpoints are named, where the apps that have them are not known."""


class JobAfter(msgspec.Struct, frozen=True, kw_only=True):
    """A job that was running when the copy was taken, and what has become of it since."""

    id: str
    queue: str
    kind: str
    state: State


class AfterRestore(msgspec.Struct, frozen=True, kw_only=True):
    """What a person looks at after a restore."""

    mark: Mark
    running: list[JobAfter]
    effects: list[Effect]  # which may have happened; the newest ones
    held: int  # jobs for a person to decide
    endpoints: list[str]  # of the newest deliveries


class Restoring(Looking):
    """The mark of a restored store."""

    async def mark(self) -> Mark | None:
        """The mark; None where the store was never restored."""
        return await read_mark(self.store)

    async def went_back(self) -> WentBack | None:
        """What the store was found to lack though it has no mark; None where nothing is missing."""
        return await read_went_back(self.store)

    async def mark_restored(self, by: Person, note: str = "", *, force: bool = False) -> Mark:
        """Mark the store as restored, while no process works on it; `force` does so anyway."""
        signed = by.acts("restore", note)
        alive = [worker.id for worker in await self.store.workers() if worker.is_alive]
        if alive and not force:
            raise MisuseError(
                f"{', '.join(alive[:3])} seems to be alive: stop every worker first, or their runs "
                "do not see the mark. If they are none of this store's, and the copy is that "
                "young: --force"
            )
        return await mark_restored(self.store, signed)

    async def end_restore(self, by: Person, note: str = "") -> Mark:
        """Say that what the restore has lost has come again."""
        signed = by.acts("restore", note)
        if self.apps is not None:
            raise NotAllowed(
                "a restore is over for all apps at once: ask a person who may see them all"
            )
        mark = await end_mark(self.store, signed)
        if mark is None:
            raise MisuseError("the store is not marked as restored")
        return mark

    async def after_restore(self) -> AfterRestore:
        """What was under way in the copy, and what has to be decided."""
        mark = await read_mark(self.store)
        if mark is None:
            raise NotFoundError(
                "the store is not marked as restored: if it is a copy, stop every process, and "
                "`relevo database mark-restored`"
            )
        jobs = await self.store.find(mark.running)
        effects, _ = await self.store.effects(states=UNDECIDED, limit=PAGE_MAX)
        deliveries, _ = await self.store.deliveries(Letterbox(), limit=DELIVERIES)
        seen = [job for job in jobs if job is not None and self.sees(job.queue)]
        return AfterRestore(
            mark=mark,
            running=[
                JobAfter(id=job.id, queue=job.queue, kind=job.kind, state=job.state) for job in seen
            ],
            effects=[effect for effect in effects if self.sees(effect.queue)],
            held=await self.count(Filter(states=frozenset({State.HELD}))),
            endpoints=sorted(
                {each.endpoint for each in deliveries if self._sees_endpoint(each.endpoint)}
            ),
        )

    def _sees_endpoint(self, endpoint: str) -> bool:
        return self.apps is None or endpoint.partition(":")[0] in self.apps
