"""Reactions: a guest's message is answered by itself where the conversation says so."""

from __future__ import annotations

from relevo import Context
from relevo.apps.hotel.events import MessageSaved
from relevo.apps.hotel.hotel import Hotel
from relevo.apps.hotel.queues import ReplyToGuest


async def answer(fact: MessageSaved, ctx: Context) -> None:
    """Order the automatic answer to a message; its reference makes it one, however often we ask."""
    hotel = ctx.use(Hotel)
    talk = await hotel.records.conversation(fact.hotel_id, fact.conversation_id)
    if talk is None or talk.mode != "automatic":
        return
    if (via := hotel.way(fact.hotel_id, fact.via)) is None:
        return
    await ctx.enqueue(
        ReplyToGuest(
            hotel_id=fact.hotel_id,
            channel=talk.channel,
            conversation_id=fact.conversation_id,
            guest_id=talk.guest_id,
            reference=f"reply:{fact.id}:1",
            content=hotel.settings.reply,
            via=via,
            in_reply_to=fact.message_id,
            booking_id=fact.booking_id,
            asked_at=fact.sent_at,
        )
    )
