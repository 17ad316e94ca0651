"""Upkeep, safe to run many times over: rescue, unpark, prune, erase."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import TypeAlias

from relevo.job import Failure, Suspicion, suspected
from relevo.store import DELIVERY_KEEP, By, Loss, Rescued, Sweep
from relevo.stores.sqlite import deliveries, flows, remembered
from relevo.stores.sqlite.jobs import failure_text, never_began, remove, write_lines
from relevo.stores.sqlite.memory import write_audit
from relevo.stores.sqlite.transaction import Tx, as_list, chunks, fill, new_token, plain, text

DAY = 86_400_000


def rescue(tx: Tx, limit: int, worker: str | None, losses: Sequence[Loss]) -> Sweep:
    """Take back jobs whose lease has lapsed, or all of a worker that is known to be gone."""
    _bury_unreadable(tx)
    rescued = _lapsed(tx, limit) if worker is None else _of_worker(tx, worker, limit, losses)
    (lapse,) = tx.one("select min(until_at) from relevo_jobs where state = 20")
    return Sweep(rescued, None if lapse is None else lapse - tx.now)


def _lapsed(tx: Tx, limit: int) -> list[Rescued]:
    rows = tx.all(_HELD.replace("THOSE", "job.until_at <= ?"), (tx.now, limit))
    rescued = [Rescued(id_, queue, plain(name)) for _, id_, queue, name, _ in rows]
    lost = [
        (row[0], _worker_lost(one.worker), suspected(row[4], Suspicion.LOST), 0)
        for row, one in zip(rows, rescued, strict=True)
    ]
    _take_back(tx, rescued, lost)
    return rescued


def _of_worker(tx: Tx, worker: str, limit: int, losses: Sequence[Loss]) -> list[Rescued]:
    """Those that were running, as `losses` tells, and those that had not begun."""
    rows = tx.all(_HELD.replace("THOSE", "job.worker = ?"), (tx.worker(worker), limit))
    rescued = [Rescued(id_, queue, plain(name)) for _, id_, queue, name, _ in rows]
    told = {text(loss.id): loss for loss in losses}
    lost: list[_Lost] = []
    unbegun: list[int] = []
    for seq, id_, _, _, suspicion in rows:
        if (loss := told.get(id_)) is None:
            unbegun.append(seq)
        else:
            lost.append((seq, loss.failure, suspected(suspicion, loss.suspicion), loss.is_excused))
    _take_back(tx, rescued, lost)
    if unbegun:
        tx.run(
            """
            update relevo_jobs
            set state = 10, token = ?, attempt = max(attempt - 1, 0)
            where seq in (select value from json_each(?))
            """,
            (-new_token(), as_list(unbegun)),
        )
        never_began(tx, unbegun)
    return rescued


_HELD = """
    select job.seq, job.id, job.queue, ifnull(name.name, ''),
           cast(job.suspicion as integer)
    from relevo_jobs as job
    left join relevo_names as name on name.no = job.worker
    where job.state = 20
      and THOSE
    order by job.until_at
    limit ?
"""
_Lost: TypeAlias = tuple[int, Failure, int, int]  # seq, why, suspicion, crashes that do not count


def _take_back(tx: Tx, rescued: Sequence[Rescued], lost: Sequence[_Lost]) -> None:
    """Make jobs ready whose runs may have begun; their history tells of it."""
    write_lines(tx, [(seq, "rescued", failure_text(failure)) for seq, failure, *_ in lost])
    for some in chunks(lost):
        values: list[object] = []
        for seq, failure, suspicion, excused in some:
            values += (seq, failure_text(failure), text(failure.fingerprint), suspicion, excused)
        tx.run(fill(_TAKE_BACK, len(some)), [*values, -new_token()])
    tx.woken.update({one.queue for one in rescued})


# The attempt that its claim has counted is given back.
_TAKE_BACK = """
    with lost (seq, failure, fingerprint, suspicion, excused) as (
        values [?, ?, ?, ?, ?]
    ), mark (token) as (
        values (?)
    )
    update relevo_jobs
    set state = 10,
        token = mark.token,
        attempt = max(attempt - 1, 0),
        suspicion = lost.suspicion,
        crashes = max(crashes - lost.excused, 0),
        failure = lost.failure,
        fingerprint = lost.fingerprint
    from lost, mark
    where relevo_jobs.seq = lost.seq
"""


def _worker_lost(worker: str) -> Failure:
    return Failure(
        type="WorkerLost",
        message=f"the worker {worker} went silent; whether it had begun this run is not known",
        fingerprint="WorkerLost",
    )


def _bury_unreadable(tx: Tx) -> None:
    """Rows whose state no code here knows, put there by a hand: dead, where people can see them."""
    rows = tx.all(
        """
        with recursive seen (state) as (
            select min(state) from relevo_jobs where state not between 10 and 30
            union all
            select (
                select min(state)
                from relevo_jobs
                where state not between 10 and 30
                  and state > seen.state
            )
            from seen
            where seen.state is not null
        )
        select job.seq, job.state
        from seen
        cross join relevo_jobs as job on job.state = seen.state and job.state not between 10 and 30
        where seen.state not in (40, 50, 60, 70, 80)
        limit 100
        """
    )
    for seq, state in rows:
        bury(tx, seq, f"its row was changed by hand: no job has the state {state!r:.40}")


def bury(tx: Tx, seq: int, reason: str) -> None:
    """End a job that cannot be run as it stands in the store."""
    failure = Failure(type="UnreadableJob", message=reason, fingerprint="UnreadableJob")
    tx.run(
        """
        update relevo_jobs
        set state = 70, token = ?, ended_at = ?, failure = ?, fingerprint = ?
        where seq = ?
        """,
        (-new_token(), tx.now, failure_text(failure), failure.fingerprint, seq),
    )
    ids = tx.all("select id from relevo_jobs where seq = ? and waited = 1", (seq,))
    flows.ended(tx, [], [id_ for (id_,) in ids])


def unpark(
    tx: Tx, park: str, limit: int | None, spread: int, ids: Sequence[str] | None = None
) -> int:
    """Let parked jobs go on, oldest first, evenly over `spread` milliseconds."""
    going = """
        select seq, queue, row_number() over (order by seq) as place
        from relevo_jobs
        where park = ?1
          and state = 50
          and (?3 is null or id in (select value from json_each(?3)))
        order by seq
        limit ?2
    """
    values = (
        text(park),
        -1 if limit is None else limit,
        None if ids is None else as_list(map(text, ids)),
    )
    queues = tx.all(f"select queue, count(*) from ({going}) group by queue", values)  # noqa: S608
    count = sum(each for _, each in queues)
    if not count:
        return 0
    tx.run(
        f"""
        update relevo_jobs
        set state = 10, park = null, run_at = ?4 + (going.place - 1) * ?5 / ?6
        from ({going}) as going
        where relevo_jobs.seq = going.seq
        """,  # noqa: S608
        (*values, tx.now, spread, count),
    )
    tx.woken.update(queue for queue, _ in queues)
    return count


def prune(tx: Tx, dead_keep: int, limit: int, with_effects: bool = True) -> int:
    """Remove what has been kept long enough, at most `limit` rows."""
    left = limit
    before = tx.now - dead_keep
    for queue in sorted(tx.known.queues):
        left -= _prune_done(tx, queue, left)
        left -= _prune_bad(tx, queue, before, left)
    for sql, moment in (
        (_OLD_NOTES, tx.now),
        (_OLD_EFFECTS, _effects_before(tx.now, dead_keep)),
        (_OLD_WORKERS, tx.now - DAY),
        (_OLD_LANES, tx.now - DAY),
    ):
        if left > 0 and (with_effects or sql is not _OLD_EFFECTS):
            left -= tx.run(sql, (moment, left))
    if left > 0:
        left -= remembered.prune(tx, left)
    if left > 0:
        left -= deliveries.prune(tx, dead_keep, left)
    return limit - left


def _effects_before(now: int, dead_keep: int) -> int:
    """The moment before which a concluded effect is old: until then a replay must find it."""
    return now - max(dead_keep, DELIVERY_KEEP)


def old_effects(
    connection: sqlite3.Connection, now: int, dead_keep: int, after: int, limit: int
) -> list[tuple[int, str]]:
    """The number and job of effects whose jobs another store knows."""
    return connection.execute(
        """
        select seq, job
        from relevo_effects
        where state in ('confirmed', 'refused', 'failed') and updated_at <= ? and seq > ?
        order by seq
        limit ?
        """,
        (_effects_before(now, dead_keep), after, limit),
    ).fetchall()


def drop_effects(tx: Tx, numbers: Sequence[int], dead_keep: int) -> int:
    return tx.run(
        """
        delete from relevo_effects
        where seq in (select value from json_each(?))
          and state in ('confirmed', 'refused', 'failed')
          and updated_at <= ?
        """,
        (json.dumps(list(numbers)), _effects_before(tx.now, dead_keep)),
    )


_OLD_NOTES = """
    delete from relevo_notes
    where (kind, name) in (select kind, name from relevo_notes where expires_at <= ? limit ?)
"""
_OLD_EFFECTS = """
    delete from relevo_effects
    where seq in (
        select seq
        from relevo_effects
        where state in ('confirmed', 'refused', 'failed')
          and updated_at <= ?
          and not exists (
              select 1
              from relevo_jobs
              where id = relevo_effects.job
                and state not in (30, 70, 80)
          )
        limit ?
    )
"""
_OLD_WORKERS = """
    delete from relevo_workers
    where id in (select id from relevo_workers where silent_at <= ? limit ?)
"""
_OLD_LANES = """
    delete from relevo_lanes
    where (queue, lane) in (
        select queue, lane
        from relevo_lanes
        where served_at <= ?1
          and tat <= (?1 + 86400000) * 1000
        limit ?2
    )
"""


def _prune_done(tx: Tx, queue: str, limit: int) -> int:
    """Done jobs past their time."""
    if limit <= 0:
        return 0
    rows = tx.all(
        """
        select seq
        from relevo_jobs
        where state = 30
          and queue = ?
          and until_at <= ?
        limit ?
        """,
        (queue, tx.now, limit),
    )
    remove(tx, [seq for (seq,) in rows])
    return len(rows)


def _prune_bad(tx: Tx, queue: str, before: int, limit: int) -> int:
    """Dead and cancelled jobs; a key that answers for good learns that its job is lost."""
    if limit <= 0:
        return 0
    rows = tx.all(
        """
        select seq, id, forever
        from relevo_jobs
        where state not between 10 and 30
          and state in (70, 80)
          and queue = ?
          and ended_at <= ?
        limit ?
        """,
        (queue, before, limit),
    )
    _lose(tx, [id_ for _, id_, forever in rows if forever == 1])
    remove(tx, [seq for seq, _, _ in rows])
    return len(rows)


def _lose(tx: Tx, ids: Sequence[str]) -> None:
    """Keys that answer for good learn that their jobs ended badly and are gone."""
    if ids:
        tx.run(
            """
            update relevo_keys
            set lost = 1
            where id in (select value from json_each(?))
            """,
            (as_list(ids),),
        )


# one person, before their time is over


def erase(tx: Tx, jobs: Sequence[str], kept: Sequence[str], by: By, act: str) -> tuple[int, int]:
    """Remove ended jobs and deliveries by their ids, as prune() would some day."""
    # What is deleted is overwritten too: a file that is copied holds no more than its tables.
    (before,) = tx.one("pragma secure_delete")
    tx.one("pragma secure_delete = on")
    try:
        gone, effects = _erase_jobs(tx, as_list(map(text, jobs)))
        shed = deliveries.erase(tx, kept)
        if gone or effects or shed:
            write_audit(tx, by, "forget", act)
    finally:
        tx.one(f"pragma secure_delete = {('off', 'on', 'fast')[before]}")
    return gone, shed


def _erase_jobs(tx: Tx, ids: str) -> tuple[int, int]:
    """Ended jobs with all they have, and the effects of those that are gone."""
    rows = tx.all(
        """
        select seq, id, state, forever, queue, lane
        from relevo_jobs
        where id in (select value from json_each(?))
          and state in (30, 70, 80)
        """,
        (ids,),
    )
    _lose(tx, [id_ for _, id_, state, forever, *_ in rows if forever == 1 and state != 30])
    remove(tx, [row[0] for row in rows])
    effects = tx.run(
        """
        delete from relevo_effects
        where job in (
            select value
            from json_each(?)
            where not exists (select 1 from relevo_jobs where id = value)
        )
        """,
        (ids,),
    )
    _leave_lanes(tx, {(queue, lane) for *_, queue, lane in rows if lane})
    return len(rows), effects


def _leave_lanes(tx: Tx, lanes: set[tuple[str, str]]) -> None:
    """Lanes are named in clear; one that is idle, and whose rate is not in use, needs no row."""
    for queue, lane in lanes:
        tx.run(
            """
            delete from relevo_lanes
            where queue = ?1
              and lane = ?2
              and tat <= ?3 * 1000
              and not exists (
                  select 1
                  from relevo_jobs
                  where queue = ?1
                    and lane = ?2
                    and lane is not null
                    and state not in (30, 70, 80)
              )
            """,
            (queue, lane, tx.now),
        )
