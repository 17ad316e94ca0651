"""A loop with cursor, jitter, backoff and one runner per key in the whole fleet.

    @app.poller("hotel:{hotel_id}", over=hotels, every="15s", jitter="500ms")
    async def pull(poll: Poll, ctx: Context) -> None:
        for event in await channel.events(poll.values["hotel_id"], since=poll.cursor):
            await ctx.enqueue(SaveEvent(**event))
        poll.cursor = …

A poller is one job a key that never ends: it snoozes until its next turn. So its lease, its rescue
and its place on the screen are those of any job, and its cursor is saved by the settle itself.
"""

from __future__ import annotations

import inspect
import random
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgspec

from relevo.backoff import Backoff, constant
from relevo.clock import Duration, duration
from relevo.errors import DefinitionError
from relevo.message import Command

Over = Callable[[], Iterable[Mapping[str, str]] | Awaitable[Iterable[Mapping[str, str]]]]

_FIELD = re.compile(r"\{([a-z_][a-z0-9_]*)\}", re.ASCII)
ATTEMPTS = 1_000  # a poller outlives its workers
PAUSED = "recurring-paused"  # the kind of the notes that switch single keys off
RUN = "recurring-run"  # and of those that ask a schedule for a tick now; their value is the moment


class Progress(msgspec.Struct, omit_defaults=True):
    """What a recurring job remembers between its turns."""

    cursor: Any = None
    failures: int = 0
    last_at: int = 0  # a schedule's last tick, a poller's last good turn
    error: str = ""


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
    rest: timedelta | None = None


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
    command: type[Command] = field(repr=False)

    async def keys(self) -> list[tuple[str, dict[str, str]]]:
        """Every key it polls for, with the values that made it."""
        if self.over is None:
            return [(self.template, {})]
        found = self.over()
        if inspect.isawaitable(found):
            found = await found
        rows = [{name: str(value) for name, value in row.items()} for row in found]
        return [(self.template.format_map(row), row) for row in rows]

    def rest(self) -> timedelta:
        """How long until the next turn when this one went well."""
        return self.every + random.random() * self.jitter


def poller(
    template: str,
    function: Callable[..., Awaitable[Any]],
    *,
    app: str,
    queue: str,
    over: Over | None = None,
    every: Duration = "15s",
    jitter: Duration = "500ms",
    backoff: Backoff | None = None,
    timeout: Duration = "5m",
) -> Poller:
    """Check and make a poller."""
    if not inspect.iscoroutinefunction(function):
        raise DefinitionError(f"{function.__qualname__}: a poller is an async function")
    if _FIELD.search(template) and over is None:
        raise DefinitionError(
            f"'{template}' has fields: pass over=, a function that lists their values, such as "
            'over=lambda: [{"hotel_id": "hotel999"}]'
        )
    wait = duration(every)
    if wait < timedelta(milliseconds=100):
        raise DefinitionError(f"a poller rests at least 100 ms between turns, not {wait}")

    class Turn(
        Command,
        queue=queue,
        name=f"poll:{function.__name__}",
        attempts=ATTEMPTS,
        backoff=constant(wait),
        timeout=timeout,
        key="{key}",
        unique="forever",
    ):
        key: str
        values: dict[str, str]

    return Poller(
        name=f"{app}.{function.__name__}",
        template=template,
        function=function,
        over=over,
        every=wait,
        jitter=duration(jitter),
        backoff=backoff or constant(wait),
        timeout=duration(timeout),
        command=Turn,
    )
