"""Sockets to listen on: bound here, passed by a supervisor, or shared with the next process."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Sequence
from contextlib import ExitStack, suppress

from relevo.errors import SettingsError

SO_ATTACH_REUSEPORT_CBPF = 51
_RETURN = 0x06  # BPF_RET | BPF_K
_SECOND = 1


def listen(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    """A bound socket; SettingsError when the address cannot be had.

    Shared, another process of this user may bind the same address (SO_REUSEPORT).
    """
    with ExitStack() as stack:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            made = stack.enter_context(socket.socket(family, kind, protocol))
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if is_shared:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            made.bind(address)
        except OSError as trouble:
            raise SettingsError(f"cannot listen on {host}:{port}: {trouble.strerror}") from trouble
        stack.pop_all()
    return made


def inherited(descriptors: Sequence[int]) -> list[socket.socket]:
    """The listening TCP sockets that a parent passed; SettingsError for anything else.

    Calls wait in them while one process ends and the next begins: the parent keeps them open.
    """
    with ExitStack() as stack:
        found: list[socket.socket] = []
        for number in descriptors:
            try:
                given = stack.enter_context(socket.socket(fileno=number))
                is_bound = given.family in (socket.AF_INET, socket.AF_INET6)
                is_bound = is_bound and given.type == socket.SOCK_STREAM and given.getsockname()[1]
            except OSError as trouble:
                raise SettingsError(
                    f"descriptor {number} is no socket ({trouble.strerror}): the parent passes a "
                    "bound TCP socket with this number, such as systemd's ListenStream="
                ) from trouble
            if not is_bound:
                raise SettingsError(
                    f"descriptor {number} is no bound TCP socket: name a host and port in "
                    "ListenStream=, such as 127.0.0.1:8700"
                )
            # Where a worker begins anew by exec, the process and its sockets stay.
            os.set_inheritable(number, True)
            found.append(given)
        stack.pop_all()
    return found


def leave_to_newest(listener: socket.socket) -> None:
    """Have the kernel give new calls at a shared address to the process that came last.

    Of two sockets the older is the first; where there is only one, the kernel gives it everything.
    What waits in our own queue is ours to answer.
    """
    step = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN, 0, 0, _SECOND))
    program = struct.pack("HL", 1, ctypes.addressof(step))
    with suppress(OSError):  # not on this system: new calls come here until the socket is closed
        listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, program)
