"""What `relevo up` and `relevo work` tell: lines for a person, JSON for a machine."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

SHOP = """
from relevo import App, Command, Context, Delivery, Dead, Intake, sources

app = App("shop")

class Ship(Command, queue="shop:parcels:ship", attempts=1, key="ship:{order}", unique="forever"):
    order: str

class Save(Command, queue="shop:parcels:save", attempts=1):
    order: str

@app.webhook(
    "/hooks/shop",
    verify=sources.shared_secret("a-secret-of-the-shop", header="x-secret"),
    key=lambda delivery: delivery.json["id"],
)
async def paid(delivery: Delivery, ctx: Intake) -> None:
    if delivery.json["order"] == "lost":
        raise RuntimeError("no such order")
    await ctx.enqueue(Ship(delivery.json["order"]))

@app.worker
async def ship(order: Ship, ctx: Context) -> str | Dead:
    if order.order == "broken":
        raise ValueError("no such street")
    if order.order == "late":
        return Dead("the shop has closed")
    await ctx.enqueue(Save(order.order))
    return "shipped"

@app.worker
async def save(order: Save, ctx: Context) -> None:
    async with ctx.transaction():
        pass
"""


class Program:
    """The program, on a terminal or with its output in a pipe."""

    def __init__(self, folder: Path, *args: str, is_terminal: bool, **variables: str) -> None:
        (folder / "shop.py").write_text(SHOP)
        clean = {name: each for name, each in os.environ.items() if not name.startswith("RELEVO_")}
        self._ours, theirs = pty.openpty() if is_terminal else os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "relevo.cli", *args],
            cwd=folder,
            env=clean | {"COLUMNS": "200", **variables},
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self.seen = ""

    def until(self, pattern: str) -> re.Match[str]:
        """Read on until something is seen."""
        deadline = time.monotonic() + 60
        while (found := re.search(pattern, self.seen)) is None:
            assert time.monotonic() < deadline, self.seen
            assert self._read(), self.seen
        return found

    def _read(self) -> bool:
        if not select.select([self._ours], [], [], 60)[0]:
            return False
        try:
            some = os.read(self._ours, 65_536)
        except OSError:  # how Linux says that the other side of a terminal has closed
            return False
        self.seen += some.decode(errors="replace").replace("\r\n", "\n")
        return bool(some)

    def stop(self) -> str:
        """All that it said, once it has stopped politely."""
        self.process.send_signal(signal.SIGINT)
        while self._read():
            pass
        assert self.process.wait(30) == 0, self.seen
        return self.seen

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Any]:
    programs: list[Program] = []

    def start(*args: str, is_terminal: bool, **variables: str) -> Program:
        programs.append(Program(tmp_path, *args, is_terminal=is_terminal, **variables))
        return programs[-1]

    yield start
    for each in programs:
        each.end()


def deliver(url: str, id: str, order: str) -> None:
    body = json.dumps({"id": id, "order": order}).encode()
    headers = {"x-secret": "a-secret-of-the-shop", "content-type": "application/json"}
    answer = httpx2.post(f"{url}/hooks/shop", content=body, headers=headers, timeout=30)
    assert answer.status_code == 200, answer.text


UP = ("up", "shop:app", "--port", "0", "--store", "sqlite:///relevo.db")


def test_on_a_terminal_every_delivery_and_job_has_a_line(program: Any) -> None:
    up = program(*UP, is_terminal=True)
    url = up.until(r"shop at (http://[\d.:]+)")[1]
    deliver(url, "evt_1", "A-1")
    up.until(r"done +shop:parcels:save")
    deliver(url, "evt_1", "A-1")
    up.until(r"repeated")
    deliver(url, "evt_2", "broken")
    up.until(r"in ship\n")
    seen = up.stop()

    assert re.search(r"(?m)^[\d:]{8} info +accepted +shop:/hooks/shop +evt_1 +1 job$", seen), seen
    assert re.search(r"(?m)^[\d:]{8} info +repeated +shop:/hooks/shop +evt_1 +nothing new$", seen)
    assert re.search(
        r"(?m)^[\d:]{8} info +done +shop:parcels:ship +ship:A-1 +\w+ +[\d,]+ ms$", seen
    )
    assert re.search(r"(?m)^[\d:]{8} info +done +shop:parcels:save +\w+ +[\d,]+ ms$", seen), seen
    assert re.search(
        r"(?m)^[\d:]{8} warning +dead +shop:parcels:ship +ship:broken +\w+ +attempt 1 of 1, "
        r"[\d,]+ ms, ValueError: no such street\nTraceback \(most recent call last\):\n"
        r"(.+\n)*  File \".+shop.py\", line \d+, in ship\n    raise ValueError",
        seen,
    ), seen
    assert seen.count("no such street") == 2  # in the line, and in the source that raised it
    assert '{"at"' not in seen


@pytest.mark.parametrize(
    ("is_terminal", "options", "variables"),
    [
        (False, (), {}),
        (True, ("--log-format", "json"), {}),
        (True, (), {"RELEVO_LOG_FORMAT": "json"}),
    ],
    ids=["piped", "asked for", "by its variable"],
)
def test_piped_or_asked_for_it_is_json_and_success_says_nothing(
    program: Any, is_terminal: bool, options: tuple[str, ...], variables: dict[str, str]
) -> None:
    up = program(*UP, *options, is_terminal=is_terminal, **variables)
    url = up.until(r"shop at (http://[\d.:]+)")[1]
    deliver(url, "evt_1", "A-1")
    deliver(url, "evt_2", "broken")
    up.until(r"no such street")
    deliver(url, "evt_3", "late")
    up.until(r"has closed")
    seen = up.stop()

    lines = [json.loads(line) for line in seen.splitlines() if line.startswith("{")]
    [broken, late] = [line for line in lines if line["message"] == "job dead"]
    assert broken["error"] == "ValueError: no such street"
    assert late["error"] == "the shop has closed"
    assert "accepted" not in seen
    assert "shop:parcels:save" not in "".join(map(str, lines))


def test_a_worker_alone_tells_its_jobs_too(program: Any) -> None:
    up = program("serve", "--app", "shop:app", *UP[2:], is_terminal=False)
    url = up.until(r"shop at (http://[\d.:]+)")[1]
    deliver(url, "evt_1", "A-1")
    up.stop()

    work = program("work", "--app", "shop:app", "--until-empty", *UP[4:], is_terminal=True)
    work.until(r"done +shop:parcels:ship +ship:A-1 +\w+ +[\d,]+ ms\n")
    work.until(r"done +shop:parcels:save")


def test_a_level_above_info_leaves_out_what_went_well(program: Any) -> None:
    up = program(*UP, is_terminal=True, RELEVO_LOG_LEVEL="warning")
    url = up.until(r"shop at (http://[\d.:]+)")[1]
    deliver(url, "evt_1", "A-1")
    deliver(url, "evt_2", "broken")
    up.until(r"no such street")
    assert "accepted" not in up.stop()


def test_a_delivery_that_fails_is_one_red_line_on_a_terminal(program: Any) -> None:
    """Its traceback comes with the job that runs the function again."""
    up = program(*UP, is_terminal=True)
    url = up.until(r"shop at (http://[\d.:]+)")[1]
    deliver(url, "evt_1", "lost")
    up.until(r"it is run again")
    deliver(url, "evt_1", "lost")
    up.until(r"repeated")
    seen = up.stop()
    assert re.search(
        r"(?m)^\x1b\[31m[\d:]{8} error +failed +shop:/hooks/shop +evt_1 +RuntimeError: no such "
        r"order; kept; it is run again\x1b\[0m$",
        seen,
    ), seen
    assert "Traceback" not in seen.partition("repeated")[0]
