"""Workers are killed with -9, at random moments and at every call: F01, F02, F04, F05."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import text

from relevo import Relevo
from relevo.store import Filter, Store
from tests.faults import apps
from tests.faults.apps import Print
from tests.faults.every_call import PARTS
from tests.faults.fleet import HOME, Fleet
from tests.faults.ledger import Ledger
from tests.faults.verdict import SEEN, drained, judged, whole

LEASE = 2.0


async def feed(relevo: Relevo, ledger: Ledger, count: int, seconds: float) -> set[int]:
    """Enqueue at an even pace; a number counts as acknowledged once enqueue has returned."""
    acked: set[int] = set()
    began = time.monotonic()
    for start in range(0, count, 20):
        numbers = range(start, min(start + 20, count))
        await asyncio.gather(*(relevo.enqueue(Print(number)) for number in numbers))
        acked.update(numbers)
        await asyncio.sleep(max(0.0, began + seconds * start / count - time.monotonic()))
    return acked


async def kills(
    store: Store, ledger: Ledger, folder: Path, *, jobs: int, kills: int, seconds: float
) -> None:
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    relevo = Relevo(store, apps=[apps.app(ledger)])
    with Fleet(store.dsn, ledger, folder, lease=f"{LEASE}s") as fleet:
        fleet.hire(3)
        fleet.wait_for(2)
        feeding = asyncio.create_task(feed(relevo, ledger, jobs, seconds))
        moments = sorted(chance.uniform(0.05, 0.95) * seconds for _ in range(kills))
        began = time.monotonic()
        deaths: list[tuple[int, float]] = []
        for moment in moments:
            await asyncio.sleep(max(0.0, began + moment - time.monotonic()))
            victim = chance.choice(fleet.members)
            deaths.append((victim.pid, fleet.kill(victim)))
            fleet.hire()
        acked = await feeding
        await drained(store, 60, fleet.check)
    await relevo.rest()

    print(f"seed {seed}")  # noqa: T201 - shown when it fails
    assert len(acked) == jobs
    await judged(store, ledger, acked, lease=LEASE)
    late = restarts(ledger, deaths)
    assert max(late, default=0) < 2 * LEASE, f"orphans came back after {sorted(late)[-5:]} s"


def restarts(ledger: Ledger, deaths: list[tuple[int, float]]) -> list[float]:
    """How long each job that a killed process had begun waited for its next start."""
    facts = ledger.facts("start", "end")
    waits: list[float] = []
    for pid, at in deaths:
        running: set[int] = set()
        for fact in facts:
            if fact.pid == pid:
                (running.add if fact.what == "start" else running.discard)(fact.number)
        for number in running:
            again = [f.at for f in facts if f.number == number and f.what == "start" and f.at > at]
            if again:  # else it had settled, and its last line was never written
                waits.append(min(again) - at)
    return waits


async def test_f01_random_kills_lose_and_double_nothing(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    await kills(store, ledger, tmp_path, jobs=2_000, kills=4, seconds=6)


@pytest.mark.soak
async def test_f01_twenty_kills_in_a_minute(store: Store, ledger: Ledger, tmp_path: Path) -> None:
    await kills(store, ledger, tmp_path, jobs=10_000, kills=20, seconds=60)


async def every_call(store: Store, ledger: Ledger, folder: Path, stride: int) -> dict[str, int]:
    """Die at every `stride`-th call; then every part of every story has happened once."""
    database = "" if store.name in ("sqlite", "postgres") else f"sqlite:///{folder / 'outbox.db'}"
    relevo = Relevo(store.dsn, database=database or None)
    async with relevo:
        async with relevo.transaction() as session:
            await session.execute(text("create table orders (number integer)"))
        command = [sys.executable, "-m", "tests.faults.every_call", store.dsn, database]
        command += [str(ledger.path), str(stride), str(random.randrange(stride))]
        process = await asyncio.create_subprocess_exec(
            *command, cwd=HOME, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, complaints = await process.communicate()
        assert process.returncode == 0, complaints.decode()[-4_000:]
        told: dict[str, int] = json.loads(out)
        numbers = Counter(range(1, told["stories"] + 1))
        for part in PARTS:
            assert ledger.counts(part) == numbers, f"{part}: {ledger.counts(part) - numbers}"
        async with relevo.transaction() as session:
            rows = await session.execute(text("select number from orders"))
            assert Counter(rows.scalars()) == numbers
        await drained(store)
        assert await store.count(Filter(states=SEEN)) == 0
        whole(store)
    return told


async def test_f02_a_death_at_any_call_loses_and_doubles_nothing(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    told = await every_call(store, ledger, tmp_path, stride=5)
    assert told["died"] >= 8


@pytest.mark.soak
async def test_f02_a_death_at_every_call(store: Store, ledger: Ledger, tmp_path: Path) -> None:
    began = time.monotonic()
    told = await every_call(store, ledger, tmp_path, stride=1)
    assert told["died"] >= 2 * 20
    assert time.monotonic() - began < 300
