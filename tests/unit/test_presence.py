"""Presence: a process's file tells its neighbours what it was running when it died."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from relevo.ids import new_id
from relevo.presence import TOGETHER, Presence
from relevo.testing import until

FORKS = multiprocessing.get_context("fork")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return "sqlite:///presence.db"


def living(name: str, store: str, running: list[str], *, alone: bool = False) -> int:
    """A process that is present, runs these jobs, and waits to be killed; answers its pid."""
    ready = FORKS.Event()

    def live() -> None:
        with Presence(name, store, 4) as presence:
            for number, job in enumerate(running):
                presence.slot(number)[:] = job.encode()
            presence.set_alone(alone)
            ready.set()
            time.sleep(60)

    process = FORKS.Process(target=live, daemon=True)
    process.start()
    assert ready.wait(10)
    assert process.pid is not None
    return process.pid


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_a_killed_process_has_said_what_it_was_running(store: str) -> None:
    jobs = [new_id(), new_id()]
    pid = living("victim", store, jobs)
    with Presence("me", store, 1) as me:
        assert me.departed() == []
        kill(pid)

        [gone] = me.departed()
        assert (gone.worker, gone.running, gone.was_alone) == ("victim", tuple(jobs), False)
        assert [each.worker for each in me.departed()] == ["victim"], "until it is buried"
        me.bury("victim")
        assert me.departed() == []


def test_what_has_ended_is_not_running(store: str) -> None:
    ended, running = new_id(), new_id()
    ready = FORKS.Event()

    def live() -> None:
        with Presence("victim", store, 2) as presence:
            for number, job in enumerate((ended, running)):
                presence.slot(number)[:] = job.encode()
            presence.slot(0)[0] = 0
            ready.set()
            time.sleep(60)

    process = FORKS.Process(target=live, daemon=True)
    process.start()
    assert ready.wait(10)
    assert process.pid is not None
    with Presence("me", store) as me:
        kill(process.pid)
        [gone] = me.departed()

    assert gone.running == (running,)


def test_a_job_whose_crash_was_counted_is_known_though_it_does_not_run(store: str) -> None:
    job, ready = new_id(), FORKS.Event()

    def live() -> None:
        with Presence("victim", store, 2) as presence:
            presence.set_counted(job)
            ready.set()
            time.sleep(60)

    process = FORKS.Process(target=live, daemon=True)
    process.start()
    assert ready.wait(10)
    assert process.pid is not None
    with Presence("me", store) as me:
        kill(process.pid)
        [gone] = me.departed()

    assert (gone.running, gone.counted) == ((), job)


def test_a_single_death_has_no_other_cause(store: str) -> None:
    pid = living("victim", store, [new_id()], alone=True)
    with Presence("me", store) as me:
        kill(pid)
        [gone] = me.departed()

        assert gone.was_alone
        assert not me.has_other_cause(gone)
        assert not me.is_decided(gone), "another death within 2 s may still be found"


@pytest.mark.parametrize("is_buried", [False, True])
def test_two_deaths_together_explain_each_other(store: str, is_buried: bool) -> None:
    first, second = living("a", store, []), living("b", store, [])
    with Presence("me", store) as me:
        kill(first)
        kill(second)
        gone = {each.worker: each for each in me.departed()}
        if is_buried:
            me.bury("a")

        assert me.has_other_cause(gone["b"])


def test_a_death_beside_an_order_to_stop_is_not_blamed_on_its_job(store: str) -> None:
    pid = living("victim", store, [new_id()], alone=True)
    with Presence("me", store) as me, Presence("other", store) as other:
        other.stopping()
        kill(pid)
        [gone] = me.departed()

        assert me.has_other_cause(gone)


def test_one_process_of_a_host_runs_a_dangerous_job_at_a_time(store: str) -> None:
    with Presence("me", store) as me, Presence("other", store) as other:
        lock = me.lone_on_host()
        assert lock is not None
        assert other.lone_on_host() is None
        me.let_go(lock)
        lock = other.lone_on_host()
        assert lock is not None
        other.let_go(lock)


async def test_after_a_death_it_is_quiet_once_another_would_have_no_other_cause(store: str) -> None:
    own, other = new_id(), new_id()
    pid = living("victim", store, [own])
    with Presence("me", store) as me:
        assert me.is_quiet(other)
        kill(pid)
        began = time.monotonic()
        assert not me.is_quiet(other)
        assert me.is_quiet(own), "the death of a process that ran the job itself excuses nothing"

        await until(lambda: me.is_quiet(other))
        assert time.monotonic() - began >= TOGETHER


def test_the_deaths_of_a_jobs_own_processes_do_not_excuse_each_other(store: str) -> None:
    job = new_id()
    first = living("a", store, [new_id(), job])
    second = living("b", store, [job], alone=True)
    with Presence("me", store) as me:
        kill(first)
        kill(second)
        gone = {each.worker: each for each in me.departed()}

        assert not me.has_other_cause(gone["b"])
        assert me.has_other_cause(gone["a"]), "it was not alone, so any death may be the cause"


def test_a_file_of_a_version_before_says_nothing_of_its_jobs(store: str) -> None:
    with Presence("me", store, 1) as me:
        me._file.with_name("older").touch()

        [gone] = me.departed()
        assert (gone.worker, gone.running, gone.was_alone) == ("older", (), False)


def test_a_folder_that_was_tidied_away_leaves_a_lock_to_be_had(store: str, tmp_path: Path) -> None:
    with Presence("me", store, 1) as me:
        for file in [*me._directory.iterdir()]:  # pyright: ignore[reportPrivateUsage]
            file.unlink()
        me._directory.rmdir()  # pyright: ignore[reportPrivateUsage]

        lock = me.lone_on_host()
        assert lock is not None
        me.let_go(lock)
        me.stopping()


def test_a_moment_that_lies_ahead_disturbs_no_quiet(store: str) -> None:
    """The clock was set back after a worker had been told to stop."""
    with Presence("me", store, 1) as me:
        me.stopping()
        assert not me.is_quiet(new_id())
        ahead = time.time() + 3_600
        [stopped] = me._directory.glob(".stopped")  # pyright: ignore[reportPrivateUsage]
        os.utime(stopped, (ahead, ahead))
        assert me.is_quiet(new_id())


def test_the_place_for_what_it_runs_is_taken_at_once(store: str) -> None:
    """On a full disk it does not start; a hole in its file would kill it at its first job."""
    with Presence("me", store, 1_000) as me:
        found = me._file.stat()  # pyright: ignore[reportPrivateUsage]
        assert found.st_blocks * 512 >= found.st_size


def test_a_child_that_outlives_its_process_holds_none_of_its_locks(store: str) -> None:
    says, hears = os.pipe()
    pid = os.fork()
    if pid == 0:
        with Presence("victim", store, 1) as presence:
            presence.lone_on_host()
            if os.fork() == 0:
                os.write(hears, b"%d" % os.getpid())  # it has begun, and let them go
            time.sleep(60)
            os._exit(0)
    child = int(os.read(says, 20))
    try:
        with Presence("me", store, 1) as me:
            kill(pid)
            assert [gone.worker for gone in me.departed()] == ["victim"]
            lock = me.lone_on_host()
            assert lock is not None
            me.let_go(lock)
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(says)
        os.close(hears)
