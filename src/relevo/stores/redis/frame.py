"""Frame, what all verbs stand on: names of keys, the clock, and scripts run where queues live."""

from __future__ import annotations

import asyncio
import functools
import re
import secrets
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import timedelta
from types import CoroutineType
from typing import Any, Concatenate, ParamSpec, TypeVar

from relevo.clock import Clock, Patience, SystemClock
from relevo.errors import DefinitionError, StoreUnavailable
from relevo.job import queue_name
from relevo.store import DEADLINE
from relevo.stores.redis.address import read_address
from relevo.stores.redis.bell import Bell
from relevo.stores.redis.line import Arg
from relevo.stores.redis.wire import Refused, Wire, script

P = ParamSpec("P")
R = TypeVar("R")

LIMIT = DEADLINE - 0.3  # what is left is for us to say so
_WORD = re.compile(r"[a-z0-9_]{1,64}", re.ASCII)
_MS = timedelta(milliseconds=1)


def timely(
    verb: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], CoroutineType[Any, Any, R]]:
    """The verb answers, or raises StoreUnavailable, within the store's deadline."""

    @functools.wraps(verb)
    async def limited(self: Frame, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            async with Patience(LIMIT):
                return await verb(self, *args, **kwargs)
        except TimeoutError as error:
            self.doubt()
            raise StoreUnavailable(
                f"the Redis at {self.url} did not answer within {LIMIT} s"
            ) from error
        except Refused:
            raise  # it is there, and answered
        except StoreUnavailable:
            self.doubt()
            raise

    return limited


async def side_by_side(*runs: Coroutine[Any, Any, R]) -> list[R]:
    """The results of all of them; an error only when the last has ended, so that none is left."""
    results = await asyncio.gather(*runs, return_exceptions=True)
    return [_result(result) for result in results]


def _result(result: R | BaseException) -> R:
    if isinstance(result, BaseException):
        raise result
    return result


class Frame:
    """The ground of the store: where its keys are, and how its scripts are run."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self._address = read_address(url)
        self._clock = clock or SystemClock()
        self._caller = secrets.token_hex(4)
        self._roots: dict[str, bytes] = {}
        self._registered: set[str] = set()
        self._wire = Wire(self._address)
        self._bell = Bell(self._wire, self._key("bell"), self._caller)
        self._together = b"0" if self._wire.is_cluster else b"1"

    @property
    def name(self) -> str:
        return "cluster" if self._wire.is_cluster else "redis"

    @property
    def url(self) -> str:
        return self._address.shown

    @property
    def commands(self) -> int:
        """What this handle has asked of the server so far, where it bills by the command."""
        return self._wire.asked

    @property
    def dsn(self) -> str:
        return self._address.url

    def doubt(self) -> None:
        """The store was away: nothing remembered about it holds any more."""
        self._wire.distrust()
        self._registered.clear()
        self._bell.doubt()

    # names of keys

    def _key(self, word: str, *, tag: bool = False, queue: bool = False) -> bytes:
        """The only maker of keys: of words of ours and names of queues. Nothing foreign gets in."""
        if queue:
            word = queue_name(word)
        elif not _WORD.fullmatch(word):
            raise DefinitionError(f"{word!r:.60} cannot be part of a Redis key")
        return f"{self._address.prefix}:{'{' + word + '}' if tag else word}".encode()

    def _root(self, queue: str) -> bytes:
        """What all keys of a queue start with; scripts add words of their own to it."""
        if queue not in self._roots:
            self._roots[queue] = self._key(queue, tag=True, queue=True)
        return self._roots[queue]

    async def _queues(self) -> list[str]:
        """Every queue that has, or had, jobs."""
        key = self._key("queues")
        return sorted(name.decode() for name in await self._wire.command(key, b"SMEMBERS", key))

    async def _register(self, queues: Iterable[str]) -> None:
        # On a cluster the list of queues is on another slot than they are.
        if fresh := [queue for queue in queues if queue not in self._registered]:
            key = self._key("queues")
            await self._wire.command(key, b"SADD", key, *fresh)
            self._registered.update(fresh)

    # running scripts

    @timely
    async def now(self) -> int:
        return int(await self._moment())

    async def _moment(self) -> float:
        """Now, in milliseconds to the microsecond: several calls fall within one millisecond."""
        key = self._key("schema")
        seconds, micros = await self._wire.command(key, b"TIME")
        return int(seconds) * 1000 + int(micros) / 1000 + self._offset

    @property
    def _offset(self) -> int:
        return round(self._clock.offset / _MS)

    async def _run(
        self, name: str, keys: Sequence[bytes], args: Sequence[Arg] = (), *, wait: int = 0
    ) -> Any:
        # Who brings jobs rings here by himself; what others make ready we hear of like anybody.
        caller = self._caller if name in ("insert", "arrive") else ""
        head = (self._offset, caller, self._together)
        return await self._wire.call(script(name), keys, (*head, *args), wait=wait)

    async def _each(self, name: str, queues: Sequence[str], args: Sequence[Arg] = ()) -> list[Any]:
        """One run over all the queues; on a cluster one for each, side by side."""
        if not queues:
            return []
        roots = [self._root(queue) for queue in queues]
        if not self._wire.is_cluster:
            return [await self._run(name, roots, args)]
        return await side_by_side(*(self._run(name, [root], args) for root in roots))

    async def _all(self, name: str, args: Sequence[Arg] = ()) -> list[Any]:
        """One run over all the queues there are; on a cluster one for each, side by side."""
        if self._wire.is_cluster:
            return await self._each(name, await self._queues(), args)
        return [await self._run(name, [self._key("queues")], args)]

    async def _over(
        self,
        name: str,
        items: Sequence[tuple[str, tuple[Arg, ...]] | None],
        *head: Arg,
        root: Callable[[str], bytes] | None = None,
        wait: int = 0,
    ) -> list[tuple[list[int], Any]]:
        """Items of queues through one run, or on a cluster one for each queue.

        The script gets each item with the number of its queue's key in front. Answers which places
        each run had, and what it said. `root` is for things that are no queues.
        """
        roots = root or self._root
        groups: dict[str, list[int]] = {}
        for place, item in enumerate(items):
            if item is not None:
                groups.setdefault(item[0] if self._wire.is_cluster else "", []).append(place)

        async def run(places: list[int]) -> tuple[list[int], Any]:
            numbers: dict[str, int] = {}
            args = list(head)
            for place in places:
                queue, values = items[place] or ("", ())
                args += (numbers.setdefault(queue, len(numbers) + 1), *values)
            return places, await self._run(name, list(map(roots, numbers)), args, wait=wait)

        return await side_by_side(*map(run, groups.values()))
