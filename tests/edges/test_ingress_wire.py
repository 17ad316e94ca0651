"""The server on a real socket: what is no HTTP, too long, too slow, or two requests in one."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest

import relevo.ingress.gate as gate_module
import relevo.ingress.server as server_module
from relevo import App, Relevo
from relevo.ingress import server
from relevo.ingress.crowd import Crowd, room
from relevo.ingress.plain import read
from relevo.ingress.server import PIPELINED, serving
from relevo.ingress.sockets import listen
from relevo.testing import until
from relevo.web.auth import check_binding
from tests.edges import doors
from tests.edges.doors import ODD, SIGNED, jobs
from tests.edges.test_ingress import seal

HEAD = f"POST {SIGNED} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n".encode()
GET = b"GET /health HTTP/1.1\r\nHost: x\r\n"
SECOND = b"GET /health HTTP/1.1\r\nHost: smuggled\r\n\r\n"
UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
EVERYWHERE = "0.0.0.0"  # noqa: S104 - nothing is bound


@pytest.fixture
def relevo_apps() -> list[App]:
    return [doors.app()]


@pytest.fixture
async def port(relevo: Relevo) -> AsyncGenerator[int]:
    await relevo.asgi().start()
    with listen("127.0.0.1", 0) as listener:
        async with serving(relevo.asgi(), listener, grace=1):
            yield listener.getsockname()[1]


@pytest.fixture(scope="module")
async def steady(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[tuple[int, Relevo]]:
    """A server for all who only say what it refuses; stopping one takes a while."""
    url = f"sqlite:///{tmp_path_factory.mktemp('steady') / 'relevo.db'}"
    with listen("127.0.0.1", 0) as listener:
        engine = Relevo(url, apps=[doors.app()])
        async with engine, serving(engine.asgi(), listener, grace=1):
            yield listener.getsockname()[1], engine


class Heard(NamedTuple):
    statuses: list[int]
    is_closed: bool
    text: bytes


async def say(port: int, *parts: bytes, patience: float = 5.0) -> Heard:
    """Send some bytes; what comes back until the other side hangs up or has answered enough."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    heard, is_closed = b"", False
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        async with asyncio.timeout(patience):
            while not (heard.endswith(b"}") and b"connection: close" not in heard):
                data = await reader.read(65_536)
                if not data:
                    is_closed = True
                    break
                heard += data
    except ConnectionError:
        is_closed = True
    except TimeoutError:
        pass
    finally:
        writer.close()
    lines = [line for line in heard.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
    return Heard([int(line.split()[1]) for line in lines], is_closed, heard)


def good(id: str) -> bytes:
    body = json.dumps({"id": id}).encode()
    return (
        HEAD + f"X-Signature: {seal(body)}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    )


async def test_a_connection_is_kept_for_the_next_call(port: int, relevo: Relevo) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(good("e1") + good("e2"))  # pipelined
    heard = await asyncio.wait_for(reader.readuntil(b'{"ok":true}'), 5)
    heard += await asyncio.wait_for(reader.readuntil(b'{"ok":true}'), 5)
    writer.close()

    assert heard.count(b"HTTP/1.1 200 OK") == 2
    assert b"\r\nserver:" not in heard.lower()
    assert await jobs(relevo) == ["e1", "e2"]


@pytest.mark.parametrize("padding", [" ", "\t", " \t  "])
async def test_white_space_around_a_value_is_no_part_of_it(
    port: int, relevo: Relevo, padding: str
) -> None:
    body = b'{"id": "e1"}'
    padded = f"X-Signature:{padding}{seal(body)}{padding}\r\nContent-Length: {len(body)}\r\n\r\n"
    assert (await say(port, HEAD + padded.encode() + body)).statuses == [200]
    assert await jobs(relevo) == ["e1"]
    host = f"GET /api/me HTTP/1.1\r\nHost: 127.0.0.1{padding}\r\nConnection: close\r\n\r\n"
    assert (await say(port, host.encode())).statuses == [200]


async def test_an_empty_line_after_each_call_adds_up_to_nothing(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEAD_BYTES", 400)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for number in range(300):
        writer.write(good(f"e{number}"))
        heard = await asyncio.wait_for(reader.readuntil(b"}"), 5)
        assert heard.startswith(b"HTTP/1.1 200")
        writer.write(b"\r\n")
        await writer.drain()
        await asyncio.sleep(0)
    writer.close()


def wish(do: str, **more: Any) -> bytes:
    """A call at the door that does as it is told."""
    body = json.dumps({"id": do, "do": do, **more}).encode()
    head = HEAD.replace(SIGNED.encode(), ODD.encode())
    return (
        head + f"X-Signature: {seal(body)}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    )


async def test_a_function_that_waits_keeps_nobody_else_waiting(port: int, relevo: Relevo) -> None:
    slow = asyncio.create_task(say(port, wish("wait", seconds=30)))
    await until(lambda: relevo.asgi().gate._flights)
    heard = await asyncio.gather(*(say(port, good(f"e{number}")) for number in range(5)))

    assert [each.statuses for each in heard] == [[200]] * 5
    assert not slow.done()
    slow.cancel()


async def test_a_function_that_takes_too_long_ends_its_own_call_only(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_module, "FUNCTION_SECONDS", 0.05)
    monkeypatch.setattr(gate_module, "LOOK_SECONDS", 0.02)
    heard = await say(port, wish("wait", seconds=30), b"")
    later = await say(port, good("e1"))

    assert heard.statuses == [200]  # kept as failed: the provider is not told of our mistakes
    assert later.statuses == [200]


@pytest.mark.parametrize(("do", "status"), [("raise", 200), ("cancel", 200), ("reject", 422)])
async def test_what_a_function_does_is_told_to_its_caller_alone(
    port: int, relevo: Relevo, do: str, status: int
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(wish(do))
    heard = await asyncio.wait_for(reader.readuntil(b"}"), 5)
    writer.write(good("e1"))
    heard += await asyncio.wait_for(reader.readuntil(b"}"), 5)
    writer.close()

    assert heard.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"HTTP/1.1 200 OK" in heard
    assert await jobs(relevo) == ["e1"]


async def test_who_hangs_up_has_still_delivered(port: int, relevo: Relevo) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(good("e1"))
    await writer.drain()
    writer.transport.abort()

    assert (await say(port, good("e2"))).statuses == [200]
    assert sorted(await jobs(relevo)) == ["e1", "e2"]
    assert relevo.asgi().gate._held == 0


async def test_a_server_that_stops_answers_whom_it_has_heard(relevo: Relevo) -> None:
    await relevo.asgi().start()
    with listen("127.0.0.1", 0) as listener:
        async with serving(relevo.asgi(), listener, grace=5):
            port = listener.getsockname()[1]
            waiting = asyncio.create_task(say(port, wish("wait", seconds=0.3)))
            await until(lambda: relevo.asgi().gate._flights)
    heard = await waiting

    assert heard.statuses == [200]


@pytest.mark.parametrize("size", [1, 20, 10_000])
async def test_a_call_in_pieces_is_the_same_call(port: int, relevo: Relevo, size: int) -> None:
    call = good("e1")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for start in range(0, len(call), size):
        writer.write(call[start : start + size])
        await writer.drain()
        await asyncio.sleep(0)
    heard = await asyncio.wait_for(reader.readuntil(b'{"ok":true}'), 5)
    writer.close()

    assert heard.startswith(b"HTTP/1.1 200 OK")
    assert await jobs(relevo) == ["e1"]


async def test_b09_a_chunked_body_is_measured_however_it_comes(port: int) -> None:
    """In one read, and in a thousand chunks of one byte."""
    head = HEAD + b"Transfer-Encoding: chunked\r\nX-Signature: x\r\n\r\n"
    heard = await say(port, head + b"1\r\nx\r\n" * 1_000 + b"0\r\n\r\n")

    assert heard.statuses == [401]


@pytest.mark.parametrize(
    "rest",
    [b"\r\nxx", b"garbage\r\n\r\n", HEAD + b"Content-Length: -1\r\n\r\n", b"G\0T / HTTP/1.1\r\n"],
)
async def test_what_follows_a_good_call_does_not_answer_for_it(
    port: int, relevo: Relevo, rest: bytes
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(good("first") + rest)
    heard = await asyncio.wait_for(reader.read(), 5)  # until it hangs up
    writer.close()

    assert heard.startswith(b"HTTP/1.1 200 ")
    assert heard.endswith(b'{"ok":true}')
    assert len(await jobs(relevo)) == 1


async def test_a_body_of_no_length_is_asked_for_one(steady: tuple[int, Relevo]) -> None:
    heard = await say(steady[0], HEAD + b'\r\n{"id":"long"}')

    assert heard.statuses == [411]
    assert heard.is_closed


async def test_b12_only_so_many_requests_wait_on_one_connection(
    steady: tuple[int, Relevo], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands fit in one read: they are refused before there is anything of them in memory."""
    begun = 0
    real = server_module.HttpToolsProtocol.on_message_begin

    def begin(self: Any) -> None:
        nonlocal begun
        begun += 1
        real(self)

    monkeypatch.setattr(server_module.HttpToolsProtocol, "on_message_begin", begin)
    reader, writer = await asyncio.open_connection("127.0.0.1", steady[0])
    writer.write(SECOND * 51)
    for _ in range(51):
        await asyncio.wait_for(reader.readuntil(b'{"status":"ok"}'), 5)
    writer.close()
    too_many = await say(steady[0], SECOND * 1_200)

    assert set(too_many.statuses) == {503}
    assert too_many.is_closed
    assert begun <= 51 + server_module.PIPELINED + 1


@pytest.mark.parametrize(
    "said",
    [
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SECOND,
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello" + SECOND,
        HEAD + b"Content-Length: +5\r\n\r\nhello" + SECOND,
        HEAD + b"Content-Length : 5\r\n\r\nhello" + SECOND,
        HEAD + b"Content-Length: 99999999999999999999\r\n\r\nhello" + SECOND,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n" + SECOND,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhelloXX0\r\n\r\n" + SECOND,
        HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + SECOND,
        HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + SECOND,
        HEAD.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SECOND,
        HEAD.replace(b"\r\n", b"\n") + b"Content-Length: 2\n\n{}" + SECOND,
        HEAD + UPGRADE + b"Content-Length: %d\r\n\r\n" % len(SECOND) + SECOND,
        HEAD + UPGRADE + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SECOND,
    ],
    ids=[
        "length and chunked",
        "two lengths",
        "+5",
        "space",
        "huge",
        "0x5",
        "chunk end",
        "xchunked",
        "gzip",
        "1.0",
        "bare LF",
        "upgrade with a body",
        "upgrade in chunks",
    ],
)
async def test_b12_a_second_request_cannot_be_smuggled(
    steady: tuple[int, Relevo], said: bytes
) -> None:
    port, relevo = steady
    heard = await say(port, said)

    assert heard.statuses == [400]
    assert heard.is_closed
    assert b'{"ok":false,"error":"bad_request"}' in heard.text
    assert await jobs(relevo) == []


@pytest.mark.parametrize(
    "said",
    [(GET + UPGRADE + b"\r\n" + SECOND,), (GET + UPGRADE + b"\r\n", SECOND)],
    ids=["in the same read", "in a later read"],
)
async def test_the_connection_ends_with_the_answer_to_an_upgrade(
    steady: tuple[int, Relevo], said: tuple[bytes, ...]
) -> None:
    heard = await say(steady[0], *said)

    assert heard.statuses == [200]
    assert b"connection: close" in heard.text
    assert heard.is_closed


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (GET + b"A: b\0c\r\n\r\n", 400),
        (GET + b"A: b\rc\r\n\r\n", 400),
        (GET + b"A: b\r\n c\r\n\r\n", 400),
        (GET + b"".join(b"A%d: b\r\n" % n for n in range(100)) + b"\r\n", 431),
        (GET + b"A: " + b"x" * 66_000 + b"\r\n\r\n", 431),
        (GET + b"".join(b"A%d: %b\r\n" % (n, b"x" * 900) for n in range(80)) + b"\r\n", 431),
        (b"GET /health?" + b"x" * 9_216 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
        (b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (bytes.fromhex("16030100a5010000a10303") + b"\0" * 64, 400),
        (b"GET /health HTTP/0.9\r\n\r\n", 400),
        (b"BREW /hooks/signed HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    ],
    ids=[
        "NUL",
        "CR",
        "fold",
        "101 headers",
        "65 KiB",
        "72 KiB in all",
        "9 KiB URL",
        "high bytes",
        "HTTP/2",
        "TLS",
        "HTTP/0.9",
        "BREW",
        "CONNECT",
    ],
)
async def test_b13_what_is_not_to_be_heard_is_told_so_and_hung_up_on(
    steady: tuple[int, Relevo], said: bytes, expected: int
) -> None:
    """C32"""
    port, _ = steady
    heard = await say(port, said)

    assert heard.statuses == [expected]
    assert heard.is_closed
    assert (await say(port, GET + b"\r\n")).statuses == [200]


async def test_b08_a_told_length_is_refused_before_the_body_comes(
    steady: tuple[int, Relevo], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relevo.ingress.reply.LINGER_SECONDS", 0.05)
    port, _ = steady
    heard = await say(port, HEAD + b"Content-Length: 10000000000\r\nExpect: 100-continue\r\n\r\n")

    assert heard.statuses == [413]
    assert b"100 Continue" not in heard.text
    assert heard.is_closed


async def test_b09_an_endless_body_is_cut_off_and_its_caller_told(
    steady: tuple[int, Relevo],
) -> None:
    port, _ = steady
    chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"

    heard = await say(port, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 40)

    assert heard.statuses == [413]
    assert heard.is_closed


async def test_b13_endless_trailers_and_extensions_are_cut_off(
    steady: tuple[int, Relevo],
) -> None:
    port, _ = steady
    chunked = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"

    trailer = await say(port, chunked + b"2\r\n{}\r\n0\r\nX: ", *[b"x" * 65_536] * 4)
    extension = await say(port, chunked + b"2;", *[b"x" * 65_536] * 4)
    lines = await say(port, *[b"\r\n" * 32_768] * 4)

    assert trailer.statuses == extension.statuses == lines.statuses == [431]
    assert trailer.is_closed
    assert extension.is_closed


async def test_a_trailer_is_no_header(port: int, relevo: Relevo) -> None:
    body = b'{"id":"e1"}'
    seal_line = f"X-Signature: {seal(body)}\r\n".encode()
    chunked = HEAD + b"Transfer-Encoding: chunked\r\n"
    said = b"\r\n%x\r\n%b\r\n0\r\n" % (len(body), body)

    late = await say(port, chunked + said + seal_line + b"\r\n")
    early = await say(port, chunked + seal_line + said + b"\r\n")

    assert late.statuses == [401]
    assert early.statuses == [200]
    assert await jobs(relevo) == ["e1"]


async def test_b10_slow_heads_are_hung_up_on_and_others_are_not(
    port: int, monkeypatch: pytest.MonkeyPatch, relevo: Relevo
) -> None:
    monkeypatch.setattr(server_module, "HEAD_SECONDS", 0.2)

    slow, silent, fine = await asyncio.gather(
        say(port, GET), say(port, b""), say(port, good("e1"), patience=0.5)
    )

    assert slow.statuses == [408]
    assert slow.is_closed
    assert silent == Heard([], True, b"")
    assert fine.statuses == [200]


class Strangers:
    """Connections from addresses that are no trusted proxy's, with little room to hear."""

    def __init__(self) -> None:
        self.links: list[socket.socket] = []

    async def connect(self, port: int, address: str = "127.0.0.2") -> socket.socket:
        link = socket.socket()
        self.links.append(link)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        link.setblocking(False)
        link.bind((address, 0))
        await asyncio.get_running_loop().sock_connect(link, ("127.0.0.1", port))
        return link

    def leave(self) -> None:
        while self.links:
            self.links.pop().close()


@pytest.fixture
def strangers() -> Iterator[Strangers]:
    made = Strangers()
    yield made
    made.leave()


async def flooded(link: socket.socket, asked: bytes, rounds: int) -> None:
    """Ask again and again, and read no answer, for as long as the other side listens."""
    loop = asyncio.get_running_loop()
    for _ in range(rounds):
        try:
            async with asyncio.timeout(0.5):
                await loop.sock_sendall(link, asked)
        except OSError:  # a TimeoutError, or hung up on
            return


@pytest.fixture
async def crowded(
    relevo: Relevo, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[tuple[int, Crowd]]:
    """A server for 40 connections, and how many it has."""
    crowd = Crowd(40)
    monkeypatch.setattr(server_module, "Crowd", lambda: crowd)
    with listen("127.0.0.1", 0) as listener:
        async with serving(relevo.asgi(), listener, grace=1):
            yield listener.getsockname()[1], crowd


@pytest.mark.parametrize("asked", ["/metrics", "/static/htmx.min.js", SIGNED])
async def test_b10_who_never_reads_an_answer_is_hung_up_on(
    crowded: tuple[int, Crowd],
    asked: str,
    strangers: Strangers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However it fills our buffers: by answers sent at once, by streams, by signed deliveries."""
    monkeypatch.setattr(server_module, "WRITE_SECONDS", 1.5)
    get = f"GET {asked} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    port, crowd = crowded
    link = await strangers.connect(port)
    await until(lambda: crowd.count == 1)
    # Fewer than would be hung up on for being so many.
    await flooded(link, good("e1") if asked == SIGNED else get, rounds=PIPELINED - 5)
    await until(lambda: crowd.count == 0, timeout="20s")
    assert (await say(port, good("after"))).statuses == [200]


async def test_b10_who_reads_slowly_is_heard_to_the_end(
    port: int, strangers: Strangers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "WRITE_SECONDS", 1.5)
    asked = b"GET /static/htmx.min.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 30
    link = await strangers.connect(port)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(link, asked)
    began = loop.time()
    heard = b"-"
    while heard and loop.time() - began < 5:  # longer than a caller has that takes nothing
        heard = await asyncio.wait_for(loop.sock_recv(link, 4_096), 5)
        await asyncio.sleep(0.05)
    assert heard


async def test_c38_one_address_cannot_take_every_connection(
    crowded: tuple[int, Crowd], strangers: Strangers, relevo: Relevo
) -> None:
    port, crowd = crowded
    links = [await strangers.connect(port) for _ in range(30)]
    told = [await heard_of(link) for link in links]
    assert [len(text) > 0 for text in told] == [False] * 10 + [True] * 20
    assert all(text.startswith(b"HTTP/1.1 503 ") for text in told[10:])
    assert (await say(port, good("e1"))).statuses == [200]
    await until(lambda: crowd.count == 10)
    others = [await strangers.connect(port, f"127.0.0.{host}") for host in range(3, 34)]
    told = [await heard_of(link) for link in others]
    assert [len(text) > 0 for text in told] == [False] * 30 + [True]
    assert (await say(port, good("e2"))).statuses == [503]
    strangers.leave()
    await until(lambda: crowd.count == 0)
    assert (await say(port, good("e2"))).statuses == [200]
    assert await jobs(relevo) == ["e1", "e2"]


async def heard_of(link: socket.socket) -> bytes:
    """What the server says of itself; nothing from one that waits for a call."""
    try:
        async with asyncio.timeout(0.1):
            return await asyncio.get_running_loop().sock_recv(link, 4_096)
    except TimeoutError:
        return b""


@pytest.mark.parametrize("descriptors", [-1, 16, 64, 128, 256, 1_024, 65_536, 1_048_576])
def test_c38_connections_leave_descriptors_for_everything_else(descriptors: int) -> None:
    most = room(descriptors)
    assert 1 <= most <= 57_344
    if descriptors >= 128:
        assert most <= descriptors - 64


async def test_what_a_caller_left_half_said_harms_nobody(port: int, relevo: Relevo) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEAD + b"Content-Length: 500\r\n\r\n{")
    await writer.drain()
    writer.transport.abort()
    del reader

    assert (await say(port, good("e1"))).statuses == [200]
    assert await jobs(relevo) == ["e1"]


async def test_c10_without_a_password_only_this_machine_may_come_in() -> None:
    from relevo.errors import SettingsError
    from relevo.settings import Settings

    bare = Settings.read({})
    guarded = Settings.read({"RELEVO_ADMIN_PASSWORD": "correct horse battery"})
    check_binding("127.0.0.1", bare)
    check_binding(EVERYWHERE, guarded)
    for host in (EVERYWHERE, "::", "192.0.2.1", "relevo.internal"):
        with pytest.raises(SettingsError, match="RELEVO_ADMIN_PASSWORD"):
            check_binding(host, bare)


async def test_a_port_that_is_taken_is_said_in_a_line(steady: tuple[int, Relevo]) -> None:
    from relevo.errors import SettingsError

    port, _ = steady
    with pytest.raises(SettingsError, match=f"cannot listen on 127.0.0.1:{port}"):
        listen("127.0.0.1", port)


def test_every_header_line_of_a_reply_is_its_own() -> None:
    from relevo.ingress.reply import error

    made: Any = error(503, "busy", retry_after="1", close=True)
    assert b"retry-after: 1\r\n" in made.wire
    assert made.wire.endswith(b'\r\n\r\n{"ok":false,"error":"busy"}')


async def test_f33_in_a_burst_every_2xx_is_stored_and_the_rest_come_back(
    port: int, relevo: Relevo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F33, in short: two thousand calls at once on a gate with room for twenty."""
    monkeypatch.setattr(gate_module, "FLIGHTS", 20)
    each = 20

    async def caller(number: int) -> tuple[list[str], int]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        names = [f"e{number}-{turn}" for turn in range(each)]
        writer.write(b"".join(map(good, names)))
        taken: list[str] = []
        waits = 0
        for name in names:
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readuntil(b"}")
            if head.startswith(b"HTTP/1.1 200"):
                taken.append(name)
            else:
                assert head.startswith(b"HTTP/1.1 503")
                assert b"retry-after: 1\r\n" in head
                waits += 1
        writer.close()
        return taken, waits

    async with asyncio.timeout(60):
        answers = await asyncio.gather(*map(caller, range(100)))

    taken = sorted(name for names, _ in answers for name in names)
    assert len(taken) + sum(waits for _, waits in answers) == 100 * each
    assert taken
    assert await jobs(relevo) == taken
    assert relevo.telemetry.counts["delivery_busy"] == 100 * each - len(taken)
    assert (await say(port, good("after"))).statuses == [200]


async def test_b10_a_slow_second_head_is_hung_up_on_too(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "HEAD_SECONDS", 0.2)

    heard = await say(port, good("e1") + GET)  # the second is not finished
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(good("e2") + GET)
    async with asyncio.timeout(10):
        whole = await reader.read(-1)
    writer.close()

    assert heard.statuses == [200]
    assert whole.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 408" in whole


async def test_bodies_that_come_slowly_are_counted_while_they_come(
    port: int, monkeypatch: pytest.MonkeyPatch, relevo: Relevo
) -> None:
    """F31, F33: many half-sent bodies hold no more memory than the gate allows."""
    monkeypatch.setattr(gate_module, "FLIGHT_BYTES", 300_000)
    head = HEAD + b"Content-Length: 200000\r\n\r\n"
    writers: list[asyncio.StreamWriter] = []
    statuses: list[bytes] = []
    for _ in range(4):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writers.append(writer)
        writer.write(head + b"x" * 150_000)
        try:
            async with asyncio.timeout(0.2):
                statuses.append((await reader.readline())[:12])
        except TimeoutError:
            statuses.append(b"")
    held = relevo.asgi().gate._held
    for writer in writers:
        writer.transport.abort()

    assert b"HTTP/1.1 503" in statuses
    assert held <= 300_000 + 200_000
    assert (await say(port, good("after"))).statuses == [200]


async def test_a_body_that_began_in_time_is_refused_once_others_hold_it_all(
    port: int, monkeypatch: pytest.MonkeyPatch, relevo: Relevo
) -> None:
    """F33: a call let in while there was room counts too, part by part."""
    monkeypatch.setattr(gate_module, "FLIGHT_BYTES", 300_000)
    gate = relevo.asgi().gate
    head = HEAD + b"Content-Length: 200000\r\n\r\n"
    callers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
    held = 0
    for (_, writer), sent in zip(callers, (10, 160_000, 160_000), strict=True):
        writer.write(head + b"x" * sent)
        held += sent
        await until(partial(lambda least: gate._held >= least, held))

    reader, writer = callers[0]
    writer.write(b"x")
    async with asyncio.timeout(10):
        line = await reader.readline()
    for _, each in callers:
        each.transport.abort()

    assert line.startswith(b"HTTP/1.1 503")


async def test_a_function_that_waits_does_not_make_others_wait(
    relevo: Relevo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls that came in the same moment are run one after the other, until one has to wait."""
    front = relevo.asgi()
    await front.start()
    give, is_other_taken = relevo.receiver.give, asyncio.Event()

    async def slow_first(door: Any, delivery: Any, waiter: Any, generation: int) -> Any:
        if delivery.json["id"] == "first":
            await is_other_taken.wait()
        else:
            is_other_taken.set()
        return await give(door, delivery, waiter, generation)

    monkeypatch.setattr(relevo.receiver, "give", slow_first)
    replies: list[Any] = []
    for name in ("first", "other"):
        front.gate.take(front.door(SIGNED), read(good(name)), None, replies.append)

    await until(lambda: len(replies) == 2)
    assert [reply.status for reply in replies] == [200, 200]
