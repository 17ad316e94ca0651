"""QStash's v2 API: looking after messages, dead letters, events, queues, groups, schedules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

import msgspec
from sqlalchemy import ColumnElement, Select, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from starlette.requests import Request
from starlette.responses import Response

from relevo.apps.qstash import views
from relevo.apps.qstash.door import (
    EMPTY,
    Api,
    check_text,
    count_of,
    integer,
    milliseconds_of,
    object_of,
)
from relevo.apps.qstash.office import Origin
from relevo.apps.qstash.records import (
    ACTIVE,
    UNFINISHED,
    WAITING,
    Endpoint,
    Event,
    Group,
    Message,
    Queue,
    Schedule,
)
from relevo.apps.qstash.wire import NAME, Wrong
from relevo.apps.qstash.workers import Post

PARALLEL_MAX = 200
NAME_MAX = 256


def add_to(api: Api) -> None:
    """Every route but publishing's."""
    api.add("/v2/messages", cancel_many, "DELETE")
    api.add("/v2/messages/{id}", message, "GET")
    api.add("/v2/messages/{id}", cancel, "DELETE")
    api.add("/v2/dlq", dead_letters, "GET")
    api.add("/v2/dlq", discard_many, "DELETE")
    api.add("/v2/dlq/retry", retry_many, "POST")
    api.add("/v2/dlq/retry/{id}", retry, "POST")
    api.add("/v2/dlq/{id}", dead_letter, "GET")
    api.add("/v2/dlq/{id}", discard, "DELETE")
    api.add("/v2/events", events, "GET")
    api.add("/v2/logs", logs, "GET")
    api.add("/v2/queues", queues, "GET")
    api.add("/v2/queues", upsert_queue, "POST")
    api.add("/v2/queues/{name}", queue, "GET")
    api.add("/v2/queues/{name}", delete_queue, "DELETE")
    api.add("/v2/queues/{name}/{verb}", pause_queue, "POST")
    api.add("/v2/topics", groups, "GET")
    api.add("/v2/topics/{name}", group, "GET")
    api.add("/v2/topics/{name}", delete_group, "DELETE")
    api.add("/v2/topics/{name}/endpoints", upsert_endpoints, "POST")
    api.add("/v2/topics/{name}/endpoints", remove_endpoints, "DELETE")
    api.add("/v2/schedules", schedules, "GET")
    api.add("/v2/schedules/{id}/pause", pause_schedule, "PATCH", "POST")
    api.add("/v2/schedules/{id}/resume", resume_schedule, "PATCH", "POST")
    api.add("/v2/schedules/{id}", schedule, "GET")
    api.add("/v2/schedules/{id}", delete_schedule, "DELETE")


# Messages


async def message(request: Request, tx: AsyncSession, post: Post) -> Any:
    row = await tx.get(Message, request.path_params["id"])
    if row is None:
        raise Wrong("message not found", 404)
    return views.message(row)


async def cancel(request: Request, tx: AsyncSession, post: Post) -> Any:
    row = await tx.get(Message, request.path_params["id"], with_for_update=True)
    if row is None:
        raise Wrong("message not found", 404)
    await post.office.cancel(tx, row)
    return Response(status_code=202)


async def cancel_many(request: Request, tx: AsyncSession, post: Post) -> Any:
    found = _chosen(request, "messageIds", Message.id, 10_000)
    count = 0
    for row in list(await tx.scalars(found.where(Message.state.in_(UNFINISHED)))):
        count += await post.office.cancel(tx, row)
    return {"cancelled": count}


# Dead letters


async def dead_letters(request: Request, tx: AsyncSession, post: Post) -> Any:
    count = count_of(request, 100)
    found = _filtered(select(Message).where(Message.dlq_id.is_not(None)), request)
    cursor = request.query_params.get("cursor")
    if cursor:
        found = found.where(Message.dlq_id < cursor)
    rows = list(await tx.scalars(found.order_by(Message.dlq_id.desc()).limit(count + 1)))
    shown: dict[str, Any] = {"messages": [views.dead(row) for row in rows[:count]]}
    if len(rows) > count:
        shown["cursor"] = rows[count - 1].dlq_id
    return shown


async def dead_letter(request: Request, tx: AsyncSession, post: Post) -> Any:
    return views.dead(await _dead(tx, request.path_params["id"]))


async def discard(request: Request, tx: AsyncSession, post: Post) -> Any:
    (await _dead(tx, request.path_params["id"])).dlq_id = None
    return EMPTY


async def discard_many(request: Request, tx: AsyncSession, post: Post) -> Any:
    rows = await _some_dead(request, tx)
    for row in rows:
        row.dlq_id = None
    return {"deleted": len(rows)}


async def retry(request: Request, tx: AsyncSession, post: Post) -> Any:
    row = await _dead(tx, request.path_params["id"])
    return await _again(tx, post, row)


async def retry_many(request: Request, tx: AsyncSession, post: Post) -> Any:
    rows = await _some_dead(request, tx)
    return {"responses": [await _again(tx, post, row) for row in rows]}


async def _again(tx: AsyncSession, post: Post, row: Message) -> dict[str, Any]:
    """The same message once more, under an id of its own; the dead letter is no more."""
    row.dlq_id = None
    wish = msgspec.structs.replace(
        row.wishes, deduplication=None, is_content_based=False, delay=0, not_before=None
    )
    origin = Origin(row.caller_ip, row.schedule_id, row.topic, row.endpoint)
    [taken] = await post.office.take(tx, row.url, wish, row.body, origin)
    return {"messageId": taken.id}


async def _dead(tx: AsyncSession, dlq_id: str) -> Message:
    found = select(Message).where(Message.dlq_id == dlq_id).with_for_update()
    row = await tx.scalar(found)
    if row is None:
        raise Wrong("dlq message not found", 404)
    return row


async def _some_dead(request: Request, tx: AsyncSession) -> list[Message]:
    found = _chosen(request, "dlqIds", Message.dlq_id, 1_000)
    return list(await tx.scalars(found.where(Message.dlq_id.is_not(None))))


# Events


async def events(request: Request, tx: AsyncSession, post: Post) -> Any:
    return await _events(request, tx, "events")


async def logs(request: Request, tx: AsyncSession, post: Post) -> Any:
    return await _events(request, tx, "logs")


async def _events(request: Request, tx: AsyncSession, name: str) -> Any:
    count = count_of(request, 1_000)
    q = request.query_params
    found = select(Event, Message).join(Message, Message.id == Event.message_id)
    if ids := q.getlist("messageIds"):
        found = found.where(Event.message_id.in_(ids[:1_000]))
    if state := q.get("state"):
        found = found.where(Event.state == ("CANCELED" if state == "CANCELLED" else state))
    for key, is_from in (("fromDate", True), ("toDate", False)):
        if (at := milliseconds_of(q.get(key), key)) is not None:
            found = found.where(Event.time >= at if is_from else Event.time <= at)
    if cursor := q.get("cursor"):
        found = found.where(Event.id < integer(cursor, "cursor"))
    found = found.where(*_described(request))
    rows = (await tx.execute(found.order_by(Event.id.desc()).limit(count + 1))).all()
    shown: dict[str, Any] = {name: [views.event(*row) for row in rows[:count]]}
    if len(rows) > count:
        shown["cursor"] = str(rows[count - 1][0].id)
    return shown


_FILTERS: dict[str, Any] = {
    "messageId": Message.id,
    "url": Message.url,
    "path": Message.url,
    "topicName": Message.topic,
    "queueName": Message.queue,
    "scheduleId": Message.schedule_id,
    "label": Message.label,
    "flowControlKey": Message.flow_key,
    "callerIp": Message.caller_ip,
    "callerIP": Message.caller_ip,
}
_ALSO = {"responseStatus", "fromDate", "toDate", "count", "qstash_token"}


def _described(request: Request) -> Iterator[ColumnElement[bool]]:
    """A condition for each filter that is given; of its values any will do.

    They come repeated or parted by commas. A URL has commas of its own.
    """
    for key, column in _FILTERS.items():
        given = [value for value in request.query_params.getlist(key) if value]
        if key not in ("url", "path"):
            given = [value.strip() for told in given for value in told.split(",")]
        if key == "path":
            places = [rf"^https?://[^/?#]*{re.escape(path)}([?#]|$)" for path in given]
            conditions = [column.regexp_match(place) for place in places]
        elif key == "label":
            # A column holds all labels of its message, as they were told.
            all_of_it = "," + func.replace(column, ", ", ",") + ","
            conditions = [all_of_it.contains(f",{value},", autoescape=True) for value in given]
        else:
            conditions = [column.in_(given)] if given else []
        if conditions:
            yield or_(*conditions)


def _chosen(request: Request, name: str, column: Any, most: int) -> Select[Message]:
    """Those named in the body or the query, those that filters describe, or, with neither, all.

    A filter that is unknown or empty is refused: without it, more would be chosen than was meant.
    """
    q = request.query_params
    for key, value in q.multi_items():
        if key not in _FILTERS and key not in _ALSO and key != name:
            raise Wrong(f"{key!r:.60} is not known here")
        if not value:
            raise Wrong(f"{key} is empty")
    most = min(most, integer(q.get("count", str(most)), "count"))
    found = select(Message).order_by(column).with_for_update().limit(most)
    ids = _named(request, name)
    if ids is None:
        return _filtered(found, request)
    return found.where(column.in_(ids[:1_000]))


def _named(request: Request, name: str) -> list[str] | None:
    if request.state.body.strip():
        told = object_of(request).get(name)
        if not isinstance(told, list):
            raise Wrong(f"{name} is a list")
        return [check_text(str(id)) for id in cast("list[Any]", told)]
    given = request.query_params.getlist(name)
    return ",".join(given).split(",") if given else None


def _filtered(found: Select[Message], request: Request) -> Select[Message]:
    q = request.query_params
    found = found.where(*_described(request))
    if status := q.get("responseStatus"):
        found = found.where(Message.response_status == integer(status, "responseStatus", 999))
    for key, is_from in (("fromDate", True), ("toDate", False)):
        if (at := milliseconds_of(q.get(key), key)) is not None:
            when = func.coalesce(Message.finished_at, Message.created_at)
            found = found.where(when >= at if is_from else when <= at)
    return found


# Queues


async def queues(request: Request, tx: AsyncSession, post: Post) -> Any:
    rows = await tx.scalars(select(Queue).order_by(Queue.name))
    return [views.queue(row, await _lag(tx, row.name)) for row in list(rows)]


async def queue(request: Request, tx: AsyncSession, post: Post) -> Any:
    row = await _queue(request, tx)
    return views.queue(row, await _lag(tx, row.name))


async def upsert_queue(request: Request, tx: AsyncSession, post: Post) -> Any:
    told = object_of(request)
    name, parallelism = told.get("queueName"), told.get("parallelism", 1)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise Wrong("queueName has letters, digits, '-', '_' and '.'")
    if type(parallelism) is not int or not 1 <= parallelism <= PARALLEL_MAX:
        raise Wrong(f"parallelism is 1 to {PARALLEL_MAX}")
    row = await post.office.queue(tx, name)
    paused = told.get("paused", row.paused)
    if not isinstance(paused, bool):
        raise Wrong("paused is true or false")
    row.parallelism, row.paused, row.updated_at = parallelism, paused, post.office.now()
    await post.office.advance(tx, name)
    return EMPTY


async def delete_queue(request: Request, tx: AsyncSession, post: Post) -> Any:
    row = await _queue(request, tx)
    mine = select(Message).where(Message.queue == row.name, Message.state.in_(UNFINISHED))
    row.paused = True  # so that what ends now does not let the next one go
    for each in list(await tx.scalars(mine)):
        await post.office.cancel(tx, each)
    await tx.delete(row)
    return EMPTY


async def pause_queue(request: Request, tx: AsyncSession, post: Post) -> Any:
    verb = request.path_params["verb"]
    if verb not in ("pause", "resume"):
        raise Wrong("a queue is paused or resumed", 404)
    row = await _queue(request, tx)
    row.paused, row.updated_at = verb == "pause", post.office.now()
    await post.office.advance(tx, row.name)
    return EMPTY


async def _queue(request: Request, tx: AsyncSession) -> Queue:
    row = await tx.get(Queue, request.path_params["name"], with_for_update=True)
    if row is None:
        raise Wrong("queue not found", 404)
    return row


async def _lag(tx: AsyncSession, name: str) -> int:
    unfinished = Message.state.in_((WAITING, ACTIVE))
    count = select(func.count()).select_from(Message).where(Message.queue == name, unfinished)
    return await tx.scalar(count) or 0


# URL groups


async def groups(request: Request, tx: AsyncSession, post: Post) -> Any:
    return [views.group(row) for row in await tx.scalars(select(Group).order_by(Group.name))]


async def group(request: Request, tx: AsyncSession, post: Post) -> Any:
    row = await tx.get(Group, request.path_params["name"])
    if row is None:
        raise Wrong("url group not found", 404)
    return views.group(row)


async def delete_group(request: Request, tx: AsyncSession, post: Post) -> Any:
    row = await tx.get(Group, request.path_params["name"])
    if row is not None:
        await tx.delete(row)
    return EMPTY


async def upsert_endpoints(request: Request, tx: AsyncSession, post: Post) -> Any:
    name = request.path_params["name"]
    if not NAME.fullmatch(name):
        raise Wrong("a url group's name has letters, digits, '-', '_' and '.'")
    row = await tx.get(Group, name, with_for_update=True)
    now = post.office.now()
    if row is None:
        row = Group(name=name, endpoints=b"[]", created_at=now)
        tx.add(row)
    members = row.members
    for told in _endpoints(request):
        if not told.url:
            raise Wrong("an endpoint has a url")
        post.office.check_url(told.url, "endpoint url")
        members = [each for each in members if not _is_same(each, told)] + [told]
    if len(members) > 1_000:
        raise Wrong("a url group has 1,000 endpoints at most")
    row.endpoints, row.updated_at = msgspec.json.encode(members), now
    return EMPTY


async def remove_endpoints(request: Request, tx: AsyncSession, post: Post) -> Any:
    row = await tx.get(Group, request.path_params["name"], with_for_update=True)
    if row is None:
        raise Wrong("url group not found", 404)
    members = row.members
    for told in _endpoints(request):
        members = [each for each in members if not _is_same(each, told)]
    if not members:
        await tx.delete(row)
        return EMPTY
    row.endpoints, row.updated_at = msgspec.json.encode(members), post.office.now()
    return EMPTY


def _is_same(one: Endpoint, other: Endpoint) -> bool:
    return (one.name is not None and one.name == other.name) or one.url == other.url


def _endpoints(request: Request) -> list[Endpoint]:
    told = object_of(request).get("endpoints")
    found: list[Endpoint] = []
    for each in cast("list[Any]", told) if isinstance(told, list) else []:
        item = cast("dict[str, Any]", each) if isinstance(each, dict) else {}
        url, name = item.get("url") or "", item.get("name")
        if not isinstance(url, str) or not (name is None or isinstance(name, str)):
            raise Wrong("an endpoint has a url and perhaps a name")
        if name is not None and not 0 < len(check_text(name)) <= NAME_MAX:
            raise Wrong(f"an endpoint's name has 1 to {NAME_MAX} characters")
        found.append(Endpoint(url, name))
    if not found:
        raise Wrong("endpoints is a list of objects")
    return found


# Schedules


async def schedules(request: Request, tx: AsyncSession, post: Post) -> Any:
    rows = list(await tx.scalars(select(Schedule).order_by(Schedule.created_at)))
    return [views.schedule(row, await _states(tx, row)) for row in rows]


async def schedule(request: Request, tx: AsyncSession, post: Post) -> Any:
    row = await _schedule(request, tx)
    return views.schedule(row, await _states(tx, row))


async def delete_schedule(request: Request, tx: AsyncSession, post: Post) -> Any:
    await tx.delete(await _schedule(request, tx))
    return EMPTY


async def pause_schedule(request: Request, tx: AsyncSession, post: Post) -> Any:
    (await _schedule(request, tx)).is_paused = True
    return EMPTY


async def resume_schedule(request: Request, tx: AsyncSession, post: Post) -> Any:
    (await _schedule(request, tx)).is_paused = False
    return EMPTY


async def _schedule(request: Request, tx: AsyncSession) -> Schedule:
    row = await tx.get(Schedule, request.path_params["id"], with_for_update=True)
    if row is None:
        raise Wrong("schedule not found", 404)
    return row


async def _states(tx: AsyncSession, row: Schedule) -> dict[str, str]:
    ids = msgspec.json.decode(row.last_messages or b"[]", type=list[str])
    found = select(Message.id, Message.state).where(Message.id.in_(ids))
    return {row.id: row.state for row in await tx.execute(found)}
