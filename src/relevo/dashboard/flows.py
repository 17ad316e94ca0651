"""Flows as drawings, with the reason each node waits; groups of jobs, and their counts."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from relevo.dashboard.board import Board, more_of, one
from relevo.dashboard.drawing import HEIGHT, WIDTH, drawn
from relevo.job import LIVE, State

WALK = 8
"""So many pages of jobs are looked through for flows before the person is asked to go on."""
ROWS = 200
"""So many nodes are listed below the drawing."""


async def flows(board: Board, request: Request) -> Response:
    params = request.query_params
    unfinished = one(params, "unfinished") is not None
    rows, cursor = await board.desk(request).flows(
        unfinished=unfinished, cursor=one(params, "cursor"), limit=30, walk=WALK
    )
    return board.page(
        request,
        "flows",
        flows=rows,
        unfinished=unfinished,
        more=more_of(request, cursor),
        is_later=one(params, "cursor") is not None,
    )


async def flow(board: Board, request: Request) -> Response:
    desk = board.desk(request)
    flow = await desk.flow(request.path_params["id"])
    reasons = await desk.explain(flow)
    bad = [node for node in flow.nodes if node.state in (State.DEAD, State.CANCELLED)]
    return board.page(
        request,
        "flow",
        flow=flow,
        drawing=drawn(flow, reasons),
        width=WIDTH,
        height=HEIGHT,
        rows=ROWS,
        reasons=reasons[:ROWS],
        hidden=max(0, len(reasons) - ROWS),
        is_live=any(node.state in LIVE for node in flow.nodes),
        is_bad=bool(bad),
        began=min(node.inserted_at for node in flow.nodes),
    )


async def groups(board: Board, request: Request) -> Response:
    return board.page(request, "jobgroups", groups=await board.desk(request).job_groups())


async def group(board: Board, request: Request) -> Response:
    found = await board.desk(request).job_group(request.path_params["id"])
    return board.page(request, "jobgroup", group=found)
