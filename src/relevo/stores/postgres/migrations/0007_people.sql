-- What people do to jobs; each act is written down in the same step.

create function relevo.state_name(_state smallint, _run_at bigint, _now bigint) returns text
language sql immutable
return case
    when _state = 0 then case when _run_at <= _now then 'ready' else 'scheduled' end
    else (array['running', 'waiting', 'parked', 'held', 'done', 'dead', 'cancelled'])[_state]
end;

create function relevo.write_down(
    _now bigint, _who text, _verb text, _note text, _targets text[], _befores text[],
    _afters text[]
) returns void
language sql
begin atomic
    insert into relevo.audits (who, verb, target, note, at, before, after)
    select _who, _verb, target, _note, _now, coalesce(before, ''), coalesce(after, '')
    from unnest(_targets, _befores, _afters) as a (target, before, after);
end;

-- Makes jobs ready again with fresh attempts; answers those for which it could.
create function relevo.retry_jobs(
    _skew bigint, _ids uuid[], _who text, _note text, _spread bigint
) returns uuid[]
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    _now bigint;
    _dues bigint[];
    _live uuid[];
    _back uuid[];
    _befores text[];
    _ends text[];
    _parents uuid[];
begin
    perform from relevo.ended where id = any (_ids) order by id for update;
    perform from relevo.jobs where id = any (_ids) order by id for update;
    -- Who waited for the lock reads the time anew, or what another has just made ready would seem
    -- to lie in the future, and be retried twice.
    _now := floor(extract(epoch from clock_timestamp()) * 1000)::bigint + _skew;
    select array_agg(id), array_agg(_now + _spread * (place - 1) / cardinality(_ids))
    into _ids, _dues
    from (
        select id, min(place) as place
        from unnest(_ids) with ordinality as n (id, place)
        group by id
        order by id
    ) as named;

    with again as (
        update relevo.jobs as j
        set state = 0, attempt = 0, run_at = w.due, park = null
        from unnest(_ids, _dues) as w (id, due), relevo.jobs as old
        where j.id = w.id and old.id = w.id
            and (j.state in (3, 4) or (j.state = 0 and j.run_at > _now))
        returning j.id, relevo.state_name(old.state, old.run_at, _now) as before
    )
    select coalesce(array_agg(id), '{}'), coalesce(array_agg(before), '{}')
    into _live, _befores
    from again;

    -- A parent waits again for its live children, and is of no use after a fatal one.
    with again as (
        insert into relevo.jobs (
            id, seq, run_at, inserted_at, keep, attempts, state, priority, child, forever,
            keyhash, queue, kind, key, lane, lane_name, thread, cause, flow, node, error_type,
            error_message, error_trace, fingerprint, note, history, meta, result, payload
        )
        select
            r.id, seq, w.due, inserted_at, keep, attempts,
            case
                when exists (select from relevo.edges as e where e.parent = r.id) then 2
                else 0
            end,
            priority, exists (select from relevo.edges as e where e.child = r.id), forever,
            keyhash, queue, kind, key, lane, lane_name, thread, cause, flow, node, error_type,
            error_message, error_trace, fingerprint, note, history, meta, result, payload
        from unnest(_ids, _dues) as w (id, due)
        join relevo.ended as r on r.id = w.id
        where r.state > 5
            and not exists (
                select
                from relevo.edges as e
                join relevo.ended as c on c.id = e.child
                where e.parent = r.id and e.fatal and c.state > 5
            )
        order by keyhash, r.id
        on conflict do nothing
        returning id, state
    )
    select coalesce(array_agg(id), '{}'), array_agg(id) filter (where state = 2)
    into _back, _parents
    from again;
    with gone as (
        delete from relevo.ended
        where id = any (_back)
        returning id, relevo.state_name(state, run_at, _now) as before
    )
    select coalesce(array_agg(id), '{}'), coalesce(array_agg(before), '{}')
    into _back, _ends
    from gone;
    _live := _live || _back;
    if cardinality(_live) = 0 then
        return _live;
    end if;

    if _parents is not null then
        perform relevo.attach_parents(_now, _parents);
    end if;
    perform
        relevo.touch_lanes(array_agg(queue), array_agg(lane), array_agg(run_at)),
        relevo.wake(array_agg(queue))
    from relevo.jobs
    where id = any (_live);
    perform relevo.write_down(
        _now, _who, 'retry', _note,
        array(select replace(id::text, '-', '') from unnest(_live) as d (id)),
        _befores || _ends,
        array(
            select relevo.state_name(j.state, j.run_at, _now)
            from unnest(_live) with ordinality as d (id, place)
            left join relevo.jobs as j on j.id = d.id
            order by place
        )
    );
    return _live;
end $$;

-- Ends jobs that have not ended; answers those.
create function relevo.cancel_jobs(_skew bigint, _ids uuid[], _who text, _note text)
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
    select
        array_agg(id), array_agg(relevo.state_name(state, run_at, _now)),
        array_agg(case when state = 1 then 'cancelled' end)
    into _done, _befores, _outcomes
    from (
        select id, state, run_at
        from relevo.jobs
        where id = any (_ids)
        order by id
        for update
    ) as locked;
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
create function relevo.discard_jobs(_skew bigint, _ids uuid[], _who text, _note text)
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
    select coalesce(array_agg(id), '{}')
    into _held
    from (
        select id
        from relevo.jobs
        where id = any (_ids) and state = 4
        order by id
        for update
    ) as locked;
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

create function relevo.print_of(_payload bytea, _priority smallint, _run_at bigint, _attempts integer)
returns text
language sql immutable
return encode(sha256(
    _payload || convert_to(format(' %s %s %s', _priority, _run_at, _attempts), 'UTF8')
), 'hex');

-- Changes jobs that are not running nor done; null leaves a thing as it is. Answers those changed.
create function relevo.edit_jobs(
    _skew bigint, _ids uuid[], _payloads bytea[], _priorities smallint[], _moments bigint[],
    _attempts integer[], _who text, _note text
) returns uuid[]
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    _now constant bigint := relevo.moment(_skew);
    _done uuid[];
    _befores text[];
    _afters text[];
    _queues text[];
    _lanes uuid[];
    _dues bigint[];
begin
    perform from relevo.ended where id = any (_ids) order by id for update;
    perform from relevo.jobs where id = any (_ids) order by id for update;
    with wish as (
        select *
        from unnest(_ids, _payloads, _priorities, _moments, _attempts)
            as w (id, payload, priority, run_at, attempts)
    ), live as (
        update relevo.jobs as j
        set payload = coalesce(w.payload, j.payload),
            priority = coalesce(w.priority, j.priority),
            run_at = coalesce(w.run_at, j.run_at),
            attempts = coalesce(w.attempts, j.attempts)
        from wish as w, relevo.jobs as old
        where j.id = w.id and old.id = j.id and j.state <> 1
        returning
            j.id, j.queue, j.lane, j.run_at, j.state,
            relevo.print_of(old.payload, old.priority, old.run_at, old.attempts) as before,
            relevo.print_of(j.payload, j.priority, j.run_at, j.attempts) as after
    ), over as (
        update relevo.ended as j
        set payload = coalesce(w.payload, j.payload),
            priority = coalesce(w.priority, j.priority),
            run_at = coalesce(w.run_at, j.run_at),
            attempts = coalesce(w.attempts, j.attempts)
        from wish as w, relevo.ended as old
        where j.id = w.id and old.id = j.id and j.state > 5
        returning
            j.id, j.queue, j.lane, j.run_at, j.state,
            relevo.print_of(old.payload, old.priority, old.run_at, old.attempts) as before,
            relevo.print_of(j.payload, j.priority, j.run_at, j.attempts) as after
    ), changed as (
        select * from live
        union all
        select * from over
    )
    select
        array_agg(id), array_agg(before), array_agg(after),
        array_agg(queue) filter (where state = 0), array_agg(lane) filter (where state = 0),
        array_agg(run_at) filter (where state = 0)
    into _done, _befores, _afters, _queues, _lanes, _dues
    from changed;
    if _done is null then
        return '{}';
    end if;
    if _queues is not null then
        perform relevo.touch_lanes(_queues, _lanes, _dues);
        perform relevo.wake(_queues);
    end if;
    perform relevo.write_down(
        _now, _who, 'edit', _note,
        array(select replace(id::text, '-', '') from unnest(_done) as d (id)), _befores, _afters
    );
    return _done;
end $$;

-- Pauses, drains or opens queues; answers those that were not so already.
create function relevo.set_modes(
    _skew bigint, _queues text[], _mode text, _who text, _note text
) returns text[]
language plpgsql as $$
declare
    _now constant bigint := relevo.moment(_skew);
    _done text[];
    _befores text[];
begin
    insert into relevo.queues (queue)
    select distinct queue from unnest(_queues) as q (queue) order by queue
    on conflict do nothing;
    select array_agg(queue), array_agg(mode)
    into _done, _befores
    from (
        select queue, mode
        from relevo.queues
        where queue = any (_queues) and mode <> _mode
        order by queue
        for update
    ) as locked;
    if _done is null then
        return '{}';
    end if;
    update relevo.queues set mode = _mode where queue = any (_done);
    perform relevo.wake(_done);
    perform relevo.write_down(
        _now, _who, case _mode when 'paused' then 'pause' when 'draining' then 'drain'
                    else 'resume' end,
        _note, _done, _befores, array_fill(_mode, array[cardinality(_done)])
    );
    return _done;
end $$;

-- Live and ended jobs in one shape.
create view relevo.everything as
select
    id, queue, kind, state, payload, priority, attempt, attempts, inserted_at, run_at,
    null::bigint as ended_at, lease_until, worker, claimed_at, key, keyhash, forever, lane_name as lane,
    park,
    thread, cause, meta, flow, node, result, error_type, error_message, error_trace, fingerprint,
    note, history
from relevo.jobs
union all
select
    id, queue, kind, state, payload, priority, attempt, attempts, inserted_at, run_at,
    ended_at, null, worker, claimed_at, key, keyhash, forever, lane_name, null,
    thread, cause, meta, flow, node, result, error_type, error_message, error_trace, fingerprint,
    note, history
from relevo.ended;
