"""The short words the suite is written in: put, take, end, look."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from relevo.ids import new_id
from relevo.job import (
    After,
    Ending,
    Failure,
    Job,
    Lease,
    NewJob,
    Policy,
    Receipt,
    State,
    Verdict,
)
from relevo.store import By, Filter, QueueMode, Store, Tally, Want
from relevo.stores.sealed import Sealed

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
LEASE = MINUTE

WORK = "app:module:work"
OTHER = "app:module:other"
ANN = By("ann", "because")
BOOM = Failure(type="Boom", message="it went boom", trace="line 1", fingerprint="boom-1")


@contextmanager
def about(what: object) -> Iterator[None]:
    """Say in a failure what it was about."""
    try:
        yield
    except BaseException as problem:
        problem.add_note(f"about {str(what)[:60]!a}")
        raise


def legible(store: Store, *ids: str) -> set[str]:
    """What a search finds by text in a payload, body or result: nothing where that is sealed."""
    return set() if isinstance(store, Sealed) else set(ids)


def job(queue: str = WORK, **fields: Any) -> NewJob:
    return NewJob(
        **{"id": new_id(), "queue": queue, "kind": "DoWork", "payload": b'{"n":1}', **fields}
    )


async def put(store: Store, *jobs: NewJob) -> list[str]:
    """Insert jobs that nobody has seen, in one call; answers their ids."""
    answers = await store.insert(jobs)
    assert answers == [Receipt(new.id, Verdict.NEW) for new in jobs]
    return [new.id for new in jobs]


async def add(store: Store, queue: str = WORK, **fields: Any) -> str:
    return (await put(store, job(queue, **fields)))[0]


async def insert(store: Store, queue: str = WORK, **fields: Any) -> Receipt:
    return (await store.insert([job(queue, **fields)]))[0]


async def take(
    store: Store,
    count: int = 1,
    *queues: str | Want,
    worker: str = "w1",
    lease: int = LEASE,
) -> list[Lease]:
    wants = [Want(queue=want) if isinstance(want, str) else want for want in queues or (WORK,)]
    return (await store.claim(wants, count, worker, lease)).leases


async def take_one(store: Store, queue: str | Want = WORK, **how: Any) -> Lease:
    (lease,) = await take(store, 1, queue, **how)
    return lease


async def take_id(store: Store, id: str, queue: str = WORK, **how: Any) -> Lease:
    """A lease on the only due job of a queue, which must be `id`."""
    lease = await take_one(store, queue, **how)
    assert lease.id == id
    return lease


async def end(store: Store, lease: Lease, state: State = State.DONE, **how: Any) -> bool:
    if state is State.DEAD:
        how.setdefault("failure", BOOM)
    return (await store.settle([Ending(lease=lease, state=state, **how)]))[0]


async def look(store: Store, id: str) -> Job:
    (found,) = await store.find([id])
    assert found is not None
    return found


async def states(store: Store, *ids: str) -> list[State | None]:
    return [found and found.state for found in await store.find(ids)]


async def state(store: Store, id: str) -> State:
    return (await look(store, id)).state


async def outcomes(store: Store, id: str) -> list[str]:
    return [attempt.outcome for attempt in (await look(store, id)).history]


async def count(store: Store, **where: Any) -> int:
    return await store.count(Filter(**where))


async def tally_of(store: Store, queue: str = WORK) -> Tally:
    (found,) = [tally for tally in await store.tally() if tally.queue == queue]
    return found


async def make(store: Store, wanted: State, queue: str = WORK, **fields: Any) -> str:
    """A job brought into a state, in a queue where nothing else is due."""
    if wanted is State.WAITING:
        child = await add(store, f"{queue}-child")
        return await add(store, queue, after=(After(child),), **fields)
    if wanted is State.SCHEDULED:
        return await add(store, queue, delay=HOUR, **fields)
    id = await add(store, queue, **fields)
    if wanted is State.READY:
        return id
    lease = await take_id(store, id, queue)
    if wanted is not State.RUNNING:
        park = "breaker" if wanted is State.PARKED else None
        assert await end(store, lease, wanted, park=park)
    assert await state(store, id) is wanted
    return id


async def add_parent(
    store: Store, *children: str, policy: Policy = "fail", queue: str = OTHER, **fields: Any
) -> str:
    after = tuple(After(child, policy) for child in children)
    return await add(store, queue, after=after, **fields)


async def pause(store: Store, *queues: str) -> None:
    assert all(await store.set_mode(queues, QueueMode.PAUSED, ANN))


async def drain(store: Store, *queues: str) -> None:
    assert all(await store.set_mode(queues, QueueMode.DRAINING, ANN))


async def audit_of(store: Store, target: str) -> list[str]:
    """What people did to a target, newest first."""
    return [row.verb for row in (await store.audits(target=target))[0]]
