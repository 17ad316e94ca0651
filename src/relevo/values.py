"""What JSON can say of a value, and what to send instead of what it cannot.

JSON bends what it cannot say: NaN becomes null, bytes become text, a set a list. The checks refuse
such values before they are encoded.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import NoneType
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

from relevo import sensitive

LIMIT = 65_536
"""The most bytes of JSON that travel; what is bigger belongs in storage."""

DEPTH = 64
"""The most objects and lists inside one another, the outermost included."""

TOO_BIG = f"more than {LIMIT:,} bytes of JSON: store it and send its id, or a signed storage URL"
TOO_DEEP = f"nested more than {DEPTH} deep, or containing itself: send it flat, or by id"

_PLAIN_KEY = re.compile(r"[^\W\d][\w-]{0,63}")


def path_of(trail: Iterable[str | int]) -> str:
    """`customer.cards[0].number`; a key that is itself data stays out of it."""
    path = ""
    for step in trail:
        if isinstance(step, int):
            path += f"[{step}]"
        elif _PLAIN_KEY.fullmatch(step) and not any(sensitive.leaks(step)):
            path += f".{step}" if path else step
        else:
            path += "[…]"
    return path


class Refused(Exception):
    """Why a value cannot travel; its path is gathered on the way out, the last step first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.trail: list[str | int] = []

    @property
    def path(self) -> str:
        return path_of(reversed(self.trail))


class Walk:
    """One walk through a message: what is left of LIMIT, and whether a key names a secret.

    The limit is kept while walking: a list that holds one list twice, which holds one list twice …
    has no end that an encoder could reach.
    """

    __slots__ = ("left", "suspect")

    def __init__(self) -> None:
        self.left = LIMIT
        self.suspect = False

    def spend(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise Refused(TOO_BIG)

    def key(self, key: Any) -> None:
        if not isinstance(key, str):
            raise Refused(f"a key is {type(key).__name__}, and JSON's are text; send str(key)")
        self.spend(len(key))
        if sensitive.names_secret(key):
            self.suspect = True


Check: TypeAlias = Callable[[Any, Walk, int], None]
"""Refuses a value that JSON would bend; the number is how deep it lies."""

_BYTES = "bytes; store them and send a signed storage URL"
_SET = "a set, which has no order; send a sorted list"
_INSTEAD: dict[type, str] = {
    bytes: _BYTES,
    bytearray: _BYTES,
    memoryview: _BYTES,
    set: _SET,
    frozenset: _SET,
    str: "a subclass of str; send str(value)",
    int: "a subclass of int; send int(value)",
    float: "a subclass of float; send float(value)",
    dict: "a subclass of dict; send dict(value)",
}


def kind_of(value: object) -> type[Any]:
    """type(value), in the words of a type checker that wants no unknowns."""
    return type(value)


def instead(kind: type[Any]) -> str:
    """What such a value is, and what to send for it."""
    for known, advice in _INSTEAD.items():
        if issubclass(kind, known):
            return advice
    if hasattr(kind, "read"):
        return "a file; store it and send a signed storage URL"
    return f"{kind.__name__}, which is not JSON; send an id, or the plain fields that are needed"


# Models of pydantic, known by their verbs so that nobody has to install it


def is_model(kind: type[Any]) -> bool:
    """Whether it has the verbs of pydantic's models."""
    return hasattr(kind, "model_validate") and hasattr(kind, "model_dump")


def _dump(model: Any) -> Any:
    # Its warnings would quote the value; what does not fit is found when it is read back.
    return model.model_dump(mode="json", by_alias=True, round_trip=True, warnings=False)


class Unfit(ValueError):
    """What a model has against its input, without the input."""


def to_plain(value: Any) -> Any:
    """What JSON can say of a value it does not know."""
    kind = kind_of(value)
    if is_model(kind):
        return _dump(value)
    raise Refused(instead(kind))


to_json = msgspec.json.Encoder(enc_hook=to_plain).encode


def from_plain(kind: Any, value: Any) -> Any:
    """The model that plain JSON stands for; Unfit if it stands for none."""
    try:
        # From text, so that a strict model takes the moments and ids that JSON has as text.
        return kind.model_validate_json(to_json(value))
    except ValueError as error:
        details: Any = getattr(error, "errors", list)
        problems = [f"{path_of(each['loc'])} ({each['type']})".lstrip() for each in details()]
    # Out here, so that the error does not drag along one that quotes the value.
    raise Unfit(f"does not fit {kind.__name__}: {', '.join(problems) or 'not valid'}")


def check_model(value: Any, walk: Walk, depth: int) -> None:
    """A model that comes back from JSON as it was sent."""
    reason = ""
    try:
        dumped = _dump(value)
        if from_plain(type(value), dumped) != value:
            reason = f"{type(value).__name__} does not come back from JSON as it was sent"
    except Unfit as error:
        reason = str(error)
    except ValueError:
        reason = f"{type(value).__name__} holds something that is not JSON"
    else:
        check_any(dumped, walk, depth)
    if reason:
        raise Refused(reason)


# Checks


def wrong(expects: str, value: Any) -> Refused:
    """The refusal of a value that is of another type."""
    return Refused(f"expects {expects}, got {type(value).__name__}")


def check_float(value: Any, walk: Walk, depth: int) -> None:
    """A number that JSON has, whole or not."""
    if type(value) is float:
        if not math.isfinite(value):
            raise Refused("NaN or infinity, which JSON does not have; send None, or leave it out")
    elif type(value) is not int:
        raise wrong("float", value)


def check_moment(value: Any, walk: Walk, depth: int) -> None:
    """A moment with a time zone that JSON can say."""
    if type(value) is not datetime:
        raise wrong("datetime", value)
    offset = value.utcoffset()
    if offset is None:
        raise Refused("a moment without time zone; send datetime.now(UTC), or .astimezone()")
    if offset.seconds % 60 or offset.microseconds:
        raise Refused("a time zone with odd seconds, which JSON's moments lack; send UTC")


def check_amount(value: Any, walk: Walk, depth: int) -> None:
    """A Decimal, which travels as text and comes back as the same number."""
    if type(value) is not Decimal:
        raise wrong("Decimal", value)
    if not value.is_finite():
        raise Refused("a Decimal that is NaN or infinity; send None, or leave it out")
    walk.spend(len(value.as_tuple().digits))


def _text(value: str, walk: Walk, depth: int) -> None:
    walk.spend(len(value))


def each_of(parts: Iterable[tuple[str | int, Any, Check]], walk: Walk, depth: int) -> None:
    """Check what lies inside a value, and remember the way to what is refused."""
    if depth > DEPTH:
        raise Refused(TOO_DEEP)
    for step, value, check in parts:
        walk.spend(1)
        try:
            check(value, walk, depth + 1)
        except Refused as refused:
            refused.trail.append(step)
            raise


_SCALARS: dict[type, Check | None] = {
    NoneType: None,
    bool: None,
    int: None,  # those past 64 bit are found in the encoded text
    str: _text,
    float: check_float,
    datetime: check_moment,
    Decimal: check_amount,
    date: None,
    time: None,
    timedelta: None,
    UUID: None,
}


def check_any(value: Any, walk: Walk, depth: int) -> None:
    """The check where no type is declared."""
    kind = kind_of(value)
    if kind in _SCALARS:
        if check := _SCALARS[kind]:
            check(value, walk, depth)
    elif issubclass(kind, dict):
        pairs_of(value.items(), walk, depth)
    elif issubclass(kind, list | tuple):
        each_of(((index, each, check_any) for index, each in enumerate(value)), walk, depth)
    elif issubclass(kind, Enum):
        check_any(value.value, walk, depth)
    elif issubclass(kind, msgspec.Struct):
        pairs_of(((name, getattr(value, name)) for name in value.__struct_fields__), walk, depth)
    elif dataclasses.is_dataclass(kind):
        pairs_of(((f.name, getattr(value, f.name)) for f in dataclasses.fields(kind)), walk, depth)
    elif is_model(kind):
        check_model(value, walk, depth)
    else:
        raise Refused(instead(kind))


def pairs_of(
    pairs: Iterable[tuple[Any, Any]], walk: Walk, depth: int, check: Check = check_any
) -> None:
    """Check the keys and values of an object."""

    def parts() -> Iterable[tuple[str, Any, Check]]:
        for key, value in pairs:
            walk.key(key)
            yield key, value, check

    each_of(parts(), walk, depth)
