"""huey on SQLite, synced at each commit; a job is taken off before it runs, and may die there."""

from __future__ import annotations

import time

from huey import SqliteHuey
from stage import PATH, TEXT, Count, by_threads

huey = SqliteHuey(filename=PATH, fsync=True, results=False, timeout=60)
count = Count()


@huey.task()
def work(number: int, text: str) -> None:
    count.one()


count.figures["enqueue"] = by_threads(lambda number: work(number, TEXT))
consumer = huey.create_consumer(workers=4, initial_delay=0.01, max_delay=0.01, periodic=False)
consumer.start()
time.sleep(600)
