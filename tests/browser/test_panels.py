"""The systems' own pages as a person sees them, in two languages, with the texts of strangers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from relevo.apps import cars, hotel, razworks, subscriptions
from relevo.apps.hotel.webhooks import PATH
from relevo.apps.razworks.cortex.queues import cortex
from relevo.apps.razworks.records import add_recording, add_user, follow
from relevo.apps.subscriptions.records import Records, add_job
from relevo.engine import Relevo
from relevo.ids import new_id
from relevo.simulators import environment
from relevo.simulators.beds24 import secret_of, version2
from relevo.simulators.traffic.cars import wishes
from relevo.testing import deliver
from tests.browser.conftest import Program, Reader, reading

pytestmark = pytest.mark.xdist_group("browser")

EVIL = "Ana <script>alert(1)</script>"
PAGES = ["/cars", "/hotel", "/hotel/reservations", "/hotel/events", "/hotel/conversations"]
PAGES += ["/subscriptions", "/razworks"]


class Street(Program):
    """Four systems with something in each; their providers do not answer, and are not called."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, hostile=False, is_filled=False)
        four = [cars.app, hotel.app, razworks.app, subscriptions.app]
        self.relevo = Relevo(f"sqlite:///{folder / 'relevo.db'}", apps=four)
        self.recording = ""

    async def write(self) -> None:
        booking: dict[str, Any] = {"id": 77, "status": "new", "firstName": EVIL, "guestId": 1}
        said = {"id": 5, "bookingId": 77, "source": "guest", "message": EVIL, "read": False}
        said["time"] = "2026-11-01T10:00:00Z"
        answer = await deliver(
            self.relevo,
            PATH,
            json=version2({**booking, "modifiedTime": "2026-11-01T10:00:00Z"}, [said]),
            query="hotelId=hotel999",
            headers={"x-relevo-secret": secret_of("hotel999")},
            sign=False,
        )
        assert answer.status == 200, answer.body
        job = {"id": new_id(), "event_id": "evt_1", "subscription_id": "sub_1"}
        about = {"email": "ana@example.com", "name": EVIL, "plan": "Pro", "currency": "eur"}
        async with self.relevo.transaction() as tx:
            await add_job(tx, {**job, **about, "amount": 4900})
            user = await add_user(tx, "ana@example.com", EVIL, "twelve letters at least")
            assert user is not None
            url = "https://storage.razworks.example/a.ogg"
            self.recording = await add_recording(tx, user, url, "audio/ogg")
            started = await self.relevo.start(cortex(self.recording), tx=tx)
            await follow(tx, self.recording, started.id)


@pytest.fixture(scope="module")
def street(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Street]:
    before = dict(os.environ)
    os.environ.update(environment("http://127.0.0.1:9"))
    os.environ.pop("RELEVO_ADMIN_PASSWORD", None)
    try:
        with Street(tmp_path_factory.mktemp("street")).running() as made:
            assert isinstance(made, Street)
            made.do(made.write())
            yield made
    finally:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture
def reader(browser: Browser, street: Street) -> Iterator[Reader]:
    with reading(browser, street.url) as made:
        yield made
        assert made.complaints == made.dialogs == []


@pytest.mark.parametrize("language", ["en", "es"])
def test_every_page_opens_without_a_complaint(reader: Reader, language: str) -> None:
    for path in PAGES:
        page = reader.go(f"{path}?lang={language}")
        assert page.locator("html").get_attribute("lang") == language
        expect(page.locator("h1")).to_be_visible()


def test_no_page_is_wider_than_a_telephone(browser: Browser, street: Street) -> None:
    wide = "all => all.filter(one => one.scrollWidth > one.clientWidth).length"
    with reading(browser, street.url, viewport={"width": 390, "height": 800}) as reader:
        for path in [*PAGES, f"/razworks/recordings/{street.recording}"]:
            page = reader.go(path)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
            assert page.locator(".scroll:not(.drawing)").evaluate_all(wide) == 0, path


def test_support_reads_a_reservation(reader: Reader, street: Street) -> None:
    wish = next(wishes(1))
    made = reader.page.request.post(f"{street.url}/reservations", data=wish)
    assert made.status == 201, made.text()
    code = made.json()["reservation_code"]
    page = reader.go("/cars")
    page.get_by_role("link", name=code).click()
    expect(page.get_by_role("heading", name=code)).to_be_visible()
    expect(page.get_by_text("PENDING").first).to_be_visible()


def test_an_integration_is_ordered_again(reader: Reader, street: Street) -> None:
    page = reader.go("/subscriptions")
    expect(page.get_by_text(EVIL)).to_be_visible()
    page.get_by_role("button", name="Retry").first.click()
    expect(page.get_by_role("status")).to_contain_text("Ordered again")
    [job] = street.do(street.relevo.use(Records).jobs())
    assert not job.email_sent


def test_a_recording_s_flow_is_drawn(reader: Reader, street: Street) -> None:
    page = reader.go(f"/razworks/recordings/{street.recording}")
    expect(page.locator("svg .node")).to_have_count(4)
    expect(page.locator("svg").get_by_text("summarise")).to_be_visible()
    page.get_by_role("link", name="The whole flow").click()
    expect(page.get_by_role("heading", level=1)).to_be_visible()


def test_a_panel_stays_when_the_store_is_away(browser: Browser, street: Street) -> None:
    with reading(browser, street.url) as reader:
        page = reader.go(f"/razworks/recordings/{street.recording}")
        page.route("**/recordings/*", lambda route: route.fulfill(status=503, body="<p>away"))
        for _ in range(2):  # it asks again
            with page.expect_response(lambda answer: answer.status == 503):
                pass
        expect(page.locator("svg .node")).to_have_count(4)
