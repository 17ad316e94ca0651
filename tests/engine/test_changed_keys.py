"""A command says something else of its key while its jobs wait: people hear of it."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from relevo import App, Command, Context, Relevo
from relevo.job import Unique
from relevo.store import Filter
from relevo.testing import drain

Start = Callable[..., Relevo]
QUEUE = "test:changed:sync"


def app(unique: Unique | None) -> tuple[App, type[Command]]:
    """The app as its code says it at one time."""

    class Sync(
        Command, queue=QUEUE, key=None if unique is None else "sub:{sub}", unique=unique, keep="1h"
    ):
        sub: str

    made = App("test")

    @made.worker
    async def sync(order: Sync, ctx: Context) -> None: ...

    return made, Sync


async def test_a_changed_unique_is_told_while_jobs_wait(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    before, sync = app("unfinished")
    old = start(before)
    for sub in ("s1", "s2"):
        receipt = await old.enqueue(sync(sub), delay="1h")  # pyright: ignore[reportCallIssue]
    now, sync = app("latest")
    relevo = start(now)
    specs = [binding.spec for binding in now.workers]

    [found] = await relevo.desk.changed_uniques(specs)
    with caplog.at_level(logging.WARNING, "relevo"):
        await drain(relevo)

    assert (found.queue, found.kind, found.count) == (QUEUE, "Sync", 2)
    assert (found.stored, found.unique) == ("unfinished", "latest")
    [told] = [record for record in caplog.records if record.__dict__.get("queue") == QUEUE]
    assert told.getMessage() == str(found)
    for said in ("unique='unfinished'", "'latest' now", "2 of the newest"):
        assert said in str(found)
    assert receipt.id in [job.id for job in (await relevo.store.page(Filter(queue=QUEUE))).jobs]


@pytest.mark.parametrize("unique", ["unfinished", None], ids=["the same", "no key any more"])
async def test_what_has_not_changed_is_not_told(start: Start, unique: Unique | None) -> None:
    before, sync = app("unfinished")
    await start(before).enqueue(sync("s1"), delay="1h")  # pyright: ignore[reportCallIssue]
    now, _ = app(unique)

    specs = [binding.spec for binding in now.workers]
    assert await start(now).desk.changed_uniques(specs) == []


async def test_jobs_that_have_ended_are_not_told(start: Start) -> None:
    before, sync = app("unfinished")
    old = start(before)
    await old.enqueue(sync("s1"))  # pyright: ignore[reportCallIssue]
    await drain(old)
    now, _ = app("forever")

    specs = [binding.spec for binding in now.workers]
    assert await start(now).desk.changed_uniques(specs) == []
