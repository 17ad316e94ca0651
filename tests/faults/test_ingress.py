"""HTTP is killed while a provider delivers, and delivers again what had no answer: F03."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from relevo.store import Filter, Store
from relevo.testing import until
from tests.faults.apps import Print
from tests.faults.door import PATH, SECRET
from tests.faults.fleet import Fleet, Member
from tests.faults.ledger import Ledger
from tests.faults.verdict import drained, judged
from tests.matrix import Recorder
from tests.servers.ports import free_port

RESET = 0


class Provider:
    """Delivers numbers at an even pace, each until it is answered with 2xx."""

    def __init__(self, port: int, rate: float) -> None:
        self.port = port
        self.rate = rate
        self.sent = 0
        self.is_over = False
        self.acked: dict[int, float] = {}
        self.statuses: Counter[int] = Counter()

    async def _deliver(self, number: int) -> None:
        while True:
            status = await self.call(number)
            self.statuses[status] += 1
            if 200 <= status < 300:
                self.acked[number] = time.monotonic()
                return
            await asyncio.sleep(random.uniform(0.2, 0.4))

    async def call(self, number: int) -> int:
        """Deliver once; answers the status, or that there was none."""
        body = b'{"number":%d}' % number
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        head += f"X-Secret: {SECRET}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        try:
            async with asyncio.timeout(10):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(head.encode() + body)
                first = await reader.readline()
                writer.close()
        except OSError:  # a TimeoutError is one too
            return RESET
        return int(first.split()[1]) if first else RESET

    async def run(self) -> None:
        """Until it is over, and then until everything is answered."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            while not self.is_over:
                await asyncio.sleep(max(0.0, began + self.sent / self.rate - time.monotonic()))
                group.create_task(self._deliver(self.sent))
                self.sent += 1


def serve(fleet: Fleet, port: int) -> Member:
    return fleet.hire_program("serve", "--app", "tests.faults.door:app", "--port", str(port))


@pytest.mark.soak
async def test_f03_every_2xx_of_a_killed_ingress_is_kept(
    store: Store, ledger: Ledger, tmp_path: Path, matrix: Recorder
) -> None:
    """Each event is one row and one effect, however often it was delivered."""
    is_sql = store.name in ("sqlite", "postgres")
    database = None if is_sql else f"sqlite:///{tmp_path / 'outbox.db'}"
    provider = Provider(free_port(), rate=200)
    with Fleet(store.dsn, ledger, tmp_path, lease="2s", database=database) as fleet:
        fleet.hire(1)
        fleet.wait_for(1)
        server = serve(fleet, provider.port)
        delivering = asyncio.create_task(provider.run())
        for _ in range(3):
            already = len(provider.acked)
            await until(lambda n=already: len(provider.acked) > n + 100, timeout="40s")
            await asyncio.sleep(random.uniform(0.2, 1.0))
            died = fleet.kill(server)
            server = serve(fleet, provider.port)
            await until(
                lambda at=died: any(ack > at + 0.01 for ack in list(provider.acked.values())),
                timeout="30s",
            )
            again = min(ack for ack in provider.acked.values() if ack > died + 0.01)
            matrix.record(recovery=again - died)
        provider.is_over = True
        async with asyncio.timeout(90):
            await delivering
        count = provider.sent
        await drained(store, 60, fleet.check)
        await until(lambda: len(ledger.counts("effect")) == count, timeout="60s")

    assert {status for status in provider.statuses if status != RESET and status < 500} == {200}
    assert await store.count(Filter(queue=Print.__relevo__.queue), most=2 * count) == count
    await judged(store, ledger, range(count), lease=2)
