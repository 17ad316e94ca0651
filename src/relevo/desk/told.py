"""Compare a result that a person tells with what the call is to give: its `type=`, or its like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from msgspec.json import encode

_KINDS: dict[type[object], str] = {
    dict: "an object",
    list: "a list",
    str: "a text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    type(None): "null",
}
_OF_SCHEMA: dict[str, tuple[str, Any]] = {
    "object": ("an object", {}),
    "array": ("a list", []),
    "string": ("a text", "…"),
    "boolean": ("true or false", True),
    "integer": ("a whole number", 0),
    "number": ("a number", 0),
    "null": ("null", None),
}
_EXAMPLES: dict[str, Any] = dict(_OF_SCHEMA.values())
_DEPTH = 5


def unlike(value: Any, earlier: Sequence[Any]) -> str:
    """What a value lacks to be like the earlier ones; "" if it is, or if there are none."""
    kinds = {_kind(each) for each in earlier}
    if not kinds:
        return ""
    objects = [cast("dict[str, Any]", each) for each in earlier if isinstance(each, dict)]
    if _kind(value) not in kinds:
        gave = " or ".join(sorted(kinds))
        return f"earlier calls gave {gave}, not {_kind(value)}. {_write(earlier, objects)}"
    if isinstance(value, dict) and objects:
        common = set(objects[0]).intersection(*objects[1:])
        missing = sorted(common - set(cast("dict[str, Any]", value)))
        if missing:
            return f"what earlier calls gave has {_names(missing)}, too. {_write(earlier, objects)}"
    return ""


def misfit(value: Any, schema: Mapping[str, Any]) -> str:
    """What a value lacks to be read as the call's `type=`, given as JSON schema; "" if nothing."""
    said = _misfit(value, schema, schema.get("$defs", {}), "")
    if not said:
        return ""
    shown = _shown(schema, schema.get("$defs", {}))
    return f"the call says type=, and {said}. {_told(shown)}"


def _misfit(value: Any, schema: Mapping[str, Any], named: Mapping[str, Any], place: str) -> str:
    at = f"'{place}'" if place else "it"
    ways = schema.get("anyOf")
    if ways:
        found = [_misfit(value, each, named, place) for each in ways]
        return "" if "" in found else found[0]
    if "$ref" in schema:
        return _misfit(value, named.get(schema["$ref"].rpartition("/")[2], {}), named, place)
    if "enum" in schema and value not in schema["enum"]:
        return f"{at} is one of {encode(schema['enum']).decode()}"
    kind = schema.get("type")
    if isinstance(kind, str) and kind in _OF_SCHEMA and not _is(value, kind):
        return f"{at} is {_OF_SCHEMA[kind][0]}, not {_kind(value)}"
    if isinstance(value, dict):
        entries = cast("dict[str, Any]", value)
        missing = sorted(set(schema.get("required", ())) - set(entries))
        if missing:
            return f"{at} has {_names(missing)}, too"
        fields = schema.get("properties", {})
        more = schema.get("additionalProperties")
        for name, each in entries.items():
            inner = fields.get(name, more if isinstance(more, dict) else {})
            if said := _misfit(each, inner, named, f"{place}.{name}" if place else name):
                return said
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        for number, each in enumerate(cast("list[Any]", value)):
            if said := _misfit(each, schema["items"], named, f"{place}[{number}]"):
                return said
    return ""


def _is(value: Any, kind: str) -> bool:
    if kind == "integer":
        return type(value) is int
    return _kind(value) == _OF_SCHEMA[kind][0]


def _shown(schema: Mapping[str, Any], named: Mapping[str, Any], depth: int = 0) -> Any:
    """An example of what a schema lets through."""
    if "$ref" in schema and depth < _DEPTH:
        return _shown(named.get(schema["$ref"].rpartition("/")[2], {}), named, depth + 1)
    if schema.get("anyOf"):
        return _shown(schema["anyOf"][0], named, depth + 1)
    if schema.get("enum"):
        return schema["enum"][0]
    if schema.get("properties") and depth < _DEPTH:
        required = schema.get("required") or list(schema["properties"])
        fields = schema["properties"]
        return {name: _shown(fields.get(name, {}), named, depth + 1) for name in required}
    return _OF_SCHEMA.get(schema.get("type", ""), ("", "…"))[1]


def _kind(value: Any) -> str:
    kind = cast("type[object]", type(value))
    return _KINDS.get(kind, kind.__name__)


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - 6} more fields" if len(names) > 6 else ""
    return ", ".join(names[:6]) + more


def _write(earlier: Sequence[Any], objects: Sequence[dict[str, Any]]) -> str:
    """How to write such a result, without anybody's values."""
    if not objects:
        return _told(_EXAMPLES.get(_kind(earlier[0]), "…"))
    common = set(objects[0]).intersection(*objects[1:]) or set(objects[0])
    return _told({name: _like(each) for name, each in objects[0].items() if name in common})


def _like(value: Any) -> Any:
    """An example value of the same kind, which gives nothing of the stored one away."""
    if isinstance(value, dict):
        return {name: _like(each) for name, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_like(each) for each in cast("list[Any]", value)[:1]]
    return _EXAMPLES[_kind(value)]


def _told(shown: Any) -> str:
    written = f"--result '{encode(shown).decode()}'" if shown != "…" else "--code TEXT"
    return f"Write it with {written}; --anyway writes what you gave"
