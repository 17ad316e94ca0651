"""Pages that look at the whole: overview, search, thread, queues, workers, usage, audit."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from relevo.dashboard.board import Board, limit_of, more_of, one, picked, when
from relevo.dashboard.live import TooMany
from relevo.desk import LATE, durations, slowest_of
from relevo.errors import NotFoundError
from relevo.job import State
from relevo.message import Spec
from relevo.store import Audit, Filter, WorkerInfo

AGES = 8
"""Queues on the overview, by the age of their oldest job."""


async def overview(board: Board, request: Request) -> Response:
    look = await board.live(request).look()
    aged = sorted(look.tallies, key=lambda tally: -(tally.oldest or 0))
    workers = [worker for worker in look.workers if worker.is_alive]
    return board.page(
        request,
        "overview",
        look=look,
        oldest=[tally for tally in aged[:AGES] if tally.oldest is not None],
        late=LATE,
        workers=workers,
        busy=sum(worker.running for worker in workers),
        slots=sum(worker.concurrency for worker in workers),
        totals=[(state, look.total(state)) for state in State],
        changes=await board.desk(request).changes(),
        sweeps=board.sweeps.under_way(board.desk(request).apps),
    )


# live


async def stream(board: Board, request: Request) -> Response:
    """Looks as they are taken, for pages of ours that say they can read them."""
    if "text/event-stream" not in request.headers.get("accept", ""):
        return Response("ask for text/event-stream", status_code=406, media_type="text/plain")
    origin = request.headers.get("origin")
    host = request.headers.get("host", "")
    if origin is not None and origin.partition("://")[2] != host:
        return Response("wrong origin", status_code=403, media_type="text/plain")
    try:
        return board.live(request).watch(board.person(request).name)
    except TooMany as error:
        return Response(str(error), 429, {"retry-after": "30"}, "text/plain")


async def history(board: Board, request: Request) -> Response:
    await board.live(request).look()
    return JSONResponse(board.live(request).rates(), headers={"cache-control": "no-store"})


# queues


async def queues(board: Board, request: Request) -> Response:
    look = await board.live(request).look()
    served = _served(look.workers)
    return board.page(
        request, "queues", tallies=look.tallies, served=served, specs=_specs(board), late=LATE
    )


async def queue(board: Board, request: Request) -> Response:
    desk = board.desk(request)
    name = request.path_params["queue"]
    tally = await desk.queue(name)
    look = await board.live(request).look()
    specs = [binding for binding in board.relevo.bindings.values() if binding.spec.queue == name]
    if not specs and not any(each.queue == name for each in look.tallies):
        raise NotFoundError(f"no queue is called {name}")
    page = await desk.jobs(Filter(queue=name), limit=20)
    return board.page(
        request,
        "queue",
        tally=tally,
        bindings=specs,
        workers=[w for w in look.workers if w.is_alive and name in w.queues],
        groups=await desk.groups(queue=name, limit=5),
        took=[each for each in durations(look.workers) if each.queue == name],
        changes=[each for each in await desk.changes() if each.name == name],
        jobs=[board.shown(request, job) for job in page.jobs],
        late=LATE,
    )


def _served(workers: list[WorkerInfo]) -> dict[str, int]:
    served: dict[str, int] = {}
    for worker in workers:
        for name in worker.queues if worker.is_alive else ():
            served[name] = served.get(name, 0) + 1
    return served


def _specs(board: Board) -> dict[str, Spec]:
    return {binding.spec.queue: binding.spec for binding in board.relevo.bindings.values()}


# workers and audit


async def workers(board: Board, request: Request) -> Response:
    found = await board.desk(request).workers()
    found.sort(key=lambda each: (not each.is_alive, not each.note, each.id))
    return board.page(request, "workers", workers=found, slowest=slowest_of)


async def audit(board: Board, request: Request) -> Response:
    params = request.query_params
    desk = board.desk(request)
    target = one(params, "target")
    rows: list[Audit] = []
    cursor = None
    # Who sees some apps only has to say what of theirs they mean.
    if desk.apps is None or target is not None:
        rows, cursor = await desk.audits(
            target=target,
            who=one(params, "who"),
            verb=one(params, "verb"),
            since=when(params, "since"),
            cursor=one(params, "cursor"),
            limit=limit_of(params),
        )
    more = more_of(request, cursor)
    return board.page(
        request,
        "audit",
        rows=rows,
        target=target,
        who=one(params, "who"),
        verb=one(params, "verb"),
        since=when(params, "since"),
        picked=picked,
        more=more,
    )
