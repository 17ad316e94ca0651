"""Whether this process consumes, as others see it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from relevo import App, Command, Relevo
from relevo.testing import ManualClock, until

app = App("shop")


class Pay(Command, queue="shop:money:pay", attempts=1):
    order: str


@app.worker
async def pay(order: Pay) -> None: ...


@pytest.fixture
async def relevo(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Relevo]:
    async with Relevo(f"sqlite:///{tmp_path}/relevo.db", apps=[app], clock=clock) as opened:
        yield opened


async def test_a_process_that_consumes_nothing_is_not_ready(relevo: Relevo) -> None:
    transport = httpx2.ASGITransport(relevo.asgi())
    stop = asyncio.Event()
    working = asyncio.create_task(relevo.work(concurrency=2, stop=stop))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        await until(lambda: bool(relevo.workers and relevo.workers[0].heard_at))
        assert (await client.get("/ready")).status_code == 200
        [worker] = relevo.workers
        # As after a claim that never came back.
        worker.heard_at = asyncio.get_running_loop().time() - 91
        assert (await client.get("/ready")).status_code == 503
        stop.set()
        await working
        assert relevo.workers == []
        assert (await client.get("/ready")).status_code == 200
