"""Carrying out: keep a booking, keep a message, answer a guest, ask Beds24."""

from __future__ import annotations

from relevo import Context, Dead, ProviderUncertain, Retry
from relevo.apps.hotel import names
from relevo.apps.hotel.events import MessageSaved, ReservationChanged
from relevo.apps.hotel.hotel import Hotel
from relevo.apps.hotel.queues import FetchBooking, ReplyToGuest, SaveBooking, SaveMessage
from relevo.apps.hotel.records import Message, message_of
from relevo.errors import StoreUnavailable
from relevo.telemetry import log

LATE = "15s"  # after which a reply that broke off, and is not in the conversation, is no more


async def save_booking(order: SaveBooking, ctx: Context) -> None:
    """Keep an event, and let its reservation follow."""
    hotel = ctx.use(Hotel)
    now = await hotel.relevo.time.now()
    async with hotel.records.saving(ctx) as write:
        if await write.booking(order, now):
            await ctx.publish(changed(order))


def changed(order: SaveBooking) -> ReservationChanged:
    return ReservationChanged(
        order.hotel_id, order.booking_id, order.event_id, order.status, order.change_id
    )


async def save_message(order: SaveMessage, ctx: Context) -> None:
    """Keep a message, once: the window in front saves work, the strong id is the truth."""
    hotel = ctx.use(Hotel)
    id = names.strong_id(order.hotel_id, order.channel, order.message_id)
    if not await _claim(hotel, order) and await hotel.records.has_message(id):
        kept = await hotel.records.message_of(id)
        if kept is None or kept.job != ctx.id:
            log.info("DEDUP", extra={"hotel": order.hotel_id, "id": id})
            return
    now = await hotel.relevo.time.now()
    message = message_of(order, ctx.id, now)
    async with hotel.records.saving(ctx) as write:
        if await write.message(message, order.guest_name) and order.direction == "guest":
            await ctx.publish(_saved(message))


def _saved(message: Message) -> MessageSaved:
    return MessageSaved(
        id=message.id,
        hotel_id=message.hotel_id,
        conversation_id=message.conversation_id,
        message_id=message.message_id,
        via=message.via,
        booking_id=message.booking_id,
        sent_at=message.sent_at,
    )


async def _claim(hotel: Hotel, order: SaveMessage) -> bool:
    """Whether nobody was on this message lately; without the window, nobody can say."""
    try:
        return await hotel.board.claim(order.hotel_id, order.message_id, hotel.settings.dedup_ttl)
    except StoreUnavailable:
        return False


async def reply_to_guest(order: ReplyToGuest, ctx: Context) -> Dead | Retry | None:
    """Say something to a guest, once, and keep what was said."""
    hotel = ctx.use(Hotel)
    if order.via == "beds24":
        # Before once(), which looks at the lease right before the call: a token that takes long
        # would come between, and whoever took the job over meanwhile answers as well.
        await hotel.beds24.sign_in(order.hotel_id)
        try:
            sent = await ctx.once(
                "reply",
                lambda _: hotel.beds24.reply(order),
                find=lambda _: hotel.beds24.find(order),
                late=LATE,
            )
        except ProviderUncertain as error:
            return Retry(str(error))  # the next attempt looks before it repeats
    elif (channel := hotel.channel) is not None:
        sent = await ctx.once("reply", lambda key: channel.reply(order, key), repeatable=True)
    else:
        return Dead("CM_SOAP_URL is not set: there is no way to answer")
    now = await hotel.relevo.time.now()
    message = Message(
        id=names.strong_id(order.hotel_id, order.channel, sent),
        hotel_id=order.hotel_id,
        channel=order.channel,
        message_id=sent,
        conversation_id=order.conversation_id,
        guest_id=order.guest_id,
        direction="host",
        content=order.content,
        sent_at=now,
        received_at=now,
        via=order.via,
        booking_id=order.booking_id,
        author=order.author,
        job=ctx.id,
    )
    async with hotel.records.saving(ctx) as write:
        await write.message(message)
    return None


async def fetch_booking(order: FetchBooking, ctx: Context) -> None:
    """Ask Beds24 what its webhook left out."""
    hotel = ctx.use(Hotel)
    news = await hotel.beds24.news(order.hotel_id, order.booking_id)
    if news is None:
        return
    for message in news.messages:
        await ctx.enqueue(message)
    if not news.is_blocked:
        await ctx.enqueue(news.change)
