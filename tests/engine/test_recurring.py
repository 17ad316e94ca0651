"""Pollers and schedules: one turn at a time in the whole fleet, one job a tick."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from relevo import (
    App,
    Command,
    Context,
    DefinitionError,
    Relevo,
    Retry,
    State,
    constant,
    exponential,
)
from relevo.clock import moment, stamp
from relevo.desk import Person, RecurringView, Role, What
from relevo.job import Job
from relevo.poller import BadItem, Poll
from relevo.schedule import Missed, schedule
from relevo.store import By, Filter
from relevo.testing import ManualClock, assert_enqueued, drain, enqueued, until, working

Start = Callable[..., Relevo]


class Save(Command, queue="test:hotel:save", key="event:{number}", unique="unfinished"):
    number: int


class Report(Command, queue="test:reports:send"):
    day: str


async def _save(order: Save) -> None:
    pass


async def _report(order: Report) -> None:
    pass


async def test_a_poller_goes_on_from_its_cursor(start: Start) -> None:
    turns: list[tuple[str, object]] = []
    app = App("test", workers=[_save])

    @app.poller("hotel:{hotel}", over=lambda: [{"hotel": "h1"}, {"hotel": "h2"}], every="10s")
    async def pull(poll: Poll, ctx: Context) -> None:
        turns.append((poll.key, poll.cursor))
        await ctx.enqueue(Save(len(turns)))
        poll.cursor = (poll.cursor or 0) + 1

    relevo = start(app)
    await drain(relevo, skip_waits=True, until=lambda: len(turns) >= 6)

    for key in ("hotel:h1", "hotel:h2"):
        cursors = [cursor for name, cursor in turns if name == key]
        assert cursors == [None, *range(1, len(cursors))]


async def test_two_processes_never_run_one_key_at_once(start: Start) -> None:
    running = most = count = 0

    def app() -> App:
        made = App("test")

        @made.poller("hotel:h1", every="100ms", jitter="0ms")
        async def pull(poll: Poll, ctx: Context) -> None:
            nonlocal running, most, count
            running, count = running + 1, count + 1
            most = max(most, running)
            running -= 1

        return made

    one, two = start(app()), start(app())
    async with working(one), working(two):
        await until(lambda: count >= 5)

    assert most == 1
    assert await one.store.count(Filter(queue="test:pollers:pull")) == 1


async def test_a_poller_that_fails_waits_longer_and_longer_then_starts_afresh(
    start: Start, clock: ManualClock
) -> None:
    fails = 3
    began: list[int] = []
    app = App("test")
    backoff = exponential("15s", factor=1.5, cap="30s", jitter=0)

    @app.poller("soap", every="15s", jitter="0ms", backoff=backoff)
    async def pull(poll: Poll, ctx: Context) -> None:
        began.append(await relevo.store.now())
        if len(began) <= fails:
            raise ConnectionError("down")

    relevo = start(app)
    await drain(relevo, skip_waits=True, until=lambda: len(began) >= 6)

    waits = [(after - before) / 1000 for before, after in pairwise(began)]
    assert waits[:5] == pytest.approx([15, 22.5, 30, 15, 15], abs=3.7)  # less than half a step
    [job] = (await relevo.store.page(Filter(queue="test:pollers:pull"))).jobs
    assert job.attempt <= 1


async def _seen(relevo: Relevo, what: What) -> RecurringView | None:
    return next(iter(await relevo.desk.recurring(what)), None)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("over", "ConnectionError: our own database is away"),
        ("time", "TimeoutError: the worker ran past its time limit of 0.2 s"),
        ("cursor", "TypeError: "),
    ],
)
async def test_whatever_goes_wrong_with_a_turn_it_keeps_its_cursor_and_its_attempts(
    start: Start, wrong: str, said: str
) -> None:
    """It spent an attempt each time, died of the last one, and began again without its cursor."""
    is_wrong = False
    cursors: list[object] = []

    def over() -> list[dict[str, str]]:
        if is_wrong and wrong == "over":
            raise ConnectionError("our own database is away")
        return [{"hotel": "h1"}]

    app = App("test")

    @app.poller("hotel:{hotel}", over=over, every="10s", timeout="200ms")
    async def pull(poll: Poll, ctx: Context) -> None:
        cursors.append(poll.cursor)
        poll.cursor = {1, 2}.pop if is_wrong and wrong == "cursor" else 7
        if is_wrong and wrong == "time":
            await asyncio.Event().wait()

    relevo = start(app)
    await drain(relevo, skip_waits=True, until=lambda: len(cursors) >= 1)

    async def has_failed() -> bool:
        seen = await _seen(relevo, "poller")
        return seen is not None and seen.failures >= 3

    is_wrong = True
    await drain(relevo, skip_waits=True, until=has_failed)
    [job] = (await relevo.store.page(Filter(queue="test:pollers:pull"))).jobs
    assert (job.state, job.attempt) == (State.SCHEDULED, 0)
    seen = await _seen(relevo, "poller")
    assert seen is not None
    assert said in seen.error

    is_wrong, before = False, len(cursors)
    await drain(relevo, skip_waits=True, until=lambda: len(cursors) > before)
    assert cursors[before] == 7


async def test_a_test_that_drains_takes_due_turns_and_waits_for_no_end(
    start: Start, clock: ManualClock
) -> None:
    """Turns never end: it leapt from one to the next for ever, or ended before the first."""
    turns: list[object] = []
    runs: list[int] = []

    async def save(order: Save, ctx: Context) -> Retry | None:
        runs.append(ctx.attempt)
        return Retry("not yet", "1h") if ctx.attempt == 1 else None

    clock.advance_to(12)
    noon = clock.offset
    app = App("test", workers=[save, _report])

    @app.poller("hotel:h1", every="10s")
    async def pull(poll: Poll, ctx: Context) -> None:
        turns.append(poll.cursor)

    @app.schedule("0 6 * * *")
    def daily(at: datetime) -> Command:
        return Report(at.date().isoformat())

    relevo = start(app)
    await drain(relevo)
    assert turns == [None]

    await relevo.enqueue(Save(1))
    await drain(relevo, skip_waits=True)
    assert runs == [1, 2]
    assert clock.offset - noon < timedelta(hours=2)


async def test_what_was_not_stored_is_told_as_it_was_expected(start: Start) -> None:
    relevo = start(App("test", workers=[_save]))
    await relevo.enqueue(Save(1))
    with pytest.raises(AssertionError, match=r"1 Save with \{\} stored, expected 0"):
        await assert_enqueued(relevo, Save, times=0)
    with pytest.raises(AssertionError, match=r"0 Save with .* stored, expected some"):
        await assert_enqueued(relevo, Save, number=2)


async def test_a_poller_without_keys_stops_no_other(start: Start) -> None:
    def over() -> list[dict[str, str]]:
        raise ConnectionError("our own database is away")

    turns: list[str] = []
    app = App("test", workers=[_report])

    @app.poller("broken:{hotel}", over=over)
    async def broken(poll: Poll, ctx: Context) -> None: ...

    @app.poller("whole")
    async def whole(poll: Poll, ctx: Context) -> None:
        turns.append(poll.key)

    @app.schedule("0 6 * * *")
    def daily(at: datetime) -> Command:
        return Report(at.date().isoformat())

    relevo = start(app)
    async with working(relevo):
        await until(lambda: bool(turns))
        await until(lambda: _has_tick(relevo))


async def test_a_turn_may_say_itself_when_the_next_one_comes(
    start: Start, clock: ManualClock
) -> None:
    began: list[tuple[float, int]] = []
    app = App("test")

    @app.poller("hotel:h1", every="15s", jitter="0ms")
    async def pull(poll: Poll, ctx: Context) -> None:
        began.append((stamp(clock.now()) / 1000, poll.failures))
        poll.rest = timedelta(seconds=(60, 90, 5)[min(len(began) - 1, 2)])
        if len(began) == 2:
            raise ConnectionError("the channel manager is away")

    relevo = start(app)
    await drain(relevo, skip_waits=True, until=lambda: len(began) >= 4)

    waits = [b - a for (a, _), (b, _) in pairwise(began[:4])]
    assert all(rest <= wait < rest + 10 for rest, wait in zip([60, 90, 5], waits, strict=True))
    assert [failures for _, failures in began[:4]] == [0, 0, 1, 0]


async def test_bad_items_go_to_the_dead_letters_once(start: Start) -> None:
    """The turn that found them goes on, and when it is tried again it adds nothing."""
    turns = 0
    app = App("test", workers=[_save])

    @app.poller("hotel:h1", every="10s", backoff=constant("1s"))
    async def pull(poll: Poll, ctx: Context) -> None:
        nonlocal turns
        turns += 1
        for event in ('{"number":1}', "{number", b"\xff\x00"):
            try:
                await ctx.enqueue(Save(json.loads(event)["number"]))
            except ValueError:
                await poll.bad(event, "it is no JSON")
        if turns == 1:
            raise ConnectionError("cut off before the turn was over")
        poll.cursor = turns

    relevo = start(app)
    await drain(relevo, skip_waits=True, until=lambda: turns >= 4)
    await until(lambda: _dead(relevo, 2))

    letters = await _letters(relevo)
    fields = [json.loads(letter.payload) for letter in letters]
    assert sorted((each["item"], each.get("base64", False)) for each in fields) == [
        ("/wA=", True),
        ("{number", False),
    ]
    assert {each["key"] for each in fields} == {"hotel:h1"}
    [group] = await relevo.store.groups()
    assert (group.type, group.message, group.count) == ("BadItem", "it is no JSON", 2)
    [seen] = await relevo.desk.recurring("poller")
    assert (seen.bad, seen.failures, seen.cursor is not None) == (2, 0, True)
    assert {job.id for job in await relevo.desk.bad_items(seen)} == {job.id for job in letters}

    put_off, other = letters
    assert await relevo.store.discard([put_off.id], By("ann", "seen")) == [True]
    before = turns
    await drain(relevo, skip_waits=True, until=lambda: turns >= before + 2)
    assert [job.id for job in await _letters(relevo)] == [other.id]


async def test_a_bad_item_that_a_person_retries_is_mended(start: Start) -> None:
    mended: list[BadItem] = []
    turns = 0
    app = App("test")

    async def mend(item: BadItem, ctx: Context) -> None:
        mended.append(item)

    @app.poller("hotel:h1", every="10s", mend=mend)
    async def pull(poll: Poll, ctx: Context) -> None:
        nonlocal turns
        turns += 1
        await poll.bad(b"\xff", "not text")

    relevo = start(app)
    await drain(relevo, skip_waits=True, until=lambda: turns >= 2)
    await drain(relevo, skip_waits=True, until=lambda: _dead(relevo, 1))
    assert mended == []
    [letter] = await _letters(relevo)
    assert await relevo.store.retry([letter.id], By("ann")) == [True]
    await drain(relevo, skip_waits=True, until=lambda: bool(mended))

    assert mended == [BadItem("hotel:h1", b"\xff", "not text", 1)]
    await until(lambda: _dead(relevo, 0))


ITEMS = [
    "",
    b"",
    "caña 🏨",
    "a\0b",
    "\ud800",
    b"\xff\xfe",
    bytes(range(256)) * 1_000,
    "x" * 1_000_000,
    "\x01" * 1_000_000,
    '{"password":"hunter2hunter2","card":"4242424242424242"}',
    {"number": 1, "at": datetime(2026, 1, 1, tzinfo=UTC)},
    [1, None, object],
    {1: float("nan"), "self": ...},
    10**40,
    None,
]


async def test_a_bad_item_is_anything(start: Start) -> None:
    """B1: what nobody can read is just what ends here."""
    done = False
    app = App("test")

    @app.poller("hotel:h1", every="10s")
    async def pull(poll: Poll, ctx: Context) -> None:
        nonlocal done
        for item in ITEMS:
            await poll.bad(item, "odd\0\ud800 " * 100)
        done = True

    relevo = start(app)
    await drain(relevo, skip_waits=True, until=lambda: done)
    # Nothing at all as text and as bytes is the same item.
    await drain(relevo, skip_waits=True, until=lambda: _dead(relevo, len(ITEMS) - 1))

    [seen] = await relevo.desk.recurring("poller")
    assert (seen.bad, seen.error) == (len(ITEMS) - 1, "")


async def test_a_bad_item_commits_with_its_transaction(start: Start) -> None:
    turns = 0
    app = App("test")

    @app.poller("hotel:h1", every="10s", backoff=constant("1s"))
    async def pull(poll: Poll, ctx: Context) -> None:
        nonlocal turns
        turns += 1
        if relevo.store.name not in ("sqlite", "postgres"):
            await poll.bad("second", "bad")
            return
        async with ctx.transaction():
            await poll.bad("first" if turns == 1 else "second", "bad")
            poll.cursor = turns
            if turns == 1:
                raise ConnectionError("rolled back")

    relevo = start(app)
    await drain(relevo, skip_waits=True, until=lambda: turns >= 3)
    await until(lambda: _dead(relevo, 1))

    [letter] = await _letters(relevo)
    assert json.loads(letter.payload)["item"] == "second"


async def test_a_poller_whose_turns_nobody_takes_is_silent(
    start: Start, clock: ManualClock
) -> None:
    turns = 0
    app = App("test")

    @app.poller("hotel:h1", every="10s", jitter="0ms", heartbeat="30s")
    async def pull(poll: Poll, ctx: Context) -> None:
        nonlocal turns
        turns += 1

    relevo = start(app)
    await relevo.recurring.ensure()
    assert [seen.is_silent for seen in await relevo.desk.recurring("poller")] == [False]
    clock.advance("61s")
    assert [seen.is_silent for seen in await relevo.desk.recurring("poller")] == [True]

    await drain(relevo, until=lambda: turns > 0)
    [seen] = await relevo.desk.recurring("poller")
    assert (seen.is_silent, seen.turned_at > 0) == (False, True)
    clock.advance("35s")
    assert not (await relevo.desk.recurring("poller"))[0].is_silent
    clock.advance("10s")
    assert (await relevo.desk.recurring("poller"))[0].is_silent


async def test_a_poller_whose_turn_does_not_end_is_silent(start: Start, clock: ManualClock) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()
    app = App("test")

    @app.poller("hotel:h1", every="10s", heartbeat="30s")
    async def pull(poll: Poll, ctx: Context) -> None:
        began.set()
        await go_on.wait()

    relevo = start(app)
    async with working(relevo, lease="1h"):
        await asyncio.wait_for(began.wait(), 10)
        [seen] = await relevo.desk.recurring("poller")
        assert (seen.state, seen.is_silent) == (State.RUNNING, False)
        clock.advance("61s")  # of its first turn the store knows no heartbeat yet
        [seen] = await relevo.desk.recurring("poller")
        assert (seen.state, seen.is_silent) == (State.RUNNING, True)
        go_on.set()
        await until(lambda: _is_alive(relevo))


async def _is_alive(relevo: Relevo) -> bool:
    [seen] = await relevo.desk.recurring("poller")
    return not seen.is_silent


async def _letters(relevo: Relevo) -> list[Job]:
    dead = frozenset({State.DEAD})
    return (await relevo.store.page(Filter(queue="test:pollers:pull", states=dead))).jobs


async def _dead(relevo: Relevo, count: int) -> bool:
    return len(await _letters(relevo)) == count


async def test_a_poller_nobody_asks_for_any_more_ends(start: Start) -> None:
    hotels = [{"hotel": "h1"}]
    turns: list[str] = []
    app = App("test")

    @app.poller("hotel:{hotel}", over=lambda: hotels, every="1s")
    async def pull(poll: Poll, ctx: Context) -> None:
        turns.append(poll.key)

    relevo = start(app)
    await drain(relevo, until=lambda: bool(turns))
    hotels.clear()

    async def has_ended() -> bool:
        [job] = (await relevo.store.page(Filter(queue="test:pollers:pull"))).jobs
        return job.state is State.CANCELLED

    await drain(relevo, skip_waits=True, until=has_ended)


async def test_one_job_a_tick_over_many_processes(start: Start, clock: ManualClock) -> None:
    """F39: five engines, one report a day."""
    clock.advance_to(15)

    def app() -> App:
        made = App("test", workers=[_report])

        @made.schedule("0 6 * * *", tz="America/Mexico_City")
        def daily(at: datetime) -> Command:
            return Report(at.date().isoformat())

        return made

    engines = [start(app()) for _ in range(5)]
    relevo = engines[0]
    async with (
        working(engines[0]) as worker,
        working(engines[1]),
        working(engines[2]),
        working(engines[3]),
        working(engines[4]),
    ):
        await until(lambda: _has_tick(relevo), timeout="30s")
        for _ in range(3):
            before = len(await enqueued(relevo, Report))
            clock.advance("24h")
            worker.nudge()
            await until(lambda before=before: _more(relevo, before), timeout="30s")

    days = [report.day for report in await enqueued(relevo, Report)]
    assert len(days) == len(set(days)) == 3


async def test_a_tick_that_fails_waits_until_it_is_mended(start: Start, clock: ManualClock) -> None:
    """A command that cannot travel ended the schedule at once, and its tick was forgotten."""
    clock.advance_to(12)
    is_wrong = True
    app = App("test", workers=[_report])

    @app.schedule("0 6 * * *")
    def daily(at: datetime) -> Command:
        day: Any = at if is_wrong else at.date().isoformat()
        return Report(day)

    relevo = start(app)
    async with working(relevo) as worker:
        await until(lambda: _has_tick(relevo))
        clock.advance("24h")
        worker.nudge()

        async def has_failed() -> bool:
            seen = await _seen(relevo, "schedule")
            return seen is not None and seen.failures > 0

        await until(has_failed)
        seen = await _seen(relevo, "schedule")
        assert seen is not None
        assert "Report.day: expects str" in seen.error
        is_wrong = False
        clock.advance("12s")
        worker.nudge()
        await until(lambda: _more(relevo, 0))
        seen = await _seen(relevo, "schedule")
        assert seen is not None
        assert (seen.failures, seen.error) == (0, "")
    assert len(await enqueued(relevo, Report)) == 1


async def test_a_schedule_tells_which_job_its_command_joined(
    start: Start, clock: ManualClock
) -> None:
    """A run by hand gave no job where the command's key was known, and nothing said so."""
    clock.advance_to(12)
    app = App("test", workers=[_monthly])

    @app.schedule("0 6 * * *")
    def daily() -> Command:
        return Monthly("2026-11")

    relevo = start(app)
    first = (await relevo.enqueue(Monthly("2026-11"))).id
    async with working(relevo) as worker:
        await until(lambda: _has_tick(relevo))
        assert (await _recurring(relevo)).joined == ()
        assert await relevo.desk.run_recurring(
            "schedule", "test.daily", Person("ana", Role.OPERATOR)
        )
        worker.nudge()

        async def is_told() -> bool:
            return (await _recurring(relevo)).joined == (first,)

        await until(is_told)


async def _recurring(relevo: Relevo) -> RecurringView:
    return await relevo.desk.recurring_one("schedule", "test.daily")


class Monthly(Command, queue="test:monthly:send", key="{month}", unique="forever"):
    month: str


async def _monthly(order: Monthly) -> None:
    pass


async def _has_tick(relevo: Relevo) -> bool:
    [job] = (await relevo.store.page(Filter(queue="test:schedules:daily"))).jobs or [None]
    return job is not None and job.state is State.SCHEDULED and job.result is not None


async def _more(relevo: Relevo, before: int) -> bool:
    return len(await enqueued(relevo, Report)) > before and await _has_tick(relevo)


def ticks(cron: str, tz: str, since: datetime, count: int) -> list[str]:
    plan = schedule(cron, lambda: None, app="test", tz=tz)
    found: list[str] = []
    at: int | None = stamp(since)
    for _ in range(count):
        assert at is not None
        at = plan.next_after(at)
        assert at is not None
        found.append(moment(at).isoformat(timespec="minutes"))
    return found


def test_clock_changes_neither_lose_nor_double_a_tick() -> None:
    """F29: Madrid skips 02:30 on 29 March 2026 and has it twice on 25 October."""
    spring = ticks("30 2 * * *", "Europe/Madrid", datetime(2026, 3, 28, 12, tzinfo=UTC), 2)
    assert spring == ["2026-03-29T01:00+00:00", "2026-03-30T00:30+00:00"]
    autumn = ticks("30 2 * * *", "Europe/Madrid", datetime(2026, 10, 24, 12, tzinfo=UTC), 2)
    assert autumn == ["2026-10-25T00:30+00:00", "2026-10-26T01:30+00:00"]


def test_an_hour_that_comes_again_brings_no_tick_again() -> None:
    """F29: whoever starts while Madrid has 02 o'clock a second time waits for the next day."""
    for minute in range(60):
        since = datetime(2026, 10, 25, 1, minute, 30, tzinfo=UTC)
        assert ticks("30 2 * * *", "Europe/Madrid", since, 1) == ["2026-10-26T01:30+00:00"]
        assert ticks("30 1-3 * * *", "Europe/Madrid", since, 1) == ["2026-10-25T02:30+00:00"]


@pytest.mark.parametrize(
    ("zone", "day"),
    [
        ("Australia/Lord_Howe", datetime(2026, 10, 3, tzinfo=UTC)),  # half an hour is skipped
        ("Australia/Lord_Howe", datetime(2026, 4, 4, tzinfo=UTC)),  # half an hour comes twice
        ("Europe/Madrid", datetime(2026, 3, 28, 12, tzinfo=UTC)),
        ("Europe/Madrid", datetime(2026, 10, 24, 12, tzinfo=UTC)),
        ("Asia/Beirut", datetime(2026, 3, 28, 12, tzinfo=UTC)),  # midnight is skipped
        ("Pacific/Apia", datetime(2011, 12, 29, 12, tzinfo=UTC)),  # a day is skipped
        ("UTC", datetime(2026, 3, 28, 12, tzinfo=UTC)),
    ],
)
@pytest.mark.parametrize(
    ("cron", "hours", "minutes"),
    [
        ("* 7 * * *", {7}, set(range(60))),
        ("* 0-3 * * *", {0, 1, 2, 3}, set(range(60))),
        ("40 * * * *", set(range(24)), {40}),
        ("*/15 * * * *", set(range(24)), {0, 15, 30, 45}),
        ("0 */2 * * *", set(range(0, 24, 2)), {0}),
    ],
)
def test_a_timetable_with_a_star_follows_the_clock_on_the_wall(
    zone: str, day: datetime, cron: str, hours: set[int], minutes: set[int]
) -> None:
    """F29: every minute that the zone's clock shows on the days of a change, and no other."""
    shown = [day + timedelta(minutes=minute) for minute in range(1, 2 * 1440)]
    local = [(at, at.astimezone(ZoneInfo(zone))) for at in shown]
    fit = [at for at, wall in local if wall.hour in hours and wall.minute in minutes]

    assert ticks(cron, zone, day, len(fit)) == [at.isoformat(timespec="minutes") for at in fit]


def test_far_years_and_leap_days() -> None:
    """F29: 2038 and the 29th of February."""
    assert ticks("0 0 29 2 *", "UTC", datetime(2037, 1, 1, tzinfo=UTC), 1) == [
        "2040-02-29T00:00+00:00"
    ]
    assert ticks("*/30 0 29 2 *", "Europe/Madrid", datetime(2037, 1, 1, tzinfo=UTC), 3) == [
        "2040-02-28T23:00+00:00",
        "2040-02-28T23:30+00:00",
        "2044-02-28T23:00+00:00",
    ]
    assert ticks("14 3 19 1 *", "UTC", datetime(2038, 1, 1, tzinfo=UTC), 1) == [
        "2038-01-19T03:14+00:00"
    ]


@pytest.mark.parametrize(
    ("missed", "hours"), [("last", [9]), ("all", [7, 8, 9]), ("skip", [])], ids=str
)
def test_missed_ticks_follow_the_policy(missed: Missed, hours: list[int]) -> None:
    plan = schedule("0 * * * *", lambda: None, app="test", missed=missed)
    last = stamp(datetime(2026, 11, 15, 6, 0, tzinfo=UTC))
    now = stamp(datetime(2026, 11, 15, 9, 30, tzinfo=UTC))

    assert [moment(tick).hour for tick in plan.due(last, now)] == hours


def test_bad_timetables_are_refused_where_they_are_written() -> None:
    app = App("test")
    for wrong in (
        lambda: app.schedule("every day")(lambda: None),
        lambda: app.schedule("61 * * * *")(lambda: None),
        lambda: app.schedule("0 0 30 2 *")(lambda: None),
        lambda: app.schedule("0 6 * * *", tz="Mars/Olympus")(lambda: None),
        lambda: app.schedule("0 6 * * *", tz="../../etc/passwd")(lambda: None),
        lambda: app.poller("hotel:{hotel}")(_pull),
        lambda: app.poller("x", every="1ms")(_pull),
    ):
        with pytest.raises(DefinitionError):
            wrong()


async def _pull(poll: Poll, ctx: Context) -> None:
    pass
