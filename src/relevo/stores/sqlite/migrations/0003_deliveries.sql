-- Deliveries in full, for as long as people may want to read them.
create table relevo_deliveries (
    seq integer primary key,
    rejected integer not null,
    generation integer not null,
    received_at integer not null,
    status integer not null,
    id text not null,
    source text not null,
    key text,
    hash blob,  -- of the key; null where it was rejected
    thread text,  -- null where it starts its own, '' where it has none
    method text not null,
    path text not null,
    query text not null,
    reason text not null,
    jobs blob not null,  -- sixteen bytes each
    print blob not null,  -- the body's hash
    headers blob not null,
    answer blob,  -- of one rejected; the others' are in relevo_delivered
    body blob not null
);

-- Rejected and accepted apart: a flood of forgeries must not stand between people and the rest.
create unique index relevo_deliveries_id on relevo_deliveries (rejected, id);
create index relevo_deliveries_source on relevo_deliveries (source, rejected, id);
create index relevo_deliveries_age on relevo_deliveries (rejected, received_at);
create index relevo_deliveries_thread on relevo_deliveries (thread) where thread <> '';

-- What was accepted under which key, and the answer, for good: the key's hash, never the text.
create table relevo_delivered (
    hash blob not null,
    source text not null,
    generation integer not null,
    id text not null,
    received_at integer not null,
    repeats integer not null default 0,
    repeated_at integer not null default 0,
    differs integer not null default 0,
    status integer not null,
    answer blob not null,
    primary key (hash, source, generation)
) without rowid;
