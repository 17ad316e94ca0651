"""What comes in at a webhook's door: who may, in what form, and what is kept of it."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import hmac
import json
import logging
import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import text

import relevo.ingress.gate as gate_module
from relevo import (
    Answer,
    App,
    Delivery,
    Key,
    Relevo,
    SettingsError,
    sources,
    webhook,
)
from relevo.desk import view
from relevo.ingress.refusals import Buckets
from relevo.intake import answer_of, delivery_of
from relevo.message import EVENTS
from relevo.pairs import Headers
from relevo.signatures import HmacHeader
from relevo.store import DeliveryState, Filter, Letterbox, QueueMode
from relevo.testing import ManualClock, call, deliver, drain, until
from relevo.web.metrics import Metrics
from relevo.webhook import VERIFIED_BY
from tests.edges import doors
from tests.edges.doors import (
    FORM,
    GZIP,
    META,
    ODD,
    OLD,
    QSTASH,
    ROTATED,
    SECRET,
    SHARED,
    SIGNED,
    STRIPE,
    TX,
    Seen,
    jobs,
    kept,
)

OK = Answer(200, b'{"ok":true}', {"content-type": "application/json"})
PACKED = gzip.compress(b'{"id":"e1"}', mtime=0)
BOMB = gzip.compress(b"0" * 200_000_000, 9, mtime=0)  # 194 KB
FORMED = {"content-type": "application/x-www-form-urlencoded"}


@pytest.fixture
def relevo_apps() -> list[App]:
    return [doors.app()]


def code(answer: Answer) -> tuple[int, str]:
    told = json.loads(answer.body)
    assert told.keys() == {"ok", "error"}
    assert told["ok"] is False
    return answer.status, told["error"]


def seal(body: bytes, secret: str = SECRET) -> str:
    return hmac.digest(secret.encode(), body, hashlib.sha256).hex()


def sent(relevo: Relevo, path: str, body: bytes, headers: list[tuple[str, str]]) -> Delivery:
    pairs = Headers([("content-type", "application/json"), *headers])
    return Delivery(path=path, headers=pairs, body=body, received_at=relevo.clock.now())


# the good path


async def test_a_signed_delivery_is_kept_with_its_job_and_answered(relevo: Relevo) -> None:
    assert await deliver(relevo, SIGNED, json={"id": "e1"}) == OK

    [came], _ = await relevo.store.deliveries(Letterbox())
    [whole] = await relevo.store.delivery([came.id])
    assert whole is not None
    assert (whole.endpoint, whole.key, whole.status) == ("shop:/hooks/signed", "e1", 200)
    assert whole.body == b'{"id":"e1"}'
    [job] = await relevo.store.find(list(whole.jobs))
    assert job is not None
    assert (job.thread, job.cause, job.queue) == (came.id, came.id, "shop:events:save")
    await drain(relevo)
    assert await jobs(relevo) == ["e1"]


async def test_an_event_becomes_a_job_for_each_listener_with_the_delivery(relevo: Relevo) -> None:
    assert await deliver(relevo, ODD, json={"id": "e1", "do": "publish"}) == OK

    [came], _ = await relevo.store.deliveries(Letterbox())
    assert len(came.jobs) == 1  # the event itself
    await drain(relevo)
    page = await relevo.store.page(Filter(kind=Seen.__relevo__.kind))
    assert {job.thread for job in page.jobs} == {came.id}
    queues = {EVENTS, "shop:listeners:greet", "shop:listeners:file"}
    assert {job.queue for job in page.jobs} == queues


async def test_what_the_function_orders_from_the_engine_itself_joins_too(relevo: Relevo) -> None:
    assert await deliver(relevo, ODD, json={"id": "e1", "do": "engine"}) == OK

    [came], _ = await relevo.store.deliveries(Letterbox())
    assert len(came.jobs) == 1


async def test_an_answer_of_the_function_s_own_is_given_and_repeated(relevo: Relevo) -> None:
    first = await deliver(relevo, ODD, json={"id": "e1", "do": "answer", "say": "hi"})
    again = await deliver(relevo, ODD, json={"id": "e1", "do": "answer", "say": "something else"})

    assert first == again
    assert (first.status, json.loads(first.body)) == (202, {"said": "hi"})


async def test_concurrent_deliveries_share_commits(
    relevo: Relevo, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    receive = relevo.store.receive

    async def counted(arrivals: Any) -> Any:
        batches.append(len(arrivals))
        return await receive(arrivals)

    monkeypatch.setattr(relevo.receiver._arrivals, "_flush", counted)
    answers = await asyncio.gather(
        *(deliver(relevo, SIGNED, json={"id": f"e{number}"}) for number in range(60))
    )

    assert answers == [OK] * 60
    assert sum(batches) == 60
    assert len(batches) < 10


async def test_the_ids_of_its_jobs_come_from_the_delivery(relevo: Relevo) -> None:
    door = relevo.receiver.doors[SIGNED]
    came = Delivery(path=SIGNED, body=b'{"id":"e1"}', received_at=relevo.clock.now())

    first = await relevo.receiver.rehearse(door, came, 0)
    again = await relevo.receiver.rehearse(door, came, 0)
    replay = await relevo.receiver.rehearse(door, came, 1)

    assert [job.id for job in first.jobs] == [job.id for job in again.jobs]
    assert first.jobs[0].id != replay.jobs[0].id
    assert await kept(relevo) == 0


# B01 to B05: who it is from


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("x-signature", "")],
        [("x-signature", "garbage")],
        [("x-signature", "00" * 31)],
        [("x-signature", "\xe9" * 64)],
        [("x-signature", "0" * 1_000_000)],
        [("x-signature", "RIGHT"), ("x-signature", "RIGHT")],
        [("x-signature", "UPPER")],
    ],
    ids=["none", "empty", "garbage", "short", "non-ascii", "1 MB", "twice", "upper case"],
)
async def test_b01_a_bad_signature_is_401_whatever_is_wrong(
    relevo: Relevo, headers: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """B01, B02, C02: one answer for all causes, before any parser sees the body."""
    parsed: list[bytes] = []
    monkeypatch.setattr(sys.modules["relevo.webhook"], "parse_json", parsed.append)
    body = b'{"id":"e1"}'
    right = seal(body)
    known = {"RIGHT": right, "UPPER": right.upper()}
    pairs = [(name, known.get(value, value)) for name, value in headers]

    answer = await call(relevo.asgi(), sent(relevo, SIGNED, body, pairs))

    assert answer.status == 401
    assert answer.body == b'{"ok":false,"error":"invalid_signature"}'
    assert not parsed
    assert await kept(relevo) == 0


@pytest.mark.parametrize("other", [b'{"id": "e1"}', b'{"id":"e1"}\n', b'\xef\xbb\xbf{"id":"e1"}'])
async def test_b01_a_signature_of_other_bytes_is_401(relevo: Relevo, other: bytes) -> None:
    headers = [("x-signature", seal(b'{"id":"e1"}'))]

    assert code(await call(relevo.asgi(), sent(relevo, SIGNED, other, headers)))[0] == 401


async def test_b02_the_last_of_ten_signatures_may_be_the_right_one(relevo: Relevo) -> None:
    body, now = b'{"id":"e1"}', int(relevo.clock.now().timestamp())
    right = hmac.digest(f"whsec_{SECRET}".encode(), f"{now}.".encode() + body, "sha256").hex()
    many = ",".join([f"t={now}", *["v1=" + "0" * 64] * 9, f"v1={right}"])
    old = f"t={now},v0={right}"

    good = await call(relevo.asgi(), sent(relevo, STRIPE, body, [("stripe-signature", many)]))
    bad = await call(relevo.asgi(), sent(relevo, STRIPE, body, [("stripe-signature", old)]))

    assert good == OK
    assert code(bad)[0] == 401


@pytest.mark.parametrize(
    "time", ["-301", "+330", "-1", "1e9", "１２", "1" + "0" * 30, ""], ids=ascii
)
async def test_b03_a_timestamp_out_of_its_window_is_401(relevo: Relevo, time: str) -> None:
    body, now = b'{"id":"e1"}', int(relevo.clock.now().timestamp())
    stamp = str(now + int(time)) if time in ("-301", "+330") else time
    right = hmac.digest(f"whsec_{SECRET}".encode(), f"{stamp}.".encode() + body, "sha256").hex()
    value = f"t={stamp},v1={right}".encode().decode("latin-1")

    answer = await call(relevo.asgi(), sent(relevo, STRIPE, body, [("stripe-signature", value)]))

    assert code(answer) == (401, "invalid_signature")


@pytest.mark.parametrize("path", [SIGNED, TX])
async def test_b04_what_comes_again_gets_the_first_answer_and_happens_once(
    relevo: Relevo, path: str
) -> None:
    """B04: an exact repetition, and the same id with another body, which is marked."""
    first = await deliver(relevo, path, json={"id": "e1"})
    again = await deliver(relevo, path, json={"id": "e1"})
    other = await deliver(relevo, path, json={"id": "e1", "note": "another"})

    assert first == again == other == OK
    [came], _ = await relevo.store.deliveries(Letterbox(state=DeliveryState.ACCEPTED))
    assert (came.repeats, came.differs) == (2, True)
    assert await kept(relevo, DeliveryState.DIFFERS) == 1
    assert await jobs(relevo) == ["e1"]


async def test_b04_a_crowd_with_one_id_makes_one_job(relevo: Relevo) -> None:
    every = [deliver(relevo, path, json={"id": "e1"}) for path in (SIGNED, TX) for _ in range(15)]

    assert await asyncio.gather(*every) == [OK] * 30
    assert await jobs(relevo) == ["e1", "e1"]
    async with relevo.transaction() as tx:
        assert (await tx.execute(text("select count(*) from seen"))).scalar() == 1


async def test_a_repetition_that_today_s_code_refuses_is_answered_as_the_first(
    relevo: Relevo,
) -> None:
    first = await deliver(relevo, ODD, json={"id": "e1", "do": "nothing"})

    assert await deliver(relevo, ODD, json={"id": "e1", "do": "raise"}) == first == OK
    assert await deliver(relevo, ODD, json={"id": "e1", "do": "reject"}) == OK


@pytest.mark.parametrize(
    "query",
    [
        f"id=1&secret={SECRET.upper()}",
        f"id=1&secret=%20{SECRET}",
        f"id=1&secret[]={SECRET}",
        f"id=1&secret={SECRET}&secret={SECRET}",
        "id=1",
    ],
)
async def test_b05_a_shared_secret_must_be_right_to_the_letter(relevo: Relevo, query: str) -> None:
    answer = await deliver(relevo, SHARED, method="GET", query=query, sign=False)

    assert code(answer) == (401, "invalid_secret")


async def test_b05_retired_keys_are_refused_and_next_ones_taken(
    clock: ManualClock, tmp_path: Path
) -> None:
    """B05, C04"""
    ended = Key("the one before", until=clock.now() - timedelta(seconds=1))
    app = App("keys")
    keys = [ended, "the current one", "the next one"]

    @app.webhook(
        "/hooks/keys", verify=sources.hmac_header("X-Signature", keys), key=lambda d: d.json["id"]
    )
    async def hook(delivery: Delivery) -> None: ...

    async with Relevo(f"sqlite:///{tmp_path / 'k.db'}", apps=[app], clock=clock) as engine:
        answers = [
            await deliver(
                engine,
                "/hooks/keys",
                json={"id": secret},
                headers={
                    "x-signature": seal(
                        json.dumps({"id": secret}, separators=(",", ":")).encode(), secret
                    )
                },
                sign=False,
            )
            for secret in ("the one before", "the current one", "the next one", "of another")
        ]
    assert [answer.status for answer in answers] == [401, 200, 200, 401]


async def test_c03_a_door_without_a_secret_does_not_open(tmp_path: Path) -> None:
    hook = webhook(
        "/hooks/open", doors.saving, source=lambda use: sources.meta(""), key=lambda d: "1"
    )
    engine = Relevo(f"sqlite:///{tmp_path / 'c.db'}", apps=[App("open", webhooks=[hook])])
    engine.asgi()

    with pytest.raises(SettingsError, match="secret"):
        await engine.open()


async def test_c05_a_token_is_good_for_one_delivery(relevo: Relevo) -> None:
    door = relevo.receiver.doors[QSTASH]

    def signed(body: bytes) -> Delivery:
        pairs = Headers([("content-type", "application/json")])
        bare = Delivery(path=QSTASH, headers=pairs, body=body, received_at=relevo.clock.now())
        return door.scheme.sign(bare, relevo.clock.now())

    first = signed(b'{"id":"m1"}')
    assert await call(relevo.asgi(), first) == OK
    assert await call(relevo.asgi(), first) == OK  # known: the same answer, and no second job
    assert await jobs(relevo) == ["m1"]
    refused = signed(b'{"id":"m2"')
    for _ in range(2):  # what was not taken may come again, as it came
        assert (await call(relevo.asgi(), refused)).status == 400
    found, _ = await relevo.store.deliveries(Letterbox(state=DeliveryState.REFUSED))
    assert [came.status for came in found] == [400, 400]


# B06 to B11: form


@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "TRACE", "BREW", "HEAD", "DELETE"])
async def test_b06_other_methods_are_told_which_there_are(relevo: Relevo, method: str) -> None:
    answer = await deliver(relevo, SIGNED, method=method, sign=False, headers={"x-secret": "echo?"})

    assert answer.status == 405
    assert answer.headers["allow"] == "POST"
    assert b"echo" not in answer.body


@pytest.mark.parametrize(
    "kind",
    ["", "text/plain", "application/json; charset=utf-7", "multipart/form-data; boundary=x", "*"],
)
async def test_b07_a_wrong_content_type_is_415(relevo: Relevo, kind: str) -> None:
    answer = await deliver(relevo, SIGNED, json={"id": "e1"}, headers={"content-type": kind})

    assert code(answer) == (415, "unsupported_media_type")
    assert await kept(relevo) == 0


@pytest.mark.parametrize("kind", ["application/json;charset=UTF-8", "Application/JSON"])
async def test_b07_a_content_type_may_be_spelled_freely(relevo: Relevo, kind: str) -> None:
    assert await deliver(relevo, SIGNED, json={"id": "e"}, headers={"content-type": kind}) == OK


async def _raw(relevo: Relevo, headers: list[tuple[bytes, bytes]], parts: Any) -> tuple[int, int]:
    """Status, and how many parts of the body were asked for."""
    asked, statuses = 0, []

    async def receive() -> Any:
        nonlocal asked
        asked += 1
        return {"type": "http.request", "body": next(parts), "more_body": True}

    async def send(message: Any) -> None:
        statuses.append(message.get("status"))

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": SIGNED,
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), *headers],
    }
    await relevo.asgi()(scope, receive, send)
    return statuses[0], asked


async def test_b08_b09_what_is_too_long_is_not_read_to_its_end(
    relevo: Relevo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B08, B09: a told length is refused unread; an endless body at its limit."""
    monkeypatch.setattr("relevo.ingress.reply.LINGER_BYTES", 0)
    endless = iter(lambda: b"x" * 65_536, None)

    assert await _raw(relevo, [(b"content-length", b"10000000000")], endless) == (413, 0)
    assert await _raw(relevo, [(b"content-length", b"1048577")], endless) == (413, 0)
    assert await _raw(relevo, [(b"transfer-encoding", b"chunked")], endless) == (413, 17)
    assert await _raw(relevo, [], endless) == (411, 0)


async def test_b10_a_body_that_does_not_come_is_408(
    relevo: Relevo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_module, "BODY_SECONDS", 0.05)
    monkeypatch.setattr(gate_module, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr("relevo.ingress.reply.LINGER_SECONDS", 0.01)
    never = asyncio.Event()
    statuses: list[Any] = []

    async def receive() -> Any:
        await never.wait()

    async def send(message: Any) -> None:
        statuses.append(message.get("status"))

    scope = {
        "type": "http",
        "method": "POST",
        "path": SIGNED,
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"content-length", b"9")],
    }
    slow = asyncio.create_task(relevo.asgi()(scope, receive, send))
    assert await deliver(relevo, SIGNED, json={"id": "meanwhile"}) == OK
    await slow
    assert statuses[0] == 408


async def test_a_delivery_whose_function_takes_too_long_is_kept_as_failed(
    relevo: Relevo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_module, "FUNCTION_SECONDS", 0.05)
    monkeypatch.setattr(gate_module, "LOOK_SECONDS", 0.02)

    answer = await deliver(relevo, ODD, json={"id": "e1", "do": "wait", "seconds": 60})

    assert answer == OK
    [came], _ = await relevo.store.deliveries(Letterbox())
    assert (came.state, came.key) == (DeliveryState.FAILED, "e1")
    assert came.reason == "its function failed: TimeoutError: it ran longer than 0.05 s"


@pytest.mark.parametrize(
    ("body", "plain", "expected"),
    [
        (PACKED, b'{"id":"e1"}', 200),
        (BOMB, b"", 413),
        (gzip.compress(PACKED), PACKED, 400),
        (PACKED[:-5], b"", 400),
        (PACKED + b"tail", b"", 400),
        (b"not gzip", b"", 400),
    ],
    ids=["good", "bomb", "nested", "cut short", "tail", "no gzip"],
)
async def test_b11_a_door_that_takes_gzip_unpacks_within_its_limit(
    relevo: Relevo, body: bytes, plain: bytes, expected: int
) -> None:
    headers = {"content-encoding": "gzip", "x-signature": seal(plain)}

    answer = await deliver(relevo, GZIP, body=body, headers=headers, sign=False)

    assert answer.status == expected


async def test_b11_what_was_unpacked_counts_as_held(
    relevo: Relevo, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, held = relevo.asgi().gate, list[int]()
    real = relevo.receiver.give

    async def give(*given: Any) -> Any:
        held.append(gate._held)
        return await real(*given)

    monkeypatch.setattr(relevo.receiver, "give", give)
    plain = b'{"id":"e1","note":"%b"}' % (b"x" * 100_000)
    headers = {"content-encoding": "gzip", "x-signature": seal(plain)}
    await deliver(relevo, GZIP, body=gzip.compress(plain), headers=headers, sign=False)

    assert held[0] > len(plain)
    assert gate._held == 0


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "gzip, gzip", "wat"])
async def test_b11_other_doors_take_no_encoding(relevo: Relevo, coding: str) -> None:
    headers = {"content-encoding": coding}

    answer = await deliver(relevo, SIGNED, json={"id": "e1"}, headers=headers)

    assert code(answer) == (415, "unsupported_encoding")


@pytest.mark.parametrize(
    "path",
    [
        "/hooks/../hooks/signed/",
        "//hooks/signed",
        "/hooks/signed/",
        "/hooks/signed;x=1",
        "/hooks/signed\x00",
        "/HOOKS/signed",
    ],
    ids=ascii,
)
async def test_b14_a_path_is_the_door_s_or_it_is_not(relevo: Relevo, path: str) -> None:
    """Signed well and sent to the right host, so that nothing but the path is wrong."""
    body = b'{"id":"e1"}'
    headers = {"host": "127.0.0.1", "x-signature": seal(body), "content-type": "application/json"}

    answer = await deliver(relevo, path, body=body, headers=headers, sign=False)

    assert answer.status == 404
    assert await kept(relevo) == 0
    assert await deliver(relevo, SIGNED, body=body, headers=headers, sign=False) == OK


async def test_b15_too_many_fields_are_refused(relevo: Relevo) -> None:
    fields = "&".join(f"f{number}=1" for number in range(100_000))
    query = "&".join(f"f{number}=1" for number in range(10_000))
    twice = "id=1&id=1"

    form = await deliver(relevo, FORM, body=fields, headers=FORMED)
    asked = await deliver(relevo, SIGNED, json={"id": "e1"}, query=query)
    again = await deliver(relevo, FORM, body=twice, headers=FORMED)

    assert code(form) == (400, "too_many_fields")
    assert code(asked) == (400, "too_many_fields")
    assert code(again) == (400, "duplicate_field")


# B20 to B28: what it says


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"id":"e1"',
        b'{"id":"e1"} x',
        b'{"id":"e1"}{"id":"e2"}',
        b'{"id":' + b"[" * 65 + b"]" * 65 + b"}",
        b'{"id":' + b"[" * 100_000,
        b'{"id":"e1","n":NaN}',
        b'{"id":"e1","n":Infinity}',
        b'{"id":"e1","n":1e400}',
        b'{"id":"e1","n":' + b"1" * 5_000 + b"}",
        b'{"id":"a","id":"b"}',
        b'{"id":"\\ud800"}',
        b'{"id":"\\u0000"}',
        b'{"id":"\xff"}',
        '{"id":"e1"}'.encode("utf-16"),
        b'\xef\xbb\xbf{"id":"e1"}',
    ],
    ids=lambda body: f"{body[:24]!r} of {len(body)}",
)
async def test_b20_to_b24_what_is_not_strict_json_is_400(relevo: Relevo, body: bytes) -> None:
    assert (await deliver(relevo, SIGNED, body=body)).status == 400
    assert await kept(relevo) == 0
    assert await deliver(relevo, SIGNED, json={"id": "next"}) == OK


@pytest.mark.parametrize("body", [b"null", b"[]", b'"x"', b"1"])
async def test_b20_json_of_another_kind_is_a_failure_of_ours(relevo: Relevo, body: bytes) -> None:
    """The body is well-formed and signed: our code expects something else of it."""
    assert await deliver(relevo, SIGNED, body=body) == OK
    [came], _ = await relevo.store.deliveries(Letterbox())
    assert (came.state, came.reason) == (
        DeliveryState.FAILED,
        "its function failed: BodyError: the body is JSON, but no object",
    )


async def test_b25_odd_text_is_kept_byte_for_byte(relevo: Relevo) -> None:
    note = "\u202eright to left\u200b" + "e" + "\u0301" * 1_000 + "😀"
    body = json.dumps({"id": "e1", "note": note}, ensure_ascii=False).encode()

    assert await deliver(relevo, SIGNED, body=body) == OK

    [came], _ = await relevo.store.deliveries(Letterbox(key="e1"))
    [whole] = await relevo.store.delivery([came.id])
    assert whole is not None
    assert whole.body == body


@pytest.mark.parametrize(
    "id", [{"$ne": None}, ["x"], True, 7.5, None, "", "x" * 513], ids=lambda id: f"{id!r:.20}"
)
async def test_b26_b27_a_key_that_is_no_short_text_is_a_failure_of_ours(
    relevo: Relevo, id: Any
) -> None:
    """Signed well, so that it is kept for the mended key function, and nothing is enqueued."""
    for _ in range(2):
        assert await deliver(relevo, SIGNED, json={"id": id}) == OK

    [came], _ = await relevo.store.deliveries(Letterbox())
    assert (came.state, came.repeats) == (DeliveryState.FAILED, 1)
    assert (came.key or "").startswith("body:")
    assert "the key function of /hooks/signed returned " in came.reason
    assert await jobs(relevo) == []


@pytest.mark.parametrize("id", ["..", "' OR 1=1--", "*", "%", "a\nb", "__proto__"], ids=ascii)
async def test_b27_an_odd_key_is_stored_literally(relevo: Relevo, id: str) -> None:
    assert await deliver(relevo, SIGNED, json={"id": id}) == OK
    assert await deliver(relevo, SIGNED, json={"id": id}) == OK

    [came], _ = await relevo.store.deliveries(Letterbox(key=id))
    assert (came.key, came.repeats) == (id, 1)


async def test_b28_too_many_orders_of_one_delivery_are_none(relevo: Relevo) -> None:
    answer = await deliver(relevo, ODD, json={"id": "e1", "do": "many", "many": 1_001})

    assert code(answer) == (413, "too_many_orders")
    assert await jobs(relevo) == []
    assert await deliver(relevo, ODD, json={"id": "e2", "do": "many", "many": 1_000}) == OK


# what a function may do


async def test_a_delivery_whose_function_raises_is_kept_as_failed(
    relevo: Relevo, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await deliver(relevo, ODD, json={"id": "e1", "do": "raise"})

    assert answer == OK
    [came], _ = await relevo.store.deliveries(Letterbox())
    assert (came.state, came.key, len(came.jobs)) == (DeliveryState.FAILED, "e1", 1)
    assert came.reason == "its function failed: RuntimeError: a mistake of the app"
    lines = [record.__dict__ for record in caplog.records if record.levelno == logging.ERROR]
    told = [(line["endpoint"], line["delivery"]) for line in lines]
    assert told == [(f"shop:{ODD}", came.id)], lines


async def test_a_row_and_its_job_and_its_delivery_are_all_or_nothing(relevo: Relevo) -> None:
    assert await deliver(relevo, TX, json={"id": "e1"}) == OK
    assert await deliver(relevo, TX, json={"id": "e2", "do": "raise"}) == OK

    assert await jobs(relevo) == ["e1"]
    assert await kept(relevo) == 1
    async with relevo.transaction() as tx:
        assert list((await tx.execute(text("select id from seen"))).scalars()) == ["e1"]


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        ({"do": "reject"}, (422, "no_such_room")),
        ({"do": "nul"}, (200, None)),
    ],
    ids=["reject", "a NUL in a command"],
)
async def test_a_refusal_is_told_to_our_people_only(
    relevo: Relevo, wish: dict[str, Any], expected: tuple[int, str | None]
) -> None:
    answer = await deliver(relevo, ODD, json={"id": "e1", **wish})

    assert (answer.status, json.loads(answer.body).get("error")) == expected
    [came], _ = await relevo.store.deliveries(Letterbox())
    assert came.state is (DeliveryState.REFUSED if expected[1] else DeliveryState.FAILED)
    assert came.reason
    assert came.key == "e1"
    assert await jobs(relevo) == []


async def _is_one_rejected(relevo: Relevo) -> bool:
    return await kept(relevo, DeliveryState.REFUSED) == 1


@pytest.mark.parametrize(
    ("body", "status"),
    [(b'{"id":"e1","do":"reject"}', 422), (b"{", 400), (b'{"id":"e1","do":"refuse"}', 409)],
    ids=["rejected", "no JSON", "the function's own"],
)
async def test_a_refusal_is_kept_with_the_answer_that_was_given(
    relevo: Relevo, body: bytes, status: int
) -> None:
    answer = await deliver(relevo, ODD, body=body)
    await relevo.asgi().gate.refusals.close()

    [came], _ = await relevo.store.deliveries(Letterbox(state=DeliveryState.REFUSED))
    [whole] = await relevo.store.delivery([came.id])
    assert whole is not None
    assert came.status == whole.status == answer.status == status
    assert answer_of(whole) == answer


async def test_an_answer_of_400_or_more_keeps_nothing(relevo: Relevo) -> None:
    answer = await deliver(relevo, ODD, json={"id": "e1", "do": "refuse"})

    assert (answer.status, answer.body) == (409, b"no")
    assert await kept(relevo) == 0


async def test_b55_the_challenge_is_answered_and_not_stored(relevo: Relevo) -> None:
    query = "hub.mode=subscribe&hub.verify_token=tell-me&hub.challenge=1158201444"
    good = await deliver(relevo, META, method="GET", query=query, sign=False)
    bad = await deliver(relevo, META, method="GET", query="hub.verify_token=no", sign=False)

    assert (good.status, good.body) == (200, b"1158201444")
    assert good.headers["content-type"].startswith("text/plain")
    assert code(bad) == (403, "invalid_token")
    assert await kept(relevo) == 0
    assert await deliver(relevo, META, json={"id": "e1"}) == OK


async def test_a_door_may_be_delivered_to_by_get(relevo: Relevo) -> None:
    """B51: the secret in the query, or in a form, is nowhere in the store."""
    asked, form = f"id=b1&secret={SECRET}", f"id=b2&secret={SECRET}"
    assert await deliver(relevo, SHARED, method="GET", query=asked, sign=False) == OK
    assert await deliver(relevo, SHARED, body=form, headers=FORMED, sign=False) == OK

    found, _ = await relevo.store.deliveries(Letterbox())
    assert [came.query for came in found] == ["", "id=b1&secret=***"]
    bodies = [each.body for each in await relevo.store.delivery([one.id for one in found]) if each]
    assert bodies == [b"id=b2&secret=***", b""]


async def test_a_draining_queue_is_503_and_asks_to_come_back(relevo: Relevo) -> None:
    from relevo.store import By

    await relevo.store.set_mode(["shop:events:save"], QueueMode.DRAINING, By("ann"))

    answer = await deliver(relevo, SIGNED, json={"id": "e1"})

    assert code(answer) == (503, "closed")
    assert answer.headers["retry-after"] == "30"
    assert await kept(relevo) == 0


# what is kept, and how much


async def test_c21_no_secret_and_no_signature_is_kept(relevo: Relevo, tmp_path: Path) -> None:
    headers = {"authorization": f"Bearer {SECRET}", "cookie": f"a={SECRET}", "x-secret": SECRET}
    body = b'{"id":"e1"}'
    await deliver(relevo, SIGNED, body=body, headers=headers)
    await deliver(relevo, SIGNED, body=b'{"id":"e2"}', headers=headers, sign=False)
    await deliver(relevo, SHARED, method="GET", query="id=b1")
    await until(lambda: _is_one_rejected(relevo))
    await relevo.close()

    whole = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    assert b"e1" in whole
    assert SECRET.encode() not in whole
    assert seal(body).encode() not in whole


async def test_forgeries_are_kept_within_a_bound_and_harm_nobody(relevo: Relevo) -> None:
    """C38: after so many an address hears 429; whoever signs well is never refused."""
    forged = [await deliver(relevo, SIGNED, json={"id": "x"}, sign=False) for _ in range(100)]

    statuses = [answer.status for answer in forged]
    assert statuses[0] == 401
    assert statuses[-1] == 429
    assert forged[-1].headers["retry-after"]
    assert await deliver(relevo, SIGNED, json={"id": "good"}) == OK
    await relevo.asgi().gate.refusals.close()
    assert 1 <= await kept(relevo, DeliveryState.REFUSED) <= 25
    assert relevo.telemetry.counts["delivery_forged"] == 100


async def test_which_secret_verified_a_call_is_told_and_never_the_secret(
    relevo: Relevo, tmp_path: Path
) -> None:
    """While a secret is rotated: the new one first, the old one second."""
    door = relevo.receiver.doors[ROTATED]
    keys = cast(HmacHeader, door.scheme).keys
    first, second = keys.names
    assert re.fullmatch("1 of 2, [0-9a-f]{4}", first) and second.startswith("2 of 2, ")
    for number, secret in enumerate([OLD, OLD, SECRET]):
        body = b'{"id":"e%d"}' % number
        forged = {"x-signature": seal(body, secret), "relevo-verified-by": "1 of 1, ffff"}
        answer = await deliver(relevo, ROTATED, body=body, headers=forged, sign=False)
        assert answer.status == 200
    body = b'{"id":"e9"}'
    wrong = {"x-signature": seal(body, "another")}
    assert (await deliver(relevo, ROTATED, body=body, headers=wrong, sign=False)).status == 401

    listed, _ = await relevo.store.deliveries(Letterbox(state=DeliveryState.ACCEPTED))
    whole = await relevo.store.delivery([each.id for each in listed])
    told = {each.key: dict(view(each)["headers"])[VERIFIED_BY] for each in whole if each}
    assert told == {"e0": second, "e1": second, "e2": first}
    endpoint = door.endpoint
    assert relevo.telemetry.secrets == {(endpoint, second): 2, (endpoint, first): 1}
    text = (await Metrics(relevo).text())[0].decode()
    for place, count, name in (("1", 1, first), ("2", 2, second)):
        labels = f'endpoint="{endpoint}",fingerprint="{name[-4:]}",secret="{place}"'
        assert f"relevo_endpoint_verified_total{{{labels}}} {count}.0" in text
    again = delivery_of(next(each for each in whole if each and each.key == "e0"), None)
    assert again.verified_by == second and VERIFIED_BY not in again.headers
    await relevo.close()
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    assert OLD.encode() not in stored and SECRET.encode() not in stored


async def test_forgeries_through_a_proxy_slow_only_the_address_behind_it(
    relevo: Relevo, caplog: pytest.LogCaptureFixture
) -> None:
    """C38: whatever the forger writes before the address that the proxy appends."""

    async def forge(named: str) -> int:
        headers = {"x-forwarded-for": named}
        reply = await deliver(relevo, SIGNED, json={}, headers=headers, sign=False)
        return reply.status

    forged = [await forge(f"192.0.2.{number}, 203.0.113.66") for number in range(100)]
    assert forged[0] == 401 and forged[-1] == 429
    assert await forge("203.0.113.66, 198.51.100.4") == 401
    [first, *_] = [each for each in caplog.records if each.getMessage() == "delivery refused"]
    assert vars(first)["address"] == "203.0.113.66"


def test_c38_the_memory_for_addresses_is_bounded() -> None:
    buckets = Buckets(1.0, 5.0, 10_000)
    for number in range(100_000):
        buckets.take(f"2001:db8::{number:x}")

    assert len(buckets) == 10_000


async def test_of_a_forged_call_hash_header_names_and_reason_are_kept(relevo: Relevo) -> None:
    """C21: whatever a stranger puts into it, a card or a name, is not stored."""
    body = b'{"id": "e1", "card": "4111111111111111", "name": "Canary Perez"}'
    headers = {"x-signature": "canary-of-a-signature", "user-agent": "canary-agent"}
    await deliver(relevo, SIGNED, body=body, query="q=canary", headers=headers, sign=False)
    await relevo.asgi().gate.refusals.close()

    [came], _ = await relevo.store.deliveries(Letterbox(state=DeliveryState.REFUSED))
    [whole] = await relevo.store.delivery([came.id])
    assert whole is not None and whole.reason
    digest = hashlib.sha256(body).hexdigest()
    assert whole.body == f"(not kept: {len(body)} bytes, sha256 {digest})".encode()
    assert relevo.desk.masked_delivery(whole).body == whole.body
    assert b'["x-signature",""]' in whole.headers
    said = repr(whole).lower()
    assert "canary" not in said and "4111" not in said and "perez" not in said


async def test_the_reason_of_a_bad_signature_helps_our_people(relevo: Relevo) -> None:
    right = seal(b'{"id": "e1"}')
    await deliver(relevo, SIGNED, json={"id": "e1"}, headers={"x-signature": right}, sign=False)
    await relevo.asgi().gate.refusals.close()

    [came], _ = await relevo.store.deliveries(Letterbox(state=DeliveryState.REFUSED))
    assert "re-serialised" in came.reason
    assert right not in came.reason


async def test_too_many_calls_at_once_are_asked_to_come_back(
    relevo: Relevo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F33: every 2xx is stored, the rest is 503 with Retry-After of a second."""
    monkeypatch.setattr(gate_module, "FLIGHTS", 20)

    answers = await asyncio.gather(
        *(deliver(relevo, SIGNED, json={"id": f"e{number}"}) for number in range(200))
    )

    good = [answer for answer in answers if answer == OK]
    busy = [answer for answer in answers if answer.status == 503]
    assert len(good) + len(busy) == 200
    assert len(good) >= 20
    assert {answer.headers["retry-after"] for answer in busy} == {"1"}
    assert len(await jobs(relevo)) == len(good) == await kept(relevo)


# the whole application


async def test_health_is_small_and_tells_when_the_store_is_away(
    relevo: Relevo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C42"""
    from relevo import StoreUnavailable

    health = await deliver(relevo, "/health", method="GET", sign=False)
    ready = await deliver(relevo, "/ready", method="GET", sign=False)
    assert health.status == ready.status == 200
    assert (health.body, ready.body) == (b'{"status":"ok"}', b'{"ok":true}')
    for method in ("POST", "OPTIONS", "TRACE"):
        other = await deliver(relevo, "/health", method=method, sign=False)
        assert code(other) == (405, "method_not_allowed")

    async def away(_: object) -> list[bool]:
        raise StoreUnavailable("gone from 10.0.0.7")

    monkeypatch.setattr(relevo.store, "remember", away)
    monkeypatch.setattr("relevo.storewatch.RARELY", -1.0)
    monkeypatch.setattr("relevo.front.HEALTH_SECONDS", -1.0)
    health = await deliver(relevo, "/health", method="GET", sign=False)
    assert (health.status, health.body) == (200, b'{"status":"degraded"}')
    relevo.asgi().gate.spool = None
    for path in ("/health", "/ready"):
        told = await deliver(relevo, path, method="GET", sign=False)
        assert told.status == 503
        assert b"10.0.0.7" not in told.body and len(told.body) <= 64


async def test_it_works_mounted_under_a_prefix(relevo: Relevo) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    outer = Starlette(routes=[Mount("/relevo", relevo.asgi())])
    body = b'{"id":"e1"}'

    there = sent(relevo, f"/relevo{SIGNED}", body, [("x-signature", seal(body))])
    elsewhere = sent(relevo, SIGNED, body, [("x-signature", seal(body))])

    assert await call(outer, there) == OK
    assert (await call(outer, elsewhere)).status == 404
    assert await jobs(relevo) == ["e1"]


async def test_the_lifespan_opens_the_engine_and_closes_it(tmp_path: Path) -> None:
    engine = Relevo(f"sqlite:///{tmp_path / 'l.db'}", apps=[doors.app()])
    app = engine.asgi()
    inbox: asyncio.Queue[Any] = asyncio.Queue()
    outbox: asyncio.Queue[Any] = asyncio.Queue()

    closed = await deliver_unopened(app)
    life = asyncio.create_task(app({"type": "lifespan"}, inbox.get, outbox.put))
    await inbox.put({"type": "lifespan.startup"})
    assert (await outbox.get())["type"] == "lifespan.startup.complete"
    assert await deliver(engine, SIGNED, json={"id": "e1"}) == OK
    await inbox.put({"type": "lifespan.shutdown"})
    assert (await outbox.get())["type"] == "lifespan.shutdown.complete"
    await life

    assert closed.status == 503
    assert not engine.is_open


async def deliver_unopened(app: Any) -> Answer:
    from datetime import UTC, datetime

    return await call(app, Delivery(path=SIGNED, received_at=datetime.now(UTC)))


async def test_sites_are_found_by_their_longest_prefix(tmp_path: Path) -> None:
    from relevo import site

    def saying(word: str) -> Any:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": f"{word} {scope['path']}".encode()})

        return lambda relevo: app

    app = App("two", sites=[site("/a", saying("short")), site("/a/b", saying("long"))])
    async with Relevo(f"sqlite:///{tmp_path / 's.db'}", apps=[app]) as engine:
        answers = [
            (await deliver(engine, path, method="GET", sign=False)).body
            for path in ("/a", "/a/c", "/a/b", "/a/b/c")
        ]
    assert answers == [b"short /a", b"short /a/c", b"long /a/b", b"long /a/b/c"]
