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
from functools import partial
from pathlib import Path

import pytest

from relevo.ingress.body import unpacked
from relevo.ingress.reply import Refused
from relevo.store import Filter
from relevo.testing import ManualClock, until
from relevo.webhook import BodyError, Fields, parse_json
from tests.conformance.fresh import fresh
from tests.faults.door import FORM, PACKED, PATH, SECRET
from tests.faults.fleet import Fleet
from tests.faults.ledger import Ledger
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


# Just not too many, each dear: lists inside lists, objects, and texts that only look like it.
CROWD = (
    b'{"number":1,"t":"\\n' + b"[,{" * 50_000 + b'","a":['
    + (b"[" * 60 + b"]" * 60 + b",") * 800 + b'{"a":1.5},' * 20_000 + b"1]}"
)  # fmt: skip
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
    "a crowd": (asked(PATH, full(b'{"number":1,"a":[', b"1,", b"1]}")), 400),
    "a crowd, cut off": (asked(PATH, CROWD[:-1]), 400),
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


def _read(said: bytes) -> object:
    head, _, body = said.partition(b"\r\n\r\n")
    if b"gzip" in head:
        body = unpacked(body, LIMIT)
    return Fields.parse(body) if b"urlencoded" in head else parse_json(body)


READ = {
    "a crowd that is allowed": lambda: parse_json(CROWD),
    **{
        name: partial(_read, said)
        for name, (said, _) in ATTACKS.items()
        if name not in ("one byte more", "header", "query")  # nobody reads them
    },
}


@pytest.mark.parametrize("name", READ)
def test_no_body_holds_the_others_up_for_long(name: str) -> None:
    """Of the processor's time, which a busy machine does not stretch; the best of three."""
    seconds: list[float] = []
    for _ in range(3):
        began = time.thread_time()
        with suppress(BodyError, Refused):
            READ[name]()
        seconds.append(time.thread_time() - began)
    assert min(seconds) <= 0.1  # the dearest take 30 ms where this was written


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
            calm: list[float] = []
            for number in range(100):
                began = time.monotonic()
                assert await provider.call(number) == 200
                calm.append(time.monotonic() - began)
            before = most_memory(server.pid)
            plan = [*ATTACKS] * 20
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
            late = statistics.quantiles(waits, n=100, method="inclusive")[98]
        assert set(slowest) == set(ATTACKS)
        assert grown <= 64
        # And what the machine, on which others work too, took when nobody attacked.
        assert late <= 0.5 + max(calm)
        assert max(slowest.values()) <= 2 + max(calm), slowest
        # Nothing of it is stored, and the log of all of it shows neither a secret nor a stack.
        said = server.said()
        assert SECRET not in said
        assert "Traceback" not in said
        assert await store.count(Filter(), most=10_000) == 100 + len(waits)
