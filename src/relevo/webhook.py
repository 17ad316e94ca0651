"""Delivery, one HTTP call exactly as it arrived, and Answer, what its caller gets.

Nothing of a body is parsed before somebody asks for it: signatures are over raw bytes, and whoever
cannot sign does not get to feed a parser. No error and no repr here carries a secret or a body.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import datetime
from functools import cached_property
from typing import Any, Protocol, cast

import msgspec

from relevo.errors import BodyError, DefinitionError, MisuseError
from relevo.ids import KeyPart, new_id
from relevo.pairs import Fields, Headers, is_secret, unquoted, wire
from relevo.sensitive import HIDDEN
from relevo.strictjson import parse_json

FORM = "application/x-www-form-urlencoded"

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_OURS = frozenset({"connection", "content-length", "transfer-encoding"})


class Rules(Protocol):
    """What a source knows of its deliveries."""

    @property
    def json_field(self) -> str:
        """The field of a form that holds the JSON; "" if the body itself is JSON."""
        ...

    def id_of(self, delivery: Delivery) -> KeyPart: ...

    def type_of(self, delivery: Delivery) -> str: ...

    def attempt_of(self, delivery: Delivery) -> int: ...


VERIFIED_BY = "relevo-verified-by"
"""The header, among those that are kept, that names the secret which verified a delivery."""


TRACEPARENT = "relevo-traceparent"
"""The header, among those that are kept, that names the span of a call at its endpoint."""


class Delivery(msgspec.Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """One HTTP call exactly as it arrived."""

    path: str
    method: str = "POST"
    query: str = ""  # raw, a byte for a character, without the question mark
    headers: Headers = msgspec.field(default_factory=Headers)
    body: bytes = b""
    received_at: datetime
    id: str = msgspec.field(default_factory=new_id)
    base: str = ""  # of the public URL, without a path: RELEVO_PUBLIC_URL
    rules: Rules | None = None  # of the endpoint's source
    verified_by: str = ""  # the secret that fits its signature, as `1 of 2, 3f9a`
    traceparent: str = ""  # of the span of this call, where tracing is on

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
        if not isinstance(self._tree, dict):
            raise BodyError("the body is JSON, but no object", code="not_an_object")
        return cast("dict[str, Any]", self._tree)

    @cached_property
    def items(self) -> list[dict[str, Any]]:
        """The objects of a body that is a JSON array; BodyError if it is no such thing."""
        tree: list[Any] = cast("list[Any]", self._tree) if isinstance(self._tree, list) else [None]
        if not all(isinstance(each, dict) for each in tree):
            raise BodyError("the body is no JSON array of objects", code="not_an_array")
        return tree

    @cached_property
    def _tree(self) -> Any:
        field = "" if self.rules is None else self.rules.json_field
        if not field or self.media_type != FORM:
            return parse_json(self.body)
        return parse_json(self.form[field].encode())

    @property
    def url(self) -> str:
        """The public URL of this call: RELEVO_PUBLIC_URL, the path and the query as they came.

        Never made of the Host header, which the caller chooses; MisuseError if it is not set.
        """
        if not self.base:
            raise MisuseError(
                "set RELEVO_PUBLIC_URL, such as https://api.example.com: no URL is known"
            )
        return self.base + self.path + (f"?{self.query}" if self.query else "")

    @property
    def event_id(self) -> str:
        """What the source takes for the id of this delivery, the same when it is sent again."""
        return str(self._rules("event_id").id_of(self))

    @property
    def event_type(self) -> str:
        """The type of the event, such as "payment_intent.succeeded" or "pull_request.opened"."""
        return self._rules("event_type").type_of(self)

    @property
    def attempt(self) -> int:
        """Which attempt of the provider this is, as far as it says; the first is 1."""
        return 1 if self.rules is None else self.rules.attempt_of(self)

    def _rules(self, what: str) -> Rules:
        if self.rules is None:
            raise MisuseError(
                f"delivery.{what} is what a source knows: give the webhook source=sources.…(…)"
            )
        return self.rules

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
        _status(self.status)
        if self.body and self.status in (204, 304):  # its caller would take it for the next answer
            raise DefinitionError(f"an answer with {self.status} has no body: leave it out")
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


def answer_from(given: Any, usual: Answer) -> Answer:
    """The answer that a webhook's function gave: an Answer, JSON, a text, or (status, body).

    DefinitionError for anything else, before anything of the delivery is stored.
    """
    match given:
        case None:
            return usual
        case Answer():
            return _whole(given)
        case str():
            return Answer.text(given)
        case dict() | list():
            return Answer.json(cast("Any", given))
        case (int() as status, body) if not isinstance(status, bool):
            answer = answer_from(body, Answer(200, b""))
            return Answer(_status(status), _whole(answer).body, answer.headers)
        case _:
            raise DefinitionError(
                f"the webhook's function returned {type(given).__name__}: return None, a dict or a "
                "list (JSON), a text, (status, body) or an Answer"
            )


def read_answer(data: bytes) -> Answer | None:
    """The answer of a stored delivery; None where it cannot be read any more."""
    try:
        return msgspec.msgpack.decode(data, type=Answer)
    except (msgspec.DecodeError, UnicodeDecodeError, DefinitionError):
        return None


def read_headers(data: bytes) -> list[tuple[str, str]] | None:
    """The headers of a stored delivery; None where they cannot be read any more."""
    try:
        return msgspec.json.decode(data, type=list[tuple[str, str]])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _status(status: Any) -> int:
    if not isinstance(status, int) or not 200 <= status <= 599:
        raise DefinitionError(f"{status} is not a status to answer with: use 200 to 599")
    return status


def _whole(answer: Answer) -> Answer:
    """The answer itself, if it can be stored and sent."""
    if type(answer.body) is not bytes:
        raise DefinitionError(
            f"Answer's body is bytes, not {type(answer.body).__name__}: write Answer.text(…) or "
            "Answer.json(…)"
        )
    return answer
