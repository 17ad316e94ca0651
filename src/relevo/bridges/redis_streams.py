"""Redis streams that belong to others: consumer groups, orphans, retries with growing waits.

An entry is taken, worked on, acknowledged. One that fails stays pending and is due again after
`backoff(deliveries)`, whoever had it: so the work of a consumer that died is taken over by the same
rule. A delivery that failed of our own outage is not counted: put_back() gives the entry back, and
ensure() takes back the deliveries whose answer was lost. Nothing here knows what the entries mean.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from msgspec import Struct
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from relevo.errors import StoreUnavailable

MAXLEN = 100_000  # entries a stream keeps, about
PAGE = 100
PAGES = 10  # of pending entries that are looked through for the next one due
IDLE = 3_600_000  # milliseconds: as old as this, an entry waits for nothing any more
IDLE_CONSUMER = 3_600_000  # milliseconds after which an idle consumer without work is removed


class Entry(Struct, frozen=True):
    """One entry of a stream, as bytes came."""

    id: str
    fields: dict[bytes, bytes]
    deliveries: int  # this one counted

    def text(self, name: str) -> str:
        return self.fields.get(name.encode(), b"").decode("utf-8", "replace")


class Stream:
    """One stream and one group of its consumers."""

    def __init__(self, redis: Redis, name: str, *, group: str, consumer: str) -> None:
        self._redis = redis
        self.name = name
        self.group = group
        self.consumer = consumer
        # By id, the deliveries of the pending entries that this consumer has heard of.
        self._known: dict[str, int] = {}

    async def ensure(self) -> None:
        """Make the group, from the stream's beginning: what came before us counts too.

        Call it again after Redis was away: deliveries whose answer was lost are not counted.
        """
        try:
            await self._call(
                self._redis.xgroup_create(self.name, self.group, id="0", mkstream=True)
            )
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
            await self._uncount_unheard()

    async def take(self, count: int, wait: int) -> list[Entry]:
        """New entries, waiting up to so many milliseconds for one."""
        answer: Any = await self._call(
            self._redis.xreadgroup(
                self.group, self.consumer, {self.name: ">"}, count=count, block=max(wait, 1)
            )
        )
        found = cast("list[tuple[bytes, dict[bytes, bytes]]]", answer[0][1] if answer else [])
        entries = [Entry(id.decode(), fields or {}, 1) for id, fields in found]
        self._known |= {entry.id: 1 for entry in entries}
        return entries

    async def due(self, backoff: Callable[[int], int], count: int = 100) -> list[Entry]:
        """Pending entries whose wait is over, now ours; each of them goes to one consumer."""
        pending: Any = await self._call(
            self._redis.xpending_range(
                self.name, self.group, min="-", max="+", count=count, idle=backoff(1)
            )
        )
        taken: list[Entry] = []
        for one in cast("list[dict[str, Any]]", pending):
            deliveries = int(one["times_delivered"])
            wait = backoff(deliveries)
            if int(one["time_since_delivered"]) < wait:
                continue
            # The server asks once more whether it is idle: of two who see it, one gets it.
            message = one["message_id"].decode()
            self._known[message] = deliveries
            claimed: Any = await self._call(
                self._redis.xclaim(self.name, self.group, self.consumer, wait, [message])
            )
            for id, fields in cast("list[tuple[bytes, dict[bytes, bytes] | None]]", claimed):
                taken.append(Entry(id.decode(), fields or {}, deliveries + 1))
                self._known[message] = deliveries + 1
        return taken

    async def rest(self, backoff: Callable[[int], int], longest: int) -> int:
        """Milliseconds until the next pending entry is due, `longest` at most.

        A blocking read that goes on for longer than this would add itself to the entry's wait.
        """
        start = "-"
        for _ in range(PAGES):
            pending: Any = await self._call(
                self._redis.xpending_range(self.name, self.group, start, "+", PAGE)
            )
            for one in cast("list[dict[str, Any]]", pending):
                wait = backoff(int(one["times_delivered"])) - int(one["time_since_delivered"])
                longest = min(longest, max(wait, 1))
            if len(pending) < PAGE:
                break
            start = f"({pending[-1]['message_id'].decode()}"
        return longest

    async def done(self, ids: list[str]) -> None:
        """Acknowledge."""
        if ids:
            await self._call(self._redis.xack(self.name, self.group, *ids))
            for id in ids:
                self._known.pop(id, None)

    async def put_back(self, entry: Entry, idle: int) -> None:
        """Give an entry back as if it had not been delivered, and as if idle for so long (ms).

        If Redis does not answer, ensure() does it later.
        """
        self._known[entry.id] = entry.deliveries - 1
        await self._set(entry.id, entry.deliveries, entry.deliveries - 1, idle)

    async def _set(self, id: str, found: int, deliveries: int, idle: int) -> None:
        """Set an entry's count, unless another consumer has taken it meanwhile."""
        words = [self.group, self.consumer, id, str(found), str(deliveries), str(idle)]
        await self._call(self._redis.eval(_SET, 1, self.name, *words))

    async def _uncount_unheard(self) -> None:
        """Take back deliveries to this consumer of which it has not heard."""
        start = "-"
        while True:
            pending: Any = await self._call(
                self._redis.xpending_range(
                    self.name, self.group, start, "+", PAGE, consumername=self.consumer
                )
            )
            for one in cast("list[dict[str, Any]]", pending):
                id, found = one["message_id"].decode(), int(one["times_delivered"])
                # An entry that this process does not know, and that came twice, was an earlier
                # process's of the same name, which may have died of it.
                known = self._known.get(id, found if found > 1 else 0)
                if found == known + 1:
                    await self._set(id, found, known, IDLE)
                    self._known[id] = known
            if len(pending) < PAGE:
                return
            start = f"({pending[-1]['message_id'].decode()}"

    async def tidy(self) -> int:
        """Remove consumers that are long idle and hold nothing; answers how many."""
        known: Any = await self._call(self._redis.xinfo_consumers(self.name, self.group))
        gone = [
            one["name"]
            for one in cast("list[dict[str, Any]]", known)
            if one["pending"] == 0
            and one["idle"] > IDLE_CONSUMER
            and one["name"] != self.consumer.encode()
        ]
        for name in gone:
            await self._call(self._redis.xgroup_delconsumer(self.name, self.group, name))
        return len(gone)

    async def _call(self, answer: Awaitable[Any]) -> Any:
        return await _reach(answer)


class Rate:
    """So many calls in a window, counted in Redis: all consumers of all hosts share them."""

    def __init__(self, redis: Redis, name: str, *, calls: int, window: int) -> None:
        self._redis = redis
        self.name = name
        self.calls = calls
        self.window = window  # milliseconds

    async def wait(self) -> int:
        """Milliseconds until a call may be made; 0: now."""
        return await self._ask("", 0)

    async def take(self, call: str) -> int:
        """Count a call unless the window is full; 0, or milliseconds until there is room.

        A call of a name that is counted already is let through, and not counted twice.
        """
        return await self._ask(call, 1)

    async def _ask(self, call: str, takes: int) -> int:
        words = [str(self.calls), str(self.window), str(takes), call]
        return int(await _reach(cast("Any", self._redis.eval(_RATE, 1, self.name, *words))))


_RATE = """
-- keys: the calls of the last window, by their moment
-- args: calls in a window, milliseconds of a window, 1 to count this call, its name
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local window = tonumber(ARGV[2])
redis.call('zremrangebyscore', KEYS[1], '-inf', now - window)
if ARGV[3] == '1' and redis.call('zscore', KEYS[1], ARGV[4]) then return 0 end
if redis.call('zcard', KEYS[1]) >= tonumber(ARGV[1]) then
    local oldest = redis.call('zrange', KEYS[1], 0, 0, 'withscores')
    return math.max(oldest[2] + window - now, 1)
end
if ARGV[3] == '1' then
    redis.call('zadd', KEYS[1], now, ARGV[4])
    redis.call('pexpire', KEYS[1], window)
end
return 0
"""


_SET = """
-- keys: stream; args: group, consumer, entry, its count, its new count, milliseconds idle
-- In one step: an entry that another consumer takes meanwhile is left to it.
local found = redis.call('xpending', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1, ARGV[2])[1]
if not found or found[4] ~= tonumber(ARGV[4]) then return 0 end
redis.call('xclaim', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[3], 'IDLE', ARGV[6],
    'RETRYCOUNT', ARGV[5], 'JUSTID')
return 1
"""


async def publish(redis: Redis, entries: Mapping[str, Mapping[str, str]]) -> None:
    """Add one entry to each stream, all or none of them."""
    async with redis.pipeline(transaction=True) as pipe:
        for name, fields in entries.items():
            pipe.xadd(name, cast("dict[Any, Any]", dict(fields)), maxlen=MAXLEN, approximate=True)
        await _reach(pipe.execute())


async def _reach(answer: Awaitable[Any]) -> Any:
    try:
        return await answer
    except ResponseError:
        raise
    except (RedisError, OSError, TimeoutError) as error:
        raise StoreUnavailable(f"Redis does not answer: {type(error).__name__}") from error
