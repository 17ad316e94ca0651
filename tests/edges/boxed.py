"""An app to put into the container: one door, one worker, one effect that can be counted."""

from __future__ import annotations

from pathlib import Path

from relevo import App, Command, Delivery, Intake, sources

app = App("boxed")
EFFECTS = Path("/data/effects")


class Note(Command, queue="boxed:notes:write"):
    text: str


@app.webhook(
    "/hooks/boxed",
    verify=sources.shared_secret("a-secret-for-the-box", header="x-secret"),
    key=lambda delivery: delivery.json["id"],
)
async def noted(delivery: Delivery, ctx: Intake) -> None:
    await ctx.enqueue(Note(delivery.json["id"]))


@app.worker
async def write(note: Note) -> None:
    with EFFECTS.open("a") as file:
        file.write(note.text + "\n")
