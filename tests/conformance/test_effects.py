"""The effect ledger: what was meant to happen outside, and how it went."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from relevo.ids import new_id
from relevo.store import Conclusion, Effect, EffectState, Store
from relevo.testing import ManualClock
from tests.conformance.conftest import Handles
from tests.conformance.steps import ANN, DAY, WORK, audit_of, legible


def effect(**fields: Any) -> Effect:
    return Effect(
        **{"job": new_id(), "queue": WORK, "name": "book", "key": f"key-{new_id()}", **fields}
    )


def ended(intended: Effect, state: EffectState, **fields: Any) -> Effect:
    changed = {**msgspec.structs.asdict(intended), "state": state, **fields}
    return Conclusion(**changed)


async def only(store: Store, job: str) -> Effect:
    (found,), _ = await store.effects(job=job)
    return found


async def test_an_intention_is_written_down(store: Store) -> None:
    before = await store.now()
    meant = effect(attempt=2, run="run-1", thread="thread-1")

    (stored,) = await store.intend([meant])

    for field in ("job", "queue", "name", "key", "state", "attempt", "run", "thread"):
        assert getattr(stored, field) == getattr(meant, field), field
    assert (stored.result, stored.error, stored.decided_by) == (None, "", "")
    assert before <= stored.created_at <= await store.now()
    assert stored.updated_at == stored.created_at
    assert await only(store, meant.job) == stored


async def test_an_intention_is_meant_once(store: Store) -> None:
    first = effect(key="first", attempt=1)
    await store.intend([first])

    (again,) = await store.intend([msgspec.structs.replace(first, key="second", attempt=2)])

    assert (again.key, again.attempt) == ("first", 1)
    assert len((await store.effects(job=first.job))[0]) == 1


async def test_effects_of_one_job_are_told_apart_by_name(store: Store) -> None:
    job = new_id()
    meant = [effect(job=job, name=name) for name in ("book", "mail", "book:2")]

    stored = await store.intend(meant)

    assert [one.name for one in stored] == ["book", "mail", "book:2"]
    assert {one.name for one in (await store.effects(job=job))[0]} == {"book", "mail", "book:2"}


async def test_the_same_intention_twice_in_one_call_is_one(store: Store) -> None:
    first = effect(key="first")

    stored = await store.intend([first, msgspec.structs.replace(first, key="second")])

    assert [one.key for one in stored] == ["first", "first"]


async def test_many_intend_at_once_and_one_key_stands(store: Store, handles: Handles) -> None:
    callers = [store, *await handles(2)]
    job = new_id()

    answers = await asyncio.gather(
        *(callers[n % 3].intend([effect(job=job, key=f"key-{n}")]) for n in range(20))
    )

    assert len({one.key for (one,) in answers}) == 1


@pytest.mark.parametrize("state", [s for s in EffectState if s is not EffectState.INTENDED])
async def test_an_end_is_written_down(store: Store, clock: ManualClock, state: EffectState) -> None:
    (stored,) = await store.intend([effect(attempt=1)])
    clock.advance("5s")

    answer = await store.conclude(
        [
            ended(
                stored,
                state,
                result=b'{"code":"X"}',
                error="said so",
                attempt=2,
                run="run-2",
                follows=stored.run,
            )
        ]
    )

    assert answer == [True]
    found = await only(store, stored.job)
    assert (found.state, found.result, found.error) == (state, b'{"code":"X"}', "said so")
    assert (found.attempt, found.run) == (2, "run-2")
    assert (found.key, found.created_at) == (stored.key, stored.created_at)
    assert found.updated_at >= stored.updated_at + 5_000
    assert await store.intend([stored]) == [found]


async def test_the_key_of_the_last_call_is_kept(store: Store) -> None:
    """After a refusal a provider is asked under another one; who looks it up must know which."""
    (meant,) = await store.intend([effect(key="first")])

    await store.conclude([ended(meant, EffectState.INTENDED, key="second")])
    assert (await only(store, meant.job)).key == "second"
    await store.conclude([ended(meant, EffectState.UNKNOWN, key="third")], ANN)
    assert (await only(store, meant.job)).key == "third"


async def test_a_person_tells_the_result_that_could_not_be_kept(store: Store) -> None:
    (stored,) = await store.intend([effect()])
    await store.conclude([ended(stored, EffectState.CONFIRMED, error="it was too big")])
    told = ended(stored, EffectState.CONFIRMED, result=b'"A"')

    assert await store.conclude([told]) == [False]
    assert await store.conclude([ended(stored, EffectState.FAILED)], ANN) == [False]
    assert await store.conclude([told], ANN) == [True]
    found = await only(store, stored.job)
    assert (found.state, found.result) == (EffectState.CONFIRMED, b'"A"')
    mended = ended(stored, EffectState.CONFIRMED, result=b'"B"')
    assert await store.conclude([mended]) == [False]
    assert await store.conclude([mended], ANN) == [True]
    assert (await only(store, stored.job)).result == b'"B"'


async def test_what_a_call_gave_is_nothing_that_a_person_changes(store: Store) -> None:
    (stored,) = await store.intend([effect()])
    given = ended(stored, EffectState.CONFIRMED, result=b'{"decided_by":"x"}')
    await store.conclude([given])

    mended = ended(stored, EffectState.CONFIRMED, result=b'"B"')
    assert await store.conclude([mended], ANN) == [False]


async def test_a_confirmed_effect_stays_confirmed(store: Store) -> None:
    (stored,) = await store.intend([effect()])
    confirmed = ended(stored, EffectState.CONFIRMED, result=b'"A"')
    assert await store.conclude([confirmed]) == [True]
    before = await only(store, stored.job)

    for state in EffectState:
        other = ended(stored, state, result=b'"B"', error="late")
        assert await store.conclude([other]) == [False], state

    assert await only(store, stored.job) == before
    assert await store.conclude([confirmed]) == [True]


@pytest.mark.parametrize("state", [EffectState.REFUSED, EffectState.FAILED, EffectState.UNKNOWN])
async def test_what_is_not_confirmed_may_still_be(store: Store, state: EffectState) -> None:
    (stored,) = await store.intend([effect()])
    assert await store.conclude([ended(stored, state, error="no")]) == [True]

    confirmed = ended(stored, EffectState.CONFIRMED, result=b"1", error="")
    assert await store.conclude([confirmed]) == [True]

    found = await only(store, stored.job)
    assert (found.state, found.result, found.error) == (EffectState.CONFIRMED, b"1", "")


LATE = [EffectState.INTENDED, EffectState.REFUSED, EffectState.FAILED, EffectState.UNKNOWN]


async def taken_over(store: Store, state: EffectState, key: str = "key") -> tuple[Effect, Effect]:
    """An effect that run `old` intended under the key "key", and `new` wrote since."""
    (old,) = await store.intend([effect(key="key", run="old")])
    taken = ended(old, EffectState.INTENDED, run="new", key=key, follows="old")
    assert await store.conclude([taken]) == [True]
    if state is not EffectState.INTENDED:
        assert await store.conclude([ended(taken, state, error="no", follows=None)]) == [True]
    return old, await only(store, old.job)


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("state", EffectState)
async def test_a_late_run_does_not_overwrite_a_newer_one(
    store: Store, state: EffectState, late: EffectState
) -> None:
    """A process wakes up after its lease has lapsed, and its job runs again elsewhere."""
    old, before = await taken_over(store, state)

    assert await store.conclude([ended(old, late, error="late")]) == [False]
    assert await only(store, old.job) == before
    # It has read what was there before the newer run came, and is not told of that.
    assert await store.conclude([ended(old, late, follows="")]) == [False]
    assert await only(store, old.job) == before


@pytest.mark.parametrize("state", [s for s in EffectState if s is not EffectState.CONFIRMED])
async def test_a_late_confirmation_of_the_key_stands(store: Store, state: EffectState) -> None:
    """It did happen under this key, whatever the newer run was told of its own try."""
    old, _ = await taken_over(store, state)

    late = ended(old, EffectState.CONFIRMED, result=b'"A"')
    assert await store.conclude([late]) == [True]

    found = await only(store, old.job)
    assert (found.state, found.result, found.key) == (EffectState.CONFIRMED, b'"A"', "key")
    newer = ended(old, EffectState.UNKNOWN, run="new")
    assert await store.conclude([newer]) == [False]
    assert await store.conclude([ended(late, EffectState.CONFIRMED, run="new")]) == [True]


@pytest.mark.parametrize("state", [s for s in EffectState if s is not EffectState.CONFIRMED])
async def test_a_late_confirmation_of_another_key(store: Store, state: EffectState) -> None:
    """It stands where nothing has happened under the newer key, and is not mistaken for the answer
    to a call under that one."""
    old, before = await taken_over(store, state, key="key#2")
    may_be_two = state in (EffectState.INTENDED, EffectState.UNKNOWN)

    late = ended(old, EffectState.CONFIRMED, result=b'"A"')
    assert await store.conclude([late]) == [not may_be_two]

    found = await only(store, old.job)
    if may_be_two:
        assert found == before
    else:
        assert (found.state, found.result, found.key) == (EffectState.CONFIRMED, b'"A"', "key")


async def test_of_two_runs_that_follow_one_the_first_has_the_effect(
    store: Store, handles: Handles
) -> None:
    callers = [store, *await handles(2)]
    (stored,) = await store.intend([effect(run="old")])

    answers = await asyncio.gather(
        *(
            callers[n % 3].conclude(
                [ended(stored, EffectState.INTENDED, run=f"run-{n}", follows="old")]
            )
            for n in range(12)
        )
    )

    assert sorted(answers) == [[False]] * 11 + [[True]]
    assert (await only(store, stored.job)).run == f"run-{answers.index([True])}"


async def test_a_person_s_decision_is_no_run_s_to_overwrite(store: Store) -> None:
    (stored,) = await store.intend([effect(run="old")])
    decided = ended(stored, EffectState.FAILED, run="")
    assert await store.conclude([decided], ANN) == [True]

    assert await store.conclude([ended(stored, EffectState.UNKNOWN)]) == [False]
    assert (await only(store, stored.job)).state is EffectState.FAILED
    taken = ended(stored, EffectState.INTENDED, run="new", follows="")
    assert await store.conclude([taken]) == [True]
    assert await store.conclude([decided], ANN) == [True]


@pytest.mark.parametrize("odd", ['a"b', "a\\", '","thread":"x', "é", "", "=x", "%a-.*"])
async def test_runs_are_told_apart_whatever_they_are_called(store: Store, odd: str) -> None:
    (stored,) = await store.intend([effect(run=odd, key=f"{odd}-key")])

    assert await store.conclude([ended(stored, EffectState.UNKNOWN, run=f"{odd}.")]) == [False]
    assert await store.conclude([ended(stored, EffectState.UNKNOWN)]) == [True]
    late = ended(stored, EffectState.CONFIRMED, run="other", key=f"{odd}-key.", result=b"1")
    assert await store.conclude([late]) == [False]
    taken = ended(stored, EffectState.INTENDED, run="new", follows=odd)
    assert await store.conclude([msgspec.structs.replace(taken, follows=f"{odd}.")]) == [False]
    assert await store.conclude([taken]) == [True]


async def test_several_endings_of_one_effect_in_one_call(store: Store) -> None:
    (stored,) = await store.intend([effect(run="old")])
    taken = ended(stored, EffectState.INTENDED, run="new", follows="old")

    answers = await store.conclude([taken, ended(stored, EffectState.FAILED), taken])

    assert answers == [True, False, True]
    assert (await only(store, stored.job)).run == "new"


async def test_of_many_confirmations_one_stands(store: Store, handles: Handles) -> None:
    callers = [store, *await handles(2)]
    (stored,) = await store.intend([effect()])

    answers = await asyncio.gather(
        *(
            callers[n % 3].conclude([ended(stored, EffectState.CONFIRMED, result=b"%d" % n)])
            for n in range(12)
        )
    )

    assert sorted(answers) == [[False]] * 11 + [[True]]
    winner = answers.index([True])
    assert (await only(store, stored.job)).result == b"%d" % winner


async def test_what_a_person_decides_is_written_down_as_confirmed_or_denied(store: Store) -> None:
    (stored,) = await store.intend([effect()])
    await store.conclude([ended(stored, EffectState.UNKNOWN)])

    assert await store.conclude([ended(stored, EffectState.REFUSED)], ANN) == [True]

    assert (await only(store, stored.job)).decided_by == "ann"
    assert await store.conclude([ended(stored, EffectState.CONFIRMED, result=b"1")], ANN) == [True]
    rows, _ = await store.audits()
    assert {(row.who, row.note, row.target) for row in rows} == {
        ("ann", "because", f"{stored.job}/{stored.name}")
    }
    assert [(row.verb, row.before, row.after) for row in rows] == [
        ("confirm", "refused", "confirmed"),
        ("deny", "unknown", "refused"),
    ]


async def test_a_decision_that_changed_nothing_is_not_audited(store: Store) -> None:
    (stored,) = await store.intend([effect()])
    await store.conclude([ended(stored, EffectState.CONFIRMED, result=b"1")])

    assert await store.conclude([ended(stored, EffectState.REFUSED)], ANN) == [False]

    assert (await store.audits())[0] == []
    assert await audit_of(store, stored.job) == []


async def test_answers_come_in_the_order_of_the_effects(store: Store) -> None:
    stored = await store.intend([effect() for _ in range(3)])
    await store.conclude([ended(stored[1], EffectState.CONFIRMED, result=b"1")])

    answers = await store.conclude([ended(one, EffectState.REFUSED) for one in stored])

    assert answers == [True, False, True]
    assert await store.conclude([]) == []
    assert await store.intend([]) == []


async def test_the_ledger_reads_newest_first(store: Store, clock: ManualClock) -> None:
    jobs: list[str] = []
    for _ in range(5):
        (stored,) = await store.intend([effect()])
        jobs.append(stored.job)
        clock.advance("1s")

    found, cursor = await store.effects()

    assert [one.job for one in found] == jobs[::-1]
    assert cursor is None


async def test_the_ledger_is_read_page_by_page(store: Store) -> None:
    stored = [one for _ in range(5) for one in await store.intend([effect() for _ in range(5)])]
    seen: list[str] = []
    cursor = None
    for _ in range(4):
        found, cursor = await store.effects(cursor=cursor, limit=7)
        seen += [one.job for one in found]
        if cursor is None:
            break

    assert cursor is None
    assert len(seen) == 25
    assert set(seen) == {one.job for one in stored}


async def test_a_large_batch_of_effects_is_read_page_by_page(store: Store) -> None:
    """No two have one moment, at which a page that ends between them would lose the second."""
    for _ in range(6):
        stored = {one.job for one in await store.intend([effect() for _ in range(1_000)])}
        seen: list[str] = []
        cursor = None
        while len(seen) < 1_000:
            found, cursor = await store.effects(cursor=cursor, limit=100)
            seen += [one.job for one in found]
        assert set(seen[:1_000]) == stored


async def test_the_ledger_is_searched(store: Store) -> None:
    a, b, c = await store.intend(
        [effect(key="pay-100%_off"), effect(key="pay-100x_off"), effect(key="pay-7")]
    )
    await store.conclude([ended(c, EffectState.CONFIRMED, result=b'{"code":"CONF-42"}')])

    async def search(**where: Any) -> set[str]:
        return {one.job for one in (await store.effects(**where))[0]}

    assert await search(text="pay-") == {a.job, b.job, c.job}
    assert await search(text="100%_") == {a.job}
    assert await search(text="CONF-42") == legible(store, c.job)
    assert await search(text="nowhere") == set()
    assert await search(states=frozenset({EffectState.INTENDED})) == {a.job, b.job}
    assert await search(states=frozenset({EffectState.CONFIRMED}), job=a.job) == set()
    assert await search(job=b.job, text="100") == {b.job}


async def test_the_ledger_outlives_what_is_pruned(store: Store, clock: ManualClock) -> None:
    old_done, old_open, old_refused = await store.intend([effect() for _ in range(3)])
    await store.conclude([ended(old_done, EffectState.CONFIRMED)])
    await store.conclude([ended(old_refused, EffectState.REFUSED)])
    clock.advance("91d")
    (young,) = await store.intend([effect()])
    await store.conclude([ended(young, EffectState.CONFIRMED)])

    await store.prune(dead_keep=90 * DAY)

    left = {one.job for one in (await store.effects())[0]}
    assert left == {old_open.job, young.job}


async def test_those_written_together_are_all_of_one_moment(store: Store) -> None:
    """Who wrote one just now tells it by this from one that was there."""
    for _ in range(3):
        stored = await store.intend([effect(job=new_id()) for _ in range(300)])
        assert all(one.created_at == one.updated_at for one in stored)
