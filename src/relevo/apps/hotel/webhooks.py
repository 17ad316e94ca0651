"""Beds24 calls us: check, translate, keep, answer.

The rows are written in the transaction that keeps the delivery, so `processed: true` is so when it
is said; where they live elsewhere (Astra), the order to write them is kept instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relevo.apps.hotel.beds24 import News, read_delivery
from relevo.apps.hotel.hotel import Hotel
from relevo.apps.hotel.names import scoped
from relevo.apps.hotel.queues import FetchBooking
from relevo.apps.hotel.reading import Unfit
from relevo.apps.hotel.secret import HotelSecret
from relevo.apps.hotel.workers import changed
from relevo.intake import Intake, Reject
from relevo.route import Use
from relevo.webhook import Answer, Delivery

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

PATH = "/api/integrations/beds24/webhooks"
CONTENT_TYPES = ("application/json", "application/x-www-form-urlencoded", "")


def verify(use: Use) -> HotelSecret:
    return HotelSecret(use(Hotel).settings.secrets)


def key(delivery: Delivery) -> str:
    """The event's id within its hotel, and the change's: a repetition has both.

    Version 1 tells a guest's second message in the words of the first, so each of its calls is a
    delivery of its own: Beds24 has to be asked again.
    """
    change = _news(delivery).change
    return f"{scoped(change.hotel_id, change.event_id)}:{change.change_id}"


async def beds24(delivery: Delivery, ctx: Intake, tx: AsyncSession) -> Answer:
    """A booking is new, changed, cancelled, or somebody wrote about it."""
    news, hotel = _news(delivery), ctx.use(Hotel)
    change = news.change
    if not news.is_blocked:
        if (write := hotel.records.within(tx)) is None:
            await ctx.enqueue(change)
        elif await write.booking(change, await hotel.relevo.time.now()):
            await ctx.publish(changed(change))
    for message in news.messages:
        await ctx.enqueue(message)
    if not news.is_whole and hotel.settings.has_api(change.hotel_id):
        await ctx.enqueue(FetchBooking(change.hotel_id, change.booking_id))
    return Answer.json(
        {
            "ok": True,
            "processed": True,
            "eventId": change.event_id,
            "hotelId": change.hotel_id,
            "bookId": change.booking_id,
        }
    )


def _news(delivery: Delivery) -> News:
    """What a delivery says, read once."""
    try:
        return read_delivery(delivery)
    except Unfit as error:
        raise Reject(422, "invalid", str(error)) from error
