-- Stores jobs. Answers (place, id, verdict) for every job that is not simply new.
--
-- Arrays run in parallel, one element a job; an empty one stands for nulls. Edges are a second set
-- of parallel arrays. A verdict is in_progress, done, reopened or closed.
create function relevo.insert_jobs(
    _skew bigint, _ids uuid[], _queues text[], _kinds text[], _payloads bytea[], _delays bigint[],
    _moments bigint[], _priorities smallint[], _attempts integer[], _keeps bigint[],
    _hashes uuid[], _keys text[], _forevers boolean[], _lanes uuid[],
    _lane_names text[], _threads text[],
    _causes text[], _metas bytea[], _flows text[], _nodes text[], _bundles text[],
    _parents uuid[], _children uuid[], _fatals boolean[]
) returns table (place bigint, id uuid, verdict text)
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
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
                lane_name, thread, cause, flow, node, meta, payload
            )
            select
                id, _base + place, coalesce(moment, _now + coalesce(delay, 0)), _now, keep,
                attempts, priority, queue, kind, lane, lane_name, thread, cause, flow, node, meta,
                payload
            from unnest(
                _ids, _queues, _kinds, _payloads, _delays, _moments, _priorities, _attempts,
                _keeps, _lanes, _lane_names, _threads, _causes, _metas, _flows, _nodes
            ) with ordinality as n (
                id, queue, kind, payload, delay, moment, priority, attempts, keep, lane,
                lane_name, thread, cause, meta, flow, node, place
            );
            if exists (select from relevo.ended as e where e.id = any (_ids)) then
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

    if _draining is not null then
        select array_agg(place)
        into _shut
        from unnest(_queues, _bundles) with ordinality as n (queue, bundle, place)
        where queue = any (_draining)
            or bundle in (
                select bundle
                from unnest(_queues, _bundles) as b (queue, bundle)
                where queue = any (_draining) and bundle is not null
            );
        loop  -- a parent is not stored without its children
            select array_agg(distinct p.place)
            into _left
            from unnest(_parents, _children) as e (parent, child)
            join unnest(_ids) with ordinality as p (id, place) on p.id = e.parent
            join unnest(_ids) with ordinality as c (id, place) on c.id = e.child
            where c.place = any (_shut) and not p.place = any (_shut);
            exit when _left is null;
            _shut := _shut || _left;
        end loop;
        return query select place, _ids[place], 'closed' from unnest(_shut) as s (place);
        select array_agg(place::bigint)
        into _todo
        from generate_series(1, _size) as n (place)
        where not place = any (_shut);
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
                _metas, _flows, _nodes
            ) with ordinality as n (
                id, queue, kind, payload, delay, moment, priority, attempts, keep, keyhash, key,
                forever, lane, lane_name, thread, cause, meta, flow, node, place
            )
            where _todo is null or place = any (_todo)
        ), stored as (
            insert into relevo.jobs (
                id, seq, run_at, inserted_at, keep, attempts, state, priority, forever, keyhash,
                queue, kind, key, lane, lane_name, thread, cause, flow, node, meta, payload
            )
            select
                id, seq, coalesce(moment, _now + coalesce(delay, 0)), _now, keep, attempts,
                case when _ids[place] = any (_parents) then 2 else 0 end, priority,
                coalesce(forever, false), keyhash, queue, kind, key, lane, lane_name, thread,
                cause, flow, node, meta, payload
            from newcomers
            -- In the order of their hashes: two batches with the same keys must not cross.
            order by keyhash, place
            on conflict do nothing
            returning id
        )
        select coalesce(array_agg(id), '{}') into _stored from stored;

        -- One that ended before is not stored again. Looked up after the insert, so that one that
        -- was just ending is seen as well.
        if exists (select from relevo.ended as e where e.id = any (_stored)) then
            with again as (
                delete from relevo.jobs as j
                using relevo.ended as e
                where j.id = e.id and j.id = any (_stored)
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
            select place, id, queue, hash, coalesce(forever, false) as forever
            from unnest(_ids, _queues, _hashes, _forevers) with ordinality
                as n (id, queue, hash, forever, place)
            where place = any (_left)
            order by place
        loop
            _verdict := null;
            select j.id as job into _found
            from relevo.jobs as j
            where j.id = _one.id;
            if found then
                _verdict := 'in_progress';
            end if;
            if _verdict is null and not _one.forever then
                select e.id as job into _found
                from relevo.ended as e
                where e.id = _one.id;
                if found then
                    _verdict := 'done';
                end if;
            end if;
            if _verdict is null and _one.hash is not null then
                select j.id as job into _found
                from relevo.jobs as j
                where j.keyhash = _one.hash and j.queue = _one.queue;
                if found then
                    _verdict := 'in_progress';
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
                    delete from relevo.ended as e where e.id = _found.job;
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
                end if;
            end if;
            if _verdict is null then
                _todo := _todo || _one.place;
            else
                _judged := _judged || _one.place;
                _stands[_one.place] := _found.job;
                return query select _one.place, _found.job::uuid, _verdict;
            end if;
        end loop;
        exit when cardinality(_todo) = 0;
        _round := _round + 1;
        if _round > 20 then
            raise serialization_failure using message = 'the keys of this batch will not settle';
        end if;
    end loop;

    if cardinality(_reopened) > 0 then
        return query
        select place, _targets[place], 'reopened'
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
