"""Claiming: what is due, shared evenly over the queues, within their limits and rates."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec
from msgspec import Raw

from relevo.job import Lease
from relevo.store import Claim, QueueMode, Want
from relevo.stores.sqlite.file import is_fatal
from relevo.stores.sqlite.lanes import BLOCKED, choose, put_in_order
from relevo.stores.sqlite.latest import sift
from relevo.stores.sqlite.pace import Pace, pace
from relevo.stores.sqlite.transaction import ESCAPE, Tx, as_list, new_token, plain
from relevo.stores.sqlite.upkeep import bury

ROUNDS = 20  # in which one claim looks for jobs that may start among those of unique="latest"
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
        '["%s","",%s,%s,%d,%d,0,%d,%s,%d,%d,0,%d,%d,%d]',
        id, json_quote(kind), payload, attempt + 1, attempts, seq,
        case
            when coalesce(key, lane, thread, cause, meta, flow, node) is null
            then 'null,null,null,null,null,null,null'
            else json_quote(key) || ',' || json_quote(nullif(lane, '')) || ','
                || json_quote(thread) || ',' || json_quote(cause) || ','
                || json_quote(cast(meta as text)) || ','
                || json_quote(flow) || ',' || json_quote(node)
        end,
        keep, inserted_at, turn, suspicion, crashes
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
        or tx.queue(want.queue).latest
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
    if want.limit is not None or want.lane_limit is not None or want.ordered or want.lanes:
        tx.known.limited.add(want.queue)
    if want.limit is not None:
        (running,) = tx.one(
            "select count(*) from relevo_jobs where state = 20 and queue = ?", (want.queue,)
        )
        allowed = want.limit - running
        if allowed <= 0:
            turn.look_again.append(tx.now + BLOCKED)
    if want.rate is not None:
        rate = _pace(tx, want, want.rate)
        if rate.free <= 0:
            turn.look_again.append(rate.next_at)
        allowed = min(allowed, rate.free)
    return allowed


def _pace(tx: Tx, want: Want, rate: tuple[int, int]) -> Pace:
    tat, log = tx.one("select tat, log from relevo_queues where name = ?", (want.queue,))
    return pace(rate, want.burst, tat, log, tx.now)


def _take(tx: Tx, turn: _Turn, want: Want, count: int) -> int:
    """Take up to `count` jobs of one queue, and enter them against its rate."""
    if not count:
        return 0
    row = tx.queue(want.queue)
    if want.ordered and not row.ordered:
        put_in_order(tx, want.queue)
    if row.latest:
        taken = _take_sifted(tx, turn, want, count)
    elif row.laned:
        chosen, _ = choose(tx, want, count, turn.look_again)
        taken = turn.take(want.queue, chosen)
    else:
        taken = turn.take_due(want.queue, count)
    if taken and want.rate is not None:
        tx.run(
            "update relevo_queues set tat = ?, log = ? where name = ?",
            (*_pace(tx, want, want.rate).after(taken), want.queue),
        )
    return taken


def _take_sifted(tx: Tx, turn: _Turn, want: Want, count: int) -> int:
    """Take jobs of a queue where some are of unique="latest"; those that may not start are left."""
    taken = 0
    for _ in range(ROUNDS):
        left = count - taken
        if tx.queue(want.queue).laned:
            chosen, met = choose(tx, want, left, turn.look_again, sift)
        else:
            due = tx.all(_SEQS.replace("ROWS", DUE), (want.queue, tx.now, left))
            chosen = [seq for seq in sift(tx, [seq for (seq,) in due]) if seq is not None]
            met = len(due)
        taken += turn.take(want.queue, chosen)
        if taken >= count or len(chosen) == met:
            return taken
    turn.look_again.append(tx.now)
    return taken


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
