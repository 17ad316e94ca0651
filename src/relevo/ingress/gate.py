"""Gate: takes one HTTP call at a webhook's door, from its first line to its answer.

In this order, so that nobody gets further than they have shown they may: method, size, content
type, body, signature over the raw bytes, nonce, key, function, kept, answered. No 2xx leaves
before what it stands for is safe.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import force_setattr

from relevo.addresses import Proxies
from relevo.batch import Coalescer
from relevo.clock import moment, stamp
from relevo.errors import BodyError, QueueClosed, StoreError
from relevo.ingress.body import Gone, allowed, check_head, read_body, unpacked
from relevo.ingress.flight import Client, Flight
from relevo.ingress.plain import Call
from relevo.ingress.refusals import Refusals
from relevo.ingress.reply import (
    DIRECT,
    Heard,
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
from relevo.ingress.unrouted import Near, Strays
from relevo.intake import Door, Reject, delivery_of, taken_of
from relevo.job import Verdict
from relevo.outcome import describe
from relevo.pairs import FIELDS, Headers
from relevo.signatures import InvalidSignature, Nonce
from relevo.sources.source import Setup
from relevo.store import Kept, Note, Reception
from relevo.telemetry import log
from relevo.webhook import Answer, Delivery

if TYPE_CHECKING:
    from relevo.engine import Relevo

FLIGHTS = 1_000
"""Calls taken at once; those beyond are told to come back."""

FLIGHT_BYTES = 64 * 1_048_576
"""Bytes of bodies held at once."""

IN_A_ROW = 20
"""Calls served before others have a turn: those who all come at once would else wait for the store
all at once, and it for them."""

BODY_SECONDS = 30.0
FUNCTION_SECONDS = 30.0
LOOK_SECONDS = 0.15
SLOW = 0.25  # seconds that a call waits for the store until a probe tells whether it is there

BUSY = error(503, "busy", retry_after="1")
FULL = error(503, "busy", close=True, retry_after="1")
AWAY_REPLY = error(503, "unavailable", retry_after="5")
CLOSED = error(503, "closed", retry_after="30")
INTERNAL = error(500, "internal")
LATE = error(408, "too_slow", close=True)


class Gate:
    """The doors of an engine's apps."""

    def __init__(self, engine: Relevo, spool: Spool | None, proxies: Proxies) -> None:
        self._engine = engine
        self._receiver = engine.receiver
        self._doors: dict[str, Door] = {}
        self._replies: dict[str, Reply] = {}
        self._flights: set[Flight] = set()
        self._due: deque[Flight] = deque()  # whose function has yet to run
        self._runners: set[asyncio.Task[None]] = set()
        self._looking: asyncio.TimerHandle | None = None
        self._nonces: Coalescer[Note, bool] = Coalescer(engine.store.remember)
        self._held = 0
        self._saving: set[asyncio.Task[None]] = set()
        self._watch = engine.watch
        self._heard = 0
        self._watch.on_away.append(self._save)
        self.spool = spool
        self.refusals = Refusals(engine, proxies)
        self.strays = Strays(engine, proxies)

    def find(self, path: str) -> Door | None:
        return self._doors.get(path)

    async def start(self) -> None:
        """Read the secrets, so that a door without one is heard of now; empty the spool."""
        self._doors = self._receiver.doors
        self.strays.near = Near(self._doors.values())
        for door in self._doors.values():
            self._replies[door.endpoint] = reply_of(door.answer)
        if self.spool is not None:
            self.spool.start()

    async def finish(self, within: float) -> None:
        """Give what waits in the spool to the store, before the process ends."""
        if self.spool is not None:
            await self.spool.empty(within)

    async def stop(self) -> None:
        """Finish what was refused and is not yet kept; the spool waits for the next start."""
        await self.refusals.close()
        await self.strays.calls.close()
        await self._nonces.close()
        if self._saving:
            await asyncio.wait(self._saving)
        if self.spool is not None:
            await self.spool.close()

    # one call, as ASGI brings it

    async def answer(
        self, door: Door, path: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Take one call."""
        if self.is_full:
            await send_reply(send, self._busy())
            return
        replied: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def hear(reply: Reply) -> None:
            if not replied.done():  # who called may have gone this very moment
                replied.set_result(reply)

        flight = self._begin(door, scope.get("client"), hear, BODY_SECONDS)
        flight.task = task = asyncio.current_task()
        heard = Heard()
        try:
            reply = await self._read(flight, path, scope, receive)
            if reply is None:
                await self._serve(flight)
                reply = await replied
        except Refused as refused:
            reply, heard = refused.reply, refused.heard
        except Gone:
            self.strays.hung_up(door, scope)
            return
        except asyncio.CancelledError:
            if not flight.is_late or task is None:
                raise
            task.uncancel()
            self._break_off(flight)
            reply = await replied
        finally:
            flight.end()
        direct = scope.get(DIRECT)
        try:
            if not flight.is_read and (b"connection", b"close") in reply.headers:
                await send_refusal(receive, send, reply, heard)
            elif direct is None or not direct[0].answer(direct[1], reply):
                await send_reply(send, reply)
        finally:
            if not flight.is_read:
                self.strays.refused(door, scope, reply, heard)

    async def _read(
        self, flight: Flight, path: str, scope: Scope, receive: Receive
    ) -> Reply | None:
        """Hear the call to its end; a reply if there is nothing to be taken."""
        door, route = flight.door, flight.door.route
        method: str = scope["method"]
        if method not in door.methods:
            if method == "GET" and route.challenge is not None:
                return self._challenge(door, path, scope)
            raise Refused(error(405, "method_not_allowed", close=True, allow=allowed(door)))
        is_gzip = check_head(door, scope)
        body = await read_body(receive, route.limit, partial(self._hold, flight))
        if is_gzip:
            body = unpacked(body, route.limit)
            self._hold(flight, len(body))
        flight.delivery = self._delivery_of(path, scope, body, door)
        flight.is_read = True
        self._trace(flight)
        flight.deadline = time.monotonic() + FUNCTION_SECONDS
        return None

    def _delivery_of(self, path: str, scope: Scope, body: bytes, door: Door) -> Delivery:
        query: str = scope["query_string"].decode("latin-1")
        if query.count("&") >= FIELDS:
            raise Refused(error(400, "too_many_fields"), Heard().add(body))
        return self._delivery(
            path, scope["method"], query, Headers.from_asgi(scope["headers"]), body, door
        )

    def _delivery(
        self, path: str, method: str, query: str, headers: Headers, body: bytes, door: Door
    ) -> Delivery:
        return Delivery(
            path=path,
            method=method,
            query=query,
            headers=headers,
            body=body,
            received_at=self._engine.clock.now(),
            base=door.base,
            rules=door.rules,
        )

    def _challenge(self, door: Door, path: str, scope: Scope) -> Reply:
        delivery = self._delivery_of(path, scope, b"", door)
        assert door.route.challenge is not None  # noqa: S101 - asked by the caller
        try:
            return reply_of(door.route.challenge(delivery, self._engine.use))
        except Reject as rejected:
            return reply_of(rejected.answer)
        except BodyError as unreadable:
            return error(400, unreadable.code)
        except BaseException as broken:  # noqa: BLE001 - a function may raise anything
            failure = describe(broken)
            told = {"error": f"{failure.type}: {failure.message}", "text": failure.trace}
            log.error("a challenge failed", extra={"endpoint": door.endpoint} | told)
            return INTERNAL

    # one call, as our own server brings it

    @property
    def is_full(self) -> bool:
        return len(self._flights) >= FLIGHTS or self._held > FLIGHT_BYTES

    def take(self, door: Door, call: Call, client: Client, hear: Callable[[Reply], None]) -> None:
        """Take a call that has been read whole and whose head is good; no task waits for it."""
        if self.is_full:
            hear(self._busy())
            return
        headers = Headers.ready(call.headers)
        delivery = self._delivery(call.path, call.method, call.query, headers, call.body, door)
        flight = self._begin(door, client, hear, FUNCTION_SECONDS)
        flight.held = len(call.body)
        self._held += flight.held
        flight.delivery = delivery
        flight.is_read = True
        self._trace(flight)
        self._let_run(flight)

    def _let_run(self, flight: Flight) -> None:
        self._due.append(flight)
        if len(self._due) == 1:
            self._wake()

    def _wake(self) -> None:
        loop = asyncio.get_running_loop()
        runner = loop.create_task(self._run(), name="relevo-gate")
        self._runners.add(runner)
        runner.add_done_callback(self._runners.discard)
        # A function that waits for something shall not make the others wait: who is still due
        # after the runner's first step gets a runner of its own.
        loop.call_soon(self._look_after)

    def _look_after(self) -> None:
        if self._due:
            self._wake()

    async def _run(self) -> None:
        task = asyncio.current_task()
        served = 0
        while self._due:
            if served == IN_A_ROW:
                served = 0
                await asyncio.sleep(0)
                continue  # another runner may have taken what was due
            served += 1
            flight = self._due.popleft()
            flight.task = task
            try:
                await self._serve(flight)
            except asyncio.CancelledError:
                if not flight.is_late:
                    flight.reply(AWAY_REPLY)
                    raise
                self._break_off(flight)
            except Exception:  # noqa: BLE001 - whatever it is, the others have their turn
                flight.reply(self._internal(flight))
            finally:
                flight.task = None
                if flight.is_late and task is not None:
                    task.uncancel()  # also where the function would not hear of it

    # every call

    def _begin(
        self, door: Door, client: Client, hear: Callable[[Reply], None], seconds: float
    ) -> Flight:
        flight = Flight(self, door, client, hear, time.monotonic() + seconds)
        self._flights.add(flight)
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
        return flight

    def land(self, flight: Flight) -> None:
        """It is over, whatever came of it."""
        self._flights.discard(flight)
        self._held -= flight.held

    def _look(self) -> None:
        """One look a second for all calls costs less than a timer for each."""
        self._looking = None
        now = time.monotonic()
        if self._heard != self._watch.heard:
            self._heard = self._watch.heard  # it is there, however long its queue is
        elif not self._watch.is_away:
            for flight in self._flights:
                if not self._waits(flight):
                    continue
                flight.asks_since = flight.asks_since or now
                if now - flight.asks_since > SLOW:
                    self._watch.doubt()
        for flight in [each for each in self._flights if now > each.deadline]:
            if flight.is_late:
                continue
            flight.is_late = True
            if flight.task is not None:
                flight.task.cancel()
            else:
                flight.reply(self._too_late(flight))
        if self._flights:
            loop = asyncio.get_running_loop()
            self._looking = loop.call_later(LOOK_SECONDS, self._look)

    def _waits(self, flight: Flight) -> bool:
        """Whether it may be the store that a call waits for, and not only its function's work."""
        door = flight.door
        return flight.is_handled or door.is_transactional or flight.asks_nonce

    def _hold(self, flight: Flight, size: int) -> None:
        flight.held += size
        self._held += size
        if self._held > FLIGHT_BYTES + flight.held:  # others have it all
            raise Refused(FULL)

    def _busy(self) -> Reply:
        self._engine.telemetry.counts["delivery_busy"] += 1
        return BUSY

    def _internal(self, flight: Flight) -> Reply:
        log.exception("a webhook failed", extra={"endpoint": flight.door.endpoint})
        return INTERNAL

    def _too_late(self, flight: Flight) -> Reply:
        if not flight.is_read:
            return LATE
        log.error("a webhook took too long", extra={"endpoint": flight.door.endpoint})
        return AWAY_REPLY

    def _break_off(self, flight: Flight) -> None:
        """Keep a delivery whose function ran too long as failed; one half read gets its 408."""
        if not flight.is_verified or flight.is_handled:
            flight.reply(self._too_late(flight))
            return
        flight.is_late, flight.deadline = False, time.monotonic() + FUNCTION_SECONDS
        mistake = TimeoutError(f"it ran longer than {FUNCTION_SECONDS:g} s")
        self._receiver.fail(flight.door, flight.delivery, mistake, flight, flight.generation)

    async def _serve(self, flight: Flight) -> None:
        """Run its function; it has its reply now, or when the store has what was ordered."""
        door, delivery = flight.door, flight.delivery
        tracing = self._engine.telemetry.tracing
        # What is ordered for a call is ordered within its span.
        token = None if tracing is None else tracing.enter(flight.span)
        reply: Reply | None
        try:
            reply = await self._judge(flight, door, delivery)
        except Reject as rejected:
            reply = await self.refusals.rejected(door, delivery, rejected)
        except QueueClosed:
            reply = CLOSED
        except StoreError as trouble:
            self._watch.failed(trouble)
            self._engine.telemetry.counts["trouble"] += 1
            reply = await self._spool(door, delivery)
        except asyncio.CancelledError as error:
            if flight.task is not None and flight.task.cancelling():
                raise
            # The function's own doing.
            self._receiver.fail(door, delivery, error, flight, flight.generation)
            reply = None
        except Exception:  # noqa: BLE001 - a mistake of relevo's own: nothing is promised
            reply = self._internal(flight)
        finally:
            if tracing is not None and token is not None:
                tracing.leave(token)
        if reply is not None:
            flight.reply(reply)

    def _trace(self, flight: Flight) -> None:
        """Begin the span of a call that has been read, where its server's own span is current."""
        if (tracing := self._engine.telemetry.tracing) is not None:
            flight.span = tracing.call(flight.door.endpoint, flight.delivery)

    def traced(self, span: Any, reply: Reply) -> None:
        """Note the answer in the span of its call."""
        if (tracing := self._engine.telemetry.tracing) is not None:
            tracing.answered(span, reply.status)

    async def _judge(self, flight: Flight, door: Door, delivery: Delivery) -> Reply | None:
        if flight.trouble is not None:
            raise flight.trouble
        if (reply := self._set_up(door.rules.unsigned, delivery)) is not None:
            return reply
        try:
            used = door.scheme.check(delivery, delivery.received_at)
        except InvalidSignature as failure:
            return self.refusals.forged(door, delivery, failure, flight.client)
        except BaseException as broken:  # noqa: BLE001 - of a call that nobody vouches for
            unread = InvalidSignature(f"it cannot be read: {type(broken).__name__}")
            return self.refusals.forged(door, delivery, unread, flight.client)
        if (reply := self._set_up(door.rules.setup, delivery)) is not None:
            return reply
        flight.is_verified = True
        if used and not delivery.verified_by:
            self._engine.telemetry.secrets[door.endpoint, used] += 1
            force_setattr(delivery, "verified_by", used)  # a copy would be parsed once more
        if self._is_away(door, delivery):
            return await self._spool(door, delivery)
        nonce = door.scheme.nonce(delivery)
        if nonce is not None:
            flight.asks_nonce = True
            is_first = await self._is_first(door, delivery, nonce)
            flight.asks_nonce = False
            if not is_first:
                return self.refusals.spent(door, delivery)
        taken = await self._receiver.give(door, delivery, flight, flight.generation)
        if taken is None:
            return None
        if self._receiver.is_variant(door, flight.generation, differs=taken.differs):
            flight.generation = door.variant(delivery)
            return await self._judge(flight, door, delivery)
        return self._told(door, taken.answer, taken.kept, is_new=taken.is_new)

    def _is_away(self, door: Door, delivery: Delivery) -> bool:
        """Whether a delivery need not try the store: it would find out what others have found."""
        if self.spool is not None and door.endpoint in self.spool.stuck:
            return True
        if not self._watch.is_away:
            return False
        # Where a delivery cannot wait elsewhere, a store that may only be slow is tried.
        can_wait = self.spool is not None and door.can_wait(delivery)
        return can_wait or self._watch.is_sure

    def _save(self) -> None:
        """The store went away: what waits for it is spooled, and answered, now."""
        if self.spool is None:
            return
        for flight in self._flights:
            is_told = flight.trouble is not None  # and will be spooled for that
            if flight.is_handled and not is_told and flight.door.can_wait(flight.delivery):
                saving = asyncio.create_task(self._save_one(flight), name="relevo-gate-save")
                self._saving.add(saving)
                saving.add_done_callback(self._saving.discard)

    async def _save_one(self, flight: Flight) -> None:
        # The store may have it after all: its key is the same.
        reply = await self._spool(flight.door, flight.delivery)
        if reply is not AWAY_REPLY:
            flight.reply(reply)

    def _set_up(self, setup: Setup, delivery: Delivery) -> Reply | None:
        """The answer to a call that only sets the webhook up, of which nothing is stored."""
        try:
            answer = setup(delivery)
        except BaseException:  # noqa: BLE001 - it reads what anybody may have sent
            return None  # it is none
        if answer is None:
            return None
        self._engine.telemetry.counts["delivery_set_up"] += 1
        return reply_of(answer)

    def kept(self, flight: Flight, reception: Reception) -> None:
        """The store has it, or had it before."""
        door = flight.door
        if flight.span is not None:
            flight.span.set_attribute("relevo.delivery", reception.kept.id)
            flight.span.set_attribute("relevo.is_new", reception.verdict is Verdict.NEW)
        if self._receiver.is_variant(door, flight.generation, differs=reception.differs):
            flight.generation = door.variant(flight.delivery)
            flight.unhandle()
            self._let_run(flight)
            return
        try:
            if reception.verdict is Verdict.NEW:
                reply = self._told(door, flight.answer, reception.kept, is_new=True)
            else:
                known = taken_of(reception, flight.answer)
                reply = self._told(door, known.answer, known.kept, is_new=False)
        except QueueClosed:
            reply = CLOSED
        except Exception:  # noqa: BLE001 - a damaged answer must not keep others from theirs
            reply = self._internal(flight)
        flight.reply(reply)

    def troubled(self, flight: Flight, trouble: Exception) -> None:
        """The store did not take it: it goes the way of whatever fails."""
        flight.trouble = trouble
        self._let_run(flight)

    def _told(self, door: Door, answer: Answer, kept: Kept, *, is_new: bool) -> Reply:
        self._watch.heard += 1
        if (narrator := self._engine.telemetry.narrator) is not None:
            narrator.delivery(kept, is_new=is_new)
        name = "delivery_taken" if is_new else "delivery_repeated"
        self._engine.telemetry.counts[name] += 1
        if answer is door.answer:
            return self._replies[door.endpoint]
        if is_new:
            door.answered(answer)
        return reply_of(answer)

    async def _is_first(self, door: Door, delivery: Delivery, nonce: Nonce) -> bool:
        """Whether the scheme's nonce is new; if not, the delivery must be one we know."""
        store = self._engine.store
        name = hashlib.blake2b(
            f"{door.endpoint}\n{nonce.value}".encode(), digest_size=16
        ).hexdigest()
        ttl = max(1, stamp(nonce.until) - stamp(delivery.received_at))
        print = hashlib.blake2b(delivery.body, digest_size=16, key=b"nonce").hexdigest()
        value = b'"%b"' % print.encode()
        [is_new] = await self._nonces.add([Note(kind="nonce", name=name, value=value, ttl=ttl)])
        if is_new:
            return True
        # The provider sends again what was not taken the first time, with the signature of then.
        [note] = await store.recall("nonce", [name])
        if note is not None:
            # Another body with it may be forged, where the signature does not cover the body: it
            # must not be kept for a person to replay, nor be handled.
            return note.value == value
        [kept] = await store.delivered(door.endpoint, [door.any_key(delivery)])
        return kept is not None

    async def _spool(self, door: Door, delivery: Delivery) -> Reply:
        """Safe on the local disk until the store is back; 503 where there is no such place."""
        if self.spool is None or not door.can_wait(delivery):
            return AWAY_REPLY
        try:
            key = door.any_key(delivery)
            kept = door.keep(delivery, key, received_at=stamp(delivery.received_at))
            if not _is_itself(door, kept, key):
                log.error("%s cannot wait in the spool: its key is not kept", door.endpoint)
                return AWAY_REPLY
            await self.spool.keep(kept)
        except StoreError as trouble:
            self._engine.telemetry.trouble("the spool takes nothing either", trouble)
            return AWAY_REPLY
        return self._replies[door.endpoint]


def _is_itself(door: Door, kept: Kept, key: str) -> bool:
    """Whether what is kept of a delivery still has its key: it might be in a header that is not."""
    return door.any_key(delivery_of(kept, moment(kept.received_at), door)) == key
