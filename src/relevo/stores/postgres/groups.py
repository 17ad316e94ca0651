"""Groups of jobs: whom they take, how far they have come."""

from __future__ import annotations

from collections.abc import Sequence

from asyncpg.exceptions import LockNotAvailableError

from relevo.errors import StoreUnavailable
from relevo.ids import parse_id
from relevo.store import BATCH, Gate, JobGroup
from relevo.stores.postgres.lines import Record
from relevo.stores.postgres.rows import known_ids
from relevo.stores.postgres.session import Session
from relevo.stores.postgres.text import restore

_GATES: list[Gate] = [Gate.OPEN, Gate.CLOSED, Gate.SHUT]
_FOUND = """
    select
        g.id, g.name, g.gate, g.done, g.dead, g.cancelled, g.opened_at, g.closed_at,
        coalesce(j.queue, e.queue) as queue,
        g.members + coalesce(
            (select sum(n) from relevo.additions as a where a.parent = g.id), 0
        )::bigint as members
    from relevo.groups as g
    left join relevo.jobs as j on j.id = g.id
    left join relevo.ended as e on e.id = g.id
    where (j.id is not null or e.id is not null)
"""
_BY_ID = f"{_FOUND} and g.id = any ($1)"
_NEWEST = f"{_FOUND} order by g.opened_at desc, g.id desc limit $1"
_FORGET = """
    delete from relevo.groups as g
    where not exists (select from relevo.jobs as j where j.id = g.id)
        and not exists (select from relevo.ended as e where e.id = g.id)
"""


class Groups(Session):
    """The verbs of groups."""

    async def set_gate(self, ids: Sequence[str], gate: Gate) -> list[bool]:
        try:
            rows = await self._upkeep.fetch(
                self._sql("select unnest(relevo.set_gate($1, $2, $3)) as id"),
                self._skew,
                known_ids(ids),
                _GATES.index(gate),
            )
        except StoreUnavailable as error:
            if isinstance(error.__cause__, LockNotAvailableError):
                raise StoreUnavailable(
                    "a transaction that has added members to the group is still open: close the "
                    "group in it, with close(tx=), or after its commit"
                ) from error
            raise
        changed = {row["id"].hex for row in rows}
        return [parse_id(id) in changed for id in ids]

    async def job_groups(self, ids: Sequence[str]) -> list[JobGroup | None]:
        rows = await self._people.fetch(self._sql(_BY_ID), known_ids(ids), repeat=True)
        found = {row["id"].hex: _group_of(row) for row in rows}
        return [found.get(parse_id(id) or "") for id in ids]

    async def newest_groups(self, limit: int = 50) -> list[JobGroup]:
        rows = await self._people.fetch(self._sql(_NEWEST), limit, repeat=True)
        return [_group_of(row) for row in rows]

    async def live_members(self, id: str, limit: int = BATCH) -> list[str]:
        rows = await self._people.fetch(
            self._sql("select child from relevo.edges where parent = any ($1) and tally limit $2"),
            known_ids([id]),
            limit,
            repeat=True,
        )
        return [row["child"].hex for row in rows]

    async def _forget_groups(self) -> None:
        """Forget the groups whose jobs are no longer kept."""
        await self._upkeep.fetch(self._sql(_FORGET), repeat=True)


def _group_of(row: Record) -> JobGroup:
    gate: int = row["gate"]
    return JobGroup(
        id=row["id"].hex,
        queue=row["queue"],
        name=restore(row["name"]),
        gate=_GATES[gate],
        members=row["members"],
        done=row["done"],
        dead=row["dead"],
        cancelled=row["cancelled"],
        opened_at=row["opened_at"],
        closed_at=row["closed_at"],
    )
