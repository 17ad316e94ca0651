"""Measuring fairly: every sample in a process of its own, turn and turn about, under a watchdog."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from msgspec import Struct

T = TypeVar("T")


class TooSlow(Exception):
    """A sample did not end in time and was killed."""


class Child:
    """A function in a process of its own; it gets a pipe first, and its return value is sent.

    The process imports the function's module and nothing else, so that its memory is its own.
    """

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._name = f"{function.__module__}.{function.__qualname__}"
        self._pipe, theirs = multiprocessing.Pipe()
        command = [sys.executable, "-m", "bench.child", str(theirs.fileno())]
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )
        theirs.close()
        self._pipe.send((function.__module__, function.__qualname__, args))

    def send(self, value: Any) -> None:
        self._pipe.send(value)

    def has_news(self, timeout: float) -> bool:
        return self._pipe.poll(timeout)

    def receive(self, timeout: float) -> Any:
        """What it says next; TooSlow, and it is killed, when it says nothing in time."""
        try:
            if not self._pipe.poll(timeout):
                raise TooSlow(f"{self._name} said nothing for {timeout:.0f} s")
            value, error = self._pipe.recv()
        except (TooSlow, EOFError) as failure:
            self.kill()
            if isinstance(failure, EOFError):
                raise RuntimeError(f"{self._name} died") from failure
            raise
        if error:
            self.kill()
            raise RuntimeError(error)
        return value

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._pipe.close()


class Pipe:
    """The child's end."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def say(self, value: Any) -> None:
        self._connection.send((value, None))

    async def hear(self) -> Any:
        return await asyncio.to_thread(self._connection.recv)


def run(work: Coroutine[Any, Any, T]) -> T:
    """As `relevo work` runs: on uvloop where it is installed."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.run(work)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


def apart(function: Callable[..., Any], *args: Any, timeout: float = 120.0) -> Any:
    """What a function answers in a process of its own."""
    child = Child(function, *args)
    try:
        return child.receive(timeout)
    finally:
        child.kill()


def in_turns(rounds: int, *samples: Callable[[], T]) -> list[list[T]]:
    """Each sample `rounds` times, one after the other, so that a noisy minute hits all of them."""
    taken: list[list[T]] = [[] for _ in samples]
    for _ in range(rounds):
        for place, sample in enumerate(samples):
            taken[place].append(sample())
    return taken


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def memory(name: Literal["VmRSS", "VmHWM"] = "VmRSS") -> float:
    """This process's memory in MB, now or at its highest."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith(name))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)


class Speed(NamedTuple):
    """Jobs a second, and what each cost this process in microseconds of CPU.

    The second is worth more on a busy machine: it does not count the waiting for a turn.
    """

    rate: float
    cpu: float


class Stopwatch:
    """Runs from when it is made."""

    def __init__(self) -> None:
        self._began, self._cpu = time.perf_counter(), cpu_seconds()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    def speed(self, jobs: int) -> Speed:
        return Speed(jobs / self.seconds, (cpu_seconds() - self._cpu) / jobs * 1e6)


class Aim(Struct, frozen=True):
    """What a row should reach: its figure, or its ratio, at least or at most so much."""

    what: Literal["figure", "ratio"]
    sign: Literal[">=", "<="]
    value: float

    def __str__(self) -> str:
        sign = "≥" if self.sign == ">=" else "≤"
        return f"{sign} {self.value:g}{'×' if self.what == 'ratio' else ''}"


class Row(Struct, kw_only=True):
    """One line of the table: our figure, what it is held against, and the ratio."""

    section: str
    name: str
    unit: str
    ours: list[float]
    other: list[float] = []
    against: str = ""
    cpu: list[float] = []  # microseconds a job in our process, and in the other
    other_cpu: list[float] = []
    aim: Aim | None = None
    note: str = ""

    @property
    def figure(self) -> float:
        return statistics.median(self.ours)

    @property
    def reference(self) -> float | None:
        return statistics.median(self.other) if self.other else None

    @property
    def ratio(self) -> float | None:
        return self.figure / self.reference if self.reference else None

    @property
    def is_met(self) -> bool | None:
        """Whether the aim is reached; None when there is none."""
        value = self.figure if self.aim and self.aim.what == "figure" else self.ratio
        if self.aim is None or value is None:
            return None
        return value >= self.aim.value if self.aim.sign == ">=" else value <= self.aim.value


def load() -> float:
    """How busy the machine was in the last minute, in processes."""
    return os.getloadavg()[0]
