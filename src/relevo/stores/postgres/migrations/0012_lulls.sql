-- Lanes lulled by looking for their own jobs. Joined to the jobs, on a plan made while there were
-- few, every claim read the whole backlog of the queue until somebody analysed the table.

-- Puts lanes that gave nothing to sleep until they may; leaves those blocked by running jobs
-- awake, and those to which someone is adding at this moment.
create or replace function relevo.lull_lanes(
    _now bigint, _queue text, _lanes uuid[], _lane_rate integer, _lane_span bigint,
    _ordered boolean
) returns void
language plpgsql
set enable_seqscan = off
as $$
declare
    _never constant bigint := 9000000000000000000;
begin
    _lanes := array(
        select lane
        from relevo.lanes
        where queue = _queue and lane = any (_lanes)
        for update skip locked
    );
    delete from relevo.lanes as l
    where l.queue = _queue and l.lane = any (_lanes) and l.full_at <= _now
        and (
            select j.id from relevo.jobs as j where j.queue = _queue and j.lane = l.lane limit 1
        ) is null;
    update relevo.lanes as l
    set turn = null, due = coalesce(w.due, _never)
    from (
        select
            s.lane,
            case
                when _lane_rate is not null
                    and relevo.tokens(_now, s.full_at, _lane_rate, _lane_span) < 1
                then relevo.token_at(s.full_at, _lane_rate, _lane_span)
                when _ordered
                then (
                    select case head.state when 0 then head.run_at when 1 then 0 end
                    from (
                        select j.state, j.run_at
                        from relevo.jobs as j
                        where j.queue = _queue and j.lane = s.lane
                        order by j.seq
                        limit 1
                    ) as head
                )
                else (
                    select min(first.run_at)
                    from (values (0::smallint), (1::smallint), (2::smallint)) as p (priority)
                    cross join lateral (
                        select j.run_at
                        from relevo.jobs as j
                        where j.queue = _queue and j.lane = s.lane and j.state = 0
                            and j.priority = p.priority
                        order by j.run_at
                        limit 1
                    ) as first
                )
            end as due
        from relevo.lanes as s
        where s.queue = _queue and s.lane = any (_lanes)
    ) as w
    where l.queue = _queue and l.lane = w.lane and (w.due is null or w.due > _now);
end $$;
