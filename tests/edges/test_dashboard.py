"""The dashboard's pages and actions over HTTP; how they look is for tests/browser."""

from __future__ import annotations

import ast
import asyncio
import importlib
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Iterator
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import httpx2
import msgspec
import pytest
from msgspec.structs import replace

import relevo
from relevo import Breaker, sources
from relevo.dashboard import ACT, LOOK, MENU, sentences, words
from relevo.dashboard.board import HERE, room
from relevo.dashboard.live import Live
from relevo.desk import Person, Role
from relevo.engine import Relevo
from relevo.ids import new_id
from relevo.job import After, Lease, State
from relevo.pairs import Headers
from relevo.signatures import explain
from relevo.store import By, Effect, EffectState, Letterbox, QueueMode, Want, WorkerInfo
from relevo.testing import ManualClock, until
from relevo.version import version
from relevo.web.translate import Words
from relevo.web.words import SPANISH as SHARED
from relevo.webhook import Delivery
from tests.browser.fill import BOOK, CHARGE, SAVE, SCRIPT, WELCOME, Filled, fill
from tests.conformance.steps import BOOM, add, end, look, make, put, state, take
from tests.conformance.steps import job as new_job
from tests.edges import site as site_module
from tests.edges.site import ACCEPT, EVIL, HOOK, PASSWORD, Site, apps


class Kit(NamedTuple):
    """A store that was filled once, to be copied for each test."""

    path: Path
    some: Filled


async def _filled(path: Path, *, hostile: bool) -> Kit:
    async with Relevo(f"sqlite:///{path}") as relevo:
        return Kit(path, await fill(relevo.store, hostile=hostile))


@pytest.fixture(scope="session", params=[False], ids=["plain"])
def kit(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kit:
    path = tmp_path_factory.mktemp("kit") / "relevo.db"
    return asyncio.run(_filled(path, hostile=request.param))


@pytest.fixture
async def web(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Site]:
    """A site with a password; filled for a test that asks for `some`."""
    monkeypatch.setenv("RELEVO_ADMIN_PASSWORD", PASSWORD)
    path = tmp_path / "relevo.db"
    if "some" in request.fixturenames:
        shutil.copy(request.getfixturevalue("kit").path, path)
    async with Relevo(f"sqlite:///{path}", apps=apps(), clock=clock) as relevo:
        yield Site(relevo, path, clock)


@pytest.fixture
def some(kit: Kit) -> Filled:
    return kit.some


class Visitor:
    """Somebody with a browser: reads pages, and fills in their forms."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client

    async def see(self, path: str, status: int = 200, **headers: str) -> str:
        answer = await self.client.get(path, headers=ACCEPT | headers)
        assert answer.status_code == status, (path, answer.status_code, answer.text[-2000:])
        return unescape(answer.text)

    async def token(self) -> str:
        found = re.search(r'name="csrf" content="(\w+)"', await self.see("/queues"))
        assert found
        return found[1]

    async def do(self, path: str, status: int = 303, **fields: Any) -> httpx2.Response:
        data = {"csrf": await self.token(), **fields}
        answer = await self.client.post(path, data=data, headers=ACCEPT)
        assert answer.status_code == status, (path, answer.status_code, answer.text[-2000:])
        return answer


@pytest.fixture
async def admin(web: Site) -> AsyncIterator[Visitor]:
    async with web.browser(Role.ADMIN) as client:
        yield Visitor(client)


@pytest.fixture
async def viewer(web: Site) -> AsyncIterator[Visitor]:
    async with web.browser(Role.VIEWER) as client:
        yield Visitor(client)


def paths(some: Filled) -> dict[str, str]:
    """Every page, with something to show."""
    filled = {
        "/threads/{thread:path}": f"/threads/{some.thread}",
        "/deliveries/{id}": f"/deliveries/{some.delivery}",
        "/queues/{queue}": f"/queues/{BOOK}",
        "/jobs/bulk": "/jobs/bulk?state=dead",
        "/jobs/{id}": f"/jobs/{some.dead}",
        "/dead/{fingerprint}": f"/dead/{some.group}",
        "/flows/{id}": f"/flows/{some.flow}",
        "/groups/{id}": f"/groups/{some.job_group}",
        "/events/{id}": f"/events/{some.event}",
        "/breakers/one": "/breakers/one?name=reader",
        "/effects/one": f"/effects/one?job={some.held}&name=book",
    }
    away = {"/live", "/sweeps/{id}"}
    return {path: filled.get(path, path) for path in LOOK if path not in away}


# looking


async def test_every_page_is_there_in_both_languages_and_changes_nothing(
    web: Site, admin: Visitor, viewer: Visitor, some: Filled
) -> None:
    """C12"""
    ana = Person("ana", Role.OPERATOR)
    await web.relevo.desk.set_queue(BOOK, ana, limit=7, lasting="1h")
    await web.relevo.desk.set_lane(BOOK, "supplier:28", 0, ana, "they asked for it")
    await web.relevo.desk.set_breaker("reader", ana, failures=9)
    await admin.see("/")
    await viewer.see("/")
    before = web.state()
    for path in paths(some).values():
        for visitor in (admin, viewer):
            await visitor.see(path)
        page = await admin.see(path, **{"accept-language": "es"})
        assert 'lang="es"' in page or path == "/live/history"
    assert web.state() == before


async def test_every_page_teaches_when_there_is_nothing(admin: Visitor) -> None:
    for path in LOOK:
        if "{" not in path and not path.startswith("/live") and not path.endswith("/one"):
            page = await admin.see(path)
            assert "<code>" in page or path in ("/usage", "/jobs/bulk", "/deliveries/bulk"), path


def test_what_is_put_together_elsewhere_has_its_spanish_too() -> None:
    told = [*sentences.RETOLD, *(text for pair in sentences.COUNTED.values() for text in pair)]
    told += sentences.ALONE
    told += [text for entry in MENU for text in (entry.title, entry.section) if text]
    told += re.findall(r'(?:text = |_warn\()"([^"]+)"', (HERE / "health.py").read_text())
    assert len(told) > 50
    assert [text for text in told if text not in words.SPANISH | SHARED] == []


SAYS = {"InvalidSignature", "BodyError", "Reject", "TimeoutError", "TooEarly", "reason"}


def _sayings(path: Path, says: set[str] = SAYS) -> Iterator[str]:
    """What is said in a file with one of these, names and numbers filled in."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in says:
            for said in node.args:
                match said:
                    case ast.Constant(str(text)) if " " in text:
                        yield text
                    case ast.JoinedStr(values):
                        yield "".join(
                            part.value if isinstance(part, ast.Constant) else "7" for part in values
                        )
                    case _:
                        pass


def test_why_something_was_refused_or_failed_is_told_in_spanish() -> None:
    source = Path(relevo.__file__).parent
    files = [*(source / "signatures").glob("*.py"), *(source / "intake").glob("*.py")]
    files += [source / name for name in ("pairs.py", "strictjson.py", "webhook.py")]
    files += [source / name for name in ("worker.py", "runner.py", "once.py")]
    told = [text for path in files for text in _sayings(path)]
    assert len(told) > 40
    spanish = Words("es", words.SPANISH)
    assert [text for text in told if room.sentences.retold(spanish, text) == text] == []
    lost = "ProviderUncertain: 'book' may have happened: card declined"
    assert room.sentences.retold(spanish, lost) == (
        "ProviderUncertain: 'book' puede haber ocurrido: card declined"
    )
    for theirs in ("card declined; due", "A: " * 700, "due; " * 400, "the probe failed: " * 100):
        assert len(room.sentences.retold(spanish, theirs)) > 10
        assert room.sentences.retold(Words("en"), theirs) == theirs


REFUSES = {
    *("HTTPException", "NotFoundError", "MisuseError", "NotAllowed", "DefinitionError"),
    *("PayloadError", "Refused"),
}
PANELS = ("cars", "expenses", "hotel", "razworks", "subscriptions")


@pytest.mark.parametrize("place", ["desk", "dashboard", "web", "payload", *PANELS])
def test_why_a_page_refuses_is_told_in_spanish(place: str) -> None:
    source = Path(relevo.__file__).parent
    told_in = room
    match place:
        case "web":
            files = [source / "web" / name for name in ("doors.py", "forms.py")]
        case "payload":
            files = [source / "payload.py"]
        case "desk" | "dashboard":
            files = [*(source / place).glob("*.py")]
        case _:
            told_in = importlib.import_module(f"relevo.apps.{place}.panel").room
            files = [source / "apps" / place / name for name in ("panel.py", "support.py")]
    told = [text for path in files if path.exists() for text in _sayings(path, REFUSES)]
    # What a class of the program's own is called with is for whoever wrote it.
    told = [text for text in told if not re.match(r"7(:| has no field)|expects 7, got", text)]
    assert told
    spanish = Words("es", told_in.spanish, SHARED)
    assert [text for text in told if told_in.sentences.retold(spanish, text) == text] == []


@pytest.mark.parametrize(
    ("verb", "path", "status", "said"),
    [
        ("get", "/nowhere", 404, "Esa página no existe."),
        ("get", "/queues/no:such:queue", 404, "ninguna cola se llama no:such:queue"),
        ("get", "/jobs/xyz", 404, "no es el id de un trabajo, que tiene 32 cifras"),
        ("get", "/jobs?state=odd", 400, "ningún trabajo tiene el estado 'odd'"),
        ("get", "/jobs?limit=x", 400, "limit es un número entero"),
        ("get", "/jobs?cursor=x", 400, "esa página siguiente no es de esta pregunta"),
        ("get", f"/jobs?key={'x' * 600}", 400, "clave tiene de 1 a 500 caracteres, no 600"),
        ("get", f"/?{'x' * 9_000}", 414, "la consulta tiene más de 8.192 bytes"),
        ("put", "/queues", 405, "Esta página no acepta eso."),
        ("post", "/jobs/act", 403, "Este formulario es demasiado antiguo"),
    ],
)
async def test_an_error_page_speaks_the_language_of_the_others(
    admin: Visitor, verb: str, path: str, status: int, said: str
) -> None:
    headers = ACCEPT | {"accept-language": "es"}
    if verb == "put":
        headers |= {"x-csrf-token": await admin.token()}
    answer = await admin.client.request(verb, path, headers=headers)
    assert answer.status_code == status
    assert said in unescape(answer.text)
    assert '<html lang="es"' in answer.text


async def test_what_is_wrong_with_an_edit_is_said_in_spanish(admin: Visitor, some: Filled) -> None:
    await admin.see("/?lang=es")
    payload = '{"password": "hunter2hunter2"}'
    answer = await admin.do(f"/jobs/{some.dead}/edit", 422, payload=payload)
    assert "password: un secreto por su nombre; envía un id" in unescape(answer.text)


def test_what_a_closer_look_says_of_a_signature_is_told_in_spanish() -> None:
    spanish = Words("es", words.SPANISH)
    now, body = datetime.now(UTC), b"{}"
    right, other = sources.meta("a" * 32).scheme, sources.meta("b" * 32).scheme
    sent = right.sign(Delivery(id=new_id(), path="/x", received_at=now, body=body), now)
    for delivery, scheme in (
        (sent, other),
        (msgspec.structs.replace(sent, body=body + b"\n"), right),
        (msgspec.structs.replace(sent, headers=Headers()), right),
        (sent, sources.stripe("c" * 32).scheme),
        (sent, sources.stripe("a" * 32).scheme),
    ):
        parts = explain(delivery, scheme, now)
        assert not re.search(r"\b(the|is|with|was)\b", room.sentences.retold(spanish, parts)), parts


async def test_the_store_and_the_audit_speak_spanish_too(admin: Visitor, some: Filled) -> None:
    spanish = {"accept-language": "es"}
    assert "durabilidad" in (usage := await admin.see("/usage", **spanish))
    assert "cada confirmación llega al disco" in usage
    assert ">pausa<" in await admin.see("/audit", **spanish)
    assert ">pause<" in await admin.see("/audit")


@pytest.mark.parametrize("app", ["cars", "expenses", "hotel", "razworks", "subscriptions"])
def test_an_app_has_one_name_in_spanish_on_its_own_pages_and_on_all_others(app: str) -> None:
    own = importlib.import_module(f"relevo.apps.{app}.words").SPANISH
    title = app.capitalize()
    assert own[title] == SHARED.get(title, title)


def test_every_blank_is_kept_in_spanish() -> None:
    blanks = re.compile(r"\{(\w+)")
    for english, spanish in words.SPANISH.items():
        assert set(blanks.findall(english)) == set(blanks.findall(spanish)), english


async def test_the_overview_says_what_is_wrong_and_leads_there(
    admin: Visitor, some: Filled
) -> None:
    page = await admin.see("/")
    assert "One job is held" in page
    assert "11 dead letters wait until their cause is mended" in page
    assert "The breaker reader is open, and one job waits behind it" in page
    assert f"{WELCOME} is paused, with 3 jobs in it" in page
    assert "is alive, but says: event loop blocked for 7 s" in page
    for place in ("/dead", "/effects", "/breakers/one?name=reader", f"/queues/{WELCOME}"):
        assert f'href="{place}"' in page


async def test_the_overview_says_that_all_is_well(web: Site, admin: Visitor) -> None:
    assert "Nothing has happened yet" in await admin.see("/")
    await add(web.relevo.store, SAVE)
    await admin.do(f"/queues/{SAVE}/pause")
    assert "is paused, with one job in it" in await admin.see("/")


@pytest.mark.parametrize("text", ["MX-774120", "evt_3PqL8sK2", "mail:R-20418", "R-20418"])
async def test_anything_one_remembers_leads_to_the_story(
    admin: Visitor, some: Filled, text: str
) -> None:
    answer = await admin.client.get("/search", params={"q": text}, headers=ACCEPT)
    assert answer.headers["location"] == f"/threads/{some.thread}"


async def test_a_story_is_told_from_the_signed_request_to_the_effects(
    admin: Visitor, some: Filled
) -> None:
    page = await admin.see(f"/threads/{some.thread}")
    told = [
        "cars:/hooks/stripe",
        "book:R-20418",
        "supplier 28 answered 503",
        '{"confirmation": "MX-774120"}',
        "SendConfirmation",
        "msg_01J9",
    ]
    places = [page.index(text) for text in told]
    assert places == sorted(places)
    assert "Delivered again" in page


async def test_c23_an_admin_forgets_a_story_that_is_over(
    web: Site, admin: Visitor, viewer: Visitor
) -> None:
    """The page says how much it is, and wants to know why."""
    store, thread = web.relevo.store, new_id()
    done = await make(store, State.DONE, thread=thread)
    assert "Forget one job and 0 deliveries" in await admin.see(f"/threads/{thread}")
    assert "Forget this story" not in await viewer.see(f"/threads/{thread}")
    held = await make(store, State.HELD, thread=thread)
    assert "Forget this story" not in await admin.see(f"/threads/{thread}")

    await admin.do("/threads/forget", 400, thread=thread)  # without a reason
    await admin.do("/threads/forget", thread=thread, note="asked")
    assert "something in it has not ended" in await admin.see(f"/threads/{thread}")
    await store.cancel([held], By("ann"))
    await admin.do("/threads/forget", thread=thread, note="asked")

    assert "Forgotten: 2 jobs and 0 deliveries." in await admin.see("/")
    assert await store.find([done, held]) == [None, None]
    await admin.do("/threads/forget", thread=thread, note="asked")
    assert "Nothing was found to be forgotten." in await admin.see("/")


async def test_what_is_not_there_is_not_found(admin: Visitor, some: Filled) -> None:
    """B61"""
    for path in (
        f"/jobs/{new_id()}",
        "/jobs/abc",
        "/jobs/" + "x" * 5_000,
        f"/flows/{new_id()}",
        f"/groups/{new_id()}",
        "/groups/import:0",
        f"/deliveries/{new_id()}",
        "/deliveries/x",
        "/queues/no:such:queue",
        "/breakers/one?name=nobody",
        f"/effects/one?job={new_id()}&name=book",
        f"/threads/{new_id()}",
        "/sweeps/x",
        "/dead/0123",
        "/nowhere",
    ):
        await admin.see(path, 404)


@pytest.mark.parametrize(
    "query",
    [
        "cursor=tampered",
        "state=sleeping",
        "limit=-1",
        "limit=abc",
        "queue=*",
        "text=" + "x" * 501,
        "state=" + "dead%00",
    ],
)
async def test_a_question_that_makes_no_sense_is_refused(
    admin: Visitor, some: Filled, query: str
) -> None:
    """B60"""
    await admin.see(f"/jobs?{query}", 400)


@pytest.mark.parametrize("query", ["limit=1000000000", "text=%25", "text=_", "key=%F0%9F%98%80"])
async def test_odd_questions_are_answered(admin: Visitor, some: Filled, query: str) -> None:
    """B60"""
    await admin.see(f"/jobs?{query}")


@pytest.mark.parametrize("page", ["jobs", "effects", "audit", "deliveries", "flows", "dead/0123"])
async def test_a_cursor_that_is_not_ours_is_refused(
    admin: Visitor, some: Filled, page: str
) -> None:
    """B60"""
    for cursor in ("x", "0" * 500, "%00", "abcdef0123.1"):
        await admin.see(f"/{page}?cursor={cursor}", 400)


@pytest.mark.parametrize(
    ("word", "path"),
    [
        ("muerto", "/jobs?state=dead"),
        ("Muertos", "/jobs?state=dead"),
        ("retenida", "/jobs?state=held"),
        ("en curso", "/jobs?state=running"),
        ("dead", "/jobs?state=dead"),
        ("incierto", "/effects?state=unknown"),
        ("rechazada", "/deliveries?state=refused"),
    ],
)
async def test_a_state_is_found_by_its_word_in_either_language(
    admin: Visitor, word: str, path: str
) -> None:
    for page in (f"/search?q={word}", f"/jobs?text={word}", f"/deliveries?text={word}"):
        assert f'href="{path}"' in await admin.see(page, **{"accept-language": "es"}), page


async def test_what_relevo_says_in_spanish_is_found_where_it_is_stored_in_english(
    web: Site, admin: Visitor
) -> None:
    spanish = {"accept-language": "es"}
    store, queue = web.relevo.store, "hotel:silent:test"
    id = await add(store, queue)
    [lease] = await take(store, 1, queue)
    silent = replace(
        BOOM, message="the worker w-1 went silent; whether it had begun this run is not known"
    )
    await end(store, lease, State.DEAD, failure=silent)
    piece = "went silent; whether it had begun this run is not known"
    for page, whole in (("/jobs", "text"), ("/search", "q")):
        shown = await admin.see(
            f"{page}?{whole}=el worker w-1 calló; no se sabe si había empezado esta ejecución",
            **spanish,
        )
        way = "?" + urlencode(
            {whole: "the worker w-1 went silent; whether it had begun this run is not known"}
        )
        assert f'href="{page}{way}"' in shown
        assert "guardado en inglés" in shown
        part = await admin.see(f"{page}?{whole}=callo; no se sabe si habia empezado", **spanish)
        assert f'href="{page}?{urlencode({whole: piece})}"' in part
    assert id in await admin.see("/jobs?text=went silent; whether it had begun")
    assert "guardado" not in await admin.see("/jobs?text=calló; no se sabe")


async def test_odd_searches_end_well(admin: Visitor, some: Filled) -> None:
    """B60"""
    for text in (
        "%",
        "_",
        "a",
        "%25" * 100,
        "%00abc",
        "(a%2B)%2B$" * 20,
        "%F0%9F%98%80%F0%9F%98%80",
    ):
        answer = await admin.client.get(f"/search?q={text}", headers=ACCEPT)
        assert answer.status_code in (200, 303, 404), (text, answer.text[-500:])
    await admin.see("/search?q=" + "x" * 600, 400)
    assert (await admin.client.get("/search?q=" + "x" * 10_000)).status_code == 414


async def test_pages_follow_one_another(web: Site, admin: Visitor) -> None:
    for _ in range(60):
        await add(web.relevo.store, SAVE)
    page = await admin.see("/jobs?limit=50")
    following = re.search(r'rel="next" href="([^"]+)"', page)
    assert following
    second = await admin.see(f"/jobs{following[1]}")
    assert second.count('name="id"') == 10
    assert 'rel="next"' not in second


async def test_who_only_looks_sees_masks_and_no_buttons(
    admin: Visitor, viewer: Visitor, some: Filled
) -> None:
    """C15"""
    for path in (f"/jobs/{some.dead}", f"/jobs/{some.booked}", f"/deliveries/{some.delivery}"):
        page = await viewer.see(path)
        assert "ana.perez@example.com" not in page
        assert "1234 5678" not in page
        assert "/retry" not in page
        assert "/edit" not in page
    assert "ana.perez@example.com" in await admin.see(f"/jobs/{some.booked}")


async def test_of_another_app_nothing_is_seen(web: Site, some: Filled) -> None:
    """C16"""
    async with web.browser(Role.ADMIN, apps=("hotel",)) as client:
        stranger = Visitor(client)
        for path in (
            f"/jobs/{some.dead}",
            f"/queues/{BOOK}",
            f"/flows/{some.flow}",
            f"/deliveries/{some.delivery}",
            f"/threads/{some.thread}",
            f"/effects/one?job={some.held}&name=book",
        ):
            await stranger.see(path, 404)
        for path in ("/", "/queues", "/jobs", "/dead", "/effects", "/deliveries", "/flows"):
            page = await stranger.see(path)
            assert BOOK not in page
            assert CHARGE not in page
            assert "cars:/hooks" not in page
        for verb in ("retry", "cancel", "discard"):
            await stranger.do(f"/jobs/{some.dead}/{verb}", 404, note="mine")
        await stranger.do(f"/queues/{BOOK}/pause", 404)
    assert await state(web.relevo.store, some.dead) is State.DEAD


# doing


async def test_no_action_without_the_role(web: Site, viewer: Visitor, some: Filled) -> None:
    """C15"""
    places = {"{id}": some.dead, "{queue}": BOOK}
    before = web.state()
    for path, (_, verbs) in ACT.items():
        for verb in verbs or ("",):
            place = path.replace("{verb}", verb)
            if path.startswith("/flows"):
                place = place.replace("{id}", some.flow)
            if path.startswith("/deliveries"):
                place = place.replace("{id}", some.delivery)
            if path.startswith("/groups"):
                place = place.replace("{id}", some.job_group)
            for name, value in places.items():
                place = place.replace(name, value)
            known = {"job": some.held, "name": "book", "code": "x", "id": some.dead}
            if path.startswith("/recurring"):
                known["name"] = "hotel:hotel999"
            answer = await viewer.do(place, 403, note="why", state="dead", verb="retry", **known)
            assert "is viewer" in answer.text, place
    assert web.state() == before


async def test_no_action_from_elsewhere(web: Site, admin: Visitor, some: Filled) -> None:
    """C12"""
    await admin.see("/")
    before = web.state()
    for path, (_, verbs) in ACT.items():
        for verb in verbs or ("",):
            place = re.sub(r"\{\w+\}", some.dead, path.replace("{verb}", verb))
            for headers in ({"origin": EVIL}, {}):
                answer = await admin.client.post(place, data={"note": "x"}, headers=headers)
                assert answer.status_code == 403, place
            assert (await admin.client.get(place)).status_code in (200, 404, 405, 400)
    assert web.state() == before


async def test_a_job_is_retried_cancelled_and_discarded(
    web: Site, admin: Visitor, some: Filled
) -> None:
    store = web.relevo.store
    await admin.do(f"/jobs/{some.dead}/retry", note="mended")
    assert await state(store, some.dead) is State.READY
    assert "The job is ready again." in await admin.see(f"/jobs/{some.dead}")
    await admin.do(f"/jobs/{some.dead}/cancel")
    assert await state(store, some.dead) is State.CANCELLED
    await admin.do(f"/jobs/{some.held}/discard", 400)  # without a reason
    await admin.do(f"/jobs/{some.held}/discard", note="booked by hand")
    assert await state(store, some.held) is State.CANCELLED
    page = await admin.see(f"/jobs/{some.dead}")
    assert "mended" in page and "admin-0" in page


async def test_a_job_that_has_ended_is_run_again_from_its_page(
    web: Site, admin: Visitor, some: Filled
) -> None:
    page = await admin.see(f"/jobs/{some.dead}")
    assert "Run it again" in page and "Run it again" not in await admin.see(f"/jobs/{some.held}")
    made = await web.relevo.desk.repeated_effects(some.dead)
    if made:
        assert "which would happen a second time" in page
        await admin.do(f"/jobs/{some.dead}/run-again", 409)
    await admin.do(f"/jobs/{some.dead}/run-again", note="sent wrongly", effects="1")
    [line] = (await web.relevo.desk.audits(target=some.dead))[0]
    assert (line.verb, line.note) == ("run again", "sent wrongly")
    assert (await web.relevo.desk.job(line.after)).cause == some.dead


async def test_a_payload_is_edited_behind_its_guard(
    web: Site, admin: Visitor, some: Filled
) -> None:
    """B61, C17"""
    store = web.relevo.store
    before = (await look(store, some.dead)).payload
    for wrong in ('{"a":', '{"password": "hunter2hunter2"}', '"' + "x" * 300_000 + '"'):
        page = (await admin.do(f"/jobs/{some.dead}/edit", 422, payload=wrong)).text
        assert 'role="alert"' in page
    for extra in ("state", "lease", "id", "attempt"):
        await admin.do(f"/jobs/{some.dead}/edit", 422, payload='{"n":1}', **{extra: "1"})
    assert (await look(store, some.dead)).payload == before
    await admin.do(
        f"/jobs/{some.dead}/edit",
        payload='{"subscription": "sub_7"}',
        attempts="5",
        again="1",
        unchecked="1",
    )
    job = await look(store, some.dead)
    assert (job.payload, job.attempts, job.state) == (
        b'{"subscription": "sub_7"}',
        5,
        State.READY,
    )
    assert "Undo this edit" in await admin.see(f"/jobs/{some.dead}")
    await admin.do(f"/jobs/{some.dead}/undo")
    assert (await look(store, some.dead)).payload == before
    assert "Undo this edit" not in await admin.see(f"/jobs/{some.dead}")


async def test_a_form_that_is_older_than_an_edit_takes_nothing_back(
    web: Site, admin: Visitor, some: Filled
) -> None:
    page = await admin.see(f"/jobs/{some.dead}")
    shown = re.search(r'<textarea name="shown" hidden>(.*?)</textarea>', page, re.DOTALL)
    assert shown
    ana = Person("ana", Role.ADMIN)
    await web.relevo.desk.edit(some.dead, ana, payload='{"subscription": "sub_7"}', whole=True)
    form: dict[str, Any] = {"shown": shown[1], "unchecked": "1"}

    await admin.do(f"/jobs/{some.dead}/edit", payload=shown[1], attempts="7", **form)
    written = shown[1].replace("{", '{"n": 1,', 1)
    answer = await admin.do(f"/jobs/{some.dead}/edit", 422, payload=written, **form)

    assert "was changed meanwhile" in unescape(answer.text)
    job = await look(web.relevo.store, some.dead)
    assert (job.payload, job.attempts) == (b'{"subscription": "sub_7"}', 7)


async def test_ticked_jobs_are_changed_together(web: Site, admin: Visitor) -> None:
    ids = [await add(web.relevo.store, SAVE) for _ in range(3)]
    await admin.do("/jobs/act", id=ids[:2], verb="cancel", back="/jobs?state=ready")
    states = [await state(web.relevo.store, id) for id in ids]
    assert states == [State.CANCELLED, State.CANCELLED, State.READY]
    assert "Changed: 2 of 2." in await admin.see("/jobs")


@pytest.mark.parametrize("place", ["//evil.example/", "https://evil.example", "/\\evil.example"])
async def test_nobody_is_led_astray(admin: Visitor, some: Filled, place: str) -> None:
    answer = await admin.do("/jobs/act", id=[some.dead], verb="retry", back=place)
    assert answer.headers["location"] == "/jobs"


async def test_a_group_is_retried_after_a_preview(web: Site, admin: Visitor, some: Filled) -> None:
    where = {"verb": "retry", "state": "dead", "fingerprint": some.group}
    page = await admin.client.get("/jobs/bulk", params=where, headers=ACCEPT)
    assert "Retry 7 jobs" in page.text
    answer = await admin.do("/jobs/bulk", **where, rate="500/s", note="the bank is back")

    async def is_over() -> bool:
        page = await admin.see(answer.headers["location"])
        return 'data-quick="no"' in page and "7 <span>of 7 jobs" in page

    await until(is_over)
    assert (await web.relevo.desk.queue(CHARGE)).counts.get(State.DEAD) is None


async def test_a_canary_that_dies_stops_the_rest(web: Site, admin: Visitor, some: Filled) -> None:
    answer = await admin.do("/jobs/bulk", state="dead", queue=CHARGE, canary="1", verb="retry")
    await dies(web, CHARGE)

    async def is_over() -> bool:
        return "is dead again" in await admin.see(answer.headers["location"])

    await until(is_over)
    assert (await web.relevo.desk.queue(CHARGE)).counts[State.DEAD] == 7


async def test_a_sweep_is_stopped_by_hand(web: Site, admin: Visitor, some: Filled) -> None:
    desk = web.relevo.desk
    answer = await admin.do("/jobs/bulk", state="dead", queue=CHARGE, canary="1", verb="retry")

    async def has_begun() -> bool:
        return (await desk.queue(CHARGE)).counts[State.DEAD] == 6

    await until(has_begun)
    await admin.do(answer.headers["location"] + "/stop")

    async def is_stopped() -> bool:
        page = await admin.see(answer.headers["location"])
        return "What was changed stays changed" in page

    await until(is_stopped)
    assert await has_begun()


async def dies(web: Site, queue: str) -> None:
    """Take what comes due in a queue, and let it fail."""
    leases: list[Lease] = []

    async def is_taken() -> bool:
        leases.extend(await take(web.relevo.store, 1, queue))
        return bool(leases)

    await until(is_taken)
    assert await end(web.relevo.store, leases[0], State.DEAD)


async def test_many_are_not_discarded_without_a_reason(admin: Visitor, some: Filled) -> None:
    await admin.do("/jobs/bulk", 400, state="dead", verb="discard")
    await admin.do("/jobs/bulk", 400, state="dead", verb="retry", rate="fast")
    await admin.do("/jobs/bulk", 400, state="dead", verb="retry", canary="999")
    await admin.see("/jobs/bulk?state=ready", 400)


async def test_queues_are_paused_drained_and_resumed(
    web: Site, admin: Visitor, some: Filled
) -> None:
    for verb, mode in (
        ("pause", QueueMode.PAUSED),
        ("drain", QueueMode.DRAINING),
        ("resume", QueueMode.OPEN),
    ):
        await admin.do(f"/queues/{BOOK}/{verb}", note="deploy")
        assert (await web.relevo.desk.queue(BOOK)).mode is mode


async def test_a_queue_is_changed_by_its_form_and_taken_back(
    web: Site, admin: Visitor, viewer: Visitor, some: Filled
) -> None:
    desk, path = web.relevo.desk, f"/queues/{BOOK}"
    queue = {"what": "queue", "name": BOOK, "back": path}
    values = {"limit": "7", "rate": "10/s", "slots": "3", "priority": "low"}
    await admin.do("/changes/set", **queue, **values, lasting="2h", note="slow")

    [change] = await desk.changes()
    assert (change.name, change.values) == (BOOK, values)
    assert abs(change.until - change.set_at - 7_200_000) < 60_000
    for page in (path, "/"):
        assert change.said in await admin.see(page)
    token = await viewer.token()
    fields = {"csrf": token, **queue, "limit": "1"}
    refused = await viewer.client.post("/changes/set", data=fields, headers=ACCEPT)
    assert refused.status_code == 403
    await admin.do("/changes/set", 400, **queue, limit="0")
    assert await desk.changes() == [change]

    await admin.do("/changes/unset", **queue)
    assert await desk.changes() == []
    audits, _ = await desk.audits(target=BOOK)
    assert [each.verb for each in audits][:2] == ["unset queue", "set queue"]


async def test_a_lane_and_a_breaker_are_changed_by_their_forms(
    web: Site, admin: Visitor, some: Filled
) -> None:
    desk = web.relevo.desk
    lane = {"what": "lane", "name": BOOK, "lane": "customer:28"}
    await admin.do("/changes/set", **lane)
    assert [each.is_pause for each in await desk.changes()] == [True]
    await admin.do("/changes/set", **lane, limit="2")
    assert [each.values for each in await desk.changes()] == [{"limit": "2"}]
    await admin.do("/changes/unset", **lane)
    assert await desk.changes() == []

    breaker = {"what": "breaker", "name": "bank"}
    await admin.do("/changes/set", **breaker, failures="3", cooldown="2m", slow="5s")
    [change] = await desk.changes()
    assert change.values == {"failures": "3", "cooldown": "2m", "slow": "5s"}

    queue = "cars:lanes:one"
    mine, other = await put(web.relevo.store, new_job(queue, lane="a"), new_job(queue, lane="b"))
    await admin.do("/changes/cancel", what="lane", name=queue, lane="a", note="sent twice")
    assert await state(web.relevo.store, mine) is State.CANCELLED
    assert await state(web.relevo.store, other) is State.READY


async def test_pages_tell_the_version_of_each_process(admin: Visitor, web: Site) -> None:
    info = WorkerInfo(id="w1", host="h", pid=1, queues=[BOOK], concurrency=5, version="0.0.9")
    await web.relevo.store.beat(info, 60_000)
    assert ">0.0.9</span>" in (page := await admin.see("/workers"))
    assert f">{version()}</p>" in page
    said = f"Processes of 2 versions of relevo work here: 0.0.9, {version()}"
    assert said in await admin.see("/")
    assert "2 versiones de relevo" in await admin.see("/", **{"accept-language": "es"})
    metrics = await admin.see("/metrics")
    assert 'relevo_worker_versions{version="0.0.9"} 1.0' in metrics
    assert f'version="{version()}"' in metrics
    assert f'"version": "{version()}"' in await admin.see("/api/openapi.json")


async def test_a_worker_that_is_gone_is_forgotten_by_a_button(
    admin: Visitor, viewer: Visitor, web: Site
) -> None:
    """F61"""
    store = web.relevo.store
    for id in ("dead-1", "alive-2"):
        info = WorkerInfo(id=id, host="h", pid=1, queues=[BOOK], concurrency=5)
        await store.beat(info, 60_000)
    await store.silence(["dead-1"], is_gone=True)
    page = await admin.see("/workers")
    assert 'name="id" value="dead-1"' in page and 'name="id" value="alive-2"' not in page
    assert "dead-1" in (seen := await viewer.see("/workers")) and 'value="dead-1"' not in seen
    spanish = await admin.see("/workers", **{"accept-language": "es"})
    assert ">muerto<" in spanish and ">Olvidar<" in spanish

    await viewer.do("/workers/forget", 403, id="dead-1")
    assert len(await store.workers()) == 2
    await admin.do("/workers/forget", id="dead-1")

    assert [each.id for each in await store.workers()] == ["alive-2"]
    await admin.do("/workers/forget", 409, id="alive-2")
    [line] = (await store.audits(target="dead-1"))[0]
    assert line.verb == "forget worker"


async def test_a_subscriber_is_taken_off_by_a_button(
    admin: Visitor, viewer: Visitor, web: Site, some: Filled
) -> None:
    page = await admin.see("/events")
    assert "order.paid" in page and "mail.receipt" in page
    spanish = await admin.see("/events", **{"accept-language": "es"})
    assert "Suscriptores" in spanish and ">Dar de baja<" in spanish
    assert "mail.receipt" in await viewer.see(f"/events/{some.event}")

    fields = {"event": "order.paid", "name": "mail.receipt"}
    await viewer.do("/events/unsubscribe", 403, **fields)
    await admin.do("/events/unsubscribe", **fields)
    assert (await web.relevo.subscribers.read(["order.paid"]))["order.paid"] == ()
    await admin.do("/events/unsubscribe", 404, **fields)


async def test_breakers_are_turned(web: Site, admin: Visitor, some: Filled) -> None:
    await admin.do("/breakers/close", name="reader", note="they are back")
    assert (await web.relevo.desk.breaker("reader")).circuit.state == "closed"
    await admin.do("/breakers/open", name="supplier:28")
    assert (await web.relevo.desk.breaker("supplier:28")).circuit.state == "open"
    await admin.do("/breakers/probe", name="supplier:28", back="/breakers")
    assert "they are back" in await admin.see("/breakers/one?name=reader")


async def test_an_implied_breaker_and_a_crashed_job_say_so(web: Site, admin: Visitor) -> None:
    store, breakers = web.relevo.store, web.relevo.breakers
    await breakers.failed(BOOK, None, "j1", "503", is_last=True)
    await breakers.failed("supplier:28", Breaker("b"), "j2", "503", is_last=True)
    spanish = {"accept-language": "es"}
    assert (await admin.see("/breakers", **spanish)).count("implícito") == 1
    one = "/breakers/one?" + urlencode({"name": BOOK})
    assert "Its commands have no breaker=" in await admin.see(one)
    assert "implied" not in await admin.see("/breakers/one?name=supplier:28")

    id = await add(store, BOOK)
    leases = await take(store, 1, Want(queue=BOOK))
    assert "Crashes" not in await admin.see(f"/jobs/{id}")
    assert await store.isolate(leases) == [True]
    assert "Crashes, running alone" in await admin.see(f"/jobs/{id}")
    assert "Caídas, corriendo solo" in await admin.see(f"/jobs/{id}", **spanish)


async def test_pollers_are_paused_resumed_and_run(web: Site, admin: Visitor, some: Filled) -> None:
    desk = web.relevo.desk
    what = {"what": "poller", "name": "hotel:hotel999"}
    await admin.do("/recurring/pause", **what)
    assert (await desk.recurring_one("poller", "hotel:hotel999")).is_paused
    await admin.do("/recurring/resume", **what)
    await admin.do("/recurring/run", what="schedule", name="hotel.report")
    assert (await desk.recurring_one("schedule", "hotel.report")).state is State.READY


@pytest.mark.parametrize(
    ("verb", "fields", "end"),
    [
        ("confirm", {"code": "MX-1", "anyway": "1"}, EffectState.CONFIRMED),
        ("confirm", {"result": '{"code": "MX-1"}', "anyway": "1"}, EffectState.CONFIRMED),
        ("deny", {}, EffectState.FAILED),
        ("deny", {"fresh_key": "1"}, EffectState.REFUSED),
    ],
    ids=["code", "result", "deny", "deny with a fresh key"],
)
async def test_an_unknown_effect_is_decided(
    web: Site, admin: Visitor, some: Filled, verb: str, fields: dict[str, str], end: EffectState
) -> None:
    page = await admin.see("/effects")
    assert page.index("For a person to decide") < page.index(some.held)
    known = {"job": some.held, "name": "book", "note": "I called them"}
    await admin.do(f"/effects/{verb}", **known, **fields)
    assert (await web.relevo.desk.effect(some.held, "book")).state is end
    assert await state(web.relevo.store, some.held) is State.READY


async def test_an_effect_that_several_jobs_share_is_seen_and_decided(
    web: Site, admin: Visitor, some: Filled
) -> None:
    store = web.relevo.store
    own = await web.relevo.desk.effect(some.held, "book")
    shared = replace(own, job=new_id(), name="mail", key="k", state=EffectState.INTENDED)
    await store.intend([shared])
    await store.conclude([replace(shared, state=EffectState.UNKNOWN)])
    known = {"job": shared.job, "name": "mail"}
    assert f"/jobs/{some.held}" in await admin.see(f"/effects/one?job={shared.job}&name=mail")
    led = await admin.client.get(f"/jobs/{shared.job}")
    assert (led.status_code, led.headers["location"]) == (303, f"/effects?job={shared.job}")
    await admin.do("/effects/deny", **known)
    assert (await web.relevo.desk.effect(**known)).state is EffectState.FAILED
    assert await state(store, some.held) is State.READY
    await admin.see(f"/effects/one?job={shared.job}&name=mail")


async def test_a_result_that_is_neither_or_both_is_refused(admin: Visitor, some: Filled) -> None:
    known = {"job": some.held, "name": "book"}
    await admin.do("/effects/confirm", 400, **known)
    await admin.do("/effects/confirm", 400, **known, code="a", result="1")
    await admin.do("/effects/confirm", 400, **known, result="not json")


async def test_a_group_of_jobs_is_seen_and_cancelled(
    admin: Visitor, viewer: Visitor, some: Filled, web: Site
) -> None:
    assert "import:2026-11-18" in await viewer.see("/groups")
    page = await viewer.see(f"/groups/{some.job_group}")
    assert "0 members" in page
    assert "Cancel the group" not in page
    assert "Cancel the group" in await admin.see(f"/groups/{some.job_group}")
    await admin.do(f"/groups/{some.job_group}/cancel", note="not needed")
    assert "1 jobs were cancelled." in await admin.see(f"/groups/{some.job_group}")
    assert (await web.relevo.desk.job(some.job_group)).state is State.CANCELLED


async def test_a_flow_is_drawn_explained_retried_and_cancelled(
    web: Site, admin: Visitor, some: Filled
) -> None:
    page = await admin.see(f"/flows/{some.flow}")
    assert page.count('class="node ') == 10
    assert page.count("may-fail") == 1
    assert "the breaker 'reader' is open" in page
    await admin.do(f"/flows/{some.flow}/cancel", note="not needed")
    flow = await web.relevo.desk.flow(some.flow)
    assert State.WAITING not in flow.counts
    await admin.do(f"/flows/{some.flow}/retry")


async def test_a_flow_shows_the_jobs_that_stand_for_its_nodes(
    web: Site, admin: Visitor, some: Filled
) -> None:
    store, flow = web.relevo.store, new_id()
    outside = new_job("test:work:one")
    await put(store, outside)
    await put(store, new_job("test:work:one", flow=flow, node="x", after=(After(outside.id),)))
    page = await admin.see(f"/flows/{flow}")
    assert f"/jobs/{outside.id}" in page.partition("Nodes that joined other jobs")[2]
    assert "joined other jobs" not in await admin.see(f"/flows/{some.flow}")


# live


async def listen(web: Site, visitor: Visitor, **headers: str) -> httpx2.Response:
    return await visitor.client.get("/live", headers={"accept": "text/event-stream", **headers})


async def test_the_stream_refuses_other_origins_and_crowds(
    web: Site, admin: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B62"""
    assert (await listen(web, admin, origin=EVIL)).status_code == 403
    assert (await admin.client.get("/live")).status_code == 406
    monkeypatch.setattr("relevo.dashboard.live.PER_PERSON", 0)
    assert (await listen(web, admin)).status_code == 429


async def test_a_watcher_who_leaves_gives_the_place_back(
    web: Site, admin: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B62"""
    monkeypatch.setattr("relevo.dashboard.live.PER_PERSON", 2)
    monkeypatch.setattr("relevo.dashboard.live.LONGEST", 0.0)
    for _ in range(5):
        answer = await listen(web, admin)
        assert answer.status_code == 200
        assert answer.text.startswith("retry: ")


class Watcher:
    """Somebody at the stream, by hand; one who never reads holds every answer up."""

    def __init__(self, web: Site, cookie: str, *, reads: bool = True) -> None:
        self.heard: list[bytes] = []
        self.status = 0
        self._reads = reads
        self._gone = asyncio.Event()
        headers = {"host": "127.0.0.1", "accept": "text/event-stream", "cookie": cookie}
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/live",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("192.0.2.7", 4711),
        }
        self.task = asyncio.create_task(web.app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        self.status = message.get("status", self.status)
        if message["type"] == "http.response.body":
            self.heard.append(message["body"])
            if not self._reads:
                await asyncio.Event().wait()

    async def leave(self) -> None:
        self._gone.set()
        await self.task


async def test_one_who_never_reads_holds_up_nobody(
    web: Site, admin: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B62"""
    monkeypatch.setattr("relevo.dashboard.live.EVERY", 0.05)
    monkeypatch.setattr("relevo.dashboard.live.PER_PERSON", 20)
    cookie = "; ".join(f"{name}={value}" for name, value in admin.client.cookies.items())
    idle = [Watcher(web, cookie, reads=False) for _ in range(19)]
    await until(lambda: all(each.heard for each in idle))
    reader = Watcher(web, cookie)
    await until(lambda: sum(b"event: look" in part for part in reader.heard) >= 3)
    assert all(len(each.heard) == 1 for each in idle)  # nothing is kept for them
    late = Watcher(web, cookie)
    await late.task
    assert late.status == 429
    for each in (*idle, reader):
        await each.leave()
    again = Watcher(web, cookie)
    await until(lambda: bool(again.heard))
    web.relevo.leaving.set()  # the program ends, and does not wait for those who watch
    await again.task
    assert again.heard[-1] == b""


@pytest.mark.parametrize("kit", [True], ids=["hostile"], indirect=True)
async def test_no_text_of_others_becomes_markup(web: Site, admin: Visitor, some: Filled) -> None:
    """C11"""
    for path in (*paths(some).values(), "/breakers", f"/jobs/{some.booked}", f"/jobs/{some.held}"):
        if "name=book" in path:
            path = f"/effects?job={some.held}"
        answer = await admin.client.get(path, headers=ACCEPT, follow_redirects=True)
        assert answer.status_code == 200, path
        assert "<img" not in answer.text.replace('<img src="/static/relevo.svg', ""), path
        assert "<script>" not in answer.text, path
        assert SCRIPT not in answer.text, path


async def test_nothing_of_the_pages_goes_on_when_the_engine_has_closed(
    web: Site, admin: Visitor, some: Filled
) -> None:
    await admin.see("/")
    begun = await admin.do("/jobs/bulk", verb="retry", state="dead", rate="1/m", note="slowly")
    assert begun.headers["location"].startswith("/sweeps/")

    await web.relevo.close()

    names = {task.get_name() for task in asyncio.all_tasks()}
    assert not [name for name in names if name.startswith(("relevo-dashboard", "relevo-sweep"))]


# failed deliveries


def _broken(*_: object) -> object:
    raise RuntimeError("no such car")


async def _fail(web: Site, many: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site_module, "Book", _broken)
        async with web.browser() as provider:
            for number in range(many):
                sent = {"id": f"evt_{number}", "code": f"RES-{number}"}
                answer = await provider.post("/hooks/cars", json=sent, headers={"x-secret": HOOK})
                assert answer.status_code == 200


async def _some(found: Awaitable[list[str]]) -> bool:
    return bool(await found)


async def _over(admin: Visitor, begun: httpx2.Response) -> str:
    """The page of a change of many, once that is over."""
    pages: list[str] = []

    async def is_over() -> bool:
        pages.append(await admin.see(begun.headers["location"]))
        return ">over<" in pages[-1]

    await until(is_over)
    return pages[-1]


async def test_failed_deliveries_are_seen_at_once_and_handled_after_the_fix(
    web: Site, admin: Visitor, viewer: Visitor
) -> None:
    await _fail(web, 30)

    overview = await admin.see("/")
    assert "All is well" not in overview
    assert "30 failed deliveries of /hooks/cars: RuntimeError: no such car" in overview
    spanish = await admin.see("/", **{"accept-language": "es"})
    assert "30 entregas fallidas de /hooks/cars: RuntimeError: no such car" in spanish
    page = await admin.see("/deliveries?state=failed")
    assert re.search(r"failed <strong>30</strong>", page)
    link = re.search(r'href="(/deliveries/bulk[^"]+)">Retry all after the fix…', page)
    assert link
    assert "Retry all after the fix…" not in await viewer.see("/deliveries?state=failed")
    [sample] = set(re.findall(r'href="/deliveries/(\w{32})">Sample', page))
    assert "A job runs its function:" in await admin.see(f"/deliveries/{sample}")

    asked = await admin.see(link[1])
    assert "Handle 30 deliveries" in asked
    names = "state|endpoint|group|until"
    fields = dict(re.findall(rf'type="hidden" name="({names})" value="([^"]*)"', asked))
    assert sorted(fields) == ["endpoint", "group", "state", "until"]
    token = await viewer.token()
    refused = await viewer.client.post("/deliveries/bulk", data={"csrf": token, **fields})
    assert refused.status_code == 403
    begun = await admin.do("/deliveries/bulk", note="mended", **fields)
    page = await _over(admin, begun)
    assert re.search(r"30 <span>of 30 deliveries", page)
    rows, _ = await web.relevo.store.audits(limit=200)
    assert len([row for row in rows if row.verb == "replay many"]) == 1
    assert "failed deliveries" not in await admin.see("/")


async def test_what_a_replay_would_do_twice_is_listed_beside_its_box(
    web: Site, admin: Visitor
) -> None:
    """F54: by name, key and time; without such an effect there is no box."""
    async with web.browser() as provider:
        sent = {"id": "evt_1", "code": "RES-1"}
        answer = await provider.post("/hooks/cars", json=sent, headers={"x-secret": HOOK})
        assert answer.status_code == 200
    [kept], _ = await web.relevo.store.deliveries(Letterbox(key="evt_1"))
    path = f"/deliveries/{kept.id}/rehearse"
    assert 'name="effects"' not in (await admin.do(path, 200)).text
    effect = Effect(job=kept.jobs[0], queue=CHARGE, name="charge", key="k-17", thread=kept.id)
    await web.relevo.store.intend([effect])
    confirmed = msgspec.structs.replace(effect, state=EffectState.CONFIRMED, result=b"1")
    assert await web.relevo.store.conclude([confirmed]) == [True]

    page = (await admin.do(path, 200)).text
    table = page.partition('id="happened"')[2].partition("</table>")[0]
    assert ">charge<" in table
    assert ">k-17<" in table
    assert "<time" in table
    assert "Make these one effect outside once more, too" in page
    assert 'name="effects"' in page


async def test_what_replays_of_many_would_do_twice_is_counted(web: Site, admin: Visitor) -> None:
    """F54"""
    async with web.browser() as provider:
        for number in range(3):
            sent = {"id": f"evt_{number}", "code": "RES-1"}
            await provider.post("/hooks/cars", json=sent, headers={"x-secret": HOOK})
    path = "/deliveries/bulk?state=accepted"
    assert 'name="effects"' not in await admin.see(path)
    for kept in (await web.relevo.store.deliveries(Letterbox()))[0]:
        effect = Effect(job=kept.jobs[0], queue=CHARGE, name="charge", key="k", thread=kept.id)
        await web.relevo.store.intend([effect])
        confirmed = msgspec.structs.replace(effect, state=EffectState.CONFIRMED, result=b"1")
        await web.relevo.store.conclude([confirmed])

    page = await admin.see(path)
    table = page.partition('id="happened"')[2].partition("</table>")[0]
    assert re.findall(r">(charge|3|k)<", table) == ["charge", "3", "3", "k"]
    assert "Make these 3 effects outside once more, too" in page
    await admin.do("/deliveries/bulk", state="accepted", effects="1")

    async def noted() -> list[str]:
        rows, _ = await web.relevo.store.audits(limit=200)
        return [row.note for row in rows if row.verb == "replay many"]

    await until(lambda: _some(noted()))
    assert "effects repeated" in (await noted())[0]


async def test_many_are_chosen_by_webhook_state_time_and_error(web: Site, admin: Visitor) -> None:
    """F54: and handled at a rate, which can be stopped."""
    await _fail(web, 3)
    assert "/deliveries/bulk?state=failed" in await admin.see("/deliveries")
    asked = await admin.see(
        "/deliveries/bulk?state=failed&error=no+such+car&since=2020-01-01T00:00"
    )
    assert "Handle 3 deliveries" in asked
    names = "state|error|since|until"
    fields = dict(re.findall(rf'type="hidden" name="({names})" value="([^"]*)"', asked))
    assert (fields["error"], fields["state"]) == ("no such car", "failed")
    other = await admin.see("/deliveries/bulk?state=failed&error=other")
    assert "Handle 3" not in other
    assert "No delivery is like that" in other
    assert "Recibidas desde" in await admin.see("/deliveries/bulk", **{"accept-language": "es"})
    await admin.see("/deliveries/bulk?state=failed&since=never-ever", 400)
    await admin.do("/deliveries/bulk", 400, rate="quick", **fields)
    begun = await admin.do("/deliveries/bulk", rate="1/m", note="slowly", **fields)

    async def told(verb: str) -> list[str]:
        rows, _ = await web.relevo.store.audits(limit=200)
        return [row.note for row in rows if row.verb == verb]

    await until(lambda: _some(told("replay")))
    await admin.do(f"{begun.headers['location']}/stop")
    await until(lambda: _some(told("replay many")))
    assert "1 of 3 handled" in (await told("replay many"))[0]


async def test_what_fails_again_is_told_and_stops_nothing(web: Site, admin: Visitor) -> None:
    await _fail(web, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site_module, "Book", _broken)
        begun = await admin.do("/deliveries/bulk", state="failed")
        page = await _over(admin, begun)
    assert "3 failed again" in page
    assert "RuntimeError: no such car" in page


async def test_a_failed_delivery_is_looked_at_before_the_next_look_is_due(web: Site) -> None:
    live = Live(web.relevo.desk, web.relevo)
    live._every = 3_600  # pyright: ignore[reportPrivateUsage] - no look but the one it brings
    with live.seat("ann"):
        assert not (await live.look(fresh=3_600)).troubles
        await _fail(web, 1)

        async def is_seen() -> bool:
            return bool((await live.look(fresh=3_600)).troubles)

        await until(is_seen)
    await live.close()
