-- The outbox: jobs on their way to a store that lives elsewhere, and the ends of such jobs.
create table relevo_letters (
    id text primary key,
    job blob,  -- packed; null once its end is all that is kept
    posted_at integer not null,
    carried_at integer,
    closed_at integer
) without rowid;

create index relevo_letters_waiting on relevo_letters (id)
    where carried_at is null and closed_at is null;

create index relevo_letters_carried on relevo_letters (id)
    where carried_at is not null and closed_at is null;

create index relevo_letters_closed on relevo_letters (closed_at)
    where closed_at is not null;
