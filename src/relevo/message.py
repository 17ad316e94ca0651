"""Command and Event, the classes people subclass.

Options are class keywords, never mixed with fields:

    class SendEmail(Command, queue="shop:mail:send", attempts=5, key="mail:{order_id}",
                    unique="forever"):
        order_id: str
"""

from __future__ import annotations

import inspect
import re
import string
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from datetime import timedelta
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from relevo.backoff import Backoff, exponential
from relevo.clock import Duration, duration, milliseconds
from relevo.errors import DefinitionError, PayloadError
from relevo.ids import KeyPart as KeyPart
from relevo.job import UNIQUES, Unique, queue_name
from relevo.payload import Codec, Upgrade

Priority: TypeAlias = Literal["high", "normal", "low"]
PRIORITIES: dict[Priority, int] = {"high": 0, "normal": 1, "low": 2}

ATTEMPTS = 3
DEFAULT_BACKOFF = exponential("1s", cap="10m")
DEFAULT_TIMEOUT = timedelta(minutes=5)
ATTEMPTS_MAX = 1_000
KEY_MAX = 512
KEY_PARTS = "text, a whole number or a UUID"

_EVENT = re.compile(r"[a-z][a-z0-9_-]*(?:\.[a-z][a-z0-9_-]*)+", re.ASCII)
_RATE = re.compile(r"([1-9]\d{0,8})/(s|m|h|d)", re.ASCII)
_MEMORY = re.compile(r"([1-9]\d{0,5}) ?(MB|GB)", re.ASCII)
MEMORY_LEAST = 128 << 20  # Python and relevo take half of it
_PERIODS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def is_key_part(value: object) -> bool:
    """Whether a key may be made of it; `True` is a number to Python, and no key."""
    return isinstance(value, KeyPart) and not isinstance(value, bool)


def key_text(value: object) -> str | None:
    """The key that a text, a whole number or a UUID stands for; None if it is none of them."""
    if not is_key_part(value):
        return None
    text = str(value)
    return text if 0 < len(text) <= KEY_MAX else None


def _no_key_part(annotation: Any, owner: type) -> type | None:
    """The type among those of a field of which no key can be made; None where that is not known."""
    if isinstance(annotation, str):
        written = {"__annotations__": {"field": annotation}, "__module__": owner.__module__}
        try:
            annotation = get_type_hints(type("Written", (), written), include_extras=True)["field"]
        except Exception:  # noqa: BLE001 - a name known later; the message is checked when it is sent
            return None
    pending = [annotation]
    while pending:
        kind = pending.pop()
        if get_origin(kind) in (Union, UnionType, Annotated):
            pending += get_args(kind)[: 1 if get_origin(kind) is Annotated else None]
            continue
        kind: Any = get_origin(kind) or kind
        if not isinstance(kind, type) or kind in (Any, object, NoneType):
            continue
        if not issubclass(kind, KeyPart) or issubclass(kind, bool):
            return cast("type", kind)
    return None


class Template:
    """A text such as "book:{reservation_code}", filled in from a message's fields."""

    def __init__(self, text: str, owner: type) -> None:
        types = {field.name: field.type for field in fields(owner)}
        names = types.keys()
        self.names: list[str] = []
        try:
            parts = list(string.Formatter().parse(text))
        except (TypeError, ValueError) as error:
            raise DefinitionError(
                f"{owner.__name__}: {text!r:.80} is not a template ({error}): write text with "
                "plain field names, such as 'book:{reservation_code}'"
            ) from error
        for _, name, spec, conversion in parts:
            if name is not None and (name not in names or spec or conversion):
                raise DefinitionError(
                    f"{owner.__name__}: '{{{name}}}' in {text!r:.80} is not one of its fields "
                    f"({', '.join(sorted(names)) or 'it has none'}); write plain field names"
                )
            if name is not None:
                if (kind := _no_key_part(types[name], owner)) is not None:
                    raise DefinitionError(
                        f"{owner.__name__}: '{{{name}}}' in {text!r:.80} is a {kind.__name__}, of "
                        f"which no key is made: it needs {KEY_PARTS}. Make the field a text, "
                        "written the same way every time"
                    )
                self.names.append(name)
        self.text = text
        self._around: tuple[str, str] | None = None  # the text on both sides of its only field
        if len(self.names) == 1:
            place = next(n for n, part in enumerate(parts) if part[1] is not None)
            texts = [part[0] for part in parts]
            self._around = "".join(texts[: place + 1]), "".join(texts[place + 1 :])

    def fill(self, message: object) -> str:
        """The text for one message; PayloadError when it comes out empty or too long."""
        values = vars(message)
        if self._around is not None and type(value := values[self.names[0]]) is str and value:
            before, behind = self._around
            if len(filled := before + value + behind) <= KEY_MAX:
                return filled
        for name in self.names:
            value = values[name]
            if value is None or value == "":
                # Two messages without it are not the same message.
                raise PayloadError(
                    f"{type(message).__name__}: '{self.text}' needs a value in '{name}'", path=name
                )
            if not is_key_part(value):
                raise PayloadError(
                    f"{type(message).__name__}: '{self.text}' needs {KEY_PARTS} in '{name}', "
                    f"not {type(value).__name__}",
                    path=name,
                )
        filled = self.text.format_map(values)
        if not 0 < len(filled) <= KEY_MAX:
            raise PayloadError(
                f"{type(message).__name__}: '{self.text}' came out {len(filled)} characters long; "
                f"it must have 1 to {KEY_MAX}"
            )
        return filled


@dataclass(frozen=True, slots=True)
class PerKey:
    """A limit or a rate for each value of a template; made by per_key()."""

    template: str
    amount: int | str


def per_key(template: str, amount: int | str) -> PerKey:
    """`limit=per_key("supplier:{supplier_id}", 4)`, `rate=per_key("hotel:{hotel_id}", "60/m")`."""
    return PerKey(template, amount)


@dataclass(frozen=True, slots=True)
class Breaker:
    """When to stop calling a dependency, told apart by a template over the payload.

    `failures` in a row within `window` open it for `cooldown`, which doubles up to `cap` while
    probes keep failing; what was parked meanwhile is let go at no more than `release` jobs a
    second. With `slow`, a call that works and takes longer than that counts as a failure, too.
    """

    template: str
    failures: int = 5
    window: Duration = "60s"
    cooldown: Duration = "30s"
    cap: Duration = "10m"
    release: int = 50
    slow: Duration | None = None

    def __post_init__(self) -> None:
        if type(self.failures) is not int or not 1 <= self.failures <= 1_000:
            raise DefinitionError(f"a breaker opens after 1 to 1,000 failures, not {self.failures}")
        if type(self.release) is not int or not 1 <= self.release <= 100_000:
            raise DefinitionError(f"a breaker releases 1 to 100,000 a second, not {self.release}")
        for length in (self.window, self.cooldown, self.cap, self.slow):
            if length is not None:
                duration(length)


def narrow(rule: Breaker, backoff: Backoff, attempts: int) -> str:
    """What is wrong with a breaker's window beside a backoff; "" if nothing is."""
    window, longest = duration(rule.window), backoff.longest(attempts)
    if rule.failures == 1 or window >= longest:
        return ""
    return (
        f"the breaker's window of {window.total_seconds():g} s is shorter than the backoff, which "
        f"waits up to {longest.total_seconds():g} s between two attempts"
    )


@dataclass(frozen=True, slots=True)
class Spec:
    """What a message's class says about its jobs."""

    kind: str
    queue: str
    attempts: int = ATTEMPTS
    backoff: Backoff = DEFAULT_BACKOFF
    timeout: timedelta = DEFAULT_TIMEOUT
    priority: int = 1
    key: Template | None = None
    unique: Unique = "unfinished"
    breaker: Breaker | None = None
    dependency: Template | None = None  # the breaker's name for one message
    lane: Template | None = None
    limit: int | None = None
    lane_limit: int | None = None
    rate: tuple[int, int] | None = None
    lane_rate: tuple[int, int] | None = None
    burst: int | None = None
    ordered: bool = False
    keep: int = 604_800_000
    isolate: bool = False  # in a child process
    memory: int | None = None  # bytes that it may have
    abandon_after: timedelta | None = None  # None: 10 times the time limit, at most an hour

    @property
    def names_account(self) -> bool:
        """Whether its breaker is told apart by the message, and so stands for one account."""
        return self.dependency is not None and bool(self.dependency.names)

    @property
    def limits(self) -> tuple[object, ...]:
        """What the jobs of one queue must agree on."""
        return self.limit, self.lane_limit, self.rate, self.lane_rate, self.burst, self.ordered


def rate(text: str) -> tuple[int, int]:
    """("60/m") → (60, 60_000): so many per so many milliseconds."""
    match = _RATE.fullmatch(str(text))  # a bare 60 says nothing about the time
    if not match:
        raise DefinitionError(f"{text!r:.40} is not a rate: write one like '10/s' or '60/m'")
    return int(match[1]), _PERIODS[match[2]]


def unique_of(value: Unique | None, has_key: bool, owner: str) -> Unique:
    """What a key is for; DefinitionError when a key does not say it."""
    if not has_key:
        if value is not None:
            raise DefinitionError(f"{owner}: unique={value!r:.40} needs a key=")
        return "unfinished"
    if value not in UNIQUES:
        raise DefinitionError(
            f"{owner}: key= needs unique=, which says what the key is for. "
            "unique='forever': it happens once, whatever comes later. "
            "unique='latest': the newest payload replaces those that have not started. "
            "unique='unfinished': a second one joins the first until that has ended, "
            "and its own payload is not used" + ("" if value is None else f" (not {value!r:.40})")
        )
    return value


def check_order(unique: Unique, is_ordered: bool, owner: str) -> None:
    """DefinitionError where the older jobs of a key are dropped and every one is to run in turn."""
    if unique == "latest" and is_ordered:
        raise DefinitionError(
            f"{owner}: ordered= runs every job of a lane in turn and unique='latest' drops the "
            "older ones: choose one of the two"
        )


def attempts_of(value: int, owner: str) -> int:
    """The number itself if it may be a number of attempts."""
    if type(value) is not int or not 1 <= value <= ATTEMPTS_MAX:
        raise DefinitionError(
            f"{owner}: attempts is a whole number from 1 to {ATTEMPTS_MAX}, not {value!r:.40}"
        )
    return value


def backoff_of(value: Backoff, owner: str) -> Backoff:
    """The backoff itself if it is one."""
    if not isinstance(value, Backoff):  # pyright: ignore[reportUnnecessaryIsInstance] - people without a type checker
        raise DefinitionError(
            f"{owner}: write backoff=exponential('15s') or constant('1m'), not {value!r:.40}"
        )
    return value


def time_limit(value: Duration) -> timedelta:
    """The duration itself if it may be a time limit."""
    limit = duration(value)
    if limit < timedelta(milliseconds=1):
        raise DefinitionError("a time limit of nothing would end every run: write one like '45s'")
    return limit


def memory_limit(text: str, owner: str) -> int:
    """ "512MB" → the bytes."""
    match = _MEMORY.fullmatch(text) if isinstance(text, str) else None  # pyright: ignore[reportUnnecessaryIsInstance] - as in backoff_of()
    limit = 0 if match is None else int(match[1]) << {"MB": 20, "GB": 30}[match[2]]
    if limit < MEMORY_LEAST:
        raise DefinitionError(
            f"{owner}: memory is a text such as '512MB' or '2GB', 128MB or more, not {text!r:.40}"
        )
    return limit


@dataclass_transform(frozen_default=True)
class Message:
    """What Command and Event share: frozen fields that travel as JSON.

    A class whose fields have changed may have an `upgrade`, which is given each stored payload as a
    dict and gives back what fits today's fields:

        @staticmethod
        def upgrade(old: dict[str, Any]) -> dict[str, Any]: ...
    """

    __relevo__: ClassVar[Spec]
    __codec__: ClassVar[Codec[Any] | None]
    __allow__: ClassVar[frozenset[str]]  # paths that may carry what looks like a secret
    __upgrade__: ClassVar[Upgrade | None]


class Command(Message):
    """An order in the imperative, carried out by one worker."""

    def __init_subclass__(
        cls,
        *,
        queue: str,
        name: str | None = None,
        attempts: int = ATTEMPTS,
        backoff: Backoff = DEFAULT_BACKOFF,
        timeout: Duration = DEFAULT_TIMEOUT,
        abandon_after: Duration | None = None,
        isolate: Literal["process"] | None = None,
        memory: str | None = None,
        priority: Priority = "normal",
        key: str | None = None,
        unique: Unique | None = None,
        breaker: str | Breaker | None = None,
        limit: int | PerKey | None = None,
        rate: str | PerKey | None = None,
        burst: int | None = None,
        ordered: str | None = None,
        fair: str | None = None,
        keep: Duration = timedelta(days=7),
        allow: Iterable[str] = (),
    ) -> None:
        super().__init_subclass__()
        _freeze(cls, allow)
        owner = cls.__name__
        if priority not in PRIORITIES:
            raise DefinitionError(f"{owner}: priority is 'high', 'normal' or 'low'")
        unique = unique_of(unique, key is not None, owner)
        check_order(unique, ordered is not None, owner)
        lanes = {
            text
            for text in (
                limit.template if isinstance(limit, PerKey) else None,
                rate.template if isinstance(rate, PerKey) else None,
                ordered,
                fair,
            )
            if text is not None
        }
        if len(lanes) > 1:
            raise DefinitionError(
                f"{owner}: limit, rate, ordered and fair must share one key, not "
                + " and ".join(sorted(lanes))
            )
        if burst is not None and rate is None:
            raise DefinitionError(
                f"{owner}: burst= needs a rate=: it says how many of them may begin at once"
            )
        guard = Breaker(breaker) if isinstance(breaker, str) else breaker
        if not isinstance(guard, Breaker | None):  # pyright: ignore[reportUnnecessaryIsInstance] - as in backoff_of()
            raise DefinitionError(
                f"{owner}: breaker is a template such as 'supplier:{{supplier_id}}', or "
                f"Breaker(…), not {guard!r:.40}"
            )
        if isolate not in (None, "process"):
            raise DefinitionError(f"{owner}: isolate is 'process', not {isolate!r:.40}")
        if isolate is None and memory is not None:
            raise DefinitionError(
                f"{owner}: memory= limits a child process: it needs isolate='process'"
            )
        if isolate is not None and abandon_after is not None:
            raise DefinitionError(
                f"{owner}: abandon_after= is for a function that cannot be stopped, and "
                "isolate='process' stops it at its timeout: leave one of them out"
            )
        cls.__relevo__ = Spec(
            kind=name or owner,
            queue=queue_name(queue),
            attempts=attempts_of(attempts, owner),
            backoff=backoff_of(backoff, owner),
            timeout=time_limit(timeout),
            priority=PRIORITIES[priority],
            key=_template(key, cls),
            unique=unique,
            breaker=guard,
            dependency=None if guard is None else Template(guard.template, cls),
            lane=_template(lanes.pop() if lanes else None, cls),
            limit=None if isinstance(limit, PerKey | None) else _count(limit, owner),
            lane_limit=_count(limit.amount, owner) if isinstance(limit, PerKey) else None,
            rate=None if isinstance(rate, PerKey | None) else _rate(rate),
            lane_rate=_rate(str(rate.amount)) if isinstance(rate, PerKey) else None,
            burst=None if burst is None else _count(burst, owner, "burst"),
            ordered=ordered is not None,
            keep=milliseconds(keep),
            isolate=isolate is not None,
            memory=None if memory is None else memory_limit(memory, owner),
            abandon_after=None if abandon_after is None else duration(abandon_after),
        )


EVENTS = "relevo:events:published"
"""The queue of published events; every worker takes them, to give them to their subscribers."""

EVENT_KEEP = 7 * 86_400_000
"""Milliseconds for which a published event is kept, unless its class says otherwise."""

EVENT_KEEP_MOST = 90 * 86_400_000


class Event(Message):
    """A fact in the past tense; every subscriber gets a job of its own.

    An event is stored for `keep`, also if nothing subscribes to it yet.
    """

    def __init_subclass__(
        cls,
        *,
        name: str,
        key: str | None = None,
        unique: Unique | None = None,
        keep: Duration = timedelta(milliseconds=EVENT_KEEP),
        allow: Iterable[str] = (),
    ) -> None:
        super().__init_subclass__()
        _freeze(cls, allow)
        if not _EVENT.fullmatch(name) or len(name) > 128:
            raise DefinitionError(
                f"{name!r:.60} is not an event name: write a fact in lower case with dots, "
                "such as 'user.registered'"
            )
        unique = unique_of(unique, key is not None, cls.__name__)
        kept = milliseconds(keep)
        if not 60_000 <= kept <= EVENT_KEEP_MOST:
            raise DefinitionError(
                f"{cls.__name__}: an event is kept for 1 minute to 90 days, not {keep!r:.40}"
            )
        cls.__relevo__ = Spec(
            kind=name, queue=EVENTS, key=_template(key, cls), unique=unique, keep=kept
        )


M = TypeVar("M", bound=Message)


def codec(cls: type[M]) -> Codec[M]:
    """The codec of a message's class, made on first use: its types may be defined after it."""
    if cls.__codec__ is None:
        cls.__codec__ = Codec(cls, allow=cls.__allow__, upgrade=cls.__upgrade__)
    return cls.__codec__


def _freeze(cls: type[Message], allow: Iterable[str]) -> None:
    if isinstance(allow, str):
        raise DefinitionError(
            f"{cls.__name__}: allow= is a list of fields: write allow=[{allow!r:.80}]"
        )
    dataclass(frozen=True)(cls)
    cls.__codec__ = None
    cls.__allow__ = frozenset(allow)
    cls.__upgrade__ = _upgrade_of(cls)


def _upgrade_of(cls: type[Message]) -> Upgrade | None:
    """The class's own upgrade(); DefinitionError where it cannot be called with an old payload."""
    found = inspect.getattr_static(cls, "upgrade", None)
    if found is None or "upgrade" in cls.__dict__.get("__dataclass_fields__", {}):
        return None
    how = (
        "write `@staticmethod` and `def upgrade(old: dict[str, Any]) -> dict[str, Any]`, which "
        "gives the payload as today's fields need it"
    )
    if not isinstance(found, staticmethod | classmethod):
        raise DefinitionError(
            f"{cls.__name__}.upgrade is called with a stored payload, before there is a message: "
            + how
        )
    upgrade: Any = getattr(cls, "upgrade")  # noqa: B009 - no attribute of Message
    if inspect.iscoroutinefunction(upgrade):
        raise DefinitionError(
            f"{cls.__name__}.upgrade is an `async def`, and what it gives is needed at once: {how}"
        )
    try:
        inspect.signature(upgrade).bind({})
    except TypeError as error:
        raise DefinitionError(
            f"{cls.__name__}.upgrade is called with the stored payload alone ({error}): {how}"
        ) from None
    return upgrade


def _template(text: str | None, cls: type) -> Template | None:
    return None if text is None else Template(text, cls)


_rate: Callable[[str], tuple[int, int]] = rate


def _count(value: int | str, owner: str, what: str = "a limit") -> int:
    if type(value) is not int or not 1 <= value <= 1_000_000:
        raise DefinitionError(f"{owner}: {what} is a whole number above 0, not {value!r:.40}")
    return value
