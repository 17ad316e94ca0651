"""Beds24's API, version 2: how a booking stands, what was written about it, and an answer.

A token is asked for with the hotel's refresh token and kept until shortly before it ends. An
answer to a guest has no key there: whoever is not sure whether it left looks with find().
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import urlencode

import msgspec

from relevo.apps.hotel.beds24 import News, read_answer
from relevo.apps.hotel.queues import ReplyToGuest
from relevo.apps.hotel.reading import Unfit, moment_of
from relevo.apps.outside import Outside, Reply
from relevo.clock import moment
from relevo.errors import ProviderRefused, ProviderUnavailable
from relevo.telemetry import log

T = TypeVar("T")

PAGES = 10
_SPARE = 300.0  # seconds before its end at which a token is no longer used
_STATES = ("confirmed", "request", "new", "cancelled", "black", "inquiry")


class _Pages(msgspec.Struct, rename="camel"):
    next_page_exists: bool = False


class _List(msgspec.Struct):
    success: bool
    data: list[Any]
    pages: _Pages | None = None


class _Token(msgspec.Struct, rename="camel"):
    token: str
    expires_in: float


class _New(msgspec.Struct):
    id: int | str


class _Sent(msgspec.Struct):
    success: bool
    new: _New | None = None


class _Written(msgspec.Struct):
    id: int | str
    message: str | None = None
    time: str | None = None


class Beds24:
    """One API, and the accounts of our hotels on it."""

    def __init__(self, url: str, refresh_tokens: Mapping[str, str]) -> None:
        self._outside = Outside("Beds24", url)
        self._refresh = refresh_tokens
        self._tokens: dict[str, tuple[str, float]] = {}

    async def close(self) -> None:
        await self._outside.close()

    async def news(self, hotel: str, booking: str) -> News | None:
        """A booking with its messages; None when there is no such booking, or no more."""
        query = [("id", booking), *(("status", state) for state in _STATES)]
        bookings = await self._list(hotel, "/bookings", query)
        if not bookings:
            return None
        messages = await self._list(hotel, "/bookings/messages", [("bookingId", booking)])
        try:
            return read_answer(hotel, bookings[0], messages)
        except Unfit as error:
            raise ProviderUnavailable(f"Beds24 answered with {error}") from error

    async def find_changed(self, hotel: str, property: str, since: int) -> list[News]:
        """The bookings of a property that changed since a moment; those not readable left out."""
        at = moment(since).isoformat(timespec="seconds").replace("+00:00", "Z")
        query = [("propertyId", property), ("modifiedFrom", at)]
        query += [("status", state) for state in _STATES]
        found: list[News] = []
        for each in await self._list(hotel, "/bookings", query):
            try:
                found.append(read_answer(hotel, each, []))
            except Unfit as error:
                log.warning("a booking is unfit", extra={"hotel": hotel, "reason": str(error)})
        return found

    async def sign_in(self, hotel: str) -> None:
        """Have a token, so that the next call of the hotel leaves at once."""
        await self._login(hotel)

    async def reply(self, order: ReplyToGuest) -> str:
        """Answer a guest; gives the id of the message."""
        number = order.booking_id
        about = int(number) if number.isascii() and number.isdigit() else number
        headers = await self._login(order.hotel_id)
        answer = await self._outside.call(
            "POST",
            "/bookings/messages",
            acts=True,
            json=[{"bookingId": about, "message": order.content, "source": "host"}],
            headers=headers,
        )
        [sent] = self._read(answer, order.hotel_id, list[_Sent])[:1] or [_Sent(False)]
        if not sent.success:  # told with 201, for each message of the list
            raise ProviderRefused("Beds24 did not take the message")
        if sent.new is None:
            raise answer.unreadable("no id of the message")
        return str(sent.new.id)

    async def find(self, order: ReplyToGuest) -> str | None:
        """The id of the answer if it is there already: the same words, after the guest's."""
        query = [("bookingId", order.booking_id), ("source", "host")]
        listed = await self._list(order.hotel_id, "/bookings/messages", query)
        for each in msgspec.convert(listed, list[_Written]):
            is_after = moment_of(each.time or "") >= order.asked_at - 1_000
            if each.message == order.content and is_after:
                return str(each.id)
        return None

    async def _list(self, hotel: str, path: str, query: list[tuple[str, str]]) -> list[Any]:
        found: list[Any] = []
        for page in range(1, PAGES + 1):
            headers = await self._login(hotel)
            place = f"{path}?{urlencode([*query, ('page', str(page))])}"
            answer = await self._outside.call("GET", place, acts=False, headers=headers)
            told = self._read(answer, hotel, _List)
            if not told.success:
                raise answer.unreadable("no success")
            found += told.data
            if told.pages is None or not told.pages.next_page_exists:
                break
        return found

    def _read(self, answer: Reply, hotel: str, kind: type[T]) -> T:
        if answer.status == 401:
            self._tokens.pop(hotel, None)  # ended early: the next attempt asks for another
            raise ProviderUnavailable("Beds24 does not know our token any more")
        try:
            return msgspec.convert(answer.check().json(), kind)
        except msgspec.ValidationError as error:
            raise answer.unreadable("something else than it should") from error

    async def _login(self, hotel: str) -> dict[str, str]:
        token, ends = self._tokens.get(hotel, ("", 0.0))
        if time.monotonic() >= ends:
            refresh = {"refreshToken": self._refresh[hotel]}
            answer = await self._outside.call(
                "GET", "/authentication/token", acts=False, headers=refresh
            )
            told = self._read(answer, hotel, _Token)
            token = told.token
            self._tokens[hotel] = token, time.monotonic() + max(0.0, told.expires_in - _SPARE)
        return {"token": token}
