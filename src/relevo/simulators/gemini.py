"""Gemini, pretended: generateContent with a JSON schema, answering what a test has laid out.

Without a script it answers by the last number in the message. Every call is in the ledger as
("gemini", "generate", the first words of its text).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from relevo.simulators.world import World, fault

KEY = "relevo-simulator-key"


def environment(base: str) -> dict[str, str]:
    return {
        "GEMINI_API_KEY": KEY,
        "GOOGLE_GEMINI_BASE_URL": f"{base}/gemini",
        "RAZWORKS_STORAGE_HOSTS": "storage.razworks.example",
    }


@dataclass(slots=True)
class Model:
    """What it will say: texts or whole answers, first to last; then by its own wits."""

    script: list[str | dict[str, Any]] = field(default_factory=list[str | dict[str, Any]])
    seen: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


def model(world: World) -> Model:
    return world.room("gemini", Model)


def says(text: str, reason: str = "STOP") -> dict[str, Any]:
    """A whole answer around a text."""
    return {
        "candidates": [
            {
                "content": {"role": "model", "parts": [{"text": text}]},
                "finishReason": reason,
                "index": 0,
            }
        ],
        "usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 7, "totalTokenCount": 16},
        "modelVersion": "gemini-2.5-flash",
        "responseId": "relevo",
    }


def routes(world: World) -> list[BaseRoute]:
    @world.call("gemini", "generate")
    async def generate(request: Request) -> Response:
        if request.headers.get("x-goog-api-key") != KEY:
            return _error(400, "INVALID_ARGUMENT", "API key not valid")
        if fault(request) == "refuse":
            return _error(403, "PERMISSION_DENIED", "The caller does not have permission")
        asked: dict[str, Any] = await request.json()
        here = model(world)
        here.seen.append(asked)
        parts = [part for content in asked.get("contents", ()) for part in content["parts"]]
        words = " ".join(str(part.get("text", "")) for part in parts).strip()
        world.effect("gemini", "generate", words.partition("---")[2].strip()[:80])
        if here.script:
            told = here.script.pop(0)
            return JSONResponse(says(told) if isinstance(told, str) else told)
        shape: dict[str, Any] = _shape(asked)
        if "is_expense" in shape or not shape:
            return JSONResponse(says(json.dumps(_by_wits(words, parts))))
        files = [part["fileData"]["fileUri"] for part in parts if "fileData" in part]
        if any(f"no-{name}" in file for name in shape for file in files):
            return JSONResponse(says("", "SAFETY"))
        return JSONResponse(says(json.dumps(_by_shape(shape, words or " ".join(files)))))

    return [
        Route(
            "/gemini/{version}/models/{model}:generateContent",
            cast("Any", generate),
            methods=["POST"],
        )
    ]


def _by_wits(words: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    numbers = re.findall(r"\d+(?:\.\d+)?", words.partition("---")[2])
    has_file = any("inlineData" in part or "inline_data" in part for part in parts)
    if not numbers and not has_file:
        return {"is_expense": False}
    return spent(float(numbers[-1]) if numbers else 42.5)


def spent(*amounts: float, **more: Any) -> dict[str, Any]:
    """What a model says of expenses: one for each amount, alike in everything else."""
    fields = {"category": "other", "description": "ticket"} | more
    return {"is_expense": True, "expenses": [{"amount": each} | fields for each in amounts]}


def _shape(asked: dict[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = asked.get("generationConfig") or {}
    schema: dict[str, Any] = config.get("responseSchema") or config.get("responseJsonSchema") or {}
    return schema.get("properties") or {}


def _by_shape(shape: dict[str, Any], about: str) -> dict[str, Any]:
    """Something of every field: lists for lists, a word that is known for an intent."""
    said = {"intent": "idea"}
    return {
        name: ["Ana", "Madrid"]
        if str(kind.get("type", "")).upper() == "ARRAY"
        else said.get(name, f"{name} of {about[:200]}")
        for name, kind in shape.items()
    }


def _error(status: int, word: str, text: str) -> Response:
    return JSONResponse({"error": {"code": status, "message": text, "status": word}}, status)
