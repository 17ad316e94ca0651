"""New deliveries at one stroke: they and the jobs that came of them, in a statement of its own.

A function would copy every array that it is given, and look for a delivery that may be there
already in three tables. Here only the first insert minds what is there: who does not get in there
is left out of the others, and goes the long way, which is `relevo.receive`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relevo.job import NewJob
from relevo.store import STATE_NUMBERS, Arrival, DeliveryState
from relevo.stores.postgres.rows import brief, digest, filled, ids_as_text, packed_ids, thread_of
from relevo.stores.postgres.text import clean

# Where all values of a column are the same it travels as one, and is empty after the first row. To
# find the n-th of an array takes long where they differ in length: those are unnested.
ARRIVE = """
with given as materialized (
    select
        relevo.moment($1) as now, nextval('relevo.seq') as base, $2::text::uuid[] as ids,
        $3::text::uuid[] as hashes, $4::text::uuid[] as prints, $6::integer[] as generations,
        $7::smallint[] as statuses, $17::text::uuid[] as orders, $18::integer[] as owners,
        $21::smallint[] as priorities, $22::integer[] as attempts, $23::bigint[] as keeps,
        $30::smallint[] as states,
        not exists (
            select from relevo.queues
            where queue = any ($19::text[]) and (mode = 'draining' or ordered)
        ) as is_open
), entered as (
    insert into relevo.delivered (hash, source, generation, id, received_at, status, answer)
    select
        hashes[n], coalesce(source, ($5::text[])[1]), coalesce(generations[n], generations[1]),
        ids[n], now, coalesce(statuses[n], statuses[1]), coalesce(answer, ($12::bytea[])[1])
    from given
    cross join unnest($13::text[], $5::text[], $12::bytea[]) with ordinality
        as d (key, source, answer, n)
    where is_open
    -- In the order of their hashes: two batches with the same keys must not cross.
    order by 1, 2, 3, n
    on conflict (hash, source, generation) do nothing
    returning id
), fresh as materialized (
    select case when count(*) < cardinality($13::text[]) then array(select id from entered) end
        as news  -- null: all of them
    from entered
), kept as (
    insert into relevo.deliveries (
        id, received_at, generation, status, state, source, key, hash, thread, method, path,
        query, reason, jobs, print, headers, body
    )
    select
        ids[n], now, coalesce(generations[n], generations[1]), coalesce(statuses[n], statuses[1]),
        coalesce(states[n], states[1]), coalesce(source, ($5::text[])[1]), key, hashes[n], thread,
        coalesce(method, ($8::text[])[1]), coalesce(path, ($9::text[])[1]),
        coalesce(query, ($10::text[])[1]), coalesce(reason, ($31::text[])[1]),
        coalesce(jobs, uuid_send(orders[n])), prints[n], coalesce(headers, ($11::bytea[])[1]), body
    from given
    cross join fresh
    cross join unnest(
        $13::text[], $5::text[], $8::text[], $9::text[], $10::text[], $31::text[], $11::bytea[],
        $14::text[], $15::bytea[], $16::bytea[]
    ) with ordinality
        as d (key, source, method, path, query, reason, headers, thread, jobs, body, n)
    where news is null or ids[n] = any (news)
), stored as (
    insert into relevo.jobs (
        id, seq, run_at, inserted_at, keep, attempts, priority, queue, kind, thread, cause, meta,
        payload
    )
    select
        orders[n], base + n, coalesce(moment, now + coalesce(delay, 0)), now,
        coalesce(keeps[n], keeps[1]), coalesce(attempts[n], attempts[1]),
        coalesce(priorities[n], priorities[1]), coalesce(queue, ($19::text[])[1]),
        coalesce(kind, ($20::text[])[1]), thread, cause, meta, payload
    from given
    cross join fresh
    cross join unnest(
        $24::bytea[], $19::text[], $20::text[], $25::text[], $26::text[], $27::bytea[],
        $28::bigint[], $29::bigint[]
    ) with ordinality as j (payload, queue, kind, thread, cause, meta, delay, moment, n)
    where news is null or ids[coalesce(owners[n], n)] = any (news)
    returning id
), ready as (
    select array_agg(id) as jobs from stored
)
select now, news, case when jobs is not null then relevo.arrived($19, jobs) end
from given
cross join fresh
cross join ready
"""


def is_plain(arrival: Arrival) -> bool:
    """Whether it is kept as it is unless its key was there, and so are its jobs."""
    kept = arrival.kept
    return (
        kept.key is not None
        and kept.state is not DeliveryState.REFUSED
        and not kept.received_at
        and all(map(_is_plain, arrival.jobs))
    )


def _is_plain(job: NewJob) -> bool:
    return job.key is job.lane is job.flow is job.node is None and not (
        job.after or job.before or job.remember
    )


def columns_of(arrivals: Sequence[Arrival]) -> list[Any]:
    """The parameters of ARRIVE after the skew."""
    all_kept = [arrival.kept for arrival in arrivals]
    jobs = [job for arrival in arrivals for job in arrival.jobs]
    is_one_each = all(len(arrival.jobs) == 1 for arrival in arrivals)
    delays = [job.delay for job in jobs]
    return [
        ids_as_text([kept.id for kept in all_kept]),
        ids_as_text([digest(kept.key or "") for kept in all_kept]),
        ids_as_text([digest(arrival.compared) for arrival in arrivals]),
        brief([clean(kept.endpoint) for kept in all_kept]),
        brief([kept.generation for kept in all_kept]),
        brief([kept.status for kept in all_kept]),
        brief([clean(kept.method) for kept in all_kept]),
        brief([clean(kept.path) for kept in all_kept]),
        brief([clean(kept.query) for kept in all_kept]),
        brief([kept.headers for kept in all_kept]),
        brief([kept.answer for kept in all_kept]),
        [clean(kept.key) for kept in all_kept],
        filled([thread_of(kept) for kept in all_kept]),
        [] if is_one_each else [packed_ids(arrival.jobs) for arrival in arrivals],
        [kept.body for kept in all_kept],
        ids_as_text([job.id for job in jobs]),
        []
        if is_one_each
        else [place for place, arrival in enumerate(arrivals, 1) for _ in arrival.jobs],
        brief([job.queue for job in jobs]),
        brief([clean(job.kind) for job in jobs]),
        brief([min(max(job.priority, 0), 2) for job in jobs]),
        brief([job.attempts for job in jobs]),
        brief([job.keep for job in jobs]),
        [job.payload for job in jobs],
        filled([clean(job.thread) for job in jobs]),
        filled([clean(job.cause) for job in jobs]),
        filled([job.meta for job in jobs]),
        delays if any(delays) else [],
        filled([job.run_at for job in jobs]),
        brief([STATE_NUMBERS[kept.state] for kept in all_kept]),
        brief([clean(kept.reason) for kept in all_kept]),
    ]
