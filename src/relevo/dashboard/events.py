"""Events: what was published, who subscribes, and how far each subscriber has come."""

from __future__ import annotations

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from relevo.dashboard.board import Board, limit_of, more_of, one
from relevo.desk import LATE, EventView
from relevo.web import form, go


async def events(board: Board, request: Request) -> Response:
    """The subscribers, and below them what was published."""
    desk, params = board.desk(request), request.query_params
    name = one(params, "event")
    page = await desk.events(name=name, cursor=one(params, "cursor"), limit=limit_of(params))
    return board.page(
        request,
        "events",
        subscribers=await desk.subscribers(name),
        events=[_shown(board, request, each) for each in page.events],
        name=name,
        more=more_of(request, page.cursor),
        late=LATE,
    )


async def event(board: Board, request: Request) -> Response:
    seen = await board.desk(request).event(request.path_params["id"])
    return board.page(request, "event", seen=_shown(board, request, seen))


def _shown(board: Board, request: Request, seen: EventView) -> EventView:
    return replace(seen, event=board.shown(request, seen.event))


async def unsubscribe(board: Board, request: Request) -> Response:
    """Take a subscriber off the list."""
    filled = await form(request)
    desk, by = board.desk(request), board.person(request)
    name, event = filled["name"], filled["event"]
    await desk.unsubscribe(event, name, by, one(filled, "note") or "")
    board.changed()
    said = board.words(request)("{name} gets no {event} any more.", name=name, event=event)
    return go(request, "/events", said=said)
