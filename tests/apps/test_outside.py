"""Providers that answer badly, on the wire itself."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from relevo.apps.outside import Outside
from relevo.errors import ProviderError, ProviderUnavailable, ProviderUncertain

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]
BOMB = gzip.compress(gzip.compress(bytes(32 << 20)))


@asynccontextmanager
async def answering(answer: Answer, heard: list[bytes]) -> AsyncGenerator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        await answer(writer)
        await reader.read()  # until they hang up
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def saying(head: str, body: bytes = b"") -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        length = f"content-length: {len(body)}\r\n"
        writer.write(f"HTTP/1.1 {head}\r\n{length}\r\n".encode() + body)
        await writer.drain()

    return answer


async def silent(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (silent, ProviderUncertain),
        (saying("200 OK\r\ncontent-encoding: gzip", gzip.decompress(BOMB)), ProviderUncertain),
        (saying("200 OK\r\ncontent-encoding: gzip", BOMB), ProviderUncertain),
        (saying("200 OK\r\ncontent-encoding: br", b"x"), ProviderUncertain),
    ],
    ids=["headers then silence", "bomb", "bomb in a bomb", "unknown"],
)
async def test_b43_no_answer_is_waited_for_or_unpacked_without_end(
    answer: Answer, error: type[ProviderError]
) -> None:
    started = time.monotonic()
    async with answering(answer, []) as url, Outside("Them", url, seconds=1) as them:
        with pytest.raises(error):
            (await them.call("POST", "/book", json={}, acts=True)).check().json()
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"])
async def test_b43_who_sends_us_elsewhere_is_not_followed(status: str) -> None:
    """B43: neither the call nor its credentials reach the other host."""
    told: list[bytes] = []
    async with answering(saying("200 OK"), told) as elsewhere:
        leading = saying(f"{status}\r\nlocation: {elsewhere}/inward")
        keys = {"authorization": "Bearer of the tests"}
        async with answering(leading, []) as url, Outside("Them", url, headers=keys) as them:
            with pytest.raises(ProviderUnavailable):
                (await them.call("POST", "/book", json={}, acts=True)).check()
    assert told == []
