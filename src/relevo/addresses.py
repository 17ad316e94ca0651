"""Addresses: which are this machine, and which count as one caller."""

from __future__ import annotations

import ipaddress
from functools import lru_cache


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
