"""Pressure: full slots are told with the queue, the command and the effect that hold them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from relevo import App, Command, Context, Relevo
from relevo.dashboard.health import troubles
from relevo.desk import durations, saturations
from relevo.durations import Timing, as_text
from relevo.job import State
from relevo.store import QueueMode, Tally, WorkerInfo
from relevo.testing import ManualClock, until, working
from relevo.web.metrics import Metrics

Start = Callable[..., Relevo]
PAY, MAIL = "test:pressure:pay", "test:pressure:mail"


class Pay(Command, queue=PAY):
    n: int


class Mail(Command, queue=MAIL):
    n: int


async def test_full_slots_are_told_by_name(start: Start, clock: ManualClock) -> None:
    answers = asyncio.Event()

    async def pay(order: Pay, ctx: Context) -> None:
        async def charge(key: str) -> str:
            await answers.wait()
            return key

        await ctx.once(f"charge:{order.n}", charge)

    async def mail(order: Mail) -> None: ...

    relevo = start(App("test", workers=[pay, mail]))
    await relevo.enqueue_many(Pay(n) for n in range(30))
    async with working(relevo, concurrency=10) as worker:
        worker.pace = replace(worker.pace, beat=0.3)

        async def are_full() -> bool:
            return bool(saturations(await relevo.desk.queues(), await relevo.desk.workers()))

        await until(lambda: worker.running == 8)
        assert not await are_full()  # the others have waited for a moment only
        clock.advance("10s")

        async def is_told() -> bool:
            found = saturations(await relevo.desk.queues(), await relevo.desk.workers())
            return bool(found and found[0].effect and found[0].effect.running == 8)

        await until(is_told)
        [full] = saturations(await relevo.desk.queues(), await relevo.desk.workers())
        assert (full.queues, full.slowest, full.waiting, full.slots) == ((PAY,), PAY, 22, 8)
        assert full.command is not None
        assert full.effect is not None
        assert (full.command.name, full.effect.name, full.busy) == ("Pay", "charge", 8)
        assert "22 jobs wait while all 8 slots are taken: 8 by test:pressure:pay" in str(full)

        text, _ = await Metrics(relevo).text()
        assert f'relevo_saturated_jobs{{queue="{PAY}"}} 22.0' in text.decode()
        assert f'relevo_run_longest_seconds{{command="Pay",queue="{PAY}"}}' in text.decode()
        answers.set()
        await until(lambda: worker.finished == 30)
        await until(_all_ended(relevo))
        took = durations(await relevo.desk.workers())
        [effect] = [each for each in took if each.is_effect]
        assert (effect.queue, effect.name, effect.count) == (PAY, "charge", 30)
        [run] = [each for each in took if not each.is_effect]  # quick ones by a sample
        assert (run.queue, run.name) == (PAY, "Pay")
        assert run.count >= 8
        text, _ = await Metrics(relevo).text()
        assert f'relevo_effect_seconds{{effect="charge",quantile="0.5",queue="{PAY}"}}' in (
            text.decode()
        )


def _all_ended(relevo: Relevo) -> Callable[[], Any]:
    async def are_told() -> bool:
        took = durations(await relevo.desk.workers())
        return any(each.is_effect and each.count >= 30 for each in took)

    return are_told


def tally(queue: str, *, late: int | None = 60_000, **fields: Any) -> Tally:
    return Tally(queue=queue, counts={State.READY: 7}, late=late, **fields)


def worker(*, running: int = 10, **fields: Any) -> WorkerInfo:
    info = WorkerInfo(id="w", host="h", pid=1, queues=[PAY, MAIL], concurrency=10, running=running)
    known: dict[str, Any] = {"busy": {PAY: 8, MAIL: 2}, "slots": {PAY: 8, MAIL: 8}, **fields}
    return WorkerInfo(
        **{
            **{name: getattr(info, name) for name in info.__struct_fields__},
            **known,
        }
    )


def timing(**fields: Any) -> Timing:
    known: dict[str, Any] = {"queue": PAY, "name": "Pay", "running": 8, "longest": 31_000}
    return Timing(**{**known, **fields})


@pytest.mark.parametrize(
    ("tallies", "workers"),
    [
        ([tally(PAY)], []),  # another sentence tells of a queue without a worker
        ([tally(PAY)], [worker(running=9, busy={PAY: 7})]),
        ([tally(PAY, late=900)], [worker()]),
        ([tally(PAY, late=None)], [worker()]),
        ([tally(PAY, mode=QueueMode.PAUSED)], [worker()]),
        ([tally(PAY)], [worker(), worker(running=3, busy={})]),  # one has room
    ],
)
def test_slots_that_are_free_are_no_saturation(
    tallies: list[Tally], workers: list[WorkerInfo]
) -> None:
    assert saturations(tallies, workers) == []


def test_full_workers_are_one_saturation_with_the_queue_that_has_most() -> None:
    effect = timing(name="charge", is_effect=True, longest=30_000)
    full = [worker(timings=[timing(), effect]), worker(timings=[timing(running=2)])]
    [found] = saturations([tally(PAY), tally(MAIL)], full)
    assert (found.queues, found.waiting, found.slots) == ((PAY, MAIL), 14, 20)
    assert (found.slowest, found.busy) == (PAY, 16)
    assert str(found) == (
        "14 jobs wait while all 20 slots are taken: 16 by test:pressure:pay, where Pay takes "
        "31.0 s (its effect charge 30.0 s)"
    )
    [trouble] = troubles([tally(PAY), tally(MAIL)], full, now=0)[:1]
    assert trouble.is_bad
    assert trouble.text.format(**trouble.values) == str(found)
    assert trouble.href == f"/queues/{PAY}"


def test_a_queue_whose_own_slots_are_full_is_told_beside_free_ones() -> None:
    [found] = saturations([tally(PAY), tally(MAIL)], [worker(running=9, busy={PAY: 8, MAIL: 1})])
    assert (found.queues, found.slots, found.busy) == ((PAY,), 8, 8)


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0.2, "< 1 ms"), (450, "450 ms"), (2_340, "2.3 s"), (99_000, "99.0 s"), (840_000, "14 min")],
)
def test_a_duration_is_told_in_words(ms: float, text: str) -> None:
    assert as_text(ms) == text
