"""Notes, effects, workers and what people did: what the store remembers beside the jobs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

import msgspec

from relevo.store import Audit, By, Effect, EffectState, Holding, Note, WorkerInfo, follows, seen
from relevo.stores.postgres import schema
from relevo.stores.postgres.lines import Record
from relevo.stores.postgres.rows import hashed, page_size
from relevo.stores.postgres.session import Session
from relevo.stores.postgres.text import clean, restore

T = TypeVar("T")
SEARCHED = 20_000
"""Effects in which a text is searched for one page: no index helps with that."""

Fetch: TypeAlias = Callable[..., Awaitable[Sequence[Record]]]
"""How a statement is run: on a line of ours, or on a caller's own connection."""

_INFO = msgspec.json.Decoder(WorkerInfo)


class Memory(Session):
    """The verbs of memory, effects, workers and audit."""

    async def recall(self, kind: str, names: Sequence[str]) -> list[Note | None]:
        return await self._recall(partial(self._upkeep.fetch, repeat=True), kind, names)

    async def recall_within(
        self, connection: Any, kind: str, names: Sequence[str]
    ) -> list[Note | None]:
        async with self._lent(connection) as driver:
            return await self._recall(driver.fetch, kind, names)

    async def _recall(self, fetch: Fetch, kind: str, names: Sequence[str]) -> list[Note | None]:
        rows = await fetch(
            self._sql("""
            select kind, name, value, version, ttl, updated_at
            from relevo.notes
            where hash = any ($2) and (expires_at is null or expires_at > relevo.moment($1))
            """),
            self._skew,
            [hashed(kind, name) for name in names],
        )
        found = {note.name: note for note in map(_note_of, rows)}
        return [found.get(name) for name in names]

    async def remember(self, notes: Sequence[Note]) -> list[bool]:
        return await self._remember(self._upkeep.fetch, notes)

    async def remember_within(self, connection: Any, notes: Sequence[Note]) -> list[bool]:
        async with self._lent(connection) as driver:
            return await self._remember(driver.fetch, notes)

    async def _remember(self, fetch: Fetch, notes: Sequence[Note]) -> list[bool]:
        written: list[bool] = []
        for batch in _distinct(notes, lambda note: (note.kind, note.name)):
            rows = await fetch(
                self._sql("""
                with wish as (
                    select *, relevo.moment($1) as now
                    from unnest(
                        $2::uuid[], $3::text[], $4::text[], $5::bytea[], $6::bigint[],
                        $7::bigint[]
                    ) with ordinality as w (hash, kind, name, value, version, ttl, place)
                ), made as (
                    insert into relevo.notes as n
                        (hash, kind, name, value, version, updated_at, ttl, expires_at)
                    select hash, kind, name, value, 1, now, ttl, now + ttl
                    from wish
                    where version = 0
                    order by hash
                    on conflict (hash) do update
                    set value = excluded.value, version = 1, updated_at = excluded.updated_at,
                        ttl = excluded.ttl, expires_at = excluded.expires_at
                    where n.expires_at <= excluded.updated_at
                    returning hash
                ), changed as (
                    update relevo.notes as n
                    set value = w.value, version = n.version + 1, updated_at = w.now, ttl = w.ttl,
                        expires_at = w.now + w.ttl
                    from wish as w
                    where n.hash = w.hash and w.version > 0 and n.version = w.version
                        and (n.expires_at is null or n.expires_at > w.now)
                    returning n.hash
                )
                select place
                from wish
                where hash in (select hash from made union all select hash from changed)
                """),
                self._skew,
                [hashed(note.kind, note.name) for note in batch],
                [clean(note.kind) for note in batch],
                [clean(note.name) for note in batch],
                [note.value for note in batch],
                [note.version for note in batch],
                [note.ttl for note in batch],
            )
            places = {row["place"] for row in rows}
            written.extend(place in places for place in range(1, len(batch) + 1))
        return written

    async def forget(self, kind: str, names: Sequence[str]) -> int:
        rows = await self._upkeep.fetch(
            self._sql("""
            with gone as (
                delete from relevo.notes
                where hash = any ($2)
                returning expires_at
            )
            select count(*)
            from gone
            where expires_at is null or expires_at > relevo.moment($1)
            """),
            self._skew,
            [hashed(kind, name) for name in names],
        )
        return rows[0]["count"]

    async def notes(self, kind: str, *, after: str = "", limit: int = 200) -> list[Note]:
        rows = await self._upkeep.fetch(
            self._sql("""
            select kind, name, value, version, ttl, updated_at
            from relevo.notes
            where left(kind, 100) = left($2, 100) and kind = $2
                and left(name, 100) >= left($3, 100) and name > $3
                and (expires_at is null or expires_at > relevo.moment($1))
            order by left(name, 100), name
            limit $4
            """),
            self._skew,
            clean(kind),
            clean(after),
            limit,
            repeat=True,
        )
        return [_note_of(row) for row in rows]

    async def intend(self, effects: Sequence[Effect]) -> list[Effect]:
        first = {(effect.job, effect.name): effect for effect in reversed(effects)}
        wanted = list(first.values())
        rows = await self._upkeep.fetch(
            self._sql("""
            insert into relevo.effects as e (
                hash, job, name, queue, key, state, result, error, attempt, run, thread, created_at,
                updated_at, decided_by
            )
            select
                hash, job, name, queue, key, state, result, error, attempt, run, thread,
                relevo.moment($1), relevo.moment($1), ''
            from unnest(
                $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
                $8::bytea[], $9::text[], $10::integer[], $11::text[], $12::text[]
            ) as w (hash, job, name, queue, key, state, result, error, attempt, run, thread)
            order by hash
            -- An update that changes nothing, because it answers with the row that was there.
            on conflict (hash) do update set job = e.job
            returning *
            """),
            self._skew,
            [hashed(effect.job, effect.name) for effect in wanted],
            [clean(effect.job) for effect in wanted],
            [clean(effect.name) for effect in wanted],
            [effect.queue for effect in wanted],
            [clean(effect.key) for effect in wanted],
            [effect.state.value for effect in wanted],
            [effect.result for effect in wanted],
            [clean(effect.error) for effect in wanted],
            [effect.attempt for effect in wanted],
            [clean(effect.run) for effect in wanted],
            [clean(effect.thread) for effect in wanted],
            repeat=True,
        )
        stored = {(effect.job, effect.name): effect for effect in map(_effect_of, rows)}
        return [stored[effect.job, effect.name] for effect in effects]

    async def conclude(self, effects: Sequence[Effect], by: By | None = None) -> list[bool]:
        concluded: list[bool] = []
        for batch in _distinct(effects, lambda effect: (effect.job, effect.name)):
            rows = await self._upkeep.fetch(
                self._sql("""
                with wish as (
                    select *
                    from unnest(
                        $2::uuid[], $3::text[], $4::bytea[], $5::text[], $6::integer[],
                        $9::text[], $10::text[], $11::text[]
                    ) with ordinality as w (
                        hash, state, result, error, attempt, run, key, follows, place
                    )
                ), changed as (
                    update relevo.effects as e
                    set state = w.state, result = w.result, error = w.error, attempt = w.attempt,
                        run = w.run, key = w.key, updated_at = relevo.moment($1),
                        decided_by = coalesce($7, e.decided_by)
                    from wish as w, relevo.effects as old
                    where e.hash = w.hash and old.seq = e.seq
                        and (
                            e.state <> 'confirmed' and (
                                $7::text is not null or e.run in (w.run, w.follows)
                                or (w.state = 'confirmed'
                                    and (e.key = w.key or e.state not in ('intended', 'unknown')))
                            )
                            -- A person tells the result of which nothing could be kept, or
                            -- mends what a person told.
                            or ($7::text is not null and w.state = 'confirmed'
                                and w.result is not null
                                and (e.result is null or e.decided_by <> ''))
                        )
                    returning w.place, e.job, e.name, old.state as before, w.state as after
                ), written as (
                    insert into relevo.audits (who, verb, target, note, at, before, after)
                    select $7, case after when 'confirmed' then 'confirm' else 'deny' end,
                        job || '/' || name, $8, relevo.moment($1), before, after
                    from changed
                    where $7::text is not null
                )
                select place from changed
                union
                select w.place
                from wish as w
                join relevo.effects as e on e.hash = w.hash
                where e.state = 'confirmed' and w.state = 'confirmed'
                    and e.result is not distinct from w.result
                """),
                self._skew,
                [hashed(effect.job, effect.name) for effect in batch],
                [effect.state.value for effect in batch],
                [effect.result for effect in batch],
                [clean(effect.error) for effect in batch],
                [effect.attempt for effect in batch],
                clean(by.who) if by else None,
                clean(by.note) if by else None,
                [clean(effect.run) for effect in batch],
                [clean(effect.key) for effect in batch],
                [None if (run := follows(effect)) is None else clean(run) for effect in batch],
            )
            places = {row["place"] for row in rows}
            concluded.extend(place in places for place in range(1, len(batch) + 1))
        return concluded

    async def effects(
        self,
        *,
        job: str | None = None,
        states: frozenset[EffectState] = frozenset(),
        text: str | None = None,
        threads: frozenset[str] = frozenset(),
        cursor: str | None = None,
        limit: int = 50,
    ) -> tuple[list[Effect], str | None]:
        limit = page_size(limit)
        floor = None if text is None else await self._effects_floor(_number(cursor))
        rows = await self._people.fetch(
            self._sql("""
            select *
            from relevo.effects
            where ($1::text is null or job = $1)
                and ($2::text[] is null or state = any ($2))
                and ($3::text is null
                     or strpos(key, $3) > 0
                     or position($4::bytea in coalesce(result, '')) > 0)
                and ($5::bigint is null or seq < $5)
                and ($7::text[] is null or thread = any ($7))
                and ($8::bigint is null or seq >= $8)
            order by seq desc
            limit $6
            """),
            clean(job),
            [state.value for state in states] or None,
            clean(text),
            None if text is None else text.encode("utf-8", "surrogatepass"),
            _number(cursor),
            limit + 1,
            [clean(thread) for thread in threads] or None,
            floor,
            repeat=True,
        )
        effects = [_effect_of(row) for row in rows[:limit]]
        if len(rows) > limit:
            return effects, str(rows[limit - 1]["seq"])
        return effects, None if floor is None else str(floor)

    async def _effects_floor(self, before: int | None) -> int | None:
        """How far down a search for text looks at once; reading on continues from there."""
        rows = await self._people.fetch(
            self._sql("""
            select seq
            from relevo.effects
            where $1::bigint is null or seq < $1
            order by seq desc
            offset $2
            limit 1
            """),
            before,
            SEARCHED,
            repeat=True,
        )
        return rows[0]["seq"] if rows else None

    async def beat(self, worker: WorkerInfo, ttl: int) -> None:
        tidy = msgspec.structs.replace(
            worker,
            id=clean(worker.id),
            host=clean(worker.host),
            queues=[clean(queue) for queue in worker.queues],
            note=clean(worker.note),
            schema=schema.steps()[-1].number,
        )
        await self._upkeep.fetch(
            self._sql("""
            insert into relevo.workers (id, info, beat_at, expires_at)
            values ($2, $3, relevo.moment($1), relevo.moment($1) + $4)
            on conflict (id) do update
            set info = excluded.info, beat_at = excluded.beat_at, expires_at = excluded.expires_at
            """),
            self._skew,
            tidy.id,
            msgspec.json.encode(tidy),
            ttl,
            repeat=True,
        )

    async def leave(self, worker: str) -> None:
        await self._upkeep.fetch(
            self._sql("delete from relevo.workers where id = $1"), clean(worker), repeat=True
        )

    async def silence(self, workers: Sequence[str], *, is_gone: bool = False) -> None:
        await self._upkeep.fetch(
            self._sql("""
            update relevo.workers
            set expires_at = least(expires_at, relevo.moment($1)),
                info = case when $3
                    then convert_to(
                        jsonb_set(convert_from(info, 'UTF8')::jsonb, '{state}', '"gone"')::text,
                        'UTF8'
                    )
                    else info
                end
            where id = any ($2)
            """),
            self._skew,
            [clean(worker) for worker in workers],
            is_gone,
            repeat=True,
        )

    async def workers(self) -> list[WorkerInfo]:
        rows = await self._people.fetch(
            self._sql("""
            with held as (
                select worker, count(*) as count, max(lease_until) as until
                from relevo.jobs
                where state = 1
                group by worker
            )
            select w.info, w.beat_at, w.expires_at, relevo.moment($1) as now,
                coalesce(held.count, 0) as count, coalesce(held.until, 0) as until
            from relevo.workers as w
            left join held on held.worker = w.id
            where w.beat_at > relevo.moment($1) - 86400000
            order by w.id
            """),
            self._skew,
            repeat=True,
        )
        return [worker for row in rows if (worker := _worker_of(row))]

    async def audit(self, rows: Sequence[Audit]) -> None:
        await self._people.fetch(
            self._sql("""
            insert into relevo.audits (who, verb, target, note, at, before, after)
            select who, verb, target, note, case when at > 0 then at else relevo.moment($1) end,
                before, after
            from unnest(
                $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::text[],
                $8::text[]
            ) as w (who, verb, target, note, at, before, after)
            """),
            self._skew,
            [clean(row.who) for row in rows],
            [clean(row.verb) for row in rows],
            [clean(row.target) for row in rows],
            [clean(row.note) for row in rows],
            [row.at for row in rows],
            [clean(row.before) for row in rows],
            [clean(row.after) for row in rows],
        )

    async def audits(
        self, *, target: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> tuple[list[Audit], str | None]:
        limit = page_size(limit)
        rows = await self._people.fetch(
            self._sql("""
            select *
            from relevo.audits
            where ($1::text is null or target = $1) and ($2::bigint is null or seq < $2)
            order by seq desc
            limit $3
            """),
            clean(target),
            _number(cursor),
            limit + 1,
            repeat=True,
        )
        audits = [
            Audit(
                who=restore(row["who"]),
                verb=restore(row["verb"]),
                target=restore(row["target"]),
                note=restore(row["note"]),
                at=row["at"],
                before=restore(row["before"]),
                after=restore(row["after"]),
            )
            for row in rows[:limit]
        ]
        return audits, str(rows[limit - 1]["seq"]) if len(rows) > limit else None


def _note_of(row: Record) -> Note:
    return Note(
        kind=restore(row["kind"]),
        name=restore(row["name"]),
        value=row["value"],
        version=row["version"],
        ttl=row["ttl"],
        updated_at=row["updated_at"],
    )


def _effect_of(row: Record) -> Effect:
    return Effect(
        job=restore(row["job"]),
        queue=row["queue"],
        name=restore(row["name"]),
        key=restore(row["key"]),
        state=EffectState(row["state"]),
        result=row["result"],
        error=restore(row["error"]),
        attempt=row["attempt"],
        run=restore(row["run"]),
        thread=restore(row["thread"]),
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        decided_by=restore(row["decided_by"]),
    )


def _worker_of(row: Record) -> WorkerInfo | None:
    try:
        info = _INFO.decode(row["info"])
    except msgspec.MsgspecError:
        return None  # of another version
    told = msgspec.structs.replace(
        info,
        id=restore(info.id),
        host=restore(info.host),
        queues=[restore(queue) for queue in info.queues],
        note=restore(info.note),
    )
    held = Holding(row["count"], row["until"])
    return seen(told, row["now"], row["beat_at"], row["expires_at"], held)


def _distinct(items: Sequence[T], identity: Callable[[T], object]) -> list[list[T]]:
    # One statement may touch a row only once: whoever comes again waits for the next batch.
    batches: list[list[T]] = []
    seen: set[object] = set()
    for item in items:
        if not batches or identity(item) in seen:
            batches.append([])
            seen.clear()
        batches[-1].append(item)
        seen.add(identity(item))
    return batches


def _number(cursor: str | None) -> int | None:
    # A cursor that was tampered with finds nothing rather than failing.
    if cursor is None:
        return None
    return int(cursor) if cursor.isascii() and cursor.isdigit() and len(cursor) < 19 else 0
