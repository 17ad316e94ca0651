"""PgQueuer on PostgreSQL: large batches; a job's row goes, with a line of log, after its work."""

from __future__ import annotations

import json

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.domain.types import QueueExecutionMode
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from stage import JOBS, TEXT, URL, Count, by_callers

count = Count(waits=True)


async def main() -> None:
    connection = await asyncpg.connect(URL)
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()
    body = json.dumps({"number": 1, "text": TEXT}).encode()
    async with asyncpg.create_pool(URL, min_size=10, max_size=10) as pool:
        pooled = Queries(AsyncpgPoolDriver(pool))
        few = JOBS // 2
        count.figures["enqueue"] = await by_callers(lambda _: pooled.enqueue("work", body), few)
    for _ in range(0, JOBS - few, 1_000):
        await queries.enqueue(["work"] * 1_000, [body] * 1_000, [0] * 1_000)
    pgq = PgQueuer(AsyncpgDriver(connection))

    @pgq.entrypoint("work")
    async def work(job: Job) -> None:
        count.one()

    # Its acknowledgements are written in batches too: it is done when the queue is empty.
    await pgq.qm.run(batch_size=1_000, mode=QueueExecutionMode.drain)
    count.end()


uvloop.run(main())
