"""How the cortex works: each step asks the model once and gives what it found to its parent."""

from __future__ import annotations

from typing import Any

from relevo import Context, ProviderRefused
from relevo.apps.razworks import records
from relevo.apps.razworks.cortex.queues import (
    ClassifyIntent,
    ExtractText,
    Summarise,
    TranscribeAudio,
)
from relevo.apps.razworks.gateways import Gateways

INTENTS = ("idea", "question", "task", "story", "other")


async def transcribe(order: TranscribeAudio, ctx: Context) -> dict[str, Any]:
    return await _ask(
        order.recording_id, ctx, "Write down what is said, word by word.", {"transcript": "string"}
    )


async def extract(order: ExtractText, ctx: Context) -> dict[str, Any]:
    return await _ask(
        order.recording_id,
        ctx,
        "List the names, places, dates and amounts that are mentioned.",
        {"mentions": "strings"},
    )


async def classify(order: ClassifyIntent, ctx: Context) -> dict[str, Any]:
    found = await _ask(
        order.recording_id,
        ctx,
        f"Say what the speaker wants, as one of: {', '.join(INTENTS)}.",
        {"intent": "string"},
    )
    # What a model says is data: a word we do not know is no intent.
    return found if found["intent"] in INTENTS else {"intent": "other"}


async def summarise(order: Summarise, ctx: Context) -> None:
    found = await ctx.results()
    # A step that ended badly is not among them.
    parts: dict[str, Any] = {}
    for step in found.values():
        parts |= step
    transcript: str = parts.get("transcript", "")
    mind = ctx.use(Gateways).mind
    said = await ctx.once(
        "summary",
        lambda _: mind.ask("Sum this up in two sentences.", {"summary": "string"}, text=transcript),
        repeatable=True,
    )
    async with ctx.transaction() as tx:
        await records.understood(
            tx,
            order.recording_id,
            transcript=transcript,
            mentions=parts.get("mentions", []),
            intent=parts.get("intent"),
            summary=said["summary"],
        )


async def _ask(recording_id: str, ctx: Context, wish: str, shape: dict[str, str]) -> dict[str, Any]:
    recording = await ctx.use(records.Records).recording(recording_id)
    if recording is None:
        raise ProviderRefused(f"there is no recording {recording_id}")
    mind = ctx.use(Gateways).mind
    # Asking a model twice costs money and changes nothing, so a lost answer is asked for again.
    return await ctx.once(
        "ask",
        lambda _: mind.ask(wish, shape, file=(recording.storage_url, recording.media_type)),
        repeatable=True,
    )
