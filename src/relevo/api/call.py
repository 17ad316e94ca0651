"""Call: one line of the API's table; what it takes and gives is read from annotations."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    TypeVar,
    get_type_hints,
)
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import Meta, Struct
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from relevo.desk import ACTIONS, Desk, Edited, Person, RecurringView, Role, view
from relevo.desk.sweeps import Sweeps
from relevo.errors import NotAllowed
from relevo.job import Job
from relevo.store import Effect, Kept
from relevo.web import visit_of
from relevo.web.forms import kind_of, read_body

if TYPE_CHECKING:
    from relevo.engine import Relevo

T = TypeVar("T")
K = TypeVar("K", bound=Kept)

Limit = Annotated[int, Meta(ge=1, le=200, description="How many at most.")]
Note = Annotated[str, Meta(max_length=1_000, description="Why; it is written down with the act.")]
Why = Annotated[Note, Meta(min_length=1)]
"""A note that must not be missing."""
Text = Annotated[str, Meta(min_length=1, max_length=500)]
Cursor = Annotated[str, Meta(max_length=1_000, description="Where the page before this one ended.")]

_PLACE = re.compile(r"\{(\w+)(:path)?\}")


class Page(Struct, Generic[T], frozen=True, kw_only=True):
    """Some of many, and where the next page starts."""

    items: list[T]
    cursor: str | None = None


class Asked(Struct, forbid_unknown_fields=True):
    """What a call takes: its path's names, and for the rest its query or its body."""


class Caller(NamedTuple):
    """Who calls, and the desk they are led to."""

    desk: Desk
    person: Person
    relevo: Relevo
    sweeps: Sweeps

    def job(self, job: Job) -> Job:
        """The job as this person may see it."""
        return job if self.person.may("reveal") else self.desk.masked(job)

    def edited(self, edited: Edited) -> Edited:
        return edited if self.person.may("reveal") else self.desk.masked_edited(edited)

    def effect(self, effect: Effect) -> Effect:
        return effect if self.person.may("reveal") else self.desk.masked_effect(effect)

    def delivery(self, kept: K) -> K:
        return kept if self.person.may("reveal") else self.desk.masked_delivery(kept)

    def recurring(self, seen: RecurringView) -> RecurringView:
        return seen if self.person.may("reveal") else self.desk.masked_recurring(seen)


Function = Callable[[Caller, Any], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Call:
    """`Call("GET", "/jobs/{id}", "look", show)`: the action says which role it needs."""

    verb: Literal["GET", "POST", "PATCH"]
    path: str
    action: str
    function: Function

    @property
    def role(self) -> Role:
        return ACTIONS[self.action]

    @property
    def takes(self) -> type[Asked]:
        return self._hints()["ask"]

    @property
    def gives(self) -> Any:
        return self._hints()["return"]

    @property
    def says(self) -> str:
        return inspect.getdoc(self.function) or ""

    @property
    def subject(self) -> str:
        return self.path.split("/")[1]

    @property
    def name(self) -> str:
        """One that no other call has."""
        name = self.function.__name__
        return f"{name}_{self.subject}" if "<locals>" in self.function.__qualname__ else name

    @property
    def places(self) -> list[str]:
        """The names in the path."""
        return [found[1] for found in _PLACE.finditer(self.path)]

    @property
    def plain_path(self) -> str:
        return "/api" + _PLACE.sub(r"{\1}", self.path)

    def _hints(self) -> dict[str, Any]:
        return get_type_hints(self.function, include_extras=True)

    async def __call__(self, request: Request) -> Response:
        """Check the role, read what was asked, answer."""
        visit = visit_of(request)
        if visit.person is None or not visit.person.may(self.action):
            name = (
                "nobody" if visit.person is None else f"{visit.person.name} ({visit.person.role})"
            )
            raise NotAllowed(f"{name} may not do this: it needs the role {self.role}")
        ask = await self._read(request)
        caller = Caller(visit.desk, visit.person, visit.web.relevo, visit.web.sweeps)
        answer = await self.function(caller, ask)
        return Response(_encoded(answer), media_type="application/json")

    async def _read(self, request: Request) -> Asked:
        is_query = self.verb == "GET"
        fields = _query(request, self.takes) if is_query else await _json(request)
        clash = sorted(set(fields) & set(self.places))
        if clash:
            raise HTTPException(422, f"{clash[0]} is said by the path")
        try:
            return msgspec.convert(
                fields | dict(request.path_params), self.takes, strict=not is_query
            )
        except msgspec.ValidationError as error:
            raise HTTPException(400 if is_query else 422, f"{error}") from error


def _query(request: Request, takes: type[Asked]) -> dict[str, Any]:
    if not _is_unicode(request.scope.get("query_string", b"")):
        raise HTTPException(400, "the query is no UTF-8")
    lists = {field.name for field in msgspec.structs.fields(takes) if "tuple[" in str(field.type)}
    fields: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name in lists:
            fields.setdefault(name, []).extend(part for part in value.split(",") if part)
        elif name in fields:
            raise HTTPException(400, f"{name!r:.60} is said twice")
        else:
            fields[name] = value
    return fields


def _is_unicode(query: bytes) -> bool:
    """Whether what is percent-encoded in a query is UTF-8, as it will be read."""
    try:
        unquote_to_bytes(query).decode()
    except UnicodeDecodeError:
        return False
    return True


async def _json(request: Request) -> dict[str, Any]:
    body = await read_body(request.receive)
    if not body:
        return {}
    if kind_of(request) != "application/json":
        raise HTTPException(415, "send JSON: Content-Type: application/json")
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.ValidationError as error:
        raise HTTPException(422, f"send an object: {error}") from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise HTTPException(400, f"the body is no JSON: {error}") from error


def _encoded(answer: Any) -> bytes:
    shown = view(answer)
    try:
        return msgspec.json.encode(shown)
    except UnicodeEncodeError:
        # Keys and notes may hold half a character; the standard library escapes it.
        return json.dumps(shown).encode()
