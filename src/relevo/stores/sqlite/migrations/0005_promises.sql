-- turn: how often a run of the job has ended by plan. remember: milliseconds for which its id still
-- answers once its row is gone. joined: commands with another payload that joined it.
-- due_at: what run_at was before the job had to wait behind another of its key.
-- forever: 1 as before; 2: unique is "latest"; 3: so too, and a newer job of its key has started.
alter table relevo_jobs add column turn integer not null default 0;
alter table relevo_jobs add column remember integer not null default 0;
alter table relevo_jobs add column joined integer not null default 0;
alter table relevo_jobs add column digest blob;
alter table relevo_jobs add column due_at integer;
create index relevo_jobs_latest on relevo_jobs (key, queue) where forever = 2;

-- The newest commands that joined a job with another payload, in a ring.
create table relevo_joins (
    job integer not null,  -- relevo_jobs.seq
    slot integer not null,
    line integer not null,
    id text not null,
    cause text,
    at integer not null,
    primary key (job, slot)
) without rowid;

-- Ids that have no row in relevo_jobs: sixteen bytes each.
create table relevo_remembered (
    id primary key,
    stands text,  -- the job that stands for it; null: itself, which has been removed
    until_at integer not null
) without rowid;
create index relevo_remembered_age on relevo_remembered (until_at);

-- log: what a rate has let through of late, as JSON: pairs of a moment and a number of jobs.
alter table relevo_queues add column latest integer not null default 0;
alter table relevo_queues add column log text not null default '';
alter table relevo_lanes add column log text not null default '';
