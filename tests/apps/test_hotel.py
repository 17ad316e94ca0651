"""The hotel channel manager: webhook in, bot at work, effects counted in the ledger."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from relevo import Poll, Relevo, State
from relevo.apps.hotel import app, webhooks
from relevo.apps.hotel.bot import ChannelBot
from relevo.apps.hotel.hotel import Hotel
from relevo.message import EVENTS
from relevo.simulators import World
from relevo.simulators.beds24 import query_of
from relevo.simulators.channel import channel
from relevo.testing import ManualClock, deliver, drain

DOOR = webhooks.PATH
QUEUES = sorted(
    {binding.spec.queue for binding in (*app.workers, *app.listeners)}
)  # all but the bots themselves, whose turns a test takes by hand


@pytest.fixture
async def relevo(world: World, tmp_path: Path, clock: ManualClock) -> AsyncGenerator[Relevo]:
    url = f"sqlite:///{tmp_path / 'hotel.db'}"
    async with Relevo(url, apps=[app], clock=clock) as engine:
        yield engine


@pytest.fixture
def hotel(relevo: Relevo) -> Hotel:
    return relevo.use(Hotel)


def said(answer: Any) -> dict[str, Any]:
    return msgspec.json.decode(answer.body)


def entry(number: int | str, **payload: Any) -> bytes:
    told = {
        "messageId": f"cm-msg-{number}",
        "conversationId": f"hotel999-channelManager-guest-{number}",
        "guestId": f"guest-{number}",
        "channel": "channelManager",
        "timestamp": "2026-01-01T10:00:00Z",
        "content": "Hola!",
        **payload,
    }
    return json.dumps(
        {
            "eventId": f"evt-sim-{number}",
            "eventType": "guest_message",
            "channel": "channelManager",
            "payload": told,
            "receivedAt": "2026-01-01T10:00:01Z",
        }
    ).encode()


async def rest(relevo: Relevo) -> None:
    """Work on everything but the bots, whose turns a test takes by hand, until it is done."""

    async def is_done() -> bool:
        tallies = [each for each in await relevo.store.tally() if each.queue in {EVENTS, *QUEUES}]
        states = (State.READY, State.RUNNING)
        return not any(each.counts.get(state) for each in tallies for state in states)

    await drain(relevo, until=is_done, queues=QUEUES)


async def turn(relevo: Relevo, hotel: str = "hotel999", failures: int = 0) -> Poll:
    """One turn of a hotel's bot, and all that comes of it."""
    poll = Poll(f"hotel:{hotel}", {"hotel_id": hotel}, failures=failures)
    try:
        await ChannelBot(relevo.use(Hotel), hotel).poll(poll)
    finally:
        await rest(relevo)
    return poll


async def get(
    relevo: Relevo, booking: int | str, word: str, hotel: str = "hotel999", **more: str
) -> Any:
    query = query_of(hotel, booking, word, **more)
    return await deliver(relevo, DOOR, method="GET", query=query, sign=False)


async def test_a_webhook_is_kept_and_answered_to_the_letter(relevo: Relevo, hotel: Hotel) -> None:
    first = await get(relevo, 12345678, "new")
    assert (first.status, said(first)) == (
        200,
        {
            "ok": True,
            "processed": True,
            "eventId": "b24:12345678:new",
            "hotelId": "hotel999",
            "bookId": "12345678",
        },
    )
    assert await get(relevo, 12345678, "new") == first
    [event] = await hotel.records.events("hotel999")
    assert (event.event_id, event.status) == ("b24:12345678:new", "processed")
    [row] = await hotel.records.reservations("hotel999")
    assert (row.booking_id, row.status) == ("12345678", "confirmed")


async def test_the_list_is_drained_and_each_guest_answered_once(
    relevo: Relevo, hotel: Hotel, world: World
) -> None:
    await hotel.board.queue("hotel999").push([entry(n) for n in (1, 2, 2, 3)])
    await drain(relevo, until=lambda: world.ledger.count("channel", "reply") == 3)
    await drain(relevo)
    assert await hotel.records.count("messages") == 6
    assert world.ledger.doubled("channel", "reply") == {}
    assert await hotel.board.queue("hotel999").lengths() == (0, 0, 0)


async def test_what_the_channel_manager_has_is_kept_then_acknowledged(
    relevo: Relevo, hotel: Hotel, world: World
) -> None:
    channel(world).book("hotel999", "CM-1001")
    channel(world).write("hotel999", "m-1", "¿Hay cochera?")
    world.faults.add("channel", "ack", "down", times=1)
    await drain(relevo, skip_waits=True, until=lambda: channel(world).left() == 0)
    await drain(relevo)
    [row] = await hotel.records.reservations("hotel999")
    assert (row.status, row.arrival, row.guest_name) == ("confirmed", "2027-02-01", "Ana Paz")
    assert world.ledger.count("channel", "reply") == 1
