"""Deliveries: what came in by a webhook, what was answered, and what came of it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from relevo.dashboard.board import LIMIT, Board, limit_of, more_of, one
from relevo.dashboard.meant import meant
from relevo.dashboard.sentences import counted
from relevo.desk import Replay, is_replayable
from relevo.errors import DefinitionError
from relevo.store import DeliveryState, Kept, Letterbox
from relevo.unrouted import CAUSES
from relevo.web import form, go
from relevo.web.room import pretty
from relevo.webhook import read_answer, read_headers


async def deliveries(board: Board, request: Request) -> Response:
    desk = board.desk(request)
    params = request.query_params
    state = one(params, "state")
    if state is not None and state not in set(DeliveryState):
        raise DefinitionError(
            f"a delivery is accepted, ignored, failed, differs or refused, not {state!r:.40}"
        )
    where = Letterbox(
        endpoint=one(params, "endpoint"),
        state=None if state is None else DeliveryState(state),
        key=one(params, "key"),
        text=one(params, "text"),
    )
    rows, cursor = await desk.deliveries(where, one(params, "cursor"), limit_of(params))
    unrouted = await desk.unrouted(where.endpoint)
    doors = [f"{app.name}:{hook.path}" for app in board.relevo.apps for hook in app.webhooks]
    known = {each for each in doors if desk.sees(each)} | {row.endpoint for row in rows}
    return board.page(
        request,
        "deliveries",
        where=where,
        meant=meant(board.words(request), where.text, "/deliveries", "text"),
        rows=rows,
        unrouted=unrouted[:LIMIT],
        unrouted_calls=sum(each.count for each in unrouted),
        causes=CAUSES,
        endpoints=sorted(known | ({where.endpoint} if where.endpoint else set())),
        states=list(DeliveryState),
        more=more_of(request, cursor),
        is_later=one(params, "cursor") is not None,
    )


async def delivery(board: Board, request: Request) -> Response:
    return await _page(board, request)


async def rehearse(board: Board, request: Request) -> Response:
    """What a replay would do; nothing is kept."""
    desk, by = board.desk(request), board.person(request)
    id = request.path_params["id"]
    replay = await desk.replay(id, by, board.relevo.handling, dry_run=True)
    return await _page(board, request, replay)


async def replay(board: Board, request: Request) -> Response:
    """Let it in again, by today's code."""
    desk, by = board.desk(request), board.person(request)
    filled = await form(request)
    note = one(filled, "note") or ""
    done = await desk.replay(
        request.path_params["id"],
        by,
        board.relevo.handling,
        note,
        repeat_effects=one(filled, "effects") == "1",
    )
    board.changed()
    _ = board.words(request)
    jobs = counted(_, len(done.orders), "job")
    said = _("It was let in again, and {jobs} came of it.", jobs=jobs)
    return go(request, f"/deliveries/{done.id}", said=said)


async def _page(board: Board, request: Request, rehearsal: Replay | None = None) -> Response:
    desk = board.desk(request)
    kept = await desk.delivery(request.path_params["id"])
    if not board.person(request).may("reveal"):
        kept = desk.masked_delivery(kept)
    found = await desk.store.find(list(kept.jobs[:200]))
    jobs = [job for job in found if job is not None and desk.sees(job.queue)]
    answer = read_answer(kept.answer)
    return board.page(
        request,
        "delivery",
        kept=kept,
        body=_text(kept.body),
        head=read_headers(kept.headers),
        answer=None if answer is None else _text(answer.body),
        is_damaged=answer is None and bool(kept.answer),
        jobs=[board.shown(request, job) for job in jobs],
        can_replay=_can_replay(board, kept),
        rehearsal=rehearsal,
    )


def _can_replay(board: Board, kept: Kept) -> bool:
    return is_replayable(kept) and board.relevo.receiver.door(kept.endpoint) is not None


def _text(body: bytes) -> str:
    return pretty(body) if body else ""
