"""In a pipe every line of a process that serves is JSON, and `/metrics` counts what others ran."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from collections.abc import Callable, Generator
from typing import Any

import httpx2
import pytest

from tests.edges.box import Box

NOISY = """
import asyncio, gc, logging, os, pathlib, threading, warnings
from relevo import App, Command, PlainContext, sources

app = App("noisy")
warnings.warn("at import\\nof two lines", UserWarning)

class Do(Command, queue="noisy:work:do", attempts=1, timeout="20s"):
    what: str

class Alone(Command, queue="noisy:work:alone", attempts=1, timeout="20s", isolate="process"):
    what: str

def broken():
    raise RuntimeError("in a thread")

class Odd:
    def __del__(self):
        raise RuntimeError("in a finalizer")

async def left_behind():
    raise RuntimeError("in a task that nothing awaits")

@app.worker
async def do(order: Do) -> None:
    match order.what:
        case "fail":
            raise ValueError("two\\nlines")
        case "warn":
            warnings.warn("while it works", UserWarning)
            logging.getLogger("another.package").warning("of a %s", "package")
        case "thread":
            thread = threading.Thread(target=broken)
            thread.start()
            thread.join()
            Odd()
            asyncio.ensure_future(left_behind())
            await asyncio.sleep(0.1)
            gc.collect()
        case "long":
            began = pathlib.Path("began")
            if not began.exists():
                began.touch()
                await asyncio.sleep(60)

@app.worker
def alone(order: Alone, ctx: PlainContext) -> None:
    warnings.warn("in a child", UserWarning)
    thread = threading.Thread(target=broken)
    thread.start()
    thread.join()

@app.webhook("/hooks/noisy", verify=sources.shared_secret("a secret", header="x-secret"),
             key=lambda call: call.json["id"])
async def hook(call, ctx):
    match call.json["id"]:
        case "bad":
            raise RuntimeError("a webhook's\\nfunction")
        case "alone":
            await ctx.enqueue(Alone("it"))
        case what:
            await ctx.enqueue(Do(what))
"""


class Logged:
    """A process of which every line is kept."""

    def __init__(self, box: Box, *words: str) -> None:
        self.path = box.folder / f"{words[0]}-{time.monotonic_ns()}.log"
        with self.path.open("wb") as file:
            self.process = box.start(*words, stdout=file, stderr=file)

    def lines(self) -> list[dict[str, Any]]:
        """Its lines; ValueError if one is no JSON."""
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def hears(self, what: str) -> str:
        """The message of the first line that has these words, in whatever field."""

        def found() -> str:
            text = self.path.read_text()
            whole = text[: text.rfind("\n") + 1].splitlines()
            return next((line for line in whole if what in line), "")

        return json.loads(waited(found, f"{what} in {self.path}"))["message"]

    def ends(self, number: int) -> None:
        self.process.send_signal(number)
        self.process.wait(30)


def waited(truth: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + 40
    while not (found := truth()):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return found


@pytest.fixture
def noisy(box: Box) -> Box:
    (box.folder / "noisy.py").write_text(NOISY)
    box.environment |= {"RELEVO_APPS": "noisy:app", "RELEVO_LEASE": "3s", "RELEVO_PORT": "0"}
    return box


Start = Callable[..., Logged]


@pytest.fixture
def logged(noisy: Box) -> Generator[Start]:
    started: list[Logged] = []

    def start(*words: str) -> Logged:
        started.append(Logged(noisy, *words))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()
        for line in each.lines():
            assert {"at", "level", "logger", "message"} <= line.keys()


def served(web: Logged) -> str:
    return web.hears(" at http").partition(" at ")[2].partition(",")[0]


def send(base: str, id: str) -> None:
    headers = {"x-secret": "a secret"}
    assert httpx2.post(f"{base}/hooks/noisy", json={"id": id}, headers=headers).status_code == 200


def settled(base: str) -> int:
    told = httpx2.get(f"{base}/metrics").text
    found = re.search(r"^relevo_jobs_settled_total (\d+)", told, re.M)
    assert found is not None
    return int(found[1])


NOISE = (
    '"serving',
    "two\\\\nlines",
    "py.warnings",
    "at import",
    "while it works",
    "of a package",
    "in a thread",
    "in a finalizer",
    "in a task that nothing awaits",
    "in a child",
)


def test_every_line_of_serve_and_work_is_json_through_errors_and_a_kill(
    noisy: Box, logged: Start
) -> None:
    web, worker = logged("serve"), logged("work")
    base = served(web)
    for id in ("fail", "warn", "thread", "alone", "bad"):
        send(base, id)
    with socket.create_connection(("127.0.0.1", int(base.rpartition(":")[2]))) as stranger:
        stranger.sendall(b"no HTTP at all\r\n\r\n")
        stranger.recv(1)
    for what in NOISE:
        worker.hears(what)
    web.hears("a webhook's function failed")
    send(base, "long")
    waited((noisy.folder / "began").exists, "the long job")
    other = logged("work")
    other.hears('"serving')
    worker.ends(signal.SIGKILL)
    other.hears("job rescued")
    other.ends(signal.SIGTERM)
    other.hears("stopping politely")
    web.ends(signal.SIGTERM)
    assert web.process.returncode == other.process.returncode == 0


def test_every_line_of_up_is_json(logged: Start) -> None:
    up = logged("up")
    base = served(up)
    for id in ("fail", "warn", "thread", "alone", "bad"):
        send(base, id)
    for what in NOISE[1:]:
        up.hears(what)
    up.hears("a webhook's function failed")
    up.ends(signal.SIGTERM)
    assert up.process.returncode == 0


def test_the_web_process_tells_the_runs_of_workers_and_no_restart_takes_them_away(
    noisy: Box, logged: Start
) -> None:
    base = served(logged("serve"))
    seen = [settled(base)]
    for number in range(2):
        send(base, f"fail-{number}")
        noisy.start("work", "--until-empty").communicate(timeout=30)
        waited(lambda: settled(base) > seen[-1], "the runs of a worker that has ended")
        seen.append(settled(base))
    assert seen[0] == 0
    assert seen[1] >= 1
    assert seen[2] > seen[1]


@pytest.mark.parametrize(
    ("words", "environment", "said"),
    [
        (["work", "--app", "nowhere:app"], {}, "nowhere"),
        (["serve"], {"RELEVO_CONCURENCY": "3"}, "RELEVO_CONCURENCY"),
        (
            ["up"],
            {"RELEVO_STORE_URL": "redis://127.0.0.1:1/0", "RELEVO_SPOOL": "off"},
            "127.0.0.1:1",
        ),
        (["serve"], {"RELEVO_HOST": "203.0.113.7"}, "203.0.113.7"),
        (["up", "--log-format", "json", "--host", "203.0.113.1"], {}, "203.0.113.1"),
    ],
)
def test_what_keeps_a_process_from_starting_is_a_line_of_json(
    noisy: Box, words: list[str], environment: dict[str, str], said: str
) -> None:
    noisy.environment |= environment
    process = noisy.start(*words)
    out, err = process.communicate(timeout=30)
    assert process.returncode != 0
    lines = [json.loads(line) for line in (out + err).decode().splitlines()]
    assert lines[-1]["level"] == "error"
    assert said in lines[-1]["message"]


def test_text_is_text_where_it_is_asked_for(noisy: Box) -> None:
    process = noisy.start("work", "--until-empty", "--log-format", "text")
    out, err = process.communicate(timeout=30)
    assert b"relevo: serving" in err
    assert b"all done" in out
