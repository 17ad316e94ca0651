"""What a declared type lets through: one check per field, read once per class.

JSON bends what it cannot say: NaN becomes null, bytes become text, a set a list. The checks refuse
such values before they are encoded, and so everything that is not of the declared type.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
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

_STEP = re.compile(r"[^\W\d][\w-]{0,63}")
_INDEX = re.compile(r"\[[^\]]*\]")


class Refused(Exception):
    """Why a value cannot travel; its path is gathered on the way out, the last step first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.trail: list[str] = []


class Budget:
    """What is left of LIMIT while values are walked: a list that holds itself twice is endless."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = LIMIT

    def spend(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise Refused(TOO_BIG)


Check: TypeAlias = Callable[[Any, Budget, int], None]
"""Refuses a value that JSON would bend: wrong type, NaN, naive moment, set, bytes … at a depth."""

_INSTEAD: list[tuple[type, str]] = [
    (bytes, "bytes; store them and send a signed storage URL"),
    (bytearray, "bytes; store them and send a signed storage URL"),
    (memoryview, "bytes; store them and send a signed storage URL"),
    (set, "a set; send a sorted list"),
    (frozenset, "a set; send a sorted list"),
    (Decimal, "a Decimal; send whole cents as int, or str(amount)"),
    (str, "a kind of str; send str(value)"),
    (int, "a kind of int; send int(value)"),
    (float, "a kind of float; send float(value)"),
]


def _instead(kind: type) -> str:
    for known, advice in _INSTEAD:
        if issubclass(kind, known):
            return advice
    if hasattr(kind, "read"):
        return "a file; store it and send a signed storage URL"
    return f"{kind.__name__}, which is not JSON; send an id, or the plain fields that are needed"


def _is_model(kind: type) -> bool:
    # Pydantic is known by its verbs, so that nobody has to install it.
    return hasattr(kind, "model_validate") and hasattr(kind, "model_dump")


def _dump(model: Any) -> Any:
    return model.model_dump(mode="json", by_alias=True, round_trip=True)


def to_plain(value: Any) -> Any:
    if _is_model(type(value)):
        return _dump(value)
    raise Refused(_instead(type(value)))


class Unfit(ValueError):
    """What a model of pydantic has against its input, without the input."""


def from_plain(kind: type, value: Any) -> Any:
    problem = ""
    try:
        validate = getattr(kind, "model_validate_json", None)
        # From JSON text, so that a strict model takes a moment or an id written as text.
        return validate(to_json(value)) if validate else kind.model_validate(value)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType] - _is_model saw it
    except ValueError as error:
        details: Any = getattr(error, "errors", None)
        places = details(include_input=False) if callable(details) else []
        problem = ", ".join(f"{'.'.join(map(str, p['loc']))} ({p['type']})" for p in places)
    raise Unfit(f"does not fit {kind.__name__}: {problem or 'refused'}")


to_json = msgspec.json.Encoder(enc_hook=to_plain).encode


# Walking values


def step(key: str) -> str:
    """A key as part of a path; one that is itself data stays out of it."""
    plain = _STEP.fullmatch(key) and not any(sensitive.leaks(key))
    return f".{key}" if plain else "[…]"


def _wrong(expects: str, value: Any) -> Refused:
    return Refused(f"expects {expects}, got {type(value).__name__}")


def _deeper(depth: int) -> None:
    if depth > DEPTH:
        raise Refused(TOO_DEEP)


def _number(value: Any, budget: Budget, depth: int) -> None:
    if type(value) is float:
        if not math.isfinite(value):
            raise Refused("NaN or infinity, which JSON does not have; send None, or leave it out")
    elif type(value) is not int:
        raise _wrong("float", value)


def _moment(value: Any, budget: Budget, depth: int) -> None:
    if type(value) is not datetime:
        raise _wrong("datetime", value)
    if value.utcoffset() is None:
        raise Refused("a moment without time zone; send datetime.now(UTC), or .astimezone()")


def _text(value: str, budget: Budget, depth: int) -> None:
    budget.spend(len(value))


def _each(items: Iterable[tuple[str, Any, Check]], budget: Budget, depth: int) -> None:
    _deeper(depth)
    for step, value, check in items:
        budget.spend(1)
        try:
            check(value, budget, depth + 1)
        except Refused as refused:
            refused.trail.append(step)
            raise


def _keys(value: Mapping[Any, Any], budget: Budget) -> None:
    for key in value:
        if not isinstance(key, str):
            raise Refused(f"a key is {type(key).__name__}, and JSON's are text; send str(key)")
        budget.spend(len(key))


def _model(value: Any, budget: Budget, depth: int) -> None:
    dumped = _dump(value)
    check_any(dumped, budget, depth)
    if from_plain(type(value), dumped) != value:
        raise Refused(f"{type(value).__name__} does not come back from JSON as it was sent")


_SCALARS: dict[type, Check | None] = {
    NoneType: None,
    bool: None,
    int: None,  # those past 64 bit are found in the encoded text
    str: _text,
    float: _number,
    datetime: _moment,
    date: None,
    time: None,
    timedelta: None,
    UUID: None,
}


def check_any(value: Any, budget: Budget, depth: int) -> None:
    """The check where no type is declared."""
    kind = type(value)
    if kind in _SCALARS:
        if check := _SCALARS[kind]:
            check(value, budget, depth)
    elif isinstance(value, dict):
        _keys(value, budget)
        _each(((step(key), each, check_any) for key, each in value.items()), budget, depth)
    elif isinstance(value, list | tuple):
        _each(((f"[{index}]", each, check_any) for index, each in enumerate(value)), budget, depth)
    elif isinstance(value, Enum):
        check_any(value.value, budget, depth)
    elif isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
        _each(((f".{name}", getattr(value, name), check_any) for name in names), budget, depth)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        _each(((f".{name}", getattr(value, name), check_any) for name in names), budget, depth)
    elif _is_model(kind):
        _model(value, budget, depth)
    else:
        raise Refused(_instead(kind))


# Reading types


def allowed(path: str, allow: frozenset[str]) -> bool:
    return bool(allow) and _INDEX.sub("", path).removeprefix(".") in allow


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """How values of one declared type are checked."""

    expects: str
    check: Check
    kinds: frozenset[type] | None = None  # where the value's type alone decides


def _exactly(expects: str, *kinds: type) -> Plan:
    allowed = frozenset(kinds)

    def check(value: Any, budget: Budget, depth: int) -> None:
        if type(value) not in allowed:
            raise _wrong(expects, value)
        if type(value) is str:
            budget.spend(len(value))

    return Plan(expects, check, allowed)


_CANNOT: dict[type[inspect.Type], str] = {
    inspect.BytesType: "bytes cannot travel: store them and declare a signed storage URL as str",
    inspect.ByteArrayType: "bytes cannot travel: store them and declare a signed storage URL as str",
    inspect.MemoryViewType: "bytes cannot travel: store them and declare a signed storage URL as str",
    inspect.SetType: "a set has no order in JSON: declare a list",
    inspect.FrozenSetType: "a set has no order in JSON: declare a tuple",
    inspect.DecimalType: "a Decimal is not JSON: declare whole cents as int, or the amount as str",
    inspect.RawType: "raw JSON hides what it holds: declare its type, or dict[str, Any]",
    inspect.ExtType: "an extension type is not JSON: declare its plain fields",
}
_EXACT: dict[type[inspect.Type], Plan] = {
    inspect.NoneType: _exactly("None", NoneType),
    inspect.BoolType: _exactly("bool", bool),
    inspect.IntType: _exactly("int", int),
    inspect.StrType: _exactly("str", str),
    inspect.DateType: _exactly("date", date),
    inspect.TimeType: _exactly("time", time),
    inspect.TimeDeltaType: _exactly("timedelta", timedelta),
    inspect.UUIDType: _exactly("UUID", UUID),
    inspect.FloatType: Plan("float", _number),
    inspect.AnyType: Plan("anything", check_any),
}
_BOUNDS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern")


class Reader:
    """Reads a message class once: how each field is checked, and what must be looked at later."""

    def __init__(self, owner: type, allow: frozenset[str]) -> None:
        self.owner = owner
        self.allow = allow
        self.loose = False  # keys are known only at run time
        self.bounded = False  # the types say more than types: lengths, patterns, listed keys
        self.seen: dict[type, Plan] = {}

    def fields(self, info: Any, path: str) -> dict[str, Plan]:
        return {field.name: self.field(field, path) for field in info.fields}

    def field(self, field: inspect.Field, path: str) -> Plan:
        path = f"{path}.{field.encode_name}" if path else field.encode_name
        flag = {inspect.BoolType, inspect.NoneType}
        members = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
        if not flag.issuperset(map(type, members)):
            self.name(field.name, path)
            self.name(field.encode_name, path)
        return self.plan(field.type, path)

    def name(self, name: str, path: str) -> None:
        if sensitive.names_secret(name) and not allowed(path, self.allow):
            raise self.wrong(
                path, "a secret by its name: declare an id and look it up when it runs"
            )

    def wrong(self, path: str, reason: str) -> DefinitionError:
        return DefinitionError(f"{self.owner.__name__}.{path}: {reason}")

    def plan(self, info: inspect.Type, path: str) -> Plan:
        if reason := _CANNOT.get(type(info)):
            raise self.wrong(path, reason)
        if any(getattr(info, bound, None) is not None for bound in _BOUNDS):
            self.bounded = True
        if isinstance(info, inspect.AnyType):
            self.loose = True
        if exact := _EXACT.get(type(info)):
            return exact
        match info:
            case inspect.EnumType(cls):
                return _exactly(cls.__name__, cls)
            case inspect.DateTimeType(tz):
                if tz is False:
                    raise self.wrong(path, "a moment needs a time zone: declare datetime")
                return Plan("datetime", _moment)
            case inspect.LiteralType(values):
                return _one_of(values)
            case inspect.UnionType(types):
                return _union([self.plan(each, path) for each in types])
            case inspect.ListType(item_type=item):
                return _list(self.plan(item, f"{path}[]"), "list", (list, tuple))
            case inspect.VarTupleType(item_type=item):
                return _list(self.plan(item, f"{path}[]"), "tuple", (tuple,))
            case inspect.TupleType(items):
                return _tuple([self.plan(each, f"{path}[]") for each in items])
            case inspect.DictType(key_type=key, value_type=value):
                self.loose = True
                self.keys(key, path)
                return _dict(self.plan(value, f"{path}[]"))
            case inspect.CustomType(cls):
                return self.custom(cls, path)
            case inspect.TypedDictType():
                return self.recursive(info, path, _typed_dict)
            case inspect.DataclassType() | inspect.StructType() | inspect.NamedTupleType():
                return self.recursive(info, path, _object)
            case _:
                raise self.wrong(path, f"{type(info).__name__} cannot travel as JSON")

    def keys(self, key: inspect.Type, path: str) -> None:
        match key:
            case inspect.AnyType() | inspect.StrType():
                return
            case inspect.EnumType(cls) if issubclass(cls, str):
                self.bounded = True
            case inspect.LiteralType(values) if all(isinstance(each, str) for each in values):
                self.bounded = True
            case _:
                raise self.wrong(path, "JSON's keys are text: declare dict[str, …]")

    def custom(self, cls: type, path: str) -> Plan:
        if not _is_model(cls):
            raise self.wrong(path, f"{_instead(cls)}")
        self.loose = True
        names: Any = getattr(cls, "model_fields", ())
        for name in names:
            self.name(name, f"{path}.{name}")
        return Plan(cls.__name__, _instance(cls, _model))

    def recursive(
        self, info: Any, path: str, make: Callable[[type, dict[str, Plan]], Plan]
    ) -> Plan:
        """The plan of a class that may hold itself: looked up when it is used."""
        cls: type = info.cls
        if cls not in self.seen:
            later = Plan(cls.__name__, lambda *args: self.seen[cls].check(*args))
            self.seen[cls] = later
            self.seen[cls] = make(cls, self.fields(info, path))
        return self.seen[cls]


def _instance(cls: type, check: Check) -> Check:
    def checked(value: Any, budget: Budget, depth: int) -> None:
        # A subclass would come back as less than it was.
        if type(value) is not cls:
            raise _wrong(cls.__name__, value)
        check(value, budget, depth)

    return checked


def _object(cls: type, fields: dict[str, Plan]) -> Plan:
    parts = [(f".{name}", name, plan.check) for name, plan in fields.items()]

    def check(value: Any, budget: Budget, depth: int) -> None:
        items = ((step, getattr(value, name), check) for step, name, check in parts)
        _each(items, budget, depth)

    return Plan(cls.__name__, _instance(cls, check))


def _typed_dict(cls: type, fields: dict[str, Plan]) -> Plan:
    def check(value: Any, budget: Budget, depth: int) -> None:
        if type(value) is not dict:
            raise _wrong(cls.__name__, value)
        _keys(value, budget)
        items = (
            (step(key), each, fields[key].check if key in fields else check_any)
            for key, each in value.items()
        )
        _each(items, budget, depth)

    return Plan(cls.__name__, check)


def _list(item: Plan, word: str, accepted: tuple[type, ...]) -> Plan:
    expects = f"{word} of {item.expects}"
    kinds = item.kinds

    def check(value: Any, budget: Budget, depth: int) -> None:
        if not isinstance(value, accepted):
            raise _wrong(expects, value)
        if kinds is not None and str not in kinds and kinds.issuperset(map(type, value)):
            budget.spend(len(value))
            return _deeper(depth)
        return _each(
            ((f"[{index}]", each, item.check) for index, each in enumerate(value)), budget, depth
        )

    return Plan(expects, check)


def _tuple(items: list[Plan]) -> Plan:
    expects = f"tuple of {len(items)}"
    steps = [(f"[{index}]", plan.check) for index, plan in enumerate(items)]

    def check(value: Any, budget: Budget, depth: int) -> None:
        if not isinstance(value, tuple) or len(value) != len(steps):
            raise _wrong(expects, value)
        parts = zip(steps, value, strict=True)
        _each(((step, each, check) for (step, check), each in parts), budget, depth)

    return Plan(expects, check)


def _dict(each: Plan) -> Plan:
    expects = f"dict of {each.expects}"

    def check(value: Any, budget: Budget, depth: int) -> None:
        if not isinstance(value, dict):
            raise _wrong(expects, value)
        _keys(value, budget)
        _each(((step(key), item, each.check) for key, item in value.items()), budget, depth)

    return Plan(expects, check)


def _one_of(values: tuple[Any, ...]) -> Plan:
    expects = "one of " + ", ".join(map(repr, values))
    allowed = {(type(value), value) for value in values}

    def check(value: Any, budget: Budget, depth: int) -> None:
        if type(value) not in (str, int, NoneType) or (type(value), value) not in allowed:
            raise Refused(f"expects {expects}")

    return Plan(expects, check)


def _union(plans: list[Plan]) -> Plan:
    expects = " or ".join(plan.expects for plan in plans)
    kinds = frozenset[type]().union(*(plan.kinds or () for plan in plans))
    rest = [plan.check for plan in plans if plan.kinds is None]
    if not rest:
        return _exactly(expects, *kinds)

    def check(value: Any, budget: Budget, depth: int) -> None:
        if type(value) in kinds:
            return _text(value, budget, depth) if type(value) is str else None
        nearest = _wrong(expects, value)
        for each in rest:
            try:
                return each(value, budget, depth)
            except Refused as refused:
                # "expects" of one member says too little; what lies deeper, or a trap, says more.
                if refused.trail or not refused.reason.startswith("expects"):
                    nearest = refused
        raise nearest

    return Plan(expects, check)
