"""Runs pollers and schedules: jobs that snooze until their next turn instead of ending."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from relevo.app import Binding
from relevo.backoff import constant
from relevo.clock import LONGEST, duration, milliseconds, moment
from relevo.context import Context
from relevo.errors import CircuitOpen, LeaseLost, MisuseError, StoreUnavailable
from relevo.follow_ups import of_tick
from relevo.ids import derived_id, moment_of
from relevo.job import JOINS
from relevo.lengths import length_of
from relevo.message import Command
from relevo.outcome import Again, Cancelled, Dead, Outcome, describe, ordinary, reason, scrub
from relevo.pending import check_awaited
from relevo.poller import (
    PAUSED,
    REASON_MAX,
    RUN,
    Poll,
    Poller,
    Progress,
    pack_item,
    unpack_item,
)
from relevo.runner import too_long
from relevo.schedule import Schedule
from relevo.sealing import unsealed
from relevo.telemetry import log

if TYPE_CHECKING:
    from relevo.engine import Relevo

REST_WHEN_OFF = timedelta(seconds=60)
SOON = timedelta(milliseconds=1)

FAILED = constant("10s")  # how long a schedule waits before it tries a tick again

_decode = msgspec.json.Decoder(Progress).decode


def _failed(progress: Progress, error: Exception) -> Progress:
    """What is remembered after a turn that failed: the same, and why."""
    failure = describe(error)
    error_text = f"{failure.type}: {failure.message}"[:500]
    return msgspec.structs.replace(progress, failures=progress.failures + 1, error=error_text)


async def _called(poller: Poller, turn: Poll, ctx: Context) -> None:
    try:
        await poller.function(turn, ctx)
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:
        raise ordinary(error) from error


class Recurring:
    """Every poller and schedule of the apps, bound to the commands that carry them."""

    def __init__(self, engine: Relevo) -> None:
        self._engine = engine
        self._pollers = [poller for app in engine.apps for poller in app.pollers]
        self._schedules = [schedule for app in engine.apps for schedule in app.schedules]

    @property
    def is_any(self) -> bool:
        return bool(self._pollers or self._schedules)

    @property
    def queues(self) -> frozenset[str]:
        """Where the jobs that never end are."""
        every = (*self._pollers, *self._schedules)
        return frozenset(item.command.__relevo__.queue for item in every)

    def bindings(self) -> list[Binding]:
        """What the worker needs to run them like any other job."""
        made = [self._bind(poller, poller.command, self._poll(poller)) for poller in self._pollers]
        made += [self._bind(poller, poller.aside, self._bury(poller)) for poller in self._pollers]
        return made + [
            self._bind(schedule, schedule.command, self._tick(schedule))
            for schedule in self._schedules
        ]

    async def ensure(self) -> None:
        """See that every key has its job; one insert for all, harmless to repeat."""
        orders: list[Command] = []
        for schedule in self._schedules:
            orders.append(schedule.command(name=schedule.name))  # pyright: ignore[reportCallIssue] - the class made in schedule()
        wrong: list[Exception] = []
        for poller in self._pollers:
            try:
                keys = await poller.keys()
            except Exception as error:  # noqa: BLE001 - a list of keys may raise anything; told below
                wrong.append(error)
                continue
            for key, values in keys:
                orders.append(poller.command(key=key, values=values))  # pyright: ignore[reportCallIssue] - the class made in poller()
        if orders:
            await self._engine.enqueue_many(orders)
        if wrong:
            raise wrong[0]

    def _bind(
        self, owner: Poller | Schedule, command: type[Command], function: Callable[..., Any]
    ) -> Binding:
        function.__module__ = owner.function.__module__
        function.__qualname__ = owner.function.__qualname__
        app = owner.name.partition(".")[0]
        return Binding(app, function, command, command.__relevo__, True, True)

    async def _progress(self, ctx: Context) -> Progress:
        [job] = await self._engine.store.find([ctx.id])
        return Progress() if job is None or job.result is None else _decode(unsealed(job.result))

    async def _is_off(self, name: str) -> bool:
        [note] = await self._engine.store.recall(PAUSED, [name])
        return note is not None

    def _poll(self, poller: Poller) -> Callable[..., Any]:
        async def poll(order: Any, ctx: Context) -> Outcome:
            progress = await self._progress(ctx)
            progress.ttl = milliseconds(poller.heartbeat)
            progress.turned_at = await self._engine.time.now()
            is_off = await self._is_off(order.key)

            async def put_aside(item: Any, why: str) -> None:
                same, fields = pack_item(item)
                bad = poller.aside(key=order.key, reason=scrub(why)[:REASON_MAX], **fields)  # pyright: ignore[reportCallIssue] - the class made in poller()
                # Once, also if the turn is tried again or the provider sends it for ever.
                id = derived_id(moment_of(ctx.id), f"{ctx.id}/{same}")
                await self._engine.enqueue_as(id, bad)

            turn = Poll(order.key, order.values, progress.cursor, progress.failures)
            turn.put_aside, turn.pending = put_aside, ctx.pending

            def again() -> tuple[timedelta, bytes]:
                now = self._engine.time.last()
                kept = Progress(cursor=turn.cursor, last_at=now, turned_at=now, ttl=progress.ttl)
                rest = duration(turn.rest or 0) or poller.rest()
                return rest, msgspec.json.encode(kept)

            ctx.is_recurring = True
            limit = poller.timeout.total_seconds()
            timer = asyncio.timeout(limit)
            try:
                # Its own, before the job's: a turn that takes too long fails, and spends nothing.
                async with timer:
                    if order.key not in {key for key, _ in await poller.keys()}:
                        return Cancelled(f"nobody asks for '{order.key}' any more")
                    if is_off:
                        return Again(REST_WHEN_OFF, msgspec.json.encode(progress), is_over=False)
                    await _called(poller, turn, ctx)
                    check_awaited(ctx.pending)
                return Again(*again())
            except (CircuitOpen, LeaseLost, StoreUnavailable):
                raise
            except Exception as error:
                if away := self._engine.outage(error):
                    raise away from error
                is_late = isinstance(error, TimeoutError)
                kept = _failed(progress, too_long(error, timer, limit) if is_late else error)
                told = {"poller": order.key, "failures": kept.failures, "error": kept.error}
                log.warning("poller failed", extra=told)
                rest = length_of(turn.rest)
                if rest is None or not timedelta() < rest <= LONGEST:
                    rest = poller.backoff.after(kept.failures)
                return Again(rest, msgspec.json.encode(kept), is_over=False)

        return poll

    def _bury(self, poller: Poller) -> Callable[..., Any]:
        async def bury(order: Any, ctx: Context) -> Any:
            [job] = await self._engine.store.find([ctx.id])
            is_retried = job is not None and any(run.outcome == "dead" for run in job.history)
            if poller.mend is None or not is_retried:
                return Dead(order.reason, failure=reason("BadItem", order.reason))
            return await poller.mend(unpack_item(order), ctx)

        return bury

    def _tick(self, schedule: Schedule) -> Callable[..., Any]:
        async def tick(order: Any, ctx: Context) -> Outcome:
            progress = await self._progress(ctx)
            now = await self._engine.time.now()
            last = progress.last_at or now
            joined: list[str] = []
            if not await self._is_off(schedule.name):
                try:
                    for moment_due in schedule.due(last, now):
                        joined = await self._order(schedule, moment_due, ctx)
                    joined += await self._order_asked(schedule, ctx)
                except (LeaseLost, StoreUnavailable):
                    raise
                except Exception as error:
                    if away := self._engine.outage(error):
                        raise away from error
                    kept = _failed(msgspec.structs.replace(progress, last_at=last), error)
                    told = {"schedule": schedule.name, "failures": kept.failures}
                    log.warning("schedule failed", extra={**told, "error": kept.error})
                    wait = FAILED.after(kept.failures)
                    return Again(wait, msgspec.json.encode(kept), is_over=False)
            following = schedule.next_after(now)
            if following is None:
                return Cancelled(f"'{schedule.cron}' has no tick left")
            kept = msgspec.json.encode(Progress(last_at=now, joined=tuple(joined[:JOINS])))
            return Again(max(SOON, moment(following) - moment(now)), kept)

        return tick

    async def _order_asked(self, schedule: Schedule, ctx: Context) -> list[str]:
        [asked] = await self._engine.store.recall(RUN, [schedule.name])
        if asked is None:
            return []
        joined = await self._order(schedule, msgspec.json.decode(asked.value, type=int), ctx)
        await self._engine.store.forget(RUN, [schedule.name])
        return joined

    async def _order(self, schedule: Schedule, tick: int, ctx: Context) -> list[str]:
        """Enqueue the commands of one tick; returns the jobs that they joined by their keys."""
        engine = self._engine
        asked = of_tick(schedule.name, tick, engine.seal, milliseconds(engine.keep_dead))
        orders = schedule.orders(tick)
        if ctx.pending:
            told = next(iter(ctx.pending)).told
            ctx.pending.clear()
            raise MisuseError(
                f"{told} in the function of a schedule does nothing, for nothing awaits it: return "
                "the command, or a list of commands"
            )
        joined = [await engine.enqueue_for(asked, order) for order in orders]
        return [id for id in joined if id is not None]
