-- The keys of deliveries that have no line in relevo_delivered yet, one row for each batch.
create table relevo_fresh (
    no integer primary key autoincrement,  -- never used again: who has seen it has seen it
    first integer not null,  -- relevo_deliveries.seq of the first; the others follow it
    hashes blob not null  -- sixteen bytes each, zeros where there is no key
);
