"""Plain functions, whose threads cannot be stopped: each of their calls is made once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest

from relevo import Relevo
from relevo.job import Job, State
from relevo.store import Filter, Store
from relevo.testing import until
from tests.faults import apps
from tests.faults.apps import Good, Nap, Parcel, Resize
from tests.faults.conftest import short_on
from tests.faults.fleet import Fleet
from tests.faults.ledger import Ledger
from tests.faults.verdict import OPEN, whole


def mostly_long(short: str) -> pytest.MarkDecorator:
    """Every store; all but one of them in long forms."""
    return pytest.mark.parametrize("store_name", short_on(short))


def once_each(ledger: Ledger, count: int) -> None:
    effects = ledger.counts("effect")
    doubled = {number: many for number, many in effects.items() if many > 1}
    ledger.verdict = count - len(effects), len(doubled)
    assert (count - len(effects), doubled) == (0, {})


def is_dead(pid: int) -> bool:
    """Whether a process is gone, or only waits to be reaped."""
    try:
        said = Path(f"/proc/{pid}/stat").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return True
    return said.rpartition(")")[2].split()[0] == "Z"


async def found(store: Store, id: str) -> Job:
    [job] = await store.find([id])
    assert job is not None
    return job


async def all_ended(store: Store) -> bool:
    return not await store.count(Filter(states=OPEN), most=1)


@mostly_long("sqlite")
async def test_f66_a_deploy_waits_for_plain_functions_and_hands_async_ones_back(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    relevo = Relevo(store, apps=[apps.app(ledger)])
    parcels = [await relevo.enqueue(Parcel(number, 4_500)) for number in range(3)]
    nap = await relevo.enqueue(Nap(-1, 5_000))
    with Fleet(store.dsn, ledger, tmp_path, lease="2s", grace="2s") as fleet:
        [old] = fleet.hire()
        await until(lambda: len(ledger.counts("start")) == 4, timeout="20s")
        [new] = fleet.hire()
        await until(lambda: new.is_working, timeout="20s")
        stopped = time.monotonic()
        old.terminate()
        await until(lambda: ledger.counts("start")[-1] == 2, timeout="10s")
        assert time.monotonic() - stopped < 5, "2 s of grace, and 2 s to hand it back"
        assert old.is_alive
        await until(lambda: not old.is_alive, timeout="20s")
        assert "stopping: waits for plain functions" in old.said()
        await until(lambda: all_ended(store), timeout="20s")
        fleet.members.remove(old)
        assert old.wait(1) == 0
    await relevo.rest()

    once_each(ledger, 3)
    for parcel in parcels:
        job = await found(store, parcel.id)
        assert [run.outcome for run in job.history] == ["done"]
    assert (await found(store, nap.id)).attempt == 1
    whole(store)


@mostly_long("postgres")
async def test_f66_one_that_is_killed_after_all_is_a_suspect_and_its_call_is_looked_up(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    relevo = Relevo(store, apps=[apps.app(ledger)])
    parcel = await relevo.enqueue(Parcel(1, 30_000, is_once=True))
    with Fleet(store.dsn, ledger, tmp_path, lease="2s", grace="500ms") as fleet:
        [old] = fleet.hire()
        await until(lambda: bool(ledger.counts("effect")), timeout="20s")
        old.terminate()
        await until(lambda: "stopping: waits for plain functions" in old.said())
        fleet.hire()
        fleet.kill(old)
        await until(lambda: all_ended(store), timeout="20s")
    await relevo.rest()

    once_each(ledger, 1)
    job = await found(store, parcel.id)
    assert (job.state, job.attempt) == (State.DONE, 1)
    lost = job.history[0].failure
    assert lost is not None
    assert lost.type == "WorkerLost"


@mostly_long("redis")
async def test_f67_a_call_that_takes_longer_than_the_limit_is_made_once(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    relevo = Relevo(store, apps=[apps.app(ledger)])
    parcel = await relevo.enqueue(Parcel(1, 5_000), timeout="2s")

    async def overdue() -> bool:
        return [parcel.id] in [each.overdue for each in await store.workers()]

    with Fleet(store.dsn, ledger, tmp_path, lease="2s") as fleet:
        fleet.hire(2)
        await until(overdue, timeout="20s")
        await until(lambda: all_ended(store), timeout="20s")
        assert "a plain function runs past its time limit" in fleet.said()
    await relevo.rest()

    once_each(ledger, 1)
    job = await found(store, parcel.id)
    assert [run.outcome for run in job.history] == ["done"]


@mostly_long("")
async def test_f67_one_that_never_ends_costs_its_process_and_no_other_job(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    """Its attempts are spent, one by one; every neighbour ends where it runs, or elsewhere."""
    relevo = Relevo(store, apps=[apps.app(ledger)])
    stuck = await relevo.enqueue(Parcel(-1, 3_600_000, is_once=True), timeout="1s", attempts=2)
    await relevo.enqueue_many(Parcel(number, 1_500) for number in range(5))
    await relevo.enqueue_many(Good(number, 500) for number in range(5, 45))
    codes: list[int | None] = []
    with Fleet(store.dsn, ledger, tmp_path, lease="2s", grace="1s", on_blocked="exit") as fleet:
        fleet.hire(2)
        deadline = time.monotonic() + 60
        while not await all_ended(store):
            fleet.supervise()
            assert time.monotonic() < deadline, fleet.said()[-3_000:]
            await asyncio.sleep(0.1)
        codes = [member.process.poll() for member in fleet.killed]
    await relevo.rest()

    assert set(codes) == {76}
    ledger.verdict = 0, 0
    effects = ledger.counts("effect")
    assert {number: effects[number] for number in range(45)} == dict.fromkeys(range(45), 1)
    job = await found(store, stuck.id)
    assert Counter(run.outcome for run in job.history) in (
        Counter(retry=1, done=1),  # its call was looked up by the second run, and found
        Counter(retry=1, dead=1),
    )
    failure = job.history[0].failure
    assert failure is not None
    assert failure.type == "TimeoutError"
    assert "past its time limit of 1 s, and its process was ended" in failure.message
    assert effects[-1] == 1


@mostly_long("postgres")
async def test_f68_a_loop_in_c_a_crash_and_too_much_memory_cost_their_own_job(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    """Killed at the limit; the worker processes live, and the neighbours are unharmed."""
    relevo = Relevo(store, apps=[apps.app(ledger)])
    wrong = {
        "loop": ("TimeoutError", "past its time limit of 3 s, and its child process was killed"),
        "segv": ("WorkerCrashed", "its child process died: SIGSEGV"),
        "exit": ("WorkerCrashed", "its child process died: exit code 1"),
        "memory": ("MemoryError", ""),
    }
    path = str(ledger.path)
    bad = {kind: await relevo.enqueue(Resize(-1, path, kind)) for kind in wrong}
    await relevo.enqueue_many(Resize(number, path) for number in range(6))
    await relevo.enqueue_many(Good(number) for number in range(6, 40))
    with Fleet(store.dsn, ledger, tmp_path, lease="2s", concurrency=4) as fleet:
        fleet.hire(2)
        await until(lambda: all_ended(store), timeout="60s")
        fleet.check()
    await relevo.rest()

    once_each(ledger, 40)
    for kind, (name, said) in wrong.items():
        job = await found(store, bad[kind].id)
        assert (job.state, job.attempt, job.crashes) == (State.DEAD, 2, 0), kind
        assert job.failure is not None
        assert job.failure.type == name
        assert said in job.failure.message
    whole(store)


@mostly_long("redis")
async def test_f68_a_child_dies_with_its_worker_and_its_call_is_looked_up(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    relevo = Relevo(store, apps=[apps.app(ledger)])
    order = Resize(1, str(ledger.path), ms=50_000)
    receipt = await relevo.enqueue(order, timeout="60s")
    with Fleet(store.dsn, ledger, tmp_path, lease="2s") as fleet:
        [first] = fleet.hire()
        await until(lambda: bool(ledger.facts("effect")), timeout="20s")
        [effect] = ledger.facts("effect")
        assert effect.pid != first.pid
        fleet.hire()
        fleet.kill(first)
        await until(lambda: is_dead(effect.pid), timeout="5s")
        await until(lambda: all_ended(store), timeout="20s")
    await relevo.rest()

    once_each(ledger, 1)
    job = await found(store, receipt.id)
    assert (job.state, job.result) == (State.DONE, b'"IMAGE-1"')


@mostly_long("")
async def test_f68_a_deploy_waits_for_what_runs_in_a_child(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    relevo = Relevo(store, apps=[apps.app(ledger)])
    order = Resize(1, str(ledger.path), ms=4_000)
    receipt = await relevo.enqueue(order, timeout="20s")
    with Fleet(store.dsn, ledger, tmp_path, lease="2s", grace="500ms") as fleet:
        [old] = fleet.hire()
        await until(lambda: bool(ledger.facts("effect")), timeout="20s")
        fleet.hire()
        old.terminate()
        await until(lambda: all_ended(store), timeout="20s")
        await until(lambda: not old.is_alive)
        fleet.members.remove(old)
        assert old.wait(1) == 0
    await relevo.rest()

    once_each(ledger, 1)
    job = await found(store, receipt.id)
    assert [run.outcome for run in job.history] == ["done"]
