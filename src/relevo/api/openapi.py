"""The OpenAPI document, made from the same table that answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec

from relevo.api.call import Call
from relevo.breaker import Turn
from relevo.desk.views import is_moment
from relevo.job import After
from relevo.version import version

ERROR = {
    "type": "object",
    "properties": {"error": {"type": "string"}, "message": {"type": "string"}},
    "required": ["error", "message"],
}
_STATUSES = {
    "400": "the question is written wrongly",
    "401": "nobody is logged in, or the token is not good",
    "403": "the role does not reach that far",
    "404": "there is no such thing, or not for you",
    "409": "not in the state the job is in",
    "413": "the body is too long",
    "415": "the body is no JSON",
    "422": "the body is not as it must be",
    "429": "too many calls from there",
    "503": "the store does not answer",
}


def document(calls: Sequence[Call]) -> dict[str, Any]:
    """OpenAPI 3.1 of these calls."""
    types = [each for call in calls for each in (call.takes, call.gives)]
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    _as_shown(components)
    takes, gives = list(schemas)[::2], list(schemas)[1::2]
    asked: dict[str, dict[str, Any]] = {
        call.plain_path + call.verb: _resolved(schema, components)
        for call, schema in zip(calls, takes, strict=True)
    }
    used = _used([*gives, *(schema["properties"] for schema in asked.values())], components)
    paths: dict[str, Any] = {}
    for call, answer in zip(calls, gives, strict=True):
        operation = _operation(call, asked[call.plain_path + call.verb], answer)
        paths.setdefault(call.plain_path, {})[call.verb.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "relevo",
            "version": version(),
            "description": "Everything a person may do at the desk.",
        },
        "paths": paths,
        "components": {
            "schemas": {name: components[name] for name in sorted(used)} | {"Error": ERROR},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": "relevo_session"},
            },
        },
        "security": [{"token": []}, {"session": []}],
    }


def _operation(call: Call, asked: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = asked.get("properties", {})
    required = set(asked.get("required", []))
    is_query = call.verb == "GET"
    parameters = [
        {
            "name": name,
            "in": "path" if name in call.places else "query",
            "required": name in call.places or name in required,
            "schema": {k: v for k, v in schema.items() if k != "description"},
            **({"description": schema["description"]} if "description" in schema else {}),
        }
        for name, schema in fields.items()
        if is_query or name in call.places
    ]
    operation: dict[str, Any] = {
        "operationId": call.name,
        "summary": call.says,
        "tags": [call.subject],
        "x-role": str(call.role),
        "parameters": parameters,
        "responses": {
            "200": {
                "description": "so it is",
                "content": {"application/json": {"schema": answer}},
            }
        }
        | {
            status: {
                "description": text,
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            }
            for status, text in _STATUSES.items()
        },
    }
    if not is_query:
        body = {name: schema for name, schema in fields.items() if name not in call.places}
        operation["requestBody"] = {
            "required": bool(required - set(call.places)),
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "properties": body,
                        "required": sorted(required - set(call.places)),
                        "additionalProperties": False,
                    }
                }
            },
        }
    return operation


def _resolved(schema: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    return components[schema["$ref"].rpartition("/")[2]]


def _used(schemas: Iterable[Any], components: dict[str, Any]) -> set[str]:
    """The components that answers lead to."""
    found: set[str] = set()
    left = list(schemas)
    while left:
        for name in set(_references(left.pop())) - found:
            found.add(name)
            left.append(components[name])
    return found


def _references(schema: Any) -> Iterable[str]:
    if isinstance(schema, dict):
        for name, value in cast("dict[str, Any]", schema).items():
            if name == "$ref":
                yield value.rpartition("/")[2]
            else:
                yield from _references(value)
    elif isinstance(schema, list):
        for value in cast("list[Any]", schema):
            yield from _references(value)


def _as_shown(components: dict[str, Any]) -> None:
    """As view() shows things: moments are ISO text, and bytes whatever JSON they hold."""
    for name, kind in ((kind.__name__, kind) for kind in (After, Turn)):
        if name in components:  # kept as a list, shown with the names of its fields
            names = [field.name for field in msgspec.structs.fields(kind)]
            places: list[Any] = components[name]["prefixItems"]
            shown = dict(zip(names, places, strict=True))
            components[name] = {"title": name, "type": "object", "properties": shown}
    for component in components.values():
        fields: dict[str, Any] = component.get("properties", {})
        for name, schema in fields.items():
            if is_moment(name):
                fields[name] = {"type": ["string", "null"], "format": "date-time"}
            elif "base64" in str(schema):
                fields[name] = {"description": "JSON"}
