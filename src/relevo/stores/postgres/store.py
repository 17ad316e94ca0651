"""PostgresStore: jobs go in, out and to their end, each in one round trip."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from relevo.clock import Clock
from relevo.job import NewJob, Receipt, Verdict
from relevo.store import BATCH, KNOWN, Loss, Rescued, Schema, Sweep
from relevo.stores.postgres import schema
from relevo.stores.postgres.deliveries import Deliveries
from relevo.stores.postgres.doctor import Doctor
from relevo.stores.postgres.groups import Groups
from relevo.stores.postgres.leases import Leases
from relevo.stores.postgres.letters import Letters
from relevo.stores.postgres.lines import PATIENCE, Record, learn_types, translated
from relevo.stores.postgres.memory import Memory
from relevo.stores.postgres.people import People
from relevo.stores.postgres.rows import (
    columns_of,
    job_arguments,
    known_ids,
    lost_columns_of,
)
from relevo.stores.postgres.text import clean, restore
from relevo.stores.versions import judge

log = logging.getLogger("relevo.postgres")

_INSERT = f"select place, id, verdict, differs from relevo.insert_jobs($1, {job_arguments(2)})"  # noqa: S608 - numbers of parameters

AGES = 10_000_000_000_000  # milliseconds, longer than anything is kept


class PostgresStore(Leases, People, Groups, Memory, Deliveries, Letters, Doctor):
    """Jobs in PostgreSQL 14 or newer, as a plain role, in a schema of its own."""

    def __init__(self, url: str, *, clock: Clock | None = None, is_single: bool = False) -> None:
        super().__init__(url, clock, is_single=is_single)

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
                await self._door.places.take()
                try:
                    connection = await self._door.open()
                except BaseException:
                    self._door.places.give()
                    raise
                try:
                    judge(await schema.read(connection, self._address), schema.WHERE)
                    await learn_types(connection)
                except BaseException:
                    connection.terminate()
                    self._door.places.give()
                    raise
                self._upkeep.adopt(connection)
                self._door.look_later()
        except schema.RAISED as error:
            raise translated(error) from error

    async def close(self) -> None:
        await self._finish()
        self._door.shut = True
        await self._ear.close()
        for line in (self._in, self._out, self._ends, self._upkeep, self._people):
            await line.close()

    async def migrate(self) -> list[str]:
        try:
            return await schema.migrate(self._door)
        except schema.RAISED as error:
            raise translated(error) from error

    async def schema(self) -> Schema:
        try:
            connection = await self._door.open()
            try:
                return await schema.read(connection, self._address)
            finally:
                connection.terminate()
        except schema.RAISED as error:
            raise translated(error) from error

    def spawn(self) -> PostgresStore:
        # For a thread of the same process, which has one connection of those that are allowed.
        return PostgresStore(self._given, clock=self._clock, is_single=True)

    async def now(self) -> int:
        rows = await self._upkeep.fetch(
            self._sql("select relevo.moment($1) as now"), self._skew, repeat=True
        )
        return rows[0]["now"]

    # in

    async def insert(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        if not jobs:
            return []
        try:
            # By their ids, jobs go in once however often they are sent. But one that leaves no
            # trace may have run since: whoever sent it hears that nobody knows.
            rows, unsure = await self._in.fetch_once(
                self._sql(_INSERT),
                self._skew,
                *columns_of(jobs),
                repeat=all(max(job.keep, job.remember) >= KNOWN for job in jobs),
            )
        finally:
            # In any case: they may have been stored although no answer came.
            self._ear.said({job.queue for job in jobs})
        return _inserted(jobs, rows, unsure=unsure)

    async def insert_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[Receipt]:
        if not jobs:
            return []
        async with self._lent(connection) as driver:
            rows = await driver.fetch(self._sql(_INSERT), self._skew, *columns_of(jobs))
        return _inserted(jobs, rows, unsure=False)

    def committed(self, queues: Sequence[str]) -> None:
        # NOTIFY fires with the commit by itself; this only spares our own workers the detour.
        for queue in queues:
            self._ear.hear(queue)

    # out

    async def wait(self, queues: Sequence[str], timeout: float) -> None:
        await self._ear.wait(queues, timeout)

    # upkeep

    async def rescue(
        self,
        limit: int = BATCH,
        *,
        worker: str | None = None,
        losses: Sequence[Loss] = (),
        queues: Sequence[str] | None = None,
    ) -> Sweep:
        rows = await self._upkeep.fetch(
            self._sql("""
            select id, queue, worker, lapse
            from relevo.rescue_jobs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
            """),
            self._skew,
            limit,
            clean(worker),
            *lost_columns_of(losses),
        )
        return Sweep(
            [
                Rescued(id=row["id"].hex, queue=row["queue"], worker=restore(row["worker"] or ""))
                for row in rows[:-1]
            ],
            rows[-1]["lapse"],
        )

    async def unpark(
        self,
        park: str,
        *,
        limit: int | None = None,
        spread: int = 0,
        ids: Sequence[str] | None = None,
    ) -> int:
        if ids is not None:
            return await self._unpark_these(park, ids, limit, spread)
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

    async def _unpark_these(
        self, park: str, ids: Sequence[str], limit: int | None, spread: int
    ) -> int:
        rows = await self._upkeep.fetch(
            self._sql("""
            with going as materialized (
                select id, row_number() over (order by seq) as place, count(*) over () as total
                from (
                    select id, seq
                    from relevo.jobs
                    where id = any($3::uuid[]) and state = 3 and park = $2
                    order by seq
                    limit $4
                    for update skip locked
                ) as mine
            ),
            back as (
                update relevo.jobs as j
                set state = 0, park = null,
                    run_at = relevo.moment($1) + $5::bigint * (g.place - 1) / g.total
                from going as g
                where j.id = g.id
                returning j.queue, j.lane, j.run_at
            ),
            freed as (
                select array_agg(queue) as queues, array_agg(lane) as lanes,
                    array_agg(run_at) as dues, count(*) as count
                from back
            )
            select count, relevo.touch_lanes(queues, lanes, dues), relevo.wake(queues)
            from freed
            where count > 0
            """),
            self._skew,
            clean(park),
            known_ids(ids),
            limit,
            spread,
        )
        freed: int = rows[0]["count"] if rows else 0
        return freed

    async def prune(self, *, dead_keep: int, limit: int = BATCH) -> int:
        return await self._prune(dead_keep, dead_keep, limit)

    async def prune_posted(self, *, dead_keep: int, limit: int = BATCH) -> int:
        # The jobs are elsewhere: effects are all that relevo.prune() keeps as long as dead jobs.
        return await self._prune(AGES, dead_keep, limit)

    async def _prune(self, keep: int, dead_keep: int, limit: int) -> int:
        rows = await self._upkeep.fetch(
            self._sql("select relevo.prune($1, $2, $3) as gone"), self._skew, keep, limit
        )
        gone: int = rows[0]["gone"]
        await self._forget_groups()
        return (
            gone + await self._prune_deliveries(dead_keep, limit - gone) if gone < limit else gone
        )


def _inserted(jobs: Sequence[NewJob], rows: Sequence[Record], *, unsure: bool) -> list[Receipt]:
    answers = [Receipt(job.id, Verdict.NEW) for job in jobs]
    for row in rows:
        place: int = row["place"] - 1
        answer = Receipt(row["id"].hex, Verdict(row["verdict"]), row["differs"])
        # If the first try was heard and its answer lost, the job that is there is this one.
        if not (unsure and answer.id == jobs[place].id and answer.verdict is not Verdict.CLOSED):
            answers[place] = answer
    return answers
