"""Headers and Fields: names with values as a caller sent them, where any name may come twice."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping

from relevo.errors import BodyError
from relevo.sensitive import HIDDEN, names_secret

FIELDS = 500
"""How many fields a form or a query may have."""

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
_STRAY = re.compile("%(?![0-9A-Fa-f]{2})")


class MissingName(KeyError):
    """A name that did not come; the sentence says where it was looked for."""

    def __str__(self) -> str:
        return str(self.args[0])


class Pairs(Mapping[str, str]):
    """Names with values, in the order they came; any name may come twice and in any case."""

    __slots__ = ("_pairs",)
    _missing = 'nothing called "{}"'

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
            raise MissingName(self._missing.format(name[:64]))
        return self._one(name, values)

    def __contains__(self, name: object) -> bool:
        wanted = str(name).lower()
        return any(each == wanted for each, _ in self._pairs)

    @abstractmethod
    def _one(self, name: str, values: list[str]) -> str:
        """The value of a name that came once or several times."""

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
    _missing = 'no header "{}"'

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
        return Headers(each for each in self._pairs if each[0] in listed and not is_secret(each[0]))

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
    _missing = 'no field "{}" in the form or the query'

    @classmethod
    def parse(cls, data: bytes) -> Fields:
        """Fields of `a=1&b=2`; what is not UTF-8 in them becomes U+FFFD."""
        return cls(form_pairs(data))

    def _one(self, name: str, values: list[str]) -> str:
        if len(values) > 1:
            raise BodyError(f"a field came {len(values)} times", code="duplicate_field")
        return values[0]


def form_pairs(data: bytes) -> list[tuple[str, str]]:
    """The names and values of `a=1&b=2` in their order, with names in the case they came in."""
    if data.count(b"&") >= FIELDS:
        raise BodyError(f"more than {FIELDS} fields", code="too_many_fields")
    parts = (part.partition(b"=") for part in data.split(b"&") if part)
    return [(_plain(name), _plain(value)) for name, _, value in parts]


def wire(text: str) -> bytes:
    """What was on the wire; text that no wire carries becomes some bytes, never an error."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def unquoted(data: bytes) -> bytes:
    """What a name or a value of a form stands for."""
    # By the decoder of Python's own escapes: with a call for each of theirs, a form of nothing else
    # keeps everybody waiting, and to join them takes a hundred bytes for every one.
    text = data.decode("latin-1").replace("+", " ").replace("\\", "\\\\")
    if "%" in text:
        text = _STRAY.sub("%25", text).replace("%", "\\x")
    return text.encode("latin-1").decode("unicode_escape").encode("latin-1")


def _plain(data: bytes) -> str:
    text = unquoted(data).decode("utf-8", "replace")
    if "\0" in text:
        raise BodyError("a field holds a NUL character", code="invalid_text")
    return text


def is_secret(name: str) -> bool:
    """Whether what goes by this name is never stored or shown."""
    return _NEVER.search(name.lower()) is not None or names_secret(name)
