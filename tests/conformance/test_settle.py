"""How a run ends: the only way, once, and by whoever holds the lease."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import msgspec
import pytest

from relevo.job import Ending, Failure, Lease, State
from relevo.outcome import describe
from relevo.store import Filter, Store
from relevo.testing import ManualClock
from tests.conformance.conftest import Handles
from tests.conformance.fresh import AT_ONCE
from tests.conformance.steps import (
    ANN,
    BOOM,
    DAY,
    HOUR,
    MINUTE,
    OTHER,
    SECOND,
    WORK,
    about,
    add,
    count,
    end,
    job,
    look,
    outcomes,
    put,
    state,
    states,
    take,
    take_id,
    take_one,
)

ENDINGS = [
    State.DONE,
    State.SCHEDULED,
    State.DEAD,
    State.CANCELLED,
    State.PARKED,
    State.HELD,
]


async def test_a_done_job_is_kept_with_its_result(store: Store) -> None:
    lease = await take_id(store, await add(store), worker="w7")
    before = await store.now()

    assert await end(store, lease, result=b'{"code":"A1"}')

    found = await look(store, lease.id)
    assert found.state is State.DONE
    assert found.result == b'{"code":"A1"}'
    assert found.attempt == 1
    assert found.lease_until is None
    assert found.ended_at is not None
    assert before <= found.ended_at <= await store.now()
    (run,) = found.history
    assert (run.number, run.outcome, run.worker, run.failure) == (1, "done", "w7", None)
    assert run.began_at == lease.claimed_at
    assert run.ended_at == found.ended_at


@pytest.mark.parametrize("store_name", AT_ONCE)
async def test_a_done_job_that_is_not_to_be_kept_is_gone_at_once(store: Store) -> None:
    lease = await take_id(store, await add(store, keep=0))

    assert await end(store, lease)

    assert await store.find([lease.id]) == [None]
    assert await count(store) == 0


async def test_unkept_jobs_end_together_whatever_they_went_through(
    store: Store, clock: ManualClock
) -> None:
    stale = await take_id(store, await add(store, keep=0))
    clock.advance("2m")
    await store.rescue()
    tried = await take_id(store, await add(store, OTHER, keep=0), OTHER)
    await end(store, tried, State.SCHEDULED)
    leases = await take(store, 9, WORK, OTHER)  # the rescued one and the one tried again
    await put(store, job(keep=0), job(keep=0))
    leases += await take(store, 9)

    answers = await store.settle(
        [Ending(lease=lease, state=State.DONE) for lease in (stale, *leases)]
    )

    assert answers == [False, *[True] * 4]
    clock.advance("2m")  # a relayed store knows each job for a minute
    await store.prune(dead_keep=DAY)
    assert await store.find([lease.id for lease in leases]) == [None] * 4


async def test_only_a_done_job_is_not_kept(store: Store) -> None:
    lease = await take_id(store, await add(store, keep=0))

    assert await end(store, lease, State.DEAD)

    assert await state(store, lease.id) is State.DEAD


async def test_a_retried_job_waits_its_delay(store: Store, clock: ManualClock) -> None:
    lease = await take_id(store, await add(store))
    before = await store.now()

    assert await end(store, lease, State.SCHEDULED, delay=MINUTE, failure=BOOM)

    found = await look(store, lease.id)
    assert found.state is State.SCHEDULED
    assert found.attempt == 1
    assert before + MINUTE <= found.run_at <= await store.now() + MINUTE
    assert found.failure == BOOM
    assert (found.lease_until, found.ended_at) == (None, None)
    assert await take(store) == []
    clock.advance("61s")
    assert (await take_one(store)).attempt == 2


async def test_a_retry_without_delay_is_ready_at_once(store: Store) -> None:
    lease = await take_id(store, await add(store))

    assert await end(store, lease, State.SCHEDULED, failure=BOOM)

    assert await state(store, lease.id) is State.READY
    assert (await take_one(store)).attempt == 2


async def test_a_snooze_gives_the_attempt_back(store: Store, clock: ManualClock) -> None:
    lease = await take_id(store, await add(store))

    assert await end(store, lease, State.SCHEDULED, delay=MINUTE, spend=False)

    assert (await look(store, lease.id)).attempt == 0
    clock.advance("61s")
    assert (await take_one(store)).attempt == 1


@pytest.mark.parametrize("aside", [State.PARKED, State.HELD])
async def test_an_attempt_that_does_not_count_is_given_back(store: Store, aside: State) -> None:
    lease = await take_id(store, await add(store))

    assert await end(store, lease, aside, spend=False, park="b")

    assert (await look(store, lease.id)).attempt == 0


async def test_a_parked_job_names_what_it_is_parked_behind(store: Store) -> None:
    lease = await take_id(store, await add(store))

    assert await end(store, lease, State.PARKED, park="supplier:28", spend=False)

    found = await look(store, lease.id)
    assert (found.state, found.park) == (State.PARKED, "supplier:28")
    assert (found.lease_until, found.ended_at) == (None, None)


async def test_a_held_job_waits_for_a_person(store: Store, clock: ManualClock) -> None:
    lease = await take_id(store, await add(store))

    assert await end(store, lease, State.HELD, failure=BOOM)

    clock.advance("30d")
    assert await store.rescue() == []
    found = await look(store, lease.id)
    assert (found.state, found.failure, found.ended_at) == (State.HELD, BOOM, None)


@pytest.mark.parametrize("is_retried", [False, True])
async def test_a_job_that_ends_well_shows_no_error_of_an_earlier_run(
    store: Store, is_retried: bool
) -> None:
    id = await add(store)
    first = State.DEAD if is_retried else State.SCHEDULED
    assert await end(store, await take_id(store, id), first, failure=BOOM)
    if is_retried:
        assert await store.retry([id], ANN) == [True]
    assert (await look(store, id)).failure == BOOM

    assert await end(store, await take_id(store, id))

    found = await look(store, id)
    assert (found.state, found.failure) == (State.DONE, None)
    assert [run.failure for run in found.history] == [BOOM, None]
    (listed,) = (await store.page(Filter(queue=WORK))).jobs
    assert listed.failure is None


async def test_a_dead_job_keeps_its_failure(store: Store) -> None:
    lease = await take_id(store, await add(store))

    assert await end(store, lease, State.DEAD, failure=BOOM)

    found = await look(store, lease.id)
    assert found.state is State.DEAD
    assert found.failure == BOOM
    assert found.ended_at is not None
    assert found.history[-1].failure == BOOM


async def test_a_job_may_end_as_cancelled(store: Store) -> None:
    lease = await take_id(store, await add(store))

    assert await end(store, lease, State.CANCELLED)

    found = await look(store, lease.id)
    assert found.state is State.CANCELLED
    assert found.ended_at is not None
    assert await outcomes(store, lease.id) == ["cancelled"]


async def test_a_failure_of_8_kib_is_kept_whole(store: Store) -> None:
    failure = Failure(type="T", message="m" * 1_000, trace="ñ" * 3_500, fingerprint="f")
    lease = await take_id(store, await add(store))

    await end(store, lease, State.DEAD, failure=failure)

    assert (await look(store, lease.id)).failure == failure


async def test_a_run_ends_once(store: Store) -> None:
    for ending in ENDINGS:
        with about(ending):
            lease = await take_id(store, await add(store))
            assert await end(store, lease, ending, delay=HOUR, park="b")
            after = await look(store, lease.id)

            for again in ENDINGS:
                assert await end(store, lease, again, park="c", result=b"1") is False

            assert await look(store, lease.id) == after


async def test_a_lapsed_and_rescued_lease_cannot_settle(store: Store, clock: ManualClock) -> None:
    lease = await take_id(store, await add(store))
    clock.advance("2m")
    await store.rescue()
    before = await look(store, lease.id)
    for ending in ENDINGS:
        with about(ending):
            assert await end(store, lease, ending, park="b") is False

            assert await look(store, lease.id) == before
    assert before.state is State.READY


async def test_a_lapsed_lease_that_nobody_took_can_settle(store: Store, clock: ManualClock) -> None:
    lease = await take_id(store, await add(store))
    clock.advance("1h")

    assert await end(store, lease)

    assert await state(store, lease.id) is State.DONE
    assert await store.rescue() == []


async def test_a_lease_of_an_earlier_run_cannot_settle(store: Store, clock: ManualClock) -> None:
    id = await add(store)
    first = await take_id(store, id, worker="slow")
    clock.advance("2m")
    await store.rescue()
    second = await take_id(store, id, worker="quick")

    assert await end(store, first) is False
    assert await state(store, id) is State.RUNNING
    assert await end(store, second)


async def test_a_forged_token_cannot_settle(store: Store) -> None:
    lease = await take_id(store, await add(store))
    other = await take_id(store, await add(store))
    forged = msgspec.structs.replace(lease, token=other.token)

    assert await end(store, forged) is False
    assert await state(store, lease.id) is State.RUNNING
    assert await end(store, lease)


async def test_settling_what_never_was_answers_false(store: Store) -> None:
    lease = await take_id(store, await add(store, keep=0))
    await end(store, lease)

    assert await end(store, lease) is False
    assert await store.settle([]) == []


async def test_answers_come_in_the_order_of_the_endings(store: Store, clock: ManualClock) -> None:
    await put(store, job(), job())
    stale = await take(store, 2)
    clock.advance("2m")
    await store.rescue()
    again = await take(store, 2)
    await put(store, *[job(keep=0 if n % 2 else HOUR) for n in range(6)])
    mine = await take(store, 6)
    kinds = [State.DONE, State.DONE, State.SCHEDULED, State.DEAD, State.PARKED, State.HELD]
    told = [(stale[0], State.DONE), *zip(mine, kinds, strict=True), (stale[1], State.DEAD)]
    told += [(again[0], State.DONE), (again[1], State.DEAD)]

    answers = await store.settle(
        [Ending(lease=lease, state=kind, park="b") for lease, kind in told]
    )

    assert answers == [False, *[True] * 6, False, True, True]
    assert await states(store, again[0].id, again[1].id) == [State.DONE, State.DEAD]
    assert [await outcomes(store, lease.id) for lease in again] == [
        ["rescued", "done"],
        ["rescued", "dead"],
    ]


async def test_a_stale_and_a_live_lease_of_one_job_are_told_apart(
    store: Store, clock: ManualClock
) -> None:
    """A process may meet again, in one batch, the job it lost."""
    id = await add(store)
    stale = await take_id(store, id)
    clock.advance("2m")
    await store.rescue()
    live = await take_id(store, id)

    assert await store.extend([stale, live, stale], HOUR) == [False, True, False]
    endings = [Ending(lease=lease, state=State.DONE) for lease in (stale, live, stale)]
    assert await store.settle(endings) == [False, True, False]


async def test_two_settles_of_one_lease_at_once_one_wins(store: Store, handles: Handles) -> None:
    (other,) = await handles(1)
    for _ in range(10):
        lease = await take_id(store, await add(store))

        answers = await asyncio.gather(end(store, lease, State.DONE), end(other, lease, State.DEAD))

        assert sorted(answers) == [False, True]
        winner = State.DONE if answers[0] else State.DEAD
        assert await state(store, lease.id) is winner
        assert len(await outcomes(store, lease.id)) == 1


async def test_two_endings_of_one_lease_in_one_call_one_wins(store: Store) -> None:
    kinds = [State.HELD, State.DONE]
    for _ in range(2):
        lease = await take_id(store, await add(store))

        answers = await store.settle([Ending(lease=lease, state=kind) for kind in kinds])

        assert sorted(answers) == [False, True]
        assert await state(store, lease.id) is kinds[answers.index(True)]
        kinds.reverse()


async def test_a_settle_races_a_cancel_and_one_wins(store: Store, handles: Handles) -> None:
    """F38"""
    (other,) = await handles(1)
    for n in range(20):
        lease = await take_id(store, await add(store))
        pair = [end(store, lease), other.cancel([lease.id], ANN)]
        settled, cancelled = await asyncio.gather(*(pair if n % 2 else pair[::-1]))
        if not n % 2:
            settled, cancelled = cancelled, settled

        assert [settled] != cancelled
        assert await state(store, lease.id) is (State.DONE if settled else State.CANCELLED)
        assert await outcomes(store, lease.id) == ["done" if settled else "cancelled"]


async def test_history_tells_every_run(store: Store, clock: ManualClock) -> None:
    id = await add(store, attempts=9)
    ends = [
        (State.SCHEDULED, {"failure": BOOM}, "retry"),
        (State.SCHEDULED, {"spend": False}, "snooze"),
        (State.PARKED, {"spend": False, "park": "b"}, "parked"),
        (State.HELD, {"failure": BOOM}, "held"),
        (None, {}, "rescued"),
        (State.DEAD, {"failure": BOOM}, "dead"),
        (State.DONE, {}, "done"),
    ]
    expected: list[tuple[str, str]] = []
    for n, (ending, how, outcome) in enumerate(ends):
        lease = await take_id(store, id, worker=f"w{n}")
        expected.append((outcome, f"w{n}"))
        clock.advance("5s")
        if ending is None:
            clock.advance("2m")
            await store.rescue()
        else:
            assert await end(store, lease, ending, **how)
        if ending in {State.PARKED, State.HELD, State.DEAD}:
            assert await store.retry([id], ANN) == [True]

    history = (await look(store, id)).history

    assert [(run.outcome, run.worker) for run in history] == expected
    assert all(run.ended_at - run.began_at >= 5 * SECOND for run in history)
    assert all(a.ended_at <= b.began_at for a, b in pairwise(history))
    assert [run.failure for run in history[:2]] == [BOOM, None]


async def test_history_keeps_the_last_fifty(store: Store) -> None:
    id = await add(store, attempts=1_000)
    for n in range(53):
        lease = await take_id(store, id)
        failure = Failure(type="Boom", message=f"run {n}")
        assert await end(store, lease, State.SCHEDULED, failure=failure)

    history = (await look(store, id)).history

    assert len(history) == 50
    assert [run.number for run in history] == list(range(4, 54))
    assert history[-1].failure == Failure(type="Boom", message="run 52")


async def test_a_thousand_runs_end_in_one_call(store: Store) -> None:
    await put(store, *[job() for _ in range(1_000)])
    leases = await take(store, 1_000)

    answers = await store.settle([Ending(lease=lease, state=State.DONE) for lease in leases])

    assert answers == [True] * 1_000
    assert await count(store, states=frozenset({State.DONE})) == 1_000


async def test_many_settlers_at_once_all_get_their_answer(store: Store, handles: Handles) -> None:
    settlers = [store, *await handles(1)]
    await put(store, *[job() for _ in range(60)])
    leases = await take(store, 60)
    kinds = [State.DONE, State.SCHEDULED, State.DEAD]

    answers = await asyncio.gather(
        *(end(settlers[n % 2], lease, kinds[n % 3], delay=HOUR) for n, lease in enumerate(leases))
    )

    assert answers == [True] * 60
    for kind in kinds:
        assert await count(store, queue=WORK, states=frozenset({kind})) == 20


async def test_a_settled_job_does_not_lapse(store: Store, clock: ManualClock) -> None:
    leases: list[Lease] = []
    for ending in ENDINGS:
        lease = await take_id(store, await add(store))
        assert await end(store, lease, ending, delay=HOUR, park="b")
        leases.append(lease)
    clock.advance("30m")

    assert await store.rescue() == []
    assert await store.rescue(worker="w1") == []


class _Odd(Exception):
    __qualname__ = "Odd\ud800\0"

    def __str__(self) -> str:
        return "a\ud800b\0c\x1b[2J \U0001f600 \u202e שלום\r\n'\"\\%s{}$1;--" + "x" * 1_000_000


async def test_f08_a_failure_of_any_text_is_kept_as_it_was_described(store: Store) -> None:
    failure = describe(_Odd())

    assert "😀" in failure.message
    for ends in (State.SCHEDULED, State.DEAD, State.PARKED, State.HELD, State.CANCELLED):
        lease = await take_id(store, await add(store))
        park = "behind 😀 '%s'" if ends is State.PARKED else None

        assert await end(store, lease, ends, failure=failure, park=park, delay=MINUTE)

        found = await look(store, lease.id)
        assert (found.state, found.failure, found.park) == (ends, failure, park)
