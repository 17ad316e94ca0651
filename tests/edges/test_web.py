"""What all pages share: logging in and out, two languages, files, and the numbers."""

from __future__ import annotations

import ast
import asyncio
import hashlib
import importlib
import logging
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args
from urllib.parse import unquote_to_bytes

import httpx2
import pytest
from jinja2 import Environment, nodes

import relevo.web
from relevo.desk import Role
from relevo.errors import DefinitionError, SettingsError
from relevo.outcome import Outcome
from relevo.settings import Settings
from relevo.telemetry import JsonLines
from relevo.web import metrics
from relevo.web.auth import Throttle, check_binding
from relevo.web.people import IDLE, hashed, is_password
from relevo.web.room import span
from relevo.web.translate import Words, language_of
from relevo.web.visit import SESSION
from relevo.web.words import SPANISH
from tests.conformance.steps import add
from tests.edges.box import Box
from tests.edges.site import ACCEPT, HOOK, ORIGIN, PASSWORD, Site, token_of
from tests.servers.prometheus import promtool

FOLDER = Path(relevo.web.__file__).parent


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a password costs in earnest is measured once."""
    monkeypatch.setattr("relevo.web.people._N", 2**10)


async def log_in(
    browser: httpx2.AsyncClient, name: str = "admin", password: str = PASSWORD, **fields: str
) -> httpx2.Response:
    page = await browser.get("/login", headers=ACCEPT)
    found = re.search(r'name="csrf" value="([0-9a-f]{40})"', page.text)
    token = found[1] if found else ""
    filled = {"csrf": token, "name": name, "password": password, **fields}
    return await browser.post("/login", data=filled, headers={"origin": ORIGIN, **ACCEPT})


# coming in


async def test_the_admin_comes_in_with_the_password_of_the_settings(web: Site) -> None:
    """C13"""
    async with web.browser() as browser:
        answer = await log_in(browser, next="/api/docs")
        assert answer.status_code == 303 and answer.headers["location"] == "/api/docs"
        cookie = next(c for c in answer.headers.get_list("set-cookie") if c.startswith(SESSION))
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Secure" not in cookie
        assert (await browser.get("/api/me")).json()["name"] == "admin"
        assert (await browser.get("/login", headers=ACCEPT)).status_code == 303


@pytest.mark.parametrize("is_proxied", [False, True], ids=["to us", "to a proxy"])
async def test_over_https_the_cookies_stay_there(web: Site, is_proxied: bool) -> None:
    """C13"""
    headers = {"x-forwarded-proto": "https"} if is_proxied else {}
    scheme = "http" if is_proxied else "https"
    async with web.browser(base_url=f"{scheme}://127.0.0.1", headers=headers) as browser:
        page = await browser.get("/login", headers=ACCEPT)
        token = re.search(r'name="csrf" value="([0-9a-f]{40})"', page.text)
        assert token
        filled = {"csrf": token[1], "name": "admin", "password": PASSWORD}
        answer = await browser.post("/login", data=filled)
        for line in (*page.headers.get_list("set-cookie"), *answer.headers.get_list("set-cookie")):
            assert "Secure" in line


async def test_what_is_not_right_stays_out(web: Site) -> None:
    """C13"""
    await web.people.add("ana", "a password of ana", Role.OPERATOR, by="ann")
    async with web.browser() as browser:
        for name, password in (
            ("admin", PASSWORD + "x"),
            ("admin", ""),
            ("ana", PASSWORD),
            ("nobody", "a password of ana"),
            ("local", PASSWORD),
            ("ana\x00", "a password of ana"),
            ("x" * 10_000, "x" * 10_000),
        ):
            answer = await log_in(browser, name, password)
            assert answer.status_code == 401 and SESSION not in browser.cookies
            assert "role" in answer.text and "is not right" in answer.text
        assert (await log_in(browser, "ana", "a password of ana")).status_code == 303
        assert (await browser.get("/api/me")).json()["role"] == "operator"


@pytest.mark.parametrize(
    "there",
    [
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "/a//b",
        "javascript:x",
        "/x\n",
        "/?a=//b",
    ],
)
async def test_after_the_login_nobody_is_sent_elsewhere(web: Site, there: str) -> None:
    async with web.browser() as browser:
        assert (await log_in(browser, next=there)).headers["location"] == "/"


async def test_a_link_with_filters_survives_the_login(web: Site) -> None:
    there = "/jobs?state=dead&queue=cars%3Asuppliers%3Abook&text=a%20%26%20b"
    async with web.browser() as browser:
        away = await browser.get(there, headers=ACCEPT)
        page = await browser.get(away.headers["location"], headers=ACCEPT)
        asked = re.search(r'name="next" value="([^"]*)"', page.text)
        assert asked
        answer = await log_in(browser, next=unescape(asked[1]))

    assert answer.headers["location"] == there


async def test_a_login_begins_a_new_session_and_ends_the_old(web: Site) -> None:
    """C13"""
    async with web.browser() as browser:
        await log_in(browser)
        first = browser.cookies[SESSION]
        token = await token_of(browser)
        again = {"csrf": token, "name": "admin", "password": PASSWORD}
        answer = await browser.post("/login", data=again, headers={"origin": ORIGIN})
        assert answer.status_code == 303 and browser.cookies[SESSION] != first
        async with web.browser(cookies={SESSION: first}) as thief:
            assert (await thief.get("/api/me")).status_code == 401


async def test_a_session_fixed_by_someone_else_is_not_taken_over(web: Site) -> None:
    """C13"""
    async with web.browser(cookies={SESSION: "f" * 43}) as browser:
        assert (await log_in(browser)).status_code == 303
    async with web.browser(cookies={SESSION: "f" * 43}) as whoever_fixed_it:
        assert (await whoever_fixed_it.get("/api/me")).status_code == 401


async def test_logging_out_ends_it_for_whoever_has_the_cookie(web: Site) -> None:
    """C13"""
    async with web.browser() as browser:
        await log_in(browser)
        cookie = browser.cookies[SESSION]
        filled = {"csrf": await token_of(browser)}
        answer = await browser.post("/logout", data=filled, headers={"origin": ORIGIN})
        assert answer.headers["location"] == "/login" and SESSION not in browser.cookies
        said = await browser.get("/login", headers=ACCEPT)
        assert "You are out." in said.text
        assert "You are out." not in (await browser.get("/login", headers=ACCEPT)).text
        async with web.browser(cookies={SESSION: cookie}) as thief:
            assert (await thief.get("/api/me")).status_code == 401


async def test_an_idle_session_ends_and_a_used_one_goes_on(web: Site) -> None:
    """C13"""
    async with web.browser(Role.VIEWER) as used, web.browser(Role.OPERATOR) as idle:
        for _ in range(3):
            web.clock.advance("5h")
            assert (await used.get("/api/me")).status_code == 200
        assert (await idle.get("/api/me")).status_code == 401
    assert IDLE == 12 * 3_600_000


async def test_who_was_sent_away_or_got_another_password_is_out(web: Site) -> None:
    await web.people.add("ana", "a password of ana", Role.OPERATOR, by="ann")
    async with web.browser() as browser:
        await log_in(browser, "ana", "a password of ana")
        assert (await browser.get("/api/me")).status_code == 200
        await web.people.remove("ana", by="ann")
        assert (await browser.get("/api/me")).status_code == 401
        await web.people.add("ana", "another one of ana", Role.ADMIN, by="ann")
        assert (await browser.get("/api/me")).status_code == 401


async def test_too_many_attempts_are_held_back_for_a_minute(web: Site) -> None:
    """C13"""
    async with web.browser() as browser, web.browser(address="192.0.2.8") as elsewhere:
        for _ in range(5):
            assert (await log_in(browser, "admin", "wrong")).status_code == 401
        held = await log_in(browser)
        assert held.status_code == 429 and "Too many attempts" in held.text
        assert (await log_in(elsewhere)).status_code == 303
    async with web.browser(address="127.0.0.1") as proxy:
        for number in range(12):  # of many people, through one proxy
            proxy.headers["x-forwarded-for"] = f"198.51.100.{number}"
            assert (await log_in(proxy, "admin", "wrong")).status_code == 401
    async with web.browser() as browser:
        assert (await log_in(browser)).status_code == 429
        web.clock.advance("61s")
        assert (await log_in(browser)).status_code == 303


async def test_a_name_is_guessed_from_many_addresses_no_more_than_from_one(web: Site) -> None:
    """C13: an attack on one name from 40 addresses, then from 40 of one IPv6 network."""

    async def tried(addresses: list[str], name: str) -> list[int]:
        statuses: list[int] = []
        for address in addresses:
            async with web.browser(address=address) as browser:
                statuses.append((await log_in(browser, name, "wrong")).status_code)
        return statuses

    async with web.browser(address="192.0.2.77") as owner:
        assert (await log_in(owner)).status_code == 303
    from_all_over = [f"198.51.100.{number}" for number in range(40)]
    assert await tried(from_all_over, "admin") == [401] * 19 + [429] * 21  # the owner counted, too
    async with web.browser(address="203.0.113.9") as late:
        assert (await log_in(late)).status_code == 429  # the right password, too
    async with web.browser(address="192.0.2.77") as owner:
        assert (await log_in(owner)).status_code == 303  # who lives there is not kept out
    one_network = [f"2001:db8:1:2:{number:x}::1" for number in range(40)]
    assert await tried(one_network, "ana") == [401] * 5 + [429] * 35
    mapped = [f"::ffff:203.0.113.{number % 2}" for number in range(20)]
    assert await tried(mapped, "ben") == [401] * 10 + [429] * 10
    assert await tried(["2001:db8:1:3::1"], "ana") == [401]
    web.clock.advance("61s")
    assert await tried(["198.51.100.1"], "admin") == [401]


PROXY = "172.18.0.9"


@pytest.fixture
def behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site behind a proxy on another machine; named before the site."""
    monkeypatch.setenv("RELEVO_TRUSTED_PROXIES", "127.0.0.1,172.18.0.0/16")


async def tried(web: Site, peer: str, named: str, name: str, password: str = "") -> int:
    async with web.browser(address=peer, headers={"x-forwarded-for": named}) as browser:
        return (await log_in(browser, name, password)).status_code


@pytest.mark.usefixtures("behind")
async def test_thirty_wrong_logins_through_a_proxy_lock_out_nobody_else(web: Site) -> None:
    """C13: all visitors have the proxy's address, and are told apart by the one behind it."""
    guesses = [await tried(web, PROXY, "198.51.100.4", f"name{each}") for each in range(40)]
    assert guesses == [401] * 30 + [429] * 10
    assert await tried(web, PROXY, "198.51.100.5", "admin", PASSWORD) == 303
    guesses = [await tried(web, PROXY, "198.51.100.6", "admin") for _ in range(7)]
    assert guesses == [401] * 5 + [429] * 2
    assert await tried(web, PROXY, "198.51.100.5", "admin", PASSWORD) == 303


@pytest.mark.usefixtures("behind")
@pytest.mark.parametrize("peer", [PROXY, "203.0.113.66"], ids=["through it", "past it"])
async def test_a_forged_forwarded_address_brings_no_new_attempts(web: Site, peer: str) -> None:
    """C13: the client writes another address each time; the proxy appends the real one."""
    real = ", 203.0.113.66" if peer == PROXY else ""
    forged = ["198.51.100.9", "127.0.0.1", "::1", "nonsense", "10.0.0.1, 10.0.0.2", PROXY, "", "x"]
    guesses = [await tried(web, peer, f"{each}{real}", "admin") for each in forged]
    assert guesses == [401] * 5 + [429] * 3
    assert await tried(web, peer, f"127.0.0.1{real}", "admin", PASSWORD) == 429


async def test_a_locked_name_never_locks_out_this_machine(web: Site) -> None:
    """C13: with the right password; a forged address is not this machine."""
    for number in range(25):
        await tried(web, f"198.51.100.{number}", "", "admin")
    for peer, named in (("127.0.0.1", "127.0.0.1"), ("203.0.113.9", "127.0.0.1")):
        assert await tried(web, peer, named, "admin", PASSWORD) == 429
    async with web.browser(address="127.0.0.1") as here:
        for _ in range(35):
            assert (await log_in(here, "admin", "wrong")).status_code == 401
        assert (await log_in(here)).status_code == 303
    assert await tried(web, "203.0.113.10", "", "admin", PASSWORD) == 429


@pytest.mark.usefixtures("behind")
async def test_fail2ban_finds_the_real_address_of_a_refused_login(
    web: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """The filter on the page, on lines as they are logged, with a name that imitates one."""
    page = (FOLDER.parents[2] / "docs/guides/let-people-in.md").read_text()
    found = re.search(r"failregex = (.+)\n", page)
    dated = re.search(r"datepattern = (.+)\n", page)
    assert found and dated
    host = r"(?P<host>[0-9A-Fa-f.:]+)"
    failregex = re.compile(found[1].replace("<HOST>", host))
    datepattern = re.compile(dated[1].replace("%%Y-%%m-%%dT%%H:%%M:%%S", r"[\d-]{10}T[\d:]{8}"))
    imitation = '", "level": "warning", "logger": "relevo.web", "message": "login refused", "addre'
    names = ("ana", 'x", "address": "192.0.2.1', imitation, "\nlogin refused  address=192.0.2.1")
    with caplog.at_level(logging.INFO, "relevo.web"):
        for name in names:
            assert await tried(web, PROXY, "127.0.0.1, 198.51.100.4", name) == 401
        for _ in range(6):
            await tried(web, PROXY, "2001:db8::5", "ben")
        assert await tried(web, PROXY, "198.51.100.5", "admin", PASSWORD) == 303
    form = JsonLines()
    lines = [form.format(each) for each in caplog.records if each.name == "relevo.web"]
    assert len(lines) == len(names) + 6 + 1
    banned: list[str] = []
    for line in lines:
        for text in (line, datepattern.sub("", line)):  # fail2ban cuts the date out first
            match = failregex.search(text)
            banned += [match["host"]] if match else []
    assert banned == ["198.51.100.4"] * 2 * len(names) + ["2001:db8::5"] * 12


async def test_who_came_in_and_who_was_refused_is_in_the_audit(web: Site) -> None:
    await web.people.add("ana", "a password of ana", Role.OPERATOR, by="ann")
    token, _ = await web.people.add_token("ci", Role.VIEWER, by="ann")
    assert await tried(web, "192.0.2.7", "", "ana") == 401
    assert await tried(web, "192.0.2.7", "", "ana", "a password of ana") == 303
    assert await tried(web, "192.0.2.8", "", "my secret password") == 401
    for _ in range(3):
        async with web.browser(headers={"authorization": f"Bearer {token}"}) as program:
            assert (await program.get("/api/me")).status_code == 200
    async with web.browser(headers={"authorization": "Bearer rlv_wrong"}) as program:
        assert (await program.get("/api/me")).status_code == 401
    rows, _ = await web.relevo.store.audits()
    told = [(row.who, row.verb, row.target, row.note) for row in reversed(rows)]
    assert told[2:] == [
        ("ana", "login refused", "ana", "from 192.0.2.7"),
        ("ana", "log in", "ana", "from 192.0.2.7"),
        ("unknown", "login refused", "unknown", "from 192.0.2.8"),
        ("token/ci", "use token", "ci", "from 192.0.2.7; made by ann"),
        ("unknown", "token refused", "unknown", "from 192.0.2.7"),
    ]
    [ana], [ci] = await web.people.all(), await web.people.tokens()
    assert ana.seen_at and ci.seen_at


async def test_failed_logins_do_not_fill_the_audit(web: Site) -> None:
    """C38: five rows a minute, and the next one tells how many there were besides."""
    for number in range(30):
        await tried(web, f"198.51.100.{number}", "", "admin")
    web.clock.advance("61s")
    await tried(web, "198.51.100.1", "", "admin")
    rows, _ = await web.relevo.store.audits()
    assert len(rows) == 6
    assert rows[0].note == "from 198.51.100.1; 25 more were not written"
    assert {row.verb for row in rows} == {"login refused"}


async def test_another_password_ends_the_sessions_of_the_old_one(web: Site) -> None:
    await web.people.add("ana", "a password of ana", Role.OPERATOR, by="ann")
    async with web.browser() as browser:
        await log_in(browser, "ana", "a password of ana")
        assert (await browser.get("/api/me")).status_code == 200
        with pytest.raises(DefinitionError, match="12 to 256"):
            await web.people.change_password("ana", "short", by="ann")
        await web.people.change_password("ana", "another one of ana", by="ann")
        assert (await browser.get("/api/me")).status_code == 401
        assert (await log_in(browser, "ana", "a password of ana")).status_code == 401
        assert (await log_in(browser, "ana", "another one of ana")).status_code == 303
        assert (await browser.get("/api/me")).json()["role"] == "operator"


def test_what_is_remembered_of_attempts_is_bounded() -> None:
    """C38"""
    throttle = Throttle(5)
    for number in range(100_000):
        assert throttle.admit(f"name\n{number}", 0.0)
    assert len(throttle) <= 10_000


async def test_passwords_are_kept_by_scrypt(web: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """C13"""
    monkeypatch.undo()
    record = await hashed("a password of ana")
    assert record.startswith("scrypt$32768$8$1$") and "ana" not in record
    assert record != await hashed("a password of ana")
    assert await is_password("a password of ana", record)
    assert not await is_password("a password of anb", record)
    for weak in ("short", "aaaaaaaaaaaa", "x" * 11, "x" * 300):
        with pytest.raises(DefinitionError, match="12 to 256"):
            await web.people.add("ana", weak, Role.VIEWER, by="ann")
    for name in ("admin", "local", "", "A", "a b", "../x", "a\n", "x" * 65):
        with pytest.raises(DefinitionError):
            await web.people.add(name, "a password of ana", Role.VIEWER, by="ann")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "relevo.internal", ""])  # noqa: S104 - refused
def test_without_a_password_only_this_machine_is_listened_to(host: str) -> None:
    """C10"""
    with pytest.raises(SettingsError, match="RELEVO_ADMIN_PASSWORD"):
        check_binding(host, Settings.read({}))
    check_binding(host, Settings.read({"RELEVO_ADMIN_PASSWORD": PASSWORD}))
    for own in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        check_binding(own, Settings.read({}))


# pages


ROOMS = sorted(FOLDER.parent.rglob("words.py"))


def untranslated(folder: Path, *tables: Mapping[str, str]) -> list[str]:
    """What is said in a folder's templates and Python files without a word of Spanish for it."""
    known = {text for table in tables for text in table}
    said = {text for path in sorted(folder.rglob("*.*")) for text in _said(path)}
    return sorted(said - known)


def _said(path: Path) -> Iterator[str]:
    if path.suffix == ".html":
        tree = Environment(autoescape=True).parse(path.read_text())
        for call in tree.find_all(nodes.Call):
            name = getattr(call.node, "name", getattr(call.node, "attr", ""))
            if name == "_" and call.args and isinstance(call.args[0], nodes.Const):
                yield str(call.args[0].value)
    elif path.suffix == ".py":
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args:
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                first = node.args[0]
                if name == "_" and isinstance(first, ast.Constant) and isinstance(first.value, str):
                    yield first.value


@pytest.mark.parametrize("words", ROOMS, ids=[path.parent.name for path in ROOMS])
def test_everything_that_is_said_is_said_in_spanish(words: Path) -> None:
    name = ".".join(words.with_suffix("").relative_to(FOLDER.parents[1]).parts)
    table: dict[str, str] = importlib.import_module(name).SPANISH
    assert untranslated(words.parent, table, SPANISH) == []
    for english, spanish in table.items():
        assert re.findall(r"\{(\w+)", english) == re.findall(r"\{(\w+)", spanish)


@pytest.mark.parametrize(
    ("chosen", "accepted", "language"),
    [
        (None, "", "en"),
        (None, "es-MX,es;q=0.9,en;q=0.8", "es"),
        (None, "fr,es;q=0.5", "es"),
        ("en", "es", "en"),
        ("xx", "es", "es"),
        ("../es", "," * 100_000, "en"),
    ],
)
def test_a_person_is_spoken_to_in_their_language(chosen: str, accepted: str, language: str) -> None:
    assert language_of(chosen, accepted) == language


async def test_language_and_theme_are_remembered(web: Site) -> None:
    async with web.browser() as browser:
        page = (await browser.get("/login?lang=es&theme=dark", headers=ACCEPT)).text
        assert '<html lang="es" data-theme="dark">' in page and "Contraseña" in page
        assert "Contraseña" in (await browser.get("/login", headers=ACCEPT)).text
        assert 'lang="en"' in (await browser.get("/login?lang=en", headers=ACCEPT)).text
        odd = (await browser.get('/login?lang="><script>&theme=x"y', headers=ACCEPT)).text
        assert "<script>" not in odd and 'data-theme="dark"' not in odd


async def test_what_others_wrote_is_shown_and_not_obeyed(web: Site) -> None:
    """C11"""
    nasty = '"><script>alert(1)</script>'
    async with web.browser() as browser:
        answer = await log_in(browser, nasty, "x" * 20)
        assert "<script>alert" not in answer.text and "&lt;script&gt;" in answer.text
    async with web.browser(Role.ADMIN) as admin:
        page = await admin.get(f"/api/nowhere/{nasty}", headers=ACCEPT)
        assert "<script>alert" not in page.text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (950, "950 ms"),
        (42_000, "42 s"),
        (3_900_000, "1 h 5 min"),
        (90_061_000, "1 d 1 h"),
    ],
)
def test_a_length_of_time_is_said_shortly(ms: int, text: str) -> None:
    assert span(ms) == text


async def test_a_page_under_a_prefix_leads_to_pages_there(web: Site) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    app = Starlette(routes=[Mount("/ops", app=web.app)])
    transport = httpx2.ASGITransport(app, client=("192.0.2.7", 1))
    async with httpx2.AsyncClient(transport=transport, base_url=ORIGIN) as browser:
        away = await browser.get("/ops/api/docs", headers=ACCEPT)
        assert away.headers["location"] == "/ops/login?next=/api/docs"
        page = await browser.get("/ops/login", headers=ACCEPT)
        assert 'action="/ops/login"' in page.text
        sheet = re.search(r'href="(/ops/static/relevo.css\?v=\w+)"', page.text)
        assert sheet and (await browser.get(sheet[1])).status_code == 200
        token = re.search(r'name="csrf" value="([0-9a-f]{40})"', page.text)
        assert token
        filled = {"csrf": token[1], "name": "admin", "password": PASSWORD, "next": "/api/docs"}
        inside = await browser.post("/ops/login", data=filled, headers={"origin": ORIGIN})
        assert inside.headers["location"] == "/ops/api/docs"
        assert "Path=/ops/" in inside.headers["set-cookie"]
        assert (await browser.get("/ops/api/me")).json()["name"] == "admin"


# files


async def test_files_are_served_with_their_type_and_may_be_kept(web: Site) -> None:
    async with web.browser() as browser:
        page = (await browser.get("/login", headers=ACCEPT)).text
        found = re.findall(r'"(/static/[^"]+)"', page)
        assert len(found) >= 5
        for path in found:
            answer = await browser.get(path)
            assert answer.status_code == 200 and "immutable" in answer.headers["cache-control"]
        plain = await browser.get("/static/relevo.css")
        assert plain.headers["content-type"] == "text/css; charset=utf-8"
        mark = {"if-none-match": plain.headers["etag"]}
        assert (await browser.get("/static/relevo.css", headers=mark)).status_code == 304


CLIMBING = (
    "/static/../web.py",
    "/static/%2e%2e/web.py",
    "/static/..%2fweb.py",
    "/static/%2e%2e%2f%2e%2e%2fengine.py",
    "/static//etc/passwd",
    "/static/relevo.css%00.js",
    "/static/relevo.css/",
    "/static/relevo.css;x",
    "/static/%c0%ae%c0%ae/web.py",
    "/static/",
    "/static",
    "/static/..",
)


async def test_nothing_but_the_files_is_ever_served(web: Site) -> None:
    """B14, C36"""
    for path in CLIMBING:
        # As it is: a browser would tidy the path up before it is sent.
        assert await _status(web, path.encode()) == 404, path


async def _status(web: Site, raw: bytes) -> int:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": unquote_to_bytes(raw).decode(errors="replace"),
        "raw_path": raw,
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"127.0.0.1:8700")],
        "client": ("192.0.2.7", 1),
        "server": ("127.0.0.1", 8700),
    }
    await web.app(scope, receive, send)
    return sent[0]["status"]


def test_files_of_others_are_as_they_were_published() -> None:
    """C39"""
    lines = (FOLDER / "static" / "VENDORED.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "|" in line][2:]
    assert {row[0] for row in rows} == {path.name for path in (FOLDER / "static").glob("*.min.*")}
    for name, _, licence, digest in rows:
        assert hashlib.sha256((FOLDER / "static" / name).read_bytes()).hexdigest() == digest
        assert (FOLDER / "static" / licence.split(", ")[1]).is_file()


# numbers


async def test_prometheus_gets_numbers_and_no_names_of_people(web: Site) -> None:
    """C42"""
    await add(web.relevo.store, "cars:suppliers:book", payload=b'{"email":"ana@example.com"}')
    token, _ = await web.people.add_token("prometheus", Role.VIEWER, by="ann")
    async with web.browser(headers={"authorization": f"Bearer {token}"}) as scraper:
        for secret, status in ((HOOK, 200), (HOOK, 200), ("wrong", 401)):
            sent = {"json": {"id": "evt_1", "code": "RES-1"}, "headers": {"x-secret": secret}}
            assert (await scraper.post("/hooks/cars", **sent)).status_code == status
        answer = await scraper.get("/metrics")
        for outcome in ("taken", "repeated", "forged"):
            assert f'relevo_deliveries_total{{outcome="{outcome}"}} 1.0' in answer.text
        for state, count in (("accepted", 1), ("refused", 1), ("failed", 0)):
            labels = f'endpoint="cars:/hooks/cars",state="{state}"'
            assert f"relevo_endpoint_deliveries_total{{{labels}}} {count}.0" in answer.text
        assert answer.headers["content-type"].startswith("text/plain")
        assert 'relevo_jobs{queue="cars:suppliers:book",state="ready"} 2.0' in answer.text
        for name in (
            "relevo_queue_oldest_seconds",
            "relevo_queue_late_seconds",
            "relevo_queue_mode",
            "relevo_workers",
            "relevo_outbox_lag_seconds",
            "relevo_jobs_settled_total",
            "relevo_deliveries_total",
            "relevo_endpoint_deliveries_total",
            "relevo_deliveries_unhandled",
            "relevo_info",
        ):
            assert f"# TYPE {name}" in answer.text
        assert "ana@" not in answer.text
    some, _ = await web.people.add_token("some", Role.ADMIN, apps=("cars",), by="ann")
    async with web.browser(headers={"authorization": f"Bearer {some}"}) as tenant:
        assert (await tenant.get("/metrics")).status_code == 403
    async with web.browser(address="127.0.0.1") as here:
        assert (await here.get("/metrics")).status_code == 200
        for named in ("203.0.113.5", "127.0.0.1"):
            behind = {"x-forwarded-for": named}
            assert (await here.get("/metrics", headers=behind)).status_code == 401
    async with web.browser(Role.VIEWER) as person:
        assert (await person.get("/metrics")).status_code == 200


async def test_prometheus_finds_no_fault_with_the_numbers(
    web: Site,
) -> None:
    await add(web.relevo.store, "cars:suppliers:book")
    async with web.browser(address="127.0.0.1") as here:
        told = (await here.get("/metrics")).content
    read = await asyncio.to_thread(
        subprocess.run,
        [promtool(), "check", "metrics"],
        input=told,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
    )
    assert (read.returncode, read.stdout) == (0, b"")


async def test_whatever_is_counted_begins_at_nought(web: Site) -> None:
    """Of a series that begins at 1 Prometheus does not see the first."""
    async with web.browser(address="127.0.0.1") as here:
        told = (await here.get("/metrics")).text
    texts = [path.read_text() for path in FOLDER.parent.rglob("*.py")]
    source = "".join(text for text in texts if ".counts[" in text)
    outcomes = set(re.findall(r'"delivery_(\w+)"', source))
    events = set(re.findall(r'\.counts\["(?!delivery_)(\w+)"\]', source)) - {"settled"}
    events |= {each.__name__.lower() for each in get_args(Outcome)} - {
        "done",
        "again",
        "postponed",
    }  # postponed is counted as snooze
    assert "taken" in outcomes and {"rescued", "dead"} <= events
    for name, label, values in (
        ("deliveries", "outcome", outcomes),
        ("events", "what", events),
    ):
        found = re.findall(rf'^relevo_{name}_total{{{label}="(\w+)"}} 0\.0$', told, re.M)
        assert set(found) == values


async def test_many_who_ask_at_once_ask_the_store_once(
    web: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    tally = web.relevo.store.tally

    async def counted() -> Any:
        nonlocal asked
        asked += 1
        return await tally()

    monkeypatch.setattr(web.relevo.store, "tally", counted)
    now = 1_000.0
    monkeypatch.setattr(metrics, "time", SimpleNamespace(monotonic=lambda: now, time=time.time))
    async with web.browser(address="127.0.0.1") as here:
        for _ in range(5):
            assert (await here.get("/metrics")).status_code == 200
        assert asked == 1
        now += metrics.FRESH
        assert (await here.get("/metrics")).status_code == 200
    assert asked == 2


# the command line


def test_people_and_tokens_are_made_by_the_program(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    def typed(text: str) -> None:
        monkeypatch.setattr("relevo.cli.people.read_stdin", lambda most: text)
        monkeypatch.setattr("relevo.cli.people.sys.stdin.isatty", lambda: False)

    typed("a password of ana\n")
    assert box("people", "add", "ana", "--role", "operator", "--app", "cars").code == 0
    [ana] = box("people", "ls", "--json").json
    assert (ana["name"], ana["role"], ana["apps"]) == ("ana", "operator", ["cars"])
    assert "password" not in ana
    assert ana["seen_at"] is None and "never" in box("people", "ls").out
    unknown = box("people", "add", "ben", "--app", "cars", "--app", "carz")
    assert unknown.code == 2 and "no app is called 'carz': there are " in unknown.err
    assert "cars" in unknown.err and [
        each["name"] for each in box("people", "ls", "--json").json
    ] == ["ana"]
    assert box("people", "add", "ben", "--app", "shop").code == 2
    monkeypatch.setenv("RELEVO_APPS", "shop")
    assert box("people", "add", "ben", "--app", "shop").code == 0
    assert box("tokens", "add", "ci", "--app", "carz").code == 2
    assert box("people", "passwd", "ana").code == 0
    assert box("people", "passwd", "olli").code == 1
    assert box("people", "rm", "ben").code == 0
    again = box("people", "add", "ana")
    assert again.code == 2 and "known already" in again.err
    typed("short\n")
    assert box("people", "add", "olli").code == 2
    typed("two\nlines\n")
    assert box("people", "add", "olli").code == 2
    assert box("people", "rm", "ana").code == 0
    assert box("people", "rm", "ana").code == 1
    made = box("tokens", "add", "ci", "--role", "viewer", "--expires", "1h")
    assert re.fullmatch(r"rlv_[\w-]{43}\n", made.out)
    listed = box("tokens", "ls", "--json")
    assert [each["name"] for each in listed.json] == ["ci"] and "rlv_" not in listed.out
    assert box("tokens", "add", "ci").code == 2
    assert box("tokens", "rm", "ci").code == 0
    assert box("tokens", "rm", "ci").code == 1


async def test_what_is_drawn_and_watched_is_there_to_be_measured(web: Site) -> None:
    root = Path(__file__).parents[2]
    guide = (root / "docs/guides/measure-it.md").read_text()
    async with web.browser(address="127.0.0.1") as here:
        told = set(re.findall(r"^# TYPE (\w+)", (await here.get("/metrics")).text, re.M))
    told |= {"relevo_store_commands_total"}  # of a store that bills by them
    for page in ("relevo.json", "alerts.yaml"):
        used = set(re.findall(r"\b(relevo_\w+)\b", (root / "deploy/grafana" / page).read_text()))
        assert used and used <= told, used - told
    assert {name for name in told if name.startswith("relevo_") and name not in guide} == set()


def test_numbers_are_written_as_the_language_does() -> None:
    english, spanish = Words("en"), Words("es", {"{n:,} jobs": "{n:,} trabajos"})
    assert english("{n:,} jobs", n=1_234_567) == "1,234,567 jobs"
    assert spanish("{n:,} jobs", n=1_234_567) == "1.234.567 trabajos"
    assert spanish("{n:,} jobs", n=7) == "7 trabajos"
    assert spanish("{path} of {n:,}", path="a,b.c", n=1_000) == "a,b.c of 1.000"
    assert (english.number(2.5, ",.1f"), spanish.number(2.5, ",.1f")) == ("2.5", "2,5")
