"""What people ask of jobs, and do to them."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from relevo.ids import parse_id
from relevo.job import AGING, JOINS, Job, State
from relevo.store import By, Edit, Filter, Group, Page, QueueMode, SealedValue, Tally
from relevo.stores.postgres import renewal
from relevo.stores.postgres.lines import Record
from relevo.stores.postgres.rows import (
    BEHIND,
    CODES,
    FRESH,
    hashed,
    job_of,
    known_ids,
    page_size,
    state_of,
)
from relevo.stores.postgres.session import Session
from relevo.stores.postgres.text import clean, restore

MINUTE = 60.0
COUNTED = 64 * 1024 * 1024
"""Above so many bytes of ended jobs, the done ones are estimated once a minute."""

FEW = 1_000
"""Of queues with fewer done jobs these are counted all the same."""

SEARCHED = 20_000
"""Jobs in which a text is searched for one page: no index helps with that."""

_MEANT = """
    ($2::text is null or queue = $2)
    and ($3::smallint is null or state = $3)
    and ($4::smallint[] is null or state = any ($4))
    and ($5::boolean is null
         or state > 0
         or (state <> -2 and run_at <= (select relevo.moment($1))) = $5)
    and ($6::text is null or kind = $6)
    and ($7::uuid is null or keyhash = $7)
    and ($8::text is null or lane = $8)
    and ($9::text is null or park = $9)
    and ($10::text is null or thread = $10 or (thread is null and id = $11::uuid))
    and ($12::text is null or flow = $12)
    and ($13::text is null or fingerprint = $13)
    and ($14::text is null
         or position($15::bytea in payload) > 0
         or strpos(concat_ws(e'\\n', key, error_type, error_message, error_trace), $14) > 0)
    and ($16::text is null or state <> 5 and strpos(error_type || ': ' || error_message, $16) > 0)
    and ($17::bigint is null or coalesce(ended_at, inserted_at) >= $17)
    and ($18::bigint is null or coalesce(ended_at, inserted_at) < $18)
"""
"""A Filter as a condition on `everything`, its parameters as `_meant` gives them."""

# Effects go with those jobs that this very statement removes, and with those that were gone when it
# began: one that a person has retried meanwhile still needs to know what it has done outside.
_ERASE = """
with gone as (
    delete from relevo.ended
    where id = any ($2::uuid[])
    returning id, state, forever, keyhash, queue, remember
), known as (
    insert into relevo.remembered as r (id, job, until)
    select id, id, relevo.moment($1) + remember
    from gone
    where remember > 0
    on conflict (id) do update
    set job = excluded.job, until = excluded.until
), parted as (
    delete from relevo.joins
    where job in (select id from gone)
), lost as (
    update relevo.keys as k
    set failed = true
    from gone as e
    where e.state > 5 and e.forever
        and k.hash = e.keyhash and k.queue = e.queue and k.job = e.id
), untied as (
    delete from relevo.edges
    where parent in (select id from gone)
), undone as (
    delete from relevo.effects
    where job = any (array(
        select replace(n.id::text, '-', '')
        from unnest($2::uuid[]) as n (id)
        where not exists (select from relevo.jobs as j where j.id = n.id)
            and (
                exists (select from gone where gone.id = n.id)
                or not exists (select from relevo.ended as e where e.id = n.id)
            )
    ))
    returning seq
), shed as (
    delete from relevo.deliveries
    where state = any ('{0, 1, 2, 3, 4}') and id = any ($3::uuid[])
    returning id
), counted as (
    select
        (select count(*) from gone) as jobs, (select count(*) from undone) as effects,
        (select count(*) from shed) as deliveries
), written as (
    insert into relevo.audits (who, verb, target, note, at, before, after)
    select $4, 'forget', $6, $5, relevo.moment($1), '', ''
    from counted
    where jobs + effects + deliveries > 0
)
select jobs, deliveries from counted
"""


class People(Session):
    """The verbs of people."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # pyright: ignore[reportArgumentType] - passed through
        self._done_counts: dict[str, tuple[int, bool]] = {}
        self._done_counted_at = -MINUTE

    async def find(self, ids: Sequence[str]) -> list[Job | None]:
        rows = await self._people.fetch(
            self._sql("""
            select
                j.*,
                relevo.moment($1) as now,
                waits.children,
                waits.fatals,
                array(
                    select parent
                    from relevo.edges
                    where child = j.id and parent <> j.id
                    order by parent
                ) as parents,
                (select count(*) from relevo.joins as c where c.job = j.id) as joined,
                coalesce(
                    (select l.keep from relevo.jobs as l where l.id = j.id),
                    (select e.keep from relevo.ended as e where e.id = j.id),
                    0
                ) as keep,
                newest.*
            from relevo.everything as j
            cross join lateral (
                select
                    array_agg(c.id order by c.seq) as join_ids,
                    array_agg(c.cause order by c.seq) as join_causes,
                    array_agg(c.at order by c.seq) as join_ats
                from (
                    select id, cause, at, seq
                    from relevo.joins
                    where job = j.id
                    order by seq desc
                    limit $3
                ) as c
            ) as newest
            cross join lateral (
                select
                    coalesce(array_agg(child order by ord = 10000, ord, child), '{}') as children,
                    coalesce(array_agg(fatal order by ord = 10000, ord, child), '{}') as fatals
                from relevo.edges
                where parent = j.id and child <> j.id and not tally
            ) as waits
            where j.id = any ($2)
            """),
            self._skew,
            known_ids(ids),
            JOINS,
            repeat=True,
        )
        found = {row["id"].hex: job_of(row, row["now"], history=True) for row in rows}
        return [found.get(parse_id(text) or "") for text in ids]

    async def page(self, where: Filter, *, cursor: str | None = None, limit: int = 50) -> Page:
        limit = page_size(limit)
        before = None if cursor is None else parse_id(cursor)
        if cursor is not None and before is None:
            return Page([])
        floor = None if where.text is None else await self._floor(before)
        rows = await self._people.fetch(
            self._sql(f"""
            select *, relevo.moment($1) as now
            from relevo.everything
            where {_MEANT}
                and ($19::uuid is null or id < $19)
                and ($20::uuid is null or id >= $20)
            order by id desc
            limit $21
            """),  # noqa: S608 - a constant is put in, every value is bound
            self._skew,
            *_meant(where),
            before,
            floor,
            limit + 1,
            repeat=True,
        )
        jobs = [job_of(row, row["now"]) for row in rows[:limit]]
        return Page(jobs, jobs[-1].id if len(rows) > limit else floor)

    async def _floor(self, before: str | None) -> str | None:
        """How far down a search for text looks at once; reading on continues from there."""
        rows = await self._people.fetch(
            self._sql("""
            select id
            from relevo.everything
            where $1::uuid is null or id < $1
            order by id desc
            offset $2
            limit 1
            """),
            before,
            SEARCHED,
            repeat=True,
        )
        return rows[0]["id"].hex if rows else None

    async def count(self, where: Filter, *, most: int = 10_000) -> int:
        rows = await self._people.fetch(
            self._sql(f"""
            select count(*)
            from (select from relevo.everything where {_MEANT} limit $19) as meant
            """),  # noqa: S608 - a constant is put in, every value is bound
            self._skew,
            *_meant(where),
            most,
            repeat=True,
        )
        return rows[0]["count"]

    async def tally(self) -> list[Tally]:
        rows = await self._people.fetch(
            self._sql("""
            select
                queue, state, run_at <= (select relevo.moment($1)) as due, count(*) as n,
                (select relevo.moment($1)) - min(run_at) as late,
                (select relevo.moment($1)) - min(inserted_at) as age
            from relevo.jobs
            group by 1, 2, 3
            union all
            select queue, state, true, count(*), null, null
            from relevo.ended
            where state > 5
            group by 1, 2
            """),
            self._skew,
            repeat=True,
        )
        counts: dict[str, Counter[State]] = defaultdict(Counter)
        oldest: dict[str, int] = {}
        lateness: dict[str, int] = {}
        for queue, code, due, n, late, age in rows:
            state = state_of(code, 0 if due else 1, 0)
            counts[queue][state] += n  # only of those that wait does it matter whether they are due
            if state is State.READY:
                lateness[queue] = max(late, lateness.get(queue, late))
            if state in AGING:
                oldest[queue] = max(int(age), oldest.get(queue, 0))
        done = await self._count_done()
        for queue, (n, _) in done.items():
            counts[queue][State.DONE] = n
        modes = await self._people.fetch(
            self._sql("select queue, mode from relevo.queues"), repeat=True
        )
        mode = {row["queue"]: QueueMode(row["mode"]) for row in modes}
        return [
            Tally(
                queue=queue,
                mode=mode.get(queue, QueueMode.OPEN),
                counts=dict(counts[queue]),
                oldest=oldest.get(queue),
                late=lateness.get(queue),
                is_estimate=queue in done and done[queue][1],
            )
            for queue in sorted(counts.keys() | mode.keys())
        ]

    async def _count_done(self) -> dict[str, tuple[int, bool]]:
        """How many done jobs each queue has, and whether that is an estimate."""
        if time.monotonic() - self._done_counted_at < MINUTE:
            return self._done_counts
        size = await self._people.fetch(
            "select pg_relation_size($1::text::regclass) as bytes",
            self._sql("relevo.ended"),
            repeat=True,
        )
        if size[0]["bytes"] <= COUNTED:
            rows = await self._people.fetch(
                self._sql("select queue, count(*) from relevo.ended where state = 5 group by 1"),
                repeat=True,
            )
            return {row["queue"]: (row["count"], False) for row in rows}
        # Names by leaping through the index; few are counted, many are estimated from a sample.
        share = min(100.0, 100.0 * COUNTED / 4 / size[0]["bytes"])
        rows = await self._people.fetch(
            self._sql("""
            with recursive names as (
                (select queue from relevo.ended order by queue limit 1)
                union all
                select (
                    select e.queue
                    from relevo.ended as e
                    where e.queue > names.queue
                    order by e.queue
                    limit 1
                )
                from names
                where names.queue is not null
            ), sample as (
                select queue, (count(*) * 100 / $1)::bigint as n
                from relevo.ended tablesample system ($1)
                where state = 5
                group by 1
            )
            select names.queue, few.n >= $2 as is_estimate,
                case when few.n < $2 then few.n else greatest(few.n, coalesce(sample.n, 0)) end as n
            from names
            left join sample using (queue)
            cross join lateral (
                select count(*) as n
                from (
                    select
                    from relevo.ended as e
                    where e.queue = names.queue and e.state = 5
                    limit $2
                ) as first
            ) as few
            where names.queue is not null and few.n > 0
            """),
            share,
            FEW,
            repeat=True,
        )
        self._done_counts = {row["queue"]: (row["n"], row["is_estimate"]) for row in rows}
        self._done_counted_at = time.monotonic()
        return self._done_counts

    async def groups(self, *, queue: str | None = None, limit: int = 50) -> list[Group]:
        rows = await self._people.fetch(
            self._sql("""
            with groups as (
                select
                    queue, fingerprint, count(*) as n, min(ended_at) as first_at,
                    max(ended_at) as last_at
                from relevo.ended
                where state = 6 and ($1::text is null or queue = $1)
                group by queue, fingerprint
                order by n desc, last_at desc
                limit $2
            )
            select groups.*, newest.id, newest.error_type, newest.error_message
            from groups
            cross join lateral (
                select e.id, e.error_type, e.error_message
                from relevo.ended as e
                where e.state = 6 and e.queue = groups.queue
                    and left(e.fingerprint, 100) = left(groups.fingerprint, 100)
                    and e.fingerprint = groups.fingerprint
                order by e.ended_at desc
                limit 1
            ) as newest
            order by groups.n desc, groups.last_at desc
            """),
            clean(queue),
            limit,
            repeat=True,
        )
        return [_group_of(row) for row in rows]

    async def retry(self, ids: Sequence[str], by: By, *, spread: int = 0) -> list[bool]:
        rows = await self._people.fetch(
            self._sql("select unnest(relevo.retry_jobs($1, $2, $3, $4, $5)) as id"),
            self._skew,
            known_ids(ids),
            clean(by.who),
            clean(by.note),
            spread,
        )
        return _hits(ids, rows)

    async def edit(self, edits: Sequence[Edit], by: By) -> list[bool]:
        wanted = {identity: edit for edit in edits if (identity := parse_id(edit.id)) is not None}
        rows = await self._people.fetch(
            self._sql("select unnest(relevo.edit_jobs($1, $2, $3, $4, $5, $6, $7, $8)) as id"),
            self._skew,
            list(wanted),
            [edit.payload for edit in wanted.values()],
            [
                None if edit.priority is None else min(max(edit.priority, 0), 2)
                for edit in wanted.values()
            ],
            [edit.run_at for edit in wanted.values()],
            [edit.attempts for edit in wanted.values()],
            clean(by.who),
            clean(by.note),
        )
        return _hits([edit.id for edit in edits], rows)

    async def cancel(self, ids: Sequence[str], by: By) -> list[bool]:
        rows = await self._people.fetch(
            self._sql("select unnest(relevo.cancel_jobs($1, $2, $3, $4)) as id"),
            self._skew,
            known_ids(ids),
            clean(by.who),
            clean(by.note),
        )
        return _hits(ids, rows)

    async def discard(self, ids: Sequence[str], by: By) -> list[bool]:
        rows = await self._people.fetch(
            self._sql("select unnest(relevo.discard_jobs($1, $2, $3, $4)) as id"),
            self._skew,
            known_ids(ids),
            clean(by.who),
            clean(by.note),
        )
        return _hits(ids, rows)

    async def erase(
        self, jobs: Sequence[str], deliveries: Sequence[str], by: By, *, act: str
    ) -> tuple[int, int]:
        rows = await self._people.fetch(
            self._sql(_ERASE),
            self._skew,
            known_ids(jobs),
            known_ids(deliveries),
            clean(by.who),
            clean(by.note),
            clean(act),
        )
        return rows[0]["jobs"], rows[0]["deliveries"]

    async def ask(self, sql: str, *values: Any) -> list[Any]:
        """Rows of a statement that a person waits for: its limit is longer than a worker's."""
        return [*await self._people.fetch(self._sql(sql), *values)]

    def sealed_values(self) -> AsyncGenerator[list[SealedValue]]:
        return renewal.sealed_values(self)

    async def swap_values(self, values: Sequence[tuple[SealedValue, bytes]]) -> int:
        return await renewal.swap_values(self, values)

    async def set_mode(self, queues: Sequence[str], mode: QueueMode, by: By) -> list[bool]:
        rows = await self._people.fetch(
            self._sql("select unnest(relevo.set_modes($1, $2, $3, $4, $5)) as queue"),
            self._skew,
            [clean(queue) for queue in queues],
            mode.value,
            clean(by.who),
            clean(by.note),
        )
        changed = {restore(row["queue"]) for row in rows}
        return [queue in changed for queue in queues]


def _meant(where: Filter) -> list[object]:
    codes = sorted({CODES[state] for state in where.states})
    if 0 in codes:
        codes = [BEHIND, FRESH, *codes]
    due = None
    if where.states and len(where.states & {State.READY, State.SCHEDULED}) == 1:
        due = State.READY in where.states
    return [
        clean(where.queue),
        codes[0] if len(codes) == 1 else None,
        codes if len(codes) > 1 else None,
        due,
        clean(where.kind),
        None if where.key is None else hashed(where.key),
        clean(where.lane),
        clean(where.park),
        clean(where.thread),
        parse_id(where.thread or ""),
        clean(where.flow),
        clean(where.fingerprint),
        clean(where.text),
        None if where.text is None else where.text.encode("utf-8", "surrogatepass"),
        clean(where.error),
        where.since,
        where.until,
    ]


def _hits(ids: Sequence[str], rows: Sequence[Record]) -> list[bool]:
    # Whoever is named twice was changed once.
    changed = {row["id"].hex for row in rows}
    hits: list[bool] = []
    for text in ids:
        identity = parse_id(text) or ""
        hits.append(identity in changed)
        changed.discard(identity)
    return hits


def _group_of(row: Record) -> Group:
    return Group(
        fingerprint=restore(row["fingerprint"]),
        queue=row["queue"],
        type=restore(row["error_type"] or ""),
        message=restore(row["error_message"] or ""),
        count=row["n"],
        first_at=row["first_at"],
        last_at=row["last_at"],
        sample=row["id"].hex,
    )
