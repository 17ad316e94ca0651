-- The end of a statement that has kept new deliveries with their jobs. It saw the store as it was
-- when it began, and may have waited since for somebody with the same key: if a queue no longer
-- takes everything, or one of the jobs has ended before, all of it is undone. Otherwise the
-- workers are woken.
create function relevo.arrived(_queues text[], _jobs uuid[]) returns void
language plpgsql
set enable_seqscan = off
as $$
begin
    if exists (
        select from relevo.queues
        where queue = any (_queues) and (mode = 'draining' or ordered)
    ) or exists (
        select from relevo.ended where id = any (_jobs)
    ) then
        raise sqlstate 'RV001' using message = 'a delivery is not as new as it seemed';
    end if;
    perform relevo.wake(_queues);
end $$;
