"""Gate: takes one HTTP call at a webhook's door, from its first line to its answer.

In this order, so that nobody gets further than they have shown they may: method, size, content
type, body, signature over the raw bytes, nonce, key, function, kept, answered. No 2xx leaves
before what it stands for is safe.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from functools import partial
from typing import TYPE_CHECKING

from relevo.clock import moment, stamp
from relevo.errors import QueueClosed, StoreError
from relevo.ingress.body import BODY_SECONDS, Gone, check_head, read_body, unpacked
from relevo.ingress.refusals import Refusals
from relevo.ingress.reply import (
    DIRECT,
    Receive,
    Refused,
    Reply,
    Scope,
    Send,
    error,
    reply_of,
    send_refusal,
    send_reply,
)
from relevo.ingress.spool import Spool
from relevo.intake import Door, Reject, Taken, delivery_of
from relevo.signatures import InvalidSignature, Nonce
from relevo.store import Kept, Note
from relevo.telemetry import log
from relevo.webhook import FIELDS, BodyError, Delivery, Headers

if TYPE_CHECKING:
    from relevo.engine import Relevo

FLIGHTS = 1_000
"""Calls taken at once; those beyond are told to come back."""

FLIGHT_BYTES = 64 * 1_048_576
"""Bytes of bodies held at once."""

FUNCTION_SECONDS = 30.0
LOOK_SECONDS = 1.0
AWAY = 5.0  # seconds for which a store that did not answer is not asked again

BUSY = error(503, "busy", retry_after="1")
FULL = error(503, "busy", close=True, retry_after="1")
AWAY_REPLY = error(503, "unavailable", retry_after="5")
CLOSED = error(503, "closed", retry_after="30")
INTERNAL = error(500, "internal")
LATE = error(408, "too_slow", close=True)


class Flight:
    """One call under way."""

    __slots__ = ("_task", "deadline", "held", "is_late", "is_read")

    def __init__(self, task: asyncio.Task[None] | None, deadline: float) -> None:
        self._task = task
        self.deadline = deadline
        self.held = 0
        self.is_read = False
        self.is_late = False

    def stop(self) -> None:
        """It took too long."""
        if self._task is not None and not self.is_late:
            self.is_late = True
            self._task.cancel()

    def calm(self) -> None:
        """The stop was ours, and is over."""
        if self._task is not None:
            self._task.uncancel()


class Gate:
    """The doors of an engine's apps."""

    def __init__(self, engine: Relevo, spool: Spool | None) -> None:
        self._engine = engine
        self._receiver = engine.receiver
        self._doors: dict[str, Door] = {}
        self._replies: dict[str, Reply] = {}
        self._flights: set[Flight] = set()
        self._looking: asyncio.TimerHandle | None = None
        self._held = 0
        self._away_until = 0.0
        self.spool = spool
        self.refusals = Refusals(engine)

    def find(self, path: str) -> Door | None:
        return self._doors.get(path)

    async def start(self) -> None:
        """Read the secrets, so that a door without one is heard of now; empty the spool."""
        self._doors = self._receiver.doors
        for door in self._doors.values():
            self._replies[door.source] = reply_of(door.route.answer)
        if self.spool is not None:
            self.spool.start()

    async def stop(self) -> None:
        """Finish what was refused and is not yet kept; the spool waits for the next start."""
        await self.refusals.close()
        if self.spool is not None:
            await self.spool.close()

    # one call

    async def answer(
        self, door: Door, path: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Take one call."""
        if len(self._flights) >= FLIGHTS or self._held > FLIGHT_BYTES:
            self._engine.telemetry.counts["delivery_busy"] += 1
            await send_reply(send, BUSY)
            return
        flight = Flight(asyncio.current_task(), time.monotonic() + BODY_SECONDS)
        self._begin(flight)
        try:
            reply = await self._reply(door, path, scope, receive, flight)
        except Refused as refused:
            reply = refused.reply
        except Gone:
            return
        except asyncio.CancelledError:
            if not flight.is_late:
                raise
            flight.calm()
            reply = self._too_late(door, flight)
        finally:
            self._flights.discard(flight)
            self._held -= flight.held
        direct = scope.get(DIRECT)
        if not flight.is_read and (b"connection", b"close") in reply.headers:
            await send_refusal(receive, send, reply)
        elif direct is None or not direct[0].answer(direct[1], reply):
            await send_reply(send, reply)

    def _begin(self, flight: Flight) -> None:
        self._flights.add(flight)
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """One look a second for all calls costs less than a timer for each."""
        self._looking = None
        now = time.monotonic()
        for flight in self._flights:
            if now > flight.deadline:
                flight.stop()
        if self._flights:
            loop = asyncio.get_running_loop()
            self._looking = loop.call_later(LOOK_SECONDS, self._look)

    def _hold(self, flight: Flight, size: int) -> None:
        flight.held += size
        self._held += size
        if self._held > FLIGHT_BYTES + flight.held:  # others have it all
            raise Refused(FULL)

    def _too_late(self, door: Door, flight: Flight) -> Reply:
        if not flight.is_read:
            return LATE
        log.error("a webhook's function took too long", extra={"door": door.source})
        return AWAY_REPLY

    async def _reply(
        self, door: Door, path: str, scope: Scope, receive: Receive, flight: Flight
    ) -> Reply:
        route = door.route
        method: str = scope["method"]
        if method not in route.methods:
            if method == "GET" and route.challenge is not None:
                return self._challenge(door, path, scope)
            allowed = [*route.methods, *(["GET"] if route.challenge else [])]
            raise Refused(error(405, "method_not_allowed", close=True, allow=", ".join(allowed)))
        is_gzip = check_head(door, scope)
        body = await read_body(receive, route.limit, partial(self._hold, flight))
        flight.is_read = True
        flight.deadline = time.monotonic() + FUNCTION_SECONDS
        if is_gzip:
            body = unpacked(body, route.limit)
            self._hold(flight, len(body))
        return await self._take(door, self._delivery(path, scope, body), scope)

    def _delivery(self, path: str, scope: Scope, body: bytes) -> Delivery:
        query: bytes = scope["query_string"]
        if query.count(b"&") >= FIELDS:
            raise Refused(error(400, "too_many_fields"))
        return Delivery(
            path=path,
            method=scope["method"],
            query=query.decode("latin-1"),
            headers=Headers.from_asgi(scope["headers"]),
            body=body,
            received_at=self._engine.clock.now(),
        )

    def _challenge(self, door: Door, path: str, scope: Scope) -> Reply:
        delivery = self._delivery(path, scope, b"")
        assert door.route.challenge is not None  # noqa: S101 - asked by the caller
        try:
            return reply_of(door.route.challenge(delivery, self._engine.use))
        except Reject as rejected:
            return reply_of(rejected.answer)
        except BodyError as unreadable:
            return error(400, unreadable.code)
        except Exception:  # noqa: BLE001 - a function may raise anything
            log.exception("a challenge failed", extra={"door": door.source})
            return INTERNAL

    async def _take(self, door: Door, delivery: Delivery, scope: Scope) -> Reply:
        try:
            door.scheme.check(delivery, delivery.received_at)
        except InvalidSignature as failure:
            return self.refusals.forged(door, delivery, failure, scope.get("client"))
        try:
            if self.spool is not None and self._away_until and time.monotonic() < self._away_until:
                return await self._spool(door, delivery)
            nonce = door.scheme.nonce(delivery)
            if nonce is not None and not await self._is_first(door, delivery, nonce):
                return error(401, door.scheme.code)
            taken = await self._receiver.take(door, delivery)
        except Reject as rejected:
            self.refusals.unreadable(door, delivery, str(rejected))
            return reply_of(rejected.answer)
        except QueueClosed:
            return CLOSED
        except StoreError as trouble:
            self._away_until = time.monotonic() + AWAY
            self._engine.telemetry.trouble("the store is away; deliveries wait", trouble)
            return await self._spool(door, delivery)
        except Exception as mistake:  # noqa: BLE001 - a function may raise anything; nothing is kept
            self._engine.telemetry.counts["delivery_failed"] += 1
            log.error(
                "a webhook's function failed",
                exc_info=mistake,
                extra={"door": door.source, "delivery": delivery.id},
            )
            return INTERNAL
        self._away_until = 0.0
        return self._told(door, taken)

    def _told(self, door: Door, taken: Taken) -> Reply:
        name = "delivery_taken" if taken.is_new else "delivery_repeated"
        self._engine.telemetry.counts[name] += 1
        if taken.answer is door.route.answer:
            return self._replies[door.source]
        return reply_of(taken.answer)

    async def _is_first(self, door: Door, delivery: Delivery, nonce: Nonce) -> bool:
        """Whether the scheme's nonce is new; if not, the delivery must be one we know."""
        store = self._engine.store
        name = hashlib.blake2b(f"{door.source}\n{nonce.value}".encode(), digest_size=16).hexdigest()
        ttl = max(1, stamp(nonce.until) - stamp(delivery.received_at))
        [is_new] = await store.remember([Note(kind="nonce", name=name, value=b"1", ttl=ttl)])
        if is_new:
            return True
        [kept] = await store.delivered(door.source, [door.key(delivery)])
        return kept is not None

    async def _spool(self, door: Door, delivery: Delivery) -> Reply:
        """Safe on the local disk until the store is back; 503 where there is no such place."""
        if self.spool is None:
            return AWAY_REPLY
        try:
            key = door.key(delivery)
            kept = door.keep(delivery, key, received_at=stamp(delivery.received_at))
            if not _is_itself(door, kept, key):
                log.error("%s cannot wait in the spool: its key is not kept", door.source)
                return AWAY_REPLY
            await self.spool.keep(kept)
        except Reject as rejected:
            return reply_of(rejected.answer)
        except StoreError as trouble:
            self._engine.telemetry.trouble("the spool takes nothing either", trouble)
            return AWAY_REPLY
        return self._replies[door.source]


def _is_itself(door: Door, kept: Kept, key: str) -> bool:
    """Whether what is kept of a delivery still has its key: it might be in a header that is not."""
    try:
        return door.key(delivery_of(kept, moment(kept.received_at))) == key
    except Reject:
        return False
