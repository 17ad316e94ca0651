-- Every verb that waits for jobs takes them in one order, that of their ids. Two that took the same
-- ones in different orders stood still for a second, until PostgreSQL broke one of them off.

-- Locks jobs, and those that wait for them however far above: whose end they may be told of.
create function relevo.lock_jobs(_ids uuid[]) returns void
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
begin
    with recursive above (id) as (
        select unnest(_ids)
        union
        select e.parent
        from above
        join relevo.edges as e on e.child = above.id and e.open
    )
    select array_agg(id) into _ids from above;

    perform
    from relevo.jobs
    where id = any (_ids)
    order by id
    for update;
end $$;

-- Sees to it that lanes which got work are looked at from `_dues` on, and keeps them from being
-- put to sleep or removed until the transaction has ended.
create or replace function relevo.touch_lanes(_queues text[], _lanes uuid[], _dues bigint[]) returns void
language plpgsql
set enable_seqscan = off
as $$
declare
    _wanted integer;
    _held integer;
begin
    select count(distinct (queue, lane)) into _wanted
    from unnest(_queues, _lanes) as w (queue, lane)
    where lane is not null;
    if _wanted = 0 then
        return;
    end if;
    loop
        insert into relevo.lanes (queue, lane, due)
        select queue, lane, min(due)
        from unnest(_queues, _lanes, _dues) as w (queue, lane, due)
        where lane is not null
        group by queue, lane
        order by queue, lane
        on conflict do nothing;

        select count(*) into _held
        from (
            select
            from relevo.lanes as l
            join (select distinct queue, lane from unnest(_queues, _lanes) as w (queue, lane)) as w
                on l.queue = w.queue and l.lane = w.lane
            order by l.queue, l.lane
            for key share of l
        ) as held;
        exit when _held = _wanted;  -- else one was removed in between: once more
    end loop;
    update relevo.lanes as l
    set due = w.due
    from (
        select queue, lane, min(due) as due
        from unnest(_queues, _lanes, _dues) as w (queue, lane, due)
        where lane is not null
        group by queue, lane
        order by queue, lane
    ) as w
    where l.queue = w.queue and l.lane = w.lane and l.due > w.due;
end $$;

-- Answers the places of those whose lease is no longer ours. Arrays run in parallel; an empty one
-- stands for nulls, and a state of null is done.
create or replace function relevo.settle_jobs(
    _skew bigint, _ids uuid[], _tokens bigint[], _results bytea[], _states smallint[],
    _delays bigint[], _spends boolean[], _types text[], _messages text[], _traces text[],
    _fingerprints text[], _parks text[]
) returns bigint[]
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
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
    -- Who extends or cancels some of these takes them by id: two passes over them, first what is
    -- done and then the rest, would cross it, and both would stand still until one is broken off.
    if cardinality(_states) > 0 or exists (select from relevo.edges where child = any (_ids)) then
        perform relevo.lock_jobs(_ids);
    end if;

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
            attempt = case
                when coalesce(e.spend, true) then j.attempt
                when e.result is null then j.attempt - 1
                else 0  -- a turn that is over: the next one has killed no worker yet
            end,
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

-- Takes back jobs whose lease has lapsed, or all of one worker. A last row without an id says in
-- how many milliseconds the next lease lapses, if one is left.
create or replace function relevo.rescue_jobs(_skew bigint, _limit integer, _worker text)
returns table (id uuid, queue text, worker text, state smallint, lapse bigint)
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    _now constant bigint := relevo.moment(_skew);
    _ids uuid[];
    _children uuid[];
    _above uuid[];
    _free uuid[];
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
    -- A child that dies tells those above it. Whoever has one of these may want the child next, so
    -- it is left to a later sweep: a sweep waits for nobody.
    with recursive above (child, id) as (
        select id, id
        from relevo.jobs
        where id = any (_ids) and child and attempt >= attempts
        union
        select above.child, e.parent
        from above
        join relevo.edges as e on e.child = above.id and e.open
    )
    select array_agg(child), array_agg(id) into _children, _above from above where id <> child;
    if _above is not null then
        _free := array(
            select id
            from relevo.jobs
            where id = any (_above)
            for update skip locked
        );
        _ids := array(
            select id
            from unnest(_ids) as i (id)
            where not exists (
                select
                from unnest(_children, _above) as a (child, parent)
                join relevo.jobs as p on p.id = a.parent
                where a.child = i.id and not a.parent = any (_free)
            )
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

-- Ends jobs that have not ended; answers those.
create or replace function relevo.cancel_jobs(_skew bigint, _ids uuid[], _who text, _note text)
returns uuid[]
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    _now constant bigint := relevo.moment(_skew);
    _done uuid[];
    _befores text[];
    _outcomes text[];
    _ends smallint[];
begin
    perform relevo.lock_jobs(_ids);
    select
        array_agg(id), array_agg(relevo.state_name(state, run_at, _now)),
        array_agg(case when state = 1 then 'cancelled' end)
    into _done, _befores, _outcomes
    from relevo.jobs
    where id = any (_ids);
    if _done is null then
        return '{}';
    end if;
    _ends := array_fill(7::smallint, array[cardinality(_done)]);
    perform relevo.move_ended(
        _now, _done, _ends, _outcomes, '{}', '{}', '{}', '{}', '{}',
        array_fill(_note, array[cardinality(_done)])
    );
    perform relevo.conclude_children(_now, _done, _ends);
    perform relevo.write_down(
        _now, _who, 'cancel', _note,
        array(select replace(id::text, '-', '') from unnest(_done) as d (id)), _befores,
        array_fill('cancelled'::text, array[cardinality(_done)])
    );
    return _done;
end $$;

-- Puts dead or held jobs aside as cancelled; answers those.
create or replace function relevo.discard_jobs(_skew bigint, _ids uuid[], _who text, _note text)
returns uuid[]
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    _now constant bigint := relevo.moment(_skew);
    _dead uuid[];
    _held uuid[];
    _ends smallint[];
begin
    perform from relevo.ended where id = any (_ids) and state = 6 order by id for update;
    with aside as (
        update relevo.ended
        set state = 7, note = _note
        where id = any (_ids) and state = 6
        returning id
    )
    select coalesce(array_agg(id), '{}') into _dead from aside;
    perform relevo.lock_jobs(array(select id from relevo.jobs where id = any (_ids) and state = 4));
    select coalesce(array_agg(id), '{}')
    into _held
    from relevo.jobs
    where id = any (_ids) and state = 4;
    if cardinality(_held) > 0 then
        _ends := array_fill(7::smallint, array[cardinality(_held)]);
        perform relevo.move_ended(
            _now, _held, _ends, '{}', '{}', '{}', '{}', '{}', '{}',
            array_fill(_note, array[cardinality(_held)])
        );
        perform relevo.conclude_children(_now, _held, _ends);
    end if;
    perform relevo.write_down(
        _now, _who, 'discard', _note,
        array(select replace(id::text, '-', '') from unnest(_dead || _held) as d (id)),
        array_fill('dead'::text, array[cardinality(_dead)])
        || array_fill('held'::text, array[cardinality(_held)]),
        array_fill('cancelled'::text, array[cardinality(_dead) + cardinality(_held)])
    );
    return _dead || _held;
end $$;
