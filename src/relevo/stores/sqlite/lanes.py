"""Lanes: the jobs of a queue that take turns, one lane after the other, each within its limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Struct

from relevo.store import Want
from relevo.stores.sqlite.pace import pace
from relevo.stores.sqlite.transaction import Tx, as_list, chunks, fill, plain

Sift: TypeAlias = Callable[[Tx, Sequence[int]], Sequence[int | None]]

BLOCKED = 1_000  # milliseconds until a queue at its limit is looked at again, if nothing wakes us


def put_in_order(tx: Tx, queue: str) -> None:
    """From now on the jobs of this queue that name no lane share one, without a name."""
    tx.change_queue(queue, ordered=True, laned=True)
    for those in (
        "state = 10",
        "state = 20",
        "state not between 10 and 30 and state in (40, 50, 60)",
    ):
        tx.run(
            """
            update relevo_jobs
            set lane = ''
            where THOSE
              and queue = ?
              and lane is null
            """.replace("THOSE", those),
            (queue,),
        )


class _Lane(Struct, array_like=True):
    """A lane with due jobs: what it has been given so far."""

    name: str | None
    served: int
    tat: int
    log: str
    running: int
    head: int | None  # of an ordered queue: the one job that may go
    free: int = 0


_decode_lanes = msgspec.json.Decoder(list[_Lane]).decode


def choose(
    tx: Tx, want: Want, count: int, look_again: list[int], sift: Sift | None = None
) -> tuple[list[int], int]:
    """The jobs whose turn it is: one per lane and round, the lane served longest ago first.

    `look_again` hears of the moments at which a lane that must wait gives way. `sift` says what is
    given out in the place of each, if anything. Answers them, and how many there were before that.
    """
    lanes = _lanes(tx, want, look_again)
    chosen: list[tuple[int, int, int]] = []  # round, lane, seq
    depth = -(-count // len(lanes)) if lanes else 0
    while lanes:
        chosen = sorted(
            (round_, place, seq)
            for place, seqs in enumerate(_waiting(tx, want, lanes, depth))
            for round_, seq in enumerate(seqs[: lanes[place].free])
        )
        if want.ordered or len(chosen) >= count or depth >= count:
            break
        depth = count  # some lanes have little: look deeper into the others
    chosen = chosen[:count]
    met = len(chosen)
    if sift is not None:
        stands = sift(tx, [seq for *_, seq in chosen])
        chosen = [
            (round_, place, stand)
            for (round_, place, _), stand in zip(chosen, stands, strict=True)
            if stand is not None
        ]
    taken = Counter(place for _, place, _ in chosen)
    _serve(tx, want, [(lanes[place], number) for place, number in taken.items()])
    return [seq for *_, seq in chosen], met


def _lanes(tx: Tx, want: Want, look_again: list[int]) -> list[_Lane]:
    """The lanes with due jobs that may run more, the one served longest ago first."""
    (found,) = tx.one(_LANES, (want.queue, tx.now, want.ordered))
    free: list[_Lane] = []
    for lane in _decode_lanes(found):
        lane.free = 1 << 30
        if want.ordered:
            lane.free = 1 if lane.head is not None else 0
        elif want.lane_limit is not None and lane.name is not None:
            lane.free = want.lane_limit - lane.running
            if lane.free <= 0:
                look_again.append(tx.now + BLOCKED)
        named = None if lane.name is None else want.lanes.get(plain(lane.name))
        if named is not None:
            lane.free = min(lane.free, named - lane.running)
            if lane.free <= 0:
                look_again.append(tx.now + BLOCKED)
        if want.lane_rate is not None and lane.name is not None:
            rate = pace(want.lane_rate, want.burst, lane.tat, lane.log, tx.now)
            lane.free = min(lane.free, rate.free)
            if rate.free <= 0:
                look_again.append(rate.next_at)
        if lane.free > 0:
            free.append(lane)
    return free


# One look per lane, however many jobs it has: the index is skipped through from name to name.
_LANES = """
    with recursive lane (name) as (
        select min(lane) from relevo_jobs where state = 10 and lane is not null and queue = ?1
        union all
        select (
            select min(lane)
            from relevo_jobs
            where state = 10
              and lane is not null
              and queue = ?1
              and lane > lane.name
        )
        from lane
        where lane.name is not null
    ), due (name, head) as (
        select lane.name, (
            select iif(job.state = 10 and job.run_at <= ?2, job.seq, null)
            from relevo_jobs as job
            where job.queue = ?1
              and job.lane = lane.name
              and job.lane is not null
              and job.state not in (30, 70, 80)
              and ?3
            order by job.seq
            limit 1
        )
        from lane
        where lane.name is not null
          and exists (
            select 1
            from relevo_jobs
            where state = 10
              and lane is not null
              and queue = ?1
              and lane = lane.name
              and priority in (0, 1, 2)
              and run_at <= ?2
          )
        union all
        select null, null
        where exists (
            select 1
            from relevo_jobs
            where state = 10
              and lane is null
              and queue = ?1
              and priority in (0, 1, 2)
              and run_at <= ?2
        )
    )
    select json_group_array(json_array(name, served, tat, log, running, head))
    from (
        select due.name, ifnull(turn.served, 0) as served, ifnull(turn.tat, 0) as tat,
            ifnull(turn.log, '') as log, (
            select count(*)
            from relevo_jobs
            where queue = ?1
              and lane = due.name
              and lane is not null
              and state = 20
              and state not in (30, 70, 80)
        ) as running, due.head
        from due
        left join relevo_lanes as turn on turn.queue = ?1 and turn.lane = ifnull(due.name, '')
        order by served, due.head
    )
"""


def _waiting(tx: Tx, want: Want, lanes: Sequence[_Lane], depth: int) -> list[list[int]]:
    """The first due jobs of each lane."""
    if want.ordered:
        return [[lane.head] if lane.head is not None else [] for lane in lanes]
    (found,) = tx.one(
        """
        select json_group_array(json(jobs))
        from (
            select iif(
                asked.value is null,
                (
                    select json_group_array(seq)
                    from (
                        select seq
                        from relevo_jobs
                        where state = 10
                          and lane is null
                          and queue = ?1
                          and priority in (0, 1, 2)
                          and run_at <= ?2
                        order by priority, run_at, seq
                        limit ?3
                    )
                ),
                (
                    select json_group_array(seq)
                    from (
                        select seq
                        from relevo_jobs
                        where state = 10
                          and lane is not null
                          and queue = ?1
                          and lane = asked.value
                          and priority in (0, 1, 2)
                          and run_at <= ?2
                        order by priority, run_at, seq
                        limit ?3
                    )
                )
            ) as jobs
            from json_each(?4) as asked
        )
        """,
        (want.queue, tx.now, depth, as_list(lane.name for lane in lanes)),
    )
    return msgspec.json.decode(found, type=list[list[int]])


def _serve(tx: Tx, want: Want, lanes: Sequence[tuple[_Lane, int]]) -> None:
    """Note that lanes have had their turn, and what they took of their rate."""
    turn = tx.take_seqs(1)
    for some in chunks(lanes):
        values: list[object] = []
        for lane, taken in some:
            tat, log = lane.tat, lane.log
            if want.lane_rate is not None:
                tat, log = pace(want.lane_rate, want.burst, tat, log, tx.now).after(taken)
            values += (want.queue, lane.name or "", turn, tat, log, tx.now)
        tx.run(
            fill(
                """
                insert into relevo_lanes (queue, lane, served, tat, log, served_at)
                values [?, ?, ?, ?, ?, ?]
                on conflict (queue, lane) do update
                set served = excluded.served, tat = excluded.tat, log = excluded.log,
                    served_at = excluded.served_at
                """,
                len(some),
            ),
            values,
        )
