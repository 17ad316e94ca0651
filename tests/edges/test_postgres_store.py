"""What only the PostgreSQL store has: its address, schema, statements, transactions and upkeep."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text as sql_text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from relevo.errors import MisuseError, SchemaMismatch, SettingsError, StoreError, StoreUnavailable
from relevo.ids import new_id
from relevo.job import Ending, Failure, State, Verdict
from relevo.store import Arrival, By, Filter, Kept, Loss, QueueMode, Want
from relevo.stores.postgres import leases as leases_module
from relevo.stores.postgres import people, schema
from relevo.stores.postgres.address import parse
from relevo.stores.postgres.store import PostgresStore
from relevo.stores.postgres.text import clean, restore
from relevo.testing import ManualClock, until
from tests.conformance.steps import (
    HOUR,
    LEASE,
    WORK,
    add,
    end,
    job,
    look,
    put,
    state,
    take,
    take_id,
    take_one,
)
from tests.faults.later import knowing
from tests.servers.postgres import fresh_store, postgres_url

pytestmark = pytest.mark.xdist_group("postgres")


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[PostgresStore]:
    async with fresh_store(clock) as opened:
        yield opened


@pytest.fixture
async def raw() -> AsyncIterator[Any]:
    connection = await asyncpg.connect(postgres_url())
    yield connection
    await connection.close()


@contextlib.asynccontextmanager
async def empty_schema(raw: Any, **options: object) -> AsyncIterator[PostgresStore]:
    """A store in a schema that does not exist yet."""
    name = f"relevo_new_{time.monotonic_ns()}"
    handle = PostgresStore(with_options(postgres_url(), schema=name, **options))
    try:
        yield handle
    finally:
        await handle.close()
        await raw.execute(f'drop schema if exists "{name}" cascade')


def with_options(url: str, **options: object) -> str:
    return f"{url}{'&' if '?' in url else '?'}{urlencode(options)}"


def schema_of(store: PostgresStore) -> str:
    return parse(store.dsn).schema


# address


def test_an_address_shows_no_password() -> None:
    store = PostgresStore("postgresql://ann:s3cret@db:5433/shop?schema=jobs&sslpassword=s3cret")

    assert store.url == "postgresql://ann@db:5433/shop?schema=jobs"
    assert "s3cret" in store.dsn


def test_an_address_has_several_hosts() -> None:
    address = parse("postgresql://u:p@one:5433,two,[::1]:5434/db?target_session_attrs=read-write")

    assert address.hosts == (("one", 5433), ("two", 5432), ("::1", 5434))
    assert address.session == "read-write"
    assert parse("postgresql://one,two/db").session == "read-write"
    assert parse("postgresql://one/db").session == "any"


def test_an_address_may_be_a_socket() -> None:
    assert parse("postgresql:///db?host=/run/postgresql&port=5433").hosts == (
        ("/run/postgresql", 5433),
    )
    assert parse("postgresql:///db").hosts == (None,)


@pytest.mark.parametrize(
    "options",
    [
        {"schema": 'a"; drop table jobs;--'},
        {"schema": "Jobs"},
        {"schema": "pg_catalog"},
        {"schema": "1jobs"},
        {"schema": "a\n"},
        {"schema": ""},
        {"schema": "x" * 49},
        {"pooler": "yes"},
        {"target_session_attrs": "standby"},
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(SettingsError):
        PostgresStore(with_options("postgresql://localhost/db", **options))


@given(st.text(st.characters(exclude_categories=[])))
def test_every_text_comes_back_as_it_was(text: str) -> None:
    stored = clean(text)

    assert "\0" not in stored
    stored.encode()  # no lone surrogate is left
    assert restore(stored) == text


# schema


async def test_four_processes_migrate_at_once(raw: Any) -> None:
    """F46"""
    async with empty_schema(raw) as handle:
        handles = [handle, *(handle.spawn() for _ in range(3))]

        taken = await asyncio.gather(*(one.migrate() for one in handles))

        names = [step.name for step in schema.steps()]
        assert sorted(name for steps in taken for name in steps) == names
        assert await handle.migrate() == []
        await handle.open()


async def test_a_migration_cut_anywhere_runs_to_its_end_later(raw: Any) -> None:
    """F46"""
    for milliseconds in range(0, 120, 15):
        async with empty_schema(raw) as handle:
            migrating = asyncio.create_task(handle.migrate())
            await asyncio.sleep(milliseconds / 1000)
            await raw.fetch(
                "select pg_terminate_backend(pid) from pg_stat_activity where pid in "
                "(select pid from pg_locks where locktype = 'advisory')"
            )
            await asyncio.wait({migrating})
            assert migrating.exception() is None or isinstance(migrating.exception(), StoreError)

            await handle.migrate()
            await handle.open()
            await add(handle)


async def test_tables_of_another_version_are_refused(store: PostgresStore, raw: Any) -> None:
    """F45"""
    table = f'"{schema_of(store)}".migrations'
    other = store.spawn()
    newest = await raw.fetchval(f"select max(number) from {table}")  # noqa: S608 - ours

    await raw.execute(f"insert into {table} values (9999, 'future', now())")  # noqa: S608 - ours
    with pytest.raises(SchemaMismatch, match="upgrade relevo"):
        await other.open()
    with pytest.raises(SchemaMismatch, match="upgrade relevo"):
        await other.migrate()
    await raw.execute(f"delete from {table} where number >= $1", newest)  # noqa: S608 - ours
    with pytest.raises(SchemaMismatch, match="relevo migrate"):
        await other.open()
    await raw.execute(f"insert into {table} values ($1, 'back', now())", newest)  # noqa: S608 - ours
    await other.open()
    await other.close()


async def test_a_step_lets_others_go_on_while_a_transaction_has_a_table(
    raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F75: what waits for a lock on a whole table would have every other call wait behind it."""
    async with empty_schema(raw) as handle:
        await handle.migrate()
        await handle.open()
        for module, name, value in knowing(1):
            monkeypatch.setattr(module, name, value)
        other = await asyncpg.connect(postgres_url())
        reading = other.transaction()
        await reading.start()
        await other.fetch(handle._sql("select count(*) from relevo.jobs"))
        migrating = asyncio.create_task(handle.migrate())
        waits = handle._sql(
            "select exists (select from pg_locks where relation = 'relevo.jobs'::regclass "
            "and mode = 'AccessExclusiveLock' and not granted)"
        )
        for _ in range(3):
            await until(lambda: raw.fetchval(waits), what="the step waits")
            began = time.monotonic()
            await add(handle)
            assert time.monotonic() - began < 1.5
        monkeypatch.setattr(schema, "LOCK_PATIENCE", 0.0)
        with pytest.raises(StoreUnavailable, match="9001_colours found the tables locked"):
            await asyncio.wait_for(handle.migrate(), 10)
        monkeypatch.undo()
        assert not migrating.done()
        await reading.rollback()
        await other.close()
        assert await asyncio.wait_for(migrating, 10) == ["9001_colours"]


async def test_no_tables_are_said_to_be_missing(raw: Any) -> None:
    async with empty_schema(raw) as handle:
        with pytest.raises(SchemaMismatch, match="relevo migrate"):
            await handle.open()
        with pytest.raises(SchemaMismatch):
            await handle.insert([job()])


async def test_the_role_is_a_plain_one_and_uses_its_schema_only(
    store: PostgresStore, raw: Any
) -> None:
    """C35"""
    role = await raw.fetchrow(
        "select rolsuper, rolcreatedb, rolcreaterole from pg_roles where rolname = current_user"
    )
    elsewhere = await raw.fetch(
        "select nspname from pg_class join pg_namespace as n on n.oid = relnamespace "
        "where relname in ('jobs', 'ended', 'queues', 'migrations') and nspname !~ '^relevo_'"
    )

    assert tuple(role) == (False, False, False)
    assert elsewhere == []
    assert await add(store)


# statements


async def test_work_never_scans_the_table(raw: Any) -> None:
    async with empty_schema(raw) as store:
        await store.migrate()
        await put(store, *(job() for _ in range(1_000)))
        for _ in range(10):
            leases = await take(store, 50, worker="gone")
            lost = Failure(type="WorkerCrashed", message="signal 9")
            await store.isolate(leases)
            await store.rescue(
                worker="gone", losses=[Loss(id=lease.id, failure=lost) for lease in leases[::2]]
            )
            leases = await take(store, 50)
            await store.extend(leases, LEASE)
            await store.settle([Ending(lease=lease, state=State.DONE) for lease in leases])
            await put(store, *(job() for _ in range(50)))
            await store.rescue()
            await store.prune(dead_keep=HOUR)
        await store.close()

        async def told() -> bool:
            return await raw.fetchval(
                "select n_tup_del >= 500 from pg_stat_user_tables "
                "where schemaname = $1 and relname = 'jobs'",
                schema_of(store),
            )

        await until(told)
        scanned = await raw.fetch(
            "select relname, seq_tup_read from pg_stat_user_tables "
            "where schemaname = $1 and relname in ('jobs', 'ended') and seq_tup_read > 0",
            schema_of(store),
        )
        assert [dict(row) for row in scanned] == []


async def test_no_call_leaves_a_transaction_open(store: PostgresStore, raw: Any) -> None:
    """A driver that prepares and does not execute would hold locks and an old clock."""
    id = await add(store)
    lease = await take_id(store, id)
    await store.extend([lease], LEASE)
    await end(store, lease)
    await store.find([id])
    await store.tally()
    await store.recall("kind", ["name"])
    await store.effects()

    open_ones = await raw.fetch(
        "select query, state from pg_stat_activity "
        "where application_name = 'relevo' and (xact_start is not null or state <> 'idle')"
    )

    assert [dict(row) for row in open_ones] == []


async def test_a_claim_sees_what_was_due_before_it(store: PostgresStore) -> None:
    for _ in range(3):
        handle = store.spawn()
        await handle.open()
        id = await add(store)

        assert (await take_one(handle)).id == id
        await handle.close()


async def test_waiting_asks_nothing_of_the_server(store: PostgresStore, raw: Any) -> None:
    await store.wait([WORK], 0.2)  # the ear opens
    await until(lambda: is_listening(raw))
    before = await last_statements(raw)

    await store.wait([WORK], 1.5)

    assert await last_statements(raw) == before


async def test_a_job_of_another_process_is_heard_at_once(store: PostgresStore, raw: Any) -> None:
    other = store.spawn()
    await store.wait([WORK], 0.2)
    await until(lambda: is_listening(raw))
    waiting = asyncio.create_task(store.wait([WORK], 20))
    await asyncio.sleep(0)

    began = time.monotonic()
    await add(other)
    await waiting

    assert time.monotonic() - began < 2
    await other.close()


async def test_the_ear_is_replaced_and_nothing_is_missed(store: PostgresStore, raw: Any) -> None:
    other = store.spawn()
    await store.wait([WORK], 0.2)
    await until(lambda: is_listening(raw))
    waiting = asyncio.create_task(store.wait([WORK], 20))
    await asyncio.sleep(0)
    await raw.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where query ~* '^listen'"
    )
    await add(other)

    await asyncio.wait_for(waiting, 10)
    await until(lambda: is_listening(raw))
    await other.close()


async def is_listening(raw: Any) -> bool:
    return await raw.fetchval(
        "select exists (select from pg_stat_activity where query ~* '^listen' and state = 'idle')"
    )


async def last_statements(raw: Any) -> list[Any]:
    return await raw.fetch(
        "select pid, query_start, query from pg_stat_activity "
        "where application_name = 'relevo' order by pid"
    )


async def test_behind_a_pooler_nothing_is_kept_in_the_session(store: PostgresStore) -> None:
    handle = PostgresStore(with_options(store.dsn, pooler=1))
    await handle.open()
    try:
        id = await add(handle, key="k", lane="l")
        await end(handle, await take_id(handle, id))
        kept = await handle._in.fetch(
            "select (select count(*) from pg_prepared_statements) as statements, "
            "current_setting('application_name') as name"
        )
        waiting = asyncio.create_task(handle.wait([WORK], 20))
        await asyncio.sleep(0)
        await add(store)

        began = time.monotonic()
        while not await take(handle):
            await asyncio.wait_for(waiting, 5)
            waiting = asyncio.create_task(handle.wait([WORK], 20))
        assert time.monotonic() - began < 5
        assert tuple(kept[0]) == (0, "")
        waiting.cancel()
    finally:
        await handle.close()


# transactions


async def test_a_session_of_sqlalchemy_carries_jobs_with_its_rows(store: PostgresStore) -> None:
    engine = create_async_engine(postgres_url().replace("postgresql://", "postgresql+asyncpg://"))
    kept, dropped = job(), job()
    try:
        for new, good in ((kept, True), (dropped, False)):
            async with AsyncSession(engine) as session:
                connection = await session.connection()
                await session.execute(sql_text("select 1"))
                driver = (await connection.get_raw_connection()).driver_connection
                await store.insert_within(driver, [new])
                await (session.commit() if good else session.rollback())
    finally:
        await engine.dispose()

    assert [found and found.id for found in await store.find([kept.id, dropped.id])] == [
        kept.id,
        None,
    ]


async def test_a_connection_without_a_transaction_is_refused(
    store: PostgresStore, raw: Any
) -> None:
    """Or a job would stay although the caller's rows are rolled back."""
    lease = await take_id(store, await add(store))

    with pytest.raises(MisuseError, match="no open transaction"):
        await store.insert_within(raw, [job()])
    with pytest.raises(MisuseError, match="no open transaction"):
        await store.settle_within(raw, [Ending(lease=lease, state=State.DONE)])
    with pytest.raises(MisuseError, match="asyncpg"):
        await store.insert_within(object(), [job()])


async def test_an_ordered_lane_follows_commits(store: PostgresStore, raw: Any) -> None:
    """Who inserts later and commits first must not overtake, nor be lost."""
    ordered = [Want(queue=WORK, ordered=True)]
    assert (await store.claim(ordered, 1, "w", LEASE)).leases == []
    transaction = raw.transaction()
    await transaction.start()
    first, second = job(lane="a"), job(lane="a")
    await store.insert_within(raw, [first])

    late = asyncio.create_task(store.insert([second]))
    free = await add(store, lane="b")
    assert [lease.id for lease in (await store.claim(ordered, 5, "w", LEASE)).leases] == [free]
    await transaction.commit()
    await late

    leases = (await store.claim(ordered, 5, "w", LEASE)).leases
    assert [lease.id for lease in leases] == [first.id]


async def test_a_claim_for_somebody_who_left_is_handed_back(store: PostgresStore, raw: Any) -> None:
    id = await add(store)
    marks = {"suspicion": 2, "crashes": 5}
    assert await end(store, await take_id(store, id), State.SCHEDULED, spend=False, **marks)
    before = await look(store, id)
    row_version = store._sql("select xmin::text from relevo.jobs")
    version = await raw.fetchval(row_version)
    async with raw.transaction():
        await raw.execute(store._sql("lock table relevo.jobs in access exclusive mode"))
        claiming = asyncio.create_task(take(store))
        await until(is_blocked)
        claiming.cancel()
        await asyncio.wait({claiming})

    async def is_back() -> bool:
        is_changed = await raw.fetchval(row_version) != version
        return is_changed and (await look(store, id)).state is State.READY

    await until(is_back)
    assert await look(store, id) == before


@pytest.mark.parametrize("verb", ["settle", "settle_within", "extend", "isolate"])
async def test_jobs_are_ended_extended_and_isolated_in_one_order(
    store: PostgresStore, raw: Any, verb: str
) -> None:
    """However they are named: who waits for one job holds none that comes after it."""
    await put(store, *(job() for _ in range(3)))
    held = sorted(await take(store, 3), key=lambda lease: lease.id, reverse=True)
    endings = [Ending(lease=lease, state=State.DONE) for lease in held]
    jobs = f'"{schema_of(store)}".jobs'
    lock = f"select from {jobs} where id = $1 for update nowait"
    transaction = raw.transaction()
    await transaction.start()
    await raw.execute(lock, held[-1].id)

    async with another(postgres_url()) as lent:
        match verb:
            case "settle":
                work = asyncio.create_task(store.settle(endings))
            case "settle_within":
                work = asyncio.create_task(store.settle_within(lent, endings))
            case "isolate":
                work = asyncio.create_task(store.isolate(held))
            case _:
                work = asyncio.create_task(store.extend(held, LEASE))
        await until(is_blocked)
        for lease in held[:-1]:
            await raw.execute(lock, lease.id)
        await transaction.rollback()

        assert await work == [True] * 3


@contextlib.asynccontextmanager
async def another(url: str) -> AsyncIterator[Any]:
    """A caller's own connection, in a transaction."""
    connection = await asyncpg.connect(url, server_settings={"application_name": "relevo"})
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


async def test_each_ending_has_its_own_answer_in_whatever_order(store: PostgresStore) -> None:
    await put(store, *(job() for _ in range(4)))
    held = sorted(await take(store, 4), key=lambda lease: lease.id, reverse=True)
    assert await end(store, held[2])
    assert await store.extend(held, LEASE) == [True, True, False, True]
    endings = [Ending(lease=lease, state=State.DONE) for lease in held]
    assert await store.settle(endings) == [True, True, False, True]


async def is_blocked() -> bool:
    # On a connection of its own: inside a transaction the answer would never change.
    connection = await asyncpg.connect(postgres_url())
    try:
        return await connection.fetchval(
            "select exists (select from pg_stat_activity where application_name = 'relevo' "
            "and wait_event_type = 'Lock')"
        )
    finally:
        await connection.close()


# upkeep


async def test_the_hot_table_is_vacuumed_by_ourselves(
    store: PostgresStore, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By chance: whoever settles four in ten of those after which it is due has four in ten."""
    monkeypatch.setattr(leases_module, "VACUUM_AFTER", 100)
    monkeypatch.setattr(leases_module.random, "random", lambda: 0.5)
    for count in (40, 60):
        assert store._vacuum is None
        await put(store, *(job() for _ in range(count)))
        leases = await take(store, count)
        await store.settle([Ending(lease=lease, state=State.DONE) for lease in leases])
    assert store._vacuum is not None

    async def vacuumed() -> bool:
        return await raw.fetchval(
            "select vacuum_count > 0 from pg_stat_user_tables "
            "where schemaname = $1 and relname = 'jobs'",
            schema_of(store),
        )

    await until(vacuumed)


async def test_many_done_jobs_are_estimated(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(store, *(job() for _ in range(30)), *(job("app:module:few") for _ in range(3)))
    for queue in (WORK, "app:module:few"):
        claim = await store.claim([Want(queue=queue)], 100, "w", LEASE)
        await store.settle([Ending(lease=lease, state=State.DONE) for lease in claim.leases])
    monkeypatch.setattr(people, "COUNTED", 1)

    counted = {tally.queue: (tally.counts, tally.is_estimate) for tally in await store.tally()}

    few = ({State.DONE: 3}, False)
    assert counted == {WORK: ({State.DONE: 30}, False), "app:module:few": few}

    monkeypatch.setattr(people, "FEW", 10)
    store._done_counted_at = -people.MINUTE * 1e6

    counts, is_estimate = {t.queue: (t.counts, t.is_estimate) for t in await store.tally()}[WORK]

    assert counts[State.DONE] >= 10 and is_estimate


async def test_rows_written_by_hand_harm_nobody_else(store: PostgresStore, raw: Any) -> None:
    """B36"""
    ids = await put(store, *(job() for _ in range(5)))
    table = f'"{schema_of(store)}".jobs'
    for id, change in zip(
        ids,
        (
            "lane = null, state = 4, history = null, run_at = -1",
            "history = '{not json,[1]}'",
            "attempts = -5, attempt = -7",
            "kind = 'os.system', payload = '\\x80049529'",
        ),
        strict=False,
    ):
        await raw.execute(f"update {table} set {change} where id = $1", id)  # noqa: S608 - ours

    page = await store.page(Filter())
    found = await store.find(ids)
    leases = await take(store, 10)
    await store.rescue(worker="w1")

    assert len(page.jobs) == len([one for one in found if one is not None]) == 5
    assert {lease.id for lease in leases} == set(ids[1:])
    assert [finding.level for finding in await store.check()].count("error") == 0


async def test_the_doctor_sees_a_forgotten_transaction(
    store: PostgresStore, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relevo.stores.postgres.doctor.LONG_TRANSACTION", 1)
    subjects = {finding.subject: finding for finding in await store.check()}
    assert {"version", "fsync", "synchronous_commit", "read-only", "bloat", "connections"} <= set(
        subjects
    )
    async with raw.transaction():
        await raw.execute("select 1")

        async def seen() -> bool:
            return any(
                finding.subject == "oldest transaction" and finding.level == "warning"
                for finding in await store.check()
            )

        await until(seen)


async def test_a_flow_keeps_what_its_parent_will_read(
    store: PostgresStore, clock: ManualClock
) -> None:
    from relevo.job import After

    child = await add(store, keep=0)
    parent = await add(store, after=(After(child),))
    lease = await take_id(store, child)
    await store.settle([Ending(lease=lease, state=State.DONE, result=b"42")])
    clock.advance("1h")
    await store.prune(dead_keep=HOUR)

    assert (await look(store, child)).result == b"42"
    await end(store, await take_id(store, parent))
    await store.prune(dead_keep=HOUR)
    assert await store.find([child]) == [None]
    assert await state(store, parent) is State.DONE


async def test_a_search_reads_on_where_it_stopped(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(people, "SEARCHED", 10)
    ids = [await add(store, payload=b'{"n":"needle"}') for _ in range(2)]
    await put(store, *(job() for _ in range(35)))
    found: list[str] = []
    page = await store.page(Filter(text="needle"))
    assert page.jobs == []
    while page.cursor is not None:
        page = await store.page(Filter(text="needle"), cursor=page.cursor)
        found += [one.id for one in page.jobs]

    assert found == ids[::-1]


async def test_a_queue_that_begins_to_drain_meanwhile_takes_no_delivery(
    store: PostgresStore, raw: Any
) -> None:
    """Looked at before, shut when its turn came: nothing of the delivery stays."""
    first, second, new = delivery(), delivery(), job()
    await add(store)
    transaction = raw.transaction()
    await transaction.start()
    await store.receive_within(raw, Arrival(first))
    waiting = asyncio.create_task(store.receive([Arrival(second, (new,))]))
    while not await raw.fetchval("select count(*) from pg_locks where not granted"):
        assert not waiting.done()
        await asyncio.sleep(0.01)
    await store.set_mode([WORK], QueueMode.DRAINING, By("ann"))
    await transaction.rollback()

    (answer,) = await waiting

    assert (answer.verdict, answer.kept.id) == (Verdict.CLOSED, second.id)
    assert await store.delivered("app:/hook", ["k"]) == [None]
    assert await store.delivery([second.id]) == [None]
    assert await store.find([new.id]) == [None]


def delivery() -> Kept:
    return Kept(id=new_id(), endpoint="app:/hook", key="k")


async def test_a_transaction_of_another_database_is_refused(
    store: PostgresStore, raw: asyncpg.Connection[Any]
) -> None:
    other = await asyncpg.connect(postgres_url(), database="template1")
    try:
        async with other.transaction():
            with pytest.raises(
                MisuseError, match=r"another database \(template1\) than the store's"
            ):
                await store.insert_within(other, [job("refused")])
    finally:
        await other.close()

    asked: list[str] = []
    raw.add_query_logger(lambda record: asked.append(record.query))
    for name in ("first", "second"):
        async with raw.transaction():
            await store.insert_within(raw, [job(name)])
    assert len([sql for sql in asked if "pg_postmaster_start_time" in sql]) == 1
