"""Delivery, one HTTP call exactly as it arrived, and Answer, what its caller gets.

Nothing of a body is parsed before somebody asks for it: signatures are over raw bytes, and whoever
cannot sign does not get to feed a parser. No error and no repr here carries a secret or a body.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import datetime
from functools import cached_property
from typing import Any, cast

import msgspec

from relevo.errors import BodyError, DefinitionError
from relevo.ids import new_id
from relevo.pairs import Fields, Headers, is_secret, unquoted, wire
from relevo.sensitive import HIDDEN
from relevo.strictjson import parse_json

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_OURS = frozenset({"connection", "content-length", "transfer-encoding"})


class Delivery(msgspec.Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """One HTTP call exactly as it arrived."""

    path: str
    method: str = "POST"
    query: str = ""  # raw, a byte for a character, without the question mark
    headers: Headers = msgspec.field(default_factory=Headers)
    body: bytes = b""
    received_at: datetime
    id: str = msgspec.field(default_factory=new_id)

    def header(self, name: str) -> str | None:
        """A header's value, whatever the case of its name."""
        return self.headers.get(name)

    @property
    def media_type(self) -> str:
        """The Content-Type without its parameters, in lower case."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @cached_property
    def json(self) -> dict[str, Any]:
        """The body's JSON object, parsed strictly, once; BodyError if it is no such thing."""
        tree = parse_json(self.body)
        if not isinstance(tree, dict):
            raise BodyError("the body is JSON, but no object", code="not_an_object")
        return cast("dict[str, Any]", tree)

    @cached_property
    def form(self) -> Fields:
        """The fields of a form-encoded body."""
        return Fields.parse(self.body)

    @cached_property
    def params(self) -> Fields:
        """The fields of the query."""
        return Fields.parse(wire(self.query))

    def shown_query(self, hide: Collection[str] = ()) -> str:
        """The query for logs and for the store, with the values of secrets hidden."""
        hidden = {name.lower() for name in hide}
        return "&".join(_shown(part, hidden) for part in self.query.split("&"))

    def __repr__(self) -> str:
        query = f"?{ascii(self.shown_query())[1:-1]}" if self.query else ""
        place = f"{ascii(self.method)[1:-1]} {ascii(self.path)[1:-1]}{query}"
        return f"<Delivery {self.id} {place:.300} {len(self.body)} bytes {self.headers!r}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        # Tracebacks of rich ask for this one first, and would print the body and the query.
        return [("id", self.id), ("path", self.path), ("headers", self.headers)]


def _shown(part: str, hidden: set[str]) -> str:
    name, equals, value = part.partition("=")
    plain = unquoted(wire(name)).decode("utf-8", "replace").lower()
    must_hide = plain in hidden or is_secret(plain)
    return f"{name}={HIDDEN}" if equals and value and must_hide else part


class Answer(msgspec.Struct, frozen=True):
    """What a caller gets. It is stored, and repeated to whoever delivers the same thing again."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = msgspec.field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        if not 200 <= self.status <= 599:
            raise DefinitionError(f"{self.status} is not a status to answer with: use 200 to 599")
        for name, value in self.headers.items():
            # A line break smuggled into a value would begin a header, or an answer, of its own.
            if not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
                raise DefinitionError(f"{name!r:.80} cannot be a header: mind control characters")
            if name.lower() in _OURS:
                raise DefinitionError(f"{name} is set by the server: leave it out of the answer")

    @classmethod
    def json(cls, value: Any, status: int = 200) -> Answer:
        """An answer in JSON."""
        return cls(status, msgspec.json.encode(value), {"content-type": "application/json"})

    @classmethod
    def text(cls, text: str, status: int = 200) -> Answer:
        """An answer in plain text, which no browser takes for a page."""
        plain = {"content-type": "text/plain; charset=utf-8", "x-content-type-options": "nosniff"}
        return cls(status, text.encode(), plain)
