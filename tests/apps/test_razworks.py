"""razworks: registering answers at once, each listener reacts on its own, recordings flow."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from relevo import App, Command, Context, DefinitionError, PayloadError, Relevo
from relevo.apps import tables
from relevo.apps.razworks import MIGRATIONS, app, records
from relevo.apps.razworks.auth.queues import SendWelcomeEmail
from relevo.apps.razworks.projects.events import ProjectPublished
from relevo.job import State
from relevo.message import codec
from relevo.simulators import World
from relevo.store import Filter
from relevo.testing import ManualClock, drain
from tests.servers import postgres

PERSON = {"email": "Ana@Example.com", "name": "Ana Paz", "password": "twelve letters at least"}


@pytest.fixture
async def relevo(tmp_path: Path, world: World, clock: ManualClock) -> AsyncGenerator[Relevo]:
    async with Relevo(f"sqlite:///{tmp_path / 'r.db'}", apps=[app], clock=clock) as engine:
        yield engine


@pytest.fixture
async def api(relevo: Relevo) -> AsyncGenerator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=relevo.asgi())
    base = "http://127.0.0.1/razworks/api"
    async with httpx2.AsyncClient(transport=transport, base_url=base) as client:
        yield client


async def register(api: httpx2.AsyncClient, **change: Any) -> str:
    answer = await api.post("/users", json={**PERSON, **change})
    assert answer.status_code == 202, answer.text
    return answer.json()["id"]


async def upload(api: httpx2.AsyncClient, user_id: str, name: str = "idea.ogg") -> str:
    url = f"https://storage.razworks.example/{name}?signature=x"
    wish = {"user_id": user_id, "storage_url": url, "media_type": "audio/ogg"}
    answer = await api.post("/recordings", json=wish)
    assert answer.status_code == 202, answer.text
    return answer.json()["id"]


async def test_registering_answers_at_once_and_the_rest_follows(
    api: httpx2.AsyncClient, relevo: Relevo, world: World
) -> None:
    user_id = await register(api)
    before = (await api.get(f"/users/{user_id}")).json()
    assert (before["points"], before["coins"], before["welcomed"]) == (None, None, False)
    assert world.ledger.count("relay") == 0

    await drain(relevo)
    after = (await api.get(f"/users/{user_id}")).json()
    assert (after["points"], after["coins"], after["welcomed"]) == (10, 5, True)
    assert world.ledger.count("relay", "send", "ana@example.com") == 1


async def test_each_listener_has_its_own_queue_retries_and_dead_letters(
    api: httpx2.AsyncClient, relevo: Relevo, world: World
) -> None:
    world.faults.add("relay", "send", "refuse", times=1)
    user_id = await register(api)
    await drain(relevo)
    page = await relevo.store.page(Filter(states=frozenset({State.DEAD})))
    assert [job.queue for job in page.jobs] == ["razworks:auth:welcome-email"]
    # The others were not disturbed, and the dead one waits for a person.
    assert (await api.get(f"/users/{user_id}")).json()["coins"] == 5
    queues = {tally.queue for tally in await relevo.store.tally()}
    assert {
        "razworks:gamification:create-profile",
        "razworks:gamification:create-wallet",
        "razworks:auth:order-welcome",
    } <= queues


async def test_the_same_fact_twice_pays_once(api: httpx2.AsyncClient, relevo: Relevo) -> None:
    user_id = await register(api)
    await drain(relevo)
    wish = {"user_id": user_id, "title": "A boat", "text": "It floats. It floats well."}
    project_id = (await api.post("/projects", json=wish)).json()["id"]
    await relevo.publish(ProjectPublished(project_id, user_id))
    await drain(relevo)
    assert (await api.get(f"/users/{user_id}")).json()["points"] == 60
    async with relevo.transaction() as tx:
        project = await tx.get(records.Project, project_id)
        assert project is not None
        assert project.words == ["a", "boat", "floats", "it"]


async def test_b08_b09_a_body_without_end_is_not_read(api: httpx2.AsyncClient) -> None:
    sent = 0

    async def endless() -> AsyncGenerator[bytes]:
        nonlocal sent
        while True:
            sent += 65_536
            yield b" " * 65_536

    typed = {"content-type": "application/json"}
    answer = await api.post("/users", content=b" " * 2_097_153, headers=typed)
    assert (answer.status_code, answer.json()) == (413, {"detail": "too_large"})
    answer = await api.post("/users", content=endless(), headers=typed)
    assert (answer.status_code, answer.json()) == (413, {"detail": "too_large"})
    assert sent < 3_000_000


async def test_an_address_registers_once(api: httpx2.AsyncClient) -> None:
    await register(api)
    assert (
        await api.post("/users", json={**PERSON, "email": "ana@example.COM"})
    ).status_code == 409


@pytest.mark.parametrize(
    "change",
    [
        {"email": "ana"},
        {"email": "a@b.c, d@e.f"},
        {"name": ""},
        {"name": "a\r\nBcc: x@y.z"},
        {"password": "short"},
        {"is_admin": True},
    ],
)
async def test_a_bad_registration_names_its_field(
    api: httpx2.AsyncClient, change: dict[str, Any]
) -> None:
    """B47"""
    answer = await api.post("/users", json={**PERSON, **change})
    assert answer.status_code == 422
    assert next(iter(change)) in answer.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/users", '{"email": "a@b.co", "name": "\\ud800", "password": "short"}'),
        ("/users", '{"email": "a@b.co", "name": NaN, "password": "short"}'),
        ("/projects", '{"user_id": "%s", "title": "a\\u0000b", "text": "x"}'),
        (
            "/recordings",
            '{"user_id": "%s", "storage_url": "https://[", "media_type": "audio/ogg"}',
        ),
        (
            "/recordings",
            (
                '{"user_id": "%s", "media_type": "audio/ogg",\n'
                r'"storage_url": "https://x\\@storage.razworks.example"}'
            ),
        ),
    ],
    ids=["surrogate", "nan", "nul", "brackets", "backslash"],
)
async def test_b20_what_cannot_be_kept_is_refused_and_not_repeated(
    api: httpx2.AsyncClient, path: str, body: str
) -> None:
    sent = body.replace("%s", await register(api))
    answer = await api.post(path, content=sent, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert "short" not in answer.text.replace("too_short", "")


def test_a_password_travels_in_no_payload() -> None:
    class SendSecret(Command, queue="razworks:auth:send-secret", attempts=3, timeout="5s"):
        user_id: str
        password: str

    async def send(order: SendSecret, ctx: Context) -> None: ...

    with pytest.raises(DefinitionError, match="send an id"):
        App("secrets", workers=[send])
    with pytest.raises(PayloadError) as caught:
        codec(SendWelcomeEmail).encode(SendWelcomeEmail("Bearer 7h1s-1s.n0t-an.1d"))
    assert "user_id" in str(caught.value)
    assert "7h1s" not in str(caught.value)


async def test_a_password_is_kept_as_a_hash_alone(
    api: httpx2.AsyncClient, relevo: Relevo, tmp_path: Path
) -> None:
    await register(api)
    await drain(relevo)
    files = b"".join(each.read_bytes() for each in tmp_path.iterdir() if each.is_file())
    assert b"twelve letters" not in files


async def test_a_recording_is_understood(
    api: httpx2.AsyncClient, relevo: Relevo, world: World
) -> None:
    recording = await upload(api, await register(api))
    assert (await api.get(f"/recordings/{recording}")).json()["status"] == "pending"
    await drain(relevo)
    found = (await api.get(f"/recordings/{recording}")).json()
    assert found["status"] == "understood"
    assert found["transcript"]
    assert found["summary"]
    assert found["intent"]
    assert world.calls["gemini:generate"] == 4


async def test_a_child_that_fails_controllably_loses_nobody_else_s_work(
    api: httpx2.AsyncClient, relevo: Relevo, world: World
) -> None:
    recording = await upload(api, await register(api), name="no-mentions.ogg")
    await drain(relevo, skip_waits=True)
    found = (await api.get(f"/recordings/{recording}")).json()
    assert found["status"] == "understood"
    assert found["mentions"] == []
    page = await relevo.store.page(Filter(states=frozenset({State.DEAD})))
    assert [job.queue for job in page.jobs] == ["razworks:cortex:extract-text"]


async def test_without_a_transcript_there_is_no_summary(
    api: httpx2.AsyncClient, relevo: Relevo
) -> None:
    recording = await upload(api, await register(api), name="no-transcript.ogg")
    await drain(relevo, skip_waits=True)
    assert (await api.get(f"/recordings/{recording}")).json()["status"] == "failed"
    for path in ("", f"/recordings/{recording}"):
        shown = (await api.get(f"http://127.0.0.1/razworks{path}")).text
        assert '<span class="badge dead">failed</span>' in shown
        assert "in progress" not in shown
        assert "hx-trigger" not in shown  # there is nothing to wait for
    page = await relevo.store.page(Filter(states=frozenset({State.DEAD})))
    assert {job.queue for job in page.jobs} == {
        "razworks:cortex:transcribe-audio",
        "razworks:cortex:summarise",
    }


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"storage_url": "https://evil.example/x.ogg"}, "storage_url"),
        ({"storage_url": "file:///etc/passwd"}, "storage_url"),
        ({"media_type": "video/mp4"}, "media_type"),
        ({"audio": "UklGR…"}, "audio"),
        ({"user_id": "0" * 32}, "user_id"),
    ],
)
async def test_a_recording_comes_by_reference_to_our_storage_only(
    api: httpx2.AsyncClient, change: dict[str, str], field: str
) -> None:
    user_id = await register(api)
    wish = {
        "user_id": user_id,
        "storage_url": "https://storage.razworks.example/a.ogg",
        "media_type": "audio/ogg",
        **change,
    }
    answer = await api.post("/recordings", json=wish)
    assert answer.status_code == 422
    assert field in answer.text


@pytest.mark.parametrize("language", ["en", "es"])
async def test_the_pages_show_people_and_the_flow(
    api: httpx2.AsyncClient, relevo: Relevo, language: str
) -> None:
    recording = await upload(api, await register(api))
    await drain(relevo)
    page = await api.get(f"http://127.0.0.1/razworks?lang={language}")
    assert page.status_code == 200
    assert ("Grabaciones" if language == "es" else "Recordings") in page.text
    flow = await api.get(f"http://127.0.0.1/razworks/recordings/{recording}")
    assert flow.status_code == 200
    assert flow.text.count('class="node done"') == 4


@pytest.mark.xdist_group("postgres")
async def test_a_person_and_a_recording_on_postgres(world: World) -> None:
    """The main story once more where rows, facts and orders share a server."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(postgres.fresh_address())
        await tables.migrate(url, MIGRATIONS)
        relevo = await stack.enter_async_context(Relevo(url, apps=[app]))
        transport = httpx2.ASGITransport(app=relevo.asgi())
        base = "http://127.0.0.1/razworks/api"
        api = await stack.enter_async_context(
            httpx2.AsyncClient(transport=transport, base_url=base)
        )
        user_id = await register(api)
        assert (await api.post("/users", json=PERSON)).status_code == 409
        recording = await upload(api, user_id)
        await drain(relevo)
        person = (await api.get(f"/users/{user_id}")).json()
        assert (person["welcomed"], person["coins"]) == (True, 5)
        assert (await api.get(f"/recordings/{recording}")).json()["status"] == "understood"
        assert world.ledger.count("relay", "send", "ana@example.com") == 1
