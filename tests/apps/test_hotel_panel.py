"""The hotel's panel: what people see there, and what their buttons do."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from relevo import Relevo, State
from relevo.apps.hotel import app
from relevo.apps.hotel.hotel import Hotel
from relevo.simulators import World
from relevo.store import Filter
from tests.apps.test_hotel import entry, rest, turn

EVIL = '<script>alert("x")</script>'


@pytest.fixture
async def relevo(world: World, tmp_path: Path) -> AsyncGenerator[Relevo]:
    async with Relevo(f"sqlite:///{tmp_path / 'hotel.db'}", apps=[app]) as engine:
        yield engine


async def send(browser: httpx2.AsyncClient, page: str, path: str, **fields: str) -> Any:
    """Fill in a form of a page as a browser would."""
    text = (await browser.get(page)).text
    token = re.search(r'name="csrf" content="(\w+)"', text)
    assert token is not None
    return await browser.post(path, data={"csrf": token[1], **fields})


async def test_a_person_reads_and_answers_a_guest_once(
    relevo: Relevo, world: World, browser: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    hotel = relevo.use(Hotel)
    talk = "hotel999-channelManager-guest-1"
    await hotel.board.queue("hotel999").push([entry(1, content=EVIL)])
    await turn(relevo)

    place = f"/hotel/conversations/hotel999/{talk}"
    page = (await browser.get(place)).text
    assert "&lt;script&gt;" in page
    assert EVIL not in page
    assert "automatic" in page
    await send(browser, place, "/hotel/mode", hotel="hotel999", conversation=talk, mode="manual")
    token = re.search(r'name="token" value="(\w+)"', page)
    assert token is not None
    fields = {"hotel": "hotel999", "conversation": talk, "token": token[1]}
    for _ in range(2):
        answer = await send(browser, place, "/hotel/reply", text="Sí, hay cochera.", **fields)
        assert answer.status_code == 303
    page = (await browser.get(place)).text
    assert "not sent yet" in page
    assert page.count("Sí, hay cochera.") == 1
    await rest(relevo)
    assert "not sent yet" not in (await browser.get(place)).text
    texts = [each.detail["text"] for each in world.ledger.find("channel", "reply")]
    assert texts.count("Sí, hay cochera.") == 1
    spanish = (await browser.get(f"{place}?lang=es")).text
    assert "Sí, hay cochera." in spanish
    assert "Tu respuesta" in spanish
    await hotel.board.queue("hotel999").push([entry(2, conversationId=talk)])
    await turn(relevo)
    assert await hotel.records.count("messages") == 4
    assert world.ledger.count("channel", "reply") == 2  # manual now: nobody answers by itself


async def test_an_answer_that_failed_stands_in_its_conversation(
    relevo: Relevo, world: World, browser: httpx2.AsyncClient
) -> None:
    hotel = relevo.use(Hotel)
    await hotel.board.queue("hotel999").push([entry(1)])
    world.faults.add("channel", "reply", "refuse", times=100)
    await turn(relevo)
    place = "/hotel/conversations/hotel999/hotel999-channelManager-guest-1"
    page = (await browser.get(f"{place}?lang=es")).text
    assert "sin enviar" in page
    [job] = (await relevo.store.page(Filter(states=frozenset({State.DEAD})))).jobs
    assert f"/jobs/{job.id}" in page


async def test_bots_are_seen_and_paused(
    relevo: Relevo, browser: httpx2.AsyncClient, world: World
) -> None:
    hotel = relevo.use(Hotel)
    assert "no sign of life" in (await browser.get("/hotel")).text
    for id in hotel.settings.hotels:
        await turn(relevo, id)
    page = (await browser.get("/hotel")).text
    assert page.count(">alive<") == 3
    pulse = await hotel.board.pulse("hotel999")
    assert pulse.value is not None
    assert pulse.at is not None
    assert pulse.value not in page  # the moment is told as on every other page
    assert page.count('<time datetime="') == 3
    assert re.search(r"expires in [45]\sm", page)
    await send(browser, "/hotel", "/hotel/bots", hotel="hotel1", enabled="0")
    assert not await hotel.board.is_enabled("hotel1", default=True)
    assert ">paused<" in (await browser.get("/hotel")).text
    await send(browser, "/hotel", "/hotel/bots", hotel="hotel1", enabled="1")
    assert await hotel.board.is_enabled("hotel1", default=False)
    assert ">paused<" not in (await browser.get("/hotel")).text
    acts = [each.verb for each in (await relevo.store.audits())[0]]
    assert {"bot paused", "bot enabled"} <= set(acts)


async def test_the_dead_list_is_seen_sent_back_and_thrown_away(
    relevo: Relevo, browser: httpx2.AsyncClient
) -> None:
    hotel = relevo.use(Hotel)
    queue = hotel.board.queue("hotel999")
    await queue.push([b"not json " + EVIL.encode(), b'{"eventType":"other"}'])
    await turn(relevo)
    page = (await browser.get("/hotel/dead/hotel999")).text
    assert "the body is not JSON" in page
    assert EVIL not in page
    first, second = await queue.buried()
    fields = {"hotel": "hotel999", "what": "retry"}
    place = "/hotel/dead/hotel999"
    assert (await send(browser, place, "/hotel/dead", id=first.id, **fields)).status_code == 303
    assert (await send(browser, place, "/hotel/dead", id=first.id, **fields)).status_code == 404
    assert await queue.lengths() == (1, 0, 1)
    fields["what"] = "discard"
    assert (await send(browser, place, "/hotel/dead", id=second.id, **fields)).status_code == 303
    assert await queue.lengths() == (1, 0, 0)


async def test_a_dead_entry_is_edited_and_all_are_sent_back(
    relevo: Relevo, browser: httpx2.AsyncClient
) -> None:
    hotel = relevo.use(Hotel)
    queue = hotel.board.queue("hotel999")
    await queue.push([entry(1, content=EVIL, channel="a:b"), b"\xff", b"{"])
    await turn(relevo)
    first = next(each for each in await queue.buried() if b"messageId" in each.entry)
    place = f"/hotel/dead/hotel999/{first.id}"
    page = (await browser.get(f"{place}?lang=es")).text
    assert "Guardar y reintentar" in page
    assert EVIL not in page
    fields = {"hotel": "hotel999", "id": first.id, "what": "edit"}
    wrong = await send(browser, place, "/hotel/dead", entry='{"eventType":"x<b>"}', **fields)
    assert wrong.status_code == 422
    assert "it reads guest_message" in wrong.text
    assert "x&lt;b&gt;" in wrong.text  # what was typed is not lost
    assert (await queue.lengths())[2] == 3
    right = entry(1, content=EVIL).decode()
    for code in (303, 404):
        assert (
            await send(browser, "/hotel", "/hotel/dead", entry=right, **fields)
        ).status_code == code
    await turn(relevo)
    assert await hotel.records.has_message("hotel999:channelManager:cm-msg-1")
    bytes_only = next(each for each in await queue.buried() if each.entry == b"\xff")
    assert "<textarea" not in (await browser.get(f"/hotel/dead/hotel999/{bytes_only.id}")).text
    everything = {"hotel": "hotel999", "what": "retry_all"}
    assert (await send(browser, "/hotel", "/hotel/dead", **everything)).status_code == 303
    assert await queue.lengths() == (2, 0, 0)
    acts = [each.verb for each in (await relevo.store.audits())[0]]
    assert {"entry edited and sent back", "entries sent back"} <= set(acts)
    assert (await send(browser, "/hotel", "/hotel/dead", hotel="hotel1")).status_code == 422


@pytest.mark.parametrize("path", ["/hotel", "/hotel/reservations", "/hotel/events"])
@pytest.mark.parametrize("language", ["en", "es"])
async def test_every_list_has_its_page(
    relevo: Relevo, browser: httpx2.AsyncClient, path: str, language: str
) -> None:
    page = await browser.get(f"{path}?lang={language}&hotel=hotel1")
    assert page.status_code == 200
    assert "hotel1" in page.text


async def test_others_hotels_and_forged_forms_get_nowhere(
    relevo: Relevo, browser: httpx2.AsyncClient
) -> None:
    for path in (
        "/hotel/conversations/evil/x",
        "/hotel/conversations/hotel1/none",
        "/hotel/dead/x",
    ):
        assert (await browser.get(path)).status_code == 404
    evil = {"origin": "http://evil.example"}
    fields = {"hotel": "hotel1", "enabled": "0"}
    forged = await browser.post("/hotel/bots", data=fields, headers=evil)
    assert forged.status_code == 403
    wrong = await send(browser, "/hotel", "/hotel/bots", hotel="hotel1")
    assert wrong.status_code == 422
