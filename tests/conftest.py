"""What holds for every test: asyncio, every kind of store, a last line on what did not run."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from relevo.store import Store
from relevo.testing import ManualClock
from tests.conformance.fresh import STORES, fresh

pytest_plugins = ["tests.matrix", "tests.scheduler", "tests.second_try"]

# An example that stood still for 200 ms on a busy machine is no example of a fault.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

missing: list[str] = []


def pytest_collection(session: pytest.Session) -> None:
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """What was imported and collected stays: a search for garbage among it took a second each."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=STORES)
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def store(store_name: str, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Store]:
    """A fresh, empty, migrated and open store of every kind, unless a test names its own."""
    async with fresh(store_name, clock, tmp_path) as opened:
        yield opened


def note_missing(config: pytest.Config, what: str) -> None:
    """Remember what could not be tested; a worker of xdist tells whoever started it."""
    if hasattr(config, "workeroutput"):
        config.workeroutput["missing"] = what
    else:
        missing.append(what)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    told = getattr(node, "workeroutput", {}).get("missing")
    if told:
        missing.append(told)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    for what in dict.fromkeys(missing):
        writer = config.get_terminal_writer()
        writer.line()
        writer.line(f"!!! {what} !!!", red=True, bold=True)
