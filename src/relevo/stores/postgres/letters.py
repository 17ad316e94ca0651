"""The outbox: jobs on their way to a store that lives elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from relevo.job import NewJob, Verdict
from relevo.store import BATCH, DELIVERY_KEEP, NO_RESULTS, Letter
from relevo.stores.postgres.session import Session

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(NewJob).decode

_POST = """
with posted as (
    insert into relevo.letters (id, job, posted_at)
    select id, job, relevo.moment($1)
    from unnest($2::uuid[], $3::bytea[]) with ordinality as l (id, job, place)
    order by place
    on conflict (id) do nothing
    returning id
)
select id, exists (select from posted p where p.id = l.id) as is_new,
    exists (select from relevo.letters k where k.id = l.id and k.closed_at is not null) as is_closed
from unnest($2::uuid[]) with ordinality as l (id, place)
order by place
"""
# Where the job stood, its result stands from then on.
_CLOSE = """
insert into relevo.letters as l (id, job, posted_at, closed_at)
select id, result, relevo.moment($1), relevo.moment($1)
from unnest($2::uuid[], $3::bytea[]) as w (id, result)
order by id
on conflict (id) do update
set job = excluded.job, closed_at = excluded.closed_at
where l.closed_at is null
returning id
"""


class Letters(Session):
    """The verbs of the outbox."""

    async def post(self, jobs: Sequence[NewJob]) -> list[Verdict]:
        packed = [_pack(job) for job in jobs]
        ids = [job.id for job in jobs]
        rows = await self._upkeep.fetch(self._sql(_POST), self._skew, ids, packed, repeat=True)
        return _verdicts(rows)

    async def post_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[Verdict]:
        packed = [_pack(job) for job in jobs]
        ids = [job.id for job in jobs]
        async with self._lent(connection) as driver:
            rows = await driver.fetch(self._sql(_POST), self._skew, ids, packed)
        return _verdicts(rows)

    async def letters(self, *, carried: bool, after: int = 0, limit: int = BATCH) -> list[Letter]:
        which = "is not null" if carried else "is null"
        rows = await self._upkeep.fetch(
            self._sql(f"""
            select job, posted_at, seq
            from relevo.letters
            where carried_at {which} and closed_at is null and seq > $1
            order by seq
            limit $2
            """),  # noqa: S608 - one of two constants
            after,
            limit,
            repeat=True,
        )
        return [Letter(_unpack(row["job"]), row["posted_at"], carried, row["seq"]) for row in rows]

    async def mark_carried(self, ids: Sequence[str]) -> None:
        await self._upkeep.fetch(
            self._sql("""
            update relevo.letters
            set carried_at = relevo.moment($1)
            where id = any ($2::uuid[])
            """),
            self._skew,
            list(ids),
            repeat=True,
        )

    async def close_letters(
        self, ids: Sequence[str], results: Mapping[str, bytes] = NO_RESULTS
    ) -> list[bool]:
        rows = await self._upkeep.fetch(self._sql(_CLOSE), self._skew, *_ends(ids, results))
        return _first(ids, rows)

    async def close_letters_within(
        self, connection: Any, ids: Sequence[str], results: Mapping[str, bytes] = NO_RESULTS
    ) -> list[bool]:
        async with self._lent(connection) as driver:
            rows = await driver.fetch(self._sql(_CLOSE), self._skew, *_ends(ids, results))
        return _first(ids, rows)

    async def results(self, ids: Sequence[str]) -> dict[str, bytes]:
        rows = await self._upkeep.fetch(
            self._sql("""
            select id, job
            from relevo.letters
            where closed_at is not null and job is not null and id = any ($1::uuid[])
            """),
            list(ids),
            repeat=True,
        )
        return {row["id"].hex: row["job"] for row in rows}

    async def drop_results(self, ids: Sequence[str]) -> None:
        await self._upkeep.fetch(
            self._sql("""
            update relevo.letters
            set job = null
            where closed_at is not null and job is not null and id = any ($1::uuid[])
            """),
            list(ids),
            repeat=True,
        )

    async def drop_letters(self, ids: Sequence[str]) -> None:
        await self._upkeep.fetch(
            self._sql("""
            delete from relevo.letters
            where closed_at is null and id = any ($1::uuid[])
            """),
            list(ids),
            repeat=True,
        )

    async def closed(self, ids: Sequence[str]) -> list[bool]:
        rows = await self._upkeep.fetch(
            self._sql("""
            select id
            from relevo.letters
            where closed_at is not null and id = any ($1::uuid[])
            """),
            list(ids),
            repeat=True,
        )
        ended = {row["id"].hex for row in rows}
        return [id in ended for id in ids]

    async def old_effects(
        self, *, dead_keep: int, after: int = 0, limit: int = BATCH
    ) -> list[tuple[int, str]]:
        rows = await self._upkeep.fetch(
            self._sql("""
            select seq, job
            from relevo.effects
            where state in ('confirmed', 'refused', 'failed')
                and updated_at <= relevo.moment($1) - $2 and seq > $3
            order by seq
            limit $4
            """),
            self._skew,
            max(dead_keep, DELIVERY_KEEP),
            after,
            limit,
            repeat=True,
        )
        return [(row["seq"], row["job"]) for row in rows]

    async def drop_effects(self, numbers: Sequence[int], *, dead_keep: int) -> int:
        rows = await self._upkeep.fetch(
            self._sql("""
            with gone as (
                delete from relevo.effects
                where seq = any ($3::bigint[])
                    and state in ('confirmed', 'refused', 'failed')
                    and updated_at <= relevo.moment($1) - $2
                returning 1
            )
            select count(*) from gone
            """),
            self._skew,
            max(dead_keep, DELIVERY_KEEP),
            list(numbers),
        )
        return rows[0]["count"]

    async def prune_letters(self, *, keep: int, limit: int = BATCH) -> int:
        rows = await self._upkeep.fetch(
            self._sql("""
            with gone as (
                delete from relevo.letters
                where id in (
                    select id
                    from relevo.letters
                    where closed_at is not null and closed_at < relevo.moment($1) - $2
                    limit $3
                )
                returning 1
            )
            select count(*) from gone
            """),
            self._skew,
            keep,
            limit,
        )
        return rows[0]["count"]


def _ends(ids: Sequence[str], results: Mapping[str, bytes]) -> tuple[list[str], list[bytes | None]]:
    each = list(dict.fromkeys(ids))
    return each, [results.get(id) for id in each]


def _first(ids: Sequence[str], rows: Sequence[Any]) -> list[bool]:
    won = {row["id"].hex for row in rows}
    answers: list[bool] = []
    for id in ids:
        answers.append(id in won)
        won.discard(id)
    return answers


def _verdicts(rows: Sequence[Any]) -> list[Verdict]:
    new = {row["id"] for row in rows if row["is_new"]}
    verdicts: list[Verdict] = []
    for row in rows:
        # Twice in one list, the second is not new.
        is_new = row["id"] in new
        new.discard(row["id"])
        known = Verdict.DONE if row["is_closed"] else Verdict.IN_PROGRESS
        verdicts.append(Verdict.NEW if is_new else known)
    return verdicts
