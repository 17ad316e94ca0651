"""An upgrade under load, and the way back: F75."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from relevo import Relevo
from relevo.store import Store
from relevo.testing import until
from tests.faults import apps
from tests.faults.fleet import Fleet, Member
from tests.faults.ledger import Ledger
from tests.faults.producer import Producer
from tests.faults.test_ingress import Provider, serve
from tests.faults.verdict import drained, judged
from tests.matrix import Recorder
from tests.servers.ports import free_port

LEASE = 2.0
ORDERED = 1_000_000
"""Numbers from here on are enqueued by this process; smaller ones come as webhooks."""

GAP = LEASE + 2.0
"""Seconds without any effect that a busy machine may show while half of the workers are killed."""


async def said(fleet: Fleet, later: int, *words: str) -> tuple[int, str]:
    """What the program of a version answers: this one, or one that is still to come."""
    member = fleet.hire_later(later, *words) if later else fleet.hire_program(*words)
    try:
        code = await asyncio.to_thread(member.wait, 60)
    finally:
        fleet.members.remove(member)
    return code, member.said()


@pytest.mark.soak
async def test_f75_versions_work_together_there_and_back(
    store: Store, ledger: Ledger, tmp_path: Path, matrix: Recorder
) -> None:
    """Old and new workers and web processes, while the new version migrates, and after it."""
    provider = Provider(free_port(), rate=50)
    with Fleet(store.dsn, ledger, tmp_path, lease=f"{LEASE}s") as fleet:
        old = fleet.hire(2)
        fleet.wait_for(2)
        web = serve(fleet, provider.port)
        async with Relevo(store.dsn, apps=[apps.app(ledger)]) as relevo:
            async with Producer(relevo, rate=100, first=ORDERED) as producer:
                delivering = asyncio.create_task(provider.run())
                await more(provider, producer, fleet)

                code, told = await said(fleet, 1, "migrate")
                assert code == 0 and "done: 9001" in told, told
                await more(provider, producer, fleet)

                # A process that was started before the migration dies, and comes back.
                fleet.kill(old.pop())
                fleet.kill(web)
                old += await come(fleet, later=0)
                web = serve(fleet, provider.port)
                await more(provider, producer, fleet)

                # Old and new work side by side; what would leave the old ones behind is refused.
                new = await come(fleet, later=1)
                await more(provider, producer, fleet)
                code, told = await said(fleet, 2, "migrate")
                assert code != 0 and "is alive and could not work after" in told, told

                # Everything is new, the web process too.
                await go(fleet, old)
                new += await come(fleet, later=1)
                await go(fleet, [web])
                web = fleet.hire_later(
                    1, *f"serve --app tests.faults.door:app --port {provider.port}".split()
                )
                await more(provider, producer, fleet)

                # And back: the old version on the new one's tables.
                old = await come(fleet, later=0)
                await go(fleet, [*new, web])
                web = serve(fleet, provider.port)
                old += await come(fleet, later=0)
                code, told = await said(fleet, 0, "migrate")
                assert code == 0 and "newer than" in told, told
                await more(provider, producer, fleet)
                provider.is_over = True
                await delivering
            acked = producer.acked | set(provider.acked)
        await drained(store, 60, fleet.check)
        await judged(store, ledger, acked, unsure=producer.unsure, lease=LEASE, keyed=False)
        recovery = longest_gap(ledger)
        matrix.record(recovery=recovery)
        assert recovery < GAP

        # Once more to the new version; the old ones leave, and then the step is taken.
        await come(fleet, later=1)
        await go(fleet, [*old, web])
        code, told = await said(fleet, 2, "migrate")
        assert code == 0 and "done: 9002" in told, told
        assert (await said(fleet, 1, "doctor"))[0] == 0
        for words in (("migrate",), ("work", "--app", "tests.faults.program:app")):
            code, told = await said(fleet, 0, *words)
            assert code != 0 and "upgrade relevo" in told, told


async def come(fleet: Fleet, *, later: int) -> list[Member]:
    """One more worker, of a version."""
    came = fleet.hire(1, later=later)
    await until(lambda: came[0].is_working, timeout="30s", what="a worker comes up")
    return came


async def go(fleet: Fleet, members: Sequence[Member]) -> None:
    """Have these stop politely, as a deploy does."""
    for member in members:
        member.terminate()
        assert await asyncio.to_thread(member.wait, 20) == 0, member.said()[-4_000:]
        fleet.members.remove(member)


async def more(provider: Provider, producer: Producer, fleet: Fleet) -> None:
    """Both ways in are used, and the effects of both are made."""
    delivered, ordered = len(provider.acked), len(producer.acked)
    await until(lambda: len(provider.acked) > delivered + 40, timeout="30s")
    await producer.until_acked(ordered + 80)
    last = max(producer.acked)
    await until(lambda: fleet.ledger.counts("effect")[last] > 0, timeout="20s")
    fleet.check()


def longest_gap(ledger: Ledger) -> float:
    """The longest time between two effects."""
    moments = sorted(fact.at for fact in ledger.facts("effect"))
    return max(after - before for before, after in itertools.pairwise(moments))
