-- What became of a delivery: 0 accepted, 1 refused, 2 ignored, 3 failed, 4 differs. A new column,
-- because to give the old one another type would write every delivery anew.
alter table relevo.deliveries add column state smallint not null default 0;
alter table relevo.deliveries alter column state drop default;
update relevo.deliveries set state = 1 where rejected;

-- With what reads the column: both views, and the functions that answer with a row of one.
drop view relevo.accepted cascade;
drop view relevo.letterbox;
drop function relevo.prune_deliveries;
alter table relevo.deliveries drop column rejected;

-- Each state apart: a flood of forgeries must not stand between people and the rest.
create unique index deliveries_id on relevo.deliveries (state, id);
create index deliveries_source on relevo.deliveries (source, state, id);
create index deliveries_age on relevo.deliveries (state, received_at);
-- A refused delivery keeps no other out: its key is known only to people.
create index deliveries_refused on relevo.deliveries using hash (key)
where state = 1 and key is not null;

-- What is known by its key, as far as it is still there, without its body. Here and below, row by
-- row whatever the statistics say: a question means few of many.
create view relevo.accepted as
select
    l.hash, l.id, l.source, l.generation, l.received_at, l.status, l.answer, l.repeats,
    l.repeated_at, l.differs, f.key, f.state, f.reason, f.method, f.path, f.query, f.headers,
    f.jobs, f.thread, f.print
from relevo.delivered as l
left join lateral (
    select *
    from relevo.deliveries as d
    where d.state = any ('{0, 2, 3, 4}') and d.id = l.id
    limit 1
) as f on true;

-- Everything that was delivered and is still there, with its body.
create view relevo.letterbox as
select
    f.hash, f.id, f.source, f.generation, f.received_at, f.status,
    coalesce(l.answer, f.answer) as answer, coalesce(l.repeats, 0) as repeats,
    coalesce(l.repeated_at, 0) as repeated_at, coalesce(l.differs, false) as differs, f.key,
    f.state, f.reason, f.method, f.path, f.query, f.headers, f.jobs, f.thread, f.body
from relevo.deliveries as f
left join lateral (
    select *
    from relevo.delivered as d
    where d.hash = f.hash and d.source = f.source and d.generation = f.generation
    limit 1
) as l on true;

-- Keeps deliveries and stores their jobs. Answers (0, now), then a row for every delivery that is
-- not simply new: new, with the jobs that stand for its own; done, with what is kept; or closed.
--
-- The first arrays run in parallel, one element a delivery; an empty one stands for nulls. `_owners`
-- has for each job the place of its delivery, `_letters` the jobs packed for another store: if it
-- is not empty, that is where they go. The others are those of insert_jobs.
create function relevo.receive(
    _skew bigint, _ids uuid[], _sources text[], _keys text[], _hashes uuid[],
    _generations integer[], _statuses smallint[], _states smallint[], _moments bigint[],
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
                id, received_at, generation, status, state, source, key, hash, thread, method,
                path, query, reason, jobs, print, headers, answer, body
            )
            select
                id, coalesce(moment, _now), generation, status, state, source, key, hash,
                thread, method, path, query, coalesce(reason, ''), coalesce(jobs, ''), print,
                headers, case when hash is null then answer end, body
            from unnest(
                _ids, _moments, _generations, _statuses, _states, _sources, _keys, _hashes,
                _threads, _methods, _paths, _queries, _reasons, _jobs, _prints, _headers,
                _answers, _bodies, _fresh
            ) as d (
                id, moment, generation, status, state, source, key, hash, thread, method, path,
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
                where d.state = _states[t.place] and d.id = _ids[t.place];
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

-- Writes down what came of a delivery whose function a job was to run: new, done or closed, and the
-- delivery as it is now, without its body. No row if it is gone. A `_job` of null is for one that
-- has no jobs, of which nothing has come.
--
-- `_jobs` are the jobs that stand for it, packed; the arrays are those of receive.
create function relevo.resolve(
    _skew bigint, _job uuid, _id uuid, _key text, _hash uuid, _state smallint, _status smallint,
    _reason text, _answer bytea, _jobs bytea, _letters bytea[],
    _job_ids uuid[], _queues text[], _kinds text[], _payloads bytea[], _delays bigint[],
    _runs bigint[], _priorities smallint[], _attempts integer[], _keeps bigint[],
    _job_hashes uuid[], _job_keys text[], _forevers boolean[], _lanes uuid[],
    _lane_names text[], _job_threads text[],
    _causes text[], _metas bytea[], _flows text[], _nodes text[], _bundles text[],
    _parents uuid[], _children uuid[], _fatals boolean[],
    _latests boolean[], _digests bytea[], _remembers bigint[]
) returns table (verdict text, known relevo.letterbox)
language plpgsql
set enable_seqscan = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    _any constant smallint[] := '{0, 1, 2, 3, 4}';
    _kept record;
    _known relevo.letterbox;
    _own uuid;                 -- the hash under which its line lies
    _stood bigint[] := '{}';   -- places of jobs that another one stands for,
    _standing uuid[] := '{}';  -- and those others
    _one record;
    _verdict text := 'new';
begin
    -- Two that resolve the same come here one after the other, and the second sees what the first
    -- has written.
    select state, source, generation, received_at, hash, jobs
    into _kept
    from relevo.deliveries
    where state = any (_any) and id = _id
    for update;
    if not found then
        return;
    end if;

    if not (_job is null and _kept.jobs = '' and _kept.state in (3, 4)) and not exists (
        select
        from generate_series(1, length(_kept.jobs), 16) as j (place)
        where substr(_kept.jobs, place, 16) = uuid_send(_job)
    ) then
        _verdict := 'done';
    elsif cardinality(_letters) = 0 and exists (
        select from relevo.queues where queue = any (_queues) and mode = 'draining'
    ) then
        _verdict := 'closed';
    else
        begin
            -- The lines before the jobs, as receive has them: it may wait for the same.
            update relevo.delivered
            set status = _status, answer = _answer
            where hash = _kept.hash and source = _kept.source and generation = _kept.generation
                and id = _id;
            _own := _kept.hash;
            if _hash <> _kept.hash or _kept.hash is null then
                insert into relevo.delivered as l (
                    hash, source, generation, id, received_at, status, answer, repeats,
                    repeated_at, differs
                )
                select
                    _hash, _kept.source, _kept.generation, _id, _kept.received_at, _status,
                    _answer, coalesce(repeats, 0), coalesce(repeated_at, 0),
                    coalesce(differs, false)
                from (select) as one
                left join relevo.delivered
                    on hash = _kept.hash and source = _kept.source
                    and generation = _kept.generation and id = _id
                where _hash is not null
                on conflict (hash, source, generation) do update
                set status = excluded.status, answer = excluded.answer
                where l.id = excluded.id;
                if found then
                    _own := _hash;
                end if;
            end if;

            if cardinality(_letters) > 0 then
                insert into relevo.letters (id, job, posted_at)
                select id, letter, relevo.moment(_skew)
                from unnest(_job_ids, _letters) as l (id, letter)
                on conflict (id) do nothing;
            elsif cardinality(_job_ids) > 0 then
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
            end if;
            if cardinality(_stood) > 0 then
                select string_agg(uuid_send(coalesce(s.id, j.id)), '' order by j.place)
                into _jobs
                from unnest(_job_ids) with ordinality as j (id, place)
                left join unnest(_stood, _standing) as s (place, id) on s.place = j.place;
            end if;

            update relevo.deliveries
            set state = _state, key = _key, hash = _own, reason = _reason, status = _status,
                answer = _answer, jobs = _jobs
            where state = _kept.state and id = _id;
        exception
            when sqlstate 'RV001' then
                -- A queue began to drain since we looked: all of it is undone.
                _verdict := 'closed';
        end;
    end if;

    select * into _known from relevo.letterbox where state = any (_any) and id = _id;
    _known.body := '';
    return query select _verdict, _known;
end $$;

-- Removes deliveries that are old in full; the line with the answer stays.
create function relevo.prune_deliveries(
    _skew bigint, _keep bigint, _refused_keep bigint, _failed_keep bigint, _limit integer
) returns integer
language plpgsql
set enable_seqscan = off
as $$
declare
    _now constant bigint := relevo.moment(_skew);
    _keeps constant bigint[] := array[_keep, _refused_keep, _keep, _failed_keep, _keep];
    _gone integer := 0;
    _n integer;
begin
    for _state in 0..4 loop
        delete from relevo.deliveries
        where ctid = any (array(
            select ctid
            from relevo.deliveries
            where state = _state and received_at <= _now - _keeps[_state + 1]
            limit _limit - _gone
            for update skip locked
        ));
        get diagnostics _n = row_count;
        _gone := _gone + _n;
    end loop;
    return _gone;
end $$;
