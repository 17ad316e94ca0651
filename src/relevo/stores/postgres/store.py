"""PostgresStore: jobs go in, out and to their end, each in one round trip."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from asyncpg import exceptions as pg

from relevo.clock import Clock
from relevo.errors import StoreUnavailable
from relevo.job import Ending, Inserted, Lease, NewJob, State, Verdict
from relevo.store import BATCH, Claim, Rescued, Sweep, Want
from relevo.stores.postgres import schema
from relevo.stores.postgres.deliveries import Deliveries
from relevo.stores.postgres.doctor import Doctor
from relevo.stores.postgres.letters import Letters
from relevo.stores.postgres.lines import PATIENCE, Record, learn_types, lent, translated
from relevo.stores.postgres.memory import Memory
from relevo.stores.postgres.people import People
from relevo.stores.postgres.rows import (
    columns_of,
    lease_of,
    settled_columns_of,
    state_of,
)
from relevo.stores.postgres.text import clean, restore

log = logging.getLogger("relevo.postgres")

VACUUM_AFTER = 100_000
"""Settled jobs after which the hot table is vacuumed: autovacuum comes too late for a queue."""

_INSERT = """
select place, id, verdict
from relevo.insert_jobs(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20,
    $21, $22, $23, $24
)
"""
_CLAIM = """
select
    id, queue, kind, payload, attempt, attempts, key, lane, thread, cause, meta, flow, node, keep,
    inserted_at, claimed_at
from relevo.claim_jobs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
order by priority, run_at, seq
"""
_SETTLE = """
select unnest(relevo.settle_jobs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)) as place
"""


class PostgresStore(People, Memory, Deliveries, Letters, Doctor):
    """Jobs in PostgreSQL 14 or newer, as a plain role, in a schema of its own."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        super().__init__(url, clock)
        self._claims = 0
        self._unheard: list[int] = []
        self._settled = 0
        self._vacuum: asyncio.Task[None] | None = None
        self._handing_back: set[asyncio.Task[Any]] = set()

    @property
    def name(self) -> str:
        return "postgres"

    @property
    def url(self) -> str:
        return self._address.public

    @property
    def dsn(self) -> str:
        return self._given

    def turn(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()  # it has many writers

    # life

    async def open(self) -> None:
        self._door.shut = False
        try:
            async with asyncio.timeout(PATIENCE):
                connection = await self._door.open()
                try:
                    schema.judge(await schema.version(connection, self._address))
                    await learn_types(connection)
                finally:
                    connection.terminate()
        except schema.RAISED as error:
            raise translated(error) from error

    async def close(self) -> None:
        if self._handing_back:
            await asyncio.wait(self._handing_back, timeout=PATIENCE)
        self._door.shut = True
        if self._vacuum is not None:
            self._vacuum.cancel()
            await asyncio.wait({self._vacuum})
        await self._ear.close()
        for line in (self._in, self._out, self._ends, self._upkeep, self._people):
            await line.close()

    async def migrate(self) -> list[str]:
        try:
            return await schema.migrate(self._door)
        except schema.RAISED as error:
            raise translated(error) from error

    def spawn(self) -> PostgresStore:
        return PostgresStore(self._given, clock=self._clock)

    async def now(self) -> int:
        rows = await self._upkeep.fetch(
            self._sql("select relevo.moment($1) as now"), self._skew, repeat=True
        )
        return rows[0]["now"]

    # in

    async def insert(self, jobs: Sequence[NewJob]) -> list[Inserted]:
        if not jobs:
            return []
        # By their ids, jobs go in once however often they are sent.
        rows, unsure = await self._in.fetch_once(self._sql(_INSERT), self._skew, *columns_of(jobs))
        for queue in {job.queue for job in jobs}:
            self._ear.hear(queue)
        return _inserted(jobs, rows, unsure=unsure)

    async def insert_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[Inserted]:
        if not jobs:
            return []
        async with lent(connection) as driver:
            rows = await driver.fetch(self._sql(_INSERT), self._skew, *columns_of(jobs))
        return _inserted(jobs, rows, unsure=False)

    def committed(self, queues: Sequence[str]) -> None:
        # NOTIFY fires with the commit by itself; this only spares our own workers the detour.
        for queue in queues:
            self._ear.hear(queue)

    # out

    async def claim(self, wants: Sequence[Want], count: int, worker: str, lease: int) -> Claim:
        if not wants or count < 1:
            return Claim([])
        claiming = asyncio.create_task(self._claim(wants, count, worker, lease))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            # What was claimed for somebody who has left goes back, instead of waiting to lapse.
            task = asyncio.create_task(self._hand_back(claiming))
            self._handing_back.add(task)
            task.add_done_callback(self._handing_back.discard)
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
        try:
            rows = await self._out.fetch(
                self._sql(_CLAIM),
                self._skew,
                queues,
                *_limits(wants),
                count,
                token,
                clean(worker),
                lease,
            )
        except StoreUnavailable:
            self._unheard.append(token)
            raise
        next_due = None
        if rows and rows[-1]["id"] is None:
            next_due = rows.pop()["inserted_at"]
        leases = [lease_of(row, token) for row in rows]
        if leases:
            self._ear.found(queues, more=len(leases) == count)
        return Claim(leases, next_due)

    async def _release_unheard(self) -> None:
        """Hand back what claims may have taken whose answer was never heard."""
        if self._unheard:
            await self._out.fetch(
                self._sql("""
                select relevo.settle_jobs(
                    $1, array_agg(id), array_agg(token), '{}', array_agg(0::smallint), '{}',
                    array_agg(false), '{}', '{}', '{}', '{}', '{}'
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
                [Ending(lease=lease, state=State.SCHEDULED, spend=False) for lease in claim.leases]
            )
        except StoreUnavailable as error:
            log.warning("jobs claimed for nobody wait to be rescued", extra={"error": str(error)})

    async def extend(self, leases: Sequence[Lease], lease: int) -> list[bool]:
        if not leases:
            return []
        rows = await self._upkeep.fetch(
            self._sql("select unnest(relevo.extend_leases($1, $2, $3, $4)) as place"),
            self._skew,
            [held.id for held in leases],
            [held.token for held in leases],
            lease,
            repeat=True,
        )
        ours = {row["place"] for row in rows}
        return [place in ours for place in range(1, len(leases) + 1)]

    async def settle(self, endings: Sequence[Ending]) -> list[bool]:
        if not endings:
            return []
        rows = await self._ends.fetch(self._sql(_SETTLE), self._skew, *settled_columns_of(endings))
        self._settled += len(endings)
        if self._settled >= VACUUM_AFTER and self._vacuum is None:
            self._settled = 0
            self._vacuum = asyncio.create_task(self._tidy(), name="relevo-postgres-vacuum")
        return _settled(endings, rows)

    async def settle_within(self, connection: Any, endings: Sequence[Ending]) -> list[bool]:
        if not endings:
            return []
        async with lent(connection) as driver:
            rows = await driver.fetch(self._sql(_SETTLE), self._skew, *settled_columns_of(endings))
        return _settled(endings, rows)

    async def wait(self, queues: Sequence[str], timeout: float) -> None:
        await self._ear.wait(queues, timeout)

    # upkeep

    async def rescue(
        self,
        limit: int = BATCH,
        *,
        worker: str | None = None,
        queues: Sequence[str] | None = None,
    ) -> Sweep:
        rows = await self._upkeep.fetch(
            self._sql("""
            select id, queue, worker, state, lapse
            from relevo.rescue_jobs($1, $2, $3)
            """),
            self._skew,
            limit,
            clean(worker),
        )
        return Sweep(
            [
                Rescued(
                    id=row["id"].hex,
                    queue=row["queue"],
                    worker=restore(row["worker"] or ""),
                    state=state_of(row["state"], 0, 0),
                )
                for row in rows[:-1]
            ],
            rows[-1]["lapse"],
        )

    async def unpark(self, park: str, *, limit: int | None = None, spread: int = 0) -> int:
        rows = await self._upkeep.fetch(
            self._sql("""
            select count(*)
            from relevo.jobs
            where state = 3 and md5(park) = md5($1) and park = $1
            """),
            clean(park),
            repeat=True,
        )
        total = rows[0]["count"] if limit is None else min(limit, rows[0]["count"])
        freed = 0
        while freed < total:
            rows = await self._upkeep.fetch(
                self._sql("select relevo.unpark_jobs($1, $2, $3, $4, $5, $6) as freed"),
                self._skew,
                clean(park),
                min(BATCH, total - freed),
                freed,
                total,
                spread,
            )
            if not rows[0]["freed"]:
                break
            freed += rows[0]["freed"]
        return freed

    async def prune(self, *, dead_keep: int, limit: int = BATCH) -> int:
        rows = await self._upkeep.fetch(
            self._sql("select relevo.prune($1, $2, $3) as gone"), self._skew, dead_keep, limit
        )
        gone: int = rows[0]["gone"]
        return gone + await self._prune_deliveries(limit - gone) if gone < limit else gone

    async def _tidy(self) -> None:
        """Vacuum the hot table, unless somebody is at it already; nobody waits for it."""
        try:
            async with asyncio.timeout(PATIENCE):
                connection = await self._door.open(statement_timeout="0")
            try:
                await connection.execute(
                    self._sql("vacuum (skip_locked, index_cleanup on, truncate off) relevo.jobs")
                )
            finally:
                connection.terminate()
        except (StoreUnavailable, OSError, TimeoutError, pg.PostgresError, pg.InterfaceError) as e:
            log.warning("the jobs table was not vacuumed", extra={"error": str(e)})
        finally:
            self._vacuum = None


def _limits(wants: Sequence[Want]) -> list[list[Any]]:
    if all(
        want.limit is want.lane_limit is want.rate is want.lane_rate is None and not want.ordered
        for want in wants
    ):
        return [[] for _ in range(7)]
    return [
        [want.limit for want in wants],
        [want.lane_limit for want in wants],
        [want.rate and want.rate[0] for want in wants],
        [want.rate and want.rate[1] for want in wants],
        [want.lane_rate and want.lane_rate[0] for want in wants],
        [want.lane_rate and want.lane_rate[1] for want in wants],
        [want.ordered for want in wants],
    ]


def _inserted(jobs: Sequence[NewJob], rows: Sequence[Record], *, unsure: bool) -> list[Inserted]:
    answers = [Inserted(job.id, Verdict.NEW) for job in jobs]
    for row in rows:
        place: int = row["place"] - 1
        answer = Inserted(row["id"].hex, Verdict(row["verdict"]))
        # If the first try was heard and its answer lost, the job that is there is this one.
        if not (unsure and answer.id == jobs[place].id and answer.verdict is not Verdict.CLOSED):
            answers[place] = answer
    return answers


def _settled(endings: Sequence[Ending], rows: Sequence[Record]) -> list[bool]:
    if not rows:
        return [True] * len(endings)
    lost: set[int] = {row["place"] for row in rows}
    return [place not in lost for place in range(1, len(endings) + 1)]
