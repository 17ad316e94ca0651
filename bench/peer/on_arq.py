"""arq on Redis: at least once by design; polls often, and takes many at once."""

from __future__ import annotations

from typing import Any

import uvloop
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker, func
from stage import TEXT, URL, Count, by_callers

settings = RedisSettings.from_dsn(URL)
count = Count()


async def work(ctx: dict[str, Any], number: int, text: str) -> None:
    count.one()


async def main() -> None:
    pool = await create_pool(settings)
    count.figures["enqueue"] = await by_callers(lambda n: pool.enqueue_job("work", n, TEXT))
    worker = Worker(
        [func(work, name="work")],
        redis_pool=pool,
        max_jobs=500,
        poll_delay=0.01,
        keep_result=0,
        handle_signals=False,
    )
    await worker.async_run()


uvloop.run(main())
