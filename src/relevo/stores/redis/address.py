"""Address, what a store's URL says: where the servers are, who we are, and what we insist on."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Literal, TypeAlias
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from msgspec import Struct

from relevo.errors import SettingsError

Kind: TypeAlias = Literal["alone", "sentinel", "cluster"]

SCHEMES: dict[str, tuple[Kind, bool]] = {
    "redis": ("alone", False),
    "rediss": ("alone", True),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
OPTIONS = (
    "prefix",
    "allow_volatile",
    "allow_open",
    "wait",
    "ca",
    "sentinel_username",
    "sentinel_password",
)
SECRETS = frozenset({"sentinel_password"})
_PREFIX = re.compile(r"[A-Za-z0-9_.-]{1,32}", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)

Host: TypeAlias = tuple[str, int]


class Address(Struct, frozen=True, kw_only=True):
    """A store's URL, read once and checked."""

    url: str  # in full
    shown: str  # without its passwords
    kind: Kind
    hosts: tuple[Host, ...]
    tls: bool = False
    ca: str | None = None  # a file of authorities to trust instead of the system's
    username: str | None = None
    password: str | None = None
    database: int = 0
    service: str = ""  # what the sentinels call the master
    sentinel_username: str | None = None
    sentinel_password: str | None = None
    prefix: str = "relevo"
    allow_volatile: bool = False
    wait: int = 0  # replicas that must have an insert before it is answered


def read_address(url: str) -> Address:
    """What `url` says; SettingsError naming what is wrong with it, never its password."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise SettingsError(f"the store's address cannot be read: {error}") from None
    if parts.scheme not in SCHEMES:
        raise SettingsError(f"'{parts.scheme}' is no Redis scheme: use {', '.join(SCHEMES)}")
    kind, tls = SCHEMES[parts.scheme]
    login, _, servers = parts.netloc.rpartition("@")
    username, _, password = login.partition(":")
    options = _read_options(parts.query)
    database, service = _read_path(kind, parts.path)
    hosts = tuple(_read_host(host, kind) for host in servers.split(","))
    if kind == "alone" and len(hosts) > 1:
        raise SettingsError("one address of several servers: use redis+cluster or redis+sentinel")
    if not password and options.get("allow_open") != "1":
        _refuse_open(hosts)
    return Address(
        url=url,
        shown=_without_secrets(url, servers),
        kind=kind,
        hosts=hosts,
        tls=tls,
        ca=options.get("ca"),
        username=unquote(username) or None,
        password=unquote(password) or None,
        database=database,
        service=service,
        sentinel_username=options.get("sentinel_username"),
        sentinel_password=options.get("sentinel_password"),
        prefix=_read_prefix(options.get("prefix", "relevo")),
        allow_volatile=_read_flag(options, "allow_volatile"),
        wait=_read_count(options.get("wait", "0"), "wait", most=100),
    )


def _read_options(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise SettingsError("the options after '?' must read name=value&name=value") from None
    options = dict(pairs)
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise SettingsError(
            f"unknown option of a Redis address: {', '.join(unknown)}; "
            f"there are {', '.join(OPTIONS)}"
        )
    _read_flag(options, "allow_open")
    return options


def _read_flag(options: dict[str, str], name: str) -> bool:
    if (value := options.get(name, "0")) not in {"0", "1"}:
        raise SettingsError(f"{name} is 0 or 1")
    return value == "1"


def _read_count(text: str, name: str, *, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6 and int(text) <= most):
        raise SettingsError(f"{name} is a number from 0 to {most}")
    return int(text)


def _read_prefix(prefix: str) -> str:
    if not _PREFIX.fullmatch(prefix):
        raise SettingsError("prefix is of letters, digits, '_', '.' and '-', 32 at most")
    return prefix


def _read_path(kind: Kind, path: str) -> tuple[int, str]:
    name = path.strip("/")
    match kind:
        case "alone":
            return _read_count(name or "0", "the database after '/'", most=65_535), ""
        case "sentinel":
            service, _, database = name.partition("/")
            if not _NAME.fullmatch(service):
                raise SettingsError(
                    "a sentinel address ends in the master's name: "
                    "redis+sentinel://host1:26379,host2:26379/mymaster"
                )
            return _read_count(database or "0", "the database", most=65_535), service
        case "cluster":
            if name not in {"", "0"}:
                raise SettingsError("a cluster has one database: end the address after the hosts")
            return 0, ""


def _read_host(text: str, kind: Kind) -> Host:
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?", text)
    if match is None:
        raise SettingsError("a Redis address names its servers as host:port, host:port")
    port = int(match[3] or (26_379 if kind == "sentinel" else 6_379))
    if not 0 < port < 65_536:
        raise SettingsError(f"{port} is no port")
    return match[1] or match[2], port


def _refuse_open(hosts: tuple[Host, ...]) -> None:
    # Anyone who reaches a Redis without a password owns what is in it.
    for host, _ in hosts:
        if not _is_loopback(host):
            raise SettingsError(
                f"the Redis at {host} would be used without a password: set one and write "
                "redis://user:password@host, or say allow_open=1"
            )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _without_secrets(url: str, servers: str) -> str:
    parts = urlsplit(url)
    login, found, _ = parts.netloc.rpartition("@")
    user = login.partition(":")[0]
    kept = f"{user}@" if found and user else ""
    options = "&".join(
        f"{name}={quote(value)}"
        for name, value in parse_qsl(parts.query, keep_blank_values=True)
        if name not in SECRETS
    )
    return f"{parts.scheme}://{kept}{servers}{parts.path}" + (f"?{options}" if options else "")
