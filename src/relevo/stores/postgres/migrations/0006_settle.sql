-- Ends runs, and takes back those whose worker is gone.
--
-- Where jobs are named by id, `state + 0 = 1` keeps the planner from the index of running jobs: as
-- long as it believes the table to be small it would compare each id with every one of them.

-- Answers the places of those whose lease is no longer ours. Arrays run in parallel; an empty one
-- stands for nulls, and a state of null is done.
create function relevo.settle_jobs(
    _skew bigint, _ids uuid[], _tokens bigint[], _results bytea[], _states smallint[],
    _delays bigint[], _spends boolean[], _types text[], _messages text[], _traces text[],
    _fingerprints text[], _parks text[]
) returns bigint[]
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    _now constant bigint := relevo.moment(_skew);
    _settled bigint[];
    _woken text[];
    _lanes uuid[];
    _dues bigint[];
    _mine bigint[];
    _gone uuid[];
    _children uuid[];
    _ends smallint[];
begin
    -- The plain way: done, and nobody waits for it.
    with ending as (
        select *
        from unnest(_ids, _tokens, _results, _states) with ordinality
            as e (id, token, result, state, place)
        where coalesce(state, 5) = 5
    ), gone as (
        delete from relevo.jobs as j
        using ending as e
        where j.id = e.id and j.token = e.token and j.state + 0 = 1 and not j.child
        returning j.*, e.result as answer, e.place
    ), stays as (
        insert into relevo.ended (
            id, seq, run_at, inserted_at, keep, claimed_at, ended_at, attempt, attempts, state,
            priority, forever, keyhash, queue, kind, key, lane, lane_name, worker, thread, cause, flow, node,
            error_type, error_message, error_trace, fingerprint, note, history, meta, result,
            payload
        )
        select
            id, seq, run_at, inserted_at, keep, claimed_at, _now, attempt, attempts, 5,
            priority, forever, keyhash, queue, kind, key, lane, lane_name, worker, thread, cause, flow, node,
            error_type, error_message, error_trace, fingerprint, note, history, meta,
            coalesce(answer, result), payload
        from gone
        where keep > 0
    )
    select coalesce(array_agg(place), '{}'), array_agg(queue) filter (where gated)
    into _settled, _woken
    from gone;
    if _woken is not null then
        perform relevo.wake(_woken);
    end if;
    if cardinality(_settled) = cardinality(_ids) then
        return '{}';
    end if;

    select array_agg(place)
    into _mine
    from (
        select distinct on (id) place
        from (
            select e.place, j.id
            from unnest(_ids, _tokens) with ordinality as e (id, token, place)
            join relevo.jobs as j on j.id = e.id and j.token = e.token and j.state + 0 = 1
            order by j.id, e.place
            for update of j
        ) as locked
        order by id, place
    ) as mine;
    if _mine is null then
        return array(
            select place
            from generate_series(1, cardinality(_ids)) as n (place)
            where not place = any (_settled)
        );
    end if;
    _settled := _settled || _mine;

    with back as (
        update relevo.jobs as j
        set state = e.state,
            -- A job handed back unspent keeps its place in the line.
            run_at = case
                when coalesce(e.delay, 0) = 0 and not coalesce(e.spend, true) then j.run_at
                else _now + coalesce(e.delay, 0)
            end,
            attempt = j.attempt - (not coalesce(e.spend, true))::integer,
            park = case when e.state = 3 then e.park end,
            result = coalesce(e.result, j.result),
            history = relevo.told(j.history, relevo.line(
                j.attempt,
                case
                    when e.state = 3 then 'parked'
                    when e.state = 4 then 'held'
                    when coalesce(e.spend, true) then 'retry'
                    else 'snooze'
                end,
                j.claimed_at, _now, j.worker, e.type, e.message, e.trace, e.fingerprint
            )),
            error_type = coalesce(e.type, j.error_type),
            error_message = case when e.type is null then j.error_message else e.message end,
            error_trace = case when e.type is null then j.error_trace else e.trace end,
            fingerprint = case when e.type is null then j.fingerprint else e.fingerprint end,
            token = null, worker = null, lease_until = null, gated = false
        from unnest(
            _ids, _results, _states, _delays, _spends, _types, _messages, _traces, _fingerprints,
            _parks
        ) with ordinality as e (
            id, result, state, delay, spend, type, message, trace, fingerprint, park, place
        )
        where e.place = any (_mine) and j.id = e.id and e.state < 5
        returning j.queue, j.lane, j.run_at
    )
    select array_agg(queue), array_agg(lane), array_agg(run_at)
    into _woken, _lanes, _dues
    from back;
    if _woken is not null then
        perform relevo.touch_lanes(_woken, _lanes, _dues);
        perform relevo.wake(_woken);
    end if;

    select
        array_agg(e.id), array_agg(coalesce(e.state, 5)),
        array_agg(e.id) filter (where j.child)
    into _gone, _ends, _children
    from unnest(_ids, _states) with ordinality as e (id, state, place)
    join relevo.jobs as j on j.id = e.id
    where e.place = any (_mine) and coalesce(e.state, 5) >= 5;
    if _gone is not null then
        perform relevo.move_ended(
            _now, array_agg(e.id), array_agg(coalesce(e.state, 5::smallint)),
            array_agg(case e.state when 6 then 'dead' when 7 then 'cancelled' end),
            array_agg(e.type), array_agg(e.message), array_agg(e.trace),
            array_agg(e.fingerprint), array_agg(e.result), '{}'
        )
        from unnest(
            _ids, _results, _states, _types, _messages, _traces, _fingerprints
        ) with ordinality as e (id, result, state, type, message, trace, fingerprint, place)
        where e.id = any (_gone) and e.place = any (_mine);
        if _children is not null then
            perform relevo.conclude_children(_now, _gone, _ends);
        end if;
    end if;
    return array(
        select place
        from generate_series(1, cardinality(_ids)) as n (place)
        where not place = any (_settled)
    );
end $$;

-- Keeps leases alive; answers the places of those that still are ours.
create function relevo.extend_leases(
    _skew bigint, _ids uuid[], _tokens bigint[], _lease bigint
) returns bigint[]
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    _now constant bigint := relevo.moment(_skew);
    _kept bigint[];
begin
    with kept as (
        update relevo.jobs as j
        set lease_until = _now + _lease
        from unnest(_ids, _tokens) with ordinality as e (id, token, place)
        where j.id = e.id and j.token = e.token and j.state + 0 = 1
        returning e.place
    )
    select coalesce(array_agg(place), '{}') into _kept from kept;
    return _kept;
end $$;

-- Takes back jobs whose lease has lapsed, or all of one worker. A last row without an id says in
-- how many milliseconds the next lease lapses, if one is left.
create function relevo.rescue_jobs(_skew bigint, _limit integer, _worker text)
returns table (id uuid, queue text, worker text, state smallint, lapse bigint)
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    _now constant bigint := relevo.moment(_skew);
    _ids uuid[];
    _dead uuid[];
    _messages text[];
    _prints text[];
    _queues text[];
    _lanes uuid[];
    _dues bigint[];
begin
    if _worker is null then
        _ids := array(
            select id
            from relevo.jobs
            where state = 1 and lease_until < _now
            order by lease_until
            limit _limit
            for update skip locked
        );
    else
        _ids := array(
            select id
            from relevo.jobs
            where state = 1 and worker = _worker
            limit _limit
            for update skip locked
        );
    end if;
    return query
    select
        id, queue, worker, (case when attempt >= attempts then 6 else 0 end)::smallint,
        null::bigint
    from relevo.jobs
    where id = any (_ids);
    return query
    select null::uuid, null::text, null::text, null::smallint, (
        select greatest(lease_until - _now, 0)
        from relevo.jobs
        where state = 1 and not id = any (_ids)
        order by lease_until
        limit 1
    );
    if cardinality(_ids) = 0 then
        return;
    end if;

    select array_agg(id), array_agg(format('it killed its worker %s times', times))
    into _dead, _messages
    from (
        select id, 1 + (
            select count(*) from unnest(history) as h (line) where line ~ '^\[\d+, "rescued"'
        ) as times
        from relevo.jobs
        where id = any (_ids) and attempt >= attempts
    ) as lost;

    with back as (
        update relevo.jobs as j
        set state = 0,
            history = relevo.told(history, relevo.line(
                attempt, 'rescued', claimed_at, _now, worker,
                'WorkerLost', format('its worker %s went silent', worker), '', 'WorkerLost'
            )),
            error_type = 'WorkerLost',
            error_message = format('its worker %s went silent', worker),
            error_trace = '',
            fingerprint = 'WorkerLost',
            token = null, worker = null, lease_until = null, gated = false
        where id = any (_ids) and attempt < attempts
        returning queue, lane, run_at
    )
    select array_agg(queue), array_agg(lane), array_agg(run_at)
    into _queues, _lanes, _dues
    from back;
    if _queues is not null then
        perform relevo.touch_lanes(_queues, _lanes, _dues);
        perform relevo.wake(_queues);
    end if;

    if _dead is not null then
        _prints := array_fill('WorkerLost'::text, array[cardinality(_dead)]);
        perform relevo.move_ended(
            _now, _dead, array_fill(6::smallint, array[cardinality(_dead)]),
            array_fill('rescued'::text, array[cardinality(_dead)]), _prints, _messages, '{}',
            _prints, '{}', '{}'
        );
        perform relevo.conclude_children(
            _now, _dead, array_fill(6::smallint, array[cardinality(_dead)])
        );
    end if;
end $$;

-- Lets parked jobs go on, oldest first: `_total` of them are spread over `_spread` milliseconds,
-- of which `_start` have gone before.
create function relevo.unpark_jobs(
    _skew bigint, _park text, _limit integer, _start bigint, _total bigint, _spread bigint
) returns integer
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    _now constant bigint := relevo.moment(_skew);
    _ids uuid[];
    _queues text[];
    _lanes uuid[];
    _dues bigint[];
begin
    _ids := array(
        select id
        from relevo.jobs
        where state = 3 and md5(park) = md5(_park) and park = _park
        order by seq
        limit _limit
        for update skip locked
    );
    with back as (
        update relevo.jobs as j
        set state = 0, park = null,
            run_at = _now + _spread * (_start + w.place - 1) / greatest(_total, 1)
        from unnest(_ids) with ordinality as w (id, place)
        where j.id = w.id
        returning queue, lane, run_at
    )
    select array_agg(queue), array_agg(lane), array_agg(run_at)
    into _queues, _lanes, _dues
    from back;
    if _queues is not null then
        perform relevo.touch_lanes(_queues, _lanes, _dues);
        perform relevo.wake(_queues);
    end if;
    return cardinality(_ids);
end $$;

-- Removes what has been kept long enough; answers how many rows.
create function relevo.prune(_skew bigint, _dead_keep bigint, _limit integer) returns integer
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

    delete from relevo.effects
    where seq = any (array(
        select seq
        from relevo.effects
        where state in ('confirmed', 'refused', 'failed') and updated_at <= _now - _dead_keep
        limit greatest(_limit - _gone, 0)
        for update skip locked
    ));
    get diagnostics _n = row_count;
    _gone := _gone + _n;

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
