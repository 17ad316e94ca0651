"""F73: web processes are replaced under load, and no call hears of it."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from relevo.store import Filter, Store
from relevo.testing import until
from tests.faults.apps import Print
from tests.faults.door import PATH, SECRET
from tests.faults.fleet import Fleet, Member
from tests.faults.ledger import Ledger
from tests.matrix import Recorder
from tests.servers.ports import free_port

SERVE = ("serve", "--app", "tests.faults.door:app")
KEPT = 4
"""Callers that keep their connections, as a proxy does."""

SHORT, LONG = (1, 100), (6, 150)


class Callers:
    """Call at an even pace, each number once; a call without a 2xx is not made again."""

    def __init__(self, port: int, rate: int, kept: int = KEPT) -> None:
        self.port, self.rate, self.kept = port, rate, kept
        self.sent = 0
        self.is_over = False
        self.answers: Counter[str] = Counter()
        self.waited: list[tuple[float, float]] = []  # when a call began, and how long it took

    @property
    def answered(self) -> int:
        return self.answers["200"]

    async def run(self) -> None:
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for _ in range(self.kept):
                group.create_task(self._keep())
            while not self.is_over:
                await asyncio.sleep(max(0.0, began + self.sent / self.rate - time.monotonic()))
                group.create_task(self._once())

    async def _once(self) -> None:
        reader, writer = await self._connect()
        if reader is not None and writer is not None:
            await self._call(reader, writer, "close")
            writer.close()

    async def _keep(self) -> None:
        """Call again and again on one connection, and open another when it is said to close."""
        while not self.is_over:
            reader, writer = await self._connect()
            is_open = True
            while reader is not None and writer is not None and is_open and not self.is_over:
                is_open = await self._call(reader, writer, "keep-alive")
                await asyncio.sleep(0.02)
                is_open = is_open and not reader.at_eof()
            if writer is not None:
                writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader | None, asyncio.StreamWriter | None]:
        try:
            return await asyncio.open_connection("127.0.0.1", self.port)
        except OSError as error:
            self.answers[f"{type(error).__name__} at connect"] += 1
            return None, None

    async def _call(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: str
    ) -> bool:
        number, self.sent = self.sent, self.sent + 1
        body = b'{"number":%d}' % number
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        head += f"X-Secret: {SECRET}\r\nContent-Length: {len(body)}\r\n"
        head += f"Connection: {connection}\r\n\r\n"
        began = time.monotonic()
        try:
            async with asyncio.timeout(30):
                writer.write(head.encode() + body)
                told = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(told.partition("content-length: ")[2].partition("\r")[0])
                await reader.readexactly(length)
        except (OSError, EOFError) as error:  # a TimeoutError is an OSError
            self.answers[f"{type(error).__name__} after the call"] += 1
            return False
        self.answers[told.split()[1]] += 1
        self.waited.append((began, time.monotonic() - began))
        return "connection: close" not in told


@asynccontextmanager
async def passed() -> AsyncIterator[socket.socket]:
    """A bound socket, as a supervisor holds it while the processes come and go."""
    with socket.socket() as given:
        given.bind(("127.0.0.1", 0))
        given.listen(4_096)
        yield given


def by_number(fleet: Fleet, given: socket.socket, **environment: str) -> Member:
    number = str(given.fileno())
    return fleet.hire_program(*SERVE, "--fd", number, pass_fds=(given.fileno(),), **environment)


def as_systemd_does(fleet: Fleet, given: socket.socket) -> Member:
    number, words = given.fileno(), " ".join(SERVE)
    command = f"LISTEN_PID=$$ LISTEN_FDS=1 exec {sys.executable} -m relevo.cli {words}"
    # bash, since dash knows descriptors of one digit only.
    return fleet.hire_shell(f"exec bash -c '{command} 3<&{number}'", pass_fds=(number,))


async def up(member: Member) -> Member:
    """Wait until it serves."""
    await until(lambda: " at http://" in member.said(), timeout="30s", what=member.said())
    return member


@pytest.mark.parametrize("many", [SHORT, pytest.param(LONG, marks=pytest.mark.soak)])
@pytest.mark.parametrize("hire", [by_number, pytest.param(as_systemd_does, marks=pytest.mark.soak)])
@pytest.mark.parametrize("store_name", ["sqlite"])
async def test_f73_a_socket_outlives_the_processes_that_serve_it(
    store: Store,
    ledger: Ledger,
    tmp_path: Path,
    matrix: Recorder,
    hire: Callable[[Fleet, socket.socket], Member],
    many: tuple[int, int],
) -> None:
    """The one process ends before the next begins, and calls wait for it meanwhile."""
    deploys, rate = many
    with Fleet(store.dsn, ledger, tmp_path) as fleet:
        async with passed() as given:
            server = await up(hire(fleet, given))
            callers = Callers(given.getsockname()[1], rate)
            calling = asyncio.create_task(callers.run())
            for _ in range(deploys):
                before = callers.answered
                await until(lambda n=before: callers.answered > n + rate, timeout="30s")
                await gone(fleet, server)
                server = await up(hire(fleet, given))
            before = callers.answered
            await until(lambda: callers.answered > before + rate, timeout="30s")
            callers.is_over = True
            await calling
        await judged(store, callers, matrix, deploys)


@pytest.mark.parametrize("many", [SHORT, pytest.param(LONG, marks=pytest.mark.soak)])
@pytest.mark.parametrize("store_name", ["sqlite"])
async def test_f73_a_shared_port_is_left_to_the_next_process(
    store: Store, ledger: Ledger, tmp_path: Path, matrix: Recorder, many: tuple[int, int]
) -> None:
    """The next process begins, then the one before it ends."""
    deploys, rate = many
    port = free_port()
    words = (*SERVE, "--port", str(port), "--reuse-port")
    with Fleet(store.dsn, ledger, tmp_path) as fleet:
        server = await up(fleet.hire_program(*words))
        callers = Callers(port, rate)
        calling = asyncio.create_task(callers.run())
        for _ in range(deploys):
            following = await up(fleet.hire_program(*words))
            before = callers.answered
            await until(lambda n=before: callers.answered > n + rate, timeout="30s")
            await gone(fleet, server)
            server = following
        before = callers.answered
        await until(lambda: callers.answered > before + rate, timeout="30s")
        callers.is_over = True
        await calling
        await judged(store, callers, matrix, deploys)


@pytest.mark.parametrize(
    ("words", "app"),
    [(("serve", "--port", "0"), "tests.faults.door:app"), (("work",), "tests.faults.program:app")],
    ids=["serve", "work"],
)
@pytest.mark.parametrize("store_name", ["sqlite"])
async def test_a_supervisor_hears_that_a_process_serves_lives_and_ends(
    store: Store, ledger: Ledger, tmp_path: Path, words: tuple[str, ...], app: str
) -> None:
    """Told as systemd is told: a process that is stopped is silent, and would be replaced."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.setblocking(False)
        said: list[str] = []

        def hears(word: str) -> bool:
            with suppress(BlockingIOError):
                while True:
                    said.append(heard.recv(1_000).decode())
            return any(word in each for each in said)

        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000000"}
        with Fleet(store.dsn, ledger, tmp_path) as fleet:
            member = fleet.hire_program(*words, "--app", app, **environment)
            await until(lambda: hears("READY=1\nSTATUS="), timeout="30s")
            await until(lambda: hears("WATCHDOG=1"))
            member.freeze()
            hears("")
            said.clear()
            await asyncio.sleep(1.5)  # longer than the supervisor would wait
            assert not hears("WATCHDOG=1")
            said.clear()
            member.thaw()
            await until(lambda: hears("WATCHDOG=1"))
            assert not hears("STOPPING=1")
            await gone(fleet, member)
            assert hears("STOPPING=1")


async def gone(fleet: Fleet, member: Member) -> None:
    """Stop one politely, and wait until it has ended well."""
    fleet.members.remove(member)
    fleet.killed.append(member)
    member.terminate()
    assert await asyncio.to_thread(member.wait, 30) == 0, member.said()


async def judged(store: Store, callers: Callers, matrix: Recorder, deploys: int) -> None:
    refused = callers.answers.total() - callers.answered
    queue = Print.__relevo__.queue
    stored = await store.count(Filter(queue=queue), most=2 * callers.sent)
    longest = max(took for _, took in callers.waited)
    note = f"{callers.sent} calls over {deploys} deploys, {refused} refused"
    matrix.record(lost=callers.answered - stored, doubled=0, recovery=longest, note=note)
    assert set(callers.answers) == {"200"}, callers.answers
    assert stored == callers.sent
