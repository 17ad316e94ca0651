"""To JSON and back; refuses secrets, binary and bulk, and says what to send instead.

A message is checked when it is sent, so that whoever made the mistake hears of it, and not a dead
letter hours later. No error here carries a value: only the path of the field and a type's name.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import inspect

from relevo import sensitive
from relevo.errors import DefinitionError, PayloadError
from relevo.shapes import (
    DEPTH,
    LIMIT,
    TOO_BIG,
    TOO_DEEP,
    Budget,
    Reader,
    Refused,
    Unfit,
    allowed,
    check_any,
    from_plain,
    step,
    to_json,
    to_plain,
)

T = TypeVar("T")

NOTHING: Final[frozenset[str]] = frozenset()

_SMALLEST, _LARGEST = -(2**63), 2**64 - 1
_SHAPES = 256

_SURROGATE = re.compile("[\ud800-\udfff]")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_SAFE = re.compile(r"Expected |Object missing required field|Invalid [\w ]* encoded |Invalid UUID")


class Codec(Generic[T]):
    """A message class to JSON and back; made once per class.

    `allow` names fields by path ("card.number", without list indexes) that may hold what looks
    like a secret; everything under them may.
    """

    def __init__(self, type: type[T], *, allow: frozenset[str] = NOTHING) -> None:
        reader = Reader(type, allow)
        try:
            info: Any = inspect.type_info(type)
            plans = reader.fields(info, "")
            self._decode = msgspec.json.Decoder(type, dec_hook=from_plain).decode
        except NameError as error:
            raise DefinitionError(
                f"{type.__name__}: {error}; a field's type must be known where the class is defined"
            ) from error
        except TypeError as error:
            raise DefinitionError(f"{type.__name__}: {error}") from error
        for path in allow:
            if re.split(r"[.\[]", path)[0] not in plans:
                raise DefinitionError(f"{type.__name__}: allow={path!r:.80} is none of its fields")
        self.type = type
        self.allow = allow
        self._loose = reader.loose
        self._bounded = reader.bounded
        exact = {name: plan for name, plan in plans.items() if plan.kinds is not None}
        self._exact = exact
        self._values = _getter(list(exact))
        self._shapes: set[tuple[Any, ...]] = set()
        self._checks = [(n, p.check) for n, p in plans.items() if n not in exact]

    def encode(self, message: T) -> bytes:
        """The JSON of a message that may travel; PayloadError, with the path, if it may not."""
        shape = tuple(map(type, self._values(message)))
        if shape not in self._shapes:
            self._learn(message, shape)
        if self._checks:
            self._check(message)
        try:
            data = to_json(message)
        except UnicodeEncodeError:
            data = b""
        if not data or self._loose or len(data) > LIMIT or not sensitive.looks_clean(data):
            self._search(message, data)
        if self._bounded:
            self.decode(data)
        return data

    def decode(self, data: bytes | msgspec.Raw) -> T:
        """The message of stored JSON; PayloadError saying where it does not fit, and why."""
        path = ""
        try:
            return self._decode(data)
        except msgspec.ValidationError as error:
            reason, path = _unfit(error)
        except (msgspec.DecodeError, UnicodeDecodeError):
            reason = "is not JSON"
        except RecursionError:
            reason = TOO_DEEP
        # Out here, so that the error does not drag along one that quotes the value.
        raise _error(self.type.__name__, path, reason)

    def _learn(self, message: T, shape: tuple[Any, ...]) -> None:
        """Check the fields whose type is all that matters, and remember types that fit."""
        if type(message) is not self.type:
            raise PayloadError(f"expects {self.type.__name__}, got {type(message).__name__}")
        for (name, plan), kind in zip(self._exact.items(), shape, strict=True):
            if kind not in (plan.kinds or ()):
                got = f"expects {plan.expects}, got {kind.__name__}"
                raise _error(self.type.__name__, name, got)
        if len(self._shapes) < _SHAPES:
            self._shapes.add(shape)

    def _check(self, message: T) -> None:
        budget = Budget()
        for name, check in self._checks:
            try:
                check(getattr(message, name), budget, 2)
            except Refused as refused:
                refused.trail.append(name)
                raise _error(self.type.__name__, _path(refused), refused.reason) from None

    def _search(self, message: T, data: bytes) -> None:
        tree: Any = msgspec.to_builtins(message, enc_hook=to_plain)
        owner = self.type.__name__
        if len(data) > LIMIT:
            biggest = max(tree, key=lambda name: len(to_json(tree[name])))
            raise _error(owner, biggest, TOO_BIG)
        _inspect(tree, owner, "", "", self.allow)


def _getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda message: tuple(getattr(message, name) for name in names)


def _path(refused: Refused) -> str:
    return "".join(reversed(refused.trail)).removeprefix(".")


def _error(owner: str, path: str, reason: str) -> PayloadError:
    where = f"{owner}.{path}" if owner and path else owner or path or "payload"
    return PayloadError(f"{where}: {reason}", path=path)


def _unfit(error: msgspec.ValidationError) -> tuple[str, str]:
    """What msgspec expected, and where, without what it got."""
    text, _, at = str(error).rpartition(" - at `$")
    if not text:
        text, at = at, ""
    path = at.rstrip("`").removeprefix(".").replace("[...]", "[…]")
    if isinstance(error.__cause__, Unfit):
        return str(error.__cause__), path
    if error.__cause__ is not None:
        return f"refused by the class itself ({type(error.__cause__).__name__})", path
    if _SAFE.match(text):
        return text.replace("`", ""), path
    return "is not one of the values it may have", path


# JSON from elsewhere


def _inspect(
    value: Any, owner: str, path: str, name: str, allow: frozenset[str], free: bool = False
) -> None:
    """Look through plain JSON for secrets, by name and by look, and for text no store takes."""

    def refuse(reason: str, at: str = path) -> PayloadError:
        return _error(owner, at.removeprefix("."), reason)

    match value:
        case dict():
            entries: Mapping[str, Any] = value
            for key, each in entries.items():
                at = path + step(key)
                open_ = free or allowed(at, allow)
                _inspect_text(key, "", refuse, open_)
                if not open_ and sensitive.names_secret(key) and not isinstance(each, bool | None):
                    raise refuse(f"a secret by its name; {sensitive.SEND_ID}", at)
                _inspect(each, owner, at, key, allow, open_)
        case list():
            items: list[Any] = value
            for index, each in enumerate(items):
                _inspect(each, owner, f"{path}[{index}]", name, allow, free)
        case str():
            _inspect_text(value, name, refuse, free)
        case bool():
            return
        case int():
            if not _SMALLEST <= value <= _LARGEST:
                raise refuse("an integer of more than 64 bit; send it as str")
            leak = None if free else sensitive.number_leak(value, name)
            if leak:
                raise refuse(f"{leak.what}; {leak.instead}")
        case _:
            return


def _inspect_text(text: str, name: str, refuse: Callable[[str], PayloadError], free: bool) -> None:
    if "\0" in text:
        raise refuse("a NUL character, which no store keeps; take it out")
    if not text.isascii() and _SURROGATE.search(text):
        raise refuse("half of a surrogate pair, which is not text; take it out")
    leak = None if free else next(sensitive.leaks(text, name), None)
    if leak:
        raise refuse(f"{leak.what}; {leak.instead}")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Refused("a key appears twice in one object; which one counts is anyone's guess")
    return found


def _integer(text: str) -> int:
    if len(text) > 20:
        raise Refused("an integer of more than 64 bit; send it as str")
    return int(text)


def _float(text: str) -> float:
    if not math.isfinite(found := float(text)):
        raise Refused("a number out of range; send it as str")
    return found


def _constant(text: str) -> float:
    raise Refused("NaN or infinity, which JSON does not have")


def _is_deep(data: bytes) -> bool:
    depth = deepest = 0
    for mark in re.findall(rb"[\[{]|[\]}]", _STRING.sub(b"", data)):
        depth += 1 if mark in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest > DEPTH


def guard(data: bytes, *, allow: frozenset[str] = NOTHING) -> None:
    """Refuse JSON that came from elsewhere if it is not strict, is too much, or holds a secret."""
    reason = ""
    tree: Any = None
    if len(data) > LIMIT:
        reason = TOO_BIG
    elif _is_deep(data):
        reason = TOO_DEEP
    else:
        try:
            tree = json.loads(
                data.decode(),
                object_pairs_hook=_pairs,
                parse_int=_integer,
                parse_float=_float,
                parse_constant=_constant,
            )
        except Refused as refused:
            reason = refused.reason
        except UnicodeDecodeError:
            reason = "is not UTF-8"
        except json.JSONDecodeError as error:
            reason = f"is not JSON: {error.msg} (line {error.lineno}, column {error.colno})"
    if reason:
        raise _error("", "", reason)
    _inspect(tree, "", "", "", allow)


def plain(value: Any) -> bytes:
    """The JSON of a worker's result, under the same limits and refusals."""
    try:
        check_any(value, Budget(), 1)
        data = to_json(value)
    except Refused as refused:
        raise _error("", _path(refused), refused.reason) from None
    except UnicodeEncodeError:
        data = b""
    if len(data) > LIMIT:
        raise _error("", "", TOO_BIG)
    _inspect(msgspec.to_builtins(value, enc_hook=to_plain), "", "", "", NOTHING)
    return data


# For people's eyes

_HIDDEN = "***"


def mask(data: bytes) -> bytes:
    """The same JSON with secrets, cards, e-mail addresses and phone numbers hidden. Never fails."""
    try:
        tree = None if _is_deep(data) else json.loads(data.decode())
        return to_json(_masked(tree, ""))
    except (ValueError, RecursionError):
        return to_json(f"({len(data):,} bytes that are not JSON)")


def _masked(value: Any, name: str) -> Any:
    match value:
        case dict():
            entries: Mapping[str, Any] = value
            return {sensitive.mask(key): _masked(each, key) for key, each in entries.items()}
        case list():
            items: list[Any] = value
            return [_masked(each, name) for each in items]
        case None | bool():
            return value
        case _ if sensitive.names_secret(name):
            return _HIDDEN
        case str():
            return sensitive.mask(value, name)
        case int() | float():
            hidden = sensitive.mask(str(value), name)
            return value if hidden == str(value) else hidden
        case _:
            return value
