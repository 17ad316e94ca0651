"""Jobs and dead letters, one and many."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from relevo.dashboard.board import (
    MOMENTS,
    Board,
    filter_of,
    limit_of,
    more_of,
    one,
    picked,
    query_of,
    verb_of,
)
from relevo.dashboard.meant import meant as also_meant
from relevo.desk import SWEEPABLE, meant
from relevo.errors import NotFoundError
from relevo.job import ENDED, LIVE, Job, State
from relevo.store import EffectState, Filter
from relevo.web.doors import go
from relevo.web.room import pretty

COUNTED = 1_000
"""A list says how many there are up to here; beyond, that there are more."""
PREVIEWED = 20_000
"""The same for the preview of a sweep."""
UNDECIDED = frozenset({EffectState.UNKNOWN, EffectState.INTENDED})

RETRIABLE = SWEEPABLE["retry"]
DISCARDABLE = frozenset({State.DEAD, State.HELD})
EDITABLE = frozenset(State) - {State.RUNNING, State.DONE}


async def jobs(board: Board, request: Request) -> Response:
    desk = board.desk(request)
    params = request.query_params
    where = filter_of(params)
    page = await desk.jobs(where, one(params, "cursor"), limit_of(params))
    look = await board.live(request).look()
    return board.page(
        request,
        "jobs",
        where=where,
        meant=also_meant(board.words(request), where.text, "/jobs", "text"),
        jobs=[board.shown(request, job) for job in page.jobs],
        # Text is looked for job by job: to count what has it would be to read everything.
        count=await desk.count(where, most=COUNTED) if where.text is None else None,
        many=COUNTED,
        more=more_of(request, page.cursor),
        queues=[tally.queue for tally in look.tallies],
        states=list(State),
        bulk={
            verb: query_of(where)
            for verb, states in SWEEPABLE.items()
            if where.states and where.states <= states
        },
        picked={name: picked(getattr(where, name)) for name in MOMENTS},
        is_later=one(params, "cursor") is not None,
    )


async def job(board: Board, request: Request) -> Response:
    id = request.path_params["id"]
    try:
        return await job_page(board, request, id)
    except NotFoundError:
        # Effects are kept longer than jobs, and one that several jobs share has an id of its own.
        if (await board.desk(request).effects(job=id, limit=1))[0]:
            return go(request, f"/effects?job={id}")
        raise


async def job_page(
    board: Board, request: Request, id: str, *, status: int = 200, **form: Any
) -> Response:
    """The page of one job; after a mistake with what the person had written."""
    desk = board.desk(request)
    job = await desk.job(id)
    effects, _ = await desk.effects(job=job.id, limit=200)
    audits, _ = await desk.audits(target=job.id, limit=20)
    near = [edge.child for edge in job.after] + list(job.before)
    around = await desk.store.find(near[:100])
    came = await desk.store.delivery([line.cause for line in job.joins if line.cause])
    return board.page(
        request,
        "job",
        status=status,
        job=board.shown(request, job),
        effects=[board.shown_effect(request, effect) for effect in effects],
        repeated=await desk.repeated_effects(job.id) if _can(job)["run_again"] else [],
        undecided=[effect for effect in effects if effect.state in UNDECIDED],
        audits=audits,
        is_known=(job.queue, job.kind) in board.relevo.bindings,
        edits=await desk.edits(job.id) if _can(job)["edit"] else [],
        near={each.id: each for each in around if each is not None and desk.sees(each.queue)},
        came={kept.id for kept in came if kept is not None and desk.sees(kept.endpoint)},
        can=_can(job),
        is_overdue=await desk.overdue_on(job) is not None,
        has_outlived=job.state in RETRIABLE and desk.has_outlived(job, await desk.store.now()),
        form=form,
        payload=pretty(board.shown(request, job).payload),
    )


def _can(job: Job) -> dict[str, bool]:
    """What the job's state allows; the person's role is another question."""
    return {
        "retry": job.state in RETRIABLE,
        "cancel": job.state in LIVE,
        "discard": job.state in DISCARDABLE,
        "edit": job.state in EDITABLE,
        "run_again": job.state in ENDED and job.flow is None,
    }


# dead letters


async def dead(board: Board, request: Request) -> Response:
    desk = board.desk(request)
    queue = one(request.query_params, "queue")
    groups = await desk.groups(queue=queue, limit=100)
    look = await board.live(request).look()
    dead = [tally for tally in look.tallies if tally.counts.get(State.DEAD)]
    return board.page(
        request,
        "dead",
        groups=groups,
        queue_name=queue,
        queues=[tally.queue for tally in dead],
        total=sum(tally.counts[State.DEAD] for tally in dead if queue in (None, tally.queue)),
    )


async def group(board: Board, request: Request) -> Response:
    desk = board.desk(request)
    mark = request.path_params["fingerprint"]
    where = Filter(states=frozenset({State.DEAD}), fingerprint=mark)
    page = await desk.jobs(where, one(request.query_params, "cursor"), 50)
    found = [group for group in await desk.groups(limit=200) if group.fingerprint == mark]
    newest = board.shown(request, await desk.job(page.jobs[0].id)) if page.jobs else None
    return board.page(
        request,
        "group",
        status=200 if page.jobs else 404,
        mark=mark,
        groups=found,
        count=sum(group.count for group in found),
        jobs=[board.shown(request, job) for job in page.jobs],
        newest=newest,
        more=more_of(request, page.cursor),
        query=query_of(where),
    )


# many


async def bulk(board: Board, request: Request) -> Response:
    """The preview: how many jobs, which, and with what care."""
    desk = board.desk(request)
    params = request.query_params
    verb = verb_of(one(params, "verb"))
    where = meant(verb, filter_of(params))
    page = await desk.jobs(where, None, 5)
    return board.page(
        request,
        "bulk",
        verb=verb,
        where=where,
        query=query_of(where),
        count=await _count(board, request, where),
        most=PREVIEWED,
        sample=[board.shown(request, job) for job in page.jobs],
    )


async def _count(board: Board, request: Request, where: Filter) -> int:
    """How many a sweep would take: exactly where tallies tell, and else up to a limit."""
    if where == Filter(queue=where.queue, states=where.states):
        look = await board.live(request).look()
        tallies = [each for each in look.tallies if where.queue in (None, each.queue)]
        return sum(each.counts.get(state, 0) for each in tallies for state in where.states)
    return await board.desk(request).count(where, most=PREVIEWED)


async def sweep(board: Board, request: Request) -> Response:
    found = board.sweeps.find(request.path_params["id"], board.desk(request).apps)
    return board.page(request, "sweep", sweeping=found)
