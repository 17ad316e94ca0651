"""What is remembered besides jobs: effects, notes, workers, and what people did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from relevo.store import (
    UNDECIDED,
    Audit,
    By,
    Effect,
    EffectState,
    Holding,
    Note,
    WorkerInfo,
    decision,
    follows,
    seen,
)
from relevo.stores.sqlite import schema
from relevo.stores.sqlite.transaction import Tx, as_bytes, as_list, chunks, fill, plain, text

_replace = msgspec.structs.replace

# effects


def effect_of(row: Sequence[Any]) -> Effect:
    """The effect in a row, its columns in the order of the fields below."""
    return Effect(
        job=plain(row[0]),
        queue=row[1],
        name=plain(row[2]),
        key=plain(row[3]),
        state=EffectState(row[4]),
        result=None if row[5] is None else as_bytes(row[5]),
        error=plain(row[6]),
        attempt=row[7],
        run=plain(row[8]),
        thread=plain(row[9]),
        created_at=row[10],
        updated_at=row[11],
        decided_by=plain(row[12]),
    )


def intend(tx: Tx, effects: Sequence[Effect]) -> list[Effect]:
    """Write intentions down; where there is one already, that one comes."""
    written = 0
    for some in chunks(effects):
        values: list[object] = []
        for effect in some:
            values += (
                text(effect.job),
                effect.queue,
                text(effect.name),
                text(effect.key),
                effect.state.value,
                effect.result,
                text(effect.error),
                effect.attempt,
                text(effect.run),
                text(effect.thread),
                tx.now,
                tx.now,
                text(effect.decided_by),
            )
        written += tx.run(fill(_INTEND, len(some)), values)
    if written < len(effects):
        return [_intended(tx, effect) for effect in effects]
    return [_replace(effect, created_at=tx.now, updated_at=tx.now) for effect in effects]


_INTEND = """
    insert into relevo_effects
        (job, queue, name, key, state, result, error, attempt, run, thread, created_at,
         updated_at, decided_by)
    values [?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?]
    on conflict (job, name) do nothing
"""


def _intended(tx: Tx, effect: Effect) -> Effect:
    row = tx.one(
        """
        select job, queue, name, key, state, result, error, attempt, run, thread, created_at,
               updated_at, decided_by
        from relevo_effects
        where job = ?
          and name = ?
        """,
        (text(effect.job), text(effect.name)),
    )
    return effect_of(row)


def conclude(tx: Tx, effects: Sequence[Effect]) -> list[bool]:
    """Write how effects ended; see Store.conclude()."""
    if len({(effect.job, effect.name) for effect in effects}) < len(effects):
        return [_conclude(tx, effect) for effect in effects]
    changed = 0
    for some in chunks(effects):
        values: list[object] = []
        for effect in some:
            values += (
                text(effect.job),
                text(effect.name),
                effect.state.value,
                effect.result,
                text(effect.error),
                effect.attempt,
                text(effect.run),
                tx.now,
                text(effect.key),
                None if (run := follows(effect)) is None else text(run),
            )
        changed += tx.run(fill(_CONCLUDE, len(some)), values)
    if changed < len(effects):
        return [_conclude(tx, effect) for effect in effects]
    return [True] * changed


_CONCLUDE = """
    update relevo_effects as effect
    set state = ended.column3, result = ended.column4, error = ended.column5,
        attempt = ended.column6, run = ended.column7, updated_at = ended.column8,
        key = ended.column9
    from (values [?, ?, ?, ?, ?, ?, ?, ?, ?, ?]) as ended
    where effect.job = ended.column1
      and effect.name = ended.column2
      and effect.state <> 'confirmed'
      and (effect.run in (ended.column7, ended.column10)
           or (ended.column3 = 'confirmed'
               and (effect.key = ended.column9
                    or effect.state not in ('intended', 'unknown'))))
"""


def decide(tx: Tx, effects: Sequence[Effect], by: By) -> list[bool]:
    """The same, as a person says they did."""
    return [_conclude(tx, effect, by) for effect in effects]


def _conclude(tx: Tx, effect: Effect, by: By | None = None) -> bool:
    row = tx.one(
        "select state, result, decided_by, run, key from relevo_effects where job = ? and name = ?",
        (text(effect.job), text(effect.name)),
    )
    if row is None:
        return False
    before, result, decided_by, run, key = row
    # A person tells the result of which nothing could be kept, or mends what a person told.
    is_told = by is not None and effect.result is not None and (result is None or decided_by)
    if before == EffectState.CONFIRMED and not (is_told and effect.state is EffectState.CONFIRMED):
        return effect.state is EffectState.CONFIRMED and _same(result, effect.result)
    is_late = by is None and plain(run) not in (effect.run, follows(effect))
    is_fact = effect.state is EffectState.CONFIRMED and (
        plain(key) == effect.key or before not in UNDECIDED
    )
    if is_late and not is_fact:
        return False
    tx.run(
        """
        update relevo_effects
        set state = ?, result = ?, error = ?, attempt = ?, run = ?, updated_at = ?, key = ?,
            decided_by = ifnull(?, decided_by)
        where job = ?
          and name = ?
        """,
        (
            effect.state.value,
            effect.result,
            text(effect.error),
            effect.attempt,
            text(effect.run),
            tx.now,
            text(effect.key),
            None if by is None else text(by.who),
            text(effect.job),
            text(effect.name),
        ),
    )
    if by is not None:
        target = f"{effect.job}/{effect.name}"
        write_audit(tx, by, decision(effect), target, before=before, after=effect.state.value)
    return True


def _same(stored: Any, given: bytes | None) -> bool:
    return (None if stored is None else as_bytes(stored)) == given


# notes


RECALL = """
    select kind, name, value, version, expires_at, updated_at
    from relevo_notes
    where kind = ?
      and name = ?
      and (expires_at is null or expires_at > ?)
    """


def note_of(row: Sequence[Any], now: int) -> Note:
    """The note in a row: kind, name, value, version, expires_at, updated_at."""
    return Note(
        kind=plain(row[0]),
        name=plain(row[1]),
        value=as_bytes(row[2]),
        version=row[3],
        ttl=None if row[4] is None else row[4] - now,
        updated_at=row[5],
    )


def recall(tx: Tx, kind: str, names: Sequence[str]) -> list[Note | None]:
    """What was remembered under these names, in this transaction too."""
    rows = [tx.one(RECALL, (text(kind), text(name), tx.now)) for name in names]
    return [None if row is None else note_of(row, tx.now) for row in rows]


def remember(tx: Tx, notes: Sequence[Note]) -> list[bool]:
    """Write each note whose version is still the stored one."""
    return [_remember(tx, note) for note in notes]


def _remember(tx: Tx, note: Note) -> bool:
    expires_at = None if note.ttl is None else tx.now + note.ttl
    if note.version == 0:
        written = tx.run(
            """
            insert into relevo_notes (kind, name, value, version, expires_at, updated_at)
            values (?1, ?2, ?3, 1, ?4, ?5)
            on conflict (kind, name) do update
            set value = excluded.value, version = 1, expires_at = excluded.expires_at,
                updated_at = excluded.updated_at
            where relevo_notes.expires_at <= ?5
            """,
            (text(note.kind), text(note.name), note.value, expires_at, tx.now),
        )
    else:
        written = tx.run(
            """
            update relevo_notes
            set value = ?, version = version + 1, expires_at = ?, updated_at = ?
            where kind = ?
              and name = ?
              and version = ?
              and (expires_at is null or expires_at > ?)
            """,
            (
                note.value,
                expires_at,
                tx.now,
                text(note.kind),
                text(note.name),
                note.version,
                tx.now,
            ),
        )
    return written == 1


def forget(tx: Tx, kind: str, names: Sequence[str]) -> int:
    """Remove notes; those past their time are not counted."""
    gone = 0
    for name in names:
        row = tx.one(
            "delete from relevo_notes where kind = ? and name = ? returning expires_at",
            (text(kind), text(name)),
        )
        gone += row is not None and (row[0] is None or row[0] > tx.now)
    return gone


# workers


def beat(tx: Tx, worker: WorkerInfo, ttl: int) -> None:
    """Show that a worker is alive."""
    tx.run(
        """
        insert into relevo_workers (id, info, started_at, beat_at, silent_at)
        values (?, ?, ?, ?, ?)
        on conflict (id) do update
        set info = excluded.info, beat_at = excluded.beat_at, silent_at = excluded.silent_at
        """,
        (
            text(worker.id),
            _worker_text(worker),
            worker.started_at or tx.now,
            tx.now,
            tx.now + ttl,
        ),
    )


def _worker_text(worker: WorkerInfo) -> str:
    held = msgspec.structs.replace(
        worker,
        id=text(worker.id),
        host=text(worker.host),
        queues=[text(queue) for queue in worker.queues],
        note=text(worker.note),
        schema=schema.steps()[-1].number,
    )
    return msgspec.json.encode(held).decode()


def worker_of(row: Sequence[Any], now: int, held: Holding) -> WorkerInfo:
    """The worker in a row: info, started_at, beat_at, silent_at."""
    stored = msgspec.json.decode(row[0], type=WorkerInfo)
    told = msgspec.structs.replace(
        stored,
        id=plain(stored.id),
        host=plain(stored.host),
        queues=[plain(queue) for queue in stored.queues],
        note=plain(stored.note),
        started_at=row[1],
    )
    return seen(told, now, row[2], row[3], held)


def leave(tx: Tx, worker: str) -> None:
    """Show that a worker has gone politely."""
    tx.run("delete from relevo_workers where id = ?", (text(worker),))


def silence(tx: Tx, workers: Sequence[str], is_gone: bool) -> None:
    """Show that workers have lost their jobs."""
    tx.run(
        """
        update relevo_workers
        set silent_at = min(silent_at, ?1),
            info = iif(?2, json_set(info, '$.state', 'gone'), info)
        where id in (select value from json_each(?3))
        """,
        (tx.now, is_gone, as_list(map(text, workers))),
    )


# people


def write_audit(
    tx: Tx, by: By, verb: str, target: str, *, before: str = "", after: str = ""
) -> None:
    """One thing a person did, written in the step that does it."""
    if not by.who:
        return
    audit(
        tx, [Audit(who=by.who, verb=verb, target=target, note=by.note, before=before, after=after)]
    )


def audit(tx: Tx, rows: Sequence[Audit]) -> list[None]:
    """Write down what people did."""
    for some in chunks(rows):
        values: list[object] = []
        for row in some:
            values += (
                text(row.who),
                text(row.verb),
                text(row.target),
                text(row.note),
                row.at or tx.now,
                text(row.before),
                text(row.after),
            )
        tx.run(
            fill(
                """
                insert into relevo_audit (who, verb, target, note, at, before, after)
                values [?, ?, ?, ?, ?, ?, ?]
                """,
                len(some),
            ),
            values,
        )
    return [None] * len(rows)
