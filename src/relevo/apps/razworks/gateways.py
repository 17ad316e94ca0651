"""Whom razworks calls: Doppler Relay for letters, Gemini for understanding."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from html import escape
from typing import Any, cast

from relevo import Relevo
from relevo.apps.doppler_relay import DopplerRelay, Letter
from relevo.apps.outside import Outside, Reply
from relevo.apps.razworks.settings import RazworksSettings

TEXT_MAX = 20_000  # characters of an answer; more is no summary of anything
LIST_MAX = 100


class Mail:
    """Letters from razworks."""

    def __init__(self, relay: DopplerRelay) -> None:
        self._relay = relay

    async def welcome(self, email: str, name: str, key: str) -> str:
        """Send the welcome letter; its id at Relay."""
        text = f"Welcome to razworks, {name}. Your profile and your wallet are ready."
        letter = Letter(email, name, "Welcome to razworks", text, f"<p>{escape(text)}</p>")
        return await self._relay.send(letter)


class Mind:
    """Gemini, asked for JSON of a given shape; whatever it says is data, and is checked."""

    def __init__(self, outside: Outside, *, key: str, model: str) -> None:
        self._outside = outside
        self._headers = {"x-goog-api-key": key}
        self._path = f"/v1/models/{model}:generateContent"

    async def ask(
        self,
        wish: str,
        shape: dict[str, str],
        *,
        text: str = "",
        file: tuple[str, str] | None = None,
    ) -> dict[str, Any]:
        """What the model makes of a text, or of a file that lies in storage.

        `shape` names the fields of the answer, each a "string" or "strings".
        """
        parts: list[dict[str, Any]] = [{"text": text}] if text else []
        if file is not None:
            parts.append({"fileData": {"fileUri": file[0], "mimeType": file[1]}})
        body = {
            "contents": [{"role": "user", "parts": parts}],
            "systemInstruction": {"parts": [{"text": wish}]},
            "generationConfig": {
                "temperature": 0,
                "responseMimeType": "application/json",
                "responseSchema": {
                    "type": "OBJECT",
                    "properties": {name: _type(kind) for name, kind in shape.items()},
                    "required": list(shape),
                },
            },
        }
        reply = await self._outside.call(
            "POST", self._path, json=body, headers=self._headers, acts=False
        )
        return _checked(reply, shape)


def _type(kind: str) -> dict[str, Any]:
    return {"type": "STRING"} if kind == "string" else {"type": "ARRAY", "items": _type("string")}


def _checked(reply: Reply, shape: dict[str, str]) -> dict[str, Any]:
    said: Any = reply.check().json()
    try:
        candidate = said["candidates"][0]
        pieces = [part["text"] for part in candidate["content"]["parts"] if not part.get("thought")]
        found = json.loads("".join(pieces))
        values = {name: found[name] for name in shape}
    except (LookupError, TypeError, ValueError) as error:
        # Cut off, blocked, or beside the point: another time it may be better. Gemini is there, so
        # no breaker is to hear of it.
        raise ValueError("Gemini gave no answer of the shape that was asked for") from error
    for name, kind in shape.items():
        value: Any = values[name]
        texts = [value] if kind == "string" else value
        if not isinstance(texts, list) or not all(
            isinstance(each, str) and len(each) <= TEXT_MAX for each in cast("list[Any]", texts)
        ):
            raise ValueError(f"Gemini gave no {kind} as its {name}")
        if kind == "strings":
            values[name] = cast("list[str]", texts)[:LIST_MAX]
    return values


@dataclass(frozen=True, slots=True)
class Gateways:
    mail: Mail
    mind: Mind


@asynccontextmanager
async def open_gateways(relevo: Relevo) -> AsyncGenerator[Gateways]:
    settings = relevo.use(RazworksSettings)
    async with (
        Outside("Doppler Relay", settings.relay_url) as relay,
        Outside("Gemini", settings.gemini_url, seconds=50) as gemini,
    ):
        sender = DopplerRelay(
            relay,
            key=settings.relay_key,
            account=settings.relay_account,
            sender=settings.mail_from,
            sender_name="razworks",
        )
        yield Gateways(
            Mail(sender), Mind(gemini, key=settings.gemini_key, model=settings.gemini_model)
        )
