"""Refusals: what was turned away, told to our own people within bounds.

A caller learns nothing but a code. We keep a few of the deliveries, with the reason; whoever floods
a door with forgeries fills neither the store nor the log, and slows nobody down.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict, deque
from typing import TYPE_CHECKING

import msgspec

from relevo.addresses import Proxies, caller
from relevo.errors import StoreError
from relevo.ingress.reply import Reply, error, reply_of
from relevo.intake import Door, Reject
from relevo.signatures import InvalidSignature, explain
from relevo.store import NOT_KEPT, UNSIGNED, DeliveryState, Kept
from relevo.telemetry import log
from relevo.webhook import Answer, Delivery

if TYPE_CHECKING:
    from relevo.engine import Relevo

BODY_KEPT = 65_536
WAITING = 50
PER_SECOND, BURST = 1.0, 20.0
FORGERIES_PER_SECOND, FORGERIES = 1.0, 60.0
ADDRESSES = 10_000
REASON_MAX = 1_000


class Buckets:
    """So many at once, then so many a second, for each name; the names longest unheard go."""

    def __init__(self, rate: float, burst: float, most: int) -> None:
        self._rate = rate
        self._burst = burst
        self._most = most
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str) -> bool:
        now = time.monotonic()
        left, at = self._left.pop(name, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._rate)
        self._left[name] = (left - 1 if left >= 1 else left, now)
        if len(self._left) > self._most:
            self._left.popitem(last=False)
        return left >= 1

    def __len__(self) -> int:
        return len(self._left)


class Refusals:
    """Turns deliveries away, and keeps some of them."""

    def __init__(self, engine: Relevo, proxies: Proxies) -> None:
        self._engine = engine
        self._proxies = proxies
        self._keep = Buckets(PER_SECOND, BURST, 1_000)
        self._forgers = Buckets(FORGERIES_PER_SECOND, FORGERIES, ADDRESSES)
        self._waiting: deque[tuple[Door, Delivery, str, Answer, bool]] = deque(maxlen=WAITING)
        self._task: asyncio.Task[None] | None = None

    def forged(
        self,
        door: Door,
        delivery: Delivery,
        failure: InvalidSignature,
        client: tuple[str, int] | None,
    ) -> Reply:
        """401; 429 to an address that goes on and on. One that signs well is never slowed."""
        self._count("delivery_forged", door)
        if failure.kind == "time":
            self._engine.telemetry.counts["delivery_wrong_time"] += 1
        named = delivery.headers.all("x-forwarded-for")
        address = self._proxies.client(client[0], named) if client else ""
        if not self._forgers.take(caller(address)):
            return error(429, "too_many_requests", retry_after="60")
        return self._closed(door, delivery, failure.why, address)

    def spent(self, door: Door, delivery: Delivery) -> Reply:
        """401: what may be seen once was seen before, on a delivery that is not kept."""
        self._count("delivery_forged", door)
        why = "the signature is right, but it came before with a delivery that was not taken"
        return self._closed(door, delivery, why, None)

    def _count(self, name: str, door: Door) -> None:
        telemetry = self._engine.telemetry
        telemetry.counts[name] += 1
        telemetry.deliveries[door.endpoint, DeliveryState.REFUSED] += 1

    def _closed(self, door: Door, delivery: Delivery, why: str, forger: str | None) -> Reply:
        """Refuse a delivery; `forger` is the address of the caller, where nobody signed it."""
        answer = Answer.json({"ok": False, "error": door.scheme.code}, door.rules.refused)
        if self._keep_some(door, delivery, why, answer, is_forged=forger is not None):
            self._log(door, delivery, why, forger)
        return reply_of(answer)

    async def rejected(self, door: Door, delivery: Delivery, rejected: Reject) -> Reply:
        """The refusal of a delivery that is signed well; each is kept, whatever their number."""
        self._count("delivery_unreadable", door)
        why, answer = str(rejected), rejected.answer
        if self._keep.take(door.endpoint):
            self._log(door, delivery, why)
        try:
            await self._store(door, delivery, why, answer, is_forged=False)
        except StoreError as trouble:
            self._engine.telemetry.trouble("refused deliveries are not kept", trouble)
        return reply_of(answer)

    def _log(self, door: Door, delivery: Delivery, why: str, forger: str | None = None) -> None:
        facts = {"endpoint": door.endpoint, "delivery": delivery.id, "why": why[:REASON_MAX]}
        log.warning(
            "delivery refused", extra=facts if forger is None else {"address": forger, **facts}
        )

    def _keep_some(
        self, door: Door, delivery: Delivery, why: str, answer: Answer, *, is_forged: bool
    ) -> bool:
        if not self._keep.take(door.endpoint):
            return False
        self._waiting.append((door, delivery, why, answer, is_forged))
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="relevo-refusals")
        return True

    async def close(self) -> None:
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            while self._waiting:
                door, delivery, why, answer, is_forged = self._waiting.popleft()
                if is_forged and len(delivery.body) <= BODY_KEPT:
                    # It tries many spellings of the body: not while others wait for their answer.
                    now = delivery.received_at
                    why = await asyncio.to_thread(explain, delivery, door.scheme, now)
                await self._store(door, delivery, why, answer, is_forged=is_forged)
        except Exception as trouble:  # noqa: BLE001 - explaining is a kindness, and hurts nobody
            self._waiting.clear()
            self._engine.telemetry.trouble("refused deliveries are not kept", trouble)
        finally:
            self._task = None

    async def _store(
        self, door: Door, delivery: Delivery, why: str, answer: Answer, *, is_forged: bool
    ) -> None:
        kept: Kept = door.keep(
            delivery,
            door.found_id(delivery),
            state=DeliveryState.REFUSED,
            reason=why[:REASON_MAX],
            answer=door.encoded(answer),
            # 401 whatever the provider is told: a person must not take it for one that is signed.
            status=UNSIGNED if is_forged else answer.status,
        )
        if is_forged:
            kept = _bare(kept, delivery)
        await self._engine.receiver.keep_refused([kept])


def _bare(kept: Kept, delivery: Delivery) -> Kept:
    """What is kept of a call that nobody signed: whatever a stranger put into it stays outside.

    The hash tells whether it is what the provider says to have sent.
    """
    digest = hashlib.sha256(delivery.body).hexdigest()
    told = f"{len(delivery.body):,} bytes, sha256 {digest}"
    names = sorted({name for name, _ in delivery.headers.pairs})
    return msgspec.structs.replace(
        kept,
        body=NOT_KEPT + f"{told})".encode(),
        query="",
        headers=msgspec.json.encode([(name, "") for name in names]),
    )
