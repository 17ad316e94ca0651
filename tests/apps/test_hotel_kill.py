"""F41: a foreign producer pushes while the bot is killed again and again."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from relevo.testing import until
from tests.apps.test_hotel import entry
from tests.matrix import Recorder
from tests.servers.redis import RedisServer

HOME = Path(__file__).parents[2]
BAD = [b"not json", b"{}", b'{"eventType":"other"}', b"[1,2]", b"\xff"]


class Bots:
    """A worker process with the bot in it; it may be killed and replaced."""

    def __init__(self, folder: Path, redis: str) -> None:
        self.database = folder / "hotel.db"
        self._log = folder / "log"
        # The next one does not compile what this one has.
        compiled = {"PYTHONPYCACHEPREFIX": str(folder / "compiled")}
        self._environment = (
            compiled
            | os.environ
            | {
                "RELEVO_STORE_URL": f"sqlite:///{self.database}",
                "RELEVO_LEASE": "2s",
                "HOTEL_ID": "hotel999",
                "BEDS24_WEBHOOK_SECRET": "of-no-use-here",
                "REDIS_URL": redis,
                "CM_POLLING_INTERVAL": "50ms",
                "PYTHONDONTWRITEBYTECODE": "",
            }
        )
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "relevo.cli", "work", "--app", "hotel"]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command, cwd=HOME, env=self._environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log,
            )  # fmt: skip

    def kill(self) -> None:
        assert self.process.poll() is None, self._log.read_text()[-4_000:]
        self.process.kill()
        self.process.wait()
        self.process = self._start()

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait()

    def kept(self) -> list[str]:
        """The ids of the messages, as whoever looks into the file sees them."""
        return [id for (id,) in self._read("select id from messages")]

    def count(self) -> int:
        return sum(number for (number,) in self._read("select count(*) from messages"))

    def _read(self, query: str) -> list[tuple[Any]]:
        if not self.database.exists():
            return []
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=5)) as file:
            try:
                return file.execute(query).fetchall()
            except sqlite3.OperationalError:
                return []  # not made yet

    async def goes_on(self, before: int, patience: str) -> None:
        """Wait for one message more."""
        await until(lambda: self.count() > before, timeout=patience, what="a message is kept")


async def story(folder: Path, count: int, kills: int, patience: str, matrix: Recorder) -> None:
    chance = random.Random(count)
    with RedisServer() as server:
        bots = Bots(folder, server.url)
        try:
            marks = sorted(chance.sample(range(count // 10, count - count // 10), kills))
            pushed = 0
            while pushed < count:
                batch = [entry(n) for n in range(pushed, min(pushed + 20, count))]
                batch += [entry(pushed)] if chance.random() < 0.3 else []
                before = bots.count()
                server.command("LPUSH", "cm_events:hotel999", *batch)
                pushed += 20
                while marks and pushed > marks[0]:
                    await bots.goes_on(before, patience)  # it is at work while we kill it
                    bots.kill()
                    marks.pop(0)
            server.command("LPUSH", "cm_events:hotel999", *BAD)
            while (before := bots.count()) < count:
                await bots.goes_on(before, patience)
            lists = ("cm_events:hotel999", "cm_events:processing:hotel999")
            await until(
                lambda: not any(server.command("LLEN", name) for name in lists), timeout=patience
            )
            assert sorted(server.command("LRANGE", "cm_events:dead:hotel999", 0, -1)) == sorted(BAD)
        finally:
            bots.stop()
        wanted = {f"hotel999:channelManager:cm-msg-{n}" for n in range(count)}
        kept = bots.kept()
        matrix.record("F41", lost=len(wanted - {*kept}), doubled=len(kept) - len({*kept}))
        assert set(kept) == wanted
        assert len(kept) == count


@pytest.mark.timeout(240)
async def test_each_message_is_kept_once_though_the_bot_is_killed(
    tmp_path: Path, matrix: Recorder
) -> None:
    await story(tmp_path, 120, 1, "60s", matrix)


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_ten_thousand_messages_and_twenty_kills(tmp_path: Path, matrix: Recorder) -> None:
    await story(tmp_path, 10_000, 20, "120s", matrix)
