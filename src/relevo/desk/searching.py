"""Searching: what is called so comes first and alone; what only contains it is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from time import monotonic
from typing import Any, Final, Literal, TypeVar, cast

import msgspec
from msgspec.structs import replace

from relevo.desk.looking import PAGE_MAX, STORY_MAX, TEXT_MAX, THREADS_MAX, Looking
from relevo.desk.views import Found, Row, Story
from relevo.errors import DefinitionError, NotFoundError
from relevo.ids import parse_id
from relevo.job import Job
from relevo.payload import mask
from relevo.store import Effect, Filter, Kept, Letterbox

T = TypeVar("T")

PATIENCE: Final = 2.0
"""Seconds to look through what no index knows, the newest first."""

GLANCE: Final = 0.15
"""Seconds of a text scan after an index has found a match: other matches are only counted."""

ROWS_MAX: Final = 200

Fit = Literal["exact", "word", "part"]
_FITS: Final[tuple[Fit, ...]] = ("exact", "word", "part")

ABOUT: Final = (
    *("customer", "customer_name", "customer_id", "client", "guest", "guest_name", "user"),
    *("user_id", "account", "account_id", "name", "email", "phone", "order", "order_id"),
)
"""The fields of a payload that tell whom it is about, the most telling first."""


class Hit(msgspec.Struct, frozen=True):
    """A row that a search has found, and how well it fits."""

    fit: Fit
    how: str
    row: Row


class Searching(Looking):
    """What a person may find by anything that belongs to it."""

    async def search(self, anything: str, *, is_masked: bool = False) -> Found:
        """The stories of an id, a key or any text, those that are called so apart from those in
        which it is a word of its own, and from those that only contain it.

        Ids, keys, threads and the ids of providers are looked up. What jobs, deliveries and effects
        carry is looked through, the newest first, for a bounded time. Whom a story is about is read
        from a masked payload, unless this desk `reveals` it and `is_masked` does not say otherwise.
        """
        text, tell = anything.strip(), _Telling(is_masked or not self.reveals)
        if not 3 <= len(text) <= TEXT_MAX:
            raise DefinitionError(f"give 3 to {TEXT_MAX} characters to look for")
        id = parse_id(text)
        if id is not None and (hit := await self._by_id(id, tell)) is not None:
            return Found(rows=[hit.row], fit="exact", how=(hit.how,))
        hits = await self._indexed(text, id, tell)
        if any(hit.how == "thread" for hit in hits):
            hits = [hit for hit in hits if hit.how == "thread"]
            return _found(hits, is_whole=True)
        more, is_whole = await self._looked_through(text, tell, GLANCE if hits else PATIENCE)
        return _found([*hits, *more], is_whole=is_whole)

    async def trace(self, anything: str, *, is_masked: bool = False) -> Story:
        """The story of what fits best: of all that is called so, or else of the one thread that
        has or contains it. Where there are several of these, their rows alone."""
        found = await self.search(anything, is_masked=is_masked)
        if not found.rows:
            text = anything.strip()
            if not found.is_whole:
                raise NotFoundError(
                    f"nothing is known of {text!r:.80}: nothing is called so, and none of the "
                    "newest jobs, deliveries and effects, which were looked through, contains it"
                )
            raise NotFoundError(
                f"nothing is known of {text!r:.80}: no job, delivery, thread, key or effect is "
                "called so, and no payload or result contains it"
            )
        threads = {row.thread: None for row in found.rows}
        chosen = threads if found.fit == "exact" or len(threads) == 1 else {}
        story = await self._story(chosen, list(found.how))
        return replace(
            story,
            rows=found.rows,
            fit=found.fit,
            others=len(found.others),
            is_whole=found.is_whole,
        )

    async def _by_id(self, id: str, tell: _Telling) -> Hit | None:
        [job] = await self.store.find([id])
        if job is not None and self.sees(job.queue):
            return tell.job("exact", "job id", job)
        [kept] = await self.store.delivery([id])
        if kept is not None and self.sees(kept.endpoint):
            return tell.kept("exact", "delivery id", kept)
        return None

    async def _indexed(self, text: str, id: str | None, tell: _Telling) -> list[Hit]:
        """What is called so, as far as an index knows."""
        came, threads, keyed = await asyncio.gather(
            self.store.deliveries(Letterbox(key=text), limit=THREADS_MAX),
            self.jobs(Filter(thread=id or text), seconds=GLANCE),
            self.jobs(Filter(key=text), seconds=GLANCE),
        )
        mine = [kept for kept in came[0] if self.sees(kept.endpoint)]
        bodies = await self.store.delivery([kept.id for kept in mine]) if mine else []
        return [
            *(tell.job("exact", "thread", job) for job in threads.jobs),
            *(tell.kept("exact", "delivery", kept) for kept in bodies if kept is not None),
            *(tell.job("exact", "key", job) for job in keyed.jobs),
        ]

    async def _looked_through(
        self, text: str, tell: _Telling, seconds: float
    ) -> tuple[list[Hit], bool]:
        """What carries a text, and whether all was looked through."""
        until = monotonic() + seconds
        parts = await asyncio.gather(
            _until(until, lambda place: self._job_hits(text, tell, place)),
            _until(until, lambda place: self._kept_hits(text, tell, place)),
            _until(until, lambda place: self._effect_hits(text, place)),
        )
        return [hit for hits, _ in parts for hit in hits], all(whole for _, whole in parts)

    async def _job_hits(
        self, text: str, tell: _Telling, place: str | None
    ) -> tuple[list[Hit], str | None]:
        where = Filter(text=text)
        jobs, more = await self.looked(where, place, PAGE_MAX, seconds=0)
        hits: list[Hit] = []
        for job in jobs:
            seen = job if self.reveals else self.masked(job)
            said = "" if seen.failure is None else f"{seen.failure.type} {seen.failure.message}"
            fit = fit_of(text, seen.payload, seen.key or "", said, seen.note)
            hits.append(tell.job(fit, "key" if job.key == text else "payload", job))
        return hits, more

    async def _kept_hits(
        self, text: str, tell: _Telling, place: str | None
    ) -> tuple[list[Hit], str | None]:
        where = Letterbox(text=text)
        came, more = await self.store.deliveries(where, cursor=place, limit=PAGE_MAX)
        mine = await self.readable(where, [kept for kept in came if self.sees(kept.endpoint)])
        full = await self.store.delivery([kept.id for kept in mine]) if mine else []
        hits: list[Hit] = []
        for kept in full:
            if kept is not None:
                body = kept.body if self.reveals else mask(kept.body) if kept.body else b""
                fit = fit_of(text, body, kept.key or "", self.told(kept.reason))
                hits.append(tell.kept(fit, "delivery", kept))
        return hits, more

    async def _effect_hits(self, text: str, place: str | None) -> tuple[list[Hit], str | None]:
        effects, more = await self.effects(text=text, cursor=place, limit=PAGE_MAX)
        hits: list[Hit] = []
        for effect in effects:
            seen = effect if self.reveals else self.masked_effect(effect)
            fit: Fit = fit_of(text, seen.result or b"", seen.key)
            hits.append(_effect_hit("exact" if effect.key == text else fit, effect))
        return hits, more

    async def _story(self, threads: dict[str, None], found: list[str]) -> Story:
        chosen = list(threads)[:THREADS_MAX]
        ids: list[str] = []
        is_cut = len(threads) > THREADS_MAX
        for thread in chosen:
            cursor = None
            while len(ids) < STORY_MAX:
                page = await self.jobs(Filter(thread=thread), cursor, PAGE_MAX)
                ids += [job.id for job in page.jobs]
                cursor = page.cursor
                if cursor is None:
                    break
            is_cut = is_cut or cursor is not None
        begun = [kept for kept in await self.store.delivery(chosen) if kept is not None]
        if begun:
            begun += await self._others(begun)
        begun = sorted(
            (kept for kept in begun if self.sees(kept.endpoint)), key=lambda kept: kept.received_at
        )
        # Of a delivery that was received in two goes the jobs may be of the first one's thread.
        ids = list(dict.fromkeys([*ids, *(id for kept in begun for id in kept.jobs)]))
        is_cut = is_cut or len(ids) > STORY_MAX
        stands = await self._stands(ids[:STORY_MAX])
        known = {job.id: job for job in stands.values()}
        jobs = [job for job in known.values() if self.sees(job.queue)]
        begun = [self._with_joined(kept, stands) for kept in begun]
        jobs.sort(key=lambda job: (job.inserted_at, job.id))
        made: dict[tuple[str, str], Effect] = {}
        for job in jobs:  # a replayed job shares the effects of the one that it repeats
            its, _ = await self.effects(job=job.id, limit=PAGE_MAX)
            made |= {(effect.job, effect.name): effect for effect in its}
        effects = sorted(made.values(), key=lambda effect: effect.created_at)
        return Story(
            found=tuple(found),
            threads=tuple(chosen),
            deliveries=begun,
            jobs=jobs,
            effects=effects,
            is_cut=is_cut,
        )

    async def _others(self, begun: Sequence[Kept]) -> list[Kept]:
        """The deliveries that came under the key of one of these with another body."""
        known = {kept.id for kept in begun}
        found: dict[str, Kept] = {}
        for kept in begun:
            if kept.differs and kept.key is not None:
                where = Letterbox(endpoint=kept.endpoint, key=kept.key)
                alike, _ = await self.store.deliveries(where, limit=PAGE_MAX)
                found |= {one.id: one for one in alike if one.generation < 0}
        return [kept for id, kept in found.items() if id not in known]


class _Telling:
    """Makes rows of what a search finds."""

    def __init__(self, is_masked: bool) -> None:
        self._is_masked = is_masked

    def job(self, fit: Fit, how: str, job: Job) -> Hit:
        row = Row(
            thread=job.thread or job.id,
            of=job.kind,
            place=job.queue,
            key=job.key,
            about=self._about(job.payload) or job.lane,
            state=job.state,
            at=job.inserted_at,
        )
        return Hit(fit, how, row)

    def kept(self, fit: Fit, how: str, kept: Kept) -> Hit:
        row = Row(
            thread=kept.thread or kept.id,
            of="delivery",
            place=kept.endpoint,
            key=kept.key,
            about=self._about(kept.body),
            state=kept.state,
            at=kept.received_at,
        )
        return Hit(fit, how, row)

    def _about(self, payload: bytes) -> str | None:
        return about(mask(payload) if payload and self._is_masked else payload)


def _effect_hit(fit: Fit, effect: Effect) -> Hit:
    row = Row(
        thread=effect.thread or effect.job,
        of=effect.name,
        place=effect.queue,
        key=effect.key,
        about=None,
        state=effect.state,
        at=effect.created_at,
    )
    return Hit(fit, "effect", row)


async def _until(
    moment: float, read: Callable[[str | None], Awaitable[tuple[list[T], str | None]]]
) -> tuple[list[T], bool]:
    """The pages of a search until a moment, one at least; and whether they were all."""
    found: list[T] = []
    place = None
    while True:
        some, place = await read(place)
        found += some
        if place is None:
            return found, True
        if monotonic() >= moment or len(found) >= ROWS_MAX:
            return found, False


def fit_of(text: str, data: bytes, *others: str) -> Fit:
    """How well a text fits what it was found in: it is a JSON value there, one of the `others`
    itself, a word of its own, or a part of one."""
    values = list(_values(data))
    if text in values or text in others:
        return "exact"
    # What is no JSON is looked at as a text.
    said = [*values, *others, *([] if values else [data.decode(errors="replace")])]
    return "word" if any(_is_word(text, each) for each in said) else "part"


def _values(data: bytes) -> Iterator[str]:
    """Every text and number in a JSON document."""
    try:
        left: list[Any] = [msgspec.json.decode(data)] if data else []
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left += cast("dict[str, Any]", value).values()
        elif isinstance(value, list):
            left += cast("list[Any]", value)
        elif isinstance(value, (str, int, float)) and not isinstance(value, bool):
            yield str(value)


def _is_word(text: str, within: str) -> bool:
    """Whether a text stands in another with neither a letter nor a digit around it."""
    at = within.find(text)
    while at >= 0:
        end = at + len(text)
        if not (within[at - 1 : at].isalnum() or within[end : end + 1].isalnum()):
            return True
        at = within.find(text, at + 1)
    return False


def about(payload: bytes) -> str | None:
    """Whom a payload is about, as far as the names of its fields tell."""
    try:
        read = msgspec.json.decode(payload) if payload else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(read, dict):
        return None
    fields = cast("dict[str, Any]", read)
    for name in ABOUT:
        value = fields.get(name)
        if isinstance(value, (str, int)) and not isinstance(value, bool) and value != "":
            return str(value)[:60]
    return None


def _found(hits: Sequence[Hit], *, is_whole: bool) -> Found:
    """One row for each thread, by the hit that fits best; the newest first."""
    best: dict[str, Hit] = {}
    for hit in hits:
        known = best.get(hit.row.thread)
        if known is None or _FITS.index(hit.fit) < _FITS.index(known.fit):
            best[hit.row.thread] = hit
    fits = {hit.fit for hit in best.values()}
    fit = next((each for each in _FITS if each in fits), "part")
    newest = sorted(best.values(), key=lambda hit: (hit.row.at, hit.row.thread), reverse=True)
    return Found(
        rows=[hit.row for hit in newest if hit.fit == fit],
        others=[hit.row for hit in newest if hit.fit != fit],
        fit=fit,
        how=tuple(dict.fromkeys(hit.how for hit in hits if hit.fit == fit)),
        is_whole=is_whole,
    )
