-- How jobs end, and what their end means for parents and lanes: the parts that the verbs in the
-- next files are made of.

-- Wakes the workers of these queues when the transaction commits.
create function relevo.wake(_queues text[]) returns void
language plpgsql as $$
begin
    perform pg_notify('relevo.jobs', queue)
    from (select distinct queue from unnest(_queues) as q (queue) where queue is not null) as q;
end $$;

-- One line of history, as JSON.
create function relevo.line(
    _attempt integer, _outcome text, _began bigint, _ended bigint, _worker text,
    _type text, _message text, _trace text, _fingerprint text
) returns text
language sql immutable
return json_build_array(
    _attempt, _outcome, coalesce(_began, _ended), _ended, coalesce(_worker, ''),
    case
        when _type is not null
        then json_build_object(
            'type', _type, 'message', coalesce(_message, ''), 'trace', coalesce(_trace, ''),
            'fingerprint', coalesce(_fingerprint, '')
        )
    end
)::text;

-- The history with one more line, never more than fifty.
create function relevo.told(_history text[], _line text) returns text[]
language sql immutable
return coalesce(_history[greatest(1, cardinality(_history) - 48):], '{}') || _line;

-- Sees to it that lanes which got work are looked at from `_dues` on, and keeps them from being
-- put to sleep or removed until the transaction has ended.
create function relevo.touch_lanes(_queues text[], _lanes uuid[], _dues bigint[]) returns void
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
    ) as w
    where l.queue = w.queue and l.lane = w.lane and l.due > w.due;
end $$;

-- Moves live jobs, which the caller has locked, to the ended ones. An outcome of null adds no line
-- of history; empty arrays stand for arrays of nulls.
create function relevo.move_ended(
    _now bigint, _ids uuid[], _states smallint[], _outcomes text[], _types text[],
    _messages text[], _traces text[], _fingerprints text[], _results bytea[], _notes text[]
) returns void
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    _queues text[];
    _lanes uuid[];
begin
    with ending as materialized (
        select *
        from unnest(
            _ids, _states, _outcomes, _types, _messages, _traces, _fingerprints, _results, _notes
        ) as e (id, state, outcome, type, message, trace, fingerprint, result, note)
    ), gone as (
        delete from relevo.jobs as j
        using ending as e
        where j.id = e.id
        returning
            j.*, e.state as last, e.outcome, e.type, e.message, e.trace, e.fingerprint as print,
            e.result as answer, e.note as remark
    ), stays as (
        insert into relevo.ended (
            id, seq, run_at, inserted_at, keep, claimed_at, ended_at, attempt, attempts, state,
            priority, forever, keyhash, queue, kind, key, lane, lane_name, worker, thread, cause, flow, node,
            error_type, error_message, error_trace, fingerprint, note, history, meta, result,
            payload
        )
        select
            id, seq, run_at, inserted_at, keep, claimed_at, _now, attempt, attempts, last,
            priority, forever, keyhash, queue, kind, key, lane, lane_name, worker, thread, cause, flow, node,
            coalesce(type, error_type),
            case when type is null then error_message else message end,
            case when type is null then error_trace else trace end,
            case
                when last = 6 then coalesce(case when type is null then fingerprint else print end, '')
                when type is null then fingerprint
                else print
            end,
            coalesce(remark, note),
            case
                when outcome is null then history
                else relevo.told(history, relevo.line(
                    attempt, outcome, claimed_at, _now, worker, type, message, trace, print
                ))
            end,
            meta, coalesce(answer, result), payload
        from gone
        where last <> 5 or keep > 0 or child
    )
    select array_agg(queue), array_agg(lane)
    into _queues, _lanes
    from gone
    where lane is not null or gated;
    if _queues is not null then
        -- A lane whose head has gone goes on, and a queue under a limit has room again.
        perform relevo.touch_lanes(
            _queues, _lanes, array_fill(_now, array[cardinality(_queues)])
        );
        perform relevo.wake(_queues);
    end if;
end $$;

-- Tells parents that these children have ended: releases those that waited for nothing else, and
-- ends those for which a child's bad end is fatal, and so on upwards.
create function relevo.conclude_children(_now bigint, _ids uuid[], _states smallint[]) returns void
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    _parents uuid[];
    _counts integer[];
    _culprits uuid[];
    _failed uuid[];
    _messages text[];
    _queues text[];
    _lanes uuid[];
    _dues bigint[];
begin
    while cardinality(_ids) > 0 loop
        with closed as (
            update relevo.edges as e
            set open = false
            from unnest(_ids, _states) as c (id, state)
            where e.child = c.id and e.open
            returning e.parent, case when e.fatal and c.state > 5 then c.id end as culprit
        ), counted as (
            select parent, count(*)::integer as n, (array_remove(array_agg(culprit), null))[1] as culprit
            from closed
            group by parent
        )
        select array_agg(parent), array_agg(n), array_agg(culprit)
        into _parents, _counts, _culprits
        from counted;
        exit when _parents is null;

        -- In the order of their ids: two settles with children of the same parents must not cross.
        perform
        from relevo.jobs
        where id = any (_parents)
        order by id
        for update;

        select
            array_agg(p.id),
            array_agg(format('waited for %s of %s, which ended %s',
                replace(w.culprit::text, '-', ''), coalesce(c.queue, '?'),
                case when c.state = 7 then 'cancelled' else 'dead' end))
        into _failed, _messages
        from unnest(_parents, _culprits) as w (id, culprit)
        join relevo.jobs as p on p.id = w.id and p.state = 2
        left join relevo.ended as c on c.id = w.culprit
        where w.culprit is not null;

        with released as (
            update relevo.jobs as p
            set pending = p.pending - w.n,
                state = case when p.pending > w.n then 2 else 0 end,
                run_at = case when p.pending > w.n then p.run_at else greatest(p.run_at, _now) end
            from unnest(_parents, _counts, _culprits) as w (id, n, culprit)
            where p.id = w.id and p.state = 2 and w.culprit is null
            returning p.queue, p.lane, p.run_at, p.state
        )
        select array_agg(queue), array_agg(lane), array_agg(run_at)
        into _queues, _lanes, _dues
        from released
        where state = 0;
        if _queues is not null then
            perform relevo.touch_lanes(_queues, _lanes, _dues);
            perform relevo.wake(_queues);
        end if;

        if _failed is not null then
            perform relevo.move_ended(
                _now, _failed, array_fill(6::smallint, array[cardinality(_failed)]), '{}',
                array_fill('ChildFailed'::text, array[cardinality(_failed)]), _messages, '{}',
                array_fill('ChildFailed'::text, array[cardinality(_failed)]), '{}', '{}'
            );
        end if;
        _ids := _failed;
        _states := array_fill(6::smallint, array[coalesce(cardinality(_failed), 0)]);
    end loop;
end $$;

-- Counts which children of these parents are live, and makes the parents wait for them, ready, or
-- dead. The parents are live, waiting, and ours.
create function relevo.attach_parents(_now bigint, _parents uuid[]) returns void
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    _failed uuid[];
    _messages text[];
    _queues text[];
    _lanes uuid[];
    _dues bigint[];
begin
    -- A child that is ending at this moment is waited for, and then seen as ended.
    perform
    from relevo.jobs
    where id in (select child from relevo.edges where parent = any (_parents))
    order by id
    for no key update;

    update relevo.jobs
    set child = true
    where id in (select child from relevo.edges where parent = any (_parents)) and not child;

    update relevo.edges as e
    set open = exists (select from relevo.jobs as j where j.id = e.child)
    where e.parent = any (_parents);

    select array_agg(parent), array_agg(message)
    into _failed, _messages
    from (
        select distinct on (e.parent)
            e.parent,
            format('waited for %s of %s, which ended %s', replace(c.id::text, '-', ''), c.queue,
                   case when c.state = 7 then 'cancelled' else 'dead' end) as message
        from relevo.edges as e
        join relevo.ended as c on c.id = e.child
        where e.parent = any (_parents) and e.fatal and c.state > 5
        order by e.parent, e.ord
    ) as bad;

    with counted as (
        update relevo.jobs as p
        set pending = n,
            state = case when n > 0 then 2 else 0 end,
            run_at = greatest(p.run_at, _now)
        from (
            select id, (select count(*) from relevo.edges as e where e.parent = id and e.open) as n
            from unnest(_parents) as w (id)
        ) as w
        where p.id = w.id and not (p.id = any (coalesce(_failed, '{}')))
        returning p.queue, p.lane, p.run_at, p.state
    )
    select array_agg(queue), array_agg(lane), array_agg(run_at)
    into _queues, _lanes, _dues
    from counted
    where state = 0;
    if _queues is not null then
        perform relevo.touch_lanes(_queues, _lanes, _dues);
        perform relevo.wake(_queues);
    end if;

    if _failed is not null then
        perform relevo.move_ended(
            _now, _failed, array_fill(6::smallint, array[cardinality(_failed)]), '{}',
            array_fill('ChildFailed'::text, array[cardinality(_failed)]), _messages, '{}',
            array_fill('ChildFailed'::text, array[cardinality(_failed)]), '{}', '{}'
        );
        perform relevo.conclude_children(
            _now, _failed, array_fill(6::smallint, array[cardinality(_failed)])
        );
    end if;
end $$;
