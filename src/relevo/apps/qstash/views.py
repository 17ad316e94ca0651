"""How messages, events and the rest are shown, in the API's own words."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from relevo.apps.qstash.records import Event, FlowKey, Group, Message, Queue, Schedule
from relevo.apps.qstash.wire import Wish

_HIDDEN = "REDACTED"


def _some(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, {}, "")}


def _body(body: bytes, prefix: str = "body") -> dict[str, str]:
    """As text where it is text."""
    try:
        return {prefix: body.decode()} if body else {}
    except UnicodeDecodeError:
        return {f"{prefix}Base64": base64.b64encode(body).decode()}


def _headers(wish: Wish) -> dict[str, list[str]]:
    if "header" in wish.redact:
        return {name: [_HIDDEN] for name in wish.headers}
    hidden = {part[7:-1].lower() for part in wish.redact if part.startswith("header[")}
    return {
        name: [_HIDDEN] if name.lower() in hidden else values
        for name, values in wish.headers.items()
    }


def _flow(wish: Wish) -> dict[str, Any]:
    if wish.flow is None:
        return {}
    shown: dict[str, Any] = {"flowControlKey": wish.flow.key, "period": wish.flow.period}
    return shown | _some(parallelism=wish.flow.parallelism or None, rate=wish.flow.rate or None)


def _callbacks(wish: Wish) -> dict[str, Any]:
    def listed(headers: dict[str, str]) -> dict[str, list[str]]:
        return {name.removeprefix("upstash-").title(): [v] for name, v in headers.items()}

    return _some(
        callback=wish.callback,
        failureCallback=wish.failure_callback,
        callbackHeader=listed(wish.callback_headers),
        failureCallbackHeader=listed(wish.failure_callback_headers),
    )


def message(row: Message) -> dict[str, Any]:
    wish = row.wishes
    return {
        "messageId": row.id,
        "url": row.url,
        "method": wish.method,
        "header": _headers(wish),
        "maxRetries": wish.retries,
        "notBefore": row.not_before,
        "createdAt": row.created_at,
        **({"body": _HIDDEN} if "body" in wish.redact else _body(row.body)),
        **_some(
            topicName=row.topic,
            endpointName=row.endpoint,
            queueName=row.queue,
            scheduleId=row.schedule_id,
            callerIP=row.caller_ip,
            label=None if row.label is None else labels(row.label)[0],
            labels=None if row.label is None else labels(row.label),
            retryDelayExpression=wish.retry_delay,
        ),
        **_callbacks(wish),
        **_flow(wish),
    }


def labels(told: str) -> list[str]:
    """Those in `Upstash-Label: a,b`."""
    return [each.strip() for each in told.split(",")]


def dead(row: Message) -> dict[str, Any]:
    headers: Any = msgspec.json.decode(row.response_headers or b"{}")
    return {
        **message(row),
        "dlqId": row.dlq_id,
        "responseStatus": row.response_status or 0,
        **_some(responseHeader=headers),
        **_body(row.response_body or b"", "responseBody"),
    }


def event(row: Event, of: Message) -> dict[str, Any]:
    wish = of.wishes
    shown = message(of)
    kept = ("url", "method", "maxRetries", "header", "callback", "failureCallback", "label")
    also = ("topicName", "endpointName", "queueName", "scheduleId", "flowControlKey")
    answer = "" if row.response_body is None else row.response_body.decode("utf-8", "replace")
    return {
        "time": row.time,
        "messageId": row.message_id,
        "state": row.state,
        **{name: shown[name] for name in (*kept, *also) if name in shown},
        **{name: shown[name] for name in ("parallelism", "rate", "period") if name in shown},
        **_some(
            body=None if "body" in wish.redact else base64.b64encode(of.body).decode(),
            error=row.error,
            nextDeliveryTime=row.next_delivery,
            responseStatus=row.response_status,
            responseBody=answer,
            timeout=wish.timeout,
            retryDelayExpr=wish.retry_delay,
            callbackHeaders=shown.get("callbackHeader"),
            failureCallbackHeaders=shown.get("failureCallbackHeader"),
        ),
    }


def queue(row: Queue, lag: int) -> dict[str, Any]:
    return {
        "name": row.name,
        "parallelism": row.parallelism,
        "paused": row.paused,
        "lag": lag,
        "createdAt": row.created_at,
        "updatedAt": row.updated_at,
    }


def group(row: Group) -> dict[str, Any]:
    return {
        "name": row.name,
        "createdAt": row.created_at,
        "updatedAt": row.updated_at,
        "endpoints": msgspec.to_builtins(row.members),
    }


def schedule(row: Schedule, states: dict[str, str]) -> dict[str, Any]:
    wish = row.wishes
    last = {"DELIVERED": "SUCCESS", "FAILED": "FAIL", "CANCELED": "FAIL"}
    return {
        "scheduleId": row.id,
        "destination": row.destination,
        "cron": row.cron,
        "createdAt": row.created_at,
        "method": wish.method,
        "retries": wish.retries,
        "header": _headers(wish),
        "isPaused": row.is_paused,
        **({"body": _HIDDEN} if "body" in wish.redact else _body(row.body)),
        **_some(
            delay=wish.delay // 1000 or None,
            timeout=None if wish.timeout is None else wish.timeout // 1000,
            queueName=wish.queue,
            label=wish.label,
            retryDelayExpression=wish.retry_delay,
            callerIP=row.caller_ip,
            lastScheduleTime=row.last_at,
            nextScheduleTime=row.next_at,
            lastScheduleStates={id: last.get(state, "IN_PROGRESS") for id, state in states.items()},
        ),
        **_callbacks(wish),
        **_flow(wish),
    }


def flow(row: FlowKey, running: int, waiting: int) -> dict[str, Any]:
    return {
        "flowControlKey": row.key,
        "waitListSize": waiting,
        "parallelismMax": row.parallelism,
        "parallelismCount": running,
        "rateMax": row.rate,
        "rateCount": row.window_count,
        "ratePeriod": row.period,
        "ratePeriodStart": row.window_at // 1000,
        "isPaused": row.is_paused,
        "isPinnedParallelism": row.is_parallelism_pinned,
        "isPinnedRate": row.is_rate_pinned,
    }
