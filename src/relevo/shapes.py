"""What a declared type lets through: one check per field, read once per class.

JSON bends what it cannot say: NaN becomes null, bytes become text, a set a list. The checks refuse
such values before they are encoded, and with them all that is not of the declared type.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import NoneType
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
from msgspec import inspect

from relevo import sensitive
from relevo.errors import DefinitionError

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
    Decimal: "a Decimal; send whole cents as int, or str(amount)",
    str: "a subclass of str; send str(value)",
    int: "a subclass of int; send int(value)",
    float: "a subclass of float; send float(value)",
    dict: "a subclass of dict; send dict(value)",
}


def kind_of(value: object) -> type[Any]:
    """type(value), in the words of a type checker that wants no unknowns."""
    return type(value)


def _instead(kind: type[Any]) -> str:
    for known, advice in _INSTEAD.items():
        if issubclass(kind, known):
            return advice
    if hasattr(kind, "read"):
        return "a file; store it and send a signed storage URL"
    return f"{kind.__name__}, which is not JSON; send an id, or the plain fields that are needed"


# Models of pydantic, known by their verbs so that nobody has to install it


def _is_model(kind: type[Any]) -> bool:
    return hasattr(kind, "model_validate") and hasattr(kind, "model_dump")


def _dump(model: Any) -> Any:
    # Its warnings would quote the value; what does not fit is found when it is read back.
    return model.model_dump(mode="json", by_alias=True, round_trip=True, warnings=False)


class Unfit(ValueError):
    """What a model has against its input, without the input."""


def to_plain(value: Any) -> Any:
    """What JSON can say of a value it does not know."""
    kind = kind_of(value)
    if _is_model(kind):
        return _dump(value)
    raise Refused(_instead(kind))


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


def _model(value: Any, walk: Walk, depth: int) -> None:
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


def _wrong(expects: str, value: Any) -> Refused:
    return Refused(f"expects {expects}, got {type(value).__name__}")


def _float(value: Any, walk: Walk, depth: int) -> None:
    if type(value) is float:
        if not math.isfinite(value):
            raise Refused("NaN or infinity, which JSON does not have; send None, or leave it out")
    elif type(value) is not int:
        raise _wrong("float", value)


def _moment(value: Any, walk: Walk, depth: int) -> None:
    if type(value) is not datetime:
        raise _wrong("datetime", value)
    offset = value.utcoffset()
    if offset is None:
        raise Refused("a moment without time zone; send datetime.now(UTC), or .astimezone()")
    if offset.seconds % 60 or offset.microseconds:
        raise Refused("a time zone with odd seconds, which JSON's moments lack; send UTC")


def _text(value: str, walk: Walk, depth: int) -> None:
    walk.spend(len(value))


def _each(parts: Iterable[tuple[str | int, Any, Check]], walk: Walk, depth: int) -> None:
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
    float: _float,
    datetime: _moment,
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
        _pairs(value.items(), walk, depth)
    elif issubclass(kind, list | tuple):
        _each(((index, each, check_any) for index, each in enumerate(value)), walk, depth)
    elif issubclass(kind, Enum):
        check_any(value.value, walk, depth)
    elif issubclass(kind, msgspec.Struct):
        _pairs(((name, getattr(value, name)) for name in value.__struct_fields__), walk, depth)
    elif dataclasses.is_dataclass(kind):
        _pairs(((f.name, getattr(value, f.name)) for f in dataclasses.fields(kind)), walk, depth)
    elif _is_model(kind):
        _model(value, walk, depth)
    else:
        raise Refused(_instead(kind))


def _pairs(
    pairs: Iterable[tuple[Any, Any]], walk: Walk, depth: int, check: Check = check_any
) -> None:
    def parts() -> Iterable[tuple[str, Any, Check]]:
        for key, value in pairs:
            walk.key(key)
            yield key, value, check

    _each(parts(), walk, depth)


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """How values of one declared type are checked."""

    expects: str
    check: Check
    kinds: frozenset[type] | None = None  # set where the value's type alone decides


def _exactly(expects: str, *kinds: type) -> Plan:
    known = frozenset(kinds)

    def check(value: Any, walk: Walk, depth: int) -> None:
        if type(value) not in known:
            raise _wrong(expects, value)
        if type(value) is str:
            walk.spend(len(value))

    return Plan(expects, check, known)


def _instance(cls: type, check: Check) -> Plan:
    def checked(value: Any, walk: Walk, depth: int) -> None:
        # A subclass would come back as less than it was.
        if type(value) is not cls:
            raise _wrong(cls.__name__, value)
        check(value, walk, depth)

    return Plan(cls.__name__, checked)


def _object(cls: type, fields: dict[str, Plan]) -> Plan:
    def check(value: Any, walk: Walk, depth: int) -> None:
        parts = ((name, getattr(value, name), plan.check) for name, plan in fields.items())
        _each(parts, walk, depth)

    return _instance(cls, check)


def _typed_dict(cls: type, fields: dict[str, Plan]) -> Plan:
    def check(value: Any, walk: Walk, depth: int) -> None:
        if not issubclass(type(value), dict):
            raise _wrong(cls.__name__, value)
        if not fields.keys() >= value.keys():
            raise Refused(f"holds a key that {cls.__name__} does not declare")
        _each(((key, each, fields[key].check) for key, each in value.items()), walk, depth)

    return Plan(cls.__name__, check)


def _array(item: Plan, word: str, *accepted: type) -> Plan:
    expects = f"{word} of {item.expects}"

    def check(value: Any, walk: Walk, depth: int) -> None:
        if not isinstance(value, accepted):
            raise _wrong(expects, value)
        items: Sequence[Any] = value
        _each(((index, each, item.check) for index, each in enumerate(items)), walk, depth)

    return Plan(expects, check)


def _tuple(items: list[Plan]) -> Plan:
    expects = f"tuple of {len(items)}"

    def check(value: Any, walk: Walk, depth: int) -> None:
        if not issubclass(type(value), tuple) or len(value) != len(items):
            raise _wrong(expects, value)
        parts = zip(items, value, strict=True)
        _each(((i, each, plan.check) for i, (plan, each) in enumerate(parts)), walk, depth)

    return Plan(expects, check)


def _dict(item: Plan) -> Plan:
    expects = f"dict of {item.expects}"

    def check(value: Any, walk: Walk, depth: int) -> None:
        if not issubclass(type(value), dict):
            raise _wrong(expects, value)
        _pairs(value.items(), walk, depth, item.check)

    return Plan(expects, check)


def _one_of(values: Sequence[Any]) -> Plan:
    expects = "one of " + ", ".join(map(repr, values))

    def check(value: Any, walk: Walk, depth: int) -> None:
        # By type too: True is not the 1 that was listed.
        if not any(type(value) is type(each) and value == each for each in values):
            raise Refused(f"expects {expects}")

    return Plan(expects, check)


def _union(plans: list[Plan]) -> Plan:
    expects = " or ".join(plan.expects for plan in plans)
    exact = _exactly(expects, *(kind for plan in plans for kind in plan.kinds or ()))
    others = [plan for plan in plans if plan.kinds is None]

    def check(value: Any, walk: Walk, depth: int) -> None:
        if type(value) in (exact.kinds or ()):
            return exact.check(value, walk, depth)
        nearest = _wrong(expects, value)
        for plan in others:
            try:
                return plan.check(value, walk, depth)
            except Refused as refused:
                # What lies deeper, or is a trap, says more than "expects a or b".
                if refused.trail or not refused.reason.startswith("expects"):
                    nearest = refused
        raise nearest

    return Plan(expects, check) if others else exact


# Reading types

_NO_BYTES = "bytes cannot travel: store them and declare a signed storage URL as str"
_CANNOT: dict[type[inspect.Type], str] = {
    inspect.BytesType: _NO_BYTES,
    inspect.ByteArrayType: _NO_BYTES,
    inspect.MemoryViewType: _NO_BYTES,
    inspect.SetType: "a set has no order in JSON: declare a list",
    inspect.FrozenSetType: "a set has no order in JSON: declare a tuple",
    inspect.DecimalType: "a Decimal is not JSON: declare whole cents as int, or the amount as str",
    inspect.RawType: "raw JSON hides what it holds: declare its type, or dict[str, Any]",
    inspect.ExtType: "an extension type is not JSON: declare its plain fields",
}
_PLANS: dict[type[inspect.Type], Plan] = {
    inspect.NoneType: _exactly("None", NoneType),
    inspect.BoolType: _exactly("bool", bool),
    inspect.IntType: _exactly("int", int),
    inspect.StrType: _exactly("str", str),
    inspect.DateType: _exactly("date", date),
    inspect.TimeType: _exactly("time", time),
    inspect.TimeDeltaType: _exactly("timedelta", timedelta),
    inspect.UUIDType: _exactly("UUID", UUID),
    inspect.FloatType: Plan("float", _float),
    inspect.AnyType: Plan("anything", check_any),
}
_BOUNDS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern")


class Reader:
    """Reads the fields of a message class; DefinitionError for those that cannot travel."""

    def __init__(self, owner: type, allow: frozenset[str]) -> None:
        self.owner = owner
        self.allow = allow
        self.bounded = False  # some type says more than its type: lengths, patterns, listed keys
        self._made: dict[type, Plan] = {}
        self._making: set[type] = set()

    def fields(self, info: Any, path: str = "") -> dict[str, Plan]:
        """A plan for each field."""
        return {field.name: self._field(field, path) for field in info.fields}

    def _field(self, field: inspect.Field, path: str) -> Plan:
        path = f"{path}.{field.encode_name}" if path else field.encode_name
        types = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
        if not all(isinstance(each, inspect.BoolType | inspect.NoneType) for each in types):
            self._name(field.name, path)
            self._name(field.encode_name, path)
        return self._plan(field.type, path)

    def _name(self, name: str, path: str) -> None:
        if sensitive.names_secret(name) and path not in self.allow:
            raise self._error(path, f"its name is a secret's: {sensitive.SEND_ID}")

    def _error(self, path: str, reason: str) -> DefinitionError:
        return DefinitionError(f"{self.owner.__name__}.{path}: {reason}")

    def _plan(self, info: inspect.Type, path: str) -> Plan:
        if reason := _CANNOT.get(type(info)):
            raise self._error(path, reason)
        if any(getattr(info, bound, None) is not None for bound in _BOUNDS):
            self.bounded = True
        if plan := _PLANS.get(type(info)):
            return plan
        match info:
            case inspect.EnumType(cls=cls):
                return _exactly(cls.__name__, cls)
            case inspect.DateTimeType(tz=False):
                raise self._error(path, "a moment needs a time zone: declare datetime")
            case inspect.DateTimeType():
                return Plan("datetime", _moment)
            case inspect.LiteralType(values=values):
                return _one_of(values)
            case inspect.UnionType(types=types):
                return _union([self._plan(each, path) for each in types])
            case inspect.ListType(item_type=item):
                return _array(self._plan(item, path), "list", list, tuple)
            case inspect.VarTupleType(item_type=item):
                return _array(self._plan(item, path), "tuple", tuple)
            case inspect.TupleType(item_types=items):
                return _tuple([self._plan(each, path) for each in items])
            case inspect.DictType(key_type=key, value_type=value):
                self._keys(key, path)
                return _dict(self._plan(value, path))
            case inspect.TypedDictType():
                self.bounded = True  # keys may be missing
                return self._class(info, path, _typed_dict)
            case inspect.DataclassType() | inspect.StructType() | inspect.NamedTupleType():
                return self._class(info, path, _object)
            case inspect.CustomType(cls=cls) if _is_model(cls):
                names: Iterable[str] = getattr(cls, "model_fields", ())
                for name in names:
                    self._name(name, f"{path}.{name}")
                return _instance(cls, _model)
            case inspect.CustomType(cls=cls):
                raise self._error(path, _instead(cls))
            case _:
                raise self._error(path, f"{type(info).__name__} cannot travel as JSON")

    def _keys(self, key: inspect.Type, path: str) -> None:
        match key:
            case inspect.AnyType() | inspect.StrType():
                return
            case inspect.EnumType(cls=cls) if issubclass(cls, str):
                self.bounded = True
            case inspect.LiteralType(values=values) if all(isinstance(v, str) for v in values):
                self.bounded = True
            case _:
                raise self._error(path, "JSON's keys are text: declare dict[str, …]")

    def _class(self, info: Any, path: str, make: Callable[[type, dict[str, Plan]], Plan]) -> Plan:
        cls: type = info.cls
        if cls in self._making:
            # It holds itself: the plan is there by the time a value is.
            return Plan(cls.__name__, lambda v, walk, depth: self._made[cls].check(v, walk, depth))
        self._making.add(cls)
        self._made[cls] = make(cls, self.fields(info, path))
        self._making.remove(cls)
        return self._made[cls]
