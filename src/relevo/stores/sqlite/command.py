"""Commands: verbs that wait for their transaction, and strokes, transactions of one statement."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from relevo.clock import Clock
from relevo.stores.sqlite.transaction import Tx

Verb: TypeAlias = Callable[..., Any]
Outcome: TypeAlias = tuple[Any, BaseException | None]


class Command:
    """One verb that waits for its transaction."""

    __slots__ = ("args", "began", "clock", "future", "loop", "merged", "owner", "rank", "verb")

    def __init__(
        self,
        verb: Verb,
        args: Sequence[Any],
        *,
        merged: bool,
        rank: int,
        clock: Clock,
        future: asyncio.Future[Any],
        owner: set[Command],
    ) -> None:
        self.verb = verb
        self.args = args  # a merged verb's batch, or the arguments of another
        self.merged = merged  # may share one call with others of its kind
        self.rank = rank  # in the transaction; claims come last, so that they see everything
        self.clock = clock
        self.future = future
        self.loop = future.get_loop()
        self.owner = owner  # where its handle finds those that wait too long
        self.began = time.monotonic()

    @property
    def weight(self) -> int:
        return len(self.args) if self.merged else 1


class Stroke(NamedTuple):
    """A whole transaction in one statement.

    SQLite runs a statement without the interpreter's lock, and one outside of any transaction
    commits by itself: whoever runs it waits for the lock once, and the event loop goes on
    meanwhile. What it takes for granted it holds against the file before it writes. If that is not
    so it fails, nothing is written, and the commands go the long way.
    """

    sql: str
    values: Sequence[Any]
    finish: Callable[[Tx], list[Any]]  # once it is done: the commands' answers


FAIL = "select raise(abort, 'it is not as it was thought to be')"


def spelled(sql: str, *names: str) -> str:
    """A statement for a trigger, the new row's columns in place of its ?1, ?2 and so on."""
    for number, name in enumerate(names, 1):
        sql = sql.replace(f"?{number}", f"new.{name}")
    return sql
