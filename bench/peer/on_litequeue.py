"""litequeue on SQLite: a queue to pop from and to tell what is done; the loop around is ours."""

from __future__ import annotations

import json
import threading

from litequeue import LiteQueue
from stage import JOBS, PATH, TEXT, Count, by_threads

queue = LiteQueue(PATH)
queue.conn.execute("pragma synchronous = full")
lock = threading.Lock()  # it has one connection
count = Count(waits=True)


def put(number: int) -> None:
    with lock:
        queue.put(json.dumps([number, TEXT]))


count.figures["enqueue"] = by_threads(put)
for _ in range(JOBS):
    message = queue.pop()
    json.loads(message.data)
    count.one()
    queue.done(message.message_id)
count.end()
