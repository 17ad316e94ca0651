-- What is remembered beside the jobs: notes, effects, workers, and what people did.

-- Names are of any length, so that it is their hash that is unique.
create table relevo.notes (
    hash uuid primary key,
    kind text collate "C" not null,
    name text collate "C" not null,
    value bytea not null,
    version bigint not null,
    updated_at bigint not null,
    ttl bigint,
    expires_at bigint
) with (fillfactor = 70);
create index notes_order on relevo.notes (left(kind, 100), left(name, 100));
create index notes_expiry on relevo.notes (expires_at) where expires_at is not null;

create table relevo.effects (
    seq bigint generated always as identity primary key,
    hash uuid not null unique,
    job text not null,
    name text not null,
    queue text not null,
    key text not null,
    state text not null,
    result bytea,
    error text not null,
    attempt integer not null,
    run text not null,
    thread text not null,
    created_at bigint not null,
    updated_at bigint not null,
    decided_by text not null
) with (fillfactor = 80);
create index effects_job on relevo.effects using hash (job);
create index effects_open on relevo.effects (state, seq) where state <> 'confirmed';
create index effects_expiry on relevo.effects (updated_at)
    where state in ('confirmed', 'refused', 'failed');

create table relevo.workers (
    id text primary key,
    info bytea not null,
    beat_at bigint not null,
    expires_at bigint not null
) with (fillfactor = 50);

create table relevo.audits (
    seq bigint generated always as identity primary key,
    who text not null,
    verb text not null,
    target text not null,
    note text not null,
    at bigint not null,
    before text not null,
    after text not null
);
create index audits_target on relevo.audits using hash (target);
