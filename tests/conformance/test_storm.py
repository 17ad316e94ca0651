"""Everybody does everything at once; afterwards no job is nowhere, nor in two places."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from itertools import pairwise

import pytest

from relevo.ids import new_id
from relevo.job import ENDED, LIVE, After, Ending, Job, NewJob, State, Suspicion
from relevo.store import BATCH, Edit, Filter, Loss, QueueMode, Store
from relevo.testing import ManualClock
from tests.conformance.conftest import Handles
from tests.conformance.steps import (
    ANN,
    BOOM,
    DAY,
    HOUR,
    OTHER,
    WORK,
    add,
    add_parent,
    count,
    end,
    job,
    put,
    state,
    states,
    take,
    take_id,
)

QUEUES = [WORK, OTHER]
KEYS = [None, None, "once", "ever"]
ENDINGS = [
    State.DONE,
    State.DONE,
    State.SCHEDULED,
    State.DEAD,
    State.PARKED,
    State.HELD,
    State.CANCELLED,
]


class Actor:
    """One of many who act on the same jobs without asking each other."""

    def __init__(self, store: Store, ids: list[str], number: int, seed: int) -> None:
        self.store, self.ids, self.worker = store, ids, f"w{number}"
        self.random = random.Random(f"{seed}-{number}")

    async def act(self) -> None:
        verbs = [self.insert, self.insert, self.work, self.work, self.work, self.people, self.keep]
        for _ in range(25):
            await self.random.choice(verbs)()

    def some(self, most: int = 3) -> list[str]:
        return self.random.sample(self.ids, min(len(self.ids), self.random.randint(1, most)))

    async def insert(self) -> None:
        news: list[NewJob] = []
        for _ in range(self.random.randint(1, 3)):
            key = self.random.choice(KEYS)
            after = [After(id, self.random.choice(["fail", "continue"])) for id in self.some(2)]
            news.append(
                job(
                    self.random.choice(QUEUES),
                    key=key,
                    unique="forever" if key == "ever" else "unfinished",
                    attempts=2,
                    lane=self.random.choice([None, None, "a", "b"]),
                    after=() if key or self.random.random() < 0.6 else tuple(after),
                )
            )
        answers = await self.store.insert(news)
        self.ids += {answer.id for answer in answers} - set(self.ids)

    async def work(self) -> None:
        leases = await take(self.store, self.random.randint(1, 4), *QUEUES, worker=self.worker)
        if self.random.random() < 0.2:
            return
        endings = [
            Ending(
                lease=lease,
                state=(state := self.random.choice(ENDINGS)),
                failure=BOOM if state is State.DEAD else None,
                park="p" if state is State.PARKED else None,
            )
            for lease in leases
        ]
        await self.store.settle(endings)

    async def people(self) -> None:
        match self.random.randrange(5):
            case 0:
                await self.store.cancel(self.some(1), ANN)
            case 1:
                await self.store.discard(self.some(), ANN)
            case 2:
                await self.store.edit([Edit(id=id, priority=0) for id in self.some()], ANN)
            case _:
                await self.store.retry(self.some(), ANN)

    async def keep(self) -> None:
        match self.random.randrange(4):
            case 0:
                losses = [
                    Loss(id=id, failure=BOOM, suspicion=Suspicion.ALONE) for id in self.some()
                ]
                await self.store.rescue(worker=self.worker, losses=losses)
            case 1:
                await self.store.unpark("p")
            case 2:
                mode = self.random.choice([QueueMode.OPEN, QueueMode.OPEN, QueueMode.PAUSED])
                await self.store.set_mode([self.random.choice(QUEUES)], mode, ANN)
            case _:
                await self.store.rescue()


@pytest.mark.parametrize("seed", range(3))
async def test_a_storm_leaves_every_job_in_one_place(
    store: Store, handles: Handles, clock: ManualClock, seed: int
) -> None:
    """F38"""
    ids = await put(store, *[job(QUEUES[n % 2], attempts=2) for n in range(20)])
    fleet = [store, *await handles(3)]
    actors = [Actor(fleet[n % 4], ids, n, seed) for n in range(8)]

    async with asyncio.timeout(90):
        await asyncio.gather(*(actor.act() for actor in actors))

    await store.set_mode(QUEUES, QueueMode.OPEN, ANN)
    found = [one for one in await store.find(ids) if one is not None]
    assert len(found) == len(ids)
    await assert_counted(store, found)
    assert_consistent(found)
    await assert_drains(store, clock, found)


async def assert_counted(store: Store, found: list[Job]) -> None:
    """Every view of the store counts the same jobs."""
    for queue in QUEUES:
        mine = Counter(one.state for one in found if one.queue == queue)
        (tally,) = [tally for tally in await store.tally() if tally.queue == queue]
        shown = {s: n for s, n in tally.counts.items() if n and s is not State.DONE}
        assert shown == {s: n for s, n in mine.items() if s is not State.DONE}
        for one in State:
            assert await count(store, queue=queue, states=frozenset({one})) == mine[one]
    dead = sum(one.state is State.DEAD for one in found)
    assert sum(group.count for group in await store.groups(limit=200)) == dead


def assert_consistent(found: list[Job]) -> None:
    """One live job per key; nobody waits for nobody; every run is told."""
    known = {one.id: one for one in found}
    keyed = Counter((one.queue, one.key) for one in found if one.key and one.state in LIVE)
    assert set(keyed.values()) <= {1}
    forever = Counter((one.queue, one.key) for one in found if one.key == "ever")
    assert set(forever.values()) <= {1}
    for one in found:
        children = [known[edge.child] for edge in one.after]
        if one.state is State.WAITING:
            assert any(child.state in LIVE for child in children), one
        assert (one.lease_until is not None) == (one.state is State.RUNNING)
        assert (one.ended_at is not None) == (one.state in ENDED)
        assert all(a.began_at <= b.began_at for a, b in pairwise(one.history))


async def assert_drains(store: Store, clock: ManualClock, found: list[Job]) -> None:
    """What is live comes to an end when nothing disturbs it any more."""
    clock.advance("1d")
    await store.rescue()
    await store.unpark("p")
    held = [one.id for one in found if one.state is State.HELD]
    await store.retry(held, ANN)
    while leases := await take(store, 50, *QUEUES):
        assert all(await store.settle([Ending(lease=one, state=State.DONE) for one in leases]))

    left = [one for one in await store.find([one.id for one in found]) if one is not None]
    assert {one.state for one in left} <= ENDED


# races that were worth a name of their own


async def test_a_parent_is_cancelled_while_its_last_child_ends(
    store: Store, handles: Handles
) -> None:
    (other,) = await handles(1)
    for n in range(15):
        lease = await take_id(store, await add(store))
        parent = await add_parent(store, lease.id, queue=f"app:module:p{n}")

        settled, cancelled = await asyncio.gather(end(store, lease), other.cancel([parent], ANN))

        assert (settled, cancelled) == (True, [True])
        assert await state(store, parent) is State.CANCELLED
        assert await take(store, 5, f"app:module:p{n}") == []


async def test_one_child_fails_while_another_succeeds(store: Store, handles: Handles) -> None:
    """F37"""
    (other,) = await handles(1)
    for n in range(15):
        good, bad = await put(store, job(), job())
        parent = await add_parent(store, good, bad, queue=f"app:module:p{n}")
        first, second = await take(store, 2)

        assert await asyncio.gather(end(store, first), end(other, second, State.DEAD)) == [
            True,
            True,
        ]

        assert await state(store, parent) is State.DEAD
        assert await take(store, 5, f"app:module:p{n}") == []


async def test_two_children_fail_at_once_and_the_parent_fails_once(
    store: Store, handles: Handles
) -> None:
    """F37"""
    (other,) = await handles(1)
    for n in range(15):
        children = await put(store, job(), job())
        parent = await add_parent(store, *children, queue=f"app:module:p{n}")
        first, second = await take(store, 2)

        await asyncio.gather(end(store, first, State.DEAD), end(other, second, State.DEAD))

        assert await state(store, parent) is State.DEAD
        groups = await store.groups(queue=f"app:module:p{n}")
        assert [group.count for group in groups] == [1]


async def test_a_parent_is_retried_while_its_child_ends(store: Store, handles: Handles) -> None:
    (other,) = await handles(1)
    for n in range(15):
        child = await add(store)
        parent = await add_parent(store, child, queue=f"app:module:p{n}")
        await end(store, await take_id(store, child), State.DEAD)
        await store.retry([child], ANN)
        lease = await take_id(store, child)

        settled, retried = await asyncio.gather(end(store, lease), other.retry([parent], ANN))

        assert (settled, retried) == (True, [True])
        assert await state(store, parent) is State.READY
        assert len(await take(store, 5, f"app:module:p{n}")) == 1


async def test_a_job_is_edited_while_it_is_claimed(store: Store, handles: Handles) -> None:
    (other,) = await handles(1)
    for _ in range(20):
        id = await add(store, payload=b'"old"')

        (edited,), leases = await asyncio.gather(
            other.edit([Edit(id=id, payload=b'"new"')], ANN), take(store)
        )

        # A claim may pass by a job that somebody is just writing to.
        (lease,) = leases or await take(store)
        assert (lease.id, bytes(lease.payload)) == (id, b'"new"' if edited else b'"old"')
        assert await end(store, lease)


async def test_a_chain_of_parents_falls_while_it_is_cancelled(
    store: Store, handles: Handles
) -> None:
    (other,) = await handles(1)
    for _ in range(10):
        child = await add(store)
        chain = [child]
        for _ in range(4):
            chain.append(await add_parent(store, chain[-1]))
        lease = await take_id(store, child)

        await asyncio.gather(end(store, lease, State.DEAD), other.cancel(chain[2:3], ANN))

        found = await states(store, *chain)
        assert found[:2] == [State.DEAD, State.DEAD]
        assert found[2] in {State.DEAD, State.CANCELLED}
        assert found[3:] == [State.DEAD, State.DEAD]


# as much as a caller may hand over at once


async def test_a_full_batch_passes_through_every_verb(store: Store, clock: ManualClock) -> None:
    ids = await put(store, *[job(key=f"key-{n}", lane=f"lane-{n % 7}") for n in range(BATCH)])
    leases = await take(store, BATCH)
    assert len(leases) == BATCH
    assert await store.extend(leases, HOUR) == [True] * BATCH
    clock.advance("2h")
    assert len(await store.rescue()) == BATCH
    assert await store.edit([Edit(id=id, priority=0) for id in ids], ANN) == [True] * BATCH
    leases = await take(store, BATCH)
    parked = [Ending(lease=lease, state=State.PARKED, park="p") for lease in leases]
    assert await store.settle(parked) == [True] * BATCH
    assert await store.unpark("p") == BATCH
    dead = [
        Ending(lease=lease, state=State.DEAD, failure=BOOM) for lease in await take(store, BATCH)
    ]
    assert await store.settle(dead) == [True] * BATCH
    assert [group.count for group in await store.groups()] == [BATCH]
    assert await store.retry(ids, ANN) == [True] * BATCH
    assert await store.cancel(ids, ANN) == [True] * BATCH
    assert await count(store, states=frozenset({State.CANCELLED})) == BATCH
    clock.advance("2d")
    pruned = [await store.prune(dead_keep=DAY) for _ in range(3)]
    assert sum(pruned) >= BATCH
    assert await store.find(ids) == [None] * BATCH


async def test_many_prune_at_once(store: Store, handles: Handles, clock: ManualClock) -> None:
    pruners = [store, *await handles(2)]
    await put(store, *[job(keep=HOUR) for _ in range(90)])
    await store.settle([Ending(lease=lease, state=State.DONE) for lease in await take(store, 90)])
    clock.advance("2h")

    pruned = await asyncio.gather(
        *(pruners[n % 3].prune(dead_keep=DAY, limit=20) for n in range(12))
    )

    assert sum(pruned) == 90
    assert await count(store) == 0


async def test_few_are_found_among_many(store: Store) -> None:
    """A page may be short where the engine had to look far, but reading on finds all."""
    await put(store, *[job(kind="Rare" if n % 60 == 0 else "Plain") for n in range(600)])
    seen: list[str] = []
    cursor = None
    for _ in range(50):
        page = await store.page(Filter(kind="Rare"), cursor=cursor, limit=4)
        seen += [found.id for found in page.jobs]
        cursor = page.cursor
        if cursor is None:
            break

    assert cursor is None
    assert len(seen) == len(set(seen)) == 10
    assert seen == sorted(seen, reverse=True)
    assert await count(store, kind="Rare") == 10


async def test_a_queue_wanted_twice_gives_each_job_once(store: Store) -> None:
    ids = await put(store, *[job() for _ in range(10)])

    taken = [lease.id for lease in await take(store, 20, WORK, WORK)]

    assert sorted(taken) == sorted(ids)


async def test_a_child_unknown_when_its_parent_came_may_come_later(store: Store) -> None:
    """Two calls of one relay may arrive the other way round: nothing hangs for ever."""
    child = new_id()
    (answer,) = await store.insert([job(OTHER, after=(After(child),))])
    if await state(store, answer.id) is not State.WAITING:
        return
    await add(store, id=child)
    await end(store, await take_id(store, child))

    assert await state(store, answer.id) is State.READY
