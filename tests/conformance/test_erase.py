"""C23: one person goes before their time is over, and what must not happen twice stays known."""

from __future__ import annotations

from typing import Any

import pytest

from relevo.ids import new_id
from relevo.job import LIVE, After, Ending, Failure, State, Verdict
from relevo.store import BATCH, Audit, Effect, EffectState, Filter, SqlStore, Store, Want
from relevo.testing import ManualClock
from tests.conformance.fresh import SQL_STORES
from tests.conformance.steps import (
    ANN,
    DAY,
    HOUR,
    OTHER,
    WORK,
    add,
    add_parent,
    count,
    end,
    insert,
    job,
    look,
    make,
    put,
    states,
    take,
    take_id,
    take_one,
    tally_of,
)
from tests.conformance.test_receive import (
    FIRST,
    SOURCE,
    accept,
    kept,
    listed,
    newest,
    receive,
    rejected,
)
from tests.engine.test_canary import mentions

EVA = "canary-eva"
ACT = "0" * 31 + "1"


async def forget(store: Store, *jobs: str, deliveries: list[str] | None = None) -> tuple[int, int]:
    return await store.erase(jobs, deliveries or [], ANN, act=ACT)


async def confirmed(store: Store, id: str, **fields: Any) -> Effect:
    effect = Effect(
        **{
            "job": id,
            "queue": WORK,
            "name": "greet",
            "key": f"{EVA}:greet",
            "run": "r",
            "thread": "t",
            "state": EffectState.CONFIRMED,
            "result": f'{{"to":"{EVA}"}}'.encode(),
            **fields,
        }
    )
    await store.intend([effect])
    assert await store.conclude([effect]) == [True]
    return effect


async def written(store: Store) -> list[Audit]:
    return [row for row in (await store.audits())[0] if row.verb == "forget"]


async def test_nothing_is_left_of_a_person_but_hashes_and_answers(store: Store) -> None:
    """Delivery, job, failed attempt, result, lane, effects: a scan of the store finds none."""
    text = f'{{"name":"{EVA}"}}'.encode()
    came = kept(EVA, body=text, query=f"q={EVA}", path=f"/{EVA}", thread=EVA)
    new = job(key=EVA, unique="forever", payload=text, lane=EVA, thread=EVA, cause=came.id)
    await receive(store, came, new)
    await receive(store, kept(EVA, body=b"other"))
    want = Want(queue=WORK, lane_limit=1)
    said = Failure(type="Boom", message=f"{EVA} said no", trace=EVA, fingerprint=EVA)
    assert await end(store, await take_one(store, want), State.SCHEDULED, failure=said)
    lease = await take_one(store, want)
    await confirmed(store, new.id, thread=EVA)
    assert await end(store, lease, result=text)
    bad = await make(store, State.DEAD, OTHER, payload=text, key=EVA)
    turned_away = rejected(key=EVA, body=text, reason=f"not from {EVA}")
    await accept(store, turned_away)
    assert await mentions(store, EVA) > 0

    gone = await forget(store, new.id, bad, deliveries=[came.id, turned_away.id])

    assert gone == (2, 2)
    assert await mentions(store, EVA) == 0
    assert await store.find([new.id, bad]) == [None, None]
    assert await store.delivery([came.id, turned_away.id]) == [None, None]
    assert await store.effects() == ([], None)
    assert await store.groups() == []
    assert await listed(store) == []
    assert all(n == 0 for tally in await store.tally() for n in tally.counts.values())


async def test_a_delivery_that_comes_again_is_still_answered_as_the_first_time(
    store: Store,
) -> None:
    came = kept()
    await receive(store, came, new := job())
    await end(store, await take_one(store))
    assert await forget(store, new.id, deliveries=[came.id]) == (1, 1)

    again = await receive(store, kept(answer=b"other"), job())

    assert (again.verdict, again.kept.id) == (Verdict.DONE, came.id)
    assert (again.kept.answer, again.kept.status) == (FIRST, 202)
    assert await count(store) == 0
    stored = await newest(store, "k")
    assert (stored.key, stored.body, stored.jobs) == (None, b"", ())


@pytest.mark.parametrize("ended", [State.DONE, State.DEAD, State.CANCELLED])
async def test_a_key_for_good_answers_as_after_pruning(
    store: Store, clock: ManualClock, ended: State
) -> None:
    pruned = await make(store, ended, key="pruned", unique="forever", keep=HOUR)
    clock.advance("2d")
    await store.prune(dead_keep=DAY)
    erased = await make(store, ended, key="erased", unique="forever")
    assert await forget(store, erased) == (1, 0)

    first = await insert(store, key="pruned", unique="forever")
    second = await insert(store, key="erased", unique="forever")

    assert second.verdict is first.verdict
    assert (second.id == erased) is (first.id == pruned)
    assert (second.verdict is Verdict.DONE) is (ended is State.DONE)


async def test_what_has_not_ended_is_left_alone(store: Store) -> None:
    ids = [await make(store, live, f"app:module:{live}", thread="t") for live in LIVE]
    await confirmed(store, ids[0], queue=f"app:module:{next(iter(LIVE))}")
    before = await store.find(ids)

    assert await forget(store, *ids) == (0, 0)

    assert await store.find(ids) == before
    assert len((await store.effects())[0]) == 1
    assert await written(store) == []


async def test_it_is_written_down_once_without_naming_anybody(store: Store) -> None:
    """C23, C37: who and why, under an id that says nothing."""
    came = kept()
    await receive(store, came, new := job())
    await end(store, await take_one(store))

    await forget(store, new.id, deliveries=[came.id])
    assert await forget(store, new.id, deliveries=[came.id]) == (0, 0)
    assert await forget(store) == (0, 0)
    assert await forget(store, new_id(), "no id", deliveries=[new_id(), "no id"]) == (0, 0)

    [row] = await written(store)
    assert (row.who, row.target, row.note) == (ANN.who, ACT, ANN.note)
    assert (row.before, row.after) == ("", "")
    assert await store.audits(target=ACT) == ([row], None)


async def test_effects_of_a_job_that_is_gone_go_too(store: Store, clock: ManualClock) -> None:
    """A done job is pruned long before what it did outside is."""
    id = await make(store, State.DONE, keep=HOUR, thread=EVA)
    await confirmed(store, id, thread=EVA)
    other = await make(store, State.DONE)
    mine = await confirmed(store, other, key="mine", thread='a"b', result=b'{"thread":"x"}')
    clock.advance("2h")
    await store.prune(dead_keep=90 * DAY)
    found, _ = await store.effects(threads=frozenset({EVA, "nobody"}))
    assert [effect.job for effect in found] == [id]
    found, _ = await store.effects(threads=frozenset({'a"b'}))
    assert [effect.job for effect in found] == [other]
    assert await store.effects(threads=frozenset({"x", 'a"'})) == ([], None)

    assert await forget(store, id) == (0, 0)

    assert [effect.key for effect in (await store.effects())[0]] == [mine.key]
    assert await mentions(store, EVA) == 0
    assert len(await written(store)) == 1


async def test_a_retried_job_keeps_what_it_did(store: Store) -> None:
    id = await make(store, State.DEAD)
    await confirmed(store, id)
    await store.retry([id], ANN)

    assert await forget(store, id) == (0, 0)

    assert await states(store, id) == [State.READY]
    assert len((await store.effects())[0]) == 1


async def test_an_erased_flow_leaves_the_others_whole(store: Store) -> None:
    child = await make(store, State.DONE)
    parent = await add_parent(store, child)
    await end(store, await take_id(store, parent, OTHER))
    left = await make(store, State.DONE)
    above = await add_parent(store, left)
    await end(store, await take_id(store, above, OTHER))

    assert await forget(store, child, parent) == (2, 0)

    assert await store.find([child, parent]) == [None, None]
    assert (await look(store, above)).after == (After(left),)
    assert (await look(store, left)).before == (above,)


async def test_many_go_at_once_and_others_stay(store: Store) -> None:
    """As many as one call may name."""
    jobs = [job(f"app:module:{n % 4}", payload=EVA.encode()) for n in range(BATCH)]
    await put(store, *jobs)
    await store.cancel([one.id for one in jobs], ANN)
    others = await put(store, *[job() for _ in range(5)])
    came = await accept(store, *[kept(f"{EVA}{n}") for n in range(300)])
    stays = await accept(store, kept("stays"))

    assert await forget(store, *[one.id for one in jobs], deliveries=came) == (BATCH, 300)

    assert await mentions(store, EVA) == 0
    assert None not in await store.find(others)
    assert await listed(store) == stays
    assert await count(store) == 5
    assert None not in await store.delivered(SOURCE, [f"{EVA}{n}" for n in range(300)])


async def test_a_lane_goes_on_behind_what_was_erased(store: Store) -> None:
    want = Want(queue=WORK, lane_limit=1, lane_rate=(100, HOUR))
    first = await add(store, lane="l")
    assert await end(store, await take_one(store, want))
    second = await add(store, lane="l")

    assert await forget(store, first) == (1, 0)

    lease = await take_one(store, want)
    assert lease.id == second
    assert await end(store, lease)
    assert await count(store, states=frozenset({State.DONE})) == 1


async def test_the_search_finds_nothing_of_what_was_erased(store: Store) -> None:
    id = await make(store, State.DEAD, key=EVA, thread=EVA, payload=f'"{EVA}"'.encode())

    await forget(store, id)

    for where in (Filter(key=EVA), Filter(thread=EVA), Filter(text=EVA), Filter()):
        assert (await store.page(where)).jobs == []
        assert await store.count(where) == 0
    assert await store.retry([id], ANN) == [False]


@pytest.mark.parametrize("store_name", SQL_STORES)
async def test_marks_of_jobs_elsewhere_stay(store: SqlStore) -> None:
    """What a letter was closed with tells that its job must not run again."""
    await store.post([one := job()])
    await store.close_letters([one.id])
    await confirmed(store, one.id)

    assert await forget(store, one.id) == (0, 0)

    assert await store.closed([one.id]) == [True]
    assert (await store.effects())[0] == []


async def test_who_ended_with_others_goes_alone_and_may_come_again(
    store: Store, clock: ManualClock
) -> None:
    ids = await put(store, *(job(keep=HOUR) for _ in range(5)))
    leases = await take(store, 5)
    await store.settle([Ending(lease=lease, state=State.DONE) for lease in leases])
    late = await make(store, State.DONE, keep=HOUR)

    assert await forget(store, ids[1], ids[3], late) == (3, 0)
    assert (await tally_of(store)).counts[State.DONE] == 3
    assert await count(store, states=frozenset({State.DONE})) == 3

    # The same id once more is another job, with a time of its own.
    clock.advance("30m")
    again = job(id=ids[1], keep=HOUR)
    await put(store, again)
    assert await end(store, await take_one(store))
    page = await store.page(Filter(states=frozenset({State.DONE})), limit=50)
    assert sorted(found.id for found in page.jobs) == sorted([ids[0], ids[1], ids[2], ids[4]])
    clock.advance("31m")
    assert await store.prune(dead_keep=DAY) == 3
    assert await states(store, *ids) == [None, State.DONE, None, None, None]
    assert (await tally_of(store)).counts[State.DONE] == 1
    clock.advance("30m")
    assert await store.prune(dead_keep=DAY) == 1
    assert await count(store) == 0
