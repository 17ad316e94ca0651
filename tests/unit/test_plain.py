"""What is read in one step is what the parser would have read, to the byte."""

from __future__ import annotations

from typing import Any

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relevo.ingress.plain import USUAL_BYTES, USUAL_LINES, read

HEADERS = {
    "Host": "hooks.example",
    "User-Agent": "Provider/1.0 (+https://provider.example)",
    "Content-Type": "application/json; charset=utf-8",
    "X-Hub-Signature-256": "sha256=00ff",
}


def call(*lines: str, line: str = "POST /hooks/a?b=c HTTP/1.1", body: bytes = b'{"a": 1}') -> bytes:
    head = [line, *(f"{name}: {value}" for name, value in HEADERS.items()), *lines]
    head.append(f"Content-Length: {len(body)}")
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body


class Parsed:
    """A call as httptools reads it."""

    def __init__(self, data: bytes) -> None:
        self.url = self.body = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.begun = self.ended = 0
        self.parser: Any = httptools.HttpRequestParser(self)
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.begun += 1

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.ended += 1


def agree(data: bytes) -> bool:
    """Whether it was read in one step; if so, the parser sees the same and nothing but that."""
    found = read(data)
    if found is None:
        return False
    parsed = Parsed(data)
    assert (parsed.begun, parsed.ended) == (1, 1)
    assert parsed.parser.get_method() == found.method.encode()
    assert parsed.parser.get_http_version() == "1.1"
    assert parsed.parser.should_keep_alive()
    assert not parsed.parser.should_upgrade()
    path, _, query = parsed.url.partition(b"?")
    assert (path, query) == (found.path.encode(), found.query.encode())
    assert parsed.headers == [(name.encode(), value.encode()) for name, value in found.headers]
    assert dict(parsed.headers).get(b"content-type") == found.media
    assert parsed.body == found.body
    return True


def test_a_usual_call_is_read_in_one_step() -> None:
    assert agree(call())
    assert agree(call("Connection: keep-alive"))
    assert agree(call(body=b""))
    assert agree(call(body=bytes(range(256)) * 100))
    assert agree(call(line="PUT /hooks/a HTTP/1.1"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        call()[:-1],
        call() + b"x",
        call() + call(),
        b"\r\n" + call(),
        call(line="POST /hooks/a HTTP/1.0"),
        call(line="POST /hooks/a HTTP/1.1 "),
        call(line="POST  /hooks/a HTTP/1.1"),
        call(line="post /hooks/a HTTP/1.1"),
        call(line="GET /hooks/a HTTP/1.1"),
        call(line="POST http://hooks.example/hooks/a HTTP/1.1"),
        call(line="POST /hooks/%61 HTTP/1.1"),
        call(line="POST /hooks/a#b HTTP/1.1"),
        call(line="POST /hooks/a?b#c HTTP/1.1"),
        call(line="POST /hooks/\xe9 HTTP/1.1"),
        call("Connection: close"),
        call("Connection: upgrade", "Upgrade: h2c"),
        call("Expect: 100-continue"),
        call("Transfer-Encoding: chunked"),
        call("Transfer-Encoding : chunked"),
        call("Content-Encoding: gzip"),
        call("Content-Length: 8"),
        call("content-type: text/plain"),
        call("X-Empty:"),
        call("X-Empty: "),
        call("X-None:a"),
        call("X-Tail: a "),
        call("X-Lead:  a"),
        call("X-Fold: a\r\n b"),
        call("X-Tab: a\tb"),
        call("X-Null: a\0b"),
        call("X-Bare: a\rb"),
        call("X-Line: a\nTransfer-Encoding: chunked"),
        call("X-Latin: \xe9"),
        call("X_Under: a"),
        call(f"X-Long: {'a' * USUAL_BYTES}"),
        call(*[f"X-{number}: a" for number in range(USUAL_LINES)]),
        call().replace(b"Content-Length: 8", b"Content-Length: 08"),
        call().replace(b"Content-Length: 8", b"Content-Length: +8"),
        call().replace(b"Content-Length: 8", b"Content-Length: 7"),
        call().replace(b"Content-Length: 8", b"Content-Length: 8, 8"),
        call().replace(b"Content-Length: 8\r\n", b""),
        call().replace(b"\r\n", b"\n"),
    ],
)
def test_b12_anything_unusual_is_left_to_the_parser(data: bytes) -> None:
    assert read(data) is None


BITS = st.sampled_from(
    [
        *[bytes([byte]) for byte in b"\r\n \t\0:-%#?0a\xff"],
        b"\r\n",
        b"Content-Length: 8\r\n",
        b"Expect: x\r\n",
        b"TE: a\r\n",
        b"Transfer-Encoding: chunked\r\n",
    ]
)


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3), BITS), min_size=1, max_size=4))
@settings(max_examples=500)
def test_b12_a_call_that_was_tampered_with_is_read_alike_or_not_at_all(
    changes: list[tuple[float, int, bytes]],
) -> None:
    data = call()
    for where, removed, bit in changes:
        at = round(where * len(data))
        data = data[:at] + bit + data[at + removed :]
    agree(data)
