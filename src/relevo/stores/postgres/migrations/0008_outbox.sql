-- The outbox: jobs on their way to a store that lives elsewhere, and the ends of such jobs.
create table relevo.letters (
    id uuid primary key,
    job bytea,  -- packed; null once its end is all that is kept
    posted_at bigint not null,
    carried_at bigint,
    closed_at bigint
);

create index letters_waiting on relevo.letters (id)
    where carried_at is null and closed_at is null;

create index letters_carried on relevo.letters (id)
    where carried_at is not null and closed_at is null;

create index letters_closed on relevo.letters (closed_at)
    where closed_at is not null;
