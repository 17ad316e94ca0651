"""Front: the ASGI application of an engine. Webhooks first, then the apps' sites, then the rest."""

from __future__ import annotations

import asyncio
import importlib
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from relevo.errors import RelevoError, StoreError
from relevo.ingress.gate import Gate
from relevo.ingress.reply import Receive, Reply, Scope, Send, error, send_reply
from relevo.ingress.spool import Spool, spool_path
from relevo.route import Site
from relevo.telemetry import log

if TYPE_CHECKING:
    from relevo.engine import Relevo

HEALTH_SECONDS = 1.0
HEALTH_PATIENCE = 2.0

NOT_FOUND = error(404, "not_found")
NOT_READY = error(503, "not_ready", retry_after="1")


def _small(status: int, body: bytes) -> Reply:
    length = b"%d" % len(body)
    headers = [(b"content-type", b"application/json"), (b"content-length", length)]
    return Reply(status, [*headers, (b"cache-control", b"no-store")], body)


class Front:
    """What `Relevo.asgi()` gives. It may be mounted under a prefix of another application."""

    def __init__(self, engine: Relevo) -> None:
        self._engine = engine
        path = spool_path(engine, engine.spool)
        self.gate = Gate(engine, None if path is None else Spool(engine, path))
        self._is_started = False
        self._starting = asyncio.Lock()
        sites = [site for app in engine.apps for site in app.sites]
        self._sites = sorted(sites, key=lambda site: len(site.prefix), reverse=True)
        self._built: dict[Site, Any] = {}
        self._rest: Any = None
        self._health: tuple[float, Reply] = (0.0, NOT_READY)

    # life

    async def start(self) -> None:
        """Read the secrets and build the sites; the engine does it when it opens."""
        async with self._starting:
            if self._is_started:
                return
            await self.gate.start()
            for site in self._sites:
                self._built[site] = site.build(self._engine)
            self._rest = _rest(self._engine)
            self._is_started = True

    async def stop(self) -> None:
        if self._is_started:
            self._is_started = False
            await self.gate.stop()

    # ASGI

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        path: str = scope["path"]
        root: str = scope.get("root_path", "")
        if root and path.startswith(root):
            path = path[len(root) :] or "/"
        if not self._is_started and not await self._is_ready(scope, send):
            return
        if scope["type"] == "http":
            door = self.gate.find(path)
            if door is not None:
                await self.gate.answer(door, path, scope, receive, send)
                return
            if path in ("/health", "/ready"):
                await send_reply(send, await self._state(path))
                return
        await self._elsewhere(path)(scope, receive, send)

    async def _is_ready(self, scope: Scope, send: Send) -> bool:
        """Mounted without a lifespan of our own, the first call finds us not yet started."""
        if self._engine.is_open:
            try:
                await self.start()
                return True
            except RelevoError as trouble:
                log.error("the doors stay closed: %s", trouble)
        if scope["type"] == "http":
            await send_reply(send, NOT_READY)
        else:
            await send({"type": "websocket.close", "code": 1013})
        return False

    def _elsewhere(self, path: str) -> Any:
        for site in self._sites:
            if path == site.prefix or path.startswith(f"{site.prefix}/"):
                return self._built[site]
        return self._rest

    async def _state(self, path: str) -> Reply:
        if path == "/ready":
            return _small(200, b'{"ok":true}')
        asked_at, reply = self._health
        if time.monotonic() - asked_at > HEALTH_SECONDS:
            reply = await self._ask()
            self._health = (time.monotonic(), reply)
        return reply

    async def _ask(self) -> Reply:
        try:
            async with asyncio.timeout(HEALTH_PATIENCE):
                await self._engine.store.now()
        except (StoreError, TimeoutError):
            return _small(503, b'{"ok":false,"store":"away"}')
        waiting = 0
        if self.gate.spool is not None:
            try:
                waiting = await self.gate.spool.waiting()
            except StoreError:
                return _small(503, b'{"ok":false,"spool":"unreadable"}')
        return _small(200, b'{"ok":true,"spool":%d}' % waiting if waiting else b'{"ok":true}')

    async def _live(self, receive: Receive, send: Send) -> None:
        is_ours = False
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    if not self._engine.is_open:
                        await self._engine.open()
                        is_ours = True
                    await self.start()
                except Exception as trouble:  # noqa: BLE001 - the server says it and ends
                    await send({"type": "lifespan.startup.failed", "message": str(trouble)})
                    return
                await send({"type": "lifespan.startup.complete"})
            else:
                if is_ours:
                    await self._engine.close()
                await send({"type": "lifespan.shutdown.complete"})
                return


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await send_reply(send, NOT_FOUND)
    else:
        await send({"type": "websocket.close", "code": 1008})


def _rest(engine: Relevo) -> Any:
    """The API and the dashboard, where what they need is installed."""
    parts = [
        (prefix, importlib.import_module(name).build(engine))
        for prefix, name in (("/api", "relevo.api"), ("", "relevo.dashboard"))
        if find_spec(name) is not None and hasattr(importlib.import_module(name), "build")
    ]

    async def rest(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        for prefix, part in parts:
            if not prefix or path == prefix or path.startswith(f"{prefix}/"):
                await part(scope, receive, send)
                return
        await _nothing(scope, receive, send)

    return rest
