"""The desk over HTTP: JSON under /api, an OpenAPI document, and a page to read it.

One table of calls says path, verb, role and function; what a call takes and gives is read from the
function's annotations. It answers, checks and documents itself by that table alone.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from relevo.api import deliveries, jobs, standing
from relevo.api.call import Call
from relevo.api.openapi import document
from relevo.api.words import SPANISH
from relevo.web import Entry, Room, Web, site

if TYPE_CHECKING:
    from relevo.engine import Relevo

CALLS: tuple[Call, ...] = (*jobs.CALLS, *deliveries.CALLS, *standing.CALLS)

room = Room(Path(__file__).parent / "templates", SPANISH)


def build(relevo: Relevo, web: Web) -> ASGIApp:
    """An ASGI app for everything under /api, for people and tokens of any role."""
    web.menu.insert(0, Entry("HTTP API", "/api/docs"))  # the dashboard's lines come before it
    web.spanish["HTTP API"] = SPANISH["HTTP API"]
    pages = [
        Route("/api/openapi.json", openapi),
        Route("/api/docs", docs),
        Route("/api", docs),
    ]
    calls = [
        Route(f"/api{call.path}", call.__call__, methods=[call.verb], name=call.name)
        for call in CALLS
    ]
    return web.guard(site([*pages, *calls]))


@cache
def _document() -> dict[str, Any]:
    return document(CALLS)


async def openapi(request: Request) -> Response:
    """The OpenAPI document."""
    return Response(json.dumps(_document(), indent=1), media_type="application/json")


async def docs(request: Request) -> Response:
    """The same for people."""
    subjects: dict[str, list[dict[str, Any]]] = {}
    paths = _document()["paths"]
    for call in CALLS:
        operation = paths[call.plain_path][call.verb.lower()]
        body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        fields = [
            {"name": each["name"], "where": each["in"], "is_required": each["required"]}
            | _kind(each["schema"], each.get("description", ""))
            for each in operation["parameters"]
        ] + [
            {
                "name": name,
                "where": "body",
                "is_required": name in body["schema"]["required"],
            }
            | _kind(schema, schema.get("description", ""))
            for name, schema in body.get("schema", {}).get("properties", {}).items()
        ]
        line = {"call": call, "fields": fields}
        subjects.setdefault(call.subject, []).append(line)
    return room.page(request, "docs.html", subjects=subjects)


def _kind(schema: dict[str, Any], text: str) -> dict[str, Any]:
    kinds = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
    first: dict[str, Any] = kinds[0] if kinds else {}
    kind = first.get("type") or first.get("$ref", "").rpartition("/")[2] or "JSON"
    return {
        "kind": kind,
        "default": schema.get("default"),
        "text": text or first.get("description", ""),
    }


__all__ = ["CALLS", "build"]
