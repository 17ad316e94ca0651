"""Groups of jobs: whom they take, how far they have come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relevo.ids import parse_id
from relevo.store import BATCH, Gate, JobGroup
from relevo.stores.redis.frame import timely
from relevo.stores.redis.inlet import Inlet
from relevo.stores.redis.record import Unreadable, unpack_job

_GATES = (Gate.OPEN, Gate.CLOSED, Gate.SHUT)


class Groups(Inlet):
    """The verbs of groups."""

    @timely
    async def set_gate(self, ids: Sequence[str], gate: Gate) -> list[bool]:
        queues = await self._queues_of([id for id in dict.fromkeys(ids) if parse_id(id) == id])
        items = [(queues[id], (id,)) if id in queues else None for id in ids]
        answers = [False] * len(ids)
        for places, (found, out) in await self._over("gate", items, str(_GATES.index(gate))):
            for place, changed in zip(places, found, strict=True):
                answers[place] = changed == 1
            await self._carry(out)
        for queue in set(queues.values()):
            self._bell.ring(queue)
        return answers

    @timely
    async def job_groups(self, ids: Sequence[str]) -> list[JobGroup | None]:
        known = [id for id in dict.fromkeys(ids) if parse_id(id) == id]
        rows = await self._all("tallies", ("0", *known)) if known else []
        found = {group.id: group for some in rows for group in map(_group_of, some)}
        return [found.get(id) for id in ids]

    @timely
    async def newest_groups(self, limit: int = 50) -> list[JobGroup]:
        rows = await self._all("tallies", (max(limit, 1),))
        found = [group for some in rows for group in map(_group_of, some)]
        found.sort(key=lambda group: (-group.opened_at, group.id))
        return found[:limit]

    @timely
    async def live_members(self, id: str, limit: int = BATCH) -> list[str]:
        queues = await self._queues_of([id])
        if id not in queues:
            return []
        root = self._root(queues[id])
        pending = root + b":pending:" + id.encode()
        found = await self._wire.command(root, b"SRANDMEMBER", pending, limit + 1)
        members = [member.decode() for member in found]
        return [member for member in members if member != id][:limit]


def _group_of(row: Sequence[Any]) -> JobGroup:
    queue, id, blob, gate, opened_at, closed_at, members, done, dead, cancelled = row
    try:
        name = unpack_job(blob)[1].n or ""
    except Unreadable:
        name = ""
    return JobGroup(
        id=id.decode(),
        queue=queue.decode(),
        name=name,
        gate=_GATES[int(gate)],
        members=members,
        done=done,
        dead=dead,
        cancelled=cancelled,
        opened_at=opened_at,
        closed_at=closed_at or None,
    )
