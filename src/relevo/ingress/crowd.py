"""Crowd: how many connections there may be, so that none of them takes the last descriptor."""

from __future__ import annotations

import asyncio
import fcntl
import resource
import socket
import struct
import termios
from collections import Counter

from relevo.addresses import caller
from relevo.telemetry import Throttle, log

MOST = 57_344
LEAST_LEFT = 64  # descriptors for the store, files and calls outside


def room(descriptors: int) -> int:
    """How many connections a limit of descriptors leaves room for."""
    if descriptors < 0:  # there is no limit
        return MOST
    return min(max(descriptors - max(descriptors // 8, LEAST_LEFT), descriptors // 4, 1), MOST)


class Crowd:
    """The connections of a server, in total and of each address; a quarter of them for one."""

    def __init__(self, most: int | None = None) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.most = room(soft) if most is None else most
        self.most_of_one = max(self.most // 4, 1)
        self.count = 0
        self.is_leaving = False  # the server ends
        self._of: Counter[str] = Counter()
        self._throttle = Throttle(every=60.0)

    def enter(self, host: str, *, is_proxy: bool) -> bool:
        """Count a connection; False when there are too many. A proxy brings those of many."""
        name = caller(host)
        is_one_too_many = not is_proxy and self._of[name] >= self.most_of_one
        if is_one_too_many or self.count >= self.most:
            self._tell(host, is_one_too_many=is_one_too_many)
            if not self._of[name]:
                del self._of[name]
            return False
        self.count += 1
        self._of[name] += 1
        return True

    def leave(self, host: str) -> None:
        """One that was counted has ended."""
        name = caller(host)
        self.count -= 1
        self._of[name] -= 1
        if not self._of[name]:
            del self._of[name]

    def _tell(self, host: str, *, is_one_too_many: bool) -> None:
        what = "too many connections of one address" if is_one_too_many else "too many connections"
        unsaid = self._throttle.admit(what)
        if unsaid is not None:
            facts = {"address": host, "open": self.count, "most": self.most, "unsaid": unsaid}
            log.warning("%s", what, extra=facts)


def hang_up(transport: asyncio.Transport) -> None:
    """End a connection at once; to close it would wait until all that we wrote is taken."""
    link = transport.get_extra_info("socket")
    if link is not None:
        # The system too would keep what it has not sent.
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def unacknowledged(link: socket.socket) -> int:
    """Bytes that the system has not sent, or of which the other side has not said it has them."""
    try:
        return struct.unpack("i", fcntl.ioctl(link.fileno(), termios.TIOCOUTQ, b"\0\0\0\0"))[0]
    except OSError:  # closed, or a system that does not tell: what waits in our process counts
        return 0
