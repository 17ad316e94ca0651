"""F42: stream workers die between the call outside, the flag that tells of it, and the XACK."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from redis import Redis

from relevo import Relevo
from relevo.apps.subscriptions import app, records, webhooks
from relevo.apps.subscriptions.streams import STREAMS
from relevo.simulators import World
from relevo.simulators.traffic.subscriptions import event, sign
from relevo.testing import deliver, drain, until
from tests.matrix import Recorder
from tests.servers.redis import RedisServer

HOME = Path(__file__).parents[2]
NAMES = ("email", "list", "spreadsheet")


@contextmanager
def serving(folder: Path, moment: str = "never", number: int = 0) -> Iterator[subprocess.Popen]:
    """A process with all three stream workers; see tests/apps/dying.py."""
    command = [sys.executable, "-m", "tests.apps.dying", moment, str(number), *NAMES]
    compiled = {"PYTHONPYCACHEPREFIX": str(folder / "compiled")}  # for the next one
    environment = (
        compiled
        | os.environ
        | {
            "RELEVO_STORE_URL": f"sqlite:///{folder / 'r.db'}",
            "PYTHONDONTWRITEBYTECODE": "",
        }
    )
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            command, cwd=HOME, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


class Story:
    """So many subscriptions on the streams, and what has become of them."""

    def __init__(self, relevo: Relevo, world: World, redis: Redis, folder: Path) -> None:
        self.records = relevo.use(records.Records)
        self.relevo, self.world, self.redis, self.folder = relevo, world, redis, folder

    async def subscribe(self, numbers: range) -> None:
        for number in numbers:
            body = json.dumps(event(number, 1)).encode()
            told = deliver(self.relevo, webhooks.PATH, body=body, headers=sign(body), sign=False)
            assert (await told).status == 200
        await drain(self.relevo)

    def is_settled(self) -> bool:
        """Whether every entry has been taken and acknowledged."""
        for stream in STREAMS:
            newest = self.redis.xinfo_stream(stream)["last-generated-id"]
            [group] = self.redis.xinfo_groups(stream)
            if group["last-delivered-id"] != newest or group["pending"]:
                return False
        return True

    def has_written(self, rows: int) -> bool:
        return self.world.ledger.count("sheets") >= rows

    async def dies(self, moment: str, number: int) -> None:
        with serving(self.folder, moment, number) as process:
            await until(lambda: process.poll() is not None, timeout="60s")
            assert process.returncode == -9, (self.folder / "log").read_text()[-4_000:]

    async def end(self, timeout: str) -> None:
        with serving(self.folder):
            await until(self.is_settled, timeout=timeout)

    async def check(self, count: int, matrix: Recorder) -> None:
        """Each call once; a letter that may have left waits for a person, and is not sent again."""
        jobs = await self.records.jobs(1_000)
        held = {failure.job_id for failure in await self.records.failures()}
        ledger = self.world.ledger
        doubled = sum(len(ledger.doubled(name)) for name in ("relay", "doppler", "sheets"))
        lost = count - ledger.count("doppler") + count - ledger.count("sheets")
        lost += sum(not (job.list_added and job.spreadsheet_saved) for job in jobs)
        lost += sum(not job.email_sent and job.id not in held for job in jobs)
        matrix.record("F42", store="redis", lost=lost, doubled=doubled)
        assert (len(jobs), lost, doubled) == (count, 0, 0)
        assert held <= {job.id for job in jobs if not job.email_sent}


@pytest.fixture
async def story(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Story]:
    with RedisServer() as server:
        monkeypatch.setenv("REDIS_HOST", "127.0.0.1")
        monkeypatch.setenv("REDIS_PORT", str(server.port))
        for name in NAMES:
            monkeypatch.setenv(f"WORKERS_{name.upper()}_READ_TIMEOUT", "50")
            monkeypatch.setenv(f"WORKERS_{name.upper()}_BACKOFF_BASE", "300")
            monkeypatch.setenv(f"WORKERS_{name.upper()}_BACKOFF_MAX", "600")
        async with Relevo(f"sqlite:///{tmp_path / 'r.db'}", apps=[app]) as relevo:
            with Redis(host="127.0.0.1", port=server.port, decode_responses=True) as redis:
                yield Story(relevo, world, redis, tmp_path)


async def test_f42_killed_between_call_mark_and_ack(story: Story, matrix: Recorder) -> None:
    await story.subscribe(range(4))
    await story.dies("call", 5)
    await story.dies("mark", 2)
    await story.end("60s")
    await story.check(4, matrix)


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_f42_killed_thirty_times_at_any_moment(story: Story, matrix: Recorder) -> None:
    """Half of them by their own hand at the two moments, half from outside."""
    chance = random.Random(42)
    for turn in range(30):
        await story.subscribe(range(turn * 10, turn * 10 + 10))
        if turn % 2:
            await story.dies(chance.choice(("call", "mark")), chance.randint(1, 20))
            continue
        wanted = story.world.ledger.count("sheets") + chance.randint(1, 8)
        with serving(story.folder):
            await until(partial(story.has_written, wanted), timeout="60s")
    await story.end("120s")
    await story.check(300, matrix)
