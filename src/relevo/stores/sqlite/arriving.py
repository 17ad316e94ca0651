"""New deliveries at one stroke: they and the jobs that came of them.

The event loop lays out the rows and goes on; the thread that commits does the rest. The statement
inserts into a view of this connection alone, and triggers put each row where it belongs. The first
row is the head: it sees whether another process has left a key, whether a key has its line or a
job's id is remembered, and whether a queue has changed. The long way is `deliveries.receive`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from relevo.job import NewJob, Verdict
from relevo.store import Arrival, QueueMode, Reception
from relevo.stores.sqlite import deliveries, jobs, lines, remembered
from relevo.stores.sqlite.command import FAIL, Command, Stroke
from relevo.stores.sqlite.transaction import SIZES, Known, Tx

HEAVY = 1 << 20  # bytes: a statement keeps what was bound to it until it is run again


class Part:
    """The columns of one table in the rows of the view.

    In most batches all rows have the same in all columns but their own: that is bound once.
    """

    def __init__(self, prefix: str, table: str, columns: str, own: set[str]) -> None:
        names = "".join(columns.split()).split(",")
        self.names = [f"{prefix}_{name}" for name in names]
        self.is_own = tuple([name in own for name in names])
        self.trigger = f"""
            create temp trigger relevo_arriving_{prefix} instead of insert on relevo_arriving
            when new.seen is null and new.{prefix}_seq is not null
            begin
                insert into {table} ({columns})
                values ({", ".join([f"new.{name}" for name in self.names])});
            end
        """  # noqa: S608 - put together from constants

    def lay(self, rows: Sequence[tuple[Any, ...]]) -> tuple[bool, list[Any], list[Sequence[Any]]]:
        """Whether the rows are alike, what they share, and the columns that are their own."""
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * len(self.names)
        shared = [column for column, is_own in zip(columns, self.is_own, strict=True) if not is_own]
        if not all(column.count(column[0]) == len(rows) for column in shared if column):
            return False, [], columns
        own = [column for column, is_own in zip(columns, self.is_own, strict=True) if is_own]
        return True, [column[0] if column else None for column in shared], own


KEPT = Part(
    "kept",
    "relevo_deliveries",
    deliveries.COLUMNS,
    {"seq", "id", "key", "hash", "jobs", "headers", "body"},
)
JOB = Part("job", "relevo_jobs", jobs.COLUMNS, {"seq", "id", "thread", "cause", "payload", "meta"})
HEAD = ["seen", "version", "hashes", "enters", "ids"]
FIRST = ["kept_seq", "job_seq"]  # in the head too: the first of each

_NAMES = [*HEAD, *KEPT.names, *JOB.names]
SCHEMA = (
    f"create temp view relevo_arriving as select {', '.join([f'0 as {name}' for name in _NAMES])}",
    f"""
    create temp trigger relevo_arriving_head instead of insert on relevo_arriving
    when new.seen is not null
    begin
        {FAIL}
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
           )
           or exists (
               with recursive each (at) as (
                   select 1
                   union all
                   select at + 16 from each where at + 16 < length(new.ids)
               )
               select 1
               from each
               cross join relevo_remembered on id = substr(new.ids, at, 16)
           );
        {lines.ENTER_ALL.replace("where ", "where new.enters and ")};
        delete from relevo_fresh where new.enters;
        insert into relevo_fresh (first, hashes) values (new.kept_seq, new.hashes);
    end
    """,  # noqa: S608 - put together from constants
    KEPT.trigger,
    JOB.trigger,
)


def lay(tx: Tx, batch: Sequence[Command]) -> Stroke | None:
    """Have all arrivals kept as new; None if that would be too much to hope."""
    if len(batch) != 1 or batch[0].verb is not deliveries.receive:
        return None
    known = tx.known
    arrivals: Sequence[Arrival] = batch[0].args
    orders = list(chain.from_iterable([arrival.jobs for arrival in arrivals]))
    identities = [deliveries.identity_of(arrival.kept) for arrival in arrivals]
    hashes = [identity[0] for identity in identities if identity is not None]
    weight = sum([len(arrival.kept.body) for arrival in arrivals])
    weight += sum([len(order.payload) for order in orders])
    if not (
        known.version
        and len(arrivals) <= SIZES[0] >= len(orders)
        and weight <= HEAVY
        and len(set(hashes)) == len(arrivals)
        and known.fresh.keys().isdisjoint(hashes)
        and all(_is_plain(known, job) for job in orders)
    ):
        return None
    stored = [
        deliveries.stored_of(arrival.kept, tx.now, tuple([job.id for job in arrival.jobs]))
        for arrival in arrivals
    ]
    ids = remembered.all_packed([job.id for job in orders if job.remember])
    if ids is None:
        return None
    first, first_job = known.last_delivery + 1, tx.take_seqs(len(orders))
    enters = not lines.have_room(known, len(hashes))
    sql, values = _statement(
        [known.fresh_seen, known.version, b"".join(hashes), enters, ids, first, first_job],
        deliveries.rows_of(first, arrivals, stored, hashes),
        jobs.rows_of(tx, orders, first_job),
    )
    tx.woken.update([job.queue for job in orders])

    def finish(tx: Tx) -> list[Any]:
        tx.known.last_delivery = first + len(hashes) - 1
        lines.left(tx.known, first, hashes, entered=enters)
        return [[Reception(kept, Verdict.NEW) for kept in stored]]

    return Stroke(sql, values, finish)


def _is_plain(known: Known, job: NewJob) -> bool:
    """Whether a job is stored whatever else there is."""
    queue = known.queues.get(job.queue)
    if queue is None or job.key is not None or job.after or job.before:
        return False
    return queue.mode is not QueueMode.DRAINING and (queue.laned or not job.lane)


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
