"""Connections that notice within seconds that the other side has forgotten them."""

from __future__ import annotations

import socket
from typing import Any

_ASKED = (
    ("TCP_KEEPIDLE", 1),
    ("TCP_KEEPINTVL", 1),
    ("TCP_KEEPCNT", 9),
    ("TCP_USER_TIMEOUT", 10_000),
)
OPTIONS: dict[int, int] = {
    getattr(socket, name): value for name, value in _ASKED if hasattr(socket, name)
}
"""Options of a TCP socket: the system asks once a second whether its peer is there.

A peer that knows nothing of the connection answers with a reset, which a process that only waits
for an answer would not hear otherwise. A peer that has gone altogether is given 10 s.
"""


def keep_alive(transport: Any) -> None:
    """Have the system ask once a second whether the other side still knows the connection."""
    descriptor = transport.get_extra_info("socket")
    if descriptor is None or descriptor.family == getattr(socket, "AF_UNIX", None):
        return
    # A duplicate, because the loop's own object does not let options be set everywhere.
    with socket.fromfd(descriptor.fileno(), descriptor.family, socket.SOCK_STREAM) as duplicate:
        duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in OPTIONS.items():
            duplicate.setsockopt(socket.IPPROTO_TCP, option, value)
