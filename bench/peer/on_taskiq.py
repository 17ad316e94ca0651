"""taskiq on Redis streams: acknowledged once the task has been executed."""

from __future__ import annotations

import asyncio

import uvloop
from stage import TEXT, URL, Count, by_callers
from taskiq import AcknowledgeType
from taskiq.receiver import Receiver
from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(URL, xread_count=500)
count = Count()


@broker.task
async def work(number: int, text: str) -> None:
    count.one()


async def main() -> None:
    await broker.startup()
    count.figures["enqueue"] = await by_callers(lambda number: work.kiq(number, TEXT))
    broker.is_worker_process = True
    receiver = Receiver(
        broker,
        max_async_tasks=500,
        max_prefetch=500,
        run_startup=True,
        ack_type=AcknowledgeType.WHEN_EXECUTED,
    )
    await receiver.listen(asyncio.Event())


uvloop.run(main())
