"""`python -m bench.clients`: what one process reaches with an HTTP client.

Each row is one client in a process of its own, with so many calls at once, for so many seconds, to
a loopback server that answers after a while, as a provider does. The CPU of a call limits the
process: its event loop has one core, which the jobs share.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from multiprocessing.context import SpawnContext
from typing import NamedTuple

import aiohttp
import httpx

from bench.measure import cpu_seconds

ANSWER = b'{"id":"ch_1","status":"succeeded","amount":4900}'
TURNS = 10
BODY = {"order": "R-20418", "amount": 4900, "currency": "eur"}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"

Call = Callable[[], Awaitable[object]]


class Provider(asyncio.Protocol):
    """Answers every POST after a while, and keeps the connection."""

    def __init__(self, wait: float) -> None:
        self._wait = wait
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        if len(body) >= length:
            self._buffer = body[length:]
            asyncio.get_running_loop().call_later(self._wait, self._answer)

    def _answer(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(HEAD % len(ANSWER) + ANSWER)


def serve(port: multiprocessing.SimpleQueue[int], wait: float) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Provider(wait), "127.0.0.1", 0, backlog=1_024)
        port.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


@asynccontextmanager
async def httpx_each(url: str, at_once: int) -> AsyncGenerator[Call]:
    async def call() -> object:
        async with httpx.AsyncClient() as client:
            return (await client.post(url, json=BODY)).raise_for_status().json()

    yield call


@asynccontextmanager
async def httpx_shared(url: str, at_once: int) -> AsyncGenerator[Call]:
    # Of the 100 connections that it may have, it keeps 20: other calls connect anew.
    async with httpx.AsyncClient() as client:

        async def call() -> object:
            return (await client.post(url, json=BODY)).raise_for_status().json()

        yield call


@asynccontextmanager
async def httpx_kept(url: str, at_once: int) -> AsyncGenerator[Call]:
    limits = httpx.Limits(max_connections=at_once, max_keepalive_connections=at_once)
    async with httpx.AsyncClient(limits=limits) as client:

        async def call() -> object:
            return (await client.post(url, json=BODY)).raise_for_status().json()

        yield call


@asynccontextmanager
async def httpx_by_turns(url: str, at_once: int) -> AsyncGenerator[Call]:
    # What a call costs rises with the connections of its pool.
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(httpx.AsyncClient()) for _ in range(TURNS)]
        turn = itertools.cycle(clients)

        async def call() -> object:
            return (await next(turn).post(url, json=BODY)).raise_for_status().json()

        yield call


@asynccontextmanager
async def aiohttp_shared(url: str, at_once: int) -> AsyncGenerator[Call]:
    connector = aiohttp.TCPConnector(limit=at_once)
    async with aiohttp.ClientSession(connector=connector, raise_for_status=True) as session:

        async def call() -> object:
            async with session.post(url, json=BODY) as answer:
                return await answer.json()

        yield call


CLIENTS = {
    "httpx, a client for each call": httpx_each,
    "httpx, one client": httpx_shared,
    "httpx, one client, every connection kept": httpx_kept,
    f"httpx, {TURNS} clients by turns": httpx_by_turns,
    "aiohttp, one session": aiohttp_shared,
}


class Reached(NamedTuple):
    """What a client did in its time."""

    calls: int
    failed: int
    seconds: float
    cpu: float
    lag: float  # the longest for which the event loop answered nobody


async def measure(name: str, url: str, at_once: int, seconds: float) -> Reached:
    async with CLIENTS[name](url, at_once) as call:
        calls = failed = 0
        lag = 0.0
        until = time.monotonic() + seconds

        async def caller() -> None:
            nonlocal calls, failed
            while time.monotonic() < until:
                try:
                    await call()
                    calls += 1
                except (httpx.HTTPError, aiohttp.ClientError, TimeoutError):
                    failed += 1

        async def watch() -> None:
            nonlocal lag
            while (before := time.monotonic()) < until:
                await asyncio.sleep(0.01)
                lag = max(lag, time.monotonic() - before - 0.01)

        began, spent = time.monotonic(), cpu_seconds()
        await asyncio.gather(watch(), *(caller() for _ in range(at_once)))
        took = time.monotonic() - began
        return Reached(calls, failed, took, cpu_seconds() - spent, lag)


def run(name: str, url: str, at_once: int, seconds: float) -> Reached:
    import uvloop  # as `relevo work` does

    return uvloop.run(measure(name, url, at_once, seconds))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.clients", description=__doc__)
    parser.add_argument("--calls", type=int, default=100, help="at once (100)")
    parser.add_argument("--wait", type=float, default=0.05, help="seconds to an answer (0.05)")
    parser.add_argument("--seconds", type=float, default=5, help="how long (5)")
    chosen = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    port = spawn.SimpleQueue()
    server = spawn.Process(target=serve, args=(port, chosen.wait), daemon=True)
    server.start()
    try:
        compare(spawn, f"http://127.0.0.1:{port.get()}/charges", chosen)
    finally:
        server.terminate()
        server.join()


def compare(spawn: SpawnContext, url: str, chosen: argparse.Namespace) -> None:
    print(f"{'client':42} {'calls/s':>8} {'CPU ms a call':>14} {'lag ms':>7} {'failed':>7}")
    for name in CLIENTS:
        with ProcessPoolExecutor(1, spawn) as child:
            found = child.submit(run, name, url, chosen.calls, chosen.seconds).result()
        rate, each = found.calls / found.seconds, found.cpu / max(1, found.calls) * 1000
        print(f"{name:42} {rate:8,.0f} {each:14.2f} {found.lag * 1000:7.0f} {found.failed:7}")


if __name__ == "__main__":
    main()
