"""Stripe subscriptions: one letter, one list entry and one row each, whatever fails in between."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from relevo import Relevo
from relevo.apps import tables
from relevo.apps.subscriptions import (
    MIGRATIONS,
    app,
    gateways,
    queues,
    records,
    settings,
    streams,
    webhooks,
)
from relevo.apps.subscriptions.streams import StreamWorker
from relevo.apps.subscriptions.support import Retried, Support
from relevo.desk import Person, Role
from relevo.errors import NotAllowed, ProviderUnavailable, ProviderUncertain, SettingsError
from relevo.job import State
from relevo.simulators import World
from relevo.simulators.traffic.subscriptions import event, sign
from relevo.store import DeliveryState, EffectState, Filter, Letterbox
from relevo.testing import ManualClock, deliver, drain, until
from tests.servers import postgres
from tests.servers.redis import RedisServer


@pytest.fixture
async def relevo(tmp_path: Path, world: World, clock: ManualClock) -> AsyncGenerator[Relevo]:
    async with Relevo(f"sqlite:///{tmp_path / 'r.db'}", apps=[app], clock=clock) as engine:
        yield engine


async def subscribe(relevo: Relevo, *numbers: int, **options: bool) -> None:
    for number in numbers:
        body = json.dumps(event(number, 1, **options)).encode()
        answer = await deliver(relevo, webhooks.PATH, body=body, headers=sign(body), sign=False)
        assert answer.status == 200


async def work(relevo: Relevo) -> None:
    await drain(relevo, skip_waits=True)


def flags(job: records.StripeJob) -> tuple[bool, bool, bool]:
    return (job.email_sent, job.list_added, job.spreadsheet_saved)


async def test_a_subscription_reaches_all_three_once(relevo: Relevo, world: World) -> None:
    await subscribe(relevo, 1, 1, 2)
    await work(relevo)

    jobs = await relevo.use(records.Records).jobs()
    assert [flags(job) for job in jobs] == [(True, True, True)] * 2
    for provider in ("relay", "doppler", "sheets"):
        assert world.ledger.count(provider) == 2
        assert world.ledger.doubled(provider) == {}


@pytest.mark.xdist_group("postgres")
async def test_the_same_on_postgres(world: World) -> None:
    """With a lost answer of each kind, as in F42."""
    world.faults.add("sheets", "append", "lost", times=1)
    world.faults.add("doppler", "subscribe", "lost", times=1)
    async with postgres.fresh_address() as url:
        await tables.migrate(url, MIGRATIONS)
        async with Relevo(url, apps=[app], clock=ManualClock()) as relevo:
            await test_a_subscription_reaches_all_three_once(relevo, world)


async def test_a_forged_signature_leaves_nothing(relevo: Relevo, world: World) -> None:
    """B01"""
    body = json.dumps(event(1, 1)).encode()
    forged = sign(body, "whsec_other")
    answer = await deliver(relevo, webhooks.PATH, body=body, headers=forged, sign=False)
    assert answer.status == 401
    assert await relevo.use(records.Records).jobs() == []


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"livemode": True}, 400),
        ({"type": "customer.created"}, 200),
        ({"account": "acct_other"}, 200),
        ({"type": "invoice.paid", "data": {}}, 200),
        ({"data": {"object": {"mode": "subscription"}}}, 200),
        ({"data": {"object": []}}, 200),
        ({"id": ""}, 422),
        ({"id": ["evt"]}, 422),
    ],
)
async def test_b58_what_is_no_paid_subscription_makes_no_job(
    relevo: Relevo, change: dict[str, object], status: int
) -> None:
    body = json.dumps({**event(1, 1), **change}).encode()
    answer = await deliver(relevo, webhooks.PATH, body=body, headers=sign(body), sign=False)
    assert answer.status == status
    assert await relevo.use(records.Records).jobs() == []


@pytest.mark.parametrize("email", ["a@b, c@d.com", "x\r\nBcc: y@z.com", "a" * 400 + "@b.com", 5])
async def test_b47_a_session_with_an_address_that_is_more_than_one_is_a_failure(
    relevo: Relevo, email: object
) -> None:
    made = event(1, 1)
    made["data"]["object"]["customer_details"]["email"] = email
    body = json.dumps(made).encode()
    answer = await deliver(relevo, webhooks.PATH, body=body, headers=sign(body), sign=False)
    assert answer.status == 200
    [failed], _ = await relevo.store.deliveries(Letterbox(state=DeliveryState.FAILED))
    assert "not as Stripe sends them: email" in failed.reason


async def refuse_what_stripe_never_sends(relevo: Relevo) -> None:
    """Each is answered and kept as failed: an error would be repeated for three days."""
    session = event(1, 1)["data"]["object"]
    person = session["customer_details"]
    sessions: list[dict[str, Any]] = [
        {"metadata": "Pro"},
        {"metadata": ["Pro"]},
        {"metadata": {"plan": 5}},
        {"amount_total": 2**63},
        {"amount_total": True},
        {"amount_total": None},
        {"customer_details": person | {"email": "a" * 64 + "@" + "b" * 190 + ".com"}},
        {"customer_details": person | {"name": ["Ana"]}},
        {"customer_details": "ana@example.com"},
        {"subscription": ["sub_1"]},
    ]
    events: list[dict[str, Any]] = [{"data": {"object": session | each}} for each in sessions]
    events += [{"created": moment} for moment in (1_767_225_600_000, -1, 1e300, True, "now", None)]
    for number, change in enumerate(events):
        body = json.dumps({**event(1, 1), "id": f"evt_odd_{number}", **change}).encode()
        answer = await deliver(relevo, webhooks.PATH, body=body, headers=sign(body), sign=False)
        assert answer.status == 200, change
    failed, _ = await relevo.store.deliveries(Letterbox(state=DeliveryState.FAILED), limit=200)
    assert len(failed) == len(events)
    assert all("InvalidSession" in each.reason for each in failed)
    assert await relevo.use(records.Records).jobs() == []


async def test_what_stripe_never_sends_is_refused(relevo: Relevo) -> None:
    await refuse_what_stripe_never_sends(relevo)


@pytest.mark.xdist_group("postgres")
async def test_what_stripe_never_sends_is_refused_on_postgres(world: World) -> None:
    async with postgres.fresh_address() as url:
        await tables.migrate(url, MIGRATIONS)
        async with Relevo(url, apps=[app], clock=ManualClock()) as relevo:
            await refuse_what_stripe_never_sends(relevo)


@pytest.mark.parametrize("provider", ["relay", "doppler", "sheets"])
async def test_a_provider_that_is_down_delays_only_its_own(
    relevo: Relevo, world: World, provider: str
) -> None:
    world.faults.add(provider, "*", "error" if provider == "doppler" else "down", times=2)
    await subscribe(relevo, 1)
    await drain(relevo)
    [job] = await relevo.use(records.Records).jobs()
    assert sum(flags(job)) == 2
    if provider == "relay":
        # Relay knows no key: a call that died is for a person to decide.
        page = await relevo.store.page(Filter(states=frozenset({State.HELD})))
        assert [held.kind for held in page.jobs] == [queues.SendEmail.__relevo__.kind]
        return
    await work(relevo)
    [job] = await relevo.use(records.Records).jobs()
    assert flags(job) == (True, True, True)
    assert world.ledger.count(provider) == 1


async def test_f42_a_lost_reply_makes_no_second_row(relevo: Relevo, world: World) -> None:
    world.faults.add("sheets", "append", "lost", times=1)
    world.faults.add("doppler", "subscribe", "lost", times=1)
    await subscribe(relevo, 1)
    await work(relevo)
    [job] = await relevo.use(records.Records).jobs()
    assert flags(job) == (True, True, True)
    assert world.ledger.count("sheets", "append") == 1
    assert world.ledger.count("doppler", "subscribe") == 1


async def test_f42_a_letter_whose_reply_was_lost_is_held_not_sent_again(
    relevo: Relevo, world: World
) -> None:
    world.faults.add("relay", "send", "lost", times=1)
    await subscribe(relevo, 1)
    await work(relevo)
    assert world.ledger.count("relay", "send") == 1
    effects, _ = await relevo.store.effects(states=frozenset({EffectState.UNKNOWN}))
    assert [effect.name for effect in effects] == ["email"]


@pytest.mark.parametrize("did_happen", [True, False], ids=["confirmed", "denied"])
async def test_f42_a_person_decides_whether_the_letter_was_sent(
    relevo: Relevo, world: World, did_happen: bool
) -> None:
    """By the list of effects, as the guide says: whatever words the person has for the result."""
    world.faults.add("relay", "send", "lost" if did_happen else "down", times=1)
    await subscribe(relevo, 1)
    await work(relevo)
    ada = Person("ada", Role.ADMIN)
    [effect], _ = await relevo.desk.effects(states=frozenset({EffectState.UNKNOWN}))
    if did_happen:
        assert await relevo.desk.confirm_effect(effect.job, effect.name, "she has it", ada)
    else:
        assert await relevo.desk.deny_effect(effect.job, effect.name, ada)
    await work(relevo)
    [job] = await relevo.use(records.Records).jobs()
    assert flags(job) == (True, True, True)
    assert world.ledger.count("relay", "send") == 1


class SlowSheet(gateways.Sheet):
    """A sheet whose rows arrive late."""

    rows: list[str]

    def _open(self) -> Any:
        rows = self.rows = []

        class Worksheet:
            def append_row(self, row: list[str], **options: object) -> None:
                time.sleep(0.2)
                rows.append(row[0])

            def col_values(self, number: int) -> list[str]:
                return list(rows)

        return Worksheet()


async def test_f42_a_row_on_its_way_is_waited_for_before_it_is_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateways, "SECONDS", 0.1)
    sheet = SlowSheet({}, "", "", "")
    with pytest.raises(ProviderUncertain):
        await sheet.append(["one"])
    monkeypatch.setattr(gateways, "SECONDS", 5)
    assert await sheet.has("one")


async def test_f42_a_row_that_had_no_turn_in_time_was_never_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateways, "SECONDS", 0.1)
    sheet = SlowSheet({}, "", "", "")
    first, second = await asyncio.gather(
        sheet.append(["one"]), sheet.append(["two"]), return_exceptions=True
    )
    assert [type(first), type(second)] == [ProviderUncertain, ProviderUnavailable]
    monkeypatch.setattr(gateways, "SECONDS", 5)
    assert not await sheet.has("two")


async def test_one_who_unsubscribed_is_left_alone(relevo: Relevo, world: World) -> None:
    await subscribe(relevo, 1, unsubscribed=True)
    await work(relevo)
    [job] = await relevo.use(records.Records).jobs()
    assert (job.list_added, job.list_skipped) == (False, True)
    assert world.ledger.count("doppler") == 0
    assert world.calls["doppler:subscribe"] == 1


async def test_b47_values_are_written_as_they_are(relevo: Relevo, world: World) -> None:
    made = event(1, 1)
    made["data"]["object"]["customer_details"]["name"] = '=HYPERLINK("x")'
    made["data"]["object"]["metadata"]["plan"] = "+1-@\tx"
    body = json.dumps(made).encode()
    await deliver(relevo, webhooks.PATH, body=body, headers=sign(body), sign=False)
    await work(relevo)
    [row] = [entry.detail["row"] for entry in world.ledger.find("sheets")]
    assert row[3:5] == ['=HYPERLINK("x")', "+1-@\tx"]


def test_settings_name_everything_that_is_missing() -> None:
    with pytest.raises(SettingsError) as caught:
        settings.read({"WORKERS_MAX_RETRIES": "many", "STRIPE_LIVEMODE": "1"})
    assert "DOPPLER_API_KEY is missing" in str(caught.value)
    assert "WORKERS_MAX_RETRIES is a whole number" in str(caught.value)
    assert "STRIPE_LIVEMODE is true or false" in str(caught.value)


# With Redis: the streams that others know


@pytest.fixture
async def redis_server() -> AsyncGenerator[RedisServer]:
    server = RedisServer().start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncGenerator[Redis]:
    async with Redis(host="127.0.0.1", port=redis_server.port, decode_responses=True) as client:
        yield client


@pytest.fixture
async def streamed(
    tmp_path: Path, world: World, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Relevo]:
    monkeypatch.setenv("REDIS_HOST", "127.0.0.1")
    monkeypatch.setenv("REDIS_PORT", str(redis_server.port))
    for name in ("EMAIL", "LIST", "SPREADSHEET"):
        monkeypatch.setenv(f"WORKERS_{name}_READ_TIMEOUT", "50")
        monkeypatch.setenv(f"WORKERS_{name}_BACKOFF_BASE", "50")
        monkeypatch.setenv(f"WORKERS_{name}_BACKOFF_MAX", "100")
    async with Relevo(f"sqlite:///{tmp_path / 'r.db'}", apps=[app]) as engine:
        yield engine


async def serve(relevo: Relevo, *names: str, done: object) -> None:
    """Serve streams until something is true."""
    stop = asyncio.Event()
    workers = [StreamWorker(relevo, name).run(stop) for name in names]
    tasks = [asyncio.create_task(each) for each in workers]
    try:
        await until(done)  # type: ignore[arg-type]
    finally:
        stop.set()
        await asyncio.gather(*tasks)


async def pending(redis: Redis, stream: str) -> int:
    return (await redis.xpending(stream, f"{stream}_group"))["pending"]


async def test_streams_carry_what_the_seed_says_and_anyone_may_read_them(
    streamed: Relevo, world: World, redis: Redis
) -> None:
    await subscribe(streamed, 1)
    await drain(streamed)
    [job] = await streamed.use(records.Records).jobs()
    for name in streams.STREAMS:
        [(_, fields)] = await redis.xrange(name)
        assert fields["job_id"] == job.id
        assert fields["ts"].isdigit()

    async def all_done() -> bool:
        [job] = await streamed.use(records.Records).jobs()
        return flags(job) == (True, True, True)

    await serve(streamed, "email", "list", "spreadsheet", done=all_done)
    for name in streams.STREAMS:
        assert await pending(redis, name) == 0
    # Published again by somebody: nothing happens twice.
    await redis.xadd("stripe_jobs_email", {"job_id": job.id, "ts": "garbage"})
    await serve(streamed, "email", done=lambda: _settled(redis, "stripe_jobs_email"))
    assert world.ledger.count("relay") == 1


async def _settled(redis: Redis, stream: str) -> bool:
    [group] = await redis.xinfo_groups(stream)
    newest = (await redis.xinfo_stream(stream))["last-generated-id"]
    return group["last-delivered-id"] == newest and group["pending"] == 0


async def test_b37_entries_that_mean_nothing_are_recorded_and_acknowledged(
    streamed: Relevo, redis: Redis
) -> None:
    await redis.xadd("stripe_jobs_list", {"job_id": "no-such-job", "ts": "1"})
    await redis.xadd("stripe_jobs_list", {"other": "field"})
    await redis.xadd("stripe_jobs_list", {"job_id": "0" * 32})

    async def recorded() -> bool:
        return len(await streamed.use(records.Records).failures()) == 3

    await serve(streamed, "list", done=recorded)
    failures = await streamed.use(records.Records).failures()
    assert {failure.deliveries for failure in failures} == {6}
    assert await pending(redis, "stripe_jobs_list") == 0


async def fail_for_good(relevo: Relevo, world: World, redis: Redis) -> records.StripeJob:
    """A row that the sheet refuses, from the stream."""
    world.faults.add("sheets", "append", "refuse", times=1)
    await subscribe(relevo, 1)
    await drain(relevo)

    async def recorded() -> bool:
        return len(await relevo.use(records.Records).failures()) == 1

    await serve(relevo, "spreadsheet", done=recorded)
    [job] = await relevo.use(records.Records).jobs()
    return job


async def test_a_failure_of_a_stream_is_retried_and_closed_when_it_succeeds(
    streamed: Relevo, world: World, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "relevo")
    job = await fail_for_good(streamed, world, redis)
    rows = streamed.use(records.Records)
    support = Support(streamed, rows, streamed.desk)
    [failed] = await support.failures()
    assert (failed.integration, failed.state, failed.tries) == ("spreadsheet", "failed", 1)
    assert "ProviderRefused" in failed.reason

    ada = Person("ada", Role.OPERATOR)
    assert await support.retry_all(ada, integration="email") == Retried(0, 0)
    assert await support.retry_all(ada) == Retried(1, 0)
    assert await support.failures() == []  # ordered again, and under way
    assert len(await rows.failures()) == 1
    await drain(streamed)
    assert await rows.failures() == []
    [job] = await rows.jobs()
    assert job.spreadsheet_saved
    assert world.ledger.count("sheets") == 1
    done = [each.__dict__ for each in caplog.records if each.__dict__.get("flag")]
    assert [(each["worker"], each["flag"], each["job"]) for each in done] == [
        ("SPREADSHEET_WORKER", "spreadsheet_saved", job.id)
    ]


async def test_a_retry_that_fails_again_is_a_failure_again(
    streamed: Relevo, world: World, redis: Redis
) -> None:
    await fail_for_good(streamed, world, redis)
    world.faults.add("sheets", "append", "refuse", times=1)
    support = Support(streamed, streamed.use(records.Records), streamed.desk)
    ada = Person("ada", Role.OPERATOR)
    await support.retry_all(ada)
    await drain(streamed)
    [failed] = await support.failures()
    assert (failed.integration, bool(failed.order)) == ("spreadsheet", True)
    with pytest.raises(NotAllowed):
        await support.retry_all(Person("eve", Role.VIEWER))
    await support.retry_all(ada)
    await drain(streamed)
    assert await support.failures() == []
    assert world.ledger.count("sheets") == 1


async def test_an_entry_waits_no_longer_than_the_formula_says(
    streamed: Relevo, world: World, redis: Redis
) -> None:
    """A reader that blocks for ten seconds on an empty stream wakes for what is due again."""
    await subscribe(streamed, 1)
    await drain(streamed)
    world.faults.add("sheets", "append", "error", times=3)
    worker = StreamWorker(streamed, "spreadsheet")
    worker._pace = settings.Pace(read_timeout=10_000, backoff_base=300, backoff_max=900)
    await worker._stream.ensure()
    moments = []
    while not (await streamed.use(records.Records).jobs())[0].spreadsheet_saved:
        if await worker.turn():
            moments.append(time.monotonic())
    waits = [later - earlier for earlier, later in pairwise(moments)]
    assert len(waits) == 3
    for wait, formula in zip(waits, (0.3, 0.6, 0.9), strict=True):
        assert formula - 0.1 < wait < formula + 2


async def test_the_sheets_minute_is_shared_by_all_workers_of_its_stream(
    streamed: Relevo, world: World, redis: Redis
) -> None:
    first, second = (StreamWorker(streamed, "spreadsheet") for _ in range(2))
    assert queues.SaveRow.__relevo__.rate == (settings.SHEET_WRITES, 60_000)
    for worker in (first, second):
        assert worker._limit is not None
        assert (worker._limit.calls, worker._limit.window) == queues.SaveRow.__relevo__.rate
        worker._limit.calls = 2
    await subscribe(streamed, 1, 2, 3, 4)
    await drain(streamed)
    await first._stream.ensure()
    await asyncio.gather(first.turn(), second.turn())
    assert world.ledger.count("sheets", "append") == 2
    assert await first.turn() == 0  # nothing is taken while the minute is full
    entries = await redis.xpending_range(*STREAM_AND_GROUP, "-", "+", 10)
    assert [each["times_delivered"] for each in entries] == [0, 0]  # no retry is spent

    await redis.delete("stripe_jobs_spreadsheet:rate")  # a minute later
    await until(lambda: _served(first, world, 4))


STREAM_AND_GROUP = ("stripe_jobs_spreadsheet", "stripe_jobs_spreadsheet_group")


async def _served(worker: StreamWorker, world: World, many: int) -> bool:
    await worker.turn()
    return world.ledger.count("sheets", "append") == many


async def test_what_fails_stays_pending_and_is_taken_over(
    streamed: Relevo, world: World, redis: Redis
) -> None:
    await subscribe(streamed, 1)
    await drain(streamed)
    # A consumer that took the entry and died.
    await redis.xgroup_create("stripe_jobs_spreadsheet", "stripe_jobs_spreadsheet_group", id="0")
    await redis.xreadgroup(
        "stripe_jobs_spreadsheet_group", "dead", {"stripe_jobs_spreadsheet": ">"}
    )
    world.faults.add("sheets", "append", "error", times=2)

    async def saved() -> bool:
        [job] = await streamed.use(records.Records).jobs()
        return job.spreadsheet_saved

    await serve(streamed, "spreadsheet", done=saved)
    assert world.ledger.count("sheets") == 1


async def test_f42_a_worker_that_was_frozen_leaves_its_row_to_the_next(
    streamed: Relevo, world: World, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await subscribe(streamed, 1)
    await drain(streamed)
    monkeypatch.setattr(streams, "LATE", -1.0)
    worker = StreamWorker(streamed, "spreadsheet")
    await worker._stream.ensure()
    assert await worker.turn() == 1
    assert world.ledger.count("sheets") == 0
    assert await pending(redis, "stripe_jobs_spreadsheet") == 1

    monkeypatch.setattr(streams, "LATE", 20.0)
    await serve(streamed, "spreadsheet", done=lambda: _settled(redis, "stripe_jobs_spreadsheet"))
    assert world.ledger.count("sheets", "append") == 1


async def test_a_key_of_another_type_stops_nobody(
    streamed: Relevo, world: World, redis: Redis
) -> None:
    await redis.set("stripe_jobs_email", "not a stream")
    stop = asyncio.Event()
    task = asyncio.create_task(StreamWorker(streamed, "email").run(stop))
    await subscribe(streamed, 1)
    await drain(streamed)  # the publication falls back to our own queues
    stop.set()
    await task
    assert world.ledger.count("relay") == 1


async def test_redis_away_runs_it_here_and_not_again_when_it_is_back(
    streamed: Relevo, world: World, redis_server: RedisServer
) -> None:
    redis_server.stop()
    await subscribe(streamed, 1)
    await drain(streamed)
    [job] = await streamed.use(records.Records).jobs()
    assert flags(job) == (True, True, True)
    assert world.ledger.count("relay") == 1
