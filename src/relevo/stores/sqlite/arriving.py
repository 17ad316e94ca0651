"""New deliveries at one stroke: they and their jobs, in one statement that is a whole transaction.

SQLite runs a statement without the interpreter's lock, and one outside of any transaction commits
by itself. So the event loop only lays out the rows; the thread that commits does the rest while the
loop goes on, and waits for the lock once, however many webhooks there are.

The statement inserts into a view of this connection alone, and triggers put each row where it
belongs. The first row is the head: it holds what this process knows by heart against the file,
before anything is written. If another process has left a key, if a key has its line already, or if
a queue has changed, nothing is written, and the batch goes the long way (deliveries.py).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import Any

from relevo.job import NewJob, Verdict
from relevo.store import Arrival, QueueMode, Reception
from relevo.stores.sqlite import deliveries, jobs, lines
from relevo.stores.sqlite.transaction import SIZES, Known, Stroke, Tx


class Part:
    """The columns of one table in the rows of the view.

    In most batches all rows have the same in all columns but their own: that is bound once.
    """

    def __init__(self, prefix: str, columns: str, own: set[str]) -> None:
        names = columns.replace("\n", " ").replace(" ", "").split(",")
        self.names = [f"{prefix}_{name}" for name in names]
        self.new = ", ".join([f"new.{name}" for name in self.names])
        self.is_own = tuple([name in own for name in names])

    def lay(self, rows: Sequence[tuple[Any, ...]]) -> tuple[bool, list[Any], list[Sequence[Any]]]:
        """Whether the rows are alike, what they share, and the columns that are their own."""
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * len(self.names)
        shared = [column for column, is_own in zip(columns, self.is_own, strict=True) if not is_own]
        if not all(column.count(column[0]) == len(rows) for column in shared if column):
            return False, [], columns
        own = [column for column, is_own in zip(columns, self.is_own, strict=True) if is_own]
        return True, [column[0] if column else None for column in shared], own


KEPT = Part("kept", deliveries.COLUMNS, {"seq", "id", "key", "hash", "jobs", "headers", "body"})
JOB = Part("job", jobs.COLUMNS, {"seq", "id", "thread", "cause", "payload", "meta"})
HEAD = ["seen", "version", "hashes", "enters"]
FIRST = ["kept_seq", "job_seq"]  # in the head too: the first of each

_NAMES = [*HEAD, *KEPT.names, *JOB.names]
_SCHEMA = (
    f"create temp view relevo_arriving as select {', '.join([f'0 as {name}' for name in _NAMES])}",
    f"""
    create temp trigger relevo_arriving_head instead of insert on relevo_arriving
    when new.seen is not null
    begin
        select raise(abort, 'it is not as it was thought to be')
        where (select seq from sqlite_sequence where name = 'relevo_fresh') is not new.seen
           or (select value from relevo_meta where name = 'queues') is not new.version
           or (select max(seq) from relevo_jobs) >= new.job_seq
           or exists (
               with recursive each (at) as (
                   select 1
                   union all
                   select at + 16 from each where at + 16 < length(new.hashes)
               )
               select 1
               from each
               cross join relevo_delivered on hash = substr(new.hashes, at, 16)
           );
        {lines.ENTER_ALL.replace("where ", "where new.enters and ")};
        delete from relevo_fresh where new.enters;
        insert into relevo_fresh (first, hashes) values (new.kept_seq, new.hashes);
    end
    """,  # noqa: S608 - put together from constants
    f"""
    create temp trigger relevo_arriving_kept instead of insert on relevo_arriving
    when new.seen is null and new.kept_seq is not null
    begin
        insert into relevo_deliveries ({deliveries.COLUMNS}) values ({KEPT.new});
    end
    """,  # noqa: S608 - put together from constants
    f"""
    create temp trigger relevo_arriving_job instead of insert on relevo_arriving
    when new.seen is null and new.job_seq is not null
    begin
        insert into relevo_jobs ({jobs.COLUMNS}) values ({JOB.new});
    end
    """,  # noqa: S608 - put together from constants
)


def make_ready(connection: sqlite3.Connection) -> None:
    """Give a connection what the statement needs."""
    for sql in _SCHEMA:
        connection.execute(sql)


def receive(tx: Tx, arrivals: Sequence[Arrival]) -> list[Reception] | None:
    """Lay out in `tx.stroke` that all are kept as new; None if that would be too much to hope."""
    known = tx.known
    orders = list(chain.from_iterable([arrival.jobs for arrival in arrivals]))
    identities = [deliveries.identity_of(arrival.kept) for arrival in arrivals]
    hashes = [identity[0] for identity in identities if identity is not None]
    if not (
        known.version
        and len(arrivals) <= SIZES[0] >= len(orders)
        and len(set(hashes)) == len(arrivals)
        and known.fresh.keys().isdisjoint(hashes)
        and all(_is_plain(known, job) for job in orders)
    ):
        return None
    stored = [
        deliveries.stored_of(arrival.kept, tx.now, tuple([job.id for job in arrival.jobs]))
        for arrival in arrivals
    ]
    first, first_job = known.last_delivery + 1, tx.take_seqs(len(orders))
    enters = not lines.have_room(known, len(hashes))
    sql, values = _statement(
        [known.fresh_seen, known.version, b"".join(hashes), enters, first, first_job],
        deliveries.rows_of(first, arrivals, stored, hashes),
        jobs.rows_of(tx, orders, first_job),
    )
    tx.stroke = Stroke(sql, values, partial(_learn, known, first, hashes, enters))
    tx.woken.update([job.queue for job in orders])
    return [Reception(kept, Verdict.NEW) for kept in stored]


def _is_plain(known: Known, job: NewJob) -> bool:
    """Whether a job is stored whatever else there is."""
    queue = known.queues.get(job.queue)
    if queue is None or job.key is not None or job.after:
        return False
    return queue.mode is not QueueMode.DRAINING and (queue.laned or not job.lane)


def _learn(known: Known, first: int, hashes: Sequence[bytes], entered: bool) -> None:
    known.last_delivery = first + len(hashes) - 1
    lines.left(known, first, hashes, entered=entered)


def _statement(
    head: list[Any], kept: Sequence[tuple[Any, ...]], orders: Sequence[tuple[Any, ...]]
) -> tuple[str, list[Any]]:
    """The statement, and what to bind to it. The n-th delivery and the n-th job share a row."""
    size = next(size for size in reversed(SIZES) if size >= max(len(kept), len(orders)))
    is_kept_alike, kept_shared, kept_own = KEPT.lay(kept)
    is_job_alike, job_shared, job_own = JOB.lay(orders)
    # Where there is no delivery, or no job, its columns are empty.
    columns = [(*column, *[None] * (size - len(column))) for column in chain(kept_own, job_own)]
    values = [*head, *kept_shared, *job_shared, *chain.from_iterable(zip(*columns, strict=True))]
    return _spelled(size, is_kept_alike, is_job_alike), values


@lru_cache(maxsize=4 * len(SIZES))
def _spelled(size: int, is_kept_alike: bool, is_job_alike: bool) -> str:
    given = [*HEAD, *FIRST]
    head = [f"?{given.index(name) + 1}" if name in given else "null" for name in _NAMES]
    is_own = [own or not is_kept_alike for own in KEPT.is_own]
    is_own += [own or not is_job_alike for own in JOB.is_own]
    shared, width = len(is_own) - sum(is_own), sum(is_own)
    rows = [head]
    for row in range(size):
        once = iter(range(len(given) + 1, 1 << 30))
        each = iter(range(len(given) + shared + row * width + 1, 1 << 30))
        rows.append(["null"] * len(HEAD) + [f"?{next(each if own else once)}" for own in is_own])
    values = ", ".join([f"({', '.join(row)})" for row in rows])
    return f"insert into relevo_arriving ({', '.join(_NAMES)}) values {values}"  # noqa: S608 - names
