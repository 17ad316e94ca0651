"""How many webhooks a second are verified, kept with their job and answered, over a real socket.

Beside (a) the same server with the same check and nothing kept, and (b) a FastAPI function that
inserts one row a request; and our own door before a store that keeps nothing, beside (a). Who calls
is a process of its own with connections kept alive.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.measure import (
    Aim,
    Child,
    Pipe,
    Row,
    Speed,
    cpu_seconds,
    in_turns,
    percentile,
)
from bench.work import TEXT, Kept
from relevo import App, Delivery, Intake, Relevo, sources
from relevo.job import Verdict
from relevo.store import Arrival, Reception, Store
from relevo.stores import open_store

if TYPE_CHECKING:
    from bench.places import Place

SECTION = "ingress"
SECRET = "it is measured, not kept secret"  # noqa: S105 - of nothing
PATH = "/hooks/bench"
CONNECTIONS = 100
PACE = 500  # calls a second, for the time an answer takes when there is room
HEADER = b"x-hub-signature-256"


# The three servers


def _app() -> App:
    made = App("bench")

    @made.webhook(PATH, source=sources.github(SECRET), key=lambda d: d.json["id"])
    async def hook(delivery: Delivery, ctx: Intake) -> None:
        await ctx.enqueue(Kept(delivery.json["number"]))

    return made


async def _relevo(pipe: Pipe, url: str) -> float:
    return await _served(pipe, open_store(url))


async def _door(pipe: Pipe, url: str) -> float:
    """The same with a store that keeps nothing: the price of the door itself."""
    store: Any = open_store(url)

    async def forget(arrivals: Sequence[Arrival]) -> list[Reception]:
        await asyncio.sleep(0)
        return [Reception(arrival.kept, Verdict.NEW) for arrival in arrivals]

    store.receive = forget
    return await _served(pipe, store)


async def _served(pipe: Pipe, store: Store) -> float:
    from relevo.ingress.server import serving
    from relevo.ingress.sockets import listen

    async with Relevo(store, apps=[_app()]) as relevo:
        with listen("127.0.0.1", 0) as listener:
            async with serving(relevo.asgi(), listener):
                return await _until_told(pipe, listener)


async def _bare(pipe: Pipe, url: str) -> float:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        headers = dict(scope["headers"])
        right = b"sha256=" + hmac.digest(SECRET.encode(), body, "sha256").hex().encode()
        is_right = hmac.compare_digest(headers[HEADER], right) and json.loads(body)["id"]
        answer = b'{"ok":true}'
        lines = [(b"content-type", b"application/json"), (b"content-length", b"11")]
        start = {"type": "http.response.start", "status": 200 if is_right else 401}
        await send({**start, "headers": lines})
        await send({"type": "http.response.body", "body": answer})

    return await _uvicorn(pipe, app)


async def _fastapi(pipe: Pipe, url: str) -> float:
    from fastapi import FastAPI, HTTPException, Request
    from sqlalchemy import Column, Integer, LargeBinary, MetaData, Table, Text
    from sqlalchemy.ext.asyncio import create_async_engine

    # A crowd of writers on one file needs more patience than the driver has by itself.
    patience = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {}
    scheme, _, rest = url.partition("://")
    driver = {"sqlite": "aiosqlite", "postgresql": "asyncpg"}[scheme]
    engine = create_async_engine(f"{scheme}+{driver}://{rest}", **patience)
    deliveries = Table(
        "deliveries",
        MetaData(),
        Column("number", Integer, primary_key=True),
        Column("id", Text, unique=True),
        Column("body", LargeBinary),
    )
    async with engine.begin() as connection:
        await connection.run_sync(deliveries.metadata.create_all)
    app = FastAPI()

    async def hook(request: Request) -> dict[str, bool]:
        body = await request.body()
        right = "sha256=" + hmac.digest(SECRET.encode(), body, "sha256").hex()
        if not hmac.compare_digest(request.headers[HEADER.decode()], right):
            raise HTTPException(401)
        async with engine.begin() as connection:
            await connection.execute(
                deliveries.insert().values(id=json.loads(body)["id"], body=body)
            )
        return {"ok": True}

    hook.__annotations__ = {"request": Request}  # FastAPI looks for the name in the module
    app.post(PATH)(hook)
    try:
        return await _uvicorn(pipe, app)
    finally:
        await engine.dispose()


async def _uvicorn(pipe: Pipe, app: Any) -> float:
    import uvicorn

    listener = socket.create_server(("127.0.0.1", 0), backlog=2_048)
    config = uvicorn.Config(app, loop="none", http="httptools", access_log=False, log_config=None)
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve([listener]))
    try:
        while True:
            if server.started:
                break
            await asyncio.sleep(0.01)
        return await _until_told(pipe, listener)
    finally:
        server.should_exit = True
        await running


async def _until_told(pipe: Pipe, listener: socket.socket) -> float:
    """Says where it listens; once the caller is done, the CPU seconds it took."""
    pipe.say(listener.getsockname()[1])
    await pipe.hear()
    began = cpu_seconds()
    await pipe.hear()
    return cpu_seconds() - began


# The caller


class Called(NamedTuple):
    """How long it took, and how long each answer was waited for in milliseconds."""

    seconds: float
    waits: list[float]


def requests(count: int, first: int = 0) -> list[bytes]:
    """Signed deliveries of about 1 KB, no two alike."""
    made: list[bytes] = []
    for number in range(first, first + count):
        event = {"id": f"evt_{number:09}", "number": number, "type": "bench", "text": TEXT * 4}
        body = json.dumps(event).encode()
        seal = hmac.digest(SECRET.encode(), body, hashlib.sha256).hex().encode()
        made.append(
            b"POST %b HTTP/1.1\r\nhost: 127.0.0.1\r\nuser-agent: bench\r\naccept: */*\r\n"
            b"content-type: application/json\r\n%b: sha256=%b\r\ncontent-length: %d\r\n\r\n%b"
            % (PATH.encode(), HEADER, seal, len(body), body)
        )
    return made


class _Caller(asyncio.Protocol):
    """One connection: the next request when the last one is answered."""

    def __init__(
        self, todo: Iterator[bytes], waits: list[float], done: Callable[[str], None]
    ) -> None:
        self._todo = todo
        self._waits = waits
        self._done = done
        self._sent = 0.0
        self._heard = b""
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def call(self) -> None:
        request = next(self._todo, None)
        if request is None:
            self._done("")
            return
        self._sent = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._heard += data
        if self._heard.endswith(b"}"):
            if not self._heard.startswith(b"HTTP/1.1 200"):
                self._done(f"answered {self._heard[:200]!r}")
                return
            self._heard = b""
            self._waits.append((time.perf_counter() - self._sent) * 1e3)
            self.call()


async def _pace(pipe: Pipe, port: int, count: int) -> Called:
    """The same at an even pace, whoever is late; waits count from when a call was due."""
    ready = requests(count)
    await _round(port, iter(requests(200, first=count)), [])
    pipe.say(None)
    await pipe.hear()
    loop = asyncio.get_running_loop()
    idle: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        idle.put_nowait(await asyncio.open_connection("127.0.0.1", port))
    waits: list[float] = []

    async def call(request: bytes, due: float) -> None:
        reader, writer = await idle.get()
        writer.write(request)
        head = await reader.readuntil(b'{"ok":true}')
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"answered {head[:200]!r}")
        waits.append((loop.time() - due) * 1e3)
        idle.put_nowait((reader, writer))

    began = loop.time()
    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        for number, request in enumerate(ready):
            due = began + number / PACE
            await asyncio.sleep(max(0.0, due - loop.time()))
            group.create_task(call(request, due))
    while not idle.empty():
        idle.get_nowait()[1].close()
    return Called(loop.time() - began, waits)


async def _call(pipe: Pipe, port: int, count: int) -> Called:
    ready = requests(count)
    await _round(port, iter(requests(200, first=count)), [])
    pipe.say(None)
    await pipe.hear()
    waits: list[float] = []
    began = time.perf_counter()
    await _round(port, iter(ready), waits)
    return Called(time.perf_counter() - began, waits)


@asynccontextmanager
async def _connected(port: int, make: Callable[[], _Caller]) -> Any:
    loop = asyncio.get_running_loop()
    made = [await loop.create_connection(make, "127.0.0.1", port) for _ in range(CONNECTIONS)]
    try:
        yield [caller for _, caller in made]
    finally:
        for transport, _ in made:
            transport.close()


async def _round(port: int, todo: Iterator[bytes], waits: list[float]) -> None:
    left, over = CONNECTIONS, asyncio.get_running_loop().create_future()

    def done(trouble: str) -> None:
        nonlocal left
        left -= 1
        if not over.done() and (trouble or not left):
            over.set_result(trouble)

    async with _connected(port, lambda: _Caller(todo, waits, done)) as callers:
        for caller in callers:
            caller.call()
        if trouble := await asyncio.wait_for(over, 50):
            raise RuntimeError(trouble)


# The table


class Sample(NamedTuple):
    """One server under one caller."""

    speed: Speed
    p99: float


def measure(place: Place, jobs: int, rounds: int, say: Callable[[str], None]) -> Iterator[Row]:
    """Rows of the table."""
    many, few = max(2_000, jobs // 5), max(500, jobs // 50)

    def sample(
        server: Callable[..., Awaitable[float]],
        count: int,
        what: str,
        caller: Callable[..., Awaitable[Called]] = _call,
    ) -> Callable[[], Sample]:
        def taken() -> Sample:
            say(what)
            with place.fresh() if server in (_relevo, _door) else place.bare() as url:
                return _sample(server, caller, url, count)

        return taken

    kinds = [
        sample(_relevo, many, "webhooks"),
        sample(_bare, many, "the same, nothing kept"),
        sample(_door, many, "our door, nothing kept"),
    ]
    if place.name in ("sqlite", "postgres"):
        kinds.append(sample(_fastapi, few, "FastAPI, one row a request"))
    ours, bare, door, *others = in_turns(rounds, *kinds)
    name = f"webhooks kept with their job, {CONNECTIONS} connections"
    nothing = "same server and check, nothing kept"
    aim = Aim("ratio", ">=", 0.6) if others else None  # none is set for Redis
    yield _row(name, ours, bare, nothing, aim)
    yield _row("the same door with a store that keeps nothing", door, bare, nothing, None)
    for other in others:
        yield _row(name, ours, other, "FastAPI, one row a request", Aim("ratio", ">=", 3))
    yield Row(
        section=SECTION,
        name="answered within, p99, at full speed",
        unit="ms",
        ours=[each.p99 for each in ours],
        other=[each.p99 for each in bare],
        against=nothing,
    )
    [paced] = in_turns(rounds, sample(_relevo, PACE * 4, f"{PACE} webhooks a second", _pace))
    yield Row(
        section=SECTION,
        name=f"answered within, p99, at {PACE} calls/s",
        unit="ms",
        ours=[each.p99 for each in paced],
        aim=Aim("figure", "<=", 100),
    )


def _sample(
    server: Callable[..., Awaitable[float]],
    caller: Callable[..., Awaitable[Called]],
    url: str,
    count: int,
) -> Sample:
    serving = Child(server, url)
    calling: Child | None = None
    try:
        calling = Child(caller, serving.receive(30), count)
        calling.receive(60)
        serving.send(None)
        calling.send(None)
        called = Called(*calling.receive(180))
        serving.send(None)
        cpu = serving.receive(30) / count * 1e6
        return Sample(Speed(count / called.seconds, cpu), percentile(called.waits, 0.99))
    finally:
        serving.kill()
        if calling is not None:
            calling.kill()


def _row(name: str, ours: list[Sample], other: list[Sample], against: str, aim: Aim | None) -> Row:
    return Row(
        section=SECTION,
        name=name,
        unit="calls/s",
        ours=[each.speed.rate for each in ours],
        other=[each.speed.rate for each in other],
        cpu=[each.speed.cpu for each in ours],
        other_cpu=[each.speed.cpu for each in other],
        against=against,
        aim=aim,
    )
