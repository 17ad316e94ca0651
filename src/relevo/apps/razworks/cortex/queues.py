"""Orders of the cortex, and the flow they form. A recording travels by reference, never itself."""

from __future__ import annotations

from relevo import Command, Flow, exponential

ATTEMPTS = 3
BACKOFF = exponential("2s", cap="1m")


class TranscribeAudio(
    Command,
    queue="razworks:cortex:transcribe-audio",
    attempts=ATTEMPTS,
    backoff=BACKOFF,
    timeout="60s",
    breaker="gemini",
):
    recording_id: str


class ExtractText(
    Command,
    queue="razworks:cortex:extract-text",
    attempts=ATTEMPTS,
    backoff=BACKOFF,
    timeout="60s",
    breaker="gemini",
):
    recording_id: str


class ClassifyIntent(
    Command,
    queue="razworks:cortex:classify-intent",
    attempts=ATTEMPTS,
    backoff=BACKOFF,
    timeout="60s",
    breaker="gemini",
):
    recording_id: str


class Summarise(
    Command,
    queue="razworks:cortex:summarise",
    attempts=ATTEMPTS,
    backoff=BACKOFF,
    timeout="60s",
    breaker="gemini",
):
    recording_id: str


def cortex(recording_id: str) -> Flow:
    """Three look at a recording side by side; the summary waits for them.

    Without a transcript there is nothing to sum up. The other two may fail: what they would have
    added is left out, and what the rest found is kept.
    """
    flow = Flow("cortex")
    heard = flow.add(TranscribeAudio(recording_id), name="transcribe")
    read = flow.add(ExtractText(recording_id), name="extract", on_failure="continue")
    sorted_ = flow.add(ClassifyIntent(recording_id), name="classify", on_failure="continue")
    flow.add(Summarise(recording_id), name="summarise", after=[heard, read, sorted_])
    return flow
