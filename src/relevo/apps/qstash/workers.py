"""One attempt, one tick, one tidying."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import msgspec
from sqlalchemy import delete, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from relevo import Context, Dead, Done, Relevo, Snooze, sources
from relevo.apps.qstash import expression
from relevo.apps.qstash.client import Called, Caller, Failed, Forbidden, Guard
from relevo.apps.qstash.office import Office, Origin
from relevo.apps.qstash.queues import Deliver, Tick, Tidy
from relevo.apps.qstash.records import (
    ACTIVE,
    FAILED,
    Event,
    FlowKey,
    Keys,
    Message,
    Queue,
    Schedule,
    Seen,
    Slot,
)
from relevo.apps.qstash.settings import QStashSettings
from relevo.apps.qstash.wire import DAY, Wish, Wrong, asked_wait
from relevo.pairs import Headers
from relevo.telemetry import log
from relevo.webhook import Delivery

LOOK_AGAIN = timedelta(seconds=1)
NO_MORE = 489


@dataclass(frozen=True, slots=True)
class Post:
    """What workers and the API share."""

    relevo: Relevo
    office: Office
    settings: QStashSettings

    async def keys(self, tx: AsyncSession) -> tuple[str, str]:
        """The signing keys that count now."""
        row = await tx.get(Keys, 1)
        return (row.current, row.next) if row else (self.settings.current, self.settings.next)


@asynccontextmanager
async def open_post(relevo: Relevo) -> AsyncGenerator[Post]:
    settings = relevo.use(QStashSettings)
    caller = Caller(Guard(allow=settings.allow), settings.rewrite)
    try:
        yield Post(relevo, Office(relevo, caller), settings)
    finally:
        await caller.close()


async def deliver(order: Deliver, ctx: Context) -> Done | Snooze | Dead | None:
    """Make one attempt. A worker that dies in the middle makes it again: at least once."""
    post = ctx.use(Post)
    office = post.office
    async with post.relevo.transaction() as tx:
        message = await tx.get(Message, order.message_id)
        if message is None or message.retried != order.retried:
            return Done("it has gone on without this attempt")
        if message.state not in (ACTIVE, FAILED):  # a dead letter that a person tries again
            return Done(f"it is {message.state}")
        wait = await _not_yet(tx, office, message)
        if wait is not None:
            return Snooze(wait)
        office.note(tx, message, "ACTIVE")
        current, _ = await post.keys(tx)
    wish = message.wishes
    # relevo: allow RV010 QStash promises at least once, and the message's id tells a repetition
    answer, error, is_final = await _call(post, message, wish, current)
    if not error:
        async with ctx.transaction() as tx:
            now = await tx.get(Message, message.id, with_for_update=True)
            if now is not None and now.state in (ACTIVE, FAILED) and answer is not None:
                await office.delivered(tx, now, answer)
        return None
    if message.retried < wish.retries and not is_final and message.state == ACTIVE:
        async with ctx.transaction() as tx:
            now = await tx.get(Message, message.id, with_for_update=True)
            if now is not None and now.state == ACTIVE:
                wait_ms = backoff(wish, message.retried, answer, post)
                await office.retry(tx, now, answer, error, wait_ms)
                await tx.execute(delete(Slot).where(Slot.message_id == message.id))
        return None
    async with post.relevo.transaction() as tx:
        now = await tx.get(Message, message.id, with_for_update=True)
        if now is not None and now.state == ACTIVE:
            await office.failed(tx, now, answer, error)
    return Dead(error)


async def _not_yet(tx: AsyncSession, office: Office, message: Message) -> timedelta | None:
    """How long to wait for a paused queue, or for room under a flow-control key."""
    if message.queue is not None:
        queue = await tx.get(Queue, message.queue)
        if queue is not None and queue.paused:
            return LOOK_AGAIN
    if message.flow_key is None:
        return None
    flow = await tx.get(FlowKey, message.flow_key, with_for_update=True)
    if flow is None:
        return None
    if flow.is_paused:
        return LOOK_AGAIN
    now = office.now()
    if flow.parallelism:
        running = await tx.scalar(
            select(func.count())
            .select_from(Slot)
            .where(Slot.key == flow.key, Slot.until > now, Slot.message_id != message.id)
        )
        if (running or 0) >= flow.parallelism:
            return LOOK_AGAIN / 4
    if flow.rate:
        slot = await tx.get(Slot, message.id)
        is_counted = slot is not None and slot.is_counted(now)
        if not (is_counted or flow.count_one(now)):
            return timedelta(milliseconds=max(10, flow.window_end - now))
    await tx.merge(Slot(message_id=message.id, key=flow.key, until=now + 7_200_000))
    return None


async def _call(
    post: Post, message: Message, wish: Wish, key: str
) -> tuple[Called | None, str, bool]:
    """The answer, what is wrong with it if something is, and whether that is final."""
    seconds = post.settings.seconds
    if wish.timeout is not None:
        seconds = min(seconds, max(wish.timeout / 1000, 0.001))
    headers = [(name, value) for name, values in wish.headers.items() for value in values]
    known = {name.lower() for name, _ in headers}
    own = {
        "user-agent": "Upstash-QStash",
        "accept-encoding": "identity",
        "upstash-message-id": message.id,
        "upstash-retried": str(message.retried),
        "upstash-signature": sign(post, message, key),
        "upstash-topic-name": message.topic or "",
        "upstash-schedule-id": message.schedule_id or "",
        "upstash-caller-ip": message.caller_ip or "",
    }
    headers += [(name, value) for name, value in own.items() if value and name not in known]
    try:
        answer = await post.office.caller.call(
            wish.method, message.url, headers, message.body, seconds
        )
    except Forbidden as error:
        return None, f"not called: {error}", True
    except Failed as error:
        return None, str(error), False
    if 200 <= answer.status < 300:
        return answer, "", False
    told = {name.lower(): values[-1].lower() for name, values in answer.headers.items()}
    is_final = answer.status == NO_MORE and told.get("upstash-nonretryable-error") == "true"
    return answer, f"the destination answered {answer.status}", is_final


def sign(post: Post, message: Message, key: str) -> str:
    """The JWT of `Upstash-Signature`, for the URL as it was published."""
    scheme = sources.qstash(key, key, message.url).scheme
    now = post.relevo.clock.now()
    sent = Delivery(path="/", headers=Headers(), body=message.body, received_at=now)
    return scheme.sign(sent, now).headers["upstash-signature"]


def backoff(wish: Wish, retried: int, answer: Called | None, post: Post) -> int:
    """Milliseconds until the next attempt: what the destination asks for, or what was wished."""
    asked = None if answer is None else asked_wait(answer.headers, post.relevo.clock.now())
    if asked is not None:
        return asked
    if wish.retry_delay is not None:
        try:
            return min(DAY, round(expression.delay(wish.retry_delay, retried)))
        except expression.WrongExpression:
            return DAY
    return min(DAY, round(math.exp(2.5 * min(retried + 1, 10)) * 1000))


async def tick(order: Tick, ctx: Context) -> None:
    """Publish once for this moment; a tick of an older generation does nothing."""
    office = ctx.use(Post).office
    async with ctx.transaction() as tx:
        schedule = await tx.get(Schedule, order.schedule_id, with_for_update=True)
        if schedule is None or schedule.generation != order.generation:
            return
        if not schedule.is_paused:
            origin = Origin(schedule.caller_ip, schedule.id)
            try:
                taken = await office.take(
                    tx, schedule.destination, schedule.wishes, schedule.body, origin
                )
            except Wrong as error:
                taken = []
                if error.status != 404:  # a group may be gone today and back tomorrow
                    facts = {"schedule": schedule.id, "error": str(error)}
                    log.warning("a schedule cannot publish", extra=facts)
            schedule.last_at = order.at
            schedule.last_messages = msgspec.json.encode([each.id for each in taken])
        # From now on: what was missed while nobody worked is not made up for.
        await office.tick_at(tx, schedule, max(order.at, office.now()))


async def tidy(order: Tidy, ctx: Context) -> None:
    """Forget what ended long ago; dead letters stay for ninety days."""
    post = ctx.use(Post)
    now = post.office.now()
    async with ctx.transaction() as tx:
        for days, is_dead in ((post.settings.keep_days, False), (90, True)):
            old = (
                select(Message.id)
                .where(
                    Message.finished_at < now - days * DAY,
                    Message.dlq_id.is_not(None) if is_dead else Message.dlq_id.is_(None),
                )
                .limit(5_000)
            )
            ids = list(await tx.scalars(old))
            for start in range(0, len(ids), 500):
                some = ids[start : start + 500]
                await tx.execute(delete(Event).where(Event.message_id.in_(some)))
                await tx.execute(delete(Message).where(Message.id.in_(some)))
        await tx.execute(delete(Seen).where(Seen.until < now))
        await tx.execute(delete(Slot).where(func.abs(Slot.until) < now))
