"""Office: takes messages in, lets them out of their queues, and writes down how they ended.

Everything here happens inside a transaction of the caller's, together with the jobs it orders.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from dataclasses import dataclass
from datetime import UTC
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSimError
from sqlalchemy import delete, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from relevo import Command, Relevo
from relevo.apps.qstash.client import Called, Caller, Forbidden
from relevo.apps.qstash.queues import Deliver, Tick
from relevo.apps.qstash.records import (
    ACTIVE,
    CANCELED,
    DELIVERED,
    FAILED,
    UNFINISHED,
    WAITING,
    Event,
    FlowKey,
    Group,
    Message,
    Queue,
    Schedule,
    Seen,
    Slot,
)
from relevo.apps.qstash.wire import NAME, Wish, Wrong, read_wish
from relevo.clock import moment, stamp
from relevo.ids import new_id
from relevo.schedule import next_tick

BODY_MAX = 1_048_576
SEEN_MS = 600_000
KEPT_ANSWER = 65_536
CRON_MAX = 200


@dataclass(frozen=True, slots=True)
class Taken:
    """A message that was taken in, or stood for one that was already."""

    id: str
    url: str
    is_duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a message comes from."""

    caller_ip: str | None = None
    schedule_id: str | None = None
    topic: str | None = None
    endpoint: str | None = None


class Office:
    """One QStash."""

    def __init__(self, relevo: Relevo, caller: Caller) -> None:
        self._relevo = relevo
        self.caller = caller

    def now(self) -> int:
        return stamp(self._relevo.clock.now())

    # in

    async def take(
        self, tx: AsyncSession, destination: str, wish: Wish, body: bytes, origin: Origin
    ) -> list[Taken]:
        """Take a message for a URL, or for each member of a URL group."""
        group = await self.check(tx, destination, wish, body)
        if group is None:
            return [await self._take_one(tx, destination, wish, body, origin)]
        found: list[Taken] = []
        for member in group.members:
            here = Origin(origin.caller_ip, origin.schedule_id, group.name, member.name)
            found.append(await self._take_one(tx, member.url, wish, body, here))
        return found

    async def check(
        self, tx: AsyncSession, destination: str, wish: Wish, body: bytes
    ) -> Group | None:
        """The URL group it goes to, None for a URL; Wrong when it could not be taken."""
        if len(body) > BODY_MAX:
            raise Wrong(f"the body has more than {BODY_MAX:,} bytes", 413)
        for callback in (wish.callback, wish.failure_callback):
            if callback is not None:
                self.check_url(callback, "callback")
        if destination.startswith(("http://", "https://")):
            self.check_url(destination, "destination url")
            return None
        return await self.group(tx, destination)

    def check_url(self, url: str, what: str) -> None:
        try:
            self.caller.look(url)
        except Forbidden as error:
            raise Wrong(f"invalid {what}: {error}") from error

    async def group(self, tx: AsyncSession, name: str) -> Group:
        if name.startswith("api/"):
            raise Wrong("publishing to an API of the vendor's is not offered here", 501)
        if not NAME.fullmatch(name):
            raise Wrong("invalid destination url: it begins with http:// or https://")
        found = await tx.get(Group, name)
        if found is None or not found.members:
            raise Wrong(f"url group {name} not found", 404)
        return found

    async def _take_one(
        self, tx: AsyncSession, url: str, wish: Wish, body: bytes, origin: Origin
    ) -> Taken:
        now = self.now()
        id = f"msg_{new_id()}"
        seen = await self._seen(tx, url, wish, body, id, now)
        if seen is not None:
            return Taken(seen, url, is_duplicate=True)
        not_before = wish.not_before if wish.not_before is not None else now + wish.delay
        message = Message(
            id=id,
            url=url,
            wish=msgspec.json.encode(wish),
            body=body,
            state=WAITING,
            retried=0,
            not_before=max(now, not_before),
            created_at=now,
            topic=origin.topic,
            endpoint=origin.endpoint,
            queue=wish.queue,
            schedule_id=origin.schedule_id,
            label=wish.label,
            flow_key=None if wish.flow is None else wish.flow.key,
            caller_ip=origin.caller_ip,
        )
        tx.add(message)
        self.note(tx, message, "CREATED")
        await self._follow(tx, wish, message)
        await tx.flush()
        if wish.queue is None:
            await self._let_go(tx, message)
        else:
            await self.queue(tx, wish.queue)
            await self.advance(tx, wish.queue)
        return Taken(id, url)

    async def _seen(
        self, tx: AsyncSession, url: str, wish: Wish, body: bytes, id: str, now: int
    ) -> str | None:
        """The message that had this deduplication id in the last ten minutes."""
        if wish.deduplication is not None:
            known = f"id\n{url}\n{wish.deduplication}".encode()
        elif wish.is_content_based:
            headers = msgspec.json.encode(sorted(wish.headers.items()))
            known = b"content\n" + url.encode() + b"\n" + headers + b"\n" + body
        else:
            return None
        digest = hashlib.sha256(known).hexdigest()
        found = await tx.get(Seen, digest, with_for_update=True)
        if found is None:
            tx.add(Seen(hash=digest, message_id=id, until=now + SEEN_MS))
            return None
        if found.until > now:
            return found.message_id
        found.message_id, found.until = id, now + SEEN_MS
        return None

    async def _follow(self, tx: AsyncSession, wish: Wish, message: Message) -> None:
        """Take over what a message says of its flow, and count it, where it may go at once.

        Counted only when it goes, one that came before a reset would be counted after that.
        """
        if wish.flow is None:
            return
        row = await tx.get(FlowKey, wish.flow.key, with_for_update=True)
        if row is None:
            row = FlowKey(
                key=wish.flow.key,
                is_paused=False,
                is_parallelism_pinned=False,
                is_rate_pinned=False,
                window_at=0,
                window_count=0,
            )
            tx.add(row)
        row.follow(wish.flow)
        now = self.now()
        if wish.queue is None and message.not_before <= now and row.count_one(now):
            tx.add(Slot.counted(message.id, row))

    # out of the queue

    async def queue(self, tx: AsyncSession, name: str) -> Queue:
        """A queue, made when it is first met; locked until the transaction ends."""
        found = await tx.get(Queue, name, with_for_update=True)
        if found is None:
            now = self.now()
            found = Queue(name=name, parallelism=1, paused=False, created_at=now, updated_at=now)
            tx.add(found)
            await tx.flush()
        return found

    async def advance(self, tx: AsyncSession, name: str) -> None:
        """Let as many messages of a queue go as it has room for, the oldest first."""
        queue = await self.queue(tx, name)
        if queue.paused:
            return
        await tx.flush()
        mine = Message.queue == name
        active = await tx.scalar(
            select(func.count()).select_from(Message).where(mine, Message.state == ACTIVE)
        )
        room = queue.parallelism - (active or 0)
        if room <= 0:
            return
        waiting = await tx.scalars(
            select(Message)
            .where(mine, Message.state == WAITING)
            .order_by(Message.id)
            .limit(min(room, 100))
        )
        for message in waiting:
            await self._let_go(tx, message)

    async def _let_go(self, tx: AsyncSession, message: Message) -> None:
        message.state = ACTIVE
        await self.order(tx, Deliver(message.id, message.retried), message.not_before)

    async def order(self, tx: AsyncSession, command: Command, at: int) -> None:
        await self._relevo.enqueue(command, tx=tx, at=moment(at))

    # how it ended

    async def delivered(self, tx: AsyncSession, message: Message, answer: Called) -> None:
        self._answered(message, answer)
        message.state, message.finished_at = DELIVERED, self.now()
        message.dlq_id = None
        self.note(tx, message, "DELIVERED", answer)
        await self._call_back(tx, message, answer)
        await self._ended(tx, message)

    async def retry(
        self, tx: AsyncSession, message: Message, answer: Called | None, error: str, wait: int
    ) -> None:
        at = self.now() + wait
        self._answered(message, answer)
        self.note(tx, message, "ERROR", answer, error=error)
        await self._call_back(tx, message, answer)
        message.retried += 1
        message.not_before = at
        self.note(tx, message, "RETRY", next_delivery=at)
        await self.order(tx, Deliver(message.id, message.retried), at)

    async def failed(
        self, tx: AsyncSession, message: Message, answer: Called | None, error: str
    ) -> None:
        now = self.now()
        self._answered(message, answer)
        self.note(tx, message, "ERROR", answer, error=error)
        await self._call_back(tx, message, answer)
        message.state, message.finished_at = FAILED, now
        message.dlq_id = f"{now}-{secrets.randbelow(10**9):09}"
        self.note(tx, message, "FAILED", answer, error=error)
        await self._call_back(tx, message, answer, is_failure=True)
        await self._ended(tx, message)

    async def cancel(self, tx: AsyncSession, message: Message) -> bool:
        """Stop a message that has not ended; one in flight may arrive all the same."""
        if message.state not in UNFINISHED:
            return False
        message.state, message.finished_at = CANCELED, self.now()
        self.note(tx, message, "CANCEL_REQUESTED")
        self.note(tx, message, "CANCELED")
        await self._ended(tx, message)
        return True

    async def _ended(self, tx: AsyncSession, message: Message) -> None:
        await tx.execute(delete(Slot).where(Slot.message_id == message.id))
        if message.queue is not None:
            await self.advance(tx, message.queue)

    def _answered(self, message: Message, answer: Called | None) -> None:
        message.response_status = 0 if answer is None else answer.status
        message.response_headers = None if answer is None else msgspec.json.encode(answer.headers)
        message.response_body = None if answer is None else answer.body[:KEPT_ANSWER]

    def note(
        self,
        tx: AsyncSession,
        message: Message,
        state: str,
        answer: Called | None = None,
        *,
        error: str | None = None,
        next_delivery: int | None = None,
    ) -> None:
        tx.add(
            Event(
                message_id=message.id,
                time=self.now(),
                state=state,
                error=error,
                next_delivery=next_delivery,
                response_status=None if answer is None else answer.status,
                response_body=None if answer is None else answer.body[:4_096],
            )
        )

    async def _call_back(
        self,
        tx: AsyncSession,
        message: Message,
        answer: Called | None,
        *,
        is_failure: bool = False,
    ) -> None:
        wish = message.wishes
        url = wish.failure_callback if is_failure else wish.callback
        if url is None:
            return
        given = wish.failure_callback_headers if is_failure else wish.callback_headers
        told: dict[str, Any] = {
            "status": 0 if answer is None else answer.status,
            "header": {} if answer is None else answer.headers,
            "body": "" if answer is None else base64.b64encode(answer.body).decode(),
            "retried": message.retried,
            "maxRetries": wish.retries,
            "sourceMessageId": message.id,
            "url": message.url,
            "method": wish.method,
            "sourceHeader": wish.headers,
            "sourceBody": base64.b64encode(message.body).decode(),
            "notBefore": message.not_before,
            "createdAt": message.created_at,
        }
        optional = {
            "topicName": message.topic,
            "endpointName": message.endpoint,
            "scheduleId": message.schedule_id,
            "callerIP": message.caller_ip,
            "dlqId": message.dlq_id if is_failure else None,
        }
        told |= {name: value for name, value in optional.items() if value is not None}
        own = read_wish({"content-type": "application/json", **given})
        own = msgspec.structs.replace(own, callback=None, failure_callback=None, queue=None)
        await self._take_one(tx, url, own, msgspec.json.encode(told), Origin())

    # again and again

    async def tick_at(self, tx: AsyncSession, schedule: Schedule, after: int) -> None:
        """Order the next tick of a schedule."""
        at = next_time(schedule.cron, after)
        schedule.next_at = at
        await self.order(tx, Tick(schedule.id, schedule.generation, at), at)


def next_time(cron: str, after: int) -> int:
    """The next moment of a cron expression, in UTC unless it begins with CRON_TZ=…"""
    if len(cron) > CRON_MAX:
        raise Wrong(f"invalid cron: more than {CRON_MAX} characters")
    zone: Any = UTC
    text = cron.strip()
    if text.startswith("CRON_TZ="):
        name, _, text = text.removeprefix("CRON_TZ=").partition(" ")
        try:
            zone = ZoneInfo(name)
        except (OSError, ValueError, KeyError) as error:
            raise Wrong(f"invalid cron: no time zone {name!r:.60}") from error
    try:
        at = next_tick(text.strip(), zone, after)
    except CronSimError as error:
        raise Wrong("invalid cron: five fields, such as */5 * * * *") from error
    if at is None:
        raise Wrong("invalid cron: there is no such day")
    return at
