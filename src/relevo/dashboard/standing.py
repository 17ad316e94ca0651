"""What stands by itself: breakers, pollers and schedules, effects."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from relevo.clock import moment
from relevo.dashboard.board import Board, limit_of, more_of, one
from relevo.desk import RecurringView
from relevo.errors import DefinitionError
from relevo.job import State
from relevo.payload import mask
from relevo.store import EffectState

TICKS = 3


async def breakers(board: Board, request: Request) -> Response:
    desk = board.desk(request)
    found = await desk.breakers()
    return board.page(request, "breakers", breakers=found)


async def breaker(board: Board, request: Request) -> Response:
    desk = board.desk(request)
    name = request.query_params.get("name", "")
    found = await desk.breaker(name)
    audits, _ = await desk.audits(target=name[:500], limit=20) if desk.apps is None else ([], None)
    changes = [each for each in await desk.changes() if each.place == f"breaker {name}"]
    return board.page(request, "breaker", breaker=found, audits=audits, changes=changes)


# pollers and schedules


class Row(NamedTuple):
    """One key of a poller, or a schedule, with what the apps here know of it."""

    seen: RecurringView
    what: Literal["poller", "schedule"]
    health: Literal["alive", "failing", "silent", "paused", "ended"]
    timetable: str = ""
    ticks: tuple[str, ...] = ()


async def recurring(board: Board, request: Request) -> Response:
    desk = board.desk(request)
    now = await desk.store.now()
    may_reveal = board.person(request).may("reveal")
    rows: list[Row] = []
    for what in ("poller", "schedule"):
        for seen in await desk.recurring(what):
            if seen.cursor is not None and not may_reveal:
                seen = replace(seen, cursor=mask(seen.cursor))
            rows.append(_row(board, what, seen, now))
    return board.page(
        request,
        "recurring",
        pollers=[row for row in rows if row.what == "poller"],
        schedules=[row for row in rows if row.what == "schedule"],
    )


def _row(board: Board, what: Literal["poller", "schedule"], seen: RecurringView, now: int) -> Row:
    health: Any = "alive"
    if seen.is_paused:
        health = "paused"
    elif seen.state in (State.DONE, State.DEAD, State.CANCELLED):
        health = "ended"
    elif seen.is_silent:
        health = "silent"
    elif seen.failures:
        health = "failing"
    timetable, ticks = "", list[str]()
    for app in board.relevo.apps:
        for schedule in app.schedules if what == "schedule" else ():
            if schedule.name == seen.name:
                timetable = f"{schedule.cron} {schedule.tz}"
                tick: int | None = now
                while len(ticks) < TICKS and (tick := schedule.next_after(tick)) is not None:
                    local = moment(tick).astimezone(schedule.tz)
                    ticks.append(local.strftime("%Y-%m-%d %H:%M %z"))
        for poller in app.pollers if what == "poller" else ():
            if poller.name == seen.function:
                timetable = f"{poller.every.total_seconds():g} s"
    return Row(seen, what, health, timetable, tuple(ticks))


# effects


async def effects(board: Board, request: Request) -> Response:
    """The ledger; what a person has to decide stands first."""
    desk = board.desk(request)
    params = request.query_params
    names = [name for name in params.getlist("state") if name]
    wrong = set(names) - set(EffectState)
    if wrong:
        raise DefinitionError(f"no effect is {min(wrong)!r:.40}: {', '.join(EffectState)}")
    states = frozenset(map(EffectState, names))
    cursor = one(params, "cursor")
    rows, more = await desk.effects(
        states=states,
        job=one(params, "job"),
        text=one(params, "text"),
        cursor=cursor,
        limit=limit_of(params),
    )
    is_plain = not (states or cursor or one(params, "job") or one(params, "text"))
    unknown = frozenset({EffectState.UNKNOWN})
    first, _ = await desk.effects(states=unknown, limit=50) if is_plain else ([], None)
    return board.page(
        request,
        "effects",
        first=[board.shown_effect(request, effect) for effect in first],
        effects=[board.shown_effect(request, each) for each in rows if each not in first],
        states=list(EffectState),
        chosen=states,
        text=one(params, "text"),
        job=one(params, "job"),
        more=more_of(request, more),
    )


async def effect(board: Board, request: Request) -> Response:
    """One effect, and the decision about it."""
    desk = board.desk(request)
    params = request.query_params
    found = await desk.effect(params.get("job", ""), params.get("name", ""))
    askers = await desk.askers(found)
    return board.page(
        request,
        "effect",
        effect=board.shown_effect(request, found),
        jobs=[board.shown(request, job) for job in askers],
        can_decide=all(job.state not in (State.RUNNING, State.DONE) for job in askers)
        and found.state is not EffectState.CONFIRMED,
        can_tell=all(job.state in (State.HELD, State.DEAD) for job in askers)
        and found.state is EffectState.CONFIRMED
        and (found.result is None or bool(found.decided_by)),
    )
