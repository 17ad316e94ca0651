"""World: what all providers share: ledger, faults, time, and the courier of their webhooks."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Any, Protocol

import httpx2
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from relevo.simulators.faults import Fault, Faults
from relevo.simulators.ledger import Entry, Ledger

TRANSPORT = "relevo.transport"  # where the server leaves the connection, in the scope

Handler = Callable[[Request], Awaitable[Response]]


class World:
    """One set of providers. `target` is where their webhooks go: our own front door."""

    def __init__(self, *, seed: int = 0, target: str = "http://127.0.0.1:8700") -> None:
        self.ledger = Ledger()
        self.faults = Faults(seed)
        self.calls: Counter[str] = Counter()  # every call, whether it had an effect or not
        self.target = target
        self.courier = Courier(self)
        self.base = ""  # our own address, once we serve
        self._rooms: dict[str, Any] = {}

    def now(self) -> float:
        return time.time()

    def room(self, name: str, make: Callable[[], Any]) -> Any:
        """A provider's own memory, made on first use."""
        if name not in self._rooms:
            self._rooms[name] = make()
        return self._rooms[name]

    def effect(self, provider: str, operation: str, key: str, **detail: Any) -> Entry:
        """Write down that something happened."""
        return self.ledger.add(provider, operation, key, self.now(), **detail)

    def call(self, provider: str, operation: str) -> Callable[[Handler], Handler]:
        """Wrap an endpoint: count its calls and let its faults happen.

        A handler sees the kinds that only it can act out (refuse, duplicate) with fault().
        """

        def wrap(handler: Handler) -> Handler:
            @wraps(handler)
            async def called(request: Request) -> Response:
                self.calls[f"{provider}:{operation}"] += 1
                found = self.faults.pick(provider, operation)
                request.state.fault = found
                return (
                    await handler(request) if found is None else await _act(found, handler, request)
                )

            return called

        return wrap

    def clear(self) -> None:
        """Forget every effect, fault and memory."""
        self.ledger.clear()
        self.faults.clear()
        self.calls.clear()
        self._rooms.clear()


def fault(request: Request) -> str:
    """The kind of fault this call has; empty when it has none."""
    found: Fault | None = request.state.fault
    return "" if found is None else found.kind


async def _act(found: Fault, handler: Handler, request: Request) -> Response:
    match found.kind:
        case "slow":
            await asyncio.sleep(found.seconds)
            return await handler(request)
        case "hang":
            answer = await handler(request)
            await asyncio.sleep(found.seconds)
            return answer
        case "error":
            return Response("Service Unavailable", 503, media_type="text/plain")
        case "limit":
            headers = {"retry-after": str(int(found.seconds))}
            return Response("Too Many Requests", 429, headers, media_type="text/plain")
        case "down":
            return Cut()
        case "lost":
            await handler(request)
            return Cut()
        case "malformed":
            answer = await handler(request)
            half = bytes(answer.body)[: len(answer.body) // 2]
            return Response(half, answer.status_code, media_type=answer.media_type)
        case _:
            return await handler(request)


class Cut(Response):
    """No answer: the connection dies."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        transport = scope.get(TRANSPORT)
        if transport is None:
            raise ConnectionAbortedError("the provider hangs up")
        transport.abort()
        # The server complains of a call without an answer unless it knows that nobody waits.
        while (await receive())["type"] != "http.disconnect":
            pass


class Signer(Protocol):
    """Signs a body at the moment it is sent; gives the headers."""

    def __call__(self, body: bytes) -> Mapping[str, str]: ...


class Courier:
    """Delivers the providers' webhooks and, like them, tries again until it gets a 2xx."""

    def __init__(self, world: World, waits: tuple[float, ...] = (0.2, 0.5, 1, 2, 4, 8)) -> None:
        self._world = world
        self._waits = waits
        self._client: httpx2.AsyncClient | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.delivered: Counter[str] = Counter()  # answered 2xx, by path
        self.given_up: list[str] = []

    def send(
        self,
        path: str,
        body: bytes,
        sign: Signer,
        *,
        method: str = "POST",
        copies: int = 1,
    ) -> None:
        """Deliver in the background; `copies` of it, as providers now and then do."""
        for _ in range(copies):
            task = asyncio.create_task(self._deliver(method, path, body, sign))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _deliver(self, method: str, path: str, body: bytes, sign: Signer) -> None:
        if self._client is None:
            self._client = httpx2.AsyncClient(timeout=10, trust_env=False)
        url = path if path.startswith("http") else self._world.target + path
        for wait in (*self._waits, None):
            try:
                headers = dict(sign(body))
                answer = await self._client.request(method, url, content=body, headers=headers)
                if answer.is_success:
                    self.delivered[path] += 1
                    return
            except httpx2.HTTPError:
                pass
            if wait is not None:
                await asyncio.sleep(wait)
        self.given_up.append(path)

    async def rest(self) -> None:
        """Wait until nothing is on its way."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def close(self) -> None:
        for task in set(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        if self._client is not None:
            await self._client.aclose()
            self._client = None
