"""Newest: what several queues have, merged newest first, a bounded piece of each at a time."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from relevo.errors import MisuseError
from relevo.stores.redis.frame import Frame, side_by_side
from relevo.stores.redis.line import Arg

T = TypeVar("T")
Rank: TypeAlias = tuple[float, float]

LONGEST_PAGE = 200
_RANK = re.compile(r"[0-9]{1,20}(-[0-9]{1,20}|(\.[0-9]{1,20})?(/[0-9a-f]{32})?)", re.ASCII)
BUDGET = 0.15  # seconds to look for what is rare; then the page ends where the search got to


def rank(text: str) -> Rank:
    """A score, with a job's id or without, or the id of a stream's entry, as a number."""
    major, _, minor = text.partition("/")[0].partition("-")
    return float(major), float(minor or 0)


class Stream:
    """One queue's rows, read from the newest on."""

    def __init__(self, name: str, root: bytes) -> None:
        self.name = name
        self.root = root
        self.bound = ""  # where the next piece starts; '' at the newest
        self.reached = ""  # the oldest rank looked at
        self.rows: deque[tuple[str, Any]] = deque()
        self.is_done = False

    def order(self, rank_text: str) -> tuple[float, float, str]:
        major, minor = rank(rank_text)
        return -major, -minor, self.name


class Newest(Frame):
    """Pages over all queues, with a cursor."""

    async def _newest(
        self,
        script: str,
        roots: Sequence[tuple[str, bytes]],
        args: Sequence[Arg],
        keep: Callable[[Any], T | None],
        *,
        cursor: str | None,
        limit: int,
        most: int = LONGEST_PAGE,
    ) -> tuple[list[T], str | None]:
        """The newest rows that `keep` makes something of, and where the next page starts.

        `script` takes how many, the args, then a start for each root. It answers for each root its
        rows, rank first, and the rank it got to, or '' when it has seen them all.
        """
        limit = max(1, min(limit, most))
        args = (limit, *args)
        streams = [Stream(name, root) for name, root in roots]
        _start_behind(cursor, streams)
        found: list[T] = []
        last: str | None = None
        give_up = time.monotonic() + BUDGET
        while len(found) < limit:
            hungry = [stream for stream in streams if not (stream.rows or stream.is_done)]
            if hungry and (time.monotonic() < give_up or not all(s.reached for s in hungry)):
                await self._feed(script, hungry, args, keep)
                continue
            best = _head(streams)
            if best is None:
                return found, None
            if hungry and not best.rows:
                return found, f"{best.reached}~{best.name}"
            at, item = best.rows.popleft()
            last = f"{at}~{best.name}"
            found.append(item)
        if all(stream.is_done and not stream.rows for stream in streams):
            last = None
        return found, last

    async def _feed(
        self,
        script: str,
        streams: Sequence[Stream],
        args: Sequence[Arg],
        keep: Callable[[Any], T | None],
    ) -> None:
        if self._wire.is_cluster:
            answers = await side_by_side(
                *(self._run(script, [s.root], (*args, s.bound)) for s in streams)
            )
            parts = [answer[0] for answer in answers]
        else:
            bounds = [stream.bound for stream in streams]
            parts = await self._run(script, [s.root for s in streams], (*args, *bounds))
        for stream, (rows, reached) in zip(streams, parts, strict=True):
            for row in rows:
                if (item := keep(row)) is not None:
                    stream.rows.append((row[0].decode(), item))
            stream.is_done = not reached
            if reached:
                stream.reached = reached.decode()
                stream.bound = f"({stream.reached}"


def _head(streams: Sequence[Stream]) -> Stream | None:
    """The stream whose next row, or unread part, is the newest."""
    best: Stream | None = None
    order: tuple[float, float, str] | None = None
    for stream in streams:
        if stream.rows:
            mine = stream.order(stream.rows[0][0])
        elif not stream.is_done:
            mine = stream.order(stream.reached)
        else:
            continue
        if order is None or mine < order:
            best, order = stream, mine
    return best


def _start_behind(cursor: str | None, streams: Sequence[Stream]) -> None:
    if cursor is None:
        return
    at, _, name = cursor.partition("~")
    if not (len(cursor) <= 200 and _RANK.fullmatch(at)):
        raise MisuseError("that is no cursor of this store: start from the first page")
    moment = at.partition("/")[0]
    for stream in streams:
        # Equal moments go by name: those whose turn is still to come start at the mark itself.
        if stream.name > name:
            stream.bound = moment
        else:
            stream.bound = f"({at if stream.name == name else moment}"
