"""dramatiq on Redis: threads; a message is acknowledged once its actor has returned."""

from __future__ import annotations

import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from stage import TEXT, URL, Count, by_threads

broker = RedisBroker(url=URL)
dramatiq.set_broker(broker)
count = Count()


@dramatiq.actor
def work(number: int, text: str) -> None:
    count.one()


count.figures["enqueue"] = by_threads(lambda number: work.send(number, TEXT))
dramatiq.Worker(broker, worker_threads=8).start()
time.sleep(600)
