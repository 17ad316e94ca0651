"""What the desk shows and takes back: stories, plain JSON, payloads behind their masks."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, cast

import msgspec

from relevo.clock import moment
from relevo.job import Job
from relevo.payload import guard, mask
from relevo.store import Effect


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that came of one thing: its jobs, oldest first, with attempts and effects."""

    found: tuple[str, ...]  # where the text was: "job id", "thread", "key", "effect", "payload"
    threads: tuple[str, ...]
    jobs: list[Job]
    effects: list[Effect]
    is_cut: bool = False  # there is more than a story holds

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


def view(thing: Any) -> Any:
    """Anything the desk shows as plain JSON: moments as ISO text, payloads as what they hold."""
    match thing:
        case msgspec.Struct():
            fields = {name: getattr(thing, name) for name in thing.__struct_fields__}
            return {
                name: _moment(value) if _is_moment(name) else view(value)
                for name, value in fields.items()
            }
        case bytes():
            try:
                return msgspec.json.decode(thing)
            except msgspec.DecodeError:
                return thing.decode(errors="replace")
        case dict():
            return {str(name): view(value) for name, value in thing.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - whatever a struct holds
        case list() | tuple() | frozenset():
            return [view(item) for item in thing]  # pyright: ignore[reportUnknownVariableType] - whatever a struct holds
        case StrEnum():
            return str(thing)
        case _:
            return thing


def _is_moment(name: str) -> bool:
    return name.endswith("_at") or name in ("at", "lease_until")


def _moment(ms: int | None) -> str | None:
    return moment(ms).isoformat(timespec="milliseconds") if ms else None


def payload_of(text: str | bytes, before: bytes) -> bytes:
    """The JSON a person wrote, checked; what still is as the mask showed it stays as it was."""
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    guard(data)
    written = msgspec.json.decode(data)
    kept = _unmasked(written, _decoded(mask(before)), _decoded(before))
    if kept == written:
        return data
    data = msgspec.json.encode(kept)
    guard(data)
    return data


def _unmasked(written: Any, shown: Any, before: Any) -> Any:
    if isinstance(written, str) and written == shown:
        return before
    if isinstance(written, dict) and isinstance(before, dict):
        fields = cast("dict[str, Any]", written)
        return {
            name: _unmasked(value, shown[name], before[name])
            if name in shown and name in before
            else value
            for name, value in fields.items()
        }
    if isinstance(written, list) and isinstance(before, list):
        items, olds = cast("list[Any]", written), cast("list[Any]", before)
        if len(items) == len(olds):
            return [_unmasked(*three) for three in zip(items, shown, olds, strict=True)]
    return cast("Any", written)


def _decoded(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return None
