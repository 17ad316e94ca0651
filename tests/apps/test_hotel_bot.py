"""ChannelBot: its turn in its order, its keys to the letter, and nothing lost on either board."""

from __future__ import annotations

import json
import logging
import re
import shlex
from collections.abc import AsyncGenerator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from relevo import ProviderRefused, ProviderUnavailable, Relevo
from relevo.apps.hotel import app, names
from relevo.apps.hotel.bot import ChannelBot
from relevo.apps.hotel.hotel import Hotel
from relevo.apps.hotel.queues import ReplyToGuest
from relevo.apps.hotel.reading import Unfit, edited, read_entry
from relevo.apps.hotel.settings import HotelSettings
from relevo.desk import Person, Role
from relevo.errors import SettingsError
from relevo.simulators import World
from relevo.simulators.channel import channel
from relevo.testing import ManualClock, until
from tests.apps.test_hotel import entry, rest, turn
from tests.servers.redis import RedisServer


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture(params=["sql", "redis"])
def board(
    request: pytest.FixtureRequest, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> str:
    if request.param == "redis":
        server.command("FLUSHALL")
        monkeypatch.setenv("REDIS_URL", server.url)
    return request.param


@pytest.fixture
async def relevo(
    world: World, board: str, tmp_path: Path, clock: ManualClock
) -> AsyncGenerator[Relevo]:
    url = f"sqlite:///{tmp_path / 'hotel.db'}"
    async with Relevo(url, apps=[app], clock=clock) as engine:
        yield engine


@pytest.fixture
def hotel(relevo: Relevo) -> Hotel:
    return relevo.use(Hotel)


PAGE = Path(__file__).parents[2] / "docs/systems/hotel.md"
redis_only = pytest.mark.parametrize("board", ["redis"], indirect=True)

UNFIT = [
    b"not json",
    b"",
    b"[]",
    b"{}",
    b'{"eventType":"guest_message"}',
    b'{"eventType":"other","eventId":"e","payload":{}}',
    b'{"eventType":"guest_message","eventId":"e","payload":{"messageId":{"$ne":null}}}',
    entry(1, channel="a:b"),
    entry(1, channel="*"),
    entry(1, messageId=""),
    entry(1, messageId="x" * 201),
    entry(1, messageId="a\nb"),
    entry(1, content=""),
    entry(1, content="x" * 20_000),
    entry(1, timestamp="2026-02-30T00:00:00Z"),
    entry(1, timestamp="10000-01-01"),
    b"\xff\xfe\x00",
    b'{"eventType":"guest_message","eventType":"x"}',
    b'{"a":' * 5_000,
    entry(2, content="\x01" * 16_000),
    b"x" * 5_000_000,
]


async def test_what_cannot_be_read_goes_to_the_dead_list_as_it_came(
    relevo: Relevo, hotel: Hotel
) -> None:
    """B37, B50: the reason beside it, and the good ones in between are kept."""
    queue = hotel.board.queue("hotel999")
    good = [entry("a"), entry("b", messageId="' OR 1=1--"), entry("c", messageId="*:{x}")]
    await queue.push([good[0], *UNFIT, *good[1:]])
    await turn(relevo)
    assert await queue.lengths() == (0, 0, len(UNFIT))
    buried = await queue.buried(100)
    assert sorted(each.entry for each in buried) == sorted(UNFIT)
    assert all(each.reason for each in buried)
    for id in ("cm-msg-a", "' OR 1=1--", "*:{x}"):
        assert await hotel.records.has_message(f"hotel999:channelManager:{id}")
    assert await hotel.records.count("messages") == 6  # each with its answer


async def test_ids_and_texts_that_look_like_cards_are_kept_as_they_are(
    relevo: Relevo, hotel: Hotel, world: World
) -> None:
    """B33: a guest may write what we would never send along, and ids are what they are."""
    card = "4111111111111111"
    text = (
        f"mi tarjeta es {card}, clave: hunter2, eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"
    )
    same = {"messageId": card, "guestId": card, "conversationId": card, "reservationId": card}
    await hotel.board.queue("hotel999").push([entry(1, content=text, **same)])
    await turn(relevo)
    kept = await hotel.records.message_of(f"hotel999:channelManager:{card}")
    assert kept is not None
    assert kept.content == text
    assert world.ledger.count("channel", "reply") == 1


async def test_another_event_type_is_told_by_its_name(relevo: Relevo, hotel: Hotel) -> None:
    """Its payload is its own, so the reason is the type and not a field of a message."""
    unnamed = "which this bot does not know: it reads guest_message"
    told = {
        b'{"eventType":"reservation_created","payload":{"id":7}}': (
            f"the eventType reservation_created, {unnamed}"
        ),
        b'{"eventType":"4111111111111111"}': f"an eventType that is no name, {unnamed}",
        b'{"eventType":7}': f"an eventType that is no name, {unnamed}",
        b'{"eventType":"guest_message"}': (
            "not the shape of a guest_message: Object missing required field `eventId`"
        ),
    }
    queue = hotel.board.queue("hotel999")
    await queue.push(list(told))
    await turn(relevo)
    assert {each.entry: each.reason for each in await queue.buried()} == told


async def test_ids_may_be_numbers(relevo: Relevo, hotel: Hotel) -> None:
    """7 and "7" are one id, so one message."""
    numbers = {"messageId": 7, "conversationId": 8, "guestId": 9, "reservationId": 10}
    texts = {name: str(number) for name, number in numbers.items()}
    queue = hotel.board.queue("hotel999")
    await queue.push([entry(1, **numbers), entry(1, **texts), entry(1, messageId=7.5)])
    await turn(relevo)
    kept = await hotel.records.message_of("hotel999:channelManager:7")
    assert kept is not None
    assert (kept.conversation_id, kept.guest_id, kept.booking_id) == ("8", "9", "10")
    assert await hotel.records.count("messages") == 2  # with its answer
    [float_id] = await queue.buried()
    assert "messageId" in float_id.reason


async def test_a_turn_takes_two_hundred_at_most(relevo: Relevo, hotel: Hotel) -> None:
    queue = hotel.board.queue("hotel999")
    await queue.push([entry(n) for n in range(215)])
    assert await ChannelBot(hotel, "hotel999").drain() == 200
    assert await queue.lengths() == (15, 0, 0)
    left = [json.loads(each)["eventId"] for each in await queue.take(25)]
    assert left == [f"evt-sim-{n}" for n in range(200, 215)]  # the oldest were taken first


async def test_a_paused_bot_beats_and_touches_nothing(
    relevo: Relevo, hotel: Hotel, world: World
) -> None:
    await hotel.board.enable("hotel999", is_on=False)
    await hotel.board.queue("hotel999").push([entry(1)])
    channel(world).write("hotel999", "m-1", "Hola")
    await turn(relevo)
    assert (await hotel.board.pulse("hotel999")).value is not None
    assert await hotel.board.queue("hotel999").lengths() == (1, 0, 0)
    assert channel(world).left() == 1
    await hotel.board.enable("hotel999", is_on=True)
    await turn(relevo)
    assert await hotel.records.count("messages") == 4


async def test_a_bot_that_died_with_entries_in_hand_loses_none(
    relevo: Relevo, hotel: Hotel, world: World
) -> None:
    """H4: killed between taking and saving; and between saving and letting go."""
    queue = hotel.board.queue("hotel999")
    await queue.push([entry(n) for n in range(4)])
    taken = await queue.take(2)
    assert await queue.lengths() == (2, 2, 0)
    await hotel.order([read_entry("hotel999", taken[0], 1)])
    await turn(relevo)
    assert await queue.lengths() == (0, 0, 0)
    assert world.ledger.count("channel", "reply") == 4
    assert world.ledger.doubled("channel", "reply") == {}


async def test_a_crash_between_the_window_and_the_save_swallows_nothing(
    relevo: Relevo, hotel: Hotel
) -> None:
    """H6: somebody set the key and died; the message neither is lost nor waits for 900 s."""
    assert await hotel.board.claim("hotel999", "cm-msg-7", timedelta(seconds=900))
    assert not await hotel.board.claim("hotel999", "cm-msg-7", timedelta(seconds=900))
    await hotel.board.queue("hotel999").push([entry(7)])
    await turn(relevo)
    assert await hotel.records.has_message("hotel999:channelManager:cm-msg-7")


async def test_a_repetition_is_told_as_such(
    relevo: Relevo, hotel: Hotel, caplog: pytest.LogCaptureFixture
) -> None:
    queue = hotel.board.queue("hotel999")
    with caplog.at_level(logging.INFO, "relevo"):
        for _ in range(2):
            await queue.push([entry(1)])
            await turn(relevo)
    assert [each.message for each in caplog.records].count("DEDUP") == 1
    assert await hotel.records.count("messages") == 2


async def test_the_window_closes_after_its_time(
    relevo: Relevo, hotel: Hotel, clock: ManualClock, board: str
) -> None:
    ttl = timedelta(milliseconds=300)
    assert await hotel.board.claim("hotel999", "m", ttl)
    assert not await hotel.board.claim("hotel999", "m", ttl)
    if board == "sql":
        clock.advance(ttl)
    await until(lambda: hotel.board.claim("hotel999", "m", ttl), timeout="5s")


@pytest.mark.parametrize("kind", ["error", "down", "malformed", "refuse", "limit"])
@pytest.mark.parametrize("board", ["sql"], indirect=True)
async def test_a_channel_manager_that_fails_is_asked_less_and_less(
    relevo: Relevo, hotel: Hotel, world: World, kind: Any
) -> None:
    """H5: × 1.5 up to 120 s; the list is drained all the same, and the bot shows it is alive."""
    world.faults.add("channel", "read", kind, times=1)
    await hotel.board.queue("hotel999").push([entry(1)])
    with pytest.raises((ProviderUnavailable, ProviderRefused)):
        await turn(relevo)
    assert await hotel.records.has_message("hotel999:channelManager:cm-msg-1")
    good = await turn(relevo)
    assert good.rest is not None
    assert timedelta(seconds=1) <= good.rest <= timedelta(seconds=1.5)


def test_the_wait_grows_by_half_up_to_two_minutes_and_starts_afresh() -> None:
    settings = HotelSettings(hotels=("h",), secrets={})
    waits = [settings.rest(failures).total_seconds() for failures in range(9)]
    wanted = [15, 22.5, 33.75, 50.6, 75.9, 113.9, 120, 120, 120]
    assert all(0 <= wait - want <= 0.55 for wait, want in zip(waits, wanted, strict=True))


@pytest.mark.parametrize("board", ["sql"], indirect=True)
async def test_a_bot_that_waits_longer_than_its_heartbeat_lasts_is_alive(
    relevo: Relevo, hotel: Hotel, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.faults.add("channel", "read", "error")
    object.__setattr__(hotel.settings, "interval", timedelta(seconds=15))
    object.__setattr__(hotel.settings, "heartbeat_ttl", timedelta(seconds=60))
    with pytest.raises(ProviderUnavailable):
        await turn(relevo, failures=9)
    pulse = await hotel.board.pulse("hotel999")
    assert pulse.ttl is not None
    assert 120 < pulse.ttl <= 151


@pytest.mark.parametrize("board", ["sql"], indirect=True)
@pytest.mark.parametrize(("auth", "version"), [("wsse", "1.2"), ("pos", "1.1")])
async def test_both_kinds_of_credentials_and_of_soap(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    board: str,
    auth: str,
    version: str,
) -> None:
    monkeypatch.setenv("CM_SOAP_AUTH", auth)
    monkeypatch.setenv("CM_SOAP_VERSION", version)
    nasty = "O'Brien & <Sons>\"/><Evil/> ]]> 🙂"
    async with Relevo(f"sqlite:///{tmp_path / 'x.db'}", apps=[app]) as relevo:
        hotel = relevo.use(Hotel)
        channel(world).book("hotel1", "CM-1", guest=nasty)
        channel(world).write("hotel1", "m-1", nasty)
        await turn(relevo, "hotel1")
        assert channel(world).left() == 0
        row = await hotel.records.reservation("hotel1", "CM-1")
        assert row is not None
        assert row.guest_name == nasty
        [message, _] = await hotel.records.messages("hotel1", "hotel1-channelManager-guest-X")
        assert message.content == nasty
        order = ReplyToGuest(
            "hotel1", "channelManager", message.conversation_id, "guest-X", "r1", nasty, "channel"
        )
        await relevo.enqueue(order)
        await rest(relevo)
        assert world.ledger.find("channel", "reply")[-1].detail["text"] == nasty
        monkeypatch.setattr("relevo.simulators.channel.PASSWORD", "another")
        with pytest.raises(ProviderRefused, match="497"):
            await turn(relevo, "hotel1")


@pytest.mark.parametrize("board", ["sql"], indirect=True)
async def test_reservations_are_acknowledged_once_kept_and_refused_when_they_cannot_be(
    relevo: Relevo, hotel: Hotel, world: World
) -> None:
    """A lost acknowledgement brings them again, and nothing twice."""
    manager = channel(world)
    manager.book("hotel999", "CM-1")
    manager.book("hotel999", "CM-2", "Teleport")
    manager.write("hotel999", "m-1", "Hola", channel="a:b")
    world.faults.add("channel", "report", "down", times=1)
    with pytest.raises(ProviderUnavailable):
        await turn(relevo)
    await turn(relevo)
    assert manager.left() == 0
    assert manager.refused == ["CM-2"]
    assert await hotel.records.count("reservations") == 1
    assert await hotel.records.count("cm_events") == 1
    reasons = [each.reason for each in await hotel.board.queue("hotel999").buried()]
    assert len(reasons) == 3  # CM-2 came twice
    manager.book("hotel999", "CM-1", "Cancel")
    await turn(relevo)
    row = await hotel.records.reservation("hotel999", "CM-1")
    assert row is not None
    assert row.status == "cancelled"


async def test_modified_twice_in_one_second_is_kept_twice(
    relevo: Relevo, hotel: Hotel, world: World
) -> None:
    """Both are acknowledged, so both have to be there."""
    at = {"created": "2026-01-01T10:00:00Z", "modified": "2026-01-01T10:00:00Z"}
    for day in ("2027-02-02", "2027-02-03"):
        channel(world).book("hotel999", "CM-1", "Modify", arrival=day, **at)
        await turn(relevo)
    [event] = await hotel.records.events("hotel999")
    assert [each["arrival"] for each in event.history()] == ["2027-02-02", "2027-02-03"]
    row = await hotel.records.reservation("hotel999", "CM-1")
    assert row is not None
    assert row.arrival == "2027-02-03"


async def test_dead_entries_go_back_one_edited_or_all(relevo: Relevo, hotel: Hotel) -> None:
    queue = hotel.board.queue("hotel999")
    broken = [b"{broken", entry(1, channel="a:b"), entry(1, channel="a:b"), b"\xff"]
    await queue.push(broken)
    await turn(relevo)
    dead = await queue.buried()
    first = next(each for each in dead if each.entry == broken[0])
    assert await queue.find(first.id) == first
    assert await queue.find("0" * 32) is None
    assert await queue.revive(first.id, entry(2))
    assert not await queue.revive(first.id, entry(2))
    assert await queue.take(5) == [entry(2)]
    await queue.done([entry(2)])
    assert await queue.revive_all() == 3
    assert await queue.revive_all() == 0
    assert await queue.lengths() == (3, 0, 0)
    assert await queue.take(5) == broken[1:]  # as they came, the oldest first


async def test_all_go_back_also_when_they_are_many(relevo: Relevo, hotel: Hotel) -> None:
    queue = hotel.board.queue("hotel999")
    many = [f"{{{n}".encode() for n in range(60)]
    await queue.push(many)
    await turn(relevo)
    assert await queue.lengths() == (0, 0, 60)
    assert await queue.revive_all() == 60
    assert await queue.lengths() == (60, 0, 0)
    assert await queue.buried() == []


def test_an_edit_is_merged_at_every_depth_and_read_before_it_goes_back() -> None:
    change = b'{"payload":{"channel":"booking","messageId":7}}'
    made = json.loads(edited("hotel999", entry(1, channel="a:b"), change, 1))
    was = json.loads(entry(1))
    assert made == {**was, "payload": {**was["payload"], "channel": "booking", "messageId": 7}}
    assert edited("hotel999", b"{broken", entry(1), 1, whole=True) == entry(1)
    for dead, wrong in [
        (b"{broken", change),
        (b"[]", change),
        (entry(1), b"[]"),
        (entry(1), b'{"eventType":"other"}'),
        (entry(1), b'{"payload":{"content":""}}'),
    ]:
        with pytest.raises(Unfit):
            edited("hotel999", dead, wrong, 1)


@redis_only
async def test_the_sanity_commands_answer_as_described(
    relevo: Relevo, hotel: Hotel, server: RedisServer
) -> None:
    """The seed's section 7, by the very commands."""
    run = server.command
    assert run("TTL", "bot:cm:hotel999:heartbeat") == -2
    run("LPUSH", "cm_events:hotel999", entry("X"))
    run("LPUSH", "cm_events:hotel999", b"{broken")
    assert run("LLEN", "cm_events:hotel999") == 2
    await turn(relevo)
    assert 290 <= run("TTL", "bot:cm:hotel999:heartbeat") <= 300
    assert run("GET", "bot:cm:hotel999:heartbeat").startswith(b"20")
    assert run("LLEN", "cm_events:hotel999") == 0
    assert run("LLEN", "cm_events:dead:hotel999") == 1
    assert run("LRANGE", "cm_events:dead:hotel999", 0, -1) == [b"{broken"]
    _, keys = run("SCAN", 0, "MATCH", "cm_msgdedup:hotel999:*", "COUNT", 1_000)
    assert keys == [b"cm_msgdedup:hotel999:cm-msg-X"]
    assert 890 <= run("TTL", "cm_msgdedup:hotel999:cm-msg-X") <= 900
    assert run("SET", "cm_msgdedup:hotel999:cm-msg-X", "1", "EX", 900, "NX") is None
    assert await hotel.records.has_message("hotel999:channelManager:cm-msg-X")
    every = {key.decode() for key in run("KEYS", "*")}
    assert every == {
        "bot:cm:hotel999:heartbeat",
        "cm_events:dead:hotel999",
        "cm_events:reasons:hotel999",
        "cm_msgdedup:hotel999:cm-msg-X",
    }


@redis_only
async def test_the_page_s_redis_commands_run(
    relevo: Relevo, hotel: Hotel, server: RedisServer
) -> None:
    """As they stand in docs/systems/hotel.md, the last one with its message kept."""
    lines = re.findall(r"^    redis-cli (.+?)(?: +#.*)?$", PAGE.read_text(), re.M)
    assert len(lines) == 6
    for line in lines:
        words = shlex.split(line.removesuffix(" | head"))
        if words[:2] == ["--scan", "--pattern"]:
            words = ["SCAN", "0", "MATCH", words[2]]
        assert server.command(*words) is not None or words[0] == "GET"
    await turn(relevo)
    assert await hotel.records.has_message("hotel999:channelManager:cm-msg-X")


@redis_only
async def test_a_key_of_another_type_stops_nothing_else(
    relevo: Relevo, hotel: Hotel, server: RedisServer, world: World
) -> None:
    """B37: WRONGTYPE."""
    server.command("SET", "cm_events:hotel999", "a string")
    channel(world).write("hotel999", "m-1", "Hola")
    poll = await turn(relevo)
    assert poll.rest is not None
    assert channel(world).left() == 0
    assert await hotel.records.count("messages") == 2


@redis_only
async def test_without_redis_for_a_while_messages_are_kept_all_the_same(
    relevo: Relevo, hotel: Hotel, server: RedisServer, world: World
) -> None:
    """The window is an optimisation: what came by webhook or SOAP does not wait for it."""
    server.freeze()
    monkey: Any = hotel.board
    try:
        monkey._redis.connection_pool.connection_kwargs["socket_timeout"] = 0.2
        await monkey._redis.connection_pool.disconnect()
        await hotel.order([read_entry("hotel999", entry(1), 1)])
        await rest(relevo)
        assert await hotel.records.has_message("hotel999:channelManager:cm-msg-1")
    finally:
        server.thaw()


async def test_people_find_the_bots_among_the_pollers(relevo: Relevo) -> None:
    await relevo.recurring.ensure()
    found = await relevo.desk.recurring("poller")
    hotels = relevo.use(Hotel).settings.hotels
    assert [view.name for view in found] == [f"hotel:{name}" for name in sorted(hotels)]
    admin = Person("ann", Role.ADMIN)
    assert await relevo.desk.pause_recurring("poller", found[0].name, admin, "their night")


@redis_only
async def test_foreign_producers_and_the_bots_speak_of_the_same_keys(
    relevo: Relevo, server: RedisServer
) -> None:
    client: Any = Redis.from_url(server.url)
    try:
        await client.lpush("cm_events:hotel1", entry("P", conversationId="hotel1-x-guest-P"))
        await turn(relevo, "hotel1")
        assert await client.exists("cm_msgdedup:hotel1:cm-msg-P")
        assert await client.llen("cm_events:processing:hotel1") == 0
    finally:
        await client.aclose()


def test_names_are_made_of_parts_that_cannot_pass_for_others() -> None:
    """B50, C31."""
    assert names.strong_id("hotel999", "booking", "m:1") == "hotel999:booking:m:1"
    for part in ("dead:hotel999", "a:b", "*", "", "x" * 65, "a\n", "{a}"):
        with pytest.raises(ValueError, match="1 to 64"):
            names.events(part)
        with pytest.raises(ValueError, match="1 to 64"):
            names.strong_id("hotel999", part, "m")
    assert names.dedup("h", "a b\n*").startswith("cm_msgdedup:h:~")


def test_settings_name_every_problem_and_no_value() -> None:
    """B64."""
    wrong = {
        "HOTEL_IDS": "a:b",
        "BEDS24_WEBHOOK_SECRETS": "geheim",
        "CM_SOAP_URL": "ftp://x",
        "CM_DEFAULT_MODE": "sometimes",
        "CM_POLLING_INTERVAL": "soon",
        "HOTEL_RECORDS": "astra",
    }
    with pytest.raises(SettingsError) as caught:
        HotelSettings.read(wrong)
    text = str(caught.value)
    for name in ("HOTEL_ID", "BEDS24_WEBHOOK_SECRETS", "CM_SOAP_URL", "CM_SOAP_PASSWORD", "ASTRA"):
        assert name in text
    assert "geheim" not in text
    with pytest.raises(SettingsError, match="does not open without one"):
        HotelSettings.read({"HOTEL_ID": "hotel999"})
    made = HotelSettings.read(
        {"HOTEL_ID": "h1", "BEDS24_WEBHOOK_SECRETS": "h1:old h1:new", "CM_HEARTBEAT_TTL": "60"}
    )
    assert len(made.secrets["h1"].given) == 2
    assert made.heartbeat_ttl == timedelta(seconds=60)
    assert "old" not in repr(made)
