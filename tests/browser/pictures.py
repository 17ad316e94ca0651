"""Take the pictures of the documents: `python -m tests.browser.pictures`, for about two minutes."""

from __future__ import annotations

import asyncio
import math
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from relevo.dashboard import live
from relevo.job import Ending, State
from relevo.store import Store, Want
from tests.browser import chromium
from tests.browser.conftest import program, reading
from tests.browser.fill import REPLY, SAVE
from tests.conformance.steps import job

FOLDER = Path(__file__).parents[2] / "docs" / "images"
SECONDS = 110


async def bustle(store: Store, seconds: float) -> None:
    """Some hundred jobs a second, coming in waves and done a little later."""
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        wave = 24 + 16 * math.sin(passed / 9) + 7 * math.sin(passed / 2.3)
        for queue, share in ((SAVE, 1.0), (REPLY, 0.4)):
            await store.insert([job(queue, keep=600_000) for _ in range(max(1, int(wave * share)))])
        claim = await store.claim(
            [Want(queue=SAVE), Want(queue=REPLY)], 34, "worker-1-4180", 60_000
        )
        await asyncio.sleep(0.25)
        await store.settle([Ending(lease=lease, state=State.DONE) for lease in claim.leases])


def main() -> None:
    live.EVERY = 1.0
    path = chromium.find()
    assert path, "install chromium"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        program(Path(folder)) as shop,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=path, args=chromium.ARGUMENTS)
        some = shop.some
        places = {
            "thread": f"/threads/{some.thread}",
            "job": f"/jobs/{some.held}",
            "dead-letters": "/dead",
            "flow": f"/flows/{some.flow}",
            "overview": "/",
        }
        with reading(browser, shop.url) as reader:
            reader.go("/")
            working = asyncio.run_coroutine_threadsafe(
                bustle(shop.relevo.store, SECONDS), shop.loop
            )
            working.result(SECONDS + 60)
        for theme in ("light", "dark"):
            with reading(browser, shop.url, color_scheme=theme) as reader:
                for name, place in places.items():
                    reader.go(place)
                    reader.page.wait_for_timeout(800)
                    reader.page.screenshot(path=FOLDER / f"{name}-{theme}.png")
        browser.close()


if __name__ == "__main__":
    main()
