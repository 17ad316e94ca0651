"""Groups of jobs: who may join a waiting job, and how its members' ends are counted."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from relevo.job import Before, NewJob
from relevo.store import Gate, JobGroup
from relevo.stores.sqlite.transaction import (
    CANCELLED,
    DEAD,
    Tx,
    as_list,
    chunks,
    fill,
    plain,
    text,
)

LATER = 10_000  # from here on are the places of children that are tied to a parent that waits


def refused(tx: Tx, jobs: Sequence[NewJob]) -> set[str]:
    """The ids of those of these jobs that one of their parents takes no more."""
    wanted = [(job, before) for job in jobs for before in job.before]
    if not wanted:
        return set()
    # One that comes in by the same call is open.
    here = {job.id for job in jobs if job.is_group}
    parents = {
        id_: (seq, gate)
        for id_, seq, gate in tx.all(
            """
            select job.id, job.seq, grp.gate
            from json_each(?) as asked
            cross join relevo_jobs as job on job.id = asked.value
            left join relevo_groups as grp on grp.seq = job.seq
            where job.state = 40
            """,
            (as_list({text(before.parent) for _, before in wanted} - here),),
        )
    }
    asked: dict[int, dict[str, bool]] = {}

    def may_join(job: NewJob, before: Before) -> bool:
        if before.parent in here:
            return True
        seq, gate = parents.get(text(before.parent), (0, Gate.SHUT))
        if gate == Gate.OPEN:
            return True
        if gate == Gate.SHUT or job.cause is None:
            return False
        known = asked.setdefault(seq, {})
        if job.cause not in known:
            known[job.cause] = _is_live_child(tx, seq, job.cause)
        return known[job.cause]

    return {job.id for job, before in wanted if not may_join(job, before)}


def _is_live_child(tx: Tx, parent: int, child: str) -> bool:
    found = tx.one(
        "select 1 from relevo_edges where child = ? and parent = ? and pending = 1",
        (text(child), parent),
    )
    return found is not None


def open_groups(tx: Tx, names: Mapping[int, str]) -> None:
    """Enter groups whose jobs, by their seq, have just been stored."""
    for seq, name in names.items():
        tx.run(
            "insert into relevo_groups (seq, name, gate, opened_at) values (?, ?, ?, ?)",
            (seq, text(name), Gate.OPEN, tx.now),
        )


def join(tx: Tx, members: Sequence[tuple[Before, str]]) -> None:
    """Tie jobs to parents that wait already; one that has ended counts at once."""
    stored = {
        id_: (seq, state)
        for id_, seq, state in tx.all(
            "select id, seq, state from relevo_jobs where id in (select value from json_each(?))",
            (as_list({text(id_) for before, job in members for id_ in (before.parent, job)}),),
        )
    }
    edges: list[tuple[int, int, str, str, int]] = []
    over: dict[int, dict[int, int]] = {}
    for before, job in members:
        parent, _ = stored[text(before.parent)]
        seq, state = stored.get(text(job), (0, 30))
        is_live = state not in (30, DEAD, CANCELLED)
        if is_live or before.policy != "tally":
            edges.append((parent, LATER + seq, text(job), before.policy, int(is_live)))
        else:
            counts = over.setdefault(parent, {})
            counts[state] = counts.get(state, 0) + 1
    joined: dict[int, int] = {}
    for some in chunks(edges):
        rows = tx.all(
            fill(
                """
                insert into relevo_edges (parent, place, child, policy, pending)
                values [?, ?, ?, ?, ?]
                on conflict (parent, place) do nothing
                returning parent
                """,
                len(some),
            ),
            [value for edge in some for value in edge],
        )
        for (parent,) in rows:
            joined[parent] = joined.get(parent, 0) + 1
    tx.run(
        "update relevo_jobs set waited = 1 where seq in (select value from json_each(?))",
        (as_list([place - LATER for _, place, _, _, pending in edges if pending]),),
    )
    for parent, count in joined.items():
        tx.run("update relevo_groups set members = members + ? where seq = ?", (count, parent))
    for parent, counts in over.items():
        tx.run(
            "update relevo_groups set members = members + ? where seq = ?",
            (sum(counts.values()), parent),
        )
        _count(tx, parent, counts)


def take_ended(tx: Tx, ids: str) -> list[int]:
    """Count members that have ended, each once; answers the jobs that waited for them."""
    rows = tx.all(
        """
        select edge.parent, child.state, count(*)
        from json_each(?) as asked
        cross join relevo_edges as edge on edge.child = asked.value
        cross join relevo_jobs as child on child.id = edge.child
        where edge.policy = 'tally'
          and child.seq <> edge.parent
        group by edge.parent, child.state
        """,
        (ids,),
    )
    tx.run(
        """
        delete from relevo_edges
        where child in (select value from json_each(?))
          and policy = 'tally'
        """,
        (ids,),
    )
    parents: dict[int, dict[int, int]] = {}
    for parent, state, count in rows:
        parents.setdefault(parent, {})[state] = count
    for parent, counts in parents.items():
        _count(tx, parent, counts)
    return list(parents)


def _count(tx: Tx, parent: int, counts: Mapping[int, int]) -> None:
    tx.run(
        """
        update relevo_groups
        set done = done + ?, dead = dead + ?, cancelled = cancelled + ?
        where seq = ?
        """,
        (
            sum(n for state, n in counts.items() if state not in (DEAD, CANCELLED)),
            counts.get(DEAD, 0),
            counts.get(CANCELLED, 0),
            parent,
        ),
    )


def change_gate(tx: Tx, ids: Sequence[str], gate: Gate) -> tuple[list[bool], list[int]]:
    """Close or shut groups whose jobs wait; also answers the jobs that may go on now."""
    answers: list[bool] = []
    closed: list[int] = []
    for id_ in ids:
        row = tx.one(
            """
            select grp.seq, grp.gate
            from relevo_jobs as job
            cross join relevo_groups as grp on grp.seq = job.seq
            where job.id = ?
              and job.state = 40
            """,
            (text(id_),),
        )
        seq, before = row or (0, Gate.SHUT)
        answers.append(may := before not in (gate, Gate.SHUT))
        if not may:
            continue
        tx.run(
            "update relevo_groups set gate = ?, closed_at = ifnull(closed_at, ?) where seq = ?",
            (gate, tx.now, seq),
        )
        if gate is Gate.CLOSED:
            tx.run("delete from relevo_edges where parent = ? and child = ?", (seq, text(id_)))
            closed.append(seq)
        else:  # it waits for itself again, whoever of its members ends
            tx.run(
                """
                insert into relevo_edges (parent, place, child, policy, pending)
                values (?, 0, ?, 'tally', 1)
                on conflict (parent, place) do nothing
                """,
                (seq, text(id_)),
            )
    return answers, closed


# read beside the writer

_GROUPS = """
    select job.id, job.queue, grp.name, grp.gate, grp.members, grp.done, grp.dead, grp.cancelled,
           grp.opened_at, grp.closed_at
    from relevo_groups as grp
    cross join relevo_jobs as job on job.seq = grp.seq
"""


def _group_of(row: Sequence[Any]) -> JobGroup:
    id_, queue, name, gate, members, done, dead, cancelled, opened_at, closed_at = row
    return JobGroup(
        id=plain(id_),
        queue=queue,
        name=plain(name),
        gate=Gate(gate),
        members=members,
        done=done,
        dead=dead,
        cancelled=cancelled,
        opened_at=opened_at,
        closed_at=closed_at,
    )


def find(connection: sqlite3.Connection, ids: Collection[str]) -> list[JobGroup | None]:
    """Groups by the ids of their jobs."""
    rows = connection.execute(
        f"""
        select found.*
        from json_each(?) as asked
        cross join relevo_jobs as wanted on wanted.id = asked.value
        cross join ({_GROUPS}) as found on found.id = wanted.id
        """,  # noqa: S608 - a constant
        (as_list(map(text, ids)),),
    )
    groups = {group.id: group for group in map(_group_of, rows)}
    return [groups.get(id_) for id_ in ids]


def newest(connection: sqlite3.Connection, limit: int) -> list[JobGroup]:
    """The groups opened last, newest first."""
    rows = connection.execute(f"{_GROUPS} order by grp.seq desc limit ?", (limit,))
    return [_group_of(row) for row in rows]


def live_members(connection: sqlite3.Connection, id_: str, limit: int) -> list[str]:
    """Some of a group's members that have not ended."""
    rows = connection.execute(
        """
        select edge.child
        from relevo_jobs as job
        cross join relevo_edges as edge on edge.parent = job.seq
        where job.id = ?
          and edge.policy = 'tally'
          and edge.child <> job.id
        limit ?
        """,
        (text(id_), limit),
    )
    return [plain(child) for (child,) in rows]
