-- Readable from 0022 on.
-- What a later version adds: columns, an index, and a function in the place of one that stays.
alter table relevo.jobs add column colour text not null default 'plain';
alter table relevo.ended add column colour text;
alter table relevo.deliveries add column colour text;
create index jobs_colour on relevo.jobs (colour) where colour <> 'plain';
do $$
declare
    _newest constant oid := (
        select oid
        from pg_catalog.pg_proc
        where proname = 'settle_jobs'
            and pronamespace = (
                select relnamespace
                from pg_catalog.pg_class
                where oid = 'relevo.jobs'::pg_catalog.regclass
            )
        order by pronargs desc
        limit 1
    );
begin
    execute replace(
        pg_get_functiondef(_newest), 'settle_jobs(', 'settle_coloured_jobs('
    );
end $$;
