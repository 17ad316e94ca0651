-- As before, but a newer job that waits for its children replaces none until they have ended: it
-- may die with them.
create or replace function relevo.judge_latest(
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

        select id, seq, lane, (state in (-1, 0) and run_at <= _now) as is_due
        into _newest
        from relevo.jobs
        where queue = _queue and keyhash = _one.hash and latest and state <> 2
        order by seq desc
        limit 1;
        _olds := array(
            select id
            from relevo.jobs
            where queue = _queue and keyhash = _one.hash and latest and seq < _newest.seq
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
