"""What a person may do to jobs and queues; each act is written down in the step that does it."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from relevo.store import By, Edit, QueueMode
from relevo.stores.sqlite import flows
from relevo.stores.sqlite.jobs import write_lines
from relevo.stores.sqlite.latest import LATEST, REPLACED
from relevo.stores.sqlite.memory import write_audit
from relevo.stores.sqlite.transaction import (
    CANCELLED,
    DEAD,
    DONE,
    HELD,
    PARKED,
    READY,
    RUNNING,
    STATES,
    Tx,
    as_bytes,
    as_list,
    new_token,
    text,
)


class _Row(msgspec.Struct, array_like=True):
    """What has to be known of a job before it is changed."""

    seq: int
    id: str
    queue: str
    state: int
    run_at: int
    key: str | None
    waited: int
    parent: int  # 1: it waits for others, or did
    forever: int


def _rows(tx: Tx, ids: Sequence[str]) -> dict[str, _Row]:
    found = tx.all(
        """
        select seq, id, queue, state, run_at, key, waited,
               exists (select 1 from relevo_edges where parent = seq), forever
        from relevo_jobs
        where id in (select value from json_each(?))
        """,
        (as_list(map(text, ids)),),
    )
    return {row[1]: _Row(*row) for row in found}


def _each(ids: Sequence[str], changed: set[str]) -> list[bool]:
    """True for the first mention of each id that was changed."""
    answers: list[bool] = []
    for id_ in ids:
        answers.append(id_ in changed)
        changed.discard(id_)
    return answers


def retry(tx: Tx, ids: Sequence[str], by: By, spread: int) -> list[bool]:
    """Ready again with fresh attempts, evenly over `spread` milliseconds."""
    rows = _rows(tx, ids)
    taken: set[tuple[str, str]] = set()
    going = [row for row in rows.values() if _may_go(tx, row, taken)]
    order = {id_: place for place, id_ in enumerate(ids)}
    going.sort(key=lambda row: order.get(row.id, 0))
    parents: list[int] = []
    for place, row in enumerate(going):
        run_at = tx.now + spread * place // len(going)
        is_parent = row.parent and row.state in (DEAD, CANCELLED)
        tx.run(
            """
            update relevo_jobs
            set state = ?, attempt = 0, suspicion = 0, crashes = 0, run_at = ?, due_at = null,
                park = null, note = null
            where seq = ?
            """,
            (40 if is_parent else READY, run_at, row.seq),
        )
        if is_parent:
            parents.append(row.seq)
        write_audit(tx, by, "retry", row.id, before=_state(row), after="ready")
        tx.woken.add(row.queue)
    ended = [row.id for row in going if row.state in (DEAD, CANCELLED)]
    if ended:
        flows.revive(tx, ended)
    if parents:
        flows.settle_parents(tx, parents)
    return _each(ids, {row.id for row in going})


def _state(row: _Row) -> str:
    return STATES[row.state].value if row.state in STATES else "unknown"


def _may_go(tx: Tx, row: _Row, taken: set[tuple[str, str]]) -> bool:
    """Whether a job may be made ready again. `taken` are the keys of those let go before it."""
    if row.state == READY:
        return row.run_at > tx.now
    if row.state not in (DEAD, CANCELLED, HELD, PARKED):
        return False
    if row.state in (DEAD, CANCELLED) and row.parent and _has_bad_child(tx, row.seq):
        return False
    if row.key is None or row.state not in (DEAD, CANCELLED):
        return True
    if row.forever == REPLACED:
        return False
    other = tx.one(
        """
        select 1
        from relevo_jobs
        where key = ?
          and queue = ?
          and state in (10, 20, 40, 50, 60)
          and seq > ?
        """,
        # What is older than the newest neither runs in its place nor after it.
        (row.key, row.queue, row.seq if row.forever == LATEST else 0),
    )
    if row.forever == LATEST:
        return other is None
    if other is not None or (row.queue, row.key) in taken:
        return False
    taken.add((row.queue, row.key))
    return True


def _has_bad_child(tx: Tx, seq: int) -> bool:
    found = tx.one(
        """
        select 1
        from relevo_edges as edge
        cross join relevo_jobs as child on child.id = edge.child
        where edge.parent = ?
          and edge.policy = 'fail'
          and child.state in (70, 80)
        """,
        (seq,),
    )
    return found is not None


def edit(tx: Tx, edits: Sequence[Edit], by: By) -> list[bool]:
    """Change jobs that are not running nor done."""
    return [_edit(tx, change, by) for change in edits]


def _edit(tx: Tx, change: Edit, by: By) -> bool:
    row = tx.one(
        """
        select seq, queue, state, payload, priority, run_at, attempts
        from relevo_jobs
        where id = ?
        """,
        (text(change.id),),
    )
    if row is None or row[2] in (RUNNING, DONE):
        return False
    seq, queue, _, payload, priority, run_at, attempts = row
    after = (
        as_bytes(payload) if change.payload is None else change.payload,
        priority if change.priority is None else min(max(change.priority, 0), 2),
        run_at if change.run_at is None else change.run_at,
        attempts if change.attempts is None else max(1, change.attempts),
    )
    tx.run(
        """
        update relevo_jobs
        set payload = ?1, priority = ?2, due_at = iif(run_at = ?3, due_at, null), run_at = ?3,
            attempts = ?4
        where seq = ?5
        """,
        (*after, seq),
    )
    before = _digest(as_bytes(payload), priority, run_at, attempts)
    write_audit(tx, by, "edit", change.id, before=before, after=_digest(*after))
    tx.woken.add(queue)
    return True


def _digest(payload: bytes, *rest: Any) -> str:
    return blake2b(payload + repr(rest).encode(), digest_size=16).hexdigest()


def cancel(tx: Tx, ids: Sequence[str], by: By) -> list[bool]:
    """End jobs that have not ended; a running one loses its lease."""
    live = [row for row in _rows(tx, ids).values() if row.state not in (DONE, DEAD, CANCELLED)]
    write_lines(tx, [(row.seq, "cancelled", None) for row in live if row.state == RUNNING])
    _put_aside(tx, live, by, "cancel")
    return _each(ids, {row.id for row in live})


def discard(tx: Tx, ids: Sequence[str], by: By) -> list[bool]:
    """Put dead or held jobs aside as cancelled, with the reason."""
    bad = [row for row in _rows(tx, ids).values() if row.state in (DEAD, HELD)]
    _put_aside(tx, bad, by, "discard")
    return _each(ids, {row.id for row in bad})


def _put_aside(tx: Tx, rows: Sequence[_Row], by: By, verb: str) -> None:
    for row in rows:
        tx.run(
            """
            update relevo_jobs
            set state = 80, token = ?, ended_at = ?, note = ?, park = null
            where seq = ?
            """,
            (-new_token(), tx.now, text(by.note), row.seq),
        )
        write_audit(tx, by, verb, row.id, before=_state(row), after="cancelled")
    flows.ended(tx, [], [row.id for row in rows if row.waited])
    tx.woken.update({row.queue for row in rows} & tx.known.limited)


_VERBS = {QueueMode.PAUSED: "pause", QueueMode.DRAINING: "drain", QueueMode.OPEN: "resume"}


def set_mode(tx: Tx, queues: Sequence[str], mode: QueueMode, by: By) -> list[bool]:
    """Pause, drain or open queues."""
    answers: list[bool] = []
    for name in queues:
        before = tx.queue(name).mode
        answers.append(before is not mode)
        if before is not mode:
            tx.change_queue(name, mode=mode)
            write_audit(tx, by, _VERBS[mode], name, before=before.value, after=mode.value)
            tx.woken.add(name)
    return answers
