"""Anything a person remembers, and the story that it leads to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from relevo.dashboard.board import Board, one, part
from relevo.dashboard.meant import meant
from relevo.desk import Desk, Found, Story
from relevo.errors import NotFoundError
from relevo.job import LIVE, Job, State
from relevo.store import Audit, Effect, Kept
from relevo.web import go


async def search(board: Board, request: Request) -> Response:
    text = one(request.query_params, "q") or ""
    if not text:
        return board.page(request, "search", q="", flow=None, queues=[])
    desk = board.desk(request)
    look = await board.live(request).look()
    queues = [tally.queue for tally in look.tallies if text.lower() in tally.queue][:20]
    found = await desk.search(text) if len(text) >= 3 else Found(rows=[])
    flow = await _flow(desk, text)
    ways = meant(board.words(request), text, "/search", "q")
    is_one = len(found.rows) == 1 and not (found.others or queues or flow or ways)
    if is_one:
        return go(request, f"/threads/{part(found.rows[0].thread)}")
    return board.page(
        request,
        "search",
        q=text,
        meant=ways,
        found=found,
        is_all=one(request.query_params, "part") is not None,
        flow=flow,
        queues=queues,
    )


async def _flow(desk: Desk, text: str) -> str | None:
    if not 3 <= len(text) <= 500:
        return None
    try:
        return (await desk.flow(text)).id
    except NotFoundError:
        return None


class Happening(NamedTuple):
    """One line of a story: when, what kind of thing, and what there is to tell."""

    at: int
    what: str
    job: Job | None = None
    thing: Any = None


async def thread(board: Board, request: Request) -> Response:
    name = request.path_params["thread"]
    desk = board.desk(request)
    story = await desk.trace(name)
    deliveries = [board.shown_delivery(request, kept) for kept in story.deliveries]
    audits = await _audits(desk, story)
    jobs = {job.id: board.shown(request, job) for job in story.jobs}
    effects = [board.shown_effect(request, effect) for effect in story.effects]
    tree = list(story.tree())
    depths = {job.id: depth for depth, job in tree}
    happenings = in_order(deliveries, list(jobs.values()), effects, audits, depths)
    began = happenings[0].at if happenings else 0
    return board.page(
        request,
        "thread",
        name=story.threads[0] if story.threads else name,
        story=story,
        tree=[(depth, jobs[job.id]) for depth, job in tree],
        jobs=jobs,
        effects=effects,
        deliveries=deliveries,
        happenings=happenings,
        began=began,
        took=happenings[-1].at - began if happenings else 0,
        live=sum(job.state in LIVE for job in jobs.values()),
    )


async def _audits(desk: Desk, story: Story) -> list[Audit]:
    found: list[Audit] = []
    for job in story.jobs[:20]:
        found += (await desk.audits(target=job.id, limit=20))[0]
    return found


def in_order(
    deliveries: Sequence[Kept],
    jobs: Sequence[Job],
    effects: Sequence[Effect],
    audits: Sequence[Audit],
    depths: Mapping[str, int],
) -> list[Happening]:
    """Everything that happened, causes before what came of them."""
    known = {job.id: job for job in jobs}
    found = [Happening(kept.received_at, "delivery", None, kept) for kept in deliveries]
    found += [
        Happening(kept.repeated_at, "repeat", None, kept) for kept in deliveries if kept.repeats
    ]
    for job in jobs:
        found.append(Happening(job.inserted_at, "enqueued", job))
        found += [Happening(run.ended_at, "run", job, run) for run in job.history]
        if job.state is State.RUNNING:
            found.append(Happening(job.run_at, "running", job))
        is_told = any(run.outcome == job.state for run in job.history)
        if job.ended_at and not is_told:
            found.append(Happening(job.ended_at, "ended", job))
    for effect in effects:
        at = effect.updated_at or effect.created_at
        found.append(Happening(at, "effect", known.get(effect.job), effect))
    found += [Happening(row.at, "audit", known.get(row.target), row) for row in audits]
    order = ("delivery", "repeat", "enqueued", "running", "effect", "run", "ended", "audit")

    def place(each: Happening) -> tuple[int, int, int]:
        # Much happens in one millisecond: what a job led to comes after what it did.
        depth = -1 if each.job is None else depths.get(each.job.id, 0)
        return each.at, depth, order.index(each.what)

    return sorted(found, key=place)
