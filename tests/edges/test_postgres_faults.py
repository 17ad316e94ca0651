"""PostgreSQL cut off, killed, locked, full and promoted: nothing lost, every call in time."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from asyncpg import exceptions as pg

from relevo.errors import StoreUnavailable
from relevo.ids import new_id
from relevo.job import After, Ending, Lease, NewJob, Receipt, State, Verdict
from relevo.store import DEADLINE, Arrival, By, DeliveryState, Filter, Kept, Loss, Want
from relevo.stores.postgres.address import parse
from relevo.stores.postgres.lines import Door, Line
from relevo.stores.postgres.store import PostgresStore
from relevo.testing import until
from tests.conformance.steps import (
    BOOM,
    DAY,
    LEASE,
    OTHER,
    WORK,
    add,
    end,
    job,
    look,
    take,
    take_one,
)
from tests.servers.ports import free_port
from tests.servers.postgres import PostgresServer

pytestmark = pytest.mark.xdist_group("postgres")

SLACK = 1.0  # what a busy machine may add to a deadline


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(conf={"max_connections": 40, "deadlock_timeout": "50ms"}) as running:
        yield running


@pytest.fixture
async def proxy(server: PostgresServer) -> AsyncIterator[Proxy]:
    async with Proxy(server.port) as running:
        yield running


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresStore]:
    schema = f"relevo_{time.monotonic_ns()}"
    store = PostgresStore(f"{url}?schema={schema}")
    await store.migrate()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


class Proxy:
    """A wire that can be cut: pass, hole (nothing passes), deaf (no answers), or reset."""

    def __init__(self, target: int) -> None:
        self._mode = "pass"
        self._changed = asyncio.Condition()
        self.port = free_port()
        self._target = target
        self._open: set[asyncio.StreamWriter] = set()

    def url(self, server: PostgresServer) -> str:
        return server.url.replace(str(server.port), str(self.port))

    @property
    def connections(self) -> int:
        return len(self._open) // 2

    async def become(self, mode: str) -> None:
        async with self._changed:
            self._mode = mode
            self._changed.notify_all()

    def reset(self) -> None:
        for writer in tuple(self._open):
            writer.transport.abort()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.reset()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        pumps = (
            asyncio.create_task(self._pump(reader, back, {"hole"})),
            asyncio.create_task(self._pump(there, writer, {"hole", "deaf"})),
        )
        self._open |= {writer, back}
        await asyncio.wait(pumps)
        for end_of_it in (writer, back):
            self._open.discard(end_of_it)
            end_of_it.transport.abort()

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, silent: set[str]
    ) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while data := await source.read(65536):
                async with self._changed:
                    await self._changed.wait_for(lambda: self._mode not in silent)
                sink.write(data)
                await sink.drain()
        sink.transport.abort()


async def eventually(check: Callable[[], Awaitable[bool]], seconds: int) -> float:
    """How long it took to come true."""
    began = time.monotonic()
    await until(check, timeout=f"{seconds}s")
    return time.monotonic() - began


async def surely(call: Callable[[], Awaitable[Any]], seconds: float = 30) -> Any:
    """As a worker does it: again after StoreUnavailable."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return await call()
        except StoreUnavailable:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


async def works(store: PostgresStore) -> bool:
    try:
        return bool(await store.insert([job("app:module:probe")]))
    except StoreUnavailable:
        return False


def verbs(store: PostgresStore, lease: Any) -> list[Callable[[], Awaitable[Any]]]:
    return [
        lambda: store.insert([job()]),
        lambda: store.claim([Want(queue=WORK)], 1, "w", LEASE),
        lambda: store.extend([lease], LEASE),
        lambda: store.settle([Ending(lease=lease, state=State.DONE)]),
        lambda: store.rescue(),
        lambda: store.now(),
        lambda: store.find([lease.id]),
        lambda: store.page(Filter()),
        lambda: store.tally(),
        lambda: store.cancel([new_id()], By("ann")),
        lambda: store.recall("k", ["n"]),
        lambda: store.isolate([lease]),
    ]


async def in_time(call: Callable[[], Awaitable[Any]]) -> bool:
    """Whether it answered; an error must be ours, and neither may be late."""
    began = time.monotonic()
    try:
        await call()
    except StoreUnavailable:
        return False
    finally:
        assert time.monotonic() - began < DEADLINE + SLACK
    return True


async def test_a_silent_server_is_given_up_in_time(server: PostgresServer, proxy: Proxy) -> None:
    """F10"""
    async with opened(proxy.url(server)) as store:
        lease = await take_one_of(store)
        await asyncio.gather(*(in_time(call) for call in verbs(store, lease)[5:]))
        await proxy.become("hole")

        for _ in range(2):
            answers = await asyncio.gather(*(in_time(call) for call in verbs(store, lease)))
            assert not any(answers)

        await proxy.become("pass")
        assert await eventually(lambda: works(store), 10) < 10
        assert await store.settle([Ending(lease=lease, state=State.DONE)]) == [True]


@pytest.mark.parametrize("keep", [0, DAY])
async def test_a_job_whose_insert_was_not_heard_of_runs_once(
    server: PostgresServer, proxy: Proxy, keep: int
) -> None:
    """It is stored and runs; then the connection breaks, on which its insert awaits the answer."""
    async with opened(proxy.url(server)) as store:
        worker = PostgresStore(store.dsn.replace(str(proxy.port), str(server.port)))
        await worker.open()
        await store.insert([job(OTHER)])  # the line is up, and knows its statement
        await proxy.become("deaf")
        new = job(keep=keep)
        sent = asyncio.create_task(store.insert([new]))
        leases: list[Lease] = []

        async def has_run() -> bool:
            leases.extend(await take(worker))
            return bool(leases) and await end(worker, leases[0])

        await until(has_run)
        proxy.reset()
        await proxy.become("pass")

        [answer] = await asyncio.gather(sent, return_exceptions=True)
        is_unsure = isinstance(answer, StoreUnavailable)
        assert is_unsure if keep == 0 else answer == [Receipt(new.id, Verdict.NEW)]
        assert [lease.id for lease in leases] == [new.id]
        assert await take(worker) == []
        await worker.close()


async def test_a_connection_that_comes_after_the_end_is_closed(
    server: PostgresServer, proxy: Proxy
) -> None:
    async with opened(proxy.url(server)) as store:
        await proxy.become("hole")
        late = asyncio.create_task(in_time(lambda: store.insert([job()])))
        await until(lambda: proxy.connections == 2)
    await proxy.become("pass")

    assert not await late
    await until(lambda: proxy.connections == 0)


async def take_one_of(store: PostgresStore) -> Any:
    await add(store)
    return await take_one(store)


async def test_a_claim_nobody_heard_of_is_handed_back(server: PostgresServer, proxy: Proxy) -> None:
    async with opened(proxy.url(server)) as store:
        await store.now()
        await take(store)
        id = await add(store)
        marks = {"suspicion": 2, "crashes": 5}
        [lease] = await take(store, 2)  # fewer than asked for: the next claim is the same statement
        assert await end(store, lease, State.SCHEDULED, spend=False, **marks)
        before = await look(store, id)
        direct = PostgresStore(store.dsn.replace(str(proxy.port), str(server.port)))
        await direct.open()
        await proxy.become("deaf")
        assert not await in_time(lambda: take(store))
        assert (await look(direct, id)).state is State.RUNNING
        await direct.close()
        proxy.reset()
        await proxy.become("pass")

        lease = await surely(lambda: take_one(store))

        assert (lease.id, lease.attempt, lease.suspicion, lease.crashes) == (id, 1, 2, 5)
        assert (await look(store, id)).history == before.history


async def test_a_delivery_whose_answer_was_lost_is_new_all_the_same(
    server: PostgresServer, proxy: Proxy
) -> None:
    """F09: told that it is a duplicate, a handler would believe that somebody else has done it."""
    async with opened(proxy.url(server)) as store:
        came, new = Kept(id=new_id(), endpoint="app:/hook", key="k", answer=b"first"), job()
        await store.receive([Arrival(Kept(id=new_id(), endpoint="app:/hook", key="warm"))])
        await proxy.become("deaf")
        receiving = asyncio.create_task(store.receive([Arrival(came, (new,))]))
        direct = PostgresStore(store.dsn.replace(str(proxy.port), str(server.port)))
        await direct.open()

        async def is_kept() -> bool:
            return await direct.delivered("app:/hook", ["k"]) != [None]

        await eventually(is_kept, 4)
        await proxy.become("pass")
        proxy.reset()
        (answer,) = await receiving

        (kept,) = await direct.delivered("app:/hook", ["k"])
        await direct.close()
        assert (answer.verdict, answer.kept.jobs) == (Verdict.NEW, (new.id,))
        assert kept is not None
        assert (kept.id, kept.repeats) == (came.id, 0)


async def test_a_resolution_whose_answer_was_lost_is_new_all_the_same(
    server: PostgresServer, proxy: Proxy
) -> None:
    """F09"""
    async with opened(proxy.url(server)) as store:
        handler, new = job(OTHER), job()
        failed = Kept(
            id=new_id(),
            endpoint="app:/hook",
            key="k",
            state=DeliveryState.FAILED,
            jobs=(handler.id,),
        )
        await store.receive([Arrival(failed, (handler,))])
        well = Arrival(Kept(id=failed.id, endpoint="app:/hook", key="k", answer=b"well"), (new,))
        assert (await store.resolve(new_id(), well)).verdict is Verdict.DONE  # the line is warm
        await proxy.become("deaf")
        resolving = asyncio.create_task(store.resolve(handler.id, well))
        direct = PostgresStore(store.dsn.replace(str(proxy.port), str(server.port)))
        await direct.open()

        async def is_stored() -> bool:
            return await direct.find([new.id]) != [None]

        await eventually(is_stored, 4)
        await proxy.become("pass")
        proxy.reset()
        answer = await resolving

        late = await direct.resolve(handler.id, well)
        counted = await direct.count(Filter(queue=WORK))
        await direct.close()
        assert (answer.verdict, answer.kept.jobs) == (Verdict.NEW, (new.id,))
        assert (late.verdict, counted) == (Verdict.DONE, 1)


async def test_connections_reset_all_the_time_lose_and_double_nothing(
    server: PostgresServer, proxy: Proxy
) -> None:
    """F09"""
    async with opened(proxy.url(server)) as store:
        jobs = [job() for _ in range(120)]

        async def cut() -> None:
            while True:
                await asyncio.sleep(0.3)
                proxy.reset()

        cutting = asyncio.create_task(cut())
        for new in jobs:
            await surely(lambda new=new: store.insert([new]))
        ran: list[str] = []
        while len(set(ran)) < len(jobs):
            claim = await surely(lambda: store.claim([Want(queue=WORK)], 20, "w", 2_000))
            for lease in claim.leases:
                ran.append(lease.id)
                await surely(lambda one=lease: end(store, one))
            if not claim.leases:
                await surely(lambda: store.rescue())
                await asyncio.sleep(0.05)
        cutting.cancel()

        counts = (await surely(lambda: store.tally()))[0].counts
        assert counts == {State.DONE: len(jobs)}
        assert set(ran) == {new.id for new in jobs}


async def test_every_backend_terminated_the_pool_heals(server: PostgresServer) -> None:
    """F14"""
    async with opened(server.url) as store:
        lease = await take_one_of(store)
        for _ in range(5):
            server.sql(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where application_name = 'relevo'"
            )
            for call in verbs(store, lease):
                await surely(call, 5)


async def test_a_server_killed_and_back_has_lost_nothing() -> None:
    """F14"""
    with PostgresServer() as server:
        async with opened(server.url) as store:
            acked: list[NewJob] = []
            for _ in range(2):
                before = len(acked)
                producing = asyncio.create_task(produce(store, acked))
                await until(lambda before=before: len(acked) > before + 20)
                server.kill()
                await asyncio.wait({producing})
                assert not await in_time(lambda: take(store))

                server.restart()
                assert await eventually(lambda: works(store), 10) < 10

            found = await store.find([new.id for new in acked])
            assert None not in found


async def produce(store: PostgresStore, acked: list[NewJob]) -> None:
    with contextlib.suppress(StoreUnavailable):
        while True:
            new = job()
            await store.insert([new])
            acked.append(new)


async def test_a_promoted_standby_is_followed_and_has_it_all() -> None:
    """F15"""
    with PostgresServer() as primary:
        standby = primary.standby()
        url = primary.url.replace(
            f"127.0.0.1:{primary.port}", f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
        )
        async with opened(url) as store:
            await store.wait([WORK], 0.2)
            acked: list[NewJob] = []
            producing = asyncio.create_task(produce(store, acked))
            await until(lambda: len(acked) > 20)
            primary.kill()
            began = time.monotonic()
            await asyncio.wait({producing})
            standby.promote()

            await eventually(lambda: works(store), 15)
            assert time.monotonic() - began < 15
            assert acked
            assert None not in await store.find([new.id for new in acked])
            waiting = asyncio.create_task(store.wait([WORK], 20))
            await add(store.spawn())
            await asyncio.wait_for(waiting, 15)


async def test_a_locked_table_costs_no_more_than_the_deadline(server: PostgresServer) -> None:
    """F16"""
    async with opened(server.url) as store:
        lease = await take_one_of(store)
        locker = await asyncpg.connect(server.admin_url)
        transaction = locker.transaction()
        await transaction.start()
        await locker.execute(f"lock table {store._sql('relevo.jobs')} in access exclusive mode")

        calls = [call for n, call in enumerate(verbs(store, lease)) if n not in (5, 10)]
        assert not any(await asyncio.gather(*(in_time(call) for call in calls)))

        await transaction.rollback()
        await locker.close()
        assert await eventually(lambda: works(store), 5) < 5
        assert await end(store, lease)


async def test_a_forgotten_transaction_blocks_only_its_own_key(server: PostgresServer) -> None:
    """F16"""
    async with opened(server.url) as store:
        forgotten = await asyncpg.connect(server.url)
        transaction = forgotten.transaction()
        await transaction.start()
        await store.insert_within(forgotten, [job(key="taken")])

        blocked = asyncio.create_task(in_time(lambda: store.insert([job(key="taken")])))
        other = store.spawn()
        await add(other, key="free")
        assert len(await take(store)) == 1
        assert await blocked is False
        await transaction.rollback()
        await forgotten.close()
        assert await in_time(lambda: store.insert([job(key="taken")]))
        await other.close()


async def test_who_waits_for_a_retry_does_not_retry_again(server: PostgresServer) -> None:
    """F38: the time is read under the lock, or what was made ready meanwhile would seem future."""
    async with opened(server.url) as store:
        id = await add(store)
        await end(store, await take_one(store), State.DEAD)
        first = await asyncpg.connect(server.url)
        async with first.transaction():
            await first.execute(store._sql("select from relevo.ended for update"))
            second = asyncio.create_task(store.retry([id], By("ann")))
            waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"

            async def is_waiting() -> bool:
                return int(server.sql(waiting)) > 0

            await eventually(is_waiting, 5)
            call = store._sql("select relevo.retry_jobs(0, array[$1::uuid], 'bob', '', 0)")
            assert len(await first.fetchval(call, id)) == 1
        await first.close()

        assert await second == [False]
        assert [row.who for row in (await store.audits(target=id))[0]] == ["bob"]


async def test_too_many_connections_are_waited_for_and_none_leaks(server: PostgresServer) -> None:
    """F16"""
    async with opened(server.url) as store:
        crowd: list[Any] = []
        with contextlib.suppress(pg.TooManyConnectionsError):
            while True:
                crowd.append(await asyncpg.connect(server.admin_url))
        handle = store.spawn()
        assert not await in_time(lambda: handle.insert([job()]))
        for one in crowd:
            await one.close()
        await eventually(lambda: works(handle), 10)
        await handle.close()

        for _ in range(100):
            handle = store.spawn()
            await handle.open()
            await add(handle)
            await handle.find([])
            await handle.close()
        count = "select count(*) from pg_stat_activity where application_name = 'relevo'"

        async def few() -> bool:
            return int(server.sql(count)) <= 8

        await eventually(few, 10)


async def test_deadlocks_and_serialisation_failures_are_tried_again(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F17"""
    plain = Line._fetch
    calls = 0

    async def faulty(self: Line, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise pg.DeadlockDetectedError("injected")
        if calls % 5 == 0:
            raise pg.SerializationError("injected")
        return await plain(self, *args)

    async with opened(server.url) as store:
        monkeypatch.setattr(Line, "_fetch", faulty)
        for _ in range(15):
            id = await add(store)
            lease = await take_one(store)
            assert (lease.id, lease.attempt) == (id, 1)
            assert await end(store, lease)
        assert calls > 45


async def test_batches_that_cross_each_other_all_get_in(server: PostgresServer) -> None:
    """F17: the same keys in opposite orders, from four processes."""
    async with opened(server.url) as store:
        handles = [store, *(store.spawn() for _ in range(3))]
        for round in range(5):
            keys = [f"{round}-{n}" for n in range(40)]
            batches = [keys, keys[::-1], keys[::2] + keys[1::2], keys[20:] + keys[:20]]
            answers = await asyncio.gather(
                *(
                    handle.insert([job(key=key, unique="forever") for key in batch])
                    for handle, batch in zip(handles, batches, strict=True)
                )
            )
            stored = {
                (key, answer.id)
                for batch, given in zip(batches, answers, strict=True)
                for key, answer in zip(batch, given, strict=True)
            }
            assert len(stored) == len(keys)
        for handle in handles[1:]:
            await handle.close()


async def test_who_ends_extends_rescues_and_cancels_the_same_jobs_never_crosses(
    server: PostgresServer,
) -> None:
    """F17: endings of every kind in one batch, of jobs with and without parents and lanes."""
    chance = random.Random(17)
    async with opened(server.url) as store:
        life, keeper, person = handles = [PostgresStore(store.dsn) for _ in range(3)]
        before = await deadlocks(server)
        for _ in range(40):
            children = [job(lane=str(n % 5), attempts=1 + n % 2) for n in range(60)]
            parents = [
                job(OTHER, after=tuple(After(child.id, "fail") for child in children[n::4]))
                for n in range(4)
            ]
            await store.insert([*children, *parents, *(job(attempts=1 + n % 2) for n in range(60))])
            leases = await take(store, 200)
            chance.shuffle(leases)
            endings = [ending_of(lease, n) for n, lease in enumerate(leases)]
            mine = [lease.id for lease in leases]
            losses = [Loss(id=id, failure=BOOM) for id in mine[::3]]
            await asyncio.gather(
                store.settle(endings[:40]),
                life.extend(leases, LEASE),
                life.extend(leases, 0),
                keeper.settle(endings[40:80]),
                keeper.rescue(),
                keeper.isolate(leases),
                keeper.rescue(worker="w1", limit=20, losses=losses),
                person.cancel([*mine[60:100], *(parent.id for parent in parents)], By("ann")),
            )
            await asyncio.gather(store.settle(endings[80:]), keeper.rescue())
            left = [found.id for found in (await store.page(Filter(), limit=200)).jobs]
            await person.cancel(left, By("ann"))
        for handle in handles:
            await handle.close()
    await until(lambda: no_backends(server))
    assert await deadlocks(server) == before


def ending_of(lease: Lease, n: int) -> Ending:
    state = (State.DONE, State.SCHEDULED, State.DEAD, State.PARKED, State.CANCELLED)[n % 5]
    failure = BOOM if state is State.DEAD else None
    park = "breaker:x" if state is State.PARKED else None
    return Ending(lease=lease, state=state, failure=failure, park=park)


async def deadlocks(server: PostgresServer) -> int:
    return int(server.sql("select sum(deadlocks) from pg_stat_database"))


async def no_backends(server: PostgresServer) -> bool:
    """Whoever has left has told what it counted."""
    told = server.sql("select count(*) from pg_stat_activity where application_name = 'relevo'")
    return int(told) == 0


async def test_a_half_open_connection_is_noticed(server: PostgresServer) -> None:
    """F12: the kernel is told to ask after 5 s, and to give up 6 s later."""
    async with opened(server.url) as store:
        await store.now()
        line = store._upkeep._lines[0]
        assert line._connection is not None
        inner = line._connection._transport.get_extra_info("socket")
        with socket.fromfd(inner.fileno(), inner.family, inner.type) as same:
            assert same.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            idle = same.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
            each = same.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
            tries = same.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
            assert idle + each * tries <= 15


async def test_a_full_disk_is_unavailable_not_broken(server: PostgresServer) -> None:
    """F20: what PostgreSQL says when it cannot extend a file."""
    async with opened(server.url) as store:
        server.sql(
            f"create function {store._sql('relevo.full')}() returns trigger language plpgsql as "
            "$$ begin raise disk_full; end $$; "
            f"create trigger full_disk before insert on {store._sql('relevo.jobs')} "
            f"execute function {store._sql('relevo.full')}()"
        )
        with pytest.raises(StoreUnavailable):
            await store.insert([job()])
        assert (await store.page(Filter())).jobs == []
        server.sql(f"drop trigger full_disk on {store._sql('relevo.jobs')}")
        assert await works(store)


def test_a_server_does_not_outlive_the_process_that_started_it(tmp_path: Path) -> None:
    script = (
        "import sys, time; from tests.servers.postgres import PostgresServer; "
        "server = PostgresServer().start(); "
        "print(server.pid, server.data.parent, flush=True); time.sleep(600)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    )
    assert child.stdout is not None
    pid, home = child.stdout.readline().split()
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()

    deadline = time.monotonic() + 15
    while Path(home).exists() or alive(int(pid)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("steps", range(12))
async def test_an_opening_that_is_broken_off_leaves_no_error_behind(
    server: PostgresServer, steps: int
) -> None:
    """A store may be closed while it connects, at whatever step of the driver's."""
    told: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: told.append(context))
    try:
        opening = asyncio.create_task(Door(parse(server.url)).open())
        for _ in range(steps):
            await asyncio.sleep(0)
        opening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            (await opening).terminate()
        del opening
        for _ in range(3):  # the transport closes in steps of its own
            await asyncio.sleep(0)
        gc.collect()
    finally:
        loop.set_exception_handler(before)
    assert told == []
