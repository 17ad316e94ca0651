"""Every page on every store, and under a prefix of someone else's application."""

from __future__ import annotations

import re
import time
from io import StringIO
from pathlib import Path

import httpx2
import pytest
from rich.console import Console

from relevo import App
from relevo.budget import BILLED
from relevo.cli.queues import tallies_table
from relevo.dashboard.live import Live
from relevo.engine import Relevo
from relevo.job import State
from relevo.stores.postgres import people
from relevo.testing import ManualClock, until
from tests.browser.fill import fill
from tests.conformance.fresh import STORES, fresh
from tests.conformance.steps import OTHER, WORK, end, job, put, take, tally_of
from tests.conformance.test_delivery_states import fail
from tests.edges.site import ACCEPT
from tests.edges.test_dashboard import paths


def visitor(relevo: Relevo, prefix: str = "") -> httpx2.AsyncClient:
    """Somebody at this very machine, who needs no password."""
    transport = httpx2.ASGITransport(relevo.asgi(), client=("127.0.0.1", 4711), root_path=prefix)
    return httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8700")


async def see(client: httpx2.AsyncClient, path: str, language: str = "en") -> str:
    return (await client.get(path, headers={**ACCEPT, "accept-language": language})).text


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


async def test_an_estimate_is_shown_as_one(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RELEVO_ADMIN_PASSWORD", raising=False)
    monkeypatch.setattr(people, "COUNTED", 1)
    monkeypatch.setattr(people, "FEW", 10)
    async with fresh("postgres", clock, tmp_path) as store:
        await put(store, *(job() for _ in range(30)), *(job(OTHER) for _ in range(3)))
        for queue in (WORK, OTHER):
            for lease in await take(store, 100, queue):
                assert await end(store, lease)
        n = (await tally_of(store)).counts[State.DONE]  # a sample of so few pages says little
        relevo = Relevo(store, clock=clock)
        relevo.is_open = True
        async with visitor(relevo) as client:
            shown = {"/queues": n, f"/queues/{WORK}": n, "/": n + 3, "/usage": n + 3}
            for path, number in shown.items():
                said = re.sub(r"<a [^>]*>", "", await see(client, path))
                assert f">about {number}<" in said, (path, re.findall("about.*", said))
            assert "about 3" not in await see(client, f"/queues/{OTHER}")
            assert f">unos {n}<" in await see(client, f"/queues/{WORK}", "es")
            told = (await client.get("/api/queues")).json()["items"]
            assert {each["queue"]: each["is_estimate"] for each in told} == {
                WORK: True,
                OTHER: False,
            }
            metrics = (await client.get("/metrics")).text
        relevo.is_open = False
        assert f'relevo_jobs_done_estimate{{queue="{WORK}"}} {n}.0' in metrics
        assert f'relevo_jobs{{queue="{WORK}",state="done"}}' not in metrics
        assert f'relevo_jobs{{queue="{OTHER}",state="done"}} 3.0' in metrics
        console = Console(file=StringIO(), width=200)
        console.print(tallies_table(await store.tally(), {}, [], []))
        said = console.file.getvalue()
        assert f"about {n}" in said and "about 3\n" not in said


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


@pytest.mark.parametrize("name", STORES)
async def test_a_failed_delivery_is_seen_within_two_seconds_on_every_store(
    name: str, tmp_path: Path, clock: ManualClock
) -> None:
    """Redis is asked less often only where a budget says that each command costs."""
    async with fresh(name, clock, tmp_path) as store:
        relevo = Relevo(store, apps=[App("shop")], clock=clock)
        relevo.is_open = True
        live = Live(relevo.desk, relevo)
        slow = Live(relevo.desk, relevo, has_budget=True)
        with live.seat("ann"), slow.seat("eva"):
            await until(lambda: bool(live.points and slow.points))
            await fail(store)
            began = time.monotonic()

            async def is_seen(looks: Live = live) -> bool:
                return bool((await looks.look(fresh=3_600)).troubles)

            await until(is_seen)
            assert time.monotonic() - began < 2
            if name in BILLED:
                assert not await is_seen(slow)
        await live.close()
        await slow.close()
        relevo.is_open = False
