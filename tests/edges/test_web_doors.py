"""The one way in: who may come, from where, and with what."""

from __future__ import annotations

import importlib
import re
from typing import Any

import httpx2
import msgspec
import pytest
from starlette.routing import Route

from relevo.desk import Role
from relevo.errors import StoreUnavailable
from relevo.settings import Settings
from relevo.web import Web
from relevo.web.doors import CSP
from relevo.web.visit import SECRET, SESSION
from tests.conformance.steps import add
from tests.edges.site import ACCEPT, ENDLESS, EVIL, ORIGIN, Site, filled, token_of

OPEN = re.compile(r"/(login|logout|static|health|ready)\b")
DOORS = {"/login", "/logout", "/cars", "/api/queues", "/api/jobs/{id}", "/metrics"}


async def test_every_route_asks_who_is_there(web: Site) -> None:
    """C10"""
    routes = [route for route in web.routes() if not OPEN.match(route[1])]
    assert {path for _, path in web.routes()} >= DOORS
    async with web.browser() as stranger:
        for verb, path in routes:
            for headers in ({}, ACCEPT):
                answer = await stranger.request(verb, filled(path), headers=headers)
                assert answer.status_code in (401, 302), (verb, path, answer.text)
                if answer.status_code == 302:
                    assert answer.headers["location"].startswith("/login?next=/")


async def test_a_form_after_the_session_has_ended_is_answered_with_a_page(web: Site) -> None:
    """C13"""
    async with web.browser(Role.ADMIN) as admin:
        form = {"csrf": await token_of(admin)}
        await web.people.end(admin.cookies[SESSION])
        headers = ACCEPT | {"accept-language": "es", "origin": ORIGIN}
        answer = await admin.post("/cars", data=form, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["content-type"].startswith("text/html")
        assert "Tu sesión ha terminado y no se hizo nada" in answer.text


async def test_a_session_that_was_made_up_is_none(web: Site) -> None:
    async with web.browser(cookies={SESSION: "x" * 43}) as stranger:
        assert (await stranger.get("/api/queues")).status_code == 401


async def test_every_answer_forbids_what_pages_of_ours_never_do(web: Site) -> None:
    """C11, C32"""
    async with web.browser(Role.ADMIN) as admin:
        for path in ("/login", "/api/queues", "/api/docs", "/cars", "/api/nowhere", "/static/x"):
            answer = await admin.get(path, headers=ACCEPT)
            assert answer.headers["content-security-policy"] == CSP, path
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert "server" not in answer.headers


async def test_no_page_has_script_or_style_within(web: Site) -> None:
    """C11"""
    async with web.browser(Role.ADMIN) as admin:
        for verb, path in web.routes():
            if verb == "GET" and not ENDLESS.search(path):
                page = (await admin.get(filled(path), headers=ACCEPT)).text
                assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=", page), path


@pytest.mark.parametrize(
    "sent",
    [
        {"origin": EVIL},
        {"origin": EVIL, "sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "null"},
        {"origin": ORIGIN},  # from here, but without the token
        {},
    ],
    ids=["other origin", "marked", "same site", "null", "no token", "bare"],
)
async def test_a_forged_form_changes_nothing(web: Site, sent: dict[str, str]) -> None:
    """C12"""
    id = await add(web.relevo.store, "cars:suppliers:book")
    async with web.browser(Role.ADMIN) as admin:
        right = await token_of(admin)
        before = web.state()
        posts = [(verb, path) for verb, path in web.routes() if verb not in ("GET", "HEAD")]
        assert len(posts) > 20
        for verb, path in posts:
            kinds = {"application/json": "{}", "application/x-www-form-urlencoded": "note=x"}
            for kind, body in kinds.items():
                headers = {**sent, "content-type": kind}
                if sent.get("origin") == EVIL:
                    headers["x-csrf-token"] = right
                answer = await admin.request(verb, filled(path, id), headers=headers, content=body)
                assert answer.status_code == 403, (verb, path, answer.text)
    assert web.state() == before


async def test_a_token_of_another_browser_is_none(web: Site) -> None:
    """C12"""
    async with web.browser(Role.ADMIN) as mine, web.browser(Role.ADMIN) as theirs:
        token = await token_of(theirs)
        await token_of(mine)
        path = "/api/queues/cars:suppliers:book/pause"
        headers = {"x-csrf-token": token, "origin": ORIGIN}
        assert (await mine.post(path, headers=headers)).status_code == 403
        headers["x-csrf-token"] = await token_of(mine)
        assert (await mine.post(path, headers=headers)).status_code == 200


async def test_looking_changes_nothing(web: Site) -> None:
    """C12"""
    id = await add(web.relevo.store, "cars:suppliers:book")
    async with web.browser(Role.ADMIN) as admin:
        await token_of(admin)
        gets = [path for verb, path in web.routes() if verb == "GET" and not ENDLESS.search(path)]
        before = web.state()
        for _ in range(2):
            for path in gets:
                answer = await admin.get(filled(path, id), headers=ACCEPT)
                assert answer.status_code < 500, (path, answer.text[:500])
        assert web.state() == before


async def test_a_page_elsewhere_learns_nothing(web: Site) -> None:
    """C14"""
    async with web.browser(Role.ADMIN) as admin:
        answer = await admin.get("/api/queues", headers={"origin": EVIL})
        assert not [name for name in answer.headers if name.startswith("access-control")]
        asked = {"origin": EVIL, "access-control-request-method": "POST"}
        answer = await admin.options("/api/jobs/retry", headers=asked)
        assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "evil.example:8700", "", "localhost.evil", "a b"],
)
async def test_a_name_that_is_not_ours_is_refused(web: Site, host: str) -> None:
    """C14"""
    async with web.browser(Role.ADMIN) as admin:
        for path in ("/api/queues", "/login", "/cars"):
            assert (await admin.get(path, headers={"host": host})).status_code == 400


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:1", "127.0.0.1", "[::1]:8700", "192.0.2.9"]
)
async def test_a_name_that_is_ours_is_not(web: Site, host: str) -> None:
    async with web.browser(Role.ADMIN) as admin:
        assert (await admin.get("/api/queues", headers={"host": host})).status_code == 200


async def test_more_names_are_a_setting(web: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELEVO_ALLOWED_HOSTS", "relevo.example.com,.internal")
    async with web.browser(Role.ADMIN) as admin:
        for host in ("relevo.example.com", "ops.internal:80"):
            assert (await admin.get("/api/queues", headers={"host": host})).status_code == 200
        twice = [("host", "relevo.example.com"), ("host", "example.com")]
        assert (await admin.get("/api/queues", headers=twice)).status_code == 400
        bad = await admin.get("/api/queues", headers={"host": "example.com"})
        assert bad.status_code == 400 and "RELEVO_ALLOWED_HOSTS" in bad.json()["message"]


async def test_without_a_password_this_machine_is_let_in(unlocked: Site) -> None:
    """C10"""
    async with unlocked.browser(address="127.0.0.1") as here:
        assert (await here.get("/api/me")).json()["name"] == "local"
        assert (await here.post("/api/queues/cars:suppliers:book/pause")).status_code == 200
        for name in ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via"):
            behind = {name: "203.0.113.5"}
            assert (await here.get("/api/me", headers=behind)).status_code == 401
    async with unlocked.browser(address="::1") as here:
        assert (await here.get("/api/me")).status_code == 200
    for address in ("192.0.2.7", "::ffff:192.0.2.7", "nonsense"):
        async with unlocked.browser(address=address) as elsewhere:
            assert (await elsewhere.get("/api/me")).status_code == 401


async def test_without_a_password_a_page_elsewhere_cannot_act_for_me(unlocked: Site) -> None:
    """C12, C14: the browser on this machine would be let in by its address alone."""
    async with unlocked.browser(address="127.0.0.1") as here:
        before = unlocked.state()
        for headers in (
            {"origin": EVIL},
            {"origin": "http://["},
            {"sec-fetch-site": "cross-site"},
            {"origin": "null"},
        ):
            answer = await here.post("/api/queues/cars:suppliers:book/pause", headers=headers)
            assert answer.status_code == 403
        rebound = await here.post(
            "/api/queues/cars:suppliers:book/pause", headers={"host": "evil.example"}
        )
        assert rebound.status_code == 400
        assert unlocked.state() == before


async def test_health_tells_strangers_next_to_nothing(web: Site) -> None:
    """C42"""
    async with web.browser() as stranger:
        for path in ("/health", "/ready"):
            answer = await stranger.get(path)
            assert answer.status_code == 200 and len(answer.content) <= 64
        assert (await stranger.get("/metrics")).status_code == 401


async def test_a_query_without_end_is_cut_short(web: Site) -> None:
    """B15"""
    async with web.browser(Role.ADMIN) as admin:
        for query, status in (
            ("&".join("a=1" for _ in range(300)), 400),
            ("a=" + "x" * 9_000, 414),
        ):
            assert (await admin.get(f"/api/jobs?{query}")).status_code == status


async def test_a_form_without_end_is_cut_short(web: Site) -> None:
    """B15"""
    kind = {"content-type": "application/x-www-form-urlencoded", "origin": ORIGIN}
    async with web.browser(Role.ADMIN) as admin:
        many = "&".join(f"f{n}=" for n in range(1_001))
        assert (await admin.post("/logout", content=many, headers=kind)).status_code == 400
        large = "a=" + "x" * 1_048_576
        assert (await admin.post("/logout", content=large, headers=kind)).status_code == 413
    async with web.browser() as stranger:  # of whom there may be many at once
        large = "name=a&password=" + "x" * 65_536
        for headers in (kind, {"content-type": kind["content-type"]}):
            answer = await stranger.post("/login", content=large, headers=headers)
            assert answer.status_code == 413


async def test_a_program_comes_with_a_token(web: Site) -> None:
    token, record = await web.people.add_token("ci", Role.OPERATOR, expires="1h", by="ann")
    assert token not in repr(record)
    async with web.browser(headers={"authorization": f"Bearer {token}"}) as ci:
        assert (await ci.get("/api/me")).json()["name"] == "token/ci"
        # No cookie speaks for it, so there is nothing to forge.
        paused = await ci.post("/api/queues/cars:suppliers:book/pause", headers={"origin": EVIL})
        assert paused.json() == {"changed": True}
        assert SECRET not in ci.cookies
        web.clock.advance("61m")
        assert (await ci.get("/api/me")).status_code == 401
    with_space, _ = await web.people.add_token("other", Role.VIEWER, by="ann")
    for wrong in ("", "rlv_", f"{with_space}x", "rlv_" + "é" * 10, "x" * 10_000):
        async with web.browser() as ci:
            headers = {"authorization": f"Bearer {wrong}".encode()}
            assert (await ci.get("/api/me", headers=headers)).status_code == 401
    assert [each.name for each in await web.people.tokens()] == ["other"]


async def test_no_token_or_password_is_in_the_store(web: Site) -> None:
    """C20"""
    token, _ = await web.people.add_token("ci", Role.OPERATOR, by="ann")
    await web.people.add("ana", "a-canary-password", Role.VIEWER, by="ann")
    session = await web.people.begin("ana", "a-canary-password")
    await web.relevo.store.now()
    kept = b"".join(
        path.read_bytes() for path in web.path.parent.glob("relevo.db*") if path.is_file()
    )
    assert b"ana" in kept
    for secret in (token, token[4:], session, "a-canary-password"):
        assert secret.encode() not in kept


async def test_a_panel_is_for_those_who_see_its_app(web: Site) -> None:
    """C16"""
    async with web.browser(Role.VIEWER, apps=("cars",)) as cars:
        assert (await cars.get("/cars")).text == "panel of viewer-1"
        menu = (await cars.get("/api/docs", headers=ACCEPT)).text
        assert 'href="/cars"' in menu
    async with web.browser(Role.ADMIN, apps=("hotel", "x")) as hotel:
        assert (await hotel.get("/cars", headers=ACCEPT)).status_code == 404
        assert 'href="/cars"' not in (await hotel.get("/api/docs", headers=ACCEPT)).text


async def test_while_the_store_is_away_a_person_is_told_so(
    web: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F10"""

    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("the store does not answer for now")

    async with web.browser(Role.ADMIN) as admin:
        for verb in ("recall", "tally"):
            monkeypatch.setattr(web.relevo.store, verb, away)
        for path in ("/", "/api/queues", "/cars", "/metrics"):
            answer = await admin.get(path, headers=ACCEPT)
            assert answer.status_code == 503, path
            assert "does not answer" in answer.text and "Traceback" not in answer.text
        assert (await admin.get("/static/relevo.css")).status_code == 200


async def test_what_a_hand_did_to_the_store_lets_nobody_in(web: Site) -> None:
    """B36"""
    token, _ = await web.people.add_token("ci", Role.ADMIN, by="ann")
    async with web.browser(Role.ADMIN) as admin:
        for kind in ("session", "token", "person"):
            for note in await web.relevo.store.notes(kind):
                for wrong in (b"", b"null", b'{"role":"god"}', b"\x80\x04."):
                    await web.relevo.store.forget(kind, [note.name])
                    bad = msgspec.structs.replace(note, value=wrong, version=0)
                    assert await web.relevo.store.remember([bad]) == [True]
                    assert (await admin.get("/api/me")).status_code == 401
        bearer = {"authorization": f"Bearer {token}"}
        assert (await admin.get("/api/me", headers=bearer)).status_code == 401
    assert await web.people.tokens() == [] == await web.people.all()


@pytest.mark.parametrize("name", ["cars", "expenses", "hotel", "razworks", "subscriptions"])
async def test_every_page_of_the_apps_asks_who_is_there(web: Site, name: str) -> None:
    """C10"""
    app = importlib.import_module(f"relevo.apps.{name}").app
    shared = Web(web.relevo, Settings.read())
    titled = [site for site in app.sites if site.title is not None]
    assert titled
    for site in titled:
        panel = site.build(web.relevo)
        transport = httpx2.ASGITransport(shared.guard(panel, of=name), client=("192.0.2.7", 1))
        routes = [route for route in panel.routes if isinstance(route, Route)]
        assert any(route.path.startswith(site.prefix) for route in routes)
        async with httpx2.AsyncClient(transport=transport, base_url=ORIGIN) as stranger:
            for route in routes:
                for verb in route.methods or {"GET"}:
                    answer = await stranger.request(verb, filled(route.path), headers=ACCEPT)
                    assert answer.status_code in (401, 302), (verb, route.path)


async def test_nobody_is_taken_for_who_came_before(web: Site) -> None:
    """Some servers hand every request the same state."""
    shared: dict[str, object] = {}

    async def server(scope: Any, receive: Any, send: Any) -> None:
        await web.app({**scope, "state": shared}, receive, send)

    token, _ = await web.people.add_token("ci", Role.ADMIN, by="ann")
    transport = httpx2.ASGITransport(server, client=("192.0.2.7", 1))
    async with httpx2.AsyncClient(transport=transport, base_url=ORIGIN) as client:
        bearer = {"authorization": f"Bearer {token}"}
        assert (await client.get("/api/me", headers=bearer)).status_code == 200
        assert (await client.get("/api/me")).status_code == 401
    assert shared == {}


async def test_a_link_from_elsewhere_leads_to_the_page_it_names(web: Site) -> None:
    """The session's cookie is sent to our own pages only."""
    async with web.browser() as stranger:
        asked = {**ACCEPT, "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
        answer = await stranger.get('/api/docs?a="><script>&b=1', headers=asked)
        assert answer.status_code == 200 and "<script>" not in answer.text
        assert 'content="0;url=/api/docs?a=%22%3E%3Cscript%3E&amp;b=1"' in answer.text
        away = await stranger.get(httpx2.URL(f"{ORIGIN}//evil.example/x"), headers=asked)
        assert 'content="0;url=/evil.example/x"' in away.text
        asked["sec-fetch-site"] = "same-origin"
        assert (await stranger.get("/api/docs", headers=asked)).status_code == 302
        assert (await stranger.get("/api/queues", headers=asked)).status_code == 401


async def test_a_flood_from_one_address_is_held_back(
    web: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C38"""
    monkeypatch.setattr("relevo.web.auth._REQUESTS", 10)
    async with web.browser(Role.VIEWER) as flood, web.browser(address="127.0.0.1") as here:
        answers = [(await flood.get("/api/me")).status_code for _ in range(12)]
        assert answers == [200] * 10 + [429] * 2
        assert (await flood.get("/login", headers=ACCEPT)).headers["retry-after"] == "60"
        assert [(await here.get("/metrics")).status_code for _ in range(12)] == [200] * 12
        web.clock.advance("61s")
        assert (await flood.get("/api/me")).status_code == 200


async def test_while_the_store_is_away_a_page_is_shown_as_it_was_last_seen(
    web: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F10"""
    real = web.relevo.store

    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("10.0.0.7 does not answer for now")

    await add(real, "cars:suppliers:book")
    async with web.browser(Role.ADMIN) as admin, web.browser(Role.VIEWER) as other:
        before = await admin.get("/queues", headers=ACCEPT)
        assert "cars:suppliers:book" in before.text and "away since" not in before.text
        with monkeypatch.context() as broken:
            for verb in ("recall", "tally", "remember", "now"):
                broken.setattr(real, verb, away)
            seen = await admin.get("/queues", headers=ACCEPT)
            assert seen.status_code == 200
            assert "cars:suppliers:book" in seen.text
            assert "The store has been away since" in seen.text and "10.0.0.7" in seen.text
            assert web.relevo.watch.is_away
            assert (await admin.get("/dead", headers=ACCEPT)).status_code == 503  # was never seen
            told = await admin.get("/health")
            assert told.json()["store"]["error"].endswith("10.0.0.7 does not answer for now")
            # Whoever was not here before cannot be told from a stranger, and sees nothing.
            assert (await other.get("/queues", headers=ACCEPT)).status_code == 503
            assert "error" not in (await other.get("/health")).text
        await web.relevo.watch.back()
        again = await admin.get("/queues?lang=es", headers=ACCEPT)
        assert again.status_code == 200 and "no responde" not in again.text
