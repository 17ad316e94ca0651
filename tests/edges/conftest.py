"""The program in a folder of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from relevo.store import Store
from tests.edges.box import SHOP, Box


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
