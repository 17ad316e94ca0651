"""Server: uvicorn on httptools, with the limits that neither has of itself.

Whoever sends a head too long, too slow or not HTTP at all is told so once and hung up on, before
any application sees a byte of it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, ClassVar, Protocol, Self, cast
from urllib.parse import unquote

import uvicorn
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from relevo.addresses import THIS_MACHINE, Proxies, networks
from relevo.ingress.body import is_welcome
from relevo.ingress.crowd import Crowd, hang_up, unacknowledged
from relevo.ingress.gate import Gate
from relevo.ingress.plain import read
from relevo.ingress.reply import DIRECT, Heard, Reply, error
from relevo.ingress.sockets import leave_to_newest
from relevo.intake import Door
from relevo.telemetry import log

HEAD_BYTES = 65_536
HEAD_LINES = 100
URL_BYTES = 8_192
HEAD_SECONDS = 10.0
BODY_SECONDS = 35.0  # a door gives up at 30; this is for everything else
WRITE_SECONDS = 30.0  # without a byte of what we wrote being taken
PIPELINED = 100  # requests that wait for the answer to one before them, on one connection
KEEP_ALIVE = 65  # longer than the usual proxy keeps an idle connection
FIRST_CALL = 2.0  # seconds that a connection without a call has to make one, once we are to end
NEXT_CALL = 0.5  # and one that has had its answer
HANDOVER = 0.3  # for what the kernel gave to our socket before it gave all to another process's

BAD = error(400, "bad_request", close=True)
LONG_URL = error(414, "url_too_long", close=True)
LONG_HEAD = error(431, "headers_too_large", close=True)
NO_METHOD = error(405, "method_not_allowed", close=True, allow="GET, POST")
SLOW = error(408, "too_slow", close=True)
BUSY = error(503, "busy", close=True, retry_after="1")

_UNKNOWN = re.compile(rb"([A-Z]{2,20}) (/[!-~]*) HTTP/1\.[01]\r\n")  # a method the parser knows not


class _Excess(Exception):
    """Stops the parser in the middle of a head."""


class Doors(Protocol):
    """An application with doors of webhooks."""

    @property
    def gate(self) -> Gate: ...

    @property
    def proxies(self) -> Proxies: ...

    def door(self, path: str) -> Door | None: ...


class Whole:
    """The calls of a connection that were read at once, one after the other.

    For each of them it stands where uvicorn has a cycle, which would be a task.
    """

    __slots__ = ("_connection", "disconnected", "keep_alive", "response_complete")

    more_body = False
    response_started = True

    def __init__(self, connection: Guarded) -> None:
        self._connection = connection
        self.disconnected = False
        self.keep_alive = True
        self.response_complete = True

    @property
    def message_event(self) -> Self:
        return self

    def set(self) -> None:
        """Nobody waits for more of it."""

    def hear(self, reply: Reply) -> None:
        self.response_complete = True
        if not self.disconnected:
            self._connection.tell(reply, is_last=not self.keep_alive)


class Guarded(HttpToolsProtocol):
    """One connection, within bounds."""

    _since = 0.0  # when it was last our turn to hear something
    _is_heading = False
    _unheard = 0  # bytes of which the parser has told us nothing yet, but for lines of a head
    _head = 0
    _data = b""
    _is_understood = False  # a method was, in what was read last
    _refusal = BAD
    _is_between = True  # the parser has no call in hand, and nothing against another one
    _usual: ClassVar[tuple[list[tuple[bytes, bytes]], bytes]] = ([], b"")  # headers, as spelt

    _is_counted = False
    _is_last = False  # the call in hand, or the next one, is the last: the server ends
    _untaken = 0  # bytes that we wrote and the other side has not taken, when we last looked
    _taken_at = 0.0  # when it last took some

    def __init__(self, front: Doors | None, proxies: Proxies, crowd: Crowd, **given: Any) -> None:
        super().__init__(**given)
        self._crowd = crowd
        self._front = front
        self._proxies = proxies
        self._whole = Whole(self)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._since = self.loop.time()
        host = self._host
        self._is_counted = self._crowd.enter(host, is_proxy=host in self._proxies)
        if not self._is_counted:
            self.refuse(BUSY)
        elif self._crowd.is_leaving:
            self.shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._is_counted:
            self._is_counted = False
            self._crowd.leave(self._host)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._taken_at = self.loop.time()

    def shutdown(self) -> None:
        """The server ends: a call under way, or about to be made, still has its answer."""
        cycle: Any = self.cycle  # None until the first request
        self._is_last = True
        self._whole.keep_alive = False
        if cycle is not None and not cycle.response_complete:
            cycle.keep_alive = False
            return
        self.loop.call_later(FIRST_CALL if cycle is None else NEXT_CALL, self._leave)

    def _leave(self) -> None:
        cycle: Any = self.cycle
        if not self._is_heading and (cycle is None or cycle.response_complete):
            self.transport.close()

    @property
    def _host(self) -> str:
        return self.client[0] if self.client else ""

    def data_received(self, data: bytes) -> None:
        if self._is_between and self._take(data):
            return
        self._unheard += len(data)
        self._data, self._is_understood = data, False
        super().data_received(data)
        # A header, a trailer or a chunk's extension may be endless; the parser keeps it to itself.
        if self._unheard > HEAD_BYTES and not self.transport.is_closing():
            is_url = self._is_heading and not self.headers and not self.url
            self._refusal = LONG_URL if is_url else LONG_HEAD
            self.send_400_response("")

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= PIPELINED:
            # One read holds thousands of small ones, and each costs a hundred times its bytes.
            self._refusal = BUSY
            raise _Excess
        super().on_message_begin()
        self._since = self.loop.time()
        self._is_heading, self._is_between = True, False
        self._unheard = self._head = 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._is_understood = True
        if len(self.url) > URL_BYTES:
            self._refusal = LONG_URL
            raise _Excess

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_heading:
            return  # a trailer, which nobody asked for and nobody checks
        self._head += len(name) + len(value) + 4
        if self._head > HEAD_BYTES or len(self.headers) >= HEAD_LINES:
            self._refusal = LONG_HEAD
            raise _Excess
        name = name.lower()
        if name == b"expect":
            self.expect_100_continue = value.lower() == b"100-continue"
        elif name == b"transfer-encoding" and value.lower() != b"chunked":
            raise _Excess  # whoever reads it differently sees another end of the body
        # The parser leaves what follows a value; by HTTP it is no part of it.
        self.headers.append((name, value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        parser: Any = self.parser
        version = parser.get_http_version()
        if version != "1.1" and (version != "1.0" or self._is_chunked()):
            raise _Excess
        if parser.should_upgrade() and self._has_body():
            raise _Excess  # the parser would take the body for whatever comes after the upgrade
        self._is_heading = False
        super().on_headers_complete()
        if parser.should_upgrade():
            # The parser drops what follows in the same read: a caller would wait for its answer.
            self.cycle.keep_alive = False
        if self._is_last:
            self.cycle.keep_alive = False
        cast("dict[str, Any]", self.scope)[DIRECT] = (self, self.cycle)

    def on_body(self, body: bytes) -> None:
        self._unheard = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        parser: Any = self.parser
        self._unheard = 0
        self._is_between = parser.should_keep_alive() and not parser.should_upgrade()
        super().on_message_complete()

    def _take(self, data: bytes) -> bool:
        """Whether it is one whole call at a door; that needs no task, no cycle and no messages."""
        cycle: Any = self.cycle
        is_next = cycle is None or (cycle.response_complete and not self.pipeline)
        if self._front is None or not is_next or self.flow.write_paused:
            return False
        call = read(data)
        door = None if call is None else self._front.door(call.path)
        if call is None or door is None or not is_welcome(door, call):
            return False
        self._unheard = 0
        self.cycle = whole = cast("Any", self._whole)
        whole.response_complete = False
        self._front.gate.take(door, call, self.client, whole.hear)
        return True

    def _is_chunked(self) -> bool:
        return any(name == b"transfer-encoding" for name, _ in self.headers)

    def _has_body(self) -> bool:
        lengths = [value for name, value in self.headers if name == b"content-length"]
        return self._is_chunked() or any(value.strip(b"0") for value in lengths)

    def send_400_response(self, msg: str) -> None:
        """Whatever the parser does not understand, or we will not hear to its end."""
        if self._is_heading and self.url:
            parser: Any = self.parser
            self._leave_trace(self._refusal, parser.get_method(), self.url)
            self.url = b""  # told once, however often this is asked for
        cycle: Any = self.cycle  # None until the first request
        if (
            cycle is not None
            and not (cycle.more_body or cycle.response_complete)
            and self._refusal is not BUSY
        ):
            # What came before is good, and its answer goes first; then we hang up.
            cycle.keep_alive = False
            self.transport.pause_reading()
            return
        is_unknown = self._refusal is BAD and not self._is_understood
        unknown = _UNKNOWN.match(self._data) if is_unknown else None
        if unknown is not None:
            self._refusal = NO_METHOD
            self._leave_trace(NO_METHOD, *unknown.groups())
        self.refuse(self._refusal)

    def _leave_trace(self, refusal: Reply, method: bytes, url: bytes) -> None:
        """Tell of a call at an endpoint that no application ever saw."""
        path = unquote(url.partition(b"?")[0].decode("latin-1"))
        door = None if self._front is None else self._front.door(path)
        if self._front is not None and door is not None:
            scope = {
                "method": method.decode("latin-1"),
                "headers": self.headers,
                "client": self.client,
            }
            self._front.gate.strays.refused(door, scope, refusal, Heard())

    def refuse(self, reply: Reply) -> None:
        self._write(reply)
        self.transport.close()

    def answer(self, cycle: RequestResponseCycle, reply: Reply) -> bool:
        """Send a whole reply at once; False if it must go the long way, message by message."""
        if cycle.disconnected or cycle.more_body or not cycle.keep_alive or self.flow.write_paused:
            return False
        cycle.response_started = cycle.response_complete = True
        self._write(reply)
        cycle.message_event.set()
        cycle.on_response()
        return True

    def tell(self, reply: Reply, *, is_last: bool) -> None:
        """A reply to the call that was read at once."""
        if self.transport.is_closing():
            return
        if is_last:
            self._write(reply, b"connection: close\r\n")
            self.transport.close()
        else:
            self._write(reply)
        self.on_response_complete()

    def _write(self, reply: Reply, more: bytes = b"") -> None:
        pairs = self.server_state.default_headers  # another list every second, for the date
        if pairs is not Guarded._usual[0]:
            Guarded._usual = (pairs, b"".join([b"%b: %b\r\n" % pair for pair in pairs]))
        self.transport.write(
            b"".join([STATUS_LINE[reply.status], Guarded._usual[1], more, reply.wire])
        )

    def on_response_complete(self) -> None:
        # As uvicorn does, but for its timer: how long we wait for the next call is seen by look().
        self.server_state.total_requests += 1
        self._since = self.loop.time()
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())

    def look(self, now: float) -> None:
        """Hang up on a caller that takes too long to say what it wants, or to hear our answer."""
        if self._is_deaf(now):
            hang_up(self.transport)
        if self.transport.is_closing():
            return
        cycle: Any = self.cycle  # None until the first request
        took = now - self._since
        if self._is_heading:
            if took > HEAD_SECONDS:
                self._refusal = SLOW
                self.send_400_response("")
        elif cycle is None or cycle.response_complete:
            if took > (HEAD_SECONDS if cycle is None else KEEP_ALIVE):
                self.transport.close()
        elif cycle.more_body and took > BODY_SECONDS:
            if cycle.response_started:
                self.transport.close()
            else:
                self.refuse(SLOW)

    def _is_deaf(self, now: float) -> bool:
        """Whether the other side has taken nothing of what waits for it, for too long."""
        link = self.transport.get_extra_info("socket")
        untaken = self.transport.get_write_buffer_size()
        untaken += 0 if link is None else unacknowledged(link)
        if not untaken or not self._untaken or untaken < self._untaken:
            self._taken_at = now
        self._untaken = untaken
        return now - self._taken_at > WRITE_SECONDS


class Server(uvicorn.Server):
    """uvicorn.Server without signal handlers, which the caller owns, and ending in its own way."""

    def __init__(self, config: uvicorn.Config, crowd: Crowd) -> None:
        super().__init__(config)
        self._crowd = crowd

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, Guarded):
                    connection.look(now)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        shared = [each for each in sockets or () if _is_shared(each)]
        for each in shared:
            leave_to_newest(each)
        if shared:
            await asyncio.sleep(HANDOVER)
        self._crowd.is_leaving = True
        await super().shutdown(sockets)


def _is_shared(listener: socket.socket) -> bool:
    return bool(listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT))


@asynccontextmanager
async def serving(
    app: Any, listener: socket.socket, *more: socket.socket, grace: float = 10.0
) -> AsyncGenerator[str]:
    """Serve an ASGI application while the block runs; gives the address of the first socket.

    The application's lifespan is the caller's affair. Calls under way may end within `grace`.
    """
    errors = logging.getLogger("uvicorn.error")
    errors.handlers[:], errors.propagate = log.handlers, not log.handlers
    errors.setLevel(logging.ERROR)  # a stranger's bad request is no warning to us
    front = cast("Doors", app) if hasattr(app, "gate") else None
    proxies = Proxies(networks(THIS_MACHINE)) if front is None else front.proxies
    crowd = Crowd()
    config = uvicorn.Config(
        app,
        interface="asgi3",
        proxy_headers=False,
        http=cast("Any", partial(Guarded, front, proxies, crowd)),
        loop="none",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=max(1, round(grace)),
    )
    server = Server(config, crowd)
    running = asyncio.create_task(server.serve([listener, *more]), name="relevo-server")
    try:
        while not server.started:
            if running.done():
                await running
            await asyncio.sleep(0.01)
        host, port = listener.getsockname()[:2]
        yield f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    finally:
        if (leave := getattr(app, "leave", None)) is not None:
            leave()
        server.should_exit = True
        await running
