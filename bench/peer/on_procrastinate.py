"""Procrastinate on PostgreSQL: a hundred jobs at once in one process."""

from __future__ import annotations

import uvloop
from procrastinate import App, PsycopgConnector
from stage import TEXT, URL, Count, by_callers

app = App(connector=PsycopgConnector(conninfo=URL, min_size=10, max_size=10))
count = Count()


@app.task(name="work")
async def work(number: int, text: str) -> None:
    count.one()


async def main() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        count.figures["enqueue"] = await by_callers(
            lambda number: work.defer_async(number=number, text=TEXT)
        )
        await app.run_worker_async(
            concurrency=100, delete_jobs="always", install_signal_handlers=False
        )


uvloop.run(main())
