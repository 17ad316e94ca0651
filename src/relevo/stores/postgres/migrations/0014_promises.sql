-- What a run starts it starts once, and nothing is merged in silence: the turn of a job, ids that are
-- answered after their rows are gone, commands that joined a job with another payload, jobs that
-- replace one another ("latest"), and rates that hold in every window.
--
-- Functions that take or give more than before have the old form beside the new one, for processes
-- that were started before. New columns are null where a job has nothing to say in them.
--
-- A job that is unique by "latest" and has never started is in one of two states of its own: -1, to
-- be given out if it is the newest of its key; -2, behind one of its key that has started. With a
-- lane it is in state 0 instead of -1, and found with the others of its lane. It has started once
-- `claimed_at` is set.

alter table relevo.jobs
    add column turn integer,        -- how often a run has ended by plan
    add column remember bigint,     -- for how long its id is answered when it has gone
    add column latest boolean,      -- true or null
    add column digest bytea,        -- of its payload, where there is a key
    drop constraint jobs_state_check,
    add constraint jobs_state_check check (state between -2 and 4);

alter table relevo.ended
    add column turn integer,
    add column remember bigint,
    add column latest boolean,
    add column outdated boolean not null default false,  -- a newer one of its key has started
    add column digest bytea;

drop index relevo.jobs_key;
create unique index jobs_key on relevo.jobs (keyhash, queue)
    where keyhash is not null and latest is null;
create index jobs_latest on relevo.jobs (queue, keyhash, seq) where latest;
create index jobs_begun on relevo.jobs (queue, keyhash) where latest and claimed_at is not null;
create index jobs_fresh on relevo.jobs (queue, priority, run_at, seq) where state = -1;
create index ended_latest on relevo.ended (queue, keyhash)
    where latest and state > 5 and not outdated;

-- Ids that were asked for and have no row of their own (any more), and the job that stands for each.
create table relevo.remembered (
    id uuid primary key,
    job uuid not null,
    until bigint not null
);
create index remembered_until on relevo.remembered (until);

-- Commands that joined a job and whose payload is another.
create table relevo.joins (
    job uuid not null,
    id uuid not null,
    seq bigint generated always as identity,
    at bigint not null,
    cause text,
    primary key (job, id)
);
create index joins_newest on relevo.joins (job, seq);

-- Under a rate without a burst: moments and how many began at each, in turn, oldest first.
alter table relevo.queues add column begun bigint[];
alter table relevo.lanes add column begun bigint[];

-- The state of a job that waits for nothing but its time.
create function relevo.open_state(_latest boolean, _lane uuid, _claimed_at bigint) returns smallint
language sql immutable
return case when _latest and _lane is null and _claimed_at is null then -1 else 0 end::smallint;

create or replace function relevo.state_name(_state smallint, _run_at bigint, _now bigint)
returns text
language sql immutable
return case
    when _state <= 0
    then case when _run_at <= _now and _state > -2 then 'ready' else 'scheduled' end
    else (array['running', 'waiting', 'parked', 'held', 'done', 'dead', 'cancelled'])[_state]
end;

-- What stays of jobs whose rows go: their ids, for as long as each says.
create function relevo.forget_jobs(_now bigint, _ids uuid[], _remembers bigint[]) returns void
language plpgsql
set enable_seqscan = off
as $$
begin
    insert into relevo.remembered as r (id, job, until)
    select id, id, _now + remember
    from unnest(_ids, _remembers) as w (id, remember)
    where remember > 0
    on conflict (id) do update
    set job = excluded.job, until = excluded.until;
    delete from relevo.joins where job = any (_ids);
end $$;

-- A command joins a job by its key: its id is remembered, and if its payload is another, that is
-- written down. Digests whose first byte differs were made under different keys. Nothing of the job
-- itself is touched: it may be running, and the caller's transaction may stay open for long.
create function relevo.join_job(
    _now bigint, _job uuid, _job_digest bytea, _id uuid, _digest bytea, _cause text,
    _remember bigint
) returns boolean
language plpgsql
set enable_seqscan = off
as $$
begin
    if _remember > 0 and _id <> _job then
        insert into relevo.remembered as r (id, job, until)
        values (_id, _job, _now + _remember)
        on conflict (id) do update
        set job = excluded.job, until = excluded.until
        where r.until <= _now;
    end if;
    if _id <> _job and _digest <> _job_digest
        and substr(_digest, 1, 1) = substr(_job_digest, 1, 1)
    then
        insert into relevo.joins (job, id, at, cause)
        values (_job, _id, _now, _cause)
        on conflict do nothing;
        return true;
    end if;
    return false;
end $$;

-- Lets those go on that wait behind jobs of these keys, which have ended.
create function relevo.free_latest(_freed text[], _hashes uuid[]) returns void
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    _queues text[];
    _lanes uuid[];
    _dues bigint[];
begin
    with free as (
        update relevo.jobs as j
        set state = relevo.open_state(j.latest, j.lane, null)
        from unnest(_freed, _hashes) as w (queue, hash)
        where j.queue = w.queue and j.keyhash = w.hash and j.latest and j.state = -2
        returning j.queue, j.lane, j.run_at
    )
    select array_agg(queue), array_agg(lane), array_agg(run_at)
    into _queues, _lanes, _dues
    from free;
    if _queues is not null then
        perform relevo.touch_lanes(_queues, _lanes, _dues);
        perform relevo.wake(_queues);
    end if;
end $$;

-- Moves live jobs, which the caller has locked, to the ended ones. An outcome of null adds no line
-- of history; empty arrays stand for arrays of nulls.
create or replace function relevo.move_ended(
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
    _freed text[];
    _hashes uuid[];
    _left uuid[];
    _spans bigint[];
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
            payload, turn, digest, remember, latest
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
            meta, coalesce(answer, result), payload, turn, digest, remember, latest
        from gone
        where last <> 5 or keep > 0 or child
    )
    select
        array_agg(queue) filter (where lane is not null or gated),
        array_agg(lane) filter (where lane is not null or gated),
        array_agg(queue) filter (where latest and claimed_at is not null),
        array_agg(keyhash) filter (where latest and claimed_at is not null),
        array_agg(id) filter (where last = 5 and keep <= 0 and not child
                                    and (remember > 0 or digest is not null)),
        array_agg(remember) filter (where last = 5 and keep <= 0 and not child
                                          and (remember > 0 or digest is not null))
    into _queues, _lanes, _freed, _hashes, _left, _spans
    from gone;
    if _left is not null then
        perform relevo.forget_jobs(_now, _left, _spans);
    end if;
    if _freed is not null then
        perform relevo.free_latest(_freed, _hashes);
    end if;
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
create or replace function relevo.conclude_children(_now bigint, _ids uuid[], _states smallint[]) returns void
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
                state = case when p.pending > w.n then 2 else relevo.open_state(p.latest, p.lane, p.claimed_at) end,
                run_at = case when p.pending > w.n then p.run_at else greatest(p.run_at, _now) end
            from unnest(_parents, _counts, _culprits) as w (id, n, culprit)
            where p.id = w.id and p.state = 2 and w.culprit is null
            returning p.queue, p.lane, p.run_at, p.state
        )
        select array_agg(queue), array_agg(lane), array_agg(run_at)
        into _queues, _lanes, _dues
        from released
        where state <= 0;
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
create or replace function relevo.attach_parents(_now bigint, _parents uuid[]) returns void
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
            state = case when n > 0 then 2 else relevo.open_state(p.latest, p.lane, p.claimed_at) end,
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
    where state <= 0;
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

-- Stores jobs. Answers (place, id, verdict, differs) for every job that is not simply new.
--
-- Arrays run in parallel, one element a job; an empty one stands for nulls. Edges are a second set
-- of parallel arrays. A verdict is in_progress, done, reopened or closed.
create function relevo.insert_jobs(
    _skew bigint, _ids uuid[], _queues text[], _kinds text[], _payloads bytea[], _delays bigint[],
    _moments bigint[], _priorities smallint[], _attempts integer[], _keeps bigint[],
    _hashes uuid[], _keys text[], _forevers boolean[], _lanes uuid[],
    _lane_names text[], _threads text[],
    _causes text[], _metas bytea[], _flows text[], _nodes text[], _bundles text[],
    _parents uuid[], _children uuid[], _fatals boolean[],
    _latests boolean[], _digests bytea[], _remembers bigint[]
) returns table (place bigint, id uuid, verdict text, differs boolean)
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    _now constant bigint := relevo.moment(_skew);
    _size constant integer := cardinality(_ids);
    _targets uuid[] := _ids;      -- the id under which each is stored
    _stands uuid[] := _ids;       -- the job that stands for each in the end
    _todo bigint[];               -- places to be stored in this round; null: all
    _waiting bigint[] := '{}';    -- places to be judged although nobody tried to store them
    _judged bigint[] := '{}';     -- places that another job stands for
    _reopened bigint[] := '{}';
    _shut bigint[] := '{}';
    _turns integer[] := array_fill(null::integer, array[cardinality(_ids)]);
    _turn integer;                -- what one that is reopened had reached
    _differs boolean;
    _fresh uuid[] := '{}';        -- jobs to which this call has given a key for ever
    _left bigint[];
    _stored uuid[];
    _all uuid[] := '{}';
    _draining text[];
    _ordered text[];
    _found record;
    _one record;
    _verdict text;
    _base bigint;
    _round integer := 0;
begin
    select
        array_agg(queue) filter (where mode = 'draining'),
        array_agg(queue) filter (where ordered)
    into _draining, _ordered
    from relevo.queues
    where queue = any (_queues);

    -- The plain way: nothing could stand in for these, unless somebody carries them twice.
    if cardinality(_hashes) = 0 and cardinality(_parents) = 0
        and _draining is null and _ordered is null
    then
        begin
            _base := nextval('relevo.seq');
            insert into relevo.jobs (
                id, seq, run_at, inserted_at, keep, attempts, priority, queue, kind, lane,
                lane_name, thread, cause, flow, node, meta, payload, remember
            )
            select
                id, _base + place, coalesce(moment, _now + coalesce(delay, 0)), _now, keep,
                attempts, priority, queue, kind, lane, lane_name, thread, cause, flow, node, meta,
                payload, remember
            from unnest(
                _ids, _queues, _kinds, _payloads, _delays, _moments, _priorities, _attempts,
                _keeps, _lanes, _lane_names, _threads, _causes, _metas, _flows, _nodes, _remembers
            ) with ordinality as n (
                id, queue, kind, payload, delay, moment, priority, attempts, keep, lane,
                lane_name, thread, cause, meta, flow, node, remember, place
            );
            if exists (select from relevo.ended as e where e.id = any (_ids))
                or cardinality(_remembers) > 0 and exists (
                    select from relevo.remembered as r where r.id = any (_ids) and r.until > _now
                )
            then
                raise unique_violation;
            end if;
            if cardinality(_lanes) > 0 then
                perform relevo.touch_lanes(_queues, _lanes, array(
                    select coalesce(moment, _now + coalesce(delay, 0))
                    from unnest(_ids, _delays, _moments) with ordinality
                        as n (id, delay, moment, place)
                    order by place
                ));
            end if;
            perform relevo.wake(_queues);
            return;
        exception
            when unique_violation then
                null;  -- all of it is undone, and judged one by one below
        end;
    end if;

    if cardinality(_remembers) > 0 then
        -- Asked for before: another stands for it, or it has gone. First of all, since also a
        -- queue that is draining has it already.
        for _one in
            select n.place, n.id, r.job, j.id is not null as live
            from unnest(_ids) with ordinality as n (id, place)
            join relevo.remembered as r on r.id = n.id and r.until > _now
            left join relevo.jobs as j on j.id = r.job
        loop
            _judged := _judged || _one.place;
            _stands[_one.place] := _one.job;
            return query
            select
                _one.place, _one.job::uuid,
                case when _one.live then 'in_progress' else 'done' end,
                exists (
                    select from relevo.joins as l where l.job = _one.job and l.id = _one.id
                );
        end loop;
    end if;

    if _draining is not null then
        select coalesce(array_agg(place), '{}')
        into _shut
        from unnest(_queues, _bundles) with ordinality as n (queue, bundle, place)
        where not place = any (_judged)
            and (
                queue = any (_draining)
                or bundle in (
                    select bundle
                    from unnest(_queues, _bundles) with ordinality as b (queue, bundle, place)
                    where queue = any (_draining) and bundle is not null
                        and not place = any (_judged)
                )
            );
        loop  -- a parent is not stored without its children
            select array_agg(distinct p.place)
            into _left
            from unnest(_parents, _children) as e (parent, child)
            join unnest(_ids) with ordinality as p (id, place) on p.id = e.parent
            join unnest(_ids) with ordinality as c (id, place) on c.id = e.child
            where c.place = any (_shut) and not p.place = any (_shut || _judged);
            exit when _left is null;
            _shut := _shut || _left;
        end loop;
        return query
        select place, _ids[place], 'closed', false from unnest(_shut) as s (place);
    end if;
    if cardinality(_shut || _judged) > 0 then
        select array_agg(place::bigint)
        into _todo
        from generate_series(1, _size) as n (place)
        where not place = any (_shut || _judged);
        if _todo is null then
            return;
        end if;
    end if;

    if _ordered is not null then
        if cardinality(_lanes) = 0 then
            _lanes := array_fill(null::uuid, array[_size]);
        end if;
        -- Jobs without a lane share one here.
        select array_agg(
            case
                when queue = any (_ordered)
                then coalesce(lane, '00000000-0000-0000-0000-000000000000')
                else lane
            end
            order by place
        )
        into _lanes
        from unnest(_queues, _lanes) with ordinality as n (queue, lane, place);
        -- Who numbers first must commit first, or the order of numbers is not that of commits.
        perform pg_advisory_xact_lock(lock)
        from (
            select distinct hashtextextended('relevo.lanes ' || queue || ' ' || lane, 0) as lock
            from unnest(_queues, _lanes) as n (queue, lane)
            where queue = any (_ordered)
            order by lock
        ) as locks;
    end if;

    if true = any (_forevers) then
        with given as (
            insert into relevo.keys (hash, queue, job)
            select distinct on (hash, queue) hash, queue, id
            from unnest(_ids, _queues, _hashes, _forevers) with ordinality
                as n (id, queue, hash, forever, place)
            where forever and (_todo is null or place = any (_todo))
            order by hash, queue, place
            on conflict do nothing
            returning job
        )
        select coalesce(array_agg(job), '{}') into _fresh from given;

        select coalesce(array_agg(place), '{}')
        into _waiting
        from unnest(_ids, _forevers) with ordinality as n (id, forever, place)
        where forever and not id = any (_fresh) and (_todo is null or place = any (_todo));
        if cardinality(_waiting) > 0 then
            select coalesce(array_agg(place::bigint), '{}')
            into _todo
            from generate_series(1, _size) as n (place)
            where (_todo is null or place = any (_todo)) and not place = any (_waiting);
        end if;
    end if;

    _base := nextval('relevo.seq');  -- once: who is stored in a later round keeps its place
    loop
        with newcomers as (
            select _base + place as seq, *
            from unnest(
                _targets, _queues, _kinds, _payloads, _delays, _moments, _priorities, _attempts,
                _keeps, _hashes, _keys, _forevers, _lanes, _lane_names, _threads, _causes,
                _metas, _flows, _nodes, _latests, _digests, _remembers, _turns
            ) with ordinality as n (
                id, queue, kind, payload, delay, moment, priority, attempts, keep, keyhash, key,
                forever, lane, lane_name, thread, cause, meta, flow, node, latest, digest,
                remember, turn, place
            )
            where _todo is null or place = any (_todo)
        ), stored as (
            insert into relevo.jobs (
                id, seq, run_at, inserted_at, keep, attempts, state, priority, forever, keyhash,
                queue, kind, key, lane, lane_name, thread, cause, flow, node, meta, payload,
                latest, digest, remember, turn
            )
            select
                id, seq, coalesce(moment, _now + coalesce(delay, 0)), _now, keep, attempts,
                case
                    when _ids[place] = any (_parents) then 2
                    else relevo.open_state(latest, lane, null)
                end,
                priority,
                coalesce(forever, false), keyhash, queue, kind, key, lane, lane_name, thread,
                cause, flow, node, meta, payload, nullif(latest, false), digest,
                nullif(remember, 0), turn
            from newcomers
            -- In the order of their hashes: two batches with the same keys must not cross.
            order by keyhash, place
            on conflict do nothing
            returning id
        )
        select coalesce(array_agg(id), '{}') into _stored from stored;

        -- One that ended before is not stored again. Looked up after the insert, so that one that
        -- was just ending is seen as well.
        if exists (select from relevo.ended as e where e.id = any (_stored))
            or cardinality(_remembers) > 0 and exists (
                select from relevo.remembered as r where r.id = any (_stored) and r.until > _now
            )
        then
            with again as (
                delete from relevo.jobs as j
                where j.id = any (_stored)
                    and (
                        exists (select from relevo.ended as e where e.id = j.id)
                        or exists (
                            select
                            from relevo.remembered as r
                            where r.id = j.id and r.until > _now
                        )
                    )
                returning j.id
            )
            select coalesce(array_agg(s.id), '{}')
            into _stored
            from unnest(_stored) as s (id)
            where not exists (select from again where again.id = s.id);
        end if;
        _all := _all || _stored;
        exit when cardinality(_all) = _size;

        -- Who stands for the others? Some may be free to be stored in a next round.
        select array_agg(place order by place)
        into _left
        from (
            select id, place, row_number() over (partition by id order by place) as nth
            from unnest(_targets) with ordinality as n (id, place)
            where _todo is null or place = any (_todo)
        ) as tried
        where nth > 1 or not id = any (_stored);
        _left := _left || _waiting;
        _todo := '{}';
        _waiting := '{}';
        for _one in
            select
                place, id, queue, hash, coalesce(forever, false) as forever,
                coalesce(latest, false) as latest, digest, cause,
                coalesce(remember, 0) as remember
            from unnest(
                _ids, _queues, _hashes, _forevers, _latests, _digests, _causes, _remembers
            ) with ordinality
                as n (id, queue, hash, forever, latest, digest, cause, remember, place)
            where place = any (_left)
            order by place
        loop
            _verdict := null;
            _differs := false;
            select j.id as job into _found
            from relevo.jobs as j
            where j.id = _one.id;
            if found then
                _verdict := 'in_progress';
            end if;
            if _verdict is null and _one.remember > 0 then
                select r.job, j.id is not null as live into _found
                from relevo.remembered as r
                left join relevo.jobs as j on j.id = r.job
                where r.id = _one.id and r.until > _now;
                if found then
                    _verdict := case when _found.live then 'in_progress' else 'done' end;
                    if _one.id = any (_fresh) then
                        delete from relevo.keys as k
                        where k.hash = _one.hash and k.queue = _one.queue and k.job = _one.id;
                    end if;
                end if;
            end if;
            if _verdict is null and not _one.forever then
                select e.id as job into _found
                from relevo.ended as e
                where e.id = _one.id;
                if found then
                    _verdict := 'done';
                end if;
            end if;
            if _verdict is null and _one.hash is not null and not _one.latest then
                select j.id as job, j.digest into _found
                from relevo.jobs as j
                where j.keyhash = _one.hash and j.queue = _one.queue and j.latest is null;
                if found then
                    _verdict := 'in_progress';
                    _differs := relevo.join_job(
                        _now, _found.job, _found.digest, _one.id, _one.digest, _one.cause,
                        _one.remember
                    );
                    if _one.id = any (_fresh) then
                        delete from relevo.keys as k
                        where k.hash = _one.hash and k.queue = _one.queue and k.job = _one.id;
                    end if;
                end if;
            end if;
            if _verdict is null and _one.forever then
                select k.job, k.failed into _found
                from relevo.keys as k
                where k.hash = _one.hash and k.queue = _one.queue
                for update;
                if not found then
                    with given as (
                        insert into relevo.keys (hash, queue, job)
                        values (_one.hash, _one.queue, _one.id)
                        on conflict do nothing
                        returning job
                    )
                    select _fresh || array_agg(job) into _fresh from given;
                elsif _found.job = any (_fresh)
                    or exists (select from relevo.jobs as j where j.id = _found.job) then
                    null;  -- about to be stored by us, or just reopened: the next round tells
                elsif exists (
                    select from relevo.ended as e where e.id = _found.job and e.state > 5
                ) then
                    delete from relevo.edges where parent = _found.job;
                    delete from relevo.ended as e where e.id = _found.job
                    returning e.turn into _turn;
                    _turns[_one.place] := _turn;
                    _targets[_one.place] := _found.job;
                    _stands[_one.place] := _found.job;
                    _fresh := _fresh || _found.job;
                    _reopened := _reopened || _one.place;
                elsif _found.failed then
                    update relevo.keys
                    set job = _one.id, failed = false
                    where hash = _one.hash and queue = _one.queue;
                    _fresh := _fresh || _one.id;
                    _reopened := _reopened || _one.place;
                else
                    _verdict := 'done';
                    _differs := relevo.join_job(
                        _now, _found.job,
                        (select e.digest from relevo.ended as e where e.id = _found.job),
                        _one.id, _one.digest, _one.cause, _one.remember
                    );
                end if;
            end if;
            if _verdict is null then
                _todo := _todo || _one.place;
            else
                _judged := _judged || _one.place;
                _stands[_one.place] := _found.job;
                return query select _one.place, _found.job::uuid, _verdict, _differs;
            end if;
        end loop;
        exit when cardinality(_todo) = 0;
        _round := _round + 1;
        if _round > 20 then
            raise serialization_failure using message = 'the keys of this batch will not settle';
        end if;
    end loop;

    if cardinality(_reopened) > 0 then
        insert into relevo.remembered as r (id, job, until)
        select n.id, _targets[n.place], _now + n.remember
        from unnest(_ids, _remembers) with ordinality as n (id, remember, place)
        where n.place = any (_reopened) and not n.place = any (_judged)
            and n.remember > 0 and n.id <> _targets[n.place]
        on conflict (id) do update
        set job = excluded.job, until = excluded.until
        where r.until <= _now;
        return query
        select place, _targets[place], 'reopened', false
        from unnest(_reopened) as r (place)
        where not place = any (_judged);
    end if;

    if cardinality(_parents) > 0 then
        insert into relevo.edges (child, parent, fatal, ord)
        select coalesce(_stands[c.place], e.child), _targets[p.place], e.fatal, e.ord
        from unnest(_parents, _children, _fatals) with ordinality
            as e (parent, child, fatal, ord)
        join unnest(_ids) with ordinality as p (id, place) on p.id = e.parent
        left join unnest(_ids) with ordinality as c (id, place) on c.id = e.child
        where not p.place = any (_judged || _shut)
        on conflict do nothing;

        select array_agg(distinct _targets[place])
        into _stored
        from unnest(_ids) with ordinality as n (id, place)
        where id = any (_parents) and not place = any (_judged || _shut);
        if _stored is not null then
            perform relevo.attach_parents(_now, _stored);
        end if;
    end if;

    if cardinality(_lanes) > 0 then
        perform relevo.touch_lanes(array_agg(queue), array_agg(lane), array_agg(run_at))
        from relevo.jobs
        where id = any (_all) and lane is not null and state = 0
        having count(*) > 0;
    end if;

    perform pg_notify('relevo.jobs', queue)
    from (
        select distinct queue
        from unnest(_queues) with ordinality as n (queue, place)
        where cardinality(_all) = _size or not place = any (_judged || _shut)
    ) as woken;
end $$;

-- For processes that were started before: what they store has none of the new fields.
create or replace function relevo.insert_jobs(
    _skew bigint, _ids uuid[], _queues text[], _kinds text[], _payloads bytea[], _delays bigint[],
    _moments bigint[], _priorities smallint[], _attempts integer[], _keeps bigint[],
    _hashes uuid[], _keys text[], _forevers boolean[], _lanes uuid[],
    _lane_names text[], _threads text[],
    _causes text[], _metas bytea[], _flows text[], _nodes text[], _bundles text[],
    _parents uuid[], _children uuid[], _fatals boolean[]
) returns table (place bigint, id uuid, verdict text)
language sql
as $$
select place, id, verdict
from relevo.insert_jobs(
    _skew, _ids, _queues, _kinds, _payloads, _delays, _moments, _priorities, _attempts, _keeps,
    _hashes, _keys, _forevers, _lanes, _lane_names, _threads, _causes, _metas, _flows, _nodes,
    _bundles, _parents, _children, _fatals,
    '{}'::boolean[], '{}'::bytea[], '{}'::bigint[]
)
$$;

-- Keeps deliveries and stores their jobs. Answers (0, now), then a row for every delivery that is
-- not simply new: new, with the jobs that stand for its own; done, with what is kept; or closed.
--
-- The first arrays run in parallel, one element a delivery; an empty one stands for nulls. `_owners`
-- has for each job the place of its delivery, `_letters` the jobs packed for another store: if it
-- is not empty, that is where they go. The others are those of insert_jobs.
create function relevo.receive(
    _skew bigint, _ids uuid[], _sources text[], _keys text[], _hashes uuid[],
    _generations integer[], _statuses smallint[], _rejected boolean[], _moments bigint[],
    _threads text[], _methods text[], _paths text[], _queries text[], _reasons text[],
    _jobs bytea[], _prints uuid[], _headers bytea[], _answers bytea[], _bodies bytea[],
    _owners integer[], _letters bytea[],
    _job_ids uuid[], _queues text[], _kinds text[], _payloads bytea[], _delays bigint[],
    _runs bigint[], _priorities smallint[], _attempts integer[], _keeps bigint[],
    _job_hashes uuid[], _job_keys text[], _forevers boolean[], _lanes uuid[],
    _lane_names text[], _job_threads text[],
    _causes text[], _metas bytea[], _flows text[], _nodes text[], _bundles text[],
    _parents uuid[], _children uuid[], _fatals boolean[],
    _latests boolean[], _digests bytea[], _remembers bigint[]
) returns table (
    place bigint, verdict text, moment bigint, stands bytea, known relevo.accepted
)
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    _now constant bigint := relevo.moment(_skew);
    _size constant integer := cardinality(_ids);
    _shut boolean[];      -- by delivery: a queue takes nothing in
    _fresh boolean[];     -- by delivery: it is new
    _wanted boolean[];    -- by job: its delivery is new
    _fit bigint[];        -- the places of those jobs; null: all
    _stood bigint[];      -- places of jobs that another one stands for,
    _standing uuid[];     -- and those others
    _touched bigint[];    -- deliveries of such jobs,
    _stands bytea[];      -- and all the jobs that now stand for theirs
    _news bigint;
    _one record;
    _round integer := 0;
begin
    loop
        begin
            _shut := array_fill(false, array[_size]);
            if cardinality(_letters) = 0 and exists (
                select from relevo.queues where queue = any (_queues) and mode = 'draining'
            ) then
                _shut := array(
                    select bool_or(coalesce(q.mode = 'draining', false))
                    from generate_series(1, _size) as d (place)
                    left join unnest(_owners, _queues) as j (owner, queue) on j.owner = d.place
                    left join relevo.queues as q on q.queue = j.queue
                    group by d.place
                    order by d.place
                );
            end if;

            with came as materialized (
                select distinct on (hash, source, generation) *
                from unnest(
                    _hashes, _sources, _generations, _ids, _moments, _statuses, _answers, _shut
                ) with ordinality
                    as d (hash, source, generation, id, moment, status, answer, shut, place)
                where hash is not null and not shut
                order by hash, source, generation, place
            ), entered as (
                -- In the order of their hashes: two batches with the same keys must not cross.
                insert into relevo.delivered
                    (hash, source, generation, id, received_at, status, answer)
                select hash, source, generation, id, coalesce(moment, _now), status, answer
                from came
                order by hash, source, generation
                on conflict (hash, source, generation) do nothing
                returning hash, source, generation
            ), news as (
                select max(place) as place
                from (
                    select hash, source, generation, place from came
                    union all
                    select hash, source, generation, null from entered
                ) as both_
                group by hash, source, generation
                having count(*) = 2
                union all
                select place
                from unnest(_ids, _hashes, _shut) with ordinality as d (id, hash, shut, place)
                where hash is null and not shut
            ), marks as (
                select place, count(*) > 1 as fresh
                from (
                    select place from generate_series(1::bigint, _size) as d (place)
                    union all
                    select place from news
                ) as each
                group by place
            )
            select array_agg(fresh order by place), count(*) filter (where fresh)
            into _fresh, _news
            from marks;

            insert into relevo.deliveries (
                id, received_at, generation, status, rejected, source, key, hash, thread, method,
                path, query, reason, jobs, print, headers, answer, body
            )
            select
                id, coalesce(moment, _now), generation, status, rejected, source, key, hash,
                thread, method, path, query, coalesce(reason, ''), coalesce(jobs, ''), print,
                headers, case when rejected then answer end, body
            from unnest(
                _ids, _moments, _generations, _statuses, _rejected, _sources, _keys, _hashes,
                _threads, _methods, _paths, _queries, _reasons, _jobs, _prints, _headers,
                _answers, _bodies, _fresh
            ) as d (
                id, moment, generation, status, rejected, source, key, hash, thread, method, path,
                query, reason, jobs, print, headers, answer, body, fresh
            )
            where fresh
            on conflict do nothing;

            _fit := null;
            _wanted := null;
            if _news < _size then
                _wanted := array(
                    select _fresh[owner] from unnest(_owners) with ordinality as j (owner, place)
                    order by place
                );
                _fit := array(
                    select place from unnest(_wanted) with ordinality as j (wanted, place)
                    where wanted
                    order by place
                );
            end if;
            _stood := '{}';
            _standing := '{}';
            if cardinality(_job_ids) = 0 or cardinality(_fit) = 0 then
                null;
            elsif cardinality(_letters) > 0 then
                insert into relevo.letters (id, job, posted_at)
                select id, letter, _now
                from unnest(_job_ids, _letters, _wanted) as l (id, letter, wanted)
                where _wanted is null or wanted
                on conflict (id) do nothing;
            elsif _fit is null then
                for _one in
                    select place, id, verdict
                    from relevo.insert_jobs(
                        _skew, _job_ids, _queues, _kinds, _payloads, _delays, _runs, _priorities,
                        _attempts, _keeps, _job_hashes, _job_keys, _forevers, _lanes, _lane_names,
                        _job_threads, _causes, _metas, _flows, _nodes, _bundles, _parents,
                        _children, _fatals, _latests, _digests, _remembers
                    )
                loop
                    if _one.verdict = 'closed' then
                        raise sqlstate 'RV001';
                    end if;
                    _stood := _stood || _one.place;
                    _standing := _standing || _one.id;
                end loop;
            else
                for _one in
                    select place, id, verdict
                    from relevo.insert_jobs(
                        _skew, relevo.picked(_job_ids, _wanted), relevo.picked(_queues, _wanted),
                        relevo.picked(_kinds, _wanted), relevo.picked(_payloads, _wanted),
                        relevo.picked(_delays, _wanted), relevo.picked(_runs, _wanted),
                        relevo.picked(_priorities, _wanted), relevo.picked(_attempts, _wanted),
                        relevo.picked(_keeps, _wanted), relevo.picked(_job_hashes, _wanted),
                        relevo.picked(_job_keys, _wanted), relevo.picked(_forevers, _wanted),
                        relevo.picked(_lanes, _wanted), relevo.picked(_lane_names, _wanted),
                        relevo.picked(_job_threads, _wanted), relevo.picked(_causes, _wanted),
                        relevo.picked(_metas, _wanted), relevo.picked(_flows, _wanted),
                        relevo.picked(_nodes, _wanted), relevo.picked(_bundles, _wanted),
                        _parents, _children, _fatals, relevo.picked(_latests, _wanted),
                        relevo.picked(_digests, _wanted), relevo.picked(_remembers, _wanted)
                    )
                loop
                    if _one.verdict = 'closed' then
                        raise sqlstate 'RV001';
                    end if;
                    _stood := _stood || _fit[_one.place];
                    _standing := _standing || _one.id;
                end loop;
            end if;

            _touched := '{}';
            if cardinality(_stood) > 0 then
                select coalesce(array_agg(owner), '{}'), array_agg(stands)
                into _touched, _stands
                from (
                    select
                        owner,
                        string_agg(uuid_send(coalesce(s.id, j.id)), '' order by j.place) as stands
                    from unnest(_job_ids, _owners) with ordinality as j (id, owner, place)
                    left join unnest(_stood, _standing) as s (place, id) on s.place = j.place
                    group by owner
                    having bool_or(s.id <> j.id)
                ) as each;
                update relevo.deliveries as d
                set jobs = t.stands
                from unnest(_touched, _stands) as t (place, stands)
                where d.rejected = _rejected[t.place] and d.id = _ids[t.place];
            end if;
            exit;
        exception
            when sqlstate 'RV001' then
                -- A queue began to drain since we looked: all of it is undone, and judged anew.
                _round := _round + 1;
                if _round > 20 then
                    raise serialization_failure using message = 'the queues will not settle';
                end if;
        end;
    end loop;

    return query select 0::bigint, null::text, _now, null::bytea, null::relevo.accepted;
    return query
    select t.place, 'new', _now, t.stands, null::relevo.accepted
    from unnest(_touched, _stands) as t (place, stands);
    if _news = _size then
        return;
    end if;

    -- Locked in one order, so that two who repeat the same do not cross.
    perform
    from relevo.delivered as l
    join (
        select distinct hash, source, generation
        from unnest(_hashes, _sources, _generations, _fresh)
            as d (hash, source, generation, fresh)
        where not fresh and hash is not null
    ) as d using (hash, source, generation)
    order by l.hash, l.source, l.generation
    for update of l;
    update relevo.delivered as l
    set repeats = l.repeats + r.times, repeated_at = _now, differs = l.differs or r.differs
    from (
        select
            d.hash, d.source, d.generation, count(*) as times,
            bool_or(coalesce(k.print <> d.print, false)) as differs
        from unnest(_hashes, _sources, _generations, _prints, _ids, _fresh)
            as d (hash, source, generation, print, id, fresh)
        join relevo.accepted as k using (hash, source, generation)
        where not d.fresh and k.id <> d.id
        group by d.hash, d.source, d.generation
    ) as r
    where l.hash = r.hash and l.source = r.source and l.generation = r.generation;
    return query
    select
        d.place, case when k.id is null then 'closed' else 'done' end, _now, null::bytea, k
    from unnest(_hashes, _sources, _generations, _fresh) with ordinality
        as d (hash, source, generation, fresh, place)
    left join relevo.accepted as k using (hash, source, generation)
    where not d.fresh;
end $$;

-- For processes that were started before.
create or replace function relevo.receive(
    _skew bigint, _ids uuid[], _sources text[], _keys text[], _hashes uuid[],
    _generations integer[], _statuses smallint[], _rejected boolean[], _moments bigint[],
    _threads text[], _methods text[], _paths text[], _queries text[], _reasons text[],
    _jobs bytea[], _prints uuid[], _headers bytea[], _answers bytea[], _bodies bytea[],
    _owners integer[], _letters bytea[],
    _job_ids uuid[], _queues text[], _kinds text[], _payloads bytea[], _delays bigint[],
    _runs bigint[], _priorities smallint[], _attempts integer[], _keeps bigint[],
    _job_hashes uuid[], _job_keys text[], _forevers boolean[], _lanes uuid[],
    _lane_names text[], _job_threads text[],
    _causes text[], _metas bytea[], _flows text[], _nodes text[], _bundles text[],
    _parents uuid[], _children uuid[], _fatals boolean[]
) returns table (
    place bigint, verdict text, moment bigint, stands bytea, known relevo.accepted
)
language sql
as $$
select place, verdict, moment, stands, known
from relevo.receive(
    _skew, _ids, _sources, _keys, _hashes, _generations, _statuses, _rejected, _moments,
    _threads, _methods, _paths, _queries, _reasons, _jobs, _prints, _headers, _answers, _bodies,
    _owners, _letters, _job_ids, _queues, _kinds, _payloads, _delays, _runs, _priorities,
    _attempts, _keeps, _job_hashes, _job_keys, _forevers, _lanes, _lane_names, _job_threads,
    _causes, _metas, _flows, _nodes, _bundles, _parents, _children, _fatals,
    '{}'::boolean[], '{}'::bytea[], '{}'::bigint[]
)
$$;

-- Answers the places of those whose lease is no longer ours. Arrays run in parallel; an empty one
-- stands for nulls, and a state of null is done.
create function relevo.settle_jobs(
    _skew bigint, _ids uuid[], _tokens bigint[], _results bytea[], _states smallint[],
    _delays bigint[], _spends boolean[], _types text[], _messages text[], _traces text[],
    _fingerprints text[], _parks text[], _planned boolean[]
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
            turn = case
                when e.planned and e.state = 0 then coalesce(j.turn, 0) + 1
                else j.turn
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
            _parks, _planned
        ) with ordinality as e (
            id, result, state, delay, spend, type, message, trace, fingerprint, park,
            planned, place
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

-- For processes that were started before: none of their endings is told to be planned.
create or replace function relevo.settle_jobs(
    _skew bigint, _ids uuid[], _tokens bigint[], _results bytea[], _states smallint[],
    _delays bigint[], _spends boolean[], _types text[], _messages text[], _traces text[],
    _fingerprints text[], _parks text[]
) returns bigint[]
language sql
return relevo.settle_jobs(
    _skew, _ids, _tokens, _results, _states, _delays, _spends, _types, _messages, _traces,
    _fingerprints, _parks, '{}'::boolean[]
);

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

-- How many more jobs may begin at `_now`. Without a burst, no more than `_rate` in any `_span`
-- milliseconds, counted from `_begun`; with one, from a bucket of so many tokens that is full again
-- at `_full_at`.
create function relevo.rate_room(
    _now bigint, _full_at double precision, _begun bigint[], _rate integer, _span bigint,
    _burst integer
) returns integer
language sql immutable
return case
    when _burst is null
    then _rate - (
        select coalesce(sum(_begun[place + 1]), 0)
        from generate_series(1, cardinality(_begun), 2) as n (place)
        where _begun[place] > _now - _span
    )
    else floor(
        (_now - greatest(_full_at, _now)) * _rate / _span + _burst + 0.000001
    )
end::integer;

-- When the next one may.
create function relevo.rate_due(
    _now bigint, _full_at double precision, _begun bigint[], _rate integer, _span bigint,
    _burst integer
) returns bigint
language sql immutable
return case
    when _rate is null then null
    when relevo.rate_room(_now, _full_at, _begun, _rate, _span, _burst) > 0 then _now
    when _burst is null
    then (
        select min(_begun[place]) + _span
        from generate_series(1, cardinality(_begun), 2) as n (place)
        where _begun[place] > _now - _span
    )
    else ceil(_full_at + (1 - _burst) * _span::double precision / _rate - 0.001)
end::bigint;

-- The log with one more entry. It has 32 at most: of neighbours the closest become one, at the later
-- of their moments.
create function relevo.rate_noted(_now bigint, _begun bigint[], _taken integer, _span bigint)
returns bigint[]
language plpgsql immutable
as $$
declare
    _log bigint[];
    _size integer;
    _at integer;
begin
    select coalesce(array_agg(value order by place), '{}')
    into _log
    from unnest(_begun) with ordinality as b (value, place)
    where _begun[place - (place + 1) % 2] > _now - _span;
    _size := cardinality(_log);
    if _size > 0 and _log[_size - 1] >= _now then
        _log[_size] := _log[_size] + _taken;
        return _log;
    end if;
    _log := _log || array[_now, _taken::bigint];
    if _size >= 64 then
        select place
        into _at
        from generate_series(1, _size, 2) as n (place)
        order by _log[place + 2] - _log[place], place
        limit 1;
        _log[_at + 3] := _log[_at + 3] + _log[_at + 1];
        _log := _log[:_at - 1] || _log[_at + 2:];
    end if;
    return _log;
end $$;

-- Judges due jobs, which the caller has locked: of those that replace one another, those that may be
-- given out now. The others are ended, if a newer one has their place, or wait behind one that has
-- started. With `_is_swapped` the newest may be taken in the place of an older one of its lane.
-- `due` says when to look again, if something was left to be judged.
create function relevo.judge_latest(
    _now bigint, _queue text, _picked uuid[], _is_swapped boolean, out taken uuid[],
    out due bigint
)
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    _most constant integer := 1000;  -- of one key, that are ended at once
    _hashes uuid[];
    _olds uuid[];
    _chosen uuid[] := '{}';
    _replaced uuid[] := '{}';
    _outdated uuid[] := '{}';  -- those of them whose newest is given out now
    _notes text[] := '{}';
    _one record;
    _started record;
    _newest record;
begin
    select array_agg(distinct keyhash)
    into _hashes
    from relevo.jobs
    where id = any (_picked) and latest and claimed_at is null;
    if _hashes is null then
        taken := _picked;
        return;
    end if;
    -- In the order of their ids, as everything that waits for jobs takes them.
    perform
    from relevo.jobs
    where id = any (array(
        select old.id
        from unnest(_hashes) as h (hash)
        cross join lateral (
            select id
            from relevo.jobs
            where queue = _queue and keyhash = h.hash and latest and claimed_at is null
            order by seq
            limit _most + 1
        ) as old
    ))
    order by id
    for update;

    for _one in
        select keyhash as hash, array_agg(id) as ids, (array_agg(lane))[1] as lane,
            count(distinct coalesce(lane, '00000000-0000-0000-0000-000000000001')) = 1 as is_one
        from relevo.jobs
        where id = any (_picked) and latest and claimed_at is null
        group by keyhash
    loop
        if cardinality(_replaced) > 2 * _most then
            due := least(due, _now + 1);
            exit;
        end if;
        -- One that has started: while this transaction holds it, it does not end, and who ends it
        -- will see those that wait behind it.
        select id into _started
        from relevo.jobs
        where queue = _queue and keyhash = _one.hash and latest and claimed_at is not null
        limit 1
        for key share skip locked;
        if found then
            update relevo.jobs
            set state = -2
            where id = any (array(
                select id
                from relevo.jobs
                where queue = _queue and keyhash = _one.hash and latest and claimed_at is null
                    and state in (-1, 0)
                order by seq
                limit _most
            ) || _one.ids);
            due := least(due, _now + 1);
            continue;
        end if;
        if exists (
            select
            from relevo.jobs
            where queue = _queue and keyhash = _one.hash and latest and claimed_at is not null
        ) then
            due := least(due, _now + 50);  -- it is just ending
            continue;
        end if;
        if exists (
            select
            from relevo.jobs
            where queue = _queue and keyhash = _one.hash and latest is null
                and claimed_at is not null
        ) then
            -- Stored when the key was for something else: nobody tells when it ends.
            update relevo.jobs set run_at = _now + 500 where id = any (_one.ids);
            due := least(due, _now + 1);
            continue;
        end if;

        select id, lane, (state in (-1, 0) and run_at <= _now) as is_due
        into _newest
        from relevo.jobs
        where queue = _queue and keyhash = _one.hash and latest
        order by seq desc
        limit 1;
        _olds := array(
            select id
            from relevo.jobs
            where queue = _queue and keyhash = _one.hash and latest and id <> _newest.id
            order by seq
            limit _most
        );
        if cardinality(_olds) < _most
            and (
                _newest.id = any (_one.ids)
                or _is_swapped and _newest.is_due and _one.is_one
                    and _newest.lane is not distinct from _one.lane
            )
        then
            _chosen := _chosen || _newest.id;
            _outdated := _outdated || _olds;
            update relevo.ended
            set outdated = true
            where queue = _queue and keyhash = _one.hash and latest and state > 5
                and not outdated;
        else
            due := least(due, _now + 1);  -- a claim ends but a part of very many
        end if;
        _replaced := _replaced || _olds;
        _notes := _notes || array_fill(
            'replaced by ' || replace(_newest.id::text, '-', ''), array[cardinality(_olds)]
        );
    end loop;

    taken := array(
        select id
        from relevo.jobs
        where id = any (_picked) and not (latest is true and claimed_at is null)
    ) || _chosen;
    if cardinality(_replaced) > 0 then
        perform relevo.move_ended(
            _now, _replaced, array_fill(7::smallint, array[cardinality(_replaced)]), '{}', '{}', '{}',
            '{}', '{}', '{}', _notes
        );
        update relevo.ended set outdated = true where id = any (_outdated);
        perform relevo.conclude_children(
            _now, _replaced, array_fill(7::smallint, array[cardinality(_replaced)])
        );
    end if;
end $$;

-- Takes due jobs of a queue that have no lane; high priority first, then oldest first. `_fresh` says
-- that some of them replace one another.
create function relevo.take_plain(
    _now bigint, _queue text, _room integer, _fresh boolean, _gated boolean, _token bigint,
    _worker text, _lease bigint, out taken uuid[], out due bigint
)
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    _picked uuid[];
    _judged record;
begin
    if not _fresh then
        taken := relevo.pick_plain(_now, _queue, _room);
        perform relevo.lease_jobs(_now, taken, _gated, _token, _worker, _lease);
        return;
    end if;
    taken := '{}';
    for _round in 1..10 loop
        _picked := relevo.pick_plain(_now, _queue, _room) || array(
            select j.id
            from (values (0::smallint), (1::smallint), (2::smallint)) as p (priority)
            cross join lateral (
                select id
                from relevo.jobs
                where queue = _queue and state = -1 and priority = p.priority and run_at <= _now
                order by run_at, seq
                limit _room
                for update skip locked
            ) as j
            limit _room
        );
        _picked := array(
            select id
            from relevo.jobs
            where id = any (_picked)
            order by priority, run_at, seq
            limit _room
        );
        exit when cardinality(_picked) = 0;
        select * into _judged from relevo.judge_latest(_now, _queue, _picked, true);
        perform relevo.lease_jobs(_now, _judged.taken, _gated, _token, _worker, _lease);
        taken := taken || _judged.taken;
        _room := _room - cardinality(_judged.taken);
        due := _judged.due;
        exit when due is null or _room <= 0;
    end loop;
end $$;

-- How many jobs a lane may give, of `_most`.
create function relevo.lane_room(
    _now bigint, _queue text, _lane uuid, _most integer, _lane_limit integer, _lane_rate integer,
    _lane_span bigint, _burst integer
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
            select relevo.rate_room(_now, full_at, begun, _lane_rate, _lane_span, _burst)
            from relevo.lanes
            where queue = _queue and lane = _lane
        ));
    end if;
    return _most;
end $$;

-- Puts lanes that gave nothing to sleep until they may; leaves those blocked by running jobs
-- awake, and those to which someone is adding at this moment.
create function relevo.lull_lanes(
    _now bigint, _queue text, _lanes uuid[], _lane_rate integer, _lane_span bigint,
    _ordered boolean, _burst integer
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
                    and relevo.rate_room(
                        _now, s.full_at, s.begun, _lane_rate, _lane_span, _burst
                    ) < 1
                then relevo.rate_due(
                    _now, s.full_at, s.begun, _lane_rate, _lane_span, _burst
                )
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

-- Takes up to `_room` jobs of a queue with lanes or limits, or with jobs that replace one another,
-- and says when to look again.
create function relevo.claim_turns(
    _now bigint, _queue text, _room integer, _limit integer, _lane_limit integer, _rate integer,
    _span bigint, _lane_rate integer, _lane_span bigint, _ordered boolean, _token bigint,
    _worker text, _lease bigint, _burst integer,
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
    _latest boolean;    -- some of its jobs replace one another,
    _fresh boolean;     -- and some of these have never started and have no lane
    _again bigint;      -- when to look again at what could not be judged now
    _judged record;
    _before bigint;
    _rounds integer := 0;
begin
    ids := '{}';
    -- The caller holds this row: claims of a queue go one by one, limits are counted, not guessed.
    select * into _book from relevo.queues where queue = _queue;
    _latest := exists (select from relevo.jobs where queue = _queue and latest);

    if _ordered then
        if not _book.ordered then
            update relevo.queues set ordered = true where queue = _queue;
        end if;
        if _latest then
            update relevo.jobs
            set lane = '00000000-0000-0000-0000-000000000000',
                state = case state when -1 then 0 else state end
            where queue = _queue and latest and state < 0 and lane is null;
            if found then
                perform relevo.touch_lanes(
                    array[_queue], array['00000000-0000-0000-0000-000000000000'::uuid],
                    array[_now]
                );
            end if;
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
        _room := least(_room, relevo.rate_room(
            _now, _book.full_at, _book.begun, _rate, _span, _burst
        ));
    end if;
    if _room <= 0 then
        due := relevo.rate_due(_now, _book.full_at, _book.begun, _rate, _span, _burst);
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
        _fresh := _latest and exists (
            select from relevo.jobs where queue = _queue and state = -1
        );
        -- Half of the room at first, if there are lanes that want their share.
        select * into _judged
        from relevo.take_plain(
            _now, _queue,
            case
                when exists (
                    select from relevo.lanes as l where l.queue = _queue and turn is not null
                )
                then (_room + 1) / 2
                else _room
            end,
            _fresh, _gated, _token, _worker, _lease
        );
        ids := _judged.taken;
        _again := _judged.due;
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
        _before := _after;
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
                        _now, _queue, w.lane, 1, _lane_limit, _lane_rate, _lane_span,
                        _burst
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
                                _now, _queue, w.lane, _per, _lane_limit, _lane_rate, _lane_span,
                                _burst
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

        if _picked is not null and _latest then
            select * into _judged
            from relevo.judge_latest(_now, _queue, _picked, not _ordered);
            if _judged.due is not null and _rounds < 10 then
                -- Some have ended or wait behind others: there may be more where they were.
                _rounds := _rounds + 1;
                _after := _before;
            else
                _again := least(_again, _judged.due);
            end if;
            _picked := nullif(_judged.taken, '{}');
            _givers := array(
                select lane from relevo.jobs where id = any (_picked) and lane is not null
            );
        end if;
        if _picked is not null then
            perform relevo.lease_jobs(_now, _picked, _gated, _token, _worker, _lease);
            ids := ids || _picked;
            -- To the end of the line, in the order in which they were served.
            update relevo.lanes as l
            set turn = g.turn,
                full_at = case
                    when _lane_rate is null then l.full_at
                    when _burst is null then _now + _lane_span
                    else greatest(l.full_at, _now)
                         + g.taken * _lane_span::double precision / _lane_rate
                end,
                begun = case
                    when _lane_rate is null or _burst is not null then l.begun
                    else relevo.rate_noted(_now, l.begun, g.taken::integer, _lane_span)
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
            perform relevo.lull_lanes(
                _now, _queue, _quiet, _lane_rate, _lane_span, _ordered, _burst
            );
        end if;
    end loop;

    if not _ordered and cardinality(ids) < _room then
        select * into _judged
        from relevo.take_plain(
            _now, _queue, _room - cardinality(ids), _fresh, _gated, _token, _worker, _lease
        );
        ids := ids || _judged.taken;
        _again := least(_again, _judged.due);
    end if;
    if _rate is not null and cardinality(ids) > 0 then
        update relevo.queues
        set full_at = case
                when _burst is null then _now + _span
                else greatest(full_at, _now)
                     + cardinality(ids) * _span::double precision / _rate
            end,
            begun = case
                when _burst is null
                then relevo.rate_noted(_now, begun, cardinality(ids), _span)
            end
        where queue = _queue
        returning relevo.rate_due(_now, full_at, begun, _rate, _span, _burst) into due;
    end if;
    due := least(case when due > _now then due end, _again);
end $$;

-- Takes up to `_count` due jobs, shared over the queues, which come in the order of their turns.
-- If there were fewer, a last row without an id says in `inserted_at` when the next one is due.
create function relevo.claim_jobs(
    _skew bigint, _queues text[], _limits integer[], _lane_limits integer[], _rates integer[],
    _spans bigint[], _lane_rates integer[], _lane_spans bigint[], _ordered boolean[],
    _count integer, _token bigint, _worker text, _lease bigint, _bursts integer[]
) returns table (
    id uuid, queue text, kind text, payload bytea, attempt integer, attempts integer, key text,
    lane text, thread text, cause text, meta bytea, flow text, node text, keep bigint,
    inserted_at bigint, claimed_at bigint, priority smallint, run_at bigint, seq bigint,
    turn integer
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
                node, keep, inserted_at, claimed_at, priority, run_at, seq, turn;
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
            node, keep, inserted_at, claimed_at, priority, run_at, seq, turn
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
            null::integer
        where _due < 9000000000000000000;
    end if;
end $$;

-- For processes that were started before.
create or replace function relevo.claim_jobs(
    _skew bigint, _queues text[], _limits integer[], _lane_limits integer[], _rates integer[],
    _spans bigint[], _lane_rates integer[], _lane_spans bigint[], _ordered boolean[],
    _count integer, _token bigint, _worker text, _lease bigint
) returns table (
    id uuid, queue text, kind text, payload bytea, attempt integer, attempts integer, key text,
    lane text, thread text, cause text, meta bytea, flow text, node text, keep bigint,
    inserted_at bigint, claimed_at bigint, priority smallint, run_at bigint, seq bigint
)
language sql
as $$
select
    id, queue, kind, payload, attempt, attempts, key, lane, thread, cause, meta, flow, node, keep,
    inserted_at, claimed_at, priority, run_at, seq
from relevo.claim_jobs(
    _skew, _queues, _limits, _lane_limits, _rates, _spans, _lane_rates, _lane_spans, _ordered,
    _count, _token, _worker, _lease, '{}'::integer[]
)
$$;

-- Makes jobs ready again with fresh attempts; answers those for which it could.
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
            attempt = 0, run_at = w.due, park = null
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

-- Changes jobs that are not running nor done; null leaves a thing as it is. Answers those changed.
create or replace function relevo.edit_jobs(
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
        array_agg(queue) filter (where state in (-1, 0)),
        array_agg(lane) filter (where state in (-1, 0)),
        array_agg(run_at) filter (where state in (-1, 0))
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

-- Live and ended jobs in one shape.
create or replace view relevo.everything as
select
    id, queue, kind, state, payload, priority, attempt, attempts, inserted_at, run_at,
    null::bigint as ended_at, lease_until, worker, claimed_at, key, keyhash, forever, lane_name as lane,
    park,
    thread, cause, meta, flow, node, result, error_type, error_message, error_trace, fingerprint,
    note, history, coalesce(turn, 0) as turn, coalesce(remember, 0) as remember,
    latest is true as latest
from relevo.jobs
union all
select
    id, queue, kind, state, payload, priority, attempt, attempts, inserted_at, run_at,
    ended_at, null, worker, claimed_at, key, keyhash, forever, lane_name, null,
    thread, cause, meta, flow, node, result, error_type, error_message, error_trace, fingerprint,
    note, history, coalesce(turn, 0), coalesce(remember, 0), latest is true
from relevo.ended;
