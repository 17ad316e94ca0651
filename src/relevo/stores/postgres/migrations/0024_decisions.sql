-- Readable from 0022 on.
-- What a person does to many jobs is one decision, and has one line: an act without a name has been
-- written down before, by the caller.
create or replace function relevo.write_down(
    _now bigint, _who text, _verb text, _note text, _targets text[], _befores text[],
    _afters text[]
) returns void
language sql
begin atomic
    insert into relevo.audits (who, verb, target, note, at, before, after)
    select _who, _verb, target, _note, _now, coalesce(before, ''), coalesce(after, '')
    from unnest(_targets, _befores, _afters) as a (target, before, after)
    where _who <> '';
end;
