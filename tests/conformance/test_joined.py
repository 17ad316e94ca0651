"""A command that joins a job by its key, with another payload, is written down on that job."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from relevo.ids import new_id
from relevo.job import JOINS, NewJob, Receipt, State, Unique, Verdict
from relevo.sealing import SealKeys, new_key
from relevo.store import Store
from relevo.stores.sealed import sealed
from tests.conformance.conftest import Handles
from tests.conformance.fresh import AT_ONCE, STORES
from tests.conformance.steps import (
    DAY,
    SECOND,
    add,
    end,
    insert,
    job,
    look,
    make,
    put,
    take,
    take_id,
)
from tests.conformance.test_receive import kept, receive
from tests.conformance.test_within import Session
from tests.conformance.test_within import session as session

UNIQUES: list[Unique] = ["unfinished", "forever"]
ONE, TWO = b"\0" + b"1" * 7, b"\0" + b"2" * 7
SEALED = b"\5" + b"1" * 7


def keyed(digest: bytes | None = ONE, **fields: Any) -> NewJob:
    said: dict[str, Any] = {"key": "k", "digest": digest, **fields}
    return job(**said)


@pytest.mark.parametrize("unique", UNIQUES)
async def test_another_payload_is_written_down(store: Store, unique: Unique) -> None:
    first, second = keyed(unique=unique), keyed(TWO, unique=unique, cause=new_id(), payload=b"2")
    await put(store, first)

    assert await store.insert([second]) == [Receipt(first.id, Verdict.IN_PROGRESS, True)]

    found = await look(store, first.id)
    assert found.joined == 1
    (line,) = found.joins
    assert (line.id, line.cause) == (second.id, second.cause)
    assert abs(line.at - await store.now()) < 10 * SECOND
    assert found.payload == first.payload
    assert await store.find([second.id]) == [None]


@pytest.mark.parametrize(
    ("first", "second"), [(ONE, ONE), (None, ONE), (ONE, None), (None, None), (ONE, SEALED)]
)
async def test_what_does_not_differ_writes_nothing(
    store: Store, first: bytes | None, second: bytes | None
) -> None:
    standing = keyed(first)
    await put(store, standing)

    answers = await store.insert([keyed(second)])

    assert answers == [Receipt(standing.id, Verdict.IN_PROGRESS, False)]
    found = await look(store, standing.id)
    assert (found.joined, found.joins) == (0, ())


@pytest.mark.parametrize(
    "state", [State.SCHEDULED, State.RUNNING, State.WAITING, State.PARKED, State.HELD]
)
async def test_a_job_in_any_state_is_joined(store: Store, state: State) -> None:
    id = await make(store, state, key="k", digest=ONE)

    answer = await insert(store, key="k", digest=TWO)

    assert answer == Receipt(id, Verdict.IN_PROGRESS, True)
    assert (await look(store, id)).joined == 1


async def test_a_job_done_for_good_is_joined(store: Store) -> None:
    id = await make(store, State.DONE, key="k", unique="forever", digest=ONE)

    assert await insert(store, key="k", unique="forever", digest=ONE) == Receipt(id, Verdict.DONE)
    answer = await insert(store, key="k", unique="forever", digest=TWO)

    assert answer == Receipt(id, Verdict.DONE, True)
    found = await look(store, id)
    assert (found.state, found.joined, len(found.joins)) == (State.DONE, 1, 1)


async def test_all_are_counted_and_the_newest_kept(store: Store) -> None:
    first = keyed()
    await put(store, first)
    others = [keyed(TWO) for _ in range(JOINS + 5)]
    for other in others[:10]:
        assert (await store.insert([other]))[0].differs
    assert [answer.differs for answer in await store.insert(others[10:])] == [True] * (JOINS - 5)

    found = await look(store, first.id)

    assert found.joined == JOINS + 5
    assert [line.id for line in found.joins] == [other.id for other in others[5:]]


async def test_a_repetition_is_written_down_once(store: Store) -> None:
    first, second = keyed(), keyed(TWO, remember=DAY)
    await put(store, first)
    for _ in range(3):
        (answer,) = await store.insert([second])
        assert (answer.id, answer.verdict) == (first.id, Verdict.IN_PROGRESS)
    await store.insert([second, second])

    found = await look(store, first.id)
    assert found.joined == 1
    assert [line.id for line in found.joins] == [second.id]


async def test_a_repetition_of_the_job_itself_joins_nothing(store: Store) -> None:
    first = keyed()
    await put(store, first)

    await store.insert([first])

    assert (await look(store, first.id)).joined == 0


async def test_the_second_of_a_batch_joins_the_first(store: Store) -> None:
    first, same, other = keyed(), keyed(), keyed(TWO)

    answers = await store.insert([first, same, other])

    assert answers == [
        Receipt(first.id, Verdict.NEW, False),
        Receipt(first.id, Verdict.IN_PROGRESS, False),
        Receipt(first.id, Verdict.IN_PROGRESS, True),
    ]
    found = await look(store, first.id)
    assert (found.joined, [line.id for line in found.joins]) == (1, [other.id])


async def test_a_reopened_job_has_the_digest_of_its_new_payload(store: Store) -> None:
    id = await make(store, State.DEAD, key="k", unique="forever", digest=ONE)

    answer = await insert(store, key="k", unique="forever", digest=TWO)

    assert answer == Receipt(id, Verdict.REOPENED, False)
    assert (await look(store, id)).joined == 0
    assert not (await insert(store, key="k", unique="forever", digest=TWO)).differs
    assert (await insert(store, key="k", unique="forever", digest=ONE)).differs
    assert (await look(store, id)).joined == 1


async def test_lines_stay_when_the_job_runs_and_ends(store: Store) -> None:
    id = await add(store, key="k", digest=ONE)
    await store.insert([keyed(TWO)])
    assert await end(store, await take_id(store, id), State.SCHEDULED, spend=False)
    await store.insert([keyed(TWO)])

    assert await end(store, await take_id(store, id))

    found = await look(store, id)
    assert (found.state, found.joined, len(found.joins)) == (State.DONE, 2, 2)


async def test_the_next_job_of_the_key_begins_without_lines(store: Store) -> None:
    id = await add(store, key="k", digest=ONE, keep=0)
    await store.insert([keyed(TWO)])
    assert await end(store, await take_id(store, id))

    second = keyed(TWO)
    assert await store.insert([second]) == [Receipt(second.id, Verdict.NEW, False)]

    assert (await look(store, second.id)).joined == 0


@pytest.mark.parametrize("store_name", AT_ONCE)
async def test_a_delivery_joins(store: Store) -> None:
    first, second = keyed(), keyed(TWO, cause=new_id())
    await put(store, first)

    answer = await receive(store, kept(new_id()), second)

    assert answer.kept.jobs == (first.id,)
    found = await look(store, first.id)
    assert (found.joined, [line.cause for line in found.joins]) == (1, [second.cause])


@pytest.mark.parametrize("store_name", AT_ONCE)
async def test_a_transaction_joins(store: Store, session: Session | None) -> None:
    if session is None:
        return
    first = keyed()
    await put(store, first)
    await session.begin()
    await store.insert_within(session.connection, [keyed(TWO)])
    await session.rollback()
    assert (await look(store, first.id)).joined == 0

    await session.begin()
    answers = await store.insert_within(session.connection, [keyed(TWO)])
    await session.commit()

    assert answers == [Receipt(first.id, Verdict.IN_PROGRESS, True)]
    assert (await look(store, first.id)).joined == 1


async def test_a_crowd_is_counted(store: Store, handles: Handles) -> None:
    callers = [store, *await handles(2)]
    crowd = [keyed(b"\0%07d" % n) for n in range(30)]

    answers = await asyncio.gather(*(callers[n % 3].insert([crowd[n]]) for n in range(30)))

    receipts = [receipt for (receipt,) in answers]
    (first,) = [one.id for one in receipts if one.verdict is Verdict.NEW]
    assert {one.id for one in receipts} == {first}
    assert sum(one.differs for one in receipts) == 29
    found = await look(store, first)
    assert (found.joined, len(found.joins)) == (29, JOINS)
    assert len(await take(store, 9)) == 1


@pytest.mark.parametrize("store_name", STORES)  # it seals by itself, with one key and another
async def test_digests_tell_sealed_payloads_apart_while_the_key_is_one(store: Store) -> None:
    old, new = new_key(), new_key()
    while SealKeys(new).digest(b"")[:1] == SealKeys(old).digest(b"")[:1]:
        new = new_key()  # one pair in 255 cannot be told apart
    before, after = SealKeys(old), SealKeys(new, old)

    def order(seal: SealKeys, payload: bytes) -> NewJob:
        return keyed(seal.digest(payload), payload=payload)

    first = order(before, b'{"n":1}')
    front = sealed(store, before)
    await put(front, first)
    assert (await look(store, first.id)).payload != first.payload

    (same,) = await front.insert([order(before, b'{"n":1}')])
    (other,) = await front.insert([order(before, b'{"n":2}')])
    (rotated,) = await sealed(store, after).insert([order(after, b'{"n":2}')])

    assert [one.id for one in (same, other, rotated)] == [first.id] * 3
    assert [one.differs for one in (same, other, rotated)] == [False, True, False]
    found = await look(front, first.id)
    assert (found.payload, found.joined) == (first.payload, 1)
