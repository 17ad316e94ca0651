"""Reactions: a guest's message is answered by itself where the conversation says so."""

from __future__ import annotations

from relevo import Context
from relevo.apps.hotel.events import MessageSaved
from relevo.apps.hotel.hotel import Hotel
from relevo.apps.hotel.queues import ReplyToGuest


async def answer(fact: MessageSaved, ctx: Context) -> None:
    """Order the automatic answer to a message; its reference makes it one, however often we ask."""
    hotel = ctx.use(Hotel)
    conversation = await hotel.records.conversation(fact.hotel_id, fact.conversation_id)
    if conversation is None or conversation.mode != "automatic":
        return
    message = await hotel.records.message_of(fact.id)
    if message is None or (via := hotel.way(fact.hotel_id, message.via)) is None:
        return
    await ctx.enqueue(
        ReplyToGuest(
            hotel_id=fact.hotel_id,
            conversation_id=fact.conversation_id,
            reference=f"reply:{fact.id}:1",
            content=hotel.settings.reply,
            via=via,
            in_reply_to=message.message_id,
            booking_id=message.booking_id,
            asked_at=message.sent_at,
        )
    )
