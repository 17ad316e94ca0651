"""What is sealed with an older key is sealed with the newest, in place, on every store."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest

from relevo.cli.sealing import Renewal, renew_store
from relevo.job import State
from relevo.sealing import SealKeys, key_named, new_key, renewed
from relevo.store import EDITS, Arrival, Effect, EffectState, Kept, Note, SqlStore, Store
from relevo.stores.sealed import sealed
from relevo.webhook import Answer
from tests.conformance.fresh import SQL_STORES, STORES
from tests.conformance.steps import OTHER, WORK, add, end, job, make, take_id

OLD, NEW = new_key(), new_key()
KEYS = SealKeys(NEW, OLD)
NAME = SealKeys(OLD).names[0]
each_store = pytest.mark.parametrize("store_name", STORES)
PAYLOAD = b'{"email":"ana@example.com"}'


async def renew(store: Store) -> Renewal:
    done = Renewal()
    await renew_store(store, KEYS, done)
    return done


async def payload_of(store: Store, id: str) -> bytes:
    [job] = await store.find([id])
    assert job is not None
    return job.payload


@each_store
async def test_everything_sealed_is_sealed_with_the_newest_key(store: Store) -> None:
    before, after = sealed(store, SealKeys(OLD)), sealed(store, SealKeys(NEW))
    waits = await add(before, payload=PAYLOAD)
    done = await add(before, OTHER, payload=PAYLOAD)
    assert await end(before, await take_id(before, done, OTHER), result=b'"sent to ana"')
    kept = Kept(
        id=f"{7:032x}",
        endpoint="shop:/hooks",
        key="evt_1",
        query="from=ana",
        headers=b'[["content-type","text/plain"]]',
        body=b"ana@example.com",
        answer=msgspec.msgpack.encode(Answer.text("thank you, ana")),
    )
    await before.receive([Arrival(kept)])
    effect = Effect(job=done, queue=WORK, name="mail", key="k", result=b'{"to":"ana"}')
    await before.intend([effect])
    await before.conclude([msgspec.structs.replace(effect, state=EffectState.CONFIRMED)])
    assert await before.remember([Note(kind=EDITS, name=waits, value=b'{"was":"ana"}')]) == [True]

    seen = await renew(store)

    assert seen.renewed[NAME] >= 8
    assert seen.changed == 0
    assert not seen.closed
    assert await payload_of(after, waits) == PAYLOAD
    [job] = await after.find([done])
    assert job is not None
    assert (job.payload, job.result) == (PAYLOAD, b'"sent to ana"')
    [found] = await after.delivery([kept.id])
    assert found is not None
    assert (found.query, found.headers, found.body) == (kept.query, kept.headers, kept.body)
    assert found.answer == kept.answer
    [again] = await after.delivered("shop:/hooks", ["evt_1"])
    assert again is not None
    assert again.answer == kept.answer
    [told], _ = await after.effects(job=done)
    assert told.result == b'{"to":"ana"}'
    [note] = await after.recall(EDITS, [waits])
    assert note is not None
    assert note.value == b'{"was":"ana"}'
    assert (await renew(store)).renewed == {}  # run again it has nothing to do


@each_store
async def test_a_job_that_has_begun_keeps_its_key_until_it_has_ended(store: Store) -> None:
    before = sealed(store, SealKeys(OLD))
    retried = await make(before, State.SCHEDULED, payload=PAYLOAD)
    dead = await make(before, State.DEAD, payload=PAYLOAD)
    running = await make(before, State.RUNNING, payload=PAYLOAD)

    await renew(store)

    for id in (dead, running):
        assert key_named(await payload_of(store, id)) == NAME
    [job] = await store.find([retried])
    assert job is not None
    assert (key_named(job.payload) == NAME) is bool(job.attempt or job.history)


@each_store
async def test_broken_off_it_goes_on_where_it_was(store: Store) -> None:
    before = sealed(store, SealKeys(OLD))
    ids = [await add(before, payload=PAYLOAD) for _ in range(5)]
    async for values in store.sealed_values():
        if values:
            await store.swap_values([(values[0], renewed(KEYS, values[0].data).data)])
            break
    left = [id for id in ids if key_named(await payload_of(store, id)) == NAME]
    assert len(left) == 4
    assert (await renew(store)).renewed == {NAME: 4}


@each_store
async def test_what_changed_meanwhile_is_left(store: Store) -> None:
    before = sealed(store, SealKeys(OLD))
    id = await add(before, payload=PAYLOAD)
    [value] = [each async for values in store.sealed_values() for each in values]
    fresh = renewed(KEYS, value.data).data
    assert await store.swap_values([(value, fresh)]) == 1
    assert await store.swap_values([(value, renewed(KEYS, value.data).data)]) == 0
    assert await payload_of(sealed(store, SealKeys(NEW)), id) == PAYLOAD


@each_store
async def test_what_no_key_opens_is_told_and_left(store: Store) -> None:
    other = SealKeys(new_key())
    id = await add(sealed(store, other), payload=PAYLOAD)
    seen = await renew(store)
    assert seen.closed == {other.names[0]: 1}
    assert await payload_of(sealed(store, other), id) == PAYLOAD


@pytest.mark.parametrize("store_name", SQL_STORES)
async def test_rows_of_the_outbox_are_sealed_anew(store: Store) -> None:
    ledger = cast("SqlStore", store)
    await cast("SqlStore", sealed(store, SealKeys(OLD))).post([job(WORK, payload=PAYLOAD)])
    assert (await renew(store)).renewed == {NAME: 1}
    [row] = await cast("SqlStore", sealed(store, SealKeys(NEW))).letters(carried=False)
    assert row.job.payload == PAYLOAD
    [row] = await ledger.letters(carried=False)
    assert key_named(row.job.payload) == KEYS.names[0]
