"""Guests write and book: Beds24 calls, the channel manager has news, producers LPUSH.

Every message comes by one of three ways, a fifth of them by a second one or twice by the same; a
fifth of the bookings are cancelled, and told of once more as they were before; somebody guesses at
secrets. However it comes, a message is kept once and its guest answered once.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2

from relevo.simulators.beds24 import HOTELS, WEBHOOK, beds24, query_of, secret_of, version2
from relevo.simulators.channel import channel
from relevo.simulators.world import World

TEXTS = ("¿Hay cochera?", "Llegamos tarde, ¿está bien?", "Is breakfast included?", "¡Gracias! 🙂")
WAITS = (0.2, 0.5, 1, 2, 4, 8)

Push = Callable[[str, list[bytes]], Awaitable[None]]


@dataclass(slots=True)
class Sent:
    """What was sent, and what must come of it."""

    delivered: int = 0  # webhooks answered 200, messages put and pushed
    duplicates: int = 0
    forged: int = 0  # refused with 401, as they must be
    messages: set[str] = field(default_factory=set[str])  # their strong ids: each kept once
    bookings: dict[str, str] = field(default_factory=dict[str, str])  # "hotel:booking": its state

    @property
    def expected(self) -> int:
        """Answers to guests, one for each message."""
        return len(self.messages)


@dataclass(frozen=True, slots=True)
class Letter:
    """One guest's message, and the ways it comes by."""

    hotel: str
    number: int
    text: str
    ways: tuple[str, ...]
    is_cancelled: bool

    @property
    def conversation(self) -> str:
        return f"{self.hotel}-booking-{self.number}"


def plan(count: int, seed: int, ways: tuple[str, ...]) -> list[Letter]:
    """So many messages over all hotels; the same seed gives the same."""
    chance = random.Random(f"hotel/{seed}")
    letters: list[Letter] = []
    for index in range(count):
        first = ways[index % len(ways)]
        more = (chance.choice(ways),) if chance.random() < 0.2 else ()
        letters.append(
            Letter(
                hotel=HOTELS[index % len(HOTELS)],
                number=10_000_000 + seed % 1_000 * 10_000 + index,
                text=chance.choice(TEXTS),
                ways=(first, *more),
                is_cancelled=chance.random() < 0.2,
            )
        )
    return letters


async def run(world: World, base_url: str, count: int, seed: int, push: Push | None = None) -> Sent:
    """Drive the doors at `base_url`; without `push` and without REDIS_URL nobody pushes."""
    if push is None and os.environ.get("REDIS_URL"):
        push = _lpush
    ways = ("webhook", "soap", "list") if push else ("webhook", "soap")
    sent = Sent()
    letters = plan(count, seed, ways)
    async with httpx2.AsyncClient(base_url=base_url, timeout=30, trust_env=False) as client:
        outside = _Outside(world, client, push, sent)
        for start in range(0, len(letters), 15):
            await asyncio.gather(*map(outside.bring, letters[start : start + 15]))
        await outside.forge(max(1, count // 20), letters)
    return sent


class _Outside:
    """Everybody out there."""

    def __init__(
        self, world: World, client: httpx2.AsyncClient, push: Push | None, sent: Sent
    ) -> None:
        self._world = world
        self._client = client
        self._push = push
        self._sent = sent
        self._told: dict[str, dict[str, Any]] = {}

    async def bring(self, letter: Letter) -> None:
        sent = self._sent
        sent.messages.add(f"{letter.hotel}:booking:{letter.number}")
        sent.duplicates += len(letter.ways) - 1
        for way in letter.ways:
            await getattr(self, f"_by_{way}")(letter)
            sent.delivered += 1

    async def _by_soap(self, letter: Letter) -> None:
        channel(self._world).write(
            letter.hotel,
            str(letter.number),
            letter.text,
            channel="booking",
            conversation=letter.conversation,
            guest=f"b24-{letter.number}",
            reservation=str(letter.number),
        )

    async def _by_list(self, letter: Letter) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        payload = {
            "messageId": letter.number if letter.number % 2 else str(letter.number),
            "conversationId": letter.conversation,
            "guestId": f"b24-{letter.number}",
            "channel": "booking",
            "timestamp": now,
            "content": letter.text,
            "reservationId": str(letter.number),
        }
        entry = {
            "eventId": f"evt-{letter.number}",
            "eventType": "guest_message",
            "channel": "channelManager",
            "payload": payload,
            "receivedAt": now,
        }
        if self._push is not None:
            await self._push(letter.hotel, [json.dumps(entry).encode()])

    async def _by_webhook(self, letter: Letter) -> None:
        place = f"{letter.hotel}:{letter.number}"
        if place in self._told:
            await self._post(letter.hotel, self._told[place])
            return
        now = datetime.now(UTC)
        made = beds24(self._world).put(letter.number, modifiedTime=_iso(now))
        message = {"id": letter.number, "bookingId": letter.number, "time": _iso(now)}
        message |= {"read": False, "source": "guest", "message": letter.text}
        before = self._told[place] = version2(made, [message])
        await self._post(letter.hotel, before)
        if letter.number % 5 == 0:  # another departure under the event id of the first
            longer = {**made, "departure": "2027-02-08"}
            await self._post(letter.hotel, version2(longer, [message]))
            self._sent.delivered += 1
        if letter.is_cancelled:
            later = _iso(now + timedelta(seconds=1))
            gone = beds24(self._world).put(letter.number, "cancelled", modifiedTime=later)
            await self._post(letter.hotel, version2(gone))
            await self._post(letter.hotel, before)  # late, and again
            self._sent.duplicates += 1
            self._sent.delivered += 2
        self._sent.bookings[place] = "cancelled" if letter.is_cancelled else "confirmed"

    async def _post(self, hotel: str, body: dict[str, Any]) -> None:
        headers = {"x-relevo-secret": secret_of(hotel)}
        said = "nothing"
        for wait in WAITS:  # as Beds24 would, until it is taken
            try:
                answer = await self._client.post(
                    f"{WEBHOOK}?hotelId={hotel}", json=body, headers=headers
                )
            except httpx2.HTTPError as error:
                said = type(error).__name__
            else:
                # Spooled while the store was busy, it is accepted and processed later.
                if answer.status_code == 200 and answer.json().get("processed", True):
                    return
                said = f"{answer.status_code} {answer.text[:200]}"
            await asyncio.sleep(wait)
        raise AssertionError(f"POST {WEBHOOK}: {said}")

    async def forge(self, count: int, letters: list[Letter]) -> None:
        for number in range(count):
            hotel = letters[number % len(letters)].hotel
            query = query_of(hotel, 66_600_000 + number, "new").replace("secret-of", "guess-at")
            # An address that keeps guessing hears 429 after a while.
            if (await self._client.get(f"{WEBHOOK}?{query}")).status_code in (401, 429):
                self._sent.forged += 1


async def _lpush(hotel: str, entries: list[bytes]) -> None:
    """As a foreign producer does it, on a connection of its own."""
    from redis.asyncio import Redis

    redis: Any = Redis.from_url(os.environ["REDIS_URL"])  # pyright: ignore[reportUnknownMemberType] - its options are untyped
    try:
        await redis.lpush(f"cm_events:{hotel}", *entries)
    finally:
        await redis.aclose()


def _iso(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
