-- What became of a delivery: 0 accepted, 1 refused, 2 ignored, 3 failed, 4 differs.
alter table relevo_deliveries rename column rejected to state;

-- A refused delivery keeps no other out: its key is known only to people.
create index relevo_deliveries_refused on relevo_deliveries (key)
where state = 1 and key is not null;

drop trigger relevo_delivered_fresh;

-- Processes of the version before, which go on until they are restarted, know nothing of fresh keys.
-- They enter the line before the delivery: one that is fresh is refused to them.
create trigger relevo_delivered_fresh before insert on relevo_delivered
when not exists (
    select 1 from relevo_deliveries where state in (0, 2, 3, 4) and id = new.id
)
begin
    select raise(abort, 'a newer relevo has just kept this delivery: restart this process')
    from relevo_fresh
    where instr(hashes, new.hash);
end;
