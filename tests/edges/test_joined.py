"""What people see of commands that joined a job, or were replaced, in the terminal and on pages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from typing import NamedTuple

import httpx2
import pytest

from relevo import App, Command, Delivery, Intake, Relevo, sources
from relevo.desk import Role
from relevo.testing import ManualClock, drain
from tests.edges.box import Box
from tests.edges.site import ACCEPT, PASSWORD, Site


class Sync(Command, queue="shop:subs:sync", key="sub:{sub}", unique="unfinished"):
    sub: str
    state: str


class Newest(Command, queue="shop:subs:newest", key="new:{sub}", unique="latest"):
    sub: str
    state: str


class Seen(NamedTuple):
    """What happened in the store."""

    job: str
    first: str
    second: str
    replaced: str
    newest: str


def app() -> App:
    made = App("shop")

    @made.worker
    async def sync(order: Sync) -> None: ...

    @made.worker
    async def newest(order: Newest) -> None: ...

    @made.webhook("/hook", source=sources.github("a secret of tests"), key=lambda d: d.json["id"])
    async def hook(delivery: Delivery, ctx: Intake) -> None:
        await ctx.enqueue(Sync("s1", delivery.json["state"]), delay="1h")

    return made


async def happen(relevo: Relevo) -> Seen:
    """Two deliveries of one key, a third command, and a job that was replaced."""
    came: list[str] = []
    for id, state in (("evt_1", "active"), ("evt_2", "canceled")):
        body = json.dumps({"id": id, "state": state}).encode()
        call = Delivery(path="/hook", body=body, received_at=datetime.now(UTC))
        came.append((await relevo.receiver.take(relevo.receiver.doors["/hook"], call)).kept.id)
    job = (await relevo.enqueue(Sync("s1", "unpaid"))).id
    ids = [(await relevo.enqueue(Newest("s1", state))).id for state in ("active", "canceled")]
    await drain(relevo)
    return Seen(job, *came, *ids)


@pytest.fixture
def box(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Box]:
    monkeypatch.chdir(tmp_path)
    box = Box(tmp_path, capsys)
    monkeypatch.setenv("RELEVO_STORE_URL", box.url)
    monkeypatch.setenv("COLUMNS", "240")
    yield box


def test_the_command_line_tells_what_was_not_used(box: Box) -> None:
    async def work() -> Seen:
        async with Relevo(box.url, apps=[app()]) as relevo:
            return await happen(relevo)

    seen = asyncio.run(work())
    joined = f"joined job {seen.job}"
    unused = "; its payload was not used"

    job = box("jobs", "show", seen.job).out
    assert "sub:s1 (unfinished)" in job
    assert "2 newer ones joined; their payloads were not used" in job
    assert seen.second in job
    shown = box("deliveries", "show", seen.second).out
    assert f"{joined}, which was in progress{unused}" in shown
    assert joined not in box("deliveries", "show", seen.first).out
    assert f"{joined}, which was in progress{unused}" in box("trace", "evt_2").out
    assert "2 newer ones joined" in box("trace", "evt_1").out
    assert box("deliveries", "show", seen.second, "--json").json["joined"] == [seen.job]
    [found] = [
        row
        for row in box("doctor", "--json").json
        if row["subject"] == "shop:subs:sync" and "not used" in row["message"]
    ]
    assert found["level"] == "warning"
    for told in ("2 commands joined", "unique='unfinished'", "unique='latest'", seen.job):
        assert told in found["message"]
    for show in ("jobs show", "trace"):
        assert f"replaced by {seen.newest}" in box(*show.split(), seen.replaced).out
    refused = box("jobs", "retry", seen.replaced)
    assert refused.code == 1
    assert "a newer job of its key has taken its place" in refused.err


async def test_the_dashboard_tells_it_in_english_and_spanish(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELEVO_ADMIN_PASSWORD", PASSWORD)
    path = tmp_path / "relevo.db"
    async with Relevo(f"sqlite:///{path}", apps=[app()], clock=clock) as relevo:
        seen = await happen(relevo)
        async with Site(relevo, path, clock).browser(Role.ADMIN) as client:

            async def see(page: str, language: str) -> str:
                answer: httpx2.Response = await client.get(
                    page, headers=ACCEPT | {"accept-language": language}
                )
                assert answer.status_code == 200
                return unescape(answer.text)

            job = await see(f"/jobs/{seen.job}", "en")
            assert "2 newer commands joined this job; their payloads were not used." in job
            assert f"/deliveries/{seen.second}" in job
            trabajo = await see(f"/jobs/{seen.job}", "es")
            assert "2 órdenes posteriores se unieron a este trabajo" in trabajo
            delivery = await see(f"/deliveries/{seen.second}", "en")
            assert "It joined a job that was there already" in delivery
            assert f"/jobs/{seen.job}" in delivery
            assert "It joined a job" not in await see(f"/deliveries/{seen.first}", "en")
            entrega = await see(f"/deliveries/{seen.second}", "es")
            assert "Se unió a un trabajo que ya existía" in entrega
            assert "payload not used" in await see(f"/threads/{seen.second}", "en")
            replaced = await see(f"/jobs/{seen.replaced}", "en")
            assert "replaced by" in replaced
            assert f"/jobs/{seen.newest}" in replaced
            assert "sustituido por" in await see(f"/jobs/{seen.replaced}", "es")
