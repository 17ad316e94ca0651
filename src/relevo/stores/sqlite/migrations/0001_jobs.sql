-- Jobs, live and ended, in one table: an ending is an update in place.
--
-- The columns that a claim and an ending write are born with values as wide as the ones to come, so
-- that the row is overwritten where it lies instead of splitting its page. 1099511627776 reads as
-- "no moment yet", 4611686018427387904 as "no lease yet", 999 as "nobody".
--
-- state: 10 ready or scheduled (run_at tells), 20 running, 30 done,
--        40 waiting, 50 parked, 60 held, 70 dead, 80 cancelled
create table relevo_jobs (
    seq integer primary key,  -- rising, never used again; what leases and history point at
    state integer not null,
    priority integer not null,
    attempt integer not null default 0,
    attempts integer not null,
    runs integer not null default 0,  -- lines written to relevo_attempts so far
    waited integer not null default 0,  -- 1: another job waits for this one
    forever integer not null default 0,  -- 1: its key answers for good
    run_at integer not null,
    token integer not null default 4611686018427387904,
    until_at integer not null default 1099511627776,  -- running: lease end; done: keep until
    claimed_at integer not null default 1099511627776,
    ended_at integer not null default 1099511627776,
    worker integer not null default 999,  -- relevo_names
    inserted_at integer not null,
    keep integer not null,
    id text not null,
    queue text not null,
    kind text not null,
    key text,
    lane text,  -- '' in an ordered queue where the job named none
    thread text,  -- null where the job starts its own
    cause text,
    flow text,
    node text,
    park text,
    fingerprint text,
    note text,
    payload blob not null,
    meta blob,
    result blob,
    failure text
);

-- A claim and an ending weigh every condition below for every row: what is cheap to weigh and seldom
-- true comes first.
create unique index relevo_jobs_id on relevo_jobs (id);
create index relevo_jobs_ready on relevo_jobs (queue, priority, run_at)
    where state = 10 and lane is null;
create index relevo_jobs_running on relevo_jobs (until_at) where state = 20;
create index relevo_jobs_done on relevo_jobs (queue, until_at) where state = 30;
create index relevo_jobs_aside on relevo_jobs (state, queue, ended_at)
    where state not between 10 and 30;
create index relevo_jobs_failed on relevo_jobs (fingerprint, queue, state, ended_at)
    where fingerprint is not null;
create index relevo_jobs_parked on relevo_jobs (park) where park is not null;
create index relevo_jobs_lanes on relevo_jobs (queue, lane, priority, run_at)
    where lane is not null and state = 10;
create index relevo_jobs_lanes_due on relevo_jobs (queue, run_at)
    where lane is not null and state = 10;
create index relevo_jobs_lanes_live on relevo_jobs (queue, lane, seq)
    where lane is not null and state not in (30, 70, 80);
create index relevo_jobs_key on relevo_jobs (key, queue, state) where key is not null;
create index relevo_jobs_thread on relevo_jobs (thread) where thread is not null;
create index relevo_jobs_flow on relevo_jobs (flow) where flow is not null;

-- Runs that did not end as done; the last 50 of a job, in a ring.
create table relevo_attempts (
    job integer not null,  -- relevo_jobs.seq
    slot integer not null,
    line integer not null,
    number integer not null,
    outcome text not null,
    began_at integer not null,
    ended_at integer not null,
    worker integer not null,
    failure text,
    primary key (job, slot)
) without rowid;

-- Who waits for whom.
create table relevo_edges (
    parent integer not null,  -- relevo_jobs.seq
    place integer not null,
    child text not null,  -- relevo_jobs.id
    policy text not null,
    pending integer not null,  -- 1: not ended yet
    primary key (parent, place)
) without rowid;
create index relevo_edges_child on relevo_edges (child);
create index relevo_edges_pending on relevo_edges (parent) where pending = 1;

-- Keys that answer for good: hashes, never the text.
create table relevo_keys (
    queue text not null,
    hash blob not null,
    id text not null,
    lost integer not null default 0,  -- 1: its job died and was pruned
    primary key (queue, hash)
) without rowid;
create index relevo_keys_id on relevo_keys (id);

create table relevo_queues (
    name text primary key,
    mode text not null default 'open',
    ordered integer not null default 0,  -- a worker asked for strict order
    laned integer not null default 0,  -- a job named a lane
    tat integer not null default 0  -- when the rate is used up, in microseconds
) without rowid;

create table relevo_lanes (
    queue text not null,
    lane text not null,
    served integer not null default 0,  -- rising: the least was served longest ago
    tat integer not null default 0,
    served_at integer not null default 0,
    primary key (queue, lane)
) without rowid;

create table relevo_names (
    no integer primary key,
    name text not null unique
);

create table relevo_notes (
    kind text not null,
    name text not null,
    value blob not null,
    version integer not null,
    expires_at integer,
    updated_at integer not null,
    primary key (kind, name)
) without rowid;
create index relevo_notes_expiry on relevo_notes (expires_at) where expires_at is not null;

create table relevo_effects (
    seq integer primary key,
    job text not null,
    name text not null,
    queue text not null,
    key text not null,
    state text not null,
    result blob,
    error text not null,
    attempt integer not null,
    run text not null,
    thread text not null,
    created_at integer not null,
    updated_at integer not null,
    decided_by text not null,
    unique (job, name)
);
create index relevo_effects_state on relevo_effects (state, updated_at);

create table relevo_workers (
    id text primary key,
    info text not null,  -- JSON
    started_at integer not null,
    beat_at integer not null,
    silent_at integer not null
) without rowid;

create table relevo_audit (
    seq integer primary key,
    who text not null,
    verb text not null,
    target text not null,
    note text not null,
    at integer not null,
    before text not null,
    after text not null
);
create index relevo_audit_target on relevo_audit (target);

-- 'queues': rises when relevo_queues changes; 'boot' and 'anchor': the common clock.
create table relevo_meta (
    name text primary key,
    value text not null
) without rowid;
insert into relevo_meta (name, value) values ('queues', '1');
