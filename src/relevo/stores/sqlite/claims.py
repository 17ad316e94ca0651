"""Claiming: the fast path for plain queues, and the turn-taking of lanes, limits and rates."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct

from relevo.job import Lease
from relevo.store import Claim, QueueMode, Want
from relevo.stores.sqlite.file import is_fatal
from relevo.stores.sqlite.transaction import ESCAPE, Tx, as_list, chunks, fill, new_token, plain
from relevo.stores.sqlite.upkeep import bury

BLOCKED = 1_000  # milliseconds until a queue at its limit is looked at again, if nothing wakes us
LARGE = 262_144  # a batch of payloads this big is not kept in memory for the sake of one of them


class Claimed(Lease, array_like=True):
    """A lease as the claiming statement writes it: one JSON array, its payload spliced in."""

    payload: Raw  # pyright: ignore[reportIncompatibleVariableOverride] - a narrower type
    meta: str | None = None  # pyright: ignore[reportIncompatibleVariableOverride] - bytes below


_ESCAPE = f"\\u{ord(ESCAPE):04x}".encode()
decode_all = msgspec.json.Decoder(list[Claimed]).decode

# In the order of the fields of Claimed, less what is the same in all. One row for a whole batch:
# every row of its own would give the interpreter's lock away once more. The values stay JSON
# because payloads are.
_ROW = """
    printf(
        '["%s","",%s,%s,%d,%d,0,%d,%s,%d,%d]',
        id, json_quote(kind), payload, attempt + 1, attempts, seq,
        case
            when coalesce(key, lane, thread, cause, meta, flow, node) is null
            then 'null,null,null,null,null,null,null'
            else json_quote(key) || ',' || json_quote(nullif(lane, '')) || ','
                || json_quote(thread) || ',' || json_quote(cause) || ','
                || json_quote(cast(meta as text)) || ','
                || json_quote(flow) || ',' || json_quote(node)
        end,
        keep, inserted_at
    )
"""
BATCH = f"""
    select count(*) as count,
           count(*) filter (
               where not (
                   attempt between 0 and 1000000
                   and attempts between 1 and 1000000
                   and keep between 0 and 1000000000000000
               )
           ) as odd,
           count(meta) as metas,
           '[' || group_concat(seq) || ']' as seqs,
           cast('[' || group_concat({_ROW}) || ']' as blob) as batch
    from (ROWS)
"""  # noqa: S608 - put together from constants
DUE = """
    select *
    from relevo_jobs
    where state = 10
      and lane is null
      and queue = ?1
      and priority in (0, 1, 2)
      and run_at <= ?2
    order by priority, run_at, seq
    limit ?3
"""
_SEQS = "select seq from (ROWS)"
_CHOSEN = """
    select job.*
    from json_each(?) as chosen
    cross join relevo_jobs as job on job.seq = chosen.value
"""
_BATCHES = {rows: BATCH.replace("ROWS", rows) for rows in (DUE, _CHOSEN)}


MARK = """
    update relevo_jobs
    set state = 20, token = ?1, until_at = ?2, claimed_at = ?3, worker = ?4, attempt = attempt + 1
    where seq in (select value from json_each(?5))
"""


def claim(tx: Tx, wants: Sequence[Want], count: int, worker: str, lease: int) -> Claim:
    """Take up to `count` due jobs, shared evenly over the queues."""
    open_ = open_wants(tx, wants)
    turn = _Turn(tx, worker, lease)
    if len(open_) == 1 and is_plain(tx, open_[0]):
        turn.take_due(open_[0].queue, count)
    elif open_ and count > 0:
        _share(tx, turn, open_, count)
    if len(turn.leases) >= count or not open_:
        return Claim(turn.leases)
    return Claim(turn.leases, next_due(tx, open_, turn.look_again))


def open_wants(tx: Tx, wants: Sequence[Want]) -> list[Want]:
    """Those of queues that may have jobs to give."""
    # A queue that is not known has never had a job.
    known = [want for want in wants if want.queue in tx.known.queues]
    return [want for want in known if tx.queue(want.queue).mode is not QueueMode.PAUSED]


def is_plain(tx: Tx, want: Want) -> bool:
    """Whether the first jobs of a queue are simply the next ones."""
    return not (
        want.limit is not None
        or want.rate is not None
        or want.ordered
        or tx.queue(want.queue).laned
    )


class _Turn:
    """One claim on its way: whose, until when, and what it has got so far."""

    def __init__(self, tx: Tx, worker: str, lease: int) -> None:
        self.tx = tx
        self.token = new_token()
        self.worker = worker
        self.until = tx.now + lease
        self.leases: list[Lease] = []
        self.look_again: list[int] = []  # moments at which a limit gives way

    def take_due(self, queue: str, count: int) -> int:
        """Take the first due jobs of a queue without lanes."""
        return self._take(queue, DUE, (queue, self.tx.now, count))

    def take(self, queue: str, seqs: Sequence[int]) -> int:
        """Take these jobs of a queue."""
        return self._take(queue, _CHOSEN, (as_list(seqs),)) if seqs else 0

    def _take(self, queue: str, rows: str, parameters: tuple[object, ...]) -> int:
        try:
            count, odd, metas, seqs, batch = self.tx.one(_BATCHES[rows], parameters)
            if not count:
                return 0
            leases = [] if odd else decode_all(batch)
        except (sqlite3.OperationalError, msgspec.DecodeError, ValueError) as error:
            if is_fatal(error):
                raise
            return self._take_one_by_one(queue, rows, parameters)
        if len(leases) != count:
            return self._take_one_by_one(queue, rows, parameters)
        self._mark(seqs)
        self._add(queue, leases, batch, metas)
        return count

    def _add(self, queue: str, leases: Sequence[Claimed], batch: bytes, metas: int) -> None:
        self.leases += dressed(leases, batch, metas, queue=queue, token=self.token, now=self.tx.now)

    def _mark(self, seqs: str) -> None:
        tx = self.tx
        tx.run(MARK, (self.token, self.until, tx.now, tx.worker(self.worker), seqs))

    def _take_one_by_one(self, queue: str, rows: str, parameters: tuple[object, ...]) -> int:
        """A row among them was changed by hand: it is buried, with the reason; the others run."""
        taken = 0
        found = self.tx.all(_SEQS.replace("ROWS", rows), parameters)
        for (seq,) in found:
            try:
                _, odd, metas, one, batch = self.tx.one(_BATCHES[_CHOSEN], (as_list([seq]),))
                (lease,) = decode_all(batch)
                msgspec.json.decode(lease.payload)  # closer than Raw looks at it
            except (sqlite3.OperationalError, msgspec.DecodeError, ValueError) as error:
                if is_fatal(error):
                    raise
                bury(self.tx, seq, f"its row was changed by hand and cannot be read ({error})")
                continue
            if odd:
                bury(self.tx, seq, "its row was changed by hand: its numbers make no sense")
                continue
            self._mark(one)
            self._add(queue, [lease], batch, metas)
            taken += 1
        self.look_again.append(self.tx.now)  # there may be more behind those that were buried
        return taken


def dressed(
    leases: Sequence[Claimed], batch: bytes, metas: int, *, queue: str, token: int, now: int
) -> Sequence[Lease]:
    """Leases out of a batch, their values made what a Lease says they are."""
    for lease in leases:
        lease.queue, lease.token, lease.claimed_at = queue, token, now
    is_large = len(batch) > LARGE
    is_escaped = _ESCAPE in batch
    if not (metas or is_large or is_escaped):
        return leases
    for lease in leases:
        if lease.meta is not None:
            lease.meta = lease.meta.encode()  # pyright: ignore[reportAttributeAccessIssue] - as Lease has it
        if is_large:
            lease.payload = lease.payload.copy()
        if is_escaped:
            lease.kind = plain(lease.kind)
            lease.key = _plain(lease.key)
            lease.lane = _plain(lease.lane)
            lease.thread = _plain(lease.thread)
            lease.cause = _plain(lease.cause)
            lease.flow = _plain(lease.flow)
            lease.node = _plain(lease.node)
    return leases


def _plain(value: str | None) -> str | None:
    return None if value is None else plain(value)


def _share(tx: Tx, turn: _Turn, wants: Sequence[Want], count: int) -> None:
    """Deal `count` out over the queues that have work, evenly, each time beginning elsewhere."""
    share = -(-count // len(wants))
    due = _due(tx, wants, share)
    offers = [
        # Who has its share may have more; who has less is known to the last job.
        (want, min(count if due[want.queue] >= share else due[want.queue], allowed))
        for want in wants
        if due[want.queue] and (allowed := _allowance(tx, turn, want)) > 0
    ]
    start = tx.known.turns % len(offers) if offers else 0
    tx.known.turns += 1
    offers = offers[start:] + offers[:start]
    left = count
    while left and offers:
        shares = deal([offer for _, offer in offers], left)
        taken = [_take(tx, turn, want, n) for (want, _), n in zip(offers, shares, strict=True)]
        left -= sum(taken)
        offers = [
            (want, offer - got)
            for (want, offer), n, got in zip(offers, shares, taken, strict=True)
            if got == n and offer > n
        ]


def deal(offers: Sequence[int], count: int) -> list[int]:
    """How many each gets when `count` is dealt out evenly and nobody gets more than offered."""
    shares = [0] * len(offers)
    left = min(count, sum(offers))
    while left:
        hungry = [place for place, offer in enumerate(offers) if shares[place] < offer]
        each = max(1, left // len(hungry))
        for place in hungry:
            part = min(each, offers[place] - shares[place], left)
            shares[place] += part
            left -= part
    return shares


def _due(tx: Tx, wants: Sequence[Want], count: int) -> dict[str, int]:
    """How many due jobs each queue has, up to `count`."""
    plain, laned = tx.one(
        """
        select
            (
                select json_group_object(queue, due)
                from (
                    select asked.value as queue,
                           (
                               select count(*)
                               from (
                                   select 1
                                   from relevo_jobs
                                   where state = 10
                                     and lane is null
                                     and queue = asked.value
                                     and priority in (0, 1, 2)
                                     and run_at <= ?2
                                   limit ?3
                               )
                           ) as due
                    from json_each(?1) as asked
                )
            ),
            (
                select json_group_object(queue, due)
                from (
                    select asked.value as queue,
                           (
                               select count(*)
                               from (
                                   select 1
                                   from relevo_jobs
                                   where state = 10
                                     and lane is not null
                                     and queue = asked.value
                                     and run_at <= ?2
                                   limit ?3
                               )
                           ) as due
                    from json_each(?4) as asked
                )
            )
        """,
        (
            as_list(want.queue for want in wants),
            tx.now,
            count,
            as_list(want.queue for want in wants if tx.queue(want.queue).laned),
        ),
    )
    due: dict[str, int] = msgspec.json.decode(plain)
    for queue, more in msgspec.json.decode(laned).items():
        due[queue] += more
    return due


def _allowance(tx: Tx, turn: _Turn, want: Want) -> int:
    """How many more a queue may give now under its own limit and rate."""
    allowed = 1 << 30
    if want.limit is not None or want.lane_limit is not None or want.ordered:
        tx.known.limited.add(want.queue)
    if want.limit is not None:
        (running,) = tx.one(
            "select count(*) from relevo_jobs where state = 20 and queue = ?", (want.queue,)
        )
        allowed = want.limit - running
        if allowed <= 0:
            turn.look_again.append(tx.now + BLOCKED)
    if want.rate is not None:
        (tat,) = tx.one("select tat from relevo_queues where name = ?", (want.queue,))
        pace = Pace(want.rate, tat, tx.now)
        if pace.free <= 0:
            turn.look_again.append(pace.next_at)
        allowed = min(allowed, pace.free)
    return allowed


def _take(tx: Tx, turn: _Turn, want: Want, count: int) -> int:
    """Take up to `count` jobs of one queue, and enter them against its rate."""
    if not count:
        return 0
    row = tx.queue(want.queue)
    if want.ordered and not row.ordered:
        _put_in_order(tx, want.queue)
    if row.laned:
        taken = turn.take(want.queue, _choose(tx, turn, want, count))
    else:
        taken = turn.take_due(want.queue, count)
    if taken and want.rate is not None:
        (tat,) = tx.one("select tat from relevo_queues where name = ?", (want.queue,))
        tx.run(
            "update relevo_queues set tat = ? where name = ?",
            (Pace(want.rate, tat, tx.now).after(taken), want.queue),
        )
    return taken


def _put_in_order(tx: Tx, queue: str) -> None:
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


class Pace:
    """A rate as a bucket that fills evenly: `tat` is when it would be full again, in µs."""

    def __init__(self, rate: tuple[int, int], tat: int, now: int) -> None:
        count, per = rate
        self._gap = max(1, per * 1_000 // max(1, count))
        self._per = per * 1_000
        self._now = now * 1_000
        self._tat = max(tat, self._now)
        self.free = (self._now + self._per - self._tat) // self._gap

    @property
    def next_at(self) -> int:
        """The millisecond at which the next one is free."""
        return -((self._per - self._gap - self._tat) // 1_000)

    def after(self, taken: int) -> int:
        """What `tat` becomes."""
        return self._tat + taken * self._gap


class _Lane(Struct, array_like=True):
    """A lane with due jobs: what it has been given so far."""

    name: str | None
    served: int
    tat: int
    running: int
    head: int | None  # of an ordered queue: the one job that may go
    free: int = 0


_decode_lanes = msgspec.json.Decoder(list[_Lane]).decode


def _choose(tx: Tx, turn: _Turn, want: Want, count: int) -> list[int]:
    """The jobs whose turn it is: one per lane and round, the lane served longest ago first."""
    lanes = _lanes(tx, turn, want)
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
    taken = Counter(place for _, place, _ in chosen)
    _serve(tx, want, [(lanes[place], number) for place, number in taken.items()])
    return [seq for *_, seq in chosen]


def _lanes(tx: Tx, turn: _Turn, want: Want) -> list[_Lane]:
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
                turn.look_again.append(tx.now + BLOCKED)
        if want.lane_rate is not None and lane.name is not None:
            pace = Pace(want.lane_rate, lane.tat, tx.now)
            lane.free = min(lane.free, pace.free)
            if pace.free <= 0:
                turn.look_again.append(pace.next_at)
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
    select json_group_array(json_array(name, served, tat, running, head))
    from (
        select due.name, ifnull(turn.served, 0) as served, ifnull(turn.tat, 0) as tat, (
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
            tat = lane.tat
            if want.lane_rate is not None:
                tat = Pace(want.lane_rate, tat, tx.now).after(taken)
            values += (want.queue, lane.name or "", turn, tat, tx.now)
        tx.run(
            fill(
                """
                insert into relevo_lanes (queue, lane, served, tat, served_at)
                values [?, ?, ?, ?, ?]
                on conflict (queue, lane) do update
                set served = excluded.served, tat = excluded.tat, served_at = excluded.served_at
                """,
                len(some),
            ),
            values,
        )


def next_due(tx: Tx, wants: Sequence[Want], moments: Sequence[int]) -> int | None:
    """In how many milliseconds the next job falls due, or a limit gives way."""
    (due,) = tx.one(
        """
        select min(run_at)
        from (
            select (
                select run_at
                from relevo_jobs
                where state = 10
                  and lane is null
                  and queue = asked.value
                  and priority = grade.value
                  and run_at > ?2
                order by run_at
                limit 1
            ) as run_at
            from json_each(?1) as asked, json_each('[0,1,2]') as grade
            union all
            select (
                select run_at
                from relevo_jobs
                where state = 10
                  and lane is not null
                  and queue = asked.value
                  and run_at > ?2
                order by run_at
                limit 1
            )
            from json_each(?1) as asked
        )
        """,
        (as_list(want.queue for want in wants), tx.now),
    )
    known = [moment for moment in (due, *moments) if moment is not None]
    return max(0, min(known) - tx.now) if known else None
