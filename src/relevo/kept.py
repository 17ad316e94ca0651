"""What is kept of an effect's result, and what every run gets of it: a read-only record.

    charge = await ctx.once("charge", lambda key: stripe.v1.payment_intents.create(…))
    charge.id, charge["id"]  # of what was stored, in every run
    charge.raw               # the SDK's own object, in the run that made the call

What JSON cannot say, and what looks like a secret, is left out.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from inspect import iscoroutinefunction
from typing import Any, Final, NamedTuple, NoReturn, cast
from uuid import UUID

import msgspec

from relevo import sensitive
from relevo.errors import MisuseError, PayloadError, ProviderUncertain
from relevo.payload import plain
from relevo.scrubbing import scrub
from relevo.sensitive import Holds
from relevo.values import DEPTH, LIMIT, from_plain, is_model, kind_of

_dict: Any = dict  # whose methods are called on a record, whatever its fields are called


class _Method:
    """A method of dicts, which gives way to a field of that name: `record.items`."""

    def __init__(self, method: Any) -> None:
        self.method = method
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, record: Any, owner: type | None = None) -> Any:
        if record is None:
            return self.method
        method = self.method.__get__(record)
        if self.name not in record:
            return method
        value = record[self.name]
        # json.dumps() and the like call it all the same.
        if isinstance(value, Record):
            return _called(_RecordOrMethod(value), method)
        if isinstance(value, list):
            return _called(_ListOrMethod(cast("list[Any]", value)), method)
        return value


def _called(field: Any, method: Any) -> Any:
    object.__setattr__(field, "_method", method)
    return field


def _refuse(self: Any, *_: Any, **__: Any) -> NoReturn:
    raise TypeError("a record of what was kept cannot be changed: dict(record) is a copy")


class Record(dict[str, Any]):
    """What was kept of a result. Its fields are items and attributes, and cannot be changed.

    A field goes before a method of dicts: `subscription.items` is the field, where there is one.
    `raw` alone is never a field: that is read as `record["raw"]`.
    """

    __slots__ = ("_raw",)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(_held(self, name)) from None

    @property
    def raw(self) -> Any:
        """What the call itself returned, in the run that made it; MisuseError in later ones."""
        try:
            return self._raw
        except AttributeError:
            raise MisuseError(
                "the object that the call returned is there in the run that made the call, and "
                "not in a later one: read what was kept of it, or keep more with keep="
            ) from None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({super().__repr__()})"

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return _again, (_thawed(self),)

    items = _Method(_dict.items)  # pyright: ignore[reportAssignmentType] - on purpose
    keys = _Method(_dict.keys)  # pyright: ignore[reportAssignmentType] - on purpose
    values = _Method(_dict.values)  # pyright: ignore[reportAssignmentType] - on purpose
    get = _Method(_dict.get)  # pyright: ignore[reportAssignmentType] - on purpose
    copy = _Method(_dict.copy)  # pyright: ignore[reportAssignmentType] - on purpose
    update = _Method(_refuse)  # pyright: ignore[reportAssignmentType] - on purpose
    pop = _Method(_refuse)  # pyright: ignore[reportAssignmentType] - on purpose
    popitem = _Method(_refuse)  # pyright: ignore[reportAssignmentType] - on purpose
    clear = _Method(_refuse)  # pyright: ignore[reportAssignmentType] - on purpose
    setdefault = _Method(_refuse)  # pyright: ignore[reportAssignmentType] - on purpose
    __setitem__ = __delitem__ = __ior__ = _refuse  # pyright: ignore[reportAssignmentType] - on purpose
    __setattr__ = __delattr__ = _refuse  # pyright: ignore[reportAssignmentType] - on purpose


class _RecordOrMethod(Record):
    """A field that is an object, and is called like a method of dicts."""

    __slots__ = ("_method",)
    _method: Any

    def __call__(self, *given: Any) -> Any:
        return self._method(*given)


class _ListOrMethod(list[Any]):
    """A field that is a list, and is called like a method of dicts."""

    __slots__ = ("_method",)
    _method: Any

    def __call__(self, *given: Any) -> Any:
        return self._method(*given)

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return list, (list(self),)


class Answer(Record):
    """What was kept of an HTTP client's response: its status and its body."""

    __slots__ = ()

    @property
    def status(self) -> int:
        return self["status_code"]

    @property
    def text(self) -> str:
        return self["text"] if "text" in self else json.dumps(_thawed(self.json()))

    @property
    def ok(self) -> bool:
        return self["status_code"] < 400

    is_success = ok

    def json(self) -> Any:
        """The body, if it was JSON."""
        return self["json"] if "json" in self else json.loads(self["text"])

    def raise_for_status(self) -> Answer:
        """Nothing: an answer that says no is judged before it is kept."""
        return self


class NotKept:
    """Stands for a result of which nothing could be kept; whatever reads it holds the job."""

    __slots__ = ("_raw", "_why")
    __hash__ = None  # pyright: ignore[reportAssignmentType] - it cannot be read, so not compared

    def __init__(self, why: str) -> None:
        self._why = why

    def _refuse(self, *_: Any) -> NoReturn:
        raise ProviderUncertain(self._why)

    @property
    def raw(self) -> Any:
        """What the call itself returned, in the run that made it."""
        try:
            return self._raw
        except AttributeError:
            self._refuse()

    def __getattr__(self, name: str) -> Any:
        if name in ("_raw", "_why") or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        self._refuse()

    def __repr__(self) -> str:
        return f"<{self._why}>"

    __getitem__ = __iter__ = __len__ = __bool__ = __eq__ = __ne__ = __lt__ = __gt__ = _refuse
    __le__ = __ge__ = __contains__ = __call__ = __str__ = __int__ = __float__ = _refuse  # pyright: ignore[reportAssignmentType] - on purpose
    __format__ = __index__ = __add__ = __radd__ = __bytes__ = _refuse  # pyright: ignore[reportAssignmentType] - on purpose


def _held(record: Record, name: str) -> str:
    names = ", ".join(sorted(record)[:12]) or "nothing"
    return (
        f"no {name!r} was kept of this result, but {names}: what JSON cannot say, and what looks "
        "like a secret, is left out. Name what you need with keep=; the call's own object is .raw, "
        "in the run that made the call"
    )


def _frozen(tree: Any) -> Any:
    """The values of JSON with records for objects."""
    if isinstance(tree, dict):
        known = cast("dict[str, Any]", tree)
        is_answer = (
            len(known) == 2 and "status_code" in known and ("json" in known or "text" in known)
        )
        frozen = {k: v if type(v) in SIMPLE else _frozen(v) for k, v in known.items()}
        return (Answer if is_answer else Record)(frozen)
    if isinstance(tree, list):
        return [_frozen(each) for each in cast("list[Any]", tree)]
    return tree


def _thawed(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _thawed(v) for k, v in _dict.items(value)}
    return [_thawed(v) for v in cast("list[Any]", value)] if isinstance(value, list) else value


def _again(tree: Any) -> Any:
    return _frozen(tree)


def recorded(data: bytes, type: Any = None) -> Any:
    """What a run gets of a stored result: a record, a list, a plain value, or a `type`.

    PayloadError if it does not fit the type.
    """
    value = msgspec.json.decode(data)
    if type is None:
        return _frozen(value)
    name = getattr(type, "__name__", str(type))
    try:
        return msgspec.convert(value, type, dec_hook=from_plain)
    except (msgspec.ValidationError, ValueError) as error:
        said = str(error)
    # Out here, so that the error does not drag along one that quotes the value.
    raise PayloadError(f"it does not fit {name}: {said}")


def with_raw(record: Any, raw: Any) -> Any:
    """A record that has, in this run, the object it was made of."""
    if isinstance(record, Record):
        object.__setattr__(record, "_raw", raw)
    return record


def not_kept(why: str, raw: tuple[Any] | None = None) -> Any:
    """What stands for a result that could not be kept."""
    stands = NotKept(why)
    if raw is not None:
        object.__setattr__(stands, "_raw", raw[0])
    return stands


# What is kept


class Kept(NamedTuple):
    """The JSON of a result; None, and why, if nothing of it can be kept."""

    data: bytes | None
    why: str = ""


SIMPLE = frozenset({str, int, bool, float, type(None)})
"""What comes back as it was given, without a record."""


def keep(result: Any, *, is_exact: bool = False) -> Kept:
    """What is kept of a result. `is_exact`: by the names that its type is read back with."""
    try:
        if type(result) in SIMPLE:
            return Kept(plain(result))
        if type(result) is dict and (data := _as_it_is(cast("dict[Any, Any]", result))) is not None:
            return Kept(data)
        walk = _Walk(is_exact)
        tree = walk.tree(result, "", 1)
        if tree is _LEFT_OUT:
            return Kept(None, walk.why or _cannot(result))
        if walk.why and not tree and isinstance(tree, dict | list):
            return Kept(None, walk.why)
        data = msgspec.json.encode(tree)
    except PayloadError as error:
        return Kept(None, str(error).removeprefix("payload: "))
    except _TooBig:
        return Kept(None, _SIZE)
    except (ValueError, TypeError, RecursionError) as error:
        return Kept(None, f"{_cannot(result)} ({type(error).__name__})")
    return Kept(data) if len(data) <= LIMIT else Kept(None, _SIZE)


def _as_it_is(result: dict[Any, Any]) -> bytes | None:
    """The JSON of a flat dict of which surely nothing is left out; None if it has to be walked."""
    for key, value in result.items():
        if type(key) is not str or type(value) not in SIMPLE:
            return None
        if sensitive.holds(key) is not None or sensitive.names_session(key):
            return None
    try:
        data = msgspec.json.encode(result)
    except ValueError:  # half a surrogate pair, or an integer of thousands of digits
        return None
    return data if sensitive.looks_clean(data) else None


_SIZE = f"more than {LIMIT:,} bytes of JSON"


def _cannot(value: Any) -> str:
    return f"{type(value).__name__} is not JSON"


class _LeftOut:
    pass


_LEFT_OUT: Final = _LeftOut()


class _TooBig(Exception):
    pass


_SMALLEST, _LARGEST = -(2**63), 2**64 - 1


class _Walk:
    """One walk through a result; `why` is the first reason why something was left out."""

    def __init__(self, is_exact: bool) -> None:
        self.is_exact = is_exact
        self.why = ""
        self.left = LIMIT

    def tree(self, value: Any, name: str, depth: int, above: Holds | None = None) -> Any:
        self.left -= 1
        if self.left < 0:
            raise _TooBig
        if type(value) is str:
            return self._text(value, name, above)
        match value:
            case None | bool():
                return value
            case Enum():
                return self.tree(value.value, name, depth, above)
            case str():
                return self._text(str.__str__(value), name, above)
            case int():
                return self._number(int(value), name, above)
            case float():
                return float(value) if math.isfinite(value) else None
            case Decimal():
                return str(value) if value.is_finite() else None
            case datetime() | date() | time():
                return value.isoformat()
            case timedelta() | UUID():
                return msgspec.to_builtins(value)
            case bytes() | bytearray() | memoryview():
                return self._out(name, "bytes are not JSON")
            case _:
                return self._inside(value, name, depth, above)

    def _inside(self, value: Any, name: str, depth: int, above: Holds | None) -> Any:
        if depth > DEPTH:
            return self._out(name, f"more than {DEPTH} objects inside one another")
        if isinstance(value, Mapping):
            return self._entries(cast("Mapping[Any, Any]", value).items(), name, depth, above)
        if isinstance(value, tuple) and hasattr(cast("Any", value), "_asdict"):
            return self._entries(cast("Any", value)._asdict().items(), name, depth, above)
        if isinstance(value, list | tuple | AbstractSet):
            items = cast("Iterable[Any]", value)
            found = (self.tree(each, name, depth + 1, above) for each in items)
            return [None if each is _LEFT_OUT else each for each in found]
        fields = _fields(value, self.is_exact)
        if fields is None:
            return self._out(name, _cannot(value))
        return self._entries(fields, name, depth, above)

    def _entries(
        self, fields: Iterable[tuple[Any, Any]], parent: str, depth: int, above: Holds | None
    ) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in fields:
            if type(key) is not str:
                key = str(key.value) if isinstance(key, Enum) else str(key)
            self.left -= len(key)
            name = sensitive.named(key, parent)
            kind = sensitive.beneath(key, above)
            if kind is None and name is not key:
                kind = sensitive.holds(name)
            tree = self.tree(value, name, depth + 1, kind)
            if tree is not _LEFT_OUT:
                found[key] = tree
        return found

    def _text(self, text: str, name: str, above: Holds | None) -> Any:
        self.left -= len(text)
        if self.left < 0:
            raise _TooBig
        # A shorter text holds none.
        leak = None if len(text) < 7 else next(sensitive.leaks(text, name), None)
        if leak is None and above is not None:
            leak = sensitive.named_leak(text, above)
        if leak is None and sensitive.names_session(name) and sensitive.is_long_secret(text):
            return self._out(name, "a secret by its name")
        if leak is not None:
            return self._out(name, leak.what)
        if "\0" in text:
            return self._out(name, "a NUL character, which no store keeps")
        try:
            if not text.isascii():
                text.encode()
        except UnicodeEncodeError:
            return self._out(name, "half of a surrogate pair, which is not text")
        return text

    def _number(self, number: int, name: str, above: Holds | None) -> Any:
        leak = sensitive.number_leak(number, name)
        if leak is None and above is not None:
            leak = sensitive.named_leak(number, above)
        if leak is not None:
            return self._out(name, leak.what)
        return number if _SMALLEST <= number <= _LARGEST else str(number)

    def _out(self, name: str, why: str) -> _LeftOut:
        self.why = self.why or (f"{name}: {why}" if name else why)
        return _LEFT_OUT


# Objects, known by what they can do, so that no client has to be imported


def _fields(value: Any, is_exact: bool) -> Iterable[tuple[Any, Any]] | None:
    """The fields of an object that can be written as JSON; None if it has none."""
    kind = kind_of(value)
    if isinstance(value, type):
        return None
    if isinstance(value, msgspec.Struct):
        names = value.__struct_encode_fields__ if is_exact else value.__struct_fields__
        found = [
            (name, getattr(value, field))
            for name, field in zip(names, value.__struct_fields__, strict=True)
        ]
        config = value.__struct_config__
        return [(config.tag_field, config.tag), *found] if config.tag is not None else found
    if dataclasses.is_dataclass(value):
        return [(each.name, getattr(value, each.name)) for each in dataclasses.fields(value)]
    if hasattr(kind, "__attrs_attrs__"):
        return [(each.name, getattr(value, each.name)) for each in kind.__attrs_attrs__]
    try:
        return _dumped(value, kind, is_exact)
    except Exception:  # noqa: BLE001 - the methods of a foreign object may raise anything
        return None


def _dumped(value: Any, kind: Any, is_exact: bool) -> Iterable[tuple[Any, Any]] | None:
    if is_model(kind):
        # As attributes are called; by alias only where a type reads it back.
        model: Any = value.model_dump(mode="json", by_alias=is_exact, warnings=False)
        return model.items() if hasattr(model, "items") else [("root", model)]
    for verb in ("to_dict_recursive", "to_dict", "model_dump"):
        if callable(getattr(kind, verb, None)):
            dumped: Any = getattr(value, verb)()
            if isinstance(dumped, Mapping):
                return cast("Mapping[Any, Any]", dumped).items()
    library = str(kind.__module__).partition(".")[0]
    held = {"slack_sdk": "data", "github": "_rawData"}.get(library)
    if held is not None and isinstance(found := getattr(value, held, None), Mapping):
        return cast("Mapping[Any, Any]", found).items()
    status = getattr(value, "status_code", None)
    own: dict[str, Any] = getattr(value, "__dict__", {})
    body = own.get("_content")
    if isinstance(status, int) and isinstance(body, bytes):
        name, said = _body(value, body)
        hides = name == "text" and _has_secret(said)
        return [("status_code", status), *([] if hides else [(name, said)])]
    if library in _PLAIN_OBJECTS:
        return [(k, v) for k, v in own.items() if not k.startswith("_") and _is_plain(v)]
    return None


_PLAIN_OBJECTS = frozenset({"twilio"})


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(
        value, str | int | float | Decimal | datetime | date | dict | list
    )


def _body(value: Any, body: bytes) -> tuple[str, Any]:
    if not iscoroutinefunction(getattr(value, "json", None)):
        try:
            return "json", json.loads(body)
        except ValueError:
            pass
    return "text", body.decode()


def _has_secret(text: str) -> bool:
    """Whether a text holds a secret behind a name, as a form does: `oauth_token=…&…`."""
    if len(text) > LIMIT:
        return False  # it is too big to be kept
    printed = "".join(c if c.isprintable() or c == "\n" else " " for c in text)
    return scrub(printed) != printed
