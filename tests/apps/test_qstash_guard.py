"""What our QStash will not call, and the small languages of its headers."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from relevo.apps.qstash.client import Caller, Failed, Forbidden, Guard
from relevo.apps.qstash.expression import WrongExpression, delay
from relevo.apps.qstash.wire import Flow, Wrong, asked_wait, milliseconds, read_wish

FORBIDDEN = """
ftp://example.com/
file:///etc/passwd
gopher://example.com/
javascript:alert(1)
//example.com/
example.com
http://
http:///path
http://user@example.com/
http://user:pass@example.com/
http://example.com@127.0.0.1/
http://example.com#@127.0.0.1/
http://example.com\\@127.0.0.1/
http://127.0.0.1/
http://127.0.0.1:80/
http://127.1/
http://127.0.1/
http://2130706433/
http://0x7f000001/
http://0x7f.0.0.1/
http://0177.0.0.1/
http://017700000001/
http://0/
http://0.0.0.0/
http://10.0.0.1/
http://100.64.0.1/
http://169.254.169.254/latest/meta-data/
http://168.63.129.16/
http://172.16.0.1/
http://172.31.255.255/
http://192.0.0.8/
http://192.168.1.1/
http://198.18.0.1/
http://224.0.0.1/
http://240.0.0.1/
http://255.255.255.255/
http://[::]/
http://[::1]/
http://[::127.0.0.1]/
http://[::ffff:127.0.0.1]/
http://[::ffff:7f00:1]/
http://[64:ff9b::7f00:1]/
http://[64:ff9b:1::1]/
http://[2002:7f00:1::]/
http://[2001::1]/
http://[fc00::1]/
http://[fd12:3456::1]/
http://[fe80::1]/
http://[fe80::1%25eth0]/
http://[fec0::1]/
http://[ff02::1]/
http://[::1
http://localhost/
http://LOCALHOST/
http://localhost./
http://app.localhost/
http://printer.local/
http://metadata.google.internal/
http://intranet/
http://example.com:22/
http://example.com:6379/
http://example.com:99999/
http://example.com:/
http://exa mple.com/
http://example.com/\r\nHost: x
http://ex%61mple.com/
http://①②⑦.0.0.1/
http://example。com/
http://-bad-.com/
""".strip().split("\n")
ALLOWED = """
http://example.com
https://example.com/
https://example.com/hook?x=1&y=http://127.0.0.1/
https://sub.domain.example.com:8443/path
http://example.com:8080/
https://example.com./
http://93.184.216.34/
https://[2606:2800:220:1:248:1893:25c8:1946]/
https://app_1.example.com/a//b/%2e%2e/c
""".strip().split("\n")


@pytest.mark.parametrize("url", FORBIDDEN, ids=range(len(FORBIDDEN)))
def test_an_inward_or_crooked_address_is_not_called(url: str) -> None:
    """C30."""
    with pytest.raises(Forbidden):
        Guard().look(url.replace("\\r\\n", "\r\n"))


@pytest.mark.parametrize("url", ALLOWED, ids=range(len(ALLOWED)))
def test_a_public_address_is(url: str) -> None:
    assert Guard().look(url).url == url


@pytest.mark.parametrize(
    "found",
    [["127.0.0.1"], ["93.184.216.34", "10.0.0.1"], ["::1"], ["fe80::1%eth0"], ["::ffff:10.0.0.1"]],
    ids=range(5),
)
async def test_every_address_of_a_name_must_be_public(found: list[str]) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return found

    guard = Guard(resolve=resolve)
    with pytest.raises(Forbidden):
        await guard.find(guard.look("https://example.com/"))


async def test_a_name_that_changes_its_mind_gains_nothing() -> None:
    """C30: the call goes to the address that was checked, whatever the name says next."""
    answers = [["93.184.216.34"], ["127.0.0.1"]]

    async def resolve(host: str, port: int) -> list[str]:
        return answers.pop(0)

    guard = Guard(resolve=resolve)
    place = guard.look("https://example.com/")
    assert str(await guard.find(place)) == "93.184.216.34"
    with pytest.raises(Forbidden):
        await guard.find(place)


async def test_a_header_of_any_letters_travels() -> None:
    told: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        told.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 204 x\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    caller = Caller(Guard(allow=[f"127.0.0.1:{port}"]))
    headers = [("X-City", "Logro\u00f1o"), ("X-Price", "5 \u20ac")]
    answer = await caller.call("POST", f"http://127.0.0.1:{port}/", headers, b"", 2)
    await caller.close()
    server.close()
    assert answer.status == 204
    assert "Logro\u00f1o".encode("latin-1") in told[0]
    assert "5 \u20ac".encode() in told[0]


async def test_a_redirect_is_an_answer_and_nothing_more() -> None:
    """C30: 0 connections inward."""
    calls: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        calls.append(head.split(b"\r\n")[0].decode())
        inward = f"http://127.0.0.1:{port}/inward"
        writer.write(
            f"HTTP/1.1 302 Found\r\nLocation: {inward}\r\nContent-Length: 0\r\n\r\n".encode()
        )
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    caller = Caller(Guard(allow=[f"there.example.com:{port}", "127.0.0.1"]), {})
    caller = Caller(
        Guard(allow=["127.0.0.1"]), {"https://there.example.com/": f"http://127.0.0.1:{port}/"}
    )
    try:
        answer = await caller.call("POST", "https://there.example.com/x?y=1", [], b"", 5)
        assert answer.status == 302
        assert calls == ["POST /x?y=1 HTTP/1.1"]
        with pytest.raises(Failed):
            await caller.call("POST", "http://127.0.0.1:1/", [], b"", 1)
    finally:
        await caller.close()
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize(
    ("text", "retried", "ms"),
    [
        ("1000", 0, 1000),
        ("1000 * (1 + retried)", 2, 3000),
        ("pow(2, retried)", 10, 1024),
        ("max(10, pow(2, retried))", 1, 10),
        ("min(5, 4, 3)", 0, 3),
        ("round(2.6) + floor(1.9) - ceil(0.1)", 0, 3),
        ("sqrt(16) / 2", 0, 2),
        ("abs(-7)", 0, 7),
        ("exp(0)", 0, 1),
        ("-5", 0, 0),
        ("2 + 3 * 4", 0, 14),
        ("(2 + 3) * 4", 0, 20),
    ],
)
def test_a_delay_is_computed(text: str, retried: int, ms: float) -> None:
    assert delay(text, retried) == ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 +",
        "(1",
        "1)",
        "retry",
        "__import__('os')",
        "1; 2",
        "pow(2)",
        "sqrt(-1)",
        "1/0",
        "pow(10, 999)",
        "lambda: 1",
        "1 2",
        "(" * 100 + "1" + ")" * 100,
        "-" * 400 + "1",
        "1" * 600,
        "retried.real",
        "1e999",
    ],
    ids=range(18),
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(WrongExpression):
        delay(text, 0)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("10s", 10_000),
        ("1d10h30m", 124_200_000),
        ("500ms", 500),
        ("6m5s", 365_000),
        ("1.5h", 5.4e6),
    ],
)
def test_durations(text: str, ms: float) -> None:
    assert milliseconds(text) == ms


@pytest.mark.parametrize("text", ["", "10", "s", "10x", "-1s", "10s!", "1e3s"])
def test_what_is_no_duration(text: str) -> None:
    assert milliseconds(text) is None


@pytest.mark.parametrize(
    ("headers", "ms"),
    [
        ({"Retry-After": ["5"]}, 5_000),
        ({"Retry-After": ["6m5s"]}, 365_000),
        ({"Retry-After": ["Thu, 01 Jan 2026 00:01:00 GMT"]}, 60_000),
        ({"X-Ratelimit-Reset": ["2"]}, 2_000),
        ({"Retry-After": ["90000"]}, None),
        ({"Retry-After": ["soon"]}, None),
        ({"Retry-After": ["Wed, 31 Dec 2025 00:00:00 GMT"]}, None),
        ({}, None),
    ],
    ids=range(8),
)
def test_what_a_destination_asks_for(headers: dict[str, list[str]], ms: int | None) -> None:
    assert asked_wait(headers, datetime(2026, 1, 1, tzinfo=UTC)) == ms


@pytest.mark.parametrize(
    "headers",
    [
        {"Upstash-Method": "TRACE"},
        {"Upstash-Retries": "-1"},
        {"Upstash-Retries": "many"},
        {"Upstash-Delay": "soon"},
        {"Upstash-Not-Before": "x"},
        {"Upstash-Retry-Delay": "os.system('x')"},
        {"Upstash-Flow-Control-Key": "a b", "Upstash-Flow-Control-Value": "rate=1"},
        {"Upstash-Flow-Control-Key": "a", "Upstash-Flow-Control-Value": "speed=1"},
        {"Upstash-Flow-Control-Key": "a"},
        {"Upstash-Queue-Name": "a/b"},
        {"Upstash-Deduplication-Id": ""},
        {"Upstash-Callback-Retries": "x"},
        {"Upstash-Forward-X": "a\r\nb"},
        {"Content-Type": "text/plain\r\nX-Evil: 1"},
        {"Upstash-Delay": "367d"},
        {"Upstash-Delay": "999999999"},
    ],
    ids=range(16),
)
def test_a_wrong_wish_is_told(headers: dict[str, str]) -> None:
    with pytest.raises(Wrong):
        read_wish(headers)


def test_a_wish_is_read() -> None:
    wish = read_wish(
        {
            "Content-Type": "text/plain",
            "Upstash-Forward-X-Api": "1",
            "Upstash-Forward-Host": "evil",
            "Upstash-Content-Based-Deduplication": "True",
            "Upstash-Flow-Control-Key": "k",
            "Upstash-Flow-Control-Value": "parallelism=3, rate=4,period=2s",
        }
    )
    assert wish.headers == {"Content-Type": ["text/plain"], "X-Api": ["1"]}
    assert wish.is_content_based
    assert wish.flow == Flow("k", 3, 4, 2)
