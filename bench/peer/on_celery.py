"""Celery on Redis: acks late, no results, one process without a pool of children."""

from __future__ import annotations

from celery import Celery
from stage import TEXT, URL, Count, by_threads

app = Celery("bench", broker=URL)
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=100,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)
count = Count()


@app.task(name="work")
def work(number: int, text: str) -> None:
    count.one()


count.figures["enqueue"] = by_threads(lambda number: work.delay(number, TEXT))
app.worker_main(
    ["worker", "--pool=solo", "--loglevel=ERROR", "--without-gossip", "--without-mingle"]
)
