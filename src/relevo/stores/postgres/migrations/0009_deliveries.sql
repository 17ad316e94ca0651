-- Deliveries in full, for as long as people may want to read them.
create table relevo.deliveries (
    id uuid not null,
    received_at bigint not null,
    generation integer not null,
    status smallint not null,
    rejected boolean not null,
    source text not null,
    key text,
    hash uuid,  -- of the key; null where it was rejected
    thread text,  -- null where it starts its own, '' where it has none
    method text not null,
    path text not null,
    query text not null,
    reason text not null,
    jobs bytea not null,  -- sixteen bytes each
    print uuid not null,  -- the body's hash
    headers bytea not null,
    answer bytea,  -- of one rejected; the others' are in relevo.delivered
    body bytea not null
);

-- Rejected and accepted apart: a flood of forgeries must not stand between people and the rest.
create unique index deliveries_id on relevo.deliveries (rejected, id);
create index deliveries_source on relevo.deliveries (source, rejected, id);
create index deliveries_age on relevo.deliveries (rejected, received_at);
create index deliveries_thread on relevo.deliveries using hash (thread) where thread <> '';

-- What was accepted under which key, and the answer, for good: the key's hash, never the text.
create table relevo.delivered (
    hash uuid not null,
    id uuid not null,
    received_at bigint not null,
    repeats bigint not null default 0,
    repeated_at bigint not null default 0,
    generation integer not null,
    status smallint not null,
    differs boolean not null default false,
    source text not null,
    answer bytea not null,
    primary key (hash, source, generation)
) with (fillfactor = 90);

-- What was accepted, as far as it is still there, without its body. Here and below, row by row
-- whatever the statistics say: whoever asks means few of many.
create view relevo.accepted as
select
    l.hash, l.id, l.source, l.generation, l.received_at, l.status, l.answer, l.repeats,
    l.repeated_at, l.differs, f.key, f.rejected, f.reason, f.method, f.path, f.query, f.headers,
    f.jobs, f.thread, f.print
from relevo.delivered as l
left join lateral (
    select * from relevo.deliveries as d where not d.rejected and d.id = l.id limit 1
) as f on true;

-- Everything that was delivered and is still there, with its body.
create view relevo.letterbox as
select
    f.hash, f.id, f.source, f.generation, f.received_at, f.status,
    coalesce(l.answer, f.answer) as answer, coalesce(l.repeats, 0) as repeats,
    coalesce(l.repeated_at, 0) as repeated_at, coalesce(l.differs, false) as differs, f.key,
    f.rejected, f.reason, f.method, f.path, f.query, f.headers, f.jobs, f.thread, f.body
from relevo.deliveries as f
left join lateral (
    select *
    from relevo.delivered as d
    where d.hash = f.hash and d.source = f.source and d.generation = f.generation
    limit 1
) as l on true;

-- Those items that are wanted; an empty array stands for nulls, and stays empty.
create function relevo.picked(_items anyarray, _wanted boolean[]) returns anyarray
language sql immutable
as $$
select case
    when cardinality(_items) = 0 then _items
    else array(select item from unnest(_items, _wanted) as i (item, wanted) where wanted)
end
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
    _parents uuid[], _children uuid[], _fatals boolean[]
) returns table (
    place bigint, verdict text, moment bigint, stands bytea, known relevo.accepted
)
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
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
                        _children, _fatals
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
                        _parents, _children, _fatals
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

-- Removes deliveries that are old in full; the line with the answer stays.
create function relevo.prune_deliveries(
    _skew bigint, _keep bigint, _rejected_keep bigint, _limit integer
) returns integer
language plpgsql
set enable_seqscan = off
as $$
declare
    _now constant bigint := relevo.moment(_skew);
    _gone integer;
    _n integer;
begin
    delete from relevo.deliveries
    where ctid = any (array(
        select ctid
        from relevo.deliveries
        where rejected and received_at <= _now - _rejected_keep
        limit _limit
        for update skip locked
    ));
    get diagnostics _gone = row_count;
    delete from relevo.deliveries
    where ctid = any (array(
        select ctid
        from relevo.deliveries
        where not rejected and received_at <= _now - _keep
        limit greatest(_limit - _gone, 0)
        for update skip locked
    ));
    get diagnostics _n = row_count;
    return _gone + _n;
end $$;
