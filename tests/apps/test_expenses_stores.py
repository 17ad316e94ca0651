"""Expenses, alone and by our own QStash, on PostgreSQL and on Redis, and with workers killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from qstash import AsyncQStash

from relevo import Relevo
from relevo.apps import expenses, qstash, tables
from relevo.ingress.server import serving
from relevo.ingress.sockets import listen
from relevo.simulators import World
from relevo.simulators.traffic import expenses as traffic
from relevo.testing import until, working
from tests.apps.test_expenses_end import cents, replied
from tests.servers import postgres
from tests.servers.redis import fresh_url

PUBLIC = "https://expenses.example.com"


@asynccontextmanager
async def fresh_postgres() -> AsyncGenerator[str]:
    """A store of its own with both apps' tables."""
    async with postgres.fresh_address() as url:
        for package in (expenses.MIGRATIONS, qstash.MIGRATIONS):
            assert await tables.migrate(url, package)
        yield url


@pytest.fixture(
    params=[
        pytest.param("postgres", marks=pytest.mark.xdist_group("postgres")),
        pytest.param("redis", marks=pytest.mark.xdist_group("redis")),
    ]
)
async def addresses(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncGenerator[tuple[str, str | None]]:
    """A store, and the database beside it where it is none itself."""
    if request.param == "postgres":
        async with fresh_postgres() as url:
            yield url, None
        return
    yield fresh_url(), f"sqlite:///{tmp_path / 'expenses.db'}"


async def test_by_our_own_qstash_on_every_store(
    world: World, addresses: tuple[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, database = addresses
    listener = listen("127.0.0.1", 0)
    base = f"http://127.0.0.1:{listener.getsockname()[1]}"
    for name, value in (
        ("QSTASH_TOKEN", "a-token-of-the-tests"),
        ("QSTASH_CURRENT_SIGNING_KEY", "sig_current_key_of_the_tests_0123456789"),
        ("QSTASH_NEXT_SIGNING_KEY", "sig_next_key_of_the_tests_0123456789abc"),
        ("QSTASH_ALLOW", "127.0.0.1"),
        ("QSTASH_URL", base),
        ("QSTASH_REWRITE", f"{PUBLIC}={base}"),
        ("VERCEL_URL", PUBLIC),
    ):
        monkeypatch.setenv(name, value)
    world.faults.add("whatsapp", "send", "lost", times=1)
    async with AsyncExitStack() as stack:
        relevo = Relevo(store, apps=[expenses.app, qstash.app], database=database)
        front = relevo.asgi()
        await stack.enter_async_context(relevo)
        world.target = await stack.enter_async_context(serving(front, listener, grace=1))
        await stack.enter_async_context(working(relevo))
        sent = await traffic.run(world, world.target, 12, seed=6)
        await until(lambda: replied(relevo, 12), timeout="50s", what="12 replies")
        assert await cents(relevo) == sent.cents
        counts = Counter(entry.key for entry in world.ledger.find("whatsapp", "send"))
        assert counts == Counter(sent.replies)
        await asyncio.wait_for(world.courier.rest(), 10)


@pytest.mark.xdist_group("postgres")
async def test_the_same_publish_at_once_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QSTASH_DEV", "1")
    listener = listen("127.0.0.1", 0)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(fresh_postgres())
        relevo = await stack.enter_async_context(Relevo(url, apps=[qstash.app]))
        base = await stack.enter_async_context(serving(relevo.asgi(), listener, grace=1))
        sdk = AsyncQStash(qstash.settings.DEV["QSTASH_TOKEN"], base_url=base, retry=False)

        async def publish(number: int) -> str:
            done = await sdk.message.enqueue(
                queue="q", url="http://127.0.0.1:9/x", body="x", deduplication_id=f"d{number % 3}"
            )
            return done.message_id

        ids = await asyncio.gather(*(publish(number) for number in range(24)))
        assert len(set(ids)) == 3
        assert (await sdk.queue.get("q")).lag == 3
        http: Any = sdk.http
        await http._client.aclose()


async def start(folder: Path, *words: str) -> Process:
    env = os.environ | {
        "RELEVO_STORE_URL": f"sqlite:///{folder / 'expenses.db'}",
        "RELEVO_APPS": "expenses",
        "RELEVO_LEASE": "2s",
    }
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "relevo.cli", *words, env=env, stdout=DEVNULL, stderr=DEVNULL
    )


async def test_a_worker_killed_while_it_sends_sends_once(world: World, tmp_path: Path) -> None:
    """F44: the text has left, the worker dies before it hears so; the status tells the next one."""
    async with AsyncExitStack() as stack:
        url = f"sqlite:///{tmp_path / 'expenses.db'}"
        relevo = await stack.enter_async_context(Relevo(url, apps=[expenses.app]))
        listener = stack.enter_context(listen("127.0.0.1", 0))
        world.target = await stack.enter_async_context(serving(relevo.asgi(), listener, grace=1))
        world.faults.add("whatsapp", "send", "hang", times=1, seconds=30)
        first = await start(tmp_path, "work")
        try:
            sent = await traffic.run(world, world.target, 3, seed=8)
            hung = sent.replies
            await until(lambda: world.ledger.count("whatsapp", "send") >= 1, timeout="40s")
        finally:
            first.send_signal(signal.SIGKILL)
            await first.wait()
        async with working(relevo):
            await until(lambda: replied(relevo, 3), timeout="50s", what="3 replies")
        assert await cents(relevo) == sent.cents
        counts = Counter(entry.key for entry in world.ledger.find("whatsapp", "send"))
        assert counts == Counter(hung)
