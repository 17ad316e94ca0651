"""What the desk shows and takes back: stories, plain JSON, payloads behind their masks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from itertools import zip_longest
from typing import Any, cast

import msgspec

from relevo.clock import moment_if
from relevo.errors import DefinitionError
from relevo.job import Job
from relevo.payload import guard, mask
from relevo.store import Effect, Kept
from relevo.webhook import read_answer, read_headers


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """How far a change of many jobs has come."""

    total: int  # as counted at the start
    changed: int = 0
    refused: int = 0  # not in such a state any more, or a younger job has the key
    stopped: str = ""  # why it went no further
    outlived: int = 0  # retried, though what they started before may not be known any more


Progress = Callable[[Sweep], None]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A thread that a search has found, by the job, delivery or effect in which it did."""

    thread: str
    of: str  # a command, the name of an effect, or "delivery"
    place: str  # a queue, or an endpoint
    key: str | None
    about: str | None  # a customer, an e-mail address, an order, as its payload tells
    state: str
    at: int


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a search has found: the rows that fit best, and apart from these all others."""

    rows: list[Row]
    others: list[Row] = msgspec.field(default_factory=list[Row])
    fit: str = "exact"  # "exact": called so, or a value; "word": it stands there; "part" of a word
    how: tuple[str, ...] = ()
    is_whole: bool = True  # False: only the newest were looked through


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that came of one thing: its jobs, oldest first, with attempts and effects."""

    found: tuple[str, ...]  # "job id", "delivery", "thread", "key", "effect", "payload"
    threads: tuple[str, ...]
    deliveries: list[Kept] = msgspec.field(default_factory=list[Kept])  # those that began it
    jobs: list[Job]
    effects: list[Effect]
    is_cut: bool = False  # there is more than a story holds
    rows: list[Row] = msgspec.field(default_factory=list[Row])  # what was found, one each thread
    fit: str = "exact"  # "exact", "word" or "part"
    others: int = 0  # threads that contain it, and fit less well
    is_whole: bool = True  # False: only the newest were looked through

    def tree(self) -> Iterator[tuple[int, Job]]:
        """The jobs with their depth, each after the one that caused it."""
        known = {job.id for job in self.jobs}
        children: dict[str, list[Job]] = {}
        for job in self.jobs:
            cause = job.cause if job.cause in known and job.cause != job.id else ""
            children.setdefault(cause or "", []).append(job)
        stack = [(0, job) for job in reversed(children.get("", []))]
        while stack:
            depth, job = stack.pop()
            yield depth, job
            stack += [(depth + 1, child) for child in reversed(children.get(job.id, []))]


def joined_by(kept: Kept, jobs: Iterable[Job]) -> tuple[str, ...]:
    """Of the jobs that stand for a delivery's, those that it joined with another payload."""
    return tuple(job.id for job in jobs if any(line.cause == kept.id for line in job.joins))


def view(thing: Any) -> Any:
    """Anything the desk shows as plain JSON: moments as ISO text, payloads as what they hold."""
    match thing:
        case Kept():
            shown: dict[str, Any] = {name: getattr(thing, name) for name in thing.__struct_fields__}
            shown["answer"] = read_answer(thing.answer) if thing.answer else None
            shown["headers"] = read_headers(thing.headers)
            # A row that was changed by hand, or by another program, hides no other row of a list.
            wrong = [name for name in ("answer", "headers") if shown[name] is None]
            if unreadable := [name for name in wrong if getattr(thing, name)]:
                shown["unreadable"] = unreadable
            return {
                name: _moment(value) if is_moment(name) else view(value)
                for name, value in shown.items()
            }
        case msgspec.Struct():
            fields = {name: getattr(thing, name) for name in thing.__struct_fields__}
            return {
                name: _moment(value) if is_moment(name) else view(value)
                for name, value in fields.items()
            }
        case bytes():
            try:
                return msgspec.json.decode(thing)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                return thing.decode(errors="replace")
        case dict():
            return {str(name): view(value) for name, value in thing.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - whatever a struct holds
        case list() | tuple() | frozenset():
            return [view(item) for item in thing]  # pyright: ignore[reportUnknownVariableType] - whatever a struct holds
        case StrEnum():
            return str(thing)
        case _:
            return thing


def is_moment(name: str) -> bool:
    """Whether a field of this name holds a moment, in milliseconds."""
    return name.endswith(("_at", "_until")) or name in ("at", "until")


def _moment(ms: int | None) -> str | None:
    if not ms:
        return None
    at = moment_if(ms)
    return str(ms) if at is None else at.isoformat(timespec="milliseconds")


def payload_of(text: str | bytes, before: bytes, *, whole: bool) -> bytes:
    """The JSON a person wrote, merged into what was before unless it is the `whole`, and checked.

    What still is as the mask showed it stays as it was. What was in the job before is no new leak:
    its class may have allowed it.
    """
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    written, old = _decoded(data), _decoded(before)
    kept = _unmasked(written, _decoded(mask(before)), old)
    same: set[str] = set()
    changed: set[str] = set()
    _compare(kept, old, "", same, changed)
    guard(data, allow=frozenset(same - changed))
    if not whole and kept != old:
        if not isinstance(old, dict):
            raise DefinitionError(
                "what the job carries cannot be read here, so nothing can be merged into it: give "
                "the payload as a whole (--whole)"
            )
        if not isinstance(written, dict):
            raise DefinitionError(
                'name the fields to change as a JSON object, such as {"email": "ana@hotel.example"}'
            )
        kept = _merged(old, kept)
    if kept == written:
        return data
    data = msgspec.json.encode(kept)
    _compare(kept, old, "", same, changed)
    guard(data, allow=frozenset(same - changed))
    return data


def changed_paths(now: bytes, before: bytes) -> list[str]:
    """The paths of the fields in which two payloads differ, removed ones included."""
    return list(_differing(_decoded(now), _decoded(before), ""))


def _differing(now: Any, before: Any, path: str) -> Iterator[str]:
    if isinstance(now, dict) and isinstance(before, dict):
        new, old = cast("dict[str, Any]", now), cast("dict[str, Any]", before)
        names: list[str] = [*new, *(name for name in old if name not in new)]
        for name in names:
            step = f"{path}.{name}" if path else name
            if name in new and name in old:
                yield from _differing(new[name], old[name], step)
            else:
                yield step
    elif now != before or isinstance(now, bool) != isinstance(before, bool):
        yield path or "payload"


def _merged(before: Any, named: Any) -> Any:
    """A value with the fields that were named, at any depth; lists are replaced whole."""
    if not (isinstance(before, dict) and isinstance(named, dict)):
        return named
    old, new = cast("dict[str, Any]", before), cast("dict[str, Any]", named)
    return old | {name: _merged(old.get(name), value) for name, value in new.items()}


def _unmasked(written: Any, shown: Any, before: Any) -> Any:
    match written, shown, before:
        case str(), str(), _ if written == shown:
            return before
        case dict(), dict(), dict():
            fields = cast("dict[str, Any]", written)
            return {
                name: _unmasked(value, shown[name], before[name])
                if name in shown and name in before
                else value
                for name, value in fields.items()
            }
        case list(), list(), list() if len(cast("Any", written)) == len(cast("Any", before)):
            threes = zip(*cast("Any", (written, shown, before)), strict=True)
            return [_unmasked(*three) for three in threes]
        case _:
            return written


def _compare(now: Any, before: Any, path: str, same: set[str], changed: set[str]) -> None:
    """Sort the paths of fields, as guard() names them, by whether they are as before."""
    if now == before:
        same.add(path)
    elif isinstance(now, dict):
        old = cast("dict[str, Any]", before) if isinstance(before, dict) else {}
        for name, value in cast("dict[str, Any]", now).items():
            step = f"{path}.{name}" if path else name
            _compare(value, old.get(name), step, same, changed)
    elif isinstance(now, list):
        items = cast("list[Any]", now)
        olds = cast("list[Any]", before) if isinstance(before, list) else []
        for item, old_item in zip_longest(items, olds[: len(items)]):
            _compare(item, old_item, path, same, changed)
    else:
        changed.add(path)


def _decoded(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
