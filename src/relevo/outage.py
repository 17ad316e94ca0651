"""Whether a run failed because our own PostgreSQL or Redis was away, and not because of the job.

A worker's function may reach the server of the store, or that of RELEVO_DATABASE_URL, through a
client of its own. An error which says that this server refuses or breaks connections becomes
StoreUnavailable, as relevo's own calls raise it: no attempt is spent. The same error about any
other server is the job's own failure, as is an error that does not tell whose connection it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from relevo.errors import ProviderError, StoreUnavailable

Place = tuple[str, int]

_PORTS = {"postgresql": 5432, "postgres": 5432, "redis": 6379, "rediss": 6379}
_HOST = re.compile(r"(?:\[([^\]]*)\]|([^:\[\]]*))(?::(\d+))?")
_TOLD = (
    re.compile(r"\('([^']+)', (\d+)"),  # asyncio and asyncpg
    re.compile(r'server at "([^"]+)"(?: \([^)]*\))?, port (\d+)'),  # libpq
    re.compile(r"connecting to ([\w.:-]+):(\d+)"),  # redis-py
)
# Connections, resources, the operator's doing and the system's: but a cancelled query is the job's.
_AWAY = ("08", "53", "57", "58")
_CANCELLED = "57014"


def places(urls: Iterable[str]) -> frozenset[Place]:
    """The servers that stores and databases at these addresses are on."""
    return frozenset(place for url in urls for place in _places(url))


def outage(error: BaseException, ours: frozenset[Place]) -> StoreUnavailable | None:
    """StoreUnavailable, if the error says that one of our servers is away."""
    try:
        if not ours or isinstance(error, ProviderError):
            return None
        for each in _chain(error):
            if _is_away(each) and not ours.isdisjoint(_about(each)):
                away = StoreUnavailable(f"our database does not answer: {each}")
                away.__cause__ = error
                return away.with_traceback(error.__traceback__)
    except BaseException:  # noqa: BLE001 - an error may raise anything when it is read
        return None
    return None


def _places(url: str) -> Iterator[Place]:
    split = urlsplit(url)
    port = _PORTS.get(split.scheme.partition("+")[0])
    if port is None:
        return
    options = dict(parse_qsl(split.query))
    hosts = split.netloc.rpartition("@")[2] or options.get("host", "")
    for part in hosts.split(","):
        if found := _HOST.fullmatch(part):
            name = found[1] or found[2] or "localhost"
            yield _place(name, int(found[3] or options.get("port") or port))


def _place(host: str, port: int) -> Place:
    return ("localhost" if host in ("127.0.0.1", "::1") else host.lower(), port)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, and those that it was raised from."""
    seen: set[int] = set()
    todo = [error]
    while todo:
        each = todo.pop()
        if id(each) in seen or isinstance(each, ProviderError):
            continue
        seen.add(id(each))
        yield each
        more = (getattr(each, "orig", None), each.__cause__, *getattr(each, "exceptions", ()))
        todo += [other for other in more if isinstance(other, BaseException)]


def _is_away(error: BaseException) -> bool:
    module, state = type(error).__module__.partition(".")[0], getattr(error, "sqlstate", None)
    if isinstance(state, str) and state:
        return state[:2] in _AWAY and state != _CANCELLED
    match module:
        case "builtins":
            return isinstance(error, OSError)  # refused, reset, unreachable, timed out
        case "asyncpg":
            return "clos" in str(error) and type(error).__name__ == "InterfaceError"
        case "psycopg" | "psycopg2":
            return type(error).__name__ == "OperationalError"
        case "redis":
            return type(error).__name__ in ("ConnectionError", "TimeoutError", "BusyLoadingError")
        case _:
            return False


def _about(error: BaseException) -> Iterator[Place]:
    """The servers that an error is about, by its words or by the connection that raised it."""
    try:
        said = str(error)[:2_000]
    except Exception:  # noqa: BLE001 - an exception may raise anything when it is printed
        said = ""
    for form in _TOLD:
        for host, port in form.findall(said):
            yield _place(host, int(port))
    frame = error.__traceback__
    while frame is not None:
        names = frame.tb_frame.f_locals
        match frame.tb_frame.f_globals.get("__name__", "").partition(".")[0]:
            case "asyncpg":
                address = getattr(names.get("self"), "_addr", None) or names.get("addr")
                yield from _tcp(address)
            case "psycopg":
                yield from _libpq(names.get("self"))
            case _:
                pass
        frame = frame.tb_next


def _libpq(thing: Any) -> Iterator[Place]:
    """The server of a psycopg connection, or of a cursor's."""
    line: Any = getattr(getattr(thing, "connection", thing), "pgconn", None)
    try:
        host, port = line.host.decode(), int(line.port)
    except Exception:  # noqa: BLE001 - it is none, or is closed already
        return
    yield _place(host, port)


def _tcp(address: Any) -> Iterator[Place]:
    match address:
        case (str(host), int(port)):
            yield _place(host, port)
        case _:
            return
