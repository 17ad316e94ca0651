"""To JSON and back; refuses secrets, binary and bulk, and says what to send instead.

A message is checked when it is sent, so that whoever made the mistake hears of it, and not a dead
letter hours later. No error here carries a value: only the path of the field and a type's name.
"""

from __future__ import annotations

import json
import math
import re
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import PurePath
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar, cast
from urllib.parse import parse_qsl, urlencode

import msgspec
from msgspec import inspect

from relevo import sensitive
from relevo.errors import DefinitionError, PayloadError, PayloadMismatch
from relevo.sensitive import Holds
from relevo.shapes import Reader
from relevo.values import (
    DEPTH,
    LIMIT,
    TOO_BIG,
    TOO_DEEP,
    Refused,
    Unfit,
    Walk,
    check_any,
    from_plain,
    kind_of,
    path_of,
    to_json,
    to_plain,
)

T = TypeVar("T")

NOTHING: Final[frozenset[str]] = frozenset()

Upgrade: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]
"""Makes the payload of today's class of a stored one, which may be of an older class."""

_SHAPES = 256
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1
_SURROGATE = re.compile("[\ud800-\udfff]")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")
_SAFE = re.compile(r"Expected |Invalid [\w ]* encoded |Invalid UUID")
_INDEX = re.compile(r"\[\d+\]")
_ALLOWED = re.compile(r"[^.\[\]]+(?:\[\])*(?:\.[^.\[\]]+(?:\[\])*)*")
_MISSING = re.compile(r"Object missing required field `(\w+)`")


class Found(NamedTuple):
    """A secret that was found, and where."""

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path} ({self.what})"


class Delivered:
    """What is done with the secrets in a verified delivery, which its provider will not mend.

    They are kept where the store `is_sealed`. Elsewhere they are masked, and noted here.
    """

    __slots__ = ("is_sealed", "masked")

    def __init__(self, *, is_sealed: bool) -> None:
        self.is_sealed = is_sealed
        self.masked: list[Found] = []


class _NotUpgraded(Exception):
    """upgrade() did not give a payload."""


def _error(
    owner: str, path: str, reason: str, kind: type[PayloadError] = PayloadError
) -> PayloadError:
    dot = "." if owner and path and not path.startswith("[") else ""
    where = f"{owner}{dot}{path}" or "payload"
    return kind(f"{where}: {reason}", path=path)


def _is_object(data: bytes | msgspec.Raw) -> bool:
    """Whether it is one whole JSON object, as every stored message is."""
    try:
        return type(msgspec.json.decode(data)) is dict
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _place(error: BaseException) -> str:
    """Where an error was raised, since its own text may quote a value."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or frames[-1].filename == __file__:
        return ""
    return f" at {PurePath(frames[-1].filename).name}:{frames[-1].lineno}"


class Codec(Generic[T]):
    """A message class to JSON and back; made once per class.

    `allow` names fields that may hold what looks like a secret, with everything under them:
    "hook.config.secret", and "items[].code" or "items.code" for each item of a list. `upgrade` is
    given every stored payload before it is read.
    """

    def __init__(
        self, type: type[T], *, allow: frozenset[str] = NOTHING, upgrade: Upgrade | None = None
    ) -> None:
        self.type = type
        self._upgrade = upgrade
        for path in allow:
            if not _ALLOWED.fullmatch(path):
                raise DefinitionError(
                    f"{type.__name__}: allow={path!r:.80} is not the path of a field: write it "
                    "like 'hook.config.secret', or 'items[].code' for every item of a list"
                )
        self.allow = allow = frozenset(path.replace("[]", "") for path in allow)
        reader = Reader(type, allow)
        try:
            plans = reader.fields(inspect.type_info(type))
            self._decode = msgspec.json.Decoder(type, dec_hook=from_plain).decode
        except NameError as error:
            raise DefinitionError(
                f"{type.__name__}: {error}; a field's type must be known where the class is defined"
            ) from error
        except NotImplementedError as error:
            raise DefinitionError(
                f"{type.__name__}: an Enum or Literal lists a number below -2**63 or above 2**63 "
                "- 1, which cannot be read back: list text instead"
            ) from error
        except (TypeError, UnicodeEncodeError) as error:
            raise DefinitionError(f"{type.__name__}: {error}") from error
        for path in allow:
            if path.partition(".")[0] not in plans:
                raise DefinitionError(f"{type.__name__} has no field {path!r:.80} to allow")
        self._bounded = reader.bounded
        self._is_named = reader.named
        self._exact = {name: plan for name, plan in plans.items() if plan.kinds is not None}
        self._values = _getter(list(self._exact))
        self._shapes: set[tuple[Any, ...]] = set()
        self._checks = [(n, p.check) for n, p in plans.items() if n not in self._exact]

    def encode(self, message: T, delivered: Delivered | None = None) -> bytes:
        """The JSON of a message that may travel; PayloadError, with the path, if it may not.

        A secret that was `delivered` to us is not refused.
        """
        if message.__class__ is not self.type:
            raise PayloadError(f"expects {self.type.__name__}, got {type(message).__name__}")
        # Most fields are judged by their type alone, so a row of types seen before needs no look.
        shape = tuple(map(type, self._values(message)))
        if shape not in self._shapes:
            self._learn(shape)
        suspect = self._check(message) if self._checks else False
        try:
            data = to_json(message)
        except ValueError:  # half a surrogate pair, or an integer of thousands of digits
            data = b""
            suspect = True
        if suspect or self._is_named or not sensitive.looks_clean(data):
            data = self._searched(message, data, delivered)
        if self._bounded:
            self._read(data)
        return data

    def decode(self, data: bytes | msgspec.Raw) -> T:
        """The message of stored JSON; PayloadError saying where it does not fit, and why.

        PayloadMismatch for an object that code of another version may be able to read.
        """
        try:
            return self._decode(data if self._upgrade is None else self._upgraded(data))
        except BaseException:  # noqa: BLE001 - a class may raise anything; _read() tells what it is
            is_object = _is_object(data)
        return self._read(data, is_stored=is_object)

    def _read(self, data: bytes | msgspec.Raw, *, is_stored: bool = False) -> T:
        """decode() the long way, which tells what is wrong."""
        path = ""
        try:
            return self._decode(self._upgraded(data) if is_stored else data)
        except msgspec.ValidationError as error:
            reason, path = _unfit(error)
        except (msgspec.DecodeError, UnicodeDecodeError):
            reason = "is not JSON"
        except RecursionError:
            reason = TOO_DEEP
        except _NotUpgraded as error:
            reason = str(error)
        except BaseException as error:  # noqa: BLE001 - what the class raises of a payload, whatever it is
            reason = f"refused by its own class ({type(error).__name__}{_place(error)})"
        # Out here, so that the error does not drag along one that quotes the value.
        raise _error(
            self.type.__name__, path, reason, PayloadMismatch if is_stored else PayloadError
        )

    def _upgraded(self, data: bytes | msgspec.Raw) -> bytes | msgspec.Raw:
        """The stored payload as upgrade() gives it."""
        old: Any = None if self._upgrade is None else msgspec.json.decode(data)
        if self._upgrade is None or type(old) is not dict:
            return data
        try:
            new: Any = self._upgrade(cast("dict[str, Any]", old))
        except BaseException as error:  # noqa: BLE001 - the app's own function
            raise _NotUpgraded(f"upgrade() raised {type(error).__name__}{_place(error)}") from None
        if not isinstance(new, dict):
            raise _NotUpgraded(
                f"upgrade() gave {type(new).__name__} instead of the payload: return a dict"
            )
        try:
            return to_json(new)
        except (Refused, TypeError, ValueError, RecursionError):
            raise _NotUpgraded("upgrade() gave a dict that is not JSON") from None

    def _learn(self, shape: tuple[type, ...]) -> None:
        for (name, plan), kind in zip(self._exact.items(), shape, strict=True):
            if kind not in (plan.kinds or ()):
                reason = f"expects {plan.expects}, got {kind.__name__}"
                raise _error(self.type.__name__, name, reason)
        if len(self._shapes) < _SHAPES:
            self._shapes.add(shape)

    def _check(self, message: T) -> bool:
        """Check the other fields; whether some key in them names a secret."""
        walk = Walk()
        for name, check in self._checks:
            try:
                check(getattr(message, name), walk, 2)
            except Refused as refused:
                refused.trail.append(name)
                raise _error(self.type.__name__, refused.path, refused.reason) from None
        return walk.suspect

    def _searched(self, message: T, data: bytes, delivered: Delivered | None) -> bytes:
        """Look closely at a message that was found suspicious; most turn out to be innocent."""
        tree: Any = msgspec.to_builtins(message, enc_hook=to_plain)
        owner = self.type.__name__
        if len(data) > LIMIT:
            biggest = max(tree, key=lambda name: len(to_json(tree[name])))
            raise _error(owner, biggest, TOO_BIG)
        found: list[Found] | None = None if delivered is None else []
        masked = _Search(owner, self.allow, found).look(tree)
        if delivered is None or not found or delivered.is_sealed:
            return data
        delivered.masked += found
        return to_json(masked)


def _getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    # Of one name alone, attrgetter would give the bare value.
    return (lambda message: (getattr(message, names[0]),)) if names else lambda message: ()


def _unfit(error: msgspec.ValidationError) -> tuple[str, str]:
    """What msgspec expected, and where, without what it got."""
    text, at, path = str(error).rpartition(" - at `$")
    text, path = (text, path) if at else (path, "")
    path = path.rstrip("`").removeprefix(".").replace("[...]", "[…]")
    match error.__cause__:
        case None if missing := _MISSING.fullmatch(text):
            return "is missing", f"{path}.{missing[1]}".removeprefix(".")
        case None if _SAFE.match(text):
            return text.replace("`", "").replace("Expected", "expects"), path
        case None:
            return "is not one of the values it may have", path
        case Unfit() as cause:
            return str(cause), path
        case cause:
            return f"refused by its own class ({type(cause).__name__})", path


# A close look at plain JSON


class _Search:
    """Looks for secrets, by name and by look, and for text and numbers that no store takes.

    What it finds is refused; with `found` it is masked instead, and noted there. Without `allow`
    there is no class that could let it pass.
    """

    def __init__(
        self, owner: str, allow: frozenset[str] | None, found: list[Found] | None = None
    ) -> None:
        self.owner = owner
        self.allow = allow
        self.found = found
        self.trail: list[str | int] = []

    def look(
        self, value: Any, name: str = "", above: Holds | None = None, free: bool = False
    ) -> Any:
        """The value, with what was found masked."""
        kind = kind_of(value)
        if kind is str:
            return self._look_at_text(value, name, above, free)
        if kind is int:
            return self._look_at_number(value, name, above, free)
        if issubclass(kind, dict):
            return self._look_at_entries(value, name, above, free)
        if issubclass(kind, list | tuple):
            return self._look_at_items(value, name, above, free)
        return value

    def _look_at_number(self, number: int, name: str, above: Holds | None, free: bool) -> int:
        if not _SMALLEST <= number <= _LARGEST:
            raise self._refuse("an integer of more than 64 bit; send it as str")
        if free:
            return number
        leak = sensitive.number_leak(number, name)
        if leak is None and above is not None:
            leak = sensitive.named_leak(number, above)
        if leak is not None:
            self._meet(leak)
            return 0
        return number

    def _look_at_entries(
        self, entries: dict[str, Any], parent: str, above: Holds | None, free: bool
    ) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, value in entries.items():
            self.trail.append(key)
            spared = free or self._is_allowed()
            shown = self._look_at_text(key, "", None, spared)
            name = sensitive.named(key, parent)
            kind = sensitive.beneath(key, above) or sensitive.holds(name)
            seen[shown] = self.look(value, name, kind, spared)
            self.trail.pop()
        return seen

    def _look_at_items(
        self, items: Sequence[Any], name: str, above: Holds | None, free: bool
    ) -> list[Any]:
        seen: list[Any] = []
        for index, value in enumerate(items):
            self.trail.append(index)
            seen.append(self.look(value, name, above, free))
            self.trail.pop()
        return seen

    def _look_at_text(self, text: str, name: str, above: Holds | None, free: bool) -> str:
        if "\0" in text:
            raise self._refuse("a NUL character, which no store keeps; take it out")
        if not text.isascii() and _SURROGATE.search(text):
            raise self._refuse("half of a surrogate pair, which is not text; take it out")
        if free:
            return text
        leaks = sensitive.leaks(text, name)
        if self.found is not None:
            leaks = (leak for leak in leaks if not leak.is_bulk)
        by_look = next(leaks, None)
        by_name = None if above is None else sensitive.named_leak(text, above)
        if leak := by_look or by_name:
            self._meet(leak)
            is_card = by_look is not None and by_look.what == "a card number"
            # The rest of a password is no less secret than what was found in it.
            is_whole = by_name is not None and not is_card
            if is_whole:
                return sensitive.HIDDEN
            return sensitive.without_leaks(text, name, bulk=self.found is None)
        return text

    def _meet(self, leak: sensitive.Leak) -> None:
        if self.found is None:
            raise self._refuse(f"{leak.what}; {leak.instead}{self._way_out()}")
        path = path_of(self.trail)
        self.found.append(Found(f"{self.owner}.{path}" if self.owner else path, leak.what))

    def _way_out(self) -> str:
        """How to send it all the same, where a class can say so."""
        path = path_of(self.trail)
        if not self.owner or self.allow is None or "…" in path:
            return ""
        path = _INDEX.sub("[]", path)
        return f", or let it pass with allow=[{path!r}] in the class line of {self.owner}"

    def _is_allowed(self) -> bool:
        if not self.allow:
            return False
        return ".".join(step for step in self.trail if isinstance(step, str)) in self.allow

    def _refuse(self, reason: str) -> PayloadError:
        return _error(self.owner, path_of(self.trail), reason)


# JSON from elsewhere


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Refused("a key stands twice in one object, and readers differ on which one counts")
    return found


def _integer(text: str) -> int:
    if len(text) > 20:
        raise Refused("an integer of more than 64 bit; send it as str")
    return int(text)


def _number(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise Refused("a number out of range; send it as str")
    return number


def _constant(text: str) -> float:
    raise Refused("NaN or infinity, which JSON does not have; send null")


def _strict(data: bytes) -> Any:
    return json.loads(
        data.decode(),
        object_pairs_hook=_object,
        parse_int=_integer,
        parse_float=_number,
        parse_constant=_constant,
    )


def _is_deep(data: bytes) -> bool:
    depth = 0
    for bracket in _BRACKET.findall(_STRING.sub(b"", data)):
        depth += 1 if bracket in b"[{" else -1
        if depth > DEPTH:
            return True
    return False


def guard(data: bytes, *, allow: frozenset[str] = NOTHING) -> None:
    """Refuse JSON that came from elsewhere if it is not strict, is too much, or holds a secret."""
    if len(data) > LIMIT:
        raise _error("", "", TOO_BIG)
    if _is_deep(data):
        raise _error("", "", TOO_DEEP)
    try:
        tree = _strict(data)
    except Refused as refused:
        reason = refused.reason
    except UnicodeDecodeError:
        reason = "is not UTF-8"
    except json.JSONDecodeError as error:
        reason = f"is not JSON: {error.msg} (line {error.lineno}, column {error.colno})"
    else:
        return _Search("", allow).look(tree)
    # Out here, so that the error does not drag along one that quotes the text.
    raise _error("", "", reason)


def plain(value: Any, owner: str = "") -> bytes:
    """The JSON of a worker's result, under the same limits and refusals."""
    walk = Walk()
    try:
        check_any(value, walk, 1)
        data = to_json(value)
    except Refused as refused:
        raise _error(owner, refused.path, refused.reason) from None
    except ValueError:  # half a surrogate pair, or an integer of thousands of digits
        data = b""
        walk.suspect = True
    if len(data) > LIMIT:
        raise _error(owner, "", TOO_BIG)
    if walk.suspect or not sensitive.looks_clean(data):
        _Search(owner, None).look(msgspec.to_builtins(value, enc_hook=to_plain))
    return data


def kept_result(value: Any) -> bytes:
    """The JSON of what a worker gave; PayloadError, with what to give instead, if it has none."""
    try:
        return plain(value, "result")
    except PayloadError as error:
        told, path = str(error), error.path
    # Out here, so that the error does not drag along one that quotes the value.
    raise PayloadError(
        f"a result cannot be kept: {told}. Return what is small and plain (an id, a code, a dict "
        "of what is needed) or nothing, and store the rest yourself",
        path=path,
    )


def without_secrets(body: bytes, *, is_form: bool) -> tuple[bytes, list[Found]]:
    """A delivery's body with what is surely a secret masked, and what that was.

    In a text that is neither JSON nor a form only what is a secret by its look is found.
    """
    found: list[Found] = []
    search = _Search("", NOTHING, found)
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return body, []
    try:
        if is_form:
            pairs = parse_qsl(text, keep_blank_values=True)
            masked = urlencode([(pair[0], _look_at_field(search, *pair)) for pair in pairs])
        else:
            masked = to_json(search.look(_strict(body))).decode()
    except (ValueError, RecursionError, Refused, PayloadError):
        masked = sensitive.without_leaks(text, bulk=False)
        what = dict.fromkeys(leak.what for leak in sensitive.leaks(text) if not leak.is_bulk)
        found = [Found("its text", each) for each in what]
    return (masked.encode(), found) if found else (body, [])


def _look_at_field(search: _Search, name: str, value: str) -> str:
    """The value of a form's field without secrets; it may be JSON."""
    if value[:1] in ("{", "["):
        with suppress(ValueError, RecursionError, Refused):
            return to_json(search.look({name: _strict(value.encode())})[name]).decode()
    return search.look({name: value})[name]


def mask(data: bytes) -> bytes:
    """The same JSON with secrets, cards, e-mail addresses and phone numbers hidden. Never fails."""
    tree: Any = None
    try:
        readable = not _is_deep(data)
        tree = json.loads(data.decode()) if readable else None
    except (ValueError, RecursionError):
        readable = False
    return to_json(_masked(tree, "") if readable else f"({len(data):,} bytes that are not JSON)")


def _masked(value: Any, name: str) -> Any:
    kind = kind_of(value)
    if value is None or kind is bool:
        return value
    if sensitive.names_secret(name) and not (kind is str and sensitive.is_harmless(value)):
        return sensitive.HIDDEN
    if kind is dict:
        return {sensitive.mask(key): _masked(each, key) for key, each in value.items()}
    if kind is list:
        return [_masked(each, name) for each in value]
    hidden = sensitive.mask(str(value), name)
    return value if hidden == str(value) else hidden
