"""Stage: a store of its own, the simulators in this process, relevo in processes beside it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from relevo.engine import Relevo
from relevo.errors import SettingsError
from relevo.simulators import World, environment, running

APPS = ("cars", "hotel", "expenses", "subscriptions", "razworks")
WORKERS = 2
PORT = 8700
PATIENCE = 60.0


@dataclass(slots=True)
class Stage:
    """What is running, and how to reach it."""

    world: World
    url: str  # of the front door
    store: str
    database: str | None
    folder: Path
    env: dict[str, str]
    web: subprocess.Popen[bytes]
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list[subprocess.Popen[bytes]])

    def hire(self) -> None:
        """One more worker process."""
        self.workers.append(_start(self.env, self.folder, "work"))

    def kill_one(self) -> int:
        """kill -9 the oldest worker, in the middle of whatever it does, and hire another."""
        victim = self.workers.pop(0)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        self.hire()
        return victim.pid


@asynccontextmanager
async def stage(
    *, seed: int, store: str | None, database: str | None, apps: tuple[str, ...] = APPS
) -> AsyncGenerator[Stage]:
    """Everything up; down again when the block ends."""
    with tempfile.TemporaryDirectory(prefix="relevo-demo-") as name:
        folder = Path(name)
        url = store or f"sqlite:///{folder / 'relevo.db'}"
        if url.startswith(("redis", "rediss")) and database is None:
            database = f"sqlite:///{folder / 'relevo.db'}"
        port = _free(PORT)
        async with running(World(seed=seed, target=f"http://127.0.0.1:{port}")) as world:
            env = _environment(world.base, url, database, port, apps)
            await asyncio.to_thread(_migrate, env, folder)
            await _check_empty(url, database)
            set_up = Stage(
                world, world.target, url, database, folder, env, _start(env, folder, "serve")
            )
            try:
                for _ in range(WORKERS):
                    set_up.hire()
                await _answers(set_up)
                yield set_up
            finally:
                await asyncio.to_thread(_end, [set_up.web, *set_up.workers])


def _environment(
    base: str, store: str, database: str | None, port: int, apps: tuple[str, ...]
) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RELEVO_")}
    ours = {
        "RELEVO_STORE_URL": store,
        "RELEVO_APPS": ",".join(apps),
        "RELEVO_HOST": "127.0.0.1",
        "RELEVO_PORT": str(port),
        "RELEVO_GRACE": "3s",
        "RELEVO_CONCURRENCY": "20",
        "WHATSAPP_STATUS_SECONDS": "600",  # on a busy machine a status may come late
        "RELEVO_LOG_LEVEL": "error",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if database is not None:
        ours["RELEVO_DATABASE_URL"] = database
    return kept | environment(base) | ours


def _start(env: dict[str, str], folder: Path, *verb: str) -> subprocess.Popen[bytes]:
    with (folder / f"{verb[0]}.log").open("ab") as log:
        return subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-m", "relevo.cli", *verb],
            env=env,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # A terminal's Ctrl-C is for the demo alone: it ends the others, in its own order.
            start_new_session=True,
        )


def _migrate(env: dict[str, str], folder: Path) -> None:
    if _start(env, folder, "migrate").wait(PATIENCE) != 0:
        raise SettingsError(f"the store cannot be used: {_last_line(folder / 'migrate.log')}")


async def _check_empty(store: str, database: str | None) -> None:
    async with Relevo(store, database=database) as relevo:
        if any(any(tally.counts.values()) for tally in await relevo.store.tally()):
            raise SettingsError(
                "the store is not empty, so nothing could be proved: give the demo a fresh one"
            )


async def _answers(stage: Stage) -> None:
    async with httpx2.AsyncClient(trust_env=False, timeout=2) as client:
        for _ in range(int(PATIENCE * 10)):
            if stage.web.poll() is not None:
                raise SettingsError(f"it does not start: {_last_line(stage.folder / 'serve.log')}")
            try:
                if (await client.get(f"{stage.url}/health")).is_success:
                    return
            except httpx2.HTTPError:
                pass
            await asyncio.sleep(0.1)
    raise SettingsError(f"the front door at {stage.url} does not answer")


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(8)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free(port: int) -> int:
    """This port, or any other if somebody has it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            with socket.socket() as other:
                other.bind(("127.0.0.1", 0))
                return other.getsockname()[1]
    return port


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("relevo: ") if lines else "it said nothing"
