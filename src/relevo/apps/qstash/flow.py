"""QStash's v2 API: flow control and signing keys."""

from __future__ import annotations

import secrets
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession
from starlette.requests import Request

from relevo.apps.qstash import views
from relevo.apps.qstash.door import EMPTY, Api
from relevo.apps.qstash.records import ACTIVE, UNFINISHED, FlowKey, Keys, Message, Slot
from relevo.apps.qstash.wire import NAME, Wrong, limits
from relevo.apps.qstash.workers import Post

PARALLEL_MAX = 200


def add_to(api: Api) -> None:
    """The routes of this part."""
    api.add("/v2/keys", keys, "GET")
    api.add("/v2/keys/rotate", rotate, "POST")
    api.add("/v2/flowControl", flows, "GET")
    api.add("/v2/flowControl/{key}", flow, "GET")
    api.add("/v2/flowControl/{key}/{verb}", change_flow, "POST")
    api.add("/v2/globalParallelism", parallelism, "GET")


# Keys


async def keys(request: Request, tx: AsyncSession, post: Post) -> Any:
    current, following = await post.keys(tx)
    return {"current": current, "next": following}


async def rotate(request: Request, tx: AsyncSession, post: Post) -> Any:
    """The next key becomes the current one; receivers that know both notice nothing."""
    _, following = await post.keys(tx)
    fresh = f"sig_{secrets.token_urlsafe(21)}"
    await tx.merge(Keys(id=1, current=following, next=fresh))
    return {"current": following, "next": fresh}


# Flow control


async def flows(request: Request, tx: AsyncSession, post: Post) -> Any:
    rows = list(await tx.scalars(select(FlowKey).order_by(FlowKey.key)))
    return [await _shown_flow(tx, row, post) for row in rows]


async def flow(request: Request, tx: AsyncSession, post: Post) -> Any:
    row = await tx.get(FlowKey, request.path_params["key"])
    if row is None:
        raise Wrong("flow control key not found", 404)
    return await _shown_flow(tx, row, post)


async def change_flow(request: Request, tx: AsyncSession, post: Post) -> Any:
    key, verb = request.path_params["key"], request.path_params["verb"]
    q = request.query_params
    row = await tx.get(FlowKey, key, with_for_update=True)
    if row is None:
        if verb != "pin" or not NAME.fullmatch(key):
            raise Wrong("flow control key not found", 404)
        row = FlowKey(key=key, parallelism=0, rate=0, period=1, is_paused=False, window_at=0)
        row.is_parallelism_pinned = row.is_rate_pinned = False
        row.window_count = 0
        tx.add(row)
    match verb:
        case "pause" | "resume":
            row.is_paused = verb == "pause"
        case "resetRate":
            row.window_at, row.window_count = post.office.now(), 0
        case "pin":
            told = limits(
                {name: q[name] for name in ("parallelism", "rate", "period") if name in q}
            )
            if "parallelism" in told:
                row.parallelism, row.is_parallelism_pinned = told["parallelism"], True
            if "rate" in told:
                row.rate, row.is_rate_pinned = told["rate"], True
                row.period = told.get("period", 1)
        case "unpin":
            if q.get("parallelism") == "true":
                row.is_parallelism_pinned = False
            if q.get("rate") == "true":
                row.is_rate_pinned = False
        case _:
            raise Wrong(f"{verb!r:.40} is not offered here", 501)
    return EMPTY


async def parallelism(request: Request, tx: AsyncSession, post: Post) -> Any:
    active = select(func.count()).select_from(Message).where(Message.state == ACTIVE)
    return {"parallelismMax": PARALLEL_MAX, "parallelismCount": await tx.scalar(active) or 0}


async def _shown_flow(tx: AsyncSession, row: FlowKey, post: Post) -> dict[str, Any]:
    now = post.office.now()
    running = await tx.scalar(
        select(func.count()).select_from(Slot).where(Slot.key == row.key, Slot.until > now)
    )
    unfinished = await tx.scalar(
        select(func.count())
        .select_from(Message)
        .where(Message.flow_key == row.key, Message.state.in_(UNFINISHED))
    )
    return views.flow(row, running or 0, max(0, (unfinished or 0) - (running or 0)))
