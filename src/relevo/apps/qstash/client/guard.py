"""The guard of every address that comes from data: what may be called, and at which machine.

A name is resolved once, all of its addresses are checked, and the call goes to one that was
checked: whoever answers differently the next time gains nothing.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import TypeAlias
from urllib.parse import urlsplit

from relevo.errors import SettingsError

Address: TypeAlias = IPv4Address | IPv6Address
Resolve: TypeAlias = Callable[[str, int], Awaitable[list[str]]]

LONGEST = 8_192
PORTS = frozenset({80, 443, 8000, 8080, 8443, 3000})

_DENIED: tuple[IPv4Network | IPv6Network, ...] = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "168.63.129.16/32",  # a cloud's own wire server, on a public address
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "::/96",  # unspecified, loopback, and IPv4 in its oldest clothes
        "::ffff:0:0/96",
        "::ffff:0:0:0/96",
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "100::/64",
        "2001::/23",
        "2001:db8::/32",
        "2002::/16",
        "3fff::/20",
        "5f00::/16",
        "fc00::/7",
        "fe80::/10",
        "fec0::/10",
        "ff00::/8",
    )
)
_INWARD = ("localhost", "local", "internal", "intranet", "lan", "home.arpa", "onion", "invalid")
_BAD = re.compile(r"[\x00-\x20\x7f\\<>\"^`{|}]")
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)", re.ASCII)
_NUMERIC = re.compile(r"(?:0x[0-9a-f]*|\d+)", re.ASCII)


class Forbidden(Exception):
    """An address that is not called. The reason is for whoever gave the address."""


@dataclass(frozen=True, slots=True)
class Place:
    """A URL whose form is in order, and what it names."""

    url: str
    scheme: str
    host: str
    port: int
    path: str  # with the query
    address: Address | None  # where the host is one


class Guard:
    """Says where calls may go; `allow` names hosts, with or without port, and networks beside."""

    def __init__(
        self,
        *,
        allow: Iterable[str] = (),
        ports: Iterable[int] = PORTS,
        resolve: Resolve | None = None,
    ) -> None:
        self._hosts: set[str] = set()
        self._networks: list[IPv4Network | IPv6Network] = []
        for each in allow:
            text = each.strip().lower()
            if not text:
                continue
            try:
                self._networks.append(ip_network(text))
            except ValueError:
                if "/" in text:
                    raise SettingsError(f"{each!r:.60} is neither a host nor a network") from None
                self._hosts.add(text)
        self._ports = frozenset(ports)
        self._resolve = resolve or _resolve

    def look(self, url: str) -> Place:
        """The place that a URL names, judged without asking anybody; Forbidden if it is none."""
        if len(url) > LONGEST or _BAD.search(url) or not url.isascii():
            raise Forbidden("the URL is too long, or holds characters that no URL has")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise Forbidden("that is no URL") from None
        if parts.scheme not in ("http", "https"):
            raise Forbidden("only http and https are called")
        if "@" in parts.netloc:
            raise Forbidden("a URL with a user or a password in it is not called")
        if parts.fragment or "#" in url:
            raise Forbidden("a URL with a fragment is not called")
        if port is None:
            if parts.netloc.endswith(":"):
                raise Forbidden("the port is missing")
            port = 443 if parts.scheme == "https" else 80
        host = (parts.hostname or "").removesuffix(".")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        place = Place(url, parts.scheme, host, port, path, _literal(host))
        if not self._is_allowed(place):
            self._check(place)
        return place

    async def find(self, place: Place) -> Address:
        """The machine to call. Every address that a name has must be in order, not just one."""
        if place.address is not None:
            return place.address
        try:
            found = await self._resolve(place.host, place.port)
        except (OSError, UnicodeError) as error:
            raise OSError("the name is not known") from error
        addresses = [ip_address(text.partition("%")[0]) for text in found]
        if not addresses:
            raise OSError("the name has no address")
        if not self._is_allowed(place):
            for address in addresses:
                if self.is_denied(address):
                    raise Forbidden("the name leads to an address that is not public")
        return addresses[0]

    def is_denied(self, address: Address) -> bool:
        if any(address.version == net.version and address in net for net in self._networks):
            return False
        return any(address.version == net.version and address in net for net in _DENIED)

    def _is_allowed(self, place: Place) -> bool:
        if place.host in self._hosts or f"{place.host}:{place.port}" in self._hosts:
            return True
        address = place.address
        return address is not None and any(
            address.version == net.version and address in net for net in self._networks
        )

    def _check(self, place: Place) -> None:
        if place.port not in self._ports:
            raise Forbidden(f"port {place.port} is not called")
        if place.address is not None:
            if self.is_denied(place.address):
                raise Forbidden("the address is not public")
            return
        labels = place.host.split(".")
        if not all(_LABEL.fullmatch(label) for label in labels) or len(place.host) > 253:
            raise Forbidden("that is not a host")
        if _NUMERIC.fullmatch(labels[-1]):
            raise Forbidden("an address is written in four plain numbers")  # not 127.1, 0x7f000001
        if len(labels) < 2 or any(
            place.host == name or place.host.endswith(f".{name}") for name in _INWARD
        ):
            raise Forbidden("the name is not a public one")


def _literal(host: str) -> Address | None:
    try:
        return ip_address(host)  # strict: no octal, no short forms
    except ValueError:
        if not host or "%" in host or ":" in host:
            raise Forbidden("that is not a host") from None
        return None


async def _resolve(host: str, port: int) -> list[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(each[4][0]) for each in found]
