"""A loop with cursor, jitter, backoff and one runner per key in the whole fleet.

    @app.poller("hotel:{hotel_id}", over=hotels, every="15s", jitter="500ms")
    async def pull(poll: Poll, ctx: Context) -> None:
        for event in await channel.events(poll.values["hotel_id"], since=poll.cursor):
            await ctx.enqueue(SaveEvent(**event))  # or: await poll.bad(event, "has no number")
        poll.cursor = …

A poller is one job a key that never ends: it snoozes until its next turn. So its lease, its rescue
and its place on the screen are those of any job, and its cursor is saved by the settle itself.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import re
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import blake2b
from typing import Any

import msgspec

from relevo.backoff import Backoff, constant
from relevo.clock import Duration, duration
from relevo.errors import DefinitionError
from relevo.job import slug
from relevo.message import Command, backoff_of, time_limit
from relevo.outcome import ordinary
from relevo.pending import Calls, noted

Over = Callable[[], Iterable[Mapping[str, str]] | Awaitable[Iterable[Mapping[str, str]]]]
Mend = Callable[..., Awaitable[Any]]
"""Takes a BadItem and a Context when a person retries it."""

_FIELD = re.compile(r"\{([a-z_][a-z0-9_]*)\}", re.ASCII)
ATTEMPTS = 1_000  # a poller outlives its workers
HEARTBEAT = timedelta(minutes=1)
BESIDE = timedelta(minutes=1)  # for what a turn does besides: recall how far it was, and settle
ITEM_MAX = 60_000  # bytes of JSON that a bad item may fill; the rest of it is cut off
REASON_MAX = 500
PAUSED = "recurring-paused"  # the kind of the notes that switch single keys off
RUN = "recurring-run"  # and of those that ask a schedule for a tick now; their value is the moment


class Progress(msgspec.Struct, omit_defaults=True):
    """What a recurring job remembers between its turns."""

    cursor: Any = None
    failures: int = 0
    last_at: int = 0  # a schedule's last tick, a poller's last good turn
    error: str = ""
    turned_at: int = 0  # its last turn, good or not
    joined: tuple[str, ...] = ()  # of a schedule's last tick: jobs that its commands joined by key
    ttl: int = 60_000  # so many milliseconds after its next turn was due it counts as silent


@dataclass(frozen=True, slots=True)
class BadItem:
    """What a turn could not use, as it came; cut where it was too long to be kept whole."""

    key: str  # the poller's
    item: str | bytes
    reason: str
    size: int  # in bytes, before it was cut


def _calls(poll: Poll) -> Calls | None:
    return poll.pending


@dataclass(slots=True)
class Poll:
    """One turn of a poller. Set `cursor` to move on; it is saved when the turn ends well.

    Set `rest` to take the next turn after another time than the poller was made with, whichever
    way this one ends.
    """

    key: str
    values: Mapping[str, str]
    cursor: Any = None
    failures: int = 0  # how many turns in a row have failed before this one
    rest: Duration | None = None
    put_aside: Callable[[Any, str], Awaitable[None]] | None = field(default=None, repr=False)
    pending: Calls | None = field(default=None, repr=False)

    @noted("poll", _calls)
    async def bad(self, item: Any, reason: str) -> None:
        """Put an item that cannot be used among the dead letters, as it is, and go on.

        Text, bytes or anything else. The same item is put there once, however often it comes.
        """
        if self.put_aside is not None:
            await self.put_aside(item, reason)


@dataclass(frozen=True, slots=True, eq=False)
class Poller:
    """A poller as it is registered; made by App.poller or poller()."""

    name: str
    template: str
    function: Callable[..., Awaitable[Any]]
    over: Over | None
    every: timedelta
    jitter: timedelta
    backoff: Backoff
    timeout: timedelta
    heartbeat: timedelta
    mend: Mend | None
    command: type[Command] = field(repr=False)
    aside: type[Command] = field(repr=False)  # one bad item

    async def keys(self) -> list[tuple[str, dict[str, str]]]:
        """Every key it polls for, with the values that made it."""
        if self.over is None:
            return [(self.template, {})]
        try:
            found = self.over()
            if inspect.isawaitable(found):
                found = await found
            rows = [{name: str(value) for name, value in row.items()} for row in found]
            return [(self.template.format_map(row), row) for row in rows]
        except Exception:
            raise
        except BaseException as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise ordinary(error) from error

    def rest(self) -> timedelta:
        """How long until the next turn when this one went well."""
        return self.every + random.random() * self.jitter


def poller(
    template: str,
    function: Callable[..., Awaitable[Any]],
    *,
    app: str,
    over: Over | None = None,
    every: Duration = "15s",
    jitter: Duration = "500ms",
    backoff: Backoff | None = None,
    timeout: Duration = "5m",
    heartbeat: Duration = HEARTBEAT,
    mend: Mend | None = None,
) -> Poller:
    """Check and make a poller."""
    for each in (function, mend):
        if each is not None and not inspect.iscoroutinefunction(each):
            raise DefinitionError(f"{each.__qualname__}: a poller is an async function")
    if _FIELD.search(template) and over is None:
        raise DefinitionError(
            f"'{template}' has fields: pass over=, a function that lists their values, such as "
            'over=lambda: [{"hotel_id": "hotel999"}]'
        )
    wait = duration(every)
    if wait < timedelta(milliseconds=100):
        raise DefinitionError(f"a poller rests at least 100 ms between turns, not {wait}")

    queue = f"{app}:pollers:{slug(function.__name__)}"  # where people look for pollers
    limit = time_limit(timeout)

    class Turn(
        Command,
        queue=queue,
        name=f"poll:{function.__name__}",
        attempts=ATTEMPTS,
        backoff=constant(wait),
        timeout=limit + BESIDE,
        key="{key}",
        unique="forever",
    ):
        key: str
        values: dict[str, str]

    class Bad(
        Command,
        queue=queue,
        name=f"bad:{function.__name__}",
        attempts=3,
        backoff=constant(wait),
        timeout=timeout,
        allow=("item", "reason"),
    ):
        key: str
        item: str
        reason: str
        size: int
        base64: bool = False

    return Poller(
        name=f"{app}.{function.__name__}",
        template=template,
        function=function,
        over=over,
        every=wait,
        jitter=duration(jitter),
        backoff=constant(wait) if backoff is None else backoff_of(backoff, function.__qualname__),
        timeout=limit,
        heartbeat=duration(heartbeat),
        mend=mend,
        command=Turn,
        aside=Bad,
    )


def pack_item(item: Any) -> tuple[str, dict[str, Any]]:
    """What is the same for the same item, and the fields of the order that carries it."""
    match item:
        case bytes() | bytearray():
            raw = bytes(item)
        case str():
            raw = item.encode("utf-8", "surrogatepass")
        case _:
            raw = _as_json(item)
    same = blake2b(raw, digest_size=16).hexdigest()
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:  # no text that a store keeps
        part = b64encode(raw[: ITEM_MAX * 3 // 4]).decode()
        return same, {"item": part, "size": len(raw), "base64": True}
    if len(msgspec.json.encode(text)) > ITEM_MAX:
        text = text[: ITEM_MAX // 6]  # a character takes six bytes at most
    return same, {"item": text, "size": len(raw)}


def unpack_item(order: Any) -> BadItem:
    """The item that an order carries."""
    item = b64decode(order.item) if order.base64 else order.item
    return BadItem(order.key, item, order.reason, order.size)


def _as_json(item: Any) -> bytes:
    try:
        return msgspec.json.encode(item, enc_hook=repr)
    except (TypeError, ValueError, RecursionError):
        return repr(item).encode("utf-8", "surrogatepass")
