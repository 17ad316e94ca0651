"""The providers beside every test of an app, and the environment that points at them."""

from collections.abc import AsyncGenerator

import httpx2
import pytest

from relevo import Relevo
from relevo.simulators import World, environment, running


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[World]:
    """The simulators on a free port; the variables of every gateway point at them.

    Their webhooks go nowhere until a test sets `world.target`.
    """
    async with running(World(seed=7, target="http://127.0.0.1:9")) as world:
        for name, value in environment(world.base).items():
            monkeypatch.setenv(name, value)
        yield world


@pytest.fixture
async def browser(relevo: Relevo) -> AsyncGenerator[httpx2.AsyncClient]:
    """A person at the pages of the module's own `relevo`."""
    transport = httpx2.ASGITransport(app=relevo.asgi())
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8700") as client:
        yield client
