-- Readable from 9001 on.
-- What the version after it takes away: code that calls these is gone.
do $$
declare
    _old regprocedure;
begin
    for _old in
        select oid
        from pg_catalog.pg_proc
        where proname = 'settle_jobs'
            and pronamespace = (
                select relnamespace
                from pg_catalog.pg_class
                where oid = 'relevo.jobs'::pg_catalog.regclass
            )
        order by pronargs
    loop
        execute format('drop function %s', _old);
    end loop;
end $$;
