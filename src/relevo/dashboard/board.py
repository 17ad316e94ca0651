"""Board: what every page of the dashboard is handed, and how it reads a request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote, urlencode

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from relevo.clock import moment, stamp
from relevo.dashboard.live import Live
from relevo.dashboard.seen import Seen
from relevo.dashboard.sentences import RETOLD, counted
from relevo.dashboard.words import SPANISH
from relevo.desk import SWEEPABLE, BulkVerb, Desk, Pace, Person
from relevo.engine import Relevo
from relevo.errors import DefinitionError
from relevo.job import Job, State
from relevo.store import Effect, Filter, Kept
from relevo.web import Files, Form, Room, Web, visit_of
from relevo.web.translate import Words

LIMIT = 50
FILTERS = ("queue", "kind", "key", "lane", "park", "thread", "flow", "fingerprint", "text", "error")
MOMENTS = ("since", "until")

HERE = Path(__file__).parent
FILES = Files(HERE / "static", "/look")

room = Room(HERE / "templates", SPANISH, RETOLD)


class Board:
    """One engine, and what its watchers share."""

    def __init__(self, relevo: Relevo, web: Web) -> None:
        self.relevo = relevo
        self.web = web
        self.sweeps = web.sweeps
        self.seen = Seen(self)
        self._lives: dict[tuple[frozenset[str] | None, bool], Live] = {}

    def desk(self, request: Request) -> Desk:
        """The desk of the person who asks; it sees what they may see."""
        return request.state.desk

    def live(self, request: Request) -> Live:
        """What is going on, among what the person may see."""
        desk = self.desk(request)
        sight = desk.apps, desk.reveals
        if sight not in self._lives:
            has_budget = self.web.settings.budget is not None
            self._lives[sight] = Live(desk, self.relevo, has_budget=has_budget)
        return self._lives[sight]

    def changed(self) -> None:
        """Somebody did something: no page may show what was before."""
        for live in self._lives.values():
            live.forget()

    async def close(self) -> None:
        """Stop looking."""
        for live in self._lives.values():
            await live.close()

    def page(
        self, request: Request, template: str, /, *, status: int = 200, **context: Any
    ) -> Response:
        """A page of ours inside the common layout."""
        visit = visit_of(request)
        asked = request.url.query
        here = f"{visit.path(request.scope)}{f'?{asked}' if asked else ''}"
        # What answers a form cannot be asked for again, and so is not refreshed.
        again = visit.url(here) if request.method == "GET" else None
        words = room.words(request)
        ours = {
            "files": FILES,
            "told": told,
            "brief": partial(brief, words),
            "ask": ask,
            "part": part,
            "retold": partial(room.sentences.retold, words),
            "quoted": partial(room.sentences.quoted, words),
            "counted": partial(counted, words),
            "here_path": here,
            "here_again": again,
        }
        return room.page(request, f"{template}.html", status=status, **ours, **context)

    def away(self, request: Request, at: int) -> bytes:
        """What a page that was seen at a moment says while the store is away."""
        watch = self.relevo.watch
        told: dict[str, Any] = {"since": watch.since, "at": at, "error": watch.error}
        return bytes(room.page(request, "away.html", block="away", **told).body)

    def words(self, request: Request) -> Words:
        return room.words(request)

    def person(self, request: Request) -> Person:
        return request.state.person

    def shown(self, request: Request, job: Job) -> Job:
        """The job as this person may see it."""
        return job if self.person(request).may("reveal") else self.desk(request).masked(job)

    def shown_effect(self, request: Request, effect: Effect) -> Effect:
        may = self.person(request).may("reveal")
        return effect if may else self.desk(request).masked_effect(effect)

    def shown_delivery(self, request: Request, kept: Kept) -> Kept:
        may = self.person(request).may("reveal")
        return kept if may else self.desk(request).masked_delivery(kept)


Page: TypeAlias = Callable[[Board, Request], Awaitable[Response]]


def one(params: QueryParams | Form, name: str) -> str | None:
    """A parameter's text; None where it is empty."""
    return params.get(name, "").strip() or None


def all_of(params: QueryParams | Form, name: str) -> list[str]:
    """Every value of a parameter that may come more than once."""
    return params.all(name) if isinstance(params, Form) else params.getlist(name)


def number(params: QueryParams | Form, name: str) -> int | None:
    """A whole number; DefinitionError for anything else."""
    text = one(params, name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise DefinitionError(f"{name} is a whole number")
    return int(text)


def limit_of(params: QueryParams) -> int:
    """How many rows; the desk brings it into bounds."""
    return min(number(params, "limit") or LIMIT, 200)


def filter_of(params: QueryParams | Form) -> Filter:
    """The jobs that a query means."""
    states = [state for state in all_of(params, "state") if state]
    wrong = set(states) - set(State)
    if wrong:
        raise DefinitionError(f"no job has the state {min(wrong)!r:.40}: {', '.join(State)}")
    fields = {name: one(params, name) for name in FILTERS}
    since, until = (when(params, name) for name in MOMENTS)
    return Filter(states=frozenset(map(State, states)), since=since, until=until, **fields)


def when(params: QueryParams | Form, name: str) -> int | None:
    """A moment as a link says it, in milliseconds, or as a person picks it, in UTC."""
    text = one(params, name)
    if text is None or "-" not in text:
        return number(params, name)
    try:
        return stamp(datetime.fromisoformat(text).replace(tzinfo=UTC))
    except ValueError:
        raise DefinitionError(f"{name} is a moment such as 2027-01-31T09:00") from None


def picked(ms: int | None) -> str:
    """A moment as a field of a form holds it."""
    return "" if ms is None else moment(ms).strftime("%Y-%m-%dT%H:%M")


def verb_of(text: str | None) -> BulkVerb:
    """What is done to many jobs; retry unless it is said."""
    for verb in SWEEPABLE:
        if verb == (text or "retry"):
            return verb
    raise DefinitionError("many jobs are retried, cancelled or discarded")


def pace_of(filled: Form) -> Pace:
    """How far and how fast a change of many goes."""
    return Pace(
        limit=number(filled, "limit"), rate=one(filled, "rate"), canary=number(filled, "canary")
    ).checked()


def query_of(where: Filter, **more: Any) -> str:
    """The query that means these jobs."""
    pairs = [("state", str(state)) for state in State if state in where.states]
    pairs += [(name, value) for name in FILTERS if (value := getattr(where, name)) is not None]
    pairs += [(name, str(ms)) for name in MOMENTS if (ms := getattr(where, name)) is not None]
    pairs += [(name, str(value)) for name, value in more.items() if value is not None]
    return urlencode(pairs, errors="replace")


def more_of(request: Request, cursor: str | None) -> str | None:
    """Where the next page is, the rest of the question being the same."""
    if cursor is None:
        return None
    pairs = [pair for pair in request.query_params.multi_items() if pair[0] != "cursor"]
    return f"?{urlencode([*pairs, ('cursor', cursor)], errors='replace')}"


def back_to(form: Form, otherwise: str) -> str:
    """Where the person came from, if that is a page of ours."""
    place = one(form, "back") or otherwise
    is_ours = place.startswith("/") and not place.startswith("//") and place.isprintable()
    return place if is_ours and "\\" not in place else otherwise


def ask(pairs: dict[str, str]) -> str:
    """Names and values as they stand in an address; no text is too odd for it."""
    return urlencode(pairs, errors="replace")


def part(text: str) -> str:
    """One step of a path."""
    return quote(text, safe="", errors="replace")


def told(data: bytes | None) -> str:
    """JSON in one line; a text without its quotes."""
    if data is None:
        return ""
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return data.decode(errors="replace")
    return value if isinstance(value, str) else data.decode(errors="replace")


def brief(words: Words, count: int) -> str:
    """A number that fits on a card."""
    if count < 100_000:
        return words.number(count)
    if count < 1_000_000:
        return f"{count // 1_000} k"
    return f"{words.number(count / 1_000_000, ',.1f')} M"
