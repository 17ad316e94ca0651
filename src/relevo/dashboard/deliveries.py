"""Deliveries: what came in by a webhook, what was answered, and what came of it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from relevo.dashboard.board import Board, limit_of, more_of, one
from relevo.errors import DefinitionError
from relevo.store import Keeping, Letterbox


async def deliveries(board: Board, request: Request) -> Response:
    params = request.query_params
    state = one(params, "state")
    if state is not None and state not in set(Keeping):
        raise DefinitionError(f"a delivery is accepted or rejected, not {state!r:.40}")
    where = Letterbox(
        source=one(params, "source"),
        state=None if state is None else Keeping(state),
        key=one(params, "key"),
        text=one(params, "text"),
    )
    rows, cursor = await board.letters(request, where, one(params, "cursor"), limit_of(params))
    known = [f"{app.name}:{hook.path}" for app in board.relevo.apps for hook in app.webhooks]
    return board.page(
        request,
        "deliveries",
        where=where,
        rows=rows,
        sources=sorted({*known, *(row.source for row in rows)}),
        states=list(Keeping),
        more=more_of(request, cursor),
        is_later=one(params, "cursor") is not None,
    )
