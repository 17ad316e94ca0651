-- Letters in the order in which they were posted: of two with the same key the later is the newer.
alter table relevo_letters rename to relevo_letters_by_id;

create table relevo_letters (
    seq integer primary key autoincrement,
    id text not null unique,
    job blob,  -- packed; null once its end is all that is kept
    posted_at integer not null,
    carried_at integer,
    closed_at integer
);

insert into relevo_letters (id, job, posted_at, carried_at, closed_at)
select id, job, posted_at, carried_at, closed_at
from relevo_letters_by_id
order by posted_at, id;

drop table relevo_letters_by_id;

create index relevo_letters_waiting on relevo_letters (seq)
    where carried_at is null and closed_at is null;

create index relevo_letters_carried on relevo_letters (seq)
    where carried_at is not null and closed_at is null;

create index relevo_letters_closed on relevo_letters (closed_at)
    where closed_at is not null;
