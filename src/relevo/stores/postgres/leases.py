"""Leases: jobs taken in batches, kept, and settled, each in one round trip."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Coroutine, Sequence
from operator import itemgetter
from typing import Any

import msgspec
from asyncpg import exceptions as pg

from relevo.clock import Clock
from relevo.errors import StoreUnavailable
from relevo.job import Ending, Lease, State
from relevo.store import RATE_MARGIN, Claim, Want
from relevo.stores.postgres.lines import PATIENCE, Record, close_slowly
from relevo.stores.postgres.rows import hashed, lease_of, settled_columns_of
from relevo.stores.postgres.session import Session
from relevo.stores.postgres.text import clean

log = logging.getLogger("relevo.postgres")

VACUUM_AFTER = 100_000
"""Settled jobs, on average, after which the hot table is vacuumed: autovacuum comes too late."""

_CLAIM = """
select *
from relevo.claim_leases($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
"""
_CLAIM_WITH_LANES = """
select *
from relevo.claim_with_lanes(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15
)
"""
_FIRST = """
            select r.ctid
            from (values (0::smallint), (1::smallint), (2::smallint)) as p (priority)
            cross join lateral (
                select ctid
                from relevo.jobs
                where queue = w.queue and state = 0 and lane is null and priority = p.priority
                    and run_at <= (select relevo.moment($1))
                order by run_at, seq
                limit $4
                for update skip locked
            ) as r
"""
# The middle of a long queue, without what a claim looks at beside the jobs: where lanes are, or
# jobs that replace one another, or less than was asked for, the function above has the last word.
# By its place in the table a row is found at once; one that was changed in this moment is left to
# the next claim.
_SWIFT = f"""
update relevo.jobs as j
set state = 1, attempt = attempt + 1, claimed_at = (select relevo.moment($1)),
    lease_until = (select relevo.moment($1)) + $7::bigint, token = $5::bigint, worker = $6::text,
    gated = false
where not exists (select from relevo.lanes as l where l.queue = any ($2::text[]))
    and not exists (
        select from relevo.jobs as f where f.queue = any ($2::text[]) and f.state = -1
    )
    and j.ctid = any (array(
        -- At first an even share for each queue, then what is left for whoever has more.
        with open as materialized (
            select n.queue
            from unnest($2::text[]) as n (queue)
            where not exists (
                select from relevo.queues as q where q.queue = n.queue and q.mode = 'paused'
            )
        ), shared as materialized (
            select w.queue, taken.ctid as spot
            from open as w
            cross join lateral ({_FIRST} limit $3::integer) as taken
            limit $4::integer
        )
        select spot
        from shared
        union all (
            select taken.ctid
            from (select queue from shared group by queue having count(*) = $3) as w
            cross join lateral ({_FIRST} offset $3 limit $4) as taken
            limit $4 - (select count(*) from shared)
        )
    ))
returning
    id, queue, kind, payload, attempt, attempts, key, lane_name, thread, cause, meta, flow, node,
    keep, inserted_at, claimed_at, priority, run_at, seq, turn, suspicion, crashes
"""  # noqa: S608 - a constant is put in, every value is bound
_NO_LIMIT = 1_000_000_000
_KNOWN = """
insert into relevo.queues (queue)
select queue
from unnest($1::text[]) as w (queue)
order by queue
on conflict do nothing
"""
_SETTLE = """
select unnest(relevo.settle_jobs(
    $1, $2::text::uuid[], $3::text::bigint[], $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14,
    $15, $16
)) as place
"""


class Leases(Session):
    """The verbs of the way out."""

    def __init__(self, url: str, clock: Clock | None, *, is_single: bool = False) -> None:
        super().__init__(url, clock, is_single=is_single)
        self._claims = 0
        self._is_hurried = False  # the last claim got all it asked for: there is more
        self._known: set[str] = set()  # queues that the store knows for good
        self._gated: set[str] = set()  # queues with a limit, of which all that runs is counted
        self._unheard: list[int] = []
        self._vacuum: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # beside whoever asked

    async def claim(self, wants: Sequence[Want], count: int, worker: str, lease: int) -> Claim:
        if not wants or count < 1:
            return Claim([])
        claiming = asyncio.create_task(self._claim(wants, count, worker, lease))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            # What was claimed for somebody who has left goes back, instead of waiting to lapse.
            self._beside(self._hand_back(claiming))
            raise

    async def _claim(self, wants: Sequence[Want], count: int, worker: str, lease: int) -> Claim:
        # Whose turn it is to be first changes with every claim.
        turn = self._claims % len(wants)
        self._claims += 1
        wants = [*wants[turn:], *wants[:turn]]
        queues = [want.queue for want in wants]
        token = random.getrandbits(63)
        await self._release_unheard()
        self._ear.looking(queues)
        rows: list[Record] = []
        try:
            if self._is_hurried and not self._address.pooler and not any(map(_is_limited, wants)):
                rows = await self._claim_swiftly(queues, count, token, worker, lease)
            left = count - len(rows)
            if left:
                await self._gate(wants)
                lanes = _lanes(wants)
                rows += await self._out.fetch(
                    self._sql(_CLAIM_WITH_LANES if lanes else _CLAIM),
                    *([lanes] if lanes else []),
                    self._skew,
                    queues,
                    *_limits(wants),
                    left,
                    token,
                    clean(worker),
                    lease,
                    [want.burst for want in wants] if any(map(_is_limited, wants)) else [],
                )
        except StoreUnavailable:
            self._unheard.append(token)
            raise
        next_due = None
        if rows and rows[-1]["id"] is None:
            next_due = rows.pop()["inserted_at"]
        rows.sort(key=_order)
        leases = [lease_of(row, token) for row in rows]
        self._is_hurried = len(leases) == count
        if leases:
            self._ear.found(queues, more=self._is_hurried)
        return Claim(leases, next_due)

    async def _claim_swiftly(
        self, queues: list[str], count: int, token: int, worker: str, lease: int
    ) -> list[Record]:
        share = -(-count // len(queues))
        rows = await self._out.fetch(
            self._sql(_SWIFT), self._skew, queues, share, count, token, clean(worker), lease
        )
        if not self._known.issuperset(gave := {row["queue"] for row in rows}):
            # Beside the claim: its leases are running, and over a slow line not for long.
            self._beside(self._enter(gave))
        return rows

    async def _gate(self, wants: Sequence[Want]) -> None:
        """Count what runs already in queues that have got a limit since the last claim."""
        limited = {want.queue for want in wants if want.limit is not None or want.lanes}
        new = limited - self._gated
        if new:
            await self._out.fetch(self._sql("select relevo.gate_queues($1)"), sorted(new))
        if limited != self._gated:
            self._gated = self._gated - {want.queue for want in wants} | limited

    async def _enter(self, queues: set[str]) -> None:
        """A queue that has given a job is known for good, even when the job leaves no trace."""
        with contextlib.suppress(StoreUnavailable):  # the next claim tries again
            await self._upkeep.fetch(self._sql(_KNOWN), list(queues), repeat=True)
            self._known |= queues

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _release_unheard(self) -> None:
        """Hand back what claims may have taken whose answer was never heard."""
        if self._unheard:
            await self._out.fetch(
                self._sql("""
                select relevo.settle_jobs(
                    $1, array_agg(id), array_agg(token), '{}', array_agg(0::smallint), '{}',
                    array_agg(false), '{}', '{}', '{}', '{}', '{}', '{}', array_agg(true),
                    array_agg(suspicion), array_agg(crashes)
                )
                from relevo.jobs
                where state = 1 and token = any ($2)
                having count(*) > 0
                """),
                self._skew,
                self._unheard,
            )
            self._unheard.clear()

    async def _hand_back(self, claiming: asyncio.Task[Claim]) -> None:
        try:
            claim = await claiming
            await self.settle(
                [
                    Ending(
                        lease=lease,
                        state=State.SCHEDULED,
                        spend=False,
                        released=True,
                        suspicion=lease.suspicion,
                        crashes=lease.crashes,
                    )
                    for lease in claim.leases
                ]
            )
        except StoreUnavailable as error:
            log.warning("jobs claimed for nobody wait to be rescued", extra={"error": str(error)})

    async def extend(self, leases: Sequence[Lease], lease: int) -> list[bool]:
        order = _order_of(leases)
        rows = await self._upkeep.fetch(
            self._sql("select unnest(relevo.extend_leases($1, $2, $3, $4)) as place"),
            self._skew,
            [leases[place].id for place in order],
            [leases[place].token for place in order],
            lease,
            repeat=True,
        )
        ours: set[int] = {order[row["place"] - 1] for row in rows}
        return [place in ours for place in range(len(leases))]

    async def isolate(self, leases: Sequence[Lease], *, is_alone: bool = True) -> list[bool]:
        order = _order_of(leases)
        rows = await self._upkeep.fetch(
            self._sql("select unnest(relevo.isolate_jobs($1, $2, $3)) as place"),
            [leases[place].id for place in order],
            [leases[place].token for place in order],
            [leases[place].crashes + is_alone for place in order],
            repeat=True,
        )
        ours: set[int] = {order[row["place"] - 1] for row in rows}
        return [place in ours for place in range(len(leases))]

    async def settle(self, endings: Sequence[Ending]) -> list[bool]:
        if not endings:
            return []
        order = _order_of([ending.lease for ending in endings])
        columns = settled_columns_of([endings[place] for place in order])
        rows = await self._ends.fetch(self._sql(_SETTLE), self._skew, *columns)
        # By chance, so that it comes as often whether one worker settles them, or many, or a long
        # row of short-lived ones.
        if (
            not self._is_single
            and self._vacuum is None
            and random.random() < len(endings) / VACUUM_AFTER
        ):
            self._vacuum = asyncio.create_task(self._tidy(), name="relevo-postgres-vacuum")
        return _settled(order, rows)

    async def settle_within(self, connection: Any, endings: Sequence[Ending]) -> list[bool]:
        if not endings:
            return []
        order = _order_of([ending.lease for ending in endings])
        columns = settled_columns_of([endings[place] for place in order])
        async with self._lent(connection) as driver:
            rows = await driver.fetch(self._sql(_SETTLE), self._skew, *columns)
        return _settled(order, rows)

    async def _tidy(self) -> None:
        """Vacuum the hot table, unless somebody is at it already; nobody waits for it."""
        try:
            await self._door.places.take()
            try:
                async with asyncio.timeout(PATIENCE):
                    connection = await self._door.open(statement_timeout="0")
                try:
                    await connection.execute(
                        self._sql(
                            "vacuum (skip_locked, index_cleanup on, truncate off) relevo.jobs"
                        )
                    )
                finally:
                    await close_slowly(connection)
            finally:
                self._door.places.give()
        except (StoreUnavailable, OSError, TimeoutError, pg.PostgresError, pg.InterfaceError) as e:
            log.warning("the jobs table was not vacuumed", extra={"error": str(e)})
        finally:
            self._vacuum = None

    async def _finish(self) -> None:
        """See to an end what was begun beside the calls."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=PATIENCE)
        if self._vacuum is not None:
            self._vacuum.cancel()
            await asyncio.wait({self._vacuum})


_order = itemgetter(16, 17, 18)  # priority, run_at, seq: by place, it is quicker than by name


def _is_limited(want: Want) -> bool:
    return (
        want.ordered
        or bool(want.lanes)
        or not (want.limit is want.lane_limit is want.rate is want.lane_rate is None)
    )


def _limits(wants: Sequence[Want]) -> list[list[Any]]:
    if not any(map(_is_limited, wants)):
        return [[] for _ in range(7)]
    return [
        [want.limit for want in wants],
        # Where single lanes have limits, each lane is looked at.
        [_NO_LIMIT if w.lanes and w.lane_limit is None else w.lane_limit for w in wants],
        [want.rate and want.rate[0] for want in wants],
        [want.rate and want.rate[1] + _margin(want) for want in wants],
        [want.lane_rate and want.lane_rate[0] for want in wants],
        [want.lane_rate and want.lane_rate[1] + _margin(want) for want in wants],
        [want.ordered for want in wants],
    ]


def _lanes(wants: Sequence[Want]) -> str | None:
    """The limits of single lanes as claim_with_lanes() takes them; None if there are none."""
    named = {
        want.queue: {str(hashed(lane)): most for lane, most in want.lanes.items()}
        for want in wants
        if want.lanes
    }
    return msgspec.json.encode(named).decode() if named else None


def _margin(want: Want) -> int:
    return RATE_MARGIN if want.burst is None else 0


def _order_of(leases: Sequence[Lease]) -> list[int]:
    """Their places in the order of their ids: who ends jobs and who extends them must not cross."""
    ids = [lease.id for lease in leases]
    return sorted(range(len(ids)), key=ids.__getitem__)


def _settled(order: Sequence[int], rows: Sequence[Record]) -> list[bool]:
    if not rows:
        return [True] * len(order)
    lost: set[int] = {order[row["place"] - 1] for row in rows}
    return [place not in lost for place in range(len(order))]
