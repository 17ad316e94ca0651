"""Examples as their reader runs them: in processes of their own, against providers that fail."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from relevo import Relevo

EXAMPLES = Path(__file__).parents[2] / "examples"

Answer = tuple[int, Any]


class Asked:
    """One call, read whole."""

    def __init__(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        self.method = method
        self.path = urlsplit(path).path
        self.query = dict(parse_qsl(urlsplit(path).query))
        self.headers = headers
        self.body = body

    @property
    def form(self) -> dict[str, str]:
        return dict(parse_qsl(self.body.decode()))

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Provider:
    """A provider on the loopback. `effects` is what it did, in order; answers get lost.

    Once an effect is made, `faults` says what becomes of its answer: "kill" ends the process that
    asked with SIGKILL, "lose" resets the connection, "" lets it go. What comes after the last one
    is answered.
    """

    def __init__(self, answer: Callable[[Provider, Asked], Answer]) -> None:
        self.answer = answer
        self.effects: list[str] = []
        self.asked: list[Asked] = []
        self.faults: list[str] = []
        self.worker: subprocess.Popen[bytes] | None = None
        self.url = ""
        self.killed = threading.Event()

    def did(self, effect: str) -> None:
        self.effects.append(effect)

    def fault(self) -> str:
        return self.faults.pop(0) if self.faults else ""


@contextlib.contextmanager
def serving(provider: Provider) -> Iterator[Provider]:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def take(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(length)
            if len(body) < length:  # it died while it asked: nothing was asked
                self.close_connection = True
                return
            asked = Asked(self.command, self.path, headers, body)
            with lock:
                before = len(provider.effects)
                provider.asked.append(asked)
                status, told = provider.answer(provider, asked)
                fault = provider.fault() if len(provider.effects) > before else ""
                if fault == "kill" and provider.worker is not None:
                    provider.worker.send_signal(signal.SIGKILL)
                    provider.killed.set()
            if fault:
                linger = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.close_connection = True
                self.connection.close()
                return
            body = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = take  # noqa: N815 - as http.server calls them

        def handle(self) -> None:
            with contextlib.suppress(OSError, ValueError):
                super().handle()

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    provider.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Example:
    """One folder of examples, with a store of its own."""

    def __init__(self, name: str, path: Path) -> None:
        self.folder = EXAMPLES / name
        self.url = f"sqlite:///{path / 'relevo.db'}"
        self.log = path / "worker.log"

    def module(self, name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(
            f"examples_{self.folder.name}_{name}", self.folder / f"{name}.py"
        )
        assert spec is not None
        assert spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        # The types of its messages are looked up there.
        sys.modules[spec.name] = made
        spec.loader.exec_module(made)
        return made

    def engine(self, module: ModuleType) -> Relevo:
        return Relevo(self.url, apps=[module.app])

    @contextlib.contextmanager
    def worker(
        self, app: str, provider: Provider | None = None
    ) -> Iterator[subprocess.Popen[bytes]]:
        """`relevo work` in a process of its own, until the block ends."""
        command = [sys.executable, "-m", "relevo.cli", "work", "--app", app]
        env = {**os.environ, "RELEVO_STORE_URL": self.url, "RELEVO_LEASE": "1s"}
        with (
            self.log.open("ab") as log,
            subprocess.Popen(command, cwd=self.folder, env=env, stdout=log, stderr=log) as process,
        ):
            if provider is not None:
                provider.worker = process
            try:
                yield process
            finally:
                process.kill()

    def until(self, truth: Callable[[], bool], seconds: float = 60) -> None:
        """Wait for it; what the workers said if it does not come."""
        end = time.monotonic() + seconds
        while not truth():
            if time.monotonic() > end:
                raise AssertionError(self.log.read_text()[-6_000:])
            time.sleep(0.05)

    def survive(self, app: str, provider: Provider, is_done: Callable[[], bool]) -> None:
        """Work until all is done, over the death of the first worker."""
        with self.worker(app, provider) as first:
            self.until(provider.killed.is_set)
            first.wait()
        with self.worker(app, provider):
            self.until(is_done)


@pytest.fixture
def make(tmp_path: Path) -> Callable[[str], Example]:
    return lambda name: Example(name, tmp_path)
