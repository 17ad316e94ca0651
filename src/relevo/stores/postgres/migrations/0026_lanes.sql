-- The limits that people give single lanes while workers run: a claim brings them along, as JSON by
-- queue and lane, for its own transaction.

-- How many jobs a lane may give, of `_most`.
create or replace function relevo.lane_room(
    _now bigint, _queue text, _lane uuid, _most integer, _lane_limit integer, _lane_rate integer,
    _lane_span bigint, _burst integer
) returns integer
language plpgsql
set enable_seqscan = off
as $$
declare
    _named constant text := nullif(current_setting('relevo_claim.lanes', true), '');
begin
    if _named is not null then
        _lane_limit := least(_lane_limit, (_named::jsonb -> _queue ->> _lane::text)::integer);
    end if;
    if _lane_limit is not null then
        _most := least(_most, _lane_limit - (
            select count(*)
            from relevo.jobs
            where queue = _queue and lane = _lane and state = 1 and gated
        ));
    end if;
    if _lane_rate is not null then
        _most := least(_most, (
            select relevo.rate_room(_now, full_at, begun, _lane_rate, _lane_span, _burst)
            from relevo.lanes
            where queue = _queue and lane = _lane
        ));
    end if;
    return _most;
end $$;

-- Takes due jobs as claim_leases() does, and of some lanes no more than `_lanes` says.
create function relevo.claim_with_lanes(
    _lanes text, _skew bigint, _queues text[], _limits integer[], _lane_limits integer[],
    _rates integer[], _spans bigint[], _lane_rates integer[], _lane_spans bigint[],
    _ordered boolean[], _count integer, _token bigint, _worker text, _lease bigint,
    _bursts integer[]
) returns table (
    id uuid, queue text, kind text, payload bytea, attempt integer, attempts integer, key text,
    lane text, thread text, cause text, meta bytea, flow text, node text, keep bigint,
    inserted_at bigint, claimed_at bigint, priority smallint, run_at bigint, seq bigint,
    turn integer, suspicion smallint, crashes integer
)
language plpgsql
as $$
begin
    perform set_config('relevo_claim.lanes', _lanes, true);
    return query
    select *
    from relevo.claim_leases(
        _skew, _queues, _limits, _lane_limits, _rates, _spans, _lane_rates, _lane_spans, _ordered,
        _count, _token, _worker, _lease, _bursts
    );
end $$;

-- Counts what runs of these queues under their limits from now on, also what was claimed before they
-- had one.
create function relevo.gate_queues(_queues text[]) returns void
language sql
as $$
update relevo.jobs
set gated = true
where id in (
    select id
    from relevo.jobs
    where state = 1 and not gated and queue = any (_queues)
    order by id
    for update skip locked
)
$$;
