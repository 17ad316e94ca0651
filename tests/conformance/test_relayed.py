"""Where a relayed store differs: its letters meet the other jobs when they are carried."""

from __future__ import annotations

from typing import cast

import pytest

from relevo.job import Ending, Receipt, State, Verdict
from relevo.relay import STANDS
from relevo.store import KNOWN, Effect, EffectState, Store
from relevo.testing import ManualClock
from tests.conformance.fresh import RELAYED
from tests.conformance.relaying import Prompt
from tests.conformance.steps import (
    ANN,
    WORK,
    add,
    audit_of,
    count,
    end,
    insert,
    job,
    put,
    state,
    take,
    take_id,
)
from tests.conformance.test_within import Session
from tests.conformance.test_within import session as session

pytestmark = pytest.mark.parametrize("store_name", RELAYED)


async def test_a_letter_joins_when_it_is_carried(store: Store, session: Session) -> None:
    """Its receipt is as of the outbox, and a note tells which job stands for it."""
    first = await add(store, key="k")
    letter = job(key="k")
    await session.begin()
    answers = await store.insert_within(session.connection, [letter])
    await session.commit()

    assert answers == [Receipt(letter.id, Verdict.NEW)]
    assert await count(store) == 1
    [note] = await store.recall(STANDS, [letter.id])
    assert note is not None
    assert first in note.value.decode()
    assert await insert(store, key="k") == Receipt(first, Verdict.IN_PROGRESS)


async def test_a_job_is_known_for_a_while_however_short_it_is_kept(
    store: Store, clock: ManualClock
) -> None:
    """It may be in the outbox too, and by its id it is known to have run."""
    await end(store, await take_id(store, id := await add(store, keep=0)))
    assert await state(store, id) is State.DONE
    clock.advance(f"{KNOWN}ms")

    await store.prune(dead_keep=1)

    assert await store.find([id]) == [None]


async def test_within_a_transaction_the_first_to_end_a_job_wins(
    store: Store, session: Session, clock: ManualClock
) -> None:
    """The mark is in the database; a lease in the other store cannot be part of a transaction."""
    await add(store)
    (old,) = await take(store)
    clock.advance("61s")
    await store.rescue()
    (new,) = await take(store, worker="w2")
    await session.begin()
    ending = Ending(lease=old, state=State.DONE)
    assert await store.settle_within(session.connection, [ending]) == [True]
    await session.commit()

    await session.begin()
    again = Ending(lease=new, state=State.DONE)
    assert await store.settle_within(session.connection, [again]) == [False]
    await session.rollback()


async def test_people_see_what_was_done_in_either_store(store: Store, clock: ManualClock) -> None:
    """Page by page, newest first."""
    both = cast("Prompt", store)
    expected: list[str] = []
    for number in range(6):
        clock.advance("1s")
        if number % 3:
            (id,) = await put(store, job())
            await store.cancel([id], ANN)
            expected.append(id)
        else:
            of = f"job{number}"
            meant = Effect(job=of, queue=WORK, name="pay", key="k", state=EffectState.UNKNOWN)
            await both.intend([meant])
            told = Effect(job=of, queue=WORK, name="pay", key="k", state=EffectState.REFUSED)
            assert await both.conclude([told], ANN) == [True]
            expected.append(of)
    seen: list[str] = []
    cursor = None
    while True:
        rows, cursor = await store.audits(cursor=cursor, limit=2)
        assert len(rows) <= 2
        seen += [row.target for row in rows]
        if cursor is None:
            break

    assert len(seen) == len(expected)
    for target, id in zip(seen, reversed(expected), strict=True):
        assert id in target
    assert await audit_of(store, expected[1]) == ["cancel"]


async def test_whoever_ends_a_job_for_a_dead_process_gives_its_result(
    store: Store, session: Session, clock: ManualClock
) -> None:
    """The process died after its commit and before a word to the other store."""
    both = cast("Prompt", store)
    within, alone = await add(store), await add(store, meta=b'{"letter":true}')
    await session.begin()
    one, two = await take(store, 2)
    assert {one.id, two.id} == {within, alone}
    of = {lease.id: lease for lease in (one, two)}
    ending = Ending(lease=of[within], state=State.DONE, result=b'{"pages":4}')
    assert await both.settle_within(session.connection, [ending]) == [True]
    await session.commit()
    both.within.clear()
    await both.ledger.close_letters([alone], {alone: b'"so"'})
    clock.advance("61s")
    await store.rescue()

    assert await take(store, 2, worker="w2") == []

    ended = [each for each in await store.find([within, alone]) if each is not None]
    assert [each.result for each in ended] == [b'{"pages":4}', b'"so"']
    assert [each.state for each in ended] == [State.DONE] * 2
    assert len(await both.ledger.results([within, alone])) == 2
    await both.drop_told()
    assert await both.ledger.results([within, alone]) == {}
