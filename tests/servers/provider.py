"""A provider on the loopback: it answers as it is told, and counts what it was asked."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Says:
    """One answer; without a status the connection is reset once the request has been read."""

    status: int | None = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict[str, str])


@dataclass
class Provider:
    """Gives the answers in order, the last one again and again; `asked` are all requests."""

    url: str
    answers: list[Says]
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list[Any])

    @property
    def keys(self) -> list[str]:
        """The idempotency keys it was sent, in order."""
        return [headers.get("idempotency-key", "") for _, _, headers in self.asked]


@contextlib.contextmanager
def provider(*answers: Says, port: int = 0) -> Iterator[Provider]:
    """Serve these answers at a free port, or at this one."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            if "chunked" in self.headers.get("Transfer-Encoding", ""):
                while (size := int(self.rfile.readline(), 16)) + 1:
                    self.rfile.read(size + 2)
                    if not size:
                        break
            self.rfile.read(length)
            with lock:
                headers = {name.lower(): value for name, value in self.headers.items()}
                told.asked.append((self.command, self.path, headers))
                says = told.answers.pop(0) if len(told.answers) > 1 else told.answers[0]
            if says.status is None:
                self.connection.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
                self.close_connection = True
                self.connection.close()
                return
            body = says.body if isinstance(says.body, bytes) else json.dumps(says.body).encode()
            self.send_response(says.status)
            for name, value in {"Content-Type": "application/json", **says.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815 - as http.server calls them

        def handle(self) -> None:
            with contextlib.suppress(OSError, ValueError):
                super().handle()

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    told = Provider(f"http://127.0.0.1:{server.server_port}", list(answers))
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    serving.start()
    try:
        yield told
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
