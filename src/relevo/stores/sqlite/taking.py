"""Endings and a claim at one stroke: a worker's whole turn, where all is plain.

That is: runs which simply went well, and the next jobs of one queue without lanes, limits or rate.
The leases come as the same JSON as on the long way (claims.py), by way of a function that the
statement calls in its midst: if they cannot be read, nothing is written.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from relevo.job import Ending, State
from relevo.store import Claim, Want
from relevo.stores.sqlite import claims, jobs
from relevo.stores.sqlite.command import FAIL, Command, Stroke, spelled
from relevo.stores.sqlite.transaction import NOTHING, Known, Tx, as_list, new_token

GROUPS = 8  # claims whose endings come together

_ENDS = ("seqs", "count", "token", "gone", "stamp", "now")
_TAKES = ("queue", "count", "token", "version", "until", "worker", "now")
_NAMES = tuple(dict.fromkeys(_ENDS + _TAKES))
_BATCH = claims.BATCH.replace("ROWS", spelled(claims.DUE, "queue", "now", "count"))
_HEARD = f"(select relevo_heard(count, odd, metas, seqs, batch) from ({_BATCH}))"  # noqa: S608 - constants
SCHEMA = (
    f"create temp view relevo_turn as select {', '.join([f'0 as {name}' for name in _NAMES])}",
    f"""
    create temp trigger relevo_turn_ends instead of insert on relevo_turn
    when new.gone = 0
    begin
        {spelled(jobs.END_PLAIN, "seqs", "token", "stamp", "now")};
        {FAIL} where changes() <> new.count;
    end
    """,
    f"""
    create temp trigger relevo_turn_ends_gone instead of insert on relevo_turn
    when new.gone = 1
    begin
        {spelled(jobs.END_GONE, "seqs", "token")};
        {FAIL} where changes() <> new.count;
    end
    """,
    f"""
    create temp trigger relevo_turn_takes instead of insert on relevo_turn
    when new.queue is not null
    begin
        {FAIL} where (select value from relevo_meta where name = 'queues') is not new.version;
        {spelled(claims.MARK, "token", "until", "now", "worker").replace("?5", _HEARD)};
    end
    """,  # noqa: S608 - put together from constants
)


def lay(tx: Tx, batch: Sequence[Command]) -> Stroke | None:
    """Have runs end and jobs claimed; None if there is more to it."""
    *settling, claiming = batch
    # A claim that nobody waits for any more is left to the thread, which drops it.
    if claiming.verb is not claims.claim or claiming.future.done():
        return None
    if any(
        command.verb is not jobs.settle_runs or command.clock is not claiming.clock
        for command in settling
    ):
        return None
    endings: list[Ending] = [ending for command in settling for ending in command.args]
    wants, count, worker, length = claiming.args
    open_ = claims.open_wants(tx, wants)
    number = tx.known.workers.get(worker)
    groups = _groups(endings)
    if groups is None or number is None or len(open_) != 1 or not claims.is_plain(tx, open_[0]):
        return None
    now, queue, token = tx.now, open_[0].queue, new_token()
    rows = [
        _row(
            seqs=as_list(seqs),
            count=len(seqs),
            token=lease_token,
            gone=not is_kept,
            stamp=-new_token(),
            now=now,
        )
        for (lease_token, is_kept), seqs in groups.items()
    ]
    rows.append(
        _row(
            queue=queue,
            count=count,
            token=token,
            version=tx.known.version,
            until=now + length,
            worker=number,
            now=now,
        )
    )
    if tx.known.limited:
        tx.woken.update({ending.lease.queue for ending in endings} & tx.known.limited)

    def finish(tx: Tx) -> list[Any]:
        leases, told, metas = tx.known.heard
        tx.known.heard = NOTHING
        taken = claims.dressed(leases, told, metas, queue=queue, token=token, now=now)
        due = None if len(taken) >= count else _next_due(tx, open_)
        return [*[[True] * len(command.args) for command in settling], Claim(list(taken), due)]

    return Stroke(_STATEMENTS[len(rows)], [value for row in rows for value in row], finish)


def _next_due(tx: Tx, wants: Sequence[Want]) -> int | None:
    """When to look again: at once if it cannot be told. What is written stays so either way."""
    try:
        return claims.next_due(tx, wants, [])
    except sqlite3.Error:
        return 0


def _groups(endings: Sequence[Ending]) -> dict[tuple[int | str, bool], list[int]] | None:
    """Runs that simply went well, by claim; None if one went otherwise, or is there twice."""
    groups: dict[tuple[int | str, bool], list[int]] = {}
    token, is_kept = None, False
    seqs: list[int] = []
    for ending in endings:
        lease = ending.lease
        if ending.state is not State.DONE or ending.result is not None or ending.failure:
            return None
        if lease.token != token or (lease.keep > 0) is not is_kept:
            token, is_kept = lease.token, lease.keep > 0
            seqs = groups.setdefault((token, is_kept), [])
        seqs.append(lease.ref)
    are_once = all(len(set(seqs)) == len(seqs) for seqs in groups.values())
    return groups if are_once and len(groups) <= GROUPS else None


def _row(**values: Any) -> list[Any]:
    return [values.get(name) for name in _NAMES]


_VALUES = f"({', '.join('?' * len(_NAMES))})"
_STATEMENTS = {
    rows: f"insert into relevo_turn ({', '.join(_NAMES)}) values {', '.join([_VALUES] * rows)}"  # noqa: S608 - names
    for rows in range(1, GROUPS + 2)
}


def hear(known: Known, count: int, odd: int, metas: int, seqs: str, batch: bytes) -> str:
    """What the statement calls in its midst: makes leases of a batch, or it fails."""
    leases = claims.decode_all(batch) if count else []
    if odd or len(leases) != count:
        raise ValueError("a row was changed by hand")
    known.heard = (leases, batch or b"", metas)
    return seqs
