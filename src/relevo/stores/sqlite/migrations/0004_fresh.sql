-- The keys of deliveries that have no line in relevo_delivered yet, one row for each batch.
create table relevo_fresh (
    no integer primary key autoincrement,  -- never used again: who has seen it has seen it
    first integer not null,  -- relevo_deliveries.seq of the first; the others follow it
    hashes blob not null  -- sixteen bytes each, zeros where there is no key
);

-- Processes of the version before, which go on until they are restarted, know nothing of fresh keys.
-- They enter the line before the delivery: one that is fresh is refused to them.
create trigger relevo_delivered_fresh before insert on relevo_delivered
when not exists (select 1 from relevo_deliveries where rejected = 0 and id = new.id)
begin
    select raise(abort, 'a newer relevo has just kept this delivery: restart this process')
    from relevo_fresh
    where instr(hashes, new.hash);
end;

-- And what they remove leaves its line.
create trigger relevo_deliveries_fresh before delete on relevo_deliveries
when old.hash is not null and old.answer is not null
begin
    insert into relevo_delivered (hash, source, generation, id, received_at, status, answer)
    values (old.hash, old.source, old.generation, old.id, old.received_at, old.status, old.answer)
    on conflict (hash, source, generation) do nothing;
end;
