"""What only Redis can do to us: volatile servers, forgotten scripts, fail-overs, moving slots."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

from relevo import testing
from relevo.errors import (
    DefinitionError,
    MisuseError,
    SchemaMismatch,
    SettingsError,
    StoreDamaged,
    StoreUnavailable,
)
from relevo.ids import new_id
from relevo.job import After, Ending, Lease, NewJob, Receipt, State, Suspicion, Verdict
from relevo.store import (
    DEADLINE,
    Arrival,
    By,
    DeliveryState,
    Edit,
    Effect,
    EffectState,
    Filter,
    Kept,
    Letterbox,
    Loss,
    Note,
    QueueMode,
    Rescued,
    Want,
    WorkerInfo,
)
from relevo.stores import open_store
from relevo.stores.redis import wire
from relevo.stores.redis.address import read_address
from relevo.stores.redis.life import STEPS
from relevo.stores.redis.store import RedisStore
from relevo.stores.redis.wire import Wire
from relevo.testing import ManualClock
from tests.conformance.steps import BOOM, DAY, make, take_one
from tests.conformance.steps import end as ending
from tests.servers.redis import (
    HOST,
    RedisCluster,
    RedisServer,
    SentinelTrio,
    cluster_url,
    fresh_store,
    redis_url,
    restricted_user,
    until,
)
from tests.servers.tls import certificate, vouching

WORK = "app:module:work"
QUEUES = (WORK, "app:module:other")
ANN = By("ann", "because")
LEASE = 60_000
CLAIMS = ("taken", "left", "claims")


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster(timeout=1_000) as cluster:
        yield cluster


@asynccontextmanager
async def opened(url: str, clock: ManualClock | None = None) -> AsyncIterator[RedisStore]:
    store = RedisStore(url, clock=clock)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@contextmanager
def answers_lost(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The server does what it is asked; nobody hears of it."""
    call = Wire.call

    async def unheard(*args: Any, **options: Any) -> Any:
        await call(*args, **options)
        raise StoreUnavailable("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(Wire, "call", unheard)
        yield


def job(queue: str = WORK, **fields: Any) -> NewJob:
    return NewJob(**{"id": new_id(), "queue": queue, "kind": "Do", "payload": b"{}", **fields})


def kept(key: str | None = "k", **fields: Any) -> Kept:
    made = {"id": new_id(), "endpoint": "app:/hook", "key": key, "body": b"body", "answer": b"yes"}
    return Kept(**{**made, **fields})


async def take(store: RedisStore, count: int = 1, *queues: str | Want) -> list[Lease]:
    wants = [want if isinstance(want, Want) else Want(queue=want) for want in queues or (WORK,)]
    return (await store.claim(wants, count, "w1", LEASE)).leases


async def end(store: RedisStore, *leases: Lease, state: State = State.DONE) -> list[bool]:
    return await store.settle([Ending(lease=lease, state=state) for lease in leases])


def released(lease: Lease) -> Ending:
    return Ending(lease=lease, state=State.SCHEDULED, spend=False, released=True)


def loss(id: str) -> Loss:
    return Loss(id=id, failure=BOOM, suspicion=Suspicion.WATCHED)


async def state_of(store: RedisStore, id: str) -> State | None:
    (found,) = await store.find([id])
    return found and found.state


async def soon(work: Callable[[], Awaitable[Any]], within: float) -> Any:
    """The first answer that is no StoreUnavailable; every refusal must come in time."""
    deadline = time.monotonic() + within
    while True:
        began = time.monotonic()
        try:
            return await work()
        except StoreUnavailable:
            assert time.monotonic() - began < DEADLINE
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)


# addresses


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("redis://h:6379", "without a password"),
        ("redis://10.0.0.1", "allow_open=1"),
        ("redis://[2001:db8::1]:6379", "without a password"),
        ("redis+cluster://127.0.0.1,10.1.2.3", "10.1.2.3"),
        ("redis://user@10.0.0.1", "without a password"),
        ("redis://", "host:port"),
        ("redis://127.0.0.1:0", "0 is no port"),
        ("redis://127.0.0.1:99999", "99999 is no port"),
        ("redis://127.0.0.1:x", "host:port"),
        ("redis://a b", "host:port"),
        ("redis://127.0.0.1,127.0.0.2", "redis+cluster"),
        ("redis://127.0.0.1/x", "the database"),
        ("redis://127.0.0.1/-1", "the database"),
        ("redis+cluster://127.0.0.1/1", "one database"),
        ("redis+sentinel://127.0.0.1", "the master's name"),
        ("redis+sentinel://127.0.0.1/a b", "the master's name"),
        ("redis://127.0.0.1?prefx=a", "prefx"),
        ("redis://127.0.0.1?prefix=", "prefix"),
        ("redis://127.0.0.1?prefix=a:b", "prefix"),
        ("redis://127.0.0.1?prefix={a}", "prefix"),
        ("redis://127.0.0.1?allow_volatile=yes", "0 or 1"),
        ("redis://127.0.0.1?wait=-1", "wait"),
        ("redis://127.0.0.1?wait=1000", "wait"),
        ("redis://127.0.0.1?wait", "name=value"),
        ("http://127.0.0.1", "no Redis scheme"),
    ],
)
def test_a_wrong_address_is_told_what_is_wrong(url: str, complaint: str) -> None:
    """C34, B64"""
    with pytest.raises(SettingsError, match=re.escape(complaint)):
        read_address(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://ann:s3cr%40t@10.0.0.1:7000/3?prefix=x",
        "rediss://:s3cr%40t@host",
        "redis+sentinel://:s3cr%40t@a:1,b:2/main?sentinel_password=s3cr%40t",
        "redis+cluster://ann:s3cr%40t@a:1,b:2",
    ],
)
def test_a_password_is_never_shown(url: str) -> None:
    """C20"""
    store = RedisStore(url)

    assert read_address(url).password == "s3cr@t"
    assert store.dsn == url
    assert "s3cr" not in store.url
    assert store.url.startswith(url.partition("//")[0])


def test_an_address_says_where_and_how() -> None:
    read = read_address("rediss+cluster://ann:pw@a:1,[2001:db8::1]:2?prefix=p.q&wait=2")

    assert (read.kind, read.tls, read.hosts) == ("cluster", True, (("a", 1), ("2001:db8::1", 2)))
    assert (read.username, read.password, read.prefix, read.wait) == ("ann", "pw", "p.q", 2)
    assert read_address("redis://127.0.0.1/5").database == 5
    assert read_address("redis+sentinel://localhost/main/2").service == "main"
    assert read_address("redis+sentinel://localhost/main/2").hosts == (("localhost", 26_379),)
    assert read_address("redis://10.0.0.1?allow_open=1").hosts == (("10.0.0.1", 6_379),)
    assert open_store("redis+cluster://127.0.0.1").name == "cluster"
    assert open_store("redis://127.0.0.1").name == "redis"


async def test_a_wrong_password_is_a_wrong_setting() -> None:
    with RedisServer("requirepass s3cret") as server:
        for login in ("", ":wrong@", "nobody:s3cret@"):
            store = RedisStore(f"redis://{login}{HOST}:{server.port}")
            with pytest.raises(SettingsError) as caught:
                await store.open()
            await store.close()
            assert "s3cret" not in str(caught.value)
        async with opened(f"redis://:s3cret@{HOST}:{server.port}") as store:
            assert await store.insert([job()])


async def test_a_server_that_is_not_there_is_unavailable_at_once() -> None:
    store = RedisStore("redis://127.0.0.1:1")
    began = time.monotonic()
    for _ in range(20):
        with pytest.raises(StoreUnavailable):
            await store.open()
        with pytest.raises(StoreUnavailable):
            await store.insert([job()])
    await store.close()

    assert time.monotonic() - began < DEADLINE


async def test_an_address_of_the_wrong_kind_says_so(server: RedisServer) -> None:
    store = RedisStore(f"redis+cluster://{HOST}:{server.port}")
    with pytest.raises(SettingsError, match="no cluster node"):
        await store.open()
    await store.close()


# durability


@pytest.mark.parametrize(
    ("setting", "advice"),
    [("appendonly no", "appendonly yes"), ("maxmemory-policy allkeys-lru", "noeviction")],
)
async def test_a_server_that_forgets_is_refused(setting: str, advice: str) -> None:
    """F25"""
    with RedisServer(setting) as server:
        store = RedisStore(server.url)
        with pytest.raises(SettingsError, match=advice):
            await store.open()
        await store.close()
        async with opened(f"{server.url}?allow_volatile=1") as store:
            findings = await store.check()
            assert {finding.level for finding in findings} == {"error", "warning"}


async def test_a_policy_changed_while_running_is_shouted(
    server: RedisServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F25"""
    info = WorkerInfo(id="w1", host="h", pid=1, queues=[WORK], concurrency=1)
    async with opened(server.url) as store:
        assert [finding.level for finding in await store.check()] == ["ok"]
        server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")

        assert [finding.level for finding in await store.check()] == ["error"]
        with caplog.at_level(logging.ERROR):
            await store.beat(info, LEASE)
            assert not caplog.records  # not before a minute has passed
            monkeypatch.setattr("relevo.stores.redis.life.BETWEEN_LOOKS", 0.0)
            await store.beat(info, LEASE)
        assert "noeviction" in caplog.records[0].__dict__["finding"]


async def test_a_newer_layout_is_refused(server: RedisServer) -> None:
    """F45"""
    async with opened(server.url) as store:
        assert await store.migrate() == []
        known = STEPS[-1].number
        assert server.command("GET", "relevo:schema") == f"{known} {known}".encode()
        server.command("SET", "relevo:schema", f"{known + 1} {known + 1}")
        with pytest.raises(SchemaMismatch, match="upgrade relevo"):
            await store.open()
        with pytest.raises(SchemaMismatch):
            await store.migrate()
        server.command("SET", "relevo:schema", "hello")
        with pytest.raises(SchemaMismatch):
            await store.open()


async def test_an_empty_server_is_migrated_once(server: RedisServer) -> None:
    handles = [RedisStore(server.url) for _ in range(4)]
    steps = await asyncio.gather(*(handle.migrate() for handle in handles))
    for handle in handles:
        await handle.close()

    assert sorted(steps) == [[], [], [], [step.name for step in STEPS]]


async def test_a_store_of_before_is_brought_up_to_date(server: RedisServer) -> None:
    async with opened(server.url) as store:
        server.command("SET", "relevo:schema", "1")
        with pytest.raises(SchemaMismatch, match="run `relevo migrate`"):
            await store.open()
        assert await store.migrate() == [step.name for step in STEPS[1:]]
        assert await store.migrate() == []
        await store.open()


async def test_an_insert_waits_for_its_replicas(server: RedisServer) -> None:
    async with opened(f"{server.url}?wait=1") as store:
        new = job()
        with pytest.raises(StoreUnavailable, match="0 of 1 replicas"):
            await store.insert([new])
        assert any("wait=1" in finding.message for finding in await store.check())
        with RedisServer(f"replicaof {HOST} {server.port}", "repl-diskless-sync-delay 0") as copy:
            until("the replica", lambda: copy.info("replication")["master_link_status"] == "up")
            assert await store.insert([new]) == [Receipt(new.id, Verdict.IN_PROGRESS)]
            assert await store.insert([job(key="k")])


async def test_a_full_server_stores_nothing_and_loses_nothing(server: RedisServer) -> None:
    """F25"""
    async with opened(server.url) as store:
        before = [job(), job(key="k", lane="l"), job("app:module:other", delay=LEASE)]
        await store.insert(before)
        (held,) = await take(store)
        server.command("CONFIG", "SET", "maxmemory", "1kb")
        dump = server.command("DBSIZE"), await everything(store)
        for _ in range(3):
            for verb in (
                lambda: store.insert([job(), job(key="k2"), job(lane="l")]),
                lambda: store.insert([job(after=(After(before[0].id),))]),
                lambda: take(store, 10),
                lambda: end(store, held),
                lambda: end(store, held, state=State.SCHEDULED),
                lambda: end(store, held, state=State.DEAD),
                lambda: store.settle([released(held)]),
                lambda: store.isolate([held]),
                lambda: store.rescue(worker="w1"),
                lambda: store.rescue(worker="w1", losses=[loss(held.id)]),
                lambda: store.cancel([held.id], ANN),
                lambda: store.remember([Note(kind="k", name="n", value=b"1")]),
            ):
                with pytest.raises(StoreUnavailable):
                    await verb()
        assert (server.command("DBSIZE"), await everything(store)) == dump

        server.command("CONFIG", "SET", "maxmemory", "0")
        assert await end(store, held) == [True]
        assert len(await take(store, 10)) == 1


async def test_what_is_not_kept_ends_also_on_a_full_server(server: RedisServer) -> None:
    """It makes room, and needs none."""
    async with opened(server.url) as store:
        await store.insert([job(keep=0) for _ in range(3)])
        leases = await take(store, 3)
        server.command("CONFIG", "SET", "maxmemory", "1kb")
        assert await end(store, *leases[:2]) == [True] * 2
        assert (await store.tally())[0].counts == {State.RUNNING: 1}
        assert await end(store, *leases[2:]) == [True]
        assert await _claims_left(server) == []


async def test_what_is_not_kept_is_remembered_also_by_a_full_server(server: RedisServer) -> None:
    async with opened(server.url) as store:
        jobs = [job(keep=0, remember=LEASE) for _ in range(3)]
        await store.insert(jobs)
        leases = await take(store, 3)
        server.command("CONFIG", "SET", "maxmemory", "1kb")

        assert await end(store, *leases) == [True] * 3

        server.command("CONFIG", "SET", "maxmemory", "0")
        assert await store.insert(jobs) == [Receipt(one.id, Verdict.DONE) for one in jobs]


async def test_what_is_pruned_is_remembered_also_by_a_full_server(
    server: RedisServer, clock: ManualClock
) -> None:
    async with opened(server.url, clock) as store:
        jobs = [job(keep=LEASE, remember=DAY) for _ in range(3)]
        await store.insert(jobs)
        await end(store, *await take(store, 2))
        await end(store, *await take(store, 1), state=State.DEAD)
        clock.advance("2m")
        server.command("CONFIG", "SET", "maxmemory", "1kb")

        assert await store.prune(dead_keep=LEASE) == 3

        server.command("CONFIG", "SET", "maxmemory", "0")
        assert await store.insert(jobs) == [Receipt(one.id, Verdict.DONE) for one in jobs]
        clock.advance("2d")
        assert await store.prune(dead_keep=LEASE) == 3
        assert [key for key in await keyspace(server.url) if key.endswith(":remembered")] == []


async def everything(store: RedisStore) -> list[Any]:
    counts = [(tally.queue, tally.counts) for tally in await store.tally()]
    return [(await store.page(Filter())).jobs, counts, await store.audits()]


# servers that go away, come back, or are not what they were


async def test_forgotten_scripts_are_shown_again(server: RedisServer) -> None:
    """F26"""
    async with opened(server.url) as store:
        for _ in range(3):
            server.command("SCRIPT", "FLUSH")
            assert await store.insert([job()])
            server.command("SCRIPT", "FLUSH")
            (lease,) = await take(store)
            server.command("SCRIPT", "FLUSH")
            assert await end(store, lease) == [True]


async def test_what_was_stored_survives_kill_9(server: RedisServer) -> None:
    """F22"""
    async with opened(server.url) as store:
        ids: list[str] = []
        for _ in range(5):
            batch = [job() for _ in range(50)]
            await store.insert(batch)
            ids += [new.id for new in batch]
            until("the AOF", lambda: server.info("persistence")["aof_pending_bio_fsync"] == 0)
            server.kill()
            with pytest.raises(StoreUnavailable):
                await take(store)
            server.start()
            began = time.monotonic()
            leases = await soon(lambda: take(store, 20), within=10)
            assert time.monotonic() - began < 10
            assert all(await end(store, *leases))
        rest = await take(store, 1_000)

        assert len(rest) == 150
        assert await store.count(Filter(states=frozenset({State.DONE}))) == 100
        assert all(await store.find(ids[:10]))


async def test_a_silent_server_is_given_up_in_time(server: RedisServer) -> None:
    """F10"""
    async with opened(server.url) as store, opened(server.url) as other:
        await store.insert([job(), job()])
        (lease,) = await take(store)
        server.freeze()
        try:
            calls = (
                lambda: store.insert([job()]),
                lambda: take(store),
                lambda: store.extend([lease], LEASE),
                lambda: end(store, lease),
                lambda: store.find([lease.id]),
                lambda: store.page(Filter(text="x")),
                lambda: store.tally(),
                lambda: store.now(),
                lambda: store.check(),
                lambda: other.rescue(),
                lambda: other.cancel([lease.id], ANN),
            )
            began = time.monotonic()
            answers = await asyncio.gather(*(call() for call in calls), return_exceptions=True)
            assert time.monotonic() - began < DEADLINE
            assert {type(answer) for answer in answers} == {StoreUnavailable}
        finally:
            server.thaw()
        began = time.monotonic()
        assert len(await soon(lambda: take(store, 10), within=10)) >= 1
        assert time.monotonic() - began < 10


async def test_a_sleeper_hears_again_after_its_line_was_cut(server: RedisServer) -> None:
    """F09, F12"""
    async with opened(server.url) as store, opened(server.url) as other:
        assert await take(store) == []
        waiting = asyncio.create_task(store.wait([WORK], 60))
        await subscribed(server)
        for _ in range(3):
            server.command("CLIENT", "KILL", "TYPE", "pubsub")
            await subscribed(server)
            assert not waiting.done()
        await other.insert([job()])
        async with asyncio.timeout(10):
            await waiting
        assert len(await take(store)) == 1


async def test_what_came_while_the_line_was_cut_is_heard_of(server: RedisServer) -> None:
    """F12"""
    async with opened(server.url) as store, opened(server.url) as other:
        assert await take(store) == []
        waiting = asyncio.create_task(store.wait([WORK], 60))
        await subscribed(server)
        server.command("CLIENT", "KILL", "TYPE", "pubsub")
        await other.insert([job()])
        async with asyncio.timeout(10):
            await waiting
        assert len(await take(store)) == 1


async def subscribed(server: RedisServer) -> None:
    """Somebody listens to the bell."""
    await asyncio.to_thread(
        until, "a subscriber", lambda: server.command("PUBSUB", "NUMSUB", "relevo:bell")[1]
    )


async def test_cut_connections_are_replaced(server: RedisServer) -> None:
    """F09"""
    async with opened(server.url) as store:
        for _ in range(10):
            await soon(lambda: store.insert([job()]), within=5)
            server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            await asyncio.sleep(0.01)

        assert len(await soon(lambda: take(store, 100), within=5)) == 10


@pytest.mark.xdist_group("cluster")
@pytest.mark.parametrize("kind", ["redis", "cluster"])
async def test_a_claim_whose_answer_was_lost_is_asked_for_again(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """F09: a cut line must not burn attempts, nor make jobs wait for their leases to lapse."""
    async with fresh_store(clock, cluster=kind == "cluster") as store:
        batch = [job(queue) for queue in (WORK, "app:module:other") for _ in range(3)]
        await store.insert([*batch, job("app:module:third", lane="l")])
        queues = (WORK, "app:module:other", "app:module:third")
        with answers_lost(monkeypatch):
            for _ in range(2):
                with pytest.raises(StoreUnavailable):
                    await take(store, 5, *queues)
        assert (await store.find([batch[0].id]))[0] is not None

        leases = await take(store, 100, *queues)

        assert len(leases) == 7
        assert {lease.attempt for lease in leases} == {1}
        assert await end(store, *leases) == [True] * 7
        assert await take(store, 10, *queues) == []
        assert await store.rescue() == []


async def test_what_was_never_heard_of_is_given_in_its_turn(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(server.url) as store:
        poller, other = job(), job()
        await store.insert([poller])
        (lease,) = await take(store)
        again = Ending(lease=lease, state=State.SCHEDULED, spend=False, planned=True)
        assert await store.settle([again]) == [True]
        await store.insert([other])
        with answers_lost(monkeypatch), pytest.raises(StoreUnavailable):
            await take(store, 2)

        leases = await take(store, 2)

        turns = {lease.id: (lease.turn, lease.attempt) for lease in leases}
        assert turns == {poller.id: (1, 1), other.id: (0, 1)}
        assert await end(store, *leases) == [True] * 2
        assert [found and found.turn for found in await store.find([poller.id, other.id])] == [1, 0]


async def test_a_suspect_that_was_never_heard_of_is_given_as_a_suspect(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(server.url) as store:
        suspect, other = job(), job()
        await store.insert([suspect])
        (lease,) = await take(store)
        assert await store.isolate([lease]) == [True]
        await store.rescue(worker="w1", losses=[loss(suspect.id)])
        await store.insert([other])
        with answers_lost(monkeypatch), pytest.raises(StoreUnavailable):
            await take(store, 2)

        leases = await take(store, 2)

        marks = {lease.id: (lease.suspicion, lease.crashes) for lease in leases}
        assert marks == {suspect.id: (loss(suspect.id).suspicion, 1), other.id: (0, 0)}
        assert await end(store, *leases) == [True] * 2


async def test_what_was_never_heard_of_is_given_with_what_is_new(
    server: RedisServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(server.url, clock) as store:
        await store.insert([job() for _ in range(5)])
        with answers_lost(monkeypatch), pytest.raises(StoreUnavailable):
            await take(store, 3)

        leases = await take(store, 10)
        assert len({lease.id for lease in leases}) == 5
        assert (await store.tally())[0].counts == {State.RUNNING: 5}
        assert await end(store, *leases[:1], *leases[-1:]) == [True] * 2
        clock.advance("61s")
        assert {one.id for one in await store.rescue()} == {lease.id for lease in leases[1:-1]}
        assert await _claims_left(server) == []


async def test_what_was_never_heard_of_is_given_some_at_a_time(
    server: RedisServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(server.url, clock) as store:
        await store.insert([job() for _ in range(5)])
        with answers_lost(monkeypatch), pytest.raises(StoreUnavailable):
            await take(store, 5)

        leases = [lease for _ in range(3) for lease in await take(store, 2)]
        assert len(leases) == len({lease.id for lease in leases}) == 5
        assert {lease.attempt for lease in leases} == {1}
        assert await end(store, *leases) == [True] * 5
        assert await _claims_left(server) == []


async def test_what_an_unsent_claim_did_not_take_is_not_looked_for(server: RedisServer) -> None:
    async with opened(server.url) as store, opened(server.url) as other:
        server.kill()
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await take(store)
        server.start()
        await soon(lambda: other.insert([job()]), within=10)
        assert len(await soon(lambda: take(other), within=10)) == 1

        assert await soon(lambda: take(store), within=10) == []


async def test_a_replica_is_no_place_to_write(server: RedisServer) -> None:
    """F26"""
    async with opened(server.url) as store:
        await store.insert([job()])
        (lease,) = await take(store)
        with RedisServer() as other:
            server.command("REPLICAOF", HOST, other.port)
            for call in (
                lambda: store.insert([job()]),
                lambda: end(store, lease),
                lambda: store.extend([lease], LEASE),
            ):
                with pytest.raises(StoreUnavailable):
                    await call()
            server.command("REPLICAOF", "NO", "ONE")
        await soon(lambda: store.insert([job()]), within=5)


async def test_a_busy_server_is_unavailable(server: RedisServer) -> None:
    """F26"""
    server.command("CONFIG", "SET", "lua-time-limit", "1")
    async with opened(server.url) as store:
        await store.insert([job()])
        busy = asyncio.create_task(
            asyncio.to_thread(_quietly, server, "EVAL", "while true do end", 0)
        )
        with pytest.raises(StoreUnavailable):
            while True:
                await take(store)
                await asyncio.sleep(0.01)
        until("the script to be killed", lambda: server.command("SCRIPT", "KILL"))
        await busy
        lapsed = await soon(lambda: store.find([new_id()]), within=5)
        assert lapsed == [None]


async def test_a_server_that_reads_its_log_is_unavailable_until_it_has() -> None:
    """F26: LOADING burns no attempt."""
    with RedisServer() as server:
        async with opened(server.url) as store:
            payload = b'"' + b"x" * 10_000 + b'"'  # it looks up from its log every 2 MiB
            for queue in (WORK, *QUEUES[:4]):
                await store.insert([job(queue, payload=payload) for _ in range(400)])
            server.command("BGREWRITEAOF")
            until("the log", lambda: not server.info("persistence")["aof_rewrite_in_progress"])
            server.kill()
            with server.conf.open("a") as conf:
                conf.write("key-load-delay 100000\n")  # a tenth of a second for each key
            starting = asyncio.create_task(asyncio.to_thread(server.start))
            refusals: list[str] = []
            while not starting.done():
                try:
                    await take(store)
                except StoreUnavailable as error:
                    refusals.append(str(error))
                await asyncio.sleep(0.01)
            await starting

            leases = await soon(lambda: take(store, 10), within=10)
            assert [refusal for refusal in refusals if "LOADING" in refusal], set(refusals)
            assert [lease.attempt for lease in leases] == [1] * 10
            assert await end(store, *leases) == [True] * 10


def _quietly(server: RedisServer, *words: Any) -> None:
    try:
        server.command(*words)
    except Exception as error:  # noqa: BLE001 - it is killed on purpose
        logging.getLogger(__name__).debug("ended: %s", error)


async def test_a_fail_over_by_sentinels_is_followed() -> None:
    """F23"""
    with SentinelTrio() as trio:
        async with opened(f"{trio.url}?wait=1") as store, opened(trio.url) as sleeper:
            assert store.name == "redis"
            batch = [job() for _ in range(20)]
            await store.insert(batch)
            (lease, *_) = await take(store, 5)
            assert await take(sleeper, 1, "app:module:sleep") == []
            waiting = asyncio.create_task(sleeper.wait(["app:module:sleep"], 60))
            # Asleep, not still asking: a question that is cut off is an error, as it should be.
            await testing.until(lambda: "app:module:sleep" in sleeper._bell._trusted)
            failing = asyncio.create_task(asyncio.to_thread(trio.fail_over))
            began = time.monotonic()
            taken = await soon(lambda: take(sleeper, 100), within=20)
            assert time.monotonic() - began < 15
            await failing
            assert len(taken) <= 15
            assert await soon(lambda: end(store, lease), within=5) == [True]
            async with opened(trio.url) as third:
                await soon(lambda: third.insert([job("app:module:sleep")]), within=5)
            async with asyncio.timeout(10):
                await waiting
            assert await store.count(Filter(queue=WORK)) == 20


async def test_sentinels_that_know_no_such_master_say_so() -> None:
    with SentinelTrio() as trio:
        store = RedisStore(trio.url.replace("relevo-test", "unheard-of"))
        with pytest.raises(SettingsError, match="unheard-of"):
            await store.open()
        await store.close()


# TLS


@asynccontextmanager
async def behind_tls(server: RedisServer, certificate: Path) -> AsyncIterator[int]:
    """The port on which the same server is reached by TLS."""
    context = vouching(certificate)

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection(HOST, server.port)
        await asyncio.gather(carry(reader, ours), carry(theirs, writer), return_exceptions=True)

    async with await asyncio.start_server(serve, "localhost", 0, ssl=context) as proxy:
        yield proxy.sockets[0].getsockname()[1]


async def test_a_server_behind_tls_is_trusted_if_its_authority_is(
    server: RedisServer, tmp_path: Path
) -> None:
    trusted = certificate(tmp_path)
    async with behind_tls(server, trusted) as port:
        async with opened(f"rediss://localhost:{port}?ca={trusted}") as store:
            large = job(payload=b'"' + b"x" * 200_000 + b'"')
            await store.insert([large, job()])
            leases = await take(store, 2)
            assert leases[0].payload == large.payload
            assert await end(store, *leases) == [True, True]
        stranger = RedisStore(f"rediss://localhost:{port}")
        with pytest.raises(StoreUnavailable, match="certificate"):
            await stranger.open()
        await stranger.close()


def test_an_authority_that_cannot_be_read_is_said_at_once() -> None:
    with pytest.raises(SettingsError, match="nowhere"):
        RedisStore("rediss://localhost?ca=/nowhere/ca.pem")


# a cluster


QUEUES = [f"app:module:q{n}" for n in range(12)]


@pytest.mark.parametrize("key", ["", "plain", "a{b}c", "{}x", "a{b", "a}b{c}{d}", "{{x}}", "é{ñ}"])
def test_a_key_lives_on_the_slot_that_others_look_for_it(key: str) -> None:
    assert wire.key_slot(key.encode()) == key_slot(key.encode())


@pytest.mark.xdist_group("cluster")
async def test_a_lost_master_is_followed(cluster: RedisCluster) -> None:
    """F24"""
    cluster.flush()
    async with opened(f"{cluster.url}?wait=1") as store:
        batch = [job(queue) for queue in QUEUES for _ in range(5)]
        await store.insert(batch)
        victim = cluster.master_of(f"relevo:{{{QUEUES[0]}}}")
        failing = asyncio.create_task(asyncio.to_thread(cluster.fail_over, victim))
        taken: list[Lease] = []
        began = time.monotonic()
        while len(taken) < len(batch) and time.monotonic() - began < 30:
            taken += await soon(lambda: take(store, 100, *QUEUES), within=20)
            if len(taken) < len(batch):
                await asyncio.sleep(0.1)
            else:
                assert time.monotonic() - began < 15
        await failing
        assert {lease.id for lease in taken} == {new.id for new in batch}
        settled = await soon(lambda: end(store, *taken), within=10)
        assert settled == [True] * len(batch)
        victim.start()
        cluster.wait_until_whole()


@pytest.mark.xdist_group("cluster")
async def test_slots_move_under_load_and_nothing_is_torn(cluster: RedisCluster) -> None:
    """F24"""
    cluster.flush()
    async with opened(cluster.url) as store:
        root = f"relevo:{{{WORK}}}"
        slot, source = key_slot(root.encode()), cluster.master_of(root)
        target = next(node for node in cluster.masters() if node is not source)
        acked: list[str] = []
        ended: list[str] = []
        moving = asyncio.Event()

        async def produce() -> None:
            while not moving.is_set():
                fresh = [job()]
                await soon(partial(store.insert, fresh), within=20)
                acked.append(fresh[0].id)

        async def consume() -> None:
            while not moving.is_set():
                leases = await soon(lambda: take(store, 5), within=20)
                if leases:
                    answers = await soon(partial(end, store, *leases), within=20)
                    ended.extend(
                        lease.id for lease, ours in zip(leases, answers, strict=True) if ours
                    )

        async with asyncio.TaskGroup() as group:
            group.create_task(produce())
            group.create_task(consume())
            for one, other in ((source, target), (target, source), (source, target)):
                await asyncio.sleep(0.3)
                await asyncio.to_thread(cluster.move_slot, slot, one, other)
            await asyncio.sleep(0.2)
            moving.set()
        while leases := await take(store, 100):
            ended += [lease.id for lease in leases]
            assert all(await end(store, *leases))

        assert set(ended) == set(acked)
        assert len(ended) == len(acked)
        assert cluster.master_of(root) is target


@pytest.mark.xdist_group("cluster")
async def test_a_slot_half_moved_runs_no_script(cluster: RedisCluster) -> None:
    """F24: a script that finds half of its keys gone would tear a job apart."""
    cluster.flush()
    async with opened(cluster.url) as store:
        await store.insert([job() for _ in range(3)])
        root = f"relevo:{{{WORK}}}"
        slot, source = key_slot(root.encode()), cluster.master_of(root)
        target = next(node for node in cluster.masters() if node is not source)
        cluster.begin_moving(slot, source, target)
        source.command("MIGRATE", HOST, target.port, f"{root}:jobs", 0, 5_000)

        for call in (lambda: store.insert([job()]), lambda: take(store, 10)):
            with pytest.raises(StoreUnavailable):
                await call()

        cluster.move_slot(slot, source, target)
        leases = await soon(lambda: take(store, 10), within=5)
        assert len(leases) == 3
        assert all(await end(store, *leases))
        cluster.move_slot(slot, target, source)


class Crash(Exception):
    """Our process dies here."""


async def crash(*_: Any, **__: Any) -> Any:
    raise Crash


@pytest.mark.xdist_group("cluster")
@pytest.mark.parametrize("moment", ["_put", "_tie", "_take_off"])
async def test_a_bundle_whose_caller_died_is_finished(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """F40"""
    async with fresh_store(clock, cluster=True) as store:
        bundle = new_id()
        children = [job(queue, bundle=bundle) for queue in QUEUES[:4]]
        edges = tuple(After(child.id) for child in children)
        parent = job("app:module:parent", bundle=bundle, after=edges)
        with monkeypatch.context() as patch:
            patch.setattr(RedisStore, moment, crash)
            with pytest.raises(Crash):
                await store.insert([*children, parent])
        assert await store.rescue() == []
        clock.advance("11s")

        await store.rescue()

        found = await store.find([new.id for new in [*children, parent]])
        assert [one and one.state for one in found] == [State.READY] * 4 + [State.WAITING]
        leases = await take(store, 10, *QUEUES[:4])
        assert all(await end(store, *leases))
        assert await state_of(store, parent.id) is State.READY
        await store.rescue()
        assert len(await take(store, 10, "app:module:parent")) == 1
        assert await leftovers() == []


@pytest.mark.xdist_group("cluster")
async def test_what_has_run_of_a_bundle_does_not_run_again_when_it_is_finished(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller died before it had taken off its note; the jobs were not to be kept."""
    async with fresh_store(clock, cluster=True) as store:
        bundle = new_id()
        with monkeypatch.context() as patch:
            patch.setattr(RedisStore, "_take_off", crash)
            with pytest.raises(Crash):
                await store.insert([job(queue, bundle=bundle, keep=0) for queue in QUEUES[:4]])
        leases = await take(store, 10, *QUEUES[:4])
        assert len(leases) == 4
        assert all(await end(store, *leases))
        clock.advance("11s")
        await store.prune(dead_keep=DAY)

        await store.rescue()

        assert await take(store, 10, *QUEUES[:4]) == []
        assert await leftovers() == []


@pytest.mark.xdist_group("cluster")
@pytest.mark.parametrize("verdict", [State.DONE, State.DEAD])
async def test_a_release_whose_caller_died_is_carried(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, verdict: State
) -> None:
    """F37"""
    async with fresh_store(clock, cluster=True) as store:
        child = job(QUEUES[0])
        parent = job(QUEUES[1], after=(After(child.id),))
        above = job(QUEUES[2], after=(After(parent.id, "continue"),))
        await store.insert([child, parent, above])
        (lease,) = await take(store, 1, QUEUES[0])
        with monkeypatch.context() as patch:
            patch.setattr(RedisStore, "_carry", crash)
            with pytest.raises(Crash):
                await end(store, lease, state=verdict)
        assert await state_of(store, parent.id) is State.WAITING

        await asyncio.gather(*(store.rescue() for _ in range(3)))

        if verdict is State.DONE:
            assert await state_of(store, parent.id) is State.READY
        else:
            assert await state_of(store, parent.id) is State.DEAD
            assert await state_of(store, above.id) is State.READY
        assert await leftovers() == []


@pytest.mark.parametrize("moment", ["insert", "_register_endpoints"])
async def test_a_delivery_whose_receiver_died_is_finished_by_the_next(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """F43: its jobs are there, and one has even ended and is not kept; none runs twice."""
    async with opened(server.url) as store:
        # One with a key has to be looked up, so that it takes more than one step.
        arrival = Arrival(kept(), (job(keep=0), job("app:module:other", keep=0, key="k")))
        with monkeypatch.context() as patch:
            patch.setattr(RedisStore, moment, crash)
            with pytest.raises(Crash):
                await store.receive([arrival])
        assert await store.delivered("app:/hook", ["k"]) == [None]
        ran = await take(store, 1)
        assert all(await end(store, *ran))

        (answer,) = await store.receive([arrival])

        assert answer.verdict is Verdict.NEW
        assert answer.kept.jobs == tuple(new.id for new in arrival.jobs)
        ran += await take(store, 10, WORK, "app:module:other")
        assert sorted(lease.id for lease in ran) == sorted(new.id for new in arrival.jobs)


@pytest.mark.parametrize("kind", ["keyed", "plain"])
async def test_a_delivery_whose_handler_died_is_resolved_by_the_next_run(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """F43: the jobs that came of it are there, and come no second time."""
    async with opened(server.url) as store:
        failed = kept(state=DeliveryState.FAILED)
        await store.receive([Arrival(failed, (handler := job("app:module:handler"),))])
        key = "k" if kind == "keyed" else None
        made = (job(keep=0), job("app:module:other", keep=0, key=key))
        resolved = Arrival(kept(id=failed.id), made)
        run = RedisStore._run

        async def dies(self: RedisStore, name: str, *args: Any, **options: Any) -> Any:
            return await (crash() if name == "resolve" else run(self, name, *args, **options))

        with monkeypatch.context() as patch:
            patch.setattr(RedisStore, "_run", dies)
            with pytest.raises(Crash):
                await store.resolve(handler.id, resolved)
        [stored] = await store.delivery([failed.id])
        assert stored is not None and stored.state is DeliveryState.FAILED
        ran = await take(store, 1)
        assert all(await end(store, *ran))

        answer = await store.resolve(handler.id, resolved)

        assert (answer.verdict, answer.kept.jobs) == (Verdict.NEW, tuple(new.id for new in made))
        ran += await take(store, 10, WORK, "app:module:other")
        assert sorted(lease.id for lease in ran) == sorted(new.id for new in made)


@pytest.mark.parametrize("by", ["another run", "prune"])
async def test_a_delivery_that_changes_while_its_jobs_are_stored_is_left_alone(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, clock: ManualClock, by: str
) -> None:
    """Two runs of one handler, after a lapsed lease: the first that writes it down has won."""
    async with opened(server.url, clock) as store, opened(server.url, clock) as other:
        handler, first, second = job("app:module:handler"), job(), job()
        # Its answer tells of the job, as people's do: that is no job of the delivery's.
        said = b'{"jobs":["%s"]}' % handler.id.encode()
        failed = kept(state=DeliveryState.FAILED, answer=said)
        await store.receive([Arrival(failed, (handler,))])
        insert = RedisStore.insert

        async def late(self: RedisStore, jobs: Any) -> Any:
            receipts = await insert(self, jobs)
            if self is store and by == "prune":
                clock.advance("31d")
                await other.prune(dead_keep=DAY)
            elif self is store:
                won = Arrival(kept(id=failed.id, answer=said), (first,))
                assert (await other.resolve(handler.id, won)).verdict is Verdict.NEW
            return receipts

        monkeypatch.setattr(RedisStore, "insert", late)
        lost = Arrival(kept(id=failed.id, answer=b"lost"), (second,))

        answer = await store.resolve(handler.id, lost)

        assert answer.verdict is Verdict.DONE
        [stored] = await store.delivery([failed.id])
        assert (stored and stored.jobs) == ((first.id,) if by == "another run" else None)
        [newest] = await store.delivered("app:/hook", ["k"])
        assert newest is not None and newest.answer == said


async def test_a_full_server_resolves_nothing_and_loses_nothing(server: RedisServer) -> None:
    """F25"""
    async with opened(server.url) as store:
        failed = kept("first", state=DeliveryState.FAILED)
        await store.receive([Arrival(failed, (handler := job(),))])
        before = await store.delivery([failed.id])
        server.command("CONFIG", "SET", "maxmemory", "1kb")

        with pytest.raises(StoreUnavailable):
            await store.resolve(handler.id, Arrival(kept("second", id=failed.id)))

        assert await store.delivery([failed.id]) == before
        server.command("CONFIG", "SET", "maxmemory", "0")
        answer = await store.resolve(handler.id, Arrival(kept("second", id=failed.id)))
        assert answer.verdict is Verdict.NEW
        found, _ = await store.deliveries(Letterbox(state=DeliveryState.ACCEPTED, key="second"))
        assert [one.id for one in found] == [failed.id]


async def test_a_delivery_waits_for_its_replicas(server: RedisServer) -> None:
    came = Arrival(kept())
    async with opened(server.url) as store, opened(f"{server.url}?wait=1") as careful:
        await store.receive([came])
        # Also one that is known already: whoever is told so gives it up.
        with pytest.raises(StoreUnavailable, match="0 of 1 replicas"):
            await careful.receive([came])


@pytest.mark.parametrize(("key", "commands"), [(None, 1), ("k", 3)])
async def test_a_batch_of_deliveries_is_one_command_or_three(
    server: RedisServer, key: str | None, commands: int
) -> None:
    async with opened(server.url) as store:
        sources = [f"app:/hook/{n}" for n in range(10)]
        await store.receive([Arrival(kept(endpoint=source)) for source in sources])
        before = server.info("commandstats")["cmdstat_evalsha"]["calls"]

        await store.receive(
            [Arrival(kept(new_id(), endpoint=source), (job(key=key),)) for source in sources * 20]
        )

        assert server.info("commandstats")["cmdstat_evalsha"]["calls"] - before == commands


@pytest.mark.parametrize("seed", range(8))
async def test_one_step_keeps_what_three_would(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Any deliveries, repeated within a batch and later, beside jobs and queues of every kind."""
    chance = random.Random(seed)
    known: list[NewJob] = []
    batches: list[list[Arrival]] = []

    def some_job() -> NewJob:
        if known and chance.random() < 0.1:
            return chance.choice(known)
        known.append(job(chance.choice(QUEUES), priority=chance.randint(0, 2)))
        return known[-1]

    for _ in range(6):
        batches.append([])
        for _ in range(chance.randint(1, 12)):
            name = chance.choice([None, *"abcdefghij"])
            came = kept(
                name,
                endpoint=chance.choice(["app:/one", "app:/two"]),
                generation=chance.randint(-1, 1),
                state=chance.choice([*DeliveryState]) if name else DeliveryState.REFUSED,
                body=chance.choice([b"1", b"2"]),
            )
            jobs = [some_job() for _ in range(chance.choice([0, 1, 1, 3]) if name else 0)]
            batches[-1].append(Arrival(came, tuple(jobs)))

    async def story(prefix: str) -> object:
        async with opened(f"{server.url}?prefix={prefix}") as store:
            told: list[object] = []
            for place, batch in enumerate(batches):
                if place == seed % 6:
                    await store.set_mode([QUEUES[0]], QueueMode.DRAINING, By("ann"))
                if place == seed % 6 + 1:
                    await store.set_mode([QUEUES[0]], QueueMode.OPEN, By("ann"))
                answers = await store.receive(batch)
                told += [(*_alike(one.kept), one.verdict, one.differs) for one in answers]
            letters, _ = await store.deliveries(Letterbox(), limit=200)
            leases = [await take(store, 100, queue) for queue in QUEUES]
            return (
                told,
                [_alike(each) for each in letters],
                [[(one.id, one.keep, one.payload) for one in some] for some in leases],
                [one.id for one in (await store.page(Filter(), limit=200)).jobs],
            )

    one = await story(f"one{seed}")
    with monkeypatch.context() as patch:
        patch.setattr(RedisStore, "_arrive", nothing_done)
        assert one == await story(f"three{seed}")


async def nothing_done(*_: object) -> None:
    """As if it could not be done in one step."""


def _alike(one: Kept) -> tuple[object, ...]:
    return one.id, one.key, one.generation, one.state, one.jobs, one.repeats, one.differs


async def test_a_crowd_of_one_moment_is_listed_to_its_end(server: RedisServer) -> None:
    """What comes out of a spool has come in the same millisecond."""
    async with opened(server.url) as store:
        spooled = [kept(str(n), received_at=1_700_000_000_000) for n in range(2_500)]
        for at in range(0, len(spooled), 500):
            await store.receive([Arrival(one) for one in spooled[at : at + 500]])
        seen: list[str] = []
        cursor = None
        while True:
            found, cursor = await store.deliveries(Letterbox(), cursor=cursor, limit=200)
            seen += [one.id for one in found]
            if cursor is None:
                break

    assert seen == sorted((one.id for one in spooled), reverse=True)


async def leftovers() -> list[str]:
    """Keys of what is on its way between slots."""
    return [key for key in await keyspace(cluster_url()) if key.endswith((":out", ":bundles"))]


async def keyspace(url: str) -> list[str]:
    import redis as client

    if url.startswith("redis+cluster"):
        first = url.partition("//")[2].partition(",")[0]
        with client.RedisCluster.from_url(f"redis://{first}") as nodes:
            return [key.decode() for key in nodes.scan_iter(count=1_000)]
    with client.Redis.from_url(url) as alone:
        return [key.decode() for key in alone.scan_iter(count=1_000)]


# everything at once, watched from outside


KEYS = re.compile(
    r"relevo:(schema|queues|kinds|hooks|\{hook_[0-9a-f]{32}\}:(rows|bodies|again|accepted|rejected"
    r"|ignored|failed|differs|keys|named|threads)|\{workers\}|\{audit\}:audit|\{notes_[a-z0-9_]+\}(:names|:expiry)?"
    r"|\{[a-z0-9_-]+:[a-z0-9_-]+:[a-z0-9_-]+\}(:(jobs|state|all|fresh:[012]|gone|due:[012]|leases|waiting|parked|held"
    r"|dead|cancelled|done|past|parks|keys|ever|history|results|notes|before|out|bundles|groups|prints"
    r"|remembered|stood|joins|newest|quiet|behind|logs|logged|latest:[0-9a-f]{32}"
    r"|laned|lanes|tats|turn:[012]|rest:[012]|effects|concluded|audit|park:[0-9a-f]{40}"
    r"|pending:[0-9a-f]{32}|group:[0-9a-f]{40}|effects:[0-9a-f]{40}|lane:[0-9a-f]{32}:[012]"
    r"|line:[0-9a-f]{32}|told:[0-9a-f]{32}|grown|tallies))?)"
)


async def a_life_of_keys(store: RedisStore, queue: str) -> None:
    """Jobs that are joined, remembered and replaced."""
    first, second = (
        job(queue, key="k", digest=b"\0%d" % n, remember=LEASE, keep=0, cause="\ud800")
        for n in range(2)
    )
    assert [one.differs for one in await store.insert([first, second])] == [False, True]
    newest = [job(queue, key="n", unique="latest", remember=LEASE) for _ in range(3)]
    await store.insert(newest)
    lanes = Want(queue=queue, lane_rate=(9, 1_000), rate=(50, 1_000))
    leases = await take(store, 9, lanes)
    assert {lease.id for lease in leases} == {first.id, newest[2].id}
    (found,) = await store.find([first.id])
    assert found is not None and found.joins[0].cause == "\ud800"
    await store.insert([job(queue, key="n", unique="latest") for _ in range(3)])
    await store.insert([job(queue, lane="l")])
    assert len(await take(store, 9, lanes)) == 1
    assert await end(store, *leases) == [True] * 2
    answers = [(one.id, one.verdict) for one in await store.insert([first, second])]
    assert answers == [(first.id, Verdict.DONE)] * 2


async def a_full_life(store: RedisStore) -> None:
    """Every verb, with every kind of job."""
    odd = "a\x00b:{c}*\n\ud800"
    child, sibling = job(lane=odd), job("app:module:other", key=odd, unique="forever")
    parent = job(after=(After(child.id), After(sibling.id, "continue")), bundle=new_id())
    later = job(delay=60_000, priority=0)
    await store.insert([child, sibling, parent, later, *[job(keep=0) for _ in range(6)]])
    ordered = Want(queue=WORK, limit=20, lane_limit=2, rate=(50, 1_000), lane_rate=(9, 1_000))
    leases = await take(store, 20, ordered, "app:module:other")
    assert len(leases) == 8
    assert await store.extend(leases, LEASE) == [True] * 8
    ends = [State.DONE, State.DEAD, State.PARKED, State.HELD, State.SCHEDULED, State.CANCELLED]
    endings = [
        Ending(lease=lease, state=ends[n % 6], park=odd, result=b"1", delay=1)
        for n, lease in enumerate(leases)
    ]
    assert await store.settle(endings) == [True] * 8
    ids = [lease.id for lease in leases]
    await a_life_of_keys(store, "app:module:keys")
    page = await store.page(Filter(text="{"), limit=3)
    await store.page(Filter(text="{"), cursor=page.cursor)
    await store.page(Filter(park=odd))
    await store.count(Filter(key=odd))
    await store.groups()
    await store.edit([Edit(id=id, priority=2, payload=b"[]") for id in ids], ANN)
    await store.unpark(odd)
    await store.retry([*ids, parent.id], ANN)
    await store.discard(ids, ANN)
    await store.cancel([later.id, ids[0]], ANN)
    arrivals = [Arrival(kept(endpoint=odd, thread=odd), (job(keep=0), job("app:module:other")))]
    arrivals += [Arrival(kept(state.value, state=state)) for state in DeliveryState]
    arrivals.append(Arrival(kept("late", state=DeliveryState.FAILED), (handler := job(),)))
    assert {one.verdict for one in await store.receive(arrivals)} == {Verdict.NEW}
    await store.receive(arrivals[:1])
    late = Arrival(kept("found", id=arrivals[-1].kept.id, endpoint="app:/hook"), (job(),))
    assert (await store.resolve(handler.id, late)).verdict is Verdict.NEW
    assert await store.delivered(odd, ["k"])
    assert len((await store.deliveries(Letterbox(text="body", thread=odd)))[0]) == 1
    assert len((await store.deliveries(Letterbox(), limit=1))[0]) == 1
    assert await store.delivery([arrivals[0].kept.id])
    await store.set_mode([WORK, "app:module:empty"], QueueMode.PAUSED, ANN)
    effect = Effect(job=child.id, queue=WORK, name=odd, key=odd)
    await store.intend([effect])
    await store.conclude([Effect(**{**_fields(effect), "state": EffectState.CONFIRMED})], by=ANN)
    assert (await store.effects(text=odd))[0]
    await store.remember(
        [Note(kind=odd, name=odd, value=b"1", ttl=5), Note(kind="k", name="", value=b"1")]
    )
    assert await store.recall("k", [""])
    await store.notes("k")
    await store.forget("k", [""])
    await store.beat(WorkerInfo(id=odd, host="h", pid=1, queues=[], concurrency=1), 1)
    assert await store.workers()
    await store.leave(odd)
    await store.audits()
    await store.tally()
    await store.rescue(worker="w1")
    await store.erase([*ids, child.id], [arrivals[0].kept.id], ANN, act="a")
    await store.prune(dead_keep=0)
    await store.wait([WORK], 0.05)
    await store.now()
    await store.check()
    await store.migrate()


def _fields(effect: Effect) -> dict[str, Any]:
    return {name: getattr(effect, name) for name in effect.__struct_fields__}


@pytest.mark.xdist_group("cluster")
@pytest.mark.parametrize("kind", ["redis", "cluster"])
async def test_every_key_is_one_of_ours(clock: ManualClock, kind: str) -> None:
    """C31"""
    async with fresh_store(clock, cluster=kind == "cluster") as store:
        await a_full_life(store)
        keys = await keyspace(cluster_url() if kind == "cluster" else redis_url())

    assert len(keys) > 20
    assert [key for key in keys if not KEYS.fullmatch(key)] == []


LASTING = re.compile(
    r"relevo:(schema|queues|hooks|\{hook_[0-9a-f]{32}\}:(rows|keys)|\{audit\}:audit"
    r"|\{app:module:[a-z-]+\}(:(ever|audit))?)"
)


@pytest.mark.xdist_group("cluster")
@pytest.mark.parametrize("kind", ["redis", "cluster"])
async def test_what_is_erased_leaves_no_key_behind(clock: ManualClock, kind: str) -> None:
    """C23: nothing but hashes of keys, answers, and what people did."""
    async with fresh_store(clock, cluster=kind == "cluster") as store:
        came = kept(thread="t")
        turned_away = kept("k", state=DeliveryState.REFUSED)
        new = job(key="k", unique="forever", lane="l", thread="t")
        await store.receive([Arrival(came, (new,)), Arrival(turned_away), Arrival(kept())])
        want = Want(queue=WORK, lane_limit=1)
        assert await ending(store, await take_one(store, want), State.SCHEDULED, failure=BOOM)
        lease = await take_one(store, want)
        effect = Effect(job=new.id, queue=WORK, name="e", key="k", state=EffectState.CONFIRMED)
        await store.intend([effect])
        await store.conclude([effect])
        assert await ending(store, lease, result=b"1")
        dead = await make(store, State.DEAD, "app:module:dead", key="k")
        cancelled = await make(store, State.WAITING, "app:module:wait")
        [waiting] = (await store.page(Filter(queue="app:module:wait-child"))).jobs
        await store.cancel([cancelled, waiting.id], ANN)

        ids = [new.id, dead, cancelled, waiting.id]
        assert await store.erase(ids, [came.id, turned_away.id], ANN, act="a") == (4, 2)

        keys = await keyspace(cluster_url() if kind == "cluster" else redis_url())
    assert [key for key in keys if not LASTING.fullmatch(key)] == []


async def test_a_queue_with_a_foreign_name_gets_no_key(clock: ManualClock) -> None:
    """B30"""
    async with fresh_store(clock) as store:
        for name in ("", "a", "a:b:c:d", "{a}:b:c", "a:b:c\n", "*", "a:b:" + "c" * 130):
            with pytest.raises(DefinitionError):
                await store.insert([job(name)])
            with pytest.raises(DefinitionError):
                await take(store, 1, name)
        assert await keyspace(redis_url()) == ["relevo:schema"]


async def test_a_restricted_user_is_enough(server: RedisServer) -> None:
    """C34"""
    import relevo.stores.redis as package

    words = (package.__doc__ or "").split()
    first = words.index("SETUSER")
    rules = [word for word in words[first + 2 :] if word[0] in "+-~&"]
    rules += ["resetkeys", "resetchannels", "~relevo:*", "&relevo:*"]
    newer = [rule for rule in rules if not rule.startswith("+role")]
    with restricted_user(server, "resetkeys", "resetchannels", *newer) as url:
        async with opened(url) as store:
            await a_full_life(store)
            for words_ in (("KEYS", "*"), ("CONFIG", "GET", "*"), ("FLUSHALL",)):
                with pytest.raises(StoreUnavailable, match="does not let"):
                    await store._wire.command(b"x", *words_)


async def test_a_user_that_may_too_little_is_told_so(server: RedisServer) -> None:
    with restricted_user(server, "~relevo:*", "+@all", "-info") as url:
        store = RedisStore(url)
        with pytest.raises(SettingsError, match="INFO"):
            await store.open()
        await store.close()
    with restricted_user(server, "~other:*", "+@all") as url:
        store = RedisStore(url)
        with pytest.raises(StoreUnavailable, match="ACL"):
            await store.open()
        await store.close()


async def test_a_row_edited_by_hand_ends_among_the_dead(server: RedisServer) -> None:
    """B36"""
    async with opened(server.url) as store:
        rows = [b"", b"x", b"\x80\x04K*.", b"1|1|3|0||u||{}\n{}", b"1|1|3|0||u||[1]\n{}", b"{}"]
        jobs = [job() for _ in rows] + [job()]
        await store.insert(jobs)
        for new, row in zip(jobs, rows, strict=False):
            server.command("HSET", f"relevo:{{{WORK}}}:jobs", new.id, row)
        gone = job()
        await store.insert([gone])
        server.command("HDEL", f"relevo:{{{WORK}}}:jobs", gone.id)

        leases = await take(store, 10)

        assert [lease.id for lease in leases] == [jobs[-1].id]
        found = await store.find([new.id for new in jobs])
        assert [one and one.state for one in found[:-1]] == [State.DEAD] * len(rows)
        assert {group.type for group in await store.groups()} == {"Unreadable"}
        assert len((await store.page(Filter())).jobs) == len(jobs)
        assert await end(store, *leases) == [True]


async def test_a_delivery_edited_by_hand_hides_no_other(server: RedisServer) -> None:
    """B36"""
    async with opened(server.url) as store:
        rows = [b"", b"x", b"\x80\x04K*.", b"A|0|200|1|9|9|9|9||{", b"A|x|0|0|0|0|0|0||{}", b"{}"]
        some = [kept(str(n)) for n in range(len(rows) + 1)]
        await store.receive([Arrival(one) for one in some])
        (root,) = {key for key in await keyspace(server.url) if key.endswith(":rows")}
        for one, row in zip(some, rows, strict=False):
            server.command("HSET", root, one.id, row)

        found, _ = await store.deliveries(Letterbox())

        assert [one.id for one in found] == [one.id for one in some[::-1]]
        assert [one.key for one in found] == [some[-1].key, *[None] * len(rows)]
        assert "not one of ours" in found[1].reason
        assert all(await store.delivery([one.id for one in some]))
        with pytest.raises(StoreDamaged):
            await store.receive([Arrival(kept("0"))])
        assert len((await store.deliveries(Letterbox(text="body")))[0]) == len(some)


async def test_deliveries_come_once_through_restarts(server: RedisServer) -> None:
    """F22, F43: whoever delivers tries until it is answered, while the server is killed."""
    async with opened(server.url) as store:
        arrivals: list[Arrival] = []
        restarts = 0

        async def deliver() -> None:
            while restarts < 3:
                one = Arrival(kept(new_id()), (job(), job("app:module:other")))
                arrivals.append(one)
                for _ in range(2):
                    await soon(partial(store.receive, [one]), within=20)

        sending = [asyncio.create_task(deliver()) for _ in range(4)]
        for n in range(3):
            await asyncio.to_thread(until, "deliveries", lambda n=n: len(arrivals) > 30 * (n + 1))
            await asyncio.to_thread(server.restart)
            restarts += 1
        await asyncio.gather(*sending)

        found = await store.delivered("app:/hook", [one.kept.key or "" for one in arrivals])
        assert [one and (one.id, one.jobs) for one in found] == [
            (one.kept.id, tuple(new.id for new in one.jobs)) for one in arrivals
        ]
        assert await store.count(Filter()) == 2 * len(arrivals)


async def test_a_key_of_another_type_is_damage(server: RedisServer) -> None:
    """B37"""
    async with opened(server.url) as store:
        server.command("SET", f"relevo:{{{WORK}}}:jobs", "hello")
        with pytest.raises(StoreDamaged, match="another program"):
            await store.insert([job()])


async def test_a_sleeping_worker_sends_nothing(server: RedisServer) -> None:
    """F49"""
    async with opened(server.url) as store, opened(server.url) as other:
        assert await take(store, 5, *QUEUES) == []
        waiting = asyncio.create_task(store.wait(QUEUES, 60))
        await subscribed(server)
        await asyncio.sleep(0.1)
        before = server.info("stats")["total_commands_processed"]
        await asyncio.sleep(3)
        after = server.info("stats")["total_commands_processed"]
        assert after - before <= 2  # INFO itself, and its connection's greeting
        await other.insert([job(QUEUES[7])])
        async with asyncio.timeout(5):
            await waiting
        assert await asyncio.gather(*(store.wait(QUEUES, 0.5) for _ in range(1))) == [None]


async def test_a_claim_over_many_queues_is_one_command(server: RedisServer) -> None:
    async with opened(server.url) as store:
        await store.insert([job(queue) for queue in QUEUES])
        await take(store, 1, *QUEUES)
        before = server.info("commandstats")["cmdstat_evalsha"]["calls"]

        leases = await take(store, 100, *QUEUES)
        assert all(await end(store, *leases))
        await store.insert([job(queue) for queue in QUEUES])
        await store.rescue()
        await store.find([leases[0].id])

        assert server.info("commandstats")["cmdstat_evalsha"]["calls"] - before == 5


@pytest.mark.parametrize("wanted", [State.DONE, State.READY, State.SCHEDULED, State.DEAD])
async def test_a_crowd_of_one_state_is_read_to_its_end(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, wanted: State
) -> None:
    """F32: jobs of one state are found however many others came in after them."""
    monkeypatch.setattr("relevo.stores.redis.people.CROWD", 10)
    async with fresh_store(clock) as store:
        delay = LEASE if wanted is State.SCHEDULED else 0
        mine = [
            job(queue, delay=delay, priority=n % 3, lane="l" if n % 5 == 0 else None)
            for n, queue in enumerate([WORK, "app:module:other"] * 20)
        ]
        await store.insert(mine)
        if wanted in (State.DONE, State.DEAD):
            leases = await take(store, 100, WORK, "app:module:other")
            await end(store, *leases, state=wanted)
        await store.insert([job(delay=0 if delay else LEASE) for _ in range(50)])
        seen: list[str] = []
        cursor = None
        while True:
            page = await store.page(Filter(states=frozenset({wanted})), cursor=cursor, limit=7)
            seen += [found.id for found in page.jobs]
            assert {found.state for found in page.jobs} <= {wanted}
            if (cursor := page.cursor) is None:
                break

    assert len(seen) == 40
    assert set(seen) == {new.id for new in mine}


@pytest.mark.parametrize("wanted", [State.DONE, State.READY, State.SCHEDULED, State.DEAD])
async def test_a_rare_one_is_found_behind_a_crowd_of_its_state(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, wanted: State
) -> None:
    """A script looks at a thousand at a time; the one that is meant may be behind them."""
    monkeypatch.setattr("relevo.stores.redis.people.CROWD", 10)
    delay = LEASE if wanted is State.SCHEDULED else 0
    async with fresh_store(clock) as store:
        for kind, count in (("Rare", 1), ("Do", 1_000), ("Do", 1_000)):
            await store.insert([job(kind=kind, keep=LEASE, delay=delay) for _ in range(count)])
            if wanted in (State.DONE, State.DEAD):
                await end(store, *await take(store, count), state=wanted)
            clock.advance("1s")
        page = await store.page(Filter(states=frozenset({wanted}), kind="Rare"))

    assert [found.kind for found in page.jobs] == ["Rare"]


async def test_done_jobs_are_paged_by_until_when_they_are_kept(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands that ended at one moment, in many lines; single ones; and some kept less long."""
    monkeypatch.setattr("relevo.stores.redis.people.CROWD", 10)
    until: dict[str, int] = {}
    async with fresh_store(clock) as store:

        async def ended(keep: int, count: int) -> None:
            await store.insert([job(keep=keep) for _ in range(count)])
            leases = await take(store, count)
            assert await end(store, *leases) == [True] * count
            now = await store.now()
            until.update({lease.id: now + keep for lease in leases})

        for _ in range(5):
            await ended(2 * LEASE, 500)
        for keep in (LEASE, 2 * LEASE, 3 * LEASE) * 10:
            clock.advance("1s")
            await ended(keep, 1)
        await ended(2 * LEASE, 700)
        gone = sorted(until)[100:200]
        assert await store.erase(gone, [], ANN, act="a") == (len(gone), 0)
        for id in gone:
            del until[id]
        seen: list[str] = []
        cursor = None
        where = Filter(states=frozenset({State.DONE}))
        while True:
            page = await store.page(where, cursor=cursor, limit=300)
            seen += [found.id for found in page.jobs]
            if (cursor := page.cursor) is None:
                break
        assert await store.count(where) == len(until)

    assert seen == sorted(until, key=lambda id: (until[id], id), reverse=True)


async def test_who_ended_with_a_result_or_a_key_is_in_a_line_with_the_others(
    server: RedisServer, clock: ManualClock
) -> None:
    """A line each would be searched through for every one that a person forgets."""
    root = f"relevo:{{{WORK}}}"
    async with opened(server.url, clock) as store:
        await store.insert([job(keep=LEASE * (1 + n % 2), key=f"k{n}") for n in range(10)])
        leases = await take(store, 10)
        endings = [Ending(lease=lease, state=State.DONE, result=b"1") for lease in leases]
        assert await store.settle([*endings, endings[0]]) == [True] * 10 + [False]

        lines = server.command("LRANGE", f"{root}:past", 0, -1)
        assert [len(line.split()) - 1 for line in lines] == [5, 5]
        assert (await store.tally())[0].counts == {State.DONE: 10}
        clock.advance("61s")
        assert await store.prune(dead_keep=DAY) == 5
        assert await store.erase([lease.id for lease in leases], [], ANN, act="a") == (5, 0)
        assert server.command("EXISTS", f"{root}:past") == 0


async def test_a_line_of_done_jobs_takes_no_live_one_along(
    server: RedisServer, clock: ManualClock
) -> None:
    """Somebody wrote it by hand, or restored half of a store."""
    root = f"relevo:{{{WORK}}}"
    async with opened(server.url, clock) as store:
        ready, later = job(keep=LEASE), job(keep=9 * LEASE)
        await store.insert([later])
        assert await end(store, *await take(store, 1)) == [True]
        await store.insert([ready])
        for line in (f"5 {ready.id} {later.id} {new_id()}", "5", "nonsense", ""):
            server.command("LPUSH", f"{root}:past", line)

        assert await store.prune(dead_keep=1_000) == 0
        found = await store.find([ready.id, later.id])
        assert [one and one.state for one in found] == [State.READY, State.DONE]
        clock.advance("1h")
        assert await store.prune(dead_keep=1_000) == 1
        assert (await store.tally())[0].counts == {State.READY: 1}


async def test_a_wrong_count_of_done_jobs_takes_none_of_them_away(
    server: RedisServer, clock: ManualClock
) -> None:
    root = f"relevo:{{{WORK}}}"
    async with opened(server.url, clock) as store:
        ids = [await make(store, State.DONE, keep=LEASE) for _ in range(3)]
        server.command("HSET", root, "past", "1")
        assert await store.erase(ids[:1], [], ANN, act="a") == (1, 0)
        clock.advance("1h")
        assert await store.prune(dead_keep=1_000) == 2
        assert (await store.tally())[0].counts == {}


async def test_lines_with_nobody_left_are_pruned_some_at_a_time(
    server: RedisServer, clock: ManualClock
) -> None:
    """All others wait while a script runs."""
    root = f"relevo:{{{WORK}}}"
    async with opened(server.url, clock) as store:
        await make(store, State.DONE, keep=LEASE)
        for _ in range(3):
            server.command("LPUSH", f"{root}:past", *["5"] * 5_000)
        clock.advance("1h")
        assert await store.prune(dead_keep=1_000) == 0
        assert server.command("LLEN", f"{root}:past") == 5_001
        assert await store.prune(dead_keep=1_000) == 1


async def test_a_job_costs_less_than_a_kilobyte(server: RedisServer) -> None:
    """F32"""
    async with opened(server.url) as store:
        empty = server.info("memory")["used_memory"]
        count, payload = 10_000, b'"' + b"x" * 200 + b'"'
        for _ in range(count // 1_000):
            await store.insert([job(payload=payload, thread=new_id()) for _ in range(1_000)])
        waiting = server.info("memory")["used_memory"]
        while leases := await take(store, 1_000):
            await end(store, *leases)
        done = server.info("memory")["used_memory"]

        assert (waiting - empty) / count - len(payload) < 1_000
        assert (done - empty) / count - len(payload) < 1_000


async def test_what_is_pruned_leaves_nothing_behind(
    server: RedisServer, clock: ManualClock
) -> None:
    """F48"""
    async with opened(server.url, clock) as store:
        await a_full_life(store)
        await store.set_mode([WORK], QueueMode.OPEN, ANN)
        await store.rescue(worker="w1")
        found = (await store.page(Filter(), limit=200)).jobs
        await store.cancel([one.id for one in found], ANN)
        for _ in ("jobs", "the ids remembered of them"):
            clock.advance("30d")
            while await store.prune(dead_keep=1_000):
                pass

        keys = await keyspace(server.url)
        left = [
            key
            for key in keys
            if not re.fullmatch(
                r".*(:audit|:ever|schema|queues|kinds|\}|hook.*(s|:rows|:keys))", key
            )
        ]
        assert left == []


async def test_what_an_older_version_stored_is_worked_off(server: RedisServer) -> None:
    root = f"relevo:{{{WORK}}}"
    async with opened(server.url) as store:
        now = await store.now()
        ids = [new_id() for _ in range(3)]
        for place, id in enumerate(ids):
            blob = f'{now}|1|3|60000||u||{{"k":"Do"}}\n{{"n":{place}}}\n'.encode()
            server.command("HSET", f"{root}:jobs", id, blob)
            server.command("ZADD", f"{root}:all", now - 9 + place, id)
            server.command("ZADD", f"{root}:due:1", now - 9 + place, id)
        server.command("SADD", "relevo:queues", WORK)
        fresh = job(payload=b'{"n":3}')
        await store.insert([fresh])

        assert await store.edit([Edit(id=ids[1], payload=b'{"n":9}')], ANN) == [True]
        leases = await take(store, 10)
        assert [lease.id for lease in leases] == [*ids, fresh.id]
        assert [lease.payload for lease in leases] == [
            b'{"n":0}\n', b'{"n":9}', b'{"n":2}\n', b'{"n":3}'
        ]  # fmt: skip
        assert await end(store, *leases) == [True] * 4

        # Done ones had all been in a set.
        server.command("RENAME", f"{root}:past", "relevo:lines")
        server.command("HDEL", root, "past", "until")
        server.command("ZADD", f"{root}:done", *(v for lease in leases for v in (now, lease.id)))
        last = job(keep=LEASE)
        await store.insert([last])
        assert await end(store, *await take(store, 1)) == [True]
        done = frozenset({State.DONE})
        assert await store.count(Filter(states=done)) == 5
        assert len((await store.page(Filter(states=done))).jobs) == 5
        assert await store.prune(dead_keep=1_000) == 4
        assert await store.count(Filter(states=done)) == 1


async def test_leases_that_an_older_version_gave_are_kept(
    server: RedisServer, clock: ManualClock
) -> None:
    """Each had one of its own; an old worker goes on for a while beside new ones."""
    root = f"relevo:{{{WORK}}}"
    async with opened(server.url, clock) as store:
        await store.insert([job() for _ in range(8)])
        await take(store, 8)
        leases = await _as_of_old(store, server)
        assert (await store.tally())[0].counts == {State.RUNNING: 8}
        assert await take(store, 1, Want(queue=WORK, limit=8)) == []

        assert await store.rescue() == []
        clock.advance("50s")
        server.command("ZADD", f"{root}:leases", await store.now() + LEASE, leases[2])
        server.command("ZADD", f"{root}:leases", 5, new_id())
        assert await store.rescue() == []
        assert (await store.tally())[0].counts == {State.RUNNING: 8}
        clock.advance("11s")
        assert {one.id for one in await store.rescue()} == {*leases[:2], *leases[3:]}
        clock.advance("50s")
        assert {one.id for one in await store.rescue()} == {leases[2]}
        assert await _claims_left(server) == []


async def test_an_old_worker_reads_the_record_of_a_suspect(
    server: RedisServer, clock: ManualClock
) -> None:
    """A record that it could not read would be no running job: its sweep would drop the claim."""
    of_old = r"^(%u)|(%d+)%+?(%d*)|(%d*)|(%d*)|([%d.]*)|(%x*)|(.*)$"
    read = f"return {{string.match(redis.call('HGET', KEYS[1], ARGV[1]), '{of_old}')}}"
    async with opened(server.url, clock) as store:
        await store.insert([job()])
        (lease,) = await take(store)
        assert await store.isolate([lease]) == [True]

        record = server.command("EVAL", read, 1, f"relevo:{{{WORK}}}:state", lease.id)

        assert (record[0], record[1], record[6]) == (b"R", b"1", str(lease.token).encode())
        assert len(record) == 8
        (held,) = await _as_of_old(store, server)
        assert await store.rescue() == []
        (found,) = await store.find([held])
        assert found is not None
        assert (found.suspicion, found.crashes, found.worker) == (0, 1, "w1")
        assert await store.rescue(worker="w1") == [Rescued(held, WORK, "w1")]


@pytest.mark.parametrize("worker", ["\t", "\t1+1\tw1", "\t\t", "a\t1+1\tb", "1+1"])
async def test_no_name_of_a_worker_is_taken_for_a_suspicion(
    server: RedisServer, worker: str
) -> None:
    async with opened(server.url) as store:
        await store.insert([job()])
        (lease,) = (await store.claim([Want(queue=WORK)], 1, worker, LEASE)).leases
        for crashes in (0, 1, 2):
            (found,) = await store.find([lease.id])
            assert found is not None
            assert (found.suspicion, found.crashes, found.worker) == (0, crashes, worker)
            lease.crashes = crashes
            assert await store.isolate([lease]) == [True]

        assert await store.rescue(worker=worker) == [Rescued(lease.id, WORK, worker)]


async def test_a_lease_of_old_shortens_no_later_one(
    server: RedisServer, clock: ManualClock
) -> None:
    """A person stops what old workers run, and it is taken again before the next sweep."""
    root = f"relevo:{{{WORK}}}"
    async with opened(server.url, clock) as store:
        await store.insert([job(), job()])
        await take(store, 2)
        ids = await _as_of_old(store, server)
        server.command("ZREM", f"{root}:leases", ids[1])
        assert await store.rescue() == []
        for id, length in zip(ids, (LEASE + 1_000, LEASE), strict=True):
            server.command("ZADD", f"{root}:leases", await store.now() + length, id)
        assert await store.cancel(ids, ANN) == [True] * 2
        assert await store.retry(ids, ANN) == [True] * 2
        clock.advance("50s")
        assert len(await take(store, 2)) == 2
        assert await store.rescue() == []
        clock.advance("15s")
        assert await store.rescue() == []
        clock.advance("46s")
        assert len(await store.rescue()) == 2
        assert await _claims_left(server) == []


async def test_a_lease_of_old_counts_once(server: RedisServer, clock: ManualClock) -> None:
    """Also where some leases of a claim have been adopted and others not yet."""
    root = f"relevo:{{{WORK}}}"
    async with opened(server.url, clock) as store:
        await store.insert([job() for _ in range(3)])
        await take(store, 3)
        kept, adopted, late = await _as_of_old(store, server)
        server.command("ZREM", f"{root}:leases", late)
        assert await store.rescue() == []
        server.command("ZADD", f"{root}:leases", await store.now() + LEASE, late)
        assert await store.cancel([late, adopted], ANN) == [True] * 2
        assert (await store.tally())[0].counts == {State.RUNNING: 1, State.CANCELLED: 2}
        clock.advance("61s")
        assert [one.id for one in await store.rescue()] == [kept]
        assert await _claims_left(server) == []


async def test_what_many_old_workers_extend_is_not_taken_from_them(
    server: RedisServer, clock: ManualClock
) -> None:
    """More leases than one sweep adopts."""
    root = f"relevo:{{{WORK}}}"
    async with opened(server.url, clock) as store:
        await store.insert([job()])
        await take(store, 1)
        (held,) = await _as_of_old(store, server)
        assert await store.rescue() == []
        soon = await store.now() + LEASE
        rows = [word for _ in range(1_000) for word in (soon, new_id())]
        server.command("ZADD", f"{root}:leases", *rows, soon + LEASE, held)
        clock.advance("70s")
        assert await store.rescue() == []
        clock.advance("51s")
        assert [one.id for one in await store.rescue()] == [held]
        assert await _claims_left(server) == []


async def _as_of_old(store: RedisStore, server: RedisServer) -> list[str]:
    """Makes of the running jobs what version 3 wrote down for them; their ids."""
    root = f"relevo:{{{WORK}}}"
    ids = [one.id for one in (await store.page(Filter(states=frozenset({State.RUNNING})))).jobs]
    for id in ids:
        record = server.command("HGET", f"{root}:state", id).split(b"|")
        server.command("ZADD", f"{root}:leases", record[3], id)
        record[3] = b""
        server.command("HSET", f"{root}:state", id, b"|".join(record))
    server.command("DEL", *(f"{root}:{part}" for part in CLAIMS))
    server.command("HDEL", root, "running")
    return ids


async def _claims_left(server: RedisServer) -> list[str]:
    parts = [*CLAIMS, "leases"]
    return [part for part in parts if server.command("EXISTS", f"relevo:{{{WORK}}}:{part}")]


@pytest.mark.parametrize("how", ["released", "given back"])
@pytest.mark.parametrize("due", ["delay", "run_at", "retried", "both"])
async def test_what_never_began_is_as_old_as_before(
    server: RedisServer, clock: ManualClock, due: str, how: str
) -> None:
    """Nothing but its header says when a job was due that had never been taken."""
    async with opened(server.url, clock) as store:
        run_at = await store.now() + LEASE if due in ("run_at", "both") else None
        new = job(run_at=run_at, delay=0 if due == "run_at" else LEASE, key='"d":9,"r":9')
        await store.insert([new])
        if due == "retried":
            clock.advance("61s")
            (lease,) = await take(store)
            again = Ending(lease=lease, state=State.SCHEDULED, delay=LEASE)
            assert await store.settle([again]) == [True]
        clock.advance("90s")
        before = await store.find([new.id])
        late = (await store.tally())[0].late
        (lease,) = await take(store)

        if how == "released":
            assert await store.settle([released(lease)]) == [True]
        else:
            assert len(await store.rescue(worker="w1")) == 1

        assert await store.find([new.id]) == before
        assert abs(((await store.tally())[0].late or 0) - (late or 0)) < 1_000


async def test_a_parent_that_never_began_is_no_older_than_its_claim(
    server: RedisServer, clock: ManualClock
) -> None:
    async with opened(server.url, clock) as store:
        child = job()
        parent = job(after=(After(child.id),))
        await store.insert([child, parent])
        clock.advance("1h")
        assert await end(store, *await take(store)) == [True]
        (lease,) = await take(store)

        assert await store.settle([released(lease)]) == [True]

        assert ((await store.tally())[0].late or 0) < LEASE
        assert (await take(store))[0].id == parent.id


async def test_a_claim_is_gone_once_its_jobs_have_ended(
    server: RedisServer, clock: ManualClock
) -> None:
    async with opened(server.url, clock) as store:
        await store.insert([job(keep=keep) for keep in (0, 0, LEASE, LEASE, LEASE, LEASE)])
        leases = await take(store, 6)
        assert await _claims_left(server) == list(CLAIMS)
        plain, rich, kept, dead, cancelled, lapsed = leases
        assert await end(store, plain, kept) == [True] * 2
        ending = Ending(lease=rich, state=State.DONE, result=b"1")
        assert await store.settle([ending]) == [True]
        assert await end(store, dead, state=State.DEAD) == [True]
        await store.cancel([cancelled.id], ANN)
        assert await _claims_left(server) == list(CLAIMS)
        clock.advance("61s")
        assert [one.id for one in await store.rescue()] == [lapsed.id]
        assert await _claims_left(server) == []


async def test_a_claim_forgets_those_that_ended_when_the_others_are_extended(
    server: RedisServer, clock: ManualClock
) -> None:
    """Else one that runs for hours drags along a thousand that were taken with it."""
    root = f"relevo:{{{WORK}}}"
    async with opened(server.url, clock) as store:
        await store.insert([job() for _ in range(9)])
        one, other, *ended = await take(store, 9)
        assert await end(store, *ended) == [True] * 7
        assert await store.extend([one], LEASE) == [True]
        clock.advance("1s")
        assert await store.extend([one, other, one], LEASE) == [True] * 3
        assert server.command("HVALS", f"{root}:taken") == [f'["{one.id}","{other.id}"]'.encode()]
        assert (await store.tally())[0].counts[State.RUNNING] == 2
        assert await end(store, one) == [True]
        clock.advance("61s")
        assert [found.id for found in await store.rescue()] == [other.id]
        assert await _claims_left(server) == []


async def test_each_lease_of_a_claim_lapses_in_its_time(
    server: RedisServer, clock: ManualClock
) -> None:
    async with opened(server.url, clock) as store:
        await store.insert([job() for _ in range(3)])
        kept, short, other = await take(store, 3)
        assert await store.extend([short], 20_000) == [True]
        clock.advance("21s")
        assert [one.id for one in await store.rescue()] == [short.id]
        clock.advance("29s")
        assert await store.extend([kept, kept], LEASE) == [True] * 2
        clock.advance("11s")
        assert [one.id for one in await store.rescue()] == [other.id]
        clock.advance("50s")
        assert [one.id for one in await store.rescue()] == [kept.id]


async def test_a_claim_that_was_damaged_by_hand_hinders_nobody(
    server: RedisServer, clock: ManualClock
) -> None:
    root = f"relevo:{{{WORK}}}"
    async with opened(server.url, clock) as store:
        for text in ("nonsense", "5", "", "{}", "[null, [], 5]"):
            await store.insert([job(), job()])
            leases = await take(store, 2)
            server.command("HSET", f"{root}:taken", leases[0].token, text)
            server.command("HSET", f"{root}:left", leases[0].token, "9")
            server.command("HSET", root, "running", "9")
            assert len((await store.page(Filter(states=frozenset({State.RUNNING})))).jobs) == 0
            assert await store.extend(leases, LEASE) == [True] * 2
            assert await end(store, leases[0]) == [True]
            clock.advance("61s")
            assert await store.rescue() == []
            assert await _claims_left(server) == []
            assert await end(store, leases[1]) == [True]
            assert State.RUNNING not in (await store.tally())[0].counts


async def test_a_crowd_of_running_jobs_is_shown_page_by_page(
    server: RedisServer, clock: ManualClock
) -> None:
    async with opened(server.url, clock) as store:
        running: list[str] = []
        for number in range(13):
            await store.insert([job() for _ in range(1_000)])
            leases = await take(store, 1_000)
            running += [lease.id for lease in leases[100:]]
            assert await end(store, *leases[:100]) == [True] * 100
            if number % 3:
                clock.advance("1s")
        seen: list[str] = []
        cursor = None
        where = Filter(states=frozenset({State.RUNNING}))
        while True:
            page = await store.page(where, cursor=cursor, limit=1_000)
            seen += [found.id for found in page.jobs]
            if (cursor := page.cursor) is None:
                break

    assert len(seen) == len(running)
    assert set(seen) == set(running)


async def test_a_key_collects_no_more_than_a_claim_can_put_aside(server: RedisServer) -> None:
    async with opened(server.url) as store:
        first = job(key="k", unique="latest")
        await store.insert([first])
        (lease,) = await take(store)
        others = [job(key="k", unique="latest") for _ in range(1_005)]
        await store.insert(others[:500])
        await store.insert(others[500:])

        tally = (await store.tally())[0].counts
        assert tally == {State.RUNNING: 1, State.SCHEDULED: 1_000, State.CANCELLED: 5}
        (oldest,) = await store.find([others[0].id])
        assert oldest is not None and oldest.note == f"replaced by {others[1_000].id}"
        waiting = frozenset({State.SCHEDULED})
        assert await store.count(Filter(states=waiting, key="k")) == 1_000
        assert len((await store.page(Filter(states=waiting), limit=200)).jobs) == 200
        assert (await store.page(Filter(states=frozenset({State.READY})))).jobs == []

        assert await end(store, lease) == [True]
        assert [lease.id for lease in await take(store, 9)] == [others[-1].id]
        tally = (await store.tally())[0].counts
        assert tally == {State.RUNNING: 1, State.DONE: 1, State.CANCELLED: 1_004}


@pytest.mark.parametrize("lane", [None, "l"])
async def test_order_passes_those_that_a_later_one_replaces(
    server: RedisServer, lane: str | None
) -> None:
    async with opened(server.url) as store:
        want = Want(queue=WORK, ordered=True)

        def of(key: str) -> NewJob:
            return job(lane=lane, key=key, unique="latest")

        jobs = [of("a"), of("b"), of("a"), of("c"), of("b")]
        await store.insert(jobs)
        order: list[str] = []
        while leases := await take(store, 9, want):
            (lease,) = leases
            order.append(lease.id)
            if lease.key == "a" and len(order) == 1:
                jobs.append(of("a"))
                await store.insert([jobs[-1]])
            assert await end(store, lease) == [True]
        assert order == [jobs[n].id for n in (2, 3, 4, 5)]


async def test_jobs_alike_differ_in_their_last_byte(server: RedisServer) -> None:
    """Lua hashes a few bytes of a long text; a thousand that it takes for one are compared each."""
    async with opened(server.url) as store:
        payload = b'{"text":"' + b"x" * 300 + b'"}'
        new = [job(payload=payload) for _ in range(512)]
        await store.insert(new)
        blobs = server.command("HVALS", f"relevo:{{{WORK}}}:jobs")
        assert len({blob[-1] for blob in blobs}) == 256
        found = await store.find([new[0].id, new[-1].id])
        assert [one and one.payload for one in found] == [payload, payload]


async def test_a_long_line_of_cancelled_jobs_is_passed_piece_by_piece(server: RedisServer) -> None:
    """One script must not hold the server for as long as there are jobs."""
    async with opened(server.url) as store:
        new = [job() for _ in range(12_000)]
        for start in range(0, len(new), 1_000):
            await store.insert(new[start : start + 1_000])
        gone = [one.id for one in new[1:-1]]
        for start in range(0, len(gone), 1_000):
            assert all(await store.cancel(gone[start : start + 1_000], ANN))
        [first] = await take(store, 1)
        rounds = 0
        while not (leases := await take(store, 10)):
            rounds += 1
            assert rounds < 100
        assert [first.id, leases[0].id] == [new[0].id, new[-1].id]
        assert rounds > 5
        assert server.command("EXISTS", f"relevo:{{{WORK}}}:gone") == 0


async def test_the_oldest_ready_job_is_none_that_was_cancelled(
    server: RedisServer, clock: ManualClock
) -> None:
    async with opened(server.url, clock) as store:
        first, gone, *more = [job() for _ in range(30)]
        await store.insert([first, gone, *more])
        assert all(await store.cancel([one.id for one in (gone, *more)], ANN))
        assert [lease.id for lease in await take(store)] == [first.id]
        [tally] = await store.tally()
        assert (tally.counts.get(State.READY), tally.oldest, tally.late) == (None,) * 3

        clock.advance("1h")
        await store.insert([job()])
        [tally] = await store.tally()
        assert tally.counts[State.READY] == 1
        assert tally.oldest is not None
        assert tally.oldest < 60_000


@pytest.mark.parametrize("key", [None, "k"])
async def test_an_id_that_comes_in_again_is_not_the_one_that_left(
    server: RedisServer, key: str | None
) -> None:
    """The one that left may still be in the list, to be passed over."""
    ready = Filter(states=frozenset({State.READY}))
    async with opened(server.url) as store:
        first, again = job(), job(key=key)
        await store.insert([first, again])
        for _ in range(2):
            assert await store.cancel([again.id], ANN) == [True]
            assert await store.erase([again.id], [], ANN, act="a") == (1, 0)
            assert await store.insert([again]) == [Receipt(again.id, Verdict.NEW)]
        assert {one.id for one in (await store.page(ready)).jobs} == {first.id, again.id}

        assert await store.cancel([again.id], ANN) == [True]
        assert [tally.counts[State.READY] for tally in await store.tally()] == [1]
        assert await store.retry([again.id], ANN) == [True]
        assert await store.edit([Edit(id=again.id, payload=b"1")], ANN) == [True]
        leases = await take(store, 10)
        assert [(lease.id, lease.payload) for lease in leases] == [
            (first.id, b"{}"), (again.id, b"1")
        ]  # fmt: skip
        assert server.command("EXISTS", f"relevo:{{{WORK}}}:gone") == 0


async def test_an_id_that_comes_in_again_hides_no_other(server: RedisServer) -> None:
    ready = Filter(states=frozenset({State.READY}))
    async with opened(server.url) as store:
        new = [job() for _ in range(11_000)]
        for start in range(0, len(new), 1_000):
            await store.insert(new[start : start + 1_000])
        again = new[4_000:4_700]
        ids = [one.id for one in again]
        assert all(await store.cancel(ids, ANN))
        assert await store.erase(ids, [], ANN, act="a") == (len(ids), 0)
        await store.insert(again)
        seen: list[str] = []
        cursor = None
        while True:
            page = await store.page(ready, cursor=cursor, limit=500)
            seen += [one.id for one in page.jobs]
            if (cursor := page.cursor) is None:
                break
        assert sorted(seen) == [one.id for one in new]


async def test_jobs_behind_many_that_left_come_before_later_ones(server: RedisServer) -> None:
    async with opened(server.url) as store:
        first, *gone, second, moved = [job() for _ in range(120)]
        await store.insert([first, *gone, second, moved])
        assert await store.edit([Edit(id=moved.id, payload=b"1")], ANN) == [True]
        assert all(await store.cancel([one.id for one in gone], ANN))
        leases = [lease for _ in range(3) for lease in await take(store)]
        assert [lease.id for lease in leases] == [first.id, second.id, moved.id]


async def test_an_id_of_another_make_is_stored_like_any(server: RedisServer) -> None:
    async with opened(server.url) as store:
        odd = [job(id="order-7"), job(id="é" * 32), job(id="é" * 16), job()]
        for one in odd:
            await store.insert([one])
        assert [lease.id for lease in await take(store, 10)] == [one.id for one in odd]


async def test_ids_of_another_make_are_kept_and_pruned_like_any(clock: ManualClock) -> None:
    async with fresh_store(clock) as store:
        plain = job(keep=LEASE)
        odd = [job(id=id, keep=LEASE) for id in (plain.id + "ff", "order 7", "a 7 " * 8, "\t" * 32)]
        await store.insert([*odd, plain])
        assert all(await end(store, *await take(store, 10)))
        done = Filter(states=frozenset({State.DONE}))

        assert await store.count(done) == 5
        assert await store.erase([plain.id], [], ANN, act="a") == (1, 0)
        page = await store.page(done)
        assert {found.id for found in page.jobs} == {one.id for one in odd}
        clock.advance("1h")
        assert await store.prune(dead_keep=DAY) == 4
        assert await store.count(done) == 0


# Redis is no SQL database


async def test_no_transaction_can_be_joined(clock: ManualClock) -> None:
    async with fresh_store(clock) as store:
        with pytest.raises(MisuseError, match="outbox"):
            await store.insert_within(object(), [job()])
        with pytest.raises(MisuseError, match="outbox"):
            await store.settle_within(object(), [])
        store.committed([WORK])
        async with store.turn():
            assert await store.insert([job()])
