"""A job that takes the whole host with it: the deaths of the others excuse it a few times only."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from relevo import App, Command, Relevo
from relevo.ids import new_id
from relevo.job import Attempt, Ending, Job, Lease, State, Suspicion
from relevo.keeper import EXCUSES
from relevo.presence import Presence
from relevo.store import Store, Want
from relevo.testing import until, working
from tests.conformance.fresh import STORES

FORKS = multiprocessing.get_context("fork")
ONE_STORE = pytest.mark.parametrize("store_name", [one for one in STORES if one.id == "sqlite"])
QUEUE = "test:excuses:eat"
MINUTE = 60_000


class Eat(Command, queue=QUEUE, attempts=2):
    """A job that takes all the memory of its host."""


class Other(Command, queue="test:excuses:other"):
    """What the worker serves that sees the others die."""


@pytest.fixture
def folder(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deaths are together within 0.5 s, so that what is one after the other is soon apart."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("relevo.presence.TOGETHER", 0.5)
    monkeypatch.setattr("relevo.keeper.NEIGHBOURS_EVERY", 0.05)


def living(name: str, store: str, job: str = "", *, is_stopping: bool = False) -> int:
    """A worker process that runs this job alone, or none, and waits to be killed; its pid."""
    ready = FORKS.Event()

    def live() -> None:
        with Presence(name, store, 1) as presence:
            presence.slot(0)[: len(job)] = job.encode()
            presence.set_alone(bool(job))
            if is_stopping:
                presence.stopping()
            ready.set()
            time.sleep(60)

    process = FORKS.Process(target=live, daemon=True)
    process.start()
    assert ready.wait(10)
    assert process.pid is not None
    return process.pid


async def claimed(store: Store, name: str) -> Lease:
    """The lease of the suspect, whose crash is counted before it runs."""
    [lease] = (await store.claim([Want(queue=QUEUE)], 1, name, MINUTE)).leases
    assert await store.isolate([lease]) == [True]
    return lease


async def after_death(store: Store, id: str, *, with_others: bool, is_stopping: bool) -> Job:
    """Let the process that runs the suspect die, alone or with another of its host."""
    name = f"victim-{new_id()}"
    lease = await claimed(store, name)
    pids = [living(name, store.url, id, is_stopping=is_stopping)]
    if with_others:
        pids.append(living(f"other-{new_id()}", store.url))
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        os.waitpid(pid, 0)

    async def is_back() -> bool:
        [job] = await store.find([id])
        return job is not None and job.state is State.READY

    await until(is_back)
    [job] = await store.find([id])
    assert job is not None
    assert job.crashes - lease.crashes in (0, 1)
    return job


def kinds(history: tuple[Attempt, ...]) -> list[str]:
    return [run.failure.type for run in history if run.failure]


@pytest.mark.usefixtures("folder")
async def test_deaths_with_others_excuse_a_job_a_few_times(store: Store) -> None:
    relevo = Relevo(store, apps=[_app()])
    id = (await relevo.enqueue(Eat())).id
    crashes: list[int] = []
    async with working(relevo, queues=[Other.__relevo__.queue]):
        for _ in range(EXCUSES + 2):
            job = await after_death(store, id, with_others=True, is_stopping=False)
            crashes.append(job.crashes)

    assert crashes == [0] * EXCUSES + [1, 2]
    assert kinds(job.history) == ["HostLost"] * EXCUSES + ["WorkerCrashed"] * 2
    assert job.suspicion == Suspicion.ALONE
    [lease] = (await store.claim([Want(queue=QUEUE)], 1, "w", MINUTE)).leases
    assert lease.crashes == lease.attempts, "the next worker that claims it ends it"


@ONE_STORE
@pytest.mark.usefixtures("folder")
async def test_a_run_that_ends_makes_the_excuses_anew(store: Store) -> None:
    relevo = Relevo(store, apps=[_app()])
    id = (await relevo.enqueue(Eat())).id
    async with working(relevo, queues=[Other.__relevo__.queue]):
        for _ in range(EXCUSES):
            await after_death(store, id, with_others=True, is_stopping=False)
        lease = await claimed(store, "w")
        assert await store.settle([Ending(lease=lease, state=State.SCHEDULED)]) == [True]
        job = await after_death(store, id, with_others=True, is_stopping=False)

    assert job.crashes == 0


@ONE_STORE
@pytest.mark.usefixtures("folder")
async def test_the_death_of_a_process_that_was_told_to_stop_never_counts(store: Store) -> None:
    relevo = Relevo(store, apps=[_app()])
    id = (await relevo.enqueue(Eat())).id
    async with working(relevo, queues=[Other.__relevo__.queue]):
        for _ in range(EXCUSES + 1):
            job = await after_death(store, id, with_others=False, is_stopping=True)

    assert job.crashes == 0
    assert kinds(job.history) == ["WorkerLost"] * (EXCUSES + 1)


def _app() -> App:
    async def eat(order: Eat) -> None:
        raise AssertionError("the worker of the test serves another queue")

    async def other(order: Other) -> None:
        pass

    return App("test", workers=[eat, other])
