"""Health in plain words: what is wrong, how much of it, and where to click."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal
from urllib.parse import urlencode

import msgspec

from relevo.desk import LATE, BreakerView, DeliveryGroup, RecurringView, WaitView, saturations
from relevo.durations import as_text
from relevo.job import MOVING, State
from relevo.restored import Mark, WentBack
from relevo.store import DeliveryState, QueueMode, Tally, WorkerInfo
from relevo.version import mixed
from relevo.web.room import span

MOST = 12


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """One sentence: its words, what fills them, and the page that helps."""

    level: Literal["bad", "warn"]
    text: str  # to be translated, then filled
    values: dict[str, Any]
    href: str

    @property
    def is_bad(self) -> bool:
        return self.level == "bad"


def troubles(
    tallies: Sequence[Tally] = (),
    workers: Sequence[WorkerInfo] = (),
    breakers: Sequence[BreakerView] = (),
    recurring: Sequence[RecurringView] = (),
    waiting: Sequence[WaitView] = (),
    deliveries: Sequence[DeliveryGroup] = (),
    mark: Mark | None = None,
    back: WentBack | None = None,
    *,
    now: int,
) -> list[Trouble]:
    """Everything a person should know, the worst first."""
    found = [
        *_restored(mark, back, now),
        *_deliveries(deliveries),
        *_totals(tallies),
        *_breakers(breakers),
        *_waiting(waiting, now),
        *_saturations(tallies, workers),
        *_queues(tallies, workers),
        *_workers(workers),
        *_recurring(recurring, now),
    ]
    return sorted(found, key=lambda trouble: not trouble.is_bad)


def _restored(mark: Mark | None, back: WentBack | None, now: int) -> list[Trouble]:
    if back is not None:
        text = (
            "The store has less than was seen in it {ago} ago: it was restored from a copy, or a "
            "server without the last writes took over. Outside calls made since may be repeated"
        )
        return [_bad(text, "/effects?state=unknown", ago=span(now - back.seen_at))]
    if mark is None or mark.over_at:
        return []
    text = (
        "The store was restored {ago} ago from a copy that ended {age} before: outside calls that "
        "it does not know of are looked up, or put on hold"
    )
    values = {"ago": span(now - mark.at), "age": span(mark.lost)}
    return [_warn(text, "/effects?state=unknown", **values)]


def _totals(tallies: Sequence[Tally]) -> list[Trouble]:
    found: list[Trouble] = []
    if held := sum(tally.counts.get(State.HELD, 0) for tally in tallies):
        text = "{n:,} jobs are held: nobody knows what they did outside, and a person decides"
        if held == 1:
            text = "One job is held: nobody knows what it did outside, and a person decides"
        found.append(_bad(text, "/effects", n=held))
    if dead := sum(tally.counts.get(State.DEAD, 0) for tally in tallies):
        text = "{n:,} dead letters wait until their cause is mended"
        if dead == 1:
            text = "One dead letter waits until its cause is mended"
        found.append(_bad(text, "/dead", n=dead))
    return found


def _deliveries(groups: Sequence[DeliveryGroup]) -> list[Trouble]:
    found: list[Trouble] = []
    for each in groups:
        pairs = {"state": str(each.state), "endpoint": each.endpoint}
        href = "/deliveries?" + urlencode(pairs, errors="replace")
        path = each.endpoint.partition(":")[2]
        if each.state is DeliveryState.FAILED:
            text = "{n:,} failed deliveries of {path}: {error}"
            if each.count == 1:
                text = "One failed delivery of {path}: {error}"
            found.append(_bad(text, href, n=each.count, path=path, error=each.error[:200]))
        else:
            text = "{n:,} deliveries of {path} came under a known key with another body"
            if each.count == 1:
                text = "One delivery of {path} came under a known key with another body"
            found.append(_warn(text, href, n=each.count, path=path))
    return found[:MOST]


def _breakers(breakers: Sequence[BreakerView]) -> list[Trouble]:
    found: list[Trouble] = []
    for each in breakers:
        if each.circuit.state == "closed":
            continue
        href = "/breakers/one?" + urlencode({"name": each.name}, errors="replace")
        if not each.parked:  # it turns with the next call, and keeps nobody waiting until then
            text = "The breaker {name} is open; no job waits behind it"
            found.append(_warn(text, href, name=each.name[:80]))
            continue
        text = "The breaker {name} is open, and {n:,} jobs wait behind it"
        if each.parked == 1:
            text = "The breaker {name} is open, and one job waits behind it"
        found.append(_bad(text, href, name=each.name[:80], n=each.parked))
    return found[:MOST]


def _waiting(waiting: Sequence[WaitView], now: int) -> list[Trouble]:
    found: list[Trouble] = []
    for each in waiting:
        href, values = f"/jobs/{each.job}", {"queue": each.queue, "why": each.why[:200]}
        if not each.parked:
            text = "A job of {queue} waits for {age} without spending an attempt: {why}"
            found.append(_warn(text, href, age=span(now - each.since), **values))
            continue
        text = "{n:,} jobs of {queue} wait for a key that the provider accepts: {why}"
        if each.parked == 1:
            text = "One job of {queue} waits for a key that the provider accepts: {why}"
        found.append(_bad(text, href, n=each.parked, **values))
    return found[:MOST]


def _saturations(tallies: Sequence[Tally], workers: Sequence[WorkerInfo]) -> list[Trouble]:
    found: list[Trouble] = []
    for each in saturations(tallies, workers):
        values: dict[str, Any] = {"n": each.waiting, "slots": each.slots}
        text = "{n:,} jobs wait while all {slots:,} slots are taken"
        if each.slowest:
            text += ": {busy:,} by {queue}"
            values |= {"busy": each.busy, "queue": each.slowest}
        if each.slowest and each.command is not None:
            text += ", where {command} takes {took}"
            values |= {"command": each.command.name, "took": as_text(each.command.typical)}
            if each.effect is not None:
                text += " (its effect {effect} {waited})"
                values |= {"effect": each.effect.name, "waited": as_text(each.effect.typical)}
        href = f"/queues/{each.slowest}" if each.slowest else "/workers"
        found.append(_bad(text, href, **values))
    return found[:MOST]


def _queues(tallies: Sequence[Tally], workers: Sequence[WorkerInfo]) -> list[Trouble]:
    served = {queue for worker in workers if worker.is_alive for queue in worker.queues}
    found: list[Trouble] = []
    for tally in tallies:
        moving = sum(tally.counts.get(state, 0) for state in MOVING)
        href = f"/queues/{tally.queue}"
        if tally.mode is QueueMode.PAUSED:
            text = "{queue} is paused, with {n:,} jobs in it"
            if moving == 1:
                text = "{queue} is paused, with one job in it"
            found.append(_warn(text, href, queue=tally.queue, n=moving))
        elif moving and tally.queue not in served:
            text = "{queue} has {n:,} jobs to do, and no worker serves it"
            if moving == 1:
                text = "{queue} has one job to do, and no worker serves it"
            found.append(_bad(text, href, queue=tally.queue, n=moving))
        elif tally.late is not None and tally.late > LATE:
            text = "{queue} is {age} late"
            found.append(_warn(text, href, queue=tally.queue, age=span(tally.late)))
        if tally.mode is QueueMode.DRAINING:
            found.append(
                _warn("{queue} is draining: it takes no new jobs", href, queue=tally.queue)
            )
    return found[:MOST]


def _workers(workers: Sequence[WorkerInfo]) -> list[Trouble]:
    deaf = [worker for worker in workers if worker.is_alive and worker.note]
    text = "The worker {name} is alive, but says: {note}"
    found = [_warn(text, "/workers", name=each.id[:80], note=each.note[:120]) for each in deaf]
    for each in workers:
        if each.is_alive and (late := len(each.overdue)):
            text = "{n:,} plain functions of the worker {name} run past their time limits"
            if late == 1:
                text = "A plain function of the worker {name} runs past its time limit"
            found.append(_warn(text, "/workers", n=late, name=each.id[:80]))
    if lost := sum(not worker.is_alive and worker.running > 0 for worker in workers):
        text = "{n:,} workers fell silent with jobs in hand; those are taken back"
        if lost == 1:
            text = "A worker fell silent with jobs in hand; those are taken back"
        found.append(_warn(text, "/workers", n=lost))
    if versions := mixed(each.version for each in workers if each.is_alive):
        text = "Processes of {n:,} versions of relevo work here: {versions}"
        found.append(_warn(text, "/workers", n=len(versions), versions=", ".join(versions)))
    return found[-MOST:]


def _recurring(recurring: Sequence[RecurringView], now: int) -> list[Trouble]:
    found: list[Trouble] = []
    for each in recurring:
        name, late = each.name[:80], 0 if each.next_at is None else now - each.next_at
        if each.is_paused:
            continue
        if each.failures:
            text = "{name} has failed {n:,} times in a row: {error}"
            if each.failures == 1:
                text = "{name} has failed: {error}"
            error = each.error[:120]
            found.append(_warn(text, "/recurring", name=name, n=each.failures, error=error))
        elif each.is_silent:
            text = "{name} should have had its turn {age} ago"
            if late <= 0:
                text = "{name} has been silent since its last turn"
            found.append(_warn(text, "/recurring", name=name, age=span(late)))
    return found[:MOST]


def _bad(text: str, href: str, **values: Any) -> Trouble:
    return Trouble(level="bad", text=text, values=values, href=href)


def _warn(text: str, href: str, **values: Any) -> Trouble:
    return Trouble(level="warn", text=text, values=values, href=href)
