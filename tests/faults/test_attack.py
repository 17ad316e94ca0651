"""What always holds while bad input comes in: memory, the others' patience, one plain answer."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import re
import statistics
import time
from contextlib import suppress
from pathlib import Path

import pytest

from relevo.store import Filter
from relevo.testing import ManualClock, until
from tests.conformance.fresh import fresh
from tests.faults.door import FORM, PACKED, PATH, SECRET
from tests.faults.fleet import Fleet
from tests.faults.ledger import Ledger
from tests.faults.load import SLACK
from tests.faults.test_ingress import Provider, serve
from tests.faults.test_limits import most_memory
from tests.servers.ports import free_port

LIMIT = 1 << 20
_STATUS = re.compile(rb"HTTP/1\.1 (\d\d\d) ")


def asked(path: str, body: bytes, *lines: str, kind: str = "application/json") -> bytes:
    head = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Type: {kind}", f"X-Secret: {SECRET}"]
    head += [*lines, f"Content-Length: {len(body)}", "Connection: close"]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def full(start: bytes, each: bytes, end: bytes) -> bytes:
    """As many as a body may hold."""
    return start + each * ((LIMIT - len(start) - len(end)) // len(each)) + end


ATTACKS = {
    "bomb": (asked(PACKED, gzip.compress(b"0" * 200_000_000), "Content-Encoding: gzip"), 413),
    "nested": (
        asked(PACKED, gzip.compress(gzip.compress(b"0" * 90_000_000)), "Content-Encoding: gzip"),
        400,
    ),
    "deep": (asked(PATH, b'{"number":' + b"[" * 100_000), 400),
    "as deep as can be": (asked(PATH, full(b"", b"[", b"")), 400),
    "deep objects": (asked(PATH, full(b"", b'{"a":', b"")), 400),
    "digits": (asked(PATH, full(b'{"number":', b"1", b"}")), 400),
    "fraction": (asked(PATH, full(b'{"number":0.', b"1", b"e999}")), 400),
    "twins": (asked(PATH, full(b'{"number":1', b',"a":1', b"}")), 400),
    "surrogates": (asked(PATH, full(b'{"number":"', b"\\ud800", b'"}')), 400),
    "lists, cut off": (asked(PATH, full(b'{"number":1,"a":[', b"[],", b"")), 400),
    "objects, cut off": (asked(PATH, full(b'{"number":1,"a":[', b"{},", b"")), 400),
    "fields": (
        asked(FORM, b"&".join(b"f%d=1" % n for n in range(100_000)),
              kind="application/x-www-form-urlencoded"),
        400,
    ),
    "one field": (
        asked(FORM, full(b"number=", b"%41", b""), kind="application/x-www-form-urlencoded"), 422
    ),
    "one byte more": (asked(PATH, b" " * (LIMIT + 1)), 413),
    "header": (asked(PATH, b"{}", "X-Signature: " + "x" * 1_000_000), 431),
    "query": (asked(f"{PATH}?{'&'.join(f'f{n}=1' for n in range(10_000))}", b"{}"), 414),
}  # fmt: skip


async def call(port: int, said: bytes) -> tuple[int, bytes, float]:
    """The status, the body, and the seconds from the last byte that was taken."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(said)
        with suppress(ConnectionError):  # told before it had said all
            await writer.drain()
        began = time.monotonic()
        heard = b""
        with suppress(ConnectionError):
            while part := await reader.read(65_536):
                heard += part
    finally:
        writer.transport.abort()
    found = _STATUS.match(heard)
    assert found is not None, heard[:200]
    return int(found[1]), heard.partition(b"\r\n\r\n")[2], time.monotonic() - began


@pytest.mark.soak
async def test_b11_b15_b21_to_b24_an_attack_costs_little_and_others_nothing(
    clock: ManualClock, ledger: Ledger, tmp_path: Path
) -> None:
    """Two at a time, both with the secret, while a good caller goes on."""
    async with fresh("sqlite", clock, tmp_path) as store:
        provider = Provider(free_port(), rate=20)
        with Fleet(store.dsn, ledger, tmp_path) as fleet:
            server = serve(fleet, provider.port)
            await until(lambda: "http://" in server.said(), timeout="30s", what="it serves")
            for number in range(100):
                assert await provider.call(number) == 200
            before = most_memory(server.pid)
            plan = [*ATTACKS] * 5
            random.shuffle(plan)
            slowest: dict[str, float] = {}

            async def attacker() -> None:
                while plan:
                    name = plan.pop()
                    said, expected = ATTACKS[name]
                    status, body, seconds = await call(provider.port, said)
                    assert status == expected, (name, status, body)
                    assert json.loads(body).keys() == {"ok", "error"}, name
                    slowest[name] = max(slowest.get(name, 0), seconds)

            waits: list[float] = []

            async def good() -> None:
                number = 100
                while plan:
                    began = time.monotonic()
                    assert await provider.call(number) == 200
                    waits.append(time.monotonic() - began)
                    number += 1
                    await asyncio.sleep(0.02)

            async with asyncio.TaskGroup() as group:
                group.create_task(good())
                for _ in range(2):
                    group.create_task(attacker())
            grown = (most_memory(server.pid) - before) >> 20
            late = statistics.quantiles(waits, n=100)[98]
        assert set(slowest) == set(ATTACKS)
        assert grown <= 64
        assert late <= 0.5 + SLACK
        assert max(slowest.values()) <= 2 + SLACK, slowest
        # Nothing of it is stored, and the log of all of it shows neither a secret nor a stack.
        said = server.said()
        assert SECRET not in said
        assert "Traceback" not in said
        assert await store.count(Filter(), most=10_000) == 100 + len(waits)
