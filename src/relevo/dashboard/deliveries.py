"""Deliveries: what came in by a webhook, what was answered, and what came of it."""

from __future__ import annotations

from msgspec.structs import replace
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from relevo.dashboard.board import LIMIT, Board, ask, limit_of, more_of, one, pace_of, picked, when
from relevo.dashboard.meant import meant
from relevo.dashboard.sentences import counted
from relevo.desk import DeliveryGroup, DeliveryQuery, DeliveryView, Replay, Replays, is_replayable
from relevo.desk.sweeps import Note
from relevo.errors import DefinitionError
from relevo.job import Verdict
from relevo.store import UNHANDLED, DeliveryState, Kept, Letterbox
from relevo.unrouted import CAUSES
from relevo.web import Form, form, go
from relevo.web.room import pretty
from relevo.webhook import read_answer, read_headers


async def deliveries(board: Board, request: Request) -> Response:
    desk = board.desk(request)
    params = request.query_params
    where = Letterbox(
        endpoint=one(params, "endpoint"),
        state=_state(one(params, "state")),
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
        counts=await desk.delivery_counts(),
        groups=await _groups(board, request, where),
        more=more_of(request, cursor),
        is_later=one(params, "cursor") is not None,
    )


def _state(text: str | None) -> DeliveryState | None:
    if text is not None and text not in set(DeliveryState):
        raise DefinitionError(
            f"a delivery is accepted, ignored, failed, differs or refused, not {text!r:.40}"
        )
    return None if text is None else DeliveryState(text)


async def _groups(board: Board, request: Request, where: Letterbox) -> list[DeliveryGroup]:
    """What failed or differs, by error, where a page of it was asked for, and at first."""
    is_plain = where.key is None and where.text is None
    if not is_plain or where.state not in {None, *UNHANDLED}:
        return []
    states = (DeliveryState.FAILED,) if where.state is None else (where.state,)
    return (await board.desk(request).delivery_groups(states, where.endpoint)).groups


def _query(params: QueryParams | Form) -> DeliveryQuery:
    return DeliveryQuery(
        state=_state(one(params, "state")) or DeliveryState.FAILED,
        endpoint=one(params, "endpoint"),
        group=one(params, "group"),
        error=one(params, "error"),
        since=when(params, "since"),
        until=when(params, "until"),
    )


async def bulk(board: Board, request: Request) -> Response:
    """The preview of handling many: how many, and the oldest of them."""
    desk, by = board.desk(request), board.person(request)
    query = _query(request.query_params)
    if query.until is None:
        query = replace(query, until=await desk.store.now() + 1)
    meant = await desk.replay_where(query, by, board.relevo.handling, dry_run=True)
    doors = {f"{app.name}:{hook.path}" for app in board.relevo.apps for hook in app.webhooks}
    doors = {each for each in doors if desk.sees(each)}
    return board.page(
        request,
        "handle",
        query=query,
        count=meant.matched,
        sample=[board.shown_delivery(request, kept) for kept in meant.deliveries[:5]],
        effects=meant.effects,
        looked=meant.effects_of,
        states=[each for each in DeliveryState if each is not DeliveryState.IGNORED],
        endpoints=sorted(doors | ({query.endpoint} if query.endpoint else set())),
        moments={name: picked(getattr(query, name)) for name in ("since", "until")},
    )


async def handle_many(board: Board, request: Request) -> Response:
    """Begin to handle all that a query means; the page shows how far it has come."""
    desk, by = board.desk(request), board.person(request)
    filled = await form(request)
    note = one(filled, "note") or ""
    by.acts("replay", note)
    query, pace = _query(filled), pace_of(filled)  # a mistake is told here, not by the sweep
    repeats = one(filled, "effects") == "1"

    async def act(progress: Note) -> Replays:
        try:
            return await desk.replay_where(
                query,
                by,
                board.relevo.handling,
                note,
                limit=pace.limit,
                rate=pace.rate,
                canary=pace.canary,
                repeat_effects=repeats,
                progress=progress,
            )
        finally:
            board.changed()

    back = "/deliveries?" + ask({"state": str(query.state)})
    sweep = board.sweeps.begin(act, verb="replay", who=by.name, apps=desk.apps, back=back)
    return go(request, f"/sweeps/{sweep.id}")


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
    kept: DeliveryView = await desk.delivery_view(request.path_params["id"])
    if not board.person(request).may("reveal"):
        kept = desk.masked_delivery(kept)
    found = await desk.store.find(list(kept.jobs[:200]))
    jobs = [job for job in found if job is not None and desk.sees(job.queue)]
    joined = [order for order in kept.orders if order.verdict not in (None, Verdict.NEW)]
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
        joined=joined,
        can_replay=_can_replay(board, kept),
        rehearsal=rehearsal,
    )


def _can_replay(board: Board, kept: Kept) -> bool:
    return is_replayable(kept) and board.relevo.receiver.door(kept.endpoint) is not None


def _text(body: bytes) -> str:
    return pretty(body) if body else ""
