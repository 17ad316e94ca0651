"""The page of subscriptions: three flags each, and an integration ordered again by a person."""

import re
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx2
import pytest

from relevo import Relevo
from relevo.apps.subscriptions import app, records
from relevo.simulators import World
from relevo.testing import ManualClock, drain
from tests.apps.test_subscriptions import flags, subscribe


@pytest.fixture
async def relevo(tmp_path: Path, world: World, clock: ManualClock) -> AsyncGenerator[Relevo]:
    async with Relevo(f"sqlite:///{tmp_path / 'r.db'}", apps=[app], clock=clock) as engine:
        yield engine


async def test_an_empty_page_says_what_would_be_there(browser: httpx2.AsyncClient) -> None:
    assert "No subscription yet" in (await browser.get("/subscriptions")).text
    assert "Ninguna suscripción" in (await browser.get("/subscriptions?lang=es")).text


async def test_a_refused_letter_is_ordered_again_from_the_page(
    relevo: Relevo, world: World, browser: httpx2.AsyncClient
) -> None:
    world.faults.add("relay", "send", "refuse", times=1)
    await subscribe(relevo, 1)
    await drain(relevo)
    [job] = await relevo.use(records.Records).jobs()
    assert flags(job) == (False, True, True)
    page = (await browser.get("/subscriptions")).text
    action = f"/subscriptions/{job.id}/email/retry"
    assert action in page
    assert f"/subscriptions/{job.id}/list/retry" not in page

    assert (await browser.post(action)).status_code == 403  # without the page's own token
    token = re.search(r'name="csrf" content="(\w+)"', page)
    assert token is not None
    answer = await browser.post(action, data={"csrf": token[1]})
    assert answer.status_code == 303
    await drain(relevo)
    [job] = await relevo.use(records.Records).jobs()
    assert flags(job) == (True, True, True)
    assert world.ledger.count("relay") == 1
    audits, _ = await relevo.store.audits()
    ordered, decided = audits
    assert (ordered.verb, ordered.who) == ("retry", decided.who)
    assert (decided.before, decided.after) == ("refused", "refused")  # under a fresh key
    assert "Failed for good" not in (await browser.get("/subscriptions")).text


async def test_a_failed_integration_shows_as_failed_with_its_reason(
    relevo: Relevo, world: World, browser: httpx2.AsyncClient
) -> None:
    world.faults.add("relay", "send", "refuse", times=1)
    world.faults.add("sheets", "append", "refuse", times=1)
    await subscribe(relevo, 1)
    await drain(relevo)

    page = (await browser.get("/subscriptions")).text
    assert page.count('class="badge dead">failed') == 4  # beside its job, and in the list below
    assert "ProviderRefused" in page
    assert '<span class="badge waiting">' not in page
    assert "fallido" in (await browser.get("/subscriptions?lang=es")).text

    token = re.search(r'name="csrf" content="(\w+)"', page)
    assert token is not None
    answer = await browser.post("/subscriptions/failures/retry", data={"csrf": token[1]})
    assert answer.status_code == 303
    await drain(relevo)
    [job] = await relevo.use(records.Records).jobs()
    assert flags(job) == (True, True, True)
    assert world.ledger.count("relay") == world.ledger.count("sheets") == 1


async def test_a_held_letter_is_shown_as_held_and_not_retried(
    relevo: Relevo, world: World, browser: httpx2.AsyncClient
) -> None:
    world.faults.add("relay", "send", "lost", times=1)
    await subscribe(relevo, 1)
    await drain(relevo)
    [job] = await relevo.use(records.Records).jobs()

    page = (await browser.get("/subscriptions")).text
    assert 'class="badge held">held' in page
    assert "/effects?state=unknown" in page
    token = re.search(r'name="csrf" content="(\w+)"', page)
    assert token is not None
    answer = await browser.post(
        f"/subscriptions/{job.id}/email/retry?lang=es",
        data={"csrf": token[1]},
        headers={"accept": "text/html"},
    )
    assert answer.status_code == 409
    assert "puede que la llamada se haya hecho" in answer.text
    answer = await browser.post("/subscriptions/failures/retry", data={"csrf": token[1]})
    assert answer.status_code == 303
    await drain(relevo)
    assert world.ledger.count("relay") == 1


async def test_an_integration_that_is_none_is_not_found(browser: httpx2.AsyncClient) -> None:
    page = (await browser.get("/subscriptions")).text
    token = re.search(r'name="csrf" content="(\w+)"', page)
    assert token is not None
    for path in ("/subscriptions/x/email/retry", f"/subscriptions/{'0' * 32}/fax/retry"):
        assert (await browser.post(path, data={"csrf": token[1]})).status_code == 404
