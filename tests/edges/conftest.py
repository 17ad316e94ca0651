"""The program in a folder of its own, and its site with a password and without."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from relevo.engine import Relevo
from relevo.store import Store
from relevo.testing import ManualClock
from tests.edges.box import SHOP, Box
from tests.edges.site import PASSWORD, Site, apps


@pytest.fixture
def box(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Box:
    made = Box(tmp_path, capsys)
    (tmp_path / "shop.py").write_text(SHOP)
    for name in [name for name in os.environ if name.startswith("RELEVO_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("RELEVO_STORE_URL", made.url)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    made.do(_nothing)
    return made


async def _nothing(store: Store) -> None:
    return None


@pytest.fixture
async def web(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Site]:
    """A site with a password."""
    monkeypatch.setenv("RELEVO_ADMIN_PASSWORD", PASSWORD)
    async with _site(tmp_path, clock) as made:
        yield made


@pytest.fixture
async def unlocked(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Site]:
    """A site without one."""
    monkeypatch.delenv("RELEVO_ADMIN_PASSWORD", raising=False)
    async with _site(tmp_path, clock) as made:
        yield made


@asynccontextmanager
async def _site(folder: Path, clock: ManualClock) -> AsyncIterator[Site]:
    path = folder / "relevo.db"
    async with Relevo(f"sqlite:///{path}", apps=apps(), clock=clock) as relevo:
        yield Site(relevo, path, clock)
