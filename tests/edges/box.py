"""A folder with a store, an app, and the program to run in it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from relevo.cli import run
from relevo.job import State
from relevo.store import Store
from relevo.stores import open_store
from relevo.telemetry import log
from tests.conformance.steps import add, make, state

T = TypeVar("T")

SHOP = """
from relevo import App, Command, Context, Event

app = App("shop")

class SendMail(
    Command, queue="shop:mail:send", attempts=1, key="mail:{order}", unique="unfinished"
):
    order: str
    fail: bool = False
    seconds: float = 0

class OrderPaid(Event, name="order.paid"):
    order: str

@app.worker
async def send_mail(order: SendMail, ctx: Context) -> str:
    import asyncio, pathlib
    pathlib.Path("began").touch()
    await asyncio.sleep(order.seconds)
    if order.fail:
        raise ValueError("no such mailbox")
    return "sent " + order.order

@app.poller("rates:{shop}", over=lambda: [{"shop": 1}], every="1s")
async def poll_rates(turn, ctx: Context) -> None:
    pass

@app.schedule("0 6 * * *", tz="America/Mexico_City")
def remind() -> SendMail:
    return SendMail("reminder")

@app.listener
async def thank(fact: OrderPaid, ctx: Context) -> None:
    await ctx.enqueue(SendMail(fact.order))
"""


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Box:
    """A folder with a store, an app, and the program to run in it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.path = folder / "relevo.db"
        self.url = f"sqlite:///{self.path}"
        self._capsys = capsys
        self.environment = {**os.environ, "RELEVO_STORE_URL": self.url}

    def __call__(self, *args: str) -> Answer:
        """Run the program in this process."""
        self._capsys.readouterr()
        log.handlers.clear()  # of a verb that served before
        code = run(args)
        out, err = self._capsys.readouterr()
        assert "Traceback" not in out + err
        return Answer(code, out, err)

    def start(self, *args: str, **options: Any) -> subprocess.Popen[bytes]:
        """Run the program in a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "relevo.cli", *args],
            cwd=self.folder,
            env=self.environment,
            preexec_fn=_heed_interrupts,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )

    def do(self, work: Callable[[Store], Awaitable[T]]) -> T:
        """Do something to the store."""

        async def whole() -> T:
            store = open_store(self.url)
            await store.migrate()
            await store.open()
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(whole())


def _heed_interrupts() -> None:
    # Tests that run in the background are deaf to them, and so would be what they start.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def added(box: Box, **fields: Any) -> str:
    return box.do(lambda store: add(store, **fields))


def made(box: Box, wanted: State, **fields: Any) -> str:
    return box.do(lambda store: make(store, wanted, **fields))


def state_of(box: Box, id: str) -> State:
    return box.do(lambda store: state(store, id))


def until(what: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while not what():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ended(process: subprocess.Popen[bytes], text: str | None = None) -> Answer:
    out, err = process.communicate(None if text is None else text.encode(), timeout=30)
    answer = Answer(process.returncode, (out or b"").decode(), (err or b"").decode())
    assert "Traceback" not in answer.out + answer.err
    return answer


def is_one_line(answer: Answer) -> bool:
    begins = ("relevo: ", '{"at": ')  # a verb that serves tells it as a line of its log
    return answer.err.startswith(begins) and answer.err.count("\n") == 1 and not answer.out
