"""Read an exception of a library that is not imported, and never raise while reading it.

An exception may do anything in its attributes and its `__str__`. Every read here gives None (or an
empty text) instead of raising.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import cached_property
from itertools import islice
from types import FrameType, TracebackType
from typing import Any, NamedTuple, cast

from relevo.lengths import asked_length

WAIT_MIN, WAIT_MAX = timedelta(seconds=1), timedelta(hours=1)

_CHAIN_MAX, _FRAMES_MAX, _TEXT_MAX = 20, 400, 500


class Frame(NamedTuple):
    """A call that an exception passed through on its way up."""

    module: str
    function: str
    values: Mapping[str, Any]


class Sight:
    """An exception (or a returned response) with its chain and its frames, read once."""

    def __init__(self, error: object, took: float | None = None, reads: bool = False) -> None:
        self.error = error
        self.took = took
        self.reads = reads

    @property
    def chain(self) -> list[BaseException]:
        """The exception, and those of the same call that it was made of."""
        return self._chains[0]

    @property
    def earlier(self) -> list[BaseException]:
        """Errors of other calls, which the application was handling when this one failed."""
        return self._chains[1]

    @cached_property
    def _chains(self) -> tuple[list[BaseException], list[BaseException]]:
        own: list[BaseException] = []
        earlier: list[BaseException] = []
        waiting = [self.error]
        while waiting and len(own) < _CHAIN_MAX:
            each = waiting.pop(0)
            if not isinstance(each, BaseException) or any(each is other for other in own):
                continue
            if own and not _stayed_inside(each):
                earlier.append(each)
                continue
            own.append(each)
            # Through the base class: a subclass may have put something else in these places.
            for place in ("__cause__", "__context__"):
                waiting.append(vars(BaseException)[place].__get__(each))
            waiting += list(vars(BaseException)["args"].__get__(each))
            waiting.append(read(each, "reason"))  # urllib, urllib3: what stopped the last try
        return own, earlier

    @cached_property
    def frames(self) -> list[Frame]:
        """The frames of all tracebacks in the chain, the exception's own first."""
        return list(islice((f for each in self.chain for f in _frames(each)), _FRAMES_MAX))

    def through(self, module: str, *functions: str) -> list[Frame]:
        """The frames in a module (or below a package), of these functions if any are named."""
        return [
            frame
            for frame in self.frames
            if (frame.module == module or frame.module.startswith(f"{module}."))
            and (not functions or frame.function in functions)
        ]


_LIBRARIES = frozenset({
    "aiohappyeyeballs", "aiohttp", "anthropic", "anyio", "asyncio", "botocore", "aiobotocore",
    "concurrent", "github", "google", "grpc", "h11", "h2", "http", "httpcore", "httpcore2",
    "httpx", "httpx2", "openai", "requests", "slack_sdk", "smtplib", "socket", "ssl", "stripe",
    "trio", "twilio", "urllib", "urllib3",
})  # fmt: skip


def _stayed_inside(error: BaseException) -> bool:
    """Whether a library caught the error; what the application caught ended a call of its own.

    A traceback begins in the function that caught its error.
    """
    trace = _trace(error)
    if trace is None:
        return True
    return str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] in _LIBRARIES


def _trace(error: BaseException) -> TracebackType | None:
    return vars(BaseException)["__traceback__"].__get__(error)


def _frames(error: BaseException) -> Iterator[Frame]:
    trace = _trace(error)
    while trace is not None:
        try:
            frame = trace.tb_frame
            module = frame.f_globals.get("__name__")
            yield Frame(
                module if isinstance(module, str) else "", frame.f_code.co_name, frame.f_locals
            )
        except Exception:  # noqa: BLE001, S112 - a frame that cannot be read proves nothing
            continue
        finally:
            trace = trace.tb_next


def steps_of(error: object) -> Iterator[tuple[str, FrameType, int]]:
    """Module, frame and place in its code of each step that an exception came through itself."""
    trace = _trace(error) if isinstance(error, BaseException) else None
    while trace is not None:
        module = trace.tb_frame.f_globals.get("__name__")
        yield module if isinstance(module, str) else "", trace.tb_frame, trace.tb_lasti
        trace = trace.tb_next


def read(thing: object, *path: str) -> Any:
    """An attribute of an attribute …, or an item where there is a mapping; None if missing."""
    for name in path:
        try:
            if isinstance(thing, Mapping):
                thing = cast("Mapping[str, Any]", thing).get(name)
            else:
                thing = getattr(thing, name, None)
        except BaseException:  # noqa: BLE001 - an attribute may raise anything when it is read
            return None
    return thing


def values_of(thing: object) -> list[Any]:
    """The values of a mapping, or the items of a list or a tuple; none of anything else."""
    try:
        if isinstance(thing, Mapping):
            return list(cast("Mapping[Any, Any]", thing).values())
        return list(cast("list[Any]", thing)) if isinstance(thing, list | tuple) else []
    except BaseException:  # noqa: BLE001 - as in read()
        return []


def call(thing: object, name: str) -> Any:
    """What a method without arguments returns; None if there is none, or if it raises."""
    method = read(thing, name)
    try:
        return method() if callable(method) else method
    except BaseException:  # noqa: BLE001 - as in read()
        return None


def names(thing: object) -> list[str]:
    """The classes of a thing, most special first: `httpx.ConnectError`, `builtins.OSError`, …

    Only the first piece of the module is kept: libraries move their classes between modules.
    """
    return [f"{module.partition('.')[0]}.{name}" for module, name in classes(thing)]


def classes(thing: object) -> list[tuple[str, str]]:
    """Module and qualified name of each class of a thing, most special first."""
    found: list[tuple[str, str]] = []
    for each in type(thing).__mro__:
        module, name = read(each, "__module__"), read(each, "__qualname__")
        if isinstance(module, str) and isinstance(name, str):
            found.append((module, name))
    return found


def text(thing: object) -> str:
    """A thing as one bounded text."""
    try:
        said = thing.decode("utf-8", "replace") if isinstance(thing, bytes) else str(thing)
        return " ".join(said[: 4 * _TEXT_MAX].split())[:_TEXT_MAX]
    except BaseException:  # noqa: BLE001 - an exception may raise anything when it is printed
        return "(its message cannot be printed)"


def number(thing: object) -> int | None:
    """A whole number, also where a library gives it as text; None for anything else."""
    try:
        if isinstance(thing, bool):
            return None
        if isinstance(thing, int):
            return int(thing)
        if isinstance(thing, str) and re.fullmatch(r"\d{1,9}", thing, re.ASCII):
            return int(thing)
    except BaseException:  # noqa: BLE001 - a subclass of int or str may raise anything
        return None
    return None


def status_of(thing: object) -> int | None:
    """The HTTP status in an answer or an exception, whatever the library calls it."""
    for name in ("status_code", "status", "http_status", "code"):
        value = number(read(thing, name))
        if value is not None and 100 <= value <= 599:
            return value
    return None


def header(headers: object, name: str) -> str | None:
    """A header's value, without regard to case."""
    try:
        get: Any = getattr(headers, "get", None)  # not read(): headers are mappings themselves
        if callable(get):
            for spelling in (name, name.lower(), name.title()):
                value = get(spelling)
                if value is not None:
                    return _one(value)
            for key in cast("Any", headers):
                if isinstance(key, str) and key.lower() == name.lower():
                    return _one(get(key))
        elif isinstance(headers, list | tuple):  # http.client's getheaders(), gRPC's metadata
            for pair in cast("list[Any]", headers):
                if str(pair[0]).lower() == name.lower():
                    return _one(pair[1])
    except BaseException:  # noqa: BLE001 - headers of a foreign class may raise anything
        return None
    return None


def _one(value: object) -> str:
    return text(values_of(value)[0] if values_of(value) else value)


def wait_of(value: object) -> timedelta | None:
    """What a Retry-After asks for: seconds or an HTTP date, within 1 s and 1 h; None if garbled."""
    if value is None or isinstance(value, bool):
        return None
    wait = asked_length(value if isinstance(value, timedelta) else text(value).strip())
    if wait is None:
        return None
    return min(max(wait, WAIT_MIN), WAIT_MAX)
