-- Letters in the order in which they were posted: of two with the same key the later is the newer.
alter table relevo.letters add column seq bigint generated always as identity;

drop index relevo.letters_waiting;
drop index relevo.letters_carried;

create index letters_waiting on relevo.letters (seq)
    where carried_at is null and closed_at is null;

create index letters_carried on relevo.letters (seq)
    where carried_at is not null and closed_at is null;
