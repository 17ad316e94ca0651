-- Groups of jobs: a job waits until its group is closed and every member has ended. It has an edge to
-- itself until then, and so one that is pending; each member that has not ended has an edge to it
-- that is a tally, and goes with the member's end.
--
-- Whoever adds members changes no row that others need: how many they are is added up by whoever ends
-- some. So a long transaction that adds members stands in nobody's way, but in that of closing.
--
-- Locks are taken in this order: jobs by their ids, edges, groups by their ids, and then the jobs of
-- groups that go on.
alter table relevo.edges add column tally boolean not null default false;

create table relevo.groups (
    id uuid primary key,                    -- of the job that waits
    name text not null,
    gate smallint not null default 0,       -- 0 open, 1 closed, 2 shut
    members bigint not null default 0,      -- without those in relevo.additions
    live bigint not null default 0,
    done bigint not null default 0,
    dead bigint not null default 0,
    cancelled bigint not null default 0,
    opened_at bigint not null,
    closed_at bigint
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
create index groups_opened on relevo.groups (opened_at);

create table relevo.additions (
    parent uuid not null,
    n bigint not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
create index additions_parent on relevo.additions (parent);

-- Lets the jobs of groups go on that are complete.
create function relevo.release_groups(_now bigint, _ids uuid[]) returns void
language plpgsql
set enable_seqscan = off
as $$
declare
    _queues text[];
    _lanes uuid[];
    _dues bigint[];
begin
    perform from relevo.jobs where id = any (_ids) order by id for update;
    with gone as (
        delete from relevo.edges
        where child = any (_ids) and parent = child
        returning parent
    ), released as (
        update relevo.jobs as p
        set pending = p.pending - 1, run_at = greatest(p.run_at, _now),
            state = case
                when p.pending > 1 then 2
                else relevo.open_state(p.latest, p.lane, p.claimed_at)
            end
        from gone
        where p.id = gone.parent and p.state = 2
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
end $$;

-- Adds up what was added; the groups are locked.
create function relevo.add_up(_ids uuid[]) returns void
language sql
set enable_seqscan = off
as $$
with added as (
    delete from relevo.additions
    where parent = any (_ids)
    returning parent, n
), summed as (
    select parent, sum(n)::bigint as n
    from added
    group by parent
)
update relevo.groups as g
set members = g.members + s.n, live = g.live + s.n
from summed as s
where g.id = s.parent
$$;

-- Counts members that have ended, each once, and lets the groups go on whose last they were. The edge
-- of a group's job to itself goes, too, if that is among them: it waits no more.
create function relevo.end_members(_now bigint, _ids uuid[], _states smallint[]) returns void
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    _parents uuid[];
    _counts bigint[];
    _deads bigint[];
    _cancels bigint[];
begin
    with gone as (
        delete from relevo.edges as e
        using unnest(_ids, _states) as c (id, state)
        where e.child = c.id and (e.tally or e.parent = e.child)
        returning e.parent, e.tally, c.state
    ), counted as (
        select
            parent, count(*) as n, count(*) filter (where state = 6) as dead,
            count(*) filter (where state = 7) as cancelled
        from gone
        where tally
        group by parent
    )
    select array_agg(parent), array_agg(n), array_agg(dead), array_agg(cancelled)
    into _parents, _counts, _deads, _cancels
    from counted;
    if _parents is null then
        return;
    end if;
    perform from relevo.groups where id = any (_parents) order by id for no key update;
    perform relevo.add_up(_parents);
    update relevo.groups as g
    set live = g.live - w.n, done = g.done + w.n - w.dead - w.cancelled, dead = g.dead + w.dead,
        cancelled = g.cancelled + w.cancelled
    from unnest(_parents, _counts, _deads, _cancels) as w (id, n, dead, cancelled)
    where g.id = w.id;
    _parents := array(
        select id from relevo.groups where id = any (_parents) and gate = 1 and live = 0
    );
    if cardinality(_parents) > 0 then
        perform relevo.release_groups(_now, _parents);
    end if;
end $$;

-- Closes groups, or shuts them; answers those that were changed.
create function relevo.set_gate(_skew bigint, _ids uuid[], _gate smallint) returns uuid[]
language plpgsql
set enable_seqscan = off
as $$
declare
    _now constant bigint := relevo.moment(_skew);
    _changed uuid[];
    _complete uuid[];
begin
    -- Waits for those who are adding members, who hold the row `for key share`.
    perform from relevo.groups where id = any (_ids) order by id for update;
    with changed as (
        update relevo.groups as g
        set gate = _gate, closed_at = coalesce(g.closed_at, _now)
        where g.id = any (_ids) and g.gate < _gate
            and exists (select from relevo.jobs as j where j.id = g.id and j.state = 2)
        returning g.id
    )
    select coalesce(array_agg(id), '{}') into _changed from changed;
    if _gate = 1 and cardinality(_changed) > 0 then
        perform relevo.add_up(_changed);
        _complete := array(select id from relevo.groups where id = any (_changed) and live = 0);
        if cardinality(_complete) > 0 then
            perform relevo.release_groups(_now, _complete);
        end if;
    end if;
    return _changed;
end $$;

-- Of the jobs of a call: those that wait for others, and for each whether it is to be tied to a parent
-- that waits already, or is a child of one that comes with it.
create function relevo.ties(
    _ids uuid[], _parents uuid[], _children uuid[], out waits uuid[], out joins boolean[]
)
language sql
set enable_hashjoin = on
set enable_seqscan = off
as $$
select
    array(
        select e.parent
        from unnest(_parents) as e (parent)
        where e.parent in (select id from unnest(_ids) as n (id))
        group by e.parent
    ),
    array(
        select n.id in (
            select e.child
            from unnest(_parents, _children) as e (parent, child)
            where e.child <> e.parent
        )
        from unnest(_ids) with ordinality as n (id, place)
        order by n.place
    )
$$;

-- The jobs of a call that a parent does not take which waits already: it is a group that is closed, or a
-- flow's node, and what caused them is no live child of it. What is found to be one stays one until we
-- have committed.
create function relevo.refused(
    _ids uuid[], _causes text[], _parents uuid[], _children uuid[], _fatals boolean[]
) returns uuid[]
language plpgsql
set enable_hashjoin = on
set enable_seqscan = off
as $$
declare
    _wanted uuid[];
    _askers uuid[];
begin
    _wanted := array(
        select parent
        from unnest(_parents, _children) as e (parent, child)
        where parent <> child and not parent in (select id from unnest(_ids) as n (id))
        group by parent
    );
    if cardinality(_wanted) = 0 then
        return '{}';
    end if;
    _askers := array(
        select cause::uuid
        from unnest(_causes) as n (cause)
        where cause ~ '^[0-9a-f]{32}$'
        group by cause
    );
    perform
    from relevo.jobs as j
    where j.id = any (_wanted) and not exists (select from relevo.groups as g where g.id = j.id)
    order by j.id
    for no key update;
    perform
    from relevo.edges
    where child = any (_askers) and parent = any (_wanted)
    order by child, parent
    for share;
    perform from relevo.groups where id = any (_wanted) order by id for key share;
    return array(
        select e.child
        from unnest(_parents, _children) as e (parent, child)
        join unnest(_ids, _causes) as n (id, cause) on n.id = e.child
        left join relevo.groups as g on g.id = e.parent
        where e.parent = any (_wanted)
            and not (
                exists (select from relevo.jobs as p where p.id = e.parent and p.state = 2)
                and (
                    coalesce(g.gate, 1) = 0
                    or coalesce(g.gate, 1) = 1 and n.cause ~ '^[0-9a-f]{32}$' and exists (
                        select
                        from relevo.edges as o
                        where o.child = n.cause::uuid and o.parent = e.parent and o.open
                    )
                )
            )
    );
end $$;

-- Ties jobs to parents that wait already: each member of this call that was not stored before, by the
-- job that stands for it. One that has ended, and is a tally, counts at once.
create function relevo.join_parents(
    _now bigint, _members uuid[], _holders uuid[], _ids uuid[], _parents uuid[], _children uuid[],
    _fatals boolean[]
) returns void
language plpgsql
set enable_hashjoin = on
set enable_seqscan = off
as $$
declare
    _tied uuid[];
    _above uuid[];
    _policies boolean[];
    _over uuid[];
    _ends smallint[];
begin
    -- One that another has stored does not end while it is tied.
    perform
    from relevo.jobs
    where id in (
        select holder
        from unnest(_members, _holders) as h (member, holder)
        where holder <> member
    )
    order by id
    for no key update;
    select array_agg(holder), array_agg(parent), array_agg(fatal)
    into _tied, _above, _policies
    from (
        select distinct h.holder, e.parent, e.fatal
        from unnest(_parents, _children, _fatals) as e (parent, child, fatal)
        join unnest(_members, _holders) as h (member, holder) on h.member = e.child
        where e.parent <> e.child
            and (e.fatal is null or not e.parent in (select id from unnest(_ids) as n (id)))
    ) as wanted;
    if _tied is null then
        return;
    end if;
    update relevo.jobs set child = true where id = any (_tied) and not child;

    with tied as (
        insert into relevo.edges (child, parent, fatal, ord, tally, open)
        select
            t.holder, t.parent, coalesce(t.fatal, false), 10000, t.fatal is null, j.id is not null
        from unnest(_tied, _above, _policies) as t (holder, parent, fatal)
        left join relevo.jobs as j on j.id = t.holder
        where j.id is not null or t.fatal is not null
        on conflict do nothing
        returning parent, tally, open
    ), added as (
        insert into relevo.additions (parent, n)
        select parent, count(*)
        from tied
        where tally
        group by parent
    )
    update relevo.jobs as p
    set pending = p.pending + w.n
    from (select parent, count(*) as n from tied where open and not tally group by parent) as w
    where p.id = w.parent and p.state = 2;

    -- Those that have ended: as if they had been members for a moment.
    select array_agg(t.holder), array_agg(t.parent), array_agg(coalesce(d.state, 5::smallint))
    into _over, _above, _ends
    from unnest(_tied, _above, _policies) as t (holder, parent, fatal)
    left join relevo.ended as d on d.id = t.holder
    where t.fatal is null and not exists (select from relevo.jobs as j where j.id = t.holder);
    if _over is not null then
        insert into relevo.edges (child, parent, fatal, ord, tally)
        select child, parent, false, 0, true
        from unnest(_over, _above) as o (child, parent)
        on conflict do nothing;
        insert into relevo.additions (parent, n)
        select parent, count(*)
        from unnest(_above) as o (parent)
        group by parent;
        perform relevo.end_members(_now, _over, _ends);
    end if;
end $$;

-- As before, but for the edges of members.
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
        perform relevo.end_members(_now, _ids, _states);
        with closed as (
            update relevo.edges as e
            set open = false
            from unnest(_ids, _states) as c (id, state)
            where e.child = c.id and e.open and not e.tally
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
    where id in (select child from relevo.edges where parent = any (_parents) and not tally)
    order by id
    for no key update;

    update relevo.jobs
    set child = true
    where id in (select child from relevo.edges where parent = any (_parents) and not tally)
        and not child;

    update relevo.edges as e
    set open = exists (select from relevo.jobs as j where j.id = e.child)
    where e.parent = any (_parents) and not e.tally;

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
            select id, (
                select count(*)
                from relevo.edges as e
                where e.parent = id and e.open and not e.tally
            ) as n
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

create or replace function relevo.insert_jobs(
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
    _waits uuid[] := '{}';        -- those of this call that wait for others
    _joins boolean[] := '{}';     -- whether each is to be tied to a parent that waits already
    _refused uuid[] := '{}';      -- those that such a parent does not take
    _again bigint[] := '{}';      -- places that were stored before, by their own ids
begin
    select
        array_agg(queue) filter (where mode = 'draining'),
        array_agg(queue) filter (where ordered)
    into _draining, _ordered
    from relevo.queues
    where queue = any (_queues);

    if cardinality(_parents) > 0 then
        select waits, joins
        into _waits, _joins
        from relevo.ties(_ids, _parents, _children);
    end if;

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
            _again := _again || _one.place;
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
            from unnest(_parents, _children, _fatals) as e (parent, child, fatal)
            join unnest(_ids) with ordinality as p (id, place) on p.id = e.parent
            join unnest(_ids) with ordinality as c (id, place) on c.id = e.child
            where e.fatal is not null and c.place = any (_shut)
                and not p.place = any (_shut || _judged);
            exit when _left is null;
            _shut := _shut || _left;
        end loop;
        return query
        select place, _ids[place], 'closed', false from unnest(_shut) as s (place);
    end if;
    if true = any (_joins) then
        _refused := relevo.refused(_ids, _causes, _parents, _children, _fatals);
        if cardinality(_refused) > 0 then
            -- What is in a bundle was promised: it is stored all the same, and tied to none.
            _left := array(
                select place
                from unnest(_ids, _bundles) with ordinality as n (id, bundle, place)
                where id = any (_refused) and bundle is null and not place = any (_shut || _judged)
                    and not exists (select from relevo.jobs as j where j.id = n.id)
                    and not exists (select from relevo.ended as e where e.id = n.id)
            );
            _shut := _shut || _left;
            return query
            select place, _ids[place], 'late', false from unnest(_left) as s (place);
        end if;
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
                latest, digest, remember, turn, child
            )
            select
                id, seq, coalesce(moment, _now + coalesce(delay, 0)), _now, keep, attempts,
                case
                    when _ids[place] = any (_waits) then 2
                    else relevo.open_state(latest, lane, null)
                end,
                priority,
                coalesce(forever, false), keyhash, queue, kind, key, lane, lane_name, thread,
                cause, flow, node, meta, payload, nullif(latest, false), digest,
                nullif(remember, 0), turn, coalesce(_joins[place], false)
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
                    _again := _again || _one.place;
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
                if _found.job = _one.id then
                    _again := _again || _one.place;
                end if;
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

    if cardinality(_waits) > 0 then
        insert into relevo.edges (child, parent, fatal, ord)
        select coalesce(_stands[c.place], e.child), _targets[p.place], e.fatal, e.ord
        from unnest(_parents, _children, _fatals) with ordinality
            as e (parent, child, fatal, ord)
        join unnest(_ids) with ordinality as p (id, place) on p.id = e.parent
        left join unnest(_ids) with ordinality as c (id, place) on c.id = e.child
        where e.fatal is not null and not p.place = any (_judged || _shut)
        on conflict do nothing;

        select array_agg(distinct _targets[place])
        into _stored
        from unnest(_ids) with ordinality as n (id, place)
        where id = any (_waits) and not place = any (_judged || _shut);
        if _stored is not null then
            perform relevo.attach_parents(_now, _stored);
            insert into relevo.groups (id, name, opened_at)
            select n.id, coalesce(n.node, ''), _now
            from unnest(_ids, _nodes) as n (id, node)
            join relevo.edges as e on e.child = n.id and e.parent = n.id
            where n.id = any (_stored)
            on conflict do nothing;
        end if;
    end if;
    if true = any (_joins) then
        perform relevo.join_parents(
            _now, array_agg(_ids[n.place]), array_agg(_stands[n.place]), _ids, _parents, _children,
            _fatals
        )
        from generate_series(1, _size) as n (place)
        where _joins[n.place] and not n.place = any (_again || _shut)
            and not _ids[n.place] = any (_refused)
        having count(*) > 0;
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
