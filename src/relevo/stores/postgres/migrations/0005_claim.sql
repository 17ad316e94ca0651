-- Takes due jobs. The plain way is for queues without limits and jobs without lanes; the other way
-- takes turns lane by lane and keeps limits, one claim at a time per queue.

-- How many tokens a bucket has that is full again at `_full_at`: `_rate` per `_span` milliseconds.
create function relevo.tokens(_now bigint, _full_at double precision, _rate integer, _span bigint)
returns integer
language sql immutable
return floor(
    (_now + _span - greatest(_full_at, _now)) * _rate / _span + 0.000001
)::integer;

-- When such a bucket has one token.
create function relevo.token_at(_full_at double precision, _rate integer, _span bigint)
returns bigint
language sql immutable
return ceil(_full_at - _span + _span::double precision / _rate - 0.001)::bigint;

-- Leases jobs, which the caller has locked.
create function relevo.lease_jobs(
    _now bigint, _ids uuid[], _gated boolean, _token bigint, _worker text, _lease bigint
) returns void
language plpgsql
set enable_seqscan = off
as $$
begin
    update relevo.jobs
    set state = 1, attempt = attempt + 1, claimed_at = _now, lease_until = _now + _lease,
        token = _token, worker = _worker, gated = _gated
    where id = any (_ids);
end $$;

-- Due jobs of a queue that have no lane, locked; high priority first, then oldest first.
create function relevo.pick_plain(_now bigint, _queue text, _room integer) returns uuid[]
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
begin
    return array(
        select j.id
        from (values (0::smallint), (1::smallint), (2::smallint)) as p (priority)
        cross join lateral (
            select id
            from relevo.jobs
            where queue = _queue and state = 0 and lane is null and priority = p.priority
                and run_at <= _now
            order by run_at, seq
            limit _room
            for update skip locked
        ) as j
        limit _room
    );
end $$;

-- How many jobs a lane may give, of `_most`.
create function relevo.lane_room(
    _now bigint, _queue text, _lane uuid, _most integer, _lane_limit integer, _lane_rate integer,
    _lane_span bigint
) returns integer
language plpgsql
set enable_seqscan = off
as $$
begin
    if _lane_limit is not null then
        _most := least(_most, _lane_limit - (
            select count(*)
            from relevo.jobs
            where queue = _queue and lane = _lane and state = 1 and gated
        ));
    end if;
    if _lane_rate is not null then
        _most := least(_most, (
            select relevo.tokens(_now, full_at, _lane_rate, _lane_span)
            from relevo.lanes
            where queue = _queue and lane = _lane
        ));
    end if;
    return _most;
end $$;

-- Takes up to `_room` jobs of a queue with lanes or limits, and says when to look again.
create function relevo.claim_turns(
    _now bigint, _queue text, _room integer, _limit integer, _lane_limit integer, _rate integer,
    _span bigint, _lane_rate integer, _lane_span bigint, _ordered boolean, _token bigint,
    _worker text, _lease bigint,
    out ids uuid[], out due bigint
)
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
as $$
declare
    _gated constant boolean := _limit is not null or _lane_limit is not null or _ordered;
    _book relevo.queues;
    _lanes uuid[];
    _after bigint := 0;
    _last bigint;
    _per integer;
    _picked uuid[];
    _givers uuid[];
    _quiet uuid[];
begin
    ids := '{}';
    -- The caller holds this row: claims of a queue go one by one, limits are counted, not guessed.
    select * into _book from relevo.queues where queue = _queue;

    if _ordered then
        if not _book.ordered then
            update relevo.queues set ordered = true where queue = _queue;
        end if;
        if exists (
            select from relevo.jobs where queue = _queue and state = 0 and lane is null
        ) then
            update relevo.jobs
            set lane = '00000000-0000-0000-0000-000000000000'
            where queue = _queue and state = 0 and lane is null;
            perform relevo.touch_lanes(
                array[_queue], array['00000000-0000-0000-0000-000000000000'::uuid], array[_now]
            );
        end if;
    end if;
    if _limit is not null then
        _room := least(_room, _limit - (
            select count(*) from relevo.jobs where queue = _queue and state = 1 and gated
        ));
    end if;
    if _rate is not null then
        _room := least(_room, relevo.tokens(_now, _book.full_at, _rate, _span));
    end if;
    if _room <= 0 then
        due := relevo.token_at(_book.full_at, _rate, _span);
        return;
    end if;

    update relevo.lanes
    set turn = nextval('relevo.turns'), due = null
    where queue = _queue and lane = any (array(
        select l.lane
        from relevo.lanes as l
        where l.queue = _queue and l.due <= _now
        order by l.due
        limit 1000
        for no key update skip locked
    ));

    if not _ordered then
        -- Half of the room at first, if there are lanes that want their share.
        ids := relevo.pick_plain(_now, _queue, case
            when exists (select from relevo.lanes as l where l.queue = _queue and turn is not null)
            then (_room + 1) / 2
            else _room
        end);
        perform relevo.lease_jobs(_now, ids, _gated, _token, _worker, _lease);
    end if;

    while cardinality(ids) < _room loop
        select array_agg(lane order by turn), max(turn)
        into _lanes, _last
        from (
            select l.lane, l.turn
            from relevo.lanes as l
            where l.queue = _queue and l.turn > _after
            order by l.turn
            limit greatest(_room - cardinality(ids), 20)
            for no key update skip locked
        ) as awake;
        exit when _lanes is null;
        _after := _last;
        _per := ceil((_room - cardinality(ids))::numeric / cardinality(_lanes));

        if _ordered then
            select array_agg(id), array_agg(lane)
            into _picked, _givers
            from (
                select j.id, w.lane
                from unnest(_lanes) with ordinality as w (lane, place)
                cross join lateral (
                    select h.id
                    from relevo.jobs as h
                    where h.queue = _queue and h.lane = w.lane
                    order by h.seq
                    limit 1
                ) as head
                join relevo.jobs as j on j.id = head.id
                where j.state = 0 and j.run_at <= _now
                    and relevo.lane_room(
                        _now, _queue, w.lane, 1, _lane_limit, _lane_rate, _lane_span
                    ) > 0
                order by w.place
                limit _room - cardinality(ids)
                for update of j skip locked
            ) as chosen;
        else
            select array_agg(id), array_agg(lane)
            into _picked, _givers
            from (
                select candidate.id, candidate.lane
                from (
                    select j.id, w.lane, w.place, row_number() over (partition by w.place) as nth
                    from unnest(_lanes) with ordinality as w (lane, place)
                    cross join lateral (
                        select case
                            when _lane_limit is null and _lane_rate is null then _per
                            else relevo.lane_room(
                                _now, _queue, w.lane, _per, _lane_limit, _lane_rate, _lane_span
                            )
                        end as most
                    ) as allowed
                    cross join lateral (
                        select first.id
                        from (values (0::smallint), (1::smallint), (2::smallint)) as p (priority)
                        cross join lateral (
                            select r.id
                            from relevo.jobs as r
                            where r.queue = _queue and r.lane = w.lane and r.state = 0
                                and r.priority = p.priority and r.run_at <= _now
                            order by r.run_at, r.seq
                            limit greatest(allowed.most, 0)
                            for update skip locked
                        ) as first
                        limit greatest(allowed.most, 0)
                    ) as j
                ) as candidate
                order by candidate.nth, candidate.place
                limit _room - cardinality(ids)
            ) as chosen;
        end if;

        if _picked is not null then
            perform relevo.lease_jobs(_now, _picked, _gated, _token, _worker, _lease);
            ids := ids || _picked;
            -- To the end of the line, in the order in which they were served.
            update relevo.lanes as l
            set turn = g.turn,
                full_at = case
                    when _lane_rate is null then l.full_at
                    else greatest(l.full_at, _now)
                         + g.taken * _lane_span::double precision / _lane_rate
                end
            from (
                select served.lane, served.taken, nextval('relevo.turns') as turn
                from (
                    select lane, count(*) as taken
                    from unnest(_givers) with ordinality as g (lane, place)
                    group by lane
                    order by max(place)
                ) as served
            ) as g
            where l.queue = _queue and l.lane = g.lane;
        end if;

        select array_agg(lane)
        into _quiet
        from unnest(_lanes) as w (lane)
        where _givers is null or not lane = any (_givers);
        if _quiet is not null then
            perform relevo.lull_lanes(_now, _queue, _quiet, _lane_rate, _lane_span, _ordered);
        end if;
    end loop;

    if not _ordered and cardinality(ids) < _room then
        _picked := relevo.pick_plain(_now, _queue, _room - cardinality(ids));
        perform relevo.lease_jobs(_now, _picked, _gated, _token, _worker, _lease);
        ids := ids || _picked;
    end if;
    if _rate is not null and cardinality(ids) > 0 then
        update relevo.queues
        set full_at = greatest(full_at, _now)
                      + cardinality(ids) * _span::double precision / _rate
        where queue = _queue
        returning relevo.token_at(full_at, _rate, _span) into due;
    end if;
end $$;

-- Puts lanes that gave nothing to sleep until they may; leaves those blocked by running jobs
-- awake, and those to which someone is adding at this moment.
create function relevo.lull_lanes(
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
        and not exists (
            select from relevo.jobs as j where j.queue = _queue and j.lane = l.lane
        );
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

-- Takes up to `_count` due jobs, shared over the queues, which come in the order of their turns.
-- If there were fewer, a last row without an id says in `inserted_at` when the next one is due.
create function relevo.claim_jobs(
    _skew bigint, _queues text[], _limits integer[], _lane_limits integer[], _rates integer[],
    _spans bigint[], _lane_rates integer[], _lane_spans bigint[], _ordered boolean[],
    _count integer, _token bigint, _worker text, _lease bigint
) returns table (
    id uuid, queue text, kind text, payload bytea, attempt integer, attempts integer, key text,
    lane text, thread text, cause text, meta bytea, flow text, node text, keep bigint,
    inserted_at bigint, claimed_at bigint, priority smallint, run_at bigint, seq bigint
)
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
as $$
#variable_conflict use_column
declare
    _now constant bigint := relevo.moment(_skew);
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
            w.bounds > 0 or exists (select from relevo.lanes as l where l.queue = w.queue) as turned
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
                node, keep, inserted_at, claimed_at, priority, run_at, seq;
            get diagnostics _taken = row_count;
            _left := _left - _taken;
        end if;
        if _turned is not null and _left > 0 then
            for _one in
                select *
                from unnest(
                    _queues, _limits, _lane_limits, _rates, _spans, _lane_rates, _lane_spans,
                    _ordered
                ) with ordinality as n (
                    queue, most, lane_most, rate, span, lane_rate, lane_span, ordered, place
                )
                where place = any (_turned)
                order by place
            loop
                select * into _got
                from relevo.claim_turns(
                    _now, _one.queue, least(_share, _left), _one.most, _one.lane_most, _one.rate,
                    _one.span, _one.lane_rate, _one.lane_span, coalesce(_one.ordered, false),
                    _token, _worker, _lease
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
            node, keep, inserted_at, claimed_at, priority, run_at, seq
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
        select least(_due, min(least(plain.run_at, asleep.due)))
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
            null::bigint, _due - _now, null::bigint, null::smallint, null::bigint, null::bigint
        where _due < 9000000000000000000;
    end if;
end $$;
