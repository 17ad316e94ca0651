"""Board: what bots, producers and people share about a hotel: its list, its window, its heartbeat.

RedisBoard keeps it in Redis under the names that other programs know; SqlBoard keeps the same under
the same names in two tables, for those who run without Redis.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple, Protocol

from redis.asyncio import Redis

from relevo.apps.hotel import names
from relevo.apps.hotel.reading import Unfit, moment_of
from relevo.bridges.redis_list import Buried, RedisList, calling

DRAIN = 200
"""Entries that one turn takes at most."""


class Pulse(NamedTuple):
    """A bot's heartbeat: what it says, and the seconds it is still good for; None: silent."""

    value: str | None
    ttl: int | None

    @property
    def at(self) -> int | None:
        """When the bot beat, in milliseconds; None where a foreign bot's value is no moment."""
        try:
            return moment_of(self.value or "") or None
        except Unfit:
            return None


class Queue(Protocol):
    """A hotel's list, as relevo.bridges.redis_list has it."""

    async def push(self, entries: list[bytes], /) -> None: ...

    async def left(self, most: int, /) -> list[bytes]: ...

    async def take(self, most: int, /) -> list[bytes]: ...

    async def done(self, entries: list[bytes], /) -> None: ...

    async def bury(self, entry: bytes, reason: str, /) -> None: ...

    async def buried(self, most: int = 50, /) -> list[Buried]: ...

    async def find(self, id: str, /) -> Buried | None: ...

    async def revive(self, id: str, /, instead: bytes | None = None) -> bool: ...

    async def revive_all(self) -> int: ...

    async def discard(self, id: str, /) -> bool: ...

    async def lengths(self) -> tuple[int, int, int]: ...


class Board(Protocol):
    """Where the bots of all hotels meet the outside."""

    def queue(self, hotel: str) -> Queue: ...

    async def beat(self, hotel: str, value: str, ttl: timedelta) -> None:
        """Show that the hotel's bot is alive, for so long."""
        ...

    async def pulse(self, hotel: str) -> Pulse: ...

    async def is_enabled(self, hotel: str, default: bool) -> bool: ...

    async def enable(self, hotel: str, is_on: bool) -> None: ...

    async def claim(self, hotel: str, message: str, ttl: timedelta) -> bool:
        """Say that somebody is on a message; False when somebody said so within the window.

        It means "someone is on it" and never "it is done": whoever is told False looks for the
        message itself.
        """
        ...


class RedisBoard:
    """The board in Redis, to the letter."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def queue(self, hotel: str) -> RedisList:
        return RedisList(
            self._redis,
            names.events(hotel),
            processing=names.processing(hotel),
            dead=names.dead(hotel),
            reasons=names.reasons(hotel),
        )

    async def beat(self, hotel: str, value: str, ttl: timedelta) -> None:
        await calling(self._redis.set(names.heartbeat(hotel), value, px=ttl))

    async def pulse(self, hotel: str) -> Pulse:
        pipe = self._redis.pipeline(transaction=False)
        pipe.get(names.heartbeat(hotel))
        pipe.ttl(names.heartbeat(hotel))
        value, ttl = await calling(pipe.execute())
        return Pulse(None, None) if value is None else Pulse(value.decode(errors="replace"), ttl)

    async def is_enabled(self, hotel: str, default: bool) -> bool:
        value: Any = await calling(self._redis.get(names.enabled(hotel)))
        return default if value is None else value != b"0"

    async def enable(self, hotel: str, is_on: bool) -> None:
        await calling(self._redis.set(names.enabled(hotel), "1" if is_on else "0"))

    async def claim(self, hotel: str, message: str, ttl: timedelta) -> bool:
        key = names.dedup(hotel, message)
        return bool(await calling(self._redis.set(key, "1", px=ttl, nx=True)))

    async def close(self) -> None:
        await self._redis.aclose()
