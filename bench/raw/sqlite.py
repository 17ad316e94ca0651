"""sqlite3: WAL, synchronous=FULL, many rows a commit."""

from __future__ import annotations

import sqlite3
import time
from itertools import count

from bench.measure import Pipe, Speed, Stopwatch

CLAIM = 500


def _open(url: str) -> sqlite3.Connection:
    connection = sqlite3.connect(url.removeprefix("sqlite:///") + ".raw", isolation_level=None)
    connection.executescript(
        """
        pragma page_size = 8192;
        pragma journal_mode = wal;
        pragma synchronous = full;
        pragma cache_size = -65536;
        pragma wal_autocheckpoint = 4000;
        create table jobs (
            id integer primary key,
            queue text not null,
            token integer,
            state integer not null default 0,
            priority integer not null default 1,
            run_at integer not null,
            lease_until integer,
            attempt integer not null default 0,
            payload blob not null
        );
        create index jobs_ready on jobs (queue, priority, run_at, id) where state = 0;
        create index jobs_lease on jobs (lease_until) where state = 1;
        """
    )
    return connection


def _now() -> int:
    return time.time_ns() // 1_000_000


def _insert(connection: sqlite3.Connection, ids: count[int], body: bytes, size: int) -> None:
    now = _now()
    connection.execute("begin immediate")
    connection.executemany(
        "insert into jobs (id, queue, run_at, payload) values (?, 'work', ?, ?)",
        [(next(ids), now, body) for _ in range(size)],
    )
    connection.execute("commit")


def _claim(connection: sqlite3.Connection, size: int) -> list[tuple[int, bytes]]:
    now = _now()
    return connection.execute(
        """
        update jobs
        set state = 1, lease_until = ?1, token = ?2, attempt = attempt + 1
        where id in (
            select id
            from jobs
            where queue = 'work' and state = 0 and run_at <= ?3
            order by priority, run_at, id
            limit ?4
        )
        returning id, payload
        """,
        (now + 15_000, 7, now, size),
    ).fetchall()


def enqueue(pipe: Pipe, url: str, body: bytes, jobs: int, batch: int) -> Speed:
    """So many rows a commit."""
    connection, ids = _open(url), count(_now() << 21)
    watch = Stopwatch()
    for _ in range(0, jobs, batch):
        _insert(connection, ids, body, batch)
    return watch.speed(jobs)


def drain(pipe: Pipe, url: str, body: bytes, jobs: int) -> Speed:
    """Each commit removes the batch before and leases the next."""
    connection, ids = _open(url), count(_now() << 21)
    for _ in range(0, jobs, 1_000):
        _insert(connection, ids, body, 1_000)
    watch = Stopwatch()
    done: list[tuple[int]] = []
    left = jobs
    while left or done:
        connection.execute("begin immediate")
        connection.executemany("delete from jobs where id = ? and token = 7", done)
        leases = _claim(connection, CLAIM)
        connection.execute("commit")
        left -= len(leases)
        done = [(id_,) for id_, _ in leases]
    return watch.speed(jobs)


def pick_up(pipe: Pipe, url: str, body: bytes, jobs: int) -> list[float]:
    """Seconds from before an insert's commit to after its claim's."""
    connection, ids = _open(url), count(_now() << 21)
    times: list[float] = []
    for _ in range(jobs):
        time.sleep(0.01)
        watch = Stopwatch()
        _insert(connection, ids, body, 1)
        assert len(_claim(connection, 1)) == 1
        times.append(watch.seconds)
    return times
