"""What publishers write in headers, read into one value; and durations as they write them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import msgspec

from relevo.apps.qstash import expression

DAY = 86_400_000
RETRIES = 3
RETRIES_MAX = 100
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
NAME = re.compile(r"[A-Za-z0-9._-]{1,256}", re.ASCII)

_DURATION = re.compile(r"(?:\d{1,9}(?:\.\d{1,6})?(?:ns|us|µs|ms|s|m|h|d))+", re.ASCII)
_PART = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(ns|us|ms|s|m|h|d)", re.ASCII)
_UNITS = {"ns": 1e-6, "us": 1e-3, "ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": DAY}
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,200}", re.ASCII)
_NOT_SENT = {"host", "content-length", "transfer-encoding", "connection", "upgrade", "te"}


class Wrong(Exception):
    """What a caller asks for cannot be; the answer is this status and these words."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


class Flow(msgspec.Struct, frozen=True, omit_defaults=True):
    """How much at once, and how many in a time, of what shares a key."""

    key: str
    parallelism: int = 0
    rate: int = 0
    period: int = 1  # seconds


class Wish(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a message is to be delivered, but for where and what."""

    method: str = "POST"
    headers: dict[str, list[str]] = {}
    retries: int = RETRIES
    retry_delay: str | None = None
    delay: int = 0  # ms
    not_before: int | None = None  # ms
    timeout: int | None = None  # ms
    deduplication: str | None = None
    is_content_based: bool = False
    callback: str | None = None
    failure_callback: str | None = None
    callback_headers: dict[str, str] = {}
    failure_callback_headers: dict[str, str] = {}
    flow: Flow | None = None
    label: str | None = None
    redact: list[str] = []
    cron: str | None = None
    queue: str | None = None
    schedule_id: str | None = None


def read_wish(given: Mapping[str, str]) -> Wish:
    """The wish in a request's headers; Wrong, with the header's name, for what cannot be."""
    h = {name.lower(): value for name, value in given.items()}
    method = h.get("upstash-method", "POST").upper()
    if method not in METHODS:
        raise Wrong(f"Upstash-Method is one of {', '.join(METHODS)}")
    retry_delay = h.get("upstash-retry-delay")
    if retry_delay is not None:
        try:
            expression.check(retry_delay)
        except expression.WrongExpression as error:
            raise Wrong(f"Upstash-Retry-Delay: {error}") from error
    not_before = h.get("upstash-not-before")
    return Wish(
        method=method,
        headers=_forwarded(h),
        retries=_integer(h.get("upstash-retries"), "Upstash-Retries", RETRIES, RETRIES_MAX),
        retry_delay=retry_delay,
        delay=_duration(h.get("upstash-delay"), "Upstash-Delay") or 0,
        not_before=None
        if not_before is None
        else _integer(not_before, "Upstash-Not-Before", 0, 10**11) * 1000,
        timeout=_duration(h.get("upstash-timeout"), "Upstash-Timeout"),
        deduplication=_text(h.get("upstash-deduplication-id"), "Upstash-Deduplication-Id"),
        is_content_based=h.get("upstash-content-based-deduplication", "").lower() == "true",
        callback=h.get("upstash-callback"),
        failure_callback=h.get("upstash-failure-callback"),
        callback_headers=_below(h, "upstash-callback-"),
        failure_callback_headers=_below(h, "upstash-failure-callback-"),
        flow=_flow(h),
        label=_text(h.get("upstash-label"), "Upstash-Label"),
        redact=[part.strip() for part in h.get("upstash-redact-fields", "").split(",") if part],
        cron=h.get("upstash-cron"),
        queue=_name(h.get("upstash-queue-name"), "Upstash-Queue-Name"),
        schedule_id=_name(h.get("upstash-schedule-id"), "Upstash-Schedule-Id"),
    )


def milliseconds(text: str) -> int | None:
    """`1d10h30m` in milliseconds; None when it is no duration."""
    plain = text.strip()
    if not _DURATION.fullmatch(plain):
        return None
    return round(sum(float(count) * _UNITS[unit] for count, unit in _PART.findall(plain)))


def asked_wait(headers: Mapping[str, list[str]], now: datetime) -> int | None:
    """How many milliseconds a destination asks to be left alone; None if it does not."""
    low = {name.lower(): values[-1] for name, values in headers.items()}
    for name in (
        "retry-after",
        "x-ratelimit-reset",
        "x-ratelimit-reset-requests",
        "x-ratelimit-reset-tokens",
    ):
        wait = _wait(low.get(name, ""), now)
        if wait is not None and 0 <= wait <= DAY:
            return wait
    return None


def _wait(text: str, now: datetime) -> int | None:
    plain = text.strip()
    if re.fullmatch(r"\d{1,9}(?:\.\d{1,6})?", plain, re.ASCII):
        return round(float(plain) * 1000)
    if (span := milliseconds(plain)) is not None:
        return span
    try:
        at = parsedate_to_datetime(plain)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return round((at.replace(tzinfo=at.tzinfo or UTC) - now).total_seconds() * 1000)


def _forwarded(h: Mapping[str, str]) -> dict[str, list[str]]:
    prefix = "upstash-forward-"
    given = {"content-type": h["content-type"]} if "content-type" in h else {}
    given |= {name.removeprefix(prefix): h[name] for name in h if name.startswith(prefix)}
    found: dict[str, list[str]] = {}
    for name, value in given.items():
        if name in _NOT_SENT or name.startswith("upstash-"):
            continue
        if not _HEADER.fullmatch(name) or re.search(r"[\r\n\0]", value):
            raise Wrong(f"{name!r:.60} cannot be a header")
        found[name.title()] = [value]
    return found


def _below(h: Mapping[str, str], prefix: str) -> dict[str, str]:
    """`Upstash-Callback-Retries: 1` as `upstash-retries: 1`, for the callback's own message."""
    found = {
        f"upstash-{name.removeprefix(prefix)}": value
        for name, value in h.items()
        if name.startswith(prefix) and "callback" not in name.removeprefix(prefix)
    }
    if found:
        read_wish(found)
    return found


def _flow(h: Mapping[str, str]) -> Flow | None:
    key = h.get("upstash-flow-control-key")
    if key is None:
        return None
    if not NAME.fullmatch(key):
        raise Wrong("Upstash-Flow-Control-Key has letters, digits, '-', '_' and '.'")
    told: dict[str, str] = {}
    for part in h.get("upstash-flow-control-value", "").split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name:
            told[name] = value
    values = limits(told)
    if not values.get("parallelism") and not values.get("rate"):
        raise Wrong("Upstash-Flow-Control-Value needs a parallelism or a rate")
    return Flow(key, **values)


def limits(told: Mapping[str, str]) -> dict[str, int]:
    """The parallelism, rate and period (in seconds) that are told of a flow-control key."""
    values: dict[str, int] = {}
    for name, value in told.items():
        match name:
            case "parallelism" | "rate":
                values[name] = _integer(value, name, 0, 10**6)
            case "period":
                values[name] = max(1, (_duration(value, name) or 0) // 1000)
            case _:
                raise Wrong(f"Upstash-Flow-Control-Value: {name!r:.40} is not known")
    if values.get("period", 1) > 604_800:
        raise Wrong("the period is a week at most")
    return values


def _integer(text: str | None, name: str, default: int, most: int) -> int:
    if text is None:
        return default
    if not re.fullmatch(r"\d{1,12}", text.strip(), re.ASCII) or int(text) > most:
        raise Wrong(f"{name} is a whole number up to {most:,}")
    return int(text)


def _duration(text: str | None, name: str) -> int | None:
    if text is None:
        return None
    plain = text.strip()
    is_seconds = re.fullmatch(r"\d{1,9}", plain, re.ASCII)
    span = int(plain) * 1000 if is_seconds else milliseconds(plain)
    if span is None or span > 366 * DAY:
        raise Wrong(f"{name} is a duration such as 10s, 5m or 1d10h30m, 366 days at most")
    return span


def _name(text: str | None, name: str) -> str | None:
    if text is not None and not NAME.fullmatch(text):
        raise Wrong(f"{name} has letters, digits, '-', '_' and '.'")
    return text


def _text(text: str | None, name: str) -> str | None:
    if text is not None and (not 0 < len(text) <= 512 or "\0" in text):
        raise Wrong(f"{name} has 1 to 512 characters, and no NUL")
    return text
