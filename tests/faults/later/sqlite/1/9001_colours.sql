-- Readable from 0009 on.
-- What a later version adds: a column, a table, and a trigger that fills it for older code, too.
alter table relevo_jobs add column colour text not null default 'plain';
alter table relevo_deliveries add column colour text;
create table relevo_colours (seq integer primary key, colour text not null);
create trigger relevo_coloured after insert on relevo_jobs
begin
    insert or ignore into relevo_colours values (new.seq, new.colour);
end;
