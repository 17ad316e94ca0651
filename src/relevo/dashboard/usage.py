"""What the store is asked for, as far as it can be known, and what it says of itself."""

from __future__ import annotations

from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from relevo.budget import BILLED, DAY, JOB, TURN, idle_cost, pace_within
from relevo.dashboard.board import Board
from relevo.dashboard.live import Look
from relevo.desk import Desk, OutboxView
from relevo.errors import SettingsError
from relevo.job import LIVE, State
from relevo.relay import Relayed

LETTERS = 200
"""Letters of an outbox are counted up to here."""


async def usage(board: Board, request: Request) -> Response:
    desk = board.desk(request)
    look = await board.live(request).look()
    sent = getattr(desk.store, "commands", None)
    return board.page(
        request,
        "usage",
        store=desk.store,
        spend=_spend(board, look) if desk.store.name in BILLED else None,
        sent=sent if isinstance(sent, int) else None,
        outbox=await _outbox(desk),
        most=LETTERS,
        findings=await desk.store.check(),
        stored=[(state, look.total(state), look.is_estimate(state)) for state in State],
        counts=sorted(board.relevo.telemetry.counts.items()),
    )


class Spend(NamedTuple):
    """Commands a day, by what causes them."""

    causes: list[tuple[str, float]]
    budget: float | None
    left: float = 0  # jobs a day
    error: str = ""


def _spend(board: Board, look: Look) -> Spend:
    relevo, settings, store = board.relevo, board.web.settings, board.relevo.store.name
    budget = settings.budget.a_day if settings.budget else None
    queues = len(relevo.wants()) or 1
    has_recurring = relevo.recurring.is_any
    try:
        pace = pace_within(
            settings.budget,
            store=store,
            lease=settings.lease,
            queues=queues,
            has_recurring=has_recurring,
        )
    except SettingsError as error:
        return Spend([], budget, error=str(error))
    slots = queues if store == "cluster" else 1
    alive = sum(worker.is_alive for worker in look.workers)
    idle = idle_cost(pace, slots=slots, has_recurring=has_recurring) * max(alive, 1)
    polls = 0.0
    counts = {tally.queue: tally.counts for tally in look.tallies}
    for app in relevo.apps:
        for poller in app.pollers:
            mine = counts.get(poller.command.__relevo__.queue, {})
            keys = sum(mine.get(state, 0) for state in LIVE)
            polls += keys * TURN * DAY / poller.every.total_seconds()
    causes = [("idle workers", idle), ("pollers", polls)]
    return Spend(causes, budget, max(0.0, (budget or 0) - idle - polls) / JOB)


async def _outbox(desk: Desk) -> OutboxView | None:
    """The letters that wait in a database beside the store, where there is one."""
    if not isinstance(desk.store, Relayed):
        return None
    ledger = desk.store.ledger
    return await desk.outbox(ledger, await ledger.now(), LETTERS)
