"""Beds24's webhook: who may call, what it keeps, what it answers, and what it never shows."""

from __future__ import annotations

import io
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from relevo import Relevo, State
from relevo.apps.hotel import app
from relevo.apps.hotel.hotel import Hotel
from relevo.desk import Person, Role
from relevo.simulators import World
from relevo.simulators.beds24 import beds24, query_of, secret_of, version2
from relevo.store import Letterbox
from relevo.testing import ManualClock, deliver, drain
from tests.apps.test_hotel import DOOR, get, rest, said, turn

JSON = {"content-type": "application/json"}
FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.fixture
async def relevo(world: World, tmp_path: Path, clock: ManualClock) -> AsyncGenerator[Relevo]:
    url = f"sqlite:///{tmp_path / 'hotel.db'}"
    async with Relevo(url, apps=[app], clock=clock) as engine:
        yield engine


@pytest.fixture
def hotel(relevo: Relevo) -> Hotel:
    return relevo.use(Hotel)


async def call(relevo: Relevo, query: str = "", method: str = "GET", **more: Any) -> Any:
    return await deliver(relevo, DOOR, method=method, query=query, sign=False, **more)


async def post(relevo: Relevo, body: Any, hotel: str = "hotel999", **headers: str) -> Any:
    told = {**JSON, "x-relevo-secret": secret_of(hotel), **headers}
    return await call(relevo, f"hotelId={hotel}", "POST", json=body, headers=told)


def booking(status: str, at: str, **fields: Any) -> dict[str, Any]:
    made = {"id": 77, "status": status, "modifiedTime": at, "arrival": "2027-02-01", **fields}
    return version2(made, fields.pop("messages", ()))


GOOD = "hotelId=hotel999&bookid=1&status=new"
SECRET = secret_of("hotel999")


FORGED = [
    GOOD,
    f"{GOOD}&secret=",
    f"{GOOD}&secret=guess",
    f"{GOOD}&secret={SECRET.upper()}",
    f"{GOOD}&secret=%20{SECRET}",
    f"{GOOD}&secret[]={SECRET}",
    f"{GOOD}&secret={SECRET}&secret={SECRET}",
    f"{GOOD}&secret={secret_of('hotel1')}",
    f"{GOOD}&secret=%C3%B1%00",
    f"{GOOD}&secret={'x' * 5_000}",
    f"{GOOD.replace('hotel999', 'hotel42')}&secret={SECRET}",
    "hotelId=dead:hotel999&bookid=1&status=new&secret=guess",
]


async def test_whoever_does_not_know_the_secret_leaves_nothing_behind(
    relevo: Relevo, hotel: Hotel
) -> None:
    """B01, B05: the same answer for every cause, and nothing stored."""
    for query in FORGED:
        answer = await call(relevo, query)
        assert (answer.status, said(answer)["error"]) == (401, "invalid_secret"), query[:80]
    assert await hotel.records.count("cm_events") == 0
    assert await hotel.records.count("reservations") == 0


async def test_a_hotel_that_cannot_be_is_invalid(relevo: Relevo, hotel: Hotel) -> None:
    """B50: also to those who know a secret."""
    for id in [
        "dead:hotel999",
        "a:b",
        "*",
        "../x",
        "",
        "x" * 65,
        "hotel999%0A",
        "{hotel999}",
        "hótel",
        "hotel999&hotelId=hotel1",
    ]:
        answer = await call(relevo, f"hotelId={id}&bookid=1&status=new&secret={SECRET}")
        assert (answer.status, said(answer)["error"]) == (422, "invalid"), id
    assert await hotel.records.count("cm_events") == 0


UNREADABLE = [
    ("bookid=1&status=checked-in", "invalid"),
    ("bookid=1&status=", "invalid"),
    ("bookid=1", "invalid"),
    ("status=new", "invalid"),
    ("bookid=&status=new", "invalid"),
    (f"bookid={'9' * 300}&status=new", "invalid"),
    ("bookid=1%0A2&status=new", "invalid"),
    ("bookid=1&status=new&modifiedTime=0000-00-00", "invalid"),
    ("bookid=1&status=new&modifiedTime=2026-02-30T00:00:00Z", "invalid"),
    (f"bookid=1&status=new&eventId={'e' * 300}", "invalid"),
    ("bookid=1&bookid=2&status=new", "duplicate_field"),
]


async def test_what_cannot_be_read_is_refused(relevo: Relevo, hotel: Hotel) -> None:
    """B29, B51"""
    for query, code in UNREADABLE:
        answer = await call(relevo, f"hotelId=hotel999&secret={SECRET}&{query}")
        status = 422 if code == "invalid" else 400
        assert (answer.status, said(answer)["error"]) == (status, code), query[:80]
    assert await hotel.records.count("cm_events") == 0


MISSHAPEN = [
    (b"", 422),
    (b"null", 200),  # well-formed and signed: kept as failed
    (b"[]", 200),
    (b'{"booking":', 400),
    (b'{"booking":null}', 422),
    (b'{"booking":{"id":{"$ne":null},"status":"confirmed"}}', 422),
    (b'{"booking":{"id":1,"status":{"$ne":null}}}', 422),
    (b'{"booking":{"id":1,"status":"confirmed","modifiedTime":["x"]}}', 422),
    (b'{"booking":{"id":1,"status":"sold"}}', 422),
    (b'{"booking":{"id":1,"status":"confirmed","arrival":"2026-02-30"}}', 422),
    (b'{"booking":{"id":1,"status":"confirmed"},"messages":{"$where":"1"}}', 422),
    (b'{"bookId":{"$ne":null},"status":"new"}', 422),
    (b'{"__proto__":{},"constructor":1}', 422),
]


async def test_a_body_of_another_shape_is_refused(relevo: Relevo, hotel: Hotel) -> None:
    """B26, B20: an operator where a text is expected never reaches a query."""
    headers = {**JSON, "x-relevo-secret": SECRET}
    for body, status in MISSHAPEN:
        answer = await call(relevo, "hotelId=hotel999", "POST", body=body, headers=headers)
        assert answer.status == status, body
    assert await hotel.records.count("cm_events") == 0


async def test_all_the_ways_in_which_beds24_and_others_call(relevo: Relevo, hotel: Hotel) -> None:
    fields = "BookId=2&STATUS=New"
    answers = [
        await get(relevo, 1, "new"),
        await call(relevo, f"hotelId=hotel999&secret={SECRET}&&{fields}"),
        await call(
            relevo,
            f"hotelId=hotel999&secret={SECRET}",
            "POST",
            body="bookid=3&status=modify",
            headers=FORM,
        ),
        await call(
            relevo,
            "",
            "POST",
            body=f"hotelId=hotel999&secret={SECRET}&bookId=4&status=cancel",
            headers=FORM,
        ),
        await call(
            relevo,
            "hotelId=hotel999&bookid=5&status=confirmed",
            headers={"X-Relevo-Secret": SECRET},
        ),
        await call(
            relevo,
            "",
            "POST",
            json={"hotelId": "hotel999", "bookId": 6, "status": "modified", "secret": SECRET},
            headers=JSON,
        ),
        await post(
            relevo, version2({"id": 7, "status": "inquiry", "modifiedTime": "2026-01-01T10:00:00Z"})
        ),
        await get(relevo, 8, "new", eventId="evt-of-theirs"),
    ]
    assert [answer.status for answer in answers] == [200] * 8
    assert said(answers[-1])["eventId"] == "evt-of-theirs"
    rows = {row.booking_id: row.status for row in await hotel.records.reservations("hotel999")}
    assert rows == {
        "1": "confirmed",
        "2": "confirmed",
        "3": "modified",
        "4": "cancelled",
        "5": "confirmed",
        "6": "modified",
        "7": "pending",
        "8": "confirmed",
    }


async def test_a_repeated_webhook_gets_the_same_answer_and_no_second_row(
    relevo: Relevo, hotel: Hotel
) -> None:
    body = booking("confirmed", "2026-01-01T10:00:00Z")
    first = await post(relevo, body)
    again = await post(relevo, {**body, "retries": 1, "timeStamp": "2026-01-01T10:05:00Z"})
    assert said(first)["eventId"] == "b24:77:2026-01-01T10:00:00Z"
    assert (again.status, again.body) == (first.status, first.body)
    assert await hotel.records.count("cm_events") == 1


async def test_modified_twice_under_one_event_id_is_one_row_with_both(
    relevo: Relevo, hotel: Hotel
) -> None:
    """The id is Beds24's, what is told under it is not the same: nothing of it is lost."""
    at = "2026-01-01T10:00:00Z"
    for day in ("2027-03-05", "2027-03-09", "2027-03-09"):
        body = booking("confirmed", at)
        body["booking"]["departure"] = day
        answer = await post(relevo, {**body, "eventId": "evt-of-theirs"})
        assert said(answer)["eventId"] == "evt-of-theirs"
    [event] = await hotel.records.events("hotel999")
    assert [each["departure"] for each in event.history()] == ["2027-03-05", "2027-03-09"]
    row = await hotel.records.reservation("hotel999", "77")
    assert row is not None
    assert row.departure == "2027-03-09"


async def test_modified_twice_at_two_times_is_two_rows(relevo: Relevo, hotel: Hotel) -> None:
    for second in (0, 1):
        await post(relevo, booking("confirmed", f"2026-01-01T10:00:0{second}Z"))
    events = await hotel.records.events("hotel999")
    assert [len(each.changes) for each in events] == [1, 1]


async def test_modified_twice_by_version_1_is_one_row_that_tells_both(
    relevo: Relevo, hotel: Hotel, clock: ManualClock
) -> None:
    """It says neither an id nor a time: the second call may be a change, so it is written down."""
    for _ in range(2):
        await get(relevo, 5, "modify")
        clock.advance("1m")
    [event] = await hotel.records.events("hotel999")
    assert [each["status"] for each in event.history()] == ["modified", "modified"]


async def test_the_state_follows_beds24s_own_time(relevo: Relevo, hotel: Hotel) -> None:
    """B51: what arrives late with an older time changes nothing, and is an event all the same."""
    states: list[str] = []
    for status, at in (
        ("new", "10:00:00"),
        ("confirmed", "10:01:00"),
        ("cancelled", "10:03:00"),
        ("confirmed", "10:02:00"),
        ("confirmed", "10:04:00"),
    ):
        assert (await post(relevo, booking(status, f"2026-01-01T{at}Z"))).status == 200
        row = await hotel.records.reservation("hotel999", "77")
        assert row is not None
        states.append(row.status)
    assert states == ["confirmed", "modified", "cancelled", "cancelled", "confirmed"]
    assert await hotel.records.count("cm_events") == 5


async def test_without_a_time_a_call_undoes_nothing(relevo: Relevo, hotel: Hotel) -> None:
    for word in ("cancel", "new", "modify"):
        await get(relevo, 5, word)
        row = await hotel.records.reservation("hotel999", "5")
        assert row is not None
        assert row.status == "cancelled"


async def test_blocked_dates_are_no_reservation(relevo: Relevo, hotel: Hotel) -> None:
    assert (await post(relevo, booking("black", "2026-01-01T10:00:00Z"))).status == 200
    assert await hotel.records.count("reservations") == 0


async def test_what_version_1_leaves_out_is_fetched(
    relevo: Relevo, hotel: Hotel, world: World
) -> None:
    """A first call may say "modify", and of a booking that is cancelled by now."""
    beds24(world).put(31, "cancelled", firstName="Zoë")
    beds24(world).say(31, "¿Me devuelven el dinero?")
    beds24(world).say(31, "nota interna", "internalNote")
    await get(relevo, 31, "modify")
    await rest(relevo)
    row = await hotel.records.reservation("hotel999", "31")
    assert row is not None
    assert (row.status, row.guest_name, row.arrival) == ("cancelled", "Zoë Paz", "2027-02-01")
    kept = await hotel.records.messages("hotel999", "hotel999-booking-31")
    assert (kept[0].direction, kept[0].content) == ("guest", "¿Me devuelven el dinero?")
    assert len(kept) == 2
    assert world.ledger.count("beds24", "send", "31") == 1


async def test_every_call_of_version_1_has_beds24_asked_again(
    relevo: Relevo, hotel: Hotel, world: World
) -> None:
    """Two messages are told in the same words: one event, and neither message is lost."""
    beds24(world).put(31)
    answers: list[Any] = []
    for text in ("¿Hay cochera?", "¿Y desayuno?"):
        beds24(world).say(31, text)
        answers.append(await get(relevo, 31, "message"))
        await rest(relevo)
    kept = await hotel.records.messages("hotel999", "hotel999-booking-31")
    asked = [each.content for each in kept if each.direction == "guest"]
    assert sorted(asked) == ["¿Hay cochera?", "¿Y desayuno?"]
    assert answers[0] == answers[1]
    events = await hotel.records.events("hotel999")
    assert [each.event_id for each in events].count("b24:31:message") == 1
    assert world.ledger.count("beds24", "send", "31") == 2


async def test_a_second_change_that_version_1_cannot_tell_apart_is_found(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both calls say "modify" of the same booking, so the second passes for a repetition."""
    monkeypatch.setenv("BEDS24_PROPERTIES", "hotel999:3103")
    async with Relevo(f"sqlite:///{tmp_path / 'two.db'}", apps=[app]) as relevo:
        hotel = relevo.use(Hotel)
        for day in ("2027-03-01", "2027-03-09"):
            beds24(world).put(31, arrival=day)
            await get(relevo, 31, "modify")
            await rest(relevo)
        beds24(world).put(32, propertyId=9_999)
        await turn(relevo)
        row = await hotel.records.reservation("hotel999", "31")
        assert row is not None
        assert row.arrival == "2027-03-09"
        assert await hotel.records.count("reservations") == 1


async def test_f44_nothing_slow_comes_between_the_lease_and_an_answer(
    relevo: Relevo, hotel: Hotel, world: World
) -> None:
    """The token is asked for before the answer is intended."""
    beds24(world).put(42)
    message = beds24(world).say(42, "¿Hay cochera?")
    world.faults.add("beds24", "token", "error", times=1)
    await post(relevo, version2(beds24(world).bookings["42"], [message]))
    await rest(relevo)
    effects, _ = await relevo.store.effects()
    assert not effects
    await drain(relevo, skip_waits=True, until=_replied(relevo))
    assert world.ledger.count("beds24", "send", "42") == 1


async def test_an_answer_whose_fate_is_unknown_is_looked_up_before_it_is_repeated(
    relevo: Relevo, hotel: Hotel, world: World
) -> None:
    """Beds24 takes no key: the lost reply is found there instead of sent twice."""
    world.faults.add("beds24", "send", "lost", times=1)
    beds24(world).put(41)
    message = beds24(world).say(41, "¿Hay cochera?")
    await post(relevo, version2(beds24(world).bookings["41"], [message]))
    await rest(relevo)
    assert world.calls["beds24:send"] == 1
    await drain(relevo, skip_waits=True, until=_replied(relevo))
    assert world.calls["beds24:send"] == 1
    assert world.ledger.count("beds24", "send", "41") == 1
    kept = await hotel.records.messages("hotel999", "hotel999-booking-41")
    assert [each.direction for each in kept] == ["guest", "host"]


def _replied(relevo: Relevo) -> Callable[[], Awaitable[bool]]:
    async def is_done() -> bool:
        tallies = {each.queue: each.counts for each in await relevo.store.tally()}
        return tallies.get("hotel:messages:reply", {}).get(State.DONE, 0) == 1

    return is_done


async def test_the_secret_is_nowhere(
    relevo: Relevo, world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """B51, C20: not in a log, not in the store, not in an answer; by every way that it comes."""
    lines = io.StringIO()
    handler = logging.StreamHandler(lines)
    logging.getLogger().addHandler(handler)
    with caplog.at_level(logging.DEBUG, "relevo"):
        answers = [
            await get(relevo, 1, "new"),
            await get(relevo, 1, "nonsense"),
            await call(relevo, query_of("hotel999", 1, "new").replace("hotel999&", "hotel1&")),
            await post(relevo, booking("confirmed", "2026-01-01T10:00:00Z")),
            await post(relevo, {"booking": 1}),
        ]
    logging.getLogger().removeHandler(handler)
    await rest(relevo)
    await relevo.close()
    texts = [lines.getvalue(), caplog.text, *(answer.body.decode() for answer in answers)]
    assert not [text for text in texts if SECRET in text]
    for path in filter(Path.is_file, tmp_path.glob("hotel.db*")):
        assert SECRET.encode() not in path.read_bytes(), path.name


async def test_a_kept_delivery_can_be_let_in_again_by_people(relevo: Relevo, hotel: Hotel) -> None:
    """It runs without the secret, which is not kept, and doubles nothing."""
    await get(relevo, 9, "new")
    [kept] = (await relevo.desk.deliveries(Letterbox()))[0]
    ana = Person("ana", Role.OPERATOR)
    replay = await relevo.desk.replay(kept.id, ana, relevo.handling)
    assert replay.id != kept.id
    assert await hotel.records.count("cm_events") == 1
