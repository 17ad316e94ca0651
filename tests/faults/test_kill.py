"""Workers are killed with -9, at random moments and at every call: F01, F02, F04–F06."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import text

from relevo import Relevo
from relevo.isolation import WATCH
from relevo.job import State
from relevo.presence import TOGETHER
from relevo.store import By, Filter, Store, Want
from relevo.testing import until
from tests.conformance.fresh import SQL_STORES
from tests.faults import apps
from tests.faults.apps import Block, Nap, Print
from tests.faults.conftest import STORES_HERE, short_on
from tests.faults.every_call import PARTS
from tests.faults.every_call import main as die_everywhere
from tests.faults.fleet import NURSERY, Fleet
from tests.faults.ledger import Ledger
from tests.faults.load import Place, load
from tests.faults.producer import Producer
from tests.faults.verdict import SEEN, drained, judged, stuck, whole
from tests.matrix import Recorder

LEASE = 2.0
SLACK = 1.0
"""Seconds that a busy machine may add to a promise about time."""

QUIET = TOGETHER + 0.5 + 1.5 + 2 * SLACK
"""Seconds after the last death on a host within which a suspect runs alone: it waits until no death
is recent, is tried again every 1.5 s at most, and a death is found within a second."""


async def kills(
    store: Store,
    ledger: Ledger,
    folder: Path,
    matrix: Recorder,
    *,
    jobs: int,
    kills: int,
    seconds: float,
) -> None:
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    relevo = Relevo(store, apps=[apps.app(ledger)])
    deaths: list[tuple[int, float]] = []
    with Fleet(store.dsn, ledger, folder, lease=f"{LEASE}s") as fleet:
        fleet.hire(3)
        fleet.wait_for(2)
        async with Producer(relevo, rate=jobs / seconds, make=lambda n: Print(n, 60)) as producer:
            began = time.monotonic()
            for moment in sorted(chance.uniform(0.05, 0.95) * seconds for _ in range(kills)):
                await asyncio.sleep(max(0.0, began + moment - time.monotonic()))
                victim = chance.choice([one for one in fleet.members if one.is_working])
                fleet.hire()
                # A promise about orphans needs somebody who is alive.
                await until(lambda dies=victim: fleet.working(but=dies), timeout="20s")
                deaths.append((victim.pid, fleet.kill(victim)))
            await producer.until_acked(jobs)
        await drained(store, 60, fleet.check)
    await relevo.rest()

    await judged(store, ledger, producer.acked, unsure=producer.unsure, lease=LEASE)
    waits, alone = restarts(ledger, deaths)
    assert waits, f"no kill hit a running job (seed {seed})"
    matrix.record(recovery=max(waits))
    assert max(waits) < 2 * LEASE, f"seed {seed}: restarted after {sorted(waits)[-5:]} s"
    assert max(alone, default=0) < QUIET, f"seed {seed}: alone after {sorted(alone)[-5:]} s"


def restarts(ledger: Ledger, deaths: list[tuple[int, float]]) -> tuple[list[float], list[float]]:
    """How long each job that a killed process had begun waited for its next start.

    One that a second death hits is to run alone, on a host on which no death is recent: it is told
    of apart, and waits from the last death before its start.
    """
    facts = ledger.facts("start", "end")
    waits: list[float] = []
    alone: list[float] = []
    hit: set[int] = set()
    for pid, at in deaths:
        running: set[int] = set()
        for fact in facts:
            if fact.pid == pid:
                (running.add if fact.what == "start" else running.discard)(fact.number)
        for number in running:
            again = [f.at for f in facts if f.number == number and f.what == "start" and f.at > at]
            if again and number in hit:
                alone.append(min(again) - max(death for _, death in deaths if death < min(again)))
            elif again:  # else it had settled, and its last line was never written
                waits.append(min(again) - at)
            hit.add(number)
    return waits, alone


async def test_f01_random_kills_lose_and_double_nothing(
    store: Store, ledger: Ledger, tmp_path: Path, matrix: Recorder
) -> None:
    await kills(store, ledger, tmp_path, matrix, jobs=1_000, kills=4, seconds=3)


@pytest.mark.soak
async def test_f01_twenty_kills_in_a_minute(
    store: Store, ledger: Ledger, tmp_path: Path, matrix: Recorder
) -> None:
    await kills(store, ledger, tmp_path, matrix, jobs=10_000, kills=20, seconds=60)


@pytest.mark.parametrize("store_name", [one for one in STORES_HERE if one not in SQL_STORES])
async def test_f01_random_kills_beside_an_outbox_lose_and_double_nothing(
    store: Store, ledger: Ledger, tmp_path: Path, matrix: Recorder
) -> None:
    """F27: those who carry letters to Redis are killed too."""
    place = Place(store=store, url=store.dsn, ledger=ledger, folder=tmp_path, matrix=matrix)
    async with load(place, rate=200, workers=3) as (producer, fleet):
        for _ in range(4):
            await producer.until_acked(len(producer.acked) + random.randint(50, 150))
            victim = random.choice([one for one in fleet.members if one.is_working])
            fleet.hire()
            fleet.kill(victim)
            await place.goes_on(LEASE)


async def naps(relevo: Relevo, ledger: Ledger, count: int) -> list[str]:
    """Jobs that outlast the test, begun by now."""
    receipts = await relevo.enqueue_many(Nap(number, 60_000) for number in range(count))
    await until(lambda: len(ledger.counts("start")) == count, timeout="20s")
    return [receipt.id for receipt in receipts]


def begun_since(ledger: Ledger, at: float) -> dict[int, float]:
    return {fact.number: fact.at - at for fact in ledger.facts("start") if fact.at > at}


@pytest.mark.parametrize("store_name", short_on("redis"))
async def test_f01_whom_a_dead_process_leaves_behind_restarts_in_two_seconds(
    store: Store, ledger: Ledger, tmp_path: Path, matrix: Recorder
) -> None:
    """However long its lease: on the same host nobody waits for it to lapse.

    Each of them is suspected of having killed its process, and has another to itself for a second.
    """
    relevo = Relevo(store, apps=[apps.app(ledger)])
    with Fleet(store.dsn, ledger, tmp_path, lease="60s") as fleet:
        [doomed] = fleet.hire()
        fleet.wait_for()
        ids = await naps(relevo, ledger, 5)
        fleet.hire()
        fleet.wait_for(2)
        died = fleet.kill(doomed)
        await until(lambda: len(begun_since(ledger, died)) == 5, timeout="30s")
        await store.cancel(ids, By("test"))
    await relevo.rest()

    begun = sorted(begun_since(ledger, died).values())
    matrix.record(recovery=begun[0])
    assert begun[0] < 2 + SLACK
    assert begun[-1] < 2 + SLACK + 5 * (WATCH + SLACK)


@pytest.mark.parametrize("store_name", short_on("postgres"))
async def test_f01_whom_nobody_knows_to_be_dead_restarts_in_a_lease_and_a_half(
    store: Store, ledger: Ledger, tmp_path: Path, matrix: Recorder
) -> None:
    """Frozen is as good as dead on another host: its leases have to lapse."""
    lease = 4.0
    relevo = Relevo(store, apps=[apps.app(ledger)])
    with Fleet(store.dsn, ledger, tmp_path, lease=f"{lease}s") as fleet:
        [frozen] = fleet.hire()
        fleet.wait_for()
        ids = await naps(relevo, ledger, 10)
        fleet.hire()
        fleet.wait_for(2)
        frozen.freeze()
        froze = time.monotonic()
        await until(lambda: len(begun_since(ledger, froze)) == 10, timeout="20s")
        await store.cancel(ids, By("test"))
        frozen.thaw()
    await relevo.rest()

    waits = begun_since(ledger, froze).values()
    matrix.record(recovery=max(waits))
    assert min(waits) > lease / 2, "taken from somebody who still had it"
    assert max(waits) < 1.5 * lease + SLACK


async def every_call(
    store: Store, ledger: Ledger, folder: Path, *, stride: int, waves: int
) -> dict[str, int]:
    """Die at every `stride`-th call; then every part of every story has happened once."""
    is_sql = store.name in ("sqlite", "postgres")
    database = None if is_sql else f"sqlite:///{folder / 'outbox.db'}"
    relevo = Relevo(store.dsn, database=database)
    async with relevo:
        async with relevo.transaction() as session:
            await session.execute(text("drop table if exists orders"))  # of the test before
            await session.execute(text("create table orders (number integer)"))
        out, where = folder / "said", (store.dsn, database, str(ledger.path))
        much = (stride, random.randrange(stride), waves)
        process = NURSERY.Process(target=die_everywhere, args=(*where, *much, str(out)))
        process.start()
        await asyncio.to_thread(process.join)
        assert process.exitcode == 0, out.read_text()[-4_000:]
        told: dict[str, int] = json.loads(out.read_text().splitlines()[-1])
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
    """F27 too: with Redis the relay is among those that die, its outbox among the calls."""
    told = await every_call(store, ledger, tmp_path, stride=10, waves=1)
    assert told["died"] >= 3


@pytest.mark.soak
async def test_f02_a_death_at_every_call(
    store: Store, ledger: Ledger, tmp_path: Path, matrix: Recorder
) -> None:
    """F27 too."""
    began = time.monotonic()
    told = await every_call(store, ledger, tmp_path, stride=1, waves=100)
    matrix.record(lost=0, doubled=0)
    # A story takes 28 calls and those of the thread that keeps leases; some are told by others.
    assert told["calls"] > 28
    assert told["died"] >= 40
    assert time.monotonic() - began < 300


async def abandoned(relevo: Relevo, store: Store, count: int) -> list[str]:
    """Jobs in the hands of a worker that is gone, their leases lapsed."""
    receipts = await relevo.enqueue_many(Print(number) for number in range(count))
    want = Want(queue=Print.__relevo__.queue)
    claim = await store.claim([want], count, "gone", 300)
    assert len(claim.leases) == count
    await asyncio.sleep(0.4)
    return [receipt.id for receipt in receipts]


async def test_f04_rescuers_that_die_and_many_at_once_rescue_each_job_once(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    """m9: one dies before its sweep, one after it; the others sweep at the same time."""
    relevo = Relevo(store, apps=[apps.app(ledger)])
    with Fleet(store.dsn, ledger, tmp_path, lease="1s") as fleet:
        ids = await abandoned(relevo, store, 300)
        doomed = [
            *fleet.hire(fault={"only": "rescue", "at": 1, "when": "before"}),
            *fleet.hire(fault={"only": "rescue", "at": 1, "when": "after"}),
        ]
        fleet.hire(3)
        for member in doomed:
            fleet.bury(member)
        await drained(store, 30, fleet.check)
    await relevo.rest()

    await judged(store, ledger, range(300), lease=1)
    for job in await store.find(ids):
        assert job is not None
        by_gone = [one for one in job.history if one.worker == "gone"]
        assert [one.outcome for one in by_gone] == ["rescued"]
        assert job.attempt == 1  # what was lost with its worker spends nothing


@pytest.mark.parametrize("store_name", short_on("sqlite"))
async def test_f05_a_polite_stop_hands_over_what_is_too_long(
    store: Store, ledger: Ledger, tmp_path: Path, matrix: Recorder
) -> None:
    """`relevo work` gets SIGTERM with fifty running: the short end, the long start elsewhere."""
    grace = 1.5
    relevo = Relevo(store, apps=[apps.app(ledger)])
    lengths = [100 + 40 * n for n in range(25)] + [30_000 + 1_000 * n for n in range(25)]
    with Fleet(store.dsn, ledger, tmp_path, lease="2s", concurrency=60) as fleet:
        first = fleet.hire_program(
            "work", "--app", "tests.faults.program:app", RELEVO_GRACE=f"{grace}s",
            RELEVO_LEASE="2s", RELEVO_CONCURRENCY="60",
        )  # fmt: skip
        await until(lambda: "serving" in first.said(), timeout="20s")
        receipts = await relevo.enqueue_many(Nap(n, ms) for n, ms in enumerate(lengths))
        await until(lambda: len(ledger.counts("start")) == 50, timeout="20s")
        [other] = fleet.hire()
        await until(lambda: "working" in other.said(), timeout="20s")

        told = time.monotonic()
        first.terminate()
        assert await asyncio.to_thread(first.wait, grace + 10) == 0
        gone = time.monotonic()
        fleet.members.remove(first)
        await until(
            lambda: len([fact for fact in ledger.facts("start") if fact.pid == other.pid]) == 25,
            timeout="10s",
        )
        starts = [fact for fact in ledger.facts("start") if fact.pid == other.pid]
        jobs = await store.find([receipt.id for receipt in receipts])
        await store.cancel([receipt.id for receipt in receipts], By("test"))
    await relevo.rest()

    assert gone - told < grace + 2 + SLACK
    assert {fact.number for fact in ledger.facts("end") if fact.pid == first.pid} == set(range(25))
    assert {fact.number for fact in starts} == set(range(25, 50))
    handed = max(fact.at for fact in starts) - (told + grace)
    matrix.record(recovery=max(0.0, handed))
    assert handed < 2 + SLACK
    short, long = jobs[:25], jobs[25:]
    assert {job.state for job in short if job} == {State.DONE}
    assert {(job.state, job.attempt) for job in long if job} == {(State.RUNNING, 1)}
    assert await stuck(store, 2) == []


@pytest.mark.parametrize("store_name", short_on("postgres"))
async def test_f06_a_blocked_event_loop_keeps_its_jobs(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    """m8: five leases long, asleep and busy, while others look for what has lapsed."""
    relevo = Relevo(store, apps=[apps.app(ledger)])
    with Fleet(store.dsn, ledger, tmp_path, lease="1s") as fleet:
        blocked = fleet.hire(2, queues=[Block.__relevo__.queue, Nap.__relevo__.queue])
        fleet.hire(2, queues=[Print.__relevo__.queue])
        fleet.wait_for(4)
        receipts = await relevo.enqueue_many(Nap(number, 1_000) for number in range(10, 16))
        await until(lambda: len(ledger.counts("start")) == 6, timeout="20s")
        for number, is_busy in enumerate((False, True)):  # the second finds the first one blocked
            receipts += await relevo.enqueue_many([Block(number, 5_000, is_busy)])
            await until(lambda n=number: ledger.counts("start")[n], timeout="20s")
        await drained(store, 30, fleet.check)
        for member in blocked:
            assert "blocks the event loop" in member.said()
        assert "job rescued" not in fleet.said()
    await relevo.rest()

    assert set(ledger.counts("start").values()) == {1}
    for job in await store.find([receipt.id for receipt in receipts]):
        assert job is not None
        assert (job.attempt, [run.outcome for run in job.history]) == (1, ["done"])


@pytest.mark.parametrize("store_name", short_on("redis"))
async def test_a_process_that_was_frozen_longer_than_its_lease_doubles_nothing(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    """A laptop lid, a paused container: it wakes up in the middle of what others have done.

    Of its forty jobs one at most can be frozen after its last look at the lease and before its call
    is out; that one comes late with the key of the other, for the provider to tell.
    """
    pauses = (2.2, 1.5)
    relevo = Relevo(store, apps=[apps.app(ledger)])
    with Fleet(store.dsn, ledger, tmp_path, lease="1s", concurrency=40) as fleet:
        sleeper, _ = fleet.hire(2)
        fleet.wait_for(2)
        async with Producer(relevo, rate=500) as producer:
            await producer.until_acked(200)
            for pause in pauses:
                sleeper.freeze()
                await asyncio.sleep(pause)
                sleeper.thaw()
                await asyncio.sleep(0.3)
        await drained(store, 30, fleet.check)
    await relevo.rest()

    doubled = [number for number, count in ledger.counts("effect").items() if count > 1]
    assert len(doubled) <= len(pauses)
    await judged(store, ledger, producer.acked, unsure=producer.unsure, lease=1, keyed=True)
