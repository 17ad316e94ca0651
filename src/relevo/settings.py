"""Settings: read from the environment once, then frozen.

One table, VARIABLES, says what there is: it drives reading, errors, `relevo settings` and the docs.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import unquote

from relevo.addresses import THIS_MACHINE, Network, networks
from relevo.budget import Budget, budget_of
from relevo.clock import duration
from relevo.errors import DefinitionError, SettingsError
from relevo.sealing import SealKeys
from relevo.sensitive import HIDDEN, names_secret

PREFIX = "RELEVO_"
TEST_PREFIX = "RELEVO_TEST_"

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
LogFormat: TypeAlias = Literal["auto", "json", "text"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Settings:
    """What this process was told; VARIABLES says what each means."""

    store_url: str
    database_url: str | None
    apps: tuple[str, ...]
    host: str
    public_url: str | None
    port: int
    admin_password: str | None
    allowed_hosts: tuple[str, ...]
    trusted_proxies: tuple[Network, ...]
    concurrency: int
    slots: tuple[tuple[str, int], ...]
    connections: int
    lease: timedelta
    grace: timedelta
    keep_dead: timedelta
    log_level: LogLevel
    log_format: LogFormat
    tracing: Literal["off", "on"]
    budget: Budget | None
    spool: str | None
    seal_keys: SealKeys | None

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """The settings of an environment; SettingsError naming everything wrong with it at once.

        A variable that is empty is as good as absent. Values are never quoted: the one that was
        mistyped may be a password in the wrong place.
        """
        values: dict[str, Any] = {}
        problems = [_unknown(name) for name in sorted(environ) if _is_unknown(name)]
        for variable in VARIABLES:
            text = environ.get(variable.name, "") or variable.default
            try:
                values[variable.field] = variable.parse(text) if text else variable.absent
            except ValueError as error:
                problems.append(f"{variable.name} {error}")
        if problems:
            raise SettingsError("; ".join(problems))
        return cls(**values)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value}" for name, value in self.shown().items())
        return f"Settings({shown})"

    def shown(self) -> dict[str, Any]:
        """Every setting as a person may see it: no password is in it."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for variable in VARIABLES:
            if variable.shown and values[variable.field] is not None:
                values[variable.field] = variable.shown(values[variable.field])
        return values


def store_file(url: str) -> Path | None:
    """The file of a SQLite store; None for a store that is a server."""
    scheme, _, rest = url.partition(":///")
    return Path(unquote(rest.partition("?")[0])) if scheme == "sqlite" else None


def spool_file(url: str, setting: str | None) -> Path | None:
    """Where the spool is: as set, else beside the store's file, else in the working directory."""
    if setting == "off":
        return None
    if setting:
        return Path(setting).absolute()
    file = store_file(url)
    return Path(SPOOL).absolute() if file is None else file.parent / SPOOL


SPOOL = "relevo-spool.db"

# The values


_STORES = (
    "sqlite",
    "postgresql",
    "postgres",
    "redis",
    "rediss",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
)
_DATABASES = ("sqlite", "sqlite+aiosqlite", "postgresql", "postgres", "postgresql+asyncpg")
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://[^\x00-\x1f\x7f]+")
_HOST = re.compile(r"[\w.:%-]+")
_NAME = re.compile(r"\.?[\w-]+(?:\.[\w-]+)*", re.ASCII)
_APP = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*(?::[^\W\d]\w*)?")


def _url(schemes: tuple[str, ...], advice: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        found = _URL.fullmatch(text.strip())
        if not found or found[1] not in schemes:
            raise ValueError(f"is not an address that can be used: write {advice}")
        return found[0]

    return parse


def _apps(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not all(_APP.fullmatch(name) for name in names) or len(set(names)) < len(names):
        raise ValueError(
            "lists apps once each, as module:attribute or by name: 'shop.jobs:app,hotel'"
        )
    return tuple(names)


def _host(text: str) -> str:
    if not _HOST.fullmatch(text):
        raise ValueError("is not a host: write one like 127.0.0.1, ::1 or relevo.internal")
    return text


def _hosts(text: str) -> tuple[str, ...]:
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    if not all(_NAME.fullmatch(name) for name in names):
        raise ValueError("lists host names without ports: 'relevo.example.com,.internal'")
    return tuple(names)


def _networks(text: str) -> tuple[Network, ...]:
    try:
        found = networks(text)
    except ValueError:
        found = ()
    if not found or any(each.prefixlen == 0 for each in found):
        raise ValueError("lists addresses or networks of proxies: '10.0.3.4,172.18.0.0/16'")
    return found


def _networks_shown(found: tuple[Network, ...]) -> str:
    return ",".join(map(str, found))


_PUBLIC_URL = re.compile(
    r"https?://[A-Za-z0-9.:\[\]-]+(/[A-Za-z0-9._~/-]*[A-Za-z0-9._~-])?", re.ASCII
)


def public_url_of(text: str) -> str:
    """The public URL without a slash at its end; SettingsError if it is none."""
    url = text.rstrip("/")
    if url and not _PUBLIC_URL.fullmatch(url):
        raise SettingsError("the public URL is one like https://api.example.com, without a query")
    return url


def _public_url(text: str) -> str:
    try:
        return public_url_of(text)
    except SettingsError:
        raise ValueError("is a URL like https://api.example.com, without a query") from None


def _whole(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if re.fullmatch(r"\d{1,9}", text, re.ASCII) and least <= int(text) <= most:
            return int(text)
        raise ValueError(f"is a whole number from {least:,} to {most:,}")

    return parse


def slots_of(text: str) -> tuple[str, int]:
    """("shop:mail:send=20") → ("shop:mail:send", 20); ValueError if it is not like that."""
    queue, equals, slots = text.strip().partition("=")
    if not equals or not queue or not re.fullmatch(r"[1-9]\d{0,3}|10000", slots, re.ASCII):
        raise ValueError(
            "gives queues so many slots of each worker: 'shop:mail:send=20,shop:orders:pay=40'"
        )
    return queue, int(slots)


def _slots(text: str) -> tuple[tuple[str, int], ...]:
    return tuple(slots_of(each) for each in text.split(",") if each.strip())


def _slots_shown(given: tuple[tuple[str, int], ...]) -> str:
    return ",".join(f"{queue}={slots}" for queue, slots in given)


def _password(text: str) -> str:
    if text != text.strip() or not text.isprintable():
        raise ValueError("begins or ends with white space, or holds what cannot be typed")
    letters = "".join(filter(str.isalpha, text.lower()))
    if len(text) < 12 or len(set(text)) < 5 or "changeme" in letters or letters == "password":
        raise ValueError("is too easily guessed: use 12 characters or more that nobody else uses")
    return text


def _length(least: str, most: str) -> Callable[[str], timedelta]:
    def parse(text: str) -> timedelta:
        try:
            length = duration(text.strip())
        except DefinitionError:
            length = timedelta(-1)
        if not duration(least) <= length <= duration(most):
            raise ValueError(
                f"is a duration from {least} to {most}: write one like '15s' or '1h30m'"
            )
        return length

    return parse


def _path(text: str) -> str:
    if not text.isprintable() or not text.strip() or text.endswith("/"):
        raise ValueError("is a file's path, or off")
    return "off" if text.strip().lower() == "off" else text.strip()


def _seal_keys(text: str) -> SealKeys:
    try:
        return SealKeys(text)
    except SettingsError as error:
        raise ValueError(f"cannot be used: {error}") from None


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"is one of {', '.join(words)}")
        return text.lower()

    return parse


def _hidden(value: object) -> str:
    return HIDDEN


# Options in a query, or in a key=value string: ?password=…&x=y
_OPTION = re.compile(r"(?<![\w.-])([\w.-]{1,64})(\s*=\s*)('[^']*'|[^&;#\s]+)")
_PLACE = re.compile(r"[^:@/?#]+:\d{1,5}(?:/[^?@]*)?(?=\?)", re.ASCII)
_QUERY = re.compile(r"\?[\w.-]{1,64}=.*", re.S)
_MORE_SECRETS = frozenset({"token", "key", "sig", "signature", "auth", "credential"})


def masked(url: str) -> str:
    """A URL as a person may see it, its passwords hidden; whatever it is, never an error."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        scheme, rest = "", url
    bare = _PLACE.match(rest)
    query = _QUERY.search(rest, bare.end() if bare else max(rest.find("@"), 0))
    place, options = (rest[: query.start()], query[0]) if query else (rest, "")
    if "@" in options:
        # Rather all options than the half of a password that holds '@' and '?'; the host stays.
        options = f"?{HIDDEN}"
    login, at, _ = place.rpartition("@")
    if at and re.match(r"[^/?#]*[:@]", place):
        # Up to the last '@' there is: a password may hold '/', '?' and '@' that nobody escaped,
        # and half of one would show.
        user, colon, _ = login.partition(":")
        name = f"{user}:{HIDDEN}" if colon else HIDDEN if len(user) > 16 else user
        place = f"{name}@{place[len(login) + 1 :]}"
    rest = place + options
    return f"{scheme}{mark}{_OPTION.sub(_hide_option, rest)}"


def _hide_option(option: re.Match[str]) -> str:
    name, equals, _ = option.groups()
    words = re.split(r"[\W_]", name.lower())
    is_secret = names_secret(name) or not _MORE_SECRETS.isdisjoint(words)
    return f"{name}{equals}{HIDDEN}" if is_secret else option[0]


# The table


class Variable(NamedTuple):
    """One variable of the environment, and the setting it becomes."""

    name: str
    parse: Callable[[str], Any]
    default: str  # as text, read like any other
    meaning: str
    shown: Callable[[Any], str] | None = None  # for values that hold a secret
    absent: Any = None  # the setting where there is neither text nor default

    @property
    def field(self) -> str:
        return self.name.removeprefix(PREFIX).lower()


VARIABLES = (
    Variable(
        "RELEVO_STORE_URL",
        _url(_STORES, "sqlite:///path, postgresql://…, redis://…, rediss://… or redis+cluster://…"),
        "sqlite:///relevo.db",
        "where jobs live",
        masked,
    ),
    Variable(
        "RELEVO_DATABASE_URL",
        _url(_DATABASES, "sqlite:///path or postgresql://…"),
        "",
        "where the apps' tables and the outbox live; the store itself if that is a SQL database",
        masked,
    ),
    Variable(
        "RELEVO_APPS",
        _apps,
        "",
        "the apps to load, with commas between: module:attribute, or the name of one of ours",
        absent=(),
    ),
    Variable("RELEVO_HOST", _host, "127.0.0.1", "the address to listen on"),
    Variable(
        "RELEVO_PUBLIC_URL",
        _public_url,
        "",
        "the address that providers call; Twilio, Square and HubSpot sign it",
    ),
    Variable("RELEVO_PORT", _whole(0, 65_535), "8700", "the port to listen on; 0 takes a free one"),
    Variable(
        "RELEVO_ADMIN_PASSWORD",
        _password,
        "",
        "what the dashboard asks for; 12 characters or more",
        _hidden,
    ),
    Variable(
        "RELEVO_ALLOWED_HOSTS",
        _hosts,
        "",
        "the names that browsers ask relevo by, with commas between; loopback names always work",
        absent=(),
    ),
    Variable(
        "RELEVO_TRUSTED_PROXIES",
        _networks,
        THIS_MACHINE,
        "the addresses or networks of proxies whose X-Forwarded-For is believed",
        _networks_shown,
    ),
    Variable("RELEVO_CONCURRENCY", _whole(1, 10_000), "100", "jobs a worker runs at once"),
    Variable(
        "RELEVO_SLOTS",
        _slots,
        "",
        "how many of these one queue may take: shop:mail:send=20; else all, or 4/5 beside others",
        _slots_shown,
        absent=(),
    ),
    Variable(
        "RELEVO_CONNECTIONS",
        _whole(6, 1_000),
        "10",
        "the most connections to PostgreSQL of a process, for store and database together",
    ),
    Variable(
        "RELEVO_LEASE",
        _length("100ms", "1h"),
        "15s",
        "how long after its worker fell silent a job is given to another",
    ),
    Variable(
        "RELEVO_GRACE",
        _length("0s", "1d"),
        "10s",
        "how long running jobs may take to end when a worker is told to stop",
    ),
    Variable("RELEVO_KEEP_DEAD", _length("1h", "3650d"), "90d", "how long dead letters are kept"),
    Variable(
        "RELEVO_LOG_LEVEL",
        _one_of("debug", "info", "warning", "error"),
        "info",
        "the least that is logged: debug, info, warning or error",
    ),
    Variable(
        "RELEVO_LOG_FORMAT",
        _one_of("auto", "json", "text"),
        "auto",
        "json for machines, text for people; auto looks whether a person is there",
    ),
    Variable(
        "RELEVO_TRACING",
        _one_of("off", "on"),
        "off",
        "on: a span for each run, by OpenTelemetry, where its SDK sends them",
    ),
    Variable(
        "RELEVO_BUDGET",
        budget_of,
        "",
        "store commands to stay under, where they are paid for one by one: 10k/day",
    ),
    Variable(
        "RELEVO_SPOOL",
        _path,
        "",
        "the file where deliveries wait while the store is away, or off; usually beside the store",
    ),
    Variable(
        "RELEVO_SEAL_KEYS",
        _seal_keys,
        "",
        "keys to seal jobs and deliveries with, with commas between: the first seals, all open",
        _hidden,
    ),
)
_KNOWN = [variable.name for variable in VARIABLES]


class Described(NamedTuple):
    """A line of the table, for people."""

    variable: str
    default: str
    meaning: str


def describe() -> list[Described]:
    """Every variable: its name, its default as it would be written, and what it is for."""
    return [Described(each.name, each.default, each.meaning) for each in VARIABLES]


def _is_unknown(name: str) -> bool:
    return name.startswith(PREFIX) and name not in _KNOWN and not name.startswith(TEST_PREFIX)


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, _KNOWN, 1, 0.0)
    return f"{name!a:.60} is not a setting: did you mean {near[0]}?"
