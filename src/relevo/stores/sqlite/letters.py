"""The outbox: jobs on their way to a store that lives elsewhere."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence

import msgspec

from relevo.job import NewJob, Verdict
from relevo.store import NO_RESULTS, Letter
from relevo.stores.sqlite.transaction import Tx

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(NewJob).decode


def post(tx: Tx, jobs: Sequence[NewJob]) -> list[Verdict]:
    """Keep letters; one that is there already stays as it is."""
    known = {
        id: Verdict.IN_PROGRESS if closed_at is None else Verdict.DONE
        for id, closed_at in tx.connection.execute(
            """
            select id, closed_at
            from relevo_letters
            where id in (select value from json_each(?))
            """,
            (json.dumps([job.id for job in jobs]),),
        )
    }
    tx.connection.executemany(
        """
        insert into relevo_letters (id, job, posted_at)
        values (?, ?, ?)
        on conflict (id) do nothing
        """,
        [(job.id, _pack(job), tx.now) for job in jobs if job.id not in known],
    )
    verdicts: list[Verdict] = []
    for job in jobs:
        verdicts.append(known.get(job.id, Verdict.NEW))
        known.setdefault(job.id, Verdict.IN_PROGRESS)  # twice in one list
    return verdicts


def mark_carried(tx: Tx, ids: Sequence[str]) -> None:
    tx.run(
        """
        update relevo_letters
        set carried_at = ?
        where id in (select value from json_each(?))
        """,
        (tx.now, json.dumps(list(ids))),
    )


def close(tx: Tx, ids: Sequence[str], results: Mapping[str, bytes] = NO_RESULTS) -> list[bool]:
    """Mark jobs as ended, letter or not; True for the first to do so.

    Where the job stood, its result stands from then on.
    """
    first: list[bool] = []
    for id in ids:
        cursor = tx.connection.execute(
            """
            insert into relevo_letters (id, job, posted_at, closed_at)
            values (?, ?, ?, ?)
            on conflict (id) do update
            set job = excluded.job,
                closed_at = excluded.closed_at
            where closed_at is null
            """,
            (id, results.get(id), tx.now, tx.now),
        )
        first.append(cursor.rowcount == 1)
    return first


def results(connection: sqlite3.Connection, ids: Sequence[str]) -> dict[str, bytes]:
    """What jobs returned that have been marked as ended, where it is still kept."""
    rows = connection.execute(
        """
        select id, job
        from relevo_letters
        where closed_at is not null
          and job is not null
          and id in (select value from json_each(?))
        """,
        (json.dumps(list(ids)),),
    )
    return dict(rows.fetchall())


def drop_results(tx: Tx, ids: Sequence[str]) -> None:
    """Forget results that the other store has."""
    tx.run(
        """
        update relevo_letters
        set job = null
        where closed_at is not null
          and job is not null
          and id in (select value from json_each(?))
        """,
        (json.dumps(list(ids)),),
    )


def drop(tx: Tx, ids: Sequence[str]) -> None:
    """Forget letters that are still open."""
    tx.run(
        """
        delete from relevo_letters
        where closed_at is null
          and id in (select value from json_each(?))
        """,
        (json.dumps(list(ids)),),
    )


def prune(tx: Tx, keep: int, limit: int) -> int:
    """Forget ends that nobody can ask about any more."""
    cursor = tx.connection.execute(
        """
        delete from relevo_letters
        where id in (
            select id from relevo_letters where closed_at is not null and closed_at < ? limit ?
        )
        """,
        (tx.now - keep, limit),
    )
    return cursor.rowcount


def letters(connection: sqlite3.Connection, carried: bool, after: int, limit: int) -> list[Letter]:
    """Open letters in the order in which they were posted."""
    which = "is not null" if carried else "is null"
    rows = connection.execute(
        f"""
        select job, posted_at, seq
        from relevo_letters
        where carried_at {which}
          and closed_at is null
          and seq > ?
        order by seq
        limit ?
        """,  # noqa: S608 - one of two constants
        (after, limit),
    ).fetchall()
    return [Letter(_unpack(job), posted_at, carried, seq) for job, posted_at, seq in rows]


def closed(connection: sqlite3.Connection, ids: Sequence[str]) -> list[bool]:
    """Which of these jobs have been marked as ended."""
    rows = connection.execute(
        """
        select id
        from relevo_letters
        where closed_at is not null
          and id in (select value from json_each(?))
        """,
        (json.dumps(list(ids)),),
    ).fetchall()
    ended = {row[0] for row in rows}
    return [id in ended for id in ids]
