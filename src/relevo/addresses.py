"""Addresses: which are this machine, and which count as one caller."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TypeAlias

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

THIS_MACHINE = "127.0.0.1,::1"


def networks(text: str) -> tuple[Network, ...]:
    """The networks of a text with commas between them; ValueError if one of them is none."""
    return tuple(ipaddress.ip_network(each.strip()) for each in text.split(","))


def read(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a text is; None if it is none."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Whether an address or name is this machine."""
    if host == "localhost":
        return True
    address = read(host)
    return address is not None and address.is_loopback


@lru_cache(4_096)
def caller(address: str) -> str:
    """What an address is counted as: an IPv6 one as its /64, of which one subscriber has all."""
    found = read(address.partition("%")[0])
    if not isinstance(found, ipaddress.IPv6Address):
        return address[:64]
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found) >> 64 << 64, 64)))


class Proxies:
    """The proxies whose X-Forwarded-For is believed."""

    def __init__(self, networks: Iterable[Network]) -> None:
        self._networks = tuple(networks)
        self._found: dict[str, bool] = {}

    def __contains__(self, host: str) -> bool:
        found = self._found.get(host)
        if found is None:
            address = _plain(host)
            found = address is not None and any(address in each for each in self._networks)
            if len(self._found) >= 4_096:
                self._found.clear()
            self._found[host] = found
        return found

    def client(self, peer: str, named: Sequence[str]) -> str:
        """The address that a request comes from: the last one that no trusted proxy has.

        `named` are the values of X-Forwarded-For. Each proxy appends the address that it sees, so
        what stands left of the first address that is not a trusted proxy's was written by that
        client, and counts for nothing. So does what is no address, and all that is left of it.
        """
        seen = peer
        hops = ",".join(named).split(",") if named else []
        while hops and seen in self:
            address = _plain(_without_port(hops.pop().strip()))
            if address is None:
                break
            seen = str(address)
        return seen


def _plain(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address; an IPv4 one where it is written as IPv6."""
    found = read(text.partition("%")[0]) if len(text) <= 64 else None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return found if mapped is None else mapped


def _without_port(text: str) -> str:
    """The address of `[address]:port` or `address:port`, as some proxies write it."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    host, colon, port = text.partition(":")
    return host if colon and port.isdecimal() else text
