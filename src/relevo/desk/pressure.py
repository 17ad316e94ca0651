"""How busy the workers are: how long runs and effects take, and where all slots are taken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from relevo.durations import Timing, as_text, merged, quantile, typical
from relevo.job import State
from relevo.message import EVENTS
from relevo.store import QueueMode, Tally, WorkerInfo

LATE = 60_000
"""From so many milliseconds past its due time a job is worth a word."""

WAITED = 5_000
"""Milliseconds that a job must be late before full slots are told of: a burst is none."""


class DurationView(msgspec.Struct, frozen=True, kw_only=True):
    """How long one command's runs, or one effect's calls, took in the last minutes."""

    queue: str
    name: str  # of the command, or of the effect up to its first colon
    is_effect: bool
    count: int  # those that have ended
    median: float  # milliseconds
    p95: float
    running: int
    longest: int  # milliseconds since the first of those under way began

    @property
    def typical(self) -> float:
        """The median; with none ended lately, how long the first one under way has taken."""
        return self.median or float(self.longest)

    def __str__(self) -> str:
        return f"{self.name} {as_text(self.typical)}"


class Saturation(msgspec.Struct, frozen=True, kw_only=True):
    """Slots that are all taken while jobs wait for one."""

    queues: tuple[str, ...]  # in which jobs wait
    waiting: int  # jobs that are due, and have no slot
    late: int  # milliseconds that the first of them is past its due time
    slots: int
    slowest: str = ""  # the queue that has most of these slots
    busy: int = 0  # how many it has
    command: DurationView | None = None  # what it runs there, mostly
    effect: DurationView | None = None  # what that waits for, mostly

    def __str__(self) -> str:
        said = f"{self.waiting:,} jobs wait while all {self.slots:,} slots are taken"
        if self.slowest:
            said += f": {self.busy:,} by {self.slowest}"
        if self.command is not None:
            said += f", where {self.command.name} takes {as_text(self.command.typical)}"
        if self.effect is not None:
            said += f" (its effect {self.effect.name} {as_text(self.effect.typical)})"
        return said


def durations(workers: Iterable[WorkerInfo]) -> list[DurationView]:
    """What the workers that live have told, together; first what takes most of their slots."""
    found: dict[tuple[str, str, bool], list[Timing]] = {}
    for worker in workers:
        for each in worker.timings if worker.is_alive else ():
            found.setdefault((each.queue, each.name, each.is_effect), []).append(each)
    views: list[DurationView] = []
    for (queue, name, is_effect), some in found.items():
        buckets = merged(each.buckets for each in some)
        view = DurationView(
            queue=queue,
            name=name,
            is_effect=is_effect,
            count=sum(buckets.values()),
            median=quantile(buckets, 0.5),
            p95=quantile(buckets, 0.95),
            running=sum(each.running for each in some),
            longest=max(each.longest for each in some),
        )
        views.append(view)
    return sorted(views, key=lambda each: (-each.running * each.typical, -each.count, each.name))


def slowest_of(worker: WorkerInfo) -> str:
    """The command that takes most of a worker's slots, and how long it takes; "" if it has none."""
    runs = [each for each in worker.timings if not each.is_effect]
    if not worker.is_alive or not runs:
        return ""
    first = max(runs, key=lambda each: (each.running * each.longest, each.total))
    return f"{first.name} {as_text(typical(first))}"


def saturations(tallies: Sequence[Tally], workers: Sequence[WorkerInfo]) -> list[Saturation]:
    """Where jobs wait because every slot is taken: those of whole workers, or of one queue."""
    alive = [worker for worker in workers if worker.is_alive]
    late = {
        tally.queue: tally
        for tally in tallies
        if tally.mode is not QueueMode.PAUSED
        and tally.late is not None
        and tally.late >= WAITED
        and tally.queue != EVENTS
    }
    found: list[Saturation] = []
    everywhere: list[Tally] = []
    for queue, tally in late.items():
        serving = [worker for worker in alive if queue in worker.queues]
        if not serving:
            continue
        if all(worker.running >= worker.concurrency for worker in serving):
            everywhere.append(tally)
        elif all(_is_full(worker, queue) for worker in serving):
            slots = sum(each.slots.get(queue, each.concurrency) for each in serving)
            found.append(_saturation([tally], slots, serving, queue))
    if everywhere:
        queues = {tally.queue for tally in everywhere}
        serving = [worker for worker in alive if queues & set(worker.queues)]
        busy: dict[str, int] = {}
        for worker in serving:
            for queue, count in worker.busy.items():
                busy[queue] = busy.get(queue, 0) + count
        slots = sum(worker.concurrency for worker in serving)
        slowest = max(busy, key=lambda queue: busy[queue], default="")
        found.insert(0, _saturation(everywhere, slots, serving, slowest))
    return found


def _is_full(worker: WorkerInfo, queue: str) -> bool:
    if worker.running >= worker.concurrency:
        return True
    return worker.busy.get(queue, 0) >= worker.slots.get(queue, worker.concurrency)


def _saturation(
    tallies: Sequence[Tally], slots: int, workers: Sequence[WorkerInfo], slowest: str
) -> Saturation:
    there = [each for each in durations(workers) if each.queue == slowest]
    return Saturation(
        queues=tuple(tally.queue for tally in tallies),
        waiting=sum(tally.counts.get(State.READY, 0) for tally in tallies),
        late=max(tally.late or 0 for tally in tallies),
        slots=slots,
        slowest=slowest,
        busy=sum(worker.busy.get(slowest, 0) for worker in workers),
        command=next((each for each in there if not each.is_effect), None),
        effect=next((each for each in there if each.is_effect), None),
    )
