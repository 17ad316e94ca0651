"""Front: the ASGI application of an engine. Webhooks first, then the apps' sites, then the rest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from relevo.addresses import Proxies
from relevo.clock import moment
from relevo.errors import RelevoError, SettingsError, StoreError, StoreUnavailable
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

OPEN_PATIENCE = 1.0
"""Seconds for the store to open; then webhooks are served without it."""

OPEN_AGAIN = 0.5


def _small(status: int, body: bytes) -> Reply:
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    return reply(status, headers, body)


NOT_FOUND = error(404, "not_found")
ONLY_GET = error(405, "method_not_allowed", allow="GET, HEAD")
NOT_READY = error(503, "not_ready", retry_after="1")
READY = _small(200, b'{"ok":true}')


class Health(NamedTuple):
    """What a load balancer, a stranger and a person are told."""

    status: str  # ok, degraded, not ok
    takes: bool  # whether a delivery would be taken
    told: dict[str, Any]


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


class Front:
    """What `Relevo.asgi()` gives. It may be mounted under a prefix of another application."""

    def __init__(self, engine: Relevo) -> None:
        self._engine = engine
        path = spool_path(engine, engine.spool)
        self.proxies = Proxies(Settings.read().trusted_proxies)
        self.gate = Gate(engine, None if path is None else Spool(engine, path), self.proxies)
        self._is_started = False
        self._starting = asyncio.Lock()
        self._opening: asyncio.Task[None] | None = None
        self._parts: list[tuple[str, Any]] | None = None  # by prefix, longest first
        self._closing: list[Callable[[], Awaitable[None]]] = []
        self._looking = asyncio.Lock()
        self._looked_at = 0.0
        self._health: Health | None = None
        self._web: Web | None = None

    # life

    async def start(self) -> None:
        """Read the secrets and build the sites, so that mistakes show before the first call.

        The engine does it when it opens, if it was asked for its application before.
        """
        await self._open_gate()
        self._elsewhere("")

    async def open(self) -> asyncio.Task[None]:
        """Open the engine; returns when webhooks can be served: without the store, if it is away.

        The task ends when the engine is open, or cannot be opened.
        """
        self._opening = opening = asyncio.create_task(self._open(), name="relevo-open")
        await asyncio.wait({opening}, timeout=OPEN_PATIENCE)
        if not opening.done():
            await self._open_without(StoreUnavailable("the store has not been opened yet"))
        if self.gate.spool is None or opening.done():
            await opening
        return opening

    async def _open(self) -> None:
        while True:
            try:
                await self._engine.open()
            except StoreUnavailable as trouble:
                if self.gate.spool is None:
                    raise
                await self._open_without(trouble)
                await asyncio.sleep(OPEN_AGAIN)
            else:
                return

    async def _open_without(self, trouble: StoreUnavailable) -> None:
        """Have webhooks spooled until the store is open."""
        if self.gate.spool is not None and not self._engine.is_open:
            self._engine.watch.not_opened(trouble)
            await self._open_gate()

    async def close(self) -> None:
        """Close the engine, open or not."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait({self._opening})
        await self._engine.close()

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
                await send_reply(send, await self._state(path, scope) if is_asked else ONLY_GET)
                return
            _forward(scope, self.proxies)
        if not self._engine.is_open:
            await _not_ready(scope, send)
            return
        if scope["type"] == "http":
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
        await _not_ready(scope, send)
        return False

    def _elsewhere(self, path: str) -> Any:
        if self._parts is None:
            parts, self._web = _parts(self._engine, self._closing)
            self._parts = sorted(parts, key=lambda part: -len(part[0]))
        for prefix, part in self._parts:
            if path == prefix or path.startswith(f"{prefix}/"):
                return part
        return _nothing

    async def _state(self, path: str, scope: Scope) -> Reply:
        health = await self._look()
        if path == "/ready":
            is_working = all(worker.is_consuming for worker in self._engine.workers)
            return READY if is_working and health.takes else NOT_READY
        told = health.told if await self._is_somebody(scope) else {"status": health.status}
        return _small(200 if health.takes else 503, msgspec.json.encode(told))

    async def _look(self) -> Health:
        """What takes deliveries now, or did so a moment ago: the store, or else the spool."""
        async with self._looking:
            if self._health is None or time.monotonic() - self._looked_at > HEALTH_SECONDS:
                self._health = await self._make_health()
                self._looked_at = time.monotonic()
            return self._health

    async def _make_health(self) -> Health:
        watch, spool = self._engine.watch, self.gate.spool
        is_there = takes = await watch.check()
        store: dict[str, Any] = {"state": "ok"}
        if not is_there:
            since = moment(watch.since).isoformat(timespec="seconds")
            store = {"state": "away", "since": since, "error": watch.error}
        told: dict[str, Any] = {"status": "ok", "store": store}
        is_whole = is_there
        place: dict[str, Any] = {}
        if spool is not None:
            try:
                place["waiting"] = await spool.waiting()
            except StoreError as trouble:
                place["error"] = str(trouble)
            is_whole = is_there and place.get("waiting") == 0
            if not is_there:
                place["takes"] = takes = await spool.takes()
        told["spool"] = place or "off"
        told["status"] = "ok" if is_whole else "degraded" if takes else "not ok"
        return Health(told["status"], takes, told)

    async def _is_somebody(self, scope: Scope) -> bool:
        """Whether a person or a token asks, and may be told more than a word."""
        if self._web is None:
            return False
        from relevo.web import is_somebody

        try:
            async with asyncio.timeout(HEALTH_PATIENCE):
                return await is_somebody(self._web, scope)
        except (RelevoError, TimeoutError):
            return False

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


async def _not_ready(scope: Scope, send: Send) -> None:
    if scope["type"] == "http":
        await send_reply(send, NOT_READY)
    else:
        await send({"type": "websocket.close", "code": 1013})


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await send_reply(send, NOT_FOUND)
    else:
        await send({"type": "websocket.close", "code": 1008})


def _parts(
    engine: Relevo, closing: list[Callable[[], Awaitable[None]]]
) -> tuple[list[tuple[str, Any]], Web | None]:
    """Every prefix and the ASGI application behind it; `closing` gets what they have to end."""
    parts = [
        (site.prefix, site.build(engine), app.name if site.title else None)
        for app in engine.apps
        for site in app.sites
    ]
    if find_spec("starlette") is None:
        if any(app for _, _, app in parts):
            raise SettingsError("pages for people need the web: pip install 'relevo[web]'")
        return [(prefix, built) for prefix, built, _ in parts], None
    from relevo.web import Web

    web = Web(engine, Settings.read(), closing)
    doors = web.doors()
    made = [
        *((prefix, web.guard(built, of=app) if app else built) for prefix, built, app in parts),
        *((prefix, doors) for prefix in ("/login", "/logout", "/static")),
        *_rooms(engine, web),
    ]
    return made, web


def _rooms(engine: Relevo, web: Web) -> list[tuple[str, Any]]:
    """The API, what Prometheus asks for, and the dashboard, which has all other paths."""
    from relevo import api, dashboard
    from relevo.web import metrics

    return [
        ("/api", api.build(engine, web)),
        ("/metrics", metrics.build(engine, web)),
        ("", dashboard.build(engine, web)),
    ]
