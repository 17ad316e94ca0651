"""A fleet of worker processes that are killed, stopped, paused and replaced.

Each is forked from one that has imported everything, works until SIGTERM, and writes its log to
standard error, which the fleet keeps in a file. `relevo` itself is started from nothing.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.faults.ledger import Ledger

HOME = Path(__file__).parents[2]

NURSERY = multiprocessing.get_context("forkserver")
NURSERY.set_forkserver_preload(["__main__", "tests.faults.nursery"])


class Forked:
    """A process forked by the nursery, with the words of Popen."""

    def __init__(self, orders: dict[str, Any], log: Path) -> None:
        self._process = NURSERY.Process(target=_main, args=(orders, str(log)), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a worker", timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self._process.exitcode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class Member:
    """One process of the fleet."""

    def __init__(self, process: Forked | subprocess.Popen[bytes], log: Path) -> None:
        self.log = log
        self.killed_at: float | None = None
        self.process = process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    @property
    def is_working(self) -> bool:
        """Whether it has come up."""
        return "working" in self.said()

    def kill(self) -> float:
        """kill -9; answers when."""
        self.killed_at = time.monotonic()
        self.process.kill()
        self.process.wait()
        return self.killed_at

    def terminate(self) -> None:
        self.process.terminate()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def wait(self, timeout: float) -> int:
        return self.process.wait(timeout)

    def said(self) -> str:
        """Its log."""
        return self.log.read_text(errors="replace")

    def lines(self) -> list[dict[str, Any]]:
        """Its log, line by line; what is no JSON is left out."""
        return [json.loads(line) for line in self.said().splitlines() if line.startswith("{")]


class Fleet:
    """Workers on one store; leaving the block stops them politely and sees that none had died."""

    def __init__(self, store: str, ledger: Ledger, folder: Path, **orders: Any) -> None:
        self.ledger = ledger
        self._folder = folder
        self._orders: dict[str, Any] = {"store": store, "ledger": str(ledger.path), **orders}
        self.members: list[Member] = []
        self.killed: list[Member] = []
        self._hired = 0

    def hire(self, count: int = 1, **orders: Any) -> list[Member]:
        """Start workers; `orders` differ from the fleet's."""
        new = [Member(Forked(self._orders | orders, log), log) for log in self._logs(count)]
        self.members += new
        return new

    def hire_program(
        self, *words: str, pass_fds: tuple[int, ...] = (), **environment: str
    ) -> Member:
        """Start `relevo` itself with these words."""
        return self._hire([sys.executable, "-m", "relevo.cli", *words], environment, pass_fds)

    def hire_later(self, version: int, *words: str, **environment: str) -> Member:
        """Start the program of a version that is still to come."""
        command = [sys.executable, "-m", "tests.faults.later", str(version), *words]
        return self._hire(command, environment, ())

    def hire_shell(self, script: str, pass_fds: tuple[int, ...] = (), **environment: str) -> Member:
        """Start `relevo` by a line of shell, `$relevo` being the program."""
        program = f"{sys.executable} -m relevo.cli"
        return self._hire(["sh", "-c", script], {"relevo": program, **environment}, pass_fds)

    def _hire(
        self, command: list[str], environment: dict[str, str], pass_fds: tuple[int, ...]
    ) -> Member:
        settings = {
            "RELEVO_STORE_URL": self._orders["store"],
            "RELEVO_LOG_FORMAT": "json",
            "FAULT_LEDGER": self._orders["ledger"],
        }
        if self._orders.get("database"):
            settings["RELEVO_DATABASE_URL"] = self._orders["database"]
        [log] = self._logs(1)
        with log.open("ab") as lines:
            process = subprocess.Popen(
                command, cwd=HOME, env=os.environ | settings | environment,
                stdin=subprocess.DEVNULL, stdout=lines, stderr=lines, start_new_session=True,
                pass_fds=pass_fds,
            )  # fmt: skip
        member = Member(process, log)
        self.members.append(member)
        return member

    def _logs(self, count: int) -> list[Path]:
        """Files for the logs of the next ones."""
        self._hired += count
        numbers = range(self._hired - count, self._hired)
        logs = [self._folder / f"worker-{number}.log" for number in numbers]
        for log in logs:
            log.touch()
        return logs

    def bury(self, member: Member, timeout: float = 20) -> None:
        """Wait for one that kills itself, and strike it off."""
        assert member.wait(timeout) == -signal.SIGKILL, member.said()
        self.members.remove(member)
        self.killed.append(member)

    def kill(self, member: Member) -> float:
        """kill -9 one and strike it off; answers when."""
        self.members.remove(member)
        self.killed.append(member)
        return member.kill()

    def said(self) -> str:
        return "\n".join(member.said() for member in (*self.killed, *self.members))

    def working(self, *, but: Member) -> bool:
        """Whether somebody else than this one has said so."""
        return any(one.is_working for one in self.members if one is not but)

    def wait_for(self, count: int = 1, timeout: float = 20) -> None:
        """Wait until so many have said that they are working."""
        deadline = time.monotonic() + timeout
        while sum(member.is_working for member in self.members) < count:
            self.check()
            assert time.monotonic() < deadline, f"no worker came up:\n{self.said()}"
            time.sleep(0.02)

    def check(self) -> None:
        """No process is dead that was not killed."""
        for member in self.members:
            assert member.is_alive, f"{member.pid} died by itself:\n{member.said()[-4_000:]}"

    def supervise(self, **orders: Any) -> int:
        """Replace the members that have died, as a supervisor does; how many there were."""
        dead = [member for member in self.members if not member.is_alive]
        for member in dead:
            self.members.remove(member)
            self.killed.append(member)
        self.hire(len(dead), **orders)
        return len(dead)

    def stop(self, timeout: float = 15) -> None:
        """Stop the rest politely; every one of them ends well."""
        for member in self.members:
            member.terminate()
        for member in self.members:
            code = member.wait(timeout)
            # One that had not even begun to listen for signals may end by this one.
            is_fine = code == 0 or "working" not in member.said()
            assert is_fine, f"{member.pid} ended with {code}:\n{member.said()[-4_000:]}"
        self.members.clear()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.check()
                self.stop()
        finally:
            for member in self.members:
                if member.is_alive:
                    member.kill()


def _main(orders: dict[str, Any], log: str) -> None:
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for stream in (1, 2):
        os.dup2(handle, stream)
    os.close(handle)
    os.setsid()
    os.chdir(HOME)
    threading.Thread(target=_die_with_test, daemon=True).start()
    if shift := orders.get("clock"):
        _shift_clock(shift)
    if limits := orders.get("limits"):
        _limit(limits)
    import asyncio

    asyncio.run(_work(orders))


def _die_with_test() -> None:
    """However the test's own process ends, nothing of it stays behind."""
    test = multiprocessing.parent_process()
    assert test is not None
    test.join()
    os.kill(os.getpid(), signal.SIGKILL)


def _shift_clock(seconds: float) -> None:
    """A wall clock that is wrong; what counts lengths of time, the kernel's own, stays right."""
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + seconds
    time.time_ns = lambda: now_ns() + round(seconds * 1e9)


def _limit(limits: dict[str, int]) -> None:
    import resource

    for name, value in limits.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))


async def _work(orders: dict[str, Any]) -> None:
    import asyncio

    from relevo.engine import Relevo
    from relevo.store import Store
    from relevo.stores import open_store
    from relevo.telemetry import log, start_logging
    from relevo.testing import FaultyStore
    from tests.faults import apps, later

    start_logging("info", "json")
    if version := orders.get("later"):
        later.become(version)
    store: Any = open_store(orders["store"])
    if fault := orders.get("fault"):
        only = fault.pop("only")  # the one verb whose calls are counted
        others = [name for name in dir(Store) if name != only]
        store = FaultyStore(store, die=True, ignore=others, **fault)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    app = apps.app(Ledger(orders["ledger"]), ticks=orders.get("ticks", False))
    async with Relevo(store, apps=[app], database=orders.get("database")) as relevo:
        log.info("working")
        await relevo.work(
            queues=orders.get("queues"),
            concurrency=orders.get("concurrency", 20),
            lease=orders.get("lease", "2s"),
            grace=orders.get("grace", "2s"),
            stop=stop,
            on_blocked=orders.get("on_blocked", "report"),
        )
