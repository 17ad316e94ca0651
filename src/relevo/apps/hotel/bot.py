"""ChannelBot: one hotel's loop, as a poller: heartbeat, flag, drain, pull, rest.

There is one turn at a time for a hotel in the whole fleet. What a turn takes from the list or pulls
from the channel manager becomes an order that the store keeps, and only then is it let go of over
there: a bot that dies anywhere in between finds it again, and the message's strong id sees to it
that twice is once.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import msgspec

from relevo import Command, Context, Poll
from relevo.apps.hotel.board import DRAIN, Queue
from relevo.apps.hotel.gateways.channel import Channel, Letter, Pulled
from relevo.apps.hotel.hotel import Hotel
from relevo.apps.hotel.reading import Unfit, read_entry
from relevo.bridges.redis_list import PAGE, NotAList
from relevo.clock import milliseconds
from relevo.errors import PayloadError, ProviderError
from relevo.telemetry import log

T = TypeVar("T")

PAGES = 10  # of messages in one pull
MARGIN = timedelta(seconds=30)
DAY, OVERLAP = 86_400_000, 300_000  # how far back the first look goes, and each one after it


async def poll(turn: Poll, ctx: Context) -> None:
    """One turn of the bot of `hotel_id`."""
    # relevo: allow RV010 to ask again, or to acknowledge again, changes nothing over there
    await ChannelBot(ctx.use(Hotel), turn.values["hotel_id"]).poll(turn)


class ChannelBot:
    """The bot of one hotel."""

    def __init__(self, hotel: Hotel, id: str) -> None:
        self._hotel = hotel
        self._id = id
        self._queue: Queue = hotel.board.queue(id)

    async def poll(self, turn: Poll) -> None:
        """A turn; a channel manager that fails makes the next one wait longer."""
        hotel, settings = self._hotel, self._hotel.settings
        turn.rest = settings.rest()
        await self._beat(settings.heartbeat_ttl)
        if not await hotel.board.is_enabled(self._id, settings.is_enabled):
            return
        try:
            await self.drain()
        except NotAList as error:
            # Somebody's mistake in Redis; the channel manager's messages are not to blame.
            log.error("the list cannot be read", extra={"hotel": self._id, "error": str(error)})
        cursor: dict[str, int] = dict(turn.cursor or {})
        try:
            await self._pull(cursor)
        except ProviderError:
            turn.rest = settings.rest(turn.failures + 1)
            # Longer than the heartbeat lasts, perhaps, and the bot is alive all the while.
            await self._beat(max(settings.heartbeat_ttl, turn.rest + MARGIN))
            raise
        turn.cursor = cursor

    async def _pull(self, cursor: dict[str, int]) -> None:
        """Ask everybody whose turn it is; one that fails does not keep us from the others."""
        hotel, settings = self._hotel, self._hotel.settings
        now = await hotel.relevo.time.now()
        trouble: ProviderError | None = None
        channel, property = hotel.channel, settings.properties.get(self._id)
        if channel and now >= cursor.get("soap", 0) + milliseconds(channel.settings.every):
            try:
                await self.pull(channel)
                cursor["soap"] = now
            except ProviderError as error:
                trouble = error
        is_due = now >= cursor.get("beds24", 0) + milliseconds(settings.beds24_every)
        if property and is_due and settings.has_api(self._id):
            try:
                await self.reconcile(property, cursor.get("beds24", now - DAY) - OVERLAP)
                cursor["beds24"] = now
            except ProviderError as error:
                trouble = trouble or error
        if trouble is not None:
            raise trouble

    async def reconcile(self, property: str, since: int) -> None:
        """What Beds24's webhooks may have missed: version 1 has no event id, so that a second
        change of a booking looks like the first one told again."""
        changed = await self._hotel.beds24.find_changed(self._id, property, since)
        await self._hotel.order([each.change for each in changed if not each.is_blocked])

    async def _beat(self, ttl: timedelta) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        await self._hotel.board.beat(self._id, now, ttl)

    async def drain(self) -> int:
        """Up to 200 entries of the list, those first that a dead bot had taken."""
        handled = 0
        while handled < DRAIN:
            room = min(PAGE, DRAIN - handled)
            entries = await self._queue.left(room) or await self._queue.take(room)
            if not entries:
                break
            await self._handle(entries)
            handled += len(entries)
        return handled

    async def _handle(self, entries: list[bytes]) -> None:
        now = await self._hotel.relevo.time.now()
        good: list[tuple[bytes, Command]] = []
        for entry in entries:
            try:
                good.append((entry, read_entry(self._id, entry, now)))
            except Unfit as error:
                await self._bury(entry, str(error))
        unfit = await self._keep(good)
        for entry, why in unfit:
            await self._bury(entry, why)
        await self._queue.done([entry for entry, _ in good if entry not in dict(unfit)])

    async def _keep(self, orders: Sequence[tuple[T, Command]]) -> list[tuple[T, str]]:
        """Order everything; gives back what cannot travel, which keeps no others from it."""
        try:
            await self._hotel.order([order for _, order in orders])
        except PayloadError:
            if len(orders) > 1:
                return [bad for each in orders for bad in await self._keep([each])]
            [(what, order)] = orders
            return [(what, f"{type(order).__name__} cannot travel: it is too large")]
        return []

    async def _bury(self, entry: bytes, reason: str) -> None:
        log.warning("an entry is unfit", extra={"hotel": self._id, "reason": reason})
        await self._queue.bury(entry, reason)

    async def pull(self, channel: Channel) -> None:
        """What the channel manager has for the hotel: kept first, acknowledged then."""
        if pulled := await channel.reservations(self._id):
            await self._hotel.order([each.order for each in pulled if each.order is not None])
            for each in pulled:
                if each.order is None:
                    await self._bury_reservation(each)
            await channel.acknowledge(self._id, pulled)
        for _ in range(PAGES):
            letters, has_more = await channel.messages(self._id)
            orders = [(each, each.order) for each in letters if each.order is not None]
            unfit = [(each, each.problem) for each in letters if each.order is None]
            for letter, why in [*unfit, *await self._keep(orders)]:
                await self._bury_letter(letter, why)
            await channel.acknowledge_messages(self._id, [each.id for each in letters])
            if not has_more:
                break

    async def _bury_reservation(self, pulled: Pulled) -> None:
        entry = {"eventType": "reservation", "payload": {"reservationId": pulled.id}}
        await self._bury(msgspec.json.encode(entry), pulled.problem)

    async def _bury_letter(self, letter: Letter, why: str) -> None:
        payload = {"messageId": letter.id, "content": letter.text}
        entry = {"eventType": "guest_message", "channel": "channelManager", "payload": payload}
        await self._bury(msgspec.json.encode(entry), why)
