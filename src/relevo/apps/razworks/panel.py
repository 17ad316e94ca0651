"""razworks for people: who registered, what came of it, and the flow of each recording, live."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from relevo import NotFoundError, Relevo
from relevo.apps.razworks.records import Records, Status
from relevo.apps.razworks.words import REFUSALS, SPANISH
from relevo.web import Room, site

room = Room(Path(__file__).parent / "templates", SPANISH, REFUSALS)

# Where each step of the cortex stands in the drawing: three side by side, then the summary.
PLACES = {
    "transcribe": (10, 10),
    "extract": (10, 70),
    "classify": (10, 130),
    "summarise": (300, 70),
}

# What a recording's status looks like, and is called.
SHOWN: dict[Status, tuple[str, str]] = {
    "pending": ("running", "in progress"),
    "understood": ("done", "understood"),
    "failed": ("dead", "failed"),
}


def build(relevo: Relevo) -> ASGIApp:
    async def overview(request: Request) -> Response:
        records = relevo.use(Records)
        recordings = await records.recordings()
        return room.page(
            request,
            "razworks.html",
            people=await records.people(),
            recordings=[(each, SHOWN[await records.status(each)]) for each in recordings],
        )

    async def recording(request: Request) -> Response:
        records = relevo.use(Records)
        found = await records.recording(request.path_params["id"])
        if found is None or found.flow_id is None:
            raise NotFoundError("there is no such recording")
        flow = await request.state.desk.flow(found.flow_id)
        steps = [(node, *PLACES[node.node]) for node in flow.nodes if node.node in PLACES]
        return room.page(
            request,
            "recording.html",
            recording=found,
            steps=steps,
            shown=SHOWN[await records.status(found)],
        )

    pages = [Route("/razworks", overview), Route("/razworks/recordings/{id}", recording)]
    return site(pages, room)
