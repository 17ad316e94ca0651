"""A Redis list that belongs to others: they LPUSH, we take from the right, and nothing is lost.

    inbox = RedisList(redis, "events", processing="events:processing", dead="events:dead",
                      reasons="events:reasons")
    for entry in [*await inbox.left(200), *await inbox.take(200)]:
        …                                    # make it safe elsewhere
        await inbox.done([entry])            # only now it is gone from Redis

An RPOP gives its entry to a process that may die with it. Here LMOVE puts it into a processing list
in the same step, and there it stays until it is safe; whoever takes the dead one's place finds it
with left(). What cannot be read goes to the dead list as it came, its reason in a hash beside it.

All keys of one list change together, so they live on one server: not on Redis Cluster, whose slots
the producers' names do not share.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, TypeVar, cast

import msgspec
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from relevo.errors import RelevoError, StoreUnavailable
from relevo.stores.alive import OPTIONS

T = TypeVar("T")

DEADLINE = 5.0
PAGE = 25  # entries in one trip: others may have pushed megabytes
SHOWN = 16 * 1_048_576  # bytes of dead entries read to be looked at


class NotAList(RelevoError):
    """A key of the list holds something else; a person has to look."""


class Buried(msgspec.Struct, frozen=True):
    """An entry of the dead list, and why it is there."""

    entry: bytes
    reason: str
    at: float = 0.0

    @property
    def id(self) -> str:
        """What people call it by."""
        return fingerprint(self.entry)


class _Reason(msgspec.Struct):
    reason: str
    at: float


def connect(url: str) -> Redis:
    """A client that answers or fails within seconds and repeats nothing by itself."""
    return Redis.from_url(  # pyright: ignore[reportUnknownMemberType] - its options are untyped
        url,
        socket_timeout=DEADLINE,
        socket_connect_timeout=DEADLINE,
        socket_keepalive=True,
        socket_keepalive_options=OPTIONS,
        retry=Retry(NoBackoff(), 0),
        health_check_interval=30,
    )


def fingerprint(entry: bytes) -> str:
    """What an entry is called by where the whole of it would be too long."""
    return hashlib.blake2b(entry, digest_size=16).hexdigest()


class RedisList:
    """One list, with the keys beside it."""

    def __init__(
        self, redis: Redis, name: str, *, processing: str, dead: str, reasons: str
    ) -> None:
        self._redis = redis
        self.name = name
        self.processing = processing
        self.dead = dead
        self.reasons = reasons

    async def push(self, entries: Sequence[bytes]) -> None:
        """Put entries in, as the producers do."""
        if entries:
            await calling(self._redis.lpush(self.name, *entries))

    async def left(self, most: int = PAGE) -> list[bytes]:
        """What was taken and never let go of, oldest first."""
        found = await calling(self._redis.lrange(self.processing, -most, -1))
        return cast("list[bytes]", found)[::-1]

    async def take(self, most: int = PAGE) -> list[bytes]:
        """The oldest entries, which from now on stand in the processing list."""
        pipe = self._redis.pipeline(transaction=False)
        for _ in range(min(most, PAGE)):
            pipe.lmove(self.name, self.processing, "RIGHT", "LEFT")
        found = await calling(pipe.execute())
        return [entry for entry in cast("list[bytes | None]", found) if entry is not None]

    async def done(self, entries: Iterable[bytes]) -> None:
        """Let go of entries that are safe elsewhere."""
        pipe = self._redis.pipeline(transaction=False)
        for entry in entries:
            # From the right, where the oldest are; of twins it does not matter which one goes.
            pipe.lrem(self.processing, -1, cast("Any", entry))
        if len(pipe):
            await calling(pipe.execute())

    async def bury(self, entry: bytes, reason: str) -> None:
        """Move an entry to the dead list, as it came, and write the reason beside it."""
        why = msgspec.json.encode(_Reason(reason, time.time()))
        pipe = self._redis.pipeline(transaction=True)
        pipe.lrem(self.processing, -1, cast("Any", entry))
        pipe.lpush(self.dead, entry)
        pipe.hset(self.reasons, fingerprint(entry), cast("Any", why))
        await calling(pipe.execute())

    async def buried(self, most: int = 50) -> list[Buried]:
        """The dead list, newest first; fewer than asked for where entries are very large."""
        entries: list[bytes] = []
        while len(entries) < most and sum(map(len, entries)) < SHOWN:
            start, room = len(entries), min(10, most - len(entries))
            page = await calling(self._redis.lrange(self.dead, start, start + room - 1))
            entries += cast("list[bytes]", page)
            if len(page) < room:
                break
        if not entries:
            return []
        names = [fingerprint(entry) for entry in entries]
        kept = cast("list[bytes | None]", await calling(self._redis.hmget(self.reasons, names)))
        return [_buried(entry, why) for entry, why in zip(entries, kept, strict=True)]

    async def find(self, id: str) -> Buried | None:
        """A dead entry by its id; None when there is none."""
        if (entry := await self._find(id)) is None:
            return None
        why = await calling(self._redis.hget(self.reasons, id))
        return _buried(entry, cast("bytes | None", why))

    async def revive(self, id: str, instead: bytes | None = None) -> bool:
        """Put a dead entry, or an edited one instead, back at the end of the line.

        False when there is none of that id, or it was put back meanwhile.
        """
        entry = await self._find(id)
        return entry is not None and await self._settle(
            entry, entry if instead is None else instead
        )

    async def revive_all(self) -> int:
        """Put every dead entry back, the oldest first; gives how many. What dies later stays."""
        _, _, left = await self.lengths()
        moved = 0
        while left > 0:
            page = self._redis.lrange(self.dead, -min(PAGE, left), -1)
            if not (entries := cast("list[bytes]", await calling(page))):
                break
            left -= len(entries)
            for entry in reversed(entries):
                moved += await self._settle(entry, entry)
        return moved

    async def discard(self, id: str) -> bool:
        """Throw a dead entry away; False when there is none of that id."""
        entry = await self._find(id)
        return entry is not None and await self._settle(entry, None)

    async def _find(self, id: str) -> bytes | None:
        start = 0
        while True:
            page = self._redis.lrange(self.dead, start, start + PAGE - 1)
            entries = cast("list[bytes]", await calling(page))
            for entry in entries:
                if fingerprint(entry) == id:
                    return entry
            if len(entries) < PAGE:
                return None
            start += PAGE

    async def _settle(self, entry: bytes, back: bytes | None) -> bool:
        """Take an entry off the dead list and put `back` into the list, in one step."""
        keys = [self.dead, self.reasons, self.name]
        args = [entry, fingerprint(entry), *([] if back is None else [back])]
        moved = self._redis.eval(_RESOLVE, 3, *keys, *cast("Any", args))
        return bool(await calling(moved))

    async def lengths(self) -> tuple[int, int, int]:
        """How many wait, how many are being made safe, and how many are dead."""
        pipe = self._redis.pipeline(transaction=False)
        for key in (self.name, self.processing, self.dead):
            pipe.llen(key)
        waiting, processing, dead = await calling(pipe.execute())
        return waiting, processing, dead


_RESOLVE = """
-- keys: dead list, reasons, list to go back to
-- args: entry, its fingerprint, what goes back (none: the entry is thrown away); answer: 0 or 1
-- One step, so that a button pressed twice moves the entry once.
if redis.call('lrem', KEYS[1], -1, ARGV[1]) == 0 then return 0 end
redis.call('hdel', KEYS[2], ARGV[2])
if ARGV[3] then redis.call('lpush', KEYS[3], ARGV[3]) end
return 1
"""


def _buried(entry: bytes, why: bytes | None) -> Buried:
    try:
        kept = msgspec.json.decode(why or b"", type=_Reason)
    except msgspec.DecodeError:
        return Buried(entry, "put here by somebody else")
    return Buried(entry, kept.reason, kept.at)


async def calling(answer: Awaitable[T] | T) -> T:
    """The answer of a command; StoreUnavailable, or NotAList where a key is something else."""
    try:
        return await cast("Awaitable[T]", answer)
    except ResponseError as error:
        if "WRONGTYPE" in str(error):
            raise NotAList("a key of the list is not a list: rename it or delete it") from error
        raise StoreUnavailable(f"Redis refused: {str(error)[:200]}") from error
    except (RedisError, OSError) as error:
        raise StoreUnavailable(f"Redis does not answer: {type(error).__name__}") from error
