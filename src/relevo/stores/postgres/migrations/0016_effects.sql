-- Effects that were concluded before a moment; those of a job that has not ended stay, however old
-- they are. The column job is text and need not be an id.
create function relevo.prune_effects(_before bigint, _limit integer) returns integer
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    _gone integer;
begin
    delete from relevo.effects
    where seq = any (array(
        select seq
        from relevo.effects as e
        where e.state in ('confirmed', 'refused', 'failed') and e.updated_at <= _before
            and not exists (
                select
                from relevo.jobs as j
                where j.id = case when e.job ~ '^[0-9a-f]{32}$' then e.job::uuid end
            )
        limit _limit
        for update of e skip locked
    ));
    get diagnostics _gone = row_count;
    return _gone;
end $$;

-- Removes what has been kept long enough; answers how many rows.
create or replace function relevo.prune(_skew bigint, _dead_keep bigint, _limit integer) returns integer
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    _now constant bigint := relevo.moment(_skew);
    _day constant bigint := 86400000;
    _ids uuid[];
    _queues text[];
    _lanes uuid[];
    _gone integer := 0;
    _n integer;
begin
    _ids := array(
        select id
        from relevo.ended
        where state = 5 and ended_at + keep <= _now
            and not exists (  -- a parent that has yet to run reads its children's results
                select
                from relevo.edges as e
                join relevo.jobs as p on p.id = e.parent
                where e.child = ended.id
            )
        order by ended_at + keep
        limit _limit
        for update skip locked
    ) || array(
        select id
        from relevo.ended
        where state > 5 and ended_at <= _now - _dead_keep
        order by ended_at
        limit _limit
        for update skip locked
    );
    _ids := _ids[:_limit];
    if cardinality(_ids) > 0 then
        -- The row goes, what a unique key has to remember stays.
        update relevo.keys as k
        set failed = true
        from relevo.ended as e
        where e.id = any (_ids) and e.state > 5 and e.forever
            and k.hash = e.keyhash and k.queue = e.queue and k.job = e.id;
        perform relevo.forget_jobs(_now, array_agg(id), array_agg(remember))
        from relevo.ended
        where id = any (_ids) and (remember > 0 or digest is not null)
        having count(*) > 0;
        delete from relevo.edges where parent = any (_ids);
        delete from relevo.ended where id = any (_ids);
        _gone := cardinality(_ids);
    end if;

    delete from relevo.notes
    where hash in (
        select hash
        from relevo.notes
        where expires_at <= _now
        limit greatest(_limit - _gone, 0)
        for update skip locked
    );
    get diagnostics _n = row_count;
    _gone := _gone + _n;

    delete from relevo.remembered
    where id = any (array(
        select id
        from relevo.remembered
        where until <= _now
        limit greatest(_limit - _gone, 0)
        for update skip locked
    ));
    get diagnostics _n = row_count;
    _gone := _gone + _n;

    -- At least for the 30 days for which deliveries are kept: one that is replayed finds them.
    _gone := _gone + relevo.prune_effects(
        _now - greatest(_dead_keep, 30 * _day), greatest(_limit - _gone, 0)
    );

    delete from relevo.workers where beat_at < _now - _day;
    get diagnostics _n = row_count;

    -- Locked first and looked at afterwards: a job added in between must be seen.
    select array_agg(queue), array_agg(lane)
    into _queues, _lanes
    from (
        select l.queue, l.lane
        from relevo.lanes as l
        where l.due > _now and l.full_at <= _now
            and not exists (
                select from relevo.jobs as j where j.queue = l.queue and j.lane = l.lane
            )
        limit _limit
        for update skip locked
    ) as idle;
    delete from relevo.lanes as l
    using unnest(_queues, _lanes) as w (queue, lane)
    where l.queue = w.queue and l.lane = w.lane
        and not exists (
            select from relevo.jobs as j where j.queue = l.queue and j.lane = l.lane
        );
    return _gone + _n;
end $$;
