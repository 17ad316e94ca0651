"""Our QStash with the official SDK as its client, and a receiver that the official SDK checks."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from qstash import AsyncQStash, Receiver
from qstash.errors import QStashError
from qstash.log import LogState
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from relevo import Relevo, State
from relevo.apps import tables
from relevo.apps.qstash import MIGRATIONS, app
from relevo.apps.qstash.records import Group, Schedule
from relevo.apps.qstash.settings import DEV
from relevo.apps.qstash.workers import Post
from relevo.ingress.server import serving
from relevo.ingress.sockets import listen
from relevo.testing import ManualClock, drain, until, working
from tests.servers import postgres
from tests.servers.ports import free_port

TOKEN = "a-token-of-the-tests"
CURRENT = "sig_current_key_of_the_tests_0123456789"
NEXT = "sig_next_key_of_the_tests_0123456789abc"
OTHER = "sig_other_key_of_the_tests_0123456789ab"


@dataclass
class Arrived:
    """One call at the destination."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes


@dataclass
class There:
    """A destination. `answer` says how it answers."""

    base: str = ""
    calls: list[Arrived] = field(default_factory=list)
    answer: Callable[[Arrived], Response] = lambda _: Response("fine")

    def of(self, path: str) -> list[Arrived]:
        return [each for each in self.calls if each.url.partition("?")[0].endswith(path)]


@asynccontextmanager
async def receiver() -> AsyncGenerator[There]:
    there = There()

    async def take(request: Request) -> Response:
        raw = request.scope["raw_path"].decode()
        query = request.scope["query_string"].decode()
        url = f"{there.base}{raw}" + (f"?{query}" if query else "")
        call = Arrived(request.method, url, dict(request.headers), await request.body())
        there.calls.append(call)
        return there.answer(call)

    every = ["GET", "POST", "PUT", "PATCH", "DELETE"]
    site = Starlette(routes=[Route("/{path:path}", take, methods=every)])
    async with serving(site, listen("127.0.0.1", 0), grace=1) as there.base:
        yield there


class House:
    """An engine with our QStash, its address, the SDK, and a destination."""

    def __init__(self, relevo: Relevo, base: str, there: There) -> None:
        self.relevo = relevo
        self.base = base
        self.there = there
        self.sdk = AsyncQStash(TOKEN, base_url=base, retry=False)
        self.office = relevo.use(Post).office

    def to(self, path: str = "/hook") -> str:
        return self.there.base + path

    def client(self) -> httpx2.AsyncClient:
        bearer = {"authorization": f"Bearer {TOKEN}"}
        return httpx2.AsyncClient(base_url=self.base, headers=bearer)

    async def drain(self, *, skip: bool = False) -> None:
        await drain(self.relevo, skip_waits=skip)

    async def states(self, id: str) -> list[str]:
        found = await self.sdk.log.list(filter={"message_id": id})
        return [log.state.value for log in reversed(found.logs)]


@asynccontextmanager
async def opened(
    url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[House]:
    monkeypatch.setenv("QSTASH_TOKEN", TOKEN)
    monkeypatch.setenv("QSTASH_CURRENT_SIGNING_KEY", CURRENT)
    monkeypatch.setenv("QSTASH_NEXT_SIGNING_KEY", NEXT)
    monkeypatch.setenv("QSTASH_ALLOW", "127.0.0.1")
    monkeypatch.setattr(app, "schedules", [])  # its hourly tidying never ends
    async with (
        receiver() as there,
        Relevo(url, apps=[app], clock=clock) as relevo,
        serving(relevo.asgi(), listen("127.0.0.1", 0), grace=1) as base,
    ):
        made = House(relevo, base, there)
        yield made
        http: Any = made.sdk.http
        await http._client.aclose()


@pytest.fixture
async def house(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[House]:
    async with opened(f"sqlite:///{tmp_path / 'qstash.db'}", clock, monkeypatch) as made:
        yield made


@pytest.fixture
async def house_on_postgres(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[House]:
    async with postgres.fresh_address() as url:
        await tables.migrate(url, MIGRATIONS)
        async with opened(url, clock, monkeypatch) as made:
            yield made


async def test_a_message_is_delivered_signed_and_as_it_was_published(house: House) -> None:
    url = house.to("/a//b/%2F?x=1&y=http://z/")
    done = await house.sdk.message.publish(
        url=url,
        body=b'{"n": 1}',
        content_type="application/json",
        method="PUT",
        headers={"X-Api": "7"},
        label="first",
    )
    await house.drain()
    [call] = house.there.calls
    assert (call.method, call.url, call.body) == ("PUT", url, b'{"n": 1}')
    assert call.headers["x-api"] == "7"
    assert call.headers["content-type"] == "application/json"
    assert call.headers["user-agent"] == "Upstash-QStash"
    assert call.headers["upstash-message-id"] == done.message_id
    assert call.headers["upstash-retried"] == "0"
    for current, following in ((CURRENT, OTHER), (OTHER, CURRENT)):
        Receiver(current_signing_key=current, next_signing_key=following).verify(
            body=call.body.decode(), signature=call.headers["upstash-signature"], url=url
        )
    message = await house.sdk.message.get(done.message_id)
    assert (message.url, message.label, message.method) == (url, "first", "PUT")
    assert await house.states(done.message_id) == ["CREATED", "ACTIVE", "DELIVERED"]


async def test_a_wrong_token_opens_nothing(house: House) -> None:
    stranger = AsyncQStash("another", base_url=house.base, retry=False)
    with pytest.raises(QStashError, match="401"):
        await stranger.message.publish(url=house.to(), body="x")
    async with httpx2.AsyncClient(base_url=house.base) as client:
        assert (await client.get("/v2/keys")).status_code == 401
        assert (await client.get("/v2/keys?qstash_token=" + TOKEN)).status_code == 200
        bearer = {"authorization": f"Bearer {TOKEN}"}
        answer = await client.get("/v2/llm/models", headers=bearer)
        assert answer.status_code == 501
        assert "not offered" in answer.json()["error"]
    http: Any = stranger.http
    await http._client.aclose()


async def test_an_inward_destination_is_refused_when_it_is_published(house: House) -> None:
    """C30."""
    for url in ("http://169.254.169.254/x", "http://localhost/x", "http://10.0.0.1/"):
        with pytest.raises(QStashError, match="400"):
            await house.sdk.message.publish(url=url, body="x")
        with pytest.raises(QStashError, match="400"):
            await house.sdk.message.publish(url=house.to(), body="x", callback=url)


async def test_the_same_id_or_content_is_one_message_for_ten_minutes(
    house: House, clock: ManualClock
) -> None:
    first = await house.sdk.message.publish(url=house.to(), body="1", deduplication_id="d")
    again = await house.sdk.message.publish(url=house.to(), body="2", deduplication_id="d")
    assert (again.message_id, again.deduplicated) == (first.message_id, True)
    one = await house.sdk.message.publish_json(
        url=house.to(), body={"a": 1}, content_based_deduplication=True
    )
    two = await house.sdk.message.publish_json(
        url=house.to(), body={"a": 1}, content_based_deduplication=True
    )
    other = await house.sdk.message.publish_json(
        url=house.to(), body={"a": 2}, content_based_deduplication=True
    )
    assert two.deduplicated
    assert two.message_id == one.message_id != other.message_id
    clock.advance("11m")
    late = await house.sdk.message.publish(url=house.to(), body="1", deduplication_id="d")
    assert not late.deduplicated
    await house.drain()
    assert len(house.there.calls) == 4


async def test_a_delay_is_waited_for(house: House, clock: ManualClock) -> None:
    await house.sdk.message.publish(url=house.to("/late"), body="x", delay="1h")
    at = int(clock.now().timestamp()) + 60
    await house.sdk.message.publish(url=house.to("/soon"), body="x", not_before=at, delay="2h")
    await house.drain()
    assert house.there.calls == []
    clock.advance("61s")
    await house.drain()
    assert [call.url for call in house.there.calls] == [house.to("/soon")]
    clock.advance("1h")
    await house.drain()
    assert len(house.there.calls) == 2


async def test_a_failing_destination_is_tried_again_then_a_dead_letter(
    house: House, clock: ManualClock
) -> None:
    house.there.answer = lambda call: Response(
        b"\xffbroken", 500 if call.url.endswith("/hook") else 200
    )
    started = clock.now()
    done = await house.sdk.message.publish(
        url=house.to(), body=b"\xff\x00", retries=2, failure_callback=house.to("/failed")
    )
    await house.drain(skip=True)
    calls = house.there.of("/hook")
    assert [call.headers["upstash-retried"] for call in calls] == ["0", "1", "2"]
    waited = (clock.now() - started).total_seconds()
    assert 12.18 + 148.41 <= waited < 400
    [dead] = (await house.sdk.dlq.list()).messages
    assert (dead.message_id, dead.response_status) == (done.message_id, 500)
    assert dead.body_base64 == "/wA="
    assert dead.response_body_base64 is not None
    assert (await house.sdk.dlq.get(dead.dlq_id)).url == house.to()
    told = json.loads(house.there.of("/failed")[0].body)
    assert (told["sourceMessageId"], told["dlqId"]) == (done.message_id, dead.dlq_id)
    states = await house.states(done.message_id)
    assert states[-1] == "FAILED"
    assert states.count("RETRY") == 2
    tallies = {each.queue: each.counts for each in await house.relevo.store.tally()}
    assert tallies["qstash:messages:deliver"].get(State.DEAD) == 1
    await house.sdk.dlq.delete(dead.dlq_id)
    with pytest.raises(QStashError, match="404"):
        await house.sdk.dlq.get(dead.dlq_id)


async def test_dead_letters_are_listed_in_pages_retried_and_deleted(house: House) -> None:
    house.there.answer = lambda call: Response(status_code=400)
    for n in range(5):
        await house.sdk.message.publish(url=house.to(f"/{n}"), body="x", retries=0, label=f"l{n}")
    await house.drain()
    page = await house.sdk.dlq.list(count=3)
    rest = await house.sdk.dlq.list(cursor=page.cursor, count=3)
    assert (len(page.messages), len(rest.messages), rest.cursor) == (3, 2, None)
    [one] = (await house.sdk.dlq.list(filter={"label": "l3", "response_status": 400})).messages
    assert one.url == house.to("/3")
    house.there.answer = lambda call: Response("fine")
    house.there.calls.clear()
    async with house.client() as client:
        assert (await client.post(f"/v2/dlq/retry/{one.dlq_id}")).json()["messageId"]
        two = rest.messages[0].dlq_id
        answer = await client.post(f"/v2/dlq/retry?dlqIds={two}")
        assert len(answer.json()["responses"]) == 1
    await house.drain()
    assert len(house.there.calls) == 2
    left = [each.dlq_id for each in (await house.sdk.dlq.list()).messages]
    assert len(left) == 3
    assert await house.sdk.dlq.delete_many(left) == 3


async def test_what_the_destination_asks_for_is_waited(house: House, clock: ManualClock) -> None:
    answers = [Response(status_code=429, headers={"retry-after": "30"}), Response("fine")]
    house.there.answer = lambda call: answers.pop(0)
    done = await house.sdk.message.publish(url=house.to(), body="x", retry_delay="5000")
    await house.drain()
    clock.advance("20s")
    await house.drain()
    assert len(house.there.calls) == 1
    clock.advance("11s")
    await house.drain()
    assert (await house.states(done.message_id))[-1] == "DELIVERED"


async def test_a_delay_of_ones_own_and_no_more_tries(house: House, clock: ManualClock) -> None:
    house.there.answer = lambda call: Response(status_code=503)
    await house.sdk.message.publish(
        url=house.to(), body="x", retries=1, retry_delay="1000 * (1 + retried)"
    )
    await house.drain()
    clock.advance("1001ms")
    await house.drain()
    assert len(house.there.calls) == 2
    final = {"upstash-nonretryable-error": "true"}
    house.there.answer = lambda call: Response(status_code=489, headers=final)
    await house.sdk.message.publish(url=house.to("/never"), body="x", retries=5)
    await house.drain(skip=True)
    assert len(house.there.of("/never")) == 1


async def test_a_callback_comes_after_every_attempt(house: House) -> None:
    answers = [Response("no", 500), Response("yes")]

    def answer(call: Arrived) -> Response:
        return Response() if call.url.endswith("/back") else answers.pop(0)

    house.there.answer = answer
    await house.sdk.message.publish(
        url=house.to(),
        body="x",
        retries=1,
        callback=house.to("/back"),
        callback_headers={"Forward-X-Back": "9", "Method": "PUT"},
    )
    await house.drain(skip=True)
    backs = house.there.of("/back")
    assert [json.loads(call.body)["status"] for call in backs] == [500, 200]
    assert (backs[0].method, backs[0].headers["x-back"]) == ("PUT", "9")
    Receiver(current_signing_key=CURRENT, next_signing_key=NEXT).verify(
        body=backs[0].body.decode(),
        signature=backs[0].headers["upstash-signature"],
        url=house.to("/back"),
    )


async def test_a_queue_delivers_in_order_one_at_a_time(house: House, clock: ManualClock) -> None:
    order: list[str] = []
    failures = [500]

    def answer(call: Arrived) -> Response:
        order.append(call.body.decode())
        return Response(status_code=failures.pop() if failures else 200)

    house.there.answer = answer
    await house.sdk.queue.upsert("q", parallelism=1)
    for n in range(4):
        await house.sdk.message.enqueue(queue="q", url=house.to(), body=str(n))
    assert (await house.sdk.queue.get("q")).lag == 4
    await house.drain(skip=True)
    assert order == ["0", "0", "1", "2", "3"]
    await house.sdk.queue.pause("q")
    await house.sdk.message.enqueue_json(queue="q", url=house.to(), body={"n": 4})
    await house.drain()
    assert len(order) == 5
    assert [(queue.name, queue.paused, queue.lag) for queue in await house.sdk.queue.list()] == [
        ("q", True, 1)
    ]
    await house.sdk.queue.resume("q")
    await house.drain(skip=True)
    assert order[5:] == ['{"n": 4}']
    await house.sdk.queue.delete("q")
    with pytest.raises(QStashError, match="404"):
        await house.sdk.queue.get("q")


async def test_a_group_is_one_name_for_many(house: House) -> None:
    await house.sdk.url_group.upsert_endpoints(
        "g", [{"url": house.to("/1"), "name": "one"}, {"url": house.to("/2")}]
    )
    done = await house.sdk.message.publish_json(url_group="g", body={"a": 1})
    assert isinstance(done, list)
    assert {each.url for each in done} == {house.to("/1"), house.to("/2")}
    await house.drain()
    assert house.there.of("/1")[0].headers["upstash-topic-name"] == "g"
    await house.sdk.url_group.remove_endpoints("g", [{"name": "one"}])
    assert [each.url for each in (await house.sdk.url_group.get("g")).endpoints] == [house.to("/2")]
    assert len(await house.sdk.url_group.list()) == 1
    await house.sdk.url_group.delete("g")
    await house.sdk.url_group.delete("g")
    with pytest.raises(QStashError, match="404"):
        await house.sdk.message.publish(url_group="g", body="x")


async def test_a_batch_is_taken_whole_or_not_at_all(house: House) -> None:
    done = await house.sdk.message.batch_json(
        [
            {"url": house.to("/1"), "body": {"a": 1}, "headers": {"X-A": "1"}},
            {"url": house.to("/2"), "body": {"a": 2}, "queue": "q"},
        ]
    )
    assert len(done) == 2
    with pytest.raises(QStashError, match="400"):
        await house.sdk.message.batch(
            [{"url": house.to("/3"), "body": "x"}, {"url": "http://10.0.0.1/", "body": "x"}]
        )
    await house.drain()
    assert sorted(call.url for call in house.there.calls) == [house.to("/1"), house.to("/2")]


async def test_messages_are_cancelled(house: House) -> None:
    ids = [
        (await house.sdk.message.publish(url=house.to(), body="x", delay="1h")).message_id
        for _ in range(5)
    ]
    await house.sdk.message.cancel(ids[0])
    assert await house.sdk.message.cancel_many(ids[:3]) == 2
    assert await house.sdk.message.cancel_all() == 2
    await house.drain(skip=True)
    assert house.there.calls == []
    assert (await house.states(ids[0]))[-2:] == ["CANCEL_REQUESTED", "CANCELED"]
    found = await house.sdk.log.list(filter={"state": LogState.CANCELED}, count=2)
    assert len(found.logs) == 2
    assert found.cursor


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("messageIds=msg_doesnotexist", 0),
        ("messageIds={0}&messageIds={1}", 2),
        ("messageIds={0},{1}", 2),
        ("flowControlKey=nosuch", 0),
        ("flowControlKey=k", 1),
        ("label=a", 1),
        ("callerIP=9.9.9.9", 0),
        ("count=0", 0),
        ("count=1", 1),
        ("count=99&qstash_token=" + TOKEN, 3),
        ("label=", None),
        ("label", None),
        ("messageIds=", None),
        ("fromDate=", None),
        ("labl=zzz", None),
        ("dlqIds=1", None),
        ("count=many", None),
    ],
)
async def test_only_what_the_query_describes_is_cancelled(
    house: House, query: str, count: int | None
) -> None:
    flow = {"key": "k", "parallelism": 1}
    wishes: list[dict[str, Any]] = [{"label": "a"}, {"flow_control": flow}, {}]
    ids = [
        (await house.sdk.message.publish(url=house.to(), body="x", delay="1h", **more)).message_id
        for more in wishes
    ]
    async with house.client() as client:
        answer = await client.delete("/v2/messages?" + query.format(*ids))
    if count is None:
        assert (answer.status_code, list(answer.json())) == (400, ["error"])
    else:
        assert (answer.status_code, answer.json()) == (200, {"cancelled": count})
    assert await house.sdk.message.cancel_all() == 3 - (count or 0)


async def test_only_the_dead_letters_that_are_described_are_deleted_or_retried(
    house: House,
) -> None:
    house.there.answer = lambda call: Response(status_code=400)
    for n in range(3):
        await house.sdk.message.publish(url=house.to(), body="x", retries=0, label=f"l{n}")
    await house.drain()
    async with house.client() as client:
        for query in ("label=", "labl=l1", "dlqIds=", "messageIds=x", "cursor=1"):
            for method, path in (("DELETE", "/v2/dlq"), ("POST", "/v2/dlq/retry")):
                answer = await client.request(method, f"{path}?{query}")
                assert (answer.status_code, list(answer.json())) == (400, ["error"])
        none = {"dlqIds": list[str]()}
        assert (await client.request("DELETE", "/v2/dlq", json=none)).json() == {"deleted": 0}
        assert (await client.post("/v2/dlq/retry", json=none)).json() == {"responses": []}
        assert (await client.delete("/v2/dlq?dlqIds=nosuch")).json() == {"deleted": 0}
        assert len((await house.sdk.dlq.list()).messages) == 3
        assert (await client.delete("/v2/dlq?label=l1")).json() == {"deleted": 1}
        assert (await client.delete("/v2/dlq?count=1")).json() == {"deleted": 1}
    assert [each.label for each in (await house.sdk.dlq.list()).messages] == ["l2"]


async def test_a_schedule_publishes_at_each_tick_once(house: House, clock: ManualClock) -> None:
    clock.advance_to(12, 1)
    id = await house.sdk.schedule.create_json(
        destination=house.to("/tick"), cron="*/5 * * * *", body={"a": 1}, schedule_id="mine"
    )
    assert id == "mine"
    found = await house.sdk.schedule.get("mine")
    assert (found.cron, found.paused, found.destination) == (
        "*/5 * * * *",
        False,
        house.to("/tick"),
    )
    for _ in range(3):
        clock.advance("5m")
        await drain(house.relevo)
    assert len(house.there.of("/tick")) == 3
    assert house.there.calls[0].headers["upstash-schedule-id"] == "mine"
    await house.sdk.schedule.pause("mine")
    clock.advance("5m")
    await drain(house.relevo)
    await house.sdk.schedule.resume("mine")
    await house.sdk.schedule.create(
        destination=house.to("/tick"), cron="CRON_TZ=Europe/Madrid 0 3 * * *", schedule_id="mine"
    )
    clock.advance("30m")
    await drain(house.relevo)
    assert len(house.there.of("/tick")) == 3
    assert [each.schedule_id for each in await house.sdk.schedule.list()] == ["mine"]
    await house.sdk.schedule.delete("mine")
    clock.advance("25h")
    await drain(house.relevo)
    assert len(house.there.of("/tick")) == 3
    for cron in ("x", "99 * * * *", "CRON_TZ=Nowhere/At 0 0 * * *"):
        with pytest.raises(QStashError, match="400"):
            await house.sdk.schedule.create(destination=house.to(), cron=cron)


async def test_a_schedule_made_in_an_hour_that_comes_again_waits_and_goes_on(
    house: House, clock: ManualClock
) -> None:
    clock.offset += datetime(2027, 10, 31, 1, 10, tzinfo=UTC) - clock.now()
    await house.sdk.schedule.create(
        destination=house.to("/tick"), cron="CRON_TZ=Europe/Madrid 30 2 * * *"
    )
    await drain(house.relevo)
    assert house.there.of("/tick") == []
    clock.advance("21m")
    for count in (1, 2):
        clock.advance("1d")
        await drain(house.relevo)
        assert len(house.there.of("/tick")) == count


async def test_a_schedule_that_could_never_fire_is_refused(house: House) -> None:
    cron = {"upstash-cron": "*/5 * * * *"}
    async with house.client() as client:
        for path in ("/v2/schedules/", "/v2/publish/"):
            for headers, body, status in (
                ({"upstash-callback": "ftp://x"}, b"", 400),
                ({"upstash-failure-callback": "ftp://x"}, b"", 400),
                ({}, b"x" * 2_000_000, 413),
            ):
                answer = await client.post(path + house.to(), headers=cron | headers, content=body)
                assert (answer.status_code, list(answer.json())) == (status, ["error"])
    assert await house.sdk.schedule.list() == []


async def test_a_schedule_that_cannot_publish_says_so_and_goes_on(
    house: House, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    clock.advance_to(12, 1)
    await house.sdk.schedule.create(destination=house.to(), cron="*/5 * * * *", schedule_id="s")
    async with house.relevo.transaction() as tx:
        row = await tx.get(Schedule, "s")
        assert row is not None
        row.wish = b'{"callback": "ftp://x"}'
    clock.advance("5m")
    await house.drain()
    [said] = [each for each in caplog.records if "cannot publish" in each.message]
    assert (vars(said)["schedule"], "callback" in vars(said)["error"]) == ("s", True)
    async with house.relevo.transaction() as tx:
        row = await tx.get(Schedule, "s")
        assert row is not None
        row.wish = b"{}"
    clock.advance("5m")
    await house.drain()
    assert len(house.there.calls) == 1


async def test_a_schedule_waits_in_silence_for_a_group_that_is_gone(
    house: House, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    clock.advance_to(12, 1)
    await house.sdk.url_group.upsert_endpoints("g", [{"url": house.to()}])
    await house.sdk.schedule.create(destination="g", cron="*/5 * * * *")
    await house.sdk.url_group.delete("g")
    clock.advance("5m")
    await house.drain()
    assert [each for each in caplog.records if "cannot publish" in each.message] == []
    await house.sdk.url_group.upsert_endpoints("g", [{"url": house.to()}])
    clock.advance("5m")
    await house.drain()
    assert len(house.there.calls) == 1


async def test_a_cron_where_nothing_is_scheduled_is_refused(house: House) -> None:
    cron = {"Upstash-Cron": "*/5 * * * *"}
    async with house.client() as client:
        answer = await client.post("/v2/enqueue/q/" + house.to(), headers=cron)
        assert answer.status_code == 400
        for queue in (None, "q"):
            item = {"destination": house.to(), "headers": cron, "body": "x", "queue": queue}
            assert (await client.post("/v2/batch", json=[item])).status_code == 400
    await house.drain()
    assert house.there.calls == []


async def test_keys_are_rotated_without_anybody_noticing(house: House) -> None:
    assert (await house.sdk.signing_key.get()).current == CURRENT
    rotated = await house.sdk.signing_key.rotate()
    assert rotated.current == NEXT
    await house.sdk.message.publish(url=house.to(), body="x")
    await house.drain()
    Receiver(current_signing_key=CURRENT, next_signing_key=NEXT).verify(
        body="x", signature=house.there.calls[0].headers["upstash-signature"], url=house.to()
    )


async def test_flow_control_holds_back(house: House, clock: ManualClock) -> None:
    for n in range(4):
        await house.sdk.message.publish(
            url=house.to(),
            body=str(n),
            flow_control={"key": "k", "rate": 2, "period": "10s", "parallelism": 5},
        )
    info = await house.sdk.flow_control.get("k")
    assert (info.rate_max, info.rate_period, info.parallelism_max) == (2, 10, 5)
    await house.drain()
    assert len(house.there.calls) == 2
    clock.advance("11s")
    await house.drain()
    assert len(house.there.calls) == 4
    await house.sdk.flow_control.pause("k")
    done = await house.sdk.message.publish(
        url=house.to(), body="x", flow_control={"key": "k", "parallelism": 1}
    )
    clock.advance("1m")
    await house.drain()
    assert len(house.there.calls) == 4
    message = await house.sdk.message.get(done.message_id)
    assert message.flow_control is not None
    await house.sdk.flow_control.pin("k", {"parallelism": 7, "rate": 9, "period": 3})
    info = await house.sdk.flow_control.get("k")
    assert (info.parallelism_max, info.rate_max, info.is_paused) == (7, 9, True)
    assert info.is_pinned_rate
    await house.sdk.flow_control.unpin("k", {"parallelism": True, "rate": True})
    await house.sdk.flow_control.reset_rate("k")
    await house.sdk.flow_control.resume("k")
    clock.advance("2s")
    await house.drain()
    assert len(house.there.calls) == 5
    assert (await house.sdk.flow_control.get_global_parallelism()).parallelism_count == 0


async def test_what_was_published_before_a_reset_is_not_counted_after_it(
    house: House, clock: ManualClock
) -> None:
    flow: Any = {"key": "k", "rate": 2, "period": "10s"}
    for body in ("a", "b", "c"):
        await house.sdk.message.publish(url=house.to(), body=body, flow_control=flow)
    assert (await house.sdk.flow_control.get("k")).rate_count == 2
    await house.sdk.flow_control.reset_rate("k")
    assert (await house.sdk.flow_control.get("k")).rate_count == 0

    await house.drain()

    assert len(house.there.calls) == 3
    assert (await house.sdk.flow_control.get("k")).rate_count == 1  # the one that had no room


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("path=/hook", 2),
        ("path=/hook&path=/deep/hook", 3),
        ("path=/ho", 0),
        ("label=a", 1),
        ("label=b", 2),
        ("label=a,b", 2),
        ("flowControlKey=k1&flowControlKey=k2", 2),
        ("flowControlKey=k1,k2", 2),
        ("flowControlKey=k1&path=/hook", 1),
    ],
)
async def test_a_filter_may_have_several_values(house: House, query: str, count: int) -> None:
    wishes: list[tuple[str, dict[str, Any]]] = [
        ("/hook?x=1", {"label": "a, b", "flow_control": {"key": "k1", "parallelism": 1}}),
        ("/hook", {"label": "b", "flow_control": {"key": "k3", "parallelism": 1}}),
        ("/deep/hook", {"label": "ab", "flow_control": {"key": "k2", "parallelism": 1}}),
    ]
    for path, more in wishes:
        await house.sdk.message.publish(url=house.to(path), body="x", delay="1h", **more)
    async with house.client() as client:
        answer = await client.delete(f"/v2/messages?{query}")

    assert (answer.status_code, answer.json()) == (200, {"cancelled": count})


async def test_a_message_has_its_first_label_and_all_of_them(house: House) -> None:
    done = await house.sdk.message.publish(url=house.to(), body="x", delay="1h", label="a,b")
    async with house.client() as client:
        shown = (await client.get(f"/v2/messages/{done.message_id}")).json()

    assert (shown["label"], shown["labels"]) == ("a", ["a", "b"])


async def test_what_is_pinned_keeps_the_bounds_of_what_messages_say(house: House) -> None:
    wrong = ("rate=1&period=999999999999999999", "rate=1&period=8d", "rate=1000001", "parallelism=")
    async with house.client() as client:
        for query in wrong:
            assert (await client.post(f"/v2/flowControl/k/pin?{query}")).status_code == 400
        assert (await client.get("/v2/flowControl/k")).status_code == 404
        assert (await client.post("/v2/flowControl/k/pin?rate=1&period=7d")).status_code == 200
    await house.sdk.message.publish(
        url=house.to(), body="x", flow_control={"key": "k", "parallelism": 1}
    )
    await house.drain()
    assert len(house.there.calls) == 1


async def test_a_queue_is_paused_by_true_and_nothing_else(house: House) -> None:
    async with house.client() as client:
        for paused in ("false", "true", 0, 1, None):
            told = {"queueName": "q", "paused": paused}
            assert (await client.post("/v2/queues", json=told)).status_code == 400
        assert (await client.get("/v2/queues")).json() == []
        await client.post("/v2/queues", json={"queueName": "q", "paused": True})
        await client.post("/v2/queues", json={"queueName": "q"})
        assert (await client.get("/v2/queues/q")).json()["paused"] is True
        await client.post("/v2/queues", json={"queueName": "q", "paused": False})
        assert (await client.get("/v2/queues/q")).json()["paused"] is False


async def test_a_body_too_deep_to_read_is_refused(house: House) -> None:
    async with house.client() as client:
        for path in ("/v2/batch", "/v2/queues"):
            answer = await client.post(path, content=b"[" * 100_000)
            assert (answer.status_code, list(answer.json())) == (400, ["error"])


BAD: list[tuple[str, str, Any]] = [
    ("GET", "messages/a%00b", None),
    ("DELETE", "messages/a%00b", None),
    ("DELETE", "messages?messageIds=a%00b", None),
    ("DELETE", "messages", {"messageIds": ["a\0b"]}),
    ("DELETE", "messages?label=%00", None),
    ("GET", "dlq?cursor=%00", None),
    ("GET", "dlq?responseStatus=99999999999", None),
    ("GET", "dlq/a%00b", None),
    ("DELETE", "dlq", {"dlqIds": ["a\0b"]}),
    ("POST", "dlq/retry/a%00b", None),
    ("POST", "dlq/retry?responseStatus=99999999999", None),
    ("GET", "events?messageIds=a%00b", None),
    ("GET", "events?state=a%00b", None),
    ("GET", "logs?callerIP=a%00b", None),
    ("GET", "queues/a%00b", None),
    ("POST", "queues/a%00b/pause", None),
    ("GET", "topics/a%00b", None),
    ("DELETE", "topics/a%00b", None),
    ("POST", "topics/g/endpoints", {"endpoints": [{"url": "URL", "name": "n" * 300}]}),
    ("POST", "topics/g/endpoints", {"endpoints": [{"url": "URL", "name": "a\0b"}]}),
    ("POST", "topics/g/endpoints", {"endpoints": [{"url": "URL", "name": ""}]}),
    ("GET", "schedules/a%00b", None),
    ("PATCH", "schedules/a%00b/pause", None),
    ("GET", "flowControl/a%00b", None),
    ("POST", "flowControl/a%00b/pause", None),
    ("POST", "batch", [{"destination": "URL", "headers": {"Upstash-Label": "a\0b"}}]),
    ("POST", "batch", [{"destination": "URL", "headers": {"Upstash-Label": "l" * 513}}]),
    ("POST", "batch", [{"destination": "URL\0"}]),
]


async def refuse_bad_input(house: House) -> None:
    minutes = ",".join(map(str, range(60)))
    crons = [f"{minutes},{minutes} * * * *", f"CRON_TZ=UTC {minutes},{minutes} * * * *"]
    async with house.client() as client:
        for method, path, told in BAD:
            body = None if told is None else json.dumps(told).replace("URL", house.to()).encode()
            answer = await client.request(method, f"/v2/{path}", content=body)
            assert (answer.status_code, list(answer.json())) == (400, ["error"]), (path, told)
        for cron in crons:
            for path in ("publish", "schedules"):
                url = f"/v2/{path}/{house.to()}"
                answer = await client.post(url, headers={"upstash-cron": cron})
                assert (answer.status_code, list(answer.json())) == (400, ["error"]), cron
    assert await house.sdk.schedule.list() == []


async def take_what_looks_bad(house: House) -> None:
    """What is long, odd or like a secret, and yet fits."""
    look = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
    member = {"url": house.to(), "name": "n" * 256}
    async with house.client() as client:
        for path, told in (
            ("topics/g/endpoints", {"endpoints": [member]}),
            (f"publish/{house.to()}?a=%00", None),
            ("publish/g", None),
            ("batch", [{"destination": "g", "body": "a\0b"}]),
        ):
            answer = await client.post(f"/v2/{path}", json=told)
            assert answer.status_code in (200, 201), (path, answer.text)
        for headers in (
            {"upstash-schedule-id": look, "upstash-cron": "* * * * *"},
            {"upstash-not-before": "99999999999"},
            {"upstash-label": "l" * 512, "upstash-queue-name": look},
            {"x-forwarded-for": "f" * 300},
        ):
            answer = await client.post(f"/v2/publish/{house.to()}", headers=headers)
            assert answer.status_code in (200, 201), (headers, answer.text)
    await house.sdk.schedule.delete(look)


async def test_bad_input_is_refused_as_such(house: House) -> None:
    await refuse_bad_input(house)
    await take_what_looks_bad(house)


@pytest.mark.xdist_group("postgres")
async def test_bad_input_is_refused_as_such_on_postgres(house_on_postgres: House) -> None:
    house = house_on_postgres
    await refuse_bad_input(house)
    await take_what_looks_bad(house)
    async with house.relevo.transaction() as tx:
        long = json.dumps([{"url": house.to(), "name": "n" * 300}]).encode()
        tx.add(Group(name="long", endpoints=long, created_at=0, updated_at=0))
    async with house.client() as client:
        answer = await client.post("/v2/publish/long")
    assert (answer.status_code, list(answer.json())) == (400, ["error"])  # 503 asks to try again


async def test_a_look_at_the_head_publishes_nothing(house: House) -> None:
    async with house.client() as client:
        for path in ("/v2/publish/", "/v2/enqueue/q/"):
            assert (await client.head(path + house.to())).status_code == 405
        assert (await client.head("/v2/keys")).status_code == 200
    await house.drain()
    assert house.there.calls == []


async def test_a_queue_s_name_may_be_escaped(house: House) -> None:
    url = house.to("/a%2Fb?x=1")
    async with house.client() as client:
        assert (await client.post(f"/v2/enqueue/my%2Dq/{url}")).status_code == 201
        assert (await client.post(f"/v2/enqueue/my%2Fq/{url}")).status_code == 400
    await house.drain()
    assert [call.url for call in house.there.calls] == [url]
    assert [each.name for each in await house.sdk.queue.list()] == ["my-q"]


async def test_a_destination_with_a_line_break_is_refused(house: House) -> None:
    async with house.client() as client:
        for path in ("/v2/publish/", "/v2/enqueue/q/", "/v2/schedules/"):
            answer = await client.post(
                f"{path}{house.to()}%0d%0aX:1", headers={"upstash-cron": "* * * * *"}
            )
            assert (answer.status_code, list(answer.json())) == (400, ["error"])


async def test_what_is_redacted_is_not_shown(house: House) -> None:
    done = await house.sdk.message.publish(
        url=house.to(),
        body="secret",
        headers={"Authorization": "Bearer x", "X-Open": "1"},
        redact={"body": True, "header": ["Authorization"]},
    )
    message = await house.sdk.message.get(done.message_id)
    assert message.body == "REDACTED"
    assert message.headers is not None
    assert message.headers["Authorization"] == ["REDACTED"]
    await house.drain()
    assert house.there.calls[0].headers["authorization"] == "Bearer x"


async def test_a_worker_that_serves_delivers_at_once(house: House) -> None:
    async with working(house.relevo):
        for n in range(20):
            await house.sdk.message.publish(url=house.to(), body=str(n))
        await until(lambda: len(house.there.calls) == 20)
    assert len({call.headers["upstash-message-id"] for call in house.there.calls}) == 20


async def test_what_ended_long_ago_is_forgotten(house: House, clock: ManualClock) -> None:
    from relevo.apps.qstash.queues import Tidy

    done = await house.sdk.message.publish(url=house.to(), body="x")
    await house.drain()
    clock.advance("8d")
    await house.relevo.enqueue(Tidy())
    await house.drain()
    with pytest.raises(QStashError, match="404"):
        await house.sdk.message.get(done.message_id)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "relevo.internal"])  # noqa: S104 - refused
def test_development_keys_are_for_loopback_alone(host: str, tmp_path: Path) -> None:
    """C10: with a password too, which is what lets any other address be listened to."""
    told = {"RELEVO_ADMIN_PASSWORD": "correct horse battery"}
    words = ("qstash", "--dev", "--port", "0", "--store", f"sqlite:///{tmp_path / 'q.db'}")
    for given, more in ((("--host", host), {}), ((), {"RELEVO_HOST": host})):
        done = subprocess.run(
            [sys.executable, "-m", "relevo.cli", *words, *given],
            env=os.environ | told | more,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 2, done.stderr
        assert "known to everybody" in done.stderr


async def test_the_development_token_opens_nothing_to_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C10: however the app is served, so with QSTASH_DEV=1 behind any address or proxy."""
    monkeypatch.setenv("QSTASH_DEV", "1")
    monkeypatch.setattr(app, "schedules", [])
    bearer = {"authorization": f"Bearer {DEV['QSTASH_TOKEN']}"}
    forwarded = bearer | {"x-forwarded-for": "192.0.2.7"}
    asked = [("127.0.0.1", bearer, 200), ("192.0.2.7", bearer, 403), ("127.0.0.1", forwarded, 403)]
    async with Relevo(f"sqlite:///{tmp_path / 'q.db'}", apps=[app]) as relevo:
        for address, headers, status in asked:
            transport = httpx2.ASGITransport(relevo.asgi(), client=(address, 4711))
            base = "http://127.0.0.1:8080"
            async with httpx2.AsyncClient(transport=transport, base_url=base) as client:
                answer = await client.get("/v2/keys", headers=headers)
                assert answer.status_code == status, (address, answer.text)
                assert ("sig_" in answer.text) is (status == 200)


async def test_the_program_serves_it_with_the_vendor_s_development_keys(tmp_path: Path) -> None:
    """`relevo qstash --dev`: an .env made for the vendor's dev server works unchanged."""
    port = free_port()
    env = {name: value for name, value in os.environ.items() if not name.startswith("QSTASH_")}
    words = ("qstash", "--dev", "--port", str(port), "--store", f"sqlite:///{tmp_path / 'q.db'}")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "relevo.cli", *words, env=env, stdout=DEVNULL, stderr=DEVNULL
    )
    sdk = AsyncQStash(DEV["QSTASH_TOKEN"], base_url=f"http://127.0.0.1:{port}", retry=False)

    async def is_up() -> bool:
        try:
            return (await sdk.signing_key.get()).current == DEV["QSTASH_CURRENT_SIGNING_KEY"]
        except httpx.HTTPError:
            return False

    try:
        async with receiver() as there:
            await until(is_up, timeout="40s")
            url = f"{there.base}/hook".replace("127.0.0.1", "localhost")
            await sdk.message.publish(url=url, body="x")
            await until(lambda: len(there.calls) == 1, timeout="20s")
            assert there.calls[0].headers["upstash-signature"].count(".") == 2
    finally:
        http: Any = sdk.http
        await http._client.aclose()
        process.terminate()
        await process.wait()
    assert process.returncode == 0
