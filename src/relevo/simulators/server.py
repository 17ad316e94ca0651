"""All providers on one port of loopback, and the doors for whoever plays with them.

GET /ledger      the effects each provider received      DELETE /ledger   forget them
POST /faults     {"provider", "operation", "kind", …}    DELETE /faults   all is well again
GET /calls       how often each operation was called     POST /target     where webhooks go
"""

from __future__ import annotations

import asyncio
import importlib
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from relevo.simulators.faults import KINDS
from relevo.simulators.world import TRANSPORT, World

PORT = 8701
PROVIDERS = (
    "stripe",
    "mexgroup",
    "niza",
    "infinity",
    "noleggiare",
    "hertz",
    "client",
    "beds24",
    "channel",
    "astra",
    "whatsapp",
    "gemini",
    "qstash",
    "doppler",
    "relay",
    "sheets",
    "mail",
    "storage",
    "cortex",
)


def providers() -> list[Any]:
    """The modules of the providers that are here."""
    here = [f"{__package__}.{name}" for name in PROVIDERS]
    return [importlib.import_module(name) for name in here if find_spec(name) is not None]


def environment(base: str) -> dict[str, str]:
    """The variables that point every gateway at the simulators."""
    found: dict[str, str] = {}
    for provider in providers():
        found |= provider.environment(base)
    return found


def build(world: World) -> Starlette:
    """The ASGI application of all providers."""
    routes: list[BaseRoute] = _controls(world)
    for provider in providers():
        routes += provider.routes(world)
    return Starlette(routes=routes)


def _controls(world: World) -> list[BaseRoute]:
    async def ledger(request: Request) -> Response:
        if request.method == "DELETE":
            world.clear()
        return JSONResponse(world.ledger.shown())

    async def calls(request: Request) -> Response:
        return JSONResponse(dict(sorted(world.calls.items())))

    async def faults(request: Request) -> Response:
        if request.method == "DELETE":
            world.faults.clear()
        elif request.method == "POST":
            wish = await request.json()
            try:
                world.faults.add(
                    wish.pop("provider"), wish.pop("operation", "*"), wish.pop("kind"), **wish
                )
            except (KeyError, TypeError, ValueError) as error:
                wanted = (
                    f"provider, operation, kind ({', '.join(KINDS)}), rate, times, seconds, lasts"
                )
                return JSONResponse({"error": str(error), "wanted": wanted}, 422)
        shown = [
            {"provider": each.provider, "operation": each.operation, "kind": each.kind}
            for each in world.faults.rules
        ]
        return JSONResponse(shown)

    async def target(request: Request) -> Response:
        world.target = str((await request.json())["url"]).rstrip("/")
        return JSONResponse({"target": world.target})

    return [
        Route("/ledger", ledger, methods=["GET", "DELETE"]),
        Route("/calls", calls),
        Route("/faults", faults, methods=["GET", "POST", "DELETE"]),
        Route("/target", target, methods=["POST"]),
    ]


class _Protocol(HttpToolsProtocol):
    """uvicorn's own, with the connection within reach, so that a provider can hang up."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast("dict[str, Any]", self.scope)[TRANSPORT] = self.transport


class _Server(uvicorn.Server):
    """uvicorn's own, but for signals: whoever runs us has handlers of their own."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@asynccontextmanager
async def running(world: World | None = None, *, port: int = 0) -> AsyncGenerator[World]:
    """The simulators beside this program, on a free port unless told otherwise."""
    world = world or World()
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    world.base = f"http://127.0.0.1:{listener.getsockname()[1]}"
    config = uvicorn.Config(
        build(world),
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_level="critical",  # a connection that was cut on purpose is no error
        access_log=False,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]), name="relevo-simulators")
    try:
        while not server.started:
            if task.done():
                await task
            await asyncio.sleep(0.01)
        yield world
    finally:
        await world.courier.close()
        server.should_exit = True
        await task
        listener.close()


async def serve(world: World, *, port: int = PORT, stop: asyncio.Event | None = None) -> None:
    """Serve until told to stop."""
    async with running(world, port=port):
        await (stop or asyncio.Event()).wait()
