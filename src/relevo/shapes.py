"""What a declared type lets through: one check per field, read once per class.

What is not of the declared type is refused, and with it all that JSON would bend.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from datetime import date, time, timedelta
from types import NoneType
from typing import Any
from uuid import UUID

from msgspec import inspect

from relevo import sensitive
from relevo.errors import DefinitionError
from relevo.values import (
    Check,
    Refused,
    Walk,
    check_amount,
    check_any,
    check_float,
    check_model,
    check_moment,
    each_of,
    instead,
    is_model,
    pairs_of,
    wrong,
)


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
            raise wrong(expects, value)
        if type(value) is str:
            walk.spend(len(value))

    return Plan(expects, check, known)


def _instance(cls: type, check: Check) -> Plan:
    def checked(value: Any, walk: Walk, depth: int) -> None:
        # A subclass would come back as less than it was.
        if type(value) is not cls:
            raise wrong(cls.__name__, value)
        check(value, walk, depth)

    return Plan(cls.__name__, checked)


def _object(cls: type, fields: dict[str, Plan]) -> Plan:
    def check(value: Any, walk: Walk, depth: int) -> None:
        parts = ((name, getattr(value, name), plan.check) for name, plan in fields.items())
        each_of(parts, walk, depth)

    return _instance(cls, check)


def _typed_dict(cls: type, fields: dict[str, Plan]) -> Plan:
    def check(value: Any, walk: Walk, depth: int) -> None:
        if not issubclass(type(value), dict):
            raise wrong(cls.__name__, value)
        if not fields.keys() >= value.keys():
            raise Refused(f"holds a key that {cls.__name__} does not declare")
        each_of(((key, each, fields[key].check) for key, each in value.items()), walk, depth)

    return Plan(cls.__name__, check)


def _array(item: Plan, word: str, *accepted: type) -> Plan:
    expects = f"{word} of {item.expects}"

    def check(value: Any, walk: Walk, depth: int) -> None:
        if not isinstance(value, accepted):
            raise wrong(expects, value)
        items: Sequence[Any] = value
        each_of(((index, each, item.check) for index, each in enumerate(items)), walk, depth)

    return Plan(expects, check)


def _tuple(items: list[Plan]) -> Plan:
    expects = f"tuple of {len(items)}"

    def check(value: Any, walk: Walk, depth: int) -> None:
        if not issubclass(type(value), tuple) or len(value) != len(items):
            raise wrong(expects, value)
        parts = zip(items, value, strict=True)
        each_of(((i, each, plan.check) for i, (plan, each) in enumerate(parts)), walk, depth)

    return Plan(expects, check)


def _dict(item: Plan) -> Plan:
    expects = f"dict of {item.expects}"

    def check(value: Any, walk: Walk, depth: int) -> None:
        if not issubclass(type(value), dict):
            raise wrong(expects, value)
        pairs_of(value.items(), walk, depth, item.check)

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
        nearest = wrong(expects, value)
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
    inspect.FloatType: Plan("float", check_float),
    inspect.DecimalType: Plan("Decimal", check_amount),
    inspect.AnyType: Plan("anything", check_any),
}
_BOUNDS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern")


class Reader:
    """Reads the fields of a message class; DefinitionError for those that cannot travel."""

    def __init__(self, owner: type, allow: frozenset[str]) -> None:
        self.owner = owner
        self.allow = allow
        self.named = False  # some name may be a secret's: its values tell
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
        if self._is_allowed(path):
            return
        if sensitive.declares_secret(name):
            raise self._error(
                path,
                f"its name is a secret's: {sensitive.SEND_ID}, or say allow=[{path!r}] in the "
                "class line if it holds none",
            )
        self.named = self.named or sensitive.names_secret(name)

    def _is_allowed(self, path: str) -> bool:
        steps = path.split(".")
        return any(".".join(steps[: end + 1]) in self.allow for end in range(len(steps)))

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
                return Plan("datetime", check_moment)
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
            case inspect.CustomType(cls=cls) if is_model(cls):
                names: Iterable[str] = getattr(cls, "model_fields", ())
                for name in names:
                    self._name(name, f"{path}.{name}")
                return _instance(cls, check_model)
            case inspect.CustomType(cls=cls):
                raise self._error(path, instead(cls))
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
