"""Ten thousand calls a second at one process's door, whether it can take them or not: F33."""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

import pytest

from relevo.store import Store
from relevo.testing import until
from tests.faults.door import PATH, SECRET
from tests.faults.fleet import Fleet
from tests.faults.ledger import Ledger
from tests.faults.test_ingress import RESET, serve
from tests.faults.test_limits import most_memory
from tests.faults.verdict import drained, judged
from tests.matrix import Recorder
from tests.servers.ports import free_port

RATE, SECONDS, CALLERS = 10_000, 10, 2_000
_HEAD = re.compile(rb"HTTP/1\.1 (\d\d\d) .*?\r\n\r\n", re.DOTALL)


class Caller(asyncio.Protocol):
    """One connection, a call at a time; those that are due meanwhile wait for a free one."""

    def __init__(self, due: deque[int], free: list[Caller]) -> None:
        self._due = due
        self._free = free
        self.waiting: deque[tuple[int, float]] = deque()
        self.answered: list[tuple[int, int, float]] = []
        self.polite = True
        self._rest = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def call(self, number: int) -> None:
        if self._transport.is_closing():
            self.answered.append((number, RESET, 0.0))
            return
        body = b'{"number":%d}' % number
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        head += f"X-Secret: {SECRET}\r\nContent-Length: {len(body)}\r\n\r\n"
        self.waiting.append((number, time.monotonic()))
        self._transport.write(head.encode() + body)

    def data_received(self, data: bytes) -> None:
        self._rest += data
        end, now = 0, time.monotonic()
        for found in _HEAD.finditer(self._rest):
            number, began = self.waiting.popleft()
            status, end = int(found[1]), found.end()
            self.answered.append((number, status, now - began))
            self.polite &= status == 200 or b"retry-after: 1\r\n" in found[0].lower()
        self._rest = self._rest[end:]
        if end and self._due:
            self.call(self._due.popleft())
        elif end:
            self._free.append(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.answered += [(number, RESET, 0.0) for number, _ in self.waiting]
        self.waiting.clear()

    def close(self) -> None:
        self._transport.abort()


async def burst(port: int) -> list[Caller]:
    """Calls are made when they are due, however long the answers take."""
    loop = asyncio.get_running_loop()
    due: deque[int] = deque()
    free: list[Caller] = []
    for _ in range(CALLERS):
        _, caller = await loop.create_connection(lambda: Caller(due, free), "127.0.0.1", port)
        free.append(caller)
    callers = list(free)
    began, sent = time.monotonic(), 0
    while sent < RATE * SECONDS:
        now = time.monotonic()
        while sent < RATE * SECONDS and began + sent / RATE <= now:
            if free:
                free.pop().call(sent)
            else:
                due.append(sent)
            sent += 1
        await asyncio.sleep(0.005)
    await until(lambda: len(free) == CALLERS, timeout="180s", what="answers")
    return callers


@pytest.mark.soak
async def test_f33_ten_thousand_calls_a_second(
    store: Store, ledger: Ledger, tmp_path: Path, matrix: Recorder
) -> None:
    """Every 2xx is stored, the rest is told to come back; memory stays where it was."""
    is_sql = store.name in ("sqlite", "postgres")
    database = None if is_sql else f"sqlite:///{tmp_path / 'outbox.db'}"
    port = free_port()
    with Fleet(
        store.dsn, ledger, tmp_path, lease="15s", concurrency=50, database=database
    ) as fleet:
        server = serve(fleet, port)
        await until(lambda: "http://" in server.said(), timeout="30s", what="it serves")
        before = most_memory(server.pid)
        callers = await burst(port)
        grown = (most_memory(server.pid) - before) >> 20
        answers = [answer for caller in callers for answer in caller.answered]
        for caller in callers:
            caller.close()
        statuses = Counter(status for _, status, _ in answers)
        taken = {number for number, status, _ in answers if status == 200}
        waits = sorted(wait for _, status, wait in answers if status == 200)
        late = statistics.quantiles(waits, n=100)[98]
        note = f"{len(taken):,} taken, {statuses[503]:,} told to come back, p99 {late:.1f} s, "
        matrix.record(note=f"{note}{grown} MB more")
        fleet.hire(2)
        await until(lambda: len(ledger.counts("effect")) >= len(taken), timeout="600s")
        await drained(store, 60, fleet.check)

    assert set(statuses) <= {200, 429, 503}
    assert statuses.total() == RATE * SECONDS
    assert all(caller.polite for caller in callers)
    assert grown < 200
    await judged(store, ledger, taken, lease=15)
