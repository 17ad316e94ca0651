"""The same promises of both kinds of records: SQL, and Astra's collections."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from relevo import ProviderCredentials, ProviderUnavailable, Relevo
from relevo.apps.hotel import app
from relevo.apps.hotel.hotel import Hotel
from relevo.apps.hotel.queues import SaveBooking, SaveMessage
from relevo.apps.hotel.reading import identified
from relevo.apps.hotel.records import Records
from relevo.simulators import World
from relevo.simulators.astra import astra
from relevo.testing import drain


@pytest.fixture(params=["sql", "astra"])
async def relevo(
    request: pytest.FixtureRequest, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Relevo]:
    monkeypatch.setenv("HOTEL_RECORDS", request.param)
    async with Relevo(f"sqlite:///{tmp_path / 'hotel.db'}", apps=[app]) as engine:
        yield engine


@pytest.fixture
def records(relevo: Relevo) -> Records:
    return relevo.use(Hotel).records


def booking(number: int, status: str, at: int, **details: str) -> SaveBooking:
    return SaveBooking(
        hotel_id="hotel999",
        event_id=f"e{number}",
        event_type="booking",
        booking_id="b1",
        status=status,
        modified_at=at,
        details=details or None,
    )


def message(id: str, at: int = 1_000, hotel: str = "hotel999", text: str = "Hola") -> SaveMessage:
    return SaveMessage(
        hotel_id=hotel,
        channel="booking",
        message_id=id,
        conversation_id="c1",
        guest_id="g1",
        content=text,
        sent_at=at,
        via="channel",
    )


async def test_a_reservation_follows_the_provider_and_not_the_order_of_arrival(
    relevo: Relevo, records: Records
) -> None:
    """B51: cancelled, then confirmed arriving late with an older time."""
    for order in (
        booking(1, "confirmed", 100, arrival="2027-01-01", guestName="Ana"),
        booking(2, "cancelled", 300),
        booking(3, "confirmed", 200, arrival="2027-09-09"),
        booking(3, "confirmed", 200, arrival="2027-09-09"),
    ):
        await relevo.enqueue(order)
        await drain(relevo)
    row = await records.reservation("hotel999", "b1")
    assert row is not None
    assert (row.status, row.modified_at, row.arrival) == ("cancelled", 300, "2027-01-01")
    assert row.guest_name == "Ana"
    assert await records.count("cm_events") == 3
    assert {event.status for event in await records.events("hotel999")} == {"processed"}


async def test_an_event_id_told_with_two_states_is_one_event_with_both(
    relevo: Relevo, records: Records
) -> None:
    """The event's id says which row; no change is lost, also when both are told at once."""
    first = identified(booking(1, "modified", 100, arrival="2027-01-01", guestName="Ana"))
    second = identified(booking(1, "modified", 100, arrival="2027-01-09"))
    third = identified(booking(1, "cancelled", 0))
    await relevo.enqueue_many([first, second])
    await drain(relevo)
    await relevo.enqueue_many([third, first, second])
    await drain(relevo)
    [event] = await records.events("hotel999")
    told = sorted((each["status"], each.get("arrival")) for each in event.history())
    assert told == [("cancelled", None), ("modified", "2027-01-01"), ("modified", "2027-01-09")]
    assert "Ana" not in str(event.changes)
    row = await records.reservation("hotel999", "b1")
    assert row is not None
    assert (row.status, row.guest_name) == ("cancelled", "Ana")


async def test_two_event_ids_are_two_events(relevo: Relevo, records: Records) -> None:
    await relevo.enqueue_many([identified(booking(n, "modified", 100 * n)) for n in (1, 2)])
    await drain(relevo)
    assert {row.event_id for row in await records.events("hotel999")} == {"e1", "e2"}


async def test_many_changes_at_once_end_at_the_newest(relevo: Relevo, records: Records) -> None:
    orders = [booking(n, "modified" if n < 30 else "cancelled", n) for n in range(1, 31)]
    await relevo.enqueue_many(orders)
    await drain(relevo, skip_waits=False)
    row = await records.reservation("hotel999", "b1")
    assert row is not None
    assert (row.status, row.modified_at) == ("cancelled", 30)
    assert await records.count("reservations") == 1


async def test_a_message_is_stored_once_and_a_conversation_never_moves_back(
    relevo: Relevo, records: Records
) -> None:
    await relevo.enqueue_many([message("m1", 1_000), message("m2", 3_000, text="Después")])
    await drain(relevo)
    await relevo.enqueue_many([message("m1", 1_000), message("m3", 2_000, text="Entre medio")])
    await drain(relevo)
    kept = await records.messages("hotel999", "c1")
    guests = [each for each in kept if each.direction == "guest"]
    assert [each.id for each in guests] == [f"hotel999:booking:m{n}" for n in (1, 3, 2)]
    talk = await records.conversation("hotel999", "c1")
    assert talk is not None
    assert talk.last_at >= 3_000
    assert await records.count("guests") == 1
    assert await records.conversation("hotel1", "c1") is None


async def test_a_person_decides_who_answers(relevo: Relevo, records: Records) -> None:
    assert not await records.set_mode("hotel999", "c1", "manual")
    await relevo.enqueue(message("m1"))
    await drain(relevo)
    assert await records.set_mode("hotel999", "c1", "manual")
    await relevo.enqueue(message("m2", 9_000))
    await drain(relevo)
    talk = await records.conversation("hotel999", "c1")
    assert talk is not None
    assert talk.mode == "manual"


async def test_newest_come_first_and_hotels_do_not_mix(relevo: Relevo, records: Records) -> None:
    for number, hotel in enumerate(("hotel1", "hotel999", "hotel1")):
        order = message(f"m{number}", 1_000 + number, hotel=hotel)
        await relevo.enqueue(order)
        await relevo.enqueue(
            SaveBooking(hotel, f"e{number}", "booking", f"b{number}", "confirmed", number + 1)
        )
        await drain(relevo)
    assert [row.booking_id for row in await records.reservations("hotel1")] == ["b2", "b0"]
    assert [row.event_id for row in await records.events(None)] == ["e2", "e1", "e0"]
    assert len(await records.conversations("hotel1")) == 1
    assert len(await records.conversations(None)) == 2


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("refuse", ProviderUnavailable),
        ("error", ProviderUnavailable),
        ("down", ProviderUnavailable),
        ("malformed", ProviderUnavailable),
    ],
)
async def test_astra_away_is_tried_again(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    expected: type[Exception],
) -> None:
    monkeypatch.setenv("HOTEL_RECORDS", "astra")
    async with Relevo(f"sqlite:///{tmp_path / 'hotel.db'}", apps=[app]) as engine:
        records = engine.use(Hotel).records
        world.faults.add("astra", "findOne", kind, times=1)  # pyright: ignore[reportArgumentType]
        with pytest.raises(expected):
            await records.has_message("x")
        assert not await records.has_message("x")
        monkeypatch.setattr("relevo.simulators.astra.TOKEN", "another")
        with pytest.raises(ProviderCredentials):
            await records.has_message("x")


async def test_astra_a_change_that_loses_to_another_writer_is_made_again(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server says "1 matched, 0 modified": taken for a success, the change was lost."""
    monkeypatch.setenv("HOTEL_RECORDS", "astra")
    async with Relevo(f"sqlite:///{tmp_path / 'hotel.db'}", apps=[app]) as engine:
        records = engine.use(Hotel).records
        await engine.enqueue(booking(1, "confirmed", 100, arrival="2027-01-01"))
        await drain(engine)

        def rival(document: dict[str, Any]) -> None:
            document["updatedAt"] += 1
            document["details"]["departure"] = "2027-01-05"

        astra(world).rivals.append(rival)
        await engine.enqueue(booking(2, "cancelled", 200))
        await drain(engine)
        row = await records.reservation("hotel999", "b1")
        assert row is not None
        assert astra(world).rivals == []
        assert (row.status, row.departure) == ("cancelled", "2027-01-05")


async def test_astra_counts_and_sorts_only_so_many(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses beyond 1,000 and 10,000; the panel shows an estimate, and the newest."""
    monkeypatch.setenv("HOTEL_RECORDS", "astra")
    async with Relevo(f"sqlite:///{tmp_path / 'hotel.db'}", apps=[app]) as engine:
        records = engine.use(Hotel).records
        now = await engine.time.now()
        for number in range(10_001):
            event = {"_id": f"hotel1:{number}", "hotelId": "hotel1", "eventId": f"e{number}"}
            more = {
                "eventType": "booking",
                "bookingId": "b",
                "receivedAt": now - number * 3_600_000,
            }
            astra(world).collections["default_keyspace", "cm_events"][number] = {**event, **more}
        assert await records.count("cm_events") == 10_001
        assert [row.event_id for row in await records.events(None, 3)] == ["e0", "e1", "e2"]
        assert len(await records.events("hotel1", 100)) == 100


async def test_astra_keeps_documents_as_the_seed_has_them(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTEL_RECORDS", "astra")
    async with Relevo(f"sqlite:///{tmp_path / 'hotel.db'}", apps=[app]) as engine:
        # Somebody deleted a collection while we run: it is made again.
        astra(world).collections.pop(("default_keyspace", "messages"))
        await engine.enqueue(message("cm-msg-1", 1_767_225_600_000))
        await drain(engine)
        kept = [each for each in astra(world).documents("messages") if each["direction"] == "guest"]
        [document] = kept
        assert document["_id"] == "hotel999:booking:cm-msg-1"
        assert document["timestamp"] == "2026-01-01T00:00:00.000+00:00"
        assert document["hotelId"] == "hotel999"
        assert world.ledger.doubled("astra") == {}
        assert world.ledger.count("channel", "reply") == 1
