"""redis-py: a list of ids, one hash of jobs and a sorted set of leases; one script a batch."""

from __future__ import annotations

import asyncio
import random
import time
from itertools import count

import redis

from bench.measure import Pipe, Speed, Stopwatch

CLAIM = 500

_INSERT = """
-- KEYS wait, jobs  ARGV id, job, id, job, …
local ids = {}
for place = 1, #ARGV, 2 do ids[#ids + 1] = ARGV[place] end
redis.call('HSET', KEYS[2], unpack(ARGV))
redis.call('RPUSH', KEYS[1], unpack(ids))
return #ids
"""
_CLAIM = """
-- KEYS wait, leases, jobs  ARGV how many, until when  → ids, jobs
local ids = redis.call('LPOP', KEYS[1], ARGV[1])
if not ids then return {{}, {}} end
local leases = {}
for _, id in ipairs(ids) do
    leases[#leases + 1] = ARGV[2]
    leases[#leases + 1] = id
end
redis.call('ZADD', KEYS[2], unpack(leases))
return {ids, redis.call('HMGET', KEYS[3], unpack(ids))}
"""
_DELETE = """
-- KEYS leases, jobs  ARGV ids
redis.call('ZREM', KEYS[1], unpack(ARGV))
return redis.call('HDEL', KEYS[2], unpack(ARGV))
"""


class _Queue:
    def __init__(self, url: str, body: bytes) -> None:
        # As relevo asks of its own client: RESP 2 and no greeting, the quickest way.
        client = redis.Redis.from_url(url, protocol=2)
        self._insert = client.register_script(_INSERT)
        self._claim = client.register_script(_CLAIM)
        self._delete = client.register_script(_DELETE)
        self._ids = count(time.time_ns() // 1_000_000 << 21)
        self._body = body

    def insert(self, size: int) -> None:
        words = [word for _ in range(size) for word in (next(self._ids), self._body)]
        self._insert(["{raw}:wait", "{raw}:jobs"], words)

    def claim(self, size: int) -> list[bytes]:
        until = time.time_ns() // 1_000_000 + 15_000
        ids, _ = self._claim(["{raw}:wait", "{raw}:leases", "{raw}:jobs"], [size, until])
        return ids

    def delete(self, ids: list[bytes]) -> None:
        self._delete(["{raw}:leases", "{raw}:jobs"], ids)


def enqueue(pipe: Pipe, url: str, body: bytes, jobs: int, batch: int) -> Speed:
    """So many rows a commit."""
    queue = _Queue(url, body)
    watch = Stopwatch()
    for _ in range(0, jobs, batch):
        queue.insert(batch)
    return watch.speed(jobs)


def drain(pipe: Pipe, url: str, body: bytes, jobs: int) -> Speed:
    """Claim, then delete, one after the other."""
    queue = _Queue(url, body)
    for _ in range(0, jobs, 1_000):
        queue.insert(1_000)
    watch = Stopwatch()
    left = jobs
    while left:
        ids = queue.claim(CLAIM)
        queue.delete(ids)
        left -= len(ids)
    return watch.speed(jobs)


def pick_up(pipe: Pipe, url: str, body: bytes, jobs: int) -> list[float]:
    """Seconds from before an insert to after its claim."""
    queue = _Queue(url, body)
    times: list[float] = []
    for _ in range(jobs):
        time.sleep(0.01)
        watch = Stopwatch()
        queue.insert(1)
        assert len(queue.claim(1)) == 1
        times.append(watch.seconds)
    return times


def hear(pipe: Pipe, url: str, body: bytes, jobs: int) -> list[float]:
    """Sleep on a channel and claim what was published; seconds since before its insert."""
    queue, client = _Queue(url, body), redis.Redis.from_url(url, protocol=2)
    times: list[float] = []
    with client.pubsub() as bell:
        bell.subscribe("raw")
        bell.get_message(timeout=5)
        for _ in range(jobs):
            pipe.say("idle")
            said = bell.get_message(timeout=30)
            assert said is not None
            assert len(queue.claim(1)) == 1
            times.append((time.monotonic_ns() - int(said["data"])) / 1e9)
    return times


async def call(pipe: Pipe, url: str, body: bytes, jobs: int) -> None:
    """Insert and publish, once whoever hears sleeps again."""
    queue, client = _Queue(url, body), redis.Redis.from_url(url, protocol=2)
    pipe.say("open")
    for _ in range(jobs):
        await pipe.hear()
        await asyncio.sleep(random.uniform(0.015, 0.035))
        began = time.monotonic_ns()
        queue.insert(1)
        client.publish("raw", began)
