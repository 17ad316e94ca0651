"""Every page on every store, and under a prefix of someone else's application."""

from __future__ import annotations

import re
from pathlib import Path

import httpx2
import pytest

from relevo import App
from relevo.engine import Relevo
from relevo.testing import ManualClock
from tests.browser.fill import fill
from tests.conformance.fresh import STORES, fresh
from tests.edges.site import ACCEPT
from tests.edges.test_dashboard import paths


def visitor(relevo: Relevo, prefix: str = "") -> httpx2.AsyncClient:
    """Somebody at this very machine, who needs no password."""
    transport = httpx2.ASGITransport(relevo.asgi(), client=("127.0.0.1", 4711), root_path=prefix)
    return httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8700")


@pytest.mark.parametrize("name", STORES)
async def test_every_page_is_there_on_every_store(
    name: str, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RELEVO_ADMIN_PASSWORD", raising=False)
    async with fresh(name, clock, tmp_path) as store:
        some = await fill(store)
        relevo = Relevo(store, apps=[App("cars"), App("hotel")], clock=clock)
        relevo.is_open = True
        async with visitor(relevo) as client:
            for path in paths(some).values():
                answer = await client.get(path, headers=ACCEPT)
                assert answer.status_code == 200, (path, answer.text[-2_000:])
        relevo.is_open = False


async def test_every_link_stays_under_the_prefix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RELEVO_ADMIN_PASSWORD", raising=False)
    async with Relevo(f"sqlite:///{tmp_path / 'relevo.db'}") as relevo:
        some = await fill(relevo.store)
        async with visitor(relevo, "/ops") as client:
            for path in paths(some).values():
                page = (await client.get(f"/ops{path}", headers=ACCEPT)).text
                links = re.findall(r'(?:href|action|src|hx-get|formaction)="(/[^"]*)"', page)
                astray = [link for link in links if not link.startswith("/ops/")]
                assert not astray, (path, astray)
