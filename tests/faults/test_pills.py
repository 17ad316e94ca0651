"""Jobs that end the process that runs them, or block its event loop: no other job pays for it."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from relevo import Relevo
from relevo.flow import Flow
from relevo.job import Ending, Job, State, Suspicion
from relevo.keeper import EXCUSES
from relevo.presence import Presence
from relevo.store import Filter, Store, Want
from relevo.testing import until
from tests.conformance.fresh import STORES
from tests.faults import apps
from tests.faults.apps import Good, Guest, Nap, Piece, Pill, Whole
from tests.faults.conftest import short_on
from tests.faults.fleet import Fleet
from tests.faults.ledger import Ledger
from tests.faults.verdict import OPEN, whole

LEASE = "2s"
GOOD = 400
WORKERS = 4
WITHIN = 60.0

SHORT = {("sqlite", "segv"), ("postgres", "kill"), ("redis", "exit")}
"""One kind for each store; the others are long forms."""


def cases(*kinds: str) -> list[object]:
    """Each kind on each store."""
    return [
        pytest.param(
            one.values[0],
            kind,
            id=f"{one.id}-{kind}",
            marks=[*one.marks, *([] if (one.id, kind) in SHORT else [pytest.mark.soak])],
        )
        for one in STORES
        for kind in kinds
    ]


async def all_of(store: Store, kind: str) -> list[Job]:
    found: list[Job] = []
    cursor = None
    while True:
        page = await store.page(Filter(kind=kind), cursor=cursor, limit=200)
        found += page.jobs
        if (cursor := page.cursor) is None:
            return found


async def supervised(store: Store, fleet: Fleet, deaths: int = 0, within: float = WITHIN) -> None:
    """Replace dead workers until no job is open and at least so many have died."""
    deadline = time.monotonic() + within
    while await store.count(Filter(states=OPEN), most=1) or len(fleet.killed) < deaths:
        fleet.supervise()
        left = Counter((j.kind, j.state, j.suspicion, j.crashes) for j in await open_jobs(store))
        assert time.monotonic() < deadline, f"left: {left}\n{fleet.said()[-3_000:]}"
        await asyncio.sleep(0.1)


async def open_jobs(store: Store) -> list[Job]:
    return (await store.page(Filter(states=OPEN), limit=200)).jobs


async def innocent(store: Store, ledger: Ledger, kind: str, count: int) -> None:
    """Every good job is done, with one effect and no attempt spent on what was not its fault."""
    good = await all_of(store, kind)
    effects = ledger.counts("effect")
    ledger.verdict = (
        count - len(effects),
        sum(1 for many in effects.values() if many > 1),
    )
    assert Counter(job.state for job in good) == {State.DONE: count}
    assert {number: many for number, many in effects.items() if many > 1} == {}
    assert {job.attempt for job in good} == {1}
    whole(store)


async def guilty(store: Store, ids: list[str], reason: str) -> None:
    """Each pill is dead, for the right reason, after three runs alone."""
    for job in await store.find(ids):
        assert job is not None
        assert job.state is State.DEAD
        assert job.failure is not None
        assert job.failure.message.startswith(reason), job.failure
        alone = [run for run in job.history if run.failure and run.failure.type == "WorkerCrashed"]
        blocked = [run for run in job.history if run.failure and run.failure.type == "BlockedLoop"]
        # The first block is known to be the job's doing although others ran beside it.
        if alone:
            assert len(alone) == 4, job.history
        else:
            assert len(blocked) >= 5, job.history
        assert job.history[-1].outcome == "dead"


@pytest.mark.parametrize(("store_name", "kind"), cases(*apps.PILLS))
async def test_f55_a_job_that_crashes_its_worker_takes_no_other_with_it(
    store: Store, ledger: Ledger, tmp_path: Path, kind: str
) -> None:
    """Default settings, four supervised workers."""
    relevo = Relevo(store, apps=[apps.app(ledger)])
    await relevo.enqueue_many(Good(number) for number in range(GOOD // 2))
    [pill] = await relevo.enqueue_many([Pill(-1, kind)])
    await relevo.enqueue_many(Good(number) for number in range(GOOD // 2, GOOD))
    with Fleet(store.dsn, ledger, tmp_path, lease=LEASE, concurrency=100) as fleet:
        fleet.hire(WORKERS)
        await supervised(store, fleet, 4)
    await relevo.rest()

    # Three times alone, and before that beside others: once, or again while it is watched, or where
    # another process of the host was told to stop just before.
    assert len(fleet.killed) <= 6
    await guilty(store, [pill.id], "it crashed its worker 3 times")
    await innocent(store, ledger, Good.__relevo__.kind, GOOD)


@pytest.mark.soak
async def test_f55_one_that_always_takes_its_whole_host_with_it_is_found(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    """As where one cgroup holds all workers and memory runs out: the others excuse it no more."""
    relevo = Relevo(store, apps=[apps.app(ledger)])
    await relevo.enqueue_many(Good(number) for number in range(GOOD // 2))
    [pill] = await relevo.enqueue_many([Pill(-1, "host")])
    await relevo.enqueue_many(Good(number) for number in range(GOOD // 2, GOOD))
    with Fleet(store.dsn, ledger, tmp_path, lease=LEASE, concurrency=100) as fleet:
        fleet.hire(WORKERS)
        await supervised(store, fleet, WORKERS, 2 * WITHIN)
    await relevo.rest()

    await guilty(store, [pill.id], "it crashed its worker 3 times")
    await innocent(store, ledger, Good.__relevo__.kind, GOOD)
    [job] = await store.find([pill.id])
    assert job is not None
    kinds = [run.failure.type for run in job.history if run.failure]
    assert kinds.count("HostLost") == EXCUSES


@pytest.mark.parametrize("store_name", short_on("redis"))
@pytest.mark.parametrize(
    ("verb", "when", "runs"), [("isolate", "after", 1), ("settle", "before", 2)]
)
async def test_f55_a_death_just_before_or_after_a_run_alone_counts_no_crash(
    store: Store, ledger: Ledger, tmp_path: Path, verb: str, when: str, runs: int
) -> None:
    relevo = Relevo(store, apps=[apps.app(ledger)])
    id = (await relevo.enqueue(Good(1), attempts=1)).id
    [lease] = (await store.claim([Want(queue=Good.__relevo__.queue)], 1, "gone", 60_000)).leases
    how = Ending(lease=lease, state=State.SCHEDULED, spend=False, suspicion=Suspicion.ALONE)
    assert await store.settle([how]) == [True]
    # While workers of the test before this one are known to have stopped here, none runs a suspect
    # alone: it gives it back first, and dies of that.
    with Presence("test", store.url) as presence:
        await until(lambda: presence.is_quiet(id))
    with Fleet(store.dsn, ledger, tmp_path, lease=LEASE) as fleet:
        [doomed] = fleet.hire(fault={"only": verb, "at": 1, "when": when})
        await asyncio.to_thread(fleet.bury, doomed)
        [job] = await store.find([id])
        assert job is not None
        assert (job.state, job.crashes) == (State.RUNNING, 1)
        fleet.hire()
        await supervised(store, fleet)
    await relevo.rest()

    [job] = await store.find([id])
    assert job is not None
    assert (job.state, job.attempt) == (State.DONE, 1)
    assert ledger.counts("start") == {1: runs}
    assert ledger.counts("effect") == {1: 1}


@pytest.mark.parametrize("store_name", short_on())
async def test_f55_two_at_once_are_both_found(store: Store, ledger: Ledger, tmp_path: Path) -> None:
    relevo = Relevo(store, apps=[apps.app(ledger)])
    receipts = await relevo.enqueue_many([Pill(-1, "kill"), Pill(-2, "exit")])
    await relevo.enqueue_many(Good(number) for number in range(GOOD))
    with Fleet(store.dsn, ledger, tmp_path, lease=LEASE, concurrency=100) as fleet:
        fleet.hire(WORKERS)
        await supervised(store, fleet)
    await relevo.rest()

    ids = [receipt.id for receipt in receipts]
    await guilty(store, ids, "it crashed its worker 3 times")
    await innocent(store, ledger, Good.__relevo__.kind, GOOD)


@pytest.mark.parametrize("store_name", short_on("postgres"))
async def test_f55_one_in_an_ordered_lane_holds_up_its_own_lane_only(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    relevo = Relevo(store, apps=[apps.app(ledger)])
    await relevo.enqueue_many(Guest("ana", number) for number in range(5))
    [pill] = await relevo.enqueue_many([Guest("ana", -1, "kill")])
    await relevo.enqueue_many(Guest("ana", number) for number in range(5, 10))
    await relevo.enqueue_many(Guest("bo", number) for number in range(10, 50))
    with Fleet(store.dsn, ledger, tmp_path, lease=LEASE, concurrency=100) as fleet:
        fleet.hire(WORKERS)
        await supervised(store, fleet)
    await relevo.rest()

    await guilty(store, [pill.id], "it crashed its worker 3 times")
    ends = [fact.number for fact in ledger.facts("effect")]
    assert [number for number in ends if number < 10] == list(range(10))
    assert sorted(ends) == list(range(50))


@pytest.mark.parametrize("store_name", short_on("sqlite"))
async def test_f55_one_inside_a_flow_ends_its_flow_as_a_dead_child_does(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    relevo = Relevo(store, apps=[apps.app(ledger)])
    flow = Flow("pieces")
    pieces = [flow.add(Piece(number, 20), name=f"piece-{number}") for number in range(20)]
    bad = flow.add(Pill(-1, "segv"), name="bad")
    flow.add(Whole(100), name="whole", after=[*pieces, bad])
    await relevo.start(flow)
    with Fleet(store.dsn, ledger, tmp_path, lease=LEASE, concurrency=100) as fleet:
        fleet.hire(WORKERS)
        await supervised(store, fleet)
    await relevo.rest()

    pieces_ended = Counter(job.state for job in await all_of(store, Piece.__relevo__.kind))
    assert pieces_ended == {State.DONE: 20}
    [pill] = await all_of(store, Pill.__relevo__.kind)
    await guilty(store, [pill.id], "it crashed its worker 3 times")
    [parent] = await all_of(store, Whole.__relevo__.kind)
    assert parent.state is State.DEAD
    assert set(ledger.counts("effect").values()) == {1}
    assert len(ledger.counts("effect")) == 20


@pytest.mark.soak
async def test_f55_a_deploy_that_kills_all_workers_five_times_in_a_minute_ends_no_job(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    relevo = Relevo(store, apps=[apps.app(ledger)])
    long = await relevo.enqueue(Nap(-1, 60_000), attempts=3)
    receipts = await relevo.enqueue_many(Good(number, 500) for number in range(GOOD * 4))
    with Fleet(store.dsn, ledger, tmp_path, lease=LEASE, concurrency=20) as fleet:
        fleet.hire(WORKERS)
        for _ in range(5):
            await asyncio.sleep(random.uniform(8, 12))
            for member in list(fleet.members):
                fleet.kill(member)
            fleet.hire(WORKERS)
        await supervised(store, fleet, within=180)
    await relevo.rest()

    jobs = [
        job
        for at in range(0, len(receipts), 500)
        for job in await store.find([one.id for one in receipts[at : at + 500]])
    ]
    assert Counter(job.state for job in jobs if job) == {State.DONE: GOOD * 4}
    assert {job.attempt for job in jobs if job} == {1}
    begun = {fact.number for fact in ledger.facts("start")}
    assert begun == {*range(GOOD * 4), -1}
    starts = ledger.counts("start")
    for number, job in enumerate(jobs):
        assert job is not None
        assert len(job.history) <= starts[number], "a run in the history that did not happen"
    [napped] = await store.find([long.id])
    assert napped is not None
    assert (napped.state, napped.attempt) == (State.DONE, 1)


@pytest.mark.parametrize("store_name", short_on("postgres"))
async def test_f56_a_job_that_blocks_the_event_loop_for_ever_ends_dead_alone(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    relevo = Relevo(store, apps=[apps.app(ledger)])
    await relevo.enqueue_many(Good(number) for number in range(150))
    [pill] = await relevo.enqueue_many([Pill(-1, "block")])
    await relevo.enqueue_many(Good(number) for number in range(150, 300))
    orders = {"lease": LEASE, "concurrency": 100, "on_blocked": "exit"}
    with Fleet(store.dsn, ledger, tmp_path, **orders) as fleet:
        fleet.hire(5)
        await supervised(store, fleet, 4, 90)
        codes = {member.process.poll() for member in fleet.killed}
    await relevo.rest()

    assert len(fleet.killed) <= 6
    assert codes == {75}
    await guilty(store, [pill.id], "it blocked its worker's event loop 3 times")
    await innocent(store, ledger, Good.__relevo__.kind, 300)


@pytest.mark.soak
@pytest.mark.parametrize("store_name", [one for one in STORES if one.id == "sqlite"])
async def test_f56_relevo_work_begins_anew_by_itself(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    """In the same process, with its own command line."""
    relevo = Relevo(store, apps=[apps.app(ledger)])
    pill = await relevo.enqueue(Pill(-1, "block"), attempts=1)
    await relevo.enqueue_many(Good(number) for number in range(50))
    with Fleet(store.dsn, ledger, tmp_path) as fleet:
        program = ("work", "--app", "tests.faults.program:app", "--queue", Pill.__relevo__.queue)
        member = fleet.hire_program(*program, RELEVO_LEASE=LEASE)
        await supervised(store, fleet)
        pid, said = member.pid, member.said()
        assert not fleet.killed
    await relevo.rest()

    assert said.count("serving") == 3
    assert {fact.pid for fact in ledger.facts("start")} == {pid}
    await innocent(store, ledger, Good.__relevo__.kind, 50)
    [job] = await store.find([pill.id])
    assert job is not None
    assert job.failure is not None
    assert job.failure.message.startswith("it blocked its worker's event loop once")
