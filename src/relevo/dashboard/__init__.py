"""The dashboard: what a person sees of the engine, and does to it.

Everything is read and done through the desk of the person who asks. A page is a function of Board
and request; what it does stands in actions.py, each a POST.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from relevo.dashboard import (
    actions,
    deliveries,
    events,
    flows,
    jobs,
    pages,
    standing,
    threads,
    usage,
)
from relevo.dashboard.board import FILES, Board, Page, room
from relevo.dashboard.words import SPANISH
from relevo.engine import Relevo
from relevo.web import Entry, Web, site

LOOK: dict[str, Page] = {
    "/": pages.overview,
    "/live": pages.stream,
    "/live/history": pages.history,
    "/search": threads.search,
    "/threads/{thread:path}": threads.thread,
    "/deliveries": deliveries.deliveries,
    "/deliveries/bulk": deliveries.bulk,
    "/deliveries/{id}": deliveries.delivery,
    "/queues": pages.queues,
    "/queues/{queue}": pages.queue,
    "/jobs": jobs.jobs,
    "/jobs/bulk": jobs.bulk,
    "/jobs/{id}": jobs.job,
    "/sweeps/{id}": jobs.sweep,
    "/dead": jobs.dead,
    "/dead/{fingerprint}": jobs.group,
    "/flows": flows.flows,
    "/flows/{id}": flows.flow,
    "/groups": flows.groups,
    "/groups/{id}": flows.group,
    "/events": events.events,
    "/events/{id}": events.event,
    "/breakers": standing.breakers,
    "/breakers/one": standing.breaker,
    "/recurring": standing.recurring,
    "/workers": pages.workers,
    "/effects": standing.effects,
    "/effects/one": standing.effect,
    "/usage": usage.usage,
    "/audit": pages.audit,
}
"""What is read, by GET."""

ACT: dict[str, tuple[Page, tuple[str, ...]]] = {
    "/deliveries/bulk": (deliveries.handle_many, ()),
    "/deliveries/{id}/rehearse": (deliveries.rehearse, ()),
    "/deliveries/{id}/replay": (deliveries.replay, ()),
    "/threads/forget": (actions.forget_thread, ()),
    "/queues/{queue}/{verb}": (actions.change_queue, ("pause", "resume", "drain")),
    "/changes/{verb}": (actions.change, ("set", "unset", "cancel")),
    "/jobs/act": (actions.change_jobs, ()),
    "/jobs/bulk": (actions.change_many, ()),
    "/jobs/{id}/{verb}": (
        actions.change_job,
        ("retry", "cancel", "discard", "edit", "undo", "run-again"),
    ),
    "/sweeps/{id}/{verb}": (actions.stop_sweep, ("stop",)),
    "/flows/{id}/{verb}": (actions.change_flow, ("retry", "cancel")),
    "/groups/{id}/{verb}": (actions.cancel_group, ("cancel",)),
    "/breakers/{verb}": (actions.turn_breaker, ("open", "close", "probe")),
    "/recurring/{verb}": (actions.change_recurring, ("pause", "resume", "run")),
    "/workers/{verb}": (actions.forget_worker, ("forget",)),
    "/events/{verb}": (events.unsubscribe, ("unsubscribe",)),
    "/effects/{verb}": (actions.decide_effect, ("confirm", "deny")),
}
"""What changes something, by POST, and the verbs it knows."""

MENU = (
    Entry("Overview", "/"),
    Entry("Deliveries", "/deliveries", "Work"),
    Entry("Queues", "/queues", "Work"),
    Entry("Jobs", "/jobs", "Work"),
    Entry("Dead letters", "/dead", "Work"),
    Entry("Flows", "/flows", "Work"),
    Entry("Groups", "/groups", "Work"),
    Entry("Events", "/events", "Work"),
    Entry("Effects", "/effects", "Outside"),
    Entry("Breakers", "/breakers", "Outside"),
    Entry("Pollers and schedules", "/recurring", "Outside"),
    Entry("Workers", "/workers", "Operation"),
    Entry("Usage", "/usage", "Operation"),
    Entry("Audit", "/audit", "Operation"),
)


def build(relevo: Relevo, web: Web) -> ASGIApp:
    """The dashboard as an ASGI app for `/`, behind the login."""
    board = Board(relevo, web)
    web.menu[:0] = [entry for entry in MENU if entry not in web.menu]
    web.search = "/search"
    web.spanish |= SPANISH
    web.closing.append(board.close)
    return web.guard(site(routes(board), room))


def routes(board: Board) -> list[BaseRoute]:
    """Every page and action."""
    made: list[BaseRoute] = [Route("/look/{name}", FILES)]
    for path, page in LOOK.items():
        made.append(Route(path, _bound(board, page, is_look=True), methods=["GET"]))
    for path, (action, verbs) in ACT.items():
        for verb in verbs or ("",):
            place = path.replace("{verb}", verb)
            made.append(Route(place, _bound(board, action, verb), methods=["POST"]))
    return made


def _bound(
    board: Board, page: Page, verb: str = "", *, is_look: bool = False
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        if verb:
            request.path_params["verb"] = verb
        return await (board.seen.look(page, request) if is_look else page(board, request))

    endpoint.__name__ = page.__name__
    return endpoint
