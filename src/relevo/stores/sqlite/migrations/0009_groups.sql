-- Groups of jobs: how far each has come. Its job waits by an edge to itself as long as the group is
-- not closed, and by an edge of policy 'tally' for each member that has not ended; both go at once
-- when they are of no use, so that no more edges are there than live members.
create table relevo_groups (
    seq integer primary key,  -- relevo_jobs.seq, of the job that waits for all of them
    name text not null,
    gate text not null,
    members integer not null default 0,
    done integer not null default 0,
    dead integer not null default 0,
    cancelled integer not null default 0,
    opened_at integer not null,
    closed_at integer
);
