"""Whether a value is what a JSON schema says: as much of it as our own document uses."""

from __future__ import annotations

import re
from typing import Any

_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "object": dict,
    "array": list,
    "null": type(None),
}
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00")


def problems(
    value: Any, schema: dict[str, Any], document: dict[str, Any], at: str = ""
) -> list[str]:
    """What is wrong with a value; nothing, if it is as it should be."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        tries = [problems(value, each, document, at) for each in schema["anyOf"]]
        return [] if [] in tries else tries[0]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{at}: {value!r} is none of {schema['enum']}"]
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(value, kind) for kind in kinds):
        return [f"{at}: {value!r:.60} is no {kinds}"]
    if schema.get("format") == "date-time" and value is not None and not _MOMENT.fullmatch(value):
        return [f"{at}: {value!r:.60} is no moment"]
    found: list[str] = []
    if isinstance(value, dict) and "properties" in schema:
        known = schema["properties"]
        found += [
            f"{at}: {name} is missing" for name in schema.get("required", []) if name not in value
        ]
        found += [f"{at}: {name} is unknown" for name in value if name not in known]
        for name in set(value) & set(known):
            found += problems(value[name], known[name], document, f"{at}.{name}")
    elif isinstance(value, dict) and isinstance(schema.get("additionalProperties"), dict):
        for name, each in value.items():
            found += problems(each, schema["additionalProperties"], document, f"{at}.{name}")
    elif isinstance(value, list) and "items" in schema:
        for number, each in enumerate(value):
            found += problems(each, schema["items"], document, f"{at}[{number}]")
    return found


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES[kind])
