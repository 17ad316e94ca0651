"""persist-queue on SQLite: a queue to get from and to acknowledge; the loop around is ours."""

from __future__ import annotations

from pathlib import Path

from persistqueue import SQLiteAckQueue
from stage import JOBS, PATH, TEXT, Count, by_threads

queue = SQLiteAckQueue(str(Path(PATH).parent), db_file_name=Path(PATH).name, multithreading=True)
count = Count(waits=True)
count.figures["enqueue"] = by_threads(lambda number: queue.put((number, TEXT)))
for _ in range(JOBS):
    job = queue.get()
    count.one()
    queue.ack(job)
count.end()
