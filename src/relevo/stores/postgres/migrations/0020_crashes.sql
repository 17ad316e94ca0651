-- A worker's death is not its jobs' failure. A job has a suspicion (0 to 3: none, lost, watched,
-- alone) and the number of its crashes; null stands for 0. Those of a job that has ended are 0.
--
-- Functions that take or give more than before have the old form beside the new one, for processes
-- that were started before.
alter table relevo.jobs
    add column suspicion smallint,
    add column crashes integer;

-- Answers the places of those whose lease is no longer ours. Arrays run in parallel; an empty one
-- stands for nulls, and a state of null is done.
create function relevo.settle_jobs(
    _skew bigint, _ids uuid[], _tokens bigint[], _results bytea[], _states smallint[],
    _delays bigint[], _spends boolean[], _types text[], _messages text[], _traces text[],
    _fingerprints text[], _parks text[], _planned boolean[], _released boolean[],
    _suspicions smallint[], _crashes integer[]
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
    _freed text[];
    _hashes uuid[];
    _left uuid[];
    _spans bigint[];
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
            payload, turn, digest, remember, latest
        )
        select
            id, seq, run_at, inserted_at, keep, claimed_at, _now, attempt, attempts, 5,
            priority, forever, keyhash, queue, kind, key, lane, lane_name, worker, thread, cause, flow, node,
            error_type, error_message, error_trace, fingerprint, note, history, meta,
            coalesce(answer, result), payload, turn, digest, remember, latest
        from gone
        where keep > 0
    )
    select
        coalesce(array_agg(place), '{}'), array_agg(queue) filter (where gated),
        array_agg(queue) filter (where latest), array_agg(keyhash) filter (where latest),
        array_agg(id) filter (where keep <= 0 and (remember > 0 or digest is not null)),
        array_agg(remember) filter (where keep <= 0
                                          and (remember > 0 or digest is not null))
    into _settled, _woken, _freed, _hashes, _left, _spans
    from gone;
    if _left is not null then
        perform relevo.forget_jobs(_now, _left, _spans);
    end if;
    if _freed is not null then
        perform relevo.free_latest(_freed, _hashes);
    end if;
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
        -- A job that is given back before it has ever begun is as it was before it was claimed.
        set state = case
                when e.released and j.history is null
                then relevo.open_state(j.latest, j.lane, null)
                else e.state
            end,
            claimed_at = case
                when e.released and j.history is null then null
                else j.claimed_at
            end,
            -- A job handed back unspent keeps its place in the line.
            run_at = case
                when coalesce(e.delay, 0) = 0 and not coalesce(e.spend, true) then j.run_at
                else _now + coalesce(e.delay, 0)
            end,
            attempt = case
                when coalesce(e.spend, true) then j.attempt
                when e.result is null then j.attempt - 1
                else 0  -- a turn that is over: the next one has failed at nothing yet
            end,
            turn = case
                when e.planned and e.state = 0 then coalesce(j.turn, 0) + 1
                else j.turn
            end,
            park = case when e.state = 3 then e.park end,
            result = coalesce(e.result, j.result),
            suspicion = nullif(e.suspicion, 0),
            crashes = nullif(e.crashes, 0),
            history = case when e.released then j.history else relevo.told(j.history, relevo.line(
                j.attempt,
                case
                    when e.state = 3 then 'parked'
                    when e.state = 4 then 'held'
                    when coalesce(e.spend, true) then 'retry'
                    else 'snooze'
                end,
                j.claimed_at, _now, j.worker, e.type, e.message, e.trace, e.fingerprint
            )) end,
            error_type = coalesce(e.type, j.error_type),
            error_message = case when e.type is null then j.error_message else e.message end,
            error_trace = case when e.type is null then j.error_trace else e.trace end,
            fingerprint = case when e.type is null then j.fingerprint else e.fingerprint end,
            token = null, worker = null, lease_until = null, gated = false
        from unnest(
            _ids, _results, _states, _delays, _spends, _types, _messages, _traces, _fingerprints,
            _parks, _planned, _released, _suspicions, _crashes
        ) with ordinality as e (
            id, result, state, delay, spend, type, message, trace, fingerprint, park,
            planned, released, suspicion, crashes, place
        )
        where e.place = any (_mine) and j.id = e.id and e.state < 5
        returning
            j.queue, j.lane, j.run_at,
            case when j.latest and j.claimed_at is null then j.keyhash end as freed
    )
    select
        array_agg(queue), array_agg(lane), array_agg(run_at),
        array_agg(queue) filter (where freed is not null),
        array_agg(freed) filter (where freed is not null)
    into _woken, _lanes, _dues, _freed, _hashes
    from back;
    if _freed is not null then
        perform relevo.free_latest(_freed, _hashes);
    end if;
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

-- For processes that were started before: their endings leave a job unsuspected.
create or replace function relevo.settle_jobs(
    _skew bigint, _ids uuid[], _tokens bigint[], _results bytea[], _states smallint[],
    _delays bigint[], _spends boolean[], _types text[], _messages text[], _traces text[],
    _fingerprints text[], _parks text[], _planned boolean[]
) returns bigint[]
language sql
return relevo.settle_jobs(
    _skew, _ids, _tokens, _results, _states, _delays, _spends, _types, _messages, _traces,
    _fingerprints, _parks, _planned, '{}'::boolean[], '{}'::smallint[], '{}'::integer[]
);

-- Takes back jobs whose lease has lapsed, or all of one worker; each is ready, and its run has spent
-- no attempt. Of those of a worker, the lost ones were running; the others had not begun, and are
-- given back as they were. A last row without an id says in how many milliseconds the next lease
-- lapses, if one is left.
create function relevo.rescue_jobs(
    _skew bigint, _limit integer, _worker text, _lost uuid[], _types text[], _messages text[],
    _traces text[], _fingerprints text[], _suspicions smallint[], _excused boolean[]
) returns table (id uuid, queue text, worker text, lapse bigint)
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
    _queues text[];
    _lanes uuid[];
    _dues bigint[];
    _freed text[];
    _hashes uuid[];
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
    select id, queue, worker, null::bigint
    from relevo.jobs
    where id = any (_ids);
    return query
    select null::uuid, null::text, null::text, (
        select greatest(lease_until - _now, 0)
        from relevo.jobs
        where state = 1 and not id = any (_ids)
        order by lease_until
        limit 1
    );
    if cardinality(_ids) = 0 then
        return;
    end if;

    with back as (
        update relevo.jobs as j
        set state = case
                when l.type is null and j.history is null
                then relevo.open_state(j.latest, j.lane, null)
                else 0
            end,
            claimed_at = case
                when l.type is null and j.history is null then null
                else j.claimed_at
            end,
            attempt = j.attempt - 1,
            -- One more, and at least what the loss says; 0 leaves it.
            suspicion = case
                when coalesce(l.suspicion, 0) = 0 then j.suspicion
                else least(greatest(coalesce(j.suspicion, 0) + 1, l.suspicion), 3)
            end,
            crashes = case when l.excused and j.crashes > 0 then j.crashes - 1 else j.crashes end,
            history = case when l.type is null then j.history else relevo.told(j.history, relevo.line(
                j.attempt, 'rescued', j.claimed_at, _now, j.worker, l.type, l.message, l.trace,
                l.fingerprint
            )) end,
            error_type = coalesce(l.type, j.error_type),
            error_message = case when l.type is null then j.error_message else l.message end,
            error_trace = case when l.type is null then j.error_trace else l.trace end,
            fingerprint = case when l.type is null then j.fingerprint else l.fingerprint end,
            token = null, worker = null, lease_until = null, gated = false
        from unnest(_ids) as r (id)
        join relevo.jobs as old on old.id = r.id
        left join lateral (
            select type, message, trace, fingerprint, suspicion, excused
            from unnest(
                _lost, _types, _messages, _traces, _fingerprints, _suspicions, _excused
            ) as n (id, type, message, trace, fingerprint, suspicion, excused)
            where _worker is not null and n.id = r.id
            union all
            -- Whether its run had begun, nobody knows: alone at most, and never as a crash.
            select
                'WorkerLost',
                format(
                    'the worker %s went silent; whether it had begun this run is not known',
                    old.worker
                ),
                '', 'WorkerLost', 1::smallint, false
            where _worker is null
        ) as l on true
        where j.id = r.id
        returning
            j.queue, j.lane, j.run_at,
            case when j.latest and j.claimed_at is null then j.keyhash end as freed
    )
    select
        array_agg(queue), array_agg(lane), array_agg(run_at),
        array_agg(queue) filter (where freed is not null),
        array_agg(freed) filter (where freed is not null)
    into _queues, _lanes, _dues, _freed, _hashes
    from back;
    if _freed is not null then
        perform relevo.free_latest(_freed, _hashes);
    end if;
    perform relevo.touch_lanes(_queues, _lanes, _dues);
    perform relevo.wake(_queues);
end $$;

-- For processes that were started before: they hear that no rescued job has ended.
create or replace function relevo.rescue_jobs(_skew bigint, _limit integer, _worker text)
returns table (id uuid, queue text, worker text, state smallint, lapse bigint)
language sql
as $$
select id, queue, worker, 0::smallint, lapse
from relevo.rescue_jobs(_skew, _limit, _worker, '{}', '{}', '{}', '{}', '{}', '{}', '{}')
$$;

-- Counts a crash for each job that is about to run alone; answers the places of those whose lease
-- still is ours.
create function relevo.isolate_jobs(_ids uuid[], _tokens bigint[], _crashes integer[])
returns bigint[]
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    _counted bigint[];
begin
    with counted as (
        update relevo.jobs as j
        set crashes = nullif(e.crashes, 0)
        from unnest(_ids, _tokens, _crashes) with ordinality as e (id, token, crashes, place)
        where j.id = e.id and j.token = e.token and j.state + 0 = 1
        returning e.place
    )
    select coalesce(array_agg(place), '{}') into _counted from counted;
    return _counted;
end $$;

-- Takes up to `_count` due jobs, shared over the queues, which come in the order of their turns.
-- If there were fewer, a last row without an id says in `inserted_at` when the next one is due.
create function relevo.claim_leases(
    _skew bigint, _queues text[], _limits integer[], _lane_limits integer[], _rates integer[],
    _spans bigint[], _lane_rates integer[], _lane_spans bigint[], _ordered boolean[],
    _count integer, _token bigint, _worker text, _lease bigint, _bursts integer[]
) returns table (
    id uuid, queue text, kind text, payload bytea, attempt integer, attempts integer, key text,
    lane text, thread text, cause text, meta bytea, flow text, node text, keep bigint,
    inserted_at bigint, claimed_at bigint, priority smallint, run_at bigint, seq bigint,
    turn integer, suspicion smallint, crashes integer
)
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    _now bigint := relevo.moment(_skew);
    _left integer := _count;
    _plain text[];
    _strangers text[];
    _turned integer[];
    _open integer;
    _share integer;
    _taken integer;
    _one record;
    _got record;
    _ids uuid[] := '{}';
    _due bigint;
begin
    select
        array_agg(w.queue order by w.place) filter (where not w.turned),
        array_agg(w.place order by w.place) filter (where w.turned),
        array_agg(w.queue) filter (where not w.known),
        count(*)
    into _plain, _turned, _strangers, _open
    from (
        select
            w.queue, w.place, q.queue is not null as known,
            w.bounds > 0
            or exists (select from relevo.lanes as l where l.queue = w.queue)
            or exists (select from relevo.jobs as f where f.queue = w.queue and f.state = -1)
                as turned
        from (
            select n.queue, n.place, num_nonnulls(n.most, n.lane_most, n.rate, n.lane_rate)
                                     + coalesce(n.ordered, false)::integer as bounds
            from unnest(_queues, _limits, _lane_limits, _rates, _lane_rates, _ordered)
                with ordinality as n (queue, most, lane_most, rate, lane_rate, ordered, place)
        ) as w
        left join relevo.queues as q on q.queue = w.queue
        where q.mode is distinct from 'paused'
    ) as w;

    if _turned is not null then
        -- One by one in the order of their names: claims with other turns must not cross.
        insert into relevo.queues (queue)
        select queue
        from unnest(_queues) with ordinality as w (queue, place)
        where place = any (_turned)
        order by queue
        on conflict do nothing;
        perform
        from relevo.queues
        where queue in (
            select queue
            from unnest(_queues) with ordinality as w (queue, place)
            where place = any (_turned)
        )
        order by queue
        for update;
        -- Claims of these come one after another, and so do their moments: a rate counts those
        -- at which jobs are given out, not those at which they were asked for.
        _now := floor(extract(epoch from clock_timestamp()) * 1000)::bigint + _skew;
    end if;

    -- At first an even share for each queue, then what is left for whoever has more.
    _share := ceil(_count::numeric / greatest(_open, 1));
    for _round in 1..2 loop
        if _plain is not null and _left > 0 then
            return query
            update relevo.jobs as j
            set state = 1, attempt = attempt + 1, claimed_at = _now, lease_until = _now + _lease,
                token = _token, worker = _worker, gated = false
            where j.id = any (array(
                select picked.id
                from unnest(_plain) as w (queue)
                cross join lateral (
                    select first.id
                    from (values (0::smallint), (1::smallint), (2::smallint)) as p (priority)
                    cross join lateral (
                        select r.id
                        from relevo.jobs as r
                        where r.queue = w.queue and r.state = 0 and r.lane is null
                            and r.priority = p.priority and r.run_at <= _now
                        order by r.run_at, r.seq
                        limit _share
                        for update skip locked
                    ) as first
                    limit _share
                ) as picked
                limit _left
            ))
            returning
                id, queue, kind, payload, attempt, attempts, key, lane_name, thread, cause, meta, flow,
                node, keep, inserted_at, claimed_at, priority, run_at, seq, turn, suspicion,
                crashes;
            get diagnostics _taken = row_count;
            _left := _left - _taken;
        end if;
        if _turned is not null and _left > 0 then
            for _one in
                select *
                from unnest(
                    _queues, _limits, _lane_limits, _rates, _spans, _lane_rates, _lane_spans,
                    _ordered, _bursts
                ) with ordinality as n (
                    queue, most, lane_most, rate, span, lane_rate, lane_span, ordered, burst,
                    place
                )
                where place = any (_turned)
                order by place
            loop
                select * into _got
                from relevo.claim_turns(
                    _now, _one.queue, least(_share, _left), _one.most, _one.lane_most, _one.rate,
                    _one.span, _one.lane_rate, _one.lane_span, coalesce(_one.ordered, false),
                    _token, _worker, _lease, _one.burst
                );
                _ids := _ids || _got.ids;
                _left := _left - cardinality(_got.ids);
                _due := least(_due, case when _got.due > _now then _got.due end);
                exit when _left = 0;
            end loop;
        end if;
        exit when _left = 0 or _share >= _count;
        _share := _left;
    end loop;

    if cardinality(_ids) > 0 then
        return query
        select
            id, queue, kind, payload, attempt, attempts, key, lane_name, thread, cause, meta, flow,
            node, keep, inserted_at, claimed_at, priority, run_at, seq, turn, suspicion, crashes
        from relevo.jobs
        where id = any (_ids);
    end if;

    if _left < _count and _strangers is not null then
        -- A queue that has given a job is known for good, even when the job leaves no trace.
        insert into relevo.queues (queue)
        select s.queue
        from unnest(_strangers) as s (queue)
        where exists (
            select
            from relevo.jobs as j
            where j.state = 1 and j.lease_until = _now + _lease and j.token = _token
                and j.queue = s.queue
        )
        order by s.queue
        on conflict do nothing;
    end if;

    if _left > 0 then
        select least(_due, min(least(plain.run_at, fresh.run_at, asleep.due)))
        into _due
        from unnest(_queues) with ordinality as w (queue, place)
        left join lateral (
            select min(next.run_at) as run_at
            from (values (0::smallint), (1::smallint), (2::smallint)) as p (priority)
            cross join lateral (
                select r.run_at
                from relevo.jobs as r
                where r.queue = w.queue and r.state = 0 and r.lane is null
                    and r.priority = p.priority and r.run_at > _now
                order by r.run_at
                limit 1
            ) as next
        ) as plain on true
        left join lateral (
            select min(next.run_at) as run_at
            from (values (0::smallint), (1::smallint), (2::smallint)) as p (priority)
            cross join lateral (
                select r.run_at
                from relevo.jobs as r
                where r.queue = w.queue and r.state = -1 and r.priority = p.priority
                    and r.run_at > _now
                order by r.run_at
                limit 1
            ) as next
        ) as fresh on true
        left join lateral (
            select l.due
            from relevo.lanes as l
            where l.queue = w.queue and l.due > _now
            order by l.due
            limit 1
        ) as asleep on true
        where w.queue = any (_plain) or w.place = any (_turned);
        return query
        select
            null::uuid, null::text, null::text, null::bytea, null::integer, null::integer,
            null::text, null::text, null::text, null::text, null::bytea, null::text, null::text,
            null::bigint, _due - _now, null::bigint, null::smallint, null::bigint, null::bigint,
            null::integer, null::smallint, null::integer
        where _due < 9000000000000000000;
    end if;
end $$;

-- For processes that were started before.
create or replace function relevo.claim_jobs(
    _skew bigint, _queues text[], _limits integer[], _lane_limits integer[], _rates integer[],
    _spans bigint[], _lane_rates integer[], _lane_spans bigint[], _ordered boolean[],
    _count integer, _token bigint, _worker text, _lease bigint, _bursts integer[]
) returns table (
    id uuid, queue text, kind text, payload bytea, attempt integer, attempts integer, key text,
    lane text, thread text, cause text, meta bytea, flow text, node text, keep bigint,
    inserted_at bigint, claimed_at bigint, priority smallint, run_at bigint, seq bigint,
    turn integer
)
language sql
as $$
select
    id, queue, kind, payload, attempt, attempts, key, lane, thread, cause, meta, flow, node, keep,
    inserted_at, claimed_at, priority, run_at, seq, turn
from relevo.claim_leases(
    _skew, _queues, _limits, _lane_limits, _rates, _spans, _lane_rates, _lane_spans, _ordered,
    _count, _token, _worker, _lease, _bursts
)
$$;

-- Makes jobs ready again with fresh attempts, and unsuspected; answers those for which it could.
create or replace function relevo.retry_jobs(
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
        set state = case when j.state < 0 then relevo.open_state(j.latest, j.lane, j.claimed_at)
                         else 0 end,
            attempt = 0, run_at = w.due, park = null, suspicion = null, crashes = null
        from unnest(_ids, _dues) as w (id, due), relevo.jobs as old
        where j.id = w.id and old.id = w.id
            and (j.state in (-2, 3, 4) or (j.state in (-1, 0) and j.run_at > _now))
            -- One that has never started gives way to a newer one; one that has started may
            -- go on, and the newer one waits for its end.
            and not (j.latest is true and j.claimed_at is null and exists (
                select
                from relevo.jobs as n
                where n.queue = j.queue and n.keyhash = j.keyhash and n.latest and n.seq > j.seq
            ))
        returning j.id, relevo.state_name(old.state, old.run_at, _now) as before
    )
    select coalesce(array_agg(id), '{}'), coalesce(array_agg(before), '{}')
    into _live, _befores
    from again;

    -- A parent waits again for its live children, and is of no use after a fatal one.
    with again as (
        insert into relevo.jobs (
            id, seq, run_at, inserted_at, keep, claimed_at, turn, digest, remember, latest,
            attempts, state, priority, child, forever,
            keyhash, queue, kind, key, lane, lane_name, thread, cause, flow, node, error_type,
            error_message, error_trace, fingerprint, note, history, meta, result, payload
        )
        select
            r.id, seq, w.due, inserted_at, keep, claimed_at, turn, digest, remember, latest,
            attempts,
            case
                when exists (select from relevo.edges as e where e.parent = r.id) then 2
                else relevo.open_state(latest, lane, claimed_at)
            end,
            priority, exists (select from relevo.edges as e where e.child = r.id), forever,
            keyhash, queue, kind, key, lane, lane_name, thread, cause, flow, node, error_type,
            error_message, error_trace, fingerprint, note, history, meta, result, payload
        from unnest(_ids, _dues) as w (id, due)
        join relevo.ended as r on r.id = w.id
        where r.state > 5
            -- What is newer has started, or is about to.
            and not r.outdated
            and not (r.latest is true and exists (
                select
                from relevo.jobs as n
                where n.queue = r.queue and n.keyhash = r.keyhash and n.latest and n.seq > r.seq
            ))
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

-- Live and ended jobs in one shape.
create or replace view relevo.everything as
select
    id, queue, kind, state, payload, priority, attempt, attempts, inserted_at, run_at,
    null::bigint as ended_at, lease_until, worker, claimed_at, key, keyhash, forever, lane_name as lane,
    park,
    thread, cause, meta, flow, node, result, error_type, error_message, error_trace, fingerprint,
    note, history, coalesce(turn, 0) as turn, coalesce(remember, 0) as remember,
    latest is true as latest, coalesce(suspicion, 0::smallint) as suspicion,
    coalesce(crashes, 0) as crashes
from relevo.jobs
union all
select
    id, queue, kind, state, payload, priority, attempt, attempts, inserted_at, run_at,
    ended_at, null, worker, claimed_at, key, keyhash, forever, lane_name, null,
    thread, cause, meta, flow, node, result, error_type, error_message, error_trace, fingerprint,
    note, history, coalesce(turn, 0), coalesce(remember, 0), latest is true, 0::smallint, 0
from relevo.ended;
