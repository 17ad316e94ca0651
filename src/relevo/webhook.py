"""Delivery, one HTTP call exactly as it arrived, and Answer, what its caller gets.

Nothing of a body is parsed before somebody asks for it: signatures are over raw bytes, and whoever
cannot sign does not get to feed a parser. No error and no repr here carries a secret or a body.
"""

from __future__ import annotations

import codecs
import gc
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from functools import cached_property
from typing import Any, cast

import msgspec

from relevo.errors import DefinitionError, RelevoError
from relevo.ids import new_id
from relevo.sensitive import HIDDEN, names_secret
from relevo.values import DEPTH

FIELDS = 500
"""How many fields a form or a query may have."""

VALUES = 100_000
"""How many values a JSON body may hold; while more are made of it, everybody else would wait."""

KEPT = frozenset(
    {
        "ce-id",
        "ce-source",
        "ce-specversion",
        "ce-subject",
        "ce-time",
        "ce-type",
        "content-type",
        "date",
        "idempotency-key",
        "svix-id",
        "svix-timestamp",
        "traceparent",
        "tracestate",
        "upstash-message-id",
        "upstash-retried",
        "upstash-schedule-id",
        "upstash-topic-name",
        "user-agent",
        "webhook-id",
        "webhook-timestamp",
        "x-github-delivery",
        "x-github-event",
        "x-request-id",
    }
)
"""The headers that are stored and shown. What is not listed is dropped, so that nobody has to think
of every name under which somebody sends a password."""

_NEVER = re.compile(r"auth|cookie|credential|hmac|password|secret|signature|token", re.ASCII)
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_OURS = frozenset({"connection", "content-length", "transfer-encoding"})
_STRAY = re.compile("%(?![0-9A-Fa-f]{2})")
_SURROGATE = re.compile("[\ud800-\udfff]")
_TOO_DEEP = f"nested more than {DEPTH} deep"
_TOO_MANY = f"more than {VALUES:,} values"
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1


class BodyError(RelevoError):
    """What arrived cannot be read as what it should be. `code` may be told to the caller."""

    def __init__(self, message: str, *, code: str = "invalid_body") -> None:
        super().__init__(message)
        self.code = code


# Names with values


class Pairs(Mapping[str, str]):
    """Names with values, in the order they came; any name may come twice and in any case."""

    __slots__ = ("_pairs",)

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self._pairs = tuple([(name.lower(), value) for name, value in pairs])

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        return self._pairs

    def all(self, name: str) -> list[str]:
        """Every value of a name."""
        wanted = name.lower()
        return [value for each, value in self._pairs if each == wanted]

    def __getitem__(self, name: str) -> str:
        if not (values := self.all(name)):
            raise KeyError(name)
        return self._one(name, values)

    def __contains__(self, name: object) -> bool:
        wanted = str(name).lower()
        return any(each == wanted for each, _ in self._pairs)

    def _one(self, name: str, values: list[str]) -> str:
        raise NotImplementedError

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for name, _ in self._pairs))

    def __len__(self) -> int:
        return len({name for name, _ in self._pairs})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(ascii, self))})"


class Headers(Pairs):
    """Headers; one that came several times reads as one, joined by commas, as HTTP defines it.

    Values are as on the wire, a byte for a character.
    """

    __slots__ = ()

    def __init__(self, pairs: Iterable[tuple[str | bytes, str | bytes]] = ()) -> None:
        # Once for every delivery, so without a call for each header.
        self._pairs = tuple(
            [
                (
                    (name if isinstance(name, str) else str(name, "latin-1")).lower(),
                    value if isinstance(value, str) else str(value, "latin-1"),
                )
                for name, value in pairs
            ]
        )

    @classmethod
    def from_asgi(cls, pairs: Iterable[tuple[bytes, bytes]]) -> Headers:
        """Those of an ASGI scope, whose names are in lower case already.

        White space around a value is no part of it, and not every server takes it off.
        """
        return cls.ready(
            [(str(name, "latin-1"), str(value.strip(b" \t"), "latin-1")) for name, value in pairs]
        )

    @classmethod
    def ready(cls, pairs: Iterable[tuple[str, str]]) -> Headers:
        """Those that are text, with names in lower case."""
        made = cls.__new__(cls)
        made._pairs = tuple(pairs)
        return made

    def _one(self, name: str, values: list[str]) -> str:
        return ", ".join(values)

    def kept(self, also: Collection[str] = ()) -> Headers:
        """Those that may be stored. Asking for a signature, a cookie or a login does not help."""
        listed = KEPT.union(name.lower() for name in also)
        return Headers(
            each for each in self._pairs if each[0] in listed and not _is_secret(each[0])
        )

    def replaced(self, headers: Mapping[str, str]) -> Headers:
        """The same with these instead of those of the same names."""
        new = Headers(headers.items())
        return Headers([*(each for each in self._pairs if each[0] not in new), *new.pairs])

    def __repr__(self) -> str:
        pairs = ((name, value[:200] if name in KEPT else HIDDEN) for name, value in self._pairs)
        return f"Headers({', '.join(f'{name!a}: {value!a}' for name, value in pairs)})"


class Fields(Pairs):
    """The fields of a form or a query.

    Reading one that came twice is an error: readers differ on which one counts, and an attacker
    picks readers that do.
    """

    __slots__ = ()

    @classmethod
    def parse(cls, data: bytes) -> Fields:
        """Fields of `a=1&b=2`; what is not UTF-8 in them becomes U+FFFD."""
        if data.count(b"&") >= FIELDS:
            raise BodyError(f"more than {FIELDS} fields", code="too_many_fields")
        parts = (part.partition(b"=") for part in data.split(b"&") if part)
        return cls((_plain(name), _plain(value)) for name, _, value in parts)

    def _one(self, name: str, values: list[str]) -> str:
        if len(values) > 1:
            raise BodyError(f"a field came {len(values)} times", code="duplicate_field")
        return values[0]


def wire(text: str) -> bytes:
    """What was on the wire; text that no wire carries becomes some bytes, never an error."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _unquoted(data: bytes) -> bytes:
    # By the decoder of Python's own escapes: with a call for each of theirs, a form of nothing else
    # keeps everybody waiting, and to join them takes a hundred bytes for every one.
    text = data.decode("latin-1").replace("+", " ").replace("\\", "\\\\")
    if "%" in text:
        text = _STRAY.sub("%25", text).replace("%", "\\x")
    return text.encode("latin-1").decode("unicode_escape").encode("latin-1")


def _plain(data: bytes) -> str:
    text = _unquoted(data).decode("utf-8", "replace")
    if "\0" in text:
        raise BodyError("a field holds a NUL character", code="invalid_text")
    return text


def _is_secret(name: str) -> bool:
    return _NEVER.search(name.lower()) is not None or names_secret(name)


# JSON


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise BodyError("a key stands twice in one object", code="duplicate_key")
    return found


def _integer(text: str) -> int:
    if len(text) > 20 or not _SMALLEST <= (number := int(text)) <= _LARGEST:
        raise BodyError("an integer of more than 64 bit", code="invalid_number")
    return number


def _number(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise BodyError("a number out of range", code="invalid_number")
    return number


def _constant(text: str) -> float:
    raise BodyError("NaN or infinity, which JSON does not have", code="invalid_number")


_decode = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_int=_integer,
    parse_float=_number,
    parse_constant=_constant,
).decode


def parse_json(body: bytes) -> Any:
    """The value of strict JSON in UTF-8; BodyError with a code for everything else.

    Refused, because some reader further on would see something else or fail: a key twice in an
    object, numbers out of range, depth over 64, NUL, half a surrogate pair, BOM, UTF-16. And more
    than 100,000 values.
    """
    if len(body) <= VALUES:
        return _parse(body)
    _check_crowd(body)
    # What is made of a body is no garbage: to look through all of it again and again, as there is
    # more and more of it, takes several times as long as to read it.
    is_on = gc.isenabled()
    gc.disable()
    try:
        return _parse(body)
    finally:
        if is_on:
            gc.enable()


def _parse(body: bytes) -> Any:
    if (tree := _quickly(body)) is not None:
        return tree
    if not body.strip(b" \t\r\n"):
        raise BodyError("the body is empty", code="empty_body")
    if body.startswith(codecs.BOM_UTF8) or b"\0" in body[:4]:
        raise BodyError("JSON is UTF-8 without a byte order mark", code="not_utf8")
    try:
        tree = _decode(body.decode())
    except UnicodeDecodeError:
        reason, code = "the body is not UTF-8", "not_utf8"
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        reason, code = f"the body is not JSON: {error.msg} ({where})", "not_json"
    except RecursionError:
        reason, code = _TOO_DEEP, "too_deep"
    else:
        # A body of few brackets cannot be deep, and only escapes can spell what is no text.
        if body.count(b"[") + body.count(b"{") > DEPTH or b"\\u" in body:
            _look(tree)
        return tree
    # Out here, so that the error does not drag along one that quotes the body.
    raise BodyError(reason, code=code)


def _check_crowd(body: bytes) -> None:
    """Refuse a crowd of values by what stands before each of them, before one of them is made."""
    if body.count(b",") + body.count(b"[") + body.count(b"{") < VALUES:
        return  # wherever they stand
    bare = _without_escapes(body)
    if bare.count(b'"') > 4 * VALUES:  # a text is a value, or the key of one
        raise BodyError(_TOO_MANY, code="too_many_values")
    bare = b"".join(bare.split(b'"')[::2])  # without what stands in texts
    commas, openings = bare.count(b","), bare.count(b"[") + bare.count(b"{")
    if commas + openings < VALUES:
        return
    if openings > DEPTH * (commas + 1):  # what opens without a comma between opens inside
        raise BodyError(_TOO_DEEP, code="too_deep")
    raise BodyError(_TOO_MANY, code="too_many_values")


def _quickly(body: bytes) -> Any:
    """The value if it is surely strict; None sends it the long way, which says what is wrong.

    msgspec is as strict and several times faster, but for three things: it takes integers of any
    length, NUL, and the last of two equal keys. But for those escaped there are two quotes to a
    text, be it a key or a value; so fewer texts in the value than pairs of quotes, and a key came
    twice.
    """
    if b"\\u0000" in body:
        return None
    try:
        tree = _swift(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    texts = depth = 0
    level: list[Any] = [tree]
    while level:
        depth += 1
        below: list[Any] = []
        for value in level:
            if value.__class__ is str:
                texts += 1
            elif value.__class__ is dict:
                texts += len(value)
                below.extend(value.values())
            elif value.__class__ is list:
                below.extend(value)
            elif value.__class__ is int and not _SMALLEST <= value <= _LARGEST:
                return None
        level = below
    quotes = (_without_escapes(body) if b"\\" in body else body).count(b'"')
    return tree if depth <= DEPTH and 2 * texts == quotes else None


def _without_escapes(body: bytes) -> bytes:
    """JSON in which every quote begins or ends a text."""
    return body.replace(b"\\\\", b"").replace(b'\\"', b"")


_swift = msgspec.json.Decoder().decode


def _look(tree: Any) -> None:
    level: list[Any] = [tree]
    depth = 0
    while level:
        depth += 1
        below: list[Any] = []
        for value in level:
            if isinstance(value, str):
                _look_at(value)
            elif isinstance(value, dict | list):
                if depth > DEPTH:
                    raise BodyError(_TOO_DEEP, code="too_deep")
                below += cast("Iterable[Any]", value)
                below += cast("dict[str, Any]", value).values() if isinstance(value, dict) else ()
        level = below


def _look_at(text: str) -> None:
    if "\0" in text or (not text.isascii() and _SURROGATE.search(text)):
        raise BodyError("NUL, or half of a surrogate pair, is not text", code="invalid_text")


# What came, and what goes back


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

    def trimmed(self, *, keep: Collection[str] = (), hide: Collection[str] = ()) -> Delivery:
        """The same as it may be stored: the listed headers, the query without secrets, the body.

        `hide` names what a scheme knows to be secret under an innocent name.
        """
        also = {name.lower() for name in keep} - {name.lower() for name in hide}
        headers, query = self.headers.kept(also), self.shown_query(hide)
        return msgspec.structs.replace(self, headers=headers, query=query)

    def __repr__(self) -> str:
        query = f"?{ascii(self.shown_query())[1:-1]}" if self.query else ""
        place = f"{ascii(self.method)[1:-1]} {ascii(self.path)[1:-1]}{query}"
        return f"<Delivery {self.id} {place:.300} {len(self.body)} bytes {self.headers!r}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        # Tracebacks of rich ask for this one first, and would print the body and the query.
        return [("id", self.id), ("path", self.path), ("headers", self.headers)]


def _shown(part: str, hidden: set[str]) -> str:
    name, equals, value = part.partition("=")
    plain = _unquoted(wire(name)).decode("utf-8", "replace").lower()
    is_secret = plain in hidden or _is_secret(plain)
    return f"{name}={HIDDEN}" if equals and value and is_secret else part


class Answer(msgspec.Struct, frozen=True):
    """What a caller gets. It is stored, and repeated to whoever delivers the same thing again."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = msgspec.field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        if not 200 <= self.status <= 599:
            raise DefinitionError(f"{self.status} is no status to answer with: use 200 to 599")
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
