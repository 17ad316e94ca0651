"""Supervisor: what systemd, or another parent that speaks its protocol, gives us and is told.

Sockets come as descriptors from 3 on (LISTEN_FDS, LISTEN_PID); states go to NOTIFY_SOCKET.
"""

from __future__ import annotations

import os
import socket
import time

FIRST_DESCRIPTOR = 3


def descriptors() -> list[int]:
    """The sockets that the supervisor passed to this very process."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return []  # they were for our parent
    count = os.environ.get("LISTEN_FDS", "")
    return list(range(FIRST_DESCRIPTOR, FIRST_DESCRIPTOR + int(count))) if count.isdigit() else []


def notify(state: str) -> None:
    """Tell the supervisor, if there is one: READY=1, STOPPING=1, WATCHDOG=1, STATUS=…"""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # Linux's abstract namespace
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
            to.setblocking(False)
            to.sendto(state.encode(), address)
    except OSError:
        pass  # a supervisor that has gone cannot be told


def watchdog_seconds() -> float | None:
    """How often the supervisor is to hear of us; half of the time after which it kills us."""
    given, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID")
    if not given.isdigit() or pid not in (None, "", str(os.getpid())):
        return None
    return int(given) / 2_000_000


class Watchdog:
    """Tells the supervisor that we are alive, as often as it wants to hear it."""

    def __init__(self) -> None:
        self.every = watchdog_seconds()
        self._next = 0.0

    def beat(self) -> None:
        """Say so if it is time to."""
        if self.every is not None and (now := time.monotonic()) >= self._next:
            self._next = now + self.every
            notify("WATCHDOG=1")
