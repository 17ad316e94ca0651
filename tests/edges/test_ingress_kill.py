"""F03: the server is killed while a provider delivers and repeats what was not acknowledged."""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from relevo import Relevo
from relevo.testing import until
from tests.edges import doors
from tests.edges.doors import jobs, kept
from tests.edges.test_ingress_wire import good

SERVE = [sys.executable, "-m", "relevo.cli", "serve", "--app", "tests.edges.kill_app:app"]
HOME = Path(__file__).parents[2]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Provider:
    """Delivers events one after the other on some connections, each until it hears 200."""

    def __init__(self, port: int, events: list[str]) -> None:
        self._port = port
        self._todo = list(reversed(events))
        self.heard: Counter[str] = Counter()
        self.acked: list[str] = []

    async def run(self, callers: int = 8) -> None:
        await asyncio.gather(*(self._call() for _ in range(callers)))

    async def _call(self) -> None:
        while self._todo:
            event = self._todo.pop()
            while True:
                if await self._deliver(event):
                    break
                await asyncio.sleep(0.05)
            self.acked.append(event)

    async def _deliver(self, event: str) -> bool:
        try:
            async with asyncio.timeout(10):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                try:
                    writer.write(good(event))
                    status = (await reader.readline()).split()
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            status = []
        code = status[1].decode() if len(status) > 1 else "reset"
        self.heard[code] += 1
        return code == "200"


async def _serving(port: int, url: str) -> subprocess.Popen[bytes]:
    made = subprocess.Popen(
        [*SERVE, "--store", url, "--port", str(port)], cwd=HOME, stderr=subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(60):
            while made.poll() is None:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    return made
                except OSError:
                    await asyncio.sleep(0.02)
        raise AssertionError("the server ended by itself")
    except BaseException:
        made.kill()
        made.wait()
        raise


LONG = [pytest.mark.soak, pytest.mark.timeout(900)]


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=LONG)])
async def test_f03_what_was_acknowledged_outlives_the_server(
    kills: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = random.Random(kills)
    url = f"sqlite:///{tmp_path / 'relevo.db'}"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = await _serving(port, url)
    provider = Provider(port, [f"evt{number:05}" for number in range(150 * kills)])
    delivering = asyncio.create_task(provider.run())
    try:
        for turn in range(kills):
            goal = 100 * turn + moments.randrange(5, 95)
            await until(lambda goal=goal: len(provider.acked) >= goal, timeout="60s")
            server.kill()
            server.wait()
            server = await _serving(port, url)
        async with asyncio.timeout(90):
            await delivering
    finally:
        delivering.cancel()
        server.kill()
        server.wait()

    assert set(provider.heard) <= {"200", "500", "503", "reset"}
    assert provider.heard["reset"]
    async with Relevo(url, apps=[doors.app()]) as relevo:
        assert await jobs(relevo) == sorted(provider.acked)
        assert await kept(relevo) == min(200, 150 * kills)
