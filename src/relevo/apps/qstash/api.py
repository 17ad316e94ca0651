"""QStash's v2 API: publishing, and all routes; manage.py and flow.py look after things."""

from __future__ import annotations

import re
from typing import Any, cast
from urllib.parse import unquote

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from relevo import Relevo
from relevo.apps.qstash import flow, manage
from relevo.apps.qstash.door import Api, json_of
from relevo.apps.qstash.office import Origin, Taken, next_time
from relevo.apps.qstash.records import Schedule
from relevo.apps.qstash.wire import NAME, Wish, Wrong, read_wish
from relevo.apps.qstash.workers import Post
from relevo.ids import new_id

BATCH_MAX = 1_000


def build(relevo: Relevo) -> ASGIApp:
    api = Api(relevo)
    api.add("/v2/publish/{destination:path}", publish, "POST", "GET", "PUT", "PATCH", "DELETE")
    api.add("/v2/enqueue/{queue}/{destination:path}", enqueue, "POST", "GET", "PUT", "PATCH")
    api.add("/v2/batch", batch, "POST")
    manage.add_to(api)
    flow.add_to(api)
    api.add("/v2/schedules/{destination:path}", create_schedule, "POST")
    api.add("/v2/{rest:path}", unknown, "GET", "POST", "PUT", "PATCH", "DELETE")
    return Starlette(routes=api.routes)


async def publish(request: Request, tx: AsyncSession, post: Post) -> Any:
    wish = read_wish(request.headers)
    destination = raw_destination(request, "/v2/publish/")
    if wish.cron is not None:
        return await _schedule(request, tx, post, destination, wish)
    taken = await post.office.take(tx, destination, wish, request.state.body, _origin(request))
    return _answer(destination, taken)


async def enqueue(request: Request, tx: AsyncSession, post: Post) -> Any:
    queue, _, destination = raw_destination(request, "/v2/enqueue/").partition("/")
    wish = _queued(_unscheduled(read_wish(request.headers)), unquote(queue))
    taken = await post.office.take(tx, destination, wish, request.state.body, _origin(request))
    return _answer(destination, taken)


async def batch(request: Request, tx: AsyncSession, post: Post) -> Any:
    """Many at once, all or none."""
    items = json_of(request)
    if not isinstance(items, list) or len(cast("list[Any]", items)) > BATCH_MAX:
        raise Wrong(f"a batch is a list of at most {BATCH_MAX:,} messages")
    answers: list[Any] = []
    for item in cast("list[Any]", items):
        if not isinstance(item, dict):
            raise Wrong("each message of a batch is an object")
        found = cast("dict[str, Any]", item)
        headers: Any = found.get("headers") or {}
        body = found.get("body")
        destination, queue = found.get("destination"), found.get("queue")
        if not isinstance(destination, str) or not isinstance(headers, dict):
            raise Wrong("each message of a batch has a destination and headers")
        given = {str(name): str(value) for name, value in cast("dict[str, Any]", headers).items()}
        wish = _unscheduled(read_wish(given))
        if queue is not None:
            wish = _queued(wish, str(queue))
        data = body.encode() if isinstance(body, str) else b""
        if body is not None and not isinstance(body, str):
            raise Wrong("the body of a message in a batch is a string")
        taken = await post.office.take(tx, destination, wish, data, _origin(request))
        answers.append(_shown(destination, taken))
    return JSONResponse(answers)


async def create_schedule(request: Request, tx: AsyncSession, post: Post) -> Any:
    wish = read_wish(request.headers)
    if wish.cron is None:
        raise Wrong("Upstash-Cron is missing")
    destination = raw_destination(request, "/v2/schedules/")
    return await _schedule(request, tx, post, destination, wish)


async def _schedule(
    request: Request, tx: AsyncSession, post: Post, destination: str, wish: Wish
) -> Any:
    office = post.office
    now = office.now()
    cron = wish.cron or ""
    next_time(cron, now)
    await office.check(tx, destination, wish, request.state.body)
    id = wish.schedule_id or f"scd_{new_id()}"
    row = await tx.get(Schedule, id, with_for_update=True)
    if row is None:
        row = Schedule(id=id, generation=0, is_paused=False, created_at=now)
        tx.add(row)
    row.generation += 1
    row.destination, row.cron, row.body = destination, cron, request.state.body
    row.wish = msgspec.json.encode(msgspec.structs.replace(wish, cron=None, schedule_id=None))
    row.caller_ip = _origin(request).caller_ip
    await tx.flush()
    await office.tick_at(tx, row, now)
    return {"scheduleId": id}


async def unknown(request: Request, tx: AsyncSession, post: Post) -> Any:
    raise Wrong(f"{request.method} {request.url.path:.200} is not offered here", 501)


# What requests bring


def raw_destination(request: Request, prefix: str) -> str:
    """Everything behind the prefix, exactly as it was sent: `//`, escapes and query included."""
    path: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    root = request.scope.get("root_path", "").encode()
    raw = path.removeprefix(root).partition(b"?")[0]
    query: bytes = request.scope.get("query_string", b"")
    start = prefix.encode()
    if not raw.startswith(start):
        raise Wrong("invalid destination url")
    if re.search(rb"%0[ad]", raw, re.IGNORECASE):
        raise Wrong("invalid destination url: it has a line break")
    text = raw[len(start) :] + (b"?" + query if query else b"")
    try:
        return text.decode("ascii")
    except UnicodeDecodeError as error:
        raise Wrong("invalid destination url: escape what is not ASCII") from error


def _unscheduled(wish: Wish) -> Wish:
    if wish.cron is not None:
        raise Wrong("Upstash-Cron belongs to /v2/publish and /v2/schedules")
    return wish


def _queued(wish: Wish, queue: str) -> Wish:
    if not NAME.fullmatch(queue):
        raise Wrong("a queue's name has letters, digits, '-', '_' and '.'")
    return msgspec.structs.replace(wish, queue=queue, delay=0, not_before=None, flow=None)


def _origin(request: Request) -> Origin:
    # A trusted proxy passes on what its caller wrote, which need not be an address.
    return Origin(caller_ip=None if request.client is None else request.client.host[:64])


# What they get


def _answer(destination: str, taken: list[Taken]) -> Response:
    is_all_known = bool(taken) and all(each.is_duplicate for each in taken)
    return JSONResponse(_shown(destination, taken), 202 if is_all_known else 201)


def _shown(destination: str, taken: list[Taken]) -> Any:
    def one(each: Taken) -> dict[str, Any]:
        return {"messageId": each.id} | ({"deduplicated": True} if each.is_duplicate else {})

    if destination.startswith(("http://", "https://")):
        return one(taken[0])
    return [one(each) | {"url": each.url} for each in taken]
