"""Hotel: what the functions of this app have in common, opened with the engine."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from relevo import Command, Relevo
from relevo.apps.hotel.board import Board, RedisBoard
from relevo.apps.hotel.board_sql import SqlBoard
from relevo.apps.hotel.gateways.beds24 import Beds24
from relevo.apps.hotel.gateways.channel import Channel
from relevo.apps.hotel.records import Records
from relevo.apps.hotel.records.sql import SqlRecords
from relevo.apps.hotel.settings import HotelSettings
from relevo.bridges.redis_list import connect


@dataclass(frozen=True, slots=True)
class Hotel:
    """Every hotel of this process, its records, its board and its gateways."""

    relevo: Relevo
    settings: HotelSettings
    records: Records
    board: Board
    channel: Channel | None
    beds24: Beds24

    async def order(self, orders: Sequence[Command]) -> None:
        """Order things for a bot; when this returns they are safe.

        Each begins a story of its own: in the bot's, which never ends, nobody would find it.
        """
        if orders:
            work = self.relevo.enqueue_many(orders)
            await asyncio.create_task(work, context=contextvars.Context())

    def way(self, hotel: str, via: str) -> str | None:
        """How a guest is answered who wrote by way of `via`; None: by no way we know."""
        if via == "beds24" and self.settings.has_api(hotel):
            return "beds24"
        return "channel" if self.channel is not None else None


@asynccontextmanager
async def open_hotel(relevo: Relevo) -> AsyncGenerator[Hotel]:
    settings = HotelSettings.read()
    async with AsyncExitStack() as stack:
        board: RedisBoard | SqlBoard = SqlBoard(relevo)
        if settings.redis_url is not None:
            board = RedisBoard(connect(settings.redis_url))
        stack.push_async_callback(board.close)
        channel = None
        if settings.soap is not None:
            channel = Channel(settings.soap)
            stack.push_async_callback(channel.close)
        beds24 = Beds24(settings.api_url, settings.refresh_tokens)
        stack.push_async_callback(beds24.close)
        records = await _records(stack, relevo, settings)
        yield Hotel(relevo, settings, records, board, channel, beds24)


async def _records(stack: AsyncExitStack, relevo: Relevo, settings: HotelSettings) -> Records:
    if settings.astra is None:
        return SqlRecords(relevo, settings.mode)
    # Imported only where it is used: it brings a client of its own along.
    from relevo.apps.hotel.records.astra import open_astra

    return await stack.enter_async_context(open_astra(settings.astra, settings.mode))
