"""Calls that reach an endpoint, or nearly, and are not taken: each leaves a bounded trace."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import logging
import random
import sqlite3
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import NamedTuple, cast

import pytest
from msgspec.structs import replace

import relevo.ingress.server as server_module
import relevo.unrouted as unrouted_module
from relevo import App, Delivery, Relevo, sources, webhook
from relevo.dashboard.words import SPANISH
from relevo.desk import Desk, Role
from relevo.errors import StoreUnavailable
from relevo.ingress.server import serving
from relevo.ingress.sockets import listen
from relevo.ingress.unrouted import Near, distance
from relevo.pairs import Headers
from relevo.store import Store
from relevo.telemetry import Telemetry
from relevo.testing import FaultyStore, call, until
from relevo.unrouted import ADDRESSES, CAUSES, KEEP, KIND, Unrouted, UnroutedCalls, read
from tests.conformance.conftest import Handles, handles
from tests.edges import doors
from tests.edges.box import Box
from tests.edges.doors import GZIP, META, SIGNED
from tests.edges.site import ACCEPT, Site
from tests.edges.test_ingress import seal, sent
from tests.edges.test_ingress_wire import say

__all__ = ["handles"]

CANARY = "canary-of-a-caller"
JSON = "content-type: application/json"
FORM = "content-type: application/x-www-form-urlencoded"
ENDPOINT = f"shop:{SIGNED}"


class Wrong(NamedTuple):
    """A call that is not taken, and what is told of it."""

    head: str  # method, path and header lines
    body: bytes
    status: int
    cause: str
    expects: str = ""


BODY = f'{{"secret": "{CANARY}"}}'.encode()
UNPACKED = gzip.compress(b"0" * 1_100_000)

EITHER = {
    "form": Wrong(
        f"POST {SIGNED}\n{FORM}", BODY, 415, "unsupported_media_type", "application/json"
    ),
    "charset": Wrong(
        f"POST {SIGNED}\n{JSON}; charset=x", BODY, 415, "unsupported_media_type", "application/json"
    ),
    "packed": Wrong(
        f"POST {SIGNED}\n{JSON}\ncontent-encoding: br", BODY, 415, "unsupported_encoding"
    ),
    "bad gzip": Wrong(f"POST {GZIP}\n{JSON}\ncontent-encoding: gzip", BODY, 400, "bad_gzip"),
    "bomb": Wrong(
        f"POST {GZIP}\n{JSON}\ncontent-encoding: gzip",
        UNPACKED,
        413,
        "too_large",
        "1,048,576 bytes",
    ),
    "get": Wrong(f"GET {SIGNED}", b"", 405, "method_not_allowed", "POST"),
    "put": Wrong(f"PUT {META}\n{JSON}", BODY, 405, "method_not_allowed", "POST, GET"),
    "large": Wrong(
        f"POST {SIGNED}\n{JSON}", BODY.ljust(1_048_577), 413, "too_large", "1,048,576 bytes"
    ),
    "fields": Wrong(f"POST {SIGNED}?{'a=1&' * 1_100}\n{JSON}", BODY, 400, "too_many_fields"),
    "challenge": Wrong(f"GET {META}?hub.verify_token={CANARY}", b"", 403, "challenge_refused"),
    "get with a body": Wrong(f"GET {doors.SHARED}", BODY, 400, "unexpected_body"),
    "slash": Wrong(f"POST {SIGNED}/\n{JSON}", BODY, 404, "wrong_path", SIGNED),
    "case": Wrong(f"POST /Hooks/Signed?key={CANARY}\n{JSON}", BODY, 404, "wrong_path", SIGNED),
    "two slashes": Wrong(f"POST /hooks//signed\n{JSON}", BODY, 404, "wrong_path", SIGNED),
    "typo": Wrong(f"POST /hook/signd\n{JSON}", BODY, 404, "wrong_path", SIGNED),
    "prefix": Wrong(f"POST /shop/api{SIGNED}\n{JSON}", BODY, 404, "wrong_path", SIGNED),
    "stripped": Wrong(f"POST /signed\n{JSON}", BODY, 404, "wrong_path", SIGNED),
    "suffix": Wrong(f"POST {SIGNED}/v1\n{JSON}", BODY, 404, "wrong_path", SIGNED),
}
WIRE = {
    "no length": Wrong(f"POST {SIGNED}\n{JSON}", b"", 411, "length_required"),
    "long head": Wrong(
        f"POST {SIGNED}\nx-{CANARY[:6]}: {'a' * 70_000}", b"", 431, "headers_too_large"
    ),
    "long url": Wrong(f"POST {SIGNED}?{'a' * 9_000}", b"", 414, "url_too_long"),
    "unknown method": Wrong(f"POKE {SIGNED}?{CANARY}", b"", 405, "method_not_allowed", "POST"),
    "known method": Wrong(f"DELETE {SIGNED}?{CANARY}", b"", 405, "method_not_allowed", "POST"),
    "two lengths": Wrong(
        f"POST {SIGNED}\ncontent-length: 1\ntransfer-encoding: identity", b"", 400, "bad_request"
    ),
    "escaped": Wrong(f"POST /hooks%2Fsigned%20\n{JSON}", BODY, 404, "wrong_path", SIGNED),
}


@pytest.fixture
def relevo_apps() -> list[App]:
    return [doors.app()]


@pytest.fixture
async def port(relevo: Relevo) -> AsyncGenerator[int]:
    await relevo.asgi().start()
    with listen("127.0.0.1", 0) as listener:
        async with serving(relevo.asgi(), listener, grace=1):
            yield listener.getsockname()[1]


async def told(relevo: Relevo) -> list[Unrouted]:
    """What people see, once all is written."""
    await relevo.asgi().gate.strays.calls.close()
    return await relevo.desk.unrouted()


async def by_asgi(relevo: Relevo, wrong: Wrong, client: str = "127.0.0.1") -> int:
    line, *lines = wrong.head.split("\n")
    method, _, target = line.partition(" ")
    path, _, query = target.partition("?")
    pairs = (each.partition(": ") for each in ("host: 127.0.0.1", *lines))
    headers = Headers((name, value) for name, _, value in pairs)
    sent = Delivery(
        method=method,
        path=path,
        query=query,
        headers=headers,
        body=wrong.body,
        received_at=relevo.clock.now(),
    )
    return (await call(relevo.asgi(), sent, client=client)).status


async def by_wire(port: int, wrong: Wrong, *lines: str) -> list[int]:
    first, *given = wrong.head.split("\n")
    length = [f"content-length: {len(wrong.body)}"] if wrong.body else []
    lines = (*given, *length, *lines, "connection: close")
    head = "\r\n".join([f"{first} HTTP/1.1", "host: 127.0.0.1", *lines, "", ""])
    return (await say(port, head.encode() + wrong.body)).statuses


def in_the_file(relevo: Relevo) -> bytes:
    """Everything that the store has."""
    with sqlite3.connect(relevo.store.url.removeprefix("sqlite:///")) as db:
        return "\n".join(db.iterdump()).encode() + b"".join(
            value for (value,) in db.execute("select value from relevo_notes")
        )


# each cause, by both readers


@pytest.mark.parametrize("wrong", EITHER.values(), ids=EITHER)
async def test_a_call_that_is_not_taken_leaves_a_trace_under_any_server(
    relevo: Relevo, wrong: Wrong
) -> None:
    assert await by_asgi(relevo, wrong) == wrong.status

    [seen] = await told(relevo)
    assert (seen.cause, seen.status, seen.expects) == (wrong.cause, wrong.status, wrong.expects)
    assert (seen.count, seen.address, seen.first_at) == (1, "127.0.0.1", seen.last_at)
    assert f"{seen.method} {seen.path}" == wrong.head.split("\n")[0].partition("?")[0]
    assert seen.endpoint == f"shop:{wrong.expects if wrong.cause == 'wrong_path' else seen.path}"
    assert seen.cause in CAUSES
    assert (len(wrong.body) or None) == seen.size
    if seen.hash:
        assert seen.hash == hashlib.blake2b(wrong.body, digest_size=16).hexdigest()
    assert ("content-type" in seen.headers) == ("content-type" in wrong.head)
    assert CANARY.encode() not in in_the_file(relevo)


@pytest.mark.parametrize("wrong", (EITHER | WIRE).values(), ids=EITHER | WIRE)
async def test_a_call_that_is_not_taken_leaves_a_trace_on_our_own_server(
    relevo: Relevo, port: int, wrong: Wrong
) -> None:
    assert await by_wire(port, wrong) == [wrong.status]

    [seen] = await told(relevo)
    assert (seen.cause, seen.status, seen.expects) == (wrong.cause, wrong.status, wrong.expects)
    assert (seen.count, seen.address) == (1, "127.0.0.1")
    assert seen.endpoint == f"shop:{wrong.expects if wrong.cause == 'wrong_path' else seen.path}"
    assert seen.hash in ("", hashlib.blake2b(wrong.body, digest_size=16).hexdigest())
    assert CANARY.encode() not in in_the_file(relevo)


async def test_the_body_of_a_refused_call_is_known_by_its_hash(relevo: Relevo, port: int) -> None:
    await by_wire(port, EITHER["form"])
    await by_asgi(relevo, EITHER["bad gzip"])

    seen = await told(relevo)
    assert {each.hash for each in seen} == {hashlib.blake2b(BODY, digest_size=16).hexdigest()}
    assert {each.size for each in seen} == {len(BODY)}


async def test_of_a_body_that_was_not_read_whole_no_hash_is_told(relevo: Relevo, port: int) -> None:
    head = f"POST {SIGNED} HTTP/1.1\r\nhost: x\r\n{JSON}\r\ntransfer-encoding: chunked\r\n\r\n"
    part = b"80000\r\n" + b"a" * 0x80000 + b"\r\n"
    heard = await say(port, head.encode(), *[part] * 3, b"0\r\n\r\n")

    assert heard.statuses == [413]
    [seen] = await told(relevo)
    assert (seen.cause, seen.hash, seen.size) == ("too_large", "", None)


async def test_a_caller_that_hangs_up_or_dawdles_is_told_of(
    relevo: Relevo, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "HEAD_SECONDS", 0.1)
    head = f"POST {SIGNED} HTTP/1.1\r\nhost: x\r\n{JSON}\r\ncontent-length: 9\r\n\r\n".encode()
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head + b"{")
    await until(lambda: relevo.asgi().gate._flights)
    writer.close()
    assert (await say(port, head[:60])).statuses == [408]
    await until(lambda: len(relevo.telemetry.unrouted) == 2)

    seen = {each.cause: each for each in await told(relevo)}
    assert (seen["hung_up"].status, seen["hung_up"].size) == (0, 9)
    assert (seen["too_slow"].status, seen["too_slow"].path) == (408, SIGNED)


async def test_a_broken_call_behind_a_good_one_is_told_of_once(relevo: Relevo, port: int) -> None:
    slow = f"POST {doors.ODD} HTTP/1.1\r\nhost: x\r\n{JSON}\r\n"
    body = b'{"id": "e1", "do": "wait", "seconds": 1.5}'
    slow += f"x-signature: {seal(body)}\r\ncontent-length: {len(body)}\r\n\r\n"
    broken = f"POST {SIGNED} HTTP/1.1\r\nhost: x\r\nx: {'a' * 70_000}\r\n\r\n"
    heard = await say(port, slow.encode() + body, broken.encode())

    assert (heard.statuses, heard.is_closed) == ([200], True)
    assert [(each.cause, each.count) for each in await told(relevo)] == [("headers_too_large", 1)]


async def test_what_is_taken_or_told_elsewhere_leaves_none(relevo: Relevo, port: int) -> None:
    ok = good(relevo, "e1")
    assert (await call(relevo.asgi(), ok)).status == 200
    for head in (f"POST {SIGNED}\n{JSON}", f"GET {META}?hub.verify_token=tell-me&hub.challenge=1"):
        assert await by_asgi(relevo, Wrong(head, BODY if "POST" in head else b"", 0, "")) in (
            200,
            401,
        )
    for path in ("/", "/health", "/jobs", "/wp-login.php", "/.env", "/api/none", "/cgi-bin/luci"):
        await by_asgi(relevo, Wrong(f"GET {path}", b"", 0, ""))
        await by_wire(port, Wrong(f"GET {path}", b"", 0, ""))

    assert await told(relevo) == []
    assert await relevo.store.notes(KIND) == []


def good(relevo: Relevo, id: str) -> Delivery:
    body = f'{{"id": "{id}"}}'.encode()
    return sent(relevo, SIGNED, body, [("x-signature", seal(body))])


# addresses


async def test_addresses_are_told_apart_ipv6_by_its_network(relevo: Relevo) -> None:
    for client in ("2001:db8:1:2::9", "2001:db8:1:2:ffff::1", "::ffff:192.0.2.9", CANARY, ""):
        await by_asgi(relevo, EITHER["form"], client)

    found = {each.address: each.count for each in await told(relevo)}
    assert found == {"2001:db8:1:2::/64": 2, "192.0.2.9": 1, "?": 2}


@pytest.mark.parametrize("wrong", ["form", "slash"])
@pytest.mark.parametrize(
    ("header", "address"), [("198.51.100.4", "198.51.100.4"), (CANARY, "127.0.0.1")]
)
async def test_behind_a_proxy_that_is_trusted_the_caller_is_told(
    relevo: Relevo, port: int, wrong: str, header: str, address: str
) -> None:
    await by_wire(port, EITHER[wrong], f"x-forwarded-for: {header}")

    [seen] = await told(relevo)
    assert seen.address == address
    assert "x-forwarded-for" in seen.headers
    assert CANARY.encode() not in in_the_file(relevo)


async def test_a_secret_in_the_path_and_odd_letters_are_not_kept(relevo: Relevo) -> None:
    token = "sk_live_" + "4eC39HqLyjWDarjtT1zdp7dc"
    await by_asgi(relevo, Wrong(f"POST {SIGNED}/{token}\n{JSON}", BODY, 404, "wrong_path"))
    await by_asgi(
        relevo, Wrong(f"POST {SIGNED}/\u202e\0\x1b[2J\n{JSON}", b"", 404, ""), "192.0.2.8"
    )

    paths = {each.address: each.path for each in await told(relevo)}
    assert paths["127.0.0.1"] == f"{SIGNED}/***"
    assert paths["192.0.2.8"].isprintable()
    assert token.encode() not in in_the_file(relevo)


# bounds


async def test_ten_thousand_addresses_are_a_few_lines(relevo: Relevo) -> None:
    calls = relevo.asgi().gate.strays.calls
    every = [f"10.{number >> 8}.{number & 255}.1" for number in range(10_000)]
    for address in every:
        await by_asgi(relevo, EITHER["form"], address)
        assert all(len(group) <= ADDRESSES + 1 for group in calls._new.values())
    await by_asgi(relevo, EITHER["get"])

    seen = await told(relevo)
    assert len(seen) == ADDRESSES + 2
    assert sum(each.count for each in seen) == 10_001
    assert {each.address for each in seen} > {None, every[-1], "127.0.0.1"}
    notes = await relevo.store.notes(KIND)
    assert [note.name for note in notes] == [
        f"{ENDPOINT} method_not_allowed",
        f"{ENDPOINT} unsupported_media_type",
    ]
    assert sum(len(note.value) for note in notes) < 20_000


async def test_a_thousand_scanners_cost_nothing(relevo: Relevo, tmp_path: Path) -> None:
    """A path that no endpoint has costs a look-up, and a bounded number a second are compared."""
    await relevo.asgi().start()
    chance = random.Random(7)
    words = ("wp-login.php", "admin", ".git/config", "vendor/phpunit", "api/v1/pods", "hooks/x")
    paths = [f"/{chance.choice(words)}/{chance.randbytes(6).hex()}" for _ in range(10_000)]
    near = relevo.asgi().gate.strays.near
    began = time.process_time()
    assert not any(map(near.find, paths))
    assert (time.process_time() - began) / len(paths) < 100e-6

    hooks = [
        webhook(
            f"/hooks/endpoint-{number:03}-of-the-shop", doors.saving, source=sources.stripe("s")
        )
        for number in range(300)
    ]
    async with Relevo(f"sqlite:///{tmp_path}/many.db", apps=[App("many", webhooks=hooks)]) as other:
        many = Near(other.receiver.doors.values())
    began = time.process_time()
    for number in range(500):
        many.find(f"/hooks/endpoinx-{number:03}-of-txx-shxp")
    assert time.process_time() - began < 5  # 150,000 comparisons would take longer
    assert many.find("/hooks/" + "a" * 100_000) is None
    assert many.find("/a" * 200) is None


@pytest.mark.parametrize(
    ("one", "other", "edits"),
    [
        ("/hooks/stripe", "/hooks/stripe", 0),
        ("/hooks/stripe", "/hooks/strip", 1),
        ("/hooks/stripe", "/hook/strype", 2),
        ("/hooks/stripe", "/hooks/stirpe", 2),
        ("/hooks/stripe", "/hoks/sripee", 3),
        ("", "ab", 2),
    ],
)
def test_paths_are_as_far_apart_as_the_letters_to_change(one: str, other: str, edits: int) -> None:
    assert distance(one, other, 2) == distance(other, one, 2) == edits


async def test_the_endpoint_that_is_nearest_was_meant(relevo: Relevo) -> None:
    await relevo.asgi().start()
    near = relevo.asgi().gate.strays.near
    found = {
        path: door and door.route.path
        for path in ("/hooks/odf", "/hooks/frm", "/hooks/gzi", "/hooks/mta", "/hooks", "/", "")
        for door in [near.find(path)]
    }
    assert found == {
        "/hooks/odf": doors.ODD,
        "/hooks/frm": doors.FORM,
        "/hooks/gzi": GZIP,
        "/hooks/mta": META,
        "/hooks": None,
        "/": None,
        "": None,
    }


async def test_the_log_says_it_once_in_a_while(
    relevo: Relevo, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "relevo"):
        for _ in range(50):
            await by_asgi(relevo, EITHER["form"])

    [line] = caplog.records
    assert line.message == "a call was not taken"
    assert (line.__dict__["endpoint"], line.__dict__["cause"]) == (
        ENDPOINT,
        "unsupported_media_type",
    )
    assert "the endpoint takes application/json" in line.__dict__["why"]


# in the store


@pytest.fixture
async def calls(store: Store) -> AsyncGenerator[UnroutedCalls]:
    made = UnroutedCalls(store, Telemetry())
    yield made
    await made.close()


def one(address: str | None = "192.0.2.7", at: int = 1, cause: str = "too_large") -> Unrouted:
    return Unrouted(
        endpoint=ENDPOINT,
        cause=cause,
        address=address,
        first_at=at,
        last_at=at,
        status=413,
        method="POST",
        path=SIGNED,
        headers=("host",),
        size=7,
        hash="",
    )


async def test_the_counts_of_several_processes_add_up(store: Store, handles: Handles) -> None:
    at = await store.now()
    processes = [UnroutedCalls(each, Telemetry()) for each in [store, *await handles(3)]]
    for _ in range(5):
        for number, process in enumerate(processes):
            for _ in range(10):
                process.add(one(at=at))
                process.add(one(f"192.0.2.{100 + number}", at=at + number))
        await asyncio.gather(*(process.close() for process in processes))

    found = await Desk(store).unrouted()
    assert {each.address: each.count for each in found} == {
        "192.0.2.7": 200,
        **{f"192.0.2.{100 + number}": 50 for number in range(4)},
    }
    assert [each.last_at - at for each in found] == [3, 2, 1, 0, 0]


async def test_many_processes_with_many_addresses_are_one_note(
    store: Store, handles: Handles
) -> None:
    at = await store.now()
    for number, handle in enumerate([store, *await handles(2)]):
        process = UnroutedCalls(handle, Telemetry())
        for address in range(100):
            process.add(one(f"198.51.{number}.{address}", at=at + number))
        await process.close()

    [note] = await store.notes(KIND)
    group = read(note)
    assert sum(each.count for each in group) == 300
    assert len(group) == ADDRESSES + 1
    assert {each.address[:9] for each in group if each.address} == {"198.51.2."}
    [others] = [each for each in group if each.address is None]
    assert (others.count, others.first_at) == (300 - ADDRESSES, at)


async def test_an_address_is_told_for_a_week_after_its_last_call(
    store: Store, calls: UnroutedCalls
) -> None:
    at = await store.now()
    calls.add(one("192.0.2.1", at=at - KEEP - 1))
    calls.add(one("192.0.2.2", at=at))
    await calls.close()
    assert [each.address for each in await Desk(store).unrouted()] == ["192.0.2.2"]
    calls.add(one("192.0.2.3", at=at))
    await calls.close()

    [note] = await store.notes(KIND)
    assert [each.address for each in read(note)] == ["192.0.2.2", "192.0.2.3"]
    assert KEEP - 1_000 < (note.ttl or 0) <= KEEP


@pytest.mark.parametrize("at", [1, 2])
async def test_a_store_that_is_away_gets_them_later(
    store: Store, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    monkeypatch.setattr(unrouted_module, "_AGAIN", 0.01)
    telemetry = Telemetry()
    faulty = FaultyStore(store, at=at)
    process = UnroutedCalls(cast("Store", faulty), telemetry)
    for _ in range(3):
        process.add(one(at=await store.now()))
    await until(lambda: process._task is not None and process._task.done())

    assert telemetry.counts["trouble"] == 1
    assert [each.count for each in await Desk(store).unrouted()] == [3]


async def test_closing_does_not_wait_for_a_store_that_is_away(calls: UnroutedCalls) -> None:
    class Away:
        async def recall(self, *_: object) -> None:
            raise StoreUnavailable("away")

    process = UnroutedCalls(cast("Store", Away()), Telemetry())
    process.add(one())
    await asyncio.wait_for(process.close(), 1)
    assert process._telemetry.counts["trouble"] == 1


# where people look


async def test_who_sees_some_apps_is_told_of_their_endpoints(
    store: Store, calls: UnroutedCalls
) -> None:
    calls.add(one(at=await store.now()))
    await calls.close()

    assert len(await Desk(store, apps={"shop"}).unrouted()) == 1
    assert await Desk(store, apps={"cars", "sho"}).unrouted() == []
    assert await Desk(store).unrouted("shop:/hooks/other") == []
    assert len(await Desk(store).unrouted(ENDPOINT)) == 1


def noted(box: Box, *seen: Unrouted) -> None:
    async def write(store: Store) -> None:
        calls = UnroutedCalls(store, Telemetry())
        at = await store.now()
        for each in seen:
            calls.add(replace(each, first_at=at, last_at=at))
        await calls.close()

    box.do(write)


def test_the_program_lists_them(box: Box) -> None:
    assert box("deliveries", "ls", "--unrouted", "--json").json == {"unrouted": []}
    media = replace(one(), cause="unsupported_media_type", status=415, expects="application/json")
    noted(box, media, media, one(address=None), one("192.0.2.8"))

    found = box("deliveries", "ls", "--unrouted", "--json").json["unrouted"]
    assert {(each["cause"], each["address"]): each["count"] for each in found} == {
        ("unsupported_media_type", "192.0.2.7"): 2,
        ("too_large", None): 1,
        ("too_large", "192.0.2.8"): 1,
    }
    [each] = [each for each in found if each["status"] == 415]
    assert each["endpoint"] == ENDPOINT
    assert each["headers"] == ["host"]
    assert "choose that content type at the provider (some" in each["advice"]
    shown = box("deliveries", "ls", "--unrouted", "--endpoint", ENDPOINT, "--limit", "2")
    assert shown.code == 0
    assert "others" in shown.out + shown.err
    assert "there are 1 more" in shown.err
    assert box("deliveries", "ls", "--unrouted", "--endpoint", "a:/b", "--json").json == {
        "unrouted": []
    }
    assert box("deliveries", "ls", "--unrouted", "--key", "k").code == 2


def test_the_doctor_says_what_to_do(box: Box) -> None:
    media = replace(one(), cause="unsupported_media_type", status=415, expects="application/json")
    noted(box, media, media, replace(media, address="192.0.2.8"))

    answer = box("doctor", "--json")
    assert answer.code == 0
    [finding] = [each for each in answer.json if each["subject"] == ENDPOINT]
    assert finding["level"] == "warning"
    assert finding["message"].startswith("3 calls not taken since ")
    for said in ("415 unsupported_media_type", "takes application/json", "ls --unrouted"):
        assert said in finding["message"]


async def test_the_api_the_dashboard_and_the_metrics_tell_of_them(web: Site) -> None:
    sent = {"content": f"code={CANARY}", "headers": {"content-type": "text/x-canary"}}
    hook = "cars:/hooks/cars"
    async with web.browser() as caller:
        for _ in range(2):
            answer = await caller.post(f"/hooks/cars?{CANARY}", **sent)
            assert answer.json() == {"ok": False, "error": "unsupported_media_type"}
        # A stranger is sent to the login, or refused, for any path that is no webhook's.
        assert (await caller.get("/hooks/car", headers=ACCEPT)).status_code == 302
        assert (await caller.post("/hooks/cars/", **sent)).status_code == 401
        assert (await caller.get("/car", headers=ACCEPT)).status_code == 302
    await web.relevo.asgi().gate.strays.calls.close()

    async with web.browser(Role.VIEWER) as viewer:
        items = (await viewer.get("/api/deliveries/unrouted")).json()["items"]
        assert {(each["cause"], each["method"]): each["count"] for each in items} == {
            ("unsupported_media_type", "POST"): 2,
            ("wrong_path", "POST"): 2,
        }
        assert (await viewer.get("/api/deliveries/unrouted?limit=1")).json()["items"] == items[:1]
        page = (await viewer.get("/deliveries", headers=ACCEPT)).text
        assert "Calls that were not taken" in page
        assert "unsupported_media_type" in page
        assert "choose that content type at the provider" in page
        assert "canary" not in page
        spanish = (await viewer.get("/deliveries?lang=es", headers=ACCEPT)).text
        assert "Llamadas no aceptadas" in spanish
        assert "elige ese tipo de contenido en el proveedor" in spanish
    async with web.browser(Role.VIEWER, apps=("hotel",)) as tenant:
        assert (await tenant.get("/api/deliveries/unrouted")).json()["items"] == []
        assert "Calls that were" not in (await tenant.get("/deliveries", headers=ACCEPT)).text
    async with web.browser(address="127.0.0.1") as here:
        told = (await here.get("/metrics")).text
    name = "relevo_deliveries_unrouted_total"
    assert f'{name}{{cause="unsupported_media_type",endpoint="{hook}"}} 2.0' in told
    assert f'{name}{{cause="too_large",endpoint="{hook}"}} 0.0' in told


def test_every_cause_is_explained_in_spanish_too() -> None:
    assert [text for text in CAUSES.values() if text not in SPANISH] == []
