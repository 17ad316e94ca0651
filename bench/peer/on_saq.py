"""saq on Redis: a job is in its active list until it has ended."""

from __future__ import annotations

from typing import Any

import uvloop
from saq import Queue, Worker
from stage import TEXT, URL, Count, by_callers

queue = Queue.from_url(URL)
count = Count()


async def work(ctx: dict[str, Any], *, number: int, text: str) -> None:
    count.one()


async def main() -> None:
    await queue.connect()
    count.figures["enqueue"] = await by_callers(
        lambda n: queue.enqueue("work", number=n, text=TEXT)
    )
    await Worker(queue, functions=[work], concurrency=100).start()


uvloop.run(main())
