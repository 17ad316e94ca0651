-- Jobs: the live ones in a table kept small and hot, the ended ones in another.
--
-- Written for the schema `relevo`; another schema's name is put in its place before it runs.
-- Moments are milliseconds since 1970. States: 0 ready or scheduled, 1 running, 2 waiting,
-- 3 parked, 4 held, 5 done, 6 dead, 7 cancelled; the first five live in `jobs`, the rest in `ended`.

create function relevo.moment(_skew bigint) returns bigint
language sql stable
-- Not now(): a prepared statement or an open transaction would claim with an old clock.
return floor(extract(epoch from statement_timestamp()) * 1000)::bigint + _skew;

-- The order of insertion: every call takes so many numbers at once.
create sequence relevo.seq increment by 65536;
-- The order in which lanes are served.
create sequence relevo.turns;

create table relevo.jobs (
    id uuid primary key,
    seq bigint not null,
    run_at bigint not null,
    inserted_at bigint not null,
    keep bigint not null,
    lease_until bigint,
    claimed_at bigint,
    token bigint,
    attempt integer not null default 0,
    attempts integer not null,
    pending integer not null default 0,     -- children that have not ended
    -- Known to the planner: who looks for dead jobs does not look here.
    state smallint not null default 0 check (state between 0 and 4),
    priority smallint not null,
    child boolean not null default false,   -- some parent waits, or waited, for it
    gated boolean not null default false,   -- claimed under a limit: its end makes room
    forever boolean not null default false,
    keyhash uuid,
    lane uuid,                              -- a hash of its name; 0: those without, if ordered
    queue text collate "C" not null,
    kind text not null,
    key text,
    lane_name text,
    park text,
    worker text,
    thread text,                            -- null: its own id
    cause text,
    flow text,
    node text,
    error_type text,
    error_message text,
    error_trace text,
    fingerprint text,
    note text,
    history text[],                         -- JSON, one line per run that did not end well
    meta bytea,
    result bytea,
    payload bytea not null
) with (
    fillfactor = 90,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2,
    autovacuum_analyze_threshold = 10000
);

create index jobs_ready on relevo.jobs (queue, priority, run_at, seq)
    where state = 0 and lane is null;
create index jobs_lane_ready on relevo.jobs (queue, lane, priority, run_at, seq)
    where state = 0 and lane is not null;
create index jobs_lane_order on relevo.jobs (queue, lane, seq) where lane is not null;
create index jobs_lease on relevo.jobs (lease_until) where state = 1;
create index jobs_gated on relevo.jobs (queue, lane) where state = 1 and gated;
create index jobs_parked on relevo.jobs (md5(park), seq) where state = 3;
create unique index jobs_key on relevo.jobs (keyhash, queue) where keyhash is not null;
create index jobs_thread on relevo.jobs using hash (thread) where thread is not null;
create index jobs_flow on relevo.jobs using hash (flow) where flow is not null;

create table relevo.ended (
    id uuid primary key,
    seq bigint not null,
    run_at bigint not null,
    inserted_at bigint not null,
    keep bigint not null,
    claimed_at bigint,
    ended_at bigint not null,
    attempt integer not null,
    attempts integer not null,
    state smallint not null check (state between 5 and 7),
    priority smallint not null,
    forever boolean not null,
    keyhash uuid,
    lane uuid,
    queue text collate "C" not null,
    kind text not null,
    key text,
    lane_name text,
    worker text,
    thread text,
    cause text,
    flow text,
    node text,
    error_type text,
    error_message text,
    error_trace text,
    fingerprint text,
    note text,
    history text[],
    meta bytea,
    result bytea,
    payload bytea not null
) with (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

create index ended_queue on relevo.ended (queue, id);
create index ended_expiry on relevo.ended ((ended_at + keep)) where state = 5;
create index ended_badly on relevo.ended (state, id) where state > 5;
create index ended_badly_at on relevo.ended (ended_at) where state > 5;
create index ended_dead on relevo.ended (queue, left(fingerprint, 100), ended_at) where state = 6;
create index ended_key on relevo.ended (keyhash) where keyhash is not null;
create index ended_thread on relevo.ended using hash (thread) where thread is not null;
create index ended_flow on relevo.ended using hash (flow) where flow is not null;

-- What outlives a job that is unique for ever: a hash, and how it ended once its row is gone.
create table relevo.keys (
    hash uuid not null,
    queue text collate "C" not null,
    job uuid not null,
    failed boolean not null default false,  -- its row was dead or cancelled, and is pruned
    primary key (hash, queue)
);

create table relevo.edges (
    child uuid not null,
    parent uuid not null,
    fatal boolean not null,                 -- policy "fail"
    open boolean not null default true,     -- the parent still counts on it
    ord integer not null,
    primary key (child, parent)
);
create index edges_parent on relevo.edges (parent);

create table relevo.queues (
    queue text collate "C" primary key,
    mode text not null default 'open',
    ordered boolean not null default false,
    full_at double precision not null default 0  -- when its token bucket is full again
);

-- A lane is awake (it has a turn), or asleep until a moment; a row goes when its last job has gone.
-- Whoever adds work holds the row `for key share`; whoever puts it to sleep needs `for update`.
create table relevo.lanes (
    queue text collate "C" not null,
    lane uuid not null,
    turn bigint,
    due bigint,
    full_at double precision not null default 0,
    primary key (queue, lane)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
create index lanes_awake on relevo.lanes (queue, turn) where turn is not null;
create index lanes_asleep on relevo.lanes (queue, due) where due is not null;
