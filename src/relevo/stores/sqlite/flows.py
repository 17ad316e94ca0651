"""Who waits for whom: releasing and failing a flow's parents in the step that ends a child."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from relevo.job import After, Failure
from relevo.store import Gate
from relevo.stores.sqlite import groups
from relevo.stores.sqlite.transaction import (
    CANCELLED,
    DEAD,
    Tx,
    as_list,
    chunks,
    fill,
    new_token,
    text,
)


def attach(tx: Tx, parents: Mapping[str, Sequence[After]], stands: Mapping[str, str]) -> None:
    """Tie newly stored parents to their children; those whose children have all ended go on.

    `stands` says which job stands for a child that was a duplicate.
    """
    seqs = _seqs(tx, list(parents))
    edges = [
        (seqs[parent], place, text(stands.get(edge.child, edge.child)), edge.policy)
        for parent, after in parents.items()
        for place, edge in enumerate(after)
    ]
    for some in chunks(edges):
        tx.run(
            fill(
                """
                insert into relevo_edges (parent, place, child, policy, pending)
                values [?, ?, ?, ?, 1]
                """,
                len(some),
            ),
            [value for edge in some for value in edge],
        )
    settle_parents(tx, list(seqs.values()))


def open_groups(tx: Tx, names: Mapping[str, str]) -> None:
    """Enter the groups of jobs that have just been attached, each with its name."""
    seqs = _seqs(tx, list(names))
    groups.open_groups(tx, {seqs[id_]: name for id_, name in names.items()})


def _seqs(tx: Tx, ids: Sequence[str]) -> dict[str, int]:
    rows = tx.all(
        "select id, seq from relevo_jobs where id in (select value from json_each(?))",
        (as_list(ids),),
    )
    return dict(rows)


def settle_parents(tx: Tx, parents: Sequence[int]) -> list[int]:
    """Look at all children of waiting parents anew; answers the parents that still wait.

    A child that is not stored any more was done once: it counts as ended.
    """
    these = (as_list(parents),)
    tx.run(
        """
        update relevo_edges
        set pending = exists (
            select 1
            from relevo_jobs as child
            where child.id = relevo_edges.child
              and child.state not in (30, 70, 80)
        )
        where parent in (select value from json_each(?))
        """,
        these,
    )
    tx.run(
        """
        update relevo_jobs
        set waited = 1
        where waited = 0
          and id in (
            select child
            from relevo_edges
            where parent in (select value from json_each(?))
              and pending = 1
          )
        """,
        these,
    )
    failed = tx.all(
        """
        select edge.parent, child.queue, child.id, child.state
        from json_each(?) as asked
        cross join relevo_edges as edge on edge.parent = asked.value
        cross join relevo_jobs as child on child.id = edge.child
        where edge.policy = 'fail'
          and child.state in (70, 80)
        """,
        these,
    )
    _fail(tx, {parent: (queue, id_, state) for parent, queue, id_, state in failed})
    _release(tx, parents)
    waiting = tx.all(
        """
        select seq
        from relevo_jobs
        where seq in (select value from json_each(?))
          and state = 40
        """,
        these,
    )
    return [seq for (seq,) in waiting]


def ended(tx: Tx, good: Sequence[str], bad: Sequence[str]) -> None:
    """Tell the parents that these children have ended, well or not."""
    if not good and not bad:
        return
    both = as_list([*good, *bad])
    tallied = groups.take_ended(tx, both)
    failed: dict[int, tuple[str, str, int]] = {}
    if bad:
        rows = tx.all(
            """
            select edge.parent, child.queue, child.id, child.state
            from json_each(?) as asked
            cross join relevo_edges as edge on edge.child = asked.value
            cross join relevo_jobs as child on child.id = edge.child
            where edge.policy = 'fail'
              and edge.pending = 1
            """,
            (as_list(bad),),
        )
        failed = {parent: (queue, id_, state) for parent, queue, id_, state in rows}
    parents = tx.all(
        """
        select distinct parent
        from relevo_edges
        where child in (select value from json_each(?))
          and pending = 1
        """,
        (both,),
    )
    tx.run(
        """
        update relevo_edges
        set pending = 0
        where child in (select value from json_each(?))
          and pending = 1
        """,
        (both,),
    )
    tx.run(
        """
        update relevo_jobs
        set waited = 0
        where id in (select value from json_each(?))
        """,
        (both,),
    )
    _fail(tx, failed)
    _release(tx, [*tallied, *[parent for (parent,) in parents]])
    if any(row.latest for row in tx.known.queues.values()):
        _let_newest_go_on(tx, both)


def set_gate(tx: Tx, ids: Sequence[str], gate: Gate) -> list[bool]:
    """Close or shut groups; one that is closed and has no live member goes on."""
    answers, closed = groups.change_gate(tx, ids, gate)
    _release(tx, closed)
    return answers


def _let_newest_go_on(tx: Tx, ended: str) -> None:
    """Jobs of unique="latest" that waited for the end of these are due when they were before."""
    rows = tx.all(
        """
        select newest.seq, newest.queue
        from json_each(?) as asked
        cross join relevo_jobs as job on job.id = asked.value
        cross join relevo_jobs as newest
            on newest.key = job.key and newest.queue = job.queue and newest.state = 10
        where newest.forever = 2
          and newest.due_at is not null
        """,
        (ended,),
    )
    if rows:
        tx.run(
            """
            update relevo_jobs
            set run_at = due_at, due_at = null
            where seq in (select value from json_each(?))
            """,
            (as_list(seq for seq, _ in rows),),
        )
        tx.woken.update(queue for _, queue in rows)


def _release(tx: Tx, parents: Sequence[int]) -> None:
    """Let those parents go whose last child has ended."""
    if not parents:
        return
    rows = tx.all(
        """
        select parent.seq, parent.queue
        from json_each(?) as asked
        cross join relevo_jobs as parent on parent.seq = asked.value
        where parent.state = 40
          and not exists (
            select 1
            from relevo_edges indexed by relevo_edges_pending
            where parent = asked.value
              and pending = 1
          )
        """,
        (as_list(parents),),
    )
    if rows:
        tx.run(
            """
            update relevo_jobs
            set state = 10
            where seq in (select value from json_each(?))
            """,
            (as_list(seq for seq, _ in rows),),
        )
        tx.woken.update(queue for _, queue in rows)


def _fail(tx: Tx, parents: Mapping[int, tuple[str, str, int]]) -> None:
    """End waiting parents whose child ended badly, and tell their own parents in turn."""
    dead: list[str] = []
    for parent, (queue, child, state) in parents.items():
        how = {DEAD: "died", CANCELLED: "was cancelled"}.get(state, "ended badly")
        failure = Failure(
            type="ChildFailed",
            message=f"its child {child} in {queue} {how}",
            fingerprint=f"ChildFailed:{queue}",
        )
        rows = tx.all(
            """
            update relevo_jobs
            set state = 70, token = ?, ended_at = ?, failure = ?, fingerprint = ?
            where seq = ?
              and state = 40
            returning id
            """,
            (
                -new_token(),
                tx.now,
                msgspec.json.encode(failure).decode(),
                failure.fingerprint,
                parent,
            ),
        )
        dead += [id_ for (id_,) in rows]
    ended(tx, [], dead)


def revive(tx: Tx, ids: Sequence[str]) -> None:
    """Children that live again: parents that still wait wait for them too."""
    these = (as_list(ids),)
    tx.run(
        """
        update relevo_edges
        set pending = 1
        where child in (select value from json_each(?))
          and exists (select 1 from relevo_jobs where seq = relevo_edges.parent and state = 40)
        """,
        these,
    )
    tx.run(
        """
        update relevo_jobs
        set waited = 1
        where id in (select value from json_each(?))
          and exists (select 1 from relevo_edges where child = relevo_jobs.id and pending = 1)
        """,
        these,
    )
