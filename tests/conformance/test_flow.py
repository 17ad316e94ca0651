"""Flows: a parent waits for its children, and is released or failed exactly once."""

from __future__ import annotations

import asyncio

import pytest

from relevo.ids import new_id
from relevo.job import After, Ending, Lease, Policy, Receipt, State, Verdict
from relevo.store import Filter, Store
from relevo.testing import ManualClock
from tests.conformance.conftest import Handles
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
    outcomes,
    put,
    state,
    states,
    take,
    take_id,
    take_one,
)

POLICIES: list[Policy] = ["fail", "continue"]


async def fail(store: Store, id: str) -> None:
    assert await end(store, await take_id(store, id), State.DEAD)


async def finish(store: Store, id: str, queue: str = WORK) -> None:
    assert await end(store, await take_id(store, id, queue))


async def assert_child_failed(store: Store, parent: str, child: str, queue: str = WORK) -> None:
    found = await look(store, parent)
    assert found.state is State.DEAD
    assert found.ended_at is not None
    assert found.failure is not None
    assert found.failure.type == "ChildFailed"
    assert child in found.failure.message
    assert queue in found.failure.message


@pytest.mark.parametrize("order", ["child first", "parent first"])
async def test_a_parent_waits_for_a_child_of_the_same_call(store: Store, order: str) -> None:
    child = job()
    parent = job(OTHER, after=(After(child.id),))
    await put(store, *([child, parent] if order == "child first" else [parent, child]))

    assert await states(store, child.id, parent.id) == [State.READY, State.WAITING]
    assert [lease.id for lease in await take(store, 10, WORK, OTHER)] == [child.id]


async def test_edges_are_seen_from_both_ends(store: Store) -> None:
    first, second = await put(store, job(), job())
    parent = await add(store, after=(After(first), After(second, "continue")))

    found = await look(store, parent)
    assert set(found.after) == {After(first, "fail"), After(second, "continue")}
    assert found.before == ()
    assert (await look(store, first)).before == (parent,)
    assert (await look(store, second)).before == (parent,)
    assert (await look(store, second)).after == ()


async def test_the_last_child_releases_the_parent(store: Store) -> None:
    children = await put(store, job(), job(), job())
    parent = await add_parent(store, *children)
    for child in children[:2]:
        await finish(store, child)
        assert await state(store, parent) is State.WAITING

    await finish(store, children[2])

    assert await state(store, parent) is State.READY
    lease = await take_id(store, parent, OTHER)
    assert lease.attempt == 1


async def test_children_settled_in_one_call_release_the_parent_once(store: Store) -> None:
    children = await put(store, *[job() for _ in range(10)])
    parent = await add_parent(store, *children)
    leases = await take(store, 10)

    answers = await store.settle([Ending(lease=lease, state=State.DONE) for lease in leases])

    assert answers == [True] * 10
    assert [lease.id for lease in await take(store, 10, OTHER)] == [parent]


async def test_a_hundred_children_settled_at_once_release_the_parent_once(
    store: Store, handles: Handles
) -> None:
    """F37"""
    settlers = [store, *await handles(3)]
    children = await put(store, *[job(f"app:module:part-{n % 4}") for n in range(100)])
    parent = await add_parent(store, *children)
    queues = [f"app:module:part-{n}" for n in range(4)]
    leases = await take(store, 100, *queues)

    await asyncio.gather(*(end(settlers[n % 4], lease) for n, lease in enumerate(leases)))

    claimed = await asyncio.gather(*(take(handle, 5, OTHER) for handle in settlers))
    assert [lease.id for leases in claimed for lease in leases] == [parent]
    assert await outcomes(store, parent) == []


async def test_two_last_children_at_once_release_every_parent(
    store: Store, handles: Handles
) -> None:
    (other,) = await handles(1)
    parents: list[str] = []
    pairs: list[tuple[Lease, Lease]] = []
    for _ in range(15):
        children = await put(store, job(), job())
        parents.append(await add_parent(store, *children))
        first, second = await take(store, 2)
        pairs.append((first, second))

    for first, second in pairs:
        assert await asyncio.gather(end(store, first), end(other, second)) == [True, True]

    assert await states(store, *parents) == [State.READY] * 15
    assert len(await take(store, 100, OTHER)) == 15


async def test_a_parent_reads_its_childrens_results(store: Store) -> None:
    first, second = await put(store, job(node="a"), job(node="b"))
    parent = await add_parent(store, first, second)
    for lease, result in zip(await take(store, 2), (b'{"a":1}', b'"b"'), strict=True):
        await end(store, lease, result=result)
    await take_id(store, parent, OTHER)

    children = await store.find([edge.child for edge in (await look(store, parent)).after])

    assert {child.id: child.result for child in children if child} == {
        first: b'{"a":1}',
        second: b'"b"',
    }


async def test_an_unkept_child_releases_its_parent(store: Store) -> None:
    child = await add(store, keep=0)
    parent = await add_parent(store, child)

    await finish(store, child)

    assert await state(store, parent) is State.READY


async def test_a_child_that_goes_on_releases_nobody(store: Store, clock: ManualClock) -> None:
    child = await add(store, attempts=9)
    parent = await add_parent(store, child)
    for ending in (State.SCHEDULED, State.PARKED, State.HELD):
        await end(store, await take_id(store, child), ending, park="b")
        assert await state(store, parent) is State.WAITING
        await store.retry([child], ANN)
    await take_id(store, child)
    clock.advance("2m")
    await store.rescue()

    assert await state(store, parent) is State.WAITING


async def test_a_dead_child_fails_its_parent(store: Store) -> None:
    child, sibling = await put(store, job(), job())
    parent = await add_parent(store, child, sibling)

    await fail(store, child)

    await assert_child_failed(store, parent, child)
    await finish(store, sibling)
    await assert_child_failed(store, parent, child)
    assert await take(store, 10, OTHER) == []


async def test_a_failed_parent_is_among_the_dead_letters(store: Store) -> None:
    child = await add(store)
    await add_parent(store, child)
    await fail(store, child)

    assert {group.type for group in await store.groups()} == {"Boom", "ChildFailed"}


async def test_a_dead_child_may_be_continued_past(store: Store) -> None:
    child, sibling = await put(store, job(), job())
    parent = await add_parent(store, child, sibling, policy="continue")

    await fail(store, child)

    assert await state(store, parent) is State.WAITING
    await finish(store, sibling)
    assert await state(store, parent) is State.READY


@pytest.mark.parametrize("policy", POLICIES)
async def test_every_bad_end_of_a_child_counts(store: Store, policy: Policy) -> None:
    children = await put(store, job(), job(), job(), job())
    settled, cancelled, discarded, dead = children
    parents = [await add_parent(store, child, policy=policy) for child in children]
    leases = {lease.id: lease for lease in await take(store, 4)}

    await end(store, leases[settled], State.CANCELLED)
    assert await store.cancel([cancelled], ANN) == [True]
    await end(store, leases[discarded], State.HELD)
    assert await store.discard([discarded], ANN) == [True]
    await end(store, leases[dead], State.DEAD)

    for child, parent in zip(children, parents, strict=True):
        if policy == "continue":
            assert await state(store, parent) is State.READY
        else:
            await assert_child_failed(store, parent, child)


async def test_cancelling_a_child_that_never_ran_counts(store: Store) -> None:
    fails, goes = await put(store, job(delay=HOUR), job())
    failed = await add_parent(store, fails)
    released = await add_parent(store, goes, policy="continue")

    assert await store.cancel([fails, goes], ANN) == [True, True]

    await assert_child_failed(store, failed, fails)
    assert await state(store, released) is State.READY


async def test_discarding_a_dead_child_changes_nothing_for_its_parent(store: Store) -> None:
    child, sibling = await put(store, job(), job())
    parent = await add_parent(store, child, sibling, policy="continue")
    await fail(store, child)

    assert await store.discard([child], ANN) == [True]

    assert await state(store, parent) is State.WAITING
    await finish(store, sibling)
    assert await state(store, parent) is State.READY


async def test_a_failure_climbs_by_each_edges_own_policy(store: Store) -> None:
    child = await add(store)
    parent = await add_parent(store, child, queue="app:module:p1")
    strict = await add_parent(store, parent, queue="app:module:p2")
    lenient = await add_parent(store, parent, policy="continue", queue="app:module:p3")
    top = await add_parent(store, strict, queue="app:module:p4")

    await fail(store, child)

    await assert_child_failed(store, parent, child)
    await assert_child_failed(store, strict, parent, "app:module:p1")
    assert await state(store, lenient) is State.READY
    await assert_child_failed(store, top, strict, "app:module:p2")


async def test_a_long_chain_fails_to_its_top(store: Store) -> None:
    chain = [await add(store)]
    for n in range(30):
        chain.append(await add_parent(store, chain[-1], queue=f"app:module:c{n % 3}"))

    await fail(store, chain[0])

    assert await states(store, *chain) == [State.DEAD] * 31


async def test_a_chain_runs_link_by_link(store: Store) -> None:
    first = await add(store)
    second = await add_parent(store, first, queue=WORK)
    third = await add_parent(store, second, queue=WORK)

    for id in (first, second, third):
        await finish(store, id)

    assert await states(store, first, second, third) == [State.DONE] * 3


async def test_a_child_may_have_two_parents(store: Store) -> None:
    child, sibling = await put(store, job(), job())
    both = await add_parent(store, child, sibling)
    one = await add_parent(store, child)

    await finish(store, child)
    assert await states(store, both, one) == [State.WAITING, State.READY]
    await finish(store, sibling)

    assert await states(store, both, one) == [State.READY, State.READY]
    assert set((await look(store, child)).before) == {both, one}


async def test_children_that_ended_before_count_at_once(store: Store) -> None:
    done = await make(store, State.DONE)
    dead = await make(store, State.DEAD)
    live = await add(store, delay=HOUR)

    assert await state(store, await add_parent(store, done)) is State.READY
    assert await state(store, await add_parent(store, done, live)) is State.WAITING
    assert await state(store, await add_parent(store, dead, policy="continue")) is State.READY
    failed = await add_parent(store, done, dead)
    await assert_child_failed(store, failed, dead)


async def test_a_child_ending_while_its_parent_arrives_is_not_missed(
    store: Store, handles: Handles
) -> None:
    (other,) = await handles(1)
    parents: list[str] = []
    for _ in range(20):
        lease = await take_id(store, await add(store))
        parent, settled = await asyncio.gather(add_parent(other, lease.id), end(store, lease))
        assert settled
        parents.append(parent)

    assert await states(store, *parents) == [State.READY] * 20


async def test_a_parent_with_a_moment_of_its_own_waits_for_that_too(
    store: Store, clock: ManualClock
) -> None:
    child = await add(store)
    parent = await add_parent(store, child, run_at=await store.now() + HOUR)

    await finish(store, child)

    assert await state(store, parent) is State.SCHEDULED
    clock.advance("61m")
    assert await take_id(store, parent, OTHER)


async def test_a_waiting_parent_can_be_cancelled(store: Store) -> None:
    child = await add(store)
    parent = await add_parent(store, child)
    above = await add_parent(store, parent, queue="app:module:above")

    assert await store.cancel([parent], ANN) == [True]

    await assert_child_failed(store, above, parent, OTHER)
    await finish(store, child)
    assert await state(store, parent) is State.CANCELLED
    assert await take(store, 10, OTHER) == []


async def test_a_failed_parent_is_retried_when_its_child_is(store: Store) -> None:
    child = await add(store)
    parent = await add_parent(store, child)
    await fail(store, child)

    assert await store.retry([parent], ANN) == [False]
    assert await state(store, parent) is State.DEAD
    assert await store.retry([child], ANN) == [True]
    assert await state(store, parent) is State.DEAD
    assert await store.retry([parent], ANN) == [True]
    assert await state(store, parent) is State.WAITING
    await finish(store, child)
    assert await state(store, parent) is State.READY
    await finish(store, parent, OTHER)


async def test_a_failed_parent_whose_child_did_it_later_is_ready(store: Store) -> None:
    child = await add(store)
    parent = await add_parent(store, child)
    await fail(store, child)
    await store.retry([child], ANN)
    await finish(store, child)
    assert await state(store, parent) is State.DEAD

    assert await store.retry([parent], ANN) == [True]

    assert await state(store, parent) is State.READY


async def test_a_parent_retried_while_waiting_again_can_fail_again(store: Store) -> None:
    child = await add(store)
    parent = await add_parent(store, child)
    await fail(store, child)
    await store.retry([child], ANN)
    await store.retry([parent], ANN)

    await fail(store, child)

    await assert_child_failed(store, parent, child)


async def test_a_cancelled_parent_retried_waits_for_what_is_live(store: Store) -> None:
    first, second, bad = await put(store, job(), job(), job())
    parent = await add(store, OTHER, after=(After(first), After(second), After(bad, "continue")))
    await finish(store, first)
    await store.cancel([parent], ANN)
    assert await store.cancel([bad], ANN) == [True]

    assert await store.retry([parent], ANN) == [True]

    assert await state(store, parent) is State.WAITING
    await finish(store, second)
    assert await state(store, parent) is State.READY


async def test_a_child_that_ends_twice_counts_once(store: Store) -> None:
    child, sibling = await put(store, job(), job())
    parent = await add_parent(store, child, sibling, policy="continue")
    await fail(store, child)
    await store.retry([child], ANN)
    leases = {lease.id: lease for lease in await take(store, 2)}

    assert await end(store, leases[child])

    assert await state(store, parent) is State.WAITING
    assert await end(store, leases[sibling])
    assert await state(store, parent) is State.READY


async def test_a_parent_that_ran_is_not_released_again(store: Store) -> None:
    child = await add(store)
    parent = await add_parent(store, child, policy="continue")
    await fail(store, child)
    await finish(store, parent, OTHER)
    await store.retry([child], ANN)

    await finish(store, child)

    assert await state(store, parent) is State.DONE


async def test_a_child_past_its_time_still_counts(store: Store, clock: ManualClock) -> None:
    quick = await add(store, keep=HOUR)
    slow = await add(store, delay=2 * HOUR)
    parent = await add_parent(store, quick, slow)
    await finish(store, quick)
    clock.advance("3h")
    await store.prune(dead_keep=DAY)

    await finish(store, slow)

    assert await state(store, parent) is State.READY


async def test_a_waiting_parent_is_not_pruned(store: Store, clock: ManualClock) -> None:
    child = await add(store, delay=365 * DAY)
    parent = await add_parent(store, child)
    clock.advance("200d")

    await store.prune(dead_keep=HOUR)

    assert await states(store, child, parent) == [State.SCHEDULED, State.WAITING]


async def test_a_flow_is_found_by_its_name(store: Store) -> None:
    flow = new_id()
    child = job(flow=flow, node="child")
    parent = job(OTHER, flow=flow, node="parent", after=(After(child.id),))
    await put(store, child, parent, job())

    page = await store.page(Filter(flow=flow))

    assert {(found.id, found.node) for found in page.jobs} == {
        (child.id, "child"),
        (parent.id, "parent"),
    }
    assert await count(store, flow=flow) == 2


async def test_a_whole_flow_carried_twice_is_stored_once(store: Store) -> None:
    bundle = new_id()
    child = job(bundle=bundle, flow=bundle)
    parent = job(OTHER, bundle=bundle, flow=bundle, after=(After(child.id),))
    await put(store, child, parent)

    assert await store.insert([child, parent]) == [
        Receipt(child.id, Verdict.IN_PROGRESS),
        Receipt(parent.id, Verdict.IN_PROGRESS),
    ]
    await finish(store, child.id)
    assert await store.insert([child, parent]) == [
        Receipt(child.id, Verdict.DONE),
        Receipt(parent.id, Verdict.IN_PROGRESS),
    ]
    assert await state(store, parent.id) is State.READY
    assert len(await take(store, 10, OTHER)) == 1


async def test_a_flow_of_a_thousand_children_is_released(store: Store) -> None:
    """F37"""
    children = await put(store, *[job() for _ in range(999)])
    parent = await add_parent(store, *children)
    leases = await take(store, 999)
    for at in range(0, 999, 333):
        assert await state(store, parent) is State.WAITING
        batch = leases[at : at + 333]
        await store.settle([Ending(lease=lease, state=State.DONE) for lease in batch])

    assert (await take_one(store, OTHER)).id == parent


async def test_a_parent_waits_for_the_job_that_stands_for_its_child(store: Store) -> None:
    """A child whose key is taken is another job by the time it is stored."""
    standing = await add(store, key="k")
    child = job(key="k")
    parent = job(OTHER, after=(After(child.id),))

    answers = await store.insert([child, parent])

    assert answers == [
        Receipt(standing, Verdict.IN_PROGRESS),
        Receipt(parent.id, Verdict.NEW),
    ]
    assert await state(store, parent.id) is State.WAITING
    await finish(store, standing)
    assert await state(store, parent.id) is State.READY


async def test_a_parent_keeps_its_key_while_it_waits(store: Store) -> None:
    child = await add(store)
    parent = await add_parent(store, child, key="k")

    assert await insert(store, OTHER, key="k") == Receipt(parent, Verdict.IN_PROGRESS)
