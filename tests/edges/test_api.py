"""The desk over HTTP: roles, masks, limits, and what is written down."""

from __future__ import annotations

import html
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import httpx2
import msgspec
import pytest

from relevo import Relevo
from relevo.api import CALLS
from relevo.api.call import Call
from relevo.breaker import KIND, Circuit
from relevo.desk import ACTIONS, Person, Role
from relevo.events import Subscriber, Subscribers, with_subscriber
from relevo.ids import new_id
from relevo.job import After, Before, Failure, State
from relevo.message import EVENTS
from relevo.poller import Progress
from relevo.restored import mark_restored
from relevo.store import (
    FAILED_OF,
    Arrival,
    Audit,
    By,
    DeliveryState,
    Effect,
    EffectState,
    Kept,
    Note,
    Store,
    WorkerInfo,
)
from relevo.unrouted import KIND as UNROUTED
from relevo.unrouted import Unrouted
from relevo.webhook import Answer
from tests.conformance.steps import about, add, add_parent, end, make, put, take_id, take_one
from tests.conformance.steps import job as new_job
from tests.edges.schema import problems
from tests.edges.site import ACCEPT, ENDLESS, HOOK, ORIGIN, Site, filled, token_of

BOOK = "cars:suppliers:book"
SAVE = "hotel:messages:save"
POLL = "cars:pollers:poll-rates"
MAIL = "ana.perez@example.com"
PAYLOAD = json.dumps({"code": "RES-1", "email": MAIL}).encode()


SAID = f"no mailbox {MAIL}, phone +52 998 123 4567"
LEAKY = Failure(
    type="Boom",
    message=SAID,
    trace=f"line 1\nno mailbox {MAIL}",
    fingerprint="leaky-1",
)
"""What a worker raises that quotes its payload."""


class Things(NamedTuple):
    """One of everything, of the app `cars`."""

    dead: str
    live: str
    held: str
    flow: str  # one that ended badly
    going: str  # one that has not ended
    group: str  # the job of a group
    delivery: str
    queue: str
    event: str
    subscriber: str
    bulk: str = ""  # a change of many jobs

    def of(self, call: Call) -> dict[str, Any]:
        """What a call may ask to be answered well."""
        note = {"note": "because"} if call.verb == "POST" else {}
        match call.subject, call.name:
            case "queues", "list_queues":
                return {}
            case "changes" | "pressure", _:
                return {}
            case "queues", "set_queue":
                return {"queue": self.queue, "limit": 7, "lasting": "1h", **note}
            case "queues", _:
                return {"queue": self.queue, **note}
            case "lanes", _:
                return {"queue": self.queue, "lane": "shop:1", **note}
            case "breakers", "set_breaker":
                return {"name": "supplier:28", "slow": "5s", **note}
            case "flows", "list_flows":
                return {}
            case "flows", "cancel_flow":
                return {"id": self.going, **note}
            case "flows", _:
                return {"id": self.flow, **note}
            case "groups", "list_groups":
                return {}
            case "groups", _:
                return {"id": self.group, **note}
            case "breakers", "list_breakers":
                return {}
            case "breakers", _:
                return {"name": "supplier:28", **note}
            case (("pollers" | "schedules"), name) if name.startswith("find"):
                return {}
            case "pollers", _:
                return {"name": "rates:cun", **note}
            case "schedules", _:
                return {"name": "cars.remind", **note}
            case "effects", "list_effects":
                return {}
            case "effects", "confirm_effect":
                return {"job": self.held, "name": "book", "result": {"code": "X"}, **note}
            case "effects", _:
                return {"job": self.held, "name": "book", **note}
            case "deliveries", "list_deliveries" | "list_unrouted" | "group_deliveries":
                return {}
            case "deliveries", "replay_deliveries":
                return {"state": "accepted", "limit": 1, **note}
            case "deliveries", _:
                return {"id": self.delivery, **note}
            case "jobs", "find_jobs" | "count_jobs":
                return {}
            case "jobs", "cancel_job":
                return {"id": self.live, **note}
            case "jobs", "cancel_jobs":
                return {"ids": [self.live], **note}
            case "jobs", "retry_jobs" | "discard_jobs":
                return {"ids": [self.dead], **note}
            case "jobs", "edit_job":
                return {"id": self.live, "attempts": 7}
            case "jobs", _:
                return {"id": self.dead, **note}
            case "dead", "retry_dead" | "discard_dead":
                return {"queue": self.queue, **note}
            case "events", "show_event":
                return {"id": self.event}
            case "subscribers", "unsubscribe":
                return {"event": "order.paid", "name": self.subscriber, **note}
            case "workers", "forget_worker":
                return {"id": f"silent-{self.queue}", **note}
            case "bulk", "list_bulk":
                return {}
            case "bulk", "begin_bulk":
                return {"queue": self.queue, **note}
            case "bulk", _:
                return {"id": self.bulk, **note}
            case (("trace" | "search"), _):
                return {"q": self.dead}
            case "forget", _:
                return {"key": f"evt_{self.queue}", **note}
            case _:
                return {}


async def died(store: Store, queue: str, **fields: Any) -> str:
    """A job whose worker quoted its payload in its last words."""
    id = await add(store, queue, **fields)
    lease = await take_id(store, id, queue)
    assert await end(store, lease, State.DEAD, failure=LEAKY)
    return id


async def stock(web: Site, queue: str = BOOK) -> Things:
    """Make one of everything."""
    store = web.relevo.store
    dead = await died(store, queue, payload=PAYLOAD, thread="t-1")
    held = await add(store, queue, payload=PAYLOAD)
    lease = await take_id(store, held, queue)
    effect = Effect(job=held, queue=queue, name="book", key=f"{held}:book", run="r", thread=held)
    await store.intend([effect])
    unknown = msgspec.structs.replace(
        effect, state=EffectState.UNKNOWN, result=PAYLOAD, error=LEAKY.message
    )
    assert await store.conclude([unknown]) == [True]
    assert await end(store, lease, State.HELD, failure=LEAKY)
    flow = new_id()
    child = await died(store, queue, flow=flow, node="first")
    await add_parent(store, child, queue=queue, flow=flow, node="last")
    going = new_id()
    child = await make(store, State.SCHEDULED, queue, flow=going, node="first")
    await add_parent(store, child, queue=queue, flow=going, node="last")
    live = await add(store, queue, payload=PAYLOAD, delay=3_600_000)
    kept = Kept(
        id=new_id(),
        endpoint=f"{queue.partition(':')[0]}:/hooks/cars",
        key=f"evt_{queue}",
        path="/hooks/cars",
        query=f"code=RES-9&email={quote(MAIL)}",
        headers=b'[["content-type","application/json"]]',
        body=b'{"id":"evt_%b","code":"RES-9","email":"ana.perez@example.com"}' % queue.encode(),
        answer=msgspec.msgpack.encode(Answer.json({"ok": True, "to": MAIL})),
        thread=new_id(),
    )
    failed = msgspec.structs.replace(
        kept,
        id=new_id(),
        key=f"failed_{queue}",
        thread=new_id(),
        body=b"{}",
        state=DeliveryState.FAILED,
        reason=f"{FAILED_OF}ValueError: no mailbox {MAIL}",
    )
    await store.receive([Arrival(kept), Arrival(failed)])
    silent = WorkerInfo(id=f"silent-{queue}", host="h", pid=1, queues=[queue], concurrency=5)
    await store.beat(silent, 0)
    now = await store.now()
    stray = Unrouted(
        endpoint=kept.endpoint,
        cause="wrong_path",
        address=None,
        first_at=now,
        last_at=now,
        status=404,
        method="POST",
        path="/hooks/cras",
        headers=("host",),
        size=None,
        hash="",
    )
    value = msgspec.json.encode([stray])
    await store.remember([Note(kind=UNROUTED, name=f"{kept.endpoint} wrong_path", value=value)])
    await mark_restored(store, By("setup"))
    group = new_job(f"{queue}-report", node="import:1")
    [opened] = await store.insert(
        [msgspec.structs.replace(group, after=(After(group.id, "tally"),))]
    )
    await add(store, f"{queue}-row", before=(Before(opened.id, group.queue, "tally"),))
    event = await add(store, EVENTS, kind="order.paid", payload=PAYLOAD)
    subscriber = Subscriber(name=f"{queue}.book", queue=queue, attempts=3, keep=0)
    await Subscribers(store).change("order.paid", with_subscriber(subscriber))
    await web.relevo.desk.edit(dead, Person("setup", Role.ADMIN), attempts=9)
    return Things(dead, live, held, flow, going, group.id, kept.id, queue, event, subscriber.name)


async def begin(web: Site, queue: str) -> str:
    """A change of many jobs that goes on until it is stopped."""
    for _ in range(2):
        await died(web.relevo.store, f"{queue}-many")
    token, _ = await web.people.add_token(f"bulk-{new_id()}", Role.ADMIN, apps=("cars",), by="ann")
    async with web.browser(headers={"authorization": f"Bearer {token}"}) as cars:
        slow = {"queue": f"{queue}-many", "rate": "1/h"}
        return (await cars.post("/api/bulk", json=slow)).json()["id"]


@pytest.fixture
async def things(web: Site) -> Things:
    made = await stock(web)
    store = web.relevo.store
    circuit = Circuit().turned(1_700_000_000_000, "open", f"no answer for {MAIL}")
    note = Note(kind=KIND, name="supplier:28", value=msgspec.json.encode(circuit))
    await store.remember([note])
    await store.beat(WorkerInfo(id="w1", host="h", pid=1, queues=[BOOK], concurrency=5), 60_000)
    await web.relevo.recurring.ensure()
    for queue in (POLL, "cars:schedules:remind"):
        await turned(store, queue)
    return made._replace(bulk=await begin(web, BOOK))


async def turned(store: Store, queue: str) -> None:
    """Take a turn of what recurs, so that it waits for its next."""
    lease = await take_one(store, queue)
    progress = msgspec.json.encode(Progress(cursor={"since": MAIL}, failures=2, error=SAID))
    assert await end(store, lease, State.SCHEDULED, delay=3_600_000, spend=False, result=progress)


@asynccontextmanager
async def caller(web: Site, role: Role, *apps: str) -> AsyncIterator[httpx2.AsyncClient]:
    """A program of this role."""
    token, _ = await web.people.add_token(f"ci-{role}-{len(apps)}", role, apps=apps, by="ann")
    async with web.browser(headers={"authorization": f"Bearer {token}"}) as client:
        yield client


async def ask(client: httpx2.AsyncClient, call: Call, fields: dict[str, Any]) -> httpx2.Response:
    path = f"/api{call.path}"
    for place in call.places:
        path = path.replace(f"{{{place}}}", fields[place]).replace(
            f"{{{place}:path}}", fields[place]
        )
    rest = {name: value for name, value in fields.items() if name not in call.places}
    if call.verb == "GET":
        return await client.get(path, params=rest)
    return await client.request(call.verb, path, json=rest)


# roles


async def test_a_role_reaches_as_far_as_the_desk_says(web: Site, things: Things) -> None:
    """C15: role × call, by the desk's own list."""
    assert {call.action for call in CALLS} == set(ACTIONS) - {"reveal"}
    refused: dict[Role, int] = {}
    for role in Role:
        rank = list(Role).index(role)
        async with caller(web, role) as client:
            before = web.state()
            for call in CALLS:
                may = list(Role).index(call.role) <= rank
                if may and call.verb != "GET":
                    continue  # done, one by one, below
                answer = await ask(client, call, things.of(call))
                assert (answer.status_code == 200) is may, (role, call.name, answer.text)
                assert may or answer.status_code == 403
                refused[role] = refused.get(role, 0) + (not may)
            assert web.state() == before
    assert refused[Role.VIEWER] > refused[Role.OPERATOR] > 0 == refused[Role.ADMIN]


async def test_an_action_is_written_down_once(web: Site, things: Things) -> None:
    """C37: one row for each thing that was changed."""
    document = await _document(web)
    news = News(web.relevo.store)
    actions = [call for call in CALLS if call.verb != "GET"]
    async with caller(web, Role.ADMIN) as admin, caller(web, Role.ADMIN, "cars") as other:
        for number, call in enumerate(actions):
            things = await stock(web, f"cars:suppliers:book-{number}")
            if call.name == "resume_queue":
                await other.post(f"/api/queues/{things.queue}/pause")
            elif call.name == "run_pollers":
                await turned(web.relevo.store, POLL)
            elif call.name == "stop_bulk":
                things = things._replace(bulk=await begin(web, things.queue))
            elif call.name in ("unset_queue", "unset_breaker", "resume_lane"):
                await changed(web.relevo, things.queue)
            elif call.name == "cancel_lane":
                await add(web.relevo.store, things.queue, lane="shop:1")
            await news.rows()
            answer = await ask(admin, call, things.of(call))
            assert answer.status_code == 200, (call.name, answer.text)
            operation = document["paths"][call.plain_path][call.verb.lower()]
            schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
            assert problems(answer.json(), schema, document) == [], call.name
            rows = [row for row in await news.rows() if row.verb != "use token"]
            assert {row.who for row in rows} == {"token/ci-admin-0"}, call.name
            targets = [row.target for row in rows]
            assert len(set(targets)) == len(targets) == ROWS.get(call.name, 1), call.name


async def changed(relevo: Relevo, queue: str) -> None:
    """Change a queue, a lane of it and a breaker."""
    ana = Person("ana", Role.OPERATOR)
    await relevo.desk.set_queue(queue, ana, limit=9)
    await relevo.desk.set_lane(queue, "shop:1", 0, ana)
    await relevo.desk.set_breaker("supplier:28", ana, failures=9)


ROWS = {
    "replay_deliveries": 2,
    "retry_flow": 2,
    "cancel_flow": 2,
    "cancel_group": 2,  # its member, and the job that waits
    "confirm_effect": 2,  # the effect, and its job that goes on
    "deny_effect": 2,
    "resume_pollers": 2,  # it is on again, and due at once
}


class News:
    """What was written down since the last look."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known = 0

    async def rows(self) -> list[Audit]:
        rows: list[Audit] = []
        cursor = None
        while True:
            some, cursor = await self._store.audits(cursor=cursor, limit=200)
            rows += some
            if cursor is None:
                break
        fresh = rows[: len(rows) - self._known]
        self._known = len(rows)
        return fresh


# looking


async def test_an_answer_is_what_the_document_says(web: Site, things: Things) -> None:
    document = await _document(web)
    async with caller(web, Role.ADMIN) as admin:
        await changed(web.relevo, things.queue)
        for call in [call for call in CALLS if call.verb == "GET"]:
            operation = document["paths"][call.plain_path]["get"]
            schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
            answer = await ask(admin, call, things.of(call))
            assert answer.status_code == 200, (call.name, answer.text)
            assert answer.json() not in ({}, {"items": [], "cursor": None}), call.name
            assert problems(answer.json(), schema, document) == [], call.name


async def _document(web: Site) -> dict[str, Any]:
    async with web.browser(Role.VIEWER) as viewer:
        answer = await viewer.get("/api/openapi.json")
    assert answer.status_code == 200
    return answer.json()


async def test_the_document_describes_every_call(web: Site) -> None:
    document = await _document(web)
    assert document["openapi"] == "3.1.0"
    found = {(verb.upper(), path) for path, verbs in document["paths"].items() for verb in verbs}
    assert found == {(call.verb, call.plain_path) for call in CALLS}
    names = [
        operation["operationId"]
        for verbs in document["paths"].values()
        for operation in verbs.values()
    ]
    assert len(set(names)) == len(names)
    for name in _references(document):
        assert name in document["components"]["schemas"]


def _references(part: Any) -> list[str]:
    if isinstance(part, dict):
        here = [part["$ref"].rpartition("/")[2]] if "$ref" in part else []
        return here + [name for each in part.values() for name in _references(each)]
    return [name for each in part for name in _references(each)] if isinstance(part, list) else []


async def test_the_page_describes_every_call_in_two_languages(web: Site) -> None:
    async with web.browser(Role.VIEWER) as viewer:
        english = (await viewer.get("/api/docs", headers=ACCEPT)).text
        spanish = (await viewer.get("/api/docs?lang=es", headers=ACCEPT)).text
    for call in CALLS:
        assert f"{call.plain_path}</code>" in english
        assert call.says not in html.unescape(spanish)
    assert "observador" in spanish and "Documento OpenAPI" in spanish
    assert "How many" not in spanish and "literally" not in spanish


async def test_a_viewer_sees_payloads_behind_a_mask(web: Site, things: Things) -> None:
    """C15"""
    async with caller(web, Role.VIEWER) as viewer, caller(web, Role.OPERATOR) as operator:
        seen = 0
        for call in CALLS:
            if call.verb == "GET":
                masked = await ask(viewer, call, things.of(call))
                assert MAIL not in unquote(masked.text), call.name
                seen += MAIL in (await ask(operator, call, things.of(call))).text
        assert seen >= 5


@pytest.mark.parametrize("path", ["jobs", "jobs/count", "deliveries", "effects"])
async def test_a_viewer_cannot_guess_what_is_behind_a_mask(
    web: Site, things: Things, path: str
) -> None:
    """C15: a search that tells whether a guess is right would give it away letter by letter."""

    async def found(client: httpx2.AsyncClient, text: str) -> int:
        body = (await client.get(f"/api/{path}", params={"text": text})).json()
        assert body.get("cursor") is None
        return body["count"] if path == "jobs/count" else len(body["items"])

    async with caller(web, Role.VIEWER) as viewer, caller(web, Role.OPERATOR) as operator:
        for guess in (MAIL, "a.pe", "perez@"):
            assert await found(operator, guess) > 0
            assert await found(viewer, guess) == 0
        assert await found(viewer, "RES-") == await found(operator, "RES-") > 0


async def test_a_viewer_cannot_trace_what_is_behind_a_mask(web: Site, things: Things) -> None:
    async with caller(web, Role.VIEWER) as viewer, caller(web, Role.OPERATOR) as operator:
        assert (await operator.get("/api/trace", params={"q": MAIL})).status_code == 200
        assert (await viewer.get("/api/trace", params={"q": MAIL})).status_code == 404
        assert (await viewer.get("/api/trace", params={"q": "RES-1"})).status_code == 200


# other people's


async def test_what_is_of_another_app_is_not_there(web: Site, things: Things) -> None:
    """C16, B61: every call with ids of `cars`, by someone of `hotel`."""
    async with caller(web, Role.ADMIN, "hotel") as hotel:
        before = web.state()
        for call in CALLS:
            answer = await ask(hotel, call, things.of(call))
            body = answer.json()
            with about(call.name):
                if call.places or call.name in ("trace", "list_audits"):
                    assert answer.status_code == 404, answer.text
                elif call.name == "me":
                    assert body["apps"] == ["hotel"]
                elif "items" in body:
                    assert [
                        each for each in body["items"] if each.get("changed") is not False
                    ] == []
                else:
                    assert not any(
                        body.get(name) for name in ("count", "changed", "total", "waiting")
                    )
        assert web.state() == before


# what is written wrongly


WRONG_QUESTIONS = (
    "limit=0",
    "limit=-1",
    "limit=1000000000",
    "limit=1e3",
    "limit=abc",
    "limit=%EF%BC%91",
    "page=1",
    "sort=id;drop table jobs",
    "state=nonsense",
    "queue=a",
    "queue=*",
    "cursor=abc",
    "cursor=%00",
    "cursor=" + "x" * 2_000,
    "text=",
    "text=" + "x" * 501,
    "text=%FF",
    "limit=1&limit=2",
    "fingerprint=" + "(a+)+" * 200,
)


async def test_a_question_written_wrongly_is_refused(web: Site) -> None:
    """B60"""
    async with caller(web, Role.VIEWER) as viewer:
        for query in WRONG_QUESTIONS:
            answer = await viewer.get(f"/api/jobs?{query}")
            assert answer.status_code == 400, (query, answer.text)
            assert 10 < len(answer.json()["message"]) < 400


async def test_a_search_means_what_it_says(web: Site) -> None:
    """B60"""
    await put(web.relevo.store, *(new_job(BOOK, payload=b'{"n":%d}' % n) for n in range(20)))
    odd = await add(web.relevo.store, BOOK, payload=b'{"n":"100%_(a+)+$"}')
    async with caller(web, Role.VIEWER) as viewer:
        for text, found in (("%", [odd]), ("_", [odd]), ("(a+)+$", [odd]), ("' or 1=1--", [])):
            answer = await viewer.get("/api/jobs", params={"text": text})
            assert [each["id"] for each in answer.json()["items"]] == found


async def test_a_cursor_goes_on_and_cannot_be_changed(web: Site) -> None:
    """B60"""
    ids = await put(web.relevo.store, *(new_job(BOOK) for _ in range(5)))
    async with caller(web, Role.VIEWER) as viewer:
        seen: list[str] = []
        params: dict[str, Any] = {"limit": 2}
        while True:
            page = (await viewer.get("/api/jobs", params=params)).json()
            seen += [each["id"] for each in page["items"]]
            if page["cursor"] is None:
                break
            params["cursor"] = page["cursor"]
        assert sorted(seen) == sorted(ids)
        cursor = params["cursor"]
        for wrong in (cursor[:-1], cursor + "x", "0" + cursor, cursor.upper() + "!"):
            bad = await viewer.get("/api/jobs", params={"limit": 2, "cursor": wrong})
            assert bad.status_code == 400
        other = await viewer.get("/api/jobs", params={"queue": SAVE, "cursor": cursor})
        assert other.status_code == 400


NO_IDS = ("0" * 32, "abc", "x" * 7_000, "..%2F..%2Fetc", "%00", "%FF", "' OR 1=1--", "*")


async def test_a_job_that_is_not_there_is_not_found(web: Site) -> None:
    """B61"""
    async with caller(web, Role.ADMIN) as admin:
        for id in NO_IDS:
            for verb, path in (("GET", ""), ("POST", "/retry"), ("PATCH", "")):
                body = {"json": {"attempts": 3}} if verb == "PATCH" else {}
                answer = await admin.request(verb, f"/api/jobs/{id}{path}", **body)
                assert answer.status_code == 404, (id, answer.text)
                assert len(answer.content) < 500


WRONG_EDITS = (
    ('{"payload": {"code": "x"', 400),
    ("[]", 422),
    ("null", 422),
    ('"payload"', 422),
    ("[" * 100_000, 422),
    ('{"payload":' + "[" * 100_000, 400),
    ('{"payload": {"password": "canary 7Q.zz19 value"}}', 422),
    ('{"payload": {"a": {"b": [{"card": "4111111111111111"}]}}}', 422),
    (json.dumps({"payload": {"x": "y" * 70_000}}), 422),
    ('{"payload": {"x": "\\ud800"}}', 400),
    ('{"payload": {"x": 1e400}}', 422),
    ('{"attempts": 0}', 400),
    ('{"attempts": "3"}', 422),
    ('{"attempts": true}', 422),
    ('{"priority": "urgent"}', 422),
    ('{"run_at": "tomorrow"}', 422),
    ('{"run_at": "2026-01-01T00:00:00"}', 422),
    ("{}", 400),
    ("", 400),
)


async def test_an_edit_that_is_wrong_changes_nothing(web: Site) -> None:
    """B61"""
    id = await make(web.relevo.store, State.DEAD, BOOK)
    kind = {"content-type": "application/json"}
    async with caller(web, Role.ADMIN) as admin:
        before = web.state()
        for body, status in WRONG_EDITS:
            answer = await admin.patch(f"/api/jobs/{id}", content=body, headers=kind)
            assert answer.status_code == status, (body[:60], answer.text)
            assert "canary" not in answer.text and "4111" not in answer.text
        assert web.state() == before


async def test_an_edit_takes_only_what_may_be_edited(web: Site) -> None:
    """C17"""
    id = await make(web.relevo.store, State.DEAD, BOOK)
    async with caller(web, Role.ADMIN) as admin:
        before = web.state()
        for name in ("state", "lease", "lease_until", "id", "attempt", "queue", "key", "history"):
            answer = await admin.patch(f"/api/jobs/{id}", json={"attempts": 5, name: "done"})
            assert answer.status_code == 422 and name in answer.json()["message"]
        assert web.state() == before


async def test_an_edit_changes_what_it_says(web: Site) -> None:
    id = await make(web.relevo.store, State.DEAD, BOOK, payload=PAYLOAD)
    async with caller(web, Role.ADMIN) as admin:
        edit = {
            "payload": {"code": "RES-2", "email": MAIL},
            "unchecked": True,
            "whole": True,
            "priority": "high",
            "run_at": "2030-01-01T00:00:00+01:00",
            "attempts": 9,
        }
        done = (await admin.patch(f"/api/jobs/{id}", json=edit)).json()
        assert done["payload"] == edit["payload"]
        assert (done["priority"], done["attempts"]) == (0, 9)
        assert done["run_at"] == "2029-12-31T23:00:00.000+00:00"
        assert "failure" not in done and "payload" not in done["changed"]
        back = (await admin.post(f"/api/jobs/{id}/undo", json={"note": "typo"})).json()
        assert (back["payload"], back["undo_until"]) == (json.loads(PAYLOAD), None)
        assert (await admin.post(f"/api/jobs/{id}/undo")).status_code == 404


async def test_a_body_must_be_json_and_short(web: Site) -> None:
    id = await make(web.relevo.store, State.DEAD, BOOK)
    async with caller(web, Role.ADMIN) as admin:
        path = f"/api/jobs/{id}/retry"
        assert (await admin.post(path, data={"note": "x"})).status_code == 415
        large = await admin.post(path, json={"note": "x" * 1_100_000})
        assert large.status_code == 413
        assert (await admin.post(path, json={"note": "x" * 1_001})).status_code == 422


async def test_who_asks_with_a_wrong_method_hears_all_right_ones(web: Site) -> None:
    async with caller(web, Role.ADMIN) as admin:
        for path, methods in (
            (f"/api/jobs/{new_id()}", "GET, HEAD, PATCH"),
            (f"/api/jobs/{new_id()}/retry", "POST"),
        ):
            for method in ("OPTIONS", "DELETE"):
                answer = await admin.request(method, path)
                assert (answer.status_code, answer.headers["allow"]) == (405, methods), path


async def test_nothing_is_put_aside_without_a_reason_and_the_document_says_so(
    web: Site, things: Things
) -> None:
    async with caller(web, Role.ADMIN) as admin:
        paths = (await admin.get("/api/openapi.json")).json()["paths"]
        for call in (each for each in CALLS if each.action == "discard"):
            body = paths[call.plain_path]["post"]["requestBody"]
            schema = body["content"]["application/json"]["schema"]
            assert "note" in schema["required"] and body["required"], call.path
            asked = things.of(call)
            path = f"/api{call.path}".replace("{id}", asked.pop("id", ""))
            for note in ({}, {"note": ""}):
                bare = {name: value for name, value in asked.items() if name != "note"}
                answer = await admin.post(path, json=bare | note)
                assert answer.status_code == 422, call.path


# doing


async def test_a_job_in_no_state_for_it_says_so(web: Site) -> None:
    id = await make(web.relevo.store, State.DONE, BOOK)
    async with caller(web, Role.OPERATOR) as operator:
        for verb in ("retry", "cancel", "discard"):
            answer = await operator.post(f"/api/jobs/{id}/{verb}", json={"note": "because"})
            assert answer.status_code == 409 and "is done" in answer.json()["message"]


async def test_many_dead_letters_are_asked_for_by_name(web: Site) -> None:
    for _ in range(3):
        await make(web.relevo.store, State.DEAD, BOOK)
    await make(web.relevo.store, State.DEAD, SAVE)
    async with caller(web, Role.OPERATOR) as operator:
        assert (await operator.post("/api/dead/retry", json={})).status_code == 400
        late = {"queue": BOOK, "canary": 1, "patience": "100ms"}
        sweep = (await operator.post("/api/dead/retry", json=late)).json()
        assert (sweep["total"], sweep["changed"]) == (3, 1) and "canaries" in sweep["stopped"]
        sweep = (
            await operator.post("/api/dead/retry", json={"queue": BOOK, "rate": "50/s"})
        ).json()
        assert (sweep["total"], sweep["changed"], sweep["stopped"]) == (2, 2, "")
        wrong = await operator.post("/api/dead/retry", json={"queue": BOOK, "rate": "fast"})
        assert wrong.status_code == 400
        assert (
            await operator.post("/api/dead/discard", json={"everything": True})
        ).status_code == 422
        gone = {"everything": True, "note": "nobody needs it"}
        assert (await operator.post("/api/dead/discard", json=gone)).json()["changed"] == 1


async def test_half_a_character_comes_back_as_it_went_in(web: Site) -> None:
    id = await add(web.relevo.store, BOOK, key="half \ud800 and \x00")
    async with caller(web, Role.VIEWER) as viewer:
        answer = await viewer.get(f"/api/jobs/{id}")
    assert answer.status_code == 200 and json.loads(answer.content)["key"] == "half \ud800 and \x00"


async def test_a_person_at_the_browser_needs_the_form_token(web: Site, things: Things) -> None:
    """C12"""
    async with web.browser(Role.OPERATOR) as operator:
        path = f"/api/jobs/{things.dead}/retry"
        headers = {"origin": ORIGIN}
        assert (await operator.post(path, headers=headers)).status_code == 403
        headers["x-csrf-token"] = await token_of(operator)
        assert (await operator.post(path, headers=headers)).json()["state"] == "ready"


async def test_a_mistake_of_ours_tells_nothing(web: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """C32"""

    async def broken(*_: Any) -> None:
        raise RuntimeError("a canary of the inside")

    monkeypatch.setattr(web.relevo.store, "tally", broken)
    transport = httpx2.ASGITransport(web.app, client=("192.0.2.7", 1), raise_app_exceptions=False)
    token, _ = await web.people.add_token("ci", Role.VIEWER, by="ann")
    async with httpx2.AsyncClient(transport=transport, base_url=ORIGIN) as client:
        answer = await client.get("/api/queues", headers={"authorization": f"Bearer {token}"})
    assert answer.status_code == 500 and "canary" not in answer.text


async def test_no_page_tells_more_than_one_may_see(web: Site, things: Things) -> None:
    """C15, C16: every page there is, with ids of `cars`, by who may see them and who may not."""
    inner = ("RES-", "supplier:28", "poll-rates", things.held, things.live)
    async with (
        web.browser(Role.OPERATOR) as operator,
        web.browser(Role.VIEWER) as viewer,
        web.browser(Role.ADMIN, apps=("hotel",)) as hotel,
    ):
        seen, masked, elsewhere = [
            await _crawled(web, each, things) for each in (operator, viewer, hotel)
        ]
    for secret in (MAIL, *inner):
        assert secret in seen and secret not in elsewhere, secret
    assert MAIL not in masked and SAID not in masked and things.held in masked
    assert "***@example.com" in masked


async def _crawled(web: Site, browser: httpx2.AsyncClient, things: Things) -> str:
    texts: list[str] = []
    for verb, path in web.routes():
        if verb == "GET" and not ENDLESS.search(path):
            for id in (things.dead, things.flow, things.delivery):
                answer = await browser.get(filled(path, id), headers=ACCEPT)
                assert answer.status_code in (200, 303, 400, 403, 404), (path, answer.text[:300])
                texts.append(answer.text)
    return "".join(texts)


# forgetting


async def test_c23_a_person_is_forgotten_by_an_admin(web: Site, things: Things) -> None:
    """What would go is told first; what has not ended is named."""
    async with caller(web, Role.ADMIN) as admin:
        dry = await admin.post("/api/forget", json={"text": "RES-9", "dry_run": True})
        assert (dry.status_code, dry.json()["deliveries"], dry.json()["is_dry"]) == (200, 1, True)
        assert (await admin.get(f"/api/deliveries/{things.delivery}")).status_code == 200
        done = await admin.post("/api/forget", json={"text": "RES-9", "note": "asked"})
        assert (done.json()["deliveries"], done.json()["jobs"]) == (1, {})
        assert (await admin.get(f"/api/deliveries/{things.delivery}")).status_code == 404
        left = await admin.post("/api/forget", json={"thread": things.live, "note": "asked"})
        assert (left.json()["threads"], left.json()["left"]) == (0, 1)
        assert left.json()["left_alone"][0]["jobs"] == [things.live]
        for wrong in ({}, {"key": "a", "text": "abcde"}, {"text": "abc"}, {"key": "evt"}):
            assert (await admin.post("/api/forget", json=wrong)).status_code in (400, 422), wrong


async def test_c23_an_admin_of_one_app_forgets_nothing_of_another(
    web: Site, things: Things
) -> None:
    """C15"""
    named = {"key": f"evt_{BOOK}", "note": "asked"}
    async with caller(web, Role.ADMIN, "hotel") as other:
        answer = await other.post("/api/forget", json=named)
        assert answer.json()["threads"] == answer.json()["left"] == 0
    async with caller(web, Role.ADMIN, "cars", "razworks") as mine:
        assert (await mine.post("/api/forget", json=named)).json()["deliveries"] == 1


# what fits, and whose it is


@pytest.mark.parametrize("payload", [{}, {"code": 7}, {"code": None}, [], "RES-1", None])
async def test_c17_an_edit_that_does_not_fit_its_command_changes_nothing(
    web: Site, payload: Any
) -> None:
    store = web.relevo.store
    id = await add(store, BOOK, kind="Book", payload=b'{"code":"RES-1"}', delay=3_600_000)
    unknown = await add(store, BOOK, kind="Gone", payload=b'{"code":"RES-1"}', delay=3_600_000)
    async with caller(web, Role.ADMIN) as admin:
        body = {"payload": payload, "whole": True}
        refused = await admin.patch(f"/api/jobs/{id}", json=body)
        assert refused.status_code == 422, refused.text
        assert (await web.relevo.desk.job(id)).payload == b'{"code":"RES-1"}'
        good = {"payload": {"code": "RES-2"}}
        assert (await admin.patch(f"/api/jobs/{id}", json=good)).status_code == 200
        assert (await admin.patch(f"/api/jobs/{unknown}", json=good)).status_code == 409
        unchecked = {**good, "unchecked": True}
        assert (await admin.patch(f"/api/jobs/{unknown}", json=unchecked)).status_code == 200
    async with web.browser(Role.ADMIN) as browser:
        token = await token_of(browser)
        filled_in = {"payload": json.dumps(payload), "note": "", "csrf": token}
        answer = await browser.post(f"/jobs/{id}/edit", data=filled_in, headers=ACCEPT)
        assert answer.status_code == 422, answer.text[-500:]
    assert (await web.relevo.desk.job(id)).payload == b'{"code":"RES-2"}'


async def test_c16_workers_show_no_queue_of_another_app(web: Site) -> None:
    store = web.relevo.store
    for name, queues in (("both", [BOOK, SAVE]), ("theirs", [BOOK])):
        worker = WorkerInfo(id=name, host="h", pid=1, queues=queues, concurrency=5)
        await store.beat(worker, 60_000)
    async with caller(web, Role.ADMIN, "hotel") as hotel, caller(web, Role.VIEWER) as viewer:
        [seen] = (await hotel.get("/api/workers")).json()["items"]
        assert (seen["id"], seen["queues"]) == ("both", [SAVE])
        every = (await viewer.get("/api/workers")).json()["items"]
        assert sorted(len(each["queues"]) for each in every) == [1, 2]
        assert (await hotel.get("/metrics")).status_code == 403
    async with web.browser(Role.ADMIN, apps=("hotel",)) as browser:
        for path in ("/workers", "/", "/queues", "/search?q=cars"):
            page = (await browser.get(path, headers=ACCEPT)).text
            assert "cars:suppliers" not in page, path


async def test_many_are_replayed_at_a_rate(web: Site) -> None:
    """F54: a call handles what fits into it, and the cursor goes on at that pace."""
    async with web.browser() as provider:
        for number in range(3):
            sent = {"id": f"evt_{number}", "code": "RES-1"}
            await provider.post("/hooks/cars", json=sent, headers={"x-secret": HOOK})
    path, fields = "/api/deliveries/replay", {"state": "accepted"}
    async with caller(web, Role.ADMIN) as admin:
        dry = (await admin.post(path, json={**fields, "dry_run": True})).json()
        assert (dry["matched"], dry["effects"], dry["effects_of"]) == (3, [], 3)
        for rate in ("quick", "0/s", 5, "1/m"):
            answer = await admin.post(path, json={**fields, "rate": rate})
            assert answer.status_code in (400, 422), answer.text
        slow = (await admin.post(path, json={**fields, "rate": "2/m"})).json()
        assert (slow["handled"], slow["cursor"] is None) == (1, False)
        began = time.monotonic()
        more = {**fields, "rate": "5/s", "cursor": slow["cursor"], "repeat_effects": True}
        rest = (await admin.post(path, json=more)).json()
        assert (rest["handled"], rest["cursor"]) == (2, None)
        assert time.monotonic() - began >= 0.4  # the first of a call waits for its turn, too
