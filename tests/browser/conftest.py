"""One browser for all, and programs to look at with it."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from relevo import App, Command, sources
from relevo.engine import Relevo
from relevo.route import webhook
from relevo.testing import until
from tests.browser import chromium
from tests.browser.fill import BOOK, Filled, fill
from tests.conftest import note_missing

HERE = Path(__file__).parent
PASSWORD = "correct horse battery"
WAIT = 5_000


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mine = [item for item in items if HERE in item.path.parents]
    if not mine or chromium.find_or_install() is not None:
        return
    config.hook.pytest_deselected(items=mine)
    items[:] = [item for item in items if item not in mine]
    note_missing(
        config,
        f"{len(mine)} BROWSER TESTS DID NOT RUN: there is no chromium on the PATH, and it could "
        "not be installed (apt-get install chromium)",
    )


class BookAgain(Command, queue=BOOK, key="again:{reservation}", unique="forever"):
    reservation: str


def apps() -> list[App]:
    async def hook(delivery: Any, ctx: Any) -> None:
        await ctx.enqueue(BookAgain(delivery.json["reservation"]))

    door = webhook(
        "/hooks/stripe",
        hook,
        source=sources.stripe("whsec_" + "x" * 32),
        key=lambda d: d.json["id"],
    )
    cars = App("cars", webhooks=[door])

    @cars.worker
    async def book(order: BookAgain) -> None: ...

    return [cars, App("hotel")]


class Program:
    """A program with its pages, in a thread of its own."""

    def __init__(self, folder: Path, *, hostile: bool, is_filled: bool) -> None:
        self._folder = folder
        self._hostile = hostile
        self._is_filled = is_filled
        self.loop = asyncio.new_event_loop()
        self._ready: Future[None] = Future()
        self._stop = asyncio.Event()
        self.relevo = Relevo(f"sqlite:///{folder / 'relevo.db'}", apps=apps())
        self.some: Filled
        self.url = ""

    def run(self) -> None:
        try:
            asyncio.set_event_loop(self.loop)
            self.loop.run_until_complete(self._serve())
        except BaseException as error:  # noqa: BLE001 - the test that waits is told
            if not self._ready.done():
                self._ready.set_exception(error)
        finally:
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    async def _serve(self) -> None:
        async with self.relevo as relevo:
            if self._is_filled:
                self.some = await fill(relevo.store, hostile=self._hostile)
            with socket.create_server(("127.0.0.1", 0)) as listener:
                self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
                options: dict[str, Any] = {"log_level": "warning", "timeout_graceful_shutdown": 1}
                server = uvicorn.Server(uvicorn.Config(relevo.asgi(), **options))
                serving = asyncio.create_task(server.serve(sockets=[listener]))
                await until(lambda: server.started)
                self._ready.set_result(None)
                await self._stop.wait()
                server.should_exit = server.force_exit = True
                await serving
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    def do(self, doing: Any) -> Any:
        """Run something where the engine lives."""
        return asyncio.run_coroutine_threadsafe(doing, self.loop).result(10)

    @contextmanager
    def running(self) -> Iterator[Program]:
        thread = threading.Thread(target=self.run, name="program")
        thread.start()
        try:
            self._ready.result(20)
            yield self
        finally:
            self.loop.call_soon_threadsafe(self._stop.set)
            thread.join(10)


@contextmanager
def program(
    folder: Path, *, password: str = "", hostile: bool = False, is_filled: bool = True
) -> Iterator[Program]:
    before = os.environ.pop("RELEVO_ADMIN_PASSWORD", None)
    if password:
        os.environ["RELEVO_ADMIN_PASSWORD"] = password
    try:
        with Program(folder, hostile=hostile, is_filled=is_filled).running() as made:
            yield made
    finally:
        os.environ.pop("RELEVO_ADMIN_PASSWORD", None)
        if before is not None:
            os.environ["RELEVO_ADMIN_PASSWORD"] = before


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Closed with its module: while it is open, no other loop can run in this thread."""
    path = chromium.find()
    assert path
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=chromium.ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A program on an ordinary bad day, at one's own machine."""
    with program(tmp_path_factory.mktemp("shop")) as made:
        yield made


class Reader:
    """A page, and everything the browser complained of."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.context = context
        self.url = url
        self.complaints: list[str] = []
        self.dialogs: list[str] = []
        context.set_default_timeout(WAIT)
        context.add_init_script(
            "addEventListener('securitypolicyviolation',"
            " e => console.error('CSP ' + e.violatedDirective + ' ' + e.blockedURI))"
        )
        self.page: Page = context.new_page()
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", self._asked)

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{self.page.url}: {message.text}")

    def _asked(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        dialog.accept()

    def go(self, path: str, status: int = 200) -> Page:
        answer = self.page.goto(self.url + path, wait_until="domcontentloaded")
        assert answer is not None and answer.status == status, (path, answer and answer.status)
        return self.page


@pytest.fixture
def reader(browser: Browser, shop: Program) -> Iterator[Reader]:
    with reading(browser, shop.url) as made:
        yield made
        assert made.complaints == []


@contextmanager
def reading(browser: Browser, url: str, **options: Any) -> Iterator[Reader]:
    settings = {"viewport": {"width": 1360, "height": 860}, "locale": "en-GB", **options}
    context = browser.new_context(**settings)
    try:
        yield Reader(context, url)
    finally:
        context.close()
