"""Groups: a job waits until its group is closed and every member has ended, and runs once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from relevo.ids import new_id
from relevo.job import After, Before, Ending, NewJob, Policy, Receipt, State, Verdict
from relevo.store import Edit, Gate, JobGroup, Store
from relevo.testing import ManualClock
from tests.conformance.conftest import Handles
from tests.conformance.steps import (
    ANN,
    DAY,
    HOUR,
    OTHER,
    add,
    add_parent,
    end,
    insert,
    job,
    look,
    put,
    state,
    states,
    take,
    take_id,
    take_one,
)

REPORT = "app:module:report"


def report(name: str = "import", **fields: Any) -> NewJob:
    """The job of a group."""
    id = new_id()
    return job(REPORT, id=id, after=(After(id, "tally"),), node=name, **fields)


def of(group: str, queue: str = REPORT, policy: Policy = "tally") -> tuple[Before, ...]:
    return (Before(group, queue, policy),)


async def open_group(store: Store, name: str = "import", **fields: Any) -> str:
    return (await put(store, report(name, **fields)))[0]


async def look_at(store: Store, id: str) -> JobGroup:
    (found,) = await store.job_groups([id])
    assert found is not None
    return found


async def close(store: Store, group: str) -> None:
    assert await store.set_gate([group], Gate.CLOSED) == [True]


async def counts(store: Store, group: str) -> tuple[int, int, int, int]:
    found = await look_at(store, group)
    return found.members, found.done, found.dead, found.cancelled


async def test_a_group_goes_on_when_it_is_closed_and_every_member_has_ended(store: Store) -> None:
    group = await open_group(store)
    members = await put(store, *[job(before=of(group)) for _ in range(3)])
    assert await counts(store, group) == (3, 0, 0, 0)
    leases = await take(store, 10)
    assert await end(store, leases[0])
    assert await end(store, leases[1], State.DEAD)
    assert await counts(store, group) == (3, 1, 1, 0)

    await close(store, group)
    assert await state(store, group) is State.WAITING
    assert await take(store, 1, REPORT) == []
    assert await store.cancel([leases[2].id], ANN) == [True]

    assert await counts(store, group) == (3, 1, 1, 1)
    lease = await take_id(store, group, REPORT)
    assert lease.attempt == 1
    assert await end(store, lease)
    assert await state(store, group) is State.DONE
    assert await counts(store, group) == (3, 1, 1, 1)
    assert set(members) == {lease.id for lease in leases}


async def test_a_group_that_is_open_waits_though_all_members_have_ended(store: Store) -> None:
    group = await open_group(store)
    await add(store, before=of(group))
    assert await end(store, await take_one(store))
    assert await state(store, group) is State.WAITING

    await close(store, group)

    assert await state(store, group) is State.READY


async def test_an_empty_group_goes_on_when_it_is_closed(store: Store) -> None:
    group = await open_group(store)
    await close(store, group)
    assert await state(store, group) is State.READY
    assert await counts(store, group) == (0, 0, 0, 0)
    assert await store.set_gate([group], Gate.CLOSED) == [False]
    assert await store.set_gate([new_id()], Gate.CLOSED) == [False]


async def test_a_group_is_seen_with_its_name_and_its_gate(store: Store, clock: ManualClock) -> None:
    first = await open_group(store, "import:1")
    clock.advance("1h")
    second = await open_group(store, "import:2")
    found = await look_at(store, first)
    assert (found.id, found.queue, found.name) == (first, REPORT, "import:1")
    assert (found.gate, found.closed_at) == (Gate.OPEN, None)
    clock.advance("1h")
    await close(store, first)
    found = await look_at(store, first)
    assert found.gate is Gate.CLOSED
    assert found.closed_at is not None
    assert 2 * HOUR <= found.closed_at - found.opened_at < 3 * HOUR
    assert [each.id for each in await store.newest_groups()] == [second, first]
    assert [each.id for each in await store.newest_groups(1)] == [second]
    assert await store.job_groups([await add(store), new_id()]) == [None, None]


async def test_members_and_group_do_not_show_each_other_by_the_million(store: Store) -> None:
    group = await open_group(store)
    member = await add(store, before=of(group))
    found = await look(store, group)
    assert (found.state, found.after, found.before) == (State.WAITING, (), ())
    assert (await look(store, member)).before == (group,)
    assert await store.live_members(group) == [member]
    assert await end(store, await take_one(store))
    assert await store.live_members(group) == []


@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_member_asked_for_again_counts_once(store: Store, is_kept: bool) -> None:
    group = await open_group(store)
    member = job(before=of(group), remember=DAY, keep=DAY if is_kept else 0)
    await put(store, member)
    assert (await store.insert([member]))[0] == Receipt(member.id, Verdict.IN_PROGRESS)
    assert await counts(store, group) == (1, 0, 0, 0)
    assert await end(store, await take_one(store))
    assert (await store.insert([member]))[0] == Receipt(member.id, Verdict.DONE)
    assert await counts(store, group) == (1, 1, 0, 0)
    await close(store, group)
    assert await state(store, group) is State.READY
    assert (await store.insert([member]))[0] == Receipt(member.id, Verdict.DONE)


async def test_after_close_only_live_members_add(store: Store) -> None:
    group = await open_group(store)
    first = await add(store, before=of(group))
    lease = await take_one(store)
    await close(store, group)

    stranger = job(before=of(group))
    assert await store.insert([stranger]) == [Receipt(stranger.id, Verdict.LATE)]
    assert await store.find([stranger.id]) == [None]
    other = job(before=of(group), cause=await add(store, OTHER))
    assert await store.insert([other]) == [Receipt(other.id, Verdict.LATE)]
    page = await add(store, before=of(group), cause=first)
    assert await end(store, lease)
    assert await state(store, group) is State.WAITING
    late = job(before=of(group), cause=first)
    assert await store.insert([late]) == [Receipt(late.id, Verdict.LATE)]  # it has ended

    await end(store, await take_id(store, page))

    assert await state(store, group) is State.READY
    assert await counts(store, group) == (2, 2, 0, 0)
    late = job(before=of(group), cause=page)
    assert await store.insert([late]) == [Receipt(late.id, Verdict.LATE)]


async def test_what_is_late_in_a_bundle_is_stored_all_the_same(store: Store) -> None:
    """A delivery was accepted: none of its jobs may be lost."""
    group = await open_group(store)
    await close(store, group)
    bundle = new_id()
    ids = await put(store, job(before=of(group), bundle=bundle), job(OTHER, bundle=bundle))
    assert await states(store, *ids) == [State.READY, State.READY]
    assert await counts(store, group) == (0, 0, 0, 0)


async def test_a_group_that_is_not_there_takes_nothing(store: Store) -> None:
    for parent in (new_id(), await add(store, REPORT)):
        late = job(before=of(parent))
        assert await store.insert([late]) == [Receipt(late.id, Verdict.LATE)]
        assert await store.find([late.id]) == [None]


async def test_a_group_and_its_members_may_come_in_one_call(store: Store) -> None:
    group = report()
    ids = await put(store, group, *[job(before=of(group.id)) for _ in range(3)])
    assert await counts(store, group.id) == (3, 0, 0, 0)
    await close(store, group.id)
    for lease in await take(store, 10):
        assert await state(store, group.id) is State.WAITING
        assert await end(store, lease)
    assert await state(store, group.id) is State.READY
    assert ids[0] == group.id


async def test_a_member_that_joins_a_live_job_waits_for_that(store: Store) -> None:
    holder = await add(store, key="k")
    group = await open_group(store)
    answer = await insert(store, key="k", before=of(group))
    assert answer.id == holder
    again = await insert(store, key="k", before=of(group))
    assert again.id == holder
    assert await counts(store, group) == (1, 0, 0, 0)
    await close(store, group)
    assert await state(store, group) is State.WAITING

    assert await end(store, await take_id(store, holder))

    assert await state(store, group) is State.READY
    assert await counts(store, group) == (1, 1, 0, 0)


async def test_a_member_that_was_done_for_good_counts_at_once(store: Store) -> None:
    await add(store, key="k", unique="forever")
    assert await end(store, await take_one(store))
    group = await open_group(store)
    answer = await insert(store, key="k", unique="forever", before=of(group))
    assert answer.verdict is Verdict.DONE
    assert await counts(store, group) == (1, 1, 0, 0)
    await close(store, group)
    assert await state(store, group) is State.READY


async def test_a_member_that_opens_a_dead_job_again_is_waited_for(store: Store) -> None:
    first = await add(store, key="k", unique="forever")
    assert await end(store, await take_one(store), State.DEAD)
    group = await open_group(store)
    answer = await insert(store, key="k", unique="forever", before=of(group))
    assert (answer.id, answer.verdict) == (first, Verdict.REOPENED)
    await close(store, group)
    assert await counts(store, group) == (1, 0, 0, 0)
    assert await end(store, await take_id(store, first))
    assert await state(store, group) is State.READY
    assert await counts(store, group) == (1, 1, 0, 0)


async def test_one_job_may_be_a_member_of_two_groups(store: Store) -> None:
    holder = await add(store, key="k")
    first, second = await open_group(store, "1"), await open_group(store, "2")
    for group in (first, second):
        assert (await insert(store, key="k", before=of(group))).id == holder
        await close(store, group)
    assert await end(store, await take_id(store, holder))
    assert await states(store, first, second) == [State.READY, State.READY]


async def test_a_retry_is_no_end(store: Store) -> None:
    group = await open_group(store)
    await add(store, before=of(group))
    await close(store, group)
    assert await end(store, await take_one(store), State.SCHEDULED)
    assert await counts(store, group) == (1, 0, 0, 0)
    assert await state(store, group) is State.WAITING
    assert await end(store, await take_one(store))
    assert await state(store, group) is State.READY


async def test_a_member_that_a_person_retries_counts_by_its_first_end(store: Store) -> None:
    group = await open_group(store)
    dead = await add(store, before=of(group))
    assert await end(store, await take_one(store), State.DEAD)
    assert await store.edit([Edit(id=dead, payload=b'{"n":2}')], ANN) == [True]
    assert await store.retry([dead], ANN) == [True]
    await close(store, group)
    assert await state(store, group) is State.READY
    assert await end(store, await take_id(store, group, REPORT))

    assert await end(store, await take_id(store, dead))
    assert await counts(store, group) == (1, 0, 1, 0)
    assert await state(store, group) is State.DONE
    assert await take(store, 1, REPORT) == []


async def test_a_member_that_is_discarded_has_ended_before(store: Store) -> None:
    group = await open_group(store)
    dead = await add(store, before=of(group))
    assert await end(store, await take_one(store), State.DEAD)
    assert await store.discard([dead], ANN) == [True]
    assert await counts(store, group) == (1, 0, 1, 0)
    await close(store, group)
    assert await state(store, group) is State.READY


async def test_members_that_are_held_or_parked_are_waited_for(store: Store) -> None:
    group = await open_group(store)
    held = await add(store, before=of(group))
    assert await end(store, await take_one(store), State.HELD)
    parked = await add(store, before=of(group))
    assert await end(store, await take_one(store), State.PARKED, park="breaker")
    await close(store, group)
    assert await state(store, group) is State.WAITING
    assert await store.discard([held], ANN) == [True]
    assert await store.cancel([parked], ANN) == [True]
    assert await counts(store, group) == (2, 0, 0, 2)
    assert await state(store, group) is State.READY


async def test_members_that_are_pruned_stay_counted(store: Store, clock: ManualClock) -> None:
    group = await open_group(store)
    await put(store, *[job(before=of(group), keep=1_000) for _ in range(5)])
    for lease in await take(store, 10):
        assert await end(store, lease)
    clock.advance("1d")
    assert await store.prune(dead_keep=DAY) >= 5
    assert await counts(store, group) == (5, 5, 0, 0)
    await close(store, group)
    assert await state(store, group) is State.READY


async def test_the_counts_go_with_the_group(store: Store, clock: ManualClock) -> None:
    group = await open_group(store, keep=DAY)
    await close(store, group)
    assert await end(store, await take_id(store, group, REPORT))
    clock.advance("10d")
    await store.prune(dead_keep=DAY)
    assert await store.job_groups([group]) == [None]
    assert await store.newest_groups() == []


async def test_a_shut_group_takes_none_and_stays(store: Store) -> None:
    group = await open_group(store)
    member = await add(store, before=of(group))
    await close(store, group)
    assert await store.set_gate([group], Gate.SHUT) == [True]
    assert await store.set_gate([group], Gate.SHUT) == [False]
    assert await store.set_gate([group], Gate.CLOSED) == [False]
    late = job(before=of(group), cause=member)
    assert await store.insert([late]) == [Receipt(late.id, Verdict.LATE)]
    assert await store.live_members(group) == [member]
    assert await store.cancel([member], ANN) == [True]
    assert await state(store, group) is State.WAITING
    assert await store.live_members(group) == []
    assert await store.cancel([group], ANN) == [True]
    assert await state(store, group) is State.CANCELLED
    assert await take(store, 1, REPORT) == []
    assert await store.retry([group], ANN) == [True]
    assert await state(store, group) is State.READY


async def test_a_group_may_be_a_member_of_another(store: Store) -> None:
    outer = await open_group(store, "outer")
    inner = report("inner", before=of(outer))
    await put(store, inner)
    await close(store, outer)
    await add(store, before=of(inner.id))
    await close(store, inner.id)
    assert await end(store, await take_one(store))
    assert await state(store, outer) is State.WAITING
    assert await end(store, await take_id(store, inner.id, REPORT))
    assert await state(store, outer) is State.READY


async def test_a_failed_flow_in_a_group_counts_as_dead(store: Store) -> None:
    group = await open_group(store)
    child = await add(store)
    parent = await add(store, OTHER, after=(After(child),), before=of(group))
    await close(store, group)
    assert await end(store, await take_id(store, child), State.DEAD)
    assert await state(store, parent) is State.DEAD
    assert await counts(store, group) == (1, 0, 1, 0)
    assert await state(store, group) is State.READY


async def test_many_settlers_let_a_group_go_on_once(store: Store, handles: Handles) -> None:
    """F69"""
    settlers = [store, *await handles(3)]
    group = await open_group(store)
    queues = [f"app:module:part-{n}" for n in range(4)]
    jobs = [job(queues[n % 4], before=of(group)) for n in range(200)]
    await asyncio.gather(
        *(one.insert(jobs[n * 50 : n * 50 + 50]) for n, one in enumerate(settlers))
    )
    leases = await take(store, 200, *queues)
    assert len(leases) == 200
    closing = asyncio.create_task(settlers[1].set_gate([group], Gate.CLOSED))

    await asyncio.gather(
        *(
            settlers[n % 4].settle([Ending(lease=each, state=State.DONE) for each in leases[n::20]])
            for n in range(20)
        )
    )

    assert await closing == [True]
    assert await counts(store, group) == (200, 200, 0, 0)
    assert [lease.id for lease in await take(store, 10, REPORT)] == [group]
    assert await take(store, 10, REPORT) == []


async def test_members_add_members_while_others_end(store: Store, handles: Handles) -> None:
    """F69"""
    group = await open_group(store)
    await put(store, *[job(before=of(group)) for _ in range(8)])
    await close(store, group)
    left = 60
    others = await handles(2)

    async def work(handle: Store) -> None:
        nonlocal left
        while leases := await take(handle, 3):
            for lease in leases:
                if left > 0:
                    left -= 1
                    page = job(before=of(group), cause=lease.id)
                    assert (await handle.insert([page]))[0].verdict is Verdict.NEW
                assert await state(store, group) is State.WAITING
                assert await end(handle, lease)

    await asyncio.gather(*(work(handle) for handle in (store, *others)))
    await work(store)

    assert await counts(store, group) == (68, 68, 0, 0)
    assert await state(store, group) is State.READY


# flows that grow


async def test_a_running_child_adds_another_that_its_parent_waits_for(store: Store) -> None:
    first = await add(store)
    parent = await add_parent(store, first)
    lease = await take_id(store, first)
    second = await add(store, before=of(parent, OTHER, "fail"), cause=first)

    assert (await look(store, second)).before == (parent,)
    assert set((await look(store, parent)).after) >= {After(second, "fail")}
    assert await end(store, lease)
    assert await state(store, parent) is State.WAITING
    assert await end(store, await take_id(store, second))
    assert await state(store, parent) is State.READY


@pytest.mark.parametrize("policy", ["fail", "continue"])
async def test_the_bad_end_of_an_added_child_means_what_its_edge_says(
    store: Store, policy: Policy
) -> None:
    first = await add(store)
    parent = await add_parent(store, first)
    lease = await take_id(store, first)
    second = await add(store, before=of(parent, OTHER, policy), cause=first)
    assert await end(store, lease)
    assert await end(store, await take_id(store, second), State.DEAD)
    assert await state(store, parent) is (State.DEAD if policy == "fail" else State.READY)


async def test_only_a_live_child_adds_to_a_flow(store: Store) -> None:
    first = await add(store)
    parent = await add_parent(store, first)
    stranger = job(before=of(parent, OTHER, "fail"))
    assert await store.insert([stranger]) == [Receipt(stranger.id, Verdict.LATE)]
    assert await end(store, await take_id(store, first))
    late = job(before=of(parent, OTHER, "fail"), cause=first)
    assert await store.insert([late]) == [Receipt(late.id, Verdict.LATE)]
