"""Front: the ASGI application of an engine. Webhooks first, then the apps' sites, then the rest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import msgspec

from relevo.addresses import Proxies
from relevo.errors import RelevoError, SettingsError, StoreError
from relevo.ingress.gate import Gate
from relevo.ingress.reply import FORWARDED, Receive, Reply, Scope, Send, error, reply, send_reply
from relevo.ingress.spool import Spool, spool_path
from relevo.settings import Settings
from relevo.telemetry import log

if TYPE_CHECKING:
    from relevo.engine import Relevo
    from relevo.intake import Door
    from relevo.web import Web

HEALTH_SECONDS = 1.0
HEALTH_PATIENCE = 2.0

NOT_FOUND = error(404, "not_found")
ONLY_GET = error(405, "method_not_allowed", allow="GET, HEAD")
NOT_READY = error(503, "not_ready", retry_after="1")


def _forward(scope: Scope, proxies: Proxies) -> None:
    """Name the client and the scheme that a trusted proxy tells of, instead of its own."""
    peer: str = (scope.get("client") or ("",))[0]
    if peer not in proxies:
        return
    named = [value.decode("latin-1") for name, value in scope["headers"] if name == FORWARDED]
    if (client := proxies.client(peer, named)) != peer:
        scope["client"] = (client, 0)
    schemes = [value for name, value in scope["headers"] if name == b"x-forwarded-proto"]
    if schemes and schemes[-1] in (b"http", b"https"):
        scope["scheme"] = schemes[-1].decode()


def _small(status: int, body: bytes) -> Reply:
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    return reply(status, headers, body)


class Front:
    """What `Relevo.asgi()` gives. It may be mounted under a prefix of another application."""

    def __init__(self, engine: Relevo) -> None:
        self._engine = engine
        path = spool_path(engine, engine.spool)
        self.proxies = Proxies(Settings.read().trusted_proxies)
        self.gate = Gate(engine, None if path is None else Spool(engine, path), self.proxies)
        self._is_started = False
        self._starting = asyncio.Lock()
        self._parts: list[tuple[str, Any]] | None = None  # by prefix, longest first
        self._closing: list[Callable[[], Awaitable[None]]] = []
        self._health: tuple[float, Reply] = (0.0, NOT_READY)

    # life

    async def start(self) -> None:
        """Read the secrets and build the sites, so that mistakes show before the first call.

        The engine does it when it opens, if it was asked for its application before.
        """
        await self._open_gate()
        self._elsewhere("")

    async def _open_gate(self) -> None:
        async with self._starting:
            if not self._is_started:
                await self.gate.start()
                self._is_started = True

    def leave(self) -> None:
        """The server ends: whoever streams to someone should come to an end."""
        self._engine.leaving.set()

    async def stop(self) -> None:
        while self._closing:
            await self._closing.pop()()
        if self._is_started:
            self._is_started = False
            self._parts = None
            await self.gate.stop()

    # ASGI

    def door(self, path: str) -> Door | None:
        """The door of a provider's call, which needs nothing around it."""
        return self.gate.find(path) if self._is_started else None

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
                is_asked = scope["method"] in ("GET", "HEAD")
                await send_reply(send, await self._state(path) if is_asked else ONLY_GET)
                return
            _forward(scope, self.proxies)
            send = self.gate.strays.watched(path, scope, send)
        await self._elsewhere(path)(scope, receive, send)

    async def _is_ready(self, scope: Scope, send: Send) -> bool:
        """Mounted without a lifespan of our own, the first call finds us not yet started."""
        if self._engine.is_open:
            try:
                await self._open_gate()
                return True
            except RelevoError as trouble:
                log.error("the doors stay closed: %s", trouble)
        if scope["type"] == "http":
            await send_reply(send, NOT_READY)
        else:
            await send({"type": "websocket.close", "code": 1013})
        return False

    def _elsewhere(self, path: str) -> Any:
        if self._parts is None:
            self._parts = sorted(
                _parts(self._engine, self._closing), key=lambda part: -len(part[0])
            )
        for prefix, part in self._parts:
            if path == prefix or path.startswith(f"{prefix}/"):
                return part
        return _nothing

    async def _state(self, path: str) -> Reply:
        if path == "/ready":
            # Deliveries are taken even while the store is away; whoever works must be working.
            is_ready = all(worker.is_consuming for worker in self._engine.workers)
            return _small(200, b'{"ok":true}') if is_ready else NOT_READY
        asked_at, told = self._health
        if time.monotonic() - asked_at > HEALTH_SECONDS:
            told = await self._ask()
            self._health = (time.monotonic(), told)
        return told

    async def _ask(self) -> Reply:
        """Whether the store answers and nothing waits for it."""
        told: dict[str, Any] = {"ok": True}
        try:
            async with asyncio.timeout(HEALTH_PATIENCE):
                await self._engine.store.now()
        except (StoreError, TimeoutError):
            told |= {"ok": False, "store": "away"}
        try:
            waiting = 0 if self.gate.spool is None else await self.gate.spool.waiting()
            told |= {"spool": waiting} if waiting else {}
        except StoreError:
            told |= {"ok": False, "spool": "unreadable"}
        return _small(200 if told["ok"] else 503, msgspec.json.encode(told))

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


def _parts(engine: Relevo, closing: list[Callable[[], Awaitable[None]]]) -> list[tuple[str, Any]]:
    """Every prefix and the ASGI application behind it; `closing` gets what they have to end."""
    parts = [
        (site.prefix, site.build(engine), app.name if site.title else None)
        for app in engine.apps
        for site in app.sites
    ]
    if find_spec("starlette") is None:
        if any(app for _, _, app in parts):
            raise SettingsError("pages for people need the web: pip install 'relevo[web]'")
        return [(prefix, built) for prefix, built, _ in parts]
    from relevo.web import Web

    web = Web(engine, Settings.read(), closing)
    doors = web.doors()
    return [
        *((prefix, web.guard(built, of=app) if app else built) for prefix, built, app in parts),
        *((prefix, doors) for prefix in ("/login", "/logout", "/static")),
        *_rooms(engine, web),
    ]


def _rooms(engine: Relevo, web: Web) -> list[tuple[str, Any]]:
    """The API, what Prometheus asks for, and the dashboard, which has all other paths."""
    from relevo import api, dashboard
    from relevo.web import metrics

    return [
        ("/api", api.build(engine, web)),
        ("/metrics", metrics.build(engine, web)),
        ("", dashboard.build(engine, web)),
    ]
