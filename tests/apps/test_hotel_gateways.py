"""What the channel manager may answer, and what we make of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from relevo import ProviderCredentials, ProviderError, ProviderRefused, ProviderUnavailable
from relevo.apps.hotel.gateways.channel import Channel
from relevo.apps.hotel.settings import Soap

SOAP = "http://schemas.xmlsoap.org/soap/envelope/"
OTA = "http://www.opentravel.org/OTA/2003/05"


def envelope(content: str, namespace: str = SOAP) -> str:
    return f'<s:Envelope xmlns:s="{namespace}"><s:Body>{content}</s:Body></s:Envelope>'


def answer(content: str = "<Success/>", namespace: str = OTA) -> str:
    return f'<OTA_ResRetrieveRS xmlns="{namespace}">{content}</OTA_ResRetrieveRS>'


def fault(code: str) -> str:
    return envelope(
        f"<s:Fault><faultcode>s:{code}</faultcode><faultstring>x</faultstring></s:Fault>"
    )


def errors(kind: int) -> str:
    return envelope(answer(f'<Errors><Error Type="{kind}" Code="448">x</Error></Errors>'))


LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 9))
GOOD = envelope(answer())
RETRIED: list[tuple[int, str | bytes]] = [
    (200, f'<!DOCTYPE x [<!ENTITY l0 "ha">{LAUGHS}]>{envelope(answer("&l8;"))}'),
    (200, f'<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]>{envelope(answer("&e;"))}'),
    (200, f'<!DOCTYPE x SYSTEM "http://127.0.0.1:9/x.dtd">{GOOD}'),
    (200, "<a>" * 200_000),
    (200, "x" * 6_000_000),
    (200, f'<?xml version="1.0" encoding="utf-16"?>{GOOD}'.encode("utf-16")),
    (200, envelope(answer(), "urn:other")),
    (200, envelope(answer(namespace="urn:other"))),
    (200, GOOD.replace("</s:Envelope>", f"<s:Body>{answer()}</s:Body></s:Envelope>")),
    (200, envelope(answer() + answer())),
    (200, envelope("")),
    (200, "<html><body>Bad gateway</body></html>"),
    (200, ""),
    (200, GOOD[:-20]),
    (200, fault("Server")),
    (500, fault("Server")),
    (502, "<html>Bad gateway</html>"),
    (503, ""),
    (301, ""),
    (200, errors(1)),
    (200, errors(12)),
]
REFUSED: list[tuple[int, str | bytes]] = [
    (500, fault("Client")),
    (200, fault("MustUnderstand")),
    (200, errors(3)),
    (200, errors(4)),
    (404, "gone"),
]
NOT_KNOWN: list[tuple[int, str | bytes]] = [(401, "")]


class Canned:
    """A server that says what it is told to."""

    def __init__(self) -> None:
        self.next: tuple[int, bytes] = (200, b"")
        self.url = ""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line[15:]) for line in head.lower().split(b"\r\n") if b"content-length" in line
        )
        await reader.readexactly(length)
        status, body = self.next
        top = f"HTTP/1.1 {status} x\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        try:
            writer.write(top.encode() + body)
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        except ConnectionError:
            pass  # we hang up on those who talk too much


@asynccontextmanager
async def canned() -> AsyncGenerator[tuple[Canned, Channel]]:
    told = Canned()
    server = await asyncio.start_server(told.answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    gateway = Channel(Soap(f"http://127.0.0.1:{port}/", "pms", "pw"))
    try:
        yield told, gateway
    finally:
        await gateway.close()
        server.close()
        await server.wait_closed()


async def asked(told: Canned, gateway: Channel, status: int, body: str | bytes) -> Any:
    told.next = status, body.encode() if isinstance(body, str) else body
    async with asyncio.timeout(5):
        return await gateway.reservations("hotel999")


async def test_bad_answers_are_tried_again_or_refused_by_rule() -> None:
    """B40: and never taken for a reservation."""
    async with canned() as (told, gateway):
        assert await asked(told, gateway, 200, GOOD) == []
        for kind, cases in (
            (ProviderUnavailable, RETRIED),
            (ProviderRefused, REFUSED),
            (ProviderCredentials, NOT_KNOWN),
        ):
            for number, (status, body) in enumerate(cases):
                with pytest.raises(ProviderError) as caught:
                    await asked(told, gateway, status, body)
                assert type(caught.value) is kind, (number, caught.value)
        assert await asked(told, gateway, 200, GOOD) == []


async def test_a_reservation_in_many_spellings() -> None:
    spelt = "".join(
        f'<HotelReservation ResStatus="{word}" LastModifyDateTime="2026-01-01T10:00:00{zone}">'
        f'<UniqueID Type="14" ID="CM-{number}"/></HotelReservation>'
        for number, (word, zone) in enumerate(
            (
                ("Book", "Z"),
                ("COMMIT", "+02:00"),
                ("Reserved", ""),
                ("modify", "Z"),
                ("Cancelled", "Z"),
            )
        )
    )
    async with canned() as (told, gateway):
        body = envelope(answer(f"<Success/><ReservationsList>{spelt}</ReservationsList>"))
        orders = [each.order for each in await asked(told, gateway, 200, body)]
    states = [order.status for order in orders if order]
    assert states == ["confirmed", "confirmed", "confirmed", "modified", "cancelled"]
    hours = [order.modified_at // 3_600_000 % 24 for order in orders if order]
    assert hours == [10, 8, 10, 10, 10]
