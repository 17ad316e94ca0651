"""The dashboard as a person uses it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from relevo.ids import new_id
from relevo.job import NewJob, State
from relevo.store import EffectState, QueueMode
from relevo.testing import deliver
from tests.browser.conftest import PASSWORD, Program, Reader, program, reading
from tests.browser.fill import BOOK, CHARGE, READ, SAVE, SCRIPT, WELCOME, Filled
from tests.conformance.steps import add, state

pytestmark = pytest.mark.xdist_group("browser")


def places(some: Filled) -> list[str]:
    return [
        "/",
        "/search",
        "/search?q=nobody-knows-this",
        f"/threads/{some.thread}",
        "/deliveries",
        f"/deliveries/{some.delivery}",
        "/queues",
        f"/queues/{BOOK}",
        "/jobs",
        "/jobs?state=dead",
        "/jobs/bulk?state=dead",
        f"/jobs/{some.dead}",
        f"/jobs/{some.held}",
        f"/jobs/{some.running}",
        "/dead",
        f"/dead/{some.group}",
        "/flows",
        f"/flows/{some.flow}",
        "/groups",
        f"/groups/{some.job_group}",
        "/events",
        f"/events/{some.event}",
        "/breakers",
        "/recurring",
        "/workers",
        "/effects",
        "/usage",
        "/audit",
    ]


LOOKS = """() => new Promise(done => {
  let looks = 0;
  new EventSource("/live").addEventListener("look", () => { if (++looks === 2) done(); });
})"""
SWAP = "() => new Promise(done => addEventListener('htmx:after:swap', () => done(), {once: true}))"


def choose(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).first.click()


def test_every_page_opens_without_a_complaint(reader: Reader, shop: Program) -> None:
    for path in places(shop.some):
        page = reader.go(path)
        expect(page.locator("h1")).not_to_be_empty()
        expect(page.locator("#freeze")).to_be_visible()
    reader.go("/")
    expect(page.locator(".plot canvas")).to_have_count(2)


def test_no_page_is_wider_than_a_telephone(browser: Browser, shop: Program) -> None:
    wide = "all => all.filter(one => one.scrollWidth > one.clientWidth).length"
    with reading(browser, shop.url, viewport={"width": 390, "height": 800}) as reader:
        for path in [*places(shop.some), "/api/docs"]:
            page = reader.go(path)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
            assert page.locator(".scroll:not(.drawing)").evaluate_all(wide) == 0, path


def test_a_cell_on_a_telephone_says_what_it_is(browser: Browser, shop: Program) -> None:
    said = "cell => getComputedStyle(cell, '::before').content"
    with reading(browser, shop.url, viewport={"width": 390, "height": 800}) as reader:
        page = reader.go("/dead?lang=es")
        cells = page.locator("tbody tr").first.locator("td")
        words = ["Trabajos", "Fallo", "Cola", "Primera", "Última"]
        assert cells.evaluate_all(f"all => all.map({said})")[:5] == [f'"{word}"' for word in words]
        page.evaluate(SWAP)
        assert cells.nth(1).evaluate(said) == '"Fallo"'


LEFTS = "cells => cells.map(cell => Math.round(cell.getBoundingClientRect().left))"
BOTTOMS = "fields => fields.map(field => Math.round(field.getBoundingClientRect().bottom))"


def test_the_cells_of_a_row_stand_in_line_on_a_telephone(browser: Browser, shop: Program) -> None:
    with reading(browser, shop.url, viewport={"width": 390, "height": 800}) as reader:
        page = reader.go("/jobs")
        cells = page.locator("tbody tr").first.locator("td:nth-child(n+3):visible")
        assert len(set(cells.evaluate_all(LEFTS))) == 1
        for field in page.locator(".filters > label > *").all():
            box = field.bounding_box()
            assert box is not None and box["width"] > 300


@pytest.mark.parametrize("locale", ["en-GB", "es-AR"])
@pytest.mark.parametrize("path", ["/jobs", "/deliveries"])
def test_the_fields_of_a_filter_stand_in_line(
    browser: Browser, shop: Program, path: str, locale: str
) -> None:
    wide = {"width": 1440, "height": 800}
    with reading(browser, shop.url, viewport=wide, locale=locale) as reader:
        fields = reader.go(path).locator(".filters > label > :is(input, select)")
        assert len(set(fields.evaluate_all(BOTTOMS))) == 1


def test_a_drawn_node_keeps_its_words_inside(browser: Browser, tmp_path: Path) -> None:
    flow = new_id()
    job = NewJob(
        id=new_id(), queue=SAVE, kind="W" * 60, payload=b"{}", flow=flow, node="W" * 60, bundle=flow
    )
    beside = """box => {
      const { right, top } = box.getBoundingClientRect();
      return [23, 40].some(y => document.elementFromPoint(right + 4, top + y)?.closest(".node"));
    }"""
    with program(tmp_path, is_filled=False) as made:
        made.do(made.relevo.store.insert([job]))
        with reading(browser, made.url) as reader:
            box = reader.go(f"/flows/{flow}").locator(".node rect").first
            assert box.evaluate(beside) is False


@pytest.mark.parametrize("locale", ["en-GB", "es-ES"])
def test_a_wide_screen_shows_tables_whole(browser: Browser, shop: Program, locale: str) -> None:
    with reading(
        browser, shop.url, viewport={"width": 1440, "height": 800}, locale=locale
    ) as reader:
        lists = ("queues", "jobs", "dead", "effects", "workers", "recurring", "flows", "deliveries")
        for path in (*lists, "audit", "breakers"):
            wide = "all => all.filter(one => one.scrollWidth > one.clientWidth).length"
            assert reader.go(f"/{path}").locator(".scroll").evaluate_all(wide) == 0, path


FAINT = """() => {
  const numbers = text => text.match(/[\\d.]+/g).map(Number);
  const light = colour => colour.slice(0, 3)
    .map(part => part / 255)
    .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0.05);
  const ground = place => {
    const colour = numbers(getComputedStyle(place).backgroundColor);
    return (colour[3] ?? 1) > 0.9 || !place.parentElement ? colour : ground(place.parentElement);
  };
  const found = new Set(), texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const place = texts.currentNode.parentElement, ink = getComputedStyle(place).color;
    if (!texts.currentNode.data.trim() || !place.offsetParent || !ink.startsWith("rgb")) continue;
    const [dark, bright] = [light(numbers(ink)), light(ground(place))].sort((a, b) => a - b);
    if (bright / dark < 4.5) found.add(`${place.className}: ${texts.currentNode.data.trim()}`);
  }
  return [...found];
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_stands_out_from_its_ground(
    browser: Browser, shop: Program, theme: Literal["light", "dark"]
) -> None:
    with reading(browser, shop.url, color_scheme=theme) as reader:
        for path in ("/", "/queues", f"/jobs/{shop.some.held}", "/dead", "/effects", "/usage"):
            assert reader.go(path).evaluate(FAINT) == [], path


def test_a_long_name_pushes_nothing_out_of_sight(browser: Browser, tmp_path: Path) -> None:
    queue = f"cars:{'supplier-' * 7}:{'booking' * 8}"
    with program(tmp_path, is_filled=False) as made:
        job = NewJob(id=new_id(), queue=queue, kind="Book" * 20, payload=b"{}", key="k" * 400)
        made.do(made.relevo.store.insert([job]))
        for width in (390, 1440):
            with reading(browser, made.url, viewport={"width": width, "height": 800}) as reader:
                for path in ("/", "/jobs", "/queues", f"/queues/{queue}", f"/jobs/{job.id}"):
                    page = reader.go(path)
                    assert page.evaluate("document.documentElement.scrollWidth") <= width, path
                for path in ("/queues", "/jobs") if width > 390 else ("/queues",):
                    # In one step: between two, the page may draw its table anew.
                    page = reader.go(path)
                    end = page.evaluate(
                        "document.querySelector('td .badge').getBoundingClientRect().right"
                    )
                    assert end <= width, path


def test_no_text_of_others_is_ever_run(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """C11"""
    folder = tmp_path_factory.mktemp("hostile")
    with program(folder, hostile=True) as shop, reading(browser, shop.url) as reader:
        seen: set[str] = set()
        for path in [*places(shop.some), "/breakers/one?name=reader"]:
            text = reader.go(path).locator("body").inner_text()
            seen |= {path} if "onerror=alert(1)" in text else set()
        assert reader.dialogs == []
        assert reader.complaints == []
        shown = {re.sub(r"[0-9a-f]{12,}", "*", path) for path in seen}
        assert shown >= {
            "/",
            "/threads/*",
            "/deliveries",
            "/deliveries/*",
            "/jobs?state=dead",
            "/jobs/*",
            "/dead",
            "/dead/*",
            "/flows/*",
            "/groups/*",
            "/events/*",
            "/breakers",
            "/recurring",
            "/workers",
            "/effects",
            "/audit",
        }
        page = reader.go(f"/jobs/{shop.some.dead}")
        expect(page.locator(".error")).to_contain_text(SCRIPT)
        expect(page.locator(".facts")).to_contain_text(SCRIPT)


def test_a_dead_job_is_edited_and_retried(reader: Reader, shop: Program) -> None:
    page = reader.go(f"/jobs/{shop.some.dead}")
    page.locator("#edit summary").click()
    page.get_by_role("checkbox", name="its command is not known here").check()
    payload = page.locator("textarea[name=payload]")
    payload.fill(payload.input_value().replace("sub_6", "sub_99"))
    choose(page, "Save")
    expect(page.locator(".said")).to_have_text("The job is changed and ready again.")
    expect(page.locator(".payload").first).to_contain_text("sub_99")
    assert shop.do(state(shop.relevo.store, shop.some.dead)) is State.READY
    page.locator(".acts input[name=note]").fill("never mind")
    choose(page, "Cancel")
    expect(page.locator(".said")).to_have_text("The job is cancelled.")
    assert reader.dialogs == ["End this job for good?"]


def test_a_group_of_dead_letters_is_retried(reader: Reader, shop: Program) -> None:
    page = reader.go("/dead")
    row = page.get_by_role("row").filter(has_text="card_declined")
    many = int(row.locator("td").first.inner_text())
    row.get_by_role("link", name="Retry…").click()
    expect(page.locator(".bignumber")).to_contain_text(f"{many} would be retried")
    page.locator("input[name=rate]").fill("200/s")
    choose(page, f"Retry {many} jobs")
    expect(page.locator(".bignumber")).to_contain_text(f"{many} of {many} jobs")
    expect(page.locator(".badge", has_text="over")).to_be_visible()
    assert State.DEAD not in shop.do(shop.relevo.desk.queue(CHARGE)).counts


def test_a_queue_is_paused_and_resumed(reader: Reader, shop: Program) -> None:
    page = reader.go("/queues")
    row = page.get_by_role("row").filter(has_text=WELCOME)
    row.get_by_role("button", name="Resume").click()
    expect(page.locator(".said")).to_contain_text(f"{WELCOME} is open.")
    expect(row.get_by_role("button", name="Pause")).to_be_visible()
    row.get_by_role("link", name=WELCOME).click()
    choose(page, "Pause")
    expect(page.locator(".said")).to_contain_text("is paused")
    assert shop.do(shop.relevo.desk.queue(WELCOME)).mode is QueueMode.PAUSED


def test_ticked_jobs_are_cancelled(reader: Reader, shop: Program) -> None:
    page = reader.go(f"/jobs?queue={WELCOME}&state=ready")
    page.locator("th input[type=checkbox]").check()
    expect(page.locator("td input:checked")).to_have_count(3)
    choose(page, "Cancel")
    expect(page.locator(".said")).to_have_text("Changed: 3 of 3.")


def test_nobody_discards_without_saying_why(reader: Reader, shop: Program) -> None:
    page = reader.go(f"/jobs?state=dead&queue={READ}")
    page.locator("tbody input[name=id]").first.check()
    for _ in range(2):  # the list, and then the page of one
        place = page.url
        choose(page, "Discard")
        note = page.locator("input[name=note]").first
        expect(note).to_be_focused()
        assert note.evaluate("note => note.matches(':invalid')")
        assert page.url == place
        if "?" in place:
            page.locator("tbody a").first.click()
            page.wait_for_url("**/jobs/*")


def test_an_effect_is_decided(reader: Reader, shop: Program) -> None:
    page = reader.go("/")
    page.get_by_role("link", name=re.compile("One job is held")).click()
    page.get_by_role("link", name="Decide").first.click()
    page.locator("textarea[name=result]").fill('{"confirmation": "MX-1"}')
    choose(page, "It happened")
    expect(page.locator(".said")).to_have_text("It is written down, and the job goes on.")
    effect = shop.do(shop.relevo.desk.effect(shop.some.held, "book"))
    assert effect.state is EffectState.CONFIRMED


def test_a_delivery_is_rehearsed_and_let_in_again(reader: Reader, shop: Program) -> None:
    page = reader.go(f"/deliveries/{shop.some.delivery}")
    choose(page, "See what a replay would do…")
    expect(page.locator(".panel", has_text="Nothing is stored yet")).to_contain_text("BookAgain")
    expect(page.locator("#refused")).to_be_visible()  # its jobs have confirmed effects
    page.locator("input[name=effects]").check()
    choose(page, "Replay it")
    expect(page.locator(".said")).to_have_text("It was let in again, and one job came of it.")
    expect(page.locator(".scroll").last).to_contain_text("BookAgain")


def test_a_breaker_is_closed(reader: Reader, shop: Program) -> None:
    page = reader.go("/breakers/one?name=reader")
    choose(page, "Close it")
    expect(page.locator("h1")).to_contain_text("closed")
    assert shop.do(shop.relevo.desk.breaker("reader")).circuit.state == "closed"


def test_anything_is_found_with_the_keyboard_alone(reader: Reader, shop: Program) -> None:
    page = reader.go("/")
    page.keyboard.press("/")
    page.keyboard.type("MX-774120")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/threads/{shop.some.thread}")
    expect(page.locator(".timeline")).to_contain_text("supplier 28 answered 503")
    page.keyboard.press("g")
    page.keyboard.press("q")
    page.wait_for_url("**/queues")
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("f")
    expect(page.locator("#freeze")).to_have_attribute("aria-pressed", "true")


def test_pages_follow_what_happens_until_they_are_frozen(reader: Reader, shop: Program) -> None:
    page = reader.go(f"/queues/{SAVE}")
    ready = page.locator(".card", has_text="ready").locator("strong")
    before = int(ready.inner_text())
    shop.do(add(shop.relevo.store, SAVE))
    expect(ready).to_have_text(str(before + 1), timeout=8_000)
    choose(page, "live")
    expect(page.locator("#freeze")).to_have_text("frozen")
    with page.expect_response(re.compile("/live"), timeout=8_000):
        choose(page, "frozen")


def test_a_failed_delivery_is_seen_within_two_seconds(reader: Reader, shop: Program) -> None:
    """The hook of this program reads a field that the body does not have."""
    page = reader.go("/deliveries?state=failed")
    expect(page.locator("main")).not_to_contain_text("evt_unseen")
    answer = shop.do(deliver(shop.relevo, "/hooks/stripe", json={"id": "evt_unseen"}))
    assert answer.status == 200
    expect(page.locator("main")).to_contain_text("evt_unseen", timeout=2_000)
    page.goto(shop.url)
    expect(page.locator("main")).to_contain_text("KeyError", timeout=2_000)


def test_who_goes_by_keyboard_keeps_their_place(reader: Reader) -> None:
    page = reader.go("/queues")
    page.locator("#freeze").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    place = page.locator("#live a:focus")
    expect(place).to_have_count(1)
    page.evaluate(LOOKS)
    expect(place).to_have_count(1)


def test_the_menu_of_a_telephone_is_left_with_escape(browser: Browser, shop: Program) -> None:
    with reading(browser, shop.url, viewport={"width": 390, "height": 800}) as reader:
        page = reader.go("/queues")
        page.locator(".burger").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#menu")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("#menu")).to_be_hidden()
        expect(page.locator(".burger")).to_have_attribute("aria-expanded", "false")


def test_what_was_scrolled_stays_where_it_is(browser: Browser, shop: Program) -> None:
    with reading(browser, shop.url, viewport={"width": 390, "height": 800}) as reader:
        page = reader.go(f"/flows/{shop.some.flow}")
        drawing = page.locator(".drawing")
        drawing.evaluate("place => { place.scrollLeft = 300; }")
        page.evaluate(SWAP)
        assert drawing.evaluate("place => place.scrollLeft") == 300


def test_a_page_stays_when_the_store_is_away(browser: Browser, shop: Program) -> None:
    with reading(browser, shop.url) as reader:
        page = reader.go(f"/jobs/{shop.some.scheduled}")
        page.route("**/jobs/*", lambda route: route.fulfill(status=503, body="<p>away"))
        with page.expect_response(lambda answer: answer.status == 503, timeout=8_000):
            pass
        expect(page.locator(".payload").first).to_contain_text("later")
        assert "away" not in page.locator("main").inner_text()


def test_language_and_theme_are_remembered(reader: Reader) -> None:
    page = reader.go("/queues")
    page.get_by_role("link", name="es", exact=True).click()
    expect(page.locator("h1")).to_have_text("Colas")
    reader.go("/dead")
    expect(page.locator("h1")).to_have_text("Cartas muertas")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.locator("[data-theme-toggle]").click()
    reader.go("/")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    assert page.locator("html").get_attribute("data-theme") == "dark"


def test_nothing_yet_teaches(browser: Browser, tmp_path: Path) -> None:
    with program(tmp_path, is_filled=False) as shop, reading(browser, shop.url) as reader:
        for path in ("/", "/queues", "/jobs", "/dead", "/flows", "/workers", "/recurring"):
            expect(reader.go(path).locator("code").first).to_be_visible()
        assert reader.complaints == []


def test_nobody_acts_without_a_login_or_from_elsewhere(browser: Browser, tmp_path: Path) -> None:
    """C10, C12, C13"""
    with program(tmp_path, password=PASSWORD) as shop, reading(browser, shop.url) as reader:
        page = reader.go("/dead")
        page.wait_for_url("**/login?next=/dead")
        page.get_by_label("Name").fill("admin")
        page.get_by_label("Password").fill(PASSWORD)
        choose(page, "Log in")
        page.wait_for_url("**/dead")
        place = f"{shop.url}/jobs/{shop.some.dead}/retry"
        for headers in ({"origin": "https://evil.example"}, {"origin": shop.url}):
            answer = page.request.post(place, form={"note": "x"}, headers=headers)
            assert answer.status == 403
        # A page of someone else cannot even send the cookie.
        page.route("https://evil.example/", lambda route: route.fulfill(body="<p>hi"))
        page.goto("https://evil.example/")
        page.evaluate(
            "place => { const f = document.createElement('form'); f.method = 'post';"
            " f.action = place; document.body.append(f); f.submit(); }",
            place,
        )
        page.wait_for_url(f"{shop.url}/**")
        assert shop.do(state(shop.relevo.store, shop.some.dead)) is State.DEAD
        reader.go("/dead")
        choose(page, "Log out")
        page.wait_for_url("**/login")
        assert "/login" in reader.go("/dead").url
